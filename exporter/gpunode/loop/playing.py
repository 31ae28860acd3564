"""Which tape is played, if any: the page and the API say so, so that nobody takes it for now."""

from __future__ import annotations

from dataclasses import dataclass

from gpunode.metric import Metric
from gpunode.node.tape import TapeNode
from gpunode.source import Reading, Readings

STEP = 1.0
"""Seconds of the tape between two looks."""


@dataclass(frozen=True, slots=True)
class Playing:
    """The tape that is played, what is worth looking at in it, and how far it has come."""

    title: str
    look: str
    place: str
    """Which of how many; empty if it is the only one."""

    seconds: float
    """Since the incident was begun to be shown; negative in the time that leads to it."""


class NowPlaying:
    """Tells of the tape that is played."""

    name = "playing"
    every = STEP
    metrics: tuple[Metric, ...] = ()

    def __init__(self, tape: TapeNode, place: str = "") -> None:
        self.tape = tape
        self.place = place

    def read(self, readings: Readings) -> Reading:
        """What is played now."""
        tape = self.tape
        title = tape.comment or tape.name
        seconds = readings.clock.monotonic() - tape.lead
        return Reading((), Playing(title, tape.look, self.place, round(seconds, 1)))
