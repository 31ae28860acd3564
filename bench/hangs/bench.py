"""Runs jobs that hang beside two daemons, and keeps how soon and how well each tells where.

One daemon has py-spy and hears no client; the other has no py-spy, and hears what
``gpunode.client`` in each rank tells. So each hang is seen with and without the client's help.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pynvml

from bench.hangs import beat
from bench.hangs.ways import BY_NAME, HEALTHY, LIBRARY, NATIVE, WAYS, Way
from bench.report import Report, Result, machine, span, version
from bench.truth.bench import prepared
from bench.truth.launch import Placement, Process, launched
from bench.truth.workloads import Workload
from gpunode.incidents.incident import briefs, parse
from gpunode.node.local import LocalNode
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.where import sentence
from tests.daemon import Daemon, daemon

RANK = ("-m", "bench.hangs.rank")
LATEST, LATEST_OF_SLOW = 26.0, 60.0
"""Seconds after which a job that hangs, or is slow, is ended, whatever was told."""

BESIDE = 6.0
"""Seconds more, once the daemon with py-spy has told, for the other one."""

LOOK = 0.2
"""Seconds between looks at what the daemons say."""

IN_TIME = 15.0
"""Seconds after the call within which the line should be told."""

HOWS = ("py-spy", "client")
TELLS = "where it stands: "
NODE = LocalNode(Path("/"))


@dataclass(frozen=True, slots=True)
class HangReading:
    """What a daemon told of a hang; times are seconds since it began, None for never."""

    called: float | None = None
    """When it was called a stall or a straggler."""

    line: float | None = None
    """When the right file, line and function were there."""

    said: str = ""
    """The first sentence about where it stands."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was told of a way to hang on one machine, and what a look at it took."""

    way: str
    machine: str
    at: float
    failed: str = ""
    told: dict[str, HangReading] = field(default_factory=dict)
    """By ``HOWS``."""

    looked: float = 0.0
    """Seconds that a look from outside took."""

    stopped: float | None = None
    """The longest time within it between two beats of the process; None if it does not run."""

    stopped_before: float | None = None
    """The longest time between two beats in an equal span without a look."""

    native: float | None = None
    """The longest time between two beats in a look that also asks for native frames."""

    version: str = field(default_factory=version)


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Seconds of each step of a healthy training: without looks, and with ten in each second."""

    machine: str
    alone: list[float]
    looked: list[float]
    looks: int
    version: str = field(default_factory=version)


def outcomes(path: Path) -> dict[str, Outcome]:
    """The latest outcome of each way. Raises ``OSError``."""
    found = {}
    for line in path.read_text().splitlines():
        kept = json.loads(line)
        if "alone" not in kept:
            kept["told"] = {how: HangReading(**told) for how, told in kept["told"].items()}
            found[kept["way"]] = Outcome(**kept)
    return found


def disturbance(path: Path) -> Disturbance | None:
    """The latest of them."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if '"alone"' in line]
    return Disturbance(**lines[-1]) if lines else None


def measure(path: Path, names: Sequence[str], gpus: int) -> None:
    """Have these hang, or all, two ranks each; outcomes are added to the file as they come."""
    chosen = [way for way in WAYS if not names or way.name in names]
    with tempfile.TemporaryDirectory(prefix="hangs.") as made, path.open("a") as kept:
        folder = Path(made)
        os.environ[LIBRARY] = str(beat.build(folder))
        failed = _build_native(folder / "native") if BY_NAME["native"] in chosen else ""
        if failed:
            print(f"native: not built: {failed}", flush=True)
            chosen.remove(BY_NAME["native"])
        socket = folder / "client.sock"
        plan = _plan(chosen, gpus, socket, healthy=not names or HEALTHY in names)
        with _daemons(socket) as watched, closing(launched(plan, RANK)) as groups:
            for group in groups:
                _hold(group, watched, lambda line: print(line, file=kept, flush=True))


def _plan(
    ways: Sequence[Way], gpus: int, socket: Path, healthy: bool
) -> list[list[tuple[Workload, int]]]:
    """As many jobs at a time as there are pairs of GPUs; the slow ones at the end, together."""
    environment = {"GPUNODE_CLIENT_SOCKET": str(socket)}
    lanes = max(1, gpus // 2)
    found = []
    if healthy:
        found.append([(Workload(HEALTHY, HEALTHY, ("", ""), environment=environment), 0)])
    ordered = sorted(ways, key=lambda way: way.slow)
    for first in range(0, len(ordered), lanes):
        row = ordered[first : first + lanes]
        found.append(
            [
                (
                    Workload(
                        way.name, way.name, ("", ""), environment=environment | way.environment
                    ),
                    2 * lane,
                )
                for lane, way in enumerate(row)
            ]
        )
    return found


@contextmanager
def _daemons(socket: Path) -> Iterator[dict[str, Daemon]]:
    options = ("--log.level=error", "--stacks.code")
    without = "bench.hangs.without_py_spy"
    with (
        daemon(*options) as first,
        daemon(*options, f"--client.socket={socket}", module=without) as second,
    ):
        yield dict(zip(HOWS, (first, second), strict=True))


def _build_native(program: Path) -> str:
    """Compile the job that is not Python; returns why that failed."""
    os.environ[NATIVE] = str(program)
    try:
        nccl = Path(next(iter(importlib.import_module("nvidia.nccl").__path__)))
        library = next((nccl / "lib").glob("libnccl.so*"))
        source = Path(__file__).with_name("native.cu")
        rest = ["-I", str(nccl / "include"), "-Xlinker", f"{library},-rpath={nccl / 'lib'}"]
        command = ["nvcc", "-o", str(program), str(source), *rest]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    except subprocess.CalledProcessError as error:
        return str(error.stderr)[-500:]
    except (ImportError, StopIteration, OSError, subprocess.SubprocessError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _hold(
    group: list[Placement], watched: Mapping[str, Daemon], keep: Callable[[str], object]
) -> None:
    """Have one group of jobs hang, side by side, and keep what was told of each."""
    running = prepared(group)
    for each in group:
        if each not in running:
            why = next(one.failed for one in each.seen)
            print(f"{each.workload.name}: {why}", flush=True)
    threads = []
    for each in running:
        target = _train if each.workload.name == HEALTHY else _hang
        thread = threading.Thread(target=_keep_result, args=(target, each, watched, keep))
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()


def _keep_result(
    target: Callable[[Placement, Mapping[str, Daemon]], Outcome | Disturbance],
    each: Placement,
    watched: Mapping[str, Daemon],
    keep: Callable[[str], object],
) -> None:
    try:
        found = target(each, watched)
        keep(json.dumps(_rounded(asdict(found))))
        print(
            "\n".join(_lines(found)) if isinstance(found, Outcome) else f"{HEALTHY}: done",
            flush=True,
        )
    except (ArithmeticError, AttributeError, LookupError, OSError, ValueError) as error:
        print(f"{each.workload.name}: {type(error).__name__}: {error}", flush=True)
    finally:
        each.end()


def _rounded(kept: Any) -> Any:
    """The value with its numbers rounded to the microsecond."""
    if isinstance(kept, dict):
        return {name: _rounded(value) for name, value in kept.items()}
    if isinstance(kept, list):
        return [_rounded(value) for value in kept]
    return round(kept, 6) if isinstance(kept, float) else kept


def _train(each: Placement, _: Mapping[str, Daemon]) -> Disturbance:
    """Look at both ranks of a healthy training, ten times a second."""
    time.sleep(3.0)
    begin = time.time()
    time.sleep(8.0)
    between, looks = time.time(), 0
    while time.time() < between + 8.0:
        for process in each.processes:
            NODE.stacks(process.child.pid)
            looks += 1
        time.sleep(0.1)
    end = time.time()
    steps = [
        tuple(map(float, line.split()))
        for line in (each.processes[0].folder / "steps.0").read_text().splitlines()[:-1]
    ]
    alone = [took for at, took in steps if begin <= at < between]
    return Disturbance(machine(), alone, [took for at, took in steps if between <= at < end], looks)


def _hang(each: Placement, watched: Mapping[str, Daemon]) -> Outcome:
    """Wait until its last rank hangs, and then for what is told of it."""
    way = BY_NAME[each.workload.name]
    last = each.processes[-1]
    until = time.monotonic() + 60.0
    while not last.has_said("hangs"):
        if last.ended or time.monotonic() > until:
            raise LookupError(f"it did not hang: {last.last_words}")
        time.sleep(0.05)
    began = next(at for at, word in last.heard if word == "hangs")
    waiting, late = (str(one.gpu) for one in each.seen)
    told = dict.fromkeys(watched, HangReading())
    latest = began + (LATEST_OF_SLOW if way.slow else LATEST)
    while time.time() < latest:
        for how, one in watched.items():
            told[how] = _read_daemon(told[how], way, one, waiting, late, began)
        if told["py-spy"].line is not None:
            latest = min(latest, began + told["py-spy"].line + BESIDE)
            if all(one.line is not None for one in told.values()):
                break
        time.sleep(LOOK)
    outcome = Outcome(way.name, machine(), began, told=told)
    return _looked(outcome, last, _real(last.child.pid)) if way.python else outcome


def _read_daemon(
    so_far: HangReading, way: Way, one: Daemon, waiting: str, late: str, began: float
) -> HangReading:
    """What a daemon has told by now."""
    verdicts = {each["gpu"]: each for each in json.loads(one.get("/api/v1/verdict"))}
    verdict, now = verdicts.get(waiting), time.time() - began
    if verdict is None or not CAUSES[verdict["cause"]].waits_for_peers:
        # What was called before, at the job's start, was not this hang.
        return so_far if so_far.line else replace(so_far, called=None)
    said = [one["meaning"].partition(TELLS)[2] for one in verdict["evidence"]]
    said = [each for each in said if each] or (
        _in_incident(one, late, began) if way.all_wait else []
    )
    reasons = [each["reason"] for each in verdict["waits_for"]]
    found = replace(
        so_far,
        called=now if so_far.called is None else so_far.called,
        said=so_far.said or next(iter(said), ""),
        reason=next(iter(reasons), so_far.reason) if said or not so_far.said else so_far.reason,
    )
    if found.line is None and any(_right(way, each) for each in said):
        found = replace(found, line=now, said=next(each for each in said if _right(way, each)))
    return found


def _right(way: Way, said: str) -> bool:
    """Whether a sentence has file, line and function of the rank that hangs."""
    of_late = said if way.all_wait else said.partition("; GPU ")[0]
    return any(re.search(place, of_late) for place in way.places)


def _in_incident(one: Daemon, gpu: str, began: float) -> list[str]:
    """Where those stand that wait, as the last incident of a GPU has it."""
    listed = briefs().validate_json(one.private("/api/v1/incidents"))
    since = [each for each in listed if each.began > began - 5.0 and gpu in each.gpus]
    if not since:
        return []
    found = parse(one.private(f"/api/v1/incidents/{since[0].id}"))
    return [sentence(look.stacks, True, look.progress) for look in found.looks]


def _real(pid: int) -> int:
    """The process of Python itself, behind what entered a container for it."""
    process = psutil.Process(pid)
    while process.name() in ("unshare", "sh"):
        process = process.children()[0]
    return process.pid


def _looked(outcome: Outcome, process: Process, pid: int) -> Outcome:
    """The outcome, with how long a look from outside takes and stops the process."""
    beats = beat.Beats(process.folder / f"beats.{process.rank}")
    with beats.longest() as before:
        time.sleep(0.1)
    begin = time.perf_counter()
    with beats.longest() as within:
        NODE.stacks(pid)
        took = time.perf_counter() - begin
    with beats.longest() as native, suppress(subprocess.SubprocessError):
        command = ["py-spy", "dump", "--native", "--pid", str(pid)]
        subprocess.run(command, capture_output=True, timeout=3.0)
    return replace(
        outcome,
        looked=took,
        stopped=next(iter(within), None),
        stopped_before=next(iter(before), None),
        native=next(iter(native), None),
    )


HEAD = f"{'hangs in':44} {'how':7} {'called':>7} {'line':>6}  reason           what was told"


def _lines(outcome: Outcome) -> Iterator[str]:
    """An outcome, a line for each daemon."""
    way = BY_NAME[outcome.way]
    for how, told in outcome.told.items():
        times = f"{_seconds(told.called):>7} {_seconds(told.line):>6}"
        said = told.said.partition("; GPU ")[0]
        yield f"{way.what:44} {how:7} {times}  {told.reason:16} {said or '-'}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _milliseconds(values: Sequence[float | None]) -> str:
    known = [1e3 * value for value in values if value is not None]
    if not known:
        return "-"
    return f"median {statistics.median(known):.1f} ms, at most {max(known):.1f} ms"


def report(path: Path) -> Report:
    """The table of all outcomes that are kept."""
    known = outcomes(path)
    kept = [known[way.name] for way in WAYS if way.name in known]
    in_python = [one for one in kept if BY_NAME[one.way].python]
    outside = [(one, one.told["py-spy"]) for one in kept]
    at_once = [(one, told) for one, told in outside if not BY_NAME[one.way].slow]
    called = [told.called for _, told in at_once if told.called is not None]
    after = [told.line - (told.called or 0.0) for _, told in outside if told.line is not None]
    reasons = [(BY_NAME[one.way].reasons.split(), told) for one, told in outside]
    known_reasons = [(right, told) for right, told in reasons if right]
    named = sum(told.reason in right for right, told in known_reasons)
    stopped = [one.stopped for one in kept]
    results = [
        _right_line(in_python, "py-spy"),
        _right_line(in_python, "client"),
        Result(
            "a hang was called a stall or a straggler after, at most",
            f"{max(called):.1f} s, {len(called)} of {len(at_once)}",
            f"≤ {IN_TIME:g} s",
            len(called) == len(at_once) and max(called) <= IN_TIME,
        ),
        Result(
            "its line is known after the call, within",
            f"median {statistics.median(after):.1f} s, at most {max(after):.1f} s",
            f"≤ {IN_TIME:g} s",
            max(after) <= IN_TIME,
        ),
        Result(
            "the right reason, where there is one",
            f"{named} of {len(known_reasons)}",
            "≥ 90 %",
            named >= 0.9 * len(known_reasons),
        ),
        Result("a look takes", _milliseconds([one.looked for one in in_python])),
        Result(
            "longest pause of the process in a look",
            _milliseconds(stopped),
            "≤ 50 ms",
            max((each for each in stopped if each is not None), default=1.0) <= 0.05,
        ),
        Result(
            "longest pause in a tenth of a second without one",
            _milliseconds([one.stopped_before for one in kept]),
        ),
        Result(
            "longest pause in a look with native frames, which the daemon never asks for",
            _milliseconds([one.native for one in kept]),
        ),
    ]
    beside = disturbance(path)
    if beside is not None:
        alone, looked = statistics.median(beside.alone), statistics.median(beside.looked)
        results.append(
            Result(
                f"a healthy step, with {beside.looks / 8:.0f} looks a second and without",
                f"{1e3 * looked:.2f} ms, {1e3 * alone:.2f} ms ({looked / alone - 1:+.2%}); longest "
                f"{1e3 * max(beside.looked):.1f} ms, {1e3 * max(beside.alone):.1f} ms",
                "within 1 %",
                abs(looked / alone - 1) <= 0.01,
            )
        )
    return Report(
        "Where in its code a job hangs",
        " / ".join(sorted({one.machine for one in kept})),
        "Two ranks on two GPUs train over NCCL; then the last one hangs, or is slow. One daemon "
        "has py-spy, another only the messages of `gpunode.client`. Times count from the moment at "
        "which the rank stands still. The pause of a process is the longest gap in a thread that "
        "beats every millisecond.",
        results,
        [HEAD, *(line for one in kept for line in _lines(one))],
        span(one.version for one in kept),
    )


def _right_line(kept: Sequence[Outcome], how: str) -> Result:
    """How many have the right line: from outside, which is the target, or by the client alone."""
    right = [one for one in kept if one.told[how].line is not None]
    missed = ", ".join(one.way for one in kept if one not in right)
    measured = f"{len(right)} of {len(kept)}" + (f" (not: {missed})" if missed else "")
    if how == "client":
        return Result("the same by gpunode.client alone, without py-spy", measured)
    met = len(right) >= 0.95 * len(kept)
    return Result("right file, line and function, without the client", measured, "≥ 95 %", met)


def hangs(path: Path, names: Sequence[str]) -> Report:
    """Measure on all GPUs of this machine; the report is of all outcomes in the file."""
    pynvml.nvmlInit()
    measure(path, names, pynvml.nvmlDeviceGetCount())
    return report(path)
