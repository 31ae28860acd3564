"""``gpunode mcp`` as an agent calls it: the SDK's client over stdio, on played incidents."""

from __future__ import annotations

import calendar
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, StdioServerParameters
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from starlette.testclient import TestClient

from gpunode import words
from gpunode.config.daemon import IncidentSettings, Settings
from gpunode.config.prometheus import PrometheusSettings
from gpunode.export.web.app import create_app
from gpunode.export.web.guard import TrustedApplication
from gpunode.incidents.black_box import BlackBox
from gpunode.node.node import Node
from gpunode.node.tape import TapeNode
from gpunode.recorded import INCIDENTS
from gpunode.report.prometheus import Prometheus, Secrets
from gpunode.sources import watch
from gpunode.verdict.case import Evidence
from tests.cli.conftest import FIRST, NEXT, Stage
from tests.conftest import until
from tests.daemon import Daemon, daemon, free_port
from tests.prometheus.incidents import replay
from tests.verdict.test_verdict import CAUSE, ENDED, REAL, SETTINGS

pytestmark = pytest.mark.integration

TRUTH = {**CAUSE, **ENDED}
HUNG = ["h200_hang", "stopped", "killed", "scalar", "looping"]
AGENT = ("holds_up", "waited_for", "incidents", "changed")


Calls = list[tuple[str, dict[str, str]]]
"""Tools, each with its arguments."""

Asked = Callable[[Calls], list[dict[str, Any]]]
"""What the tools answer, one after the other; an error as ``{"error": …}``."""


@dataclass(frozen=True, slots=True)
class Agent:
    """A client that has started ``gpunode mcp``, and the thread in which it lives."""

    portal: BlockingPortal
    client: Client

    def asks(self, calls: Calls) -> list[dict[str, Any]]:
        found = []
        for name, arguments in calls:
            result = self.portal.call(self.client.call_tool, name, arguments)
            if result.is_error:
                found.append({"error": str(result.content)})
            else:
                found.append(dict(result.structured_content or {}))
        return found


@contextmanager
def started(stage: Stage, *options: str) -> Iterator[Agent]:
    command = ["-m", "gpunode", "mcp", f"--prometheus.url={stage.url}", *options]
    parameters = StdioServerParameters(command=sys.executable, args=command, env={**os.environ})
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Client(parameters)) as client,
    ):
        yield Agent(portal, client)


@pytest.fixture(scope="module")
def agent(stage: Stage) -> Iterator[Agent]:
    with started(stage) as found:
        yield found


@pytest.fixture(scope="module")
def asked(agent: Agent) -> Asked:
    return agent.asks


def proven(server: Prometheus, claim: Mapping[str, Any]) -> bool:
    """Whether Prometheus says the same, asked for itself."""
    found = server.at(claim["promql"], claim["at"])
    return any(
        value == pytest.approx(claim["value"]) and dict(labels) == claim["labels"]
        for labels, value in found
    )


def test_the_cause_of_nine_in_ten_recorded_incidents_is_told(asked: Asked) -> None:
    answers = asked([("holds_up", {"job": name}) for name in TRUTH])
    wrong = {}
    for (name, causes), answer in zip(TRUTH.items(), answers, strict=True):
        told = {one["labels"]["cause"] for one in answer["claims"] if "cause" in one["labels"]}
        if told - {"none"} != set(causes) - {"none"}:
            wrong[name] = told
    assert len(wrong) <= 0.1 * len(TRUTH), wrong


def test_no_claim_is_without_a_series(stage: Stage, asked: Asked) -> None:
    calls = [(tool, {"job": name}) for name in (*HUNG, "pair") for tool in AGENT]
    claims = [one for answer in asked(calls) for one in answer["claims"]]
    assert len(claims) > 20
    with closing(Prometheus(PrometheusSettings(url=stage.url), Secrets())) as server:
        assert [one for one in claims if not proven(server, one)] == []


def test_who_is_waited_for_is_told_with_the_reason(asked: Asked) -> None:
    (answer,) = asked([("waited_for", {"job": "h200_hang"})])
    (claim,) = answer["claims"]
    assert claim["says"].startswith("the others wait for GPU 1 of h200_hang: its process is stop")
    assert claim["labels"]["reason"] == "stopped"


def test_of_each_gpu_that_is_waited_for_the_latest_reason_is_told(asked: Asked) -> None:
    """What was thought of it a minute before is in Prometheus, too."""
    wanted = {"killed": "gone", "looping": "cpu_bound", "serve_stopped": "stopped"}
    answers = asked([("waited_for", {"job": name}) for name in wanted])
    told = [[one["labels"]["reason"] for one in answer["claims"]] for answer in answers]
    assert told == [[reason] for reason in wanted.values()]


def test_since_when_a_job_hangs_is_told(stage: Stage, asked: Asked) -> None:
    (answer,) = asked([("holds_up", {"job": "h200_hang"})])
    (since,) = sentences(answer, "stalled_collective: since")
    assert "stall-0 tells" in since
    began = calendar.timegm(time.strptime(since.split("since ")[1][:19], "%Y-%m-%d %H:%M:%S"))
    assert 10 < stage.moment - began < 30


def test_which_incidents_there_were_and_which_node_began(asked: Asked) -> None:
    (answer,) = asked([("incidents", {"job": "pair"})])
    first, second, began = [one["says"] for one in answer["claims"]]
    assert first.startswith(f"{FIRST}: GPUs wait for another")
    assert second.startswith(f"{NEXT}: GPUs wait for another")
    assert began.startswith(f"{FIRST} began")


def test_what_is_not_recorded_is_not_known(asked: Asked) -> None:
    changed, without, waited, missing = asked(
        [
            ("changed", {"job": "h200_hang"}),
            ("changed", {"job": "starved"}),
            ("waited_for", {"job": "healthy"}),
            ("holds_up", {"job": "nobody/nothing"}),
        ],
    )
    assert sentences(changed) == ["no XID on its nodes within a day"]
    assert "versions: not recorded" in changed["not_known"]
    assert "XIDs: not recorded" in without["not_known"]
    assert [one["value"] for one in waited["claims"]] == [0.0]
    assert sentences(waited) == ["no GPU of healthy waits in a collective"]
    assert "held no GPU" in missing["error"]


def test_the_jobs_that_hold_gpus_are_listed(asked: Asked) -> None:
    (answer,) = asked([("jobs", {})])
    assert {"pair holds 4 GPUs", "h200_held holds 1 GPU"} <= {*sentences(answer)}


def test_how_many_gpus_a_cause_holds_up_is_not_taken_for_the_time_it_costs(asked: Asked) -> None:
    mild, full = asked([("holds_up", {"job": name}) for name in ("starved_mild", "memfull")])
    (cause,) = [one for one in mild["claims"] if one["labels"].get("cause") == "unexplained"][:1]
    assert cause["says"].startswith(
        "2 of its 2 GPUs: what costs them most is unexplained pause (held with"
    )
    assert cause["value"] == 2
    (lost,) = [one for one in mild["claims"] if one["labels"].get("state") == "starved"]
    assert lost["value"] == pytest.approx(0.26, abs=0.03)
    assert sentences(full)[0] == (
        "2 of its 2 GPUs: memory capacity limit (at work, with memory nearly full); "
        "no time is known to be lost to it"
    )


def test_what_could_not_be_read_is_not_taken_for_nothing(asked: Asked) -> None:
    (answer,) = asked([("holds_up", {"job": "loader_cpu"})])
    assert not any("nothing on this node explains it" in text for text in sentences(answer))
    assert sentences(answer, "of 2 of its processes, `stat` cannot be read")
    assert answer["not_known"] == [
        "of processes of loader_cpu that cannot be read, what they do: that may explain it"
    ]


def test_a_job_that_runs_nothing_is_not_told_to_lose_nothing(asked: Asked) -> None:
    held, healthy, unknown = asked(
        [("holds_up", {"job": name}) for name in ("h200_held", "healthy", "uncounted")]
    )
    assert sentences(held) == [
        "100 % of the time of its GPUs within 2m: a job holds the GPU and has run nothing for a "
        "while"
    ]
    assert sentences(healthy)[0] == "2 of its 2 GPUs: no cause of a loss is found"
    assert words.STATES["compute"].sentence in sentences(healthy)[1]
    (share,) = unknown["not_known"]
    assert share.endswith("not known, the sensors cannot tell")
    assert share in sentences(unknown)


def test_a_hang_comes_before_what_another_gpu_does_meanwhile(asked: Asked) -> None:
    (answer,) = asked([("holds_up", {"job": "looping"})])
    causes = [one["labels"]["cause"] for one in answer["claims"] if "cause" in one["labels"]]
    assert causes[:2] == ["stalled_collective", "host_compute"]
    since = [text for text in sentences(answer) if ": since 20" in text]
    assert since[0].startswith("stalled_collective: since")
    assert since[1].endswith("UTC or up to 30 s before")


def test_a_wait_for_a_gpu_that_nobody_names_is_told_with_who_has_no_work(asked: Asked) -> None:
    (answer,) = asked([("waited_for", {"job": "straggler"})])
    assert sentences(answer)[0] == "GPU 0 of straggler is waiting for a slower rank of the job"
    assert re.match(r"GPU 1 of straggler, .* had no work for \d\d % of 2m", sentences(answer)[1])
    assert answer["not_known"] == ["for which GPU waits: GPU 0 of straggler"]


def test_of_the_incidents_of_one_node_it_is_told_what_is_not_known(asked: Asked) -> None:
    (answer,) = asked([("incidents", {"job": "h200_hang"})])
    assert sentences(answer)[1] == "h200_hang alone has incidents"
    (where,) = answer["not_known"]
    assert where.startswith("where in the code: not in Prometheus")


def test_copies_are_not_told_to_be_of_memory_that_nobody_saw(asked: Asked) -> None:
    (answer,) = asked([("holds_up", {"job": "h2d"})])
    assert "whether their memory is pinned is not known" in sentences(answer)[0]


def test_agents_are_told_what_now_is_and_over_what_a_rate_was_taken(agent: Agent) -> None:
    instructions = str(agent.client.instructions)
    assert "`holds_up`, then `waited_for`, then `incidents`" in instructions
    assert "within the last 2 minutes; times are UTC" in instructions
    assert "rates of a node are of its last 1 to 30 s" in instructions


def test_tools_only_read(agent: Agent) -> None:
    tools = agent.portal.call(agent.client.list_tools).tools
    assert {*AGENT, "jobs"} == {tool.name for tool in tools}
    assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
    assert all(tool.output_schema for tool in tools)


OF_A_NODE: Calls = [
    ("node_now", {}),
    ("node_incidents", {}),
    ("node_incident", {"incident": "latest"}),
]


def test_a_node_is_asked_as_well_and_named_where_it_does_not_answer(stage: Stage) -> None:
    with ExitStack() as stack:
        running = stack.enter_context(daemon("--log.level=error"))
        address = f"http://127.0.0.1:{running.port}"
        with started(stage, f"--node={address}") as agent:
            now, kept, latest = agent.asks(OF_A_NODE)
            stack.close()
            gone = agent.asks(OF_A_NODE[:2])
    assert now["claims"] == []
    assert now["not_known"] == ["what holds a GPU up: no GPU is seen on this node"]
    assert kept["not_known"] == latest["not_known"] == ["no incident is kept"]
    for answer in gone:
        assert f"--node {address}: no daemon answers" in answer["error"]


@dataclass(frozen=True, slots=True)
class TapeEnd:
    """What a node tells at the end of a tape: its page of metrics, and the answers to an agent."""

    page: list[Sample]
    now: dict[str, Any]
    kept: dict[str, Any]
    latest: dict[str, Any]

    def value(self, series: str) -> float:
        (found,) = (one.value for one in self.page if is_of(one, series))
        return found


@pytest.fixture(scope="module")
def told_by(stage: Stage) -> Iterator[Callable[[str], TapeEnd]]:
    """What a node tells at the end of a tape."""
    nodes: list[TestClient] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = nodes[-1].get(self.path)
            self.send_response(answer.status_code)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with started(stage, f"--node=http://127.0.0.1:{server.server_port}") as agent:

            @cache
            def told(name: str) -> TapeEnd:
                nodes.append(at_the_end(name))
                return TapeEnd(series(nodes[-1].get("/metrics").text), *agent.asks(OF_A_NODE))

            yield told
        server.shutdown()


def at_the_end(name: str) -> TestClient:
    """A node that has played a tape to its end."""
    real = REAL / f"{name}.jsonl.gz"
    tape = TapeNode(real if real.exists() else INCIDENTS / real.name)
    settings = Settings() if real.exists() else SETTINGS
    box = BlackBox(cast(Node, tape), IncidentSettings(), code=False)
    loop = watch(box.node, settings, box)
    for _ in loop.replay(tape.clock, tape.end):
        pass
    return TestClient(
        TrustedApplication(create_app(lambda: loop)),
        base_url="http://localhost:9816",
        client=("127.0.0.1", 1),
    )


def test_a_share_of_a_node_is_asked_for_as_a_share(told_by: Callable[[str], TapeEnd]) -> None:
    """A quotient of gauges is asked for as one; of counters, with both of their rates."""
    for tape, above, below in (
        ("h200_shm", "gpunode_job_shm_used_bytes", "gpunode_job_shm_size_bytes"),
        ("memfull", "gpunode_gpu_memory_used_bytes", "gpunode_gpu_memory_size_bytes"),
    ):
        told = told_by(tape)
        (claim,) = [one for one in told.now["claims"] if one["promql"].startswith(above)][:1]
        upper, _, lower = claim["promql"].partition(" / ")
        assert lower.strip("(").startswith(below)
        whole = sum(
            sign * told.value(one)
            for sign, one in zip((1, -1), lower.strip("()").split(" - "), strict=False)
        )
        assert claim["value"] == pytest.approx(told.value(upper) / whole, rel=1e-3)
    (tensor,) = [
        one
        for one in told_by("fp32").now["claims"]
        if 'unit="tensor"' in one["promql"] and 'gpu="0"' in one["promql"]
    ]
    assert re.fullmatch(
        r"rate\(gpunode_gpu_active_seconds_total{.*}\[1m]\) / ignoring \(unit, state\) group_left "
        r'rate\(gpunode_gpu_seconds_total{.*state="compute".*}\[1m]\)',
        tensor["promql"],
    )


def test_a_node_says_what_it_could_not_read(told_by: Callable[[str], TapeEnd]) -> None:
    now = told_by("loader_cpu").now
    unread = "processes of which `stat` cannot be read: what they do is not known"
    assert f"GPU 0 (unexplained pause): {unread}" in sentences(now)
    assert f"GPU 0: what may explain it; {unread}" in now["not_known"]


def test_a_node_tells_for_how_long_and_what_to_do(told_by: Callable[[str], TapeEnd]) -> None:
    now = told_by("starved").now
    first = sentences(now)[0]
    assert re.match(r"GPU 0: held with nothing to run, .* explains it, for \d+ s", first), first
    assert any(text.startswith("GPUs 0 and 1: See what") for text in now["not_proven"])


def test_a_held_gpu_that_runs_nothing_is_told(told_by: Callable[[str], TapeEnd]) -> None:
    now = told_by("h200_held").now
    (idle,) = now["claims"]
    assert re.match(
        r"GPU 0: held, and has run nothing for a while.* 100 % of its last seconds: a job",
        idle["says"],
    )
    assert idle["labels"]["state"] == "idle"
    assert now["not_known"] == []


def test_time_that_no_sensor_tells_is_not_known(told_by: Callable[[str], TapeEnd]) -> None:
    now = told_by("uncounted").now
    unknown = [one for one in now["claims"] if one["labels"].get("state") == "unknown"]
    assert unknown
    assert {one["says"] for one in unknown} == {*now["not_known"]}


def test_the_headline_of_an_incident_is_what_is_known_last(
    told_by: Callable[[str], TapeEnd],
) -> None:
    told = told_by("looping")
    assert any("its process keeps a whole CPU busy" in text for text in sentences(told.now))
    assert "nothing on this node tells why" not in sentences(told.kept)[0]
    assert "nothing on this node tells why" not in sentences(told.latest)[0]


def test_where_a_process_stands_is_told_without_proof(told_by: Callable[[str], TapeEnd]) -> None:
    told = told_by("serve_stopped")
    for answer in (told.now, told.kept, told.latest):
        assert not any("main thread" in text for text in sentences(answer))
        assert any("main thread, is stopped by a signal" in text for text in answer["not_proven"])


def test_a_claim_of_a_node_has_the_labels_that_the_query_gives(
    told_by: Callable[[str], TapeEnd],
) -> None:
    for tape in ("h200_hang", "uncounted", "fp32"):
        told = told_by(tape)
        assert told.now["claims"]
        for claim in (*told.now["claims"], *told.latest["claims"]):
            if claim["promql"].startswith("max by (incident, kind)"):
                assert claim["labels"].keys() == {"incident", "kind"}
                continue
            (of,) = {tuple(one.labels.items()) for one in told.page if is_of(one, claim["promql"])}
            assert dict(of) == claim["labels"]
        assert all(claim["cause"] for claim in told.now["claims"])


def test_the_way_that_data_takes_is_told(told_by: Callable[[str], TapeEnd]) -> None:
    claims = [one for one in told_by("comm_nop2p").now["claims"] if one["labels"]["gpu"] == "0"]
    pcie, nvlink = claims[-2:]
    assert pcie["says"].endswith("bytes per second over PCI Express")
    assert pcie["value"] > 1e10
    assert nvlink["says"].endswith("bytes per second over the NVLinks, which move nothing")
    assert nvlink["value"] == 0


def test_a_node_on_which_a_job_hangs_is_asked(stage: Stage, tmp_path: Path) -> None:
    port = free_port()
    with replay("h200_hang", port, tmp_path) as child:
        node = Daemon(psutil.Process(child.pid), port)
        node.wait_for("/readyz", child)
        page = until(lambda: hangs(node.get("/metrics").decode()))
        with started(stage, f"--node=http://127.0.0.1:{port}") as agent:
            unknown = {"incident": "20260101T000000Z-stall-0"}
            now, kept, one, none = agent.asks([*OF_A_NODE, ("node_incident", unknown)])
    assert "stalled_collective" in {claim["cause"] for claim in now["claims"]}
    assert "waits for GPU 1, whose process is stopped" in kept["claims"][0]["says"]
    assert sentences(one, "GPU 1 is waited for: its process is stopped by")
    for claim in (*now["claims"], *kept["claims"], *one["claims"]):
        assert any(is_of(series, claim["promql"]) for series in page), claim["promql"]
    assert "no such incident is kept" in none["error"]


def test_a_claim_from_a_counter_asks_for_its_rate() -> None:
    series = 'gpunode_gpu_seconds_total{gpu="0",state="idle",uuid="a"}'
    assert Evidence(series, 0.9, 0.5, "idle").promql == f"rate({series}[1m])"


def sentences(answer: Mapping[str, Any], begins: str = "") -> list[str]:
    """The sentences of an answer that begin so."""
    return [one["says"] for one in answer["claims"] if one["says"].startswith(begins)]


def series(page: str) -> list[Sample]:
    return [one for family in text_string_to_metric_families(page) for one in family.samples]


def hangs(page: str) -> list[Sample]:
    """The series of a daemon, once it has kept the incident and named who is waited for."""
    found = series(page)
    names = {one.name for one in found}
    return found if {"gpunode_incident_info", "gpunode_gpu_waited_for"} <= names else []


def is_of(series: Sample, selector: str) -> bool:
    """Whether a selector with labels in quotes selects a series."""
    selector = re.sub(r"^(rate|min_over_time|max_over_time|max by .*)\(", "", selector)
    name, _, labels = selector.partition(" / ")[0].partition("{")
    wanted = dict(re.findall(r'(\w+)="([^"]*)"', labels))
    return series.name == name and wanted.items() <= series.labels.items()
