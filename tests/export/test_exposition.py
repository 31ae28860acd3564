"""What a scraper gets: golden files, both formats, and prometheus_client's own opinion of them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector

from gpunode.export import dcgm_names
from gpunode.export.exposition import Exposition
from gpunode.metric import Distribution, Metric, Sample
from gpunode.sources import METRICS as SECTIONS
from tests.needs import need
from tests.replay import replayed

GOLDEN = Path(__file__).with_name("golden")
OPENMETRICS = "application/openmetrics-text;version=1.0.0"
parse_openmetrics: Callable[[str], Iterator[Family]] = (
    openmetrics_parser.text_string_to_metric_families
)
DECLARED = {metric.name: metric for metrics in SECTIONS.values() for metric in metrics}


def exposition(tape: str, accept: str = "") -> str:
    loop, _ = replayed(tape)
    return Exposition(loop.samples).encode(accept)[0].decode()


@pytest.mark.parametrize("tape", ["straggler", "h200_square_wave"])
def test_the_exposition_of_a_tape_is_the_golden_one(tape: str) -> None:
    golden = GOLDEN / f"{tape}.txt"
    found = exposition(tape)
    if os.environ.get("GPUNODE_REWRITE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        golden.write_text(found)
    assert found == golden.read_text(), "if this is meant to change: make golden"


def test_both_formats_hold_the_same() -> None:
    loop, _ = replayed("straggler")
    encode = Exposition(loop.samples).encode
    text, openmetrics = encode("")[0].decode(), encode(OPENMETRICS)[0].decode()
    assert openmetrics.endswith("\n# EOF\n")
    as_text = [s for family in parse_text(text) for s in family.samples]
    as_openmetrics = [s for family in parse_openmetrics(openmetrics) for s in family.samples]
    assert as_text == as_openmetrics


def test_every_sample_is_declared_with_its_labels() -> None:
    for tape in ("straggler", "h200_four_phases"):
        loop, _ = replayed(tape)
        for sample in loop.samples():
            assert DECLARED[sample.metric.name] is sample.metric
            assert len(sample.labels) == len(sample.metric.labels), sample.metric.name


def test_names_follow_the_rules_of_prometheus() -> None:
    units = re.compile(r"_(ms|us|ns|mb|mib|kb|percent|mw|mhz|count)(_|$)")
    for metric in DECLARED.values():
        if metric in dcgm_names.METRICS:
            continue
        name = metric.name
        assert re.fullmatch(r"(gpunode|process)_[a-z0-9_]+", name)
        assert name.endswith("_total") == (metric.kind == "counter"), name
        assert not units.search(name), name
        assert "type" not in metric.labels, name


def test_no_two_metrics_are_of_one_family() -> None:
    """The family of a counter has no ``_total``, and a histogram has further series of its own."""
    samples = [
        Sample(m, m.labels, Distribution(m.buckets) if m.kind == "histogram" else 0.0)
        for m in DECLARED.values()
    ]
    page = Exposition(lambda: samples).encode(OPENMETRICS)[0].decode()
    families = [family.name for family in parse_openmetrics(page)]
    assert len(families) == len(set(families)) == len(DECLARED)


labels = st.text(max_size=12)
series = st.dictionaries(st.tuples(labels, labels), st.floats(allow_nan=False), min_size=1)
GAUGE = Metric("gpunode_test", "gauge", 'Help with a "quote" and a \\ in it.', ("a", "b"))


class FixedCollector(Collector):
    def __init__(self, values: dict[tuple[str, str], float]) -> None:
        self.values = values

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(GAUGE.name, GAUGE.help, labels=GAUGE.labels)
        for values, value in self.values.items():
            family.add_metric(values, value)
        yield family


@pytest.mark.parametrize(
    ("accept", "generated"), [("", generate_latest), (OPENMETRICS, generate_openmetrics)]
)
@settings(max_examples=30)
@given(scrapes=st.lists(series, min_size=1, max_size=4))
def test_lines_are_those_of_prometheus_client(
    accept: str,
    generated: Callable[[CollectorRegistry], bytes],
    scrapes: list[dict[tuple[str, str], float]],
) -> None:
    now: dict[tuple[str, str], float] = {}
    kept = Exposition(lambda: [Sample(GAUGE, where, value) for where, value in now.items()])
    for now in scrapes:  # series come and go from one scrape to the next
        registry = CollectorRegistry(auto_describe=False)
        registry.register(FixedCollector(now))
        ours, theirs = kept.encode(accept)[0].decode(), generated(registry).decode()
        for mine, other in zip(ours.split("\n"), theirs.split("\n"), strict=True):
            if mine.startswith("#") or not mine:
                assert mine == other
            else:
                assert mine.rpartition(" ")[0] == other.rpartition(" ")[0]
                assert float(mine.rpartition(" ")[2]) == float(other.rpartition(" ")[2])


@given(st.lists(st.floats(0, 10)))
def test_a_histogram_counts_every_value_once(values: list[float]) -> None:
    bounds = (0.5, 1.0, 2.5)
    metric = Metric("gpunode_test_ratio", "histogram", "Test.", (), bounds)
    distribution = Distribution(bounds)
    distribution.add(values)
    text = Exposition(lambda: [Sample(metric, (), distribution)]).encode("")[0].decode()
    (family,) = parse_text(text)
    found = {s.labels.get("le", s.name.rpartition("_")[2]): s.value for s in family.samples}
    assert found == {
        "0.5": sum(value <= 0.5 for value in values),
        "1.0": sum(value <= 1.0 for value in values),
        "2.5": sum(value <= 2.5 for value in values),
        "+Inf": len(values),
        "count": len(values),
        "sum": pytest.approx(sum(values), abs=1e-9),
    }


def test_promtool_finds_nothing_to_say() -> None:
    check = subprocess.run(
        [need("promtool"), "check", "metrics"],
        input=exposition("straggler"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (check.returncode, check.stdout, check.stderr) == (0, "", "")
