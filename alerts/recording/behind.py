"""Which GPU or node is slow, by who waits for whom: compared within each job, then across jobs.

In a collective everyone waits for the slowest, so a rank that waits less than its peers takes
longer for its share of the work. That may be the making of the job: a pipeline stage, an expert, a
first rank that does more. The same GPU has another place in the next job, so its score is the mean
over jobs, each of which counts the more the more alike its GPUs are. The bounds are as wide as jobs
differ on this GPU, and as one place in a job may differ from others by design.

What the constants find on simulated fleets is in docs/performance.md, by bench/slow_nodes.py.
"""

from __future__ import annotations

import math

from alerts.examples import HELD, OF_GPU, OF_JOB, OF_NODE, TRAIN, A, ledger, owner, series
from alerts.model import FOR_DAYS, Given, Record, Series, minutes
from alerts.promql import GPU, JOB, NODE, OWNER
from alerts.recording.parts import WORKS_LITTLE
from alerts.settings import (
    BEHIND_FROM,
    BEHIND_HOURS,
    BEHIND_PEERS,
    BEHIND_WAITS,
)

MEAN_HOURS = 12
"""The last hours of a job on a GPU that count."""

WITHIN = (1, 5)
"""Days back to the last hour of the jobs that count. A job of today tells soon of what is much
slower, those of some days tell of what is a little."""

LEAST_SPREAD = 0.01
"""GPUs that are sound differ by as much."""

JOB_SPREAD = 0.04
"""By how much one place in a job may differ from others by design."""

CERTAIN = 3.3
"""Standard errors to the bounds: of a fleet's thousands of GPUs that are sound, hardly one."""

QUARTILES_APART = 1.349
"""Standard deviations between the quartiles of a normal distribution."""

BLOCKED = "gpu:gpunode_gpu_blocked:by_job_hourly"
HOURLY = "gpu:gpunode_behind:by_job_hourly"
BY_JOB = "gpu:gpunode_behind:by_job"
BY_JOB_OF_NODE = "node:gpunode_behind:by_job"
CERTAINLY = "node:gpunode_behind:certain"
WEIGHT_OF_JOB, WEIGHT = "job:gpunode_behind:weight", "gpu:gpunode_behind:weight"
RATIO, LOWER = "gpu:gpunode_behind:ratio", "gpu:gpunode_behind:lower"
RATIO_OF_NODE, LOWER_OF_NODE = "node:gpunode_behind:ratio", "node:gpunode_behind:lower"

_AT_WORK = f"{BLOCKED} unless on ({GPU}) {WORKS_LITTLE}"
ONCE_AN_HOUR = f"and on () (minute() < {minutes(FOR_DAYS)})"


def _each(expression: str) -> str:
    """An expression for each window, with the window as a label."""
    return " or ".join(
        f'label_replace({expression.replace("WITHIN", f"{days}d")}, "within", "{days}d", "", "")'
        for days in WITHIN
    )


_PLACES = f"max by ({GPU}, {OWNER}) (last_over_time({BY_JOB}[WITHIN]))"
_OF_JOB = f'on ({JOB}) group_left () {WEIGHT_OF_JOB}{{within="WITHIN"}}'
_WHOLE = f'on ({GPU}) ({WEIGHT}{{within="WITHIN"}} > 0)'
_SQUARES = f"sum by ({GPU}) ({_PLACES} ^ 2 * {_OF_JOB})"
_JOBS = f"(count by ({GPU}) ({_PLACES}) > 0)"
_KNOWN = f'on ({GPU}) {RATIO}{{within="WITHIN"}}'
_BETWEEN = f"clamp_min({_SQUARES} / {_WHOLE} - {_KNOWN} ^ 2, 0)"
_ERROR = f"sqrt({_BETWEEN} / {_JOBS} + ({JOB_SPREAD} / {_JOBS}) ^ 2 + {_WHOLE} ^ -1)"

PEERS = 5


def _peer(gpu: int) -> dict[str, str]:
    """The labels of one of the GPUs of a job; the first is that of the tests."""
    return {} if not gpu else {"gpu": str(gpu), "uuid": f"GPU-{gpu}"}


def _of_a_job(first: float) -> Given:
    """A job in which one GPU was behind, as recorded."""
    return {
        series(BY_JOB, workload="sim", **_peer(gpu)): 0.0 if gpu else first for gpu in range(PEERS)
    }


def _waits() -> Given:
    """A job of which all GPUs but one wait for a fifth of the time."""
    given: dict[Series, float | None] = {}
    for gpu in range(PEERS):
        shares = ledger(blocked=0.2 if gpu else 0.0)
        given |= {
            Series(one.metric, (*one.labels, *_peer(gpu).items())): share
            for one, share in shares.items()
        }
        given[owner(owner_pod=f"train-{gpu}", **_peer(gpu))] = 1.0
    return given


SLOW, SOUND = _of_a_job(0.3), _of_a_job(0.0)
SLOW_AT_LEAST = 0.3 - CERTAIN * math.hypot(LEAST_SPREAD, JOB_SPREAD)

OF_GPUS: tuple[Record, ...] = (
    Record(
        name=BLOCKED,
        labels=(*OF_GPU, *OF_JOB[1:]),
        interval=FOR_DAYS,
        expression=f"avg_over_time(gpu:gpunode_gpu_blocked:by_job[59m59s]) {ONCE_AN_HOUR}",
        purpose="Share of an hour in which a GPU waits for the peers of a job, once an hour.",
        given={**HELD, **ledger(blocked=0.25)},
        results={(*A, *TRAIN): 0.25},
    ),
    Record(
        name=HOURLY,
        labels=(*OF_GPU, *OF_JOB[1:]),
        interval=FOR_DAYS,
        expression=(
            f"(1 - {_AT_WORK}) / on ({JOB}) group_left () "
            f"(quantile by ({JOB}) (0.5, 1 - {_AT_WORK}) > 0 "
            f"and on ({JOB}) count by ({JOB}) ({_AT_WORK}) "
            f">= {BEHIND_PEERS} "
            f"and on ({JOB}) max by ({JOB}) ({BLOCKED}) > {BEHIND_WAITS} "
            f"and on ({JOB}) job:gpunode_job:collective) - 1 {ONCE_AN_HOUR}"
        ),
        purpose="How much longer a GPU takes for its share of a job's work than the median of its "
        "peers, which wait for it, once an hour; absent where too few can be compared or nobody "
        "waits.",
        given=_waits(),
        results={(*A, *TRAIN): 0.25},
    ),
    Record(
        name=BY_JOB,
        labels=(*OF_GPU, *OF_JOB[1:]),
        interval=FOR_DAYS,
        expression=(
            f"avg_over_time({HOURLY}[{MEAN_HOURS - 1}h59m]) "
            f"and count_over_time({HOURLY}[{MEAN_HOURS - 1}h59m]) >= {BEHIND_HOURS} "
            f"and {HOURLY} {ONCE_AN_HOUR}"
        ),
        purpose=f"The same over the last {MEAN_HOURS} hours of a job on a GPU, once an hour.",
        given=_waits(),
        results={},
    ),
    Record(
        name=BY_JOB_OF_NODE,
        labels=(*OF_NODE, *OF_JOB[1:]),
        interval=FOR_DAYS,
        expression=f"max by ({NODE}, {OWNER}) ({BY_JOB}) {ONCE_AN_HOUR}",
        purpose="The same of the slowest GPU of a node.",
        given=SLOW,
        results={(A[0], "", "sim", "", ""): 0.3},
    ),
    Record(
        name=WEIGHT_OF_JOB,
        labels=(*OF_JOB, "within"),
        interval=FOR_DAYS,
        expression=_each(
            f"clamp_min((quantile by ({JOB}) (0.75, {_PLACES}) "
            f"- quantile by ({JOB}) (0.25, {_PLACES})) / {QUARTILES_APART}, {LEAST_SPREAD}) ^ -2"
        ),
        purpose="What a job counts: the more, the more alike its GPUs are. `within` are the days "
        "back to the last hour of the jobs that count.",
        given=SLOW,
        results={("", "sim", "", "", "1d"): 10_000.0},
    ),
    Record(
        name=WEIGHT,
        labels=(*OF_GPU, "within"),
        interval=FOR_DAYS,
        expression=_each(f"sum by ({GPU}) (0 * {_PLACES} + {_OF_JOB})"),
        purpose="What the jobs of a GPU count, added up.",
        given=SLOW,
        results={(*A, "1d"): 10_000.0},
    ),
    Record(
        name=RATIO,
        labels=(*OF_GPU, "within"),
        interval=FOR_DAYS,
        expression=_each(f"sum by ({GPU}) ({_PLACES} * {_OF_JOB}) / {_WHOLE}"),
        purpose="How much longer a GPU takes than its peers, over all jobs that ran on it.",
        given=SLOW,
        results={(*A, "5d"): 0.3},
    ),
    Record(
        name=LOWER,
        labels=(*OF_GPU, "within"),
        interval=FOR_DAYS,
        expression=_each(f'{RATIO}{{within="WITHIN"}} - on ({GPU}) {CERTAIN} * {_ERROR}'),
        purpose="The lower bound of that; the upper is as far above.",
        given=SOUND,
        results={(*A, "5d"): -CERTAIN * math.hypot(LEAST_SPREAD, JOB_SPREAD)},
    ),
    *(
        Record(
            name=name,
            labels=(*OF_NODE, "within"),
            interval=FOR_DAYS,
            expression=f"quantile by ({NODE}, within) (0.5, {of_gpus})",
            purpose=f"The same of the middle GPU of a node{what}.",
            given=SLOW,
            results={(A[0], "5d"): 0.0} if of_gpus == RATIO else {},
        )
        for name, of_gpus, what in (
            (RATIO_OF_NODE, RATIO, ""),
            (LOWER_OF_NODE, LOWER, ": its lower bound"),
        )
    ),
    Record(
        name=CERTAINLY,
        labels=(*OF_NODE, "part"),
        interval=FOR_DAYS,
        expression=(
            f"label_replace(max by ({NODE}) ({LOWER_OF_NODE}) > {BEHIND_FROM}, "
            '"part", "node", "", "") '
            f"or max by ({NODE}, part) (label_replace({LOWER} > {BEHIND_FROM} "
            f"unless on ({NODE}) {LOWER_OF_NODE} > {BEHIND_FROM}, "
            '"part", "GPU $1", "gpu", "(.+)"))'
        ),
        purpose="Nodes, and GPUs of nodes that are sound otherwise, that leave no doubt that they "
        "are slow: by how much at least.",
        given=SLOW,
        results={
            (A[0], "GPU 0"): SLOW_AT_LEAST,
        },
    ),
)
"""Rules that compare nodes, for the Prometheus that sees them all."""
