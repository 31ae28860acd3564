"""Faults of GPUs and of PCI Express."""

from __future__ import annotations

from alerts.thresholds.references import ECC, NVML, XIDS
from alerts.thresholds.row import GPU, NODE, Example, Threshold, Tier, gained, series
from gpunode.driver.nvidia.xids import FROM_APPLICATIONS, OF_REPAIRED_MEMORY

HARMLESS_XIDS = "|".join(str(xid) for xid in sorted((*FROM_APPLICATIONS, *OF_REPAIRED_MEMORY)))
ACTIVITY = series("gpunode_source_up", source="gpu_activity", mountpoint="")
UNCORRECTED_ECC = series("gpunode_gpu_ecc_errors_total", kind="uncorrected")
RESET_ADVISED = series("gpunode_gpu_recovery_action", action="reset")
FABRIC_BANDWIDTH = series("gpunode_gpu_fabric_healthy", part="bandwidth")
LINK_DEGRADED = series("gpunode_pcie_link_degraded", bus_id="0000:1b:00.0", kind="gpu")
AER_ERRORS = series(
    "gpunode_pcie_aer_errors_total", bus_id="0000:1b:00.0", kind="gpu", severity="nonfatal"
)

HARDWARE = (
    Threshold(
        alert="GpuXid",
        group="hardware",
        summary="A GPU reported an error that needs action",
        summary_ko="GPU 오류(XID)가 발생했습니다",
        says="reported XID {xid} {value} ago",
        meaning="The driver reported an XID other than those of applications or repaired memory.",
        remedy="Do what NVIDIA's catalogue says for the XID: restart, reset or replace.",
        source=XIDS,
        signal=(
            f"time() - max by ({GPU}, xid) (gpunode_gpu_xid_last_timestamp_seconds"
            f'{{xid!~"{HARMLESS_XIDS}"}})'
        ),
        window="15m",
        unit="seconds",
        comparison="<",
        tiers=(Tier(severity="critical", threshold=900.0, after="0s"),),
        labels=("xid",),
        gate="always",
        example=Example(
            fires={series("gpunode_gpu_xid_last_timestamp_seconds", xid="79"): 4500.0},
            quiet={series("gpunode_gpu_xid_last_timestamp_seconds", xid="79"): None},
            value=540.0,
        ),
    ),
    Threshold(
        alert="GpuNotAnswering",
        group="hardware",
        summary="The driver does not answer for a GPU",
        summary_ko="GPU가 응답하지 않습니다",
        says="the driver does not answer for {uuid}",
        meaning="The GPU fell off the bus or a driver call hangs; its XIDs may never be reported.",
        remedy="Drain the node, then reset the GPU or power-cycle the node.",
        source=XIDS,
        signal=f'min by ({GPU}) (gpunode_source_up{{source="gpu_activity",gpu!=""}})',
        window="0s",
        unit="flag",
        comparison="<",
        tiers=(
            Tier(severity="warning", threshold=0.5, after="1m"),
            Tier(severity="critical", threshold=0.5, after="3m"),
        ),
        gate="always",
        example=Example(fires={ACTIVITY: 0.0}, quiet={ACTIVITY: 1.0}, value=0.0),
    ),
    Threshold(
        alert="GpuEccUncorrected",
        group="hardware",
        summary="A GPU's memory lost data",
        summary_ko="GPU 메모리에서 수정 불가능한 ECC 오류가 발생했습니다",
        says="uncorrected ECC errors in an hour: {value}",
        meaning="ECC found an error that it could not correct.",
        remedy="Reset the GPU when the job has ended; replace it if row remapping failed.",
        source=ECC,
        signal=gained('gpunode_gpu_ecc_errors_total{kind="uncorrected"}', window="1h"),
        window="1h",
        unit="count",
        tiers=(Tier(severity="critical", threshold=0.5, after="0s"),),
        gate="always",
        example=Example(fires={UNCORRECTED_ECC: 0.01}, quiet={UNCORRECTED_ECC: 0.0}, value=36.0),
    ),
    Threshold(
        alert="GpuRowRemapPending",
        group="hardware",
        summary="A GPU needs a reset to replace bad memory",
        summary_ko="GPU 메모리 행 재매핑을 위해 리셋이 필요합니다",
        says="needs a reset to replace bad memory",
        meaning="The driver replaces the bad row with a spare at the next reset.",
        remedy="Drain the node and reset the GPU.",
        source=ECC,
        signal=f"max by ({GPU}) (gpunode_gpu_row_remap_pending)",
        window="0s",
        unit="flag",
        tiers=(Tier(severity="warning", threshold=0.0, after="5m"),),
        gate="always",
        example=Example(
            fires={series("gpunode_gpu_row_remap_pending"): 1.0},
            quiet={series("gpunode_gpu_row_remap_pending"): 0.0},
            value=1.0,
        ),
    ),
    Threshold(
        alert="GpuRowRemapFailed",
        group="hardware",
        summary="A GPU has no spare memory left",
        summary_ko="GPU 메모리 행 재매핑에 실패했습니다",
        says="a bad row of its memory could not be replaced",
        meaning="The GPU has used up its spare rows.",
        remedy="Have the GPU replaced.",
        source=ECC,
        signal=f"max by ({GPU}) (gpunode_gpu_row_remap_failed)",
        window="0s",
        unit="flag",
        tiers=(Tier(severity="critical", threshold=0.0, after="0s"),),
        gate="always",
        example=Example(
            fires={series("gpunode_gpu_row_remap_failed"): 1.0},
            quiet={series("gpunode_gpu_row_remap_failed"): 0.0},
            value=1.0,
        ),
    ),
    Threshold(
        alert="GpuNeedsRecovery",
        group="hardware",
        summary="The driver asks for a GPU to be recovered",
        summary_ko="드라이버가 GPU 복구를 요청합니다",
        says="the driver advises {action}",
        meaning="The driver reports what the GPU needs: a reset, a drain or a reboot.",
        remedy="Do what the label `action` says.",
        source=NVML,
        signal=f'max by ({GPU}, action) (gpunode_gpu_recovery_action{{action!="none"}})',
        window="0s",
        unit="flag",
        tiers=(Tier(severity="critical", threshold=0.0, after="1m"),),
        labels=("action",),
        gate="always",
        example=Example(fires={RESET_ADVISED: 1.0}, quiet={RESET_ADVISED: 0.0}, value=1.0),
    ),
    Threshold(
        alert="GpuFabricUnhealthy",
        group="hardware",
        summary="The NVSwitch fabric of a GPU is unhealthy",
        summary_ko="NVSwitch 패브릭 상태가 비정상입니다",
        says="its NVSwitch fabric is unhealthy: {part}",
        meaning="The driver reports a problem with the fabric's bandwidth, routes or timeouts.",
        remedy="Restart the fabric manager while the GPUs are idle, or have the tray serviced.",
        source="https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/",
        signal=f"min by ({GPU}, part) (gpunode_gpu_fabric_healthy)",
        window="0s",
        unit="flag",
        comparison="<",
        tiers=(Tier(severity="critical", threshold=0.5, after="5m"),),
        labels=("part",),
        gate="always",
        example=Example(fires={FABRIC_BANDWIDTH: 0.0}, quiet={FABRIC_BANDWIDTH: 1.0}, value=0.0),
    ),
    Threshold(
        alert="PcieLinkDegraded",
        group="hardware",
        summary="A PCI Express link is narrower or slower than it should be",
        summary_ko="PCIe 링크가 저하되었습니다",
        says="the link of {bus_id} ({kind}) is narrower or slower than it should be",
        meaning="A GPU or adapter did not get all the lanes or the full speed of its slot.",
        remedy="Reseat the card, or replace the riser or cable.",
        source="https://docs.kernel.org/PCI/",
        signal=f"max by ({NODE}, bus_id, kind) (gpunode_pcie_link_degraded)",
        window="0s",
        unit="flag",
        tiers=(Tier(severity="warning", threshold=0.0, after="15m"),),
        scope="node",
        labels=("bus_id", "kind"),
        gate="always",
        example=Example(fires={LINK_DEGRADED: 1.0}, quiet={LINK_DEGRADED: 0.0}, value=1.0),
    ),
    Threshold(
        alert="PcieErrors",
        group="hardware",
        summary="A PCI Express device reports uncorrected errors",
        summary_ko="수정되지 않은 PCIe 오류가 발생했습니다",
        says="uncorrected errors of {bus_id} ({kind}) in 15 minutes: {value}",
        meaning="The device or its slot reports errors that retransmission does not correct.",
        remedy="Reseat the card; replace it if the errors continue.",
        source="https://docs.kernel.org/PCI/pcieaer-howto.html",
        signal=gained(
            'gpunode_pcie_aer_errors_total{severity!="correctable"}', f"{NODE}, bus_id, kind"
        ),
        window="15m",
        unit="count",
        tiers=(Tier(severity="warning", threshold=0.5, after="0s"),),
        scope="node",
        labels=("bus_id", "kind"),
        gate="always",
        example=Example(fires={AER_ERRORS: 0.01}, quiet={AER_ERRORS: 0.0}, value=9.0),
    ),
)
