"""Activity of each GPU: reads its sensors once per window and keeps the ledger."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from gpunode.config.daemon import Settings
from gpunode.driver.driver import (
    DIRECTIONS,
    Activity,
    DriverError,
    Gpu,
    Limits,
    Process,
    Utilization,
    optional,
)
from gpunode.driver.nvidia.xids import UNREAD_XID
from gpunode.driver.vendors import VENDORS
from gpunode.gpu import GPU, power, units, xids
from gpunode.gpu.buffers import PowerWindow, UtilizationBuffer
from gpunode.gpu.calibration import calibration
from gpunode.gpu.due import Due
from gpunode.gpu.ledger import (
    COPY_RATE,
    HARDLY_BUSY,
    IDLE_SHARE,
    STANDS_STILL,
    STATES,
    short_gaps,
    split,
    stands_still,
)
from gpunode.gpu.models import limits_of
from gpunode.gpu.power import Power
from gpunode.gpu.sensors import FAILED, Sensors
from gpunode.gpu.units import Units
from gpunode.gpu.window import HOUSEKEEPING, Window
from gpunode.gpu.xids import Xids
from gpunode.holders.census import Census, Look
from gpunode.holders.holder import Holder
from gpunode.holders.source import HoldersSource
from gpunode.metric import Metric, Sample
from gpunode.node.node import NoDescriptors
from gpunode.source import MORE_XIDS, Divided, Reading
from gpunode.unread import Unread

SECONDS = Metric(
    "gpunode_gpu_seconds_total",
    "counter",
    "Seconds of GPU time by state; the states sum to elapsed time.",
    (*GPU, "state"),
)
SHORT_GAPS = Metric(
    "gpunode_gpu_short_gaps_seconds_total",
    "counter",
    "Seconds of `starved` in windows whose gaps between kernels were mostly shorter than 20 ms: "
    "evidence of `kernel_launch`. Absent without samples of the power draw.",
    GPU,
)
STALL_FROM = 60.0
"""Seconds that a GPU without counters must stand still before that is told: training that launches
small kernels looks the same until its next collective."""

BLOCKED_STREAK = Metric(
    "gpunode_gpu_blocked_streak_seconds",
    "gauge",
    f"Time for which every window was at least {STANDS_STILL:g} `blocked`, with nothing launched "
    "and nothing moved: how long a collective has stalled. Before Hopper and without DCGM, 0 up to "
    f"{STALL_FROM:g} s.",
    GPU,
)
LEDGER_SENSOR = Metric(
    "gpunode_gpu_ledger_sensor",
    "gauge",
    "Whether the GPU's ledger uses this sensor (1) or does without it (0).",
    (*GPU, "sensor"),
)
LEDGER_CALIBRATED = Metric(
    "gpunode_gpu_ledger_calibrated",
    "gauge",
    "Whether the ledger's ceilings were measured on this model of GPU (1) or on another (0).",
    GPU,
)
UTILIZATION = Metric(
    "gpunode_gpu_utilization_ratio",
    "gauge",
    "Share of the driver's last sample period with a kernel or copy running, as in nvidia-smi; for "
    "comparison (nvmlDeviceGetUtilizationRates).",
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
    "Frame buffer used by processes, without the driver's reserve (nvmlDeviceGetMemoryInfo_v2).",
    GPU,
)
MEMORY_RESERVED = Metric(
    "gpunode_gpu_memory_reserved_bytes",
    "gauge",
    "Frame buffer reserved by the driver (nvmlDeviceGetMemoryInfo_v2).",
    GPU,
)
SM_CLOCK = Metric(
    "gpunode_gpu_sm_clock_hertz", "gauge", "Current SM clock (nvmlDeviceGetClockInfo).", GPU
)
SM_CLOCK_MAX = Metric(
    "gpunode_gpu_sm_clock_max_hertz",
    "gauge",
    "Maximum SM clock (nvmlDeviceGetMaxClockInfo).",
    GPU,
)
MEMORY_CLOCK = Metric(
    "gpunode_gpu_memory_clock_hertz", "gauge", "Current memory clock (nvmlDeviceGetClockInfo).", GPU
)
MEMORY_CLOCK_MAX = Metric(
    "gpunode_gpu_memory_clock_max_hertz",
    "gauge",
    "Maximum memory clock (nvmlDeviceGetMaxClockInfo).",
    GPU,
)
TEMPERATURE = Metric(
    "gpunode_gpu_temperature_celsius", "gauge", "GPU temperature (nvmlDeviceGetTemperature).", GPU
)
PROCESSES = Metric(
    "gpunode_gpu_processes",
    "gauge",
    "Processes with a context on the GPU, by engine (nvmlDeviceGet*RunningProcesses).",
    (*GPU, "engine"),
)
STOPPED = Metric(
    "gpunode_job_stopped_processes",
    "gauge",
    "Processes with a context on the GPU that a signal or a debugger stopped: state T or t "
    "(/proc/PID/stat).",
    GPU,
)
LIMITS_INTERVAL = 300.0
"""Seconds between reads of the hardware's maximum rates."""

MAX_LATE_INTERVALS = 3
"""Windows longer than this many intervals were not observed: they go to ``unknown``."""


FREE_EVERY = 4
"""Windows of a GPU that nobody uses of which one reads its activity counters, which cost by far the
most; all else is read in each."""


class Moment(NamedTuple):
    """A time on the monotonic clock, and in seconds since the epoch."""

    monotonic: float
    epoch: float


@dataclass(frozen=True, slots=True)
class WindowDetail:
    """The last window: what the sensors measured, and which states its time went to.

    ``state`` has shares of the window, ``ledger`` seconds since the daemon started, ``sensors``
    which sensors the ledger uses. A value that was not measured is None.
    """

    seconds: float
    state: Mapping[str, float]
    ledger: Mapping[str, float]
    sensors: Mapping[str, bool]
    activity: Mapping[str, float] | None
    busy: float | None
    memory_busy: float | None
    power_watts: float | None
    power_limit_watts: float | None
    power_mean_watts: float | None
    power_swings: int
    link_load: float
    peers: bool | None
    step_period_seconds: float | None
    stand_in: str = ""
    """The model whose ceilings the ledger uses, if nobody measured those of the GPU's own."""


class GpuActivity:
    """Reads one GPU's activity sensors once per window and keeps its counters."""

    name = "gpu_activity"
    needs = (
        "an NVIDIA driver; for the shares of SMs, tensor cores and memory, a Hopper GPU or "
        "later, or DCGM at dcgm.address"
    )
    divided: ClassVar[Divided] = "instances"
    metrics = (
        SECONDS,
        SHORT_GAPS,
        BLOCKED_STREAK,
        LEDGER_SENSOR,
        LEDGER_CALIBRATED,
        UTILIZATION,
        MEMORY_TOTAL,
        MEMORY_USED,
        MEMORY_RESERVED,
        SM_CLOCK,
        SM_CLOCK_MAX,
        MEMORY_CLOCK,
        MEMORY_CLOCK_MAX,
        TEMPERATURE,
        PROCESSES,
        STOPPED,
        *units.METRICS,
        *power.METRICS,
        *xids.METRICS,
    )
    unknowns = (units.UNREAD_SMS, UNREAD_XID, MORE_XIDS, FAILED)

    def __init__(self, census: Census, gpu: Gpu, settings: Settings) -> None:
        self.clock = census.node.clock
        self.census = census
        self.gpu = gpu
        self.labels = gpu.identity.labels
        self.every = settings.gpu.interval
        self.seconds = dict.fromkeys(STATES, 0.0)
        self.short_gaps: float | None = None
        self.still_for = 0.0
        self.blocked_streak = 0.0
        self.limits = Limits()
        self._stopped: float | None = None
        self.calibration = calibration(census.node, gpu.identity, settings.gpu.calibration_file)
        self.units = Units(gpu)
        self.sensors = Sensors()
        self.power = Power(gpu, self.sensors)
        self.xids = Xids(gpu, self.clock, self.sensors)
        self.utilization = UtilizationBuffer(gpu)
        self._held_by: frozenset[Holder] = frozenset()
        """The processes that could compute at the end of the last window."""

        self._counters = VENDORS[gpu.identity.vendor].counters
        self._opened: Moment | None = None
        self._counted_at = 0.0
        """When its activity counters were last read."""

        self._free: Window | None = None
        """That window, if the GPU was free in it."""

        self._last_work = -math.inf
        self._rested_at: float | None = None
        self._limits_due = Due(LIMITS_INTERVAL)

    def read(self) -> Reading | None:
        """Close the window that began at the last read; None at the first, which opens one."""
        closed = Moment(self.clock.monotonic(), self.clock.time())
        if (still_free := self._still_free(closed)) is not None:
            return still_free
        if self._limits_due.at(closed.monotonic):
            limits = self.sensors.read(self.gpu.limits) or self.limits
            self.limits = limits_of(self.gpu.identity, limits)
        activity, unread = units.plausible_activity(optional(self.gpu.activity))
        drawn = self.power.drain(closed.monotonic)
        opened = self._opened
        if opened is None:
            self.units.count_nvlinks(0.0)
            if drawn is not None:
                self.power.energy.begin(closed.monotonic)
            self._opened, self._counted_at = closed, closed.monotonic
            return None
        window = self._window(opened, closed, activity, drawn)
        # If a sensor failed, the next window has the time of this one, too.
        self._opened, self._counted_at = closed, closed.monotonic
        if window.rests and window.power is not None:
            self._rested_at = window.power.mean
        late = window.seconds > MAX_LATE_INTERVALS * self.every
        shares = {**dict.fromkeys(STATES, 0.0), "unknown": 1.0} if late else split(window)
        for state, share in shares.items():
            self.seconds[state] += share * window.seconds
        if (short := short_gaps(window, shares)) is not None:
            found = short * shares["starved"] * window.seconds
            self.short_gaps = (self.short_gaps or 0.0) + found
        still = stands_still(window, shares)
        self.still_for = self.still_for + window.seconds if still else 0.0
        sure = window.activity is not None or self.still_for >= STALL_FROM
        self.blocked_streak = self.still_for if sure else 0.0
        self.power.count(drawn, closed.monotonic, shares, window.resting_power)
        rests = shares["free"] == 1.0 and window.empty and not _shows_work(window.utilization)
        self._free = window if rests else None
        return self._reading(window, shares, unread)

    def _still_free(self, closed: Moment) -> Reading | None:
        """A window of a GPU that was free when its counters were read, if nobody has come since.

        None if somebody may have, and when they are to be read again.
        """
        if self._free is None or self._opened is None:
            return None
        seconds = closed.monotonic - self._opened.monotonic
        due = self._counted_at + (FREE_EVERY - 0.5) * self.every
        if (
            closed.monotonic >= due
            or seconds > MAX_LATE_INTERVALS * self.every
            or not self._is_unused()
        ):
            return None
        self._opened = closed
        self.seconds["free"] += seconds
        shares = {**dict.fromkeys(STATES, 0.0), "free": 1.0}
        drawn = self.power.drain(closed.monotonic)
        window = replace(self._free, seconds=seconds, power=drawn)
        self.power.count(drawn, closed.monotonic, shares, window.resting_power)
        return self._reading(window, shares)

    def _is_unused(self) -> bool:
        """Whether no process is on the GPU, nothing runs there, and no job is known to have it."""
        try:
            _, processes = self._processes()
            utilization = optional(self.gpu.utilization)
        except DriverError:  # the whole read that follows tells of it
            return False
        unused = processes == [] and not _shows_work(utilization)
        return unused and not self.census.given(self.gpu.identity)

    def _window(
        self,
        opened: Moment,
        closed: Moment,
        activity: Activity | None,
        drawn: PowerWindow | None,
    ) -> Window:
        """Everything that was measured between two moments."""
        seconds = closed.monotonic - opened.monotonic
        uncounted_for = closed.monotonic - self._counted_at
        if activity is None:
            rates = self.units.count_nvlinks(uncounted_for)
        else:
            rates = activity.values
            self.units.count(activity)
        if uncounted_for > seconds:  # and the GPU was free before this window
            rates = {
                name: min(
                    value * uncounted_for / seconds, 1.0 if name in units.SHARES else math.inf
                )
                for name, value in rates.items()
            }
            activity = None if activity is None else replace(activity, values=rates)
        utilization = optional(self.gpu.utilization)
        look, processes = self._processes()
        pcie, nvlink = _busier(rates, "pcie"), _busier(rates, "nvlink")
        graphics = rates.get("graphics")
        busy = None
        if graphics is None or _may_have_copied(graphics, pcie, nvlink, utilization):
            booted = closed.epoch - closed.monotonic
            busy = self.utilization.mean(opened.epoch, closed.epoch, booted)
        if max(graphics or 0.0, busy or 0.0) > IDLE_SHARE:
            self._last_work = closed.monotonic
        return Window(
            seconds=seconds,
            activity=activity,
            busy=busy,
            utilization=utilization,
            power=drawn,
            power_limit=self.power.limits.enforced if self.power.limits else None,
            nvlink=nvlink,
            pcie=pcie,
            processes=processes,
            given=self.census.given(self.gpu.identity),
            quiet_for=closed.monotonic - self._last_work,
            peers=self._peers(look, moved=(nvlink or 0.0) >= HOUSEKEEPING),
            resting_power=self._resting_power(),
            limits=self.limits,
            ceilings=self.calibration.ceilings,
        )

    def _processes(self) -> tuple[Look | None, list[Process] | None]:
        """The processes on the GPU, with what is known of each if that can be read."""
        try:
            look = self.census.look(self.gpu, within=self.every / 2)
        except NoDescriptors:
            self._stopped = None
            return None, optional(self.gpu.processes)
        self._stopped = None if look is None else look.stopped
        return look, None if look is None else list(look.processes)

    def _peers(self, look: Look | None, *, moved: bool) -> bool | None:
        """Whether any process has peers on other GPUs; None if that is not known.

        ``moved`` says whether data went over NVLink in this window.
        """
        if look is None:
            return True if moved else None
        could, self._held_by = self._held_by, frozenset(look.computing)
        for holder in could & self._held_by if moved else ():
            # What moved before a process came was not its own.
            holder.communicated = True
        try:
            answers = {holder.peers() for holder in self._held_by}
        except NoDescriptors:
            return None
        return True if True in answers else None if None in answers else False

    def _resting_power(self) -> float | None:
        """Watts that the GPU drew when it last rested; before, what its model commonly does."""
        if self._rested_at is not None:
            return self._rested_at
        limits = self.power.limits
        if limits is None:
            return None
        return self.calibration.ceilings.resting_power * (limits.default or limits.enforced)

    def _reading(
        self, window: Window, shares: Mapping[str, float], unread: tuple[Unread, ...] = ()
    ) -> Reading:
        samples = tuple(self._samples(window))
        unread = (*unread, *self.xids.unread(), *self.sensors.unread())
        return Reading(samples, self._detail(window, shares), unread)

    def _samples(self, window: Window) -> Iterator[Sample]:
        gpu, at = self.gpu, self.labels
        for state, seconds in self.seconds.items():
            yield from SECONDS.at(seconds, *at, state)
        yield from SHORT_GAPS.at(self.short_gaps, *at)
        yield from BLOCKED_STREAK.at(self.blocked_streak, *at)
        for sensor, present in self._rests_on(window).items():
            yield from LEDGER_SENSOR.at(float(present), *at, sensor)
        yield from LEDGER_CALIBRATED.at(float(self.calibration.own), *at)
        if window.utilization is not None:
            yield from UTILIZATION.at(window.utilization.gpu, *at)
        memory = self.sensors.read(gpu.memory)
        if memory is not None:
            yield from MEMORY_TOTAL.at(memory.total, *at)
            yield from MEMORY_USED.at(memory.used, *at)
            yield from MEMORY_RESERVED.at(memory.reserved, *at)
        yield from SM_CLOCK.at(self.sensors.read(gpu.sm_clock), *at)
        yield from SM_CLOCK_MAX.at(self.limits.sm_clock_hertz, *at)
        yield from MEMORY_CLOCK.at(self.sensors.read(gpu.memory_clock), *at)
        yield from MEMORY_CLOCK_MAX.at(self.limits.memory_clock_hertz, *at)
        yield from TEMPERATURE.at(self.sensors.read(gpu.temperature), *at)
        if window.processes is not None:
            for engine in ("compute", "graphics", "mps"):
                count = sum(process.kind == engine for process in window.processes)
                yield from PROCESSES.at(float(count), *at, engine)
        yield from STOPPED.at(self._stopped, *at)
        yield from self.units.samples()
        yield from self.power.samples(window.power)
        yield from self.xids.samples()

    def _rests_on(self, window: Window) -> dict[str, bool]:
        kept_by = window.activity.counters if window.activity else ""
        return {
            **{counters: counters == kept_by for counters in self._counters},
            "utilization": window.utilization is not None,
            "power_samples": window.power is not None,
            "link_counters": window.nvlink is not None or window.pcie is not None,
            "processes": window.processes is not None,
        }

    def _detail(self, window: Window, shares: Mapping[str, float]) -> WindowDetail:
        return WindowDetail(
            seconds=window.seconds,
            state=shares,
            ledger=dict(self.seconds),
            sensors=self._rests_on(window),
            activity=window.activity.values if window.activity else None,
            busy=window.busy,
            memory_busy=window.utilization.memory if window.utilization else None,
            power_watts=window.power.mean if window.power else None,
            power_limit_watts=window.power_limit,
            power_mean_watts=self.power.mean,
            power_swings=self.power.buffer.swings,
            link_load=window.link_load,
            peers=window.peers,
            step_period_seconds=self.power.step_period,
            stand_in="" if self.calibration.own else self.calibration.measured_on,
        )


def _shows_work(utilization: Utilization | None) -> bool:
    return utilization is not None and utilization.gpu > 0.0


def _may_have_copied(
    graphics: float, pcie: float | None, nvlink: float | None, utilization: Utilization | None
) -> bool:
    """Whether the utilisation buffer, which costs 1.4 ms to read, could show more than GPM.

    It counts copy engines, and it shows a GPU at work whose GPM counters stand still.
    """
    if (pcie or 0.0) >= COPY_RATE:
        return graphics < 0.95
    seen = utilization.gpu if utilization else 0.0
    return seen > 0.2 and (
        graphics < HARDLY_BUSY[1] or ((nvlink or 0.0) >= COPY_RATE and graphics < 0.2)
    )


def _busier(rates: Mapping[str, float], link: str) -> float | None:
    """The larger of a link's two directions, or None if it was not measured."""
    found = [rates[f"{link}_{d}"] for d in DIRECTIONS if f"{link}_{d}" in rates]
    return max(found, default=None)


HOLDERS_SOURCE: HoldersSource = GpuActivity
