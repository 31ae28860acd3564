"""Runs benchmarks: ``python -m tests.bench [tapes] [cost] [gpu] [gpu-cost]``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from tests.bench.report import DOCS, Report, render


def benchmarks() -> dict[str, Callable[[], list[tuple[str, Report]]]]:
    """Each group of benchmarks by name; those for GPUs import what only GPU machines have."""

    def gpu() -> list[tuple[str, Report]]:
        from tests.bench import gpu

        return [
            ("2-gpu-ledger", gpu.ledger(8.0)),
            ("3-gpu-square-wave", gpu.square_wave(40.0)),
            ("4-gpu-disturbance", gpu.disturbance(5, 5.0)),
            ("5-gpu-cost", gpu.cost(20.0)),
        ]

    def gpu_cost() -> list[tuple[str, Report]]:
        from tests.bench import gpu

        return [
            ("6-gpus-cost", gpu.cost(40.0)),
            ("7-gpus-disturbance", gpu.disturbance(5, 4.0)),
        ]

    return {"gpu": gpu, "gpu-cost": gpu_cost}


def main(names: list[str]) -> None:
    """Run the named groups, print and keep their results; exit 1 where a target is missed."""
    folder = Path(os.environ.get("BENCH_RESULTS", DOCS / "performance"))
    reports = [pair for name in names for pair in benchmarks()[name]()]
    for name, report in reports:
        report.save(name, folder)
        report.print()
    DOCS.mkdir(exist_ok=True)
    (DOCS / "performance.md").write_text(render())
    sys.exit(any(not result.met for _, report in reports for result in report.results))


if __name__ == "__main__":
    main(sys.argv[1:] or ["tapes", "cost"])
