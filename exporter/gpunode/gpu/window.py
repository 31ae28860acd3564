"""One window of one GPU: all its sensors over the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpunode.driver.driver import Activity, Limits, Process, Utilization
from gpunode.gpu.buffers import PowerWindow
from gpunode.gpu.models import MEASURED_ON_H200, Ceilings

MAX_COMMAND_RATE = 50e6
"""PCIe bytes per second in either direction without a copy; 25 MB/s at 150,000 launches."""

MAX_IDLE_DEVIATION = 0.01
"""Standard deviation of the draw of a GPU that does nothing, as a share of its mean."""

RAN_NOTHING = 0.001
"""Share of time with kernels that the counters may show where nothing ran."""

RESTED = 1.5
"""How long a GPU must have run nothing to be at rest, in lengths of the window."""

HOUSEKEEPING = 1e6
"""NVLink bytes per second below which no collective can be going on."""


@dataclass(frozen=True, slots=True)
class Window:
    """What the sensors of a GPU measured over ``seconds``; a sensor that did not answer is None.

    Shares are 0 to 1 of the window's time, rates are bytes per second in one direction.
    """

    seconds: float
    activity: Activity | None = None
    """The means of its units' counters, or None if it has none."""

    busy: float | None = None
    """Share of time with a kernel or a copy running, from the utilisation buffer."""

    utilization: Utilization | None = None
    """The driver's last utilisation sample, which covers only the end of the window."""

    power: PowerWindow | None = None
    power_limit: float | None = None
    nvlink: float | None = None
    pcie: float | None = None
    """NVLink and PCIe, each in its busier direction."""

    processes: Sequence[Process] | None = None
    given: bool = False
    """Whether a job is known to have the GPU, though there may be no process on it."""

    quiet_for: float = 0.0
    """Seconds since the GPU last ran anything, at the end of the window; infinite at first."""

    peers: bool | None = None
    """Whether a process on the GPU has peers on other GPUs, or None if that is not known."""

    resting_power: float | None = None
    """Watts that the GPU draws while a process holds it and nothing runs."""

    limits: Limits = field(default_factory=Limits)
    ceilings: Ceilings = MEASURED_ON_H200

    @property
    def empty(self) -> bool:
        """Whether no process is known to be on the GPU that does more than draw."""
        return self.processes is not None and all(p.kind == "graphics" for p in self.processes)

    @property
    def rests(self) -> bool:
        """Whether a process held the GPU while it ran nothing, and for a while before.

        Its draw was steady: that of a GPU that a process has just opened still rises.
        """
        power = self.power
        if not self.processes or power is None or power.mean is None or power.variance is None:
            return False
        return (
            self.quiet_for >= RESTED * self.seconds
            and max(self.share("graphics") or 0.0, self.busy or 0.0) < RAN_NOTHING
            and (self.pcie or 0.0) < MAX_COMMAND_RATE
            and power.variance < (MAX_IDLE_DEVIATION * power.mean) ** 2
        )

    def share(self, name: str) -> float | None:
        """A unit's share of time, or None if the driver did not report it."""
        value = None if self.activity is None else self.activity.values.get(name)
        return None if value is None else min(1.0, max(0.0, value))

    def rate(self, name: str) -> float:
        """Bytes per second over a link in one direction, 0 if the driver did not report it."""
        return 0.0 if self.activity is None else self.activity.values.get(name, 0.0)

    @property
    def may_communicate(self) -> bool:
        """Whether kernels may belong to collectives: always, unless there is no peer."""
        return self.peers is not False

    @property
    def pcie_collective(self) -> float:
        """PCIe bytes per second in the quieter direction: collectives use both, copies one.

        Less ``MAX_COMMAND_RATE``, which launches and their answers can take.
        """
        quieter = min(self.rate("pcie_transmit"), self.rate("pcie_receive"))
        return max(0.0, quieter - MAX_COMMAND_RATE)

    @property
    def nvlink_load(self) -> float:
        """Share of the time that collectives at full speed need for what NVLink moved."""
        best = self.limits.nvlink_bytes_per_second
        return (self.nvlink or 0.0) / (best * self.ceilings.nvlink_of_collective) if best else 0.0

    @property
    def pcie_load(self) -> float:
        """Share of the time that collectives at full speed need for what PCIe moved."""
        best = self.limits.pcie_bytes_per_second
        return self.pcie_collective / (best * self.ceilings.pcie_of_collective) if best else 0.0

    @property
    def link_load(self) -> float:
        """Share of its links' rate in one direction that the GPU uses: the busier kind of link."""
        pairs = (
            (self.nvlink, self.limits.nvlink_bytes_per_second),
            (self.pcie, self.limits.pcie_bytes_per_second),
        )
        return max((rate / best for rate, best in pairs if rate and best), default=0.0)
