"""What is said to who is on call: how urgent something is, in plain words, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpunode.words import Words

Urgency = Literal["now", "soon", "note", "fine"]
"""Something stands still or is broken; time is lost; it is worth knowing; all is well."""

URGENCIES: tuple[Urgency, ...] = ("now", "soon", "note", "fine")
"""The most urgent first."""

Family = Literal["work", "peers", "network", "data", "host", "device", "unknown"]
"""Where the time goes: into the work itself; or what takes it: other ranks, the network, the way of
data to the GPU, the process and its CPUs, a limit of the GPU; or nothing that is seen."""


@dataclass(frozen=True, slots=True)
class Guidance:
    """How urgent something is, what the GPU does in a few words, and what to do about it."""

    urgency: Urgency
    words: Words

    @property
    def does(self) -> str:
        """What the GPU does, which goes on after its name."""
        return self.words.sentence

    @property
    def remedy(self) -> str:
        """What to do now; ``PID`` stands for the process on the GPU."""
        return self.words.do
