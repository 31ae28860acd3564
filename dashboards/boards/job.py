"""One job: how fast it is, what its ranks wait for, and who is waited for."""

from __future__ import annotations

from alerts.promql import GPU, of_gpus
from dashboards.layout import Board, link_to, row, section
from dashboards.panels import (
    CLIENT,
    NCCL_LOG,
    NOTHING_WRONG,
    RAS,
    RULES,
    SERVING,
    SHARE,
    areas,
    figure,
    heat,
    lines,
    rows_of,
    timeline,
)
from dashboards.queries import JOB as SELECTED
from dashboards.queries import Query, limit, numbered, rate, selected, signal
from dashboards.variables import datasource, nodes_of_job, of_few, of_many
from gpunode.export import palette

MEMBER = "gpu:gpunode_job:member"
RANKED = (
    f"{MEMBER} * on ({GPU}) group_left (rank) "
    f"topk by ({GPU}) (1, max by ({GPU}, rank) (gpunode_gpu_process_info))"
)
RANK = "rank {{rank}} · {{instance}} GPU {{gpu}}"
LEDGER = "gpu:gpunode_gpu_seconds:rate5m"


def _asked(expression: str, legend: str = "") -> Query:
    return Query(selected(expression, SELECTED), legend)


def _members(expression: str) -> str:
    """A figure of every GPU, for those of the job; what GPUs are shared is nobody's."""
    return f"{MEMBER} * on ({GPU}) group_left () ({expression})"


def _ranks(expression: str, legend: str = RANK) -> Query:
    """A figure of every GPU of the job, by rank."""
    return _asked(f"{RANKED} * on ({GPU}) group_left () ({expression})", legend)


def _most(expression: str, legend: str = "") -> Query:
    return _asked(f"max ({_members(expression)})", legend)


def _median(expression: str, legend: str = "") -> Query:
    return _asked(f"quantile (0.5, {_members(expression)})", legend)


def _phase(phase: str = "") -> str:
    chosen = f'{{phase="{phase}"}}' if phase else ""
    return f"sum ({_members(rate(f'gpunode_training_seconds_total{chosen}'))})"


OVERVIEW = (
    row(
        3,
        figure(
            "GPUs",
            "How many GPUs does the job have to itself?",
            [_asked("sum (job:gpunode_job:gpus)")],
            "none",
            needs=RULES,
        ),
        figure(
            "Step",
            "How long does a step take?",
            [_asked("max (job:gpunode_training_step:median)")],
            "s",
            needs=CLIENT,
        ),
        figure(
            "Slowdown",
            "How many times as long as at the best pace of this run does a step take?",
            [_asked("max (job:gpunode_training_step:slowdown)")],
            "none",
            needs=CLIENT,
            limit=limit("JobSlowed"),
            decimals=2,
        ),
        figure(
            "MFU",
            "Which share of the peak FLOP/s does the model use, in the median over its GPUs?",
            [_median(of_gpus("gpunode_training_mfu_ratio"))],
            SHARE,
            needs=f"{CLIENT}, with FLOPs per token",
            limit=limit("mfu"),
        ),
        figure(
            "Goodput",
            "Which share of the training processes' time goes to steps?",
            [_asked(f"{_phase('step')} / ({_phase()} > 0)")],
            SHARE,
            needs=CLIENT,
        ),
        figure(
            "Starved",
            "Which share of its time does the GPU that starves most have nothing to run?",
            [_asked("max (job:gpunode_starved:ratio)")],
            SHARE,
            needs="training: docs/verdict.md",
            limit=limit("JobStarved"),
        ),
        figure(
            "Stands still",
            "For how long has no GPU of the job worked, while some wait in a collective?",
            [_asked("max (job:gpunode_stalled:seconds)")],
            "s",
            limit=limit("JobStalled"),
            nothing="No",
        ),
        figure(
            "Mostly held up by",
            "Which cause do most of its GPUs' verdicts name?",
            [
                _asked(
                    'topk(1, sum by (cause) (job:gpunode_gpu_bottleneck:count{cause!="none"}))',
                    "{{cause}}",
                )
            ],
            "none",
            named=True,
            nothing=NOTHING_WRONG,
            colours=palette.CAUSES,
        ),
    ),
    row(
        10,
        timeline(
            "What holds each rank up",
            "Which rank is late, and who waits for it? Ranks that wait are straggler or "
            "stalled_collective; the one that is late shows its own cause.",
            [_ranks(numbered("gpunode_gpu_bottleneck", "cause", palette.CAUSES))],
            names=palette.CAUSES,
            rows=32,
        ),
    ),
    row(
        8,
        timeline(
            "Waited for",
            "For which GPU do the others wait, and what does its process do instead?",
            [_ranks(numbered("gpunode_gpu_waited_for", "reason", palette.REASONS))],
            names=palette.REASONS,
            nothing="Nobody is waited for",
        ),
        heat(
            "Time each rank waits for its peers",
            "Who is the straggler? The rank that waits least.",
            [_ranks(f'{LEDGER}{{state="blocked"}}')],
            SHARE,
        ),
    ),
)

JOB = Board(
    uid="gpunode-job",
    title="GPU job",
    description="How fast is the job, what do its ranks wait for, and for whom?",
    variables=(
        datasource(),
        of_many("cluster"),
        of_many("namespace"),
        of_few("job"),
        nodes_of_job(),
    ),
    selection={name: label for name, label in SELECTED.items() if name != "instance"},
    sections=(
        section("", *OVERVIEW),
        section(
            "Training",
            row(
                8,
                lines(
                    "Time of a step",
                    "Has the run become slower? Its baseline is its own best pace.",
                    [
                        _median(of_gpus("gpunode_training_step_median_seconds"), "median"),
                        _most(of_gpus("gpunode_training_step_median_seconds"), "slowest rank"),
                        _median(of_gpus("gpunode_training_step_baseline_seconds"), "baseline"),
                    ],
                    "s",
                    needs=CLIENT,
                ),
                lines(
                    "Model FLOPs utilisation",
                    "Which share of the peak does the model use?",
                    [
                        _median(of_gpus("gpunode_training_mfu_ratio"), "median"),
                        _asked(
                            f"min ({_members(of_gpus('gpunode_training_mfu_ratio'))})", "lowest"
                        ),
                    ],
                    SHARE,
                    needs=f"{CLIENT}, with FLOPs per token",
                    limit=limit("mfu"),
                ),
                areas(
                    "Goodput by phase",
                    "What do the training processes spend their time on?",
                    [
                        _asked(f"{_phase(phase)} / scalar({_phase()})", phase)
                        for phase in palette.PHASES
                    ],
                    SHARE,
                    needs=CLIENT,
                    colours=palette.PHASES,
                    highest=1,
                ),
            ),
            row(
                8,
                lines(
                    "Wait for data",
                    "Does training wait for its data loader?",
                    [_most(signal("data_wait"), "slowest rank")],
                    SHARE,
                    needs=CLIENT,
                    limit=limit("data_wait"),
                ),
                lines(
                    "Checkpoints",
                    "Which share of the last hour went to checkpoints?",
                    [_asked("job:gpunode_checkpoints:ratio", "{{workload}}")],
                    SHARE,
                    needs=CLIENT,
                    limit=limit("JobCheckpointsCostly"),
                ),
                lines(
                    "Loss",
                    "Does the model learn? A gap is a loss that is not finite.",
                    [
                        _asked(
                            f"avg ({_members(of_gpus('gpunode_training_loss'))})", "mean of ranks"
                        ),
                        _asked(f"min ({_members(of_gpus('gpunode_training_loss_best'))})", "best"),
                    ],
                    "none",
                    needs=f"{CLIENT}, with the loss",
                ),
            ),
        ),
        section(
            "GPUs",
            row(
                8,
                areas(
                    "GPUs by state",
                    "What do the job's GPUs do?",
                    [_asked("sum by (state) (job:gpunode_gpu_seconds:rate5m)", "{{state}}")],
                    "none",
                    needs=RULES,
                    colours=palette.STATES,
                ),
                lines(
                    "GPU memory",
                    "Is the memory full, and how much of it does PyTorch only reserve?",
                    [
                        _most(signal("gpu_memory_used"), "used"),
                        _most(signal("torch_reserved"), "reserved by PyTorch"),
                    ],
                    SHARE,
                    needs=f"{CLIENT}, for what PyTorch reserves",
                    limit=limit("torch_reserved"),
                    highest=1,
                ),
                lines(
                    "Allocations that failed",
                    "Does PyTorch flush its cache, or run out of memory?",
                    [_asked("job:gpunode_torch_memory:failures", "{{workload}}")],
                    "none",
                    needs=CLIENT,
                    limit=limit("JobOutOfGpuMemory"),
                ),
            ),
            row(
                8,
                lines(
                    "Graphs compiled",
                    "Does torch.compile compile again after the start? Graphs in 15 minutes.",
                    [_most(signal("torch_recompiled"), "graphs")],
                    "none",
                    needs=f"{CLIENT}, and torch.compile",
                    limit=limit("torch_recompiled"),
                ),
                lines(
                    "Loader workers",
                    "How many workers prepare the data of each rank?",
                    [_ranks(of_gpus("gpunode_job_loader_workers"))],
                    "none",
                    needs="PyTorch 2.6 or later, whose workers are named pt_data_worker",
                ),
            ),
        ),
        section(
            "Communication",
            row(
                8,
                lines(
                    "Time in communication",
                    "How long does the job only move data, or wait for peers?",
                    [
                        _asked("job:gpunode_communication:ratio", "moves data"),
                        _asked("job:gpunode_gpu_blocked:gap", "straggler's gap"),
                    ],
                    SHARE,
                    limit=limit("JobCommunicationHigh"),
                ),
                rows_of(
                    "NCCL connections by transport",
                    "Which way do the ranks talk? SHM or sockets within a node are slow.",
                    {
                        "Connections": (
                            _asked(
                                "sum by (transport) ("
                                + f"max by ({GPU}, communicator, transport) "
                                + f"(gpunode_nccl_channels) and on ({GPU}) {MEMBER})"
                            ),
                            "none",
                        )
                    },
                    names={"transport": "Transport"},
                    sort_by="Connections",
                    needs=NCCL_LOG,
                ),
                rows_of(
                    "Ranks that others wait for",
                    "Which rank does NCCL name, and where does it run?",
                    {"": (_asked("job:gpunode_awaited_rank:reason"), "none")},
                    names={
                        "rank": "Rank",
                        "host": "Host",
                        "pid": "Process",
                        "reason": "Reason",
                    },
                    sort_by="Rank",
                    needs=f"{RAS}; without it, Waited for knows the ranks of each node",
                ),
            ),
        ),
        section(
            "Its processes, and what it serves",
            row(
                8,
                lines(
                    "Busiest thread",
                    "Does one thread hold the job up?",
                    [_ranks(signal("busiest_thread"))],
                    SHARE,
                    limit=limit("busiest_thread"),
                ),
                lines(
                    "Memory of the host",
                    "Is the job near its memory limit, without caches?",
                    [_asked("job:gpunode_memory_limit:ratio", "{{workload}} {{replica}}")],
                    SHARE,
                    needs="a memory limit",
                    limit=limit("JobMemoryNearLimit"),
                ),
                lines(
                    "Requests",
                    "How long do the slowest 1% of the requests take?",
                    [_asked("job:gpunode_serving_request:p99", "{{workload}}")],
                    "s",
                    needs=SERVING,
                    limit=limit("request_time"),
                ),
            ),
            row(
                8,
                rows_of(
                    "Its GPUs",
                    "Where does the job run? The node and the GPU lead to their dashboards.",
                    {
                        "Useful": (
                            _ranks(f'sum by ({GPU}) ({LEDGER}{{state=~"compute|memory"}})', ""),
                            SHARE,
                        ),
                        "Waits": (_ranks(f'{LEDGER}{{state="blocked"}}', ""), SHARE),
                        "Starved": (_ranks(f'{LEDGER}{{state="starved"}}', ""), SHARE),
                    },
                    names={
                        "rank": "Rank",
                        "cluster": "Cluster",
                        "instance": "Node",
                        "gpu": "GPU",
                        "replica": "Replica",
                    },
                    sort_by="Starved",
                    links={
                        "Node": link_to("gpunode-node", cluster="cluster", node="instance"),
                        "GPU": link_to(
                            "gpunode-gpu", cluster="cluster", node="instance", gpu="gpu"
                        ),
                    },
                ),
                lines(
                    "Longest kernels",
                    "What did the last profiled step spend its time on?",
                    [
                        _asked(
                            "topk(10, max by (kernel) (max by (cluster, instance, gpu, uuid, "
                            f"kernel) (gpunode_training_kernel_seconds) and on ({GPU}) {MEMBER}))",
                            "{{kernel}}",
                        )
                    ],
                    "s",
                    needs=f"{CLIENT}, with torch.profiler",
                ),
            ),
        ),
    ),
)
