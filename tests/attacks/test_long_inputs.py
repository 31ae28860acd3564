"""No input takes more time, work or memory than its length says."""

from __future__ import annotations

import pytest

from tests.fuzz.long import allocated, lines_run, long_inputs, seconds
from tests.fuzz.table import TABLE, Parser

A_BYTE = 30e-6
"""CPU seconds that a byte may take: three times what the slowest parser takes."""

ANYHOW = 0.2
"""CPU seconds that any input may take."""

ANY_LINES = 100_000
"""Lines of Python that a parser may run for any input, such as those that look at other files."""

ANY_BYTES = 4 << 20
"""Bytes that a parser may allocate for any input, such as tables of the library that it uses."""


@pytest.mark.parametrize("parser", TABLE, ids=lambda parser: parser.name)
def test_a_long_input_takes_time_work_and_memory_as_its_length(parser: Parser) -> None:
    parser.tolerates(b"")  # what is read once is read now
    at_least = max(ANY_LINES, lines_run(parser, b""))  # such as rendering rules that do not change
    for part, data in long_inputs(parser, min(parser.largest, parser.long_enough)):
        most = ANYHOW + A_BYTE * len(data)
        assert any(seconds(parser, data) < most for _ in range(3)), part[:80]
        assert allocated(parser, data) <= ANY_BYTES + parser.allocates * len(data), part[:80]
        assert lines_run(parser, data) <= at_least + parser.runs * len(data), part[:80]
