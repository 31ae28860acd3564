"""NCCL's view of its jobs: communicators, ranks, and the rank that the others wait for.

Since 2.24, NCCL has a RAS service, on by default; any process of a job answers for the whole job:
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html
Each request queries every process of the job, so only the node of rank 0 asks often.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from gpunode.config import Settings
from gpunode.driver.driver import Identity
from gpunode.gpu import GPU
from gpunode.jobs.processes import own_pid, running
from gpunode.metric import Metric, Sample
from gpunode.node.node import Node
from gpunode.source import NodeSource, Reading

COMMUNICATORS = Metric(
    "gpunode_nccl_communicators",
    "gauge",
    "Communicators of the NCCL jobs with a rank 0 on this node (NCCL RAS).",
)
STALLED = Metric(
    "gpunode_nccl_stalled_communicators",
    "gauge",
    "Communicators in which some ranks have launched fewer collectives than others and no rank has "
    "launched one since the last read (NCCL RAS).",
)
AWAITED = Metric(
    "gpunode_nccl_awaited_rank_info",
    "gauge",
    "A rank that others wait for, and where it runs: `behind` in a stalled communicator, or "
    "`unresponsive` or `dead` (NCCL RAS).",
    ("communicator", "rank", "host", "pid", "nvml_device", "reason"),
)
ERRORS = Metric(
    "gpunode_nccl_rank_errors",
    "gauge",
    "Ranks whose initialisation or last asynchronous operation failed (NCCL RAS).",
)
COLLECTIVES = Metric(
    "gpunode_nccl_collectives_total",
    "counter",
    "Collectives launched by ranks on this GPU since each was first seen (NCCL RAS).",
    (*GPU, "collective"),
)
UNANSWERED = Metric(
    "gpunode_nccl_ras_unanswered",
    "gauge",
    "Network namespaces with GPU processes in which NCCL RAS gave no valid answer (`garbled`), or "
    "that cannot be entered without CAP_SYS_ADMIN (`no_permission`).",
    ("reason",),
)

ADDRESS = "localhost:28028"
REQUEST = "CLIENT PROTOCOL 2\nTIMEOUT 3\nSET FORMAT json\nVERBOSE STATUS\n"
RESERVE_INTERVAL = 300.0
"""Seconds between requests to a job whose rank 0 is on another node."""

GENTLY = 50
"""Wait at least this many times as long as the last read took before asking again."""

NAMED = 16
"""The most awaited ranks to export."""

FINE = (0, 7)
"""ncclSuccess and ncclInProgress."""


@dataclass(frozen=True, slots=True)
class Status:
    """The health of a rank: its ncclResult_t values, or why it did not answer."""

    init_state: int = 0
    async_error: int = 0
    unresponsive: bool = False
    considered_dead: bool = False


@dataclass(frozen=True, slots=True)
class Rank:
    """A rank, where it runs, and the number of launches of each collective so far."""

    rank: int
    host: str = ""
    pid: int | None = None
    nvml_dev: int | None = None
    status: Status = Status()
    collective_counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator; a text answer lists only those in trouble, with only the ranks it names.

    ``unnamed_counts`` are the launches of ranks that a text answer counts but does not name.
    """

    hash: str
    size: int
    ranks: tuple[Rank, ...] = ()
    missing_ranks: tuple[Rank, ...] = ()
    unnamed_counts: tuple[tuple[str, int], ...] = ()

    def behind(self) -> list[Rank]:
        """The ranks that have launched fewer collectives than another."""
        named = (item for rank in self.ranks for item in rank.collective_counts.items())
        furthest: dict[str, int] = {}
        for name, count in (*self.unnamed_counts, *named):
            furthest[name] = max(furthest.get(name, 0), count)
        return [
            rank
            for rank in self.ranks
            if any(furthest[name] > count for name, count in rank.collective_counts.items())
        ]

    def counts(self) -> tuple[object, ...]:
        """The launches of each rank, to compare with an earlier answer."""
        return (*self.unnamed_counts, *((r.rank, r.collective_counts) for r in self.ranks))


@dataclass(frozen=True, slots=True)
class Answer:
    """The RAS answer for one job."""

    communicators: tuple[Communicator, ...]
    communicators_count: int = 0


ANSWER = TypeAdapter(Answer)


def parse(text: str) -> Answer:
    """Parse an answer in JSON (NCCL 2.28.7 or later) or text. Raises ``ValueError``."""
    begin = text.find("\n{") + 1
    if begin or text.startswith("{"):
        return ANSWER.validate_json(text[begin:])
    return _parse_text(text)


# Line formats: https://github.com/NVIDIA/nccl, src/ras/client_support.cc
GROUP = re.compile(r" *\d{1,5} +(\d{1,8}) +\d+ +[\d-]+ +(\d{1,8}) +\d+ +[A-Z]+ +[A-Z,]+")
TROUBLE = re.compile(r"#\d+-\d+ \((?P<hash>[0-9a-f]{1,16})\) (?P<what>[A-Z]+)")
COUNTS = re.compile(
    r"  Communicator ranks have different (?P<collective>\w{1,32}) operation counts"
)
SEVERAL = re.compile(
    r"  \d+ ranks have (?:launched up to operation (?P<count>\d{1,18})|not launched any operations)"
)
ONE = re.compile(
    r"  Rank (?P<rank>\d{1,8})"
    r"(?P<own> has (?:launched up to operation (?P<count>\d{1,18})|not launched any operations))?"
    r" -- GPU (?P<device>\d{1,4})(?: \(NVML (?P<nvml>\d{1,4})\))?"
    r" managed by process (?P<pid>\d{1,9}) on node (?P<host>[0-9a-fA-F.:]{1,64})"
)
HEADER = "Group     Comms"
MOST_RANKS = 1 << 16


@dataclass(slots=True)
class Told:
    """One communicator in a text answer."""

    ranks: dict[int, Rank] = field(default_factory=dict)
    missing: list[Rank] = field(default_factory=list)
    unnamed: list[tuple[str, int]] = field(default_factory=list)


def _parse_text(text: str) -> Answer:
    if HEADER not in text and "No communicator data collected!" not in text:
        raise ValueError(f"not an answer of NCCL RAS: {text[:60]!r}")
    count, sizes = 0, [0]
    found: dict[str, Told] = {}
    now = Told()
    incomplete, collective, several = False, "", 0
    for line in text.splitlines():
        if match := GROUP.fullmatch(line):
            count += int(match[1])
            sizes.append(int(match[2]))
        elif match := TROUBLE.fullmatch(line):
            now = found.setdefault(match["hash"], Told())
            incomplete, collective = match["what"] == "INCOMPLETE", ""
        elif match := COUNTS.fullmatch(line):
            collective = match["collective"]
        elif match := SEVERAL.fullmatch(line):
            several = int(match["count"] or 0)
            if collective and len(now.unnamed) < MOST_RANKS:
                now.unnamed.append((collective, several))
        elif match := ONE.fullmatch(line):
            where = match["host"], int(match["pid"]), int(match["nvml"] or match["device"])
            number = int(match["rank"])
            if incomplete:
                now.missing.append(Rank(number, *where, Status(unresponsive=True)))
            elif collective:
                launched = int(match["count"] or 0) if match["own"] else several
                now.ranks[number] = Rank(number, *where, collective_counts={collective: launched})
    communicators = (
        Communicator(
            name, max(sizes), tuple(told.ranks.values()), tuple(told.missing), tuple(told.unnamed)
        )
        for name, told in found.items()
    )
    return Answer(tuple(communicators), count)


@dataclass(slots=True)
class Place:
    """A network namespace and the RAS address in it."""

    address: str
    pid: int
    """A process in the namespace."""

    gpus: dict[int, list[Identity]] = field(default_factory=dict)
    """The GPUs of each process, by its id in its own PID namespace."""

    ranks: set[str] = field(default_factory=set)
    """The ranks of its processes, if known."""


class NcclRas:
    """Asks the RAS services of the NCCL jobs with processes on this node's GPUs."""

    name = "nccl_ras"
    metrics = (COMMUNICATORS, STALLED, AWAITED, ERRORS, COLLECTIVES, UNANSWERED)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.interval = self.every = settings.host.interval
        self._next_look: dict[tuple[str, str], float] = {}
        self._before: dict[str, tuple[object, float]] = {}
        self._counted: dict[tuple[str, int], dict[str, int]] = {}
        self._launched: dict[tuple[str, str, str], float] = {}

    def read(self) -> Reading:
        """Read the jobs with a rank 0 here. Raises the first failure if none of them answers."""
        begin = self.node.clock.monotonic()
        places = self._places()
        self._next_look = {key: time for key, time in self._next_look.items() if key in places}
        answers: list[Answer] = []
        failures: list[OSError | ValueError] = []
        closed = 0
        for key, place in places.items():
            if begin < self._next_look.get(key, begin):
                continue
            try:
                answer = parse(self.node.ask(place.pid, place.address, REQUEST))
            except (ConnectionRefusedError, FileNotFoundError):
                continue  # no NCCL, NCCL before 2.24, NCCL_RAS_ENABLE=0, or not on this tape
            except PermissionError:
                closed += 1
                continue
            except (OSError, ValueError) as error:
                failures.append(error)
                continue
            if _leads(answer, place):
                answers.append(answer)
            else:
                self._next_look[key] = begin + RESERVE_INTERVAL
        if failures and not answers:
            raise failures[0]
        self.every = max(self.interval, GENTLY * (self.node.clock.monotonic() - begin))
        unanswered = (
            *UNANSWERED.at(float(len(failures)), "garbled"),
            *UNANSWERED.at(float(closed), "no_permission"),
        )
        if not answers:
            return Reading(unanswered if closed else ())
        communicators = [c for answer in answers for c in answer.communicators]
        count = sum(max(a.communicators_count, len(a.communicators)) for a in answers)
        samples = (
            *COMMUNICATORS.at(float(count)),
            *self._trouble(communicators, begin),
            *self._collectives(communicators, places.values()),
            *unanswered,
        )
        return Reading(samples)

    def _places(self) -> dict[tuple[str, str], Place]:
        """Where GPU processes may offer RAS, by network namespace and address."""
        places: dict[tuple[str, str], Place] = {}
        for pid, identity in running(self.node):
            try:
                environment = self.node.environment(pid)
            except OSError:
                environment = {}
            try:
                namespace = self.node.read_link(f"/proc/{pid}/ns/net")
            except OSError:
                namespace = ""
            if environment.get("NCCL_RAS_ENABLE") != "0":
                address = environment.get("NCCL_RAS_ADDR", ADDRESS)
                place = places.setdefault((namespace, address), Place(address, pid))
                place.gpus.setdefault(own_pid(self.node, pid), []).append(identity)
                place.ranks |= {environment["RANK"]} if "RANK" in environment else set()
        return places

    def _trouble(self, communicators: list[Communicator], now: float) -> Iterator[Sample]:
        stalled = 0
        named: set[tuple[str, ...]] = set()
        for communicator in communicators:
            counts, behind = communicator.counts(), communicator.behind()
            before = self._before.get(communicator.hash)
            if behind and before is not None and before[0] == counts:
                stalled += 1
                named |= {_awaited(communicator, rank, "behind") for rank in behind}
            self._before[communicator.hash] = counts, now
            for missing in communicator.missing_ranks:
                if missing.status.considered_dead:
                    named.add(_awaited(communicator, missing, "dead"))
                elif missing.status.unresponsive:
                    named.add(_awaited(communicator, missing, "unresponsive"))
        # Jobs of one user share the address and any of them may answer, so remember the others.
        kept = now - RESERVE_INTERVAL
        self._before = {name: seen for name, seen in self._before.items() if seen[1] > kept}
        yield from STALLED.at(float(stalled))
        for labels in sorted(named)[:NAMED]:
            yield from AWAITED.at(1.0, *labels)
        failed = {
            (rank.host, rank.pid)
            for communicator in communicators
            for rank in communicator.ranks
            if rank.status.init_state not in FINE or rank.status.async_error not in FINE
        }
        yield from ERRORS.at(float(len(failed)))

    def _collectives(
        self, communicators: list[Communicator], places: Iterable[Place]
    ) -> Iterator[Sample]:
        """Add the collectives that ranks on this node launched since the last read."""
        gpus: dict[int | None, list[Identity]] = {
            pid: found for place in places for pid, found in place.gpus.items()
        }
        counted: dict[tuple[str, int], dict[str, int]] = {}
        for communicator in communicators:
            for rank in communicator.ranks:
                mine = gpus.get(rank.pid, [])
                # NCCL's index counts only the GPUs that its container sees.
                at = [i for i in mine if len(mine) == 1 or i.index == rank.nvml_dev]
                if not at:
                    continue
                key = communicator.hash, rank.rank
                counted[key] = rank.collective_counts
                before = self._counted.get(key, rank.collective_counts)
                for name, launched in rank.collective_counts.items():
                    labels = str(at[0].index), at[0].uuid, name
                    gained = max(0, launched - before.get(name, 0))
                    self._launched[labels] = self._launched.get(labels, 0.0) + gained
        self._counted = counted
        present = {identity.uuid for found in gpus.values() for identity in found}
        self._launched = {at: n for at, n in self._launched.items() if at[1] in present}
        for labels, launches in self._launched.items():
            yield from COLLECTIVES.at(launches, *labels)


def _leads(answer: Answer, place: Place) -> bool:
    """Whether a rank 0 runs on this node."""
    ranks = [rank for communicator in answer.communicators for rank in communicator.ranks]
    zeros = [rank for rank in ranks if rank.rank == 0]
    if zeros:
        return any(rank.pid in place.gpus for rank in zeros)
    return not place.ranks or "0" in place.ranks  # a text answer may not name rank 0


def _awaited(communicator: Communicator, rank: Rank, reason: str) -> tuple[str, ...]:
    name = communicator.hash.removeprefix("0x")[:16]
    pid, device = ("" if number is None else str(number) for number in (rank.pid, rank.nvml_dev))
    return name, str(rank.rank), rank.host[:64], pid, device, reason


NODE_SOURCE: NodeSource = NcclRas
