"""All clusters at a glance: what holds GPUs up, since when, whose they are, and what is broken.

It asks only for series of namespaces and jobs and for the few of nodes with a fault, so that it
loads at once however many GPUs there are. A panel that does not follow the chosen namespaces says
in its title that it is about the whole fleet.
"""

from __future__ import annotations

from alerts.promql import JOB
from alerts.recording.places import BY_PLACE
from dashboards import firing
from dashboards.layout import OF_A_JOB, TO_JOB, Board, link_to, row, section
from dashboards.panels import (
    GPM,
    KUBERNETES,
    NOTHING_WRONG,
    RULES,
    SHARE,
    WHOLE_FLEET,
    areas,
    bars,
    figure,
    lines,
    rows_of,
)
from dashboards.queries import LOST, NAMESPACES, NO_NAMESPACE, USEFUL, Query, joined, selected
from dashboards.variables import datasource, of_many
from gpunode.export import palette
from gpunode.verdict.causes import NONE
from gpunode.verdict.causes.host import NO_REQUESTS
from gpunode.verdict.judge import BOUNDS

LEDGER = "namespace:gpunode_gpu_seconds:rate5m"
HOURLY = "namespace:gpunode_gpu_seconds:rate1h_hourly"
OF_CLUSTERS = "cluster:gpunode_gpu_seconds:rate5m"
VERDICTS = "namespace:gpunode_gpu_bottleneck:count"
HELD = 'state!="free"'
BOUNDING = sorted(cause.name for cause, _ in BOUNDS)
HELD_UP = f'cause!~"{"|".join((NONE.name, NO_REQUESTS.name, *BOUNDING))}"'
"""Causes for which a GPU waits, rather than those that limit what it does."""

OWNED = "cluster, owner_namespace, workload, user"
WHOSE = ("owner_namespace", "user", "cluster")
LOSING = "job:gpunode_gpu_lost:rate5m > 0.05"
WORST = f"topk(20, job:gpunode_gpu_lost:hours_since and {LOSING})"
"""The jobs that have lost most since they began to lose as much as now."""


def _asked(expression: str, legend: str = "") -> Query:
    return Query(selected(expression, NAMESPACES), legend)


SEEN = _asked("sum (cluster:gpunode_gpu:count)", "No GPU is seen")
"""What there must be for a panel to say that nothing is wrong."""


def _or_zero(expression: str) -> Query:
    """A number of GPUs; none where some are seen and none is found."""
    return _asked(f"{expression} or on () 0 * sum ({OF_CLUSTERS})")


def _of_worst(expression: str) -> Query:
    """A figure of the jobs that have lost most, with the cluster and the owner in one label."""
    return _asked(joined(f"{expression} and on ({OWNED}) {WORST}", "whose", *WHOSE))


def _useful_share(series: str, of: str = "{}") -> str:
    """The useful share of the time that jobs hold GPUs; ``of`` says what of the series counts."""
    useful, held = (of.format(f"{series}{{{states}}}") for states in (USEFUL, HELD))
    return f"sum ({useful}) / (sum ({held}) > 0)"


BY_CAUSE = f"sum by (cause) ({VERDICTS}{{{HELD_UP}}})"
HELD_BEFORE = f"(sum by (cause) (max_over_time({VERDICTS}{{{HELD_UP}}}[$__range] @ end())) > 0)"
"""The causes of the time that is shown. Of one that holds up nothing any more, a legend would tell
the last figure beside those of now."""

OF_CAUSES = "namespace:gpunode_gpu_bottleneck:hours_since"
COSTLIEST = f"topk by (cause) (1, {OF_CAUSES}{{{HELD_UP}}})"
"""Of each cause, the step up in the namespace that has lost most since."""

AT_PLACES = f"place:gpunode_gpu_bottleneck:count{{{HELD_UP}}}"
PLACES = (
    f"topk(50, sum by ({BY_PLACE}) ({AT_PLACES}) or on ({BY_PLACE}) 0 * place:gpunode_node:count)"
)
"""The racks, leaf switches and NVLink domains with most GPUs held up."""

BUSIEST = f"topk(30, sum by ({OWNED}) (job:gpunode_gpu_seconds:rate5m))"
"""The jobs that hold most GPUs."""

FIRST_SCREEN = (
    row(
        3,
        figure(
            f"GPUs, {WHOLE_FLEET}",
            "How many GPUs are there, whoever holds them?",
            [_asked("sum (cluster:gpunode_gpu:count)")],
            "none",
            needs=RULES,
            decimals=0,
        ),
        figure(
            "Held",
            "How many GPUs do jobs hold?",
            [_or_zero("sum (namespace:gpunode_gpu:held)")],
            "none",
            needs=RULES,
            decimals=0,
        ),
        figure(
            "Held up",
            "How many GPUs wait for something, by their verdicts?",
            [_or_zero(f"sum ({VERDICTS}{{{HELD_UP}}})")],
            "none",
            needs=RULES,
            decimals=0,
        ),
        figure(
            "Main cause",
            "What holds most GPUs up now?",
            [_asked(f"topk(1, {BY_CAUSE} > 0)", "{{cause}}")],
            "none",
            named=True,
            nothing=NOTHING_WRONG,
            among=SEEN,
            colours=palette.NAMES,
            decimals=0,
        ),
        figure(
            "Useful share",
            "Which share of the time of the GPUs that jobs hold goes to arithmetic and memory, and "
            "which is usual? The mean of the last seven days.",
            [
                _asked(_useful_share(LEDGER), "now"),
                _asked(_useful_share(HOURLY, "sum_over_time({}[7d])"), "7 days"),
            ],
            SHARE,
            needs=RULES,
        ),
        *(
            figure(
                title,
                description,
                [_asked(f"count ({firing.firing(severity)})")],
                "none",
                nothing=NOTHING_WRONG,
                among=SEEN,
            )
            for title, description, severity in (
                ("Pages", "How many alerts that wake somebody fire now?", "page"),
                ("Tickets", "How many alerts that can wait until morning fire now?", "ticket"),
            )
        ),
        widths=(4, 3, 3, 4, 4, 3, 3),
    ),
    row(
        6,
        areas(
            "GPUs held up, by cause",
            "Which resource is the bottleneck, of how many GPUs, and since when? Causes that limit "
            "the work itself, such as memory bandwidth, are left out.",
            [
                _asked(
                    f"{BY_CAUSE} > 0 or (0 * {HELD_BEFORE} and on () sum ({OF_CLUSTERS})) "
                    "or on () label_replace("
                    f'0 * sum ({OF_CLUSTERS}), "cause", "{NONE.name}", "", "")',
                    "{{cause}}",
                )
            ],
            "none",
            needs=RULES,
            colours=palette.CAUSES,
        ),
        rows_of(
            "What holds GPUs up",
            "How many GPUs does each cause hold up, since when as many, and how many GPU hours has "
            "it taken since? Of several namespaces, Since is that of the one that lost most.",
            {
                "GPUs": (_asked(f"{BY_CAUSE} > 0"), "none"),
                "GPU hours": (
                    _asked(
                        f"sum by (cause) ({OF_CAUSES}{{{HELD_UP}}}) and on (cause) {BY_CAUSE} > 0"
                    ),
                    "none",
                ),
                "Since": (
                    _asked(
                        "1000 * max by (cause) (namespace:gpunode_gpu_bottleneck:since "
                        f"and on (cluster, owner_namespace, cause) {COSTLIEST}) "
                        f"and on (cause) {BY_CAUSE} > 0"
                    ),
                    "dateTimeFromNow",
                ),
            },
            names={"cause": "Cause"},
            sort_by="GPU hours",
            decimals={"GPU hours": 1},
            nothing=NOTHING_WRONG,
            among=SEEN,
            values={"Cause": palette.CAUSES},
        ),
        rows_of(
            f"Nodes in trouble, {WHOLE_FLEET}",
            "Which nodes have a fault of their own? 2 is worth waking somebody, 1 a ticket. "
            "The node leads to its dashboard.",
            {"Level": (_asked("topk(50, node:gpunode_fault:level)"), "none")},
            names={"cluster": "Cluster", "instance": "Node", "fault": "Fault"},
            sort_by="Level",
            nothing=NOTHING_WRONG,
            among=SEEN,
            links={"Node": link_to("gpunode-node", cluster="cluster", node="instance")},
        ),
        widths=(9, 9, 6),
    ),
    row(
        10,
        rows_of(
            "Jobs that lose most",
            "How many GPUs does each job lose now, and how many GPU hours since it began to lose "
            "as many? The cause is that of most of its GPUs. The job leads to its dashboard.",
            {
                "Lost": (_of_worst("job:gpunode_gpu_lost:rate5m"), "none"),
                "Hours": (_of_worst(WORST), "none"),
                "Since": (_of_worst("1000 * job:gpunode_gpu_lost:since"), "dateTimeFromNow"),
                "": (
                    _of_worst(
                        f"topk by ({OWNED}) (1, sum by ({OWNED}, cause) "
                        '(job:gpunode_gpu_bottleneck:count{cause!="none"}))'
                    ),
                    "none",
                ),
            },
            names={"workload": "Job", "whose": "Whose", "cause": "Cause"},
            carried=("cluster", "owner_namespace", "user"),
            sort_by="Hours",
            nothing=NOTHING_WRONG,
            among=SEEN,
            links={"Job": TO_JOB},
            decimals={"Lost": 1, "Hours": 1},
            values={"Cause": palette.CAUSES},
        ),
        firing.alerts("Firing alerts", NAMESPACES, SEEN),
        widths=(12, 12),
    ),
)

FLEET = Board(
    uid="gpunode-fleet",
    title="GPU fleet",
    description="Which resource is the bottleneck, since when, on how many GPUs, and whose?",
    variables=(datasource(), of_many("cluster"), of_many("namespace")),
    selection=NAMESPACES,
    sections=(
        section("", *FIRST_SCREEN),
        section(
            "Where the time goes",
            row(
                8,
                areas(
                    "GPUs by state",
                    "What do the GPUs do? Free ones have no namespace.",
                    [
                        _asked(
                            f"sum by (state) ({LEDGER}{{{HELD}}} or "
                            f'{OF_CLUSTERS}{{state="free",{NO_NAMESPACE}}})',
                            "{{state}}",
                        )
                    ],
                    "none",
                    needs=RULES,
                    colours=palette.STATES,
                ),
                lines(
                    "Useful share, week on week",
                    "Is it better or worse than a week ago?",
                    [
                        _asked(_useful_share(LEDGER), "now"),
                        _asked(_useful_share(LEDGER, "{} offset 1w"), "a week ago"),
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
                    [_asked("sum by (kind) (namespace:gpunode_job_kind:gpus)", "{{kind}}")],
                    "none",
                    needs=RULES,
                ),
                lines(
                    f"Power, {WHOLE_FLEET}",
                    "How much do all GPUs draw?",
                    [_asked("sum by (cluster) (cluster:gpunode_gpu_power:watts)", "{{cluster}}")],
                    "watt",
                    needs=RULES,
                ),
            ),
            row(
                7,
                lines(
                    f"Nodes, {WHOLE_FLEET}",
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
                    among=SEEN,
                ),
            ),
        ),
        section(
            "Racks, fabric and roofs",
            row(
                9,
                rows_of(
                    f"Racks and fabric, {WHOLE_FLEET}",
                    "Do the GPUs that are held up share a rack, a leaf switch or a domain of "
                    "NVLink? The cause is that of most of them.",
                    {
                        "Nodes": (
                            _asked(f"place:gpunode_node:count and on ({BY_PLACE}) {PLACES}"),
                            "none",
                        ),
                        "In trouble": (
                            _asked(f"place:gpunode_fault:nodes and on ({BY_PLACE}) {PLACES}"),
                            "none",
                        ),
                        "Held up": (_asked(PLACES), "none"),
                        "": (
                            _asked(
                                f"topk by ({BY_PLACE}) (1, {AT_PLACES}) "
                                f"and on ({BY_PLACE}) {PLACES}"
                            ),
                            "none",
                        ),
                    },
                    names={
                        "cluster": "Cluster",
                        "kind": "Kind",
                        "place": "Place",
                        "cause": "Cause",
                    },
                    sort_by="Held up",
                    needs="labels of the nodes (docs/dashboards.md), or domains of NVLink",
                    values={"Cause": palette.CAUSES},
                ),
                rows_of(
                    "How near to their roofs jobs are",
                    "Of the jobs with most GPUs: which share of the peak do tensor cores, FP32 "
                    "pipes and HBM reach, in the mean over their GPUs? Near 1 is the roof.",
                    {
                        "GPUs": (_asked(BUSIEST), "none"),
                        **{
                            title: (
                                _asked(
                                    f'job:gpunode_gpu_active:ratio{{unit="{unit}"}} '
                                    f"and on ({OWNED}) {BUSIEST}"
                                ),
                                SHARE,
                            )
                            for title, unit in (
                                ("Tensor", "tensor"),
                                ("FP32", "fp32"),
                                ("HBM", "dram"),
                            )
                        },
                    },
                    names=OF_A_JOB,
                    sort_by="GPUs",
                    needs=GPM,
                    links={"Job": TO_JOB},
                    decimals={"GPUs": 1},
                ),
            ),
        ),
        section(
            "Versions",
            row(
                9,
                rows_of(
                    f"Versions side by side, {WHOLE_FLEET}",
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
                    among=SEEN,
                ),
                rows_of(
                    f"Nodes that differ, {WHOLE_FLEET}",
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
                    among=SEEN,
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
                    among=SEEN,
                    links={"Job": TO_JOB},
                    decimals={"Times as long": 2},
                ),
                widths=(7, 8, 9),
            ),
        ),
    ),
)
