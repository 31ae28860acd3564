"""``gpunode rules explain``: what a real Prometheus says of an alert, for a person."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gpunode.cli import explained
from gpunode.cli.settings.rules import RulesSettings
from gpunode.explain import rule_files
from gpunode.mistake import UsageError
from tests.conftest import until
from tests.daemon import free_port
from tests.needs import need
from tests.prometheus.programs import ask, exporter, program

JOBS = {"llama": ("n1", 0), "gemma": ("n2", 0)}
"""What stands still, one for no known cause, one for a GPU that is broken."""


stalled = threading.Event()
"""That the jobs have come to a stand; before, what explains one of them is recorded."""


def _exposition(path: str) -> bytes:
    age = 305 if stalled.is_set() else 5
    node = path.rpartition("=")[2]
    ((job, _),) = [(name, at) for name, at in JOBS.items() if at[0] == node]
    lines = []
    for gpu in range(2):
        which = f'gpu="{gpu}",uuid="GPU-{node}-{gpu}"'
        owner = f'owner_namespace="research",workload="{job}",replica="",user=""'
        lines += [
            f"gpunode_gpu_owner_info{{{which},{owner}}} 1",
            f'gpunode_gpu_held_up_seconds{{{which},cause="stalled_collective"}} {age}',
            f"gpunode_job_workless_seconds{{{which}}} {age}",
            f'gpunode_gpu_workload{{{which},kind="training"}} 1',
        ]
    if job == "gemma":
        lines.append(
            f'gpunode_fault_start_timestamp_seconds{{gpu="0",uuid="GPU-{node}-0",part="gpu",'
            f'name="",reason="xid_79",severity="page"}} {time.time() - 300:.0f}'
        )
    lines.append(f"gpunode_clock_timestamp_seconds {time.time():.0f}")
    return ("\n".join(lines) + "\n").encode()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a Prometheus that evaluates the shipped rules each second."""
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    for file in rule_files.shipped():
        text = re.sub(r"interval: \d+s", "interval: 1s", file.read_text())
        (folder / file.name).write_text(text)
    with exporter(_exposition) as nodes:
        targets = [
            {
                "targets": [f"127.0.0.1:{nodes}"],
                "labels": {"__param_node": node, "instance": node, "cluster": "eu"},
            }
            for node, _ in JOBS.values()
        ]
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "scrape_configs": [{"job_name": "gpunode", "static_configs": targets}],
            "rule_files": [file.name for file in rule_files.shipped()],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        command = [
            *(need("prometheus"), f"--config.file={folder}/prometheus.yml"),
            *(f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"),
        ]
        with program(command, folder / "log"):
            for awaited in (
                "job:gpunode_stall_explained:gpus",
                "ALERTS{alertname='JobStalled',alertstate='firing',severity='page'}",
            ):
                until(partial(_recorded, port, awaited))
                stalled.set()
            yield port


def _recorded(port: int, query: str) -> bool:
    """Whether there is a result at the last whole second, which the command asks about."""
    try:
        asked = f"/api/v1/query?query={query}&time={int(time.time())}"
        return bool(ask(port, asked)["data"]["result"])
    except OSError:
        return False


def run(port: int, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpunode", "rules", "explain", *words]
    url = f"--prometheus.url=http://127.0.0.1:{port}"
    return subprocess.run([*command, url], capture_output=True, text=True, check=False)


def test_an_alert_that_fires_is_shown_with_all_that_holds(prometheus: int) -> None:
    ran = run(prometheus, "JobStalled", "severity=page", "workload=llama", "cluster=eu")
    assert ran.returncode == 0, ran.stderr
    _, _, told, *lines = ran.stdout.splitlines()
    assert told == "JobStalled (page): fires"
    text = "\n".join(lines)
    assert "gemma" not in text
    (held,) = re.findall(r"^  holds +job:gpunode_stalled:seconds > scalar.*\n(.*)$", text, re.M)
    assert held.split()[:3] == ["305", ">", "60"]
    assert re.search(
        r"^  quiet +unless on \(.*\) last_over_time\(job:gpunode_stall_explained:gpus\[30m\]\)$",
        text,
        re.M,
    )
    rules, raw = text.split("Rules behind it")[1].split("Raw series")
    assert re.search(r"^  job:gpunode_stalled:seconds = 305 \(5 min\)", rules, re.M)
    assert re.search(r"^    job:gpunode_workless:seconds = 305 \(5 min\)", rules, re.M)
    assert re.search(r"gpunode_job_workless_seconds:(\n +305 \(5 min\).*){2}\n  g", raw), (
        "of its two GPUs"
    )
    assert 'up{job=~".*gpunode.*"} = 1' in raw


def test_the_clause_that_silences_is_named_first(prometheus: int) -> None:
    ran = run(prometheus, "JobStalled", "severity=page", "workload=gemma")
    assert ran.returncode == 0, ran.stderr
    told = ran.stdout.splitlines()[2]
    assert told.startswith("JobStalled (page): is silent: this matches: unless on (cluster, ")
    assert told.endswith("last_over_time(job:gpunode_stall_explained:gpus[30m])")
    assert re.search(r"^  SILENCES +unless on .*_explained:gpus.*\n +1  \{", ran.stdout, re.M)


def test_a_comparison_that_is_not_met_is_shown_with_both_figures(prometheus: int) -> None:
    ran = run(prometheus, "JobIdle", "severity=page", "workload=llama")
    assert ran.returncode == 0, ran.stderr
    assert (
        "JobIdle (page): is silent: this is not met: job:gpunode_workless:seconds > " in ran.stdout
    )
    assert re.search(r"^ +305 > 1800 is not so", ran.stdout, re.M)


def test_each_severity_is_explained_and_every_alert_can_be_asked_for(prometheus: int) -> None:
    """No expression of ours is one that Prometheus refuses once it is taken apart."""
    url = f"http://127.0.0.1:{prometheus}"
    names = {rule.name for rule in rule_files.read_rules() if rule.alerts}
    ran = run(prometheus, "JobStalled", "workload=llama")
    assert re.findall(r"^JobStalled \((\w+)\)", ran.stdout, re.M) == ["page", "ticket"]
    for name in sorted(names):
        settings = RulesSettings(
            _cli_parse_args=["explain", name, "cluster=eu", f"--prometheus.url={url}"]
        )
        explained.write(settings, name, ["cluster=eu"])


def test_what_is_asked_for_wrongly_is_refused_in_a_line(tmp_path: Path) -> None:
    for words, complaint in (
        (["JobStaled"], "JobStaled: no alert has this name; did you mean JobStalled"),
        (["JobStalled", "llama"], "llama: no label, such as workload=llama"),
        (["JobStalled", "severity=info"], "JobStalled: has no severity info"),
        (["JobStalled", f"--rules={tmp_path}"], f"{tmp_path}: has no file of rules"),
        (["JobStalled", "--at=soon"], "at: 'soon' is no date"),
    ):
        ran = run(1, *words)
        assert ran.returncode == 2
        (line,) = ran.stderr.splitlines()
        assert line.startswith(f"gpunode: {complaint}"), line


@pytest.mark.parametrize("text", ["groups: 7", "{", "a: [1", "groups: [{name: x, rules: [{}]}]"])
def test_a_file_that_is_none_of_rules_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(UsageError, match=str(tmp_path / "x.yaml")):
        rule_files.read_rules(tmp_path)


def test_the_rules_of_a_folder_are_read_in_their_place(prometheus: int, tmp_path: Path) -> None:
    mine = "{alert: Mine, expr: 'up == 0 or up > 7 and up', labels: {severity: page}}"
    (tmp_path / "mine.yaml").write_text(f"groups: [{{name: mine, rules: [{mine}]}}]")
    ran = run(prometheus, "Mine", "instance=n1", f"--rules={tmp_path}")
    assert ran.returncode == 0, ran.stderr
    assert "Mine (page): is silent: this is not met: up == 0" in ran.stdout
    assert "1 > 7 is not so" in ran.stdout
