"""How often a job has begun again on its GPU: restarts of containers, and ranks that come anew."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gpunode.config.daemon import Settings
from gpunode.holders.job_name import JobNames
from gpunode.holders.pods import Pods
from gpunode.jobs.owners import GpuOwners
from gpunode.node.kubelet import Allocation
from tests.cases import with_each
from tests.holders.proc import Proc
from tests.machine import exported, read_source

UID = "0a0a0a0a-0000-0000-0000-000000000001"


class OneGpuHolder:
    """A GPU that the kubelet gave to a pod, or nobody to anybody."""

    def __init__(self, root: Path, pod: str = "fit-worker-0") -> None:
        self.proc = Proc(root)
        self.pods = Pods(self.proc.node, Settings())
        self.give(pod)
        self.source = GpuOwners(
            self.proc.census, self.proc.gpu, Settings(), self.pods, None, JobNames(str, self.pods)
        )
        self.links = root / "var/log/containers"
        self.links.mkdir(parents=True)

        (root / f"var/log/pods/ml_{pod}_{UID}").mkdir(parents=True)

    def hold(self, *pids: int, environment: str = "") -> None:
        """The processes that are on the GPU; those of before have ended."""
        for pid in pids:
            if not (self.proc.root / f"proc/{pid}").exists():
                self.proc.run(pid, environment=environment)
                cgroup = f"0::/kubepods/pod{UID}/{1:064x}\n"
                (self.proc.root / f"proc/{pid}/cgroup").write_text(cgroup)
        card = self.proc.cards[0]
        card.hold(*pids)
        card.process_use = list  # type: ignore[attr-defined]

    def give(self, pod: str) -> None:
        given = [Allocation("ml", pod, "main", "nvidia.com/gpu", "GPU-0")] if pod else []
        self.pods._allocated = given, 0.0

    def ended(self) -> str:
        """What the counter says; empty without one."""
        self.proc.clock.now += 6.0
        given, _ = self.pods._allocated or ([], 0.0)
        self.pods._allocated = given, self.proc.clock.now
        lines = exported(read_source(self.source)).splitlines()
        return "".join(x.split()[-1] for x in lines if x.startswith("gpunode_job_attempts_e"))

    def start_container(self, number: int, name: str = "main") -> None:
        """The kubelet links the log of the new container, and keeps that of the one before."""
        for link in self.links.glob(f"*_{name}-{number - 2:064x}.log"):
            link.unlink()
        (self.links / f"fit-worker-0_ml_{name}-{number:064x}.log").touch()


def test_a_pod_in_a_loop_of_crashes_counts_whether_or_not_it_comes_to_the_gpu(
    tmp_path: Path,
) -> None:
    held = OneGpuHolder(tmp_path)
    assert held.ended() == "0.0"
    held.start_container(1)
    assert held.ended() == "0.0"  # that is the first
    for number in range(2, 5):
        held.start_container(number)
        held.start_container(number + 100, "sidecar")
        assert held.ended() == f"{number - 1}.0"
        assert held.ended() == f"{number - 1}.0"
    held.hold(7)
    held.start_container(5)
    assert held.ended() == "4.0"
    held.hold()
    assert held.ended() == "4.0"
    held.start_container(6)
    held.hold(8)
    assert held.ended() == "5.0"  # once, for the container and its process


@with_each((("RANK=0\0WORLD_SIZE=16", "1.0"), ("RANK=0\0WORLD_SIZE=1", "0.0"), ("X=1", "0.0")))
def test_ranks_that_come_anew_count_and_one_program_after_another_does_not(
    environment: str, ended: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        held = OneGpuHolder(Path(folder))
        for pids in ((7,), (7, 8), (8,), ()):
            held.hold(*pids, environment=environment)
            assert held.ended() == "0.0"
        held.hold(9, environment=environment)
        assert held.ended() == ended
        assert held.ended() == ended


def test_a_job_that_comes_back_goes_on_and_another_begins_anew(tmp_path: Path) -> None:
    held = OneGpuHolder(tmp_path)
    held.start_container(1)
    held.ended()
    held.start_container(2)
    assert held.ended() == "1.0"
    held.give("")
    assert held.ended() == ""
    held.give("fit-worker-0")
    held.start_container(3)
    assert held.ended() == "2.0"
    held.give("other-worker-0")
    assert held.ended() == "0.0"
