"""The /dev/shm that each process of a job sees: its tmpfs, and the space in it.

Which tmpfs it is only the process's mount table says. The kernel writes a table of 30,000 mounts in
0.25 s and any tenant may have one, so a table is read once for all processes that share it, not
at every read, and never for longer than ``BUDGET``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from gpunode.host import mounts
from gpunode.node.node import Filesystem, Node

TABLE_LIFETIME = 60.0
"""Seconds after which a mount table is read again: hardly any job mounts another /dev/shm."""

BUDGET = 0.1
"""CPU seconds a read may spend on mount tables before it leaves the others to the next."""

POINT = "/dev/shm"  # noqa: S108 not a file of ours

DEVICE = re.compile(r"[0-9]{1,4}:[0-9]{1,7}")
"""A device number: 12 bits and 20 bits."""


@dataclass(frozen=True, slots=True)
class MountTable:
    """What a mount table said at a time: the device of the tmpfs at /dev/shm, if it is one."""

    device: str | None
    readable: bool
    time: float


@dataclass(slots=True)
class SharedMemoryUse:
    """The tmpfs of each device, and the number of processes whose mounts are unreadable."""

    spaces: dict[str, Filesystem] = field(default_factory=dict)
    unreadable: int = 0


class SharedMemory:
    """Looks at the /dev/shm of some processes; a new one may have to wait for its turn."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._tables: dict[tuple[str, ...], MountTable] = {}

    def look(self, pids: list[str]) -> SharedMemoryUse:
        """Each tmpfs once, whichever of the processes see it."""
        found, seers = SharedMemoryUse(), dict[tuple[str, ...], list[str]]()
        for pid in pids:
            try:
                seers.setdefault(self._table_of(pid), []).append(pid)
            except OSError:
                found.unreadable += 1
        self._read_tables(seers)
        for key, table in self._tables.items():
            try:
                if table.device is not None and table.device not in found.spaces:
                    path = f"/proc/{seers[key][0]}/root/dev/shm"
                    found.spaces[table.device] = self.node.filesystem(path)
            except OSError:
                table = replace(table, readable=False)
            if not table.readable:
                found.unreadable += len(seers[key])
        return found

    def _table_of(self, pid: str) -> tuple[str, ...]:
        """What all processes with the same mount table share. Raises ``OSError``."""
        try:
            namespace = self.node.read_link(f"/proc/{pid}/ns/mnt")
            return namespace, self.node.read_link(f"/proc/{pid}/root")
        except FileNotFoundError:  # not on this tape
            return (pid,)

    def _read_tables(self, seers: dict[tuple[str, ...], list[str]]) -> None:
        """Read the tables that are new, then those that were read longest ago."""
        now, begin = self.node.clock.monotonic(), self.node.clock.thread_cpu()
        self._tables = {key: known for key, known in self._tables.items() if key in seers}
        due = [key for key in seers if key not in self._tables]
        old = [key for key, known in self._tables.items() if now - known.time >= TABLE_LIFETIME]
        for key in (*due, *sorted(old, key=lambda key: self._tables[key].time)):
            spent = self.node.clock.thread_cpu()
            if begin is not None and spent is not None and spent - begin > BUDGET:
                return
            try:
                self._tables[key] = MountTable(self._device(seers[key][0]), readable=True, time=now)
            except OSError:
                self._tables[key] = MountTable(None, readable=False, time=now)

    def _device(self, pid: str) -> str | None:
        """The device of the tmpfs that a process sees at /dev/shm. Raises ``OSError``."""
        text = self.node.read_text(f"/proc/{pid}/mountinfo")
        lines = (line for line in text.split("\n") if f" {POINT} " in line)
        mount = mounts.visible(mounts.parse("\n".join(lines)), POINT)
        if mount is None or mount.kind != "tmpfs" or not DEVICE.fullmatch(mount.device):
            return None
        return mount.device
