"""The speed of collectives on this node and with others, as measured, and the speed to expect.

https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md explains bus bandwidth.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, get_args

from pydantic import Field, TypeAdapter

from gpunode.config.bench import Collective
from gpunode.config.daemon import Settings
from gpunode.gpu.models import model_of
from gpunode.metric import Metric, Sample
from gpunode.node.node import Node
from gpunode.source import NodeSource, Reading
from gpunode.unread import Unknown

RESULT_LABELS = ("collective", "gpus", "nodes")
BANDWIDTH = Metric(
    "gpunode_nccl_bus_bandwidth_bytes_per_second",
    "gauge",
    "Highest bus bandwidth over all sizes in the last run of `gpunode nccl-bench`. With several "
    "`nodes`, sendrecv is that of this node's slowest GPU; the first node has the other "
    "collectives.",
    RESULT_LABELS,
)
EXPECTED = Metric(
    "gpunode_nccl_expected_bus_bandwidth_bytes_per_second",
    "gauge",
    "Bus bandwidth that this number and model of GPUs reach elsewhere or, between nodes, that "
    "adapters allow or other pairs reached; absent if unknown.",
    RESULT_LABELS,
)
TIME = Metric(
    "gpunode_nccl_bench_timestamp_seconds",
    "gauge",
    "When `gpunode nccl-bench` last measured this collective.",
    RESULT_LABELS,
)

BANDWIDTH_LOW = 0.8
"""A node below this share of the expected bus bandwidth has a problem."""

GB = 1e9
COLLECTIVES: tuple[str, ...] = get_args(Collective)
FILES = {f"{collective}.json" for collective in COLLECTIVES}
NODES_PREFIX = "fabric-"
"""Begins the name of a result of several nodes."""


BytesPerSecond = Annotated[float, Field(gt=0, lt=1e15, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, lt=1_000_000)]

NO_RESULT = Unknown(
    "nccl_results", "a file in the folder of results is none, or not that of its name"
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run: the bus bandwidth in bytes per second, by size in bytes."""

    collective: str
    gpus: Count
    model: str
    time: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """When the run ended, in seconds since the epoch."""

    bandwidth: Annotated[dict[int, BytesPerSecond], Field(min_length=1)]
    nodes: Count = 1
    other: BytesPerSecond | None = None
    """The bandwidth to expect between nodes: what adapters allow, or the other pairs reached."""

    @property
    def best(self) -> float:
        """The highest bus bandwidth; the average of nccl-tests includes small sizes."""
        return max(self.bandwidth.values())

    @property
    def expected(self) -> float | None:
        """The bandwidth to expect of an all-reduce, or between nodes; None if unknown."""
        if self.nodes > 1:
            return self.other
        model = model_of(self.model)
        if model is None or self.collective != "all_reduce":
            return None
        return dict(model.nccl_bus_bandwidth).get(self.gpus)


MEASUREMENT = TypeAdapter(Measurement)


TAG = re.compile(
    r" {0,8}(?:\[(?:[\w.-]{1,128}@)?[\d,]{1,16}\](?:<\w{1,8}>:)?|\d{1,8}:)(?: |(?=[\d#]))", re.ASCII
)
"""What ``mpirun --tag-output`` of Open MPI 4, ``--output tag`` of 5, ``-prepend-rank`` of MPICH and
``srun --label`` put before each line."""

COLUMNS = (7, 11)
"""Places of the bus bandwidth, out of place and in place, from nccl-tests 2.13 on. Before, there
are fewer columns, which depend on the collective; the heading names them."""


def parse_text(text: str) -> dict[int, float]:
    """Bus bandwidth by size from the output of nccl-tests. Raises ``ValueError`` if none."""
    found: dict[int, float] = {}
    places: tuple[int, ...] = COLUMNS
    for line in text.splitlines():
        tag = TAG.match(line)
        fields = line[tag.end() if tag else 0 :].lstrip("# ").split()
        if "busbw" in fields:
            places = tuple(place for place, name in enumerate(fields) if name == "busbw")
        elif len(fields) > max(places) and fields[0].isdecimal() and len(fields[0]) < 16:
            speeds = [float(fields[place]) for place in places if _is_number(fields[place])]
            if speeds:
                found[int(fields[0])] = max(speeds) * GB
    if not found:
        raise ValueError("no measurement in the output of nccl-tests")
    return found


def _is_number(text: str) -> bool:
    return len(text) < 16 and text.replace(".", "", 1).isdecimal()


@dataclass(frozen=True, slots=True)
class Speed:
    """A result in nccl-tests' JSON; other fields, such as its environment dump, are ignored."""

    bus_bw: float = 0.0


@dataclass(frozen=True, slots=True)
class Size:
    """One size in nccl-tests' JSON."""

    size: int
    out_of_place: Speed = Speed()
    in_place: Speed = Speed()


@dataclass(frozen=True, slots=True)
class Results:
    """nccl-tests' JSON."""

    results: list[Size]


RESULTS = TypeAdapter(Results)


def parse_json(text: str) -> dict[int, float]:
    """Bus bandwidth by size from the JSON that ``-J`` writes. Raises ``ValueError``."""
    results = RESULTS.validate_json(text).results
    if not results:
        raise ValueError("no measurement in the JSON of nccl-tests")
    return {r.size: max(r.out_of_place.bus_bw, r.in_place.bus_bw) * GB for r in results}


class NcclBench:
    """Reads the results that ``gpunode nccl-bench`` left."""

    name = "nccl_bench"
    needs = "a result in host.nccl_bench_folder: run gpunode nccl-bench"
    metrics = (BANDWIDTH, EXPECTED, TIME)
    unknowns = (NO_RESULT,)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.folder = settings.host.nccl_bench_folder
        self.every = settings.host.slow_interval

    def read(self) -> Reading:
        """Read the last result of each collective; nothing if it never ran."""
        try:
            names = self.node.list_directory(self.folder)
        except FileNotFoundError:
            names = []
        samples: list[Sample] = []
        unread = []
        for name in sorted(name for name in names if name.removeprefix(NODES_PREFIX) in FILES):
            try:
                samples += self._samples(name)
            except (FileNotFoundError, ValueError):  # a run replaces what others left
                unread.append(NO_RESULT.seen(name))
        return Reading(tuple(samples), unread=tuple(unread))

    def _samples(self, name: str) -> Iterator[Sample]:
        """The series of a file. Raises ``OSError``, and ``ValueError`` if it is no result."""
        measured = MEASUREMENT.validate_json(self.node.read_text(f"{self.folder}/{name}"))
        among = NODES_PREFIX if measured.nodes > 1 else ""
        if name != f"{among}{measured.collective}.json":
            raise ValueError("it is another's result")
        at = measured.collective, str(measured.gpus), str(measured.nodes)
        yield from BANDWIDTH.at(measured.best, *at)
        yield from EXPECTED.at(measured.expected, *at)
        yield from TIME.at(measured.time, *at)


NODE_SOURCE: NodeSource = NcclBench
