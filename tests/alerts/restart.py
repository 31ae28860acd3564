"""A fault that stands while Prometheus is stopped and started again, and what on-call hears of it.

A real Prometheus with the shipped rules, on its own storage, and a real Alertmanager with the
shipped routes. What it notifies is counted as an integration with one incident for each group key
would, such as PagerDuty's. The durations of the rules and of the routes are shortened.

python -m tests.alerts.restart
"""

from __future__ import annotations

import json
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from tests.alerts.scenarios.play import MINUTE, hurried
from tests.daemon import free_port
from tests.prometheus.incidents import ALERTMANAGER, prometheus_command, rules_folder, shortened
from tests.prometheus.programs import alertmanager, exporter, program

RESEND = 30
"""Seconds after which Prometheus sends an alert again. One that it does not send for four times as
long is resolved, and so is it after a restart that takes longer: with what Prometheus comes with,
after four minutes."""

DOWN = 4.0
"""Seconds for which there is no Prometheus."""

TIMEOUT = 180.0

GPU = 'gpu="0",uuid="GPU-a"'
SHOWN = f"""
gpunode_gpu_allocated{{{GPU}}} 1
gpunode_gpu_owner_info{{{GPU},owner_namespace="research",workload="gpt",replica="",user=""}} 1
"""


@dataclass
class Incidents:
    """The incidents of on-call, by the key of their group."""

    events: list[tuple[str, str]] = field(default_factory=list)
    """What was opened, closed, or told again while it was open, and of which alert."""

    open: set[str] = field(default_factory=set)

    def note(self, receiver: str, body: dict[str, Any]) -> None:
        """Take a notification."""
        if receiver != "pager":
            return
        key, alert = body["groupKey"], body["groupLabels"]["alertname"]
        if body["status"] == "resolved":
            self.open.discard(key)
            self.events.append(("closed", alert))
        else:
            self.events.append(("told again" if key in self.open else "opened", alert))
            self.open.add(key)


@dataclass
class GpuNode:
    """A node with a GPU, which remembers when it broke until it is repaired."""

    broke: float = 0.0
    scrapes: int = 0

    def shows(self, _: str) -> bytes:
        """What it exports."""
        self.scrapes += 1
        text = f"{SHOWN}gpunode_clock_timestamp_seconds {time.time()}\n"
        if self.broke:
            fault = f'{GPU},part="gpu",name="",reason="xid_119",severity="page"'
            text += f"gpunode_fault_start_timestamp_seconds{{{fault}}} {self.broke}\n"
        return text.encode()


def _wait(what: str, true: Callable[[], bool]) -> None:
    """Wait until something is true."""
    end = time.monotonic() + TIMEOUT
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {TIMEOUT:.0f} s: {what}")
        time.sleep(0.2)


def _ends(manager: str) -> float:
    """Until when Alertmanager takes the page to last, if Prometheus does not send it again."""
    url = f"http://{manager}/api/v2/alerts?filter=alertname%3DGpuUnhealthy&filter=severity%3Dpage"
    with urllib.request.urlopen(url) as answer:
        ends = [one["endsAt"] for one in json.load(answer)]
    return max(datetime.fromisoformat(end.replace("Z", "+00:00")) for end in ends).timestamp()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready"):
            return True
    except OSError:
        return False


def run() -> list[tuple[str, str]]:
    """What on-call hears: of an XID, of a restart of everything, and of the repair."""
    heard, node = Incidents(), GpuNode()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        routes = hurried(yaml.safe_load(ALERTMANAGER.read_text()), MINUTE)
        manager = stack.enter_context(alertmanager(folder, routes, heard.note))
        port = stack.enter_context(exporter(node.shows))
        (folder / "rules").mkdir()
        for path in rules_folder().iterdir():
            (folder / "rules" / path.name).write_text(shortened(path.read_text()))
        target = {
            "targets": [f"127.0.0.1:{port}"],
            "labels": {"instance": "node-a", "cluster": "fleet"},
        }
        config = {
            "global": {"scrape_interval": "2s"},
            "scrape_configs": [{"job_name": "gpunode", "static_configs": [target]}],
            "rule_files": [f"{folder}/rules/*.yaml"],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [manager]}]}]},
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        own = free_port()
        command = prometheus_command(folder, own, f"--rules.alert.resend-delay={RESEND}s")
        with program(command, folder / "before.log") as prometheus:
            _wait("Prometheus answers", lambda: _answers(own))
            time.sleep(10.0)
            node.broke = time.time() - 120.0
            _wait("the page", lambda: bool(heard.events))
            time.sleep(5.0)
            prometheus.terminate()
            prometheus.wait()
        lasts = _ends(manager)
        time.sleep(DOWN)
        with program(command, folder / "after.log"):
            _wait("the page is sent again", lambda: _ends(manager) > lasts)
            seen = node.scrapes
            _wait("the fault is scraped again", lambda: node.scrapes > seen + 2)
            node.broke = 0.0
            _wait("it is resolved", lambda: ("closed", "GpuUnhealthy") in heard.events)
    return heard.events


if __name__ == "__main__":
    for happened, alert in run():
        print(happened, alert)
