"""Tenants who pretend to be others, and lines that pretend to be the kernel's or the daemon's."""

from __future__ import annotations

import logging
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import astuple
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpunode.cli import log as cli_log
from gpunode.cli.log import OneLineFormatter, StandardError
from gpunode.config.daemon import Settings
from gpunode.holders.census import Census
from gpunode.holders.owner import Owner, Started
from gpunode.holders.pods import MAX_NAME as NAME
from gpunode.holders.pods import Pods
from gpunode.holders.slurm import SlurmJobs
from gpunode.host.kernel_log import (
    ALWAYS_COUNTED,
    KMSG,
    KernelLine,
    KernelLog,
    kind_of,
    message_of,
)
from gpunode.host.kernel_trouble import driver_of
from gpunode.jobs import cgroup
from gpunode.jobs.owners import ALLOCATIONS, OWNER, GpuOwners, OwnersDetail
from gpunode.node.cgroup import (
    PARENT_FOLDERS,
    WORDS,
    CgroupOwner,
    cgroup_owner,
    sluid_folder,
    strange_container,
)
from gpunode.node.kubelet import Allocation
from gpunode.node.local import LocalNode
from gpunode.source import MAX_ITEMS
from tests.conftest import parse, until, watching
from tests.fakes.nvml import FakeDriver
from tests.holders.slurm import OTHER, SCOPE, SlurmNode, jobs_by_gpu
from tests.host.test_kernel_log import LINES, UNKNOWN
from tests.machine import MachineGpu, OneGpu, exported, read_source

UID = "0a0a0a0a-0000-0000-0000-000000000001"
SLICE = UID.replace("-", "_")
HASH = "0123456789abcdef0123456789abcdef"
ID, NODE = "a" * 64, "b" * 64
IN_POD = CgroupOwner(UID, ID)
SLURM_JOB = "/system.slice/slurmstepd.scope/job_42/step_0/user/task_0"
SLUID = "s5K1KKYAYG5D00"
USERS = "/user.slice/user-1000.slice/user@1000.service/app.slice"


OF_RUNTIMES = [
    # Kubernetes: systemd's and its own way to name cgroups, a pod of each class, a static pod
    (f"/kubepods.slice/kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope", IN_POD),
    (f"/kubepods.slice/kubepods-pod{SLICE}.slice/crio-{ID}.scope/container", IN_POD),
    (
        "/kubepods.slice/kubepods-besteffort.slice/"
        f"kubepods-besteffort-pod{SLICE}.slice/docker-{ID}.scope/init",
        IN_POD,
    ),
    (f"/kubepods/pod{UID}/{ID}", IN_POD),
    (f"/kubepods/burstable/pod{UID}/{ID}/docker/{NODE}", IN_POD),
    (f"/kubepods/burstable/pod{HASH}/{ID}", CgroupOwner(HASH, ID)),
    (f"/kubepods/burstable/pod{UID}", CgroupOwner(UID)),
    (f"/kubepods-burstable-pod{SLICE}.slice:cri-containerd:{ID}", IN_POD),
    (
        f"/system.slice/containerd.service/kubepods-pod{SLICE}.slice:cri-containerd:{ID}",
        IN_POD,
    ),
    # kind and minikube
    (f"/docker/{NODE}/kubelet/kubepods/besteffort/pod{UID}/{ID}", IN_POD),
    (f"/docker/{NODE}/kubepods/besteffort/pod{UID}/{ID}", IN_POD),
    (
        f"/system.slice/docker-{NODE}.scope/kubelet.slice/kubelet-kubepods.slice/"
        "kubelet-kubepods-burstable.slice/"
        f"kubelet-kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope",
        IN_POD,
    ),
    # the daemon is a pod, with a cgroup namespace
    (f"/../../kubepods-besteffort-pod{SLICE}.slice/cri-containerd-{ID}.scope", IN_POD),
    (f"/../../../kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope", IN_POD),
    (
        "/../../../kubepods-burstable.slice/"
        f"kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope",
        IN_POD,
    ),
    (f"/../../pod{UID}/{ID}", IN_POD),
    (f"/../../../burstable/pod{UID}/{ID}", IN_POD),
    (f"/../../kubelet-kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope", IN_POD),
    (
        "/../../../../system.slice/slurmstepd.scope/job_42/step_0",
        CgroupOwner("", "", "42", "0"),
    ),
    # the daemon is a container of Docker's
    (f"/../docker-{ID}.scope", CgroupOwner("", ID)),
    (f"/../{ID}", CgroupOwner("", ID)),
    ("/../slurmstepd.scope/job_42/step_0/user/task_0", CgroupOwner("", "", "42", "0")),
    (f"/../../kubepods.slice/kubepods-pod{SLICE}.slice/crio-{ID}.scope", IN_POD),
    # Slurm
    ("/system.slice/slurmstepd.scope/job_42", CgroupOwner("", "", "42")),
    (
        "/system.slice/slurmstepd.scope/job_42/step_extern/user/task_special",
        CgroupOwner("", "", "42", "extern"),
    ),
    # of Slurm 26.05, also below another slice, and of a slurmd in a pod
    (f"/system.slice/slurmstepd.scope/{SLUID}", CgroupOwner("", "", SLUID)),
    (
        f"/hpc.slice/gpu-7_slurmstepd.scope/{SLUID}/step_0/user/task_0",
        CgroupOwner("", "", SLUID, "0"),
    ),
    (
        f"/kubepods/pod{UID}/{ID}/system.slice/slurmstepd.scope/job_7/step_0/user/task_0",
        CgroupOwner(UID, ID, "7", "0"),
    ),
    (
        f"/kubepods/pod{UID}/{ID}/system.slice/slurmstepd.scope/{SLUID}/step_extern",
        CgroupOwner(UID, ID, SLUID, "extern"),
    ),
    (
        "/system.slice/gpu-7.cluster_slurmstepd.scope/job_42/step_0+1/user/task_0",
        CgroupOwner("", "", "42", "0+1"),
    ),
    ("/slurm/uid_1000/job_42/step_batch/task_0", CgroupOwner("", "", "42", "batch")),
    ("/slurm_gpu-7/uid_1000/job_42/step_0", CgroupOwner("", "", "42", "0")),
    # the kubelet's --cgroup-root, and services of root that run containers
    (
        f"/gpu.slice/gpu-kubepods.slice/gpu-kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope",
        IN_POD,
    ),
    (
        f"/system.slice/k3s.service/kubepods-burstable-pod{SLICE}.slice:cri-containerd:{ID}",
        IN_POD,
    ),
    (
        "/runtime.slice/containerd.service/"
        f"kubelet-kubepods-besteffort-pod{SLICE}.slice:cri-containerd:{ID}",
        IN_POD,
    ),
    (f"/kubepods-pod{SLICE}:cri-containerd:{ID}", IN_POD),
    # containers
    (f"/system.slice/containerd.service/default/{ID}", CgroupOwner("", ID)),
    (f"/system.slice/docker.service/system.slice:docker:{ID}", CgroupOwner("", ID)),
    (r"/machine.slice/machine-qemu\x2d1\x2dvm.scope/libvirt", CgroupOwner("", "qemu-1-vm")),
    # containers
    (f"/docker/{ID}", CgroupOwner("", ID)),
    (f"/batch.slice/batch-night.slice/docker-{ID}.scope", CgroupOwner("", ID)),
    (f"/user.slice/user-1000.slice/docker-{ID}.scope", CgroupOwner("", ID)),
    (
        f"/machine.slice/machine-libpod_pod_{NODE}.slice/libpod-{ID}.scope/container",
        CgroupOwner("", ID),
    ),
    (f"/lxc.payload.c-1/docker/{ID}", CgroupOwner("", "c-1")),
    ("/lxc/101/ns/init.scope", CgroupOwner("", "101")),
    (r"/machine.slice/systemd-nspawn@a\x2db.service/payload", CgroupOwner("", "a-b")),
    # tasks of ECS and of Nomad
    (
        f"/ecstasks.slice/ecstasks-{HASH}.slice/docker-{ID}.scope",
        CgroupOwner("", ID, task=HASH),
    ),
    (f"/../../ecstasks-{HASH}.slice/docker-{ID}.scope", CgroupOwner("", ID, task=HASH)),
    (f"/ecs/my-cluster/{HASH}/{ID}", CgroupOwner("", ID, task=HASH)),
    (f"/ecs/{UID}/{ID}", CgroupOwner("", ID, task=UID)),
    (f"/nomad.slice/share.slice/{UID}.train.scope", CgroupOwner("", "train", task=UID)),
    (f"/nomad/{UID}.my-task", CgroupOwner("", "my-task", task=UID)),
    (f"/nomad.slice/reserve.slice/docker-{ID}.scope", CgroupOwner("", ID)),
    (f"/system.slice/docker-{ID}.scope/init.scope", CgroupOwner("", ID)),
    (f"/machine.slice/libpod-{ID}.scope/container", CgroupOwner("", ID)),
]


def test_a_cgroup_that_a_runtime_made_has_an_owner() -> None:
    for path, place in OF_RUNTIMES:
        assert cgroup_owner(f"0::{path}\n") == place, path
        version_1 = f"12:cpuset:/\n5:memory:{path}\n1:name=systemd:/\n0::/\n"
        assert cgroup_owner(version_1) == place, path
        assert strange_container(version_1) == "", path


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        (f"/training/{ID}", "/a/<64 hex>"),
        (
            f"/a/b/kubepods/burstable/pod{UID}/{ID}",
            "/a/a/kubepods/burstable/pod0a0a0a0a-0-0-0-<12 hex>/<64 hex>",
        ),
        (
            f"/system.slice/mallory.service/libpod-payload-{ID}",
            "/system.slice/a.service/libpod-payload-<64 hex>",
        ),
        (
            f"/lxc.payload.c1/kubepods/pod{UID}/{ID}",
            "/lxc.payload.a0/kubepods/pod0a0a0a0a-0-0-0-<12 hex>/<64 hex>",
        ),
        (f"/newruntime/{UID}", "/a/0a0a0a0a-0-0-0-<12 hex>"),
        ("/system.slice/docker-12ab.scope", "/system.slice/docker-0a.scope"),
        ("/system.slice/runc-mine.scope", "/system.slice/runc-a.scope"),
        ("/hadoop-yarn/container_e1_1_0001_01_000005", "/a-a/container_a0_0_0_0_0"),
    ],
)
def test_what_looks_like_a_container_and_names_none_is_told_by_its_shape(
    tmp_path: Path, path: str, shape: str
) -> None:
    a_process(tmp_path, 100, path, "python", 1000)
    (unread,) = owners_of(tmp_path, 100).read().unread
    assert (unread.kind.what, unread.example) == ("container", shape)


def test_a_process_outside_containers_looks_like_none(tmp_path: Path) -> None:
    paths = (
        "/",
        "/init.scope",
        "/user.slice",
        "/user.slice/user-1000.slice/session-3.scope",
        f"{USERS}/docker-{ID}.scope",
        f"/user.slice/user-1000.slice/session-3.scope/pod{UID}",
        "/system.slice/docker.service",
        "/system.slice/docker-app1.service",
        "/lxc.pivot",
        "/system.slice/lxc-net.service",
        "/system.slice/run-r0123456789abcdef0123456789abcdef.service",
        "/system.slice/apptainer-28374.scope",
        "/apptainer/28374",
        SLURM_JOB,
    )
    for pid, path in enumerate(paths, 100):
        a_process(tmp_path, pid, path, "python", 1000)
        assert owners_of(tmp_path, pid).read().unread == (), path


OF_USERS = [USERS, "/user/alice", f"{USERS}/x", "/../../../..", "/home"]
LIKE_A_RUNTIMES = [
    f"/kubepods/pod{UID}/{ID}",
    f"/kubepods.slice/kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope",
    "/system.slice/slurmstepd.scope/job_666/step_0",
    f"/system.slice/slurmstepd.scope/{SLUID}/step_0",
    f"/hpc.slice/slurmstepd.scope/{SLUID}/step_0",
    "/slurm/uid_0/job_666/step_0",
    "/slurm/job_666",
    "/job_666/step_0",
    f"/docker/{ID}",
    f"/docker/{NODE}/kubelet/kubepods/pod{UID}/{ID}",
    f"/docker-{ID}.scope",
    f"/{ID}",
]


def test_a_cgroup_that_a_user_made_below_his_own_has_none() -> None:
    for above in OF_USERS:
        for named in LIKE_A_RUNTIMES:
            above = above + USERS if above.endswith("..") else above
            assert cgroup_owner(f"0::{above}{named}\n") == CgroupOwner(), (above, named)


NEARLY_A_RUNTIMES = [
    f"/kubepods.slice/run-1.scope/pod{UID}/{ID}",
    f"/machine.slice/libpod-{NODE}.scope/kubepods/pod{UID}",
    "/system.slice/tenant.service/slurmstepd.scope/job_666/step_0",
    "/system.slice/x/y_slurmstepd.scope/job_666/step_0",
    "/user.slice/slurmstepd.scope/job_666/step_0",
    "/user.slice/user-1000.slice/slurmstepd.scope/job_666/step_0",
    f"/user.slice/user-1000.slice/slurmstepd.scope/{SLUID}/step_0",
    f"/slurmstepd.scope/{SLUID}/step_0",
    f"/system.slice/slurmstepd.scope/{SLUID}0/step_0",
    f"/system.slice/slurmstepd.scope/{SLUID.lower()}/step_0",
    f"/system.slice/slurmstepd.scope/{SLUID[:-1]}U/step_0",
    f"/machine.slice/libpod-{NODE}.scope/system.slice/slurmstepd.scope/job_666/step_0",
    "/slurm/uid_1000/x/job_666/step_0",
    "/slurm/uid_1000/job_٣/step_0",
    "/slurm/uid_1000/job_666x/step_0",
    "/slurm/uid_1000/job_" + "6" * 11,
    f"/x\r0::/docker/{ID}",
    f"/x\x0c0::/docker/{ID}",
    f"/x\u20280::/docker/{ID}",
    f"/x:/docker/{ID}",
    f"/..kubepods/pod{UID}/{ID}",
    f"kubepods/pod{UID}/{ID}",
]


def test_a_path_that_only_looks_like_a_runtime_s_has_no_owner() -> None:
    for path in NEARLY_A_RUNTIMES:
        assert {cgroup_owner(f"0::{USERS}{path}\n"), cgroup_owner(f"0::{path}\n")} <= {
            CgroupOwner(),
            CgroupOwner("", NODE),  # the container that is its own, and nothing that it made below
        }, path


PARTS = st.sampled_from(
    [
        *("0::", "5:memory:", "/", "/..", "\n", "\r", ":", " ", "docker", "user.slice", "slurm"),
        *("kubepods", ".slice", "kubepods-", "burstable", "-", f"pod{UID}", f"pod{SLICE}", ID),
        *(
            "cri-containerd-",
            ".scope",
            "system.slice",
            "slurmstepd.scope",
            "uid_1",
            "job_",
            "step_",
        ),
        *("7" * 40, "x" * 300, "٣", "\ufffd"),
    ]
)
TEXTS = st.lists(PARTS | st.text(max_size=5), max_size=40).map("".join)


@given(TEXTS)
def test_any_cgroup_has_an_owner_of_few_characters_or_none(text: str) -> None:
    assert set(re.findall(r"[^\W\d_]+", strange_container(text))) <= WORDS | {"a", "hex"}
    place = cgroup_owner(text)
    assert all(len(found) <= 64 for found in astuple(place))
    assert re.fullmatch(r"[0-9]{0,10}|s[0-9A-Z]{13}", place.slurm_job)
    folder, rest = sluid_folder(text)
    assert folder + rest in PARENT_FOLDERS.sub("/system.slice", text) or folder + rest in text
    cgroup.locate(text, LocalNode(Path("/")))


@given(TEXTS)
def test_nothing_below_the_cgroup_of_a_user_has_an_owner(text: str) -> None:
    assert cgroup_owner(f"0::{USERS}/" + text.replace("\n", "")) == CgroupOwner()


def a_process(root: Path, pid: int, path: str, name: str, uid: int, **environment: str) -> None:
    """Write what the kernel says of a process."""
    folder = root / f"proc/{pid}"
    folder.mkdir(parents=True)
    (folder / "cgroup").write_text(f"0::{path}\n", newline="")
    (folder / "environ").write_text("\0".join(f"{n}={v}" for n, v in environment.items()))
    (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n", newline="")
    stat = f"{pid} ({name}) S 70 1 1 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 1000 1\n"
    (folder / "stat").write_text(stat, newline="")
    (root / "etc").mkdir(exist_ok=True)
    accounts = "root:x:0:0::/root:/bin/sh\nmallory:x:1000:1000::/:/bin/sh\nbob:x:1001:1001::/:/\n"
    (root / "etc/passwd").write_text(accounts)


def owners_of(root: Path, *pids: int) -> GpuOwners:
    node = LocalNode(root)
    return GpuOwners(
        Census(node), MachineGpu(0, "GPU-aa", "0", pids), Settings(), Pods(node, Settings())
    )


def started_processes(root: Path, *pids: int) -> tuple[Started, ...]:
    """What is known of these processes."""
    detail = owners_of(root, *pids).read().detail
    assert isinstance(detail, OwnersDetail)
    return detail.processes


@pytest.mark.parametrize(
    ("path", "name", "environment", "owner"),
    [
        ("/user.slice", "python", {"SLURM_JOB_ID": "7"}, Owner(user="mallory")),
        ("/user.slice", "python", {"SLURM_JOB_USER": "alice"}, Owner(user="mallory")),
        (f"{USERS}/slurm/job_7", "python", {}, Owner(user="mallory")),
        (
            SLURM_JOB,
            "python",
            {"SLURM_JOB_ID": "7", "SLURM_JOB_USER": "alice"},
            Owner(user="mallory", slurm_job="42"),
        ),
        # a process may give itself any name of 15 characters, and only some of them are escaped
        ("/user.slice", "x\rUid:\t0\t", {}, Owner(user="mallory")),
        ("/user.slice", "x\x0cUid:\t0\t", {}, Owner(user="mallory")),
    ],
)
def test_a_process_is_its_user_s_whatever_it_says_of_itself(
    tmp_path: Path, path: str, name: str, environment: dict[str, str], owner: Owner
) -> None:
    a_process(tmp_path, 100, path, name, 1000, SLURM_STEP_ID="9", **environment)
    (found,) = started_processes(tmp_path, 100)
    assert found.owner == owner
    assert found.slurm_step == ("0" if owner.slurm_job else "")


def test_a_tenant_does_not_join_the_job_of_another(tmp_path: Path) -> None:
    for address in ("10.0.0.7", "localhost"):
        where = {"MASTER_ADDR": address, "MASTER_PORT": "29500"}
        root = tmp_path / address
        a_process(root, 100, "/user.slice", "python", 1000, **where)
        a_process(root, 101, "/user.slice", "python", 1001, **where)
        a_process(root, 102, "/user.slice", "python", 1001, **where)
        mallory, bob, same = started_processes(root, 100, 101, 102)
        assert mallory.job != bob.job == same.job


TITLE = "slurmstepd: [666.0]"


@pytest.mark.parametrize(
    ("where", "uid"),
    [
        (f"{SCOPE}/{SLUID}/step_0/user/task_0", 1000),
        # in his own job, as root: a program with the setuid bit, such as sudo at its prompt
        (f"{SCOPE}/{SLUID}/step_0/user/task_0", 0),
        (f"{SCOPE}/{SLUID}/step_0/user/task_0/{SLUID}/step_0/slurm", 0),
        (f"{SCOPE}/{SLUID}/step_0/user/task_0{SCOPE}/{SLUID}/step_0/slurm", 0),
        # where slurmstepd itself is, but not root: the script of srun --task-prolog
        (f"{SCOPE}/{SLUID}/step_0/slurm", 1000),
        (f"{USERS}{SCOPE}/{SLUID}/step_0/slurm", 0),
        (f"{SCOPE}/{OTHER}/step_0/slurm", 0),
    ],
)
@pytest.mark.parametrize("cgroups", [True, False])
def test_a_process_with_the_title_of_slurmstepd_names_no_job(
    tmp_path: Path, where: str, uid: int, cgroups: bool
) -> None:
    node = SlurmNode(tmp_path, cgroups=cgroups)
    pid = node.run(f"{SCOPE}/{SLUID}/step_0/user/task_0")
    node.run(where, TITLE, uid=uid)
    assert node.whose(pid).slurm_job == SLUID
    node.step("42", "batch")
    assert node.whose(pid).slurm_job == "42"


def test_where_two_titles_differ_neither_is_believed(tmp_path: Path) -> None:
    node = SlurmNode(tmp_path)
    pid = node.step("42", "0")
    node.run(f"{SCOPE}/{SLUID}/step_0/slurm", TITLE, uid=0)
    assert node.whose(pid).slurm_job == SLUID


def jobs_of(node: SlurmNode) -> dict[int, set[str] | None]:
    slurm = SlurmJobs(node.census, Settings())
    slurm.read()
    assert slurm.read().unread, "what is not believed is counted"
    return jobs_by_gpu(slurm, node)


def test_a_job_that_claims_the_gpu_of_another_does_not_have_it(tmp_path: Path) -> None:
    node = SlurmNode(tmp_path)
    node.hold(0, node.step("42", "batch", SLURM_JOB_GPUS="0"))
    node.step("666", "batch", folder=OTHER, SLURM_JOB_GPUS="0,1")
    found = jobs_of(node)
    assert found == {0: None, 1: {"666"}, 2: None, 3: None}, "42 is seen by its process"


def test_a_gpu_that_two_jobs_claim_is_given_to_neither(tmp_path: Path) -> None:
    node = SlurmNode(tmp_path)
    node.step("42", "batch", SLURM_JOB_GPUS="0,1")
    node.step("666", "batch", folder=OTHER, SLURM_JOB_GPUS="0")
    assert jobs_of(node) == {0: None, 1: {"42"}, 2: None, 3: None}


def test_a_process_that_says_to_be_of_another_job_claims_nothing_for_it(tmp_path: Path) -> None:
    node = SlurmNode(tmp_path)
    node.step("666", "batch", SLURM_JOB_ID="42", SLURM_JOB_GPUS="0")
    assert jobs_of(node) == dict.fromkeys(range(4))


def test_what_a_process_starts_claims_nothing(tmp_path: Path) -> None:
    node = SlurmNode(tmp_path)
    script = node.step("666", "batch")
    said = {"SLURM_JOB_ID": "666", "SLURM_JOB_GPUS": "0"}
    node.run(f"{SCOPE}/{SLUID}/step_batch/user/task_0", parent=script, environment=said)
    slurm = SlurmJobs(node.census, Settings())
    slurm.read()
    assert slurm.read().unread == ()
    assert jobs_by_gpu(slurm, node) == dict.fromkeys(range(4))


LONG_VALUE = "9" * 125_000


def test_what_a_gpu_s_processes_say_of_themselves_is_cut(tmp_path: Path) -> None:
    names = ("RANK", "WORLD_SIZE", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "MASTER_PORT")
    settings = ("NCCL_ALGO", "NCCL_DEBUG_FILE", "TORCH_NCCL_BLOCKING_WAIT", "NCCL_SOCKET_IFNAME")
    for pid in range(MAX_ITEMS):
        said = dict.fromkeys(names, LONG_VALUE) | dict.fromkeys(
            settings, f"{pid}{LONG_VALUE[:4000]}"
        )
        path = f"{USERS}/{'x' * 250}/slurm/uid_0/job_{LONG_VALUE[:100]}/step_{LONG_VALUE[:100]}"
        a_process(tmp_path, 100 + pid, path, "python", 1000, **said)
    source = owners_of(tmp_path, *range(100, 100 + MAX_ITEMS))
    samples = read_source(source)
    text = exported(samples)
    assert sum(sample.metric.name == "gpunode_nccl_setting_info" for sample in samples) == MAX_ITEMS
    assert len(text) < 50_000
    assert max(map(len, text.splitlines())) < 500
    assert all(
        len(found.job) < 300 for found in started_processes(tmp_path, *range(100, 100 + MAX_ITEMS))
    )


class Answering(OneGpu):
    """A node whose kubelet answers something."""

    def __init__(self, answer: list[Allocation]) -> None:
        super().__init__()
        self.answer = answer

    def allocations(self, socket: str) -> list[Allocation]:  # noqa: ARG002
        return self.answer


NAMES = st.text() | st.integers(0, 5000).map("x".__mul__)
DEVICES = (
    st.sampled_from(["GPU-aa", "GPU-aa::7", "nvidia0", "nvidia" + "0" * 5000, "gpu-0"]) | NAMES
)


@settings(max_examples=50)
@given(st.lists(st.builds(Allocation, NAMES, NAMES, NAMES, NAMES, DEVICES)))
def test_whatever_the_kubelet_answers_a_gpu_has_few_holders_with_short_names(
    answer: list[Allocation],
) -> None:
    node = Answering(answer * 20)
    pods = Pods(node, Settings())
    pods.read()
    gpu = MachineGpu(0, "GPU-aa", "0")
    found = pods.holders(gpu.identity) or []
    samples = GpuOwners(Census(node), gpu, Settings(), pods).read().samples
    assert sum(sample.metric is OWNER for sample in samples) <= ALLOCATIONS
    assert all(len(part) <= NAME for h in found for part in (h.namespace, h.pod, h.container))


SYSLOG = "/var/log/messages"
XID = "NVRM: Xid (PCI:0000:19:00): 79, pid=1, GPU has fallen off the bus."


def record(message: str, priority: int = 3) -> str:
    """A record of /dev/kmsg."""
    return f"{priority},339,5140900,-;{message}"


def line(message: str, tag: str = "kernel") -> str:
    """A line of a log file."""
    return f"Nov  1 12:00:00 node {tag}: [ 1234.567890] {message}"


LINES_OF_LOGS = [
    (KMSG, record(XID), "xid"),
    (KMSG, record("NVRM: Xid (PCI:0001:19:00 GPU-I:05 GPU-CI:01): 94, pid=1"), "xid"),
    (KMSG, "3,339,5140900,-,caller=T1;" + XID, "xid"),
    (SYSLOG, line(XID), "xid"),
    (SYSLOG, f"2026-11-22T05:23:32.123456+00:00 node.x.org kernel: {XID}", "xid"),
    (KMSG, record("Memory cgroup out of memory: Killed process 12 (python)"), "oom_kill"),
    (KMSG, record("oom-kill:constraint=CONSTRAINT_MEMCG,task=python"), None),
    (KMSG, record("traps: python[12] trap: bus error ip:7f"), "bus_error"),
    (KMSG, record("pcieport 0000:18:01.0: AER: Corrected error received"), "pcie_aer"),
    (KMSG, record("nvidia 0000:19:00.0: PCIe Bus Error: severity=Corrected"), None),
    (KMSG, record("INFO: task python:4242 blocked for more than 120 seconds."), "hung_task"),
    (KMSG, record("watchdog: BUG: soft lockup - CPU#3 stuck for 22s!"), "lockup"),
    (KMSG, record("rcu: INFO: rcu_sched detected stalls on CPUs/tasks:"), "lockup"),
    (KMSG, record("EXT4-fs (sda1): Remounting filesystem read-only"), "read_only"),
    (KMSG, record("blk_update_request: I/O error, dev sda, sector 0"), "disk_error"),
    (KMSG, record("I/O error, dev nvme0n1, sector 0 op 0x0:(READ)"), "disk_error"),
    (
        KMSG,
        record("mlx5_core 0000:1c:00.0: Port module event: module 0, Cable unplugged"),
        "link_down",
    ),
    # written to /dev/kmsg by a program: the kernel gives it another facility
    (KMSG, record(XID, 8 + 3), None),
    (KMSG, record(XID, 24 + 3), None),
    (KMSG, XID, None),
    (KMSG, f" {XID}", None),
    (KMSG, line(XID), None),
    # the name of a cgroup, a process or a file
    (KMSG, record(f"oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/user/{XID}"), None),
    (KMSG, record(f"Tasks in /user.slice/{XID} are going to be killed"), None),
    (KMSG, record(f"Out of memory: Killed process 12 ({XID})"), "oom_kill"),
    (KMSG, record("NVRM: Xid (PCI:[12]: segfault at 0 ip 0 sp 0 error 4 in a"), None),
    (KMSG, record("NVRM: GSP[12]: segfault at 0 ip 0 sp 0 error 4 in a"), None),
    (KMSG, record("NVRM: failed invoked oom-killer: gfp_mask=0x0"), None),
    (KMSG, record("LustreError: x (12): drop_caches: 3"), None),
    (KMSG, record("I/O error, dev [12]: segfault at 0 ip 0 sp 0 error 4 in a"), None),
    (KMSG, record(f"python[12]: segfault at 0 ip 0 sp 0 error 4 in \\x0a{XID}[0+1]"), None),
    # what a program logs
    (SYSLOG, line(XID, "kernel[12]"), None),
    (SYSLOG, line(XID, "mallory"), None),
    (SYSLOG, line(f"kernel: {XID}", "mallory"), None),
    (SYSLOG, f"x {line(XID)}", None),
    (SYSLOG, XID, None),
    (SYSLOG, record(XID), None),
]


def test_a_line_counts_if_the_kernel_begins_it() -> None:
    for path, text, kind in LINES_OF_LOGS:
        message = message_of(path, text)
        assert (None if message is None else kind_of(message)) == kind, text


OF_PROCESSES = (
    "{}[12]: segfault at 0 ip 0 sp 0 error 4 in a failed timeout",
    "{} invoked oom-killer: gfp_mask=0x0, order=0, oom_score_adj=0",
    "{}: page allocation failure: order:0, mode:0x0",
    "{} (12): drop_caches: 3",
    "{} (12) used greatest stack depth: 12 bytes left, error",
    "{}: attempt to access beyond end of device",
)
"""What the kernel says of processes, with their names of up to 15 characters."""


@pytest.mark.parametrize("form", OF_PROCESSES)
def test_the_name_of_a_process_makes_no_line_one_of_a_driver(form: str, tmp_path: Path) -> None:
    kernel = KernelLog(a_node(tmp_path, "0000:19:00.0"), Settings())
    own = {"disk_error"} if "attempt" in form else set()
    for told_of in [*(text for texts in LINES.values() for text in texts), *UNKNOWN]:
        for length in range(1, 16):
            message = form.format(told_of[:length])
            assert {kind_of(message)} <= {None, *own}, message
            assert (
                list(kernel._count_event([KernelLine(message, 3, 0.0, driver_of(message))])) == []
            ), message


def a_node(root: Path, *bus_ids: str) -> LocalNode:
    """A node with some GPUs."""
    for bus_id in bus_ids:
        folder = root / "sys/bus/pci/devices" / bus_id
        folder.mkdir(parents=True)
        (folder / "vendor").write_text("0x10de\n")
        (folder / "class").write_text("0x030200\n")
    for name in ("dev", "var/log"):
        (root / name).mkdir(parents=True)
    return LocalNode(root)


def append(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(f"{text}\n" for text in lines)


def xids_in(text: str) -> dict[tuple[str, str], float]:
    """The XIDs in an exposition by PCI address and number."""
    found = parse(text + "\n")
    return {
        (dict(labels)["bus_id"], dict(labels)["xid"]): value
        for (name, labels), value in found.items()
        if name == "gpunode_kernel_log_xid_errors_total"
    }


def test_forged_xids_are_of_no_other_gpu_and_leave_room_for_true_ones(tmp_path: Path) -> None:
    kernel = KernelLog(a_node(tmp_path, "0000:19:00.0", "0000:3b:00.0"), Settings())
    path = tmp_path / SYSLOG[1:]
    path.write_text("")
    read_source(kernel)
    forged = [f"NVRM: Xid (PCI:0000:{bus:02x}:00): 31, x" for bus in range(64, 256)]
    forged += [f"NVRM: Xid (PCI:0000:3b:00): {number}, x" for number in range(10_000, 11_000)]
    append(path, *(line(text) for text in [*forged, XID, XID.replace("19:", "3b:")]))
    found = xids_in(exported(read_source(kernel)))
    assert found.pop(("0000:19:00.0", "79")) == 1
    assert found.pop(("0000:3b:00.0", "79")) == 1
    assert {bus_id for bus_id, _ in found} == {"0000:3b:00.0"}
    assert sum(found.values()) == 1000
    assert len(found) <= MAX_ITEMS + len(ALWAYS_COUNTED) + 1


def test_a_program_that_writes_to_the_kernel_log_is_not_the_kernel(tmp_path: Path) -> None:
    if not os.access(KMSG, os.R_OK | os.W_OK):
        pytest.skip("only root may write to the kernel log")
    node = a_node(tmp_path, "0000:19:00.0")
    (tmp_path / "dev/kmsg").symlink_to(KMSG)
    kernel = KernelLog(node, Settings())
    try:
        read_source(kernel)
        Path(KMSG).write_text(f"<3>{XID}\n")
    except OSError as error:
        pytest.skip(f"no kernel log on this machine: {error}")
    assert xids_in(exported(read_source(kernel))) == {}


def removed(path: Path) -> None:
    path.unlink()


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def cut_short(path: Path) -> None:
    path.write_text("")


@pytest.mark.parametrize("spoil", [removed, a_folder, a_pipe, a_loop, endless, cut_short])
def test_a_kernel_log_that_goes_bad_keeps_its_counts_and_is_followed_again(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    kernel = KernelLog(a_node(tmp_path, "0000:19:00.0"), Settings())
    path = tmp_path / SYSLOG[1:]
    path.write_text(f"{line(XID)}\n")
    at = "0000:19:00.0", "79"
    read_source(kernel)
    append(path, line(XID))
    assert xids_in(exported(read_source(kernel))) == {at: 1}
    spoil(path)
    for _ in range(3):
        assert xids_in(exported(read_source(kernel))) == {at: 1}
    if path.is_dir():
        shutil.rmtree(path)
    elif path.is_symlink() or path.is_fifo():
        path.unlink()
    append(path, line(XID))
    assert xids_in(exported(read_source(kernel))) == {at: 2}
    append(path, line(XID))
    text = exported(read_source(kernel))
    assert xids_in(text) == {at: 3}
    assert 'gpunode_kernel_log_info{path="/var/log/messages"} 1.0' in text


def test_another_log_does_not_count_again_what_was_counted(tmp_path: Path) -> None:
    kernel = KernelLog(a_node(tmp_path, "0000:19:00.0"), Settings())
    kmsg, path = tmp_path / KMSG[1:], tmp_path / SYSLOG[1:]
    path.write_text("")
    read_source(kernel)
    append(path, line(XID))
    read_source(kernel)
    append(path, line(XID))
    append(kmsg, record(XID), record(XID))
    assert xids_in(exported(read_source(kernel))) == {("0000:19:00.0", "79"): 1}
    append(kmsg, record(XID))
    assert xids_in(exported(read_source(kernel))) == {("0000:19:00.0", "79"): 2}


BYTES = st.lists(
    st.binary(max_size=20)
    | st.sampled_from(
        [
            *(
                b"3,1,2,-;",
                b"Nov  1 12:00:00 n kernel: ",
                XID.encode(),
                b"\n",
                b" ",
                b"\r",
                b"\x0c",
            ),
            *(b"NVRM: ", b"LustreError: ", b"oom-kill:", b"[12]: ", b"\xe2\x80\xa8", b"x" * 5000),
        ]
    ),
    max_size=30,
).map(b"".join)


@given(BYTES)
@settings(max_examples=50)
def test_any_kernel_log_is_read_and_few_things_are_told_of_it(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kernel = KernelLog(a_node(Path(folder), "0000:19:00.0"), Settings())
        path = Path(folder) / KMSG[1:]
        path.write_bytes(b"")
        read_source(kernel)
        with path.open("ab") as file:
            file.write(content + b"\n")
        text = exported(read_source(kernel))
    true = [
        part for part in content.split(b"\n") if re.match(rb"3,1,2,-;NVRM: Xid \(P.+: 79,", part)
    ]
    assert sum(xids_in(text).values()) == len(true)
    assert len(text) < 5000


def logged(message: object, *arguments: object, at: float = 0.0) -> logging.LogRecord:
    record = logging.LogRecord("gpunode.x", logging.WARNING, "x.py", 1, message, arguments, None)
    record.created = at
    return record


FORGED_LINES = [
    ("x\n2026-11-22 ERROR gpunode: forged", "x\\n2026-11-22 ERROR gpunode: forged"),
    ("a\rb\tc\0d", "a\\rb\\tc\\x00d"),
    ("\x1b]0;title\x07\x1b[2J", "\\x1b]0;title\\x07\\x1b[2J"),
    ("\x9b31m\x85", "\\x9b31m\\x85"),
    ("\u202egnp.exe\u2066\u200f\ufeff", "\\u202egnp.exe\\u2066\\u200f\\ufeff"),
    ("\u2028\u2029\x0b\x0c", "\\u2028\\u2029\\x0b\\x0c"),
    ("\ud800", "\\ud800"),
    ("작업 Größe 🙂 %s", "작업 Größe 🙂 %s"),
]


def test_a_line_of_the_log_is_one_line_and_shows_what_is_in_it() -> None:
    for said, shown in FORGED_LINES:
        assert (
            OneLineFormatter().format(logged("%s", said)).endswith(f" WARNING gpunode.x: {shown}")
        ), shown
        assert OneLineFormatter().format(logged(said)).endswith(f" WARNING gpunode.x: {shown}"), (
            shown
        )


@given(st.text() | st.text().map(lambda text: text * 1000))
def test_a_line_of_the_log_is_short_and_prints_as_itself(said: str) -> None:
    found = OneLineFormatter().format(logged("%s", said))
    assert len(found) <= cli_log.MAX_LINE
    assert found.isprintable()


def test_a_traceback_stays_readable_and_forges_no_line() -> None:
    try:
        raise ValueError("\n2026-11-22 ERROR gpunode: forged\x1b[2J" * 10_000)
    except ValueError as error:
        record = logged("failed")
        record.exc_info = type(error), error, error.__traceback__
    first, *rest = OneLineFormatter().format(record).split("\n")
    assert first.endswith("gpunode.x: failed")
    assert rest[0] == "    Traceback (most recent call last):"
    assert "in test_a_traceback_stays_readable_and_forges_no_line" in rest[1]
    assert all(line.startswith("    ") and line.isprintable() for line in rest)
    assert len(rest) <= cli_log.TRACEBACK


def test_what_repeats_is_logged_ever_more_seldom(capfd: pytest.CaptureFixture[str]) -> None:
    handler = StandardError()
    for second in range(100_000):
        handler.handle(logged("GPU %s: XID %d", "0", 13, at=float(second)))
        if second == 50_000:
            handler.handle(logged("GPU %s: XID %d", "0", 79, at=float(second)))
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 18
    assert lines[1].endswith(": 2 times: GPU 0: XID 13")
    assert sum(line.endswith(": GPU 0: XID 79") for line in lines) == 1
    handler.handle(logged("GPU %s: XID %d", "0", 79, at=100_000.0))
    assert capfd.readouterr().err.endswith(": GPU 0: XID 79\n"), "after hours it is news again"


def test_a_complaint_that_is_new_each_time_fills_no_disk(
    capfd: pytest.CaptureFixture[str],
) -> None:
    handler = StandardError()
    for second in range(7000):
        handler.handle(logged("%s%s", second, LONG_VALUE, at=second / 2))
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == cli_log.MAX_LINES
    assert "more than 1000 lines in an hour" in lines[-1]
    handler.handle(logged("again", at=3700.0))
    assert capfd.readouterr().err.endswith("gpunode.x: again\n")


@pytest.fixture
def hostile() -> Iterator[int]:
    """A real process that says of itself what it likes."""
    said = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_USER": "alice",
        "NCCL_DEBUG_FILE": f"\n\x1b[2J{LONG_VALUE}",
    }
    with subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"], **said}) as process:
        yield process.pid
        process.kill()


def test_a_daemon_tells_and_logs_of_a_hostile_process_what_the_kernel_says(
    fake: FakeDriver, hostile: int, capfd: pytest.CaptureFixture[str]
) -> None:
    fake.write(f"gpu 0 process {hostile} 1000000000\n")
    with watching(fake, "--gpu.owners-interval=1") as running:
        labels = until(lambda: owner_in(running.get("/metrics").decode()))
        size = len(running.get("/metrics"))
    assert labels["user"] == pwd.getpwuid(os.getuid()).pw_name
    assert labels["slurm_job"] == ""
    assert size < 500_000
    errors = capfd.readouterr().err.splitlines()
    assert all(text.isprintable() and len(text) <= cli_log.MAX_LINE for text in errors)


def owner_in(text: str) -> dict[str, str] | None:
    """The labels of the owner of a GPU, once it is exported."""
    found = (dict(labels) for name, labels in parse(text) if name == "gpunode_gpu_owner_info")
    return next(found, None)
