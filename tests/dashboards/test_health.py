"""The dashboard of what is broken: it says that nothing is only where no column has anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dashboards import FOLDER
from dashboards.panels import SAYS_NONE
from tests.dashboards.promtool import Found, promtool, with_labels
from tests.dashboards.queries import CHOSEN, filled

PANELS: Mapping[str, Any] = {
    panel["title"]: panel
    for panel in json.loads((FOLDER / "gpunode-health.json").read_text())["panels"]
}
NODE = {"cluster": "c", "instance": "n"}
GPU = {**NODE, "gpu": "0", "uuid": "GPU-a"}
WATCHED = {with_labels("node:gpunode_up:max", NODE): "1x100"}

ALONE = {
    "Remapped rows": with_labels("gpunode_gpu_row_remap_failed", GPU),
    "NVLink": with_labels("gpunode_gpu_c2c_errors_total", {**GPU, "kind": "crc"}),
    "Ports": with_labels(
        "gpunode_infiniband_errors_total",
        {**NODE, "device": "mlx5_0", "port": "1", "kind": "symbol"},
    ),
    "Not understood or left out": with_labels(
        "gpunode_refused_total", {**NODE, "source": "pods", "what": "pod"}
    ),
    "Late and skipped reads": with_labels(
        "gpunode_source_skipped_reads_total", {**NODE, "source": "gpm"}
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
    later = " or ".join(f"({other})" for other in others)
    given = {**WATCHED, **({ALONE[title]: "1+5x100"} if broken else {})}
    told = promtool(
        tmp_path,
        given,
        {
            (60, f"count ({first})"): [] if broken else rows,
            (60, f"count ({later})"): rows if broken else [],
        },
    )
    assert not told, told
    assert promtool(tmp_path, {}, {(60, f"count ({first})"): []}) == ""


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
    down = {with_labels("node:gpunode_up:max", NODE): "0x100"}
    label = {"Nodes by fault": "part"}.get(title, "instance")
    none: Found = [({label: "nothing"}, 0.0)]
    assert promtool(tmp_path, down, {(60, asked): []}) == ""
    assert promtool(tmp_path, WATCHED, {(60, asked): none}) == ""
