"""Every recorded incident through the real programs: the daemon replays it, Prometheus scrapes and
evaluates the shipped rules, Alertmanager receives.

Durations and windows are shortened, and only those: ``for: 10m`` waits 10 s, five minutes of a rate
are 30 s. The tapes play in real time, over and over.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil
import yaml

from gpunode.recorded import INCIDENTS as TAPES
from tests.daemon import Daemon, free_port, free_ports
from tests.prometheus.programs import Command, alertmanager, need, program

ROOT = Path(__file__).parents[2]
SHORT = {"5m": "30s", "15m": "60s", "1h": "90s", "6h": "100s", "1d": "120s", "30d": "150s"}
ALERTMANAGER = ROOT / "alerts" / "alertmanager.yaml"
IMMEDIATE: dict[str, Any] = {
    "route": {
        "receiver": "all",
        "group_by": ["..."],
        "group_wait": "1s",
        "group_interval": "5s",
    },
    "receivers": [{"name": "all"}],
}
"""What Alertmanager does where nothing is to wait."""


def rules_folder() -> Path:
    """The shipped rules."""
    return ROOT / "alerts" / "rules"


Engine = Literal["prometheus", "victoriametrics"]
FirstFired = dict[tuple[str, str, str, str], float]
"""When an alert was first notified, by node, alert, severity and GPU."""


INCIDENTS: dict[str, tuple[str, ...]] = {
    "idle": (),
    "compute": (),
    "healthy": (),
    "mixed_nop2p": (),
    "membound": (),
    "memfull": (),
    "h200_free": (),
    "h200_held": (),
    "starved": ("JobStarved",),
    "starved_mild": ("JobStarved",),
    "starved_slow": ("JobStarved",),
    "loader_cpu": (),
    "h200_loader_cpu": ("JobStarved",),
    "h200_storage": ("JobStarved",),
    "h200_shm": ("JobStarved", "ShmNearlyFull"),
    "h200_square_wave": (),
    "h200_four_phases": (),
    "h2d": (),
    "comm": ("JobCommunicationHigh",),
    "comm_nop2p": (),
    "hang": (),
    "h200_hang": ("JobStalled",),
    "straggler": ("JobStarved",),
    "launch": (),
    "ddp_small": (),
    "fp32": ("JobTensorCoresIdle",),
    "checkpoint": ("JobStarved",),
}
"""What each tape must raise. Nothing that is not named here may page, and of those that raise
nothing, nothing may even make a ticket.

Of tapes on which nothing tells that the work is training, the exporter says so, and no alert on
training fires. The checkpoint of its tape is seen as starvation: its training does not tell. On
``hang`` the job has never worked, so it might as well be about to start."""


@dataclass(frozen=True, slots=True)
class ReceivedAlert:
    """An alert that Alertmanager received."""

    tape: str
    alert: str
    severity: str
    gpu: str


def shortened(rules: str) -> str:
    """The rules sped up: minutes of waiting are seconds, also where a node exports them."""
    window = re.compile(r"\[(5m|15m|1h|6h|1d|30d)(:\d+m)?\]")
    rules = window.sub(lambda at: f"[{SHORT[at[1]]}{':2s' if at[2] else ''}]", rules)
    rules = re.sub(r"(for|keep_firing_for): (\d+)m", r"\1: \2s", rules)
    rules = re.sub(r"for: (\d+)h", "for: 60s", rules)
    rules = re.sub(
        r"vector\((\d+)\)(?=\n +labels: {name: \w+_seconds})",
        lambda at: f"vector({int(at[1]) / 60:g})",
        rules,
    )
    rules = re.sub(r"(?<=[<>] )(120|300|600|900|1800)\b", lambda at: f"{int(at[1]) / 60:g}", rules)
    return re.sub(r"interval: \w+", "interval: 2s", rules)


@contextmanager
def alerting(
    targets: dict[str, int], folder: Path, hurried: bool, engine: Engine = "prometheus"
) -> Iterator[FirstFired]:
    """What scrapes daemons and evaluates the rules, and Alertmanager; what has fired, as it comes.

    Not ``hurried``, everything is as shipped: the rules, the routes, a scrape every 15 s.
    """
    fired: FirstFired = {}

    def note(_: str, body: dict[str, Any]) -> None:
        for alert in body["alerts"]:
            labels = alert["labels"]
            key = (
                labels.get("instance") or labels["cluster"],
                labels["alertname"],
                labels["severity"],
                labels.get("gpu", ""),
            )
            fired.setdefault(key, time.time())

    with ExitStack() as stack:
        rules = folder / "rules"
        rules.mkdir()
        for path in rules_folder().iterdir():
            text = path.read_text()
            (rules / path.name).write_text(shortened(text) if hurried else text)
        routes = IMMEDIATE if hurried else yaml.safe_load(ALERTMANAGER.read_text())
        manager = stack.enter_context(alertmanager(folder, routes, note))
        every = "2s" if hurried else "15s"
        commands = ENGINES[engine](folder, targets, manager, every)
        for number, command in enumerate(commands):
            stack.enter_context(program(command, folder / f"{engine}{number}.log"))
        yield fired


def _scrapes(targets: dict[str, int], every: str) -> dict[str, Any]:
    nodes = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name, "cluster": name}}
        for name, port in targets.items()
    ]
    return {
        "global": {"scrape_interval": every},
        "scrape_configs": [{"job_name": "gpunode", "static_configs": nodes}],
    }


def _prometheus(folder: Path, targets: dict[str, int], manager: str, every: str) -> list[Command]:
    managers = [{"static_configs": [{"targets": [manager]}]}]
    config = {
        **_scrapes(targets, every),
        "rule_files": [f"{folder}/rules/*.yaml"],
        "alerting": {"alertmanagers": managers},
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    port = free_port()
    return [prometheus_command(folder, port)]


def prometheus_command(folder: Path, port: int, *options: str) -> Command:
    """A Prometheus that has its configuration and its samples in a folder."""
    return [
        need("prometheus"),
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/tsdb",
        f"--web.listen-address=127.0.0.1:{port}",
        *options,
    ]


@contextmanager
def prometheus(folder: Path, port: int, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Prometheus with what is in a folder, once it is ready."""
    with program(prometheus_command(folder, port, *options), folder / "log") as child:
        Daemon(psutil.Process(child.pid), port).wait_for("/-/ready", child)
        yield child


def _victoriametrics(
    folder: Path, targets: dict[str, int], manager: str, every: str
) -> list[Command]:
    (folder / "scrape.yml").write_text(json.dumps(_scrapes(targets, every)))
    port, alerts = free_ports(2)
    store = f"http://127.0.0.1:{port}"
    return [
        [
            need("victoria-metrics"),
            f"-promscrape.config={folder}/scrape.yml",
            f"-storageDataPath={folder}/vm",
            f"-httpListenAddr=127.0.0.1:{port}",
            f"-search.latencyOffset={every}",
        ],
        [
            need("vmalert"),
            f"-rule={folder}/rules/*.yaml",
            f"-datasource.url={store}",
            f"-remoteWrite.url={store}",
            f"-notifier.url=http://{manager}",
            f"-httpListenAddr=127.0.0.1:{alerts}",
        ],
    ]


ENGINES: dict[Engine, Callable[[Path, dict[str, int], str, str], list[Command]]] = {
    "prometheus": _prometheus,
    "victoriametrics": _victoriametrics,
}


def play(
    tapes: Sequence[str], seconds: float, engine: Engine = "prometheus"
) -> list[ReceivedAlert]:
    """Play tapes for so long; every alert that arrived."""
    ports = dict(zip(tapes, free_ports(len(tapes)), strict=True))
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        daemons = {
            port: stack.enter_context(replay(tape, port, Path(name)))
            for tape, port in ports.items()
        }
        for port, child in daemons.items():  # where a minute is a second, one that starts is down
            Daemon(psutil.Process(child.pid), port).wait_for("/healthz", child)
        fired = stack.enter_context(alerting(ports, Path(name), True, engine))
        time.sleep(seconds)
    return [ReceivedAlert(*key) for key in sorted(fired)]


@contextmanager
def replay(tape: str, port: int, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon that lives through a tape over and over, in real time."""
    path = TAPES / f"{tape}.jsonl.gz"
    options = [f"--web.listen-address=127.0.0.1:{port}", "--times=10000", "--log.level=error"]
    command = [sys.executable, "-m", "gpunode", "replay", str(path), *options]
    with program(command, folder / f"{port}.log") as child:
        yield child


def faults(tape: str, fired: Sequence[ReceivedAlert]) -> list[str]:
    """What is wrong about what a tape raised."""
    mine = [alert for alert in fired if alert.tape == tape and alert.severity != "info"]
    missing = set(INCIDENTS[tape]) - {alert.alert for alert in mine}
    pages = {a.alert for a in mine if a.severity == "page"} - set(INCIDENTS[tape])
    noise = {alert.alert for alert in mine} if not INCIDENTS[tape] else set()
    return sorted(
        [f"no {name}" for name in missing] + [f"{name} for nothing" for name in pages | noise]
    )
