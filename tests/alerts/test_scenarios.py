"""What happens to a fleet, and who is notified: scenarios, rules and routes together."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from gpunode.client.protocol import PHASES
from gpunode.driver.nvidia.gpu import THROTTLED_NANOSECONDS
from gpunode.driver.nvidia.xids import RECOVERY_ACTIONS
from gpunode.gpu.ledger import STATES
from gpunode.host import rdma_counters
from gpunode.host.kernel_log import KINDS
from gpunode.sources import METRICS
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.reasons import REASONS
from tests.alerts.scenarios.course import Linear, Rate, Unseen, intervals, values
from tests.alerts.scenarios.fleet import LATE, Fleet
from tests.alerts.scenarios.gpus import BEHAVIOURS
from tests.alerts.scenarios.nodes import EVENTS
from tests.alerts.scenarios.shorthand import Scenario, scenarios, wanted
from tests.bench.scenarios import Notified, Outcome, Timeline, moments, outcomes, table, together
from tests.needs import need

ROOT = Path(__file__).parents[2]
SCENARIOS = scenarios()
DECLARED = {metric.name: metric for section in METRICS.values() for metric in section}
SCRAPED = {"cluster", "instance", "job"}
OTHERS = {
    "up": set[str](),
    "kube_node_spec_unschedulable": {"node"},
    "kube_node_status_allocatable": {"node", "resource", "unit"},
}
"""What does not come from the exporter, and its labels."""

Show = Callable[[str], None]


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Show:
    """Print something even if the test passes."""

    def shown(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}")

    return shown


# Who is notified


@pytest.mark.integration
def test_who_is_notified_of_what(show: Show) -> None:
    need("promtool")
    need("alertmanager", "prometheus-alertmanager")
    found = outcomes(SCENARIOS)
    show(table(found))
    assert {one.name: faults for one in found if (faults := one.faults())} == {}


# The scenarios are of this exporter


def test_every_series_is_one_of_the_exporter() -> None:
    wrong = set()
    for name, scenario in SCENARIOS.items():
        for (metric, labels), _ in Fleet(name, scenario).courses():
            have = {label for label, _ in labels} - SCRAPED
            base = re.sub(r"_(bucket|sum|count)$", "", metric)
            known = DECLARED.get(metric) or DECLARED.get(base)
            if metric in OTHERS:
                declared = OTHERS[metric]
            elif known is None:
                wrong.add(f"{name}: there is no metric {metric}")
                continue
            else:
                declared = {*known.labels, *({"le"} if metric.endswith("_bucket") else ())}
            if have != declared:
                wrong.add(f"{name}: {metric} has {sorted(have)}, not {sorted(declared)}")
    assert not wrong


def test_every_value_of_a_label_is_one_of_the_exporter() -> None:
    known = {
        ("gpunode_gpu_recovery_action", "action"): {*RECOVERY_ACTIONS.values()},
        ("gpunode_gpu_throttled_seconds_total", "reason"): {*THROTTLED_NANOSECONDS.values()},
        ("gpunode_infiniband_errors_total", "kind"): rdma_counters.kinds("link_error"),
        ("gpunode_infiniband_transport_errors_total", "kind"): rdma_counters.kinds("loss"),
        ("gpunode_kernel_log_events_total", "kind"): {kind for kind, _ in KINDS},
        ("gpunode_lustre_targets", "connected"): {"true", "false"},
        ("gpunode_training_seconds_total", "phase"): {*PHASES},
    }
    found: dict[tuple[str, str], set[str]] = {}
    for name, scenario in SCENARIOS.items():
        for (metric, labels), _ in Fleet(name, scenario).courses():
            for label, value in labels:
                found.setdefault((metric, label), set()).add(value)
    assert {at: found[at] - values for at, values in known.items() if found[at] - values} == {}


def test_every_state_cause_and_reason_is_one_of_the_exporter() -> None:
    for behaviour in BEHAVIOURS.values():
        assert behaviour.states.keys() <= STATES.keys()
        assert sum(behaviour.states.values()) == pytest.approx(1.0)
        assert behaviour.cause in CAUSES
        assert behaviour.reason in ("", *REASONS)


def test_every_behaviour_and_every_event_is_used() -> None:
    timelines = [
        timeline
        for scenario in SCENARIOS.values()
        for job in scenario.jobs.values()
        for timeline in (job.does, *job.but.values())
    ]
    doings = [doing for timeline in timelines for doing in timeline.values()]
    others = {doing.options.get("as", LATE) for doing in doings if "late" in doing.options}
    assert {doing.name for doing in doings} | others == BEHAVIOURS.keys()
    happens = (event for scenario in SCENARIOS.values() for event in scenario.happens)
    assert {event.what for event in happens} == EVENTS.keys()


# The shorthand


def scenario(text: str) -> Scenario:
    return Scenario.model_validate({"why": "", "lasts": "10m", **yaml.safe_load(text)})


def drawn(text: str, metric: str, **labels: str) -> list[str]:
    """The values of the series of a metric that have these labels."""
    return [
        told
        for series, told in Fleet("c", scenario(text)).series()
        if series.startswith(f"{metric}{{")
        and all(f'{name}="{value}"' in series for name, value in labels.items())
    ]


HANG = """
nodes: {n: 1x2}
jobs:
  a:
    owner: pytorchjob team/a
    gpus: n
    does: {2m: trains, 5m: hangs late=n-1/1 reason=stopped}
"""


def test_a_hang_looks_like_one() -> None:
    streak = "gpunode_gpu_blocked_streak_seconds"
    assert drawn(HANG, streak, gpu="0") == ["0x1 0x2 0+60x4"]
    assert drawn(HANG, streak, gpu="1") == ["0x1 0x2 0x4"]
    workless = drawn(HANG, "gpunode_job_workless_seconds", gpu="0")
    assert workless == ["_ _x1 0x2 0+60x4"]
    waited = drawn(HANG, "gpunode_gpu_waited_for", gpu="1", reason="stopped")
    assert waited == ["_ _x1 _ _x2 1x4"]
    assert not drawn(HANG, "gpunode_gpu_waited_for", gpu="0")


def test_exactly_one_cause_is_told() -> None:
    assert drawn(HANG, "gpunode_gpu_bottleneck", gpu="0", cause="none") == ["1x1 1x2 0x4"]
    stalled = drawn(HANG, "gpunode_gpu_bottleneck", gpu="0", cause="stalled_collective")
    assert stalled == ["0x1 0x2 1x4"]


def test_a_target_that_cannot_be_scraped_has_no_series_but_up() -> None:
    down = f"{HANG}happens: [3m..4m n unreachable]"
    assert drawn(down, "up") == ["1x1 1 0 1 1x4"]
    temperatures = drawn(down, "gpunode_gpu_temperature_celsius", gpu="0")
    assert [told.split()[2] for told in temperatures] == ["stale"]


def test_an_exporter_that_restarts_forgets() -> None:
    restarts = f"{HANG}happens: [7m..8m n exporter restarts]"
    streak = drawn(restarts, "gpunode_gpu_blocked_streak_seconds", gpu="0")
    assert streak == ["0x1 0x2 0+60x1 stale 0 60"]
    workless = drawn(restarts, "gpunode_job_workless_seconds", gpu="0")
    assert workless == ["_ _x1 0x2 0+60x1 stale _ _"]


@pytest.mark.parametrize(
    ("owner", "pods"),
    [
        ("pytorchjob team/a", ["a-master-0", "a-worker-0"]),
        ("statefulset team/a", ["a-0", "a-1"]),
        ("slurm kim 42", ["", ""]),
    ],
)
def test_pods_are_named_as_their_controllers_do(owner: str, pods: list[str]) -> None:
    told = f"nodes: {{n: 2x1}}\njobs: {{j: {{owner: {owner}, gpus: n, does: {{0m: trains}}}}}}"
    keys = [key for key, _ in Fleet("c", scenario(told)).courses()]
    owners = [dict(labels) for name, labels in keys if name == "gpunode_gpu_owner_info"]
    assert [one["owner_pod"] for one in owners] == pods


def test_counters_go_on_and_begin_again() -> None:
    parts = intervals([120.0, 240.0], 360.0)
    told = values(zip(parts, [Rate(1.0), None, Rate(2.0)], strict=True), 60, 360.0)
    assert told == "0+60x1 stale _x1 0+120x1"
    told = values(zip(parts, [Rate(1.0), Unseen(Rate(1.0)), Rate(1.0)], strict=True), 60, 360.0)
    assert told == "0+60x1 _x1 240+60x1"
    told = values(zip(parts, [Rate(1.0), Rate(0.0), Linear(7.0)], strict=True), 60, 360.0)
    assert told == "0+60x1 120x1 7x1"


@pytest.mark.parametrize(
    "told",
    [
        "jobs: {j: {owner: user kim, gpus: n-9, does: {0m: trains}}}",
        "jobs: {j: {owner: user kim, gpus: n, does: {0m: dances}}}",
        "jobs: {j: {owner: user kim, gpus: n, does: {0m: trains speed=2}}}",
        "happens: [0m n explodes]",
        "happens: [soon n unreachable]",
        "notified: [call JobStalled]",
        "colour: red",
    ],
)
def test_a_mistake_is_told(told: str) -> None:
    with pytest.raises((ValueError, LookupError)):
        Fleet("c", scenario(f"nodes: {{n: 1x1}}\n{told}"))


# The bench


def alert(name: str, **labels: str) -> frozenset[tuple[str, str]]:
    return frozenset({"alertname": name, "cluster": "c", **labels}.items())


def outcome(wants: str, notified: Notified, *firing: frozenset[tuple[str, str]]) -> list[str]:
    """The faults where alerts fired from the second minute on."""
    one = scenario(f"nodes: {{n: 1x1}}\nnotified: [{wants}]")
    timeline = Timeline(60, (frozenset(), frozenset(), frozenset(firing), frozenset(firing)))
    return Outcome("c", one, timeline, notified).faults()


def test_what_differs_is_told_with_alert_and_minute() -> None:
    stalled, hot = alert("JobStalled", workload="a"), alert("GpuHot", gpu="0")
    told = Notified({"page": {stalled}, "ticket": set(), "info": set()}, {"page": 1})
    assert outcome("page JobStalled workload=a by=2m", told, stalled) == []
    assert outcome("page JobStalled workload=a by=1m", told, stalled) == [
        "late: page JobStalled workload=a at 2m, not by 1m"
    ]
    assert outcome("page JobStalled gone=3m", told, stalled) == [
        "stays: page JobStalled until 3m, not gone at 3m"
    ]
    assert outcome("", told, stalled) == [
        "wrong: page JobStalled at 2m: workload=a",
        "too many: 1 pages, not 0",
    ]
    assert outcome("page JobStalled, ticket GpuHot, may ticket GpuBusy", told, stalled, hot) == [
        "missed: ticket GpuHot (held back; fired at 2m)"
    ]
    told.opened = {"page": 2}
    assert outcome("page JobStalled", told, stalled) == ["too many: 2 pages, not 1"]
    hung = alert("JobStalled", workload="b")
    together = Notified({"page": {stalled, hung}, "ticket": set(), "info": set()}, {"page": 1})
    assert outcome(
        "page JobStalled workload=a, page JobStalled workload=b", together, stalled, hung
    ) == ["too few: 1 pages, not 2"]


def test_an_expectation_may_be_loose() -> None:
    one = wanted("may ticket+ GpuHot|GpuBusy instance=n-1")
    assert str(one) == "may ticket or page GpuHot|GpuBusy instance=n-1"


def test_quiet_times_are_cut_short() -> None:
    quiet, loud = frozenset[frozenset[tuple[str, str]]](), frozenset({alert("GpuHot")})
    timeline = Timeline(60, (quiet, loud, *[loud] * 100, quiet))
    assert [when for when, _, _ in moments(timeline)] == [60.0, 60.0 + 15 * 60]


def test_scenarios_that_run_together_are_evaluated_as_often() -> None:
    packs = together(SCENARIOS)
    assert sorted(name for pack in packs for name in pack) == sorted(SCENARIOS)
    assert all(len({SCENARIOS[name].every for name in pack}) == 1 for pack in packs)
