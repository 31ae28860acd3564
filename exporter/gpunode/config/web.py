"""Where pages are served, and what the node is called on them."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from gpunode.config.kinds import OptionalPath, Section


class WebConfigSettings(Section):
    """The file that says who may read the pages."""

    file: OptionalPath = Field(
        None,
        description="file in the format of Prometheus' exporters that turns on TLS and passwords",
    )


LISTENS = (
    "address and port on which to serve HTTP; without an address, on all of both IPv4 and IPv6"
)


def socket_here(port: int) -> str:
    """The name of the Unix socket for root on this node, beside a port.

    It is abstract, and so in no file system: in a container there may be none to write to.
    """
    return f"\0gpunode-{port}"


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


class WebSettings(NodeNameSettings, ListenSettings):
    """The HTTP server."""

    config: WebConfigSettings = WebConfigSettings()


class PlayingWebSettings(WebSettings):
    """The HTTP server of a played tape, for the user of this machine."""

    listen_address: str = Field(
        "127.0.0.1:9816",
        description=LISTENS,
    )
