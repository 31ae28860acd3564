"""Servers on a /proc in a folder: who started whom, who listens where, and what each answers."""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpunode.config.daemon import ServingSettings, Settings
from gpunode.node import http
from gpunode.node.kernel import HERTZ
from gpunode.node.node import ScrapedPage
from gpunode.serving.requests import ServingEngines
from gpunode.source import WHOLE_NODE, Place, Reading, Source
from tests.holders.proc import Card, Proc
from tests.machine import exported, stat
from tests.strict import declared

PAGES = Path(__file__).parents[1] / "corpus/engines"
"""Pages as versions of engines write them: ``tests/corpus/engines.yaml`` says how each was had."""

CAPTURED = tuple(sorted(path.stem for path in PAGES.glob("*.txt")))


def page(name: str) -> str:
    """A page of an engine."""
    return (PAGES / f"{name}.txt").read_text()


@dataclass
class Fleet:
    """A node with GPUs on which servers run."""

    root: Path
    gpus: int = 1
    ask: bool = True
    listening: dict[int, list[str] | OSError] = field(default_factory=dict)
    """The addresses at which each process listens, by its PID."""

    pages: dict[str, str | OSError] = field(default_factory=dict)
    """What comes at an address, or at a path of it: a page, or an answer that begins with HTTP."""

    asked: list[tuple[int, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cards = [Card(index) for index in range(self.gpus)]
        self.proc = Proc(self.root, self.cards)
        self.proc.node.listening_at = self._listening_at  # type: ignore[method-assign]
        self.proc.node.scrape = self._scrape  # type: ignore[method-assign]
        self.source = ServingEngines(
            self.proc.census, Settings(serving=ServingSettings(ask=self.ask))
        )

    def run(
        self,
        pid: int,
        parent: int = 1,
        *,
        name: str = "python3",
        program: str = "server",
        start: int = 1000,
        cgroup: str = "0::/user.slice\n",
        environment: str = "",
    ) -> None:
        """Start a process, in place of one that had its PID."""
        self.proc.run(pid, start=start, program=program, environment=environment)
        folder = self.root / f"proc/{pid}"
        (folder / "stat").write_text(stat(pid, start, parent).replace("python3", name))
        (folder / "status").write_text(f"Name:\tx\nUid:\t1000\t1000\t0\t1000\nNSpid:\t{pid}\n")
        (folder / "cgroup").write_text(cgroup)
        children = self.root / f"proc/{parent}/task/{parent}"
        if (self.root / f"proc/{parent}").exists():
            children.mkdir(parents=True, exist_ok=True)
            known = children / "children"
            before = known.read_text() if known.exists() else ""
            known.write_text(f"{before}{pid} ")

    def use(self, pid: int, seconds: float) -> None:
        """Let a process have used so much CPU since it began."""
        file = self.root / f"proc/{pid}/stat"
        name, _, rest = file.read_text().rpartition(") ")
        fields = rest.split()
        fields[11] = str(round(seconds * HERTZ))
        file.write_text(f"{name}) {' '.join(fields)}\n")

    def serve(self, pid: int, address: str, said: str | OSError) -> None:
        """Let a process listen, and answer this."""
        self.listening[pid] = [address]
        self.pages[address] = said

    def read(self, seconds: float = 10.0) -> str:
        """What is exported after some seconds."""
        self.proc.clock.now += seconds
        return exported(self.reading().samples)

    def reading(self) -> Reading:
        """What the source reads now, all of which it declares."""
        reading = self.source.read()
        declared(self.source, reading.samples)
        return reading

    def _listening_at(self, pid: int) -> list[str]:
        found = self.listening.get(pid, [])
        if isinstance(found, OSError):
            raise found
        return found

    def _scrape(self, pid: int, address: str, path: str, names: Collection[str]) -> ScrapedPage:
        self.asked.append((pid, address, path))
        refused = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        said = self.pages.get(f"{address}{path}", self.pages.get(address, refused))
        if isinstance(said, OSError):
            raise said
        whole = said if said.startswith("HTTP") else f"HTTP/1.0 200 OK\r\n\r\n{said}"
        return http.scraped_of(whole, names)


@dataclass
class Engines:
    """Finds the source that asks the engines of a fleet."""

    fleet: Fleet
    name: str = "engines"

    def find(self) -> Iterator[tuple[Place, Source]]:
        yield WHOLE_NODE, self.fleet.source
