"""``gpunode rules --into``: the files that a Prometheus loads, written by the installed program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gpunode.explain import rule_files
from tests.needs import ROOT

ALERTS = ROOT / "alerts"


def write(folder: Path, into: str = "mine") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpunode", "rules", f"--into={into}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_it_writes_the_files_of_the_project_as_they_are(tmp_path: Path) -> None:
    ran = write(tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    ours = {path.name: path.read_text() for path in (ALERTS / "rules").iterdir()}
    made = {path.name: path.read_text() for path in (tmp_path / "mine/rules").iterdir()}
    assert made == ours
    (line,) = ran.stdout.splitlines()
    assert line.startswith(f"mine: wrote {len(ours)} rule files")
    example = (tmp_path / "mine/alertmanager.yaml").read_text()
    assert example == (ALERTS / "alertmanager.yaml").read_text()


def test_thresholds_of_the_site_are_kept_and_what_they_lack_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    own = tmp_path / "mine/rules/thresholds.yaml"
    lacking, *_ = rule_files.thresholds(rule_files.read_rules())
    changed = own.read_text().replace("vector(80)", "vector(85)")
    own.write_text(changed)
    (tmp_path / "mine/rules/jobs.yaml").write_text("old")
    ran = write(tmp_path)
    assert ran.stdout.splitlines()[1:] == ["mine/rules/thresholds.yaml: kept as it was"]
    assert own.read_text() == changed
    assert (tmp_path / "mine/rules/jobs.yaml").read_text() != "old"
    own.write_text(changed.replace(lacking, "another"))
    said = write(tmp_path).stdout.splitlines()[1]
    assert said.startswith(f"mine/rules/thresholds.yaml: kept as it was; it lacks {lacking}, so ")
    own.write_text("groups: {")
    ran = write(tmp_path)
    assert ran.returncode == 2
    assert ran.stderr.startswith("gpunode: mine/rules/thresholds.yaml: not YAML")


def test_files_of_another_version_are_named(tmp_path: Path) -> None:
    (tmp_path / "mine/rules").mkdir(parents=True)
    (tmp_path / "mine/rules/cluster_jobs.yaml").write_text("groups: []")
    said = write(tmp_path).stdout.splitlines()
    assert said[1].startswith("mine/rules: cluster_jobs.yaml: not of this version; remove ")


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = write(tmp_path, "file")
    complaint = "gpunode: file/rules: cannot be written: Not a directory\n"
    assert (ran.returncode, ran.stderr) == (2, complaint)
    command = [sys.executable, "-m", "gpunode", "rules"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr.startswith("gpunode: say either --into=FOLDER, to write the rules, or expl")
