"""Encodes samples in the Prometheus text format or OpenMetrics, as the scraper requests.

Of a series only the value changes: the part of each line before it is made once and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate

from gpunode.metric import Distribution, Metric, Sample

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Format:
    """A format of expositions, and how every exposition ends."""

    content_type: str
    end: str

    def header(self, metric: Metric) -> str:
        """What comes before the series of a metric."""
        name, said = metric.name, metric.help.replace("\\", r"\\").replace("\n", r"\n")
        if self is OPENMETRICS:
            name, said = name.removesuffix("_total"), said.replace('"', r"\"")
        return f"# HELP {name} {said}\n# TYPE {name} {metric.kind}\n"


TEXT = Format("text/plain; version=0.0.4; charset=utf-8", "")
OPENMETRICS = Format("application/openmetrics-text; version=1.0.0; charset=utf-8", "# EOF\n")


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
    """The values of a series' lines, in their order."""
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
    lines = {**lines, **{sample.labels: _lines(metric, sample.labels) for sample in fresh}}
    header = known.header if known else form.header(metric)
    return Template(header, {sample.labels: lines[sample.labels] for sample in samples})


def _lines(metric: Metric, labels: Labels) -> list[str]:
    """A series' lines without values."""
    texts = dict(zip(metric.labels, map(_escaped, labels), strict=True))
    if metric.kind != "histogram":
        return [metric.name + _braced(texts)]
    bounds = (*map(str, metric.buckets), "+Inf")
    buckets = [f"{metric.name}_bucket{_braced({**texts, 'le': bound})}" for bound in bounds]
    return [*buckets, *(f"{metric.name}_{total}{_braced(texts)}" for total in ("count", "sum"))]


def _braced(texts: dict[str, str]) -> str:
    inside = ",".join(f'{name}="{text}"' for name, text in sorted(texts.items()))
    return f"{{{inside}}}" if inside else ""


def _escaped(label: str) -> str:
    """The label; what is not Unicode in a file name becomes an escape sequence, too."""
    unicode = label.encode(errors="backslashreplace").decode()
    return unicode.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
