"""What a row of the threshold table says, and the PromQL that rows share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["critical", "warning", "info"]
Unit = Literal["percent", "celsius", "seconds", "bytes", "number", "count", "flag"]
"""How a figure is written; a ``count`` is of whole things, a ``flag`` has no figure."""

Scope = Literal["gpu", "node", "cluster"]
Gate = Literal["running", "some_work", "lately", "always"]
"""When an alert may fire: while a job keeps the GPU busy; while the GPU has some work, for what
keeps a job from running; if a job ran on the node within the hour, for what can stop all of them;
always. All but the last are silent while training sets up, compiles, evaluates or saves."""

IDENTITY: dict[Scope, tuple[str, ...]] = {
    "gpu": ("cluster", "instance", "gpu", "uuid"),
    "node": ("cluster", "instance"),
    "cluster": ("cluster",),
}
"""The labels that say which GPU, node or cluster an alert is about."""

GPU = ", ".join(IDENTITY["gpu"])
NODE = ", ".join(IDENTITY["node"])

PAUSE = "gpu:gpunode_training_pause:rate5m"
"""Share of time in which a training process sets up, compiles, evaluates or saves."""
PAUSED = 0.1
"""The share from which alerts on bottlenecks are silent."""

NCCL_BANDWIDTH = (
    f"max by ({NODE}, collective, gpus) (gpunode_nccl_bus_bandwidth_bytes_per_second) "
    f"/ on ({NODE}, collective, gpus) max by ({NODE}, collective, gpus) "
    "(gpunode_nccl_expected_bus_bandwidth_bytes_per_second > 0)"
)
"""Measured over expected bus bandwidth."""


@dataclass(frozen=True, slots=True)
class Series:
    """A series of a test; the labels of Prometheus and of the test's GPU are added to it."""

    metric: str
    labels: tuple[tuple[str, str], ...] = ()


Given = Mapping[Series, float | None]
"""What a test is given: the value of a gauge, or what a counter gains a second; None where the
series is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Series that make an alert fire in every tier, and series that do not: the alert's test.

    A series that ``quiet`` leaves out is the same in both.
    """

    fires: Given
    quiet: Given
    value: float
    """What the signal comes to when the alert fires."""

    ramps: bool = False
    """Whether gauges gain their values a second, as counters do."""

    silenced_by: Given = field(default_factory=dict)
    """Series that silence the alert; by default, training that evaluates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """The threshold and the duration from which an alert has a severity."""

    severity: Severity
    threshold: float
    after: str
    signal: str = ""
    """What the tier looks at, where that is not the row's signal."""

    says: str = ""
    """What the tier's signal is, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A row of the table. Its impact and diagnosis are in ``alerts/runbooks``."""

    alert: str
    group: str
    summary: str
    summary_ko: str
    says: str
    """What the signal is, in words: ``{value}`` is its figure, any other name in braces a label."""

    meaning: str
    """One sentence."""

    remedy: str
    """One sentence."""

    source: str
    """Where the threshold or the mechanism is described."""

    signal: str
    """PromQL without set operators, which is compared with each tier's threshold."""

    where: str = ""
    """What must hold besides: set operators (``and``, ``unless``) with their right-hand side."""

    window: str = "5m"
    """How far back the signal looks; ``0s`` where it is a gauge as it stands."""

    unit: Unit
    comparison: Literal[">", "<"] = ">"
    tiers: tuple[Tier, ...]
    scope: Scope = "gpu"
    labels: tuple[str, ...] = ()
    """The labels that the signal keeps beside those of its scope."""

    gate: Gate = "running"
    keep_firing_for: str = ""
    over_nodes: bool = False
    """Whether it compares nodes, and so needs the Prometheus that sees them all."""

    example: Example

    @property
    def identity(self) -> tuple[str, ...]:
        """Every label that tells one alert of this row from another."""
        return (*IDENTITY[self.scope], *self.labels)


def minutes(duration: str) -> int:
    """A duration of Prometheus in minutes, rounded up."""
    number, unit = int(duration[:-1]), duration[-1]
    return math.ceil(number * {"s": 1 / 60, "m": 1, "h": 60}[unit])


def rate(metric: str, by: str = GPU, window: str = "5m") -> str:
    """What a counter gains a second."""
    return f"sum by ({by}) (rate({metric}[{window}]))"


def gained(metric: str, by: str = GPU, window: str = "15m") -> str:
    """How much a counter gained."""
    return f"sum by ({by}) (increase({metric}[{window}]))"


def state(name: str) -> str:
    """The share of time that the ledger gives to a state."""
    return f'sum by ({GPU}) (gpu:gpunode_gpu_seconds:rate5m{{state="{name}"}})'


def series(metric: str, **labels: str) -> Series:
    """A series of a test."""
    return Series(metric, tuple(labels.items()))


def ledger(**shares: float) -> dict[Series, float]:
    """The ledger of a GPU, by state; the rest of its time is ``compute``."""
    rest = {"compute": 1.0 - sum(shares.values())}
    return {
        series("gpunode_gpu_seconds_total", state=state): share
        for state, share in {**rest, **shares}.items()
    }


def owner(**known: str) -> Series:
    """Who holds a GPU; what is not known of the owner is empty, as the exporter has it."""
    labels = ("owner_namespace", "owner_pod", "owner_container", "slurm_job", "user")
    given = {**dict.fromkeys(labels, ""), "via": "process", **known}
    return series("gpunode_gpu_owner_info", **given)
