"""Asks a driver everything that the daemon could, and prints the answers as JSON.

A program of its own, because a process loads one driver library and keeps it.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from gpunode.driver.driver import DriverError, DriverUnavailable, Gpu
from gpunode.driver.nvidia.nvml import NvmlDriver
from gpunode.node.tape import GPU_CALLS, adapter

EVENTS = "xids", "operational_events"

AFTER_ALL = 0
"""A time that every buffered sample is newer than."""


def answers(gpu: Gpu, *, patience: float) -> dict[str, Any]:
    """What every method answers, in JSON, or which error it raises."""
    found: dict[str, Any] = {}
    ask(gpu, "activity")  # marks where the next answer begins,
    for events in EVENTS:  # and where events are listened for
        ask(gpu, events)
    time.sleep(0.3)
    for call in GPU_CALLS:
        found[call] = ask(gpu, call)
    deadline = time.monotonic() + patience
    for events in EVENTS:
        while found[events] == [] and time.monotonic() < deadline:
            time.sleep(0.05)
            found[events] = ask(gpu, events)
    return found


def ask(gpu: Gpu, call: str) -> Any:
    arguments = [AFTER_ALL] if call.endswith("_samples") else []
    try:
        answer = getattr(gpu, call)(*arguments)
    except DriverError as error:
        return {"error": type(error).__name__, "message": str(error)}
    return adapter(call).dump_python(answer, mode="json")


def main(patience: float) -> None:
    try:
        gpus = NvmlDriver(time.monotonic).gpus()
    except DriverUnavailable as error:
        sys.exit(str(error))
    identities = adapter("gpus").dump_python([gpu.identity for gpu in gpus], mode="json")
    everything = [
        {"identity": identity, **answers(gpu, patience=patience)}
        for identity, gpu in zip(identities, gpus, strict=True)
    ]
    print(json.dumps(everything))


if __name__ == "__main__":
    main(float(sys.argv[1]))
