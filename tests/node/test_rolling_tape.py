"""The last minutes of a node in memory: what a tape cut from them has, and what they take."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from gpunode.config.daemon import Settings
from gpunode.node import rolling_tape
from gpunode.node.datagram_socket import Datagram
from gpunode.node.node import Node, SteppedClock
from gpunode.node.rolling_tape import RollingTape
from gpunode.node.stacks import Frame, ProcessStacks, ThreadStack
from gpunode.node.tape import RecordingNode, TapeError, TapeNode
from gpunode.recorded import INCIDENTS
from gpunode.sources import watch
from gpunode.verdict.source import Judgements

MIB = 1 << 20


@dataclass
class RolledTape:
    """A rolling tape, and what a node answers."""

    folder: Path
    clock: SteppedClock = field(default_factory=lambda: SteppedClock(1_700_000_000.0))
    seconds: float = 900.0
    most: int = MIB
    code: bool = False

    def __post_init__(self) -> None:
        self.tape = RollingTape(self.clock, self.seconds, self.most, code=self.code)

    def ask(self, of: str, answer: Any, call: str = "read_text", after: float = 1.0) -> None:
        """After so many seconds, ask a question that has this answer."""
        self.clock.now += after

        def answers() -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        with contextlib.suppress(OSError):
            self.tape.answer(of, call, answers)

    def cut(self, since: float) -> TapeNode:
        """The tape since a time, to be played."""
        path = self.folder / "cut.jsonl.gz"
        path.write_bytes(self.tape.cut(since, "cut"))
        return TapeNode(path)

    def played(self, since: float, of: str) -> list[str]:
        """What a file reads at each second of the tape."""
        node = self.cut(since)
        found = []
        for second in range(round(self.clock.now - since) + 1):
            node.clock.now = float(second)
            found.append(cast(str, node.read_text(of)))
        return found


def judged(node: TapeNode | Node, end: float, clock: SteppedClock) -> list[tuple[str, str]]:
    loop = watch(cast(Node, node), Settings())
    for _ in loop.replay(clock, end):
        pass
    return [
        (one.gpu, one.cause) for told in loop.details(Judgements) for one in told.detail.verdicts
    ]


@pytest.mark.parametrize("name", ["h200_hang", "h200_storage"])
def test_what_is_cut_from_the_middle_has_the_same_verdict(name: str, tmp_path: Path) -> None:
    """A GPU's identity, its limits and its processes were asked for before the tape begins."""
    tape = TapeNode(INCIDENTS / f"{name}.jsonl.gz")
    rolling = RollingTape(tape.clock, 900.0, 6 * MIB, code=True)
    heard = cast(Node, RecordingNode(cast(Node, tape), rolling))
    verdicts = judged(heard, tape.end, tape.clock)
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(rolling.cut(tape.end / 2, "the last half"))
    cut = TapeNode(path)
    assert cut.comment == "the last half"
    assert abs(cut.end - tape.end / 2) < 2.0
    assert cut.clock.time() == pytest.approx(tape.clock.epoch + tape.end / 2)
    assert judged(cut, cut.end, cut.clock) == verdicts


def test_what_has_not_changed_for_hours_is_on_the_tape(tmp_path: Path) -> None:
    asked = RolledTape(tmp_path)
    asked.ask("/proc/sys/kernel/numa_balancing", "1\n")
    for _ in range(400):
        asked.ask("/proc/loadavg", f"{asked.clock.now}\n" * 500, after=10.0)
    tape = asked.tape.cut(asked.clock.now - 600, "")
    assert len(gzip.decompress(tape).splitlines()) < 150
    assert asked.played(asked.clock.now - 600, "/proc/sys/kernel/numa_balancing")[0] == "1\n"


def test_a_change_is_where_it_was_also_after_hours_without_one(tmp_path: Path) -> None:
    asked = RolledTape(tmp_path)
    for _ in range(300):
        asked.ask("/proc/7/stat", "7 (train) R", after=10.0)
        asked.ask("/proc/loadavg", f"{asked.clock.now}\n", after=0.0)
    begins = asked.clock.now - 5.0
    asked.ask("/proc/7/stat", "7 (train) T", after=10.0)
    assert asked.played(begins, "/proc/7/stat") == ["7 (train) R"] * 15 + ["7 (train) T"]


def test_an_error_is_played_as_one(tmp_path: Path) -> None:
    asked = RolledTape(tmp_path)
    asked.ask("/proc/7/stat", "7 (train) R")
    asked.ask("/proc/7/stat", ProcessLookupError(3, "No such process"))
    node = asked.cut(0.0)
    node.clock.now = 2.0
    with pytest.raises(ProcessLookupError):
        node.read_text("/proc/7/stat")


def test_lines_of_a_log_come_once(tmp_path: Path) -> None:
    asked = RolledTape(tmp_path)
    asked.ask("/dev/kmsg", [], "log_lines")
    asked.ask("/dev/kmsg", ["NVRM: Xid"], "log_lines")
    asked.ask("/dev/kmsg", [], "log_lines")
    node = asked.cut(0.0)
    node.clock.now = 5.0
    assert [node.log_lines("/dev/kmsg"), node.log_lines("/dev/kmsg")] == [["NVRM: Xid"], []]


def test_it_takes_no_more_than_it_may(tmp_path: Path) -> None:
    """A day in which every answer is large, new and hard to compress, of ever new processes."""
    asked = RolledTape(tmp_path, most=MIB)
    noises = random.Random(1)
    for number in range(3_000):
        noise = noises.randbytes(4_000).hex()
        asked.ask(f"/proc/{number}/stat", noise, after=30.0)
        asked.ask(f"/sys/{number % 1500}", noise, after=0.0)
    kept = MIB + rolling_tape.CHUNK + rolling_tape.MAX_ANSWER + rolling_tape.MAX_LAST
    assert asked.tape.size <= kept
    assert asked.tape.left_out > 0


def test_what_was_said_of_a_process_is_forgotten_once_nobody_asks_about_it(tmp_path: Path) -> None:
    asked = RolledTape(tmp_path, seconds=300.0)
    asked.ask("/proc/7/cgroup", "0::/job")
    asked.ask("8", {}, "environment")
    asked.ask("/sys/devices/7/vendor", "0x10de")
    for _ in range(50):
        asked.ask("/proc/9/stat", "9 (train) R", after=10.0)
    kept = {question for question, _ in asked.tape._last}
    assert kept == {"/sys/devices/7/vendor", "/proc/9/stat"}


def test_an_answer_beyond_all_others_is_left_out(tmp_path: Path) -> None:
    asked = RolledTape(tmp_path)
    asked.ask("/proc/mounts", "x" * (rolling_tape.MAX_ANSWER + 1))
    assert (asked.tape.left_out, asked.tape.size) == (1, 0)


STOOD = ProcessStacks(
    7,
    (ThreadStack(7, "secret_thread", "S", "futex_do_wait", (), (Frame("f", "secret.py", 1),)),),
    1,
)
MESSAGE = Datagram(7, json.dumps({"version": 1, "where": [["f", "secret.py", 1]]}))


@pytest.mark.parametrize("code", [False, True])
def test_without_code_no_tape_says_where_in_it(code: bool, tmp_path: Path) -> None:
    asked = RolledTape(tmp_path, code=code)
    asked.ask("7", STOOD, "stacks")
    asked.ask("/run/gpunode/client.sock", [MESSAGE], "datagrams")
    text = gzip.decompress(asked.tape.cut(0.0, "")).decode()
    assert ("secret" in text) is code
    assert "futex_do_wait" in text
    assert "version" in text


class Running(SteppedClock):
    """A clock that nobody has to set."""

    def monotonic(self) -> float:
        return time.perf_counter()


def test_threads_that_ask_the_same_leave_a_tape_in_order(tmp_path: Path) -> None:
    tape = RollingTape(Running(1_700_000_000.0), 900.0, MIB, code=False)

    def asks(number: int) -> None:
        for at in range(300):
            tape.answer("/proc/stat", "read_text", partial(str, 1000 * number + at))

    threads = [threading.Thread(target=asks, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(tape.cut(0.0, ""))
    assert len(TapeNode(path).tracks["/proc/stat", "read_text"].times) == 1200


@pytest.mark.parametrize("begins", ["x", -1.0, 1e12])
def test_a_tape_says_what_is_wrong_with_where_it_begins(begins: object, tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl.gz"
    header = {"gpunode_tape": 1, "time": 1.0, "begins": begins}
    path.write_bytes(gzip.compress(json.dumps(header).encode()))
    with pytest.raises(TapeError, match="field begins"):
        TapeNode(path)
