"""What is asked of a GPU driver, in base units: the seam between sensing and a vendor's library.

``driver/nvidia`` answers from NVML, ``node/tape.py`` from a recording; another vendor is another
folder. Every answer is a plain number or one of the records below, because the annotations here are
also the schema of a tape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

T = TypeVar("T")


class DriverError(Exception):
    """The driver answered a call with an error; ``str()`` names the call and the error."""


class Unsupported(DriverError):
    """The GPU or its driver does not have that sensor."""


class DriverUnavailable(DriverError):
    """There is no driver to ask: not installed, not loaded, or being replaced."""


UNITS = (
    "graphics",
    "sm",
    "integer",
    "tensor",
    "tensor_fp64",
    "tensor_half",
    "tensor_integer",
    "dram",
    "fp64",
    "fp32",
    "fp16",
)
"""Units of a GPU of which ``Activity`` tells the share of time that each was active."""

OCCUPANCY = "occupancy"
"""Warps resident over warps possible, which ``Activity`` tells as well."""

LINKS = ("pcie", "nvlink", "c2c")
DIRECTIONS = ("transmit", "receive")
"""Links of which ``Activity`` tells bytes a second, as ``pcie_transmit`` and so on."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a GPU is. ``index`` is the driver's, ``uuid`` is what stays.

    A MIG instance carries its parent's index and names the parent in ``parent``. ``minor`` is the N
    of /dev/nvidiaN, ``gpu_instance`` the id of a MIG instance on its GPU.
    """

    index: int
    uuid: str
    name: str
    bus_id: str | None = None
    serial: str | None = None
    vbios: str | None = None
    compute_capability: str | None = None
    parent: str | None = None
    mig: bool = False
    minor: int | None = None
    gpu_instance: int | None = None
    vendor: str = "nvidia"
    """A name in ``driver/vendors.py``."""

    @property
    def labels(self) -> tuple[str, str]:
        """The labels ``gpu`` and ``uuid`` of everything that is exported of this GPU."""
        return str(self.index), self.uuid


@dataclass(frozen=True, slots=True)
class Limits:
    """What the hardware could do at best; a rate that the driver does not tell is None."""

    memory_bytes_per_second: float | None = None
    nvlink_bytes_per_second: float | None = None
    """One direction, all links together."""
    pcie_bytes_per_second: float | None = None
    """One direction, at the best that GPU and slot can do; an idle link is slower to save power."""
    sm_clock_hertz: float | None = None
    memory_clock_hertz: float | None = None


@dataclass(frozen=True, slots=True)
class Activity:
    """Counters of every unit over ``seconds``: shares of time are 0 to 1, byte rates per second.

    Keys are those of ``UNITS`` and ``LINKS``; what the driver did not answer is absent.
    ``counters`` is who keeps them: one of the vendor's.
    """

    seconds: float
    values: dict[str, float]
    counters: str = "gpm"


@dataclass(frozen=True, slots=True)
class Buffered:
    """Samples that the driver kept: (microseconds since the epoch, value), oldest first."""

    samples: list[tuple[int, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Utilization:
    """Shares of the driver's last sample period: with work running, and with memory accessed."""

    gpu: float
    memory: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Frame buffer in bytes; ``used`` does not include what the driver reserves."""

    total: float
    used: float
    reserved: float | None


@dataclass(frozen=True, slots=True)
class Process:
    """A process that holds the GPU; ``kind`` is the engine it asked for."""

    pid: int
    memory: float | None
    kind: Literal["compute", "graphics", "mps"]


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """Share of time (0 to 1) that a process had work on the GPU, over the driver's last sample."""

    pid: int
    gpu: float


@dataclass(frozen=True, slots=True)
class PowerLimits:
    """Watts: what is enforced now, and what the board came with."""

    enforced: float
    default: float | None


@dataclass(frozen=True, slots=True)
class PcieLink:
    """PCI Express generation and lanes, now and at best."""

    generation: int
    width: int
    max_generation: int
    max_width: int


@dataclass(frozen=True, slots=True)
class NvLink:
    """One NVLink: up or down, its speed one way, and its error counters by kind."""

    link: int
    up: bool
    bytes_per_second: float | None
    errors: dict[str, float]


@dataclass(frozen=True, slots=True)
class Fabric:
    """NVSwitch fabric registration: the state's name, and whether each health bit is clear."""

    state: str
    healthy: dict[str, bool]


@dataclass(frozen=True, slots=True)
class RemappedRows:
    """Memory rows replaced by spares, whether a reset is needed for it, and whether one failed."""

    corrected: float
    uncorrected: float
    pending: bool
    failed: bool


@dataclass(frozen=True, slots=True)
class Xid:
    """An XID error event; ``number`` is the driver's code."""

    number: int


class Gpu(Protocol):
    """One GPU or MIG instance.

    Every method raises ``Unsupported`` where the sensor is missing and ``DriverError`` when the
    driver fails; both are decided for this GPU alone.
    """

    @property
    def identity(self) -> Identity:
        """Who this is; known without asking the driver."""
        ...

    def limits(self) -> Limits: ...
    def activity(self) -> Activity:
        """What the GPM counters saw since the previous call of this method."""
        ...

    def power_samples(self, after: int) -> Buffered:
        """Watts, one sample in about 20 ms, newer than the time ``after`` in microseconds."""
        ...

    def utilization_samples(self, after: int) -> Buffered:
        """Share of time (0 to 1) with work, one sample in about 200 ms, newer than ``after``."""
        ...

    def utilization(self) -> Utilization: ...
    def power(self) -> float: ...
    def energy(self) -> float:
        """Joules since the driver was loaded."""
        ...

    def memory(self) -> Memory: ...
    def sm_clock(self) -> float: ...
    def memory_clock(self) -> float: ...
    def clock_events(self) -> list[str]:
        """Names of the reasons for which the clocks are held down at this moment."""
        ...

    def throttled(self) -> dict[str, float]:
        """Seconds held down by reason since the driver was loaded, from its own counters."""
        ...

    def temperature(self) -> float: ...
    def memory_temperature(self) -> float: ...
    def temperature_margin(self) -> float:
        """Degrees left until the slowdown."""
        ...

    def power_limits(self) -> PowerLimits: ...
    def processes(self) -> list[Process]: ...
    def process_use(self) -> list[ProcessUse]:
        """The processes that had work on the GPU since the previous call of this method."""
        ...

    def ecc_errors(self) -> dict[str, float]:
        """ECC errors by ``corrected`` and ``uncorrected``, over the life of the GPU."""
        ...

    def remapped_rows(self) -> RemappedRows: ...
    def recovery_action(self) -> str: ...
    def pcie_link(self) -> PcieLink: ...
    def pcie_replays(self) -> float: ...
    def pcie_errors(self) -> dict[str, float]: ...
    def nvlinks(self) -> list[NvLink]: ...
    def nvlink_bytes(self) -> dict[str, float]: ...
    def fabric(self) -> Fabric: ...
    def persistence(self) -> bool: ...
    def mig_mode(self) -> bool: ...
    def xids(self) -> list[Xid]:
        """Events since the previous call; never blocks."""
        ...


@dataclass(frozen=True, slots=True)
class Vendor:
    """What a vendor's GPUs are called outside of their driver.

    ``pci_id`` is what /sys/bus/pci/devices/*/vendor says. ``counters`` are those that may keep what
    ``Activity`` tells. The kubelet names a device by an id that begins with one of
    ``device_prefixes``, or by a claim of ``claim_driver`` (dynamic resource allocation), and
    ``is_device`` says whether such a name is that of a GPU.
    """

    name: str
    pci_id: str
    counters: tuple[str, ...]
    device_prefixes: tuple[str, ...]
    claim_driver: str
    is_device: Callable[[Identity, str], bool]


class Driver(Protocol):
    """A vendor's driver on one node."""

    @property
    def vendor(self) -> str:
        """A name in ``driver/vendors.py``."""
        ...

    def gpus(self) -> list[Gpu]:
        """Every GPU and MIG instance, opened again where the driver was replaced.

        Raises ``DriverUnavailable`` where there is none.
        """
        ...


def known(read: Callable[[], T]) -> T | None:
    """The answer of a sensor, or None where the GPU does not have it."""
    try:
        return read()
    except Unsupported:
        return None
