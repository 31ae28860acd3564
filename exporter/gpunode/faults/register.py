"""Which faults last: from when they are seen until there is evidence that they were repaired."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import islice

from pydantic import FiniteFloat, TypeAdapter

from gpunode.faults.fault import Fault, Location, Part, Severity, meaning, unused_severity
from gpunode.faults.sightings import (
    MAX_PARTS,
    NodeValues,
    PriorState,
    Sighting,
    stable_location,
    whole_gpus,
)
from gpunode.gpu import health, power
from gpunode.gpu.activity import PROCESSES
from gpunode.host import repair
from gpunode.host.drained import DRAINED

MAX_FAULTS = 256
"""Faults of a node that are remembered."""

RECENT_USE_SECONDS = 900.0
"""Seconds for which a GPU counts as used: a fault may have ended the job that used it."""

Key = tuple[str, Part, str, str]
"""A part by UUID, kind and name, and the respect in which it has a fault: the index of a GPU
changes when another is lost."""


def key_of(where: Location, respect: str) -> Key:
    """What a fault is known by."""
    return where.uuid, where.part, where.name, respect


@dataclass(slots=True)
class FaultRecord:
    """A fault that lasts, and what its end depends on."""

    where: Location
    respect: str
    reason: str
    severity: Severity
    start: FiniteFloat
    clears: FiniteFloat = 0.0
    ends: FiniteFloat | None = None
    """When a fault ends that needs no repair."""

    event: bool = False
    """Whether it happened in a moment, so that only evidence of repair ends it."""

    energy: FiniteFloat | None = None
    """The driver's energy counter when the fault began; it begins again with a reset."""

    advised: bool = False
    """Whether the driver has asked for something since."""

    used: bool | None = None
    """Whether its GPU is in use, or was when it was last known."""

    @property
    def key(self) -> Key:
        return key_of(self.where, self.respect)


class Register:
    """The faults of a node; small, and the same after the daemon has started again."""

    def __init__(self) -> None:
        self.before = PriorState()
        self.on_bus: dict[str, tuple[str, str]] = {}
        self.left_out = 0
        """Looks at faults that were one too many, since somebody asked."""

        self._faults: dict[Key, FaultRecord] = {}
        self._pending: dict[Key, float] = {}
        self._well_since: dict[Key, float] = {}
        self._repaired: dict[Key, float] = {}
        """When events were repaired, as their source goes on to tell of them."""

        self._used: dict[str, float] = {}

    def faults(self) -> tuple[Fault, ...]:
        """The faults that last, the oldest first; the same of two respects is one."""
        found: dict[tuple[Location, str, Severity], Fault] = {}
        for one in sorted(self._faults.values(), key=lambda one: one.start):
            fault = Fault(one.where, one.reason, one.severity, one.start)
            found.setdefault((one.where, one.reason, one.severity), fault)
        return tuple(found.values())

    def learn(self, seen: NodeValues) -> None:
        """Note which GPUs are present, and which are in use."""
        for gpu, uuid, bus_id in whole_gpus(seen):
            before = self.on_bus.get(bus_id, ("", uuid))[1]
            self.on_bus[bus_id] = gpu, uuid
            if before != uuid:  # it was replaced, and whatever it had is gone with it
                for key in [key for key in self._faults if key[0] == before]:
                    self._end(key, seen.time)
        for (gpu, *_), processes in seen.series(PROCESSES).items():
            self._used.setdefault(gpu, -RECENT_USE_SECONDS)
            if processes:
                self._used[gpu] = seen.time

    def update(self, seen: NodeValues, observed: Iterable[Sighting]) -> None:
        """Begin and end faults by the current readings."""
        word, booted = seen.only(repair.REPAIRED), seen.only(repair.BOOTED)
        if word is not None:
            self._believe(word, seen.time)
        since = max(word or 0.0, booted or 0.0)
        for one in observed:
            key = key_of(one.where, one.respect)
            if key in self._faults:
                self._faults[key].where = one.where
            if one.since is not None:
                self._event(key, one, since, seen.time)
            elif one.reason:
                self._bad(key, one, seen.time)
            else:
                self._well(key, seen.time)
        for key, fault in list(self._faults.items()):
            if fault.ends is not None:
                if seen.time >= fault.ends:
                    del self._faults[key]
            elif fault.event and self._is_repaired(fault, seen, booted):
                self._end(key, seen.time)
        for fault in self._faults.values():
            fault.used = self._is_used(fault, seen)
            severity = meaning(fault.where, fault.reason).severity
            if not fault.used or (severity == "page" and seen.only(DRAINED)):
                severity = unused_severity(severity, fault.where.part)
            fault.severity = severity

    def _believe(self, word: float, now: float) -> None:
        """A person says that all is repaired that broke until then; what is gone is not missed."""
        for key in [key for key, one in self._faults.items() if one.start <= word <= now]:
            self.before.well.pop(stable_location(self._faults[key].where), None)
            self._end(key, word)

    def _event(self, key: Key, one: Sighting, since: float, now: float) -> None:
        at = min(one.since or now, now)
        ends = None if one.told_for is None else at + one.told_for
        if at <= max(since, self._repaired.get(key, 0.0)) or (ends is not None and ends <= now):
            return
        known = self._faults.get(key)
        if known is None:
            self._begin(key, one, at, ends)
        else:
            known.reason = one.reason
            known.ends = known.ends if ends is None else ends

    def _bad(self, key: Key, one: Sighting, now: float) -> None:
        self._well_since.pop(key, None)
        known = self._faults.get(key)
        if known is not None:
            known.reason = one.reason
        elif now - (first := self._pending.setdefault(key, now)) >= one.after:
            self._begin(key, one, first if one.began is None else one.began, None)

    def _well(self, key: Key, now: float) -> None:
        self._pending.pop(key, None)
        known = self._faults.get(key)
        if known is not None:
            since = self._well_since.setdefault(key, now)
            if now - since >= known.clears:
                del self._faults[key], self._well_since[key]

    def _begin(self, key: Key, one: Sighting, start: float, ends: float | None) -> None:
        if len(self._faults) >= MAX_FAULTS:
            self.left_out += 1
            return
        self._pending.pop(key, None)
        self._faults[key] = FaultRecord(
            *(one.where, one.respect, one.reason, "ticket", start),
            clears=one.clears,
            ends=ends,
            event=one.since is not None,
        )

    def _end(self, key: Key, now: float) -> None:
        if self._faults.pop(key).event:
            self._repaired[key] = now
            while len(self._repaired) > MAX_FAULTS:
                del self._repaired[min(self._repaired, key=lambda one: self._repaired[one])]

    def _is_repaired(self, fault: FaultRecord, seen: NodeValues, booted: float | None) -> bool:
        """The node was started since, the GPU was reset, or the advice followed."""
        if booted is not None and booted > fault.start:
            return True
        gpu, uuid = fault.where.gpu, fault.where.uuid
        energy = seen.series(power.DRIVER_ENERGY).get((gpu, uuid))
        if energy is not None:
            fault.energy = energy if fault.energy is None else fault.energy
            if energy < fault.energy:
                return True
        advice = {a for g, u, a in seen.series(health.RECOVERY_ACTION) if (g, u) == (gpu, uuid)}
        if advice - {"none"}:
            fault.advised = True
        return bool(advice == {"none"} and fault.advised)

    def _is_used(self, fault: FaultRecord, seen: NodeValues) -> bool:
        """Whether anybody uses the GPU, or any GPU of the node; of a lost one, what was known.

        Who is given a node lacks a GPU that was lost before, though nobody used that one.
        """
        gpu = fault.where.gpu
        lost = bool(gpu) and gpu not in {of for of, *_ in seen.series(PROCESSES)}
        if lost and fault.used:
            return True
        times = [self._used[gpu]] if gpu in self._used and not lost else self._used.values()
        return any(seen.time - at < RECENT_USE_SECONDS for at in times)

    # What is kept

    def packed(self) -> bytes:
        """All that the next daemon has to know, as JSON."""
        kept = SavedFaults(
            list(self._faults.values()),
            list(self._repaired.items()),
            sorted(self.before.well),
            self.on_bus,
        )
        return _saved_adapter().dump_json(kept)

    def unpack(self, text: bytes) -> None:
        """Take over what another daemon knew. Raises ``ValueError``."""
        kept = _saved_adapter().validate_json(text)
        self._faults = {one.key: one for one in kept.faults[:MAX_FAULTS]} | self._faults
        self._repaired = dict(kept.repaired[:MAX_FAULTS]) | self._repaired
        for where in kept.well[:MAX_PARTS]:
            self.before.works(where)
        self.on_bus = dict(islice(kept.on_bus.items(), MAX_FAULTS)) | self.on_bus


@dataclass(slots=True)
class SavedFaults:
    """The content of the file."""

    faults: list[FaultRecord]
    repaired: list[tuple[Key, FiniteFloat]]
    well: list[Location]
    on_bus: dict[str, tuple[str, str]]


@cache
def _saved_adapter() -> TypeAdapter[SavedFaults]:
    return TypeAdapter(SavedFaults)
