"""A driver that is reloaded, hangs, lies, or changes while the daemon uses it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.fakes.nvml import FakeDriver

REPOSITORY = Path(__file__).parents[2]


def program(fake: FakeDriver, module: str, *arguments: str) -> str:
    """What a program of this folder prints in a new process, on the fake driver."""
    result = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", f"tests.attacks.{module}", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, **fake.environment()},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr, result.stderr
    return result.stdout


def test_a_driver_that_is_reloaded_under_its_users_ends_no_process(fake: FakeDriver) -> None:
    assert int(program(fake, "reloads", "60")) > 60
