"""An expression taken apart, held against a whole parser of PromQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpunode.explain import promql, rule_files


def read_by_parser(node: Any) -> Iterator[str]:
    """The metrics that an expression reads, as the parser tells them."""
    if isinstance(node, promql_parser.VectorSelector):
        yield str(node.name)
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        below = getattr(node, name, None)
        if below is not None and not isinstance(below, str | int | float):
            yield from read_by_parser(below)
    for below in getattr(node, "args", None) or ():
        yield from read_by_parser(below)


def held_against_the_parser(expression: str) -> None:
    wanted = Counter(read_by_parser(promql_parser.parse(expression)))
    assert Counter(name for name, _ in promql.selectors(expression)) == wanted, expression
    for clauses in promql.alternatives(expression):
        for clause in clauses:
            promql_parser.parse(clause.text)
            promql_parser.parse(clause.until)
            if sides := promql.comparison(clause.text):
                promql_parser.parse(sides.left)
                promql_parser.parse(f"({sides.left}) * 0 + {sides.matching} ({sides.right})")


def test_every_rule_is_taken_apart_as_the_parser_reads_it() -> None:
    for rule in rule_files.read_rules():
        held_against_the_parser(rule.expression)


NAMES = st.sampled_from(["up", "gpu:gpunode_owner:info", "by_hand", "on_call", "and_so", "bool_x"])
VALUES = st.sampled_from(['"a"', "'b) or (c'", '"# {x=\\"y\\"}"', "`un{less`", '""'])
LABELS = st.lists(st.sampled_from(["on", "by", "cluster", "le", "and_", "offset"]), max_size=3)
PLAIN = st.one_of(
    st.builds("{}{{job={}}}".format, NAMES, VALUES),
    st.builds("{}{{job=~{}, x!={},}}".format, NAMES, VALUES, VALUES),
    NAMES,
)


def _deeper(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    on = LABELS.map(lambda labels: f"on ({', '.join(labels)})")
    return st.one_of(
        st.builds("({})".format, inner),
        st.builds("{} and {} {}".format, inner, on, inner),
        st.builds("{} unless {}".format, inner, inner),
        st.builds("{} OR {} # or this\n".format, inner, inner),
        st.builds("sum by ({}) ({})".format, LABELS.map(", ".join), inner),
        st.builds("max ({}) without ({})".format, inner, LABELS.map(", ".join)),
        st.builds("({}) > {} group_left (more) ({})".format, inner, on, inner),
        st.builds("({}) >= 1.5e-3 * scalar(max({}))".format, inner, PLAIN),
        st.builds("rate({}[5m] offset 1h) != 0".format, PLAIN),
        st.builds('label_replace({}, "a", "$1", "b", "(.*) or x")'.format, inner),
    )


@settings(max_examples=60, deadline=None)
@given(st.recursive(PLAIN, _deeper, max_leaves=6))
def test_any_expression_is_taken_apart_as_the_parser_reads_it(expression: str) -> None:
    held_against_the_parser(expression)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab(){}[]\"'`\\ #\n<>=!~or1.:,", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        promql.strip_parentheses(text)
        promql.comparison(text)
        promql.alternatives(text)
        list(promql.selectors(text))
    except promql.PromqlError:
        pass


def test_clauses_are_told_with_what_comes_before_them() -> None:
    (first, second) = promql.alternatives(
        'a > 1 and on (x, y) (b or c) unless ignoring (z) d == 2 or e{or="f or g"}'
    )
    assert [(one.operator, one.on, one.text) for one in first] == [
        ("", None, "a > 1"),
        ("and", ("x", "y"), "(b or c)"),
        ("unless", None, "d == 2"),
    ]
    assert first[1].until == "a > 1 and on (x, y) (b or c)"
    assert [one.text for one in second] == ['e{or="f or g"}']
    sides = promql.comparison("sum by (a) (b > 2) >= bool 3")
    assert sides is None
    sides = promql.comparison("a > on (x) group_left () scalar(b == 3) * 2")
    assert sides is not None
    assert (sides.left, sides.operator, sides.matching) == ("a", ">", "on ( x ) group_left ( )")
    assert sides.right == "scalar(b == 3) * 2"


@pytest.mark.parametrize("text", ["a)", "(a", "{a]", '"a', "a ? b", "or a", "a and"])
def test_what_is_no_promql_is_refused(text: str) -> None:
    with pytest.raises(promql.PromqlError):
        promql.alternatives(text)
