"""What ``gpunode run`` reads."""

from __future__ import annotations

from gpunode.config.daemon import DcgmSettings, IncidentSettings, Settings
from gpunode.config.path import PathSettings
from gpunode.config.web import WebSettings


class RunSettings(Settings):
    """Watch this node and serve its metrics."""

    path: PathSettings = PathSettings()
    web: WebSettings = WebSettings()
    dcgm: DcgmSettings = DcgmSettings()
    incident: IncidentSettings = IncidentSettings()
