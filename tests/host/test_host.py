"""Every source that is read on a node, on every test machine, against golden files."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from gpunode.config.daemon import Settings
from gpunode.driver.errands import Errands
from gpunode.holders.pods import Pods
from gpunode.holders.slurm import SlurmJobs
from gpunode.host.own_process import OwnProcess
from gpunode.source import FAILURES, Absent, Place, Source
from gpunode.sources import finders
from tests.cases import with_each
from tests.machine import MACHINES, Machine, read_twice

FOLDERS = sorted(path for path in MACHINES.iterdir() if path.is_dir())
SETTINGS = Settings()
REWRITES = "GPUNODE_REWRITE_GOLDEN" in os.environ


def sources(machine: Machine) -> Iterator[tuple[Place, Source]]:
    """All that is found on a machine, but what the driver alone or this process decides."""
    for finder in finders(machine, SETTINGS):
        if not isinstance(finder, OwnProcess):
            with contextlib.suppress(Absent):
                for place, source in finder.find():
                    if not type(source).__module__.startswith("gpunode.gpu."):
                        yield place, source


def export_of(folder: Path, name: str) -> str:
    """What a source exports on a machine, in each of its places, once it is known who has GPUs."""
    found = ""
    for place in [place for place, source in sources(Machine(folder)) if source.name == name]:
        machine = Machine(folder)
        listed = list(sources(machine))
        for _, giver in listed:
            if isinstance(giver, (Pods, SlurmJobs)) and giver.name != name:
                giver.read()
        (source,) = (s for where, s in listed if (s.name, where) == (name, place))
        found += read_twice(machine, source)
    return found


@with_each(FOLDERS)
def test_each_source_on_a_machine_exports_its_golden_series_and_no_other(folder: Path) -> None:
    golden = folder / "golden"
    names = {source.name for _, source in sources(Machine(folder))}
    found = {name: text for name in names if (text := export_of(folder, name))}
    if REWRITES:
        golden.mkdir(exist_ok=True)
        for path in golden.iterdir():
            if path.stem not in found:
                path.unlink()
        for name, text in found.items():
            (golden / f"{name}.txt").write_text(text)
    kept = {path.stem: path.read_text() for path in golden.iterdir()}
    assert found == kept, "if this is meant to change: make golden"


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


class SpoiledMachine(Machine):
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


def in_this_thread(_: Errands, errands: Mapping[str, Callable[[], object]]) -> set[str]:
    """What ``Errands.run`` does, where nothing hangs: 24,000 threads cost more than the reads."""
    for errand in errands.values():
        errand()
    return set()


def kind_of(path: str) -> str:
    """A path without numbers: the files of two cores or disks are read alike."""
    return re.sub(r"\d+", "", path)


def readers(folder: Path) -> dict[str, set[tuple[str, Place]]]:
    """The files of a machine that sources ask for, and which do."""
    whole = SpoiledMachine(folder)
    asked: dict[str, set[tuple[str, Place]]] = {}
    for place, source in list(sources(whole)):
        whole.asked = set()
        read_twice(whole, source)
        whole.reset()
        for path in whole.asked:
            asked.setdefault(path, set()).add((source.name, place))
    return asked


def test_a_spoiled_file_harms_no_more_than_its_own_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a file holds, a read fails in a way that is foreseen, or not at all.

    One file of each kind cannot be read, and holds some of the garbage, each file another.
    """
    monkeypatch.setattr(Errands, "run", in_this_thread)
    spoilt: set[str] = set()
    for folder in FOLDERS:
        for victim, asking in sorted(readers(folder).items()):
            if kind_of(victim) in spoilt:
                continue
            spoilt.add(kind_of(victim))
            places = dict(sorted(asking, key=str))  # one of each source: GPUs are read alike
            for content in (None, *GARBAGE[len(spoilt) % 4 :: 4]):
                spoiled = SpoiledMachine(folder, victim, content)
                for place, source in list(sources(spoiled)):
                    if places.get(source.name) == place:
                        spoiled.reset()
                        with contextlib.suppress(*FAILURES):
                            read_twice(spoiled, source)
    assert len(spoilt) > 100
