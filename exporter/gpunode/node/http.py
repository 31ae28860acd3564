"""The metrics that a server answers to a GET, of which only the lines are kept that are known.

The server is a tenant's and may answer anything. Nothing is followed: neither a redirection nor a
name. https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import errno
import re
from collections.abc import Collection
from itertools import islice

from gpunode.node.node import ScrapedPage

STATUS = re.compile(r"HTTP/1\.[01] (?P<status>[1-5]\d\d)\b")
OK = 200
EMPTY = 204
"""Of a page with nothing on it, as of SGLang before its first request."""

COMMENT = re.compile(r"^# (?:HELP|TYPE) [a-zA-Z_:][a-zA-Z0-9_:]{0,255} (?:[^\n<]|$)", re.MULTILINE)
"""What tells Prometheus' text format from other texts."""

EMBEDDED_PAGE = re.compile(r"# TYPE [a-zA-Z_:][a-zA-Z0-9_:]{0,255} (?:counter|gauge|histogram)\b")
"""What tells that there is such a page within another format, as one string of JSON."""

HISTOGRAM = ("", "_bucket")
"""What follows the name of a type in a series of it."""

HEAD_LENGTH = 1 << 16
"""Characters of a page among which there is a comment, if it is in that format."""

MAX_LINES = 100_000
"""The most lines of a page. Of an engine with eight replicas and all its histograms there are
8,000; to look at as many as this takes 0.2 s of CPU."""

MAX_KEPT_LINES = 1 << 14
"""The most lines to keep of a page."""


def scraped_of(answer: str, names: Collection[str]) -> ScrapedPage:
    """What is kept of an answer: the lines of these series, of a page that was found.

    Where there are none yet, those that say that there will be. Raises ``OSError`` if it is not an
    answer of HTTP, and with ``EBADMSG`` if there is a page that cannot be read.
    """
    found = STATUS.match(answer)
    if found is None:
        raise OSError(errno.EPROTO, "what listens there does not speak HTTP")
    status = int(found["status"])
    if status != OK:
        return ScrapedPage(status, False, [])
    begin = answer.find("\r\n\r\n")
    body = answer[begin + 4 :] if begin >= 0 else ""
    if body.count("\n") > MAX_LINES:
        raise OSError(errno.EMSGSIZE, f"its page has more than {MAX_LINES} lines")
    lines = (line for line in body.split("\n") if name_of(line) in names)
    kept = list(islice(lines, MAX_KEPT_LINES + 1))
    if len(kept) > MAX_KEPT_LINES:
        raise OSError(errno.EBADMSG, f"its page has more than {MAX_KEPT_LINES} lines of figures")
    exposes = bool(kept) or COMMENT.search(body[:HEAD_LENGTH]) is not None
    if (
        not exposes
        and not body.lstrip().startswith("<")
        and EMBEDDED_PAGE.search(body[:HEAD_LENGTH])
    ):
        raise OSError(errno.EBADMSG, "its page of metrics is within another format")
    if not kept and exposes:
        kept = [line for line in islice(body.split("\n"), MAX_KEPT_LINES) if _declares(line, names)]
    return ScrapedPage(status if body.strip() else EMPTY, exposes, kept)


def name_of(line: str) -> str:
    """The name of the series of a line."""
    return line.partition("{")[0].partition(" ")[0]


def _declares(line: str, names: Collection[str]) -> bool:
    """Whether a line says the type of one of these series."""
    words = line.split(" ", 3)
    return words[:2] == ["#", "TYPE"] and any(f"{words[2]}{of}" in names for of in HISTOGRAM)
