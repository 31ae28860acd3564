"""Turns samples into the Prometheus text format or OpenMetrics, as the scraper asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from gpunode.metric import Distribution, Metric, Sample


class Exposition(Collector):
    """Encodes what ``samples`` gives at the moment of the scrape; keeps nothing."""

    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        self.samples = samples
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def encode(self, accept: str) -> tuple[bytes, str]:
        """The exposition, and its content type."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self.registry), content_type

    def collect(self) -> Iterator[Family]:
        families: dict[Metric, list[Sample]] = {}
        for sample in self.samples():
            families.setdefault(sample.metric, []).append(sample)
        for metric, samples in sorted(families.items(), key=lambda item: item[0].name):
            yield _family(metric, samples)

    def describe(self) -> Iterable[Family]:
        """Nothing: families come and go with the devices."""
        return ()


def _family(metric: Metric, samples: list[Sample]) -> Family:
    if metric.kind == "histogram":
        return _histogram(metric, samples)
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for sample in samples:
        if not isinstance(sample.value, Distribution):
            family.add_metric(sample.labels, sample.value)
    return family


def _histogram(metric: Metric, samples: list[Sample]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for sample in samples:
        if isinstance(sample.value, Distribution):
            buckets, total = [], 0
            bounds = (*map(str, sample.value.bounds), "+Inf")
            for bound, count in zip(bounds, sample.value.counts, strict=True):
                total += count
                buckets.append((bound, total))
            family.add_metric(sample.labels, buckets, sample.value.sum)
    return family
