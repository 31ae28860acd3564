"""Runs the workloads beside a daemon, and keeps what it says and what the kernels did."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from bench.truth import peer
from bench.truth.kernels import shares, states
from bench.truth.launch import Placement, groups, launched
from bench.truth.watched import GpuObservation
from bench.truth.workloads import Workload
from gpunode.driver.driver import DIRECTIONS
from tests.daemon import Daemon, daemon

SETTLE = 2.5
"""Seconds until the first window lies wholly in the time watched."""

PREPARE = 120.0
"""The longest time that a workload may take to load, and then to get ready."""

TRACE = 120.0
"""The longest time that a workload may take to end and write its traces."""

LOOK = 0.2
"""Seconds between looks at what the daemon says."""

ASK_PEER = 3.0
"""Seconds before tracing, or before the end, at which the peer is asked; it takes about one."""

WAITED_FOR = "gpunode_gpu_waited_for"
KIND = "gpunode_gpu_workload"
UTILIZATION = "gpunode_gpu_utilization_ratio"


def run(
    workloads: Sequence[Workload], gpus: int, tapes: Path | None = None
) -> Iterator[list[GpuObservation]]:
    """Run what fits on that many GPUs, a group at a time; the folder gets a tape of each."""
    with ExitStack() as stack:
        watched = stack.enter_context(daemon("--log.level=error", "--compat=dcgm"))
        for group in stack.enter_context(closing(launched(groups(workloads, gpus)))):
            tape = None
            if tapes is not None:
                tape = tapes / ("+".join(each.workload.program for each in group) + ".jsonl.gz")
            with recording(tape):
                running = prepared(group)
                _watch(running, watched)
            for each in running:
                _finish(each)
            yield [one for each in group for one in each.seen]


@contextmanager
def recording(tape: Path | None) -> Iterator[None]:
    """Record what the daemon reads, where a tape is wanted."""
    if tape is None:
        yield
        return
    command = [sys.executable, "-m", "gpunode", "record", str(tape), "--client.socket="]
    command.append("--gpu.processes-interval=2")  # playback may look at any time
    with subprocess.Popen([*command, "--log.level=error", "--duration=600"]) as recorder:
        try:
            yield
        finally:
            recorder.terminate()


def prepared(group: Sequence[Placement]) -> list[Placement]:
    """Start what has loaded; returns what is ready and has begun."""
    for word, order in (("loaded", "start"), ("ready", "go")):
        until = time.monotonic() + PREPARE
        for each in group:
            each.wait_for(word, until)
        for each in group:
            each.order(order)
    return [each for each in group if not each.failed]


def _watch(running: Sequence[Placement], watched: Daemon) -> None:
    """Keep all that is said of the GPUs of workloads that have begun."""
    workloads = [each.workload for each in running]
    seen = [one for each in running for one in each.seen]
    begin = time.time()
    end = begin + max((workload.seconds for workload in workloads), default=0.0)
    for one in seen:
        one.begin, one.end = begin, end
    in_part = [workload.traced for workload in workloads if workload.traced < workload.seconds]
    asked: list[subprocess.Popen[str] | None] = []
    due: list[tuple[float, Callable[[], object]]] = [
        (end - each.workload.traced, partial(each.order, "trace"))
        for each in running
        if each.workload.traced
    ]
    ask_peer = end - max(in_part, default=0.0) - ASK_PEER
    due.append((ask_peer, lambda: asked.append(peer.start_peer(watched.port))))
    due.sort(key=itemgetter(0))
    while time.time() < end:
        _look(watched, seen)
        while due and due[0][0] <= time.time():
            due.pop(0)[1]()
        time.sleep(LOOK)
    classes = peer.answer(asked[0]) if asked else {}
    for one in seen:
        one.peer = classes.get(one.gpu, "")


def _look(watched: Daemon, seen: Sequence[GpuObservation]) -> None:
    """Add what the daemon says of each GPU now."""
    gpus = {entry["gpu"]: entry for entry in watched.gpus()}
    verdicts = {entry["gpu"]: entry for entry in json.loads(watched.get("/api/v1/verdict"))}
    exported = _exported(watched.get("/metrics").decode())
    now = time.time()
    for one in seen:
        gpu = str(one.gpu)
        closed = gpus[gpu]["times"].get("gpu_activity", 0.0)
        if closed > (one.windows[-1]["time"] if one.windows else one.begin + SETTLE):
            one.windows.append({"time": closed, **gpus[gpu]["gpu_activity"]})
        one.verdicts.append((now, verdicts.get(gpu)))
        own = [(name, labels, value) for name, labels, value in exported if labels["gpu"] == gpu]
        holds = {name: labels for name, labels, value in own if value == 1}
        one.waited_for.append((now, holds.get(WAITED_FOR, {}).get("reason", "")))
        one.kinds.append((now, holds.get(KIND, {}).get("kind", "")))
        if now > one.begin + SETTLE:
            one.utilization += [value for name, _, value in own if name == UTILIZATION]


def _exported(page: str) -> list[tuple[str, dict[str, str], float]]:
    """The series of a page that are watched: name, labels and value."""
    lines = [x for x in page.splitlines() if x.startswith((WAITED_FOR, KIND, UTILIZATION))]
    families = text_string_to_metric_families("\n".join(lines) + "\n")
    return [(s.name, s.labels, s.value) for family in families for s in family.samples]


def _finish(each: Placement) -> None:
    """End a workload that has run for long enough, and add what its GPUs really did."""
    workload = each.workload
    for one in each.seen:
        one.gone = all(process.ended for process in each.processes if process.gpu == one.gpu)
    last = workload.gpus - 1
    for process in each.processes:
        if process.ended and not (workload.stalls and process.rank == last):
            each.fail(f"rank {process.rank} ended: {process.last_words}")
            return
    if not workload.traced:
        _believe(each)
        return
    each.order("stop")
    each.wait_for("traced", time.monotonic() + TRACE)
    if not each.failed:
        _compare(each)


def _believe(each: Placement) -> None:
    """The truth by the words of each rank."""
    for one, process in zip(each.seen, each.processes, strict=True):
        if process.state is None:
            each.fail(f"rank {process.rank} did not say what its GPU does")
            return
        at, state = process.state
        one.stalled_at = at if each.workload.stalls else None
        one.truths = [{state: 1.0} if _borders(w)[0] > at else None for w in one.windows]


def _compare(each: Placement) -> None:
    """The truth by the traces of all ranks."""
    traces = [(process.gpu, process.trace) for process in each.processes]
    begin = max(trace.begin for _, trace in traces) + 0.1
    for one in each.seen:
        peers = [trace for gpu, trace in traces if gpu != one.gpu]
        busy = [states(trace, peers) for gpu, trace in traces if gpu == one.gpu]
        one.truths = [
            shares(busy, *_borders(window), _moved(window)) if _borders(window)[0] > begin else None
            for window in one.windows
        ]


def _moved(window: Mapping[str, Any]) -> float:
    """Bytes per second that PCIe moved, in both directions."""
    activity = window["activity"] or {}
    return float(sum(activity.get(f"pcie_{direction}", 0.0) for direction in DIRECTIONS))


def _borders(window: Mapping[str, Any]) -> tuple[float, float]:
    """Begin and end of a window."""
    return window["time"] - window["seconds"], window["time"]
