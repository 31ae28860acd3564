"""What each GPU did: reads its sensors once a window and keeps the ledger."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Any

from gpunode.gpu import GPU, gpm
from gpunode.gpu.buffers import LIMIT_RATIOS, PowerBuffer, PowerWindow, UtilizationBuffer
from gpunode.gpu.driver import (
    Activity,
    Gpu,
    Limits,
    PowerLimits,
    Process,
    Utilization,
    known,
)
from gpunode.gpu.ledger import COPY_RATE, HARDLY_BUSY, QUIET, STATES, Split, split
from gpunode.gpu.rhythm import Rhythm
from gpunode.gpu.window import Window
from gpunode.metric import Metric, Sample
from gpunode.node import Node
from gpunode.source import Reading

log = logging.getLogger(__name__)

SECONDS = Metric(
    "gpunode_gpu_seconds_total",
    "counter",
    "Seconds of the GPU by the state they went to; the states sum to elapsed time.",
    (*GPU, "state"),
)
BLOCKED_STREAK = Metric(
    "gpunode_gpu_blocked_streak_seconds",
    "gauge",
    "Time for which every window was 0.9 `blocked` or more: how long a collective stood still.",
    GPU,
)
LEDGER_SENSOR = Metric(
    "gpunode_gpu_ledger_sensor",
    "gauge",
    "Whether the GPU's ledger rests on this sensor (1) or does without it (0).",
    (*GPU, "sensor"),
)
ACTIVE = Metric(
    "gpunode_gpu_active_seconds_total",
    "counter",
    "Seconds during which a unit of the GPU was active, weighted by how much of it (GPM 1-13).",
    (*GPU, "unit"),
)
OCCUPANCY = Metric(
    "gpunode_gpu_sm_occupancy_seconds_total",
    "counter",
    "Integral of SM occupancy, warps resident over warps possible (GPM 3).",
    GPU,
)
UTILIZATION = Metric(
    "gpunode_gpu_utilization_ratio",
    "gauge",
    "Share of the driver's last sample period with a kernel or copy running "
    "(nvmlDeviceGetUtilizationRates): what nvidia-smi shows, for comparison.",
    GPU,
)
PCIE_BYTES = Metric(
    "gpunode_gpu_pcie_bytes_total",
    "counter",
    "Bytes over PCI Express, headers included, as the GPU sees it (GPM 20 and 21; NVML's own "
    "counters have 32 bits and wrap every 70 ms at full speed).",
    (*GPU, "direction"),
)
NVLINK_BYTES = Metric(
    "gpunode_gpu_nvlink_bytes_total",
    "counter",
    "Bytes over all NVLinks (GPM 60 and 61, else NVML fields 138 and 139).",
    (*GPU, "direction"),
)
C2C_BYTES = Metric(
    "gpunode_gpu_c2c_bytes_total",
    "counter",
    "Bytes over the chip-to-chip link to the CPU (GPM 100 and 101).",
    (*GPU, "direction"),
)
POWER = Metric(
    "gpunode_gpu_power_watts",
    "gauge",
    "Mean draw over the last window, from the driver's 50 Hz sample buffer (else "
    "nvmlDeviceGetPowerUsage, a mean over one second).",
    GPU,
)
POWER_LIMIT = Metric(
    "gpunode_gpu_power_limit_watts",
    "gauge",
    "Power limit that the driver enforces (nvmlDeviceGetEnforcedPowerLimit).",
    GPU,
)
POWER_DEFAULT_LIMIT = Metric(
    "gpunode_gpu_power_default_limit_watts",
    "gauge",
    "Power limit the board came with (nvmlDeviceGetPowerManagementDefaultLimit).",
    GPU,
)
DRAW = Metric(
    "gpunode_gpu_power_draw_ratio",
    "histogram",
    "50 Hz samples of the draw as a share of the enforced limit.",
    GPU,
    LIMIT_RATIOS,
)
SWINGS = Metric(
    "gpunode_gpu_power_swings_total",
    "counter",
    "Falls of the draw from near its recent peak to near its recent floor, at 50 Hz.",
    GPU,
)
ENERGY = Metric(
    "gpunode_gpu_energy_joules_total",
    "counter",
    "Energy since the daemon started: 50 Hz samples, calibrated by the driver's energy counter.",
    GPU,
)
STEP_PERIOD = Metric(
    "gpunode_gpu_step_period_seconds",
    "gauge",
    "Period of the draw (autocorrelation of 50 Hz samples), an estimate of the training step; "
    "absent where there is no clear one.",
    GPU,
)
MEMORY_TOTAL = Metric(
    "gpunode_gpu_memory_size_bytes",
    "gauge",
    "Size of the frame buffer (nvmlDeviceGetMemoryInfo_v2).",
    GPU,
)
MEMORY_USED = Metric(
    "gpunode_gpu_memory_used_bytes",
    "gauge",
    "Frame buffer in use by processes, without the driver's reserve (nvmlDeviceGetMemoryInfo_v2).",
    GPU,
)
MEMORY_RESERVED = Metric(
    "gpunode_gpu_memory_reserved_bytes",
    "gauge",
    "Frame buffer that the driver keeps for itself (nvmlDeviceGetMemoryInfo_v2).",
    GPU,
)
SM_CLOCK = Metric(
    "gpunode_gpu_sm_clock_hertz", "gauge", "SM clock now (nvmlDeviceGetClockInfo).", GPU
)
SM_CLOCK_MAX = Metric(
    "gpunode_gpu_sm_clock_max_hertz",
    "gauge",
    "SM clock at best (nvmlDeviceGetMaxClockInfo).",
    GPU,
)
MEMORY_CLOCK = Metric(
    "gpunode_gpu_memory_clock_hertz", "gauge", "HBM clock now (nvmlDeviceGetClockInfo).", GPU
)
TEMPERATURE = Metric(
    "gpunode_gpu_temperature_celsius", "gauge", "GPU die (nvmlDeviceGetTemperature).", GPU
)
PROCESSES = Metric(
    "gpunode_gpu_processes",
    "gauge",
    "Processes that hold the GPU by engine (nvmlDeviceGet*RunningProcesses).",
    (*GPU, "engine"),
)
XIDS = Metric(
    "gpunode_gpu_xid_errors_total",
    "counter",
    "XID error events (nvmlEventSetWait) since the daemon started.",
    (*GPU, "xid"),
)
XID_TIME = Metric(
    "gpunode_gpu_xid_last_timestamp_seconds",
    "gauge",
    "When the driver last reported this XID.",
    (*GPU, "xid"),
)

KNOWN_XIDS = (31, 48, 63, 64, 74, 79, 92, 94, 95, 119, 120)
"""XIDs that call for action, exported as 0 from the start so that the first one is an increase:
https://docs.nvidia.com/deploy/xid-errors/"""

STANDS_STILL = 0.9
"""Share of a window that is `blocked` from which nothing else happened in it."""

MANY_XIDS = 64
"""Distinct XIDs kept apart; NVIDIA documents fewer than 200, and no node shows many."""

BURST_INTERVAL = 0.125
"""Seconds between snapshots of a burst; GPM counters refresh every 100 ms."""

BURST_LENGTH = 8
BURST_EVERY = 10.0
"""Windows in a burst, and seconds between the starts of two: at most a tenth of the time."""

ENERGY_EVERY = 120.0
"""Seconds between reads of the energy counter, which costs 3.5 ms."""

RHYTHM_EVERY = 60.0
"""Seconds between searches for the step period, which cost 5 ms."""

LIMITS_EVERY = 300.0
"""Seconds between reads of what hardly ever changes."""

SHARES = {*gpm.UNITS, "occupancy"}
"""GPM metrics whose integral is in seconds; that of the others is in bytes."""

LATE = 3
"""Windows longer than this many intervals were not watched: they go to ``unknown``."""


class GpuActivity:
    """Reads one GPU's activity sensors once a window and keeps its counters."""

    name = "gpu_activity"
    metrics = (
        SECONDS,
        BLOCKED_STREAK,
        LEDGER_SENSOR,
        ACTIVE,
        OCCUPANCY,
        UTILIZATION,
        PCIE_BYTES,
        NVLINK_BYTES,
        C2C_BYTES,
        POWER,
        POWER_LIMIT,
        POWER_DEFAULT_LIMIT,
        DRAW,
        SWINGS,
        ENERGY,
        STEP_PERIOD,
        MEMORY_TOTAL,
        MEMORY_USED,
        MEMORY_RESERVED,
        SM_CLOCK,
        SM_CLOCK_MAX,
        MEMORY_CLOCK,
        TEMPERATURE,
        PROCESSES,
        XIDS,
        XID_TIME,
    )

    def __init__(self, node: Node, gpu: Gpu, interval: float) -> None:
        self.clock = node.clock
        self.sensors = gpu
        self.device = gpu.identity.uuid
        self.gpu = str(gpu.identity.index)
        self.interval = interval
        self.every = interval
        self.power = PowerBuffer(gpu)
        self.utilization = UtilizationBuffer(gpu)
        self.rhythm = Rhythm()
        self.seconds = dict.fromkeys(STATES, 0.0)
        self.active: dict[str, float] = {}
        self.bytes: dict[str, float] = {}
        self.xids = dict.fromkeys(map(str, KNOWN_XIDS), 0)
        self.xid_times: dict[str, float] = {}
        self.counters = "gpm"
        self.blocked_streak = 0.0
        self.joules: float | None = None
        self.limits = Limits()
        self.power_limits: PowerLimits | None = None
        self.step_period: float | None = None
        self._time: float | None = None
        self._wall = 0.0
        self._last_work = -math.inf
        self._nvlink_counters: dict[str, float] = {}
        self._energy_mark: tuple[float, float] | None = None
        self._energy_factor = 1.0
        self._integrated = 0.0
        self._processes: list[Process] | None = None
        self._due: dict[str, float] = {}
        self._burst = 0

    def read(self) -> Reading | None:
        """Close the window that began at the last read; None at the first, which only opens one."""
        now, wall = self.clock.monotonic(), self.clock.time()
        gpu = self.sensors
        if self._is_due("limits", LIMITS_EVERY, now):
            self.limits = known(gpu.limits) or Limits()
            self.power_limits = known(gpu.power_limits)
        activity = known(gpu.activity)
        self.counters = activity.counters if activity else "gpm"
        limit = self.power_limits.enforced if self.power_limits else None
        power = self.power.drain(limit)
        if self._time is None:
            self._count_nvlinks(0.0)
            self._time, self._wall = now, wall
            return None
        seconds = now - self._time
        window = self._window(seconds, wall, activity, power)
        result = split(window)
        if seconds > LATE * self.interval:
            result = Split()
            result.shares["unknown"] = 1.0
        for state, share in result.shares.items():
            self.seconds[state] += share * seconds
        still = result.shares["blocked"] >= STANDS_STILL
        self.blocked_streak = self.blocked_streak + seconds if still else 0.0
        self._time, self._wall = now, wall
        self._plan_burst(result, now)
        if power is not None:
            self.rhythm.add(power.samples)
            self._integrate_energy(now)
        if self.rhythm.full and self._is_due("rhythm", RHYTHM_EVERY, now):
            self.step_period = self.rhythm.period()
        return Reading(tuple(self._samples(window)), self._detail(window, result))

    def _window(
        self,
        seconds: float,
        wall: float,
        activity: Activity | None,
        power: PowerWindow | None,
    ) -> Window:
        gpu = self.sensors
        if activity is None:
            rates = self._count_nvlinks(seconds)
        else:
            rates = activity.values
            self._integrate(activity)
        utilization = known(gpu.utilization)
        self._processes = known(gpu.processes)
        pcie, nvlink = _busier(rates, "pcie"), _busier(rates, "nvlink")
        graphics = rates.get("graphics")
        busy = None
        if graphics is None or self._may_have_copied(graphics, pcie, nvlink, utilization):
            busy = self.utilization.mean(self._wall, wall)
        if max(graphics or 0.0, busy or 0.0) > QUIET:
            self._last_work = self.clock.monotonic()
        return Window(
            seconds=seconds,
            activity=activity.values if activity else None,
            busy=busy,
            utilization=utilization,
            power=power,
            power_limit=self.power_limits.enforced if self.power_limits else None,
            nvlink=nvlink,
            pcie=pcie,
            processes=None if self._processes is None else len(self._processes),
            quiet_for=self.clock.monotonic() - self._last_work,
            limits=self.limits,
        )

    def _may_have_copied(
        self,
        graphics: float,
        pcie: float | None,
        nvlink: float | None,
        utilization: Utilization | None,
    ) -> bool:
        """Whether the utilisation buffer, which costs 1.4 ms, could say more than GPM does.

        It counts copy engines, and it shows a GPU at work whose GPM counters stand still.
        """
        if (pcie or 0.0) >= COPY_RATE:
            return graphics < 0.95
        seen = utilization.gpu if utilization else 0.0
        return seen > 0.2 and (
            graphics < HARDLY_BUSY or ((nvlink or 0.0) >= COPY_RATE and graphics < 0.2)
        )

    def _integrate(self, activity: Activity) -> None:
        """Add what the GPM means amount to over their time."""
        for name, value in activity.values.items():
            book = self.active if name in SHARES else self.bytes
            book[name] = book.get(name, 0.0) + value * activity.seconds

    def _count_nvlinks(self, seconds: float) -> dict[str, float]:
        """Byte rates since the last call from the NVLink counters, for GPUs without GPM."""
        rates: dict[str, float] = {}
        for direction, value in (known(self.sensors.nvlink_bytes) or {}).items():
            name = f"nvlink_{direction}"
            before = self._nvlink_counters.get(name)
            self._nvlink_counters[name] = value
            if before is None or value < before or not seconds:
                continue  # the first look, or a counter that was reset
            rates[name] = (value - before) / seconds
            self.bytes[name] = self.bytes.get(name, 0.0) + value - before
        return rates

    def _plan_burst(self, result: Split, now: float) -> None:
        """Look closer for a second where the gap structure is needed and nothing else shows it."""
        if self._burst:
            self._burst -= 1
        elif result.unsure and self._is_due("burst", BURST_EVERY, now):
            self._burst = BURST_LENGTH
        self.every = BURST_INTERVAL if self._burst else self.interval

    def _integrate_energy(self, now: float) -> None:
        """Take the samples' integral, corrected by what the energy counter made of it before."""
        self.joules = self.joules or 0.0
        self.joules += (self.power.joules - self._integrated) * self._energy_factor
        self._integrated = self.power.joules
        if not self._is_due("energy", ENERGY_EVERY, now):
            return
        counter = known(self.sensors.energy)
        if counter is None:
            return
        mark, self._energy_mark = self._energy_mark, (counter, self.power.joules)
        if mark is not None and self.power.joules > mark[1]:
            factor = (counter - mark[0]) / (self.power.joules - mark[1])
            if 0.8 < factor < 1.25:  # anything else is a reset of the counter or a hole
                self._energy_factor = factor

    def _is_due(self, what: str, every: float, now: float) -> bool:
        if now < self._due.get(what, -math.inf):
            return False
        self._due[what] = now + every
        return True

    def _samples(self, window: Window) -> Iterator[Sample]:
        gpu, at = self.sensors, (self.gpu, self.device)
        for state, seconds in self.seconds.items():
            yield from SECONDS.at(seconds, *at, state)
        yield from BLOCKED_STREAK.at(self.blocked_streak, *at)
        for sensor, present in self._rests_on(window).items():
            yield from LEDGER_SENSOR.at(float(present), *at, sensor)
        for unit in gpm.UNITS:
            yield from ACTIVE.at(self.active.get(unit), *at, unit)
        yield from OCCUPANCY.at(self.active.get("occupancy"), *at)
        if window.utilization is not None:
            yield from UTILIZATION.at(window.utilization.gpu, *at)
        for metric, link in ((PCIE_BYTES, "pcie"), (NVLINK_BYTES, "nvlink"), (C2C_BYTES, "c2c")):
            for direction in ("transmit", "receive"):
                yield from metric.at(self.bytes.get(f"{link}_{direction}"), *at, direction)
        yield from self._power_samples(window, at)
        memory = known(gpu.memory)
        if memory is not None:
            yield from MEMORY_TOTAL.at(memory.total, *at)
            yield from MEMORY_USED.at(memory.used, *at)
            yield from MEMORY_RESERVED.at(memory.reserved, *at)
        yield from SM_CLOCK.at(known(gpu.sm_clock), *at)
        yield from SM_CLOCK_MAX.at(self.limits.sm_clock_hertz, *at)
        yield from MEMORY_CLOCK.at(known(gpu.memory_clock), *at)
        yield from TEMPERATURE.at(known(gpu.temperature), *at)
        if self._processes is not None:
            for engine in ("compute", "graphics", "mps"):
                count = sum(p.kind == engine for p in self._processes)
                yield from PROCESSES.at(float(count), *at, engine)
        yield from self._xid_samples(at)

    def _power_samples(self, window: Window, at: tuple[str, str]) -> Iterator[Sample]:
        mean = window.power.mean if window.power else None
        yield from POWER.at(known(self.sensors.power) if mean is None else mean, *at)
        if self.power_limits is not None:
            yield from POWER_LIMIT.at(self.power_limits.enforced, *at)
            yield from POWER_DEFAULT_LIMIT.at(self.power_limits.default, *at)
        if self.joules is not None:
            yield Sample(DRAW, at, self.power.share_of_limit.copy())
            yield from SWINGS.at(float(self.power.swings), *at)
            yield from ENERGY.at(self.joules, *at)
        yield from STEP_PERIOD.at(self.step_period, *at)

    def _xid_samples(self, at: tuple[str, str]) -> Iterator[Sample]:
        events = known(self.sensors.xids)
        if events is None:
            return
        for event in events:
            xid = str(event.number)
            if xid not in self.xids and len(self.xids) >= MANY_XIDS:
                xid = "other"
            self.xids[xid] = self.xids.get(xid, 0) + 1
            self.xid_times[xid] = self.clock.time()
            log.warning("GPU %s (%s): XID %d", self.gpu, self.device, event.number)
        for xid, count in self.xids.items():
            yield from XIDS.at(float(count), *at, xid)
        for xid, time in self.xid_times.items():
            yield from XID_TIME.at(time, *at, xid)

    def _rests_on(self, window: Window) -> dict[str, bool]:
        return {
            "gpm": window.activity is not None and self.counters == "gpm",
            "dcgm": window.activity is not None and self.counters == "dcgm",
            "utilization": window.utilization is not None,
            "power_samples": window.power is not None,
            "link_counters": window.nvlink is not None or window.pcie is not None,
            "processes": window.processes is not None,
        }

    def _detail(self, window: Window, result: Split) -> dict[str, Any]:
        """The window for the API: what the sensors said, and where the time went."""
        return {
            "seconds": window.seconds,
            "state": result.shares,
            "ledger": dict(self.seconds),
            "sensors": self._rests_on(window),
            "activity": window.activity,
            "busy": window.busy,
            "memory_busy": window.utilization.memory if window.utilization else None,
            "power_watts": window.power.mean if window.power else None,
            "power_limit_watts": window.power_limit,
            "power_steady": window.power.steady if window.power else None,
            "power_mean_watts": (
                self.power.joules / self.power.seconds if self.power.seconds else None
            ),
            "power_swings": self.power.swings,
            "link_load": window.link_load,
            "step_period_seconds": self.step_period,
        }


def _busier(rates: dict[str, float], link: str) -> float | None:
    """The larger of a link's two directions, or None where it was not measured."""
    found = [rates[f"{link}_{d}"] for d in ("transmit", "receive") if f"{link}_{d}" in rates]
    return max(found, default=None)
