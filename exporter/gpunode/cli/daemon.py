"""Asks a running daemon over HTTP, as anybody may listen at its port."""

from __future__ import annotations

import json
import socket
import ssl
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, TypeAdapter

from gpunode.cli.settings.admission import AdmissionSettings
from gpunode.export.web.node import NodeNow
from gpunode.mistake import UsageError
from gpunode.report.fetch import NoWholeAnswer, fetched
from gpunode.text import printable
from gpunode.verdict.guidance import URGENCIES

ANSWER_TIMEOUT = 5.0
"""Seconds for an answer, during which no key is read."""

LARGEST_ANSWER = 16 << 20
"""Bytes of an answer that can be of a daemon."""

LONGEST_STRING = 4096
"""Characters of a text in an answer."""

LARGEST_FIGURE = 1e15
"""Of an answer: a petabyte, or a moment in a million years."""

LONGEST_TEXT = 200
"""Characters of what a server says in a message."""

NOT_OURS = "what answers is no gpunode of this version"


class NoDaemon(Exception):
    """No daemon answered; ``str()`` says why."""


def _listens(name: str) -> bool:
    """Whether anybody listens at a Unix socket: behind a forwarded port, nobody does here."""
    if not name:
        return False
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(name) == 0


@dataclass(frozen=True, slots=True)
class DaemonAddress:
    """Where a daemon answers, and what it takes to be let in."""

    url: str
    known: tuple[str, str] | None = field(default=None, repr=False)
    """The name and password of a user."""

    socket: str = ""
    """The Unix socket for root on this node, at which private pages are asked for; or none."""

    tls: ssl.SSLContext = field(default_factory=lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    @staticmethod
    def of(settings: AdmissionSettings) -> DaemonAddress:
        """What the settings say. Raises ``UsageError`` for a file that cannot be used."""
        url = settings.address
        known = None
        try:
            if settings.password_file:
                known = settings.username, settings.password_file.read_text().rstrip("\n")
            if not url.startswith("https:"):
                return DaemonAddress(url, known, settings.socket if known is None else "")
            for file in filter(None, (settings.ca_file, settings.cert_file, settings.key_file)):
                file.read_bytes()  # the error of ssl does not name the file
            tls = ssl.create_default_context(cafile=settings.ca_file)
            if settings.cert_file:
                tls.load_cert_chain(settings.cert_file, settings.key_file, lambda: "")
        except ssl.SSLError as error:
            files = ", ".join(str(f) for f in (settings.ca_file, settings.cert_file) if f)
            raise UsageError(f"{files}: no certificate, or not of this key") from error
        except OSError as error:
            raise UsageError(f"{error.filename}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{settings.password_file}: not UTF-8") from error
        return DaemonAddress(url, known, tls=tls)

    def private(self, path: str, timeout: float) -> bytes:
        """The same of a page that is not for everyone."""
        return self.get(path, timeout, self.socket if _listens(self.socket) else "")

    def get(self, path: str, timeout: float, unix: str = "") -> bytes:
        """What the daemon answers within so many seconds. Raises ``NoDaemon``."""
        transport = httpx2.HTTPTransport(uds=unix) if unix else None
        client = httpx2.Client(auth=self.known, verify=self.tls, transport=transport)
        try:
            response, body = fetched(
                client, "GET", f"{self.url}{path}", timeout=timeout, largest=LARGEST_ANSWER
            )
        except NoWholeAnswer as error:
            raise NoDaemon(f"no daemon answers: {error}") from error
        except (httpx2.RemoteProtocolError, httpx2.DecodingError) as error:
            # A server with TLS hangs up on clients without it, or without the certificate it wants.
            why = NOT_OURS
            if unix:
                why = "without --password-file it answers root, and its own user, on its node alone"
            elif "disconnected" in str(error):
                secure = self.url.startswith("https:")
                why = (
                    f"no daemon answers: {error}"
                    if secure
                    else f"{NOT_OURS}, or it has TLS: https://"
                )
            raise NoDaemon(why) from error
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
            words = printable(str(error) or type(error).__name__, LONGEST_TEXT)
            if "CERTIFICATE_VERIFY_FAILED" in words:
                words += "; --ca-file names the authority that signed it"
            raise NoDaemon(f"no daemon answers: {words}") from error
        finally:
            client.close()
        if response.is_redirect:
            where = printable(response.headers.get("location", ""), LONGEST_TEXT)
            raise NoDaemon(
                f"it redirects to {where}, which is not followed; give that if it is right"
            )
        if response.status_code == HTTPStatus.UNAUTHORIZED:
            raise NoDaemon("it wants another --username and --password-file")
        if response.status_code != HTTPStatus.OK:
            raise NoDaemon(_refusal(response.status_code, body))
        return body


class _Refusal(BaseModel):
    """How FastAPI says why it does not answer."""

    detail: str


def _refusal(status: int, body: bytes) -> str:
    """Why there is no answer, in the words of the daemon where they say more than the status."""
    try:
        said = _Refusal.model_validate_json(body).detail
    except ValueError:
        said = ""
    if said in {"", *(one.phrase for one in HTTPStatus if one == status)}:
        return f"{NOT_OURS} ({status})"
    return printable(said, LONGEST_TEXT)


K = TypeVar("K")


def understood(answer: bytes, kind: type[K]) -> K:
    """An answer of a daemon, also of a newer one, with nothing in it that a terminal obeys.

    Raises ``NoDaemon``.
    """
    try:
        found = _harmless(json.loads(answer, parse_constant=float))
        return TypeAdapter(kind).validate_python(found)
    except (ValueError, RecursionError) as error:
        raise NoDaemon(NOT_OURS) from error


def _harmless(value: Any) -> Any:
    """A value of JSON with text that prints, and figures that can be. Raises ``ValueError``."""
    if isinstance(value, str):
        return printable(value, LONGEST_STRING)
    if isinstance(value, int | float):
        if not abs(value) < LARGEST_FIGURE:  # not NaN either
            raise ValueError("a figure beyond all that is measured")
        return value
    if isinstance(value, list):
        return [_harmless(one) for one in value]
    if isinstance(value, dict):
        found = {printable(key, LONGEST_STRING): _harmless(one) for key, one in value.items()}
        if found.get("urgency", "note") not in URGENCIES:  # of a newer daemon
            found["urgency"] = "note"
        return found
    return value


def ask(server: DaemonAddress) -> NodeNow:
    """The node now. Raises ``NoDaemon``."""
    return understood(server.get("/api/v1/node", ANSWER_TIMEOUT), NodeNow)
