"""The demo: drawn over itself in a terminal, and written line by line where there is none."""

from __future__ import annotations

import gzip
import itertools
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

from gpunode.cli.demo import Captions
from gpunode.cli.loader import load
from gpunode.cli.settings.demo import DemoSettings
from gpunode.cli.stories import ORDER, Scene, order_tapes
from gpunode.cli.table import row
from gpunode.export.web.api import history
from gpunode.export.web.node import node
from gpunode.recorded import INCIDENTS, STORIES
from tests.tapes.stories import STORY
from tests.tapes.stories import main as make_stories
from tests.tapes.truth import TRUTH
from tests.terminal import Terminal

ROOT = Path(__file__).parents[2]
SOMEWHERE = "--web.listen-address=127.0.0.1:0"
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/ shows the same as a page")
TIMEOUT = 120.0
"""Seconds for what takes a few, on a machine that is busy with other tests."""

MAKE_DEMO = re.compile(r"^demo: .*\n\t@trap : INT; \$\(BIN\)/(gpunode .*) \$\(DEMO\) ", re.M)
TIME = re.compile(r"\d\d:\d\d:\d\d")
"""It is that of the place where the demo runs, and of the look at which a caption was new."""

TOUR = ROOT / "docs/tour.md"
CAPTION = re.compile(r"  \d\d:\d\d:\d\d  nvidia-smi says (.*); gpunode says: (.*)")


@contextmanager
def piped(*command: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """The demo with a pipe for its output."""
    program = [sys.executable, "-m", *command, SOMEWHERE]
    environment = {**os.environ, **environment}
    child = subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    watchdog = threading.Timer(TIMEOUT, child.kill)
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
    with piped(*command.split(), "hang", "--once", "--speed=40") as (_, lines):
        assert ADDRESS.match(next(lines)), "before anything is played"
        assert next(lines) == "A training job hangs\n", "before the time before it is filled in"
        look, waits, *told = until_finding(lines)
    assert waits.startswith("  (filling in the 5 minutes before it")
    assert look.startswith("  Look at this: nvidia-smi calls seven GPUs busy.")
    captions = [found.groups() for line in told if (found := CAPTION.fullmatch(line))]
    hangs = "hang: they wait for GPU 5, whose process is stopped by a signal or a debugger."
    # Of what is said in between, nothing lasts.
    assert captions == [
        ("100 %", "GPUs 0–7 are at work."),  # noqa: RUF001
        ("100 % (GPU 5: 0 %)", f"GPUs 0–4, 6 and 7 {hangs}"),  # noqa: RUF001
    ]
    heading, *gpus, finding = told[len(captions) :]
    assert heading.split()[:2] == ["GPU", "now"]
    assert [line.split()[0] for line in gpus] == [str(n) for n in range(8)]
    assert finding == f"hang: {captions[-1][1]}"
    (shown,) = re.findall(r"```\n(A training job hangs\n.*?)```", TOUR.read_text(), re.S)
    printed = ["A training job hangs", look, waits, *told]
    assert [TIME.sub("", line) for line in shown.splitlines()] == [
        TIME.sub("", line) for line in printed
    ]


@pytest.mark.parametrize("name", sorted(STORY.keys() - {"hang"}))
def test_each_story_begins_well_and_ends_in_its_cause(name: str) -> None:
    """That of a hang is told by the command of the README."""
    settings = load(DemoSettings, "gpunode demo", [name])
    before = 120.0
    scene = Scene.of(STORIES / f"{name}.jsonl.gz", settings, "", before)
    scene.prepare()
    hour = history(scene.loop)
    assert hour.times[-1] - hour.times[0] >= before - 40
    assert all(min(map(float, filter(None, gpu.states["compute"]))) > 0.5 for gpu in hour.gpus)
    assert scene.says() == "GPUs 0–7 are at work."  # noqa: RUF001
    watts = 0.0
    captions, told = Captions(), []
    for moment in itertools.islice(scene.moments, 0, None, 10):
        ends = moment - scene.tape.lead
        told += [found[2] for line in captions.new(scene) if (found := CAPTION.fullmatch(line))]
        watts = node(scene.loop).gpus[0].power_watts or watts
    assert STORY[name].finding in scene.says()
    assert told == ["GPUs 0–7 are at work.", scene.says()], "no guess in between"  # noqa: RUF001
    assert 30 <= ends <= 45
    now = node(scene.loop)
    assert now.playing
    assert now.playing.title == scene.tape.comment
    assert now.silent == []
    assert {len(gpu.owners) for gpu in now.gpus} == {1}
    assert all(gpu.power_watts for gpu in now.gpus)
    assert not any(row(gpu).shares.get("unknown") for gpu in now.gpus), "a rest of a window"
    assert name in ("storage", "shm") or 100 < watts < 400, "not that of the hour before"


@pytest.mark.nightly
def test_the_stories_are_what_their_program_makes(tmp_path: Path) -> None:
    make_stories(tmp_path)
    made = {path.name: gzip.decompress(path.read_bytes()) for path in tmp_path.iterdir()}
    kept = {path.name: gzip.decompress(path.read_bytes()) for path in STORIES.iterdir()}
    assert made.keys() == kept.keys()
    for name in kept:
        assert made[name] == kept[name], "run: python -m tests.tapes.stories"


def test_the_demo_tells_all_five_in_their_order() -> None:
    assert [path.name.split(".")[0] for path in order_tapes(STORIES.iterdir())] == list(ORDER)


FINDINGS = {
    "h200_hang": "GPU 0 hangs: it waits for GPU 1, whose process is stopped by a signal or a "
    "debugger.",
    "h200_shm": "GPU 0 is starved: the job's /dev/shm is full.",
    "healthy": "GPUs 0 and 1 are at work.",
    "membound": "GPUs 0 and 1 are at work, limited by memory bandwidth.",
}


def test_every_incident_comes_once_and_its_table_is_what_happened() -> None:
    demo = ("gpunode", "demo", str(INCIDENTS), "--once", "--speed=400")
    # with which rich would colour a pipe
    with piped(*demo, FORCE_COLOR="1") as (child, _):
        out, err = child.communicate(timeout=TIMEOUT)
    assert all(character.isprintable() for line in out.splitlines() for character in line)
    assert (child.returncode, "Traceback" in err) == (0, False), err
    (port,) = ADDRESS.findall(out)
    assert int(port), "the port that was free, not the one that was asked for"
    told = {part.splitlines()[-1].split(":")[0]: part for part in out.strip().split("\n\n")}
    assert (
        TRUTH.keys()
        <= told.keys()
        == {path.name.split(".")[0] for path in INCIDENTS.glob("*.jsonl.gz")}
    )
    for incident, state in (("hang", "idle"), ("comm", "communication"), ("h2d", "copy")):
        assert state in told[incident]
    for incident, finding in FINDINGS.items():
        assert told[incident].splitlines()[-1] == f"{incident}: {finding}"


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    with piped("gpunode", "demo", str(INCIDENTS), "--speed=40") as (child, lines):
        next(lines)
        lines.close()
        assert child.stderr
        assert child.stderr.read() == ""
        assert child.wait(TIMEOUT) == 128 + 13


def test_a_dumb_terminal_gets_lines_that_move_no_cursor(tmp_path: Path) -> None:
    (tmp_path / "comm.jsonl.gz").symlink_to(INCIDENTS / "comm.jsonl.gz")
    demo = ("-m", "gpunode", "demo", str(tmp_path), "--once", "--speed=400", SOMEWHERE)
    terminal = Terminal(sys.executable, *demo, kind="dumb", size=(24, 80))
    terminal.scrolled_off(TIMEOUT)
    os.close(terminal.side)
    assert terminal.child.wait(10) == 0
    assert "\ncomm: GPUs 0 and 1 are moving" in terminal.raw
    assert "\x1b" not in terminal.raw


def test_it_draws_over_itself_in_a_terminal_that_is_too_low_for_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "comm.jsonl.gz").symlink_to(INCIDENTS / "comm.jsonl.gz")
    demo = ("-m", "gpunode", "demo", str(tmp_path), "--once", "--speed=4", SOMEWHERE)
    terminal = Terminal(sys.executable, *demo, size=(6, 100))
    left = terminal.scrolled_off()
    os.close(terminal.side)
    assert terminal.child.wait(10) == 0
    assert left < 12, "what is said, once"
