"""Which job a pod, a Slurm job or a user's process is part of, and that of a GPU that is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.config.daemon import Settings
from gpunode.holders.job_name import JobNames, pod_job
from gpunode.holders.owner import Owner, Started
from gpunode.holders.pods import Pods
from gpunode.jobs.owners import GpuOwners
from gpunode.loop import Loop
from gpunode.node.kubelet import Allocation
from gpunode.source import Place, Reading, Source
from tests.cases import with_each
from tests.holders.proc import Proc
from tests.machine import exported

PODS = (
    ("Kubeflow's PyTorchJob", "llm-master-0", "llm", ""),
    ("Kubeflow's PyTorchJob", "llm-worker-13", "llm", ""),
    ("Kubeflow's TFJob", "mnist-chief-0", "mnist", ""),
    ("Kubeflow's MPIJob", "bert-launcher-x7k2p", "bert", ""),
    ("Kubeflow's Trainer 2", "qwen-node-0-1-x7k2p", "qwen", ""),
    ("a JobSet", "llama-workers-0-3-x7k2p", "llama", ""),
    ("an indexed Job", "train-11-x7k2p", "train", ""),
    ("a Job", "train-x7k2p", "train", "x7k2p"),
    ("a CronJob", "nightly-28012345-x7k2p", "nightly", "28012345-x7k2p"),
    ("a StatefulSet", "trainer-7", "trainer", ""),
    ("a Deployment", "vllm-7c9f5d6b4-x2lqz", "vllm", "7c9f5d6b4-x2lqz"),
    ("a Deployment whose name ends in a number", "llama-2-7c9f5d6b4-x2lqz", "llama-2", None),
    ("a Deployment of workers", "embed-worker-7c9f5d6b4-x2lqz", "embed", None),
    ("KubeRay", "rlhf-head-x2lqz", "rlhf", ""),
    ("KubeRay", "rlhf-workergroup-worker-x2lqz", "rlhf", ""),
    ("KubeRay", "rlhf-raycluster-tkx9v-small-group-worker-x2lqz", "rlhf-raycluster-tkx9v", ""),
    ("a LeaderWorkerSet's leader", "deepseek-0", "deepseek", ""),
    ("a LeaderWorkerSet's worker", "deepseek-0-1", "deepseek", ""),
    ("Volcano", "lm-job-worker-2", "lm-job", ""),
    ("Volcano", "lm-job-mpimaster-0", "lm-job-mpimaster", ""),
    ("SkyPilot", "sky-kim-head", "sky-kim", ""),
    ("SkyPilot", "sky-kim-worker3", "sky-kim", ""),
    ("GitHub's runners", "linux-g5-runner-x7k2p", "linux-g5-runner", "x7k2p"),
    ("GitHub's runners", "arc-set-h4k9w-runner-x7k2p", "arc-set-h4k9w-runner", "x7k2p"),
    (
        "GitLab's runners",
        "runner-zrq4wvyb-project-31-concurrent-0-jgfq7m2c",
        "runner-zrq4wvyb-project-31-concurrent-0",
        "jgfq7m2c",
    ),
    ("a step of Argo", "sweep-9tql2-fit-2274190714", "sweep-9tql2-fit", "2274190714"),
    ("a trial of Katib", "lr-search-bxq2fw7k-x7k2p", "lr-search", "bxq2fw7k-x7k2p"),
    ("a trial of Katib, as a PyTorchJob", "lr-bxq2fw7k-worker-0", "lr-bxq2fw7k", ""),
    ("a notebook", "jupyter-kim", "jupyter-kim", ""),
    ("a word with vowels", "train-mnist", "train-mnist", ""),
    ("a model's size", "llama-70b", "llama-70b", ""),
    ("nothing but a suffix", "-x7k2p", "-x7k2p", ""),
    ("nothing", "", "", ""),
)
"""Who made a pod, its name, its job and its replica, which is all behind the job if None."""


@with_each(PODS)
def test_a_pod_s_name_tells_its_job(of: str, pod: str, job: str, replica: str | None) -> None:  # noqa: ARG001
    if replica is None:
        replica = "7c9f5d6b4-x2lqz"
    assert pod_job(pod, some_of_more=False) == (job, replica)
    assert pod_job(pod, some_of_more=True) == (job, "")


SUFFIX = st.text("bcdfghjklmnpqrstvwxz2456789", min_size=5, max_size=5)


@given(st.text() | st.from_regex(r"[a-z0-9-]{1,80}", fullmatch=True), st.booleans())
def test_a_job_s_name_is_the_beginning_of_any_pod_s(pod: str, more: bool) -> None:
    job, replica = pod_job(pod, some_of_more=more)
    assert pod.startswith(job)
    assert bool(job) is bool(pod)
    assert not replica or pod.endswith(f"-{replica}")
    assert len(job) + len(replica) <= len(pod)


@given(SUFFIX, SUFFIX, st.integers(0, 9999))
def test_only_what_controllers_generate_tells_pods_apart(one: str, other: str, at: int) -> None:
    assert pod_job(f"fit-it-{one}", some_of_more=False) == ("fit-it", one)
    assert pod_job(f"fit-it-{at}-{one}", some_of_more=False) == ("fit-it", "")
    together = {pod_job(f"fit-it-{s}", some_of_more=True) for s in (one, other)}
    assert together == {("fit-it", "")}


def names(*held: tuple[str, str]) -> JobNames:
    """Those of a node n7 whose kubelet gave devices to pods."""
    pods = Pods(Proc(Path("/nowhere")).node, Settings())
    given = [Allocation("ml", pod, "main", "nvidia.com/gpu", device) for pod, device in held]
    given += [Allocation("ml", pod, "main", "nvidia.com/hostdev", "nic") for pod, _ in held]
    pods._allocated = given, 0.0
    return JobNames(lambda: "n7", pods)


POD = "fit-7c9f5d6b4-x2lqz"
OWNERS = (
    (Owner("ml", "llm-worker-3", "main"), ("llm", "")),
    (Owner("slurm", "slurm-worker-0", "slurmd", "7"), ("slurm-7", "")),
    (Owner("", "", "", "42", "kim"), ("slurm-42", "")),
    (Owner("", "", "3f2c", "", "kim"), ("kim@n7", "")),
    (Owner("", "0a0a0a0a-0000-0000-0000-123456789012"), (None, "")),
)


@with_each(OWNERS)
def test_every_owner_has_a_job(owner: Owner, job: tuple[str | None, str]) -> None:
    assert names().of(owner) == (job[0] or owner.owner_pod, job[1])


@with_each(
    (
        (("0", "1"), "2", False),
        (("0", "1"), "16", True),
        (("0",), "1", False),
        (("0",), "", False),
        ((), "8", True),
    )
)
def test_a_training_that_a_deployment_runs_is_one_job(
    devices: tuple[str, ...], world_size: str, one_job: bool
) -> None:
    """Its ranks say of how many they are; they are remembered while none is there."""
    known, owner = names(*((POD, device) for device in devices)), Owner("ml", POD, "main")
    known.learn("GPU-0", [Started(7, owner=owner, world_size=world_size)])
    known.learn("GPU-0", [])
    assert known.of(owner) == ("fit", "" if one_job else "7c9f5d6b4-x2lqz")


def test_a_gpu_that_several_jobs_share_is_none_s() -> None:
    one, other = Owner("ml", "a-worker-0", "main"), Owner("ml", "a-worker-0", "sidecar")
    assert names().shared([one, other]) == ("a", "")
    assert names().shared([one, Owner("ml", "b-0", "main")]) is None
    assert names().shared([one, Owner("other", "a-worker-0", "main")]) is None


class Sensors:
    """What fails with a GPU that is lost."""

    name, every, metrics = "gpu", 1.0, ()

    def __init__(self, proc: Proc) -> None:
        self.proc = proc

    def read(self) -> Reading:
        self.proc.cards[0].processes()
        return Reading(())


class SourceFinder:
    """Finds the sources of one GPU."""

    name = "gpu"

    def __init__(self, *sources: Source) -> None:
        self.found = [(Place("0", "GPU-0"), source) for source in sources]

    def find(self) -> list[tuple[Place, Source]]:
        return self.found


@pytest.mark.parametrize("hangs", [False, True])
def test_a_gpu_that_is_lost_is_still_that_of_who_has_it(
    tmp_path: Path, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its process lives, or else while the kubelet says so; then it is nobody's."""
    proc = Proc(tmp_path)
    card = proc.cards[0]
    proc.run(7)
    card.hold(7)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("kim:x:1000:1000::/home/kim:/bin/sh\n")
    pods = Pods(proc.node, Settings())
    source = GpuOwners(proc.census, proc.gpu, Settings(), pods, None, JobNames(lambda: "n7", pods))
    monkeypatch.setattr(source._errands, "patience", 0.1)
    loop = Loop(proc.clock, [SourceFinder(Sensors(proc), source)], find_every=1.0)

    def told() -> str:
        proc.clock.now += 5.0
        for watch in loop.find() or loop.watches.values():
            if not (hangs and watch.source is not source):
                watch.step()
        lines = exported(loop.samples()).splitlines()
        return "\n".join(
            line for line in lines if line.startswith(("gpunode_gpu_o", "gpunode_gpu_a"))
        )

    assert 'workload="kim@n7"' in told()
    if hangs:
        card.answers.clear()
    else:
        card.fails = True
    for _ in range(3):
        assert 'workload="kim@n7"' in told()
    proc.end(7)
    pods._allocated = [Allocation("ml", "fit-0", "main", "nvidia.com/gpu", "GPU-0")], 0.0
    proc.clock.now = 0.0
    assert 'workload="fit"' in told()
    pods._allocated = None
    assert told() == ""
    card.answers.set()
