"""One job: how fast it is, what its ranks wait for, and who is waited for."""

from __future__ import annotations

from dashboards import firing
from dashboards.causes import OF_RANKS, WAITS
from dashboards.layout import Board, link_to, link_to_run, row, section
from dashboards.lines import LINES
from dashboards.panels import (
    ABSENT,
    CLIENT,
    NCCL_LOG,
    NOTHING_WRONG,
    OF_FAULTS,
    RAS,
    RULES,
    SERVING,
    SHARE,
    areas,
    figure,
    heat,
    in_words,
    lines,
    remedy,
    rows_of,
    timeline,
)
from dashboards.promql import GPU, MEMBER, NODE, RANK, bounded, gained, of_gpus, rate, ratio, share
from dashboards.promql import JOB as BY_JOB
from dashboards.queries import JOB as SELECTED
from dashboards.queries import NAMESPACES, USEFUL, Query, numbered, selected, spoken
from dashboards.rules import Limit, limit, threshold
from dashboards.variables import datasource, nodes_of_job, of_few, of_many, user_of_job
from gpunode import words
from gpunode.export import palette

HELD_UP = "gpu:gpunode_rank:held_up"
AWAITED = "gpu:gpunode_rank:awaited"
COUNT = "job:gpunode_rank:count"
GPUS = "job:gpunode_gpus:count"
STATES = "job:gpunode_gpu_states:gpus"
LABEL = "{{who}}{{instance}} GPU {{gpu}}"
PHASES = "job:gpunode_training_seconds:rate5m"

NO_RANK = "unknown"
"""The rank of a process that tells none, or that the exporter may not look at."""

OF_REASON = "waited for: "
"""Begins the name of a remedy of a rank for which others wait."""

SHOWN = 32
"""Ranks that a panel shows at most, whatever the size of the job."""

LISTED = 20
"""Rows that a table shows at most."""


def _query(expression: str, legend: str = "") -> Query:
    return Query(selected(expression, SELECTED), legend)


def _of_job(figure: str, over: str = "max") -> str:
    """A figure of the GPUs that are the job's."""
    return f"{over} ({figure} and on ({GPU}) {MEMBER})"


def _looked_back(metric: str) -> str:
    """A series of the whole time that is shown, which each point of a graph counts alike."""
    return f"count_over_time({metric}[$__range] @ end())"


EXIST = _query(f"sum ({GPUS})", "Not running")
"""What there must be for a panel to say that nothing is wrong. A job that has ended is not running
at the end of the time that is shown; a link of ``RUNS`` shows the time of its life."""

STANDS_FROM = 60
"""Seconds without work from which on a job's steps are not looked at."""

STEPS = _query(f"sum ({PHASES})", f"Needs {CLIENT.partition(':')[0]}")
NO_STEP = "no step completed in this range"
"""What figures of steps say while the job stands still: its last ones tell nothing of now."""


def _while_it_steps(expression: str) -> Query:
    return _query(f"{expression} unless on () max (job:gpunode_stalled:seconds) > {STANDS_FROM}")


LATE = f"{HELD_UP} and on ({GPU}) {AWAITED}"
"""Ranks for which others wait, with what holds them up themselves."""

UNLIKE = (
    f'{HELD_UP}{{cause!~"none|{WAITS}"}} unless on ({BY_JOB}, cause) '
    f"{COUNT} > on ({BY_JOB}) group_left () 0.5 * ({GPUS} > 1)"
)
"""Ranks that do not wait and are not as the most."""

AT_WORK = (
    f'{HELD_UP}{{cause="none"}} and on ({BY_JOB}) '
    f'sum by ({BY_JOB}) ({COUNT}{{cause=~"{WAITS}"}}) > on ({BY_JOB}) 0.5 * {GPUS}'
)
"""Ranks that nothing holds up while most wait."""

ODD = f"{LATE} or {UNLIKE} or {AT_WORK}"
"""Who differs, and for how many seconds."""

OWN = f'{HELD_UP}{{cause!~"none|{WAITS}"}}'
CHOSEN_RANKS = (
    f"topk ({SHOWN}, 1e6 * max by ({GPU}) ({_looked_back(AWAITED)}) or on ({GPU}) "
    f"max by ({GPU}) ({_looked_back(OWN)}) "
    f"or on ({GPU}) 0 * max by ({GPU}) ({HELD_UP} @ end()))"
)
"""The GPUs that were waited for, or held up without waiting, for longest, then any others."""


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


def _fill_label(expression: str, label: str, absent: str) -> str:
    """Rows in which a label that is absent says so."""
    return f'label_replace({expression}, "{label}", "{absent}", "{label}", "")'


def _ranks(expression: str, legend: str = LABEL) -> Query:
    """A figure of every GPU, for the ranks that are shown."""
    shown = f"group by ({GPU}, rank) ({RANK}) and on ({GPU}) {CHOSEN_RANKS}"
    found = f"({shown}) * on ({GPU}) group_left () ({expression})"
    return _query(
        _in_order(_named(found)) if legend else _fill_label(found, "rank", NO_RANK), legend
    )


def _phase(phase: str = "") -> str:
    chosen = f'{{phase="{phase}"}}' if phase else ""
    return f"sum ({PHASES}{chosen})"


def _first(ranks: int) -> str:
    """The most urgent ranks: who is gone, for whom others wait, who is held up by himself."""
    gone = f'{HELD_UP}{{cause=~"unseen|gpu_lost|no_process"}}'
    return f"({ODD}) and on ({GPU}) topk ({ranks}, {gone} + 2e9 or ({LATE}) + 1e9 or {ODD})"


_MOST = (
    'count_values by (cause) ("most", topk (1, sum by (cause) '
    f"({COUNT} unless on ({BY_JOB}) {GPUS} == 1)))"
)
_MOST_DO = spoken(f'label_replace({_MOST}, "cause", "wait", "cause", "{WAITS}")', "cause")
OTHERS = (
    f'label_replace(label_join({_MOST_DO}, "rest", " ", "most", "cause"), '
    '"rest", "; $1", "rest", "(.+)")'
)
"""How many ranks do what most do: ``; 31 wait``. One on its own has no others."""

_WHO = f"1000 * (time() - ({_first(1)}))"
WHO_DIFFERS = _query(
    spoken(_named(f"({_WHO} * on () group_left (rest) {OTHERS}) or on () {_WHO}"), "cause"),
    f"{LABEL}: {{{{cause}}}}{{{{rest}}}} · since",
)
ALL_ALIKE = "GPUs, all alike"
NOBODY = _query(
    f"label_replace({EXIST.expression} unless on () (count ({ODD}) > 0), "
    f'"said", "{ALL_ALIKE}", "", "")',
    "{{said}}",
)

REASONED = (
    f"({_first(LISTED)}) * on ({GPU}) group_left (reason) (0 * {AWAITED} + 1) "
    f"or on ({GPU}) ({_first(LISTED)})"
)

_ODD_ONE = f"0 * ({_first(1)})"
WHAT_TO_DO = _query(
    f"label_replace({_ODD_ONE} + on ({GPU}) group_left (reason) (0 * {AWAITED}), "
    f'"what", "{OF_REASON}$1", "reason", "(.+)") '
    f'or on ({GPU}) label_replace({_ODD_ONE}, "what", "$1", "cause", "(.+)")',
    "{{what}}",
)
REMEDIES = {
    **{name: said.do for name, said in words.CAUSES.items()},
    **{f"{OF_REASON}{name}": said.do for name, said in words.REASONS.items()},
}
"""What to do about the odd one out, by its cause, or by why the others wait for it."""

BY_VERDICT = (
    f"sum by (cause) ({COUNT}) "
    f"or (0 * sum by (cause) ({_looked_back(COUNT)}) and on () sum ({COUNT}))"
)
"""How many ranks have each verdict: none any more of those that have ended, of which a legend would
tell the last figure beside those of now."""

PAST = "30d"
OF_OWNER = {**NAMESPACES, "user": "user"}
NAMED = "cluster, owner_namespace, workload, user"
HOURLY = "job:gpunode_gpu_seconds:rate1h_hourly"


def _other_jobs(series: str, over: str = "sum_over_time") -> str:
    """A figure of the jobs of the same owner."""
    return selected(f"sum by ({NAMED}) ({over}({series}[{PAST}]))", OF_OWNER)


HELD_HOURS = _other_jobs(f'{HOURLY}{{state!="free"}}')
LATEST = f"topk ({LISTED}, {HELD_HOURS})"
_TIMES = selected(f"sum by ({NAMED}) (last_over_time({HOURLY}[1h]))", OF_OWNER)


def _time(edge: str, label: str) -> str:
    """The first or the last hour of each of those jobs, in a label."""
    at = f"1000 * {edge}_over_time(timestamp({_TIMES})[{PAST}:1h])"
    return f'count_values by ({NAMED}) ("{label}", {at})'


SINCE = (
    f"{LATEST} * on ({NAMED}) group_left (from) {_time('min', 'from')} "
    f"* on ({NAMED}) group_left (to) {_time('max', 'to')}"
)


def _latest(expression: str) -> Query:
    return Query(f"{expression} and on ({NAMED}) {LATEST}")


RUNS = rows_of(
    "Jobs of the same owner",
    f"How does it compare with the {LISTED} largest jobs of {PAST} of the same namespace and user? "
    "The job leads to the time of its life, as one opens a job that has ended.",
    {
        "GPU hours": (Query(SINCE), "none"),
        "Useful": (
            _latest(f"{_other_jobs(f'{HOURLY}{{{USEFUL}}}')} / on ({NAMED}) ({HELD_HOURS} > 0)"),
            SHARE,
        ),
        "Step": (
            _latest(_other_jobs("job:gpunode_training_step:median_hourly", "avg_over_time")),
            "s",
        ),
        "MFU": (
            _latest(_other_jobs("job:gpunode_training_mfu:ratio_hourly", "avg_over_time")),
            SHARE,
        ),
    },
    names={"cluster": "Cluster", "workload": "Job"},
    carried=("owner_namespace", "from", "to"),
    sort_by="GPU hours",
    needs=RULES,
    links={"Job": link_to_run("cluster", "owner_namespace", "workload")},
    decimals={"Step": 2, "GPU hours": 1},
)

CHECKPOINTS = (
    f'sum (sum_over_time({PHASES}{{phase="checkpoint"}}[1h])) / '
    f"(sum (sum_over_time({PHASES}[1h])) > 0)"
)
MIDDLE_MFU = f"quantile (0.5, {of_gpus('gpunode_training_mfu_ratio')} and on ({GPU}) {MEMBER})"
REQUEST = "gpunode_serving_request_seconds"
P99 = f"histogram_quantile(0.99, {_of_job(rate(f'{REQUEST}_bucket', f'{GPU}, le'), 'sum by (le)')})"
MEAN = _of_job(ratio(rate(f"{REQUEST}_sum"), rate(f"{REQUEST}_count")))

OVERVIEW = (
    row(
        3,
        figure(
            "The odd one out",
            "Which rank is not as the others, with what verdict, and since when?",
            [WHO_DIFFERS, NOBODY],
            "dateTimeAsLocal",
            among=EXIST,
            sentence=True,
            units={ALL_ALIKE: "none"},
        ),
    ),
    row(
        2,
        remedy(
            "What to do",
            "What helps the odd one out? Its GPU and its node lead on, and the node's page says "
            "more.",
            WHAT_TO_DO,
            REMEDIES,
            nothing="Nothing",
            among=EXIST,
        ),
    ),
    row(
        2,
        figure(
            "Step",
            "How long does a step take?",
            [_while_it_steps(_of_job(of_gpus("gpunode_training_step_median_seconds")))],
            "s",
            needs=CLIENT,
            nothing=NO_STEP,
            among=STEPS,
        ),
        figure(
            "Slowdown",
            "How many times as long as at the best pace of this run does a step take?",
            [_while_it_steps("max (job:gpunode_step:slowdown)")],
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
            [_query(MIDDLE_MFU)],
            SHARE,
            needs=f"{CLIENT}, with FLOPs per token",
            limit=LINES["mfu"].limit,
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
            "Stands still",
            "For how long has no GPU of the job worked, while some wait in a collective?",
            [_query("max (job:gpunode_stalled:seconds)")],
            "s",
            limit=limit("JobStalled"),
            nothing="it runs",
            among=EXIST,
        ),
        widths=(5, 5, 4, 5, 5),
    ),
    row(
        2,
        figure(
            "Time left",
            "For how long may the job still run, by the limit with which Slurm began it?",
            [
                _query(
                    "min (label_replace(gpunode_slurm_job_end_timestamp_seconds, "
                    '"workload", "slurm-$1", "slurm_job", "(.+)") '
                    f"and on (cluster, workload) {MEMBER}) - time()"
                )
            ],
            "s",
            needs="a time limit that the Prolog of docs/slurm.md writes down",
            unknown="set a Slurm time limit to see this",
            decimals=0,
        ),
        figure(
            "GPUs",
            "How many GPUs does the job have to itself?",
            [_query(f"sum ({GPUS})")],
            "none",
            needs=RULES,
        ),
        figure(
            "Starved",
            "For which share of their time have its GPUs nothing to run, in the mean?",
            [_query('max (job:gpunode_gpu_seconds:rate5m{state="starved"})')],
            SHARE,
            limit=Limit(threshold("starved_ratio"), ">"),
            nothing="not starved",
            among=EXIST,
        ),
        figure(
            "Main cause",
            "Which cause do most of its GPUs' verdicts name?",
            [
                _query(
                    f'topk(1, sum by (cause) ({COUNT}{{cause!="none"}}))',
                    "{{cause}}",
                )
            ],
            "none",
            named=True,
            nothing=NOTHING_WRONG,
            among=EXIST,
            colours=palette.NAMES,
        ),
        widths=(8, 4, 5, 7),
    ),
    row(
        9,
        rows_of(
            "Who differs, and how",
            f"Which ranks are not as the most? The {LISTED} most urgent; the node and the GPU lead "
            "to their dashboards. A process that tells no rank has an unknown one.",
            {
                "For": (
                    _query(_fill_label(_fill_label(REASONED, "rank", NO_RANK), "reason", ABSENT)),
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
            values={"Verdict": OF_RANKS},
            meanings={"Waited for": in_words(palette.REASONS)},
        ),
        areas(
            "Ranks by verdict",
            "What holds how many ranks up?",
            [_query(BY_VERDICT, "{{cause}}")],
            "none",
            needs=RULES,
            colours=OF_RANKS,
        ),
    ),
    row(
        16,
        timeline(
            "What holds each rank up",
            "Which rank is late, and who waits for it? Those that wait have a straggler or a "
            "stalled collective; the one that is late shows its own cause. Of a large job, the "
            f"{SHOWN} ranks that differed for longest.",
            [_ranks(numbered(HELD_UP, "cause", OF_RANKS))],
            names=OF_RANKS,
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
                _query(
                    _in_order(
                        _named(
                            f"({numbered(AWAITED, 'reason', palette.REASONS, f'{GPU}, rank')}) "
                            f"and on ({GPU}) topk ({SHOWN}, max by ({GPU}) "
                            f"({_looked_back(AWAITED)}))"
                        )
                    ),
                    RANK,
                )
            ],
            names=palette.REASONS,
            nothing="Nobody is waited for",
            unless=_query(AWAITED),
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
                        _query(_of_job(of_gpus("gpunode_training_step_median_seconds")), "median"),
                        _query(
                            _of_job(of_gpus("gpunode_training_step_baseline_seconds")), "baseline"
                        ),
                    ],
                    "s",
                    needs=CLIENT,
                ),
                lines(
                    "Model FLOPs utilisation",
                    "Which share of the peak does the model use?",
                    [
                        _query(MIDDLE_MFU, "median"),
                        _query(_of_job(of_gpus("gpunode_training_mfu_ratio"), "min"), "lowest"),
                    ],
                    SHARE,
                    needs=f"{CLIENT}, with FLOPs per token",
                    limit=LINES["mfu"].limit,
                ),
                lines(
                    "Tokens a second",
                    "How many tokens does the job train on in a second, all ranks together?",
                    [_query(_of_job(rate("gpunode_training_tokens_total"), "sum"), "all ranks")],
                    "short",
                    needs=f"{CLIENT}, with tokens",
                ),
                areas(
                    "Training time by phase",
                    "What do the training processes spend their time on?",
                    [
                        _query(
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
                        _query(f"{_phase('data')} / ({_phase()} > 0)", "data"),
                        _query(CHECKPOINTS, "checkpoints"),
                    ],
                    SHARE,
                    needs=CLIENT,
                    limit=Limit(0.1, ">"),
                ),
                lines(
                    "Slowdown of its steps",
                    "How many times as long as at the best pace of this run does a step take?",
                    [_query("max (job:gpunode_step:slowdown)", "slowest rank")],
                    "none",
                    needs=CLIENT,
                    limit=limit("JobSlowed"),
                ),
                lines(
                    "Loss",
                    "Does the model learn? A gap is a loss that is not finite.",
                    [
                        _query(_of_job(of_gpus("gpunode_training_loss"), "avg"), "mean of ranks"),
                        _query(
                            _of_job(of_gpus("gpunode_training_loss_best", "min"), "min"), "best"
                        ),
                        _query(
                            _of_job(of_gpus("gpunode_training_loss_finite") + " == 0", "count"),
                            "ranks without a finite loss",
                        ),
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
                    [_query(f"sum by (state) ({STATES})", "{{state}}")],
                    "none",
                    needs=RULES,
                    colours=palette.STATES,
                ),
                lines(
                    "GPU memory",
                    "Is the memory full, and how much of it does PyTorch only reserve?",
                    [
                        _query("max (job:gpunode_gpu_memory:max)", "used"),
                        _query(
                            _of_job(
                                share(
                                    "gpunode_torch_memory_reserved_bytes",
                                    "gpunode_gpu_memory_size_bytes",
                                )
                            ),
                            "reserved by PyTorch",
                        ),
                    ],
                    SHARE,
                    needs=f"{CLIENT}, for what PyTorch reserves",
                    limit=LINES["gpu_memory_used"].limit,
                    highest=1,
                ),
                lines(
                    "PyTorch in 15 minutes",
                    "Does PyTorch run out of memory, or flush its cache and try again? Does "
                    "torch.compile compile again after the start? Both of the rank with most.",
                    [
                        _query(_of_job(gained("gpunode_torch_ooms_total")), "out of memory"),
                        _query(
                            _of_job(gained("gpunode_torch_alloc_retries_total")),
                            "allocations tried again",
                        ),
                        _query(_of_job(LINES["torch_recompiled"].signal), "graphs compiled"),
                    ],
                    "none",
                    needs=CLIENT,
                    limit=LINES["torch_recompiled"].limit,
                ),
                lines(
                    "Loader workers",
                    "How many workers prepare the data of a rank?",
                    [
                        _query(
                            _of_job(of_gpus("gpunode_job_loader_workers"), "min"),
                            "rank with fewest",
                        )
                    ],
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
                    "Faults of its nodes",
                    "What is broken on the nodes of the job, and since when?",
                    {
                        "Since": (
                            _query(f"1000 * (time() - topk({LISTED}, gpu:gpunode_fault:seconds))"),
                            "dateTimeFromNow",
                        )
                    },
                    names={
                        "severity": "Level",
                        "cluster": "Cluster",
                        "instance": "Node",
                        "gpu": "GPU",
                        "reason": "Reason",
                    },
                    sort_by="Since",
                    nothing=NOTHING_WRONG,
                    among=EXIST,
                    links={"Node": link_to("gpunode-node", cluster="cluster", node="instance")},
                    values={"Level": palette.SEVERITIES},
                    meanings={"Reason": OF_FAULTS},
                ),
            ),
            row(9, RUNS),
        ),
        section(
            "Communication",
            row(
                8,
                lines(
                    "Time in communication",
                    "For which share of the time does the job only move data, or wait for peers?",
                    [
                        _query(
                            'avg (job:gpunode_gpu_seconds:rate5m{state="communication"})',
                            "moves data",
                        ),
                        _query(
                            'avg (job:gpunode_gpu_seconds:rate5m{state="blocked"})',
                            "waits for peers",
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
                            _query(
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
                            _query(
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
                    {
                        "": (
                            _query(
                                f"max by ({NODE}, rank, host, pid, reason) "
                                f"(gpunode_nccl_awaited_rank_info) and on ({NODE}) {MEMBER}"
                            ),
                            "none",
                        )
                    },
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
                    [_query(_of_job(LINES["busiest_thread"].signal), "busiest of all ranks")],
                    SHARE,
                    limit=LINES["busiest_thread"].limit,
                ),
                lines(
                    "Memory of the host",
                    "Is the job near its memory limit, without caches?",
                    [_query("max (job:gpunode_memory_limit:ratio)", "fullest")],
                    SHARE,
                    needs="a memory limit",
                    limit=limit("JobMemoryNearLimit"),
                ),
                lines(
                    "Requests",
                    "How long do the slowest 1% of the requests take, and one in the mean?",
                    [
                        _query(P99, "slowest 1%"),
                        _query(MEAN, "mean"),
                    ],
                    "s",
                    needs=SERVING,
                    limit=Limit(2.0, ">"),
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
                        _query(
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
