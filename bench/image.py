"""The image: how large it is, how soon it is ready, and what it takes of a node's memory."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from bench.report import Report, Result, machine
from tests.docker import container
from tests.fakes.kubelet import kubelet
from tests.fakes.nvml import FakeDriver, build

STARTS = 5
SETTLE = 3600.0
"""Seconds until memory is looked at; everything was read several times by then."""

MIB = 1 << 20


def image() -> Report:
    """The image as the tests build it, in a container with no right that a pod may be without."""
    with container.image() as built:
        folder = built.root.parent
        build(folder / "driver")
        driver = FakeDriver(folder / "driver")
        driver.write("gpus 8\n")
        sockets = folder / "pod-resources"
        ready = []
        with kubelet(sockets / "kubelet.sock"):
            (sockets / "kubelet.sock").chmod(0o666)
            for start in range(STARTS):
                begin = time.monotonic()
                with container.container(built, driver, sockets) as running:
                    ready.append(time.monotonic() - begin)
                    if start == STARTS - 1:
                        time.sleep(SETTLE)
                        series = running.series()
                        resident = running.process.memory_info().rss / MIB
        size, ours = _size(built.root), _size(built.root / "opt")
    taken = statistics.median(ready)
    compressed = built.compressed / 1e6
    return Report(
        "The image",
        machine(),
        "Built from Debian's packages, without a shell, as the tests do; eight GPUs "
        "(fake driver), a kubelet, user 65534 without a capability, Python 3.13. Median of "
        f"{STARTS} starts; memory after {SETTLE:g} s.",
        [
            Result("compressed", f"{compressed:.0f} MB", "< 80 MB", compressed < 80),
            Result("unpacked", f"{size:.0f} MiB, of which gpunode and libraries {ours:.0f}"),
            Result("from the start to /readyz", f"{taken:.1f} s", "≤ 3 s", taken <= 3),
            Result("resident memory", f"{resident:.0f} MiB", "≤ 80 MiB", resident <= 80),
            Result("series", str(series)),
        ],
        [],
    )


def _size(folder: Path) -> float:
    """MiB of all files in a folder."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files) / MIB
