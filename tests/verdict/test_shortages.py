"""What the node is short of, and which of its parts are broken, as sources tell it."""

from __future__ import annotations

from gpunode.export.web.node import NodeNow, node
from gpunode.gpu.health import (
    FABRIC_HEALTHY,
    FABRIC_READY,
    MEMORY_FAULT,
    RECOVERY_ACTION,
    REMAP_PENDING,
)
from gpunode.gpu.xids import XID_TIME
from gpunode.host import disk, filesystem, memory, nfs, pressure, shm
from gpunode.host.kernel_log import LAST_XID
from gpunode.host.nvlink_xids import LAST as NVLINK_XID
from gpunode.nccl import ras
from gpunode.verdict.causes import CAUSES
from tests.cases import with_each
from tests.export.page import scenes
from tests.export.page.scenes import TB, Host
from tests.verdict.stage import Labelled

AT = "3", "GPU-3"
BEGIN = 1_700_000_000.0
BUS = "0000:03:00.0"
ELSEWHERE = "0000:9b:00.0"


def node_page(
    gauges: dict[Labelled, float], rates: dict[Labelled, float], seconds: float = 30
) -> NodeNow:
    """The page over a healthy node, where the host tells this as well."""
    scene = scenes.at_work(4)
    scene.host.gauges |= gauges
    scene.host.rates |= rates
    return node(scene.play(seconds).stage.loop)


def test_nothing_is_wrong_on_a_healthy_node() -> None:
    now = node_page({}, {})
    assert now.findings == []
    assert len(now.figures) > 8
    assert not any(figure.short for figure in now.figures)


SHORT: dict[str, tuple[dict[Labelled, float], dict[Labelled, float], str]] = {
    "cpu": ({}, {(pressure.WAITING, ("cpu",)): 0.4}, "time in which tasks wait for a CPU 40 %"),
    "io": ({}, {(pressure.WAITING, ("io",)): 0.3}, "time in which tasks wait for storage 30 %"),
    "memory": ({(memory.AVAILABLE, ()): 0.04 * TB}, {}, "host memory in use 98 %"),
    "disk": ({}, {(disk.BUSY, ("sdq",)): 1.0}, "busiest disk sdq 100 %"),
    "nfs": (
        {},
        {
            (nfs.RTT_SECONDS, ("/data", "READ")): 3.0,
            (nfs.REQUESTS, ("/data", "READ")): 10.0,
        },
        "slowest file server, per request /data 300 ms",
    ),
    "shm": ({(shm.USED, ()): 0.99 * TB}, {}, "/dev/shm in use 99 %"),
    "filesystem": (
        {
            (filesystem.SIZE, ("/scratch", "xfs")): 100.0,
            (filesystem.AVAILABLE, ("/scratch", "xfs")): 4.0,
        },
        {},
        "fullest filesystem /scratch 96 %",
    ),
    "nccl": (
        {(ras.STALLED, ()): 1.0, (ras.COMMUNICATORS, ()): 4.0},
        {},
        "NCCL communicators that stall 1 of 4",
    ),
}


@with_each(SHORT)
def test_what_is_past_its_limit_is_told_with_a_remedy(name: str) -> None:
    gauges, rates, words = SHORT[name]
    (finding,) = node_page(gauges, rates).findings
    assert finding.urgency == "soon"
    assert finding.title == f"Past the limit on this node: {words}"
    assert finding.remedy


def test_a_figure_names_a_verdict_that_there_is() -> None:
    named = {figure.cause for figure in node_page(*SHORT["nfs"][:2]).figures} - {""}
    assert named == {"data_loading_cpu", "data_loading_storage", "shm"}
    assert named <= CAUSES.keys()


BROKEN: dict[str, tuple[dict[Labelled, float], str]] = {
    "off the bus": (
        {(XID_TIME, (*AT, "79")): BEGIN},
        "GPU 3: XID 79 (GPU has fallen off the bus), reboot the node",
    ),
    "stuck": (
        {(XID_TIME, (*AT, "109")): BEGIN},
        "GPU 3: XID 109 (Context Switch Timeout Error), reset the GPU",
    ),
    "link": (
        {(NVLINK_XID, (BUS, "149", "8", "fatal", "reset_gpu")): BEGIN},
        "GPU 3: XID 149 on NVLink 8, reset the GPU",
    ),
    "links": (
        {(NVLINK_XID, (BUS, "149", "-1", "fatal", "unknown")): BEGIN},
        "GPU 3: XID 149, reset the GPU",
    ),
    "remap": (
        {(REMAP_PENDING, AT): 1.0},
        "GPU 3: a bad row of its memory is replaced at the next reset",
    ),
    "action": (
        {(RECOVERY_ACTION, (*AT, "drain_and_reset")): 1.0},
        "GPU 3: its driver asks for: drain and reset",
    ),
    "domain": (
        {(RECOVERY_ACTION, (*AT, "recover_imex_domain")): 1.0},
        "GPU 3: its driver asks for: recover imex domain",
    ),
    "in the kernel log": (
        {(LAST_XID, (BUS, "79")): BEGIN, (XID_TIME, (*AT, "79")): BEGIN},
        "GPU 3: XID 79 (GPU has fallen off the bus), reboot the node",
    ),
    "in the kernel log, and no longer here": (
        {(LAST_XID, (ELSEWHERE, "79")): BEGIN},
        f"The GPU at {ELSEWHERE} has XID 79 (GPU has fallen off the bus), reboot the node",
    ),
    "memory": ({(MEMORY_FAULT, (*AT, "unrepairable")): 1.0}, "GPU 3: memory unrepairable"),
    "SRAM": (
        {(MEMORY_FAULT, (*AT, "sram_threshold_exceeded")): 1.0},
        "GPU 3: SRAM errors above the threshold",
    ),
    "part of the fabric": (
        {(FABRIC_HEALTHY, (*AT, "configuration")): 0.0},
        "GPU 3: a part of its NVSwitch fabric is not healthy: configuration",
    ),
    "fabric": ({(FABRIC_READY, AT): 0.0}, "GPU 3: it has not joined the NVSwitch fabric"),
    "controller": ({(disk.STATE, ("nvme3",)): 0.0}, "Disk nvme3 does not work"),
}


CAN_WAIT = {"remap", "memory", "SRAM", "controller"}


@with_each(BROKEN)
def test_a_broken_part_is_urgent(name: str) -> None:
    gauges, title = BROKEN[name]
    found = node_page(gauges, {}, 400 if "fabric" in name else 30).findings
    (finding,) = (one for one in found if not one.title.startswith("Past the limit"))
    assert (finding.urgency, finding.title) == ("soon" if name in CAN_WAIT else "now", title)
    assert "{" not in finding.remedy
    assert finding.gpus == (("3",) if "GPU 3" in title else ())


@with_each(
    [
        {(XID_TIME, (*AT, "13")): BEGIN},  # of a program
        {(NVLINK_XID, (BUS, "145", "8", "nonfatal", "ignore")): BEGIN},
        {(RECOVERY_ACTION, (*AT, "none")): 1.0},
        {(FABRIC_READY, AT): 1.0, (REMAP_PENDING, AT): 0.0},
    ]
)
def test_what_is_no_fault_is_not_told(gauges: dict[Labelled, float]) -> None:
    assert node_page(gauges, {}).findings == []


def test_a_node_that_tells_nothing_has_no_figures() -> None:
    scene = scenes.at_work(1)
    scene.host = Host()
    now = node(scene.play(60).stage.loop)
    assert {figure.name for figure in now.figures} == {"NVLink, all GPUs"}
    assert now.findings == []
