"""The bench of inference engines without a GPU: what the daemon is asked, and the report."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import cast

import psutil
import pytest
from starlette.testclient import TestClient

from gpunode.config.daemon import Settings
from gpunode.export.web.app import create_app
from gpunode.node.node import Node
from gpunode.node.tape import TapeNode
from gpunode.sources import watch
from tests.bench.serving import bench
from tests.bench.serving.bench import Running, Seen, outcomes, report_of, told_and_true, waited_for
from tests.bench.serving.situations import SITUATIONS
from tests.conftest import until
from tests.daemon import Daemon, daemon, free_port
from tests.fakes.nvml import FakeDriver
from tests.serving.test_engines import series

ROOT = Path(bench.__file__).parents[3]
PUBLISHED = ROOT / "docs/performance/serving.jsonl"

ENGINE = """
import sys, time
from random import Random
from tests.bench.serving.served import Served
from tests.serving.scheduler import Scheduler, Setting

setting = Setting(1e9, users=6, prompt=300, output=20, most_requests=4, before=0.02, after=0.02)
served = Served(Scheduler(setting, Random(1)), lambda step: time.sleep(0.005 + 2e-5 * step.tokens))
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
    seen = Seen(SITUATIONS["queue"], told=told, true=true, same_pages=True)
    assert seen.seconds_off() < 1e-3
    assert seen.off() < 1e-3
    assert seen.outside() > bench.WITHIN


def test_a_part_that_has_what_is_in_none_is_found_wrong() -> None:
    """As of a daemon that takes all of the first token after the queue for prefill."""
    true = {"first": 10.0, "queue": 4.0, "prefill": 3.0}
    told = {"first": 10.0, "queue": 4.0, "prefill": 6.0}
    seen = Seen(SITUATIONS["queue"], told=told, true=true, same_pages=True)
    assert seen.off() == pytest.approx(0.3) == seen.seconds_off()
    assert seen.outside() == pytest.approx(0.3)
    half = Seen(SITUATIONS["queue"], told={x: s / 2 for x, s in true.items()}, true=true)
    assert (half.off(), half.seconds_off()) == (0.0, 0.5)


def test_every_outcome_counts_and_windows_that_overlap_once(tmp_path: Path) -> None:
    kept = tmp_path / "serving.jsonl"
    name = "stalled_collective"
    with kept.open("w") as file:
        for wrong in range(2):
            causes = Counter({name: 45 - wrong, "straggler": wrong})
            waits_for = Counter({"1": 45 - wrong, "": wrong})
            bench._keep(
                file,
                Seen(SITUATIONS[name], causes, seconds=90.5, waits_for=waits_for, last="1"),
            )
    rows = {row.what: row for row in report_of(outcomes(kept)).results}
    assert rows["cause right, of looks in eight situations"].measured == "89 of 90 (99%)"
    windows = rows["runs of each situation, and independent windows in all"]
    assert windows.measured == "2 to 2, 6"
    named = rows["the GPU waited for is named, of looks at a stopped rank"]
    assert (named.measured, named.met) == ("89 of 90", True)


def test_outcomes_that_lack_what_is_measured_are_read(tmp_path: Path) -> None:
    """As those from before the pages were the same, and looks further apart."""
    assert len(outcomes(PUBLISHED)) == len(PUBLISHED.read_text().splitlines())
    kept = tmp_path / "serving.jsonl"
    first = '{"queue": 2.143, "prefill": 21.584, "first": 23.727}'
    kept.write_text(
        f'{{"name": "queue", "causes": {{"queue": 10}}, "on": "x", "told": {first}, '
        f'"true": {first}, "note": ""}}\n'
    )
    rows = {row.what: row for row in report_of(outcomes(kept)).results}
    assert rows["division of the first token, largest difference"].met
    seconds = rows["seconds of the first token and its parts, largest difference"]
    assert (seconds.measured, seconds.met) == ("not measured", False)
