"""For reviews of weeks and months: what was held, used and useful, what was lost, and its price.

Everything comes from recorded series of clusters, namespaces and jobs, of which those for long
ranges have one sample an hour: the mean of that hour, so that their sum is in GPU hours. A panel
that does not follow the chosen namespaces says in its title that it is about the whole fleet.
"""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Panel

from dashboards.causes import HELD_UP
from dashboards.layout import OF_A_JOB, TO_JOB, Board, row, section
from dashboards.panels import (
    KUBERNETES,
    NOTHING_WRONG,
    RULES,
    SHARE,
    WHOLE,
    WHOLE_FLEET,
    areas,
    bars,
    figure,
    lines,
    rows_of,
)
from dashboards.promql import NODE
from dashboards.queries import LOST, NAMESPACES, NO_NAMESPACE, USEFUL, Query, chosen, selected
from dashboards.variables import budget, currency, datasource, of_many, price
from gpunode.export import palette

HOURS = "rate1h_hourly"
USED = 'state!~"free|idle|unknown"'
HELD = 'state!="free"'
IDLE = 'state="idle"'
ALL_FREE = 'state="free"'
FREE = f"{ALL_FREE},{NO_NAMESPACE}"
OWNED = "cluster, owner_namespace, workload, user"
DRAWN = "cluster:gpunode_gpu_power:by_state"
VERDICTS = "namespace:gpunode_held_up:gpus_hourly"
ASKED_FOR = (
    "max by (cluster, namespace, pod, container) "
    '(kube_pod_container_resource_requests{cluster=~"$cluster",resource="nvidia_com_gpu",'
    f'namespace=~"{chosen("namespace")}"}} and on (cluster, namespace, pod) '
    'kube_pod_status_phase{phase="Pending"} == 1)'
)
PENDING = f"sum_over_time((sum ({ASKED_FOR}))[1d:1h]) / 24"
"""GPUs for which pods wait."""

HOURS_SEEN = f"max (count_over_time(cluster:gpunode_gpu_seconds:{HOURS}[$__range]))"
ASKED = "held or asked for"
KEEPS = f"{RULES}; a Prometheus that keeps the range"


def _query(expression: str, legend: str = "") -> Query:
    return Query(selected(expression, NAMESPACES), legend)


SEEN = _query("sum (cluster:gpunode_gpu_seconds:rate5m)")
"""What there must be for a panel to say that nothing is wrong."""


def _hours(level: str, states: str, by: str = "", over: str = "$__range", before: str = "") -> str:
    """GPU hours in a range."""
    series = f"{level}:gpunode_gpu_seconds:{HOURS}" + (f"{{{states}}}" if states else "")
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (sum_over_time({series}[{over}]{before}))"


def _held_a_day(states: str) -> str:
    """GPUs in the mean over a day."""
    return f"{_hours('namespace', states, '', '1d')} / 24"


def _of_held(states: str, over: str = "$__range", before: str = "") -> str:
    """The share of the GPU hours that jobs held in a range."""
    whole = _hours("namespace", HELD, over=over, before=before)
    return f"{_hours('namespace', states, over=over, before=before)} / ({whole} > 0)"


OF_NODES = f"node:gpunode_gpu_seconds:{HOURS}"
WHOLE_FREE = "sum (sum_over_time(cluster:gpunode_gpu_free:whole_hourly[1d])) / 24"
"""Free GPUs on nodes of which all are free. Mean of a day."""


def _every(period: str, panel: Panel) -> Panel:
    """A panel with one point for each period."""
    panel.interval = period
    return panel


CAPACITY = Board(
    uid="gpunode-capacity",
    title="GPU capacity",
    description="What was held, used and useful, what was lost, and what did it cost?",
    variables=(
        datasource(),
        of_many("cluster"),
        of_many("namespace"),
        price(),
        currency(),
        budget(),
    ),
    selection=NAMESPACES,
    sections=(
        section(
            "",
            row(
                4,
                figure(
                    f"GPU hours, {WHOLE_FLEET}",
                    "How many were there, whoever held them?",
                    [_query(_hours("cluster", ""))],
                    "short",
                    needs=KEEPS,
                ),
                figure(
                    "Held",
                    "Which share of the GPU hours of the whole fleet did jobs hold?",
                    [_query(f"{_hours('namespace', HELD)} / {_hours('cluster', '')}")],
                    SHARE,
                    needs=KEEPS,
                ),
                figure(
                    "Used",
                    "In which share of the GPU hours that jobs held did they run?",
                    [_query(_of_held(USED))],
                    SHARE,
                    needs=KEEPS,
                ),
                figure(
                    "Useful",
                    "Which share of the GPU hours that jobs held went to arithmetic and memory? "
                    "Beside it that of the last 30 days, and of those before, which needs 60 days "
                    "of recorded series.",
                    [
                        _query(_of_held(USEFUL), "shown"),
                        _query(_of_held(USEFUL, "30d"), "30 days"),
                        _query(_of_held(USEFUL, "30d", " offset 30d"), "before"),
                    ],
                    SHARE,
                    needs=KEEPS,
                ),
                figure(
                    "Lost",
                    "How many GPU hours did jobs hold without use?",
                    [_query(_hours("namespace", LOST))],
                    "short",
                    needs=KEEPS,
                ),
                figure(
                    "Cost of lost hours ($currency)",
                    "What did the lost GPU hours cost, at the price above?",
                    [_query(f"{_hours('namespace', LOST)} * $price")],
                    "short",
                    needs=KEEPS,
                ),
                widths=(5, 3, 3, 5, 3, 5),
            ),
            row(
                9,
                _every(
                    "1d",
                    areas(
                        "GPU hours a day, by state",
                        "Where did the time go? Free GPUs have no namespace.",
                        [
                            _query(_hours("namespace", HELD, "state", "1d"), "{{state}}"),
                            _query(_hours("cluster", FREE, "state", "1d"), "{{state}}"),
                        ],
                        "short",
                        needs=KEEPS,
                        colours=palette.STATES,
                    ),
                ),
                bars(
                    "GPU hours lost, by state",
                    "What was lost to what?",
                    [_query(f"sort_desc({_hours('namespace', LOST, 'state')})", "{{state}}")],
                    WHOLE,
                    needs=KEEPS,
                    colours=palette.STATES,
                ),
                rows_of(
                    "GPU hours by cause, cost ($currency)",
                    "Which resource took them, and what did they cost?",
                    {
                        name: (
                            _query(f"sum by (cause) (sum_over_time({VERDICTS}[$__range])){times}"),
                            "short",
                        )
                        for name, times in (("GPU hours", ""), ("Cost", " * $price"))
                    },
                    names={"cause": "Cause"},
                    sort_by="GPU hours",
                    needs=KEEPS,
                    values={"Cause": HELD_UP},
                ),
                widths=(11, 6, 7),
            ),
        ),
        section(
            "Who",
            row(
                9,
                rows_of(
                    "GPU hours by namespace, and cost ($currency)",
                    "Who held GPUs, and what did they make of them?",
                    {
                        name: (
                            _query(_hours("namespace", states, "cluster, owner_namespace") + times),
                            "short",
                        )
                        for name, states, times in (
                            ("Held", HELD, ""),
                            ("Used", USED, ""),
                            ("Useful", USEFUL, ""),
                            ("Lost", LOST, ""),
                            ("Cost of lost", LOST, " * $price"),
                        )
                    },
                    names={"cluster": "Cluster", "owner_namespace": "Namespace"},
                    sort_by="Lost",
                    needs=KEEPS,
                ),
                rows_of(
                    "Held but idle",
                    "Which jobs held GPUs and ran nothing? GPU hours, the 50 largest.",
                    {
                        "Idle": (
                            _query(f"topk(50, {_hours('job', IDLE, OWNED)} > 1)"),
                            "short",
                        )
                    },
                    names=OF_A_JOB,
                    sort_by="Idle",
                    nothing=NOTHING_WRONG,
                    among=SEEN,
                    links={"Job": TO_JOB},
                ),
            ),
            row(
                9,
                rows_of(
                    "Jobs",
                    "Which jobs lost most? GPU hours, the 50 largest.",
                    {
                        "Lost": (_query(f"topk(50, {_hours('job', LOST, OWNED)})"), "short"),
                        "Held": (
                            _query(
                                f"{_hours('job', HELD, OWNED)} and on ({OWNED}) "
                                f"topk(50, {_hours('job', LOST, OWNED)})"
                            ),
                            "short",
                        ),
                    },
                    names=OF_A_JOB,
                    sort_by="Lost",
                    needs=KEEPS,
                    links={"Job": TO_JOB},
                ),
                _every(
                    "1d",
                    areas(
                        "GPU hours a day, by namespace",
                        "Who held them?",
                        [
                            _query(
                                "label_replace(topk(15, "
                                f"{_hours('namespace', HELD, 'owner_namespace', '1d')}), "
                                '"owner_namespace", "no namespace", "owner_namespace", "")',
                                "{{owner_namespace}}",
                            )
                        ],
                        "short",
                        needs=KEEPS,
                    ),
                ),
                _every(
                    "1d",
                    areas(
                        "GPUs by kind of work",
                        "How many trained, served or waited for a person? Means of a day.",
                        [
                            _query(
                                "sum by (kind) "
                                "(sum_over_time(job:gpunode_job_kind:gpus_hourly[1d])) / 24",
                                "{{kind}}",
                            )
                        ],
                        "short",
                        needs=KEEPS,
                    ),
                ),
                widths=(10, 7, 7),
            ),
        ),
        section(
            "Supply and demand",
            row(
                8,
                _every(
                    "1d",
                    lines(
                        "GPUs asked for, held and used",
                        "How much of the demand is held, used and useful? Means of a day.",
                        [
                            _query(f"{_held_a_day(HELD)} + ({PENDING} or on () vector(0))", ASKED),
                            *(
                                _query(_held_a_day(states), name)
                                for name, states in (
                                    ("held", HELD),
                                    ("used", USED),
                                    ("useful", USEFUL),
                                )
                            ),
                        ],
                        "none",
                        needs=f"{KEEPS}; {KUBERNETES} for what is asked for",
                    ),
                ),
                _every(
                    "1d",
                    areas(
                        f"Free GPUs, {WHOLE_FLEET}",
                        "Would a job that takes whole nodes find room? Means of a day.",
                        [
                            _query(WHOLE_FREE, "on whole nodes"),
                            _query(
                                f"{_hours('cluster', ALL_FREE, '', '1d')} / 24 - "
                                f"({WHOLE_FREE} or on () vector(0))",
                                "beside jobs",
                            ),
                        ],
                        "none",
                        needs=KEEPS,
                    ),
                ),
                figure(
                    "Idle in holdings",
                    "How many GPUs would come free if jobs gave back what they hold and do not "
                    "run on? The mean over the range.",
                    [_query(f"{_hours('namespace', IDLE)} / {HOURS_SEEN}")],
                    "none",
                    needs=KEEPS,
                    decimals=1,
                ),
                widths=(11, 9, 4),
            ),
            row(
                8,
                _every(
                    "1d",
                    lines(
                        "Cost of a day, by namespace ($currency)",
                        "Who spends more than the budget above? The 15 that spend most.",
                        [
                            _query(
                                "label_replace(topk(15, "
                                f"{_hours('namespace', HELD, 'owner_namespace', '1d')} * $price), "
                                '"owner_namespace", "no namespace", "owner_namespace", "")',
                                "{{owner_namespace}}",
                            ),
                            _query(
                                f"0 * {_hours('namespace', HELD, '', '1d')} + $budget > 0",
                                "budget of a namespace",
                            ),
                        ],
                        "short",
                        needs=KEEPS,
                    ),
                ),
            ),
        ),
        section(
            "Trends",
            row(
                8,
                _every(
                    "1w",
                    lines(
                        "Share useful, by week",
                        "Does it get better?",
                        [
                            _query(_of_held(USEFUL, "1w"), "of what jobs held"),
                            _query(
                                f"{_hours('namespace', USEFUL, '', '1w')} / "
                                f"{_hours('cluster', '', '', '1w')}",
                                "of the whole fleet",
                            ),
                        ],
                        SHARE,
                        needs=KEEPS,
                        highest=1,
                    ),
                ),
                _every(
                    "1d",
                    lines(
                        f"Energy for a useful GPU hour, {WHOLE_FLEET}",
                        "How much energy does an hour of arithmetic and memory traffic take?",
                        [
                            _query(
                                f"sum (avg_over_time({DRAWN}[1d])) * 24 / "
                                f"({_hours('cluster', USEFUL, '', '1d')} > 0)",
                                "all clusters",
                            )
                        ],
                        "watth",
                        needs=KEEPS,
                    ),
                ),
                _every(
                    "1d",
                    areas(
                        f"Power by state, {WHOLE_FLEET}",
                        "What do GPUs burn while blocked or waiting? Means of a day.",
                        [
                            _query(
                                "sum by (state) "
                                "(avg_over_time(cluster:gpunode_gpu_power:by_state[1d]))",
                                "{{state}}",
                            )
                        ],
                        "watt",
                        needs=KEEPS,
                        colours=palette.STATES,
                    ),
                ),
                bars(
                    f"Nodes by useful share, {WHOLE_FLEET}",
                    "Do all nodes work a little, or few all the time? The useful share of 30 days.",
                    [
                        _query(
                            'sort_desc(count_values("useful", round('
                            f"sum by ({NODE}) (sum_over_time({OF_NODES}{{{USEFUL}}}[30d])) / "
                            f"sum by ({NODE}) (sum_over_time({OF_NODES}[30d])), 0.1)))",
                            "{{useful}}",
                        )
                    ],
                    "none",
                    needs=KEEPS,
                ),
                widths=(5, 7, 6, 6),
            ),
        ),
    ),
    since="now-30d",
    refresh="1h",
)
