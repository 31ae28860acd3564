"""Jobs whose GPUs wait for data, and the CPUs, storage and copies that it comes from."""

from __future__ import annotations

from alerts.examples import HELD, TRAINS, ledger, series
from alerts.model import Example, Threshold, Tier
from alerts.promql import FILESYSTEM, JOB, NODE, rate
from alerts.recording.overview import STORAGE_REQUESTS, STORAGE_SECONDS
from alerts.recording.parts import COPIES, NOTHING_TO_RUN
from alerts.settings import OTHERS_COPY, STARVED_FROM
from alerts.thresholds.references import LEDGER, LUSTRE, PSI
from gpunode.verdict.causes.cause import LOST
from gpunode.verdict.causes.data import REMOTE_LATENCY

STORAGE = " / ".join(
    (
        f"sum by ({FILESYSTEM}) ({STORAGE_SECONDS})",
        f"(sum by ({FILESYSTEM}) ({STORAGE_REQUESTS}) > 0)",
    )
)
"""The mean time of a request over all nodes that have enough of them to suffer."""

SLOWED = {
    series("gpunode_training_step_median_seconds"): 3.0,
    series("gpunode_training_step_baseline_seconds"): 1.0,
    series("gpunode_training_last_step_timestamp_seconds"): 1.0,
}
LUSTRE_SECONDS = series("gpunode_lustre_rpc_seconds_total", filesystem="scratch", server="data")
LUSTRE_RPCS = series("gpunode_lustre_rpcs_total", filesystem="scratch", server="data")

DATA_INGESTION = (
    Threshold(
        alert="JobStarved",
        group="data_ingestion",
        summary="A training job waits for data",
        summary_ko="학습 작업이 데이터를 기다리고 있습니다",
        says="a GPU of the job has nothing to run for {value} of the time",
        when="a GPU of the job has nothing to run for {value} of the time, unless the job stands "
        "still in a collective for {still_from}, and but for a GPU that holds back the others by a "
        "cause of its own (JobStraggler)",
        meaning="The job leaves a GPU without work between steps, outside the pauses it reports.",
        remedy="Do what the cause asks: loader workers, pinned memory, faster storage, more CPUs.",
        source=LEDGER,
        record="job:gpunode_starved:ratio",
        unit="percent",
        tiers=(
            Tier(severity="ticket", threshold=LOST, after="15m"),
            Tier(
                severity="page",
                threshold=2.0,
                after="30m",
                record="job:gpunode_starved:slowdown",
                says="lacks data {starved_from} of the time, and a step takes {value} times as "
                "long as at the run's best pace",
                unit="number",
            ),
        ),
        scope="job",
        of_owner=True,
        keep_firing_for="5m",
        example=Example(
            fires={**TRAINS, **ledger(starved=0.6), **SLOWED},
            quiet={
                **ledger(starved=0.08),
                series("gpunode_training_step_median_seconds"): 1.0,
            },
            value=0.6,
            silenced_by={series("gpunode_gpu_bottleneck", cause="compile"): 1.0},
        ),
    ),
    Threshold(
        alert="JobHostCopiesHigh",
        group="data_ingestion",
        summary="Copies between host and device hold back a job",
        summary_ko="호스트와 디바이스 간 복사 때문에 작업이 지연되고 있습니다",
        says="a GPU of the job copies data and computes nothing for {value} of the time",
        when="a GPU of a training job copies data and computes nothing for {value} of the time, or "
        "one of another job for {others_copy}",
        meaning="The copy engines work while every SM is idle; the driver calls that utilised.",
        remedy="Use pinned memory with non_blocking=True, a copy stream, and fewer .item() calls.",
        source=LEDGER,
        record="job:gpunode_copies:ratio",
        signal=(
            f"{COPIES.over_nodes()} and on ({JOB}) job:gpunode_training:gpus "
            f"or {COPIES.over_nodes()} > {OTHERS_COPY}"
        ),
        unit="percent",
        tiers=(Tier(severity="ticket", threshold=LOST, after="15m"),),
        scope="job",
        of_owner=True,
        example=Example(fires={**TRAINS, **ledger(copy=0.4)}, quiet=ledger(copy=0.05), value=0.4),
    ),
    Threshold(
        alert="NodeStoragePressure",
        group="data_ingestion",
        summary="Storage holds back the GPUs of a node",
        summary_ko="스토리지 I/O 때문에 노드의 GPU가 대기하고 있습니다",
        says="some task waits for I/O {value} of the time, and a GPU lacks data {starved_from} "
        "of it",
        meaning="Tasks on the node are stalled until storage answers (pressure stall information).",
        remedy="Spread reads, cache the data set on local disks, or move checkpoints elsewhere.",
        source=PSI,
        record="node:gpunode_storage_pressure:ratio",
        signal=(
            rate('gpunode_pressure_waiting_seconds_total{resource="io"}', NODE)
            + f" and on ({NODE}) max by ({NODE}) ({NOTHING_TO_RUN}) > {STARVED_FROM}"
        ),
        unit="percent",
        tiers=(Tier(severity="ticket", threshold=0.2, after="10m"),),
        scope="node",
        example=Example(
            fires={
                **ledger(starved=0.6),
                series("gpunode_pressure_waiting_seconds_total", resource="io"): 0.5,
            },
            quiet={series("gpunode_pressure_waiting_seconds_total", resource="io"): 0.15},
            value=0.5,
        ),
    ),
    Threshold(
        alert="StorageDown",
        group="data_ingestion",
        summary="A shared filesystem does not answer",
        summary_ko="공유 파일 시스템이 응답하지 않습니다",
        says="nodes with jobs whose requests to {filesystem} get no answer: {value}",
        meaning="Requests are in flight, none completes, and clients retransmit or lose targets.",
        remedy="Bring the file servers or their network back; jobs go on by themselves.",
        source=LUSTRE,
        record="filesystem:gpunode_event:nodes",
        window="2m",
        unit="count",
        tiers=(Tier(severity="page", threshold=0.0, after="1m"),),
        scope="filesystem",
        every="15s",
        keep_firing_for="5m",
        example=Example(
            fires={
                **HELD,
                series("gpunode_lustre_rpcs_in_flight", filesystem="scratch", server="data"): 16.0,
                LUSTRE_RPCS: 0.0,
            },
            quiet={LUSTRE_RPCS: 100.0},
            value=1.0,
            labels={"filesystem": "scratch"},
        ),
    ),
    Threshold(
        alert="StorageSlow",
        group="data_ingestion",
        summary="A shared filesystem answers slowly",
        summary_ko="공유 파일 시스템의 응답이 느립니다",
        says="a request to {filesystem} takes {value} on average over the nodes with jobs that "
        "have {remote_requests} of them in flight",
        meaning="Requests take longer than the usual 1 to 10 ms.",
        remedy="Restripe hot files, spread small files, cache, or move the data to local disks.",
        source=LUSTRE,
        record="filesystem:gpunode_storage:latency",
        signal=STORAGE,
        unit="seconds",
        tiers=(Tier(severity="ticket", threshold=REMOTE_LATENCY, after="10m"),),
        scope="filesystem",
        dashboard="health",
        example=Example(
            fires={LUSTRE_SECONDS: 8.0, LUSTRE_RPCS: 100.0},
            quiet={LUSTRE_SECONDS: 1.0},
            value=0.08,
            labels={"filesystem": "scratch"},
        ),
    ),
)
