"""Which alerts a query is about: it shows what they look at, and their runbooks say what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import promql_parser

from dashboards.rules import alerts, records

RUNBOOKS = alerts()[0].annotations["runbook_url"].rpartition("/")[0]
"""Where the runbooks are."""

LIMIT = 3
"""A series that more alerts look at is about none of them, such as that of the owners of GPUs; and
a panel links no more runbooks than a reader looks through."""

FILLED = {"$__rate_interval": "5m", "$__range": "1h", "$price": "1", "$budget": "1"}
"""What a query has where PromQL has no variables."""

CONDITIONS = {"/", "and", "unless", "==", "!=", ">", "<", ">=", "<="}
"""Operators of which the left side is what an expression shows. The right side is a condition, or
that of which it is a share."""

NAMING = {
    "gpu:gpunode_owner:info",
    "gpu:gpunode_rank:info",
    "job:gpunode_gpus:count",
    "namespace:gpunode_gpu:held",
    "gpu:gpunode_gpu_seconds:rate5m",
    "job:gpunode_gpu_seconds:rate5m",
    "gpunode_gpu_seconds_total",
}
"""Series that say which jobs and nodes there are, or where all time goes: they are about no alert
of their own."""


def alerts_of(*queries: str) -> list[str]:
    """The alerts that look at what queries show, in their order; at most ``LIMIT``, or none."""
    asked = looked_at()
    names = [name for query in queries for name in _shown_series(query)]
    shown = [asked.get(name) or _looked_through(name) for name in names]
    found = set().union(*(alerts for alerts in shown if len(alerts) <= LIMIT))
    ordered = [name for name in dict.fromkeys(one.name for one in alerts()) if name in found]
    return ordered if len(ordered) <= LIMIT else []


def _looked_through(name: str) -> set[str]:
    """What is recorded for dashboards and no alert looks at stands for what it is made of."""
    parts = _shown_series(records()[name]) if name in records() else []
    return set().union(*(looked_at().get(part, set()) for part in parts))


def runbook(alert: str) -> str:
    """The address of an alert's runbook."""
    return next(one.annotations["runbook_url"] for one in alerts() if one.name == alert)


@cache
def looked_at() -> dict[str, set[str]]:
    """The alerts that look at a series, by its name: directly or through what is recorded."""
    found: dict[str, set[str]] = {}
    for alert in alerts():
        asked = _shown_series(alert.expression)
        seen: set[str] = set()
        while asked:
            name = asked.pop()
            if name not in seen:
                seen.add(name)
                asked += _shown_series(records()[name]) if name in records() else ()
        for name in seen:
            found.setdefault(name, set()).add(alert.name)
    return found


def _shown_series(query: str) -> list[str]:
    """The series of which an expression shows the values or the presence, without conditions."""
    for name, value in FILLED.items():
        query = query.replace(name, value)
    return list(_series(promql_parser.parse(query)))


def _series(node: promql_parser.Expr) -> Iterator[str]:
    if isinstance(node, promql_parser.VectorSelector):
        name = re.sub("_(bucket|count|sum)$", "", node.name or "")
        if name not in NAMING and not name.endswith("_info"):
            yield name
    elif isinstance(node, promql_parser.MatrixSelector):
        yield from _series(node.vector_selector)
    elif isinstance(node, promql_parser.BinaryExpr):
        yield from _series(node.lhs)
        if str(node.op) not in CONDITIONS:
            yield from _series(node.rhs)
    elif isinstance(node, promql_parser.Call):
        for argument in node.args:
            yield from _series(argument)
    elif hasattr(node, "expr"):
        yield from _series(node.expr)
