"""A test that was skipped is reported at the end, and fails if all are required to run."""

from __future__ import annotations

import pytest

from tests.needs import ALL, GET, farewell, missing

pytest_plugins = ["pytester"]

LACKING = """
import pytest

def test_rules():
    pytest.skip({reason!r})
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A suite of one test, which lacks promtool, under this one's hooks."""
    monkeypatch.delenv(ALL, raising=False)
    pytester.makeconftest("from tests.conftest import *")
    pytester.makepyfile(LACKING.format(reason=missing("promtool")))
    return pytester


def test_the_last_line_says_what_did_not_run_and_how_to_get_it(suite: pytest.Pytester) -> None:
    ran = suite.runpytest()
    ran.assert_outcomes(skipped=1)
    assert "NOT EVERY CHECK RAN" in ran.outlines[-1]
    assert "promtool (apt-get install prometheus" in ran.outlines[-1]


def test_where_all_checks_are_to_run_one_that_cannot_fails(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALL, "1")
    ran = suite.runpytest()
    ran.assert_outcomes(failed=1)
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
    assert "grafana_foundation_sdk (Python 3.11 or later)" in ran.outlines[-1]
    monkeypatch.setenv(ALL, "1")
    pytester.runpytest().assert_outcomes(errors=1)


def test_each_program_is_named_as_it_is_written() -> None:
    for name, how in GET.items():
        assert f"{name} ({how})" in " ".join(farewell([missing(name)]))


def test_a_missing_gpu_is_no_more_than_a_note() -> None:
    (line,) = farewell(["no NVIDIA GPU on this machine"])
    assert "NOT EVERY" not in line
    assert farewell(["only root may make namespaces"]) == []
