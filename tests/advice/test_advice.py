"""Which action is advised, for which faults, and whom it harms."""

from __future__ import annotations

import re

import pytest
import yaml

from alerts.recording.faults import GPU_FAULTS, OF_A_RESET
from alerts.thresholds.table import THRESHOLDS
from gpunode.advice.actions import (
    OF_ALERTS,
    OF_CATALOGUE,
    OF_DRIVER,
    UNKNOWN_REASON,
    AdvisedAction,
    of_reason,
)
from gpunode.advice.faults import PAGES
from gpunode.advice.node import NodeAdvice, by_daemon, by_rules
from gpunode.advice.series import NodeSeries, SeriesNow, by_node, parsed
from gpunode.config.daemon import Settings
from gpunode.driver.nvidia.xids import ACTIONS, CODES, RECOVERY_ACTIONS
from gpunode.export.exposition import Exposition
from gpunode.node.tape import TapeNode
from gpunode.recorded import INCIDENTS
from gpunode.sources import watch
from tests.advice.nodes import moments
from tests.alerts.scenarios.shorthand import Scenario, scenarios
from tests.machine import MACHINES

SCENARIOS = scenarios()
QUIET = [name for name, scenario in SCENARIOS.items() if not scenario.notified]
TELLING = ("GpuUnhealthy", "HardwareMissing", "NvlinkDomainLost")
"""Alerts about hardware that cannot be used."""
OTHERWISE = [
    name
    for name, scenario in SCENARIOS.items()
    if scenario.notified
    and not any(alert in wanted.alert for wanted in scenario.notified for alert in TELLING)
]
"""Scenarios of which somebody is told, but not of hardware."""

NODE = """
why: ''
lasts: 40m
nodes: {n: 1x8}
jobs:
  llama: {owner: pytorchjob research/llama, gpus: n/0-3, does: {0m: trains}}
  bert: {owner: slurm kim 42, gpus: n/4-5, does: {0m: trains}}
"""


def after(*events: str, minute: float = 22.0) -> NodeAdvice:
    """The advice some minutes into events that begin in minute 20."""
    given = {**yaml.safe_load(NODE), "happens": [f"20m..40m {event}" for event in events if event]}
    found = [one for one in moments("c", Scenario.model_validate(given)) if one.time <= 60 * minute]
    last = found[-1]
    return by_daemon(NodeSeries(last.node, 60 * minute, last.series))


# Nobody is told, so nothing is done


def test_there_are_scenarios_of_which_nobody_is_told() -> None:
    assert len(QUIET) > 40


@pytest.mark.integration
@pytest.mark.sweep(25)
@pytest.mark.parametrize("name", QUIET)
def test_no_drain_is_advised_where_nobody_is_to_be_told(name: str) -> None:
    advised = [by_daemon(node) for node in moments(name, SCENARIOS[name])]
    assert advised
    assert [(one.node, one.faults) for one in advised if one.unfit or one.drain] == []


@pytest.mark.integration
@pytest.mark.sweep(25)
@pytest.mark.parametrize("name", OTHERWISE)
def test_no_drain_is_advised_where_nobody_is_told_of_hardware(name: str) -> None:
    assert not any(by_daemon(node).drain for node in moments(name, SCENARIOS[name]))


@pytest.mark.parametrize("tape", sorted(path.name for path in INCIDENTS.glob("*.jsonl.gz")))
def test_no_recorded_incident_is_broken_hardware(tape: str) -> None:
    node = TapeNode(INCIDENTS / tape)
    loop = watch(node, Settings())
    for _ in loop.replay(node.clock, node.end):
        pass
    text = Exposition(loop.samples).encode("")[0].decode()
    advised = by_daemon(NodeSeries("n", node.clock.time(), parsed(text)))
    assert (advised.unfit, advised.action, advised.blind) == (False, AdvisedAction.LEAVE, False)


# Each fault has its action


@pytest.mark.parametrize(
    ("event", "action", "drain"),
    [
        ("", AdvisedAction.LEAVE, False),
        ("n-1/3 xid xid=13", AdvisedAction.RESTART, False),
        ("n-1/3 xid xid=31", AdvisedAction.RESTART, False),
        ("n-1/3 xid xid=94", AdvisedAction.RESTART, False),
        ("n-1/3 xid xid=43", AdvisedAction.LEAVE, False),
        ("n-1/3 xid xid=63", AdvisedAction.LEAVE, False),
        ("n-1/3 xid xid=48", AdvisedAction.RESET, True),
        ("n-1/3 xid xid=95", AdvisedAction.RESET, True),
        ("n-1/3 xid xid=119", AdvisedAction.RESET, True),
        ("n-1/3 xid in the log xid=119", AdvisedAction.RESET, True),
        ("n-1/3 xid xid=74", AdvisedAction.RESET, True),
        ("n-1/3 xid xid=79", AdvisedAction.REBOOT, True),
        ("n-1/3 xid xid=54", AdvisedAction.CONTACT, False),
        ("n-1/3 xid xid=4711", AdvisedAction.LEAVE, False),
        ("n-1/3 xid xid=149", AdvisedAction.LEAVE, False),
        ("n-1/3 error of NVLink 5 xid=149", AdvisedAction.RESET, True),
        (
            "n-1/3 error of NVLink 5 xid=149 severity=nonfatal action=ignore",
            AdvisedAction.LEAVE,
            False,
        ),
        ("n-1/3 asks for action=reset", AdvisedAction.RESET, True),
        ("n-1/3 asks for action=drain_and_reset", AdvisedAction.RESET, True),
        ("n-1/3 asks for action=reboot", AdvisedAction.REBOOT, True),
        ("n-1/3 asks for action=bus_reset", AdvisedAction.REBOOT, True),
        ("n-1/3 asks for action=drain_p2p", AdvisedAction.DRAIN, True),
        ("n-1/3 asks for action=other", AdvisedAction.DRAIN, True),
        ("n-1/3 asks for action=recover_imex_domain", AdvisedAction.LEAVE, False),
        ("n-1/3 remap pends", AdvisedAction.RESET, False),
        ("n-1/3 remap failed", AdvisedAction.CONTACT, False),
        ("n-1/3 does not answer", AdvisedAction.LEAVE, False),
        ("n-1/3 is hot", AdvisedAction.LEAVE, False),
    ],
)
def test_each_fault_has_its_action(event: str, action: AdvisedAction, drain: bool) -> None:
    advised = after(event)
    assert (advised.action, advised.drain) == (action, drain)


def test_what_is_not_known_is_told() -> None:
    assert after("n-1/3 xid xid=149").not_known == (
        "GPU 3: XID 149: look up its line of the kernel log: what it asks for is in its line of "
        "the kernel log, which was not read",
    )
    assert after("").not_known == ()


def test_a_gpu_that_does_not_answer_for_minutes_takes_a_reboot() -> None:
    at = {"gpu": "3", "uuid": "GPU-3", "mountpoint": "", "source": "gpu_activity"}
    silent = SeriesNow("gpunode_source_up", at, 0.0)
    last = "gpunode_source_last_success_timestamp_seconds"
    for seconds, action in ((60.0, AdvisedAction.LEAVE), (600.0, AdvisedAction.REBOOT)):
        node = NodeSeries("n", 1000.0, (silent, SeriesNow(last, at, 1000.0 - seconds)))
        assert by_daemon(node).action is action


def test_an_error_counts_for_as_long_as_on_the_page() -> None:
    assert after("n-1/3 xid xid=79", minute=34.9).drain
    assert not after("n-1/3 xid xid=79", minute=35.1).drain


def test_a_gpu_that_is_gone_is_told_of_by_the_kernel_log() -> None:
    text = (MACHINES / "dgx" / "golden" / "kernel_log.txt").read_text()
    advised = by_daemon(NodeSeries("dgx", 1_700_000_020.0, parsed(text)))
    assert (advised.action, advised.drain, advised.blind) == (AdvisedAction.REBOOT, True, True)
    assert advised.not_known[0] == "XID 79: reboot the node: which GPU was at 0000:1b:00.0"


def test_a_node_that_is_drained_is_not_drained_again() -> None:
    node = next(
        one
        for one in moments("c", SCENARIOS["a GPU fails on a node that Slurm has drained"])
        if by_daemon(one).unfit
    )
    advised = by_daemon(node)
    assert (advised.unfit, advised.drained, advised.drain) == (True, True, False)


def test_the_worst_fault_decides() -> None:
    advised = after("n-1/2 remap failed", "n-1/3 xid xid=119", "n-1/4 xid xid=31")
    assert [one.gpu for one in advised.faults] == ["3", "2", "4"]
    assert (advised.action, advised.gpus) == (AdvisedAction.RESET, ("3",))
    advised = after("n-1/3 xid xid=119", "n-1/5 xid xid=79")
    assert (advised.action, advised.gpus) == (AdvisedAction.REBOOT, ("5",))


# Whom it harms


def owners(advised: NodeAdvice) -> dict[str, tuple[str, ...]]:
    return {one.words: one.gpus for one in advised.harm.harmed}


def test_a_reset_harms_the_job_on_the_gpu_and_a_reboot_everybody() -> None:
    llama = {"research/llama-master-0": ("0", "1", "2", "3")}
    kim = {"Slurm-job-42/kim": ("4", "5")}
    assert owners(after("n-1/3 xid xid=119")) == llama
    assert owners(after("n-1/4 xid xid=119")) == kim
    assert owners(after("n-1/3 xid xid=79")) == {**llama, **kim}
    assert owners(after("n-1/7 xid xid=119")) == {}
    assert owners(after("")) == {}
    assert after("n-1/3 xid xid=119").harm.harmed[0].world_size == 4


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
    series = [SeriesNow("gpunode_gpu_recovery_action", _at(3, action="reset"), 1.0)]
    for gpu in range(8):
        info = _at(gpu, compute_capability=capability, parent="", bus_id=str(gpu))
        series.append(SeriesNow("gpunode_gpu_info", info, 1.0))
        if linked:
            series.append(SeriesNow("gpunode_gpu_nvlink_up", _at(gpu, link="0"), 1.0))
    assert by_daemon(NodeSeries("n", 0.0, tuple(series))).harm.gpus == gpus


def test_a_holder_that_is_not_known_is_told() -> None:
    at = _at(3, compute_capability="9.0", parent="", bus_id="3")
    series = (
        SeriesNow("gpunode_gpu_info", at, 1.0),
        SeriesNow("gpunode_gpu_recovery_action", _at(3, action="reset"), 1.0),
    )
    busy = SeriesNow("gpunode_gpu_processes", _at(3, engine="compute"), 1.0)
    free = SeriesNow("gpunode_gpu_processes", _at(3, engine="compute"), 0.0)
    unknown = ("who holds GPU 3, if anybody does",)
    assert by_daemon(NodeSeries("n", 0.0, series)).not_known == unknown
    assert by_daemon(NodeSeries("n", 0.0, (*series, busy))).not_known == unknown
    assert by_daemon(NodeSeries("n", 0.0, (*series, free))).not_known == ()


def _at(gpu: int, **labels: str) -> dict[str, str]:
    return {"gpu": str(gpu), "uuid": f"GPU-{gpu}", **labels}


# What the rules have recorded


def recorded(*series: SeriesNow) -> NodeSeries:
    (node,) = by_node(
        [SeriesNow(one.name, {"instance": "n", **one.labels}, one.value) for one in series], 100.0
    )
    return node


def fault(reason: str, level: float = 2.0) -> SeriesNow:
    return SeriesNow("gpu:gpunode_gpu_fault:level", _at(3, reason=reason), level)


def firing(alert: str, severity: str, **labels: str) -> SeriesNow:
    its = {"alertname": alert, "alertstate": "firing", "severity": severity, **labels}
    return SeriesNow("ALERTS", its, 1.0)


def test_what_the_rules_record_counts_once_an_alert_fires_for_it() -> None:
    silent = fault("does not answer")
    assert not by_rules(recorded(silent), (), {}).drain
    paging = recorded(silent, firing("GpuUnhealthy", "page", **_at(3)))
    assert (by_rules(paging, (), {}).action, by_rules(paging, (), {}).drain) == (
        AdvisedAction.REBOOT,
        True,
    )
    telling = recorded(silent, firing("GpuUnhealthy", "ticket", **_at(3)))
    assert not by_rules(telling, (), {}).drain
    other = recorded(silent, firing("GpuUnhealthy", "page", gpu="4", uuid="GPU-4"))
    assert not by_rules(other, (), {}).drain


def test_what_is_only_a_ticket_because_nobody_uses_the_node_takes_it_out() -> None:
    """The next job would get it."""
    spare = SeriesNow("node:gpunode_node:spare", {}, 0.0)
    ticket = firing("GpuUnhealthy", "ticket", **_at(3))
    assert by_rules(recorded(fault("XID 79: reboot the node"), ticket, spare), (), {}).drain
    assert not by_rules(recorded(fault("row remap pending", 1.0), ticket, spare), (), {}).drain
    for part, drains in (("gpu", True), ("nvme", False)):
        missing = firing("HardwareMissing", "ticket", part=part)
        assert by_rules(recorded(missing, spare), (), {}).drain is drains


def test_memory_that_lost_data_asks_for_a_reset_unless_it_was_one_programs() -> None:
    for level, severity, action in (
        (2.0, "page", AdvisedAction.RESET),
        (1.0, "ticket", AdvisedAction.RESTART),
    ):
        its = firing("GpuUnhealthy", severity, **_at(3))
        advised = by_rules(recorded(fault("memory lost data", level), its), (), {})
        assert advised.action is action, severity


def test_a_cordoned_node_is_not_drained_again() -> None:
    node = recorded(
        fault("XID 79: reboot the node"),
        firing("GpuUnhealthy", "page", **_at(3)),
        SeriesNow("node:gpunode_drained:max", {}, 1.0),
    )
    advised = by_rules(node, (), {})
    assert (advised.unfit, advised.drain) == (True, False)


def test_what_many_nodes_have_at_once_drains_none_of_them() -> None:
    missing = recorded(firing("HardwareMissing", "page", part="gpu", fault="gpu_missing"))
    assert by_rules(missing, (), {}).drain
    shared = by_rules(missing, {"gpu_missing"}, {})
    assert (shared.drain, shared.action) == (False, AdvisedAction.LEAVE)
    assert "as many nodes have at once" in shared.faults[0].reason


def test_other_alerts_drain_nothing() -> None:
    for row in THRESHOLDS:
        for tier in row.tiers:
            node = recorded(firing(row.alert, tier.severity, fault=row.fault))
            drains = row.alert in OF_ALERTS and tier.severity == "page"
            assert by_rules(node, (), {}).drain == drains, row.alert


# One list of faults


def test_every_action_of_the_catalogue_and_the_driver_has_one_here() -> None:
    assert OF_CATALOGUE.keys() == ACTIONS.keys()
    assert OF_DRIVER.keys() == set(RECOVERY_ACTIONS.values())
    assert OF_ALERTS.keys() <= {row.alert for row in THRESHOLDS}


def test_every_page_of_the_catalogue_takes_the_node_out_and_no_info_does() -> None:
    for code in CODES.values():
        if code.notify == "page":
            assert OF_CATALOGUE[code.action] in (AdvisedAction.RESET, AdvisedAction.REBOOT), code
        if code.notify in ("info", "none"):
            assert OF_CATALOGUE[code.action] in (AdvisedAction.RESTART, AdvisedAction.LEAVE), code


def test_every_reason_of_the_rules_is_understood() -> None:
    reasons = set(re.findall(r'"reason", "([^"]+)"', " ".join((*GPU_FAULTS, *OF_A_RESET))))
    assert len(reasons) > 12
    examples = {"XID": "79", "driver": "reset", "NVSwitch": "route"}
    for reason in reasons:
        said = reason.replace("$1", examples.get(reason.split()[0], ""))
        assert of_reason(said, PAGES)[1] != UNKNOWN_REASON, reason
    assert of_reason("the moon is full", PAGES) == (AdvisedAction.LEAVE, UNKNOWN_REASON)


def test_a_gpu_on_the_bus_that_the_driver_does_not_list_is_not_called_well() -> None:
    text = "".join(
        f'gpunode_pcie_device_info{{bus_id="0000:{bus}:00.0",kind="gpu"}} 1\n'
        for bus in ("1b", "3b")
    )
    text += 'gpunode_gpu_info{gpu="0",uuid="GPU-0",bus_id="0000:1b:00.0",parent=""} 1\n'
    said = by_daemon(NodeSeries("n", 0.0, parsed(text)))
    (fault,) = said.faults
    assert (fault.reason, said.action, said.drain) == (
        "GPU at 0000:3b:00.0 missing",
        AdvisedAction.LEAVE,
        False,
    )
    assert "for how long" in said.not_known[0]
