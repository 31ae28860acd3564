"""The unit for systemd: as closed as the documents say, and open enough to run."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests import needs

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "exporter/systemd/gpunode.service"
DOCUMENT = (ROOT / "docs/slurm.md").read_text()

LEVELS = dict(re.findall(r"^\| ([`a-z ]+) \| ([0-9.]+) \|", DOCUMENT, re.MULTILINE))
"""The scores of the document."""

ADDED = dict(re.findall(r"(`[a-z]+`):\n\n```ini\n(.*?)```", DOCUMENT, re.DOTALL))
"""What is added to the unit for a level."""


def unit_of(level: str, folder: Path) -> Path:
    """The unit of a level, as ``systemctl edit`` makes it."""
    unit = folder / "gpunode.service"
    unit.write_text(f"{UNIT.read_text()}\n{ADDED.get(level, '')}")
    return unit


def test_every_level_is_documented() -> None:
    assert LEVELS.keys() == {"as installed", *ADDED}
    assert len(LEVELS) == 3


@pytest.mark.parametrize("level", LEVELS)
def test_the_unit_scores_as_documented(level: str, tmp_path: Path) -> None:
    command = [needs.need("systemd-analyze"), "security", "--offline=true", "--no-pager"]
    ended = subprocess.run(
        [*command, str(unit_of(level, tmp_path))], capture_output=True, text=True, check=True
    )
    found = re.search(r"exposure level for gpunode.service: ([0-9.]+)", ended.stdout)
    assert found
    # Versions of systemd weigh a little differently.
    assert float(found[1]) == pytest.approx(float(LEVELS[level]), abs=0.3)


@pytest.mark.parametrize("level", LEVELS)
def test_systemd_understands_every_line(level: str, tmp_path: Path) -> None:
    unit = unit_of(level, tmp_path)
    unit.write_text(unit.read_text().replace("/opt/gpunode/bin/gpunode", "/bin/true"))
    command = [needs.need("systemd-analyze"), "verify", "--man=no", str(unit)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert str(unit) not in ended.stderr
    assert ended.returncode == 0, ended.stderr


def calls(group: str) -> set[str]:
    """The system calls of a group of systemd's."""
    command = [needs.need("systemd-analyze"), "syscall-filter", "--no-pager", group]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    words = [line.partition("#")[0].strip() for line in listed.splitlines()[1:]]
    return {
        call
        for word in filter(None, words)
        for call in (calls(word) if word.startswith("@") else {word})
    }


def test_the_unit_allows_every_call_of_the_profile_under_which_the_daemon_was_seen() -> None:
    allowed: set[str] = set()
    for line in re.findall(r"^SystemCallFilter=(.*)$", UNIT.read_text(), re.MULTILINE):
        for word in line.removeprefix("~").split():
            named = calls(word) if word.startswith("@") else {word}
            allowed = allowed - named if line.startswith("~") else allowed | named
    profile = json.loads((ROOT / "docker/seccomp.json").read_text())
    used = {name for rule in profile["syscalls"] for name in rule["names"]}
    assert used
    assert used <= allowed
