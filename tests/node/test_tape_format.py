"""Tapes as files: what is recorded plays back, and what is malformed is told by line and field."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpunode.node.tape import RecordingNode, TapeError, TapeNode, TapeWriter
from gpunode.recorded import INCIDENTS
from tests.replay import activities, loop_over, shares

HEADER = {"gpunode_tape": 1, "time": 1795219603.0, "comment": "test"}
GOOD = {"t": 0.5, "of": "GPU-1", "call": "temperature", "answer": 36.0}
ALIEN = {"index": 0, "uuid": "GPU-aa", "name": "A GPU", "vendor": "alien"}


def tape(path: Path, *lines: Any) -> Path:
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return path


def recorded(source: Path, target: Path, max_bytes: int = 1 << 20) -> TapeWriter:
    """Play a tape while recording it."""
    node = TapeNode(source)
    writer = TapeWriter(target, node, max_bytes, "a recording of a recording")
    loop = loop_over(RecordingNode(node, writer))
    for _ in loop.replay(node.clock, node.end):
        pass
    writer.close()
    return writer


def ledgers(path: Path) -> list[dict[str, float]]:
    node = TapeNode(path)
    loop = loop_over(node)
    for _ in loop.replay(node.clock, node.end):
        pass
    return [shares(activity) for activity in activities(loop)]


@pytest.mark.parametrize("incident", ["straggler", "h200_four_phases", "hang"])
def test_a_recording_plays_back_the_same(tmp_path: Path, incident: str) -> None:
    source, copy = INCIDENTS / f"{incident}.jsonl.gz", tmp_path / "copy.jsonl.gz"
    assert not recorded(source, copy).filled.is_set()
    for before, after in zip(ledgers(source), ledgers(copy), strict=True):
        assert after == pytest.approx(before, abs=0.02)


def test_a_full_tape_ends_and_still_plays(tmp_path: Path) -> None:
    path = tmp_path / "small.jsonl.gz"
    writer = recorded(INCIDENTS / "straggler.jsonl.gz", path, max_bytes=1)
    assert writer.filled.is_set()
    assert TapeNode(path).comment == "a recording of a recording"


def test_a_tape_that_ends_in_the_middle_plays_to_there(tmp_path: Path) -> None:
    whole = (INCIDENTS / "straggler.jsonl.gz").read_bytes()
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    assert 0 < TapeNode(path).end < TapeNode(INCIDENTS / "straggler.jsonl.gz").end


def test_a_malformed_line_is_told(tmp_path: Path) -> None:
    spoiled: tuple[tuple[list[Any], str], ...] = (
        ([], "line 1"),
        ([{"gpunode_tape": 2, "time": 1.0}], "line 1: not a gpunode tape of format 1"),
        ([{"gpunode_tape": 1, "time": "now"}], "line 1"),
        ([HEADER, [1]], "line 2: not a JSON object"),
        ([HEADER, {**GOOD, "t": -1}], "line 2: field t"),
        ([HEADER, {**GOOD, "t": "soon"}], "line 2: field t"),
        ([HEADER, {**GOOD, "t": float("nan")}], "line 2: field t"),
        ([HEADER, {**GOOD, "t": float("inf")}], "line 2: field t"),
        ([HEADER, GOOD, {**GOOD, "t": 0.1}], "line 3: field t"),
        ([HEADER, {**GOOD, "of": 3}], "line 2: field of"),
        ([HEADER, {**GOOD, "call": "fly"}], "line 2: field call"),
        ([HEADER, {**GOOD, "answer": "hot"}], "line 2: field answer"),
        ([HEADER, {**GOOD, "call": "memory", "answer": {"total": 1}}], "line 2: field answer.used"),
        ([HEADER, {"t": 0, "of": "", "call": "gpus", "answer": [{"index": 0}]}], "answer.0.uuid"),
        ([HEADER, {"t": 0, "of": "", "call": "gpus", "answer": [ALIEN]}], "answer.0.vendor"),
    )
    for lines, named in spoiled:
        path = tape(tmp_path / "bad.jsonl.gz", *lines)
        with pytest.raises(TapeError) as raised:
            TapeNode(path)
        assert str(path) in str(raised.value), lines
        assert named in str(raised.value), lines


def test_a_line_that_is_nested_too_deeply_is_told(tmp_path: Path) -> None:
    path = tmp_path / "deep.jsonl.gz"
    path.write_bytes(gzip.compress(f"{json.dumps(HEADER)}\n{'[' * 100_000}\n".encode()))
    with pytest.raises(TapeError, match="line 2: nested too deeply"):
        TapeNode(path)


def load(path: Path) -> None:
    """Load and play whatever is there; the one thing that may go wrong is a TapeError."""
    try:
        node = TapeNode(path)
    except TapeError:
        return
    loop = loop_over(node)
    for _ in loop.replay(node.clock, min(node.end, 4.0)):
        pass
    list(loop.samples())


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "tape.jsonl.gz"


@given(content=st.binary(max_size=300), compressed=st.booleans())
def test_any_bytes_are_played_or_refused(scratch: Path, content: bytes, compressed: bool) -> None:
    scratch.write_bytes(gzip.compress(content) if compressed else content)
    load(scratch)


REAL = gzip.decompress((INCIDENTS / "h200_square_wave.jsonl.gz").read_bytes()).decode().splitlines()
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(
    changes=st.lists(
        st.tuples(
            st.integers(0, 39), st.sampled_from(["t", "of", "call", "answer", "error"]), anything
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_change_of_a_real_tape_is_played_or_refused(
    scratch: Path, changes: list[tuple[int, str, Any]]
) -> None:
    lines = [json.loads(line) for line in REAL[:40]]
    for place, field, value in changes:
        lines[place][field] = value
    load(tape(scratch, *lines))


def test_no_source_asks_for_an_environment(tmp_path: Path) -> None:
    path = tmp_path / "copy.jsonl.gz"
    recorded(INCIDENTS / "h200_four_phases.jsonl.gz", path)
    lines = gzip.decompress(path.read_bytes()).splitlines()
    asked = {json.loads(line).get("of") for line in lines}
    assert any(str(of).startswith("/proc/") for of in asked)
    assert not any("environ" in str(of) for of in asked)
