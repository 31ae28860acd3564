"""The queries of panels: expressions as in the rules, narrowed to what a dashboard has selected."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dashboards.promql import GPU
from dashboards.rules import labels_of

USEFUL = 'state=~"compute|memory"'
"""A past may have ``memory``, of exporters with ten states."""

LOST = 'state!~"compute|memory|free"'
"""The time of the GPUs that jobs hold in which they do not work."""

Selection = Mapping[str, str]
"""What a dashboard has selected: the name of a variable by the label that it selects."""

FLEET: Selection = {"cluster": "cluster"}
NAMESPACES: Selection = {**FLEET, "owner_namespace": "namespace"}
JOBS: Selection = {**NAMESPACES, "workload": "job"}
NODES: Selection = {**FLEET, "instance": "node"}
GPUS: Selection = {**NODES, "gpu": "gpu"}
JOB: Selection = {**JOBS, "instance": "hosts"}
"""One job, and the nodes on which it runs: raw series know the node, but not the job."""

AS_THEY_ARE = {"namespace"}
"""Variables whose values are regular expressions already: Grafana would escape those of others."""

METRIC = re.compile(r"((?:\b[a-z]+:)?\b(?:gpunode_[a-z0-9_]+)(?::[a-z0-9_]+)?)(\{)?")
STRING = re.compile(r'("[^"]*")')


@dataclass(frozen=True, slots=True)
class Query:
    """A question to Prometheus, and what each answer is called."""

    expression: str
    legend: str = ""


def chosen(name: str) -> str:
    """What the reader has selected of a variable, as a regular expression."""
    return f"${{{name}:pipe}}" if name in AS_THEY_ARE else f"${name}"


NO_NAMESPACE = f'owner_namespace=~"{chosen("namespace")}"'
"""Selects series that have no namespace where all are chosen, or that of what has none."""


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


def spoken(expression: str, label: str) -> str:
    """Series whose cause reads as words in a legend: nothing else can be said of it there."""
    for raw, said in (
        ("none", "at work"),
        ("shm", "full /dev/shm"),
        *[("([^_]+)_(.+)", "$1 $2")] * 2,
    ):
        expression = f'label_replace({expression}, "{label}", "{said}", "{label}", "{raw}")'
    return expression


OFTEN = {"none", "straggler", "stalled_collective"}
"""What most GPUs have at times: last, since each ``or`` goes through all that are before it."""


def numbered(
    metric: str, label: str, values: Iterable[str], by: str = GPU, having: str = ""
) -> str:
    """One series for each GPU: the number of the value of ``label`` that it has.

    A state timeline shows one value a row, and PromQL has no way to make a number of a label.
    ``having`` is what the values of the series must be.
    """
    found = sorted(enumerate(values), key=lambda one: one[1] in OFTEN)
    return " or ".join(
        f'{number} + 0 * max by ({by}) ({metric}{{{label}="{value}"}}{having})'
        for number, value in found
    )
