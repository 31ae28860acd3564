"""Every metric there is, gathered from where each is declared; writes ``docs/metrics.md``."""

from __future__ import annotations

import sys

from gpunode import loop, process, verdict
from gpunode.gpu import finder as gpu
from gpunode.host import finder as host
from gpunode.metric import Metric

SECTIONS: dict[str, tuple[Metric, ...]] = {
    "GPU": gpu.METRICS,
    "Node": host.METRICS,
    "Verdicts": verdict.METRICS,
    "Sources": loop.METRICS,
    "The daemon itself": process.METRICS,
}


def markdown() -> str:
    """The reference of all metrics."""
    lines = [
        "# Metrics",
        "",
        "Generated from the declarations by `make docs`; do not edit.",
        "",
        "`gpu` is the driver's index and `uuid` the identity of a GPU or MIG instance. A sensor "
        "that a GPU does not have, or that did not answer, has no series.",
    ]
    for title, metrics in SECTIONS.items():
        lines += [
            "",
            f"## {title}",
            "",
            "| metric | type | labels | meaning |",
            "|---|---|---|---|",
        ]
        for metric in sorted(metrics, key=lambda m: m.name):
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
