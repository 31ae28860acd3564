"""The kind of work on a GPU, from programs, clients and threads as they are in the wild."""

from __future__ import annotations

from gpunode.jobs import steps
from gpunode.verdict.workload import KINDS, WORKLOAD
from tests.cases import with_each
from tests.verdict.stage import Actor, Stage


def kind_of(actor: Actor) -> tuple[str, str]:
    stage = Stage(actor)
    stage.play(20)
    told = stage.verdict().workload
    values = {s.labels[2]: s.value for s in stage.loop.samples() if s.metric is WORKLOAD}
    if actor.jobs:
        assert values == {kind: float(kind == told.kind) for kind in KINDS}
    else:
        assert not values
    return told.kind, told.evidence


@with_each(
    [
        ("vllm", "bash"),
        ("VLLM::EngineCore", "vllm"),
        ("VLLM::Worker_TP0", "VLLM::EngineCore_DP0"),
        ("vllm.entrypoints.openai.api_server", "sh"),
        ("sglang.launch_server", "sh"),
        ("launch_server", "sh"),
        ("sglang::scheduler_TP0", "sglang.launch_server"),
        ("text-generation-server", "text-generation-launcher"),
        ("triton_python_backend_stub", "tritonserver"),
        ("tritonserver", "bash"),
        ("ollama", "systemd"),
        ("serve", "gunicorn"),
        ("mpi4py.futures.server", "trtllm-serve"),
        ("dynamo.trtllm", "bash"),
        ("ray::RayWorkerWrapper.execute_method", "raylet"),
        ("ray::RayWorkerProc", "raylet"),
    ]
)
def test_a_servers_program_or_its_parents_says_that_it_serves(program: str, parent: str) -> None:
    kind, evidence = kind_of(Actor(0, program=program, parent=parent, world_size="2", peers=True))
    assert kind == "serving"
    assert evidence in {f"process 7 belongs to {name}" for name in (program, parent)}


@with_each(
    [
        ("ipykernel_launcher", "jupyter-lab"),
        ("colab_kernel_launcher", "node"),
        ("IPython", "bash"),
        ("", "ipykernel_launcher"),
    ]
)
def test_a_notebooks_kernel_says_that_somebody_thinks(program: str, parent: str) -> None:
    assert kind_of(Actor(0, program=program, parent=parent))[0] == "interactive"


@with_each(
    [
        (Actor(0, world_size="8", peers=True), "WORLD_SIZE is 8"),
        (Actor(0, world_size="8", peers=None), "WORLD_SIZE is 8"),
        (Actor(0, peers=True), "a process has a communicator"),
        (Actor(0, commands=("python3", "pt_data_worker")), "a data loader of PyTorch runs"),
        (Actor(0, trains=True), "process 7 has run a backward pass"),
        (Actor(0, gauges={steps.MEDIAN: 0.2}, parent="vllm"), "a client reports steps"),
        (Actor(0, trains=True, listens=True), "process 7 has run a backward pass"),
        (Actor(0, exchanges=True, listens=True), "process 7 has a process group of Gloo"),
    ]
)
def test_training_is_told_by_its_evidence(actor: Actor, evidence: str) -> None:
    assert kind_of(actor) == ("training", evidence)


@with_each(
    [
        (Actor(0, rates={(steps.REQUEST_ITEMS, ()): 3.0}), "a client reports requests"),
        (Actor(0, listens=True), "process 7 waits for TCP connections"),
        (Actor(0, listens=True, world_size="2"), "process 7 waits for TCP connections"),
        (
            Actor(0, listens=True, program="ray::ServeReplica:a:B"),
            "process 7 waits for TCP connections",
        ),
        (Actor(0, listens=True, exchanges=True, parent="vllm"), "process 7 belongs to vllm"),
    ]
)
def test_serving_is_told_by_its_evidence(actor: Actor, evidence: str) -> None:
    assert kind_of(actor) == ("serving", evidence)


@with_each(["train", "", "vllm_benchmark", "not-ollama", "python3"])
def test_what_shows_nothing_is_unknown(program: str) -> None:
    assert kind_of(Actor(0, program=program)) == ("unknown", "nothing that tells")


def test_a_worker_of_ray_that_listens_for_others_is_no_server() -> None:
    actor = Actor(0, listens=True, program="ray::RayTrainWorker", parent="raylet")
    assert kind_of(actor) == ("unknown", "nothing that tells")


def test_a_launcher_alone_is_no_training() -> None:
    assert kind_of(Actor(0, world_size="2", peers=False)) == ("unknown", "nothing that tells")


def test_a_gpu_without_processes_has_no_kind() -> None:
    actor = Actor(0)
    actor.leave()
    assert kind_of(actor) == ("unknown", "no process on the GPU")
