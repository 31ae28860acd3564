"""Following logs through everything that happens to them, with real files and the real kernel's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpunode.node.log import MAX_READ, Log

KMSG = Path("/dev/kmsg")


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "kern.log"
    path.write_text("old\n")
    return path


def test_only_what_comes_after_the_first_look_is_told_and_only_once(path: Path) -> None:
    log = Log(str(path))
    assert log.new_lines() == []
    append(path, "one\ntwo\n")
    assert log.new_lines() == ["one", "two"]
    assert log.new_lines() == []


def test_a_line_is_told_when_it_is_whole(path: Path) -> None:
    log = Log(str(path))
    log.new_lines()
    append(path, "half a ")
    assert log.new_lines() == []
    append(path, "line\nnext")
    assert log.new_lines() == ["half a line"]


def test_a_log_that_is_renamed_and_begun_anew_loses_no_line(path: Path) -> None:
    log = Log(str(path))
    log.new_lines()
    append(path, "before\n")
    path.rename(path.with_suffix(".1"))
    append(path.with_suffix(".1"), "last\n")
    assert log.new_lines() == ["before", "last"], "the new file is not there yet"
    append(path.with_suffix(".1"), "very last\n")
    append(path, "after\n")
    assert log.new_lines() == ["very last", "after"]
    append(path, "more\n")
    assert log.new_lines() == ["more"]


def test_a_log_that_is_copied_and_cut_short_is_followed(path: Path) -> None:
    log = Log(str(path))
    log.new_lines()
    append(path, "a long line before the cut\n")
    assert log.new_lines() == ["a long line before the cut"]
    path.write_text("new\n")
    assert log.new_lines() == ["new"]


def test_a_flood_is_passed_over(path: Path) -> None:
    log = Log(str(path))
    log.new_lines()
    append(path, "x" * 99 + "\n" + ("y" * 99 + "\n") * (3 * MAX_READ // 100))
    lines = log.new_lines()
    assert sum(map(len, lines)) < 2 * MAX_READ
    append(path, "after the flood\n")
    assert log.new_lines()[-1] == "after the flood"


def test_a_line_without_end_is_not_kept_whole(path: Path) -> None:
    log = Log(str(path))
    log.new_lines()
    for _ in range(4):
        append(path, "x" * MAX_READ)
        assert log.new_lines() == []
    append(path, "\nnext\n")
    assert log.new_lines()[-1] == "next"


def test_a_log_that_appears_later_is_told_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "later.log"
    log = Log(str(path))
    with pytest.raises(FileNotFoundError):
        log.new_lines()
    path.write_text("first\n")
    assert log.new_lines() == ["first"]


def test_the_kernel_log_itself_is_followed() -> None:
    if not os.access(KMSG, os.R_OK | os.W_OK):
        pytest.skip("only root may write to the kernel log")
    log = Log(str(KMSG))
    try:
        log.new_lines()
        KMSG.write_text(f"a line of a test, {os.getpid()}\n")
    except OSError as error:
        pytest.skip(f"no kernel log on this machine: {error}")
    lines = [line for line in log.new_lines() if f"a line of a test, {os.getpid()}" in line]
    if not lines:
        pytest.skip("the kernel log of this machine swallows what is written")
    assert len(lines) == 1
    assert log.new_lines() == []
