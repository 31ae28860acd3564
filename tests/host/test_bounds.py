"""What a source leaves out because there is too much of it is counted, and how many there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpunode.audit.source import Audit
from gpunode.config import Settings
from gpunode.driver.driver import Gpu
from gpunode.holders.census import Census
from gpunode.holders.pods import Pods
from gpunode.host.disk import Disks
from gpunode.host.infiniband import Infiniband
from gpunode.host.lustre import Lustre
from gpunode.host.network import Network
from gpunode.host.nfs import Nfs
from gpunode.host.pcie import Pcie
from gpunode.jobs.owners import GpuOwners, ProcessRoles
from gpunode.nccl.log import NcclLogs
from gpunode.node.local import LocalNode
from gpunode.node.node import Node
from gpunode.source import MANY, Meets, Source
from tests.attacks.test_forged import a_process
from tests.machine import MachineGpu

TOO_MANY = range(MANY + 1)
SAID = f"{MANY + 1} {{}}, {MANY} are read"


def disks(root: Path) -> None:
    lines = [f"8 {n} nvme{n}n1 1 0 8 1 0 0 0 0 0 0 0\n" for n in TOO_MANY]
    (root / "proc/diskstats").write_text("".join(lines))


def controllers(root: Path) -> None:
    (root / "proc/diskstats").write_text("")
    for n in TOO_MANY:
        (root / f"sys/class/nvme/nvme{n}").mkdir(parents=True)


def interfaces(root: Path) -> None:
    lines = [f"eth{n}: {' '.join('0' * 16)}\n" for n in TOO_MANY]
    (root / "proc/1/net").mkdir()
    (root / "proc/1/net/dev").write_text("a\nb\n" + "".join(lines))


def nfs_mounts(root: Path) -> None:
    lines = [f"device h:/{n} mounted on /{n} with fstype nfs4 statvers=1.1\n" for n in TOO_MANY]
    (root / "proc/1/mountstats").write_text("".join(lines))


def adapters(root: Path) -> None:
    for n in TOO_MANY:
        folder = root / f"sys/bus/pci/devices/0000:{n:02x}:00.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text("0x10de\n")
        (folder / "class").write_text("0x030200\n")


def rdma_ports(root: Path) -> None:
    for n in TOO_MANY:
        folder = root / f"sys/class/infiniband/mlx5_{n}/ports/1/counters"
        folder.mkdir(parents=True)
        (folder / "port_xmit_data").write_text("1\n")


def lustre_filesystems(root: Path) -> None:
    for n in TOO_MANY:
        (root / f"proc/fs/lustre/llite/fs{n}-ffff0123456789ab").mkdir(parents=True)


@pytest.mark.parametrize(
    ("make", "source", "said"),
    [
        (disks, Disks, SAID.format("disks")),
        (controllers, Disks, SAID.format("NVMe controllers")),
        (interfaces, Network, SAID.format("network interfaces")),
        (nfs_mounts, Nfs, SAID.format("NFS mounts")),
        (adapters, Pcie, SAID.format("GPUs and adapters")),
        (rdma_ports, Infiniband, SAID.format("RDMA ports")),
        (lustre_filesystems, Lustre, f"more than {MANY} Lustre filesystems"),
    ],
)
def test_a_source_of_the_node_says_what_it_leaves_out(
    tmp_path: Path,
    make: Callable[[Path], None],
    source: Callable[[Node, Settings], Source],
    said: str,
) -> None:
    (tmp_path / "proc/1").mkdir(parents=True)
    make(tmp_path)
    reader = source(LocalNode(tmp_path), Settings())
    for _ in range(2):
        reading = reader.read()
        assert reading is not None
        (left_out,) = reading.unread
        assert (left_out.kind.bound, left_out.example, left_out.times) == (True, said, 1)
        assert isinstance(reader, Meets)
        assert left_out.kind in reader.unknowns


def test_what_reads_the_processes_on_a_gpu_says_what_it_leaves_out(tmp_path: Path) -> None:
    pids = range(100, 101 + MANY)
    for pid in pids:
        a_process(tmp_path, pid, "/", "python", 1000)
    node, gpu = LocalNode(tmp_path), MachineGpu(0, "GPU-aa", "0", tuple(pids))
    census, settings = Census(node), Settings()
    for source in (
        GpuOwners(census, gpu, settings, Pods(node, settings)),
        ProcessRoles(census, gpu, settings),
        NcclLogs(census, gpu, settings),
    ):
        assert [one.example for one in source.read().unread] == [SAID.format("processes on a GPU")]
        assert source.read().unread[0].kind in source.unknowns


def test_the_audit_says_of_how_many_processes_it_looks_at_the_first(tmp_path: Path) -> None:
    pids = range(100, 101 + MANY)
    for pid in pids:
        a_process(tmp_path, pid, "/", "python", 1000)

    class Driver:
        vendor = "nvidia"

        def gpus(self) -> list[Gpu]:
            return [MachineGpu(0, "GPU-aa", "0", tuple(pids))]

    reading = Audit(LocalNode(tmp_path, [Driver()]), Settings()).read()
    assert [one.example for one in reading.unread] == [SAID.format("processes on GPUs")]
