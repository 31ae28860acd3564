"""What ``pip install 'gpunode[exporter]'`` puts on a machine, built and installed for real."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from gpunode import __version__
from gpunode.export.web.page import FOLDER
from gpunode.recorded import INCIDENTS, STORIES
from tests.daemon import TIMEOUT

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_package_with_its_types_and_incidents(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    place = f"gpunode-{__version__}.data/data/lib/systemd/system"
    units = {f"{place}/{unit.name}" for unit in (ROOT / "exporter/systemd").iterdir()}
    assert len(units) == 6
    assert {name.partition("/")[0] for name in names - units} == {"gpunode"}
    assert units <= names
    assert {"gpunode/py.typed", "gpunode/client/__init__.py"} <= names
    rules = {f"gpunode/rules/{path.name}" for path in (ROOT / "alerts/rules").iterdir()}
    assert rules == {name for name in names if name.startswith("gpunode/rules/")}
    assert "gpunode/alertmanager.yaml" in names
    page = "gpunode/export/web/page/"
    files = {f"{page}{path.name}" for path in FOLDER.iterdir() if path.is_file()}
    assert len(files) == 5
    assert files == {name for name in names if name.startswith(page)}
    assert {f"gpunode/report/templates/report.{kind}" for kind in ("html", "css")} <= names
    for folder in (INCIDENTS, STORIES):
        tapes = {f"gpunode/{folder.name}/{path.name}" for path in folder.glob("*.jsonl.gz")}
        assert tapes
        held = {name for name in names if f"gpunode/{folder.name}/" in name}
        assert tapes == {name for name in held if not name.endswith(".py")}


@pytest.mark.integration
def test_the_demo_plays_from_an_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = ["pip", "install", "--quiet", "--no-deps", "--no-index", f"--target={site}"]
    subprocess.run([sys.executable, "-m", *install, str(wheel)], check=True)
    demo = ["demo", "hang", "--once", "--speed=400", "--web.listen-address=127.0.0.1:0"]
    # Without the editable installation of this repository, but with what the exporter depends on.
    path = os.pathsep.join([str(site), sysconfig.get_path("purelib")])
    ended = subprocess.run(
        [sys.executable, "-S", "-m", "gpunode", *demo],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "\nhang: GPUs 0–4, 6 and 7 hang: they wait for GPU 5" in ended.stdout  # noqa: RUF001
