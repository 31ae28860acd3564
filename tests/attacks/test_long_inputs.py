"""No input keeps a thread busy for longer than its length says, in the time of a real processor."""

from __future__ import annotations

import pytest

from tests.fuzz.long import long_inputs, seconds
from tests.fuzz.table import TABLE, Parser

LONGER = 4
"""How many times longer the inputs are than those of ``tests/fuzz``: a square shows."""

A_BYTE = 30e-6
"""CPU seconds that a byte may take: three times what the slowest parser takes."""

ANYHOW = 0.2
"""CPU seconds that any input may take."""


@pytest.mark.parametrize("parser", TABLE, ids=lambda parser: parser.name)
def test_a_long_input_takes_time_as_its_length(parser: Parser) -> None:
    for part, data in long_inputs(parser, min(parser.largest, LONGER * parser.long_enough)):
        most = ANYHOW + A_BYTE * len(data)
        assert any(seconds(parser, data) < most for _ in range(3)), part[:80]
