"""What incidents cost: the GPU time that waited, began anew and was repeated because of them.

It is taken from the ledger second by second until the job has made good what it lost, and each
second of a GPU counts for one incident: the one that began first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from gpunode.gpu.activity import SECONDS
from gpunode.incidents.incident import PRICE_PARTS, Kind, Price
from gpunode.metric import Metric, Sample
from gpunode.source import Readings
from gpunode.verdict.facts import At
from gpunode.verdict.restarts import GpuRestart, JobKey, RestartsByGpu

COST = Metric(
    "gpunode_incident_gpu_seconds",
    "gauge",
    "GPU time that an incident has cost on this node so far: `waiting` without work, `starting` "
    "from a new start of its job to the first step, `repeating` what the job had done since its "
    "last checkpoint. No second counts for two incidents. Whose it was stays, whoever has the GPUs "
    "by then.",
    ("incident", "kind", "part", "owner_namespace", "workload", "user"),
)

WITHOUT_WORK = ("blocked", "starved", "idle", "unknown")
"""States whose time an incident costs while a job stands still, or a process of it is gone."""

WAITS: dict[Kind, tuple[str, ...]] = {"slow": ("blocked",), "stall": WITHOUT_WORK}
OTHERWISE = ("blocked", "idle", "unknown")
"""States whose time an incident costs while it goes on, for kinds without an entry in ``WAITS``."""

SETTLED = 30.0
"""Seconds after which a job that is neither away nor begins anew has made good what it lost."""

MAX_COST_SECONDS = 12 * 3600.0
"""Seconds after which an incident costs no more, whatever its job does."""

SHOWN = 600.0
"""Seconds for which a price is told once it is known."""

MAX_PRICES = 64
"""Prices at a time."""


@dataclass(slots=True)
class OpenPrice:
    """What an incident has cost so far."""

    kind: Kind
    moment: float
    """When it began (monotonic)."""

    active: float
    """When it last cost anything, or could."""

    gpus: set[At] = field(default_factory=set)
    jobs: set[JobKey] = field(default_factory=set)
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PRICE_PARTS, 0.0))
    settled: bool = False


class Prices:
    """The prices of the incidents of a node."""

    def __init__(self) -> None:
        self._prices: dict[str, OpenPrice] = {}
        self._ledger: dict[At, dict[str, float]] = {}
        self._repeated: dict[At, float] = {}
        self._looked = 0.0

    def of(self, incident: str) -> Price | None:
        """What an incident has cost so far."""
        found = self._prices.get(incident)
        if found is None:
            return None
        waiting, starting, repeating = (round(found.spent[part], 1) for part in PRICE_PARTS)
        return Price(waiting, starting, repeating, found.settled)

    def samples(self) -> Iterator[Sample]:
        for incident, price in self._prices.items():
            namespace, user, workload = min(price.jobs, default=("", "", ""))
            for part, seconds in price.spent.items():
                of = incident, price.kind, part, namespace, workload, user
                yield from COST.at(seconds, *of)

    def look(
        self, readings: Readings, going: Mapping[str, tuple[Kind, float, set[At]]]
    ) -> list[str]:
        """Add what has passed since the last look; the incidents whose price is known now.

        ``going`` has of those that go on their kinds, when they began, and their GPUs.
        """
        now = readings.clock.monotonic()
        passed, self._looked = now - self._looked, now
        told = readings.details(RestartsByGpu)
        restarts = {at: one for each in told for at, one in each.detail.gpus.items()}
        ledger: dict[At, dict[str, float]] = defaultdict(dict)
        for (_, (gpu, uuid, state)), (value, _) in readings.values({SECONDS}).items():
            ledger[gpu, uuid][state] = value
        before, self._ledger = self._ledger, {**self._ledger, **ledger}
        again, self._repeated = self._repeated, {at: one.repeated for at, one in restarts.items()}
        known = set(self._prices)
        for incident, (kind, moment, _) in going.items():
            if incident in known or len(self._prices) < MAX_PRICES:
                self._prices.setdefault(incident, OpenPrice(kind, moment, now)).kind = kind
        claimed: set[At] = set()
        for incident, price in sorted(self._prices.items(), key=lambda item: item[1].moment):
            goes_on = incident in going and not price.settled
            if goes_on:
                price.gpus |= going[incident][2]
                price.jobs = price.jobs or {restarts[at].job for at in price.gpus if at in restarts}
            price.gpus |= {at for at, one in restarts.items() if one.job in price.jobs}
            # Before it was confirmed, it was as it is at first.
            fresh = incident not in known and passed > 0
            times = max(1.0, (now - price.moment) / passed) if fresh else 1.0
            for at in () if price.settled else price.gpus - claimed:
                restart = restarts.get(at)
                if restart is not None and price.jobs and restart.job not in price.jobs:
                    continue  # another job has got it
                claimed.add(at)
                states = {
                    state: max(0.0, seconds - before[at].get(state, seconds))
                    for state, seconds in ledger[at].items()
                    if at in before and state != "free"
                }
                repeats = max(0.0, self._repeated.get(at, 0.0) - again.get(at, 0.0))
                part, seconds = _cost(price, states, repeats, restart, goes_on=goes_on)
                price.spent[part] += seconds * (times if part == "waiting" else 1)
                price.active = now if seconds else price.active
        return list(self._settled(restarts, going, now))

    def _settled(
        self, restarts: Mapping[At, GpuRestart], going: Collection[str], now: float
    ) -> Iterator[str]:
        """The incidents whose jobs have made good what they lost, or will not."""
        for incident, price in list(self._prices.items()):
            own = [one for one in restarts.values() if one.job in price.jobs]
            busy = any(one.doing or one.away for one in own) or (price.jobs and not own)
            if not price.settled and (busy or incident in going):
                price.active = now
            if price.settled and now - price.active > SHOWN:
                del self._prices[incident]
            elif not price.settled and (
                now - price.active > SETTLED or now - price.moment > MAX_COST_SECONDS
            ):
                price.settled, price.active = True, now
                yield incident


def _cost(
    price: OpenPrice,
    states: Mapping[str, float],
    repeats: float,
    restart: GpuRestart | None,
    *,
    goes_on: bool,
) -> tuple[str, float]:
    """Which part of a price a GPU has added since the last look, and how many seconds."""
    if restart is not None and (repeats or restart.doing == "starting"):
        return ("repeating", repeats) if repeats else ("starting", sum(states.values()))
    away = restart.away if restart is not None else bool(price.jobs)
    costs = WITHOUT_WORK if away else WAITS.get(price.kind, OTHERWISE) if goes_on else ()
    return "waiting", sum(states.get(state, 0.0) for state in costs)
