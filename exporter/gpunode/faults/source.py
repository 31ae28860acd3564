"""Reports the faults of the node and their start times, and keeps them in a file."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpunode import whole_file
from gpunode.driver.errands import Errands
from gpunode.faults.fault import Fault
from gpunode.faults.register import MAX_FAULTS, Register
from gpunode.faults.sightings import CHECKS, NodeValues, Sighting
from gpunode.gpu import GPU
from gpunode.metric import Metric, Sample
from gpunode.source import Reading, Readings, limit

log = logging.getLogger(__name__)

START = Metric(
    "gpunode_fault_start_timestamp_seconds",
    "gauge",
    "Unix time at which a part of the node broke, until there is evidence of its repair. `name` "
    "is a port, mount point, link, or place on the PCI bus. `severity` is `page` if a GPU that "
    "the fault affects is in use.",
    (*GPU, "part", "name", "reason", "severity"),
)

MORE_FAULTS = limit("faults")

READ_INTERVAL = 5.0
"""Seconds between looks; most sources of the node are read every ten."""

MAX_FILE_BYTES = 1 << 18
"""Bytes of the file that are read."""


@dataclass(frozen=True, slots=True)
class CurrentFaults:
    """The faults that last, the oldest first."""

    faults: tuple[Fault, ...]


class Faults:
    """Watches for faults. ``file`` is where they outlive the daemon; without, they end with it.

    A disk that does not answer costs the file, and nothing else: it is read and written in a
    thread of its own.
    """

    name = "faults"
    every = READ_INTERVAL
    metrics = (START,)
    unknowns = (MORE_FAULTS,)

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self._register = Register()
        self._errands = Errands()
        self._loaded = file is None
        self._read_in: bytes | None = None
        self._written = b""
        self._complained = ""

    def read(self, readings: Readings) -> Reading:
        if not self._loaded:
            self._load()
        register = self._register
        seen = NodeValues.of(readings, register.on_bus)
        register.learn(seen)
        register.update(seen, list(_observed(seen, register)))
        if self.file is not None and self._loaded:
            self._keep(self.file, register.packed())
        faults = register.faults()
        left_out, register.left_out = register.left_out, 0
        unread = (
            (MORE_FAULTS.seen(f"more than {MAX_FAULTS} at once", left_out),) if left_out else ()
        )
        return Reading(tuple(_samples(faults)), CurrentFaults(faults), unread)

    def _load(self) -> None:
        """Take over what the file has, once it has been read."""
        file = self.file
        if file is None or self._errands.run({"read faults": lambda: self._read(file)}):
            return
        self._loaded = True
        if self._read_in:
            try:
                self._register.unpack(self._read_in)
            except ValueError as error:
                self._complain(f"{file} is no file of faults, and begins anew: {error}")

    def _read(self, file: Path) -> None:
        try:
            with _folder_path(file) as folder:
                self._read_in = whole_file.read(file.name, MAX_FILE_BYTES, folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._complain(f"faults from before are not known: {error}")

    def _keep(self, file: Path, packed: bytes) -> None:
        if packed != self._written:
            self._errands.run({"write faults": lambda: self._write(file, packed)})

    def _write(self, file: Path, packed: bytes) -> None:
        try:
            with _folder_path(file) as folder:
                whole_file.write(file.name, packed, folder)
        except OSError as error:
            self._complain(f"faults are kept in memory only, and end with the daemon: {error}")
        else:
            self._written, self._complained = packed, ""

    def _complain(self, what: str) -> None:
        if what != self._complained:
            log.warning("%s", what)
        self._complained = what


@contextlib.contextmanager
def _folder_path(file: Path) -> Iterator[int]:
    folder = whole_file.open_folder(file.parent)
    try:
        yield folder
    finally:
        os.close(folder)


def _observed(seen: NodeValues, register: Register) -> Iterator[Sighting]:
    for look in CHECKS:
        yield from look(seen, register.before)


def _samples(faults: tuple[Fault, ...]) -> Iterator[Sample]:
    for fault in faults:
        yield from START.at(fault.start, *fault.labels)
