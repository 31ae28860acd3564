"""Every parser tolerates what it was not made for, in time and memory that follow its length.

These are a few examples of each; ``make fuzz`` goes on for ten minutes each, led by coverage.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.long import allocated, long_inputs, seconds
from tests.fuzz.mutations import mutated
from tests.fuzz.table import TABLE, Parser

FOUND = Path(__file__).with_name("found")
"""What once failed a parser, or would have."""

EXAMPLES = 40

SHORTER = 16
"""How many times shorter the input is with which it is compared."""

UNLIKE_LINEAR = 4.0
"""The most times longer that it may take than its length says; a square would be ``SHORTER``."""

SOON = 0.1
"""CPU seconds that tell nothing about growth."""

ANYHOW = 4 << 20
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
def test_a_long_input_takes_time_and_memory_as_its_length(parser: Parser) -> None:
    size = min(parser.largest, parser.long_enough)
    shorter = dict(long_inputs(parser, size // SHORTER))
    for part, data in long_inputs(parser, size):
        assert allocated(parser, data) <= ANYHOW + parser.allocates * len(data), part[:80]
        took = seconds(parser, data)
        if took > SOON:
            took = min(took, seconds(parser, data))
            before = max(seconds(parser, shorter[part]), 1e-4)
            assert took / before < UNLIKE_LINEAR * SHORTER, part[:80]
