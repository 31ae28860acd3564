"""Serves on real GPUs, one situation after the other, and asks a daemon what holds it up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, Any

from prometheus_client.parser import text_string_to_metric_families

from bench.report import Report, Result, machine, span, version
from bench.serving.situations import SITUATIONS, Situation
from bench.truth.outcome import models
from tests.daemon import Daemon, daemon, free_ports

PROGRAM = Path(__file__).with_name("engine.py")
ROOT = Path(__file__).parents[2]

WARM = 50.0
"""Seconds after its start from which an engine counts: the daemon asks it every 10 s, what it names
rests on several answers, and it names what has stayed."""

WATCHED = 90.0
LOOK = 2.0
"""For how long, and how often, in seconds."""

WINDOW = 30.0
"""Seconds of readings on which a verdict rests: looks that are further apart share none."""

ASKED = 25.0
"""Seconds within which the daemon asks an engine, which it does every 10 s."""

TAKEN = 2.0
"""Seconds after that until it tells what it was answered."""

START_TIMEOUT = 240.0
"""Seconds that an engine may take to start."""

COLD = 25.0
"""Seconds after which a start is told, of which PyTorch takes five, and a look comes every ten."""

STALLED = 15.0
"""Seconds after which a rank that is stopped is told."""

PARTS = ("queue", "prefill")
"""Of the time to the first token; what is left is the server's, outside of its scheduler."""

TOLERANCE = 0.05
RIGHT = 0.95
"""Targets: how far the division of the first token may be off, and how often a cause is right."""


@dataclass
class SituationReading:
    """What the daemon named, and the division of the first token by it and by the engine."""

    of: Situation
    causes: Counter[str] = field(default_factory=Counter)
    on: str = field(default_factory=machine)
    told: dict[str, float] = field(default_factory=dict)
    true: dict[str, float] = field(default_factory=dict)
    note: str = ""
    same_pages: bool = False
    """Whether both are of the same pages of the engine."""

    seconds: float = 20.0
    """For how long the causes were looked at."""

    waits_for: Counter[str] = field(default_factory=Counter)
    """The GPUs for which the first of a group was said to wait, at so many looks."""

    last: str = ""
    """The GPU of the group's last rank, which is stopped."""

    version: str = field(default_factory=version)

    @property
    def right(self) -> int:
        return self.causes[self.of.name]

    @property
    def windows(self) -> int:
        """How many windows without a reading in common the looks were in."""
        return max(1, int(self.seconds / WINDOW))

    @property
    def has_first_tokens(self) -> bool:
        return bool(self.told.get("first") and self.true.get("first"))

    def off(self) -> float:
        """By how much a part's share of the first token is wrong, of that."""
        told, true = self.told["first"], self.true["first"]
        return max(abs(self.told.get(x, 0.0) / told - self.true[x] / true) for x in PARTS)

    def seconds_off(self) -> float:
        """By how much the first token and its parts are wrong, of the first token."""
        parts = ("first", *PARTS)
        wrong = max(abs(self.told.get(x, 0.0) - self.true[x]) for x in parts)
        return wrong / self.true["first"]

    def outside(self) -> float:
        """The share of the first token that is in neither part."""
        return 1.0 - sum(self.true[part] for part in PARTS) / self.true["first"]


def serving(path: Path, names: Sequence[str], runs: int) -> Report:
    """Play these situations so many times, or all that the GPUs of this machine have room for.

    Outcomes come into the file as they are there, and the report is of all in it. Where all are
    played, it begins anew; otherwise they are added.
    """
    with path.open("a" if names else "w") as kept:
        _play(kept, names, runs)
    return report_of(outcomes(path))


def outcomes(path: Path) -> list[SituationReading]:
    """The outcomes in a file, by situation. Raises ``OSError``."""
    found: dict[str, list[SituationReading]] = {name: [] for name in SITUATIONS}
    for line in path.read_text().splitlines():
        outcome = json.loads(line)
        name, causes = outcome.pop("name"), Counter(outcome.pop("causes"))
        waits_for = Counter(outcome.pop("waits_for", {}))
        found[name].append(
            SituationReading(SITUATIONS[name], causes, waits_for=waits_for, **outcome)
        )
    return [one for several in found.values() for one in several]


def _play(kept: IO[str], names: Sequence[str], runs: int) -> None:
    count = len(models())
    chosen = [each for each in SITUATIONS.values() if not names or each.name in names]
    todo = deque((run, each) for run in range(runs) for each in chosen if each.ranks == 1)
    group = next((each for each in chosen if 1 < each.ranks <= count), None)

    def lane(*gpus: int) -> None:
        """Play the group on these GPUs, and then what is left on each."""
        if group is not None and len(gpus) == group.ranks:
            for run in range(runs):
                _keep(kept, _stopped(watched, gpus[0], run, group))
        others = [threading.Thread(target=lane, args=(gpu,)) for gpu in gpus[1:]]
        for other in others:
            other.start()
        with suppress(IndexError):
            while True:
                _keep(kept, _run_situation(watched, gpus[0], *todo.popleft()))
        for other in others:
            other.join()

    of_group = group.ranks if group is not None else 0
    places = [tuple(range(of_group))] * bool(of_group) + [(x,) for x in range(of_group, count)]
    with daemon("--log.level=error") as watched:
        lanes = [threading.Thread(target=lane, args=gpus) for gpus in places]
        for each in lanes:
            each.start()
        for each in lanes:
            each.join()


def _keep(kept: IO[str], one: SituationReading) -> None:
    outcome = {"name": one.of.name, **{x.name: getattr(one, x.name) for x in fields(one)[1:]}}
    for out in (kept, sys.stdout):
        print(json.dumps(outcome), file=out, flush=True)


def _run_situation(watched: Daemon, gpu: int, run: int, of: Situation) -> SituationReading:
    """One situation on one GPU."""
    seen = SituationReading(of)
    with _engine(of, gpu, run) as engine:
        begin = time.monotonic()
        if of.loads:
            while not engine.answers():
                seen.seconds = time.monotonic() - begin - COLD
                if seen.seconds > 0:
                    seen.causes[_cause(watched, gpu)] += 1
                time.sleep(LOOK)
            return seen
        engine.wait()
        time.sleep(WARM)
        before = told_and_true(watched, gpu, engine) if of.setting.users else ({}, {})
        begin = time.monotonic()
        while time.monotonic() < begin + WATCHED:
            seen.causes[_cause(watched, gpu)] += 1
            time.sleep(LOOK)
        seen.seconds = time.monotonic() - begin
        if of.setting.users:
            after = told_and_true(watched, gpu, engine)
            seen.told, seen.true = map(_since, before, after)
            seen.same_pages = True
        states = watched.gpus()[gpu]["gpu_activity"]["state"]
        seen.note = ", ".join(f"{x} {share:.2f}" for x, share in states.items() if share >= 0.01)
    return seen


def _stopped(watched: Daemon, gpu: int, run: int, of: Situation) -> SituationReading:
    """A tensor-parallel group whose last rank is stopped."""
    seen = SituationReading(of, last=str(gpu + of.ranks - 1))
    with _engine(of, gpu, run) as engine:
        engine.wait()
        time.sleep(WARM)
        before = _cause(watched, gpu)
        engine.ranks[-1].send_signal(signal.SIGSTOP)
        time.sleep(STALLED)
        begin = time.monotonic()
        while time.monotonic() < begin + WATCHED:
            verdict = _verdict(watched, gpu)
            seen.causes[verdict.get("cause") or "nothing"] += 1
            seen.waits_for[waited_for(verdict)] += 1
            time.sleep(LOOK)
        seen.seconds = time.monotonic() - begin
        seen.note = f"before: {before}"
        engine.ranks[-1].send_signal(signal.SIGCONT)
    return seen


def _verdict(watched: Daemon, gpu: int) -> Mapping[str, Any]:
    for said in json.loads(watched.get("/api/v1/verdict")):
        if said["gpu"] == str(gpu):
            return dict(said)
    return {}


def waited_for(verdict: Mapping[str, Any]) -> str:
    """The indices of the GPUs for which one waits, by its verdict of ``/api/v1/verdict``."""
    return ", ".join(index for index, _ in (one["at"] for one in verdict.get("waits_for", ())))


def _cause(watched: Daemon, gpu: int) -> str:
    return _verdict(watched, gpu).get("cause") or "nothing"


def told_and_true(
    watched: Daemon, gpu: int, engine: Running
) -> tuple[dict[str, float], dict[str, float]]:
    """What the daemon tells of a GPU's first tokens, and the page from which it has that.

    Raises ``RuntimeError`` where the daemon does not ask for pages that differ, or too often.
    """
    before, until = engine.told(), time.monotonic() + ASKED
    while time.monotonic() < until:
        page = engine.told()
        if page == before:
            time.sleep(0.1)
            continue
        time.sleep(TAKEN)
        told, before = _request_seconds(watched, gpu), engine.told()
        if before == page:
            return told, _true(page)
    raise RuntimeError("the daemon does not ask the engine, or does nothing else")


def _true(page: str) -> dict[str, float]:
    """Seconds of requests by part, and to their first tokens, as an engine has them."""
    said = dict(line.rsplit(" ", 1) for line in page.splitlines())
    names = {
        "queue": "request_queue_time_seconds",
        "prefill": "request_prefill_time_seconds",
        "first": "time_to_first_token_seconds",
    }
    return {part: float(said.get(f"vllm:{name}_sum", 0)) for part, name in names.items()}


def _request_seconds(watched: Daemon, gpu: int) -> dict[str, float]:
    """Seconds of requests on a GPU by part, and to their first tokens, as the daemon has them."""
    here, found = str(gpu), Counter[str]()
    for family in text_string_to_metric_families(watched.get("/metrics").decode()):
        for sample in family.samples:
            if sample.labels.get("gpu") != here:
                continue
            if sample.name == "gpunode_serving_request_part_seconds_total":
                found[sample.labels["part"]] += sample.value  # type: ignore[assignment]
            if sample.name == "gpunode_serving_first_token_seconds_sum":
                found["first"] += sample.value  # type: ignore[assignment]
    return dict(found)


def _since(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {part: round(value - before.get(part, 0.0), 3) for part, value in after.items()}


@dataclass(frozen=True, slots=True)
class Running:
    """An engine, its ranks' processes, and where it answers."""

    ranks: tuple[subprocess.Popen[bytes], ...]
    daemon: Daemon

    def told(self) -> str:
        """The page that the daemon was given last, empty if there was none yet."""
        return self.daemon.get("/told").decode()

    def answers(self) -> bool:
        """Whether it has started. Raises ``RuntimeError`` where it ended."""
        if any(rank.poll() is not None for rank in self.ranks):
            raise RuntimeError("the engine ended")
        with suppress(OSError):
            self.told()
            return True
        return False

    def wait(self) -> None:
        until = time.monotonic() + START_TIMEOUT
        while not self.answers():
            if time.monotonic() > until:
                raise RuntimeError("the engine does not start")
            time.sleep(0.2)


@contextmanager
def _engine(of: Situation, gpu: int, run: int) -> Iterator[Running]:
    """An engine whose first rank has this GPU, under a name that the daemon knows."""
    port, meeting = free_ports(2)
    with tempfile.TemporaryDirectory(prefix="engine.") as folder:
        program = Path(folder) / "vllm"
        program.symlink_to(PROGRAM)
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(meeting),
        }
        ranks = tuple(
            subprocess.Popen(
                [sys.executable, str(program), of.name, *map(str, (gpu + rank, port, rank, run))],
                env=environment,
            )
            for rank in range(of.ranks)
        )
        try:
            yield Running(ranks, Daemon(None, port))  # type: ignore[arg-type]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


def report_of(seen: Sequence[SituationReading]) -> Report:
    """The report of some outcomes."""
    named = sum(each.causes.total() for each in seen)
    right = sum(each.right for each in seen)
    windows = sum(each.windows for each in seen)
    runs = Counter(each.of.name for each in seen)
    first = [each for each in seen if each.has_first_tokens]
    same = [each for each in first if each.same_pages]
    worst = max((each.off() for each in first), default=1.0)
    seconds = max((each.seconds_off() for each in same), default=1.0)
    outside = [each.outside() for each in same] or [0.0]
    stopped = [each for each in seen if each.last]
    waiting = sum(each.waits_for.total() for each in stopped)
    named_right = sum(each.waits_for[each.last] for each in stopped)
    return Report(
        "What holds an inference engine up, on GPUs",
        " / ".join(sorted({each.on for each in seen})),
        "An engine of the bench's own, with continuous batching, CUDA graphs, a KV cache and "
        "vLLM's metrics, serves a decoder of random weights, 14 GB or 1 GB (`bench/serving`). From "
        f"{WARM:g} s after its start, the daemon is asked every {LOOK:g} s for its verdict, which "
        f"rests on up to {WINDOW:g} s of readings.",
        [
            Result(
                "cause right, of looks in eight situations",
                f"{right} of {named} ({right / max(1, named):.0%})",
                f"≥ {RIGHT:.0%}",
                right >= RIGHT * named > 0,
            ),
            Result(
                "runs of each situation, and independent windows in all",
                f"{min(runs.values(), default=0)} to {max(runs.values(), default=0)}, {windows}",
            ),
            Result(
                "division of the first token, largest difference",
                f"{worst:.3f}",
                f"≤ {TOLERANCE:.2f}",
                worst <= TOLERANCE,
            ),
            Result(
                "seconds of the first token and its parts, largest difference",
                f"{seconds:.3f} of the first token" if same else "not measured",
                f"≤ {TOLERANCE:.2f}",
                bool(same) and seconds <= TOLERANCE,
            ),
            Result(
                "share of the first token in neither part, by situation",
                f"{min(outside):.3f} to {max(outside):.3f}" if same else "not measured",
            ),
            Result(
                "the GPU waited for is named, of looks at a stopped rank",
                f"{named_right} of {waiting}" if waiting else "not measured",
                f"≥ {RIGHT:.0%}",
                named_right >= RIGHT * waiting > 0,
            ),
        ],
        [
            f"{each.of.name}: {dict(each.causes)} in {each.windows} windows, first token "
            f"{each.told} {each.true} {each.note}"
            + (f", waits for {dict(each.waits_for)}, stopped {each.last}" if each.last else "")
            for each in seen
        ],
        span(each.version for each in seen),
    )
