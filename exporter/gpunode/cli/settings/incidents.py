"""What ``gpunode incidents`` and ``gpunode incident`` read."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import CliPositionalArg

from gpunode.cli.settings.admission import DaemonSettings
from gpunode.config.kinds import CLI_ONLY, Address, OptionalPath
from gpunode.config.prometheus import PrometheusSettings


class IncidentsCommandSettings(DaemonSettings):
    """The settings of ``gpunode incidents``; what it does is said in ``commands``."""

    folder: Annotated[OptionalPath, CLI_ONLY] = Field(
        None, description="folder in which a daemon kept them, to be read in its place"
    )
    json_output: bool = Field(False, alias="json", description="print JSON instead of text")


class IncidentCommandSettings(DaemonSettings):
    """The settings of ``gpunode incident``; what it does is said in ``commands``."""

    prometheus: PrometheusSettings = PrometheusSettings()

    incident: Annotated[CliPositionalArg[str], CLI_ONLY] = Field(
        "latest", description="ID of the incident, as `gpunode incidents` lists it, or latest"
    )
    folder: Annotated[OptionalPath, CLI_ONLY] = Field(
        None, description="folder in which a daemon kept it, to be read in its place"
    )
    html: Annotated[OptionalPath, CLI_ONLY] = Field(
        None,
        description="file to write it to, as one page of HTML that can be mailed; - for standard "
        "output",
    )
    tape: Annotated[OptionalPath, CLI_ONLY] = Field(
        None, description="file to write its tape to, for `gpunode replay`"
    )
    job: Annotated[str, CLI_ONLY] = Field(
        "",
        description="job of which prometheus.url is asked for the incidents of a day: "
        "namespace/pod, a workload, the number of a Slurm job, or user@node",
    )
    cluster: Annotated[str | None, CLI_ONLY] = Field(
        None, description="label cluster of the job, where several clusters have one of its name"
    )
    node_url: Annotated[Address, CLI_ONLY] = Field(
        "",
        pattern=r"^(https?://[!-~]*\{instance\}[!-~]*|none)?$",
        description="address of each node of the job, where {instance} stands for its label in "
        "Prometheus, or none to ask no node; by default https:// with a password or a certificate, "
        "and http:// without",
    )
    json_output: bool = Field(False, alias="json", description="print JSON instead of text")
