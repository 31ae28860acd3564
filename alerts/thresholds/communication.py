"""Jobs whose GPUs wait for each other: collectives, transports, NVLink, the pace of steps."""

from __future__ import annotations

from alerts.examples import HELD_B, ON_B, STREAK, TRAINS, TRAINS_B, WORKLESS, ledger, series
from alerts.model import Example, Threshold, Tier
from alerts.promql import GPU, JOB, NODE, gained, of_gpus, of_jobs, state
from alerts.recording.capacity import EXPECTED, MEASURED
from alerts.recording.jobs import OWN_CAUSES
from alerts.settings import (
    NVLINK_ERRORS,
    STALLED_FROM,
    STARVED_FROM,
    STILL_FROM,
    STRAGGLER_SLOWDOWN,
)
from alerts.thresholds.references import LEDGER, NCCL_ENV, NVML, RAS
from gpunode.nccl.bench import BANDWIDTH_LOW

P2P_DISABLED = series("gpunode_nccl_setting_info", name="NCCL_P2P_DISABLE", value="1")
SETTINGS_OFF = (
    'gpunode_nccl_setting_info{name=~"NCCL_P2P_DISABLE|NCCL_IB_DISABLE|NCCL_SHM_DISABLE",'
    'value!~"0|"}'
)
SOCKETS = 'gpunode_nccl_channels{transport="NET/Socket"}'
SHARED_MEMORY = 'gpunode_nccl_channels{transport="SHM"}'


def _over(expression: str, transport: str) -> str:
    """A transport by job, for GPUs on which it should not be in use."""
    return f'label_replace({of_jobs(expression, "sum")}, "transport", "{transport}", "", "")'


COMMUNICATION = (
    Threshold(
        alert="JobStalled",
        group="communication",
        summary="A job stands still in a collective",
        summary_ko="작업이 집합 통신에서 멈춰 있습니다",
        says="no GPU of the job has worked for {value}, and some wait in a collective",
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
                unless="job:gpunode_stalled:explained",
            ),
            Tier(
                severity="ticket",
                threshold=1800.0,
                after="0s",
                record="job:gpunode_waiting:seconds",
                says="a GPU of the job has waited in one collective for {value}",
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
        when="one GPU waits less for its peers than another, by {value} of the time, unless steps "
        "take {straggler_slowdown} times as long as at the run's best pace and the GPU's verdict "
        "names nothing of its own, and unless a GPU of the job has no data {starved_from} of the "
        "time",
        meaning="Everyone waits for the slowest rank, which waits least; here it is slow by "
        "a fault "
        "of its own, or has become so.",
        remedy="Fix what its verdict names, or replace the node.",
        source="https://arxiv.org/abs/2402.15627",
        record="job:gpunode_straggler:gap",
        signal=(
            f"(max by ({JOB}) (gpu:gpunode_gpu_blocked:gap_to_job and on ({GPU}) "
            f'max by ({GPU}) (gpunode_gpu_bottleneck{{cause=~"{OWN_CAUSES}"}}) == 1) '
            f"or on ({JOB}) (job:gpunode_gpu_blocked:gap - on ({JOB}) "
            "quantile_over_time(0.25, job:gpunode_gpu_blocked:gap[6h:5m]) "
            f"unless on ({JOB}) job:gpunode_training_step:slowdown < {STRAGGLER_SLOWDOWN})) "
            f"and on ({JOB}) job:gpunode_training:gpus > 1 "
            f"unless on ({JOB}) (job:gpunode_waiting:seconds > {STILL_FROM} "
            f"or on ({JOB}) job:gpunode_starved:ratio > {STARVED_FROM})"
        ),
        unit="percent",
        tiers=(Tier(severity="ticket", threshold=0.2, after="15m"),),
        scope="job",
        keep_firing_for="5m",
        example=Example(
            fires={
                **TRAINS,
                **TRAINS_B,
                **ledger(blocked=0.0),
                series("gpunode_gpu_seconds_total", state="blocked", **ON_B): 0.5,
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
        signal=(
            of_jobs(state("communication"), "avg") + f" and on ({JOB}) job:gpunode_training:gpus"
        ),
        unit="percent",
        tiers=(Tier(severity="ticket", threshold=0.4, after="30m"),),
        scope="job",
        of_owner=True,
        example=Example(
            fires={**TRAINS, **ledger(communication=0.6)},
            quiet=ledger(communication=0.3),
            value=0.6,
        ),
    ),
    Threshold(
        alert="JobTransport",
        group="communication",
        summary="NCCL does not use the best path between a job's GPUs",
        summary_ko="NCCL이 최적의 통신 경로를 사용하지 않습니다",
        says="GPUs or connections with {transport}: {value}",
        meaning="NCCL fell back to sockets or shared memory, or a variable disables a transport.",
        remedy="Unset the variable, give the pod its rdma/ resource, let ranks share an IPC "
        "namespace.",
        source=NCCL_ENV,
        record="job:gpunode_nccl_transport:count",
        signal=(
            _over(f"count by ({GPU}) ({SETTINGS_OFF})", "a transport disabled")
            + " or "
            + _over(
                f"sum by ({GPU}) (max by ({GPU}, communicator) ({SOCKETS})) "
                f"and on ({NODE}) max by ({NODE}) (gpunode_infiniband_active) > 0",
                "sockets instead of InfiniBand",
            )
            + " or "
            + _over(
                f"sum by ({GPU}) (max by ({GPU}, communicator) ({SHARED_MEMORY})) "
                f"and on ({GPU}) {of_gpus('gpunode_gpu_nvlink_up')} > 0",
                "shared memory instead of NVLink",
            )
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
        summary="NCCL is slower than these GPUs should be",
        summary_ko="NCCL 대역폭이 기대치보다 낮습니다",
        says="{collective} reached {value} of its expected bus bandwidth",
        meaning="`gpunode nccl-bench` measured less than the same GPUs reach elsewhere.",
        remedy="Take the node out of service until the link is repaired.",
        source="https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md",
        record="node:gpunode_nccl_bus_bandwidth:ratio",
        window="0s",
        unit="percent",
        comparison="<",
        tiers=(Tier(severity="ticket", threshold=BANDWIDTH_LOW, after="5m"),),
        scope="node",
        labels=("collective", "gpus"),
        example=Example(
            fires={
                series(MEASURED, collective="all_reduce", gpus="8"): 3e11,
                series(EXPECTED, collective="all_reduce", gpus="8"): 4.8e11,
            },
            quiet={series(MEASURED, collective="all_reduce", gpus="8"): 4.5e11},
            value=0.625,
        ),
    ),
    Threshold(
        alert="NvlinkFaulty",
        group="communication",
        summary="An NVLink of a GPU is down or reports errors",
        summary_ko="NVLink가 끊어졌거나 오류가 발생했습니다",
        says="{kind}: {value}",
        when="a link is down while others are up, or there were {nvlink_errors} errors of a kind "
        "in 15 minutes",
        meaning="A GPU has lost some of its NVLinks, or retransmits on them.",
        remedy="Reset the GPU; if that does not help, have the baseboard or bridge replaced.",
        source=NVML,
        record="gpu:gpunode_nvlink_fault:count",
        signal=(
            f"label_replace(count by ({GPU}) (max by ({GPU}, link) (gpunode_gpu_nvlink_up) == 0) "
            f"and on ({GPU}) {of_gpus('gpunode_gpu_nvlink_up')} > 0, "
            '"kind", "links down while others are up", "", "") '
            f"or label_replace({gained('gpunode_gpu_nvlink_errors_total', f'{GPU}, kind')} > "
            f'{NVLINK_ERRORS}, "kind", "$1 errors in 15 minutes", "kind", "(.+)")'
        ),
        window="15m",
        unit="count",
        tiers=(Tier(severity="ticket", threshold=0.0, after="5m"),),
        scope="gpu",
        labels=("kind",),
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
)
