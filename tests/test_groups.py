"""Each test runs in one of the groups that the Makefile names.

``make test`` runs what tells a newcomer that all is well, ``make integration`` whole systems, and
``make attacks`` what measures the machine or has it for itself: ``.ci/run`` runs these three.
``make nightly`` runs the rest of the sweeps (``tests/sweeps.py``). With it, ``.ci/run nightly``
runs what takes programs of its own, and makes a release.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests import sweeps
from tests.conftest import ATTACKS
from tests.needs import ROOT

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

@pytest.mark.attack
@pytest.mark.nightly
def test_nightly(): ...
"""

SWEEP = """
import pytest

@pytest.mark.sweep(3)
@pytest.mark.parametrize("case", range(8))
def test_swept(case): ...

@pytest.mark.sweep(2)
@pytest.mark.parametrize("case", range(8))
def test_swept_by_halves(case): ...

def test_other(): ...
"""


class OfCommit:
    """A commit whose turn it is."""

    def __init__(self, turn: int) -> None:
        self.turn = turn

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        sweeps.mark_nightly(items, self.turn)


def test_every_test_runs_in_one_group(
    pytester: pytest.Pytester, pytestconfig: pytest.Config
) -> None:
    groups = SELECTED.findall((pytestconfig.rootpath / "Makefile").read_text())
    assert len(groups) == 4
    suite = pytester.makepyfile(SUITE)
    pytester.makepyprojecttoml((pytestconfig.rootpath / "pyproject.toml").read_text())
    ran: list[str] = []
    for group in groups:
        collected = pytester.runpytest(suite, "--collect-only", "-q", "-m", group)
        ran += re.findall(r"::(\w+)$", collected.stdout.str(), re.MULTILINE)
    assert sorted(ran) == [
        *("test_attack", "test_both", "test_integration", "test_nightly", "test_quick"),
    ]


def test_each_case_of_a_sweep_has_its_turn(
    pytester: pytest.Pytester, pytestconfig: pytest.Config
) -> None:
    suite = pytester.makepyfile(SWEEP)
    pytester.makepyprojecttoml((pytestconfig.rootpath / "pyproject.toml").read_text())
    turns: Counter[str] = Counter()
    for turn in range(6):
        chosen = ("--collect-only", "-q", "-m", "not nightly")
        collected = pytester.runpytest(suite, *chosen, plugins=[OfCommit(turn)])
        turns.update(re.findall(r"::(\S+)$", collected.stdout.str(), re.MULTILINE))
    assert turns == {
        **{f"test_swept[{case}]": 2 for case in range(8)},
        **{f"test_swept_by_halves[{case}]": 3 for case in range(8)},
        "test_other": 6,
    }


def test_what_is_among_the_attacks_is_marked_as_one(request: pytest.FixtureRequest) -> None:
    attacks = [item for item in request.session.items if ATTACKS in item.path.parents]
    assert all(item.get_closest_marker("attack") for item in attacks)


def made_by_ci(folder: Path, *arguments: str) -> list[str]:
    """The targets of make that CI asks for, in a checkout of nothing but its script."""
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", folder / ".ci")
    programs = folder / "programs"
    programs.mkdir()
    for name, does in {"make": f'echo "$@" >>"{folder}/made"', "apt-get": ":"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    subprocess.run([folder / ".ci/run", *arguments], env=environment, check=True)
    words = (folder / "made").read_text().split()
    return [word for word in words if re.fullmatch(r"[a-z-]+", word) and word[0] != "-"]


def test_each_commit_runs_three_groups_with_every_program(tmp_path: Path) -> None:
    made = made_by_ci(tmp_path)
    assert made[:2] == ["monitoring", "kubernetes"]
    assert {"lint", "test", "integration", "attacks", "demo"} <= set(made)


def test_the_night_has_the_sweeps_the_oldest_kubernetes_and_a_release(tmp_path: Path) -> None:
    made = made_by_ci(tmp_path, "nightly")
    assert made == ["monitoring", "kubernetes", "nightly", "chart-oldest", "release-dry-run"]
