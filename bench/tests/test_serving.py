"""The bench of inference engines without a GPU: what the daemon is asked, and the report."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import psutil
import pytest
from starlette.testclient import TestClient

from bench.serving import bench
from bench.serving.bench import Running, SituationReading, told_and_true, waited_for
from bench.serving.situations import SITUATIONS
from gpunode.config.daemon import Settings
from gpunode.export.web.app import create_app
from gpunode.node.node import Node
from gpunode.node.tape import TapeNode
from gpunode.sources import watch
from tests.conftest import until
from tests.daemon import Daemon, daemon, free_port
from tests.fakes.nvml import FakeDriver
from tests.serving.test_engines import series

ROOT = Path(bench.__file__).parents[2]

ENGINE = """
import sys, time
from random import Random
from bench.serving.served import ServedEngine
from tests.serving.scheduler import Scheduler, Setting

setting = Setting(1e9, users=6, prompt=300, output=20, most_requests=4, before=0.02, after=0.02)
work = lambda step: time.sleep(0.005 + 2e-5 * step.tokens)
served = ServedEngine(Scheduler(setting, Random(1)), work)
served.listen(int(sys.argv[1]))
served.run()
"""


def test_the_gpu_waited_for_is_read_of_what_the_daemon_answers() -> None:
    """Two ranks of a server on real GPUs, of which the second was stopped."""
    node = TapeNode(ROOT / "tests/tapes/real/serve_stopped.jsonl.gz")
    loop = watch(cast(Node, node), Settings())
    for _ in loop.replay(node.clock, node.end):
        pass
    answer = TestClient(create_app(lambda: loop)).get("/api/v1/verdict").json()
    assert {one["gpu"]: (one["cause"], waited_for(one)) for one in answer} == {
        "0": ("stalled_collective", "1"),
        "1": ("stopped", ""),
    }


@pytest.mark.integration
def test_the_daemon_and_the_engine_tell_the_same_seconds_of_the_same_pages(
    tmp_path: Path, fake: FakeDriver
) -> None:
    port = free_port()
    program = tmp_path / "vllm"
    program.write_text(ENGINE)
    command = [sys.executable, str(program), str(port)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}) as child:
        engine = Running((child,), Daemon(psutil.Process(child.pid), port))
        try:
            engine.wait()
            fake.write(f"gpu 0 process {child.pid} 1073741824\n")
            environment = os.environ | fake.environment()
            with daemon("--serving.interval=4", environment=environment) as watched:
                first = "gpunode_serving_first_token_seconds_count"
                until(lambda: series(watched.get("/metrics").decode(), first))
                before = told_and_true(watched, 0, engine)
                after = told_and_true(watched, 0, engine)
        finally:
            child.kill()
    told, true = map(bench._since, before, after)
    seen = SituationReading(SITUATIONS["queue"], told=told, true=true, same_pages=True)
    assert seen.seconds_off() < 1e-3
    assert seen.off() < 1e-3
    assert seen.outside() > bench.TOLERANCE
