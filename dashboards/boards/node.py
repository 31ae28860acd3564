"""One node: compute, I/O and communication side by side on one time axis.

The columns are read from top to bottom and compared from left to right: the column that breaks
first is the cause, and what breaks after it in the others is the effect.
"""

from __future__ import annotations

from dashboards.causes import HELD_UP
from dashboards.layout import TO_JOB, Board, link_to, row, section
from dashboards.lines import (
    ANY,
    LINES,
    PRESSURE,
    SLOWED_DOWN,
)
from dashboards.panels import (
    INFINIBAND,
    LUSTRE,
    NCCL_LOG,
    NFS,
    NOTHING_WRONG,
    OF_FAULTS,
    RAS,
    SHARE,
    areas,
    lines,
    rows_of,
    timeline,
)
from dashboards.promql import (
    GPU,
    MEMBER,
    NODE,
    active,
    bounded,
    gained,
    of_gpus,
    of_time,
    rate,
    ratio,
    share,
)
from dashboards.queries import GPUS as SELECTED
from dashboards.queries import Query, numbered, selected
from dashboards.rules import limit
from dashboards.variables import datasource, of_few, of_many
from gpunode.export import palette
from gpunode.words import PARTS

ONE = "{{instance}} GPU {{gpu}}"
BYTES = "Bps"
PORT = f"{NODE}, device, port"
ADAPTER = "{{instance}} {{device}}/{{port}}"
TMPFS = f"{NODE}, tmpfs"


def _query(expression: str, legend: str = "") -> Query:
    return Query(selected(expression, SELECTED), legend)


HOLDS = (
    numbered("gpunode_gpu_held_up_seconds", "cause", HELD_UP)
    + f" or 0 * max by ({GPU}) (gpunode_gpu_info)"
)
"""What holds each GPU up, as a number; 0 is nothing."""

SEEN = _query("count (gpunode_gpu_info)", "No such GPU")
"""What there must be for a panel to say that nothing is wrong."""


def _each(expression: str, legend: str = ONE) -> Query:
    """A figure of each GPU."""
    return _query(expression, legend)


def _mean(expression: str, legend: str) -> Query:
    """A figure of the GPUs together."""
    return _query(f"avg ({expression})", legend)


def _cores(metric: str) -> str:
    """A count of cores, of all NUMA nodes."""
    return f"sum by ({NODE}) (max by ({NODE}, node) ({metric}))"


def _moved(metric: str, by: str) -> list[Query]:
    """Bytes a second in each direction."""
    every = rate(metric, f"{by}, direction")
    return [_query(f"sum by ({by}, direction) ({every})", _named(by))]


def _named(by: str) -> str:
    own = " ".join(f"{{{{{label}}}}}" for label in by.split(", ")[1:])
    return f"{own} {{{{direction}}}}"


VERDICTS = (
    row(
        6,
        timeline(
            "What holds each GPU up",
            "Which resource is the bottleneck, of which GPU, and since when?",
            [_each(HOLDS)],
            names=HELD_UP,
            rows=16,
        ),
    ),
)

COLUMNS = (
    row(
        7,
        areas(
            "Compute: GPUs by state",
            "What do the GPUs do?",
            [_query(f"sum by (state) ({of_time()})", "{{state}}")],
            "none",
            colours=palette.STATES,
        ),
        lines(
            "I/O: pressure",
            "Do tasks wait for storage, for a CPU or for memory (pressure stall information)?",
            [
                _query(
                    rate("gpunode_pressure_waiting_seconds_total", f"{NODE}, resource"),
                    "{{instance}} {{resource}}",
                )
            ],
            SHARE,
            limit=PRESSURE,
            needs="a kernel with PSI",
        ),
        lines(
            "Communication: GPUs wait or move data",
            "Does a GPU spin for its peers, or only move data?",
            [_each(of_time('{state=~"blocked|communication"}'), f"{ONE} {{{{state}}}}")],
            SHARE,
            limit=limit("JobCommunicationHigh"),
        ),
    ),
    row(
        8,
        lines(
            "Compute: SMs, tensor cores and HBM",
            "What limits the kernels? Means over the GPUs.",
            [
                _mean(active(unit), name)
                for unit, name in (
                    ("graphics", "a kernel runs"),
                    ("sm", "SMs"),
                    ("tensor", "tensor cores"),
                    ("dram", "HBM"),
                )
            ]
            + [_mean(of_gpus("gpunode_gpu_utilization_ratio"), "the driver's utilisation")],
            SHARE,
            needs="GPM (Hopper or later) or DCGM, but for the driver's utilisation",
            highest=1,
        ),
        lines(
            "I/O: disks",
            "Is a disk always busy?",
            [_query(bounded(LINES["disk_busy"].signal), "{{instance}} {{disk}}")],
            SHARE,
            limit=LINES["disk_busy"].limit,
        ),
        lines(
            "Communication: NVLink in use",
            "Which share of the links' bandwidth is in use?",
            [_each(LINES["nvlink_used"].signal)],
            SHARE,
            limit=LINES["nvlink_used"].limit,
            needs="NVLink",
        ),
    ),
    row(
        8,
        lines(
            "Compute: power draw",
            "Does a GPU draw far less than its board's limit?",
            [_each(LINES["power_of_default_limit"].signal)],
            SHARE,
            limit=LINES["power_of_default_limit"].limit,
        ),
        lines(
            "I/O: file servers, throughput",
            "How much do programs read and write?",
            [
                *_moved("gpunode_lustre_bytes_total", f"{NODE}, filesystem"),
                *_moved("gpunode_nfs_bytes_total", f"{NODE}, mountpoint"),
            ],
            BYTES,
            needs=f"{LUSTRE}, or {NFS}",
        ),
        lines(
            "Communication: PCI Express",
            "How much moves between GPUs and the host?",
            [
                _query(
                    rate("gpunode_gpu_pcie_bytes_total", f"{GPU}, direction"),
                    f"{ONE} {{{{direction}}}}",
                )
            ],
            BYTES,
        ),
    ),
    row(
        8,
        lines(
            "Compute: power swings",
            "Does the power swing between load and rest, as it does when a GPU starves?",
            [_each(LINES["power_swings"].signal)],
            "none",
            limit=LINES["power_swings"].limit,
        ),
        lines(
            "I/O: file servers, latency",
            "How long does a request take?",
            [
                _query(
                    ratio(
                        rate("gpunode_lustre_rpc_seconds_total", f"{NODE}, filesystem"),
                        rate("gpunode_lustre_rpcs_total", f"{NODE}, filesystem"),
                        f"{NODE}, filesystem",
                    ),
                    "{{instance}} {{filesystem}}",
                ),
                _query(
                    ratio(
                        rate("gpunode_nfs_rtt_seconds_total", f"{NODE}, mountpoint"),
                        rate("gpunode_nfs_requests_total", f"{NODE}, mountpoint"),
                        f"{NODE}, mountpoint",
                    ),
                    "{{instance}} {{mountpoint}}",
                ),
            ],
            "s",
            needs=f"{LUSTRE}, or {NFS}",
            limit=limit("StorageSlow"),
        ),
        lines(
            "Communication: InfiniBand and RoCE",
            "Which share of the link's rate is in use?",
            [
                _query(
                    ratio(
                        rate("gpunode_infiniband_bytes_total", f"{PORT}, direction"),
                        f"max by ({PORT}) (gpunode_infiniband_rate_bytes_per_second)",
                        PORT,
                    ).replace("(max by", "group_left () (max by"),
                    "{{instance}} {{device}}/{{port}} {{direction}}",
                )
            ],
            SHARE,
            needs=INFINIBAND,
            highest=1,
        ),
    ),
    row(
        8,
        lines(
            "Compute: SM clock",
            "Are the clocks lowered? A share of the highest clock.",
            [_each(LINES["sm_clock"].signal)],
            SHARE,
            limit=LINES["sm_clock"].limit,
        ),
        lines(
            "I/O: filesystems that fail",
            "For how long has a file server not answered, or a filesystem taken nothing more?",
            [
                _query(
                    f"max by ({NODE}, name, reason) "
                    '(gpu:gpunode_fault:seconds{part="filesystem"})',
                    "{{instance}} {{name}} {{reason}}",
                )
            ],
            "s",
            among=SEEN,
            limit=ANY,
        ),
        lines(
            "Communication: congestion",
            "Does the network slow the adapters down?",
            [_query(LINES["rdma_congestion"].signal, "{{instance}} {{device}}/{{port}}")],
            "cps",
            needs=INFINIBAND,
            limit=LINES["rdma_congestion"].limit,
        ),
    ),
    row(
        8,
        lines(
            "Compute: slowdown",
            "Does heat or a power brake slow a GPU down?",
            [
                _query(
                    bounded(
                        rate(
                            "gpunode_gpu_throttled_seconds_total"
                            '{reason=~"sw_thermal|hw_thermal|hw_power_brake"}',
                            f"{GPU}, reason",
                        )
                    ),
                    f"{ONE} {{{{reason}}}}",
                )
            ],
            SHARE,
            limit=SLOWED_DOWN,
        ),
        lines(
            "I/O: busiest thread of each job",
            "Does one thread prepare all the data?",
            [_each(LINES["busiest_thread"].signal)],
            SHARE,
            limit=LINES["busiest_thread"].limit,
        ),
        lines(
            "Communication: errors of adapters",
            "Are packets lost or sent again, in 15 minutes?",
            [
                _query(gained(metric, PORT), f"{ADAPTER} {name}")
                for metric, name in (
                    ("gpunode_infiniband_errors_total", "errors"),
                    ("gpunode_infiniband_transport_errors_total", "lost"),
                    ("gpunode_infiniband_retransmitted_packets_total", "sent again"),
                )
            ],
            "none",
            needs=INFINIBAND,
            limit=limit("RdmaErrors"),
        ),
    ),
    row(
        8,
        lines(
            "Compute: temperature",
            "How hot are the GPUs?",
            [_each(of_gpus("gpunode_gpu_temperature_celsius"))],
            "celsius",
            limit=limit("GpuHot"),
        ),
        lines(
            "I/O: /dev/shm of the node and of each pod",
            "Is shared memory nearly full?",
            [
                _query(
                    share("gpunode_job_shm_used_bytes", "gpunode_job_shm_size_bytes", TMPFS),
                    "{{instance}} {{tmpfs}}",
                ),
                _query(
                    share("gpunode_shm_used_bytes", "gpunode_shm_size_bytes", NODE),
                    "{{instance}} node",
                ),
            ],
            SHARE,
            limit=limit("ShmNearlyFull"),
            highest=1,
        ),
        lines(
            "Communication: Ethernet",
            "How much goes over the network interfaces? RDMA bypasses them.",
            _moved("gpunode_network_bytes_total", f"{NODE}, interface"),
            BYTES,
        ),
    ),
    row(
        8,
        lines(
            "Compute: GPU memory",
            "Is the memory of a GPU full?",
            [_each(LINES["gpu_memory_used"].signal)],
            SHARE,
            limit=LINES["gpu_memory_used"].limit,
            highest=1,
        ),
        areas(
            "I/O: memory and page cache",
            "Is there memory left, and does the data set fit into the page cache?",
            [
                _query(f"max by ({NODE}) ({metric})", f"{{{{instance}}}} {name}")
                for metric, name in (
                    ("gpunode_memory_anonymous_bytes", "programs"),
                    ("gpunode_memory_cached_bytes", "page cache"),
                    ("gpunode_memory_free_bytes", "unused"),
                )
            ],
            "bytes",
        ),
        lines(
            "Communication: packets dropped",
            "Does an interface drop or damage packets?",
            [_query("node:gpunode_network_drops:rate5m", "{{instance}} {{interface}}")],
            "pps",
            among=_query(f"count ({rate('gpunode_network_drops_total', NODE)})"),
            limit=limit("NetworkDrops"),
        ),
    ),
    row(
        8,
        lines(
            "Compute: period of the power draw",
            "How long is a step, as the power shows it without a client?",
            [_each(of_gpus("gpunode_gpu_step_period_seconds"))],
            "s",
            needs="work with a regular rhythm",
        ),
        lines(
            "I/O: iowait",
            "Do CPUs without work wait for I/O? A hint; pressure counts the tasks that wait.",
            [_query(LINES["iowait"].signal, "{{instance}}")],
            SHARE,
            limit=LINES["iowait"].limit,
        ),
        lines(
            "Communication: TCP sent again",
            "Which share of the segments is sent again?",
            [_query(LINES["tcp_retransmitted"].signal, "{{instance}}")],
            SHARE,
            limit=LINES["tcp_retransmitted"].limit,
        ),
    ),
    row(
        8,
        lines(
            "Compute: CPU cores",
            "Are all cores of the host busy, or is one? Cores busy for at least 95 % of the time.",
            [
                _query(_cores("gpunode_cpu_busy_cores"), "{{instance}} busy"),
                _query(_cores("gpunode_cpu_cores"), "{{instance}} all"),
            ],
            "none",
        ),
        lines(
            "I/O: disks, throughput",
            "How much is read from and written to disks?",
            _moved("gpunode_disk_bytes_total", f"{NODE}, disk"),
            BYTES,
        ),
        rows_of(
            "Communication: NCCL settings",
            "What do environments of processes set, such as NCCL_P2P_DISABLE? On how many GPUs?",
            {
                "GPUs": (
                    _query(
                        f"count by ({NODE}, name, value) "
                        f"(max by ({GPU}, name, value) (gpunode_nccl_setting_info))"
                    ),
                    "none",
                )
            },
            names={"instance": "Node", "name": "Setting", "value": "Value"},
            sort_by="GPUs",
            needs="processes whose environment gpunode may read: docs/security.md",
        ),
    ),
)

TABLES = (
    row(
        8,
        rows_of(
            "Jobs on the node",
            "Whose GPUs are these? The job and the GPU lead to their dashboards.",
            {
                "": (_query(MEMBER), "none"),
            },
            names={
                "gpu": "GPU",
                "instance": "Node",
                "owner_namespace": "Namespace",
                "workload": "Job",
                "user": "User",
            },
            sort_by="GPU",
            needs="a job on the node",
            links={
                "Job": TO_JOB,
                "GPU": link_to("gpunode-gpu", cluster="cluster", node="instance", gpu="gpu"),
            },
        ),
        rows_of(
            "Communication: NCCL connections",
            "Which way do the ranks on this node talk?",
            {
                "Connections": (
                    _query(
                        f"sum by ({GPU}, transport) (max by ({GPU}, communicator, transport) "
                        "(gpunode_nccl_channels))"
                    ),
                    "none",
                )
            },
            names={"gpu": "GPU", "transport": "Transport"},
            sort_by="Connections",
            needs=NCCL_LOG,
        ),
        rows_of(
            "Faults",
            "What is wrong with the node or its GPUs, and since when?",
            {"Since": (_query("1000 * (time() - gpu:gpunode_fault:seconds)"), "dateTimeFromNow")},
            names={"severity": "Level", "gpu": "GPU", "part": "Part", "reason": "Reason"},
            sort_by="Since",
            nothing=NOTHING_WRONG,
            among=SEEN,
            values={"Level": palette.SEVERITIES},
            meanings={"Part": PARTS, "Reason": OF_FAULTS},
        ),
        widths=(9, 7, 8),
    ),
    row(
        7,
        timeline(
            "Waited for",
            "For which GPU do the others of its job wait, and what does its process do instead?",
            [_each(numbered("gpunode_gpu_waited_for", "reason", palette.REASONS, having=" == 1"))],
            names=palette.REASONS,
            nothing="Nobody is waited for",
            among=SEEN,
        ),
        lines(
            "Stalled communicators",
            "Does NCCL itself say that a collective does not go on?",
            [
                _query(
                    f"max by ({NODE}) (gpunode_nccl_stalled_communicators)",
                    "{{instance}} stalled",
                ),
                _query(f"max by ({NODE}) (gpunode_nccl_communicators)", "{{instance}} all"),
                _query(
                    f"max by ({NODE}) (gpunode_nccl_rank_errors)", "{{instance}} ranks that failed"
                ),
            ],
            "none",
            needs=RAS,
        ),
    ),
)

MACHINE = (
    row(
        8,
        lines(
            "Growth of GPU memory",
            "Does a job need ever more memory? Bytes an hour.",
            [_each(LINES["gpu_memory_growth"].signal)],
            "bytes",
            limit=LINES["gpu_memory_growth"].limit,
        ),
        lines(
            "Reads that miss the page cache",
            "Does the data set fit into memory, or is it read again? Of mapped files, "
            "only what is missed counts.",
            [_each(LINES["page_cache_missed"].signal)],
            SHARE,
            limit=LINES["page_cache_missed"].limit,
        ),
        lines(
            "Lustre: busiest target",
            "Is one OST hot while the others rest?",
            [
                _query(
                    LINES["lustre_busiest_target"].signal, "{{instance}} {{filesystem}}-{{target}}"
                )
            ],
            SHARE,
            limit=LINES["lustre_busiest_target"].limit,
            needs=LUSTRE,
            highest=1,
        ),
        lines(
            "GPUDirect Storage",
            "How much goes between storage and GPUs without the CPU?",
            _moved("gpunode_gpudirect_storage_bytes_total", NODE),
            BYTES,
            needs="the module nvidia_fs with rw_stats_enabled",
        ),
    ),
)

NODE_BOARD = Board(
    uid="gpunode-node",
    title="GPU node",
    description="Which of compute, I/O and communication broke first?",
    variables=(datasource(), of_many("cluster"), of_few("node"), of_many("gpu")),
    selection={"cluster": "cluster", "instance": "node"},
    sections=(
        section("", *VERDICTS),
        section("Compute | I/O | Communication", *COLUMNS),
        section("Memory and caches", *MACHINE),
        section("Whose GPUs, and what is wrong", *TABLES),
    ),
    since="now-3h",
    refresh="30s",
)
