"""Records the workloads for study: ``python -m bench.truth FOLDER [NAME…]``.

Writes a tape of each group of workloads, ``truth.jsonl``: what each GPU really did in each window
and what the daemon said of it, and the outcomes as the bench keeps them.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from bench.report import machine
from bench.truth.bench import run
from bench.truth.outcome import Outcome, keep, load, models
from bench.truth.report import report
from bench.truth.workloads import chosen


def main(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    gpus = models()
    if not gpus:
        sys.exit("no GPU that NVIDIA's driver knows")
    outcomes = folder / f"truth-{gpus[0]}.jsonl"
    with (folder / "truth.jsonl").open("a") as file:
        for found in run(chosen(names), len(gpus), tapes=folder):
            for one in found:
                kept = {
                    **asdict(one),
                    "workload": one.workload.name,
                    "program": one.workload.program,
                }
                file.write(json.dumps(kept) + "\n")
            file.flush()
            keep(outcomes, [Outcome.of(one, machine()) for one in found])
    report(gpus[0], load(outcomes)).print()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
