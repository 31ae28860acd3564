"""What it costs to read through a helper: CPU of each read at both ends, memory, and the start."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from bench.report import Report, Result, machine
from tests.helper.helper import BECOME, helper

NOBODY = 65534
TIMES = 2000
STARTS = 5
MIB = 1 << 20

ASKS = """
import time
node, pid, times = LocalNode(Path("/"), (), sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
for ask in (
    lambda: node.read_text(f"/proc/{pid}/io"),
    lambda: node.environment(pid),
    lambda: node.filesystem(f"/proc/{pid}/root/dev/shm"),
):
    ask()
    before, begin = node.helpers().get("files", 0.0), time.process_time()
    for _ in range(times):
        ask()
    own = time.process_time() - begin
    print(own / times, (node.helpers().get("files", 0.0) - before) / times)
"""
WHAT = ("I/O", "environment", "/dev/shm")


def read_costs(user: int, folder: str, pid: int) -> list[tuple[float, float]]:
    """CPU seconds of each kind of read, of who reads and of the helper."""
    command = [sys.executable, "-W", "ignore", "-c", BECOME + ASKS, str(user)]
    arguments = [folder, str(pid), str(TIMES)]
    ran = subprocess.run([*command, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    rows = (line.split() for line in ran.stdout.splitlines())
    return [(float(own), float(of_helper)) for own, of_helper in rows]


def helpers() -> Report:
    """As root: reads of another user's process, by root itself and by nobody through a helper."""
    cpu, resident = [], []
    job = subprocess.Popen(["sleep", "3600"], user=1000, group=1000, env={"RANK": "3"})
    try:
        with tempfile.TemporaryDirectory(prefix="gpunode-") as name:
            Path(name).chmod(0o755)
            for start in range(STARTS):
                with helper("files", Path(name), f"--user={NOBODY}") as child:
                    one = psutil.Process(child.pid)
                    cpu.append(sum(one.cpu_times()[:2]))
                    if start == STARTS - 1:
                        through = read_costs(NOBODY, name, job.pid)
                        memory = one.memory_full_info()
                        resident = [memory.rss / MIB, memory.uss / MIB]
        alone = read_costs(0, "", job.pid)
    finally:
        job.kill()
        job.wait()
    rows = [
        Result(
            f"a read of {what}: by root itself; through a helper, daemon and helper",
            f"{by_root[0] * 1e6:.0f} µs; {own * 1e6:.0f} and {of_helper * 1e6:.0f} µs",
            "together < 1 ms" if what != "/dev/shm" else "",
            own + of_helper < 1e-3 or what == "/dev/shm",
        )
        for what, by_root, (own, of_helper) in zip(WHAT, alone, through, strict=True)
    ]
    rows.append(
        Result(
            "memory of a helper: resident, of which its own",
            f"{resident[0]:.0f} and {resident[1]:.0f} MiB",
            "≤ 20 MiB",
            resident[0] <= 20,
        )
    )
    began = statistics.median(cpu)
    rows.append(Result("CPU of its start", f"{began:.2f} s", "≤ 0.5 s", began <= 0.5))
    return Report(
        "Helpers",
        machine(),
        f"CPU time of {TIMES} reads of a process of another user, one after the other: by root "
        f"without a helper, and by user {NOBODY} through `gpunode helper files`. "
        f"Median of {STARTS} starts. The load was {os.getloadavg()[0]:.0f}.",
        rows,
        [],
    )
