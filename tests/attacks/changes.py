"""Adds, removes and misnames GPUs of a fake driver, and prints which can be read each time."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import asdict
from pathlib import Path

from gpunode.driver.driver import DriverError, Gpu
from gpunode.driver.nvidia.nvml import NvmlDriver
from tests.fakes.nvml import FakeDriver

SCRIPTS = (
    "gpus 1\n",
    "gpus 3\n",
    "gpus 3\ngpu 1 lost\n",
    "gpus 1\n",
    "gpus 3\n",
    "gpus 3\ngpu 2 fail nvmlDeviceGetHandleByIndex 15\n",
    "gpus 4\n"
    "gpu 3 uuid GPU-\\xff\\xfe\\x01-1\n"
    "gpu 3 name NVIDIA\\x0a\\xc3\\x28 H200\\x1b[31m\n"
    "gpu 3 serial \\x80\\x81\n"
    "gpu 3 vbios \\xf0\\x28\\x8c\n"
    "gpu 3 bus_id \\xffF:1B\n",
)


def reads(gpu: Gpu) -> bool:
    try:
        return gpu.temperature() > 0
    except DriverError:
        return False


def wake(fake: FakeDriver) -> None:
    """A GPU that is slow to wake is found by whoever waits for it, however many ask meanwhile."""
    fake.write("gpu 0 hang nvmlDeviceGetHandleByIndex 1\n")
    driver = NvmlDriver(time.monotonic)
    first = threading.Thread(target=driver.gpus)
    first.start()
    time.sleep(0.3)
    (gpu,) = driver.gpus()
    first.join()
    assert driver.library.generation == 1
    assert reads(gpu)


def main() -> None:
    fake = FakeDriver(Path(), Path(os.environ["FAKE_NVML"]))
    wake(fake)
    driver = NvmlDriver(time.monotonic)
    for script in SCRIPTS:
        fake.write(script)
        time.sleep(0.011)  # the fake driver looks at its script every 10 ms
        for gpu in driver.gpus():
            reads(gpu)  # notices that it is lost, or back
        print(json.dumps([asdict(gpu.identity) for gpu in driver.gpus() if reads(gpu)]))


if __name__ == "__main__":
    main()
