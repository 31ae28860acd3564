"""The figures of Fleet agree with one another at each moment, also while a job begins or ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.dashboards.promtool import Found, promtool, with_labels
from tests.dashboards.sums import (
    AT_ANY_TIME,
    GPUS,
    HELD,
    HELD_UP,
    PLACES,
    SHARES,
    STATES,
    SUMS,
    WAITS,
    impossible,
)

ENDS = 40
BEGINS, STALLS, STOPS = 8, 14, 24
"""Minutes in which a job takes two of four GPUs, waits for something, and gives them back."""


def gpu(number: int) -> dict[str, str]:
    return {"cluster": "c", "instance": "n", "gpu": str(number), "uuid": f"GPU-{number}"}


def given() -> Iterator[tuple[str, str]]:
    """Two GPUs of the job, one that a process of nobody known uses, and one that is free."""
    owner = {
        **dict.fromkeys(("owner_container", "slurm_job", "user"), ""),
        "owner_namespace": "team",
        "owner_pod": "train-0",
        "workload": "train",
        "via": "kubelet",
    }
    target = {"cluster": "c", "instance": "n", "job": "gpunode", "rack": "r1"}
    yield with_labels("up", target), f"1x{ENDS}"
    for number in range(4):
        own = gpu(number)
        of_job = number < 2
        yield with_labels("gpunode_gpu_info", {**own, "name": "NVIDIA H200"}), f"1x{ENDS}"
        lasts = STOPS - BEGINS
        if of_job:
            held = f"_x{BEGINS} 1x{lasts} stale"
            yield with_labels("gpunode_gpu_owner_info", {**own, **owner}), held
        shm = f"_x{STALLS} 0+60x{STOPS - STALLS - 1} stale" if of_job else f"0+60x{ENDS}"
        if of_job or number == 2:
            yield with_labels("gpunode_gpu_held_up_seconds", {**own, "cause": "shm"}), shm
        free = f"0+60x{BEGINS} {60 * BEGINS}+0x{lasts} {60 * BEGINS}+60x{ENDS}"
        used = f"0+0x{BEGINS} 0+60x{lasts} {60 * lasts}+0x{ENDS}"
        always, never = f"0+60x{ENDS}", f"0x{ENDS}"
        shares = (free, used) if of_job else (never, always) if number == 2 else (always, never)
        for state, values in zip(("free", "starved"), shares, strict=True):
            yield with_labels("gpunode_gpu_seconds_total", {**own, "state": state}), values


def test_no_more_is_held_up_than_held_nor_held_than_there_is(tmp_path: Path) -> None:
    asks: dict[tuple[int, str], Found] = {}
    for minute in range(3, ENDS - 1):
        for less, more in AT_ANY_TIME:
            asks[minute, f"({SUMS[less]}) > ({SUMS[more]})"] = []
    for minute, held, held_up in ((5, 1, 1), (12, 3, 1), (20, 3, 3), (34, 1, 1)):
        asks[minute, SUMS[GPUS]] = [({}, 4.0)]
        asks[minute, SUMS[HELD]] = [({}, float(held))]
        asks[minute, SUMS[HELD_UP]] = [({}, float(held_up))]
    told = promtool(tmp_path, given(), asks, recorded=True)
    assert not told, told[:3000]


def test_no_gpu_does_more_than_all_the_time(tmp_path: Path) -> None:
    """Of a counter that steps every two seconds, scrapes 15 seconds apart see 14 or 16 more."""
    seen = [0]
    for number in range(24):
        seen.append(seen[-1] + 14 + 2 * (number % 5 > 0))
    of = {
        state: with_labels("gpunode_gpu_seconds_total", {**gpu(0), "state": state})
        for state in ("blocked", "compute")
    }
    given = {of["blocked"]: " ".join(map(str, seen)), of["compute"]: "0x24"}
    whole: Found = [({}, 1.0)]
    by_rate = f"max (max_over_time(rate({of['blocked']}[1m])[5m:15s])) > bool 1"
    asks = {(6, by_rate): whole, (6, SUMS[WAITS]): whole, (6, SUMS[STATES]): whole}
    told = promtool(tmp_path, given, asks, interval="15s")
    assert not told, told


def found(**changed: float) -> Callable[[str], float]:
    """Figures that agree, but for those that are changed."""
    whole = {**dict.fromkeys(SUMS, 12.0), **dict.fromkeys(SHARES, 0.5), **changed}
    return {SUMS[name]: value for name, value in whole.items()}.__getitem__


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, []),
        ({HELD: 11.0, "Jobs that lose most": 3.0}, ["Held up is 12, and Held 11"]),
        ({"useful now": 1.2}, ["useful now is 1.2"]),
        ({WAITS: 1.02}, [f"{WAITS} is 1.02"]),
        ({STATES: 12.2}, [f"{STATES} is 12.2, and GPUs, whole fleet 12"]),
        ({HELD: math.nan}, ["Held is nan, and GPUs, whole fleet 12"]),
        ({HELD_UP: 11.0}, 4),
        ({PLACES: 13.0}, ["Racks and fabric, whole fleet is 13, and Held up 12"]),
    ],
)
def test_what_cannot_be_is_told_before_a_picture_is_taken(
    changed: dict[str, float], says: list[str] | int
) -> None:
    told = list(impossible(found(**changed)))
    if isinstance(says, int):
        assert len(told) == says
    else:
        assert set(says) <= set(told)
        assert bool(told) is bool(says)
