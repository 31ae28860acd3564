"""The dashboard of a node: where nothing is recorded of its network, nothing good is drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dashboards import FOLDER
from tests.dashboards.promtool import Found, promtool, with_labels
from tests.dashboards.queries import CHOSEN, filled

NODE = {"cluster": "c", "instance": "n"}
ETH0 = {**NODE, "interface": "eth0"}
COUNTED = {
    with_labels("gpunode_network_drops_total", {**ETH0, "direction": "received"}): "7x100",
}
DROPS = {with_labels("node:gpunode_network_drops:rate5m", ETH0): "3x100"}
SEES_GPUS = {with_labels("gpunode_gpu_info", {**NODE, "gpu": "0", "uuid": "GPU-a"}): "1x100"}


@pytest.mark.parametrize(
    ("given", "drawn"),
    [
        ({**SEES_GPUS, **COUNTED, **DROPS}, [(ETH0, 3.0)]),
        ({**SEES_GPUS, **COUNTED}, [({"instance": "nothing"}, 0.0)]),
        (SEES_GPUS, []),
    ],
)
def test_no_packet_is_dropped_only_where_they_are_counted(
    given: dict[str, str], drawn: Found, tmp_path: Path
) -> None:
    (panel,) = (
        one
        for one in json.loads((FOLDER / "gpunode-node.json").read_text())["panels"]
        if one["title"] == "Communication: packets dropped"
    )
    (target,) = panel["targets"]
    expression = filled(target["expr"], {**CHOSEN, "$__rate_interval": "5m"})
    told = promtool(
        tmp_path, given, {(60, f"max by (cluster, instance, interface) ({expression})"): drawn}
    )
    assert not told, told
