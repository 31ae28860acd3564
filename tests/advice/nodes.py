"""Nodes of the scenarios as their daemons would show them, moment by moment."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.advice.series import NodeSeries, SeriesNow
from tests.alerts.scenarios.course import Course, Linear, Unseen
from tests.alerts.scenarios.fleet import Fleet
from tests.alerts.scenarios.shorthand import Scenario

SCRAPED = {"instance", "job", "cluster"}


def moments(name: str, scenario: Scenario) -> Iterator[NodeSeries]:
    """Every node at the beginning and the end of each stretch in which nothing changes."""
    nodes: dict[str, dict[float, list[SeriesNow]]] = {}
    for (metric, labels), courses in Fleet(name, scenario).courses():
        have = dict(labels)
        if metric == "up" or have.get("job") != "gpunode":
            continue
        own = {label: value for label, value in labels if label not in SCRAPED}
        for (begin, end), course in courses:
            for moment in (begin, max(begin, end - 1.0)):
                found = nodes.setdefault(have["instance"], {}).setdefault(moment, [])
                if course is not None:
                    found.append(SeriesNow(metric, own, _value(course, moment)))
    for node, at in nodes.items():
        for moment, series in sorted(at.items()):
            yield NodeSeries(node, moment, tuple(series))


def _value(course: Course, moment: float) -> float:
    """A value as the daemon has it, whether somebody reads it or not."""
    if isinstance(course, Unseen):
        return _value(course.course, moment)
    return course.at(moment) if isinstance(course, Linear) else 0.0
