"""The demo: drawn over itself in a terminal, and written line by line where there is none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from gpunode.config import INCIDENTS
from tests.tapes.truth import TRUTH
from tests.terminal import Terminal

ROOT = Path(__file__).parents[2]
SOMEWHERE = "--web.listen-address=127.0.0.1:0"
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/ shows the tape now playing, at \S+ times real")
PATIENCE = 120.0
"""Seconds for what takes a few, on a machine that is busy with other tests."""

MAKE_DEMO = re.compile(r"^demo: .*\n\t\$\(BIN\)/(gpunode .*) \$\(DEMO\)$", re.M)
PROGRESS = re.compile(r"(\w+): (\d+) of (\d+) s played")


@contextmanager
def piped(*command: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """The demo with a pipe for its output."""
    program = [sys.executable, "-m", *command, SOMEWHERE]
    environment = {**os.environ, **environment}
    child = subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    watchdog = threading.Timer(PATIENCE, child.kill)
    watchdog.start()
    assert child.stdout
    try:
        yield child, child.stdout
    finally:
        watchdog.cancel()
        child.kill()
        child.communicate()


def until_finding(lines: Iterator[str]) -> list[str]:
    """The lines about the next incident, to the empty one after its finding."""
    found: list[str] = []
    for line in lines:
        assert all(character.isprintable() for character in line.rstrip("\n")), line
        if line == "\n":
            return found
        found.append(line.rstrip("\n"))
    raise AssertionError(f"it has ended after: {found}")


def test_the_command_of_the_readme_tells_a_pipe_what_happens() -> None:
    assert "\n    make demo\n" in (ROOT / "README.md").read_text()
    (command,) = MAKE_DEMO.findall((ROOT / "Makefile").read_text())
    with piped(*command.split()) as (_, lines):
        assert ADDRESS.match(next(lines)), "before anything is played"
        for incident in ("checkpoint", "comm"):
            *progress, heading, gpu_0, gpu_1, finding = until_finding(lines)
            played = [PROGRESS.fullmatch(line) for line in progress]
            assert played
            assert all(one and one[1] == incident and int(one[2]) <= int(one[3]) for one in played)
            assert heading.split()[:3] == ["GPU", "went", "to"]
            assert [gpu_0.split()[0], gpu_1.split()[0]] == ["0", "1"]
            assert finding.startswith(f"{incident}: GPU")
            assert finding.endswith(".")
    assert finding == "comm: GPUs 0 and 1 are moving data between GPUs while nothing is computed."
    assert "communication 97%" in gpu_0


@pytest.mark.parametrize(
    ("incident", "finding"),
    [
        (
            "h200_hang",
            "GPU 0 hangs: it waits for GPU 1, whose process is stopped by a signal or a debugger.",
        ),
        (
            "h200_shm",
            "GPU 0 is starved: the job's /dev/shm is full; "
            "Past the limit on this node: /dev/shm in use 97 %.",
        ),
        ("healthy", "GPUs 0 and 1 are at work."),
        ("membound", "GPUs 0 and 1 are at work, limited by memory bandwidth."),
    ],
)
def test_a_finding_says_which_gpus_why_and_who_is_waited_for(
    tmp_path: Path, incident: str, finding: str
) -> None:
    (tmp_path / f"{incident}.jsonl.gz").symlink_to(INCIDENTS / f"{incident}.jsonl.gz")
    options = (str(tmp_path), "--once", "--speed=400", "--log.level=error")
    # with which rich would colour a pipe
    with piped("gpunode", "demo", *options, FORCE_COLOR="1") as (child, _):
        out, err = child.communicate(timeout=PATIENCE)
    assert (child.returncode, err) == (0, "")
    *_, said = until_finding(iter(out.splitlines(keepends=True)))
    assert said == f"{incident}: {finding}"


def test_every_incident_comes_once_and_its_table_is_what_happened() -> None:
    with piped("gpunode", "demo", "--once", "--speed=400") as (child, _):
        out, err = child.communicate(timeout=PATIENCE)
    assert (child.returncode, "Traceback" in err) == (0, False), err
    (port,) = ADDRESS.findall(out)
    assert int(port), "the port that was free, not the one that was asked for"
    told = {part.splitlines()[-1].split(":")[0]: part for part in out.strip().split("\n\n")}
    assert TRUTH.keys() <= told.keys() == {path.name.split(".")[0] for path in INCIDENTS.iterdir()}
    for incident, state in (("hang", "idle"), ("comm", "communication"), ("h2d", "copy")):
        assert state in told[incident]


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    with piped("gpunode", "demo", "--speed=40", "--log.level=error") as (child, lines):
        next(lines)
        lines.close()
        assert child.stderr
        assert child.stderr.read() == ""
        assert child.wait(PATIENCE) == 128 + 13


def test_a_dumb_terminal_gets_lines_that_move_no_cursor() -> None:
    demo = ("-m", "gpunode", "demo", "--once", "--speed=400", "--log.level=error", SOMEWHERE)
    terminal = Terminal(sys.executable, *demo, kind="dumb", size=(24, 80))
    terminal.scrolled_off(PATIENCE)
    os.close(terminal.side)
    assert terminal.child.wait(10) == 0
    assert "\ncomm: GPUs 0 and 1 are moving" in terminal.raw
    assert "\x1b" not in terminal.raw


def test_it_draws_over_itself_in_a_terminal_that_is_too_low_for_it() -> None:
    demo = ("-m", "gpunode", "demo", "--once", "--speed=100", "--log.level=error", SOMEWHERE)
    terminal = Terminal(sys.executable, *demo, size=(24, 100))
    left = terminal.scrolled_off()
    os.close(terminal.side)
    assert terminal.child.wait(10) == 0
    assert left < 46, "the table at the end, once"
