"""Recording rules: what alerts, dashboards and capacity reviews ask."""

from __future__ import annotations

from alerts.model import Record
from alerts.recording import capacity, faults, jobs, review, versions

OF_NODES: tuple[Record, ...] = (
    *capacity.OF_NODES,
    *jobs.OF_NODES,
    *faults.OF_NODES,
    *versions.OF_NODES,
)
"""Rules that need only the series of one node; each shard of Prometheus can evaluate them."""

OF_CLUSTERS: tuple[Record, ...] = (
    *jobs.OF_CLUSTERS,
    *jobs.OF_PACE,
    *versions.OF_CLUSTERS,
    *jobs.OF_SERVICES,
    *faults.OF_CLUSTERS,
    *jobs.OF_STALLS,
    *capacity.OF_CLUSTERS,
    *review.REVIEWED,
)
"""Rules that add up or compare nodes, for the Prometheus that sees them all."""

RECORDS = OF_NODES + OF_CLUSTERS
