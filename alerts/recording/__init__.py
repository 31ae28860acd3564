"""Recording rules: what alerts, dashboards and capacity reviews ask."""

from __future__ import annotations

from alerts.model import Record
from alerts.recording import (
    absence,
    bandwidth,
    behind,
    capacity,
    clocks,
    compared,
    conditions,
    engines,
    events,
    faults,
    jobs,
    latched,
    lemons,
    losses,
    memory,
    overview,
    parts,
    places,
    ranks,
    repairs,
    review,
    runs,
    servers,
    starts,
    supply,
    versions,
)

OF_NODES: tuple[Record, ...] = (
    *capacity.OF_NODES,
    *jobs.OF_NODES,
    *repairs.OF_NODES,
    *latched.OF_GPUS,
    *faults.OF_NODES,
    *latched.OF_HOLDERS,
    *latched.OF_PARTS,
    *compared.OF_NODES,
    *versions.OF_NODES,
    *absence.OF_NODES,
    *clocks.OF_NODES,
    *memory.OF_NODES,
    *ranks.OF_NODES,
    *places.OF_NODES,
    *overview.OF_NODES,
    *lemons.OF_NODES,
    *bandwidth.OF_NODES,
    *parts.OF_NODES,
    *servers.OF_NODES,
)
"""Rules that need only the series of one node; each shard of Prometheus can evaluate them."""

OF_CLUSTERS: tuple[Record, ...] = (
    *jobs.OF_CLUSTERS,
    *jobs.OF_PACE,
    *versions.OF_CLUSTERS,
    *jobs.OF_SERVICES,
    *engines.OF_ENGINES,
    *overview.OF_CLUSTERS,
    *faults.OF_CLUSTERS,
    *compared.OF_CLUSTERS,
    *servers.OF_JOBS,
    *jobs.OF_STILL,
    *events.OF_EVENTS,
    *jobs.OF_STALLS,
    *starts.OF_STARTS,
    *memory.OF_CLUSTERS,
    *ranks.OF_RANKS,
    *ranks.OF_FIGURES,
    *capacity.OF_CLUSTERS,
    *lemons.OF_LEMONS,
    *behind.OF_GPUS,
    *bandwidth.OF_JOBS,
    *review.REVIEWED,
    *runs.OF_RUNS,
    *places.OF_PLACES,
    *supply.OF_CLUSTERS,
    *conditions.OF_CLUSTERS,
    *losses.OF_NAMESPACES,
    *losses.SINCE,
)
"""Rules that add up or compare nodes, for the Prometheus that sees them all."""

RECORDS = OF_NODES + OF_CLUSTERS
