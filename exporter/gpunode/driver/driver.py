"""The interface to a GPU driver, in base units; it hides the vendor's library from the sources.

``driver/nvidia`` answers from NVML, ``node/tape.py`` from a recording; another vendor is another
folder. Every answer is a plain number or one of the records below, because the annotations here are
also the schema of a tape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

T = TypeVar("T")


class DriverError(Exception):
    """The driver answered a call with an error; ``str()`` names the call and the error."""


class Unsupported(DriverError):
    """The GPU or its driver does not have this sensor, or answers what can be no reading."""


class SensorFailed(DriverError):
    """One sensor of the GPU failed, and the GPU answers for others."""


class DriverUnavailable(DriverError):
    """The driver is not installed, not loaded, or being replaced."""


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
"""Units of a GPU; ``Activity`` has the share of time that each was active."""

OCCUPANCY = "occupancy"
"""Resident warps over the maximum, also in ``Activity``."""

DIRECTIONS = ("transmit", "receive")
"""Links; ``Activity`` has bytes per second, as ``pcie_transmit`` and so on."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a GPU. The driver assigns ``index``; ``uuid`` never changes.

    A MIG instance has the index of its parent, and the parent's UUID in ``parent``. ``minor`` is
    the N in /dev/nvidiaN, ``gpu_instance`` the ID of a MIG instance on its GPU, ``mig_profile`` the
    ID of its profile and ``mig_start`` the first slice of memory that it has. ``bus_id`` is its
    name in /sys/bus/pci/devices.
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
    mig_profile: int | None = None
    mig_start: int | None = None
    vendor: str = "nvidia"
    """A name in ``driver/vendors.py``."""

    @property
    def labels(self) -> tuple[str, str]:
        """The labels ``gpu`` and ``uuid`` of every series of this GPU."""
        return str(self.index), self.uuid


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum rates of the hardware; a rate that the driver does not report is None."""

    memory_bytes_per_second: float | None = None
    nvlink_bytes_per_second: float | None = None
    """One direction, all active links together."""
    pcie_bytes_per_second: float | None = None
    """One direction, at the maximum of GPU and slot; an idle link slows down to save power."""
    sm_clock_hertz: float | None = None
    memory_clock_hertz: float | None = None


@dataclass(frozen=True, slots=True)
class Activity:
    """Means of the activity counters over ``seconds``: shares of time (0 to 1), bytes per second.

    Keys are ``UNITS``, ``OCCUPANCY`` and links with a direction; what the driver did not report is
    absent. ``counters`` says which counters these are, one of ``Vendor.counters``.
    """

    seconds: float
    values: dict[str, float]
    counters: str = "gpm"


@dataclass(frozen=True, slots=True)
class SampleBuffer:
    """Samples that the driver buffered: (microseconds since the epoch, value), oldest first."""

    samples: list[tuple[int, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Utilization:
    """Shares of the driver's last sample period: with work running, and with memory accessed."""

    gpu: float
    memory: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Frame buffer in bytes; ``used`` includes the driver's reserve if ``reserved`` is None."""

    total: float
    used: float
    reserved: float | None


@dataclass(frozen=True, slots=True)
class Process:
    """A process with a context on the GPU; ``kind`` is the kind of context."""

    pid: int
    memory: float | None
    kind: Literal["compute", "graphics", "mps"]


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """Share of the driver's last sample period (0 to 1) in which a process had work on the GPU."""

    pid: int
    gpu: float


@dataclass(frozen=True, slots=True)
class PowerLimits:
    """Watts: the limit enforced now, and the default of the board."""

    enforced: float
    default: float | None


@dataclass(frozen=True, slots=True)
class PowerRange:
    """Watts: the limit that was asked for, and the range in which it may be set."""

    asked: float | None
    least: float | None
    most: float | None


@dataclass(frozen=True, slots=True)
class TemperatureLimits:
    """Degrees Celsius at which the GPU slows down or shuts down, and up to which it may operate."""

    slowdown: float | None
    shutdown: float | None
    gpu: float | None
    memory: float | None


@dataclass(frozen=True, slots=True)
class VideoUse:
    """Shares of the driver's last sample period in which video was encoded, and decoded."""

    encoder: float | None
    decoder: float | None


@dataclass(frozen=True, slots=True)
class PcieLink:
    """PCI Express generation and lanes, current and maximum."""

    generation: int
    width: int
    max_generation: int
    max_width: int


@dataclass(frozen=True, slots=True)
class NvLink:
    """One NVLink: whether it is up, its speed in one direction, and its error counters by kind.

    ``bit_errors`` are bit error ratios by kind; 0 if there was no error.
    """

    link: int
    up: bool
    bytes_per_second: float | None
    errors: dict[str, float]
    bit_errors: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fabric:
    """NVSwitch fabric registration: the name of its state, and whether each part is healthy.

    ``faults`` names what is wrong with a part that is not. GPUs with the same ``cluster`` and
    ``clique`` reach each other's memory over NVLink; one without them is no part of a domain of
    several nodes.
    """

    state: str
    healthy: dict[str, bool]
    faults: dict[str, str] = field(default_factory=dict)
    cluster: str | None = None
    clique: int | None = None
    health_mask: int | None = None
    """The driver's own word for the health of all parts."""


@dataclass(frozen=True, slots=True)
class RemappedRows:
    """Memory rows remapped to spares, whether a reset is pending, and whether a remap failed."""

    corrected: float
    uncorrected: float
    pending: bool
    failed: bool


@dataclass(frozen=True, slots=True)
class ModulePower:
    """Watts of the module of GPUs and CPU that the GPU is a part of, and the limit enforced."""

    draw: float
    limit: float | None


@dataclass(frozen=True, slots=True)
class ChipLinks:
    """The links to the CPU of the same module (NVLink-C2C), those that are up, and their errors."""

    links: int
    up: int
    errors: dict[str, float]
    """Over all links, by kind."""


Mode = Literal[
    "passthrough",
    "vgpu",
    "host_vgpu",
    "host_vsga",
    "confidential_compute",
    "confidential_compute_debug",
    "power_smoothing",
    "lowered_peak_power",
    "adaptive_power_limit",
    "power_profile",
]
"""A mode that changes what a GPU can do or what is seen of it: it belongs to a virtual machine,
whole or shared, or shares itself out to some; its memory is encrypted for the host, all of it or
with the tools of developers allowed in; it ramps its power slowly up and down, has a lower peak
(EDPp), a limit that the driver moves, or a profile of power for a kind of work."""


@dataclass(frozen=True, slots=True)
class Xid:
    """An XID error event; ``number`` is the driver's code."""

    number: int


@dataclass(frozen=True, slots=True)
class OperationalEvent:
    """What a driver says in fields, and not in a line of text, of an error of a GPU.

    ``module`` and ``code`` tell what it is, ``category`` and ``severity`` in words. ``origin`` is
    ``primary``, ``secondary`` or ``propagated`` within what has the same ``trace``, or says why it
    is no error now: ``recovered``, ``before`` this start, ``simulated``. ``xid`` is the number of
    the error that says the same, if there is one.
    """

    module: str
    code: int
    category: str
    severity: str
    origin: str
    trace: int
    xid: int | None


class Gpu(Protocol):
    """One GPU or MIG instance.

    Every method raises ``Unsupported`` if the sensor is missing and ``DriverError`` if the driver
    fails; both apply to this GPU alone.
    """

    @property
    def identity(self) -> Identity:
        """Which GPU this is; known without asking the driver."""
        ...

    def limits(self) -> Limits: ...
    def activity(self) -> Activity:
        """Means of the activity counters since the previous call of this method."""
        ...

    def power_samples(self, after: int) -> SampleBuffer:
        """Watts, a sample about every 20 ms, newer than ``after`` (microseconds)."""
        ...

    def utilization_samples(self, after: int) -> SampleBuffer:
        """Share of time (0 to 1) with work, a sample about every 200 ms, newer than ``after``."""
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
        """Names of the reasons why the clocks are throttled now."""
        ...

    def performance_state(self) -> int:
        """0 at full performance to 15."""
        ...

    def throttled(self) -> dict[str, float]:
        """Throttled seconds by reason since the driver was loaded, from its own counters."""
        ...

    def temperature(self) -> float: ...
    def memory_temperature(self) -> float: ...
    def temperature_margin(self) -> float:
        """Degrees Celsius left before the slowdown."""
        ...

    def power_limits(self) -> PowerLimits: ...
    def power_range(self) -> PowerRange: ...
    def power_now(self) -> float:
        """Watts at this moment, where ``power`` is a mean."""
        ...

    def temperature_limits(self) -> TemperatureLimits: ...
    def video_use(self) -> VideoUse: ...
    def processes(self) -> list[Process]: ...
    def process_use(self) -> list[ProcessUse]:
        """The processes that had work on the GPU since the previous call of this method."""
        ...

    def ecc_errors(self) -> dict[str, float]:
        """``corrected`` and ``uncorrected`` ECC errors over the life of the GPU."""
        ...

    def volatile_ecc_errors(self) -> dict[str, float]:
        """``corrected`` and ``uncorrected`` ECC errors since the driver was loaded."""
        ...

    def violations(self) -> dict[str, float]:
        """Seconds since the driver was loaded that the GPU was held back, by the limit."""
        ...

    def inforom_valid(self) -> bool:
        """Whether the checksums of the board's own memory of settings are right."""
        ...

    def vgpu_licensed(self) -> bool:
        """Whether this is a virtual GPU of a guest, with a licence."""
        ...

    def driver_version(self) -> str: ...
    def cuda_version(self) -> str:
        """The newest version of CUDA that the driver supports, such as 13.0."""
        ...

    def firmware(self) -> dict[str, str]:
        """The versions of ``gsp`` (the GPU's own processor) and ``inforom``, where it has them."""
        ...

    def remapped_rows(self) -> RemappedRows: ...
    def remap_banks(self) -> dict[str, float]:
        """Banks of memory by how many of their spare rows are left: ``max`` to ``none``."""
        ...

    def sram_worn(self) -> bool:
        """Whether uncorrectable errors of the SRAM exceed the driver's threshold."""
        ...

    def memory_unrepairable(self) -> bool:
        """Whether memory is broken for good, which no reset and no spare row mends."""
        ...

    def recovery_action(self) -> str: ...
    def pcie_link(self) -> PcieLink: ...
    def pcie_replays(self) -> float: ...
    def pcie_errors(self) -> dict[str, float]: ...
    def nvlinks(self) -> list[NvLink]: ...
    def nvlink_bytes(self) -> dict[str, float]: ...
    def fabric(self) -> Fabric: ...
    def persistence(self) -> bool: ...
    def mig_mode(self) -> bool: ...
    def modes(self) -> list[Mode]: ...
    def module_power(self) -> ModulePower: ...
    def power_smoothing_left(self) -> float:
        """Share of the life of the circuits for power smoothing that is left (0 to 1)."""
        ...

    def chip_links(self) -> ChipLinks: ...
    def peers(self) -> dict[int, int]:
        """By the index of each other GPU, NVML's status of NVLink between the two; 0 is good."""
        ...

    def unnamed(self) -> list[str]:
        """Values without a name here that enumerations had since the previous call.

        Each is the enumeration with its number, such as ``fabric state 9``.
        """
        ...

    def xids(self) -> list[Xid]:
        """Events since the previous call; never blocks."""
        ...

    def operational_events(self) -> list[OperationalEvent]:
        """Events since the previous call; never blocks. Of a whole GPU only."""
        ...


@dataclass(frozen=True, slots=True)
class Vendor:
    """What differs from vendor to vendor outside the driver.

    ``pci_id`` is the content of /sys/bus/pci/devices/*/vendor. ``counters`` are the possible
    sources of ``Activity``. ``watched_errors`` are the numbers of ``Gpu.xids`` to export as 0 from
    the start, so that the first occurrence is an increase. The kubelet names a device by an ID that
    starts with one of ``device_prefixes``, as a resource that starts with one of
    ``device_resources``, or in a claim of ``claim_driver`` (dynamic resource allocation);
    ``is_device`` says whether such a name is that of a GPU, or None if it may be.
    """

    name: str
    pci_id: str
    counters: tuple[str, ...]
    watched_errors: tuple[int, ...]
    device_prefixes: tuple[str, ...]
    device_resources: tuple[str, ...]
    claim_driver: str
    is_device: Callable[[Identity, str], bool | None]


class Driver(Protocol):
    """A vendor's driver on one node."""

    @property
    def vendor(self) -> str:
        """A name in ``driver/vendors.py``."""
        ...

    def gpus(self) -> list[Gpu]:
        """Every GPU and MIG instance that answers in time, reopened if the driver was replaced.

        Raises ``DriverUnavailable`` if there is no driver, or none of its GPUs ever answered.
        """
        ...


def list_gpus(drivers: Iterable[Driver]) -> tuple[list[Gpu], dict[str, str]]:
    """The GPUs of every driver that answers; by vendor, the errors of those that do not."""
    found: list[Gpu] = []
    errors: dict[str, str] = {}
    for driver in drivers:
        try:
            found += driver.gpus()
        except DriverError as error:
            errors[driver.vendor] = str(error)
    return found, errors


def answered(read: Callable[[], T]) -> T | None:
    """The reading of a sensor that few GPUs have, or None: its errors must hide no other."""
    try:
        return read()
    except DriverError:
        return None


def optional(read: Callable[[], T]) -> T | None:
    """The reading of a sensor, or None if the GPU does not have it."""
    try:
        return read()
    except Unsupported:
        return None
