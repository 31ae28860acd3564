"""``gpunode nccl-bench``: the bandwidth on a node and between nodes, and what is slow."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpunode.cli import streams
from gpunode.cli.console import PipedConsole
from gpunode.cli.daemon_files import keep
from gpunode.cli.extras import needing
from gpunode.cli.settings.nccl_bench import NcclBenchSettings
from gpunode.cli.this_node import WAKE_TIMEOUT, local_node, whole_gpus
from gpunode.mistake import UsageError
from gpunode.nccl.bench import BANDWIDTH_LOW, GB, Measurement
from gpunode.nccl.fabric import MAX_NAME, FabricRun, parse, problems
from gpunode.nccl.launch import expand, run_hosts
from gpunode.nccl.run import BenchError, measure
from gpunode.text import json_for_terminal, printable

log = logging.getLogger(__name__)


MAX_RESULT_BYTES = 256 << 20
"""The most bytes of a result that are read: four million exchanges."""

MAX_PROBLEMS = 20
"""Problems in the terminal."""


def nccl_bench(settings: NcclBenchSettings) -> None:
    """Measure a collective, print the result, and save it for the daemon."""
    if settings.hosts or settings.result:
        between_nodes(
            settings, lambda: len(whole_gpus(local_node(settings.path, patience=WAKE_TIMEOUT))[0])
        )
        return
    try:
        gpus, why = whole_gpus(local_node(settings.path, patience=WAKE_TIMEOUT))
        if not gpus:
            raise BenchError(why or "the driver lists no GPU")
        count = settings.gpus or len(gpus)
        bandwidth = measure(settings.collective, count, settings.largest)
    except BenchError as error:
        raise UsageError(str(error)) from error
    model = gpus[0].identity.name
    done = Measurement(settings.collective, count, model, time.time(), bandwidth)
    folder = Path(f"{settings.path.rootfs}/{settings.host.nccl_bench_folder}")
    try:
        keep(folder / f"{settings.collective}.json", json.dumps(asdict(done)))
    except OSError as error:
        log.warning("%s: cannot save the result for the metrics: %s", folder, error.strerror)
    with streams.printing():
        if settings.json_output:
            print(json.dumps({**asdict(done), "expected": done.expected}, indent=2))
        else:
            PipedConsole().print(bench_table(done))
    if done.expected and done.best < BANDWIDTH_LOW * done.expected:
        sys.exit(1)


def between_nodes(settings: NcclBenchSettings, gpus_here: Callable[[], int]) -> None:
    """Measure between hosts, or judge a result; exit with 1 if it is slow.

    Without another number each host has as many GPUs as this one.
    """
    if settings.picture:
        with needing("report", "nccl-bench --picture"):
            from gpunode.report.fabric_picture import drawn
    fabric = _read_result(settings.result) if settings.result else _run_bench(settings, gpus_here)
    found = problems(fabric)
    if settings.picture:
        try:
            Path(settings.picture).write_text(drawn(fabric), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"picture: {settings.picture}: {error.strerror}") from error
    with streams.printing():
        if settings.json_output:
            told = [{**asdict(one), "text": str(one)} for one in found]
            print(json_for_terminal(json.dumps({**asdict(fabric), "problems": told}, indent=2)))
        else:
            Console().print(fabric_table(fabric))
            for one in found[:MAX_PROBLEMS]:
                print(one)
            if len(found) > MAX_PROBLEMS:
                print(f"And {len(found) - MAX_PROBLEMS} more: --json has all.")
            if not found:
                print("No pair of nodes is slow beside the others.")
    if found:
        sys.exit(1)


def _read_result(name: str) -> FabricRun:
    """What ranks that somebody started have printed."""
    try:
        content = streams.content_of(name, MAX_RESULT_BYTES)
        return parse(content.decode(errors="replace"))
    except OSError as error:
        raise UsageError(f"result: {name}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"result: {name}: {error}") from error


def _run_bench(settings: NcclBenchSettings, gpus_here: Callable[[], int]) -> FabricRun:
    try:
        hosts = expand(settings.hosts)
        if len(hosts) < 2:
            raise ValueError("name two hosts at least")
        gpus = settings.gpus or gpus_here()
        if not gpus:
            raise ValueError("say with --gpus how many GPUs each has; the driver lists none here")
        folder = settings.host.nccl_bench_folder
        return run_hosts(hosts, gpus, settings.largest, settings.python, folder, settings.launcher)
    except (BenchError, ValueError) as error:
        raise UsageError(f"hosts: {error}") from error


def bench_table(measured: Measurement) -> Table:
    """Bus bandwidth by size, with the best and the expected one below."""
    expected = f", expected {measured.expected / 1e9:.0f}" if measured.expected else ""
    shown = Table(
        title=f"{measured.collective}, {measured.gpus} x {measured.model}",
        caption=f"best {measured.best / 1e9:.1f} GB/s{expected}",
    )
    shown.add_column("bytes", justify="right")
    shown.add_column("bus bandwidth, GB/s", justify="right")
    for size, speed in sorted(measured.bandwidth.items()):
        shown.add_row(f"{size:,}", f"{speed / 1e9:.1f}")
    return shown


def fabric_table(fabric: FabricRun) -> Table:
    """Each collective over all nodes, and what the typical and the slowest pair exchange."""
    model = printable(fabric.model, MAX_NAME)
    shown = Table(title=Text(f"{len(fabric.hosts)} nodes, {fabric.gpus} x {model}"))
    shown.add_column("bus bandwidth")
    shown.add_column("GB/s", justify="right")
    shown.add_column("expected", justify="right")
    speeds = sorted(speed for *_, speed in fabric.exchanges)
    rows = {name: max(of.values()) for name, of in fabric.collectives.items() if of}
    for name, speed in {**rows, "sendrecv": median(speeds)}.items():
        expected = fabric.expected.get(name)
        beside = f"{expected / GB:.3g}" if expected else "unknown"
        shown.add_row(Text(printable(name, MAX_NAME)), f"{speed / GB:.3g}", beside)
    shown.add_row("sendrecv, slowest pair", f"{speeds[0] / GB:.3g}", "")
    return shown
