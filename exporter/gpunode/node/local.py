"""The machine that this process runs on."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from gpunode.driver.driver import Driver
from gpunode.node import containers, ethtool, http, sockets, tcp
from gpunode.node.capability import raised
from gpunode.node.datagram_socket import Datagram, DatagramSocket
from gpunode.node.inside import Inside, is_inside
from gpunode.node.kubelet import FOLDER, Allocation, Kubelet
from gpunode.node.log import Log
from gpunode.node.node import (
    MAX_FILE,
    SHARED_MEMORY,
    Filesystem,
    Image,
    KeptLines,
    Scraped,
    environment_of,
    libraries_of,
    lines_of,
    program_of,
)
from gpunode.node.round_trips import round_trips

OF_ITS_USER = re.compile(r"/proc/\d+/(?:environ|io|wchan|ns/.*|root)")
"""Files of a process that its user may read, and others with capabilities."""

OF_THE_KUBELET = re.compile(
    FOLDER + r"/(?:pods/[0-9a-f-]{32,36}/volumes/[^/]+/[^/]+(?:/mount)?"
    r"|plugins/kubernetes\.io/csi/[^/]+/[^/]+/(?:globalmount|vol_data\.json))"
)
"""Where the kubelet mounts volumes: only root may enter these folders, and nobody else writes."""

MOST_ARGUMENTS = 1 << 16
"""Bytes of a command line, which may have megabytes; its program is among the first arguments."""


class SystemClock:
    """The clocks of this machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()

    def thread_cpu(self) -> float | None:
        return time.thread_time()


class LocalNode:
    """The machine that this process runs on, with its root mounted at ``rootfs``."""

    def __init__(self, rootfs: Path, drivers: Sequence[Driver] = ()) -> None:
        self.rootfs = str(rootfs).rstrip("/")
        self.clock = SystemClock()
        self.drivers = drivers
        self._inside = Inside(self.rootfs)
        self._logs: dict[str, Log] = {}
        self._kubelets: dict[str, Kubelet] = {}
        self._sockets: dict[str, DatagramSocket] = {}

    def read_text(self, path: str) -> str:
        with _rights_for(path):
            content = self._read(path, MAX_FILE)
        if len(content) > MAX_FILE:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        return content.decode("utf-8", "replace")

    def list_directory(self, path: str) -> list[str]:
        return sorted(os.listdir(self.rootfs + path))

    def filesystem(self, path: str) -> Filesystem:
        if is_inside(path):
            answer = self._inside.space(path)
        elif self.rootfs and not os.path.ismount(self.rootfs):
            # Only single folders of the node are mounted: all else there is the container's own.
            raise FileNotFoundError(errno.ENOENT, "the root of the node is not mounted", path)
        else:
            with _rights_for(path):
                answer = os.statvfs(self.rootfs + path)
        block = answer.f_frsize
        return Filesystem(
            answer.f_blocks * block,
            answer.f_bfree * block,
            answer.f_bavail * block,
            answer.f_files,
            answer.f_ffree,
        )

    def log_lines(self, path: str) -> list[str]:
        if path not in self._logs:
            self._logs[path] = Log(self.rootfs + path)
        return self._logs[path].new_lines()

    def lines(self, path: str, after: int, pattern: re.Pattern[str]) -> KeptLines:
        return lines_of(*self._inside.part(path, after), pattern)

    def environment(self, pid: int) -> dict[str, str]:
        return environment_of(self.read_text(f"/proc/{pid}/environ"))

    def program(self, pid: int) -> str:
        line = self._read(f"/proc/{pid}/cmdline", MOST_ARGUMENTS)
        if len(line) > MOST_ARGUMENTS:  # the last argument may go on
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
            path = file.replace("/ID/", f"/{container}/")
            try:
                with raised(("DAC_READ_SEARCH",)):
                    content = self._read(path, containers.LARGEST)
            except FileNotFoundError:
                continue
            if len(content) > containers.LARGEST:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
            return parse(content.decode("utf-8", "replace"))
        raise FileNotFoundError(errno.ENOENT, "no runtime here knows the container", container)

    def listens(self, pid: int) -> bool:
        with raised():
            return sockets.listens(f"{self.rootfs}/proc/{pid}")

    def communicates(self, pid: int) -> bool:
        with raised():
            return sockets.communicates(f"{self.rootfs}/proc/{pid}")

    def open_files(self, pid: int) -> int:
        folder = f"{self.rootfs}/proc/{pid}/fd"
        # The size of this folder is their number, and takes no privilege, from Linux 6.2 on:
        # https://docs.kernel.org/filesystems/proc.html (/proc/PID/fd)
        if number := os.stat(folder).st_size:
            return number
        with raised():
            return len(os.listdir(folder))

    def round_trips(self) -> list[float]:
        return round_trips()

    def network_statistics(self, interface: str) -> dict[str, int]:
        return ethtool.statistics(interface)

    def read_link(self, path: str) -> str:
        with _rights_for(path):
            return os.readlink(self.rootfs + path)

    def ask(self, pid: int, address: str, request: str) -> str:
        return tcp.ask(address, request, f"{self.rootfs}/proc/{pid}")

    def listening_at(self, pid: int) -> list[str]:
        with raised():
            return sockets.listening_at(f"{self.rootfs}/proc/{pid}")

    def scrape(self, pid: int, address: str, path: str, names: Collection[str]) -> Scraped:
        return http.scraped_of(self.ask(pid, address, http.request(path)), names)

    def datagrams(self, socket: str, known: Collection[int]) -> list[Datagram]:
        if socket not in self._sockets:
            self._sockets[socket] = DatagramSocket(socket)
        return self._sockets[socket].take(known)

    def allocations(self, socket: str) -> list[Allocation]:
        if socket not in self._kubelets:
            self._kubelets[socket] = Kubelet(self.rootfs + socket)
        return self._kubelets[socket].allocations()

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


NO_MORE = nullcontext()


def _rights_for(path: str) -> AbstractContextManager[None]:
    """The capabilities to hold while a file is read."""
    if path.startswith("/proc/"):
        return raised() if OF_ITS_USER.fullmatch(path) else NO_MORE
    return raised(("DAC_READ_SEARCH",)) if OF_THE_KUBELET.fullmatch(path) else NO_MORE
