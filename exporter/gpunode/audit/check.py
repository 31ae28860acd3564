"""What a check is, and what it looks at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from gpunode.gpu.driver import Driver, DriverError, Gpu, known
from gpunode.node import Node

MANY = 64
"""Processes that the audit looks at."""


class CannotTell(Exception):
    """What a check is about is not on this node, or cannot be read; in words for a person."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found, in a few words, and whether that is as advised."""

    ok: bool
    found: str


class Subject:
    """The node as the checks see it; what several of them need is read once."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def text(self, path: str) -> str:
        """A file without its last newline. Raises ``OSError``."""
        return self.node.read_text(path).strip()

    def names(self, path: str) -> list[str]:
        """What is in a directory; nothing where there is none."""
        try:
            return self.node.list_directory(path)
        except FileNotFoundError:
            return []

    @cached_property
    def driver(self) -> Driver:
        return self.node.driver()

    @cached_property
    def gpus(self) -> list[Gpu]:
        """The GPUs, without MIG instances. Raises ``CannotTell`` where there are none."""
        try:
            found = [gpu for gpu in self.driver.gpus() if not gpu.identity.mig]
        except DriverError as error:
            raise CannotTell(f"no GPU: {error}") from error
        if not found:
            raise CannotTell("no GPU")
        return found

    @cached_property
    def processes(self) -> dict[int, Gpu]:
        """The processes on the GPUs. Raises ``CannotTell`` where there are none."""
        found = {process.pid: gpu for gpu in self.gpus for process in known(gpu.processes) or []}
        if not found:
            raise CannotTell("no process is on a GPU")
        return dict(list(found.items())[:MANY])


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to be set up well.

    ``look`` raises ``CannotTell``, ``OSError`` or ``ValueError`` where it cannot tell.
    """

    name: str
    advised: str
    why: str
    remedy: str
    source: str
    look: Callable[[Subject], Finding]


def each(findings: dict[str, str | None]) -> Finding:
    """Of many things: which are not as advised, or that all are. None stands for as advised."""
    if not findings:
        raise CannotTell("nothing of the kind is on this node")
    wrong = [f"{name}: {what}" for name, what in findings.items() if what is not None]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        return Finding(False, "; ".join(wrong[:3]) + more)
    return Finding(True, f"{len(findings)} of {len(findings)}")
