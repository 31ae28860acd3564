"""An engine built as vLLM's: FastAPI, prometheus_client, and a process that computes."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from gpunode.config.daemon import Settings
from gpunode.holders.census import Census
from gpunode.serving.requests import ServingEngines
from tests.conftest import until
from tests.daemon import free_port
from tests.machine import OneGpu, exported, read_source
from tests.serving.test_engines import series

SERVER = """
import multiprocessing, sys, time
import uvicorn
from fastapi import FastAPI
from prometheus_client import Counter, Gauge, Histogram, make_asgi_app

def compute(requests, tokens):
    while True:
        requests.recv()
        time.sleep(0.01)
        requests.send(20)

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    ours, theirs = multiprocessing.Pipe()
    worker = multiprocessing.Process(target=compute, args=(theirs, 20), daemon=True)
    worker.start()
    labels = {"model_name": "/models/tiny", "engine": "0"}
    running = Gauge("vllm:num_requests_running", "t", labels).labels(**labels)
    waiting = Gauge("vllm:num_requests_waiting", "t", labels).labels(**labels)
    tokens = Counter("vllm:generation_tokens", "t", labels).labels(**labels)
    first = Histogram(
        "vllm:time_to_first_token_seconds", "t", labels, buckets=(0.001, 0.1, 1.0, 2.5, 10.0)
    ).labels(**labels)
    running.set(0), waiting.set(0)
    app = FastAPI()
    app.mount("/metrics", make_asgi_app())

    @app.get("/pid")
    async def pid():
        return worker.pid

    @app.post("/v1/completions")
    async def complete():
        begin = time.perf_counter()
        running.inc()
        ours.send(1)
        tokens.inc(ours.recv())
        first.observe(time.perf_counter() - begin)
        running.dec()
        return {}

    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
"""


@dataclass(frozen=True)
class Server:
    """An engine whose worker is a child of the process that answers."""

    url: str
    worker: int

    def ask(self, _: int = 0) -> None:
        request = urllib.request.Request(f"{self.url}/v1/completions", b"{}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that is ready."""
    program = tmp_path_factory.mktemp("engine") / "server.py"
    program.write_text(SERVER)
    url = f"http://127.0.0.1:{(port := free_port())}"
    with subprocess.Popen([sys.executable, str(program), str(port)]) as process:

        def worker() -> int:
            try:
                with urllib.request.urlopen(f"{url}/pid", timeout=5) as answer:
                    return int(json.load(answer))
            except OSError:
                return 0

        try:
            until(worker)
            yield Server(url, worker())
        finally:
            process.terminate()


def test_requests_to_a_worker_on_the_gpu_are_those_that_its_parent_counts(server: Server) -> None:
    node = OneGpu(server.worker)
    source = ServingEngines(Census(node), Settings())
    before = exported(read_source(source))
    assert series(before, "gpunode_serving_requests_in_flight", model="tiny", phase="running") == 0
    with ThreadPoolExecutor(4) as load:
        list(load.map(server.ask, range(40)))
    node.stepped.now += 10
    after = exported(read_source(source))
    assert series(after, "gpunode_serving_tokens_total", kind="generated") == 800
    assert series(after, "gpunode_serving_first_token_seconds_count") == 40
    assert series(after, "gpunode_serving_tokenless_seconds") == 0
