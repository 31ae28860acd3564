"""Asks a server over HTTP, and trusts it with nothing.

Whatever it does, the answer comes in time or not at all, fits into memory, and no redirect is
followed, which could carry a password to another host.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

import httpx2

logging.getLogger("httpx2").setLevel(logging.WARNING)  # a line for each request


class IncompleteAnswer(Exception):
    """There is no whole answer; ``str()`` says why."""


class AnswerTimeout(IncompleteAnswer):
    """It was not there in time."""


class AnswerTooLarge(IncompleteAnswer):
    """It has more bytes than are taken."""


def fetched(
    client: httpx2.Client,
    method: str,
    url: str,
    *,
    timeout: float,
    largest: int,
    form: Mapping[str, str | int] | None = None,
) -> tuple[httpx2.Response, bytes]:
    """The answer of a server and its body.

    Raises ``AnswerTimeout`` and ``AnswerTooLarge``, the library's ``HTTPError`` or ``InvalidURL``,
    ``OSError`` and ``ValueError``.
    """
    found: list[tuple[httpx2.Response, bytes] | Exception] = []
    late = threading.Event()

    def work() -> None:
        try:
            found.append(_whole(client, method, url, timeout, largest, form, late))
        except (
            IncompleteAnswer,
            httpx2.HTTPError,
            httpx2.InvalidURL,
            OSError,
            ValueError,
        ) as error:
            found.append(error)

    # The library's time-out is for each part of an answer, of which there may be any number.
    thread = threading.Thread(target=work, name="fetch", daemon=True)
    thread.start()
    thread.join(timeout)
    if not found:
        late.set()  # the thread ends with the next part
        raise AnswerTimeout(f"no whole answer within {timeout:g} s")
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def _whole(
    client: httpx2.Client,
    method: str,
    url: str,
    timeout: float,
    largest: int,
    form: Mapping[str, str | int] | None,
    late: threading.Event,
) -> tuple[httpx2.Response, bytes]:
    body = bytearray()
    with client.stream(method, url, data=form, timeout=timeout, follow_redirects=False) as response:
        for part in response.iter_bytes():
            body += part
            if late.is_set():
                break
            if len(body) > largest:
                raise AnswerTooLarge(f"the answer has more than {largest >> 20} MiB")
    return response, bytes(body)
