"""A fleet before two shards of Prometheus and one that sees both: a job over both stands still.

The shards scrape half of the nodes each, evaluate the rules for nodes and write what the rules over
all nodes ask for to the third, which evaluates those. All three alert to one Alertmanager with the
shipped routes. The durations of the rules are shortened.

python -m tests.bench.shards
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import yaml

from alerts.rule_files import handed_on
from tests.bench.incidents import ALERTMANAGER, RULES, prometheus_command, shortened
from tests.bench.programs import alertmanager, exporter, program
from tests.daemon import free_ports

OF_THE_JOB = range(8)
OF_OTHERS = range(8, 10)
NODES = (*OF_THE_JOB, *OF_OTHERS)
DOWN = (OF_THE_JOB[-1], OF_OTHERS[-1])
"""One node of the job, and one of a job that has no other."""

GPUS = 2

WORKS = 15.0
"""Seconds after which the job stands still, and nodes are down."""

Notified = dict[str, list[dict[str, str]]]
"""The labels of every alert that was told, by receiver."""

LABELS = 'gpu="{gpu}",uuid="GPU-{node}-{gpu}"'
SHOWN = """
gpunode_gpu_info{{{gpu},name="NVIDIA H200",bus_id="{bus}",parent=""}} 1
gpunode_gpu_owner_info{{{gpu},owner_namespace="research",owner_pod="{pod}",\
owner_container="main",slurm_job="",user="",via="process"}} 1
gpunode_gpu_workload{{{gpu},kind="training"}} 1
gpunode_job_workless_seconds{{{gpu}}} {still}
gpunode_gpu_blocked_streak_seconds{{{gpu}}} {still}
"""


def shown(node: int, still: float) -> str:
    """What a node shows while the job has stood still for so long."""
    pod, rests = (f"gpt-worker-{node}", still) if node in OF_THE_JOB else (f"own{node}-0", 0.0)
    return "".join(
        SHOWN.format(gpu=LABELS.format(gpu=gpu, node=node), bus=gpu, pod=pod, still=rests)
        for gpu in range(GPUS)
    )


@contextmanager
def fleet() -> Iterator[int]:
    """Answers for every node at one port."""
    begin = time.monotonic()

    def text(path: str) -> bytes | None:
        (node,) = parse_qs(urlparse(path).query)["node"]
        still = max(0.0, time.monotonic() - begin - WORKS)
        return None if still and int(node) in DOWN else shown(int(node), still).encode()

    with exporter(text) as port:
        yield port


def _rules(folder: Path, of: Callable[[str], bool]) -> str:
    """Some of the shipped rules, shortened."""
    folder.mkdir()
    for path in RULES.iterdir():
        if of(path.name):
            text = shortened(path.read_text())
            for window in ("[2m]", "[4m]"):
                text = text.replace(window, "[12s]")
            (folder / path.name).write_text(text)
    return f"{folder}/*.yaml"


def _alerting(manager: str) -> dict[str, Any]:
    return {
        "alert_relabel_configs": [{"regex": "shard", "action": "labeldrop"}],
        "alertmanagers": [{"static_configs": [{"targets": [manager]}]}],
    }


def _shard(number: int, nodes: int, receiver: int, manager: str, folder: Path) -> dict[str, Any]:
    """The configuration of one of two shards."""
    targets = [
        {
            "targets": [f"127.0.0.1:{nodes}"],
            "labels": {"__param_node": str(node), "instance": f"node-{node}", "cluster": "fleet"},
        }
        for node in NODES[number::2]
    ]
    keep = {"source_labels": ["__name__"], "regex": "|".join(handed_on()), "action": "keep"}
    return {
        "global": {"scrape_interval": "2s", "external_labels": {"shard": str(number)}},
        "scrape_configs": [{"job_name": "gpunode", "static_configs": targets}],
        "rule_files": [_rules(folder / "rules", lambda name: not name.startswith("cluster_"))],
        "remote_write": [
            {
                "url": f"http://127.0.0.1:{receiver}/api/v1/write",
                "write_relabel_configs": [keep],
                "queue_config": {"batch_send_deadline": "1s"},
            }
        ],
        "alerting": _alerting(manager),
    }


def run(lasts: float) -> Notified:
    """Let the job stand still and see who is notified of what within so many seconds."""
    notified: Notified = {}

    def note(receiver: str, body: dict[str, Any]) -> None:
        known = notified.setdefault(receiver, [])
        known += [alert["labels"] for alert in body["alerts"] if alert["labels"] not in known]

    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        routes = yaml.safe_load(ALERTMANAGER.read_text())
        manager = stack.enter_context(alertmanager(Path(name), routes, note))
        nodes = stack.enter_context(fleet())
        receiver, *ports = free_ports(3)
        over_all = Path(name, "all")
        over_all.mkdir()
        config = {
            "rule_files": [_rules(over_all / "rules", lambda name: name.startswith("cluster_"))],
            "alerting": _alerting(manager),
        }
        servers = [(over_all, receiver, config, ["--web.enable-remote-write-receiver"])]
        for number, port in enumerate(ports):
            folder = Path(name, f"shard{number}")
            folder.mkdir()
            servers.append((folder, port, _shard(number, nodes, receiver, manager, folder), []))
        for folder, port, config, options in servers:
            (folder / "prometheus.yml").write_text(json.dumps(config))
            command = prometheus_command(folder, port, *options)
            stack.enter_context(program(command, folder / "log"))
        time.sleep(lasts)
    return notified


if __name__ == "__main__":
    for told, alerts in run(50.0).items():
        for labels in alerts:
            print(told, " ".join(f"{name}={value}" for name, value in sorted(labels.items())))
