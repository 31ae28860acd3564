"""Servers that stand still: by the words of their engine, or else by what their GPUs do.

A server without requests is no fault, and only some of them spin meanwhile. vLLM's workers wait in
a queue in shared memory, SGLang's in a broadcast between CPUs: their GPUs run nothing. In a server
that broadcasts each request over NCCL, all GPUs but the first spin until somebody asks.
https://github.com/vllm-project/vllm/blob/main/vllm/distributed/device_communicators/shm_broadcast.py
https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/managers/scheduler.py

So without the engine's words, GPUs that spin for long are a hang where no GPU is left that could be
waiting for a request, or where the server was seen to rest without spinning. Otherwise it cannot be
told, and is not.
"""

from __future__ import annotations

from alerts.examples import (
    HELD,
    HELD_B,
    NODE_A,
    OF_GPU,
    OF_JOB,
    ON_B,
    STREAK,
    STREAK_B,
    TRAIN,
    WORKLESS,
    WORKLESS_B,
    A,
    B,
    ledger,
    series,
)
from alerts.model import AT_ONCE, FOR_DAYS, FOR_HOURS, Given, Record
from alerts.promql import DAY, GPU, JOB, NODE, OWNER, of_gpus, of_jobs
from alerts.recording.engines import REQUESTS
from alerts.recording.jobs import STREAK_OF_GPU, WORKLESS_OF_GPU
from alerts.recording.parts import RESTS, SERVERS
from alerts.settings import (
    BLOCKED_FROM,
    SERVER_RESTED,
    SERVER_STALLED_FROM,
    SERVER_TOKENLESS_FROM,
)
from gpunode.verdict.reasons import AT_WORK, GONE, STOPPED, UNINTERRUPTIBLE

GROUP = f"{NODE}, {OWNER}"
"""The GPUs that a server has on one node."""

OF_GROUP = ("cluster", "instance", *OF_JOB[1:])

SETTLED = "20m"
"""For how long the processes of a server must have been there: while they load a model, some wait
for others."""

MOST_GPUS = 16
"""NVML indices among which the first GPU of a server is found; no node has more."""

TELLING = "|".join(one.name for one in (GONE, STOPPED, UNINTERRUPTIBLE))
"""Reasons for which a GPU is waited for that are not a wait for a request."""

PROCESS = "gpunode_gpu_process_info"

INDEX = " or ".join(
    f'0 * max by ({GPU}, {OWNER}) ({SERVERS}{{gpu="{gpu}"}}) + {gpu}' for gpu in range(MOST_GPUS)
)

SERVED: Given = {**HELD, series("gpunode_gpu_workload", kind="serving"): 1.0}
SERVED_B: Given = {**HELD_B, series("gpunode_gpu_workload", kind="serving", **ON_B): 1.0}
EMPTY = dict.fromkeys(
    ("owner_namespace", "owner_container", "slurm_job", "user", "slurm_step", "rank"), ""
)
PROCESSES: Given = {
    series(PROCESS, **EMPTY, local_rank="", world_size="", owner_pod=pod, pid=pid, **on): 1.0
    for pod, pid, on in (("train-0", "417", {}), ("train-1", "418", ON_B))
}
WORKLESS_SERVER: Given = {**SERVED, **SERVED_B, WORKLESS: 600.0, WORKLESS_B: 600.0}
STUCK: Given = {
    **HELD,
    WORKLESS: 60.0,
    series("gpunode_serving_tokenless_seconds", engine="vllm", model="llama"): 60.0,
}
HUNG: Given = {
    **WORKLESS_SERVER,
    **PROCESSES,
    STREAK: 600.0,
    STREAK_B: 600.0,
}

OF_NODES: tuple[Record, ...] = (
    Record(
        name="gpu:gpunode_server:index",
        labels=(*OF_GPU, *OF_JOB[1:]),
        interval=AT_ONCE,
        expression=INDEX,
        purpose="The GPUs of servers: their NVML index as a figure.",
        given={**SERVED, **SERVED_B},
        results={(*A, *TRAIN): 0.0, (*B, *TRAIN): 1.0},
    ),
    Record(
        name="gpu:gpunode_server_settled:count",
        labels=OF_GPU,
        interval=FOR_HOURS,
        expression=(
            f"count by ({GPU}) (max by ({GPU}, pid) ({PROCESS}) and on ({GPU}, pid) "
            f"max by ({GPU}, pid) (last_over_time({PROCESS}[5m] offset {SETTLED}))) "
            f"and on ({GPU}) gpu:gpunode_server:index"
        ),
        purpose="Processes of a server that have had a GPU for long.",
        given=HUNG,
        results={A: 1.0},
    ),
    Record(
        name="gpu:gpunode_server_spinning:seconds",
        labels=(*OF_GPU, *OF_JOB[1:]),
        interval=AT_ONCE,
        expression=(
            f"0 * gpu:gpunode_server:index + on ({GPU}) group_left () "
            f"({of_gpus(f'{WORKLESS.metric} > {SERVER_STALLED_FROM}', 'min')} "
            f"and on ({GPU}) {STREAK_OF_GPU} > {BLOCKED_FROM} "
            f"and on ({GPU}) gpu:gpunode_server_settled:count) "
            f"or on ({GPU}, {OWNER}) (last_over_time(gpu:gpunode_server_spinning:seconds[5m]) "
            f"and on ({GPU}) {STREAK_OF_GPU} > {BLOCKED_FROM} "
            f"unless on ({GPU}) {WORKLESS_OF_GPU})"
        ),
        purpose="GPUs of a server that spin in a collective, and for how long they have not "
        "worked, if their processes have been there for long: one that loads a model may wait for "
        "the others. An exporter that restarts forgets it; then the rule reads its own past.",
        given=HUNG,
        results={(*A, *TRAIN): 600.0},
    ),
    Record(
        name="gpu:gpunode_server_leader:index",
        labels=(*OF_GPU, *OF_JOB[1:]),
        interval=AT_ONCE,
        expression=(
            f"(gpu:gpunode_server:index == on ({GROUP}) group_left () "
            f"min by ({GROUP}) (gpu:gpunode_server:index)) "
            f"unless on ({GPU}) ({STREAK_OF_GPU} > {BLOCKED_FROM} "
            f"or on ({GPU}) {WORKLESS_OF_GPU} < {BLOCKED_FROM} or on ({GPU}) "
            f'gpunode_gpu_waited_for{{reason=~"{TELLING}"}} == 1)'
        ),
        purpose="The index of a GPU that may be the one for which the others of its server wait, "
        "if they do, because nobody asks: the first on its node, which neither spins nor works, "
        "and whose process is there and not stopped.",
        given={**HUNG, STREAK: 0.0},
        results={(*A, *TRAIN): 0.0},
    ),
    Record(
        name="node:gpunode_server_rests:ratio",
        labels=OF_GROUP,
        expression=(
            f"min by ({GROUP}) (0 * gpu:gpunode_server:index + on ({GPU}) group_left () "
            f"({RESTS} and on ({GPU}) {WORKLESS_OF_GPU}))"
        ),
        purpose="Share of its time for which the GPU of a server that rests least on a node has "
        "nothing to run.",
        given={
            **WORKLESS_SERVER,
            **ledger(idle=0.75, starved=0.0),
            series("gpunode_gpu_seconds_total", state="idle", **ON_B): 1.0,
            series("gpunode_gpu_seconds_total", state="starved", **ON_B): 0.0,
        },
        results={(NODE_A, *TRAIN): 0.75},
    ),
    Record(
        name="node:gpunode_server_rested:max_1d",
        labels=OF_GROUP,
        interval=FOR_DAYS,
        expression=f"max_over_time(node:gpunode_server_rests:ratio{DAY}) > {SERVER_RESTED}",
        purpose="Servers that have rested within a day without a GPU that spins: they wait for "
        "requests in some other way.",
        given={
            **WORKLESS_SERVER,
            **ledger(idle=1.0, starved=0.0),
            series("gpunode_gpu_seconds_total", state="idle", **ON_B): 1.0,
            series("gpunode_gpu_seconds_total", state="starved", **ON_B): 0.0,
        },
        results={(NODE_A, *TRAIN): 1.0},
    ),
)
"""Rules that need only the series of one node; each shard of Prometheus can evaluate them."""

OF_JOBS: tuple[Record, ...] = (
    Record(
        name="job:gpunode_server_stalled:seconds",
        labels=OF_JOB,
        interval=AT_ONCE,
        expression=(
            f"max by ({JOB}) (min by ({GROUP}) (gpu:gpunode_server_spinning:seconds) "
            f"and on ({GROUP}) (count by ({GROUP}) (gpu:gpunode_server_spinning:seconds) > 1 "
            f"or on ({GROUP}) (gpu:gpunode_server:index "
            f"and on ({GPU}) gpunode_gpu_waited_for == 1)) "
            f"unless on ({GROUP}) (gpu:gpunode_server:index "
            f'and on ({GPU}) gpunode_gpu_waited_for{{reason=~"{"|".join(AT_WORK)}"}} == 1) '
            f"unless on ({JOB}) (gpu:gpunode_server_leader:index "
            f"unless on ({JOB}) node:gpunode_server_rested:max_1d)) "
            f"and on ({JOB}) job:gpunode_job:gpus > 1 "
            f"unless on ({JOB}) " + of_jobs(REQUESTS) + " == 0"
        ),
        purpose="Seconds for which a group of GPUs of a server has spun and not worked, and nobody "
        "can be waiting for a request, nor does its engine say so.",
        given=HUNG,
        results={TRAIN: 600.0},
    ),
    Record(
        name="job:gpunode_server_stuck:seconds",
        labels=OF_JOB,
        interval=AT_ONCE,
        expression=(
            of_jobs("gpunode_serving_tokenless_seconds") + f" > {SERVER_TOKENLESS_FROM} "
            f"and on ({JOB}) job:gpunode_workless:seconds > {SERVER_TOKENLESS_FROM}"
        ),
        purpose="Seconds for which the engine of a server has had running requests and given no "
        "token, while no GPU of it has worked: a long prefill is none.",
        given=STUCK,
        results={TRAIN: 60.0},
    ),
)
"""Servers that stand still. They are evaluated before the jobs that do."""
