"""A fleet before two shards of Prometheus and an engine above: a job over both stands still.

The shards scrape half of the nodes each and write what the rules read to the engine above, which
evaluates them: a third Prometheus, or VictoriaMetrics with vmalert, and an Alertmanager with the
shipped routes. The durations of the rules are shortened.

python -m tests.alerts.shards [prometheus|victoriametrics]
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import yaml

from helm.generate import EXAMPLES
from tests.daemon import free_ports
from tests.prometheus.incidents import (
    ALERTMANAGER,
    Engine,
    prometheus_command,
    rules_folder,
    shortened,
)
from tests.prometheus.programs import Command, alertmanager, exporter, need

OF_THE_JOB = range(8)
OF_OTHERS = range(8, 10)
NODES = (*OF_THE_JOB, *OF_OTHERS)
DOWN = (OF_THE_JOB[-1], OF_OTHERS[-1])
"""One node of the job, and one of a job that has no other."""

GPUS = 2

WORKS = 15.0
"""Seconds after which the job stands still, and nodes are down."""

ABOVE = "above"
"""The folder of the engine above."""

STATUS = "status"
"""What is noted beside the labels of an alert: whether it fires."""

PROMETHEUS = "shards-prometheus.yaml"
VICTORIA = "shards-victoriametrics.yaml"
OVER_ALL = "gpunode-above"

Notified = dict[str, list[dict[str, str]]]
"""The labels of every alert that was told, by receiver."""

LABELS = 'gpu="{gpu}",uuid="GPU-{node}-{gpu}"'
SHOWN = """
gpunode_gpu_allocated{{{gpu}}} 1
gpunode_gpu_owner_info{{{gpu},owner_namespace="research",workload="{job}",replica="",user=""}} 1
gpunode_gpu_workload{{{gpu},kind="training"}} 1
gpunode_job_workless_seconds{{{gpu}}} {still}
"""
HELD_UP = 'gpunode_gpu_held_up_seconds{{{gpu},cause="stalled_collective"}} {still}\n'


def stalled_page(node: int, still: float) -> str:
    """What a node shows while the job has stood still for so long."""
    job, rests = ("gpt", still) if node in OF_THE_JOB else (f"own{node}", 0.0)
    text = SHOWN + HELD_UP if rests else SHOWN
    gpus = (LABELS.format(gpu=gpu, node=node) for gpu in range(GPUS))
    lines = "".join(text.format(gpu=labels, job=job, still=rests) for labels in gpus)
    return f"{lines}gpunode_clock_timestamp_seconds {time.time()}\n"


@contextmanager
def fleet() -> Iterator[int]:
    """Answers for every node at one port."""
    begin = time.monotonic()

    def text(path: str) -> bytes | None:
        (node,) = parse_qs(urlparse(path).query)["node"]
        still = max(0.0, time.monotonic() - begin - WORKS)
        return None if still and int(node) in DOWN else stalled_page(int(node), still).encode()

    with exporter(text) as port:
        yield port


def _rules(folder: Path) -> str:
    """The shipped rules, shortened."""
    folder.mkdir()
    for path in rules_folder().iterdir():
        # Silence takes some scrapes to be known, before a node is said to be down.
        text = shortened(path.read_text()).replace("[2m]", "[12s]").replace("for: 4s", "for: 24s")
        (folder / path.name).write_text(text)
    return f"{folder}/*.yaml"


def example(name: str, kind: str, called: str = "") -> dict[str, Any]:
    """What the first object of a kind, or the one with a name, says in an example of the chart."""
    for one in yaml.safe_load_all((EXAMPLES / name).read_text()):
        if one["kind"] == kind and called in ("", one["metadata"]["name"]):
            return dict(one.get("spec") or one["data"])
    raise KeyError(kind)


def _as_configured(name: str) -> str:
    """The name in Prometheus' configuration of what the operator calls ``sourceLabels``."""
    return re.sub("[A-Z]", lambda at: f"_{at[0].lower()}", name)


def options(kind: str, **others: str) -> list[str]:
    """The options that the example gives a program of VictoriaMetrics."""
    given = {**example(VICTORIA, kind)["extraArgs"], **others}
    return [f"-{name}={value}" for name, value in given.items()]


def _alerting(manager: str) -> dict[str, Any]:
    return {
        "alert_relabel_configs": [{"regex": "shard", "action": "labeldrop"}],
        "alertmanagers": [{"static_configs": [{"targets": [manager]}]}],
    }


def _shard(number: int, nodes: int, receiver: int) -> dict[str, Any]:
    """The configuration of one of two shards."""
    targets = [
        {
            "targets": [f"127.0.0.1:{nodes}"],
            "labels": {"__param_node": str(node), "instance": f"node-{node}", "cluster": "fleet"},
        }
        for node in NODES[number::2]
    ]
    (written,) = example(PROMETHEUS, "Prometheus")["remoteWrite"]
    keep = [
        {
            re.sub("[A-Z]", lambda at: f"_{at[0].lower()}", name): value
            for name, value in one.items()
        }
        for one in written["writeRelabelConfigs"]
    ]
    return {
        "global": {"scrape_interval": "2s", "external_labels": {"shard": str(number)}},
        "scrape_configs": [{"job_name": "gpunode", "static_configs": targets}],
        "remote_write": [
            {
                "url": f"http://127.0.0.1:{receiver}/api/v1/write",
                "write_relabel_configs": keep,
                "queue_config": {"batch_send_deadline": "1s"},
            }
        ],
    }


def _above(engine: Engine, port: int, manager: str, folder: Path) -> list[Command]:
    """The programs of the engine above, to which shards write at a port."""
    rules = _rules(folder / "rules")
    if engine == "prometheus":
        config = {"rule_files": [rules], "alerting": _alerting(manager)}
        (folder / "prometheus.yml").write_text(json.dumps(config))
        return [prometheus_command(folder, port, "--web.enable-remote-write-receiver")]
    store, (alerts,) = f"http://127.0.0.1:{port}", free_ports(1)
    (folder / "relabel.yaml").write_text(example(VICTORIA, "ConfigMap")["relabel.yaml"])
    return [
        [
            need("victoria-metrics"),
            f"-storageDataPath={folder}/vm",
            f"-httpListenAddr=127.0.0.1:{port}",
            *options("VMSingle", relabelConfig=f"{folder}/relabel.yaml"),
        ],
        [
            need("vmalert"),
            f"-rule={rules}",
            f"-datasource.url={store}",
            f"-remoteRead.url={store}",
            f"-remoteWrite.url={store}",
            *options("VMAlert"),
            f"-notifier.url=http://{manager}",
            f"-httpListenAddr=127.0.0.1:{alerts}",
        ],
    ]


class Running:
    """Programs that can be killed and started again."""

    def __init__(self, stack: ExitStack) -> None:
        self._commands: dict[str, list[tuple[Command, Path]]] = {}
        self._children: dict[str, list[subprocess.Popen[bytes]]] = {}
        stack.callback(self._end)

    def start(self, name: str, commands: Sequence[Command] = (), log: Path | None = None) -> None:
        """Start programs, or those of a name again."""
        if log:
            self._commands[name] = [
                (command, log.with_name(f"{log.name}{number}"))
                for number, command in enumerate(commands)
            ]
        started = []
        for command, path in self._commands[name]:
            with path.open("ab") as output:
                started.append(subprocess.Popen(command, stdout=output, stderr=output))
        self._children[name] = started

    def _end(self) -> None:
        for name in self._children:
            self.kill(name)

    def kill(self, name: str) -> None:
        """End them at once."""
        for child in self._children[name]:
            child.kill()
            child.wait()


@dataclass(frozen=True, slots=True)
class Restart:
    """Something that is killed, and is away for a while."""

    name: str
    at: float
    away: float


def run(lasts: float, engine: Engine = "prometheus", restarts: Sequence[Restart] = ()) -> Notified:
    """Let the job stand still and see who is notified of what within so many seconds."""
    notified: Notified = {}

    def note(receiver: str, body: dict[str, Any]) -> None:
        known = notified.setdefault(receiver, [])
        told = [{**alert["labels"], STATUS: alert["status"]} for alert in body["alerts"]]
        known += [labels for labels in told if labels not in known]

    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        routes = yaml.safe_load(ALERTMANAGER.read_text())
        manager = stack.enter_context(alertmanager(Path(name), routes, note))
        nodes = stack.enter_context(fleet())
        receiver, *ports = free_ports(3)
        running = Running(stack)
        over_all = Path(name, ABOVE)
        over_all.mkdir()
        running.start(ABOVE, _above(engine, receiver, manager, over_all), over_all / "log")
        for number, port in enumerate(ports):
            folder = Path(name, f"shard{number}")
            folder.mkdir()
            config = _shard(number, nodes, receiver)
            (folder / "prometheus.yml").write_text(json.dumps(config))
            running.start(folder.name, [prometheus_command(folder, port)], folder / "log")
        begin = time.monotonic()
        for one in restarts:
            time.sleep(max(0.0, begin + one.at - time.monotonic()))
            running.kill(one.name)
            time.sleep(one.away)
            running.start(one.name)
        time.sleep(max(0.0, begin + lasts - time.monotonic()))
    return notified


def main() -> None:
    """Print who is notified of what."""
    engine: Engine = "victoriametrics" if "victoriametrics" in sys.argv[1:] else "prometheus"
    for told, alerts in run(65.0, engine).items():
        for labels in alerts:
            print(told, " ".join(f"{name}={value}" for name, value in sorted(labels.items())))


if __name__ == "__main__":
    main()
