"""As much of PyTorch as ``gpunode calibrate`` asks for, over the fake driver.

Each operation writes what an H200's counters show of it into the script of the fake driver.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

uint8, bfloat16 = "uint8", "bfloat16"
multiprocessing = multiprocessing
backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=True)))
cuda = SimpleNamespace(
    set_device=lambda device: None,
    synchronize=lambda: None,
    get_device_properties=lambda device: SimpleNamespace(multi_processor_count=132),
)

COUNTERS = ("graphics", "sm", "tensor", "dram", "fp32", "pcie_transmit", "nvlink_receive")
GPM = {"graphics": 1, "sm": 2, "tensor": 5, "dram": 10, "fp32": 12}
MEBIBYTES = {"pcie_transmit": 20, "pcie_receive": 21, "nvlink_receive": 60, "nvlink_transmit": 61}
SHOWN = {
    "tensor": {"graphics": 98, "sm": 95, "tensor": 92, "dram": 17},
    "pipe": {"graphics": 98, "sm": 95, "fp32": 75, "dram": 5},
    "dram": {"graphics": 99, "sm": 96, "dram": 86, "fp32": 9},
    "collective": {
        "graphics": 97,
        "sm": 18,
        "dram": 25,
        "nvlink_receive": 250000,
        "nvlink_transmit": 250000,
    },
}
DISTURBED = os.environ.get("FAKE_TORCH_DISTURBED")
"""A counter that shows little, as if something else had been at work."""


def show(name: str) -> None:
    """Have the driver show an operation, which takes some time."""
    script = Path(os.environ["FAKE_NVML"])
    lines = ["gpus 2"]
    for counter, value in SHOWN.get(name, {}).items():
        level = 1 if counter == DISTURBED else value
        lines.append(f"gpu 0 gpm {(GPM | MEBIBYTES)[counter]} {level}")
    text = "\n".join([*lines, f"gpu 0 power {125 if name == 'rest' else 500}", ""])
    if script.read_text() != text:
        fresh = script.with_suffix(f".{os.getpid()}")
        fresh.write_text(text)
        fresh.replace(script)
    time.sleep(0.005)


class Tensor:
    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def __matmul__(self, other: Tensor) -> None:
        show("tensor" if self.dtype == bfloat16 else "pipe")

    def mul_(self, factor: float) -> None:
        show("dram")

    def copy_(self, other: Tensor) -> None:
        show("copy")

    def cpu(self) -> None:
        show("copy")

    def fill_(self, value: float) -> None:
        self.value = value

    def item(self) -> float:
        return self.value


def randn(*size: int, dtype: str = "float32", **_: Any) -> Tensor:
    return Tensor(dtype)


def ones(*size: int, dtype: str = "float32", **_: Any) -> Tensor:
    tensor = Tensor(dtype)
    tensor.fill_(1.0)
    return tensor


zeros = ones


def device(kind: str, index: int) -> str:
    return f"{kind}:{index}"
