"""The bandwidth between nodes: what each pair of them exchanged, and what is wrong with the fabric.

A fault shows in who is slow with whom. A node that is slow with all others has a bad adapter or
cable; one GPU's way that is slow on all nodes has a bad rail; nodes that are fast among themselves
and slow with the rest have a bad uplink; and all of them slow is a bad fabric.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from statistics import median, median_high
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from gpunode.nccl.bench import BANDWIDTH_LOW, GB, BytesPerSecond
from gpunode.nccl.run_torch import usual_rate
from gpunode.text import printable

MAX_NAME = 100
MAX_HOSTS = 4096
MAX_EXCHANGES = 1 << 22

Count = Annotated[int, Field(ge=0, lt=1 << 40)]


@dataclass(frozen=True, slots=True)
class FabricRun:
    """One run over several hosts; speeds are in bytes per second."""

    hosts: Annotated[tuple[str, ...], Field(min_length=2, max_length=MAX_HOSTS)]
    gpus: Count
    model: str
    time: Annotated[float, Field(allow_inf_nan=False)]
    collectives: dict[str, dict[Count, BytesPerSecond]]
    """Bus bandwidth by collective and size."""

    exchanges: Annotated[
        tuple[tuple[Count, Count, Count, BytesPerSecond], ...],
        Field(min_length=1, max_length=MAX_EXCHANGES),
    ]
    """Place of the sending host and of the receiving host, number of the GPU on both, and speed."""

    expected: dict[str, BytesPerSecond]
    """What the adapters allow, by collective; empty where a host has none for RDMA."""

    message: Count = 0


@cache
def _run() -> TypeAdapter[FabricRun]:
    return TypeAdapter(FabricRun)


TWO_NODES_NOTE = "of two nodes nothing tells which one it is: measure with a third"
MET_TWICE = 2
"""Of so many others, at least, two nodes are told to be unlike."""

Pair = tuple[int, int]
"""Places of the sending and of the receiving host."""

Exchange = tuple[float, float]
"""Bytes per second of a GPU, and its share of the fastest GPU's between the same hosts."""

MARK = '{"fabric": '


def parse(text: str) -> FabricRun:
    """The result within what a launcher printed. Raises ``ValueError``."""
    wrong = "no result of nccl-bench"
    for part in reversed(text.split(MARK)[1:]):
        try:
            result, _ = json.JSONDecoder().raw_decode(part)
        except (ValueError, RecursionError):
            wrong = "the result of nccl-bench is cut or damaged"
            continue
        return _parse_result(result)
    raise ValueError(wrong)


def _parse_result(result: object) -> FabricRun:
    """The result, if it is one. Raises ``ValueError``."""
    try:
        found = _run().validate_python(result)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from error
    if any(max(sender, receiver) >= len(found.hosts) for sender, receiver, *_ in found.exchanges):
        raise ValueError("an exchange names a host that is not listed")
    return found


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is slow; ``str()`` is a sentence."""

    who: str
    does: str
    reached: float
    expected: float
    """Both in bytes per second."""

    advice: str

    def __str__(self) -> str:
        figures = f"{self.reached / GB:.3g} of {self.expected / GB:.3g} GB/s"
        return f"{self.who} {self.does} {figures}: {self.advice}"


def problems(fabric: FabricRun) -> list[Problem]:
    """What is wrong, the whole before its parts; nothing if all pairs reach what they should."""
    return list(FabricJudge(fabric).problems())


class FabricJudge:
    """Tells from the speeds of all pairs which node, rail or uplink is slow.

    A node is compared with others, and a GPU with the other GPUs of the same two nodes.
    """

    def __init__(self, fabric: FabricRun) -> None:
        self.fabric = fabric
        self.usual = usual_rate(fabric.exchanges)
        by_pair = defaultdict[Pair, dict[int, float]](dict)
        for sender, receiver, gpu, speed in fabric.exchanges:
            by_pair[sender, receiver][gpu] = speed
        self.hosts = sorted({host for pair in by_pair for host in pair})
        self.sent, self.received = _by_gpu(by_pair, 0), _by_gpu(by_pair, 1)
        gpus = sorted({gpu for _, gpu in self.sent})
        self.rails = [gpu for gpu in gpus if self._gpu_is_slow(self._rail_exchanges(gpu))]
        # What a rail slows says nothing of a node, and neither does one GPU of two.
        self.pairs = {
            pair: median_high(
                [speed for gpu, speed in of.items() if gpu not in self.rails] or [*of.values()]
            )
            for pair, of in by_pair.items()
        }
        self.parts = self._parts()
        everybody = frozenset(self.hosts)
        self.peers = dict.fromkeys(self.hosts, everybody)
        self.peers |= {host: part for part in self.parts for host in part}

    def problems(self) -> Iterator[Problem]:
        """What is slow, from the whole to a single pair; what is told explains what follows."""
        yield from self._fabric_problem()
        for part in self.parts[1:]:
            yield self._uplink_problem(part)
        slow = {host for host in self.hosts if len(self.hosts) > 2 and self._host_is_slow(host)}
        for gpu in self.rails:
            yield self._problem(
                f"GPU {gpu} of every node",
                "exchanges",
                median_high(speed for speed, _ in self._rail_exchanges(gpu)),
                "its rail is slow: look at the switch of that rail"
                if len(self.hosts) > 2
                else TWO_NODES_NOTE,
            )
        for host in sorted(slow):
            yield self._host_problem(host)
        for host, gpu in sorted(self.sent.keys() | self.received.keys()):
            if host not in slow and gpu not in self.rails:
                yield from self._adapter_problems(host, gpu)
        yield from self._pair_problems(slow)

    def _low(self, speed: float) -> bool:
        return speed < BANDWIDTH_LOW * self.usual

    def _gpu_is_slow(self, exchanges: list[Exchange]) -> bool:
        """Whether a GPU is slow beside others of the same two nodes."""
        return bool(exchanges) and median_high(share for _, share in exchanges) < BANDWIDTH_LOW

    def _problem(self, who: str, does: str, reached: float, advice: str) -> Problem:
        return Problem(who, does, reached, self.usual, advice)

    def _name(self, host: int) -> str:
        return printable(self.fabric.hosts[host], MAX_NAME)

    def _names(self, hosts: Iterable[int]) -> str:
        names = [self._name(host) for host in sorted(hosts)]
        return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")

    def _fabric_problem(self) -> Iterator[Problem]:
        """All of it below what the adapters allow."""
        allowed = self.fabric.expected
        expected = allowed.get("sendrecv")
        if expected and self.usual < BANDWIDTH_LOW * expected:
            advice = "none is as fast as its adapters: look at the switches and at what NCCL uses"
            yield Problem("Every pair of nodes", "exchanges", self.usual, expected, advice)
        for collective, speeds in self.fabric.collectives.items():
            expected, best = allowed.get(collective), max(speeds.values(), default=0.0)
            if expected and best < BANDWIDTH_LOW * expected:
                yield Problem(
                    f"{printable(collective, MAX_NAME)} over all {self.fabric.gpus} GPUs",
                    "reaches",
                    best,
                    expected,
                    "see what follows, and which algorithm and protocol NCCL uses",
                )

    def _parts(self) -> list[frozenset[int]]:
        """Groups of nodes that reach each other at full speed, the largest first."""
        fast: dict[int, dict[int, bool]] = {host: {} for host in self.hosts}
        for (a, b), speed in self.pairs.items():
            fast[a][b] = not self._low(min(speed, self.pairs.get((b, a), 0.0)))
        near = {a: {b for b in fast[a] if fast[a][b] and _alike(fast[a], fast[b])} for a in fast}
        parts, seen = [], set[int]()
        for host in self.hosts:
            part, further = set[int](), {host} - seen
            while further:
                part |= further
                further = set[int]().union(*(near[one] for one in further)) - part
            seen |= part
            if len(part) > 1:
                parts.append(frozenset(part))
        return sorted(parts, key=len, reverse=True)

    def _uplink_problem(self, part: frozenset[int]) -> Problem:
        across = [
            min(speed, self.pairs.get((b, a), speed))
            for (a, b), speed in self.pairs.items()
            if (a in part) != (b in part)
        ]
        return self._problem(
            self._names(part),
            "are fast among themselves, and with the other nodes exchange",
            median(across),
            "look at the uplinks of their switch, or of the switch of the others",
        )

    def _rail_exchanges(self, gpu: int) -> list[Exchange]:
        """The best exchange of that GPU on each node: a bad adapter is not a bad rail."""
        return [
            max(sent, key=lambda one: one[1]) for (_, of), sent in self.sent.items() if of == gpu
        ]

    def _ways(self, host: int, others: Iterable[int]) -> tuple[float, float]:
        """What a host typically sends to others, and receives from them."""
        there = [other for other in others if other != host]
        ways = ([(host, other) for other in there], [(other, host) for other in there])
        speeds = [[self.pairs[pair] for pair in way if pair in self.pairs] for way in ways]
        sends, receives = (median_high(way) if way else self.usual for way in speeds)
        return sends, receives

    def _host_is_slow(self, host: int) -> bool:
        """Whether a host is slow with most of those to which no uplink is in the way."""
        return self._low(min(self._ways(host, self.peers[host])))

    def _host_problem(self, host: int) -> Problem:
        ways = self._ways(host, self.peers[host])
        advice = "look at its adapters, its cables and its ports of the switch"
        return self._problem(self._name(host), _direction(ways, self._low), min(ways), advice)

    def _adapter_problems(self, host: int, gpu: int) -> Iterator[Problem]:
        sent, received = self.sent[host, gpu], self.received[host, gpu]
        if self._gpu_is_slow(sent) or self._gpu_is_slow(received):
            ways = (
                median_high(speed for speed, _ in sent) if sent else self.usual,
                median_high(speed for speed, _ in received) if received else self.usual,
            )
            yield self._problem(
                f"GPU {gpu} of {self._name(host)}",
                _direction(ways, self._low),
                min(ways),
                "look at the adapter of that GPU, its cable and its port of the switch",
            )

    def _pair_problems(self, slow: set[int]) -> Iterator[Problem]:
        """Pairs that nothing above explains."""
        for (a, b), speed in sorted(self.pairs.items(), key=lambda pair: pair[1]):
            if self._low(speed) and b in self.peers[a] and not {a, b} & slow:
                yield self._problem(
                    self._name(a),
                    f"sends to {self._name(b)}",
                    speed,
                    TWO_NODES_NOTE if len(self.hosts) == 2 else "look at the way between these two",
                )


def _by_gpu(
    by_pair: Mapping[Pair, Mapping[int, float]], end: int
) -> defaultdict[tuple[int, int], list[Exchange]]:
    """The exchanges of each host's GPUs as sender (end 0) or receiver (end 1)."""
    found = defaultdict[tuple[int, int], list[Exchange]](list)
    for pair, speeds in by_pair.items():
        best = max(speeds.values())
        for gpu, speed in speeds.items():
            found[pair[end], gpu].append((speed, speed / best))
    return found


def _alike(one: Mapping[int, bool], other: Mapping[int, bool]) -> bool:
    """Whether two nodes are fast and slow with the same others, by most that both have met.

    One fast pair between two groups, which is chance, does not make them one.
    """
    met = one.keys() & other.keys()
    unlike = sum(one[third] != other[third] for third in met)
    return unlike < MET_TWICE or unlike <= len(met) / 2


def _direction(ways: tuple[float, float], low: Callable[[float], bool]) -> str:
    """Whether sending, receiving or both are slow."""
    if low(max(ways)):
        return "exchanges"
    return "sends" if ways[0] < ways[1] else "receives"
