"""Each test runs in one of the groups that the Makefile names, whatever marks it has."""

from __future__ import annotations

import itertools
import re

from tests.needs import ROOT

SELECTED = re.compile(r'pytest .*-m "(.+)"$', re.MULTILINE)
MARKS = ("attack", "integration", "nightly")


def test_every_test_runs_in_one_group() -> None:
    groups = SELECTED.findall((ROOT / "Makefile").read_text())
    assert len(groups) == 4
    for marked in itertools.product((False, True), repeat=len(MARKS)):
        marks = dict(zip(MARKS, marked, strict=True))
        assert sum(eval(group, {}, marks) for group in groups) == 1, marks
