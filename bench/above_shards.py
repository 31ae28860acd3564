"""The one engine above the shards of a fleet: what it takes at up to ten thousand nodes.

Two small fleets play recorded incidents before a shard each, which evaluates the rules for nodes:
one with some jobs in trouble, one with all. What a shard hands on is told many times over, each
time as nodes, GPUs, jobs and teams of their own, to the engine that evaluates the rules over all
nodes: as many series as so many nodes have, which change as theirs do. First the fleet is at rest,
and one job comes to stand still; then every node is in trouble; then the engine is killed and
starts again.

python -m bench.above_shards --engine prometheus|victoriametrics NODES…
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args
from urllib.error import URLError
from urllib.parse import parse_qs, urlencode, urlparse
from urllib.request import urlopen

import psutil

from bench.fleet import query, scraped
from bench.report import Report, Result, machine
from dashboards.queries import METRIC
from dashboards.rules import FOLDER, alerts, records
from tests.alerts.shards import OVER_ALL, PROMETHEUS, VICTORIA, example, options
from tests.daemon import free_ports
from tests.dashboards.fleet import NODES_OF_JOB, SCRAPE
from tests.prometheus.incidents import Engine, prometheus_command
from tests.prometheus.programs import Command, ask, exporter, need, webhook
from tests.prometheus.shipped import groups

OF_SHARD = 40 * NODES_OF_JOB
"""Nodes of a small fleet: 40 jobs."""

AT_REST = 10
"""One job in so many is in trouble where the fleet is at rest."""

VICTIM = 21
"""The job of a small fleet that comes to stand still: a healthy one."""

WARM = 5 * SCRAPE
"""Seconds until the shards have recorded what they hand on."""

SETTLED = 8 * SCRAPE
"""Seconds until the engine has evaluated every group, and so has made the series that it records,
which takes longer than to add to them."""

OWN = re.compile(r'((?:GPU-\d|node|train|team)-\d+)(?=[-"|])|(?<=")(r\d+)(?=")')
"""What a copy of the small fleet has by names of its own."""

COPY = "@COPY@"
STREAK = "gpunode_gpu_blocked_streak_seconds"
WORKLESS = "gpunode_job_workless_seconds"
MAX_SCRAPE_BYTES = 256 << 20
"""Bytes of what a copy tells, beyond what VictoriaMetrics takes by default."""

STARTS_WITHIN = 600.0
PAGES_WITHIN = 240.0
HANDS_ON = 250
"""Series of a node of which all jobs tell all that they can, at most."""


def handed_on() -> set[str]:
    """What the rules ask of nodes: they are evaluated above the shards, which only scrape."""
    asked = " ".join((*records().values(), *(alert.expression for alert in alerts())))
    return {found[1] for found in METRIC.finditer(asked)} - records().keys()


class HandedOn:
    """Tells what the shards hand on, as copy ``?copy=N`` of the small fleet."""

    def __init__(self, at_rest: int, in_trouble: int) -> None:
        names = "|".join([*handed_on(), "up"])
        asked = urlencode({"match[]": f'{{__name__=~"{names}"}}'})
        self._asked = [
            f"http://127.0.0.1:{port}/federate?{asked}" for port in (at_rest, in_trouble)
        ]
        self._lock = threading.Lock()
        self._read = 0.0
        self._pattern = ""
        self.trouble = False
        self.stands_since: float | None = None
        """When a job of the first copy came to stand still, as Unix time."""

    def text(self, path: str) -> bytes:
        """All series of a copy."""
        with self._lock:
            now = time.monotonic()
            if now - self._read >= SCRAPE / 2:
                self._pattern = self._told()
                self._read = now
            pattern = self._pattern
        copy = parse_qs(urlparse(path).query)["copy"][0]
        told = pattern.replace(COPY, copy)
        return (self._standing(told) if copy == "0" else told).encode()

    def _told(self) -> str:
        with urlopen(self._asked[self.trouble], timeout=SCRAPE) as answer:
            told = answer.read().decode()
        lines = (line.rpartition(" ")[0] for line in told.splitlines() if line[:1] != "#")
        return OWN.sub(rf"\1\2x{COPY}", "\n".join([*lines, ""]))

    def _standing(self, told: str) -> str:
        """The page once every GPU of a job does nothing but wait in a collective."""
        if self.stands_since is None:
            return told
        stands = time.time() - self.stands_since
        first = VICTIM * NODES_OF_JOB
        nodes = tuple(f'instance="node-{first + n}x0"' for n in range(NODES_OF_JOB))
        lines = []
        for line in told.splitlines():
            if not (line.startswith((STREAK, WORKLESS)) and any(node in line for node in nodes)):
                lines.append(line)
            elif line.startswith(STREAK):
                series = line.rpartition(" ")[0]
                lines.append(f"{series} {stands}")
                lines.append(f"{series.replace(STREAK, WORKLESS)} {stands}")
        return "\n".join([*lines, ""])


@dataclass(slots=True)
class PageTime:
    """When the engine has told Alertmanager of the job that stands still."""

    at: list[float] = field(default_factory=list)

    def note(self, _: str, alerts: Any) -> None:
        for alert in alerts:
            labels = alert["labels"]
            if (labels["alertname"], labels["severity"]) == ("JobStalled", "page") and labels[
                "workload"
            ] == f"train-{VICTIM}x0":
                self.at.append(time.time())

    def after(self, moment: float, within: float) -> float | None:
        """Seconds from a moment until it is told the next time, if that is soon enough."""
        while time.time() < moment + within:
            if later := [at for at in self.at if at > moment]:
                return later[0] - moment
            time.sleep(1.0)
        return None


@dataclass(frozen=True, slots=True)
class Group:
    """A group of rules."""

    name: str
    interval: float
    took: float
    """Seconds that its last, or its longest, evaluation took."""


@dataclass(slots=True)
class Above:
    """The engine above the shards: its programs, and where it is asked."""

    engine: Engine
    folder: Path
    store: int
    rules: int
    targets: list[dict[str, Any]]
    hook: int
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> float:
        """Start its programs; the seconds until they answer and rules are evaluated."""
        begin = time.monotonic()
        if self.engine == "prometheus":
            self._configure()
        for number, command in enumerate(self._commands()):
            log = (self.folder / f"{number}.log").open("ab")
            self.running.append(subprocess.Popen(command, stdout=log, stderr=log))
            ready = "/-/ready" if self.engine == "prometheus" else "/health"
            self._wait(self.store if not number else self.rules, ready)
        return time.monotonic() - begin

    def kill(self) -> None:
        """End its programs as a node does that loses power."""
        for child in self.running:
            child.kill()
            child.wait()
        self.running.clear()

    def used(self) -> tuple[float, float]:
        """CPU seconds so far, and resident GiB."""
        processes = [psutil.Process(child.pid) for child in self.running]
        times = [process.cpu_times() for process in processes]
        resident = sum(process.memory_info().rss for process in processes)
        return sum(each.user + each.system for each in times), resident / 2**30

    def series(self) -> int:
        """Series that it holds, what it records included."""
        status = ask(self.store, "/api/v1/status/tsdb")["data"]
        prometheus = self.engine == "prometheus"
        return int(status["headStats"]["numSeries"] if prometheus else status["totalSeries"])

    def groups(self) -> list[Group]:
        """The groups of rules."""
        if self.engine == "prometheus":
            told = ask(self.rules, "/api/v1/rules")["data"]["groups"]
            return [Group(one["name"], one["interval"], one["evaluationTime"]) for one in told]
        with urlopen(f"http://127.0.0.1:{self.rules}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        found = re.findall(
            r'^vmalert_iteration_duration_seconds{group="([^"]+)",[^}]*quantile="1"} (\S+)',
            text,
            re.MULTILINE,
        )
        return [Group(name, groups()[name], float(took)) for name, took in found]

    def rules_that_take_most(self) -> list[tuple[float, str]]:
        """The evaluation times of rules."""
        told = ask(self.rules, "/api/v1/rules")["data"]["groups"]
        times = ((rule["evaluationTime"], rule["name"]) for one in told for rule in one["rules"])
        return sorted(times, reverse=True)[:24]

    def _wait(self, port: int, path: str) -> None:
        deadline = time.monotonic() + STARTS_WITHIN
        while time.monotonic() < deadline:
            try:
                with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5):
                    return
            except (URLError, OSError):
                time.sleep(0.2)
        raise RuntimeError(f"{self.engine} is not ready after {STARTS_WITHIN:g} s")

    def _scrapes(self) -> dict[str, Any]:
        times = {"scrape_interval": f"{SCRAPE}s", "scrape_timeout": f"{SCRAPE}s"}
        scrape: dict[str, Any] = {
            "job_name": "shards",
            "honor_labels": True,
            "static_configs": self.targets,
            "metric_relabel_configs": [{"regex": "shard", "action": "labeldrop"}],
        }
        return {"global": times, "scrape_configs": [scrape]}

    def _configure(self) -> None:
        managers = [{"static_configs": [{"targets": [f"127.0.0.1:{self.hook}"]}]}]
        config = {
            **self._scrapes(),
            "rule_files": [str(path) for path in FOLDER.glob("*.yaml")],
            "alerting": {"alertmanagers": managers},
            "runtime": {"gogc": example(PROMETHEUS, "Prometheus", OVER_ALL)["runtime"]["goGC"]},
        }
        (self.folder / "prometheus.yml").write_text(json.dumps(config))

    def _commands(self) -> list[Command]:
        if self.engine == "prometheus":
            return [prometheus_command(self.folder, self.store)]
        store = f"http://127.0.0.1:{self.store}"
        (self.folder / "scrape.yml").write_text(json.dumps(self._scrapes()))
        (self.folder / "relabel.yaml").write_text(example(VICTORIA, "ConfigMap")["relabel.yaml"])
        return [
            [
                need("victoria-metrics"),
                f"-promscrape.config={self.folder}/scrape.yml",
                f"-storageDataPath={self.folder}/vm",
                f"-httpListenAddr=127.0.0.1:{self.store}",
                f"-promscrape.maxScrapeSize={MAX_SCRAPE_BYTES}",
                *options("VMSingle", relabelConfig=f"{self.folder}/relabel.yaml"),
            ],
            [
                need("vmalert"),
                f"-rule={FOLDER}/*.yaml",
                f"-datasource.url={store}",
                f"-remoteRead.url={store}",
                f"-remoteWrite.url={store}",
                f"-notifier.url=http://127.0.0.1:{self.hook}",
                f"-httpListenAddr=127.0.0.1:{self.rules}",
                *options("VMAlert"),
            ],
        ]


@contextmanager
def above(engine: Engine, copies: int, own: int, paged: PageTime) -> Iterator[Above]:
    """An engine that is told so many copies, and evaluates the rules over all nodes."""
    with tempfile.TemporaryDirectory() as name, webhook(paged.note) as hook:
        store, alerts = free_ports(2)
        rules = store if engine == "prometheus" else alerts
        targets = [
            {
                "targets": [f"127.0.0.1:{own}"],
                "labels": {"__param_copy": str(copy), "shard": str(copy)},
            }
            for copy in range(copies)
        ]
        found = Above(engine, Path(name), store, rules, targets, hook)
        try:
            found.start()
            yield found
        finally:
            found.kill()


@dataclass(frozen=True, slots=True)
class Taken:
    """What the engine takes for some minutes."""

    series: int
    resident: float
    cores: float
    slowest: Group

    @property
    def share(self) -> float:
        return self.slowest.took / self.slowest.interval


def watched(engine: Above, lasts: float) -> tuple[Taken, dict[str, Group]]:
    """What the engine takes for so long, and the longest evaluation of each group."""
    begin, (before, resident) = time.monotonic(), engine.used()
    slowest: dict[str, Group] = {}
    while time.monotonic() < begin + lasts:
        time.sleep(5.0)
        for group in engine.groups():
            if group.took >= slowest.get(group.name, group).took:
                slowest[group.name] = group
        resident = max(resident, engine.used()[1])
    cores = (engine.used()[0] - before) / (time.monotonic() - begin)
    worst = max(slowest.values(), key=lambda group: group.took / group.interval)
    return Taken(engine.series(), resident, cores, worst), slowest


def measured(engine: Engine, nodes: int, lasts: float) -> tuple[list[Result], list[str]]:
    """What an engine above so many nodes takes: at rest and in trouble for so long each."""
    copies = max(1, round(nodes / OF_SHARD))
    paged = PageTime()
    with ExitStack() as stack:
        _, at_rest, _ = stack.enter_context(scraped(AT_REST, OF_SHARD, whole=True))
        _, in_trouble, _ = stack.enter_context(scraped(1, OF_SHARD, whole=True))
        told = HandedOn(at_rest, in_trouble)
        own = stack.enter_context(exporter(told.text))
        time.sleep(WARM)
        over = stack.enter_context(above(engine, copies, own, paged))
        time.sleep(SETTLED)
        told.stands_since = time.time()
        rest, slowest = watched(over, lasts)
        delay = paged.after(told.stands_since, max(lasts, PAGES_WITHIN))
        seen = query(over.store, 'sum(up{job="gpunode"})')
        handed = len(told.text("/?copy=0").splitlines()) / OF_SHARD
        told.trouble = True
        time.sleep(2 * SCRAPE)
        trouble, slowest_in_trouble = watched(over, lasts)
        rules = over.rules_that_take_most()
        killed = time.time()
        over.kill()
        ready = over.start()
        again = paged.after(killed, STARTS_WITHIN / 2)
    size = f"{copies * OF_SHARD:,} nodes, {engine}"
    results = [
        Result(
            f"{size}: series that a node hands on", f"{handed:.0f}", "≤ 250", handed <= HANDS_ON
        ),
        *(
            result
            for what, taken in (("at rest", rest), ("every node in trouble", trouble))
            for result in (
                Result(
                    f"{size}, {what}: series, memory and cores",
                    f"{taken.series:,}, {taken.resident:.1f} GiB, {taken.cores:.2f}",
                    "",
                    seen == copies * OF_SHARD,
                ),
                Result(
                    f"{size}, {what}: slowest group ({taken.slowest.name}), longest evaluation as "
                    "a share of its interval",
                    f"{taken.share:.0%}",
                    "≤ 50 %",
                    taken.share <= 0.5,
                ),
            )
        ),
        Result(
            f"{size}: from the moment a job stands still to the page at Alertmanager",
            "none" if delay is None else f"{delay:.0f} s",
            "≤ 120 s",
            delay is not None and delay <= 120.0,
        ),
        Result(
            f"{size}: killed, until it answers, and until it says again what it paged for",
            f"{ready:.0f} s, " + ("never" if again is None else f"{again:.0f} s"),
            "≤ 240 s",
            again is not None and again <= 240.0,
        ),
    ]
    details = [
        f"{size}, {what}: {group.name}: {group.took:.2f} s at most of {group.interval:.0f} s"
        for what, groups in (("at rest", slowest), ("in trouble", slowest_in_trouble))
        for group in sorted(groups.values(), key=lambda one: -one.took)
    ]
    details += [f"{size}, in trouble: {name}: {took:.2f} s" for took, name in rules]
    return results, details


def report(engine: Engine, sizes: Sequence[int], lasts: float) -> Report:
    """What an engine takes above fleets of these sizes."""
    found = [measured(engine, nodes, lasts) for nodes in sizes]
    programs = PROGRAMS[engine]
    return Report(
        f"The engine above all shards: {programs}",
        machine(),
        f"What shards hand on, told by a generator that multiplies {OF_SHARD} nodes of 8 GPUs "
        f"whose jobs tell all that they can, scraped every {SCRAPE} s by {programs}, which "
        f"evaluates the rules: for {lasts:.0f} s with one job in {AT_REST} in trouble, and "
        "as long with every node in trouble. The generator and its shards run on the same machine.",
        [result for results, _ in found for result in results],
        [line for _, details in found for line in details],
    )


PROGRAMS: Mapping[Engine, str] = {
    "prometheus": "Prometheus",
    "victoriametrics": "VictoriaMetrics and vmalert",
}
RESULT: Mapping[Engine, str] = {
    "prometheus": "34-above-shards",
    "victoriametrics": "35-above-shards-victoriametrics",
}


def main() -> None:
    """Measure, and write the figures of docs/performance.md."""
    parser = argparse.ArgumentParser(prog="python -m bench.above_shards", description=__doc__)
    parser.add_argument("nodes", nargs="*", type=int, default=[10_000])
    parser.add_argument("--engine", choices=get_args(Engine), default="prometheus")
    parser.add_argument("--seconds", type=float, default=120.0, help="at rest, and in trouble")
    parser.add_argument("--print", action="store_true", help="do not write the figures")
    arguments = parser.parse_args()
    found = report(arguments.engine, arguments.nodes, arguments.seconds)
    found.print()
    if not arguments.print:
        found.publish(RESULT[arguments.engine])


if __name__ == "__main__":
    main()
