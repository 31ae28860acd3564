"""What each collective took and moved, as NCCL's Inspector plug-in measures it.

A job that loads the plug-in has a log of each process, to which a line of JSON is added for each
collective and each send or receive of 8 KiB and more:
https://github.com/NVIDIA/nccl/blob/v2.30.7-1/plugins/profiler/inspector/README.md

The plug-in measures how long the kernel ran on the GPU, in which a rank that comes early waits for
the others. So a rank that comes last measures the network, and the others also how early they came.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import ClassVar

from gpunode.config.daemon import Settings
from gpunode.driver.driver import Gpu
from gpunode.gpu import GPU
from gpunode.holders.census import Census
from gpunode.holders.holder import Holder
from gpunode.holders.source import HoldersSource
from gpunode.metric import Metric, Sample
from gpunode.nccl.bench import GB
from gpunode.nccl.followed import FollowedFiles, inside, own_host, own_pid
from gpunode.node.node import MAX_READ
from gpunode.source import Divided, Reading
from gpunode.unread import Unknown

OF = (*GPU, "collective", "between")
COUNT = Metric(
    "gpunode_nccl_measured_collectives_total",
    "counter",
    "Collectives, sends and receives whose time was measured, `between` the GPUs of one node or "
    "several `nodes` (NCCL Inspector).",
    OF,
)
SECONDS = Metric(
    "gpunode_nccl_measured_seconds_total",
    "counter",
    "Time in which the kernels of measured collectives ran, the wait for late ranks included "
    "(NCCL Inspector).",
    OF,
)
BYTES = Metric(
    "gpunode_nccl_measured_bytes_total",
    "counter",
    "Data of measured collectives as nccl-tests counts it; divided by the time, it is the "
    "algorithm bandwidth (NCCL Inspector).",
    OF,
)
BUS_BYTES = Metric(
    "gpunode_nccl_measured_bus_bytes_total",
    "counter",
    "`gpunode_nccl_measured_bytes_total` times the share that a link carries; divided by the "
    "time, it is the bus bandwidth (NCCL Inspector).",
    OF,
)

FUNCTIONS = {
    "AllGather": "AllGather",
    "AllGatherV": "AllGatherV",
    "AllReduce": "AllReduce",
    "All2All": "AlltoAll",
    "Broadcast": "Broadcast",
    "Recv": "Recv",
    "Reduce": "Reduce",
    "ReduceScatter": "ReduceScatter",
    "Send": "Send",
    "SendRecv": "SendRecv",
}
"""The names in the plug-in (inspector.cc, ``ncclFuncToString``), and what NCCL calls them else."""

SCOPES = ("gpus", "nodes")

NUMBER = r"\d{1,15}(?:\.\d{1,9})?"
PART = re.compile(
    r'"nnodes":(?P<nodes>\d{1,8})|"dump_timestamp_us":(?P<written>\d{1,17})'
    r'|"(?:coll|p2p)_perf":(?:\{"(?:coll|p2p)":"(?P<function>\w{1,16})"'
    r',"(?:coll|p2p)_sn":\d{1,20}(?:,"p2p_peer":-?\d{1,10})?'
    r',"(?:coll|p2p)_msg_size_bytes":\d{1,20}'
    rf',"(?:coll|p2p)_exec_time_us":(?P<microseconds>{NUMBER})'
    r',"(?:coll|p2p)_timing_source":"(?P<clock>\w{1,20})"'
    rf',"(?:coll|p2p)_algobw_gbs":(?P<algorithm>{NUMBER})'
    rf',"(?:coll|p2p)_busbw_gbs":(?P<bus>{NUMBER}))?',
    re.ASCII,
)
"""What is looked at of a line, in this order. inspector_json.cc (before 2.30: inspector.cc) writes
the keys in the same order, and without spaces, from 2.28.3 to 2.30.7."""

HOSTNAME = re.compile(r"^([\w-][\w.-]{0,63})", re.ASCII)
"""A host's name as in the name of a log: all of it."""

MAX_COLLECTIVE_SECONDS = 86_400.0
"""The most seconds of a collective: PyTorch ends a job after half an hour."""

MAX_BANDWIDTH = 1e6
"""The most GB/s: a GPU of 2026 exchanges 1800."""

PARTS = 4
"""The most parts of a log to read at once, each of ``MAX_READ``: 850 collectives a second."""

NOT_COUNTED = Unknown(
    "nccl_collectives",
    "a collective in NCCL Inspector's log has an unknown form, or no time of the GPU's clock; it "
    "is not counted",
)
SEVERAL_GPUS = Unknown(
    "nccl_ranks",
    "a process with NCCL Inspector is on several GPUs; its log does not tell these apart, and is "
    "not read",
)
LATE = Unknown(
    "nccl_collectives",
    "a log of NCCL Inspector grew faster than gpunode reads it; its collectives are counted later",
    bound=True,
)


def parse(text: str, since: float) -> dict[str, float]:
    """The sums of what lines tell that were written after ``since``, in seconds since the epoch.

    A name is that of a metric, a collective and one of ``SCOPES``, with spaces between them. How
    many collectives are not understood is ``NOT_COUNTED.what``.
    """
    sums: dict[str, float] = {}
    nodes, written = 0, 0.0
    for part in PART.finditer(text):
        if part["nodes"]:
            nodes = int(part["nodes"])
        elif part["written"]:
            written = int(part["written"]) / 1e6
        else:
            if not written or written >= since:
                _add(sums, _collective_values(part, nodes, written) or {NOT_COUNTED.what: 1.0})
            nodes, written = 0, 0.0
    return sums


def _add(sums: dict[str, float], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, 0.0) + value


def _collective_values(part: re.Match[str], nodes: int, written: float) -> dict[str, float] | None:
    """What a collective adds; None if it is not understood."""
    collective = FUNCTIONS.get(part["function"])
    if collective is None or part["clock"] != "kernel_gpu" or not nodes or not written:
        return None
    seconds = float(part["microseconds"]) / 1e6
    algorithm, bus = float(part["algorithm"]), float(part["bus"])
    if not 0 < seconds <= MAX_COLLECTIVE_SECONDS or max(algorithm, bus) > MAX_BANDWIDTH:
        return None
    of = f"{collective} {SCOPES[nodes > 1]}"
    found = {f"{COUNT.name} {of}": 1.0, f"{SECONDS.name} {of}": seconds}
    if algorithm:  # the plug-in knows none of an all-to-all
        found[f"{BYTES.name} {of}"] = algorithm * GB * seconds
        found[f"{BUS_BYTES.name} {of}"] = bus * GB * seconds
    return found


@dataclass(slots=True)
class InspectorLog:
    """The log of a process, read up to the byte ``end``.

    Only what was written after ``since`` counts: else a daemon that starts anew would count the
    past as if it were now.
    """

    path: str
    since: float
    end: int = 0

    def follow(self, holder: Holder) -> tuple[dict[str, float], bool]:
        """What the next part of it adds up to, and whether there is more. Raises ``OSError``."""
        before = self.end
        found = holder.ask(
            lambda: holder.node.sums(self.path, before, partial(parse, since=self.since))
        )
        self.end = found.end
        return found.sums, found.end - before > MAX_READ // 2


def path_of(holder: Holder) -> str | None:
    """The path of a process's log on the node; None if it has none. Raises ``OSError``.

    Its name is that of inspector.cc (``inspectorStateDumpJSON``).
    """
    folder = holder.environment().get("NCCL_INSPECTOR_DUMP_DIR", "")
    if not folder:
        return None
    name = f"{own_host(holder, HOSTNAME)}-pid{own_pid(holder)}.log"
    return inside(holder, f"{folder}/{name}")


class NcclInspector:
    """Follows the logs of NCCL Inspector of the processes on one GPU."""

    name = "nccl_inspector"
    needs = (
        "a process on the GPU that was started with NCCL's Inspector plug-in, "
        "NCCL_INSPECTOR_DUMP_DIR and an interval at which it writes there; SYS_PTRACE and "
        "DAC_READ_SEARCH if it is another user's"
    )
    divided: ClassVar[Divided] = "instances"
    metrics = (COUNT, SECONDS, BYTES, BUS_BYTES)
    unknowns = (*FollowedFiles.unknowns, NOT_COUNTED, SEVERAL_GPUS, LATE)

    def __init__(self, census: Census, gpu: Gpu, settings: Settings) -> None:
        self.census = census
        self.labels = gpu.identity.labels
        self.every = settings.gpu.processes_interval
        self._clock = census.node.clock
        self._logs = FollowedFiles(census, gpu, self._begin, self._follow)
        self._sums: dict[str, float] = {}
        self._met = Counter[Unknown]()

    def read(self) -> Reading:
        self._met.clear()
        logs, left_out = self._logs.read()
        if not logs:
            self._sums.clear()  # the next job begins at zero
        met = (kind.seen("", times) for kind, times in self._met.items())
        return Reading(tuple(self._samples()), unread=(*left_out, *met))

    def _begin(self, holder: Holder) -> InspectorLog | None:
        path = path_of(holder)
        return None if path is None else InspectorLog(path, self._clock.time())

    def _follow(self, log: InspectorLog, holder: Holder) -> None:
        if self._on_several_gpus(holder):
            self._met[SEVERAL_GPUS] += 1
            log.since = self._clock.time()
            return
        for _ in range(PARTS):
            sums, more = log.follow(holder)
            _add(self._sums, sums)
            if unknown := int(sums.get(NOT_COUNTED.what, 0)):
                self._met[NOT_COUNTED] += unknown
            if not more:
                return
        self._met[LATE] += 1

    def _on_several_gpus(self, holder: Holder) -> bool:
        """Whether a process is on several GPUs; the instances of one are not."""
        looks = self.census.everywhere()
        return len({gpu.identity.index for gpu, look in looks if holder in look.holders}) > 1

    def _samples(self) -> Iterator[Sample]:
        for collective, between in product(FUNCTIONS.values(), SCOPES):
            for metric in self.metrics:
                value = self._sums.get(f"{metric.name} {collective} {between}")
                yield from metric.at(value, *self.labels, collective, between)


HOLDERS_SOURCE: HoldersSource = NcclInspector
