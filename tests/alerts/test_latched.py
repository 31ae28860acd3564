"""What rules remember over a gap in which no Prometheus evaluates them, and for how long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from alerts.recording.faults import CORDONED
from alerts.recording.latched import HOLDER, NOTED, REPAIRED
from alerts.rule_files import EXPRESSIONS, rule, substituted
from alerts.thresholds.table import THRESHOLDS
from tests.alerts.test_alerts import run

GPU = 'cluster="c",gpu="0",instance="n",uuid="U"'
RESET = "XID 119: reset the GPU"
SCRAPED = 'node:gpunode_hardware:most_1d{cluster="c",instance="n",part="gpu"}'
ANSWERED = 'node:gpunode_exporter:up{cluster="c",instance="n"}'
LATCHED = f'gpu:gpunode_gpu_fault:latched{{{GPU},reason="{RESET}"}}'
EXPECTED = 'node:gpunode_hardware:expected{cluster="c",instance="n",part="gpu"}'
PRESENT = 'node:gpunode_hardware:present{cluster="c",instance="n",part="gpu"}'
BROKEN = f"gpu:gpunode_gpu_fault:worst{{{GPU}}}"


def count(folder: Path, name: str, given: dict[str, str], minute: int, finds: str) -> None:
    """Ask what a rule finds at a minute, when only these series were recorded before."""
    expression = substituted(EXPRESSIONS[name])
    test: dict[str, Any] = {
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": s, "values": v} for s, v in given.items()],
                "promql_expr_test": [
                    {
                        "expr": f"sum({expression}) or vector(-1)",
                        "eval_time": f"{minute}m",
                        "exp_samples": [{"labels": "{}", "value": float(finds)}],
                    }
                ],
            }
        ],
    }
    (folder / "test.json").write_text(json.dumps(test))
    ran = run("promtool", "test", "rules", "test.json", cwd=folder)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(("gap", "finds"), [(3, "540"), (20, "540"), (55, "540"), (70, "-1")])
def test_an_xid_outlasts_a_gap_of_up_to_an_hour(tmp_path: Path, gap: int, finds: str) -> None:
    given = {LATCHED: "540x10", SCRAPED: f"8x10 _x{gap - 1} 8"}
    count(tmp_path, NOTED, given, 10 + gap, finds)


def test_a_node_that_was_not_scraped_for_a_day_is_forgotten(tmp_path: Path) -> None:
    count(tmp_path, NOTED, {LATCHED: "540x10"}, 10, "-1")


def test_an_xid_follows_its_gpu_to_another_instance(tmp_path: Path) -> None:
    at = 'bus_id="b",cluster="c",gpu="0",instance="n:9",parent="",uuid="U"'
    scraped = SCRAPED.replace('"n"', '"n:9"')
    given = {LATCHED: "540x10", f"gpunode_gpu_info{{{at}}}": "_x10 1x9", scraped: "_x10 8x9"}
    count(tmp_path, NOTED, given, 15, "540")


def test_a_reset_in_a_gap_is_seen_after_it(tmp_path: Path) -> None:
    energy = f"gpunode_gpu_driver_energy_joules_total{{{GPU}}}"
    given = {
        LATCHED: "540x10",
        f'{NOTED}{{{GPU},reason="{RESET}"}}': "540x10 _x19 540",
        f"gpu:gpunode_gpu_fault:energy{{{GPU}}}": "9000x10",
        ANSWERED: "1x10 _x19 1",
    }
    count(tmp_path, REPAIRED, {**given, energy: "9000x10 _x19 100"}, 30, "1800")
    count(tmp_path, REPAIRED, {**given, energy: "9000x10 _x19 9100"}, 30, "-1")


@pytest.mark.parametrize(("gap", "finds"), [(4, "8"), (6, "8"), (40, "8"), (70, "7")])
def test_parts_are_expected_after_a_gap(tmp_path: Path, gap: int, finds: str) -> None:
    silent = f"_x{gap - 1}"
    given = {
        EXPECTED: "8x10",
        PRESENT: f"7x10 {silent} 7",
        SCRAPED: f"8x10 {silent} 7",
        ANSWERED: f"1x10 {silent} 1",
    }
    count(tmp_path, "node:gpunode_hardware:expected", given, 10 + gap, finds)


def test_parts_are_counted_anew_when_a_person_says_so(tmp_path: Path) -> None:
    given = {EXPECTED: "8x10", PRESENT: "7x10", SCRAPED: "8x10", ANSWERED: "1x10"}
    said = {'node:gpunode_node:declared_repaired{cluster="c",instance="n"}': "300x10"}
    count(tmp_path, "node:gpunode_hardware:expected", {**given, **said}, 10, "7")


def test_a_gpu_on_the_bus_is_missing_until_a_person_says_so(tmp_path: Path) -> None:
    device = 'gpunode_pcie_device_info{{bus_id="{}",cluster="c",instance="n",kind="gpu"}}'.format
    given = {device("a"): "1x10", device("b"): "1x10", PRESENT: "1x10"}
    said = {'node:gpunode_node:declared_repaired{cluster="c",instance="n"}': "300x10"}
    count(tmp_path, "node:gpunode_hardware:missing", given, 10, "1")
    count(tmp_path, "node:gpunode_hardware:missing", {**given, **said}, 10, "-1")


def test_an_xid_of_a_clock_that_was_ahead_is_no_later_than_now(tmp_path: Path) -> None:
    """Or no repair would be later than it."""
    xid = f'gpunode_gpu_xid_last_timestamp_seconds{{{GPU},xid="79"}}'
    count(tmp_path, NOTED, {xid: "4800x30"}, 30, "1800")


def of_pod(metric: str, pod: str) -> str:
    return f'{metric}{{cluster="c",instance="n",job="gpunode",pod="{pod}"}}'


OLD, NEW = (of_pod("gpunode_node_drained", pod) for pod in ("old", "new"))
UP = of_pod("up", "new")
WAS_DRAINED = f'{CORDONED}{{cluster="c",instance="n"}}'
OF_KUBERNETES = 'kube_node_spec_unschedulable{{cluster="c",node="n",pod="{}"}}'.format


@pytest.mark.parametrize(
    ("given", "finds"),
    [
        pytest.param({OLD: "1x5 stale", NEW: "_x6 1 0x40", UP: "_x6 1x40"}, "-1", id="resumed"),
        pytest.param({OLD: "0x5 stale", NEW: "_x6 1x40", UP: "_x6 1x40"}, "1", id="drained"),
        pytest.param(
            {OLD: "1x5 stale", NEW: "_x6 1 0x9 stale", UP: "_x6 1x10 0x30"}
            | {WAS_DRAINED: "1x7 stale", ANSWERED: "1x40"},
            "-1",
            id="resumed, and down a little later",
        ),
        pytest.param(
            {NEW: "1x10 stale", UP: "1x10 0x30", WAS_DRAINED: "1x40", ANSWERED: "1x40"},
            "1",
            id="off since it was drained",
        ),
        pytest.param(
            {UP: "1x10 stale", WAS_DRAINED: "1x40", ANSWERED: "1x10 stale"},
            "1",
            id="no target since it was drained",
        ),
        pytest.param(
            {UP: "0x10 _x19 0", WAS_DRAINED: "1x10", ANSWERED: "0x10 _x19 0"},
            "1",
            id="off, and Prometheus was away",
        ),
        pytest.param(
            {OF_KUBERNETES("old"): "1x24 stale", OF_KUBERNETES("new"): "_x25 0x10"},
            "-1",
            id="uncordoned as kube-state-metrics restarted",
        ),
        pytest.param({OF_KUBERNETES("old"): "1x22 stale"}, "1", id="kube-state-metrics is away"),
    ],
)
def test_a_node_is_drained_as_was_said_last(
    tmp_path: Path, given: dict[str, str], finds: str
) -> None:
    count(tmp_path, CORDONED, given, 30, finds)


def held(pod: str) -> str:
    labels = f'owner_container="",owner_namespace="",owner_pod="{pod}",slurm_job="",user=""'
    return f'gpunode_gpu_owner_info{{{GPU},{labels},via="kubelet"}}'


def kept(pod: str) -> str:
    return f'{HOLDER}{{{GPU},owner_pod="{pod}"}}'


def test_the_holder_is_the_one_when_it_broke(tmp_path: Path) -> None:
    up = {ANSWERED: "1x20"}
    breaks = {BROKEN: "_x10 2x10", **up}
    count(tmp_path, HOLDER, {**breaks, held("a"): "1x10"}, 11, "1")
    count(tmp_path, HOLDER, {**breaks, held("b"): "_x16 1x4"}, 18, "-1")
    count(tmp_path, HOLDER, {**breaks, kept("a"): "_x10 1x10", held("b"): "_x14 1x6"}, 18, "1")
    repaired = {BROKEN: "_x2 2x2 stale", kept("a"): "_x2 1x2 stale", **up}
    count(tmp_path, HOLDER, repaired, 10, "-1")


def test_the_text_names_the_holder_of_when_it_broke_first() -> None:
    (row,) = (row for row in THRESHOLDS if row.alert == "GpuUnhealthy")
    told = rule(row, row.tiers[0])["annotations"]["description"]
    assert told.index(HOLDER) < told.index("gpunode_gpu_owner_info")
    assert "{{ else }}" in told[told.index(HOLDER) : told.index("gpunode_gpu_owner_info")]
