"""A fake NVIDIA driver library for the tests: see README.md in this folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.needs import need

__all__ = ["LIBRARY_NAME", "FakeDriver", "build"]

LIBRARY_NAME = "libnvidia-ml.so.1"

_SOURCE = Path(__file__).with_name("fake_nvml.c")
_REPOSITORY = Path(__file__).parents[3]
_FLAGS = ("-std=gnu11", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror")


def build(directory: Path, *, gpm: bool = True) -> Path:
    """Compile the fake library into a directory with the system's `cc`.

    With `gpm=False` it stands for an old driver: the symbols `nvmlGpm*` and a
    few newer ones do not exist in it. Several processes may build into the
    same directory at once.
    """
    need("cc")
    directory.mkdir(parents=True, exist_ok=True)
    library = directory / LIBRARY_NAME
    unfinished = directory / f".{LIBRARY_NAME}.{os.getpid()}"
    command = ["cc", *_FLAGS, f"-Wl,-soname,{LIBRARY_NAME}"]
    if not gpm:
        command.append("-DOLD_DRIVER")
    command += [str(_SOURCE), "-o", str(unfinished), "-lpthread", "-lm"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"the fake NVML library does not compile:\n{result.stderr}")
    unfinished.replace(library)
    return library


class FakeDriver:
    """The script of one fake driver, and the environment to run a program with it.

    `directory` is the one that `build` filled. The script lies in it too,
    unless `script` names another file, as for tests that share one library.
    """

    def __init__(self, directory: Path, script: Path | None = None) -> None:
        """Start with an empty script (one idle H200) where there is none yet."""
        self.directory = directory
        self.script = script if script is not None else directory / "nvml.script"
        if not self.script.exists():
            self.write("")

    def write(self, script: str) -> None:
        """Replace the script at once: no call sees half of it."""
        self.script.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.script.with_name(f".{self.script.name}.{os.getpid()}")
        unfinished.write_text(script, encoding="utf-8")
        unfinished.replace(self.script)

    def environment(self) -> dict[str, str]:
        """Return the variables that make a new process load this fake driver."""
        path = [str(self.directory), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            "LD_LIBRARY_PATH": os.pathsep.join(part for part in path if part),
            "FAKE_NVML": str(self.script),
        }

    def run(self, module: str, *arguments: str) -> str:
        """Return what a program of this repository prints that uses this fake driver."""
        result = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-m", module, *arguments],
            cwd=_REPOSITORY,
            env={**os.environ, **self.environment()},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert result.returncode == 0, result.stderr
        assert "Traceback" not in result.stderr, result.stderr
        return result.stdout
