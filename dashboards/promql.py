"""The PromQL that panels share, and the labels by which they add up and join."""

from __future__ import annotations

import re
from typing import Literal

from dashboards.rules import DECLARED, OF_EVERY_TARGET

NODE = "cluster, instance"
GPU = f"{NODE}, gpu, uuid"
OWNER = "owner_namespace, workload, replica, user"
JOB = f"cluster, {OWNER}"

NO_NAMESPACE = "(no namespace)?"
"""What a dashboard selects for jobs without a namespace, as those of Slurm: a regular expression
that an absent label matches, and no namespace of Kubernetes."""

WINDOW = "$__rate_interval"
"""At least four scrapes, and no less than the time between two points of a graph:
https://grafana.com/docs/grafana/latest/datasources/prometheus/template-variables/"""

MEMBER = "gpu:gpunode_owner:info"
"""Each GPU of a job, with the labels of the job."""

RANK = "gpu:gpunode_rank:info"
"""Each GPU of a job, with the labels of the job and its rank."""


def rate(metric: str, by: str = GPU) -> str:
    """What a counter gains a second."""
    return _summed(f"rate({metric}[{WINDOW}])", metric, by)


def gained(metric: str, by: str = GPU, window: str = "15m") -> str:
    """How much a counter gained."""
    return _summed(f"increase({metric}[{window}])", metric, by)


def _summed(expression: str, metric: str, by: str) -> str:
    """The sum by some labels, in which two scrapes of the same exporter count once."""
    name = re.sub("{.*", "", metric)
    declared = DECLARED.get(name) or DECLARED[re.sub(r"_(bucket|count|sum)$", "", name)]
    own = (*OF_EVERY_TARGET, *declared.labels, *(("le",) if name.endswith("_bucket") else ()))
    each = f"max by ({', '.join(own)}) ({expression})"
    return each if by == ", ".join(own) else f"sum by ({by}) ({each})"


def of_gpus(metric: str, operation: Literal["max", "min"] = "max") -> str:
    """A gauge of each GPU, whatever other labels it has."""
    return f"{operation} by ({GPU}) ({metric})"


def of_time(states: str = "") -> str:
    """The share of each GPU's time that is in each state.

    A scrape sees the last step of the counters, which may be two seconds old, so that the states of
    a minute come to 58 to 62 seconds. They step together: as parts of what they come to, they are
    never more than the whole.
    """
    each, seconds = f"{GPU}, state", "gpunode_gpu_seconds_total"
    part, whole = rate(f"{seconds}{states}", each), f"sum by ({GPU}) ({rate(seconds, each)})"
    return f"{part} / on ({GPU}) group_left () ({whole} > 0)"


def bounded(share: str) -> str:
    """A share of time, which the steps of its counter can make more than all of it."""
    return f"clamp_max({share}, 1)"


def active(unit: str) -> str:
    """The share of a GPU's time in which a unit of it is active."""
    return bounded(rate(f'gpunode_gpu_active_seconds_total{{unit="{unit}"}}'))


def in_hour(metric: str, by: str = GPU) -> str:
    """What a counter gained in the hour before."""
    return gained(metric, by, "1h")


def ratio(part: str, whole: str, by: str = GPU) -> str:
    """A share, where there is something to share."""
    return f"{part} / on ({by}) ({whole} > 0)"


def share(part: str, whole: str, by: str = GPU) -> str:
    """One gauge as a share of another."""
    return ratio(f"max by ({by}) ({part})", f"max by ({by}) ({whole})", by)
