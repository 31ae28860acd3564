"""Settings from options, environment variables (``GPUNODE_WEB__LISTEN_ADDRESS``) and a YAML file.

Options override the environment, which overrides the file. All defaults are here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    CliPositionalArg,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    YamlConfigSettingsSource,
)

from gpunode.client import protocol

Collective = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv"
]
"""The collectives of nccl-tests that ``gpunode nccl-bench`` can measure."""


INCIDENTS = Path(__file__).with_name("incidents")
"""The recorded incidents in the package."""


class UsageError(Exception):
    """An error that the user can fix; ``str()`` is one line that says what and where."""


class Section(BaseModel):
    """A group of settings; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PathSettings(Section):
    """Where the node's files are."""

    rootfs: Path = Field(Path("/"), description="where the root of the node is mounted")

    @field_validator("rootfs")
    @classmethod
    def _is_directory(cls, path: Path) -> Path:
        if not path.is_dir():
            raise ValueError(f"{path} is not a directory")
        return path


class WebSettings(Section):
    """The HTTP server."""

    listen_address: str = Field("0.0.0.0:9816", description="address and port to listen on")

    @field_validator("listen_address")
    @classmethod
    def _has_port(cls, address: str) -> str:
        _, colon, port = address.rpartition(":")
        if not (colon and port.isdigit() and int(port) < 65536):
            raise ValueError(f"{address} is not ADDRESS:PORT")
        return address

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.listen_address.rpartition(":")
        return host.strip("[]"), int(port)


class GpuSettings(Section):
    """How often to ask the GPU driver."""

    interval: float = Field(
        2.0, ge=0.5, le=2.0, description="seconds a window; the driver keeps power for 2.4 s"
    )
    processes_interval: float = Field(
        10.0, ge=1, description="seconds between looks at the processes of a GPU"
    )
    owners_interval: float = Field(
        5.0, ge=1, description="seconds between looks at who holds a GPU"
    )
    health_interval: float = Field(
        30.0, ge=1, description="seconds between reads of error counters and modes"
    )
    nvlink_interval: float = Field(
        120.0, ge=1, description="seconds between reads of NVLinks, which cost 18 ms a GPU"
    )


class DcgmSettings(Section):
    """A running DCGM, which has the counters of GPUs without GPM: Volta to Ada."""

    address: str = Field(
        "localhost:5555", description="HOST:PORT of nv-hostengine; empty: do not use DCGM"
    )
    bindings: str = Field(
        "", description="folder of DCGM's Python bindings; empty: where it puts them"
    )


class HostSettings(Section):
    """How often to read the rest of the node."""

    interval: float = Field(10.0, ge=1, description="seconds between reads of counters")
    slow_interval: float = Field(
        60.0, ge=1, description="seconds between reads of filesystems and PCI Express links"
    )
    audit_interval: float = Field(600.0, ge=1, description="seconds between audits of settings")
    nccl_bench_folder: str = Field(
        "/var/lib/gpunode/nccl-bench",
        description="folder on the node in which nccl-bench leaves what it measured",
    )


class KubernetesSettings(Section):
    """The kubelet of this node."""

    pod_resources_socket: str = Field(
        "/var/lib/kubelet/pod-resources/kubelet.sock",
        description="socket of the pod-resources API on the node; empty: do not ask",
    )
    interval: float = Field(5.0, ge=1, description="seconds between questions to the kubelet")


class ClientSettings(Section):
    """Reports from training processes."""

    socket: str = Field(
        protocol.SOCKET, description="where to listen for gpunode.client; empty: do not listen"
    )
    interval: float = Field(2.0, ge=1, description="seconds between looks at what came")


class LogSettings(Section):
    """Logging to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe")


class ConfigSettings(Section):
    """The configuration file."""

    file: Path | None = Field(None, description="YAML file with the same settings")


class DiscoverySettings(Section):
    """Discovery of GPUs and mounts."""

    interval: float = Field(
        10.0, ge=0.1, description="seconds between looks for GPUs and mounts that came or went"
    )


class Settings(BaseSettings):
    """The settings of every command."""

    model_config = SettingsConfigDict(
        env_prefix="GPUNODE_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_exit_on_error=False,
        cli_hide_none_type=True,
        cli_avoid_json=True,
    )

    path: PathSettings = PathSettings()
    web: WebSettings = WebSettings()
    gpu: GpuSettings = GpuSettings()
    dcgm: DcgmSettings = DcgmSettings()
    host: HostSettings = HostSettings()
    discovery: DiscoverySettings = DiscoverySettings()
    kubernetes: KubernetesSettings = KubernetesSettings()
    client: ClientSettings = ClientSettings()
    log: LogSettings = LogSettings()
    compat: Literal["none", "dcgm"] = Field(
        "none", description="also export the names and labels of dcgm-exporter"
    )
    config: ConfigSettings = ConfigSettings()


class RunSettings(Settings):
    """Watch this node and serve its metrics."""


class RecordSettings(Settings):
    """Record this node to a tape."""

    file: CliPositionalArg[Path] = Field(description="the tape to write")
    duration: float = Field(60.0, gt=0, description="seconds to record")
    max_bytes: int = Field(64 << 20, gt=0, description="size at which recording ends")
    comment: str = Field("", description="what happens on the tape")


class ReplaySettings(Settings):
    """Play back a tape through the same code and serve its metrics."""

    file: CliPositionalArg[Path] = Field(description="the tape to play")
    speed: float = Field(1.0, ge=0, description="times real time; 0 is as fast as it goes")
    times: int = Field(1, ge=1, description="how often to play it")
    print: Literal["table", "metrics"] = Field("table", description="what to print at the end")


class DemoSettings(Settings):
    """Play back recorded incidents and show where each GPU's time went."""

    folder: CliPositionalArg[Path] = Field(INCIDENTS, description="folder with other tapes")
    speed: float = Field(4.0, gt=0, description="times real time")
    once: bool = Field(False, description="end after the last tape")


class AuditSettings(Settings):
    """Check whether the node is set up for training; exit status 1 if a check fails."""

    json_output: bool = Field(False, alias="json", description="print JSON")


class NcclBenchSettings(Settings):
    """Measure a collective and export the result; exit status 1 if it is too slow."""

    collective: Collective = Field("all_reduce", description="what to measure")
    gpus: int = Field(0, ge=0, description="number of GPUs; 0: all")
    largest: str = Field("8G", pattern=r"^\d{1,4}[KMG]$", description="largest size, from 8M on")
    json_output: bool = Field(False, alias="json", description="print JSON")


T = TypeVar("T", bound=Settings)


def load(kind: type[T], program: str, arguments: Sequence[str]) -> T:
    """Load the settings of a command from all places. Raises ``UsageError``."""
    try:
        settings = kind(_cli_parse_args=list(arguments), _cli_prog_name=program)
        if settings.config.file is None:
            return settings
        return _with_file(kind, settings.config.file)(
            _cli_parse_args=list(arguments),
            _cli_prog_name=program,
        )
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{name}: {first['msg'].removeprefix('Value error, ')}") from error
    except SettingsError as error:
        raise UsageError(str(error).removeprefix("error parsing CLI: ")) from error


def _with_file(kind: type[T], path: Path) -> type[T]:
    """A subclass that also reads a YAML file."""
    try:
        with path.open(encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(f"{path}: line {line}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict | None):
        raise UsageError(f"{path}: line 1: not a mapping of settings")

    class WithFile(kind):  # type: ignore[valid-type, misc]
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            **_: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, YamlConfigSettingsSource(settings_cls, path)

    return WithFile
