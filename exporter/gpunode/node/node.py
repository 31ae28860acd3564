"""The only access to the machine: files, filesystems, logs, drivers and the clock.

Everything read from the machine goes through a ``Node``, so that ``tape.py`` can record it and play
it back, and a folder of files can serve as a test machine.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpunode.driver.driver import Driver
from gpunode.helper import files
from gpunode.helper.environment import ENVIRONMENT, MAX_VALUE
from gpunode.node.datagram_socket import Datagram
from gpunode.node.kubelet import Allocation
from gpunode.node.stacks import ProcessStacks


class Clock(Protocol):
    """The clocks of a node."""

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps and stops while the node is suspended."""
        ...

    def time(self) -> float:
        """Seconds since the epoch."""
        ...

    def thread_cpu(self) -> float | None:
        """CPU seconds used by the calling thread; None during playback."""
        ...


class NotRecorded(FileNotFoundError):
    """What a tape was asked for when it was recorded, this is not; a live node never raises it."""


class NoDescriptors(Exception):
    """No file descriptor is left, which says nothing about what was to be opened.

    It is no ``OSError``, which sources take for a file or a process that is gone.
    """


class SteppedClock:
    """A tape's clock: it stands still until it is set."""

    def __init__(self, epoch: float) -> None:
        self.epoch = epoch
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.epoch + self.now

    def thread_cpu(self) -> float | None:
        return None


MAX_FILE = files.MAX_BYTES
"""Size limit of a file in bytes; a counter file of a large node has a tenth of that."""

MAX_READ = files.MAX_READ
"""The most bytes of a tenant's file to read at once."""

MAX_PROGRAM = 64
"""Characters of a program's name."""


@dataclass(frozen=True, slots=True)
class Filesystem:
    """Bytes: total, free, and free to users other than root; files: total and free.

    Both file counts are 0 if the filesystem has no fixed number of files.
    """

    size: float
    free: float
    available: float
    files: float = 0.0
    files_free: float = 0.0


LIBRARIES = re.compile(
    rb"^\S+ \S+ \S+ \S+ \d+ +(/[^\n\\]{1,512}?/(?:torch/lib/libtorch_(?:cuda|hip|cpu|python)\.so"
    rb"|libnccl\.so(?:\.\d{1,6}){0,3}|libcudart\.so(?:\.\d{1,6}){0,3}))$",
    re.MULTILINE,
)
"""The only libraries that are looked for among the files that a process has mapped: their paths
lead to the versions of what it runs. A line of /proc/PID/maps is kept only for these."""

SHARED_MEMORY = re.compile(
    rb"^\S+ \S+ \S+ \S+ \d+ +/dev/shm/"
    rb"(?:nccl-|nvshmem-shm|ucx_shm_posix_|vader_segment|sm_segment)",
    re.MULTILINE,
)
"""Memory that a process shares with its peers by NCCL, NVSHMEM, UCX or Open MPI.
https://github.com/NVIDIA/nccl/blob/v2.28.3-1/src/misc/shmutils.cc,
https://github.com/openucx/ucx/blob/master/src/uct/sm/mm/posix/mm_posix.c,
https://github.com/open-mpi/ompi/blob/main/opal/mca/btl/sm/btl_sm_component.c"""

MAX_LIBRARIES = 16
"""The most such files of a process; one of each is usual."""


@dataclass(frozen=True, slots=True)
class Image:
    """The image of a container: its name with a tag, and a digest; what is not known is empty."""

    name: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class KeptLines:
    """What was kept of a part of a file, and the byte at which the next part begins."""

    kept: list[str]
    end: int


@dataclass(frozen=True, slots=True)
class Sums:
    """What a part of a file adds up to, by name, and the byte at which the next part begins."""

    sums: dict[str, float]
    end: int


@dataclass(frozen=True, slots=True)
class ScrapedPage:
    """The lines of a server's page whose figures are known."""

    status: int
    """As HTTP has it."""

    exposes: bool
    """Whether the page is Prometheus' text format, with whatever figures."""

    kept: list[str]


def environment_of(text: str) -> dict[str, str]:
    """The variables of a process that are in ``ENVIRONMENT`` and not too long for any use."""
    pairs = (entry.partition("=") for entry in text.split("\0"))
    return {n: value for n, _, value in pairs if n in ENVIRONMENT and len(value) <= MAX_VALUE}


def lines_of(part: bytes, begin: int, pattern: re.Pattern[str]) -> KeptLines:
    """What is kept of the whole lines in a part of a file: the first group of each match."""
    text, end = _whole_lines(part)
    return KeptLines([match[1] for match in pattern.finditer(text)], begin + end)


def sums_of(part: bytes, begin: int, add: Callable[[str], dict[str, float]]) -> Sums:
    """What the whole lines in a part of a file add up to."""
    text, end = _whole_lines(part)
    return Sums(add(text), begin + end)


def _whole_lines(part: bytes) -> tuple[str, int]:
    """The whole lines in a part of a file, and their bytes.

    A line that does not end yet belongs to the next part, unless it fills this one.
    """
    end = part.rfind(b"\n") + 1 or (len(part) if len(part) == MAX_READ else 0)
    return part[:end].decode("utf-8", "replace"), end


def libraries_of(maps: bytes) -> list[str]:
    """The paths of ``LIBRARIES`` in a /proc/PID/maps, each once."""
    found = dict.fromkeys(match[1] for match in LIBRARIES.finditer(maps))
    return [path.decode("utf-8", "replace") for path in list(found)[:MAX_LIBRARIES]]


def program_of(arguments: list[str]) -> str:
    """The script, module or program that a command line runs, without its folder and arguments.

    For ``python -m NAME`` and ``…/NAME/__main__.py`` it is NAME; empty for ``python -c``, for a
    script from standard input, and where there is no command line, as in the kernel's threads.
    Of a title that a process gave itself, it is the first word.
    """
    title = arguments[0].split() if arguments else []
    command = posixpath.basename(title[0]).rstrip(":") if title else ""
    if command.startswith("python") and len(title) == 1:
        return _run_by_python(command, arguments[1:])[:MAX_PROGRAM]
    return command[:MAX_PROGRAM]


def _run_by_python(command: str, arguments: list[str]) -> str:
    """The script or module among Python's arguments, else the command.

    Options may be joined, and joined with their value: ``-uc CODE``, ``-mNAME``.
    """
    rest = iter([argument for argument in arguments if argument])
    for argument in rest:
        if argument == "-":
            return ""
        if not argument.startswith("-"):
            folder, script = posixpath.split(argument.rstrip("/"))
            name = posixpath.basename(folder) if folder and script == "__main__.py" else script
            return name.removesuffix(".py")
        if argument == "--check-hash-based-pycs":
            next(rest, "")
        elif not argument.startswith("--"):
            option, value = _with_value(argument)
            if option == "c":
                return ""
            if option == "m":
                return value or next(rest, "")
            if option and not value:
                next(rest, "")
    return command


def _with_value(options: str) -> tuple[str, str]:
    """The option that takes a value among joined ones such as ``-um``, and what follows it."""
    for at, option in enumerate(options):
        if option in "cmWX":
            return option, options[at + 1 :]
    return "", ""


class Node(Protocol):
    """Read access to a machine."""

    @property
    def clock(self) -> Clock: ...
    @property
    def drivers(self) -> Sequence[Driver]:
        """The driver of each vendor, whether or not it is installed."""
        ...

    def read_text(self, path: str) -> str:
        """The file at the absolute ``path`` of the node, which no tenant may choose.

        Raises ``OSError``, also if the file is larger than ``MAX_FILE``.
        """
        ...

    def list_directory(self, path: str) -> list[str]:
        """Names in a directory of the node, sorted. Raises ``OSError``."""
        ...

    def filesystem(self, path: str) -> Filesystem:
        """Size and use of the filesystem that holds ``path``. Raises ``OSError``."""
        ...

    def log_lines(self, path: str) -> list[str]:
        """Lines added to a log since the last call; none at the first call.

        Follows the log through rotation. ``/dev/kmsg`` counts as a log. Raises ``OSError``.
        """
        ...

    def lines(self, path: str, after: int, pattern: re.Pattern[str]) -> KeptLines:
        """What ``pattern`` keeps of the lines of a tenant's file from the byte ``after``.

        The path is below /proc/PID/root or /proc/PID/cwd, and is followed only inside the root of
        that process and with the rights of its user. At most ``MAX_READ`` bytes are read; a file
        that is shorter than ``after`` is read from its beginning. Only the first group of each
        match is kept: the rest is the tenant's and comes neither here nor on a tape. Raises
        ``OSError``, and ``TimeoutError`` if the file does not answer.
        """
        ...

    def sums(self, path: str, after: int, add: Callable[[str], dict[str, float]]) -> Sums:
        """What ``add`` makes of lines that are read as by ``lines``.

        For a file that grows too fast for all that is kept of it to be on a tape. Raises
        ``OSError``, and ``TimeoutError`` if the file does not answer.
        """
        ...

    def environment(self, pid: int) -> dict[str, str]:
        """Initial environment of a process: the names in ``ENVIRONMENT``. Raises ``OSError``."""
        ...

    def program(self, pid: int) -> str:
        """The program that a process runs, as ``program_of`` tells it. Raises ``OSError``."""
        ...

    def libraries(self, pid: int) -> list[str]:
        """Paths, inside the root of a process, of the ``LIBRARIES`` that it has mapped.

        Only the kernel's word that it has; what is there now is up to the process. Raises
        ``OSError``, and ``TimeoutError`` if the kernel does not answer.
        """
        ...

    def shares_memory(self, pid: int) -> bool:
        """Whether a process has mapped ``SHARED_MEMORY`` of a communicator.

        Raises ``OSError``, and ``TimeoutError`` if the kernel does not answer.
        """
        ...

    def image(self, container: str) -> Image:
        """The image of a container, by its ID of 64 digits, as its runtime tells root.

        Raises ``OSError`` or ``ValueError``.
        """
        ...

    def listens(self, pid: int) -> bool:
        """Whether a process waits for TCP connections as a server does: see ``node/sockets.py``.

        Raises ``OSError``.
        """
        ...

    def communicates(self, pid: int) -> bool:
        """Whether a process has the socket of a communicator of NCCL. Raises ``OSError``."""
        ...

    def stacks(self, pid: int) -> ProcessStacks:
        """Where the threads of a process stand: in the kernel, and in Python if py-spy may look.

        Raises ``OSError`` if there is no such process.
        """
        ...

    def ended(self, pid: int, start: float) -> int | None:
        """The status with which a process ended that started so many ticks after boot.

        None while it runs, and where the kernel does not tell. It is told of what was asked about
        before it ended. Raises ``OSError``, also if another process has the PID.
        """
        ...

    def open_files(self, pid: int) -> int:
        """How many files a process has open. Raises ``OSError``."""
        ...

    def round_trips(self) -> list[float]:
        """Round-trip times, in seconds, of open TCP connections to other machines.

        Raises ``OSError``.
        """
        ...

    def network_statistics(self, interface: str) -> dict[str, int]:
        """Counters of a network driver, as ``ethtool -S`` shows them. Raises ``OSError``."""
        ...

    def read_link(self, path: str) -> str:
        """The target of a link, such as a namespace in /proc/PID/ns. Raises ``OSError``."""
        ...

    def helpers(self) -> dict[str, float]:
        """CPU seconds of the helpers that read what this program may not, by their names.

        Empty where there are none. Raises ``OSError`` where one does not answer.
        """
        ...

    def ask(self, pid: int, address: str, request: str) -> str:
        """The answer of the server that a process runs at HOST:PORT in its network namespace.

        Raises ``OSError``, ``ConnectionRefusedError`` if it runs none there.
        """
        ...

    def listening_at(self, pid: int) -> list[str]:
        """The addresses, as HOST:PORT, at which a process waits for TCP connections.

        Raises ``OSError``, also without the right to see its descriptors.
        """
        ...

    def scrape(self, pid: int, address: str, path: str, names: Collection[str]) -> ScrapedPage:
        """The lines of these series among the metrics that a process serves at HOST:PORT by HTTP.

        Only these are kept: the rest is the tenant's and comes neither here nor on a tape.
        Raises ``OSError`` as ``ask`` does, and if the answer is not HTTP or keeps too much.
        """
        ...

    def datagrams(self, socket: str, known: Collection[int]) -> list[Datagram]:
        """Datagrams received on a Unix socket since the last call; the first call opens it.

        Until the next call, the processes ``known`` have room whatever others send. The socket
        belongs to this program: its path is not below the root. Raises ``OSError``.
        """
        ...

    def allocations(self, socket: str) -> list[Allocation]:
        """Devices that the kubelet at a socket allocated to containers. Raises ``OSError``."""
        ...


def names_in(node: Node, folder: str) -> list[str]:
    """The names in a folder; none if it cannot be listed."""
    try:
        return node.list_directory(folder)
    except OSError:
        return []


def text_of(node: Node, path: str) -> str:
    """A file without surrounding whitespace; empty if it cannot be read."""
    try:
        return node.read_text(path).strip()
    except OSError:
        return ""
