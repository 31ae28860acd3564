"""Every source of the node on every test machine, against golden files."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from gpunode.config import HostSettings
from gpunode.host.finder import KINDS, HostFinder
from gpunode.jobs.processes import JobProcesses
from gpunode.source import Source
from tests.machine import MACHINES, Machine, read_twice

NAMES = sorted(path.name for path in MACHINES.iterdir() if path.is_dir())
SOURCES = sorted([kind.name for kind in KINDS] + ["filesystem", JobProcesses.name])


def sources(machine: Machine) -> Iterator[Source]:
    yield from HostFinder(machine, HostSettings()).find()
    if "gpus" in machine.answers:
        for gpu in machine.gpus():
            yield JobProcesses(machine, gpu, 10.0)


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
