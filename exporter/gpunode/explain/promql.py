"""Reads PromQL just so far that an expression can be taken apart, without a parser of all of it.

https://prometheus.io/docs/prometheus/latest/querying/basics/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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
LISTED_AFTER = (*MATCHING, "by", "without", "group_left", "group_right")
"""Words after which labels stand in parentheses."""

NO_SELECTORS = frozenset(
    {*SETS, *LISTED_AFTER, "bool", "offset", "atan2", "inf", "nan", "start", "end"}
)


class NotRead(ValueError):
    """A text that is no PromQL."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token of an expression, with how many brackets are open around it."""

    kind: str
    text: str
    at: int
    depth: int

    @property
    def end(self) -> int:
        return self.at + len(self.text)


def tokens(expression: str) -> list[Token]:
    """The tokens of an expression, spaces and comments apart. Raises ``NotRead``."""
    found: list[Token] = []
    open_brackets: list[str] = []
    at = 0
    while at < len(expression):
        match = TOKEN.match(expression, at)
        if match is None:
            raise NotRead(f"character {at + 1}: {expression[at : at + 20]!r}")
        kind, text = str(match.lastgroup), match[0]
        if kind == "closing" and (not open_brackets or CLOSES[open_brackets.pop()] != text):
            raise NotRead(f"character {at + 1}: {text} closes nothing")
        if kind != "space":
            found.append(Token(kind, text, at, len(open_brackets)))
        if kind == "opening":
            open_brackets.append(text)
        at = match.end()
    if open_brackets:
        raise NotRead(f"{open_brackets[-1]} is never closed")
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
    """The clauses of each part between the ``or`` of an expression. Raises ``NotRead``."""
    read = tokens(expression)
    ends = [one for one in read if one.depth == 0 and one.text.lower() in SETS]
    found: list[list[Clause]] = [[]]
    operator, on, begin, first = "", None, 0, 0
    for end in (*ends, None):
        stop = end.at if end else len(expression)
        text = expression[begin:stop].strip()
        if not text:
            raise NotRead(f"character {stop + 1}: nothing before it")
        whole = expression[first:stop].strip()
        found[-1].append(Clause(operator, on, text, whole))
        if end is None:
            break
        operator = end.text.lower()
        after = [one for one in read if one.at >= end.end]
        on, begin = _matched(after, end.end)
        if operator == "or":
            operator, first = "", begin
            found.append([])
    return found


def _matched(after: Sequence[Token], begin: int) -> tuple[tuple[str, ...] | None, int]:
    """The labels of ``on (…)`` at the beginning of some tokens, and where that ends."""
    if len(after) < 2 or after[0].text.lower() not in MATCHING or after[1].text != "(":
        return None, begin
    close = next(one for one in after[2:] if one.text == ")" and one.depth == after[1].depth)
    labels = tuple(one.text for one in after if after[1].at < one.at < close.at and one.text != ",")
    return (labels if after[0].text.lower() == "on" else None), close.end


def without_parentheses(expression: str) -> str:
    """What is in the parentheses around an expression, if there are any. Raises ``NotRead``."""
    read = tokens(expression)
    while (
        len(read) > 2
        and read[0].text == "("
        and all(one.depth > read[0].depth for one in read[1:-1])
        and read[-1].text == ")"
    ):
        read = read[1:-1]
    return expression[read[0].at : read[-1].end] if read else expression


def comparison(clause: str) -> Comparison | None:
    """The sides of a clause, if it compares. Raises ``NotRead``."""
    read = tokens(clause)
    at = [n for n, one in enumerate(read) if one.depth == 0 and one.text in COMPARISONS]
    if not at:
        return None
    middle = read[at[-1]]  # it is read from the left
    after = read[at[-1] + 1 :]
    if after and after[0].text == "bool":
        return None  # 0 and 1 are both a series
    begin = middle.end
    while after and after[0].text.lower() in (*MATCHING, "group_left", "group_right"):
        listed = len(after) > 1 and after[1].text == "("
        upto = 1 if not listed else 1 + next(n for n, one in enumerate(after) if one.text == ")")
        begin, after = after[upto - 1].end, after[upto:]
    left, right = clause[: middle.at].strip(), clause[begin:].strip()
    matching = " ".join(clause[middle.end : begin].split())
    return Comparison(left, middle.text, matching, right) if left and right else None


def selectors(expression: str) -> Iterator[tuple[str, str]]:
    """Each metric that an expression reads, with its matchers as they stand. Raises ``NotRead``."""
    read = tokens(expression)
    labels_until = -1
    for n, one in enumerate(read):
        following = read[n + 1] if n + 1 < len(read) else None
        if one.text.lower() in LISTED_AFTER and following and following.text == "(":
            labels_until = next(
                late.at for late in read[n + 2 :] if late.text == ")" and late.depth == one.depth
            )
        if one.kind != "word" or one.at < labels_until or one.text.lower() in NO_SELECTORS:
            continue
        if following and following.text == "(":
            continue  # a function
        before = read[n - 1].text if n else ""
        if following and following.text.lower() in ("by", "without") and before != "}":
            continue  # an aggregation with its labels first
        if _within_braces(read, n):
            continue
        matchers = ""
        if following and following.text == "{":
            close = next(
                late for late in read[n + 2 :] if late.text == "}" and late.depth == one.depth
            )
            matchers = expression[following.end : close.at].strip().rstrip(",")
        yield one.text, matchers


def _within_braces(read: Sequence[Token], n: int) -> bool:
    """Whether a token is within the braces or brackets of a selector."""
    depth = read[n].depth
    for one in reversed(read[:n]):
        if one.kind == "opening" and one.depth == depth - 1:
            return one.text in "{["
    return False


def names(expression: str) -> list[str]:
    """The names of the metrics that an expression reads, each once. Raises ``NotRead``."""
    return list(dict.fromkeys(name for name, _ in selectors(expression)))
