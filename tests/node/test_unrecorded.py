"""What a tape lacks is no trouble; what failed while it was recorded is."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path
from typing import cast

import pytest

from gpunode.config.daemon import Settings
from gpunode.loop import Loop
from gpunode.loop.metrics import UP
from gpunode.node.node import Node
from gpunode.node.tape import TapeNode
from gpunode.recorded import INCIDENTS
from gpunode.sources import watch


def test_no_warning_about_a_source_that_a_tape_lacks(caplog: pytest.LogCaptureFixture) -> None:
    for tape in sorted(INCIDENTS.glob("*.jsonl.gz")):
        loop = played(tape)
        assert [one.source for one in loop.silent()] == [], tape
        assert down(loop) == [], tape
        assert [record.getMessage() for record in caplog.records] == [], tape


def test_a_failure_that_is_on_the_tape_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with gzip.open(INCIDENTS / "h200_storage.jsonl.gz", "rt") as file:
        lines = [json.loads(line) for line in file]
    for line in lines:
        if line.get("of") == "/proc/meminfo":
            del line["answer"]
            line["errno"] = 13
    path = tmp_path / "broken.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    with caplog.at_level(logging.WARNING):
        loop = played(path)
    assert [one.source for one in loop.silent()] == ["memory"]
    assert down(loop) == ["memory"]
    assert "memory: read failed" in caplog.text


def down(loop: Loop) -> list[str]:
    return [one.labels[0] for one in loop.samples() if one.metric is UP and not one.value]


def played(path: Path) -> Loop:
    node = TapeNode(path)
    loop = watch(cast(Node, node), Settings())
    for _ in loop.replay(node.clock, node.end):
        pass
    return loop
