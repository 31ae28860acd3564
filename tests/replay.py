"""Plays tapes through the daemon's own code, for tests."""

from __future__ import annotations

from typing import cast

from gpunode.config.daemon import GpuSettings, KubernetesSettings, Settings
from gpunode.gpu.activity import WindowDetail
from gpunode.holders.census import Census
from gpunode.holders.pods import Pods
from gpunode.loop import Loop
from gpunode.node.node import Node
from gpunode.node.tape import TapeNode
from gpunode.recorded import INCIDENTS
from gpunode.sources import GpuSources


def tape(name: str) -> TapeNode:
    """A recorded incident."""
    return TapeNode(INCIDENTS / f"{name}.jsonl.gz")


def loop_over(node: TapeNode | Node, interval: float = 2.0) -> Loop:
    """A loop over the GPUs of a node alone."""
    settings = Settings(
        gpu=GpuSettings(interval=interval), kubernetes=KubernetesSettings(pod_resources_socket="")
    )
    asked = cast(Node, node)
    return Loop(
        asked.clock, [GpuSources(Census(asked), settings, Pods(asked, settings))], find_every=10.0
    )


def play(loop: Loop, node: TapeNode, times: int = 1) -> None:
    """Play a tape to its end."""
    for _ in loop.replay(node.clock, node.end * times):
        pass


def replayed(name: str, times: int = 1, interval: float = 2.0) -> tuple[Loop, TapeNode]:
    """A loop that has played a tape to its end."""
    node = tape(name)
    loop = loop_over(node, interval)
    play(loop, node, times)
    return loop, node


def activities(loop: Loop) -> list[WindowDetail]:
    """The last window of every GPU, by index."""
    return [told.detail for told in loop.details(WindowDetail)]


def shares(activity: WindowDetail) -> dict[str, float]:
    """The ledger as shares of all its time."""
    total = sum(activity.ledger.values())
    return {state: spent / total for state, spent in activity.ledger.items()}
