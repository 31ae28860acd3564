"""Which nodes are slow, which failed, and which were not seen."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpunode.report import history
from gpunode.report.document import Figure, ReportSection, Table, TableColumn
from gpunode.report.history import HOUR, Amounts, JobKey, NodeHours, NodeKey
from gpunode.report.view import (
    MAX_ROWS,
    TOP,
    PeriodView,
    clean,
    ratio,
)
from gpunode.report.words import amount, clock, number
from gpunode.words import FAULTS, PARTS

LATE_SHARE = 0.05
"""From which share of their time on a node makes its peers wait for it, it is named."""

REPAIRED_AFTER = 7 * 86_400
"""Seconds without a fault after which the same one on the same part is another failure."""

MIN_PEERS = 3
MIN_SHARED_HOURS = 12.0


@dataclass(frozen=True, slots=True)
class SlowNode:
    """A node that waits less than its peers."""

    node: NodeKey
    gap: float
    """Share of the hours by which it waits less, in the mean."""

    jobs: int
    hours: float
    waited: float
    """GPU hours of others."""


def slow(view: PeriodView) -> ReportSection:
    """Nodes for which others wait."""
    found = waited_for(view)
    return ReportSection(
        "slow_nodes",
        "Nodes slower than their peers",
        "In a collective everyone waits for the slowest. A node that waits less than the "
        "others of the same job, on the same day, is the one they wait for. If that is so in "
        "several jobs, it is the node.",
        (),
        (
            Table(
                "slow_nodes",
                "Nodes for which others wait",
                (
                    TableColumn("node", "Node"),
                    TableColumn("behind", "Waits less than its peers by", "share"),
                    TableColumn("jobs", "In jobs", "count"),
                    TableColumn("hours", "Hours with waiting", "hours"),
                    TableColumn("waited", "Others waited", "GPU hours"),
                    *view.cost_column(),
                ),
                tuple(
                    (
                        view.node_name(one.node),
                        one.gap,
                        float(one.jobs),
                        one.hours,
                        one.waited,
                        *view.cost(one.waited),
                    )
                    for one in found[:TOP]
                ),
                (
                    history.BLOCKED.over("1d"),
                    history.BLOCKED_HOURS.over("1d"),
                ),
                note=f"Of jobs on {MIN_PEERS} nodes or more, from {LATE_SHARE:.0%} on. A "
                "node's mean hides that one GPU is slow.",
            ),
        ),
    )


def waited_for(view: PeriodView) -> list[SlowNode]:
    """The nodes for which others wait, by how long those waited, the longest first."""
    return sorted(_slow_nodes(view), key=lambda one: -one.waited)


def _slow_nodes(view: PeriodView) -> Iterator[SlowNode]:
    behind: dict[NodeKey, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    jobs: dict[NodeKey, set[JobKey]] = defaultdict(set)
    for (job, _), nodes in view.past.blocked.items():
        waits = {node: sums[0] / sums[1] for node, sums in nodes.items() if sums[1] > 0}
        if len(waits) < MIN_PEERS:
            continue
        for node, own in waits.items():
            peers = statistics.median(wait for other, wait in waits.items() if other != node)
            if max(peers, own) < LATE_SHARE:
                continue  # nobody waits, so nothing tells who is slow
            hours = nodes[node][1]
            gpus = sum(view.gpus(other) or 0.0 for other in waits if other != node)
            sums = behind[node]
            sums[0] += (peers - own) * hours
            sums[1] += hours
            sums[2] += max(0.0, peers - own) * hours * gpus
            jobs[node].add(job)
    for node, (gap, hours, waited) in behind.items():
        if hours >= MIN_SHARED_HOURS and gap / hours >= LATE_SHARE:
            yield SlowNode(node, gap / hours, len(jobs[node]), hours, waited)


@dataclass(frozen=True, slots=True)
class _Failures:
    """How often something broke, how often it came, and the GPU hours that it took."""

    of_fault: Mapping[str, list[float]]
    of_node: Mapping[NodeKey, list[float]]
    nodes: Mapping[str, set[NodeKey]]
    """Those that had a fault, by the fault."""

    times: Mapping[NodeKey, Amounts]
    """How often each fault came, by the node."""

    @property
    def count(self) -> float:
        return sum(count for count, _, _ in self.of_fault.values())


def failures(view: PeriodView) -> ReportSection:
    """What broke, and for how long."""
    found = _failures(view)
    node_hours = sum(seen.hours for seen in view.past.nodes.values())
    return ReportSection(
        "failures",
        "Failures",
        "Faults that are worth waking somebody. Lost are the hours of the GPU, or of all GPUs "
        "of the node, while the fault was there. A GPU may have worked meanwhile: they are no "
        "part of the sums above. The same fault on the same part is one failure, "
        "however often it came, until it has been gone for a week. One failure may show as several "
        "faults."
        if found.of_fault
        else "No fault was recorded that is worth waking somebody.",
        (
            Figure(
                "failures",
                "Failures",
                found.count,
                "count",
                history.FAULTS.over("15m"),
                "that began",
            ),
            Figure(
                "node_hours_between",
                "Between two failures of a node",
                _days(ratio(node_hours, found.count)),
                "days",
                view.over(history.NODE_HOURS),
                "days on average",
            ),
        ),
        (_by_fault(view, found), _by_node(view, found)),
    )


def _failures(view: PeriodView) -> _Failures:
    classes: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    affected: dict[str, set[NodeKey]] = defaultdict(set)
    worst: dict[NodeKey, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    faults_of: dict[NodeKey, Amounts] = defaultdict(lambda: defaultdict(float))
    broken: dict[NodeKey, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for (uuid, node, fault), windows in view.past.faults.items():
        gpus = 1.0 if uuid else (view.gpus(node) or 0.0)
        for sums in (classes[fault], worst[node]):
            sums[0] += _episodes(windows, REPAIRED_AFTER)
            sums[1] += _episodes(windows, history.FAULT_WINDOW)
        classes[fault][2] += sum(windows.values()) * gpus
        for at, hours in windows.items():
            broken[node][at] += hours * gpus
        affected[fault].add(node)
        faults_of[node][fault] += _episodes(windows, history.FAULT_WINDOW)
    for node, lost in broken.items():
        # Faults that a node has at once cost its GPUs once.
        most = (view.gpus(node) or math.inf) * history.FAULT_WINDOW / HOUR
        worst[node][2] = sum(min(most, hours) for hours in lost.values())
    return _Failures(classes, worst, affected, faults_of)


def _by_fault(view: PeriodView, found: _Failures) -> Table:
    ranked = sorted(found.of_fault.items(), key=lambda item: -item[1][2])
    return Table(
        "faults",
        "GPU hours lost by kind of fault",
        (
            TableColumn("fault", "Fault"),
            TableColumn("count", "Failures", "count"),
            TableColumn("times", "Times", "count"),
            TableColumn("nodes", "Nodes", "count"),
            TableColumn("lost", "Lost", "GPU hours"),
            *view.cost_column(),
            TableColumn("between", "Hours between two failures", "hours"),
        ),
        tuple(
            (
                _named(fault),
                count,
                times,
                float(len(found.nodes[fault])),
                hours,
                *view.cost(hours),
                ratio(len(view.hours), count),
            )
            for fault, (count, times, hours) in ranked
        ),
        (view.over(history.FAULTS),),
    )


def _by_node(view: PeriodView, found: _Failures) -> Table:
    ranked = sorted(found.of_node.items(), key=lambda item: -item[1][2])
    return Table(
        "nodes",
        "Nodes that failed most",
        (
            TableColumn("node", "Node"),
            TableColumn("count", "Failures", "count"),
            TableColumn("times", "Times", "count"),
            TableColumn("lost", "Lost", "GPU hours"),
            TableColumn("faults", "Faults, and how often"),
        ),
        tuple(
            (view.node_name(node), *sums, _often(found.times[node])) for node, sums in ranked[:TOP]
        ),
        (view.over(history.FAULTS),),
    )


def coverage(view: PeriodView) -> ReportSection:
    """Gaps, and nodes that came and went."""
    period = view.past.period
    partly = _seen_in_part(view)
    by_hour = history.STATES.over("1h")
    missing = view.missing_hours()
    expected = view.expected_hours()
    return ReportSection(
        "coverage",
        "What is not known",
        f"{number(missing)} of {view.hours_of(expected)} have no data. "
        f"{amount(len(view.past.nodes), 'node')} in all, {number(len(partly))} seen for part of "
        "the time. What was not seen is not counted anywhere."
        + (
            f" {number(view.total['unknown'])} GPU hours are unknown because sensors were "
            "missing; they count as held and as lost."
            if view.total.get("unknown", 0.0) >= 1
            else ""
        ),
        (
            Figure(
                "hours",
                "Cluster hours" if view.several_clusters else "Hours",
                float(expected),
                "count",
                by_hour,
                f"{amount(period.hours, 'hour')} of {amount(len(view.past.clusters), 'cluster')}",
            ),
            Figure(
                "hours_missing",
                "Without data",
                float(missing),
                "count",
                by_hour,
                "cluster hours" if view.several_clusters else "hours",
            ),
            Figure(
                "nodes",
                "Nodes",
                float(len(view.past.nodes)),
                "count",
                f"count ({view.over(history.NODE_HOURS)})",
                "seen at some time",
            ),
        ),
        (_gap_table(view), _came_and_went(view, partly)),
    )


def _seen_in_part(view: PeriodView) -> list[tuple[NodeKey, NodeHours]]:
    """Nodes that were there for part of the time, the least seen first."""
    found = [
        (node, seen)
        for node, seen in view.past.nodes.items()
        if seen.hours < view.seen_at_most(node)
    ]
    return sorted(found, key=lambda item: item[1].hours)


def _gap_table(view: PeriodView) -> Table:
    gaps = tuple(
        (clean(cluster) or "the only one", clock(first - HOUR), clock(last), float(hours))
        for cluster, own in sorted(view.past.clusters.items())
        for first, last, hours in _gaps(own, view.past.period)
    )
    return Table(
        "gaps",
        "Hours without data",
        (
            TableColumn("cluster", "Cluster"),
            TableColumn("from", "From"),
            TableColumn("to", "To"),
            TableColumn("hours", "Hours", "count"),
        ),
        gaps[:MAX_ROWS],
        (history.STATES.over("1h"),),
    )


def _came_and_went(view: PeriodView, nodes: Sequence[tuple[NodeKey, NodeHours]]) -> Table:
    return Table(
        "nodes",
        "Nodes that came, went or were not seen",
        (
            TableColumn("node", "Node"),
            TableColumn("first", "First day"),
            TableColumn("last", "Last day until"),
            TableColumn("hours", "Hours seen", "count"),
            TableColumn("gpus", "GPUs", "GPUs"),
        ),
        tuple(
            (
                view.node_name(node),
                view.begin(seen.first),
                clock(seen.last),
                seen.hours,
                view.gpus(node),
            )
            for node, seen in nodes[:MAX_ROWS]
        ),
        (history.NODE_HOURS.over("1d"),),
        note=f"The {MAX_ROWS} seen least." if len(nodes) > MAX_ROWS else "",
    )


def _named(fault: str) -> str:
    """A part of a node, or what is wrong with a GPU, in words."""
    of_gpu = FAULTS.get(("gpu", fault))
    return PARTS.get(fault) or (of_gpu.headline if of_gpu else clean(fault))


def _often(faults: Mapping[str, float]) -> str:
    """Faults by how often they came, the most first: ``cooling 4, network port 1``."""
    ranked = sorted(faults.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{_named(fault)} {number(times)}" for fault, times in ranked)


def _episodes(windows: Mapping[int, float], apart: int) -> int:
    """How often a fault began: windows that are no further apart, in seconds, are one time."""
    ends = sorted(windows)
    return bool(ends) + sum(after - before > apart for before, after in pairwise(ends))


def _gaps(own: Mapping[int, Amounts], period: history.Period) -> Iterator[tuple[int, int, int]]:
    """Hours of a period without data that follow one another: ends of the first and last."""
    first = last = 0
    for at in range(period.start + HOUR, period.end + HOUR, HOUR):
        if at in own:
            if first:
                yield first, last, (last - first) // HOUR + 1
            first = 0
        else:
            first, last = first or at, at
    if first:
        yield first, last, (last - first) // HOUR + 1


def _days(hours: float | None) -> float | None:
    return hours / 24 if hours is not None else None
