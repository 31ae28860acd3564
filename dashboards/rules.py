"""The shipped rules, ``alerts/rules``: what is recorded, with which labels, and what alerts ask."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import promql_parser

from gpunode.explain import rule_files
from gpunode.explain.rule_files import THRESHOLD, Rule
from gpunode.metric import Metric
from gpunode.sources import METRICS

FOLDER = Path(__file__).parents[1] / "alerts" / "rules"
OF_EVERY_TARGET = ("cluster", "instance")
"""The labels that a scrape adds."""

OF_KUBERNETES = ("node", "namespace", "pod", "condition", "resource", "unit", "phase")
"""Labels of kube-state-metrics for which the rules ask."""

DECLARED: dict[str, Metric] = {m.name: m for section in METRICS.values() for m in section}
"""What the exporter exports, by name."""

KEEPS_LABELS = ("topk", "bottomk")
COMPARED = {">", "<", ">=", "<="}
ARITHMETIC: Mapping[str, Callable[[float, float], float]] = {
    "*": operator.mul,
    "/": operator.truediv,
    "+": operator.add,
    "-": operator.sub,
}

Comparison = Literal[">", "<"]


@dataclass(frozen=True, slots=True)
class Limit:
    """A figure that a panel draws, and the alert that has it, if any does."""

    threshold: float
    comparison: Comparison
    alert: str = ""


@cache
def _rules() -> tuple[Rule, ...]:
    return tuple(rule_files.read_rules(FOLDER))


@cache
def records() -> dict[str, str]:
    """The expressions of what is recorded, by its name."""
    found = rule_files.by_record(_rules())
    return {name: " or ".join(one.expression for one in rules) for name, rules in found.items()}


def alerts() -> tuple[Rule, ...]:
    """The tiers of alerts, in the order of the files."""
    return tuple(rule for rule in _rules() if rule.alerts)


def limit(alert: str) -> Limit:
    """The first figure with which an alert compares what it looks at.

    Raises ``LookupError`` if there is no such alert, or none that compares.
    """
    for one in alerts():
        if one.name == alert:
            for figure, comparison in _compared(promql_parser.parse(one.expression)):
                return Limit(figure, comparison, alert)
    raise LookupError(f"{FOLDER}: no alert {alert} that compares with a figure")


def threshold(name: str) -> float:
    """A figure that sites change, by its name. Raises ``LookupError``."""
    for rule in _rules():
        if rule.name == THRESHOLD and rule.labels["name"] == name:
            return float(rule.expression.removeprefix("vector(").removesuffix(")"))
    raise LookupError(f"{FOLDER}: no threshold {name}")


def _compared(node: Any) -> Iterator[tuple[float, Comparison]]:
    """The figures with which an expression compares, from left to right.

    What a sum or a ratio is made of has conditions of its own, as that there is something to share.
    """
    if isinstance(node, promql_parser.BinaryExpr) and str(node.op) not in ARITHMETIC:
        yield from _compared(node.lhs)
        figure = _figure(node.rhs)
        if str(node.op) in COMPARED and figure is not None:
            yield figure, cast(Comparison, str(node.op)[0])
        yield from _compared(node.rhs)
    elif isinstance(node, promql_parser.Call):
        for argument in node.args:
            yield from _compared(argument)
    elif hasattr(node, "expr"):
        yield from _compared(node.expr)


def _figure(node: Any) -> float | None:
    """What an expression of numbers and thresholds comes to; None for any other."""
    if isinstance(node, promql_parser.NumberLiteral):
        return float(node.val)
    if isinstance(node, promql_parser.BinaryExpr):
        left, right = _figure(node.lhs), _figure(node.rhs)
        if left is None or right is None or str(node.op) not in ARITHMETIC:
            return None
        return ARITHMETIC[str(node.op)](left, right)
    if isinstance(node, promql_parser.ParenExpr):
        return _figure(node.expr)
    named = re.fullmatch(rf'scalar\(max\({THRESHOLD}\{{name="(\w+)"\}}\)\)', str(node))
    return threshold(named[1]) if named else None


@cache
def labels_of(metric: str) -> frozenset[str]:
    """The labels of a series; a histogram's parts are metrics of their own.

    Raises ``KeyError`` for what is neither exported nor recorded.
    """
    if metric == "up":
        return frozenset(OF_EVERY_TARGET)
    if metric.startswith("kube_"):
        return frozenset(("cluster", *OF_KUBERNETES))
    if metric in records():
        return frozenset(_kept_labels(promql_parser.parse(records()[metric])))
    declared = DECLARED.get(metric) or DECLARED[re.sub("_(bucket|count|sum)$", "", metric)]
    return frozenset((*OF_EVERY_TARGET, *declared.labels))


def _kept_labels(node: Any) -> set[str]:
    """The labels of what an expression finds."""
    if isinstance(node, promql_parser.AggregateExpr):
        if str(node.op) in KEEPS_LABELS:
            return _kept_labels(node.expr)
        return set(node.modifier.labels) if node.modifier else set()
    if isinstance(node, promql_parser.BinaryExpr):
        more = set(node.modifier.group_labels or ()) if node.modifier else set()
        left = _kept_labels(node.lhs) or _kept_labels(node.rhs)
        return left | more | (_kept_labels(node.rhs) if str(node.op) == "or" else set())
    if isinstance(node, promql_parser.VectorSelector):
        return set(labels_of(node.name or ""))
    if isinstance(node, promql_parser.MatrixSelector):
        return _kept_labels(node.vector_selector)
    if isinstance(node, promql_parser.Call):
        found = set().union(*(_kept_labels(argument) for argument in node.args))
        if node.func.name in ("label_replace", "label_join"):
            found.add(node.args[1].val)
        return found
    return _kept_labels(node.expr) if hasattr(node, "expr") else set()
