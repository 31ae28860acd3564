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
from gpunode.serving.engines import PROGRAMS
from gpunode.serving.relatives import names_of
from gpunode.serving.requests import INFO
from gpunode.verdict.facts import Facts

KINDS = ("training", "serving", "interactive", "unknown")

WORKLOAD = Metric(
    "gpunode_gpu_workload",
    "gauge",
    "The kind of work on the GPU: exactly one is 1. Training has a client, a communicator, a "
    "data loader or a backward pass; serving has an engine, a server's program or an open port "
    "below 32768; interactive has a notebook's kernel.",
    (*GPU, "kind"),
)

USES = (INFO, steps.MEDIAN, steps.REQUEST_ITEMS)
"""The metrics by which a client or an engine tells."""

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
SERVERS = PROGRAMS | frozenset(
    {
        "bentoml",
        "gunicorn",
        "hypercorn",
        "ollama",
        "tei",
        "tensorflow_model_server",
        "text-embeddings-router",
        "torchserve",
        "uvicorn",
    }
)
"""Programs by the names of their files or modules, as ``relatives.names_of`` has them."""

RAY = "ray::"
REPLICA = "ray::ServeReplica"
"""What Ray calls its workers, each of which listens for the others, and those that serve.
https://docs.ray.io/en/latest/ray-core/configure.html (``--min-worker-port``)"""

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
    for labels in facts.series(INFO, *at):
        return Workload("serving", f"an engine answers for it: {labels[2]}")
    for role in roles:
        for program in (role.program, role.parent):
            names = names_of(program)
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
        # Each rank of such a group waits for connections of the others.
        if role.exchanges:
            return Workload("training", f"process {role.pid} has a process group of Gloo")
    for role in roles:
        of_ray = role.program.startswith(RAY) and not role.program.startswith(REPLICA)
        if role.listens and not of_ray:
            return Workload("serving", f"process {role.pid} waits for TCP connections")
    return Workload("unknown", "nothing that tells")
