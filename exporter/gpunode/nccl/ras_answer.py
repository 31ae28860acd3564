"""What an NCCL RAS service answers, in JSON or text: what is wrong with which of its job's ranks.

The service is a process of a job, so it may say anything. What is kept of an answer does not grow
with it, and what NCCL would not say is refused with ``ValueError``. The formats are those of
https://github.com/NVIDIA/nccl/blob/master/src/ras/client_support.cc
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

RANKS = 1 << 16
"""The most ranks of an answer, a rank counted once for each of its communicators."""

MAX_COMMUNICATORS = 1 << 14
"""The most communicators of an answer."""

MAX_BEHIND = 1024
"""The most communicators of an answer to look at for a stall."""

MAX_LOCAL_RANKS = 1024
"""The most ranks on this node, counted as above."""

FAILED = 4096
"""The most failed ranks to count."""

MAX_AWAITED = 16
"""The most awaited ranks to name."""

KINDS = 256
"""The most different numbers of launches in a communicator. Its ranks do the same, some later."""

VALUES = 1 << 19
"""The most values and names in JSON: those of the most ranks and communicators together."""

MAX_DEPTH = 8
"""How deep a value that is not wanted may be nested."""

LINES = 1 << 17
"""The most lines of text."""

MAX_LINE = 256
MAX_VALUE = 4096
"""Characters. A rank in JSON has 500, and 1,000 if NCCL counted all that it can launch."""

MAX_HOST = 64

COLLECTIVES = frozenset(
    {
        "AllGather",
        "AllGatherV",
        "AllReduce",
        "AlltoAll",
        "Broadcast",
        "Gather",
        "PutSignal",
        "Recv",
        "Reduce",
        "ReduceScatter",
        "Scatter",
        "Send",
        "SendRecv",
        "Signal",
        "WaitSignal",
    }
)
"""What NCCL launches; any other name counts as ``other``.
https://github.com/NVIDIA/nccl/blob/master/src/collectives.cc (ncclFuncToString)
"""

GOOD_RESULTS = (0, 7)
"""ncclSuccess and ncclInProgress."""

NO_COMMA = re.compile(r'("nvml_dev": \d+)(\s*"status": )')
"""What NCCL 2.28.9 writes of a rank that does not answer, which without a comma is no JSON."""

NAME = re.compile(r"(?:0x)?0{0,15}([0-9a-f]{1,16})")
NOT_IN_A_HOST = re.compile(r"[^0-9A-Za-z.:%_-]")

Launches = dict[str, int]
"""How many of each collective were launched."""


@dataclass(frozen=True, slots=True)
class Rank:
    """A rank and where it runs; NCCL's device index counts only those that its container sees."""

    number: int
    host: str = ""
    pid: int | None = None
    device: int | None = None


@dataclass(frozen=True, slots=True)
class ServicePeers:
    """The processes whose service is asked, as the kernel knows them."""

    pids: Collection[int] = ()
    """Their processes on GPUs of this node, by the ids in their PID namespace."""

    strangers: Collection[int] = ()
    """The processes of others in that namespace."""

    hosts: Collection[str] | None = None
    """The addresses of this node in their network namespace; None if unknown."""

    def has(self, rank: Rank) -> bool:
        """Whether a rank is one of their processes on this node."""
        return rank.pid in self.pids and self._is_here(rank)

    def may_name(self, rank: Rank) -> bool:
        """Whether a rank may be theirs: on another node it may, as only they would know."""
        return rank.pid not in self.strangers or not self._is_here(rank)

    def _is_here(self, rank: Rank) -> bool:
        return self.hosts is None or rank.host in self.hosts


@dataclass(slots=True)
class RasCommunicator:
    """A communicator while it is read: of the ranks that launched the same, only the first few."""

    name: str = ""
    furthest: Launches = field(default_factory=dict)
    least: Launches = field(default_factory=dict)
    alike: dict[tuple[tuple[str, int], ...], list[Rank]] = field(default_factory=dict)
    state: int = 0
    """Differs where a rank launched something; the same in whichever order they are listed."""

    missing: list[tuple[Rank, str]] = field(default_factory=list)
    ranks: list[tuple[Rank, Launches]] = field(default_factory=list)
    """Those that the asked run here."""

    def add(self, launches: Launches, rank: Rank | None = None) -> None:
        """Take what a rank launched, or what several did that are not named."""
        for name, count in launches.items():
            self.furthest[name] = max(self.furthest.get(name, 0), count)
            self.least[name] = min(self.least.get(name, count), count)
        kind = tuple(sorted(launches.items()))
        self.state = (self.state + hash((rank.number if rank else None, kind))) % (1 << 64)
        if rank is not None and (kind in self.alike or len(self.alike) < KINDS):
            named = self.alike.setdefault(kind, [])
            if len(named) < MAX_AWAITED:
                named.append(rank)

    @property
    def differs(self) -> bool:
        """Whether a rank has launched fewer collectives than another.

        A text that tells of few ranks ahead names none of those behind.
        """
        return self.least != self.furthest

    def behind(self) -> list[Rank]:
        """The first ranks that have launched fewer collectives than another, the rarest first."""
        late = [
            ranks
            for kind, ranks in self.alike.items()
            if any(self.furthest[name] > count for name, count in kind)
        ]
        return [rank for ranks in sorted(late, key=len) for rank in ranks][:MAX_AWAITED]


@dataclass(frozen=True, slots=True)
class LaggingCommunicator:
    """A communicator in which ranks are behind, those that are named, and how far it has come."""

    name: str
    state: int
    ranks: list[Rank]


@dataclass(slots=True)
class Answer:
    """What a service reported of its job."""

    asked: ServicePeers
    communicators: int = 0
    behind: list[LaggingCommunicator] = field(default_factory=list)
    missing: list[tuple[str, Rank, str]] = field(default_factory=list)
    """Ranks that do not answer, with their communicator and why."""

    failed: set[tuple[str, int]] = field(default_factory=set)
    """Their hosts and processes; where those are unknown, the rank below zero."""

    launched: dict[tuple[str, int], tuple[Rank, Launches]] = field(default_factory=dict)
    """What the ranks that the asked run here launched, by communicator and rank."""

    here: set[int] = field(default_factory=set)
    """The processes of the asked that it names: in JSON, all that its job has here."""

    per_node: frozenset[int] | None = None
    """In text, how many processes of the job each node has; None in JSON."""

    leads: bool | None = None
    """Whether the asked run a rank 0 here; None if the answer names none."""

    listed: int = 0

    def place(self, rank: Rank) -> bool:
        """Whether a rank is a process of the asked here, which is noted."""
        here = self.asked.has(rank)
        if here and rank.pid is not None:
            self.here.add(rank.pid)
        return here

    def rank(self, into: RasCommunicator, rank: Rank, launches: Launches) -> None:
        """Take a rank that answered."""
        self._count_ranks()
        into.add(launches, rank)
        here = self.place(rank)
        if rank.number == 0:
            self.leads = bool(self.leads) or here
        if here and len(into.ranks) < MAX_LOCAL_RANKS:
            into.ranks.append((rank, launches))

    def missed(self, into: RasCommunicator, rank: Rank, why: str) -> None:
        """Take a rank that did not answer."""
        self._count_ranks()
        self.place(rank)
        if len(into.missing) < MAX_AWAITED and self.asked.may_name(rank):
            into.missing.append((rank, why))

    def fail(self, rank: Rank) -> None:
        """Count a rank whose initialisation or last operation failed."""
        if len(self.failed) < FAILED:
            self.failed.add((rank.host, -1 - rank.number if rank.pid is None else rank.pid))

    def finish(self, communicator: RasCommunicator) -> None:
        """Take a communicator of which all ranks have been read."""
        if communicator.differs and len(self.behind) < MAX_BEHIND:
            named = [rank for rank in communicator.behind() if self.asked.may_name(rank)]
            self.behind.append(LaggingCommunicator(communicator.name, communicator.state, named))
        room = MAX_AWAITED - len(self.missing)
        self.missing += [(communicator.name, *each) for each in communicator.missing[:room]]
        for rank, launches in communicator.ranks:
            key = communicator.name, rank.number
            before = self.launched.get(key)
            if before or len(self.launched) < MAX_LOCAL_RANKS:
                self.launched[key] = rank, {**before[1], **launches} if before else launches

    def _count_ranks(self) -> None:
        self.listed += 1
        if self.listed > RANKS:
            raise ValueError(f"more than {RANKS} ranks")


class JsonWalker:
    """Walks through JSON without holding it, in time and depth that the walker chooses."""

    decoder = json.JSONDecoder()
    space = re.compile(r"[ \t\n\r]*")

    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at
        self.left = VALUES

    def value(self) -> object:
        """A value of few characters."""
        self._count()
        self.peek()
        window = self.text[self.at : self.at + MAX_VALUE]
        try:
            found, end = self.decoder.raw_decode(window)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        if end == MAX_VALUE:
            raise ValueError(f"a value of more than {MAX_VALUE} characters")
        self.at += end
        return found

    def fields(self) -> Iterator[str]:
        """The names in an object; each of their values is to be read before the next name."""
        for _ in self._between("{", "}"):
            name = self.value()
            if type(name) is not str:
                raise ValueError(f"not a name at {self.at}")
            self._expect(":")
            yield name

    def items(self) -> Iterator[None]:
        """Comes to each value of an array, which is to be read before the next."""
        return self._between("[", "]")

    def skip(self, depth: int = MAX_DEPTH) -> None:
        """Read a value of any length that is not wanted."""
        first = self.peek()
        if depth and first == "{":
            for _ in self.fields():
                self.skip(depth - 1)
        elif depth and first == "[":
            for _ in self.items():
                self.skip(depth - 1)
        else:
            self.value()

    def peek(self) -> str:
        """The next character that is not white space, empty at the end."""
        match = self.space.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.text[self.at : self.at + 1]

    def _between(self, first: str, last: str) -> Iterator[None]:
        self._expect(first)
        if self.peek() != last:
            yield
            while self.peek() == ",":
                self._count()
                self.at += 1
                yield
        self._expect(last)

    def _count(self) -> None:
        self.left -= 1
        if not self.left:
            raise ValueError(f"more than {VALUES} values")

    def _expect(self, wanted: str) -> None:
        if self.peek() != wanted:
            raise ValueError(f"not JSON: no {wanted} at {self.at}")
        self.at += 1


def read_json(said: str, at: int, asked: ServicePeers) -> Answer:
    """Read an answer in JSON that begins at a place in a text."""
    answer, walk, complete = Answer(asked), JsonWalker(NO_COMMA.sub(r"\1,\2", said), at), False
    for name in walk.fields():
        if name == "communicators":
            complete = True
            for _ in walk.items():
                answer.communicators += 1
                if answer.communicators > MAX_COMMUNICATORS:
                    raise ValueError(f"more than {MAX_COMMUNICATORS} communicators")
                _read_communicator(walk, answer)
        else:
            walk.skip()
    if not complete or walk.peek():
        raise ValueError("not an answer of NCCL RAS: no communicators, or more than an object")
    return answer


def _read_communicator(walk: JsonWalker, answer: Answer) -> None:
    communicator = RasCommunicator()
    for name in walk.fields():
        if name == "ranks":
            for _ in walk.items():
                _read_rank(walk.value(), communicator, answer)
        elif name == "missing_ranks":
            for _ in walk.items():
                _read_missing(walk.value(), communicator, answer)
        elif name == "hash":
            match = NAME.fullmatch(str(walk.value()))
            if not match:
                raise ValueError("a communicator whose hash is not one")
            communicator.name = match[1]
        else:
            walk.skip()
    if not communicator.name:
        raise ValueError("a communicator without a hash")
    answer.finish(communicator)


def _read_rank(found: object, communicator: RasCommunicator, answer: Answer) -> None:
    entry = _object(found)
    rank = _rank(entry)
    launches: Launches = {}
    for name, count in _object(entry.get("collective_counts", {})).items():
        known = name if name in COLLECTIVES else "other"
        launches[known] = launches.get(known, 0) + _whole_number(count, 64)
    status = _object(entry.get("status", {}))
    if any(
        _whole_number(status.get(of, 0), 31) not in GOOD_RESULTS
        for of in ("init_state", "async_error")
    ):
        answer.fail(rank)
    answer.rank(communicator, rank, launches)


def _read_missing(found: object, communicator: RasCommunicator, answer: Answer) -> None:
    entry = _object(found)
    rank = _rank(entry)
    status = _object(entry.get("status", {}))
    if status.get("considered_dead") is True:
        answer.missed(communicator, rank, "dead")
    elif status.get("unresponsive") is True:
        answer.missed(communicator, rank, "unresponsive")
    else:
        answer.place(rank)


def _object(found: object) -> dict[str, object]:
    if type(found) is not dict:
        raise ValueError(f"a {type(found).__name__} where an object belongs")
    return found


def _whole_number(found: object, bits: int) -> int:
    if type(found) is not int or not 0 <= found < 1 << bits:
        raise ValueError(f"not a number of {bits} bits")
    return found


def _rank(entry: dict[str, object]) -> Rank:
    host = entry.get("host", "")
    if type(host) is not str:
        raise ValueError("a host that is not text")
    host = NOT_IN_A_HOST.sub("?", host[:MAX_HOST])
    pid, device = (_known_number(entry.get(name, -1)) for name in ("pid", "nvml_dev"))
    return Rank(_whole_number(entry.get("rank"), 31), host, pid, device)


def _known_number(found: object) -> int | None:
    """A number, or None for -1, which NCCL writes for a process that it does not find."""
    return None if found in (-1, None) else _whole_number(found, 31)


GROUP = re.compile(r" *\d{1,5} +(\d{1,8}) +\d{1,8} +[\d-]{1,17} +\d{1,8} +\d{1,8} +[A-Z]+ +[A-Z,]+")
TROUBLE = re.compile(r"#\d{1,9}-\d{1,9} \(0{0,15}(?P<name>[0-9a-f]{1,16})\) (?P<what>[A-Z]+)")
COUNTS = re.compile(
    r" +Communicator ranks have different (?P<collective>\w{1,32}) operation counts"
)
SEVERAL = re.compile(
    r" +\d{1,8} ranks have "
    r"(?:launched up to operation (?P<count>\d{1,18})|not launched any operations)"
)
RANK_LINE = re.compile(
    r" +Rank (?P<rank>\d{1,8})"
    r"(?P<own> has (?:launched up to operation (?P<count>\d{1,18})|not launched any operations)"
    r"| reported [A-Za-z ]{1,40})?"
    r" -- (?:GPU (?P<device>\d{1,4})(?: \(NVML (?P<nvml>\d{1,4})\))?"
    r" managed by process (?P<pid>\d{1,9}) on node (?P<host>[0-9a-fA-F.:]{1,64})"
    r"|\[process information not found\])"
)
SECTION = re.compile(r"INCOMPLETE|DEAD|TIMEOUT|Warnings")
PROCESS = re.compile(
    r" +Process (?P<pid>\d{1,9}) on node (?P<host>[0-9a-fA-F.:]{1,64}) managing GPUs? "
    r"(?P<device>\d{1,4})?(?: \(NVML (?P<nvml>\d{1,4})\))?.*"
)
MISSING = re.compile(r" +The missing ranks?: (?P<ranks>\d{1,8}(?:,\d{1,8}){0,63})")
REPORTED = re.compile(r" +(?P<ranks>\d{1,8}) ranks reported [A-Za-z ]{1,40}")
LINE = re.compile(r"[^\r\n]+")
SUMMARY = re.compile(
    r"Nodes +Processes[^\n]{0,99}\n[^\n]{0,99}per node[^\n]{0,99}\n"
    r"(?P<rows>(?: *\d{1,9}(?: +\d{1,9}){1,4} *\n){1,64})"
)
"""How many nodes have how many processes each."""

HEADER = re.compile(r"Group +Comms|No communicator data collected!")


def read_text(said: str, asked: ServicePeers) -> Answer:
    """Read an answer in text: it lists only communicators in trouble, with some of their ranks."""
    if not HEADER.search(said):
        raise ValueError(f"not an answer of NCCL RAS: {said[:60]!r}")
    summary = SUMMARY.search(said)
    rows = summary["rows"].splitlines() if summary else []
    counts = frozenset(int(row.split()[1]) for row in rows) or frozenset((0,))
    reader = TextReader(Answer(asked, per_node=counts))
    for line in _lines(said):
        reader.read(line)
    return reader.finish()


@dataclass(slots=True)
class TextReader:
    """Where the reader of a text is, and what of it is to be put together.

    NCCL 2.24 and 2.25 tell the processes that are gone and the ranks that are missing, but not
    which belong together: that is known where there is one of each.
    """

    answer: Answer
    communicator: RasCommunicator = field(default_factory=RasCommunicator)
    section: str = ""
    """What the lines are about: processes that are gone, or what ails the communicator."""

    collective: str = ""
    several: int = 0
    """What the ranks launched that are listed next."""

    unlisted: int = 0
    """Ranks with an error that are not listed, or not yet."""

    counted: int = 0
    """The most of them that any communicator had; those of another are taken for the same."""

    troubled: int = 0
    gone: dict[tuple[str, int], tuple[int | None, str]] = field(default_factory=dict)
    """The processes that are gone: the GPU of each, if it is one, and why."""

    reasons: set[str] = field(default_factory=set)
    """Of all of them."""

    def read(self, line: str) -> None:
        """Take a line."""
        if (match := RANK_LINE.fullmatch(line)) is None:
            self._count_unlisted()
        if match:
            self._rank(match)
        elif match := GROUP.fullmatch(line):
            known = self.answer.communicators + int(match[1])
            self.answer.communicators = min(MAX_COMMUNICATORS, known)
        elif match := TROUBLE.fullmatch(line):
            self._begin(match["name"], match["what"])
        elif SECTION.fullmatch(line):
            self._begin("", line)
        elif match := COUNTS.fullmatch(line):
            self.collective = match["collective"] if match["collective"] in COLLECTIVES else "other"
        elif match := SEVERAL.fullmatch(line):
            self.several = int(match["count"] or 0)
            if self.collective:
                self.communicator.add({self.collective: self.several})
        elif self.section == "ERROR" and (match := REPORTED.fullmatch(line)):
            self.unlisted = min(FAILED, int(match["ranks"]))
        elif not self.communicator.name and (match := PROCESS.fullmatch(line)):
            self._process(match)
        elif self.section == "INCOMPLETE" and (match := MISSING.fullmatch(line)):
            self._count_missing([int(rank) for rank in match["ranks"].split(",")][:MAX_AWAITED])

    def finish(self) -> Answer:
        """What the text says."""
        self._count_unlisted()
        self.answer.finish(self.communicator)
        return self.answer

    def _begin(self, name: str, section: str) -> None:
        if name != self.communicator.name:
            self.troubled += bool(name)
            if self.troubled > MAX_COMMUNICATORS:
                raise ValueError(f"more than {MAX_COMMUNICATORS} communicators")
            self.answer.finish(self.communicator)
            self.communicator = RasCommunicator(name)
        self.section, self.collective = section, ""

    def _rank(self, match: re.Match[str]) -> None:
        if match["pid"] is None:
            rank = Rank(int(match["rank"]))
        else:
            device = int(match["nvml"] or match["device"])
            rank = Rank(int(match["rank"]), match["host"], int(match["pid"]), device)
        if self.section == "INCOMPLETE":
            _, why = self.gone.get((rank.host, rank.pid or 0), (None, "unresponsive"))
            self.answer.missed(self.communicator, rank, why)
        elif self.section == "ERROR":
            self.answer.place(rank)
            self.unlisted -= bool(self.unlisted)
            self.answer.fail(rank)
        elif self.collective:
            launched = int(match["count"] or 0) if match["own"] else self.several
            self.answer.rank(self.communicator, rank, {self.collective: launched})

    def _process(self, match: re.Match[str]) -> None:
        why = {"DEAD": "dead", "INCOMPLETE": "unresponsive"}.get(self.section)
        if why and len(self.gone) < FAILED:
            device = match["nvml"] or match["device"]
            place = None if device is None else int(device)
            self.gone[match["host"], int(match["pid"])] = place, why
            self.reasons.add(why)

    def _count_missing(self, ranks: list[int]) -> None:
        why = next(iter(self.reasons)) if len(self.reasons) == 1 else "unresponsive"
        for number in ranks:
            rank = Rank(number)
            if len(ranks) == len(self.gone) == 1:
                (((host, pid), (device, _)),) = self.gone.items()
                rank = Rank(number, host, pid, device)
            self.answer.missed(self.communicator, rank, why)

    def _count_unlisted(self) -> None:
        """Count ranks with an error of which only the number is reported."""
        for number in range(self.counted, self.unlisted):
            self.answer.fail(Rank(number))
        self.counted, self.unlisted = max(self.counted, self.unlisted), 0


def _lines(text: str) -> Iterator[str]:
    for number, match in enumerate(LINE.finditer(text)):
        if number == LINES:
            raise ValueError(f"more than {LINES} lines")
        if match.end() - match.start() <= MAX_LINE:
            yield match[0]
