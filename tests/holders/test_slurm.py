"""The number of a Slurm job, and the GPUs that Slurm gave it, from the files of a node."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.config.daemon import Settings, SlurmSettings
from gpunode.driver.driver import Identity
from gpunode.gpu.activity import GpuActivity
from gpunode.holders.pods import Pods
from gpunode.holders.slurm import MAX_GPUS, MAX_JOBS, SlurmJobs, parse_gpus, parse_job_file
from gpunode.holders.slurmstepd import MAX_CANDIDATES, parse_pids, parse_title
from gpunode.jobs.owners import GpuOwners
from gpunode.metric import Distribution
from gpunode.source import Absent, Finder, Place, Source
from gpunode.sources import finders
from tests.cases import with_each
from tests.holders.proc import Card
from tests.holders.slurm import OTHER, SCOPE, SLUID, SlurmNode, jobs_by_gpu
from tests.machine import MACHINES, Machine, exported, read_source

POD = (
    "/kubepods.slice/kubepods-pod0a0a0a0a_0000_0000_0000_000000000001.slice/"
    f"cri-containerd-{'a' * 64}.scope"
)


@pytest.fixture
def node(tmp_path: Path) -> SlurmNode:
    return SlurmNode(tmp_path)


def slurm_on(node: SlurmNode, folder: str = "") -> SlurmJobs:
    return SlurmJobs(node.census, Settings(slurm=SlurmSettings(jobs_folder=folder)))


def unread(slurm: SlurmJobs) -> list[tuple[str, str]]:
    """What two reads did not understand: after one, it may be a job that begins or ends."""
    slurm.read()
    return [(one.kind.what, one.example) for one in slurm.read().unread]


@pytest.mark.parametrize(
    "scope",
    [
        SCOPE,
        "/hpc.slice/slurmstepd.scope",
        "/system.slice/node-7_slurmstepd.scope",
        f"{POD}/system.slice/slurmstepd.scope",
    ],
)
@pytest.mark.parametrize("cgroups", [True, False])
def test_a_job_whose_folder_is_a_sluid_has_its_number(
    tmp_path: Path, scope: str, cgroups: bool
) -> None:
    node = SlurmNode(tmp_path, cgroups=cgroups)
    tasks = [node.step("4301", step, scope=scope) for step in ("batch", "0", "extern")]
    other = node.step("7", "0", folder=OTHER, scope=scope)
    assert [node.whose(pid).slurm_job for pid in tasks] == ["4301"] * 3
    assert node.whose(tasks[1]).slurm_step == "0"
    assert node.whose(other).slurm_job == "7"


def test_a_job_that_no_slurmstepd_names_keeps_its_sluid_and_is_counted(node: SlurmNode) -> None:
    pid = node.run(f"{SCOPE}/{SLUID}/step_0/user/task_0", environment={"SLURM_JOB_ID": "4301"})
    assert node.whose(pid).slurm_job == SLUID
    assert unread(slurm_on(node)) == [("slurm_job_folder", SLUID)]


@pytest.mark.attack
def test_of_any_number_of_processes_few_are_asked_for_the_number_of_a_job(tmp_path: Path) -> None:
    node = SlurmNode(tmp_path, cgroups=False)
    task = node.step("4301", "0")
    shared = tmp_path / "shared"
    shared.write_text("0::/user.slice\n")
    for pid in range(1000, 1000 + 2 * MAX_CANDIDATES):  # its tenant starts ever more
        (tmp_path / f"proc/{pid}").mkdir()
        (tmp_path / f"proc/{pid}/cgroup").hardlink_to(shared)
    asked: list[str] = []
    read = node.node.read_text
    node.node.read_text = lambda path: asked.append(path) or read(path)  # type: ignore[func-returns-value, method-assign]
    assert node.whose(task).slurm_job == "4301"
    assert len(asked) <= MAX_CANDIDATES + 10


def test_a_folder_of_a_form_that_is_not_known_is_counted_by_its_shape(node: SlurmNode) -> None:
    pid = node.run(f"{SCOPE}/alices_run_9/step_0/user/task_0")
    assert node.whose(pid).slurm_job == ""
    assert unread(slurm_on(node)) == [("slurm_job_folder", "a_a_0")]


def test_what_slurm_left_behind_is_not_counted(node: SlurmNode) -> None:
    left = node.folder(f"{SCOPE}/{SLUID}")
    (left / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    node.folder(f"{SCOPE}/{SLUID}/step_0/slurm")
    slurm = slurm_on(node)
    assert unread(slurm) == []
    assert 'gpunode_slurm_jobs{gpus="known"} 0.0' in exported(read_source(slurm))


def test_the_gpus_of_a_batch_job_are_its_own_whether_or_not_it_uses_them(node: SlurmNode) -> None:
    node.step("4301", "batch", SLURM_JOB_GPUS="0,2")
    node.hold(0, node.step("4301", "0", SLURM_STEP_GPUS="0"))
    slurm = slurm_on(node)
    text = exported(read_source(slurm))
    assert jobs_by_gpu(slurm, node) == {0: {"4301"}, 1: None, 2: {"4301"}, 3: None}
    assert 'gpunode_slurm_jobs{gpus="known"} 1.0' in text
    assert slurm.owners(node.gpu(2))[0].user == "kim"  # type: ignore[index]
    assert unread(slurm) == []


def test_a_step_without_a_script_tells_its_own_gpus(node: SlurmNode) -> None:
    # SLURM_JOB_GPUS came with srun from the node of the script.
    node.step("4301", "0", SLURM_JOB_GPUS="3", SLURM_STEP_GPUS="1")
    slurm = slurm_on(node)
    slurm.read()
    assert jobs_by_gpu(slurm, node) == {0: None, 1: {"4301"}, 2: None, 3: None}


def test_a_job_without_gpus_has_none_and_is_not_counted(node: SlurmNode) -> None:
    node.step("4301", "batch")
    slurm = slurm_on(node)
    assert unread(slurm) == []
    assert jobs_by_gpu(slurm, node) == dict.fromkeys(range(4))


def test_a_job_that_says_nothing_for_long_is_counted(node: SlurmNode) -> None:
    node.step("4301", "extern")
    slurm = slurm_on(node)
    assert slurm.read().unread == (), "it may be about to begin"
    assert unread(slurm) == [("slurm_job_gpus", "job 4301")]
    node.hold(1, node.run(f"{SCOPE}/{SLUID}/step_extern/user/task_special"))
    node.clock.now += 10
    assert unread(slurm) == [], "its GPU is seen"


def test_where_environments_cannot_be_read_nothing_is_counted(node: SlurmNode) -> None:
    pid = node.step("4301", "batch", SLURM_JOB_GPUS="0")
    environ = node.root / f"proc/{pid}/environ"
    environ.unlink()
    environ.symlink_to(environ.name)
    slurm = slurm_on(node)
    assert unread(slurm) == []
    assert 'gpunode_slurm_jobs{gpus="unknown"} 1.0' in exported(read_source(slurm))


def test_a_node_without_gpus_counts_no_job(tmp_path: Path) -> None:
    node = SlurmNode(tmp_path, cards=[])
    node.step("4301", "extern")
    slurm = slurm_on(node)
    assert unread(slurm) == []


@pytest.mark.parametrize("gpus", ["4", "x", "0,,1", "0-3", ",".join(map(str, range(MAX_GPUS + 1)))])
def test_gpus_that_are_not_understood_are_counted_and_given_to_nobody(
    node: SlurmNode, gpus: str
) -> None:
    node.step("4301", "batch", SLURM_JOB_GPUS=gpus)
    slurm = slurm_on(node)
    (what, example), *_ = unread(slurm)
    assert (what, example[:8]) == ("slurm_job_gpus", "job 4301")
    assert not any(jobs_by_gpu(slurm, node).values())


def test_an_index_is_no_gpu_where_slurm_may_count_otherwise(tmp_path: Path) -> None:
    node = SlurmNode(tmp_path)
    node.cards[1].identity = Identity(1, "GPU-1", "NVIDIA H200", minor=3)
    node.step("4301", "batch", SLURM_JOB_GPUS="0,1")
    slurm = slurm_on(node)
    assert unread(slurm) == [("slurm_job_gpus", "job 4301: no GPU that is 0")]
    assert jobs_by_gpu(slurm, node)[0] == {"4301"}
    assert jobs_by_gpu(slurm, node)[1] is None


def test_a_mig_instance_is_known_by_its_uuid_alone(tmp_path: Path) -> None:
    node = SlurmNode(tmp_path, [Card(), Card(1)])
    uuid = "MIG-0a0a0a0a-0000-0000-0000-000000000001"
    node.cards[1].identity = Identity(0, uuid, "NVIDIA H200", parent="GPU-0", mig=True)
    node.step("4301", "batch", SLURM_JOB_GPUS="1", CUDA_VISIBLE_DEVICES=uuid)
    slurm = slurm_on(node)
    assert unread(slurm) == []
    assert [slurm.owners(card.identity) is not None for card in node.cards] == [False, True]
    node.step("7", "batch", folder=OTHER, SLURM_JOB_GPUS="0")
    assert unread(slurm) == [("slurm_job_gpus", "job 7: no GPU that is 0")]


def write_job(node: SlurmNode, number: str, gpus: str, uid: str = "1000", cuda: str = "") -> None:
    folder = node.root / "run/slurm-jobs"
    folder.mkdir(parents=True, exist_ok=True)
    text = f"SLURM_JOB_UID={uid}\nSLURM_JOB_GPUS={gpus}\nCUDA_VISIBLE_DEVICES={cuda}\n"
    (folder / number).write_text(text)


def test_files_of_a_prolog_tell_of_all_gpus(node: SlurmNode) -> None:
    write_job(node, "4301", "0,1")
    write_job(node, "7", "1", uid="4242")  # shares a GPU
    write_job(node, "8", "")
    node.step("4301", "extern")
    slurm = slurm_on(node, "/run/slurm-jobs")
    assert unread(slurm) == []
    assert jobs_by_gpu(slurm, node) == {0: {"4301"}, 1: {"4301", "7"}, 2: set(), 3: set()}
    (node.root / "run/slurm-jobs/4301").unlink()
    assert unread(slurm) == [("slurm_job_gpus", "job 4301")], "it is there without a file"
    assert jobs_by_gpu(slurm, node) == {0: None, 1: {"7"}, 2: None, 3: None}


def test_files_of_more_jobs_than_are_read_are_counted(node: SlurmNode) -> None:
    for number in range(1, MAX_JOBS + 2):
        write_job(node, str(number), "")
    slurm = slurm_on(node, "/run/slurm-jobs")
    said = f"{MAX_JOBS + 1} files of Slurm's jobs, {MAX_JOBS} are read"
    assert unread(slurm) == [("slurm_jobs", said)]
    assert set(jobs_by_gpu(slurm, node).values()) == {None}, "one of those left out may have it"


DOCUMENT = Path(__file__).parents[2] / "docs/slurm.md"


def test_the_scripts_of_the_document_write_and_remove_such_a_file(node: SlurmNode) -> None:
    scripts = re.findall(r"```sh\n(#!.+?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(scripts) == 2
    prolog, epilog = (text.replace("/run/slurm-jobs", f"{node.root}/run/jobs") for text in scripts)
    said = {"SLURM_JOB_ID": "4301", "SLURM_JOB_UID": "1000", "PATH": os.environ["PATH"]}
    slurm = slurm_on(node, "/run/jobs")

    def after(script: str, **more: str) -> dict[int, set[str] | None]:
        hostile = {"SLURM_JOB_NAME": "x\nSLURM_JOB_GPUS=3"}
        subprocess.run(["sh", "-euc", script], env={**said, **hostile, **more}, check=True)
        assert unread(slurm) == []
        return jobs_by_gpu(slurm, node)

    nobody: dict[int, set[str] | None] = {gpu: set() for gpu in range(4)}
    assert after(prolog, SLURM_JOB_GPUS="0", CUDA_VISIBLE_DEVICES="0") == {**nobody, 0: {"4301"}}
    assert after(epilog) == nobody
    no_gpu = {"SLURM_JOB_GPUS": "", "CUDA_VISIBLE_DEVICES": ""}
    assert after(prolog, **no_gpu) == nobody
    assert ends(slurm) == {}
    after(prolog, **no_gpu, SLURM_JOB_END_TIME="1795000000")
    assert ends(slurm) == {"4301": 1795000000.0}
    after(epilog)
    assert ends(slurm) == {}


def ends(slurm: SlurmJobs) -> dict[str, float | Distribution]:
    """When jobs end, by their numbers."""
    name = "gpunode_slurm_job_end_timestamp_seconds"
    return {one.labels[0]: one.value for one in slurm.read().samples if one.metric.name == name}


@pytest.mark.parametrize("text", ["soon", "-1", "0", "1e9", "123456789012"])
def test_a_time_that_is_none_is_counted(node: SlurmNode, text: str) -> None:
    write_job(node, "4301", "0")
    with (node.root / "run/slurm-jobs/4301").open("a") as file:
        file.write(f"SLURM_JOB_END_TIME={text}\n")
    slurm = slurm_on(node, "/run/slurm-jobs")
    assert unread(slurm) == [("slurm_job_gpus", "job 4301")]
    assert ends(slurm) == {}


def test_files_are_believed_before_environments(node: SlurmNode) -> None:
    write_job(node, "4301", "0")
    node.step("4301", "batch", SLURM_JOB_GPUS="0,1,2,3")
    slurm = slurm_on(node, "/run/slurm-jobs")
    slurm.read()
    assert jobs_by_gpu(slurm, node) == {0: {"4301"}, 1: set(), 2: set(), 3: set()}


def test_a_gpu_whose_driver_fails_stays_with_its_job(node: SlurmNode) -> None:
    write_job(node, "4301", "0")
    node.cards[0].fails = True
    slurm = slurm_on(node, "/run/slurm-jobs")
    assert unread(slurm) == []
    assert jobs_by_gpu(slurm, node)[0] == {"4301"}


@pytest.mark.parametrize("text", ["", "x", "SLURM_JOB_GPUS=0", "SLURM_JOB_UID=1\nSLURM_JOB_UID=2"])
def test_a_file_that_is_not_understood_is_counted(node: SlurmNode, text: str) -> None:
    write_job(node, "4301", "0")
    (node.root / "run/slurm-jobs/4301").write_text(text)
    slurm = slurm_on(node, "/run/slurm-jobs")
    assert unread(slurm) == [("slurm_job_gpus", "job 4301")]
    assert jobs_by_gpu(slurm, node) == dict.fromkeys(range(4))


def test_before_the_first_job_no_folder_means_no_job(node: SlurmNode) -> None:
    slurm = slurm_on(node, "/run/slurm-jobs")
    assert unread(slurm) == []
    assert jobs_by_gpu(slurm, node) == {gpu: set() for gpu in range(4)}


def test_an_old_answer_is_no_answer(node: SlurmNode) -> None:
    write_job(node, "4301", "0")
    slurm = slurm_on(node, "/run/slurm-jobs")
    slurm.read()
    node.clock.now += 3 * slurm.every + 1
    assert jobs_by_gpu(slurm, node) == dict.fromkeys(range(4))


def test_version_1_of_cgroups_tells_the_same(node: SlurmNode) -> None:
    step = "/freezer/slurm/uid_1000/job_17/step_batch"
    node.run(f"{step}", "slurmstepd: [17.batch]", uid=0)
    node.run(f"{step}/task_0", environment={"SLURM_JOB_ID": "17", "SLURM_JOB_GPUS": "2"})
    node.folder("/freezer/slurm/uid_1000/job_18/step_extern/task_0")  # has ended
    slurm = slurm_on(node)
    assert unread(slurm) == []
    assert jobs_by_gpu(slurm, node) == {0: None, 1: None, 2: {"17"}, 3: None}


def test_version_1_without_the_plug_in_of_tasks_tells_the_same(node: SlurmNode) -> None:
    """As Slurm 22.05 does with ProctrackType=proctrack/cgroup and TaskPlugin=task/none."""
    job = "/freezer/slurm_node1/uid_1000/job_17"
    stepd = node.run(job, "slurmstepd: [17.batch]", uid=0)
    said = {"SLURM_JOB_ID": "17", "SLURM_JOB_GPUS": "2"}
    script = node.run(f"{job}/step_batch", parent=stepd, environment=said)
    node.run(f"{job}/step_batch", parent=script, environment={})
    slurm = slurm_on(node)
    assert unread(slurm) == []
    assert jobs_by_gpu(slurm, node) == {0: None, 1: None, 2: {"17"}, 3: None}


def test_a_process_of_a_pod_s_job_that_has_no_number_is_counted(node: SlurmNode) -> None:
    node.hold(0, node.run(f"{POD}{SCOPE}/{SLUID}/step_0/user/task_0"))
    assert unread(slurm_on(node)) == []
    source = source_of(node, None, 0)
    assert [one.example for one in source.read().unread] == [SLUID]


def source_of(node: SlurmNode, slurm: SlurmJobs | None, gpu: int) -> GpuOwners:
    pods = Pods(node.node, Settings())
    return GpuOwners(node.census, node.cards[gpu], Settings(), pods, slurm)  # type: ignore[arg-type]


def owners(node: SlurmNode, slurm: SlurmJobs, gpu: int) -> list[str]:
    source = source_of(node, slurm, gpu)
    names = ("gpunode_gpu_owner_info", "gpunode_gpu_allocated")
    return [line for line in exported(read_source(source)).splitlines() if line.startswith(names)]


def owner(gpu: int, job: str, user: str, via: str, workload: str = "") -> str:
    return (
        f'gpunode_gpu_owner_info{{gpu="{gpu}",owner_container="",owner_namespace="",owner_pod="",'
        f'replica="",slurm_job="{job}",user="{user}",uuid="GPU-{gpu}",via="{via}",'
        f'workload="{workload}"}} 1.0'
    )


def test_a_gpu_that_a_job_has_and_does_not_use_is_exported_as_such(node: SlurmNode) -> None:
    write_job(node, "4301", "0,1")
    node.hold(0, node.step("4301", "0"))
    slurm = slurm_on(node, "/run/slurm-jobs")
    slurm.read()
    for gpu in (0, 1):
        assert owners(node, slurm, gpu) == [
            f'gpunode_gpu_allocated{{gpu="{gpu}",uuid="GPU-{gpu}"}} 1.0',
            owner(gpu, "4301", "kim", "slurm", "slurm-4301"),
        ]
        assert slurm.gave(node.gpu(gpu))
    assert owners(node, slurm, 2) == ['gpunode_gpu_allocated{gpu="2",uuid="GPU-2"} 0.0']
    assert not slurm.gave(node.gpu(2))


def test_the_ledger_books_what_a_job_has_and_does_not_use_as_idle() -> None:
    machine = Machine(MACHINES / "slurm_sluid")
    found = [(p.gpu, s) for finder in finders(machine, Settings()) for p, s in _find(finder)]
    (slurm,) = (source for _, source in found if source.name == "slurm")
    slurm.read()
    activities = {gpu: source for gpu, source in found if isinstance(source, GpuActivity)}
    for activity in activities.values():
        activity.read()
    machine.clock.now += 2
    for activity in activities.values():
        activity.read()
    spent = {
        gpu: {state for state, seconds in activity.seconds.items() if seconds}
        for gpu, activity in activities.items()
    }
    assert spent == {"0": {"unknown"}, "1": {"idle"}, "2": {"idle"}, "3": {"free"}}


def _find(finder: Finder) -> list[tuple[Place, Source]]:
    with contextlib.suppress(Absent):
        return list(finder.find())
    return []


def test_a_process_of_another_on_a_job_s_gpu_is_a_second_owner(node: SlurmNode) -> None:
    write_job(node, "4301", "0")
    node.hold(0, node.run("/user.slice", uid=4242))
    slurm = slurm_on(node, "/run/slurm-jobs")
    slurm.read()
    found = owners(node, slurm, 0)
    assert owner(0, "4301", "kim", "slurm") in found
    assert owner(0, "", "4242", "process") in found


@with_each(
    [
        ("slurmstepd: [3385.0]", "3385"),
        ("slurmstepd: [3385.extern stepmgr]\0\0", "3385"),
        ("slurmstepd: [3385.0+1]", "3385"),
        ("slurmstepd: [3385.TBD]", None),
        ("slurmstepd: [sEKNKTV3WPV500.0]", None),
        ("slurmstepd: [3385.extern:namespace]", None),
        ("slurmstepd: [0.0]", None),
        ("slurmstepd: [Invalid]", None),
        ("slurmstepd", None),
        ("slurmstepd\0infinity", None),
        ("python3\0slurmstepd: [3385.0]", None),
    ]
)
def test_a_title_has_the_number_of_a_job_or_none(title: str, job: str | None) -> None:
    if job is None:
        with pytest.raises(ValueError, match="title"):
            parse_title(title)
    else:
        assert parse_title(title) == job


@given(st.lists(st.integers(0, 999), max_size=MAX_GPUS))
def test_any_list_of_indices_is_read(indices: list[int]) -> None:
    text = ",".join(map(str, indices))
    assert parse_gpus(text, text) == tuple(dict.fromkeys(map(str, indices)))
    found = parse_job_file(f"SLURM_JOB_UID=7\nSLURM_JOB_GPUS={text}\n")
    assert (found.uid, found.gpus) == ("7", parse_gpus(text, ""))


@given(st.lists(st.integers(0, 1 << 22), unique=True))
def test_any_list_of_processes_is_read(pids: list[int]) -> None:
    assert parse_pids("".join(f"{pid}\n" for pid in pids)) == [pid for pid in pids if pid]
