"""Which action is advised, for which faults, and whom it harms."""

from __future__ import annotations

from typing import Any

import pytest

from gpunode.advice.node import NodeAdvice, advice
from gpunode.advice.series import NodeSeries, SeriesSample, by_node, parsed
from gpunode.config.daemon import Settings
from gpunode.driver.nvidia.xids import CODES, RECOVERY_ACTIONS
from gpunode.export.exposition import Exposition
from gpunode.faults.fault import UNKNOWN_REASON, AdvisedAction, Location, meaning
from gpunode.gpu import health, xids
from gpunode.gpu.activity import PROCESSES
from gpunode.host import kernel_log, nvlink_xids
from gpunode.host.drained import DRAINED
from gpunode.jobs.owners import OWNER, PROCESS
from gpunode.node.tape import TapeNode
from gpunode.recorded import INCIDENTS
from gpunode.source import Place
from gpunode.sources import watch
from tests.cases import with_each
from tests.faults.node import BEGIN, GPUS, TestNode, bus

LEAVE, RESTART, DRAIN, RESET, CONTACT, REBOOT = AdvisedAction
AT = "3", "GPU-3"


def advised(node: TestNode) -> NodeAdvice:
    """The advice by what a daemon exports."""
    text = Exposition(node.loop.samples).encode("")[0].decode()
    return advice(NodeSeries("n", node.clock.time(), parsed(text)))


def healthy() -> TestNode:
    node = TestNode()
    node.play(60)
    return node


def with_xids(**gpus: int) -> TestNode:
    """A node after XIDs, by GPU as ``gpu3``."""
    node = healthy()
    for gpu, xid in gpus.items():
        number = gpu.removeprefix("gpu")
        node.set(xids.XID_TIME, BEGIN + 58.0, number, f"GPU-{number}", str(xid))
    node.play(30)
    return node


# Each fault has its action

OF_XIDS = {
    13: (RESTART, False),
    31: (RESTART, False),
    94: (RESTART, False),
    43: (LEAVE, False),
    63: (LEAVE, False),
    48: (RESET, True),
    95: (RESET, True),
    119: (RESET, True),
    74: (RESET, True),
    79: (REBOOT, True),
    54: (CONTACT, False),
    4711: (LEAVE, False),
    149: (LEAVE, False),
}


@with_each(OF_XIDS)
def test_each_xid_has_its_action(xid: int) -> None:
    said = advised(with_xids(gpu3=xid))
    assert (said.action, said.drain) == OF_XIDS[xid]


OF_DRIVER = {
    "reset": (RESET, True),
    "drain_and_reset": (RESET, True),
    "reboot": (REBOOT, True),
    "bus_reset": (REBOOT, True),
    "system_reboot": (REBOOT, True),
    "drain_p2p": (DRAIN, False),
    "other": (DRAIN, True),
    "recover_imex_domain": (LEAVE, False),
    "none": (LEAVE, False),
}


@with_each(OF_DRIVER)
def test_what_the_driver_asks_for_is_advised(action: str) -> None:
    node = healthy()
    node.action(action, 3)
    node.play(30)
    assert (advised(node).action, advised(node).drain) == OF_DRIVER[action]
    assert OF_DRIVER.keys() - {"other"} == {*RECOVERY_ACTIONS.values()}


@with_each(
    {
        "kernel log": ((kernel_log.LAST_XID, bus(3), "119"), RESET, True),
        "fatal link": ((nvlink_xids.LAST, bus(3), "149", "1", "fatal", "reset_gpu"), RESET, True),
        "link": ((nvlink_xids.LAST, bus(3), "149", "1", "nonfatal", "ignore"), LEAVE, False),
    }.values()
)
def test_the_kernel_log_counts_too(
    series: tuple[Any, ...], action: AdvisedAction, drain: bool
) -> None:
    metric, *labels = series
    node = healthy()
    node.set(metric, BEGIN + 58.0, *labels)
    node.play(30)
    assert (advised(node).action, advised(node).drain) == (action, drain)


def test_rows_of_memory_and_silence() -> None:
    node = healthy()
    node.set(health.REMAP_PENDING, 1.0, *AT)
    node.play(30)
    assert (advised(node).action, advised(node).drain) == (RESET, False)
    node = healthy()
    node.set(health.REMAP_FAILED, 1.0, *AT)
    node.play(30)
    assert (advised(node).action, advised(node).drain) == (CONTACT, False)
    node = healthy()
    node.silent.add(Place(*AT))
    node.play(60)
    assert advised(node).action is LEAVE
    node.play(240)
    assert (advised(node).action, advised(node).drain) == (REBOOT, True)


def test_memory_that_lost_data_asks_for_a_reset_unless_it_was_one_programs() -> None:
    for contained, action in ((False, RESET), (True, RESTART)):
        node = healthy()
        if contained:
            node.set(xids.XID_TIME, BEGIN + 58.0, *AT, "94")
        node.set(health.ECC, 9.0, *AT, "uncorrected")
        node.play(30)
        assert advised(node).action is action, contained


def test_what_nobody_uses_takes_the_node_out_all_the_same() -> None:
    """The next job would get it."""
    node = with_xids(gpu3=79)
    for gpu in range(GPUS):
        node.set(PROCESSES, 0.0, str(gpu), f"GPU-{gpu}", "compute")
    told = node.play(1200)
    assert [severity for *_, severity in told] == ["ticket"]
    assert advised(node).drain


def test_what_is_not_known_is_told() -> None:
    assert advised(with_xids(gpu3=149)).not_known == (
        "GPU 3: XID 149, look up its line of the kernel log: what it asks for is in its line of "
        "the kernel log, which was not read",
    )
    assert advised(healthy()).not_known == ()


def test_a_gpu_that_was_lost_before_the_daemon_began_is_told_of_by_the_kernel_log() -> None:
    node = TestNode()
    node.unplug(3)
    node.set(kernel_log.LAST_XID, BEGIN, "0000:9b:00.0", "79")
    node.play(30)
    said = advised(node)
    assert (said.action, said.drain, said.blind) == (REBOOT, True, False)


def test_a_node_that_is_drained_is_not_drained_again() -> None:
    node = with_xids(gpu3=119)
    node.set(DRAINED, 1.0)
    node.play(30)
    said = advised(node)
    assert (said.unfit, said.drained, said.drain) == (True, True, False)


def test_the_worst_fault_decides() -> None:
    node = with_xids(gpu3=119, gpu1=31)
    node.set(health.REMAP_FAILED, 1.0, "2", "GPU-2")
    node.play(30)
    said = advised(node)
    assert [one.gpu for one in said.faults] == ["3", "2", "1"]
    assert (said.action, said.gpus) == (RESET, ("3",))
    said = advised(with_xids(gpu3=119, gpu1=79))
    assert (said.action, said.gpus) == (REBOOT, ("1",))


@pytest.mark.parametrize("tape", sorted(path.name for path in INCIDENTS.glob("*.jsonl.gz")))
def test_no_recorded_incident_is_broken_hardware(tape: str) -> None:
    node = TapeNode(INCIDENTS / tape)
    loop = watch(node, Settings())
    for _ in loop.replay(node.clock, node.end):
        pass
    text = Exposition(loop.samples).encode("")[0].decode()
    said = advice(NodeSeries("n", node.clock.time(), parsed(text)))
    assert (said.unfit, said.action, said.blind) == (False, LEAVE, False)


# What many nodes have at once


def test_what_many_nodes_have_at_once_drains_none_of_them() -> None:
    readonly = ("filesystem", "/data", "readonly")
    broken = ("gpu", "", "xid_79")
    series = [
        SeriesSample(
            "gpunode_fault_start_timestamp_seconds",
            {"instance": "n", "part": part, "name": name, "reason": reason, "severity": "page"}
            | ({"gpu": "3", "uuid": "GPU-3"} if part == "gpu" else {}),
            50.0,
        )
        for part, name, reason in (readonly, broken)
    ]
    (node,) = by_node(series, 100.0)
    assert {(one.action, one.takes_out) for one in advice(node).faults} == {
        (DRAIN, True),
        (REBOOT, True),
    }
    shared = advice(node, {"filesystem", "gpu"})
    assert {(one.action, one.takes_out) for one in shared.faults} == {
        (LEAVE, False),
        (REBOOT, True),
    }
    assert "as many nodes have at once" in shared.faults[1].reason


def test_a_reason_of_a_newer_gpunode_is_said_to_be_unknown() -> None:
    found = meaning(Location("", "", "disk", "nvme0"), "full_moon")
    assert (found.action, found.not_known) == (LEAVE, UNKNOWN_REASON)


def test_every_page_of_the_catalogue_takes_the_node_out_and_no_info_does() -> None:
    for code in CODES.values():
        found = meaning(Location("0", "GPU-0", "gpu", ""), f"xid_{code.number}")
        assert found.unfit == (code.notify == "page"), code
        if code.notify in ("info", "none"):
            assert found.action in (RESTART, LEAVE), code


# Whom it harms


def owners(advised: NodeAdvice) -> dict[str, tuple[str, ...]]:
    return {one.words: one.gpus for one in advised.harm.harmed}


def held() -> TestNode:
    """GPUs 0 and 3 are of a pod, 1 of a Slurm job, and 2 is free."""
    node = healthy()
    for gpu, owner in (
        (0, {"owner_namespace": "research", "owner_pod": "llama-0"}),
        (3, {"owner_namespace": "research", "owner_pod": "llama-0"}),
        (1, {"slurm_job": "42", "user": "kim"}),
    ):
        labels = {"gpu": str(gpu), "uuid": f"GPU-{gpu}", "world_size": "2", **owner}
        for metric in (OWNER, PROCESS):
            node.set(metric, 1.0, *(labels.get(label, "") for label in metric.labels))
    node.set(PROCESSES, 0.0, "2", "GPU-2", "compute")
    return node


def test_a_reset_harms_the_job_on_the_gpu_and_a_reboot_everybody() -> None:
    llama = {"research/llama-0": ("0", "3")}
    kim = {"Slurm-job-42/kim": ("1",)}
    for gpu, xid, harmed in (
        (3, "119", llama),
        (1, "119", kim),
        (3, "79", {**llama, **kim}),
        (2, "119", {}),
    ):
        node = held()
        node.set(xids.XID_TIME, BEGIN + 59.0, str(gpu), f"GPU-{gpu}", xid)
        node.play(30)
        assert owners(advised(node)) == harmed
    assert owners(advised(held())) == {}


@pytest.mark.parametrize(
    ("capability", "linked", "gpus"),
    [
        ("7.0", True, tuple("01234567")),
        ("7.0", False, ("3",)),
        ("8.0", True, ("3",)),
        ("9.0", True, ("3",)),
        ("", True, tuple("01234567")),
    ],
)
def test_what_is_reset_together_depends_on_the_architecture(
    capability: str, linked: bool, gpus: tuple[str, ...]
) -> None:
    series = [broken(3)]
    for gpu in range(8):
        info = _at(gpu, compute_capability=capability, parent="", bus_id=str(gpu))
        series.append(SeriesSample("gpunode_gpu_info", info, 1.0))
        if linked:
            series.append(SeriesSample("gpunode_gpu_nvlink_up", _at(gpu, link="0"), 1.0))
    assert advice(NodeSeries("n", 0.0, tuple(series))).harm.gpus == gpus


def test_a_holder_that_is_not_known_is_told() -> None:
    at = _at(3, compute_capability="9.0", parent="", bus_id="3")
    series = (
        SeriesSample("gpunode_gpu_info", at, 1.0),
        broken(3),
    )
    busy = SeriesSample("gpunode_gpu_processes", _at(3, engine="compute"), 1.0)
    free = SeriesSample("gpunode_gpu_processes", _at(3, engine="compute"), 0.0)
    unknown = ("who holds GPU 3, if anybody does",)
    assert advice(NodeSeries("n", 0.0, series)).not_known == unknown
    assert advice(NodeSeries("n", 0.0, (*series, busy))).not_known == unknown
    assert advice(NodeSeries("n", 0.0, (*series, free))).not_known == ()


def broken(gpu: int) -> SeriesSample:
    at = _at(gpu, part="gpu", name="", reason="driver_advises_reset", severity="page")
    return SeriesSample("gpunode_fault_start_timestamp_seconds", at, 1.0)


def _at(gpu: int, **labels: str) -> dict[str, str]:
    return {"gpu": str(gpu), "uuid": f"GPU-{gpu}", **labels}
