"""What an alert, a recording rule and a line on a dashboard say, and what their tests are given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpunode.rules.document import Severity

Unit = Literal["percent", "celsius", "seconds", "bytes", "number", "count", "flag"]
"""How a figure is written; a ``count`` is of whole things, a ``flag`` has no figure."""

Comparison = Literal[">", "<"]

Scope = Literal["job", "gpu", "node", "filesystem", "fault", "cluster"]
"""What an alert is about: training and serving are about jobs, hardware about GPUs and nodes,
outages about a filesystem or about a fault that many nodes share."""

Dashboard = Literal["serving", "host", "health"]
"""A dashboard to which the alerts of a scope may lead instead of their own."""

Interval = Literal["15s", "30s", "1m", "4m"]
"""Time between two evaluations. Prometheus drops a series from queries after five minutes:
https://prometheus.io/docs/prometheus/latest/querying/basics/#staleness"""

RULE_INTERVAL: Interval = "30s"
"""The usual time between two evaluations."""

AT_ONCE: Interval = "15s"
"""Where seconds count."""

FOR_HOURS: Interval = "1m"
"""For what looks back on an hour."""

FOR_DAYS: Interval = "4m"
"""For what reads much to look back on an hour or on days. It is a divisor of the hour, so that each
hour has a first evaluation."""

IDENTITY: dict[Scope, tuple[str, ...]] = {
    "job": ("cluster", "owner_namespace", "workload", "replica", "user"),
    "gpu": ("cluster", "instance", "gpu", "uuid"),
    "node": ("cluster", "instance"),
    "filesystem": ("cluster", "filesystem"),
    "fault": ("cluster", "fault"),
    "cluster": ("cluster",),
}
"""The labels that say what an alert is about."""

OF_ONE_NODE: tuple[Scope, ...] = ("gpu", "node")
"""Scopes whose rules need only the series of one node."""


@dataclass(frozen=True, slots=True)
class Series:
    """A series of a test; the labels of Prometheus and of the test's GPU are added to it."""

    metric: str
    labels: tuple[tuple[str, str], ...] = ()


Given = Mapping[Series, float | None]
"""What a test is given: the value of a gauge, or what a counter gains a second; None where the
series is absent. A timestamp is either now (1) or stays what it was (0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Series that make an alert fire in every tier, and series that do not: the alert's test.

    A series that ``quiet`` leaves out is the same in both.
    """

    fires: Given
    quiet: Given
    value: float | None
    """What the signal comes to when the alert fires; None where it depends on the moment."""

    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the alert that none of the series has."""

    silenced_by: Given = field(default_factory=dict)
    """Series that silence the alert, if any do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """The threshold and the duration from which an alert has a severity."""

    severity: Severity
    threshold: float
    after: str
    record: str = ""
    """What the tier looks at, where that is not the row's record."""

    unless: str = ""
    """Jobs, nodes or clusters for which this tier is silent: a recorded series."""

    says: str = ""
    """What the tier looks at, in words."""

    unit: Unit | None = None
    """How its figure is written, where that is not as the row's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A row of the table. Its impact and diagnosis are in ``alerts/runbooks``."""

    alert: str
    group: str
    summary: str
    summary_ko: str
    says: str
    """What the signal is, in words: ``{value}`` is its figure, any other name in braces a label or
    a setting that the signal names."""

    when: str = ""
    """The condition in words, where its signal compares with figures of its own."""

    meaning: str
    """One sentence."""

    remedy: str
    """One sentence."""

    source: str
    """Where the threshold or the mechanism is described."""

    record: str
    """The recorded series that is compared with each tier's threshold."""

    signal: str = ""
    """The PromQL behind ``record``, where that is not in ``alerts/recording``."""

    window: str = "5m"
    """How far back the signal looks; ``0s`` where it is a gauge as it stands."""

    unit: Unit
    comparison: Comparison = ">"
    tiers: tuple[Tier, ...]
    scope: Scope
    labels: tuple[str, ...] = ()
    """The labels that the signal keeps beside those of its scope."""

    fault: str = ""
    """The fault that the alert stands for. Where many nodes have it, one alert does for all. Of a
    row with the label ``fault`` it is the one that pages."""

    @property
    def says_fault(self) -> dict[str, str]:
        """The label ``fault``, unless the signal has it."""
        return {"fault": self.fault} if self.fault and "fault" not in self.labels else {}

    of_owner: bool = False
    """Whether it is the job's owner who can mend it, rather than who runs the cluster."""

    dashboard: Dashboard | None = None
    """The dashboard that shows what it looks at, where that is not the one of its scope."""

    needs_all_nodes: bool = False
    """Whether it asks for other nodes though it is about one."""

    every: Interval = "30s"
    keep_firing_for: str = ""
    example: Example

    @property
    def identity(self) -> tuple[str, ...]:
        """Every label that tells one alert of this row from another."""
        return (*IDENTITY[self.scope], *self.labels)

    @property
    def over_nodes(self) -> bool:
        """Whether its rule needs the Prometheus that sees all nodes."""
        return self.needs_all_nodes or self.scope not in OF_ONE_NODE


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A recording rule and its test."""

    name: str
    labels: tuple[str, ...]
    """The labels that its series have."""

    interval: Interval = RULE_INTERVAL
    expression: str
    purpose: str
    given: Given
    """Series of the test: the value of a gauge, or what a counter gains a second."""

    results: Mapping[tuple[str, ...], float]
    """Some of the series that come out, by the values of their labels after ``cluster``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardLine:
    """A threshold that is drawn on a dashboard and alerts nobody."""

    name: str
    group: str
    says: str
    signal: str
    unit: Unit
    comparison: Comparison
    threshold: float
    scope: Scope
    reason: str
    """Why nobody is notified."""


def seconds(duration: str) -> int:
    """A duration of Prometheus in seconds."""
    return int(duration[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[duration[-1]]


def minutes(duration: str) -> int:
    """A duration of Prometheus in minutes, rounded up."""
    return math.ceil(seconds(duration) / 60)
