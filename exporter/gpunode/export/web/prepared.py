"""Answers that are encoded and compressed once, for however many pages ask for them."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from fastapi import Request, Response
from pydantic import BaseModel

from gpunode.loop import Loop

FRESH = 2.0
"""Seconds for which an answer is as good as a new one: no source that it shows is read faster."""


@dataclass(frozen=True, slots=True)
class PreparedAnswer:
    """A content, its compressed form, and the tag by which a browser knows that it has it."""

    content: bytes
    media_type: str
    headers: dict[str, str] = field(default_factory=dict)
    compressed: bytes = field(init=False)
    tag: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "compressed", gzip.compress(self.content, 1, mtime=0))
        digest = hashlib.blake2b(self.content, digest_size=12).hexdigest()
        object.__setattr__(self, "tag", f'W/"{digest}"')

    def answer(self, request: Request) -> Response:
        """The content, or 304 where the browser has it."""
        headers = {
            "etag": self.tag,
            "cache-control": "no-cache",
            **self.headers,
        }
        if request.headers.get("if-none-match") == self.tag:
            return Response(status_code=304, headers=headers)
        content = self.content
        if "gzip" in request.headers.get("accept-encoding", ""):
            content = self.compressed
            headers["content-encoding"] = "gzip"
        return Response(content, media_type=self.media_type, headers=headers)


class CachedAnswer:
    """An answer that is made anew only for another key."""

    def __init__(self, make: Callable[[Loop], BaseModel], key: Callable[[Loop], Hashable]) -> None:
        self.make = make
        self.key = key
        self._loop: Loop | None = None
        self._key: Hashable = None
        self._prepared: PreparedAnswer | None = None

    def __call__(self, loop: Loop) -> PreparedAnswer:
        key = self.key(loop)
        if self._prepared is None or loop is not self._loop or key != self._key:
            self._loop, self._key = loop, key
            made = self.make(loop).model_dump_json().encode()
            self._prepared = PreparedAnswer(made, "application/json")
        return self._prepared


def every_moment(loop: Loop) -> Hashable:
    """Changes as often as an answer is no longer fresh."""
    return int(loop.clock.monotonic() / FRESH)
