"""Parts of what a job comes to: a figure of its GPUs on one node.

What many GPUs of a node tell of one job is added up, or the most of it taken, where the node is
scraped. So the engine that sees all nodes is handed one series of a node and not one of each GPU;
it makes the job's figure of the parts. ``alerts.rule_files.handed_on`` lists what it is handed.

What says within seconds that a job stands still is no part: a part is as old as the rule that
records it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from alerts.examples import (
    HALF,
    HELD,
    NODE_A,
    OF_GPU,
    OF_JOB,
    OF_NODE,
    STARTED,
    TRAIN,
    TRAINS,
    A,
    ledger,
    series,
)
from alerts.model import (
    FOR_DAYS,
    FOR_HOURS,
    RULE_INTERVAL,
    Given,
    Interval,
    Record,
)
from alerts.promql import GPU, JOB, NODE, OWNER, gained, of_gpus, rate, state
from alerts.recording.faults import INFO
from alerts.settings import BEHIND_WORKS, NOTEBOOK_RESTS
from gpunode.gpu.activity import SHORT_GAPS
from gpunode.gpu.ledger import STATES
from gpunode.nccl.log import OVER_NETWORK
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.causes.cause import Cause

Operation = Literal["max", "min", "sum", "avg", "middle"]

MEMBER = "gpu:gpunode_job:member"
SERVICE = tuple(label for label in OF_JOB if label != "replica")
BY_SERVICE = ", ".join(SERVICE)
OF_SERVICE = ", ".join(SERVICE[1:])


def causes(counts: Callable[[Cause], bool]) -> str:
    """A regular expression for the causes that count, in the order of the time that they take."""
    states = list(STATES)
    found = filter(counts, CAUSES.values())
    ordered = sorted(found, key=lambda cause: [*map(states.index, cause.gives_back)])
    return "|".join(cause.name for cause in ordered)


OWN_CAUSES = causes(lambda cause: cause.slows_its_gpu)
"""What a GPU's verdict says if the GPU itself or its host is slow, rather than its share of the
model larger."""

BOTTLENECKS = "gpu:gpunode_gpu_bottleneck:number"
"""The verdict on a GPU: its series has the cause as a label."""

OWN_CAUSE = f'{BOTTLENECKS}{{cause=~"{OWN_CAUSES}"}}'

SAID = "gpu:gpunode_rank:said"
"""The verdict on a GPU of a job: what the engine that sees all nodes is handed."""

NO_CAUSE = ("ended", "unseen", "unknown")
"""What is said of a rank beside causes: that its process has ended, that its node or GPU is not
seen, or that it has no verdict."""

SAID_OWN_CAUSE = f'{SAID}{{cause=~"{OWN_CAUSES}"}}'
SAID_CAUSE = f'{SAID}{{cause!~"' + "|".join(NO_CAUSE) + '"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A figure of the GPUs that a job has on a node, and the rules that record it."""

    name: str
    operation: Operation
    """How the GPUs of a node, and then the nodes of a job, come to one figure."""

    expression: str
    """The figure of a GPU."""

    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that the figure keeps, and their values in the test."""

    of_service: bool = False
    """Whether the replicas of a service are one job."""

    interval: Interval = RULE_INTERVAL
    purpose: str
    given: Given
    value: float

    def record(self, operation: str) -> str:
        """The name of a recorded part."""
        whose = "service" if self.of_service else "job"
        return f"node:{self.name}:{operation}_of_{whose}"

    @property
    def records(self) -> tuple[Record, ...]:
        """The rules for one node. A mean has two parts."""
        owner = OF_SERVICE if self.of_service else OWNER
        by = ", ".join((NODE, owner, *self.labels))
        group = f"group_right ({OWNER})" if self.labels else "group_left ()"
        gpus = f"{MEMBER} * on ({GPU}) {group} ({self.expression})"
        operations = ("sum", "count") if self.operation == "avg" else (self.operation,)
        labels = (*OF_NODE, *owner.split(", "), *self.labels)
        job = TRAIN[:2] + TRAIN[3:] if self.of_service else TRAIN
        said = {"count": "GPUs that tell it", "middle": "the median", "sum": "the sum"}
        return tuple(
            Record(
                name=self.record(operation),
                labels=labels,
                interval=self.interval,
                expression=f"{_over(operation, by)}{gpus})",
                purpose=f"{self.purpose}: of the GPUs that a job has on a node, "
                f"{said.get(operation, f'the {operation}imum')}.",
                given={**HELD, **self.given},
                results={
                    (NODE_A, *job, *self.labels.values()): (
                        1.0 if operation == "count" else self.value
                    )
                },
            )
            for operation in operations
        )

    def over_nodes(self, by: str = "") -> str:
        """The figure of the whole job, or of more."""
        by = by or ", ".join((BY_SERVICE if self.of_service else JOB, *self.labels))
        if self.operation == "avg":
            total, count = (f"sum by ({by}) ({self.record(one)})" for one in ("sum", "count"))
            return f"{total} / ({count} > 0)"
        return f"{_over(self.operation, by)}{self.record(self.operation)})"


def _over(operation: str, by: str) -> str:
    return f"quantile by ({by}) (0.5, " if operation == "middle" else f"{operation} by ({by}) ("


def _gauge(metric: str, operation: Operation, purpose: str, **labels: str) -> Part:
    """A gauge of each rank; the labels are those of its series in the test."""
    return Part(
        name=metric,
        operation=operation,
        expression=of_gpus(metric),
        purpose=purpose,
        given={series(metric, **labels): 2.0},
        value=2.0,
    )


ROOFS = ("tensor", "fp32", "dram")
"""The parts of a GPU that limit kernels, as a roofline has them."""

WORKING = f'sum by ({GPU}) (gpu:gpunode_gpu_seconds:rate5m{{state="compute"}})'
USEFUL = f'sum by ({GPU}) (gpu:gpunode_gpu_seconds:rate1h{{state="compute"}})'
PHASES = "gpu:gpunode_training_seconds:rate5m"
STEP = "gpunode_training_step_median_seconds"
MFU = "gpunode_training_mfu_ratio"
LOSS = "gpunode_training_loss"
SIZE = of_gpus("gpunode_gpu_memory_size_bytes")
OF_LINES = {
    "data_wait": f'{PHASES}{{phase="data"}} / on ({GPU}) (sum by ({GPU}) ({PHASES}) > 0)',
    "gpu_memory_used": of_gpus("gpunode_gpu_memory_used_bytes")
    + f" / on ({GPU}) ({SIZE} - on ({GPU}) {of_gpus('gpunode_gpu_memory_reserved_bytes')} > 0)",
    "torch_reserved": of_gpus("gpunode_torch_memory_reserved_bytes")
    + f" / on ({GPU}) ({SIZE} > 0)",
    "torch_recompiled": of_gpus("increase(gpunode_torch_compiled_graphs_total[15m])"),
    "torch_alloc_retries": gained("gpunode_torch_alloc_retries_total"),
}
"""What lines of the threshold table look at, which a test compares: rules do not import them."""

STEPS: Given = {
    series("gpunode_training_seconds_total", phase="step"): 0.75,
    series("gpunode_training_seconds_total", phase="data"): 0.25,
}

PAUSE = Part(
    name="gpunode_training_pause",
    operation="max",
    expression="gpu:gpunode_training_pause:rate5m",
    purpose="Share of the time in which a rank says that no step is due",
    given={
        series("gpunode_training_seconds_total", phase="step"): 0.5,
        series("gpunode_training_seconds_total", phase="evaluation"): 0.5,
    },
    value=0.5,
)
PROCESSES_HELD = _gauge("gpunode_gpu_processes", "max", "Processes on a GPU", engine="compute")
STARTS = Part(
    name="gpunode_gpu_process_1h",
    operation="max",
    expression=f"max by ({GPU}) (gpu:gpunode_gpu_process:count_1h)",
    interval=FOR_DAYS,
    purpose="Processes that a GPU had within an hour",
    given={STARTED: 1.0},
    value=1.0,
)
NOT_FINITE = Part(
    name="gpunode_training_loss_not_finite",
    operation="sum",
    expression=f"1 - {of_gpus('gpunode_training_loss_finite', 'min')}",
    purpose="Ranks whose last reported loss is NaN or infinite",
    given={series("gpunode_training_loss_finite"): 0.0},
    value=1.0,
)
LOSS_TO_BEST = Part(
    name="gpunode_training_loss_ratio_to_best",
    operation="max",
    expression=f"{of_gpus(LOSS)} / on ({GPU}) ({of_gpus(f'{LOSS}_best')} > 0)",
    purpose="Loss of a rank over its best",
    given={series(LOSS): 9.0, series(f"{LOSS}_best"): 3.0},
    value=3.0,
)
SLOWDOWN = Part(
    name="gpunode_training_step_ratio_to_baseline",
    operation="max",
    expression="gpu:gpunode_training_step_median_seconds:ratio_to_baseline",
    purpose="Time of a step over the best pace of the same process",
    given={series(STEP): 3.0, series("gpunode_training_step_baseline_seconds"): 2.0},
    value=1.5,
)
STEP_MOST = _gauge(STEP, "max", "Time of a step")
STEP_MIDDLE = _gauge(STEP, "middle", "Time of a step")
BASELINE_MIDDLE = _gauge(
    "gpunode_training_step_baseline_seconds", "middle", "The best pace of a process"
)
MFU_MIDDLE = _gauge(MFU, "middle", "MFU")
MFU_LEAST = _gauge(MFU, "min", "MFU")
MFU_MEAN = _gauge(MFU, "avg", "MFU")
LOSS_MEAN = _gauge(LOSS, "avg", "Loss")
LOSS_BEST = _gauge(f"{LOSS}_best", "min", "The best loss of a rank")
THREAD_MOST = _gauge("gpunode_job_busiest_thread_ratio", "max", "CPUs of a busiest thread")
WORKERS_FEWEST = _gauge("gpunode_job_loader_workers", "min", "Loader workers of a rank")
OPEN_FILES = _gauge("gpunode_job_open_files_ratio", "max", "Share of a limit on open files")
MOST = {
    line: Part(
        name=f"gpunode_{line}",
        operation="max",
        expression=OF_LINES[line],
        purpose=purpose,
        given=given,
        value=value,
    )
    for line, purpose, given, value in (
        ("data_wait", "Share of its time for which a rank waits for data", STEPS, 0.25),
        (
            "gpu_memory_used",
            "Share of a GPU's memory in use",
            {
                series("gpunode_gpu_memory_used_bytes"): 30.0,
                series("gpunode_gpu_memory_size_bytes"): 50.0,
                series("gpunode_gpu_memory_reserved_bytes"): 10.0,
            },
            0.75,
        ),
        (
            "torch_reserved",
            "Share of a GPU's memory that PyTorch reserves",
            {
                series("gpunode_torch_memory_reserved_bytes"): 30.0,
                series("gpunode_gpu_memory_size_bytes"): 40.0,
            },
            0.75,
        ),
        (
            "torch_recompiled",
            "Graphs that a rank compiled in the last minutes",
            {series("gpunode_torch_compiled_graphs_total"): 1.0},
            900.0,
        ),
        (
            "torch_alloc_retries",
            "Allocations for which PyTorch flushed the cache of a rank in the last minutes",
            {series("gpunode_torch_alloc_retries_total"): 1.0},
            900.0,
        ),
    )
}
"""What lines of the threshold table look at, of the rank that has most."""

MEMORY_FAILURES = Part(
    name="gpunode_torch_memory_failures",
    operation="sum",
    expression=(
        f"{OF_LINES['torch_alloc_retries']} + on ({GPU}) {gained('gpunode_torch_ooms_total')}"
    ),
    purpose="Allocations of a rank that failed or flushed PyTorch's cache in 15 minutes",
    given={
        series("gpunode_torch_alloc_retries_total"): 0.5,
        series("gpunode_torch_ooms_total"): 0.5,
    },
    value=900.0,
)
CHECKPOINTS = Part(
    name="gpunode_training_checkpoints",
    operation="max",
    expression=(
        f'sum_over_time({PHASES}{{phase="checkpoint"}}[1h]) '
        f"/ on ({GPU}) (sum by ({GPU}) (sum_over_time({PHASES}[1h])) > 0) "
        f"and on ({GPU}) {of_gpus(STEP)}"
    ),
    interval=FOR_DAYS,
    purpose="Share of an hour that a rank spent on checkpoints",
    given={
        series("gpunode_training_seconds_total", phase="checkpoint"): 0.25,
        series("gpunode_training_seconds_total", phase="step"): 0.75,
        series(STEP): 1.0,
    },
    value=0.25,
)
HOST_MEMORY = Part(
    name="gpunode_job_memory_limit",
    operation="max",
    expression=(
        f"({of_gpus('gpunode_job_memory_anonymous_bytes')} "
        f"+ on ({GPU}) {of_gpus('gpunode_job_memory_shmem_bytes')}) "
        f"/ on ({GPU}) ({of_gpus('gpunode_job_memory_limit_bytes')} > 0)"
    ),
    purpose="Share of a limit on host memory in use, without caches",
    given={
        series("gpunode_job_memory_anonymous_bytes"): 60.0,
        series("gpunode_job_memory_shmem_bytes"): 15.0,
        series("gpunode_job_memory_limit_bytes"): 100.0,
    },
    value=0.75,
)
TRAINED_TOKENS = Part(
    name="gpunode_training_tokens",
    operation="sum",
    expression=rate("gpunode_training_tokens_total"),
    purpose="Tokens a second on which a rank trains",
    given={series("gpunode_training_tokens_total"): 50.0},
    value=50.0,
)
TRAINING_PHASES = Part(
    name="gpunode_training_seconds",
    operation="sum",
    expression=PHASES,
    labels={"phase": "data"},
    of_service=True,
    purpose="GPUs by what their training says it does",
    given=STEPS,
    value=0.25,
)
AT_WORK = Part(
    name="gpunode_gpu_working",
    operation="max",
    expression=WORKING,
    purpose="Share of its time in which a GPU computes",
    given=ledger(idle=0.25),
    value=0.75,
)
USEFUL_1H = Part(
    name="gpunode_gpu_useful_1h",
    operation="avg",
    expression=USEFUL,
    interval=FOR_DAYS,
    purpose="Share of an hour in which a GPU computes",
    given=ledger(idle=0.25),
    value=0.75,
)
IDLE_1H = Part(
    name="gpunode_gpu_idle_1h",
    operation="avg",
    expression=f'sum by ({GPU}) (gpu:gpunode_gpu_seconds:rate1h{{state=~"free|idle"}})',
    interval=FOR_DAYS,
    purpose="Share of an hour in which a GPU runs nothing",
    given=ledger(idle=0.25),
    value=0.25,
)
COPIES = Part(
    name="gpunode_gpu_copy",
    operation="max",
    expression=state("copy"),
    purpose="Share of its time in which a GPU copies data and computes nothing",
    given=ledger(copy=0.25),
    value=0.25,
)
LAUNCHES = Part(
    name="gpunode_gpu_launch",
    operation="avg",
    expression=rate(SHORT_GAPS.name),
    purpose="Share of its time in which a GPU waits between small kernels",
    given={series(SHORT_GAPS.name): 0.25},
    value=0.25,
)
COMMUNICATES = Part(
    name="gpunode_gpu_communication",
    operation="avg",
    expression=state("communication"),
    purpose="Share of its time in which a GPU moves data between GPUs and computes nothing",
    given=ledger(communication=0.25),
    value=0.25,
)
HELD_BACK = Part(
    name="gpunode_gpu_bottleneck",
    operation="sum",
    expression=f"1 + 0 * max by ({GPU}, cause) ({BOTTLENECKS})",
    labels={"cause": "shm"},
    purpose="GPUs by what holds them back",
    given={series("gpunode_gpu_bottleneck", cause="shm"): 1.0},
    value=1.0,
)
POWER = Part(
    name="gpunode_gpu_power",
    operation="sum",
    expression=rate("gpunode_gpu_energy_joules_total"),
    of_service=True,
    purpose="What GPUs draw",
    given={series("gpunode_gpu_energy_joules_total", state="compute"): 400.0},
    value=400.0,
)
ACTIVE = Part(
    name="gpunode_gpu_active",
    operation="avg",
    expression=rate(
        f'gpunode_gpu_active_seconds_total{{unit=~"{"|".join(ROOFS)}"}}', f"{GPU}, unit"
    ),
    labels={"unit": "dram"},
    of_service=True,
    interval=FOR_HOURS,
    purpose="Share of its peak that a part of a GPU reaches",
    given={series("gpunode_gpu_active_seconds_total", unit="dram"): 0.8},
    value=0.8,
)
RANKS_HERE = f"{NODE}, communicator, ranks"
ON_ONE_NODE = (
    f"max by ({RANKS_HERE}) (gpunode_nccl_communicator_info) and on ({RANKS_HERE}) "
    f'count_values by ({NODE}, communicator) ("ranks", count by ({NODE}, communicator) '
    f"(max by ({GPU}, communicator) (gpunode_nccl_communicator_info)))"
)
"""Communicators with as many ranks as they have GPUs on the node: NCCL takes pods for nodes."""

DISABLED, SOCKETS, SHARED_MEMORY, NETWORK_IN_NODE = (
    Part(
        name=f"gpunode_nccl_{name}",
        operation="sum",
        expression=expression,
        purpose=purpose,
        given=given,
        value=1.0,
    )
    for name, expression, purpose, given in (
        (
            "transports_off",
            f"count by ({GPU}) (gpunode_nccl_setting_info{{"
            'name=~"NCCL_P2P_DISABLE|NCCL_IB_DISABLE|NCCL_SHM_DISABLE",value!~"0|"})',
            "GPUs with a transport disabled",
            {series("gpunode_nccl_setting_info", name="NCCL_P2P_DISABLE", value="1"): 1.0},
        ),
        (
            "sockets",
            f"sum by ({GPU}) (max by ({GPU}, communicator) "
            '(gpunode_nccl_channels{transport="NET/Socket"})) '
            f"and on ({NODE}) max by ({NODE}) (gpunode_infiniband_active) > 0",
            "Channels with sockets instead of InfiniBand",
            {
                series("gpunode_nccl_channels", communicator="1", transport="NET/Socket"): 1.0,
                series("gpunode_infiniband_active", device="mlx5_0", port="1"): 1.0,
            },
        ),
        (
            "shared_memory",
            f"sum by ({GPU}) (max by ({GPU}, communicator) "
            '(gpunode_nccl_channels{transport="SHM"})) '
            f"and on ({GPU}) {of_gpus('gpunode_gpu_nvlink_up')} > 0",
            "Channels with shared memory instead of NVLink",
            {
                series("gpunode_nccl_channels", communicator="1", transport="SHM"): 1.0,
                series("gpunode_gpu_nvlink_up", link="0"): 1.0,
            },
        ),
        (
            "network_in_node",
            f"sum by ({GPU}) (max by ({GPU}, communicator) "
            f'(gpunode_nccl_channels{{transport=~"{"|".join(OVER_NETWORK)}"}}) '
            f"and on ({NODE}, communicator) ({ON_ONE_NODE}))",
            "Channels over the network of communicators all of whose ranks are on the node",
            {
                series("gpunode_nccl_channels", communicator="1", transport="NET/IB"): 1.0,
                series(
                    "gpunode_nccl_communicator_info",
                    communicator="1",
                    rank="0",
                    ranks="1",
                    nodes="1",
                    network="IB",
                    version="2.28.9",
                ): 1.0,
            },
        ),
    )
)

REQUESTS = "gpunode_serving_request_seconds"
ENDED = "gpunode_serving_requests_total"
FINISHED = f'{ENDED}{{result="finished"}}'
REQUEST_PARTS = "gpunode_serving_request_part_seconds_total"
TOKENS = "gpunode_serving_tokens_total"
FIRST = "gpunode_serving_first_token_seconds"
OTHERS = "gpunode_serving_output_token_seconds"
MET = "gpunode_serving_objective_met_total"
LLAMA = {"engine": "vllm", "model": "llama"}


def _served(
    name: str,
    expression: str,
    purpose: str,
    given: Given,
    value: float,
    labels: Mapping[str, str] | None = None,
    interval: Interval = RULE_INTERVAL,
) -> Part:
    """What the replicas of a service on a node do a second."""
    return Part(
        name=f"gpunode_serving_{name}",
        operation="sum",
        expression=expression,
        labels=labels or {},
        of_service=True,
        interval=interval,
        purpose=purpose,
        given=given,
        value=value,
    )


def _of_models(name: str, counter: str, purpose: str, **labels: str) -> Part:
    own = {"model": "llama", **labels}
    told = {"result": "finished"} if counter == FINISHED else labels
    return _served(
        name,
        rate(counter, ", ".join((GPU, *own))),
        purpose,
        {series(counter.partition("{")[0], **LLAMA, **told): 2.0},
        2.0,
        own,
    )


def _came(window: str) -> str:
    first = rate(f"{FIRST}_count", GPU, window)
    others = rate(f"{OTHERS}_count", GPU, window)
    return (
        f'label_replace({first} > 0, "objective", "first_token", "", "") '
        f'or label_replace({others} > 0, "objective", "output_token", "", "")'
    )


ANSWERED = _served(
    "answered",
    f"{rate(f'{REQUESTS}_count')} or on ({GPU}) {rate(FINISHED)}",
    "Requests a second, by the client in the server or else by its engine",
    {series(f"{REQUESTS}_count"): 5.0},
    5.0,
)
REQUEST_TIMES = _served(
    "request_seconds_bucket",
    rate(f"{REQUESTS}_bucket", f"{GPU}, le"),
    "Requests a second that took no longer",
    {series(f"{REQUESTS}_bucket", le="2.0"): 5.0},
    5.0,
    {"le": "2.0"},
)
ANSWERED_OF_MODELS = _of_models("finished", FINISHED, "Requests a second that ended well")
PARTS_OF_REQUESTS = _of_models(
    "request_part", REQUEST_PARTS, "Seconds of requests a second by their part", part="queue"
)
FIRST_SUM = _of_models("first_token_sum", f"{FIRST}_sum", "Seconds to first tokens a second")
FIRST_COUNT = _of_models("first_token_count", f"{FIRST}_count", "First tokens a second")
SERVED_TOKENS = _of_models("tokens", TOKENS, "Tokens a second", kind="generated")
CAME, MET_OBJECTIVE = (
    {
        window: _served(
            f"objective_{name}_{window}",
            expression(window),
            purpose,
            given,
            2.0,
            {"objective": "first_token"},
            RULE_INTERVAL if window == "5m" else FOR_HOURS,
        )
        for window in ("5m", "1h")
    }
    for name, expression, purpose, given in (
        (
            "came",
            _came,
            "Tokens a second that have an objective",
            {series(f"{FIRST}_count", **LLAMA): 2.0},
        ),
        (
            "met",
            lambda window: rate(MET, f"{GPU}, objective", window),
            "Tokens a second that came within the objective",
            {series(MET, **LLAMA, objective="first_token"): 2.0},
        ),
    )
)

PARTS: tuple[Part, ...] = (
    *(PAUSE, PROCESSES_HELD, STARTS, NOT_FINITE, LOSS_TO_BEST, SLOWDOWN, STEP_MOST, STEP_MIDDLE),
    *(BASELINE_MIDDLE, MFU_MIDDLE, MFU_LEAST, MFU_MEAN, LOSS_MEAN, LOSS_BEST, THREAD_MOST),
    *(WORKERS_FEWEST, OPEN_FILES, *MOST.values(), MEMORY_FAILURES, CHECKPOINTS, HOST_MEMORY),
    *(TRAINED_TOKENS, TRAINING_PHASES, AT_WORK, USEFUL_1H, IDLE_1H, COPIES, LAUNCHES, HELD_BACK),
    *(COMMUNICATES, POWER, ACTIVE, DISABLED, SOCKETS, SHARED_MEMORY, NETWORK_IN_NODE),
    *(ANSWERED, REQUEST_TIMES),
    *(ANSWERED_OF_MODELS, PARTS_OF_REQUESTS, FIRST_SUM, FIRST_COUNT, SERVED_TOKENS),
    *(*CAME.values(), *MET_OBJECTIVE.values()),
)

KIND = "gpu:gpunode_job:kind"
KINDS = "node:gpunode_job_kind:gpus"
SERVERS = "gpu:gpunode_serving:member"
RESTS = "gpu:gpunode_server_rests:ratio"
BLOCKED = "gpu:gpunode_gpu_blocked:by_job"
STARVED = "node:gpunode_gpu_starved:max_of_job"
STARVED_ITSELF = "gpu:gpunode_gpu_starved:with_own_cause"
UNCOUNTED = "gpu:gpunode_gpu_counters:missing"
WORKS_LITTLE = "gpu:gpunode_gpu_useful:little"
BY_OWNER = "node:gpunode_gpu_seconds:by_owner"
BY_MODEL = "node:gpunode_gpu_seconds:by_model"
OWNERS_MODELS = "node:gpunode_gpu_owner:by_model"
GAINS = "node:gpunode_gpu_verdict_gain:gpus"
LEDGERS = "node:gpunode_gpu:count"
HELD_BACK_OF_NODE = "node:gpunode_gpu_bottleneck:count"
OWNED_GPUS = f"max by ({GPU}) (gpu:gpunode_gpu_owner:workload)"
OCCUPIED = "node:gpunode_gpu:occupied"
AT_STAKE = "node:gpunode_job:gpus_at_stake"
CONGESTED = "node:gpunode_infiniband_congestion:rate5m"

_WORKLOAD = f"{NODE}, {OF_SERVICE}"
_MODEL = f"max by ({GPU}, name) (gpunode_gpu_info)"
_ALL_STARVED = f"max by ({GPU}) ({state('starved')})"
NOTHING_TO_RUN = (
    f"clamp_min({_ALL_STARVED} - on ({GPU}) "
    f"({rate(SHORT_GAPS.name)} or on ({GPU}) 0 * {_ALL_STARVED}), 0)"
)
"""Without short gaps between kernels, of which JobLaunchBound tells."""
_SHARE = "gpu:gpunode_gpu_owner:share"
_MOVED = "gpunode_infiniband_congestion_events_total"


def _by_owner() -> str:
    """The seconds of GPUs by state, each weighted with an owner's share of the GPU.

    One side of a join may have only one series for each GPU, so each state is joined by itself.
    """
    states = (
        f"label_replace(sum by ({_WORKLOAD}) ({_SHARE} * on ({GPU}) group_left () "
        f'{state(one)}), "state", "{one}", "", "")'
        for one in STATES
    )
    return " or ".join(states)


OF_NODES: tuple[Record, ...] = (
    Record(
        name=KIND,
        labels=(*OF_GPU, *OF_JOB[1:], "kind"),
        expression=(
            f"max by ({GPU}, kind) (gpunode_gpu_workload == 1) "
            f"* on ({GPU}) group_left ({OWNER}) {MEMBER}"
        ),
        purpose="The kind of work that a job does on a GPU.",
        given=TRAINS,
        results={(*A, *TRAIN, "training"): 1.0},
    ),
    Record(
        name=KINDS,
        labels=(*OF_NODE, *OF_JOB[1:], "kind"),
        expression=f"count by ({NODE}, {OWNER}, kind) ({KIND})",
        purpose="GPUs of a job on a node by the kind of work that it does on them.",
        given=TRAINS,
        results={(NODE_A, *TRAIN, "training"): 1.0},
    ),
    Record(
        name=SERVERS,
        labels=(*OF_GPU, *OF_JOB[1:]),
        expression=f'max by ({GPU}, {OWNER}) ({KIND}{{kind="serving"}})',
        purpose="The GPUs of servers, with the job they belong to.",
        given={**HELD, series("gpunode_gpu_workload", kind="serving"): 1.0},
        results={(*A, *TRAIN): 1.0},
    ),
    Record(
        name=RESTS,
        labels=OF_GPU,
        expression=(
            f"({NOTHING_TO_RUN} + on ({GPU}) max by ({GPU}) ({state('idle')})) "
            f"and on ({GPU}) {SERVERS}"
        ),
        purpose="Share of its time for which the GPU of a server has nothing to run.",
        given={
            **HELD,
            series("gpunode_gpu_workload", kind="serving"): 1.0,
            **ledger(idle=0.5, starved=0.25),
        },
        results={A: 0.75},
    ),
    Record(
        name=BLOCKED,
        labels=(*OF_GPU, *OF_JOB[1:]),
        expression=f"{MEMBER} * on ({GPU}) group_left () max by ({GPU}) ({state('blocked')})",
        purpose="Share of its time in which a GPU waits for peers, with the job it belongs to.",
        given={**ledger(blocked=0.25), **HELD},
        results={(*A, *TRAIN): 0.25},
    ),
    Record(
        name=STARVED,
        labels=(*OF_NODE, *OF_JOB[1:]),
        expression=(
            f"max by ({NODE}, {OWNER}) ({MEMBER} * on ({GPU}) group_left () "
            f"({NOTHING_TO_RUN} unless on ({GPU}) {OWN_CAUSE}))"
        ),
        purpose="Share of its time for which the GPU of a job on a node has nothing to run that "
        "starves most, of those whose verdict names no cause of their own.",
        given={**ledger(starved=0.5), **HELD},
        results={(NODE_A, *TRAIN): 0.5},
    ),
    Record(
        name=STARVED_ITSELF,
        labels=(*OF_GPU, *OF_JOB[1:]),
        expression=(
            f"{MEMBER} * on ({GPU}) group_left () ({NOTHING_TO_RUN} and on ({GPU}) {OWN_CAUSE})"
        ),
        purpose="Share of its time for which a GPU has nothing to run whose verdict names a cause "
        "of its own: a straggler that is slow by it does not count.",
        given={
            **ledger(starved=0.5),
            **HELD,
            series("gpunode_gpu_bottleneck", cause="host_compute"): 1.0,
        },
        results={(*A, *TRAIN): 0.5},
    ),
    Record(
        name=UNCOUNTED,
        labels=OF_GPU,
        expression=of_gpus('gpunode_gpu_ledger_sensor{sensor=~"gpm|dcgm"}') + " == 0",
        purpose="GPUs of which no counter shows whether something is launched.",
        given={series("gpunode_gpu_ledger_sensor", sensor="gpm"): 0.0},
        results={A: 0.0},
    ),
    Record(
        name=WORKS_LITTLE,
        labels=OF_GPU,
        interval=FOR_DAYS,
        expression=f"{USEFUL} <= {BEHIND_WORKS} and on ({GPU}) {MEMBER}",
        purpose="GPUs of jobs that compute for so little of an hour that they are not compared "
        "with their peers.",
        given={**HELD, **ledger(idle=1.0)},
        results={A: 0.0},
    ),
    Record(
        name=BY_OWNER,
        labels=(*OF_NODE, *SERVICE[1:], "state"),
        expression=_by_owner(),
        purpose="GPU seconds per second of a job on a node, by state. A GPU with several owners "
        "counts once.",
        given={**HALF, **HELD},
        results={(NODE_A, "", "train", "", "starved"): 0.25},
    ),
    Record(
        name=BY_MODEL,
        labels=(*OF_NODE, "name", "state"),
        interval=FOR_DAYS,
        expression=(
            f"sum by ({NODE}, name, state) (gpu:gpunode_gpu_seconds:rate1h "
            f"* on ({GPU}) group_left (name) ({_MODEL} or on ({GPU}) "
            f"1 + 0 * max by ({GPU}) (gpu:gpunode_gpu_seconds:rate1h)))"
        ),
        purpose="GPU seconds per second of a node over an hour, by model of GPU and state; a GPU "
        "that tells no model has none.",
        given={**HALF, INFO: 1.0},
        results={(NODE_A, "NVIDIA H200", "starved"): 0.25},
    ),
    Record(
        name=OWNERS_MODELS,
        labels=(*OF_NODE, *SERVICE[1:], "name"),
        interval=FOR_DAYS,
        expression=(
            f"sum by ({_WORKLOAD}, name) ({_SHARE} * on ({GPU}) group_left (name) {_MODEL})"
        ),
        purpose="GPUs of a job on a node by their model.",
        given={**HELD, INFO: 1.0},
        results={(NODE_A, "", "train", "", "NVIDIA H200"): 1.0},
    ),
    Record(
        name=LEDGERS,
        labels=OF_NODE,
        expression=f"count by ({NODE}) ({state('free')})",
        purpose="GPUs of a node that have a ledger.",
        given=ledger(free=0.25),
        results={(NODE_A,): 1.0},
    ),
    Record(
        name=HELD_BACK_OF_NODE,
        labels=(*OF_NODE, "cause"),
        expression=f"count by ({NODE}, cause) ({BOTTLENECKS})",
        purpose="GPUs of a node by what holds them back.",
        given={series("gpunode_gpu_bottleneck", cause="shm"): 1.0},
        results={(NODE_A, "shm"): 1.0},
    ),
    Record(
        name=OCCUPIED,
        labels=OF_NODE,
        expression=(
            f"count by ({NODE}) ({OWNED_GPUS} "
            f'or on ({GPU}) max by ({GPU}) ({BOTTLENECKS}{{cause!="none"}}))'
        ),
        purpose="GPUs of a node that have an owner, or a verdict on what they do for one who is "
        "not known.",
        given={**HELD, series("gpunode_gpu_bottleneck", cause="shm", gpu="7"): 1.0},
        results={(NODE_A,): 2.0},
    ),
    Record(
        name=AT_STAKE,
        labels=OF_NODE,
        expression=(
            f"count by ({NODE}) ({OWNED_GPUS} "
            f'unless on ({GPU}) ({KIND}{{kind="interactive"}} '
            f"and on ({GPU}) {of_gpus('gpunode_job_workless_seconds', 'min')} > {NOTEBOOK_RESTS}))"
        ),
        purpose="GPUs that somebody holds who would miss them at once, which nobody does whose "
        "notebook rests.",
        given={**HELD, series("gpunode_gpu_workload", kind="interactive"): 1.0},
        results={(NODE_A,): 1.0},
    ),
    Record(
        name=GAINS,
        labels=(*OF_NODE, "cause", "bound"),
        expression=(
            f"sum by ({NODE}, cause, bound) ("
            f"1 - 1 / max by ({GPU}, cause, bound) (gpunode_gpu_verdict_gain_ratio > 0))"
        ),
        purpose="GPUs of a node whose work the others would do as well without what holds them "
        "back, as estimated and by its bounds.",
        given={series("gpunode_gpu_verdict_gain_ratio", cause="shm", bound="estimate"): 4.0},
        results={(NODE_A, "shm", "estimate"): 0.75},
    ),
    Record(
        name=CONGESTED,
        labels=OF_NODE,
        expression=f"max by ({NODE}) ({rate(_MOVED, f'{NODE}, device, port')})",
        purpose="Signs of congestion a second at the RDMA port of a node that has most.",
        given={series(_MOVED, device="mlx5_0", port="1", kind="cnp_handled"): 20000.0},
        results={(NODE_A,): 20000.0},
    ),
    *(record for part in PARTS for record in part.records),
)
"""Rules that need only the series of one node; each shard of Prometheus can evaluate them. They are
evaluated after those on which they rest."""
