"""Every scenario of tests/alerts through rules and routes, and who is notified.

``promtool test rules`` has the rules evaluated over the series of each scenario; what fires is put,
minute by minute but in a hurry, to a real Alertmanager with the routes, which notifies a webhook.

python -m tests.alerts.scenarios.play [parts of names] [--rules FOLDER] [--alertmanager FILE]
    [--missed SHARE] [--table FILE]
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import yaml

from tests.alerts.scenarios.fleet import MISSED, Fleet
from tests.alerts.scenarios.shorthand import (
    FAILURES,
    FOLDER,
    ExpectedNotification,
    Scenario,
    Severity,
    by_file,
)
from tests.prometheus.programs import Note, alertmanager, need

ROOT = Path(__file__).parents[3]
RULES = ROOT / "alerts" / "rules"
ALERTMANAGER = ROOT / "alerts" / "alertmanager.yaml"

Alert = frozenset[tuple[str, str]]
"""The labels of an alert."""

SEVERITIES: dict[str, Severity] = {
    "page": "page",
    "ticket": "ticket",
    "info": "info",
    "critical": "page",
    "warning": "ticket",
}
"""How each severity of the rules reaches people."""

RANKS: tuple[Severity, ...] = ("info", "ticket", "page")

TOGETHER = 200
"""GPUs in one run of promtool, which loads no more than 10,000 samples for a query."""

MINUTE = 0.2
"""Seconds that a minute takes for Alertmanager."""

SLOWLY = 0.6
"""Seconds that a minute takes where something differs: a busy machine is no fault."""

STILL = 11 * 60
"""Seconds without a change after which Alertmanager has nothing more to do: longer than its
``group_interval``. What lasts longer is cut short."""

GROUP_WAIT = 0.1
"""The least seconds for which Alertmanager collects a group: all alerts of one evaluation."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Which alerts fire at each evaluation of a scenario."""

    every: int
    firing: tuple[frozenset[Alert], ...]

    def spans(self) -> dict[Alert, tuple[int, int]]:
        """The first and the last second at which each alert fires."""
        found: dict[Alert, tuple[int, int]] = {}
        for step, alerts in enumerate(self.firing):
            for alert in alerts:
                first, _ = found.get(alert, (step * self.every, 0))
                found[alert] = (first, step * self.every)
        return found


@dataclass(slots=True)
class Notifications:
    """What Alertmanager has notified people of in a scenario."""

    alerts: dict[Severity, set[Alert]] = field(
        default_factory=lambda: {"page": set(), "ticket": set(), "info": set()}
    )
    opened: dict[Severity, int] = field(default_factory=dict)
    """Incidents: groups that began to be notified, also again after they were resolved."""

    keys: set[str] = field(default_factory=set)
    """The keys of the groups of pages: an integration as PagerDuty's keeps one incident for each.
    https://prometheus.io/docs/alerting/latest/configuration/#pagerduty_config"""

    messages: int = 0

    def count(self, severity: Severity) -> int:
        """How often somebody was notified of something new."""
        return self.opened.get(severity, 0)


# Prometheus


def together(chosen: Mapping[str, Scenario]) -> list[list[str]]:
    """Scenarios that run side by side: as often evaluated, about as long, and not too large.

    One in which no Prometheus scrapes runs by itself: nothing else is scraped, either.
    """
    ordered = sorted(chosen, key=lambda name: (chosen[name].every, chosen[name].lasts))
    packs: list[list[str]] = []
    sizes: list[int] = []
    for name in ordered:
        one, size = chosen[name], max(sum(chosen[name].gpus.values()), len(chosen[name].gpus))
        first = chosen[packs[-1][0]] if packs else one
        fits = packs and sizes[-1] + size <= TOGETHER and one.every == first.every
        fits = fits and not one.unseen and not first.unseen
        if fits and one.lasts <= 1.5 * first.lasts:
            packs[-1].append(name)
            sizes[-1] += size
        else:
            packs.append([name])
            sizes.append(size)
    costs = [
        size * max(chosen[name].lasts for name in pack) / chosen[pack[0]].every
        for size, pack in zip(sizes, packs, strict=True)
    ]
    return [pack for _, pack in sorted(zip(costs, packs, strict=True), reverse=True)]


@dataclass(frozen=True)
class Rules:
    """Rules to play with, and how often scrapes fail."""

    folder: Path = RULES
    missed: float = MISSED

    @cached_property
    def groups(self) -> list[dict[str, Any]]:
        """The groups without the rules on which no alert rests, each after those on which it rests.

        What only boards and reports ask for looks back further than promtool may, which would also
        evaluate groups in an order of its own at every run.
        """
        files = [yaml.safe_load(path.read_text()) for path in sorted(self.folder.glob("*.yaml"))]
        rules = [rule for file in files for group in file["groups"] for rule in group["rules"]]
        needed: set[str] = set()
        found = {name for rule in rules if "alert" in rule for name in NAME.findall(rule["expr"])}
        while found - needed:
            needed |= found
            found = {
                name
                for rule in rules
                if rule.get("record") in needed
                for name in NAME.findall(rule["expr"])
            }
        kept = {
            group["name"]: [r for r in group["rules"] if "alert" in r or r["record"] in needed]
            for file in files
            for group in file["groups"]
        }
        made = {r["record"]: name for name, own in kept.items() for r in own if "record" in r}
        rests_on = {
            name: {made[one] for r in own for one in NAME.findall(r["expr"]) if one in made}
            - {name}
            for name, own in kept.items()
        }
        order = TopologicalSorter(rests_on).static_order()
        return [{"name": name, "rules": kept[name]} for name in order if kept[name]]

    @cached_property
    def metrics(self) -> frozenset[str]:
        """The metrics that the rules may read."""
        return frozenset(METRIC.findall(json.dumps(self.groups)))


METRIC = re.compile(r"(?<![:\w])(?:up|(?:gpunode|kube|process)_\w+)\b")
NAME = re.compile(r"[a-zA-Z_][\w:]*")


def promtool_file(chosen: Mapping[str, Scenario], rules: Rules, file: Path) -> dict[str, Any]:
    """A file for promtool that expects nothing to fire, so that promtool says what does.

    ``file`` is where the rules are.
    """
    every = next(iter(chosen.values())).every
    end = max(one.lasts for one in chosen.values())
    return {
        "rule_files": [str(file)],
        "evaluation_interval": f"{every}s",
        "group_eval_order": [group["name"] for group in rules.groups],
        "tests": [
            {
                "interval": f"{every}s",
                "input_series": [
                    {"series": series, "values": values}
                    for name, one in chosen.items()
                    for series, values in Fleet(name, one).series(rules.metrics, rules.missed)
                ],
                "promql_expr_test": [
                    {"expr": FIRING, "eval_time": f"{moment}s"} for moment in range(0, end, every)
                ],
            }
        ],
    }


FIRING = 'ALERTS{alertstate="firing"}'
AT = re.compile(r"time: ((?:\d+[dhms])+),")
ALERT = re.compile(r'\{__name__="ALERTS"((?:, \w+="(?:[^"\\]|\\.)*")*)\} 1E\+00')
LABEL = re.compile(r', (\w+)="((?:[^"\\]|\\.)*)"')
SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def evaluated(chosen: Mapping[str, Scenario], rules: Rules) -> dict[str, Timeline]:
    """What fires in each scenario, from one run of promtool."""
    with tempfile.TemporaryDirectory() as folder:
        path, file = Path(folder) / "test.json", Path(folder) / "rules.json"
        file.write_text(json.dumps({"groups": rules.groups}))
        path.write_text(json.dumps(promtool_file(chosen, rules, file)))
        command = [need("promtool"), "test", "rules", str(path)]
        environment = {**os.environ, "GOGC": "400"}  # it takes memory for time
        ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    output = ran.stdout + ran.stderr
    if " err: " in output or (ran.returncode and "got:" not in output):
        raise RuntimeError(f"{', '.join(chosen)}: {output.strip()[:2000]}")
    firing: dict[str, dict[int, set[Alert]]] = {name: {} for name in chosen}
    moment = 0
    for line in output.splitlines():
        if at := AT.search(line):
            moment = _seconds(at[1])
        for labels in ALERT.findall(line) if "got:" in line else ():
            alert = dict(LABEL.findall(labels))
            del alert["alertstate"]
            own = firing.get(alert.get("cluster", ""))
            if own is not None:
                own.setdefault(moment, set()).add(frozenset(alert.items()))
    return {
        name: Timeline(
            one.every,
            tuple(
                frozenset(firing[name].get(moment, ())) for moment in range(0, one.lasts, one.every)
            ),
        )
        for name, one in chosen.items()
    }


def timelines(chosen: Mapping[str, Scenario], rules: Rules) -> dict[str, Timeline]:
    """What fires in each scenario."""
    packs = [{name: chosen[name] for name in pack} for pack in together(chosen)]
    with ProcessPoolExecutor(os.cpu_count()) as side_by_side:
        found = side_by_side.map(evaluated, packs, itertools.repeat(rules))
        return dict(item for part in found for item in part.items())


# Alertmanager


def moments(timeline: Timeline) -> Iterator[tuple[float, frozenset[Alert], frozenset[Alert]]]:
    """When what changes: seconds, what begins to fire, and what ends."""
    clock, last = 0.0, 0
    before: frozenset[Alert] = frozenset()
    for step, firing in enumerate(timeline.firing):
        if firing != before:
            clock += min((step - last) * timeline.every, STILL)
            yield clock, firing - before, before - firing
            last, before = step, firing


def hurried(routes: dict[str, Any], minute: float) -> dict[str, Any]:
    """The shipped routes, in a hurry."""
    routes = copy.deepcopy(routes)

    def hurry(route: dict[str, Any]) -> None:
        for name, least in (("group_wait", GROUP_WAIT), ("group_interval", 5 * GROUP_WAIT)):
            if name in route:
                wait = _seconds(route[name]) * minute / 60
                route[name] = f"{max(wait, least) * 1000:.0f}ms"
        if "repeat_interval" in route:
            route["repeat_interval"] = "24h"
        for child in route.get("routes", ()):
            hurry(child)

    hurry(routes["route"])
    return routes


def _seconds(duration: str) -> int:
    return sum(int(n) * SECONDS[unit] for n, unit in re.findall(r"(\d+)([dhms])", duration))


def noting(by_scenario: dict[str, Notifications]) -> Note:
    """What keeps what Alertmanager says of each scenario."""
    receivers: dict[tuple[Alert, Severity], set[str]] = {}  # that have been notified of a group

    def note(receiver: str, body: dict[str, Any]) -> None:
        group: Alert = frozenset(body["groupLabels"].items())
        worst: dict[str, Severity] = {}
        for one in body["alerts"]:
            labels, severity = one["labels"], SEVERITIES[one["labels"]["severity"]]
            if one["status"] == "firing":
                by_scenario[labels["cluster"]].alerts[severity].add(frozenset(labels.items()))
                known = worst.get(labels["cluster"], "info")
                worst[labels["cluster"]] = max(severity, known, key=RANKS.index)
            elif body["status"] == "resolved":
                receivers.get((group, severity), set()).discard(receiver)
        for name, severity in worst.items():
            own, before = by_scenario[name], receivers.setdefault((group, severity), set())
            own.messages += 1
            if severity == "page":
                own.keys.add(body["groupKey"])
            own.opened[severity] = own.opened.get(severity, 0) + (not before)
            before.add(receiver)

    return note


def notified(
    found: Mapping[str, Timeline], routes_file: Path, minute: float = MINUTE
) -> dict[str, Notifications]:
    """Whom Alertmanager notifies in each scenario; all are played at the same time."""
    by_scenario = {name: Notifications() for name in found}
    changes = sorted(
        (moment, begins, ends) for one in found.values() for moment, begins, ends in moments(one)
    )
    routes = hurried(yaml.safe_load(routes_file.read_text()), minute)
    with (
        tempfile.TemporaryDirectory() as folder,
        alertmanager(Path(folder), routes, noting(by_scenario)) as address,
    ):
        _await(f"http://{address}/-/ready")
        begin = time.monotonic()
        for moment, now in itertools.groupby(changes, key=lambda change: change[0]):
            time.sleep(max(0.0, begin + moment * minute / 60 - time.monotonic()))
            _post(f"http://{address}/api/v2/alerts", list(now))
        time.sleep(STILL / 60 * minute)
    return by_scenario


def _await(url: str) -> None:
    for _ in range(200):
        try:
            with urllib.request.urlopen(url):
                return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"{url} does not answer")


Change = tuple[float, frozenset[Alert], frozenset[Alert]]


def _post(url: str, changes: Iterable[Change]) -> None:
    now = time.time()
    alerts = [
        {
            "labels": dict(alert),
            "startsAt": _stamp(now - 1),
            "endsAt": _stamp(now + after),
        }
        for _, begins, ends in changes
        for after, which in ((3600, begins), (0, ends))
        for alert in which
    ]
    request = urllib.request.Request(
        url, json.dumps(alerts).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request):
        pass


def _stamp(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).isoformat()


# What is wrong


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a scenario."""

    name: str
    scenario: Scenario
    timeline: Timeline
    notified: Notifications

    def faults(self) -> list[str]:
        """What differs from what is wanted, with alert and minute."""
        return [*self._missed(), *self._wrong(), *self._too_many(), *self._too_few()]

    def failure(self) -> str:
        """Which of ``FAILURES`` it is; empty if exactly those who should be are notified."""
        faults = self.faults()
        if not faults:
            return ""
        few = any(fault.startswith(("missed", "late", "ends", "too few")) for fault in faults)
        return "missed" if few else "too much"

    def surprises(self) -> list[str]:
        """What differs from what is wanted and is not known to, or is known to and does not."""
        known, is_now = self.scenario.known_failure.partition(":")[0], self.failure()
        if known == is_now:
            return []
        if known and not is_now:
            return [f"is no known failure any more: take away {self.scenario.known_failure!r}"]
        return [*([f"is {is_now}, not {known}"] if known else []), *self.faults()]

    def _missed(self) -> Iterator[str]:
        spans, slack = self.timeline.spans(), self.scenario.every  # until a node is scraped
        for one in self.scenario.notified:
            alerts = [
                a for how in one.severities for a in self.notified.alerts[how] if matches(one, a)
            ]
            if not alerts:
                if not one.must:
                    continue
                yield f"missed: {one}{_instead(one, spans)}"
                continue
            first = min(spans[alert][0] for alert in alerts)
            last = max(spans[alert][1] for alert in alerts)
            if one.by is not None and first > one.by + slack:
                yield f"late: {one} at {first / 60:g}m, not by {one.by / 60:g}m"
            if one.stays is not None and last < one.stays - slack:
                yield f"ends: {one} at {last / 60:g}m, not after {one.stays / 60:g}m"
            if one.gone is not None and last >= one.gone + slack:
                yield f"stays: {one} until {last / 60:g}m, not gone at {one.gone / 60:g}m"

    def _wrong(self) -> Iterator[str]:
        spans = self.timeline.spans()
        severities: tuple[Severity, ...] = ("page", "ticket")
        for severity in severities:
            wrong: dict[str, list[Alert]] = {}
            for alert in self.notified.alerts[severity]:
                if not any(
                    severity in one.severities and matches(one, alert)
                    for one in self.scenario.notified
                ):
                    wrong.setdefault(dict(alert)["alertname"], []).append(alert)
            for name, alerts in sorted(wrong.items()):
                first = min(alerts, key=lambda alert: spans[alert][0])
                more = f" and {len(alerts) - 1} like it" if len(alerts) > 1 else ""
                at = spans[first][0] / 60
                yield f"wrong: {severity} {name} at {at:g}m: {subject(first)}{more}"

    def _too_many(self) -> Iterator[str]:
        pages = self.notified.count("page")
        if pages > self.wanted("page"):
            yield f"too many: {pages} pages, not {self.wanted('page')}"

    def _too_few(self) -> Iterator[str]:
        """Two pages in one group are one incident, and the second wakes nobody."""
        must = sum(one.must and one.severities == ("page",) for one in self.scenario.notified)
        pages = self.notified.count("page")
        if not any(self._missed()) and pages < must:
            yield f"too few: {pages} pages, not {must}"

    def wanted(self, severity: Severity) -> int:
        """How many are wanted."""
        return sum(severity in one.severities for one in self.scenario.notified)


def _instead(one: ExpectedNotification, spans: Mapping[Alert, tuple[int, int]]) -> str:
    """What came of an alert of which nobody was notified as is wanted."""
    fired = [
        (first, SEVERITIES[dict(alert)["severity"]])
        for alert, (first, _) in spans.items()
        if matches(one, alert)
    ]
    if held := [first for first, severity in fired if severity in one.severities]:
        return f" (held back; fired at {min(held) / 60:g}m)"
    if fired:
        first, severity = min(fired)
        return f" (only {severity} at {first / 60:g}m)"
    return ""


def matches(one: ExpectedNotification, alert: Alert) -> bool:
    """Whether an alert is what is wanted."""
    labels = dict(alert)
    return re.fullmatch(one.alert, labels["alertname"]) is not None and all(
        re.fullmatch(value, labels.get(name, "")) for name, value in one.labels.items()
    )


def subject(alert: Alert) -> str:
    """What an alert is about."""
    own = ("alertname", "severity", "cluster", "group", "route")
    return " ".join(f"{name}={value}" for name, value in sorted(alert) if name not in own)


def table(outcomes: Sequence[Outcome], files: Mapping[str, str]) -> str:
    """A line a scenario, with tabs: its file, what came of it, what was wanted and what differs."""
    lines = ["file\tscenario\toutcome\twanted\tdiffers"]
    for one in outcomes:
        wants = "; ".join(map(str, one.scenario.notified)) or "nobody"
        kind = one.failure() or "exact"
        lines.append("\t".join((files[one.name], one.name, kind, wants, "; ".join(one.faults()))))
    return "\n".join(lines) + "\n"


def rates(failures: Mapping[str, Sequence[str]]) -> str:
    """How many scenarios of each file are exact, as Markdown; from what fails in each of them."""
    titles = ("scenarios", "", "exact", *FAILURES)
    rows = [
        (f"`{name}.yaml`", len(own), *(own.count(kind) for kind in ("", *FAILURES)))
        for name, own in failures.items()
    ]
    columns = list(zip(*(row[1:] for row in rows), strict=True))
    rows.append(("all", *(sum(column) for column in columns)))
    lines = [titles, ("---", *["---:"] * (len(titles) - 1)), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def outcomes(
    chosen: Mapping[str, Scenario], rules: Rules, routes: Path = ALERTMANAGER
) -> list[Outcome]:
    """What comes of scenarios; Alertmanager has a second try, slowly, at those that differ."""
    found = timelines(chosen, rules)
    by_scenario = notified(found, routes)

    def judged(name: str) -> Outcome:
        return Outcome(name, chosen[name], found[name], by_scenario[name])

    wrong = {name: found[name] for name in chosen if judged(name).faults()}
    if wrong:
        by_scenario |= notified(wrong, routes, SLOWLY)
    return [judged(name) for name in chosen]


def main() -> None:
    """Print what differs; exit 1 where a scenario does and is not known to."""
    parser = argparse.ArgumentParser(prog="python -m tests.alerts.scenarios.play")
    parser.add_argument("parts", nargs="*", default=[""], help="of names of scenarios or files")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the scenarios are")
    parser.add_argument("--rules", type=Path, default=RULES, help="the folder of rules")
    parser.add_argument("--alertmanager", type=Path, default=ALERTMANAGER, help="the routes")
    parser.add_argument("--missed", type=float, default=MISSED, help="the share of missed scrapes")
    parser.add_argument("--table", type=Path, help="a file for what came of each scenario")
    arguments = parser.parse_args()
    files = {
        name: own
        for name, scenarios in by_file(arguments.folder).items()
        if (
            own := {
                n: s
                for n, s in scenarios.items()
                if any(part in f"{name}.yaml {n}" for part in arguments.parts)
            }
        )
    }
    chosen = {name: one for own in files.values() for name, one in own.items()}
    rules = Rules(arguments.rules, arguments.missed)
    found = outcomes(chosen, rules, arguments.alertmanager)
    if arguments.table:
        of = {name: file for file, own in files.items() for name in own}
        arguments.table.write_text(table(found, of))
    for one in found:
        for fault in one.faults():
            print(f"{one.name}: {fault}")
    failed = {one.name: one.failure() for one in found}
    print(rates({file: [failed[name] for name in own] for file, own in files.items()}))
    sys.exit(any(one.surprises() for one in found))


if __name__ == "__main__":
    main()
