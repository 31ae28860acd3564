"""What holds each GPU up: the ledger, joined with what the node saw in the same minute.

A verdict names one cause. What lost the most time wins; only where next to none was lost is it said
what bounds the work itself. Each verdict keeps its evidence: series that are exported, with the
value that counted and the threshold that it passed, so that a person can check it in Prometheus.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass

from gpunode.gpu import GPU
from gpunode.gpu.activity import (
    ACTIVE,
    MEMORY_RESERVED,
    MEMORY_TOTAL,
    MEMORY_USED,
    POWER_DEFAULT_LIMIT,
    POWER_LIMIT,
    SECONDS,
)
from gpunode.gpu.health import THROTTLED
from gpunode.gpu.ledger import STATES
from gpunode.host import disk, lustre, nfs, pressure
from gpunode.jobs import processes as job
from gpunode.jobs import steps
from gpunode.jobs.nccl_ras import AWAITED
from gpunode.loop import Key, Loop
from gpunode.metric import Metric, Sample
from gpunode.source import Reading, Source

CAUSES = {
    "none": "no time to speak of is lost",
    "data_loading_cpu": "starved, and the CPUs that prepare the data are at their limit",
    "data_loading_storage": "starved, and the job waits for storage",
    "data_loading_copy": "copies between host and device run while the compute engines wait",
    "data_loading": "starved, by nothing that shows on this node",
    "shm": "starved, and the job's /dev/shm is full",
    "communication": "data moves between GPUs or nodes and nothing is computed meanwhile",
    "straggler": "kernels spin in a collective until a peer arrives",
    "stalled_collective": "kernels spin in a collective and no peer arrives",
    "kernel_launch": "the gaps between small kernels",
    "thermal": "clocks are held down by heat",
    "power": "clocks are held down by a power limit below the board's own, or by a power brake",
    "precision": "matrix products run without tensor cores",
    "memory_bandwidth": "the work waits for HBM",
    "memory_capacity": "the GPU's memory is full",
}

BOTTLENECK = Metric(
    "gpunode_gpu_bottleneck",
    "gauge",
    "Whether this is what held the GPU up over the last minute; one cause is 1, the evidence is at "
    "/api/v1/verdict.",
    (*GPU, "cause"),
)

STALLS = ("collective", "input", "unknown")

TRAINING_STALLED = Metric(
    "gpunode_training_stalled",
    "gauge",
    "Whether no training step has ended for five times the median step and at least 30 s, by what "
    "the GPU does meanwhile: `collective` where it spins for a peer, `input` where it has nothing "
    "to do, `unknown` otherwise.",
    (*GPU, "cause"),
)

METRICS = (BOTTLENECK, TRAINING_STALLED)

PERIOD = 60.0
"""Seconds that a verdict looks back on."""

EVERY = 5.0
"""Seconds between verdicts."""

LOST = 0.1
"""Share of time from which a loss counts."""

COMMUNICATES = 0.25
"""Share of time from which communication that is not hidden counts; healthy training has some."""

STALLED = 0.95
"""Share of time spent spinning from which nobody is expected to arrive."""

STEP_OVERDUE = 5.0
"""Times the median step after which a step is overdue."""

STEP_OVERDUE_LEAST = 30.0
"""Seconds before which no step is overdue."""

BOUND = 0.5
"""Share of time from which a resource counts as what bounds the work."""

SHM_FULL = 0.95
"""Share of /dev/shm in use from which the next batch may not fit."""

IO_PRESSURE = 0.1
"""Share of time with a task waiting for I/O from which storage holds the job up."""

DISK_BUSY = 0.95
"""Share of time with requests on a disk from which it has no more to give."""

REMOTE_LATENCY = 0.05
"""Seconds that a request to a file server takes from which it is slow; 0.001 to 0.01 are usual."""

REMOTE_SHARE = 0.1
"""Requests in flight on average from which a slow file server matters."""

THREAD_BUSY = 0.95
"""Share of a CPU from which a thread has no more to give."""

CPU_PRESSURE = 0.25
"""Share of time with a task waiting for a CPU from which the job has too few."""

QUOTA_THROTTLED = 0.05
"""Share of quota periods that were throttled from which the quota holds the job up."""

THROTTLED_SHARE = 0.05
"""Share of time with the clocks held down from which it counts."""

LIMIT_LOWERED = 0.95
"""Enforced over default power limit below which somebody chose to have less."""

TENSOR_IDLE = 0.05
"""Tensor share of the time at work below which products do not use the tensor cores."""

PIPE_BUSY = 0.15
"""Share of the time at work from which the FP32 or FP64 pipe does the products."""

MEMORY_FULL = 0.97
"""Share of the frame buffer, without the driver's reserve, from which it is full."""

THERMAL = ("sw_thermal", "hw_thermal")


@dataclass(frozen=True, slots=True)
class Evidence:
    """A figure that a verdict rests on: the series, what it came to, and what it was held against.

    ``value`` is the increase a second for a counter and the present value for a gauge, or what
    ``meaning`` says.
    """

    series: str
    value: float
    threshold: float
    meaning: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """A cause, the share of time that it concerns, and why."""

    cause: str
    share: float
    evidence: tuple[Evidence, ...] = ()


Snapshot = dict[Key, tuple[float, float]]
"""Values of series, with the moments at which they were read."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the time that some snapshots, oldest first, reach over."""

    snapshots: tuple[Snapshot, ...]

    def now(self, metric: Metric, *labels: str) -> float | None:
        """The last value of a series."""
        found = self.snapshots[-1].get((metric.name, labels))
        return None if found is None else found[0]

    def rate(self, metric: Metric, *labels: str) -> float | None:
        """What a counter gained a second; None where it is new or was reset."""
        key = metric.name, labels
        after = self.snapshots[-1].get(key)
        before = next((found for s in self.snapshots if (found := s.get(key))), None)
        if before is None or after is None or after[1] <= before[1] or after[0] < before[0]:
            return None
        return (after[0] - before[0]) / (after[1] - before[1])

    def series(self, metric: Metric, *labels: str) -> Iterator[tuple[str, ...]]:
        """The labels of every series of a metric that begin with these."""
        for name, found in self.snapshots[-1]:
            if name == metric.name and found[: len(labels)] == labels:
                yield found

    def shares(self, at: tuple[str, str]) -> dict[str, float]:
        """The ledger's states as shares of the time; empty where there was none."""
        rates = {state: self.rate(SECONDS, *at, state) or 0.0 for state in STATES}
        total = sum(rates.values())
        return {state: rate / total for state, rate in rates.items()} if total else {}

    def pressure(self, at: tuple[str, str], resource: str) -> tuple[str, float] | None:
        """Share of time that tasks of the job waited for a resource, else those of the node."""
        for metric, where in ((job.PRESSURE, at), (pressure.PRESSURE, ())):
            labels = (*where, resource, "some")
            rate = self.rate(metric, *labels)
            if rate is not None:
                return _name(metric, labels), rate
        return None


Rule = Callable[[Facts, tuple[str, str], dict[str, float]], Verdict | None]


def judge(facts: Facts, at: tuple[str, str]) -> Verdict | None:
    """The verdict on one GPU, or None where its ledger does not reach back."""
    shares = facts.shares(at)
    if not shares:
        return None
    lost = [verdict for rule in LOSSES if (verdict := rule(facts, at, shares))]
    if lost:
        return max(lost, key=lambda verdict: verdict.share)
    bound = (verdict for rule in BOUNDS if (verdict := rule(facts, at, shares)))
    return next(bound, Verdict("none", sum(shares[s] for s in ("compute", "memory"))))


def _starved(facts: Facts, at: tuple[str, str], shares: dict[str, float]) -> Verdict | None:
    if shares["starved"] < LOST:
        return None
    ledger = _state(at, shares, "starved", LOST)
    for cause, look in (
        ("shm", _shm),
        ("data_loading_storage", _storage),
        ("data_loading_cpu", _cpu),
    ):
        evidence = tuple(look(facts, at))
        if evidence:
            return Verdict(cause, shares["starved"], (ledger, *evidence))
    return Verdict("data_loading", shares["starved"], (ledger,))


def _shm(facts: Facts, at: tuple[str, str]) -> Iterator[Evidence]:
    for labels in facts.series(job.SHM_SIZE, *at):
        size, used = facts.now(job.SHM_SIZE, *labels), facts.now(job.SHM_USED, *labels)
        if size and used is not None and used / size >= SHM_FULL:
            series = _name(job.SHM_USED, labels)
            yield Evidence(series, used / size, SHM_FULL, "share of /dev/shm in use")


def _storage(facts: Facts, at: tuple[str, str]) -> Iterator[Evidence]:
    waits = facts.pressure(at, "io")
    if waits is not None and waits[1] >= IO_PRESSURE:
        yield Evidence(*waits, IO_PRESSURE, "share of time with a task waiting for I/O")
    for labels in facts.series(disk.BUSY):
        busy = facts.rate(disk.BUSY, *labels)
        if busy is not None and busy >= DISK_BUSY:
            series = _name(disk.BUSY, labels)
            yield Evidence(series, busy, DISK_BUSY, "share of time with requests on the disk")
    for seconds, requests in REMOTE:
        for labels in facts.series(seconds):
            waited, done = facts.rate(seconds, *labels), facts.rate(requests, *labels)
            if not waited or not done or waited < REMOTE_SHARE:
                continue
            if waited / done >= REMOTE_LATENCY:
                series = _name(seconds, labels)
                yield Evidence(series, waited / done, REMOTE_LATENCY, "seconds a request")


def _cpu(facts: Facts, at: tuple[str, str]) -> Iterator[Evidence]:
    busiest = facts.now(job.BUSIEST_THREAD, *at)
    if busiest is not None and busiest >= THREAD_BUSY:
        series = _name(job.BUSIEST_THREAD, at)
        yield Evidence(series, busiest, THREAD_BUSY, "share of a CPU that one thread takes")
    periods = facts.rate(job.QUOTA_PERIODS, *at)
    throttled = facts.rate(job.QUOTA_THROTTLED_PERIODS, *at)
    if periods and throttled is not None and throttled / periods >= QUOTA_THROTTLED:
        series = _name(job.QUOTA_THROTTLED_PERIODS, at)
        meaning = "share of CPU quota periods that were throttled"
        yield Evidence(series, throttled / periods, QUOTA_THROTTLED, meaning)
    waits = facts.pressure(at, "cpu")
    if waits is not None and waits[1] >= CPU_PRESSURE:
        yield Evidence(*waits, CPU_PRESSURE, "share of time with a task waiting for a CPU")


def _blocked(facts: Facts, at: tuple[str, str], shares: dict[str, float]) -> Verdict | None:
    if shares["blocked"] < LOST:
        return None
    stands = shares["blocked"] >= STALLED
    ledger = _state(at, shares, "blocked", STALLED if stands else LOST)
    awaited = (
        Evidence(_name(AWAITED, labels), 1.0, 1.0, "the rank that others wait for")
        for labels in facts.series(AWAITED)
    )
    cause = "stalled_collective" if stands else "straggler"
    return Verdict(cause, shares["blocked"], (ledger, *awaited))


def _lost_to(state: str, cause: str, threshold: float) -> Rule:
    """A rule that needs no more than the ledger."""

    def rule(_: Facts, at: tuple[str, str], shares: dict[str, float]) -> Verdict | None:
        if shares[state] < threshold:
            return None
        return Verdict(cause, shares[state], (_state(at, shares, state, threshold),))

    return rule


def _thermal(facts: Facts, at: tuple[str, str], _: dict[str, float]) -> Verdict | None:
    return _held_down(facts, at, THERMAL, "thermal")


def _power(facts: Facts, at: tuple[str, str], _: dict[str, float]) -> Verdict | None:
    braked = _held_down(facts, at, ("hw_power_brake",), "power")
    capped = _held_down(facts, at, ("sw_power_cap",), "power")
    limit, default = facts.now(POWER_LIMIT, *at), facts.now(POWER_DEFAULT_LIMIT, *at)
    if capped is None or not limit or not default or limit / default >= LIMIT_LOWERED:
        return braked  # at the board's own limit a GPU does all it can
    lowered = Evidence(
        _name(POWER_LIMIT, at), limit / default, LIMIT_LOWERED, "enforced over default limit"
    )
    return Verdict("power", capped.share, (*capped.evidence, lowered))


def _held_down(
    facts: Facts, at: tuple[str, str], reasons: Iterable[str], cause: str
) -> Verdict | None:
    evidence = tuple(
        Evidence(
            _name(THROTTLED, (*at, reason)),
            rate,
            THROTTLED_SHARE,
            "share of time with the clocks held down",
        )
        for reason in reasons
        if (rate := facts.rate(THROTTLED, *at, reason) or 0.0) >= THROTTLED_SHARE
    )
    return Verdict(cause, max(e.value for e in evidence), evidence) if evidence else None


def _precision(facts: Facts, at: tuple[str, str], shares: dict[str, float]) -> Verdict | None:
    work = shares["compute"]
    tensor = facts.rate(ACTIVE, *at, "tensor")
    if work < BOUND or tensor is None or tensor / work >= TENSOR_IDLE:
        return None
    for pipe in ("fp32", "fp64"):
        busy = facts.rate(ACTIVE, *at, pipe)
        if busy is not None and busy / work >= PIPE_BUSY:
            evidence = (
                _state(at, shares, "compute", BOUND),
                Evidence(
                    _name(ACTIVE, (*at, "tensor")),
                    tensor / work,
                    TENSOR_IDLE,
                    "share of the computing time with tensor cores active",
                ),
                Evidence(
                    _name(ACTIVE, (*at, pipe)),
                    busy / work,
                    PIPE_BUSY,
                    f"share of the computing time with the {pipe} pipe active",
                ),
            )
            return Verdict("precision", work, evidence)
    return None


def _capacity(facts: Facts, at: tuple[str, str], shares: dict[str, float]) -> Verdict | None:
    total, used = facts.now(MEMORY_TOTAL, *at), facts.now(MEMORY_USED, *at)
    usable = (total or 0.0) - (facts.now(MEMORY_RESERVED, *at) or 0.0)
    if used is None or usable <= 0 or used / usable < MEMORY_FULL or shares["free"] >= BOUND:
        return None
    series = _name(MEMORY_USED, at)
    evidence = Evidence(series, used / usable, MEMORY_FULL, "share of the frame buffer in use")
    return Verdict("memory_capacity", 1.0, (evidence,))


LOSSES: tuple[Rule, ...] = (
    _starved,
    _blocked,
    _lost_to("copy", "data_loading_copy", LOST),
    _lost_to("communication", "communication", COMMUNICATES),
    _lost_to("launch", "kernel_launch", LOST),
    _thermal,
    _power,
)
BOUNDS: tuple[Rule, ...] = (
    _precision,
    _lost_to("memory", "memory_bandwidth", BOUND),
    _capacity,
)
REMOTE = ((nfs.RTT_SECONDS, nfs.REQUESTS), (lustre.RPC_SECONDS, lustre.RPCS))
USED = frozenset(
    metric.name
    for metric in (
        ACTIVE,
        MEMORY_RESERVED,
        MEMORY_TOTAL,
        MEMORY_USED,
        POWER_DEFAULT_LIMIT,
        POWER_LIMIT,
        SECONDS,
        THROTTLED,
        disk.BUSY,
        job.BUSIEST_THREAD,
        job.PRESSURE,
        job.QUOTA_PERIODS,
        job.QUOTA_THROTTLED_PERIODS,
        job.SHM_SIZE,
        job.SHM_USED,
        AWAITED,
        pressure.PRESSURE,
        steps.MEDIAN,
        steps.SINCE_STEP,
        *(metric for pair in REMOTE for metric in pair),
    )
)


def stalled(facts: Facts, at: tuple[str, str]) -> str | None:
    """What holds a training up whose step is overdue: a cause, empty while none is.

    None where nobody tells of steps, or where none is to be expected.
    """
    since = facts.now(steps.SINCE_STEP, *at)
    median = facts.now(steps.MEDIAN, *at)
    if since is None or median is None:
        return None
    if since <= max(STEP_OVERDUE_LEAST, STEP_OVERDUE * median):
        return ""
    recent = Facts(facts.snapshots[-round(STEP_OVERDUE_LEAST / EVERY) :])
    shares = recent.shares(at)
    nothing_to_do = shares.get("starved", 0.0) + shares.get("idle", 0.0)
    causes = {"collective": shares.get("blocked", 0.0), "input": nothing_to_do}
    cause = max(causes, key=causes.__getitem__)
    return cause if causes[cause] >= BOUND else "unknown"


class Verdicts:
    """Looks at what all other sources have read, and says what held each GPU up."""

    name = "verdict"
    device = gpu = ""
    every = EVERY
    metrics = METRICS

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._history: deque[Snapshot] = deque(maxlen=round(PERIOD / EVERY) + 1)

    def find(self) -> Iterable[Source]:
        """Itself: whatever is watched, there is something to say of it."""
        return (self,)

    def read(self) -> Reading:
        """The verdict on every GPU whose ledger reaches back far enough."""
        self._history.append(self.loop.values(USED))
        facts = Facts(tuple(self._history))
        found = {
            (labels[0], labels[1]): verdict
            for labels in facts.series(SECONDS)
            if labels[2] == "unknown" and (verdict := judge(facts, (labels[0], labels[1])))
        }
        samples = (
            Sample(BOTTLENECK, (*at, cause), float(cause == verdict.cause))
            for at, verdict in found.items()
            for cause in CAUSES
        )
        overdue = {at: cause for at in found if (cause := stalled(facts, at)) is not None}
        stalls = (
            Sample(TRAINING_STALLED, (*at, cause), float(cause == found_cause))
            for at, found_cause in overdue.items()
            for cause in STALLS
        )
        return Reading(
            (*samples, *stalls),
            {
                "verdicts": [
                    {"gpu": gpu, "uuid": uuid, "meaning": CAUSES[verdict.cause], **asdict(verdict)}
                    for (gpu, uuid), verdict in found.items()
                ]
            },
        )


def _state(at: tuple[str, str], shares: dict[str, float], state: str, threshold: float) -> Evidence:
    meaning = f"share of time: {STATES[state]}"
    return Evidence(_name(SECONDS, (*at, state)), shares[state], threshold, meaning)


def _name(metric: Metric, labels: tuple[str, ...]) -> str:
    """A series as it is exported, and as one would ask Prometheus for it."""
    pairs = sorted(zip(metric.labels, labels, strict=True))
    return metric.name + "{" + ",".join(f'{label}="{value}"' for label, value in pairs) + "}"
