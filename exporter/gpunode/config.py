"""Settings from options, environment variables (``GPUNODE_WEB__LISTEN_ADDRESS``) and a YAML file.

An option overrides the environment, which overrides the file. Every default is defined here, and
``docs/settings.md`` is generated from the fields and their descriptions.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, TypeVar, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    CliPositionalArg,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from gpunode.client import protocol
from gpunode.text import escaped

Collective = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv"
]
"""The collectives of nccl-tests that ``gpunode nccl-bench`` can measure."""


DAY = 86_400
"""The longest interval in seconds: nobody means to read anything less often than once a day."""

Seconds = Annotated[float, Field(ge=1, le=DAY)]
"""An interval that is no shorter than what is read changes."""


def _named(given: object) -> object:
    if given == "":
        raise ValueError("is empty")
    return given


NamedPath = Annotated[Path, BeforeValidator(_named)]
"""A file or folder that must be named: an empty name would be that of the folder one is in."""

OptionalPath = Annotated[Path | None, BeforeValidator(lambda given: given or None)]
"""A file or folder; empty for none."""

ASKED = "on the command line alone"
"""Marks a setting that no file and no variable has, such as one with the name of a section."""

LARGEST_FILE = 1 << 16
"""The most characters of a file of settings, each of which may take 250 bytes to read as YAML."""

DEEPEST = 16
"""The most collections that may lie in each other: settings take three."""

LONGEST_KEY = 200
"""Characters of a key in a message."""

TOKEN_VARIABLE = "GPUNODE_PROMETHEUS_TOKEN"  # noqa: S105 a name
PASSWORD_VARIABLE = "GPUNODE_PROMETHEUS_PASSWORD"  # noqa: S105 a name
"""Environment variables with what may be no option: other users see the options of a process."""

INCIDENTS = Path(__file__).with_name("incidents")
"""The recorded incidents in the package."""

STORIES = Path(__file__).with_name("stories")
"""The tapes of the demo."""

PREFIX = "GPUNODE_"
"""What the name of every environment variable of ours begins with."""

SERVICE = re.compile(
    r"""GPUNODE_(\w+_)?(
        SERVICE_HOST=.* | SERVICE_PORT(_\w+)?=\d+ | PORT(_\d+_(TCP|UDP|SCTP))?=\w+://.*
        | PORT_\d+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR)=.*
    )""",
    re.VERBOSE,
)
"""Variables that Kubernetes sets in every pod for a service whose name begins with ``gpunode``:
https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables"""


class UsageError(Exception):
    """A mistake that the user can correct; ``str()`` is one line that says what and where."""


class Section(BaseModel):
    """A group of settings; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _without_password(url: str) -> str:
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ValueError(
            "has a password, which other users see in the list of processes; there are settings "
            "for a user name and for a file with the password"
        )
    return url


Address = Annotated[str, AfterValidator(_without_password)]
"""The address of a server, which may be shown."""


class PathSettings(Section):
    """Where the node's files are."""

    rootfs: NamedPath = Field(Path("/"), description="folder where the root of the node is mounted")
    helpers: str = Field(
        "",
        pattern=r"^(/.*[^/])?$",
        description="folder with the sockets of `gpunode helper`, which reads what this program "
        "may not; empty for none",
    )

    @field_validator("rootfs")
    @classmethod
    def _is_directory(cls, path: Path) -> Path:
        if not os.path.isdir(path):  # Path.is_dir raises if it may not look
            raise ValueError(f"{str(path)!r} is not a directory")
        return path


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


class WebConfigSettings(Section):
    """The file that says who may read the pages."""

    file: OptionalPath = Field(
        None,
        description="file in the format of Prometheus' exporters that turns on TLS and passwords",
    )


LISTENS = (
    "address and port on which to serve HTTP; without an address, on all of both IPv4 and IPv6"
)


class ListenSettings(Section):
    """Where the HTTP server listens."""

    listen_address: str = Field(
        ":9816",
        description=LISTENS,
    )

    @field_validator("listen_address")
    @classmethod
    def _has_port(cls, address: str) -> str:
        host, colon, port = address.rpartition(":")
        printable = host.isascii() and host.isprintable()
        if not (printable and colon and re.fullmatch(r"[0-9]{1,5}", port) and int(port) < 65536):
            raise ValueError(f"{address!r} is not ADDRESS:PORT")
        return address

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.listen_address.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def here(self) -> str:
        """The address of the page in a browser on this machine."""
        host, _, port = self.listen_address.rpartition(":")
        return f"http://{'localhost' if host in ('', '0.0.0.0', '[::]') else host}:{port}/"  # noqa: S104


class NodeNameSettings(Section):
    """What the node is called."""

    node_name: str = Field(
        "", description="name of this node on its page and in advice, if not its hostname"
    )


class AdviseWebSettings(NodeNameSettings, ListenSettings):
    """Where the HTTP server of this node listens, and what the node is called."""


class WebSettings(NodeNameSettings, ListenSettings):
    """The HTTP server."""

    config: WebConfigSettings = WebConfigSettings()


class PlayingWebSettings(WebSettings):
    """The HTTP server of what is played: for who plays it, on this machine."""

    listen_address: str = Field(
        "127.0.0.1:9816",
        description=LISTENS,
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


class BenchSettings(Section):
    """Where measurements of collectives are."""

    nccl_bench_folder: str = Field(
        "/var/lib/gpunode/nccl-bench",
        description="folder on the node where nccl-bench leaves its results for the daemon",
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


class PrometheusSettings(Section):
    """A Prometheus, Thanos, Mimir or VictoriaMetrics with the series of the recording rules."""

    url: Address = Field(
        "http://localhost:9090", description="address of Prometheus, up to where /api/v1 begins"
    )
    timeout: float = Field(60.0, ge=1, le=3600, description="seconds to wait for one answer")
    token_file: OptionalPath = Field(
        None, description=f"file with a bearer token, which {TOKEN_VARIABLE} can hold instead"
    )
    username: str = Field("", description="user name for basic authentication")
    password_file: OptionalPath = Field(
        None, description=f"file with the password, which {PASSWORD_VARIABLE} can hold instead"
    )
    tenant: str = Field("", description="tenant of Mimir or Thanos, sent as X-Scope-OrgID")
    ca_file: OptionalPath = Field(
        None, description="PEM file of the authorities that may sign the server's certificate"
    )
    cert_file: OptionalPath = Field(None, description="PEM file of the certificate to show it")
    key_file: OptionalPath = Field(None, description="PEM file of that certificate's key")

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        if not re.match("https?://.", url):
            raise ValueError(f"{url!r} does not begin with http:// or https://")
        return url


class LogSettings(Section):
    """What is logged to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="lowest severity to log"
    )


class ConfigSettings(Section):
    """The file of settings."""

    file: OptionalPath = Field(None, description="YAML file to read settings from")


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


class CommandSettings(BaseSettings):
    """The settings that every command reads.

    The class of a command has what that command reads, and nothing else. The environment and the
    file are shared: what another command reads is left out.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_prefix_target="all",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_exit_on_error=False,
        cli_hide_none_type=True,
        cli_avoid_json=True,
    )

    log: LogSettings = LogSettings()
    config: ConfigSettings = ConfigSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        found = _own(settings_cls.model_fields, env_settings())
        return init_settings, InitSettingsSource(settings_cls, found)


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


class RunSettings(Settings):
    """Watch this node and serve its metrics."""

    path: PathSettings = PathSettings()
    web: WebSettings = WebSettings()
    dcgm: DcgmSettings = DcgmSettings()
    incident: IncidentSettings = IncidentSettings()


class RecordSettings(Settings):
    """Watch this node and record its answers on a tape."""

    path: PathSettings = PathSettings()
    dcgm: DcgmSettings = DcgmSettings()

    file: CliPositionalArg[NamedPath] = Field(description="tape to write")
    duration: float = Field(60.0, gt=0, le=DAY, description="seconds to record")
    max_bytes: int = Field(64 << 20, gt=0, description="bytes at which to stop recording")
    comment: str = Field("", description="note on what the tape shows")


class ReplaySettings(Settings):
    """Play back a tape through the same code and serve its metrics."""

    web: PlayingWebSettings = PlayingWebSettings()
    incident: IncidentSettings = IncidentSettings()

    file: CliPositionalArg[NamedPath] = Field(
        description="tape to play, or the name of a recorded incident, such as h200_hang"
    )
    speed: float = Field(
        1.0, ge=0, description="multiple of real time, or 0 for as fast as possible"
    )
    times: int = Field(1, ge=1, le=1_000_000, description="number of times to play the tape")
    print: Literal["table", "metrics"] = Field("table", description="what to print at the end")


class DemoGpuSettings(GpuSettings):
    """The same for incidents that are over before what is read every 30 s is read twice."""

    health_interval: Seconds = Field(
        10.0, description="seconds between reads of error counters and modes"
    )


class DemoSettings(Settings):
    """Play incidents, say what is worth looking at, and show where the time of each GPU went."""

    web: PlayingWebSettings = PlayingWebSettings()
    gpu: DemoGpuSettings = DemoGpuSettings()

    incident: Annotated[CliPositionalArg[NamedPath], ASKED] = Field(
        STORIES,
        description="incident to play: storage, hang, p2p, throttled or shm, by default all five; "
        "or a folder of tapes",
    )
    speed: float = Field(1.0, gt=0, description="multiple of real time")
    once: bool = Field(False, description="exit after the last tape instead of starting over")


class AdmissionSettings(CommandSettings):
    """What it takes to be let in by a daemon at an address."""

    url: Address = ""
    username: str = Field("", description="user name, if the daemon asks for one")
    password_file: OptionalPath = Field(None, description="file with the user's password")
    ca_file: OptionalPath = Field(
        None, description="PEM file of the authorities that may sign the daemon's certificate"
    )
    cert_file: OptionalPath = Field(None, description="PEM file of the certificate to show it")
    key_file: OptionalPath = Field(None, description="PEM file of that certificate's key")

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        if url and not re.fullmatch(r"https?://[!-.0-~]+(/[!-~]*)?", url):
            raise ValueError(f"{url!r} is not http://HOST:PORT or https://HOST:PORT")
        return url

    @property
    def address(self) -> str:
        """Where the daemon answers."""
        return self.url.rstrip("/")


class DaemonSettings(AdmissionSettings):
    """Where a running daemon answers, and what it takes to be let in."""

    web: ListenSettings = ListenSettings()

    url: Address = Field(
        "", description="address of the daemon; by default where web.listen-address has it listen"
    )

    @property
    def address(self) -> str:
        return (self.url or self.web.here).rstrip("/")


class TopSettings(DaemonSettings):
    """Show the GPUs of a running daemon in this terminal, live."""

    interval: Seconds = Field(2.0, description="seconds between two looks")
    json_output: bool = Field(False, alias="json", description="print JSON once instead")


class IncidentsCommandSettings(DaemonSettings):
    """List the incidents that a running daemon, or its folder, has kept."""

    folder: Annotated[OptionalPath, ASKED] = Field(
        None, description="folder in which a daemon kept them, to be read in its place"
    )
    json_output: bool = Field(False, alias="json", description="print JSON instead of text")


class IncidentCommandSettings(DaemonSettings):
    """Show an incident: what happened, who waited for whom, where in the code, and what to do.

    With a job, those of all its nodes, from Prometheus, and which node began.
    """

    prometheus: PrometheusSettings = PrometheusSettings()

    incident: Annotated[CliPositionalArg[str], ASKED] = Field(
        "latest", description="ID of the incident, as `gpunode incidents` lists it, or latest"
    )
    folder: Annotated[OptionalPath, ASKED] = Field(
        None, description="folder in which a daemon kept it, to be read in its place"
    )
    html: Annotated[OptionalPath, ASKED] = Field(
        None,
        description="file to write it to, as one page of HTML that can be mailed; - for standard "
        "output",
    )
    tape: Annotated[OptionalPath, ASKED] = Field(
        None, description="file to write its tape to, for `gpunode replay`"
    )
    job: Annotated[str, ASKED] = Field(
        "",
        description="job of which prometheus.url is asked for the incidents of a day: "
        "namespace/pod, a workload, the number of a Slurm job, or user@node",
    )
    cluster: Annotated[str | None, ASKED] = Field(
        None, description="label cluster of the job, where several clusters have one of its name"
    )
    node_url: Annotated[Address, ASKED] = Field(
        "",
        pattern=r"^(https?://[!-~]*\{instance\}[!-~]*|none)?$",
        description="address of each node of the job, where {instance} stands for its label in "
        "Prometheus, or none to ask no node; by default https:// with a password or a certificate, "
        "and http:// without",
    )
    json_output: bool = Field(False, alias="json", description="print JSON instead of text")


class McpSettings(CommandSettings):
    """Answer an agent about jobs that are held up, with proof (Model Context Protocol, stdio)."""

    prometheus: PrometheusSettings = PrometheusSettings()

    node: Annotated[Address, ASKED] = Field(
        "",
        pattern=r"^(https?://[!-~]+)?$",
        description="address of a daemon that may be asked as well",
    )
    username: str = Field("", description="user name, if that daemon asks for one")
    password_file: OptionalPath = Field(None, description="file with the user's password")
    ca_file: OptionalPath = Field(
        None, description="PEM file of the authorities that may sign its certificate"
    )


class StacksCommandSettings(AdmissionSettings):
    """Show where the processes on the GPUs of this node stand, in Python and in the kernel."""

    path: PathSettings = PathSettings()

    url: Annotated[Address, ASKED] = Field(
        "",
        description="address of a daemon that is to look at its node, to who gives a password or a "
        "certificate; empty to look at this node",
    )
    gpu: Annotated[str, ASKED] = Field(
        "", pattern=r"^\d{0,4}$", description="index of the GPU to look at; empty for all"
    )
    pid: Annotated[int | None, ASKED] = Field(
        None, ge=1, le=1 << 31, description="process to look at, instead of those on GPUs"
    )
    native: Annotated[bool, ASKED] = Field(
        False,
        description="show functions of C and C++ as well, for which py-spy stops each process for "
        "up to a second; of a program without Python, gdb shows them and stops it for some seconds",
    )
    json_output: bool = Field(False, alias="json", description="print JSON instead of text")


class AuditSettings(CommandSettings):
    """List what on this node is not set up for training; exit with 1 if anything is not."""

    path: PathSettings = PathSettings()

    json_output: bool = Field(False, alias="json", description="print JSON instead of a table")


class DoctorSettings(CommandSettings):
    """Say which sources give data here now, and what the others take; exit with 0 in any case."""

    path: PathSettings = PathSettings()
    node: NodeSettings = NodeSettings()
    web: ListenSettings = ListenSettings()
    dcgm: DcgmSettings = DcgmSettings()
    host: BenchSettings = BenchSettings()
    kubernetes: KubeletSettings = KubeletSettings()
    slurm: SlurmSettings = SlurmSettings()
    compat: Compat = "none"

    json_output: bool = Field(False, alias="json", description="print JSON instead of a table")


class NcclBenchSettings(CommandSettings):
    """Measure a collective or the bandwidth between hosts, keep it; exit with 1 if it is slow."""

    path: PathSettings = PathSettings()
    host: BenchSettings = BenchSettings()

    collective: Collective = Field("all_reduce", description="collective to measure")
    gpus: int = Field(0, ge=0, le=1024, description="number of GPUs to use on a node, or 0 for all")
    hosts: str = Field(
        "",
        max_length=65_536,
        description="hosts to measure the bandwidth between, such as node-[01-04],node-07, with "
        "srun or mpirun; empty to measure this node",
    )
    launcher: Literal["srun", "mpirun"] | None = Field(
        None, description="what starts the ranks on hosts; without it, srun if it is installed"
    )
    python: str = Field("python3", description="Python that has torch on each of the hosts")
    result: str = Field(
        "", description="file with what ranks started by hand have printed, to judge; - for stdin"
    )
    picture: str = Field("", description="file for a picture (SVG) of what each pair exchanges")
    largest: str = Field(
        "8G",
        pattern=r"^([1-9]\d{0,3}G|[1-9]\d{1,3}M|[89]M)$",
        description="largest message to send, 8M or more",
    )
    json_output: bool = Field(False, alias="json", description="print JSON instead of a table")


class CalibrateSettings(CommandSettings):
    """Measure what kernels reach on a GPU that is not in use, in a minute, and keep it."""

    path: PathSettings = PathSettings()
    gpu: CalibrationSettings = CalibrationSettings()
    dcgm: DcgmSettings = DcgmSettings()

    index: int = Field(0, ge=0, le=1024, description="number of the GPU to use")
    json_output: bool = Field(False, alias="json", description="print JSON instead of a table")


class ReportSettings(CommandSettings):
    """Write a report on the GPU hours of weeks or months, from what Prometheus has recorded."""

    prometheus: PrometheusSettings = PrometheusSettings()
    since: str = Field(
        "30d",
        alias="from",
        description="begin: a date, a time in UTC, or so long before the end; last-month for the "
        "last calendar month before the end",
    )
    until: str = Field("now", alias="to", description="end: a date or a time in UTC, or now")
    by: Literal["namespace", "job", "user", "node", "model", "kind"] = Field(
        "namespace", description="what GPU hours are listed by"
    )
    price: float | None = Field(
        None,
        ge=0,
        le=1e9,
        description="price of a GPU hour, in your currency; of a model for which billing-file has "
        "none",
    )
    billing_file: OptionalPath = Field(
        None, description="file of YAML with a currency, prices by model of GPU, and teams"
    )
    sacct_file: OptionalPath = Field(
        None, description="what sacct printed, for accounts of Slurm and the time in its queue"
    )
    format: Literal["html", "json", "csv"] = Field("html", description="format to write")
    output: str = Field(
        "", description="file to write, or - for standard output; empty for gpunode-report.FORMAT"
    )
    baseline: OptionalPath = Field(
        None, description="earlier report in JSON, with whose jobs to compare the same ones now"
    )
    fail_if_worse: str = Field(
        "",
        description="exit with 1 if they are slower than in the baseline by more than this, as 3%",
    )
    out_folder: OptionalPath = Field(
        None,
        description="folder for the report in every format and the bill of each team as a page, as "
        "text and as a mail; instead of format and output",
    )


class WhySettings(CommandSettings):
    """Say where the time of a job's GPUs went, what took it and what helps, from Prometheus."""

    prometheus: PrometheusSettings = PrometheusSettings()
    job: CliPositionalArg[str] = Field(
        description="job: namespace/pod, a workload, the number of a Slurm job, or user@node"
    )
    since: str = Field(
        "7d", alias="from", description="begin: a date, a time in UTC, or so long before the end"
    )
    until: str = Field("now", alias="to", description="end: a date or a time in UTC, or now")
    cluster: str | None = Field(
        None, description="label cluster of the job, where several clusters have one of its name"
    )
    price: float | None = Field(
        None, ge=0, le=1e9, description="price of a GPU hour, in your currency"
    )
    ended: bool = Field(
        False,
        description="say that the job has ended, as an Epilog knows; what is recorded shows it "
        "only after three minutes",
    )
    format: Literal["text", "html", "json"] = Field("text", description="format to write")
    output: str = Field("-", description="file to write, or - for standard output")


class AdviseSettings(DaemonSettings):
    """Say what is to be done with a node and whom that harms; exit with 1 if it is unfit."""

    web: AdviseWebSettings = AdviseWebSettings()
    prometheus: PrometheusSettings = PrometheusSettings()

    format: Literal["json", "slurm-reason", "node-condition", "health-event"] = Field(
        "json", description="format to print"
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


class RulesSettings(CommandSettings):
    """Write the rules for Prometheus, with what a site changes about them."""

    into: NamedPath = Field(description="folder to write rules/ and alertmanager.yaml to")
    changes: OptionalPath = Field(
        None, description="file of YAML with changes of thresholds, severities and settings"
    )


class CompletionSettings(CommandSettings):
    """Print what makes a shell complete commands, options and values: README.md says where to."""

    shell: CliPositionalArg[Literal["bash", "zsh", "fish"]] = Field(
        description="shell: bash, zsh or fish"
    )


T = TypeVar("T", bound=CommandSettings)

POSITIONAL = get_args(CliPositionalArg)[1]
"""How pydantic marks an argument that is not an option."""

SettingName = tuple[str, ...]
"""The names of the sections of a setting, and its own."""


def leaves(
    fields: Mapping[str, FieldInfo], within: SettingName = ()
) -> Iterator[tuple[SettingName, FieldInfo]]:
    """Every setting in these fields."""
    for name, field in fields.items():
        path = (*within, field.alias or name)
        section = _section(field)
        if section:
            yield from leaves(section.model_fields, path)
        else:
            yield path, field


def _section(field: FieldInfo) -> type[Section] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def option(path: SettingName, field: FieldInfo) -> str:
    """The option of a setting, or the name of an argument that is none."""
    if POSITIONAL in field.metadata:
        return path[-1].upper()
    return f"--{'.'.join(path).replace('_', '-')}"


def variable(path: SettingName) -> str:
    """The environment variable of a setting."""
    return PREFIX + "__".join(path).upper()


def load(kind: type[T], program: str, arguments: Sequence[str]) -> T:
    """The settings of a command, from all three places. Raises ``UsageError``."""
    shared = _shared()
    _check_environment(shared)
    try:
        settings = kind(_cli_parse_args=list(arguments), _cli_prog_name=program)
        if settings.config.file is None:
            return settings
        content = read_yaml(settings.config.file)
        _check_keys(shared, content)
        return _with_file(kind, content)(
            _cli_parse_args=list(arguments),
            _cli_prog_name=program,
        )
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "missing":  # keys of files have defaults
            name = str(first["loc"][0])
            lacking = option((name,), kind.model_fields[name])
            raise UsageError(f"the following arguments are required: {lacking}") from error
        raise UsageError(first_mistake(error)) from error
    except SettingsError as error:
        raise UsageError(str(error).removeprefix("error parsing CLI: ")) from error
    except RecursionError as error:
        raise UsageError("an option is nested too deeply") from error


def first_mistake(error: ValidationError) -> str:
    """Where the first mistake is, and what it is."""
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] in ("model_type", "model_attributes_type", "dict_type"):
        message = "takes keys with values below it"
    return f"{name}: {message}" if name else message


def is_shared(field: FieldInfo) -> bool:
    """Whether a setting may be in the environment and in a file, not only on the command line."""
    return not field.is_required() and ASKED not in field.metadata


def _shared() -> set[SettingName]:
    """The settings of all commands that may be in the environment and in a file."""
    kinds = [CommandSettings]
    for kind in kinds:  # which grows
        kinds += kind.__subclasses__()
    return {path for kind in kinds for path, field in leaves(kind.model_fields) if is_shared(field)}


def _check_environment(shared: Iterable[SettingName]) -> None:
    """Raise ``UsageError`` for a variable that no command has: it would be ignored in silence."""
    known = {variable(path) for path in shared}
    known |= {protocol.SOCKET_VARIABLE, TOKEN_VARIABLE, PASSWORD_VARIABLE}
    for name, value in os.environ.items():
        written = name.upper()
        service = SERVICE.fullmatch(f"{name}={value}")
        if written.startswith(PREFIX) and written not in known and not service:
            (nearest,) = get_close_matches(written, sorted(known), n=1, cutoff=0)
            raise UsageError(f"{name}: unknown environment variable; the nearest is {nearest}")


def _check_keys(shared: Collection[SettingName], content: Mapping[Any, Any], *within: str) -> None:
    """Raise ``UsageError`` for a key that no command has."""
    for name, value in content.items():
        path = (*within, str(name))
        if any(known[: len(path)] == path for known in shared):
            if path not in shared and isinstance(value, dict):
                _check_keys(shared, value, *path)
            continue
        unknown = escaped(".".join(path), LONGEST_KEY)
        known = sorted(
            {".".join(one[:depth]) for one in shared for depth in range(1, len(one) + 1)}
        )
        (nearest,) = get_close_matches(unknown, known, n=1, cutoff=0)
        if nearest == unknown:
            nested = f"{unknown.replace('.', ': {')}: ...{'}' * unknown.count('.')}"
            raise UsageError(f"{unknown}: write each key within the one before: {nested}")
        raise UsageError(f"{unknown}: unknown setting; the nearest is {nearest}")


def _own(fields: Mapping[str, FieldInfo], content: Mapping[str, Any]) -> dict[str, Any]:
    """What belongs to these fields; the rest of what is shared is of other commands."""
    found = {}
    for name, field in fields.items():
        key = field.alias or name
        if key in content and is_shared(field):
            section, value = _section(field), content[key]
            if section and value == "":  # all of its keys are commented out
                continue
            if section and isinstance(value, dict):
                value = _own(section.model_fields, value)
            found[key] = value
    return found


def _with_file(kind: type[T], content: Mapping[str, Any]) -> type[T]:
    """A subclass that also reads the content of a file."""

    class WithFile(kind):  # type: ignore[valid-type, misc]
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], **sources: PydanticBaseSettingsSource
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            before = kind.settings_customise_sources(settings_cls, **sources)
            found = _own(settings_cls.model_fields, content)
            return *before, InitSettingsSource(settings_cls, found)

    return WithFile


class Loader(yaml.BaseLoader):
    """Every value is text: the settings say what is a number. A key may come only once.

    Other loaders take a text like 2024-99-99 for a date, and the time that they take grows faster
    than the length of what is nested: the scanner looks at each open collection at each token
    (``stale_possible_simple_keys`` of https://github.com/yaml/pyyaml/blob/main/lib/yaml/scanner.py).
    """

    def fetch_flow_collection_start(self, TokenClass: type[yaml.Token]) -> None:  # noqa: N803
        """Enter a collection in brackets."""
        super().fetch_flow_collection_start(TokenClass)
        self._refuse_depth()

    def add_indent(self, column: int) -> bool:
        """Enter a collection that is indented, if the column says that one begins."""
        enters = super().add_indent(column)
        self._refuse_depth()
        return enters

    def _refuse_depth(self) -> None:
        if len(self.indents) + self.flow_level > DEEPEST:
            problem = f"nested more than {DEEPEST} deep"
            raise yaml.scanner.ScannerError(None, None, problem, self.get_mark())

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"{key.value[:80]!r} is there twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def open_any(path: Path) -> BinaryIO:
    """A file, which may be a pipe. Raises ``OSError``."""
    return path.open("rb")


def read_yaml(path: Path, opened: Callable[[Path], BinaryIO] = open_any) -> dict[str, Any]:
    """The content of a YAML file, with every value as text. Raises ``UsageError``."""
    try:
        with opened(path) as binary, io.TextIOWrapper(binary, encoding="utf-8") as file:
            text = file.read(LARGEST_FILE + 1)
        if len(text) > LARGEST_FILE:
            raise UsageError(f"{path}: more than {LARGEST_FILE} characters")
        content = yaml.load(text, Loader=Loader)  # noqa: S506 makes no objects
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(f"{path}: line {line}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not YAML: {str(error).splitlines()[0]}") from error
    except (ValueError, OverflowError) as error:  # an escape sequence or version beyond all numbers
        raise UsageError(f"{path}: not YAML: {error}") from error
    if not isinstance(content, dict | None):
        raise UsageError(f"{path}: line 1: not a mapping of settings")
    return {str(name): value for name, value in (content or {}).items()}
