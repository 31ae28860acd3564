"""What the kernel prints alike in many files: counters, and processes.

https://docs.kernel.org/filesystems/proc.html
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HERTZ = 100.0
"""Ticks per second in /proc: the kernel's USER_HZ on every architecture with GPUs."""

STAT = re.compile(r"(?P<id>\d+) \((?P<name>.*)\) (?P<state>\S) (?P<rest>.*)", re.DOTALL)


def counter(text: str) -> float:
    """An unsigned 64-bit counter. Raises ``ValueError`` for anything else."""
    value = int(text)
    if not 0 <= value < 1 << 64:
        raise ValueError(f"not a 64-bit counter: {text[:80]!r}")
    return float(value)


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """A process or thread: its name, state, CPU time in seconds, and start in ticks since boot.

    ``system`` is the part of its CPU time that it spent in the kernel, ``faults`` how often it
    touched a page of memory that it did not have, and that did not come from a disk.
    """

    name: str
    state: str
    parent: int
    cpu: float
    system: float
    faults: float
    start: float


def parse_stat(text: str) -> ProcessStat:
    """Parse the stat file of a process or thread. Raises ``ValueError``."""
    match = STAT.match(text)
    fields = match["rest"].split() if match else []
    if match is None or len(fields) < 19:
        raise ValueError("not the stat file of a process")
    user, system = (counter(ticks) / HERTZ for ticks in fields[10:12])
    return ProcessStat(
        match["name"],
        match["state"],
        int(fields[0]),
        user + system,
        system,
        counter(fields[6]),
        counter(fields[18]),
    )


@dataclass(frozen=True, slots=True)
class Scheduling:
    """How willingly a process gives way: its nice value, and its policy as a number."""

    nice: int
    policy: int


SCHED_IDLE = 5
"""The policy of what may only run when nothing else does:
https://man7.org/linux/man-pages/man7/sched.7.html"""


def parse_scheduling(text: str) -> Scheduling:
    """Parse the stat file of a process or thread: fields 19 and 41. Raises ``ValueError``."""
    match = STAT.match(text)
    fields = match["rest"].split() if match else []
    if len(fields) < 38:
        raise ValueError("not the stat file of a process")
    nice, policy = int(fields[15]), int(fields[37])
    if not (-20 <= nice <= 19 and 0 <= policy < 64):
        raise ValueError("not the stat file of a process: no nice value or policy")
    return Scheduling(nice, policy)


def parse_status(text: str) -> dict[str, list[str]]:
    """The words of each field in the status file of a process.

    Only a line feed ends a line: the name that a process gives itself may hold all else that does.
    """
    fields = (line.partition(":") for line in text.split("\n"))
    return {name: value.split() for name, _, value in fields}
