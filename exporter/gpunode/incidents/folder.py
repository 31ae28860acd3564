"""The folder where incidents outlive the daemon: two private files each, written whole or not.

``ID.json.gz`` is the incident, ``ID.jsonl.gz`` its tape.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gpunode import whole_file
from gpunode.incidents.incident import ID, MAX_JSON_BYTES, Incident, parse

INCIDENT, TAPE = ".json.gz", ".jsonl.gz"

CUT_SHORT = 60.0
"""Seconds after which an incident that went on is written no longer: it is each ten seconds."""

MAX_FILE_BYTES = 64 << 20
"""Bytes of a file that is read."""


class Folder:
    """A folder of incidents of at most so many bytes; the oldest are removed first."""

    def __init__(self, path: Path, most_bytes: int | None = None) -> None:
        """Open it; to write, it is made, and made private. Raises ``OSError``.

        So it does for a folder of another user, to whom nothing is given.
        """
        self.path = path
        self.most_bytes = most_bytes or 0
        if most_bytes is not None:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._at = whole_file.open_folder(path)
        if most_bytes is None:
            return
        if os.fstat(self._at).st_uid != os.geteuid():
            os.close(self._at)
            raise PermissionError(errno.EPERM, "it belongs to another user", str(path))
        try:
            os.fchmod(self._at, 0o700)
            for name in os.listdir(self._at):
                if name.startswith(".") and name.endswith(
                    whole_file.FRESH
                ):  # of a daemon that was killed
                    whole_file.remove(name, self._at)
        except OSError as error:
            if error.errno != errno.EROFS:  # each incident says that it cannot be written
                raise

    def write(self, name: str, incident: bytes, tape: bytes) -> None:
        """Keep an incident, of which both are compressed already. Raises ``OSError``.

        An empty tape leaves the one before in place.
        """
        self._make_room(name, len(incident) + len(tape))
        if tape:
            whole_file.write(f"{name}{TAPE}", tape, self._at)
        whole_file.write(f"{name}{INCIDENT}", incident, self._at)

    def names(self) -> list[str]:
        """The IDs of the incidents, the latest first. Raises ``OSError``.

        A tape of which a crash left no incident is none.
        """
        files = (file for file in os.listdir(self._at) if file.endswith(INCIDENT))
        names = (file.removesuffix(INCIDENT) for file in files)
        return sorted(filter(ID.fullmatch, names), reverse=True)

    def read(self, name: str) -> Incident:
        """An incident. Raises ``OSError`` or ``ValueError``.

        One that goes on is written again and again: else its daemon has ended, and it is complete.
        """
        found = parse(unpacked(self.packed(name), MAX_JSON_BYTES))
        if found.brief.complete or time.time() - self.written(name) < CUT_SHORT:
            return found
        return replace(found, brief=replace(found.brief, complete=True))

    def written(self, name: str) -> float:
        """When an incident was written last, in seconds since the epoch. Raises ``OSError``."""
        return os.stat(f"{name}{INCIDENT}", dir_fd=self._at, follow_symlinks=False).st_mtime

    def packed(self, name: str) -> bytes:
        """An incident as it is in its file. Raises ``OSError``."""
        return whole_file.read(f"{name}{INCIDENT}", MAX_FILE_BYTES, self._at)

    def tape(self, name: str) -> bytes:
        """The tape of an incident; empty if it has none. Raises ``OSError``."""
        try:
            return whole_file.read(f"{name}{TAPE}", MAX_FILE_BYTES, self._at)
        except FileNotFoundError:
            return b""

    def _sizes(self) -> list[tuple[str, int]]:
        """Each incident and the bytes that its files take."""
        sizes: dict[str, int] = {}
        for file in os.listdir(self._at):
            name = file.removesuffix(INCIDENT).removesuffix(TAPE)
            if name != file and ID.fullmatch(name):
                with contextlib.suppress(FileNotFoundError):
                    size = os.stat(file, dir_fd=self._at, follow_symlinks=False).st_size
                    sizes[name] = sizes.get(name, 0) + size
        return sorted(sizes.items(), key=lambda one: age(one[0], time.time()))

    def _make_room(self, name: str, size: int) -> None:
        """Remove the oldest incidents until a new version of one fits."""
        others = [(other, taken) for other, taken in self._sizes() if other != name]
        total = size + sum(taken for _, taken in others)
        for other, taken in others:
            if total <= self.most_bytes:
                return
            whole_file.remove(f"{other}{TAPE}", self._at)
            whole_file.remove(f"{other}{INCIDENT}", self._at)
            total -= taken
        if total > self.most_bytes:
            raise OSError(
                errno.ENOSPC, "an incident is larger than incident.folder-bytes", str(self.path)
            )


def age(name: str, now: float) -> tuple[bool, str]:
    """By what incidents are sorted, the oldest first: one of the future had a clock ahead."""
    return name <= time.strftime("%Y%m%dT%H%M%SZ~", time.gmtime(now)), name


def unpacked(data: bytes, longest: int) -> bytes:
    """What gzip packed, of at most so many bytes. Raises ``ValueError``."""
    try:
        with gzip.open(io.BytesIO(data)) as file:
            found = file.read(longest + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"not a file of gzip: {error}") from None
    if len(found) > longest:
        raise ValueError("too long")
    return found


def incidents(folder: Folder) -> Iterator[tuple[Incident, bytes, bytes]]:
    """The incidents that can be read, the latest first: each, its file and its tape."""
    for name in folder.names():
        with contextlib.suppress(OSError, ValueError):
            packed = folder.packed(name)
            yield parse(unpacked(packed, MAX_JSON_BYTES)), packed, folder.tape(name)
