"""Profiles every Nth training step with torch.profiler."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)


class StepProfiler:
    """Starts and stops profiles; call it at the end of every step."""

    def __init__(self, every: int, report: Callable[[dict[str, float]], None]) -> None:
        self.every = max(2, every)
        self.report = report
        self.steps = 0
        self._running: Any = None

    def __call__(self) -> None:
        """Start or stop a profile if due; after a failure, stop profiling for good."""
        try:
            self._step()
        except (
            ArithmeticError,
            AttributeError,
            ImportError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            log.debug("gpunode stops profiling: %s", error)
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
    """A profile without PyTorch's warning about several cycles: this one has a single cycle."""
    try:
        return profile(acc_events=True)
    except TypeError:
        return profile()


def kernel_seconds(profile: Any) -> dict[str, float]:
    """Seconds by GPU kernel, or by operator if no kernel ran.

    Skips CPU events, which repeat the time of the kernels they launch, and user annotations, which
    repeat the time of everything in their block.
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
    """Microseconds on the GPU; the attribute's name depends on the version of PyTorch."""
    found = getattr(event, "self_device_time_total", None)
    return float(event.self_cuda_time_total if found is None else found)
