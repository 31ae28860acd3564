"""What is broken: the faults of GPUs and nodes, and those that many nodes have in common."""

from __future__ import annotations

from alerts.examples import GPU_A, HELD, NODE_A, OF_GPU, OF_NODE, ON_B, A, series
from alerts.model import AT_ONCE, FOR_DAYS, FOR_HOURS, Given, Record, Series
from alerts.promql import DAY, FILESYSTEM, GPU, JOB, NODE, by_node, gained, happened, of_gpus, rate
from alerts.recording.clocks import dated
from alerts.recording.repairs import AWAY, DECLARED, unrepaired
from alerts.settings import (
    CONTAINED_REMEMBERED,
    FLEET_LEAST,
    FLEET_NODES,
    FLEET_SHARE,
    INODES_FREE,
    NVLINK_PEERS,
    PORT_DOWN,
    ROOT_FREE,
    SCRAPE_JOBS,
    STILL_FROM,
    THROTTLED,
    XID_REMEMBERED_FOR,
    XIDS_OF_HARDWARE,
    XIDS_TO_LOOK_INTO,
    Setting,
)
from gpunode.driver.nvidia.xids import ACTIONS, CODES, OF_NVLINK5, Notify
from gpunode.gpu.health import MEMORY_FAULT, MEMORY_FAULTS, SRAM_WORN
from gpunode.host.filesystem import LOCAL

TARGETS = f'up{{job=~"{SCRAPE_JOBS}"}}'
UP = series("up", job="gpunode")
CORDONED = "node:gpunode_drained:max"
SPARE = "node:gpunode_node:spare"
MISSED_BY_NOBODY = "node:gpunode_gpus:missing_unused"

ANSWERED = "node:gpunode_exporter:up"


def recalled(record: str, by: str) -> str:
    """A rule's own past: of just before or, after a gap of Prometheus, of before the gap."""
    return (
        f"({record} or on ({by}) last_over_time({record}[{AWAY}]) "
        f"unless on ({NODE}) count_over_time({ANSWERED}[4m] offset 1m))"
    )


TARGET_LATELY = "30m"
"""For how long faults of a node are told that is no target any more: it may be gone for good."""

PAGES = 2
TELLS = 1
"""How bad a fault is: whether it is worth waking somebody, or only worth a ticket."""

SCHEDULABLE = (
    f"({by_node('kube_node_spec_unschedulable')} or on ({NODE}) "
    f"{by_node('last_over_time(kube_node_spec_unschedulable[10m])')})"
)
"""0 for nodes that Kubernetes may give work, 1 for those that are cordoned. What another pod of
kube-state-metrics said before says nothing where one is there that tells."""

PORT = f"{NODE}, device, port"
INTERFACE = f"{NODE}, interface"
READ_ONLY = (
    f'(gpunode_filesystem_readonly{{fstype=~"{LOCAL}"}} '
    'or gpunode_filesystem_readonly{mountpoint=~"/.+"})'
)
"""Without shared filesystems that only pods mount: the next pod may mount its volume to read."""

TMPFS = f"{NODE}, tmpfs"
MOUNT = f"{NODE}, mountpoint, fstype"
OF_FILESYSTEM = f"{NODE}, filesystem"
OF_MOUNT = f"{NODE}, mountpoint"
XIDS = "gpunode_gpu_xid_last_timestamp_seconds"
LOGGED_XIDS = "gpunode_kernel_log_last_xid_timestamp_seconds"
NVLINK_XIDS = "gpunode_kernel_log_last_nvlink_xid_timestamp_seconds"
LINK_LOST = 149
PEER_LOST = 145
"""XIDs of NVLink 5: the GPU whose link failed, and those that lost it as a peer.
https://github.com/marin-community/marin/issues/9086 (one GPU with 149, 63 with 145)"""

RECOVERIES = '{kind=~"recovery|recovery_successful|recovery_failed"}'
LINK_RECOVERIES = f"gpunode_gpu_nvlink_link_errors_total{RECOVERIES}"
GPU_RECOVERIES = f"gpunode_gpu_nvlink_errors_total{RECOVERIES}"
_LINK = f"{GPU}, link"
_IN_DOMAIN = (
    f"max by ({GPU}, domain) (label_join("
    'max_over_time(gpunode_gpu_info{cluster_uuid!=""}[15m:3m]), '
    '"domain", "/", "cluster_uuid", "clique_id"))'
)
OF_LINKS = f'xid=~"{LINK_LOST}|{PEER_LOST}"'
CONTAINED = 94
"""The XID of an error of memory that has cost one process its data and nobody else.
https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html"""


def _fault(level: int, true: str, reason: str, of: str = "", by: str = GPU) -> str:
    """A fault of this level wherever an expression has a value; ``of`` is a label in its reason."""
    return _said(f"{level} + 0 * ({true})", {"(.+)" if of else "": reason}, of, by)


def _said(true: str, reasons: dict[str, str], of: str, by: str) -> str:
    """Faults with the reason of the last pattern that the label ``of`` matches."""
    for pattern, reason in reasons.items():
        true = f'label_replace({true}, "{by.split(", ")[-1]}", "{reason}", "{of}", "{pattern}")'
    return f"max by ({by}) ({true})"


def _xid(notify: Notify, found: str) -> str:
    """XIDs that are so urgent, with what NVIDIA's catalogue asks for as the reason.

    Most XIDs share an action; it stands for those that a site adds as well.
    """
    asks: dict[str, list[int]] = {}
    for code in CODES.values():
        if code.notify == notify and code.number not in OF_NVLINK5:
            asks.setdefault(code.words, []).append(code.number)
    most = max(asks, key=lambda words: len(asks.get(words, ())))
    reasons = {"(.+)": f"XID $1: {most}"}
    for words, numbers in asks.items():
        if words != most:
            reasons[f"({'|'.join(map(str, numbers))})"] = f"XID $1: {words}"
    return _said(found, reasons, "xid", OF_A_GPU)


OF_A_GPU = f"{GPU}, reason"
OF_A_NODE = f"{NODE}, fault"

_BY_BUS = "cluster, instance, bus_id"
PHYSICAL = 'gpunode_gpu_info{parent=""}'
_OF_THE_GPU = (
    f"* on ({_BY_BUS}) group_left (gpu, uuid) "
    f"(gpu:gpunode_gpu_info:by_bus and on ({_BY_BUS}) "
    f"count by ({_BY_BUS}) (gpu:gpunode_gpu_info:by_bus) == 1)"
)
"""The kernel names a GPU by its place on the bus; after a reboot another GPU may have its number,
and a join in which a place has two GPUs would fail for every node."""


def _logged(metric: str, selected: str, by: str) -> str:
    """GPUs that the kernel log named lately, with the labels ``by``."""
    return (
        f"({dated(f'max by ({_BY_BUS}, {by}) ({metric}{{{selected}}})', f'{_BY_BUS}, {by}')} "
        f"> time() - {XID_REMEMBERED_FOR}) {_OF_THE_GPU}"
    )


_LOGGED = _logged(LOGGED_XIDS, f'xid=~"{XIDS_OF_HARDWARE}"', "xid")
_FATAL_LINK = (
    _logged(NVLINK_XIDS, 'action="reset_gpu"', "xid, link")
    + " or "
    + _logged(NVLINK_XIDS, 'action="unknown",severity="fatal"', "xid, link")
)
"""The catalogue's guide says of severity Fatal that all links go down and all programs end."""
_NVLINK5 = "|".join(map(str, OF_NVLINK5))


def times_of_xids(selected: str) -> str:
    """When the driver last reported XIDs, by Prometheus' clock."""
    return dated(f"max by ({GPU}, xid) ({XIDS}{{{selected}}})", f"{GPU}, xid")


def _recent_xid(selected: str, within: Setting = XID_REMEMBERED_FOR) -> str:
    """GPUs and the XIDs that their driver reported lately."""
    return f"{times_of_xids(selected)} > time() - {within}"


_LINK_XIDS = (
    f"({_recent_xid(OF_LINKS)} or {_logged(LOGGED_XIDS, OF_LINKS, 'xid')}) "
    f"unless on ({GPU}, xid) ("
    + _logged(NVLINK_XIDS, f'xid="{LINK_LOST}"', "xid, link, severity")
    + f" unless on ({GPU}, xid) "
    + _logged(NVLINK_XIDS, f'xid="{LINK_LOST}",severity="fatal"', "xid, link, severity")
    + ")"
)
"""Without the links that the kernel log says have bit errors, and go on."""
_OF_HARDWARE = _recent_xid(f'xid=~"{XIDS_OF_HARDWARE}"')
_TO_LOOK_INTO = _recent_xid(f'xid=~"{XIDS_TO_LOOK_INTO}"')
_UNDECODED = (
    _recent_xid(f'xid=~"{_NVLINK5}"')
    + f" unless on ({GPU}, xid) "
    + _logged(NVLINK_XIDS, "", "xid, link, severity, action")
)
"""Errors of NVLink 5 of which only the number is known, as where no kernel log can be read."""
_LOST_DATA = happened('gpunode_gpu_ecc_errors_total{kind="uncorrected"}')

OF_A_RESET = (
    _xid("page", _OF_HARDWARE),
    _xid("page", _LOGGED),
    _said(
        f'label_join({_FATAL_LINK}, "link", " on link ", "xid", "link")',
        {
            "(.+)": f"XID $1: {ACTIONS['RESET_GPU'].words}",
            "(.+) on link -1": f"XID $1: {ACTIONS['RESET_GPU'].words}",
        },
        "link",
        OF_A_GPU,
    ),
)
"""When GPUs lately had errors after which they cannot be used until they are reset. They are over
in a moment, and so are remembered: see ``latched``."""

LATCHED = "gpu:gpunode_gpu_fault:latched"

_RESET_FOR_A_ROW = (
    f'max by ({GPU}, action) (gpunode_gpu_recovery_action{{action=~"reset|drain_and_reset"}}) '
    f"and on ({GPU}) {of_gpus('gpunode_gpu_row_remap_pending')} > 0"
)
"""A reset that is advised so that a row of memory is replaced. Until then the GPU goes on without
the page in which the row is; an error that was not contained has an XID that says so.
https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html#row-remapping"""

GPU_FAULTS = (
    f"{PAGES} + 0 * {LATCHED} and on ({NODE}) (last_over_time({ANSWERED}[{TARGET_LATELY}]) "
    f"or on ({NODE}) gpu:gpunode_gpu_info:by_bus)",
    _fault(
        PAGES,
        f'max by ({GPU}) (max_over_time(gpunode_source_up{{source="gpu_activity",gpu!=""}}[3m])) '
        "== 0",
        "does not answer",
        by=OF_A_GPU,
    ),
    _fault(
        PAGES,
        f"{_LOST_DATA} unless on ({GPU}) "
        + _recent_xid(f'xid="{CONTAINED}"', CONTAINED_REMEMBERED),
        "memory lost data",
        by=OF_A_GPU,
    ),
    _fault(
        PAGES,
        f'max by ({GPU}, action) (gpunode_gpu_recovery_action{{action!~"none|drain_p2p"}}) '
        f"unless on ({GPU}, action) ({_RESET_FOR_A_ROW})",
        "driver advises $1",
        "action",
        OF_A_GPU,
    ),
    _fault(
        TELLS,
        f"{_RESET_FOR_A_ROW} or max by ({GPU}, action) "
        '(gpunode_gpu_recovery_action{action="drain_p2p"})',
        "driver advises $1",
        "action",
        OF_A_GPU,
    ),
    _fault(
        PAGES,
        f"max by ({GPU}, part) (max_over_time(gpunode_gpu_fabric_healthy[5m:1m])) == 0",
        "NVSwitch fabric: $1",
        "part",
        OF_A_GPU,
    ),
    _fault(TELLS, _LOST_DATA, "memory lost data", by=OF_A_GPU),
    _xid("ticket", f"{TELLS} + 0 * ({_TO_LOOK_INTO})"),
    _fault(
        TELLS,
        _UNDECODED,
        f"XID $1: {ACTIONS['WORKFLOW_NVLINK5_ERR'].words}",
        "xid",
        OF_A_GPU,
    ),
    _fault(
        TELLS, of_gpus("gpunode_gpu_row_remap_pending") + " > 0", "row remap pending", by=OF_A_GPU
    ),
    _fault(
        TELLS, of_gpus("gpunode_gpu_row_remap_failed") + " > 0", "row remap failed", by=OF_A_GPU
    ),
    *(
        _fault(TELLS, f'max by ({GPU}) ({MEMORY_FAULT.name}{{fault="{one}"}})', words, by=OF_A_GPU)
        for one, words in MEMORY_FAULTS.items()
    ),
)


def _new(faults: str, without: str, fault: str) -> str:
    """Faults but for old ones, unless they are part of a fault that many nodes have.

    Nodes that have broken one by one over weeks, and wait for repair, have nothing in common.
    """
    return (
        f"({faults} {without} or ({faults}) "
        f'and on (cluster) cluster:gpunode_fault:fleet{{fault="{fault}"}})'
    )


_PORT_DOWN = _new(
    f"node:gpunode_port:up < {PORT_DOWN}",
    f"unless on ({PORT}) node:gpunode_port:up offset 1d < {PORT_DOWN}",
    "network",
)
LINK_UP = of_gpus("gpunode_gpu_nvlink_up")
WITH_LINKS_DOWN = "gpu:gpunode_nvlink:down"
HAS_LINKS = "gpu:gpunode_nvlink:had"
LINKS_DOWN = "node:gpunode_nvlink:down"
LINKS_LOST_IN_USE = "node:gpunode_nvlink:lost_in_use"
ONE_OF_TWO_DOWN: Given = {
    series("gpunode_gpu_nvlink_up", link="0"): 1.0,
    series("gpunode_gpu_nvlink_up", link="1"): 0.0,
}
COMPLAINS_OF_STORAGE = "node:gpunode_remote_filesystem:complains"
_DISKS_MISSING = 'node:gpunode_hardware:missing{part="nvme"}'
_DISK_GONE = (
    _new(
        f"{_DISKS_MISSING} and on ({NODE}) {_DISKS_MISSING} offset 5m",
        f"unless on ({NODE}) {_DISKS_MISSING} offset 1d",
        "disk",
    )
    + f" unless on ({NODE}) node:gpunode_filesystem:failing"
)
"""One dead disk is a ticket. Those of many nodes within a day are of one batch or one firmware, and
the next nodes follow: it is said before the tickets about each. A filesystem that fails with its
disk has a fault of its own."""

_LINKS_LOST = _new(
    LINKS_DOWN,
    f"unless on ({NODE}) {LINKS_DOWN} offset 1d",
    "nvlink",
)
_FAILED_YESTERDAY = f"unless on ({NODE}, mountpoint) node:gpunode_filesystem:failing offset 1d"
HEAT = 'gpunode_gpu_throttled_seconds_total{reason=~"sw_thermal|hw_thermal"}'
BRAKE = 'gpunode_gpu_throttled_seconds_total{reason="hw_power_brake"}'
MOST_THROTTLED = "node:gpunode_gpu_throttled:max"
THROTTLED_BEFORE = "6m"
"""Clocks must have been low as long ago, too, before they count for what many nodes have in common.
A minute of it is in the rate for five and no longer, and is over before anybody could look: a test
of a generator does that to a whole hall. The ticket about each GPU takes longer, and must."""
THERMAL_SLOWDOWN = series("gpunode_gpu_throttled_seconds_total", reason="sw_thermal")
XID_IS_NEW = f"{XID_REMEMBERED_FOR.figure / 60:g}m"
"""An offset, which no setting can be. What the driver advises after an XID stands as long as nobody
follows it, and is no newer than the XID."""

NODE_FAULTS = (
    _fault(PAGES, "node:gpunode_down:harmed", "exporter", by=OF_A_NODE),
    _fault(TELLS, "node:gpunode_exporter:up == 0", "exporter", by=OF_A_NODE),
    _fault(
        PAGES,
        _new(
            f"gpu:gpunode_gpu_fault:level == {PAGES}",
            f"unless on ({OF_A_GPU}) {LATCHED} < time() - {XID_REMEMBERED_FOR} "
            f"unless on ({OF_A_GPU}) gpu:gpunode_gpu_fault:level offset {XID_IS_NEW} == {PAGES}",
            "gpu",
        ),
        "gpu",
        by=OF_A_NODE,
    ),
    _fault(
        PAGES,
        _new(
            f"node:gpunode_gpus:missing and on ({NODE}) node:gpunode_gpus:missing offset 10m",
            f"unless on ({NODE}) node:gpunode_gpus:missing offset 1d",
            "gpu_missing",
        ),
        "gpu_missing",
        by=OF_A_NODE,
    ),
    _fault(
        PAGES,
        f"{_PORT_DOWN} and on ({NODE}) node:gpunode_job:gpus",
        "network",
        by=OF_A_NODE,
    ),
    _fault(TELLS, _PORT_DOWN, "network", by=OF_A_NODE),
    _fault(PAGES, f"{_DISK_GONE} and on ({NODE}) node:gpunode_job:gpus", "disk", by=OF_A_NODE),
    _fault(TELLS, _DISK_GONE, "disk", by=OF_A_NODE),
    _fault(PAGES, f"{_LINKS_LOST} and on ({NODE}) {LINKS_LOST_IN_USE}", "nvlink", by=OF_A_NODE),
    _fault(TELLS, _LINKS_LOST, "nvlink", by=OF_A_NODE),
    _fault(
        TELLS,
        f"{COMPLAINS_OF_STORAGE} and on ({NODE}) (node:gpunode_job:member "
        f"and on ({JOB}) job:gpunode_workless:seconds > {STILL_FROM})",
        "remote_filesystem",
        by=OF_A_NODE,
    ),
    _fault(
        PAGES,
        f"{MOST_THROTTLED} > {THROTTLED} "
        f"and on ({NODE}, fault) {MOST_THROTTLED} offset {THROTTLED_BEFORE} > {THROTTLED}",
        "$1",
        "fault",
        by=OF_A_NODE,
    ),
    _fault(
        PAGES,
        _new("node:gpunode_filesystem:failing_in_use > 0", _FAILED_YESTERDAY, "filesystem"),
        "filesystem",
        by=OF_A_NODE,
    ),
    _fault(
        TELLS,
        _new("node:gpunode_filesystem:failing > 0", _FAILED_YESTERDAY, "filesystem"),
        "filesystem",
        by=OF_A_NODE,
    ),
)


def as_device(of_interfaces: str) -> str:
    """Network interfaces as ports without a number."""
    return f'label_replace({of_interfaces}, "device", "$1", "interface", "(.+)")'


GPUS = f"count by ({NODE}) (max by ({GPU}) ({PHYSICAL}))"
CONTROLLERS = f"sum by ({NODE}) (max by ({NODE}, controller) (gpunode_disk_controller_live))"
PORTS = f"count by ({NODE}) (max by ({PORT}) (gpunode_infiniband_active))"

_LACKING = (
    f"(max by ({NODE}, part) ("
    'label_replace(node:gpunode_hardware:expected, "of", "the past", "", "") '
    "or label_replace(label_replace("
    f"count by ({NODE}) (max by ({NODE}, bus_id) "
    f'(gpunode_pcie_device_info{{kind="gpu"}})) unless on ({NODE}) {DECLARED}, '
    '"part", "gpu", "", ""), "of", "the bus", "", "")) '
    f"- on ({NODE}, part) node:gpunode_hardware:present > 0)"
)
"""Where a person has said that a node is as it should be, its bus may have GPUs that the driver is
not to know, such as those for virtual machines."""

_BROKEN = (
    f"label_replace(count by ({NODE}) (max_over_time(gpu:gpunode_gpu_fault:worst[1h]) == {PAGES} "
    f'unless on ({NODE}, uuid) max by ({NODE}, uuid) ({PHYSICAL})), "part", "gpu", "", "")'
)
"""How many GPUs of a node are broken and are not shown by the driver."""

_INODES = "gpunode_filesystem_files_free"
_OUT_OF_INODES = (
    f"{_INODES} < {INODES_FREE} * gpunode_filesystem_files "
    f'and on ({OF_MOUNT}) ({_INODES}{{fstype=~"{LOCAL}"}} or node:gpunode_filesystem:inodes_1d '
    "or node:gpunode_filesystem:failing)"
)
"""Filesystems without inodes. What a server has of them may be a number that means nothing: it
counts from when the last of them were taken."""

SCRAPED = f"(max by ({NODE}) ({TARGETS}) == 1)"
"""Nodes whose exporter answers."""


def _while_silent(record: str, by: str) -> str:
    """What a rule said of a node before its exporter stopped to answer: nothing is mended by it."""
    return (
        f"or on ({by}) ({record} unless on ({NODE}) {SCRAPED} "
        f"and on ({NODE}) last_over_time({ANSWERED}[{TARGET_LATELY}]))"
    )


HELD_BEFORE = "15m"
"""Where Prometheus was away, who held a GPU is what it knew before. A job may have ended since, so
it does not look back for as long as for what is broken."""

_USED_LATELY = "15m"
"""What broke under a job was used, though the job has ended since."""

_GONE = (
    f"(max by ({GPU}) (max_over_time(gpunode_gpu_processes[{_USED_LATELY}:3m])) "
    f"unless on ({NODE}, uuid) max by ({NODE}, uuid) ({PHYSICAL}))"
)
"""The processes of GPUs that their node showed lately and shows no more: also while nothing is
scraped of it."""

_USED = "node:gpunode_gpu_processes:max"
_UNUSED = (
    f"(max_over_time({_USED}[{_USED_LATELY}]) == 0 "
    f"unless on ({NODE}) (gpu:gpunode_gpu_fault:worst == {PAGES} "
    f"or on ({NODE}) node:gpunode_gpus:missing) "
    f"or on ({NODE}) last_over_time({SPARE}[{_USED_LATELY}])) "
    f"and on ({NODE}) last_over_time(node:gpunode_exporter:up[{TARGET_LATELY}]) "
    f"unless on ({NODE}) max_over_time({_USED}[{_USED_LATELY}]) > 0 "
    f"unless on ({NODE}) last_over_time(node:gpunode_job:gpus[{_USED_LATELY}])"
)


FAULTS_OF_PARTS = {"gpu": "gpu_missing", "nvme": "disk", "port": "network"}


def with_fault(missing: str) -> str:
    """What a node lacks, with the fault that it is of."""
    for part, fault in FAULTS_OF_PARTS.items():
        missing = f'label_replace({missing}, "fault", "{fault}", "part", "{part}")'
    return missing


def _as_part(number: str, part: str) -> str:
    return f'label_replace({number}, "part", "{part}", "", "")'


def _or(parts: tuple[str, ...]) -> str:
    """All of several expressions."""
    return " or ".join(parts)


def of_fleet(of: str) -> str:
    """Faults that so many nodes have that one alert speaks for all of them."""
    nodes = f"count by (cluster, fault) ({of} unless on ({NODE}) {CORDONED})"
    return (
        f"{nodes} >= {FLEET_NODES} or on (cluster, fault) ({nodes} >= {FLEET_LEAST} "
        f"and on (cluster, fault) {nodes} / on (cluster) group_left () cluster:gpunode_node:count "
        f"> {FLEET_SHARE})"
    )


def _unanswered(in_flight: str, completed: str, by: str) -> str:
    """Requests in flight of which, as is known, none was completed in two minutes."""
    return f"max by ({by}) ({in_flight}) > 0 and on ({by}) {gained(completed, by, '2m')} == 0"


LUSTRE_SILENT = _unanswered(
    "gpunode_lustre_rpcs_in_flight", "gpunode_lustre_rpcs_total", OF_FILESYSTEM
)
LUSTRE_LOST = (
    f"{gained('gpunode_lustre_rpc_timeouts_total', OF_FILESYSTEM, '5m')} > 0 "
    f"and on ({OF_FILESYSTEM}) max by ({OF_FILESYSTEM}) "
    '(gpunode_lustre_targets{connected="false"}) > 0'
)
NFS_SILENT = _unanswered("gpunode_nfs_requests_in_flight", "gpunode_nfs_requests_total", OF_MOUNT)
NFS_REPEATS = (
    f"{gained('gpunode_nfs_retransmissions_total', OF_MOUNT, '5m')} > 0 "
    f"or {gained('gpunode_nfs_timeouts_total', OF_MOUNT, '5m')} > 0"
)

PORT_ACTIVE = series("gpunode_infiniband_active", device="mlx5_0", port="1")
NFS = {"mountpoint": "/data", "operation": "read"}
LIVE = series("gpunode_disk_controller_live", controller="nvme0")
INFO = series(
    "gpunode_gpu_info",
    name="NVIDIA H200",
    bus_id="0000:00:06.0",
    serial="1654024076942",
    vbios="96.00.A5.00.1A",
    compute_capability="9.0",
    parent="",
    gsp="",
    inforom="",
    cluster_uuid="",
    clique_id="",
)

USED_BESIDE: Given = {
    UP: 1.0,
    series("gpunode_gpu_processes", engine="compute"): 0.0,
    series("gpunode_gpu_processes", engine="compute", **ON_B): 1.0,
    Series(INFO.metric, (*INFO.labels, *ON_B.items())): 1.0,
}
"""A node that shows only the second of its GPUs, which is in use."""

OF_NODES: tuple[Record, ...] = (
    Record(
        name=CORDONED,
        labels=OF_NODE,
        expression=(
            f"{SCHEDULABLE} > 0 or max by ({NODE}) (gpunode_node_drained) > 0 "
            f"or on ({NODE}) ({recalled(CORDONED, NODE)} "
            f"and on ({NODE}) last_over_time({ANSWERED}[{AWAY}]) unless on ({NODE}) {SCRAPED} "
            f"unless on ({NODE}) {SCHEDULABLE})"
        ),
        purpose="Nodes that are cordoned or drained, as kube-state-metrics or the file of "
        "`--node.drained-file` last said, however long they are off; they page nobody. The rule "
        "reads its own past.",
        given={
            series("kube_node_spec_unschedulable", node=NODE_A, instance="10.0.0.9:8080"): 1.0,
            series("gpunode_node_drained", instance=NODE_A): 0.0,
            series("gpunode_node_drained", instance="node-b"): 1.0,
            series("gpunode_node_drained", instance="node-c"): 0.0,
        },
        results={(NODE_A,): 1.0, ("node-b",): 1.0},
    ),
    Record(
        name="node:gpunode_exporter:up",
        labels=OF_NODE,
        interval=AT_ONCE,
        expression=f"max by ({NODE}) (max_over_time({TARGETS}[2m]))",
        purpose="Whether an exporter could be scraped within two minutes.",
        given={UP: 1.0},
        results={(NODE_A,): 1.0},
    ),
    Record(
        name="node:gpunode_exporter:answered",
        labels=OF_NODE,
        expression=f"max by ({NODE}) (avg_over_time({TARGETS}[10m]))",
        purpose="Share of the scrapes within ten minutes that an exporter answered.",
        given={UP: 1.0},
        results={(NODE_A,): 1.0},
    ),
    Record(
        name="node:gpunode_unread:increase1h",
        labels=(*OF_NODE, "source", "what"),
        expression=happened("gpunode_unread_total", f"{NODE}, source, what", "1h"),
        purpose="How often a source met what it does not understand, where it did.",
        given={
            series("gpunode_unread_total", source="kernel_log", what="kernel_line"): 0.0625,
            series("gpunode_unread_total", source="infiniband", what="port"): 0.0,
        },
        results={(NODE_A, "kernel_log", "kernel_line"): 225.0},
    ),
    Record(
        name="node:gpunode_refused:increase1h",
        labels=(*OF_NODE, "source", "what"),
        expression=happened("gpunode_refused_total", f"{NODE}, source, what", "1h"),
        purpose="How often a bound of a source left something out, where one did.",
        given={
            series("gpunode_refused_total", source="filesystem", what="mounts"): 0.0625,
            series("gpunode_refused_total", source="web", what="connections"): 0.0,
        },
        results={(NODE_A, "filesystem", "mounts"): 225.0},
    ),
    Record(
        name="gpu:gpunode_gpu_info:by_bus",
        labels=(*OF_NODE, "bus_id", *OF_GPU[2:]),
        expression=(
            f"max by ({_BY_BUS}, gpu, uuid) ({PHYSICAL}) or on ({_BY_BUS}) "
            f"max by ({_BY_BUS}, gpu, uuid) (last_over_time({PHYSICAL}[15m:3m]))"
        ),
        purpose="GPUs by their place on the PCI bus: those there are, or were while an XID counts.",
        given={INFO: 1.0},
        results={(NODE_A, "0000:00:06.0", *GPU_A): 1.0},
    ),
    Record(
        name="gpu:gpunode_nvlink_link_recovery:increase1h",
        labels=(*OF_GPU, "link"),
        interval=FOR_HOURS,
        expression=(
            f"(0 * (max by ({_LINK}) ({LINK_RECOVERIES}) "
            f"unless on ({_LINK}) max by ({_LINK}) ({LINK_RECOVERIES} offset 1h)) "
            f"+ on ({GPU}) group_left () round({gained(GPU_RECOVERIES, GPU, '1h')}) "
            f"or on ({_LINK}) "
            f"round({gained(LINK_RECOVERIES, _LINK, '1h')})) > 0"
        ),
        purpose="How often an NVLink has recovered within an hour. A link without errors has no "
        "series: one that begins within the hour has gained what the sum over the GPU's links has.",
        given={
            series("gpunode_gpu_nvlink_errors_total", kind="recovery_successful"): 0.001,
            series(
                "gpunode_gpu_nvlink_link_errors_total", link="3", kind="recovery_successful"
            ): 0.001,
        },
        results={(*A, "3"): 4.0},
    ),
    Record(
        name=HAS_LINKS,
        labels=OF_GPU,
        expression=(
            f"{LINK_UP} > 0 or on ({GPU}) ({LINK_UP} == 0 and on ({GPU}) "
            f"last_over_time({HAS_LINKS}[1h])) or on ({GPU}) ({LINK_UP} == 0 "
            f"and on ({NODE}) count by ({NODE}) ({LINK_UP} == 0) == 1 "
            f"and on ({NODE}) count by ({NODE}) ({LINK_UP} > 0) > 1)"
        ),
        purpose="GPUs that have NVLinks: one is up, or was; or all are down, and it is the only "
        "one of its node of which that is so. The rule reads its own past.",
        given={series("gpunode_gpu_nvlink_up", link="0"): 1.0},
        results={A: 1.0},
    ),
    Record(
        name=WITH_LINKS_DOWN,
        labels=OF_GPU,
        expression=(
            f"count by ({GPU}) (max by ({GPU}, link) (gpunode_gpu_nvlink_up) == 0) "
            f"and on ({GPU}) {HAS_LINKS}"
        ),
        purpose="NVLinks of a GPU that are down.",
        given=ONE_OF_TWO_DOWN,
        results={A: 1.0},
    ),
    Record(
        name=LINKS_DOWN,
        labels=OF_NODE,
        expression=f"count by ({NODE}) ({WITH_LINKS_DOWN})",
        purpose="GPUs of a node that have NVLinks which are down.",
        given=ONE_OF_TWO_DOWN,
        results={(NODE_A,): 1.0},
    ),
    Record(
        name=LINKS_LOST_IN_USE,
        labels=OF_NODE,
        expression=(
            f"{LINKS_DOWN} >= on ({NODE}) {NVLINK_PEERS} * count by ({NODE}) ({LINK_UP}) "
            f"and on ({NODE}) (last_over_time(node:gpunode_job:gpus[{_USED_LATELY}]) "
            f"or on ({NODE}) last_over_time({LINKS_LOST_IN_USE}[{_USED_LATELY}]))"
        ),
        purpose="The same, where these are much of the node and somebody held GPUs of it when they "
        "lost their links, or has since. The rule reads its own past.",
        given={**HELD, **ONE_OF_TWO_DOWN},
        results={(NODE_A,): 1.0},
    ),
    Record(
        name=COMPLAINS_OF_STORAGE,
        labels=OF_NODE,
        expression=happened('gpunode_kernel_log_events_total{kind="remote_filesystem"}', NODE),
        purpose="Kernel log lines of Ceph, GPFS or CIFS in 15 minutes. Nothing counts the requests "
        "of these filesystems.",
        given={series("gpunode_kernel_log_events_total", kind="remote_filesystem"): 0.0625},
        results={(NODE_A,): 56.25},
    ),
    Record(
        name="gpu:gpunode_nvlink_domain:member",
        labels=(*OF_GPU, "domain"),
        expression=(
            f"{_IN_DOMAIN} and on ({GPU}) count by ({GPU}) ({_IN_DOMAIN}) == 1 or on ({GPU}) "
            f"max by ({GPU}, domain) (label_replace(max_over_time({PHYSICAL}[15m:3m]), "
            '"domain", "$1", "instance", "(.+)"))'
        ),
        purpose="The GPUs that reach each other over NVLink: of a domain of several nodes, else of "
        "one node; as they were while an XID counts.",
        given={INFO: 1.0},
        results={(NODE_A, *GPU_A, NODE_A): 1.0},
    ),
    Record(
        name="gpu:gpunode_nvlink_xid:age",
        labels=(*OF_GPU, "xid", "domain"),
        interval=AT_ONCE,
        expression=(
            f"(time() - max by ({GPU}, xid) ({_LINK_XIDS})) "
            f"* on ({GPU}) group_left (domain) gpu:gpunode_nvlink_domain:member"
        ),
        purpose="Seconds since a GPU reported that its NVLink failed "
        f"({LINK_LOST}) or that it lost a peer ({PEER_LOST}), and its domain.",
        given={INFO: 1.0, series(XIDS, xid=str(LINK_LOST)): 1.0},
        results={(NODE_A, *GPU_A, str(LINK_LOST), NODE_A): 0.0},
    ),
    Record(
        name="gpu:gpunode_gpu_fault:level",
        labels=(*OF_GPU, "reason"),
        interval=AT_ONCE,
        expression=_or(GPU_FAULTS),
        purpose="Faults of a GPU: 2 is worth waking somebody, 1 a ticket.",
        given={
            INFO: 1.0,
            series("gpunode_gpu_xid_last_timestamp_seconds", xid="79"): 1.0,
            series("gpunode_gpu_xid_last_timestamp_seconds", xid="31"): 1.0,
            series(LOGGED_XIDS, bus_id="0000:00:06.0", xid="119"): 1.0,
            series(
                NVLINK_XIDS,
                bus_id="0000:00:06.0",
                xid="149",
                link="8",
                severity="fatal",
                action="reset_gpu",
            ): 1.0,
            series("gpunode_gpu_xid_last_timestamp_seconds", xid="149"): 1.0,
            series("gpunode_gpu_row_remap_pending"): 1.0,
            series(MEMORY_FAULT.name, fault=SRAM_WORN): 1.0,
        },
        results={
            (*A, "XID 79: reboot the node"): 2.0,
            (*A, "XID 119: reset the GPU"): 2.0,
            (*A, "XID 149 on link 8: reset the GPU"): 2.0,
            (*A, "row remap pending"): 1.0,
            (*A, MEMORY_FAULTS[SRAM_WORN]): 1.0,
        },
    ),
    Record(
        name="gpu:gpunode_gpu_fault:worst",
        labels=OF_GPU,
        interval=AT_ONCE,
        expression=f"max by ({GPU}) (gpu:gpunode_gpu_fault:level)",
        purpose="The worst fault of a GPU.",
        given={series("gpunode_gpu_recovery_action", action="reset"): 1.0},
        results={A: 2.0},
    ),
    Record(
        name="node:gpunode_port:up_1d",
        labels=(*OF_NODE, "device", "port"),
        interval=FOR_DAYS,
        expression=(
            f"max by ({PORT}) (max_over_time(gpunode_infiniband_active{DAY})) > 0 or "
            f"{as_device(f'max by ({INTERFACE}) (max_over_time(gpunode_network_up{DAY}))')} > 0"
        ),
        purpose="Ports and interfaces that have been up within a day.",
        given={PORT_ACTIVE: 1.0},
        results={(NODE_A, "mlx5_0", "1"): 1.0},
    ),
    Record(
        name="node:gpunode_port:up",
        labels=(*OF_NODE, "device", "port"),
        expression=(
            f"(min by ({PORT}) (avg_over_time(gpunode_infiniband_active[10m])) or "
            f"{as_device(f'min by ({INTERFACE}) (avg_over_time(gpunode_network_up[10m]))')}) "
            f"and on ({PORT}) {unrepaired('node:gpunode_port:last_up')} "
            + _while_silent(f"node:gpunode_port:up < {PORT_DOWN}", PORT)
        ),
        purpose="Share of the last ten minutes for which a port or interface was up that has been "
        "up since a person said that the node is repaired.",
        given={PORT_ACTIVE: 1.0},
        results={(NODE_A, "mlx5_0", "1"): 1.0},
    ),
    Record(
        name="gpu:gpunode_gpu_throttled:ratio",
        labels=(*OF_GPU, "fault"),
        expression=(
            f'label_replace({rate(HEAT)}, "fault", "thermal", "", "") '
            f'or label_replace({rate(BRAKE)}, "fault", "power_brake", "", "")'
        ),
        purpose="Share of the time in which heat or the power supply lowers the clocks of a GPU.",
        given={THERMAL_SLOWDOWN: 0.25},
        results={(*A, "thermal"): 0.25},
    ),
    Record(
        name="gpu:gpunode_gpu_throttled:ratio1h",
        labels=(*OF_GPU, "fault"),
        interval=FOR_HOURS,
        expression="sum_over_time((gpu:gpunode_gpu_throttled:ratio > 0)[1h:5m]) / 12",
        purpose="The same over an hour, from its twelve parts of five minutes; before gpunode has "
        "watched a GPU for as long, the rest of the hour counts as well.",
        given={THERMAL_SLOWDOWN: 0.25},
        results={(*A, "thermal"): 0.25},
    ),
    Record(
        name="node:gpunode_hardware:present",
        labels=(*OF_NODE, "part"),
        expression=(
            _as_part(f"{GPUS} or on ({NODE}) 0 * {SCRAPED}", "gpu")
            + f" or {_as_part(CONTROLLERS, 'nvme')} or {_as_part(PORTS, 'port')} "
            f"or on ({NODE}, part) (0 * node:gpunode_hardware:most_1d and on ({NODE}) {SCRAPED})"
        ),
        purpose="GPUs, NVMe controllers that work, and InfiniBand ports that a node has; zero if "
        "it had some within a day.",
        given={INFO: 1.0, LIVE: 1.0, PORT_ACTIVE: 1.0},
        results={(NODE_A, "gpu"): 1.0, (NODE_A, "nvme"): 1.0, (NODE_A, "port"): 1.0},
    ),
    Record(
        name="node:gpunode_hardware:most_1d",
        labels=(*OF_NODE, "part"),
        interval=FOR_DAYS,
        expression=f"max_over_time(node:gpunode_hardware:present{DAY})",
        purpose="The most of each part that a node has had within a day.",
        given={UP: 1.0, LIVE: 1.0},
        results={(NODE_A, "gpu"): 0.0, (NODE_A, "nvme"): 1.0},
    ),
    Record(
        name="node:gpunode_hardware:missing",
        labels=(*OF_NODE, "part"),
        expression=(
            f"{_LACKING} - on ({NODE}, part) {_BROKEN} > 0 "
            f"or on ({NODE}, part) ({_LACKING} unless on ({NODE}, part) {_BROKEN}) "
            + _while_silent("node:gpunode_hardware:missing", f"{NODE}, part")
        ),
        purpose="What a node has had, or has on its PCI bus, and lacks now; without GPUs that are "
        "known to be broken, which have an alert of their own.",
        given={
            UP: 1.0,
            series("gpunode_pcie_device_info", bus_id="0000:1b:00.0", kind="gpu"): 1.0,
        },
        results={(NODE_A, "gpu"): 1.0},
    ),
    Record(
        name="node:gpunode_gpus:missing",
        labels=(*OF_NODE, "part"),
        expression='node:gpunode_hardware:missing{part="gpu"}',
        purpose="GPUs that a node lacks.",
        given={
            UP: 1.0,
            series("gpunode_pcie_device_info", bus_id="0000:1b:00.0", kind="gpu"): 1.0,
        },
        results={(NODE_A, "gpu"): 1.0},
    ),
    Record(
        name=_USED,
        labels=OF_NODE,
        expression=f"max by ({NODE}) (gpunode_gpu_processes)",
        purpose="The most processes that a GPU of a node has.",
        given={series("gpunode_gpu_processes", engine="compute"): 2.0},
        results={(NODE_A,): 2.0},
    ),
    Record(
        name=SPARE,
        labels=OF_NODE,
        interval=FOR_HOURS,
        expression=f"{CORDONED} or on ({NODE}) ({_UNUSED})",
        purpose="Nodes that are cordoned, and those whose GPUs nobody has used in the "
        f"{_USED_LATELY} before one broke, nor since: what is broken there harms nobody. The rule "
        "reads its own past.",
        given={UP: 1.0, series("gpunode_gpu_processes", engine="compute"): 0.0},
        results={(NODE_A,): 0.0},
    ),
    Record(
        name=MISSED_BY_NOBODY,
        labels=OF_NODE,
        expression=(
            f"max by ({NODE}) (node:gpunode_gpus:missing and on ({NODE}) {PHYSICAL} "
            f"and on ({NODE}) {_GONE} == 0 "
            f"unless on ({NODE}) {_GONE} > 0 "
            f"unless on ({NODE}) last_over_time({SPARE}[{_USED_LATELY}])) "
            f"or on ({NODE}) (max by ({NODE}) (node:gpunode_gpus:missing) "
            f"<= on ({NODE}) last_over_time({MISSED_BY_NOBODY}[{_USED_LATELY}]))"
        ),
        purpose=f"GPUs that a node lacks, if none of them had a process in the {_USED_LATELY} "
        "before, while others of the node had: the jobs go on. The rule reads its own past, until "
        "the node lacks more.",
        given={
            **USED_BESIDE,
            series("gpunode_pcie_device_info", bus_id="0000:1b:00.0", kind="gpu"): 1.0,
            series("gpunode_pcie_device_info", bus_id="0000:1c:00.0", kind="gpu"): 1.0,
        },
        results={(NODE_A,): 1.0},
    ),
    Record(
        name="node:gpunode_gpus:missed",
        labels=(*OF_NODE, "part", "fault"),
        expression=(
            f"{with_fault('node:gpunode_gpus:missing')} unless on ({NODE}) {MISSED_BY_NOBODY}"
        ),
        purpose="GPUs that a node lacks and that somebody may miss.",
        given={
            UP: 1.0,
            series("gpunode_pcie_device_info", bus_id="0000:1b:00.0", kind="gpu"): 1.0,
        },
        results={(NODE_A, "gpu", "gpu_missing"): 1.0},
    ),
    Record(
        name="node:gpunode_filesystem:available_ratio",
        labels=(*OF_NODE, "mountpoint", "fstype"),
        expression=(
            f"max by ({MOUNT}) (gpunode_filesystem_available_bytes) / on ({MOUNT}) "
            f"max by ({MOUNT}) (gpunode_filesystem_size_bytes > 0)"
        ),
        purpose="Share of a filesystem that is free.",
        given={
            series("gpunode_filesystem_available_bytes", mountpoint="/", fstype="ext4"): 5.0,
            series("gpunode_filesystem_size_bytes", mountpoint="/", fstype="ext4"): 10.0,
        },
        results={(NODE_A, "/", "ext4"): 0.5},
    ),
    Record(
        name="node:gpunode_filesystem:writable_1d",
        labels=(*OF_NODE, "mountpoint"),
        interval=FOR_DAYS,
        expression=f"max by ({NODE}, mountpoint) (1 - min_over_time({READ_ONLY}{DAY})) > 0",
        purpose="Filesystems of a node that could be written to within a day.",
        given={series("gpunode_filesystem_readonly", mountpoint="/", fstype="ext4"): 0.0},
        results={(NODE_A, "/"): 1.0},
    ),
    Record(
        name="node:gpunode_filesystem:inodes_1d",
        labels=(*OF_NODE, "mountpoint"),
        interval=FOR_DAYS,
        expression=(
            f"max by ({OF_MOUNT}) ({INODES_FREE} * gpunode_filesystem_files "
            f'< max_over_time({_INODES}{{fstype!~"{LOCAL}"}}{DAY}))'
        ),
        purpose="Shared filesystems that had inodes within a day.",
        given={
            series(_INODES, mountpoint="/data", fstype="nfs"): 5e5,
            series("gpunode_filesystem_files", mountpoint="/data", fstype="nfs"): 1e6,
        },
        results={(NODE_A, "/data"): 1e3},
    ),
    Record(
        name="node:gpunode_filesystem:failing",
        labels=(*OF_NODE, "mountpoint"),
        expression=(
            f"max by ({NODE}, mountpoint) ({READ_ONLY} == 1) "
            f"and on ({OF_MOUNT}) {unrepaired('node:gpunode_filesystem:last_writable')} "
            f"or max by ({NODE}, mountpoint) ({_OUT_OF_INODES}) > bool -1 "
            f"or max by ({NODE}, mountpoint) (gpunode_filesystem_available_bytes{{mountpoint="
            f'"/"}} < {ROOT_FREE} * gpunode_filesystem_size_bytes) > bool -1 '
            + _while_silent("node:gpunode_filesystem:failing", OF_MOUNT)
        ),
        purpose="Filesystems of a node that take no more files: made read-only since a person "
        "said that the node is repaired, without inodes, or the root without space.",
        given={
            series("gpunode_filesystem_files_free", mountpoint="/", fstype="ext4"): 0.0,
            series("gpunode_filesystem_files", mountpoint="/", fstype="ext4"): 1e6,
        },
        results={(NODE_A, "/"): 1.0},
    ),
    Record(
        name="node:gpunode_filesystem:failing_in_use",
        labels=(*OF_NODE, "mountpoint"),
        expression=f"node:gpunode_filesystem:failing and on ({NODE}) node:gpunode_job:gpus",
        purpose="Filesystems that take no more files, of nodes whose GPUs are held.",
        given={
            **HELD,
            series("gpunode_filesystem_files_free", mountpoint="/", fstype="ext4"): 0.0,
            series("gpunode_filesystem_files", mountpoint="/", fstype="ext4"): 1e6,
        },
        results={(NODE_A, "/"): 1.0},
    ),
    Record(
        name="node:gpunode_shm_used:ratio",
        labels=(*OF_NODE, "tmpfs"),
        expression=(
            f"max by ({TMPFS}) (gpunode_job_shm_used_bytes) / on ({TMPFS}) "
            f"max by ({TMPFS}) (gpunode_job_shm_size_bytes > 0) or label_replace("
            f"max by ({NODE}) (gpunode_shm_used_bytes) / on ({NODE}) "
            f'max by ({NODE}) (gpunode_shm_size_bytes > 0), "tmpfs", "node", "", "")'
        ),
        purpose="Used share of the /dev/shm of each job, by its device, and of the node.",
        given={
            series("gpunode_shm_used_bytes"): 50.0,
            series("gpunode_shm_size_bytes"): 100.0,
        },
        results={(NODE_A, "node"): 0.5},
    ),
    Record(
        name="node:gpunode_storage_silent:active",
        labels=(*OF_NODE, "filesystem"),
        interval=AT_ONCE,
        expression=(
            f"{LUSTRE_SILENT} or {LUSTRE_LOST} or label_replace("
            f"{NFS_SILENT} and on ({OF_MOUNT}) ({NFS_REPEATS}) "
            f"or on ({OF_MOUNT}) ({NFS_SILENT} and on ({NODE}) "
            f"max by ({NODE}) (gpunode_job_blocked_processes) > 0), "
            '"filesystem", "$1", "mountpoint", "(.+)")'
        ),
        purpose="Filesystems from which a node has requests without an answer.",
        given={
            series("gpunode_lustre_rpcs_in_flight", filesystem="scratch", server="data"): 8.0,
            series("gpunode_lustre_rpcs_total", filesystem="scratch", server="data"): 0.0,
        },
        results={(NODE_A, "scratch"): 8.0},
    ),
)
"""Rules that need only the series of one node; each shard of Prometheus can evaluate them."""

OF_CLUSTERS: tuple[Record, ...] = (
    Record(
        name="cluster:gpunode_node:count",
        labels=("cluster",),
        interval=AT_ONCE,
        expression=f"count by (cluster) (max by ({NODE}) ({TARGETS}))",
        purpose="Nodes that Prometheus scrapes.",
        given={UP: 0.0},
        results={(): 1.0},
    ),
    Record(
        name="node:gpunode_down:harmed",
        labels=OF_NODE,
        interval=AT_ONCE,
        expression=(
            f"(last_over_time(node:gpunode_job:gpus_at_stake[5m]) or on ({NODE}) "
            f"(last_over_time(node:gpunode_down:harmed[30m]) or on ({NODE}) "
            f"last_over_time(node:gpunode_job:gpus_at_stake[{HELD_BEFORE}])) "
            f"unless on (cluster) count_over_time({TARGETS}[4m] offset 2m) "
            f"or on ({NODE}) node:gpunode_down:harmed) "
            f"and on ({NODE}) (max by ({NODE}) ({TARGETS}) == 0 "
            f"and on ({NODE}) node:gpunode_exporter:up == 0) "
            f"unless on ({NODE}) (gpu:gpunode_job:member_lately "
            f"and on ({JOB}) job:gpunode_workless:seconds < {STILL_FROM}) "
            f"or on ({NODE}) (node:gpunode_down:harmed "
            "unless on (cluster) node:gpunode_exporter:up "
            f"and on (cluster) count_over_time({TARGETS}[30m]))"
        ),
        purpose="GPUs that were held when their node was last seen, while its exporter is down, "
        "unless their job works elsewhere or is a notebook that rests. The rule reads its own "
        "past: also over half an hour in which Prometheus scraped nothing, or did not run; who "
        f"held a GPU is known over {HELD_BEFORE} of that.",
        given={UP: 0.0, **HELD},
        results={(NODE_A,): 1.0},
    ),
    Record(
        name="node:gpunode_fault:level",
        labels=(*OF_NODE, "fault"),
        interval=AT_ONCE,
        expression=f"max by ({OF_A_NODE}) ({_or(NODE_FAULTS)})",
        purpose="Faults of a node that its neighbours may have too: 2 is worth waking somebody, 1 "
        "a ticket.",
        given={UP: 0.0, **HELD},
        results={(NODE_A, "exporter"): 2.0},
    ),
    Record(
        name="cluster:gpunode_fault:fleet",
        labels=("cluster", "fault"),
        interval=AT_ONCE,
        expression=of_fleet("node:gpunode_fault:level == 2"),
        purpose="Nodes with the same fault, worth waking somebody, if they are many.",
        given={
            UP: 0.0,
            series("up", job="gpunode", instance="node-b"): 0.0,
            **HELD,
            next(iter(HELD)).__class__(
                "gpunode_gpu_owner_info",
                (*next(iter(HELD)).labels, ("instance", "node-b")),
            ): 1.0,
        },
        results={("exporter",): 2.0},
    ),
    Record(
        name="cluster:gpunode_fault:fleet_any",
        labels=("cluster", "fault"),
        interval=AT_ONCE,
        expression=of_fleet("node:gpunode_fault:level"),
        purpose="Nodes with the same fault, if they are many.",
        given={UP: 0.0, series("up", job="gpunode", instance="node-b"): 0.0},
        results={("exporter",): 2.0},
    ),
    Record(
        name="filesystem:gpunode_storage_silent:nodes",
        labels=("cluster", "filesystem"),
        interval=AT_ONCE,
        expression=(
            f"count by ({FILESYSTEM}) (node:gpunode_storage_silent:active "
            f"and on ({NODE}) node:gpunode_job:gpus)"
        ),
        purpose="Nodes with jobs that wait for a filesystem which does not answer.",
        given={
            **HELD,
            series("gpunode_lustre_rpcs_in_flight", filesystem="scratch", server="data"): 8.0,
            series("gpunode_lustre_rpcs_total", filesystem="scratch", server="data"): 0.0,
        },
        results={("scratch",): 1.0},
    ),
)
"""Rules that add up or compare nodes, for the Prometheus that sees them all."""
