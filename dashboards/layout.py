"""A dashboard from its panels: places, numbers, links, annotations, and what all share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.models.dashboard import (
    AnnotationContainer,
    AnnotationQuery,
    Dashboard,
    DashboardCursorSync,
    DashboardDashboardTemplating,
    DashboardDashboardTime,
    DashboardLink,
    DashboardLinkType,
    GridPos,
    Panel,
    RowPanel,
    TimePickerConfig,
    VariableModel,
)

from dashboards.panels import DATASOURCE, LINKED, only_now
from dashboards.promql import MEMBER
from dashboards.queries import Selection, chosen, selected
from dashboards.rules import alerts
from gpunode.export import palette

TAG = "gpunode"
WIDTH = 24
"""Columns of Grafana's grid."""

ONE_FIGURE = 8
"""Below so many columns, the legend of a graph has room for one figure beside its names."""

SCHEMA = 38
"""Of Grafana 10.0; later ones migrate it."""

VERSION = 1
GROUPS = "|".join(dict.fromkeys(alert.labels["group"] for alert in alerts()))
"""The values of the label that only gpunode's alerts have."""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels beside one another."""

    height: int
    panels: tuple[Panel, ...]
    widths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """Rows under a heading; the first section of a dashboard has none."""

    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard, as its file describes it."""

    uid: str
    title: str
    description: str
    variables: tuple[VariableModel, ...]
    selection: Selection
    """What its annotations are narrowed to."""

    sections: tuple[Section, ...]
    since: str = "now-6h"
    refresh: str = "1m"


def row(height: int, *panels: Panel, widths: Sequence[int] = ()) -> Row:
    """Panels beside one another, of the same width unless ``widths`` says otherwise."""
    return Row(height, panels, tuple(widths) or (WIDTH // len(panels),) * len(panels))


def section(title: str, *rows: Row) -> Section:
    """Rows under a heading."""
    return Section(title, rows)


def dashboard(board: Board) -> Dashboard:
    """What Grafana loads."""
    return Dashboard(
        uid=board.uid,
        title=board.title,
        description=board.description,
        tags=[TAG],
        timezone="browser",
        editable=False,
        graph_tooltip=DashboardCursorSync.CROSSHAIR,
        time=DashboardDashboardTime(from_val=board.since, to="now"),
        timepicker=TimePickerConfig(refresh_intervals=["30s", "1m", "5m", "15m", "1h"]),
        refresh=board.refresh,
        schema_version=SCHEMA,
        version=VERSION,
        panels=list(placed(board.sections)),
        templating=DashboardDashboardTemplating(list_val=list(board.variables)),
        annotations=AnnotationContainer(
            list_val=[firing(severity, board.selection) for severity in ("page", "ticket")]
        ),
        links=[
            DashboardLink(
                title="Other dashboards",
                type_val=DashboardLinkType.DASHBOARDS,
                icon="external link",
                tooltip="The other dashboards, with the same selection and time",
                tags=[TAG],
                as_dropdown=True,
                include_vars=True,
                keep_time=True,
            )
        ],
    )


def placed(sections: Iterable[Section]) -> Iterable[Panel | RowPanel]:
    """The panels with their numbers and places, from top to bottom."""
    number, top = 0, 0
    for one in sections:
        if one.title:
            number += 1
            yield RowPanel(
                id_val=number,
                title=one.title,
                collapsed=False,
                grid_pos=GridPos(h=1, w=WIDTH, x=0, y=top),
                panels=[],
            )
            top += 1
        for line in one.rows:
            left = 0
            for panel, width in zip(line.panels, line.widths, strict=True):
                number += 1
                panel.id_val = number
                panel.grid_pos = GridPos(h=line.height, w=width, x=left, y=top)
                if width < ONE_FIGURE:
                    only_now(panel)
                left += width
                yield panel
            top += line.height


def firing(severity: str, selection: Selection) -> AnnotationQuery:
    """Marks on every graph where what fires now, or did, with this severity began.

    A mark for the whole time would hide the graph.

    An alert about a whole job names no node, and one about hardware no job; so an absent label
    matches every selection. Where nodes are selected, a job must be on one of them.
    """
    of = f'severity="{severity}",group=~"{GROUPS}"'
    matchers = "".join(f',{label}=~"{chosen(name)}|"' for label, name in selection.items())
    began = f"ALERTS_FOR_STATE{{{of}{matchers}}}"
    if "instance" in selection:
        of_jobs = f'ALERTS_FOR_STATE{{{of},cluster=~"$cluster|",instance="",workload!=""}}'
        here = selected(MEMBER, selection)
        by = "cluster, owner_namespace, workload"
        began = f"({began} unless ({of_jobs} unless on ({by}) {here}))"
    return AnnotationQuery(
        name="pages" if severity == "page" else f"{severity}s",
        datasource=DATASOURCE,
        enable=severity == "page",
        hide=False,
        icon_color=palette.SEVERITIES[severity],
        expr=f'1000 * ({began} and ignoring (alertstate) ALERTS{{alertstate="firing"}})',
        step="60s",
        title_format="{{alertname}}",
        text_format="{{owner_namespace}} {{workload}} {{instance}} {{part}} {{name}}",
        tag_keys="severity,group",
        use_value_for_time=True,
    )


def link_to(uid: str, **variables: str) -> str:
    """The address of a dashboard, with some variables from a row of a table, others as they are."""
    return _address(uid, variables)


def address(field: str, **variables: str) -> str:
    """The address of the dashboard that a field of the row names."""
    return _address(f'${{__data.fields["{field}"]}}', variables)


def link_to_run(cluster: str, namespace: str, job: str) -> str:
    """The dashboard of a job over the life of a run, from a row with ``from`` and ``to`` in ms."""
    life = "&".join(f'{end}=${{__data.fields["{end}"]}}' for end in ("from", "to"))
    of_job = {"cluster": cluster, "namespace": namespace, "job": job}
    return _address("gpunode-job", of_job, life)


def _address(uid: str, variables: Mapping[str, str], time: str = "${__url_time_range}") -> str:
    fields = {label: field for label, (field, _) in LINKED.items()}
    chosen = "".join(
        f'&var-{name}=${{__data.fields["{fields.get(label, label)}"]}}'
        for name, label in variables.items()
    )
    return f"/d/{uid}?{time}&${{datasource:queryparam}}{chosen}"


TO_JOB = link_to("gpunode-job", cluster="cluster", namespace="owner_namespace", job="workload")
"""The dashboard of a job, from a row that has the labels of one."""

OF_A_JOB = {
    "cluster": "Cluster",
    "owner_namespace": "Namespace",
    "workload": "Job",
    "user": "User",
}
"""These labels, and what a table calls them."""
