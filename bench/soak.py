"""A day of a busy node beside a hostile tenant, played: does anything grow, and is anything lost?

``python -m bench.soak HOURS FOLDER HELPERS PID`` steps all sources of this machine through
that much time in one process without a capability, with the fake driver, a kubelet and a RAS
service, and prints a line of JSON each hour. Its helper is then killed and started again. It takes
root.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from bench.report import Report, Result, machine
from gpunode.cli.loader import load
from gpunode.cli.settings.run import RunSettings
from gpunode.driver.vendors import open_drivers
from gpunode.helper import capability
from gpunode.loop import Loop
from gpunode.node.local import LocalNode
from gpunode.node.node import SteppedClock
from gpunode.sources import watch
from tests.export.page.serve import served
from tests.fakes.kubelet import FakeKubelet, kubelet
from tests.fakes.nvml import FakeDriver, build
from tests.helper.helper import helper
from tests.nccl.ras import RasServer, ras_server

HOURS = int(os.environ.get("SOAK_HOURS", "24"))
"""Of the day, as many are played."""

HOUR = 3600.0
TROUBLE = 60.0
"""Seconds between changes of what happens on the node."""

SCRAPE = 15.0
DEADLINE = 10.0
"""Seconds in which a scrape has to be answered, by default; a later one ends the day."""

GPUS = 4
HEALTHY = 0
"""The GPU to which nothing happens but that its driver is reloaded."""

SOMEBODY = 1000
"""The user of a job into which only the helper may look."""

SOMEBODY_ON = 2
"""The GPU on which it always is."""

HELPED = re.compile(r"^gpunode_job_io_bytes_total\{", re.MULTILINE)
"""A series that takes the helper."""

NAME = re.compile(
    rf'^(gpunode_gpu_(?!waited_for|process_utilization)\w+)\{{gpu="{HEALTHY}"', re.MULTILINE
)
"""A series that the healthy GPU always has: not only while others wait for it, or in a read in
which the driver has a sample of a process."""

COUNTED = re.compile(r"^(gpunode_source_\w+_total\S+) (\S+)$", re.MULTILINE)
"""What is counted of a source."""

SETTLED = 30.0
"""Seconds after the start, and after a reload of the driver, within which the healthy GPU must have
all of its series."""

FLOOD = 40
"""Messages of the tenant at once; more would wait for the real time of the socket's thread."""


@dataclass(frozen=True, slots=True)
class Hour:
    """The process after an hour of played time."""

    hour: int
    resident: int
    descriptors: int
    threads: int
    series: int
    scrapes: int
    lost: int
    """Scrapes without a series of the healthy GPU, so far."""

    fell: int
    """Counters of sources that fell from one scrape to the next, so far."""

    helped: int
    """Scrapes of this hour with a series that takes the helper."""

    slowest: float
    """Seconds of the slowest scrape so far, of real time."""


class Trouble:
    """What happens on the node: every minute something else."""

    def __init__(
        self,
        driver: FakeDriver,
        pods: FakeKubelet,
        ras: RasServer,
        client_socket: Path,
        of_somebody: str,
    ) -> None:
        self.driver = driver
        self.pods = pods
        self.ras = ras
        self.client_socket = client_socket
        self.of_somebody = of_somebody
        """The PID of that job's process."""

        self.chance = random.Random(0)
        self.reloaded = 0.0
        self.tenant = subprocess.Popen(["sleep", "infinity"])

    def happen(self, now: float) -> None:
        """The next trouble."""
        minute = round(now / TROUBLE)
        self._churn(minute)
        self._answer(minute)
        self._flood()
        lines = [f"gpus {GPUS - minute % 2}"]
        for gpu in range(GPUS):
            draw = self.chance.choice(("690", "square 690 120 0.1 0.2", "122"))
            lines.append(f"gpu {gpu} power {690 if gpu == HEALTHY else draw}")
            lines.append(f"gpu {gpu} process {self.tenant.pid} 1000000")
            if gpu == SOMEBODY_ON:
                lines.append(f"gpu {gpu} process {self.of_somebody} 1000000")
            lines.append(f"gpu {gpu} gpm 1 {100 if gpu == HEALTHY else self.chance.randrange(101)}")
        if minute % 5 == 0:
            lines.append("gpu 1 lost")
        if minute % 7 == 0:
            lines.append(f"gpu 2 fail nvmlDeviceGetTemperature {self.chance.randrange(1, 30)}")
        if minute % 60 == 59:
            lines.append("system 1")
            self.reloaded = now + TROUBLE
        if minute % 10 == 0:
            self.tenant.kill()
            self.tenant.wait()
            self.tenant = subprocess.Popen(
                ["sleep", "infinity"],
                env={"NCCL_DEBUG_FILE": f"/tmp/{minute}\x1b[31m", "RANK": "0"},
            )
        self.driver.write("\n".join(lines) + "\n")

    def _churn(self, minute: int) -> None:
        """Pods come and go; their names are never the same."""
        self.pods.pods = {
            ("team", f"job-{minute}-{at}", "main"): [("nvidia.com/gpu", f"GPU-{at:08d}")]
            for at in range(self.chance.randrange(40))
        }

    def _answer(self, minute: int) -> None:
        """What a hostile RAS service says."""
        forms = (
            "",
            "[" * 5000,
            json.dumps({"communicators": [{"ranks": [{"rank": 10**400}]}] * 50}),
            "\ud800".encode("utf-8", "replace").decode() * 1000,
            f"NCCL version 2.{minute}.0 " * 2000,
        )
        self.ras.answer = forms[minute % len(forms)]

    def _flood(self) -> None:
        """What a process without a GPU sends."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            for size in range(FLOOD):
                with contextlib.suppress(OSError):  # no room, or not there yet
                    sender.sendto(self.chance.randbytes(100 * size), str(self.client_socket))

    def end(self) -> None:
        """Leave nothing behind."""
        self.tenant.kill()
        self.tenant.wait()


def played(hours: float, folder: Path, helpers: str, of_somebody: str) -> Iterator[Hour]:
    """Play the node's time; the library of the fake driver must be the one to load."""
    driver = FakeDriver(folder)
    clock = SteppedClock(1.8e9)
    with kubelet(folder / "kubelet.sock") as pods, ras_server() as ras:
        os.environ["NCCL_RAS_ADDR"] = f"127.0.0.1:{ras.port}"
        options = [
            f"--client.socket={folder}/client.sock",
            f"--kubernetes.pod-resources-socket={folder}/kubelet.sock",
        ]
        settings = load(RunSettings, "soak", options)
        node = LocalNode(settings.path.rootfs, open_drivers(clock.monotonic, "", ""), helpers)
        node.clock = clock  # type: ignore[assignment]
        trouble = Trouble(driver, pods, ras, folder / "client.sock", of_somebody)
        trouble.happen(0.0)
        try:
            yield from _hours(watch(node, settings), clock, trouble, hours)
        finally:
            trouble.end()


def _hours(loop: Loop, clock: SteppedClock, trouble: Trouble, hours: float) -> Iterator[Hour]:
    process = psutil.Process()
    url = f"{served(loop)}metrics"
    scraped, happened, hour, series, scrapes, lost, fell = 0.0, 0.0, 1, 0, 0, 0, 0
    helped, slowest = 0, 0.0
    names: set[str] = set()
    counted: dict[str, float] = {}
    for now in loop.replay(clock, hours * HOUR):
        if now >= happened + TROUBLE:
            happened += TROUBLE
            trouble.happen(now)
        if now >= scraped + SCRAPE:
            scraped += SCRAPE
            begin = time.monotonic()
            with urllib.request.urlopen(url, timeout=DEADLINE) as answer:
                text = answer.read().decode()
            slowest = max(slowest, time.monotonic() - begin)
            scrapes += 1
            helped += HELPED.search(text) is not None
            series = text.count("\n") - text.count("\n#")
            if not trouble.reloaded - TROUBLE <= now < trouble.reloaded + SETTLED:
                found = set(NAME.findall(text))
                names = names or found
                lost += not names <= found
            before, counted = counted, {name: float(n) for name, n in COUNTED.findall(text)}
            fell += sum(counted.get(name, 0.0) < value for name, value in before.items())
        if now >= hour * HOUR:
            gc.collect()
            resident = process.memory_info().rss
            descriptors, threads = process.num_fds(), process.num_threads()
            counts = series, scrapes, lost, fell, helped
            yield Hour(hour, resident, descriptors, threads, *counts, round(slowest, 3))
            hour, helped = hour + 1, 0


def soak(hours: int = HOURS) -> Report:
    """Play the day in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="g", dir="/tmp") as folder:
        build(Path(folder))
        # As the daemon sets it for itself.
        of_daemon = {**FakeDriver(Path(folder)).environment(), "MALLOC_ARENA_MAX": "1"}
        environment = {**os.environ, **of_daemon}
        command = [sys.executable, "-m", "bench.soak", str(hours), folder]
        every, returned = _beside_a_helper(command, environment, Path(folder))
    first, last = every[0], every[-1]
    without = sum(not one.helped for one in every)
    growth = last.resident / first.resident - 1
    return Report(
        f"{last.hour} hours beside a hostile tenant",
        machine(),
        f"{last.hour} hours of {GPUS} GPUs (fake driver), played. Every minute GPUs vanish, come "
        "back, fall off the bus or fail, all pods are others, and the RAS service of a tenant says "
        "what is no answer, and another sends what is no message; every ten minutes another "
        "process holds the GPUs, and every hour the driver is reloaded, and the helper `files` is "
        "killed and started again. The daemon has no capability. Scraped over HTTP every 15 s.",
        [
            Result(
                "resident memory, last hour against first",
                f"{growth:+.1%}",
                "≤ 5 %",
                growth <= 0.05,
            ),
            Result("resident memory", f"{last.resident / 2**20:.0f} MiB"),
            _flat("descriptors", first.descriptors, last.descriptors),
            _flat("threads", first.threads, last.threads),
            Result("series", f"{first.series} and {last.series}"),
            Result(
                "scrapes without a series of the healthy GPU",
                f"{last.lost} of {last.scrapes}",
                "0",
                not last.lost,
            ),
            Result(
                "slowest scrape, by the clock on the wall",
                f"{last.slowest:.2g} s",
                f"< {DEADLINE:g} s",
                last.slowest < DEADLINE,
            ),
            Result("counters of sources that fell", f"{last.fell}", "0", not last.fell),
            Result(
                "hours, after the helper was killed, without a reading that takes it",
                f"{without} of {len(every)}",
                "0",
                not without,
            ),
            Result("restarts", f"ended by {returned}" if returned else "0", "0", not returned),
        ],
        [
            f"hour {one.hour}: {one.resident / 2**20:.0f} MiB, {one.descriptors} descriptors, "
            f"{one.threads} threads"
            for one in every
        ],
    )


def _beside_a_helper(
    command: Sequence[str], environment: Mapping[str, str], folder: Path
) -> tuple[list[Hour], int]:
    """Run a command that plays hours, and kill the helper after each; its hours, and its end."""
    helpers = folder / "helpers"
    helpers.mkdir(mode=0o755)
    every = []
    with ExitStack() as stack:
        job = stack.enter_context(subprocess.Popen(["sleep", "infinity"], user=SOMEBODY))
        stack.callback(job.kill)
        more = [str(helpers), str(job.pid)]
        running = stack.enter_context(
            subprocess.Popen([*command, *more], env=environment, stdout=subprocess.PIPE, text=True)
        )
        assert running.stdout is not None
        ends = False
        while not ends:
            with helper("files", helpers):
                line = running.stdout.readline()
                ends = not line
                every += [Hour(**json.loads(line))] if line else []
    return every, running.returncode


def _flat(what: str, first: int, last: int) -> Result:
    return Result(f"{what}, first and last hour", f"{first} and {last}", "the same", last <= first)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    capability.keep(())
    for reached in played(float(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]):
        print(json.dumps(asdict(reached)), flush=True)
