"""Reloads a fake driver many times while threads use it; prints how often they read a GPU.

A program of its own, because a process loads one driver library, and a crash ends it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gpunode.driver.driver import DriverError, Gpu, Xid
from gpunode.driver.nvidia.gpu import NvmlGpu
from gpunode.driver.nvidia.nvml import NvmlDriver
from tests.fakes.nvml import FakeDriver

T = TypeVar("T")

PAUSE = 0.015
"""Seconds: longer than the fake driver goes without a look at its script."""

GPUS = 3
SLOW = "".join(
    f"gpu {gpu} hang nvmlDeviceGet{call} 0.005\n"
    for gpu in range(GPUS)
    for call in ("MigMode", "Temperature", "FieldValues")
)
WELL = f"gpus {GPUS}\ninit hang 0.01\n{SLOW}"
RELOADED = f"{WELL}system 1\n"


class Users:
    """Threads that list and read GPUs for as long as the program runs."""

    def __init__(self) -> None:
        self.driver = NvmlDriver(time.monotonic)
        self.found: list[Gpu] = []
        self.reads = 0
        for body in (self.list, self.list, self.read, self.read, self.read):
            threading.Thread(target=body, daemon=True).start()

    def list(self) -> None:
        while True:
            try:
                self.found = self.driver.gpus()
            except DriverError:
                time.sleep(0.001)

    def read(self) -> None:
        while True:
            for gpu in self.found:
                try:
                    gpu.temperature()
                    gpu.processes()
                    gpu.xids()
                    gpu.nvlink_bytes()
                    gpu.activity()
                    self.reads += 1
                except DriverError:
                    time.sleep(0.001)


def keep_what_a_call_hangs_in(fake: FakeDriver) -> None:
    """A library in which a call hangs is not unloaded, but once the call has ended."""
    fake.write("gpu 0 hang nvmlDeviceGetTemperature 600\n")
    time.sleep(PAUSE)
    driver = NvmlDriver(time.monotonic)
    (gpu,) = driver.gpus()
    hung = threading.Thread(target=lambda: tried(gpu.temperature), daemon=True)
    hung.start()
    fake.write("system 1\ngpu 0 hang nvmlDeviceGetTemperature 600\n")
    time.sleep(PAUSE)
    assert tried(gpu.power) == "nvmlDeviceGetPowerUsage: Uninitialized (NVML error 1)"
    refused = "cannot reopen the driver while a call hangs: nvmlDeviceGetTemperature"
    assert tried(driver.gpus) == refused
    assert tried(gpu.power) == "nvmlDeviceGetPowerUsage: the driver was reloaded"
    fake.write("")
    hung.join(5)
    assert tried(driver.gpus) == [gpu]
    assert tried(gpu.temperature) == 36


def allocate_little(fake: FakeDriver) -> None:
    """However often a GPU is lost or cannot be read, the library need not keep more for it."""
    fake.write("")
    time.sleep(PAUSE)
    driver = NvmlDriver(time.monotonic)
    (gpu,) = driver.gpus()
    assert isinstance(gpu, NvmlGpu)
    troubles = ("lost", "fail nvmlDeviceRegisterEvents 3", "fail nvmlGpmSampleGet 999")
    for trouble in troubles:
        fake.write(f"gpu 0 {trouble}\n")
        time.sleep(PAUSE)
        for _ in range(300):
            tried(gpu.xids)
            tried(gpu.activity)
    for _ in range(300):
        gpu.reopen(gpu.device.handle, gpu.device.generation)
        tried(gpu.xids)
        tried(gpu.activity)
    fake.write("")
    time.sleep(PAUSE)
    assert driver.gpus() == [gpu]
    assert gpu.xids() == []
    gpu.activity()
    fake.write("gpu 0 xid 79 1\n")
    time.sleep(0.11)  # also the time between two samples
    assert gpu.xids() == [Xid(79)]
    assert "tensor" in gpu.activity().values


def tried(ask: Callable[[], T]) -> T | str:
    try:
        return ask()
    except DriverError as error:
        return str(error)


def main(times: int) -> None:
    fake = FakeDriver(Path(), Path(os.environ["FAKE_NVML"]))
    keep_what_a_call_hangs_in(fake)
    allocate_little(fake)
    users = Users()
    deadline = time.monotonic() + 60 + times
    for _ in range(times):
        for script, reads in ((WELL, True), (RELOADED, False)):
            fake.write(script)
            time.sleep(PAUSE)
            before = users.reads
            while reads and users.reads < before + GPUS:
                assert time.monotonic() < deadline, "the driver does not come back"
                time.sleep(0.002)
    print(users.reads, flush=True)
    os._exit(0)  # the users still call the library, which an exit would unload


if __name__ == "__main__":
    main(int(sys.argv[1]))
