"""What is broken, anywhere: GPUs, links, adapters, disks, settings, and the exporters themselves.

Most of it asks for recorded series that exist only where something is wrong.
"""

from __future__ import annotations

from dashboards.layout import Board, link_to, row, section
from dashboards.lines import ANY, SLOWED_DOWN
from dashboards.panels import (
    INFINIBAND,
    LUSTRE,
    NOTHING_WRONG,
    OF_FAULTS,
    RULES,
    SHARE,
    WHOLE_FLEET,
    XIDS,
    bars,
    figure,
    lines,
    rows_of,
)
from dashboards.promql import GPU, NODE, WINDOW, gained, in_hour, of_gpus, rate
from dashboards.queries import NODES as SELECTED
from dashboards.queries import Query, selected
from dashboards.rules import Limit, limit
from dashboards.variables import FAULTS, datasource, of_many
from gpunode.export import palette
from gpunode.words import PARTS

TO_NODE = link_to("gpunode-node", cluster="cluster", node="instance")
TO_GPU = link_to("gpunode-gpu", cluster="cluster", node="instance", gpu="gpu")
ON_GPU = {"cluster": "Cluster", "instance": "Node", "gpu": "GPU"}
ON_NODE = {"cluster": "Cluster", "instance": "Node"}
LINKS = {"Node": TO_NODE, "GPU": TO_GPU}
MAX_ROWS = 50
"""Rows of a table at most: where there are more, it is one fault of the fleet."""


def _query(expression: str, legend: str = "") -> Query:
    return Query(selected(expression, SELECTED), legend)


SEEN = _query("sum (node:gpunode_gpu_seconds:rate5m)", "No GPU is seen")
"""What there must be for a panel to say that nothing is wrong."""

WATCHED = _query("count (node:gpunode_up:max == 1)")
"""Nodes that answer: a panel that says that nothing is wrong needs one."""


OWN = 'job=~".*gpunode.*",cluster=~"$cluster"'
CPU = f"max by ({NODE}) (rate(process_cpu_seconds_total{{{OWN}}}[{WINDOW}]))"
MEMORY = f"max by ({NODE}) (process_resident_memory_bytes{{{OWN}}})"
MESSAGES = rate("gpunode_client_messages_total", f"{NODE}, result")
BENCHED = f"{NODE}, collective, gpus, nodes"
KERNEL_LINES = gained("gpunode_kernel_log_events_total", f"{NODE}, kind")
"""Of every kind: KernelComplains leaves out those that another alert, or a slow disk, tells of."""


def _highest(metric: str, by: str) -> str:
    """The ten series that were highest at any moment shown, so that none comes and goes."""
    return f"{metric} and on ({by}) topk(10, max_over_time({metric}[$__range] @ end()))"


def _most(expression: str) -> Query:
    return _query(f"topk({MAX_ROWS}, {expression})")


def _oldest(seconds: str) -> Query:
    """Since when something has lasted, of what has lasted longest, in Unix milliseconds."""
    return _query(f"1000 * (time() - topk({MAX_ROWS}, {seconds}))")


def _in_hour(metric: str) -> str:
    return in_hour(metric, f"{NODE}, source")


def _count(expression: str) -> list[Query]:
    return [_query(f"count ({expression})")]


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
                    "How many GPUs have a fault that is worth a ticket?",
                    _count(
                        f'count by ({GPU}) (gpu:gpunode_fault:seconds{{gpu!="",severity!="info"}})'
                    ),
                    "none",
                    limit=ANY,
                    nothing=NOTHING_WRONG,
                    among=SEEN,
                ),
                figure(
                    "Faulty nodes",
                    "How many nodes have a fault of their own, not of a GPU?",
                    _count(
                        f'count by ({NODE}) (gpu:gpunode_fault:seconds{{gpu="",severity!="info"}})'
                    ),
                    "none",
                    limit=ANY,
                    nothing=NOTHING_WRONG,
                    among=SEEN,
                ),
                figure(
                    "Lost GPUs",
                    "How many GPUs does the driver not answer for?",
                    [_query('sum (gpunode_gpu_held_up_seconds{cause="gpu_lost"} > bool -1)')],
                    "none",
                    limit=ANY,
                    nothing=NOTHING_WRONG,
                    among=SEEN,
                ),
                figure(
                    "Exporters lost",
                    "How many exporters cannot be scraped?",
                    _count("node:gpunode_up:max == 0"),
                    "none",
                    nothing=NOTHING_WRONG,
                    among=SEEN,
                ),
                figure(
                    "Nodes drained",
                    "How many nodes are out of service: drained, or cordoned?",
                    _count("node:gpunode_drained:max"),
                    "none",
                    nothing=NOTHING_WRONG,
                    among=SEEN,
                ),
            ),
            row(
                8,
                rows_of(
                    "Faults of GPUs",
                    "Which GPUs need attention, why, and since when?",
                    {
                        "Since": (
                            _oldest('gpu:gpunode_fault:seconds{gpu!="",severity!="info"}'),
                            "dateTimeFromNow",
                        )
                    },
                    names={"severity": "Level", **ON_GPU, "reason": "Reason"},
                    sort_by="Since",
                    nothing=NOTHING_WRONG,
                    among=WATCHED,
                    links=LINKS,
                    values={"Level": palette.SEVERITIES},
                    meanings={"Reason": OF_FAULTS},
                ),
                rows_of(
                    "Faults of nodes",
                    "Which parts of nodes that all GPUs share are broken, and since when?",
                    {
                        "Since": (
                            _oldest('gpu:gpunode_fault:seconds{gpu="",severity!="info"}'),
                            "dateTimeFromNow",
                        )
                    },
                    names={
                        "severity": "Level",
                        **ON_NODE,
                        "part": "Part",
                        "name": "Name",
                        "reason": "Reason",
                    },
                    sort_by="Since",
                    nothing=NOTHING_WRONG,
                    among=WATCHED,
                    links={"Node": TO_NODE},
                    values={"Level": palette.SEVERITIES},
                    meanings={"Part": PARTS, "Reason": OF_FAULTS},
                ),
                lines(
                    "Nodes by fault",
                    "Did it happen to many at once?",
                    [
                        _query(
                            f"count by (part) (count by ({NODE}, part) ({FAULTS}))",
                            "{{part}}",
                        )
                    ],
                    "none",
                    among=WATCHED,
                ),
                widths=(9, 10, 5),
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
            ),
            row(
                8,
                rows_of(
                    "Uncorrected ECC errors",
                    "Which GPUs have ever lost data in memory?",
                    {
                        "Errors": (
                            _most(of_gpus('gpunode_gpu_ecc_errors_total{kind="uncorrected"} > 0')),
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
                            _most(
                                f"sum by ({GPU}) (max by ({GPU}, kind) "
                                "(gpunode_gpu_row_remaps_total > 0))"
                            ),
                            "none",
                        ),
                        "To reset": (
                            _most(of_gpus("gpunode_gpu_row_remap_pending > 0")),
                            "none",
                        ),
                        "No spare": (
                            _most(of_gpus('gpunode_gpu_row_remap_banks{spare="none"} > 0')),
                            "none",
                        ),
                        "Failed": (
                            _most(of_gpus("gpunode_gpu_row_remap_failed > 0")),
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
                        _query(
                            _highest("node:gpunode_gpu_throttled:max", f"{NODE}, reason"),
                            "{{instance}} {{reason}}",
                        )
                    ],
                    SHARE,
                    among=WATCHED,
                    limit=SLOWED_DOWN,
                ),
                bars(
                    "Hottest nodes",
                    "Which nodes have the hottest GPUs now?",
                    [
                        _query(
                            f"topk(10, max by ({NODE}) (gpunode_gpu_temperature_celsius))",
                            "{{instance}}",
                        )
                    ],
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
                    "Which GPUs had errors on their links in 15 minutes? Which links between GPU "
                    "and CPU (C2C) had errors in an hour?",
                    {
                        "NVLink": (
                            _most(
                                gained("gpunode_gpu_nvlink_errors_total", f"{GPU}, kind") + " > 10"
                            ),
                            "none",
                        ),
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
                    {
                        "Count": (
                            _most(
                                f"max by ({NODE}, bus_id, kind) (gpunode_pcie_link_degraded > 0) "
                                "or "
                                + gained(
                                    'gpunode_pcie_aer_errors_total{severity!="correctable"}',
                                    f"{NODE}, bus_id, kind",
                                )
                                + " > 0.5"
                            ),
                            "none",
                        )
                    },
                    names={**ON_NODE, "bus_id": "PCI address", "kind": "Kind"},
                    sort_by="Count",
                    nothing=NOTHING_WRONG,
                    among=WATCHED,
                    links={"Node": TO_NODE},
                ),
                rows_of(
                    "Ports",
                    f"Which ports of {INFINIBAND} are down, or had errors in 15 minutes?",
                    {
                        "Down": (
                            _most('gpu:gpunode_fault:seconds{part="network"} >= bool 0'),
                            "none",
                        ),
                        "Errors": (
                            _most(
                                "label_replace("
                                + gained("gpunode_infiniband_errors_total", f"{NODE}, device, port")
                                + ' > 10, "name", "$1", "device", "(.+)")'
                            ),
                            "none",
                        ),
                    },
                    names={**ON_NODE, "name": "Port", "port": "#"},
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
                    {
                        "Share": (
                            _query(
                                f"max by ({BENCHED}) (gpunode_nccl_bus_bandwidth_bytes_per_second) "
                                "/ "
                                f"max by ({BENCHED}) "
                                "(gpunode_nccl_expected_bus_bandwidth_bytes_per_second > 0)"
                            ),
                            SHARE,
                        )
                    },
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
                        _query(
                            _highest("node:gpunode_network_drops:rate5m", f"{NODE}, interface"),
                            "{{instance}} {{interface}}",
                        )
                    ],
                    "pps",
                    among=WATCHED,
                    limit=limit("NetworkDrops"),
                ),
                lines(
                    f"Filesystems: read, {WHOLE_FLEET}",
                    "How much do all nodes read from each Lustre filesystem?",
                    [_query("filesystem:gpunode_lustre_read:rate5m", "{{filesystem}}")],
                    "Bps",
                    needs=LUSTRE,
                    limit=Limit(1e9, "<"),
                ),
                lines(
                    f"File servers, {WHOLE_FLEET}",
                    "How long does a request to each filesystem take?",
                    [_query("cluster:gpunode_filesystem_latency:seconds", "{{name}}")],
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
                            _query(
                                f"count by (check) (max by ({NODE}, check) (gpunode_audit_ok) == 0)"
                            ),
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
                            _query("count by (version, python) (gpunode_build_info)"),
                            "none",
                        )
                    },
                    names={"version": "Version", "python": "Python"},
                    sort_by="Nodes",
                ),
                rows_of(
                    "GPUs without a ledger",
                    "Of which GPUs can no sensor tell what they do? The share of the time.",
                    {
                        "Share": (
                            _most(
                                of_gpus('gpu:gpunode_gpu_seconds:rate5m{state="unknown"}')
                                + " > 0.05"
                            ),
                            SHARE,
                        )
                    },
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
                    {"": (_most(f"min by ({NODE}, source) (gpunode_source_up) == 0"), "none")},
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
                        _query(f"quantile by (cluster) (0.5, {CPU})", "{{cluster}} median"),
                        _query(f"max ({CPU})", "highest"),
                    ],
                    SHARE,
                ),
                rows_of(
                    "Late and skipped reads",
                    "Which exporters do not keep up? Reads of an hour, by source.",
                    {
                        "Late": (
                            _most(f"{_in_hour('gpunode_source_late_reads_total')} > 60"),
                            "none",
                        ),
                        "Skipped": (
                            _most(f"{_in_hour('gpunode_source_skipped_reads_total')} > 60"),
                            "none",
                        ),
                    },
                    names={**ON_NODE, "source": "Source"},
                    sort_by="Late",
                    nothing=NOTHING_WRONG,
                    among=WATCHED,
                    apart=True,
                    links={"Node": TO_NODE},
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
                        title: (
                            _query(
                                "count by (source, what) ("
                                + in_hour(metric, f"{NODE}, source, what")
                                + " > 0.5)"
                            ),
                            "none",
                        )
                        for title, metric in (
                            ("Not understood on", "gpunode_unread_total"),
                            ("Left out on", "gpunode_refused_total"),
                        )
                    },
                    names={"source": "Source", "what": "What"},
                    sort_by="Not understood on",
                    nothing=NOTHING_WRONG,
                    among=WATCHED,
                    apart=True,
                ),
                lines(
                    "Scrapes",
                    "How many exporters answer?",
                    [
                        _query("count (node:gpunode_up:max == 1)", "up"),
                        _query("count (node:gpunode_up:max == 0)", "down"),
                        _query(
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
                        _query(f"quantile by (cluster) (0.5, {MEMORY})", "{{cluster}} median"),
                        _query(f"max ({MEMORY})", "highest"),
                    ],
                    "bytes",
                ),
                lines(
                    "Messages of clients",
                    "Are training clients heard? Messages a second, by what became of them.",
                    [
                        _query(
                            f"sum by (result) ({MESSAGES})",
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
