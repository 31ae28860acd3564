"""What is said to who is on call: how urgent something is, in plain words, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Urgency = Literal["now", "soon", "note", "fine"]
"""Something stands still or is broken; time is lost; it is worth knowing; all is well."""

URGENCIES: tuple[Urgency, ...] = ("now", "soon", "note", "fine")
"""The most urgent first."""


@dataclass(frozen=True, slots=True)
class Advice:
    """How urgent something is, what the GPU does in a few words, and what to do about it.

    ``PID`` in a remedy stands for the process on the GPU.
    """

    urgency: Urgency
    does: str
    remedy: str
