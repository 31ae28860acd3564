"""Spoils what a parser reads: its bytes, its words or, of JSON, its values."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

WORD = re.compile(rb"[\w.+-]+")
WORDS = (
    *(b"", b"-1", b"0", b"00", b"1e9", b"1e999", b"nan", b"inf", b"0x10", b"1_000", b"max", b"N/A"),
    *(b"4294967295", b"18446744073709551615", b"18446744073709551616", b"9" * 30, b"9" * 5000),
    *("\u0663".encode(), "\ud800".encode("utf-8", "surrogatepass"), b"\xff\xfe", b"\0", b"\x1b[2J"),
    *(b"\n", b"\r", b"\x0b", b"\x1c", "\u2028".encode(), b" ", b"\t", b":", b"\\040", b"\\777"),
)
"""What stands well for a word: numbers at their limits, and text that ends or hides another."""

VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2**31, 2**53, 2**64, 10**400, 1e308, float("nan"), float("inf"), 0.5),
    *("", "x", "\ud800", "\0", "a" * 5000, "-1", "0x1", [], {}, [[]], [0] * 40, {"": None}),
)
"""What stands well for a value of JSON."""

MAX_CHANGES = 6
"""The most changes to one input."""


def mutated(data: bytes, seeds: Sequence[bytes], chance: random.Random) -> bytes:
    """The data with a few changes of all kinds; ``seeds`` lend their parts."""
    for _ in range(chance.randint(1, MAX_CHANGES)):
        data = chance.choice(CHANGES)(data, seeds, chance)
    return data


def _byte(data: bytes, _: Sequence[bytes], chance: random.Random) -> bytes:
    at = chance.randint(0, len(data))
    return data[:at] + bytes([chance.randrange(256)]) + data[at + chance.randint(0, 1) :]


def _part(data: bytes, seeds: Sequence[bytes], chance: random.Random) -> bytes:
    """A part cut out, doubled, or replaced by a part of a seed."""
    begin, end = _span(data, chance)
    other = chance.choice(seeds)
    first, last = _span(other, chance)
    lent = chance.choice((b"", 2 * data[begin:end], other[first:last]))
    return data[:begin] + lent + data[end:]


def _line(data: bytes, _: Sequence[bytes], chance: random.Random) -> bytes:
    """A line left out, doubled or moved."""
    lines = data.split(b"\n")
    line = lines.pop(chance.randrange(len(lines)))
    for _at in range(chance.randint(0, 2)):
        lines.insert(chance.randint(0, len(lines)), line)
    return b"\n".join(lines)


def _word(data: bytes, _: Sequence[bytes], chance: random.Random) -> bytes:
    words = [match.span() for match in WORD.finditer(data)]
    begin, end = chance.choice(words) if words else (0, 0)
    return data[:begin] + chance.choice(WORDS) + data[end:]


def _cut(data: bytes, _: Sequence[bytes], chance: random.Random) -> bytes:
    return data[: chance.randint(0, len(data))]


def _value(data: bytes, _: Sequence[bytes], chance: random.Random) -> bytes:
    """A value of a line of JSON, or of all that follows a first brace, or else a word."""
    begin = max(0, data.find(b"{"))
    lines = data[begin:].split(b"\n")
    whole = chance.random() < 0.5
    at = chance.randrange(len(lines))
    try:
        value = json.loads(data[begin:] if whole else lines[at])
    except (ValueError, RecursionError):
        return _word(data, (), chance)
    changed = json.dumps(_mutate(value, chance), indent=chance.choice((None, 2))).encode()
    if whole:
        return data[:begin] + changed
    return data[:begin] + b"\n".join((*lines[:at], changed, *lines[at + 1 :]))


def _mutate(value: Any, chance: random.Random) -> Any:
    """The value with something in it replaced, left out, repeated or named otherwise."""
    if not value or not isinstance(value, list | dict) or chance.random() < 0.1:
        return chance.choice(VALUES)
    if isinstance(value, list):
        at = chance.randrange(len(value))
        kept: tuple[list[Any], ...]
        kept = [_mutate(value[at], chance)], [], [value[at]] * chance.choice((2, 40))
        return [*value[:at], *chance.choice(kept), *value[at + 1 :]]
    name = chance.choice(list(value))
    rest = {other: inner for other, inner in value.items() if other != name}
    what = chance.random()
    if what < 0.6:
        return {**rest, name: _mutate(value[name], chance)}
    return rest if what < 0.8 else {**rest, name + "\ud800": value[name]}


def _span(data: bytes, chance: random.Random) -> tuple[int, int]:
    begin = chance.randint(0, len(data))
    return begin, min(len(data), begin + chance.choice((1, 8, 64, 512)))


CHANGES = (_byte, _part, _line, _word, _word, _value, _value, _cut)
