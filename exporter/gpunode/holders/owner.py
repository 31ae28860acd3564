"""Whose a process on a GPU is, and its place in its job.

The owner is what the kernel says: the path of its cgroup and its user. Its environment, which it
may choose, only tells its place in its job and its settings.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import astuple, dataclass, field, replace

from gpunode.holders.holder import Holder, stat_of
from gpunode.holders.pods import Pods
from gpunode.node.cgroup import CgroupOwner
from gpunode.node.node import Node

ID_LENGTH = 64
"""Characters of the id of a container."""

MAX_VALUE = 64
"""Characters of a setting's value to export, and of the host name of a rendezvous to compare."""

RAYLET = "raylet"
"""What starts all workers of Ray on a node, by its name in /proc/PID/stat.
https://docs.ray.io/en/latest/ray-core/configure.html"""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a GPU; fields that do not apply or are unknown are empty. The fields are labels.

    No field is called ``pod`` or ``job``: Prometheus attaches these to the exporter itself, and
    would rename ours, or fill in its own if ours is empty.
    """

    owner_namespace: str = ""
    owner_pod: str = ""
    """The pod, the task of Amazon ECS, or the allocation of Nomad."""

    owner_container: str = ""
    slurm_job: str = ""
    """The number of the job, or its SLUID where the node does not tell the number."""

    user: str = ""
    """The user who runs the process, outside pods."""

    def in_short(self) -> str:
        """The pod, or else the Slurm job, or else the user; empty if none is known."""
        pod = "/".join(filter(None, (self.owner_namespace, self.owner_pod)))
        return pod or (f"Slurm job {self.slurm_job}" if self.slurm_job else self.user)


@dataclass(frozen=True, slots=True)
class Started:
    """A process on a GPU, its owner and its start parameters."""

    pid: int
    start: float = 0.0
    """Ticks since boot, which tell it from another that had its PID; 0 if they cannot be read."""

    owner: Owner = Owner()
    slurm_step: str = ""
    rank: str = ""
    local_rank: str = ""
    world_size: str = ""
    nccl: dict[str, str] = field(default_factory=dict)
    environment_read: bool = False
    job: str = ""
    """A key that all processes of a job on this node share: the address and owner of its
    rendezvous, with its cgroup if that address is a loopback; or its cgroup, with its Slurm step if
    that has a number; or else the process that started it."""


def read_started(holder: Holder, pods: Pods) -> Started:
    """A process with its owner and start parameters; what cannot be read of it is empty."""
    try:
        place = holder.cgroup()
    except OSError:
        place = CgroupOwner()
    try:
        environment, environment_read = holder.environment(), True
    except OSError:
        environment, environment_read = {}, False
    owner = _owner(holder, place, pods)
    starter = _starter(holder, place)
    # The workers of Ray inherit the rank of what started Ray.
    says = {} if starter.startswith(RAYLET) else environment
    return Started(
        holder.pid,
        holder.start or 0.0,
        owner,
        place.slurm_step,
        _number(says.get("RANK") or says.get("SLURM_PROCID", "")),
        _number(says.get("LOCAL_RANK") or says.get("SLURM_LOCALID", "")),
        _number(says.get("WORLD_SIZE") or says.get("SLURM_NTASKS", "")),
        {n: v[:MAX_VALUE] for n, v in environment.items() if n.startswith(("NCCL_", "TORCH_"))},
        environment_read,
        _job(environment, owner, place, starter),
    )


def among(one: Started, holder: Holder, on_gpus: Collection[Holder], pods: Pods) -> Started:
    """A process as the others on GPUs show it.

    It is in the job of a rank that it has launched, if it is not launched itself: by default, a
    script for Lightning is the first rank and launches the others. What several have from one task
    of Slurm, as what a script of one task spawns, is no rank of theirs.
    https://github.com/Lightning-AI/pytorch-lightning (``_SubprocessScriptLauncher``)
    """
    task = _slurm_task(holder)
    if task and any(_slurm_task(h) == task for h in on_gpus if not _same_rank(h, holder)):
        one = replace(one, rank="", local_rank="", world_size="")
    if not _is_launched(holder):
        for child in on_gpus:
            if child.parent == holder.pid and _is_launched(child):
                return replace(one, job=read_started(child, pods).job)
    return one


def _slurm_task(holder: Holder) -> tuple[str, ...]:
    """The job, step and rank of a process that has its rank from Slurm; else empty."""
    try:
        environment, place = holder.environment(), holder.cgroup()
    except OSError:
        return ()
    rank = "" if "RANK" in environment else environment.get("SLURM_PROCID", "")
    job = place.slurm_job or environment.get("SLURM_JOB_ID", "")
    return (job, place.slurm_step, rank) if rank else ()


def _same_rank(one: Holder, other: Holder) -> bool:
    """Whether they are one process, or one has started the other, as a loader."""
    return one.pid in (other.pid, other.parent) or one.parent == other.pid


def _is_launched(holder: Holder) -> bool:
    try:
        return "MASTER_PORT" in holder.environment()
    except OSError:
        return False


def _owner(holder: Holder, place: CgroupOwner, pods: Pods) -> Owner:
    if place.pod_uid:
        namespace, pod = pods.name_of(place.pod_uid) or ("", place.pod_uid)
        container = pods.container_of(place.container_id) or _short(place.container_id)
        return Owner(namespace, pod, container, place.slurm_job)
    return Owner("", place.task, _short(place.container_id), place.slurm_job, _user(holder))


def _short(container: str) -> str:
    """An id of a container as runtimes print it; a name stays as it is."""
    return container[:12] if len(container) == ID_LENGTH else container


def _user(holder: Holder) -> str:
    """The name of a process's user, or the numeric id if /etc/passwd does not list it."""
    try:
        return name_of(holder.node, holder.users()[0])
    except (OSError, LookupError):
        return ""


def name_of(node: Node, uid: str) -> str:
    """The name of a user, or the numeric id if /etc/passwd does not list it; else empty."""
    try:
        accounts = node.read_text("/etc/passwd").split("\n")
    except OSError:
        return ""
    named = (account.split(":") for account in accounts)
    return next((a[0] for a in named if len(a) > 2 and a[2] == uid), uid)


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whose a process is, as the kernel alone tells it; what it does not tell is empty."""

    user: str
    pod: str
    container: str
    slurm_job: str
    processes: str
    """Its PID namespace, empty if that cannot be read."""


def tenant(holder: Holder) -> Tenant:
    """Whose a process is. Raises ``OSError``."""
    place = holder.cgroup()
    user = (holder.users() or [""])[-1]
    processes = holder.namespace("pid")
    pod = place.pod_uid or place.task
    return Tenant(user, pod, place.container_id, place.slurm_job, processes)


def _starter(holder: Holder, place: CgroupOwner) -> str:
    """What started a process and the others of its job, as far as it tells them from more.

    Where process 1 is the parent, the one that started it has ended. What Ray has started may
    belong to any job of its cluster. Each task of a step of Slurm may have a shell of its own.
    """
    parent = stat_of(holder.node, holder.parent) if holder.parent > 1 else None
    if parent is not None and parent.name == RAYLET:
        return f"{RAYLET} {holder.pid}"
    if place.slurm_step[:1].isdecimal():
        return ""
    return str(holder.parent if holder.parent > 1 else holder.pid)


def _job(environment: dict[str, str], owner: Owner, place: CgroupOwner, starter: str) -> str:
    """What the processes of one job on a node have in common, and no others.

    A job may have a pod for each rank, but only in one namespace.
    """
    if "MASTER_PORT" not in environment or starter.startswith(RAYLET):
        return " ".join((*astuple(place), starter))
    host, port = (
        environment.get("MASTER_ADDR", "")[:MAX_VALUE],
        environment["MASTER_PORT"][:MAX_VALUE],
    )
    address = f"{host}:{port}"
    if host and host != "localhost" and not host.startswith(("127.", "::1")):
        return " ".join((owner.owner_namespace, owner.slurm_job, owner.user, address))
    # torchrun's default: every pod may have a job at the same address.
    return " ".join((*astuple(place), owner.user, address))


def _number(text: str) -> str:
    """The text if it is a number, otherwise empty: an environment may hold anything."""
    return text if text.isdecimal() and len(text) < 10 else ""
