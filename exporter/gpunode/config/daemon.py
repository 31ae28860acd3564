"""What the sources of a node read of the settings, and the views of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpunode.client import protocol
from gpunode.config.bench import BenchSettings
from gpunode.config.command import CommandSettings
from gpunode.config.kinds import DAY, OptionalPath, Seconds, Section
from gpunode.config.web import NodeNameSettings


class NodeSettings(Section):
    """What is known of the node from elsewhere."""

    drained_file: str = Field(
        "",
        pattern=r"^(/.*[^/])?$",
        description="file on the node that is there while the node is drained, so that it pages "
        "nobody; empty for none",
    )
    repaired_file: str = Field(
        "/run/gpunode-repaired",
        pattern=r"^(/.*[^/])?$",
        description="file on the node with the Unix time (date +%s) up to which its faults are "
        "repaired, so that they are told no longer; empty for none",
    )
    faults_file: OptionalPath = Field(
        None,
        description="file in which it is kept what is broken on the node, so that it outlives the "
        "daemon; empty for memory only",
    )


class CalibrationSettings(Section):
    """Where it is kept what kernels reach on the GPUs of this site."""

    calibration_file: str = Field(
        "/var/lib/gpunode/calibration.json",
        pattern=r"^(/.*[^/])?$",
        description="file on the node to which `gpunode calibrate` writes what kernels reach on "
        "its GPUs, for the daemon to read at its start; empty for none",
    )


class GpuSettings(CalibrationSettings):
    """How often the driver is read, and what its readings are held against."""

    interval: float = Field(
        2.0,
        ge=0.5,
        le=2.0,
        description="seconds per window; the driver keeps 2.4 s of power samples",
    )
    processes_interval: Seconds = Field(
        10.0, description="seconds between reads of the processes on a GPU"
    )
    owners_interval: Seconds = Field(5.0, description="seconds between checks of who holds a GPU")
    health_interval: Seconds = Field(
        30.0, description="seconds between reads of error counters and modes"
    )
    nvlink_interval: Seconds = Field(
        120.0, description="seconds between reads of the NVLinks, which take 18 ms per GPU"
    )


class DcgmSettings(Section):
    """A running DCGM, which has the counters of GPUs without GPM: Volta to Ada."""

    address: str = Field(
        "localhost:5555", description="HOST:PORT of nv-hostengine, or empty to do without DCGM"
    )
    bindings: str = Field(
        "", description="folder of DCGM's Python bindings, or empty for where DCGM installs them"
    )


class HostSettings(BenchSettings):
    """How often to read the rest of the node."""

    interval: Seconds = Field(10.0, description="seconds between reads of the node's counters")
    slow_interval: Seconds = Field(
        60.0, description="seconds between reads of filesystems and PCI Express links"
    )
    audit_interval: Seconds = Field(600.0, description="seconds between audits of the node")


class ServingSettings(Section):
    """Inference engines on the GPUs, and within what they should answer."""

    ask: bool = Field(
        True,
        description="ask the inference engines on the GPUs for their metrics, where the privileges "
        "allow it",
    )
    interval: Seconds = Field(10.0, description="seconds between requests to an engine")
    first_token_objective: float = Field(
        2.0, gt=0, le=DAY, description="seconds within which the first token should come"
    )
    output_token_objective: float = Field(
        0.1, gt=0, le=DAY, description="seconds within which each token after it should come"
    )


class KubeletSettings(Section):
    """Where the kubelet of this node answers."""

    pod_resources_socket: str = Field(
        "/var/lib/kubelet/pod-resources/kubelet.sock",
        description="socket of the kubelet's pod-resources API, or empty to do without it",
    )


class KubernetesSettings(KubeletSettings):
    """The kubelet of this node, and how often to ask it."""

    interval: Seconds = Field(5.0, description="seconds between requests to the kubelet")


class SlurmSettings(Section):
    """The jobs of Slurm on this node."""

    jobs_folder: str = Field(
        "",
        pattern=r"^(/.*[^/])?$",
        description="folder of the node to which a Prolog of Slurm writes the GPUs of each job; "
        "empty for what the environments of jobs say",
    )


class ClientSettings(Section):
    """Messages from training processes."""

    socket: str = Field(
        protocol.SOCKET, description="socket for messages from gpunode.client, or empty for none"
    )
    interval: float = Field(
        2.0, ge=1, le=8, description="seconds between reads of the messages that arrived"
    )


class StacksSettings(Section):
    """Where in its code a process stands for which others have waited for a while."""

    look: bool = Field(
        True,
        description="look where a process stands once others have waited for it for 10 s, or once "
        "who has a password asks (docs/incidents.md), as far as the privileges allow it",
    )
    code: bool = Field(
        False,
        description="tell on the pages, in the API and in evidence also the file, the line and the "
        "function where it stands, to everybody who may read them",
    )


class IncidentSettings(Section):
    """The black box: what is kept of each incident, from ten minutes before it."""

    keep: bool = Field(
        True,
        description="keep the last minutes of everything that is read, and of each incident what "
        "is known, in 16 MiB of memory",
    )
    folder: OptionalPath = Field(
        None, description="folder in which incidents outlive the daemon; empty for none"
    )
    folder_bytes: int = Field(
        256 << 20,
        ge=1 << 20,
        le=1 << 40,
        description="bytes that this folder may take; the oldest incidents are removed first",
    )
    where: bool = Field(
        False,
        description="tell in the metric gpunode_incident_info where the process stands for which "
        "others wait; with stacks.code also file, line and function",
    )


class DiscoverySettings(Section):
    """GPUs and mounts that come and go."""

    interval: float = Field(
        10.0,
        ge=0.1,
        le=DAY,
        description="seconds between checks for GPUs and mounts that came or went",
    )


Compat = Annotated[
    Literal["none", "dcgm"],
    Field(description="other exporter whose metric names and labels to export as well"),
]


class Settings(CommandSettings):
    """What the sources of a node and the views of them read."""

    node: NodeSettings = NodeSettings()
    web: NodeNameSettings = NodeNameSettings()
    gpu: GpuSettings = GpuSettings()
    host: HostSettings = HostSettings()
    discovery: DiscoverySettings = DiscoverySettings()
    kubernetes: KubernetesSettings = KubernetesSettings()
    slurm: SlurmSettings = SlurmSettings()
    client: ClientSettings = ClientSettings()
    serving: ServingSettings = ServingSettings()
    stacks: StacksSettings = StacksSettings()
    compat: Compat = "none"
