"""Who reads dcgm-exporter's metrics, and which: the names and labels that public files ask for.

Their files stay where they are; these are the names that stand in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

import jobscope.dcgm
import kempnerpulse.translate.mapping

from gpunode.export.dcgm_renames import BASE_UNITS

DEV = "DCGM_FI_DEV_"
PROF = "DCGM_FI_PROF_"


@dataclass(frozen=True, slots=True)
class Client:
    """What reads the metrics: their names, and the labels that it selects or groups by."""

    name: str
    source: str
    names: tuple[str, ...]
    labels: tuple[str, ...] = ()


def _of(prefix: str, names: str) -> tuple[str, ...]:
    return tuple(prefix + name for name in names.split())


ACTIVE = "SM_ACTIVE SM_OCCUPANCY PIPE_TENSOR_ACTIVE DRAM_ACTIVE"
PIPES = "PIPE_FP16_ACTIVE PIPE_FP32_ACTIVE PIPE_FP64_ACTIVE"
ECC = "ECC_DBE_AGG_TOTAL ECC_DBE_VOL_TOTAL ECC_SBE_AGG_TOTAL ECC_SBE_VOL_TOTAL"
ROWS = "CORRECTABLE_REMAPPED_ROWS UNCORRECTABLE_REMAPPED_ROWS ROW_REMAP_FAILURE"
VIOLATIONS = (
    "POWER_VIOLATION THERMAL_VIOLATION SYNC_BOOST_VIOLATION BOARD_LIMIT_VIOLATION "
    "RELIABILITY_VIOLATION"
)
BASIC = "GPU_TEMP GPU_UTIL POWER_USAGE FB_USED SM_CLOCK MEM_CLOCK MEM_COPY_UTIL"
NVLINK_ERRORS = (
    "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL NVLINK_CRC_DATA_ERROR_COUNT_TOTAL "
    "NVLINK_REPLAY_ERROR_COUNT_TOTAL NVLINK_RECOVERY_ERROR_COUNT_TOTAL"
)
OCI = "https://github.com/oracle-quickstart/oci-hpc/tree/master/playbooks/roles"

CLIENTS = (
    Client(
        "dcgm-exporter's default set, 2.2 to 4.8",
        "https://github.com/NVIDIA/dcgm-exporter/blob/main/etc/default-counters.csv",
        (
            *_of(DEV, "SM_CLOCK MEM_CLOCK MEMORY_TEMP GPU_TEMP POWER_USAGE XID_ERRORS"),
            *_of(DEV, "TOTAL_ENERGY_CONSUMPTION PCIE_TX_THROUGHPUT PCIE_RX_THROUGHPUT"),
            *_of(DEV, "PCIE_REPLAY_COUNTER GPU_UTIL MEM_COPY_UTIL ENC_UTIL DEC_UTIL"),
            *_of(DEV, "FB_FREE FB_USED FB_RESERVED NVLINK_BANDWIDTH_TOTAL"),
            *_of(DEV, f"VGPU_LICENSE_STATUS {ROWS}"),
            *_of(PROF, "GR_ENGINE_ACTIVE PIPE_TENSOR_ACTIVE DRAM_ACTIVE"),
            *_of(PROF, "PCIE_TX_BYTES PCIE_RX_BYTES"),
        ),
        ("gpu", "UUID", "pci_bus_id", "device", "modelName", "DCGM_FI_DRIVER_VERSION"),
    ),
    Client(
        "dcgm-exporter's dashboard for Grafana",
        "https://grafana.com/grafana/dashboards/12239",
        (
            *_of(DEV, "GPU_TEMP POWER_USAGE SM_CLOCK GPU_UTIL FB_USED"),
            *_of(PROF, "PIPE_TENSOR_ACTIVE"),
        ),
        ("gpu",),
    ),
    Client(
        "oci-hpc, recording rules",
        f"{OCI}/prometheus/files",
        (
            "DCGM_EXP_GPU_HEALTH_STATUS",
            *_of(DEV, f"{VIOLATIONS} {ECC} {ROWS} ROW_REMAP_PENDING XID_ERRORS"),
        ),
        ("hostname",),
    ),
    Client(
        "oci-hpc, alerts",
        f"{OCI}/grafana/files",
        (
            *_of(DEV, f"{VIOLATIONS} LOW_UTIL_VIOLATION GPU_TEMP GPU_UTIL MEMORY_TEMP"),
            *_of(DEV, "SLOWDOWN_TEMP SHUTDOWN_TEMP"),
        ),
        ("hostname", "gpu"),
    ),
    Client(
        "oci-hpc, dashboards",
        f"{OCI}/grafana/files",
        (
            *_of(DEV, f"{ECC} {ROWS} COUNT DEC_UTIL ENC_UTIL FB_FREE FB_USED GPU_TEMP GPU_UTIL"),
            *_of(DEV, "MEMORY_TEMP MEM_CLOCK MEM_COPY_UTIL NVLINK_BANDWIDTH_TOTAL POWER_USAGE"),
            *_of(DEV, "PCIE_REPLAY_COUNTER SHUTDOWN_TEMP SLOWDOWN_TEMP SM_CLOCK XID_ERRORS"),
            *_of(DEV, "TOTAL_ENERGY_CONSUMPTION"),
            *_of(PROF, f"{ACTIVE} {PIPES} PCIE_TX_BYTES PCIE_RX_BYTES"),
        ),
        ("Hostname", "gpu"),
    ),
    Client(
        "OpenShift's console",
        "https://github.com/rh-ecosystem-edge/console-plugin-nvidia-gpu",
        (
            *_of(DEV, "DEC_UTIL ENC_UTIL GPU_TEMP MAX_MEM_CLOCK MAX_SM_CLOCK MEM_CLOCK"),
            *_of(DEV, "MEM_COPY_UTIL POWER_MGMT_LIMIT_MAX POWER_USAGE SM_CLOCK"),
            *_of(PROF, "GR_ENGINE_ACTIVE"),
        ),
        ("UUID", "modelName"),
    ),
    Client(
        "KempnerPulse 0.5.0",
        "https://pypi.org/project/kempnerpulse",
        tuple(kempnerpulse.translate.mapping.SOURCE_FIELD_MAP),
        ("gpu", "UUID"),
    ),
    Client(
        "jobscope 0.1.1",
        "https://pypi.org/project/jobscope",
        (*(spec.metric for spec in jobscope.dcgm.METRICS), "nvidia_gpu_jobId"),
    ),
    Client(
        "Google Cloud's dashboards",
        "https://github.com/GoogleCloudPlatform/monitoring-dashboard-samples/tree/master/dashboards/nvidia-gpu",
        (
            *_of(DEV, f"{BASIC} FB_TOTAL MEMORY_TEMP TOTAL_ENERGY_CONSUMPTION"),
            *_of(PROF, f"{ACTIVE} {PIPES} GR_ENGINE_ACTIVE PCIE_TX_BYTES PCIE_RX_BYTES"),
            *_of(PROF, "NVLINK_TX_BYTES NVLINK_RX_BYTES"),
        ),
        ("Hostname", "modelName", "gpu"),
    ),
    Client(
        "AWS's counters, dashboard and alerts",
        "https://github.com/aws-samples/awsome-distributed-training",
        (
            "DCGM_EXP_XID_ERRORS_COUNT",
            *_of(DEV, f"{BASIC} FB_FREE MEMORY_TEMP XID_ERRORS TOTAL_ENERGY_CONSUMPTION {ECC}"),
            *_of(DEV, f"{ROWS} {VIOLATIONS} LOW_UTIL_VIOLATION ENC_UTIL DEC_UTIL {NVLINK_ERRORS}"),
            *_of(DEV, "PCIE_REPLAY_COUNTER NVLINK_BANDWIDTH_TOTAL NVLINK_BANDWIDTH_L0"),
            *_of(DEV, "RETIRED_SBE RETIRED_DBE RETIRED_PENDING VGPU_LICENSE_STATUS"),
            *_of(PROF, f"{ACTIVE} {PIPES} GR_ENGINE_ACTIVE PCIE_TX_BYTES PCIE_RX_BYTES"),
        ),
        ("Hostname", "gpu"),
    ),
    Client(
        "Datadog's check",
        "https://github.com/DataDog/integrations-core/tree/master/dcgm",
        (
            *_of(DEV, f"{BASIC} {ROWS} DEC_UTIL ENC_UTIL FB_FREE FB_RESERVED FB_TOTAL"),
            *_of(DEV, "FB_USED_PERCENT NVLINK_BANDWIDTH_TOTAL PCIE_REPLAY_COUNTER MEMORY_TEMP"),
            *_of(DEV, "TOTAL_ENERGY_CONSUMPTION VGPU_LICENSE_STATUS XID_ERRORS COUNT FAN_SPEED"),
            *_of(DEV, "CLOCK_THROTTLE_REASONS POWER_MGMT_LIMIT PSTATE SLOWDOWN_TEMP"),
            *_of(PROF, f"{ACTIVE} {PIPES} GR_ENGINE_ACTIVE PCIE_TX_BYTES PCIE_RX_BYTES"),
        ),
    ),
    Client(
        "OpenCost",
        "https://github.com/opencost/opencost",
        _of(PROF, "GR_ENGINE_ACTIVE"),
        ("container", "namespace", "exported_pod"),
    ),
    Client(
        "CEEMS, recording rules",
        "https://github.com/mahendrapaipuri/ceems/tree/main/etc/prometheus/rules",
        (
            *_of(DEV, "FB_FREE FB_USED GPU_UTIL POWER_USAGE POWER_USAGE_INSTANT"),
            *_of(PROF, "GR_ENGINE_ACTIVE SM_ACTIVE SM_OCCUPANCY"),
        ),
        ("UUID",),
    ),
    Client(
        "Netdata, time that clocks are held back",
        "https://github.com/netdata/netdata/tree/master/src/go/plugin/go.d/collector/dcgm",
        _of(
            f"{DEV}CLOCKS_EVENT_REASON_",
            "SW_POWER_CAP_NS SW_THERM_SLOWDOWN_NS HW_THERM_SLOWDOWN_NS HW_POWER_BRAKE_SLOWDOWN_NS",
        ),
        ("UUID", "gpu"),
    ),
    Client(
        "dcgm-exporter 4.8.4, with the names of DCGM 4.6",
        "https://github.com/NVIDIA/dcgm-exporter/pull/745",
        (
            "DCGM_EXP_CLOCK_EVENTS_COUNT",
            "DCGM_EXP_P2P_STATUS",
            *_of(DEV, "BOARD_POWER_WATTS BOARD_POWER_LIMIT_DEFAULT_WATTS GPU_TEMP_CELSIUS"),
            *_of(DEV, "GPU_MAX_OP_TEMP_CELSIUS GPU_TEMP_MARGIN_CELSIUS MEMORY_TEMP_CELSIUS"),
            *_of(DEV, "GPU_UTIL_RATIO FB_USED_RATIO XID_ERROR PCIE_REPLAY_TOTAL"),
            *_of(DEV, "NVLINK_REPLAY_ERROR_TOTAL NVLINK_THROUGHPUT_TOTAL GPU_PSTATE"),
            *_of(DEV, "ROW_REMAP_CORRECTABLE_TOTAL ROW_REMAP_UNCORRECTABLE_TOTAL"),
            *_of(DEV, "ROW_REMAP_FAILED BANK_REMAP_AVAIL_MAX SRAM_EXCEEDED MEMORY_UNREPAIRABLE"),
            *_of(DEV, "GPU_RECOVERY_ACTION GPU_PERSISTENCE_MODE MIG_MODE GPU_VIRTUAL_MODE"),
            *_of(DEV, "C2C_LINK_QUANTITY C2C_LINK_STATUS FABRIC_MANAGER_STATUS"),
            *_of(DEV, "FABRIC_HEALTH_MASK INFOROM_VALID PCIE_CORRECTABLE_ERROR_TOTAL"),
            *_of(PROF, "GR_ENGINE_UTIL_RATIO SM_UTIL_RATIO TENSOR_UTIL_RATIO HMMA_UTIL_RATIO"),
            *_of(PROF, "DRAM_UTIL_RATIO INT_UTIL_RATIO FP32_UTIL_RATIO C2C_TX_ALL_BYTES"),
            *_of(PROF, "C2C_RX_ALL_BYTES PCIE_TX_BYTES_TOTAL PCIE_RX_BYTES_TOTAL"),
        ),
        ("UUID", "DCGM_FI_SYSTEM_DRIVER_VERSION", "DCGM_FI_DEV_BOARD_SERIAL"),
    ),
    Client(
        "dcgm-exporter's default set, 4.9.0, with the base units of DCGM 4.7",
        "https://github.com/NVIDIA/dcgm-exporter/releases/tag/4.7.0-4.9.0",
        (
            *(new for new, _ in BASE_UNITS.values()),
            *_of(DEV, "GPU_TEMP_CELSIUS MEMORY_TEMP_CELSIUS BOARD_POWER_WATTS PCIE_REPLAY_TOTAL"),
            *_of(DEV, "XID_ERROR ROW_REMAP_UNCORRECTABLE_TOTAL ROW_REMAP_CORRECTABLE_TOTAL"),
            *_of(DEV, "ROW_REMAP_FAILED VGPU_LICENSE_STATUS"),
            *_of(PROF, "GR_ENGINE_UTIL_RATIO TENSOR_UTIL_RATIO DRAM_UTIL_RATIO"),
            *_of(PROF, "PCIE_TX_BYTES PCIE_RX_BYTES"),
        ),
        ("gpu", "UUID", "hostname", "DCGM_FI_SYSTEM_DRIVER_VERSION"),
    ),
)

NOT_ANSWERED = {
    f"{DEV}PCIE_TX_THROUGHPUT": "takes 20 ms of the driver; PROF_PCIE_TX_BYTES has the same, "
    "and DCGM itself does not answer",
    f"{DEV}PCIE_RX_THROUGHPUT": "takes 20 ms of the driver; PROF_PCIE_RX_BYTES has the same, "
    "and DCGM itself does not answer",
    f"{DEV}FAN_SPEED": "GPUs of data centres have no fan",
    f"{DEV}NVLINK_BANDWIDTH_L0": "one link of many; NVLINK_BANDWIDTH_TOTAL has all of them",
    f"{DEV}FABRIC_HEALTH_SUMMARY": "FABRIC_HEALTH_MASK has the parts of it",
    f"{DEV}NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": "the driver counts all CRC errors in one, as "
    "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    **{
        f"{DEV}RETIRED_{pages}": "of GPUs before Ampere; the others remap rows"
        for pages in ("SBE", "DBE", "PENDING")
    },
    f"{PROF}PIPE_TENSOR_DMMA_ACTIVE": "no field of DCGM",
    f"{PROF}PIPE_TENSOR_QMMA_ACTIVE": "no field of DCGM",
}
"""Names for which there is no series on any GPU, and why."""

KINDS_NOT_ANSWERED = {
    "labels in a counters file, which change only with an update of the node; "
    "`gpunode_gpu_info` has those that gpunode reads": _of(
        "DCGM_FI_",
        "NVML_VERSION SYSTEM_NVML_VERSION PROCESS_NAME SYSTEM_PROCESS_NAME DEV_NAME DEV_GPU_NAME "
        "DEV_BRAND DEV_GPU_BRAND DEV_UUID DEV_GPU_UUID DEV_PCI_BUSID DEV_PCI_BUS_ID "
        "DEV_*INFOROM_VER DEV_INFOROM_*_VER DEV_INFOROM_*_VERSION",
    ),
    "no numbers: texts and structures for programs that link DCGM": _of(
        "DCGM_FI_",
        "UNKNOWN SYSTEM_FIELD_UNKNOWN BIND_UNBIND_EVENT SYSTEM_GPU_BIND_EVENT GPU_TOPOLOGY_* "
        "SYSTEM_PCI_TOPOLOGY SYSTEM_NVLINK_TOPOLOGY SYSTEM_GPU_AFFINITY DEV_MEM_AFFINITY_* "
        "DEV_MEMORY_AFFINITY_* DEV_CUDA_VISIBLE_DEVICES_STR CUDA_GPU_VISIBLE_DEVICES "
        "DEV_SUPPORTED_CLOCKS DEV_CLOCKS_SUPPORTED DEV_ACCOUNTING_DATA "
        "DEV_PROCESS_ACCOUNTING_STATS DEV_INFOROM_CONFIG_CHECK DEV_INFOROM_CHECKSUM",
    ),
    "settings that gpunode does not read": _of(
        "DCGM_FI_",
        "SYNC_BOOST SYSTEM_GPU_SYNC_BOOST DEV_AUTOBOOST DEV_CLOCKS_AUTOBOOST_MODE DEV_COMPUTE_MODE "
        "DEV_GPU_COMPUTE_MODE DEV_ECC_CURRENT DEV_ECC_MODE DEV_*_POWER_PROFILE_MASK "
        "DEV_BOARD_POWER_PROFILE_*",
    ),
    "`DCGM_EXP_P2P_STATUS` has it for each pair": _of(DEV, "P2P_NVLINK_STATUS NVLINK_P2P_STATUS"),
    "FABRIC_MANAGER_STATUS and FABRIC_HEALTH_MASK tell of the same failures": _of(
        DEV, "FABRIC_MANAGER_ERROR FABRIC_MANAGER_ERROR_CODE"
    ),
    "of GPUs before Ampere; the others remap rows": _of(DEV, "RETIRED_* PAGE_RETIRED_*"),
    "one link of many; the fields without a number have all of them": _of(
        DEV,
        "NVLINK_*_L? NVLINK_*_L?? NVLINK_*_ERROR_L?_TOTAL NVLINK_*_ERROR_L??_TOTAL "
        "NVLINK_BANDWIDTH_L* NVLINK_THROUGHPUT_L*",
    ),
    "the driver counts all CRC errors in one, as NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": _of(
        DEV, "NVLINK_CRC_DATA_ERROR_TOTAL"
    ),
    "counters and rates of NVLink of which `gpunode_gpu_nvlink_errors_total` has the errors, and "
    "`gpunode_gpu_nvlink_bytes_total` the bytes": _of(
        DEV,
        "GPU_NVLINK_ERRORS NVLINK_ERROR NVLINK_PPCNT_* NVLINK_COUNT_TX_* "
        "NVLINK_COUNT_RX_[BGMP]* NVLINK_COUNT_RX_REMOTE_ERRORS NVLINK_COUNT_LOCAL_* "
        "NVLINK_COUNT_LINK_RECOVERY_EVENTS NVLINK_COUNT_*_BER* NVLINK_?X_PACKET_* "
        "NVLINK_?X_BYTES_TOTAL NVLINK_RX_REMOTE_ERROR_TOTAL NVLINK_RX_GENERAL_ERROR_TOTAL "
        "NVLINK_INTEGRITY_ERROR_TOTAL NVLINK_RECOVERY_EVENT_TOTAL NVLINK_*_BER_* "
        "NVLINK_ECC_DATA_ERROR_COUNT_TOTAL NVLINK_ECC_ERROR_TOTAL",
    ),
    "of a host that shares its GPUs out to virtual machines": _of(
        DEV, "VGPU_[!L]* SUPPORTED_TYPE_INFO CREATABLE_VGPU_TYPE_IDS SUPPORTED_VGPU_TYPE_IDS"
    ),
    "of NVSwitches, which DCGM reads through a library of their own": _of(DEV, "NVSWITCH_* SXID_*"),
    "of the CPU, of which node_exporter and gpunode have metrics of their own": _of(DEV, "CPU_*"),
    "of network adapters, of which gpunode has metrics of its own": _of(DEV, "CONNECTX_*"),
    "engines for video and images, which training does not use": _of(PROF, "NVDEC* NVJPG* NVOFA*"),
    "cycles; `gpunode_gpu_active_seconds_total` has the same as seconds": _of(
        PROF, "*_CYCLES_*_TOTAL"
    ),
}
"""Further names without a series on any GPU, by the reason; ``*`` and ``?`` stand for any."""


def reason_for_none(name: str) -> str | None:
    """Why there is no series of a name; None for one that is not known to have none."""
    kinds = (why for why, names in KINDS_NOT_ANSWERED.items() if _any(name, names))
    return NOT_ANSWERED.get(name) or next(kinds, None)


def _any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


WATCHES_NOT_ANSWERED = {
    "PMU": "NVML has no reading of it",
    "MCU": "NVML has no reading of it",
    "SM": "NVML has no reading of it",
    "ALL": "what DCGM puts here is an XID",
}
"""Values of ``health_watch`` for which there is no series, and why."""
