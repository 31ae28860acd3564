"""The PromQL that rules share, and the labels by which they add up and join."""

from __future__ import annotations

import re
from typing import Literal

from alerts.model import IDENTITY
from gpunode.metric import Metric
from gpunode.sources import METRICS

JOB = ", ".join(IDENTITY["job"])
OWNER = ", ".join(IDENTITY["job"][1:])
"""The labels that a GPU gets from its job."""

GPU = ", ".join(IDENTITY["gpu"])
NODE = ", ".join(IDENTITY["node"])
FILESYSTEM = ", ".join(IDENTITY["filesystem"])

NO_NAMESPACE = "(no namespace)?"
"""What a dashboard selects for jobs without a namespace, as those of Slurm: a regular expression
that an absent label matches, and no namespace of Kubernetes."""

DECLARED: dict[str, Metric] = {m.name: m for section in METRICS.values() for m in section}
"""What the exporter exports, by name."""

DAY = "[1d:15m]"
"""A look at each quarter of the last day: over a fleet, reading every sample of a day would take
longer than the time between two evaluations."""


def rate(metric: str, by: str = GPU, window: str = "5m") -> str:
    """What a counter gains a second."""
    return _summed(f"rate({metric}[{window}])", metric, by)


def gained(metric: str, by: str = GPU, window: str = "15m") -> str:
    """How much a counter gained."""
    return _summed(f"increase({metric}[{window}])", metric, by)


def happened(metric: str, by: str = GPU, window: str = "15m") -> str:
    """Where a counter of events has gained at least one.

    What one event adds is not exactly 1, because ``increase()`` extrapolates:
    https://prometheus.io/docs/prometheus/latest/querying/functions/#increase
    """
    return f"{gained(metric, by, window)} > 0.5"


def _summed(expression: str, metric: str, by: str) -> str:
    """The sum by some labels, in which two scrapes of the same exporter count once."""
    name = re.sub("{.*", "", metric)
    declared = DECLARED.get(name) or DECLARED[re.sub(r"_(bucket|count|sum)$", "", name)]
    own = (*IDENTITY["node"], *declared.labels, *(("le",) if name.endswith("_bucket") else ()))
    each = f"max by ({', '.join(own)}) ({expression})"
    return each if by == ", ".join(own) else f"sum by ({by}) ({each})"


def of_jobs(figure: str, operation: Literal["max", "min"] = "max") -> str:
    """The most or least that the GPUs of a job tell which are not shared, in however many series.

    ``figure`` is a series, or what is in parentheses.
    """
    members = f"on ({GPU}) group_left ({OWNER}) gpu:gpunode_job:member"
    return f"{operation} by ({JOB}) ({figure} * {members})"


def of_gpus(metric: str, operation: Literal["max", "min"] = "max") -> str:
    """A gauge of each GPU, whatever other labels it has."""
    return f"{operation} by ({GPU}) ({metric})"


def by_node(metric: str) -> str:
    """A gauge of kube-state-metrics by the node it is about; several of them tell the same."""
    each = f"max by (cluster, node) ({metric})"
    return f'max by ({NODE}) (label_replace({each}, "instance", "$1", "node", "(.+)"))'


def state(name: str) -> str:
    """The share of time that the ledger gives to a state."""
    return f'gpu:gpunode_gpu_seconds:rate5m{{state="{name}"}}'
