"""Profiles one training step in so many with torch.profiler."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)


class StepProfiler:
    """Called at the end of every step."""

    def __init__(self, every: int, report: Callable[[dict[str, float]], None]) -> None:
        self.every = max(2, every)
        self.report = report
        self.steps = 0
        self._running: Any = None

    def __call__(self) -> None:
        """Begin or end a profile where it is time; a profiler that fails is not tried again."""
        try:
            self._step()
        except (AttributeError, ImportError, RuntimeError, TypeError, ValueError) as error:
            log.debug("gpunode cannot profile: %s", error)
            self.every = sys.maxsize

    def _step(self) -> None:
        from torch import profiler

        self.steps += 1
        if self._running is not None:
            self._running.stop()
            self.report(kernel_seconds(self._running))
            self._running = None
        if self.steps % self.every == 0:
            self._running = profiler.profile()
            self._running.start()


def kernel_seconds(profile: Any) -> dict[str, float]:
    """Seconds by kernel on the GPU, or by operator where there was none."""
    averages = profile.key_averages()
    for attribute in ("self_device_time_total", "self_cuda_time_total", "self_cpu_time_total"):
        seconds = {a.key: getattr(a, attribute, 0) / 1e6 for a in averages}
        if any(seconds.values()):
            return {name: s for name, s in seconds.items() if s > 0}
    return {}
