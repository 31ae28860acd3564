"""Which ranks of a job are unlike the others, and since when.

A rank is a GPU that a job has, whether or not its process tells a number. It stays a rank of the
job when its process ends or its node is no longer seen, for as long as the job goes on without it.
"""

from __future__ import annotations

from collections.abc import Iterable

from alerts.examples import HELD, HELD_B, OF_GPU, OF_JOB, STARTED, TRAIN, A, B, series
from alerts.model import Given, Record
from alerts.promql import GPU, JOB, OWNER, of_gpus
from alerts.recording import parts
from alerts.recording.faults import INFO
from alerts.recording.parts import (
    BOTTLENECKS,
    LOSS,
    MEMBER,
    MFU,
    NO_CAUSE,
    SAID,
    STEP,
)
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.reasons import REASONS

ENDED, UNSEEN, UNKNOWN = NO_CAUSE
VERDICTS = (*CAUSES, *NO_CAUSE)
"""What is said of a rank. The number of a verdict is its place."""

WAIT = "wait"
WAITING = ("straggler", "stalled_collective")
"""Verdicts of ranks that wait for another. They count as one."""

OF_RANK = (*OF_GPU, *OF_JOB[1:], "rank")
RANK = ", ".join(OF_RANK)
PROCESSES = "gpunode_gpu_process_info"

_TOLD = f'max by ({GPU}, rank) ({PROCESSES}{{rank!=""}})'
RANKED = f"({_TOLD} and on ({GPU}) count by ({GPU}) ({_TOLD}) == 1)"
"""The rank that the process on a GPU tells; several on one GPU are none in particular."""

SEEN = of_gpus("gpunode_gpu_info")
REASONED = "gpu:gpunode_gpu_waited_for:number"
HELD_RANK = "gpu:gpunode_rank:held"
LOST = "gpu:gpunode_job:lost"
LOST_RANK = "gpu:gpunode_rank:lost"
VERDICT = "gpu:gpunode_rank:verdict"
_ENDED = (
    f"({HELD_RANK} and on ({GPU}) " + of_gpus('gpunode_gpu_waited_for{reason="gone"}') + " == 1 "
    f'or {HELD_RANK}{{rank!=""}} unless on ({GPU}) {PROCESSES}) and on ({GPU}) {SEEN}'
)


def _called(verdict: str, expression: str) -> str:
    """Ranks with a verdict that no GPU has, and its number."""
    number = VERDICTS.index(verdict)
    return f'label_replace({number} * ({expression}), "cause", "{verdict}", "", "")'


def _numbered(metric: str, label: str, values: Iterable[str]) -> str:
    """The number of the one value of a label that is 1 of a GPU: its place among the values.

    The metric is read once, and joined with as many constants as there are values.
    """
    numbers = " or ".join(
        f'label_replace(vector({number}), "{label}", "{value}", "", "")'
        for number, value in enumerate(values)
    )
    return f"max by ({GPU}, {label}) ({metric} == 1) * on ({label}) group_left () ({numbers})"


def _alike(told: str) -> str:
    """Verdicts, with those under one name for which ranks are alike."""
    alike = f'label_replace({told}, "alike", "$1", "cause", "(.+)")'
    return f'label_replace({alike}, "alike", "{WAIT}", "cause", "{"|".join(WAITING)}")'


def _said() -> str:
    of_gpu = f"({BOTTLENECKS} == on ({GPU}) group_left () max by ({GPU}) ({BOTTLENECKS}))"
    return _alike(
        f"{_called(UNSEEN, f'{HELD_RANK} unless on ({GPU}) {SEEN}')} "
        f"or on ({RANK}) {_called(ENDED, _ENDED)} "
        f"or on ({RANK}) {HELD_RANK} * on ({GPU}) group_left (cause) {of_gpu} "
        f"or on ({RANK}) {_called(UNKNOWN, HELD_RANK)}"
    )


def _verdict() -> str:
    told = (
        f"{_called(UNSEEN, f'{LOST_RANK} unless on ({GPU}) {SEEN}')} "
        f"or on ({RANK}) {_called(ENDED, f'{LOST_RANK} and on ({GPU}) {SEEN}')}"
    )
    return f"{SAID} or on ({GPU}, {OWNER}) {_alike(told)}"


STARVED = series("gpunode_gpu_bottleneck", cause="data_loading_storage")
WAITS_B = series("gpunode_gpu_bottleneck", cause="straggler", gpu="1", uuid="GPU-b")
INFO_B = series(INFO.metric, **{**dict(INFO.labels), "gpu": "1", "uuid": "GPU-b"})
ONE_STARVES: Given = {**HELD, **HELD_B, INFO: 1.0, INFO_B: 1.0, STARVED: 1.0, WAITS_B: 1.0}
"""A job of two GPUs, of which one waits for the other."""

NUMBER = float(VERDICTS.index("data_loading_storage"))
WAITS = float(VERDICTS.index("straggler"))
OF_A = (*A, *TRAIN)
NAMED = ("data_loading_storage", "data_loading_storage")
PROCESS = series(STARTED.metric, **{**dict(STARTED.labels), "rank": "3"})

OF_NODES: tuple[Record, ...] = (
    Record(
        name=BOTTLENECKS,
        labels=(*OF_GPU, "cause"),
        expression=_numbered("gpunode_gpu_bottleneck", "cause", CAUSES),
        purpose="The verdict on a GPU as a number, its place among the causes.",
        given={STARVED: 1.0},
        results={(*A, "data_loading_storage"): NUMBER},
    ),
    Record(
        name=REASONED,
        labels=(*OF_GPU, "reason"),
        expression=_numbered("gpunode_gpu_waited_for", "reason", REASONS),
        purpose="Why a GPU is waited for, as a number, its place among the reasons.",
        given={series("gpunode_gpu_waited_for", reason="stopped"): 1.0},
        results={(*A, "stopped"): 1.0},
    ),
    Record(
        name=HELD_RANK,
        labels=OF_RANK,
        expression=(
            f"{MEMBER} * on ({GPU}) group_left (rank) {RANKED} "
            f"or on ({GPU}, {OWNER}) ({HELD_RANK} and on ({GPU}, {OWNER}) {MEMBER}) "
            f"or on ({GPU}, {OWNER}) {MEMBER}"
        ),
        purpose="The ranks that have a GPU of a node. `rank` is the number that its process tells "
        "or has told, if any; the rule reads its own past.",
        given={**HELD, PROCESS: 1.0},
        results={(*OF_A, "3"): 1.0},
    ),
    Record(
        name=SAID,
        labels=(*OF_RANK, "cause", "alike"),
        expression=_said(),
        purpose="The number of what is said of a rank that has a GPU: a cause, `ended`, `unseen` "
        "or `unknown`. `alike` is the same, but `wait` for all that wait for another.",
        given=ONE_STARVES,
        results={(*OF_A, "", *NAMED): NUMBER, (*B, *TRAIN, "", "straggler", WAIT): WAITS},
    ),
)
"""Rules that need only the series of one node; each shard of Prometheus can evaluate them."""

OF_RANKS: tuple[Record, ...] = (
    Record(
        name=LOST,
        labels=(*OF_GPU, *OF_JOB[1:]),
        expression=(
            f"gpu:gpunode_job:member_lately and on ({JOB}) job:gpunode_job:gpus "
            f"unless on ({GPU}) {MEMBER}"
        ),
        purpose="The GPUs that a job lost in the last minutes, or before it came to a halt.",
        given=HELD,
        results={},
    ),
    Record(
        name=LOST_RANK,
        labels=OF_RANK,
        expression=(
            f"group by ({RANK}) ({VERDICT} and on ({GPU}, {OWNER}) {LOST}) "
            f"or on ({GPU}, {OWNER}) {LOST}"
        ),
        purpose="The same, with the number of the rank that each of them had, if any.",
        given=HELD,
        results={},
    ),
    Record(
        name=VERDICT,
        labels=(*OF_RANK, "cause", "alike"),
        expression=_verdict(),
        purpose="The number of what is said of a rank of a job, of those that are gone, too.",
        given=ONE_STARVES,
        results={(*OF_A, "", *NAMED): NUMBER, (*B, *TRAIN, "", "straggler", WAIT): WAITS},
    ),
    Record(
        name="job:gpunode_rank:count",
        labels=(*OF_JOB, "cause"),
        expression=f"count by ({JOB}, cause) ({VERDICT})",
        purpose="Ranks of a job by what is said of them.",
        given=ONE_STARVES,
        results={(*TRAIN, "straggler"): 1.0},
    ),
    Record(
        name="job:gpunode_rank:weight",
        labels=(*OF_JOB, "alike"),
        expression=(
            f'(count by ({JOB}, alike) ({VERDICT}{{alike="{WAIT}"}}) + 0.5 '
            f"or count by ({JOB}, alike) ({VERDICT})) "
            f"- on ({JOB}, alike) max by ({JOB}, alike) ({VERDICT}) / 1000"
        ),
        purpose="Ranks of a job that are alike. Of as many, those that wait weigh most, then those "
        "whose verdict has the smaller number; rounded, it is their count.",
        given=ONE_STARVES,
        results={(*TRAIN, WAIT): 1.5 - WAITS / 1000},
    ),
    Record(
        name="job:gpunode_rank:most",
        labels=(*OF_JOB, "alike"),
        expression=(
            f"round(job:gpunode_rank:weight == on ({JOB}) group_left () "
            f"max by ({JOB}) (job:gpunode_rank:weight))"
        ),
        purpose="How many ranks of a job are as most are, and how.",
        given=ONE_STARVES,
        results={(*TRAIN, WAIT): 1.0},
    ),
    Record(
        name="gpu:gpunode_rank:awaited",
        labels=(*OF_RANK, "reason"),
        expression=(
            f"group by ({RANK}) ({VERDICT} and on ({GPU}) {REASONED}) "
            f"* on ({GPU}) group_left (reason) "
            f"({REASONED} == on ({GPU}) group_left () max by ({GPU}) ({REASONED}))"
        ),
        purpose="The ranks for which others wait, and the number of the reason, its place among "
        "the reasons.",
        given={**HELD, series("gpunode_gpu_waited_for", reason="stopped"): 1.0},
        results={(*OF_A, "", "stopped"): 1.0},
    ),
    Record(
        name="gpu:gpunode_rank:odd",
        labels=(*OF_RANK, "cause", "alike"),
        expression=(
            f'{VERDICT}{{cause!="none"}} unless on ({JOB}, alike) '
            "job:gpunode_rank:most "
            f'or {VERDICT}{{cause="none"}} and on ({JOB}) '
            f'job:gpunode_rank:most{{alike="{WAIT}"}} '
            f"or {VERDICT} and on ({RANK}) gpu:gpunode_rank:awaited "
            f'or {VERDICT}{{cause!="none"}} and on ({JOB}) '
            f"(sum by ({JOB}) (job:gpunode_rank:count) == 1)"
        ),
        purpose="The ranks that are not as most ranks of their job, or for which others wait, and "
        "the number of their verdict. A rank without trouble is one only if most wait.",
        given=ONE_STARVES,
        results={(*OF_A, "", *NAMED): NUMBER},
    ),
    Record(
        name="gpu:gpunode_rank:since",
        labels=(*OF_RANK, "cause", "alike"),
        expression=(
            f"(last_over_time(gpu:gpunode_rank:since[5m]) and on ({RANK}, cause) "
            f"gpu:gpunode_rank:odd) or on ({RANK}, cause) (time() + 0 * gpu:gpunode_rank:odd)"
        ),
        purpose="Since when a rank has been unlike the others with this verdict, as Unix time, "
        "without gaps of minutes; the rule reads its own past.",
        given=ONE_STARVES,
        results={(*OF_A, "", *NAMED): 0.0},
    ),
)
"""The odd ones out."""


def _most(line: str, purpose: str) -> Record:
    """What a line of the threshold table looks at, of the rank of a job that has most."""
    part = parts.MOST[line]
    return Record(
        name=f"job:gpunode_{line}:max",
        labels=OF_JOB,
        expression=part.over_nodes(),
        purpose=purpose,
        given={**HELD, **part.given},
        results={TRAIN: part.value},
    )


def _figure(metric: str, what: str, part: parts.Part, purpose: str) -> Record:
    """A figure over all ranks of a job, of a gauge of each."""
    return Record(
        name=f"job:{metric}:{what}",
        labels=OF_JOB,
        expression=part.over_nodes(),
        purpose=purpose,
        given={**HELD, series(metric): 2.0},
        results={TRAIN: 2.0},
    )


BASELINE = "gpunode_training_step_baseline_seconds"
THREAD = "gpunode_job_busiest_thread_ratio"
WORKERS = "gpunode_job_loader_workers"

OF_FIGURES: tuple[Record, ...] = (
    _figure(STEP, "middle", parts.STEP_MIDDLE, "Time of a step of a job's median rank."),
    _figure(BASELINE, "middle", parts.BASELINE_MIDDLE, "The best pace of its median rank."),
    _figure(MFU, "middle", parts.MFU_MIDDLE, "MFU of a job's median rank."),
    _figure(MFU, "min", parts.MFU_LEAST, "MFU of the rank whose MFU is lowest."),
    _figure(LOSS, "avg", parts.LOSS_MEAN, "The mean of the losses of all ranks."),
    _figure(f"{LOSS}_best", "min", parts.LOSS_BEST, "The best loss of any rank."),
    _figure(THREAD, "max", parts.THREAD_MOST, "CPUs of the busiest thread of any rank."),
    _figure(WORKERS, "min", parts.WORKERS_FEWEST, "Loader workers of the rank with fewest."),
    _most(
        "data_wait",
        "Share of its time for which the rank of a job that waits most for data does.",
    ),
    _most(
        "gpu_memory_used",
        "Share of the memory of the GPU of a job whose memory is fullest.",
    ),
    _most(
        "torch_reserved",
        "Share of the memory of a job's GPU that PyTorch reserves, where that is most.",
    ),
    _most(
        "torch_recompiled",
        "Graphs that a rank of a job compiled in the last minutes, at most.",
    ),
    _most(
        "torch_alloc_retries",
        "Allocations for which PyTorch flushed the cache of a rank in the last minutes, at most.",
    ),
    Record(
        name="job:gpunode_training_tokens:rate5m",
        labels=OF_JOB,
        expression=parts.TRAINED_TOKENS.over_nodes(),
        purpose="Tokens a second on which all ranks of a job train.",
        given={**HELD, series("gpunode_training_tokens_total"): 50.0},
        results={TRAIN: 50.0},
    ),
)
"""What a dashboard shows of a job of any size without a look at each rank."""
