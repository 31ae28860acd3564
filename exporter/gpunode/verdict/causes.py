"""The bottleneck of one GPU: a cause, and the evidence for it.

A verdict names one cause. The largest loss of time wins; only if almost none was lost does the
verdict name what bounds the work itself. Each verdict keeps its evidence: exported series, with the
value that counted and the threshold that it passed, so that anyone can check it in Prometheus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gpunode.gpu.activity import MEMORY_RESERVED, MEMORY_TOTAL, MEMORY_USED, SECONDS
from gpunode.gpu.health import THROTTLED
from gpunode.gpu.ledger import STATES
from gpunode.gpu.power import POWER_DEFAULT_LIMIT, POWER_LIMIT
from gpunode.gpu.units import ACTIVE
from gpunode.host import disk, lustre, nfs, pressure
from gpunode.jobs import processes as job
from gpunode.jobs import steps
from gpunode.nccl.ras import AWAITED
from gpunode.verdict.facts import Facts, series_name
from gpunode.verdict.limits import (
    BOUND,
    COMMUNICATES,
    CPU_PRESSURE,
    DISK_BUSY,
    IO_PRESSURE,
    LIMIT_LOWERED,
    LOST,
    MEMORY_FULL,
    PIPE_BUSY,
    QUOTA_THROTTLED,
    REMOTE_LATENCY,
    REMOTE_SHARE,
    SHM_FULL,
    STALLED,
    STEP_OVERDUE,
    STEP_OVERDUE_LEAST,
    TENSOR_IDLE,
    THREAD_BUSY,
    THROTTLED_SHARE,
)

CAUSES = {
    "none": "no significant time is lost",
    "data_loading_cpu": "starved, and the CPUs that prepare the data are at their limit",
    "data_loading_storage": "starved, and the job waits for storage",
    "data_loading_copy": "copies between host and device run while the compute engines wait",
    "data_loading": "starved, and nothing on this node explains it",
    "shm": "starved, and the job's /dev/shm is full",
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


Rule = Callable[[Facts, tuple[str, str], dict[str, float]], Verdict | None]


def judge(facts: Facts, at: tuple[str, str]) -> Verdict | None:
    """The verdict on one GPU, or None if its ledger does not reach back far enough."""
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
            series = series_name(job.SHM_USED, labels)
            yield Evidence(series, used / size, SHM_FULL, "share of /dev/shm in use")


def _storage(facts: Facts, at: tuple[str, str]) -> Iterator[Evidence]:
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


def _cpu(facts: Facts, at: tuple[str, str]) -> Iterator[Evidence]:
    busiest = facts.now(job.BUSIEST_THREAD, *at)
    if busiest is not None and busiest >= THREAD_BUSY:
        series = series_name(job.BUSIEST_THREAD, at)
        yield Evidence(series, busiest, THREAD_BUSY, "share of a CPU that one thread uses")
    periods = facts.rate(job.QUOTA_PERIODS, *at)
    throttled = facts.rate(job.QUOTA_THROTTLED_PERIODS, *at)
    if periods and throttled is not None and throttled / periods >= QUOTA_THROTTLED:
        series = series_name(job.QUOTA_THROTTLED_PERIODS, at)
        meaning = "share of CPU quota periods that were throttled"
        yield Evidence(series, throttled / periods, QUOTA_THROTTLED, meaning)
    waits = _pressure(facts, at, "cpu")
    if waits is not None and waits[1] >= CPU_PRESSURE:
        yield Evidence(*waits, CPU_PRESSURE, "share of time with a task waiting for a CPU")


def _blocked(facts: Facts, at: tuple[str, str], shares: dict[str, float]) -> Verdict | None:
    if shares["blocked"] < LOST:
        return None
    stands = shares["blocked"] >= STALLED
    ledger = _state(at, shares, "blocked", STALLED if stands else LOST)
    awaited = (
        Evidence(series_name(AWAITED, labels), 1.0, 1.0, "the rank that others wait for")
        for labels in facts.series(AWAITED)
    )
    cause = "stalled_collective" if stands else "straggler"
    return Verdict(cause, shares["blocked"], (ledger, *awaited))


def _lost_to(state: str, cause: str, threshold: float) -> Rule:
    """A rule that needs only the ledger."""

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
        return braked  # at the board's default limit, a GPU does all it can
    lowered = Evidence(
        series_name(POWER_LIMIT, at), limit / default, LIMIT_LOWERED, "enforced over default limit"
    )
    return Verdict("power", capped.share, (*capped.evidence, lowered))


def _held_down(
    facts: Facts, at: tuple[str, str], reasons: Iterable[str], cause: str
) -> Verdict | None:
    evidence = tuple(
        Evidence(
            series_name(THROTTLED, (*at, reason)),
            rate,
            THROTTLED_SHARE,
            "share of time with the clocks throttled",
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
                    series_name(ACTIVE, (*at, "tensor")),
                    tensor / work,
                    TENSOR_IDLE,
                    "share of the compute time with tensor cores active",
                ),
                Evidence(
                    series_name(ACTIVE, (*at, pipe)),
                    busy / work,
                    PIPE_BUSY,
                    f"share of the compute time with the {pipe} pipe active",
                ),
            )
            return Verdict("precision", work, evidence)
    return None


def _capacity(facts: Facts, at: tuple[str, str], shares: dict[str, float]) -> Verdict | None:
    total, used = facts.now(MEMORY_TOTAL, *at), facts.now(MEMORY_USED, *at)
    usable = (total or 0.0) - (facts.now(MEMORY_RESERVED, *at) or 0.0)
    if used is None or usable <= 0 or used / usable < MEMORY_FULL or shares["free"] >= BOUND:
        return None
    series = series_name(MEMORY_USED, at)
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
USED = frozenset(
    {
        ACTIVE,
        AWAITED,
        MEMORY_RESERVED,
        MEMORY_TOTAL,
        MEMORY_USED,
        POWER_DEFAULT_LIMIT,
        POWER_LIMIT,
        SECONDS,
        THROTTLED,
        disk.BUSY,
        job.BUSIEST_THREAD,
        job.PRESSURE_WAITING,
        job.QUOTA_PERIODS,
        job.QUOTA_THROTTLED_PERIODS,
        job.SHM_SIZE,
        job.SHM_USED,
        pressure.WAITING,
        steps.LAST_STEP,
        steps.MEDIAN,
        *(metric for pair in REMOTE for metric in pair),
    }
)
"""The metrics that the rules use; ``Facts`` knows no others."""


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


def _state(at: tuple[str, str], shares: dict[str, float], state: str, threshold: float) -> Evidence:
    meaning = f"share of time: {STATES[state]}"
    return Evidence(series_name(SECONDS, (*at, state)), shares[state], threshold, meaning)
