"""The shorthand of the scenarios.

A scenario names its nodes, its jobs, what happens to both from when, and who is notified::

    a rank that is stopped holds up 16 GPUs:
      why: Everything stands until somebody restarts it.
      lasts: 60m
      nodes: {n: 2x8}
      jobs:
        llama:
          owner: pytorchjob research/llama
          gpus: n
          does: {0m: trains, 20m: hangs late=n-2/3 reason=stopped}
      happens:
        - 0m n infiniband
        - 40m..50m n-1 unreachable
      notified:
        - page JobStalled workload=llama by=22m

Nodes ``{n: 2x8}`` are ``n-1`` and ``n-2`` with 8 GPUs each. ``n`` means both, ``n-[1-2]`` too,
``n-2/3`` one GPU and ``n/0-3`` half of them. Times count from the beginning of the scenario. What
a job does is a row of ``gpus.BEHAVIOURS``, what happens to a node one of ``nodes.EVENTS``; both
take options. ``30m..90m/2m-in-6m`` is the first 2 of every 6 minutes from 30 to 90.

``notified`` names everybody who is: ``page``, ``ticket`` or ``info``, the alert and some of its
labels (regular expressions), and optionally the times ``by`` which it must have fired, until which
it ``stays``, and from which it is ``gone``. ``ticket+`` is at least a ticket, and what ``may`` come
need not. Infos that are not named do not matter. There are at most as many pages as named.

A job that ``plays`` a program is not pure: its shares and its draw are those of recorded windows.
``known_failure`` marks a scenario whose want the rules do not meet. It is counted, published and
has to go as soon as they do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Severity = Literal["page", "ticket", "info"]
Kind = Literal["training", "serving", "interactive", "unknown"]
Options = dict[str, str]

SCALE = {"s": 1, "m": 60, "h": 3600}
DURATION = re.compile(r"(?:\d+[smh])+")


def seconds(text: str) -> int:
    """A duration such as ``1h30m`` in seconds."""
    if not DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is no duration such as 90m")
    return sum(int(part[:-1]) * SCALE[part[-1]] for part in re.findall(r"\d+[smh]", text))


def words(text: str) -> tuple[list[str], Options]:
    """The words of a line, and its options."""
    parts = text.split()
    options = dict(part.split("=", 1) for part in parts if "=" in part)
    return [part for part in parts if "=" not in part], options


@dataclass(frozen=True, slots=True)
class Doing:
    """What a job does: a behaviour with options."""

    name: str
    options: Options = field(default_factory=dict)


def doing(text: object) -> object:
    """``hangs late=n-2/3``."""
    if not isinstance(text, str):
        return text
    name, options = words(text)
    return Doing(" ".join(name), options)


def timeline(given: object) -> object:
    """What is done from when, in order; ``30m..90m/10m`` says it again every 10 minutes."""
    if not isinstance(given, dict):
        return given
    found: dict[int, object] = {}
    for when, what in given.items():
        begin, _, rest = str(when).partition("..")
        if not rest:
            found[seconds(begin)] = doing(what)
            continue
        end, _, every = rest.partition("/")
        for start in range(seconds(begin), seconds(end), seconds(every)):
            for offset, one in what.items():
                found[start + seconds(offset)] = doing(one)
    return dict(sorted(found.items()))


Timeline = Annotated[dict[int, Doing], BeforeValidator(timeline)]
Seconds = Annotated[int, BeforeValidator(lambda text: seconds(str(text)))]


@dataclass(frozen=True, slots=True)
class ScenarioEvent:
    """What happens to nodes or to their GPUs, and when."""

    spans: tuple[tuple[int, int], ...]
    where: str
    what: str
    options: Options

    def at(self, moment: int) -> tuple[bool, int]:
        """Whether it happens at a moment, and since when it does or last did."""
        active, since = False, -1
        for begin, end in self.spans:
            if begin <= moment:
                active, since = moment < end, begin
        return active, since

    def times(self, moment: int) -> int:
        """How often it has begun."""
        return sum(begin <= moment for begin, _ in self.spans)


FOREVER = 10**9
UNSEEN = "no Prometheus"


def event(given: object) -> object:
    """``30m..90m n-1 unreachable``."""
    if not isinstance(given, str):
        return given
    (when, where, *what), options = words(given)
    begin, _, rest = when.partition("..")
    end, _, share = rest.partition("/")
    until = seconds(end) if end else FOREVER
    spans = [(seconds(begin), until)]
    if share:
        length, _, every = share.partition("-in-")
        starts = range(seconds(begin), until, seconds(every))
        spans = [(start, start + seconds(length)) for start in starts]
    return ScenarioEvent(tuple(spans), where, " ".join(what), options)


@dataclass(frozen=True, slots=True)
class ExpectedNotification:
    """Somebody who is notified."""

    severities: tuple[Severity, ...]
    """One of these."""

    alert: str
    labels: Options
    by: int | None
    stays: int | None
    gone: int | None
    must: bool = True

    def __str__(self) -> str:
        subject = "".join(f" {name}={value}" for name, value in self.labels.items())
        return f"{'' if self.must else 'may '}{' or '.join(self.severities)} {self.alert}{subject}"


HOW: dict[str, tuple[Severity, ...]] = {
    "page": ("page",),
    "ticket+": ("ticket", "page"),
    "ticket": ("ticket",),
    "info": ("info",),
}


def wanted(given: object) -> object:
    """``page JobStalled workload=llama by=22m``."""
    if not isinstance(given, str):
        return given
    (*may, severity, alert), options = words(given)
    if severity not in HOW or may not in ([], ["may"]):
        raise ValueError(f"{given!r} begins with none of {', '.join(HOW)}")
    by, stays, gone = (
        seconds(options.pop(name)) if name in options else None for name in ("by", "stays", "gone")
    )
    return ExpectedNotification(HOW[severity], alert, options, by, stays, gone, not may)


class Strict(BaseModel):
    """A part of a scenario; what it does not know is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ScenarioJob(Strict):
    """A job, the GPUs it has, and what it does on them."""

    owner: str
    """``deployment``, ``statefulset``, ``indexed-job``, ``pytorchjob``, ``job``, ``pod`` or
    ``ray`` with namespace and name, or ``raycluster`` if its head has GPUs as well; ``slurm`` with
    user and number; or ``user`` with a name."""

    gpus: str
    does: Timeline
    but: dict[str, Timeline] = Field(default_factory=dict)
    """What some of its GPUs do instead."""

    kind: Kind = "training"
    pod_has: Literal["node", "gpu"] = "node"
    """What one pod has: all of the job's GPUs on a node, or one."""

    in_place: bool = False
    """Whether its processes end and begin in a container that stays, as under a shell."""

    ranks: bool = True
    """Whether its processes have a rank and a world size."""

    communicator: bool = False
    """Whether NCCL's log is read."""

    ras: bool = False
    """Whether NCCL's RAS service answers."""

    client: bool = False
    """Whether it reports steps or requests."""

    engine: str = ""
    """The inference engine that answers on each node, or in each pod of a GPU, if it is asked."""

    step: float = 1.0
    """Seconds that a step takes."""

    plays: str = ""
    """The program that its GPUs play from recorded windows (``recordings``), with their noise."""


FAILURES = ("missed", "too much")
"""What can differ from what is wanted: somebody hears nothing, late or no more; or hears too much.
What does both is missed."""


class Scenario(Strict):
    """What happens to a fleet, and who is notified."""

    why: str
    lasts: Seconds
    every: Annotated[Seconds, Field(lt=300)] = 60
    """The time between two scrapes and evaluations, within the five minutes of a look back."""

    nodes: dict[str, Annotated[str, Field(pattern=r"^\d+x\d+$")]] = Field(default_factory=dict)
    jobs: dict[str, ScenarioJob] = Field(default_factory=dict)
    happens: tuple[Annotated[ScenarioEvent, BeforeValidator(event)], ...] = ()
    notified: tuple[Annotated[ExpectedNotification, BeforeValidator(wanted)], ...] = ()
    series: dict[str, str] = Field(default_factory=dict)
    """Series as they are, in promtool's notation, a value each ``every``; without ``cluster``."""

    known_failure: Annotated[str, Field(pattern=f"^$|^({'|'.join(FAILURES)}): .+")] = ""
    """``missed`` or ``too much``, and why, where the rules do not do what is wanted."""

    @property
    def gpus(self) -> dict[str, int]:
        """How many GPUs each node has."""
        sizes = {pool: size.split("x") for pool, size in self.nodes.items()}
        return {
            f"{pool}-{number}": int(gpus)
            for pool, (count, gpus) in sizes.items()
            for number in range(1, int(count) + 1)
        }

    @property
    def unseen(self) -> bool:
        """Whether there is a time in which no Prometheus scrapes."""
        return any(event.what == UNSEEN for event in self.happens)

    def places(self, where: str) -> Iterator[tuple[str, tuple[int, ...] | None]]:
        """The nodes that a selector names, each with the GPUs that it names there, if any."""
        for one in where.split("+"):
            names, slash, part = one.partition("/")
            indices = tuple(numbers(part)) if slash else None
            found = [node for node in self.gpus if _selects(names, node)]
            if not found:
                raise LookupError(f"{where!r} names no node")
            for node in found:
                yield node, indices

    def at(self, where: str) -> list[tuple[str, int]]:
        """The GPUs that a selector names."""
        return [
            (node, gpu)
            for node, indices in self.places(where)
            for gpu in (range(self.gpus[node]) if indices is None else indices)
        ]


def numbers(text: str) -> Iterator[int]:
    """``0-3`` or ``5``."""
    first, _, last = text.partition("-")
    yield from range(int(first), int(last or first) + 1)


def _selects(names: str, node: str) -> bool:
    pool, _, number = node.rpartition("-")
    if names in (pool, node):
        return True
    bounds = re.fullmatch(r"(\w+)-\[(\d+-\d+)\]", names)
    return bounds is not None and bounds[1] == pool and int(number) in numbers(bounds[2])


FOLDER = Path(__file__).parent


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def by_file(folder: Path = FOLDER) -> dict[str, dict[str, Scenario]]:
    """The scenarios of each file by name."""
    found: dict[str, dict[str, Scenario]] = {}
    names: set[str] = set()
    for path in sorted(folder.glob("*.yaml")):
        own = found.setdefault(path.stem, {})
        for name, given in yaml.load(path.read_text(), _Loader).items():
            if name in names:
                raise ValueError(f"{path.name}: there are two scenarios {name!r}")
            names.add(name)
            try:
                own[name] = Scenario.model_validate(given)
            except ValueError as error:
                raise ValueError(f"{path.name}: {name}: {error}") from error
    return found


def scenarios(folder: Path = FOLDER) -> dict[str, Scenario]:
    """All scenarios by name."""
    return {name: one for own in by_file(folder).values() for name, one in own.items()}
