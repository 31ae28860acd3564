"""Every parser tolerates what it was not made for.

These are a few examples of each; ``make fuzz`` goes on for ten minutes each, led by coverage.
``tests/attacks/test_long_inputs.py`` has what is long.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.mutations import mutated
from tests.fuzz.table import TABLE, Parser

FOUND_FOLDER = Path(__file__).with_name("found")
"""What once failed a parser, or would have."""

EXAMPLES = 20


@pytest.mark.parametrize("parser", TABLE, ids=lambda parser: parser.name)
def test_what_is_real_was_found_or_is_spoiled_is_read_or_refused(parser: Parser) -> None:
    assert parser.seeds
    found = sorted((FOUND_FOLDER / parser.name).glob("*"))
    for data in (*parser.seeds, *(file.read_bytes() for file in found), b""):
        parser.tolerates(data)

    @given(st.integers(0, 1 << 48))
    @settings(max_examples=EXAMPLES)
    def holds(seed: int) -> None:
        chance = random.Random(seed)
        parser.tolerates(mutated(chance.choice(parser.seeds), parser.seeds, chance))

    holds()


def test_what_was_found_belongs_to_a_parser() -> None:
    assert {folder.name for folder in FOUND_FOLDER.iterdir()} <= {parser.name for parser in TABLE}
