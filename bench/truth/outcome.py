"""The outcome of a workload on a GPU: small enough to keep, complete enough to judge anew."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pynvml

from bench.report import machine, version
from bench.truth.bench import SETTLE, run
from bench.truth.watched import GpuObservation
from bench.truth.workloads import BY_NAME, NOTHING, STALLED, Workload

IN_TIME = 12.0
"""Seconds after which a verdict should be right."""

Course = list[tuple[float, str]]
"""What was said from when on, in seconds since the workload began."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was measured on one GPU of a workload. Times are seconds since it began."""

    workload: str
    rank: int
    gpu: int
    machine: str
    at: float
    """When it began, in seconds since the epoch."""

    end: float
    failed: str = ""
    truth: dict[str, float] = field(default_factory=dict)
    """The mean share of each state, over the windows in which it is known."""

    ledger: dict[str, float] = field(default_factory=dict)
    """The daemon's mean shares, over the same windows."""

    verdicts: Course = field(default_factory=list)
    waited_for: Course = field(default_factory=list)
    """The reason for which others wait for this GPU; empty while they do not."""

    kind: str = ""
    utilization: float = 0.0
    peer: str = ""
    stalled: float | None = None
    """When the last rank stopped joining."""

    version: str = field(default_factory=version)

    @staticmethod
    def of(watched: GpuObservation, machine: str) -> Outcome:
        """The outcome of what was watched."""
        begin, end = watched.begin, watched.end - watched.begin
        who = (watched.workload.name, watched.rank, watched.gpu, machine, begin, end)
        if watched.failed:
            return Outcome(*who, watched.failed)
        known = [(w, t) for w, t in zip(watched.windows, watched.truths, strict=True) if t]
        if not known:
            return Outcome(*who, "there is no window of which the truth is known")
        weights = [window["seconds"] for window, _ in known]
        causes = [(at, v["cause"] if v else NOTHING) for at, v in watched.verdicts]
        stalled = watched.stalled_at
        return Outcome(
            *who,
            truth=_mean([truth for _, truth in known], weights, watched.gone),
            ledger=_mean([window["state"] for window, _ in known], weights, watched.gone),
            verdicts=_course(causes, begin),
            waited_for=_course(watched.waited_for, begin),
            kind=watched.kinds[-1][1],
            utilization=round(statistics.mean(watched.utilization or [0.0]), 3),
            peer=watched.peer,
            stalled=None if stalled is None else round(stalled - begin, 1),
        )

    @property
    def of_workload(self) -> Workload:
        return BY_NAME[self.workload]

    @property
    def causes(self) -> list[str]:
        """The causes that are right."""
        return self.of_workload.causes[self.rank].split()

    @property
    def must_be_called(self) -> bool:
        """Whether the GPU waits in a stall."""
        return self.of_workload.stalls and STALLED in self.causes

    @property
    def awaited(self) -> bool:
        """Whether the others wait for this GPU."""
        awaited = self.of_workload.awaited
        return awaited is not None and awaited[0] == self.rank

    @property
    def verdict(self) -> str:
        """The last verdict."""
        return self.verdicts[-1][1] if self.verdicts else NOTHING

    @property
    def errors(self) -> dict[str, float]:
        """The ledger's error in each state."""
        every = {**self.truth, **self.ledger}
        return {s: self.ledger.get(s, 0.0) - self.truth.get(s, 0.0) for s in every}

    @property
    def error(self) -> float:
        """The largest error of any state; 1 if nothing was measured."""
        return max(map(abs, self.errors.values()), default=1.0)

    @property
    def since(self) -> float:
        """When that began which the verdict should name: the stall, or the workload."""
        return self.stalled or 0.0

    @property
    def right_after(self) -> float | None:
        """Seconds until the verdict was right for the first time."""
        return self._after(self._verdicts(), self.causes)

    @property
    def right(self) -> bool:
        """Whether the verdict was right in the end, and mostly from ``IN_TIME`` on."""
        late = [said for said in self._verdicts() if said.until > self.since + IN_TIME]
        seconds = {True: 0.0, False: 0.0}
        for said in late:
            begin = max(said.since, self.since + IN_TIME)
            seconds[said.word in self.causes] += said.until - begin
        return bool(late) and late[-1].word in self.causes and seconds[True] > seconds[False]

    @property
    def wrong_for(self) -> float:
        """The longest time that wrong causes were named, one after the other."""
        spells = groupby(self._verdicts(), lambda said: said.word in (*self.causes, NOTHING))
        wrong = [list(spell) for right, spell in spells if not right]
        return max((spell[-1].until - spell[0].since for spell in wrong), default=0.0)

    @property
    def called_after(self) -> float | None:
        """Seconds until the stall was called one."""
        return self._after(self._verdicts(), [STALLED])

    @property
    def named_after(self) -> float | None:
        """Seconds until this GPU was named as the one waited for, for the right reason."""
        awaited = self.of_workload.awaited
        said = [said for said in _spells(self.waited_for, self.since, self.end) if said.word]
        reasons = [awaited[1]] if awaited and awaited[1] else [said.word for said in said]
        return self._after(said, reasons)

    def _verdicts(self) -> list[WordSpan]:
        """The verdicts that can be about this workload, or its stall."""
        begin = SETTLE if self.stalled is None else self.stalled
        return _spells(self.verdicts, begin, self.end)

    def _after(self, every: Iterable[WordSpan], words: Sequence[str]) -> float | None:
        return next((said.since - self.since for said in every if said.word in words), None)


@dataclass(frozen=True, slots=True)
class WordSpan:
    """What was said from when until when, in seconds since the workload began."""

    since: float
    until: float
    word: str


def _spells(course: Course, begin: float, end: float) -> list[WordSpan]:
    """What was said from ``begin`` to ``end``."""
    untils = [*(at for at, _ in course[1:]), end]
    return [
        WordSpan(max(at, begin), until, word)
        for (at, word), until in zip(course, untils, strict=False)
        if until > begin
    ]


def _course(looks: Sequence[tuple[float, str]], begin: float) -> Course:
    """The looks at which something else was said than before."""
    return [
        (round(next(spell)[0] - begin, 1), word) for word, spell in groupby(looks, itemgetter(1))
    ]


def _mean(
    shares: Sequence[Mapping[str, float]], weights: Sequence[float], gone: bool
) -> dict[str, float]:
    """The mean share of each state, by what can be told from kernels.

    A long gap is idle in the ledger, and free once the process has ended.
    """
    also_starved = ("idle", "free") if gone else ("idle",)
    total: dict[str, float] = {}
    for window, weight in zip(shares, weights, strict=True):
        for state, share in window.items():
            known = "starved" if state in also_starved else state
            total[known] = total.get(known, 0.0) + share * weight
    return {state: round(share / sum(weights), 4) for state, share in total.items()}


def load(path: Path) -> list[Outcome]:
    """The outcomes in a file, in the order of the workloads; those of other names are left out."""
    if not path.exists():
        return []
    every = [json.loads(line) for line in path.read_text().splitlines()]
    courses = ("verdicts", "waited_for")
    outcomes = [
        Outcome(**{**kept, **{name: [(at, word) for at, word in kept[name]] for name in courses}})
        for kept in every
        if kept["workload"] in BY_NAME
    ]
    order = list(BY_NAME)
    return sorted(outcomes, key=lambda outcome: (order.index(outcome.workload), outcome.rank))


def keep(path: Path, found: Sequence[Outcome]) -> None:
    """Add outcomes to a file; they replace older ones of the same workloads."""
    anew = {outcome.workload for outcome in found}
    every = [*(old for old in load(path) if old.workload not in anew), *found]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(asdict(outcome)) + "\n" for outcome in every))


def measure(folder: Path, workloads: Sequence[Workload]) -> None:
    """Run the workloads that fit on this machine's GPUs; the folder gets each outcome at once.

    The file is called after the GPU: ``truth-h200.jsonl``.
    """
    gpus = models()
    for found in run(workloads, len(gpus)) if gpus else ():
        keep(folder / f"truth-{gpus[0]}.jsonl", [Outcome.of(one, machine()) for one in found])


def models() -> list[str]:
    """The model of each GPU of this machine; without NVIDIA's driver there is none."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
    return [model(pynvml.nvmlDeviceGetName(handle)) for handle in handles]


def model(name: str) -> str:
    """A GPU's model by its name, such as ``h200``: the first word with a digit."""
    words = re.findall(r"\w+", name)
    return next((word for word in words if re.search(r"\d", word)), name).lower()
