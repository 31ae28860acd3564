"""What open pages cost the daemon: ten tabs of a real browser over a large node."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright
from pydantic import BaseModel

from bench.node_tree import GPUS
from bench.offline import ACCEPT, large_node, watching
from bench.report import Report, Result, machine
from gpunode.export.web.api import history
from gpunode.export.web.node import node
from gpunode.export.web.prepared import PreparedAnswer
from gpunode.incidents.history import History, Ring
from gpunode.loop import Loop
from tests.daemon import SETTLE, Daemon
from tests.export.page import scenes
from tests.needs import find

PAGES = 10
MEASURED = 40.0
"""Seconds over which CPU time is taken, with and without pages."""

MIB = 1 << 20


def page() -> Report:
    """CPU time, memory and scrapes with ten open pages, against none; and the kept hour."""
    with (
        large_node() as (root, environment),
        watching(root, environment) as alone,
        watching(root, environment) as with_one,
        watching(root, environment) as with_many,
        _open_pages((with_one, 1), (with_many, PAGES)),
    ):
        time.sleep(SETTLE)
        base, one, many = _cpu([alone, with_one, with_many])
        one, many = one - base, (many - base) / PAGES
        (half, alone_p99), (many_half, p99) = _percentiles([alone, with_many])
        alone_rss, rss = _rss(alone), _rss(with_many)
        answer = len(alone.get("/api/v1/node"))
    loop = scenes.hang(before=3000.0, after=700.0).stage.loop
    kept = _history_bytes(loop)
    now, hour = _answer_time(lambda: node(loop)), _answer_time(lambda: history(loop))
    return Report(
        "The node page",
        machine(),
        f"Three daemons at the same time over the large node above, looked at for {MEASURED:g} s "
        f"by no tab, one and {PAGES} tabs of Chromium on the same machine, and scraped in turn. "
        f"The hour is that of {GPUS} GPUs.",
        [
            Result("CPU, one page alone", f"{one:.3%}", "≤ 0.1 % of a core", one <= 0.001),
            Result("CPU, each of ten pages", f"{many:.3%}", "≤ 0.1 % of a core", many <= 0.001),
            Result(
                "/metrics median, no page and ten pages",
                f"{half:.1f} ms and {many_half:.1f} ms",
                "≤ a tenth longer",
                many_half <= 1.1 * half,
            ),
            Result(
                "/metrics p99, no page and ten pages",
                f"{alone_p99:.1f} ms and {p99:.1f} ms",
                "≤ 15 ms, or a quarter longer",
                p99 <= max(15, 1.25 * alone_p99),
            ),
            Result(
                "resident memory, no page", f"{alone_rss:.0f} MiB", "≤ 120 MiB", alone_rss <= 120
            ),
            Result("resident memory, ten pages", f"{rss:.0f} MiB", "≤ 120 MiB", rss <= 120),
            Result("CPU to make /api/v1/node", f"{now:.1f} ms", "≤ 5 ms", now <= 5),
            Result("CPU to make /api/v1/history, whole", f"{hour:.1f} ms", "≤ 15 ms", hour <= 15),
            Result("the last hour", f"{kept / MIB:.2f} MiB", "≤ 2 MiB", kept <= 2 * MIB),
            Result("/api/v1/node", f"{answer / 1024:.0f} KiB before compression"),
        ],
        [f"load average meanwhile: {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores"],
    )


@contextmanager
def _open_pages(*tabs: tuple[Daemon, int]) -> Iterator[None]:
    """So many tabs that show the node of each daemon, in a browser that yields to the daemons."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        polite = Path(folder) / "chromium"
        polite.write_text(f'#!/bin/sh\nexec nice -n 39 {find("chromium")} "$@"\n')
        polite.chmod(0o755)
        browser = playwright.chromium.launch(executable_path=polite, args=["--no-sandbox"])
        for watched, count in tabs:
            for _ in range(count):
                tab = browser.new_page()
                tab.goto(f"http://127.0.0.1:{watched.port}/")
                tab.wait_for_selector(".gpu")
        yield
        browser.close()


def _percentiles(daemons: Sequence[Daemon]) -> list[tuple[float, float]]:
    """Milliseconds within which half and 99 of 100 scrapes of each were answered, in turn."""
    taken: list[list[float]] = [[] for _ in daemons]
    for _ in range(600):
        time.sleep(0.03)
        for watched, of_it in zip(daemons, taken, strict=True):
            begin = time.perf_counter()
            watched.get("/metrics", ACCEPT)
            of_it.append(time.perf_counter() - begin)
    ordered = [sorted(of_it) for of_it in taken]
    return [(of_it[299] * 1e3, of_it[593] * 1e3) for of_it in ordered]


def _cpu(daemons: Sequence[Daemon]) -> list[float]:
    """Share of a core that the thread uses which answers requests; the others read sources."""

    def used() -> list[int]:
        # https://docs.kernel.org/scheduler/sched-stats.html#proc-pid-schedstat
        pids = [watched.process.pid for watched in daemons]
        files = [Path(f"/proc/{pid}/task/{pid}/schedstat") for pid in pids]
        return [int(file.read_text().split()[0]) for file in files]

    before, begin = used(), time.monotonic()
    time.sleep(MEASURED)
    seconds = time.monotonic() - begin
    return [(now - then) / 1e9 / seconds for then, now in zip(before, used(), strict=True)]


def _rss(watched: Daemon) -> float:
    return float(watched.process.memory_info().rss / MIB)


def _history_bytes(loop: Loop) -> int:
    """Bytes of what is kept of an hour."""
    (kept,) = (told.detail for told in loop.details(History))
    return sum(map(_size, kept.rings.values())) + sys.getsizeof(kept.times)


def _answer_time(make: Callable[[], BaseModel]) -> float:
    """Milliseconds of CPU time to make an answer and compress it: a scrape may wait for it."""
    begin = time.process_time()
    for _ in range(20):
        PreparedAnswer(make().model_dump_json().encode(), "application/json")
    return (time.process_time() - begin) / 20 * 1e3


def _size(ring: Ring) -> int:
    columns = (*ring.shares, ring.power, ring.memory, ring.causes, ring.ledger)
    return sum(map(sys.getsizeof, columns)) + sys.getsizeof(ring)
