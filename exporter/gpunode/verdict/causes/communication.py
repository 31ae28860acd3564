"""The GPU exchanges data with its peers, or waits for one of them."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.driver.driver import DIRECTIONS
from gpunode.gpu.activity import BLOCKED_STREAK, LEDGER_SENSOR, STALL_FROM
from gpunode.gpu.models import MEASURED_ON_H200
from gpunode.gpu.nvlink import NVLINK_SPEED
from gpunode.gpu.units import NVLINK_BYTES, PCIE_BYTES
from gpunode.jobs.owners import NCCL_SETTING
from gpunode.nccl.ras import AWAITED
from gpunode.verdict.case import POSITION_PREFIX, Case, Evidence
from gpunode.verdict.causes.cause import MIN_LOSS, Cause, Effect, OwnLoss, Remedy, state_loss
from gpunode.verdict.causes.limits import LAUNCHES
from gpunode.verdict.engine import USES as OF_ENGINE
from gpunode.verdict.engine import engine_of, no_requests
from gpunode.verdict.facts import series_name
from gpunode.verdict.reasons import FINITE_REASONS, REASONS, WAITED_FOR
from gpunode.words import CAUSES as WORDS

COMMUNICATES = 0.25
"""Minimum share of time for exposed communication to count; healthy training has some."""

FORWARD = 1 / 3
"""Share of the forward pass in the time of a step; the backward pass takes twice as long."""

HOST_STATES = ("starved", "copy")
"""States in which a rank is late for what its host does."""

COUNTERS = ("gpm", "dcgm")
"""The sensors that count what SMs do and what goes over PCIe."""

P2P_OFF = ("NCCL_P2P_DISABLE", "1")
"""The setting with which NCCL copies through the host's memory between GPUs of a node:
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-p2p-disable"""

STALLED = 6.0
"""A collective has stalled if every window was `blocked` for this many seconds."""

BY_TURNS = 1.25
"""How many times as long as a peer's gaps a rank waits at most, if these are what it waits for."""


def _overlapped(case: Case) -> float:
    """Gradients are sent while the backward pass goes on; over NVLink, if they take another way.

    A collective takes as long as its bytes over NVLink then. One that goes over NVLink already
    takes as long as it did, and is hidden but for the part that the forward pass has of the time.
    """
    share = case.shares["communication"]
    rest = 1.0 - share - case.shares["blocked"]
    if around := _around_nvlinks(case):
        speed = case.now(NVLINK_SPEED) * MEASURED_ON_H200.nvlink_of_collective
        return max(rest, around.value / speed)
    return max(rest, share) + FORWARD * min(rest, share)


def _around_nvlinks(case: Case) -> Evidence | None:
    """That more goes over PCI Express, both ways, than over NVLinks that are up."""
    sent, received = (case.rate(PCIE_BYTES, way) for way in DIRECTIONS)
    nvlink = max(case.rate(NVLINK_BYTES, way) for way in DIRECTIONS)
    if not case.now(NVLINK_SPEED) or min(sent, received) <= nvlink:
        return None
    way = DIRECTIONS[sent > received]
    meaning = (
        "bytes per second over PCI Express; the NVLinks are up and carry less: data goes around "
        "them, as with NCCL_P2P_DISABLE=1"
    )
    return case.evidence(PCIE_BYTES, min(sent, received), nvlink, meaning, way)


def _p2p_off(case: Case) -> Evidence | None:
    """That NCCL may not use the way between the GPUs of the job on this node."""
    if not case.now(NCCL_SETTING, *P2P_OFF) or not case.peers:
        return None
    meaning = f"{'='.join(P2P_OFF)} is in the environment of a process on the GPU"
    return case.evidence(NCCL_SETTING, 1.0, 1.0, meaning, *P2P_OFF)


def _communicates(case: Case) -> Effect | None:
    found = state_loss("communication", COMMUNICATES).look(case)
    if found is None:
        return None
    off = _p2p_off(case)
    return Effect(found.share, (*found.evidence, *_ways(case), *((off,) if off else ())))


def _ways(case: Case) -> Iterator[Evidence]:
    """What goes over PCI Express and over NVLinks, each beside the other."""
    sent, received = (case.rate(PCIE_BYTES, way) for way in DIRECTIONS)
    moved = {way: case.facts.rate(NVLINK_BYTES, *case.at, way) for way in DIRECTIONS}
    nvlink = {way: rate for way, rate in moved.items() if rate is not None}
    around, pcie = _around_nvlinks(case), max(sent, received)
    if around:
        yield around
    elif pcie:
        meaning, way = "bytes per second over PCI Express", DIRECTIONS[received > sent]
        yield case.evidence(PCIE_BYTES, pcie, max(nvlink.values(), default=0.0), meaning, way)
    if nvlink:
        way = max(nvlink, key=lambda each: nvlink[each])
        meaning = "bytes per second over the NVLinks"
        if not nvlink[way]:
            meaning += ", which move nothing"
        yield case.evidence(NVLINK_BYTES, nvlink[way], pcie, meaning, way)


COMMUNICATION = Cause(
    name="communication",
    named_when=(
        "data moves between GPUs or nodes for at least a quarter of the time, without "
        f"computation; the finding names `{'='.join(P2P_OFF)}` where it is set"
    ),
    looks=(OwnLoss(_communicates),),
    urgency="soon",
    closer=NCCL_SETTING,
    uses=(NCCL_SETTING, NVLINK_BYTES, NVLINK_SPEED, PCIE_BYTES),
    remedy=Remedy(
        ("communication",),
        WORDS["communication"].for_good,
        left=_overlapped,
        unsure=0.15,
    ),
    family="network",
)


def _balanced(case: Case) -> float | None:
    """No rank waits: each has the mean of what all do, and none is alone with gaps."""
    ranks = (case.shares, *case.peers)
    if len(ranks) < 2:
        return 1.0 - case.shares["blocked"]  # who is late is on another node
    least = {state: min(one[state] for one in ranks) for state in HOST_STATES}
    busy = [
        1.0 - one["blocked"] - sum(one[state] - least[state] for state in HOST_STATES)
        for one in ranks
    ]
    return sum(busy) / len(busy)


def _no_progress(case: Case) -> Effect | None:
    """Nothing has moved for longer than a collective takes."""
    streak = case.now(BLOCKED_STREAK)
    if streak < STALLED or no_requests(case) is not None:
        return None
    meaning = "seconds for which nothing moved and nothing was launched"
    ledger = case.evidence(BLOCKED_STREAK, streak, STALLED, meaning)
    return Effect(1.0, (ledger, *_missing_counters(case), *_requests(case), *_late_ranks(case)))


def _requests(case: Case) -> Iterator[Evidence]:
    """Evidence that a server has running requests."""
    engine = engine_of(case)
    if engine is not None and engine.least("running") > 0:
        yield engine.running()


def _missing_counters(case: Case) -> Iterator[Evidence]:
    """That no counters of SMs and PCIe were read, without which nothing tells launches."""
    used = {sensor: case.now(LEDGER_SENSOR, sensor) for sensor in _sensors(case)}
    if used and not any(used.values()):
        meaning = (
            "less certain: there are no counters of SMs and of launches, so that utilisation, draw "
            "and NVLink alone tell; a loop of tiny kernels would look the same"
        )
        yield case.evidence(LEDGER_SENSOR, 0.0, 1.0, meaning, next(iter(used)))


def _sensors(case: Case) -> Iterator[str]:
    """The counters that the ledger would use, or uses."""
    for _, _, sensor in case.facts.series(LEDGER_SENSOR, *case.at):
        if sensor in COUNTERS:
            yield sensor


def _at_work(case: Case) -> bool:
    """Whether a peer is seen to do what ends by itself."""
    return any(late.reason in FINITE_REASONS for late in case.waits_for)


def _late_ranks(case: Case) -> Iterator[Evidence]:
    """The ranks for which a GPU waits, by this node and by NCCL."""
    for late in case.waits_for:
        series = series_name(WAITED_FOR, (*late.at, late.reason))
        meaning = f"the GPU that others wait for: {REASONS[late.reason].meaning}"
        yield Evidence(series, 1.0, 1.0, meaning)
        if late.where:
            yield Evidence(series, 1.0, 1.0, f"{POSITION_PREFIX}{late.where}")
    for labels in case.facts.series(AWAITED):
        yield Evidence(series_name(AWAITED, labels), 1.0, 1.0, "the rank that others wait for")


def _wait_for_each_other(case: Case) -> bool:
    """Whether each rank waits for the others, as all of them launch too slowly: nobody is late.

    None waits longer than the gaps of another explain.
    """
    ranks = (case.shares, *case.peers)
    gaps = [one["starved"] for one in ranks]
    short_gaps = (case.short_gaps, *case.short_gaps_of_peers)
    return len(ranks) > 1 and all(
        MIN_LOSS <= one["blocked"] <= BY_TURNS * max(gaps[:at] + gaps[at + 1 :])
        and short >= LAUNCHES
        for at, (one, short) in enumerate(zip(ranks, short_gaps, strict=True))
    )


def _straggler(case: Case) -> Effect | None:
    """Waiting for a peer that is slow, or at work on something else."""
    if still := _no_progress(case):
        return still if _at_work(case) else None
    share = case.shares["blocked"]
    if (
        share < MIN_LOSS
        or no_requests(case) is not None
        or (case.peers_starve and case.without_work >= MIN_LOSS)
        or _wait_for_each_other(case)
    ):
        return None
    return Effect(share, (case.state("blocked", MIN_LOSS), *_late_ranks(case)))


STRAGGLER = Cause(
    name="straggler",
    named_when=(
        "the GPU spins in a collective (`blocked`) until a peer arrives, and the ranks do not "
        "merely take turns; the evidence names the peer"
    ),
    looks=(OwnLoss(_straggler),),
    uses=(*OF_ENGINE, AWAITED, BLOCKED_STREAK, LEDGER_SENSOR),
    urgency="soon",
    remedy=Remedy(
        ("blocked",),
        WORDS["straggler"].for_good,
        left=_balanced,
        unsure=0.2,
    ),
    family="peers",
    waits_for_peers=True,
)


def _stalled(case: Case) -> Effect | None:
    """Waiting for a peer that does not come, unless it is seen at work."""
    return None if _at_work(case) else _no_progress(case)


STALLED_COLLECTIVE = Cause(
    name="stalled_collective",
    named_when=(
        "the GPU has spun for six seconds while nothing moved and nothing was launched, and no "
        "peer is seen evaluating, saving or preparing data; without counters of SMs, for "
        f"{STALL_FROM:g} seconds near the draw of a resting GPU"
    ),
    looks=(OwnLoss(_stalled),),
    uses=(*OF_ENGINE, AWAITED, BLOCKED_STREAK, LEDGER_SENSOR),
    urgency="now",
    remedy=Remedy(("blocked", "idle"), WORDS["stalled_collective"].for_good),
    family="peers",
    waits_for_peers=True,
)

CAUSES = (COMMUNICATION, STRAGGLER, STALLED_COLLECTIVE)
