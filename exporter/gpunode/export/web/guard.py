"""Asks for the password of a user before any page but those that tell nothing."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count

from fastapi.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpunode.export.web.access import Access

OPEN = frozenset({"/healthz", "/readyz"})
"""Pages for everyone: the kubelet, which has no password, asks for them."""

SHARE = 0.1
"""The share of a core that guessing passwords may cost; a hash of cost 10 takes 0.05 s of one."""

REMEMBERED = 1024
"""Addresses of which is known how often they were wrong."""

LONGEST_PASSWORD = 72
"""Bytes that bcrypt looks at."""

CHALLENGE = {"WWW-Authenticate": 'Basic realm="gpunode", charset="UTF-8"'}


@dataclass(frozen=True, slots=True, order=True)
class PasswordCheck:
    """A password to compare; first come those who were wrong least often."""

    wrong: int
    number: int
    address: str = field(compare=False)
    user: str = field(compare=False)
    known: bool = field(compare=False)
    hashed: bytes = field(compare=False, repr=False)
    password: bytes = field(compare=False, repr=False)
    answer: asyncio.Future[bool] = field(compare=False)


class Passwords:
    """Compares passwords one at a time, in a thread, and remembers for each user the right one."""

    def __init__(self) -> None:
        self._secret = os.urandom(32)
        self._right: dict[str, bytes] = {}
        self._wrong: dict[str, int] = {}
        self._waiting: list[PasswordCheck] = []
        self._number = count()
        self._working: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "passwords")

    async def right(
        self, users: Mapping[str, bytes], user: str, password: bytes, address: str
    ) -> bool:
        """Whether the user has this password."""
        known = user in users
        # An unknown user costs as much as a known one, or the time would tell them apart.
        hashed = users[user] if known else max(users.values(), key=lambda other: other[4:6])
        if known and self._remembers(user, hashed, password):
            return True
        if len(password) > LONGEST_PASSWORD:
            return False
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        wrong, number = self._wrong.get(address, 0), next(self._number)
        check = PasswordCheck(wrong, number, address, user, known, hashed, password, answer)
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
            check = min(self._waiting)
            if check.known and self._remembers(check.user, check.hashed, check.password):
                self._tell(check, True)
                continue
            same, took = await asyncio.get_running_loop().run_in_executor(
                self._thread, compared, check.password, check.hashed
            )
            right = same and check.known
            wrong = self._wrong.pop(check.address, 0)
            if right:
                self._right[check.user] = self._mark(check.hashed, check.password)
            else:
                self._wrong[check.address] = wrong + 1
                if len(self._wrong) > REMEMBERED:
                    del self._wrong[next(iter(self._wrong))]
            self._tell(check, right)
            await asyncio.sleep(took / SHARE - took)
        self._working = None


def compared(password: bytes, hashed: bytes) -> tuple[bool, float]:
    """Whether it is the password, and the seconds of CPU that it took to see."""
    import bcrypt

    begin = time.thread_time()
    return bcrypt.checkpw(password, hashed), time.thread_time() - begin


class Guard:
    """The application behind its door."""

    def __init__(self, app: ASGIApp, access: Callable[[], Access]) -> None:
        self._app = app
        self._access = access
        self._passwords = Passwords()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        access = self._access()

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *access.headers]
            await send(message)

        app = self._app
        if access.users and scope["path"] not in OPEN:
            admits = asyncio.create_task(self._admits(access, scope))
            gone = asyncio.create_task(_gone(receive))
            await asyncio.wait((admits, gone), return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            if admits.cancel():
                return  # the client hung up
            if not admits.result():
                app = PlainTextResponse("this page needs a user and a password\n", 401, CHALLENGE)
        await app(scope, receive, dressed)

    async def _admits(self, access: Access, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        kind, _, encoded = given.partition(b" ")
        if kind.lower() != b"basic":
            return False
        try:
            name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
            user = name.decode()
        except ValueError:
            return False
        address = scope["client"][0] if scope["client"] else ""
        return bool(colon) and await self._passwords.right(access.users, user, password, address)


async def _gone(receive: Receive) -> None:
    """Return once the client hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass
