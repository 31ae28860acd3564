"""The HTTP endpoints. A request encodes existing readings: it asks no driver and reads no file.

One of them looks where processes stand, in a thread of its own.

The endpoints are coroutines: one request is encoded after another. In threads, as many as come at
once would each need the memory of an exposition, and take turns at the interpreter's lock with the
sources.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import PlainTextResponse

from gpunode import __version__
from gpunode.audit.source import Result
from gpunode.export.exposition import Exposition
from gpunode.export.web import api, page
from gpunode.export.web.node import NodeNow, node
from gpunode.export.web.prepared import CachedAnswer, every_moment
from gpunode.export.web.private import private
from gpunode.export.web.stacks import REFUSALS, GpuIndex
from gpunode.export.web.stacks import stacks as looked
from gpunode.incidents.incident import Brief, Incident
from gpunode.loop import Loop
from gpunode.source import Met
from gpunode.verdict.asking import StacksNow
from gpunode.verdict.source import JUDGED, PERIOD, Judgement

T = TypeVar("T", bound=Callable[..., Any])

# For each route, FastAPI asks whether its model is one of pydantic's first version, and loads all
# of that, 2.6 MiB, to find out. None here answers that it is not installed.
sys.modules.setdefault("pydantic.v1", None)  # type: ignore[arg-type]


def create_app(loop: Callable[[], Loop]) -> FastAPI:
    """The application that serves what the current loop has read."""
    app = FastAPI(
        title="gpunode",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would repeat the Host header, whatever it says
        # Nothing is sent to anyone who has not asked, whatever the environment says.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    # Level 1 takes a fifth of the time of level 6, for a tenth more bytes.
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=1)
    at = partial(_route, app)
    exposition = Exposition(lambda: loop().samples())

    now = CachedAnswer(node, every_moment)
    last_hour = CachedAnswer(api.history, api.points)
    for path, file in page.files().items():
        at(path, include_in_schema=False)(page.sends(file))

    @at("/metrics", response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        """All metrics, in the text format or OpenMetrics, as ``Accept`` requests."""
        content, content_type = exposition.encode(request.headers.get("accept", ""))
        return Response(content, headers={"content-type": content_type})

    @at("/healthz", response_class=PlainTextResponse)
    async def healthz() -> str:
        """200 as long as this process answers."""
        return "ok\n"

    @at("/readyz", response_class=PlainTextResponse)
    async def readyz() -> Response:
        """200 once every kind of source has reported, 503 before."""
        if loop().ready:
            return PlainTextResponse("ready\n")
        return PlainTextResponse("not every source has reported yet\n", status_code=503)

    @at("/api/v1/gpus")
    async def gpus() -> list[api.GpuState]:
        """Every GPU with its last window, its ledger and the sensors that they use."""
        return api.gpus(loop())

    @at(
        "/api/v1/verdict",
        description=f"The bottleneck of each GPU over the last {JUDGED:g} seconds, with the "
        f"evidence, which may be up to {PERIOD:g} seconds old.",
    )
    async def verdict() -> list[Judgement]:
        return api.verdicts(loop())

    @at("/api/v1/audit")
    async def audit() -> list[Result]:
        """The audit: which settings are as advised, which are not, and the remedies."""
        return api.checks(loop())

    @at("/api/v1/unread")
    async def unread() -> list[Met]:
        """What the sources met and did not understand, or left out, since the start."""
        return loop().unread()

    @at("/api/v1/node", response_model=NodeNow)
    async def node_now(request: Request) -> Response:
        """The node now, in words: what is wrong, what to do, every GPU. The page shows this."""
        return now(loop()).answer(request)

    @at("/api/v1/history", response_model=api.Hour)
    async def history(request: Request, since: Annotated[float, Query(ge=0)] = 0.0) -> Response:
        """The last hour of each GPU, a point each ten seconds: those after `since` (Unix time)."""
        if since == 0.0:
            return last_hour(loop()).answer(request)
        return CachedAnswer(partial(api.history, since=since), api.points)(loop()).answer(request)

    _serve_known(app, loop)
    return app


def _serve_known(app: FastAPI, loop: Callable[[], Loop]) -> None:
    """Serve what needs a known client: incidents and stacks."""
    at = partial(_route, app)

    @at("/api/v1/incidents", dependencies=[Depends(private)])
    async def incidents() -> list[Brief]:
        """The incidents that are kept in memory, the latest first.

        For who gave a password or a certificate.
        """
        return [one.brief for one in api.incidents(loop())]

    @at(
        "/api/v1/incidents/{incident}",
        response_model=Incident,
        dependencies=[Depends(private)],
        responses=api.NO_INCIDENT,
    )
    async def incident(request: Request, incident: api.IncidentId) -> Response:
        """What is known of an incident, from ten minutes before it."""
        return api.compressed_json(request, api.incident(loop(), incident).packed)

    @at(
        "/api/v1/incidents/{incident}/tape",
        response_class=Response,
        dependencies=[Depends(private)],
        responses=api.NO_INCIDENT,
    )
    async def tape(incident: api.IncidentId) -> Response:
        """The tape of an incident, for `gpunode replay`: JSON lines, compressed by gzip."""
        found = api.incident(loop(), incident)
        if not found.tape:
            raise HTTPException(404, "the tape of this incident made way for later ones")
        name = f'attachment; filename="{incident}.jsonl.gz"'
        headers = {"content-disposition": name, "content-encoding": "identity"}
        return Response(found.tape, media_type="application/gzip", headers=headers)

    # Not for HEAD: to look for nothing would be in vain.
    @app.get("/api/v1/stacks", dependencies=[Depends(private)], responses=REFUSALS)
    async def stacks(request: Request, response: Response, gpu: GpuIndex) -> StacksNow:
        """Where the processes on a GPU stand now: the daemon looks, and stops none of them.

        For who gave a password or a certificate.
        """
        response.headers["cache-control"] = "no-store"
        return await looked(request, loop(), gpu)


def _route(app: FastAPI, path: str, **options: Any) -> Callable[[T], T]:
    """Answer GET, and HEAD, which the schema does not list once more."""

    def add(answer: T) -> T:
        app.get(path, **options)(answer)
        app.head(path, **{**options, "include_in_schema": False})(answer)
        return answer

    return add
