"""Expressions that ask for the same and take Prometheus less work.

The table and the recording rules are written for readers: what a GPU tells is ``max by`` its
labels, because two scrapes of one exporter count once. Where only the presence of a series counts,
as on the right of ``and on`` and ``unless on``, that says nothing: there, Prometheus would build
the labels of 10,000 GPUs anew, once for each such place and evaluation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

import promql_parser as promql

PLACEHOLDER = re.compile(r"\$\{(\w+)\}")
STAND_IN = 7_770_000_000
"""The number that stands for the first setting of an expression, which no rule has."""

PRESENT_IF_ANY = {"max", "min", "sum", "count", "avg", "group"}
"""Aggregations of which a group has a value if any series of it has."""

EARLY: Mapping[str, frozenset[str]] = {"max": frozenset((">", ">=")), "min": frozenset(("<", "<="))}
"""Comparisons that hold for an aggregate if they hold for any of its series, whose values alone
then matter."""

Labels = frozenset[str]


@cache
def lean(expression: str) -> str:
    """The same question, with settings in braces as they are.

    - What is compared and then aggregated gives the same as what is aggregated and then compared,
      where the largest must be larger, or the least less. Few series pass, and are aggregated.
    - What is aggregated and then kept or left out by labels that the aggregation keeps, as on the
      left of ``and`` and ``unless``, gives the same as what is kept and then aggregated.
    - On the right of ``and`` and ``unless``, an aggregation that keeps the labels of ``on`` is left
      out.
    """
    settings = list(dict.fromkeys(PLACEHOLDER.findall(_without_texts(expression))))
    numbers = {name: str(STAND_IN + at) for at, name in enumerate(settings)}
    parts = re.split(r'("[^"]*")', expression)
    asked = "".join(
        part if part.startswith('"') else PLACEHOLDER.sub(lambda setting: numbers[setting[1]], part)
        for part in parts
    )
    found = _asked(promql.parse(asked))
    for name, number in numbers.items():
        found = found.replace(number, f"${{{name}}}")
    return found


def _without_texts(expression: str) -> str:
    return re.sub(r'"[^"]*"', '""', expression)


def _asked(node: promql.Expr) -> str:
    """An expression of whose series labels and values count."""
    match node:
        case promql.BinaryExpr():
            early = _compared_early(node)
            if early:
                return early
            on = _labels("on", node.modifier)
            if str(node.op) not in ("and", "unless") or on is None:
                return _joined(_asked(node.lhs), node, _asked(node.rhs))
            left, right = _bare(node.lhs), _right(node.rhs, on)
            if isinstance(left, promql.AggregateExpr) and _keeps(left, on):
                each = _in_parentheses(_asked(left.expr), "or")
                return f"{left.op}{_after(left.modifier)} ({_joined(each, node, right)})"
            return _joined(_asked(node.lhs), node, right)
        case promql.ParenExpr():
            return f"({_asked(node.expr)})"
        case promql.AggregateExpr():
            parameter = "" if node.param is None else f"{_asked(node.param)}, "
            return f"{node.op}{_after(node.modifier)} ({parameter}{_asked(node.expr)})"
        case promql.Call():
            return f"{node.func.name}({', '.join(map(_asked, node.args))})"
        case promql.UnaryExpr():
            return f"-{_asked(node.expr)}"
        case promql.SubqueryExpr():
            inside = _bare(node.expr)
            whole = str(node)
            simple = isinstance(inside, promql.VectorSelector | promql.Call)
            asked = _asked(inside) if simple else f"({_asked(inside)})"
            return asked + whole[whole.rindex("[") :]
        case _:
            return str(node).replace("{}", "")


def _joined(left: str, node: promql.BinaryExpr, right: str) -> str:
    return f"{left} {node.op}{_after(node.modifier)} {right}"


def _after(modifier: object) -> str:
    """``by`` or ``on`` as it stands after an operator, if there is any."""
    text = str(modifier or "")
    return text and f" {text}"


def _bare(node: promql.Expr) -> promql.Expr:
    while isinstance(node, promql.ParenExpr):
        node = node.expr
    return node


def _labels(word: str, modifier: object) -> Labels | None:
    """The labels of ``by`` or ``on``; None where all but some count."""
    found = re.match(rf"{word} \(([^)]*)\)", str(modifier))
    return None if found is None else frozenset(re.findall(r"\w+", found[1]))


def _compared(node: promql.BinaryExpr) -> promql.AggregateExpr | None:
    """The aggregation that is compared with a number, if any series of a group decides."""
    left = _bare(node.lhs)
    if not isinstance(left, promql.AggregateExpr) or not isinstance(node.rhs, promql.NumberLiteral):
        return None
    decides = str(node.op) in EARLY.get(str(left.op), ())
    return left if decides and not (node.modifier and node.modifier.return_bool) else None


def _compared_early(node: promql.BinaryExpr) -> str:
    left = _compared(node)
    return f"{left.op}{_after(left.modifier)} ({_each(left, node)})" if left else ""


def _each(left: promql.AggregateExpr, node: promql.BinaryExpr) -> str:
    """The comparison of each series."""
    inside = _asked(left.expr)
    simple = isinstance(_bare(left.expr), promql.VectorSelector | promql.Call)
    return f"{inside if simple else f'({inside})'} {node.op} {node.rhs}"


def _present(node: promql.Expr, on: Labels) -> str:
    """An expression of which only these labels count, and whether there is such a series."""
    node = _bare(node)
    match node:
        case promql.AggregateExpr() if _keeps(node, on):
            return _present(node.expr, on)
        case promql.BinaryExpr():
            op = str(node.op)
            its = _labels("on", node.modifier)
            left = _compared(node)
            if left and _keeps(left, on):
                return _each(left, node)
            if op == "or" and its is not None and on <= its:
                return _joined(_present(node.lhs, its), node, _right(node.rhs, its))
            if op in ("and", "unless") and its is not None:
                return _joined(_left(node.lhs, on | its), node, _right(node.rhs, its))
            return _asked(node)
        case _:
            return _asked(node)


def _left(node: promql.Expr, on: Labels) -> str:
    """The same as the left side of ``and`` or ``unless``."""
    return _in_parentheses(_present(node, on), "or")


def _right(node: promql.Expr, on: Labels) -> str:
    """The same as the right side of a set operator."""
    return _in_parentheses(_present(node, on), "and", "or", "unless")


def _in_parentheses(expression: str, *operators: str) -> str:
    """In parentheses if it is made of two by one of these operators, which bind least."""
    node = promql.parse(expression)
    weak = isinstance(node, promql.BinaryExpr) and str(node.op) in operators
    return f"({expression})" if weak else expression


def _keeps(node: promql.AggregateExpr, on: Labels) -> bool:
    """Whether an aggregation adds nothing but fewer labels, all of ``on`` among them."""
    by = _labels("by", node.modifier)
    return str(node.op) in PRESENT_IF_ANY and by is not None and on <= by
