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

INFO = "gpunode_gpu_info"
OWNERS = "gpu:gpunode_gpu_owner:workload"

QUERIES = {
    "cluster": ("cluster", f"label_values({INFO}, cluster)"),
    "namespace": (
        "namespace",
        f'label_values({OWNERS}{{cluster=~"$cluster"}}, owner_namespace)',
    ),
    "job": (
        "job",
        f'label_values({OWNERS}{{cluster=~"$cluster",owner_namespace=~"$namespace"}}, workload)',
    ),
    "node": ("node", f'label_values({INFO}{{cluster=~"$cluster"}}, instance)'),
    "gpu": ("GPU", f'label_values({INFO}{{cluster=~"$cluster",instance=~"$node"}}, gpu)'),
}
"""Each variable's label on the page and the query for its values. GPUs and nodes are those that the
exporter knows, namespaces and jobs those that hold a GPU."""

NODES_OF_JOB = (
    f'label_values({OWNERS}{{cluster=~"$cluster",owner_namespace=~"$namespace",workload=~"$job"}}, '
    "instance)"
)


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
    """The nodes of the selected job; all of them means those, and not all of the fleet."""
    every = VariableOption(text="All", value="$__all")
    found = _query("node", "node", NODES_OF_JOB, every, every=None)
    found.include_all = True
    return found


def price() -> VariableModel:
    """What an hour of a GPU costs."""
    return VariableModel(
        type_val=VariableType.TEXTBOX,
        name="price",
        label="price of a GPU hour",
        description="In your currency; what is lost is multiplied by it.",
        hide=VariableHide.DONT_HIDE,
        query="2.50",
        current=VariableOption(text="2.50", value="2.50"),
        options=[VariableOption(text="2.50", value="2.50", selected=True)],
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
        sort=VariableSort.NUMERICAL_ASC if name == "gpu" else VariableSort.ALPHABETICAL_ASC,
        multi=True,
        include_all=every is not None,
        all_value=every,
        current=current or VariableOption(text="", value=""),
        options=[],
        regex="",
    )
