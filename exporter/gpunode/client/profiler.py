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
            self._running = _quiet(profiler.profile)
            self._running.start()


def _quiet(profile: Any) -> Any:
    """A profile that does not warn of cycles, of which it has one, where PyTorch would."""
    try:
        return profile(acc_events=True)
    except TypeError:
        return profile()


def kernel_seconds(profile: Any) -> dict[str, float]:
    """Seconds by kernel on the GPU, or by operator where there was none.

    What the CPU did is listed too, and has the time of the kernels that it started once more; a
    block that the user named has all of its time.
    """
    averages = profile.key_averages()
    kernels = [
        a
        for a in averages
        if a.device_type.name != "CPU" and not getattr(a, "is_user_annotation", False)
    ]
    seconds = {e.key: _on_gpu(e) / 1e6 for e in kernels}
    if not any(seconds.values()):
        seconds = {e.key: e.self_cpu_time_total / 1e6 for e in averages}
    return {name: s for name, s in seconds.items() if s > 0}


def _on_gpu(event: Any) -> float:
    """Microseconds, under the name of this version of PyTorch."""
    found = getattr(event, "self_device_time_total", None)
    return float(event.self_cuda_time_total if found is None else found)
