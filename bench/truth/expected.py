"""Which causes a verdict on a generated program may rightly name, by what its GPU really did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bench.truth.drawn import (
    COMMUNICATION,
    COPYING,
    LAUNCH,
    LOADING,
    Parameters,
)
from bench.truth.workloads import HEALTHY, HOST

LOST = {
    "starved": 0.1,
    "communication": 0.25,
    "blocked": 0.1,
    "copy": 0.1,
}
"""From which share of the time a loss is named; as ``gpunode.verdict`` does."""

CLOSE = 0.7
"""At this part of the largest loss, another may be named as well."""

DOUBTFUL = 1.5
"""Up to this many times the share from which it is named, a loss need not be named."""

NOT_AWAKE = "unexplained no_requests"
"""For a host that sleeps or waits: nothing says for what."""

OF_GAPS = {"sleep": NOT_AWAKE, "lock": NOT_AWAKE, "burn": HOST, "none": ""}

OF_FAMILIES = {
    "attention_lengths": f"compile {HOST}",
    "compiled": f"compile {HOST}",
    "files": f"data_loading_storage {COPYING} {HOST}",
    "copies": f"{COPYING} {HOST}",
    "allocator": "memory_allocation",
    "preparation": HOST,
    "offload": f"{COPYING} {HOST}",
    "threads": HOST,
    "one_core": f"{LOADING} {HOST}",
    "optimizer": f"{LAUNCH} {HOST}",
    "objects": f"unexplained straggler {HOST}",
    "late_ranks": f"{NOT_AWAKE} straggler {HOST}",
}
"""Why the GPU of a program of that family has nothing to run, beside the drawn gaps."""


SHORT = 0.5
"""From this part of the time without work, gaps are short enough for launches to be the cause."""


def expected(family: str, drawn: Parameters, truth: Mapping[str, float], short: float) -> list[str]:
    """The causes of which each is right on one GPU, given the true shares of its time.

    ``short`` is the share of gaps that are too short for anything but a launch.
    """
    losses = {s: truth.get(s, 0.0) for s, least in LOST.items() if truth.get(s, 0.0) >= least}
    largest = max(losses.values(), default=0.0)
    found: list[str] = []
    for state, share in losses.items():
        if share >= CLOSE * largest:
            found += _state_causes(state, family, drawn, short >= SHORT * truth.get("starved", 0.0))
    if all(share < DOUBTFUL * LOST[state] for state, share in losses.items()):
        found += [*HEALTHY.split(), "precision", "power", "thermal"]
    return sorted(set(found))


def _state_causes(state: str, family: str, drawn: Parameters, launches: bool) -> Iterator[str]:
    """The causes of the time in a state."""
    if state == "communication":
        yield COMMUNICATION
    elif state == "blocked":
        yield "straggler"
        if drawn.get("collective"):
            yield COMMUNICATION  # one that is small is mostly a wait for the peer's launch
    elif state == "copy":
        yield COPYING
    else:
        gaps = list(_of_the_host(family, drawn))
        yield from gaps
        if launches or not gaps:
            yield LAUNCH
        if not gaps:
            yield from (*HOST.split(), *NOT_AWAKE.split())


def _of_the_host(family: str, drawn: Parameters) -> Iterator[str]:
    """What the host is known to do while the GPU has nothing to run."""
    gaps = [drawn, *drawn.get("gaps", [])]
    for each in gaps:
        yield from OF_GAPS[each.get("gap", "none")].split()
    yield from OF_FAMILIES.get(family, "").split()
    if family == "loader":
        yield LOADING
        if drawn["waits"]:
            yield from ("data_loading_storage", "unexplained")
    if drawn.get("pinned") is False and drawn.get("direction"):
        yield COPYING
    if drawn.get("empty_cache"):
        yield "memory_allocation"
