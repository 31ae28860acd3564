"""The machine that this process runs on."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from gpunode.driver.driver import Driver
from gpunode.helper import files, tcp
from gpunode.helper.stacks import native
from gpunode.node import containers, ethtool, gdb, http, sockets
from gpunode.node.datagram_socket import Datagram, DatagramSocket
from gpunode.node.endings import Endings
from gpunode.node.inside import ProcessReader, is_inside
from gpunode.node.kernel import parse_stat
from gpunode.node.kubelet import Allocation, Kubelet
from gpunode.node.log import Log
from gpunode.node.node import (
    MAX_FILE,
    SHARED_MEMORY,
    Filesystem,
    Image,
    KeptLines,
    ScrapedPage,
    Sums,
    environment_of,
    libraries_of,
    lines_of,
    program_of,
    sums_of,
)
from gpunode.node.privileged import PrivilegedReads
from gpunode.node.round_trips import round_trips
from gpunode.node.stacks import ProcessStacks, ThreadStack, stacks_of
from gpunode.node.stacks import parse as parse_stacks
from gpunode.threads import used

MAX_COMMAND_BYTES = 1 << 16
"""Bytes of a command line, which may have megabytes; its program is among the first arguments."""


class SystemClock:
    """The clocks of this machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()

    def thread_cpu(self) -> float | None:
        return used()


class LocalNode:
    """The machine that this process runs on, with its root mounted at ``rootfs``.

    ``helpers`` is the folder with the sockets of those that read what this process may not.
    """

    def __init__(self, rootfs: Path, drivers: Sequence[Driver] = (), helpers: str = "") -> None:
        self.rootfs = str(rootfs).rstrip("/")
        self.clock = SystemClock()
        self.drivers = drivers
        self._privileged = PrivilegedReads(self.rootfs, helpers)
        self._inside = ProcessReader(self._privileged)
        self._endings = Endings(self._start_of)
        self._logs: dict[str, Log] = {}
        self._kubelets: dict[str, Kubelet] = {}
        self._sockets: dict[str, DatagramSocket] = {}

    def read_text(self, path: str) -> str:
        return self._inside.read(path, partial(self._content, path)).decode("utf-8", "replace")

    def list_directory(self, path: str) -> list[str]:
        if files.NAMES.fullmatch(path):
            found = self._privileged.names(path)
            return sorted(os.fsdecode(found).split("\0")) if found else []
        return sorted(os.listdir(self.rootfs + path))

    def filesystem(self, path: str) -> Filesystem:
        if is_inside(path):
            found = self._inside.space(path)
        elif self.rootfs and not os.path.ismount(self.rootfs):
            # Only single folders of the node are mounted: all else there is the container's own.
            raise FileNotFoundError(errno.ENOENT, "the root of the node is not mounted", path)
        elif files.SPACE.fullmatch(path):
            found = self._privileged.read("space", path)
        else:
            found = files.numbers(os.statvfs(self.rootfs + path))
        block, *blocks, of_files, free_files = map(int, found.split())
        size, free, available = (block * number for number in blocks)
        return Filesystem(size, free, available, of_files, free_files)

    def log_lines(self, path: str) -> list[str]:
        if path not in self._logs:
            self._logs[path] = Log(self.rootfs + path, self._privileged.kernel_log)
        return self._logs[path].new_lines()

    def lines(self, path: str, after: int, pattern: re.Pattern[str]) -> KeptLines:
        return lines_of(*self._inside.part(path, after), pattern)

    def sums(self, path: str, after: int, add: Callable[[str], dict[str, float]]) -> Sums:
        return sums_of(*self._inside.part(path, after), add)

    def environment(self, pid: int) -> dict[str, str]:
        return environment_of(self._inside.environment(pid).decode("utf-8", "replace"))

    def program(self, pid: int) -> str:
        read = partial(self._read, f"/proc/{pid}/cmdline", MAX_COMMAND_BYTES)
        line = self._inside.read(f"/proc/{pid}/cmdline", read)
        if len(line) > MAX_COMMAND_BYTES:  # the last argument may go on
            del line[line.rfind(b"\0") + 1 :]
        return program_of(line.decode("utf-8", "replace").split("\0"))

    def libraries(self, pid: int) -> list[str]:
        return libraries_of(self._inside.maps(pid))

    def shares_memory(self, pid: int) -> bool:
        return SHARED_MEMORY.search(self._inside.maps(pid)) is not None

    def image(self, container: str) -> Image:
        if not containers.ID.fullmatch(container):
            raise OSError(errno.EINVAL, "not the ID of a container", container)
        for file, parse in containers.FILES:
            try:
                found = self._privileged.read("image", file.replace("/ID/", f"/{container}/"))
            except FileNotFoundError:
                continue
            return parse(found.decode("utf-8", "replace"))
        raise FileNotFoundError(errno.ENOENT, "no runtime here knows the container", container)

    def listens(self, pid: int) -> bool:
        return sockets.listens(f"{self.rootfs}/proc/{pid}", lambda: self._inside.sockets(pid))

    def communicates(self, pid: int) -> bool:
        return sockets.communicates(f"{self.rootfs}/proc/{pid}", lambda: self._inside.sockets(pid))

    def ended(self, pid: int, start: float) -> int | None:
        return self._endings.of(pid, start)

    def open_files(self, pid: int) -> int:
        folder = f"{self.rootfs}/proc/{pid}/fd"
        # The size of this folder is their number, and takes no privilege, from Linux 6.2 on:
        # https://docs.kernel.org/filesystems/proc.html (/proc/PID/fd)
        if number := os.stat(folder).st_size:
            return number
        return self._inside.descriptors(pid)

    def round_trips(self) -> list[float]:
        return round_trips()

    def network_statistics(self, interface: str) -> dict[str, int]:
        return ethtool.statistics(interface)

    def read_link(self, path: str) -> str:
        if files.LINK.fullmatch(path):
            return self._inside.link(path)
        return os.readlink(self.rootfs + path)

    def helpers(self) -> dict[str, float]:
        return self._privileged.cost()

    def ask(self, pid: int, address: str, request: str) -> str:
        return self._inside.ask(pid, address, request)

    def listening_at(self, pid: int) -> list[str]:
        return sockets.listening_at(f"{self.rootfs}/proc/{pid}", lambda: self._inside.sockets(pid))

    def scrape(self, pid: int, address: str, path: str, names: Collection[str]) -> ScrapedPage:
        return http.scraped_of(self.ask(pid, address, tcp.page(path)), names)

    def datagrams(self, socket: str, known: Collection[int]) -> list[Datagram]:
        if socket not in self._sockets:
            bound, start_of = self._privileged.client, self._inside.start_of
            self._sockets[socket] = DatagramSocket(socket, bound, start_of)
        return self._sockets[socket].take(known)

    def allocations(self, socket: str) -> list[Allocation]:
        if socket not in self._kubelets:
            self._kubelets[socket] = Kubelet(self.rootfs + socket, self._privileged.kubelet)
        return self._kubelets[socket].allocations()

    def stacks(self, pid: int) -> ProcessStacks:
        threads = [int(name) for name in os.listdir(f"{self.rootfs}/proc/{pid}/task")]
        python = self._inside.python
        return stacks_of(
            pid, threads, lambda: python(pid).decode("utf-8", "replace"), self.read_text
        )

    def native_stacks(self, pid: int, python: bool) -> list[ThreadStack]:
        """The threads with frames of C and C++; of a program without Python, of any language.

        It stops the process for up to some seconds. py-spy tells it of Python, and gdb of what
        py-spy fails at, such as a process that is stopped. Raises ``OSError`` if none can tell.
        """
        if not python:
            return gdb.parse(gdb.backtraces(self.rootfs, pid))
        try:
            return parse_stacks(native(self.rootfs, str(pid)).decode("utf-8", "replace"))
        except ValueError:
            failed = OSError(errno.EIO, "py-spy printed what cannot be read")
        except OSError as error:
            if error.errno != errno.EIO:  # gdb would not get the process either
                raise
            failed = error
        try:
            return gdb.parse(gdb.backtraces(self.rootfs, pid))
        except OSError:
            raise failed from None

    def _start_of(self, pid: int) -> float:
        try:
            return parse_stat(self.read_text(f"/proc/{pid}/stat")).start
        except ValueError as error:
            raise OSError(errno.EIO, str(error)) from error

    def _content(self, path: str) -> bytes | bytearray:
        if files.TEXT.fullmatch(path):
            if path.endswith("/wchan"):
                return self._privileged.wait_channel(path)
            return self._privileged.read("text", path)
        content = self._read(path, MAX_FILE)
        if len(content) > MAX_FILE:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        return content

    def _read(self, path: str, most: int) -> bytearray:
        """A file; more than ``most`` bytes of it if it has more."""
        # pathlib and open() take three times as long, and a busy node has 3,000 threads, each with
        # a file. Without O_NONBLOCK, a pipe in place of a file would block.
        file = os.open(self.rootfs + path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            content = bytearray()  # which grows in place: a file in /proc comes a page at a time
            while len(content) <= most and (part := os.read(file, 1 << 16)):
                content += part
        finally:
            os.close(file)
        return content
