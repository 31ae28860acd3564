"""Every metric and check there is, gathered from where each is declared; writes the references.

python -m gpunode.catalogue docs
"""

from __future__ import annotations

import sys
from pathlib import Path

from gpunode.audit.source import CHECKS
from gpunode.sources import METRICS


def metrics() -> str:
    """The reference of all metrics."""
    lines = [
        "# Metrics",
        "",
        "Generated from the declarations by `make docs`; do not edit.",
        "",
        "`gpu` is the driver's index and `uuid` the identity of a GPU or MIG instance. A sensor "
        "that a GPU does not have, or that did not answer, has no series.",
    ]
    for title, declared in METRICS.items():
        lines += [
            "",
            f"## {title}",
            "",
            "| metric | type | labels | meaning |",
            "|---|---|---|---|",
        ]
        for metric in sorted(declared, key=lambda m: m.name):
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(lines) + "\n"


def checks() -> str:
    """The reference of all checks of the audit."""
    lines = [
        "# The tuning audit",
        "",
        "Generated from the declarations by `make docs`; do not edit.",
        "",
        "`gpunode audit` looks once and prints what it found; the daemon looks every ten minutes "
        "and exports `gpunode_audit_ok{check}`. What cannot be told has no series.",
    ]
    for check in CHECKS:
        lines += [
            "",
            f"## `{check.name}`",
            "",
            f"Advised: {check.advised}.",
            "",
            f"{check.why} To change it: `{check.remedy}` ([source]({check.source})).",
        ]
    return "\n".join(lines) + "\n"


DOCUMENTS = {"metrics.md": metrics, "audit.md": checks}

if __name__ == "__main__":
    for name, document in DOCUMENTS.items():
        Path(sys.argv[1], name).write_text(document())
