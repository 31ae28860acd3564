"""What the reader of a dashboard selects."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import (
    VariableHide,
    VariableModel,
    VariableOption,
    VariableRefresh,
    VariableSort,
    VariableType,
)

from dashboards.panels import DATASOURCE
from dashboards.promql import MEMBER, NO_NAMESPACE
from dashboards.queries import LOST, chosen

INFO = "gpunode_gpu_info"
FAULTS = "gpu:gpunode_fault:seconds"

IN_NAMESPACE = f'owner_namespace=~"{chosen("namespace")}"'
OF_JOBS = f'cluster=~"$cluster",{IN_NAMESPACE},workload!=""'

RANKED = "query_result(sort_desc("
"""The beginning of a query whose answer is in the order in which values are offered."""

QUERIES = {
    "cluster": ("cluster", f"label_values({INFO}, cluster)"),
    "namespace": (
        "namespace",
        f'query_result(label_replace(count by (owner_namespace) ({MEMBER}{{cluster=~"$cluster"}}), '
        f'"owner_namespace", "{NO_NAMESPACE}", "owner_namespace", ""))',
    ),
    "job": (
        "job",
        f"{RANKED}"
        f"sum by (workload) (job:gpunode_gpu_states:gpus{{{OF_JOBS},{LOST}}}) "
        f"or 0 * count by (workload) ({MEMBER}{{{OF_JOBS}}}) or -1 * count by (workload) "
        f"(last_over_time(job:gpunode_gpu_seconds:rate1h_hourly{{{OF_JOBS}}}[$__range]))))",
    ),
    "node": (
        "node",
        f"{RANKED}"
        f'1e6 * count by (instance) ({FAULTS}{{cluster=~"$cluster",severity="page"}}) '
        f'or 1e3 * count by (instance) ({FAULTS}{{cluster=~"$cluster"}}) '
        f'or sum by (instance) (node:gpunode_gpu_seconds:rate5m{{cluster=~"$cluster",{LOST}}}) '
        f'or 0 * count by (instance) ({INFO}{{cluster=~"$cluster"}}) '
        'or 0 * max by (instance) (node:gpunode_up:max{cluster=~"$cluster"})))',
    ),
    "gpu": ("GPU", f'label_values({INFO}{{cluster=~"$cluster",instance=~"$node"}}, gpu)'),
}
"""Each variable's label on the page and the query for its values. GPUs are those that the exporter
knows, namespaces those that hold a GPU. A dashboard opens on the first value. Jobs are in the order
of what they lose, with those that have ended last; nodes in that of their faults, and then of what
is lost on them."""

OF_NAMESPACES = r'/="(?<value>\(?(?<text>[^"()]+)[^"]*)"/'
"""What is a value in the answer for namespaces of ``query_result()``, and what is shown for it:
https://grafana.com/docs/grafana/latest/dashboards/variables/add-template-variables/#filter-and-modify-using-named-text-and-value-capture-groups"""

OF_ONE_LABEL = r'/="(.*)"\}/'
"""The value in an answer of ``query_result()`` whose series have one label."""

OF_JOB = f'label_values({MEMBER}{{cluster=~"$cluster",{IN_NAMESPACE},workload=~"$job"}}, '
NODES_OF_JOB = f"{OF_JOB}instance)"
USER_OF_JOB = f"{OF_JOB}user)"


def datasource() -> VariableModel:
    """Where the series are."""
    return VariableModel(
        type_val=VariableType.DATASOURCE,
        name="datasource",
        label="Data source",
        query="prometheus",
        hide=VariableHide.DONT_HIDE,
        refresh=VariableRefresh.ON_DASHBOARD_LOAD,
        regex="",
        multi=False,
        include_all=False,
        options=[],
        current=VariableOption(text="default", value="default"),
    )


def of_many(name: str) -> VariableModel:
    """A selection of any number, all at first; a label that is absent is among all."""
    label, query = QUERIES[name]
    return _query(name, label, query, VariableOption(text="All", value="$__all"), every=".*")


def of_few(name: str) -> VariableModel:
    """What the dashboard is about: one at first, more if wanted.

    It does not offer all, because a page that draws every GPU of a fleet shows nothing and takes
    Prometheus down.
    """
    label, query = QUERIES[name]
    return _query(name, label, query, None, every=None)


def nodes_of_job() -> VariableModel:
    """The nodes of the selected job, always all of them, and not all of the fleet.

    Nobody sees it: what is recorded of a job has no nodes, and would ignore a choice. Its name is
    not that of the nodes that other dashboards hand on.
    """
    every = VariableOption(text="All", value="$__all")
    found = _query("hosts", "nodes of the job", NODES_OF_JOB, every, every=None)
    found.include_all = True
    found.hide = VariableHide.HIDE_VARIABLE
    return found


def user_of_job() -> VariableModel:
    """Who runs the selected job, where its owner is known by name: for a look at his other runs."""
    found = _query("user", "user", USER_OF_JOB, None, every=None)
    found.hide = VariableHide.HIDE_VARIABLE
    return found


def price() -> VariableModel:
    """What an hour of a GPU costs."""
    return _text_variable(
        "price", "price of a GPU hour", "2.50", "What is lost is multiplied by it."
    )


def currency() -> VariableModel:
    """In which currency that is: titles say it beside what was paid."""
    return _text_variable("currency", "currency", "USD")


def budget() -> VariableModel:
    """What a namespace may spend a day; a line marks it, unless it is 0."""
    return _text_variable(
        "budget", "budget of a day", "0", "A line marks it; with 0 there is none."
    )


def _text_variable(name: str, label: str, value: str, description: str = "") -> VariableModel:
    """A variable that the reader writes."""
    return VariableModel(
        type_val=VariableType.TEXTBOX,
        name=name,
        label=label,
        description=description or None,
        hide=VariableHide.DONT_HIDE,
        query=value,
        current=VariableOption(text=value, value=value),
        options=[VariableOption(text=value, value=value, selected=True)],
    )


def _query(
    name: str, label: str, query: str, current: VariableOption | None, *, every: str | None
) -> VariableModel:
    return VariableModel(
        type_val=VariableType.QUERY,
        name=name,
        label=label,
        datasource=DATASOURCE,
        definition=query,
        query={"query": query, "refId": f"Variable-{name}"},
        hide=VariableHide.DONT_HIDE,
        refresh=VariableRefresh.ON_TIME_RANGE_CHANGED,
        sort=VariableSort.DISABLED
        if query.startswith(RANKED)
        else VariableSort.NUMERICAL_ASC
        if name == "gpu"
        else VariableSort.ALPHABETICAL_ASC,
        multi=True,
        include_all=every is not None,
        all_value=every,
        current=current or VariableOption(text="", value=""),
        options=[],
        regex=OF_ONE_LABEL
        if query.startswith(RANKED)
        else OF_NAMESPACES
        if query.startswith("query_result")
        else "",
    )
