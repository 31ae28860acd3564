"""What it costs to know who holds the GPUs: CPU of each source that asks for processes.

It reads nothing but ``gpunode.sources.finders``, so it can be copied into an older checkout and run
there: ``PYTHONPATH=exporter:. python bench/census.py [SECONDS]`` prints a table.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.report import Report, Result, machine
from tests.fakes.nvml import FakeDriver, build

SOURCES = (
    "gpu_activity",
    "gpu_owners",
    "process_roles",
    "job_processes",
    "nccl_log",
    "nccl_ras",
    "training_steps",
    "pods",
    "audit",
)
FAKE_GPUS = 2
FAKE_TIMES = 60
"""How many times the time is measured where it is stepped."""

THREADS = 100
"""Threads of each process; one that trains with PyTorch has as many and more."""

SETTLE = 20.0
"""Seconds after which processes are known, and looked at less."""

HOLDER = f"""
import ctypes, threading, time
for _ in range({THREADS}):
    threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
try:
    cuda, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
    assert cuda.cuInit(0) == cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
except OSError:
    pass  # the driver is the fake one
print("ready", flush=True)
time.sleep(1e6)
"""
"""Holds the first GPU that it sees, and waits."""


def measure(seconds: float, *, stepped: bool) -> dict[str, tuple[int, float]]:
    """The reads of each source in so many seconds, and their CPU seconds with all threads.

    Where time is stepped, none passes between two reads.
    """
    from gpunode.config.daemon import ClientSettings, Settings
    from gpunode.driver.vendors import open_drivers
    from gpunode.node.local import LocalNode
    from gpunode.node.node import SteppedClock
    from gpunode.source import FAILURES, Absent
    from gpunode.sources import finders

    clock = SteppedClock(time.time())
    node = LocalNode(Path("/"), open_drivers(clock.monotonic if stepped else time.monotonic))
    if stepped:
        node.clock = clock  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(client=ClientSettings(socket=f"{folder}/client.sock"))
        sources = []
        for finder in finders(node, settings):
            with contextlib.suppress(Absent):
                sources += [source for _, source in finder.find() if source.name in SOURCES]
        begin = node.clock.monotonic()
        due = [(begin + place / len(sources), place) for place in range(len(sources))]
        used: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
        while due[0][0] < begin + SETTLE + seconds:
            when, place = heapq.heappop(due)
            if stepped:
                clock.now = when
            else:
                time.sleep(max(0.0, when - time.monotonic()))
            source, cpu = sources[place], time.process_time()
            with contextlib.suppress(*FAILURES):
                source.read()
            if when >= begin + SETTLE:
                reads, before = used[source.name]
                used[source.name] = reads + 1, before + time.process_time() - cpu
            heapq.heappush(due, (when + source.every, place))
    return dict(used)


def _real_gpus() -> int:
    """How many GPUs the machine's own driver has."""
    with contextlib.suppress(OSError):
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
        return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    return 0


@contextmanager
def held_gpus(folder: Path) -> Iterator[tuple[int, bool, dict[str, str]]]:
    """GPUs that a process holds each: their number, whether they are fake, and how to see them."""
    real = _real_gpus()
    count = real or FAKE_GPUS
    with ExitStack() as stack:
        pids = {}
        for gpu in range(count):
            environment = {
                **os.environ,
                "CUDA_VISIBLE_DEVICES": str(gpu),
                "WORLD_SIZE": str(count),
                "RANK": str(gpu),
                "NCCL_DEBUG_FILE": f"{folder}/nccl.%h.%p.log",
            }
            command = [sys.executable, "-c", HOLDER]
            child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            stack.enter_context(child)
            stack.callback(child.kill)
            assert child.stdout is not None
            child.stdout.readline()
            (folder / f"nccl.{os.uname().nodename.partition('.')[0]}.{child.pid}.log").touch()
            pids[gpu] = child.pid
        if real:
            yield count, False, dict(os.environ)
            return
        build(folder)
        driver = FakeDriver(folder)
        lines = [f"gpu {gpu} process {pid} 1000000000" for gpu, pid in pids.items()]
        driver.write("\n".join([f"gpus {count}", *lines]) + "\n")
        yield count, True, {**os.environ, **driver.environment()}


def census(seconds: float = 60.0) -> Report:
    """CPU of each source that asks for processes, by minute."""
    with tempfile.TemporaryDirectory() as folder, held_gpus(Path(folder)) as (count, fake, seen):
        seconds = seconds * FAKE_TIMES if fake else seconds
        how = ["stepped"] if fake else []
        command = [sys.executable, "-m", "bench.census", "--measure", str(seconds), *how]
        answer = subprocess.run(command, env=seen, capture_output=True, text=True, check=True)
    used = {name: (reads, cpu * 60 / seconds) for name, (reads, cpu) in json.loads(answer.stdout)}
    stepped = " of stepped time" if fake else ""
    total = sum(cpu for _, cpu in used.values()) * 1e3
    return Report(
        f"Who holds the GPUs, {count} GPUs" + (" of the fake driver" if fake else ""),
        machine(),
        f"CPU time of the sources that ask for processes, over {seconds:g} s{stepped}, "
        f"at the default settings; a process with {THREADS} threads holds each GPU.",
        [Result("CPU a minute", f"{total:.0f} ms")],
        [
            f"{name}: {reads} reads, {cpu * 1e3:.1f} ms a minute"
            for name, (reads, cpu) in sorted(used.items())
        ],
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(list(measure(float(sys.argv[2]), stepped=len(sys.argv) > 3).items())))
    else:
        census(*map(float, sys.argv[1:])).print()
