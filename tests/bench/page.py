"""What open pages cost the daemon: ten tabs of a real browser over a large node."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright

from gpunode.export.history import History, Ring
from tests.bench.node_tree import GPUS, NodeTree
from tests.bench.offline import SETTLE, busy, percentile
from tests.bench.report import Report, Result, machine
from tests.daemon import Daemon, daemon
from tests.fakes.nvml import FakeDriver, build
from tests.needs import find
from tests.page import scenes

PAGES = 10
MEASURED = 60.0
"""Seconds over which CPU time is taken, with and without pages."""

MIB = 1 << 20


def page() -> Report:
    """CPU time, memory and scrapes with ten open pages, against none; and the kept hour."""
    with tempfile.TemporaryDirectory() as folder:
        tree = NodeTree(Path(folder) / "node")
        tree.build()
        build(Path(folder))
        driver = FakeDriver(Path(folder))
        pids = {gpu: tree.main_process(gpu) for gpu in range(GPUS)}
        driver.write("\n".join(["gpus 8", *busy(pids)]) + "\n")
        options = ["--log.level=error", f"--path.rootfs={tree.root}"]
        environment = {**os.environ, **driver.environment()}
        with tree.running(), daemon(*options, environment=environment) as watched:
            percentile(watched)  # memory of encoding, once
            time.sleep(SETTLE)
            alone = _cpu(watched)
            alone_p99, alone_rss = percentile(watched), _rss(watched)
            with _open_pages(f"http://127.0.0.1:{watched.port}/", 1):
                one = _cpu(watched) - alone
            with _open_pages(f"http://127.0.0.1:{watched.port}/", PAGES):
                many = (_cpu(watched) - alone) / PAGES
                p99, rss = percentile(watched), _rss(watched)
            answer = len(watched.get("/api/v1/node"))
    kept = _kept()
    return Report(
        "The node page",
        machine(),
        f"The large node above, looked at by {PAGES} tabs of Chromium for {MEASURED:g} s; the "
        f"page asks every five seconds. The hour is that of {GPUS} GPUs.",
        [
            Result("CPU, one page alone", f"{one:.3%}", "≤ 0.1 % of a core", one <= 0.001),
            Result("CPU, each of ten pages", f"{many:.3%}", "≤ 0.1 % of a core", many <= 0.001),
            Result("/metrics p99, no page", f"{alone_p99:.1f} ms", "≤ 15 ms", alone_p99 <= 15),
            Result("/metrics p99, ten pages", f"{p99:.1f} ms", "≤ 15 ms", p99 <= 15),
            Result(
                "resident memory, no page", f"{alone_rss:.0f} MiB", "≤ 120 MiB", alone_rss <= 120
            ),
            Result("resident memory, ten pages", f"{rss:.0f} MiB", "≤ 120 MiB", rss <= 120),
            Result("the last hour", f"{kept / MIB:.2f} MiB", "≤ 2 MiB", kept <= 2 * MIB),
            Result("/api/v1/node", f"{answer / 1024:.0f} KiB before compression", "", True),
        ],
        [],
    )


@contextmanager
def _open_pages(url: str, count: int) -> Iterator[None]:
    """Tabs that show the node."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find("chromium"), args=["--no-sandbox"]
        )
        for _ in range(count):
            tab = browser.new_page()
            tab.goto(url)
            tab.wait_for_selector(".gpu")
        yield
        browser.close()


def _cpu(watched: Daemon) -> float:
    """Share of a core that the daemon uses."""
    before, begin = watched.cpu_seconds(), time.monotonic()
    time.sleep(MEASURED)
    return (watched.cpu_seconds() - before) / (time.monotonic() - begin)


def _rss(watched: Daemon) -> float:
    return float(watched.process.memory_info().rss / MIB)


def _kept() -> int:
    """Bytes of what is kept of an hour."""
    loop = scenes.at_work(GPUS).play(3700).stage.loop
    (history,) = (told.detail for told in loop.details(History))
    return sum(map(_size, history.rings.values())) + sys.getsizeof(history.times)


def _size(ring: Ring) -> int:
    columns = (*ring.shares, ring.power, ring.memory, ring.causes, ring.ledger)
    return sum(map(sys.getsizeof, columns)) + sys.getsizeof(ring)
