"""What a fix gives, against what the daemon says that it gives.

``python -m tests.bench.truth.pairs FOLDER [--seconds=N] [NAME…]`` runs each program of
``paired.py`` without and with what mends it, beside one daemon, as many at a time as there are
GPUs. The folder gets ``pairs-MODEL.jsonl``, a line for each run as it ends, and a tape of each
group. What has not begun after the seconds (220) is left out: the second sizes come last.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pynvml

from tests.daemon import Daemon, daemon, free_port

ROOT = Path(__file__).parents[3]

PREPARE = 90.0
"""The longest time that a rank may take to load, or to get ready."""

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
NO_P2P = (("NCCL_P2P_DISABLE", "1"),)

PAIRS = tuple(
    Pair(program, size, 1 + (program in OF_TWO), NO_P2P if program == "p2p" else ())
    for size in (0, 1)
    for program in PROGRAMS
)


@dataclass(slots=True)
class Run:
    """One variant of a pair on some GPUs: its ranks, what they said, and what was said of them."""

    pair: Pair
    fixed: bool
    first: int
    children: list[subprocess.Popen[str]] = field(default_factory=list)
    said: list[dict[str, Any]] = field(default_factory=list)
    """By rank, the last time and figures of each word."""

    looks: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    """When, and by GPU the entry of its verdict and of its last window."""

    failed: str = ""

    @property
    def gpus(self) -> list[int]:
        return list(range(self.first, self.first + self.pair.gpus))

    def has_said(self, word: str) -> bool:
        return all(word in said for said in self.said)

    def order(self, word: str) -> None:
        for child in self.children:
            assert child.stdin is not None
            with suppress(OSError, ValueError):
                child.stdin.write(word + "\n")
                child.stdin.flush()

    def wait_for(self, word: str, until: float, folder: Path) -> None:
        """Until all ranks have said this; one that ends or takes too long fails the run."""
        while not self.failed and not self.has_said(word):
            for rank, child in enumerate(self.children):
                if child.poll() is not None and word not in self.said[rank]:
                    errors = (folder / f"errors.{rank}").read_text(errors="replace").splitlines()
                    self.failed = f"rank {rank} ended: {' | '.join(errors[-3:])[-400:]}"
            if time.monotonic() > until:
                self.failed = self.failed or f"was not {word} in time"
            time.sleep(0.02)
        if self.failed:
            self.end()

    def end(self) -> None:
        """Kill all its processes."""
        for child in self.children:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


@dataclass(frozen=True, slots=True)
class Measured:
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


def _hear(child: subprocess.Popen[str], said: dict[str, Any]) -> None:
    """Keep what a rank says; what its libraries print is not JSON."""
    assert child.stdout is not None
    with child.stdout as lines, suppress(ValueError):
        for line in lines:
            with suppress(ValueError, TypeError):
                at, word, more = json.loads(line)
                said[word] = {"at": at, **more}


@contextmanager
def started(row: Sequence[Run]) -> Iterator[Path]:
    """The ranks of a group, which load their libraries and touch no GPU yet."""
    with tempfile.TemporaryDirectory(prefix="pairs.") as folder, ExitStack() as stack:
        for number, run in enumerate(row):
            own = Path(folder) / str(number)
            own.mkdir()
            stack.callback(run.end)
            port = free_port()
            for rank, gpu in enumerate(run.gpus):
                environment = {
                    **os.environ,
                    "OMP_NUM_THREADS": "4",
                    "TORCH_CPP_LOG_LEVEL": "ERROR",
                    "TORCHINDUCTOR_COMPILE_THREADS": "1",
                    **(dict(run.pair.broken) if not run.fixed else {}),
                }
                if run.pair.gpus > 1:
                    environment |= {
                        "RANK": str(rank),
                        "LOCAL_RANK": str(rank),
                        "WORLD_SIZE": str(run.pair.gpus),
                        "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": str(port),
                    }
                arguments = (
                    *(run.pair.program, str(int(run.fixed)), str(run.pair.size)),
                    *(str(gpu), str(own)),
                )
                with (own / f"errors.{rank}").open("w") as errors:
                    child = subprocess.Popen(
                        [sys.executable, "-m", "tests.bench.truth.paired", *arguments],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=errors,
                        text=True,
                        cwd=ROOT,
                        env=environment,
                        start_new_session=True,
                    )
                run.children.append(child)
                run.said.append({})
                threading.Thread(target=_hear, args=(child, run.said[-1]), daemon=True).start()
        yield Path(folder)


@contextmanager
def recorded(tape: Path) -> Iterator[None]:
    """Record what the daemon reads."""
    command = [sys.executable, "-m", "gpunode", "record", str(tape), "--client.socket="]
    command += ["--gpu.processes-interval=5", "--log.level=error", "--duration=600"]
    with subprocess.Popen(command) as recorder:
        try:
            yield
        finally:
            recorder.terminate()


def measure(row: list[Run], folder: Path, watched: Daemon) -> None:
    """Let the runs of a group get ready, then all go at once, and keep what is said of them."""
    for word, order in (("loaded", "start"), ("ready", "go")):
        until = time.monotonic() + PREPARE
        for number, run in enumerate(row):
            run.wait_for(word, until, folder / str(number))
        for run in row:
            run.order(order)
    until = time.monotonic() + USUAL + LATE
    while not all(run.failed or run.has_said("measured") for run in row):
        verdicts = {one["gpu"]: one for one in json.loads(watched.get("/api/v1/verdict"))}
        windows = {one["gpu"]: one for one in watched.gpus()}
        now = time.time()
        for run in row:
            if not run.has_said("measured"):
                seen = {
                    str(gpu): {
                        "verdict": verdicts.get(str(gpu)),
                        "window": windows.get(str(gpu), {}).get("gpu_activity"),
                        "closed": windows.get(str(gpu), {}).get("times", {}).get("gpu_activity"),
                    }
                    for gpu in run.gpus
                }
                run.looks.append((now, seen))
        for number, run in enumerate(row):
            for rank, child in enumerate(run.children):
                if child.poll() is not None and not run.failed and "measured" not in run.said[rank]:
                    run.wait_for("measured", 0.0, folder / str(number))
        if time.monotonic() > until:
            for run in row:
                if not run.failed and not run.has_said("measured"):
                    run.failed = "was not measured in time"
        time.sleep(LOOK)


def outcome(run: Run, machine: str, tape: str) -> Measured:
    """What is kept of a run."""
    measured = [said.get("measured", {}) for said in run.said]
    since = max((one.get("since", 0.0) for one in measured), default=0.0)
    until = max((one.get("until", 0.0) for one in measured), default=0.0)
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
    rate = min((one.get("rate", 0.0) for one in measured), default=0.0)
    failed = run.failed or ("" if rate else "was not measured")
    return Measured(
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
    pynvml.nvmlInit()
    gpus = pynvml.nvmlDeviceGetCount()
    name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
    model = "h100" if "H100" in name else "h200" if "H200" in name else name.split()[-1].lower()
    kept = folder / f"pairs-{model}.jsonl"
    wanted = [pair for pair in PAIRS if not names or pair.name in names or pair.program in names]
    plan = [row for row in groups(wanted, gpus) if row]
    found: list[Measured] = []
    with daemon("--log.level=error") as watched, ExitStack() as following:
        ahead = following.enter_context(started(plan[0])) if plan else None
        for number, row in enumerate(plan):
            assert ahead is not None
            with following.pop_all():
                current, ahead = ahead, None
                if time.monotonic() - began > seconds:
                    print(f"no time for {len(plan) - number} groups of runs", flush=True)
                    break
                if number + 1 < len(plan):
                    ahead = following.enter_context(started(plan[number + 1]))
                tape = f"pairs-{model}-{int(time.time())}.jsonl.gz"
                with recorded(folder / tape):
                    measure(row, current, watched)
            for run in row:
                one = outcome(run, name, tape)
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


def table(found: Sequence[Measured]) -> None:
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
    asked = parser.parse_args()
    main(asked.folder, asked.seconds, asked.names)
