"""The processes of the workloads: started, told what to do, listened to, and ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.truth.kernels import STATES, Trace
from bench.truth.watched import GpuObservation
from bench.truth.workloads import Workload
from tests.daemon import free_port

QUIETLY = {
    "OMP_NUM_THREADS": "4",
    "TRANSFORMERS_VERBOSITY": "error",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
"""For every rank: as launchers set it, and without warnings."""

RANK = ("-m", "bench.truth.rank")
STEPS = 512
"""Bytes of the file in which the ranks agree when to end."""

ROOT = Path(__file__).parents[2]


@dataclass(slots=True)
class Process:
    """A rank on a GPU, and what it has said: when, and a word."""

    child: subprocess.Popen[str]
    gpu: int
    rank: int
    folder: Path
    heard: list[tuple[float, str]] = field(default_factory=list)
    listener: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def order(self, word: str) -> None:
        """Send a line; the rank may have ended."""
        assert self.child.stdin is not None
        with suppress(OSError, ValueError):
            self.child.stdin.write(word + "\n")
            self.child.stdin.flush()

    def _listen(self) -> None:
        """Keep what it says until it ends; what its libraries print is not JSON."""
        assert self.child.stdout is not None
        with self.child.stdout as lines:
            for line in lines:
                with suppress(ValueError, TypeError):
                    at, word = json.loads(line)
                    self.heard.append((at, word))

    def has_said(self, word: str) -> bool:
        return any(word == said for _, said in self.heard)

    @property
    def state(self) -> tuple[float, str] | None:
        """Since when its GPU is in which state, if it has said so."""
        return next((said for said in reversed(self.heard) if said[1] in STATES), None)

    @property
    def trace(self) -> Trace:
        """What it ran, once it has said that this is traced."""
        return Trace.load(self.folder / f"trace.{self.child.pid}.npz")

    @property
    def ended(self) -> bool:
        return self.child.poll() is not None

    def ended_without(self, word: str) -> bool:
        """Whether it has ended and not said this."""
        if self.ended:
            self.listener.join(1.0)  # its last word may still be on its way
        return self.ended and not self.has_said(word)

    @property
    def last_words(self) -> str:
        """Why it ended: the last error on its standard error, or its exit status."""
        said = (self.folder / f"errors.{self.rank}").read_text(errors="replace")
        errors = re.findall(r"^(?:\[rank\d+\]: )?(\S*(?:Error|Exception)\b.*)$", said, re.MULTILINE)
        return errors[-1] if errors else f"exit status {self.child.poll()}"

    def end(self) -> None:
        """Kill it with all its children, also where it is stopped or waits in vfork."""
        with suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()
        self.listener.join(1.0)
        assert self.child.stdin is not None
        with suppress(OSError):
            self.child.stdin.close()


@dataclass(slots=True)
class Placement:
    """A workload on the GPUs from one on: its processes, and what is seen of each GPU."""

    workload: Workload
    seen: list[GpuObservation]
    processes: list[Process] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return any(one.failed for one in self.seen)

    def order(self, word: str) -> None:
        for process in self.processes:
            process.order(word)

    def wait_for(self, word: str, until: float) -> None:
        """Until all ranks have said this; one that ends or takes too long fails the workload."""
        while not self.failed:
            silent = [process for process in self.processes if not process.has_said(word)]
            if not silent:
                return
            ended = [process for process in silent if process.ended_without(word)]
            if ended:
                self.fail(f"rank {ended[0].rank} ended: {ended[0].last_words}")
            elif time.monotonic() > until:
                self.fail(f"rank {silent[0].rank} was not {word} in time")
            time.sleep(0.02)

    def fail(self, why: str) -> None:
        """Give it up, and free its GPUs for what runs beside it."""
        for one in self.seen:
            one.failed = why
        self.end()

    def end(self) -> None:
        for process in self.processes:
            process.end()


def groups(workloads: Sequence[Workload], gpus: int) -> list[list[tuple[Workload, int]]]:
    """Which of them run at the same time and from which GPU on; those of one GPU, side by side."""
    small = [workload for workload in workloads if workload.gpus == 1 <= gpus]
    large = [[(workload, 0)] for workload in workloads if 1 < workload.gpus <= gpus]
    rows = [small[at : at + gpus] for at in range(0, len(small), max(1, gpus))]
    return large + [[(workload, gpu) for gpu, workload in enumerate(row)] for row in rows]


def launched(
    plan: Sequence[list[tuple[Workload, int]]], module: Sequence[str] | None = None
) -> Generator[list[Placement], None, None]:
    """The processes of each group, which load while the group before runs.

    They have not touched a GPU yet, and end when the next group is asked for.
    """
    with ExitStack() as following:
        group: list[Placement] = []
        for rows in [*plan, []]:
            with following.pop_all():
                current, group = group, following.enter_context(_side_by_side(rows, module))
                if current:
                    yield current


@contextmanager
def _side_by_side(
    rows: Sequence[tuple[Workload, int]], module: Sequence[str] | None
) -> Iterator[list[Placement]]:
    """The processes of one group."""
    with tempfile.TemporaryDirectory(prefix="truth.") as folder, ExitStack() as stack:
        group = []
        for number, (workload, first) in enumerate(rows):
            seen = [GpuObservation(workload, first + rank, rank) for rank in range(workload.gpus)]
            each = Placement(workload, seen)
            stack.callback(each.end)
            launch(each, Path(folder) / str(number), module)
            group.append(each)
        yield group


def launch(each: Placement, folder: Path, module: Sequence[str] | None = None) -> None:
    """Start the processes of a workload, by default as ``RANK``."""
    workload = each.workload
    port = free_port()
    for copy in range(workload.copies):
        own = folder / str(copy)
        own.mkdir(parents=True)
        shared = own / "steps"
        shared.write_bytes(bytes(STEPS))
        for one in each.seen:
            environment = {**os.environ, **QUIETLY, **workload.environment}
            if workload.gpus > 1:
                environment |= {
                    "RANK": str(one.rank),
                    "LOCAL_RANK": str(one.rank),
                    "WORLD_SIZE": str(workload.gpus),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                }
            arguments = (workload.program, str(one.gpu), str(workload.copies), str(shared))
            with (own / f"errors.{one.rank}").open("w") as errors:
                child = subprocess.Popen(
                    [sys.executable, *(module or RANK), *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    cwd=ROOT,
                    env=environment,
                    start_new_session=True,
                )
            each.processes.append(Process(child, one.gpu, one.rank, own))
