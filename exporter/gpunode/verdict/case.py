"""What is known of one GPU when its verdict falls, and the evidence that a cause takes from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from gpunode.gpu.activity import SECONDS, SHORT_GAPS
from gpunode.gpu.ledger import COPY_RATE, STATES
from gpunode.gpu.units import PCIE_BYTES
from gpunode.metric import Metric
from gpunode.verdict.facts import At, Facts, series_name

RATE = "1m"
"""Over which Prometheus is asked for an increase; a verdict covers the last seconds."""

EVIDENCE_WINDOW = "[30s]"
"""The window of evidence that is the least or the most of several looks."""

POSITION_PREFIX = "where it stands: "
"""Begins the meaning of evidence that no series proves."""

TO_HOST = 0.5
"""From this many bytes sent per byte received, copies bring results to the host."""

UNPINNED = {"receive": 7.2e9, "transmit": 3.0e9}
"""Bytes per second of copies of memory that is not pinned, by what the GPU does (H200, H100): a CPU
copies it once more, and finds what was not used before page by page."""

MIN_COPY_RATE = 2.5e9
"""Bytes per second to the GPU from which these are such copies, and neither commands nor pinned."""

RESULTS = 2.0
"""From this many bytes sent per byte received, a GPU exchanges nothing with peers."""

PINNED = 2.5
"""From this multiple of the time that they need, copies wait for no CPU."""

ENGINE_SHARE = 0.5
"""From this part of what copy engines need for the bytes that PCIe moved, it was they who did."""

ENGINES = 55e9
"""Bytes per second that they move."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A figure behind a verdict: the series, its value, and the threshold that it passed.

    ``value`` is the increase per second for a counter and the current value for a gauge, unless
    ``meaning`` says otherwise.
    """

    series: str
    value: float
    threshold: float
    meaning: str
    query: str = ""
    """PromQL that gives the value, where neither the series nor its increase does."""

    @property
    def promql(self) -> str:
        """What gives the value in Prometheus; it has the labels of the series."""
        counter = self.series.partition("{")[0].endswith("_total")
        return self.query or (per_second(self.series) if counter else self.series)


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """A GPU for which its peers wait, and why its process does not come."""

    at: At
    reason: str
    """A name of ``reasons.REASONS``."""

    where: str = ""
    """Where its process stands, in a sentence, if it was looked at."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is known of one GPU: its ledger's shares, its kind of work, and for whom it waits.

    ``recent`` are the facts of the time that the shares cover.
    """

    facts: Facts
    recent: Facts
    at: At
    shares: dict[str, float]
    kind: str
    waits_for: tuple[WaitedFor, ...] = ()
    waited_for: WaitedFor | None = None
    """This GPU, if others wait for it."""

    peers_starve: bool = False
    """Whether another GPU of the job has nothing to run for as long as others wait."""

    peers: tuple[Mapping[str, float], ...] = ()
    """The ledger's shares of the other GPUs of the job on this node."""

    short_gaps: float = 0.0
    """Share of time in gaps between kernels in which nothing but a launch fits."""

    copies_wait: float = 0.0
    """Share of time in which copies waited for a CPU."""

    short_gaps_of_peers: tuple[float, ...] = ()

    def now(self, metric: Metric, *labels: str) -> float:
        """The latest value of a series of this GPU, 0 without one."""
        return self.facts.now(metric, *self.at, *labels) or 0.0

    def rate(self, metric: Metric, *labels: str) -> float:
        """The increase per second of a counter of this GPU, 0 if it is not known.

        While the shares were measured, or longer if it is read less often than that.
        """
        known = self.recent.rate(metric, *self.at, *labels)
        if known is None:
            known = self.facts.rate(metric, *self.at, *labels)
        return known or 0.0

    def windows(self) -> list[dict[str, float]]:
        """The ledger's shares in each window that the shares cover."""
        read = zip(*(self.recent.readings(SECONDS, *self.at, s) for s in STATES), strict=False)
        found = []
        for before, after in pairwise(read):
            spent = [max(0.0, b[0] - a[0]) for a, b in zip(before, after, strict=True)]
            if total := sum(spent):
                found.append(dict(zip(STATES, (each / total for each in spent), strict=True)))
        return found

    @property
    def without_work(self) -> float:
        """Share of time in which a process held the GPU and nothing ran.

        For long enough that something else than launches and copies must explain it.
        """
        explained = self.short_gaps + self.copies_wait
        return max(0.0, self.shares["starved"] - explained) + self.shares["idle"]

    @property
    def copies(self) -> float:
        """Share of time that copies took while no kernel ran."""
        return self.shares["copy"] + self.copies_wait

    @property
    def results(self) -> float:
        """Share of time in which results were copied to the host, from ``PCIE_BYTES``."""
        sent, received = (self.rate(PCIE_BYTES, way) for way in ("transmit", "receive"))
        return self.copies if sent and sent >= TO_HOST * received else 0.0

    def evidence(
        self,
        metric: Metric,
        value: float,
        threshold: float,
        meaning: str,
        *labels: str,
        query: str = "",
    ) -> Evidence:
        """Evidence from a series of this GPU."""
        return Evidence(self.series(metric, *labels), value, threshold, meaning, query)

    def peak_evidence(self, metric: Metric, threshold: float, meaning: str) -> Evidence:
        """Evidence from the highest value of a gauge of this GPU in all facts."""
        query = f"max_over_time({self.series(metric)}{EVIDENCE_WINDOW})"
        value = self.facts.peak(metric, *self.at)
        return self.evidence(metric, value, threshold, meaning, query=query)

    def series(self, metric: Metric, *labels: str) -> str:
        """A series of this GPU, as exported."""
        return series_name(metric, (*self.at, *labels))

    def launches(self, threshold: float) -> Evidence:
        """Evidence of the length of gaps."""
        meaning = "share of time in gaps between kernels that are mostly shorter than 20 ms"
        return self.evidence(SHORT_GAPS, self.short_gaps, threshold, meaning)

    def state(self, state: str, threshold: float) -> Evidence:
        """Evidence from the ledger."""
        meaning = f"share of time: {STATES[state]}"
        return self.evidence(SECONDS, self.shares[state], threshold, meaning, state)


def copies_wait(facts: Facts, at: At, shares: Mapping[str, float]) -> float:
    """Share of time in which copies waited for a CPU, as the bytes say that PCIe moved.

    Below ``COPY_RATE``, it is not known whether copy engines moved them: peers exchange as much as
    they read, and only results are copies for sure.
    """
    to_device, to_host = (facts.rate(PCIE_BYTES, *at, way) or 0.0 for way in UNPINNED)
    copying = shares.get("copy", 0.0)
    rest = copying + shares.get("starved", 0.0)
    needed = to_host / UNPINNED["transmit"]
    if to_device >= MIN_COPY_RATE:
        needed += to_device / UNPINNED["receive"]
    if max(to_device, to_host) >= COPY_RATE:
        copied = copying >= ENGINE_SHARE * (to_device + to_host) / ENGINES
    else:
        copied = to_host >= RESULTS * to_device
    return max(0.0, min(needed, rest) - copying) if copied and needed <= PINNED * rest else 0.0


def per_second(series: str) -> str:
    """PromQL of the increase of a counter."""
    return f"rate({series}[{RATE}])"
