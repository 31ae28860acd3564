"""What is seen of a GPU while a workload runs on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bench.truth.workloads import Workload


@dataclass(slots=True)
class GpuObservation:
    """What the daemon said of one GPU while a workload ran, and what the GPU really did.

    Answers that may change are kept with the time of each look.
    """

    workload: Workload
    gpu: int
    rank: int
    begin: float = 0.0
    end: float = 0.0
    failed: str = ""
    """Why there is no truth, or no workload."""

    windows: list[dict[str, Any]] = field(default_factory=list)
    truths: list[dict[str, float] | None] = field(default_factory=list)
    """For each window, the true share of each state if it is known."""

    verdicts: list[tuple[float, dict[str, Any] | None]] = field(default_factory=list)
    waited_for: list[tuple[float, str]] = field(default_factory=list)
    """The reason for which others wait for this GPU; empty while they do not."""

    kinds: list[tuple[float, str]] = field(default_factory=list)
    utilization: list[float] = field(default_factory=list)
    peer: str = ""
    """How the peer classified the GPU; empty if it did not."""

    stalled_at: float | None = None
    gone: bool = False
    """Whether the processes on the GPU ended before the workload did."""
