"""The memory limit of a job, and what is charged to the group that has it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pytest

from gpunode.config.daemon import Settings
from gpunode.holders.census import Census
from gpunode.jobs.processes import JobProcesses
from gpunode.node.local import LocalNode
from tests.machine import MachineGpu, exported, read_source, stat

GIB = 1 << 30
POD = "kubepods-burstable-pod1b3a5c7d_1111_2222_3333_444455556666.slice"
CLASS = "kubepods.slice/kubepods-burstable.slice"
STEP = "system.slice/slurmstepd.scope/job_7/step_0"


class Groups:
    """The cgroups of a node, each with a limit in GiB or none, and with what is charged to it."""

    def __init__(self, root: Path, version: int = 2) -> None:
        self.root, self.version = root, version

    def add(self, path: str, limit: int | None, used: int, reclaimed: int = 0) -> None:
        """A group whose memory is anonymous but for 2 GiB of shared memory."""
        folder = self.root / "sys/fs/cgroup" / ("memory" if self.version == 1 else "") / path
        folder.mkdir(parents=True, exist_ok=True)
        shared, anonymous = 2 * GIB, (used - 2) * GIB
        if self.version == 1:
            most = (1 << 63) - 4096 if limit is None else limit * GIB
            (folder / "memory.limit_in_bytes").write_text(f"{most}\n")
            (folder / "memory.usage_in_bytes").write_text(f"{used * GIB}\n")
            own = "rss 0\nshmem 0\n"
            whole = f"total_rss {anonymous}\ntotal_shmem {shared}\n"
            (folder / "memory.stat").write_text(own + whole)
            return
        (folder / "memory.max").write_text("max\n" if limit is None else f"{limit * GIB}\n")
        (folder / "memory.current").write_text(f"{used * GIB}\n")
        (folder / "memory.stat").write_text(f"anon {anonymous}\nshmem {shared}\n")
        (folder / "memory.events").write_text(f"low 0\nhigh 0\nmax {reclaimed}\noom_kill 0\n")

    def told_of(self, path: str) -> dict[str, float]:
        """What is told of the memory of a process in such a group, in GiB and times."""
        folder = self.root / "proc/7"
        (folder / "task/7").mkdir(parents=True)
        (folder / "stat").write_text(stat(7))
        lines = f"4:memory:/{path}\n3:cpu:/{path}\n" if self.version == 1 else f"0::/{path}\n"
        (folder / "cgroup").write_text(lines)
        gpu = MachineGpu(0, "GPU-0", "0000:01:00.0", (7,))
        source = JobProcesses(Census(LocalNode(self.root)), gpu, Settings())
        found = {}
        for line in exported(read_source(source)).splitlines():
            name, _, value = line.removeprefix("gpunode_job_memory_").rpartition(" ")
            if name != line.rpartition(" ")[0]:
                scale = GIB if "_bytes" in name else 1
                event = name.partition('event="')[2].partition('"')[0]
                found[event or name.partition("_bytes")[0]] = float(value) / scale
        return found


def down_to(path: str) -> Iterator[str]:
    """The groups above a group, from the top, and itself."""
    return accumulate(path.split("/"), "{}/{}".format)


def test_ranks_of_a_pod_are_held_against_its_limit_together(tmp_path: Path) -> None:
    groups = Groups(tmp_path)
    groups.add(CLASS, 500, 400)
    groups.add(f"{CLASS}/{POD}", 100, 98)
    groups.add(f"{CLASS}/{POD}/cri-containerd-aa.scope", None, 97)
    found = groups.told_of(f"{CLASS}/{POD}/cri-containerd-aa.scope")
    assert (found["limit"], found["used"], found["anonymous"], found["shmem"]) == (100, 98, 96, 2)


def test_what_a_job_of_slurm_had_to_reclaim_counts_for_its_tasks(tmp_path: Path) -> None:
    groups = Groups(tmp_path)
    groups.add("system.slice/slurmstepd.scope/job_7", 100, 99, reclaimed=31337)
    groups.add(STEP, None, 99)
    groups.add(f"{STEP}/user", None, 99)
    groups.add(f"{STEP}/user/task_3", None, 12)
    found = groups.told_of(f"{STEP}/user/task_3")
    assert (found["limit"], found["anonymous"], found["max"]) == (100, 97, 31337)


def test_a_limit_below_that_of_the_job_is_the_one_that_counts(tmp_path: Path) -> None:
    groups = Groups(tmp_path)
    groups.add("system.slice/slurmstepd.scope/job_7", 100, 30)
    groups.add(STEP, 20, 19)
    found = groups.told_of(STEP)
    assert (found["limit"], found["used"]) == (20, 19)


@pytest.mark.parametrize("path", ["slurm/uid_1000/job_7/step_0/task_0", "kubepods/pod1/aa"])
def test_in_version_1_the_limit_may_be_above_the_process_too(path: str, tmp_path: Path) -> None:
    groups = Groups(tmp_path, version=1)
    for group in down_to(path):
        job = group.endswith(("/job_7", "/pod1"))
        groups.add(group, 100 if job else None, 12 if group == path else 98)
    found = groups.told_of(path)
    assert (found["limit"], found["anonymous"], found["shmem"]) == (100, 96, 2)


@pytest.mark.parametrize(
    "path",
    [
        "lxc.payload.c1/system.slice/train.service",
        "machine.slice/systemd-nspawn@x.service/payload/system.slice/t.service",
        "system.slice/docker-aa.scope/system.slice/t.service",
        "user.slice/user-1000.slice/user@1000.service/user.slice/libpod-aa.scope",
    ],
)
def test_a_container_may_have_slices_of_its_own(path: str, tmp_path: Path) -> None:
    groups = Groups(tmp_path)
    first, *below = path.split("/")
    holder = f"{first}/{below[0]}" if first.endswith(".slice") else first
    groups.add(holder, 64, 60)
    groups.add(path, None, 12)
    assert groups.told_of(path)["limit"] == 64


@pytest.mark.parametrize(
    "above",
    [
        "gpu.slice/gpu-kubepods.slice/gpu-kubepods-burstable.slice",
        CLASS,
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice",
        "kubepods/burstable",
        "system.slice",
        "system.slice/node1_slurmstepd.scope",
    ],
)
def test_what_all_jobs_share_is_no_limit_of_one(above: str, tmp_path: Path) -> None:
    groups = Groups(tmp_path)
    for group in down_to(above):
        groups.add(group, 900, 800)
    groups.add(f"{above}/job_7", None, 12)
    found = groups.told_of(f"{above}/job_7")
    assert "limit" not in found
    assert (found["used"], found["anonymous"]) == (12, 10)
