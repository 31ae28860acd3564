"""A GPU, or two, on which generated programs run one after the other beside a daemon."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from bench.report import version
from bench.truth.drawn import parameters, series, split_name
from bench.truth.expected import expected
from bench.truth.kept import ResultStore
from bench.truth.kernels import Intervals, Trace, kind_of, shares, short_gaps, states
from bench.truth.launch import Placement, launch
from bench.truth.recorder import ClosedWindow, Windows
from bench.truth.series_files import names_file, trace_file
from bench.truth.watched import GpuObservation
from gpunode.driver.driver import DIRECTIONS
from tests.daemon import Daemon
from tests.windows.programs import programs
from tests.windows.recorded import WindowRecord

SERIES_TIMEOUT = 60.0
"""The longest time that a series may take to load, and to begin."""

PREPARE = 45.0
"""The longest time that a program may take to get ready, to stop or to save its trace."""

WARM = 0.3
"""Seconds that a program runs before the tracer starts."""

LEAD = 0.6
"""Seconds before the next window at which the tracer starts."""

WINDOWS = 1
"""How many long windows are wanted of each program."""

MAX_TRACE_SECONDS = 8.0
"""The longest time that a program is traced, in which those windows should come."""

LOOK = 0.05
VERDICT = 2.0
"""Seconds between looks at the windows, and at the verdict."""

AHEAD = 1
"""How many series load while one runs."""

SERIES = ("-m", "bench.truth.series")

MEMORY_USED = "gpunode_gpu_memory_used_bytes"


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
        self.jobs = {bare(n): float(v) for n, _, v in values if n.startswith("gpunode_job_")}
        self.memory += [float(v) for n, _, v in values if n.startswith(MEMORY_USED)]

    def course(self, begin: float) -> list[tuple[float, str]]:
        """The looks at which another cause was named than before, in seconds from ``begin``."""
        causes = [(at, said["cause"] if said else "nothing") for at, said in self.verdicts]
        spells = [next(spell) for _, spell in groupby(causes, lambda each: each[1])]
        return [(round(at - begin, 1), cause) for at, cause in spells]


def bare(series: str) -> str:
    """A series without the labels that say which GPU it is of."""
    return re.sub(r'(?:gpu|uuid)="[^"]*",?', "", series).replace(",}", "}").replace("{}", "")


class NoProgramError(Exception):
    """A program failed, and why."""


class NoProcessError(NoProgramError):
    """A process of it has ended or hangs, so that no other program can follow."""


@dataclass(frozen=True, slots=True)
class Running:
    """A program of a series, and its place there."""

    each: Placement
    name: str
    number: int

    def wait(self, word: str) -> None:
        """Until all its processes have said this. Raises ``NoProgramError``."""
        word = f"{word} {self.number}"
        failed = f"failed {self.number} "
        until = time.monotonic() + PREPARE
        while True:
            for process in self.each.processes:
                # The last program of a series ends one process before the other.
                if process.ended_without(word):
                    raise NoProcessError(f"rank {process.rank} ended: {process.last_words}")
                for _, said in process.heard:
                    if said.startswith(failed):
                        raise NoProgramError(said.removeprefix(failed))
            if all(process.has_said(word) for process in self.each.processes):
                return
            if time.monotonic() > until:
                raise NoProcessError(f"was not {word} in time")
            time.sleep(0.01)

    def order(self, word: str) -> None:
        self.each.order(word)

    def said(self, word: str) -> float | None:
        """When the last of its processes has said this."""
        word = f"{word} {self.number}"
        times = [at for p in self.each.processes for at, said in p.heard if said == word]
        return max(times) if len(times) == len(self.each.processes) else None

    def traces(self) -> list[tuple[int, Trace]]:
        """What each process ran, and on which GPU."""
        return [
            (p.gpu, Trace.load(trace_file(p.folder, p.child.pid, self.number)))
            for p in self.each.processes
        ]

    def names(self, gpu: int) -> list[tuple[str, str, float]]:
        """What ran longest on a GPU: its name, its kind and seconds."""
        first = next(p for p in self.each.processes if p.gpu == gpu)
        said = json.loads(names_file(first.folder, first.child.pid, self.number).read_text())
        return [(name[:120], kind_of(name), round(seconds, 4)) for name, seconds in said]


class Lane:
    """A GPU, or two for programs that need both, that runs one series after the other."""

    def __init__(
        self,
        gpu: int,
        plan: Iterator[list[str]],
        watched: Daemon,
        windows: Windows,
        kept: ResultStore,
        watch: float = WARM,
    ) -> None:
        self.gpu = gpu
        self.plan = plan
        self.watched = watched
        self.windows = windows
        self.kept = kept
        self.watch = watch
        self.waiting: deque[Placement] = deque()
        self.keeper = ThreadPoolExecutor(1)
        """Reads the traces of a program while the next one gets ready."""

    def load(self) -> None:
        """Let the next series load."""
        while len(self.waiting) < AHEAD:
            self._load(next(self.plan))

    def run(self, until: float) -> None:
        """Run programs until that time on the monotonic clock."""
        while time.monotonic() < until:
            self.load()
            each = self.waiting.popleft()
            self.load()
            try:
                self._series(each, until)
            finally:
                each.end()
                self.keeper.submit(time.monotonic).result()  # after all that came before
                shutil.rmtree(each.processes[0].folder.parent.parent, ignore_errors=True)
        while self.waiting:
            self.waiting.popleft().end()

    def _load(self, programs: Sequence[str]) -> None:
        work = series(programs)
        seen = [GpuObservation(work, self.gpu + rank, rank) for rank in range(work.gpus)]
        each = Placement(work, seen)
        launch(each, Path(tempfile.mkdtemp(prefix="generated.")) / "0", SERIES)
        self.waiting.append(each)

    def _series(self, each: Placement, until: float) -> None:
        """Run the programs of a series that has begun to load."""
        began = time.monotonic()
        each.wait_for("loaded", began + SERIES_TIMEOUT)
        each.order("start")
        each.wait_for("begun", time.monotonic() + SERIES_TIMEOUT)
        print(f"series of {len(names_of(each))}: {time.monotonic() - began:.1f} s", flush=True)
        for number, name in enumerate(names_of(each)):
            if time.monotonic() > until:
                return
            try:
                if each.failed:
                    raise NoProgramError(each.seen[0].failed)
                self._measure(Running(each, name, number))
            except (NoProgramError, OSError, ValueError, LookupError) as error:
                self.kept.fail(each, name, str(error) or repr(error))
                if len(each.processes) > 1 or isinstance(error, NoProcessError) or each.failed:
                    if rest := names_of(each)[number + 1 :]:
                        self._load(rest)
                    return

    def _measure(self, one: Running) -> None:
        """One program: prepared, run, traced, and what was found is kept."""
        began = time.monotonic()
        every = [Looks(seen.gpu) for seen in one.each.seen]
        one.order("next")
        one.wait("ready")
        ready = time.monotonic()
        begin = time.time()
        one.order("go")
        self._trace(one, every, begin)
        stop = time.time()
        stopping = time.monotonic()
        one.order("stop")
        one.wait("stopped")
        stopped = time.monotonic()
        one.wait("traced")
        times = (ready - began, stopping - ready, stopped - stopping, time.monotonic() - stopped)
        spent = " ".join(f"{each:.1f}" for each in times)
        self.keeper.submit(self._keep, one, every, begin, stop, spent)

    def _trace(self, one: Running, every: Sequence[Looks], begin: float) -> None:
        """Let a program run and be traced until there are enough windows."""
        gpus = [looks.gpu for looks in every]
        ordered, looked = 0.0, 0.0
        while True:
            now = time.time()
            if not ordered and self._due(gpus[0], begin, now):
                one.order("trace")
                ordered = now
            traced = one.said("tracing") if ordered else None
            if traced and all(self._enough(gpu, traced) for gpu in gpus):
                return
            if ordered and now > ordered + MAX_TRACE_SECONDS:
                return
            if now > looked + VERDICT:
                looked = now
                with suppress(OSError, ValueError):
                    for looks in every:
                        looks.look(self.watched)
            if any(process.ended for process in one.each.processes):
                raise NoProcessError("a process ended")
            time.sleep(LOOK)

    def _due(self, gpu: int, begin: float, now: float) -> bool:
        """Whether it is time to trace: a window opens soon."""
        if now < begin + self.watch:
            return False
        before = self.windows.of(gpu, now - 10.0)
        if not before or now > begin + self.watch + 3.0:
            return True
        opens = before[-1].time + 2.0
        return opens - LEAD <= now <= opens - LEAD + 0.3

    def _enough(self, gpu: int, traced: float) -> bool:
        """Whether as many windows as are wanted lie in the time traced."""
        inside = self.windows.of(gpu, traced + 0.15)
        return len(inside) >= WINDOWS

    def _keep(
        self, one: Running, every: Sequence[Looks], begin: float, stop: float, spent: str
    ) -> None:
        """Join what was measured and said of each GPU with what its traces tell."""
        try:
            traces = one.traces()
            since = max(trace.begin for _, trace in traces) + 0.1
            found: list[WindowRecord] = []
            told: list[dict[str, Any]] = []
            for looks in every:
                peers = [trace for gpu, trace in traces if gpu != looks.gpu]
                busy = [states(trace, peers) for gpu, trace in traces if gpu == looks.gpu]
                found += self._found(one, looks.gpu, busy, since, stop)
                if since < stop:
                    moved = _moved(self.windows.of(looks.gpu, since))
                    truth = shares(busy, since, stop, moved)
                    short = short_gaps(busy, since, stop)
                    told.append(self._told(one, looks, truth, short, begin))
            self.kept.add(found, told)
        except (OSError, ValueError, LookupError) as error:
            self.kept.fail(one.each, one.name, repr(error))
            return
        errors = ", ".join(each.worst for each in programs(found))
        print(f"{one.name} [{spent} s] {len(found)} windows; {errors}", flush=True)

    def _found(
        self,
        one: Running,
        gpu: int,
        busy: Sequence[Mapping[str, Intervals]],
        since: float,
        stop: float,
    ) -> Iterator[WindowRecord]:
        """The windows of a GPU that lie in the time that is traced."""
        family, _ = split_name(one.name)
        rank = f"@{gpu - self.gpu}" if len(one.each.seen) > 1 else ""
        for each in self.windows.of(gpu, since):
            if each.time < stop:
                truth = shares(busy, each.opened, each.time, _moved([each]))
                yield each.of(family, one.name + rank, _rounded(truth))

    def _told(
        self,
        one: Running,
        looks: Looks,
        shares: Mapping[str, float],
        short: float,
        begin: float,
    ) -> dict[str, Any]:
        """What the daemon said of a GPU, beside what is true."""
        family, seed = split_name(one.name)
        drawn, truth = parameters(family, seed), _rounded(shares)
        return {
            "program": one.name,
            "version": version(),
            "family": family,
            "gpu": looks.gpu,
            "rank": looks.gpu - self.gpu,
            "series": len(names_of(one.each)),
            "parameters": drawn,
            "truth": truth,
            "short": round(short, 4),
            "kernels": one.names(looks.gpu),
            "causes": expected(family, drawn, truth, short),
            "course": looks.course(begin),
            "last": looks.verdicts[-1][1] if looks.verdicts else None,
            "jobs": looks.jobs,
            "memory": [min(looks.memory), max(looks.memory)] if looks.memory else None,
        }


def _moved(windows: Sequence[ClosedWindow]) -> float:
    """Bytes per second that PCIe moved, in both directions; the mean over windows."""
    rates = [
        each.recorded.window.rate(f"pcie_{direction}")
        for each in windows
        for direction in DIRECTIONS
    ]
    return sum(rates) / max(1, len(windows))


def names_of(each: Placement) -> list[str]:
    """The programs of a series."""
    return each.workload.name.split()


def _rounded(truth: Mapping[str, float]) -> dict[str, float]:
    return {state: round(share, 4) for state, share in truth.items()}
