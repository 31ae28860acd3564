"""What stands between the pages and those who ask for them, and how it does.

The web server tells it; a view shows it with all else.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.export.web.access import AccessFile
from gpunode.metric import Metric, Sample
from gpunode.source import Reading, Readings
from gpunode.unread import Unknown

RELOADED = Metric(
    "gpunode_web_config_last_reload_success",
    "gauge",
    "Whether the last read of the file of `--web.config.file` was valid; 0 while an earlier "
    "version stays in force. Absent without such a file.",
)
EXPIRY = Metric(
    "gpunode_tls_certificate_expiry_timestamp_seconds",
    "gauge",
    "When the certificate that the web server shows expires, in Unix time (`notAfter`); absent "
    "without TLS.",
)
CONNECTIONS = Unknown(
    "connections",
    "more clients were connected than the web server keeps; the origin with most lost one",
    bound=True,
)


class Entrance:
    """Counts refused clients, and shows the state of the access file, if there is one."""

    name = "web"
    every = 5.0
    metrics = (RELOADED, EXPIRY)
    unknowns = (CONNECTIONS,)

    def __init__(self, file: AccessFile | None) -> None:
        self.file = file
        self.refused = 0
        """Connections that made way for others; only the server writes it."""

        self._told = 0

    def read(self, _readings: Readings) -> Reading:
        """What happened since the last read, and how things are."""
        refused, self._told = self.refused - self._told, self.refused
        met = [CONNECTIONS.seen("", times=refused)] if refused else []
        return Reading(tuple(self._samples()), unread=tuple(met))

    def _samples(self) -> Iterator[Sample]:
        if self.file is not None:
            yield from RELOADED.at(float(self.file.in_force))
            yield from EXPIRY.at(self.file.access.expires)
