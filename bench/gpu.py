"""Benchmarks on real GPUs: how right the ledger is, what the daemon costs and what it disturbs."""

from __future__ import annotations

import json
import math
import operator
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pynvml
from prometheus_client.parser import text_string_to_metric_families

from bench.offline import SCRAPE_EVERY
from bench.report import Report, Result, machine
from bench.truth.outcome import models
from bench.truth.recorded_daemon import recorded_daemon
from tests.daemon import SETTLE, Daemon, daemon
from tests.hardware.jobs import STEPS, hanging, named, training
from tests.prometheus.incidents import FirstFired, alerting
from tests.windows.recorded import WindowRecord, save

STATE = {"matmul": "compute", "elementwise": "compute", "copy": "copy", "sleep": "starved"}

CASES: tuple[tuple[float, dict[str, float]], ...] = (
    (0.05, {"matmul": 0.5, "sleep": 0.5}),
    (0.2, {"matmul": 0.5, "sleep": 0.5}),
    (1.0, {"matmul": 0.3, "sleep": 0.7}),
    (5.0, {"matmul": 0.5, "sleep": 0.5}),
    (0.05, {"matmul": 0.5, "elementwise": 0.5}),
    (1.0, {"matmul": 0.5, "elementwise": 0.5}),
    (0.1, {"copy": 0.5, "sleep": 0.5}),
    (2.0, {"copy": 0.5, "sleep": 0.5}),
    (0.1, {"matmul": 0.4, "copy": 0.3, "sleep": 0.3}),
    (2.0, {"matmul": 0.4, "copy": 0.3, "sleep": 0.3}),
    (0.05, {"elementwise": 0.6, "sleep": 0.4}),
    (0.05, {"matmul": 0.25, "elementwise": 0.25, "copy": 0.25, "sleep": 0.25}),
    (0.2, {"matmul": 0.25, "elementwise": 0.25, "copy": 0.25, "sleep": 0.25}),
    (1.0, {"matmul": 0.25, "elementwise": 0.25, "copy": 0.25, "sleep": 0.25}),
    (5.0, {"matmul": 0.25, "elementwise": 0.25, "copy": 0.25, "sleep": 0.25}),
)


@dataclass(frozen=True, slots=True)
class Workload:
    """The program that keeps a GPU at known phases."""

    process: subprocess.Popen[str]

    def begin(self, phases: Sequence[tuple[str, float]]) -> None:
        self._say(json.dumps({"phases": phases}))

    def then(self, phases: Sequence[tuple[str, float]] | None) -> list[tuple[float, str]]:
        """What was done since the last order; goes on with other phases, or ends."""
        self._say("" if phases is None else json.dumps({"phases": phases}))
        assert self.process.stdout is not None
        return [(begin, kind) for begin, kind in json.loads(self.process.stdout.readline())]

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()


@contextmanager
def workload(gpu: int = 0) -> Iterator[Workload]:
    """Start the workload and wait until it has measured its operations."""
    path = Path(__file__).with_name("workload.py")
    command = [sys.executable, str(path), str(gpu)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield Workload(process)
        finally:
            process.kill()


def truth(done: Sequence[tuple[float, str]], begin: float, end: float) -> dict[str, float]:
    """Shares of the time from ``begin`` to ``end`` by state, from the workload's own log."""
    shares = dict.fromkeys(STATE.values(), 0.0)
    for (since, kind), (until, _) in pairwise(done):
        overlap = max(0.0, min(end, until) - max(begin, since))
        shares[STATE[kind]] += overlap / (end - begin)
    return shares


def named_phases(period: float, mix: Mapping[str, float]) -> str:
    """The phases of a workload in words."""
    return f"{period:.3g} s: " + ", ".join(f"{kind} {share:.0%}" for kind, share in mix.items())


def random_phases(count: int, seed: int) -> Iterator[tuple[float, dict[str, float]]]:
    """Random phases: of two to four kinds, of 30 ms to 4 s together."""
    chance = random.Random(seed)
    for _ in range(count):
        kinds = chance.sample(list(STATE), chance.randint(2, len(STATE)))
        parts = [chance.uniform(0.2, 1.0) for _ in kinds]
        period = math.exp(chance.uniform(math.log(0.03), math.log(4.0)))
        yield period, {kind: part / sum(parts) for kind, part in zip(kinds, parts, strict=True)}


def ledger(seconds: float, windows: Path, seed: int = 1) -> Report:
    """Every state's share against workloads that know what they did.

    The windows and what the workloads did in them are kept in that folder, for the fit.
    """
    results: list[float] = []
    details = ["error  workload", "       ledger (truth) of every state above 0.01"]
    cases = [*CASES, *random_phases(len(CASES), seed)]
    kept: list[WindowRecord] = []
    with recorded_daemon("--log.level=warning") as (watched, closed), workload() as load:
        load.begin([("sleep", 0.1)])
        for period, mix in cases:
            phases = [(kind, share * period) for kind, share in mix.items()]
            load.then(phases)
            time.sleep(1.0)
            begin, before, _ = watched.next_window()
            while time.time() - begin < max(seconds, 4 * period):
                end, after, _ = watched.next_window()
            done = load.then([("sleep", 0.1)])
            measured = {s: (after[s] - before[s]) / (end - begin) for s in after}
            known = truth(done, begin, end)
            error = {s: share - known.get(s, 0.0) for s, share in measured.items()}
            worst = max(error, key=lambda state: abs(error[state]))
            name = named_phases(period, mix)
            kept += [
                each.of("phases", name, truth(done, each.opened, each.time))
                for each in closed.of(0, begin - 0.1)
                if each.time <= end + 0.1
            ]
            details.append(f"{error[worst]:+.3f} {name}, worst {worst}")
            details.append(
                "       "
                + ", ".join(
                    f"{state} {share:.3f} ({known.get(state, 0.0):.3f})"
                    for state, share in measured.items()
                    if max(share, known.get(state, 0.0)) > 0.01
                )
            )
            results.append(abs(error[worst]))
            print(*details[-2:], sep="\n", flush=True)
    save(windows / f"workloads-phases-{models()[0]}.jsonl.gz", kept)
    return Report(
        "The ledger against workloads with known fractions",
        machine(),
        f"Each workload repeats timed phases on one GPU and logs them; the ledger's shares over at "
        f"least {seconds:g} s are compared with the log over the same time. Half of the workloads "
        "are always the same, and the phases of the others are drawn at random.",
        [
            *_phases("always the same", results[: len(CASES)]),
            *_phases("drawn at random", results[len(CASES) :]),
        ],
        details,
    )


def _phases(which: str, errors: Sequence[float]) -> Iterator[Result]:
    """How well some workloads were told."""
    worst = max(errors)
    yield Result(
        f"largest error of any state, phases {which}", f"{worst:.3f}", "≤ 0.05", worst <= 0.05
    )
    median = statistics.median(errors)
    yield Result(f"median of the largest, phases {which}", f"{median:.3f}")


def square_wave(seconds: float) -> Report:
    """Swings counted against load that goes on for 60 ms and off for 140 ms."""
    phases = [("matmul", 0.06), ("sleep", 0.14)]
    polled: list[int] = []
    stop = threading.Event()

    def poll() -> None:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        while not stop.wait(1.0):
            polled.append(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)

    with daemon("--log.level=warning") as watched, workload() as load:
        load.begin(phases)
        time.sleep(5.0)
        begin, _, first = watched.next_window()
        thread = threading.Thread(target=poll)
        thread.start()
        while time.time() - begin < seconds:
            end, _, last = watched.next_window()
        stop.set()
        thread.join()
        done = load.then(None)
    cycles = sum(begin <= time < end for time, kind in done if kind == "matmul")
    swings = last["power_swings"] - first["power_swings"]
    error = swings / cycles - 1
    changes = sum(abs(a - b) > 50 for a, b in pairwise(polled))
    return Report(
        "A square wave of load, 60 ms on and 140 ms off",
        machine(),
        f"{end - begin:.0f} s; the daemon drains the driver's power buffer every 2 s.",
        [
            Result(
                "swings counted, out of cycles run",
                f"{swings} of {cycles} ({error:+.1%})",
                "within 2 %",
                abs(error) <= 0.02,
            ),
            Result(
                "step period from the power draw",
                f"{last['step_period_seconds'] or 0:.4f} s, really {(end - begin) / cycles:.4f} s",
            ),
            Result(
                "for comparison: nvmlDeviceGetUtilizationRates polled at 1 Hz",
                f"{len(polled)} polls, {min(polled)} to {max(polled)} %, "
                f"{changes} changes of more than 50 points",
            ),
        ],
        [],
    )


def energy(seconds: float) -> Report:
    """The energy of all states against the driver's counter, for loads of different draw."""
    errors: list[float] = []
    every: list[tuple[float, float]] = []
    details = ["of the daemon's and the driver's joules"]
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    with daemon("--log.level=warning") as watched, workload() as load:
        load.begin([("sleep", 0.1)])
        for period, mix in (*CASES[:8:3], (1.0, {"sleep": 1.0}), (1.0, {"matmul": 1.0})):
            load.then([(kind, share * period) for kind, share in mix.items()])
            time.sleep(1.0)
            told: list[float] = []
            counted: list[float] = []
            begin = time.time()
            while not told or time.time() - begin < seconds:
                watched.next_window()
                counted.append(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)
                told.append(_joules(watched))
            every += zip(told, counted, strict=True)
            ours, driver = told[-1] - told[0], counted[-1] - counted[0]
            errors.append(abs(ours / driver - 1.0))
            error = f"{ours / driver - 1.0:+.2%}"
            details.append(f"{error}  {ours:8.0f} {driver:8.0f}  {named_phases(period, mix)}")
            print(details[-1], flush=True)
    (told_first, counted_first), (told_last, counted_last) = every[0], every[-1]
    whole = abs((told_last - told_first) / (counted_last - counted_first) - 1.0)
    return Report(
        "Energy by state against the driver's counter",
        machine(),
        f"Loads of {seconds:g} s each on one GPU. The sum over all states of what "
        "`gpunode_gpu_energy_joules_total` grew by is compared with the growth of "
        "nvmlDeviceGetTotalEnergyConsumption, read at the same ends of windows. What a load was "
        "counted too little or too much is settled when the daemon reads that counter, which may "
        "be during the next load.",
        [
            Result("error over all loads", f"{whole:.2%}", "≤ 1 %", whole <= 0.01),
            Result("largest error of any load", f"{max(errors):.2%}"),
            Result("median error of a load", f"{statistics.median(errors):.2%}"),
        ],
        details,
    )


def _joules(watched: Daemon) -> float:
    """What the first GPU has used since the daemon started, in all states."""
    families = text_string_to_metric_families(watched.get("/metrics").decode())
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == "gpunode_gpu_energy_joules_total" and sample.labels["gpu"] == "0"
    )


def disturbance(blocks: int, seconds: float) -> Report:
    """Step time of a training-like loop with and without the daemon, in turn."""
    steps: dict[bool, list[float]] = {True: [], False: []}
    with _trainer() as ask:
        ask(seconds)
        for block in range(2 * blocks):
            present = block % 2 == 1
            if present:
                with daemon("--log.level=warning"):
                    steps[True] += ask(seconds)
            else:
                steps[False] += ask(seconds)
    median = {present: statistics.median(times) for present, times in steps.items()}
    low, high = _confidence(steps[False], steps[True])
    share = median[True] / median[False] - 1
    noise = low <= 0 <= high or abs(share) < 0.002
    return Report(
        "Step time with and without the daemon",
        machine(),
        f"Alternating blocks of {seconds:g} s, {len(steps[False])} and {len(steps[True])} steps of "
        "a training-like loop on every GPU; the interval is a bootstrap over blocks of 100 steps.",
        [
            Result("median step without the daemon", f"{median[False] * 1e3:.4f} ms"),
            Result("median step with the daemon", f"{median[True] * 1e3:.4f} ms"),
            Result(
                "difference of medians",
                f"{share:+.2%}, 95 % interval {low:+.2%} to {high:+.2%}",
                "within noise",
                noise,
            ),
        ],
        [],
    )


@contextmanager
def _trainer() -> Iterator[Any]:
    """The training-like loop over all GPUs; asking it for seconds returns its step times."""
    path = Path(__file__).with_name("trainer.py")
    count = _gpu_count()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(path), str(rank), str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]

    def ask(seconds: float) -> list[float]:
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.write(f"{seconds}\n")
            rank.stdin.flush()
        answers = [json.loads(rank.stdout.readline()) for rank in ranks if rank.stdout is not None]
        return [float(step) for step in answers[0]]

    try:
        yield ask
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def _confidence(without: list[float], with_: list[float]) -> tuple[float, float]:
    """95 % interval of the relative difference of medians; a block is steps close in time."""
    chance = random.Random(1)

    def resampled(times: list[float]) -> float:
        blocks = [times[at : at + 100] for at in range(0, len(times), 100)]
        return statistics.median(
            x for block in chance.choices(blocks, k=len(blocks)) for x in block
        )

    differences = sorted(resampled(with_) / resampled(without) - 1 for _ in range(400))
    return differences[9], differences[390]


def cost(seconds: float) -> Report:
    """CPU, memory and scrape time of the daemon while every GPU is loaded."""
    count = _gpu_count()
    base = _idle_share(seconds / 2)
    with _loaded(count), daemon("--log.level=warning") as watched:
        time.sleep(SETTLE)
        reads = _source_reads(watched)
        cpu, begin = watched.cpu_seconds(), time.monotonic()
        for _ in range(round(seconds / SCRAPE_EVERY)):
            _scrape(watched, 1, SCRAPE_EVERY)
        elapsed = time.monotonic() - begin
        quiet = (watched.cpu_seconds() - cpu) / elapsed
        reads = {
            source: tuple(map(operator.sub, after, reads.get(source, (0.0, 0.0))))
            for source, after in _source_reads(watched).items()
        }
        scrapes = _scrape(watched, 100, 0.05)
        series = watched.series()
        rss = watched.process.memory_info().rss / 2**20
    sensing = sum(reads[source][1] for source in ("gpu_activity", "gpu_health")) / elapsed
    sensing *= 8 / count
    eight = base + (quiet - base) * 8 / count
    p99 = sorted(scrapes)[98] * 1e3
    how = f"{base:.2%} without a GPU, {quiet:.2%} with {count}"
    return Report(
        f"What the daemon costs, {count} GPUs under load",
        machine(),
        f"CPU time of the process over {seconds:g} s at the default settings, with a scrape every "
        f"{SCRAPE_EVERY:g} s. The cost of each source is the daemon's own "
        "gpunode_source_cpu_seconds_total; sensing is gpu_activity and gpu_health, which call the "
        "driver.",
        [
            Result(
                "sensing 8 GPUs, share of one core", f"{sensing:.2%}", "≤ 1.8 %", sensing <= 0.018
            ),
            Result(
                "whole daemon for 8 GPUs, share of one core",
                f"{eight:.2%} ({how})",
                "≤ 1.5 %",
                eight <= 0.015,
            ),
            Result("resident memory", f"{rss:.0f} MiB", "≤ 80 MiB", rss <= 80),
            Result("series", f"{series}"),
            Result("/metrics p99 of 100", f"{p99:.1f} ms", "≤ 10 ms", p99 <= 10),
        ],
        [
            f"{source}: {took / elapsed:.3%} of the time, {cpu / elapsed:.3%} of a core"
            for source, (took, cpu) in reads.items()
            if took
        ],
    )


def jobs() -> Report:
    """A rank that does not join, and what a training loop reports, as the tests run them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with daemon("--log.level=error") as running, ExitStack() as stack:
            fired = stack.enter_context(alerting({"node": running.port}, folder, hurried=False))
            job = stack.enter_context(hanging(_gpu_count(), folder))
            told = named(running, job)
            while (alert := _first(fired, "JobStalled")) is None:
                if time.time() > job.since + 120:
                    raise TimeoutError(f"no alert: {fired}")
                time.sleep(0.2)
        loop = training(folder)
    alone, client = statistics.mean(loop.alone), statistics.mean(loop.told)
    error = abs(loop.mfu / loop.by_hand - 1)
    slower = client / alone - 1
    spread = (max(loop.alone) - min(loop.alone)) / alone
    return Report(
        "A stalled job, from GPU to pager",
        machine(),
        f"An NCCL job of {len(job.pids)} ranks whose last rank stops joining, watched by "
        "Prometheus and Alertmanager with the shipped rules and routes and a scrape every 15 s; "
        f"then a loop of {STEPS} steps of known FLOPs on one GPU, alternately without and with "
        "gpunode.client.",
        [
            Result(
                "missing rank named after",
                f"{told.seconds:.1f} s",
                "≤ 30 s",
                told.seconds <= 30,
            ),
            Result(
                "notified of the stall after",
                f"{alert - job.since:.1f} s",
                "≤ 60 s",
                alert - job.since <= 60,
            ),
            Result(
                "MFU as reported and by hand",
                f"{loop.mfu:.3f}, {loop.by_hand:.3f}",
                "within 5 %",
                error <= 0.05,
            ),
            Result(
                "median step without and with the client",
                f"{alone * 1e3:.4f} ms, {client * 1e3:.4f} ms ({slower:+.2%})",
                "≤ 0.5 % more",
                slower <= 0.005,
            ),
            Result("difference between runs without the client", f"{spread:.2%}"),
        ],
        [told.awaited],
    )


def _first(fired: FirstFired, name: str) -> float | None:
    """When an alert was first notified."""
    return min((at for (_, alert, _, _), at in fired.items() if alert == name), default=None)


def _idle_share(seconds: float) -> float:
    """Share of one core that the daemon takes where it finds no driver."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "libnvidia-ml.so.1").touch()  # what the loader finds first, and rejects
        environment = {**os.environ, "LD_LIBRARY_PATH": folder}
        with daemon("--log.level=error", environment=environment) as watched:
            time.sleep(3.0)
            before = watched.cpu_seconds()
            time.sleep(seconds)
            return (watched.cpu_seconds() - before) / seconds


def _source_reads(watched: Daemon) -> dict[str, tuple[float, ...]]:
    """By source, the seconds and CPU seconds that its reads took, from its own series."""
    text = watched.get("/metrics").decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    cpu = "gpunode_source_cpu_seconds_total"
    took = "gpunode_source_read_seconds_total"
    labels = [series.removeprefix(cpu) for series in values if series.startswith(cpu)]
    return {
        where.split('"')[1]: (float(values[took + where]), float(values[cpu + where]))
        for where in labels
    }


def _scrape(watched: Daemon, times: int, pause: float) -> list[float]:
    """Seconds that each of several scrapes takes, as Prometheus asks."""
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    taken = []
    for _ in range(times):
        time.sleep(pause)
        begin = time.perf_counter()
        watched.get("/metrics", accept)
        taken.append(time.perf_counter() - begin)
    return taken


@contextmanager
def _loaded(count: int) -> Iterator[None]:
    """Every GPU at work with gaps, as in training that waits for its data now and then."""
    phases = [("matmul", 0.1), ("elementwise", 0.05), ("sleep", 0.05)]
    loads = []
    try:
        for gpu in range(count):
            context = workload(gpu)
            loads.append((context, context.__enter__()))
        for _, load in loads:
            load.begin(phases)
        yield
    finally:
        for context, _ in loads:
            context.__exit__(None, None, None)


def _gpu_count() -> int:
    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetCount())
