"""Power draw of one GPU: 50 Hz samples, the energy by state, and their period."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpunode.driver.driver import Gpu, PowerLimits
from gpunode.gpu import GPU
from gpunode.gpu.buffers import LIMIT_RATIOS, PowerBuffer, PowerWindow
from gpunode.gpu.due import Due
from gpunode.gpu.energy import StateEnergy
from gpunode.gpu.rhythm import Rhythm
from gpunode.gpu.sensors import Sensors
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
    "Energy by state of the ledger since the daemon started; the states sum to the driver's "
    "counter (50 Hz samples, settled with nvmlDeviceGetTotalEnergyConsumption).",
    (*GPU, "state"),
)
DRIVER_ENERGY = Metric(
    "gpunode_gpu_driver_energy_joules_total",
    "counter",
    "Energy by the driver's own counter, read every two minutes; starts again when the driver is "
    "reloaded (nvmlDeviceGetTotalEnergyConsumption).",
    GPU,
)
STEP_PERIOD = Metric(
    "gpunode_gpu_step_period_seconds",
    "gauge",
    "Period of the power draw, an estimate of the step time; absent without a clear period "
    "(autocorrelation of 50 Hz samples).",
    GPU,
)
METRICS = (
    *(POWER, POWER_LIMIT, POWER_DEFAULT_LIMIT, DRAW, SWINGS),
    *(ENERGY, DRIVER_ENERGY, STEP_PERIOD),
)

LIMITS_INTERVAL = 300.0
"""Seconds between reads of the limits, which rarely change."""

RHYTHM_INTERVAL = 60.0
"""Seconds between searches for the step period, which cost 5 ms."""


class Power:
    """Keeps the power draw, energy and step period of one GPU."""

    def __init__(self, gpu: Gpu, sensors: Sensors) -> None:
        self.gpu = gpu
        self.sensors = sensors
        self.labels = gpu.identity.labels
        self.buffer = PowerBuffer(gpu)
        self.limits: PowerLimits | None = None
        self.energy = StateEnergy(gpu)
        self.step_period: float | None = None
        self._rhythm = Rhythm()
        self._limits_due = Due(LIMITS_INTERVAL)
        self._rhythm_due = Due(RHYTHM_INTERVAL)

    def drain(self, now: float) -> PowerWindow | None:
        """The samples since the last call; None if the GPU keeps none."""
        if self._limits_due.at(now):
            self.limits = self.sensors.read(self.gpu.power_limits)
        return self.buffer.drain(self.limits.enforced if self.limits else None)

    def count(
        self,
        window: PowerWindow | None,
        now: float,
        shares: Mapping[str, float],
        resting: float | None,
    ) -> None:
        """Add the samples of a window to the energy of its states, and search for their period.

        ``resting`` is the draw of a resting GPU in watts, if that is known.
        """
        if window is not None:
            self._rhythm.add(window.samples)
            rest = min((w for w in (resting, window.lowest) if w is not None), default=None)
            limit = self.limits.enforced if self.limits else None
            self.energy.count(self.buffer, now, shares, rest, limit)
        if self._rhythm.full and self._rhythm_due.at(now):
            self.step_period = self._rhythm.period()

    @property
    def mean(self) -> float | None:
        """Mean in watts over all samples, or None if there are none."""
        return self.buffer.joules / self.buffer.seconds if self.buffer.seconds else None

    def samples(self, window: PowerWindow | None) -> Iterator[Sample]:
        """The metrics to export after a window."""
        mean, at = window.mean if window else None, self.labels
        yield from POWER.at(self.sensors.read(self.gpu.power) if mean is None else mean, *at)
        if self.limits is not None:
            yield from POWER_LIMIT.at(self.limits.enforced, *at)
            yield from POWER_DEFAULT_LIMIT.at(self.limits.default, *at)
        if self.energy.joules:
            yield Sample(DRAW, at, self.buffer.share_of_limit.copy())
            yield from SWINGS.at(float(self.buffer.swings), *at)
            for state, joules in self.energy.joules.items():
                yield from ENERGY.at(joules, *at, state)
        yield from DRIVER_ENERGY.at(self.energy.counter, *at)
        yield from STEP_PERIOD.at(self.step_period, *at)
