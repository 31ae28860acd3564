"""Profiles every Nth training step with torch.profiler, unless that leaves the job slower.

A process that was traced once may launch kernels more slowly for as long as it lives, because CUPTI
stays attached: https://github.com/pytorch/pytorch/issues/144455. So steps are measured before the
first profile and after it, and where they have become longer it was the last.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median, quantiles
from time import perf_counter
from typing import Any

log = logging.getLogger(__name__)

MEASURED = 20
"""Steps that are measured before the first profile, and after it."""

SETTLES = 2
"""Steps after a profile that are not measured: to end it takes up to a second."""

LONGER = 1.03
"""From this multiple on, steps have become longer, where most are longer than before."""


class StepProfiler:
    """Starts and stops profiles; call it at the end of every step."""

    def __init__(self, every: int, report: Callable[[dict[str, float]], None]) -> None:
        self.every = max(2, every)
        self.report = report
        self.steps = 0
        self._running: Any = None
        self._before = deque[float](maxlen=MEASURED)
        self._after: list[float] | None = None
        """Seconds of the steps after the first profile, until they have been judged."""

        self._judged = False
        self._ended = perf_counter()

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
        now = perf_counter()
        seconds, self._ended = now - self._ended, now
        if self._running is not None:
            self._running.stop()
            self.report(kernel_seconds(self._running))
            self._running = None
            self._ended = perf_counter()
        elif self._after is not None and not self._judged:
            self._after.append(seconds)
            if len(self._after) == MEASURED + SETTLES:
                self._judge(self._before, self._after[SETTLES:])
        elif not self._judged:
            self._before.append(seconds)
        if self.steps % self.every == 0 and self._may_profile():
            self._after = [] if self._after is None else self._after
            self._running = _quiet(profiler.profile)
            self._running.start()

    def _may_profile(self) -> bool:
        """Whether enough is measured for the first profile, or the first did no harm."""
        return self._judged or (self._after is None and len(self._before) == MEASURED)

    def _judge(self, before: Sequence[float], after: Sequence[float]) -> None:
        """Stop for good if the first profile has made steps longer."""
        self._judged = True
        had, has = median(before), median(after)
        if has < LONGER * had or has <= quantiles(before, n=4)[2]:
            return
        self.every = sys.maxsize
        log.warning(
            "gpunode.client.profile: a step takes %.3g ms since the first profile, and took "
            "%.3g ms before it, so no other step is profiled",
            1e3 * has,
            1e3 * had,
        )


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
