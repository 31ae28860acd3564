"""The queries of panels: expressions as in the rules, narrowed to what a dashboard has selected."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from alerts import promql
from alerts.model import Comparison
from alerts.promql import DECLARED, GPU
from alerts.recording import RECORDS
from alerts.settings import Setting
from alerts.thresholds.lines import LINES
from alerts.thresholds.table import THRESHOLDS

WINDOW = "$__rate_interval"
"""At least four scrapes, and no less than the time between two points of a graph:
https://grafana.com/docs/grafana/latest/datasources/prometheus/template-variables/"""

USEFUL = 'state=~"compute|memory"'
"""A past may have ``memory``, of exporters with ten states."""

LOST = 'state!~"compute|memory|free"'
"""The time of the GPUs that jobs hold in which they do not work."""

SECONDS = "gpunode_gpu_seconds_total"
ACTIVE = "gpunode_gpu_active_seconds_total"
"""Counters of what a GPU does."""

OWNERS = "gpu:gpunode_gpu_owner:workload"
"""Who holds each GPU, and for which job."""

Selection = Mapping[str, str]
"""What a dashboard has selected: the name of a variable by the label that it selects."""

FLEET: Selection = {"cluster": "cluster"}
NAMESPACES: Selection = {**FLEET, "owner_namespace": "namespace"}
JOBS: Selection = {**NAMESPACES, "workload": "job"}
NODES: Selection = {**FLEET, "instance": "node"}
GPUS: Selection = {**NODES, "gpu": "gpu"}
JOB: Selection = {**JOBS, "instance": "hosts"}
"""One job, and the nodes on which it runs: raw series know the node, but not the job."""

OF_EVERY_TARGET = ("cluster", "instance")
"""The labels that a scrape adds."""

LABELS: dict[str, tuple[str, ...]] = {
    **{name: (*OF_EVERY_TARGET, *metric.labels) for name, metric in DECLARED.items()},
    **{record.name: record.labels for record in RECORDS},
    **{one.record: one.identity for one in THRESHOLDS if one.signal},
    "up": OF_EVERY_TARGET,
}
"""The labels of every series that a dashboard may ask for."""

AS_THEY_ARE = {"namespace"}
"""Variables whose values are regular expressions already: Grafana would escape those of others."""

METRIC = re.compile(r"((?:\b[a-z]+:)?\b(?:gpunode_[a-z0-9_]+)(?::[a-z0-9_]+)?)(\{)?")
STRING = re.compile(r'("[^"]*")')


@dataclass(frozen=True, slots=True)
class Query:
    """A question to Prometheus, and what each answer is called."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Limit:
    """The threshold that a panel draws, and the alert that has it, if any does."""

    threshold: float
    comparison: Comparison
    alert: str = ""


def chosen(name: str) -> str:
    """What the reader has selected of a variable, as a regular expression."""
    return f"${{{name}:pipe}}" if name in AS_THEY_ARE else f"${name}"


NO_NAMESPACE = f'owner_namespace=~"{chosen("namespace")}"'
"""Selects series that have no namespace where all are chosen, or that of what has none."""


def labels_of(metric: str) -> tuple[str, ...]:
    """The labels of a metric; a histogram's parts are metrics of their own."""
    return LABELS[metric if metric in LABELS else re.sub("_(bucket|count|sum)$", "", metric)]


def selected(expression: str, selection: Selection) -> str:
    """The expression, with every metric narrowed by those selected labels that it has."""

    def narrowed(found: re.Match[str]) -> str:
        name, opened = found[1], found[2]
        matchers = ",".join(
            f'{label}=~"{chosen(variable)}"'
            for label, variable in selection.items()
            if label in labels_of(name)
        )
        if not matchers:
            return found[0]
        return f"{name}{{{matchers}" + ("," if opened else "}")

    parts = STRING.split(expression)
    return "".join(part if part.startswith('"') else METRIC.sub(narrowed, part) for part in parts)


def joined(expression: str, label: str, *labels: str) -> str:
    """Series with the values of labels in one, without blanks for what is absent.

    Grafana shows a cell of blanks as 0.
    """
    every = ", ".join(f'"{one}"' for one in labels)
    blank = f'label_join({expression}, "{label}", " ", {every})'
    return f'label_replace({blank}, "{label}", "$1", "{label}", " *(.*?) *")'


def rate(metric: str, by: str = GPU) -> str:
    """What a counter gains a second."""
    return promql.rate(metric, by, WINDOW)


def of_time(states: str = "") -> str:
    """The share of each GPU's time that is in each state.

    A scrape sees the last step of the counters, which may be two seconds old, so that the states of
    a minute come to 58 to 62 seconds. They step together: as parts of what they come to, they are
    never more than the whole.
    """
    each = f"{GPU}, state"
    part, whole = rate(f"{SECONDS}{states}", each), f"sum by ({GPU}) ({rate(SECONDS, each)})"
    return f"{part} / on ({GPU}) group_left () ({whole} > 0)"


def bounded(share: str) -> str:
    """A share of time, which the steps of its counter can make more than all of it."""
    return f"clamp_max({share}, 1)"


def active(unit: str) -> str:
    """The share of a GPU's time in which a unit of it is active."""
    return bounded(rate(f'{ACTIVE}{{unit="{unit}"}}'))


def in_hour(metric: str, by: str = GPU) -> str:
    """What a counter gained in the hour before."""
    return promql.gained(metric, by, "1h")


def ratio(part: str, whole: str, by: str = GPU) -> str:
    """A share, where there is something to share."""
    return f"{part} / on ({by}) ({whole} > 0)"


def signal(line: str) -> str:
    """What a line of the threshold table looks at."""
    (found,) = (one for one in LINES if one.name == line)
    return found.signal.replace("[5m]", f"[{WINDOW}]")


def limit(name: str, compared: Setting | None = None) -> Limit:
    """The threshold of an alert's first tier, or of a line that alerts nobody.

    An alert whose signal compares with figures of its own has the threshold in one of them.
    """
    for alert in THRESHOLDS:
        if alert.alert == name:
            threshold = compared.figure if compared else alert.tiers[0].threshold
            return Limit(threshold, alert.comparison, name)
    (line,) = (one for one in LINES if one.name == name)
    return Limit(line.threshold, line.comparison)


def numbered(metric: str, label: str, values: Iterable[str], by: str = GPU) -> str:
    """One series for each GPU: the number of the value of ``label`` whose series is 1.

    A state timeline shows one value a row, and PromQL has no way to make a number of a label.
    """
    return " or ".join(
        f'{number} * (max by ({by}) ({metric}{{{label}="{value}"}}) == 1)'
        for number, value in enumerate(values)
    )
