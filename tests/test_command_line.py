"""The commands as a user types them: what works, and what one is told when it does not."""

from __future__ import annotations

import gzip
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gpunode import __version__
from gpunode.config import INCIDENTS, AuditSettings, load
from tests.tapes.truth import TRUTH

TAPE = str(INCIDENTS / "straggler.jsonl.gz")


def gpunode(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpunode", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "COLUMNS": "120", **environment},
    )


def complaint(*arguments: str, **environment: str) -> str:
    """The one line with which a misuse ends."""
    ended = gpunode(*arguments, **environment)
    assert ended.returncode == 2, ended
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("gpunode: ")
    return line


def test_version_and_help() -> None:
    assert gpunode("--version").stdout == f"gpunode {__version__}\n"
    assert "replay" in gpunode("--help").stdout
    assert "--gpu.interval" in gpunode("run", "--help").stdout


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
        (["record", "/no/such/folder/tape"], "/no/such/folder/tape"),
        (["demo", "/tmp"], "/tmp"),
    ],
)
def test_misuse_is_told_in_one_line(arguments: list[str], named: str) -> None:
    assert named in complaint(*arguments)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("gpu: {interval: 1", "line 1"),
        ("gpu:\n  interval: 1\n bad", "line 3"),
        ("- a\n- b\n", "not a mapping"),
        ("gpu: {intervall: 1}", "gpu.intervall"),
        ("gpus: 3", "gpus"),
        ("gpu: {interval: 7}", "gpu.interval"),
        ("gpu: \x00", "settings.yaml"),
    ],
)
def test_a_malformed_settings_file_is_told_by_line_or_field(
    tmp_path: Path, text: str, named: str
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    assert named in complaint("run", f"--config.file={path}")


def test_a_malformed_environment_variable_is_told_by_name() -> None:
    assert "gpu.interval" in complaint("run", GPUNODE_GPU__INTERVAL="often")


def test_an_option_beats_the_environment_beats_the_file(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("gpu: {interval: 11}")
    options = ["run", f"--config.file={path}"]
    assert "gpu.interval" in complaint(*options)
    assert "web.listen_address" in complaint(
        *options, "--web.listen-address=x", GPUNODE_GPU__INTERVAL="1"
    )
    assert "gpu.interval" in complaint(*options, "--gpu.interval=12", GPUNODE_GPU__INTERVAL="1")


def test_the_environment_of_other_programs_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JSON", "nonsense")
    monkeypatch.setenv("GPUNODE_JSON", "true")
    assert load(AuditSettings, "gpunode audit", []).json_output


def test_a_taken_port_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = complaint("run", f"--web.listen-address=127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in line
    assert "in use" in line


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ("{nonsense\n", "line 1: not JSON"),
        ("{}\n", "line 1"),
        ('{"gpunode_tape":1,"time":1}\n{"t":0,"of":"","call":"fly"}\n', "line 2: field call"),
    ],
)
def test_a_malformed_tape_is_told_by_line(tmp_path: Path, lines: str, named: str) -> None:
    path = tmp_path / "tape.jsonl.gz"
    path.write_bytes(gzip.compress(lines.encode()))
    line = complaint("replay", str(path))
    assert str(path) in line
    assert named in line


def test_a_tape_that_is_none_is_told(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl.gz"
    path.write_bytes(b"not gzip")
    assert f"{path}: after line 0" in complaint("replay", str(path))


def test_a_replay_prints_the_ledger_or_the_metrics() -> None:
    assert "blocked 75%" in gpunode("replay", TAPE, "--speed=0").stdout
    metrics = gpunode("replay", TAPE, "--speed=0", "--print=metrics").stdout
    assert 'gpunode_gpu_seconds_total{gpu="0",state="blocked"' in metrics


def test_the_demo_tells_the_incidents_apart() -> None:
    ended = gpunode(
        "demo", str(INCIDENTS), "--once", "--speed=400", "--web.listen-address=127.0.0.1:0"
    )
    assert ended.returncode == 0, ended.stderr
    rows = {line.split()[0]: line for line in ended.stdout.splitlines() if line.strip()}
    assert TRUTH.keys() <= rows.keys()
    for incident, state in (("hang", "idle"), ("comm", "communication"), ("h2d", "copy")):
        assert state in rows[incident]
