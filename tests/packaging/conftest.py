"""A checkout with a tag for a release, and a registry."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from helm import release
from tests.bench.programs import program
from tests.conftest import until
from tests.daemon import free_port
from tests.needs import ROOT, need

VERSION = "9.8.7"


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    command = ["git", *who, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This checkout as it would be pushed, with a tag for a release."""
    folder = tmp_path_factory.mktemp("release") / "clone"
    folder.mkdir()
    listed = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    release.prepare(folder, VERSION, "2030-01-02")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", f"Release {VERSION}")
    git(folder, "tag", f"v{VERSION}")
    return folder


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry of images and charts on this machine."""
    port = free_port()
    log = tmp_path_factory.mktemp("registry") / "log"
    with program([need("registry"), f"-port={port}"], log):
        address = f"127.0.0.1:{port}"

        def answers() -> bool:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/v2/"):
                return True
            return False

        until(answers)
        yield address
