"""Nothing of what real systems write is read wrongly, and nothing is dropped without a word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.corpus.families import FAMILIES, FOLDER, load


@pytest.mark.parametrize("name", FAMILIES)
def test_everything_is_read_rightly_or_counted_as_unread(name: str) -> None:
    outcomes = list(FAMILIES[name]())
    assert outcomes
    assert [one for one in outcomes if one.fate in ("wrong", "silent")] == []


def sources(found: Any) -> Iterator[str]:
    """Every source that a part of the corpus names."""
    if isinstance(found, dict):
        for key, value in found.items():
            if key == "source":
                yield from [value] if isinstance(value, str) else value
            else:
                yield from sources(value)
    elif isinstance(found, list):
        for each in found:
            yield from sources(each)


def test_facts_name_their_sources() -> None:
    for name in sorted(path.stem for path in FOLDER.glob("*.yaml")):
        named = list(sources(load(name)))
        assert sum("http" in source for source in named) > len(named) / 2, name
