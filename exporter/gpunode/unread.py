"""What a source met and did not understand: counted and shown, so that silence means health.

A source declares each kind of it once, as an ``Unknown``, and reports with a reading what it saw.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

MAX_EXAMPLE = 160
"""Characters of an example."""

IDENTIFIER = r"[0-9a-fA-F]{12,}"
SHAPES = re.compile(rf"(?P<id>{IDENTIFIER})|(?P<word>[^\W\d_]+)|(?P<number>\d+)")
NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]*\d[0-9a-fA-F]*\b|\d+")
QUOTED_NAME = re.compile(
    r"(?P<before>\b(?:name|comm|task|process|cmdline|path|file|host)[=:] ?|['\"`])"
    r"(?P<name>[^'\"`,;)\]]+)"
)
"""What a line of the kernel quotes or says to be a name: of a process, a file or a host."""


@dataclass(frozen=True, slots=True, eq=False)
class Unknown:
    """A kind of thing that a source may meet and not understand, declared once.

    ``what`` is the label of ``gpunode_unread_total``; ``meaning`` says what it is that was met and
    what is missing for it, in a clause for ``docs/unread.md`` and for ``gpunode doctor``.
    """

    what: str
    meaning: str
    bound: bool = False
    """Whether it is well understood, and left out because there is too much of it: it counts in
    ``gpunode_refused_total`` instead."""

    def seen(self, example: str, times: int = 1) -> Unread:
        """So many of them. The example must hold nothing that a tenant chose: see ``shape``."""
        return Unread(self, example[:MAX_EXAMPLE], times)


@dataclass(frozen=True, slots=True)
class Unread:
    """Something that a read met and did not understand."""

    kind: Unknown
    example: str
    times: int = 1


def shape(text: str, words: Collection[str] = ()) -> str:
    """Only the shape of a text that anyone may have chosen: ``/job-7f/x`` is ``/a-0a/a``.

    Of an identifier of at least 12 hexadecimal digits stays how many there are, and of these words
    all.
    """

    def of(found: re.Match[str]) -> str:
        if found["id"]:
            return f"<{len(found['id'])} hex>"
        if found["word"] in words:
            return found[0]
        return "a" if found["word"] else "0"

    return SHAPES.sub(of, text[: 4 * MAX_EXAMPLE])[:MAX_EXAMPLE]


def unnumbered(line: str) -> str:
    """A line of the kernel or a driver with the words that it always has.

    Each number is ``0``; what is quoted or said to be a name is only its shape.
    """

    def of(found: re.Match[str]) -> str:
        return found["before"] + shape(found["name"])

    return NUMBERS.sub("0", QUOTED_NAME.sub(of, line[: 4 * MAX_EXAMPLE]))[:MAX_EXAMPLE]
