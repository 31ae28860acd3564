"""What happens to a node or to a GPU of it, beside its jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tests.alerts.scenarios.course import Course, Exposition, Key, Linear
from tests.alerts.scenarios.shorthand import UNSEEN, Options, seconds

PROCESS = "gpunode_gpu_process_info"

KUBE = "10.0.0.9:8080"
"""Where kube-state-metrics is scraped."""

GIB = 2.0**30


@dataclass(frozen=True, slots=True)
class On:
    """What an event is applied to."""

    out: Exposition
    gpu: int | None
    """The GPU, or None for the whole node."""

    active: bool
    since: float
    """When it began last; negative before."""

    options: Options
    times: int
    """How often it has begun."""

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the GPU."""
        return {} if self.gpu is None else gpu_labels(self.out.node, self.gpu)

    def number(self, option: str, default: float) -> float:
        """An option that is a number."""
        return float(self.options.get(option, default))

    def text(self, option: str, default: str) -> str:
        """An option that is a name."""
        return self.options.get(option, default)

    @property
    def happened(self) -> bool:
        """Whether it has begun, even if it is over."""
        return self.since >= 0

    @property
    def once(self) -> float:
        """A counter that counts it once."""
        return float(self.happened)

    @property
    def rises(self) -> Linear:
        """A counter that counts what happens a second, from when it does."""
        if not self.happened:
            return Linear(0.0)
        return Linear(0.0, self.number("rate", 5.0), self.since)


def gpu_labels(node: str, gpu: int) -> dict[str, str]:
    """The labels of a GPU."""
    return {"gpu": str(gpu), "uuid": f"GPU-{node}-{gpu}"}


def bus_id(gpu: int) -> str:
    """The PCI address of a GPU."""
    return f"0000:{0x1A + gpu:02x}:00.0"


# The scrape


def unreachable(on: On) -> None:
    """Prometheus cannot scrape it."""
    if on.active:
        on.out.up = 0.0


def restarts(on: On) -> None:
    """Its exporter does not answer, and then starts anew."""
    unreachable(on)
    on.out.daemon = on.out.daemon and not on.active


def leaves(on: On) -> None:
    """It is no target any more, and no node of Kubernetes."""
    if on.active:
        on.out.up = None
        on.out.others.clear()


def is_not_discovered(on: On) -> None:
    """It is no target, but a node of Kubernetes."""
    if on.active:
        on.out.up = None


def node_exporter(on: On) -> None:
    """Another exporter of the node is scraped; while it happens, it does not answer."""
    labels = (("instance", f"{on.out.node}:9100"), ("job", "node-exporter"))
    on.out.others["up", labels] = Linear(float(not on.active))


def is_scraped_twice(on: On) -> None:
    """Two scrape jobs have it."""
    if on.active:
        on.out.scraped_by = ("gpunode", "kubernetes-gpunode")


def has_default_labels(on: On) -> None:
    """``instance`` is an address, as without a relabeling."""
    if on.active:
        on.out.address = f"10.1.0.{on.out.node.rpartition('-')[2]}:9400"


def kubernetes(on: On) -> None:
    """kube-state-metrics knows it, with so many GPUs."""
    labels = {"instance": KUBE, "node": on.out.node}
    sizes = {"resource": "nvidia_com_gpu", "unit": "integer"}
    allocatable = Linear(on.number("gpus", 8.0))
    on.out.others["kube_node_status_allocatable", tuple(sorted({**labels, **sizes}.items()))] = (
        allocatable
    )
    key = "kube_node_spec_unschedulable", tuple(sorted(labels.items()))
    on.out.others.setdefault(key, Linear(0.0))
    ready = {**labels, "condition": "Ready", "status": "true"}
    key = "kube_node_status_condition", tuple(sorted(ready.items()))
    on.out.others[key] = Linear(1.0)


def is_cordoned(on: On) -> None:
    """Nothing new is scheduled on it."""
    labels = {"instance": KUBE, "node": on.out.node}
    key = "kube_node_spec_unschedulable", tuple(sorted(labels.items()))
    on.out.others[key] = Linear(float(on.active))


def is_drained(on: On) -> None:
    """The file that says so is there, which the daemon of every other node looks for in vain."""
    on.out.gauge("gpunode_node_drained", float(on.active))


def is_unknown_to_kubernetes(on: On) -> None:
    """kube-state-metrics has nothing to say, as while it restarts."""
    if on.active:
        on.out.others.clear()


def no_prometheus(on: On) -> None:
    """No Prometheus scrapes, as while it restarts."""
    on.out.seen = on.out.seen and not on.active


def kubelet_restarts(on: On) -> None:
    """The kubelet does not tell who has its GPUs; only of their processes is it known."""
    whole = {"source": "kubelet", "gpu": "", "uuid": "", "mountpoint": ""}
    on.out.gauge("gpunode_source_up", float(not on.active), **whole)
    if not on.active:
        return
    processes = [dict(key[1])["uuid"] for key in on.out.series if key[0] == PROCESS]
    for (name, labels), course in list(on.out.series.items()):
        own = dict(labels)
        if name == "gpunode_gpu_owner_info" and own["via"] == "kubelet":
            del on.out.series[name, labels]
            if own["uuid"] in processes:
                by_process = tuple(sorted({**own, "via": "process"}.items()))
                on.out.series[name, by_process] = course
        elif name == "gpunode_gpu_allocated" and own["uuid"] not in processes:
            del on.out.series[name, labels]


def has_a_wrong_clock(on: On) -> None:
    """Its clock is ahead by so many seconds, or behind."""
    if on.active:
        for key, course in on.out.series.items():
            if key[0].endswith("_timestamp_seconds") and isinstance(course, Linear):
                value = course.value + on.number("by", 600.0)
                on.out.series[key] = replace(course, value=value)


def boots(on: On) -> None:
    """It is started; before, it had been for a day."""
    at = on.since if on.happened else -86400.0
    on.out.gauge("gpunode_node_boot_timestamp_seconds", at)


def is_declared_repaired(on: On) -> None:
    """A person, or a test that passed, has said so."""
    if on.happened:
        on.out.gauge("gpunode_node_repaired_timestamp_seconds", on.since)


def source_fails(on: On) -> None:
    """A source of the exporter fails."""
    labels = {"gpu": "", "uuid": "", "mountpoint": on.text("mountpoint", "")}
    up = float(not on.active)
    on.out.gauge("gpunode_source_up", up, source=on.text("source", "lustre"), **labels)


# GPUs


def xid(on: On) -> None:
    """The driver reports an XID of the GPU."""
    if not on.happened:
        return
    labels = {**on.labels, "xid": on.text("xid", "79")}
    on.out.gauge("gpunode_gpu_xid_errors_total", float(on.times), **labels)
    on.out.gauge("gpunode_gpu_xid_last_timestamp_seconds", on.since, **labels)
    logged(on)


def logged(on: On) -> None:
    """Only the kernel log has an XID."""
    on.out.gauge("gpunode_kernel_log_events_total", float(on.times), kind="xid")
    if on.happened:
        labels = {"bus_id": bus_id(on.gpu or 0), "xid": on.text("xid", "79")}
        on.out.gauge("gpunode_kernel_log_xid_errors_total", float(on.times), **labels)
        on.out.gauge("gpunode_kernel_log_last_xid_timestamp_seconds", on.since, **labels)
        on.out.gauge("gpunode_kernel_log_last_event_timestamp_seconds", on.since, kind="xid")


def nvlink5(on: On) -> None:
    """The driver reports an error of NVLink 5, whose line in the kernel log says more."""
    xid(on)
    if on.happened:
        labels = {
            "bus_id": bus_id(on.gpu or 0),
            "xid": on.text("xid", "149"),
            "link": on.text("link", "8"),
            "severity": on.text("severity", "fatal"),
            "action": on.text("action", "reset_gpu"),
        }
        on.out.gauge("gpunode_kernel_log_nvlink_xid_errors_total", 1.0, **labels)
        on.out.gauge("gpunode_kernel_log_last_nvlink_xid_timestamp_seconds", on.since, **labels)


def memory_errors(on: On) -> None:
    """Its memory has an error that ECC could not correct."""
    on.out.gauge("gpunode_gpu_ecc_errors_total", on.once, kind="uncorrected", **on.labels)


def remap_pends(on: On) -> None:
    """A row of its memory is replaced at the next reset."""
    on.out.gauge("gpunode_gpu_row_remap_pending", float(on.active), **on.labels)


def remap_failed(on: On) -> None:
    """There is no spare row left."""
    on.out.gauge("gpunode_gpu_row_remap_failed", float(on.active), **on.labels)


def is_reset(on: On) -> None:
    """Its driver's counters begin again."""
    energy = Linear(0.0, 300.0, on.since) if on.happened else Linear(1e9, 300.0)
    on.out.line("gpunode_gpu_driver_energy_joules_total", energy, **on.labels)


def asks_for(on: On) -> None:
    """The driver asks for a recovery."""
    if on.active:
        on.out.drop("gpunode_gpu_recovery_action", **on.labels)
        action = on.text("action", "reset")
        on.out.gauge("gpunode_gpu_recovery_action", 1.0, action=action, **on.labels)


def does_not_answer(on: On) -> None:
    """The driver has no answer about it; whose it is is known."""
    if on.active:
        owners = _owners(on)
        on.out.drop("gpunode_gpu_", **on.labels)
        on.out.series |= owners
        for source in ("gpu_activity", "gpu_health"):
            on.out.gauge("gpunode_source_up", 0.0, source=source, mountpoint="", **on.labels)


def is_missing(on: On) -> None:
    """The driver does not know it."""
    if on.active:
        owners = _owners(on)
        on.out.drop("gpunode_", **on.labels)
        on.out.series |= owners


def _owners(on: On) -> dict[Key, Course]:
    """Whose it is, which is known of a GPU that is lost."""
    return {
        key: course
        for key, course in on.out.series.items()
        if key[0] == "gpunode_gpu_owner_info" and on.labels.items() <= dict(key[1]).items()
    }


def has_no_driver(on: On) -> None:
    """The driver does not load; what is in PCI slots remains to be seen."""
    if on.active:
        on.out.drop("gpunode_gpu_")
        on.out.drop("gpunode_job_")
        on.out.drop("gpunode_training_")
        on.out.drop("gpunode_source_up", source="gpu_activity")
        whole = {"gpu": "", "uuid": "", "mountpoint": ""}
        on.out.gauge("gpunode_source_up", 0.0, source="gpu", **whole)


def is_blind(on: On) -> None:
    """Its sensors cannot tell what it does, as with MIG or before Hopper."""
    if on.active:
        on.out.drop("gpunode_gpu_seconds_total", **on.labels)
        on.out.counter("gpunode_gpu_seconds_total", 1.0, state="unknown", **on.labels)
        sensor = {"sensor": "gpm", **on.labels}
        on.out.gauge("gpunode_gpu_ledger_sensor", 0.0, **sensor)
        mig = float("mig" in on.options)
        on.out.gauge("gpunode_gpu_mig_mode", mig, **on.labels)


def is_hot(on: On) -> None:
    """It is hot, and the driver throttles it."""
    if on.active:
        on.out.gauge("gpunode_gpu_temperature_celsius", on.number("celsius", 92.0), **on.labels)
    share = on.number("throttled", 0.3) if on.active else 0.0
    on.out.counter("gpunode_gpu_throttled_seconds_total", share, reason="hw_thermal", **on.labels)


def is_capped(on: On) -> None:
    """Somebody has lowered its power limit."""
    if on.active:
        on.out.gauge("gpunode_gpu_power_limit_watts", on.number("watts", 400.0), **on.labels)


def clocks(on: On) -> None:
    """The SM clock of its GPUs (``hertz``) and the highest that they can have."""
    on.out.drop("gpunode_gpu_sm_clock_hertz", **on.labels)
    on.out.gauge("gpunode_gpu_sm_clock_hertz", on.number("hertz", 1.9e9), **on.labels)
    on.out.gauge("gpunode_gpu_sm_clock_max_hertz", 1.98e9, **on.labels)


def memory_moves(on: On) -> None:
    """The ``share`` of HBM's rate that its GPUs use, at the memory's usual clock."""
    labels = on.labels
    on.out.drop("gpunode_gpu_active_seconds_total", **labels)
    on.out.counter(
        "gpunode_gpu_active_seconds_total", on.number("share", 0.6), unit="dram", **labels
    )
    on.out.gauge("gpunode_gpu_memory_clock_hertz", 2.6e9, **labels)
    on.out.gauge("gpunode_gpu_memory_clock_max_hertz", 2.6e9, **labels)


def power_brake(on: On) -> None:
    """The power supply slows it."""
    share = on.number("throttled", 0.5) if on.active else 0.0
    reason = "hw_power_brake"
    on.out.counter("gpunode_gpu_throttled_seconds_total", share, reason=reason, **on.labels)
    on.out.gauge("gpunode_gpu_clock_event_active", float(on.active), reason=reason, **on.labels)


def nvlink(on: On) -> None:
    """Its NVLinks; one is down."""
    for link in range(4):
        up = float(not (on.active and link == 0))
        on.out.gauge("gpunode_gpu_nvlink_up", up, link=str(link), **on.labels)


def nvlink_recovers(on: On) -> None:
    """Its first links, 1 of 18, fail and recover so often a second; the others never do."""
    links = int(on.number("links", 1.0))
    for link in range(18):
        on.out.gauge("gpunode_gpu_nvlink_up", 1.0, link=str(link), **on.labels)
    kind = {"kind": "recovery_successful", **on.labels}
    for link in range(links if on.happened else 0):
        on.out.line("gpunode_gpu_nvlink_link_errors_total", on.rises, link=str(link), **kind)
    gained = replace(on.rises, slope=on.rises.slope * links)
    on.out.line("gpunode_gpu_nvlink_errors_total", gained, **kind)


def nvlink_domain(on: On) -> None:
    """It is in an NVLink domain of several nodes."""
    domain = {"cluster_uuid": "9c6f5af3-53bf-49b5-a436-b66766c413c3", "clique_id": "32766"}
    for metric, labels in list(on.out.series):
        if metric == "gpunode_gpu_info" and on.labels.items() <= dict(labels).items():
            on.out.drop("gpunode_gpu_info", **on.labels)
            on.out.gauge("gpunode_gpu_info", 1.0, **{**dict(labels), **domain})


def job_memory(on: On) -> None:
    """The job is near its memory limit."""
    limit = 512 * GIB
    share = on.number("used", 0.97) if on.active else 0.5
    on.out.gauge("gpunode_job_memory_limit_bytes", limit, **on.labels)
    on.out.gauge("gpunode_job_memory_anonymous_bytes", share * limit, **on.labels)
    on.out.gauge("gpunode_job_memory_shmem_bytes", 0.0, **on.labels)
    on.out.gauge("gpunode_job_memory_used_bytes", share * limit, **on.labels)


def memory_grows(on: On) -> None:
    """The job, or all that runs on the node, takes so much more of the memory a minute."""
    if on.gpu is None:
        left = Linear(on.number("left", 0.5))
        if on.active:
            left = Linear(left.value, -on.number("rate", 0.01) / 60, on.since)
        on.out.gauge("gpunode_memory_size_bytes", 1.0)
        on.out.line("gpunode_memory_available_bytes", left)
        return
    used = Linear(on.number("used", 0.5))
    if on.active:
        used = Linear(used.value, on.number("rate", 0.01) / 60, on.since)
    on.out.gauge("gpunode_job_memory_limit_bytes", 1.0, **on.labels)
    on.out.line("gpunode_job_memory_anonymous_bytes", used, **on.labels)
    on.out.gauge("gpunode_job_memory_shmem_bytes", 0.0, **on.labels)


def open_files(on: On) -> None:
    """Files that a process of the job has open, or the node, as a share of the limit."""
    share = on.number("used", 0.95) if on.active else on.number("before", 0.1)
    if on.gpu is None:
        on.out.gauge("gpunode_filefd_maximum", 1e6)
        on.out.gauge("gpunode_filefd_allocated", share * 1e6)
    else:
        on.out.gauge("gpunode_job_open_files_ratio", share, **on.labels)


def quota(on: On) -> None:
    """The job is throttled by its CPU quota."""
    share = on.number("throttled", 0.5) if on.active else 0.0
    on.out.counter("gpunode_job_cpu_quota_periods_total", 10.0, **on.labels)
    on.out.counter("gpunode_job_cpu_quota_throttled_periods_total", 10.0 * share, **on.labels)


def killed(on: On) -> None:
    """The kernel kills a process of the job for lack of memory."""
    on.out.gauge("gpunode_memory_oom_kills_total", on.once)
    on.out.gauge("gpunode_kernel_log_events_total", on.once, kind="oom_kill")
    if on.gpu is not None:
        on.out.gauge("gpunode_job_memory_events_total", on.once, event="oom_kill", **on.labels)


def transport(on: On) -> None:
    """NCCL's connections go over sockets or host memory."""
    if on.active:
        way = on.text("over", "NET/Socket")
        on.out.gauge("gpunode_nccl_channels", 8.0, communicator="1", transport=way, **on.labels)


# Memory and disks


def shm(on: On) -> None:
    """So much of /dev/shm is used."""
    size = 1024 * GIB
    used = on.number("used", 0.96) if on.active else 0.2
    on.out.gauge("gpunode_shm_size_bytes", size)
    on.out.gauge("gpunode_shm_used_bytes", used * size)
    if on.active and "fills" in on.options:
        on.out.gauge("gpunode_shm_full_seconds", seconds(on.options["fills"]))


def job_shm(on: On) -> None:
    """So much of the /dev/shm of a container is used."""
    size = 64 * GIB
    used = on.number("used", 0.96) if on.active else 0.2
    on.out.gauge("gpunode_job_shm_size_bytes", size, tmpfs="0:52", **on.labels)
    on.out.gauge("gpunode_job_shm_used_bytes", used * size, tmpfs="0:52", **on.labels)
    if on.active and "fills" in on.options:
        left = seconds(on.options["fills"])
        on.out.gauge("gpunode_job_shm_full_seconds", left, tmpfs="0:52", **on.labels)


def filesystem(on: On) -> None:
    """A filesystem, how full it is, and whether it can be written."""
    labels = {"mountpoint": on.text("mountpoint", "/"), "fstype": on.text("fstype", "ext4")}
    size = on.number("tib", 1.0) * 1024 * GIB
    used = on.number("used", 0.4) if on.active else min(on.number("used", 0.4), 0.4)
    files = on.number("files", 0.1) if on.active else 0.1
    on.out.gauge("gpunode_filesystem_size_bytes", size, **labels)
    on.out.gauge("gpunode_filesystem_available_bytes", (1.0 - used) * size, **labels)
    on.out.gauge("gpunode_filesystem_files", 6e7, **labels)
    on.out.gauge("gpunode_filesystem_files_free", (1.0 - files) * 6e7, **labels)
    readonly = on.active and "readonly" in on.options
    on.out.gauge("gpunode_filesystem_readonly", float(readonly), **labels)
    kind = "read_only"
    if "readonly" in on.options:
        on.out.gauge("gpunode_kernel_log_events_total", on.once, kind=kind)


def nvme(on: On) -> None:
    """Its NVMe disks; while it happens, one is dead or gone."""
    for number in range(int(on.number("disks", 4.0))):
        broken = on.active and str(number) == on.text("broken", "")
        controller, disk = f"nvme{number}", f"nvme{number}n1"
        if broken and "gone" in on.options:
            continue
        on.out.gauge("gpunode_disk_controller_live", float(not broken), controller=controller)
        if not broken:
            on.out.counter("gpunode_disk_busy_seconds_total", 0.2, disk=disk)
            on.out.counter("gpunode_disk_bytes_total", 1e8, disk=disk, direction="read")
            on.out.gauge("gpunode_disk_temperature_celsius", 45.0, controller=controller)
    if on.options.get("logged"):
        on.out.gauge("gpunode_kernel_log_events_total", on.once, kind="disk_error")


def _waits_for_io(on: On) -> None:
    share, resource = (0.5 if on.active else 0.01), "io"
    on.out.counter("gpunode_pressure_waiting_seconds_total", share, resource=resource)
    on.out.counter("gpunode_pressure_stalled_seconds_total", share / 2, resource=resource)


def kernel_log(on: On) -> None:
    """The kernel complains."""
    kind = on.text("kind", "hung_task")
    on.out.gauge("gpunode_kernel_log_events_total", on.once, kind=kind)
    if on.happened:
        on.out.gauge("gpunode_kernel_log_last_event_timestamp_seconds", on.since, kind=kind)


# File servers


@dataclass(frozen=True, slots=True)
class FileServer:
    """How a file server answers a node."""

    answers: float
    """Requests a second."""

    latency: float
    waiting: float
    """Requests without an answer."""


HEALTHY = FileServer(200.0, 0.002, 1.0)
SLOW = FileServer(40.0, 0.4, 16.0)
SILENT = FileServer(0.0, 0.0, 16.0)
LIMPING = FileServer(190.0, 0.002, 9.0)
GIVES_UP = 120.0
"""Seconds after which a request to a file server times out."""


def lustre_slow(on: On) -> None:
    """The servers of Lustre are slow."""
    _lustre(on, SLOW if on.active else HEALTHY)


def lustre_silent(on: On) -> None:
    """The servers of Lustre do not answer."""
    _lustre(on, SILENT if on.active else HEALTHY)
    blocked = 16.0 if on.active else 0.0
    on.out.gauge("gpunode_cpu_blocked_tasks", blocked)
    gave_up = on.happened and on.out.begin >= on.since + GIVES_UP
    on.out.gauge("gpunode_kernel_log_events_total", float(gave_up), kind="lustre")
    _waits_for_io(on)


def lustre_loses_a_target(on: On) -> None:
    """One of the servers of Lustre does not answer; the others do."""
    _lustre(on, LIMPING if on.active else HEALTHY, 1.0)
    on.out.gauge("gpunode_cpu_blocked_tasks", 4.0 if on.active else 0.0)
    gave_up = on.happened and on.out.begin >= on.since + GIVES_UP
    on.out.gauge("gpunode_kernel_log_events_total", float(gave_up), kind="lustre")


def _lustre(on: On, server: FileServer, loses: float | None = None) -> None:
    filesystem = on.text("filesystem", "scratch")
    servers, targets = on.text("servers", "data,metadata").split(","), on.number("targets", 5.0)
    silent = server in (SILENT, LIMPING)
    loses = targets if loses is None else loses
    lost = loses if silent and on.out.begin >= on.since + GIVES_UP else 0.0
    for connected, count in (("true", targets - lost), ("false", lost)):
        on.out.gauge("gpunode_lustre_targets", count, filesystem=filesystem, connected=connected)
    for name in servers:
        labels = {"filesystem": filesystem, "server": name}
        on.out.counter("gpunode_lustre_rpcs_total", server.answers, **labels)
        on.out.counter(
            "gpunode_lustre_rpc_seconds_total", server.answers * server.latency, **labels
        )
        on.out.gauge("gpunode_lustre_rpcs_in_flight", server.waiting, **labels)
        timeouts = server.waiting / GIVES_UP if silent else 0.0
        on.out.counter("gpunode_lustre_rpc_timeouts_total", timeouts, **labels)
    reads = server.answers * 2.0**20
    on.out.counter("gpunode_lustre_bytes_total", reads, filesystem=filesystem, direction="read")


def nfs_slow(on: On) -> None:
    """The NFS server is slow."""
    _nfs(on, SLOW if on.active else HEALTHY)


def nfs_silent(on: On) -> None:
    """The NFS server does not answer."""
    _nfs(on, SILENT if on.active else HEALTHY)
    on.out.gauge("gpunode_cpu_blocked_tasks", 16.0 if on.active else 0.0)
    gave_up = on.happened and on.out.begin >= on.since + GIVES_UP
    on.out.gauge("gpunode_kernel_log_events_total", float(gave_up), kind="nfs")
    _waits_for_io(on)


def _nfs(on: On, server: FileServer) -> None:
    where = {"mountpoint": on.text("mountpoint", "/data")}
    labels = {**where, "operation": "read"}
    silent = server is SILENT
    on.out.counter("gpunode_nfs_requests_total", server.answers, **labels)
    on.out.counter("gpunode_nfs_rtt_seconds_total", server.answers * server.latency, **labels)
    on.out.counter("gpunode_nfs_wait_seconds_total", server.answers * server.latency, **labels)
    on.out.counter("gpunode_nfs_retransmissions_total", 0.05 if silent else 0.0, **labels)
    on.out.counter("gpunode_nfs_timeouts_total", 0.05 if silent else 0.0, **labels)
    on.out.gauge("gpunode_nfs_requests_in_flight", server.waiting, **where)
    on.out.counter("gpunode_nfs_bytes_total", server.answers * 2.0**20, direction="read", **where)


# Networks


def infiniband(on: On) -> None:
    """Its InfiniBand ports; while it happens, those that are ``down`` are."""
    down = on.options.get("down", "").split(",")
    gone = on.options.get("gone", "").split(",")
    for number in range(int(on.number("ports", 4.0))):
        device = f"mlx5_{number}"
        if on.active and device in gone:
            continue
        lost = on.active and (device in down or down == ["all"])
        labels = {"device": device, "port": "1"}
        on.out.gauge("gpunode_infiniband_active", float(not lost), **labels)
        gains = 0.0 if lost else 1e9
        on.out.counter("gpunode_infiniband_bytes_total", gains, direction="receive", **labels)
        on.out.gauge("gpunode_infiniband_rate_bytes_per_second", 5e10, **labels)
        flaps = on.once if lost else 0.0
        on.out.gauge("gpunode_infiniband_errors_total", flaps, kind="link_downed", **labels)


def rdma_errors(on: On) -> None:
    """A port loses packets, or, where ``again`` says which share of its bytes, sends them again."""
    labels = {"device": on.text("device", "mlx5_0"), "port": "1"}
    if "again" in on.options:
        share = on.number("again", 0.0) if on.active else 1e-6
        on.out.counter("gpunode_infiniband_bytes_total", 1e10, direction="transmit", **labels)
        on.out.counter("gpunode_infiniband_retransmitted_bytes_total", share * 1e10, **labels)
        on.out.counter("gpunode_infiniband_retransmitted_packets_total", share * 1e6, **labels)
        return
    line = on.rises if on.active else Linear(0.0)
    on.out.line("gpunode_infiniband_transport_errors_total", line, kind="ack_timeout", **labels)


def congestion(on: On) -> None:
    """Its RDMA port gets congestion notifications: a hundred a second, or as many as it says."""
    rate = on.number("signs", 50_000.0) if on.active else 100.0
    labels = {"device": on.text("device", "mlx5_0"), "port": "1", "kind": "cnp_handled"}
    on.out.counter("gpunode_infiniband_congestion_events_total", rate, **labels)


def ethernet(on: On) -> None:
    """Its network interfaces; while it happens, those that are ``down`` are."""
    down = on.options.get("down", "").split(",")
    for interface in on.text("interfaces", "bond0,eth0,eth1").split(","):
        up = float(not (on.active and interface in down))
        on.out.gauge("gpunode_network_up", up, interface=interface)
        changes = on.once if interface in down else 0.0
        on.out.gauge("gpunode_network_carrier_changes_total", changes, interface=interface)
        on.out.counter(
            "gpunode_network_bytes_total", 1e7 * up, interface=interface, direction="receive"
        )


def shows(on: On) -> None:
    """Any series: ``metric`` with a ``value`` or with what it gains a second (``rate``)."""
    labels = {
        name: value
        for name, value in on.options.items()
        if name not in ("metric", "value", "before", "rate")
    }
    if on.active and "rate" in on.options:
        on.out.counter(on.options["metric"], on.number("rate", 0.0), **labels, **on.labels)
    elif on.active:
        on.out.gauge(on.options["metric"], on.number("value", 1.0), **labels, **on.labels)
    elif "before" in on.options:
        on.out.gauge(on.options["metric"], on.number("before", 0.0), **labels, **on.labels)


RESTARTS = "exporter restarts"

EVENTS: Mapping[str, Callable[[On], None]] = {
    "unreachable": unreachable,
    RESTARTS: restarts,
    "leaves": leaves,
    "is not discovered": is_not_discovered,
    "node exporter": node_exporter,
    "is scraped twice": is_scraped_twice,
    "has default labels": has_default_labels,
    "kubernetes": kubernetes,
    "is cordoned": is_cordoned,
    "is drained": is_drained,
    "is unknown to Kubernetes": is_unknown_to_kubernetes,
    UNSEEN: no_prometheus,
    "kubelet restarts": kubelet_restarts,
    "has a wrong clock": has_a_wrong_clock,
    "boots": boots,
    "is declared repaired": is_declared_repaired,
    "source fails": source_fails,
    "xid": xid,
    "xid in the log": logged,
    "error of NVLink 5": nvlink5,
    "memory errors": memory_errors,
    "remap pends": remap_pends,
    "remap failed": remap_failed,
    "is reset": is_reset,
    "asks for": asks_for,
    "does not answer": does_not_answer,
    "is missing": is_missing,
    "has no driver": has_no_driver,
    "is blind": is_blind,
    "is hot": is_hot,
    "is capped": is_capped,
    "clocks": clocks,
    "memory moves": memory_moves,
    "power brake": power_brake,
    "nvlink": nvlink,
    "nvlink recovers": nvlink_recovers,
    "nvlink domain": nvlink_domain,
    "job memory": job_memory,
    "memory grows": memory_grows,
    "open files": open_files,
    "cpu quota": quota,
    "killed": killed,
    "nccl": transport,
    "shm": shm,
    "job shm": job_shm,
    "filesystem": filesystem,
    "nvme": nvme,
    "kernel log": kernel_log,
    "lustre is slow": lustre_slow,
    "lustre is silent": lustre_silent,
    "lustre loses a target": lustre_loses_a_target,
    "nfs is slow": nfs_slow,
    "nfs is silent": nfs_silent,
    "infiniband": infiniband,
    "rdma errors": rdma_errors,
    "congestion": congestion,
    "ethernet": ethernet,
    "shows": shows,
}
"""What can happen. What a node has before and after is part of it: an event that is over, or is
still to come, leaves the series of a healthy node."""
