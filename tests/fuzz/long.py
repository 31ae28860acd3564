"""Inputs as long as a reader lets through, made of what is hard to read if there is much of it."""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Iterator
from types import FrameType
from typing import Any

from tests.fuzz.table import Parser

PARTS = (b"[", b'{"a":', b"(", b" ", b"1 ", b"a", b"9", b"\n", b"\0", b"a\n", b"a: 1 kB\n", b"-")
"""What is hard for some parser or other."""

LINES = 6
"""The most lines of the seeds of a parser to repeat."""


def long_inputs(parser: Parser, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Inputs of about this size, each with the part that it repeats."""
    lines = [line + b"\n" for seed in parser.seeds for line in seed.split(b"\n") if line.strip()]
    step = max(1, len(lines) // LINES)
    longest = max(parser.seeds, key=len)
    for part in dict.fromkeys((*PARTS, *lines[::step][:LINES], longest)):
        yield part, part * (size // len(part))
    for before, part, after in parser.long:
        room = size - len(before) - len(after)
        yield part, before + part * (room // len(part)) + after


def lines_run(parser: Parser, data: bytes) -> int:
    """The lines of Python that run to read something: the same number on any machine."""
    count = 0

    def run(_: FrameType, event: str, __: Any) -> Any:
        nonlocal count
        count += event == "line"
        return run

    before = sys.gettrace()
    sys.settrace(run)
    try:
        parser.tolerates(data)
    finally:
        sys.settrace(before)
    return count


def seconds(parser: Parser, data: bytes) -> float:
    """The CPU time to read something."""
    begin = time.thread_time()
    parser.tolerates(data)
    return time.thread_time() - begin


def allocated(parser: Parser, data: bytes) -> int:
    """The most bytes that Python holds at a time to read something, without the thing itself."""
    tracemalloc.start()
    try:
        parser.tolerates(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
