"""A stage for verdicts: GPUs of which a scenario says what their sources tell, as time goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from gpunode.gpu.activity import (
    BLOCKED_STREAK,
    LEDGER_SENSOR,
    MEMORY_USED,
    PROCESSES,
    SECONDS,
    SHORT_GAPS,
    WindowDetail,
)
from gpunode.gpu.health import GpuHealth
from gpunode.gpu.ledger import STANDS_STILL, STATES
from gpunode.gpu.units import ACTIVE
from gpunode.holders.holder import Role
from gpunode.holders.owner import Started
from gpunode.jobs.owners import OwnersDetail, RolesDetail
from gpunode.jobs.processes import JobDetail, Listed
from gpunode.loop import Loop
from gpunode.metric import Metric, Sample
from gpunode.node.node import SteppedClock
from gpunode.source import Finder, Place, Reading, Source, View
from gpunode.sources import METRICS
from gpunode.verdict.last_work import WORKLESS
from gpunode.verdict.reasons import WAITED_FOR
from gpunode.verdict.source import Judgement, Judgements, Verdicts

Labelled = tuple[Metric, tuple[str, ...]]
"""A series of a GPU: its metric, and its labels after those of the GPU."""


@dataclass
class Actor:
    """A GPU with one process: what its ledger, its job and its client say from now on.

    ``rates`` are the increases per second of counters. ``jobs`` has the job of each process, of
    which ``processes`` are the PIDs and starts; without, no process holds the GPU.
    """

    index: int
    states: dict[str, float] = field(default_factory=lambda: {"compute": 1.0})
    gauges: dict[Metric, float] = field(default_factory=dict)
    rates: dict[Labelled, float] = field(default_factory=dict)
    jobs: tuple[str, ...] = ("train",)
    processes: tuple[tuple[int, float], ...] = ((0, 0.0), (1, 0.0))
    program: str = "train"
    parent: str = "bash"
    listens: bool = False
    exchanges: bool = False
    trains: bool = False
    world_size: str = ""
    peers: bool | None = False
    commands: tuple[str, ...] = ("python3",)
    sensors: dict[str, float] = field(default_factory=dict)
    """The sensors that its ledger uses (1), or would use (0)."""

    watts: float | None = None
    memory: tuple[float, ...] = ()
    """Bytes of GPU memory in use at one read after another, again and again."""

    levels: dict[Labelled, float] = field(default_factory=dict)
    """The values of gauges that have labels of their own."""

    @property
    def at(self) -> tuple[str, str]:
        return str(self.index), f"GPU-{self.index}"

    def leave(self) -> None:
        """Its process ends."""
        self.jobs, self.states, self.gauges, self.rates = (), {"free": 1.0}, {}, {}

    def block(self) -> None:
        """Its kernel spins for a peer."""
        self.states = {"blocked": 1.0}


SHORT = "short gaps"
HBM = "HBM"
"""Of an actor's states: ``starved`` in short gaps, and ``compute`` in which HBM is at its limit,
where tensor cores are in the rest of it."""

LIMIT = 0.8
"""The share of the time for which HBM is active there."""


@dataclass
class Teller:
    """A source that tells what it is given."""

    name: str
    every: float
    read: Callable[[], Reading]
    metrics: tuple[Metric, ...] = tuple(m for declared in METRICS.values() for m in declared)


class Sources:
    """The sources of one actor, each read as often as on a node."""

    def __init__(self, actor: Actor, clock: SteppedClock) -> None:
        self.actor = actor
        self.clock = clock
        self.ledger = dict.fromkeys(STATES, 0.0)
        self.short_gaps = self.streak = self.hbm = self.tensor = 0.0
        self.counted: dict[Labelled, float] = {}
        self.before = clock.monotonic()
        self.reads = 0

    def find(self) -> Iterator[tuple[Place, Source]]:
        place = Place(*self.actor.at)
        yield place, Teller("gpu_activity", 2.0, self.activity)
        yield place, Teller("training_steps", 2.0, self.series)
        yield place, Teller("gpu_health", 30.0, self.health)
        yield place, Teller("job_processes", 10.0, self.processes)
        yield place, Teller("gpu_owners", 5.0, self.owners)
        yield place, Teller("process_roles", 5.0, self.roles)

    def activity(self) -> Reading:
        actor, at = self.actor, self.actor.at
        now = self.clock.monotonic()
        seconds, self.before = now - self.before, now
        states = dict.fromkeys(STATES, 0.0)
        for state, share in actor.states.items():
            states[{SHORT: "starved", HBM: "compute"}.get(state, state)] += share
        for state, share in states.items():
            self.ledger[state] += share * seconds
        self.short_gaps += actor.states.get(SHORT, 0.0) * seconds
        self.hbm += LIMIT * actor.states.get(HBM, 0.0) * seconds
        self.tensor += LIMIT * actor.states.get("compute", 0.0) * seconds
        still = actor.states.get("blocked", 0.0) >= STANDS_STILL
        self.streak = self.streak + seconds if still else 0.0
        for series, rate in actor.rates.items():
            self.counted[series] = self.counted.get(series, 0.0) + rate * seconds
        window = WindowDetail(
            seconds=seconds,
            state=states,
            ledger=self.ledger,
            sensors={},
            activity=None,
            busy=None,
            memory_busy=None,
            power_watts=actor.watts,
            power_limit_watts=None if actor.watts is None else 700.0,
            power_mean_watts=None,
            power_swings=0,
            link_load=0.0,
            peers=actor.peers,
            step_period_seconds=None,
        )
        samples = [Sample(SECONDS, (*at, state), spent) for state, spent in self.ledger.items()]
        samples += [
            Sample(SHORT_GAPS, at, self.short_gaps),
            Sample(BLOCKED_STREAK, at, self.streak),
            Sample(PROCESSES, (*at, "compute"), float(len(actor.jobs))),
            *(Sample(LEDGER_SENSOR, (*at, name), used) for name, used in actor.sensors.items()),
        ]
        if HBM in actor.states and (ACTIVE, ("dram",)) not in actor.rates:
            samples.append(Sample(ACTIVE, (*at, "dram"), self.hbm))
            samples.append(Sample(ACTIVE, (*at, "tensor"), self.tensor))
        if actor.memory:
            samples.append(Sample(MEMORY_USED, at, actor.memory[self.reads % len(actor.memory)]))
        self.reads += 1
        return Reading(tuple(samples), window)

    def series(self) -> Reading:
        gauges = (Sample(metric, self.actor.at, to) for metric, to in self.actor.gauges.items())
        others = (found for found in self.counters() if found.metric not in GpuHealth.metrics)
        levels = (Sample(m, (*self.actor.at, *of), to) for (m, of), to in self.actor.levels.items())
        return Reading((*gauges, *levels, *others))

    def health(self) -> Reading:
        return Reading(tuple(c for c in self.counters() if c.metric in GpuHealth.metrics))

    def counters(self) -> Iterator[Sample]:
        for metric, labels in self.actor.rates:
            value = self.counted.get((metric, labels), 0.0)
            yield Sample(metric, (*self.actor.at, *labels), value)

    def processes(self) -> Reading:
        commands = self.actor.commands if self.actor.jobs else ()
        listed = tuple(Listed(at, name, 0.0, "S", "") for at, name in enumerate(commands, 1))
        return Reading((), JobDetail(listed, ""))

    def owners(self) -> Reading:
        actor = self.actor
        started = (
            Started(pid, start, world_size=actor.world_size, job=job)
            for (pid, start), job in zip(actor.processes, actor.jobs, strict=False)
        )
        return Reading((), OwnersDetail(tuple(started)))

    def roles(self) -> Reading:
        actor = self.actor
        does = (actor.listens, actor.trains, actor.exchanges)
        role = Role(7, actor.program, actor.parent, *does)
        return Reading((), RolesDetail((role,) if actor.jobs else ()))


class Cast:
    """Finds the sources of all actors."""

    name = "gpu"

    def __init__(self, actors: tuple[Actor, ...], clock: SteppedClock) -> None:
        self.sources = [found for actor in actors for found in Sources(actor, clock).find()]

    def find(self) -> list[tuple[Place, Source]]:
        return self.sources


class Stage:
    """Plays the daemon's verdicts on some GPUs."""

    def __init__(
        self, *actors: Actor, finders: Sequence[Finder] = (), views: Sequence[View] = ()
    ) -> None:
        self.clock = SteppedClock(1_700_000_000.0)
        found = [Cast(actors, self.clock), *finders]
        self.loop = Loop(self.clock, found, [Verdicts(), *views], find_every=1e6)
        self._steps = self.loop.replay(self.clock, 1e5)

    def play(self, seconds: float) -> None:
        """Let time go on."""
        until = self.clock.monotonic() + seconds
        for upcoming in self._steps:
            if upcoming >= until:
                self.clock.now = until
                return

    def verdict(self, index: int = 0) -> Judgement:
        """The verdict on a GPU now."""
        (told,) = self.loop.details(Judgements)
        (found,) = (v for v in told.detail.verdicts if v.gpu == str(index))
        return found

    @property
    def causes(self) -> list[str]:
        """The cause of every GPU now, by index."""
        (told,) = self.loop.details(Judgements)
        return [v.cause for v in sorted(told.detail.verdicts, key=lambda v: int(v.gpu))]

    @property
    def waited_for(self) -> list[tuple[int, str]]:
        """The GPUs that others wait for now, and why."""
        found = [sample.labels for sample in self.loop.samples() if sample.metric is WAITED_FOR]
        return sorted((int(gpu), reason) for gpu, _, reason in found)

    def workless(self, index: int = 0) -> float | None:
        """For how long the job on a GPU has not worked there, if that is told."""
        found = (s for s in self.loop.samples() if s.metric is WORKLESS)
        times = [s.value for s in found if s.labels[0] == str(index)]
        return cast(float, times[0]) if times else None
