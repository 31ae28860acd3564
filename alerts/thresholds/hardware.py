"""Faults of GPUs, of PCI Express, and parts that a node no longer has."""

from __future__ import annotations

from alerts.examples import HELD, owner, series
from alerts.model import Example, Threshold, Tier
from alerts.promql import NODE, happened
from alerts.recording.behind import SLOW, SLOW_AT_LEAST, SOUND
from alerts.recording.faults import INFO, SPARE, UP, times_of_xids, with_fault
from alerts.recording.lemons import INCIDENT
from alerts.settings import BEHIND_FROM, XID_REMEMBERED_FOR, XIDS_OF_APPLICATIONS
from alerts.thresholds.references import NVML, XIDS

RESET_ADVISED = series("gpunode_gpu_recovery_action", action="reset")
REBOOT_ADVISED = series("gpunode_gpu_recovery_action", action="reboot")
LINK_DEGRADED = series("gpunode_pcie_link_degraded", bus_id="0000:1b:00.0", kind="gpu")
ON_BUS = series("gpunode_pcie_device_info", bus_id="0000:1b:00.0", kind="gpu")
APPLICATION_XID = series("gpunode_gpu_xid_last_timestamp_seconds", xid="31")
OF_PROGRAMS = f'xid=~"{XIDS_OF_APPLICATIONS}"'

HARDWARE = (
    Threshold(
        alert="GpuUnhealthy",
        group="hardware",
        summary="A GPU is out of order",
        summary_ko="GPU에 장애가 발생했습니다",
        says="needs attention",
        meaning="The driver reports an XID, lost memory or an unhealthy fabric, advises "
        "recovery, or "
        "does not answer. An XID that asks for a reset is told until there is evidence of one.",
        remedy="Drain the node, then do what the reasons ask: reset, reboot or replace.",
        source=XIDS,
        record="gpu:gpunode_gpu_fault:worst",
        window="15m",
        unit="flag",
        tiers=(
            Tier(severity="ticket", threshold=0.5, after="5m"),
            Tier(severity="page", threshold=1.5, after="1m", unless=SPARE),
        ),
        scope="gpu",
        fault="gpu",
        every="15s",
        keep_firing_for="5m",
        example=Example(fires={RESET_ADVISED: 1.0}, quiet={RESET_ADVISED: None}, value=2.0),
    ),
    Threshold(
        alert="GpuXidOfApplication",
        group="hardware",
        summary="A program on a GPU failed",
        summary_ko="GPU에서 실행된 프로그램에 오류가 발생했습니다",
        says="reported XID {xid} {value} ago",
        meaning="The XID ended one program; the GPU goes on.",
        remedy="Start the program again; look at the GPU if it happens to several programs on it.",
        source=XIDS,
        record="gpu:gpunode_gpu_xid_of_application:age",
        signal=(f"time() - {times_of_xids(OF_PROGRAMS)} < {XID_REMEMBERED_FOR}"),
        window="15m",
        unit="seconds",
        comparison="<",
        tiers=(Tier(severity="info", threshold=XID_REMEMBERED_FOR.figure, after="0s"),),
        scope="gpu",
        labels=("xid",),
        example=Example(fires={APPLICATION_XID: 1.0}, quiet={APPLICATION_XID: None}, value=0.0),
    ),
    Threshold(
        alert="GpuLemon",
        group="hardware",
        summary="A GPU has broken one job after another",
        summary_ko="한 GPU가 여러 작업을 잇따라 망가뜨렸습니다",
        says="{value} incidents within 30 days: different jobs that it broke or held up, and days "
        "with a fault, a reset or recoveries of an NVLink that no job met",
        when="{value} incidents within 30 days, if that is {lemon_beyond} times what other such "
        "GPUs of the cluster have: different jobs that it broke or held up, and days with a fault, "
        "a reset or recoveries of an NVLink that no job met",
        meaning="Each incident alone looks like the fault of its job. Together they are not.",
        remedy="Take the GPU out of service and test it before it goes back.",
        source="https://arxiv.org/abs/2410.21680",
        record="gpu:gpunode_lemon:outlier",
        window="0s",
        unit="count",
        tiers=(Tier(severity="ticket", threshold=2.0, after="0s"),),
        scope="gpu",
        needs_all_nodes=True,
        every="4m",
        example=Example(
            fires={
                **HELD,
                owner(owner_pod="eval-0"): 1.0,
                INFO: 1.0,
                APPLICATION_XID: 7300.0,
                series(INCIDENT, workload="eval-2"): 1.0,
                series(INCIDENT, workload="notebook"): 1.0,
            },
            quiet={INFO: 0.0},
            value=3.0,
        ),
    ),
    Threshold(
        alert="NodeSlow",
        group="hardware",
        summary="A node or one of its GPUs is slower than its peers, whatever runs on it",
        summary_ko="어떤 작업을 실행해도 노드 또는 노드의 GPU가 다른 노드보다 느립니다",
        says="{part} takes at least {value} longer than its peers in the jobs that ran on it",
        when="the node, or one GPU of it, surely takes {value} longer than its peers in the jobs "
        "of a day or of five days",
        meaning="In a collective everyone waits for the slowest. One job may be uneven by design; "
        "here it is the same node in all of its jobs, or by more than a design explains.",
        remedy="Compare its clocks, links and processes with those of its peers; keep large jobs "
        "away until it is as fast.",
        source="https://arxiv.org/abs/2402.15627",
        record="node:gpunode_behind:certain",
        window="0s",
        unit="percent",
        tiers=(Tier(severity="ticket", threshold=BEHIND_FROM.figure, after="3h"),),
        scope="node",
        labels=("part",),
        needs_all_nodes=True,
        every="4m",
        example=Example(
            fires=SLOW,
            quiet=SOUND,
            value=SLOW_AT_LEAST,
            labels={"part": "GPU 0"},
        ),
    ),
    Threshold(
        alert="HardwareMissing",
        group="hardware",
        summary="A node lacks hardware that it has had",
        summary_ko="노드에 있던 하드웨어가 인식되지 않습니다",
        says="missing parts of the kind {part}: {value}",
        meaning="GPUs, NVMe controllers or InfiniBand ports that the node had, and that neither "
        "came back nor were declared repaired, or GPUs on its PCI bus that the driver does not "
        "show.",
        remedy="Cordon the node; load the driver, or reseat or replace the part.",
        source=NVML,
        record="node:gpunode_hardware:missing_by_fault",
        signal=with_fault("node:gpunode_hardware:missing"),
        window="0s",
        unit="count",
        tiers=(
            Tier(severity="ticket", threshold=0.0, after="10m"),
            Tier(
                severity="page",
                threshold=0.0,
                after="15m",
                record="node:gpunode_gpus:missed",
                unless=SPARE,
                says="missing GPUs: {value}; not if nobody used them, and others of the node were "
                "in use",
            ),
        ),
        scope="node",
        labels=("part", "fault"),
        fault="gpu_missing",
        keep_firing_for="2m",
        example=Example(
            fires={UP: 1.0, ON_BUS: 1.0, INFO: None},
            quiet={INFO: 1.0},
            value=1.0,
            labels={"part": "gpu", "fault": "gpu_missing"},
        ),
    ),
    Threshold(
        alert="PcieFaulty",
        group="hardware",
        summary="A PCI Express link is degraded or reports errors",
        summary_ko="PCIe 링크의 속도나 폭이 낮아졌거나 오류가 발생했습니다",
        says="{bus_id} ({kind}): {value} (1 for a degraded link, else uncorrected errors in "
        "30 min)",
        meaning="A GPU or adapter did not get all the lanes or the full speed of its slot, "
        "or errs.",
        remedy="Reseat the card, or replace the riser or cable.",
        source="https://docs.kernel.org/PCI/pcieaer-howto.html",
        record="node:gpunode_pcie:faults",
        signal=(
            f"max by ({NODE}, bus_id, kind) (gpunode_pcie_link_degraded) > 0 or "
            + happened(
                'gpunode_pcie_aer_errors_total{severity!="correctable"}',
                f"{NODE}, bus_id, kind",
                "30m",
            )
        ),
        window="30m",
        unit="count",
        tiers=(Tier(severity="ticket", threshold=0.0, after="15m"),),
        scope="node",
        dashboard="health",
        labels=("bus_id", "kind"),
        every="1m",
        example=Example(fires={LINK_DEGRADED: 1.0}, quiet={LINK_DEGRADED: 0.0}, value=1.0),
    ),
)
