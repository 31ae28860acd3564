"""What stays broken until there is evidence of repair, and whose it was when it broke.

Each rule here reads its own past. A fault outlasts a Prometheus that is away for up to an hour
(``repairs.AWAY``). What has not been scraped for a day is forgotten: a node that is removed for
good. Evidence of repair is newer than the fault, so it counts whenever it is seen.
"""

from __future__ import annotations

from alerts.examples import GPU_A, HELD, NODE_A, OF_GPU, OF_NODE, A, series
from alerts.model import AT_ONCE, FOR_DAYS, FOR_HOURS, Record
from alerts.promql import DAY, GPU, NODE
from alerts.recording.clocks import dated
from alerts.recording.faults import (
    ANSWERED,
    INFO,
    INTERFACE,
    LATCHED,
    OF_A_GPU,
    OF_A_RESET,
    OF_MOUNT,
    PAGES,
    PHYSICAL,
    PORT,
    PORT_ACTIVE,
    READ_ONLY,
    XIDS,
    as_device,
    recalled,
)
from alerts.recording.repairs import AWAY, BOOTED, DECLARED
from alerts.settings import PARTS_COUNTED_FOR

ENERGY = "gpunode_gpu_driver_energy_joules_total"
RECOVERY_ACTION = "gpunode_gpu_recovery_action"
BY_UUID = "cluster, uuid"
NOTED = "gpu:gpunode_gpu_fault:noted"
REPAIRED = "gpu:gpunode_gpu:repaired"
AT_FAULT = "gpu:gpunode_gpu_fault:energy"
EXPECTED = "node:gpunode_hardware:expected"
HOLDER = "gpu:gpunode_gpu_fault:holder"
SCRAPED_TODAY = "node:gpunode_hardware:most_1d"
UNTIL = "2h"
"""For how long evidence counts: longer than what it ends may come back from the past."""

_PART = f"{NODE}, part"
PLACES = f"max by ({GPU}) ({PHYSICAL})"
PLACE = f"({PLACES} and on ({BY_UUID}) count by ({BY_UUID}) ({PLACES}) == 1)"
"""The place of each GPU that is in one place."""

_KEPT = f"last_over_time({LATCHED}[{AWAY}])"
_BEFORE = (
    f"(max by ({BY_UUID}, reason) ({_KEPT}) * on ({BY_UUID}) group_left (instance, gpu) {PLACE} "
    f"or on ({BY_UUID}) {_KEPT}) and on ({NODE}) {SCRAPED_TODAY}"
)
"""A fault goes where its GPU is: the node may have another label ``instance`` by now."""


_STARTED_ANEW = (
    f"max by ({NODE}) ("
    f'label_replace({dated(f"max by ({NODE}) ({BOOTED})", NODE)}, "by", "boot", "", "") '
    f'or label_replace({DECLARED}, "by", "word", "", ""))'
)
_WAS_RESET = f"max by ({GPU}) ({ENERGY}) < on ({GPU}) {recalled(AT_FAULT, GPU)}"
_LAST_RECOVERY = (
    f"max by ({GPU}) (max_over_time(timestamp({RECOVERY_ACTION}{{action!='none'}})[1h:1m])) "
    f"and on ({GPU}) max by ({GPU}) ({RECOVERY_ACTION}{{action='none'}})"
).replace("'", '"')
_BROKEN = f"gpu:gpunode_gpu_fault:worst == {PAGES}"
OF_HOLDER = ("owner_pod", "slurm_job", "user")
_HOLDERS = f"max by ({GPU}, {', '.join(OF_HOLDER)}) (last_over_time(gpunode_gpu_owner_info[2m]))"

_IS_UP = (
    f"max by ({PORT}) (gpunode_infiniband_active) > 0 or "
    f"{as_device(f'max by ({INTERFACE}) (gpunode_network_up)')} > 0"
)
_PORT_TODAY = (
    f"max by ({PORT}) (present_over_time(gpunode_infiniband_active{DAY})) or "
    f"{as_device(f'max by ({INTERFACE}) (present_over_time(gpunode_network_up{DAY}))')}"
)


def _last(true: str, record: str, by: str, today: str, first: str) -> str:
    """When something was last true, of what has been there within a day.

    Before there is anything to remember, what was true within a day was so yesterday.
    """
    return (
        f"time() + 0 * ({true}) or on ({by}) (last_over_time({record}[{AWAY}]) "
        f"and on ({by}) ({today})) or on ({by}) (time() - 86400 + 0 * {first})"
    )


XID_79 = {INFO: 1.0, series(XIDS, xid="79"): 0.0}
REBOOT = "XID 79: reboot the node"
UNFIT = series(RECOVERY_ACTION, action="reset")

OF_GPUS: tuple[Record, ...] = (
    Record(
        name=NOTED,
        labels=(*OF_GPU, "reason"),
        interval=AT_ONCE,
        expression=f"clamp_max({' or '.join(OF_A_RESET)} or on ({OF_A_GPU}) ({_BEFORE}), time())",
        purpose="When a GPU last had an error after which it cannot be used until it is reset, "
        "whether or not it has been; no later than now, as a clock may have it that was ahead and "
        "has been set since. The rule reads the past of `gpu:gpunode_gpu_fault:latched`.",
        given={INFO: 1.0, series(XIDS, xid="79"): 1.0},
        results={(*A, REBOOT): 7320.0},
    ),
    Record(
        name=REPAIRED,
        labels=("cluster", "uuid"),
        interval=AT_ONCE,
        expression=(
            f"max by ({BY_UUID}) (0 * {NOTED} + on ({NODE}) group_left () {_STARTED_ANEW} "
            f'or label_replace({_LAST_RECOVERY}, "reason", "advice", "", "") '
            f"and on ({BY_UUID}) {NOTED} or time() + 0 * ({_WAS_RESET}))"
        ),
        purpose="Until when the faults of a GPU are repaired: its node was started or declared "
        "repaired, the driver's advice was followed, or its energy counter began again.",
        given={
            **{one: value for one, value in XID_79.items() if one.metric != XIDS},
            series(XIDS, xid="79"): 1.0,
            series(BOOTED): 0.0,
        },
        results={(GPU_A[1],): 0.0},
    ),
    Record(
        name=LATCHED,
        labels=(*OF_GPU, "reason"),
        interval=AT_ONCE,
        expression=(
            f"{NOTED} unless on ({BY_UUID}) max_over_time({REPAIRED}[{UNTIL}]) "
            f"or {NOTED} > on ({BY_UUID}) group_left () max_over_time({REPAIRED}[{UNTIL}])"
        ),
        purpose="The same for errors of which there is no evidence of repair, such as a reset.",
        given={INFO: 1.0, series(XIDS, xid="79"): 1.0},
        results={(*A, REBOOT): 7320.0},
    ),
    Record(
        name=AT_FAULT,
        labels=OF_GPU,
        interval=AT_ONCE,
        expression=(
            f"(max by ({GPU}) ({ENERGY}) or on ({GPU}) {recalled(AT_FAULT, GPU)}) "
            f"and on ({GPU}) {LATCHED}"
        ),
        purpose="The driver's energy counter of a GPU that waits for a reset, as last seen.",
        given={INFO: 1.0, series(XIDS, xid="79"): 1.0, series(ENERGY): 1.0},
        results={A: 7320.0},
    ),
)
"""They are evaluated before the faults of a GPU."""

OF_HOLDERS: tuple[Record, ...] = (
    Record(
        name=HOLDER,
        labels=(*OF_GPU, *OF_HOLDER),
        interval=AT_ONCE,
        expression=(
            f"{recalled(HOLDER, GPU)} and on ({GPU}) {_BROKEN} or on ({GPU}) "
            f"({_HOLDERS} and on ({GPU}) {_BROKEN} "
            f"unless on ({GPU}) gpu:gpunode_gpu_fault:worst offset 3m == {PAGES} "
            f"and on ({NODE}) {ANSWERED} offset 3m)"
        ),
        purpose="Who held a broken GPU when it broke.",
        given={**HELD, UNFIT: 1.0},
        results={},
    ),
)
"""They are evaluated after the faults of a GPU."""

OF_PARTS: tuple[Record, ...] = (
    Record(
        name=EXPECTED,
        labels=(*OF_NODE, "part"),
        interval=FOR_HOURS,
        expression=(
            f"max by ({_PART}) ("
            'label_replace(node:gpunode_hardware:present, "of", "now", "", "") or '
            f"({recalled(EXPECTED, _PART)} or on ({_PART}) ({SCRAPED_TODAY} "
            f"unless on ({_PART}) last_over_time({EXPECTED}[{AWAY}]))) "
            f"and on ({_PART}) {SCRAPED_TODAY} "
            f"unless on ({NODE}) {DECLARED} > time() - {PARTS_COUNTED_FOR})"
        ),
        purpose="How many of each part a node has had: the most since a person last said that it "
        "is repaired, as long as it has been scraped within a day.",
        given={INFO: 1.0},
        results={(NODE_A, "gpu"): 1.0},
    ),
    Record(
        name="node:gpunode_port:last_up",
        labels=(*OF_NODE, "device", "port"),
        interval=FOR_DAYS,
        expression=_last(
            _IS_UP, "node:gpunode_port:last_up", PORT, _PORT_TODAY, "node:gpunode_port:up_1d"
        ),
        purpose="When a port or interface was last up that has been there within a day.",
        given={PORT_ACTIVE: 1.0},
        results={(NODE_A, "mlx5_0", "1"): 7320.0},
    ),
    Record(
        name="node:gpunode_filesystem:last_writable",
        labels=(*OF_NODE, "mountpoint"),
        interval=FOR_DAYS,
        expression=_last(
            f"max by ({OF_MOUNT}) ({READ_ONLY} == 0)",
            "node:gpunode_filesystem:last_writable",
            OF_MOUNT,
            f"max by ({OF_MOUNT}) (present_over_time({READ_ONLY}{DAY}))",
            "node:gpunode_filesystem:writable_1d",
        ),
        purpose="When a filesystem could last be written to that has been there within a day.",
        given={series("gpunode_filesystem_readonly", mountpoint="/", fstype="ext4"): 0.0},
        results={(NODE_A, "/"): 7320.0},
    ),
)
