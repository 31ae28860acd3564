"""Test machines: a node made of a folder of files, at two moments ten seconds apart.

``tests/machines/NAME/first`` holds the files of the first moment, ``later`` those that changed by
the second. What is not a file is in ``answers.json``: ``gpus`` with their processes, and for each
moment ``filesystems``, ``network_statistics`` and the lines that came to ``logs``.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpunode.driver.driver import Driver, Gpu, Identity, Process, Unsupported
from gpunode.metric import Sample
from gpunode.node import containers, http
from gpunode.node.datagram_socket import Datagram
from gpunode.node.kubelet import Allocation
from gpunode.node.local import LocalNode
from gpunode.node.node import (
    SHARED_MEMORY,
    Filesystem,
    Image,
    KeptLines,
    ScrapedPage,
    SteppedClock,
    Sums,
    environment_of,
    libraries_of,
    lines_of,
    program_of,
    sums_of,
)
from gpunode.node.stacks import ProcessStacks, stacks_of
from gpunode.source import Source
from tests.strict import declared

MACHINES = Path(__file__).with_name("machines")
INTERVAL = 10.0
"""Seconds between the two moments."""


class Machine:
    """A ``Node`` over the folder of a machine."""

    def __init__(self, folder: Path) -> None:
        self.clock = SteppedClock(1_700_000_000.0)
        self.stages = [LocalNode(folder / "first")]
        self.later = LocalNode(folder / "later")
        answers = folder / "answers.json"
        self.answers: dict[str, Any] = json.loads(answers.read_text()) if answers.exists() else {}
        self.moment = "first"

    def step(self) -> None:
        """Go on to the second moment."""
        self.clock.now += INTERVAL
        self.moment = "later"
        self.stages.insert(0, self.later)

    def reset(self) -> None:
        """Go back to the first moment."""
        self.clock.now = 0.0
        self.moment = "first"
        self.stages = self.stages[-1:]

    @property
    def drivers(self) -> Sequence[Driver]:
        listed = self.answers.get("gpus")
        return [MachineDriver([MachineGpu(**gpu) for gpu in listed])] if listed else []

    def read_text(self, path: str) -> str:
        for stage in self.stages:
            if os.path.lexists(stage.rootfs + path):
                return stage.read_text(path)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def list_directory(self, path: str) -> list[str]:
        found = [stage for stage in self.stages if Path(stage.rootfs + path).is_dir()]
        if not found:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return sorted({name for stage in found for name in stage.list_directory(path)})

    def filesystem(self, path: str) -> Filesystem:
        return Filesystem(**self._answer("filesystems", path))

    def log_lines(self, path: str) -> list[str]:
        lines: list[str] = self._answer("logs", path)
        return lines

    def network_statistics(self, interface: str) -> dict[str, int]:
        statistics: dict[str, int] = self._answer("network_statistics", interface)
        return statistics

    def lines(self, path: str, after: int, pattern: re.Pattern[str]) -> KeptLines:
        return lines_of(self.read_text(path).encode()[after:], after, pattern)

    def sums(self, path: str, after: int, add: Callable[[str], dict[str, float]]) -> Sums:
        return sums_of(self.read_text(path).encode()[after:], after, add)

    def environment(self, pid: int) -> dict[str, str]:
        return environment_of(self.read_text(f"/proc/{pid}/environ"))

    def program(self, pid: int) -> str:
        return program_of(self.read_text(f"/proc/{pid}/cmdline").split("\0"))

    def stacks(self, pid: int) -> ProcessStacks:
        said: str = self._answer("stacks", str(pid))
        threads = [int(name) for name in self.list_directory(f"/proc/{pid}/task")]
        return stacks_of(pid, threads, lambda: said, self.read_text)

    def libraries(self, pid: int) -> list[str]:
        return libraries_of(self.read_text(f"/proc/{pid}/maps").encode())

    def shares_memory(self, pid: int) -> bool:
        return SHARED_MEMORY.search(self.read_text(f"/proc/{pid}/maps").encode()) is not None

    def image(self, container: str) -> Image:
        for file, parse in containers.FILES:
            with contextlib.suppress(FileNotFoundError):
                return parse(self.read_text(file.replace("/ID/", f"/{container}/")))
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), container)

    def listens(self, pid: int) -> bool:
        return bool(self._answer("listens", str(pid)))

    def helpers(self) -> dict[str, float]:
        try:
            found: dict[str, float] = self._answer("helpers", "")
        except OSError:
            return {}
        return found

    def communicates(self, pid: int) -> bool:
        return bool(self._answer("communicates", str(pid)))

    def ended(self, pid: int, start: float) -> int | None:  # noqa: ARG002
        return int(self._answer("ended", str(pid)))

    def open_files(self, pid: int) -> int:
        return int(self._answer("open_files", str(pid)))

    def round_trips(self) -> list[float]:
        return [float(one) for one in self._answer("round_trips", "all")]

    def read_link(self, path: str) -> str:
        return str(self._answer("links", path))

    def ask(self, pid: int, address: str, request: str) -> str:  # noqa: ARG002
        return str(self._answer("asked", f"{pid} {address}"))

    def listening_at(self, pid: int) -> list[str]:
        return [str(address) for address in self._answer("listening_at", str(pid))]

    def scrape(self, pid: int, address: str, path: str, names: Collection[str]) -> ScrapedPage:
        page = self.read_text(str(self._answer("scraped", f"{pid} {address} {path}")))
        return http.scraped_of(f"HTTP/1.0 200 OK\r\n\r\n{page}", names)

    def datagrams(self, socket: str, known: Collection[int]) -> list[Datagram]:  # noqa: ARG002
        return [Datagram(**came) for came in self._answer("datagrams", socket)]

    def allocations(self, socket: str) -> list[Allocation]:
        return [Allocation(**given) for given in self._answer("allocations", socket)]

    def _answer(self, kind: str, of: str) -> Any:
        """What was said of it at this moment, else at the first."""
        for moment in (self.moment, "first"):
            answers = self.answers.get(moment, {}).get(kind, {})
            if of in answers:
                return answers[of]
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), of)


@dataclass(frozen=True)
class MachineDriver:
    """A driver that lists some GPUs."""

    listed: Sequence[Gpu]
    vendor: str = "nvidia"

    def gpus(self) -> list[Gpu]:
        return list(self.listed)


@dataclass(frozen=True)
class MachineGpu:
    """A GPU that knows who it is and who uses it, and nothing else."""

    index: int
    uuid: str
    bus_id: str
    pids: tuple[int, ...] = ()
    name: str = "NVIDIA H200"
    compute_capability: str | None = None

    @property
    def identity(self) -> Identity:
        return Identity(
            self.index,
            self.uuid,
            self.name,
            self.bus_id,
            compute_capability=self.compute_capability,
        )

    def processes(self) -> list[Process]:
        return [Process(pid, None, "compute") for pid in self.pids]

    def __getattr__(self, call: str) -> Any:
        if call.startswith("_"):
            raise AttributeError(call)

        def unsupported(*_: Any) -> Any:
            raise Unsupported(f"{call}: not on a test machine")

        return unsupported


def read_twice(machine: Machine, source: Source) -> str:
    """What a source exports after both moments, as text; how it failed where it did."""
    from gpunode.export.exposition import Exposition

    try:
        read_source(source)
        machine.step()
        samples = read_source(source)
    except FileNotFoundError:
        return ""  # what reads it finds nothing on this machine
    except OSError as error:
        return f"{type(error).__name__}: {error.strerror or error}\n"
    return Exposition(lambda: samples).encode("")[0].decode()


def read_source(source: Source) -> tuple[Sample, ...]:
    """What a source reads, all of which it declares."""
    reading = source.read()
    samples = reading.samples if reading else ()
    declared(source, samples)
    return samples


def exported(samples: Iterable[Sample]) -> str:
    """Samples as lines of the text format, in order and without comments."""
    from gpunode.export.exposition import Exposition

    text = Exposition(lambda: samples).encode("")[0].decode()
    return "\n".join(sorted(line for line in text.splitlines() if not line.startswith("#")))


def stat(pid: int, start: int = 1000, parent: int = 1) -> str:
    """The stat file of a process that began at a time in ticks since boot."""
    return f"{pid} (python3) S {parent} {'0 ' * 17}{start} 0\n"


def begin(root: Path, pid: int, start: int = 1000, parent: int = 1) -> Path:
    """Put a process into the /proc below a root, or another with the same PID; its folder."""
    folder = root / f"proc/{pid}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stat").write_text(stat(pid, start, parent))
    return folder


class OneGpu(LocalNode):
    """This machine with one GPU, which some processes hold; time is the test's."""

    vendor = "nvidia"

    def __init__(self, *pids: int) -> None:
        super().__init__(Path("/"), [self])
        self.stepped = SteppedClock(0.0)
        self.clock = self.stepped  # type: ignore[assignment]
        self.pids = pids

    def gpus(self) -> list[Gpu]:
        return [MachineGpu(0, "GPU-aa", "0", self.pids)]
