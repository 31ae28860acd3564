"""Runs random programs and keeps their windows: ``python -m tests.bench.truth.generate OUT``.

Each GPU runs one program after the other, beside a daemon that writes every window; programs of two
GPUs come first. The folder gets ``windows-GPU.jsonl.gz`` with what the sensors measured and what
the kernels did, and ``verdicts-GPU.jsonl.gz`` with what the daemon said of each program.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import re
import shutil
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from gpunode.gpu.ledger import split
from tests.bench.truth.drawn import FAMILIES, parameters, split_name, workload
from tests.bench.truth.kernels import shares, states
from tests.bench.truth.launch import Placed, launch
from tests.bench.truth.outcome import models
from tests.bench.truth.recorder import VARIABLE, Windows
from tests.bench.truth.watched import Watched
from tests.bench.truth.workloads import Workload
from tests.daemon import Daemon, daemon
from tests.windows.recorded import Recorded, load, save

PATIENCE = 60.0
"""The longest time that a program may take to load, to get ready, to stop or to save its trace."""

WARM = 1.2
"""Seconds that a program runs before the tracer starts."""

LEAD = 0.6
"""Seconds before the next window at which the tracer starts."""

LONG = 1.0
"""Seconds of a window that is none of a burst."""

WINDOWS = 2
"""How many long windows are wanted of each program."""

LONGEST = 8.0
"""The longest time that a program is traced, in which those windows should come."""

LOOK = 0.1
VERDICT = 1.0
"""Seconds between looks at the windows, and at the verdict."""

AHEAD = 2
"""How many programs load while one runs."""

PAIRS = 0.3
"""Share of the time for programs of two GPUs."""

LAST = 25.0
"""Seconds before the end from which no program starts."""

MEMORY_USED = "gpunode_gpu_memory_used_bytes"
STATE_OF = {"idle": "starved", "free": "starved"}
"""A gap of the trace, as the ledger may call it."""


@dataclass(slots=True)
class Kept:
    """What was found so far; several threads add to it."""

    folder: Path
    gpu: str
    windows: list[Recorded] = field(default_factory=list)
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.windows_file.exists():
            self.windows = list(load(self.windows_file))
        if self.verdicts_file.exists():
            with gzip.open(self.verdicts_file, "rt") as lines:
                self.verdicts = [json.loads(line) for line in lines]

    @property
    def windows_file(self) -> Path:
        return self.folder / f"windows-{self.gpu}.jsonl.gz"

    @property
    def verdicts_file(self) -> Path:
        return self.folder / f"verdicts-{self.gpu}.jsonl.gz"

    def add(self, windows: Sequence[Recorded], verdicts: Sequence[dict[str, Any]]) -> None:
        with self._lock:
            self.windows += windows
            self.verdicts += verdicts
            save(self.windows_file, self.windows)
            text = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in self.verdicts)
            self.verdicts_file.write_bytes(gzip.compress(text.encode(), mtime=0))

    def fail(self, each: Placed, why: str) -> None:
        """Print why there is nothing of a program, with the end of what it said."""
        with self._lock:
            said = []
            for process in each.processes:
                with suppress(OSError):
                    errors = process.folder / f"errors.{process.rank}"
                    said += errors.read_text(errors="replace").splitlines()[-40:]
            self.failed.append(each.workload.name)
            print(f"FAILED {each.workload.name}: {why}", flush=True)
            with (self.folder / "errors.txt").open("a") as file:
                file.write("\n".join([f"== {each.workload.name}: {why}", *said, ""]))


@dataclass(slots=True)
class Looks:
    """What the daemon says of one GPU while a program runs."""

    gpu: int
    verdicts: list[tuple[float, dict[str, Any] | None]] = field(default_factory=list)
    jobs: dict[str, float] = field(default_factory=dict)
    memory: list[float] = field(default_factory=list)

    def look(self, watched: Daemon) -> None:
        said = {each["gpu"]: each for each in json.loads(watched.get("/api/v1/verdict"))}
        self.verdicts.append((time.time(), said.get(str(self.gpu))))
        here = f'gpu="{self.gpu}"'
        lines = [x for x in watched.get("/metrics").decode().splitlines() if here in x]
        values = [x.rpartition(" ") for x in lines]
        self.jobs = {n: float(v) for n, _, v in values if n.startswith("gpunode_job_")}
        self.memory += [float(v) for n, _, v in values if n.startswith(MEMORY_USED)]

    def course(self, begin: float) -> list[tuple[float, str]]:
        """The looks at which another cause was named than before, in seconds from ``begin``."""
        causes = [(at, said["cause"] if said else "nothing") for at, said in self.verdicts]
        spells = [next(spell) for _, spell in groupby(causes, lambda each: each[1])]
        return [(round(at - begin, 1), cause) for at, cause in spells]


class Lane:
    """A GPU, or two for programs that need both, that runs one program after the other."""

    def __init__(
        self, gpu: int, programs: Iterator[Workload], watched: Daemon, windows: Windows, kept: Kept
    ) -> None:
        self.gpu = gpu
        self.programs = programs
        self.watched = watched
        self.windows = windows
        self.kept = kept
        self.waiting: deque[Placed] = deque()
        self.closing: threading.Thread | None = None

    def load(self) -> None:
        """Let the next programs load."""
        while len(self.waiting) < AHEAD:
            program = next(self.programs)
            seen = [Watched(program, self.gpu + rank, rank) for rank in range(program.gpus)]
            each = Placed(program, seen)
            launch(each, Path(tempfile.mkdtemp(prefix="generated.")) / "0")
            self.waiting.append(each)

    def run(self, until: float) -> None:
        """Run programs until that time on the monotonic clock."""
        while time.monotonic() < until:
            self.load()
            each = self.waiting.popleft()
            self.load()
            try:
                self._measure(each)
            except (OSError, ValueError, LookupError) as error:
                each.end()
                self.kept.fail(each, repr(error))
        self.end()

    def end(self) -> None:
        """End what still loads; what is being closed goes on."""
        while self.waiting:
            self.waiting.popleft().end()
        if self.closing:
            self.closing.join()

    def _measure(self, each: Placed) -> None:
        """One program, which has begun to load."""
        began = time.monotonic()
        every: list[Looks] = [Looks(one.gpu) for one in each.seen]
        self._wait(each, "loaded")
        loaded = time.monotonic()
        each.order("start")
        self._wait(each, "ready")
        if self.closing:
            self.closing.join()
        ready = time.monotonic()
        begin = time.time()
        each.order("go")
        self._trace(each, every, begin)
        stopped = time.time()
        each.order("stop")
        self._wait(each, "stopped")
        if each.failed:
            each.end()
            self.kept.fail(each, each.seen[0].failed)
            return
        times = f"{loaded - began:.1f} {ready - loaded:.1f} {time.monotonic() - ready:.1f}"
        self.closing = threading.Thread(
            target=self._close, args=(each, every, begin, stopped, times)
        )
        self.closing.start()

    def _wait(self, each: Placed, word: str) -> None:
        each.wait_for(word, time.monotonic() + PATIENCE)

    def _trace(self, each: Placed, every: Sequence[Looks], begin: float) -> None:
        """Let a program run and be traced until there are enough windows."""
        gpus = [one.gpu for one in each.seen]
        traced, ordered, looked = 0.0, 0.0, 0.0
        while not each.failed:
            now = time.time()
            if not ordered and self._due(gpus[0], begin, now):
                each.order("trace")
                ordered = now
            if ordered and not traced:
                said = [at for p in each.processes for at, word in p.heard if word == "tracing"]
                if len(said) == len(each.processes):
                    traced = max(said)
            if traced and all(self._enough(gpu, traced) for gpu in gpus):
                break
            if ordered and now > ordered + LONGEST:
                break
            if now > looked + VERDICT:
                looked = now
                with suppress(OSError, ValueError):
                    for looks in every:
                        looks.look(self.watched)
            ended = [process for process in each.processes if process.ended]
            if ended:
                each.fail(f"rank {ended[0].rank} ended: {ended[0].last_words}")
            time.sleep(LOOK)

    def _due(self, gpu: int, begin: float, now: float) -> bool:
        """Whether it is time to trace: a window opens soon."""
        if now < begin + WARM:
            return False
        before = self.windows.of(gpu, now - 10.0)
        if not before or now > begin + 4.0:
            return True
        opens = before[-1].time + 2.0
        return opens - LEAD <= now <= opens - LEAD + 0.3

    def _enough(self, gpu: int, traced: float) -> bool:
        """Whether as many windows as are wanted lie in the time traced."""
        inside = self.windows.of(gpu, traced + 0.15)
        return sum(each.recorded.window.seconds > LONG for each in inside) >= WINDOWS

    def _close(
        self,
        each: Placed,
        every: Sequence[Looks],
        begin: float,
        stopped: float,
        times: str,
    ) -> None:
        """Read the traces and keep what they tell."""
        since = time.monotonic()
        self._wait(each, "traced")
        if each.failed:
            self.kept.fail(each, each.seen[0].failed)
            return
        try:
            found = [one for looks in every for one in self._found(each, looks, stopped)]
            told = [self._told(each, looks, begin, stopped) for looks in every]
        except (OSError, ValueError, LookupError) as error:
            self.kept.fail(each, repr(error))
            return
        finally:
            each.end()
            shutil.rmtree(each.processes[0].folder.parent.parent, ignore_errors=True)
        self.kept.add(found, [one for one in told if one])
        errors = ", ".join(worst(one).text for one in found if one.window.seconds > LONG)
        late = f"{time.monotonic() - since:.1f}"
        print(f"{each.workload.name} [{times} {late} s] {len(found)} windows; {errors}", flush=True)

    def _found(self, each: Placed, looks: Looks, stopped: float) -> list[Recorded]:
        """The windows of a GPU that lie in the time that is traced."""
        family, _ = split_name(each.workload.name)
        begin, busy = _busy(each, looks.gpu)
        inside = [one for one in self.windows.of(looks.gpu, begin) if one.time < stopped]
        return [
            one.of(family, each.workload.name, _rounded(shares(busy, one.opened, one.time)))
            for one in inside
        ]

    def _told(
        self, each: Placed, looks: Looks, begin: float, stopped: float
    ) -> dict[str, Any] | None:
        """What the daemon said of a GPU, beside what is true."""
        family, seed = split_name(each.workload.name)
        since, busy = _busy(each, looks.gpu)
        if since >= stopped:
            return None
        rank = looks.gpu - self.gpu
        last = looks.verdicts[-1][1] if looks.verdicts else None
        return {
            "program": each.workload.name,
            "family": family,
            "gpu": looks.gpu,
            "rank": rank,
            "parameters": parameters(family, seed),
            "truth": _rounded(shares(busy, since, stopped)),
            "causes": each.workload.causes[rank],
            "course": looks.course(begin),
            "last": last,
            "jobs": looks.jobs,
            "memory": [min(looks.memory), max(looks.memory)] if looks.memory else None,
        }


def _busy(each: Placed, gpu: int) -> tuple[float, list[Any]]:
    """Since when all ranks are traced, and what those of a GPU ran."""
    traces = [(process.gpu, process.trace) for process in each.processes]
    begin = max(trace.begin for _, trace in traces) + 0.1
    peers = [trace for at, trace in traces if at != gpu]
    return begin, [states(trace, peers) for at, trace in traces if at == gpu]


def _rounded(truth: Mapping[str, float]) -> dict[str, float]:
    return {state: round(share, 4) for state, share in truth.items()}


@dataclass(frozen=True, slots=True)
class Worst:
    """The state of a window of which the ledger is furthest off."""

    error: float
    text: str


def worst(one: Recorded) -> Worst:
    """Where the ledger is furthest off, and by how much."""
    told: dict[str, float] = defaultdict(float)
    for state, share in split(one.window).shares.items():
        told[STATE_OF.get(state, state)] += share
    every = {state: told[state] - one.truth.get(state, 0.0) for state in {*told, *one.truth}}
    state = max(every, key=lambda each: abs(every[each]))
    error = abs(every[state])
    return Worst(error, f"{state} {one.truth.get(state, 0.0):.2f} told {told[state]:.2f}")


def table(windows: Iterable[Recorded]) -> str:
    """A line for each family: programs, long windows, shares that are right, and the worst."""
    by_family: dict[str, list[Recorded]] = defaultdict(list)
    for one in windows:
        if one.window.seconds > LONG:
            by_family[one.family].append(one)
            by_family["all"].append(one)
    lines = ["family programs windows within-0.05 within-0.10 worst"]
    for family in (*FAMILIES, "all"):
        if found := by_family.get(family):
            errors = [(worst(one), one.program) for one in found]
            far, program = max(errors, key=lambda each: each[0].error)
            near = [sum(e.error <= limit for e, _ in errors) / len(errors) for limit in (0.05, 0.1)]
            programs = len({one.program for one in found})
            lines.append(
                f"{family} {programs} {len(found)} {near[0]:.2f} {near[1]:.2f} "
                f"{far.error:.2f} ({far.text}, {program})"
            )
    return "\n".join(lines)


def drawn_from(families: Sequence[str], seed: int) -> Iterator[Workload]:
    """Programs without end: every family once in random order, then again with other seeds."""
    chance = random.Random(seed)
    number = seed * 1000
    while True:
        for family in chance.sample(families, len(families)):
            yield workload(family, number)
            number += 1


def run(out: Path, seconds: float, seed: int, families: Sequence[str], pairs: float) -> Kept:
    """Run random programs for about that long on all GPUs."""
    begin = time.monotonic()
    gpus = models()
    if not gpus:
        raise LookupError("no GPU that NVIDIA's driver knows")
    count = len(gpus)
    kept = Kept(out, gpus[0])
    of_pairs = [name for name in families if FAMILIES[name].gpus == 2 <= count]
    of_one = [name for name in families if FAMILIES[name].gpus == 1]
    recorded = Path(tempfile.mkdtemp(prefix="recorded.")) / "windows"
    recorded.touch()
    environment = {**os.environ, VARIABLE: str(recorded)}
    windows = Windows(recorded)
    end = begin + seconds - LAST
    with daemon(
        "--log.level=error", environment=environment, module="tests.bench.truth.recorder"
    ) as watched:
        lanes = []
        if of_one:
            for gpu in range(count):
                drawn = drawn_from(of_one, seed + 100 * gpu)
                lanes.append(Lane(gpu, drawn, watched, windows, kept))
        if of_pairs:
            lane = Lane(0, drawn_from(of_pairs, seed), watched, windows, kept)
            share = pairs if of_one else 1.0
            lane.run(time.monotonic() + share * (end - time.monotonic()))
        running = [threading.Thread(target=lane.run, args=(end,)) for lane in lanes]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--pairs", type=float, default=PAIRS, help="share of the time for two GPUs")
    asked = parser.parse_args()
    families = re.split(r"[,\s]+", asked.families.strip())
    if unknown := [name for name in families if name not in FAMILIES]:
        parser.error(f"no family is called {', '.join(unknown)}")
    kept = run(asked.out, asked.seconds, asked.seed, families, asked.pairs)
    print(f"{len(kept.failed)} programs failed: {' '.join(kept.failed)}")
    print(table(kept.windows), flush=True)
    os._exit(0)  # a thread may still wait for a program


if __name__ == "__main__":
    main()
