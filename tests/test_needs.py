"""A test that was skipped is reported at the end, and fails if all are required to run."""

from __future__ import annotations

import pytest

from tests.needs import ALL, missing

pytest_plugins = ["pytester"]

LACKING = """
import pytest

def test_rules():
    pytest.skip({reason!r})

def test_alerts():
    pytest.skip({reason!r})

def test_rest(): ...
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A suite of three tests, two of which lack promtool, under this one's hooks."""
    monkeypatch.delenv(ALL, raising=False)
    pytester.makeconftest("from tests.conftest import *")
    pytester.makepyfile(LACKING.format(reason=missing("promtool")))
    return pytester


def test_the_last_line_says_what_ran_what_could_not_and_why(suite: pytest.Pytester) -> None:
    last = suite.runpytest().outlines[-1]
    assert last == f"1 passed, 2 could not run: {missing('promtool')} (2)"


def test_where_all_checks_are_to_run_one_that_cannot_fails(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALL, "1")
    ran = suite.runpytest()
    ran.assert_outcomes(passed=1, failed=2)
    assert "promtool is not here" in ran.stdout.str()


def test_what_dashboards_are_written_with_is_not_for_python_3_10(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ALL, raising=False)
    pytester.makeconftest("from tests.conftest import *")
    lacking = "No module named 'grafana_foundation_sdk'"
    pytester.makepyfile(
        test_boards=f"raise ModuleNotFoundError({lacking!r})", test_rest="def test_rest(): ..."
    )
    ran = pytester.runpytest()
    ran.assert_outcomes(passed=1, skipped=1)
    assert missing("grafana_foundation_sdk") in ran.outlines[-1]
    monkeypatch.setenv(ALL, "1")
    pytester.runpytest().assert_outcomes(errors=1)
