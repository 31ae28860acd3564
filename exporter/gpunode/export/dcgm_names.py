"""The readings under the names and labels of dcgm-exporter: ``--compat=dcgm``.

For dashboards, alerts and autoscalers built for it: the counters of its default set and of its
dashboards. https://github.com/NVIDIA/dcgm-exporter/blob/main/etc/default-counters.csv
Its counters are declared as gauges here, because OpenMetrics would append ``_total``.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.config import Settings
from gpunode.gpu import activity as gpu
from gpunode.gpu import health, power, xids
from gpunode.jobs.owners import OWNER
from gpunode.metric import Metric, Sample
from gpunode.node.node import Node
from gpunode.source import Key, Reading, Readings

LABELS = (
    "gpu",
    "UUID",
    "pci_bus_id",
    "device",
    "modelName",
    "Hostname",
    "GPU_I_ID",
    "container",
    "namespace",
    "pod",
)


def _gauge(name: str, text: str) -> Metric:
    return Metric(f"DCGM_FI_{name}", "gauge", text, LABELS)


MEBI = 1 / 2**20
SCALED: tuple[tuple[Metric, Metric, tuple[str, ...], float], ...] = (
    (_gauge("DEV_SM_CLOCK", "SM clock (MHz)."), gpu.SM_CLOCK, (), 1e-6),
    (_gauge("DEV_MEM_CLOCK", "Memory clock (MHz)."), gpu.MEMORY_CLOCK, (), 1e-6),
    (_gauge("DEV_MEMORY_TEMP", "Memory temperature (C)."), health.MEMORY_TEMPERATURE, (), 1),
    (_gauge("DEV_GPU_TEMP", "GPU temperature (C)."), gpu.TEMPERATURE, (), 1),
    (_gauge("DEV_POWER_USAGE", "Power draw (W)."), power.POWER, (), 1),
    (
        _gauge("DEV_TOTAL_ENERGY_CONSUMPTION", "Energy since the daemon started (mJ)."),
        power.ENERGY,
        (),
        1e3,
    ),
    (_gauge("DEV_PCIE_REPLAY_COUNTER", "PCIe retries."), health.PCIE_REPLAYS, (), 1),
    (_gauge("DEV_GPU_UTIL", "GPU utilization (%)."), gpu.UTILIZATION, (), 100),
    (_gauge("DEV_FB_USED", "Frame buffer in use (MiB)."), gpu.MEMORY_USED, (), MEBI),
    (_gauge("DEV_FB_RESERVED", "Frame buffer reserved (MiB)."), gpu.MEMORY_RESERVED, (), MEBI),
    (_gauge("DEV_FB_TOTAL", "Frame buffer (MiB)."), gpu.MEMORY_TOTAL, (), MEBI),
    (
        _gauge("DEV_UNCORRECTABLE_REMAPPED_ROWS", "Rows remapped for uncorrectable errors."),
        health.ROW_REMAPS,
        ("uncorrected",),
        1,
    ),
    (
        _gauge("DEV_CORRECTABLE_REMAPPED_ROWS", "Rows remapped for correctable errors."),
        health.ROW_REMAPS,
        ("corrected",),
        1,
    ),
    (_gauge("DEV_ROW_REMAP_FAILURE", "Whether a row remap failed."), health.REMAP_FAILED, (), 1),
)
"""Their metrics that equal one of ours in other units: theirs, ours, further labels, factor."""

PROFILED = {
    "graphics": _gauge("PROF_GR_ENGINE_ACTIVE", "Share of time the graphics engine is active."),
    "sm": _gauge("PROF_SM_ACTIVE", "Share of time an SM has a warp, averaged over all SMs."),
    "occupancy": _gauge("PROF_SM_OCCUPANCY", "Resident warps over the maximum."),
    "tensor": _gauge("PROF_PIPE_TENSOR_ACTIVE", "Share of time the tensor pipes are active."),
    "dram": _gauge("PROF_DRAM_ACTIVE", "Share of time the memory transfers data."),
    "fp64": _gauge("PROF_PIPE_FP64_ACTIVE", "Share of time the FP64 pipes are active."),
    "fp32": _gauge("PROF_PIPE_FP32_ACTIVE", "Share of time the FP32 pipes are active."),
    "fp16": _gauge("PROF_PIPE_FP16_ACTIVE", "Share of time the FP16 pipes are active."),
    "pcie_transmit": _gauge("PROF_PCIE_TX_BYTES", "PCIe bytes sent per second."),
    "pcie_receive": _gauge("PROF_PCIE_RX_BYTES", "PCIe bytes received per second."),
    "nvlink_transmit": _gauge("PROF_NVLINK_TX_BYTES", "NVLink bytes sent per second."),
    "nvlink_receive": _gauge("PROF_NVLINK_RX_BYTES", "NVLink bytes received per second."),
}
"""By unit or link of ``Activity``, over the last window."""

XID = _gauge("DEV_XID_ERRORS", "The last XID error; 0 if there was none.")
COPY = _gauge("DEV_MEM_COPY_UTIL", "Memory utilization (%).")
FREE = _gauge("DEV_FB_FREE", "Frame buffer free (MiB).")
METRICS = (*(theirs for theirs, *_ in SCALED), *PROFILED.values(), XID, COPY, FREE)

USED = frozenset({*(ours for _, ours, *_ in SCALED), xids.XIDS, xids.XID_TIME, health.INFO, OWNER})

Values = dict[Key, float]


class DcgmNames:
    """Exports the readings of the GPU sources under dcgm-exporter's names."""

    name = "compat"
    metrics = METRICS

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.gpu.interval

    def read(self, readings: Readings) -> Reading:
        try:
            host = self.node.read_text("/proc/sys/kernel/hostname").strip()
        except OSError:
            host = ""
        values = {key: value for key, (value, _) in readings.values(USED).items()}
        windows = {told.place.uuid: told.detail for told in readings.details(gpu.WindowDetail)}
        infos = [labels for metric, labels in values if metric is health.INFO]
        return Reading(
            tuple(
                sample
                for info in infos
                for labels in _labels(values, info, host)
                for sample in _samples(values, info[:2], windows.get(info[1]), labels)
            )
        )


def _labels(values: Values, info: tuple[str, ...], host: str) -> Iterator[tuple[str, ...]]:
    """The labels of a GPU: once, or once for each container that holds it, as in dcgm-exporter."""
    index, uuid, model, bus, *_, parent = info
    address = bus.upper().rjust(len("00000000:1B:00.0"), "0") if bus else ""
    who = index, parent or uuid, address, f"nvidia{index}", model, host, uuid if parent else ""
    owners = {  # owners outside containers have no names here, and count as one
        labels[2:5] for metric, labels in values if metric is OWNER and labels[:2] == info[:2]
    }
    for namespace, pod, container in sorted(owners) or [("", "", "")]:
        yield (*who, container, namespace, pod)


def _samples(
    values: Values, at: tuple[str, ...], window: gpu.WindowDetail | None, labels: tuple[str, ...]
) -> Iterator[Sample]:
    for theirs, ours, suffix, factor in SCALED:
        value = values.get((ours, (*at, *suffix)))
        yield from theirs.at(None if value is None else value * factor, *labels)
    activity = (window.activity if window else None) or {}
    for name, theirs in PROFILED.items():
        yield from theirs.at(activity.get(name), *labels)
    copying = window.memory_busy if window else None
    yield from COPY.at(None if copying is None else copying * 100, *labels)
    memory = [values.get((metric, at)) for metric in (gpu.MEMORY_TOTAL, gpu.MEMORY_USED)]
    if memory[0] is not None and memory[1] is not None:
        reserved = values.get((gpu.MEMORY_RESERVED, at), 0.0)
        yield from FREE.at((memory[0] - memory[1] - reserved) * MEBI, *labels)
    times = {
        found[2]: time
        for (metric, found), time in values.items()
        if metric is xids.XID_TIME and found[:2] == at
    }
    if any(metric is xids.XIDS and found[:2] == at for metric, found in values):
        last = max(times, key=times.__getitem__, default="0")
        yield from XID.at(float(last) if last.isdecimal() else None, *labels)
