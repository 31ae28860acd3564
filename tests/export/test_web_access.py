"""TLS, certificates of clients and passwords, as ``--web.config.file`` says."""

from __future__ import annotations

import base64
import json
import logging
import math
import os
import socket
import ssl
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import bcrypt
import pytest
import trustme
from cryptography import x509

from gpunode.cli.daemon import DaemonAddress, DaemonError
from gpunode.cli.main import main
from gpunode.config.yaml_file import MAX_SETTINGS
from gpunode.export.web import access
from gpunode.export.web.access import CIPHERS, AccessFile
from gpunode.export.web.entrance import EXPIRY, RELOADED, Entrance
from gpunode.loop import Loop
from gpunode.metric import Distribution
from gpunode.mistake import UsageError
from gpunode.node.node import SteppedClock
from tests import needs
from tests.conftest import until
from tests.daemon import TIMEOUT, Daemon, daemon, free_port

PASSWORD = "correct horse"
HASHED = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
BASIC = f"Basic {base64.b64encode(f'alice:{PASSWORD}'.encode()).decode()}"


@dataclass(frozen=True, slots=True)
class Papers:
    """A folder with an authority, a certificate for the server and one for a client."""

    folder: Path
    authority: trustme.CA

    def issue(self, name: str, *identities: str, not_after: datetime | None = None) -> None:
        """Put a certificate and its key into the folder."""
        issued = self.authority.issue_cert(*identities, not_after=not_after)
        issued.private_key_pem.write_to_path(str(self.folder / f"{name}.key"))
        (self.folder / f"{name}.crt").unlink(missing_ok=True)
        for part in issued.cert_chain_pems:
            part.write_to_path(str(self.folder / f"{name}.crt"), append=True)

    def write(self, text: str) -> Path:
        """The file of ``--web.config.file``."""
        path = self.folder / "web.yml"
        path.write_text(text)
        return path

    def client(self, certificate: str | None = "client") -> ssl.SSLContext:
        """A client that trusts the authority, and shows a certificate."""
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        if certificate:
            chain, key = (self.folder / f"{certificate}.{end}" for end in ("crt", "key"))
            context.load_cert_chain(chain, key)
        return context


def issued(folder: Path) -> Papers:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    papers = Papers(folder, authority)
    papers.issue("server", "127.0.0.1", "localhost")
    papers.issue("client", "prometheus.monitoring")
    return papers


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    return issued(tmp_path)


NOTHING = Loop(SteppedClock(0.0), (), find_every=math.inf)
SERVER = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"
MUTUAL = f"{SERVER}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n"
USERS = f"basic_auth_users:\n  alice: {HASHED}\n"
HEADERS = "http_server_config:\n  headers:\n    X-Frame-Options: deny\n"


def ask(
    running: Daemon,
    path: str = "/metrics",
    tls: ssl.SSLContext | None = None,
    authorization: str | None = None,
) -> tuple[int, dict[str, str]]:
    """The status and headers of the answer. Raises ``OSError`` where there is none."""
    url = f"{'https' if tls else 'http'}://127.0.0.1:{running.port}{path}"
    request = urllib.request.Request(url)
    if authorization is not None:
        request.add_header("Authorization", authorization)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT, context=tls) as answer:
            return answer.status, {k.lower(): v for k, v in answer.headers.items()}
    except HTTPError as error:
        with error:
            return error.code, {k.lower(): v for k, v in error.headers.items()}


@contextmanager
def behind(path: Path) -> Iterator[Daemon]:
    with daemon(f"--web.config.file={path}", "--dcgm.address=", ready="") as running:
        yield running


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Papers, Daemon]]:
    """A daemon with TLS, passwords and a header."""
    papers = issued(tmp_path_factory.mktemp("locked"))
    with behind(papers.write(SERVER + USERS + HEADERS)) as running:
        yield papers, running


def test_with_tls_plain_http_gets_nothing_and_https_everything(
    locked: tuple[Papers, Daemon],
) -> None:
    papers, running = locked
    status, headers = ask(running, tls=papers.client(None), authorization=BASIC)
    assert (status, headers["x-frame-options"]) == (200, "deny")
    with pytest.raises((OSError, HTTPException)):
        ask(running)
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):  # an unknown authority
        urllib.request.urlopen(f"https://127.0.0.1:{running.port}/metrics", timeout=TIMEOUT)


@pytest.mark.parametrize(
    ("scheme", "why"),
    [("http", "or it has TLS: https://"), ("https", "--ca-file names the authority")],
)
def test_a_command_says_what_it_takes_to_ask_a_daemon_with_tls(
    scheme: str, why: str, locked: tuple[Papers, Daemon]
) -> None:
    url = f"{scheme}://127.0.0.1:{locked[1].port}"
    address = DaemonAddress(url, tls=ssl.create_default_context())
    with pytest.raises(DaemonError, match=why):
        address.get("/api/v1/node", TIMEOUT)


def test_who_has_to_show_a_certificate_gets_nothing_without(papers: Papers) -> None:
    """Nor with one of another authority, or with another name."""
    stranger = Papers(papers.folder / "stranger", trustme.CA())
    stranger.folder.mkdir()
    stranger.issue("client", "prometheus.monitoring")
    (stranger.folder / "ca.crt").write_bytes((papers.folder / "ca.crt").read_bytes())
    papers.issue("other", "grafana.monitoring")
    papers.issue("address", "2001:db8::1")
    names = "  client_allowed_sans: [prometheus.monitoring, '2001:0DB8:0:0::1']\n"
    with behind(papers.write(MUTUAL + names)) as running:
        assert ask(running, tls=papers.client())[0] == 200
        assert ask(running, tls=papers.client("address"))[0] == 200
        for refused in (papers.client(None), stranger.client()):
            for path in ("/metrics", "/healthz"):
                with pytest.raises(OSError, match=r"(?i)certificate|reset|closed|eof"):
                    ask(running, path, tls=refused)
        with pytest.raises(OSError):  # noqa: PT011 a client sees this in more than one way
            ask(running, tls=papers.client("other"))


def test_a_password_opens_every_page_and_nobody_needs_one_for_health(
    locked: tuple[Papers, Daemon],
) -> None:
    papers, running = locked
    tls = papers.client(None)
    for path in ("/metrics", "/", "/api/v1/gpus", "/openapi.json"):
        status, headers = ask(running, path, tls)
        assert (status, headers["www-authenticate"][:5]) == (401, "Basic")
        assert headers["x-frame-options"] == "deny"
        assert ask(running, path, tls, BASIC)[0] == 200
    until(lambda: ask(running, "/readyz", tls)[0] == 200)
    assert ask(running, "/healthz", tls)[0] == 200
    for path in ("//healthz", "/healthz/../metrics", "/healthz/", "/metrics?/healthz"):
        assert ask(running, path, tls)[0] == 401


def test_with_passwords_whoever_has_one_reads_incidents_from_anywhere(
    locked: tuple[Papers, Daemon],
) -> None:
    papers, running = locked
    url = f"https://127.0.0.1:{running.port}/api/v1/incidents"
    headers = {"Host": "gpu-17.example:9816", "Authorization": BASIC}
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, context=papers.client(None)) as answer:
        assert json.load(answer) == []


def basic(text: bytes) -> str:
    return f"Basic {base64.b64encode(text).decode()}"


WRONG = {
    "another password": basic(b"alice:wrong"),
    "no password": basic(b"alice:"),
    "no colon": basic(b"alice"),
    "nothing": basic(b""),
    "another user": basic(b"bob:" + PASSWORD.encode()),
    "a user that is no text": basic(b"\xff:" + PASSWORD.encode()),
    "no Base64": "Basic a",
    "another scheme": f"Bearer {BASIC[6:]}",
    "the hash": basic(f"alice:{HASHED}".encode()),
    "more than bcrypt reads": basic(b"alice:" + b"x" * 10_000),
    "a zero byte": basic(b"alice:" + PASSWORD.encode() + b"\0"),
}


def test_what_is_not_the_password_is_refused_also_after_the_right_one(
    locked: tuple[Papers, Daemon],
) -> None:
    papers, running = locked
    tls = papers.client(None)
    for _ in range(2):
        for name, authorization in WRONG.items():
            assert ask(running, "/metrics", tls, authorization)[0] == 401, name
        assert ask(running, "/metrics", tls, BASIC)[0] == 200


def swap(papers: Papers, target: str) -> None:
    """What the kubelet does with a volume: one rename replaces all files at once."""
    fresh = papers.folder / "..data.new"
    fresh.symlink_to(target)
    fresh.rename(papers.folder / "..data")


def serial(running: Daemon, tls: ssl.SSLContext) -> str:
    """The number of the certificate that a daemon shows now."""
    with (
        socket.create_connection(("127.0.0.1", running.port), 5) as plain,
        tls.wrap_socket(plain, server_hostname="127.0.0.1") as client,
    ):
        return str((client.getpeercert() or {})["serialNumber"])


def test_a_certificate_that_the_kubelet_replaces_is_shown_without_a_restart(
    papers: Papers,
) -> None:
    for turn in ("first", "second"):
        folder = papers.folder / turn
        folder.mkdir()
        Papers(folder, papers.authority).issue("server", "127.0.0.1")
    swap(papers, "first")
    path = papers.write(SERVER.replace("server.", "..data/server."))
    with behind(path) as running:
        first = serial(running, papers.client(None))
        swap(papers, "second")
        until(lambda: serial(running, papers.client(None)) != first)


def test_users_and_authorities_change_without_a_restart_and_a_mistake_changes_nothing(
    papers: Papers, caplog: pytest.LogCaptureFixture
) -> None:
    file = AccessFile(papers.write(SERVER + USERS))
    before = file.access
    file.look_again()
    assert file.access is before

    mistakes: list[tuple[str, Callable[[], object]]] = [
        ("unclosed", lambda: papers.write("tls_server_config: [")),
        ("wrong key", lambda: papers.write(SERVER.replace("server.key", "client.key"))),
        ("emptied", lambda: papers.write("")),
        (
            "too long",
            lambda: papers.write(SERVER + USERS.replace("alice", "bob") + "#" * MAX_SETTINGS),
        ),
        ("no file", lambda: (papers.folder / "web.yml").unlink()),
        ("without values", lambda: papers.write("basic_auth_users:\ntls_server_config:\n")),
    ]
    for name, mistake in mistakes:
        caplog.clear()
        mistake()
        for _ in range(3):
            file.look_again()
        assert file.access is before, name
        (record,) = caplog.records
        assert "stays in force" in record.getMessage()
        assert record.levelno == logging.WARNING

    papers.write(MUTUAL + USERS.replace("alice", "bob"))
    file.look_again()
    assert file.access.users.keys() == {"bob"}
    assert file.access.tls is not None
    assert file.access.tls.verify_mode == ssl.CERT_REQUIRED
    before = file.access
    Papers(papers.folder, trustme.CA()).authority.cert_pem.write_to_path(
        str(papers.folder / "ca.crt")
    )
    file.look_again()
    assert file.access is not before


LESS = {
    "half a file, cut before its users": (USERS, "http_server_config:\n  http2: true\n"),
    "no users": (SERVER + USERS, SERVER),
    "no TLS": (SERVER + USERS, USERS),
    "no certificates of clients": (MUTUAL, SERVER),
    "certificates only if given": (MUTUAL, MUTUAL.replace("RequireAndVerify", "VerifyIfGiven_")),
    "half a file, cut before the authority": (MUTUAL, MUTUAL.partition("  client_ca_file")[0]),
    "any name": (f"{MUTUAL}  client_allowed_sans: [a]\n", MUTUAL),
}


@pytest.mark.parametrize("name", LESS)
def test_a_change_that_asks_less_of_a_client_takes_a_restart(
    papers: Papers, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    whole, less = (
        text.replace("VerifyIfGiven_ClientCert", "VerifyClientCertIfGiven") for text in LESS[name]
    )
    file = AccessFile(papers.write(whole))
    before = file.access
    assert file.in_force
    papers.write(less)
    for _ in range(2):
        file.look_again()
    assert file.access is before
    assert not file.in_force
    (record,) = caplog.records
    assert "would take away" in record.getMessage()
    papers.write(whole)
    file.look_again()
    assert file.in_force
    AccessFile(papers.write(less))


@pytest.mark.parametrize("which", ["web.yml", "server.crt", "server.key", "ca.crt"])
def test_a_pipe_in_place_of_a_file_holds_nothing_up(papers: Papers, which: str) -> None:
    file = AccessFile(papers.write(MUTUAL + USERS))
    before, place = file.access, papers.folder / which
    kept = place.rename(papers.folder / "kept")
    os.mkfifo(place)
    file.look_again()
    assert not file.in_force
    assert file.access is before
    place.unlink()
    kept.rename(place)
    papers.write(MUTUAL + USERS.replace("alice", "bob"))
    file.look_again()
    assert file.access.users.keys() == {"bob"}
    os.mkfifo(pipe := papers.folder / "pipe.yml")
    with pytest.raises(UsageError, match="not a regular file"):
        AccessFile(pipe)


def test_a_dead_mount_in_place_of_the_file_is_told_and_costs_one_thread(
    papers: Papers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "ANSWER", 0.01)
    file = AccessFile(papers.write(USERS))
    answers = threading.Event()
    look = access.read_access

    def late(path: Path) -> access.AccessFiles:
        answers.wait()
        return look(path)

    monkeypatch.setattr(access, "read_access", late)
    threads = threading.active_count()
    for _ in range(20):
        file.look_again()
    assert threading.active_count() == threads + 1
    assert not file.in_force
    papers.write(USERS.replace("alice", "bob"))
    answers.set()
    until(lambda: threading.active_count() == threads)
    monkeypatch.setattr(file._patience, "_wait", TIMEOUT)
    file.look_again()
    assert file.in_force
    assert file.access.users.keys() == {"bob"}


def samples(entrance: Entrance) -> dict[str, float | Distribution]:
    return {one.metric.name: one.value for one in entrance.read(NOTHING).samples}


def test_the_state_of_the_file_and_of_the_certificate_are_exported(
    papers: Papers, caplog: pytest.LogCaptureFixture
) -> None:
    assert samples(Entrance(None)) == {}
    file = AccessFile(papers.write(SERVER))
    entrance = Entrance(file)
    found = samples(entrance)
    assert found[RELOADED.name] == 1.0
    (certificate,) = x509.load_pem_x509_certificates((papers.folder / "server.crt").read_bytes())[
        :1
    ]
    assert found[EXPIRY.name] == certificate.not_valid_after_utc.timestamp()
    assert caplog.records == []

    yesterday = datetime.now(timezone.utc) - timedelta(days=1)
    papers.issue("server", "127.0.0.1", not_after=yesterday)
    for _ in range(3):
        file.look_again()
    assert samples(entrance)[EXPIRY.name] == int(yesterday.timestamp())
    (record,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert f"expired on {yesterday:%Y-%m-%d}" in record.getMessage()

    papers.write("basic_auth_users: [")
    file.look_again()
    assert samples(entrance)[RELOADED.name] == 0.0
    assert samples(Entrance(AccessFile(papers.write(USERS)))) == {RELOADED.name: 1.0}


def test_connections_that_made_way_are_counted_once() -> None:
    entrance = Entrance(None)
    assert entrance.read(NOTHING).unread == ()
    entrance.refused += 3
    (cut,) = entrance.read(NOTHING).unread
    assert (cut.kind.what, cut.kind.bound, cut.times) == ("connections", True, 3)
    assert entrance.read(NOTHING).unread == ()


GOOD = {
    "nothing": "",
    "parts without a key": "tls_server_config:\nbasic_auth_users:\nhttp_server_config:\n",
    "no policy": SERVER,
    "no policy by name": f"{SERVER}  client_auth_type: NoClientCert\n",
    "the authorities of the system": f"{SERVER}  client_auth_type: VerifyClientCertIfGiven\n",
    "certificates of clients": MUTUAL,
    "names of clients": f"{MUTUAL}  client_allowed_sans:\n    - one\n",
    "every cipher": f"{SERVER}  cipher_suites: [{', '.join(CIPHERS)}]\n",
    "one version": f"{SERVER}  min_version: TLS13\n  max_version: TLS13\n",
    "order of the client": f"{SERVER}  prefer_server_cipher_suites: false\n",
    "no HTTP/2": "http_server_config:\n  http2: false\n",
    "all headers": """
        http_server_config:
          headers:
            X-Frame-Options: sameorigin
            Strict-Transport-Security: max-age=31536000; includeSubDomains
            X-Content-Type-Options: nosniff
            X-XSS-Protection: 1
            Content-Security-Policy: "default-src 'self'"
        """,
    "users": f"basic_auth_users:\n  alice: {HASHED}\n  'böb': {HASHED.replace('$2b', '$2y')}\n",
    "a file elsewhere": SERVER.replace("server.crt", "{folder}/server.crt"),
}

BAD = {
    "junk": ("hWkNKCp3fvIx3jKnsaBI\nTuEjdwNS8A2vYdFbiKqr\n", "not a mapping"),
    "unknown part": ("tls_config: {}", "tls_config: Extra inputs are not permitted"),
    "unknown key": ("tls_server_config:\n  cert_filse: a\n", "tls_server_config.cert_filse"),
    "unknown key without a value": ("rate_limit:\n", "rate_limit: Extra inputs"),
    "a key twice": (f"{USERS}  alice: {HASHED}\n", "line 3: 'alice' is there twice"),
    "nested": ("basic_auth_users: " + "{a: " * 16, "line 1: nested more than 16 deep"),
    "no certificate": ("tls_server_config:\n  key_file: server.key\n", "cert_file is missing"),
    "an empty key": (SERVER.replace("server.key", '""'), "key_file is missing"),
    "an empty inline key": (
        SERVER.replace("key_file: server.key", 'key: ""'),
        "key_file is missing",
    ),
    "keys without values": (
        'tls_server_config:\n  cert_file: ""\n  key_file:\n',
        "cert_file is missing",
    ),
    "a version alone": ("tls_server_config:\n  min_version: TLS13\n", "cert_file is missing"),
    "no such certificate": (SERVER.replace("server.crt", "none"), "none: No such file"),
    "no such key": (SERVER.replace("server.key", "none"), "none: No such file"),
    "no such authority": (MUTUAL.replace("ca.crt", "none"), "none: No such file"),
    "an empty authority": (MUTUAL.replace("ca.crt", "/dev/null"), "/dev/null: not a regular file"),
    "a folder": (SERVER.replace("server.crt", "."), "Is a directory"),
    "a key of another": (SERVER.replace("server.key", "client.key"), "key values mismatch"),
    "a key that is none": (SERVER.replace("server.key", "server.crt"), "certificate, key or"),
    "an authority that is none": (MUTUAL.replace("ca.crt", "server.key"), "certificate, key or"),
    "both": (f"{SERVER}  cert: x\n", "cert and cert_file are both given"),
    "an authority for nothing": (f"{SERVER}  client_ca_file: ca.crt\n", "client_auth_type"),
    "an unknown policy": (f"{SERVER}  client_auth_type: RequireClient\n", "client_auth_type"),
    "a policy that verifies nothing": (
        f"{SERVER}  client_auth_type: RequireAnyClientCert\n",
        "should be 'NoClientCert', 'VerifyClientCertIfGiven' or 'RequireAndVerifyClientCert'",
    ),
    "names that nobody must have": (f"{SERVER}  client_allowed_sans: [a]\n", "needs Require"),
    "an unknown cipher": (
        f"{SERVER}  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA2048]\n",
        "cipher_suites.0: 'TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA2048' is unknown; choose from",
    ),
    "an unknown version": (f"{SERVER}  min_version: TLS111\n", "'TLS12' or 'TLS13'"),
    "versions the wrong way round": (
        f"{SERVER}  min_version: TLS13\n  max_version: TLS12\n",
        "min_version is above max_version",
    ),
    "curves": (f"{SERVER}  curve_preferences: [CurveP521]\n", "curve_preferences"),
    "a password": ("basic_auth_users:\n  john: doe\n", "the password of 'john' is not hashed"),
    "a user without a password": ("basic_auth_users:\n  john:\n", "the password of 'john'"),
    "a hash that takes years": (USERS.replace("$04$", "$31$"), "at a cost of 4 to 18"),
    "a colon in a name": (USERS.replace("alice", "'a:b'"), "colon"),
    "another header": (HEADERS.replace("X-Frame-Options", "Set-Cookie"), "'Set-Cookie' cannot"),
    "a value of a header": (HEADERS.replace("deny", "foo"), "must be deny or sameorigin"),
    "two lines in a header": (
        'http_server_config:\n  headers:\n    X-XSS-Protection: "1\\r\\nA: b"\n',
        "one line of ASCII",
    ),
}


def test_a_file_of_another_exporter_is_read(papers: Papers) -> None:
    for text in GOOD.values():
        AccessFile(papers.write(text.replace("{folder}", str(papers.folder))))


def test_a_mistake_is_told_with_its_place_and_no_secret(papers: Papers) -> None:
    for name, (text, told) in BAD.items():
        with pytest.raises(UsageError) as caught:
            AccessFile(papers.write(text))
        line = str(caught.value)
        assert told in line, name
        assert "\n" not in line, name
        assert HASHED[8:] not in line, name
        assert "PRIVATE KEY" not in line, name


def test_keys_may_be_in_the_file_itself(papers: Papers) -> None:
    parts = {
        "cert": "server.crt",
        "key": "server.key",
        "client_ca": "ca.crt",
    }
    inline = {part: (papers.folder / name).read_text() for part, name in parts.items()}
    inline["client_auth_type"] = "RequireAndVerifyClientCert"
    file = AccessFile(papers.write(json.dumps({"tls_server_config": inline})))
    assert spoken(file, papers.client())[0] == "TLSv1.3"
    with pytest.raises(ssl.SSLError, match=r"(?i)certificate"):
        spoken(file, papers.client(None))


def spoken(file: AccessFile, client: ssl.SSLContext) -> tuple[str | None, str]:
    """The version and the cipher on which a client and the file's TLS agree."""
    assert file.access.tls is not None
    outward, inward = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = client.wrap_bio(outward, inward, server_hostname="127.0.0.1")
    ours = file.access.tls.wrap_bio(inward, outward, server_side=True)
    for _ in range(4):
        for side in (theirs, ours):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return theirs.version(), (theirs.cipher() or ("",))[0]


def test_an_encrypted_key_asks_nobody_for_its_password(papers: Papers) -> None:
    key = papers.folder / "server.key"
    openssl = ["openssl", "pkey", "-aes256", "-passout", "pass:x", "-in", str(key)]
    key.write_bytes(subprocess.run(openssl, capture_output=True, check=True).stdout)
    with pytest.raises(UsageError, match="key is encrypted"):
        AccessFile(papers.write(SERVER))


def test_a_wrong_file_ends_the_program_with_one_line(
    papers: Papers, capfd: pytest.CaptureFixture[str]
) -> None:
    path = papers.write("basic_auth_users:\n  john: doe\n")
    with pytest.raises(SystemExit) as ended:
        main([f"--web.config.file={path}"])
    assert ended.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"gpunode: {path}: basic_auth_users: ")


@pytest.mark.parametrize(("version", "cipher"), [("TLSv1.2", "ECDHE-ECDSA"), ("TLSv1.3", None)])
def test_only_the_versions_and_ciphers_of_the_file_are_spoken(
    papers: Papers, version: str, cipher: str | None
) -> None:
    """The certificate has an elliptic key: of RSA's ciphers none fits."""
    limits = {"TLSv1.2": "max_version: TLS12", "TLSv1.3": "min_version: TLS13"}[version]
    file = AccessFile(papers.write(f"{SERVER}  {limits}\n"))
    found = spoken(file, papers.client(None))
    assert found[0] == version
    assert cipher is None or found[1].startswith(cipher)
    other = papers.client(None)
    if version == "TLSv1.2":
        other.minimum_version = ssl.TLSVersion.TLSv1_3
    else:
        other.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match=r"(?i)version|protocol"):
        spoken(file, other)


JOB = """
  - job_name: {name}
    scheme: https
    basic_auth: {{username: alice, password: {password}}}
    tls_config: {{ca_file: ca.crt, cert_file: {certificate}.crt, key_file: {certificate}.key}}
    static_configs: [{{targets: ['127.0.0.1:{port}']}}]
"""

JOBS = {
    "invited": ("client", PASSWORD),
    "guessing": ("client", "wrong"),
    "stranger": ("stranger", PASSWORD),
}


@pytest.mark.integration
def test_prometheus_scrapes_with_its_certificate_and_password(papers: Papers) -> None:
    prometheus = needs.need("prometheus")
    Papers(papers.folder, trustme.CA()).issue("stranger", "prometheus.monitoring")
    with behind(papers.write(MUTUAL + USERS)) as running:
        jobs = [
            JOB.format(name=name, port=running.port, password=password, certificate=certificate)
            for name, (certificate, password) in JOBS.items()
        ]
        config = papers.folder / "prometheus.yml"
        config.write_text(f"global: {{scrape_interval: 1s}}\nscrape_configs:{''.join(jobs)}")
        port = free_port()
        command = [
            prometheus,
            f"--config.file={config}",
            f"--storage.tsdb.path={papers.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=error",
        ]
        with subprocess.Popen(command) as child:
            try:
                targets = until(
                    lambda: scrape_targets(f"http://127.0.0.1:{port}/api/v1/targets"), 30
                )
            finally:
                child.terminate()
    found = {target["labels"]["job"]: target for target in targets}
    assert {job: target["health"] for job, target in found.items()} == {
        "invited": "up",
        "guessing": "down",
        "stranger": "down",
    }
    # "401" alone may be a part of the port that the error names.
    assert "401 Unauthorized" in found["guessing"]["lastError"]
    assert "401 Unauthorized" not in found["stranger"]["lastError"]


def scrape_targets(url: str) -> list[dict[str, Any]]:
    """The targets of a Prometheus once each was scraped."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            targets = json.load(answer)["data"]["activeTargets"]
    except OSError:
        return []
    return targets if all(target["health"] != "unknown" for target in targets) else []


CERTIFICATE = (("cert", "crt"), ("key", "key"))


def test_top_shows_a_certificate_and_a_password(
    papers: Papers, capfd: pytest.CaptureFixture[str]
) -> None:
    def top(*options: str) -> tuple[object, str, str]:
        code: object = 0
        try:
            main(["top", *options])
        except SystemExit as end:
            code = end.code
        return code, *capfd.readouterr()

    secret = papers.folder / "password"
    secret.write_text(f"{PASSWORD}\n")
    certificate = [f"--{part}-file={papers.folder}/client.{end}" for part, end in CERTIFICATE]
    trusted = f"--ca-file={papers.folder}/ca.crt"
    known = ["--username=alice", f"--password-file={secret}"]
    with behind(papers.write(MUTUAL + USERS)) as running:
        url = f"--url=https://127.0.0.1:{running.port}"
        until(lambda: top(url, trusted, *certificate, *known)[0] == 0)
        _, shown, _ = top(url, trusted, *certificate, *known)
        assert "GPU now" in shown
        assert PASSWORD not in shown
        refusals = {
            "wants another --username": top(url, trusted, *certificate),
            "certificate verify failed": top(url, *certificate, *known),
            "no daemon answers": top(url, trusted, *known),
            "nothing.crt: No such file": top(url, f"--ca-file={papers.folder}/nothing.crt"),
            "no certificate, or not of this key": top(url, f"--ca-file={secret}"),
        }
    for why, (code, _, said) in refusals.items():
        assert code == 2, why
        assert why in said
        assert said.count("\n") == 1, said
