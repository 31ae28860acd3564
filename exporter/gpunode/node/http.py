"""The metrics that a server answers to a GET, of which only the lines are kept that are known.

The server is a tenant's and may answer anything. Nothing is followed: neither a redirection nor a
name. https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import errno
import re
from collections.abc import Collection
from itertools import islice

from gpunode.node.node import Scraped

STATUS = re.compile(r"HTTP/1\.[01] (?P<status>[1-5]\d\d)\b")
OK = 200

COMMENT = re.compile(r"^# (?:HELP|TYPE) [a-zA-Z_:][a-zA-Z0-9_:]{0,255} (?:[^\n<]|$)", re.MULTILINE)
"""What tells Prometheus' text format from other texts."""

BEGINNING = 1 << 16
"""Characters of a page among which there is a comment, if it is in that format."""

MOST_LINES = 100_000
"""The most lines of a page. Of an engine with eight replicas and all its histograms there are
8,000; to look at as many as this takes 0.2 s of CPU."""

MOST_KEPT = 1 << 14
"""The most lines to keep of a page."""


def scraped_of(answer: str, names: Collection[str]) -> Scraped:
    """What is kept of an answer: the lines of these series, of a page that was found.

    Raises ``OSError`` if it is not an answer of HTTP, or has too many lines.
    """
    found = STATUS.match(answer)
    if found is None:
        raise OSError(errno.EPROTO, "what listens there does not speak HTTP")
    status = int(found["status"])
    if status != OK:
        return Scraped(status, False, [])
    begin = answer.find("\r\n\r\n")
    body = answer[begin + 4 :] if begin >= 0 else ""
    if body.count("\n") > MOST_LINES:
        raise OSError(errno.EMSGSIZE, f"its page has more than {MOST_LINES} lines")
    lines = (line for line in body.split("\n") if _name(line) in names)
    kept = list(islice(lines, MOST_KEPT + 1))
    if len(kept) > MOST_KEPT:
        raise OSError(errno.EMSGSIZE, f"its page has more than {MOST_KEPT} lines of figures")
    return Scraped(status, bool(kept) or COMMENT.search(body[:BEGINNING]) is not None, kept)


def _name(line: str) -> str:
    """The name of the series of a line."""
    return line.partition("{")[0].partition(" ")[0]
