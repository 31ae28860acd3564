"""What each request passes: it is read as HTTP means it, and asked for a password if one is set."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import random
import re
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import unquote

from fastapi.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpunode.export.web.access import Access
from gpunode.export.web.private import AUTHENTICATED
from gpunode.export.web.visitors import Reader, Visit, Visitors

OPEN = frozenset({"/healthz", "/readyz"})
"""Pages for everyone: the kubelet, which has no password, asks for them."""

SHARE = 0.1
"""The share of a core that guessing passwords may cost; a hash of cost 10 takes 0.05 s of one."""

CPU_CREDIT = 10.0
"""Seconds of CPU for the first passwords of those who were never wrong, which need not keep to the
share: after a restart, a scraper is soon known again, however many others guess. They come back as
the share allows."""

MAX_ORIGINS = 4096
"""Origins of which is known how often they were wrong."""

MAX_PASSWORD_BYTES = 72
"""Bytes that bcrypt looks at."""

ABSOLUTE = re.compile(rb"https?://[^/?#]*(.*)", re.IGNORECASE | re.DOTALL)
"""A request's target with the address of the server, as for a proxy:
https://www.rfc-editor.org/rfc/rfc9112#section-3.2.2"""

GZIP = re.compile(r"(x-)?gzip *(; *q *= *(?P<weight>[0-9.]{1,8}))?", re.IGNORECASE)
"""How a client says that it takes gzip, and how gladly:
https://www.rfc-editor.org/rfc/rfc9110#section-12.5.3"""

CHALLENGE = {"WWW-Authenticate": 'Basic realm="gpunode", charset="UTF-8"'}


@dataclass(frozen=True, slots=True, eq=False)
class PasswordCheck:
    """A password to compare."""

    reader: Reader
    user: str
    known: bool
    hashed: bytes = field(repr=False)
    password: bytes = field(repr=False)
    answer: asyncio.Future[bool]
    lot: float = field(default_factory=random.random)
    """By chance: whoever comes again and again in numbers is not always first."""


class Passwords:
    """Compares passwords one at a time, in a thread, and remembers for each user the right one."""

    def __init__(self) -> None:
        self._secret = os.urandom(32)
        self._right: dict[str, bytes] = {}
        self._wrong = WrongPasswords(), WrongPasswords()
        self._waiting: list[PasswordCheck] = []
        self._credit, self._counted = CPU_CREDIT, time.monotonic()
        self._working: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "passwords")

    async def right(
        self, users: Mapping[str, bytes], user: str, password: bytes, reader: Reader
    ) -> bool:
        """Whether the user has this password."""
        known = user in users
        # An unknown user costs as much as a known one, or the time would tell them apart.
        hashed = users[user] if known else max(users.values(), key=lambda other: other[4:6])
        if known and self._remembers(user, hashed, password):
            return True
        if len(password) > MAX_PASSWORD_BYTES:
            return False
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        check = PasswordCheck(reader, user, known, hashed, password, answer)
        self._waiting.append(check)
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        try:
            return await answer
        finally:  # also if the client hangs up
            if check in self._waiting:
                self._waiting.remove(check)

    def _remembers(self, user: str, hashed: bytes, password: bytes) -> bool:
        return hmac.compare_digest(self._right.get(user, b""), self._mark(hashed, password))

    def _mark(self, hashed: bytes, password: bytes) -> bytes:
        """What is kept in memory of a password: of use in this process only."""
        return hashlib.blake2b(hashed + password, key=self._secret).digest()

    def _tell(self, check: PasswordCheck, answer: bool) -> None:
        if check in self._waiting:
            self._waiting.remove(check)
        if not check.answer.done():
            check.answer.set_result(answer)

    async def _work(self) -> None:
        """Compare until nobody waits, and rest after each for as long as keeps to the share."""
        while self._waiting:
            check = min(self._waiting, key=self._order)
            if check.known and self._remembers(check.user, check.hashed, check.password):
                self._tell(check, True)
                continue
            same, took = await asyncio.get_running_loop().run_in_executor(
                self._thread, compare_password, check.password, check.hashed
            )
            right, before = same and check.known, self._order(check)[:2]
            if right:
                self._right[check.user] = self._mark(check.hashed, check.password)
            for known, who in zip(self._wrong, (check.reader.origin, check.reader), strict=True):
                known.note(who, right)
            self._tell(check, right)
            if any(before) or not self._has_credit(took):
                await asyncio.sleep(took / SHARE - took)
        self._working = None

    def _order(self, check: PasswordCheck) -> tuple[int, int, float]:
        """First come those whose origin, and then whose address, was wrong least often."""
        origins, readers = self._wrong
        return origins.of(check.reader.origin), readers.of(check.reader), check.lot

    def _has_credit(self, seconds: float) -> bool:
        """Whether there is credit for so many seconds of CPU, which are taken from it."""
        now = time.monotonic()
        self._credit = min(CPU_CREDIT, self._credit + SHARE * (now - self._counted))
        self._counted = now
        if self._credit < seconds:
            return False
        self._credit -= seconds
        return True


class WrongPasswords:
    """How often each of the latest was wrong, and since never right."""

    def __init__(self) -> None:
        self._times: dict[Hashable, int] = {}

    def of(self, who: Hashable) -> int:
        """How often somebody was."""
        return self._times.get(who, 0)

    def note(self, who: Hashable, right: bool) -> None:
        """Note that somebody was right or wrong."""
        times = self._times.pop(who, 0)
        if not right:
            self._times[who] = times + 1
            if len(self._times) > MAX_ORIGINS:
                del self._times[next(iter(self._times))]


def compare_password(password: bytes, hashed: bytes) -> tuple[bool, float]:
    """Whether it is the password, and the seconds of CPU that it took to see."""
    import bcrypt

    begin = time.thread_time()
    return bcrypt.checkpw(password, hashed), time.thread_time() - begin


class Guard:
    """The application behind its door."""

    def __init__(self, app: ASGIApp, access: Callable[[], Access], visitors: Visitors) -> None:
        self._app = app
        self._access = access
        self._visitors = visitors
        self._passwords = Passwords()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        access, reader = self._access(), Visit(scope["client"], scope["server"])
        scope = normalize_scope(scope)
        page = scope["path"] not in OPEN
        status = 0

        async def dressed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *access.headers]
            await send(message)

        app = self._app
        if access.users and page:
            admits = asyncio.create_task(self._admits(access, scope, reader))
            gone = asyncio.create_task(_wait_for_hangup(receive))
            await asyncio.wait((admits, gone), return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            if admits.cancel():
                return  # the client hung up
            if not admits.result():
                app = PlainTextResponse("this page needs a user and a password\n", 401, CHALLENGE)
        await app({**scope, AUTHENTICATED: access.knows}, receive, dressed)
        if page and status == HTTPStatus.OK:
            self._visitors.has_read(reader.reader)

    async def _admits(self, access: Access, scope: Scope, visit: Visit) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        kind, _, encoded = given.partition(b" ")
        if kind.lower() != b"basic":
            return False
        try:
            name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
            user = name.decode()
        except ValueError:
            return False
        return bool(colon) and await self._passwords.right(
            access.users, user, password, visit.reader
        )


class TrustedApplication:
    """The application for clients of the Unix socket, whom the kernel identifies as root."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**normalize_scope(scope), AUTHENTICATED: True}, receive, send)


def normalize_scope(scope: Scope) -> Scope:
    """A request with a target that is a path, and with gzip in ``Accept-Encoding`` or nothing.

    The libraries behind take any header in which ``gzip`` occurs for a wish, also ``gzip;q=0``.
    """
    headers = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
    encodings = [value for name, value in scope["headers"] if name == b"accept-encoding"]
    if takes_gzip(b",".join(encodings).decode("latin-1")):
        headers.append((b"accept-encoding", b"gzip"))
    scope = {**scope, "headers": headers}
    if absolute := ABSOLUTE.fullmatch(scope["raw_path"]):
        path = absolute[1] if absolute[1].startswith(b"/") else b"/" + absolute[1]
        scope |= {"raw_path": path, "path": unquote(path.decode("ascii"))}
    return scope


def takes_gzip(accept_encoding: str) -> bool:
    """Whether a client takes an answer that is compressed with gzip."""
    for part in accept_encoding.split(","):
        if found := GZIP.fullmatch(part.strip()):
            try:
                return float(found["weight"] or 1) > 0
            except ValueError:  # as 0.0.0
                return False
    return False


async def _wait_for_hangup(receive: Receive) -> None:
    """Return once the client hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass
