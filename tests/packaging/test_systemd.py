"""The units for systemd: as closed as the documents say, and open enough to run."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from gpunode.helper.serve import work_of
from tests import needs

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "exporter/systemd/gpunode-report.service"
"""The report's, which runs from a timer: `tests/report/test_schedule.py`."""

UNITS = sorted(set((ROOT / "exporter/systemd").glob("*.service")) - {REPORT})
UNIT = ROOT / "exporter/systemd/gpunode.service"
DOCUMENT = (ROOT / "docs/slurm.md").read_text()

SCORES = dict(re.findall(r"^\| `([a-z-]+)` \| ([0-9.]+) \|", DOCUMENT, re.MULTILINE))
"""The scores of the document."""

CAPABILITY = re.compile(r"\bCAP_(\w+)")


def test_every_unit_is_documented() -> None:
    assert SCORES.keys() == {unit.stem for unit in UNITS}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_scores_as_documented(unit: Path) -> None:
    command = [needs.need("systemd-analyze"), "security", "--offline=true", "--no-pager"]
    ended = subprocess.run([*command, str(unit)], capture_output=True, text=True, check=True)
    found = re.search(rf"exposure level for {unit.name}: ([0-9.]+)", ended.stdout)
    assert found
    # Versions of systemd weigh a little differently.
    assert float(found[1]) == pytest.approx(float(SCORES[unit.stem]), abs=0.3)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_understands_every_line(unit: Path, tmp_path: Path) -> None:
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/gpunode/bin/gpunode", "/bin/true"))
    command = [needs.need("systemd-analyze"), "verify", "--man=no", str(copy)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert str(copy) not in ended.stderr
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_has_the_capabilities_of_its_work_and_the_daemon_none(unit: Path) -> None:
    own = work_of(unit.stem.partition("-")[2], "", "", "").capabilities if unit != UNIT else ()
    for setting in ("CapabilityBoundingSet", "AmbientCapabilities"):
        (line,) = re.findall(rf"^{setting}=(.*)$", unit.read_text(), re.MULTILINE)
        assert sorted(CAPABILITY.findall(line)) == sorted(own)


def test_the_units_run_as_one_user_and_meet_in_one_folder() -> None:
    for unit in UNITS:
        text = unit.read_text()
        assert "\nDynamicUser=yes\nUser=gpunode\n" in text
        work = unit.stem.partition("-")[2]
        folder = f"/run/gpunode-helpers/{work}" if work else "/run/gpunode-helpers"
        assert re.search(rf"={folder}(?: --unit=/system.slice/{UNIT.name})?$", text, re.MULTILINE)
        own = f"RuntimeDirectory={folder.removeprefix('/run/')}\nRuntimeDirectoryMode=0700\n"
        assert not work or own in text
        # What outlives a unit of a dynamic user is in /run/private, which is closed to the others.
        assert "RuntimeDirectoryPreserve" not in text


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


def test_the_daemon_keeps_incidents_where_its_unit_lets_it_write() -> None:
    unit = UNIT.read_text()
    (state,) = re.findall(r"^StateDirectory=(\S+)$", unit, re.MULTILINE)
    (folder,) = re.findall(r"^Environment=GPUNODE_INCIDENT__FOLDER=(\S+)$", unit, re.MULTILINE)
    assert Path(folder).parent == Path("/var/lib") / state
