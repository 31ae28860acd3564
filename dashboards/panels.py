"""Panels, each made from its title, the question it answers, its queries and its unit.

Only panels that every Grafana from 10 on has. A panel's place and number come from ``layout``.
"""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from grafana_foundation_sdk.models import (
    bargauge,
    common,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardFieldConfigSourceOverrides,
    DashboardLink,
    DashboardLinkType,
    DashboardRegexMapOptions,
    DashboardSpecialValueMapOptions,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColor,
    FieldColorModeId,
    FieldConfig,
    FieldConfigSource,
    MatcherConfig,
    Panel,
    RegexMap,
    SpecialValueMap,
    SpecialValueMatch,
    Threshold,
    ThresholdsConfig,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
)

from dashboards.promql import NO_NAMESPACE
from dashboards.queries import Query
from dashboards.rules import Limit
from dashboards.runbooks import alerts_of, runbook
from gpunode import words
from gpunode.driver.nvidia.xids import CODES
from gpunode.export import palette

DATASOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")

CLIENT = "the training client: docs/training.md"
SERVING = "a server that reports its requests: docs/training.md"
ENGINE = "an inference engine that tells its metrics: docs/serving.md"
ROLES = "instances that say their role (SGLang): docs/serving.md"
TRANSFERS = "an engine that tells how long its KV cache travels (SGLang, vLLM with NIXL)"
RAS = "NCCL's RAS service, NCCL 2.24 or later"
NCCL_LOG = "NCCL's log: NCCL_DEBUG_FILE, docs/training.md"
INSPECTOR = "NCCL's Inspector plug-in: docs/training.md"
INFINIBAND = "InfiniBand or RoCE adapters"
HWMON = "fans and temperatures that the kernel reads (hwmon), not the BMC alone"
LUSTRE = "a mounted Lustre filesystem"
NFS = "a mounted NFS filesystem"
GPM = "GPM: Hopper or later, or DCGM"
KUBERNETES = "kube-state-metrics"
RULES = "gpunode's recording rules: docs/rules.md"
"""What a panel needs that not every site has; it says so where it would be empty."""

LINKED = {"cluster": ("in_cluster", "All"), "owner_namespace": ("in_namespace", NO_NAMESPACE)}
"""By a label that a row of a table may lack: the field from which links take it, and what they take
where it is absent. A link has what a cell shows, which is ``ABSENT`` there."""

ABSENT = "-"
"""What a cell of a table says that has no value."""

NOTHING_WRONG = "None"
"""What a panel says that lists what is wrong, where nothing is."""

WHOLE_FLEET = "whole fleet"
"""What the title of a panel says that does not follow a variable of its dashboard."""

NONE_OF = "-1 * absent_over_time"
OR_NONE = " or on () 0 * absent_over_time"
"""How the query begins for the row of a timeline that would have none in the whole range, and what
is added to that of a heat map: without rows, both show an error. The time before the first sample
stays empty."""

NO_ANSWER = "No answer"
"""What a figure says whose query failed: it says all else by an answer."""

UNSEEN = "-1"
"""The value that a figure shows as the name of what there must be, and is not."""

OR_UNSEEN = f" or on () label_replace(vector({UNSEEN})"
"""How the part of a figure's query begins that has this value."""

SAYS_NONE = " or on () label_replace(NaN * "
"""How the part of a table's query begins that makes the row which says that nothing is wrong. A
text for an empty table would say so, too, where the query failed or nothing was seen."""

ZERO_OF = " or on () label_replace(0 * "
"""How the part of a graph's query begins that draws a line at 0 where nothing is wrong."""

SAY_SO = (OR_NONE, OR_UNSEEN, SAYS_NONE, ZERO_OF)
"""How the parts of queries begin that answer where nothing is found."""

RANGE = "[$__range:$__rate_interval] @ end()"

XIDS = {str(code.number): code.summary for code in CODES.values() if code.models}
"""What tables show for an XID."""

OF_FAULTS = {reason: said.headline for (_, reason), said in words.FAULTS.items()}
"""What tables show for the reason of a fault; of an XID, its number."""

NARROW = {"Cluster": 75, "GPU": 50, "Level": 61, "Port": 52, "#": 50}
"""Pixels of columns whose words are short."""

WIDE_COLUMNS = {
    **dict.fromkeys(("Cause", "Verdict"), 154),
    "Alert": 120,
    "Job": 120,
    "Waited for": 98,
    "Setting": 160,
    **dict.fromkeys(("Model", "Serial number", "PCI address"), 112),
}
"""Pixels that columns with long words have at least."""

OF_UNITS = {"dateTimeFromNow": 112, "dateTimeAsLocal": 180, "s": 100}
"""Pixels of columns of figures, where 52 are not enough."""

SHARE = "percentunit"
WHOLE = "locale"
"""Whole numbers with a mark between the thousands."""

DECIMALS = {SHARE: 1, "none": 0, WHOLE: 0}
"""Of figures, tables and legends by unit. Without, Grafana shows 1.000 beside 1.00."""

OF_CELLS = {**DECIMALS, "s": 1}
"""Of tables: a cell is too narrow for "1.68 mins", whose beginning would be cut off."""

NAME = 12
"""Pixels of the name beside a figure; Grafana would make it as small as the figure leaves room."""

XID_NUMBER = RegexMap(
    options=DashboardRegexMapOptions(
        pattern="^xid_(\\d+)(_fatal)?.*",
        result=ValueMappingResult(text="XID $1", index=len(OF_FAULTS)),
    )
)

Colours = Mapping[str, str]

GREY = palette.FAMILIES["unknown"]["soon"]
"""The colour of why a figure cannot be known."""

REMEDY, ON_ONE_LINE, IN_BRACKETS = 16, 150, re.compile(r" \([^)]*\)")
"""Pixels of what to do, the characters of it that have room, and what it may lack beyond."""

ANSWER, MOMENT = 26, 16
"""Pixels of the sentence for which one opens a dashboard, and of since when."""
NO_COLOUR = "transparent"
NO_WORD = "\N{NO-BREAK SPACE}"
"""An entry of a legend that nobody sees. Grafana 11 draws nothing of a timeline without entries."""


def in_words(names: Iterable[str]) -> dict[str, str]:
    """What readers are told for raw names of one kind; other names speak for themselves."""
    raw = tuple(names)
    kinds = (words.STATES, words.CAUSES, words.REASONS)
    table = next((kind for kind in kinds if {*kind}.issuperset(raw)), {})
    return {name: words.on_a_board(table, name) if name in table else name for name in raw}


def lines(
    title: str,
    description: str,
    queries: Sequence[Query],
    unit: str,
    *,
    needs: str = "",
    among: Query | None = None,
    limit: Limit | None = None,
    colours: Colours | None = None,
    highest: float | None = None,
) -> Panel:
    """Series over time; a line at 0 where there are none, but only if ``among`` finds something."""
    return _graph(
        title,
        description,
        [_or_zero(query, among) for query in queries] if among else queries,
        unit,
        needs=needs,
        about=[query.expression for query in queries],
        limit=limit,
        colours=colours,
        highest=highest,
    )


def areas(
    title: str,
    description: str,
    queries: Sequence[Query],
    unit: str,
    *,
    needs: str = "",
    colours: Colours | None = None,
    highest: float | None = None,
) -> Panel:
    """Series over time, on top of one another: parts of a whole."""
    return _graph(
        title,
        description,
        queries,
        unit,
        needs=needs,
        colours=colours,
        highest=highest,
        stacked=True,
    )


def _graph(
    title: str,
    description: str,
    queries: Sequence[Query],
    unit: str,
    *,
    needs: str,
    about: Sequence[str] = (),
    limit: Limit | None = None,
    colours: Colours | None,
    highest: float | None,
    stacked: bool = False,
) -> Panel:
    options = {
        "legend": common.VizLegendOptions(
            display_mode=common.LegendDisplayMode.TABLE,
            placement=common.LegendPlacement.BOTTOM,
            show_legend=True,
            calcs=["lastNotNull", "max"],
            sort_by="Max",
            sort_desc=True,
        ),
        "tooltip": common.VizTooltipOptions(
            mode=common.TooltipDisplayMode.MULTI, sort=common.SortOrder.DESCENDING
        ),
    }
    panel = _panel(
        "timeseries",
        title,
        description,
        queries,
        unit,
        needs,
        limit,
        options,
        _line_style(limit, stacked=stacked),
        about=about,
    )
    defaults = _defaults(panel)
    defaults.max_val = highest
    if unit == SHARE:
        defaults.decimals = DECIMALS[unit]
    if stacked:
        defaults.min_val = 0
    _coloured(panel, colours or {})
    return panel


def _line_style(limit: Limit | None, *, stacked: bool) -> common.GraphFieldConfig:
    """How series are drawn: as lines, with a dashed one at the limit, or as areas."""
    return common.GraphFieldConfig(
        draw_style=common.GraphDrawStyle.LINE,
        line_width=0 if stacked else 1,
        fill_opacity=100 if stacked else 0,
        show_points=common.VisibilityMode.NEVER,
        stacking=common.StackingConfig(
            mode=common.StackingMode.NORMAL if stacked else common.StackingMode.NONE, group="A"
        ),
        thresholds_style=common.GraphThresholdsStyleConfig(
            mode=common.GraphThresholdsStyleMode.DASHED
            if limit
            else common.GraphThresholdsStyleMode.OFF
        ),
        axis_soft_min=0,
        axis_soft_max=limit.threshold * 1.1 if limit else None,
        span_nulls=False,
    )


def only_now(panel: Panel) -> None:
    """Leave the last figure alone in a graph's legend: names would push others out of sight."""
    if isinstance(panel.options, dict):
        legend = panel.options.get("legend")
        if isinstance(legend, common.VizLegendOptions) and legend.calcs:
            legend.calcs, legend.sort_by = ["lastNotNull"], "Last *"


def figure(
    title: str,
    description: str,
    queries: Sequence[Query],
    unit: str,
    *,
    needs: str = "",
    limit: Limit | None = None,
    named: bool = False,
    sentence: bool = False,
    nothing: str = "",
    unknown: str = "",
    among: Query | None = None,
    colours: Colours | None = None,
    decimals: int | None = None,
    units: Mapping[str, str] | None = None,
) -> Panel:
    """One large figure, or the name of what is largest, or a sentence that is larger than figures.

    It says ``nothing`` only where ``among`` finds something, and else the name of that query. Both
    are answers, so that a query that fails says neither. ``units`` are those of figures that have
    one of their own, by name. ``unknown`` says what it takes for there to be one.
    """
    text = common.BigValueTextMode
    beside = named or len(queries) > 1
    options = stat.Options(
        graph_mode=common.BigValueGraphMode.NONE,
        color_mode=common.BigValueColorMode.VALUE,
        justify_mode=common.BigValueJustifyMode.CENTER,
        text_mode=text.VALUE_AND_NAME if beside else text.VALUE,
        reduce_options=common.ReduceDataOptions(values=False, calcs=["lastNotNull"], fields=""),
        orientation=common.VizOrientation.AUTO,
        text=common.VizTextDisplayOptions(title_size=ANSWER, value_size=MOMENT)
        if sentence
        else common.VizTextDisplayOptions(title_size=NAME)
        if named
        else None,
    )
    # A figure is as large as its panel allows, and the description says the rest.
    short = unknown or nothing or (f"Needs {needs.split(':')[0]}" if needs else "")
    if among:
        queries = _answered(queries, among, nothing, named=named)
        short = NO_ANSWER
    panel = _panel(
        "stat",
        title,
        description,
        queries,
        unit,
        needs,
        limit,
        options,
        None,
        nothing=short,
        instant=True,
    )
    _defaults(panel).decimals = DECIMALS.get(unit) if decimals is None else decimals
    if not among:  # what is absent would be less than a limit
        unseen = _defaults(panel).no_value or ABSENT
        nowhere = _shown_as(SpecialValueMatch.NULL_AND_NAN, unseen, GREY)
        _defaults(panel).mappings = [nowhere]
    if among:
        none, unseen = (" " if beside else one for one in (nothing, among.legend))  # the name says
        said = {"0": ValueMappingResult(text=none, index=0, color=GREY)} if nothing else {}
        said[UNSEEN] = ValueMappingResult(text=unseen, index=1, color=GREY)
        _defaults(panel).mappings = [ValueMap(options=said)]
    for name, its in (units or {}).items():
        _override(panel, name, unit=its)
    _coloured(panel, colours or {})
    return panel


def remedy(
    title: str,
    description: str,
    query: Query,
    remedies: Mapping[str, str],
    *,
    nothing: str,
    among: Query,
) -> Panel:
    """What to do, on one line: the first sentence for what the series of the query is named."""
    panel = figure(
        title, description, [query], "none", named=True, nothing=nothing, among=among, decimals=0
    )
    if isinstance(panel.options, stat.Options):
        panel.options.text_mode = common.BigValueTextMode.NAME
        panel.options.text = common.VizTextDisplayOptions(title_size=REMEDY)
    for name, do in remedies.items():
        first = f"{do.replace('`', '').split('. ')[0].rstrip('.')}." if do else nothing
        if len(first) > ON_ONE_LINE:
            first = IN_BRACKETS.sub("", first)
        _override(panel, name, displayName=first.replace("PID", "its PID"))
    return panel


def _answered(
    queries: Sequence[Query], among: Query, nothing: str, *, named: bool
) -> Sequence[Query]:
    """The queries of a figure, of which the last answers ``nothing``, or that all is unseen."""
    *others, asked = queries
    label = asked.legend.strip("{}") or "said"
    none = f"0 * ({among.expression})"
    if named:
        none = f'label_replace({none}, "{label}", "{nothing}", "", "")'
    answered = f"({asked.expression})" + (f" or on () {none}" if nothing else "")
    unseen = f'{OR_UNSEEN}, "{label}", "{among.legend}", "", "")'
    if others:  # which may have answered
        unseen += f" unless on () ({among.expression})"
    return [*others, replace(asked, expression=answered + unseen)]


def bars(
    title: str,
    description: str,
    queries: Sequence[Query],
    unit: str,
    *,
    needs: str = "",
    limit: Limit | None = None,
    colours: Colours | None = None,
) -> Panel:
    """A bar for each series, as they are now."""
    options = bargauge.Options(
        display_mode=common.BarGaugeDisplayMode.BASIC,
        value_mode=common.BarGaugeValueMode.TEXT,
        name_placement=common.BarGaugeNamePlacement.LEFT,
        show_unfilled=False,
        text=common.VizTextDisplayOptions(title_size=13, value_size=13),
        orientation=common.VizOrientation.HORIZONTAL,
        reduce_options=common.ReduceDataOptions(values=False, calcs=["lastNotNull"], fields=""),
    )
    panel = _panel(
        "bargauge", title, description, queries, unit, needs, limit, options, None, instant=True
    )
    _defaults(panel).min_val = 0
    if unit == WHOLE:
        _defaults(panel).decimals = DECIMALS[unit]
    _coloured(panel, colours or {})
    return panel


def timeline(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    names: Colours,
    needs: str = "",
    nothing: str = "",
    among: Query | None = None,
    unless: Query | None = None,
    rows: int = 20,
) -> Panel:
    """A row for each series, in which ``numbered`` values are shown by their names and colours.

    It says ``nothing`` only where ``among`` finds something, and else the name of that query.
    There are no rows where ``unless`` finds nothing, which may be cheaper to ask than for the rows.
    """
    legend = common.VizLegendOptions(
        display_mode=common.LegendDisplayMode.LIST,
        placement=common.LegendPlacement.BOTTOM,
        show_legend=True,
        calcs=[],
    )
    options = statetimeline.Options(
        show_value=common.VisibilityMode.AUTO,
        row_height=0.9,
        merge_values=True,
        align_value=common.TimelineValueAlignment.CENTER,
        legend=legend,
        tooltip=common.VizTooltipOptions(
            mode=common.TooltipDisplayMode.SINGLE, sort=common.SortOrder.NONE
        ),
        per_page=rows,
    )
    custom = statetimeline.FieldConfig(line_width=0, fill_opacity=100, span_nulls=False)
    panel = _panel(
        "state-timeline",
        title,
        description,
        queries,
        "none",
        needs,
        None,
        options,
        custom,
        nothing=nothing,
    )
    defaults = _defaults(panel)
    # The legend would have an entry for the time before the first sample.
    defaults.mappings = [_named(names), _shown_as(SpecialValueMatch.NULL_AND_NAN, "", NO_COLOUR)]
    _say_so(panel, among, unless)
    if nothing:
        defaults.no_value = NO_ANSWER
    return panel


def heat(
    title: str,
    description: str,
    queries: Sequence[Query],
    unit: str,
    *,
    needs: str = "",
    buckets: bool = False,
) -> Panel:
    """A row for the share of each series, or for each bucket of a histogram."""
    options = heatmap.Options(
        calculate=False,
        color=heatmap.HeatmapColorOptions(
            mode=heatmap.HeatmapColorMode.SCHEME,
            scheme="Oranges",
            fill="dark-orange",
            scale=heatmap.HeatmapColorScale.EXPONENTIAL,
            exponent=0.5,
            steps=64,
            min_val=None if buckets else 0,
            max_val=None if buckets else 1,
        ),
        cell_gap=1,
        y_axis=heatmap.YAxisConfig(
            axis_placement=common.AxisPlacement.LEFT, unit=unit if buckets else None
        ),
        legend=heatmap.HeatmapLegend(show=True),
        tooltip=heatmap.HeatmapTooltip(
            mode=common.TooltipDisplayMode.SINGLE, y_histogram=False, show_color_scale=True
        ),
        cell_values=heatmap.CellValues(unit="none" if buckets else unit),
        rows_frame=heatmap.RowsHeatmapOptions(layout=common.HeatmapCellLayout.AUTO),
    )
    panel = _panel("heatmap", title, description, queries, unit, needs, None, options, None)
    for target in _queries(panel):
        if buckets:
            target.format_val = prometheus.PromQueryFormat.HEATMAP
        else:  # a heat map without rows shows an error
            target.expr += f"{OR_NONE}(({target.expr}){RANGE})"
    return panel


TIME = "Time"
"""What the answers to all queries have, so that those are merged that find nothing."""


def rows_of(
    title: str,
    description: str,
    columns: Mapping[str, tuple[Query, str]],
    *,
    names: Mapping[str, str],
    sort_by: str,
    grouped_by: str = "",
    needs: str = "",
    nothing: str = "",
    among: Query | None = None,
    apart: bool = False,
    carried: Sequence[str] = (),
    links: Mapping[str, str] | None = None,
    decimals: Mapping[str, int] | None = None,
    values: Mapping[str, Colours] | None = None,
    meanings: Mapping[str, Mapping[str, str]] | None = None,
) -> Panel:
    """A table: a row for each set of labels, a column for each query with its unit.

    ``names`` are the labels that are shown, by what each is called; ``links`` the pages to which
    columns lead, ``decimals`` those of columns that have others than their units, ``values`` the
    colours of the values of columns, ``meanings`` what is shown for a value of a column. A column
    without a name is not shown: what its query finds is in the labels. ``carried`` are labels that
    links take and nobody reads. Rows are sorted from the largest on; ``grouped_by`` is a column
    whose names come first. A row says ``nothing`` where ``among`` finds something and the first
    query does not. Columns that are ``apart`` have rows that the first has not: then no query may
    find anything.
    """
    grouping = [common.TableSortByFieldState(display_name=grouped_by)] if grouped_by else []
    options = table.Options(
        show_header=True,
        cell_height=common.TableCellHeight.SM,
        sort_by=[*grouping, common.TableSortByFieldState(display_name=sort_by, desc=True)],
    )
    hidden = [f for f, _ in LINKED.values() if any(f'["{f}"]' in u for u in (links or {}).values())]
    queries = [_linked(query, hidden) for query, _ in columns.values()]
    about = [query.expression for query in queries]
    if among:
        where = _unless(among, queries[1:]) if apart else among
        queries[0] = _or_says(queries[0], _saying(names, links or {}), nothing, where)
    custom = {
        "align": "auto",
        "cellOptions": {"type": "auto"},
        "filterable": False,
        "inspect": False,
        "minWidth": 50,
    }
    panel = _panel(
        "table",
        title,
        description,
        queries,
        "none",
        needs,
        None,
        options,
        custom,
        instant=True,
        about=about,
    )
    for target in _queries(panel):
        target.format_val = prometheus.PromQueryFormat.TABLE
    asked = [f"Value #{letter}" for letter in string.ascii_uppercase[: len(queries)]]
    alone = len(queries) == 1
    figures = dict(zip(["Value"] if alone else asked, columns, strict=True))
    shown = {**names, **{field: column for field, column in figures.items() if column}}
    hidden += carried
    shown |= {field: field for field in hidden}
    panel.transformations = _one_table(shown, alone=alone)
    _defaults(panel).mappings = [*_absent()]
    units = {column: unit for column, (_, unit) in columns.items() if column}
    _sized(panel, units, decimals or {}, names.values(), shown.values())
    for field in hidden:
        _override(panel, field, **{"custom.hidden": True})
    for column, url in (links or {}).items():
        _override(panel, column, links=[{"title": f"Show this {column}", "url": url}])
    _valued(panel, values or {}, meanings or {}, nothing)
    return panel


def _one_table(shown: Mapping[str, str], *, alone: bool) -> list[DataTransformerConfig]:
    """The answers to all queries as one table of these fields, by the names of their columns."""
    return [
        # First, since names of metrics, where answers have them, would keep rows apart.
        DataTransformerConfig(
            id_val="filterFieldsByName",
            options={"include": {"pattern": f"^({'|'.join((TIME, *shown))})$"}},
        ),
        *([] if alone else [DataTransformerConfig(id_val="merge", options={})]),
        DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": {TIME: True},
                "indexByName": {field: at for at, field in enumerate(shown)},
                "renameByName": shown,
            },
        ),
    ]


def _sized(
    panel: Panel,
    units: Mapping[str, str],
    decimals: Mapping[str, int],
    named: Collection[str],
    shown: Collection[str],
) -> None:
    """Units and decimals of columns of figures, and how wide these and others are."""
    for column, unit in units.items():
        width = max(OF_UNITS.get(unit, 52), 26 + 7 * len(column))
        _override(panel, column, unit=unit, **{"custom.width": width})
        if (digits := decimals.get(column, OF_CELLS.get(unit))) is not None:
            _override(panel, column, decimals=digits)
    for column, pixels in NARROW.items():
        if column in named:
            _override(panel, column, **{"custom.width": pixels})
    for column, pixels in WIDE_COLUMNS.items():
        if column in shown:
            _override(panel, column, **{"custom.minWidth": pixels})


def _absent(colour: str | None = None) -> list[ValueMap | SpecialValueMap]:
    """A cell without a value, which would say what an empty table says."""
    nowhere = (SpecialValueMatch.NULL_AND_NAN, SpecialValueMatch.EMPTY)
    return [_shown_as(match, ABSENT, colour) for match in nowhere]


def _valued(
    panel: Panel,
    values: Mapping[str, Colours],
    meanings: Mapping[str, Mapping[str, str]],
    nothing: str,
) -> None:
    """What is shown for the values of columns, and in which colours."""
    for column, texts in meanings.items():
        shown_for = {
            value: ValueMappingResult(text=text, index=at)
            for at, (value, text) in enumerate(texts.items())
        }
        numbered = [XID_NUMBER] if texts is OF_FAULTS else []
        _override(panel, column, mappings=[ValueMap(options=shown_for), *numbered, *_absent()])
    for column, colours in values.items():
        plain = {nothing: NO_COLOUR} if nothing else {}
        said = {nothing: nothing, **in_words(colours)}
        mapping = ValueMap(
            options={
                name: ValueMappingResult(text=said[name], color=colour, index=at)
                for at, (name, colour) in enumerate({**colours, **plain}.items())
            }
        )
        _override(
            panel,
            column,
            mappings=[mapping, *_absent(NO_COLOUR)],
            **{"custom.cellOptions": {"type": "color-background", "mode": "basic"}},
        )


def _panel(
    kind: str,
    title: str,
    description: str,
    queries: Sequence[Query],
    unit: str,
    needs: str,
    limit: Limit | None,
    options: object,
    custom: object,
    *,
    nothing: str = "",
    instant: bool = False,
    about: Sequence[str] = (),
) -> Panel:
    """What all panels have; ``nothing`` is what it says where it would be empty.

    It links the runbooks of the alerts that look at what it asks, or at ``about``.
    """
    asked = f"{description} Needs {needs}." if needs else description
    shown = alerts_of(*(about or (query.expression for query in queries)))
    drawn = [limit.alert] if limit and limit.alert else []
    alerts = list(dict.fromkeys([*drawn, *shown]))
    return Panel(
        type_val=kind,
        title=title,
        description=asked,
        datasource=DATASOURCE,
        targets=[*_targets(queries, instant=instant)],
        links=[
            DashboardLink(
                title=f"Runbook: {alert}",
                type_val=DashboardLinkType.LINK,
                url=runbook(alert),
                target_blank=True,
            )
            for alert in alerts
        ],
        options=options,
        field_config=FieldConfigSource(
            defaults=FieldConfig(
                unit=unit,
                no_value=nothing or (f"No data. Needs {needs}" if needs else "No data"),
                thresholds=_steps(limit),
                color=_colour(limit, instant=instant),
                mappings=[],
                custom=custom or {},
            ),
            overrides=[],
        ),
    )


def _targets(queries: Sequence[Query], *, instant: bool) -> list[prometheus.Dataquery]:
    return [
        prometheus.Dataquery(
            datasource=DATASOURCE,
            expr=query.expression,
            legend_format=query.legend or "__auto",
            ref_id=letter,
            instant=instant,
            range_val=not instant,
            editor_mode=prometheus.QueryEditorMode.CODE,
            format_val=prometheus.PromQueryFormat.TIME_SERIES,
        )
        for letter, query in zip(string.ascii_uppercase, queries, strict=False)
    ]


def _colour(limit: Limit | None, *, instant: bool) -> FieldColor:
    """Series have one each; what is shown as it is now has that of its limit."""
    return FieldColor(
        mode=FieldColorModeId.THRESHOLDS
        if limit and instant
        else FieldColorModeId.FIXED
        if instant
        else FieldColorModeId.PALETTE_CLASSIC,
        fixed_color=palette.PLAIN if instant and not limit else None,
    )


def _or_zero(query: Query, among: Query) -> Query:
    """A line at 0, whose name is nothing, where nothing is found among what there is."""
    label, *_ = re.findall(r"{{(\w+)}}", query.legend)
    named = f'{ZERO_OF}({among.expression}), "{label}", "nothing", "", "")'
    return replace(query, expression=f"({query.expression}){named}")


def _linked(query: Query, fields: Sequence[str]) -> Query:
    """A query whose answers also have these fields of ``LINKED``."""
    expression = query.expression
    for label, (field, absent) in LINKED.items():
        if field in fields:
            expression = f'label_replace({expression}, "{field}", "{absent}", "", "")'
            expression = f'label_replace({expression}, "{field}", "$1", "{label}", "(.+)")'
    return replace(query, expression=expression)


def _saying(names: Mapping[str, str], links: Mapping[str, str]) -> str:
    """The label whose column says that nothing is wrong: wide enough, and it leads nowhere."""
    apt = (label for label, column in names.items() if column not in {*links, *NARROW})
    return next(apt, next(iter(names)))


def _or_says(query: Query, label: str, nothing: str, among: Query) -> Query:
    """A query that answers with a row that says so where it would find nothing."""
    row = f'{SAYS_NONE}({among.expression}), "{label}", "{nothing}", "", "")'
    return replace(query, expression=f"({query.expression}){row}")


def _unless(among: Query, others: Sequence[Query]) -> Query:
    """What there is, but only where these queries find nothing."""
    found = " or ".join(f"({query.expression})" for query in others)
    return replace(among, expression=f"({among.expression}) unless on () ({found})")


def _say_so(panel: Panel, among: Query | None, unless: Query | None) -> None:
    """A row of a timeline that says what the panel says where there would be none."""
    whole = unless.expression if unless else " or ".join(f"({one.expr})" for one in _queries(panel))
    (first, *_) = asked = _queries(panel)
    none = f"{NONE_OF}(({whole}){RANGE})"
    said = [(_defaults(panel).no_value, none)]
    if among:
        said = [
            (_defaults(panel).no_value, f"{none} and on () ({among.expression})"),
            (among.legend, f"{NONE_OF}(({among.expression}){RANGE})"),
        ]
    for number, (text, expression) in enumerate(said, start=len(asked)):
        row = copy(first)
        row.expr, row.ref_id, row.legend_format = expression, string.ascii_uppercase[number], text
        panel.targets = [*(panel.targets or []), row]


def _queries(panel: Panel) -> list[prometheus.Dataquery]:
    return [one for one in panel.targets or [] if isinstance(one, prometheus.Dataquery)]


def _defaults(panel: Panel) -> FieldConfig:
    if panel.field_config is None or panel.field_config.defaults is None:
        raise LookupError(f"{panel.title} has no defaults")
    return panel.field_config.defaults


MIN_POSITIVE = 1e-9
"""What is more than zero, where zero is the limit."""


def _steps(limit: Limit | None) -> ThresholdsConfig:
    """Beyond the limit there is one colour; what is absent has that of what is not."""
    absolute = ThresholdsMode.ABSOLUTE
    if limit is None:
        return ThresholdsConfig(mode=absolute, steps=[Threshold(value=None, color=palette.PLAIN)])
    below, above = (
        (palette.PLAIN, palette.LIMIT)
        if limit.comparison == ">"
        else (palette.LIMIT, palette.PLAIN)
    )
    return ThresholdsConfig(
        mode=absolute,
        steps=[
            Threshold(value=None, color=below),
            # Grafana's step includes its value, and nothing is not more than nothing.
            Threshold(value=limit.threshold or MIN_POSITIVE, color=above),
        ],
    )


def _named(names: Colours) -> ValueMap:
    """Numbers by the names that ``numbered`` counted; a row that says something has no colour."""
    said = in_words(names)
    return ValueMap(
        options={
            str(number): ValueMappingResult(text=said[name], color=colour, index=number)
            for number, (name, colour) in enumerate(names.items())
        }
        | {"-1": ValueMappingResult(text=NO_WORD, color=NO_COLOUR)}
    )


def _shown_as(match: SpecialValueMatch, text: str, colour: str | None = None) -> SpecialValueMap:
    """What is shown for what is absent."""
    return SpecialValueMap(
        options=DashboardSpecialValueMapOptions(
            match=match, result=ValueMappingResult(text=text, color=colour)
        )
    )


def _coloured(panel: Panel, colours: Colours) -> None:
    """Series in their fixed colours, by their names."""
    said = in_words(colours)
    for name, colour in colours.items():
        fixed: dict[str, Any] = {"mode": "fixed", "fixedColor": colour}
        called = {} if said[name] == name else {"displayName": said[name]}
        _override(panel, name, color=fixed, **called)


def _override(panel: Panel, name: str, **properties: object) -> None:
    if panel.field_config is None:
        raise LookupError(f"{panel.title} has no fields")
    panel.field_config.overrides = [
        *(panel.field_config.overrides or []),
        DashboardFieldConfigSourceOverrides(
            matcher=MatcherConfig(id_val="byName", options=name),
            properties=[
                DynamicConfigValue(id_val=one, value=value) for one, value in properties.items()
            ],
        ),
    ]
