"""The answers of the API; ``/openapi.json`` has their schema."""

from __future__ import annotations

import gzip
from dataclasses import is_dataclass
from typing import Annotated, Any, get_args, get_type_hints

from fastapi import HTTPException, Path, Request, Response
from pydantic import BaseModel, Field

from gpunode.audit.source import AuditResults, Result
from gpunode.gpu.activity import WindowDetail
from gpunode.gpu.nvlink import NvLinkDetail
from gpunode.incidents.black_box import BlackBox, StoredIncident
from gpunode.incidents.history import STEP, GpuHistory, History
from gpunode.jobs.owners import OwnersDetail
from gpunode.jobs.processes import JobDetail
from gpunode.source import DetailReading, Readings
from gpunode.verdict.source import Judgement, Judgements


class GpuState(BaseModel):
    """One GPU or MIG instance; details that were not read are null."""

    gpu: str
    uuid: str
    times: dict[str, float] = Field(description="when each was read, in seconds since the epoch")
    gpu_activity: WindowDetail | None = None
    gpu_nvlink: NvLinkDetail | None = None
    gpu_owners: OwnersDetail | None = None
    job_processes: JobDetail | None = None


DETAILS: dict[str, type] = {
    name: kind
    for name, hint in get_type_hints(GpuState).items()
    for kind in get_args(hint)
    if isinstance(kind, type) and is_dataclass(kind)
}
"""The type of each detail above, by the name of its source."""


def gpus(readings: Readings) -> list[GpuState]:
    """Every GPU with any reading, ordered by index."""
    found: dict[str, GpuState] = {}
    for name, kind in DETAILS.items():
        one: DetailReading[object]
        for one in readings.details(kind):
            gpu, uuid = one.place.gpu, one.place.uuid
            state = found.setdefault(uuid, GpuState(gpu=gpu, uuid=uuid, times={}))
            state.times[name] = one.time
            setattr(state, name, one.detail)
    return sorted(found.values(), key=lambda state: (int(state.gpu), state.uuid))


def verdicts(readings: Readings) -> list[Judgement]:
    """The last verdict on each GPU, with the evidence."""
    return [verdict for one in readings.details(Judgements) for verdict in one.detail.verdicts]


def checks(readings: Readings) -> list[Result]:
    """The audit: which settings are as advised, which are not, and the remedies."""
    return [check for one in readings.details(AuditResults) for check in one.detail.checks]


class Hour(BaseModel):
    """Every GPU over the last hour; `null` where nothing was read."""

    step_seconds: float = Field(description="seconds between two points")
    times: list[float] = Field(description="of each point, in seconds since the epoch")
    gpus: list[GpuHistory]


def history(readings: Readings, since: float = 0.0) -> Hour:
    """The points after a time, oldest first."""
    for one in readings.details(History):
        times, gpus = one.detail.after(since)
        return Hour(step_seconds=STEP, times=times, gpus=gpus)
    return Hour(step_seconds=STEP, times=[], gpus=[])


def points(readings: Readings) -> int:
    """How many points there ever were."""
    return sum(one.detail.count for one in readings.details(History))


IncidentId = Annotated[str, Path(max_length=64, description="as in the list of incidents")]

NO_INCIDENT: dict[int | str, dict[str, Any]] = {404: {"description": "no such incident is kept"}}


def incidents(readings: Readings) -> tuple[StoredIncident, ...]:
    """The incidents that are kept, the latest first."""
    return next((one.detail.kept for one in readings.details(BlackBox)), ())


def incident(readings: Readings, wanted: str) -> StoredIncident:
    """One of them. Raises ``HTTPException``."""
    for one in readings.details(BlackBox):
        if found := one.detail.find(wanted):
            return found
    raise HTTPException(404, "no such incident is kept in memory; see /api/v1/incidents")


def compressed_json(request: Request, content: bytes) -> Response:
    """An answer in JSON that is compressed already."""
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(gzip.decompress(content), media_type="application/json")
    headers = {"content-encoding": "gzip", "vary": "Accept-Encoding"}
    return Response(content, media_type="application/json", headers=headers)
