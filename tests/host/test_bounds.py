"""What a source leaves out because there is too much of it is counted, and how many there are."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpunode import catalogue
from gpunode.audit.check import Subject
from gpunode.config.daemon import Settings
from gpunode.driver.driver import Gpu, Xid, list_gpus
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
from gpunode.jobs import processes
from gpunode.jobs.owners import ALLOCATIONS, GpuOwners, ProcessRoles, RolesDetail
from gpunode.jobs.processes import UNREADABLE, JobProcesses
from gpunode.jobs.versions import MAX_VERSIONS
from gpunode.nccl.followed import FollowedFiles
from gpunode.nccl.ras import NcclRas
from gpunode.node.kubelet import Allocation
from gpunode.node.local import LocalNode
from gpunode.node.node import Node, SteppedClock
from gpunode.source import (
    MAX_ITEMS,
    MORE_PROCESSES,
    MORE_XIDS,
    HasUnknowns,
    Reading,
    Source,
    bounded,
)
from gpunode.unread import Unread
from tests.attacks import test_client_socket, test_web
from tests.attacks.test_forged import a_process
from tests.host import test_mounts_of_users
from tests.incidents import test_black_box
from tests.machine import MachineGpu, exported
from tests.nccl.ras import rank, status
from tests.node import test_patience
from tests.serving import test_servers


@dataclass(frozen=True, slots=True)
class OneDriver:
    """A driver with some GPUs."""

    listed: list[Gpu]
    vendor: str = "nvidia"

    def gpus(self) -> list[Gpu]:
        return self.listed


TOO_MANY = range(MAX_ITEMS + 1)
MORE_THAN_READ = f"{MAX_ITEMS + 1} {{}}, {MAX_ITEMS} are read"


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
        (energy_zones, Energy, MORE_THAN_READ.format("energy zones")),
        (chips, Hwmon, f"{CHIPS + 1} chips with sensors, {CHIPS} are read"),
        (sensors, Hwmon, f"{SENSORS + 1} sensors of a chip, {SENSORS} are read"),
        (fans, Hwmon, f"{FANS + 1} fans, {FANS} are read"),
        (temperatures, Hwmon, f"{TEMPERATURES + 1} temperatures, {TEMPERATURES} are read"),
        (disks, Disks, MORE_THAN_READ.format("disks")),
        (controllers, Disks, MORE_THAN_READ.format("NVMe controllers")),
        (interfaces, Network, MORE_THAN_READ.format("network interfaces")),
        (nfs_mounts, Nfs, MORE_THAN_READ.format("NFS mounts")),
        (adapters, Pcie, MORE_THAN_READ.format("GPUs and adapters")),
        (rdma_ports, Infiniband, MORE_THAN_READ.format("RDMA ports")),
        (lustre_filesystems, Lustre, f"more than {MAX_ITEMS} Lustre filesystems"),
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
        assert isinstance(reader, HasUnknowns)
        assert left_out.kind in reader.unknowns


def test_a_gpu_with_more_versions_than_are_told_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of one tenant, however many processes it has there, are one."""
    pids = range(100, 110 + MAX_VERSIONS)
    for pid in pids:
        a_process(tmp_path, pid, "/", "python", 1000)
    node, gpu = LocalNode(tmp_path), MachineGpu(0, "GPU-aa", "0", tuple(pids))
    toolkits = {pid: f"/lib/libcudart.so.{max(9, pid - 99)}.1.2" for pid in pids}
    monkeypatch.setattr(node, "libraries", lambda pid: [toolkits[pid]])
    reading = ProcessRoles(Census(node), gpu, Settings()).read()
    assert len(reading.samples) == MAX_VERSIONS
    said = f"{MAX_VERSIONS + 2} versions, {MAX_VERSIONS} are read; 2 of user 1000 are left out"
    assert [(one.example, one.times) for one in reading.unread] == [(said, 2)]


def test_adapters_left_out_are_counted_whatever_else_is_met(tmp_path: Path) -> None:
    for n in TOO_MANY:
        folder = tmp_path / f"sys/class/infiniband/odd_{n}/ports/1/counters"
        folder.mkdir(parents=True)
        (folder / f"what_{n}").write_text("1\n")
        (tmp_path / f"sys/class/cxi/cxi{n}/device/telemetry").mkdir(parents=True)
    unread = Infiniband(LocalNode(tmp_path), Settings()).read().unread
    cut = [one.example for one in unread if one.kind.bound]
    assert cut == [MORE_THAN_READ.format("RDMA ports"), MORE_THAN_READ.format("Slingshot adapters")]


@dataclass(frozen=True, slots=True)
class Crowd:
    """A GPU on which a tenant has very many processes, and another has one."""

    node: LocalNode
    gpu: MachineGpu
    census: Census
    settings: Settings


@pytest.fixture
def crowd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Crowd:
    monkeypatch.setattr(processes, "LOOKED_AT", MAX_ITEMS)
    noisy = range(100, 100 + 2 * MAX_ITEMS)
    for pid in noisy:
        chosen = {name: str(pid) for name in ("NCCL_ALGO", "NCCL_BUFFSIZE", "NCCL_IB_HCA")}
        a_process(tmp_path, pid, "/", "python", 1000, NCCL_RAS_ADDR=f"127.0.0.1:{pid}", **chosen)
        (tmp_path / f"proc/{pid}/ns").mkdir()
        (tmp_path / f"proc/{pid}/ns/pid").symlink_to(f"pid:[{pid}]")  # he has unshared them
    a_process(tmp_path, QUIET, "/", "python", 1001, NCCL_SOCKET_IFNAME="quiet", RANK="7")
    counters = ("rchar", "wchar", "syscr", "syscw", "read_bytes", "write_bytes")
    text = "".join(f"{name}: 1\n" for name in (*counters, "cancelled_write_bytes"))
    (tmp_path / f"proc/{QUIET}/io").write_text(text)
    for file in tmp_path.glob("proc/*/status"):
        file.write_text(f"{file.read_text()}NSpid:\t{file.parent.name}\n")
    gpu = MachineGpu(0, "GPU-aa", "0", (*noisy, QUIET))
    node = LocalNode(tmp_path, [OneDriver([gpu])])
    return Crowd(node, gpu, Census(node), Settings())


QUIET = 7

Played = tuple[Sequence[Unread], object]
"""What a source left out, and what says that it has read the quiet process."""


def owners(crowd: Crowd) -> tuple[Reading, str]:
    pods = Pods(crowd.node, crowd.settings)
    given = [Allocation("noisy", f"pod-{n}", "x", "x", "x") for n in range(ALLOCATIONS + 9)]
    pods.holders = lambda _: [*given, Allocation("quiet", "x", "x", "x", "x")]  # type: ignore[method-assign, assignment]
    reading = GpuOwners(crowd.census, crowd.gpu, crowd.settings, pods).read()
    return reading, exported(reading.samples)


def roles(crowd: Crowd) -> tuple[Reading, str]:
    crowd.node.libraries = lambda pid: [f"/libcudart.so.{9 if pid == QUIET else 1}.{pid}"]  # type: ignore[method-assign]
    reading = ProcessRoles(crowd.census, crowd.gpu, crowd.settings).read()
    return reading, exported(reading.samples)


def play_allocations(crowd: Crowd) -> Played:
    reading, text = owners(crowd)
    return reading.unread, 'owner_namespace="quiet"' in text


def play_settings(crowd: Crowd) -> Played:
    reading, text = owners(crowd)
    return reading.unread, 'value="quiet"' in text


def play_owners(crowd: Crowd) -> Played:
    reading, text = owners(crowd)
    return reading.unread, f'pid="{QUIET}",rank="7"' in text


def play_roles(crowd: Crowd) -> Played:
    reading, _ = roles(crowd)
    assert isinstance(reading.detail, RolesDetail)
    return reading.unread, QUIET in {one.pid for one in reading.detail.roles}


def play_versions(crowd: Crowd) -> Played:
    reading, text = roles(crowd)
    return reading.unread, f"9.{QUIET}" in text


def play_job(crowd: Crowd) -> Played:
    """The bytes of the quiet process alone can be read."""
    reading = JobProcesses(crowd.census, crowd.gpu, crowd.settings).read()
    assert reading is not None
    unreadable = [one.value for one in reading.samples if one.metric is UNREADABLE]
    return reading.unread, MAX_ITEMS - 1 in unreadable


def play_files(crowd: Crowd) -> Played:
    followed = FollowedFiles(crowd.census, crowd.gpu, lambda holder: holder.pid, lambda *_: None)
    read, unread = followed.read()
    return unread, QUIET in read.values()


def play_services(crowd: Crowd) -> Played:
    def ask(pid: int, *_: object) -> str:
        if pid != QUIET:
            raise ConnectionRefusedError
        return status([rank(0, 5, QUIET)])

    crowd.node.ask = ask  # type: ignore[method-assign, assignment]
    reading = NcclRas(Census(crowd.node), crowd.settings).read()
    return reading.unread, "gpunode_nccl_communicators 1" in exported(reading.samples)


def play_audit(crowd: Crowd) -> Played:
    subject = Subject(crowd.node, list_gpus(crowd.node.drivers))
    looked_at = {one.pid for one in subject.holders}
    return subject.unread, QUIET in looked_at


NOISY: dict[tuple[str, str], Callable[[Crowd], Played]] = {
    ("audit", "processes"): play_audit,
    ("gpu_owners", "allocations"): play_allocations,
    ("gpu_owners", "nccl_settings"): play_settings,
    ("gpu_owners", "processes"): play_owners,
    ("job_processes", "processes"): play_job,
    ("nccl_inspector", "processes"): play_files,
    ("nccl_log", "processes"): play_files,
    ("nccl_ras", "nccl_services"): play_services,
    ("process_roles", "processes"): play_roles,
    ("process_roles", "versions"): play_versions,
}
"""What tenants make, and how one has too much of it."""

PATIENCE_TEST = test_patience.test_each_tenant_has_a_few_threads_and_leaves_some_to_others
ELSEWHERE: dict[tuple[str, str], object] = {
    ("filesystem", "mounts"): (
        test_mounts_of_users.test_no_number_of_mounts_of_users_hides_what_is_mounted_later
    ),
    ("incidents", "incidents"): (
        test_black_box.test_no_crash_loops_of_one_user_keep_the_hang_of_another_out
    ),
    ("incidents", "processes"): (
        test_black_box.test_a_crowd_of_processes_makes_none_of_another_gone
    ),
    ("nccl_inspector", "files"): PATIENCE_TEST,
    ("nccl_log", "files"): PATIENCE_TEST,
    ("serving_engines", "servers"): (
        test_servers.test_a_noisy_user_leaves_no_engine_of_another_out
    ),
    ("training_steps", "messages"): (
        test_client_socket.test_ever_new_processes_leave_room_for_a_known_one
    ),
    ("web", "connections"): (
        test_web.test_a_crowd_from_one_address_makes_way_before_a_slow_client_of_another
    ),
}
"""The tests that play it by other means."""

OF_NOBODY = """
asked asked_stacks: who has the password asks
incidents moments: an answer too long for a tape is left out by itself
process_roles sockets, serving_engines sockets: the kernel mixes those of all who share a network
training_steps training_seconds, nccl_inspector nccl_collectives: of a process alone
gpu_activity xids, gpu_board xids, kernel_log xids: the driver's
slurm slurm_jobs, lustre mounts, lustre lustre_targets, nfs mounts: root's
cpu_energy energy_zones, disk disks, disk nvme_controllers, hwmon sensors: hardware
infiniband ports, infiniband slingshot_adapters, network network_interfaces: hardware
pcie pcie_devices: hardware
faults faults: hardware, and mounts of which another bound says how many there are
"""
"""What no tenant can make more of, or only for himself."""


def test_every_bound_of_a_source_is_shared_or_none_that_a_tenant_reaches() -> None:
    """A source with a new bound fails here until somebody plays a noisy tenant against it."""
    nobody_s = re.findall(r"(\w+) (\w+)[,:]", OF_NOBODY)
    declared = [(name, kind.what) for name, kind in catalogue._unknowns() if kind.bound]
    assert sorted(declared) == sorted([*NOISY, *ELSEWHERE, *nobody_s])


@pytest.mark.parametrize("bound", NOISY, ids="-".join)
def test_a_noisy_tenant_is_left_out_and_counted_and_nobody_else(
    bound: tuple[str, str], crowd: Crowd
) -> None:
    unread, is_there = NOISY[bound](crowd)
    assert is_there
    (left_out,) = (one for one in unread if one.kind.what == bound[1])
    whose = f"; {left_out.times} of (user 1000|mallory|noisy) are left out"
    assert re.search(f"{whose}$", left_out.example)


def test_owners_and_then_the_gpus_of_each_have_a_share() -> None:
    noisy = [("noisy", gpu, n) for n in range(100) for gpu in ("0",)]
    found = [*noisy, ("noisy", "1", 0), ("quiet", "0", 0), ("quiet", "0", 1)]
    kept, (left_out,) = bounded(found, MORE_PROCESSES, 6, whose=lambda one: one[:2])
    assert {one for one in found if one[0] == "quiet" or one[1] == "1"} <= set(kept)
    assert (len(kept), left_out.times) == (6, len(found) - 6)
    assert left_out.example == "103 processes, 6 are read; 97 of noisy are left out"


def test_xids_beyond_all_kinds_are_counted_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that makes numbers up makes no series without end."""
    reported = [Xid(number) for number in range(10_000, 10_000 + 2 * MAX_ITEMS)]
    monkeypatch.setattr(MachineGpu, "xids", lambda _: reported, raising=False)
    xids = Xids(MachineGpu(0, "GPU-aa", "0"), SteppedClock(1.8e9), Sensors())
    counts = {
        one.labels[-1]: one.value
        for one in xids.samples()
        if one.metric is XIDS and isinstance(one.value, float)
    }
    assert len(counts) == MAX_ITEMS + 1
    assert sum(counts.values()) == 2 * MAX_ITEMS
    assert counts["other"] >= MAX_ITEMS
    assert sum(one.kind is MORE_XIDS for one in xids.unread()) == counts["other"]
