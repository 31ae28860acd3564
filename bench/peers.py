"""gpunode beside the exporters that it replaces, each as it is by default, on the same node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import psutil
from packaging.requirements import Requirement

import gpunode
from bench.offline import SCRAPE_EVERY, SCRAPES, busy
from bench.report import Report, Result, machine
from tests.daemon import SETTLE, TIMEOUT, Daemon, free_port
from tests.fakes.nvml import FakeDriver, build

BUILT = Path(__file__).parents[1] / ".monitoring"
"""Where ``make peers`` puts the other exporters."""

JOB = """
import threading, time
for _ in range(30): threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
while True: time.sleep(0.05)
"""
"""A process with the threads of a small training."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What the node has: GPUs of the fake driver, with jobs or none; those of this machine else."""

    name: str
    gpus: int | None
    at_work: bool
    most_cpu: float
    most_memory: float
    """Targets for gpunode: the share of a core and MiB."""


SITUATIONS = (
    Situation("one busy GPU", 1, True, 0.006, 80),
    Situation("8 busy GPUs", 8, True, 0.026, 80),
    Situation("8 idle GPUs", 8, False, 0.008, 80),
    Situation("no GPU", 0, False, 0.002, 64),
)
HERE = Situation("the GPUs of this machine", None, False, 0.026, 80)


def peers() -> Report:
    """What each costs in each situation; with ``PEERS=here``, on the GPUs of this machine."""
    situations = (HERE,) if os.environ.get("PEERS") == "here" else SITUATIONS
    results = [result for situation in situations for result in _measured(situation)]
    return Report(
        "Beside the exporters it replaces",
        machine(),
        f"Each program as it is by default, side by side, scraped every {SCRAPE_EVERY:g} s for "
        f"{SCRAPES * SCRAPE_EVERY:g} s. CPU is that of the process and its threads, from "
        f"{SETTLE:g} s after the start on; the first answer is that to the first scrape with "
        "anything in it, and its CPU all that was used to get there. On disk is the program with "
        "the libraries that it needs, but not Python. nvitop-exporter reads every "
        "second. Jobs are processes of 30 threads that sleep, their GPUs those of the fake driver, "
        "which takes next to no time to answer; on an H200, NVML takes 0.14 % of a core for each "
        "GPU that is at work.",
        results,
        [],
    )


def _measured(situation: Situation) -> Iterator[Result]:
    with ExitStack() as stack:
        environment = stack.enter_context(_node(situation))
        running = {
            name: stack.enter_context(_started(name, situation.gpus, environment))
            for name in _commands(0, situation.gpus)
        }
        time.sleep(SETTLE)
        before = {name: one.cpu_seconds() for name, (one, _) in running.items()}
        begin = time.monotonic()
        for _ in range(SCRAPES):
            for one, _ in running.values():
                one.get("/metrics")
            time.sleep(SCRAPE_EVERY)
        elapsed = time.monotonic() - begin
        for name, (one, first) in running.items():
            share = (one.cpu_seconds() - before[name]) / elapsed
            memory = one.process.memory_info().rss / 2**20
            ours = name == "gpunode"
            met = share <= situation.most_cpu and memory <= situation.most_memory
            yield Result(
                f"{situation.name}: {name}",
                f"{share:.2%} of a core, {memory:.0f} MiB, {one.process.num_threads()} threads, "
                f"{one.series()} series, {_on_disk(name)}first answer {first}",
                f"≤ {situation.most_cpu:.1%}, ≤ {situation.most_memory:g} MiB" if ours else "",
                met or not ours,
            )


@contextmanager
def _node(situation: Situation) -> Iterator[dict[str, str]]:
    """The environment of a program that sees what the situation has."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        if situation.gpus is None:
            yield dict(os.environ)
            return
        if not situation.gpus:
            (folder / "libnvidia-ml.so.1").touch()  # what the loader finds first, and rejects
            yield {**os.environ, "LD_LIBRARY_PATH": name}
            return
        build(folder)
        driver, lines = FakeDriver(folder), []
        if situation.at_work:
            jobs = [subprocess.Popen([sys.executable, "-c", JOB]) for _ in range(situation.gpus)]
            for job in jobs:
                stack.callback(job.wait)
                stack.callback(job.kill)
            lines = busy({gpu: job.pid for gpu, job in enumerate(jobs)})
        driver.write("\n".join([f"gpus {situation.gpus}", *lines]) + "\n")
        yield {**os.environ, **driver.environment()}


def _commands(port: int, gpus: int | None) -> dict[str, Sequence[str]]:
    """How each of the programs that are here is run at a port."""
    here = f"127.0.0.1:{port}"
    ours = [sys.executable, "-m", "gpunode", "run", f"--web.listen-address={here}"]
    # nvitop-exporter ends where there is no GPU.
    nvitop = _found("nvitop-exporter", BUILT / "nvitop/bin/nvitop-exporter") if gpus != 0 else ""
    node = _found("node_exporter", BUILT / "node_exporter")
    commands = {
        "gpunode": [*ours, "--client.socket=", "--log.level=error"],
        "nvitop-exporter": [nvitop, f"--port={port}"],
        "node_exporter": [node, f"--web.listen-address={here}"],
    }
    return {name: command for name, command in commands.items() if command[0]}


def _found(name: str, built: Path) -> str:
    return str(built) if built.exists() else shutil.which(name) or ""


def _on_disk(name: str) -> str:
    """The size of a program, if it is installed here as people install it."""
    try:
        return f"{_installed(name):.0f} MiB on disk, "
    except (PackageNotFoundError, ValueError):
        return ""


def _installed(name: str) -> float:
    """MiB of a program and of all that it needs but Python and what is of the system."""
    program = Path(_commands(0, None)[name][0])
    if name == "node_exporter":
        return program.stat().st_size / 2**20
    if name == "gpunode":
        files = {file for file in Path(gpunode.__path__[0]).rglob("*") if file.is_file()}
        return sum(file.stat().st_size for file in files | _files(name, "exporter")) / 2**20
    (site,) = program.parent.parent.glob("lib/python*/site-packages")
    files = {file for file in site.rglob("*") if file.is_file()}
    of_pip = {file for file in files if file.relative_to(site).parts[0].startswith("pip")}
    return sum(file.stat().st_size for file in files - of_pip) / 2**20


def _files(name: str, *extras: str, seen: frozenset[str] = frozenset()) -> set[Path]:
    """The files of a library that is installed here, and of those that it requires."""
    found = distribution(name)
    files = {Path(str(found.locate_file(file))) for file in found.files or ()}
    for text in found.requires or ():
        needed, marker = Requirement(text), Requirement(text).marker
        wanted = not marker or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))
        if wanted and needed.name not in seen:
            files |= _files(needed.name, *needed.extras, seen=seen | {name})
    return {file for file in files if file.is_file()}


@contextmanager
def _started(
    name: str, gpus: int | None, environment: Mapping[str, str]
) -> Iterator[tuple[Daemon, str]]:
    """A program, and what it took until its first answer."""
    port = free_port()
    begin = time.monotonic()
    child = subprocess.Popen(
        _commands(port, gpus)[name],
        env=dict(environment),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        running = Daemon(psutil.Process(child.pid), port)
        while not _answers(running):
            if child.poll() is not None or time.monotonic() - begin > TIMEOUT:
                raise RuntimeError(f"{name} does not answer")
            time.sleep(0.02)
        took = time.monotonic() - begin
        yield running, f"after {took:.1f} s, {running.cpu_seconds():.2f} s of CPU"
    finally:
        child.kill()
        child.wait()


def _answers(running: Daemon) -> bool:
    try:
        return running.series() > 0
    except OSError:
        return False
