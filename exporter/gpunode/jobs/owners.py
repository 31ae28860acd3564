"""Who holds each GPU: pods, Slurm jobs and users; and the place of each process in its job.

The kubelet's allocations come first. The owner of a process without an allocation (a Slurm job, a
container outside Kubernetes, a privileged pod) is what the kernel says: the path of its cgroup and
its user. Its environment, which it may choose, only tells its place in its job and its settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, field, fields
from typing import ClassVar

from gpunode.config import Settings
from gpunode.driver.driver import Gpu, Process, known
from gpunode.gpu import GPU
from gpunode.holders import cgroup
from gpunode.holders.pods import Pods
from gpunode.jobs.processes import UNREADABLE, stat_of
from gpunode.metric import Metric, Sample
from gpunode.node.kernel import parse_status
from gpunode.node.kubelet import Allocation
from gpunode.node.node import Node
from gpunode.source import MANY, Divided, Reading


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a GPU; fields that do not apply or are unknown are empty. The fields are labels.

    No field is called ``pod`` or ``job``: Prometheus attaches these to the exporter itself, and
    would rename ours, or fill in its own if ours is empty.
    """

    owner_namespace: str = ""
    owner_pod: str = ""
    owner_container: str = ""
    slurm_job: str = ""
    user: str = ""
    """The user who runs the process, outside pods."""


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
    """The same for all processes of one job on this node: the address of its rendezvous and whose
    it is, with its cgroup where that is a loopback address; or its cgroup and the process that
    started it."""


@dataclass(frozen=True, slots=True)
class OwnersDetail:
    """The processes on a GPU."""

    processes: tuple[Started, ...]


OWNER_LABELS = tuple(f.name for f in fields(Owner))

OWNER = Metric(
    "gpunode_gpu_owner_info",
    "gauge",
    "Who holds the GPU: the container to which the kubelet gave it, or the owner of a process on "
    "it (`via`). With time slicing there are several; divide by their number to avoid counting "
    "twice.",
    (*GPU, *OWNER_LABELS, "via"),
)
ALLOCATED = Metric(
    "gpunode_gpu_allocated",
    "gauge",
    "Whether the GPU is taken: the kubelet gave it to a container, or a process runs on it. Absent "
    "if no process runs and there is no kubelet to ask.",
    GPU,
)
PROCESS = Metric(
    "gpunode_gpu_process_info",
    "gauge",
    "A process on the GPU, its owner (/proc/PID/cgroup) and its place in the job (its environment: "
    "RANK, LOCAL_RANK, WORLD_SIZE, or Slurm's).",
    (*GPU, "pid", *OWNER_LABELS, "slurm_step", "rank", "local_rank", "world_size"),
)
PROCESS_MEMORY = Metric(
    "gpunode_gpu_process_memory_bytes",
    "gauge",
    "GPU memory held by the process (nvmlDeviceGetComputeRunningProcesses).",
    (*GPU, "pid"),
)
PROCESS_USE = Metric(
    "gpunode_gpu_process_utilization_ratio",
    "gauge",
    "Share of time that work of the process ran on the GPU; only if several processes share it "
    "(nvmlDeviceGetProcessUtilization).",
    (*GPU, "pid"),
)
NCCL_SETTING = Metric(
    "gpunode_nccl_setting_info",
    "gauge",
    "An NCCL setting (`NCCL_*`, `TORCH_NCCL_*`) in the environment of a process on the GPU; only "
    "names that cannot hold a secret are read (/proc/PID/environ).",
    (*GPU, "name", "value"),
)

LONGEST = 64
"""Characters of a setting's value to export, and of the host name of a rendezvous to compare."""


class GpuOwners:
    """Reads the owners of one GPU or MIG instance."""

    name = "gpu_owners"
    needs = (
        "a process on the GPU, or its allocation by the kubelet; a container of gpunode takes "
        "hostPID and the node's root at path.rootfs"
    )
    divided: ClassVar[Divided] = "instances"
    metrics = (OWNER, ALLOCATED, PROCESS, PROCESS_MEMORY, PROCESS_USE, NCCL_SETTING, UNREADABLE)

    def __init__(self, node: Node, gpu: Gpu, settings: Settings, pods: Pods) -> None:
        self.node = node
        self.sensors = gpu
        self.pods = pods
        self.labels = gpu.identity.labels
        self.every = settings.gpu.owners_interval
        self._started: dict[tuple[int, float], Started] = {}

    def read(self) -> Reading:
        running = (known(self.sensors.processes) or [])[:MANY]
        processes = {process.pid: process for process in running}
        self._look(processes)
        started = {pid: found for (pid, _), found in self._started.items()}
        holders = self.pods.holders(self.sensors.identity)
        samples = (
            *self._owner_samples(holders, started.values()),
            *self._process_samples(processes, started),
        )
        return Reading(samples, OwnersDetail(tuple(started.values())))

    def _look(self, pids: Iterable[int]) -> None:
        """Read new processes only: a process's start parameters do not change."""
        found = {}
        for pid in pids:
            stat = stat_of(self.node, pid)
            start = 0.0 if stat is None else stat.start
            # Where process 1 is the parent, the one that started it has ended.
            parent = stat.parent if stat is not None and stat.parent > 1 else pid
            before = self._started.get((pid, start))
            found[pid, start] = before or self._look_at(pid, start, parent)
        self._started = found

    def _look_at(self, pid: int, start: float, parent: int) -> Started:
        try:
            place = cgroup.whose(self.node.read_text(f"/proc/{pid}/cgroup"))
        except OSError:
            place = cgroup.CgroupOwner()
        try:
            environment, environment_read = self.node.environment(pid), True
        except OSError:
            environment, environment_read = {}, False
        owner = self._owner(pid, place)
        return Started(
            pid,
            start,
            owner,
            place.slurm_step,
            _number(environment.get("RANK") or environment.get("SLURM_PROCID", "")),
            _number(environment.get("LOCAL_RANK") or environment.get("SLURM_LOCALID", "")),
            _number(environment.get("WORLD_SIZE") or environment.get("SLURM_NTASKS", "")),
            {n: v[:LONGEST] for n, v in environment.items() if n.startswith(("NCCL_", "TORCH_"))},
            environment_read,
            _job(environment, owner, place, parent),
        )

    def _owner(self, pid: int, place: cgroup.CgroupOwner) -> Owner:
        if place.pod_uid:
            namespace, pod = self.pods.name_of(place.pod_uid) or ("", place.pod_uid)
            container = self.pods.container_of(place.container_id) or place.container_id[:12]
            return Owner(namespace, pod, container)
        container, user = place.container_id[:12], self._user(pid)
        return Owner(owner_container=container, slurm_job=place.slurm_job, user=user)

    def _user(self, pid: int) -> str:
        """The name of a process's user, or the numeric id if /etc/passwd does not list it."""
        try:
            uid = parse_status(self.node.read_text(f"/proc/{pid}/status"))["Uid"][0]
            accounts = self.node.read_text("/etc/passwd").split("\n")
        except (OSError, LookupError):
            return ""
        named = (account.split(":") for account in accounts)
        return next((a[0] for a in named if len(a) > 2 and a[2] == uid), uid)

    def _owner_samples(
        self, holders: list[Allocation] | None, started: Iterable[Started]
    ) -> Iterator[Sample]:
        at = self.labels
        allocated = {Owner(h.namespace, h.pod, h.container) for h in holders or ()}
        running = {process.owner for process in started}
        for owner in sorted(allocated | running, key=astuple):
            via = "kubelet" if owner in allocated else "process"
            yield from OWNER.at(1.0, *at, *astuple(owner), via)
        if allocated or running or holders is not None:
            yield from ALLOCATED.at(float(bool(allocated or running)), *at)

    def _process_samples(
        self, processes: dict[int, Process], started: dict[int, Started]
    ) -> Iterator[Sample]:
        at = self.labels
        for pid, process in processes.items():
            yield from PROCESS_MEMORY.at(process.memory, *at, str(pid))
        for pid, found in started.items():
            place = found.slurm_step, found.rank, found.local_rank, found.world_size
            yield from PROCESS.at(1.0, *at, str(pid), *astuple(found.owner), *place)
        if len(processes) > 1:
            for use in known(self.sensors.process_use) or []:
                if use.pid in processes:
                    yield from PROCESS_USE.at(use.gpu, *at, str(use.pid))
        settings = sorted({item for s in started.values() for item in s.nccl.items()})
        for name, value in settings[:MANY]:
            yield from NCCL_SETTING.at(1.0, *at, name, value)
        unread = sum(not found.environment_read for found in started.values())
        yield from UNREADABLE.at(float(unread) if started else None, *at, "environ")


def _job(environment: dict[str, str], owner: Owner, place: cgroup.CgroupOwner, parent: int) -> str:
    """What the processes of one job on a node have in common, and no others.

    A job may have a pod for each rank, but only in one namespace.
    """
    if "MASTER_PORT" not in environment:
        return " ".join((*astuple(place), str(parent)))
    host, port = environment.get("MASTER_ADDR", "")[:LONGEST], environment["MASTER_PORT"][:LONGEST]
    address = f"{host}:{port}"
    if host and host != "localhost" and not host.startswith(("127.", "::1")):
        return " ".join((owner.owner_namespace, owner.slurm_job, owner.user, address))
    # torchrun's default: every pod may have a job at the same address.
    return " ".join((*astuple(place), owner.user, address))


def _number(text: str) -> str:
    """The text if it is a number, otherwise empty: an environment may hold anything."""
    return text if text.isdecimal() and len(text) < 10 else ""
