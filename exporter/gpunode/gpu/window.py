"""One window of one GPU: all its sensors over the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpunode.driver.driver import Activity, Limits, Process, Utilization
from gpunode.gpu.buffers import PowerWindow
from gpunode.gpu.models import MEASURED_ON_H200, Ceilings


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
    quiet_for: float = 0.0
    """Seconds since the GPU last ran anything, at the end of the window; infinite at first."""

    limits: Limits = field(default_factory=Limits)
    ceilings: Ceilings = MEASURED_ON_H200

    @property
    def free(self) -> bool:
        """Whether the GPU is known to be held by no process."""
        return self.processes is not None and not self.processes

    def share(self, name: str) -> float | None:
        """A unit's share of time, or None if the driver did not report it."""
        value = None if self.activity is None else self.activity.values.get(name)
        return None if value is None else min(1.0, max(0.0, value))

    @property
    def link_load(self) -> float:
        """Share of its links' rate in one direction that the GPU uses: the busier kind of link."""
        pairs = (
            (self.nvlink, self.limits.nvlink_bytes_per_second),
            (self.pcie, self.limits.pcie_bytes_per_second),
        )
        return max((rate / best for rate, best in pairs if rate and best), default=0.0)
