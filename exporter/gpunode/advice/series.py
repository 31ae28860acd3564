"""Series of a node, as its daemon serves them or as Prometheus has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class SeriesSample:
    """A series and its value now."""

    name: str
    labels: Mapping[str, str]
    value: float

    def label(self, name: str) -> str:
        """A label, empty if it has none, as Prometheus has it."""
        return self.labels.get(name, "")


@dataclass(frozen=True, slots=True)
class NodeSeries:
    """Everything that is known of one node at a moment."""

    node: str
    time: float
    """Seconds since the epoch."""

    series: tuple[SeriesSample, ...]
    cluster: str = ""

    def of(self, name: str, **labels: str) -> Iterator[SeriesSample]:
        """The series of a metric that have these labels."""
        for one in self.series:
            if one.name == name and all(one.label(k) == v for k, v in labels.items()):
                yield one


def parsed(text: str) -> tuple[SeriesSample, ...]:
    """The series of an exposition in the text format. Raises ``ValueError``."""
    return tuple(
        SeriesSample(sample.name, sample.labels, float(sample.value))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    )


def by_node(found: Iterable[SeriesSample], time: float) -> list[NodeSeries]:
    """Series from Prometheus, node by node; those without ``instance`` are of none."""
    nodes: dict[tuple[str, str], list[SeriesSample]] = {}
    for one in found:
        if one.label("instance"):
            nodes.setdefault((one.label("cluster"), one.label("instance")), []).append(one)
    return [
        NodeSeries(node, time, tuple(series), cluster)
        for (cluster, node), series in sorted(nodes.items())
    ]
