"""Random programs without a GPU: what seeds draw, and how windows and truth come together."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.truth import drawn, generate, lane
from bench.truth.drawn import FAMILIES, parameters, series, split_name
from bench.truth.expected import expected
from bench.truth.generate import drawn_from, run
from bench.truth.kept import table, worst
from bench.truth.kernels import STATES
from bench.truth.recorder import Closed, Windows
from gpunode.gpu.window import Window
from gpunode.verdict.causes import CAUSES
from tests.fakes.nvml import FakeDriver
from tests.windows.recorded import Recorded, load

SEEDS = range(20)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_draws_the_same_program_each_time(family: str) -> None:
    drawn_now = [parameters(family, seed) for seed in SEEDS]
    assert drawn_now == [parameters(family, seed) for seed in SEEDS]
    assert len({json.dumps(each) for each in drawn_now}) > len(SEEDS) / 2


@pytest.mark.parametrize("family", FAMILIES)
def test_a_program_knows_from_its_environment_which_it_is(family: str) -> None:
    for seed in SEEDS:
        made = series([f"{family}:{seed}"])
        assert split_name(made.environment[drawn.PROGRAM]) == (family, seed)
        assert made.gpus == FAMILIES[family].gpus


def test_drawing_does_not_need_pytorch() -> None:
    code = "import sys, bench.truth.generate; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_family_has_its_turn() -> None:
    programs = drawn_from(list(FAMILIES), seed=3)
    first = [next(programs) for _ in FAMILIES]
    assert {split_name(name)[0] for name in first} == set(FAMILIES)
    again = [next(programs) for _ in FAMILIES]
    assert not set(first) & set(again)


@pytest.mark.parametrize("family", FAMILIES)
def test_some_cause_is_right_whatever_the_gpu_did(family: str) -> None:
    known = {*CAUSES, "memory_allocation"}
    for seed in SEEDS:
        for state in (*STATES, "none"):
            causes = expected(family, parameters(family, seed), {state: 1.0})
            assert causes
            assert known.issuperset(causes)


def test_the_largest_loss_is_named_and_a_small_one_need_not_be() -> None:
    drawn_now = parameters("matmul", 1) | {"gap": "burn"}
    assert expected("matmul", drawn_now, {"compute": 0.5, "starved": 0.5}) == [
        "data_loading_cpu",
        "host_compute",
    ]
    assert "none" in expected("matmul", drawn_now, {"compute": 0.88, "starved": 0.12})
    assert expected("ddp", parameters("ddp", 1), {"blocked": 0.2, "communication": 0.7}) == [
        "communication"
    ]


STAND_IN = """
import json, os, sys, time
from pathlib import Path
import numpy as np
from bench.truth.kernels import KINDS, Trace
from bench.truth.series_files import names_file, trace_file
folder = Path(sys.argv[4]).parent
def say(word):
    print(json.dumps([time.time(), word]), flush=True)
def hear(word):
    assert sys.stdin.readline() == word + "\\n"
say("loaded")
hear("start")
say("begun")
for number, name in enumerate(os.environ["PROGRAM"].split()):
    hear("next")
    if name.startswith("sparse"):
        say(f"failed {number} RuntimeError: no memory")
        continue
    if name.startswith("fsdp"):
        raise RuntimeError("no peer")
    say(f"ready {number}")
    hear("go")
    hear("trace")
    begin = time.time()
    say(f"tracing {number}")
    hear("stop")
    say(f"stopped {number}")
    kernels = {kind: np.empty((0, 2)) for kind in KINDS}
    kernels["compute"] = np.array([[begin, time.time()]])
    Trace(kernels).save(trace_file(folder, os.getpid(), number))
    names_file(folder, os.getpid(), number).write_text(json.dumps([["gemm", 1.0]]))
    say(f"traced {number}")
sys.stdin.readline()
"""


@pytest.mark.attack
def test_windows_and_what_was_said_are_kept_with_the_truth(
    fake: FakeDriver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Stands in for the programs and the driver; the daemon is real."""
    fake.write("gpus 2\ngpu 0 util 100\n")
    for name, value in fake.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(generate, "models", lambda: ["h200", "h200"])
    monkeypatch.setattr(generate, "LAST", 0.0)
    monkeypatch.setattr(lane, "SERIES", ("-c", STAND_IN))
    kept = run(tmp_path, 20.0, 1, ["sparse", "matmul", "ddp", "fsdp"], pairs=0.4)
    windows = list(load(tmp_path / "windows-h200.jsonl.gz"))
    assert windows
    assert len(windows) == len(kept.windows)
    assert {one.family for one in windows} == {"matmul", "ddp"}
    assert all(one.truth["compute"] == pytest.approx(1.0) for one in windows)
    assert all(one.window.activity is not None for one in windows)
    assert {split_name(name)[0] for name in kept.failed} == {"sparse", "fsdp"}
    said = capsys.readouterr().out
    assert "RuntimeError: no memory" in said
    assert "rank 0 ended: RuntimeError: no peer" in said or "rank 1 ended" in said
    pairs = [told for told in kept.verdicts if told["family"] == "ddp"]
    assert [told["rank"] for told in pairs[:2]] == [0, 1]
    assert pairs[0]["kernels"] == [("gemm", "compute", 1.0)]
    assert pairs[0]["truth"]["compute"] == pytest.approx(1.0)
    assert pairs[0]["course"]
    assert pairs[0]["memory"]


def closed(gpu: int, time: float, seconds: float = 2.0) -> str:
    recorded = Recorded("NVIDIA H200", "", "", Window(seconds), {})
    return json.dumps({"gpu": gpu, "time": time, "recorded": recorded.to_json()}) + "\n"


def test_windows_are_those_of_a_gpu_that_opened_since(tmp_path: Path) -> None:
    path = tmp_path / "windows"
    path.write_text(closed(0, 10.0) + closed(1, 12.0) + closed(0, 12.0) + closed(0, 14.0)[:-9])
    windows = Windows(path)
    assert [one.time for one in windows.of(0, 10.0)] == [12.0]
    assert [one.time for one in windows.of(1, 0.0)] == [12.0]
    with path.open("a") as file:
        file.write(closed(0, 14.0)[-9:])
    assert [one.time for one in windows.of(0, 10.0)] == [12.0, 14.0]


def test_the_table_says_what_was_what() -> None:
    truth = {"compute": 0.0, "starved": 1.0}
    window = Closed(0, 2.0, Recorded("NVIDIA H200", "", "", Window(2.0), {}))
    one = window.of("matmul", "matmul:1", truth)
    assert worst(one).text == "starved 1.00 told 0.00"
    assert table([one]).splitlines()[1].startswith("matmul 1 1 0.00 0.00 1.00 (starved")


def test_whatever_can_be_drawn_can_be_built() -> None:
    """Without PyTorch, by what the sources say that they build."""
    modules = ("gpu_work", "troubles", "exchanges")
    sources = [Path(drawn.__file__).with_name(f"{name}.py").read_text() for name in modules]
    built = re.findall(r'^@builds\("(\w+)"\)', "".join(sources), re.MULTILINE)
    assert sorted(built) == sorted(FAMILIES)
