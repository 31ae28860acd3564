"""Each test runs in one of the groups that the Makefile names."""

from __future__ import annotations

import re

import pytest

pytest_plugins = ["pytester"]

SELECTED = re.compile(r'^\t\$\(BIN\)/pytest .*-m "(.+)"$', re.MULTILINE)

SUITE = """
import pytest

def test_quick(): ...

@pytest.mark.attack
def test_attack(): ...

@pytest.mark.integration
def test_integration(): ...

@pytest.mark.attack
@pytest.mark.integration
def test_both(): ...
"""


def test_every_test_runs_in_one_group(
    pytester: pytest.Pytester, pytestconfig: pytest.Config
) -> None:
    groups = SELECTED.findall((pytestconfig.rootpath / "Makefile").read_text())
    assert len(groups) == 3
    suite = pytester.makepyfile(SUITE)
    pytester.makepyprojecttoml((pytestconfig.rootpath / "pyproject.toml").read_text())
    ran: list[str] = []
    for group in groups:
        collected = pytester.runpytest(suite, "--collect-only", "-q", "-m", group)
        ran += re.findall(r"::(\w+)$", collected.stdout.str(), re.MULTILINE)
    assert sorted(ran) == ["test_attack", "test_both", "test_integration", "test_quick"]
