"""Random programs without a GPU: what seeds draw, and how windows and truth come together."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench.truth import drawn
from bench.truth.drawn import FAMILIES, parameters
from bench.truth.expected import expected
from bench.truth.kernels import STATES
from bench.truth.recorder import Windows
from gpunode.gpu.window import Window
from gpunode.verdict.causes import CAUSES
from tests.windows.recorded import WindowRecord

SEEDS = range(20)


@pytest.mark.parametrize("family", FAMILIES)
def test_some_cause_is_right_whatever_the_gpu_did(family: str) -> None:
    known = {*CAUSES, "memory_allocation"}
    for seed in SEEDS:
        for state in (*STATES, "none"):
            causes = expected(family, parameters(family, seed), {state: 1.0}, 0.0)
            assert causes
            assert known.issuperset(causes)


def test_the_largest_loss_is_named_and_a_small_one_need_not_be() -> None:
    drawn_now = parameters("matmul", 1) | {"gap": "burn"}
    assert expected("matmul", drawn_now, {"compute": 0.5, "starved": 0.5}, 0.1) == [
        "data_loading_cpu",
        "host_compute",
    ]
    assert "kernel_launch" in expected("matmul", drawn_now, {"starved": 0.5}, 0.4)
    assert "none" in expected("matmul", drawn_now, {"compute": 0.88, "starved": 0.12}, 0.0)
    assert expected("ddp", parameters("ddp", 1), {"blocked": 0.2, "communication": 0.7}, 0.0) == [
        "communication"
    ]


def closed(gpu: int, time: float, seconds: float = 2.0) -> str:
    recorded = WindowRecord("NVIDIA H200", "", "", Window(seconds), {})
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


def test_whatever_can_be_drawn_can_be_built() -> None:
    """Without PyTorch, by what the sources say that they build."""
    modules = ("gpu_work", "libraries", "troubles", "exchanges")
    sources = [Path(drawn.__file__).with_name(f"{name}.py").read_text() for name in modules]
    built = re.findall(r'^@builds\("(\w+)"\)', "".join(sources), re.MULTILINE)
    assert sorted(built) == sorted(FAMILIES)
    of_libraries = Path(drawn.__file__).with_name("libraries.py").read_text()
    assert all(re.search(f'"(library )?{name}"', of_libraries) for name in drawn.LIBRARIES)
