"""How long a report on 90 days of 1,250 nodes takes, from one Prometheus.

``python -m bench.review --port 9091`` leaves a Prometheus there with eight weeks of a smaller
fleet, to try the report on.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.report import Report, Result, machine
from gpunode.report.history import HOUR
from tests.prometheus.known import GPUS, Fault, Fleet, Job, KnownIncident, backfill, served

NODES = 1250
DAYS = 90
NODES_OF_JOB = 4
SEED = 7
SLOWEST = 60.0
MAX_MEMORY_BYTES = 1 << 30


class Pattern(NamedTuple):
    """A kind of job: its ledger and causes, of which each job has its own shares."""

    kind: str
    names: tuple[str, ...]
    shares: dict[str, float]
    causes: dict[str, float]


PATTERNS = (
    Pattern(
        "training",
        ("llama-70b", "mixtral-8x22b"),
        {"communication": 0.12, "blocked": 0.14, "starved": 0.03},
        {"straggler": 0.12, "communication": 0.2},
    ),
    Pattern(
        "training",
        ("asr-conformer", "video-vit"),
        {"starved": 0.28, "blocked": 0.08, "communication": 0.04},
        {"data_loading_cpu": 0.34, "straggler": 0.05},
    ),
    Pattern(
        "training",
        ("diffusion-xl", "embeddings"),
        {"starved": 0.22, "copy": 0.05},
        {"data_loading_storage": 0.25, "checkpoint": 0.04},
    ),
    Pattern(
        "training",
        ("ranker", "speech-tts"),
        {"starved": 0.19, "copy": 0.08},
        {"kernel_launch": 0.3, "thermal": 0.02},
    ),
    Pattern("serving", ("chat", "search"), {"idle": 0.3, "starved": 0.1}, {"no_requests": 0.35}),
    Pattern("interactive", ("notebook",), {"idle": 0.86}, {}),
)
BACK = {
    "straggler": 0.66,
    "communication": 0.12,
    "data_loading_cpu": 0.58,
    "data_loading_storage": 0.47,
    "checkpoint": 0.7,
    "kernel_launch": 0.31,
    "thermal": 0.15,
    "no_requests": 0.0,
}
"""The share of what each cause was named for that comes back without it."""

WEIGHTS = (5, 3, 3, 2, 2, 1)
TEAMS = ("language", "platform", "search", "speech", "vision")
GROWN = (2, 4, 8)
"""Nodes of a job that grows over the last weeks."""

SLOW = 5
"""The node for which others wait."""


def fleet(nodes: int, days: int) -> Fleet:
    """Jobs on four nodes each, one after the other, for some days each, with ever shorter gaps."""
    chance = random.Random(SEED)
    hours = days * 24
    names = [f"node-{at:04}" for at in range(nodes)]
    jobs: list[Job] = []
    for first in range(0, nodes - GROWN[-1], NODES_OF_JOB):
        own = tuple(names[first : first + NODES_OF_JOB])
        begin = chance.randrange(24)
        while begin < hours:
            end = min(hours, begin + chance.randrange(24, 15 * 24))
            (pattern,) = chance.choices(PATTERNS, WEIGHTS)
            jobs.append(_job(pattern, own, begin, end, len(jobs), chance))
            begin = end + chance.randrange(1, 80 + 40 * (hours - end) // hours)
    jobs += [
        Job(
            workload="llama-8b-pretrain",
            namespace="language",
            nodes=tuple(names[-many:]),
            begin=hours - (len(GROWN) - at) * 8 * 24,
            end=hours - (len(GROWN) - at - 1) * 8 * 24,
            shares={"compute": 0.9 - 0.09 * at, "communication": 0.1 + 0.09 * at},
            causes={"communication": 0.1 + 0.1 * at},
            phases={"step": 0.96, "data": 0.01, "checkpoint": 0.03},
            mfu=0.46 - 0.05 * at,
            steps=((7.9, 4.42, 2.6)[at],),
        )
        for at, many in enumerate(GROWN)
    ]
    faults = tuple(
        Fault(chance.choice(names), fault, chance.randrange(hours - 24) * HOUR, 1800)
        for fault in ("network", "exporter", "thermal", "filesystem")
        for _ in range(days // 7)
    )
    long = [job for job in jobs if job.kind == "training" and job.end - job.begin > 3 * 24]
    broken = [
        (
            job,
            chance.choice(("stall", "xid", "gpu_lost")),
            chance.randrange(job.begin, job.end - 24),
        )
        for job in chance.sample(long, min(len(long), days // 5))
    ]
    repeats = {
        (job.workload, hour + 2): chance.uniform(0.2, 1) * job.gpus for job, _, hour in broken
    }
    at = int(time.time()) // HOUR * HOUR - hours * HOUR
    return Fleet(
        start=at,
        hours=hours,
        nodes=dict.fromkeys(names, (0, hours)),
        jobs=tuple(jobs),
        faults=faults,
        incidents=tuple(
            KnownIncident(
                job.workload,
                kind,
                hour * HOUR,
                {
                    "waiting": chance.uniform(1, 20),
                    "starting": chance.uniform(1, 6),
                    "repeating": repeats[job.workload, hour + 2] / len(job.nodes),
                },
                job.nodes,
            )
            for job, kind, hour in broken
        ),
        repeated=repeats,
        missing=frozenset(range(hours // 2, hours // 2 + 9)),
        gains={
            cause: {"lower": 0.8 * back, "estimate": back, "upper": 1.25 * back}
            for cause, back in BACK.items()
        },
    )


def _job(
    pattern: Pattern,
    nodes: tuple[str, ...],
    begin: int,
    end: int,
    number: int,
    chance: random.Random,
) -> Job:
    """A job that is like others of its kind, and like none of them to the digit."""
    worse = chance.uniform(0.5, 1.6)
    shares = {
        state: min(0.9, share * worse * chance.uniform(0.8, 1.2))
        for state, share in pattern.shares.items()
    }
    step = chance.uniform(0.4, 9.0)
    slower = chance.choice((1.0, 1.0, 1.0, chance.uniform(1.12, 1.6)))
    trains = pattern.kind == "training"
    saving, data = chance.uniform(0.01, 0.07), chance.uniform(0.02, 0.2)
    return Job(
        workload=f"{chance.choice(pattern.names)}-{number}",
        namespace=chance.choice(TEAMS),
        nodes=nodes,
        begin=begin,
        end=end,
        shares={"compute": 1.0 - sum(shares.values()), **shares},
        causes={
            cause: share * worse * chance.uniform(0.7, 1.1)
            for cause, share in pattern.causes.items()
        },
        kind=pattern.kind,
        phases={"step": 1.0 - data - saving, "data": data, "checkpoint": saving} if trains else {},
        mfu=chance.uniform(0.2, 0.5) if trains else 0.0,
        steps=(step, step, step * slower) if trains else (),
        tokens=chance.uniform(800.0, 9000.0) if pattern.kind == "serving" else 0.0,
        asked=(6, 22),
        blocked={f"node-{SLOW:04}": 0.0},
        working_hours=pattern.kind == "interactive",
    )


def review() -> Report:
    """Write a report as a user does, and see what it and Prometheus take."""
    known = fleet(NODES, 2 * DAYS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        known.write(folder / "past")
        with (folder / "past").open("rb") as file:
            samples = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 24), b""))
        backfill(folder)
        (folder / "past").unlink()
        with served(folder) as (child, url):
            server = psutil.Process(child.pid)
            idle, before = server.memory_info().rss, sum(server.cpu_times()[:2])
            took, resident, most = _report(url, known, folder, server)
            used = sum(server.cpu_times()[:2]) - before
        written = json.loads((folder / "report.json").read_text())
        truth = known.by_state(DAYS * 24, known.hours)
        figures = {one["name"]: one["value"] for one in written["sections"][0]["figures"]}
    hours = sum(truth.values())
    wrong = abs(figures["gpu_hours"] / hours - 1)
    return Report(
        "The capacity report",
        machine(),
        f"`gpunode report --format json` over {DAYS} days of {NODES} nodes of {GPUS} GPUs and "
        f"as many days before, with {len(known.jobs):,} jobs: {samples / 1e6:.0f} million samples "
        "of recorded series behind one Prometheus on the same machine that has just started.",
        [
            Result("time", f"{took:.1f} s", f"≤ {SLOWEST:g} s", took <= SLOWEST),
            Result(
                "memory of the report, at most",
                f"{resident / 2**20:.0f} MiB",
                f"≤ {MAX_MEMORY_BYTES / 2**20:.0f} MiB",
                resident <= MAX_MEMORY_BYTES,
            ),
            Result("CPU time of Prometheus", f"{used:.1f} s"),
            Result(
                "memory of Prometheus, at most",
                f"{most / 2**20:.0f} MiB, {idle / 2**20:.0f} MiB before",
            ),
            Result("GPU hours, error", f"{wrong:.2%}", "≤ 1 %", wrong <= 0.01),
        ],
        [],
    )


def stay(port: int) -> None:
    """Serve the past of a small fleet until somebody ends it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # and Prometheus with it
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fleet(48, 56).write(folder / "past")
        backfill(folder)
        with served(folder, port) as (child, url):
            print(f"{url} has eight weeks of 48 nodes; Ctrl-C ends it", flush=True)
            child.wait()


def _report(url: str, known: Fleet, folder: Path, server: psutil.Process) -> tuple[float, int, int]:
    """The seconds that the command takes, and the most memory it and Prometheus take."""
    command = [sys.executable, "-m", "gpunode", "report", f"--prometheus.url={url}"]
    end = time.strftime("%Y-%m-%dT%H:%M", time.gmtime(known.start + known.hours * HOUR))
    command += [f"--from={DAYS}d", f"--to={end}", "--format=json", "--price=2.5"]
    command += [f"--output={folder}/report.json"]
    most = 0
    begin = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                child.returncode = os.waitstatus_to_exitcode(status)
                break
            most = max(most, server.memory_info().rss)
            time.sleep(0.05)
    if child.returncode:
        raise SystemExit(f"the report ended with {child.returncode}")
    return time.monotonic() - begin, usage.ru_maxrss * 1024, most


if __name__ == "__main__":
    asked = argparse.ArgumentParser()
    asked.add_argument("--port", type=int, required=True)
    stay(asked.parse_args().port)
