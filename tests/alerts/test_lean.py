"""What rules ask is said shorter, and answered the same."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import promql_parser as promql
import pytest

from alerts.lean import PLACEHOLDER, lean
from alerts.rule_files import EXPRESSIONS, substituted
from tests.alerts.rule_tests import with_labels
from tests.dashboards.test_runs import promtool

SAID = {
    "max by (a) (x) > 1": "max by (a) (x > 1)",
    "max (x) > 1": "max (x > 1)",
    "min by (a) (x) <= ${least}": "min by (a) (x <= ${least})",
    "w and on (a) max by (a, b) (x)": "w and on (a) x",
    "sum by (a, b) (w) and on (a) x > 1": "sum by (a, b) (w and on (a) x > 1)",
    "count by (a) (w or x) unless on (a) z": "count by (a) ((w or x) unless on (a) z)",
    "avg by (b) (w) and on () max (x) > 1": "avg by (b) (w and on () max (x > 1))",
    "w unless on (a) max by (a) (x) > 1": "w unless on (a) x > 1",
    "w and on (a) (sum by (a, b) (x) or on (a, b) max by (a, b) (y) > 1)": (
        "w and on (a) (x or on (a, b) y > 1)"
    ),
    "w and on (a) (max by (a, b) (x) unless on (b) count by (b) (y))": (
        "w and on (a) (x unless on (b) y)"
    ),
    "w and on (a) (max by (a) (x or y) unless on (a) z)": "w and on (a) ((x or y) unless on (a) z)",
    'count by (a) (x{job=~"${jobs}"} and on (a) max by (a) (y) > ${most})': (
        'count by (a) (x{job=~"${jobs}"} and on (a) y > ${most})'
    ),
}
"""What is said otherwise."""

AS_IT_IS = (
    "max by (a) (x) < 1",
    "min by (a) (x) > 1",
    "max by (a) (x) > bool 1",
    "max by (a) (x) == 1",
    "sum by (a) (x) > 1",
    "max by (a) (x) > time() - 900",
    "w and on (a) max by (b) (x)",
    "sum by (b) (w) and on (a) x",
    "sum by (a) (w) and x",
    "topk by (a) (1, w) and on (a) x > 1",
    "w and on (a) sum by (a) (x) > 1",
    "w and on (a) topk by (a) (1, x)",
    "w and on (a) (x or on (b) max by (b) (y))",
    "w or on (a) max by (a) (x)",
    "w * on (a) group_left () max by (a) (x)",
    "w and max by (a) (x)",
    "w and ignoring (a) max by (b) (x)",
    "max_over_time((x > 0)[1h:5m] offset 1d)",
    "(w or x) and on (a) y",
)
"""What would be answered otherwise, or cannot be said shorter."""


@pytest.mark.parametrize("asked", SAID)
def test_what_is_left_out_does_not_count(asked: str) -> None:
    assert lean(asked) == SAID[asked]


@pytest.mark.parametrize("asked", AS_IT_IS)
def test_what_counts_stays(asked: str) -> None:
    assert lean(asked) == asked


SERIES = {
    with_labels(name, {"a": a, "b": b, "job": job}): f"{value}x100"
    for number, (name, a, b, job) in enumerate(product("wxyz", "123456", "123", "12"))
    for value in [number * 7 % 11 % 4]
    if number * 5 % 7 > 3 and (name, b) != ("y", "3") and (name, a) != ("z", "6")
}
"""Two scrapes of each exporter, which tell different values, and some series that only one has."""


def test_the_answers_are_the_same(tmp_path: Path) -> None:
    """Also where two scrapes of an exporter tell different values, or one lacks a series."""
    pairs = [
        [PLACEHOLDER.sub(lambda name: "1" if name[1] != "jobs" else ".+", text) for text in pair]
        for pair in SAID.items()
    ]
    assert all(before != after for before, after in pairs)
    differ = [
        f"count(({one}) unless ({other}))" for pair in pairs for one, other in (pair, pair[::-1])
    ]
    values = [f"count(({before}) != ({after}))" for before, after in pairs]
    found = [f"count({before})" for before, _ in pairs]
    told = promtool(tmp_path, SERIES, 60, {one: [] for one in (*differ, *values)})
    assert not told, told
    told = promtool(tmp_path, SERIES, 60, {one: [] for one in found})
    assert len(re.findall("got:", told)) == len(found), "each finds something"


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_a_rule_asks_for_the_same_series(name: str) -> None:
    """Without a regular expression more or less: nothing is left out but aggregations."""
    before, after = (
        sorted(re.findall(r"[\w:]+\{[^}]*\}(?:\[[^]]*\])?", str(promql.parse(substituted(text)))))
        for text in (EXPRESSIONS[name], lean(EXPRESSIONS[name]))
    )
    assert before == after
