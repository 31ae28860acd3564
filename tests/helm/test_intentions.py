"""What sites write in values of exporters' charts, and where it ends up in the objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helm.test_chart import render, the

POD = ("DaemonSet", "spec", "template", "spec")
DAEMON = (*POD, "containers", 0)
MONITOR = ("PodMonitor", "spec")
ENDPOINT = (*MONITOR, "podMetricsEndpoints", 0)
SIDE = {"name": "side", "image": "side:1"}
SETTINGS = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "{{ .Release.Name }}-more"}}

INTENTIONS: list[tuple[dict[str, Any], tuple[str | int, ...], Any]] = [
    (
        {"envFrom": [{"secretRef": {"name": "a"}}]},
        (*DAEMON, "envFrom", 0, "secretRef", "name"),
        "a",
    ),
    ({"extraContainers": [SIDE]}, (*POD, "containers", 1), SIDE),
    ({"initContainers": [SIDE]}, (*POD, "initContainers", 0), SIDE),
    ({"dnsConfig": {"searches": ["a"]}}, (*POD, "dnsConfig"), {"searches": ["a"]}),
    ({"hostAliases": [{"ip": "10.0.0.1"}]}, (*POD, "hostAliases", 0, "ip"), "10.0.0.1"),
    ({"revisionHistoryLimit": 0}, ("DaemonSet", "spec", "revisionHistoryLimit"), 0),
    ({"minReadySeconds": 5}, ("DaemonSet", "spec", "minReadySeconds"), 5),
    ({"priorityClassName": "a"}, (*POD, "priorityClassName"), "a"),
    ({"nodeSelector": {"a": "b"}}, (*POD, "nodeSelector"), {"a": "b"}),
    ({"affinity": None}, (*POD, "affinity"), None),
    ({"extraManifests": [SETTINGS]}, ("Secret", "metadata", "name"), "gpunode-more"),
    (
        {"global": {"imageRegistry": "r.io/m"}, "image": {"tag": "1"}},
        (*DAEMON, "image"),
        "r.io/m/gpunode/gpunode:1",
    ),
    (
        {"global": {"imagePullSecrets": [{"name": "a"}]}},
        (*POD, "imagePullSecrets"),
        [{"name": "a"}],
    ),
    ({"monitor": {"interval": ""}}, (*ENDPOINT, "interval"), None),
    (
        {"monitor": {"authorization": {"credentials": {"name": "a"}}}},
        (*ENDPOINT, "authorization", "credentials", "name"),
        "a",
    ),
    ({"monitor": {"proxyUrl": "http://p"}}, (*ENDPOINT, "proxyUrl"), "http://p"),
    ({"monitor": {"scrapeClass": "a"}}, (*MONITOR, "scrapeClass"), "a"),
    ({"monitor": {"podTargetLabels": ["a"]}}, (*MONITOR, "podTargetLabels"), ["a"]),
    ({"monitor": {"labelLimit": 30}}, (*MONITOR, "labelLimit"), 30),
]


@pytest.mark.parametrize(("values", "path", "expected"), INTENTIONS)
def test_what_a_site_writes_is_in_the_object(
    values: dict[str, Any], path: tuple[str | int, ...], expected: Any, tmp_path: Path
) -> None:
    monitor = {"enabled": True, **values.get("monitor", {})}
    kind, *steps = path
    found: Any = the(render(tmp_path, {**values, "monitor": monitor}), str(kind))
    for step in steps[:-1]:
        found = found[step]
    last = steps[-1]
    assert (found[last] if isinstance(last, int) else found.get(last)) == expected
