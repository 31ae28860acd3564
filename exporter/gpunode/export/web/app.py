"""The HTTP endpoints. A request encodes existing readings: it asks no driver and reads no file.

The endpoints are coroutines: one request is encoded after another. In threads, as many as come at
once would each need the memory of an exposition, and take turns at the interpreter's lock with the
sources.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import HTMLResponse, PlainTextResponse

from gpunode import __version__
from gpunode.audit.source import Result
from gpunode.export.exposition import Exposition
from gpunode.export.web import api
from gpunode.loop import Loop
from gpunode.verdict.source import Judgement

T = TypeVar("T", bound=Callable[..., Any])

INDEX = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>gpunode</title></head>
<body><h1>gpunode {__version__}</h1>
<p>Every second of every GPU accounted for.</p>
<ul>
<li><a href="/metrics">/metrics</a>: for Prometheus</li>
<li><a href="/api/v1/gpus">/api/v1/gpus</a>: the last window of every GPU</li>
<li><a href="/api/v1/verdict">/api/v1/verdict</a>: the bottleneck of each GPU, and why</li>
<li><a href="/api/v1/audit">/api/v1/audit</a>: how the node is set up</li>
<li><a href="/healthz">/healthz</a>, <a href="/readyz">/readyz</a></li>
</ul></body></html>
"""


def create_app(loop: Callable[[], Loop]) -> FastAPI:
    """The application that serves what the current loop has read."""
    app = FastAPI(
        title="gpunode",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would repeat the Host header, whatever it says
    )
    # Level 1 takes a fifth of the time of level 6, for a tenth more bytes.
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=1)
    page = partial(_page, app)
    exposition = Exposition(lambda: loop().samples())

    @page("/", response_class=HTMLResponse, include_in_schema=False)
    async def index() -> str:
        return INDEX

    @page("/metrics", response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        """All metrics, in the text format or OpenMetrics, as ``Accept`` requests."""
        content, content_type = exposition.encode(request.headers.get("accept", ""))
        return Response(content, headers={"content-type": content_type})

    @page("/healthz", response_class=PlainTextResponse)
    async def healthz() -> str:
        """200 as long as this process answers."""
        return "ok\n"

    @page("/readyz", response_class=PlainTextResponse)
    async def readyz() -> Response:
        """200 once every kind of source has reported, 503 before."""
        if loop().ready:
            return PlainTextResponse("ready\n")
        return PlainTextResponse("not every source has reported yet\n", status_code=503)

    @page("/api/v1/gpus")
    async def gpus() -> list[api.GpuState]:
        """Every GPU with its last window, its ledger and the sensors that they use."""
        return api.gpus(loop())

    @page("/api/v1/verdict")
    async def verdict() -> list[Judgement]:
        """The bottleneck of each GPU over the last minute, with the evidence."""
        return api.verdicts(loop())

    @page("/api/v1/audit")
    async def audit() -> list[Result]:
        """The audit: which settings are as advised, which are not, and the remedies."""
        return api.checks(loop())

    return app


def _page(app: FastAPI, path: str, **options: Any) -> Callable[[T], T]:
    """Answer GET, and HEAD, which the schema does not list once more."""

    def add(answer: T) -> T:
        app.get(path, **options)(answer)
        app.head(path, **{**options, "include_in_schema": False})(answer)
        return answer

    return add
