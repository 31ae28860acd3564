"""The HTTP endpoints over a replayed incident."""

from __future__ import annotations

import pytest
from fastapi.routing import APIRoute
from starlette.testclient import TestClient

from gpunode.export.web.app import create_app
from gpunode.gpu.ledger import STATES
from tests.replay import loop_over, replayed, tape


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


@pytest.mark.parametrize("path", ["/", "/metrics", "/healthz", "/readyz", "/api/v1/gpus"])
def test_every_page_answers_get_and_head_and_nothing_else(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 200
    head = client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client.request(method, path).status_code == 405


def test_no_endpoint_changes_anything(client: TestClient) -> None:
    routes = [route for route in client.app.routes if isinstance(route, APIRoute)]  # type: ignore[attr-defined]
    assert routes
    assert all((route.methods or set()) <= {"GET", "HEAD"} for route in routes)


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
