"""Every query of every dashboard, to a real Prometheus that has scraped the recorded incidents.

The daemon replays them, Prometheus evaluates the shipped rules in a hurry, and each panel must find
something or be known to need what there is not. With ``--stay``, Prometheus goes on until Ctrl-C,
for a look at the dashboards in Grafana.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dashboards import FOLDER
from dashboards.boards.job import SHOWN
from dashboards.causes import HELD_UP
from dashboards.panels import NONE_OF, SAY_SO
from dashboards.queries import METRIC, STRING
from dashboards.rules import FOLDER as RULES
from tests.daemon import Daemon, free_port, free_ports
from tests.dashboards.examples import served
from tests.dashboards.past import live_through
from tests.prometheus.incidents import prometheus_command, replay, shortened
from tests.prometheus.programs import program

TAPES = ("starved", "h200_shm", "h200_hang", "straggler", "comm_nop2p", "h200_storage", "healthy")
"""Incidents that between them fill what tapes can fill."""

SWINGS = "Compute: power swings"
SLOWDOWN = "Compute: slowdown"
PRESSURE = "I/O: pressure"
SHM = "I/O: /dev/shm of the node and of each pod"
SILENT = "I/O: filesystems that fail"
PEERS = "Communication: GPUs wait or move data"
WALK: Mapping[str, tuple[str, frozenset[str]]] = {
    "starved": ("unexplained", frozenset({SWINGS})),
    "h200_shm": ("shm", frozenset({SWINGS, SHM})),
    "h200_hang": ("stalled_collective", frozenset({PEERS})),
    "straggler": ("straggler", frozenset({PEERS, SWINGS})),
    "comm_nop2p": ("communication", frozenset({PEERS})),
    "h200_storage": ("data_loading_storage", frozenset({SWINGS, PRESSURE})),
    "healthy": ("none", frozenset()),
    "broken": ("gpu_lost", frozenset({SLOWDOWN})),
    "faulty": ("", frozenset({SILENT})),
}
"""What the node's dashboard shows of an incident: a cause on a GPU's row at the top, and which of
these panels cross their lines. The last two are examples."""

ANSWERED = 0.8
"""The share of its queries that must find something, or the seconds of a dashboard say little."""

ASK_FOR_FAULTS = {
    "gpunode-health": "its panels find something where something is broken, as in the examples of "
    "the rules, where they do",
}
"""Dashboards of which a fleet at work answers no share, and why: asked of the examples only."""

CLUSTER = "demo"
SINCE = 60
"""Seconds that a graph shows here."""

CHOSEN: Mapping[str, str] = {
    "$__rate_interval": "30s",
    "$__range": f"{SINCE}s",
    "$price": "2.5",
    "$budget": "100",
    "$cluster": ".*",
    "${namespace:pipe}": ".*",
    "$job": ".*",
    "$node": ".*",
    "$hosts": ".*",
    "$user": ".*",
    "$gpu": ".*",
}

EVERY_JOB: Mapping[str, str] = {**CHOSEN, f"topk ({SHOWN}, ": "topk (10000, "}
"""All jobs as if they were one, of whose ranks a graph shows the first."""

SERVING = {
    **dict.fromkeys(("1st token late", "Tokens late", "Waiting", "KV cache"), "A"),
    **dict.fromkeys(("Joule/token", "Requests", "Batch"), "A"),
    "Replicas": "ABCD",
    **dict.fromkeys(("Tokens", "KV cache and preemptions"), "AB"),
    "Stands still": "A",
    "Time to the first token": "ABC",
    "Decoding and whole answers": "ABC",
    "Instances by role": "ABC",
    "KV cache between instances": "A",
}
"""The queries about engines, of which the incidents have none."""

EMPTY: Mapping[tuple[str, str, str], str] = {
    ("gpunode-fleet", "Useful share, week on week", "B"): "a week of series",
    ("gpunode-health", "Exporters lost", "A"): "an exporter that went down",
    ("gpunode-health", "Scrapes", "B"): "an exporter that went down",
    ("gpunode-health", "Ports", "A"): "a port that went down while Prometheus ran",
    ("gpunode-gpu", "Shared through MPS", "A"): "a GPU that is shared through MPS",
    ("gpunode-gpu", "Collectives", "A"): "a job with NCCL's Inspector",
    **{
        ("gpunode-serving", title, target): "a server whose engine tells its metrics"
        for title, targets in SERVING.items()
        for target in targets
    },
    ("gpunode-job", "Loss", "C"): "a loss that is not finite",
    ("gpunode-job", "Time left", "A"): "a job of Slurm with a limit",
    ("gpunode-job", "PyTorch in 15 minutes", "C"): "a job that compiles, and gpunode.client in it",
    ("gpunode-job", "The odd one out", "B"): "ranks that are all alike",
    ("gpunode-job", "Ranks that others wait for", "A"): "a job that stands still, and RAS",
    ("gpunode-host", "Fans", "A"): "a server with sensors",
    ("gpunode-node", "GPUDirect Storage", "A"): "GPUDirect Storage that counts its bytes",
    ("gpunode-node", "Lustre: busiest target", "A"): "Lustre in a recorded incident",
    ("gpunode-host", "Power of processors and memory", "A"): "the right to read RAPL",
    ("gpunode-host", "Temperature of the air", "A"): "a server with sensors",
    ("gpunode-gpu", "Repairs and modes", "A"): "a GPU that needs repair",
    ("gpunode-health", "NVLink", "B"): "a module of GPU and CPU",
    ("gpunode-health", "Remapped rows", "C"): "a GPU without spare rows",
    ("gpunode-host", "Bonds", "A"): "bonded interfaces",
    ("gpunode-host", "CPU quota of jobs", "A"): "a job with a CPU limit",
    ("gpunode-host", "Disks: temperature", "A"): "a disk with a sensor",
    (
        "gpunode-host",
        "GPUDirect Storage: errors an hour",
        "A",
    ): "GPUDirect Storage that counts its bytes",
    ("gpunode-host", "InfiniBand: data waits", "A"): "InfiniBand in a recorded incident",
    ("gpunode-host", "InfiniBand: failed requests", "A"): "InfiniBand in a recorded incident",
    ("gpunode-host", "Lustre: metadata", "A"): "Lustre in a recorded incident",
    ("gpunode-host", "Lustre: time of metadata", "A"): "Lustre in a recorded incident",
    ("gpunode-host", "NFS: time in this client", "A"): "NFS in a recorded incident",
    ("gpunode-host", "RoCE: pauses by priority", "A"): "an adapter that counts pauses",
    ("gpunode-host", "TCP: round trip", "A"): "connections to other machines",
    ("gpunode-job", "Requests", "A"): "a server, and gpunode.client in it",
    ("gpunode-job", "Requests", "B"): "a server, and gpunode.client in it",
    ("gpunode-job", "NCCL warnings", "A"): "a job whose NCCL warns",
    ("gpunode-job", "Tokens a second", "A"): "a job, and gpunode.client in it",
    ("gpunode-node", "Stalled communicators", "C"): "RAS of a rank that failed",
}
"""Queries that find nothing here, by dashboard, panel and letter, and what they would take."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What Prometheus said to a query of a panel."""

    uid: str
    panel: str
    letter: str
    series: int
    seconds: float
    error: str
    size: int = 0
    """Bytes."""


def hurried(folder: Path) -> None:
    """Write the rules with short windows into a folder; what is recorded once an hour, too."""
    (folder / "rules").mkdir()
    for path in RULES.glob("*.yaml"):
        (folder / "rules" / path.name).write_text(shortened(path.read_text()))


@contextmanager
def scraped(tapes: Sequence[str], port: int) -> Iterator[str]:
    """A Prometheus that scrapes what replays the tapes; its address."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        ports = dict(zip(tapes, free_ports(len(tapes)), strict=True))
        started = {at: stack.enter_context(replay(tape, at, folder)) for tape, at in ports.items()}
        for at, child in started.items():
            Daemon(psutil.Process(child.pid), at).wait_for("/healthz", child)
        hurried(folder)
        nodes = [
            {"targets": [f"127.0.0.1:{at}"], "labels": {"instance": tape, "cluster": CLUSTER}}
            for tape, at in ports.items()
        ]
        others = [{"targets": [f"127.0.0.1:{stack.enter_context(served(CLUSTER))}"]}]
        config = {
            "global": {"scrape_interval": "2s"},
            "scrape_configs": [
                {"job_name": "gpunode", "static_configs": nodes},
                {"job_name": "examples", "honor_labels": True, "static_configs": others},
            ],
            "rule_files": [f"{folder}/rules/*.yaml"],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        live_through(folder, CLUSTER)
        stack.enter_context(
            program(
                prometheus_command(folder, port, "--storage.tsdb.retention.time=90d"),
                folder / "prometheus.log",
            )
        )
        address = f"http://127.0.0.1:{port}"
        wait_for(f"{address}/-/ready")
        yield address


def wait_for(url: str, seconds: float = 30.0) -> None:
    """Until a page answers; raises the last error if it does not."""
    give_up = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(url).close()
        except OSError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.2)
        else:
            return


def filled(expression: str, chosen: Mapping[str, str] = CHOSEN) -> str:
    """An expression as Grafana sends it."""
    for name, value in chosen.items():
        expression = expression.replace(name, value)
    return expression


def ask(
    prometheus: str, expression: str, instant: bool, since: float = SINCE, points: int = 12
) -> dict[str, Any]:
    """What Prometheus answers to Grafana about so many seconds, in so many points."""
    found: dict[str, Any] = json.loads(body(prometheus, expression, instant, since, points))
    return found


def body(prometheus: str, expression: str, instant: bool, since: float, points: int) -> bytes:
    """The answer to a query as it comes over the network."""
    now = time.time()
    over_time = {"start": now - since, "end": now, "step": since / points}
    when = {"time": now} if instant else over_time
    query = urllib.parse.urlencode({"query": expression, **when}).encode()
    path = "query" if instant else "query_range"
    try:
        with urllib.request.urlopen(f"{prometheus}/api/v1/{path}", query) as answer:
            found: bytes = answer.read()
    except urllib.error.HTTPError as error:
        found = error.read()
    return found


def answers(
    prometheus: str,
    chosen: Mapping[str, str] = EVERY_JOB,
    uid: str = "*",
    since: float = SINCE,
    points: int = 12,
) -> Iterator[QueryResult]:
    """What every query of every dashboard finds, or of one.

    It takes as long as with the part that says that nothing was found, which finds something.
    """
    for path in sorted(FOLDER.glob(f"{uid}.json")):
        content = json.loads(path.read_text())
        for panel in content["panels"]:
            for target in panel.get("targets", ()):
                if target["expr"].startswith(NONE_OF):
                    continue
                asked = target["expr"]
                for said in SAY_SO:
                    asked = asked.partition(said)[0]
                over = (target["instant"], since, points)
                begin = time.perf_counter()
                answer = body(prometheus, filled(target["expr"], chosen), *over)
                took = time.perf_counter() - begin
                found = json.loads(answer)
                if asked != target["expr"] and "error" not in found:
                    found = ask(prometheus, filled(asked, chosen), *over)
                yield QueryResult(
                    content["uid"],
                    panel["title"],
                    target["refId"],
                    len(found.get("data", {}).get("result", ())),
                    took,
                    found.get("error", ""),
                    len(answer),
                )


def asked_for(uid: str) -> set[str]:
    """The names of the series for which the queries of a dashboard ask."""
    content = json.loads((FOLDER / f"{uid}.json").read_text())
    asked = " ".join(t["expr"] for panel in content["panels"] for t in panel.get("targets", ()))
    return {found[1] for found in METRIC.finditer(STRING.sub("", asked))}


def walked(prometheus: str, node: str) -> tuple[set[str], frozenset[str]]:
    """The causes on the node's dashboard, and which of the panels of ``WALK`` cross their lines."""
    content = json.loads((FOLDER / "gpunode-node.json").read_text())
    panels = {panel["title"]: panel for panel in content["panels"]}

    def values(title: str) -> list[float]:
        every = [target["expr"] for target in panels[title]["targets"]]
        expressions = [one for one in every if not one.startswith(NONE_OF)]
        found = [
            ask(prometheus, filled(one, {**CHOSEN, "$node": node}), False) for one in expressions
        ]
        series = [one for answer in found for one in answer["data"]["result"]]
        return [float(value) for one in series for _, value in one["values"]]

    names = list(HELD_UP)
    causes = {names[int(value)] for value in values("What holds each GPU up")}
    crossed = {
        title
        for title in (SWINGS, SLOWDOWN, PRESSURE, SHM, SILENT, PEERS)
        if max(values(title), default=0.0)
        > panels[title]["fieldConfig"]["defaults"]["thresholds"]["steps"][1]["value"]
    }
    return causes, frozenset(crossed)


def faults(found: Sequence[QueryResult]) -> list[str]:
    """What is wrong with the answers: errors, and panels that are empty though they need not be."""
    return [
        f"{one.uid}: {one.panel}: {one.letter}: {one.error or 'nothing'}"
        for one in found
        if one.error or not (one.series or (one.uid, one.panel, one.letter) in EMPTY)
    ]


def main() -> None:
    """Play the incidents and ask; exit 1 if Prometheus refuses a query or finds nothing."""
    parser = ArgumentParser(prog="python -m tests.dashboards.queries", description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long to play first")
    parser.add_argument("--port", type=int, default=0, help="where Prometheus listens")
    parser.add_argument("--stay", action="store_true", help="go on until Ctrl-C")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    with scraped(TAPES, given.port or free_port()) as prometheus:
        time.sleep(given.seconds)
        found = list(answers(prometheus))
        print(*faults(found), sep="\n")
        print(
            f"{sum(bool(one.series) for one in found)} of {len(found)} queries find something",
            flush=True,
        )
        while given.stay:
            time.sleep(3600)
    sys.exit(bool(faults(found)))


if __name__ == "__main__":
    main()
