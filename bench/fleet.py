"""A fleet before one Prometheus: 1,250 nodes of eight GPUs, with the rules as they are shipped.

One process serves every node (``tests/dashboards/fleet.py``).
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil

from bench import backfill
from bench.large_jobs import MOST_BYTES
from bench.report import Report, Result, machine
from dashboards import FOLDER as BOARDS
from dashboards.rules import FOLDER as RULES
from tests.daemon import free_port
from tests.dashboards.fleet import NODES_OF_JOB, SCRAPE, Fleet
from tests.dashboards.past import DAYS, live_through
from tests.dashboards.queries import (
    ANSWERED,
    ASK_FOR_FAULTS,
    CHOSEN,
    EMPTY,
    QueryResult,
    answers,
    asked_for,
)
from tests.prometheus.incidents import prometheus
from tests.prometheus.programs import ask, exporter

NODES = 1250
NODES_OF_RACK = 32
SERIES = "series in memory"


def query(port: int, expression: str, at: float | None = None) -> float:
    asked = urlencode({"query": expression, **({} if at is None else {"time": at})})
    result = ask(port, f"/api/v1/query?{asked}")["data"]["result"]
    return float(result[0]["value"][1]) if result else 0.0


@contextmanager
def scraped(
    one_in: int, nodes: int = NODES, *, past: bool = False, whole: bool = False
) -> Iterator[tuple[subprocess.Popen[bytes], int, Path]]:
    """A Prometheus that scrapes a fleet of whose jobs one in so many is in trouble.

    Its port, and the folder in which it keeps its samples.
    """
    with tempfile.TemporaryDirectory() as name, exporter(Fleet(one_in, whole=whole).text) as own:
        folder = Path(name)
        port = free_port()
        targets = [
            {
                "targets": [f"127.0.0.1:{own}"],
                "labels": {
                    "__param_node": str(at),
                    "instance": f"node-{at}",
                    "cluster": "fleet",
                    "rack": f"r{at // NODES_OF_RACK}",
                },
            }
            for at in range(nodes)
        ]
        config = {
            "global": {"scrape_interval": f"{SCRAPE}s", "scrape_timeout": "20s"},
            "rule_files": [str(path) for path in RULES.glob("*.yaml")],
            "scrape_configs": [{"job_name": "gpunode", "static_configs": targets}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        if past:
            live_through(folder, "fleet", nodes // NODES_OF_JOB // 2)
        with prometheus(folder, port, "--storage.tsdb.retention.time=90d") as child:
            yield child, port, folder


def evaluated(port: int, seconds: float) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """The groups of rules of a Prometheus, and the longest evaluation of each for so long.

    And of each rule, by the group and its name.
    """
    slowest: dict[str, float] = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(10.0)
        groups = ask(port, "/api/v1/rules")["data"]["groups"]
        for group in groups:
            for name, one in (
                (group["name"], group),
                *((f"{group['name']}: {rule['name']}", rule) for rule in group["rules"]),
            ):
                slowest[name] = max(one["evaluationTime"], slowest.get(name, 0.0))
    return groups, slowest


RULES_TOLD = 20
"""The rules that take most, of which the figures are told one by one."""


def _that_take_most(slowest: Mapping[str, float]) -> list[str]:
    rules = (name for name in slowest if ": " in name)
    return sorted(rules, key=lambda name: -slowest[name])[:RULES_TOLD]


def in_time(groups: Sequence[dict[str, Any]], slowest: Mapping[str, float]) -> Result:
    """Whether the group that takes most of its interval leaves half of it."""
    worst = max(groups, key=lambda group: slowest[group["name"]] / group["interval"])
    share = slowest[worst["name"]] / worst["interval"]
    return Result(
        f"slowest group ({worst['name']}), longest evaluation as a share of its interval",
        f"{share:.0%}",
        "≤ 50 %",
        share <= 0.5,
    )


def run(seconds: float, one_in: int) -> Report:
    """Scrape a fleet for so long, and see what Prometheus takes for it."""
    with scraped(one_in) as (child, port, _):
        groups, slowest = evaluated(port, seconds)
        process = psutil.Process(child.pid)
        resident = process.memory_info().rss / 2**30
        cpu = process.cpu_times()
        series = ask(port, "/api/v1/status/tsdb")["data"]["headStats"]["numSeries"]
        up = query(port, "sum(up)")
        version = ask(port, "/api/v1/status/buildinfo")["data"]["version"]
        firing = query(port, 'count(ALERTS{alertstate="firing"})')
    used = (cpu.user + cpu.system) / seconds
    return Report(
        "A fleet before one Prometheus",
        machine(),
        f"{NODES} nodes of 8 GPUs, {NODES_OF_JOB} of them a job, one job in {one_in} playing a "
        f"recorded incident, scraped every {SCRAPE} s for {seconds:.0f} s by one Prometheus "
        f"{version} that evaluates the shipped "
        "rules; the process that plays the nodes runs on the same machine.",
        [
            Result("nodes up", f"{up:.0f}", f"{NODES}", up == NODES),
            Result(SERIES, f"{series:,}"),
            Result("memory of Prometheus", f"{resident:.1f} GiB"),
            Result("cores of Prometheus", f"{used:.2f}", "≤ 2", used <= 2),
            Result("alerts firing", f"{firing:,.0f}"),
            in_time(groups, slowest),
        ],
        [
            f"{group['name']}: {slowest[group['name']]:.2f} s at most, every "
            f"{group['interval']:.0f} s, {len(group['rules'])} rules"
            for group in groups
        ]
        + [f"{name}: {slowest[name]:.2f} s at most" for name in _that_take_most(slowest)],
    )


ABOUT = {"$job": "train-50", "$hosts": "node-(200|201|202|203)"}
ONE = {**ABOUT, "$node": "node-200"}
"""A job in trouble, and a node with a fault: what is well has less to tell."""

MIN_NODES = 204
"""Nodes of the smallest fleet that has them."""

LOADS_IN = 2.0

DASHBOARDS: dict[str, tuple[dict[str, str], float]] = {
    "gpunode-fleet": ({}, LOADS_IN),
    "gpunode-health": ({}, LOADS_IN),
    "gpunode-capacity": ({}, 3.0),
    "gpunode-job": (ABOUT, LOADS_IN),
    "gpunode-node": (ONE, LOADS_IN),
    "gpunode-host": (ONE, LOADS_IN),
    "gpunode-gpu": ({**ONE, "$gpu": "3"}, LOADS_IN),
    "gpunode-serving": (ABOUT, LOADS_IN),
}
"""What is selected on each, and the seconds in which it must load."""

POINTS = 500
"""As many as a graph has in half the width of a screen."""


def default_range(uid: str) -> float:
    """The seconds that a dashboard shows when it is opened."""
    begin = json.loads((BOARDS / f"{uid}.json").read_text())["time"]["from"]
    found = re.fullmatch(r"now-(\d+)([hd])", begin)
    if found is None:
        raise ValueError(f"{uid}: {begin} is no time in hours or days")
    return float(found[1]) * {"h": 3600.0, "d": 86400.0}[found[2]]


def judged(uid: str, found: Sequence[QueryResult], limit: float) -> Result:
    """Whether a dashboard loads in time, with few bytes, and enough of its queries find something.

    None may fail.
    """
    took = sorted(one.seconds for one in found)
    size = sum(one.size for one in found)
    errors = [one.error for one in found if one.error]
    able = [one for one in found if (one.uid, one.panel, one.letter) not in EMPTY]
    answered = sum(bool(one.series) for one in able)
    enough = uid in ASK_FOR_FAULTS or answered >= ANSWERED * len(able)
    figures = (
        f"{sum(took):.2f} s, {size / 1e6:.2f} MB; median {statistics.median(took) * 1e3:.0f} ms, "
        f"p95 {took[int(0.95 * len(took))] * 1e3:.0f} ms, {answered} of the {len(able)} that can "
        "on such a fleet find something"
    )
    target = f"≤ {limit:g} s, ≤ {MOST_BYTES / 1e6:g} MB" + (
        "" if uid in ASK_FOR_FAULTS else f"; {ANSWERED:.0%} find something"
    )
    return Result(
        f"{uid}, {default_range(uid) / 3600:g} h, {len(took)} queries one after the other",
        errors[0] if errors else figures,
        target,
        not errors and sum(took) <= limit and size <= MOST_BYTES and enough,
    )


def dashboards(seconds: float, nodes: int = NODES) -> Report:
    """How long Prometheus takes for all queries of each dashboard, over its default range."""
    results, details = [], []
    longest = max(default_range(uid) for uid in DASHBOARDS if uid not in LOOK_BACK_FAR)
    with scraped(10, nodes, past=True, whole=True) as (_, port, folder):
        time.sleep(seconds)
        address = f"http://127.0.0.1:{port}"
        backfill.lived_before(address, folder, longest, _wanted())
        for uid in sorted(path.stem for path in BOARDS.glob("*.json")):
            selected, limit = DASHBOARDS[uid]
            since = default_range(uid)
            ranges = {"$__range": f"{since:.0f}s", "$__rate_interval": "2m"}
            chosen = {**CHOSEN, **ranges, **selected}
            found = list(answers(address, chosen, uid, since, POINTS))
            results.append(judged(uid, found, limit))
            details += [
                f"{uid}: {one.panel}: {one.letter}: {one.seconds * 1e3:.0f} ms, {one.series} series"
                for one in found
            ]
    return Report(
        "Dashboards of a fleet",
        machine(),
        f"{nodes} nodes of 8 GPUs, scraped for {seconds:.0f} s, with {longest / 3600:g} h before "
        f"of what they ask for, a sample every {backfill.STEP} s, and {DAYS} days of what is "
        f"recorded once an hour of {nodes // NODES_OF_JOB} jobs. Every job uses the training "
        "client, NCCL, InfiniBand and a shared filesystem. Each dashboard asks for "
        f"{POINTS} points of its default range: of everything, or of one job, node or "
        "GPU if it is about one. Health asks for what is broken.",
        results,
        details,
    )


LOOK_BACK_FAR = {"gpunode-capacity"}
"""Dashboards of weeks, which ask for what is recorded once an hour."""


def _wanted() -> list[str]:
    """Selectors of what has a past: all that boards of a fleet ask for, and the rest of one job."""
    of_fleet, of_few = set[str](), set[str]()
    for uid, (selected, _) in DASHBOARDS.items():
        if uid not in LOOK_BACK_FAR:
            (of_few if selected else of_fleet).update(asked_for(uid))
    nodes = f'instance=~"|{ABOUT["$hosts"]}"'
    return [*sorted(of_fleet), *(f"{name}{{{nodes}}}" for name in sorted(of_few - of_fleet))]


def rules(seconds: float) -> Report:
    """What the rules cost where one job in ten is in trouble, and where all are."""
    report, in_trouble = run(seconds, 10), run(seconds, 1)
    everywhere = "every node in trouble"
    return replace(
        report,
        results=[
            *report.results,
            *(
                replace(one, what=f"{everywhere}: {one.what}")
                for one in in_trouble.results
                if one.what != SERIES
            ),
        ],
        details=[*report.details, *(f"{everywhere}: {line}" for line in in_trouble.details)],
    )


def main() -> None:
    """Measure, and write the figures of docs/performance.md."""
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=900.0, help="for each fleet")
    parser.add_argument("--only", choices=("boards", "rules"), help="measure only these")
    parser.add_argument(
        "--nodes",
        type=int,
        help=f"print what the dashboards take of a smaller fleet, of {MIN_NODES} nodes or more",
    )
    arguments = parser.parse_args()
    if arguments.nodes:
        if arguments.nodes < MIN_NODES:
            parser.error(f"--nodes: the dashboards ask about a job on nodes below {MIN_NODES}")
        dashboards(min(arguments.seconds, 300.0), arguments.nodes).print()
        return
    reports = []
    if arguments.only != "rules":
        reports.append(("15-dashboards", dashboards(min(arguments.seconds, 300.0))))
    if arguments.only != "boards":
        reports.append(("12-fleet", rules(arguments.seconds)))
    for name, report in reports:
        report.publish(name)
        report.print()


if __name__ == "__main__":
    main()
