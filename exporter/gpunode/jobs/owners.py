"""Who holds each GPU: pods, Slurm jobs and users; and the place and role of each process.

The kubelet's allocations come first. The owner of a process without an allocation (a Slurm job, a
container outside Kubernetes, a privileged pod) is what the kernel says: see ``holders/owner.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from typing import ClassVar

from gpunode.config import Settings
from gpunode.driver.driver import Gpu, Process, known
from gpunode.gpu import GPU
from gpunode.holders.census import Census
from gpunode.holders.holder import Holder, Role
from gpunode.holders.owner import Owner, Started, started
from gpunode.holders.pods import Pods
from gpunode.holders.source import HoldersSource
from gpunode.jobs.processes import UNREADABLE
from gpunode.metric import Metric, Sample
from gpunode.node.kubelet import Allocation
from gpunode.source import MANY, Divided, Reading


@dataclass(frozen=True, slots=True)
class OwnersDetail:
    """The processes on a GPU."""

    processes: tuple[Started, ...]


@dataclass(frozen=True, slots=True)
class RolesDetail:
    """The roles of the processes on a GPU."""

    roles: tuple[Role, ...]


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
MPS_CLIENTS = Metric(
    "gpunode_gpu_mps_clients",
    "gauge",
    "Processes that share the GPU through MPS; absent without any. A fault of one ends them all "
    "(nvmlDeviceGetMPSComputeRunningProcesses).",
    GPU,
)
NCCL_SETTING = Metric(
    "gpunode_nccl_setting_info",
    "gauge",
    "An NCCL setting (`NCCL_*`, `TORCH_NCCL_*`) in the environment of a process on the GPU; only "
    "names that cannot hold a secret are read (/proc/PID/environ).",
    (*GPU, "name", "value"),
)


class GpuOwners:
    """Reads the owners of one GPU or MIG instance."""

    name = "gpu_owners"
    needs = (
        "a process on the GPU, or its allocation by the kubelet; a container of gpunode takes "
        "hostPID and the node's root at path.rootfs"
    )
    divided: ClassVar[Divided] = "instances"
    metrics = (
        OWNER,
        ALLOCATED,
        PROCESS,
        PROCESS_MEMORY,
        PROCESS_USE,
        MPS_CLIENTS,
        NCCL_SETTING,
        UNREADABLE,
    )

    def __init__(self, census: Census, gpu: Gpu, settings: Settings, pods: Pods) -> None:
        self.census = census
        self.gpu = gpu
        self.pods = pods
        self.labels = gpu.identity.labels
        self.every = settings.gpu.owners_interval
        self._started: dict[Holder, Started] = {}

    def read(self) -> Reading:
        look = self.census.look(self.gpu)
        holders = look.holders[:MANY] if look is not None else ()
        pids = {holder.pid for holder in holders}
        processes = {p.pid: p for p in look.processes if p.pid in pids} if look is not None else {}
        # The start parameters of a process do not change.
        self._started = {h: self._started.get(h) or started(h, self.pods) for h in holders}
        found = {holder.pid: each for holder, each in self._started.items()}
        allocations = self.pods.holders(self.gpu.identity)
        clients = {p.pid for p in look.processes if p.kind == "mps"} if look is not None else set()
        samples = (
            *MPS_CLIENTS.at(float(len(clients)) if clients else None, *self.labels),
            *self._owner_samples(allocations, found.values()),
            *self._process_samples(processes, found),
        )
        return Reading(samples, OwnersDetail(tuple(found.values())))

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
            for use in known(self.gpu.process_use) or []:
                if use.pid in processes:
                    yield from PROCESS_USE.at(use.gpu, *at, str(use.pid))
        settings = sorted({item for s in started.values() for item in s.nccl.items()})
        for name, value in settings[:MANY]:
            yield from NCCL_SETTING.at(1.0, *at, name, value)
        unread = sum(not found.environment_read for found in started.values())
        yield from UNREADABLE.at(float(unread) if started else None, *at, "environ")


class ProcessRoles:
    """Looks at what the processes on one GPU are."""

    name = "process_roles"
    needs = "a process on the GPU"
    divided: ClassVar[Divided] = "instances"
    metrics: ClassVar[tuple[Metric, ...]] = ()

    def __init__(self, census: Census, gpu: Gpu, settings: Settings) -> None:
        self.census = census
        self.gpu = gpu
        self.every = settings.gpu.owners_interval

    def read(self) -> Reading:
        look = self.census.look(self.gpu)
        holders = look.holders[:MANY] if look is not None else ()
        return Reading((), RolesDetail(tuple(holder.role() for holder in holders)))


HOLDERS_SOURCE: HoldersSource = ProcessRoles
