"""What it takes to be let in by a running daemon."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from gpunode.config.command import CommandSettings
from gpunode.config.kinds import Address, Credentials
from gpunode.config.web import ListenSettings, socket_here


def is_here(url: str) -> bool:
    """Whether an address can only be of this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class AdmissionSettings(Credentials, CommandSettings):
    """What it takes to be let in by a daemon at an address."""

    url: Address = ""

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

    @property
    def socket(self) -> str:
        """The Unix socket for root on this node, where no other address is given; else empty."""
        return ""


class DaemonSettings(AdmissionSettings):
    """Where a running daemon answers, and what it takes to be let in."""

    web: ListenSettings = ListenSettings()

    url: Address = Field(
        "", description="address of the daemon; by default where web.listen-address has it listen"
    )

    @property
    def address(self) -> str:
        return (self.url or self.web.here).rstrip("/")

    @property
    def socket(self) -> str:
        if not self.url:
            return socket_here(self.web.address[1])
        return socket_here(urlsplit(self.url).port or 80) if is_here(self.url) else ""
