"""Health of a GPU's parts in the words of DCGM, from what gpunode reads itself.

DCGM has a watch for each part; those of PMU, MCU and SM have no reading in NVML.
https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/feature-overview.html#background-health-checks
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpunode.gpu import health as state
from gpunode.gpu.dcgm_fields import DcgmFields
from gpunode.gpu.nvlink import NVLINK_UP
from gpunode.metric import Metric

GOOD, WARNING, FAILURE = 0, 10, 20
"""``dcgmHealthWatchResults_t``."""

HEALTH_READ = frozenset(
    {
        state.CLOCK_EVENT,
        state.FABRIC_HEALTHY,
        state.PCIE_WIDTH,
        state.PCIE_WIDTH_MAX,
        state.RECOVERY_ACTION,
        state.REMAP_FAILED,
        state.REMAP_PENDING,
        NVLINK_UP,
    }
)

RECOVERY = {
    "none": (GOOD, "OK"),
    "reset": (FAILURE, "GPU_RECOVERY_RESET"),
    "reboot": (FAILURE, "GPU_RECOVERY_REBOOT"),
    "drain_p2p": (WARNING, "GPU_RECOVERY_DRAIN_P2P"),
    "drain_and_reset": (FAILURE, "GPU_RECOVERY_DRAIN_RESET"),
}

Values = Mapping[tuple[Metric, tuple[str, ...]], float]
"""What is known of one GPU: by metric, and its labels besides those of the GPU."""

Found = tuple[bool | float | None, int, str]
"""Whether a fault is there, None if that is not known; how bad it is; DCGM's name for it."""


def health(values: Values, fields: DcgmFields) -> Iterator[tuple[str, int, str]]:
    """Each watch of which something is known, the worst that it found, and DCGM's error."""
    for watch, faults in _faults(values, fields).items():
        known = [(bad, error) for there, bad, error in faults if there]
        if known or any(there is not None for there, *_ in faults):
            bad, error = max(known, default=(GOOD, "OK"))
            yield watch, bad, f"DCGM_FR_{error}"


def _faults(values: Values, fields: DcgmFields) -> dict[str, list[Found]]:
    def now(reason: str) -> float | None:
        return values.get((state.CLOCK_EVENT, (reason,)))

    links = [up for (metric, _), up in values.items() if metric is NVLINK_UP]
    fabric = [healthy for (metric, _), healthy in values.items() if metric is state.FABRIC_HEALTHY]
    width, widest = (values.get((m, ())) for m in (state.PCIE_WIDTH, state.PCIE_WIDTH_MAX))
    narrow = None if width is None or widest is None else width < widest
    valid = fields.inforom_valid
    actions = [labels[0] for metric, labels in values if metric is state.RECOVERY_ACTION]
    return {
        "PCIE": [(narrow, WARNING, "PCIE_WIDTH")],
        "NVLINK": [
            (0.0 in links if links else None, FAILURE, "NVLINK_DOWN"),
            (0.0 in fabric if fabric else None, FAILURE, "FIELD_VIOLATION"),
        ],
        "MEM": [
            (values.get((state.REMAP_FAILED, ())), FAILURE, "ROW_REMAP_FAILURE"),
            (fields.ecc.get("uncorrected"), FAILURE, "VOLATILE_DBE_DETECTED"),
            (values.get((state.REMAP_PENDING, ())), WARNING, "PENDING_ROW_REMAP"),
        ],
        "INFOROM": [(None if valid is None else not valid, WARNING, "CORRUPT_INFOROM")],
        "THERMAL": [
            (now("sw_thermal"), WARNING, "CLOCKS_EVENT_THERMAL"),
            (now("hw_thermal"), WARNING, "CLOCKS_EVENT_THERMAL"),
        ],
        "POWER": [(now("hw_power_brake"), WARNING, "CLOCKS_EVENT_POWER")],
        "DRIVER": [(True, *RECOVERY[action]) for action in actions if action in RECOVERY],
    }
