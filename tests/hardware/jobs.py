"""Jobs on real GPUs for the daemon to report: an NCCL job that hangs, and a training loop."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpunode.node.local import LocalNode
from tests.daemon import Daemon, daemon, free_port

HERE = Path(__file__).parent
STEPS = 3000
"""Steps of training: about ten seconds; MFU is read after seven."""

RAS = "CLIENT PROTOCOL 2\nTIMEOUT 3\n{}VERBOSE STATUS\n"


def series(running: Daemon, name: str) -> str | None:
    """The first series whose name begins so, with its value."""
    text = running.get("/metrics").decode()
    return next((line for line in text.splitlines() if line.startswith(name)), None)


def value(running: Daemon, name: str) -> float | None:
    """The value of the first series whose name begins so."""
    found = series(running, name)
    return None if found is None else float(found.rpartition(" ")[2])


@dataclass(frozen=True, slots=True)
class Hang:
    """A job whose last rank has stopped joining."""

    pids: list[int]
    """Process IDs by rank."""

    since: float
    """When the last rank stopped, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class HangReport:
    """What the daemon reported about a job that hangs."""

    seconds: float
    """Seconds from the stop until a rank was named."""

    awaited: str
    channels: str | None
    verdict: str
    ras: dict[str, str]
    """What NCCL's RAS service answered, by format."""


@contextmanager
def hanging(ranks: int, logs: Path) -> Iterator[Hang]:
    """An NCCL job on as many GPUs that runs for 15 s, and then waits for its last rank."""
    environment = {
        **os.environ,
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_FILE": f"{logs}/nccl.%h.%p.log",
    }
    with ExitStack() as stack:
        started = [
            subprocess.Popen(
                [sys.executable, str(HERE / "nccl_rank.py"), "15"],
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        for process in started:
            stack.enter_context(process)
            stack.callback(process.kill)
        stdout = started[-1].stdout
        assert stdout is not None
        since = float(stdout.readline().split()[1])
        yield Hang([process.pid for process in started], since)


def named(running: Daemon, job: Hang) -> HangReport:
    """Wait until the daemon names the rank. Raises ``TimeoutError`` after a minute."""
    channels = series(running, "gpunode_nccl_channels")
    while (awaited := series(running, "gpunode_nccl_awaited_rank_info")) is None:
        if time.time() > job.since + 60:
            raise TimeoutError(running.get("/metrics").decode())
        time.sleep(0.2)
    took = time.time() - job.since
    node = LocalNode(Path("/"))
    formats = {"json": "SET FORMAT json\n", "text": ""}
    return HangReport(
        took,
        awaited,
        channels,
        running.get("/api/v1/verdict").decode(),
        {
            form: node.ask(job.pids[0], "localhost:28028", RAS.format(how))
            for form, how in formats.items()
        },
    )


@dataclass(frozen=True, slots=True)
class Training:
    """The time of training loops with and without the client, and what the daemon reported."""

    alone: list[float]
    """Median seconds of a step, by run."""

    told: list[float]
    by_hand: float
    """MFU from the step time that the loop measured itself."""
    mfu: float
    steps: float
    reserved: float


@contextmanager
def trainer(how: str, socket: Path) -> Iterator[subprocess.Popen[str]]:
    """The training loop: it prints a line when it begins and one when it has ended."""
    environment = {
        **os.environ,
        "GPUNODE_CLIENT_SOCKET": str(socket),
        "PYTHONPATH": f"{HERE.parents[1] / 'exporter'}:{os.environ.get('PYTHONPATH', '')}",
    }
    command = [sys.executable, str(HERE / "cuda_trainer.py"), str(STEPS), how]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def training(folder: Path, runs: int = 2) -> Training:
    """Train on GPU 0, in turn without and with the client."""
    socket = folder / "c.sock"
    medians: dict[str, list[float]] = {"alone": [], "told": []}
    said: dict[str, float | None] = {}
    with daemon("--log.level=error", f"--client.socket={socket}") as running:
        for how in ("alone", "told") * runs:
            with trainer(how, socket) as process:
                assert process.stdout is not None
                process.stdout.readline()
                time.sleep(7.0)
                said["mfu"] = value(running, "gpunode_training_mfu_ratio")
                loop = json.loads(process.stdout.readline())
                medians[how].append(statistics.median(loop["steps"][STEPS // 10 :]))
                time.sleep(4.0)  # what was told last is sent within a second, and exported
                for name in ("training_step_seconds_count", "torch_memory_reserved_bytes"):
                    said[name] = value(running, f"gpunode_{name}")
                peak = value(running, 'gpunode_gpu_peak_flops_per_second{gpu="0",precision="half"')
    missing = [name for name, found in said.items() if found is None]
    if missing or peak is None:
        raise LookupError(f"not told: {missing or 'peak'}")
    mfu, steps, reserved = (found or 0.0 for found in said.values())
    by_hand = loop["flops"] / medians["told"][-1] / peak
    return Training(medians["alone"], medians["told"], by_hand, mfu, steps, reserved)
