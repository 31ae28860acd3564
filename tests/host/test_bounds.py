"""What a source leaves out because there is too much of it is counted, and how many there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpunode.audit.source import Audit
from gpunode.config.daemon import Settings
from gpunode.driver.driver import Gpu, Xid
from gpunode.gpu.sensors import Sensors
from gpunode.gpu.xids import XIDS, Xids
from gpunode.holders.census import Census
from gpunode.holders.pods import Pods
from gpunode.host.disk import Disks
from gpunode.host.energy import Energy
from gpunode.host.hwmon import CHIPS, FANS, SENSORS, TEMPERATURES, Hwmon
from gpunode.host.infiniband import Infiniband
from gpunode.host.lustre import Lustre
from gpunode.host.network import Network
from gpunode.host.nfs import Nfs
from gpunode.host.pcie import Pcie
from gpunode.jobs.owners import GpuOwners, OwnersDetail, ProcessRoles, RolesDetail
from gpunode.jobs.versions import MOST
from gpunode.nccl.log import NcclLogs
from gpunode.nccl.ras import SERVICES, NcclRas
from gpunode.node.local import LocalNode
from gpunode.node.node import Node, SteppedClock
from gpunode.source import MANY, MORE_PROCESSES, MORE_XIDS, Meets, Source, bounded
from tests.attacks.test_forged import a_process
from tests.holders.proc import Proc
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


def energy_zones(root: Path) -> None:
    for n in TOO_MANY:
        folder = root / f"sys/class/powercap/intel-rapl:{n}"
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"package-{n}\n")


def chip(root: Path, number: int, files: dict[str, str]) -> None:
    folder = root / f"sys/class/hwmon/hwmon{number}"
    folder.mkdir(parents=True)
    for name, text in {"name": "pmbus", **files}.items():
        (folder / name).write_text(text)


def chips(root: Path) -> None:
    for n in range(CHIPS + 1):
        chip(root, n, {})


def sensors(root: Path) -> None:
    chip(root, 0, {f"temp{n}_input": "20000" for n in range(SENSORS + 1)})


def fans(root: Path) -> None:
    chip(root, 0, {f"fan{n}_input": "5000" for n in range(FANS + 1)})


def temperatures(root: Path) -> None:
    inlets = {f"temp{n}_label": "Inlet" for n in range(TEMPERATURES + 1)}
    chip(root, 0, inlets | {f"temp{n}_input": "20000" for n in range(TEMPERATURES + 1)})


@pytest.mark.parametrize(
    ("make", "source", "said"),
    [
        (energy_zones, Energy, SAID.format("energy zones")),
        (chips, Hwmon, f"{CHIPS + 1} chips with sensors, {CHIPS} are read"),
        (sensors, Hwmon, f"{SENSORS + 1} sensors of a chip, {SENSORS} are read"),
        (fans, Hwmon, f"{FANS + 1} fans, {FANS} are read"),
        (temperatures, Hwmon, f"{TEMPERATURES + 1} temperatures, {TEMPERATURES} are read"),
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
        said = f"{SAID.format('processes on a GPU')}; 1 of user 1000 are left out"
        assert [one.example for one in source.read().unread] == [said]
        assert source.read().unread[0].kind in source.unknowns


def test_a_gpu_with_more_versions_than_are_told_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of one tenant, however many processes it has there, are one."""
    pids = range(100, 110 + MOST)
    for pid in pids:
        a_process(tmp_path, pid, "/", "python", 1000)
    node, gpu = LocalNode(tmp_path), MachineGpu(0, "GPU-aa", "0", tuple(pids))
    toolkits = {pid: f"/lib/libcudart.so.{max(9, pid - 99)}.1.2" for pid in pids}
    monkeypatch.setattr(node, "libraries", lambda pid: [toolkits[pid]])
    reading = ProcessRoles(Census(node), gpu, Settings()).read()
    assert len(reading.samples) == MOST
    said = f"{MOST + 2} versions, {MOST} are read; 2 of user 1000 are left out"
    assert [(one.example, one.times) for one in reading.unread] == [(said, 2)]


def test_more_services_of_nccl_than_are_asked_are_counted(tmp_path: Path) -> None:
    proc = Proc(tmp_path)
    pids = range(100, 101 + SERVICES)
    for pid in pids:
        proc.run(pid, start=pid)
    proc.cards[0].hold(*pids)
    reading = NcclRas(proc.census, Settings()).read()
    assert [(one.kind.what, one.times) for one in reading.unread] == [("nccl_services", 1)]


def test_adapters_left_out_are_counted_whatever_else_is_met(tmp_path: Path) -> None:
    for n in TOO_MANY:
        folder = tmp_path / f"sys/class/infiniband/odd_{n}/ports/1/counters"
        folder.mkdir(parents=True)
        (folder / f"what_{n}").write_text("1\n")
        (tmp_path / f"sys/class/cxi/cxi{n}/device/telemetry").mkdir(parents=True)
    unread = Infiniband(LocalNode(tmp_path), Settings()).read().unread
    cut = [one.example for one in unread if one.kind.bound]
    assert cut == [SAID.format("RDMA ports"), SAID.format("Slingshot adapters")]


def test_the_audit_says_of_how_many_processes_it_looks_at_the_first(tmp_path: Path) -> None:
    pids = range(100, 101 + MANY)
    for pid in pids:
        a_process(tmp_path, pid, "/", "python", 1000)

    class Driver:
        vendor = "nvidia"

        def gpus(self) -> list[Gpu]:
            return [MachineGpu(0, "GPU-aa", "0", tuple(pids))]

    reading = Audit(LocalNode(tmp_path, [Driver()]), Settings()).read()
    said = f"{SAID.format('processes on GPUs')}; 1 of user 1000 are left out"
    assert [one.example for one in reading.unread] == [said]


def test_a_noisy_tenant_is_left_out_and_counted_and_nobody_else(tmp_path: Path) -> None:
    """Of each source that looks at the processes on GPUs."""
    noisy = range(100, 100 + 2 * MANY)
    for pid in noisy:
        a_process(tmp_path, pid, "/", "python", 1000)
    a_process(tmp_path, 7, "/", "python", 1001)
    node, gpu = LocalNode(tmp_path), MachineGpu(0, "GPU-aa", "0", (*noisy, 7))
    census, settings = Census(node), Settings()
    owners = GpuOwners(census, gpu, settings, Pods(node, settings)).read()
    roles = ProcessRoles(census, gpu, settings).read()
    read = NcclLogs(census, gpu, settings).read()
    assert isinstance(owners.detail, OwnersDetail)
    assert isinstance(roles.detail, RolesDetail)
    assert 7 in {one.pid for one in owners.detail.processes}
    assert 7 in {one.pid for one in roles.detail.roles}
    for reading in (owners, roles, read):
        assert reading.unread[0].times == MANY + 1
        assert reading.unread[0].example.endswith(f"; {MANY + 1} of user 1000 are left out")


def test_owners_and_then_the_gpus_of_each_have_a_share() -> None:
    noisy = [("noisy", gpu, n) for n in range(100) for gpu in ("0",)]
    found = [*noisy, ("noisy", "1", 0), ("quiet", "0", 0), ("quiet", "0", 1)]
    kept, (left_out,) = bounded(found, MORE_PROCESSES, 6, whose=lambda one: one[:2])
    assert {one for one in found if one[0] == "quiet" or one[1] == "1"} <= set(kept)
    assert (len(kept), left_out.times) == (6, len(found) - 6)
    assert left_out.example == "103 processes, 6 are read; 97 of noisy are left out"


def test_xids_beyond_all_kinds_are_counted_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that makes numbers up makes no series without end."""
    reported = [Xid(number) for number in range(10_000, 10_000 + 2 * MANY)]
    monkeypatch.setattr(MachineGpu, "xids", lambda _: reported, raising=False)
    xids = Xids(MachineGpu(0, "GPU-aa", "0"), SteppedClock(1.8e9), Sensors())
    counts = {
        one.labels[-1]: one.value
        for one in xids.samples()
        if one.metric is XIDS and isinstance(one.value, float)
    }
    assert len(counts) == MANY + 1
    assert sum(counts.values()) == 2 * MANY
    assert counts["other"] >= MANY
    assert sum(one.kind is MORE_XIDS for one in xids.unread()) == counts["other"]
