"""The bandwidth between nodes: what each pair of them exchanged, and what is wrong with the fabric.

A fault shows in who is slow with whom. A node that is slow with all others has a bad adapter or
cable; one GPU's way that is slow on all nodes has a bad rail; nodes that are fast among themselves
and slow with the rest have a bad uplink; and all of them slow is a bad fabric.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median, median_high
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from gpunode.nccl.bench import BANDWIDTH_LOW, GB
from gpunode.text import printable

LONGEST_NAME = 100
MOST_HOSTS = 4096
MOST_EXCHANGES = 1 << 20

BEST = 0.8
"""The exchange that others are compared with is faster than this share of them. A median would be
one of the slow ones where two halves of a fabric are slow with each other."""

Speed = Annotated[float, Field(gt=0, lt=1e15, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=1 << 40)]


@dataclass(frozen=True, slots=True)
class Fabric:
    """One run over several hosts; speeds are in bytes per second."""

    hosts: Annotated[tuple[str, ...], Field(min_length=2, max_length=MOST_HOSTS)]
    gpus: Count
    model: str
    time: float
    collectives: dict[str, dict[Count, Speed]]
    """Bus bandwidth by collective and size."""

    exchanges: Annotated[
        tuple[tuple[Count, Count, Count, Speed], ...],
        Field(min_length=1, max_length=MOST_EXCHANGES),
    ]
    """Place of the sending host and of the receiving host, number of the GPU on both, and speed."""

    expected: dict[str, Speed]
    """What the adapters allow, by collective; empty where a host has none for RDMA."""

    message: Count = 0


RESULT = TypeAdapter(Fabric)

Pair = tuple[int, int]
"""Places of the sending and of the receiving host."""

Exchange = tuple[float, float]
"""Bytes per second of a GPU, and its share of the fastest GPU's between the same hosts."""

MARK = '{"fabric": '


def parse(text: str) -> Fabric:
    """The result within what a launcher printed. Raises ``ValueError``."""
    lines = [line.partition(MARK)[2] for line in text.splitlines() if MARK in line]
    if not lines:
        raise ValueError("no result of nccl-bench")
    try:
        found = RESULT.validate_json(lines[-1].rstrip().removesuffix("}"))
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


def problems(fabric: Fabric) -> list[Problem]:
    """What is wrong, the largest first; nothing if all pairs reach what they should."""
    return list(Judge(fabric).problems())


class Judge:
    """Tells from the speeds of all pairs which node, rail or uplink is slow.

    A node is compared with others, and a GPU with the other GPUs of the same two nodes.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.usual = _quantile([speed for *_, speed in fabric.exchanges], BEST)
        by_pair = defaultdict[Pair, dict[int, float]](dict)
        for sender, receiver, gpu, speed in fabric.exchanges:
            by_pair[sender, receiver][gpu] = speed
        # Of two GPUs, a bad one does not make their nodes slow.
        self.pairs = {pair: median_high(of.values()) for pair, of in by_pair.items()}
        self.hosts = sorted({host for pair in by_pair for host in pair})
        self.sent, self.received = _of_gpus(by_pair, 0), _of_gpus(by_pair, 1)
        self.parts = self._parts()
        everybody = frozenset(self.hosts)
        self.peers = dict.fromkeys(self.hosts, everybody)
        self.peers |= {host: part for part in self.parts for host in part}

    def problems(self) -> Iterator[Problem]:
        """What is slow, from the whole to a single pair; what is told explains what follows."""
        yield from self._of_all()
        for part in self.parts[1:]:
            yield self._of_uplink(part)
        slow = {host for host in self.hosts if len(self.hosts) > 2 and self._slow(host)}
        rails = {gpu for gpu in {gpu for _, gpu in self.sent} if self._behind(self._of_rail(gpu))}
        for gpu in sorted(rails):
            yield self._problem(
                f"GPU {gpu} of every node",
                "exchanges",
                median(speed for speed, _ in self._of_rail(gpu)),
                "its rail is slow: look at the switch of that rail",
            )
        for host in sorted(slow):
            yield self._of_host(host)
        for host, gpu in sorted(self.sent.keys() | self.received.keys()):
            if host not in slow and gpu not in rails:
                yield from self._of_adapter(host, gpu)
        yield from self._of_pairs(slow)

    def _low(self, speed: float) -> bool:
        return speed < BANDWIDTH_LOW * self.usual

    def _behind(self, exchanges: list[Exchange]) -> bool:
        """Whether a GPU is slow beside others of the same two nodes."""
        return bool(exchanges) and median(share for _, share in exchanges) < BANDWIDTH_LOW

    def _problem(self, who: str, does: str, reached: float, advice: str) -> Problem:
        return Problem(who, does, reached, self.usual, advice)

    def _name(self, host: int) -> str:
        return printable(self.fabric.hosts[host], LONGEST_NAME)

    def _names(self, hosts: Iterable[int]) -> str:
        names = [self._name(host) for host in sorted(hosts)]
        return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")

    def _of_all(self) -> Iterator[Problem]:
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
                    f"{printable(collective, LONGEST_NAME)} over all {self.fabric.gpus} GPUs",
                    "reaches",
                    best,
                    expected,
                    "see what follows, and which algorithm and protocol NCCL uses",
                )

    def _parts(self) -> list[frozenset[int]]:
        """Groups of nodes that reach each other at full speed, the largest first."""
        near: dict[int, set[int]] = {host: set() for host in self.hosts}
        for (a, b), speed in self.pairs.items():
            if not self._low(speed) and not self._low(self.pairs.get((b, a), 0.0)):
                near[a].add(b)
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

    def _of_uplink(self, part: frozenset[int]) -> Problem:
        across = [speed for (a, b), speed in self.pairs.items() if (a in part) != (b in part)]
        return self._problem(
            self._names(part),
            "are fast among themselves, and with the other nodes exchange",
            median(across),
            "look at the uplinks of their switch",
        )

    def _of_rail(self, gpu: int) -> list[Exchange]:
        return [one for (_, of), sent in self.sent.items() if of == gpu for one in sent]

    def _ways(self, host: int, others: Iterable[int]) -> tuple[float, float]:
        """What a host typically sends to others, and receives from them."""
        there = [other for other in others if other != host]
        ways = ([(host, other) for other in there], [(other, host) for other in there])
        speeds = [[self.pairs[pair] for pair in way if pair in self.pairs] for way in ways]
        sends, receives = (median(way) if way else self.usual for way in speeds)
        return sends, receives

    def _slow(self, host: int) -> bool:
        """Whether a host is slow with most of those to which no uplink is in the way."""
        return self._low(min(self._ways(host, self.peers[host])))

    def _of_host(self, host: int) -> Problem:
        ways = self._ways(host, self.peers[host])
        advice = "look at its adapters, its cables and its ports of the switch"
        return self._problem(self._name(host), _does(ways, self._low), min(ways), advice)

    def _of_adapter(self, host: int, gpu: int) -> Iterator[Problem]:
        sent, received = self.sent[host, gpu], self.received[host, gpu]
        if self._behind(sent) or self._behind(received):
            ways = (
                median(speed for speed, _ in sent) if sent else self.usual,
                median(speed for speed, _ in received) if received else self.usual,
            )
            yield self._problem(
                f"GPU {gpu} of {self._name(host)}",
                _does(ways, self._low),
                min(ways),
                "look at the adapter of that GPU, its cable and its port of the switch",
            )

    def _of_pairs(self, slow: set[int]) -> Iterator[Problem]:
        """Pairs that nothing above explains."""
        for (a, b), speed in sorted(self.pairs.items(), key=lambda pair: pair[1]):
            if self._low(speed) and b in self.peers[a] and not {a, b} & slow:
                yield self._problem(
                    self._name(a),
                    f"sends to {self._name(b)}",
                    speed,
                    "of two nodes nothing tells which one it is: measure with a third"
                    if len(self.hosts) == 2
                    else "look at the way between these two",
                )


def _of_gpus(
    by_pair: Mapping[Pair, Mapping[int, float]], end: int
) -> defaultdict[tuple[int, int], list[Exchange]]:
    """The exchanges of each host's GPUs as sender (end 0) or receiver (end 1)."""
    found = defaultdict[tuple[int, int], list[Exchange]](list)
    for pair, speeds in by_pair.items():
        best = max(speeds.values())
        for gpu, speed in speeds.items():
            found[pair[end], gpu].append((speed, speed / best))
    return found


def _does(ways: tuple[float, float], low: Callable[[float], bool]) -> str:
    """Whether sending, receiving or both are slow."""
    if low(max(ways)):
        return "exchanges"
    return "sends" if ways[0] < ways[1] else "receives"


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
