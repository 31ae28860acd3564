"""The alert rules: generated from the table, valid, and doing what they should in Prometheus.

``promtool test rules`` plays the examples of the table through the rules and looks at which alert
fires, about whom, in which severity and when.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any

import promql_parser
import pytest
import yaml

from alerts import generate
from alerts.examples import HELD, owner, series
from alerts.figures import MORE_OR_LESS
from alerts.model import Given, Series, Threshold, Tier, minutes
from alerts.recording import OF_CLUSTERS, RECORDS, losses
from alerts.recording.faults import INFO
from alerts.recording.jobs import OWNED, SLURM
from alerts.recording.places import NODE_LABELS, TARGET_LABELS
from alerts.rule_files import (
    EXPRESSIONS,
    can_page,
    document,
    expression,
    groups,
    rule,
    rule_files,
    substituted,
    variables,
)
from alerts.settings import SETTINGS
from alerts.thresholds.exporter import ALLOCATABLE_GPUS
from alerts.thresholds.lines import COVERED, LINES
from alerts.thresholds.table import THRESHOLDS
from gpunode import sources
from gpunode.audit.source import CHECKS
from gpunode.client.protocol import PHASES
from gpunode.driver.nvidia.fabric import PARTS
from gpunode.driver.nvidia.health import REMAP_AVAILABILITIES
from gpunode.driver.nvidia.links import NVLINK_ERRORS
from gpunode.driver.nvidia.xids import OF_NVLINK5, RECOVERY_ACTIONS, UNKNOWN, WORST_FIRST
from gpunode.export.web.entrance import Entrance
from gpunode.gpu.health import MEMORY_FAULTS
from gpunode.helper.environment import ENVIRONMENT
from gpunode.incidents.black_box import BlackBox
from gpunode.incidents.incident import KINDS as INCIDENT_KINDS
from gpunode.nccl.bench import COLLECTIVES
from gpunode.nccl.log import OVER_NETWORK, transport
from gpunode.rules.render import with_values
from gpunode.serving.requests import COUNTERS
from gpunode.source import Meets
from gpunode.verdict.asking import LooksOnDemand
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.gain import BOUNDS
from gpunode.verdict.overdue import STALLS
from gpunode.verdict.reasons import REASONS
from gpunode.verdict.workload import KINDS
from tests.alerts import rule_tests
from tests.alerts.rule_tests import FIRST, IN_ORDER, Case, Course, Phases, with_labels
from tests.cases import with_each
from tests.needs import find
from tests.prometheus.incidents import rules_folder

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "alerts"
ROWS = {row.alert: row for row in THRESHOLDS}
RUNBOOKS = list(generate.runbooks())


def run(
    program: str, *arguments: str | Path, cwd: Path = ALERTS
) -> subprocess.CompletedProcess[str]:
    found = find(program)
    if found is None:
        pytest.skip(f"{program} is not here: make monitoring")
    return subprocess.run(
        [found, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, check=False
    )


def play(
    folder: Path, cases: Iterable[Case], rules: Iterable[Path]
) -> subprocess.CompletedProcess[str]:
    """Put cases to promtool."""
    test = rule_tests.promtool_file(map(str, rules), cases, IN_ORDER)
    (folder / "test.json").write_text(json.dumps(test))
    return run("promtool", "test", "rules", "test.json", cwd=folder)


def shipped(*names: str) -> list[Path]:
    return [rules_folder() / f"{name}.yaml" for name in names]


# What is in the repository


def test_what_is_committed_is_what_the_table_says() -> None:
    found = {path: (ROOT / path).read_text() for path in generate.files()}
    assert found == generate.files(), "make alerts"


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    found = {str(path.relative_to(generate.RUNBOOKS)) for path in generate.RUNBOOKS.rglob("*.md")}
    assert found == {path for path, _ in RUNBOOKS}


COMMANDS = re.compile(r"^ *```bash\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
"""The fenced blocks of a runbook."""


@with_each(RUNBOOKS)
def test_a_runbook_says_what_on_call_needs(path: str, row: Threshold) -> None:
    text = (generate.RUNBOOKS / path).read_text()
    assert generate.BLOCK.findall(text) == list(generate.blocks(row)), "each once: make alerts"
    title, *sections = re.split(r"^## ", generate.BLOCK.sub("", text), flags=re.MULTILINE)
    assert not title.strip()
    written = dict(section.split("\n", 1) for section in sections)
    assert tuple(written) == generate.PROSE[generate.language_of(path)]
    assert not [title for title, prose in written.items() if not prose.strip()], "to be filled in"
    for metric in re.findall(r"(?<!:)\b(gpunode_\w+)(?!:)\b", text):
        assert rule_tests.declaration(metric), metric
    said = COMMANDS.sub("", text)
    levels = "Fleet|Gpu|Job|Nccl|Node|Nvlink|Pcie|Storage"
    for name in re.findall(rf"\b(?:{levels})(?:[A-Z]\w+)\b(?!=)", said, re.ASCII):
        assert name in ROWS


NAMED_BY_LOOPS = re.compile(r"\bfor ([a-z]+) in\b|\bread -r ([a-z]+)")

PAGES = [row for row in THRESHOLDS if can_page(row)]


def commands(path: str) -> list[str]:
    """The blocks of a runbook's commands."""
    return [dedent(block) for block in COMMANDS.findall((generate.RUNBOOKS / path).read_text())]


@with_each(PAGES)
def test_the_commands_of_a_runbook_can_be_pasted(row: Threshold) -> None:
    """The first block is what the alert gives; nothing is named before it has a value."""
    given, *others = commands(f"{row.alert}.md")
    known = set(re.findall(r"(\w+)=", variables(row)))
    assert set(re.findall(r"(\w+)=", given)) == known
    for block in others:
        checked = subprocess.run(
            ["bash", "-n"], input=block, capture_output=True, text=True, check=False
        )
        assert not checked.returncode, checked.stderr + block
        known |= set(re.findall(r"(?:^| )([a-z]+)=", block, re.MULTILINE))
        known |= {name for pair in NAMED_BY_LOOPS.findall(block) for name in pair}
        assert set(re.findall(r"\$\{?([a-z]+)", block)) <= known, block


@with_each(PAGES)
def test_a_runbook_has_the_same_commands_in_each_language(row: Threshold) -> None:
    assert commands(f"ko/{row.alert}.md") == commands(f"{row.alert}.md")


def test_a_new_alert_gets_a_runbook_to_fill_in() -> None:
    row = replace(ROWS["GpuHot"], alert="GpuFrozen")
    text = generate.runbook(row, "")
    assert "# GpuFrozen" in text
    assert "## Diagnosis" in text
    assert generate.runbook(row, text) == text


@with_each(THRESHOLDS)
def test_a_row_can_tell_its_alerts_apart(row: Threshold) -> None:
    severities = [tier.severity for tier in row.tiers]
    assert len(set(severities)) == len(severities)
    assert not {"alertname", "severity", "group"} & {*row.identity}, "the rule sets these labels"
    assert re.search("[가-힣]", row.summary_ko)


# What programs say of the rules


def test_the_rules_are_valid() -> None:
    ran = run("promtool", "check", "rules", "--lint=all", "--lint-fatal", *shipped(*rule_files()))
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_pint_finds_nothing_wrong_with_the_rules() -> None:
    ran = run("pint", "--offline", "--no-color", "lint", "--min-severity=info", rules_folder())
    assert ran.returncode == 0, ran.stderr
    assert "Problems found" not in ran.stderr, ran.stderr


def test_victoriametrics_accepts_the_rules() -> None:
    ran = run("vmalert", "-dryRun", f"-rule={rules_folder()}/*.yaml")
    assert ran.returncode == 0, ran.stderr


# What the rules do


def test_alerts_fire_when_they_should_and_say_what_they_should(tmp_path: Path) -> None:
    """All in one run of promtool: most of a run goes to the recording rules before the alerts.

    promtool prints the alerts of a test that expects none, as Prometheus would send them.
    """
    cases = [case for row in THRESHOLDS for case in rule_tests.cases_of(row)]
    for name, row in CHOSEN_BY_TENANTS.items():
        cases.append(Case(name))
        Course.of(row).play(cases[-1])
    rules = map(str, shipped(*dict.fromkeys((*FIRST, *groups()))))
    test = rule_tests.promtool_file(rules, cases, IN_ORDER)
    test["tests"][0]["alert_rule_test"] = [
        {"eval_time": f"{Course.of(row).end - 3}m", "alertname": row.alert, "exp_alerts": []}
        for row in THRESHOLDS
    ]
    (tmp_path / "test.json").write_text(json.dumps(test))
    ran = run("promtool", "test", "rules", "test.json", cwd=tmp_path)
    printed = ran.stdout + ran.stderr
    assert not re.search("^ +expr: ", printed, re.MULTILINE), printed
    assert "error expanding template" not in printed
    assert "no value" not in printed
    assert "{{" not in printed
    _is_described(printed)
    variables, _ = _of_tenant(printed, "a mount point")
    assert shlex.split(variables) == ["instance=node-a", "mountpoint=/x;touch owned;$(touch owned)"]
    _, why = _of_tenant(printed, "a pod")
    job, cluster = "research/x;touch owned;", "--cluster=a pod"
    assert shlex.split(why) == ["gpunode", "why", job, cluster]


def _is_described(printed: str) -> None:
    said = re.findall(r'alertname="(\w+)".*?\bdescription="(.*?)", runbook', printed, re.DOTALL)
    assert {alert for alert, _ in said} == ROWS.keys()
    for alert, description in said:
        scope = ROWS[alert].scope
        held_by = re.search(r"Held by [^.]*\btrain-0\b", description)
        assert bool(held_by) == (scope == "gpu"), description
        of_job = description.startswith(("train (", "research/x';touch owned;' ("))
        assert of_job == (scope == "job"), description


def _of_tenant(printed: str, cluster: str) -> tuple[str, str]:
    """What on call and an owner paste into a shell."""
    found = re.findall(rf'cluster="{cluster}".*\n +Annotations:(.*)', printed)
    variables = {text for one in found for text in re.findall(r'\bvariables="(.*?)"[,}]', one)}
    why = {text for one in found for text in re.findall(r'\bwhy="(.*?)"[,}]', one)}
    return next(iter(variables)), next(iter(why), "")


def _with_mount_point(row: Threshold, mountpoint: str) -> Threshold:
    fires = {
        Series(one.metric, tuple({**dict(one.labels), "mountpoint": mountpoint}.items()))
        if "mountpoint" in dict(one.labels)
        else one: value
        for one, value in row.example.fires.items()
    }
    return replace(row, example=replace(row.example, fires=fires))


def _with_pod(row: Threshold, pod: str) -> Threshold:
    chosen = owner(owner_namespace="research", owner_pod=pod)
    held: Given = {**dict.fromkeys(HELD), chosen: 1.0}
    example = replace(row.example, fires={**row.example.fires, **held}, quiet=held)
    return replace(row, example=example)


CHOSEN_BY_TENANTS = {
    "a mount point": _with_mount_point(
        ROWS["NodeFilesystemFailing"], "/x';touch owned;'$(touch owned)"
    ),
    "a pod": _with_pod(ROWS["JobStarved"], "x';touch owned;'-0"),
}
"""Names that tenants chose, which on call and owners paste into a shell."""


def test_the_owner_of_a_job_is_told_what_to_ask() -> None:
    for row in THRESHOLDS:
        assert ("why" in rule(row, row.tiers[0])["annotations"]) == row.of_owner
        assert not row.of_owner or row.scope == "job"


@pytest.mark.integration
def test_alerts_outlast_a_rolling_update(tmp_path: Path) -> None:
    cases = [rule_tests.rollover_case(row) for row in THRESHOLDS]
    ran = play(tmp_path, cases, shipped(*dict.fromkeys((*FIRST, *groups()))))
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.integration
def test_records_come_to_their_results(tmp_path: Path) -> None:
    cases = [rule_tests.record_case(record) for record in RECORDS if record not in losses.SINCE]
    ran = play(tmp_path, cases, shipped(*FIRST))
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_prometheus_without_any_target_pages(tmp_path: Path) -> None:
    """Then no series says which cluster it was."""
    row = ROWS["GpunodeAbsent"]
    case = Case("")
    labels = {"alertname": row.alert, "alertstate": "firing", "severity": "ticket"}
    case.expect(20, "ALERTS", [("ALERTS", {**labels, "group": row.group}, 1.0)])
    ran = play(tmp_path, [case], shipped("cluster_exporter"))
    assert ran.returncode == 0, ran.stdout + ran.stderr


NFS_IN_FLIGHT = series("gpunode_nfs_requests_in_flight", mountpoint="/data")
NFS_DONE = series("gpunode_nfs_requests_total", mountpoint="/data", operation="READ")
BLOCKED = series("gpunode_job_blocked_processes")
SILENT = "node:gpunode_storage_silent:active"


def hangs() -> Case:
    """A process that hangs in a request is evidence enough: NFS repeats it only after a minute."""
    case = Case("hangs")
    for given in (NFS_IN_FLIGHT, BLOCKED):
        case.give(given, [(10, 1.0)])
    case.give(NFS_DONE, [(10, 0.0)])
    labels = {"cluster": case.name, "instance": "node-a"}
    found = (SILENT, {**labels, "mountpoint": "/data", "filesystem": "/data"}, 1.0)
    case.expect(8, with_labels(SILENT, {"cluster": case.name}), [found])
    return case


def scrape_failed() -> Case:
    """A scrape a minute, one of which failed, is too little to know what was completed."""
    case = Case("failed")
    of_data = {"filesystem": "scratch", "server": "data"}
    in_flight = series("gpunode_lustre_rpcs_in_flight", **of_data)
    case.give(in_flight, [(5, 1.0), (1, None), (1, 1.0)])
    case.give(series("gpunode_lustre_rpcs_total", **of_data), [(5, 10.0), (1, None), (1, 10.0)])
    case.expect(6, with_labels(SILENT, {"cluster": case.name}))
    return case


def restarted() -> Case:
    """After a while without scrapes, Prometheus scrapes targets again one after the other."""
    case = Case("restarted")
    for node in range(6):
        labels = f'{{cluster="{case.name}",instance="n{node}",job="gpunode",'
        values = f"1x9 _x4 {'_ ' * (node % 2)}1x9"
        owned = 'gpu="0",uuid="GPU-a",owner_pod="train-0"}'
        case.inputs.append({"series": f"up{labels[:-1]}}}", "values": values})
        case.inputs.append({"series": f"gpunode_gpu_owner_info{labels}{owned}", "values": values})
    harmed = with_labels("node:gpunode_down:harmed", {"cluster": case.name})
    case.expect(20, f"count_over_time({harmed}[20m])")
    return case


def scraped_twice() -> Case:
    """A GPU that two jobs scrape is held up once, or its hours by cause would be twice as many."""
    case = Case("counted twice")
    for job in ("gpunode", "gpunode-too"):
        case.give(series("gpunode_gpu_bottleneck", cause="shm"), [(20, 1.0)], job=job)
    name = "cluster:gpunode_gpu_bottleneck:count"
    labels = {"cluster": case.name}
    case.expect(19, with_labels(name, labels), [(name, {**labels, "cause": "shm"}, 1.0)])
    return case


def test_records_are_right_where_scrapes_are_odd(tmp_path: Path) -> None:
    cases = (hangs(), scrape_failed(), restarted(), scraped_twice())
    ran = play(tmp_path, cases, shipped(*FIRST))
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_no_rule_fails_whatever_there_is_twice(tmp_path: Path) -> None:
    """A join that finds two partners fails, and with it the rule for every node.

    Everything is scraped by two jobs, kube-state-metrics runs twice, a GPU has two owners, and the
    GPUs of a node change their numbers and boards within a minute.
    """
    case = Case("twice")
    examples = [one for row in THRESHOLDS for one in row.example.fires]
    of_records = [one for record in RECORDS for one in record.given if ":" not in one.metric]
    for one in dict.fromkeys([*examples, *of_records]):
        for job in ("gpunode", "gpunode-too"):
            case.give(one, [(20, 1.0)], **({} if one.metric == "up" else {"job": job}))
    for one in (*rule_tests.CORDONED, ALLOCATABLE_GPUS):
        for replica in ("10.0.0.7:8080", "10.0.0.8:8080"):
            case.give(one, [(20, 1.0)], instance=replica)
    for minute, gpu, uuid in ((8, "0", "GPU-a"), (4, "3", "GPU-a"), (8, "3", "GPU-c")):
        absent: Phases = [(minute, None)]
        case.give(INFO, [*absent, (4, 1.0), (1, None)], gpu=gpu, uuid=uuid, job="renumbered")
    for owned in (*OWNED, *SLURM):
        case.give(owned, [(20, 1.0)], gpu="7", uuid="GPU-h")
    case.expect(19, "gpu:gpunode_gpu_owner:share == 2")  # for promtool to play all of it
    ran = play(tmp_path, [case], shipped(*rule_files()))
    assert ran.returncode == 0, ran.stdout + ran.stderr


# What the examples of the table are made of

FREE = frozenset(
    (
        *("instance", "job", "node", "le"),
        *("gpu", "uuid", "bus_id", "link", "cluster_uuid", "clique_id", "cpu"),
        *("device", "port", "interface", "disk", "mountpoint", "filesystem", "tmpfs"),
        *("communicator", "rank", "world_size", "host", "pid", "nvml_device", "gpus", "value"),
        *("owner_namespace", "owner_pod", "owner_container", "slurm_job", "user", "workload"),
        *("what", "version", "namespace", "pod", "uid", "container"),
        *("engine", "model", "incident", "where"),
    )
)
"""Labels whose values are names or numbers that differ from node to node."""

KUBERNETES = {
    "up": {"job"},
    "process_cpu_seconds_total": {"job"},
    "process_resident_memory_bytes": {"job"},
    "kube_node_status_allocatable": {"node", "resource", "unit"},
    "kube_node_spec_unschedulable": {"node"},
    "kube_node_status_condition": {"node", "condition", "status"},
    "kube_node_labels": {"node"},
    "kube_pod_container_resource_requests": {
        *("namespace", "pod", "uid", "container", "node", "resource", "unit"),
    },
    "kube_pod_status_phase": {"namespace", "pod", "uid", "phase"},
}
"""What Prometheus, every program and kube-state-metrics give their own series.
https://github.com/kubernetes/kube-state-metrics/blob/main/docs/metrics/cluster/node-metrics.md"""

OF_SITES = {"up": {*TARGET_LABELS}, "kube_node_labels": {*NODE_LABELS}}
"""Labels that a site may add to them."""

CONSTANTS: dict[tuple[str, str], Iterable[str]] = {
    ("gpunode_incident_info", "kind"): INCIDENT_KINDS,
    ("kube_pod_container_resource_requests", "resource"): ("nvidia_com_gpu",),
    ("kube_pod_container_resource_requests", "unit"): ("integer",),
    ("kube_pod_status_phase", "phase"): ("Pending",),
    ("kube_node_status_condition", "condition"): ("Ready", "DiskPressure", "MemoryPressure"),
    ("kube_node_status_condition", "status"): ("true", "false", "unknown"),
    ("gpunode_client_messages_total", "result"): ("accepted",),
    ("gpunode_audit_ok", "check"): [check.name for check in CHECKS],
    ("gpunode_gpu_bottleneck", "cause"): CAUSES,
    ("gpunode_gpu_fabric_healthy", "part"): (*PARTS, "summary", "registration"),
    ("gpunode_gpu_memory_fault_info", "fault"): MEMORY_FAULTS,
    ("gpunode_gpu_row_remap_banks", "spare"): REMAP_AVAILABILITIES,
    ("gpunode_gpu_nvlink_errors_total", "kind"): NVLINK_ERRORS.values(),
    ("gpunode_gpu_nvlink_link_errors_total", "kind"): NVLINK_ERRORS.values(),
    ("gpunode_gpu_owner_info", "via"): ("kubelet", "process"),
    ("gpunode_gpu_recovery_action", "action"): RECOVERY_ACTIONS.values(),
    ("gpunode_gpu_xid_last_timestamp_seconds", "xid"): map(str, range(1, 200)),
    ("gpunode_kernel_log_last_xid_timestamp_seconds", "xid"): map(str, range(1, 200)),
    ("gpunode_kernel_log_last_nvlink_xid_timestamp_seconds", "xid"): map(str, OF_NVLINK5),
    ("gpunode_kernel_log_last_nvlink_xid_timestamp_seconds", "link"): map(str, range(-1, 18)),
    ("gpunode_kernel_log_last_nvlink_xid_timestamp_seconds", "action"): (
        *map(str.lower, WORST_FIRST),
        UNKNOWN,
    ),
    ("gpunode_kernel_log_last_nvlink_xid_timestamp_seconds", "severity"): ("fatal", "nonfatal"),
    ("gpunode_nccl_awaited_rank_info", "reason"): ("behind", "unresponsive", "dead"),
    ("gpunode_gpu_waited_for", "reason"): REASONS,
    ("gpunode_gpu_workload", "kind"): KINDS,
    ("gpunode_nccl_bus_bandwidth_bytes_per_second", "collective"): COLLECTIVES,
    ("gpunode_nccl_bus_bandwidth_bytes_per_second", "nodes"): ("1",),
    ("gpunode_nccl_channels", "transport"): map(
        transport, ("SHM/direct/direct", *(f"{way}/0" for way in OVER_NETWORK))
    ),
    ("gpunode_nccl_communicator_info", "ranks"): ("1",),
    ("gpunode_nccl_communicator_info", "nodes"): ("1",),
    ("gpunode_nccl_communicator_info", "network"): ("IB",),
    ("gpunode_nccl_expected_bus_bandwidth_bytes_per_second", "collective"): COLLECTIVES,
    ("gpunode_nccl_expected_bus_bandwidth_bytes_per_second", "nodes"): ("1",),
    ("gpunode_nccl_setting_info", "name"): ENVIRONMENT,
    **{
        (f"gpunode_source_{what}", "source"): {
            *(kind.name for kinds in sources.KINDS.values() for kind in kinds),
        }
        for what in ("up", "late_reads_total", "skipped_reads_total")
    },
    ("gpunode_serving_objective_met_total", "objective"): ("first_token", "output_token"),
    ("gpunode_serving_requests_in_flight", "phase"): ("running", "waiting"),
    **{
        (metric.name, metric.labels[-1]): {
            value for _, other, labels in COUNTERS if other is metric for value in labels
        }
        for _, metric, of in COUNTERS
        if of
    },
    ("gpunode_training_seconds_total", "phase"): PHASES,
    ("gpunode_training_stalled", "cause"): STALLS,
    ("gpunode_gpu_verdict_gain_ratio", "bound"): BOUNDS,
    ("gpunode_gpu_verdict_gain_ratio", "cause"): CAUSES,
    ("kube_node_status_allocatable", "resource"): ("nvidia_com_gpu",),
    ("kube_node_status_allocatable", "unit"): ("integer",),
}
"""Values of labels in the code, for what no golden exposition shows completely."""


@cache
def known_values() -> dict[tuple[str, str], set[str]]:
    known: dict[tuple[str, str], set[str]] = {}
    for path in ROOT.glob("tests/**/golden/*.txt"):
        for name, labels in re.findall(r"^(\w+){(.*)} ", path.read_text(), re.MULTILINE):
            for label, value in re.findall(r'(\w+)="([^"]*)"', labels):
                known.setdefault((name, label), set()).add(value)
    for kind in (kind for kinds in sources.KINDS.values() for kind in kinds):
        for unknown in kind.unknowns if isinstance(kind, Meets) else ():
            counter = "gpunode_refused_total" if unknown.bound else "gpunode_unread_total"
            known.setdefault((counter, "source"), set()).add(kind.name)
            known.setdefault((counter, "what"), set()).add(unknown.what)
    for kept in (Entrance, BlackBox, LooksOnDemand):
        known["gpunode_refused_total", "source"].add(kept.name)
        known["gpunode_refused_total", "what"] |= {one.what for one in kept.unknowns}
    for at, values in CONSTANTS.items():
        known.setdefault(at, set()).update(values)
    for record in RECORDS:
        known[record.name, "state"] = known["gpunode_gpu_seconds_total", "state"]
    return known


def _examples() -> list[Series]:
    found = [*rule_tests.CORDONED, *HELD]
    for row in THRESHOLDS:
        found += [*row.example.fires, *row.example.quiet, *row.example.silenced_by]
    for record in RECORDS:
        found += record.given
    return sorted(set(found), key=repr)


@with_each(_examples())
def test_an_example_is_a_series_that_can_be_exported(one: Series) -> None:
    labels = dict(one.labels)
    known = {*rule_tests.known_labels(one.metric), *KUBERNETES.get(one.metric, ())}
    known |= {"le"} if one.metric.endswith("_bucket") else set()
    given = {*labels, *(known & {"cluster", *rule_tests.NODE_AND_GPU})}
    given -= OF_SITES.get(one.metric, set())
    if one.metric in rule_tests.RECORDED:
        assert given <= known
    else:
        assert rule_tests.declaration(one.metric) or one.metric in KUBERNETES
        assert given == known
    for label, value in labels.items():
        assert label in FREE | OF_SITES.get(one.metric, set()) or value in known_values().get(
            (one.metric, label), ()
        ), label


# What the expressions are made of


@cache
def expressions() -> Mapping[str, str]:
    """Every expression of a rule by its name, with the values of the settings."""
    found = {f"{row.alert} {tier.severity}": asked(row, tier) for row, tier in TIERS}
    found |= {line.name: line.signal for line in LINES}
    return found | {name: substituted(text) for name, text in EXPRESSIONS.items()}


TIERS = [(row, tier) for row in THRESHOLDS for tier in row.tiers]


def asked(row: Threshold, tier: Tier) -> str:
    """The expression of an alert, with its threshold."""
    return with_values(expression(row, tier), {"threshold": tier.threshold})


RECORDED = {name for name in expressions() if ":" in name}


@with_each(expressions())
def test_a_rule_asks_for_metrics_and_values_that_exist(name: str) -> None:
    expression = expressions()[name]
    bare = re.sub(r'"[^"]*"', '""', expression)
    for metric in set(re.findall(r"\b(?:gpu|node|cluster|filesystem|namespace|job):[\w:]+", bare)):
        assert metric in RECORDED
    for metric in set(re.findall(r"(?<!:)\b(gpunode_\w+)", bare)):
        assert rule_tests.declaration(metric), metric
    for metric, selected in re.findall(r"\b(gpunode_\w+){([^}]*)}", expression):
        for label, wanted in re.findall(r'(\w+)=~?"([^"]+)"', selected):
            if label not in FREE | {"fstype"}:
                assert set(wanted.split("|")) <= known_values()[metric, label]


@with_each(expressions())
def test_a_rule_follows_the_craft(name: str) -> None:
    expression = expressions()[name]
    assert not re.search(r"\b(topk|bottomk)\b", expression)
    for counter in re.findall(r"\b(?:rate|increase)\((\w+)", expression):
        assert rule_tests.is_counter(counter), f"{counter} is no counter"
    for divisor in re.findall(r"/ (?:on \([^)]*\) (?:group_left \(\) )?)?(.{0,400})", expression):
        constant = re.match(r"\d+\b", divisor)
        assert (
            constant or re.search(r"> [0-9]", divisor) or name == "gpu:gpunode_gpu_owner:share"
        ), divisor
    over_nodes = name in OVER_NODES or name in {line.name for line in LINES}
    for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
        assert "cluster" in grouped
        # A GPU is in one node.
        assert {"instance", "node", "uuid"} & {*grouped.split(", ")} or over_nodes, grouped


OVER_NODES = {record.name for record in OF_CLUSTERS} | {
    name
    for row in THRESHOLDS
    if row.over_nodes
    for name in (row.record, *(f"{row.alert} {tier.severity}" for tier in row.tiers))
}
"""Rules that need the Prometheus which sees all nodes."""


def test_the_rules_for_a_shard_need_no_other_nodes() -> None:
    of_clusters = {record.name for record in OF_CLUSTERS}
    of_clusters |= {row.record for row in THRESHOLDS if row.over_nodes and row.signal}
    for name, text in expressions().items():
        if name not in OVER_NODES and name not in {line.name for line in LINES}:
            assert not any(other in text for other in of_clusters), name


PAGING = [(row, tier) for row, tier in TIERS if tier.severity == "page"]


@with_each(PAGING)
def test_what_wakes_somebody_can_be_read_at_night(row: Threshold, tier: Tier) -> None:
    text = asked(row, tier)
    assert len(text) <= 160
    assert "\n" not in text
    assert text.count("unless") <= 1
    assert minutes(tier.after) or row.keep_firing_for, "or it flaps"


@with_each(TIERS)
def test_one_event_lasts_for_longer_than_it_must(row: Threshold, tier: Tier) -> None:
    """What happens once is over when the window has passed it; it would be pending until then."""
    looked_at = substituted(EXPRESSIONS[tier.record or row.record])
    for window in re.findall(rf"increase\([^\[]+\[(\w+)\]\)+ > {HAPPENED}", looked_at):
        assert minutes(window) > minutes(tier.after)


def test_few_alerts_wake_somebody() -> None:
    assert sum(can_page(row) for row in THRESHOLDS) <= 12
    assert len(THRESHOLDS) <= 80, "nobody reads a longer table"


def test_what_users_ask_for_is_answered_by_an_alert_or_a_line() -> None:
    known = {*ROWS, *(line.name for line in LINES)}
    assert {answer for _, answers in COVERED for answer in answers} <= known


def test_every_line_is_promql(tmp_path: Path) -> None:
    drawn = [
        {"record": f"line:{line.name}:drawn", "expr": substituted(line.signal)} for line in LINES
    ]
    rules = {"groups": [{"name": "lines", "rules": drawn}]}
    (tmp_path / "lines.yaml").write_text(yaml.safe_dump(rules))
    ran = run("promtool", "check", "rules", "--lint=all", "--lint-fatal", tmp_path / "lines.yaml")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_setting_decides_something() -> None:
    named = set(re.findall(r"\${(\w+)}", json.dumps(document()))) - {"threshold"}
    assert named == SETTINGS.keys()


# Every published threshold is the one in force

HAPPENED = 0.5
"""What a counter that has counted once has gained at least, by ``increase()``."""

COMPARISONS = (">", ">=", "<", "<=")


def undeclared(expression: str) -> list[str]:
    """The figures with which an expression compares and that no setting or tier names.

    To compare with zero, or for several (``> 1``), or for equality with the code of a state, takes
    no threshold; the minute of the hour says when a rule is evaluated.
    """
    named = {f"${{{name}}}": str(1e12 + at) for at, name in enumerate([*SETTINGS, "threshold"])}
    for name, figure in named.items():
        expression = expression.replace(name, figure)
    return [
        f"{node.lhs} {node.op} {node.rhs}"
        for node in parts(promql_parser.parse(expression))
        if isinstance(node, promql_parser.BinaryExpr) and str(node.op) in COMPARISONS
        if "minute()" not in str(node.lhs)
        for figure in (*figures(node.lhs), *figures(node.rhs))
        if figure < 1e12
        and not (figure == HAPPENED and "increase(" in str(node.lhs))
        and not (figure == 1 and str(node.op) == ">")
        and figure not in (0, -1)
    ]


def parts(node: Any) -> Iterator[Any]:
    """An expression and everything in it."""
    yield node
    for name in ("lhs", "rhs", "expr", "args", "param", "vector_selector"):
        below = getattr(node, name, None)
        for one in below if isinstance(below, list) else [below]:
            if isinstance(one, promql_parser.Expr):
                yield from parts(one)


def figures(node: Any) -> Iterator[float]:
    """The numbers in one side of a comparison: alone, or in arithmetic."""
    if isinstance(node, promql_parser.NumberLiteral):
        yield node.val
    elif isinstance(node, promql_parser.ParenExpr):
        yield from figures(node.expr)
    elif isinstance(node, promql_parser.UnaryExpr):
        yield from (-figure for figure in figures(node.expr))
    elif isinstance(node, promql_parser.BinaryExpr) and str(node.op) in ("+", "-", "*", "/"):
        yield from figures(node.lhs)
        yield from figures(node.rhs)


@with_each(EXPRESSIONS)
def test_an_expression_compares_with_figures_that_are_declared(name: str) -> None:
    assert undeclared("x > 2 * y"), "or nothing is found"
    assert not undeclared(EXPRESSIONS[name]), "declare it in alerts/settings.py"


@with_each(TIERS)
def test_what_is_published_of_a_tier_has_every_figure_of_its_rule(
    row: Threshold, tier: Tier
) -> None:
    """A threshold that decides whether the signal is there is in the words, or the tier's is."""
    told = generate.when(row, tier)
    asked = EXPRESSIONS[tier.record or row.record]
    for operator, name in re.findall(r"([<>]=?) \${(\w+)}", asked):
        if name in UNTOLD.get(row.alert, ()):
            continue
        figure = generate.in_documents(SETTINGS[name])
        assert f"{MORE_OR_LESS[operator]} {figure}" in told, f"{name}: {told}"


UNTOLD = {"JobStraggler": ("still_from",), "JobStalled": ("ticketed_gpus",)}
"""What only keeps an alert from doubling another (a job that stands still is JobStalled's), or
leaves nothing out before a site changes it."""


NUMBER = r"(?:\d|an? (?:half|third|quarter|fifth|tenth)|half|one|two|three|four|five|ten)"
FIGURE = re.compile(
    rf"(?:more|less|fewer) than {NUMBER}|\bat least {NUMBER}"
    r"|\d ?%? ?(?:를|을)? ?(?:이상|초과|미만|넘)|\d+ ?(?:분|시간)째"
)


@with_each([path for path, _ in RUNBOOKS])
def test_the_prose_of_a_runbook_repeats_no_threshold(path: str) -> None:
    """The block above it has them."""
    text = generate.BLOCK.sub("", (generate.RUNBOOKS / path).read_text())
    meaning = re.split(r"^## ", text, flags=re.MULTILINE)[1]
    assert not FIGURE.search(meaning)


def test_names_of_recording_rules_say_level_metric_and_operation() -> None:
    for name in RECORDED:
        assert re.fullmatch(r"[a-z_]+:[a-z0-9_]+:[a-z0-9_]+", name)


# The example for Alertmanager


def test_the_example_for_alertmanager_is_valid() -> None:
    ran = run("amtool", "check-config", "alertmanager.yaml")
    assert ran.returncode == 0, ran.stdout + ran.stderr


@with_each(
    [
        (("severity=page",), "pager"),
        (("severity=page", "route=job_owner"), "owner-pager"),
        (("severity=ticket",), "tickets"),
        (("severity=ticket", "route=job_owner"), "owner-tickets"),
        (("severity=info",), "review"),
    ],
)
def test_a_severity_goes_where_it_should(labels: tuple[str, ...], to: str) -> None:
    named = ("alertname=JobStarved", *labels)
    ran = run("amtool", "config", "routes", "test", "--config.file=alertmanager.yaml", *named)
    assert ran.stdout.strip() == to


def test_the_example_for_alertmanager_names_what_the_rules_have() -> None:
    text = (ALERTS / "alertmanager.yaml").read_text()
    named = {n for found in re.findall(r'alertname=~?"([^"]+)"', text) for n in found.split("|")}
    assert named - {"Job.*", "Watchdog"} <= ROWS.keys()
    same = set(yaml.safe_load(text)["inhibit_rules"][0]["equal"])
    labels = {label for row in THRESHOLDS for label in row.identity}
    assert labels | {"alertname", "fault"} <= same, "or one device's page hides another's ticket"
