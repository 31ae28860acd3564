"""What incidents cost: the GPU time that waited, began anew and was repeated because of them.

It is taken from the ledger second by second until the job has made good what it lost, and each
second of a GPU counts for one incident: the one that began first.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpunode.gpu.activity import SECONDS
from gpunode.incidents.incident import Kind, Price
from gpunode.jobs.restarts import GpuRestart, JobKey, Restarted
from gpunode.metric import Metric, Sample
from gpunode.source import Readings
from gpunode.verdict.facts import At

PARTS = ("waiting", "starting", "repeating")

COST = Metric(
    "gpunode_incident_gpu_seconds",
    "gauge",
    "GPU time that an incident has cost on this node so far: `waiting` without work, `starting` "
    "from a new start of its job to the first step, `repeating` what the job had done since its "
    "last checkpoint. No second counts for two incidents.",
    ("incident", "kind", "part"),
)

WAITS: dict[Kind, tuple[str, ...]] = {
    "slow": ("blocked",),
    "stall": ("blocked", "starved", "idle", "unknown"),
}
"""States whose time an incident costs while it goes on, by kind."""

OTHERWISE = ("blocked", "idle", "unknown")
AWAY = ("blocked", "starved", "idle", "unknown")
"""The same while a process of the job is gone, and it has not begun again."""

BEFORE = 60.0
"""Seconds before an incident is confirmed in which it may have begun."""

SETTLED = 30.0
"""Seconds after which a job that is neither away nor begins anew has made good what it lost."""

LONGEST = 12 * 3600.0
"""Seconds after which an incident costs no more, whatever its job does."""

SHOWN = 600.0
"""Seconds for which the price is told once it is known."""

MOST = 64
"""Prices at a time."""


@dataclass(slots=True)
class OpenPrice:
    """What an incident has cost so far; times are monotonic."""

    kind: Kind
    moment: float
    gpus: set[At]
    goes_on: bool = True
    active: float = 0.0
    """When it last cost anything, or could."""

    jobs: set[JobKey] = field(default_factory=set)
    others: set[At] = field(default_factory=set)
    """GPUs that another job has got meanwhile."""

    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    settled: bool = False

    @property
    def price(self) -> Price:
        waiting, starting, repeating = (round(self.spent[part], 1) for part in PARTS)
        return Price(waiting, starting, repeating, self.settled)


@dataclass(frozen=True, slots=True)
class Passed:
    """What the GPUs did between two looks, by state, and what their jobs repeated of it."""

    until: float
    states: dict[At, dict[str, float]]
    repeated: dict[At, float]


@dataclass(frozen=True, slots=True)
class Goes:
    """An incident as the black box has it."""

    id: str
    kind: Kind
    moment: float
    gpus: frozenset[At]
    goes_on: bool


class Prices:
    """The prices of the incidents of a node."""

    def __init__(self) -> None:
        self._prices: dict[str, OpenPrice] = {}
        self._ledger: dict[At, dict[str, float]] = {}
        self._repeated: dict[At, float] = {}
        self._recent: deque[Passed] = deque()

    def of(self, incident: str) -> Price | None:
        """What an incident has cost so far."""
        found = self._prices.get(incident)
        return None if found is None else found.price

    def look(self, readings: Readings, incidents: Iterable[Goes]) -> list[str]:
        """Add what has passed since the last look; the incidents whose price is known now."""
        now = readings.clock.monotonic()
        restarts = {
            at: one for told in readings.details(Restarted) for at, one in told.detail.gpus.items()
        }
        passed = self._passed(readings, restarts, now)
        self._recent.append(passed)
        while now - self._recent[0].until > BEFORE:
            self._recent.popleft()
        for price in self._prices.values():
            price.goes_on = False
        for one in incidents:
            known = self._prices.get(one.id)
            if known is None and (len(self._prices) >= MOST or not one.goes_on):
                continue
            price = known or OpenPrice(one.kind, one.moment, set(), active=now)
            price.gpus |= one.gpus
            price.kind, price.goes_on = one.kind, one.goes_on and not price.settled
            self._prices[one.id] = price
            self._share(price, restarts)
            if known is None:
                for earlier in list(self._recent)[:-1]:
                    if earlier.until > one.moment:
                        self._spend(earlier, None, (price,))
        for price in self._prices.values():
            self._share(price, restarts)
        self._spend(passed, restarts, [p for p in self._prices.values() if not p.settled])
        return list(self._settled(restarts, now))

    def samples(self) -> Iterator[Sample]:
        for incident, price in self._prices.items():
            for part, seconds in price.spent.items():
                yield from COST.at(seconds, incident, price.kind, part)

    def _passed(self, readings: Readings, restarts: Mapping[At, GpuRestart], now: float) -> Passed:
        ledger: dict[At, dict[str, float]] = defaultdict(dict)
        for (_, (gpu, uuid, state)), (value, _) in readings.values({SECONDS}).items():
            ledger[gpu, uuid][state] = value
        states = {
            at: {
                state: max(0.0, seconds - self._ledger[at].get(state, seconds))
                for state, seconds in own.items()
            }
            for at, own in ledger.items()
            if at in self._ledger
        }
        repeated = {
            at: max(0.0, one.repeated - self._repeated.get(at, one.repeated))
            for at, one in restarts.items()
        }
        self._ledger |= ledger
        self._repeated = {at: one.repeated for at, one in restarts.items()}
        return Passed(now, states, repeated)

    def _share(self, price: OpenPrice, restarts: Mapping[At, GpuRestart]) -> None:
        """An incident of some GPUs of a job is one of all that it has on the node."""
        if price.goes_on and not price.jobs:
            price.jobs = {restarts[at].job for at in price.gpus if at in restarts}
        if not price.jobs:
            return
        price.others = {at for at, one in restarts.items() if one.job not in price.jobs}
        price.gpus |= {at for at, one in restarts.items() if one.job in price.jobs}

    def _spend(
        self,
        passed: Passed,
        restarts: Mapping[At, GpuRestart] | None,
        prices: Collection[OpenPrice],
    ) -> None:
        """Add what has passed; ``restarts`` are None of what was before an incident was known."""
        claimed: set[At] = set()
        if restarts is None:  # what others have been given stays theirs
            claimed = {
                at
                for one in self._prices.values()
                if one not in prices and not one.settled
                for at in one.gpus
            }
        for price in sorted(prices, key=lambda one: one.moment):
            for at in price.gpus - claimed - price.others:
                claimed.add(at)
                part, seconds = _cost(price, passed, at, restarts)
                price.spent[part] += seconds
                if seconds:
                    price.active = passed.until

    def _settled(self, restarts: Mapping[At, GpuRestart], now: float) -> Iterator[str]:
        """The incidents whose jobs have made good what they lost, or will not."""
        for incident, price in list(self._prices.items()):
            own = [one for one in restarts.values() if one.job in price.jobs]
            busy = price.goes_on or any(one.doing or one.away for one in own)
            if busy or (price.jobs and not own):  # it may come back
                price.active = now
            if price.settled:
                if now - price.active > SHOWN:
                    del self._prices[incident]
            elif now - price.active > SETTLED or now - price.moment > LONGEST:
                price.settled, price.active = True, now
                yield incident


def _cost(
    price: OpenPrice, passed: Passed, at: At, restarts: Mapping[At, GpuRestart] | None
) -> tuple[str, float]:
    """Which part of a price a GPU has added, and how many seconds."""
    states = passed.states.get(at, {})
    held = sum(seconds for state, seconds in states.items() if state != "free")
    restart = (restarts or {}).get(at)
    if restart is not None and passed.repeated.get(at):
        return "repeating", min(held, passed.repeated[at]) if states else passed.repeated[at]
    if restart is not None and restart.doing == "starting":
        return "starting", held
    gone = restart is None and restarts is not None and bool(price.jobs)
    away = gone or (restart is not None and restart.away)
    if not price.goes_on and not away:
        return "waiting", 0.0
    costs = WAITS.get(price.kind, OTHERWISE) if price.goes_on and not away else AWAY
    return "waiting", sum(states.get(state, 0.0) for state in costs)
