"""One job: how fast it is, what its ranks wait for, and who is waited for."""

from __future__ import annotations

from alerts.promql import GPU, gained
from alerts.promql import JOB as JOB_LABELS
from alerts.recording.bandwidth import RATIO
from dashboards import firing
from dashboards.layout import Board, link_to, link_to_run, row, section
from dashboards.panels import (
    ABSENT,
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
from dashboards.queries import NAMESPACES, Query, bounded, limit, selected, signal
from dashboards.variables import datasource, nodes_of_job, of_few, of_many, user_of_job
from gpunode.export import palette

MEMBER = "gpu:gpunode_job:member"
VERDICT = "gpu:gpunode_rank:verdict"
ODD = "gpu:gpunode_rank:odd"
ONSET = "gpu:gpunode_rank:since"
AWAITED = "gpu:gpunode_rank:awaited"
RANK = "{{who}}{{instance}} GPU {{gpu}}"
PHASES = "job:gpunode_training_seconds:rate5m"

GPU_FAULT = "gpu:gpunode_gpu_fault:level"
NODE_FAULT = "node:gpunode_fault:level"
CONDITION = "node:gpunode_node:condition"

NO_RANK = "unknown"
"""The rank of a process that tells none, or that the exporter may not look at."""

SHOWN = 32
"""Ranks that a panel shows at most, whatever the size of the job."""

LISTED = 20
"""Rows that a table shows at most."""


def _asked(expression: str, legend: str = "") -> Query:
    return Query(selected(expression, SELECTED), legend)


def _looked_back(metric: str) -> str:
    """A series of the whole time that is shown, which each point of a graph counts alike."""
    return f"count_over_time({metric}[$__range] @ end())"


EXIST = _asked("sum (job:gpunode_rank:count)", "Not running")
"""What there must be for a panel to say that nothing is wrong. A job that has ended is not running
at the end of the time that is shown; a link of ``RUNS`` shows the time of its life."""

STANDS_FROM = 60
"""Seconds without work from which on a job's steps are not looked at."""

STEPS = _asked(f"sum ({PHASES})", f"Needs {CLIENT.partition(':')[0]}")
NO_STEP = "None ends"
"""What figures of steps say while the job stands still: its last ones tell nothing of now."""


def _while_it_steps(expression: str) -> Query:
    return _asked(f"{expression} unless on () max (job:gpunode_stalled:seconds) > {STANDS_FROM}")


CHOSEN_RANKS = (
    f"topk ({SHOWN}, max by ({GPU}) ({_looked_back(ODD)}) "
    f"or on ({GPU}) 0 * max by ({GPU}) ({VERDICT} @ end()))"
)
"""The GPUs that were unlike the others for longest in the time that is shown, then any others."""


ORDER = "at"
"""The label of ranks that comes first in the alphabet: Prometheus orders series by their labels,
and Grafana keeps that order."""


def _share(states: str) -> str:
    """The share of its time that each GPU is in any of these states."""
    ledger = f'gpu:gpunode_gpu_seconds:rate5m{{state=~"{states}"}}'
    return bounded(f"sum by ({GPU}) ({ledger})")


def _in_order(expression: str) -> str:
    """Ranks in the order of their numbers, and those without one after them, by their nodes."""
    known = f'label_replace({expression}, "{ORDER}", "~$1", "instance", "(.+)")'
    padded = f'label_replace({known}, "{ORDER}", "0000$1", "rank", "([0-9]+)")'
    return f'label_replace({padded}, "{ORDER}", "$1", "{ORDER}", "[0-9]*([0-9]{{5}})")'


def _named(expression: str) -> str:
    """Ranks with how their names begin: those without a number are known by their GPU."""
    return f'label_replace({expression}, "who", "rank $1 · ", "rank", "(.+)")'


def _told(expression: str, label: str, absent: str) -> str:
    """Rows in which a label that is absent says so."""
    return f'label_replace({expression}, "{label}", "{absent}", "{label}", "")'


def _ranks(expression: str, legend: str = RANK) -> Query:
    """A figure of every GPU, for the ranks that are shown."""
    shown = f"group by ({GPU}, rank) ({VERDICT}) and on ({GPU}) {CHOSEN_RANKS}"
    found = f"({shown}) * on ({GPU}) group_left () ({expression})"
    return _asked(_in_order(_named(found)) if legend else _told(found, "rank", NO_RANK), legend)


def _phase(phase: str = "") -> str:
    chosen = f'{{phase="{phase}"}}' if phase else ""
    return f"sum ({PHASES}{chosen})"


URGENCY = (
    f'{ONSET}{{cause="ended"}} - 4e9 or {ONSET}{{cause="unseen"}} - 3e9 '
    f'or ({ONSET} and on ({GPU}) {AWAITED}) - 2e9 or {ONSET}{{alike!="wait"}} - 1e9 or {ONSET}'
)
"""Whom to look at first, the smallest: who is gone, for whom others wait, who does not wait, each
in the order in which they came to differ."""


def _first(ranks: int) -> str:
    """Since when the most urgent ranks have been unlike the others."""
    return f"{ONSET} and on ({GPU}) bottomk ({ranks}, {URGENCY})"


OTHERS = (
    'topk (1, label_replace(label_join(count_values by (alike) ("most", sum by (alike) '
    f"(job:gpunode_rank:most unless on ({JOB_LABELS}) job:gpunode_job:gpus == 1)), "
    '"rest", " others: ", "most", "alike"), "rest", " · $1", "rest", "(.+)"))'
)
"""How most ranks are, and in words how many. One on its own has no others."""

_WHO = f"1000 * ({_first(1)})"
WHO_DIFFERS = _asked(
    _named(f"({_WHO} * on () group_left (rest) {OTHERS}) or on () {_WHO}"),
    f"{RANK}: {{{{cause}}}}{{{{rest}}}} · since",
)
ALL_ALIKE = "GPUs, all alike"
NOBODY = _asked(
    f"label_replace({EXIST.expression} unless on () (count ({ONSET}) > 0), "
    f'"said", "{ALL_ALIKE}", "", "")',
    "{{said}}",
)

REASONED = (
    f"({_first(LISTED)}) * on ({GPU}) group_left (reason) "
    f"(0 * {AWAITED} + 1) "
    f"or on ({GPU}) ({_first(LISTED)})"
)

GONE = palette.CAUSES["stopped"]
"""The colour of a rank that does nothing any more, beside the others that wait for it."""

COUNT = "job:gpunode_rank:count"
BY_VERDICT = (
    f"sum by (cause) ({COUNT}) "
    f"or (0 * sum by (cause) ({_looked_back(COUNT)}) and on () sum ({COUNT}))"
)
"""How many ranks have each verdict: none any more of those that have ended, of which a legend would
tell the last figure beside those of now."""

VERDICTS = {
    **palette.CAUSES,
    "ended": GONE,
    "unseen": GONE,
    "unknown": palette.STATES["unknown"],
}
"""What is said of a rank, in the order of its numbers, with its colour."""

PAST = "30d"
OF_RUN = "cluster, owner_namespace, workload, user, began"
OF_OWNER = "cluster, owner_namespace, user"
ITS_USER = {**NAMESPACES, "user": "user"}
ONE_SCRIPT = 'workload=~"slurm-.+"'
"""Slurm jobs, which have another name each time."""

GPUS_OF_RUN = f"last_over_time(run:gpunode_job:gpus{{{ONE_SCRIPT}}}[{PAST}])"
ALIKE = (
    f"{selected(GPUS_OF_RUN, ITS_USER)} == on ({OF_OWNER}) group_left () "
    f"max by ({OF_OWNER}) ({selected(GPUS_OF_RUN, SELECTED)})"
)
"""Runs of Slurm jobs that are like the job: of the same user, with as many GPUs."""


def _runs(figure: str, of: str = "last_over_time") -> str:
    """A figure of the job's runs, and of those that are like it."""
    its = selected(f"{of}({figure}[{PAST}])", SELECTED)
    others = selected(f"{of}({figure}{{{ONE_SCRIPT}}}[{PAST}])", ITS_USER)
    return f"max by ({OF_RUN}) ({its} or {others} and on ({OF_RUN}) {ALIKE})"


SEEN_LAST = f"topk ({LISTED}, {_runs('run:gpunode_run:seen')})"


def _latest(figure: str, of: str = "last_over_time") -> Query:
    """The same of the runs that were seen last."""
    return Query(f"{_runs(figure, of)} and on ({OF_RUN}) {SEEN_LAST}")


BEGAN_AND_ENDED = (
    f"1000 * {_runs('run:gpunode_run:began')} * on ({OF_RUN}) group_left (to) "
    f'count_values by ({OF_RUN}) ("to", 1000 * {SEEN_LAST})'
)

RUNS = rows_of(
    "Its runs, and those like it",
    f"How does it compare with its runs of {PAST}, and under Slurm with those of the same user and "
    "as many GPUs? The job leads to the time of that run, as one opens a job that has ended.",
    {
        "Began": (
            Query(f'label_replace({BEGAN_AND_ENDED}, "from", "${{1}}000", "began", "(.+)")'),
            "dateTimeAsLocal",
        ),
        "Lasted": (
            Query(f"{SEEN_LAST} - on ({OF_RUN}) {_runs('run:gpunode_run:began')}"),
            "s",
        ),
        "GPUs": (_latest("run:gpunode_job:gpus"), "none"),
        "Useful": (_latest("run:gpunode_gpu_useful:ratio", "avg_over_time"), SHARE),
        "Step": (_latest("run:gpunode_training_step:median", "avg_over_time"), "s"),
        "MFU": (_latest("run:gpunode_training_mfu:ratio", "avg_over_time"), SHARE),
    },
    names={"cluster": "Cluster", "workload": "Job"},
    carried=("owner_namespace", "began", "from", "to"),
    sort_by="Began",
    needs=RULES,
    links={"Job": link_to_run("cluster", "owner_namespace", "workload")},
    decimals={"Step": 2},
)

OVERVIEW = (
    row(
        4,
        figure(
            "The odd one out",
            "Which rank is not as the others, with what verdict, and since when?",
            [WHO_DIFFERS, NOBODY],
            "dateTimeAsLocal",
            among=EXIST,
            units={ALL_ALIKE: "none"},
        ),
        figure(
            "Time left",
            "For how long may the job still run, by the limit with which Slurm began it?",
            [_asked("min (job:gpunode_slurm_job:ends) - time()")],
            "s",
            needs="a limit: the Prolog of docs/slurm.md",
            decimals=0,
        ),
        figure(
            "GPUs",
            "How many GPUs does the job have to itself?",
            [_asked("sum (job:gpunode_job:gpus)")],
            "none",
            needs=RULES,
        ),
        widths=(16, 5, 3),
    ),
    row(
        3,
        figure(
            "Step",
            "How long does a step take?",
            [_while_it_steps("max (job:gpunode_training_step:median)")],
            "s",
            needs=CLIENT,
            nothing=NO_STEP,
            among=STEPS,
        ),
        figure(
            "Slowdown",
            "How many times as long as at the best pace of this run does a step take?",
            [_while_it_steps("max (job:gpunode_training_step:slowdown)")],
            "none",
            needs=CLIENT,
            limit=limit("JobSlowed"),
            nothing=NO_STEP,
            among=STEPS,
            decimals=2,
        ),
        figure(
            "MFU",
            "Which share of the peak FLOP/s does the model use, in the median over its GPUs?",
            [_asked("quantile (0.5, job:gpunode_training_mfu_ratio:middle)")],
            SHARE,
            needs=f"{CLIENT}, with FLOPs per token",
            limit=limit("mfu"),
        ),
        figure(
            "Goodput",
            "Which share of the training processes' time goes to steps, by the client?",
            [_while_it_steps(f"{_phase('step')} / ({_phase()} > 0)")],
            SHARE,
            needs=CLIENT,
            nothing=NO_STEP,
            among=STEPS,
        ),
        figure(
            "Starved",
            "Which share of its time does the GPU that starves most have nothing to run? Not while "
            "the job compiles, or stands still in a collective.",
            [_asked("max (job:gpunode_starved:ratio)")],
            SHARE,
            needs="training: docs/verdict.md",
            limit=limit("JobStarved"),
            nothing="Not now",
            among=_asked("sum (job:gpunode_training:gpus)", "Needs training"),
        ),
        figure(
            "Stands still",
            "For how long has no GPU of the job worked, while some wait in a collective?",
            [_asked("max (job:gpunode_stalled:seconds)")],
            "s",
            limit=limit("JobStalled"),
            nothing="No",
            among=EXIST,
        ),
        figure(
            "Main cause",
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
            among=EXIST,
            colours=palette.NAMES,
        ),
        widths=(3, 4, 3, 3, 4, 4, 3),
    ),
    row(
        9,
        rows_of(
            "Who differs, and how",
            f"Which ranks are not as the most? The {LISTED} most urgent; the node and the GPU lead "
            "to their dashboards. A process that tells no rank has an unknown one.",
            {
                "For": (
                    _asked(
                        _told(_told(f"time() - ({REASONED})", "rank", NO_RANK), "reason", ABSENT)
                    ),
                    "s",
                )
            },
            names={
                "rank": "Rank",
                "instance": "Node",
                "gpu": "GPU",
                "cause": "Verdict",
                "reason": "Waited for",
            },
            carried=("cluster",),
            sort_by="For",
            nothing="No such rank",
            among=EXIST,
            links={
                "Node": link_to("gpunode-node", cluster="cluster", node="instance"),
                "GPU": link_to("gpunode-gpu", cluster="cluster", node="instance", gpu="gpu"),
            },
            values={"Verdict": VERDICTS},
        ),
        areas(
            "Ranks by verdict",
            "What holds how many ranks up?",
            [_asked(BY_VERDICT, "{{cause}}")],
            "none",
            needs=RULES,
            colours=VERDICTS,
        ),
    ),
    row(
        16,
        timeline(
            "What holds each rank up",
            "Which rank is late, and who waits for it? Ranks that wait are straggler or "
            "stalled_collective; the one that is late shows its own cause. Of a large job, the "
            f"{SHOWN} ranks that differed for longest.",
            [_ranks(f"max by ({GPU}) ({VERDICT})")],
            names=VERDICTS,
            nothing=EXIST.legend,
            unless=EXIST,
            rows=SHOWN,
        ),
    ),
    row(
        15,
        timeline(
            "Waited for",
            "For which GPU do the others wait, and what does its process do instead?",
            [
                _asked(
                    _in_order(
                        _named(
                            f"max by ({GPU}, rank) ({AWAITED}) and on ({GPU}) "
                            f"topk ({SHOWN}, max by ({GPU}) ({_looked_back(AWAITED)}))"
                        )
                    ),
                    RANK,
                )
            ],
            names=palette.REASONS,
            nothing="Nobody is waited for",
            unless=_asked(AWAITED),
            among=EXIST,
        ),
        heat(
            "Time each rank waits for its peers",
            "Who is the straggler? The rank that waits least. Of a large job, the "
            f"{SHOWN} ranks that differed for longest.",
            [_ranks(_share("blocked"))],
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
        user_of_job(),
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
                        _asked("max (job:gpunode_training_step_median_seconds:middle)", "median"),
                        _asked(
                            "max (job:gpunode_training_step_baseline_seconds:middle)", "baseline"
                        ),
                    ],
                    "s",
                    needs=CLIENT,
                ),
                lines(
                    "Model FLOPs utilisation",
                    "Which share of the peak does the model use?",
                    [
                        _asked("quantile (0.5, job:gpunode_training_mfu_ratio:middle)", "median"),
                        _asked("min (job:gpunode_training_mfu_ratio:min)", "lowest"),
                    ],
                    SHARE,
                    needs=f"{CLIENT}, with FLOPs per token",
                    limit=limit("mfu"),
                ),
                lines(
                    "Tokens a second",
                    "How many tokens does the job train on in a second, all ranks together?",
                    [_asked("sum (job:gpunode_training_tokens:rate5m)", "all ranks")],
                    "short",
                    needs=f"{CLIENT}, with tokens",
                ),
                areas(
                    "Training time by phase",
                    "What do the training processes spend their time on?",
                    [
                        _asked(
                            f"sum by (phase) ({PHASES}) / scalar({_phase()})",
                            "{{phase}}",
                        )
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
                    "Wait for data, and checkpoints",
                    "Does training wait for its data loader, and which share of the last hour went "
                    "to checkpoints?",
                    [
                        _asked("max (job:gpunode_data_wait:max)", "data, slowest rank"),
                        _asked("max (job:gpunode_checkpoints:ratio)", "checkpoints"),
                    ],
                    SHARE,
                    needs=CLIENT,
                    limit=limit("data_wait"),
                ),
                lines(
                    "Step against the last week",
                    "Is it slower than the best of its runs of a week?",
                    [_asked(signal("step_time_of_a_week"), "{{workload}} {{replica}}")],
                    "none",
                    needs=f"{CLIENT}; {RULES}",
                    limit=limit("step_time_of_a_week"),
                ),
                lines(
                    "Loss",
                    "Does the model learn? A gap is a loss that is not finite.",
                    [
                        _asked("avg (job:gpunode_training_loss:avg)", "mean of ranks"),
                        _asked("min (job:gpunode_training_loss_best:min)", "best"),
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
                        _asked("max (job:gpunode_gpu_memory_used:max)", "used"),
                        _asked("max (job:gpunode_torch_reserved:max)", "reserved by PyTorch"),
                    ],
                    SHARE,
                    needs=f"{CLIENT}, for what PyTorch reserves",
                    limit=limit("torch_reserved"),
                    highest=1,
                ),
                lines(
                    "PyTorch in 15 minutes",
                    "Does PyTorch run out of memory, or flush its cache and try again? Does "
                    "torch.compile compile again after the start? Both of the rank with most.",
                    [
                        _asked("max (job:gpunode_torch_memory:failures)", "out of memory"),
                        _asked(
                            "max (job:gpunode_torch_alloc_retries:max)", "allocations tried again"
                        ),
                        _asked("max (job:gpunode_torch_recompiled:max)", "graphs compiled"),
                    ],
                    "none",
                    needs=CLIENT,
                    limit=limit("torch_recompiled"),
                ),
                lines(
                    "Loader workers",
                    "How many workers prepare the data of a rank?",
                    [_asked("min (job:gpunode_job_loader_workers:min)", "rank with fewest")],
                    "none",
                    needs="PyTorch 2.6 or later, whose workers are named pt_data_worker",
                ),
            ),
        ),
        section(
            "Its alerts, its nodes, and earlier runs",
            row(
                8,
                firing.alerts_of_job("Alerts of the job and its nodes", SELECTED, EXIST),
                rows_of(
                    "Faults and conditions of its nodes",
                    "What is broken on the nodes of the job? 2 is worth waking somebody, 1 a "
                    "ticket, and 0 a condition of which nobody is notified.",
                    {
                        "Level": (
                            _asked(
                                f'topk({LISTED}, label_replace({GPU_FAULT}, "fault", "$1", '
                                f'"reason", "(.+)") or {NODE_FAULT} or label_replace('
                                f'0 * {CONDITION}, "fault", "$1", "condition", "(.+)"))'
                            ),
                            "none",
                        )
                    },
                    names={
                        "cluster": "Cluster",
                        "instance": "Node",
                        "gpu": "GPU",
                        "fault": "Fault",
                    },
                    sort_by="Level",
                    nothing=NOTHING_WRONG,
                    among=EXIST,
                    links={"Node": link_to("gpunode-node", cluster="cluster", node="instance")},
                ),
            ),
            row(
                9,
                RUNS,
                rows_of(
                    "What changed",
                    "Which versions does the job have that it did not have at its best pace of the "
                    "last week, and how many times as long does a step take?",
                    {
                        "Times as long": (
                            _asked(f"topk({LISTED}, job:gpunode_version:changed)"),
                            "none",
                        )
                    },
                    names={"what": "Of", "version": "Version"},
                    sort_by="Times as long",
                    nothing=NOTHING_WRONG,
                    among=EXIST,
                    decimals={"Times as long": 2},
                ),
                widths=(16, 8),
            ),
        ),
        section(
            "Communication",
            row(
                8,
                lines(
                    "Time in communication",
                    "How long does the job only move data, or wait for peers? How fast are its "
                    "collectives beside the best of their last week?",
                    [
                        _asked("job:gpunode_communication:ratio", "moves data"),
                        _asked(
                            'label_replace(job:gpunode_gpu_blocked:gap, "what", '
                            '"straggler\'s gap", "", "") or label_replace('
                            f'min by (over) ({RATIO}), "what", "speed over $1", "over", "(.+)")',
                            "{{what}}",
                        ),
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
                    "NCCL settings",
                    "What do the environments of its ranks set, such as NCCL_P2P_DISABLE?",
                    {
                        "GPUs": (
                            _asked(
                                "count by (name, value) (max by (cluster, instance, gpu, uuid, "
                                f"name, value) (gpunode_nccl_setting_info) and on ({GPU}) {MEMBER})"
                            ),
                            "none",
                        )
                    },
                    names={"name": "Setting", "value": "Value"},
                    sort_by="GPUs",
                    needs="processes whose environment gpunode may read: docs/security.md",
                ),
            ),
            row(
                8,
                lines(
                    "NCCL warnings",
                    "What has NCCL warned of in 15 minutes? Its log has the words.",
                    [_ranks(gained("gpunode_nccl_warnings_total"))],
                    "none",
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
                    [
                        _asked(
                            "max (job:gpunode_job_busiest_thread_ratio:max)", "busiest of all ranks"
                        )
                    ],
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
                    "How long do the slowest 1% of the requests take, and one in the mean?",
                    [
                        _asked("max (job:gpunode_serving_request:p99)", "slowest 1%"),
                        _asked(f"max ({signal('batch_time')})", "mean"),
                    ],
                    "s",
                    needs=SERVING,
                    limit=limit("request_time"),
                ),
            ),
            row(
                8,
                rows_of(
                    "Its GPUs",
                    f"Where do the ranks run? The {SHOWN} that differed for longest, then others; "
                    "the node and the GPU lead to their dashboards.",
                    {
                        "Useful": (
                            _ranks(_share("compute"), ""),
                            SHARE,
                        ),
                        "Waits": (_ranks(_share("blocked"), ""), SHARE),
                        "Starved": (_ranks(_share("starved"), ""), SHARE),
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
