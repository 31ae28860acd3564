"""Reads what only root or another user may: files of processes, and a few others.

Each function reads one thing, by rules of its own, and returns bytes: docs/security.md has a table
of what may be opened. It returns no descriptor of a tenant's file or folder, because who has one
may open it anew, or what is beside it. ``rootfs`` is where the root of the node is mounted, empty
for ``/``. All of them raise ``OSError``.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice

from gpunode.helper.capability import elevate
from gpunode.helper.confine import Verb, Work
from gpunode.helper.environment import ENVIRONMENT, MAX_VALUE
from gpunode.helper.inside import (
    FOLDER,
    NOBODY,
    PLACE,
    beneath,
    open_file,
    open_place,
    process,
    split_path,
)

VOLUMES = r"/var/(?:lib/kubelet|lib/k0s/kubelet|snap/microk8s/common/var/lib/kubelet)"
"""Where the kubelet keeps volumes: by default, of k0s and of MicroK8s."""

SPACE = re.compile(
    VOLUMES + r"/(?:pods/[0-9a-f-]{32,36}/volumes/[^/]+/[^/]+(?:/mount)?"
    r"|plugins/kubernetes\.io/csi/[^/]+/[^/]+/globalmount)"
)
"""Where it mounts them: only root may enter these folders, and nobody else writes."""

LUSTRE = r"/sys/kernel/debug/lustre(?:/[\w-][\w.-]*)*"
PROCESS_FILES = re.compile(r"/proc/\d+/(?:io|(?:task/\d+/)?wchan)")
"""Names that the kernel makes; none is a link."""

ENERGY = re.compile(r"/sys/class/powercap/(intel-rapl:\d{1,3})(:\d{1,3})?/energy_uj")
TEXT = re.compile(
    rf"{PROCESS_FILES.pattern}|{VOLUMES}/plugins/kubernetes\.io/csi/[^/]+/[^/]+/vol_data\.json|{LUSTRE}"
    rf"|{ENERGY.pattern}"
)
NAMES = re.compile(rf"/var/log/(?:pods|containers)|{LUSTRE}")
LINK = re.compile(r"/proc/\d+/(?:ns/\w+|root)")

SHARED_MEMORY = "dev/shm"
HOST_NAME = "/etc/hostname"
"""What is looked at in the root of a process without its word."""

VERSION = "/torch/version.py"

IMAGE = re.compile(
    r"/(?:run(?:/k[03]s)?|var/snap/microk8s/common/run)/containerd/"
    r"io\.containerd\.runtime\.v2\.task/k8s\.io/[0-9a-f]{64}/config\.json"
    r"|/(?:run|var/lib)/containers/storage/overlay-containers/[0-9a-f]{64}/userdata/config\.json"
    r"|/var/lib/docker/containers/[0-9a-f]{64}/config\.v2\.json"
)

LOGS = {"NCCL_DEBUG_FILE": "", "NCCL_INSPECTOR_DUMP_DIR": "/%h-pid%p.log"}
"""What names a log of NCCL, or the folder of one, and what follows there."""

MAX_BYTES = 4 << 20
"""Bytes of a file; a counter file of a large node has a tenth of that."""

MAX_TABLE_BYTES = 16 << 20
"""Bytes of a process's table of mappings: 131,000 mappings, twice as many as Linux allows."""

MAX_READ = 1 << 20
"""The most bytes of a tenant's file to read at once."""

MAX_MAPPED_FILES = 64
"""The most files listed of a table; a process with PyTorch has ten."""

MAX_LINE_BYTES = 1 << 13
"""Bytes of a line or a variable; a path has at most half as many."""

DESCRIPTORS = 1 << 14
"""The most descriptors of a process to look at."""

SOCKET = re.compile(r"socket:\[(\d+)\]")

MAPPED = re.compile(
    rb"/(?:libnccl|libcudart|libtorch_\w+)\.so[\d.]*$"
    rb"|^/dev/shm/(?:nccl-|nvshmem-shm|ucx_shm_posix_|vader_segment|sm_segment)"
)
"""The mapped files that are listed: libraries and shared memory."""

PAIR = rb'(?<!\\)"(?:%s)":\s*"[^"\\]{1,512}"'
IMAGE_PAIR = re.compile(PAIR % rb"io\.kubernetes\.(?:cri\.image-(?:name|ref)|cri-o\.Image\w{3,11})")
DOCKER_PAIR = re.compile(PAIR % rb"Image")
"""What names an image among all that a runtime keeps of a container; the rest holds its secrets."""


def text(rootfs: str, path: str) -> bytes:
    """A file that its user or root may read."""
    if not TEXT.fullmatch(path):
        raise PermissionError(errno.EPERM, "not a file that may be asked for", path)
    if zone := ENERGY.fullmatch(path):  # there, each zone is a link
        below = f"/{zone[1]}{zone[2]}" if zone[2] else ""
        path = f"/sys/devices/virtual/powercap/intel-rapl/{zone[1]}{below}/energy_uj"
    with elevate():
        if PROCESS_FILES.fullmatch(path):
            return _read(rootfs + path, MAX_BYTES)
        with at(rootfs, path) as name:
            return _read(f"/proc/self/fd/{name}", MAX_BYTES)


@contextmanager
def at(rootfs: str, path: str) -> Iterator[int]:
    """A descriptor of a path of the node that has no link in it."""
    with open_file(rootfs or "/", FOLDER) as root, beneath(root, path) as name:
        yield name


def names(rootfs: str, path: str) -> bytes:
    """The names in a folder, with zeros between them."""
    if not NAMES.fullmatch(path):
        raise PermissionError(errno.EPERM, "not a folder that may be asked for", path)
    with elevate(), at(rootfs, path) as folder:
        return b"\0".join(map(os.fsencode, os.listdir(f"/proc/self/fd/{folder}")))


def link(rootfs: str, path: str) -> bytes:
    """The target of a link of a process."""
    if not LINK.fullmatch(path):
        raise PermissionError(errno.EPERM, "not a link that may be asked for", path)
    with elevate():
        return os.fsencode(os.readlink(rootfs + path))


def environment(rootfs: str, pid: str) -> bytes:
    """The variables of a process that are in ``ENVIRONMENT``; the others may hold secrets."""
    with open_file(process(rootfs, pid), FOLDER) as folder:
        return b"\0".join(variables(folder, ENVIRONMENT))


def variables(folder: int, names: Iterable[str]) -> list[bytes]:
    """The first of each name, which counts in C, unless it is longer than any of use."""
    first: dict[bytes, bytes] = {}
    wanted = {name.encode() for name in names}
    with elevate(), open_file("environ", os.O_RDONLY, folder) as file:
        for variable in _pieces(file, b"\0", MAX_BYTES):
            name, _, value = variable.partition(b"=")
            if name in wanted and len(name) < len(variable):
                first.setdefault(name, variable if len(value) <= MAX_VALUE else b"")
    return [variable for variable in first.values() if variable]


def maps(rootfs: str, pid: str) -> bytes:
    """The first line of each file in ``MAPPED`` of a process's table.

    Who maps a file of a server that never answers can make the kernel wait for it here.
    """
    with open_file(process(rootfs, pid), FOLDER) as folder:
        return b"\n".join(_mapped(folder).values())


def _mapped(folder: int) -> dict[bytes, bytes]:
    """The lines by the name of their file."""
    kept: dict[bytes, bytes] = {}
    with elevate(), open_file("maps", os.O_RDONLY, folder) as file:
        for line in _pieces(file, b"\n", MAX_TABLE_BYTES):
            name = line.split(None, 5)[5:]
            if name and MAPPED.search(name[0]) and len(kept) < MAX_MAPPED_FILES:
                kept.setdefault(name[0], line)
    return kept


def _pieces(file: int, end: bytes, most: int) -> Iterator[bytes]:
    """What stands between ends in a file, of which one block is in memory; a long piece is cut."""
    rest, left = b"", most
    while block := os.read(file, 1 << 16):
        left -= len(block)
        if left < 0:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        *whole, rest = (rest + block).split(end)
        yield from whole
        rest = rest[:MAX_LINE_BYTES]
    yield rest


def sockets(rootfs: str, pid: str) -> bytes:
    """The inodes of the sockets that a process has open, with spaces between them."""
    inodes = []
    with elevate(), os.scandir(f"{process(rootfs, pid)}/fd") as entries:
        for entry in islice(entries, DESCRIPTORS):
            with suppress(OSError):  # it has been closed
                if match := SOCKET.fullmatch(os.readlink(entry.path)):
                    inodes.append(match[1])
    return " ".join(inodes).encode()


def count(rootfs: str, pid: str) -> bytes:
    """How many files a process has open."""
    with elevate(), os.scandir(f"{process(rootfs, pid)}/fd") as entries:
        return b"%d" % sum(1 for _ in entries)


def space(rootfs: str, path: str) -> bytes:
    """Of a filesystem: the size of a block; blocks, free, and free to all; files, and free ones."""
    where = PLACE.fullmatch(path)
    if where and (where["start"], where["path"]) == ("root", SHARED_MEMORY):
        one = process(rootfs, where["pid"])
        with open_file(one, FOLDER) as folder, open_place(folder, where) as (name, _):
            return numbers(os.fstatvfs(name))
    if not SPACE.fullmatch(path):
        raise PermissionError(errno.EPERM, "not a filesystem that may be asked for", path)
    with elevate(("DAC_READ_SEARCH",)), at(rootfs, path) as name:
        return numbers(os.fstatvfs(name))


def numbers(answer: os.statvfs_result) -> bytes:
    """The numbers of a filesystem, in the order above."""
    blocks = answer.f_frsize, answer.f_blocks, answer.f_bfree, answer.f_bavail
    return " ".join(map(str, (*blocks, answer.f_files, answer.f_ffree))).encode()


def part(
    rootfs: str, path: str, after: str, *, named: Callable[[int, re.Match[str]], bool] | None = None
) -> bytes:
    """Bytes of a regular file from ``after``, or from 0 if it is shorter; before them that number.

    Raises ``OSError`` also if ``named`` denies it, or the user of the process may not read it.
    """
    where = split_path(path)
    with open_file(process(rootfs, where["pid"]), FOLDER) as folder:
        if named and not named(folder, where):
            raise PermissionError(errno.EPERM, "its process does not name this file", path)
        with open_place(folder, where) as (name, user):
            status = os.fstat(name)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            # Nobody is also who reads for root.
            if not status.st_mode & stat.S_IROTH and (status.st_uid != user or user == NOBODY):
                raise PermissionError(
                    errno.EACCES, "belongs to another user than its process", path
                )
            begin = int(after) if int(after) <= status.st_size else 0
            size = min(MAX_READ, status.st_size - begin)
            content = b""
            if size:  # a file in /proc has none, and reading it may change it
                flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
                with open_file(f"/proc/self/fd/{name}", flags) as file:
                    content = os.pread(file, size, begin)
    return b"%d %b" % (begin, content)


def named(folder: int, where: re.Match[str]) -> bool:
    """Whether a path is the host's name, or what the process itself names as a log of NCCL.

    Or it is the version beside the PyTorch that it has mapped, which nothing else tells.
    """
    name = where["path"] if where["start"] == "cwd" else f"/{where['path']}"
    if name == HOST_NAME:
        return True
    if name.endswith(VERSION):
        beside = os.fsencode(name.removesuffix(VERSION) + "/torch/lib/libtorch_")
        return any(one.startswith(beside) for one in _mapped(folder))
    return any(re.fullmatch(_log(one), name) for one in variables(folder, LOGS))


def _log(entry: bytes) -> str:
    """A pattern of the log that a variable names."""
    variable, value = os.fsdecode(entry).split("=", 1)
    # Each is one text wherever it stands. If it could be any, there might be no end to it.
    log = re.escape(value + LOGS[variable])
    log = log.replace("%h", r"(?P<h>(?:[\w-][\w.-]{0,63})?)", 1).replace("%h", "(?P=h)")
    return log.replace("%p", r"(?P<p>\d{1,10})", 1).replace("%p", "(?P=p)")


def image(rootfs: str, path: str) -> bytes:
    """What a runtime's file says of the image of a container, as the JSON that it was."""
    if not IMAGE.fullmatch(path):
        raise PermissionError(errno.EPERM, "not a container that may be asked for", path)
    with elevate(("DAC_READ_SEARCH",)), at(rootfs, path) as name:
        content = _read(f"/proc/self/fd/{name}", MAX_READ)
    if path.endswith("/config.json"):
        return b'{"annotations": {%b}}' % b", ".join(IMAGE_PAIR.findall(content))
    both = sorted(DOCKER_PAIR.findall(content), key=lambda pair: b'"sha256:' in pair)
    return b'{"Config": {%b}%b}' % (b"".join(both[:1]), b"".join(b", " + one for one in both[-1:]))


def kernel_log(rootfs: str) -> list[int]:
    """A descriptor of the kernel's log."""
    return [os.open(f"{rootfs}/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)]


def _read(path: str, most: int) -> bytes:
    # Without O_NONBLOCK, a pipe in place of a file would block.
    with open_file(path, os.O_RDONLY | os.O_NONBLOCK) as file:
        content = bytearray()  # which grows in place: a file in /proc comes a page at a time
        while block := os.read(file, 1 << 16):
            content += block
            if len(content) > most:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    return bytes(content)


READS: tuple[Callable[..., bytes], ...] = (
    *(text, names, link, environment, maps, sockets, count, space, part, image),
)


def work(rootfs: str) -> Work:
    """What the helper ``files`` does, on the node whose root is at ``rootfs``."""
    verbs: dict[str, Verb] = {verb.__name__: partial(verb, rootfs) for verb in READS}
    verbs |= {
        "part": partial(part, rootfs, named=named),
        "kernel_log": partial(kernel_log, rootfs),
    }
    return Work(verbs, ("DAC_READ_SEARCH", "SETGID", "SETUID", "SYSLOG", "SYS_PTRACE"))
