"""The hours before a Prometheus began: what it has now, as if it had been so for a while.

Counters grow to what they are; gauges stay. Written as blocks, which Prometheus takes up.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.prometheus.programs import need

STEP = 240
"""Seconds between two samples: as far apart as a graph of six hours may skip none."""

TAKEN_UP_WITHIN = 300.0
"""Prometheus looks for new blocks once a minute."""

GROWS = ("_total", "_count", "_sum", "_bucket")


def lived_before(prometheus: str, folder: Path, seconds: float, selectors: Iterable[str]) -> None:
    """Write what these selectors find now as the past of so many seconds, and wait for it."""
    now = int(time.time())
    times = range(now - int(seconds) - STEP, now - 60, STEP)
    path = folder / "before"
    with path.open("w") as file:
        for selector in selectors:
            found = list(_series(prometheus, selector))
            if found:
                name = found[0][0]["__name__"]
                file.write(f"# TYPE {name} gauge\n")
                for labels, value in found:
                    file.writelines(_samples(labels, value, times))
        file.write("# EOF\n")
    backfill = [need("promtool"), "tsdb", "create-blocks-from", "openmetrics", "--quiet"]
    command = [*backfill, "--max-block-duration=24h", str(path), str(folder / "tsdb")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    path.unlink()
    give_up = time.monotonic() + TAKEN_UP_WITHIN
    while not _query(prometheus, "count(gpunode_gpu_info)", now - seconds / 2):
        if time.monotonic() > give_up:
            raise TimeoutError("Prometheus did not take up the past")
        time.sleep(2.0)


def _samples(labels: Mapping[str, str], value: float, times: range) -> Iterator[str]:
    """The lines of a series."""
    name = labels["__name__"]
    of = ",".join(f"{k}={json.dumps(v)}" for k, v in labels.items() if k != "__name__")
    for at in times:
        part = 0.5 + 0.5 * (at - times.start) / (times.stop - times.start)
        yield f"{name}{{{of}}} {value * part if name.endswith(GROWS) else value} {at}\n"


def _series(prometheus: str, selector: str) -> Iterator[tuple[dict[str, str], float]]:
    for one in _query(prometheus, selector, time.time()):
        yield one["metric"], float(one["value"][1])


def _query(prometheus: str, expression: str, at: float) -> list[dict[str, Any]]:
    query = urllib.parse.urlencode({"query": expression, "time": at}).encode()
    with urllib.request.urlopen(f"{prometheus}/api/v1/query", query, timeout=120) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return found
