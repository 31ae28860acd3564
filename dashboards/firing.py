"""Which alerts fire, whom they harm, and where their rows lead: each page, and each kind of ticket.

An alert is about a job, a GPU, a node, a filesystem or a fault, as its labels say. What it harms is
the job on it: a job that loses one GPU loses its work on the others.
"""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Panel

from dashboards.layout import GROUPS, address
from dashboards.panels import ABSENT, NOTHING_WRONG, rows_of
from dashboards.promql import GPU, JOB, MEMBER, NO_NAMESPACE, NODE, OWNER
from dashboards.queries import Query, Selection, chosen, joined, selected
from dashboards.rules import alerts as every_alert
from dashboards.runbooks import RUNBOOKS
from gpunode.export import palette

LABELS = (
    *("severity", "alertname", "cluster", "owner_namespace", "workload", "replica", "user"),
    *("instance", "gpu", "uuid", "node", "part", "name"),
)
"""What tells one alert from another, for those that read about it."""

BY_LABELS = ", ".join(LABELS)
OF_GPUNODE = f'group=~"{GROUPS}",cluster=~"$cluster|"'
OF_HARDWARE = ',workload=""'
OF_JOBS = f',workload!="",owner_namespace=~"{chosen("namespace")}"'
BOTH = (OF_JOBS, OF_HARDWARE)
"""Alerts about hardware have no namespace, and are everybody's."""

RECENT = "last_over_time({}[$__range])"

ANY = "page|ticket"
ITS = {"its_namespace": "owner_namespace", "its_job": "workload"}
"""By the names of fields: the labels of the job that an alert harms."""

PLACE = ("instance", "gpu", "node", "part", "name")

MAX_ROWS = 100
"""More than there are kinds of tickets. Figures above the table say how many alerts there are."""

OF_JOB = 30
"""The alerts of one job that are listed, the newest: each of its nodes may have some."""

NOT_KNOWN = "-1"
"""What the table has for GPUs of which it is not known how many are harmed, to be sorted last."""

ROW = "(page/.*|ticket/[^/]*)(?:/.*)?"
"""What has a row in common, of the labels of an alert: itself for a page, its name for tickets."""

BOARDS = {"to_job": ("its_job", "gpunode-job"), "to_node": ("instance", "gpunode-node")}
"""The fields of a row with the dashboards to which it leads, each where the row has this label. The
others lead to Health, which shows what is broken anywhere."""

OF_SERVICES = "|".join({one.name: one for one in every_alert() if one.name.startswith("Serving")})
"""Alerts about what inference engines tell: their jobs lead to the dashboard of services."""

SELECTS = {
    "of_namespace": ("its_namespace", NO_NAMESPACE),
    "in_job": ("its_job", "All"),
    "in_node": ("instance", "All"),
}
"""The fields with what these dashboards select, where the row has a label and where it lacks it."""


def firing(severity: str, having: str = "") -> str:
    """The alerts that fire: of chosen jobs and of all hardware, or those with these matchers."""
    of = f'alertstate="firing",severity=~"{severity}",{OF_GPUNODE}'
    return " or ".join(f"ALERTS{{{of}{one}}}" for one in (having and [having]) or BOTH)


def _harming() -> str:
    """The alerts with the GPUs that each harms, and with the largest job on its node or GPU."""
    its_gpus = f"* on ({JOB}) group_left () job:gpunode_gpus:count"
    gpu = firing(ANY, f'{OF_HARDWARE},gpu!=""')
    node = firing(ANY, f'{OF_HARDWARE},gpu="",instance!=""')
    members = _owned(f"({MEMBER} and on ({GPU}) {gpu}) {its_gpus}")
    on_node = _owned(
        f"topk by ({NODE}) (1, max by ({NODE}, {OWNER}) "
        f"(({MEMBER} and on ({NODE}) {node}) {its_gpus}))"
    )
    known = (
        _owned(f"{firing(ANY, OF_JOBS)} {its_gpus}"),
        f"{gpu} * on ({GPU}) group_left (its_namespace, its_job) {members}",
        f"{node} * on ({NODE}) group_left (its_namespace, its_job) {on_node}",
        _owned(f"{NOT_KNOWN} * ({firing(ANY)})"),
    )
    return f" or on ({BY_LABELS}) ".join(known)


def _owned(expression: str) -> str:
    """Series with the namespace and the job by names that no alert has."""
    for field, label in ITS.items():
        expression = f'label_replace({expression}, "{field}", "$1", "{label}", "(.+)")'
    return expression


def _rows() -> str:
    """A row for each page, and for each kind of ticket the one that harms the most GPUs.

    How many alerts of the kind there are is in a label.
    """
    labels = ", ".join(f'"{label}"' for label in LABELS)
    keyed = f'label_join({_harming()}, "key", "/", {labels})'
    keyed = f'label_replace({keyed}, "row", "$1", "key", "{ROW}")'
    number = f"count by (severity, alertname) ({firing(ANY)})"
    return (
        f"topk({MAX_ROWS}, topk by (row) (1, {keyed})) "
        "* on (severity, alertname) group_left (alerts) "
        f'count_values by (severity, alertname) ("alerts", {number})'
    )


def _leading(rows: str) -> str:
    """The rows with where they lead."""
    rows = joined(rows, "place", *PLACE)
    for field, (label, board) in BOARDS.items():
        rows = _or_else(rows, field, "gpunode-health", label, board)
    rows = f'label_replace({rows}, "to_job", "gpunode-serving", "alertname", "{OF_SERVICES}")'
    for field, (label, absent) in SELECTS.items():
        rows = _or_else(rows, field, absent, label, "$1")
    return rows


def alerts_of_job(title: str, selection: Selection, among: Query) -> Panel:
    """The table of the alerts of a job, of its nodes and of what holds it up, in the time shown."""
    job = f'workload=~"{chosen(selection["workload"])}",owner_namespace=~"{chosen("namespace")}"'
    nodes = f'workload="",instance=~"{chosen(selection["instance"])}"'

    def every(metric: str, state: str = "", over: str = "{}") -> str:
        def of(matchers: str) -> str:
            found = f'{metric}{{{state}severity=~"{ANY}",{OF_GPUNODE},{matchers}}}'
            return over.format(found)

        return f"max by ({BY_LABELS}) ({of(job)} or {of(nodes)})"

    firing_now = 'alertstate="firing",'
    rows = (
        f'(label_replace({every("ALERTS", firing_now)}, "state", "fires", "", "") '
        f"or on ({BY_LABELS}) "
        f'label_replace({every("ALERTS", firing_now, RECENT)}, "state", "has ended", "", "")) * 0 '
        f"+ on ({BY_LABELS}) group_left () 1000 * {every('ALERTS_FOR_STATE', over=RECENT)}"
    )
    rows = joined(rows, "place", *PLACE)
    rows = _or_else(rows, "to_node", "gpunode-health", "instance", "gpunode-node")
    rows = _or_else(rows, "in_node", "All", "instance", "$1")
    return rows_of(
        title,
        "What notified somebody of the job or of its nodes, in the time that "
        f"is shown? Of more than {OF_JOB} alerts, the newest are listed.",
        {"Since": (Query(f"topk({OF_JOB}, {rows})"), "dateTimeFromNow")},
        names={"severity": "Level", "alertname": "Alert", "state": "Now", "place": "Place"},
        sort_by="Since",
        grouped_by="Level",
        nothing=NOTHING_WRONG,
        among=among,
        carried=("to_node", "in_node"),
        links={
            "Alert": f'{RUNBOOKS}/${{__data.fields["alertname"]}}.md',
            "Place": address("to_node", cluster="cluster", node="in_node"),
        },
        values={"Level": palette.SEVERITIES},
    )


def _or_else(rows: str, field: str, absent: str, label: str, present: str) -> str:
    """The rows with a field that depends on whether a row has a label."""
    rows = f'label_replace({rows}, "{field}", "{absent}", "", "")'
    return f'label_replace({rows}, "{field}", "{present}", "{label}", "(.+)")'


def alerts(title: str, selection: Selection, among: Query) -> Panel:
    """The table of the alerts that fire; it says that there are none ``among`` what there is."""
    of = f'severity=~"{ANY}",{OF_GPUNODE}'
    began = f"max by ({BY_LABELS}) (ALERTS_FOR_STATE{{{of}}})"
    columns = {
        "GPUs": (_rows(), "none"),
        "Since": (
            f"0 * ({_rows()}) + on ({BY_LABELS}) group_left () 1000 * {began}",
            "dateTimeFromNow",
        ),
    }
    return rows_of(
        title,
        "What has notified somebody, how many GPUs does it harm, and since when? Each page has a "
        "row. Of the tickets of an alert, only the one that harms most has a row, and # is "
        "how many fire. Alerts about hardware have no namespace, and are always there.",
        {
            name: (Query(selected(_leading(text), selection)), unit)
            for name, (text, unit) in columns.items()
        },
        names={
            "severity": "Level",
            "alertname": "Alert",
            "alerts": "#",
            "its_job": "Job",
            "place": "Place",
        },
        sort_by="GPUs",
        grouped_by="Level",
        nothing=NOTHING_WRONG,
        among=among,
        carried=(*BOARDS, *SELECTS),
        links={
            "Alert": f'{RUNBOOKS}/${{__data.fields["alertname"]}}.md',
            "Job": address("to_job", cluster="cluster", namespace="of_namespace", job="in_job"),
            "Place": address("to_node", cluster="cluster", node="in_node"),
        },
        values={"Level": palette.SEVERITIES},
        meanings={"GPUs": {NOT_KNOWN: ABSENT}},
    )
