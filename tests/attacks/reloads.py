"""Reloads a fake driver many times while threads use it; prints how often they read a GPU.

A program of its own, because a process loads one driver library, and a crash ends it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from gpunode.driver.driver import DriverError, Gpu
from gpunode.driver.nvidia.nvml import NvmlDriver
from tests.fakes.nvml import FakeDriver

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


def main(times: int) -> None:
    fake = FakeDriver(Path(), Path(os.environ["GPUNODE_FAKE_NVML"]))
    users = Users()
    deadline = time.monotonic() + 60 + times
    for _ in range(times):
        for script, reads in ((WELL, True), (RELOADED, False)):
            fake.write(script)
            time.sleep(0.015)  # longer than the fake driver goes without a look at its script
            before = users.reads
            while reads and users.reads < before + GPUS:
                assert time.monotonic() < deadline, "the driver does not come back"
                time.sleep(0.002)
    print(users.reads)


if __name__ == "__main__":
    main(int(sys.argv[1]))
