"""A node of which a test says what its sources tell, and what its daemon makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from gpunode.faults.source import START, Faults
from gpunode.gpu import health, nvlink, power
from gpunode.gpu.activity import PROCESSES
from gpunode.host import disk, filesystem, infiniband, nfs, repair
from gpunode.loop import Loop
from gpunode.metric import Metric, Sample
from gpunode.node.node import SteppedClock
from gpunode.source import WHOLE_NODE, Place, Reading, Source
from tests.verdict.stage import Teller

BEGIN = 1_700_000_000.0
GPUS = 4

Told = dict[tuple[str, ...], float]
"""Faults by GPU, part, name, reason and severity: seconds since the test began."""


def bus(gpu: int) -> str:
    return f"0000:{gpu + 1}b:00.0"


class TestNode:
    """A node on which all is well and each GPU is in use, until a test says otherwise."""

    __test__ = False

    def __init__(self, file: Path | None = None, at: float = 0.0) -> None:
        self.clock = SteppedClock(BEGIN + at)
        self.silent: set[Place] = set()
        self.series: dict[Metric, dict[tuple[str, ...], float]] = {
            repair.BOOTED: {(): BEGIN - 86400.0},
            infiniband.ACTIVE: {(f"mlx5_{port}", "1"): 1.0 for port in range(2)},
            disk.STATE: {(f"nvme{number}",): 1.0 for number in range(2)},
            filesystem.READ_ONLY: {("/", "ext4"): 0.0, ("/data", "nfs4"): 0.0},
            filesystem.SIZE: {("/", "ext4"): 1e12, ("/data", "nfs4"): 1e15},
            nfs.IN_FLIGHT: {("/data",): 0.0},
            nfs.REQUESTS: {("/data", "READ"): 5.0},
        }
        for gpu in range(GPUS):
            self.plug(gpu, f"GPU-{gpu}")
        self.found = Faults(file)
        self.loop = Loop(self.clock, [self], [self.found], find_every=1e6)
        self._steps = self.loop.replay(self.clock, 1e6)

    name = "gpu"

    def plug(self, gpu: int, uuid: str) -> None:
        """Put a GPU into a slot."""
        at = str(gpu), uuid
        labels = {"gpu": str(gpu), "uuid": uuid, "bus_id": bus(gpu), "compute_capability": "9.0"}
        info = tuple(labels.get(label, "") for label in health.INFO.labels)
        of_each: dict[Metric, tuple[tuple[str, ...], float]] = {
            health.INFO: (info, 1.0),
            PROCESSES: ((*at, "compute"), 1.0),
            power.DRIVER_ENERGY: (at, 5e6),
            health.ECC: ((*at, "uncorrected"), 3.0),
            health.REMAP_PENDING: (at, 0.0),
            health.REMAP_FAILED: (at, 0.0),
            health.RECOVERY_ACTION: ((*at, "none"), 1.0),
            health.FABRIC_HEALTHY: ((*at, "access_timeout"), 1.0),
            health.THROTTLED: ((*at, "hw_thermal"), 7.0),
            nvlink.NVLINK_UP: ((*at, "0"), 1.0),
        }
        for metric, (of, value) in of_each.items():
            self.series.setdefault(metric, {})[of] = value

    def unplug(self, gpu: int) -> None:
        """Nothing more is told of a GPU."""
        for of in self.series.values():
            for labels in [one for one in of if f"GPU-{gpu}" in one]:
                del of[labels]

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        self.series.setdefault(metric, {})[labels] = value

    def action(self, action: str, gpu: int = 1) -> None:
        """What the driver asks for."""
        for labels in [one for one in self.series[health.RECOVERY_ACTION] if one[0] == str(gpu)]:
            del self.series[health.RECOVERY_ACTION][labels]
        self.set(health.RECOVERY_ACTION, 1.0, str(gpu), f"GPU-{gpu}", action)

    def find(self) -> Iterator[tuple[Place, Source]]:
        yield WHOLE_NODE, Teller("host", 5.0, self.read)
        for gpu in range(GPUS):
            place = Place(str(gpu), f"GPU-{gpu}")
            yield place, Teller("gpu_activity", 2.0, self._answer(place))
        for mountpoint in ("/", "/data"):
            place = Place(mountpoint=mountpoint)
            yield place, Teller("filesystem", 5.0, self._answer(place))

    def read(self) -> Reading:
        found = (
            Sample(metric, at, value)
            for metric, of in self.series.items()
            for at, value in of.items()
        )
        return Reading(tuple(found))

    def _answer(self, place: Place) -> Callable[[], Reading]:
        def read() -> Reading:
            if place in self.silent:
                raise OSError("no answer")
            return Reading(())

        return read

    def play(self, seconds: float) -> Told:
        """Let time go on, and say what is broken then."""
        until = self.clock.monotonic() + seconds
        for upcoming in self._steps:
            if upcoming >= until:
                self.clock.now = until
                break
        return self.faults

    @property
    def faults(self) -> Told:
        told = (one for one in self.loop.samples() if one.metric is START)
        return {(one.labels[0], *one.labels[2:]): float(f"{one.value}") - BEGIN for one in told}
