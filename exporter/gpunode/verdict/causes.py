"""The bottleneck of one GPU: a cause, and the evidence for it.

A verdict names one cause. The largest loss of time wins; only if almost none was lost does the
verdict name what bounds the work itself. Each verdict keeps its evidence: exported series, with the
value that counted and the threshold that it passed, so that anyone can check it in Prometheus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gpunode.gpu.activity import (
    BLOCKED_STREAK,
    MEMORY_RESERVED,
    MEMORY_TOTAL,
    MEMORY_USED,
    SECONDS,
)
from gpunode.gpu.health import THROTTLED
from gpunode.gpu.ledger import STATES
from gpunode.gpu.power import POWER_DEFAULT_LIMIT, POWER_LIMIT
from gpunode.gpu.units import ACTIVE, PCIE_BYTES
from gpunode.host import disk, lustre, nfs, pressure
from gpunode.jobs import processes as job
from gpunode.jobs import steps
from gpunode.metric import Metric
from gpunode.nccl.ras import AWAITED
from gpunode.verdict.facts import Facts, series_name
from gpunode.verdict.limits import (
    BOUND,
    COMMUNICATES,
    COMPILES,
    CPU_PRESSURE,
    DISK_BUSY,
    EXPLAINED,
    GOES_ON,
    IN_PHASE,
    IO_PRESSURE,
    LAUNCHES,
    LIMIT_LOWERED,
    LOST,
    MEMORY_BUSY,
    MEMORY_FULL,
    PIPE_BUSY,
    QUOTA_THROTTLED,
    REMOTE_LATENCY,
    REMOTE_SHARE,
    RUNS_NOTHING,
    SEVERAL_CPUS,
    SHM_FULL,
    STALLED,
    STEP_OVERDUE,
    STEP_OVERDUE_LEAST,
    TENSOR_IDLE,
    THREAD_BUSY,
    THROTTLED_SHARE,
    TO_HOST,
    WRITES,
)
from gpunode.verdict.waiting import AT_WORK, REASONS, WAITED_FOR, WaitedFor
from gpunode.verdict.workload import WORKLOAD

CAUSES = {
    "none": "no significant time is lost",
    "data_loading_cpu": "starved, and the CPUs that prepare the data are at their limit",
    "data_loading_storage": "starved, and the job waits for storage",
    "data_loading_copy": "copies between host and device run while the compute engines wait; they "
    "are slow from memory that is not pinned",
    "data_loading": "starved, and the training waits for data, by its client's words",
    "shm": "starved, and the job's /dev/shm is full",
    "host_compute": "starved, while the process on the GPU computes on CPUs",
    "compile": "starved, while kernels are compiled",
    "checkpoint": "starved, while the job saves its state",
    "no_requests": "nothing asks the server or notebook for work",
    "stopped": "starved, because the process is stopped or cannot be interrupted",
    "unexplained": "starved, and nothing on this node explains it",
    "communication": "data moves between GPUs or nodes while nothing is computed",
    "straggler": "kernels spin in a collective until a peer arrives",
    "stalled_collective": "kernels spin in a collective and no peer arrives",
    "kernel_launch": "gaps between small kernels",
    "thermal": "clocks are throttled by heat",
    "power": "clocks are throttled by a power limit below the board's default, or by a power brake",
    "precision": "matrix products run without tensor cores",
    "memory_bandwidth": "the work waits for HBM",
    "memory_capacity": "the GPU's memory is full",
}

THERMAL = ("sw_thermal", "hw_thermal")
REMOTE = ((nfs.RTT_SECONDS, nfs.REQUESTS), (lustre.RPC_SECONDS, lustre.RPCS))


@dataclass(frozen=True, slots=True)
class Evidence:
    """A figure behind a verdict: the series, its value, and the threshold that it passed.

    ``value`` is the increase per second for a counter and the current value for a gauge, unless
    ``meaning`` says otherwise.
    """

    series: str
    value: float
    threshold: float
    meaning: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """A cause, the share of time that it affects, and the evidence."""

    cause: str
    share: float
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """What is known of one GPU: its ledger's shares, its kind of work, and for whom it waits.

    ``recent`` are the facts of the time that the shares cover.
    """

    facts: Facts
    recent: Facts
    at: tuple[str, str]
    shares: dict[str, float]
    kind: str
    waits_for: tuple[WaitedFor, ...] = ()
    waited_for: WaitedFor | None = None
    """This GPU, if others wait for it."""

    peers_starve: bool = False
    """Whether another GPU of the job has nothing to run for as long as others wait."""

    def now(self, metric: Metric, *labels: str) -> float:
        """The latest value of a series of this GPU, 0 without one."""
        return self.facts.now(metric, *self.at, *labels) or 0.0

    def rate(self, metric: Metric, *labels: str) -> float:
        """The increase per second of a counter of this GPU, 0 if it is not known.

        While the shares were measured, or longer if it is read less often than that.
        """
        known = self.recent.rate(metric, *self.at, *labels)
        if known is None:
            known = self.facts.rate(metric, *self.at, *labels)
        return known or 0.0

    @property
    def without_work(self) -> float:
        """Share of time in which a process held the GPU and nothing ran."""
        return self.shares["starved"] + self.shares["idle"]

    @property
    def results(self) -> float:
        """Share of time in which results were copied to the host."""
        sent, received = (self.rate(PCIE_BYTES, way) for way in ("transmit", "receive"))
        return self.shares["copy"] if sent and sent >= TO_HOST * received else 0.0

    def evidence(
        self, metric: Metric, value: float, threshold: float, meaning: str, *labels: str
    ) -> Evidence:
        """Evidence from a series of this GPU."""
        return Evidence(series_name(metric, (*self.at, *labels)), value, threshold, meaning)

    def state(self, state: str, threshold: float) -> Evidence:
        """Evidence from the ledger."""
        meaning = f"share of time: {STATES[state]}"
        return self.evidence(SECONDS, self.shares[state], threshold, meaning, state)


Rule = Callable[[Case], Verdict | None]
Explanation = Callable[[Case], Iterable[Evidence]]


def judge(case: Case) -> Verdict | None:
    """The verdict on one GPU, or None if its ledger does not reach back far enough."""
    if not case.shares:
        return None
    lost = [verdict for rule in LOSSES if (verdict := rule(case))]
    if lost:
        return max(lost, key=lambda verdict: verdict.share)
    bound = (verdict for rule in BOUNDS if (verdict := rule(case)))
    return next(bound, Verdict("none", sum(case.shares[s] for s in ("compute", "memory"))))


def _starved(case: Case) -> Verdict | None:
    """Time without work, put down to the first explanation that has evidence."""
    share = case.without_work + case.results
    if share < LOST:
        return None
    wanted = (
        case.shares["starved"] + case.results >= LOST
        or case.waited_for is not None
        or case.kind == "training"
    )
    state = max(("starved", "idle", "copy"), key=lambda state: case.shares[state])
    ledger = case.state(state, LOST)
    of_peers = case.shares["blocked"] if case.peers_starve else 0.0
    for cause, look in EXPLANATIONS if wanted else IDLE_EXPLANATIONS:
        evidence = tuple(look(case))
        if evidence:
            return Verdict(cause, share + of_peers, (ledger, *evidence))
    share = case.without_work  # copies explain themselves: see _copies
    if not wanted or share < LOST:
        return None
    state = max(("starved", "idle"), key=lambda state: case.shares[state])
    return Verdict("unexplained", share + of_peers, (case.state(state, LOST),))


def _stopped(case: Case) -> Iterator[Evidence]:
    stopped = case.now(job.STOPPED)
    if stopped and case.without_work >= RUNS_NOTHING:
        yield case.evidence(job.STOPPED, stopped, 1.0, "processes on the GPU that are stopped")


def _uninterruptible(case: Case) -> Iterator[Evidence]:
    """Processes that wait in the kernel for good; one that waits for a disk soon goes on."""
    waiting = case.now(job.BLOCKED)
    if waiting and case.without_work >= RUNS_NOTHING and case.now(job.HOST_CPUS) < GOES_ON:
        yield case.evidence(job.BLOCKED, waiting, 1.0, "processes that cannot be interrupted")


def _checkpoint(case: Case) -> Iterator[Evidence]:
    yield from _phase(case, "checkpoint")
    written = case.facts.last_rate(job.IO_BYTES, *case.at, "write") or 0.0
    if written >= WRITES:
        meaning = "bytes per second that the job writes"
        yield case.evidence(job.IO_BYTES, written, WRITES, meaning, "write")


def _phase(case: Case, phase: str) -> Iterator[Evidence]:
    """What the client says the process did for most of the time without work."""
    share = case.rate(steps.SECONDS, phase)
    least = IN_PHASE * case.without_work
    if share >= max(least, LOST):
        meaning = f"share of time that the process reports as {phase}"
        yield case.evidence(steps.SECONDS, share, max(least, LOST), meaning, phase)


def _compile(case: Case) -> Iterator[Evidence]:
    yield from _phase(case, "compile")
    used = case.facts.peak(job.COMPILER_CPUS, *case.at)
    # Most of a compilation is Python's, between calls of compilers.
    if case.now(job.COMPILER_CPUS) >= COMPILES or (
        used >= COMPILES and case.without_work >= RUNS_NOTHING
    ):
        yield case.evidence(job.COMPILER_CPUS, used, COMPILES, "CPUs used by compilers")


def _no_requests(case: Case) -> Iterator[Evidence]:
    """A server has gaps between requests; a notebook's GPU runs nothing while its user thinks.

    A server that polls for requests keeps a CPU busy although it has none.
    """
    busy = case.facts.now(job.HOST_THREAD, *case.at)
    if busy is None or case.now(job.LOADER_THREAD) >= THREAD_BUSY:
        return
    nothing, idle = case.without_work >= RUNS_NOTHING, busy < THREAD_BUSY
    serves, interacts = case.kind == "serving", case.kind == "interactive"
    if (serves and (nothing or idle)) or (interacts and nothing and idle):
        yield case.evidence(WORKLOAD, 1.0, 1.0, "the kind of work", case.kind)
        if idle:
            meaning = "share of a CPU used by one thread of the process"
            yield case.evidence(job.HOST_THREAD, busy, THREAD_BUSY, meaning)


def _data(case: Case) -> Iterator[Evidence]:
    return _phase(case, "data")


def _host_thread(case: Case) -> Iterator[Evidence]:
    """The thread on the GPU's process was busy while the GPU had nothing to run.

    It may be busy while the GPU works as well, waiting for it: only what goes beyond counts.
    """
    busy, least = case.now(job.HOST_THREAD), 1.0 - EXPLAINED * case.without_work
    if busy >= least:
        meaning = "share of a CPU used by one thread, or by all that share one, of the process"
        yield case.evidence(job.HOST_THREAD, busy, least, meaning)


def _host_compute(case: Case) -> Iterator[Evidence]:
    """Like a thread that prepares data, but it computes with what the GPU sent, or on many CPUs."""
    cpus, results = case.now(job.HOST_CPUS), case.results >= LOST
    evidence = tuple(_host_thread(case))
    several = cpus >= SEVERAL_CPUS and (evidence or results)
    if (evidence and (results or case.without_work >= RUNS_NOTHING)) or several:
        yield from evidence
    if several:
        meaning = "CPUs that the process on the GPU uses"
        yield case.evidence(job.HOST_CPUS, cpus, SEVERAL_CPUS, meaning)


def _shm(case: Case) -> Iterator[Evidence]:
    facts, at = case.facts, case.at
    for labels in facts.series(job.SHM_SIZE, *at):
        size, used = facts.now(job.SHM_SIZE, *labels), facts.now(job.SHM_USED, *labels)
        if size and used is not None and used / size >= SHM_FULL:
            series = series_name(job.SHM_USED, labels)
            yield Evidence(series, used / size, SHM_FULL, "share of /dev/shm in use")


def _storage(case: Case) -> Iterator[Evidence]:
    facts, at = case.facts, case.at
    waits = _pressure(facts, at, "io")
    if waits is not None and waits[1] >= IO_PRESSURE:
        yield Evidence(*waits, IO_PRESSURE, "share of time with a task waiting for I/O")
    for labels in facts.series(disk.BUSY):
        busy = facts.rate(disk.BUSY, *labels)
        if busy is not None and busy >= DISK_BUSY:
            series = series_name(disk.BUSY, labels)
            yield Evidence(series, busy, DISK_BUSY, "share of time with requests on the disk")
    for seconds, requests in REMOTE:
        for labels in facts.series(seconds):
            waited, done = facts.rate(seconds, *labels), facts.rate(requests, *labels)
            if not waited or not done or waited < REMOTE_SHARE:
                continue
            if waited / done >= REMOTE_LATENCY:
                series = series_name(seconds, labels)
                yield Evidence(series, waited / done, REMOTE_LATENCY, "seconds per request")


def _pressure(facts: Facts, at: tuple[str, str], resource: str) -> tuple[str, float] | None:
    """Share of time that tasks waited for a resource: those of the job, else of the node."""
    for metric, labels in (
        (job.PRESSURE_WAITING, (*at, resource)),
        (pressure.WAITING, (resource,)),
    ):
        rate = facts.rate(metric, *labels)
        if rate is not None:
            return series_name(metric, labels), rate
    return None


def _loader(case: Case) -> Iterator[Evidence]:
    loader = case.now(job.LOADER_THREAD)
    if loader >= THREAD_BUSY:
        meaning = "share of a CPU used by one thread of a process that prepares data"
        yield case.evidence(job.LOADER_THREAD, loader, THREAD_BUSY, meaning)


def _data_on_host(case: Case) -> Iterator[Evidence]:
    """The thread that runs the training prepares its data, by its client's words."""
    data, busy = tuple(_data(case)), tuple(_host_thread(case))
    if data and busy:
        yield from (*data, *busy)


def _cpu(case: Case) -> Iterator[Evidence]:
    periods, throttled = case.rate(job.QUOTA_PERIODS), case.rate(job.QUOTA_THROTTLED_PERIODS)
    if periods and throttled / periods >= QUOTA_THROTTLED:
        meaning = "share of CPU quota periods that were throttled"
        yield case.evidence(
            job.QUOTA_THROTTLED_PERIODS, throttled / periods, QUOTA_THROTTLED, meaning
        )
    waits = _pressure(case.facts, case.at, "cpu")
    if waits is not None and waits[1] >= CPU_PRESSURE:
        yield Evidence(*waits, CPU_PRESSURE, "share of time with a task waiting for a CPU")
    yield from _host_thread(case)


def _blocked(case: Case) -> Verdict | None:
    """Waiting for a peer: a stall once no window had anything else, unless a peer is at work."""
    streak = case.now(BLOCKED_STREAK)
    working = [late for late in case.waits_for if late.reason in AT_WORK]
    if streak >= STALLED:
        meaning = "seconds for which nothing moved and nothing was launched"
        ledger = case.evidence(BLOCKED_STREAK, streak, STALLED, meaning)
        cause = "straggler" if working else "stalled_collective"
        return Verdict(cause, 1.0, (ledger, *_late(case)))
    share = case.shares["blocked"]
    if share < LOST or (case.peers_starve and case.shares["starved"] >= LOST):
        return None
    return Verdict("straggler", share, (case.state("blocked", LOST), *_late(case)))


def _late(case: Case) -> Iterator[Evidence]:
    """For whom a GPU waits, as seen from this node and as NCCL says."""
    for late in case.waits_for:
        series = series_name(WAITED_FOR, (*late.at, late.reason))
        yield Evidence(series, 1.0, 1.0, f"the GPU that others wait for: {REASONS[late.reason]}")
    for labels in case.facts.series(AWAITED):
        yield Evidence(series_name(AWAITED, labels), 1.0, 1.0, "the rank that others wait for")


def _copies(case: Case) -> Verdict | None:
    share = case.shares["copy"]
    if share < LOST:
        return None
    if case.results and any(tuple(look(case)) for look in (_checkpoint, _host_compute)):
        return None
    return Verdict("data_loading_copy", share, (case.state("copy", LOST),))


def _lost_to(state: str, cause: str, threshold: float) -> Rule:
    """A rule that needs only the ledger."""

    def rule(case: Case) -> Verdict | None:
        if case.shares[state] < threshold:
            return None
        return Verdict(cause, case.shares[state], (case.state(state, threshold),))

    return rule


def _thermal(case: Case) -> Verdict | None:
    return _held_down(case, THERMAL, "thermal")


def _power(case: Case) -> Verdict | None:
    braked = _held_down(case, ("hw_power_brake",), "power")
    capped = _held_down(case, ("sw_power_cap",), "power")
    limit, default = case.now(POWER_LIMIT), case.now(POWER_DEFAULT_LIMIT)
    if capped is None or not limit or not default or limit / default >= LIMIT_LOWERED:
        return braked  # at the board's default limit, a GPU does all it can
    meaning = "enforced over default limit"
    lowered = case.evidence(POWER_LIMIT, limit / default, LIMIT_LOWERED, meaning)
    return Verdict("power", capped.share, (*capped.evidence, lowered))


def _held_down(case: Case, reasons: Iterable[str], cause: str) -> Verdict | None:
    meaning = "share of time with the clocks throttled"
    evidence = tuple(
        case.evidence(THROTTLED, rate, THROTTLED_SHARE, meaning, reason)
        for reason in reasons
        if (rate := case.rate(THROTTLED, reason)) >= THROTTLED_SHARE
    )
    return Verdict(cause, max(e.value for e in evidence), evidence) if evidence else None


def _precision(case: Case) -> Verdict | None:
    work, tensor = case.shares["compute"], case.recent.rate(ACTIVE, *case.at, "tensor")
    if work < BOUND or tensor is None or tensor / work >= TENSOR_IDLE:
        return None
    for pipe in ("fp32", "fp64"):
        busy = case.rate(ACTIVE, pipe) / work
        if busy >= PIPE_BUSY:
            idle = "share of the compute time with tensor cores active"
            active = f"share of the compute time with the {pipe} pipe active"
            evidence = (
                case.state("compute", BOUND),
                case.evidence(ACTIVE, tensor / work, TENSOR_IDLE, idle, "tensor"),
                case.evidence(ACTIVE, busy, PIPE_BUSY, active, pipe),
            )
            return Verdict("precision", work, evidence)
    return None


def _memory(case: Case) -> Verdict | None:
    """Most of the time goes to HBM, and HBM is indeed busy; else it is slow for other reasons."""
    busy, share = case.rate(ACTIVE, "dram"), case.shares["memory"]
    if share < BOUND or busy < MEMORY_BUSY:
        return None
    active = case.evidence(ACTIVE, busy, MEMORY_BUSY, "share of time with HBM active", "dram")
    return Verdict("memory_bandwidth", share, (case.state("memory", BOUND), active))


def _capacity(case: Case) -> Verdict | None:
    total, used = case.now(MEMORY_TOTAL), case.now(MEMORY_USED)
    usable = total - case.now(MEMORY_RESERVED)
    if usable <= 0 or used / usable < MEMORY_FULL or case.shares["free"] >= BOUND:
        return None
    meaning = "share of the frame buffer in use"
    evidence = case.evidence(MEMORY_USED, used / usable, MEMORY_FULL, meaning)
    return Verdict("memory_capacity", 1.0, (evidence,))


EXPLANATIONS: tuple[tuple[str, Explanation], ...] = (
    ("stopped", _stopped),
    ("checkpoint", _checkpoint),
    ("compile", _compile),
    ("shm", _shm),
    ("no_requests", _no_requests),
    ("data_loading_storage", _storage),
    ("data_loading_cpu", _loader),
    ("data_loading_cpu", _data_on_host),
    ("data_loading", _data),
    ("host_compute", _host_compute),
    ("data_loading_cpu", _cpu),
    ("stopped", _uninterruptible),
)
IDLE_EXPLANATIONS: tuple[tuple[str, Explanation], ...] = (
    ("stopped", _stopped),
    ("checkpoint", _checkpoint),
    ("compile", _compile),
    ("no_requests", _no_requests),
    ("host_compute", _host_compute),
)
"""Those of a GPU that has run nothing for a while: nobody may want anything of it."""

LOSSES: tuple[Rule, ...] = (
    _starved,
    _blocked,
    _copies,
    _lost_to("communication", "communication", COMMUNICATES),
    _lost_to("launch", "kernel_launch", LAUNCHES),
    _thermal,
    _power,
)
BOUNDS: tuple[Rule, ...] = (
    _precision,
    _memory,
    _capacity,
)
USED = frozenset(
    {
        ACTIVE,
        AWAITED,
        BLOCKED_STREAK,
        MEMORY_RESERVED,
        MEMORY_TOTAL,
        MEMORY_USED,
        PCIE_BYTES,
        POWER_DEFAULT_LIMIT,
        POWER_LIMIT,
        SECONDS,
        THROTTLED,
        disk.BUSY,
        job.BLOCKED,
        job.COMPILER_CPUS,
        job.HOST_CPUS,
        job.HOST_THREAD,
        job.IO_BYTES,
        job.LOADER_THREAD,
        job.PRESSURE_WAITING,
        job.QUOTA_PERIODS,
        job.QUOTA_THROTTLED_PERIODS,
        job.SHM_SIZE,
        job.SHM_USED,
        job.STOPPED,
        pressure.WAITING,
        steps.LAST_STEP,
        steps.MEDIAN,
        steps.REQUEST_ITEMS,
        steps.SECONDS,
        *(metric for pair in REMOTE for metric in pair),
    }
)
"""The metrics that verdicts rest on; ``Facts`` knows no others."""


def stalled(facts: Facts, at: tuple[str, str]) -> str | None:
    """Why the step of a training run is overdue: a cause, empty if it is not overdue.

    None if no steps are reported or expected.
    """
    last = facts.now(steps.LAST_STEP, *at)
    median = facts.now(steps.MEDIAN, *at)
    if last is None or median is None:
        return None
    if facts.time - last <= max(STEP_OVERDUE_LEAST, STEP_OVERDUE * median):
        return ""
    shares = facts.recent(STEP_OVERDUE_LEAST).shares(at)
    nothing_to_do = shares.get("starved", 0.0) + shares.get("idle", 0.0)
    causes = {"collective": shares.get("blocked", 0.0), "input": nothing_to_do}
    cause = max(causes, key=causes.__getitem__)
    return cause if causes[cause] >= BOUND else "unknown"
