"""Limits, placement and environment of the processes on the GPUs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from gpunode.audit.check import NO_ADAPTER, Check, Observation, Subject, Undecided, each
from gpunode.audit.system import numa_nodes
from gpunode.driver.driver import Gpu, optional
from gpunode.holders.holder import Holder
from gpunode.host.cpu import parse, parse_cpu_list
from gpunode.jobs import cgroup
from gpunode.jobs.processes import LOADER_WORKER
from gpunode.nccl import log as nccl_log
from gpunode.node.kernel import SCHED_IDLE, parse_scheduling, parse_stat, parse_status

FILES = 65536
SHM = 1 << 30
PATH = 128
"""Characters of a path in a finding; a tenant's may have 4,096."""

DESCENDANTS = 128
"""The most processes to read of each on a GPU; a training process has tens of loader workers."""

NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"

Wrong = Callable[[Subject, Holder, Gpu], "str | None"]
"""What is wrong with a process, if anything."""


def _check_processes(wrong: Wrong) -> Callable[[Subject], Observation]:
    """Check every readable process on a GPU."""

    def look(subject: Subject) -> Observation:
        findings: dict[str, str | None] = {}
        problem: OSError | None = None
        silent = ""
        for holder, gpu in subject.holders.items():
            try:
                found = holder.ask(partial(wrong, subject, holder, gpu))
                findings[f"process {holder.pid}"] = found
            except OSError as error:  # it has ended, belongs to another user, or does not answer
                problem = error
                if isinstance(error, TimeoutError) and not silent:
                    silent = f"; {str(error.filename)[:PATH]} {error.strerror}"
        if not findings and problem is not None:
            raise problem
        finding = each(findings)
        return Observation(finding.ok, finding.found + silent)

    return look


def _limit(name: str, least: float) -> Wrong:
    """Check that a soft limit is at least ``least``."""

    def wrong(subject: Subject, holder: Holder, _: Gpu) -> str | None:
        for line in subject.text(f"/proc/{holder.pid}/limits").splitlines():
            if line.startswith(name):
                soft = next(iter(line.removeprefix(name).split()), "")
                return None if soft == "unlimited" or int(soft) >= least else soft
        raise ValueError(f"no {name} in /proc/{holder.pid}/limits")

    return wrong


def _shm(subject: Subject, holder: Holder, _: Gpu) -> str | None:
    space = subject.node.filesystem(f"/proc/{holder.pid}/root/dev/shm")
    return None if space.size >= SHM else f"{space.size / 2**20:.0f} MiB"


def _locality(subject: Subject, holder: Holder, gpu: Gpu) -> str | None:
    if len(numa_nodes(subject)) < 2:
        raise Undecided("only one NUMA node")
    bus_id = gpu.identity.bus_id
    local = parse_cpu_list(subject.text(f"/sys/bus/pci/devices/{bus_id}/local_cpulist"))
    allowed = _allowed(subject, holder)
    near = parse_cpu_list(allowed) <= local
    return None if near else f"may run on CPUs {allowed}, far from GPU {bus_id}"


def _quota(subject: Subject, holder: Holder, _: Gpu) -> str | None:
    paths = cgroup.locate(subject.text(f"/proc/{holder.pid}/cgroup"), subject.node)
    if paths is None:
        raise Undecided("the cgroup is outside this namespace")
    found = cgroup.read_cgroup(subject.node, paths)
    throttled, periods = found.throttled_periods or 0.0, found.quota_periods or 0.0
    return f"throttled in {throttled / periods:.0%} of periods" if throttled else None


def _switched_off(_subject: Subject, holder: Holder, _: Gpu) -> str | None:
    values = holder.environment()
    names = ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE")
    found = [f"{name}={values[name]}" for name in names if values.get(name, "0") != "0"]
    return ", ".join(found) or None


def _transport(subject: Subject, holder: Holder, _: Gpu) -> str | None:
    if not subject.rdma_ports:
        raise Undecided(NO_ADAPTER)
    chosen = holder.environment().get("NCCL_NET", "")
    return f"NCCL_NET={chosen}" if chosen.lower() == "socket" else None


def _communicators(holder: Holder, gpu: Gpu) -> list[nccl_log.LoggedRank]:
    log = nccl_log.read_log(holder)
    found = log.on(gpu.identity.bus_id) if log else []
    if not found:
        raise Undecided("no communicator in an NCCL_DEBUG_FILE")
    return found


def _uses(communicators: list[nccl_log.LoggedRank], transport: str) -> str | None:
    used = sum(found.transports[transport] for found in communicators)
    return f"{used} channels over {transport}" if used else None


def _fell_back(subject: Subject, holder: Holder, gpu: Gpu) -> str | None:
    if not subject.rdma_ports:
        raise Undecided(NO_ADAPTER)
    return _uses(_communicators(holder, gpu), "NET/Socket")


def _around_nvlink(_subject: Subject, holder: Holder, gpu: Gpu) -> str | None:
    if not any(link.up for link in optional(gpu.nvlinks) or []):
        raise Undecided("no NVLink")
    return _uses(_communicators(holder, gpu), "SHM")


def _threads(subject: Subject, holder: Holder, _: Gpu) -> str | None:
    cores = len(parse(subject.text("/proc/stat")).cores)
    share = max(1, cores // len(subject.holders))
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    values = {name: value for name in names if (value := holder.environment().get(name))}
    if "OMP_NUM_THREADS" not in values and len(subject.holders) > 1:
        return "OMP_NUM_THREADS is not set"
    # OMP_NUM_THREADS may have a number for each level of nesting.
    over = [f"{n}={value}" for n, value in values.items() if int(value.split(",")[0]) > share]
    return f"{', '.join(over)}, {share} cores each" if over else None


def _descendants(subject: Subject, holder: Holder) -> list[str]:
    """A process and the first of those that it has started."""
    found = [str(holder.pid)]
    for pid in found:
        path = f"/proc/{pid}/task/{pid}/children"
        try:
            children = subject.text(path).split()
        except OSError:  # it has ended
            continue
        found += [child for child in children if child.isdecimal() and child not in found]
        del found[DESCENDANTS:]
    return found


def _stats(subject: Subject, holder: Holder) -> dict[str, str]:
    """The stat files of a process and of those that it has started, by PID."""
    found = {}
    for pid in _descendants(subject, holder):
        with suppress(OSError):  # it has ended
            found[pid] = subject.text(f"/proc/{pid}/stat")
    if not found:
        raise Undecided("the processes are not visible")
    return found


def _priority(subject: Subject, holder: Holder, _: Gpu) -> str | None:
    found = [parse_scheduling(text) for text in _stats(subject, holder).values()]
    if any(each.policy == SCHED_IDLE for each in found):
        return "SCHED_IDLE"
    nice = max(each.nice for each in found)
    return f"nice {nice}" if nice > 0 else None


def _allowed(subject: Subject, holder: Holder) -> str:
    """The CPUs on which a process may run, as the kernel lists them."""
    allowed = parse_status(subject.text(f"/proc/{holder.pid}/status")).get("Cpus_allowed_list")
    if not allowed:
        raise ValueError(f"no Cpus_allowed_list in /proc/{holder.pid}/status")
    return allowed[0]


def _isolated(subject: Subject) -> Observation:
    text = subject.text("/sys/devices/system/cpu/isolated")
    isolated = parse_cpu_list(text)
    if not isolated:
        return Observation(True, "no core is isolated")

    def wrong(subject: Subject, holder: Holder, _: Gpu) -> str | None:
        shared = parse_cpu_list(_allowed(subject, holder)) & isolated
        return f"may run on {len(shared)} of the isolated CPUs {text}" if len(shared) > 1 else None

    return _check_processes(wrong)(subject)


def _workers(subject: Subject) -> Observation:
    workers: dict[str, set[str]] = {}
    for holder in subject.holders:
        with suppress(OSError):  # it has ended, or belongs to another user
            stats = holder.ask(partial(_stats, subject, holder))
            allowed = _allowed(subject, holder)
            named = {pid for pid, text in stats.items() if parse_stat(text).name == LOADER_WORKER}
            workers.setdefault(allowed, set()).update(named)  # one on a GPU may start another
    if not any(workers.values()):
        raise Undecided(f"no process named {LOADER_WORKER}")
    return each(
        {
            f"CPUs {allowed}": (
                None
                if len(named) <= (cpus := len(parse_cpu_list(allowed)))
                else f"{len(named)} for {cpus}"
            )
            for allowed, named in workers.items()
            if named
        }
    )


def _mps_share(subject: Subject) -> Observation:
    findings: dict[str, str | None] = {}
    for gpu in subject.gpus:
        clients = {p.pid for p in optional(gpu.processes) or [] if p.kind == "mps"}
        for holder in subject.holders if clients else ():
            if holder.pid in clients:
                try:
                    share = holder.environment().get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") or "100"
                except OSError:  # it has ended, or belongs to another user
                    continue
                alone = len(clients) == 1 and float(share) < 100
                findings[f"process {holder.pid}"] = f"alone with {share} %" if alone else None
    if not findings:
        raise Undecided("no process that can be read uses MPS")
    return each(findings)


CHECKS = (
    Check(
        "locked_memory",
        "unlimited",
        "RDMA locks the memory it registers; under a limit, NCCL fails or runs without RDMA.",
        "ulimit -l unlimited; LimitMEMLOCK=infinity in the unit of the container runtime",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
        _check_processes(_limit("Max locked memory", float("inf"))),
    ),
    Check(
        "open_files",
        f"at least {FILES}",
        'DataLoader workers pass tensors as file descriptors and fail with "Too many open files".',
        f"ulimit -n {FILES}; LimitNOFILE={FILES} in the unit of the container runtime",
        "https://pytorch.org/docs/stable/multiprocessing.html#file-descriptor-file-descriptor",
        _check_processes(_limit("Max open files", FILES)),
    ),
    Check(
        "shm_size",
        "at least 1 GiB",
        'Containers get only 64 MiB: DataLoader workers die ("Bus error"), and NCCL cannot start.',
        "docker run --shm-size=16g; in Kubernetes, mount an emptyDir of medium Memory at /dev/shm",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#shared-memory",
        _check_processes(_shm),
    ),
    Check(
        "numa_placement",
        "bound to the CPUs near its GPU",
        "From the other socket, every kernel launch and copy crosses the link between sockets.",
        "numactl --cpunodebind=NODE --membind=NODE, or the kubelet's Topology Manager",
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-getting-started/",
        _check_processes(_locality),
    ),
    Check(
        "cpu_quota",
        "no quota, or one that is never used up",
        "A throttled process stops for the rest of a 100 ms period, and all ranks wait for it.",
        "raise or remove the pod's limits.cpu",
        "https://docs.kernel.org/scheduler/sched-bwc.html",
        _check_processes(_quota),
    ),
    Check(
        "nccl_switched_off",
        "no NCCL_*_DISABLE left over from debugging",
        "Without P2P, shared memory or InfiniBand, collectives are many times slower.",
        "unset NCCL_P2P_DISABLE NCCL_SHM_DISABLE NCCL_IB_DISABLE",
        NCCL,
        _check_processes(_switched_off),
    ),
    Check(
        "nccl_transport",
        "not NCCL_NET=Socket on nodes with InfiniBand or RoCE",
        "TCP has a tenth of the bandwidth of RDMA and occupies whole CPUs.",
        "unset NCCL_NET",
        NCCL,
        _check_processes(_transport),
    ),
    Check(
        "nccl_sockets",
        "no channel over sockets on nodes with InfiniBand or RoCE",
        "If NCCL cannot use an adapter, it falls back to TCP, and only its log says so.",
        "grep NET/IB in the NCCL_DEBUG_FILE; give the pod an rdma/ resource and IPC_LOCK",
        NCCL,
        _check_processes(_fell_back),
    ),
    Check(
        "nccl_shared_memory",
        "no channel over shared memory between GPUs with NVLink",
        "Through host memory, collectives run at a tenth of the bandwidth of NVLink.",
        "unset NCCL_P2P_DISABLE NCCL_P2P_LEVEL; nvidia-smi topo -p2p r",
        NCCL,
        _check_processes(_around_nvlink),
    ),
    Check(
        "omp_threads",
        "OMP_NUM_THREADS is set, and neither it nor MKL_NUM_THREADS is more than the process's "
        "share of the cores",
        "Otherwise each process starts one thread per core, and they compete for the cores; "
        "MKL_NUM_THREADS comes before OMP_NUM_THREADS in MKL.",
        "export OMP_NUM_THREADS=CORES_PER_PROCESS; unset MKL_NUM_THREADS",
        "https://pytorch.org/docs/stable/threading_environment_variables.html",
        _check_processes(_threads),
    ),
    Check(
        "loader_workers",
        "no more workers of PyTorch's DataLoaders than CPUs that they may use",
        "Workers that share a CPU take turns, and each holds its own batches in memory.",
        "DataLoader(num_workers=CPUS_PER_PROCESS - 1)",
        "https://pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
        _workers,
    ),
    Check(
        "cpu_priority",
        "nice at most 0, and not SCHED_IDLE",
        "A process with a lower priority gives its core to anything else that runs, and all ranks "
        "wait for its next kernel or batch.",
        "renice 0 -p PID; chrt --other -p 0 PID; start it without nice",
        "https://man7.org/linux/man-pages/man7/sched.7.html",
        _check_processes(_priority),
    ),
    Check(
        "isolated_cores",
        "no process may run on several isolated cores",
        "The scheduler does not balance isolated cores: all threads of such a process stay on one.",
        "boot without isolcpus, keep these cores out of the cpuset, or bind one thread to each",
        "https://docs.kernel.org/admin-guide/kernel-parameters.html",
        _isolated,
    ),
    Check(
        "mps_share",
        "no process has less than the whole GPU while it is alone on it",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE closes the other SMs to a client of MPS also when "
        "nobody else uses them.",
        "unset CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, or end MPS: echo quit | nvidia-cuda-mps-control",
        "https://docs.nvidia.com/deploy/mps/index.html",
        _mps_share,
    ),
)
