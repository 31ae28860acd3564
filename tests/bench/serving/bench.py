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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO

from prometheus_client.parser import text_string_to_metric_families

from tests.bench.report import Report, Result, machine
from tests.bench.serving.situations import SITUATIONS, Situation
from tests.bench.truth.outcome import models
from tests.daemon import Daemon, daemon, free_ports

PROGRAM = Path(__file__).with_name("engine.py")
ROOT = Path(__file__).parents[3]

WARM = 50.0
"""Seconds after its start from which an engine counts: the daemon asks it every 10 s, what it names
rests on several answers, and it names what has stayed."""

WATCHED = 20.0
LOOK = 2.0
"""For how long, and how often, in seconds."""

PATIENCE = 240.0
"""Seconds that an engine may take to start."""

COLD = 25.0
"""Seconds after which a start is told, of which PyTorch takes five, and a look comes every ten."""

STALLED = 15.0
"""Seconds after which a rank that is stopped is told."""

PARTS = ("queue", "prefill")
"""Of the time to the first token."""

WITHIN = 0.05
RIGHT = 0.95
"""Targets: how far the division of the first token may be off, and how often a cause is right."""


@dataclass
class Seen:
    """What the daemon named, and the division of the first token by it and by the engine."""

    of: Situation
    causes: Counter[str] = field(default_factory=Counter)
    on: str = field(default_factory=machine)
    told: dict[str, float] = field(default_factory=dict)
    true: dict[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def right(self) -> int:
        return self.causes[self.of.name]

    def off(self) -> float | None:
        """By how much a part's share of the first token is wrong; None if there was none."""
        told, true = self.told.get("first"), self.true.get("first")
        if not told or not true:
            return None
        return max(abs(self.told.get(x, 0.0) / told - self.true[x] / true) for x in PARTS)


def serving(path: Path, names: Sequence[str]) -> Report:
    """Play these situations, or all that the GPUs of this machine have room for.

    Outcomes are added to the file as they come, and the report is of the latest of each situation.
    """
    with path.open("a") as kept:
        _play(kept, names)
    return _report(outcomes(path))


def outcomes(path: Path) -> list[Seen]:
    """The latest outcome of each situation, in their order. Raises ``OSError``."""
    found = {}
    for line in path.read_text().splitlines():
        outcome = json.loads(line)
        name, causes = outcome.pop("name"), Counter(outcome.pop("causes"))
        found[name] = Seen(SITUATIONS[name], causes, **outcome)
    return [found[name] for name in SITUATIONS if name in found]


def _play(kept: IO[str], names: Sequence[str]) -> None:
    count = len(models())
    chosen = [each for each in SITUATIONS.values() if not names or each.name in names]
    todo = deque(each for each in chosen if each.ranks == 1)
    group = next((each for each in chosen if 1 < each.ranks <= count), None)

    def lane(*gpus: int) -> None:
        """Play the group on these GPUs, and then what is left on each."""
        if group is not None and len(gpus) == group.ranks:
            _keep(kept, _stopped(watched, gpus[0], group))
        others = [threading.Thread(target=lane, args=(gpu,)) for gpu in gpus[1:]]
        for other in others:
            other.start()
        with suppress(IndexError):
            while True:
                _keep(kept, _seen(watched, gpus[0], todo.popleft()))
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


def _keep(kept: IO[str], one: Seen) -> None:
    outcome = {"name": one.of.name, **{x.name: getattr(one, x.name) for x in fields(one)[1:]}}
    for out in (kept, sys.stdout):
        print(json.dumps(outcome), file=out, flush=True)


def _seen(watched: Daemon, gpu: int, of: Situation) -> Seen:
    """One situation on one GPU."""
    seen = Seen(of)
    with _engine(of, gpu) as engine:
        if of.loads:
            begin = time.monotonic()
            while not engine.answers():
                if time.monotonic() > begin + COLD:
                    seen.causes[_cause(watched, gpu)] += 1
                time.sleep(LOOK)
            return seen
        engine.wait()
        time.sleep(WARM)
        told, true = _told(watched, gpu), engine.times()
        until = time.monotonic() + WATCHED
        while time.monotonic() < until:
            seen.causes[_cause(watched, gpu)] += 1
            time.sleep(LOOK)
        seen.told, seen.true = _since(told, _told(watched, gpu)), _since(true, engine.times())
        states = watched.gpus()[gpu]["gpu_activity"]["state"]
        seen.note = ", ".join(f"{x} {share:.2f}" for x, share in states.items() if share >= 0.01)
    return seen


def _stopped(watched: Daemon, gpu: int, of: Situation) -> Seen:
    """A tensor-parallel group whose last rank is stopped."""
    seen = Seen(of)
    with _engine(of, gpu) as engine:
        engine.wait()
        time.sleep(WARM)
        before = _cause(watched, gpu)
        engine.ranks[-1].send_signal(signal.SIGSTOP)
        time.sleep(STALLED)
        until = time.monotonic() + WATCHED
        while time.monotonic() < until:
            verdict = _verdict(watched, gpu)
            seen.causes[verdict.get("cause") or "nothing"] += 1
            seen.note = f"before: {before}; waits for {verdict.get('waits_for')}"
            time.sleep(LOOK)
        engine.ranks[-1].send_signal(signal.SIGCONT)
    return seen


def _verdict(watched: Daemon, gpu: int) -> dict[str, str]:
    for said in json.loads(watched.get("/api/v1/verdict")):
        if said["gpu"] == str(gpu):
            return dict(said)
    return {}


def _cause(watched: Daemon, gpu: int) -> str:
    return _verdict(watched, gpu).get("cause") or "nothing"


def _told(watched: Daemon, gpu: int) -> dict[str, float]:
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

    def page(self) -> str:
        return self.daemon.get("/metrics").decode()

    def answers(self) -> bool:
        """Whether it has started. Raises ``RuntimeError`` where it ended."""
        if any(rank.poll() is not None for rank in self.ranks):
            raise RuntimeError("the engine ended")
        with suppress(OSError):
            return bool(self.page())
        return False

    def wait(self) -> None:
        until = time.monotonic() + PATIENCE
        while not self.answers():
            if time.monotonic() > until:
                raise RuntimeError("the engine does not start")
            time.sleep(0.2)

    def times(self) -> dict[str, float]:
        """Seconds of requests by part, and to their first tokens, as the engine has them."""
        said = dict(line.rsplit(" ", 1) for line in self.page().splitlines())
        names = {
            "queue": "request_queue_time_seconds",
            "prefill": "request_prefill_time_seconds",
            "first": "time_to_first_token_seconds",
        }
        return {part: float(said.get(f"vllm:{name}_sum", 0)) for part, name in names.items()}


@contextmanager
def _engine(of: Situation, gpu: int) -> Iterator[Running]:
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
                [sys.executable, str(program), of.name, str(gpu + rank), str(port), str(rank)],
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


def _report(seen: Sequence[Seen]) -> Report:
    named = sum(each.causes.total() for each in seen)
    right = sum(each.right for each in seen)
    offs = {
        each.of.name: max(
            abs(
                each.told.get(part, 0.0) / each.told["first"] - each.true[part] / each.true["first"]
            )
            for part in PARTS
        )
        for each in seen
        if each.told.get("first") and each.true.get("first")
    }
    worst = max(offs.values(), default=1.0)
    return Report(
        "What holds an inference engine up, on GPUs",
        " / ".join(sorted({each.on for each in seen})),
        "An engine of ours with continuous batching, CUDA graphs and a KV cache serves a decoder "
        "of random weights, 14 GB or 1 GB, with vLLM's metrics (`tests/bench/serving`). "
        f"From {WARM:g} s after its start, the daemon is asked every {LOOK:g} s what holds it up, "
        f"for {WATCHED:g} s. The division of the time to the first token is that of the daemon's "
        "counters beside that of the engine's own histograms.",
        [
            Result(
                "cause right, of looks in eight situations",
                f"{right} of {named} ({right / max(1, named):.0%})",
                f"≥ {RIGHT:.0%}",
                right >= RIGHT * named > 0,
            ),
            Result(
                "division of the first token, largest difference",
                f"{worst:.3f}",
                f"≤ {WITHIN:.2f}",
                worst <= WITHIN,
            ),
        ],
        [
            f"{each.of.name}: {dict(each.causes)}, first token {each.told} {each.true} {each.note}"
            for each in seen
        ],
    )
