"""What a recording rule says, and what its test is given.

Names are level:metric:operation. https://prometheus.io/docs/practices/rules/#naming
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from alerts.thresholds.row import IDENTITY, Given, Interval, ledger, owner, series

EVERY: Interval = "30s"
"""The usual time between two evaluations."""

AT_ONCE: Interval = "15s"
"""Where seconds count."""


FOR_HOURS: Interval = "1m"
"""For what looks back on an hour."""

FOR_DAYS: Interval = "4m"
"""For what reads much to look back on an hour or on days. It is a divisor of the hour, so that each
hour has a first evaluation."""

DAY = "[1d:15m]"
"""A look at each quarter of the last day: over a fleet, reading every sample of a day would take
longer than the time between two evaluations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A recording rule and its test."""

    name: str
    labels: tuple[str, ...]
    """The labels that its series have."""

    interval: Interval = EVERY
    expression: str
    purpose: str
    given: Given
    """Series of the test: the value of a gauge, or what a counter gains a second."""

    results: Mapping[tuple[str, ...], float]
    """Some of the series that come out, by the values of their labels after ``cluster``."""


OF_JOB = IDENTITY["job"]
OF_GPU = IDENTITY["gpu"]
OF_NODE = IDENTITY["node"]

NODE_A = "node-a"
GPU_A = ("0", "GPU-a")
"""The node and the GPU of the tests, which are added to the series they are given."""

A = (NODE_A, *GPU_A)
B = (NODE_A, "1", "GPU-b")
ON_B = {"gpu": "1", "uuid": "GPU-b"}

HALF = ledger(starved=0.25, blocked=0.25)
HELD: Given = {owner(owner_pod="train-0"): 1.0}
HELD_B: Given = {owner(owner_pod="train-1", **ON_B): 1.0}
"""A job on both GPUs of the tests."""

TRAIN = ("", "train", "", "")
"""The labels of that job after ``cluster``."""

TRAINS: Given = {**HELD, series("gpunode_gpu_workload", kind="training"): 1.0}
TRAINS_B: Given = {**HELD_B, series("gpunode_gpu_workload", kind="training", **ON_B): 1.0}
WORKLESS = series("gpunode_job_workless_seconds")
WORKLESS_B = series("gpunode_job_workless_seconds", **ON_B)
STREAK_B = series("gpunode_gpu_blocked_streak_seconds", **ON_B)
STREAK = series("gpunode_gpu_blocked_streak_seconds")
