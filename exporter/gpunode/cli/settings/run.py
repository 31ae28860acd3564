"""What ``gpunode run`` reads."""

from __future__ import annotations

from gpunode.config.daemon import DcgmSettings, IncidentSettings, Settings
from gpunode.config.path import PathSettings
from gpunode.config.web import WebSettings


class RunSettings(Settings):
    """The settings of ``gpunode run``; what it does is said in ``commands``."""

    path: PathSettings = PathSettings()
    web: WebSettings = WebSettings()
    dcgm: DcgmSettings = DcgmSettings()
    incident: IncidentSettings = IncidentSettings()
