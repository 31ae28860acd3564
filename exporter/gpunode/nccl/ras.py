"""NCCL's view of its jobs: communicators, ranks, and the rank that the others wait for.

Since 2.24, NCCL has a RAS service, on by default; any process of a job answers for the whole job:
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html
Each request queries every process of the job, so only the node of rank 0 asks often.

The services belong to tenants, who may listen and answer as they like. An answer counts for the
processes of its owner alone, each service has its own budgets and its own pace, and what it said is
dropped when it no longer answers.

All jobs of a user share an address, so an answer is that of the job whose processes it names. In
text, it names few: then the number of its processes has to tell, or the logs that have its
communicators.
"""

from __future__ import annotations

import contextlib
import math
import re
import socket
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

from gpunode.config.daemon import Settings
from gpunode.driver.driver import Identity
from gpunode.gpu import GPU
from gpunode.helper.tcp import RAS
from gpunode.holders.asked import AskedServers
from gpunode.holders.census import Census
from gpunode.holders.holder import Holder
from gpunode.holders.owner import Tenant, tenant
from gpunode.metric import Metric
from gpunode.nccl import log
from gpunode.nccl.ras_answer import (
    MAX_AWAITED,
    MAX_BEHIND,
    Answer,
    Rank,
    ServicePeers,
    read_json,
    read_text,
)
from gpunode.node.node import NoDescriptors
from gpunode.source import Reading, bounded, in_turns, limit
from gpunode.unread import Unread

COMMUNICATORS = Metric(
    "gpunode_nccl_communicators",
    "gauge",
    "Communicators of the NCCL jobs with a rank 0 on this node (NCCL RAS).",
)
STALLED = Metric(
    "gpunode_nccl_stalled_communicators",
    "gauge",
    "Communicators in which some ranks have launched fewer collectives than others, and none has "
    "launched one since the last read (NCCL RAS).",
)
AWAITED = Metric(
    "gpunode_nccl_awaited_rank_info",
    "gauge",
    "A rank that others wait for, and where it runs: `behind` in a stalled communicator, "
    "`unresponsive` or `dead`; at most 16 of a job (NCCL RAS).",
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
    "Collectives launched by ranks on this GPU since each was first seen, `other` for those that "
    "NCCL does not name (NCCL RAS).",
    (*GPU, "collective"),
)
UNANSWERED = Metric(
    "gpunode_nccl_ras_unanswered",
    "gauge",
    "NCCL RAS services without a valid answer: not parsable (`garbled`), in a network namespace "
    "that takes CAP_SYS_ADMIN (`no_permission`), or shared by jobs without saying which one "
    "answered (`ambiguous`).",
    ("reason",),
)

MORE_SERVICES = limit("nccl_services")

ADDRESS = "localhost:28028"
RESERVE_INTERVAL = 300.0
"""Seconds between requests to a job whose rank 0 is on another node, and the longest pause."""

GENTLY = 50
"""Leave a service alone at least this many times as long as its last answer took."""

OVERDUE = 3
"""Pauses after which a service that had no turn counts as silent."""

SERVICES = 64
"""The most services to know; a node has one or two jobs, seldom one for each GPU."""

MAX_PARALLEL = 2
"""The most services to ask at the same time: each may send ``tcp.MAX_ANSWER_BYTES`` bytes."""

START = 1.0
"""Seconds of a read in which services are asked; those left have their turn at the next."""

PROCESSES = 16
"""The most processes of a job to try until one of them serves."""

NO_SERVICE = (ConnectionRefusedError, FileNotFoundError, ProcessLookupError)
"""No NCCL, NCCL before 2.24, NCCL_RAS_ENABLE=0, the process has ended, or not on this tape."""


MAX_ADDRESS = 64
"""Characters of a service's address."""

OWN_ADDRESS = re.compile(r"\|-- ([0-9.]{7,15})\n +/32 host LOCAL")
"""An address of the node itself in /proc/PID/net/fib_trie."""


def parse(text: str, asked: ServicePeers = ServicePeers()) -> Answer:  # noqa: B008 it is frozen
    """Parse an answer in JSON (NCCL 2.28.7 or later) or text. Raises ``ValueError``."""
    begin = text.find("\n{") + 1
    if begin or text.startswith("{"):
        return read_json(text, begin, asked)
    return read_text(text, asked)


@dataclass(frozen=True, slots=True)
class ServiceKey:
    """A service: all ranks of a user share an address, and any of them may answer."""

    namespace: str
    address: str
    owner: Tenant
    job: int = 0
    """A process of the job: of those here that an answer named together, the first. 0 before."""

    @property
    def shared(self) -> ServiceKey:
        """What the jobs of its owner at this address have in common."""
        return replace(self, job=0)


@dataclass(slots=True)
class ServiceProcesses:
    """Where a service may be, and the processes on GPUs that it may speak for."""

    holders: dict[int, Holder] = field(default_factory=dict)
    """Its processes by their PIDs."""

    gpus: dict[int, list[Identity]] = field(default_factory=dict)
    """The GPUs of each process, by its id in its own PID namespace."""

    ranks: set[str] = field(default_factory=set)
    """The ranks of its processes, if known."""

    own_pids: dict[int, int] = field(default_factory=dict)
    """The id of each process in its own PID namespace."""

    def add(self, other: ServiceProcesses) -> None:
        """Add the processes of another place."""
        self.holders |= other.holders
        self.gpus |= other.gpus
        self.ranks |= other.ranks
        self.own_pids |= other.own_pids


@dataclass(frozen=True, slots=True)
class ServiceReading:
    """The reading of a service, until it is asked again."""

    communicators: int
    stalled: int
    failed: int
    awaited: frozenset[tuple[str, ...]]


@dataclass(slots=True)
class Service:
    """A service, how often to ask it, and what it said."""

    since: float
    asked: float = -math.inf
    due: float = -math.inf
    good_until: float = math.inf
    turn: int = 0
    said: ServiceReading | None = None
    error: OSError | ValueError | None = None
    behind: dict[str, tuple[int, float]] = field(default_factory=dict)
    """How far each communicator with ranks behind had come, and when. Several jobs may take turns
    to answer, so the others are remembered."""

    launched: dict[tuple[str, int], dict[str, int]] = field(default_factory=dict)
    gpus: frozenset[str] = frozenset()
    """Of the processes that its last answer was about, by UUID."""

    ambiguous: bool = False
    """Whether its last answer did not tell which job it was about."""

    def drop(self, error: OSError | ValueError | None = None) -> None:
        """Forget what it said, also what the traceback of an error still holds of it."""
        self.said, self.error, self.ambiguous = None, error, False
        if error is not None:
            error.__traceback__ = error.__cause__ = error.__context__ = None


Heard = tuple[str | OSError | NoDescriptors, float]
"""What a service said, or why nothing, and how many seconds that took."""


class NcclRas:
    """Asks the RAS services of the NCCL jobs with processes on this node's GPUs."""

    name = "nccl_ras"
    needs = (
        "a job with NCCL 2.24 or later whose rank 0 is on this node, without NCCL_RAS_ENABLE=0;"
        " SYS_ADMIN, SYS_PTRACE and DAC_READ_SEARCH if it is in a pod"
    )
    metrics = (COMMUNICATORS, STALLED, AWAITED, ERRORS, COLLECTIVES, UNANSWERED)
    unknowns = (MORE_SERVICES,)

    def __init__(self, census: Census, settings: Settings) -> None:
        self.census = census
        self.node = census.node
        self.every = settings.host.interval
        self._services: dict[ServiceKey, Service] = {}
        self._jobs: dict[tuple[ServiceKey, Holder], int] = {}
        """The job of each process, for ``ServiceKey.job``, by what the jobs of its owner share."""

        self._launched: dict[tuple[str, str, str], float] = {}
        self._asked: AskedServers[ServiceKey, Heard] = AskedServers(self.node.clock)

    def read(self) -> Reading:
        """Read the jobs with a rank 0 here. Raises the first failure if none of them answers."""
        now = self.node.clock.monotonic()
        places = self._places()
        services = {key: self._services.get(key) or Service(now) for key in places}
        known, left_out = bounded(
            sorted(places, key=lambda key: services[key].since),
            MORE_SERVICES,
            SERVICES,
            whose=lambda key: _budget_key(places[key]),
        )
        self._services = {key: services[key] for key in known}
        for service in self._services.values():
            if now > service.good_until:
                service.drop()
        for key, (answer, took) in self._ask(known, places, now):
            if isinstance(answer, NoDescriptors):
                raise answer.with_traceback(None)  # it is due as before
            if key in known and key in self._services:
                self._take(key, answer, took, places, now)
            del answer
        for key in self._asked.now.intersection(self._services):
            self._services[key].drop()  # it takes too long
        return self._reading(places, left_out)

    def _places(self) -> dict[ServiceKey, ServiceProcesses]:
        """Where GPU processes may offer RAS."""
        places: dict[ServiceKey, ServiceProcesses] = {}
        jobs: dict[tuple[ServiceKey, Holder], int] = {}
        for gpu, look in self.census.everywhere():
            for holder in look.holders:
                try:
                    owner, own_pid = tenant(holder), holder.own_pid()
                except (OSError, ValueError):  # it has ended, or may not be seen
                    continue
                try:
                    environment = holder.environment()
                except OSError:
                    environment = {}
                if environment.get("NCCL_RAS_ENABLE") == "0":
                    continue
                address = environment.get("NCCL_RAS_ADDR", ADDRESS)[:MAX_ADDRESS]
                key = ServiceKey(holder.namespace("net"), address, owner)
                job = jobs[key, holder] = self._jobs.get((key, holder), 0)
                place = places.setdefault(replace(key, job=job), ServiceProcesses())
                place.holders.setdefault(holder.pid, holder)
                place.own_pids[holder.pid] = own_pid
                place.gpus.setdefault(own_pid, []).append(gpu.identity)
                place.ranks |= {environment["RANK"]} if "RANK" in environment else set()
        self._jobs = {process: job for process, job in jobs.items() if job}
        return places

    def _ask(
        self, known: list[ServiceKey], places: dict[ServiceKey, ServiceProcesses], now: float
    ) -> Iterator[tuple[ServiceKey, Heard]]:
        """The answers of the services that are due as they come, and of those asked before.

        They are asked in turns, those first that answered last time. Raises ``OSError`` where
        there is no thread to ask one; it is due as before.
        """
        services, clock = self._services, self.node.clock
        due = [key for key in known if key not in self._asked.now and now >= services[key].due]
        waiting = _in_turns(
            {key: places[key] for key in due},
            lambda key: (services[key].said is None, services[key].asked),
        )
        until = clock.monotonic() + START

        def following() -> ServiceKey | None:
            more = waiting and len(self._asked.now) < MAX_PARALLEL and clock.monotonic() <= until
            return waiting.pop(0) if more else None

        def look(key: ServiceKey, say: Callable[[Heard], None]) -> None:
            self._ask_one(key, services[key], list(places[key].holders.values()), say)

        return self._asked.answers(following, look)

    def _ask_one(
        self, key: ServiceKey, service: Service, holders: list[Holder], say: Callable[[Heard], None]
    ) -> None:
        """Ask the processes of a service until one serves; hand over what it says or why not."""
        begin = self.node.clock.monotonic()
        said: str | OSError | NoDescriptors = ConnectionRefusedError()
        try:
            for _ in holders[:PROCESSES]:
                service.turn += 1
                holder = holders[service.turn % len(holders)]
                try:
                    said = holder.ask(partial(self.node.ask, holder.pid, key.address, RAS))
                    break
                except NO_SERVICE:
                    continue
                except (OSError, NoDescriptors) as error:
                    said = error
                    break
        finally:
            say((said, self.node.clock.monotonic() - begin))

    def _take(
        self,
        key: ServiceKey,
        said: str | OSError,
        took: float,
        places: dict[ServiceKey, ServiceProcesses],
        now: float,
    ) -> None:
        """Take what a service said, or drop what it said before."""
        asked, whole = self._services[key], _merge_places(places, key)
        answered = asked.said is not None
        begin = self.node.clock.monotonic()
        about, answer, processes = key, None, set[int]()
        try:
            if isinstance(said, OSError):
                raise said
            answer = parse(said, self._peers(key, places, whole))
            processes = self._processes(answer, whole)
            about = self._answering_job(key, processes, whole)
        except NO_SERVICE:
            asked.drop()
        except (OSError, ValueError) as error:
            asked.drop(error)
        service = self._services.setdefault(about, Service(now))
        took += self.node.clock.monotonic() - begin
        pause = min(RESERVE_INTERVAL, GENTLY * took)
        if answer is None and answered:
            # All ranks listen at one port, and the kernel may choose another next time.
            pause = 0.0
        if answer is not None:
            leads = _leads(answer, whole.ranks)
            pause = pause if leads else RESERVE_INTERVAL
            if leads:
                self._count(key, service, whole, answer)
                service.said, service.error = _service_reading(service, answer, now), None
                service.gpus = frozenset(i.uuid for pid in processes for i in whole.gpus[pid])
                service.ambiguous = not processes and answer.communicators > 0
            else:
                service.drop()
        # A pause no longer than the interval is none: reads do not begin to the millisecond.
        due = now + pause if pause > self.every else now
        service.asked = asked.asked = now
        service.due = due
        service.good_until = now + OVERDUE * max(pause, self.every)
        if about != key:
            # The others at its place have not been heard, unless none of the job are at it.
            asked.due = now if processes & places[key].gpus.keys() else due

    def _peers(
        self, key: ServiceKey, places: dict[ServiceKey, ServiceProcesses], whole: ServiceProcesses
    ) -> ServicePeers:
        """The processes whose service answers: the jobs of an owner may answer for each other."""
        strangers = {
            pid
            for other, place in places.items()
            if other.owner != key.owner and other.owner.processes == key.owner.processes
            for pid in place.gpus
        }
        hosts = _addresses(next(iter(places[key].holders.values())))
        return ServicePeers(whole.gpus.keys(), strangers, hosts)

    def _processes(self, answer: Answer, whole: ServiceProcesses) -> set[int]:
        """The processes here of the job that answered; empty if that is unknown."""
        if answer.per_node is None:
            return answer.here
        if len(whole.gpus) <= min(answer.per_node):
            return set(whole.gpus)
        named = answer.here | self._logging(answer, whole)
        return named if answer.per_node == {len(named)} else set()

    def _logging(self, answer: Answer, whole: ServiceProcesses) -> set[int]:
        """The processes whose logs have one of the communicators that an answer names."""
        names = {behind.name for behind in answer.behind} | {name for name, _, _ in answer.missing}
        found = set()
        for holder in islice(whole.holders.values(), PROCESSES) if names else ():
            with contextlib.suppress(OSError):
                written = log.read_log(holder)
                if written and any(one.id in names for one in written.communicators):
                    found.add(whole.own_pids[holder.pid])
        return found

    def _answering_job(
        self, key: ServiceKey, processes: set[int], whole: ServiceProcesses
    ) -> ServiceKey:
        """The job that answered, whose processes are known to belong together from now on."""
        if not processes:
            return key
        about = replace(key, job=min(processes))
        for pid, holder in whole.holders.items():
            if whole.own_pids[pid] in processes:
                self._jobs[key.shared, holder] = about.job
        return about

    def _count(
        self, key: ServiceKey, service: Service, whole: ServiceProcesses, answer: Answer
    ) -> None:
        """Add the collectives that the owner's ranks on this node launched since the last look."""
        before, service.launched = service.launched, {}
        devices: dict[int, set[int | None]] = {}
        for rank, _ in answer.launched.values():
            devices.setdefault(rank.pid or 0, set()).add(rank.device)
        for at, (rank, launched) in answer.launched.items():
            gpu = _gpu_of(rank, key.owner, whole, devices[rank.pid or 0])
            if gpu is None:
                continue
            service.launched[at] = launched
            for name, count in launched.items():
                labels = str(gpu.index), gpu.uuid, name
                gained = max(0, count - before.get(at, launched).get(name, 0))
                self._launched[labels] = self._launched.get(labels, 0.0) + gained

    def _reading(
        self, places: dict[ServiceKey, ServiceProcesses], left_out: tuple[Unread, ...]
    ) -> Reading:
        """What the services said last. Raises the first failure if none said anything."""
        services = self._services
        errors = [service.error for service in services.values() if service.error is not None]
        closed = sum(isinstance(error, PermissionError) for error in errors)
        failures = [error for error in errors if not isinstance(error, PermissionError)]
        said = {key: service.said for key, service in services.items() if service.said is not None}
        if failures and not said:
            raise failures[0].with_traceback(None)
        unanswered = (
            *UNANSWERED.at(float(len(failures)), "garbled"),
            *UNANSWERED.at(float(closed), "no_permission"),
            *UNANSWERED.at(float(sum(s.ambiguous for s in services.values())), "ambiguous"),
        )
        if not said:
            return Reading(unanswered if closed else (), unread=left_out)
        identities = [
            i for place in places.values() for found in place.gpus.values() for i in found
        ]
        present = {identity.uuid for identity in identities}
        self._launched = {at: n for at, n in self._launched.items() if at[1] in present}
        answering = {uuid for key in said for uuid in services[key].gpus}
        awaited = {labels for each in said.values() for labels in each.awaited}
        return Reading(
            (
                *COMMUNICATORS.at(float(sum(each.communicators for each in said.values()))),
                *STALLED.at(float(sum(each.stalled for each in said.values()))),
                *(sample for labels in sorted(awaited) for sample in AWAITED.at(1.0, *labels)),
                *ERRORS.at(float(sum(each.failed for each in said.values()))),
                *(
                    sample
                    for labels, launches in self._launched.items()
                    if labels[1] in answering
                    for sample in COLLECTIVES.at(launches, *labels)
                ),
                *unanswered,
            ),
            unread=left_out,
        )


def _in_turns(
    places: dict[ServiceKey, ServiceProcesses], when: Callable[[ServiceKey], Any]
) -> list[ServiceKey]:
    """Services by when something was; the owners, and then the GPUs of each, take turns."""
    owned = ((_budget_key(places[key]), key) for key in sorted(places, key=when))
    return [key for _, key in in_turns(owned)]


def _budget_key(found: ServiceProcesses) -> tuple[str, str]:
    """Whose a service is, and a GPU of his, for ``bounded``."""
    gpus = (gpu.uuid for gpus in found.gpus.values() for gpu in gpus)
    return next(iter(found.holders.values())).budget(), min(gpus, default="")


def _addresses(holder: Holder) -> set[str] | None:
    """The node's own addresses in the network namespace of a process; None if unknown."""
    net = f"/proc/{holder.pid}/net"
    try:
        routes = holder.ask(lambda: holder.node.read_text(f"{net}/fib_trie"))
    except OSError:
        return None
    found = set(OWN_ADDRESS.findall(routes))
    with contextlib.suppress(OSError, ValueError):  # without IPv6
        for line in holder.ask(lambda: holder.node.read_text(f"{net}/if_inet6")).splitlines():
            found.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line[:32])))
    return found


def _merge_places(places: dict[ServiceKey, ServiceProcesses], key: ServiceKey) -> ServiceProcesses:
    """The places of all jobs of an owner at an address."""
    whole = ServiceProcesses()
    for other, place in places.items():
        if other.shared == key.shared:
            whole.add(place)
    return whole


def _gpu_of(
    rank: Rank, owner: Tenant, whole: ServiceProcesses, devices: Collection[int | None]
) -> Identity | None:
    """The GPU of a rank, given the devices of all ranks of its process; None if it is not known.

    NCCL's numbers count only the GPUs that its container sees, but in the same order.
    """
    mine = sorted(whole.gpus.get(rank.pid or 0, ()), key=lambda gpu: gpu.index)
    if len(mine) == 1:
        return mine[0]
    known = sorted(device for device in devices if device is not None)
    if len(known) == len(devices) == len(mine) and rank.device is not None:
        return mine[known.index(rank.device)]
    if owner.pod or owner.container:
        return None
    return next((gpu for gpu in mine if gpu.index == rank.device), None)


def _leads(answer: Answer, ranks: set[str]) -> bool:
    """Whether a rank 0 runs on this node."""
    if answer.leads is not None:
        return answer.leads
    return not ranks or "0" in ranks  # a text answer may not name rank 0


def _service_reading(service: Service, answer: Answer, now: float) -> ServiceReading:
    """The reading of an answer, given the earlier progress of its communicators."""
    kept = now - RESERVE_INTERVAL
    before = {name: seen for name, seen in service.behind.items() if seen[1] > kept}
    stalled = [
        found for found in answer.behind if before.get(found.name, (None,))[0] == found.state
    ]
    seen = {**before, **{found.name: (found.state, now) for found in answer.behind}}
    service.behind = dict(list(seen.items())[-MAX_BEHIND:])
    awaited = [
        *((name, rank, why) for name, rank, why in answer.missing),
        *((found.name, rank, "behind") for found in stalled for rank in found.ranks),
    ]
    labels = dict.fromkeys(_labels(*each) for each in awaited)
    return ServiceReading(
        answer.communicators,
        len(stalled),
        len(answer.failed),
        frozenset(list(labels)[:MAX_AWAITED]),
    )


def _labels(communicator: str, rank: Rank, reason: str) -> tuple[str, ...]:
    pid, device = ("" if number is None else str(number) for number in (rank.pid, rank.device))
    return communicator, str(rank.number), rank.host, pid, device, reason
