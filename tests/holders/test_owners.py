"""Who holds a GPU: a real kubelet protocol on a real socket, cgroups and environments in files."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpunode.node.kubelet
from gpunode.config.daemon import Settings
from gpunode.driver.driver import Identity, Process
from gpunode.driver.nvidia.vendor import is_device
from gpunode.holders.census import Census
from gpunode.holders.owner import Started
from gpunode.holders.pods import Pods
from gpunode.jobs.owners import ALLOCATIONS, GpuOwners, OwnersDetail
from gpunode.node.local import LocalNode
from gpunode.node.node import SteppedClock
from gpunode.source import Absent
from tests.corpus.families import INSTANCE, WHOLE, load
from tests.fakes.kubelet import FakeKubelet, kubelet
from tests.holders.proc import Card, Proc
from tests.machine import MACHINES, MachineGpu, exported, read_source, stat

SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"


@pytest.fixture
def root() -> Iterator[Path]:
    """A node's root with a short path: a socket's has 108 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="g", dir="/tmp") as folder:
        (Path(folder) / SOCKET[1:]).parent.mkdir(parents=True)
        yield Path(folder)


@pytest.fixture
def running(root: Path) -> Iterator[FakeKubelet]:
    with kubelet(Path(f"{root}{SOCKET}")) as fake:
        yield fake


def pods_of(root: Path) -> Pods:
    return Pods(LocalNode(root), Settings())


def owners(root: Path, pods: Pods, pids: tuple[int, ...] = ()) -> str:
    """What is exported of GPU 0, as text without comments."""
    source = GpuOwners(
        Census(LocalNode(root)), MachineGpu(0, "GPU-aa", "0", pids), Settings(), pods
    )
    return exported(read_source(source))


def test_an_id_longer_than_a_name_may_be_names_no_gpu_for_sure(
    root: Path, running: FakeKubelet
) -> None:
    pods = pods_of(root)
    for digits, known in ((240, True), (250, False)):
        running.pods = {("a", "p", "c"): [("nvidia.com/gpu", f"GPU-{'a' * digits}")]}
        pods.read()
        assert (pods.holders(WHOLE) == []) == known


def test_the_integrated_gpu_is_the_one_that_its_name_or_bus_says() -> None:
    thor = Identity(0, "GPU-aa", "NVIDIA Thor", bus_id="0000:01:00.0")
    assert is_device(thor, "tegra") is True
    assert is_device(replace(thor, name="NVIDIA H200"), "tegra") is False


@pytest.mark.parametrize("device", ["gpu-2-mig-19-4-1", "gpu-2-mig-1g18gb-19-4"])
def test_a_claim_of_an_instance_whose_place_the_driver_does_not_tell(
    root: Path, running: FakeKubelet, device: str
) -> None:
    """It may be this instance: it is not said to be taken, nor to be free."""
    hidden = replace(INSTANCE, mig_start=None)
    assert is_device(hidden, device) is None
    assert is_device(hidden, device.replace("gpu-2", "gpu-3")) is False
    pods = pods_of(root)
    running.claims = {("b", "dra", "main"): [("gpu.nvidia.com", device)]}
    pods.read()
    assert pods.holders(hidden) is None
    assert [held.pod for held in pods.holders(INSTANCE) or ()] == ["dra"]
    running.pods = {("a", "plain", "main"): [("nvidia.com/gpu", "MIG-bb")]}
    pods.read()
    assert [held.pod for held in pods.holders(hidden) or ()] == ["plain"]


@pytest.mark.parametrize("device", [each["device"] for each in load("devices")["unattributed"]])
def test_what_is_no_gpu_of_this_driver_is_given_to_none(
    device: str,
    root: Path,
    running: FakeKubelet,
) -> None:
    assert (is_device(WHOLE, device), is_device(INSTANCE, device)) == (False, False)
    pods = pods_of(root)
    running.claims = {("b", "dra", "main"): [("gpu.nvidia.com", device)]}
    assert exported(read_source(pods)).count("gpunode_kubelet_gpu_pods 1.0") == 1


@pytest.mark.parametrize("device", ["0", "GPU-some-other-form", "gpu@3"])
def test_a_device_of_a_form_that_is_not_known_is_counted_and_may_be_any_gpu(
    device: str, root: Path, running: FakeKubelet
) -> None:
    pods = pods_of(root)
    running.pods = {
        ("a", "other", "main"): [("nvidia.com/gpu", device)],
        ("a", "plain", "main"): [("nvidia.com/gpu", "GPU-aa"), ("nvidia.com/hostdev", "0000:3b")],
    }
    reading = pods.read()
    assert [unread.kind.what for unread in reading.unread] == ["device"]
    words = {"0": "0", "GPU-some-other-form": "GPU-some-other-form", "gpu@3": "gpu@0"}
    assert reading.unread[0].example == f"nvidia.com/gpu: {words[device]}"
    assert [held.pod for held in pods.holders(WHOLE) or ()] == ["plain"]
    assert pods.holders(replace(WHOLE, uuid="GPU-cc", minor=7)) is None


@given(st.text())
def test_a_device_id_may_be_anything(device: str) -> None:
    is_device(INSTANCE, device)


def test_a_gpu_that_is_allocated_and_idle_is_told_from_a_free_one(
    root: Path, running: FakeKubelet
) -> None:
    pods = pods_of(root)
    running.pods = {("research", "trainer-0", "main"): [("nvidia.com/gpu", "GPU-aa")]}
    pods.read()
    assert owners(root, pods) == (
        'gpunode_gpu_allocated{gpu="0",uuid="GPU-aa"} 1.0\n'
        'gpunode_gpu_owner_info{gpu="0",owner_container="main",owner_namespace="research",'
        'owner_pod="trainer-0",replica="",slurm_job="",user="",uuid="GPU-aa",via="kubelet",'
        'workload="trainer"} 1.0\n'
        'gpunode_job_attempts_ended_total{gpu="0",uuid="GPU-aa"} 0.0'
    )
    running.pods = {}
    pods.read()
    assert owners(root, pods) == 'gpunode_gpu_allocated{gpu="0",uuid="GPU-aa"} 0.0'


def test_an_answer_of_the_kubelet_that_is_old_tells_of_no_gpu(
    root: Path, running: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod may be gone, and another may have the GPU."""
    pods, clock = pods_of(root), SteppedClock(1.8e9)
    monkeypatch.setattr(pods.node, "clock", clock)
    running.pods = {("research", "trainer-0", "main"): [("nvidia.com/gpu", "GPU-aa")]}
    pods.read()
    clock.now += 3 * pods.every
    assert "trainer-0" in owners(root, pods)
    clock.now += 1
    assert owners(root, pods) == ""


def test_time_slices_and_claims_have_an_owner_each(root: Path, running: FakeKubelet) -> None:
    pods = pods_of(root)
    running.pods = {
        ("a", f"p{n}", "main"): [("nvidia.com/gpu.shared", f"GPU-aa::{n}")] for n in range(3)
    }
    running.claims = {("b", "dra", "main"): [("gpu.nvidia.com", "gpu-0"), ("net.example", "gpu-0")]}
    pods.read()
    found = owners(root, pods)
    assert found.count("gpunode_gpu_owner_info") == 4
    assert 'owner_pod="dra"' in found


def test_containers_beyond_all_that_share_a_gpu_are_counted(
    root: Path, running: FakeKubelet
) -> None:
    pods = pods_of(root)
    running.pods = {
        ("a", f"p{n}", "main"): [("nvidia.com/gpu.shared", f"GPU-aa::{n}")]
        for n in range(ALLOCATIONS + 2)
    }
    pods.read()
    source = GpuOwners(Census(LocalNode(root)), MachineGpu(0, "GPU-aa", "0", ()), Settings(), pods)
    reading = source.read()
    assert exported(reading.samples).count("gpunode_gpu_owner_info") == ALLOCATIONS
    assert [(one.kind.what, one.times) for one in reading.unread] == [("allocations", 2)]


def test_the_owners_follow_a_churn_of_pods(root: Path, running: FakeKubelet) -> None:
    """A thousand pods come and go; what is kept is of those that are there."""
    pods = pods_of(root)
    for day in range(5):
        running.pods = {
            ("ns", f"pod-{day}-{n}", "main"): [("nvidia.com/gpu", f"GPU-aa::{n}")]
            for n in range(200)
        }
        pods.read()
        found = owners(root, pods)
        assert found.count("gpunode_gpu_owner_info") == 200
        assert found.count(f'owner_pod="pod-{day}-') == 200


def test_a_kubelet_that_hangs_is_left_after_the_deadline(
    root: Path, running: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpunode.node.kubelet, "DEADLINE", 0.2)
    pods = pods_of(root)
    running.hang = True
    with pytest.raises(TimeoutError, match="the kubelet: Connection timed out"):
        pods.read()
    assert pods.holders(WHOLE) is None
    running.hang = False
    pods.read()
    assert pods.holders(WHOLE) == []


@pytest.mark.parametrize("raw", [b"\xff" * 100, b"garbage", b"\x0a\xff\xff\xff\xff\x0f"])
def test_a_kubelet_that_speaks_garbage_is_a_failed_read(
    root: Path, running: FakeKubelet, raw: bytes
) -> None:
    running.raw = raw
    pods = pods_of(root)
    with pytest.raises(OSError, match="the kubelet: "):
        pods.read()
    assert owners(root, pods) == ""


def test_large_answers_are_taken_and_larger_ones_refused(root: Path, running: FakeKubelet) -> None:
    pods = pods_of(root)
    running.pods = {
        ("ns", f"pod-{n}-{'x' * 1000}", "main"): [("nvidia.com/gpu", f"GPU-{n}")]
        for n in range(3_000)
    }
    pods.read()
    running.pods[("ns", "x" * gpunode.node.kubelet.MAX_ANSWER_BYTES, "main")] = []
    with pytest.raises(OSError, match="Message too long"):
        pods.read()


def test_a_socket_without_a_kubelet_is_a_failed_read(root: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{root}{SOCKET}")
    with pytest.raises(ConnectionRefusedError, match="the kubelet"):
        pods_of(root).read()


def test_what_is_missing_is_said_where_there_is_a_kubelet_without_its_socket(root: Path) -> None:
    with pytest.raises(Absent, match="mount /var/lib/kubelet/pod-resources into this container"):
        pods_of(root).find()


def test_a_node_without_a_kubelet_is_not_complained_about(tmp_path: Path) -> None:
    assert list(pods_of(tmp_path).find()) == []


def test_a_secret_in_the_environment_is_never_read() -> None:
    golden = MACHINES / "pod" / "golden" / "gpu_owners.txt"
    assert "NCCL_IB_DISABLE" in golden.read_text()
    assert "hush" not in golden.read_text()


POD = "/kubepods.slice/kubepods-pod{}.slice/cri-containerd-{}.scope"
ONE_POD = POD.format("0a0a0a0a_0000_0000_0000_000000000001", "a" * 64)
OTHER_POD = POD.format("0a0a0a0a_0000_0000_0000_000000000002", "b" * 64)


class SharedThroughMps(MachineGpu):
    """A GPU that the server of MPS and two clients hold."""

    def processes(self) -> list[Process]:
        clients = [Process(pid, None, "mps") for pid in self.pids[1:]]
        return [*super().processes(), *clients]


def test_clients_of_mps_are_counted_and_a_gpu_without_any_has_no_series(root: Path) -> None:
    for pid in (10, 11, 12):
        (root / f"proc/{pid}").mkdir(parents=True)
        (root / f"proc/{pid}/cgroup").write_text("0::/system.slice\n")
    gpu = SharedThroughMps(0, "GPU-aa", "0", (10, 11, 12))
    source = GpuOwners(Census(LocalNode(root)), gpu, Settings(), pods_of(root))
    assert 'gpunode_gpu_mps_clients{gpu="0",uuid="GPU-aa"} 2' in exported(read_source(source))
    assert "gpunode_gpu_mps_clients" not in owners(root, pods_of(root), (10, 11, 12))


@pytest.mark.parametrize("clients", [(), (11,)])
def test_the_server_of_mps_owns_a_gpu_only_while_nobody_else_does(
    clients: tuple[int, ...], root: Path
) -> None:
    for pid, name, pod in ((10, "nvidia-cuda-mps", ONE_POD), (11, "python3", OTHER_POD)):
        (root / f"proc/{pid}").mkdir(parents=True)
        (root / f"proc/{pid}/cgroup").write_text(f"0::{pod}\n")
        (root / f"proc/{pid}/stat").write_text(stat(pid).replace("(python3)", f"({name})"))
    gpu = SharedThroughMps(0, "GPU-aa", "0", (10, *clients))
    look = Census(LocalNode(root)).look(gpu)
    assert look is not None
    assert [holder.pid for holder in look.holders] == list(clients or (10,))


BATCH = "/system.slice/slurmstepd.scope/job_42/step_batch/user/task_0"
SLURM_STEP = "/system.slice/slurmstepd.scope/job_42/step_0/user/task_{}"


@pytest.mark.parametrize("computes", [False, True])
def test_who_only_draws_owns_no_gpu(root: Path, computes: bool) -> None:
    """As the display server of a workstation, which is root's and on each GPU."""
    for pid, cgroup in ((10, "/system.slice"), (11, SLURM_STEP.format(0))):
        (root / f"proc/{pid}").mkdir(parents=True)
        (root / f"proc/{pid}/cgroup").write_text(f"0::{cgroup}\n")
        (root / f"proc/{pid}/stat").write_text(stat(pid))
    card = Card()
    card.running = [Process(10, None, "graphics"), *[Process(11, None, "compute")] * computes]
    card.process_use = list  # type: ignore[attr-defined]
    source = GpuOwners(Census(LocalNode(root)), card, Settings(), pods_of(root))  # type: ignore[arg-type]
    text = exported(read_source(source))
    assert (
        'slurm_job="42",user="",uuid="GPU-0",via="process",workload="slurm-42"} 1' in text
    ) is computes
    assert text.count("gpunode_gpu_owner_info{") == text.count("gpunode_gpu_allocated{") == computes
    assert 'pid="10"' in text


def job_of(root: Path, pid: int, cgroup: str, parent: int | None, *environment: str) -> str:
    """What a process's job is called; without a parent, its stat file cannot be read."""
    folder = root / f"proc/{pid}"
    folder.mkdir(parents=True)
    (folder / "cgroup").write_text(f"0::{cgroup}\n")
    (folder / "environ").write_text("\0".join(environment))
    if parent is not None:
        stat = f"{pid} (python) S {parent} 1 1 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 1000 1\n"
        (folder / "stat").write_text(stat)
    source = GpuOwners(
        Census(LocalNode(root)), MachineGpu(0, "GPU-aa", "0", (pid,)), Settings(), pods_of(root)
    )
    detail = source.read().detail
    assert isinstance(detail, OwnersDetail)
    (found,) = detail.processes
    assert found.job
    return found.job


NODE = "MASTER_ADDR=10.0.0.7", "MASTER_PORT=29500"
LOOPBACK = "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500"
LOCALHOST = "MASTER_ADDR=localhost", "MASTER_PORT=29500"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ((ONE_POD, 70, *NODE), (ONE_POD, 70, *NODE), True),
        ((ONE_POD, 70, *NODE), (OTHER_POD, 80, *NODE), True),  # a pod for each rank
        ((ONE_POD, 70, *NODE), (ONE_POD, 70, NODE[0], "MASTER_PORT=29501"), False),
        ((SLURM_STEP.format(0), 70, *NODE), (SLURM_STEP.format(1), 71, *NODE), True),
        # torchrun in two pods, each with its own loopback interface
        ((ONE_POD, 70, *LOOPBACK), (ONE_POD, 70, *LOOPBACK), True),
        ((ONE_POD, 70, *LOOPBACK), (OTHER_POD, 80, *LOOPBACK), False),
        ((ONE_POD, 70, *LOCALHOST), (OTHER_POD, 80, *LOCALHOST), False),
        ((ONE_POD, 70, LOOPBACK[1]), (OTHER_POD, 80, LOOPBACK[1]), False),
        (("/user.slice", 70, *LOOPBACK), ("/user.slice", 71, *LOOPBACK), True),
        # without a rendezvous: the children of one process
        (("/user.slice", 70), ("/user.slice", 70), True),
        (("/user.slice", 70), ("/user.slice", 71), False),
        ((ONE_POD, 70), (OTHER_POD, 70), False),
        (("/user.slice", 1), ("/user.slice", 1), False),
        (("/user.slice", None), ("/user.slice", None), False),
        # tasks of one step of Slurm, each with a shell of its own; scripts of a batch job
        ((SLURM_STEP.format(0), 70), (SLURM_STEP.format(1), 71), True),
        ((BATCH, 70), (BATCH, 71), False),
    ],
)
def test_processes_have_a_job_in_common_or_not(
    root: Path,
    one: tuple[Any, ...],
    other: tuple[Any, ...],
    same: bool,
) -> None:
    assert (job_of(root, 100, *one) == job_of(root, 101, *other)) is same


def jobs_of(proc: Proc) -> list[str]:
    """What the jobs of a process on each GPU are called."""
    return [process.job for process in started_of(proc)]


def started_of(proc: Proc) -> list[Started]:
    """The processes on each GPU."""
    settings, pods = Settings(), Pods(proc.node, Settings())
    found: list[Started] = []
    for card in proc.cards:
        proc.census.look(card)  # type: ignore[arg-type]
    for card in proc.cards:
        detail = GpuOwners(proc.census, card, settings, pods).read().detail  # type: ignore[arg-type]
        assert isinstance(detail, OwnersDetail)
        found += detail.processes
    return found


@pytest.mark.parametrize("environment", ["SLURM_PROCID=3", "\0".join((*LOOPBACK, "RANK=3"))])
def test_what_one_raylet_has_started_may_be_of_several_jobs(
    tmp_path: Path, environment: str
) -> None:
    proc = Proc(tmp_path, [Card(0), Card(1)])
    proc.run(70)
    (tmp_path / "proc/70/stat").write_text(stat(70).replace("python3", "raylet"))
    for pid, card in zip((100, 101), proc.cards, strict=True):
        proc.run(pid, environment=environment)
        (tmp_path / f"proc/{pid}/stat").write_text(stat(pid, parent=70))
        card.hold(pid)
    one, other = started_of(proc)
    assert one.job != other.job
    assert (one.rank, other.rank) == ("", "")


def test_a_script_belongs_to_the_job_of_the_ranks_that_it_has_launched(tmp_path: Path) -> None:
    """As by default with Lightning, of which the script itself is the first rank."""
    proc = Proc(tmp_path, [Card(0), Card(1), Card(2)])
    proc.run(100)
    proc.run(101, environment="\0".join(LOOPBACK))
    proc.run(102)
    for pid, parent, card in zip((100, 101, 102), (70, 100, 100), proc.cards, strict=True):
        (tmp_path / f"proc/{pid}/stat").write_text(stat(pid, parent=parent))
        card.hold(pid)
    first, second, other = jobs_of(proc)
    assert first == second != other


@pytest.mark.parametrize(
    ("parents", "tasks", "ranks"),
    [
        ((70, 71), (0, 1), ["0", "1"]),
        ((70, 70), (3, 3), ["", ""]),  # as what torch.multiprocessing.spawn starts
        ((70, 100), (3, 3), ["3", "3"]),  # a loader with a context of its own
    ],
)
def test_what_several_have_from_one_task_of_slurm_is_no_rank(
    tmp_path: Path, parents: tuple[int, int], tasks: tuple[int, int], ranks: list[str]
) -> None:
    proc = Proc(tmp_path, [Card(0), Card(1)])
    for pid, parent, task, card in zip((100, 101), parents, tasks, proc.cards, strict=True):
        proc.run(pid, environment=f"SLURM_PROCID={task}\0SLURM_LOCALID={task}\0SLURM_NTASKS=4")
        (tmp_path / f"proc/{pid}/stat").write_text(stat(pid, parent=parent))
        (tmp_path / f"proc/{pid}/cgroup").write_text(f"0::{SLURM_STEP.format(task)}\n")
        card.hold(pid)
    found = started_of(proc)
    assert [one.rank for one in found] == [one.local_rank for one in found] == ranks
    assert [one.world_size for one in found] == ["4" if rank else "" for rank in ranks]
