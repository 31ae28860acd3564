"""Every parser tolerates what it was not made for, with work and memory that follow its length.

These are a few examples of each; ``make fuzz`` goes on for ten minutes each, led by coverage.
``tests/attacks/test_long_inputs.py`` looks at the clock.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.long import allocated, lines_run, long_inputs
from tests.fuzz.mutations import mutated
from tests.fuzz.table import TABLE, Parser

FOUND = Path(__file__).with_name("found")
"""What once failed a parser, or would have."""

EXAMPLES = 40

ANY_LINES = 100_000
"""Lines of Python that a parser may run for any input, such as those that look at other files."""

ANY_BYTES = 4 << 20
"""Bytes that a parser may allocate for any input, such as tables of the library that it uses."""


def each(parser: Parser) -> str:
    return parser.name


@pytest.mark.parametrize("parser", TABLE, ids=each)
def test_what_is_real_or_was_found_is_tolerated(parser: Parser) -> None:
    assert parser.seeds
    found = sorted((FOUND / parser.name).glob("*"))
    for data in (*parser.seeds, *(file.read_bytes() for file in found), b""):
        parser.tolerates(data)


def test_what_was_found_belongs_to_a_parser() -> None:
    assert {folder.name for folder in FOUND.iterdir()} <= {parser.name for parser in TABLE}


@pytest.mark.parametrize("parser", TABLE, ids=each)
def test_what_is_spoiled_is_read_or_refused(parser: Parser) -> None:
    @given(st.integers(0, 1 << 48))
    @settings(max_examples=EXAMPLES)
    def holds(seed: int) -> None:
        chance = random.Random(seed)
        parser.tolerates(mutated(chance.choice(parser.seeds), parser.seeds, chance))

    holds()


@pytest.mark.parametrize("parser", TABLE, ids=each)
def test_a_long_input_takes_work_and_memory_as_its_length(parser: Parser) -> None:
    parser.tolerates(b"")  # what is read once is read now
    at_least = max(ANY_LINES, lines_run(parser, b""))  # such as rendering rules that do not change
    for part, data in long_inputs(parser, min(parser.largest, parser.long_enough)):
        assert allocated(parser, data) <= ANY_BYTES + parser.allocates * len(data), part[:80]
        assert lines_run(parser, data) <= at_least + parser.runs * len(data), part[:80]
