"""Which alerts a query is about: it shows what they look at, and their runbooks say what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import promql_parser

from alerts.recording import overview
from alerts.rule_files import EXPRESSIONS, substituted
from alerts.settings import RUNBOOKS_URL
from alerts.thresholds.table import THRESHOLDS

MOST = 3
"""A series that more alerts look at is about none of them, such as that of the owners of GPUs; and
a panel links no more runbooks than a reader looks through."""

FILLED = {"$__rate_interval": "5m", "$__range": "1h", "$price": "1", "$budget": "1"}
"""What a query has where PromQL has no variables."""

CONDITIONS = {"/", "and", "unless", "==", "!=", ">", "<", ">=", "<="}
"""Operators of which the left side is what an expression shows. The right side is a condition, or
that of which it is a share."""

FOR_DASHBOARDS = {record.name for record in (*overview.OF_NODES, *overview.OF_CLUSTERS)}
"""What is recorded for dashboards and no alert looks at stands for what it is made of."""

NAMING = {
    "gpu:gpunode_lemon:incident",
    "gpunode_gpu_bottleneck",
    "job:gpunode_gpu_bottleneck:count",
    "job:gpunode_job:gpus",
}
"""Series that say which jobs there are, by what GPUs are held up and what happened on them, as
infos do: an alert looks at one name of many, or at all of them together."""


def alerts_of(*queries: str) -> list[str]:
    """The alerts that look at what queries show, in the order of the table; at most ``MOST``.

    Where a fault of a part has an alert of its own, the alert for many such parts is left out.
    """
    asked = looked_at()
    names = [name for query in queries for name in _shown(query)]
    of = [
        _shown(EXPRESSIONS[name]) if name in FOR_DASHBOARDS - asked.keys() else [name]
        for name in names
    ]
    shown = [asked.get(name, set()) for each in of for name in each]
    found = set().union(*(alerts for alerts in shown if len(alerts) <= MOST))
    ordered = [row for row in THRESHOLDS if row.alert in found]
    of_one = [row for row in ordered if row.scope != "fault"] or ordered
    return [row.alert for row in of_one] if len(of_one) <= MOST else []


def runbook(alert: str) -> str:
    """The address of an alert's runbook."""
    return f"{RUNBOOKS_URL.value}/{alert}.md"


@cache
def looked_at() -> dict[str, set[str]]:
    """The alerts that look at a series, by its name: directly or through what is recorded."""
    found: dict[str, set[str]] = {}
    for row in THRESHOLDS:
        asked = [row.record, *(tier.record for tier in row.tiers if tier.record)]
        seen: set[str] = set()
        while asked:
            name = asked.pop()
            if name not in seen:
                seen.add(name)
                asked += _shown(EXPRESSIONS[name]) if name in EXPRESSIONS else ()
        for name in seen:
            found.setdefault(name, set()).add(row.alert)
    return found


def _shown(query: str) -> list[str]:
    """The series of which an expression shows the values or the presence, without conditions."""
    for name, value in FILLED.items():
        query = query.replace(name, value)
    return list(_series(promql_parser.parse(substituted(query))))


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
