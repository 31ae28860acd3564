"""Plays tapes through the daemon's own code, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpunode.config import GpuSettings
from gpunode.gpu.finder import GpuFinder
from gpunode.jobs.pods import Pods
from gpunode.loop import Loop
from gpunode.node import Node
from gpunode.tape import TapeNode

TAPES = Path(__file__).with_name("tapes")


def loop_over(node: Node, interval: float = 2.0) -> Loop:
    return Loop(node, [GpuFinder(node, GpuSettings(interval=interval), Pods(node, "", 5.0))])


def replayed(name: str, times: int = 1, interval: float = 2.0) -> tuple[Loop, TapeNode]:
    """A loop that has played a tape to its end."""
    node = TapeNode(TAPES / f"{name}.jsonl.gz")
    loop = loop_over(node, interval)
    for _ in loop.replay(node.clock, node.end * times):
        pass
    return loop, node


def activities(loop: Loop) -> list[dict[str, Any]]:
    """The last window of every GPU, by index."""
    return [
        batch.reading.detail for source, batch in loop.details() if source.name == "gpu_activity"
    ]


def shares(activity: dict[str, Any]) -> dict[str, float]:
    """The ledger as shares of all its time."""
    seconds = activity["ledger"]
    return {state: spent / sum(seconds.values()) for state, spent in seconds.items()}
