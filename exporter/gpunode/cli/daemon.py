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
from gpunode.report.fetch import IncompleteAnswer, fetched
from gpunode.text import printable
from gpunode.verdict.guidance import URGENCIES

ANSWER_TIMEOUT = 5.0
"""Seconds for an answer, during which no key is read."""

MAX_ANSWER_BYTES = 16 << 20
"""Bytes of an answer that can be of a daemon."""

MAX_STRING = 4096
"""Characters of a text in an answer."""

MAX_NUMBER = 1e15
"""Of an answer: a petabyte, or a moment in a million years."""

MAX_TEXT = 200
"""Characters of what a server says in a message."""

WRONG_VERSION = "what answers is no gpunode of this version"


class DaemonError(Exception):
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
        """The answer of a page that is not for everyone, by the daemon's socket."""
        return self.get(path, timeout, self.socket if _listens(self.socket) else "")

    def get(self, path: str, timeout: float, unix: str = "") -> bytes:
        """What the daemon answers within so many seconds. Raises ``DaemonError``."""
        transport = httpx2.HTTPTransport(uds=unix) if unix else None
        client = httpx2.Client(auth=self.known, verify=self.tls, transport=transport)
        try:
            response, body = fetched(
                client, "GET", f"{self.url}{path}", timeout=timeout, largest=MAX_ANSWER_BYTES
            )
        except IncompleteAnswer as error:
            raise DaemonError(f"no daemon answers: {error}") from error
        except (httpx2.RemoteProtocolError, httpx2.DecodingError) as error:
            # A server with TLS hangs up on clients without it, or without the certificate it wants.
            why = WRONG_VERSION
            if unix:
                why = "without --password-file it answers root, and its own user, on its node alone"
            elif "disconnected" in str(error):
                secure = self.url.startswith("https:")
                why = (
                    f"no daemon answers: {error}"
                    if secure
                    else f"{WRONG_VERSION}, or it has TLS: https://"
                )
            raise DaemonError(why) from error
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
            words = printable(str(error) or type(error).__name__, MAX_TEXT)
            if "CERTIFICATE_VERIFY_FAILED" in words:
                words += "; --ca-file names the authority that signed it"
            raise DaemonError(f"no daemon answers: {words}") from error
        finally:
            client.close()
        if response.is_redirect:
            where = printable(response.headers.get("location", ""), MAX_TEXT)
            raise DaemonError(
                f"it redirects to {where}, which is not followed; give that if it is right"
            )
        if response.status_code == HTTPStatus.UNAUTHORIZED:
            raise DaemonError("it wants another --username and --password-file")
        if response.status_code != HTTPStatus.OK:
            raise DaemonError(_refusal(response.status_code, body))
        return body


class _Refusal(BaseModel):
    """How FastAPI says why it does not answer."""

    detail: str


def _refusal(status: int, body: bytes) -> str:
    """Why the daemon refused, in its own words if they say more than the status."""
    try:
        said = _Refusal.model_validate_json(body).detail
    except ValueError:
        said = ""
    if said in {"", *(one.phrase for one in HTTPStatus if one == status)}:
        return f"{WRONG_VERSION} ({status})"
    return printable(said, MAX_TEXT)


K = TypeVar("K")


def read_answer(answer: bytes, kind: type[K]) -> K:
    """An answer of a daemon, also of a newer one, with nothing in it that a terminal obeys.

    Raises ``DaemonError``.
    """
    try:
        found = _checked_json(json.loads(answer, parse_constant=float))
        return TypeAdapter(kind).validate_python(found)
    except (ValueError, RecursionError) as error:
        raise DaemonError(WRONG_VERSION) from error


def _checked_json(value: Any) -> Any:
    """A value of JSON with text that prints, and figures that can be. Raises ``ValueError``."""
    if isinstance(value, str):
        return printable(value, MAX_STRING)
    if isinstance(value, int | float):
        if not abs(value) < MAX_NUMBER:  # not NaN either
            raise ValueError("a figure beyond all that is measured")
        return value
    if isinstance(value, list):
        return [_checked_json(one) for one in value]
    if isinstance(value, dict):
        found = {printable(key, MAX_STRING): _checked_json(one) for key, one in value.items()}
        if found.get("urgency", "note") not in URGENCIES:  # of a newer daemon
            found["urgency"] = "note"
        return found
    return value


def ask(server: DaemonAddress) -> NodeNow:
    """The node now. Raises ``DaemonError``."""
    return read_answer(server.get("/api/v1/node", ANSWER_TIMEOUT), NodeNow)
