"""Who holds each GPU: pods, Slurm jobs and users; and the place and role of each process.

The allocations of the kubelet and of Slurm come first, as they also tell of a GPU that nobody uses.
The owner of a process without an allocation (a container outside Kubernetes, a privileged pod) is
what the kernel says: see ``holders/owner.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import astuple, dataclass, fields, replace
from operator import attrgetter
from typing import ClassVar

from gpunode.config.daemon import Settings
from gpunode.driver.driver import DriverError, Gpu, Process, optional
from gpunode.driver.errands import Errands
from gpunode.gpu import GPU
from gpunode.holders.census import Census, Look
from gpunode.holders.holder import Holder, Role, tenant_key
from gpunode.holders.job_name import JobIdentity, JobNames
from gpunode.holders.owner import Owner, Started, among, read_started
from gpunode.holders.pods import Pods
from gpunode.holders.slurm import FOLDER, SLUID_ONLY, SlurmJobs
from gpunode.holders.source import HoldersSource
from gpunode.jobs.attempts import ENDED, Attempts
from gpunode.jobs.processes import UNREADABLE
from gpunode.jobs.versions import INFO as VERSIONS
from gpunode.jobs.versions import MORE_VERSIONS, RunningVersions
from gpunode.metric import Metric, Sample
from gpunode.node.kubelet import Allocation
from gpunode.node.node import NoDescriptors
from gpunode.source import MORE_PROCESSES, MORE_SOCKETS, Divided, Reading, bounded, limit
from gpunode.unread import Unknown, Unread


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
    "Who holds the GPU: the container or Slurm job that it was given to, or the owner of a "
    "process on it (`via`). With time slicing there are several; divide by their number. "
    "`workload` is the job that has the GPU to itself: Slurm's number, the pod's name without "
    "role and number, or USER@NODE. `replica` tells pods apart that share no work, as those of a "
    "Deployment.",
    (*GPU, *OWNER_LABELS, "via", *JobIdentity._fields),
)
ALLOCATED = Metric(
    "gpunode_gpu_allocated",
    "gauge",
    "Whether the kubelet or Slurm gave the GPU to somebody, or a process runs on it that does "
    "not only draw. Absent if none runs and the allocation is not known.",
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
    "names that cannot hold a secret (/proc/PID/environ).",
    (*GPU, "name", "value"),
)


MORE_SETTINGS, MORE_ALLOCATIONS = limit("nccl_settings"), limit("allocations")

ALLOCATIONS = 256
"""The most containers to which one GPU may be allocated; time slicing gives it to tens."""

CONTAINER = Unknown(
    "container",
    "the cgroup of a process on the GPU looks like a container's, but not like one that a known "
    "runtime makes; the GPU counts for the user of the process",
)


labels_of = attrgetter(*(field.name for field in fields(Owner)))
"""The values of an owner's labels."""


class GpuOwners:
    """Reads the owners of one GPU or MIG instance."""

    name = "gpu_owners"
    needs = (
        "a process on the GPU, or its allocation by the kubelet or Slurm; a container of gpunode "
        "takes hostPID and the node's root at path.rootfs"
    )
    divided: ClassVar[Divided] = "instances"
    outlasts_the_gpu = True
    """A GPU that is lost is still somebody's."""

    metrics = (
        OWNER,
        ALLOCATED,
        ENDED,
        PROCESS,
        PROCESS_MEMORY,
        PROCESS_USE,
        MPS_CLIENTS,
        NCCL_SETTING,
        UNREADABLE,
    )
    unknowns = (CONTAINER, MORE_ALLOCATIONS, MORE_PROCESSES, MORE_SETTINGS, FOLDER)

    def __init__(
        self,
        census: Census,
        gpu: Gpu,
        settings: Settings,
        pods: Pods,
        slurm: SlurmJobs | None = None,
        names: JobNames | None = None,
    ) -> None:
        self.census = census
        self.gpu = gpu
        self.pods = pods
        self.slurm = slurm
        self.names = names or JobNames(str, pods)
        self.labels = gpu.identity.labels
        self.every = settings.gpu.owners_interval
        self._started: dict[Holder, Started] = {}
        self._attempts = Attempts()
        self._errands = Errands()
        self._last: Look | None = None

    def read(self) -> Reading:
        look, answers = self._list_processes()
        holders, left_out = bounded(
            look.holders if look is not None else (),
            MORE_PROCESSES,
            of="processes on a GPU",
            whose=tenant_key,
        )
        pids = {holder.pid for holder in holders}
        listed = look.processes if look is not None and answers else ()
        processes = {p.pid: p for p in listed if p.pid in pids}
        # The start parameters of a process do not change.
        self._started = {h: self._started.get(h) or read_started(h, self.pods) for h in holders}
        on_gpus = self.census.on_gpus.values()
        found = {h.pid: among(s, h, on_gpus, self.pods) for h, s in self._started.items()}
        # Who only draws, as root's display server does, has not been given the GPU.
        drawing = pids - {holder.pid for holder in look.computing} if look is not None else set()
        owning = [each for pid, each in found.items() if pid not in drawing]
        self.names.learn(self.gpu.identity.uuid, owning)
        chosen = {one: each.owner for each in found.values() for one in each.nccl.items()}
        settings, without = bounded(
            sorted(chosen), MORE_SETTINGS, whose=lambda one: (chosen[one].in_short(),)
        )
        pods = self.pods.holders(self.gpu.identity)
        more: tuple[Unread, ...] = ()
        if pods is not None:
            pods, more = bounded(
                pods, MORE_ALLOCATIONS, ALLOCATIONS, whose=lambda one: (one.namespace,)
            )
        clients = {p.pid for p in listed if p.kind == "mps"}
        samples = (
            *MPS_CLIENTS.at(float(len(clients)) if clients else None, *self.labels),
            *self._owner_samples(owning, pods),
            *self._process_samples(processes, found),
            *(Sample(NCCL_SETTING, (*self.labels, *setting), 1.0) for setting in settings),
        )
        jobs = {process.owner.slurm_job for process in found.values()}
        unnumbered = (FOLDER.seen(job) for job in sorted(filter(SLUID_ONLY.fullmatch, jobs)))
        unread = (*left_out, *without, *more, *_strange_containers(holders), *unnumbered)
        return Reading(samples, OwnersDetail(tuple(found.values())), unread)

    def _list_processes(self) -> tuple[Look | None, bool]:
        """The processes on the GPU, and whether its driver answers: else, those that still live.

        Raises ``DriverError`` if it has not answered yet.
        """
        failed: list[DriverError | NoDescriptors] = []
        seen: list[Look | None] = []

        def ask() -> None:
            try:
                seen.append(self.census.look(self.gpu))
            except (DriverError, NoDescriptors) as error:
                failed.append(error)

        if self._errands.run({self.gpu.identity.uuid: ask}):
            failed.append(DriverError("the driver does not answer"))
        if seen:
            self._last = seen[0]
            return self._last, True
        if self._last is None or isinstance(failed[0], NoDescriptors):
            raise failed[0]
        living = (h for h in self._last.holders if h.start is not None and h.lives())
        return replace(self._last, holders=tuple(living)), False

    def _owner_samples(
        self, started: Collection[Started], pods: list[Allocation] | None
    ) -> Iterator[Sample]:
        at, gpu = self.labels, self.gpu.identity
        jobs = self.slurm.owners(gpu) if self.slurm else None
        running = {process.owner: "process" for process in started}
        by_pod = {Owner(h.namespace, h.pod, h.container): "kubelet" for h in pods or ()}
        by_job = dict.fromkeys(jobs or (), "slurm")
        given = {**by_pod, **by_job}
        # A process may tell more of the same owner: its user, or the job inside a pod.
        said_better = {g for g in given for r in running if g != r and _tells_more(r, g)}
        owners = {**running, **given}
        told = sorted(owners.keys() - said_better, key=labels_of)
        job = self.names.shared(told)
        for owner in told:
            yield from OWNER.at(1.0, *at, *labels_of(owner), owners[owner], *(job or JobIdentity()))
        pod = (astuple(owner)[:3] for owner in told if owner.owner_namespace)
        containers = frozenset(one for container in pod for one in self.pods.begun(container))
        if job is not None:
            whose = told[0].owner_namespace, told[0].user, job
            if self._attempts.job != whose:
                self._attempts = Attempts(whose)
            self._attempts.look(started, containers)
            yield from ENDED.at(float(self._attempts.ended), *at)
        if owners or pods is not None or jobs is not None:
            yield from ALLOCATED.at(float(bool(owners)), *at)

    def _process_samples(
        self, processes: dict[int, Process], started: dict[int, Started]
    ) -> Iterator[Sample]:
        at = self.labels
        for pid, process in processes.items():
            yield from PROCESS_MEMORY.at(process.memory, *at, str(pid))
        for pid, found in started.items():
            place = found.slurm_step, found.rank, found.local_rank, found.world_size
            yield from PROCESS.at(1.0, *at, str(pid), *labels_of(found.owner), *place)
        if len(processes) > 1:
            for use in optional(self.gpu.process_use) or []:
                if use.pid in processes:
                    yield from PROCESS_USE.at(use.gpu, *at, str(use.pid))
        unread = sum(not found.environment_read for found in started.values())
        yield from UNREADABLE.at(float(unread) if started else None, *at, "environ")


def _strange_containers(holders: Iterable[Holder]) -> Iterator[Unread]:
    for holder in holders:
        with contextlib.suppress(OSError):
            if path := holder.strange_container():
                yield CONTAINER.seen(path)


def _tells_more(one: Owner, other: Owner) -> bool:
    """Whether an owner of a process is the other, with a user or a Slurm job where that has none.

    No more than these: two containers of a pod are two owners.
    """
    user, job = other.user or one.user, other.slurm_job or one.slurm_job
    return one == replace(other, user=user, slurm_job=job)


class ProcessRoles:
    """Looks at what the processes on one GPU are, and what they run."""

    name = "process_roles"
    needs = (
        "a process on the GPU, and to see it: hostPID; SYS_PTRACE for what other users' processes "
        "run; for images, the node's root at path.rootfs and DAC_READ_SEARCH"
    )
    divided: ClassVar[Divided] = "instances"
    metrics = (VERSIONS,)
    unknowns = (MORE_PROCESSES, MORE_SOCKETS, MORE_VERSIONS)

    def __init__(self, census: Census, gpu: Gpu, settings: Settings) -> None:
        self.census = census
        self.gpu = gpu
        self.every = settings.gpu.owners_interval
        self._versions = RunningVersions(census.node.clock, gpu.identity)

    def read(self) -> Reading:
        look = self.census.look(self.gpu)
        holders, left_out = bounded(
            look.holders if look is not None else (),
            MORE_PROCESSES,
            of="processes on a GPU",
            whose=tenant_key,
        )
        roles = RolesDetail(tuple(holder.role() for holder in holders))
        unseen = sum(bool(holder.unseen) for holder in holders)
        crowd = (MORE_SOCKETS.seen("in the network of a process", unseen),) if unseen else ()
        versions, more = self._versions.samples(holders)
        return Reading(versions, roles, (*left_out, *crowd, *more))


HOLDERS_SOURCE: HoldersSource = ProcessRoles
