"""Encodes samples in the Prometheus text format or OpenMetrics, as the scraper requests.

prometheus_client defines the format of every line, but takes 15 to 27 µs per line, which is 30 ms
for eight GPUs. It therefore encodes a family only when a series is new. After that, the part of
each line before the value is kept, and a scrape formats only values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from gpunode.metric import Distribution, Metric, Sample

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Format:
    """A format of expositions: how prometheus_client writes it, and how every exposition ends."""

    content_type: str
    encode: Callable[[CollectorRegistry], bytes]
    end: str


TEXT = Format("text/plain; version=0.0.4; charset=utf-8", generate_latest, "")
OPENMETRICS = Format(
    "application/openmetrics-text; version=1.0.0; charset=utf-8", generate_openmetrics, "# EOF\n"
)


def requested(accept: str) -> Format:
    """OpenMetrics if an ``Accept`` header lists the version that is served, else the text format.

    Parameters other than the version change nothing: there is no name to escape.
    """
    for media_range in accept.split(","):
        media_type, *parameters = (part.strip() for part in media_range.split(";"))
        versions = [part for part in parameters if part.startswith("version=")]
        if media_type == "application/openmetrics-text" and versions in ([], ["version=1.0.0"]):
            return OPENMETRICS
    return TEXT


@dataclass(frozen=True, slots=True)
class Template:
    """The constant part of a family: its header, and each series' lines without values."""

    header: str
    lines: dict[Labels, list[str]]


class Exposition:
    """Encodes what ``samples`` returns at the time of the scrape."""

    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        self.samples = samples
        self._templates: dict[Format, dict[Metric, Template]] = {TEXT: {}, OPENMETRICS: {}}

    def encode(self, accept: str) -> tuple[bytes, str]:
        """The exposition, and its content type."""
        form = requested(accept)
        families: dict[Metric, list[Sample]] = {}
        for sample in self.samples():
            families.setdefault(sample.metric, []).append(sample)
        known = self._templates[form]
        used: dict[Metric, Template] = {}
        parts: list[str] = []
        for metric in sorted(families, key=lambda metric: metric.name):
            samples = families[metric]
            template = _updated(known.get(metric), metric, samples, form)
            used[metric] = template
            parts.append(template.header)
            lines = template.lines
            parts += [
                f"{line} {value!r}\n"
                for sample in samples
                for line, value in zip(lines[sample.labels], _values(sample))  # noqa: B905 slower
            ]
        self._templates[form] = used
        parts.append(form.end)
        return "".join(parts).encode(), form.content_type


def _values(sample: Sample) -> tuple[float, ...]:
    """The values of a series' lines, in the order in which prometheus_client writes them."""
    if not isinstance(sample.value, Distribution):
        return (float(sample.value),)  # an int would be written without its ".0"
    counts = tuple(map(float, accumulate(sample.value.counts)))
    return (*counts, counts[-1], sample.value.sum)


def _updated(
    known: Template | None, metric: Metric, samples: list[Sample], form: Format
) -> Template:
    """The lines of the current series: new series are encoded, vanished ones dropped."""
    lines = known.lines if known else {}
    fresh = [sample for sample in samples if sample.labels not in lines]
    if known is not None and not fresh:
        if len(samples) == len(lines):
            return known
        return Template(known.header, {sample.labels: lines[sample.labels] for sample in samples})
    encoded = _template(metric, fresh, form)
    lines = {**lines, **encoded.lines}
    return Template(encoded.header, {sample.labels: lines[sample.labels] for sample in samples})


def _template(metric: Metric, samples: list[Sample], form: Format) -> Template:
    """Have prometheus_client encode a family, and strip the values."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(_family(metric, samples)))
    text = form.encode(registry).decode().removesuffix(form.end)
    lines = text.removesuffix("\n").split("\n")  # a label may contain other line separators
    header = "".join(f"{line}\n" for line in lines if line.startswith("#"))
    heads = iter(line.rpartition(" ")[0] for line in lines if not line.startswith("#"))
    return Template(header, {s.labels: [next(heads) for _ in _values(s)] for s in samples})


class _Once(Collector):
    def __init__(self, family: Family) -> None:
        self.family = family

    def collect(self) -> Iterator[Family]:
        yield self.family


def _family(metric: Metric, samples: list[Sample]) -> Family:
    if metric.kind == "histogram":
        return _histogram(metric, samples)
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for sample in samples:
        family.add_metric(_encodable(sample.labels), 0.0)
    return family


def _histogram(metric: Metric, samples: list[Sample]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    bounds = (*map(str, metric.buckets), "+Inf")
    for sample in samples:
        labels = _encodable(sample.labels)
        family.add_metric(labels, [(bound, 0.0) for bound in bounds], 0.0)
    return family


def _encodable(labels: Labels) -> Labels:
    """The labels; what is not Unicode in a file name becomes an escape sequence."""
    return tuple(label.encode(errors="backslashreplace").decode() for label in labels)
