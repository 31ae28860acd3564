"""What is broken, anywhere: GPUs, links, adapters, disks, settings, and the exporters themselves.

Most of it asks for recorded series that exist only where something is wrong.
"""

from __future__ import annotations

from alerts.promql import GPU, NODE, gained
from alerts.recording.behind import (
    BY_JOB_OF_NODE,
    LOWER,
    LOWER_OF_NODE,
    RATIO,
    RATIO_OF_NODE,
    WITHIN,
)
from alerts.recording.lemons import PLACED, SCORE_OF_NODE
from alerts.recording.overview import ANSWERING, EXPORTERS, HOTTEST
from alerts.settings import FLEET_LEAST
from dashboards.layout import Board, link_to, row, section
from dashboards.panels import (
    INFINIBAND,
    KUBERNETES,
    LUSTRE,
    NOTHING_WRONG,
    RULES,
    SHARE,
    WHOLE_FLEET,
    XIDS,
    bars,
    figure,
    lines,
    rows_of,
)
from dashboards.queries import NODES as SELECTED
from dashboards.queries import Query, limit, selected
from dashboards.variables import datasource, of_many

TO_NODE = link_to("gpunode-node", cluster="cluster", node="instance")
TO_GPU = link_to("gpunode-gpu", cluster="cluster", node="instance", gpu="gpu")
ON_GPU = {"cluster": "Cluster", "instance": "Node", "gpu": "GPU"}
ON_NODE = {"cluster": "Cluster", "instance": "Node"}
LINKS = {"Node": TO_NODE, "GPU": TO_GPU}
MOST_ROWS = 50
"""Rows of a table at most: where there are more, it is one fault of the fleet."""


def _asked(expression: str, legend: str = "") -> Query:
    return Query(selected(expression, SELECTED), legend)


SEEN = _asked("sum (node:gpunode_gpu:count)", "No GPU is seen")
"""What there must be for a panel to say that nothing is wrong."""

WATCHED = _asked(f"count ({EXPORTERS} == 1)")
"""The same for a table: nodes that are scraped."""

OF_FLEET = _asked(f"sum ({ANSWERING})")
"""The same for a graph of the whole fleet."""

OVER_TIME = _asked(f"sum ({ANSWERING}) and on () count ({EXPORTERS} @ end() == 1)")
"""The same for a graph of the selected nodes. To ask at each of its points for each node would take
a second."""

KERNEL_LINES = gained("gpunode_kernel_log_events_total", f"{NODE}, kind")
"""Of every kind: KernelComplains leaves out those that another alert, or a slow disk, tells of."""


def _highest(metric: str, by: str) -> str:
    """The ten series that were highest at any moment shown, so that none comes and goes."""
    return f"{metric} and on ({by}) topk(10, max_over_time({metric}[$__range] @ end()))"


def _most(expression: str) -> Query:
    return _asked(f"topk({MOST_ROWS}, {expression})")


def _slowest(ratio: str, lower: str, by: str) -> dict[str, tuple[Query, str]]:
    """The ten that are furthest behind their peers, and by how much at least."""
    first = f"topk(10, max by ({by}) ({ratio}) > 0)"
    return {
        "Behind": (_asked(first), SHARE),
        "At least": (_asked(f"max by ({by}) ({lower}) > 0 and on ({by}) {first}"), SHARE),
    }


def _count(expression: str) -> list[Query]:
    return [_asked(f"count ({expression})")]


HEALTH = Board(
    uid="gpunode-health",
    title="GPU fleet health",
    description="What is broken, and where?",
    variables=(datasource(), of_many("cluster"), of_many("node")),
    selection=SELECTED,
    sections=(
        section(
            "",
            row(
                3,
                figure(
                    "Faulty GPUs",
                    "How many GPUs have a fault?",
                    _count("gpu:gpunode_gpu_fault:worst > 0"),
                    "none",
                    limit=limit("GpuUnhealthy"),
                    nothing=NOTHING_WRONG,
                    among=SEEN,
                ),
                figure(
                    "Faulty nodes",
                    "How many nodes have a fault that others may have, too?",
                    _count(f"count by ({NODE}) (node:gpunode_fault:level)"),
                    "none",
                    limit=limit("FleetFault", FLEET_LEAST),
                    nothing=NOTHING_WRONG,
                    among=SEEN,
                ),
                figure(
                    "Missing parts",
                    "How many GPUs, disks and ports have gone?",
                    [_asked("sum (node:gpunode_hardware:missing > 0)")],
                    "none",
                    limit=limit("HardwareMissing"),
                    nothing=NOTHING_WRONG,
                    among=SEEN,
                ),
                figure(
                    "Exporters lost",
                    "How many exporters cannot be scraped?",
                    _count("node:gpunode_exporter:up == 0"),
                    "none",
                    nothing=NOTHING_WRONG,
                    among=SEEN,
                ),
                figure(
                    "Unwatched",
                    "How many GPUs that Kubernetes lists does nobody watch?",
                    [_asked("sum (node:gpunode_gpus:unwatched)")],
                    "none",
                    needs=KUBERNETES,
                    limit=limit("GpunodeMissing"),
                    nothing="None known",
                    among=SEEN,
                ),
                figure(
                    "Nodes cordoned",
                    "How many nodes are out of service?",
                    _count("node:gpunode_drained:max"),
                    "none",
                    needs=KUBERNETES,
                    nothing="None known",
                    among=SEEN,
                ),
            ),
            row(
                8,
                rows_of(
                    "Faults of GPUs",
                    "Which GPUs need attention: XIDs, lost memory, row remaps, recovery that the "
                    "driver advises, the NVSwitch fabric? 2 is worth waking somebody, 1 a ticket.",
                    {"Level": (_most("gpu:gpunode_gpu_fault:level"), "none")},
                    names={**ON_GPU, "reason": "Reason"},
                    sort_by="Level",
                    nothing=NOTHING_WRONG,
                    among=WATCHED,
                    links=LINKS,
                ),
                rows_of(
                    "Faults of nodes",
                    "Which nodes have a fault that their neighbours may have, too?",
                    {"Level": (_most("node:gpunode_fault:level"), "none")},
                    names={**ON_NODE, "fault": "Fault"},
                    sort_by="Level",
                    nothing=NOTHING_WRONG,
                    among=WATCHED,
                    links={"Node": TO_NODE},
                ),
                lines(
                    "Nodes by fault",
                    "Did it happen to many at once?",
                    [_asked("count by (fault) (node:gpunode_fault:level)", "{{fault}}")],
                    "none",
                    among=OVER_TIME,
                ),
            ),
        ),
        section(
            "GPUs",
            row(
                8,
                rows_of(
                    "XIDs",
                    "Which errors did drivers report, and when last? By the driver's events.",
                    {
                        "Last": (
                            _most(
                                f"1000 * max by ({GPU}, xid) "
                                "(gpunode_gpu_xid_last_timestamp_seconds)"
                            ),
                            "dateTimeFromNow",
                        )
                    },
                    names={**ON_GPU, "xid": "XID"},
                    meanings={"XID": XIDS},
                    sort_by="Last",
                    nothing=NOTHING_WRONG,
                    among=WATCHED,
                    links=LINKS,
                ),
                rows_of(
                    "GPUs that break jobs",
                    "How many different jobs did a GPU break or hold up within 30 days, and on how "
                    "many days did it have a fault, a reset or recoveries of an NVLink that no job "
                    "met? One stands for little; GpuLemon tells of those that stand out.",
                    {"Incidents": (_most(PLACED), "none")},
                    names=ON_GPU,
                    sort_by="Incidents",
                    nothing=NOTHING_WRONG,
                    among=WATCHED,
                    links=LINKS,
                ),
                rows_of(
                    "Nodes that break jobs",
                    "On which nodes did that happen, through what their GPUs share: power, "
                    "cooling, the host? A job counts once for all GPUs of a node, and a day on "
                    "which an RDMA port lost its link again and again counts, too.",
                    {"Incidents": (_most(SCORE_OF_NODE), "none")},
                    names=ON_NODE,
                    sort_by="Incidents",
                    nothing=NOTHING_WRONG,
                    among=WATCHED,
                    links={"Node": TO_NODE},
                ),
                widths=(10, 7, 7),
            ),
            row(
                8,
                rows_of(
                    "Slowest nodes",
                    "Which nodes take longest beside peers that wait for them, over all jobs of a "
                    "day or of five days? At least is the lower bound; NodeSlow tells of those "
                    "that leave no doubt.",
                    _slowest(RATIO_OF_NODE, LOWER_OF_NODE, NODE),
                    names=ON_NODE,
                    sort_by="Behind",
                    needs="jobs in which GPUs wait for each other",
                    links={"Node": TO_NODE},
                ),
                rows_of(
                    "Slowest GPUs",
                    "Which GPUs do, whether their node is slow or they alone?",
                    _slowest(RATIO, LOWER, GPU),
                    names=ON_GPU,
                    sort_by="Behind",
                    needs="jobs in which GPUs wait for each other",
                    links=LINKS,
                ),
                rows_of(
                    "Jobs of the slowest nodes",
                    "In which jobs were those nodes behind? If it is one job only, it may be the "
                    "making of the job.",
                    {
                        "Behind": (
                            _most(
                                f"max by ({NODE}, owner_namespace, workload) "
                                f"(last_over_time({BY_JOB_OF_NODE}[{WITHIN[-1]}d])) > 0 "
                                f"and on ({NODE}) topk(10, max by ({NODE}) ({RATIO_OF_NODE}))"
                            ),
                            SHARE,
                        )
                    },
                    names={**ON_NODE, "owner_namespace": "Namespace", "workload": "Job"},
                    sort_by="Behind",
                    needs="jobs in which GPUs wait for each other",
                    links={"Node": TO_NODE},
                ),
                widths=(7, 8, 9),
            ),
            row(
                8,
                rows_of(
                    "Uncorrected ECC errors",
                    "Which GPUs have ever lost data in memory?",
                    {
                        "Errors": (
                            _most("gpu:gpunode_gpu_ecc_uncorrected:max"),
                            "none",
                        )
                    },
                    names=ON_GPU,
                    sort_by="Errors",
                    nothing=NOTHING_WRONG,
                    among=WATCHED,
                    links=LINKS,
                ),
                rows_of(
                    "Remapped rows",
                    "Which GPUs have replaced rows of memory, which wait for a reset, and which "
                    "have banks without a spare row?",
                    {
                        "Rows": (
                            _most("gpu:gpunode_gpu_row_remaps:sum"),
                            "none",
                        ),
                        "To reset": (
                            _most("gpu:gpunode_gpu_row_remap_pending:max"),
                            "none",
                        ),
                        "No spare": (
                            _most("gpu:gpunode_gpu_row_remap_banks_without_spare:max"),
                            "none",
                        ),
                        "Failed": (
                            _most("gpu:gpunode_gpu_row_remap_failed:max"),
                            "none",
                        ),
                    },
                    names=ON_GPU,
                    sort_by="Rows",
                    nothing=NOTHING_WRONG,
                    among=WATCHED,
                    apart=True,
                    links=LINKS,
                ),
                rows_of(
                    "Recovery that drivers advise",
                    "Which GPUs should be reset, drained or rebooted?",
                    {
                        "": (
                            _most(
                                f"max by ({GPU}, action) "
                                '(gpunode_gpu_recovery_action{action!="none"})'
                            ),
                            "none",
                        )
                    },
                    names={**ON_GPU, "action": "Action"},
                    sort_by="Node",
                    nothing=NOTHING_WRONG,
                    among=WATCHED,
                    links=LINKS,
                ),
                widths=(6, 10, 8),
            ),
            row(
                8,
                lines(
                    "Slowdown",
                    "On which nodes is a GPU slowed down most, by heat or a power brake?",
                    [
                        _asked(
                            _highest("node:gpunode_gpu_throttled:max", f"{NODE}, fault"),
                            "{{instance}} {{fault}}",
                        )
                    ],
                    SHARE,
                    among=OVER_TIME,
                    limit=limit("GpuThrottled"),
                ),
                bars(
                    "Hottest nodes",
                    "Which nodes have the hottest GPUs now?",
                    [_asked(f"topk(10, {HOTTEST})", "{{instance}}")],
                    "celsius",
                    limit=limit("GpuHot"),
                ),
            ),
        ),
        section(
            "Links and adapters",
            row(
                8,
                rows_of(
                    "NVLink",
                    "Which GPUs have lost links, or retransmit on them? Which links between GPU "
                    "and CPU (C2C) had errors in an hour?",
                    {
                        "NVLink": (_most("gpu:gpunode_nvlink_fault:count > 0"), "none"),
                        "C2C": (
                            _most(
                                gained("gpunode_gpu_c2c_errors_total", f"{GPU}, kind", "1h")
                                + " > 0.5"
                            ),
                            "none",
                        ),
                    },
                    names={**ON_GPU, "kind": "Kind"},
                    sort_by="NVLink",
                    nothing=NOTHING_WRONG,
                    among=WATCHED,
                    apart=True,
                    links=LINKS,
                ),
                rows_of(
                    "PCI Express",
                    "Which devices have a degraded link, or errors (AER)?",
                    {"Count": (_most("node:gpunode_pcie:faults > 0"), "none")},
                    names={**ON_NODE, "bus_id": "PCI address", "kind": "Kind"},
                    sort_by="Count",
                    nothing=NOTHING_WRONG,
                    among=WATCHED,
                    links={"Node": TO_NODE},
                ),
                rows_of(
                    "Ports",
                    f"Which ports of {INFINIBAND} were down in the last ten minutes, or had "
                    "errors in 15 minutes?",
                    {
                        "Time up": (_most("node:gpunode_port:up < 1"), SHARE),
                        "Errors": (_most("node:gpunode_rdma:errors > 0"), "none"),
                    },
                    names={**ON_NODE, "device": "Device", "port": "Port"},
                    sort_by="Errors",
                    nothing="None, or no ports",
                    among=WATCHED,
                    apart=True,
                    links={"Node": TO_NODE},
                ),
            ),
            row(
                8,
                rows_of(
                    "NCCL bandwidth",
                    "Which share of the expected do nodes reach, by gpunode nccl-bench?",
                    {"Share": (_asked("node:gpunode_nccl_bus_bandwidth:ratio"), SHARE)},
                    names={
                        "instance": "Node",
                        "collective": "Collective",
                        "gpus": "GPUs",
                        "nodes": "Nodes",
                    },
                    sort_by="Share",
                    needs="a run of gpunode nccl-bench",
                    links={"Node": TO_NODE},
                ),
                lines(
                    "Packets dropped",
                    "Which interfaces drop or damage most packets?",
                    [
                        _asked(
                            _highest("node:gpunode_network_drops:rate5m", f"{NODE}, interface"),
                            "{{instance}} {{interface}}",
                        )
                    ],
                    "pps",
                    among=OVER_TIME,
                    limit=limit("NetworkDrops"),
                ),
                lines(
                    f"Filesystems: read, {WHOLE_FLEET}",
                    "How much do all nodes read from each Lustre filesystem?",
                    [_asked("filesystem:gpunode_lustre_read:rate5m", "{{filesystem}}")],
                    "Bps",
                    needs=LUSTRE,
                    limit=limit("shared_filesystem_read"),
                ),
                lines(
                    f"File servers, {WHOLE_FLEET}",
                    "How long does a request to each filesystem take?",
                    [_asked("filesystem:gpunode_storage:latency", "{{filesystem}}")],
                    "s",
                    needs="Lustre or NFS, and jobs that use it",
                    limit=limit("StorageSlow"),
                ),
                widths=(7, 5, 6, 6),
            ),
        ),
        section(
            "Nodes",
            row(
                8,
                rows_of(
                    "Parts missing",
                    "What did a node have within a day, and lacks now?",
                    {"Missing": (_most("node:gpunode_hardware:missing > 0"), "none")},
                    names={**ON_NODE, "part": "Part"},
                    sort_by="Missing",
                    nothing=NOTHING_WRONG,
                    among=WATCHED,
                    links={"Node": TO_NODE},
                ),
                rows_of(
                    "Disks and filesystems",
                    "Which filesystems take no more files?",
                    {"": (_most("node:gpunode_filesystem:failing"), "none")},
                    names={**ON_NODE, "mountpoint": "Mountpoint"},
                    sort_by="Node",
                    nothing=NOTHING_WRONG,
                    among=WATCHED,
                    links={"Node": TO_NODE},
                ),
                rows_of(
                    "Kernel log",
                    "Which kinds of complaint did kernels log in 15 minutes?",
                    {"Lines": (_most(f"{KERNEL_LINES} > 0.5"), "none")},
                    names={**ON_NODE, "kind": "Kind"},
                    sort_by="Lines",
                    nothing=NOTHING_WRONG,
                    among=WATCHED,
                    links={"Node": TO_NODE},
                ),
            ),
            row(
                8,
                rows_of(
                    "Audit",
                    "Which checks of the tuning audit fail, on how many nodes?",
                    {
                        "Nodes": (
                            _asked("count by (check) (node:gpunode_audit_check:failed)"),
                            "none",
                        )
                    },
                    names={"check": "Check"},
                    sort_by="Nodes",
                    nothing=NOTHING_WRONG,
                    among=WATCHED,
                ),
                rows_of(
                    "Versions",
                    "Do all nodes run the same version of gpunode?",
                    {
                        "Nodes": (
                            _asked("count by (version, python) (gpunode_build_info)"),
                            "none",
                        )
                    },
                    names={"version": "Version", "python": "Python"},
                    sort_by="Nodes",
                ),
                rows_of(
                    "GPUs without a ledger",
                    "Of which GPUs can no sensor tell what they do, where one could before? The "
                    "share of the time.",
                    {"Share": (_most("gpu:gpunode_gpu_unknown:ratio > 0.05"), SHARE)},
                    names=ON_GPU,
                    sort_by="Share",
                    nothing=NOTHING_WRONG,
                    among=WATCHED,
                    links=LINKS,
                ),
            ),
        ),
        section(
            "Exporters",
            row(
                8,
                rows_of(
                    "Sources that fail",
                    "What can an exporter not read?",
                    {"": (_most("node:gpunode_source:up == 0"), "none")},
                    names={**ON_NODE, "source": "Source"},
                    sort_by="Node",
                    nothing=NOTHING_WRONG,
                    among=WATCHED,
                    links={"Node": TO_NODE},
                ),
                lines(
                    f"Exporter CPU, {WHOLE_FLEET}",
                    "How much of one core does an exporter use?",
                    [
                        _asked("cluster:gpunode_exporter_cpu:median", "{{cluster}} median"),
                        _asked("max (cluster:gpunode_exporter_cpu:max)", "highest"),
                    ],
                    SHARE,
                ),
                lines(
                    f"Late and skipped reads, {WHOLE_FLEET}",
                    "Do exporters keep up? Reads a second of all of them, by source.",
                    [
                        _asked(
                            "sum by (source) (cluster:gpunode_source_late_reads:rate5m)",
                            "{{source}} late",
                        ),
                        _asked(
                            "sum by (source) (cluster:gpunode_source_skipped_reads:rate5m)",
                            "{{source}} skipped",
                        ),
                    ],
                    "cps",
                    among=OF_FLEET,
                ),
            ),
            row(
                8,
                rows_of(
                    "Not understood or left out",
                    "What do exporters meet that they do not understand, and what is more than "
                    "they read or let in? On how many nodes? `gpunode doctor` shows examples; "
                    "docs/unread.md says who is left out first.",
                    {
                        title: (_asked(f"count by (source, what) ({record})"), "none")
                        for title, record in (
                            ("Not understood on", "node:gpunode_unread:increase1h"),
                            ("Left out on", "node:gpunode_refused:increase1h"),
                        )
                    },
                    names={"source": "Source", "what": "What"},
                    sort_by="Not understood on",
                    nothing=NOTHING_WRONG,
                    among=WATCHED,
                    apart=True,
                ),
                lines(
                    f"Scrapes, {WHOLE_FLEET}",
                    "How many exporters answer?",
                    [
                        _asked("sum (cluster:gpunode_exporter:up)", "up"),
                        _asked("sum (cluster:gpunode_exporter:down)", "down"),
                        _asked(
                            "count (gpunode_web_config_last_reload_success == 0)",
                            "web.config.file refused",
                        ),
                    ],
                    "none",
                    needs=RULES,
                ),
                lines(
                    f"Exporter memory, {WHOLE_FLEET}",
                    "How much memory does an exporter use?",
                    [
                        _asked("cluster:gpunode_exporter_memory:median", "{{cluster}} median"),
                        _asked("max (cluster:gpunode_exporter_memory:max)", "highest"),
                    ],
                    "bytes",
                ),
                lines(
                    f"Messages of clients, {WHOLE_FLEET}",
                    "Are training clients heard? Messages a second, by what became of them.",
                    [
                        _asked(
                            "sum by (result) (cluster:gpunode_client_messages:rate5m)",
                            "{{result}}",
                        )
                    ],
                    "cps",
                ),
                widths=(8, 5, 5, 6),
            ),
        ),
    ),
    since="now-24h",
)
