"""``gpunode mcp`` as an agent calls it: the SDK's client over stdio, on played incidents."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import anyio
import psutil
import pytest
from mcp import Client, StdioServerParameters
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gpunode.cli.agents import verdicts
from gpunode.config import PrometheusSettings
from gpunode.report.prometheus import Prometheus, Secrets
from gpunode.verdict.case import Evidence
from gpunode.verdict.source import Judgement
from gpunode.verdict.workload import Workload
from tests.bench.incidents import replay
from tests.cli.conftest import FIRST, NEXT, Stage
from tests.conftest import until
from tests.daemon import Daemon, daemon, free_port
from tests.verdict.test_verdict import CAUSE, ENDED

pytestmark = pytest.mark.integration

T = TypeVar("T")

TRUTH = {**CAUSE, **ENDED}
HUNG = ["h200_hang", "stopped", "killed", "scalar", "looping"]
AGENT = ("holds_up", "waited_for", "incidents", "changed")


def asked(
    stage: Stage, calls: list[tuple[str, dict[str, str]]], *options: str
) -> list[dict[str, Any]]:
    """What the tools answer to an agent, one after the other; an error as ``{"error": …}``."""
    command = ["-m", "gpunode", "mcp", f"--prometheus.url={stage.url}", *options]
    parameters = StdioServerParameters(command=sys.executable, args=command, env={**os.environ})

    async def ask() -> list[dict[str, Any]]:
        found = []
        async with Client(parameters) as client:
            for name, arguments in calls:
                result = await client.call_tool(name, arguments)
                if result.is_error:
                    found.append({"error": str(result.content)})
                else:
                    found.append(dict(result.structured_content or {}))
        return found

    return in_a_thread(ask)


def in_a_thread(task: Callable[[], Awaitable[T]]) -> T:
    """What a task gives: in this thread, a browser of other tests may have a loop that runs."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(anyio.run, task).result()


def proven(server: Prometheus, claim: Mapping[str, Any]) -> bool:
    """Whether Prometheus says the same, asked for itself."""
    found = server.at(claim["promql"], claim["at"])
    return any(
        value == pytest.approx(claim["value"]) and dict(labels) == claim["labels"]
        for labels, value in found
    )


def test_the_cause_of_nine_in_ten_recorded_incidents_is_told(stage: Stage) -> None:
    answers = asked(stage, [("holds_up", {"job": name}) for name in TRUTH])
    wrong = {}
    for (name, causes), answer in zip(TRUTH.items(), answers, strict=True):
        told = {one["labels"]["cause"] for one in answer["claims"] if "cause" in one["labels"]}
        if told - {"none"} != set(causes) - {"none"}:
            wrong[name] = told
    assert len(wrong) <= 0.1 * len(TRUTH), wrong


def test_no_claim_is_without_a_series(stage: Stage) -> None:
    calls = [(tool, {"job": name}) for name in (*HUNG, "pair") for tool in AGENT]
    claims = [one for answer in asked(stage, calls) for one in answer["claims"]]
    assert len(claims) > 20
    with closing(Prometheus(PrometheusSettings(url=stage.url), Secrets())) as server:
        assert [one for one in claims if not proven(server, one)] == []


def test_who_is_waited_for_is_told_with_the_reason(stage: Stage) -> None:
    (answer,) = asked(stage, [("waited_for", {"job": "h200_hang"})])
    (claim,) = answer["claims"]
    assert claim["says"].startswith("the others wait for GPU 1 of h200_hang: its process is stop")
    assert claim["labels"]["reason"] == "stopped"


def test_of_each_gpu_that_is_waited_for_the_latest_reason_is_told(stage: Stage) -> None:
    """What was thought of it a minute before is in Prometheus, too."""
    wanted = {"killed": "gone", "looping": "cpu_bound", "serve_stopped": "stopped"}
    answers = asked(stage, [("waited_for", {"job": name}) for name in wanted])
    told = [[one["labels"]["reason"] for one in answer["claims"]] for answer in answers]
    assert told == [[reason] for reason in wanted.values()]


def test_since_when_a_job_hangs_is_told(stage: Stage) -> None:
    (answer,) = asked(stage, [("holds_up", {"job": "h200_hang"})])
    (since,) = [
        one for one in answer["claims"] if one["says"].startswith("stalled_collective: since")
    ]
    assert abs(stage.moment - since["at"]) < 120


def test_which_incidents_there_were_and_which_node_began(stage: Stage) -> None:
    (answer,) = asked(stage, [("incidents", {"job": "pair"})])
    first, second, began = [one["says"] for one in answer["claims"]]
    assert first.startswith(f"{FIRST}: GPUs wait for another")
    assert second.startswith(f"{NEXT}: GPUs wait for another")
    assert began.startswith(f"{FIRST} began")


def test_what_is_not_recorded_is_not_known(stage: Stage) -> None:
    changed, waited, missing = asked(
        stage,
        [
            ("changed", {"job": "h200_hang"}),
            ("waited_for", {"job": "healthy"}),
            ("holds_up", {"job": "nobody/nothing"}),
        ],
    )
    assert changed["claims"] == []
    assert "versions: not recorded" in changed["not_known"]
    assert waited["claims"] == []
    assert waited["not_known"] == ["no GPU or rank is named for which healthy waits"]
    assert "held no GPU" in missing["error"]


def test_the_jobs_that_hold_gpus_are_listed(stage: Stage) -> None:
    (answer,) = asked(stage, [("jobs", {})])
    assert "pair holds 4 GPUs" in {one["says"] for one in answer["claims"]}


def test_tools_only_read(stage: Stage) -> None:
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "gpunode", "mcp", f"--prometheus.url={stage.url}"],
        env={**os.environ},
    )

    async def listed() -> list[Any]:
        async with Client(parameters) as client:
            return list((await client.list_tools()).tools)

    tools = in_a_thread(listed)
    assert {*AGENT, "jobs"} == {tool.name for tool in tools}
    assert all(tool.annotations.read_only_hint for tool in tools)
    assert all(tool.output_schema for tool in tools)


def test_a_node_is_asked_as_well(stage: Stage) -> None:
    with daemon("--log.level=error") as running:
        now, kept, wrong = asked(
            stage,
            [("node_now", {}), ("node_incidents", {}), ("node_incident", {"incident": "latest"})],
            f"--node=http://127.0.0.1:{running.port}",
        )
    assert now["claims"] == []
    assert kept["not_known"]
    assert "no incident is kept" in wrong["error"]


def test_a_node_on_which_a_job_hangs_is_asked(stage: Stage, tmp_path: Path) -> None:
    port = free_port()
    with replay("h200_hang", port, tmp_path) as child:
        node = Daemon(psutil.Process(child.pid), port)
        node.wait_for("/readyz", child)
        page = until(lambda: hangs(node.get("/metrics").decode()))
        now, kept, one, none = asked(
            stage,
            [
                ("node_now", {}),
                ("node_incidents", {}),
                ("node_incident", {"incident": "latest"}),
                ("node_incident", {"incident": "20260101T000000Z-stall-0"}),
            ],
            f"--node=http://127.0.0.1:{port}",
        )
    assert "stalled_collective" in {claim["labels"]["cause"] for claim in now["claims"]}
    assert "waits for GPU 1, whose process is stopped" in kept["claims"][0]["says"]
    said = [claim["says"] for claim in one["claims"]]
    assert any(text.startswith("GPU 1 is waited for: its process is stopped by") for text in said)
    for claim in (*now["claims"], *kept["claims"], *one["claims"]):
        assert any(is_of(series, claim["promql"]) for series in page), claim["promql"]
    assert "no such incident is kept" in none["error"]


def test_a_claim_from_a_counter_asks_for_its_rate() -> None:
    series = 'gpunode_gpu_seconds_total{gpu="0",state="idle",uuid="a"}'
    seen = Evidence(series, 0.9, 0.5, "idle")
    told = Judgement("0", "a", "unexplained", "starved", 1.0, (seen,), Workload("training", ""))
    (claim,) = verdicts([told]).claims
    assert claim.promql == f"rate({series}[1m])"


def hangs(page: str) -> list[Sample]:
    """The series of a daemon, once it has kept the incident and named who is waited for."""
    found = [one for family in text_string_to_metric_families(page) for one in family.samples]
    names = {one.name for one in found}
    return found if {"gpunode_incident_info", "gpunode_gpu_waited_for"} <= names else []


def is_of(series: Sample, selector: str) -> bool:
    """Whether a selector with labels in quotes selects a series."""
    selector = selector.removeprefix("rate(")
    name, _, labels = selector.partition("{")
    wanted = dict(re.findall(r'(\w+)="([^"]*)"', labels))
    return series.name == name and wanted.items() <= series.labels.items()
