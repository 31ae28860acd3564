"""Every source of the node on every test machine, against golden files."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpunode.config import HostSettings
from gpunode.host.finder import KINDS, HostFinder
from gpunode.jobs.owners import GpuOwners
from gpunode.jobs.pods import Pods
from gpunode.jobs.processes import JobProcesses
from gpunode.source import Absent, Source
from tests.machine import MACHINES, Machine, read_twice

NAMES = sorted(path.name for path in MACHINES.iterdir() if path.is_dir())
SOURCES = sorted(
    [kind.name for kind in KINDS] + ["audit", "filesystem", JobProcesses.name, GpuOwners.name]
)


def sources(machine: Machine) -> Iterator[Source]:
    with contextlib.suppress(Absent):
        yield from HostFinder(machine, HostSettings()).find()
    if "gpus" in machine.answers:
        for gpu in machine.gpus():
            yield JobProcesses(machine, gpu, 10.0)
            yield GpuOwners(machine, gpu, Pods(machine, "", 5.0), 5.0)


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("folder", NAMES)
def test_a_source_on_a_machine_exports_the_golden_series(folder: str, name: str) -> None:
    """A machine without a file named after the source has nothing for it to read."""
    found = ""
    places = [s.device for s in sources(Machine(MACHINES / folder)) if s.name == name]
    for place in places:
        machine = Machine(MACHINES / folder)
        (source,) = (s for s in sources(machine) if (s.name, s.device) == (name, place))
        found += read_twice(machine, source)
    golden = MACHINES / folder / "golden" / f"{name}.txt"
    if os.environ.get("GPUNODE_REWRITE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.unlink(missing_ok=True)
        if found:
            golden.write_text(found)
    assert found == (golden.read_text() if golden.exists() else ""), (
        "if this is meant to change: make golden"
    )


GARBAGE = (
    "",
    "\n",
    "\0" * 64,
    "-1",
    "9" * 400,
    "a b c\n" * 2000,
    "\ud7ff: = \t∞ nan\n",
    "1 " * 5000,
)


class Spoiled(Machine):
    """A machine one of whose files holds something else, or cannot be read."""

    def __init__(self, folder: Path, victim: str = "", content: str | None = None) -> None:
        super().__init__(folder)
        self.victim = victim
        self.content = content
        self.asked: set[str] = set()

    def read_text(self, path: str) -> str:
        self.asked.add(path)
        if path != self.victim:
            return super().read_text(path)
        if self.content is None:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        return self.content


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("folder", NAMES)
def test_a_spoiled_file_harms_no_more_than_its_own_source(folder: str, name: str) -> None:
    whole = Spoiled(MACHINES / folder)
    for source in [source for source in sources(whole) if source.name == name]:
        read_twice(whole, source)
    for victim in sorted(whole.asked):
        for content in (None, *GARBAGE):
            spoiled = Spoiled(MACHINES / folder, victim, content)
            for source in [source for source in sources(spoiled) if source.name == name]:
                with contextlib.suppress(OSError, ValueError):
                    read_twice(spoiled, source)
