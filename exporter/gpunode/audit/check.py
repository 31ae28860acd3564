"""What a check is, and the node as checks see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from gpunode.config.daemon import Settings
from gpunode.driver.driver import Gpu
from gpunode.holders.census import Census
from gpunode.holders.holder import Holder
from gpunode.host.infiniband import FOLDER as INFINIBAND
from gpunode.host.pcie import PciDevice, Pcie
from gpunode.node.node import Node
from gpunode.source import MORE_PROCESSES, bounded
from gpunode.unread import Unread

NO_ADAPTER = "no InfiniBand or RoCE adapter"


class Undecided(Exception):
    """The subject of a check is absent or cannot be read; ``str()`` is a message for the user."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a check found, in a few words, and whether it is as advised."""

    ok: bool
    found: str


class Subject:
    """The node as the checks see it; values that several checks need are read once."""

    def __init__(self, node: Node, listed: tuple[list[Gpu], dict[str, str]]) -> None:
        self.node = node
        self.listed = listed
        """All GPUs and MIG instances; by vendor, the errors of drivers that do not answer."""

        self.unread: tuple[Unread, ...] = ()
        """Where only a part is checked, because there are too many."""

    def text(self, path: str) -> str:
        """A file without surrounding whitespace. Raises ``OSError``."""
        return self.node.read_text(path).strip()

    def names(self, path: str) -> list[str]:
        """The names in a directory; none if it does not exist. Raises ``OSError``."""
        try:
            return self.node.list_directory(path)
        except FileNotFoundError:
            return []

    def gpus_of(self, vendor: str) -> list[Gpu]:
        """A vendor's GPUs, without MIG instances. Raises ``Undecided`` if there are none."""
        found = [gpu for gpu in self.gpus if gpu.identity.vendor == vendor]
        if not found:
            raise Undecided("no GPU")
        return found

    @property
    def gpus(self) -> list[Gpu]:
        """All GPUs, without MIG instances. Raises ``Undecided`` if there are none."""
        found, errors = self.listed
        whole = [gpu for gpu in found if not gpu.identity.mig]
        if not whole:
            raise Undecided(": ".join(["no GPU", *list(errors.values())[-1:]]))
        return whole

    @cached_property
    def rdma_ports(self) -> dict[str, str]:
        """The folders of InfiniBand and RoCE ports, by DEVICE/PORT."""
        return {
            f"{device}/{port}": f"{INFINIBAND}/{device}/ports/{port}"
            for device in self.names(INFINIBAND)
            for port in self.names(f"{INFINIBAND}/{device}/ports")
        }

    @cached_property
    def pci_devices(self) -> list[PciDevice]:
        """The GPUs and network adapters, and the bridges above each. Raises ``OSError``."""
        return Pcie(self.node, Settings()).devices()

    @cached_property
    def holders(self) -> dict[Holder, Gpu]:
        """The processes on the GPUs. Raises ``Undecided`` if there are none."""
        census = Census(self.node)
        looks = ((gpu, census.look(gpu)) for gpu in self.gpus)
        found = {
            holder.pid: (holder, gpu)
            for gpu, look in looks
            if look is not None
            for holder in look.holders
        }
        if not found:
            raise Undecided("no process runs on a GPU")
        kept, self.unread = bounded(
            found.values(),
            MORE_PROCESSES,
            of="processes on GPUs",
            whose=lambda one: (one[0].budget(), one[1].identity.uuid),
        )
        return dict(kept)


@dataclass(frozen=True, slots=True)
class Check:
    """One setting to check.

    ``look`` raises ``Undecided``, ``OSError`` or ``ValueError`` if it cannot decide.
    """

    name: str
    advised: str
    why: str
    remedy: str
    source: str
    look: Callable[[Subject], Observation]


def each(findings: dict[str, str | None]) -> Observation:
    """Combine findings by name: None means as advised, anything else is listed."""
    if not findings:
        raise Undecided("nothing to check on this node")
    wrong = [f"{name}: {what}" for name, what in findings.items() if what is not None]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        return Observation(False, "; ".join(wrong[:3]) + more)
    return Observation(True, f"{len(findings)} of {len(findings)}")
