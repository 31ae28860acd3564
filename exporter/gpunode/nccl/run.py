"""Runs nccl-tests, or the same measurement with torch.distributed if they are not installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from gpunode.nccl.bench import parse_json, parse_text

RUN_TIMEOUT = 900.0
"""Timeout of a run in seconds."""


class BenchError(Exception):
    """A run without a result; ``str()`` is a message for the user."""


def measure(
    collective: str, gpus: int, largest: str, program: str | None = None
) -> dict[int, float]:
    """Bus bandwidth in bytes per second, by size in bytes. Raises ``BenchError``."""
    found = program or shutil.which(f"{collective}_perf")
    if found:
        return _with_nccl_tests(found, gpus, largest)
    torch = Path(__file__).with_name("run_torch.py")
    text = run([sys.executable, str(torch), collective, str(gpus), largest])
    try:
        return parse_text(text)
    except ValueError as error:
        raise BenchError(
            f"{collective}_perf is not installed, torch failed on {gpus} GPUs: {_last_line(text)}"
        ) from error


def _with_nccl_tests(program: str, gpus: int, largest: str) -> dict[int, float]:
    sizes = ["-b", "8M", "-e", largest, "-f", "2", "-g", str(gpus), "-c", "0"]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        text = run([program, *sizes, "-J", str(result)])
        try:
            if result.exists():
                return parse_json(result.read_text())
            if "# Avg bus bandwidth" not in text:  # a version without -J
                text = run([program, *sizes])
            return parse_text(text)
        except ValueError as error:
            raise BenchError(f"{program}: {_last_line(text)}") from error


def run(command: list[str], limit: float = RUN_TIMEOUT) -> str:
    """What a program prints, within so many seconds. Raises ``BenchError``."""
    try:
        ran = subprocess.run(  # noqa: S603 the user asked for this program
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit,
            check=False,
            env={**os.environ, "NCCL_DEBUG": "WARN"},
        )
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{command[0]}: took longer than {limit:g} s") from error
    except OSError as error:
        raise BenchError(f"{command[0]}: {error.strerror}") from error
    return ran.stdout + ran.stderr


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"
