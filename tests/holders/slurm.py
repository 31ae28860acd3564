"""A node with Slurm below a root: the cgroups of its jobs, and the processes in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpunode.driver.driver import Identity, Process
from gpunode.holders.census import Census
from gpunode.holders.holder import Holder, stat_of
from gpunode.holders.slurm import SlurmJobs
from gpunode.node.cgroup import CgroupOwner
from gpunode.node.local import LocalNode
from gpunode.node.node import SteppedClock
from tests.holders.proc import Card, Cards
from tests.machine import stat

SCOPE = "/system.slice/slurmstepd.scope"
SLUID = "s5K1KKYAYG5D00"
OTHER = "sEKNKTV3WPV500"


@dataclass
class SlurmNode:
    """A node with some GPUs, on which jobs of Slurm run; ``cgroups``: its tree is visible."""

    root: Path
    cards: list[Card] = field(default_factory=lambda: [Card(index) for index in range(4)])
    cgroups: bool = True

    def __post_init__(self) -> None:
        self.node = LocalNode(self.root, [Cards(self.cards)])
        self.clock = self.node.clock = SteppedClock(0.0)  # type: ignore[assignment]
        self.census = Census(self.node)
        self._pids = 100
        if self.cgroups:
            self.folder(SCOPE + "/system")
        (self.root / "etc").mkdir(parents=True, exist_ok=True)
        (self.root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nkim:x:1000:1000::/:/\n")

    def folder(self, path: str) -> Path:
        """A cgroup."""
        folder = self.root / f"sys/fs/cgroup{path}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def run(
        self,
        path: str,
        title: str = "python3\0train.py",
        *,
        uid: int = 1000,
        parent: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Start a process in a cgroup; its PID."""
        self._pids += 1
        pid = self._pids
        process = self.root / f"proc/{pid}"
        process.mkdir(parents=True)
        (process / "stat").write_text(stat(pid, parent=parent))
        (process / "cgroup").write_text(f"0::{path}\n")
        (process / "cmdline").write_text(f"{title}\0\0\0")
        (process / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (process / "environ").write_text(
            "\0".join(f"{n}={v}" for n, v in (environment or {}).items())
        )
        if self.cgroups:
            with (self.folder(path) / "cgroup.procs").open("a") as file:
                file.write(f"{pid}\n")
        return pid

    def step(
        self, number: str, step: str, *, folder: str = SLUID, scope: str = SCOPE, **said: str
    ) -> int:
        """Start a step with its slurmstepd and a task, which has an environment; the task's PID."""
        path = f"{scope}/{folder}/step_{step}"
        supervisor = self.run(f"{path}/slurm", f"slurmstepd: [{number}.{step}]", uid=0)
        if step == "extern":
            return self.run(f"{path}/user/task_special", "sleep\x00100000000", parent=supervisor)
        said = {"SLURM_JOB_ID": number, **said}
        return self.run(f"{path}/user/task_0", parent=supervisor, environment=said)

    def hold(self, gpu: int, *pids: int) -> None:
        """Let processes be on a GPU, and no others."""
        self.cards[gpu].running = [Process(pid, None, "compute") for pid in pids]

    def whose(self, pid: int) -> CgroupOwner:
        """Whose a process is."""
        return Holder(self.node, pid, stat_of(self.node, pid)).cgroup()

    def gpu(self, index: int) -> Identity:
        return self.cards[index].identity


def jobs_by_gpu(slurm: SlurmJobs, on: SlurmNode) -> dict[int, set[str] | None]:
    """The jobs that have each GPU; None where they are not known."""
    found = {card.identity.index: slurm.owners(card.identity) for card in on.cards}
    return {i: None if o is None else {owner.slurm_job for owner in o} for i, o in found.items()}
