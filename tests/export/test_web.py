"""The HTTP endpoints over a replayed incident."""

from __future__ import annotations

import socket
import threading
from typing import Any, cast

import httpx2
import pytest
from starlette.testclient import TestClient

from gpunode.config.daemon import Settings
from gpunode.export.web.app import create_app
from gpunode.export.web.entrance import Entrance
from gpunode.export.web.node import node
from gpunode.export.web.server import listen, serve
from gpunode.gpu.ledger import STATES
from gpunode.host import cpu, memory
from gpunode.loop import Loop
from gpunode.node.node import Node, SteppedClock
from gpunode.source import Absent, Place, Source
from gpunode.sources import watch
from gpunode.unread import Unknown
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.causes.cause import Cause
from gpunode.verdict.findings import gpu_list
from gpunode.verdict.guidance import Guidance
from gpunode.verdict.reasons import REASONS, Reason
from gpunode.words import CLOSER
from tests.export.page import scenes
from tests.replay import loop_over, play, replayed, tape

LINE = Unknown("line", "a line of unknown form")


@pytest.fixture(scope="module")
def client() -> TestClient:
    loop, _ = replayed("straggler")
    return TestClient(create_app(lambda: loop))


def test_metrics_come_in_the_format_that_is_asked_for(client: TestClient) -> None:
    text = client.get("/metrics", headers={"accept": "text/plain"})
    assert text.headers["content-type"].startswith("text/plain; version=0.0.4")
    openmetrics = client.get(
        "/metrics", headers={"accept": "application/openmetrics-text;version=1.0.0"}
    )
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    assert openmetrics.text.endswith("# EOF\n")


def test_metrics_are_compressed_when_asked(client: TestClient) -> None:
    plain = client.get("/metrics", headers={"accept-encoding": "identity"})
    compressed = client.get("/metrics", headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert compressed.headers["content-encoding"] == "gzip"
    assert int(compressed.headers["content-length"]) < len(plain.content) / 5
    assert compressed.text == plain.text


def test_every_page_answers_get_and_head_and_nothing_else(client: TestClient) -> None:
    for path in ("/", "/metrics", "/healthz", "/readyz", "/api/v1/gpus"):
        assert client.get(path).status_code == 200
        head = client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert client.request(method, path).status_code == 405


def test_an_unknown_page_is_not_found(client: TestClient) -> None:
    assert client.get("/metric").status_code == 404


def test_it_is_ready_once_the_first_window_is_complete() -> None:
    node = tape("straggler")
    loop = loop_over(node)
    client = TestClient(create_app(lambda: loop))
    assert client.get("/readyz").status_code == 503
    for moment in loop.replay(node.clock, node.end):
        if moment < 2.0:
            assert client.get("/readyz").status_code == 503
            assert client.get("/healthz").status_code == 200
    assert client.get("/readyz").status_code == 200


def test_the_api_tells_each_gpu_and_what_its_ledger_rests_on(client: TestClient) -> None:
    first, second = client.get("/api/v1/gpus").json()
    assert (first["gpu"], second["gpu"]) == ("0", "1")
    assert first["times"]["gpu_activity"] == second["times"]["gpu_activity"]
    activity = first["gpu_activity"]
    assert activity["ledger"].keys() == STATES.keys()
    assert activity["sensors"]["gpm"] is True
    assert sum(activity["state"].values()) == pytest.approx(1)
    assert activity["activity"]["graphics"] > 0.9


PAGE = ["/", "/page/page.js", "/page/page.css", "/page/palette.css", "/page/icon.svg"]


def test_the_page_runs_no_script_and_style_but_its_own(client: TestClient) -> None:
    for path in PAGE:
        headers = client.get(path).headers
        rules = headers["content-security-policy"].split(";")
        policy = dict(rule.strip().split(" ", 1) for rule in rules)
        assert policy["default-src"] == "'none'", path
        for kind in ("script-src", "style-src", "connect-src", "img-src"):
            assert policy[kind] == "'self'", path
        assert headers["x-content-type-options"] == "nosniff", path


def test_what_a_browser_has_is_not_sent_again(client: TestClient) -> None:
    for path in (*PAGE, "/api/v1/node", "/api/v1/history"):
        first = client.get(path)
        again = client.get(path, headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b""), path
        other = client.get(path, headers={"if-none-match": 'W/"other"'})
        assert (other.status_code, other.content) == (200, first.content), path
        plain = client.get(path, headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers, path
        assert plain.content == first.content, path


def test_a_request_reads_no_file(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("a file is opened")

    for path in PAGE:  # what imports late has done so
        client.get(path)
    for name in ("builtins.open", "io.open", "os.open", "pathlib.Path.open"):
        monkeypatch.setattr(name, read)
    for path in [*PAGE, "/api/v1/node", "/api/v1/history?since=5", "/metrics"]:
        assert client.get(path).status_code == 200


class Nothing:
    """Finds no GPU, and says why."""

    name = "gpu"

    def find(self) -> list[tuple[Place, Source]]:
        raise Absent("libnvidia-ml.so.1 cannot be loaded")


def test_the_node_says_why_it_has_no_gpu() -> None:
    loop = Loop(SteppedClock(0.0), [Nothing()], find_every=10.0)
    loop.find()
    (finding,) = node(loop).findings
    assert finding.urgency == "now"
    assert finding.title == "No GPU is seen on this node"
    assert finding.detail == "libnvidia-ml.so.1 cannot be loaded"


COUNTED = {
    "GPU 3": ["3"],
    "GPUs 0 and 1": ["0", "1"],
    "GPUs 0–2": ["0", "1", "2"],  # noqa: RUF001
    "GPUs 0–2 and 5": ["0", "1", "2", "5"],  # noqa: RUF001
    "GPUs 0, 2, 3 and 9–11": ["0", "2", "3", "9", "10", "11"],  # noqa: RUF001
    "GPUs 0:0, 0:1 and 1": ["0:0", "0:1", "1"],
}


def test_gpus_are_counted_in_words() -> None:
    assert {words: gpu_list(labels) for words, labels in COUNTED.items()} == {
        words: words for words in COUNTED
    }


def test_every_cause_and_reason_has_guidance() -> None:
    told: list[Cause | Reason] = [*CAUSES.values(), *REASONS.values()]
    closer = [Guidance("soon", one) for one in CLOSER.values()]
    assert set(CLOSER) == {one.name for one in CAUSES.values() if one.closer}
    for guidance in (*(one.guidance for one in told), *closer):
        assert guidance.remedy.count("`") % 2 == 0
        assert guidance.urgency == "fine" or guidance.remedy


@pytest.mark.parametrize(
    ("alone", "urgency", "words"),
    [
        ({"compute": 0.9, "communication": 0.1}, "soon", "which takes longer than the others"),
        ({"starved": 1.0}, "soon", "and nothing on this node tells why"),
    ],
)
def test_a_gpu_that_is_waited_for_is_as_urgent_as_the_wait(
    alone: dict[str, float], urgency: str, words: str
) -> None:
    waiting = [scenes.actor(n, scenes.WAITING) for n in range(3)]
    scene = scenes.Scene(*waiting, scenes.actor(3, alone))
    now = node(scene.play(60).stage.loop)
    (finding,) = now.findings
    assert finding.urgency == urgency
    assert finding.title == f"GPUs 0\N{EN DASH}2 wait for GPU 3, {words}"
    assert finding.gpus == ("3", "0", "1", "2")
    assert [gpu.urgency for gpu in now.gpus] == [urgency] * 4
    assert now.gpus[3].waited_for_by == ["0", "1", "2"]


def watched(name: str) -> Loop:
    """All sources and views of a node, after a tape."""
    of_tape = tape(name)
    loop = watch(cast(Node, of_tape), Settings())
    play(loop, of_tape)
    return loop


def test_the_names_of_dcgm_are_not_there_unless_asked_for() -> None:
    names = {sample.metric.name for sample in watched("h200_hang").samples()}
    assert "gpunode_gpu_info" in names
    assert not [name for name in names if "DCGM" in name]


def test_an_idle_gpu_beside_a_hang_is_not_told_to_be_well() -> None:
    hang, idle = node(watched("hang")).findings  # a tape without the jobs of processes
    assert (hang.urgency, hang.gpus) == ("now", ("0",))
    assert (idle.urgency, idle.gpus) == ("soon", ("1",))
    assert "the one that does not come" in idle.remedy
    (alone,) = node(watched("h200_held")).findings
    assert alone.urgency == "note"
    assert "Nothing is broken" in alone.remedy


def test_every_gpu_of_a_hang_has_the_remedy_of_the_headline() -> None:
    now = node(watched("h200_hang"))
    remedies = {now.findings[0].remedy, *(gpu.remedy for gpu in now.gpus)}
    assert remedies == {"Continue it: `kill -CONT 2711`. Or detach the debugger, or end the job."}


def test_what_is_unexplained_sends_nobody_away_from_a_node_that_is_short() -> None:
    scene = scenes.Scene(scenes.actor(0, {"starved": 1.0}))
    unexplained, *rest = node(scene.play(60).stage.loop).findings
    assert "nothing that is read on this node explains it" in unexplained.title
    assert rest == []
    scene.host.gauges[memory.AVAILABLE, ()] = 0.0
    starved, short = node(scene.play(60).stage.loop).findings
    assert starved.title == "GPU 0 is held with nothing to run"
    assert "begin there" in starved.remedy
    assert "host memory in use" in short.title


def test_what_is_not_read_is_not_said_to_explain_nothing() -> None:
    scene = scenes.Scene(scenes.actor(0, {"starved": 1.0}))
    scene.host.gauges = {(cpu.CORES, ("0",)): 8.0, (cpu.BUSY_CORES, ("0",)): 1.0}
    scene.host.rates = {}
    (unexplained,) = node(scene.play(60).stage.loop).findings
    assert "what may explain it is not all read on this node" in unexplained.title
    assert "`gpunode doctor`" in unexplained.remedy


def test_all_is_well_only_where_every_gpu_is_known_to_be() -> None:
    scene = scenes.at_work(2)
    assert node(scene.play(2).stage.loop).calm == "Nothing is known to be wrong"
    assert node(scene.play(60).stage.loop).calm == "All is well"
    scenes.act(scene.actors[1], {"unknown": 1.0}, 300.0)
    now = node(scene.play(60).stage.loop)
    assert now.calm == "Nothing is known to be wrong"
    assert [one.title for one in now.findings] == ["GPU 1 is in use, but no sensor tells what for"]
    scenes.act(scene.actors[0], scenes.STARVED, 300.0)
    assert node(scene.play(60).stage.loop).calm == ""
    assert node(scenes.Scene().play(60).stage.loop).calm == ""


def test_all_is_not_well_where_a_source_is_silent() -> None:
    scene = scenes.at_work()
    scene.silent = {"nfs": "/proc/self/mountstats: Permission denied"}
    assert node(scene.play(60).stage.loop).calm == "Nothing is known to be wrong"


def test_all_is_not_well_for_an_hour_after_something_was_not_understood() -> None:
    scene = scenes.at_work(1)
    scene.play(60)
    scene.host.unread = (LINE.seen("NVRM: GPU0 forgets its name"),)
    now = node(scene.play(20).stage.loop)
    assert now.calm == "Nothing is known to be wrong"
    assert [(met.source, met.what, met.examples) for met in now.unread] == [
        ("host", "line", ("NVRM: GPU0 forgets its name",))
    ]
    scene.host.unread = ()
    assert node(scene.play(3500).stage.loop).calm == "Nothing is known to be wrong"
    later = scene.play(200).stage.loop
    assert node(later).calm == "All is well"
    answer = TestClient(create_app(lambda: later)).get("/api/v1/unread").json()
    assert [(met["source"], met["what"], met["times"]) for met in answer] == [("host", "line", 2)]


def test_a_wait_that_ends_by_itself_is_no_alarm() -> None:
    waiting = [scenes.actor(n, {"blocked": 1.0}) for n in range(3)]
    scene = scenes.Scene(*waiting, scenes.actor(3, {"compute": 1.0}))
    now = node(scene.play(60).stage.loop)
    (finding,) = now.findings
    assert finding.urgency == "note"
    assert finding.title.endswith("wait for GPU 3, which is at work alone, as in an evaluation")
    assert {gpu.urgency for gpu in now.gpus} == {"note"}


def test_a_port_without_an_address_is_open_to_ipv4_and_ipv6(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for of_both in (True, False):  # as where the kernel was started without IPv6
        if not of_both:
            monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
        with listen(("", 0)) as listener:
            port = listener.getsockname()[1]
            for host in ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
                socket.create_connection((host, port), 5).close()


def test_nobody_has_another_address_by_saying_so() -> None:
    """Passwords and connections count for the origin that the kernel tells."""

    async def echo(scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(scope["client"][0]).encode()})

    listener = listen(("127.0.0.1", 0))
    served = (cast(Any, echo), listener, Entrance(None))
    threading.Thread(target=serve, args=served, daemon=True).start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    answer = httpx2.get(url, headers={"x-forwarded-for": "10.9.9.9"})
    assert answer.text == "127.0.0.1"


def test_no_redirect_repeats_what_a_client_calls_the_server() -> None:
    loop, _ = replayed("straggler")
    client = TestClient(create_app(lambda: loop), base_url="http://evil.example")
    assert client.get("/healthz/", follow_redirects=False).status_code == 404
