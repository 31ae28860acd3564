"""The commands as a user types them: what works, and what one is told when it does not."""

from __future__ import annotations

import gzip
import inspect
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

import pytest

from gpunode import __version__
from gpunode.cli.extras import needing
from gpunode.cli.loader import load
from gpunode.cli.main import main
from gpunode.cli.settings.audit import AuditSettings
from gpunode.cli.settings.run import RunSettings
from gpunode.cli.settings.top import TopSettings
from gpunode.config.daemon import GpuSettings
from gpunode.mistake import UsageError
from gpunode.recorded import INCIDENTS
from tests.daemon import TIMEOUT

TAPE = str(INCIDENTS / "straggler.jsonl.gz")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


class Gpunode(Protocol):
    """Runs a command with variables of the environment."""

    def __call__(self, *arguments: str, **environment: str) -> Outcome: ...


@pytest.fixture
def gpunode(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Gpunode:
    """The command in this process, which has been started already."""

    def run(*arguments: str, **environment: str) -> Outcome:
        capfd.readouterr()
        with monkeypatch.context() as patched:
            for name, value in {"COLUMNS": "120", **environment}.items():
                patched.setenv(name, value)
            try:
                main(arguments)
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
        return Outcome(code, *capfd.readouterr())

    return run


@pytest.fixture
def complaint(gpunode: Gpunode) -> Callable[..., str]:
    """Runs a command for the one line with which a misuse ends."""

    def run(*arguments: str, **environment: str) -> str:
        ended = gpunode(*arguments, **environment)
        assert (ended.code, ended.out) == (2, ""), ended
        (line,) = ended.err.splitlines()
        assert line.startswith("gpunode: ")
        return line

    return run


def installed(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "gpunode", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
        env={**os.environ, "COLUMNS": "120", **environment},
    )


def test_where_only_the_client_is_the_version_and_a_command_say_how_to_get_the_daemon() -> None:
    """Without the packages of the site there is nothing but our own code."""
    ours = {**os.environ, "PYTHONPATH": str(Path(inspect.getfile(main)).parents[2])}
    for command, at in (("--version", "stdout"), ("run", "stderr")):
        ran = subprocess.run(
            [sys.executable, "-S", "-m", "gpunode", command],
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT,
            env=ours,
        )
        assert "pip install 'gpunode[exporter]'" in getattr(ran, at), ran


def test_the_program_ends_with_what_the_command_says() -> None:
    assert installed("--version").stdout == f"gpunode {__version__}\n"
    misused = installed("fly")
    assert (misused.returncode, misused.stdout) == (2, "")
    assert misused.stderr.startswith("gpunode: fly: ")
    assert misused.stderr.count("\n") == 1


def test_help_names_the_commands_and_their_options(gpunode: Gpunode) -> None:
    assert "replay" in gpunode("--help").out
    assert "--gpu.interval" in gpunode("run", "--help").out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["fly"], "fly"),
        (["run", "--no-such-option"], "--no-such-option"),
        (["--no-such-option=1"], "--no-such-option"),
        (["run", "--gpu.interval=9"], "gpu.interval"),
        (["run", "--gpu.interval=often"], "gpu.interval"),
        (["run", "--web.listen-address=nowhere"], "web.listen_address"),
        (["run", "--path.rootfs=/no/such/root"], "/no/such/root"),
        (["run", "--config.file=/no/such/file"], "/no/such/file"),
        (["replay", "/no/such/tape"], "/no/such/tape"),
        (["replay"], "FILE"),
        (["rules"], "say either --into=FOLDER"),
        (["record", "/no/such/folder/tape"], "/no/such/folder/tape"),
        (["demo", "/"], "/"),
        (["replay", ""], "file: is empty"),
        (["rules", "--into="], "say either --into=FOLDER"),
    ],
)
def test_misuse_is_told_in_one_line(
    complaint: Callable[..., str], arguments: list[str], named: str
) -> None:
    assert named in complaint(*arguments)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("gpu: {interval: 1", "line 1"),
        ("gpu:\n  interval: 1\n bad", "line 3"),
        ("- a\n- b\n", "not a mapping"),
        ("gpu: {intervall: 1}", "gpu.intervall"),
        ("gpuss: 3", "the nearest is gpu"),
        ("gpu.interval: 1", "write each key within the one before: gpu: {interval: ...}"),
        ("gpu: 5", "gpu: takes keys with values below it"),
        ("prometheus: {url: http://a, gpu: 1}", "prometheus.gpu"),
        ("gpu: {interval: 7}", "gpu.interval"),
        ("gpu: \x00", "settings.yaml"),
        ("\ngpu: " + "[" * 17, "line 2: nested more than 16 deep"),
        ("- " * 17, "line 1: nested more than 16 deep"),
    ],
)
def test_a_malformed_settings_file_is_told_by_line_or_field(
    complaint: Callable[..., str], tmp_path: Path, text: str, named: str
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    assert named in complaint("run", f"--config.file={path}")


def test_a_malformed_environment_variable_is_told_by_name(complaint: Callable[..., str]) -> None:
    assert "gpu.interval" in complaint("run", GPUNODE_GPU__INTERVAL="often")


def test_an_option_beats_the_environment_beats_the_file(
    complaint: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("gpu: {interval: 11}")
    options = ["run", f"--config.file={path}"]
    assert "gpu.interval" in complaint(*options)
    assert "web.listen_address" in complaint(
        *options, "--web.listen-address=x", GPUNODE_GPU__INTERVAL="1"
    )
    assert "gpu.interval" in complaint(*options, "--gpu.interval=12", GPUNODE_GPU__INTERVAL="1")


def test_what_is_empty_is_as_good_as_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("gpu:\n  # interval: 1\nweb:\n")
    assert load(RunSettings, "gpunode run", [f"--config.file={path}"]).gpu == GpuSettings()
    monkeypatch.setenv("GPUNODE_WEB__CONFIG__FILE", "")
    monkeypatch.setenv("GPUNODE_CONFIG__FILE", "")
    settings = load(RunSettings, "gpunode run", [])
    assert (settings.config.file, settings.web.config.file) == (None, None)


def test_the_environment_of_other_programs_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JSON", "nonsense")
    monkeypatch.setenv("GPUNODE_JSON", "true")
    assert load(AuditSettings, "gpunode audit", []).json_output


def test_what_the_environment_and_the_file_have_for_other_commands_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("web: {listen_address: ':1', node_name: a}\ngpu: {interval: 1}\nprice: 2\n")
    monkeypatch.setenv("GPUNODE_WEB__CONFIG__FILE", "/no/such/file")
    monkeypatch.setenv("GPUNODE_GPU__INTERVAL", "often")
    settings = load(TopSettings, "gpunode top", [f"--config.file={path}"])
    assert settings.model_dump(exclude_defaults=True) == {
        "config": {"file": path},
        "web": {"listen_address": ":1"},
    }


def test_a_taken_port_is_told(complaint: Callable[..., str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = complaint("run", f"--web.listen-address=127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in line
    assert "in use" in line


def test_a_name_that_is_no_address_is_told(complaint: Callable[..., str]) -> None:
    line = complaint("run", "--web.listen-address=[::1%nowhere]:0")
    assert "[::1%nowhere]:0: " in line
    assert "Unknown error" not in line


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ("{nonsense\n", "line 1: not JSON"),
        ("{}\n", "line 1"),
        ('{"gpunode_tape":1,"time":1}\n{"t":0,"of":"","call":"fly"}\n', "line 2: field call"),
    ],
)
def test_a_malformed_tape_is_told_by_line(
    complaint: Callable[..., str], tmp_path: Path, lines: str, named: str
) -> None:
    path = tmp_path / "tape.jsonl.gz"
    path.write_bytes(gzip.compress(lines.encode()))
    line = complaint("replay", str(path))
    assert str(path) in line
    assert named in line


def test_a_tape_that_is_none_is_told(complaint: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl.gz"
    path.write_bytes(b"not gzip")
    assert f"{path}: after line 0" in complaint("replay", str(path))


def test_a_replay_prints_the_ledger_or_the_metrics(gpunode: Gpunode) -> None:
    assert "blocked 76%" in gpunode("replay", TAPE, "--speed=0").out
    metrics = gpunode("replay", TAPE, "--speed=0", "--print=metrics").out
    assert 'gpunode_gpu_seconds_total{gpu="0",state="blocked"' in metrics


def test_a_terminal_without_unicode_gets_the_table() -> None:
    ended = installed("replay", TAPE, "--speed=0", PYTHONIOENCODING="latin-1")
    assert ended.returncode == 0, ended.stderr
    assert "????????" in ended.stdout
    assert "blocked 76%" in ended.stdout


def test_a_command_without_its_extra_names_the_extra_to_install() -> None:
    says = r"why: needs the extra report: pip install 'gpunode\[report\]' \(not_there is not instal"
    with pytest.raises(UsageError, match=says), needing("report", "why"):
        import_module("not_there")
