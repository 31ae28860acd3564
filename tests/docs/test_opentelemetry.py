"""The Collector's configuration says what docs/opentelemetry.md says, and the Collector does it."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gpunode.sources import METRICS
from tests.conftest import until
from tests.needs import ROOT, need

CONFIGURATION = ROOT / "docs/opentelemetry/collector.yaml"
KINDS = {metric.name: metric.kind for found in METRICS.values() for metric in found}
EXPORTED = (
    "export/golden/h200_square_wave.txt",
    *(f"machines/nasty/golden/{name}.txt" for name in ("cpu", "disk")),
    *(f"machines/dgx/golden/{name}.txt" for name in ("infiniband", "network")),
    *(f"machines/h200/golden/{name}.txt" for name in ("filesystem", "memory")),
)
"""Golden files that have every metric of the table."""


class Row(NamedTuple):
    """A line of the table; an attribute without a value has that of a label."""

    ours: str
    name: str
    unit: str
    attributes: dict[str, str]


def table() -> list[Row]:
    rows = []
    for line in (ROOT / "docs/opentelemetry.md").read_text().splitlines():
        if line.startswith("| `gpunode_"):
            ours, name, unit, attributes = (cell.strip() for cell in line.split("|")[1:-1])
            pairs = (one.partition("=") for one in re.findall("`([^`]+)`", attributes))
            rows.append(
                Row(ours.strip("`"), name.strip("`"), unit.strip("`"), {k: v for k, _, v in pairs})
            )
    return rows


def statements() -> list[dict[str, list[str]]]:
    found: list[dict[str, list[str]]] = yaml.safe_load(CONFIGURATION.read_text())["processors"][
        "transform"
    ]["metric_statements"]
    return found


def test_the_table_names_metrics_that_exist_once_each() -> None:
    names = [row.ours for row in table()]
    assert len(names) > 30
    assert set(names) <= KINDS.keys()
    assert len(set(names)) == len(names)


def test_the_configuration_gives_the_names_and_units_of_the_table() -> None:
    given = {}
    for group in statements():
        (condition,) = group["conditions"]
        text = "\n".join(group["statements"])
        if name := re.search(r'set\(metric\.name, "(.+)"\)', text):
            ours = re.fullmatch(r'metric\.name == "(\w+)"', condition)
            unit = re.search(r'set\(metric\.unit, "(.+)"\)', text)
            assert ours is not None
            assert unit is not None
            given[ours[1]] = name[1], unit[1]
            added = unit[1] in ("By", "By/s") or name[1] in ("hw.status", "hw.network.up")
            additive = KINDS[ours[1]] == "gauge" and added
            assert ("convert_gauge_to_sum" in text) == additive, ours[1]
    assert given == {row.ours: (row.name, row.unit) for row in table()}


def test_the_configuration_changes_nothing_else() -> None:
    ours = {row.ours for row in table()}
    for group in statements():
        for pattern in re.findall(r'IsMatch\(metric\.name, "(.+)"\)', str(group["conditions"])):
            matched = {name for name in KINDS if re.search(pattern, name)}
            assert matched
            assert matched <= ours


class Backend(ThreadingHTTPServer):
    """An exporter that is scraped, and what takes the metrics that the Collector sends."""

    def __init__(self, exposition: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.exposition = exposition
        self.received: list[Any] = []


class Handler(BaseHTTPRequestHandler):
    server: Backend

    def do_GET(self) -> None:
        self._answer("text/plain; version=0.0.4", self.server.exposition)

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer("application/json", "{}")
        self.server.received.append(json.loads(content))

    def _answer(self, kind: str, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def backend(exposition: str) -> Iterator[Backend]:
    with Backend(exposition) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Point(NamedTuple):
    """A value that the Collector sent, and what tells it from others of its metric."""

    attributes: dict[str, str]
    value: float

    def of(self, row: Row) -> bool:
        """Whether it may be of a row of the table; the label ``gpu`` stays."""
        wanted = {key: value or self.attributes.get(key) for key, value in row.attributes.items()}
        return wanted == {key: found for key, found in self.attributes.items() if key != "gpu"}


def points(metric: Any) -> list[Point]:
    found = []
    for point in (metric.get("sum") or metric["gauge"])["dataPoints"]:
        attributes = point.get("attributes", ())
        named = {each["key"]: str(*each["value"].values()) for each in attributes}
        found.append(Point(named, float(point["asDouble"])))
    return found


def sent_to(server: Backend, folder: Path) -> dict[str, Any]:
    """What the Collector sends of what it scrapes, by the name of the metric, each in one piece."""
    often, log = folder / "often.yaml", folder / "log"
    often.write_text(CONFIGURATION.read_text().replace("interval: 15s", "interval: 1s"))
    # OTLP in JSON, and nothing about the Collector itself
    legible = folder / "legible.yaml"
    legible.write_text(
        "exporters: {otlp_http: {encoding: json, compression: none}}\n"
        "service: {telemetry: {metrics: {level: none}}}\n"
    )
    command = [need("otelcol"), "--config", str(often), "--config", str(legible)]
    address = f"127.0.0.1:{server.server_port}"
    where = {"GPUNODE_ADDRESS": address, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{address}"}
    with log.open("w") as out, subprocess.Popen(command, env=where, stderr=out) as process:
        try:
            until(lambda: bool(server.received))
        finally:
            process.terminate()
    assert re.findall("\t(?:warn|error)\t.*", log.read_text()) == []
    metrics = [
        metric
        for resource in server.received[0]["resourceMetrics"]
        for scope in resource["scopeMetrics"]
        for metric in scope["metrics"]
    ]
    named = {metric["name"]: metric for metric in metrics}
    assert len(named) == len(metrics)
    return named


@pytest.mark.integration
def test_the_collector_sends_what_the_table_says(tmp_path: Path) -> None:
    lines = "".join((ROOT / "tests" / path).read_text() for path in EXPORTED).splitlines()
    exposition = "\n".join(dict.fromkeys(lines)) + "\n"
    values: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            values.setdefault(sample.name, []).append(sample.value)
    with backend(exposition) as server:
        sent = sent_to(server, tmp_path)
    for row in table():
        metric = sent[row.name]
        assert metric["unit"] == row.unit
        assert metric.get("sum", {}).get("isMonotonic", False) == (KINDS[row.ours] == "counter")
        found = Counter(point.value for point in points(metric) if point.of(row))
        assert not Counter(values[row.ours]) - found, row.ours
    others = values.keys() & KINDS.keys() - {row.ours for row in table()}
    assert others <= sent.keys()
