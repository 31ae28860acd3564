"""All clusters at a glance: what holds GPUs up, since when, whose they are, and what is broken.

It asks only for series of clusters and jobs and for the few of nodes with a fault, so that it loads
at once however many GPUs there are.
"""

from __future__ import annotations

from alerts.promql import JOB
from dashboards.layout import GROUPS, TO_JOB, Board, link_to, row, section
from dashboards.panels import (
    KUBERNETES,
    NOTHING_WRONG,
    RULES,
    SHARE,
    areas,
    bars,
    figure,
    lines,
    rows_of,
)
from dashboards.queries import FLEET as CLUSTERS
from dashboards.queries import JOBS, Query, selected
from dashboards.variables import datasource, of_many
from gpunode.export import palette
from gpunode.verdict.causes import NONE
from gpunode.verdict.causes.host import NO_REQUESTS
from gpunode.verdict.judge import BOUNDS

LEDGER = "cluster:gpunode_gpu_seconds:rate5m"
VERDICTS = "cluster:gpunode_gpu_bottleneck:count"
USEFUL = 'state=~"compute|memory"'
HELD = 'state!="free"'
LOST = 'state!~"compute|memory|free"'
BOUNDING = sorted(cause.name for cause, _ in BOUNDS)
HELD_UP = f'cause!~"{"|".join((NONE.name, NO_REQUESTS.name, *BOUNDING))}"'
"""Causes for which a GPU waits, rather than those that limit what it does."""

OWNED = "cluster, owner_namespace, workload, user"
LOSING = f"sum by ({OWNED}) (job:gpunode_gpu_seconds:rate5m{{{LOST}}})"
WORST = f"topk(20, {LOSING} > 0.05)"
"""What is lost now by the jobs that lose most."""


def _asked(expression: str, legend: str = "") -> Query:
    return Query(selected(expression, JOBS), legend)


def _of_worst(expression: str) -> Query:
    """A figure of the jobs that lose most."""
    return _asked(f"{expression} and on ({OWNED}) {WORST}")


def _goodput(series: str, of: str = "{}") -> str:
    """The useful share of the time that jobs hold GPUs; ``of`` says what of the series counts."""
    useful, held = (of.format(f"{series}{{{states}}}") for states in (USEFUL, HELD))
    return f"sum ({useful}) / (sum ({held}) > 0)"


BY_CAUSE = f"sum by (cause) ({VERDICTS}{{{HELD_UP}}})"

FIRST_SCREEN = (
    row(
        3,
        figure(
            "GPUs",
            "How many GPUs are there?",
            [_asked(f"sum ({LEDGER})")],
            "none",
            needs=RULES,
            decimals=0,
        ),
        figure(
            "Held by jobs",
            "How many GPUs does a job hold?",
            [_asked(f"sum ({LEDGER}{{{HELD}}})")],
            "none",
            needs=RULES,
            decimals=0,
        ),
        figure(
            "Held up",
            "How many GPUs wait for something, by their verdicts?",
            [_asked(f"sum ({VERDICTS}{{{HELD_UP}}})")],
            "none",
            needs=RULES,
            decimals=0,
        ),
        figure(
            "Mostly by",
            "What holds most GPUs up now?",
            [_asked(f"topk(1, {BY_CAUSE} > 0)", "{{cause}}")],
            "none",
            named=True,
            nothing=NOTHING_WRONG,
            colours=palette.CAUSES,
            decimals=0,
        ),
        figure(
            "Goodput",
            "Which share of the time of the GPUs that jobs hold goes to arithmetic and memory?",
            [_asked(_goodput(LEDGER))],
            SHARE,
            needs=RULES,
        ),
        figure(
            "This week",
            "Which goodput is usual? The mean of the last seven days.",
            [
                _asked(
                    _goodput("cluster:gpunode_gpu_seconds:rate1h_hourly", "sum_over_time({}[7d])")
                )
            ],
            SHARE,
            needs=RULES,
        ),
        figure(
            "Pages",
            "How many alerts that wake somebody fire now?",
            [
                _asked(
                    f'sum (ALERTS{{alertstate="firing",severity="page",group=~"{GROUPS}",'
                    'cluster=~"$cluster|"})'
                )
            ],
            "none",
            nothing=NOTHING_WRONG,
        ),
        widths=(3, 3, 3, 6, 3, 3, 3),
    ),
    row(
        8,
        areas(
            "GPUs held up, by cause",
            "Which resource is the bottleneck, of how many GPUs, and since when? Causes that limit "
            "the work itself, such as memory bandwidth, are left out.",
            [_asked(f"{BY_CAUSE} > 0", "{{cause}}")],
            "none",
            needs=RULES,
            colours=palette.CAUSES,
        ),
        rows_of(
            "What holds GPUs up",
            "Since when has each cause held at least one GPU up? Empty if for six hours.",
            {
                "GPUs": (_asked(f"{BY_CAUSE} > 0"), "none"),
                "Since": (
                    _asked(
                        f"1000 * max_over_time(timestamp({BY_CAUSE} == 0)[6h:1m]) "
                        f"and on (cause) ({BY_CAUSE} > 0)"
                    ),
                    "dateTimeFromNow",
                ),
            },
            names={"cause": "Cause"},
            sort_by="GPUs",
            nothing=NOTHING_WRONG,
            values={"Cause": palette.CAUSES},
        ),
        rows_of(
            "Nodes in trouble",
            "Which nodes have a fault of their own? 2 is worth waking somebody, 1 a ticket. "
            "The node leads to its dashboard.",
            {"Level": (_asked("topk(50, node:gpunode_fault:level)"), "none")},
            names={"cluster": "Cluster", "instance": "Node", "fault": "Fault"},
            sort_by="Level",
            nothing=NOTHING_WRONG,
            links={"Node": link_to("gpunode-node", cluster="cluster", node="instance")},
        ),
        widths=(12, 6, 6),
    ),
    row(
        9,
        rows_of(
            "Jobs that lose most",
            "Whose GPUs lose the most time, to what, and how many GPU hours a day? With it: the "
            "GPUs that the cause holds up. The job leads to its dashboard.",
            {
                "GPUs": (_of_worst(f"sum by ({OWNED}) (job:gpunode_gpu_seconds:rate5m)"), "none"),
                "GPUs lost": (_asked(WORST), "none"),
                "Share lost": (
                    _asked(
                        f"{WORST} / on ({OWNED}) sum by ({OWNED}) (job:gpunode_gpu_seconds:rate5m)"
                    ),
                    SHARE,
                ),
                "Hours a day": (
                    _of_worst(f"24 * sum by ({OWNED}) (job:gpunode_gpu_seconds:rate1d{{{LOST}}})"),
                    "none",
                ),
                "With it": (
                    _of_worst(
                        f"topk by ({OWNED}) (1, sum by ({OWNED}, cause) "
                        '(job:gpunode_gpu_bottleneck:count{cause!="none"}))'
                    ),
                    "none",
                ),
            },
            names={
                "cluster": "Cluster",
                "owner_namespace": "Namespace",
                "workload": "Job",
                "user": "User",
                "cause": "Cause",
            },
            sort_by="GPUs lost",
            nothing=NOTHING_WRONG,
            links={"Job": TO_JOB},
            values={"Cause": palette.CAUSES},
        ),
        rows_of(
            "Firing alerts",
            "What has notified somebody, and since when?",
            {
                "Since": (
                    _asked(
                        "label_join(1000 * max by (severity, alertname, cluster, owner_namespace, "
                        "workload, instance, filesystem, fault) (ALERTS_FOR_STATE{"
                        f'severity=~"page|ticket",group=~"{GROUPS}",cluster=~"$cluster|"}} '
                        "and ignoring (alertstate) "
                        'ALERTS{alertstate="firing"}), "about", " ", "owner_namespace", '
                        '"workload", "instance", "filesystem", "fault")'
                    ),
                    "dateTimeFromNow",
                )
            },
            names={
                "severity": "Severity",
                "alertname": "Alert",
                "about": "About",
            },
            sort_by="Since",
            nothing=NOTHING_WRONG,
            values={"Severity": palette.SEVERITIES},
        ),
        widths=(14, 10),
    ),
)

FLEET = Board(
    uid="gpunode-fleet",
    title="GPU fleet",
    description="Which resource is the bottleneck, since when, on how many GPUs, and whose?",
    variables=(datasource(), of_many("cluster"), of_many("namespace"), of_many("job")),
    selection=CLUSTERS,
    sections=(
        section("", *FIRST_SCREEN),
        section(
            "Where the time goes",
            row(
                8,
                areas(
                    "GPUs by state",
                    "What do the GPUs do?",
                    [_asked(f"sum by (state) ({LEDGER})", "{{state}}")],
                    "none",
                    needs=RULES,
                    colours=palette.STATES,
                ),
                lines(
                    "Goodput, week on week",
                    "Is it better or worse than a week ago?",
                    [
                        _asked(_goodput(LEDGER), "now"),
                        _asked(_goodput(LEDGER, "{} offset 1w"), "a week ago"),
                    ],
                    SHARE,
                    needs=RULES,
                    highest=1,
                ),
            ),
            row(
                8,
                bars(
                    "GPUs lost by namespace",
                    "Which teams lose the most, over the last day?",
                    [
                        _asked(
                            "sort_desc(label_replace(topk(15, sum by (owner_namespace) "
                            f"(namespace:gpunode_gpu_seconds:rate1d{{{LOST}}})), "
                            '"owner_namespace", "no namespace", "owner_namespace", ""))',
                            "{{owner_namespace}}",
                        )
                    ],
                    "none",
                    needs=RULES,
                ),
                lines(
                    "GPUs by kind of work",
                    "How many GPUs train, serve or wait for a person?",
                    [_asked("sum by (kind) (cluster:gpunode_job_kind:gpus)", "{{kind}}")],
                    "none",
                    needs=RULES,
                ),
                lines(
                    "Power",
                    "How much do all GPUs draw?",
                    [_asked("sum by (cluster) (cluster:gpunode_gpu_power:watts)", "{{cluster}}")],
                    "watt",
                    needs=RULES,
                ),
            ),
            row(
                7,
                lines(
                    "Nodes",
                    "How many nodes are scraped, and how many of them are cordoned?",
                    [
                        _asked("sum (cluster:gpunode_node:count)", "scraped"),
                        _asked("count (node:gpunode_drained:max)", "cordoned"),
                    ],
                    "none",
                    needs=f"{KUBERNETES} for the cordoned ones",
                ),
                lines(
                    "Jobs that stand still",
                    "Since when has no GPU of a job worked, while some wait in a collective?",
                    [
                        _asked(
                            f"topk(10, max by ({JOB}) (job:gpunode_stalled:seconds))",
                            "{{owner_namespace}} {{workload}} {{replica}} {{user}}",
                        )
                    ],
                    "s",
                ),
            ),
        ),
        section(
            "Versions",
            row(
                9,
                rows_of(
                    "Versions side by side",
                    "Of what does a cluster run several versions, and on how many nodes each? "
                    "Firmware is compared on the same hardware.",
                    {
                        "Nodes": (
                            _asked(
                                "topk(50, cluster:gpunode_version:nodes and on (cluster, what) "
                                "count by (cluster, what) (cluster:gpunode_version:nodes) > 1)"
                            ),
                            "none",
                        )
                    },
                    names={"cluster": "Cluster", "what": "Of", "version": "Version"},
                    sort_by="Nodes",
                    nothing=NOTHING_WRONG,
                ),
                rows_of(
                    "Nodes that differ",
                    "Which nodes have a version that most of the others do not have? "
                    "The node leads to its dashboard.",
                    {"": (_asked("topk(50, node:gpunode_version:differs)"), "none")},
                    names={
                        "cluster": "Cluster",
                        "instance": "Node",
                        "what": "Of",
                        "version": "Version",
                    },
                    sort_by="Of",
                    nothing=NOTHING_WRONG,
                    links={"Node": link_to("gpunode-node", cluster="cluster", node="instance")},
                ),
                rows_of(
                    "Jobs that changed and slowed",
                    "Which versions does a job have that it did not have at its best pace of the "
                    "last week, and how many times as long does a step take?",
                    {
                        "Times as long": (
                            _asked("topk(50, job:gpunode_version:changed)"),
                            "none",
                        )
                    },
                    names={
                        "owner_namespace": "Namespace",
                        "workload": "Job",
                        "what": "Of",
                        "version": "Version",
                    },
                    sort_by="Times as long",
                    nothing=NOTHING_WRONG,
                    links={"Job": TO_JOB},
                ),
            ),
        ),
    ),
)
