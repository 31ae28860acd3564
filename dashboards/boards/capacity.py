"""For reviews of weeks and months: what was held, used and useful, what was lost, and its price.

Everything comes from recorded series of clusters, namespaces and jobs, of which those for long
ranges have one sample an hour: the mean of that hour, so that their sum is in GPU hours.
"""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Panel

from alerts.model import seconds
from alerts.promql import GPU
from alerts.recording import RECORDS
from dashboards.layout import TO_JOB, Board, row, section
from dashboards.panels import NOTHING_WRONG, RULES, SHARE, areas, bars, figure, lines, rows_of
from dashboards.queries import FLEET as CLUSTERS
from dashboards.queries import JOBS, Query, selected
from dashboards.variables import datasource, of_many, price
from gpunode.export import palette

HOURS = "rate1h_hourly"
USEFUL = 'state=~"compute|memory"'
USED = 'state!~"free|idle|unknown"'
HELD = 'state!="free"'
LOST = 'state!~"compute|memory|free"'
IDLE = 'state="idle"'
OWNED = "cluster, owner_namespace, workload, user"
(VERDICTS,) = (one for one in RECORDS if one.name == "cluster:gpunode_gpu_bottleneck:count")
KEEPS = f"{RULES}; a Prometheus that keeps the range"


def _asked(expression: str, legend: str = "") -> Query:
    return Query(selected(expression, JOBS), legend)


def _hours(level: str, states: str, by: str = "", over: str = "$__range") -> str:
    """GPU hours in a range."""
    series = f"{level}:gpunode_gpu_seconds:{HOURS}" + (f"{{{states}}}" if states else "")
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (sum_over_time({series}[{over}]))"


def _goodput(of: str = "") -> str:
    month = "cluster:gpunode_gpu_seconds:rate30d"
    return f"sum ({month}{{{USEFUL}}}{of}) / (sum ({month}{{{HELD}}}{of}) > 0)"


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
        of_many("job"),
        price(),
    ),
    selection=CLUSTERS,
    sections=(
        section(
            "",
            row(
                4,
                figure(
                    "GPU hours",
                    "How many were there?",
                    [_asked(_hours("cluster", ""))],
                    "short",
                    needs=KEEPS,
                ),
                figure(
                    "Held",
                    "Which share of them did jobs hold?",
                    [_asked(f"{_hours('cluster', HELD)} / {_hours('cluster', '')}")],
                    SHARE,
                    needs=KEEPS,
                ),
                figure(
                    "Used",
                    "In which share of them did a job run?",
                    [_asked(f"{_hours('cluster', USED)} / {_hours('cluster', '')}")],
                    SHARE,
                    needs=KEEPS,
                ),
                figure(
                    "Useful",
                    "Which share of them went to arithmetic and memory?",
                    [_asked(f"{_hours('cluster', USEFUL)} / {_hours('cluster', '')}")],
                    SHARE,
                    needs=KEEPS,
                ),
                figure(
                    "Lost",
                    "How many GPU hours did jobs hold without use?",
                    [_asked(_hours("cluster", LOST))],
                    "short",
                    needs=KEEPS,
                ),
                figure(
                    "Price of it",
                    "What did they cost, at the price above?",
                    [_asked(f"{_hours('cluster', LOST)} * $price")],
                    "short",
                    needs=KEEPS,
                ),
                figure(
                    "Goodput",
                    "Which share of the time that jobs held GPUs was useful, in the last 30 days?",
                    [_asked(_goodput())],
                    SHARE,
                    needs=KEEPS,
                ),
                figure(
                    "Change",
                    "Has goodput risen or fallen against the 30 days before, in percentage points?",
                    [_asked(f"{_goodput()} - ({_goodput(' offset 30d')})")],
                    SHARE,
                    needs="60 days of recorded series",
                ),
            ),
            row(
                9,
                _every(
                    "1d",
                    areas(
                        "GPU hours a day, by state",
                        "Where did the time go?",
                        [_asked(_hours("cluster", "", "state", "1d"), "{{state}}")],
                        "short",
                        needs=KEEPS,
                        colours=palette.STATES,
                    ),
                ),
                bars(
                    "GPU hours lost, by state",
                    "What was lost to what?",
                    [_asked(f"sort_desc({_hours('cluster', LOST, 'state')})", "{{state}}")],
                    "short",
                    needs=KEEPS,
                    colours=palette.STATES,
                ),
                rows_of(
                    "GPU hours held up, by cause",
                    "Which resource took them, and at what price?",
                    {
                        name: (
                            _asked(
                                "sum by (cause) (sum_over_time("
                                f'{VERDICTS.name}{{cause!="none"}}[$__range])) '
                                f"* {seconds(VERDICTS.interval) / 3600:.6f}{times}"
                            ),
                            "short",
                        )
                        for name, times in (("GPU hours", ""), ("Price", " * $price"))
                    },
                    names={"cause": "Cause"},
                    sort_by="GPU hours",
                    needs=KEEPS,
                    values={"Cause": palette.CAUSES},
                ),
                widths=(12, 6, 6),
            ),
        ),
        section(
            "Who",
            row(
                9,
                rows_of(
                    "Namespaces",
                    "Who held GPUs, and what did they make of them?",
                    {
                        name: (
                            _asked(_hours("namespace", states, "cluster, owner_namespace") + times),
                            "short",
                        )
                        for name, states, times in (
                            ("Held", HELD, ""),
                            ("Used", USED, ""),
                            ("Useful", USEFUL, ""),
                            ("Lost", LOST, ""),
                            ("Price", LOST, " * $price"),
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
                            _asked(f"topk(50, {_hours('job', IDLE, OWNED)} > 1)"),
                            "short",
                        )
                    },
                    names={
                        "cluster": "Cluster",
                        "owner_namespace": "Namespace",
                        "workload": "Job",
                        "user": "User",
                    },
                    sort_by="Idle",
                    nothing=NOTHING_WRONG,
                    links={"Job": TO_JOB},
                ),
            ),
            row(
                9,
                rows_of(
                    "Jobs",
                    "Which jobs lost most? GPU hours, the 50 largest.",
                    {
                        "Lost": (_asked(f"topk(50, {_hours('job', LOST, OWNED)})"), "short"),
                        "Held": (
                            _asked(
                                f"{_hours('job', HELD, OWNED)} and on ({OWNED}) "
                                f"topk(50, {_hours('job', LOST, OWNED)})"
                            ),
                            "short",
                        ),
                    },
                    names={
                        "cluster": "Cluster",
                        "owner_namespace": "Namespace",
                        "workload": "Job",
                        "user": "User",
                    },
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
                            _asked(
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
                            _asked(
                                "sum by (kind) (avg_over_time(cluster:gpunode_job_kind:gpus[1d]))",
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
            "Trends",
            row(
                8,
                _every(
                    "1w",
                    lines(
                        "Share useful, by week",
                        "Does it get better?",
                        [
                            _asked(
                                f"{_hours('cluster', USEFUL, '', '1w')} / "
                                f"{_hours('cluster', HELD, '', '1w')}",
                                "of what jobs held",
                            ),
                            _asked(
                                f"{_hours('cluster', USEFUL, '', '1w')} / "
                                f"{_hours('cluster', '', '', '1w')}",
                                "of all",
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
                        "Energy for a useful GPU hour",
                        "How much energy does an hour of arithmetic and memory traffic take?",
                        [
                            _asked(
                                "sum (avg_over_time(cluster:gpunode_gpu_power:watts[1d])) * 24 / "
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
                        "Power by state",
                        "What do GPUs burn while blocked or waiting? Means of a day.",
                        [
                            _asked(
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
                    "GPUs by the share of 30 days that was useful",
                    "Do all GPUs work a little, or few all the time?",
                    [
                        _asked(
                            'sort_desc(count_values("useful", round(sum by '
                            f"({GPU}) (gpu:gpunode_gpu_seconds:rate30d{{{USEFUL}}}), 0.1)))",
                            "{{useful}}",
                        )
                    ],
                    "none",
                    needs=KEEPS,
                ),
            ),
        ),
    ),
    since="now-30d",
    refresh="1h",
)
