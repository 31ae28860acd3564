"""Health of a GPU's parts in the words of DCGM: the faults that last, by the watch that tells them.

DCGM has a watch for each part; those of PMU, MCU and SM have no reading in NVML.
https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/feature-overview.html#background-health-checks
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpunode.faults.fault import Fault
from gpunode.gpu import health as state
from gpunode.gpu.dcgm_fields import DcgmFields
from gpunode.gpu.nvlink import NVLINK_UP
from gpunode.metric import Metric

GOOD, WARNING, FAILURE = 0, 10, 20
"""``dcgmHealthWatchResults_t``."""

READ_BY = {
    "PCIE": (state.PCIE_WIDTH,),
    "NVLINK": (NVLINK_UP, state.FABRIC_HEALTHY),
    "MEM": (state.REMAP_FAILED, state.REMAP_PENDING, state.ECC),
    "THERMAL": (state.THROTTLED,),
    "POWER": (state.THROTTLED,),
    "DRIVER": (state.RECOVERY_ACTION,),
}
"""By watch, the metrics of which one is there where its part is looked at."""

HEALTH_READ = frozenset(metric for metrics in READ_BY.values() for metric in metrics)

BY_REASON = {
    "row_remap_failed": ("MEM", FAILURE, "ROW_REMAP_FAILURE"),
    "row_remap_pending": ("MEM", WARNING, "PENDING_ROW_REMAP"),
    "memory_lost_data": ("MEM", FAILURE, "VOLATILE_DBE_DETECTED"),
    "memory_lost_data_contained": ("MEM", FAILURE, "VOLATILE_DBE_DETECTED"),
    "driver_advises_reset": ("DRIVER", FAILURE, "GPU_RECOVERY_RESET"),
    "driver_advises_reset_for_a_row": ("DRIVER", FAILURE, "GPU_RECOVERY_RESET"),
    "driver_advises_reboot": ("DRIVER", FAILURE, "GPU_RECOVERY_REBOOT"),
    "driver_advises_drain_p2p": ("DRIVER", WARNING, "GPU_RECOVERY_DRAIN_P2P"),
    "driver_advises_drain_and_reset": ("DRIVER", FAILURE, "GPU_RECOVERY_DRAIN_RESET"),
}
"""By the reason of a fault, and below by its part where the reason does not matter."""

BY_PART = {
    "pcie": ("PCIE", WARNING, "PCIE_WIDTH"),
    "nvlink": ("NVLINK", FAILURE, "NVLINK_DOWN"),
    "fabric": ("NVLINK", FAILURE, "FIELD_VIOLATION"),
    "thermal": ("THERMAL", WARNING, "CLOCKS_EVENT_THERMAL"),
    "power": ("POWER", WARNING, "CLOCKS_EVENT_POWER"),
}

Values = Mapping[tuple[Metric, tuple[str, ...]], float]
"""What is known of one GPU: by metric, and its labels besides those of the GPU."""


def health(
    values: Values, fields: DcgmFields, faults: Iterable[Fault]
) -> Iterator[tuple[str, int, str]]:
    """Each watch of which something is known, the worst of the GPU's faults, and DCGM's error."""
    there = {metric for metric, _ in values}
    worst = {watch: (GOOD, "OK") for watch, read in READ_BY.items() if there.intersection(read)}
    if fields.inforom_valid is not None:
        worst["INFOROM"] = (GOOD, "OK") if fields.inforom_valid else (WARNING, "CORRUPT_INFOROM")
    for fault in faults:
        told = BY_REASON.get(fault.reason) or BY_PART.get(fault.where.part)
        if told is not None and fault.where.uuid == fields.identity.uuid:
            watch, bad, error = told
            worst[watch] = max(worst.get(watch, (GOOD, "")), (bad, error))
    for watch, (bad, error) in worst.items():
        yield watch, bad, f"DCGM_FR_{error}"
