"""The table of defences is up to date, and a test misses each of them."""

from __future__ import annotations

import pytest

from tests.defences.removal import ROOT, Defence, without
from tests.defences.table import DEFENCES

BY_NAME = {defence.name: defence for defence in DEFENCES}
EACH = [pytest.param(o.name, marks=[] if o.quick else [pytest.mark.nightly]) for o in DEFENCES]


@pytest.mark.parametrize("defence", DEFENCES, ids=lambda one: one.name)
def test_a_defence_is_where_the_table_says(defence: Defence) -> None:
    assert defence.is_there, defence.text
    assert defence.text != defence.without
    assert (ROOT / defence.tests).is_file()


def test_each_defence_has_a_name_of_its_own() -> None:
    assert len(BY_NAME) == len(DEFENCES) >= 40


@pytest.mark.attack
@pytest.mark.sweep(8)
@pytest.mark.parametrize("name", EACH)
def test_a_defence_is_missed_once_it_is_gone(name: str) -> None:
    outcome, said = without(BY_NAME[name])
    assert outcome == "missed", said


@pytest.mark.attack
def test_what_no_test_misses_is_told() -> None:
    """The run itself can fail: a change of words in a log line has no test."""
    harmless = Defence(
        "words",
        "node/patience.py",
        "skipped until there is one",
        "passed over until there is one",
        "tests/node/test_patience.py",
    )
    assert without(harmless)[0] == "survives"
