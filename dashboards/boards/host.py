"""The host of a node's GPUs: its CPUs, memory, disks, network and chassis.

The node's dashboard has what breaks first; this one has what one asks next.
"""

from __future__ import annotations

from dashboards.layout import Board, row, section
from dashboards.lines import LINES, OPEN_FILES
from dashboards.panels import (
    HWMON,
    INFINIBAND,
    LUSTRE,
    NFS,
    SHARE,
    areas,
    lines,
)
from dashboards.promql import GPU, NODE, gained, in_hour, of_gpus, rate, ratio, share
from dashboards.queries import NODES, Query, selected
from dashboards.rules import limit
from dashboards.variables import datasource, of_few, of_many

SENSOR = "{{instance}} {{chip}} {{sensor}}"
JOB_OF = "{{instance}} GPU {{gpu}}"
DISK = f"{NODE}, disk"


def _query(expression: str, legend: str = "{{instance}}") -> Query:
    return Query(selected(expression, NODES), legend)


def _node(metric: str, name: str) -> Query:
    """A gauge of each node."""
    return _query(f"max by ({NODE}) ({metric})", f"{{{{instance}}}} {name}")


def _each(metric: str, *labels: str) -> Query:
    """What a counter gains a second, by its labels."""
    legend = " ".join(f"{{{{{label}}}}}" for label in ("instance", *labels))
    return _query(rate(metric, ", ".join((NODE, *labels))), legend)


CPUS = (
    row(
        8,
        areas(
            "CPU time by mode",
            "What do the cores do? Cores that are busy, by mode.",
            [
                _query(
                    f"sum by (mode) ({rate('gpunode_cpu_seconds_total', f'{NODE}, mode')})",
                    "{{mode}}",
                )
            ],
            "none",
        ),
        lines(
            "Busiest core",
            "Is one core always busy while the others rest?",
            [_query(f"max by ({NODE}) (gpunode_cpu_busiest_core_ratio)")],
            SHARE,
            highest=1,
        ),
        lines(
            "Tasks",
            "Do tasks wait for a core, or for I/O? Those that run or could run are runnable.",
            [
                _node("gpunode_cpu_runnable_tasks", "runnable"),
                _node("gpunode_cpu_blocked_tasks", "blocked on I/O"),
            ],
            "none",
        ),
        lines(
            "Context switches",
            "How often do the cores change from one task to another?",
            [_each("gpunode_cpu_context_switches_total")],
            "cps",
        ),
    ),
    row(
        8,
        lines(
            "CPU quota of jobs",
            "Does a CPU limit hold a job up? Share of the periods in which it used up its quota.",
            [_query(LINES["cpu_quota"].signal, JOB_OF)],
            SHARE,
            needs="a CPU limit",
            limit=LINES["cpu_quota"].limit,
        ),
        lines(
            "CPUs that jobs use",
            "How many CPUs do the processes of each GPU's job keep busy, and its compilers?",
            [
                _query(rate("gpunode_job_cpu_seconds_total"), f"{JOB_OF} all"),
                _query(of_gpus("gpunode_job_compiler_cpus_ratio"), f"{JOB_OF} compilers"),
            ],
            "none",
            needs="a job on a GPU",
        ),
        lines(
            "Threads of jobs",
            "Is the thread busy that feeds the GPU, or a process that prepares data?",
            [
                _query(of_gpus("gpunode_job_host_thread_ratio"), f"{JOB_OF} feeds the GPU"),
                _query(of_gpus("gpunode_job_loader_cpus_ratio"), f"{JOB_OF} prepares data"),
            ],
            SHARE,
            needs="a job on a GPU",
        ),
        lines(
            "Pressure in the cgroups of jobs",
            "Do tasks of a job wait for CPUs, memory or I/O?",
            [
                _query(
                    rate("gpunode_job_pressure_waiting_seconds_total", f"{GPU}, resource"),
                    f"{JOB_OF} {{{{resource}}}}",
                )
            ],
            SHARE,
            needs="cgroups v2, and a kernel with PSI",
        ),
    ),
)

MEMORY = (
    row(
        8,
        lines(
            "Memory of the kernel",
            "What holds memory beside programs and the page cache?",
            [
                _node("gpunode_memory_shared_bytes", "shared memory"),
                _node("gpunode_memory_slab_bytes", "kernel objects"),
                _node("gpunode_memory_dirty_bytes", "to be written"),
                _node("gpunode_memory_writeback_bytes", "being written"),
                _node('gpunode_memory_hugepages_bytes{state="used"}', "huge pages used"),
                _node('gpunode_memory_hugepages_bytes{state="free"}', "huge pages free"),
            ],
            "bytes",
        ),
        lines(
            "Swap in use",
            "Has memory been moved to disk?",
            [
                _query(
                    f"max by ({NODE}) (gpunode_memory_swap_size_bytes) "
                    f"- on ({NODE}) max by ({NODE}) (gpunode_memory_swap_free_bytes)"
                )
            ],
            "bytes",
        ),
        lines(
            "Pages read again, or far away",
            "Are pages read from disk, or allocated on another NUMA node?",
            [
                _query(rate("gpunode_memory_major_faults_total", NODE), "{{instance}} from disk"),
                _query(rate("gpunode_memory_numa_misses_total", NODE), "{{instance}} far away"),
            ],
            "cps",
        ),
    ),
    row(
        8,
        lines(
            "Growth of the memory of jobs",
            "Does a job need ever more memory of the host? Bytes an hour.",
            [_query(LINES["job_memory_growth"].signal, JOB_OF)],
            "bytes",
            limit=LINES["job_memory_growth"].limit,
            needs="a job on a GPU",
        ),
        lines(
            "Memory of the cgroups of jobs",
            "How much is charged to a job, with its page cache and /dev/shm?",
            [
                _query(of_gpus("gpunode_job_memory_used_bytes"), f"{JOB_OF} all"),
                _query(of_gpus("gpunode_job_memory_anonymous_bytes"), f"{JOB_OF} anonymous"),
            ],
            "bytes",
            needs="cgroups",
        ),
        lines(
            "Memory limits reached",
            "How often in an hour did a job reach its limit, or lose a process?",
            [
                _query(
                    in_hour("gpunode_job_memory_events_total", f"{GPU}, event"),
                    f"{JOB_OF} {{{{event}}}}",
                )
            ],
            "none",
            needs="cgroups v2",
        ),
    ),
    row(
        8,
        lines(
            "Memory left",
            "Is there memory for programs, if the kernel drops its caches?",
            [_query(share("gpunode_memory_available_bytes", "gpunode_memory_size_bytes", NODE))],
            SHARE,
            highest=1,
        ),
        lines(
            "Read back from swap",
            "Do programs wait for memory that was moved to disk?",
            [_query(rate('gpunode_memory_swapped_bytes_total{direction="in"}', NODE))],
            "Bps",
        ),
        lines(
            "Programs killed for memory",
            "How many did the kernel end in an hour to free memory?",
            [_query(in_hour("gpunode_memory_oom_kills_total", NODE))],
            "none",
        ),
    ),
)

DISKS = (
    row(
        8,
        lines(
            "Disks: requests",
            "How many requests a second does a disk serve?",
            [_each("gpunode_disk_operations_total", "disk", "direction")],
            "iops",
        ),
        lines(
            "Disks: latency",
            "How long does a request take, in the queue and in service?",
            [
                _query(
                    ratio(
                        rate("gpunode_disk_wait_seconds_total", f"{DISK}, direction"),
                        rate("gpunode_disk_operations_total", f"{DISK}, direction"),
                        f"{DISK}, direction",
                    ),
                    "{{instance}} {{disk}} {{direction}}",
                )
            ],
            "s",
            needs="requests that end",
        ),
        lines(
            "Disks: requests in flight",
            "Do requests queue up?",
            [_query(f"max by ({DISK}) (gpunode_disk_requests_in_flight)", "{{instance}} {{disk}}")],
            "none",
        ),
        lines(
            "Disks: temperature",
            "How hot are the NVMe controllers?",
            [
                _query(
                    f"max by ({NODE}, controller) (gpunode_disk_temperature_celsius)",
                    "{{instance}} {{controller}}",
                )
            ],
            "celsius",
            needs="NVMe disks with a sensor",
        ),
    ),
    row(
        8,
        lines(
            "Lustre: metadata",
            "Are there many small files? Operations a second.",
            [_query(LINES["lustre_metadata"].signal, "{{instance}} {{filesystem}}")],
            "cps",
            needs=LUSTRE,
            limit=LINES["lustre_metadata"].limit,
        ),
        lines(
            "Lustre: time of metadata",
            "How long does opening, looking up or closing a file take?",
            [
                _query(
                    ratio(
                        rate(
                            "gpunode_lustre_operation_seconds_total",
                            f"{NODE}, filesystem, operation",
                        ),
                        rate("gpunode_lustre_operations_total", f"{NODE}, filesystem, operation"),
                        f"{NODE}, filesystem, operation",
                    ),
                    "{{instance}} {{filesystem}} {{operation}}",
                )
            ],
            "s",
            needs=f"{LUSTRE}, client 2.14 or later",
        ),
        lines(
            "NFS: time in this client",
            "How long do requests take with their time in this client's queue? Seconds a second.",
            [_each("gpunode_nfs_wait_seconds_total", "mountpoint", "operation")],
            "none",
            needs=NFS,
        ),
        lines(
            "GPUDirect Storage: errors an hour",
            "Do requests that go past the CPU fail?",
            [
                _query(
                    in_hour("gpunode_gpudirect_storage_errors_total", f"{NODE}, direction"),
                    "{{instance}} {{direction}}",
                )
            ],
            "none",
            needs="the module nvidia_fs with rw_stats_enabled",
        ),
    ),
    row(
        8,
        lines(
            "Filesystems: room left",
            "Which filesystem fills up? The share that programs may still take.",
            [
                _query(
                    share(
                        "gpunode_filesystem_available_bytes",
                        "gpunode_filesystem_size_bytes",
                        f"{NODE}, mountpoint",
                    ),
                    "{{instance}} {{mountpoint}}",
                )
            ],
            SHARE,
            limit=limit("FilesystemNearlyFull"),
            highest=1,
        ),
        lines(
            "Open files",
            "Which share of the kernel's limit is in use?",
            [_query(share("gpunode_filefd_allocated", "gpunode_filefd_maximum", NODE))],
            SHARE,
            limit=OPEN_FILES,
            highest=1,
        ),
    ),
)

NETWORK = (
    row(
        8,
        lines(
            "TCP: round trip",
            "How far away are the machines to which there are connections? The median.",
            [_query(LINES["tcp_round_trip"].signal)],
            "s",
            needs="a TCP connection to another machine",
            limit=LINES["tcp_round_trip"].limit,
        ),
        lines(
            "TCP: timeouts and full queues",
            "Does a peer not answer, or a program not accept connections?",
            [
                _query(rate("gpunode_tcp_timeouts_total", NODE), "{{instance}} timeouts"),
                _query(rate("gpunode_tcp_listen_drops_total", NODE), "{{instance}} not accepted"),
            ],
            "cps",
        ),
        lines(
            "Links that changed in an hour",
            "Does an interface lose its link?",
            [
                _query(
                    in_hour("gpunode_network_carrier_changes_total", f"{NODE}, interface"),
                    "{{instance}} {{interface}}",
                )
            ],
            "none",
        ),
        lines(
            "Bonds",
            "How many interfaces of a bond are down?",
            [
                _query(
                    f'max by ({NODE}, interface) (gpunode_network_bond_slaves{{state="down"}})',
                    "{{instance}} {{interface}}",
                )
            ],
            "none",
            needs="bonded interfaces",
        ),
    ),
    row(
        8,
        lines(
            "RoCE: pauses by priority",
            "Do switches or adapters ask for pauses (priority flow control)? Frames a second.",
            [_each("gpunode_network_priority_pauses_total", "interface", "direction", "priority")],
            "pps",
            needs="an adapter that counts them",
        ),
        lines(
            "InfiniBand: data waits",
            "Does a port have data that it may not send? Ticks of the adapter a second.",
            [_each("gpunode_infiniband_wait_ticks_total", "device", "port")],
            "cps",
            needs=INFINIBAND,
        ),
        lines(
            "InfiniBand: failed requests",
            "Which requests and connections ended with an error, in 15 minutes?",
            [
                _query(
                    gained(
                        "gpunode_infiniband_failures_total", f"{NODE}, device, port, kind", "15m"
                    ),
                    "{{instance}} {{device}}/{{port}} {{kind}}",
                )
            ],
            "none",
            needs=f"{INFINIBAND}, and a failure",
        ),
    ),
)

CHASSIS = (
    row(
        8,
        lines(
            "Fans",
            "Has a fan stopped, or do all run at full speed?",
            [_query(f"max by ({NODE}, chip, sensor) (gpunode_hwmon_fan_rpm)", SENSOR)],
            "rotrpm",
            needs=HWMON,
        ),
        lines(
            "Temperature of the air",
            "Is the air that enters the node too warm?",
            [_query(LINES["inlet_temperature"].signal, SENSOR)],
            "celsius",
            limit=LINES["inlet_temperature"].limit,
            needs=HWMON,
        ),
        lines(
            "Power of processors and memory",
            "How much do the processors draw beside the GPUs?",
            [
                _query(
                    rate("gpunode_cpu_energy_joules_total", f"{NODE}, package, domain"),
                    "{{instance}} {{domain}} {{package}}",
                )
            ],
            "watt",
            needs="RAPL, which root alone may read",
        ),
    ),
)

HOST = Board(
    uid="gpunode-host",
    title="GPU host",
    description="What do the CPUs, memory, disks, network and chassis around the GPUs do?",
    variables=(datasource(), of_many("cluster"), of_few("node")),
    selection=NODES,
    sections=(
        section("CPUs", *CPUS),
        section("Memory", *MEMORY),
        section("Disks and file servers", *DISKS),
        section("Network", *NETWORK),
        section("Chassis", *CHASSIS),
    ),
    since="now-3h",
    refresh="1m",
)
