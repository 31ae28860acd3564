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

import psutil

from bench.report import Report, Result, machine
from gpunode.report.history import HOUR
from tests.prometheus.known import GPUS, Fault, Fleet, Job, backfill, served

NODES = 1250
DAYS = 90
NODES_OF_JOB = 4
SEED = 7
SLOWEST = 60.0
LARGEST = 1 << 30

PATTERNS = (
    ({"compute": 0.7, "communication": 0.1, "blocked": 0.2}, {"straggler": 0.1}),
    ({"compute": 0.5, "starved": 0.3, "blocked": 0.2}, {"data_loading_cpu": 0.5}),
    ({"compute": 0.6, "starved": 0.3, "copy": 0.1}, {"kernel_launch": 0.6}),
    ({"compute": 0.1, "idle": 0.9}, {"no_requests": 0.05}),
)
KINDS = ("training", "training", "training", "interactive")
NAMES = ("asr", "diffusion", "embeddings", "llama", "ranker", "vit")
TEAMS = ("language", "platform", "search", "speech", "vision")
SLOW = 5
"""The node for which others wait."""


def fleet(nodes: int, days: int) -> Fleet:
    """Jobs on four nodes each, one after the other, for some days each, with ever shorter gaps."""
    chance = random.Random(SEED)
    hours = days * 24
    names = [f"node-{at:04}" for at in range(nodes)]
    jobs: list[Job] = []
    for first in range(0, nodes, NODES_OF_JOB):
        own = tuple(names[first : first + NODES_OF_JOB])
        begin = chance.randrange(24)
        while begin < hours:
            end = min(hours, begin + chance.randrange(24, 15 * 24))
            kind = chance.randrange(len(PATTERNS))
            shares, causes = PATTERNS[kind]
            trains = KINDS[kind] == "training"
            jobs.append(
                Job(
                    workload=f"{chance.choice(NAMES)}-{len(jobs)}",
                    namespace=chance.choice(TEAMS),
                    nodes=own,
                    begin=begin,
                    end=end,
                    shares=shares,
                    causes=causes,
                    kind=KINDS[kind],
                    phases={"step": 0.85, "data": 0.1, "checkpoint": 0.05} if trains else {},
                    mfu=chance.uniform(0.2, 0.5) if trains else 0.0,
                    steps=(1.0, 1.0, chance.choice((1.0, 1.0, 1.3))) if trains else (),
                    blocked={names[SLOW]: 0.0},
                    working_hours=not trains,
                )
            )
            begin = end + chance.randrange(1, 12 + 150 * (hours - end) // hours)
    faults = tuple(
        Fault(chance.choice(names), fault, chance.randrange(hours - 24) * HOUR, 1800)
        for fault in ("network", "exporter", "thermal", "filesystem")
        for _ in range(days)
    )
    at = int(time.time()) // 86400 * 86400 - days * 86400
    return Fleet(
        start=at,
        hours=hours,
        nodes=dict.fromkeys(names, (0, hours)),
        jobs=tuple(jobs),
        faults=faults,
        missing=frozenset(range(hours // 2, hours // 2 + 9)),
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
                f"≤ {LARGEST / 2**20:.0f} MiB",
                resident <= LARGEST,
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
