"""Reads what only root or another user may: files of processes, and a few others.

Each function reads one thing, by rules of its own, and returns bytes. It returns no descriptor of a
tenant's file or folder, because who has one may open it anew, or what is beside it. ``rootfs`` is
where the root of the node is mounted, empty for ``/``. All of them raise ``OSError``.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice

from gpunode.helper.capability import raised
from gpunode.helper.confine import Verb, Work
from gpunode.helper.environment import ENVIRONMENT, LONGEST_VALUE
from gpunode.helper.inside import PLACE, found, opened, place, process

VOLUMES = r"/var/(?:lib/kubelet|lib/k0s/kubelet|snap/microk8s/common/var/lib/kubelet)"
"""Where the kubelet keeps volumes: by default, of k0s and of MicroK8s."""

SPACE = re.compile(
    VOLUMES + r"/(?:pods/[0-9a-f-]{32,36}/volumes/[^/]+/[^/]+(?:/mount)?"
    r"|plugins/kubernetes\.io/csi/[^/]+/[^/]+/globalmount)"
)
"""Where it mounts them: only root may enter these folders, and nobody else writes."""

LUSTRE = r"/sys/kernel/debug/lustre(?:/[\w-][\w.-]*)*"
TEXT = re.compile(
    rf"/proc/\d+/(?:io|(?:task/\d+/)?wchan)|{VOLUMES}/plugins/kubernetes\.io/csi/[^/]+/[^/]+/vol_data\.json|{LUSTRE}"
    r"|/sys/class/powercap/intel-rapl:\d{1,3}(?::\d{1,3})?/energy_uj"
)
NAMES = re.compile(rf"/var/log/(?:pods|containers)|(?:/[\w.-]*[\w-])*/pod-resources|{LUSTRE}")
LINK = re.compile(r"/proc/\d+/(?:ns/\w+|root)")

IMAGE = re.compile(
    r"/(?:run(?:/k[03]s)?|var/snap/microk8s/common/run)/containerd/"
    r"io\.containerd\.runtime\.v2\.task/k8s\.io/[0-9a-f]{64}/config\.json"
    r"|/(?:run|var/lib)/containers/storage/overlay-containers/[0-9a-f]{64}/userdata/config\.json"
    r"|/var/lib/docker/containers/[0-9a-f]{64}/config\.v2\.json"
)

VERSION = re.compile(r"/etc/hostname|/.*/include/nccl\.h|/.*/torch/version\.py", re.DOTALL)
"""Files in a root that hold nothing but a name or versions, and so may be asked for."""

LOGS = {"NCCL_DEBUG_FILE": "", "NCCL_INSPECTOR_DUMP_DIR": "/%h-pid%p.log"}
"""What names a log of NCCL, or the folder of one, and what follows there."""

LARGEST = 4 << 20
"""Bytes of a file; a counter file of a large node has a tenth of that."""

MOST = 1 << 20
"""The most bytes of a tenant's file to read at once."""

DESCRIPTORS = 1 << 14
"""The most descriptors of a process to look at."""

SOCKET = re.compile(r"socket:\[(\d+)\]")

PAIR = rb'(?<!\\)"(?:%s)":\s*"[^"\\]{1,512}"'
OF_IMAGES = re.compile(PAIR % rb"io\.kubernetes\.(?:cri\.image-(?:name|ref)|cri-o\.Image\w{3,11})")
OF_DOCKER = re.compile(PAIR % rb"Image")
"""What names an image among all that a runtime keeps of a container; the rest holds its secrets."""


def text(rootfs: str, path: str) -> bytes:
    """A file that its user or root may read."""
    if not TEXT.fullmatch(path):
        raise PermissionError(errno.EPERM, "not a file that may be asked for", path)
    with raised():
        return _read(rootfs + path, LARGEST)


def names(rootfs: str, path: str) -> bytes:
    """The names in a folder, with zeros between them."""
    if not NAMES.fullmatch(path):
        raise PermissionError(errno.EPERM, "not a folder that may be asked for", path)
    no_link = os.O_NOFOLLOW if path.endswith("/pod-resources") else 0  # a tenant can make one
    with raised(), opened(rootfs + path, os.O_DIRECTORY | no_link) as folder:
        return b"\0".join(map(os.fsencode, os.listdir(f"/proc/self/fd/{folder}")))


def link(rootfs: str, path: str) -> bytes:
    """The target of a link of a process."""
    if not LINK.fullmatch(path):
        raise PermissionError(errno.EPERM, "not a link that may be asked for", path)
    with raised():
        return os.fsencode(os.readlink(rootfs + path))


def environment(rootfs: str, pid: str) -> bytes:
    """The variables of a process that are in ``ENVIRONMENT``; the others may hold secrets."""
    return b"\0".join(variables(rootfs, pid, ENVIRONMENT))


def variables(rootfs: str, pid: str, names: Iterable[str]) -> Iterator[bytes]:
    """The first of each name, which counts in C. A list of all might take 20 times their length."""
    with raised():
        content = b"\0%b\0" % _read(f"{process(rootfs, pid)}/environ", LARGEST)
    begins = (content.find(b"\0%b=" % name.encode()) + 1 for name in names)
    return (content[begin : content.index(b"\0", begin)] for begin in begins if begin)


def maps(rootfs: str, pid: str) -> bytes:
    """The beginning of what a process has mapped.

    Who maps a file of a server that never answers can make the kernel wait for it here.
    """
    with raised(), opened(f"{process(rootfs, pid)}/maps", os.O_RDONLY) as file:
        return _content(file, LARGEST)[:LARGEST]


def sockets(rootfs: str, pid: str) -> bytes:
    """The inodes of the sockets that a process has open, with spaces between them."""
    inodes = []
    with raised(), os.scandir(f"{process(rootfs, pid)}/fd") as entries:
        for entry in islice(entries, DESCRIPTORS):
            with suppress(OSError):  # it has been closed
                if match := SOCKET.fullmatch(os.readlink(entry.path)):
                    inodes.append(match[1])
    return " ".join(inodes).encode()


def count(rootfs: str, pid: str) -> bytes:
    """How many files a process has open."""
    with raised(), os.scandir(f"{process(rootfs, pid)}/fd") as entries:
        return b"%d" % sum(1 for _ in entries)


def space(rootfs: str, path: str) -> bytes:
    """Of a filesystem: the size of a block; blocks, free, and free to all; files, and free ones."""
    if PLACE.fullmatch(path):
        with found(rootfs, path) as (name, _):
            answer = os.fstatvfs(name)
    elif SPACE.fullmatch(path):
        with raised(("DAC_READ_SEARCH",)):
            answer = os.statvfs(rootfs + path)
    else:
        raise PermissionError(errno.EPERM, "not a filesystem that may be asked for", path)
    return numbers(answer)


def numbers(answer: os.statvfs_result) -> bytes:
    """The numbers of a filesystem, in the order above."""
    blocks = answer.f_frsize, answer.f_blocks, answer.f_bfree, answer.f_bavail
    return " ".join(map(str, (*blocks, answer.f_files, answer.f_ffree))).encode()


def part(rootfs: str, path: str, after: str) -> bytes:
    """Bytes of a regular file from ``after``, or from 0 if it is shorter; before them that number.

    Raises ``OSError`` also if the user of the process may not read it.
    """
    with found(rootfs, path) as (name, user):
        status = os.fstat(name)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        if status.st_uid != user and not status.st_mode & stat.S_IROTH:
            raise PermissionError(errno.EACCES, "belongs to another user than its process", path)
        begin = int(after) if int(after) <= status.st_size else 0
        size = min(MOST, status.st_size - begin)
        content = b""
        if size:  # a file in /proc has none, and reading it may change it
            with opened(f"/proc/self/fd/{name}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY) as file:
                content = os.pread(file, size, begin)
        return b"%d %b" % (begin, content)


def named(rootfs: str, path: str) -> bool:
    """Whether a path is one of ``VERSION``, or what the process itself names as a log of NCCL."""
    at = place(path)
    name = at["path"] if at["start"] == "cwd" else f"/{at['path']}"
    entries = variables(rootfs, at["process"].rpartition("/")[2], LOGS)
    return bool(VERSION.fullmatch(name)) or any(re.fullmatch(_log(one), name) for one in entries)


def _log(entry: bytes) -> str:
    """A pattern of the log that a variable names; of nothing if that is longer than any path."""
    variable, value = os.fsdecode(entry).split("=", 1)
    # Each is one text wherever it stands. If it could be any, there might be no end to it.
    log = re.escape(value + LOGS[variable])
    log = log.replace("%h", r"(?P<h>(?:[\w-][\w.-]{0,63})?)", 1).replace("%h", "(?P=h)")
    log = log.replace("%p", r"(?P<p>\d{1,10})", 1).replace("%p", "(?P=p)")
    return log if len(value) <= LONGEST_VALUE else "(?!)"


def image(rootfs: str, path: str) -> bytes:
    """What a runtime's file says of the image of a container, as the JSON that it was."""
    if not IMAGE.fullmatch(path):
        raise PermissionError(errno.EPERM, "not a container that may be asked for", path)
    with raised(("DAC_READ_SEARCH",)):
        content = _read(rootfs + path, MOST)
    if path.endswith("/config.json"):
        return b'{"annotations": {%b}}' % b", ".join(OF_IMAGES.findall(content))
    both = sorted(OF_DOCKER.findall(content), key=lambda pair: b'"sha256:' in pair)
    return b'{"Config": {%b}%b}' % (b"".join(both[:1]), b"".join(b", " + one for one in both[-1:]))


def kernel_log(rootfs: str) -> list[int]:
    """A descriptor of the kernel's log."""
    return [os.open(f"{rootfs}/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)]


def _read(path: str, most: int) -> bytes:
    # Without O_NONBLOCK, a pipe in place of a file would block.
    with opened(path, os.O_RDONLY | os.O_NONBLOCK) as file:
        content = _content(file, most)
    if len(content) > most:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    return content


def _content(file: int, most: int) -> bytes:
    """What a file holds; more than ``most`` bytes of it if it has more."""
    content = bytearray()  # which grows in place: a file in /proc comes a page at a time
    while len(content) <= most and (block := os.read(file, 1 << 16)):
        content += block
    return bytes(content)


READS: tuple[Callable[..., bytes], ...] = (
    *(text, names, link, environment, maps, sockets, count, space, part, image),
)


def work(rootfs: str) -> Work:
    """What the helper ``files`` does, on the node whose root is at ``rootfs``."""

    def part_that_is_named(path: str, after: str) -> bytes:
        if not named(rootfs, path):
            raise PermissionError(errno.EPERM, "its process does not name this file", path)
        return part(rootfs, path, after)

    verbs: dict[str, Verb] = {verb.__name__: partial(verb, rootfs) for verb in READS}
    verbs |= {"part": part_that_is_named, "kernel_log": partial(kernel_log, rootfs)}
    return Work(verbs, ("DAC_READ_SEARCH", "SETGID", "SETUID", "SYSLOG", "SYS_PTRACE"))
