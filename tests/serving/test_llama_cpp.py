"""A real engine under a real load: what llama.cpp's server says of itself is what is exported.

hey sends the load (https://github.com/rakyll/hey), and knows what it sent.
"""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpunode.node.sockets import EPHEMERAL
from tests.conftest import until
from tests.daemon import Daemon, daemon, is_free
from tests.fakes.nvml import FakeDriver
from tests.needs import ROOT, missing, need
from tests.serving.test_engines import series

PROGRAMS = Path(__file__).with_name("llama")
LIBRARIES = ROOT / ".monitoring/llama"
AT_A_TIME, SENT, TOKENS, SLOTS = 6, 48, 200, 2
PROMPT = "The time of a token goes "


@dataclass(frozen=True)
class LlamaServer:
    """A server of llama.cpp that is ready."""

    process: subprocess.Popen[bytes]
    url: str

    def told(self) -> dict[str, float]:
        """What its own page says now."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:
            lines = [line.split() for line in answer.read().decode().splitlines()]
        return {name: float(value) for name, value in (line for line in lines if len(line) == 2)}

    def tokens_of(self, text: str) -> int:
        """Into how many tokens it divides a prompt."""
        body = json.dumps({"content": text, "add_special": True}).encode()
        request = urllib.request.Request(f"{self.url}/tokenize", body)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return len(json.load(answer)["tokens"])

    def load(self, requests: int) -> list[dict[str, str]]:
        """Send requests, some at a time, each for as many tokens; what hey says of each answer."""
        body = json.dumps({"prompt": PROMPT, "n_predict": TOKENS, "ignore_eos": True})
        command = [need("hey"), "-n", str(requests), "-c", str(AT_A_TIME), "-t", "0", "-o", "csv"]
        command += ["-m", "POST", "-T", "application/json", "-d", body, f"{self.url}/completion"]
        said = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        return list(csv.DictReader(said.splitlines()))


def chosen_port() -> int:
    """A free port such as a person would choose."""
    return next(port for port in random.sample(range(20000, EPHEMERAL), 100) if is_free(port))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LlamaServer]:
    """llama.cpp's server with a tiny model that the test has made."""
    if not LIBRARIES.exists():
        pytest.skip(missing("llama.cpp"))
    python = {**os.environ, "PYTHONPATH": str(LIBRARIES)}
    model, port = tmp_path / "tiny.gguf", chosen_port()
    write = [sys.executable, str(PROGRAMS / "tiny_model.py"), str(model)]
    subprocess.run(write, env=python, check=True)
    command = [sys.executable, str(PROGRAMS / "server.py"), str(model), str(port)]
    with subprocess.Popen(command, env=python, stderr=subprocess.DEVNULL) as process:
        running = LlamaServer(process, f"http://127.0.0.1:{port}")

        def ready() -> bool:
            assert process.poll() is None
            try:
                return bool(running.told())
            except OSError:
                return False

        try:
            until(ready)
            yield running
        finally:
            process.kill()


@contextmanager
def watched(server: LlamaServer, fake: FakeDriver) -> Iterator[Daemon]:
    """A daemon on a node whose GPU the server holds, once it has found the engine."""
    fake.write(f"gpu 0 process {server.process.pid} 1073741824\n")
    with daemon("--serving.interval=1", environment=os.environ | fake.environment()) as running:
        until(lambda: requests(running, "running") is not None)
        yield running


def requests(running: Daemon, phase: str) -> float | None:
    told = running.get("/metrics").decode()
    return series(told, "gpunode_serving_requests_in_flight", engine="llama_cpp", phase=phase)


@pytest.mark.integration
def test_a_server_of_llama_cpp_tells_of_the_load_what_its_sender_knows(
    server: LlamaServer, fake: FakeDriver
) -> None:
    prompt = server.tokens_of(PROMPT)
    with watched(server, fake) as running, ThreadPoolExecutor(1) as pool:
        before = server.told()
        answers, seen, shown = [], set(), set()

        def were_told() -> bool:
            """Whether page and metrics have shown the load, of which a fast machine needs more."""
            load = pool.submit(server.load, SENT)
            while not load.done():
                seen.add((requests(running, "running"), requests(running, "waiting")))
                shown.add(json.loads(running.get("/api/v1/node"))["gpus"][0]["serves"])
                time.sleep(0.1)
            answers.extend(load.result())
            in_words = f"{SLOTS} requests run, {AT_A_TIME - SLOTS} wait"
            return (SLOTS, AT_A_TIME - SLOTS) in seen and any(
                words.startswith(in_words) for words in shown
            )

        until(were_told)
        sent = len(answers)
        assert [one["status-code"] for one in answers] == ["200"] * sent
        after = server.told()

        def gained(metric: str, **labels: str) -> float:
            found = series(running.get("/metrics").decode(), metric, **labels)
            assert found is not None, metric
            return found

        def theirs(name: str) -> float:
            return after[f"llamacpp:{name}"] - before[f"llamacpp:{name}"]

        tokens = "gpunode_serving_tokens_total"
        until(lambda: gained(tokens, kind="generated") >= sent * TOKENS)
        assert gained(tokens, kind="generated") == sent * TOKENS == theirs("tokens_predicted_total")
        assert gained(tokens, kind="prompt") == gained(tokens, kind="asked") == sent * prompt
        assert gained(tokens, kind="cached") == theirs("prompt_tokens_cached_total")
        assert gained("gpunode_serving_steps_total") == theirs("n_decode_total")
        part = "gpunode_serving_request_part_seconds_total"
        assert gained(part, part="decode") == pytest.approx(
            theirs("tokens_predicted_seconds_total")
        )
        assert gained(part, part="prefill") == pytest.approx(theirs("prompt_seconds_total"))
        computed = gained(part, part="decode") + gained(part, part="prefill")
        assert 0 < computed < sum(float(one["response-time"]) for one in answers)
        until(lambda: requests(running, "running") == requests(running, "waiting") == 0)
