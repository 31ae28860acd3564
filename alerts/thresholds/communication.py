"""Jobs whose GPUs wait for each other: collectives, transports, NVLink, the pace of steps."""

from __future__ import annotations

from alerts.examples import (
    HELD_B,
    NODE_A,
    ON_B,
    STREAK,
    TRAINS,
    TRAINS_B,
    WORKLESS,
    ledger,
    owner,
    series,
)
from alerts.model import Example, Series, Threshold, Tier
from alerts.promql import GPU, JOB, NODE, gained, of_gpus
from alerts.recording.capacity import ALL_REDUCE, EXPECTED, MEASURED
from alerts.recording.faults import INFO, LINK_LOST, LINK_UP, PEER_LOST, WITH_LINKS_DOWN, XIDS
from alerts.recording.parts import (
    COMMUNICATES,
    CONGESTED,
    DISABLED,
    NETWORK_IN_NODE,
    SAID_OWN_CAUSE,
    SHARED_MEMORY,
    SOCKETS,
    Part,
)
from alerts.settings import (
    CONGESTED_FROM,
    NVLINK_ERRORS,
    NVLINK_PEERS,
    PACE_KNOWN,
    SLOW_GPU,
    STALLED_FROM,
    STARVED_FROM,
    STILL_FROM,
    STRAGGLER_FROM,
    STRAGGLER_SLOWDOWN,
)
from alerts.thresholds.references import LEDGER, NCCL_ENV, NVLINK_REPORT, NVML, RAS
from gpunode.nccl.bench import BANDWIDTH_LOW

RECOVERED = "gpu:gpunode_nvlink_link_recovery:increase1h"
GPUS_RECOVERED = f"count by ({GPU}) ({RECOVERED})"
ROOTS = f'gpu:gpunode_nvlink_xid:age{{xid="{LINK_LOST}"}}'
LOST = f'gpu:gpunode_nvlink_xid:age{{xid="{PEER_LOST}"}}'
RECOVERY = {"kind": "recovery_successful"}
LINK_RECOVERY = series("gpunode_gpu_nvlink_link_errors_total", link="3", **RECOVERY)
INFO_B = Series(INFO.metric, (*INFO.labels, *ON_B.items()))
PEER = series(XIDS, xid=str(PEER_LOST), **ON_B)
P2P_DISABLED = series("gpunode_nccl_setting_info", name="NCCL_P2P_DISABLE", value="1")


def _over(part: Part, transport: str) -> str:
    """A transport by job, for GPUs on which it should not be in use."""
    return f'label_replace({part.over_nodes()}, "transport", "{transport}", "", "")'


COMMUNICATION = (
    Threshold(
        alert="JobStalled",
        group="communication",
        summary="A job or a server stands still",
        summary_ko="작업 또는 추론 서버가 멈춰 있습니다",
        says="no GPU of the job, or of a server's GPUs on one node, has worked for {value}, and "
        "some wait in a collective, or its engine has running requests and gives no token",
        when="no GPU of the job has worked for {value}, and some wait in a collective; of training "
        "that waited already when its nodes were first scraped, or that has not worked since it "
        "was started again, for {found_waiting_from}; of a "
        "server on one node, for {server_stalled_from}, unless its first GPU may wait for a "
        "request; or "
        "its engine has had running requests and given no token for {server_tokenless_from}; a "
        "page unless that has cost {paged_from} of GPU time, or the job has {paged_gpus} GPUs",
        meaning="An NCCL kernel waits for a peer that does not come; nothing computes or moves.",
        remedy="Find the rank that the others wait for, save its stack, then restart the job.",
        source=RAS,
        record="job:gpunode_stalled:seconds",
        window="0s",
        unit="seconds",
        tiers=(
            Tier(
                severity="page",
                threshold=STALLED_FROM.figure,
                after="0s",
                record="job:gpunode_stalled:to_page",
                unless="job:gpunode_stalled:explained",
            ),
            Tier(
                severity="ticket",
                threshold=1800.0,
                after="0s",
                record="job:gpunode_waiting:seconds",
                unless="job:gpunode_stalled:explained",
                says="a GPU of the job has waited in one collective for {value}; of a job on one "
                "GPU, only if NCCL's log names its communicator; of a server, only while its "
                "engine has yet to answer",
            ),
        ),
        scope="job",
        every="15s",
        keep_firing_for="5m",
        example=Example(
            fires={**TRAINS, **HELD_B, WORKLESS: 2000.0, STREAK: 2000.0},
            quiet={WORKLESS: 0.0, STREAK: 0.0},
            value=None,
            silenced_by={series("gpunode_gpu_waited_for", reason="evaluating"): 1.0},
        ),
    ),
    Threshold(
        alert="JobStraggler",
        group="communication",
        summary="A GPU holds back the others of its job",
        summary_ko="한 GPU가 같은 작업의 다른 GPU들을 지연시키고 있습니다",
        says="one GPU waits less for its peers than another, by {value} of the time",
        when="one GPU waits less for its peers than another, by {value} of the time: one whose "
        "verdict names a cause of its own or that reaches {slow_gpu} of what others do (GpuSlow), "
        "or any that waits by so much less than in the lower quartile of six hours, which takes "
        "{pace_known} looks at the job at work, unless steps take {straggler_slowdown} times as "
        "long as at the run's best pace; and unless a GPU of the job has no data {starved_from} of "
        "the time",
        meaning="Everyone waits for the slowest rank, which waits least; here it is slow by "
        "a fault "
        "of its own, or has become so.",
        remedy="Fix what its verdict names, or replace the node.",
        source="https://arxiv.org/abs/2402.15627",
        record="job:gpunode_straggler:gap",
        signal=(
            f"(max by ({JOB}) (gpu:gpunode_gpu_blocked:gap_to_job and on ({GPU}) "
            f"({SAID_OWN_CAUSE} "
            f"or on ({GPU}) gpu:gpunode_gpu_pace:ratio_to_others < {SLOW_GPU})) "
            f"or on ({JOB}) (job:gpunode_gpu_blocked:gap - on ({JOB}) "
            "(quantile_over_time(0.25, job:gpunode_gpu_blocked:gap_at_work[6h:5m]) and on "
            f"({JOB}) count_over_time(job:gpunode_gpu_blocked:gap_at_work[6h:5m]) >= {PACE_KNOWN}) "
            f"unless on ({JOB}) job:gpunode_training_step:slowdown < {STRAGGLER_SLOWDOWN})) "
            f"and on ({JOB}) job:gpunode_training:gpus > 1 "
            f"unless on ({JOB}) (job:gpunode_waiting:seconds > {STILL_FROM} "
            f"or on ({JOB}) job:gpunode_starved:ratio > {STARVED_FROM})"
        ),
        unit="percent",
        tiers=(Tier(severity="ticket", threshold=STRAGGLER_FROM.figure, after="15m"),),
        scope="job",
        keep_firing_for="5m",
        example=Example(
            fires={
                **TRAINS,
                **TRAINS_B,
                **ledger(blocked=0.0),
                series("gpunode_gpu_seconds_total", state="blocked", **ON_B): 0.5,
                INFO: 1.0,
                series("gpunode_gpu_bottleneck", cause="thermal"): 1.0,
            },
            quiet={series("gpunode_gpu_seconds_total", state="blocked", **ON_B): 0.1},
            value=0.5,
        ),
    ),
    Threshold(
        alert="JobCommunicationHigh",
        group="communication",
        summary="Collectives take much of a job's time",
        summary_ko="작업 시간의 상당 부분을 통신이 차지합니다",
        says="moves data between GPUs and computes nothing for {value} of the time",
        meaning="Communication is not overlapped with computation, as it is in healthy training.",
        remedy="Overlap communication, use larger buckets, or change the parallel layout.",
        source=LEDGER,
        record="job:gpunode_communication:ratio",
        signal=(COMMUNICATES.over_nodes() + f" and on ({JOB}) job:gpunode_training:gpus"),
        unit="percent",
        tiers=(
            Tier(
                severity="ticket",
                threshold=0.4,
                after="30m",
                unless="job:gpunode_communication:congested",
            ),
        ),
        scope="job",
        of_owner=True,
        example=Example(
            fires={**TRAINS, **ledger(communication=0.6)},
            quiet=ledger(communication=0.3),
            value=0.6,
        ),
    ),
    Threshold(
        alert="JobCongested",
        group="communication",
        summary="A congested network holds up a job's collectives",
        summary_ko="네트워크 혼잡으로 작업의 집합 통신이 느려졌습니다",
        says="moves data between GPUs and computes nothing for {value} of the time, while RDMA "
        "ports of its nodes show congestion",
        when="moves data between GPUs and computes nothing for {value} of the time, while an RDMA "
        "port of its nodes shows signs of congestion at {congested_from} a second",
        meaning="Switches mark or hold back the packets of the job, perhaps since it began.",
        remedy="Find what else uses the same links; check routing, ECN and PFC on the switches.",
        source="https://docs.nvidia.com/networking/display/nvidia5ttlkernel/counters",
        record="job:gpunode_communication:congested",
        signal=(
            f"{COMMUNICATES.over_nodes()} and on ({JOB}) job:gpunode_training:gpus "
            f"and on ({JOB}) (gpu:gpunode_job:member and on ({NODE}) {CONGESTED} > "
            f"{CONGESTED_FROM})"
        ),
        unit="percent",
        tiers=(Tier(severity="ticket", threshold=0.2, after="30m"),),
        scope="job",
        example=Example(
            fires={
                **TRAINS,
                **ledger(communication=0.3),
                series(
                    "gpunode_infiniband_congestion_events_total",
                    device="mlx5_0",
                    port="1",
                    kind="cnp_handled",
                ): 20000.0,
            },
            quiet=ledger(communication=0.1),
            value=0.3,
        ),
    ),
    Threshold(
        alert="JobTransport",
        group="communication",
        summary="NCCL does not use the best path between a job's GPUs",
        summary_ko="NCCL이 최적의 통신 경로를 사용하지 않습니다",
        says="GPUs or connections with {transport}: {value}",
        meaning="NCCL fell back to sockets or shared memory, ranks on one node exchange data over "
        "its network, or a variable disables a transport.",
        remedy="Unset the variable, give the pod its rdma/ resource, let ranks share an IPC "
        "namespace.",
        source=NCCL_ENV,
        record="job:gpunode_nccl_transport:count",
        signal=(
            _over(DISABLED, "a transport disabled")
            + " or "
            + _over(SOCKETS, "sockets instead of InfiniBand")
            + " or "
            + _over(SHARED_MEMORY, "shared memory instead of NVLink")
            + " or "
            + _over(NETWORK_IN_NODE, "the network inside one node")
        ),
        window="0s",
        unit="count",
        tiers=(Tier(severity="ticket", threshold=0.0, after="5m"),),
        scope="job",
        of_owner=True,
        labels=("transport",),
        example=Example(
            fires={**TRAINS, P2P_DISABLED: 1.0},
            quiet={P2P_DISABLED: None},
            value=1.0,
            labels={"transport": "a transport disabled"},
        ),
    ),
    Threshold(
        alert="JobSlowed",
        group="communication",
        summary="Training steps take longer than before",
        summary_ko="학습 스텝 시간이 길어졌습니다",
        says="a step takes {value} times as long as at the job's best pace",
        when="a step takes {value} times as long as at the best pace of this run, or of a run of "
        "the same name in the last week that had other versions",
        meaning="The run has slowed down since it started, or since an update.",
        remedy="Look at what has changed, then at the ledger; replace the node if it is hardware.",
        source="https://arxiv.org/abs/2410.12588",
        record="job:gpunode_training_step:slowed",
        window="0s",
        unit="number",
        tiers=(Tier(severity="ticket", threshold=1.3, after="30m"),),
        scope="job",
        example=Example(
            fires={
                **TRAINS,
                series("gpunode_training_step_median_seconds"): 3.0,
                series("gpunode_training_step_baseline_seconds"): 1.0,
            },
            quiet={series("gpunode_training_step_median_seconds"): 1.2},
            value=3.0,
        ),
    ),
    Threshold(
        alert="NcclBandwidthLow",
        group="communication",
        summary="NCCL is slower than these GPUs or their network should be",
        summary_ko="NCCL 대역폭이 기대치보다 낮습니다",
        says="{collective} reached {value} of its expected bus bandwidth",
        meaning="`gpunode nccl-bench` measured less than the same GPUs reach elsewhere or, between "
        "nodes, than adapters allow or other pairs of nodes reached.",
        remedy="Take the node out of service until the link is repaired.",
        source="https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md",
        record="node:gpunode_nccl_bus_bandwidth:ratio",
        window="0s",
        unit="percent",
        comparison="<",
        tiers=(Tier(severity="ticket", threshold=BANDWIDTH_LOW, after="5m"),),
        scope="node",
        dashboard="health",
        labels=("collective", "gpus", "nodes"),
        example=Example(
            fires={
                series(MEASURED, **ALL_REDUCE): 3e11,
                series(EXPECTED, **ALL_REDUCE): 4.8e11,
            },
            quiet={series(MEASURED, **ALL_REDUCE): 4.5e11},
            value=0.625,
        ),
    ),
    Threshold(
        alert="NvlinkFaulty",
        group="communication",
        summary="An NVLink of a GPU is down or reports errors",
        summary_ko="NVLink가 끊어졌거나 오류가 발생했습니다",
        says="{kind}: {value}",
        when="a link is down while others are up, or all are that were up before or that no other "
        "GPU of the node lacks, or there were {nvlink_errors} errors of a kind "
        "in 15 minutes",
        meaning="A GPU has lost some of its NVLinks, or retransmits on them.",
        remedy="Reset the GPU; if that does not help, have the baseboard or bridge replaced.",
        source=NVML,
        record="gpu:gpunode_nvlink_fault:count",
        signal=(
            f"label_replace({WITH_LINKS_DOWN} and on ({GPU}) {LINK_UP} > 0, "
            '"kind", "links down while others are up", "", "") '
            f"or label_replace({WITH_LINKS_DOWN} and on ({GPU}) {LINK_UP} == 0, "
            '"kind", "links down, all that it has", "", "") '
            f"or label_replace({gained('gpunode_gpu_nvlink_errors_total', f'{GPU}, kind')} > "
            f'{NVLINK_ERRORS}, "kind", "$1 errors in 15 minutes", "kind", "(.+)")'
        ),
        window="15m",
        unit="count",
        tiers=(Tier(severity="ticket", threshold=0.0, after="5m"),),
        scope="gpu",
        labels=("kind",),
        fault="nvlink",
        every="1m",
        example=Example(
            fires={
                series("gpunode_gpu_nvlink_up", link="0"): 1.0,
                series("gpunode_gpu_nvlink_up", link="1"): 0.0,
            },
            quiet={series("gpunode_gpu_nvlink_up", link="1"): 1.0},
            value=1.0,
            labels={"kind": "links down while others are up"},
        ),
    ),
    Threshold(
        alert="NvlinkRecovers",
        group="communication",
        summary="One NVLink fails and recovers again and again",
        summary_ko="한 NVLink가 반복해서 끊어졌다가 복구됩니다",
        says="link {link} recovered {value} times in an hour, and its peers did not",
        meaning="An NVLink that recovers alone often fails for good within days, and its whole "
        "domain with it.",
        remedy="Drain the node at the next opportunity; have the link's cable, tray or GPU tested.",
        source=NVLINK_REPORT,
        record="gpu:gpunode_nvlink_recovery:increase1h",
        signal=(
            f"{RECOVERED} and on ({GPU}) {GPUS_RECOVERED} < on ({GPU}) {NVLINK_PEERS} * "
            f"count by ({GPU}) (max by ({GPU}, link) (gpunode_gpu_nvlink_up)) "
            f"unless on ({NODE}) (count by ({NODE}) ({GPUS_RECOVERED}) > 1 and on ({NODE}) "
            f"count by ({NODE}) ({GPUS_RECOVERED}) >= on ({NODE}) {NVLINK_PEERS} * "
            f"count by ({NODE}) ({of_gpus('gpunode_gpu_nvlink_up')}))"
        ),
        window="1h",
        unit="count",
        tiers=(Tier(severity="ticket", threshold=1.0, after="1m"),),
        scope="gpu",
        labels=("link",),
        every="1m",
        keep_firing_for="1h",
        example=Example(
            fires={
                **{series("gpunode_gpu_nvlink_up", link=str(link)): 1.0 for link in range(4)},
                series("gpunode_gpu_nvlink_errors_total", **RECOVERY): 0.001,
                LINK_RECOVERY: 0.001,
            },
            quiet={
                series("gpunode_gpu_nvlink_errors_total", **RECOVERY): 0.0,
                LINK_RECOVERY: 0.0,
            },
            value=None,
            labels={"link": "3"},
        ),
    ),
    Threshold(
        alert="NvlinkDomainLost",
        group="communication",
        summary="The failed NVLink of one GPU has cost others their peers",
        summary_ko="한 GPU의 NVLink 고장으로 다른 GPU들도 연결을 잃었습니다",
        says="its NVLink failed first in the domain {domain} (XID 149), and {value} other GPUs "
        "lost it (XID 145)",
        meaning="The programs on all GPUs of the NVLink domain fail; one GPU is the cause.",
        remedy="Drain and reset this GPU, and no other; have its link repaired.",
        source=NVLINK_REPORT,
        record="gpu:gpunode_nvlink_root:lost",
        signal=(
            f"0 * max by ({GPU}, domain) ({ROOTS} == on (cluster, domain) group_left () "
            f"max by (cluster, domain) ({ROOTS})) "
            f"+ on (cluster, domain) group_left () "
            f"count by (cluster, domain) ({LOST} unless on ({GPU}) {ROOTS})"
        ),
        window="15m",
        unit="count",
        tiers=(Tier(severity="ticket", threshold=0.0, after="1m"),),
        scope="gpu",
        labels=("domain",),
        needs_all_nodes=True,
        example=Example(
            fires={
                INFO: 1.0,
                INFO_B: 1.0,
                series(XIDS, xid=str(LINK_LOST)): 1.0,
                PEER: 1.0,
                owner(owner_pod="train-0", **ON_B): 1.0,
            },
            quiet={PEER: None},
            value=1.0,
            labels={"domain": NODE_A},
        ),
    ),
)
