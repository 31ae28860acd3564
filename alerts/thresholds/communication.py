"""GPUs that wait for each other: collectives, NCCL's transports, NVLink, and the pace of steps."""

from __future__ import annotations

from alerts.thresholds.references import LEDGER, NCCL_ENV, NVML, RAS, VERDICT, XIDS
from alerts.thresholds.row import (
    GPU,
    NCCL_BANDWIDTH,
    NODE,
    PAUSE,
    PAUSED,
    Example,
    Threshold,
    Tier,
    gained,
    ledger,
    owner,
    rate,
    series,
    state,
)
from gpunode.nccl.bench import BANDWIDTH_LOW
from gpunode.verdict.limits import COMMUNICATES, STEP_OVERDUE, STEP_OVERDUE_LEAST

BLOCKED_STREAK = f"max by ({GPU}) (gpunode_gpu_blocked_streak_seconds)"
LONGEST_PAUSE = 600
"""Seconds after which a pause no longer excuses a collective: the time-out of PyTorch.
https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group"""

PAUSES = (
    f"(max by ({GPU}) (gpunode_training_step_median_seconds) or on ({GPU}) {PAUSE} > {PAUSED:g}) "
    f"unless on ({GPU}) max by ({GPU}) (gpunode_training_last_step_timestamp_seconds)"
)
"""GPUs whose training reports its steps and says that none is due now."""

OVERDUE = (
    f"no step has ended for {STEP_OVERDUE:g} times the median step "
    f"and at least {STEP_OVERDUE_LEAST:g} s"
)
BUS_BANDWIDTH = "gpunode_nccl_bus_bandwidth_bytes_per_second"
EXPECTED_BUS_BANDWIDTH = "gpunode_nccl_expected_bus_bandwidth_bytes_per_second"
P2P_DISABLED = series("gpunode_nccl_setting_info", name="NCCL_P2P_DISABLE", value="1")
OVER_SOCKETS = series("gpunode_nccl_channels", communicator="1", transport="NET/Socket")
OVER_SHM = series("gpunode_nccl_channels", communicator="1", transport="SHM")
DEAD_RANK = series(
    "gpunode_nccl_awaited_rank_info",
    communicator="1",
    rank="3",
    host="10.0.0.3",
    pid="42",
    nvml_device="3",
    reason="dead",
)
PEER_BLOCKED = series("gpunode_gpu_seconds_total", gpu="1", uuid="GPU-b", state="blocked")
COLLECTIVE_STALLED = series("gpunode_training_stalled", cause="collective")

COMMUNICATION = (
    Threshold(
        alert="CollectiveStalled",
        group="communication",
        summary="A collective has stalled",
        summary_ko="집합 통신이 멈췄습니다",
        says="has done nothing but spin in a kernel for {value}",
        meaning="An NCCL kernel waits for a peer; it computes nothing and moves no data.",
        remedy="Find the rank that the others wait for, then restart the job.",
        source=RAS,
        signal=BLOCKED_STREAK,
        where=f"unless on ({GPU}) ({PAUSES} unless on ({GPU}) {BLOCKED_STREAK} > {LONGEST_PAUSE})",
        window="0s",
        unit="seconds",
        tiers=(
            Tier(severity="warning", threshold=20.0, after="0s"),
            Tier(severity="critical", threshold=120.0, after="0s"),
        ),
        gate="always",
        example=Example(
            fires={series("gpunode_gpu_blocked_streak_seconds"): 200.0, **ledger(blocked=1.0)},
            quiet={series("gpunode_gpu_blocked_streak_seconds"): 15.0},
            value=200.0,
            silenced_by={series("gpunode_training_step_median_seconds"): 1.0},
        ),
    ),
    Threshold(
        alert="GpuBlocked",
        group="communication",
        summary="A GPU waits for a slower peer",
        summary_ko="GPU가 느린 다른 GPU를 기다리고 있습니다",
        says="spins in collectives until a peer arrives for {value} of the time",
        meaning="Another rank is late in every step; that rank itself waits less.",
        remedy="Fix the late rank: its data, its clocks or its host.",
        source=LEDGER,
        signal=state("blocked"),
        unit="percent",
        tiers=(Tier(severity="warning", threshold=0.15, after="15m"),),
        keep_firing_for="5m",
        example=Example(fires=ledger(blocked=0.4), quiet=ledger(blocked=0.1), value=0.4),
    ),
    Threshold(
        alert="JobStraggler",
        group="communication",
        summary="A GPU holds back the others of its job",
        summary_ko="작업의 다른 GPU들을 지연시키는 GPU가 있습니다",
        says="waits less than another GPU of its job, by {value} of the time",
        meaning="In a synchronous job everyone waits for the slowest rank, which waits least.",
        remedy="Fix what its verdict names, or replace the node.",
        source="https://arxiv.org/abs/2402.15627",
        signal=f"max by ({GPU}) (gpu:gpunode_gpu_blocked:gap_to_job)",
        unit="percent",
        tiers=(Tier(severity="warning", threshold=0.2, after="15m"),),
        keep_firing_for="5m",
        over_nodes=True,
        example=Example(
            fires={
                **ledger(blocked=0.0),
                PEER_BLOCKED: 0.5,
                owner(owner_pod="train-1", gpu="1", uuid="GPU-b"): 1.0,
            },
            quiet={PEER_BLOCKED: 0.1},
            value=0.5,
        ),
    ),
    Threshold(
        alert="CommunicationHigh",
        group="communication",
        summary="Collectives take much of the time",
        summary_ko="통신이 많은 시간을 차지합니다",
        says="moves data to other GPUs and computes nothing for {value} of the time",
        meaning="Communication is not overlapped with computation, as it is in healthy training.",
        remedy="Overlap communication, use larger buckets, or change the parallel layout.",
        source=LEDGER,
        signal=state("communication"),
        unit="percent",
        tiers=(Tier(severity="warning", threshold=0.4, after="30m"),),
        example=Example(
            fires=ledger(communication=0.6), quiet=ledger(communication=0.3), value=0.6
        ),
    ),
    Threshold(
        alert="NcclTransportDisabled",
        group="communication",
        summary="A job runs with an NCCL transport disabled",
        summary_ko="NCCL 전송 방식이 비활성화되어 있습니다",
        says="{name} is set in the job's environment",
        meaning="A debugging variable such as NCCL_P2P_DISABLE was left set.",
        remedy="Unset the variable and restart the job.",
        source=NCCL_ENV,
        signal=(
            f"sum by ({GPU}, name) (gpunode_nccl_setting_info"
            '{name=~"NCCL_P2P_DISABLE|NCCL_IB_DISABLE|NCCL_SHM_DISABLE",value!~"0|"})'
        ),
        window="0s",
        unit="flag",
        tiers=(Tier(severity="warning", threshold=0.0, after="5m"),),
        labels=("name",),
        gate="always",
        example=Example(fires={P2P_DISABLED: 1.0}, quiet={P2P_DISABLED: 0.0}, value=1.0),
    ),
    Threshold(
        alert="NcclOverSockets",
        group="communication",
        summary="NCCL uses sockets although the node has InfiniBand",
        summary_ko="InfiniBand가 있는데 NCCL이 소켓을 사용합니다",
        says="NCCL connections over TCP sockets: {value}",
        meaning="NCCL could not use the InfiniBand adapters and fell back without an error.",
        remedy="Give the pod an rdma/ resource and IPC_LOCK; check NCCL_IB_HCA and the GID index.",
        source=NCCL_ENV,
        signal=f'sum by ({GPU}) (gpunode_nccl_channels{{transport="NET/Socket"}})',
        where=f"and on ({NODE}) max by ({NODE}) (gpunode_infiniband_active) > 0",
        window="0s",
        unit="count",
        tiers=(Tier(severity="warning", threshold=0.0, after="5m"),),
        gate="always",
        example=Example(
            fires={
                OVER_SOCKETS: 8.0,
                series("gpunode_infiniband_active", device="mlx5_0", port="1"): 1.0,
            },
            quiet={OVER_SOCKETS: 0.0},
            value=8.0,
        ),
    ),
    Threshold(
        alert="NcclOverSharedMemory",
        group="communication",
        summary="NCCL goes through host memory although the GPUs have NVLink",
        summary_ko="NVLink가 있는데 NCCL이 공유 메모리를 사용합니다",
        says="NCCL connections through shared memory: {value}",
        meaning="Peer-to-peer access is disabled or not possible between these GPUs.",
        remedy="Unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL; let the ranks share an IPC namespace.",
        source=NCCL_ENV,
        signal=f'sum by ({GPU}) (gpunode_nccl_channels{{transport="SHM"}})',
        where=f"and on ({GPU}) max by ({GPU}) (gpunode_gpu_nvlink_up) > 0",
        window="0s",
        unit="count",
        tiers=(Tier(severity="warning", threshold=0.0, after="5m"),),
        gate="always",
        example=Example(
            fires={OVER_SHM: 4.0, series("gpunode_gpu_nvlink_up", link="0"): 1.0},
            quiet={OVER_SHM: 0.0},
            value=4.0,
        ),
    ),
    Threshold(
        alert="NcclRankLost",
        group="communication",
        summary="A rank of an NCCL job is lost",
        summary_ko="NCCL 랭크가 응답하지 않습니다",
        says="rank {rank} (process {pid} on {host}) does not answer",
        meaning="NCCL's RAS service cannot reach the process of that rank.",
        remedy="Check that host for XIDs, OOM kills and network faults, then restart the job.",
        source=RAS,
        signal=(
            f"sum by ({NODE}, communicator, rank, host, pid) "
            '(gpunode_nccl_awaited_rank_info{reason=~"dead|unresponsive"})'
        ),
        window="0s",
        unit="flag",
        tiers=(Tier(severity="critical", threshold=0.0, after="1m"),),
        scope="node",
        labels=("communicator", "rank", "host", "pid"),
        gate="always",
        example=Example(fires={DEAD_RANK: 1.0}, quiet={DEAD_RANK: 0.0}, value=1.0),
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
        signal=NCCL_BANDWIDTH,
        window="0s",
        unit="percent",
        comparison="<",
        tiers=(Tier(severity="warning", threshold=BANDWIDTH_LOW, after="0s"),),
        scope="node",
        labels=("collective", "gpus"),
        gate="always",
        example=Example(
            fires={
                series(BUS_BANDWIDTH, collective="all_reduce", gpus="8"): 3e11,
                series(EXPECTED_BUS_BANDWIDTH, collective="all_reduce", gpus="8"): 4.8e11,
            },
            quiet={series(BUS_BANDWIDTH, collective="all_reduce", gpus="8"): 4.5e11},
            value=0.625,
        ),
    ),
    Threshold(
        alert="NvlinkDown",
        group="communication",
        summary="An NVLink of a GPU is down",
        summary_ko="NVLink가 끊어졌습니다",
        says="NVLinks down while others are up: {value}",
        meaning="A GPU that has NVLinks has lost some of them.",
        remedy="Reset the GPU; if the link stays down, have the baseboard or bridge replaced.",
        source=XIDS,
        signal=f"count by ({GPU}) (gpunode_gpu_nvlink_up == 0)",
        where=f"and on ({GPU}) max by ({GPU}) (gpunode_gpu_nvlink_up) > 0",
        window="0s",
        unit="count",
        tiers=(Tier(severity="warning", threshold=0.0, after="5m"),),
        gate="always",
        example=Example(
            fires={
                series("gpunode_gpu_nvlink_up", link="0"): 1.0,
                series("gpunode_gpu_nvlink_up", link="1"): 0.0,
            },
            quiet={series("gpunode_gpu_nvlink_up", link="1"): 1.0},
            value=1.0,
        ),
    ),
    Threshold(
        alert="NvlinkIdle",
        group="communication",
        summary="A GPU communicates, but not over NVLink",
        summary_ko="통신 중인데 NVLink가 사용되지 않습니다",
        says="uses {value} of its NVLink bandwidth although it communicates",
        meaning="Collectives go over PCI Express or the network although the GPU has NVLink.",
        remedy="Unset what disables peer-to-peer access, or place the job's ranks on one node.",
        source=NCCL_ENV,
        signal=(
            f"{rate('gpunode_gpu_nvlink_bytes_total')} "
            f"/ on ({GPU}) max by ({GPU}) (gpunode_gpu_nvlink_speed_bytes_per_second > 0)"
        ),
        where=f"and on ({GPU}) {state('communication')} > {COMMUNICATES:g}",
        unit="percent",
        comparison="<",
        tiers=(Tier(severity="info", threshold=0.01, after="15m"),),
        example=Example(
            fires={
                series("gpunode_gpu_nvlink_bytes_total", direction="transmit"): 1e6,
                series("gpunode_gpu_nvlink_speed_bytes_per_second"): 450e9,
                **ledger(communication=0.9),
            },
            quiet={series("gpunode_gpu_nvlink_bytes_total", direction="transmit"): 9e9},
            value=1e6 / 450e9,
        ),
    ),
    Threshold(
        alert="NvlinkErrors",
        group="communication",
        summary="An NVLink reports errors",
        summary_ko="NVLink 오류가 발생했습니다",
        says="NVLink errors of kind {kind} in 15 minutes: {value}",
        meaning="Retransmission corrects CRC errors and replays, but not failed recoveries.",
        remedy="Reseat or replace the part if the errors continue.",
        source=NVML,
        signal=gained("gpunode_gpu_nvlink_errors_total", f"{GPU}, kind"),
        window="15m",
        unit="count",
        tiers=(Tier(severity="warning", threshold=10.0, after="0s"),),
        labels=("kind",),
        gate="always",
        example=Example(
            fires={series("gpunode_gpu_nvlink_errors_total", kind="replay"): 0.1},
            quiet={series("gpunode_gpu_nvlink_errors_total", kind="replay"): 0.005},
            value=90.0,
        ),
    ),
    Threshold(
        alert="StepTimeRegressed",
        group="communication",
        summary="Training steps take longer than before",
        summary_ko="학습 스텝 시간이 길어졌습니다",
        says="a step takes {value} times as long as at this process's best pace",
        meaning="The same process has slowed down since it started.",
        remedy="Fix the cause, or replace the node if it is hardware.",
        source="https://arxiv.org/abs/2410.12588",
        signal=f"max by ({GPU}) (gpu:gpunode_training_step_median_seconds:ratio_to_baseline)",
        window="0s",
        unit="number",
        tiers=(Tier(severity="warning", threshold=1.3, after="15m"),),
        example=Example(
            fires={
                series("gpunode_training_step_median_seconds"): 3.0,
                series("gpunode_training_step_baseline_seconds"): 1.0,
            },
            quiet={series("gpunode_training_step_median_seconds"): 1.2},
            value=3.0,
        ),
    ),
    Threshold(
        alert="TrainingStalled",
        group="communication",
        summary="Training steps have stopped",
        summary_ko="학습 스텝이 오랫동안 끝나지 않았습니다",
        says=f"{OVERDUE} (cause: {{cause}})",
        meaning="The training process reports steps, but has stopped reporting them.",
        remedy="Act as for CollectiveStalled (cause `collective`) or GpuStarved (cause `input`).",
        source=VERDICT,
        signal=f'max by ({GPU}, cause) (gpunode_training_stalled{{cause=~"collective|input"}})',
        window="0s",
        unit="flag",
        tiers=(
            Tier(severity="warning", threshold=0.5, after="10m"),
            Tier(
                severity="critical",
                threshold=0.5,
                after="1m",
                signal=f'max by ({GPU}, cause) (gpunode_training_stalled{{cause="collective"}})',
                says=f"{OVERDUE} while a collective spins",
            ),
        ),
        labels=("cause",),
        gate="always",
        example=Example(
            fires={COLLECTIVE_STALLED: 1.0}, quiet={COLLECTIVE_STALLED: 0.0}, value=1.0
        ),
    ),
)
