"""What a fix gives, against what the daemon says that it gives.

``python -m bench.truth.pairs FOLDER [--seconds=N] [NAME…]`` runs each program of
``paired.py`` without and with what mends it, beside one daemon, as many at a time as there are
GPUs. The folder gets ``pairs-MODEL.jsonl``, a line for each run as it ends, and a tape of each
group. What has not begun after the seconds (220) is left out: the second sizes come last.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pynvml

from bench.report import version
from bench.truth.bench import prepared, recording
from bench.truth.launch import Placement, launched
from bench.truth.outcome import models
from bench.truth.workloads import NO_P2P, Workload
from tests.daemon import Daemon, daemon

PAIRED = ("-m", "bench.truth.paired")
MEASURED = "measured"
"""What a rank says in the end."""

LOOK = 0.5
"""Seconds between looks at the verdict."""

LATE = 8.0
"""Seconds after which a run that has not been measured is given up, beyond its usual time."""

USUAL = 14.0
"""Seconds from ``go`` to the measurement's end, at most, for a run as it should be."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A program of ``paired.py``, and which of its two sizes."""

    program: str
    size: int
    gpus: int = 1
    broken: tuple[tuple[str, str], ...] = ()
    """Environment of the ranks without the fix."""

    @property
    def name(self) -> str:
        return f"{self.program}{'+' if self.size else ''}"


PROGRAMS = (
    *("p2p", "workers", "main_thread", "pinned", "straggler", "graphs", "bf16", "results"),
    *("source", "offloaded", "balance", "checkpoint", "allocator", "item", "tf32", "overlap"),
    *("batch", "compiled", "gil"),
)
"""Those of which most is to be learnt come first."""

OF_TWO = ("p2p", "straggler", "balance", "overlap")

PAIRS = tuple(
    Pair(program, size, 1 + (program in OF_TWO), tuple(NO_P2P.items()) if program == "p2p" else ())
    for size in (0, 1)
    for program in PROGRAMS
)


@dataclass(slots=True)
class Run:
    """One variant of a pair on the GPUs from ``first`` on, and what was said of them."""

    pair: Pair
    fixed: bool
    first: int
    looks: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    """When, and by GPU the entry of its verdict and of its last window."""

    @property
    def workload(self) -> Workload:
        """What the bench runs; what a verdict may say of it is not asked."""
        pair = self.pair
        return Workload(
            pair.name,
            f"{pair.program}:{int(self.fixed)}:{pair.size}",
            ("",) * pair.gpus,
            environment={
                "TORCHINDUCTOR_COMPILE_THREADS": "1",
                **(dict(pair.broken) if not self.fixed else {}),
            },
        )

    @property
    def gpus(self) -> list[int]:
        return list(range(self.first, self.first + self.pair.gpus))


@dataclass(frozen=True, slots=True)
class PairRun:
    """What one run did, and what the daemon said of its GPUs while it was measured."""

    pair: str
    fixed: bool
    gpus: list[int]
    machine: str
    tape: str
    failed: str
    since: float
    until: float
    rate: float
    """Items per second."""

    verdicts: list[dict[str, Any]]
    """Of each GPU, the last entry while it was measured."""

    shares: list[dict[str, float]]
    """Of each GPU, the mean of its windows that lie in the measurement."""

    version: str = field(default_factory=version)


def groups(pairs: Sequence[Pair], gpus: int) -> Iterator[list[Run]]:
    """Which runs go at the same time: two of a pair side by side, where they fit."""
    row: list[Run] = []
    used = 0
    for pair in pairs:
        if pair.gpus > gpus:
            continue
        for fixed in (False, True):
            if used + pair.gpus > gpus:
                yield row
                row, used = [], 0
            row.append(Run(pair, fixed, used))
            used += pair.gpus
    if row:
        yield row


def measure(row: Sequence[Run], group: Sequence[Placement], watched: Daemon) -> None:
    """Let the runs of a group get ready, then all go at once, and keep what is said of them."""
    prepared(group)
    until = time.monotonic() + USUAL + LATE
    while going := [
        (run, each)
        for run, each in zip(row, group, strict=True)
        if not (each.failed or all(process.has_said(MEASURED) for process in each.processes))
    ]:
        verdicts = {one["gpu"]: one for one in json.loads(watched.get("/api/v1/verdict"))}
        windows = {one["gpu"]: one for one in watched.gpus()}
        now = time.time()
        for run, each in going:
            seen = {
                str(gpu): {
                    "verdict": verdicts.get(str(gpu)),
                    "window": windows.get(str(gpu), {}).get("gpu_activity"),
                    "closed": windows.get(str(gpu), {}).get("times", {}).get("gpu_activity"),
                }
                for gpu in run.gpus
            }
            run.looks.append((now, seen))
            for process in each.processes:
                if process.ended_without(MEASURED):
                    each.fail(f"rank {process.rank} ended: {process.last_words}")
            if time.monotonic() > until:
                each.fail("was not measured in time")
        time.sleep(LOOK)


def outcome(run: Run, each: Placement, machine: str, tape: str) -> PairRun:
    """What is kept of a run."""
    failed = each.seen[0].failed
    files = [process.folder / f"measured.{process.rank}" for process in each.processes]
    measured = [] if failed else [json.loads(file.read_text()) for file in files]
    since = max((one["since"] for one in measured), default=0.0)
    until = max((one["until"] for one in measured), default=0.0)
    verdicts, shares = [], []
    for gpu in map(str, run.gpus):
        entries = [seen[gpu] for _, seen in run.looks]
        said = [entry["verdict"] for entry in entries if entry["verdict"]]
        verdicts.append(said[-1] if said else {})
        windows = {e["closed"]: e["window"] for e in entries if e["closed"] and e["window"]}
        inside = [w for at, w in windows.items() if at - w["seconds"] >= since and at <= until + 1]
        total = sum(w["seconds"] for w in inside)
        states = {s for w in inside for s in w["state"]}
        shares.append(
            {
                s: round(sum(w["state"].get(s, 0.0) * w["seconds"] for w in inside) / total, 4)
                for s in sorted(states)
            }
            if total
            else {}
        )
    rate = min((one["rate"] for one in measured), default=0.0)
    return PairRun(
        run.pair.name,
        run.fixed,
        run.gpus,
        machine,
        tape,
        failed,
        since,
        until,
        rate,
        verdicts,
        shares,
    )


def main(folder: Path, seconds: float, names: Sequence[str]) -> None:
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    gpus = models()
    name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
    kept = folder / f"pairs-{gpus[0]}.jsonl"
    wanted = [pair for pair in PAIRS if not names or pair.name in names or pair.program in names]
    plan = list(groups(wanted, len(gpus)))
    found: list[PairRun] = []
    with ExitStack() as stack:
        watched = stack.enter_context(daemon("--log.level=error"))
        placed = [[(run.workload, run.first) for run in row] for row in plan]
        going = stack.enter_context(closing(launched(placed, PAIRED)))
        for number, (row, group) in enumerate(zip(plan, going, strict=True)):
            if time.monotonic() - began > seconds:
                print(f"no time for {len(plan) - number} groups of runs", flush=True)
                break
            tape = f"pairs-{gpus[0]}-{int(time.time())}.jsonl.gz"
            with recording(folder / tape):
                measure(row, group, watched)
            for run, each in zip(row, group, strict=True):
                one = outcome(run, each, name, tape)
                found.append(one)
                with kept.open("a") as file:
                    file.write(json.dumps(asdict(one)) + "\n")
                cause = ",".join(str(v.get("cause")) for v in one.verdicts)
                which = "with" if one.fixed else "without"
                print(
                    f"{time.monotonic() - began:5.0f} s {one.pair:14} {which:8}"
                    f" {one.rate:10.3f}/s {cause} {one.failed}",
                    flush=True,
                )
    table(found)


def table(found: Sequence[PairRun]) -> None:
    """Pair, verdict, predicted with its interval, measured, error."""
    print(f"\n{'pair':15}{'verdict':22}{'predicted':>26}{'measured':>10}{'error':>8}")
    runs = {(one.pair, one.fixed): one for one in found if not one.failed}
    errors = []
    for (name, fixed), one in runs.items():
        other = runs.get((name, True))
        if fixed or other is None:
            continue
        gain = other.rate / one.rate
        causes = ",".join(sorted({str(v.get("cause")) for v in one.verdicts}))
        said = [v["gain"] for v in one.verdicts if v.get("gain")]
        text, error = "", ""
        if said:
            most = max(said, key=lambda each: float(each["estimate"]))
            text = f"{most['estimate']:.2f} ({most['lower']:.2f} to {most['upper']:.2f})"
            errors.append(abs(most["estimate"] / gain - 1.0))
            error = f"{errors[-1]:.1%}"
        print(f"{name:15}{causes:22}{text:>26}{gain:>10.3f}{error:>8}")
    if errors:
        print(f"median error {statistics.median(errors):.1%} of {len(errors)} pairs")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=220.0)
    parser.add_argument("names", nargs="*")
    asked = parser.parse_intermixed_args()
    main(asked.folder, asked.seconds, asked.names)
