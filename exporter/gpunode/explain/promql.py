"""Reads PromQL just so far that an expression can be taken apart, without a parser of all of it.

https://prometheus.io/docs/prometheus/latest/querying/basics/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

TOKEN = re.compile(
    r"""
    (?P<space>(?:\s|\#[^\n]*)+)
    | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`)
    | (?P<word>[A-Za-z_:][\w:]*)
    | (?P<number>(?:0[xX][\da-fA-F]+|(?:\d[\w.]*|\.\d\w*)(?:(?<=[eE])[+-]\d+)?))
    | (?P<opening>[({\[])
    | (?P<closing>[)}\]])
    | (?P<operator>=~|!~|==|!=|<=|>=|[-+*/%^<>=,:@])
    """,
    re.VERBOSE,
)
CLOSES = {"(": ")", "{": "}", "[": "]"}

SETS = ("or", "and", "unless")
COMPARISONS = ("==", "!=", "<=", ">=", "<", ">")
MATCHING = ("on", "ignoring")
MATCHED_BY = (*MATCHING, "group_left", "group_right")
LISTED_AFTER = (*MATCHED_BY, "by", "without")
"""Words after which labels stand in parentheses."""

NO_SELECTORS = frozenset(
    {*SETS, *LISTED_AFTER, "bool", "offset", "atan2", "inf", "nan", "start", "end"}
)


MAX_EXPRESSION = 1 << 16
"""The most characters of an expression."""

MAX_CLAUSES = 64
"""Each of them is asked for together with those before it."""


class PromqlError(ValueError):
    """The text is not valid PromQL."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token of an expression."""

    kind: str
    text: str
    at: int
    depth: int
    """How many brackets are open around it."""

    within: str
    """The innermost of them."""

    @property
    def end(self) -> int:
        return self.at + len(self.text)


def tokens(expression: str) -> list[Token]:
    """The tokens of an expression, spaces and comments apart. Raises ``PromqlError``."""
    if len(expression) > MAX_EXPRESSION:
        raise PromqlError(f"more than {MAX_EXPRESSION} characters")
    found: list[Token] = []
    opened: list[str] = []
    at = 0
    while at < len(expression):
        match = TOKEN.match(expression, at)
        if match is None:
            raise PromqlError(f"character {at + 1}: {expression[at : at + 20]!r}")
        kind, text = str(match.lastgroup), match[0]
        if kind == "closing" and (not opened or CLOSES[opened.pop()] != text):
            raise PromqlError(f"character {at + 1}: {text} closes nothing")
        if kind != "space":
            found.append(Token(kind, text, at, len(opened), opened[-1] if opened else ""))
        if kind == "opening":
            opened.append(text)
        at = match.end()
    if opened:
        raise PromqlError(f"{opened[-1]} is never closed")
    return found


def _pairs(read: Sequence[Token]) -> dict[int, int]:
    """The index of each closing bracket, by that of its opening one."""
    opened: list[int] = []
    found: dict[int, int] = {}
    for n, one in enumerate(read):
        if one.kind == "opening":
            opened.append(n)
        elif one.kind == "closing":
            found[opened.pop()] = n
    return found


@dataclass(frozen=True, slots=True)
class Clause:
    """A part of an expression between its ``and``, ``unless`` and ``or``."""

    operator: str
    """The one before it; empty for the first."""

    on: tuple[str, ...] | None
    """The labels by which it is matched; none where all are."""

    text: str
    until: str
    """The expression from the beginning of its alternative to the end of this clause."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The two sides of a clause that compares."""

    left: str
    operator: str
    matching: str
    """Such as ``on (cluster) group_left ()``."""

    right: str


def alternatives(expression: str) -> list[list[Clause]]:
    """The clauses of each part between the ``or`` of an expression. Raises ``PromqlError``."""
    read = tokens(expression)
    pairs = _pairs(read)
    ends = [n for n, one in enumerate(read) if one.depth == 0 and one.text.lower() in SETS]
    if len(ends) >= MAX_CLAUSES:
        raise PromqlError(f"more than {MAX_CLAUSES} clauses")
    found: list[list[Clause]] = [[]]
    operator, on, begin, first = "", None, 0, 0
    for end in (*ends, len(read)):
        text = _text(expression, read[begin:end])
        found[-1].append(Clause(operator, on, text, _text(expression, read[first:end])))
        if end == len(read):
            break
        operator = read[end].text.lower()
        on, last = _matched(read, pairs, end + 1)
        begin = last + 1
        if operator == "or":
            operator, first = "", begin
            found.append([])
    return found


def _text(expression: str, read: Sequence[Token]) -> str:
    """The text of some tokens, without comments before and after them. Raises ``PromqlError``."""
    if not read:
        raise PromqlError("nothing stands before or after an and, unless or or")
    return expression[read[0].at : read[-1].end]


def _matched(
    read: Sequence[Token], pairs: Mapping[int, int], at: int
) -> tuple[tuple[str, ...] | None, int]:
    """The labels of ``on (…)`` where it stands, and the last token before what follows."""
    if at + 1 >= len(read) or read[at].text.lower() not in MATCHING or read[at + 1].text != "(":
        return None, at - 1
    close = pairs[at + 1]
    labels = tuple(one.text for one in read[at + 2 : close] if one.text != ",")
    return (labels if read[at].text.lower() == "on" else None), close


def strip_parentheses(expression: str) -> str:
    """What is in the parentheses around an expression, if there are any. Raises ``PromqlError``."""
    read = tokens(expression)
    pairs = _pairs(read)
    first, last = 0, len(read) - 1
    while first < last and read[first].text == "(" and pairs[first] == last and last - first > 1:
        first, last = first + 1, last - 1
    return expression[read[first].at : read[last].end] if read else expression


def comparison(clause: str) -> Comparison | None:
    """The sides of a clause, if it compares. Raises ``PromqlError``."""
    read = tokens(clause)
    at = [n for n, one in enumerate(read) if one.depth == 0 and one.text in COMPARISONS]
    if not at:
        return None
    middle, last = read[at[-1]], at[-1]  # it is read from the left
    pairs = _pairs(read)
    if last + 1 < len(read) and read[last + 1].text == "bool":
        return None  # 0 and 1 are both a series
    while last + 1 < len(read) and read[last + 1].text.lower() in MATCHED_BY:
        last += 1
        last = pairs.get(last + 1, last)
    sides = read[: at[-1]], read[last + 1 :]
    if not all(sides):
        return None
    left, right = (_text(clause, side) for side in sides)
    matching = " ".join(one.text for one in read[at[-1] + 1 : last + 1])
    return Comparison(left, middle.text, matching, right)


def selectors(expression: str) -> Iterator[tuple[str, str]]:
    """Each metric that an expression reads, with its matchers. Raises ``PromqlError``."""
    read = tokens(expression)
    pairs = _pairs(read)
    labels_until = -1
    for n, one in enumerate(read):
        word = one.text.lower()
        following = read[n + 1] if n + 1 < len(read) else None
        if word in LISTED_AFTER and n + 1 in pairs:
            labels_until = pairs[n + 1]
        if one.kind != "word" or n < labels_until or word in NO_SELECTORS:
            continue
        if one.within in ("{", "["):
            continue
        if following and following.text.lower() in ("(", "by", "without"):
            continue  # a function or an aggregation
        matchers = ""
        if following and following.text == "{":
            matchers = expression[following.end : read[pairs[n + 1]].at].strip().rstrip(",")
        yield one.text, matchers


def names(expression: str) -> list[str]:
    """The names of the metrics that an expression reads, each once. Raises ``PromqlError``."""
    return list(dict.fromkeys(name for name, _ in selectors(expression)))
