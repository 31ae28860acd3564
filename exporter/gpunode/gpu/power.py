"""Power draw of one GPU: 50 Hz samples, the energy they add up to, and their period."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.driver.driver import Gpu, PowerLimits, known
from gpunode.gpu import GPU
from gpunode.gpu.buffers import LIMIT_RATIOS, PowerBuffer, PowerWindow
from gpunode.gpu.due import Due
from gpunode.gpu.rhythm import Rhythm
from gpunode.metric import Metric, Sample

POWER = Metric(
    "gpunode_gpu_power_watts",
    "gauge",
    "Mean power draw over the last window, from the driver's 50 Hz sample buffer (else "
    "nvmlDeviceGetPowerUsage, a mean over one second).",
    GPU,
)
POWER_LIMIT = Metric(
    "gpunode_gpu_power_limit_watts",
    "gauge",
    "Power limit enforced by the driver (nvmlDeviceGetEnforcedPowerLimit).",
    GPU,
)
POWER_DEFAULT_LIMIT = Metric(
    "gpunode_gpu_power_default_limit_watts",
    "gauge",
    "Default power limit of the board (nvmlDeviceGetPowerManagementDefaultLimit).",
    GPU,
)
DRAW = Metric(
    "gpunode_gpu_power_draw_ratio",
    "histogram",
    "50 Hz samples of the power draw as a share of the enforced limit.",
    GPU,
    LIMIT_RATIOS,
)
SWINGS = Metric(
    "gpunode_gpu_power_swings_total",
    "counter",
    "Drops of the power draw from near its recent peak to near its recent floor, at 50 Hz.",
    GPU,
)
ENERGY = Metric(
    "gpunode_gpu_energy_joules_total",
    "counter",
    "Energy since the daemon started, from 50 Hz samples calibrated with the driver's counter.",
    GPU,
)
STEP_PERIOD = Metric(
    "gpunode_gpu_step_period_seconds",
    "gauge",
    "Period of the power draw, an estimate of the training step time; absent if there is no clear "
    "period (autocorrelation of 50 Hz samples).",
    GPU,
)
METRICS = (POWER, POWER_LIMIT, POWER_DEFAULT_LIMIT, DRAW, SWINGS, ENERGY, STEP_PERIOD)

LIMITS_EVERY = 300.0
"""Seconds between reads of the limits, which rarely change."""

ENERGY_EVERY = 120.0
"""Seconds between reads of the energy counter, which costs 3.5 ms."""

RHYTHM_EVERY = 60.0
"""Seconds between searches for the step period, which cost 5 ms."""

PLAUSIBLE = (0.8, 1.25)
"""Energy counter over samples; outside, the counter was reset or samples are missing."""


class Power:
    """Keeps the power draw, energy and step period of one GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.labels = gpu.identity.labels
        self.buffer = PowerBuffer(gpu)
        self.limits: PowerLimits | None = None
        self.joules: float | None = None
        self.step_period: float | None = None
        self._rhythm = Rhythm()
        self._limits_due = Due(LIMITS_EVERY)
        self._rhythm_due = Due(RHYTHM_EVERY)
        self._calibration_due = Due(ENERGY_EVERY)
        self._calibrated_at: tuple[float, float] | None = None
        self._factor = 1.0
        self._counted = 0.0

    def drain(self, now: float) -> PowerWindow | None:
        """The samples since the last call; None if the GPU keeps none."""
        if self._limits_due.at(now):
            self.limits = known(self.gpu.power_limits)
        return self.buffer.drain(self.limits.enforced if self.limits else None)

    def count(self, window: PowerWindow | None, now: float) -> None:
        """Add the samples of a window to the energy, and search for their period."""
        if window is not None:
            self._rhythm.add(window.samples)
            self._count_energy(now)
        if self._rhythm.full and self._rhythm_due.at(now):
            self.step_period = self._rhythm.period()

    def _count_energy(self, now: float) -> None:
        """Add the samples' integral, scaled as at the last read of the energy counter."""
        total = self.buffer.joules
        self.joules = (self.joules or 0.0) + (total - self._counted) * self._factor
        self._counted = total
        if not self._calibration_due.at(now):
            return
        counter = known(self.gpu.energy)
        if counter is None:
            return
        before, self._calibrated_at = self._calibrated_at, (counter, total)
        if before is not None and total > before[1]:
            factor = (counter - before[0]) / (total - before[1])
            if PLAUSIBLE[0] < factor < PLAUSIBLE[1]:
                self._factor = factor

    @property
    def mean(self) -> float | None:
        """Mean in watts over all samples, or None if there are none."""
        return self.buffer.joules / self.buffer.seconds if self.buffer.seconds else None

    def samples(self, window: PowerWindow | None) -> Iterator[Sample]:
        """The metrics to export after a window."""
        mean, at = window.mean if window else None, self.labels
        yield from POWER.at(known(self.gpu.power) if mean is None else mean, *at)
        if self.limits is not None:
            yield from POWER_LIMIT.at(self.limits.enforced, *at)
            yield from POWER_DEFAULT_LIMIT.at(self.limits.default, *at)
        if self.joules is not None:
            yield Sample(DRAW, at, self.buffer.share_of_limit.copy())
            yield from SWINGS.at(float(self.buffer.swings), *at)
            yield from ENERGY.at(self.joules, *at)
        yield from STEP_PERIOD.at(self.step_period, *at)
