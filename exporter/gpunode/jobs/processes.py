"""The node resources that the processes on each GPU use: CPU, memory, pressure and /dev/shm.

A job on a GPU is the processes that the driver lists and their descendants that are on no
other GPU, because the children of a training process prepare its data. https://docs.kernel.org/filesystems/proc.html
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import chain, islice
from typing import ClassVar

from gpunode.config.daemon import Settings
from gpunode.driver.driver import Gpu
from gpunode.gpu import GPU
from gpunode.holders.census import Census
from gpunode.holders.holder import stat_of, tenant_key
from gpunode.holders.source import HoldersSource
from gpunode.host.shm import Filling
from gpunode.jobs import cgroup
from gpunode.jobs.cgroup import Cgroup
from gpunode.jobs.files import open_files_ratio
from gpunode.jobs.shm import SharedMemory
from gpunode.metric import Metric, Sample
from gpunode.node.kernel import HERTZ, ProcessStat, counter, parse_stat
from gpunode.node.node import Filesystem
from gpunode.source import MORE_PROCESSES, Divided, Reading, bounded

PROCESSES = Metric(
    "gpunode_job_processes",
    "gauge",
    "Processes of the job, including children; absent above 512, as is all that takes every "
    "process (/proc/PID/task/TID/children).",
    GPU,
)
UNREADABLE = Metric(
    "gpunode_job_unreadable_processes",
    "gauge",
    "Processes of which `what` could not be read: `stat` in another PID namespace; `io`, `shm` "
    "and `environ` without CAP_SYS_PTRACE.",
    (*GPU, "what"),
)
BLOCKED = Metric(
    "gpunode_job_blocked_processes",
    "gauge",
    "Processes of the job in uninterruptible sleep, waiting for a device or file server: state D "
    "(/proc/PID/stat).",
    GPU,
)
CPU_SECONDS = Metric(
    "gpunode_job_cpu_seconds_total",
    "counter",
    "CPU time of the job's processes since each was first seen (/proc/PID/stat).",
    GPU,
)
BUSIEST_THREAD = Metric(
    "gpunode_job_busiest_thread_ratio",
    "gauge",
    "Share of one CPU that the job's busiest thread used since the last read; near 1 if one "
    "thread limits the job (/proc/PID/task/TID/stat).",
    GPU,
)
BUSY_THREADS = Metric(
    "gpunode_job_busy_threads",
    "gauge",
    "Threads that used at least 95 % of a CPU since the last read (/proc/PID/task/TID/stat).",
    GPU,
)
HOST_CPUS = Metric(
    "gpunode_job_host_cpus_ratio",
    "gauge",
    "CPUs that the processes with a context on the GPU used since the last read, without their "
    "children (/proc/PID/stat).",
    GPU,
)
HOST_SYSTEM = Metric(
    "gpunode_job_host_system_ratio",
    "gauge",
    "The part of `gpunode_job_host_cpus_ratio` that was spent in the kernel: system calls and "
    "page faults (/proc/PID/stat).",
    GPU,
)
HOST_FAULTS = Metric(
    "gpunode_job_host_page_faults_total",
    "counter",
    "Minor page faults of the processes with a context on the GPU since each was first seen, "
    "without their children (/proc/PID/stat: minflt).",
    GPU,
)
HOST_THREAD = Metric(
    "gpunode_job_host_thread_ratio",
    "gauge",
    "Share of one CPU that the busiest thread of a process with a context on the GPU used since "
    "the last read; that of all threads if together they used about one, as under Python's GIL "
    "(/proc/PID/task/TID/stat).",
    GPU,
)
LOADER_CPUS = Metric(
    "gpunode_job_loader_cpus_ratio",
    "gauge",
    "CPUs that the busiest of the job's processes without a context on the GPU used since the "
    "last read, over all its threads: its data loaders (/proc/PID/stat).",
    GPU,
)
COMPILERS = Metric(
    "gpunode_job_compilers",
    "gauge",
    "Compilers among the job's processes, such as ptxas, nvcc or PyTorch's compile workers "
    "(/proc/PID/cmdline).",
    GPU,
)
COMPILER_CPUS = Metric(
    "gpunode_job_compiler_cpus_ratio",
    "gauge",
    "CPUs that compilers among the job's processes used since the last read: ptxas, nvcc, "
    "PyTorch's compile workers (/proc/PID/stat, /proc/PID/cmdline).",
    GPU,
)
MEMORY = Metric(
    "gpunode_job_memory_bytes",
    "gauge",
    "Anonymous memory of the job's processes, including swapped-out pages; a leak makes it grow "
    "(/proc/PID/status: RssAnon, VmSwap).",
    GPU,
)
OPEN_FILES = Metric(
    "gpunode_job_open_files_ratio",
    "gauge",
    "Largest share of its limit on open files that a process of the job uses (/proc/PID/fd). "
    "Takes Linux 6.2, or SYS_PTRACE for other users.",
    GPU,
)
LOADER_WORKERS = Metric(
    "gpunode_job_loader_workers",
    "gauge",
    "Workers of PyTorch's DataLoaders among the job's processes: those named pt_data_worker, as "
    "from PyTorch 2.6; absent without any (/proc/PID/stat).",
    GPU,
)
READ_CALL_BYTES = Metric(
    "gpunode_job_read_call_bytes_total",
    "counter",
    "Bytes that the job's processes read with read calls, from disk, page cache or pipe, since "
    "each was first seen; mapped files do not count (/proc/PID/io: rchar).",
    GPU,
)
WRITE_CALL_BYTES = Metric(
    "gpunode_job_write_call_bytes_total",
    "counter",
    "Bytes that the job's processes wrote with write calls, to whatever kind of file, since each "
    "was first seen; send calls do not count (/proc/PID/io: wchar).",
    GPU,
)
IO_BYTES = Metric(
    "gpunode_job_io_bytes_total",
    "counter",
    "Bytes that the job's processes read from and wrote to disks since each was first seen; I/O to "
    "file servers may be missing (/proc/PID/io).",
    (*GPU, "direction"),
)
PRESSURE_WAITING = Metric(
    "gpunode_job_pressure_waiting_seconds_total",
    "counter",
    "Time when at least one task in the job's cgroup waited for the resource (RESOURCE.pressure: "
    "some).",
    (*GPU, "resource"),
)
PRESSURE_STALLED = Metric(
    "gpunode_job_pressure_stalled_seconds_total",
    "counter",
    "Time when all non-idle tasks in the job's cgroup waited for the resource (RESOURCE.pressure: "
    "full).",
    (*GPU, "resource"),
)
QUOTA_PERIODS = Metric(
    "gpunode_job_cpu_quota_periods_total",
    "counter",
    "CPU quota periods of the job's cgroup; absent without a quota (cpu.stat).",
    GPU,
)
QUOTA_THROTTLED_PERIODS = Metric(
    "gpunode_job_cpu_quota_throttled_periods_total",
    "counter",
    "CPU quota periods in which the job's cgroup used up its quota (cpu.stat).",
    GPU,
)
QUOTA_THROTTLED_SECONDS = Metric(
    "gpunode_job_cpu_quota_throttled_seconds_total",
    "counter",
    "Time that the CPU quota kept tasks from running, summed over CPUs (cpu.stat).",
    GPU,
)
MEMORY_LIMIT = Metric(
    "gpunode_job_memory_limit_bytes",
    "gauge",
    "Lowest memory limit of the process's cgroup and of those above it that belong to the job; "
    "absent without a limit (memory.max).",
    GPU,
)
MEMORY_USED = Metric(
    "gpunode_job_memory_used_bytes",
    "gauge",
    "Memory charged to the cgroup with the limit, page cache and /dev/shm included; without a "
    "limit, to that of the process (memory.current).",
    GPU,
)
MEMORY_ANONYMOUS = Metric(
    "gpunode_job_memory_anonymous_bytes",
    "gauge",
    "Anonymous memory charged to the cgroup that has the limit: with /dev/shm, what cannot be "
    "freed to stay below it (memory.stat: anon).",
    GPU,
)
MEMORY_SHMEM = Metric(
    "gpunode_job_memory_shmem_bytes",
    "gauge",
    "Shared memory charged to the cgroup that has the limit; files in /dev/shm count against it "
    "(memory.stat: shmem).",
    GPU,
)
MEMORY_EVENTS = Metric(
    "gpunode_job_memory_events_total",
    "counter",
    "Times the cgroup with the limit was throttled (high), reclaimed memory at its limit (max), "
    "or had a process killed (oom_kill) (memory.events).",
    (*GPU, "event"),
)
TMPFS = (*GPU, "tmpfs")
SHM_SIZE = Metric(
    "gpunode_job_shm_size_bytes",
    "gauge",
    "Size of the job's /dev/shm; `tmpfs` is its device, the same for all jobs that share it "
    "(statvfs of /proc/PID/root/dev/shm).",
    TMPFS,
)
SHM_USED = Metric(
    "gpunode_job_shm_used_bytes",
    "gauge",
    "Space used in the job's /dev/shm (statvfs of /proc/PID/root/dev/shm).",
    TMPFS,
)
SHM_FULL = Metric(
    "gpunode_job_shm_full_seconds",
    "gauge",
    "Seconds until the job's /dev/shm is full at the rate of the last minute; absent while it is "
    "not filling (statvfs of /proc/PID/root/dev/shm).",
    TMPFS,
)

COMPILER_PROGRAMS = frozenset(
    {
        "as",
        "cc1",
        "cc1plus",
        "cicc",
        "cl",
        "clang",
        "clang++",
        "cmake",
        "collect2",
        "compile_worker",
        "cudafe++",
        "fatbinary",
        "g++",
        "gcc",
        "ld",
        "ld.lld",
        "lld",
        "mlir-opt",
        "ninja",
        "nvcc",
        "nvlink",
        "ptxas",
        "triton",
    }
)
"""Programs that compile kernels, by the names of their files or modules."""

LOADER_WORKER = "pt_data_worker"
"""What PyTorch calls the workers of a DataLoader, from version 2.6:
https://github.com/pytorch/pytorch/blob/main/torch/utils/data/_utils/worker.py"""

ONE_CPU = 1.15
"""Threads that together use no more CPUs than this may be held by a lock such as Python's GIL."""

EARLY_READ_INTERVAL = 20.0
"""Seconds after which new processes are read early once more."""

FIRST_INTERVAL = 2.0
READS_PER_AGE = 3.0
"""Seconds between reads of a GPU to which a process may come or has just come, and how often at
least a job is read in its age: a new one is judged early, and what it does changes."""

BUSY = 0.95
"""A thread that uses at least this share of a CPU counts as busy."""

LOOK_CLOSER = 0.5
"""CPUs a process must use before its threads are read; a training process has 300."""

IDLE_CPU_SHARE = 0.05
"""Share of a CPU below which threads are not read again: what all that are left out have used since
they were read. A process has hundreds that sleep."""

SETTLED = 1.0
"""Age in seconds from which what a process does is known from its start: workers that prepare data
are often new ones with each epoch, and busy from then on."""

LOOKED_AT = 512
"""The most processes to read per job, shared among the owners of those on the GPU; with new ones
only, they take 0.1 s of CPU."""

THREADS = 4096
"""The most threads to read per job, in 0.1 s of CPU. A training process has 300; of one with more,
those that were busy are read again, and the others in turn. It is also the most on a GPU that are
asked for their children."""

ASK_ALL = 6
"""Reads of a job that is not new of which one asks every thread of a process on the GPU for its
children, and the others those that had any: nearly none of the 300 of a training process has."""

MAX_BUSY_THREADS = 512
"""The most threads that are read again because they were busy: more than most nodes have CPUs."""

PROGRAMS = 0.1
"""CPU seconds a read may spend on command lines, which may have megabytes, before it leaves those
of other new processes to the next."""

MOVED = ("read_bytes", "write_bytes", "rchar", "wchar")
"""The fields read from a process's ``io``."""

OWN_MEMORY = ("RssAnon", "VmSwap")
"""The fields read from a process's ``status``, which has sixty lines."""

MAX_LISTED = 32
"""The most processes per job that the API lists."""


def parse_fields(text: str, names: Collection[str]) -> dict[str, float]:
    """Parse lines such as ``RssAnon: 12 kB`` of these names into bytes. Raises ``ValueError``."""
    found = {}
    for line in text.split("\n"):  # a name may hold whatever else divides lines
        name, _, value = line.partition(":")
        if name not in names:
            continue
        number, *unit = value.split() or [""]
        if number.isdecimal():
            found[name] = counter(number) * (1024.0 if unit == ["kB"] else 1.0)
    return found


@dataclass(slots=True)
class JobRead:
    """One read of a job's processes; ``roots`` are those with a context on the GPU.

    ``whole`` is False if it has more than may be read, and ``unasked`` are the threads beyond those
    that were asked for their children. ``compilers`` is None if not every program
    is known. ``partly`` are the processes of whose threads some should have been read and were not.
    ``born`` has the age in seconds, if it is known, of processes that began since the last read.
    """

    roots: tuple[str, ...] = ()
    whole: bool = True
    unasked: int = 0
    compilers: set[str] | None = None
    processes: dict[str, ProcessStat] = field(default_factory=dict)
    threads: dict[tuple[str, str], ProcessStat] = field(default_factory=dict)
    partly: set[str] = field(default_factory=set)
    born: dict[str, float] = field(default_factory=dict)
    unreadable: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("stat", "io", "shm"), 0)
    )
    io: dict[str, tuple[float, ...]] = field(default_factory=dict)
    memory: float | None = None
    open_files: float | None = None
    shm: dict[str, Filesystem] = field(default_factory=dict)
    cgroup: Cgroup = field(default_factory=Cgroup)
    cgroup_path: str = ""


@dataclass(frozen=True, slots=True)
class Listed:
    """A process of a job; ``cpu`` is its share of a CPU, or None if unknown.

    ``state`` is a letter as in ``ps``, ``waits_in`` the kernel function in which a process in
    uninterruptible sleep (D) waits, if that can be read.
    """

    pid: int
    command: str
    cpu: float | None
    state: str
    waits_in: str


@dataclass(frozen=True, slots=True)
class JobDetail:
    """The first processes of a job, and the path of its cgroup."""

    processes: tuple[Listed, ...]
    cgroup: str


class JobProcesses:
    """Reads the processes on one GPU and their children."""

    name = "job_processes"
    needs = (
        "a process on the GPU, and to see it: hostPID and the node's root at path.rootfs; "
        "SYS_PTRACE and DAC_READ_SEARCH for the I/O, environment and /dev/shm of other users' "
        "processes"
    )
    divided: ClassVar[Divided] = "both"
    unknowns = (MORE_PROCESSES,)
    metrics = (
        PROCESSES,
        UNREADABLE,
        BLOCKED,
        CPU_SECONDS,
        BUSIEST_THREAD,
        BUSY_THREADS,
        HOST_CPUS,
        HOST_SYSTEM,
        HOST_FAULTS,
        HOST_THREAD,
        LOADER_CPUS,
        COMPILERS,
        COMPILER_CPUS,
        LOADER_WORKERS,
        MEMORY,
        OPEN_FILES,
        READ_CALL_BYTES,
        WRITE_CALL_BYTES,
        IO_BYTES,
        PRESSURE_WAITING,
        PRESSURE_STALLED,
        QUOTA_PERIODS,
        QUOTA_THROTTLED_PERIODS,
        QUOTA_THROTTLED_SECONDS,
        MEMORY_LIMIT,
        MEMORY_USED,
        MEMORY_ANONYMOUS,
        MEMORY_SHMEM,
        MEMORY_EVENTS,
        SHM_SIZE,
        SHM_USED,
        SHM_FULL,
    )

    def __init__(self, census: Census, gpu: Gpu, settings: Settings) -> None:
        self.census = census
        self.node = node = census.node
        self.gpu = gpu
        self.labels = gpu.identity.labels
        self.every = settings.gpu.processes_interval
        self.cpu_seconds = 0.0
        self.faults = 0.0
        self.io_bytes = [0.0] * len(MOVED)
        self.filling: dict[str, Filling] = {}
        self._shm = SharedMemory(node)
        self._usual = self.every
        self._before = JobRead()
        self._time = -math.inf
        self._renewed = -math.inf
        self._programs: dict[tuple[str, float], str] = {}
        self._busy: list[tuple[str, str]] = []
        self._unseen: dict[str, float] = {}
        """By process, CPU seconds that the threads left out have used since they were read."""

        self._turn = 0
        self._parents: dict[str, list[str]] = {}
        """By process on the GPU, its threads that had children when all were asked."""

    def read(self) -> Reading | None:
        """The job since the last read, or None if that was too recent to compute shares."""
        if self.node.clock.monotonic() - self._time < self.every / 2:
            return None
        found = self.census.look(self.gpu)
        if found is None:
            return Reading((), JobDetail((), ""))
        now = self.node.clock.monotonic()  # the driver may have taken a second to answer
        elapsed = now - self._time
        kept, crowd = bounded(
            found.holders, MORE_PROCESSES, LOOKED_AT, "processes on a GPU", whose=tenant_key
        )
        job = self._read_job({str(one.pid): one.budget() for one in kept}, not crowd, elapsed)
        self._time = now
        used = CpuUse.of(self._before, job, elapsed)
        self._busy = used.busiest()
        self._turn += 1
        self._accumulate(job)
        if job.roots != self._before.roots and now - self._renewed >= EARLY_READ_INTERVAL:
            self._renewed = now
        age = now - self._renewed if job.roots else 0.0
        self.every = min(self._usual, max(FIRST_INTERVAL, age / READS_PER_AGE))
        self._before = job
        samples = tuple(self._samples(job, used, now))
        shown = tuple(
            Listed(int(pid), stat.name, used.processes.get(pid), stat.state, self._wait(pid, stat))
            for pid, stat in islice(job.processes.items(), MAX_LISTED)
        )
        left_out = [*crowd]
        if not job.whole and not crowd:
            left_out.append(MORE_PROCESSES.seen(f"more than {LOOKED_AT} processes of a job"))
        if job.unasked:
            said = f"threads on a GPU beyond {THREADS}, not asked for their children"
            left_out.append(MORE_PROCESSES.seen(said, job.unasked))
        return Reading(samples, JobDetail(shown, job.cgroup_path), tuple(left_out))

    def _wait(self, pid: str, stat: ProcessStat) -> str:
        """The kernel function in which a process waits that cannot be interrupted."""
        if stat.state != "D":
            return ""
        try:
            return self.node.read_text(f"/proc/{pid}/wchan").strip().strip("0")
        except OSError:
            return ""

    def _look_at_births(self, job: JobRead) -> None:
        """Find the children that were not there at the last read, where all were looked for."""
        if job.roots != self._before.roots or not self._before.whole:
            return
        new = job.processes.keys() - self._before.processes.keys() - set(job.roots)
        if not new:
            return
        try:
            uptime = float(self.node.read_text("/proc/uptime").split()[0])
        except (OSError, ValueError, IndexError):
            return
        job.born = {pid: uptime - job.processes[pid].start / HERTZ for pid in new}

    def _look_at_programs(self, job: JobRead) -> None:
        """Read what each process runs, once."""
        found, compilers = {}, set()
        begin = self.node.clock.thread_cpu()
        for pid, stat in job.processes.items():
            program = self._programs.get((pid, stat.start))
            if program is None:
                spent = self.node.clock.thread_cpu()
                if begin is not None and spent is not None and spent - begin > PROGRAMS:
                    continue
                try:
                    program = self.node.program(int(pid))
                except TimeoutError:  # it may answer later
                    continue
                except OSError:
                    program = ""
            found[pid, stat.start] = program
            if not COMPILER_PROGRAMS.isdisjoint((program, stat.name)):
                compilers.add(pid)
        self._programs = found
        if job.whole and len(found) == len(job.processes):
            job.compilers = compilers

    def _read_job(self, owners: dict[str, str], whole: bool, elapsed: float) -> JobRead:
        """``owners`` has the roots, and of each whose it is, as do the children of each."""
        job = JobRead(roots=tuple(sorted(owners)), whole=whole)
        looked_at = Counter(owners.values())
        share = LOOKED_AT // max(1, len(looked_at))
        for pid in job.roots:
            if not self._add(job, pid, elapsed):
                job.unreadable["stat"] += 1
        queue = list(job.processes)
        room, elsewhere = THREADS, self.census.on_gpus
        self._parents = {pid: self._parents.get(pid, []) for pid in job.roots}
        new = job.roots != self._before.roots or self._usual > self.every
        asks_all = new or self._turn % ASK_ALL == 0
        for pid in queue:
            # A process on the GPU may train in any thread, as those of Ray Train do.
            others = self._parents.get(pid, [])
            if asks_all and pid in job.roots:
                others = self._other_threads(pid)
            job.unasked += max(0, len(others) - room)
            others = others[:room]
            room -= len(others)
            found = self._children(pid, (pid, *others))
            if asks_all and pid in job.roots:
                self._parents[pid] = [thread for thread in found if thread != pid]
            for child in chain.from_iterable(found.values()):
                # What is on another GPU is a rank, and no loader of the one that started it.
                if child in job.processes or int(child) in elsewhere:
                    continue
                if looked_at[owners[pid]] >= share:
                    job.whole = False
                    break
                if self._add(job, child, elapsed):
                    queue.append(child)
                    owners[child] = owners[pid]
                    looked_at[owners[pid]] += 1
        self._look_at_births(job)
        self._look_at_programs(job)
        self._look_at_memory(job)
        job.open_files = open_files_ratio(self.node, job.processes)
        seen = self._shm.look([pid for pid in job.roots if pid in job.processes])
        job.shm, job.unreadable["shm"] = seen.spaces, seen.unreadable
        self._look_at_cgroup(job)
        return job

    def _add(self, job: JobRead, pid: str, elapsed: float) -> bool:
        """Read one process, and its threads if it is new or was busy; False if it is unreadable."""
        stat = stat_of(self.node, pid)
        if stat is None:
            return False
        job.processes[pid] = stat
        used = _cpu_seconds(self._before.processes.get(pid), stat)
        if used is None or used >= LOOK_CLOSER * elapsed:
            self._add_threads(job, pid, used, IDLE_CPU_SHARE * elapsed)
        else:
            self._unseen.pop(pid, None)
        try:
            moved = parse_fields(self.node.read_text(f"/proc/{pid}/io"), MOVED)
            job.io[pid] = tuple(moved[name] for name in MOVED)
        except (OSError, ValueError, KeyError):
            job.unreadable["io"] += 1
        return True

    def _add_threads(self, job: JobRead, pid: str, used: float | None, asleep: float) -> None:
        """Read the threads of a process that ``used`` so many CPU seconds since the last read.

        If those that were busy used all but ``asleep`` of them, the others keep what they had.
        """
        unseen = self._unseen.pop(pid, 0.0)
        try:
            threads = self.node.list_directory(f"/proc/{pid}/task")
        except OSError:
            job.partly.add(pid)
            return
        room = THREADS - len(job.threads)
        if len(threads) > room:
            self._read_threads(job, pid, self._choose_threads(pid, threads, room))
            job.partly.add(pid)
            return
        there = dict.fromkeys(threads)
        busy = [thread for of, thread in self._busy if of == pid and thread in there]
        unseen += max(0.0, (used or 0.0) - self._read_threads(job, pid, busy))
        others = {(pid, thread) for thread in there} - job.threads.keys()
        had = self._before.threads
        if used is not None and busy and unseen < asleep and others <= had.keys():
            job.threads |= {key: had[key] for key in others}
            self._unseen[pid] = unseen
        else:
            self._read_threads(job, pid, [thread for _, thread in others])

    def _read_threads(self, job: JobRead, pid: str, threads: Iterable[str]) -> float:
        """Read some threads of a process; returns the CPU seconds they used since the last read."""
        used = 0.0
        for thread in threads:
            try:
                stat = parse_stat(self.node.read_text(f"/proc/{pid}/task/{thread}/stat"))
            except (OSError, ValueError):
                continue
            job.threads[pid, thread] = stat
            used += _cpu_seconds(self._before.threads.get((pid, thread)), stat) or 0.0
        return used

    def _choose_threads(self, pid: str, threads: list[str], room: int) -> list[str]:
        """Those of too many threads that were busy, and others: each at two reads in a row."""
        there = set(threads)
        stay = [thread for of, thread in self._busy if of == pid and thread in there]
        length = max(0, room - MAX_BUSY_THREADS) // 2
        begin = self._turn * length % len(threads)
        return list(dict.fromkeys(stay + (threads + threads)[begin : begin + 2 * length]))[:room]

    def _other_threads(self, pid: str) -> list[str]:
        """The threads of a process but its main one."""
        try:
            return [t for t in self.node.list_directory(f"/proc/{pid}/task") if t != pid]
        except OSError:
            return []

    def _children(self, pid: str, threads: Iterable[str]) -> dict[str, list[str]]:
        """The children of some threads of a process, by those that have any.

        The file requires CONFIG_PROC_CHILDREN, which the kernels of all distributions have.
        """
        found: dict[str, list[str]] = {}
        for thread in threads:
            with suppress(OSError):
                if text := self.node.read_text(f"/proc/{pid}/task/{thread}/children"):
                    found[thread] = [child for child in text.split() if child.isdecimal()]
        return found

    def _look_at_memory(self, job: JobRead) -> None:
        for pid in job.processes:
            try:
                fields = parse_fields(self.node.read_text(f"/proc/{pid}/status"), OWN_MEMORY)
            except (OSError, ValueError):
                continue
            if "RssAnon" in fields:
                job.memory = (job.memory or 0.0) + fields["RssAnon"] + fields.get("VmSwap", 0.0)

    def _look_at_cgroup(self, job: JobRead) -> None:
        """Read the cgroup of the first process that has one: a job's processes share it."""
        for pid in job.roots:
            try:
                paths = cgroup.locate(self.node.read_text(f"/proc/{pid}/cgroup"), self.node)
            except OSError:
                continue
            if paths is not None:
                job.cgroup, job.cgroup_path = cgroup.read_cgroup(self.node, paths), paths.memory
                return

    def _accumulate(self, job: JobRead) -> None:
        """Add the CPU time, page faults and I/O of each process since it was last seen."""
        for pid, stat in job.processes.items():
            used = _cpu_seconds(self._before.processes.get(pid), stat)
            if used is None:
                continue
            self.cpu_seconds += used
            if pid in job.roots:
                self.faults += max(0.0, stat.faults - self._before.processes[pid].faults)
            moved, had = job.io.get(pid), self._before.io.get(pid)
            if moved is not None and had is not None:
                for way in range(len(self.io_bytes)):
                    self.io_bytes[way] += max(0.0, moved[way] - had[way])

    def _samples(self, job: JobRead, used: CpuUse, now: float) -> Iterator[Sample]:
        at = self.labels
        for what, count in job.unreadable.items():
            yield from UNREADABLE.at(float(count), *at, what)
        if job.processes or not job.unreadable["stat"]:
            yield from CPU_SECONDS.at(self.cpu_seconds, *at)
            if job.whole:
                yield from PROCESSES.at(float(len(job.processes)), *at)
                blocked = sum(stat.state == "D" for stat in job.processes.values())
                yield from BLOCKED.at(float(blocked), *at)
                workers = sum(stat.name == LOADER_WORKER for stat in job.processes.values())
                yield from LOADER_WORKERS.at(float(workers) if workers else None, *at)
        if used.threads and job.whole:
            # No thread uses more CPU than its process.
            yield from BUSIEST_THREAD.at(max(used.threads.values()), *at)
            busy = sum(share >= BUSY for (_, thread), share in used.threads.items() if thread)
            yield from BUSY_THREADS.at(float(busy), *at)
        if used.processes:
            shares = [share for pid, share in used.processes.items() if pid in job.roots]
            yield from HOST_CPUS.at(sum(shares) if shares else None, *at)
            system = [share for pid, share in used.system.items() if pid in job.roots]
            yield from HOST_FAULTS.at(self.faults, *at)
            yield from HOST_SYSTEM.at(sum(system) if system else None, *at)
            yield from HOST_THREAD.at(used.host_thread(job), *at)
            if job.compilers is not None:
                yield from COMPILERS.at(float(len(job.compilers)), *at)
                yield from COMPILER_CPUS.at(used.compilers(job.compilers), *at)
                if job.whole:
                    loaders = used.loader(job.roots, job.compilers)
                    yield from LOADER_CPUS.at(loaders, *at)
        if job.whole:
            yield from MEMORY.at(job.memory, *at)
        yield from OPEN_FILES.at(job.open_files, *at)
        if job.io:
            for way, direction in enumerate(("read", "write")):
                yield from IO_BYTES.at(self.io_bytes[way], *at, direction)
            yield from READ_CALL_BYTES.at(self.io_bytes[2], *at)
            yield from WRITE_CALL_BYTES.at(self.io_bytes[3], *at)
        yield from self._cgroup_samples(job.cgroup, at)
        yield from self._shm_samples(job.shm, at, now)

    def _cgroup_samples(self, group: Cgroup, at: tuple[str, str]) -> Iterator[Sample]:
        for (resource, share), seconds in group.pressure.items():
            metric = PRESSURE_WAITING if share == "some" else PRESSURE_STALLED
            yield from metric.at(seconds, *at, resource)
        yield from QUOTA_PERIODS.at(group.quota_periods, *at)
        yield from QUOTA_THROTTLED_PERIODS.at(group.throttled_periods, *at)
        yield from QUOTA_THROTTLED_SECONDS.at(group.throttled_seconds, *at)
        yield from MEMORY_LIMIT.at(group.memory_limit, *at)
        yield from MEMORY_USED.at(group.memory_used, *at)
        yield from MEMORY_ANONYMOUS.at(group.anonymous, *at)
        yield from MEMORY_SHMEM.at(group.shmem, *at)
        for event, count in group.events.items():
            yield from MEMORY_EVENTS.at(count, *at, event)

    def _shm_samples(
        self, spaces: dict[str, Filesystem], at: tuple[str, str], now: float
    ) -> Iterator[Sample]:
        self.filling = {tmpfs: self.filling.get(tmpfs) or Filling() for tmpfs in spaces}
        for tmpfs, space in spaces.items():
            yield from SHM_SIZE.at(space.size, *at, tmpfs)
            yield from SHM_USED.at(space.size - space.free, *at, tmpfs)
            yield from SHM_FULL.at(self.filling[tmpfs].add(now, space.free), *at, tmpfs)


def _cpu_seconds(before: ProcessStat | None, after: ProcessStat) -> float | None:
    """CPU seconds a process or thread used since the last read; None for a new one."""
    if before is None or before.start != after.start:
        return None
    return max(0.0, after.cpu - before.cpu)


@dataclass(frozen=True, slots=True)
class CpuUse:
    """CPU shares since the last read, of processes and of threads.

    ``system`` is the part of the processes' in the kernel, of those that were read twice.
    ``gains`` are those of the threads that were read twice, each at most one CPU: the ticks of the
    kernel are coarser than the clock. ``threads`` also has an entry without a thread for each
    process that used too little for a closer look. It is empty if a busier thread than those in it
    is possible: of a busy process whose threads have been read only once, or not all, so that some
    of its CPU time is unexplained. A process that has just begun is not in it.
    """

    processes: dict[str, float]
    system: dict[str, float]
    gains: dict[tuple[str, str], float]
    threads: dict[tuple[str, str], float]

    @staticmethod
    def of(before: JobRead, job: JobRead, elapsed: float) -> CpuUse:
        """What the processes and threads of both reads used in between."""
        processes = {
            pid: used / elapsed
            for pid, stat in job.processes.items()
            if (used := _cpu_seconds(before.processes.get(pid), stat)) is not None
        }
        system = {
            pid: max(0.0, job.processes[pid].system - before.processes[pid].system) / elapsed
            for pid in processes
        }
        gains = {
            key: min(1.0, used / elapsed)
            for key, stat in job.threads.items()
            if (used := _cpu_seconds(before.threads.get(key), stat)) is not None
        }
        ages = {
            pid: age for pid, age in job.born.items() if age >= SETTLED and pid not in job.partly
        }
        processes |= {pid: job.processes[pid].cpu / age for pid, age in ages.items()}
        gains |= {
            (pid, thread): min(1.0, stat.cpu / ages[pid])
            for (pid, thread), stat in job.threads.items()
            if pid in ages
        }
        closer = {pid for pid, _ in job.threads} | job.partly
        shares: dict[str, list[float]] = {pid: [] for pid in closer & processes.keys()}
        for (pid, _), share in gains.items():
            if pid in shares:
                shares[pid].append(share)
        whole = {(pid, ""): used for pid, used in processes.items() if pid not in closer}
        explained = all(
            found and (pid not in job.partly or processes[pid] - sum(found) < min(BUSY, max(found)))
            for pid, found in shares.items()
        )
        return CpuUse(processes, system, gains, {**whole, **gains} if explained else {})

    def busiest(self) -> list[tuple[str, str]]:
        """The threads that used most, and any time at all."""
        most = nlargest(MAX_BUSY_THREADS, self.gains, key=self.gains.__getitem__)
        return [key for key in most if self.gains[key]]

    def host_thread(self, job: JobRead) -> float | None:
        """The busiest thread of a process on the GPU, or all of one that uses about one CPU."""
        found = []
        for pid in job.roots:
            whole = self.processes.get(pid)
            if whole is None:
                continue
            if whole > ONE_CPU:
                threads = [share for (of, _), share in self.threads.items() if of == pid]
                if not threads:
                    return None
                whole = max(threads)
            found.append(min(1.0, whole))
        return max(found, default=None)

    def loader(self, roots: Collection[str], compilers: Collection[str]) -> float | None:
        """CPUs of the busiest of the other processes, compilers aside."""
        others = (
            share
            for pid, share in self.processes.items()
            if pid not in roots and pid not in compilers
        )
        return max(others, default=None)

    def compilers(self, compilers: Collection[str]) -> float:
        """CPUs that compilers used; one that is new has just begun."""
        return sum(self.processes.get(pid, 1.0) for pid in compilers)


HOLDERS_SOURCE: HoldersSource = JobProcesses
