"""Nothing of what real systems write is read wrongly; what is dropped is counted and known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.corpus.families import FAMILIES, FOLDER, load

WRONG = {
    "kernel lines": ("Cable error, High Temperature",),  # taken for a link that went down
}
"""Parts of the entries that are read wrongly."""

SILENT = {
    "kernel lines": 68,
    "cgroups of containers": 19,
    "mounts of the network": 25,
    "counters of RDMA ports": 166,
    "models of GPUs": 15,
}
"""How many entries are dropped without a word."""


@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_else_is_read_wrongly_or_dropped(name: str) -> None:
    outcomes = list(FAMILIES[name]())
    assert len(outcomes) > 10
    wrong = [one.entry for one in outcomes if one.fate == "wrong"]
    known = WRONG.get(name, ())
    assert len(wrong) == len(known)
    assert all(part in entry for part, entry in zip(known, wrong, strict=True))
    assert Counter(one.fate for one in outcomes)["silent"] == SILENT.get(name, 0)


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


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_facts_name_their_sources(name: str) -> None:
    named = list(sources(load(name)))
    assert sum("http" in source for source in named) > len(named) / 2
