"""The GPU is at a limit of its own: of launches, clocks, pipes or memory."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from gpunode.gpu.activity import (
    MEMORY_RESERVED,
    MEMORY_TOTAL,
    MEMORY_USED,
    SECONDS,
    SM_CLOCK,
    SM_CLOCK_MAX,
    TEMPERATURE,
)
from gpunode.gpu.health import THROTTLED
from gpunode.gpu.models import MEASURED_ON_H200
from gpunode.gpu.power import POWER_DEFAULT_LIMIT, POWER_LIMIT
from gpunode.gpu.units import ACTIVE
from gpunode.verdict.case import Case, Evidence, per_second
from gpunode.verdict.causes.cause import BOUND, Bounds, Cause, Effect, OwnLoss, Remedy
from gpunode.words import CAUSES as WORDS

LAUNCHES = 0.15
"""Minimum share of time in gaps between kernels to count; healthy training has half of it."""

THROTTLED_SHARE = 0.05
"""Minimum share of time with throttled clocks for throttling to count."""

LIMIT_LOWERED = 0.95
"""A power limit below this share of the default counts as lowered."""

TENSOR_IDLE = 0.05
"""Below this tensor share of the compute time, matrix products do not use tensor cores."""

PIPE_BUSY = 0.25
"""At this share of the compute time, the FP32 or FP64 pipe does matrix products: elementwise
kernels and Fourier transforms stay below."""

TENSOR_CORES = 5.2
"""How many times as fast matrix products of models are on tensor cores as on the FP32 pipe: half of
what the datasheet of Hopper says of TF32 (7.4) and BF16 (14.8), the geometric mean."""

MEMORY_BUSY = 0.4
"""Minimum HBM share for its bandwidth to bound the work."""

MEMORY_FULL = 0.97
"""At this share in use, excluding the driver's reserve, the frame buffer is full."""


HEAT = ("sw_thermal", "hw_thermal")
BRAKE, CAP = "hw_power_brake", "sw_power_cap"
"""Reasons for which clocks are throttled."""


def _launches(case: Case) -> Effect | None:
    share = case.short_gaps
    return Effect(share, (case.launches(LAUNCHES),)) if share >= LAUNCHES else None


KERNEL_LAUNCH = Cause(
    name="kernel_launch",
    named_when=(
        f"gaps of less than 20 ms between kernels take at least {LAUNCHES:g} of the time, as the "
        "draw shows, which does not fall to that of a resting GPU"
    ),
    looks=(OwnLoss(_launches),),
    urgency="soon",
    remedy=Remedy(("starved",), WORDS["kernel_launch"].for_good, unsure=0.22),
    family="host",
    slows_its_gpu=True,
)


def _reached(case: Case) -> tuple[float, float]:
    """What the pipes do over what they reach at most, and the same of HBM."""
    tensor, *others, dram = (
        case.rate(ACTIVE, unit) for unit in ("tensor", "fp32", "fp64", "fp16", "dram")
    )
    most = MEASURED_ON_H200
    return max(tensor / most.tensor, sum(others) / most.pipe), dram / most.dram


def arithmetic(case: Case) -> float:
    """How much of what the kernels do is arithmetic rather than access to HBM; 1 if not known."""
    pipes, memory = _reached(case)
    return pipes / (pipes + memory) if pipes + memory else 1.0


def bound_by_memory(case: Case) -> tuple[Evidence, ...]:
    """That kernels run for most of the time, and HBM is nearer to its limit than the pipes."""
    busy, (pipes, memory) = case.rate(ACTIVE, "dram"), _reached(case)
    if case.shares["compute"] < BOUND or busy < MEMORY_BUSY or memory <= pipes:
        return ()
    meaning = "share of time with HBM active, which is nearer to its limit than the pipes"
    active = case.evidence(ACTIVE, busy, MEMORY_BUSY, meaning, "dram")
    return case.state("compute", BOUND), active


def _unthrottled(case: Case, reasons: Iterable[str]) -> float | None:
    """The share of its time that a job takes where the clocks are not throttled for these reasons.

    Arithmetic takes less time in proportion to the clock, and only while it is throttled; the other
    states do not.
    """
    read, highest = case.facts.readings(SM_CLOCK, *case.at), case.now(SM_CLOCK_MAX)
    if not read or not highest:
        return None
    throttled = sum(case.rate(THROTTLED, reason) for reason in reasons)
    slower = min(throttled, 1.0 - fmean(clock for clock, _ in read) / highest)
    return 1.0 - case.shares["compute"] * arithmetic(case) * max(0.0, slower)


def _held_down(case: Case, reasons: Iterable[str]) -> Effect | None:
    """Clocks that are throttled for any of these reasons."""
    meaning = "share of time with the clocks throttled"
    evidence = tuple(
        case.evidence(THROTTLED, rate, THROTTLED_SHARE, meaning, reason)
        for reason in reasons
        if (rate := case.rate(THROTTLED, reason)) >= THROTTLED_SHARE
    )
    return Effect(max(e.value for e in evidence), evidence) if evidence else None


def _thermal(case: Case) -> Effect | None:
    found, heat = _held_down(case, HEAT), case.facts.now(TEMPERATURE, *case.at)
    if found is None or heat is None:
        return found
    hot = case.evidence(TEMPERATURE, heat, 0.0, "degrees Celsius at the GPU")
    return Effect(found.share, (*found.evidence, hot))


def _cooled(case: Case) -> float | None:
    return _unthrottled(case, HEAT)


THERMAL = Cause(
    name="thermal",
    named_when="heat held the clocks down",
    looks=(OwnLoss(_thermal),),
    uses=(ACTIVE, SM_CLOCK, SM_CLOCK_MAX, TEMPERATURE, THROTTLED),
    urgency="soon",
    remedy=Remedy((), WORDS["thermal"].for_good, left=_cooled, unsure=0.3),
    family="device",
    slows_its_gpu=True,
)


def _lowered_limit(case: Case) -> float | None:
    """The enforced power limit over the board's default, where somebody has lowered it."""
    limit, default = case.now(POWER_LIMIT), case.now(POWER_DEFAULT_LIMIT)
    share = limit / default if limit and default else 1.0
    return share if share < LIMIT_LOWERED else None


def _power(case: Case) -> Effect | None:
    braked, capped = _held_down(case, (BRAKE,)), _held_down(case, (CAP,))
    lowered = _lowered_limit(case)
    if capped is None or lowered is None:
        return braked  # at the board's default limit, a GPU does all it can
    meaning = "enforced over default limit"
    query = f"{case.series(POWER_LIMIT)} / {case.series(POWER_DEFAULT_LIMIT)}"
    limit = case.evidence(POWER_LIMIT, lowered, LIMIT_LOWERED, meaning, query=query)
    return Effect(capped.share, (*capped.evidence, limit))


def _at_default_limit(case: Case) -> float | None:
    return _unthrottled(case, (BRAKE,) if _lowered_limit(case) is None else (BRAKE, CAP))


POWER = Cause(
    name="power",
    named_when="a power brake, or a power limit below the board's default, held the clocks down",
    looks=(OwnLoss(_power),),
    uses=(ACTIVE, POWER_DEFAULT_LIMIT, POWER_LIMIT, SM_CLOCK, SM_CLOCK_MAX, THROTTLED),
    urgency="soon",
    remedy=Remedy(
        (),
        WORDS["power"].for_good,
        left=_at_default_limit,
        unsure=0.3,
    ),
    family="device",
    slows_its_gpu=True,
)


def _tensor_share(case: Case) -> float:
    """The matrix products take a fraction of their time."""
    products = case.shares["compute"] * arithmetic(case)
    return 1.0 - products * (1.0 - 1.0 / TENSOR_CORES)


def _precision(case: Case) -> Effect | None:
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
                _pipe_evidence(case, tensor / work, TENSOR_IDLE, idle, "tensor"),
                _pipe_evidence(case, busy, PIPE_BUSY, active, pipe),
            )
            return Effect(work, evidence)
    return None


def _pipe_evidence(case: Case, share: float, least: float, meaning: str, pipe: str) -> Evidence:
    """How long a pipe was active, as a share of the compute time."""
    active = per_second(case.series(ACTIVE, pipe))
    compute = per_second(case.series(SECONDS, "compute"))
    query = f"{active} / ignoring (unit, state) group_left {compute}"
    return case.evidence(ACTIVE, share, least, meaning, pipe, query=query)


PRECISION = Cause(
    name="precision",
    named_when=(
        "kernels run for at least half of the time, keep the FP32 or FP64 pipe busy for "
        f"{PIPE_BUSY:g} of it or more, and the tensor cores for less than {TENSOR_IDLE:g}"
    ),
    looks=(Bounds(_precision),),
    uses=(ACTIVE,),
    urgency="note",
    remedy=Remedy(
        (),
        WORDS["precision"].for_good,
        left=_tensor_share,
        unsure=0.09,
    ),
    family="device",
)


def _memory_bandwidth(case: Case) -> Effect | None:
    evidence = bound_by_memory(case)
    return Effect(case.shares["compute"], evidence) if evidence else None


MEMORY_BANDWIDTH = Cause(
    name="memory_bandwidth",
    named_when=(
        f"kernels run for at least half of the time, and HBM is active for {MEMORY_BUSY:g} of the "
        "time or more and nearer to its limit than the pipes are to theirs"
    ),
    looks=(Bounds(_memory_bandwidth),),
    uses=(ACTIVE,),
    urgency="fine",
    remedy=Remedy((), WORDS["memory_bandwidth"].for_good),
    family="device",
)


def _memory_capacity(case: Case) -> Effect | None:
    total, used = case.now(MEMORY_TOTAL), case.now(MEMORY_USED)
    usable = total - case.now(MEMORY_RESERVED)
    if usable <= 0 or used / usable < MEMORY_FULL or case.shares["free"] >= BOUND:
        return None
    meaning = "share of the frame buffer in use"
    reserved = case.facts.now(MEMORY_RESERVED, *case.at) is not None
    left = f" - {case.series(MEMORY_RESERVED)}" if reserved else ""
    query = f"{case.series(MEMORY_USED)} / ({case.series(MEMORY_TOTAL)}{left})"
    evidence = case.evidence(MEMORY_USED, used / usable, MEMORY_FULL, meaning, query=query)
    return Effect(1.0, (evidence,))


MEMORY_CAPACITY = Cause(
    name="memory_capacity",
    named_when="the GPU's memory is full",
    looks=(Bounds(_memory_capacity),),
    uses=(MEMORY_RESERVED, MEMORY_TOTAL, MEMORY_USED),
    urgency="note",
    remedy=Remedy((), WORDS["memory_capacity"].for_good),
    family="device",
)

CAUSES = (KERNEL_LAUNCH, THERMAL, POWER, PRECISION, MEMORY_BANDWIDTH, MEMORY_CAPACITY)
