"""The one engine above the shards of a fleet: what it takes at up to ten thousand nodes.

A small fleet plays the recorded incidents before a shard, which evaluates the rules for nodes.
What the shard hands on is told many times over, each time as nodes, GPUs, jobs and teams of their
own, to the engine that evaluates the rules over all nodes: as many series as so many nodes have,
which change as theirs do.

python -m tests.bench.above_shards NODES…
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlparse
from urllib.request import urlopen

import psutil

from alerts.rule_files import handed_on
from tests.bench.fleet import NODES_OF_JOB, SCRAPE, evaluated, in_time, query, scraped
from tests.bench.incidents import RULES, prometheus
from tests.bench.programs import ask, exporter
from tests.bench.report import DOCS, Report, Result, machine, render
from tests.daemon import free_port

OF_SHARD = 40 * NODES_OF_JOB
"""Nodes of the small fleet: 40 jobs."""

OF_FLEETS = 1250
"""Nodes that the published shard has."""

OWN = re.compile(r'((?:GPU-\d|node|train|team)-\d+)(?=[-"|])')
"""What a copy of the small fleet has by names of its own."""

COPY = "@COPY@"


class HandedOn:
    """Tells what the shard hands on, as copy ``?copy=N`` of the small fleet."""

    def __init__(self, shard: int) -> None:
        names = "|".join([*handed_on(), "up"])
        self._asked = f"http://127.0.0.1:{shard}/federate?" + urlencode(
            {"match[]": f'{{__name__=~"{names}"}}'}
        )
        self._read = 0.0
        self._pattern = ""

    def text(self, path: str) -> bytes:
        """All series of a copy."""
        now = time.monotonic()
        if now - self._read >= SCRAPE / 2:
            self._read = now
            with urlopen(self._asked, timeout=SCRAPE) as answer:
                told = answer.read().decode()
            lines = (line.rpartition(" ")[0] for line in told.splitlines() if line[:1] != "#")
            self._pattern = OWN.sub(rf"\1x{COPY}", "\n".join([*lines, ""]))
        copy = parse_qs(urlparse(path).query)["copy"][0]
        return self._pattern.replace(COPY, copy).encode()


@contextmanager
def above(copies: int, own: int) -> Iterator[tuple[psutil.Process, int]]:
    """A Prometheus that is told so many copies, and evaluates the rules over all nodes."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        targets = [
            {
                "targets": [f"127.0.0.1:{own}"],
                "labels": {"__param_copy": str(copy), "shard": str(copy)},
            }
            for copy in range(copies)
        ]
        times = {"scrape_interval": f"{SCRAPE}s", "scrape_timeout": f"{SCRAPE}s"}
        scrape = {"job_name": "shards", "honor_labels": True, "static_configs": targets}
        scrape["metric_relabel_configs"] = [{"regex": "shard", "action": "labeldrop"}]
        config = {
            "global": times,
            "rule_files": [str(path) for path in RULES.glob("cluster_*.yaml")],
            "scrape_configs": [scrape],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        with prometheus(folder, port) as child:
            yield psutil.Process(child.pid), port


def measured(nodes: int, one_in: int, seconds: float) -> tuple[list[Result], list[str]]:
    """What the engine above so many nodes takes for so long."""
    copies = round(nodes / OF_SHARD)
    with (
        scraped(one_in, OF_SHARD, whole=True) as (_, shard, _),
        exporter(HandedOn(shard).text) as own,
    ):
        time.sleep(4 * SCRAPE)
        with above(copies, own) as (engine, port):
            time.sleep(2 * SCRAPE)
            begin, before = time.monotonic(), engine.cpu_times()
            groups, slowest = evaluated(port, seconds)
            took, after = time.monotonic() - begin, engine.cpu_times()
            resident = engine.memory_info().rss / 2**30
            cores = (after.user + after.system - before.user - before.system) / took
            series = ask(port, "/api/v1/status/tsdb")["data"]["headStats"]["numSeries"]
            up = query(port, 'sum(up{job="gpunode"})')
            rules = sorted(
                ((rule["evaluationTime"], rule["name"]) for one in groups for rule in one["rules"]),
                reverse=True,
            )
    which = "every node in trouble" if one_in == 1 else "at rest"
    of = f"{up:,.0f} nodes, {which}: "
    slowest_group = in_time(groups, slowest)
    results = [
        Result(
            f"{of}series, memory and cores of the engine",
            f"{series:,}, {resident:.1f} GiB, {cores:.2f}",
            "",
            up == copies * OF_SHARD,
        ),
        replace(slowest_group, what=of + slowest_group.what),
    ]
    details = [
        f"{nodes} nodes, {which}: {name}: {took:.2f} s at most"
        for name, took in sorted(slowest.items(), key=lambda one: -one[1])
    ]
    details += [f"{nodes} nodes, {which}: {name}: {took:.2f} s" for took, name in rules[:12]]
    return results, details


def report(sizes: Sequence[int], seconds: float) -> Report:
    """At rest, which is one job in ten in trouble, and with every node in trouble."""
    found = [measured(nodes, one_in, seconds) for nodes in sizes for one_in in (10, 1)]
    return Report(
        "The engine above all shards",
        machine(),
        f"What shards hand on, told by a generator that multiplies {OF_SHARD} nodes of 8 GPUs, "
        f"scraped every {SCRAPE} s for {seconds:.0f} s by one Prometheus that evaluates "
        "`cluster_*.yaml`; the generator and its shard run on the same machine.",
        [result for results, _ in found for result in results],
        [line for _, details in found for line in details],
    )


def main() -> None:
    """Measure, and write the figures of docs/performance.md."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.above_shards", description=__doc__)
    parser.add_argument("nodes", nargs="*", type=int, default=[OF_FLEETS, 10_000])
    parser.add_argument("--seconds", type=float, default=600.0, help="for each fleet")
    parser.add_argument("--print", action="store_true", help="do not write the figures")
    arguments = parser.parse_args()
    found = report(arguments.nodes, arguments.seconds)
    found.print()
    if not arguments.print:
        found.save("33-above-shards", DOCS / "performance")
        (DOCS / "performance.md").write_text(render())


if __name__ == "__main__":
    main()
