"""The file of ``--web.config.file``: who may read the pages, and how they travel.

Its format is that of Prometheus' exporters:
https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md
"""

from __future__ import annotations

import _ssl
import errno
import ipaddress
import logging
import os
import re
import ssl
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from gpunode.config.kinds import Section
from gpunode.mistake import UsageError, first_mistake
from gpunode.node.patience import Patience

log = logging.getLogger(__name__)

MAX_CERTIFICATE_BYTES = 1 << 20
"""Bytes of a file of certificates: those of all public authorities are a quarter of it."""

LOOK = 5.0
"""Seconds between looks at the file and at those that it names."""

ANSWER = 5.0
"""Seconds to wait for what they contain: the disk of a busy node may take one."""

CIPHERS: Mapping[str, str | None] = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_AES_128_GCM_SHA256": None,
    "TLS_AES_256_GCM_SHA384": None,
    "TLS_CHACHA20_POLY1305_SHA256": None,
}
"""The names that Go gives its secure ciphers (https://pkg.go.dev/crypto/tls#CipherSuites), and
OpenSSL's for them; those of TLS 1.3 are always on."""

VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
Version = Literal["TLS12", "TLS13"]

CLIENTS = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
Clients = Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"]

HEADERS: Mapping[str, tuple[str, ...]] = {
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}
"""The headers that may be added, and their values, if not any."""

HASH = re.compile(r"\$2[aby]\$(0[4-9]|1[0-8])\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}")
"""A password as bcrypt keeps it: the cost, 16 bytes of salt, 23 of hash. Beyond a cost of 18 it
takes longer than anyone waits for an answer."""


def _is_cipher(name: str) -> str:
    if name not in CIPHERS:
        raise ValueError(f"{name[:80]!r} is unknown; choose from {', '.join(CIPHERS)}")
    return name


def _are_headers(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if name not in HEADERS:
            raise ValueError(f"{name[:80]!r} cannot be set; choose from {', '.join(HEADERS)}")
        if HEADERS[name] and value not in HEADERS[name]:
            raise ValueError(f"{name} must be {' or '.join(HEADERS[name])}")
        if not (value.isascii() and value.isprintable()):
            raise ValueError(f"{name} must be one line of ASCII")
    return headers


def _are_hashes(users: dict[str, str]) -> dict[str, str]:
    for name, hashed in users.items():
        if not HASH.fullmatch(hashed):
            shown = f"the password of {name[:80]!r}"
            raise ValueError(f"{shown} is not hashed with bcrypt at a cost of 4 to 18")
        if ":" in name:
            raise ValueError(f"{name[:80]!r} has a colon, which ends a name in HTTP")
    return users


class WebFilePart(Section):
    """A part of the file, where a key without a value is as good as none."""

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, given: Any) -> Any:
        if given == "":
            return {}
        if not isinstance(given, dict):
            return given
        return {k: v for k, v in given.items() if v != "" or k not in cls.model_fields}


class TlsPart(WebFilePart):
    """``tls_server_config``."""

    cert: str = ""
    key: str = Field("", repr=False)
    client_ca: str = ""
    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""
    client_auth_type: Clients = "NoClientCert"
    client_allowed_sans: tuple[str, ...] = ()
    min_version: Version = "TLS12"
    max_version: Version = "TLS13"
    cipher_suites: tuple[Annotated[str, AfterValidator(_is_cipher)], ...] = ()
    prefer_server_cipher_suites: bool = True

    @model_validator(mode="before")
    @classmethod
    def _asked_for(cls, given: Any) -> Any:
        """Keys without values ask for TLS, too: those of a template whose variables were empty."""
        if isinstance(given, dict) and given and all(value == "" for value in given.values()):
            raise ValueError("cert_file is missing")
        return given

    @model_validator(mode="after")
    def _fits(self) -> TlsPart:
        for name in ("cert", "key", "client_ca"):
            if getattr(self, name) and getattr(self, f"{name}_file"):
                raise ValueError(f"{name} and {name}_file are both given")
        for name in ("cert", "key"):
            if self.model_fields_set and not (getattr(self, name) or getattr(self, f"{name}_file")):
                raise ValueError(f"{name}_file is missing")
        if (self.client_ca or self.client_ca_file) and self.client_auth_type == "NoClientCert":
            raise ValueError("client_ca_file does nothing without a client_auth_type")
        if self.client_allowed_sans and self.client_auth_type != "RequireAndVerifyClientCert":
            raise ValueError("client_allowed_sans needs RequireAndVerifyClientCert")
        if VERSIONS[self.min_version] > VERSIONS[self.max_version]:
            raise ValueError("min_version is above max_version")
        return self


class HttpPart(WebFilePart):
    """``http_server_config``; HTTP/2 is never spoken, which every client can do without."""

    http2: bool = True
    headers: Annotated[dict[str, str], AfterValidator(_are_headers)] = Field({})


class WebFile(WebFilePart):
    """The whole file."""

    tls_server_config: TlsPart = TlsPart()
    http_server_config: HttpPart = HttpPart()
    basic_auth_users: Annotated[dict[str, str], AfterValidator(_are_hashes)] = Field({}, repr=False)


@dataclass(frozen=True, slots=True)
class Access:
    """Who may read the pages; by default everyone, and so may who listens on the way."""

    tls: ssl.SSLContext | None = None
    names: frozenset[str] = frozenset()
    """A certificate of a client must have one of these; any will do if there are none."""
    authority: bool = False
    """Whether it must be of an authority that the file names; else one that this machine trusts."""
    users: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    headers: tuple[tuple[bytes, bytes], ...] = ()
    expires: float | None = None
    """When the certificate that the server shows does, in Unix time."""

    @property
    def knows(self) -> bool:
        """Whether nobody reads a page without a password or a certificate."""
        certified = self.tls is not None and self.tls.verify_mode == ssl.CERT_REQUIRED
        return bool(self.users) or certified

    def asks_less_than(self, other: Access) -> str:
        """What it no longer asks of a client, or gives it, that the other does; empty if nothing.

        Also a file of which only the first part is written may ask less, and be valid.
        """
        if other.tls is not None and self.tls is None:
            return "TLS"
        if other.users and not self.users:
            return "the passwords"
        if self.tls is not None and other.tls is not None:
            if self.tls.verify_mode < other.tls.verify_mode:
                return "the check of clients' certificates"
            if other.authority and not self.authority:
                return "the authority of clients' certificates"
            if other.names and not self.names:
                return "the names that clients' certificates must have"
        return ""

    def welcomes(self, certificate: Mapping[str, Any] | None) -> bool:
        """Whether a client with this verified certificate may send a request.

        It may have expired since: TLS 1.2 takes a session up again and looks at nothing.
        https://datatracker.ietf.org/doc/html/rfc5246#section-7.3
        """
        if certificate and ssl.cert_time_to_seconds(certificate["notAfter"]) < time.time():
            return False
        if not self.names:
            return True
        names = (certificate or {}).get("subjectAltName", ())
        return any(_comparable(name) in self.names for _, name in names)


@dataclass(frozen=True, slots=True)
class AccessFiles:
    """What the file and those that it names contain."""

    file: WebFile
    cert: bytes
    key: bytes = field(repr=False)
    client_ca: bytes

    def access(self) -> Access:
        """What follows from it. Raises ``ValueError`` or ``ssl.SSLError``."""
        return Access(
            tls=self._context() if self.cert else None,
            expires=expiry(self.cert) if self.cert else None,
            authority=bool(self.client_ca),
            names=frozenset(map(_comparable, self.file.tls_server_config.client_allowed_sans)),
            users={name: h.encode() for name, h in self.file.basic_auth_users.items()},
            headers=tuple(
                (name.lower().encode(), value.encode())
                for name, value in self.file.http_server_config.headers.items()
            ),
        )

    def _context(self) -> ssl.SSLContext:
        tls = self.file.tls_server_config
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = VERSIONS[tls.min_version]
        context.maximum_version = VERSIONS[tls.max_version]
        if not tls.prefer_server_cipher_suites:
            context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
        ciphers = [known for name in tls.cipher_suites if (known := CIPHERS[name])]
        if ciphers:
            context.set_ciphers(":".join(ciphers))
        # Without tickets, a session ends with this context, and so when authorities change.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
        with memory_file(self.cert) as cert, memory_file(self.key) as key:
            context.load_cert_chain(cert, key, password=_no_password)
        context.verify_mode = CLIENTS[tls.client_auth_type]
        if self.client_ca:
            with memory_file(self.client_ca) as authorities:
                context.load_verify_locations(authorities)
        elif context.verify_mode != ssl.CERT_NONE:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        return context


class AccessFile:
    """The file, read again when asked; what it said last holds until it says something valid."""

    def __init__(self, path: Path) -> None:
        """Read it. Raises ``UsageError``."""
        self._path = path
        self._patience = Patience(ANSWER)
        self._found = self._reread()
        self._mistake = self._outdated = ""
        self.access = _access(path, self._found)
        self._tell_expiry()

    @property
    def in_force(self) -> bool:
        """Whether what was found at the last look is in force."""
        return not self._mistake

    def follow(self) -> None:
        """Keep up with it for ever; not in the event loop, as a mount may take its time."""
        while True:
            time.sleep(LOOK)
            self.look_again()

    def look_again(self) -> None:
        """Take what changed, in the file or in one that it names."""
        try:
            found = self._reread()
            if found != self._found:
                access = _access(self._path, found)
                if lost := access.asks_less_than(self.access):
                    raise UsageError(
                        f"{self._path}: would take away {lost}, as a file does that is not all "
                        "written yet; restart gpunode if this is meant"
                    )
                self.access, self._found = access, found
                log.info("%s: read anew", self._path)
        except UsageError as error:
            if str(error) != self._mistake:
                log.warning("%s; what was read before stays in force", error)
            self._mistake = str(error)
        else:
            self._mistake = ""
        self._tell_expiry()

    def _reread(self) -> AccessFiles:
        """What it contains now. Raises ``UsageError``, also if it does not answer."""
        try:
            found = self._patience.ask("", str(self._path), lambda: _try_read(self._path))
        except TimeoutError as error:
            raise UsageError(
                f"{self._path}: it, or a file that it names, does not answer"
            ) from error
        except OSError as error:  # no thread for it
            raise UsageError(f"{self._path}: {error.strerror}") from error
        if isinstance(found, UsageError):
            raise found
        return found

    def _tell_expiry(self) -> None:
        """Log once that the certificate has expired."""
        expires = self.access.expires
        day = "" if expires is None or expires > time.time() else _day(expires)
        if day and day != self._outdated:
            log.warning(
                "%s: the certificate that the server shows expired on %s: clients that check it "
                "refuse it; renew it",
                self._path,
                day,
            )
        self._outdated = day


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(moment))


def _try_read(path: Path) -> AccessFiles | UsageError:
    """What the file and those that it names contain, or what is wrong with them."""
    try:
        return read_access(path)
    except UsageError as error:
        return error


def read_access(path: Path) -> AccessFiles:
    """Read the file and those that it names, relative to its folder. Raises ``UsageError``."""
    from gpunode.config.yaml_file import read_yaml

    try:
        file = WebFile.model_validate(read_yaml(path, open_regular))
    except ValidationError as error:
        raise UsageError(f"{path}: {first_mistake(error)}") from error
    tls = file.tls_server_config
    return AccessFiles(
        file,
        cert=_content(path, tls.cert_file, tls.cert),
        key=_content(path, tls.key_file, tls.key),
        client_ca=_content(path, tls.client_ca_file, tls.client_ca),
    )


def open_regular(path: Path) -> BinaryIO:
    """A regular file, to be read. Raises ``OSError`` for anything else.

    A pipe in its place would wait for somebody to write to it.
    """
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb")
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def _content(path: Path, named: str, inline: str) -> bytes:
    if not named:
        return inline.encode()
    wanted = path.parent / named
    try:
        with open_regular(wanted) as file:
            content = file.read(MAX_CERTIFICATE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{wanted}: {error.strerror}") from error
    except ValueError as error:  # a zero byte in the name
        raise UsageError(f"{path}: {error}") from error
    if not content or len(content) > MAX_CERTIFICATE_BYTES:
        raise UsageError(f"{wanted}: not between 1 and {MAX_CERTIFICATE_BYTES} bytes")
    return content


def expiry(certificates: bytes) -> float:
    """When the first of the certificates expires, in Unix time; raises ``ssl.SSLError``.

    The standard library tells it of no certificate but a peer's, except by this function.
    """
    with memory_file(certificates) as path:
        found = _ssl._test_decode_cert(path)  # type: ignore[attr-defined]
        return float(ssl.cert_time_to_seconds(found["notAfter"]))


def _access(path: Path, found: AccessFiles) -> Access:
    """What follows from what was found. Raises ``UsageError``."""
    try:
        return found.access()
    except ssl.SSLError as error:
        reason = (error.reason or "no PEM").replace("_", " ").lower()
        raise UsageError(f"{path}: the certificate, key or client CA is none: {reason}") from error
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error


@contextmanager
def memory_file(content: bytes) -> Iterator[str]:
    """The path of a file with this content: OpenSSL is given what was compared, not read later."""
    descriptor = os.memfd_create("gpunode", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _no_password() -> bytes:
    raise ValueError("the key is encrypted, and nobody is there to type its password")


def _comparable(name: str) -> str:
    """A name of a certificate, with addresses written in one way only."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name
