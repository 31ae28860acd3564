"""What ``gpunode advise`` reads."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpunode.cli.settings.admission import DaemonSettings
from gpunode.config.prometheus import PrometheusSettings
from gpunode.config.web import ListenSettings, NodeNameSettings


class AdviseWebSettings(NodeNameSettings, ListenSettings):
    """Where the HTTP server of this node listens, and what the node is called."""


class AdviseSettings(DaemonSettings):
    """The settings of ``gpunode advise``; what it does is said in ``commands``."""

    web: AdviseWebSettings = AdviseWebSettings()
    prometheus: PrometheusSettings = PrometheusSettings()

    format: Literal["json", "slurm-reason", "node-condition", "health-event", "device-taint"] = (
        Field("json", description="format to print")
    )
    fleet: bool = Field(
        False, description="ask prometheus.url about all nodes, not the daemon about its own"
    )
    nodes: str = Field(
        "",
        description="pattern (RE2) of the nodes of the fleet to advise on, by their label instance",
    )
    cluster: str = Field(
        "", description="cluster of the fleet to advise on, by its label; empty for all"
    )
    file: str = Field(
        "", description="saved /metrics to read instead of asking, or - for standard input"
    )
    at: float | None = Field(
        None, ge=0, le=1e11, description="Unix time at which the file was saved; by default now"
    )
