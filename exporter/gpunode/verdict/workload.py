"""The kind of work on a GPU, each from evidence that can be named.

A server without requests and a notebook whose user thinks are not starved; alerts and capacity
reviews must know.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpunode.gpu import GPU
from gpunode.holders.holder import Role
from gpunode.holders.owner import Started
from gpunode.jobs import steps
from gpunode.jobs.processes import Listed
from gpunode.metric import Metric
from gpunode.verdict.facts import Facts

KINDS = ("training", "serving", "interactive", "unknown")

WORKLOAD = Metric(
    "gpunode_gpu_workload",
    "gauge",
    "The kind of work on the GPU: exactly one is 1. Training has a client that reports steps, a "
    "communicator, a data loader or a backward pass; serving a client that reports requests, a "
    "server's program, or a socket that waits for connections; interactive a notebook's kernel. "
    "/api/v1/verdict says which.",
    (*GPU, "kind"),
)

USES = (steps.MEDIAN, steps.REQUEST_ITEMS)
"""The metrics by which a client tells."""

NOTEBOOKS = frozenset(
    {
        "colab_kernel_launcher",
        "ipykernel",
        "ipykernel_launcher",
        "ipython",
        "jupyter",
        "jupyter-lab",
        "jupyter-notebook",
        "jupyter-server",
        "jupyterhub-singleuser",
    }
)
SERVERS = frozenset(
    {
        "bentoml",
        "gunicorn",
        "hypercorn",
        "launch_server",
        "llama-server",
        "lmdeploy",
        "ollama",
        "sglang",
        "tei",
        "tensorflow_model_server",
        "text-embeddings-router",
        "text-generation-launcher",
        "text-generation-server",
        "tgi",
        "torchserve",
        "tritonserver",
        "trtllm-serve",
        "uvicorn",
        "vllm",
    }
)
"""Programs by the names of their files or modules; a title such as ``VLLM::EngineCore`` counts by
its first word, a module such as ``vllm.entrypoints.openai.api_server`` also by its package."""

LOADER = "pt_data_worker"
"""The name that PyTorch gives to the processes of a data loader.
https://github.com/pytorch/pytorch/blob/main/torch/utils/data/_utils/worker.py"""


@dataclass(frozen=True, slots=True)
class Workload:
    """The kind of work on a GPU, and the evidence for it."""

    kind: str
    evidence: str


def workload_of(
    facts: Facts,
    at: tuple[str, str],
    started: Iterable[Started],
    roles: Iterable[Role],
    processes: Iterable[Listed],
    peers: bool | None,
) -> Workload:
    """The kind of work of the processes on a GPU; what a client reports comes first."""
    started, roles = tuple(started), tuple(roles)
    if any(facts.series(steps.MEDIAN, *at)):
        return Workload("training", "a client reports steps")
    if any(facts.series(steps.REQUEST_ITEMS, *at)):
        return Workload("serving", "a client reports requests")
    for role in roles:
        for program in (role.program, role.parent):
            names = _names(program)
            if names & NOTEBOOKS:
                return Workload("interactive", f"process {role.pid} belongs to {program}")
            if names & SERVERS:
                return Workload("serving", f"process {role.pid} belongs to {program}")
    size = max((int(process.world_size) for process in started if process.world_size), default=1)
    # A launcher may start servers that know nothing of each other.
    if size > 1 and peers is not False:
        return Workload("training", f"WORLD_SIZE is {size}")
    if peers:
        return Workload("training", "a process has a communicator")
    if any(process.command.startswith(LOADER) for process in processes):
        return Workload("training", "a data loader of PyTorch runs")
    for role in roles:
        if role.trains:
            return Workload("training", f"process {role.pid} has run a backward pass")
    for role in roles:
        if role.listens:
            return Workload("serving", f"process {role.pid} waits for TCP connections")
    return Workload("unknown", "nothing that tells")


def _names(program: str) -> frozenset[str]:
    """The names by which a program may be known."""
    name = program.lower()
    return frozenset(
        {name, name.partition("::")[0], name.partition(".")[0], name.rpartition(".")[2]}
    )
