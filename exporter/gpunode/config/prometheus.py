"""Where Prometheus answers."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from gpunode.config.kinds import Address, Credentials, OptionalPath, Section

TOKEN_VARIABLE = "GPUNODE_PROMETHEUS_TOKEN"  # noqa: S105 a name


PASSWORD_VARIABLE = "GPUNODE_PROMETHEUS_PASSWORD"  # noqa: S105 a name
"""Environment variables with what may be no option: other users see the options of a process."""


class PrometheusSettings(Credentials, Section):
    """A Prometheus, Thanos, Mimir or VictoriaMetrics with the series of the recording rules."""

    url: Address = Field(
        "http://localhost:9090", description="address of Prometheus, up to where /api/v1 begins"
    )
    timeout: float = Field(60.0, ge=1, le=3600, description="seconds to wait for one answer")
    token_file: OptionalPath = Field(
        None, description=f"file with a bearer token, which {TOKEN_VARIABLE} can hold instead"
    )
    password_file: OptionalPath = Field(
        None, description=f"file with the password, which {PASSWORD_VARIABLE} can hold instead"
    )
    tenant: str = Field("", description="tenant of Mimir or Thanos, sent as X-Scope-OrgID")

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        if not re.match("https?://.", url):
            raise ValueError(f"{url!r} does not begin with http:// or https://")
        return url
