"""Runs tests over a copy of the package in which one defence is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "exporter" / "gpunode"

LONGEST = 60.0
"""Seconds after which tests that hang without a defence count as failed."""

PASSED, FAILED = 0, 1
"""What pytest ends with; another number means that no test ran."""

Outcome = Literal["missed", "survives", "broken"]


@dataclass(frozen=True, slots=True)
class Defence:
    """A defence, what it consists of, and the tests that fail without it."""

    name: str
    file: str
    """Within the package."""

    text: str
    """What stands there once."""

    without: str
    """What stands there without the defence."""

    tests: str
    """A file of tests."""

    which: str = ""
    """The expression that chooses tests of it (``pytest -k``)."""

    quick: bool = True
    """Whether the tests take a few seconds, so that each change can be tried."""

    @property
    def is_there(self) -> bool:
        """Whether its text is found, once."""
        file = PACKAGE / self.file
        return file.is_file() and file.read_text().count(self.text) == 1


def without(defence: Defence) -> tuple[Outcome, str]:
    """Whether a test misses the defence, and what pytest said."""
    with tempfile.TemporaryDirectory(prefix="gpunode-defences-") as folder:
        copy = Path(folder) / "gpunode"
        shutil.copytree(PACKAGE, copy)
        file = copy / defence.file
        file.write_text(file.read_text().replace(defence.text, defence.without))
        return _tested(defence, Path(folder))


def _tested(defence: Defence, packages: Path) -> tuple[Outcome, str]:
    chosen = ["-k", defence.which] if defence.which else []
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    try:
        ended = subprocess.run(
            [*command, *chosen, defence.tests],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",  # what a test prints may be a tenant's
            check=False,
            timeout=LONGEST,
        )
    except subprocess.TimeoutExpired:
        return "missed", f"no end within {LONGEST:g} s"
    outcomes: dict[int, Outcome] = {PASSED: "survives", FAILED: "missed"}
    return outcomes.get(ended.returncode, "broken"), ended.stdout[-2000:]
