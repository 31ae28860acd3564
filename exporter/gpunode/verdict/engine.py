"""What the inference engine of a GPU says of its requests, for the causes that ask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpunode.metric import Metric
from gpunode.serving.requests import INFO, KV_CACHE, REQUESTS
from gpunode.verdict.case import EVIDENCE_WINDOW, Case, Evidence
from gpunode.verdict.facts import series_name

USES = (INFO, REQUESTS)
"""The metrics behind ``engine_of``, ``no_requests`` and ``peer_engines``."""

OTHER_ROLE = {"decode": "prefill", "prefill": "decode"}
"""Where prefill and decode run apart, the role with which an instance shares its requests."""


@dataclass(frozen=True, slots=True)
class ServingEngine:
    """The engine whose server a GPU belongs to: its series are those of the server's first GPU."""

    case: Case
    servers: tuple[tuple[str, ...], ...]
    """The labels of its models."""

    def least(self, phase: str) -> float:
        """The fewest requests in a phase at any look of the last half minute."""
        return sum(min(self._values(at, phase), default=0.0) for at in self.servers)

    def most(self, phase: str) -> float:
        """The most of them."""
        return sum(max(self._values(at, phase), default=0.0) for at in self.servers)

    @property
    def kv_cache(self) -> float:
        """The largest share of the KV cache in use at any look, 0 if that is not told.

        A request that ends leaves room until the next one is let in.
        """
        readings = (self.case.facts.readings(KV_CACHE, *at) for at in self.servers)
        return max((value for several in readings for value, _ in several), default=0.0)

    def rate(self, metric: Metric, *labels: str) -> float:
        """The increase per second of a counter, 0 if it is not known."""
        return sum(self.case.facts.rate(metric, *at, *labels) or 0.0 for at in self.servers)

    def evidence(
        self,
        metric: Metric,
        value: float,
        threshold: float,
        meaning: str,
        *labels: str,
        least: bool = False,
        most: bool = False,
    ) -> Evidence:
        """Evidence from a series of the first of its models that has it.

        It may be the ``least`` or the ``most`` at any look of the last half minute.
        """
        facts = self.case.facts
        told = (at for at in self.servers if facts.now(metric, *at, *labels) is not None)
        at = next(told, self.servers[0])
        series = series_name(metric, (*at, *labels))
        over = "min" if least else "max" if most else ""
        query = f"{over}_over_time({series}{EVIDENCE_WINDOW})" if over else ""
        return Evidence(series, value, threshold, meaning, query)

    def running(self) -> Evidence:
        """That requests are computed."""
        meaning = "requests that the engine computes, at each look"
        return self.evidence(REQUESTS, self.least("running"), 1.0, meaning, "running", least=True)

    def waiting(self) -> Evidence:
        """That requests wait."""
        meaning = "requests that wait for their turn, at each look"
        return self.evidence(REQUESTS, self.least("waiting"), 1.0, meaning, "waiting", least=True)

    def _values(self, at: tuple[str, ...], phase: str) -> list[float]:
        return [value for value, _ in self.case.facts.readings(REQUESTS, *at, phase)]


def engine_of(case: Case) -> ServingEngine | None:
    """The engine of a GPU, None if none is known that tells its requests."""
    firsts = {labels[4] for labels in case.facts.series(INFO, *case.at)}
    if not firsts:
        return None
    servers = dict.fromkeys(of[:4] for of in case.facts.series(REQUESTS) if of[1] in firsts)
    return ServingEngine(case, tuple(servers)) if servers else None


def peer_engines(case: Case) -> Iterator[ServingEngine]:
    """The instances on this node that prefill for a GPU that decodes, or decode for one that does.

    They serve the same model by the same engine. Those of vLLM do not say their role.
    """
    instances = [at for at in case.facts.series(INFO) if at[1] == at[4]]
    shared = {(*at[2:4], OTHER_ROLE.get(at[5])) for at in case.facts.series(INFO, *case.at)}
    for at in instances:
        if (*at[2:4], at[5]) in shared:
            yield ServingEngine(case, (at[:4],))


def no_requests(case: Case) -> Evidence | None:
    """That the engine had no request at a look, and none that waited or was on its way at any."""
    engine = engine_of(case)
    if engine is None or engine.least("running") > 0:
        return None
    if engine.most("waiting") > 0 or engine.most("transferring") > 0:
        return None
    meaning = "requests that the engine computes, at the look with the fewest"
    return engine.evidence(REQUESTS, 0.0, 0.0, meaning, "running", least=True)
