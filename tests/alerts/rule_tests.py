"""Tests of the rules for ``promtool test rules``, from the examples of the threshold table.

Every case has a cluster of its own, and all rules keep the label ``cluster``: so one run of
promtool plays all cases side by side, and a rule that mixed clusters up would fail.
https://prometheus.io/docs/prometheus/latest/configuration/unit_testing_rules/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from alerts.examples import GPU_A, HELD, NODE_A, TRAIN, ledger, series
from alerts.model import IDENTITY, Given, Record, Series, Threshold, minutes
from alerts.promql import DECLARED
from alerts.recording import RECORDS
from alerts.recording.capacity import TESTED_AT
from alerts.recording.faults import CORDONED as CORDONED_NODES
from alerts.recording.faults import SPARE
from alerts.rule_files import rule_files
from gpunode.metric import Metric

Labels = Mapping[str, str]
Phases = Iterable[tuple[int, float | None]]

RECORDED: dict[str, Record] = {record.name: record for record in RECORDS}
OF_PROMETHEUS = ("cluster", "instance")
NODE_AND_GPU = {"instance": NODE_A, "gpu": GPU_A[0], "uuid": GPU_A[1]}
OF_THE_JOB = dict(zip(IDENTITY["job"][1:], TRAIN, strict=True))

CORDONED: Given = {
    series("kube_node_spec_unschedulable", node=NODE_A, instance="10.0.0.9:8080"): 1.0
}

FIRST = ("recording", "cluster_recording", "cluster_at_once")
IN_ORDER = [
    group["name"]
    for name, file in sorted(rule_files().items(), key=lambda file: file[0] not in FIRST)
    for group in file["groups"]
]
"""The groups of rules, each after those on which it rests."""

LEAST_QUIET = 80
"""Minutes of quiet before an alert is made to fire, which is more than what signals look back on,
but for those with a window of an hour, for which it is longer."""


def declaration(name: str) -> Metric | None:
    """The metric that a series belongs to, even if it is part of a histogram."""
    return DECLARED.get(name) or DECLARED.get(re.sub(r"_(bucket|sum|count)$", "", name))


def is_counter(name: str) -> bool:
    """Whether a series only grows."""
    metric = declaration(name)
    return (metric is not None and metric.kind != "gauge") or name == "process_cpu_seconds_total"


def known_labels(name: str) -> tuple[str, ...]:
    """The labels of a series in Prometheus: as recorded, or as exported and scraped."""
    if name in RECORDED:
        return RECORDED[name].labels
    metric = declaration(name)
    return (*OF_PROMETHEUS, *(metric.labels if metric else ()))


def with_labels(name: str, labels: Labels) -> str:
    """A series as PromQL selects it."""
    return name + "{" + ",".join(f'{k}="{v}"' for k, v in sorted(labels.items())) + "}"


@dataclass(slots=True)
class Case:
    """What promtool is given in one cluster, and what it must find there."""

    name: str
    inputs: list[dict[str, str]] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)

    def give(self, given: Series, phases: Phases, **own: str) -> None:
        """A series with its values, minute by minute."""
        known = known_labels(given.metric)
        labels = {name: value for name, value in NODE_AND_GPU.items() if name in known}
        labels |= {"cluster": self.name, **dict(given.labels), **own}
        if given.metric.endswith("_timestamp_seconds"):
            values = _moments(phases)
        else:
            values = _values(phases, is_counter(given.metric))
        self.inputs.append({"series": with_labels(given.metric, labels), "values": values})

    def expect(
        self, minute: int, expression: str, found: Iterable[tuple[str, Labels, float]] = ()
    ) -> None:
        """What an expression must come to; by default, nothing."""
        samples = [
            {"labels": with_labels(name, labels), "value": value} for name, labels, value in found
        ]
        self.checks.append({"expr": expression, "eval_time": f"{minute}m", "exp_samples": samples})

    def alerts(self, row: Threshold, **labels: str) -> str:
        """The alerts of a row in this cluster."""
        wanted = {"cluster": self.name, "alertname": row.alert, **labels}
        return with_labels("ALERTS", wanted)

    def expect_alerts(
        self, minute: int, row: Threshold, severities: Iterable[str], state: str = "firing"
    ) -> None:
        """Which severities an alert has at a moment, each with all its labels."""
        shared = {
            **_identity(row, self.name),
            "alertname": row.alert,
            "alertstate": state,
            "group": row.group,
            **({"route": "job_owner"} if row.of_owner else {}),
            **row.says_fault,
        }
        self.expect(
            minute,
            self.alerts(row, alertstate=state),
            [("ALERTS", {**shared, "severity": severity}, 1.0) for severity in severities],
        )

    def expect_never(self, minute: int, row: Threshold, **labels: str) -> None:
        """That an alert was not even pending up to a moment."""
        self.expect(minute, f"count_over_time({self.alerts(row, **labels)}[{minute}m])")


def _values(phases: Phases, grows: bool) -> str:
    """Minute by minute, in promtool's notation; absent where a phase has no value."""
    told: list[str] = []
    total = 0.0
    for length, value in phases:
        if value is None:
            told += ["stale", *["_"] * (length - 1)]
            total = 0.0
            continue
        for _ in range(length):
            told.append(f"{total if grows else value:.10g}")
            total += value * 60
    return " ".join(told)


def _moments(phases: Phases) -> str:
    """Minute by minute, a moment that is now (1), that stays what it was (0), or another."""
    told: list[str] = []
    moment: int | None = None
    for length, value in phases:
        if value is None:
            told += ["stale", *["_"] * (length - 1)]
            moment = None
            continue
        for _ in range(length):
            if value > 1.0:
                moment = int(value)
            elif value or moment is None:
                moment = len(told) * 60
            told.append(str(moment))
    return " ".join(told)


def _identity(row: Threshold, cluster: str) -> dict[str, str]:
    """The labels of the alert that a row's example raises, without empty ones."""
    known = {"cluster": cluster, **NODE_AND_GPU, **OF_THE_JOB}
    for given in reversed(tuple(row.example.fires)):
        known |= {name: value for name, value in given.labels if name in row.labels}
    known |= row.example.labels
    return {name: known[name] for name in row.identity if known[name]}


@dataclass(frozen=True, slots=True)
class Course:
    """The time of a test, in minutes: quiet, then the example, then quiet again."""

    quiet: int
    settled: int
    """When the signal has reached its value."""

    end: int
    """When the example ends."""

    kept: int
    """Until when ``keep_firing_for`` holds the alert."""

    length: int
    given: dict[Series, tuple[float | None, float | None]]
    """The value of each series in quiet and in the example."""

    @classmethod
    def of(cls, row: Threshold) -> Course:
        """The course of a row of the table."""
        settles = minutes(row.window) + 3
        quiet = max(LEAST_QUIET, settles + 5)
        end = quiet + settles + max(minutes(tier.after) for tier in row.tiers) + 5
        kept = end - 1 + minutes(row.keep_firing_for or "0s")
        return cls(quiet, quiet + settles, end, kept, kept + settles + 5, cls._given(row))

    @staticmethod
    def _given(row: Threshold) -> dict[Series, tuple[float | None, float | None]]:
        """The example, on a GPU that has an owner and computes, if the example does not say."""
        fires, quiet = row.example.fires, row.example.quiet
        of_ledger = any(one.metric == "gpunode_gpu_seconds_total" for one in fires)
        context: Given = {**HELD, **({} if of_ledger else ledger())}
        given = {**context, **quiet, **fires}
        return {one: (quiet.get(one, value), given[one]) for one, value in given.items()}

    def play(self, case: Case) -> None:
        """Give a case the series of this course."""
        for given, (low, high) in self.given.items():
            during = self.end - self.quiet
            case.give(given, [(self.quiet, low), (during, high), (self.length - self.end, low)])


def alert_case(row: Threshold) -> Case:
    """That an alert is quiet, pending, firing in every tier, kept, and resolved.

    The signal crosses the threshold somewhere between the first minute of the example and the
    minute at which it has settled. So no tier may fire earlier than ``for`` after the first, and a
    tier whose ``for`` outlasts the settling must be pending when the signal has settled.
    """
    case, course = Case(row.alert), Course.of(row)
    course.play(case)
    case.expect(course.quiet - 1, case.alerts(row))
    for tier in row.tiers:
        after = minutes(tier.after)
        if after > 1:
            early = case.alerts(row, alertstate="firing", severity=tier.severity)
            case.expect(course.quiet + after - 1, early)
    waiting = [
        tier.severity for tier in row.tiers if minutes(tier.after) > course.settled - course.quiet
    ]
    if waiting:
        case.expect_alerts(course.settled, row, waiting, "pending")
    every = [tier.severity for tier in row.tiers]
    case.expect_alerts(course.end - 3, row, every)
    case.expect_alerts(course.kept, row, every)
    case.expect(course.length - 1, case.alerts(row))
    case.expect(course.end - 3, *_value(case, row))
    return case


def _value(case: Case, row: Threshold) -> tuple[str, list[tuple[str, Labels, float]]]:
    """That what is recorded comes to its value, within a thousandth."""
    value = row.example.value
    if value is None:
        here = f"{row.record} and on ({', '.join(row.identity)}) {case.alerts(row)}"
        return f"count({here})", [("", {}, 1.0)]
    near = f"abs({row.record} - {value!r}) < bool {max(abs(value), 1.0) * 1e-3!r}"
    here = f"({near}) and on ({', '.join(row.identity)}) {case.alerts(row)}"
    return here, [("", _identity(row, case.name), 1.0)]


def silenced_case(row: Threshold) -> Case:
    """That an alert is silent while its silencer is there."""
    case, course = Case(f"{row.alert} silenced"), Course.of(row)
    course.play(case)
    for given, value in row.example.silenced_by.items():
        case.give(given, [(course.length, value)])
    case.expect_never(course.length - 1, row)
    return case


def cordon_case(row: Threshold) -> Case:
    """That an alert pages nobody about a cordoned node, but still makes a ticket."""
    case, course = Case(f"{row.alert} on a cordoned node"), Course.of(row)
    course.play(case)
    for given, value in CORDONED.items():
        case.give(given, [(course.length, value)])
    case.expect_alerts(course.end - 3, row, [t.severity for t in row.tiers if not t.unless])
    case.expect_never(course.length - 1, row, severity="page")
    return case


def rollover_case(row: Threshold) -> Case:
    """That an alert fires, and no rule fails, when another pod of the exporter takes over.

    For two minutes both have their series, as in the rolling update of a DaemonSet.
    """
    case, course = Case(f"{row.alert} in a rolling update"), Course.of(row)
    for given, (low, high) in course.given.items():
        old: Phases = [(course.quiet + 2, low), (1, None)]
        new: Phases = [(course.quiet, None), (course.end - course.quiet, high)]
        for pod, phases in (("gpunode-old", old), ("gpunode-new", new)):
            case.give(given, phases, pod=pod)
    case.expect_alerts(course.end - 3, row, [tier.severity for tier in row.tiers])
    return case


def cases_of(row: Threshold) -> Iterator[Case]:
    """Every case of an alert with one exporter."""
    yield alert_case(row)
    if row.example.silenced_by:
        yield silenced_case(row)
    if any(tier.unless in (CORDONED_NODES, SPARE) for tier in row.tiers):
        yield cordon_case(row)


def record_case(record: Record) -> Case:
    """That a recording rule comes to its results."""
    case = Case(record.name)
    for given, value in record.given.items():
        case.give(given, [(TESTED_AT + 8, value)])
    for result, value in record.results.items():
        labels = {"cluster": case.name, **dict(zip(record.labels[1:], result, strict=True))}
        found = {name: value for name, value in labels.items() if value}
        case.expect(TESTED_AT, with_labels(record.name, labels), [(record.name, found, value)])
    return case


def promtool_file(
    rules: Iterable[str], cases: Iterable[Case], in_order: Iterable[str] = ()
) -> dict[str, Any]:
    """A file for ``promtool test rules``: all cases, side by side."""
    cases = list(cases)
    return {
        "rule_files": list(rules),
        "evaluation_interval": "1m",
        "group_eval_order": list(in_order),
        "tests": [
            {
                "interval": "1m",
                "input_series": [one for case in cases for one in case.inputs],
                "promql_expr_test": [one for case in cases for one in case.checks],
            }
        ],
    }
