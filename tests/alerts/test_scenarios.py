"""What happens to a fleet, and who is notified: scenarios, rules and routes together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
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
from tests.alerts.scenarios.course import (
    Course,
    Key,
    Linear,
    Rate,
    Scrapes,
    Unseen,
    parts_of,
    values,
)
from tests.alerts.scenarios.fleet import LATE, Fleet
from tests.alerts.scenarios.gpus import BEHAVIOURS
from tests.alerts.scenarios.nodes import EVENTS
from tests.alerts.scenarios.play import (
    STILL,
    Notifications,
    Outcome,
    Rules,
    Timeline,
    evaluated,
    moments,
    outcomes,
    rates,
    together,
)
from tests.alerts.scenarios.recordings import AS_TRAINED, RECORDED, windows
from tests.alerts.scenarios.shorthand import Scenario, scenarios, wanted
from tests.needs import need

ROOT = Path(__file__).parents[2]
SCENARIOS = scenarios()
DECLARED = {metric.name: metric for section in METRICS.values() for metric in section}
SCRAPED = {"cluster", "instance", "job"}
OTHERS = {
    "up": set[str](),
    "kube_node_spec_unschedulable": {"node"},
    "kube_node_status_allocatable": {"node", "resource", "unit"},
    "kube_node_status_condition": {"node", "condition", "status"},
    "kube_pod_container_status_restarts_total": {"namespace", "pod", "container"},
}
"""What does not come from the exporter, and its labels."""

# Who is notified


@pytest.mark.integration
def test_who_is_notified_of_what() -> None:
    """Of those whose want is known not to be met, ``play`` says when it is."""
    need("promtool")
    need("alertmanager", "prometheus-alertmanager")
    found = [one for one in outcomes(SCENARIOS, Rules()) if not one.scenario.known_failure]
    assert {one.name: told for one in found if (told := one.surprises())} == {}


# The scenarios are of this exporter


@cache
def keys() -> dict[Key, str]:
    """Every series of the smaller scenarios, and one that has it.

    Names and labels are the same whatever jobs play, and however often they are scraped.
    """
    found: dict[Key, str] = {}
    for name, scenario in SCENARIOS.items():
        if sum(scenario.gpus.values()) <= LARGE_SCENARIO and not scenario.series:
            jobs = {t: job.model_copy(update={"plays": ""}) for t, job in scenario.jobs.items()}
            plain = scenario.model_copy(update={"jobs": jobs, "every": 240})
            found |= dict.fromkeys((key for key, _ in Fleet(name, plain).notations()), name)
    return found


LARGE_SCENARIO = 16
"""GPUs of a scenario above which it has no series that a smaller one has not."""


def test_every_series_is_one_of_the_exporter() -> None:
    wrong = set()
    for (metric, labels), name in keys().items():
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
        ("gpunode_gpu_bottleneck", "cause"): {*CAUSES},
        ("gpunode_gpu_waited_for", "reason"): {*REASONS},
        ("gpunode_gpu_recovery_action", "action"): {*RECOVERY_ACTIONS.values()},
        ("gpunode_gpu_throttled_seconds_total", "reason"): {*THROTTLED_NANOSECONDS.values()},
        ("gpunode_infiniband_errors_total", "kind"): rdma_counters.kinds("link_error"),
        ("gpunode_infiniband_transport_errors_total", "kind"): rdma_counters.kinds("loss"),
        ("gpunode_kernel_log_events_total", "kind"): {kind for kind, _ in KINDS},
        ("gpunode_lustre_targets", "connected"): {"true", "false"},
        ("gpunode_training_seconds_total", "phase"): {*PHASES},
    }
    found: dict[tuple[str, str], set[str]] = {}
    for metric, labels in keys():
        for label, value in labels:
            found.setdefault((metric, label), set()).add(value)
    unknown = {at: found.get(at, set()) - values for at, values in known.items()}
    assert {at: values for at, values in unknown.items() if values} == {}


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


def each(notation: str) -> Iterable[str]:
    """The values that promtool's notation stands for."""
    for run in notation.split():
        value, _, more = run.partition("x")
        first, _, step = value.partition("+")
        for times in range(int(more or 0) + (value != "_" or not more)):
            yield first if not step else f"{float(first) + times * float(step):g}"


EVENLY = -1.0
"""No scrape is missed, and each is on time."""


def series_values(text: str, metric: str, **labels: str) -> list[str]:
    """The values of the series of a metric that have these labels."""
    return [
        " ".join(each(told))
        for series, told in Fleet("c", scenario(text)).series(missed=EVENLY)
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
    assert series_values(HANG, streak, gpu="0") == ["0 0 0 0 0 0 60 120 180 240"]
    assert series_values(HANG, streak, gpu="1") == ["0 0 0 0 0 0 0 0 0 0"]
    workless = series_values(HANG, "gpunode_job_workless_seconds", gpu="0")
    assert workless == ["_ _ 0 0 0 0 60 120 180 240"]
    waited = series_values(HANG, "gpunode_gpu_waited_for", gpu="1", reason="stopped")
    assert waited == ["_ _ _ _ _ 1 1 1 1 1"]
    assert not series_values(HANG, "gpunode_gpu_waited_for", gpu="0")


def test_exactly_one_cause_is_told() -> None:
    assert series_values(HANG, "gpunode_gpu_bottleneck", gpu="0", cause="none") == [
        "1 1 1 1 1 0 0 0 0 0"
    ]
    stalled = series_values(HANG, "gpunode_gpu_bottleneck", gpu="0", cause="stalled_collective")
    assert stalled == ["0 0 0 0 0 1 1 1 1 1"]


def test_a_target_that_cannot_be_scraped_has_no_series_but_up() -> None:
    down = f"{HANG}happens: [3m..4m n unreachable]"
    assert series_values(down, "up") == ["1 1 1 0 1 1 1 1 1 1"]
    temperatures = series_values(down, "gpunode_gpu_temperature_celsius", gpu="0")
    assert [told.split()[3] for told in temperatures] == ["stale"]


def test_what_ends_while_no_prometheus_scrapes_is_not_said_to_end() -> None:
    gap = f"{HANG}happens: [3m..7m n no Prometheus, 5m n unreachable]"
    assert " ".join(series_values(gap, "up")) == "1 1 1 _ _ _ _ 0 0 0"
    (celsius,) = series_values(gap, "gpunode_gpu_temperature_celsius", gpu="0")
    assert celsius.split()[3:] == [*"____", "stale", *"__"]


def test_an_exporter_that_restarts_forgets() -> None:
    restarts = f"{HANG}happens: [7m..8m n exporter restarts]"
    streak = series_values(restarts, "gpunode_gpu_blocked_streak_seconds", gpu="0")
    assert streak == ["0 0 0 0 0 0 60 stale 0 60"]
    workless = series_values(restarts, "gpunode_job_workless_seconds", gpu="0")
    assert workless == ["_ _ 0 0 0 0 60 stale _ _"]


def test_an_xid_that_comes_again_is_counted() -> None:
    again = f"{HANG}happens: [2m..8m/1m-in-3m n/0 xid xid=94]"
    assert series_values(again, "gpunode_gpu_xid_errors_total") == ["_ _ 1 1 1 2 2 2 2 2"]


@pytest.mark.parametrize(
    ("owner", "pods"),
    [
        ("pytorchjob team/a", ["a-master-0", "a-worker-0"]),
        ("statefulset team/a", ["a-0", "a-1"]),
        ("raycluster team/a", ["a-head-vdjb7", "a-workergroup-worker-9wdxm"]),
        ("slurm kim 42", ["", ""]),
    ],
)
def test_pods_are_named_as_their_controllers_do(owner: str, pods: list[str]) -> None:
    told = f"nodes: {{n: 2x1}}\njobs: {{j: {{owner: {owner}, gpus: n, does: {{0m: trains}}}}}}"
    found = [key for key, _ in Fleet("c", scenario(told)).notations()]
    owners = [dict(labels) for name, labels in found if name == "gpunode_gpu_owner_info"]
    assert [one["owner_pod"] for one in owners] == pods


def notation(*courses: Course | None) -> str:
    """What goes on for two minutes each."""
    scrapes = Scrapes.of("n", 60.0, 360.0, EVENLY)
    parts = parts_of([120.0, 240.0], 360.0, scrapes)
    return values(zip(parts, courses, strict=True), scrapes, own=True)


def test_counters_go_on_and_begin_again() -> None:
    assert notation(Rate(1.0), None, Rate(2.0)) == "0 60 stale _x1 0+120x1"
    assert notation(Rate(1.0), Unseen(Rate(1.0)), Rate(1.0)) == "0 60 _x2 240+60x1"
    assert notation(Rate(1.0), Rate(0.0), Linear(7.0)) == "0 60 120x1 7x1"


def test_nodes_are_scraped_out_of_phase_and_now_and_then_in_vain() -> None:
    one, other = (Scrapes.of(node, 60.0, 36000.0, 0.1) for node in ("n-1", "n-2"))
    assert one.phase != other.phase
    assert one == Scrapes.of("n-1", 60.0, 36000.0, 0.1), "but the same each time"
    assert 0.05 < one.answered.count(False) / len(one.answered) < 0.15
    assert all(0.0 <= step * 60.0 - at <= 62.0 for step, at in enumerate(one.moments))


def test_a_scrape_in_vain_shows_as_one_and_counters_go_on_behind_it() -> None:
    scrapes = Scrapes(60.0, 0.0, (0.0, 60.0, 120.0, 180.0), (True, True, False, True))
    (part,) = parts_of([], 240.0, scrapes)
    assert values([(part, Rate(1.0))], scrapes, own=True) == "0 60 stale 180"
    assert values([(part, Linear(1.0))], scrapes, own=False) == "1 1 1 1"


def test_a_scenario_may_give_series_as_they_are() -> None:
    given = scenario("series: {'up{job=\"gpunode\"}': 1x9, absent: _x9}")
    assert list(Fleet("c", given).series()) == [
        ('up{cluster="c",job="gpunode"}', "1x9"),
        ('absent{cluster="c",}', "_x9"),
    ]


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
        "known_failure: nobody looks",
        "jobs: {j: {owner: user kim, gpus: n, plays: chess, does: {0m: trains}}}",
    ],
)
def test_a_mistake_is_told(told: str) -> None:
    with pytest.raises((ValueError, LookupError)):
        Fleet("c", scenario(f"nodes: {{n: 1x1}}\n{told}"))


# Recorded windows

PLAYS = """
nodes: {n: 1x2}
jobs:
  a:
    owner: pytorchjob team/a
    gpus: n
    plays: DDP ResNet, JPEG files
    does: {0m: trains, 4m: hangs late=n-1/1, 8m: trains starved=0.5}
"""


JPEG = "DDP ResNet, JPEG files"


def shares(text: str, gpu: str) -> list[dict[str, float]]:
    """What a GPU does in each minute, by state."""
    (tenant,) = Fleet("c", scenario(text)).tenants["n-1", int(gpu)]
    return [dict(tenant.does(60.0 * minute).states) for minute in range(10)]


def test_a_job_that_plays_a_program_is_as_noisy() -> None:
    first = shares(PLAYS, "0")
    assert all(sum(found.values()) == pytest.approx(1.0) for found in first)
    assert len({tuple(shares(PLAYS, gpu)[0].items()) for gpu in "01"}) > 1
    assert shares(PLAYS, "0") == first, "but the same each time"


def test_the_roles_of_a_hang_are_those_of_the_recorded_one() -> None:
    assert all(found["blocked"] > 0.9 for found in shares(PLAYS, "0")[4:8])
    assert all(found.get("blocked", 0.0) < 0.1 for found in shares(PLAYS, "1")[4:8])


def test_what_a_scenario_says_of_states_is_not_played() -> None:
    assert [found["starved"] for found in shares(PLAYS, "0")[8:]] == [0.5, 0.5]


def test_what_is_played_changes_nothing_but_shares_and_draw() -> None:
    streak = series_values(PLAYS, "gpunode_gpu_blocked_streak_seconds", gpu="0")
    assert streak == ["0 0 0 0 0 60 120 180 0 0"]


def test_a_gpu_that_heat_slows_is_no_slow_process() -> None:
    def straggles(cause: str) -> dict[str, float]:
        told = PLAYS.replace("8m: trains starved=0.5", f"8m: straggles cause={cause}")
        return shares(told, "0")[9]

    def recorded(what: str) -> list[dict[str, float]]:
        return [dict(one.states) for one in windows(what, 0, "c a")]

    least = min(one["starved"] for one in recorded("a slow rank/1"))
    assert straggles("host_compute")["starved"] >= least
    assert straggles("thermal").keys() <= {s for one in recorded(JPEG) for s in one}
    assert straggles("thermal")["starved"] < least


def test_that_nobody_computes_is_known_of_many_gpus() -> None:
    idle = "nodes: {n: 1x8}\njobs: {j: {owner: user kim, gpus: n, does: {0m: stands}}}"
    assert series_values(idle, "gpunode_gpu_seconds_total", gpu="0", state="compute") == [
        " ".join("0" * 10)
    ]


def test_every_behaviour_that_is_recorded_can_be_played() -> None:
    assert RECORDED.keys() | {*AS_TRAINED} <= BEHAVIOURS.keys()
    for what in RECORDED.values():
        for one in windows(what, 1, "any"):
            assert one.states.keys() <= STATES.keys()
            assert sum(one.states.values()) == pytest.approx(1.0, abs=1e-4)


# The bench


def alert(name: str, severity: str = "page", **labels: str) -> frozenset[tuple[str, str]]:
    known = {"alertname": name, "cluster": "c", "severity": severity}
    return frozenset({**known, **labels}.items())


def outcome(wants: str, notified: Notifications, *firing: frozenset[tuple[str, str]]) -> list[str]:
    """The faults where alerts fired from the second minute on."""
    one = scenario(f"nodes: {{n: 1x1}}\nnotified: [{wants}]")
    timeline = Timeline(60, (frozenset(), frozenset(), frozenset(firing), frozenset(firing)))
    return Outcome("c", one, timeline, notified).faults()


def test_what_differs_is_told_with_alert_and_minute() -> None:
    stalled, hot = alert("JobStalled", workload="a"), alert("GpuHot", "ticket", gpu="0")
    told = Notifications({"page": {stalled}, "ticket": set(), "info": set()}, {"page": 1})
    assert outcome("page JobStalled workload=a by=2m", told, stalled) == []
    assert outcome("page JobStalled workload=a by=1m", told, stalled) == [], "one scrape later"
    assert outcome("page JobStalled workload=a by=30s", told, stalled) == [
        "late: page JobStalled workload=a at 2m, not by 0.5m"
    ]
    assert outcome("page JobStalled gone=2m", told, stalled) == [
        "stays: page JobStalled until 3m, not gone at 2m"
    ]
    assert outcome("", told, stalled) == [
        "wrong: page JobStalled at 2m: workload=a",
        "too many: 1 pages, not 0",
    ]
    assert outcome("page JobStalled, ticket GpuHot, may ticket GpuBusy", told, stalled, hot) == [
        "missed: ticket GpuHot (held back; fired at 2m)"
    ]
    assert outcome("page JobStalled, page GpuHot, page GpuBusy", told, stalled, hot) == [
        "missed: page GpuHot (only ticket at 2m)",
        "missed: page GpuBusy",
    ]
    told.opened = {"page": 2}
    assert outcome("page JobStalled", told, stalled) == ["too many: 2 pages, not 1"]
    hung = alert("JobStalled", workload="b")
    together = Notifications({"page": {stalled, hung}, "ticket": set(), "info": set()}, {"page": 1})
    assert outcome(
        "page JobStalled workload=a, page JobStalled workload=b", together, stalled, hung
    ) == ["too few: 1 pages, not 2"]


def test_an_expectation_may_be_loose() -> None:
    one = wanted("may ticket+ GpuHot|GpuBusy instance=n-1")
    assert str(one) == "may ticket or page GpuHot|GpuBusy instance=n-1"


def failing(known: str, *faults: str) -> Outcome:
    """What comes of a scenario that wants a page and a ticket, with faults such as ``missed``."""
    hung, hot = alert("JobStalled"), alert("GpuHot", "ticket")
    full = alert("ShmNearlyFull", "ticket")
    text = (
        f"nodes: {{n: 1x1}}\nnotified: [page JobStalled, ticket GpuHot]\nknown_failure: '{known}'"
    )
    pages, tickets = {hung}, {hot}
    if "missed" in faults:
        tickets.remove(hot)
    if "too much" in faults:
        tickets.add(full)
    told = Notifications({"page": pages, "ticket": tickets, "info": set()}, {"page": 1})
    return Outcome("c", scenario(text), Timeline(60, (frozenset({hung, hot, full}),)), told)


@pytest.mark.parametrize(
    ("faults", "failure"),
    [
        ((), ""),
        (("missed",), "missed"),
        (("too much",), "too much"),
        (("missed", "too much"), "missed"),
    ],
)
def test_a_failure_is_missed_or_too_much(faults: tuple[str, ...], failure: str) -> None:
    assert failing("", *faults).failure() == failure


def test_a_known_failure_must_fail_as_it_is_known_to() -> None:
    assert failing("missed: nobody looks", "missed").surprises() == []
    (passes,) = failing("missed: nobody looks").surprises()
    assert "no known failure any more" in passes
    assert failing("missed: nobody looks", "too much").surprises()[0] == "is too much, not missed"
    assert failing("", "too much").surprises() == ["wrong: ticket ShmNearlyFull at 0m: "]


def test_rates_count_what_fails() -> None:
    told = rates({"a": ["", "missed", ""], "b": ["too much"]})
    assert told.splitlines()[2:] == [
        "| `a.yaml` | 3 | 2 | 1 | 0 |",
        "| `b.yaml` | 1 | 0 | 0 | 1 |",
        "| all | 4 | 2 | 1 | 1 |",
    ]


@pytest.mark.integration
def test_an_alert_is_seen_to_fire_for_longer_than_a_day() -> None:
    need("promtool")
    long = scenario("nodes: {n: 1x1}\nhappens: [10m n/0 remap pends]\nlasts: 25h\nevery: 4m")
    (fired,) = [
        span
        for alert, span in evaluated({"c": long}, Rules())["c"].spans().items()
        if ("alertname", "GpuUnhealthy") in alert
    ]
    assert fired[1] > 24 * 3600


def test_quiet_times_are_cut_short() -> None:
    quiet, loud = frozenset[frozenset[tuple[str, str]]](), frozenset({alert("GpuHot")})
    timeline = Timeline(60, (quiet, loud, *[loud] * 100, quiet))
    assert [when for when, _, _ in moments(timeline)] == [60.0, 60.0 + STILL]


def test_scenarios_that_run_together_are_evaluated_as_often() -> None:
    packs = together(SCENARIOS)
    assert sorted(name for pack in packs for name in pack) == sorted(SCENARIOS)
    assert all(len({SCENARIOS[name].every for name in pack}) == 1 for pack in packs)
    assert all(len(pack) == 1 for pack in packs if any(SCENARIOS[name].unseen for name in pack))
