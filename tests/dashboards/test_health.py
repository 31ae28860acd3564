"""The dashboard of what is broken: it says that nothing is only where no column has anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dashboards import FOLDER
from dashboards.panels import SAYS_NONE
from tests.alerts.rule_tests import with_labels
from tests.dashboards.queries import CHOSEN, filled
from tests.dashboards.test_runs import Found, promtool

PANELS: Mapping[str, Any] = {
    panel["title"]: panel
    for panel in json.loads((FOLDER / "gpunode-health.json").read_text())["panels"]
}
NODE = {"cluster": "c", "instance": "n"}
GPU = {**NODE, "gpu": "0", "uuid": "GPU-a"}
WATCHED = {with_labels("node:gpunode_exporter:up", NODE): "1x100"}

ALONE = {
    "Remapped rows": with_labels("gpu:gpunode_gpu_row_remap_failed:max", GPU),
    "NVLink": with_labels("gpunode_gpu_c2c_errors_total", {**GPU, "kind": "crc"}),
    "Ports": with_labels("node:gpunode_rdma:errors", {**NODE, "device": "mlx5_0", "port": "1"}),
    "Not understood or left out": with_labels(
        "node:gpunode_refused:increase1h", {**NODE, "source": "pods", "what": "pod"}
    ),
}
"""What only a later column of a table has."""


@pytest.mark.parametrize("title", ALONE)
@pytest.mark.parametrize("broken", [True, False])
def test_nothing_is_wrong_only_if_no_column_has_anything(
    title: str, broken: bool, tmp_path: Path
) -> None:
    first, *others = (filled(one["expr"], CHOSEN) for one in PANELS[title]["targets"])
    assert SAYS_NONE in first
    rows: Found = [({}, 1.0)]
    given = {**WATCHED, **({ALONE[title]: "1+1x100"} if broken else {})}
    told = promtool(
        tmp_path,
        given,
        60,
        {
            f"count ({first})": [] if broken else rows,
            f"count ({' or '.join(f'({other})' for other in others)})": rows if broken else [],
        },
    )
    assert not told, told
    assert promtool(tmp_path, {}, 60, {f"count ({first})": []}) == ""


def test_a_table_whose_columns_have_rows_of_their_own_asks_for_all_of_them() -> None:
    """The others list in each column what the first has, or a part of it."""
    several = {
        title
        for title, panel in PANELS.items()
        if panel["type"] == "table"
        and len(panel["targets"]) > 1
        and SAYS_NONE in panel["targets"][0]["expr"]
    }
    assert several == ALONE.keys()


@pytest.mark.parametrize("title", ["Nodes by fault", "Slowdown", "Packets dropped"])
def test_a_graph_says_that_nothing_is_wrong_only_of_nodes_that_are_watched(
    title: str, tmp_path: Path
) -> None:
    """That other nodes of the cluster answer says nothing of those that are selected."""
    (asked,) = (filled(one["expr"], {**CHOSEN, "$node": "n"}) for one in PANELS[title]["targets"])
    of_cluster = {with_labels("cluster:gpunode_exporter:up", {"cluster": "c"}): "1x100"}
    down = {with_labels("node:gpunode_exporter:up", NODE): "0x100"}
    none: Found = [({"fault" if title == "Nodes by fault" else "instance": "none"}, 0.0)]
    assert promtool(tmp_path, {**of_cluster, **down}, 60, {asked: []}) == ""
    assert promtool(tmp_path, {**of_cluster, **WATCHED}, 60, {asked: none}) == ""
