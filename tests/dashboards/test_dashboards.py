"""The dashboards: what is committed is what is generated, and it keeps to what Grafana expects."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from dashboards import FOLDER, runbooks
from dashboards.boards import BOARDS
from dashboards.generate import files
from dashboards.panels import DECIMALS, NO_ANSWER, NONE_OF, SHARE, UNSEEN, WHOLE_FLEET
from dashboards.promql import NO_NAMESPACE
from dashboards.queries import METRIC
from dashboards.rules import DECLARED, alerts, labels_of, limit, records, threshold
from dashboards.rules import FOLDER as RULES
from dashboards.variables import RANKED
from gpunode.driver.driver import UNITS
from gpunode.export import palette
from tests.daemon import free_port
from tests.dashboards.queries import (
    ANSWERED,
    ASK_FOR_FAULTS,
    CHOSEN,
    EMPTY,
    TAPES,
    WALK,
    answers,
    ask,
    faults,
    filled,
    scraped,
    walked,
)
from tests.dashboards.tables import lost
from tests.needs import need

ROOT = Path(__file__).parents[2]
Content = dict[str, Any]

LOADED: dict[str, Content] = {
    path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))
}
CORE = {"timeseries", "stat", "bargauge", "table", "state-timeline", "heatmap", "row"}
"""Panels of Grafana 10 to 13 that are not a plugin, as far as they are used."""

ABOUT = {
    "gpunode-job": {"job", "user"},
    "gpunode-serving": {"job"},
    "gpunode-node": {"node"},
    "gpunode-host": {"node"},
    "gpunode-gpu": {"cluster", "node", "gpu"},
}
"""The variables that do not offer all, because the dashboard is about one or a few."""

OTHER_LABELS = {
    "ALERTS": {"alertname", "alertstate"},
    "ALERTS_FOR_STATE": {"alertname"},
    "process_cpu_seconds_total": {"cluster", "instance", "job"},
    "process_resident_memory_bytes": {"cluster", "instance", "job"},
}
LABELS_OF_ALERTS = {
    *("cluster", "severity", "group", "instance", "gpu", "uuid", "owner_namespace"),
    *("workload", "replica", "user", "node", "part", "name"),
}

each = pytest.mark.parametrize("uid", LOADED)


def panels(content: Content) -> list[Content]:
    return [panel for panel in content["panels"] if panel["type"] != "row"]


def expressions(content: Content) -> Iterator[str]:
    for panel in panels(content):
        for target in panel["targets"]:
            yield target["expr"]
    for annotation in content["annotations"]["list"]:
        yield annotation["expr"]


def variables(content: Content) -> dict[str, Content]:
    return {variable["name"]: variable for variable in content["templating"]["list"]}


def test_what_is_committed_is_what_is_generated() -> None:
    written = {path: path.read_text() for path in FOLDER.iterdir()}
    assert written == files(), "run: make dashboards"


def test_each_unit_of_a_gpu_that_a_panel_asks_for_is_exported() -> None:
    asked = {
        unit
        for content in LOADED.values()
        for expression in expressions(content)
        for unit in re.findall(r'unit="(\w+)"', expression)
    }
    assert "dram" in asked
    assert asked <= set(UNITS)


def test_the_sdk_is_one_of_every_grafana() -> None:
    """pip would take an epoch release, which is of one old Grafana."""
    named = "grafana-foundation-sdk"
    installed = version(named).removeprefix("v")
    assert installed.startswith("0.")
    asked = {one.partition(";")[0].strip() for one in requires("gpunode") or ()}
    assert {one for one in asked if one.startswith(named)} == {f"{named}=={installed}"}


def test_there_are_eight() -> None:
    about = ("fleet", "job", "serving", "node", "host", "gpu", "health", "capacity")
    assert [board.uid for board in BOARDS] == [f"gpunode-{name}" for name in about]


@each
def test_a_dashboard_has_what_identifies_it(uid: str) -> None:
    content = LOADED[uid]
    assert content["uid"] == uid
    assert content["title"]
    assert content["description"].endswith("?")
    assert content["tags"] == ["gpunode"]
    assert content["editable"] is False
    assert content["version"] >= 1
    assert content["schemaVersion"] == 38
    assert content["graphTooltip"] == 1, "the crosshair is shared"
    assert "id" not in content


@each
def test_a_dashboard_is_small_enough_to_load_at_once(uid: str) -> None:
    assert len(panels(LOADED[uid])) <= 40
    assert sum(len(panel["targets"]) for panel in panels(LOADED[uid])) <= 60


@each
def test_every_panel_says_what_it_answers(uid: str) -> None:
    for panel in LOADED[uid]["panels"]:
        assert panel["type"] in CORE
        assert panel["title"]
        if panel["type"] == "row":
            continue
        assert re.search(r"[?]|Needs", panel["description"]), panel["title"]
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"], panel["title"]
        assert defaults["noValue"], panel["title"]
        assert defaults["thresholds"]["steps"], panel["title"]
        if "Needs" in panel["description"]:
            unseen = [
                one["options"].get(UNSEEN, {}).get("text", "") for one in defaults["mappings"]
            ]
            says = " ".join((defaults["noValue"], *unseen))
            assert re.search("eeds|known|to see this|No GPU is seen|No such", says), panel["title"]
        if panel["type"] in ("timeseries", "state-timeline"):
            assert panel["options"]["legend"]["showLegend"] is True, panel["title"]
        if panel["type"] in ("timeseries", "state-timeline", "heatmap"):
            assert panel["options"]["tooltip"]["mode"] != "none", panel["title"]


@each
def test_a_title_is_there_once(uid: str) -> None:
    titles = [panel["title"] for panel in panels(LOADED[uid])]
    assert sorted(set(titles)) == sorted(titles)


@each
def test_every_query_is_sent_to_the_chosen_data_source(uid: str) -> None:
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels(LOADED[uid]):
        assert panel["datasource"] == chosen
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == list("ABCDEFGHIJ"[: len(letters)])
        assert letters
        for target in panel["targets"]:
            assert target["datasource"] == chosen
            assert target["instant"] is not target["range"]
    for annotation in LOADED[uid]["annotations"]["list"]:
        assert annotation["datasource"] == chosen


@each
def test_panels_have_numbers_and_do_not_overlap(uid: str) -> None:
    numbers = [panel["id"] for panel in LOADED[uid]["panels"]]
    assert numbers == list(range(1, len(numbers) + 1))
    taken: set[tuple[int, int]] = set()
    for panel in LOADED[uid]["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (place["x"] + right, place["y"] + down)
            for right in range(place["w"])
            for down in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


LAPTOP = 14
DESKTOP = 19
"""Rows of the grid that Grafana's bars and the variables leave, at 1280x720 and 1600x900."""

SHORT = 5
"""Rows of a table's title, its header and the three lines that matter most."""

ANSWERS = {
    "gpunode-fleet": ("Main cause", "What holds GPUs up", "Jobs that lose most", "Firing alerts"),
    "gpunode-job": (
        "The odd one out",
        "What to do",
        "Stands still",
        "Who differs, and how",
        "Ranks by verdict",
    ),
    "gpunode-serving": ("1st token late", "Stands still", "Requests", "Time to the first token"),
    "gpunode-node": (
        "What holds each GPU up",
        "Compute: GPUs by state",
        "I/O: pressure",
        "Communication: GPUs wait or move data",
    ),
    "gpunode-host": ("CPU time by mode", "Busiest core", "Tasks", "Context switches"),
    "gpunode-gpu": ("Useful", "What holds the GPU up", "Ledger", "Roofline"),
    "gpunode-health": ("Faulty GPUs", "Faults of GPUs", "Faults of nodes"),
    "gpunode-capacity": ("Useful", "Cost of lost hours ($currency)", "GPU hours a day, by state"),
}
"""The panels for which one opens a dashboard."""

GRAPHS_BESIDE_TABLES = ("Ranks by verdict",)
"""They say over time what the first screen of a laptop says of now."""


COLUMN = 52
"""Pixels of a column of the grid at both sizes; at the larger, the menu takes the rest."""

ICON = 37
"""Pixels of the icons beside a title: that of the description, and that of links."""

MARGIN = 36

LETTERS = {**dict.fromkeys(" .,:/-()ijl", 4.0), **dict.fromkeys("frt", 5.2)}
CAPITAL, LETTER = 9.8, 7.4
"""Pixels of the letters of a title."""


def width(title: str) -> float:
    """The pixels that a title takes."""
    wide = (LETTERS.get(one, CAPITAL if one.isupper() else LETTER) for one in title)
    return sum(wide)


BESIDE_COLUMNS = 22
"""Pixels of a table's panel that its columns do not have."""


@each
def test_columns_fit_into_their_table(uid: str) -> None:
    """Columns that are too many or too wide would be cut off at the right."""
    for panel in panels(LOADED[uid]):
        if panel["type"] != "table":
            continue
        (arranged,) = (one for one in panel["transformations"] if one["id"] == "organize")
        columns: dict[str, Content] = {
            name: {} for name in arranged["options"]["renameByName"].values()
        }
        for override in panel["fieldConfig"]["overrides"]:
            own = {one["id"]: one["value"] for one in override["properties"]}
            columns[override["matcher"]["options"]].update(own)
        seen = [own for own in columns.values() if not own.get("custom.hidden")]
        least = panel["fieldConfig"]["defaults"]["custom"]["minWidth"]
        wide = sum(
            max(own.get("custom.width", 0), own.get("custom.minWidth", least)) for own in seen
        )
        assert wide <= panel["gridPos"]["w"] * COLUMN - BESIDE_COLUMNS, panel["title"]
        sorting = {one["displayName"] for one in panel["options"]["sortBy"]}
        assert sorting <= columns.keys(), panel["title"]


@each
def test_titles_are_seen_whole(uid: str) -> None:
    for panel in panels(LOADED[uid]):
        icons = ICON * (1 + bool(panel["links"]))
        room = panel["gridPos"]["w"] * COLUMN - MARGIN - icons
        title = panel["title"].replace("$currency", "USD")
        assert width(title) <= room, title


LEGEND = 12 / 14
"""The size of the letters of a legend, by those of a title."""

OF_LEGEND = {"lastNotNull": 121.0, "max": 58.0}
"""Pixels of a figure of a legend with its margins, of the first with those of the name."""

IN_LEGEND = {
    "instance": "gpu-05",
    "gpu": "0",
    "pid": "31021",
    "link": "11",
    "direction": "received",
    "disk": "nvme0n1",
    "filesystem": "scratch",
    "mountpoint": "/data",
    "operation": "READ",
    "resource": "memory",
    "kind": "",
    "reason": "",
    "priority": "3",
    "port": "1",
    "workload": "segmenter",
    "collective": "AllReduce",
    "between": "nodes",
}
"""What labels say, as far as a name is seen whole; others are as long as their names."""


@each
def test_the_figures_of_a_legend_are_seen(uid: str) -> None:
    for panel in panels(LOADED[uid]):
        if panel["type"] != "timeseries":
            continue
        figures = sum(OF_LEGEND[one] for one in panel["options"]["legend"]["calcs"])
        for target in panel["targets"]:
            name = re.sub(
                r"\{\{(\w+)\}\}",
                lambda label: IN_LEGEND.get(label[1], label[1]),
                target["legendFormat"],
            )
            room = panel["gridPos"]["w"] * COLUMN - 16 - figures
            assert width(name) * LEGEND <= room, (panel["title"], name)


@each
def test_what_one_opens_a_dashboard_for_is_seen_without_scrolling(uid: str) -> None:
    placed = {panel["title"]: panel for panel in panels(LOADED[uid])}
    for title in ANSWERS[uid]:
        at, table = placed[title]["gridPos"], placed[title]["type"] == "table"
        rows = DESKTOP if title in GRAPHS_BESIDE_TABLES else LAPTOP
        assert at["y"] + (min(SHORT, at["h"]) if table else at["h"]) <= rows, title


RAW_ALLOWED = {
    "gpunode_client_messages_total": "a counter of each exporter",
    "gpunode_web_config_last_reload_success": "of exporters with such a file",
}
"""What graphs of a fleet ask for that is not recorded, and why it may be asked for."""


@pytest.mark.parametrize("uid", ["gpunode-fleet", "gpunode-health", "gpunode-capacity"])
def test_graphs_of_a_fleet_ask_for_what_is_recorded(uid: str) -> None:
    """A graph of 500 points that asks for 10,000 GPUs, or ports, at each takes seconds."""
    asked = {
        found[1]
        for panel in panels(LOADED[uid])
        for target in panel["targets"]
        if target["range"]
        for found in METRIC.finditer(target["expr"])
    }
    raw = {name for name in asked if ":" not in name}
    assert raw <= RAW_ALLOWED.keys()


def test_the_fleet_is_seen_without_scrolling() -> None:
    heading = next(panel for panel in LOADED["gpunode-fleet"]["panels"] if panel["type"] == "row")
    assert heading["gridPos"]["y"] <= DESKTOP


def test_the_node_has_three_columns_below_the_verdicts() -> None:
    content = LOADED["gpunode-node"]
    first, *others = panels(content)
    assert (first["type"], first["gridPos"]["w"]) == ("state-timeline", 24)
    columns = {"Compute": 0, "I/O": 8, "Communication": 16}
    of_column = [panel for panel in others if panel["title"].partition(":")[0] in columns]
    graphs = [panel for panel in of_column if panel["type"] == "timeseries"]
    assert len(graphs) >= 3 * 9
    for panel in graphs:
        assert panel["gridPos"]["x"] == columns[panel["title"].partition(":")[0]]
        assert panel["gridPos"]["w"] == 8


@each
def test_variables_select_any_number(uid: str) -> None:
    found = variables(LOADED[uid])
    assert next(iter(found)) == "datasource"
    for name, variable in found.items():
        if variable["type"] != "query":
            assert name in ("datasource", "price", "currency", "budget")
            continue
        assert variable["multi"] is True
        assert variable["refresh"] == 2, "on a change of the time range"
        ranked = variable["definition"].startswith(RANKED)
        assert ranked is (name in ("job", "node"))
        assert variable["sort"] == (0 if ranked else 3 if name == "gpu" else 1)
        assert variable["definition"] == variable["query"]["query"]
        assert re.match(
            r"label_values\((gpunode_gpu_info|gpu:gpunode_owner:info)[{,]|"
            r"query_result\(.*\((gpunode_gpu_info|gpu:gpunode_owner:info)\{",
            variable["definition"],
        )
        whole = name not in ABOUT.get(uid, set())
        assert variable["includeAll"] is whole, name
        if whole and name != "hosts":
            assert variable["allValue"] == ".*"


OF_NONE = ("No such ", "No GPU ", "No data")


@each
def test_nothing_is_wrong_only_where_there_is_something(uid: str) -> None:
    """They say that nothing is wrong by a series, never by the lack of one.

    The text for an empty table stands beside the mark of a query that failed, too.
    """
    for panel in panels(LOADED[uid]):
        if panel["type"] in ("table", "timeseries", "bargauge", "heatmap"):
            assert panel["fieldConfig"]["defaults"]["noValue"].startswith("No data"), panel["title"]
        if panel["type"] == "stat":
            nothing = panel["fieldConfig"]["defaults"]["noValue"]
            assert nothing.startswith((NO_ANSWER, *OF_NONE, "Needs ", "set a ")), panel["title"]
            says = "vector(-1)" in json.dumps(panel["targets"])
            assert says is (nothing == NO_ANSWER), panel["title"]
        if panel["type"] == "state-timeline":
            *_, last = panel["targets"]
            text = last["legendFormat"]
            assert text.startswith(("Not running", *OF_NONE)), (panel["title"], text)
            assert panel["fieldConfig"]["defaults"]["noValue"].startswith((NO_ANSWER, "No data"))
            mapping, absent = panel["fieldConfig"]["defaults"]["mappings"]
            before = absent["options"]
            assert (before["match"], before["result"]["text"]) == ("null+nan", ""), "no legend"
            said = mapping["options"]["-1"]
            shown = (said["text"], said["color"])
            assert shown == ("\N{NO-BREAK SPACE}", "transparent"), "no band, and a legend unseen"


@each
def test_what_is_absent_has_no_colour_of_a_limit(uid: str) -> None:
    for panel in panels(LOADED[uid]):
        if panel["type"] == "stat":
            defaults = panel["fieldConfig"]["defaults"]
            of_little = defaults["thresholds"]["steps"][0]["color"]
            absent = [
                one["options"]["result"]["color"]
                for one in defaults["mappings"]
                if one["type"] == "special" and one["options"]["match"] == "null+nan"
            ]
            assert [*absent, of_little][0] != palette.LIMIT, panel["title"]


@each
def test_figures_and_legends_have_the_decimals_of_their_unit(uid: str) -> None:
    """By itself Grafana shows 0.9997 as 1.000 beside 1.003 as 1.00."""
    for panel in panels(LOADED[uid]):
        if panel["type"] == "stat" and panel["fieldConfig"]["defaults"]["unit"] in DECIMALS:
            assert "decimals" in panel["fieldConfig"]["defaults"], panel["title"]
        if panel["type"] == "timeseries" and panel["fieldConfig"]["defaults"]["unit"] == SHARE:
            assert panel["fieldConfig"]["defaults"]["decimals"] == DECIMALS[SHARE], panel["title"]
        if panel["type"] == "table":
            columns: dict[str, Content] = defaultdict(dict)
            for override in panel["fieldConfig"]["overrides"]:
                given = {one["id"]: one["value"] for one in override["properties"]}
                columns[override["matcher"]["options"]].update(given)
            for column, given in columns.items():
                assert given.get("unit") not in DECIMALS or "decimals" in given, column


@each
def test_queries_use_the_variables_that_there_are(uid: str) -> None:
    known = set(variables(LOADED[uid]))
    asked = " ".join(
        [
            *expressions(LOADED[uid]),
            *(v["definition"] for v in variables(LOADED[uid]).values() if v["type"] == "query"),
            *(panel["title"] for panel in panels(LOADED[uid])),
        ]
    )
    used = {name for name in re.findall(r"\$\{?([a-z]\w*)", asked) if not name.startswith("__")}
    assert used <= known
    assert known - {"datasource"} <= used


SELECTING = {
    "namespace": "${namespace:pipe}",
    **{name: f"${name}" for name in ("cluster", "job", "node", "gpu")},
}
OF_NO_GPU = ("I/O: ", "Communication: ", "Compute: CPU cores", *("Lustre", "GPUDirect", "Stalled"))
"""How titles of panels of the node's dashboard begin that may be about its host, not its GPUs."""


@each
def test_a_panel_follows_what_is_chosen_or_says_that_it_does_not(uid: str) -> None:
    """A lead who reads the price of the whole fleet as that of his namespace is misled."""
    seen = {name: one for name, one in variables(LOADED[uid]).items() if one["hide"] != 2}
    chosen = {name for name, variable in seen.items() if variable["type"] == "query"}
    for panel in panels(LOADED[uid]):
        ignored = {
            name
            for name in chosen
            for target in panel["targets"]
            if SELECTING[name] not in target["expr"]
        }
        if uid == "gpunode-node" and panel["title"].startswith(OF_NO_GPU):
            ignored -= {"gpu"}
        if panel["title"] == "Jobs of the same owner":
            ignored -= {"job"}
        narrower = {"gpunode-health": {"node"}}.get(uid, {"namespace"})
        whole = WHOLE_FLEET in panel["title"]
        assert ignored == (narrower if whole else set()), panel["title"]


def test_what_is_handed_on_to_a_job_narrows_no_part_of_its_dashboard() -> None:
    """Links to other dashboards hand variables on by name, as Node does the chosen node."""
    found = variables(LOADED["gpunode-job"])
    hidden = {name for name, variable in found.items() if variable["hide"] == 2}
    assert hidden == {"hosts", "user"}
    for uid, content in LOADED.items():
        assert uid == "gpunode-job" or not hidden & set(variables(content))


@each
def test_every_query_is_promql(uid: str) -> None:
    for expression in expressions(LOADED[uid]):
        promql_parser.parse(filled(expression))


@each
def test_what_is_chosen_is_quoted_as_promql_needs_it(uid: str) -> None:
    """By the data source, which knows how: ``:regex`` puts one backslash where PromQL needs two.

    A namespace is a regular expression already, also that of jobs without one.
    """
    none = {**CHOSEN, "${namespace:pipe}": NO_NAMESPACE}
    for expression in expressions(LOADED[uid]):
        assert set(re.findall(r"\$\{\w+:\w+\}", expression)) <= {"${namespace:pipe}"}
        promql_parser.parse(filled(expression, none))


@each
def test_rates_look_back_as_far_as_the_graph_asks(uid: str) -> None:
    for expression in expressions(LOADED[uid]):
        for window in re.findall(r"\b(?:rate|irate)\([^\[]*\[([^\]]+)\]", expression):
            assert window == "$__rate_interval", expression
        for window in re.findall(r"\bincrease\([^\[]*\[([^\]]+)\]", expression):
            assert window in ("15m", "1h"), "its panel says so"
        assert "$__interval" not in expression


def kept_labels(node: Any) -> set[str]:
    """The labels that a sum, or what is made of one, keeps apart."""
    if isinstance(node, promql_parser.AggregateExpr):
        return set(node.modifier.labels) if node.modifier else set()
    if isinstance(node, promql_parser.BinaryExpr):
        return kept_labels(node.lhs)
    if isinstance(node, promql_parser.Call):
        return set().union(*(kept_labels(argument) for argument in node.args)) - {"le"}
    return kept_labels(node.expr) if hasattr(node, "expr") else set()


OF_ONE = {"cluster", "owner_namespace", "user", "replica", "uuid", "rank"}
"""Labels that other labels in the name of a line stand for."""


@each
def test_lines_of_one_query_have_names_of_their_own(uid: str) -> None:
    one_gpu = {"instance", "gpu"} if uid == "gpunode-gpu" else set[str]()
    for panel in panels(LOADED[uid]):
        for target in panel["targets"]:
            if target["range"] and panel["type"] != "heatmap":
                named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                labels = kept_labels(promql_parser.parse(filled(target["expr"])))
                assert labels - OF_ONE - one_gpu <= named, panel["title"]


KEPT_BY_HARDWARE = {
    ("gpunode-gpu", "NVLinks with errors"),
    ("gpunode-health", "Uncorrected ECC errors"),
    ("gpunode-health", "Remapped rows"),
}
"""Panels of counts that a GPU itself keeps for its life, or since its driver was loaded."""


@each
def test_a_counter_is_shown_as_what_it_gains(uid: str) -> None:
    bare = {
        (uid, panel["title"])
        for panel in panels(LOADED[uid])
        for target in panel["targets"]
        if any(counters(promql_parser.parse(filled(target["expr"]))))
    }
    assert bare == {one for one in KEPT_BY_HARDWARE if one[0] == uid}


def counters(node: Any) -> Iterator[str]:
    """The counters of which an expression has the values."""
    if isinstance(node, promql_parser.VectorSelector):
        metric = DECLARED.get(node.name or "")
        if metric is not None and metric.kind == "counter":
            yield metric.name
    elif isinstance(node, promql_parser.BinaryExpr):
        yield from counters(node.lhs)
        yield from counters(node.rhs)
    elif isinstance(node, promql_parser.Call):
        for argument in node.args:  # a range is what a rate or an increase takes
            yield from counters(argument)
    elif hasattr(node, "expr"):
        yield from counters(node.expr)


@each
def test_every_metric_and_label_exists(uid: str) -> None:
    for expression in expressions(LOADED[uid]):
        for name, matched in selectors(filled(expression)):
            known = OTHER_LABELS.get(name)
            if known is None:
                labels = labels_of(name)
                known = {*labels, "le"} if name.endswith("_bucket") else set(labels)
            elif name.startswith("ALERTS"):
                known |= LABELS_OF_ALERTS
            if name.startswith("cluster:"):
                known = known | {"owner_namespace"}  # it has none, which one may choose
            assert matched <= known, expression


def selectors(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Every metric of an expression, and the labels by which it is narrowed."""
    for name, matchers in re.findall(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}", expression):
        yield name, set(re.findall(r'(\w+)(?:=~|!~|!=|=)"', matchers))
    for found in METRIC.finditer(re.sub(r'"[^"]*"', '""', expression)):
        yield found[1], set()


def test_a_metric_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(KeyError):
        labels_of("gpunode_gpu_happiness_ratio")


OF_A_RUN = "from=${__data.fields['from']}&to=${__data.fields['to']}&"
"""The time of a link to a run."""


@each
def test_links_lead_to_dashboards_with_the_variables_they_have(uid: str) -> None:
    text = json.dumps(LOADED[uid])
    for target, query in re.findall(r"/d/([\w-]+)\?([^\"]*?)(?:\"|$)", text.replace('\\"', "'")):
        assert set(re.findall(r"var-(\w+)=", query)) <= set(variables(LOADED[target]))
        assert "${__url_time_range}" in query or query.startswith(OF_A_RUN)
        assert "${datasource:queryparam}" in query
    (others,) = LOADED[uid]["links"]
    assert (others["type"], others["tags"]) == ("dashboards", ["gpunode"])
    assert others["includeVars"] is True
    assert others["keepTime"] is True


def test_one_goes_from_the_fleet_to_a_job_a_node_and_a_gpu() -> None:
    def leads(uid: str) -> set[str]:
        return set(re.findall(r"/d/([\w-]+)", json.dumps(LOADED[uid])))

    assert leads("gpunode-fleet") >= {"gpunode-job", "gpunode-node"}
    assert leads("gpunode-job") >= {"gpunode-node", "gpunode-gpu"}
    assert leads("gpunode-node") >= {"gpunode-job", "gpunode-gpu"}
    assert leads("gpunode-health") >= {"gpunode-node", "gpunode-gpu"}


TOLD_IN_WORDS: Mapping[str, str] = {
    "JobIdle": "of time without work, which the states of the job's GPUs show",
    "JobCrashLoops": "of attempts that have ended; Job shows the present one",
    "ServingStopped": "of engines that are gone; Serving shows those that are there",
    "GpuLedgerBlind": "Health lists GPUs without a ledger, of what many alerts look at",
    "GpuLemon": "of faults that are over; the dashboard of the GPU has those of the time shown",
    "GpunodeCertificateExpires": "the alert says the day",
    "GpunodeThresholdsMissing": "of the rules' own files",
}
"""Alerts of which no panel shows what they look at, and why."""


def test_each_alert_has_a_panel_that_shows_what_it_looks_at() -> None:
    asked = {
        re.sub("_(bucket|count|sum)$", "", found[1])
        for content in LOADED.values()
        for expression in expressions(content)
        for found in METRIC.finditer(expression)
    }
    shown = {alert for name, of in runbooks.looked_at().items() if name in asked for alert in of}
    linked = re.findall(r'"Runbook: (\w+)"', json.dumps(LOADED))
    assert {one.name for one in alerts()} - shown - {*linked} == TOLD_IN_WORDS.keys()


def test_alerts_lead_to_dashboards_with_the_variables_they_have() -> None:
    for name, address in dashboards_of_alerts():
        found = re.fullmatch(r"/d/([\w-]+)\??(.*)", re.sub(r"\{\{.*?\}\}", "", address))
        assert found, name
        assert set(re.findall(r"var-(\w+)=", found[2])) <= set(variables(LOADED[found[1]])), name


def dashboards_of_alerts() -> Iterator[tuple[str, str]]:
    """Where alerts lead."""
    for path in RULES.glob("*.yaml"):
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                if "dashboard" in rule.get("annotations", {}):
                    yield rule["alert"], rule["annotations"]["dashboard"]


def test_lines_are_those_of_the_rules() -> None:
    assert limit("JobStalled").threshold == threshold("stalled_seconds")
    drawn = {panel["title"]: panel for panel in panels(LOADED["gpunode-job"])}
    _, line = drawn["Stands still"]["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert line["value"] == threshold("stalled_seconds")
    with pytest.raises(LookupError, match="no alert NoSuchAlert"):
        limit("NoSuchAlert")


def test_a_record_has_the_labels_that_its_expression_keeps() -> None:
    assert labels_of("gpu:gpunode_rank:held_up") == {
        *("cluster", "instance", "gpu", "uuid", "owner_namespace", "workload", "replica", "user"),
        *("rank", "cause"),
    }
    assert labels_of("filesystem:gpunode_lustre_read:rate5m") == {"cluster", "filesystem"}
    for name in records():
        assert "cluster" in labels_of(name), name


@each
def test_runbooks_to_which_panels_lead_exist(uid: str) -> None:
    for panel in panels(LOADED[uid]):
        for link in panel["links"]:
            name = link["url"].removeprefix(f"{runbooks.RUNBOOKS}/")
            assert (ROOT / "alerts" / "runbooks" / name).exists()


def test_panels_lead_to_the_runbooks_of_what_they_show() -> None:
    """By the series that an alert looks at; what many alerts look at is about none of them."""
    found = {
        (uid, panel["title"]): [link["title"] for link in panel["links"]]
        for uid, content in LOADED.items()
        for panel in panels(content)
    }
    assert found["gpunode-fleet", "Jobs that stand still"] == ["Runbook: JobStalled"]
    assert found["gpunode-health", "Kernel log"] == ["Runbook: KernelComplains"]
    assert found["gpunode-fleet", "GPUs by state"] == []
    assert found["gpunode-gpu", "Owners"] == []
    assert max(map(len, found.values())) <= runbooks.LIMIT


def test_a_condition_is_not_what_a_panel_shows() -> None:
    stalled = "job:gpunode_stalled:seconds"
    assert runbooks.alerts_of(f"max by (cluster) ({stalled})") == ["JobStalled"]
    assert runbooks.alerts_of(f"gpunode_gpu_power_watts and on (cluster) {stalled} > 80") == []


@each
def test_alerts_are_shown_on_the_graphs(uid: str) -> None:
    found = LOADED[uid]["annotations"]["list"]
    assert [one["name"] for one in found] == ["pages", "tickets"]
    assert all('ALERTS{alertstate="firing"}' in one["expr"] for one in found)


def test_what_cannot_find_anything_is_on_a_dashboard() -> None:
    there = {
        (uid, panel["title"], target["refId"])
        for uid, content in LOADED.items()
        for panel in content["panels"]
        for target in panel.get("targets", ())
    }
    assert EMPTY.keys() <= there


def test_the_folder_that_is_mounted_names_where_the_dashboards_are() -> None:
    (provider,) = yaml.safe_load((FOLDER.parent / "provisioning" / "gpunode.yaml").read_text())[
        "providers"
    ]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards/gpunode"
    assert provider["allowUiUpdates"] is False


@pytest.mark.integration
def test_queries_find_what_they_look_for_and_incidents_cross_the_lines_of_their_panels() -> None:
    """A real Prometheus, the shipped rules, recorded incidents and the examples of every rule."""
    need("prometheus")
    with scraped(TAPES, free_port()) as prometheus:

        def wrong() -> dict[str, object]:
            found: dict[str, object] = dict.fromkeys(faults(list(answers(prometheus))), "")
            for incident, (cause, crossed) in WALK.items():
                causes, seen = walked(prometheus, incident)
                if seen != crossed or (cause and cause not in causes):
                    found[incident] = (causes, seen)
            return found

        give_up = time.monotonic() + 150  # the rules must fill their windows
        while (left := wrong()) and time.monotonic() < give_up:
            time.sleep(5)
        assert left == {}
        for uid in ASK_FOR_FAULTS:
            found = list(answers(prometheus, uid=uid))
            assert sum(bool(one.series) for one in found) >= ANSWERED * len(found)
        assert lost(prometheus) == []
        assert [*before_the_first_sample(prometheus)] == []
        for uid, name in (("gpunode-job", "job"), ("gpunode-node", "node")):
            first, *_, last = offered(prometheus, uid, name)
            assert first > last, "it opens on the worst"
        assert set(said(prometheus, {**CHOSEN, "$job": "no-such-job"})) == {"Not running"}
        assert "Not running" not in said(prometheus, CHOSEN)


def before_the_first_sample(prometheus: str) -> Iterator[tuple[str, str]]:
    """What verdicts show beside the rows of GPUs, in a range that begins before there were any."""
    for uid in ("gpunode-node", "gpunode-gpu"):
        for panel in panels(LOADED[uid]):
            if panel["title"].startswith("What holds"):
                for target in panel["targets"]:
                    if target["expr"].startswith(NONE_OF):
                        found = ask(prometheus, filled(target["expr"]), False, since=3600)
                        for row in found["data"]["result"]:
                            yield panel["title"], str(row["values"])


def offered(prometheus: str, uid: str, name: str) -> list[float]:
    """By what a variable puts its values in order, as it offers them."""
    query = variables(LOADED[uid])[name]["definition"].removeprefix("query_result(")[:-1]
    found = ask(prometheus, filled(query), True)["data"]["result"]
    return [float(one["value"][1]) for one in found]


def said(prometheus: str, chosen: Mapping[str, str]) -> Iterator[str]:
    """What those panels of the job say now that tell that nothing is wrong."""
    for panel in panels(LOADED["gpunode-job"]):
        if panel["title"] in ("Stands still", "Main cause"):
            (target,) = panel["targets"]
            (mapping,) = panel["fieldConfig"]["defaults"]["mappings"]
            (found,) = ask(prometheus, filled(target["expr"], chosen), True)["data"]["result"]
            unseen = found["value"][1] == UNSEEN
            named = mapping["options"][UNSEEN]["text"].strip() or found["metric"].get("cause")
            yield named if unseen else "something"
        if panel["title"] == "Waited for":
            for target in panel["targets"]:
                found = ask(prometheus, filled(target["expr"], chosen), True)["data"]["result"]
                if found:
                    yield target["legendFormat"]
