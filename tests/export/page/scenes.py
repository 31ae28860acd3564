"""Nodes as the page should show them: each scene is a node with GPUs, owners and a host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from gpunode.audit.source import AuditResults, Result
from gpunode.config.daemon import Settings
from gpunode.driver.driver import DriverError
from gpunode.faults.source import Faults
from gpunode.gpu import activity
from gpunode.gpu.activity import MEMORY_TOTAL, MEMORY_USED, TEMPERATURE, UTILIZATION
from gpunode.gpu.health import INFO
from gpunode.gpu.nvlink import NVLINK_UP
from gpunode.gpu.power import ENERGY
from gpunode.gpu.units import NVLINK_BYTES
from gpunode.host import cpu, disk, infiniband, memory, pressure, shm
from gpunode.incidents.history import History
from gpunode.jobs.owners import OWNER, PROCESS
from gpunode.metric import Sample
from gpunode.node.node import Node
from gpunode.serving.requests import ServerLoad, ServerLoads
from gpunode.source import WHOLE_NODE, Place, Reading, Source
from gpunode.unread import Unread
from gpunode.verdict.shortages import Shortages
from tests.verdict.stage import Actor, Labelled, Stage, Teller

GIB = 2.0**30
TB = 1e12

WORK = {"compute": 0.82, "communication": 0.12, "starved": 0.06}
STARVED = {"starved": 0.62, "compute": 0.35, "communication": 0.03}
WAITING = {"blocked": 0.55, "compute": 0.4, "communication": 0.05}


@dataclass
class GpuIdentity:
    """Who a GPU is, and who holds it."""

    model: str = "NVIDIA H200"
    owner: tuple[str, ...] = ("research", "llama-70b-worker-0", "trainer", "", "")
    ranks: tuple[int, ...] = (0,)
    parent: str = ""


@dataclass
class Host:
    """What the sources of the node tell: gauges as they stand, counters by their rate."""

    gauges: dict[Labelled, float] = field(default_factory=dict)
    rates: dict[Labelled, float] = field(default_factory=dict)
    unread: tuple[Unread, ...] = ()


class Scene:
    """A stage with names, a host and an audit, on which time can go on."""

    def __init__(self, *actors: Actor, name: str = "gpu-h200-17") -> None:
        self.name = name
        self.actors = actors
        self.named = {actor.index: GpuIdentity(ranks=(actor.index,)) for actor in actors}
        self.host = host()
        self.failed: tuple[Result, ...] = ()
        self.silent: dict[str, str] = {}
        self.servers: tuple[ServerLoad, ...] = ()
        self.stage = Stage(
            *actors, finders=[self], views=[Faults(), Shortages(self.node, Settings()), History()]
        )

    @property
    def node(self) -> Node:
        return cast(Node, self)  # asked for its name only

    def read_text(self, path: str) -> str:
        assert path == "/proc/sys/kernel/hostname"
        return f"{self.name}\n"

    def find(self) -> Iterator[tuple[Place, Source]]:
        for actor in self.actors:
            read = self._of(actor)
            yield Place(*actor.at), Teller("gpu_names", 10.0, read)
        yield WHOLE_NODE, Teller("host", 10.0, self._host)
        yield WHOLE_NODE, Teller("audit", 60.0, self._audit)
        yield WHOLE_NODE, Teller("servers", 10.0, lambda: Reading((), ServerLoads(self.servers)))
        for name, why in self.silent.items():
            yield WHOLE_NODE, Teller(name, 10.0, _failing(why))

    def _of(self, actor: Actor) -> Callable[[], Reading]:
        def read() -> Reading:
            named, at = self.named[actor.index], actor.at
            held = actor.jobs != ()
            known = {
                "name": named.model,
                "bus_id": f"0000:{actor.index:02x}:00.0",
                "compute_capability": "9.0",
                "parent": named.parent,
            }
            info = (known.get(label, "") for label in INFO.labels[len(at) :])
            owned = [Sample(OWNER, (*at, *named.owner, "kubelet", "", ""), 1.0)] if held else []
            pid = str(41_200 + actor.index)
            ranks = [
                Sample(PROCESS, (*at, pid, *named.owner, "", str(rank), "", ""), 1.0)
                for rank in named.ranks
                if held
            ]
            return Reading((Sample(INFO, (*at, *info), 1.0), *owned, *ranks))

        return read

    def _host(self) -> Reading:
        now = self.stage.clock.monotonic()
        counters = (Sample(m, at, rate * now) for (m, at), rate in self.host.rates.items())
        gauges = (Sample(m, at, v) for (m, at), v in self.host.gauges.items())
        return Reading((*gauges, *counters), unread=self.host.unread)

    def _audit(self) -> Reading:
        passed = [Result(f"check_{n}", "ok", "", "", "", "", "") for n in range(24)]
        return Reading((), AuditResults((*self.failed, *passed)))

    def play(self, seconds: float) -> Scene:
        self.stage.play(seconds)
        return self


def _failing(why: str) -> Callable[[], Reading]:
    def read() -> Reading:
        raise OSError(why)

    return read


def host() -> Host:
    """The host of a node on which nothing is short."""
    links: dict[Labelled, float] = {
        (NVLINK_UP, (str(g), f"GPU-{g}", str(n))): 1.0 for g in range(8) for n in range(18)
    }
    ports = [(f"mlx5_{n}", "1") for n in range(8)]
    return Host(
        {
            (cpu.CORES, ("0",)): 96.0,
            (cpu.CORES, ("1",)): 96.0,
            (cpu.BUSY_CORES, ("0",)): 9.0,
            (cpu.BUSY_CORES, ("1",)): 5.0,
            (memory.SIZE, ()): 2.0 * TB,
            (memory.AVAILABLE, ()): 1.4 * TB,
            (shm.SIZE, ()): 1.0 * TB,
            (shm.USED, ()): 0.08 * TB,
            **links,
            **{(infiniband.ACTIVE, at): 1.0 for at in ports},
            **{(infiniband.RATE, at): 50e9 for at in ports},
        },
        {
            (pressure.WAITING, ("cpu",)): 0.03,
            (pressure.WAITING, ("io",)): 0.02,
            (disk.BUSY, ("nvme0n1",)): 0.31,
            (disk.BUSY, ("nvme1n1",)): 0.12,
            (disk.BYTES, ("nvme0n1", "read")): 2.1e9,
            (disk.BYTES, ("nvme0n1", "write")): 0.2e9,
            **{(infiniband.BYTES, (*at, "sent")): 21e9 for at in ports},
        },
    )


def actor(
    index: int,
    states: Mapping[str, float],
    watts: float = 640.0,
    *,
    used: float = 118.0,
    utilization: float = 1.0,
) -> Actor:
    """A GPU of the training job."""
    made = Actor(index, peers=True, trains=True)
    act(made, states, watts, used=used, utilization=utilization)
    return made


def act(
    made: Actor,
    states: Mapping[str, float],
    watts: float,
    *,
    used: float = 118.0,
    utilization: float = 1.0,
) -> None:
    """Have a GPU do something else from now on."""
    made.states, made.watts = dict(states), watts
    made.gauges |= {
        MEMORY_TOTAL: 140.4 * GIB,
        MEMORY_USED: used * GIB,
        TEMPERATURE: 34 + watts / 20,
        UTILIZATION: utilization,
    }
    nvlink = 180e9 * states.get("communication", 0.0)
    made.rates |= {(ENERGY, ("compute",)): watts, (NVLINK_BYTES, ("transmit",)): nvlink}


def at_work(count: int = 8) -> Scene:
    """A healthy training job."""
    return Scene(*(actor(n, WORK, 620.0 + 7 * n) for n in range(count)))


def hang(before: float = 2400.0, after: float = 600.0, count: int = 8) -> Scene:
    """A training job that worked until a rank was stopped."""
    scene = at_work(count)
    scene.play(0.3 * before)
    for one in scene.actors:
        act(one, {**STARVED}, 310.0)
    scene.play(0.15 * before)
    for one in scene.actors:
        act(one, WORK, 640.0)
    scene.play(0.55 * before)
    late = scene.actors[5 % count]
    for one in scene.actors:
        act(one, {"blocked": 1.0}, 128.0)
    act(late, {"idle": 1.0}, 118.0, utilization=0.0)
    late.gauges[activity.STOPPED] = 1.0
    return scene.play(after)


def starvation(seconds: float = 900.0) -> Scene:
    """Four GPUs starve for storage, four are free; settings are not as advised."""
    scene = at_work()
    for one in scene.actors[4:]:
        one.leave()
        act(one, {"free": 1.0}, 76.0, used=0.0, utilization=0.0)
    scene.play(300)
    for one in scene.actors[:4]:
        act(one, STARVED, 290.0, utilization=0.38)
    scene.host.rates |= {
        (pressure.WAITING, ("io",)): 0.71,
        (disk.BUSY, ("nvme0n1",)): 0.99,
        (disk.BYTES, ("nvme0n1", "read")): 6.4e9,
    }
    scene.failed = (FAILED_GOVERNOR, FAILED_MEMLOCK)
    scene.silent = {}
    return scene.play(seconds)


FAILED_GOVERNOR = Result(
    "cpu_governor",
    "failed",
    "powersave on 192 of 192 cores",
    "performance",
    "Cores at a low clock launch kernels late.",
    "cpupower frequency-set -g performance",
    "https://docs.kernel.org/admin-guide/pm/cpufreq.html",
)
FAILED_MEMLOCK = Result(
    "memlock",
    "failed",
    "41200: 64 KiB",
    "unlimited",
    "RDMA pins memory; where it may not, NCCL falls back to sockets.",
    "ulimit -l unlimited",
    "https://docs.nvidia.com/deeplearning/nccl/",
)


def idle(seconds: float = 600.0) -> Scene:
    """Eight GPUs that nobody holds."""
    scene = at_work()
    for one in scene.actors:
        one.leave()
        act(one, {"free": 1.0}, 76.0, used=0.0, utilization=0.0)
    return scene.play(seconds)


class Slice(Actor):
    """A MIG instance of GPU 0: its index here is its number among these."""

    @property
    def at(self) -> tuple[str, str]:
        return "0", f"MIG-{self.index}"


def slices(seconds: float = 300.0) -> Scene:
    """GPU 0 in seven slices, GPU 1 whole."""
    parts = [Slice(n, peers=False) for n in range(7)]
    for one in parts:
        act(one, {"compute": 1.0}, 60.0, used=15.0)
    whole = actor(7, WORK, 640.0)
    scene = Scene(*parts, whole)
    for n, one in enumerate(parts):
        owner = ("team-a", f"nb-{n}", "", "", "")
        scene.named[n] = GpuIdentity("NVIDIA H200 MIG 1g.18gb", owner, (), "GPU-x")
        one.jobs = ("a",) if n < 5 else ()
        if n >= 5:
            act(one, {"free": 1.0}, 10.0, used=0.0, utilization=0.0)
    return scene.play(seconds)


def lost(seconds: float = 120.0) -> Scene:
    """A GPU that fell off the bus while the others work."""
    scene = at_work()
    scene.play(300)
    gone = scene.actors[3]
    for (name, place), watch in scene.stage.loop.watches.items():
        if place.uuid == gone.at[1]:
            watch.read = _gone(name)
    return scene.play(seconds)


def _gone(name: str) -> Callable[[], Reading]:
    def read() -> Reading:
        raise DriverError(f"{name}: GPU is lost")

    return read


HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\">",
    "</script><script>document.title='owned'</script>",
    "javascript:document.title='owned'",
    "\u202eevil\u202c",
    "a" * 400,
    "`kill -9 1`",
)


HOSTILE_JOB = "<svg onload=\"document.title='owned'\">"
HOSTILE_USER = "<iframe srcdoc='<script>parent.document.title=1</script>'>"
HOSTILE_MODEL = "<b onclick=\"document.title='owned'\">llama"
HOSTILE_ENGINE = "<style>*{display:none}</style>"
SHOWN = (*HOSTILE[:3], HOSTILE_JOB, HOSTILE_USER, HOSTILE_MODEL, HOSTILE_ENGINE)
"""What is so short that the page shows all of it."""


def hostile(seconds: float = 120.0) -> Scene:
    """Every name that a tenant may choose is an attack."""
    count = len(HOSTILE) + 1
    scene = Scene(
        *(actor(n, {"compute": 0.4, "starved": 0.6}, 300.0) for n in range(count)),
        name=HOSTILE[0],
    )
    slurm = count - 1
    scene.named[slurm] = GpuIdentity(HOSTILE[0], ("", "", "", HOSTILE_JOB, HOSTILE_USER), (slurm,))
    scene.servers = (
        ServerLoad((scene.actors[slurm].at,), HOSTILE_ENGINE, HOSTILE_MODEL, 7.0, 3.0, 50.0),
    )
    for n, name in enumerate(HOSTILE):
        scene.named[n] = GpuIdentity(name, (name, name, name, "", ""), (n,))
    scene.silent = {"disk": HOSTILE[1]}
    scene.host.rates[disk.BUSY, (HOSTILE[0],)] = 1.0
    scene.failed = (
        Result(HOSTILE[0], "failed", HOSTILE[1], HOSTILE[2], HOSTILE[3], HOSTILE[4], HOSTILE[2]),
    )
    return scene.play(seconds)
