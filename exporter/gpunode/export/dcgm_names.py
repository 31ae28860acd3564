"""The readings under the names and labels of dcgm-exporter: ``--compat=dcgm``.

For dashboards, alerts and programs built for it: the counters of its default set, and those that
public dashboards and rules ask for. ``docs/compatibility.md`` lists both, and what is missing.
https://github.com/NVIDIA/dcgm-exporter/blob/main/etc/default-counters.csv

Units and meaning are DCGM's: https://github.com/NVIDIA/DCGM/blob/master/dcgmlib/dcgm_fields.h, or
how DcgmCacheManager.cpp computes the field where that says no more than its name. Counters are
declared as gauges here, because OpenMetrics would append ``_total``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import NamedTuple

from gpunode.config.daemon import Settings
from gpunode.driver.driver import DIRECTIONS, Identity
from gpunode.driver.nvidia.xids import RECOVERY_ACTIONS
from gpunode.export.dcgm_health import HEALTH_READ, Values, health
from gpunode.export.dcgm_renames import BASE_UNITS, NVLINK_MEGABYTE, RENAMED
from gpunode.faults.source import CurrentFaults
from gpunode.gpu import activity as gpu
from gpunode.gpu import health as state
from gpunode.gpu import nvlink, power, units, xids
from gpunode.gpu.dcgm_fields import DcgmFields
from gpunode.host import node_name
from gpunode.jobs.owners import OWNER
from gpunode.metric import Metric, Sample
from gpunode.node.node import Node
from gpunode.source import Key, Reading, Readings
from gpunode.verdict.facts import increase

LABELS = (
    "gpu",
    "UUID",
    "pci_bus_id",
    "device",
    "modelName",
    "Hostname",
    "hostname",
    "GPU_I_ID",
    "GPU_I_PROFILE",
    "DCGM_FI_DRIVER_VERSION",
    "DCGM_FI_SYSTEM_DRIVER_VERSION",
    "DCGM_FI_DEV_SERIAL",
    "DCGM_FI_DEV_BOARD_SERIAL",
    "DCGM_FI_DEV_VBIOS_VERSION",
    "container",
    "namespace",
    "pod",
    "hpc_job",
)
"""``Hostname`` was renamed to ``hostname`` after dcgm-exporter 4.8.2, and the version of the driver
and the serial number in DCGM 4.6; a label without a value is none to Prometheus."""

JOB_ID = re.compile(r"[0-9]{1,15}")
"""Digits that a sample holds exactly."""

INSTANCE_NAME = re.compile(r"(?P<board>.+) MIG (?:\d+c\.)?(?P<profile>\d+g\.\d+gb\S*)")
"""How NVML names a MIG instance, or a part of one: ``NVIDIA H200 MIG 1c.2g.35gb``."""


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"DCGM_FI_{name}", "gauge", text, (*LABELS, *labels))


MEBI = 1 / 2**20
SCALED: tuple[tuple[Metric, Metric, tuple[str, ...], float], ...] = (
    (_gauge("DEV_SM_CLOCK", "SM clock (MHz)."), gpu.SM_CLOCK, (), 1e-6),
    (_gauge("DEV_MEM_CLOCK", "Memory clock (MHz)."), gpu.MEMORY_CLOCK, (), 1e-6),
    (_gauge("DEV_MAX_SM_CLOCK", "Maximum SM clock (MHz)."), gpu.SM_CLOCK_MAX, (), 1e-6),
    (_gauge("DEV_MAX_MEM_CLOCK", "Maximum memory clock (MHz)."), gpu.MEMORY_CLOCK_MAX, (), 1e-6),
    (_gauge("DEV_MEMORY_TEMP", "Memory temperature (C)."), state.MEMORY_TEMPERATURE, (), 1),
    (_gauge("DEV_GPU_TEMP", "GPU temperature (C)."), gpu.TEMPERATURE, (), 1),
    (_gauge("DEV_POWER_USAGE", "Power draw (W)."), power.POWER, (), 1),
    (_gauge("DEV_ENFORCED_POWER_LIMIT", "Power limit in force (W)."), power.POWER_LIMIT, (), 1),
    (
        _gauge("DEV_POWER_MGMT_LIMIT_DEF", "Default power limit (W)."),
        power.POWER_DEFAULT_LIMIT,
        (),
        1,
    ),
    (_gauge("DEV_PCIE_REPLAY_COUNTER", "PCIe retries."), state.PCIE_REPLAYS, (), 1),
    (_gauge("DEV_PCIE_LINK_GEN", "PCIe generation of the link."), state.PCIE_GENERATION, (), 1),
    (_gauge("DEV_PCIE_LINK_WIDTH", "PCIe lanes of the link."), state.PCIE_WIDTH, (), 1),
    (
        _gauge("DEV_PCIE_MAX_LINK_GEN", "Maximum PCIe generation."),
        state.PCIE_GENERATION_MAX,
        (),
        1,
    ),
    (_gauge("DEV_PCIE_MAX_LINK_WIDTH", "Maximum PCIe lanes."), state.PCIE_WIDTH_MAX, (), 1),
    (_gauge("DEV_GPU_UTIL", "GPU utilization (%)."), gpu.UTILIZATION, (), 100),
    (_gauge("DEV_FB_USED", "Frame buffer in use (MiB)."), gpu.MEMORY_USED, (), MEBI),
    (_gauge("DEV_FB_RESERVED", "Frame buffer reserved (MiB)."), gpu.MEMORY_RESERVED, (), MEBI),
    (_gauge("DEV_FB_TOTAL", "Frame buffer (MiB)."), gpu.MEMORY_TOTAL, (), MEBI),
    (
        _gauge("DEV_ECC_SBE_AGG_TOTAL", "Corrected ECC errors over the life of the GPU."),
        state.ECC,
        ("corrected",),
        1,
    ),
    (
        _gauge("DEV_ECC_DBE_AGG_TOTAL", "Uncorrected ECC errors over the life of the GPU."),
        state.ECC,
        ("uncorrected",),
        1,
    ),
    (
        _gauge("DEV_UNCORRECTABLE_REMAPPED_ROWS", "Rows remapped for uncorrectable errors."),
        state.ROW_REMAPS,
        ("uncorrected",),
        1,
    ),
    (
        _gauge("DEV_CORRECTABLE_REMAPPED_ROWS", "Rows remapped for correctable errors."),
        state.ROW_REMAPS,
        ("corrected",),
        1,
    ),
    (_gauge("DEV_ROW_REMAP_FAILURE", "Whether a row remap failed."), state.REMAP_FAILED, (), 1),
    (_gauge("DEV_ROW_REMAP_PENDING", "Whether a row remap is due."), state.REMAP_PENDING, (), 1),
    (_gauge("DEV_PERSISTENCE_MODE", "Whether persistence mode is on."), state.PERSISTENCE, (), 1),
    (_gauge("DEV_MIG_MODE", "Whether MIG mode is on."), state.MIG, (), 1),
    (_gauge("DEV_GPU_TEMP_LIMIT", "Degrees left before the slowdown (C)."), state.MARGIN, (), 1),
    *(
        (
            _gauge(f"PROF_PCIE_{name}_BYTES_TOTAL", f"PCIe bytes {what} since the daemon started."),
            units.PCIE_BYTES,
            (direction,),
            1,
        )
        for name, what, direction in (("TX", "sent", "transmit"), ("RX", "received", "receive"))
    ),
    (
        _gauge("DEV_PCIE_COUNT_CORRECTABLE_ERRORS", "PCIe errors that were corrected."),
        state.PCIE_ERRORS,
        ("correctable",),
        1,
    ),
    *(
        (_gauge(f"DEV_NVLINK_{name}", f"NVLink {what}."), nvlink.NVLINK_ERRORS, (kind,), 1)
        for name, what, kind in (
            ("REPLAY_ERROR_COUNT_TOTAL", "retries", "replay"),
            ("RECOVERY_ERROR_COUNT_TOTAL", "recoveries", "recovery"),
            ("CRC_FLIT_ERROR_COUNT_TOTAL", "CRC errors", "crc"),
            ("ERROR_DL_REPLAY", "retries", "replay"),
            ("ERROR_DL_RECOVERY", "recoveries", "recovery"),
            ("ERROR_DL_CRC", "CRC errors", "crc"),
            ("COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS", "recoveries", "recovery_successful"),
            ("COUNT_LINK_RECOVERY_FAILED_EVENTS", "recoveries that failed", "recovery_failed"),
            ("COUNT_RX_ERRORS", "packets received with errors", "receive"),
            ("COUNT_RX_SYMBOL_ERRORS", "symbol errors", "symbol"),
            ("COUNT_EFFECTIVE_ERRORS", "errors that were not corrected", "effective"),
        )
    ),
    *(
        (
            _gauge(f"DEV_CLOCKS_EVENT_REASON_{name}_NS", f"Time held back by {what} (ns)."),
            state.THROTTLED,
            (reason,),
            1e9,
        )
        for name, what, reason in (
            ("SW_POWER_CAP", "the power limit", "sw_power_cap"),
            ("SYNC_BOOST", "the slowest GPU of its group", "sync_boost"),
            ("SW_THERM_SLOWDOWN", "heat, by the driver", "sw_thermal"),
            ("HW_THERM_SLOWDOWN", "heat, by the GPU", "hw_thermal"),
            ("HW_POWER_BRAKE_SLOWDOWN", "the power brake", "hw_power_brake"),
        )
    ),
)
"""Their metrics that equal one of ours in other units: theirs, ours, further labels, factor."""


EVENTS = (
    "gpu_idle",
    "clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal",
    "hw_thermal",
    "hw_power_brake",
    "display_clocks",
    "board_limit",
    "reliability",
)
"""Reasons why the clocks are lowered, by the bit that DCGM has for each."""

EVENT_NAMES = {"sw_power_cap": "power_cap"}
"""Those that dcgm-exporter calls otherwise."""


def _event_bits(fields: DcgmFields) -> float | None:
    events = fields.clock_events
    return None if events is None else float(sum(1 << EVENTS.index(event) for event in events))


def _violation(name: str, what: str) -> tuple[Metric, Callable[[DcgmFields], float | None]]:
    held_back = _gauge(f"DEV_{name.upper()}_VIOLATION", f"Time held back by {what} (ns).")
    limit = {"board_limit": "board", "low_util": "low_utilization"}.get(name, name)
    return held_back, lambda fields: _times(fields.violations.get(limit), 1e9)


CAPABILITY = re.compile(r"(\d{1,2})\.(\d{1,2})", re.ASCII)

FABRIC_STATES = ("not_supported", "not_started", "in_progress", "completed")
"""``dcgmFabricManagerStatus_t``, which has further states for failures."""


def _fabric_status(fields: DcgmFields) -> float | None:
    fabric = fields.fabric
    if fabric is None or fabric.state not in FABRIC_STATES:
        return None
    return float(FABRIC_STATES.index(fabric.state))


def _flag(value: bool | None) -> float | None:
    return None if value is None else float(value)


def _banks(spare: str, fields: DcgmFields) -> float | None:
    return fields.remap_banks.get(spare)


def _compute_capability(fields: DcgmFields) -> float | None:
    version = CAPABILITY.fullmatch(fields.identity.compute_capability or "")
    return float(int(version[1]) << 16 | int(version[2])) if version else None


FIELDS: tuple[tuple[Metric, Callable[[DcgmFields], float | None]], ...] = (
    (
        _gauge("DEV_FABRIC_MANAGER_STATUS", "Whether the GPU has joined the fabric (3)."),
        _fabric_status,
    ),
    (
        _gauge("DEV_FABRIC_HEALTH_MASK", "Health of the parts of the fabric (bits)."),
        lambda fields: _times(fields.fabric.health_mask, 1) if fields.fabric else None,
    ),
    (
        _gauge("DEV_INFOROM_CONFIG_VALID", "Whether the checksums of the InfoROM are right."),
        lambda fields: _flag(fields.inforom_valid),
    ),
    (
        _gauge("DEV_MEMORY_UNREPAIRABLE_FLAG", "Whether memory is broken for good."),
        lambda fields: _flag(fields.memory_unrepairable),
    ),
    (
        _gauge("DEV_THRESHOLD_SRM", "Whether errors of the SRAM exceed the threshold."),
        lambda fields: _flag(fields.sram_worn),
    ),
    *(
        (
            _gauge(f"DEV_BANKS_REMAP_ROWS_AVAIL_{spare.upper()}", f"Banks with {what} spare rows."),
            partial(_banks, spare),
        )
        for spare, what in (
            ("max", "all"),
            ("high", "most"),
            ("partial", "some"),
            ("low", "few"),
            ("none", "no"),
        )
    ),
    (
        _gauge("DEV_CUDA_COMPUTE_CAPABILITY", "Compute capability: 65536 major + minor."),
        _compute_capability,
    ),
    (
        _gauge("DEV_MINOR_NUMBER", "The N of /dev/nvidiaN."),
        lambda fields: _times(fields.identity.minor, 1),
    ),
    (
        _gauge("DEV_TOTAL_ENERGY_CONSUMPTION", "Energy since the driver was loaded (mJ)."),
        lambda fields: _times(fields.energy, 1e3),
    ),
    (
        _gauge("DEV_POWER_USAGE_INSTANT", "Power draw at this moment (W)."),
        lambda fields: fields.power_now,
    ),
    (
        _gauge("DEV_POWER_MGMT_LIMIT", "Power limit that was asked for (W)."),
        lambda fields: fields.power_range.asked,
    ),
    (
        _gauge("DEV_POWER_MGMT_LIMIT_MIN", "Least power limit that can be set (W)."),
        lambda fields: fields.power_range.least,
    ),
    (
        _gauge("DEV_POWER_MGMT_LIMIT_MAX", "Greatest power limit that can be set (W)."),
        lambda fields: fields.power_range.most,
    ),
    (
        _gauge("DEV_SLOWDOWN_TEMP", "Temperature at which the GPU slows down (C)."),
        lambda fields: fields.temperature_limits.slowdown,
    ),
    (
        _gauge("DEV_SHUTDOWN_TEMP", "Temperature at which the GPU shuts down (C)."),
        lambda fields: fields.temperature_limits.shutdown,
    ),
    (
        _gauge("DEV_GPU_MAX_OP_TEMP", "Maximum operating temperature of the GPU (C)."),
        lambda fields: fields.temperature_limits.gpu,
    ),
    (
        _gauge("DEV_MEM_MAX_OP_TEMP", "Maximum operating temperature of the memory (C)."),
        lambda fields: fields.temperature_limits.memory,
    ),
    (
        _gauge("DEV_ENC_UTIL", "Encoder utilization (%)."),
        lambda fields: _times(fields.video.encoder, 100),
    ),
    (
        _gauge("DEV_DEC_UTIL", "Decoder utilization (%)."),
        lambda fields: _times(fields.video.decoder, 100),
    ),
    (
        _gauge("DEV_ECC_SBE_VOL_TOTAL", "Corrected ECC errors since the driver was loaded."),
        lambda fields: fields.ecc.get("corrected"),
    ),
    (
        _gauge("DEV_ECC_DBE_VOL_TOTAL", "Uncorrected ECC errors since the driver was loaded."),
        lambda fields: fields.ecc.get("uncorrected"),
    ),
    (
        _gauge("DEV_VGPU_LICENSE_STATUS", "Whether this is a virtual GPU with a licence."),
        lambda fields: _flag(fields.vgpu_licensed),
    ),
    (
        _gauge("DEV_PSTATE", "Performance state (0 at full performance to 15)."),
        lambda fields: _times(fields.performance_state, 1),
    ),
    (_gauge("DEV_CLOCKS_EVENT_REASONS", "Why the clocks are lowered (bits)."), _event_bits),
    (_gauge("DEV_CLOCK_THROTTLE_REASONS", "The same, as DCGM called it before 4."), _event_bits),
    _violation("power", "the power limit"),
    _violation("thermal", "heat"),
    _violation("sync_boost", "the slowest GPU of its group"),
    _violation("board_limit", "a limit of the board"),
    _violation("low_util", "too little work"),
    _violation("reliability", "the limits of reliability"),
)
"""Their metrics that only the driver's own answers give."""

PROFILED = {
    "graphics": _gauge("PROF_GR_ENGINE_ACTIVE", "Share of time the graphics engine is active."),
    "sm": _gauge("PROF_SM_ACTIVE", "Share of time an SM has a warp, averaged over all SMs."),
    "occupancy": _gauge("PROF_SM_OCCUPANCY", "Resident warps over the maximum."),
    "tensor": _gauge("PROF_PIPE_TENSOR_ACTIVE", "Share of time the tensor pipes are active."),
    "tensor_half": _gauge(
        "PROF_PIPE_TENSOR_HMMA_ACTIVE", "Share of time the tensor pipes compute in FP16 or BF16."
    ),
    "tensor_integer": _gauge(
        "PROF_PIPE_TENSOR_IMMA_ACTIVE", "Share of time the tensor pipes compute with integers."
    ),
    "tensor_fp64": _gauge(
        "PROF_PIPE_TENSOR_DFMA_ACTIVE", "Share of time the tensor pipes compute in FP64."
    ),
    "dram": _gauge("PROF_DRAM_ACTIVE", "Share of time the memory transfers data."),
    "fp64": _gauge("PROF_PIPE_FP64_ACTIVE", "Share of time the FP64 pipes are active."),
    "fp32": _gauge("PROF_PIPE_FP32_ACTIVE", "Share of time the FP32 pipes are active."),
    "fp16": _gauge("PROF_PIPE_FP16_ACTIVE", "Share of time the FP16 pipes are active."),
    "pcie_transmit": _gauge("PROF_PCIE_TX_BYTES", "PCIe bytes sent per second."),
    "pcie_receive": _gauge("PROF_PCIE_RX_BYTES", "PCIe bytes received per second."),
    "integer": _gauge("PROF_PIPE_INT_ACTIVE", "Share of time the integer pipes are active."),
    "c2c_transmit": _gauge("PROF_C2C_TX_ALL_BYTES", "Bytes sent to the CPU by C2C per second."),
    "c2c_receive": _gauge("PROF_C2C_RX_ALL_BYTES", "Bytes received from the CPU by C2C a second."),
    "nvlink_transmit": _gauge("PROF_NVLINK_TX_BYTES", "NVLink bytes sent per second."),
    "nvlink_receive": _gauge("PROF_NVLINK_RX_BYTES", "NVLink bytes received per second."),
}
"""By unit or link of ``Activity``, over the last window."""

XID = _gauge("DEV_XID_ERRORS", "The last XID error, also `err_code`; 0 if none.", "err_code")
COPY = _gauge("DEV_MEM_COPY_UTIL", "Memory utilization (%).")
FREE = _gauge("DEV_FB_FREE", "Frame buffer free (MiB).")
USED_SHARE = _gauge("DEV_FB_USED_PERCENT", "Frame buffer in use / not reserved (0 to 1).")
COUNT = _gauge("DEV_COUNT", "GPUs on the node.")
NVLINK = _gauge("DEV_NVLINK_BANDWIDTH_TOTAL", "Data over all NVLinks, both ways (MB/s).")
NVLINK_WAYS = {
    "transmit": _gauge("DEV_NVLINK_TX_BANDWIDTH_TOTAL", "Data sent over all NVLinks (MB/s)."),
    "receive": _gauge("DEV_NVLINK_RX_BANDWIDTH_TOTAL", "Data received over all NVLinks (MB/s)."),
}
RECOVERY = _gauge("DEV_GET_GPU_RECOVERY_ACTION", "What the driver advises (0 nothing).")
C2C_COUNT = _gauge("DEV_C2C_LINK_COUNT", "Links to the CPU of the module.")
C2C_STATUS = _gauge("DEV_C2C_LINK_STATUS", "Whether all links to the CPU are up.")
VIRTUAL = _gauge("DEV_VIRTUAL_MODE", "Virtual machine: 1 has the GPU, 2 a share, 3 and 4 its host.")
VIRTUAL_MODES = {"passthrough": 1.0, "vgpu": 2.0, "host_vgpu": 3.0, "host_vsga": 4.0}

WINDOW = 300.0
"""Seconds in which dcgm-exporter counts by default (``--xid-count-window-size`` and
``--clock-events-count-window-size``)."""

WINDOW_LABEL = f"{WINDOW * 1000:.0f}"

XID_COUNT = Metric(
    "DCGM_EXP_XID_ERRORS_COUNT",
    "gauge",
    "XID errors of the last `window_size_in_ms`, by `xid`; 0 without `xid` if none.",
    (*LABELS, "window_size_in_ms", "xid"),
)
XID_TOTAL = Metric(
    "DCGM_EXP_XID_ERRORS_TOTAL",
    "gauge",
    "XID errors since the daemon started, by `xid`.",
    (*LABELS, "xid"),
)
CLOCK_EVENTS = Metric(
    "DCGM_EXP_CLOCK_EVENTS_COUNT",
    "gauge",
    "Reads of the last `window_size_in_ms` that found the clocks lowered, by `clock_event`.",
    (*LABELS, "window_size_in_ms", "clock_event"),
)
CLOCK_EVENTS_TOTAL = Metric(
    "DCGM_EXP_CLOCK_EVENTS_TOTAL",
    "gauge",
    "How often the clocks began to be lowered since the daemon started, by `clock_event`.",
    (*LABELS, "clock_event"),
)
P2P = Metric(
    "DCGM_EXP_P2P_STATUS",
    "gauge",
    "NVLink to the GPU `peer_gpu`, by `link_status`: 0 is good.",
    (*LABELS, "peer_gpu", "link_status"),
)
P2P_STATES = (
    "OK",
    "ChipsetNotSupported",
    "GPUNotSupported",
    "TopologyNotSupported",
    "DisabledByRegKey",
    "NotSupported",
    "Unknown",
)
"""By NVML's number, ``nvmlGpuP2PStatus_t``."""

HEALTH = Metric(
    "DCGM_EXP_GPU_HEALTH_STATUS",
    "gauge",
    "Health of a part (`health_watch`) as gpunode sees it: 0 good, 10 a warning, 20 a failure.",
    (*LABELS, "health_watch", "health_error_code"),
)
JOB = Metric(
    "nvidia_gpu_jobId",
    "gauge",
    "The Slurm job that holds the GPU, as in the exporter of jobstats, by which programs join the "
    "others to a job.",
    ("minor_number", "name", "uuid"),
)
DUTY = Metric("nvidia_gpu_duty_cycle", "gauge", "GPU utilization (%), as there.", JOB.labels)

BEFORE_4_6 = (
    *(theirs for theirs, *_ in SCALED),
    *(theirs for theirs, _ in FIELDS),
    *PROFILED.values(),
    *NVLINK_WAYS.values(),
    *(XID, COPY, FREE, USED_SHARE, COUNT, NVLINK, RECOVERY, C2C_COUNT, C2C_STATUS, VIRTUAL),
)
SINCE_4_6 = {
    old: Metric(RENAMED[old.name], old.kind, old.help, old.labels)
    for old in BEFORE_4_6
    if old.name in RENAMED
}
"""The metrics under their names in DCGM 4.6: a site has either, as its counters file says."""

SINCE_4_7 = {
    old: (
        Metric(name, old.kind, f"{old.name.removeprefix('DCGM_FI_')} in base units.", old.labels),
        factor,
    )
    for old in BEFORE_4_6
    if old.name in BASE_UNITS
    for name, factor in (BASE_UNITS[old.name],)
}
"""The metrics in base units, under their names in DCGM 4.7."""

METRICS = (
    *BEFORE_4_6,
    *SINCE_4_6.values(),
    *(metric for metric, _ in SINCE_4_7.values()),
    *(XID_COUNT, XID_TOTAL, CLOCK_EVENTS, CLOCK_EVENTS_TOTAL, P2P, HEALTH, JOB, DUTY),
)

USED = frozenset(
    {
        *(ours for _, ours, *_ in SCALED),
        *HEALTH_READ,
        *(state.C2C_LINKS, state.MODE),
        *(xids.XIDS, xids.XID_TIME, units.NVLINK_BYTES, OWNER),
    }
)


class ByteRate(NamedTuple):
    """A counter of bytes, when it was read, and its rate since the read before."""

    bytes: float
    time: float
    rate: float | None


class Increments(NamedTuple):
    """A counter, and when it grew by how much."""

    total: float
    grown: tuple[tuple[float, float], ...]


class ClockEventWindow(NamedTuple):
    """Why a GPU's clocks were lowered at the reads of the window, and how often each began."""

    last: DcgmFields
    reads: tuple[tuple[float, tuple[str, ...]], ...]
    begun: Mapping[str, int]


class DcgmNames:
    """Exports the readings of the GPU sources under dcgm-exporter's names."""

    name = "compat"
    metrics = METRICS

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.settings = settings
        self.every = settings.gpu.interval
        self._moved: dict[tuple[str, ...], ByteRate] = {}
        self._xids: dict[tuple[str, ...], Increments] = {}
        self._events: dict[str, ClockEventWindow] = {}

    def read(self, readings: Readings) -> Reading:
        found = readings.values(USED)
        self._follow_links(found)
        now = readings.clock.monotonic()
        self._follow_xids(found, now - WINDOW)
        values: dict[tuple[str, ...], dict[tuple[Metric, tuple[str, ...]], float]] = {}
        for (metric, labels), (value, _) in found.items():
            values.setdefault(labels[:2], {})[metric, labels[2:]] = value
        windows = {one.place.uuid: one.detail for one in readings.details(gpu.WindowDetail)}
        by_gpu = [one.detail for one in readings.details(DcgmFields)]
        self._follow_events(by_gpu, now)
        boards = float(sum(not fields.identity.mig for fields in by_gpu))
        host = node_name.name(self.node, self.settings)
        faults = [one for told in readings.details(CurrentFaults) for one in told.detail.faults]
        samples: list[Sample] = []
        for fields in by_gpu:
            who = fields.identity
            of_gpu = values.get(who.labels, {})
            activity = self._activity(who, windows.get(who.uuid))
            shares = windows[who.uuid].memory_busy if who.uuid in windows else None
            known = [
                *_scaled_fields(of_gpu, fields),
                *_state_fields(of_gpu),
                *((theirs, activity.get(name)) for name, theirs in PROFILED.items()),
                (NVLINK, _bandwidth(activity)),
                *(
                    (theirs, _times(activity.get(f"nvlink_{way}"), 1 / NVLINK_MEGABYTE))
                    for way, theirs in NVLINK_WAYS.items()
                ),
                (COPY, _times(shares, 100)),
                (COUNT, boards),
            ]
            owners = {labels[:4] for metric, labels in of_gpu if metric is OWNER}
            for owner in sorted(owners) or [("", "", "", "")]:
                labels = _labels(fields, host, *owner)
                for theirs, reading in known:
                    samples += theirs.at(reading, *labels)
                samples += _last_xid(of_gpu, labels)
                samples += self._recent_xids(of_gpu, who, labels)
                samples += self._clock_events(who, labels)
                for peer, status in fields.peers.items():
                    known_as = P2P_STATES[status] if 0 <= status < len(P2P_STATES) else "Unknown"
                    samples += P2P.at(float(status), *labels, str(peer), known_as)
                for watch, verdict, error in health(of_gpu, fields, faults):
                    samples += HEALTH.at(float(verdict), *labels, watch, error)
            samples += _job_stats(of_gpu, who, owners)
        return Reading((*samples, *_renamed(samples)))

    def _follow_links(self, found: Mapping[Key, tuple[float, float]]) -> None:
        """Keep the NVLinks' counters: of GPUs without GPM, only they tell the rates."""
        before, self._moved = self._moved, {}
        for (metric, labels), (value, time) in found.items():
            if metric is units.NVLINK_BYTES:
                last = before.get(labels, ByteRate(value, time, None))
                rate = last.rate
                if time > last.time:
                    rate = increase((last.bytes, last.time), (value, time))
                self._moved[labels] = ByteRate(value, time, rate)

    def _follow_xids(self, found: Mapping[Key, tuple[float, float]], since: float) -> None:
        """Keep when the counts of XIDs grew, which begin with 0 as the daemon does.

        A count that is not reported for a while is no new one when it comes back.
        """
        for (metric, labels), (value, time) in found.items():
            if metric is xids.XIDS:
                count, grown = self._xids.get(labels, Increments(0.0, ()))
                more = value - count if value >= count else value  # it began anew
                if more > 0:
                    grown += ((time, more),)
                recent = tuple(each for each in grown if each[0] >= since)
                self._xids[labels] = Increments(value, recent)

    def _recent_xids(
        self, of_gpu: Values, who: Identity, labels: tuple[str, ...]
    ) -> Iterator[Sample]:
        """As dcgm-exporter has them; none where the GPU does not report XIDs."""
        reported = [of[0] for metric, of in of_gpu if metric is xids.XIDS]
        increments = {xid: self._xids[(*who.labels, xid)].grown for xid in reported}
        recent = {xid: sum(n for _, n in grown) for xid, grown in increments.items() if grown}
        if increments and not recent:
            yield from XID_COUNT.at(0.0, *labels, WINDOW_LABEL, "")
        for xid, number in recent.items():
            yield from XID_COUNT.at(number, *labels, WINDOW_LABEL, xid)
        for xid in reported:
            total = self._xids[(*who.labels, xid)].total
            yield from XID_TOTAL.at(total or None, *labels, xid)

    def _follow_events(self, by_gpu: Iterable[DcgmFields], now: float) -> None:
        """Keep the reads of the window, and count the events that the read before did not have."""
        before, self._events = self._events, {}
        for fields in by_gpu:
            events, uuid = fields.clock_events, fields.identity.uuid
            if events is None:
                continue
            seen = before.get(uuid, ClockEventWindow(fields, (), {}))
            reads, begun = seen.reads, dict(seen.begun)
            if not reads or seen.last is not fields:
                for event in set(events).difference(reads[-1][1] if reads else events):
                    begun[event] = begun.get(event, 0) + 1
                reads = (*reads, (now, events))
            recent = tuple(each for each in reads if each[0] >= now - WINDOW)
            self._events[uuid] = ClockEventWindow(fields, recent or reads[-1:], begun)

    def _clock_events(self, who: Identity, labels: tuple[str, ...]) -> Iterator[Sample]:
        seen = self._events.get(who.uuid)
        if seen is None:
            return
        for event, number in Counter(chain(*(events for _, events in seen.reads))).items():
            name = EVENT_NAMES.get(event, event)
            yield from CLOCK_EVENTS.at(float(number), *labels, WINDOW_LABEL, name)
        for event, number in seen.begun.items():
            yield from CLOCK_EVENTS_TOTAL.at(float(number), *labels, EVENT_NAMES.get(event, event))

    def _activity(self, who: Identity, window: gpu.WindowDetail | None) -> dict[str, float]:
        """What each unit and link did in the last window."""
        rates = {
            f"nvlink_{direction}": counted.rate
            for direction in DIRECTIONS
            if (counted := self._moved.get((*who.labels, direction))) and counted.rate is not None
        }
        return {**rates, **((window.activity if window else None) or {})}


def _renamed(samples: Iterable[Sample]) -> Iterator[Sample]:
    """The samples under the newer names, in the units of those."""
    for sample in samples:
        if sample.metric in SINCE_4_6:
            yield Sample(SINCE_4_6[sample.metric], sample.labels, sample.value)
        if sample.metric in SINCE_4_7 and isinstance(sample.value, float):
            metric, factor = SINCE_4_7[sample.metric]
            yield Sample(metric, sample.labels, sample.value * factor)


def _scaled_fields(values: Values, fields: DcgmFields) -> Iterator[tuple[Metric, float | None]]:
    for theirs, ours, labels, factor in SCALED:
        yield theirs, _times(values.get((ours, labels)), factor)
    for theirs, tell in FIELDS:
        yield theirs, tell(fields)
    total, used = (values.get((metric, ())) for metric in (gpu.MEMORY_TOTAL, gpu.MEMORY_USED))
    if total is not None and used is not None:
        usable = total - values.get((gpu.MEMORY_RESERVED, ()), 0.0)
        yield FREE, (usable - used) * MEBI
        yield USED_SHARE, used / usable if usable > 0 else None


def _state_fields(values: Values) -> Iterator[tuple[Metric, float | None]]:
    """Their numbers for what is a label of ours."""

    def labelled(ours: Metric) -> dict[str, float]:
        return {of[0]: value for (metric, of), value in values.items() if metric is ours}

    actions = labelled(state.RECOVERY_ACTION)
    for number, action in RECOVERY_ACTIONS.items():
        if action in actions:
            yield RECOVERY, float(number)
    for mode in labelled(state.MODE):
        yield VIRTUAL, VIRTUAL_MODES.get(mode)
    if links := labelled(state.C2C_LINKS):
        yield C2C_COUNT, sum(links.values())
        yield C2C_STATUS, float(not links.get("down"))


def _bandwidth(activity: Mapping[str, float]) -> float | None:
    sent, received = (activity.get(f"nvlink_{direction}") for direction in DIRECTIONS)
    return None if sent is None or received is None else (sent + received) / NVLINK_MEGABYTE


def _labels(
    fields: DcgmFields, host: str, namespace: str, pod: str, container: str, job: str
) -> tuple[str, ...]:
    who = fields.identity
    address = who.bus_id.upper().rjust(len("00000000:1B:00.0"), "0") if who.bus_id else ""
    instance = INSTANCE_NAME.fullmatch(who.name)
    return (
        str(who.index),
        who.parent or who.uuid,
        address,
        f"nvidia{who.index}",
        instance["board"] if instance else who.name,
        host,
        host,
        "" if who.gpu_instance is None else str(who.gpu_instance),
        instance["profile"] if instance else "",
        fields.driver_version,
        fields.driver_version,
        who.serial or "",
        who.serial or "",
        who.vbios or "",
        container,
        namespace,
        pod,
        job,
    )


def _last_xid(values: Values, labels: tuple[str, ...]) -> Iterator[Sample]:
    """None where the GPU does not report XIDs, or the last has no number."""
    times = {of[0]: time for (metric, of), time in values.items() if metric is xids.XID_TIME}
    if any(metric is xids.XIDS for metric, _ in values):
        last = max(times, key=times.__getitem__, default="0")
        yield from XID.at(float(last) if last.isdecimal() else None, *labels, last)


def _job_stats(values: Values, who: Identity, owners: Iterable[tuple[str, ...]]) -> list[Sample]:
    """The newest Slurm job on a GPU, and how busy the GPU is."""
    jobs = [int(job) for *_, job in owners if JOB_ID.fullmatch(job)]
    if not jobs:
        return []
    labels = str(who.index if who.minor is None else who.minor), who.name, who.uuid
    busy = _times(values.get((gpu.UTILIZATION, ())), 100)
    return [*JOB.at(float(max(jobs)), *labels), *DUTY.at(busy, *labels)]


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
