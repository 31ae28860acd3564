"""Whether slow nodes and GPUs are found by who waits for whom, on fleets whose truth is known.

Jobs of many sizes come at random, stay for hours to weeks, and some move to other nodes. A job may
be uneven by design: pipeline stages, experts, a first rank that does more. Sound hardware differs,
too. After some days, some nodes or GPUs become slow.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from alerts.model import seconds
from alerts.recording.behind import (
    CERTAIN,
    JOB_SPREAD,
    LEAST_SPREAD,
    MEAN_HOURS,
    QUARTILES_APART,
    WITHIN,
)
from alerts.settings import BEHIND_FROM, BEHIND_HOURS, BEHIND_PEERS, BEHIND_WAITS
from alerts.thresholds.table import THRESHOLDS
from bench.report import Report, Result, machine

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

NODES = 1250
JOBS = 400
GPUS = 8
DAY = 24
SOUND_DAYS = 5
DAYS = 19
WEEK = 7 * DAY
WARM = 2 * DAY
"""Hours before which no rule is asked."""

AFTER_HOURS = next(
    seconds(row.tiers[0].after) // 3600 for row in THRESHOLDS if row.alert == "NodeSlow"
)

SIZES = {1: 0.56, 2: 0.2, 4: 0.13, 8: 0.07, 16: 0.025, 32: 0.01, 64: 0.005}
"""How many of all jobs have so many nodes: 400 jobs fill the fleet."""

MEDIAN_HOURS, HOURS_SPREAD = 20.0, 1.0
MOVES = 0.15
"""How many jobs go on elsewhere when they end."""

TO_DEVIATION = 1.4826
PLAIN_BEYOND = 3.5
"""https://www.itl.nist.gov/div898/handbook/eda/section3/eda35h.htm"""


# The formula of the rules


class Score(NamedTuple):
    """How much longer units take than their peers, and the bounds of that."""

    unit: Whole
    ratio: Floats
    error: Floats

    @property
    def lower(self) -> Floats:
        return self.ratio - CERTAIN * self.error


def behind(job: Whole, blocked: Floats) -> Floats:
    """How much longer each unit of a job takes than the median of its peers, in one hour.

    Not a number where too few can be compared or where nobody waits.
    """
    own = 1.0 - blocked
    middle = quantile(job, own, 0.5)[job]
    most = quantile(job, blocked, 1.0)[job]
    known = (
        (np.bincount(job)[job] >= BEHIND_PEERS.figure) & (most > BEHIND_WAITS.figure) & (middle > 0)
    )
    return np.where(known, own / np.where(known, middle, 1.0) - 1.0, np.nan)


def score(unit: Whole, job: Whole, value: Floats) -> Score:
    """Scores of units by what each was behind in each of its jobs."""
    spread = (quantile(job, value, 0.75) - quantile(job, value, 0.25)) / QUARTILES_APART
    weight = (np.maximum(spread, LEAST_SPREAD) ** -2)[job]
    units, at = np.unique(unit, return_inverse=True)
    whole = np.bincount(at, weight)
    jobs = np.bincount(at).astype(float)
    ratio = np.bincount(at, weight * value) / whole
    between = np.bincount(at, weight * (value - ratio[at]) ** 2) / whole
    error = np.sqrt(1 / whole + between / jobs + (JOB_SPREAD / jobs) ** 2)
    return Score(units, ratio, error)


def quantile(group: Whole, value: Floats, q: float) -> Floats:
    """A quantile of each group as PromQL has it, by the number of the group."""
    order = np.lexsort((value, group))
    count = np.bincount(group)
    first = np.cumsum(count) - count
    place = q * np.maximum(count - 1, 0)
    low = np.floor(place).astype(int)
    ordered = value[order]
    there = count > 0
    found = np.full(len(count), np.nan)
    below = ordered[(first + low)[there]]
    above = ordered[(first + np.minimum(low + 1, count - 1))[there]]
    found[there] = below + (place - low)[there] * (above - below)
    return found


# The fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What is slow in a fleet from ``SOUND_DAYS`` on."""

    name: str
    one_in: int = 0
    """How many nodes there are for each that is slow; 0 where none is."""

    by: float = 0.0
    gpus: int = GPUS
    """How many GPUs of the node are slow."""

    share: float = 1.0
    """The share of the hours in which it is so, some hours on end."""

    link: bool = False
    """Whether it is so only where nodes exchange data one with another, not in a ring."""


class Hour(NamedTuple):
    """An hour of a fleet; nodes without a job have -1 for it."""

    job: Whole
    """The job of each node."""

    place: Whole
    """The number of each node's place in its job: each pair of node and job has one."""

    blocked: Floats
    """The share of the hour that each GPU of a node waits."""


@dataclass(slots=True)
class Job:
    """How a job divides its work, and how much all of its GPUs wait anyhow."""

    number: int
    size: int
    uneven: str
    first_more: float
    first_node: bool
    waits: float
    exchanges: bool
    together: bool


def hours(
    trouble: Trouble, bad: Whole, chance: np.random.Generator, nodes: int, days: int
) -> Iterator[Hour]:
    """A fleet hour by hour, of which some nodes become bad."""
    job_of = np.full(nodes, -1)
    place_of = np.full(nodes, -1)
    ends = np.full(nodes, -1.0)
    design = np.zeros((nodes, GPUS))
    waits, exchanges, together = np.zeros(nodes), np.zeros(nodes, bool), np.zeros(nodes, bool)
    hardware = chance.normal(0, 0.007, (nodes, GPUS)) + chance.normal(0, 0.004, (nodes, 1))
    noise = np.zeros((nodes, GPUS))
    slow_now = np.zeros(len(bad), bool)
    places: dict[tuple[int, int], int] = {}
    jobs = 0
    again: list[Job] = []
    wanted: Job | None = None
    for hour in range(-WARM, days * DAY):
        for job in np.unique(job_of[(ends <= hour) & (job_of >= 0)]):
            job_of[job_of == job] = -1
        free = chance.permutation(np.flatnonzero(job_of < 0))
        while True:
            if wanted is None:
                if again:
                    wanted = again.pop()
                else:
                    wanted = _job(jobs, chance)
                    jobs += 1
            if wanted.size > len(free):
                break
            own, free = free[: wanted.size], free[wanted.size :]
            lasts = MEDIAN_HOURS * np.exp(chance.normal(0, HOURS_SPREAD))
            begun = chance.random() if hour == -WARM else 1.0
            ends[own] = hour + max(1.0, lasts * begun)
            job_of[own] = wanted.number
            for node in own:
                place_of[node] = places.setdefault((wanted.number, int(node)), len(places))
            design[own] = _design(wanted, chance)
            waits[own], exchanges[own] = wanted.waits, wanted.exchanges
            together[own] = wanted.together
            if chance.random() < MOVES:
                again.append(wanted)
            wanted = None
        noise = 0.7 * noise + chance.normal(0, 0.004, noise.shape)
        noise += chance.normal(0, 0.002, (nodes, 1))
        takes = (1 + design) * (1 + hardware) * (1 + noise)
        if hour >= SOUND_DAYS * DAY:
            if hour % 3 == 0:
                slow_now = chance.random(len(bad)) < trouble.share
            slow = bad[slow_now & (exchanges[bad] | (not trouble.link))]
            takes[slow, : trouble.gpus] *= 1 + trouble.by
        busy = np.flatnonzero(job_of >= 0)
        _, group = np.unique(job_of[busy], return_inverse=True)
        slowest = quantile(group, takes[busy].max(axis=1), 1.0)[group]
        blocked = np.zeros((nodes, GPUS))
        blocked[busy] = 1 - takes[busy] / (slowest * (1 + waits[busy]))[:, None]
        blocked[~together] = 0.0
        told = np.clip(blocked + chance.normal(0, 0.005, blocked.shape), 0.0, 1.0)
        if hour >= 0:
            yield Hour(job_of.copy(), place_of.copy(), told)


def _job(number: int, chance: np.random.Generator) -> Job:
    size = int(chance.choice(list(SIZES), p=list(SIZES.values())))
    return Job(
        number,
        size,
        str(chance.choice(["even", "experts", "stages"], p=[0.7, 0.15, 0.15])),
        float(chance.uniform(0.02, 0.06) if chance.random() < 0.3 else 0.0),
        bool(chance.random() < 0.5),
        float(chance.uniform(0.02, 0.12)),
        bool(chance.random() < 0.4),
        bool(chance.random() < 0.85),
    )


def _design(job: Job, chance: np.random.Generator) -> Floats:
    """How much more than others the GPUs at each place have to do."""
    spread = 0.03 if job.uneven == "experts" else 0.004
    more = chance.normal(0, spread, (job.size, GPUS))
    if job.uneven == "stages":
        stages = min(4, job.size)
        of_stage = chance.uniform(-0.1, 0.1, stages)
        more += of_stage[np.arange(job.size) * stages // job.size][:, None]
    more[0, : GPUS if job.first_node else 1] += job.first_more
    return more


# What is found


class Found:
    """Since when a rule names which nodes, once it has for some hours on end."""

    def __init__(self) -> None:
        self.alarms: list[tuple[int, int]] = []
        """Each node that was named, and the hour from which on."""

        self._since: dict[int, int] = {}

    def tell(self, hour: int, nodes: Whole) -> None:
        """The nodes for which a rule holds in an hour."""
        self._since = {int(node): self._since.get(int(node), hour) for node in nodes}
        due = (node for node, since in self._since.items() if hour - since == AFTER_HOURS)
        self.alarms += ((node, hour) for node in due)

    def noticed(self, bad: Whole) -> list[int]:
        """After how many hours each of the bad nodes was named that was."""
        begins = SOUND_DAYS * DAY
        first: dict[int, int] = {}
        for node, hour in self.alarms:
            if node in bad and hour >= begins:
                first.setdefault(node, hour - begins)
        return list(first.values())

    def false(self, bad: Whole) -> int:
        """Alarms about nodes that were sound then."""
        begins = SOUND_DAYS * DAY
        return sum(node not in bad or hour < begins for node, hour in self.alarms)


class Places:
    """What each place of a job was behind within its last hours, of those seen within days."""

    def __init__(self) -> None:
        self.kept: deque[tuple[Whole, Floats]] = deque()
        self.sums, self.counts = np.zeros(0), np.zeros(0)
        self.last, self.seen = np.zeros(0), np.full(0, -np.inf)
        self.unit, self.job = np.zeros(0, int), np.zeros(0, int)

    def add(self, at: int, unit: Whole, place: Whole, job: Whole, value: Floats) -> None:
        """An hour; what is not a number is not known."""
        known = ~np.isnan(value)
        unit, place, job, value = unit[known], place[known], job[known], value[known]
        if len(place) and place.max() >= len(self.sums):
            more = place.max() + 1 - len(self.sums)
            self.sums, self.counts, self.last, self.unit, self.job = (
                np.pad(x, (0, more))
                for x in (self.sums, self.counts, self.last, self.unit, self.job)
            )
            self.seen = np.pad(self.seen, (0, more), constant_values=-np.inf)
        self.sums[place] += value
        self.counts[place] += 1
        self.unit[place], self.job[place] = unit, job
        self.kept.append((place, value))
        if len(self.kept) > MEAN_HOURS:
            old, gone = self.kept.popleft()
            self.sums[old] -= gone
            self.counts[old] -= 1
        enough = place[self.counts[place] >= BEHIND_HOURS.figure]
        self.last[enough] = self.sums[enough] / self.counts[enough]
        self.seen[enough] = at

    def means(self, at: int, days: int) -> tuple[Whole, Whole, Floats]:
        """What those were behind that were seen within days: the unit, the job and the mean."""
        there = np.flatnonzero(self.seen > at - days * DAY)
        _, job = np.unique(self.job[there], return_inverse=True)
        return self.unit[there], job, self.last[there]


def play(
    trouble: Trouble, seed: int, nodes: int = NODES, days: int = DAYS
) -> tuple[Whole, dict[str, Found]]:
    """The nodes that become slow, and what each rule names in a fleet."""
    chance = np.random.default_rng(seed)
    count = max(1, nodes // trouble.one_in) if trouble.one_in else 0
    bad = chance.choice(nodes, count, replace=False)
    found = {"score": Found(), "plain": Found()}
    places = Places()
    for at, hour in enumerate(hours(trouble, bad, chance, nodes, days)):
        node = np.flatnonzero(hour.job >= 0)
        _, job = np.unique(hour.job[node], return_inverse=True)
        each = np.arange(GPUS)
        gpu = (node[:, None] * GPUS + each).ravel()
        place = (hour.place[node][:, None] * GPUS + each).ravel()
        value = behind(np.repeat(job, GPUS), hour.blocked[node].ravel())
        places.add(at, gpu, place, np.repeat(hour.job[node], GPUS), value)
        if at < WARM:
            continue
        named = []
        for within in WITHIN:
            one = score(*places.means(at, within))
            named += [one.unit[one.lower > BEHIND_FROM.figure] // GPUS]
            node = one.unit // GPUS
            middle = quantile(node, one.lower, 0.5)
            named += [np.flatnonzero(middle > BEHIND_FROM.figure)]
        found["score"].tell(at, np.unique(np.concatenate(named)))
        unit, _, value = places.means(at, WITHIN[-1])
        units, back = np.unique(unit, return_inverse=True)
        mean = np.bincount(back, value) / np.bincount(back)
        away = mean - np.median(mean)
        beyond = away > PLAIN_BEYOND * TO_DEVIATION * np.median(np.abs(away))
        found["plain"].tell(at, np.unique(units[beyond] // GPUS))
    return bad, found


WAYS = ("score", "plain")
FEW_IN = {64: 1, 256: 2, 1250: 4}
"""Fleets for each number of nodes of which one is slow."""

BY = (0.03, 0.05, 0.1, 0.25)
ODD = (
    Trouble(name="a link that makes exchanges slow, by 12 %", one_in=64, by=0.12, link=True),
    Trouble(name="a hot GPU, slow by 10 %", one_in=64, by=0.1, gpus=1),
    Trouble(name="a noisy neighbour, 15 % in a third of the hours", one_in=64, by=0.15, share=0.33),
)
SOUND = Trouble(name="sound")
WANTED = {0.1: 0.9, 0.25: 0.95}
"""The share that is to be found, of nodes that are slow by so much."""

SEED = 3400
"""The first seed of the fleets whose results are published; constants were chosen on others."""


def slow_nodes() -> Report:
    """How many are found, how soon, and how many alarms are false."""
    results, details = [], []
    false: dict[str, list[int]] = {way: [] for way in WAYS}
    plan = [
        (Trouble(name=f"a node slow by {by:.0%}", one_in=one_in, by=by), fleets, WANTED.get(by))
        for by in BY
        for one_in, fleets in FEW_IN.items()
    ]
    plan += [(trouble, 1, None) for trouble in ODD]
    plan += [(SOUND, 3, None)]
    seed = SEED
    for trouble, fleets, wanted in plan:
        bads = 0
        noticed: dict[str, list[int]] = {way: [] for way in WAYS}
        for _ in range(fleets):
            bad, found = play(trouble, seed)
            seed += 1
            bads += len(bad)
            for way in WAYS:
                noticed[way] += found[way].noticed(bad)
                false[way].append(found[way].false(bad))
        if not bads:
            continue
        what = f"{trouble.name}, one in {trouble.one_in}"
        details += [f"{what}: {way}: {sorted(noticed[way])} of {bads}" for way in WAYS]
        said = {way: _said(noticed[way], bads) for way in WAYS}
        results.append(
            Result(
                what,
                f"{said['score']}; plain: {said['plain']}",
                f"{wanted:.0%} found" if wanted else "",
                wanted is None or len(noticed["score"]) >= wanted * bads,
            )
        )
    weeks = (DAYS * DAY - WARM) / WEEK
    a_week = {way: statistics.fmean(false[way]) / weeks for way in WAYS}
    results.append(
        Result(
            "false alarms a week",
            f"{a_week['score']:.1f}; plain: {a_week['plain']:.0f}",
            "less than 1",
            a_week["score"] < 1,
        )
    )
    return Report(
        "Slow nodes",
        machine(),
        f"Simulated fleets of {NODES:,} nodes and some {JOBS} jobs that come, go and move, of "
        "which some are uneven by design. Sound GPUs differ by 0.8 % (standard deviation). Found "
        f"is what NodeSlow names within {DAYS - SOUND_DAYS} days, by the formula of its rules. "
        "Plain is the median and MAD over the fleet of what each GPU is behind in its jobs, from "
        f"{PLAIN_BEYOND} deviations on. A slow link shows only in jobs that exchange data between "
        "pairs (two in five here): in a ring all wait alike.",
        results,
        details,
    )


def _said(hours: list[int], of: int) -> str:
    half = f", half of them within {statistics.median(hours):.0f} h" if hours else ""
    return f"{len(hours)} of {of}{half}"
