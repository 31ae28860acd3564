"""All clusters at a glance: what holds GPUs up, since when, whose they are, and what is broken.

It asks only for series of namespaces and jobs and for the few of nodes with a fault, so that it
loads at once however many GPUs there are. A panel that does not follow the chosen namespaces says
in its title that it is about the whole fleet.
"""

from __future__ import annotations

from dashboards import causes, firing
from dashboards.layout import OF_A_JOB, TO_JOB, Board, link_to, row, section
from dashboards.panels import (
    GPM,
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
from dashboards.promql import GPU, JOB, MEMBER, NODE, active
from dashboards.queries import LOST, NAMESPACES, NO_NAMESPACE, USEFUL, Query, joined, selected
from dashboards.variables import datasource, of_many
from gpunode import words
from gpunode.export import palette
from gpunode.verdict.causes import NONE
from gpunode.verdict.causes.host import NO_REQUESTS
from gpunode.verdict.judge import BOUNDS

LEDGER = "namespace:gpunode_gpu_seconds:rate5m"
HOURLY = "namespace:gpunode_gpu_seconds:rate1h_hourly"
OF_CLUSTERS = "cluster:gpunode_gpu_seconds:rate5m"
VERDICTS = "namespace:gpunode_held_up:count"
HELD = 'state!="free"'
BOUNDING = sorted(cause.name for cause, _ in BOUNDS)
HELD_UP = f'cause!~"{"|".join((NO_REQUESTS.name, *BOUNDING))}"'
"""Causes for which a GPU waits, rather than those that limit what it does."""

OWNED = "cluster, owner_namespace, workload, user"
WHOSE = ("owner_namespace", "user", "cluster")
EACH_HELD_UP = f"gpu:gpunode_held_up:seconds{{{HELD_UP}}}"
LOST_NOW = f"sum by ({OWNED}) (job:gpunode_gpu_states:gpus{{{LOST}}}) > 0.05"
WORST = f"topk(20, {LOST_NOW})"
"""The jobs that lose most GPUs now."""


def _query(expression: str, legend: str = "") -> Query:
    return Query(selected(expression, NAMESPACES), legend)


SEEN = _query("sum (cluster:gpunode_gpu_seconds:rate5m)", "No GPU is seen")
"""What there must be for a panel to say that nothing is wrong."""


def _or_zero(expression: str) -> Query:
    """A number of GPUs; none where some are seen and none is found."""
    return _query(f"{expression} or on () 0 * sum ({OF_CLUSTERS})")


def _of_worst(expression: str) -> Query:
    """A figure of the jobs that have lost most, with the cluster and the owner in one label."""
    return _query(joined(f"{expression} and on ({OWNED}) {WORST}", "whose", *WHOSE))


def _useful_share(series: str, of: str = "{}") -> str:
    """The useful share of the time that jobs hold GPUs; ``of`` says what of the series counts."""
    useful, held = (of.format(f"{series}{{{states}}}") for states in (USEFUL, HELD))
    return f"sum ({useful}) / (sum ({held}) > 0)"


BY_CAUSE = f"sum by (cause) ({VERDICTS}{{{HELD_UP}}})"
HELD_BEFORE = f"(sum by (cause) (max_over_time({VERDICTS}{{{HELD_UP}}}[$__range] @ end())) > 0)"
"""The causes of the time that is shown. Of one that holds up nothing any more, a legend would tell
the last figure beside those of now."""

BY_PLACE = "cluster, kind, place"


def _at_places(nodes: str) -> str:
    """A figure of nodes, added up by rack, leaf switch and NVLink domain."""
    return f"sum by ({BY_PLACE}) (node:gpunode_place:info * on ({NODE}) group_left () ({nodes}))"


HELD_UP_THERE = _at_places(f"count by ({NODE}) ({EACH_HELD_UP})")
PLACES = (
    f"topk(50, {HELD_UP_THERE} "
    f"or on ({BY_PLACE}) 0 * count by ({BY_PLACE}) (node:gpunode_place:info))"
)
"""The racks, leaf switches and NVLink domains with most GPUs held up."""

BUSIEST = f"topk(30, sum by ({OWNED}) (job:gpunode_gpus:count))"
"""The jobs that hold most GPUs."""

OF_NODES = ("driver", "kernel", "os", "rdma", "lustre")
RUNS = " or ".join(
    f'label_replace(label_replace(count by (cluster, {one}) (gpunode_node_info{{{one}!=""}}), '
    f'"version", "$1", "{one}", "(.+)"), "what", "{one}", "", "")'
    for one in OF_NODES
)
VERSIONS = f"sum by (cluster, what, version) ({RUNS})"
DIFFERENT = f"{VERSIONS} and on (cluster, what) count by (cluster, what) ({VERSIONS}) > 1"

FIRST_SCREEN = (
    row(
        3,
        figure(
            f"GPUs, {WHOLE_FLEET}",
            "How many GPUs are there, whoever holds them?",
            [_query(f"count (sum by ({GPU}) (gpu:gpunode_gpu_seconds:rate5m))")],
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
            [_query(f"topk(1, {BY_CAUSE} > 0)", "{{cause}}")],
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
                _query(_useful_share(LEDGER), "now"),
                _query(_useful_share(HOURLY, "sum_over_time({}[7d])"), "7 days"),
            ],
            SHARE,
            needs=RULES,
        ),
        *(
            figure(
                title,
                description,
                [_query(f"count ({firing.firing(severity)})")],
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
                _query(
                    f"{BY_CAUSE} > 0 or (0 * {HELD_BEFORE} and on () sum ({OF_CLUSTERS})) "
                    "or on () label_replace("
                    f'0 * sum ({OF_CLUSTERS}), "cause", "{NONE.name}", "", "")',
                    "{{cause}}",
                )
            ],
            "none",
            needs=RULES,
            colours=causes.HELD_UP,
        ),
        rows_of(
            "What holds GPUs up",
            "How many GPUs does each cause hold up? For how many GPU hours has it, and since when "
            "the first, of those of jobs?",
            {
                "GPUs": (_query(f"{BY_CAUSE} > 0"), "none"),
                "GPU hours": (_query(f"sum by (cause) ({EACH_HELD_UP}) / 3600"), "none"),
                "Since": (
                    _query(f"1000 * (time() - max by (cause) ({EACH_HELD_UP}))"),
                    "dateTimeFromNow",
                ),
            },
            names={"cause": "Cause"},
            sort_by="GPU hours",
            decimals={"GPU hours": 1},
            nothing=NOTHING_WRONG,
            among=SEEN,
            values={"Cause": causes.HELD_UP},
        ),
        rows_of(
            f"Nodes in trouble, {WHOLE_FLEET}",
            "Which nodes have a broken part, and since when? The node leads to its dashboard.",
            {
                "Since": (
                    _query(
                        f"1000 * (time() - topk(50, max by ({NODE}, part, severity) "
                        '(gpu:gpunode_fault:seconds{severity=~"page|ticket"})))'
                    ),
                    "dateTimeFromNow",
                )
            },
            names={"cluster": "Cluster", "instance": "Node", "part": "Part"},
            meanings={"Part": words.PARTS},
            sort_by="Since",
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
            "How many GPUs does each job lose now? For how many GPU hours have they been held up, "
            "and since when the first? The cause is that of most. The job leads to its dashboard.",
            {
                "Lost": (_of_worst(WORST), "none"),
                "Hours": (_of_worst(f"sum by ({OWNED}) ({EACH_HELD_UP}) / 3600"), "none"),
                "Since": (
                    _of_worst(f"1000 * (time() - max by ({OWNED}) ({EACH_HELD_UP}))"),
                    "dateTimeFromNow",
                ),
                "": (
                    _of_worst(
                        f"topk by ({OWNED}) (1, sum by ({OWNED}, cause) "
                        '(job:gpunode_rank:count{cause!="none"}))'
                    ),
                    "none",
                ),
            },
            names={"workload": "Job", "whose": "Whose", "cause": "Cause"},
            carried=("cluster", "owner_namespace", "user"),
            sort_by="Lost",
            nothing=NOTHING_WRONG,
            among=SEEN,
            links={"Job": TO_JOB},
            decimals={"Lost": 1, "Hours": 1},
            values={"Cause": causes.HELD_UP},
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
                        _query(
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
                        _query(_useful_share(LEDGER), "now"),
                        _query(_useful_share(LEDGER, "{} offset 1w"), "a week ago"),
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
                        _query(
                            "sort_desc(label_replace(topk(15, sum by (owner_namespace) "
                            f"(avg_over_time({LEDGER}{{{LOST}}}[1d]))), "
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
                    [_query("sum by (kind) (namespace:gpunode_job_kind:gpus)", "{{kind}}")],
                    "none",
                    needs=RULES,
                ),
                lines(
                    f"Power, {WHOLE_FLEET}",
                    "How much do all GPUs draw?",
                    [
                        _query(
                            "sum by (cluster) (cluster:gpunode_gpu_power:by_state)", "{{cluster}}"
                        )
                    ],
                    "watt",
                    needs=RULES,
                ),
            ),
            row(
                7,
                lines(
                    f"Nodes, {WHOLE_FLEET}",
                    "How many nodes are scraped, how many answer, and how many are out of service?",
                    [
                        _query("count (node:gpunode_up:max)", "scraped"),
                        _query("count (node:gpunode_up:max == 1)", "answer"),
                        _query("count (node:gpunode_drained:max)", "out of service"),
                    ],
                    "none",
                    needs=RULES,
                ),
                lines(
                    "Jobs that stand still",
                    "Since when has no GPU of a job worked, while some wait in a collective?",
                    [
                        _query(
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
                    "Do the GPUs that are held up, or nodes in trouble, share a rack, a switch "
                    "or a domain of NVLink?",
                    {
                        "Nodes": (
                            _query(f"count by ({BY_PLACE}) (node:gpunode_place:info)"),
                            "none",
                        ),
                        "In trouble": (
                            _query(
                                _at_places(
                                    f"count by ({NODE}) "
                                    '(gpu:gpunode_fault:seconds{severity=~"page|ticket"}) > bool 0'
                                )
                            ),
                            "none",
                        ),
                        "Held up": (_query(PLACES), "none"),
                    },
                    names={"cluster": "Cluster", "kind": "Kind", "place": "Place"},
                    sort_by="Held up",
                    needs="labels of the nodes (docs/dashboards.md), or domains of NVLink",
                ),
                rows_of(
                    "How near to their roofs jobs are",
                    "Of the jobs with most GPUs: which share of the peak do tensor cores, FP32 "
                    "pipes and HBM reach, in the mean over their GPUs? Near 1 is the roof.",
                    {
                        "GPUs": (_query(BUSIEST), "none"),
                        **{
                            title: (
                                _query(
                                    f"avg by ({OWNED}) ({active(unit)} * on ({GPU}) "
                                    f"group_left (owner_namespace, workload, user) {MEMBER}) "
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
                    "Of what does a cluster run several versions, and on how many nodes each?",
                    {"Nodes": (_query(f"topk(50, {DIFFERENT})"), "none")},
                    names={"cluster": "Cluster", "what": "Of", "version": "Version"},
                    sort_by="Nodes",
                    nothing=NOTHING_WRONG,
                    among=SEEN,
                ),
            ),
        ),
    ),
)
