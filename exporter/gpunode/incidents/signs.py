"""The signs by which an incident is known: what begins, on which GPUs, and what it is called."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpunode.driver.nvidia.xids import CODES
from gpunode.gpu import xids
from gpunode.holders.owner import Started
from gpunode.host import kernel_log, memory
from gpunode.incidents.incident import Kind
from gpunode.jobs import processes, steps
from gpunode.jobs.owners import OwnersDetail
from gpunode.source import Key, Readings
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.facts import At
from gpunode.verdict.findings import PRESSING, Finding, NodeStatus
from gpunode.verdict.held_up import CurrentHolds, stands_still
from gpunode.verdict.overdue import TRAINING_STALLED

OOM_KILLS, MEMORY_EVENTS, TORCH_OOMS = memory.OOM_KILLS, processes.MEMORY_EVENTS, steps.TORCH_OOMS

EVENT_COUNTERS = frozenset(
    {xids.XIDS, kernel_log.XIDS, kernel_log.EVENTS, OOM_KILLS, MEMORY_EVENTS, TORCH_OOMS}
)
KERNEL_COUNTERS = frozenset({OOM_KILLS, MEMORY_EVENTS})
"""The kernel counts these since it started, or since the cgroup is there; the rest is counted from
when gpunode started, and so what is new there has just happened."""

PACE = frozenset({steps.MEDIAN, steps.BASELINE, TRAINING_STALLED})

SLOW_RATIO = 1.5
"""At this multiple of a training's best pace, it has become slow."""

NORMAL_RATIO = 1.25
"""Below this multiple, it is not slow: only what was so before can become slow at once."""

CRASHES, CRASHES_WITHIN = 3, 600.0
"""So many ends of processes that were short, within so many seconds, are a crash loop."""

CRASH_SECONDS = 120.0
"""A process that was on a GPU for fewer seconds has not done much."""


@dataclass(frozen=True, slots=True)
class IncidentSign:
    """Something that is or begins an incident.

    What ``lasts`` is told at each look while it goes on; anything else once.
    """

    kind: Kind
    title: str
    gpus: frozenset[At]
    lasts: bool = False
    finding: Finding | None = None
    """The finding about it."""


class Signs:
    """Looks for signs; it remembers what was counted before, and which process was where."""

    def __init__(self) -> None:
        self._counted: dict[Key, float] | None = None
        self._kept_up: set[At] = set()
        self._on: dict[At, dict[tuple[int, float], float]] = {}
        """By GPU, each process and when (monotonic) it was first seen there."""

        self._crashes: dict[At, deque[float]] = {}

    def found(
        self, readings: Readings, now: NodeStatus, ended_well: Collection[tuple[int, float]]
    ) -> list[IncidentSign]:
        """The signs since the last look.

        ``ended_well`` are the processes, by PID and start, that since then ended without an error.
        """
        told = readings.details(CurrentHolds)
        held_up = {at: cause for one in told for at, cause in one.detail.causes.items()}
        return [
            *_lost_signs(held_up, now),
            *_wait_signs(held_up, now),
            *self._slowed(readings, now),
            *self._counts(readings, now),
            *self._crash_loops(readings, now, ended_well),
        ]

    def _counts(self, readings: Readings, now: NodeStatus) -> Iterator[IncidentSign]:
        """What counters say that grew: the first look only learns what they were.

        A source may be read for the first time after that.
        """
        found = {key: value for key, (value, _) in readings.values(EVENT_COUNTERS).items()}
        before, self._counted = self._counted, {**(self._counted or {}), **found}
        if before is None:
            return
        grew = [
            key
            for key, value in found.items()
            if value > before.get(key, value if key[0] in KERNEL_COUNTERS else 0.0)
        ]
        told = {labels[2] for metric, labels in grew if metric is xids.XIDS}
        for metric, of in grew:
            if metric is xids.XIDS or (metric is kernel_log.XIDS and of[1] not in told):
                if not _ends_a_program(of[-1]):
                    continue
                at = frozenset({(of[0], of[1])}) if metric is xids.XIDS else frozenset[At]()
                where = _gpu_text(now, (of[0], of[1])) if at else f"GPU at {of[0]}"
                yield IncidentSign("xid", f"{where}: XID {_xid(of[-1])}", at)
            elif metric is OOM_KILLS or (metric is kernel_log.EVENTS and of == ("oom_kill",)):
                yield IncidentSign(
                    "out_of_memory", "A process of this node was killed for memory", _NO_GPU
                )
            elif metric is MEMORY_EVENTS and of[-1] == "oom_kill":
                where = _gpu_text(now, (of[0], of[1]))
                title = f"A process of the job on {where} was killed for memory"
                yield IncidentSign("out_of_memory", title, frozenset({(of[0], of[1])}))
            elif metric is TORCH_OOMS:
                where = _gpu_text(now, (of[0], of[1]))
                title = f"The training on {where} ran out of GPU memory"
                yield IncidentSign("out_of_memory", title, frozenset({(of[0], of[1])}))

    def _slowed(self, readings: Readings, now: NodeStatus) -> Iterator[IncidentSign]:
        """Trainings whose pace fell at once, and those of which no step comes any more."""
        values = {key: value for key, (value, _) in readings.values(PACE).items()}
        paces: dict[At, float] = {}
        for (metric, of), median in values.items():
            best = values.get((steps.BASELINE, of), 0.0) if metric is steps.MEDIAN else 0.0
            if best > 0:
                paces[of[0], of[1]] = median / best
        slow = {at for at in self._kept_up if paces.get(at, 0.0) >= SLOW_RATIO}
        self._kept_up = {at for at in self._kept_up if at in paces}
        self._kept_up |= {at for at, pace in paces.items() if pace <= NORMAL_RATIO}
        for at in sorted(slow):
            title = f"The training on {_gpu_text(now, at)} takes {paces[at]:.1f} times its "
            yield IncidentSign("slow", f"{title}best step time", frozenset({at}), lasts=True)
        stalled = [of[:2] for (m, of), on in values.items() if m is TRAINING_STALLED and on]
        for gpu, uuid in sorted(set(stalled)):
            title = f"No step of the training on {_gpu_text(now, (gpu, uuid))} ends"
            yield IncidentSign("stall", title, frozenset({(gpu, uuid)}), lasts=True)

    def _crash_loops(
        self, readings: Readings, now: NodeStatus, ended_well: Collection[tuple[int, float]]
    ) -> Iterator[IncidentSign]:
        moment = readings.clock.monotonic()
        for one in readings.details(OwnersDetail):
            at = one.place.gpu, one.place.uuid
            there = {(p.pid, p.start) for p in one.detail.processes}
            before = self._on.get(at, {})
            self._on[at] = {process: before.get(process, moment) for process in there}
            short = [
                begun
                for p, begun in before.items()
                if p not in there and p not in ended_well and moment - begun < CRASH_SECONDS
            ]
            if short:
                crashes = self._crashes.setdefault(at, deque(maxlen=CRASHES))
                crashes.append(moment)
                if len(crashes) == CRASHES and moment - crashes[0] <= CRASHES_WITHIN:
                    times = f"{CRASHES} times within {(moment - crashes[0]) / 60:.0f} min"
                    title = f"The processes on {_gpu_text(now, at)} ended soon, {times}"
                    crashes.clear()
                    yield IncidentSign("crash_loop", title, frozenset({at}))


_NO_GPU: frozenset[At] = frozenset()


def processes_on(readings: Readings) -> dict[At, tuple[Started, ...]]:
    """The processes on each GPU."""
    return {
        (one.place.gpu, one.place.uuid): one.detail.processes
        for one in readings.details(OwnersDetail)
    }


def _gpu_text(now: NodeStatus, at: At) -> str:
    """A GPU in words, by its label or else its index."""
    return f"GPU {next((gpu.label for gpu in now.gpus if gpu.at == at), at[0])}"


def _ends_a_program(xid: str) -> bool:
    """Whether an XID has a program restarted at least; one that nobody knows may."""
    code = CODES.get(int(xid)) if xid.isdecimal() else None
    return code is None or code.notify != "none"


def _xid(number: str) -> str:
    code = CODES.get(int(number)) if number.isdecimal() else None
    return code.summary if code else number


def _lost_signs(held_up: Mapping[At, str], now: NodeStatus) -> Iterator[IncidentSign]:
    for at in (at for at, cause in held_up.items() if cause == "gpu_lost"):
        finding = urgent_finding(now, {at})
        title = finding.title if finding else f"GPU {at[0]} does not answer"
        yield IncidentSign("gpu_lost", title, frozenset({at}), lasts=True, finding=finding)


def _wait_signs(held_up: Mapping[At, str], now: NodeStatus) -> Iterator[IncidentSign]:
    """The findings about GPUs that wait for others, one for all that wait for the same."""
    by_label = {gpu.label: gpu.at for gpu in now.gpus}
    wait = {g.label for g in now.gpus if g.verdict and CAUSES[g.verdict.cause].waits_for_peers}
    for finding in now.findings:
        if finding.urgency in PRESSING and wait.intersection(finding.gpus):
            gpus = frozenset(by_label[gpu] for gpu in finding.gpus if gpu in by_label)
            still = any(stands_still(held_up.get(at, "")) for at in gpus)
            kind: Kind = "stall" if still else "slow"
            yield IncidentSign(kind, finding.title, gpus, lasts=True, finding=finding)


def urgent_finding(now: NodeStatus, gpus: Iterable[At]) -> Finding | None:
    """The most urgent finding about any of these GPUs."""
    wanted = {gpu.label for gpu in now.gpus if gpu.at in set(gpus)}
    pressing = (one for one in now.findings if one.urgency in PRESSING)
    return next((one for one in pressing if wanted.intersection(one.gpus)), None)


def owners_of(now: NodeStatus, gpus: Iterable[At]) -> tuple[str, ...]:
    """Who holds these GPUs, in words."""
    wanted = set(gpus)
    counted = Counter(owner for gpu in now.gpus if gpu.at in wanted for owner in gpu.owners)
    return tuple(sorted(counted))


def labels_of(now: NodeStatus, gpus: Iterable[At]) -> tuple[str, ...]:
    """These GPUs by their labels, in order."""
    labels: Mapping[At, str] = {gpu.at: gpu.label for gpu in now.gpus}
    ordered = sorted(set(gpus), key=lambda at: (int(at[0]), at[1]))
    return tuple(labels.get(at, at[0]) for at in ordered)
