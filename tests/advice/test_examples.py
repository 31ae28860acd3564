"""The examples of docs/advise.md do what the page says, with real programs around them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpunode.advice.formats import CONDITION, CONDITION_REASONS

INSTALLED = "/opt/gpunode/bin/gpunode"
PAGES = Path(__file__).parents[2] / "docs"
PAGE = (PAGES / "advise.md").read_text()
EXAMPLES: Mapping[str, str] = dict(re.findall(r"```(bash|json)\n(.*?)```", PAGE, re.S))


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """A file into which programs of these names write their arguments, first in the path."""
    for program, does in {
        "gpunode": 'printf "%s" "$SAYS"; [ -z "$WRONG" ] || echo "$WRONG" >&2; exit "$CODE"',
        "scontrol": ":",
        "logger": f'cat >> "{tmp_path}/log"',
        "timeout": 'shift; exec "$@"',
    }.items():
        script = tmp_path / program
        script.write_text(
            f'#!/bin/bash\nprintf "%s\\n" {program} "$@" >> "{tmp_path}/calls"\n{does}\n'
        )
        script.chmod(0o755)
    return tmp_path / "calls"


def environment(calls: Path, says: str, code: int) -> dict[str, str]:
    path = f"{calls.parent}:{os.environ['PATH']}"
    wrong = "no daemon answers" if code == 2 else ""
    return {**os.environ, "PATH": path, "SAYS": says, "CODE": str(code), "WRONG": wrong}


@pytest.mark.parametrize(
    ("says", "code", "drains"),
    [("gpunode reset GPU 3, harms ml/llama-0\n", 1, True), ("", 0, False), ("", 2, False)],
)
def test_the_health_check_drains_what_is_advised_and_never_fails(
    calls: Path, says: str, code: int, drains: bool
) -> None:
    script = EXAMPLES["bash"]
    assert INSTALLED in script
    done = subprocess.run(
        ["bash", "-c", script.replace(INSTALLED, "gpunode")],
        env=environment(calls, says, code),
        check=False,
    )
    assert done.returncode == 0
    lines = calls.read_text().splitlines()
    assert ("scontrol" in lines) == drains
    if drains:
        assert lines[-2:] == ["state=drain", f"reason={says.strip()}"]
    logged = (calls.parent / "log").read_text()
    assert logged.strip() == ("no daemon answers" if code == 2 else "")


def test_programs_are_called_where_the_pages_install_them() -> None:
    for name in ("slurm.md", "why.md"):
        assert Path(INSTALLED).parent.as_posix() in (PAGES / name).read_text()
    (rule,) = json.loads(EXAMPLES["json"])["rules"]
    assert rule["path"] == INSTALLED


def test_the_plugin_of_node_problem_detector_uses_our_words() -> None:
    config = json.loads(EXAMPLES["json"])
    (condition,), (rule,) = config["conditions"], config["rules"]
    assert condition["type"] == rule["condition"] == CONDITION
    assert condition["reason"] in CONDITION_REASONS.values()
    assert rule["args"][0] == "advise"
