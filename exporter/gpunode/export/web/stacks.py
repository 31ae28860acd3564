"""Serves the stacks of the processes on a GPU, from a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from typing import Annotated, Any

from fastapi import HTTPException, Query, Request

from gpunode.jobs.owners import OwnersDetail
from gpunode.source import Readings
from gpunode.verdict.asking import LookRefused, LooksOnDemand, ProcessStands, StacksNow

log = logging.getLogger(__name__)

GpuIndex = Annotated[str, Query(pattern=r"^[0-9]{1,4}$", description="index of the GPU")]

REFUSALS: dict[int | str, dict[str, Any]] = {
    403: {"description": "clients need not say who they are, or the daemon looks at no process"},
    404: {"description": "there is no such GPU, or what answers is no node"},
    429: {"description": "it was looked at just before; `Retry-After` says when to ask again"},
}


async def stacks(request: Request, readings: Readings, gpu: str) -> StacksNow:
    """Where they stand. Raises ``HTTPException``."""
    asking = next((one.detail for one in readings.details(LooksOnDemand)), None)
    if asking is None:
        raise HTTPException(404, "no node is looked at here, or not yet")
    if not asking.enabled:
        raise HTTPException(403, "this daemon looks at no process: stacks.look is off")
    if not any(one.place.gpu == gpu for one in readings.details(OwnersDetail)):
        raise HTTPException(404, f"of GPU {gpu} it is not known which processes it has")
    try:
        asking.begin(gpu)
    except LookRefused as error:
        raise HTTPException(429, str(error), {"Retry-After": str(error.wait)}) from error
    log.info("where GPU %s stands was asked for by %s", gpu, request.client and request.client.host)
    answer: Future[list[ProcessStands]] = Future()
    answer.set_running_or_notify_cancel()  # the look goes on if its client hangs up

    def work() -> None:
        try:
            answer.set_result(list(asking.look(gpu, readings)))
        finally:
            asking.end()
            if not answer.done():
                answer.set_exception(RuntimeError("the look failed"))

    try:
        # A thread of an executor would keep the program from ending.
        threading.Thread(target=work, name="asked", daemon=True).start()
    except RuntimeError as error:  # a limit on threads
        asking.end()
        raise HTTPException(503, "no thread can be started to look") from error
    found, gone = asyncio.wrap_future(answer), asyncio.create_task(_wait_for_hangup(request))
    try:
        await asyncio.wait((found, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
    if not found.done():
        raise HTTPException(503, "the client has hung up, or this daemon ends")
    return StacksNow(code=asking.code, processes=found.result())


async def _wait_for_hangup(request: Request) -> None:
    """Return once the connection is closed by either side; the server ends after all requests."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
