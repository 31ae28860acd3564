"""Lets every call of a fake driver fail or lie in every way, and prints what went wrong.

A program of its own, because a process loads one driver library and keeps it.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from gpunode.config.daemon import Settings
from gpunode.driver.driver import DriverError, Gpu
from gpunode.driver.nvidia.nvml import NvmlDriver
from gpunode.holders.census import Census
from gpunode.metric import Distribution, Sample
from gpunode.node.local import LocalNode
from gpunode.source import FAILURES
from gpunode.sources import GPU_SOURCES, HOLDERS_SOURCES
from tests.fakes.nvml import FakeDriver

FAKE = Path(__file__).parents[1] / "fakes/nvml/fake_nvml.c"

CODES = (1, 2, 3, 6, 7, 15, 999, 12345)
"""Errors of NVML, and one that no NVML has."""

GARBAGE = (0, -1, 2**31, 2**32 - 1, 2**53, 1.8e19, math.nan)
FIELDS = (74, 76, 82, 91, 138, 139, 161, 162, 163, 164, 165, 173, 230, 269, 270, 271)
GPM = (1, 2, 3, 5, 10, 12, 20, 21, 60, 61)

POSSIBLE = {
    "celsius": (-200, 200),
    "watts": (0, 2e4),
    "ratio": (0, 1.1),
    "hertz": (0, 1e11),
    "bytes": (0, 2**50),
    "generation": (1, 16),
    "width": (1, 32),
    "up": (0, 1),
    "mode": (0, 1),
    "pending": (0, 1),
    "failed": (0, 1),
}
"""By the end of a metric's name; what is not here is counted."""

COUNTED = (0, 1e18)


def cases() -> Iterator[list[str]]:
    """Scripts: GPU 0 is well, and each other GPU has one thing wrong."""
    source = FAKE.read_text()
    for name in re.findall(r"X\((nvmlDevice\w+|nvmlGpm\w+|nvmlEvent\w+)\)", source):
        yield [f"fail {name} {code}" for code in CODES]
    readings = re.search(r"readings\[\] = \{(.*?)\};", source, re.DOTALL)
    assert readings is not None
    for name in re.findall(r'\{"([\w.]+)"', readings[1]):
        yield [f"set {name} {value}" for value in GARBAGE]
    for field in FIELDS:
        yield [f"field {field} - {form}{value}" for form in ("", "double ") for value in GARBAGE]
    for metric in GPM:
        yield [f"gpm {metric} {value}" for value in GARBAGE]
    yield [f"power {value}" for value in (-1, 1e9, 4294967.295, 1e30)]
    yield [f"util {value}" for value in (-1, 101, 1e9, 2**32 - 1)]
    yield [f"process {pid} {size}" for pid in (0, 1, 2**32 - 1) for size in (0, 2**63, 2**64 - 2)]


def read(gpu: Gpu, node: LocalNode) -> list[Sample]:
    """What the sources of one GPU export at their second read; failures cost only themselves."""
    sources = [
        *(kind(node, gpu, Settings()) for kind in GPU_SOURCES),
        *(kind(Census(node), gpu, Settings()) for kind in HOLDERS_SOURCES),
    ]
    sources = [source for source in sources if source.name[:4] == "gpu_"]
    samples: list[Sample] = []
    for again in (False, True):
        for source in sources:
            try:
                reading = source.read()
            except FAILURES:
                continue
            if again and reading is not None:
                samples += reading.samples
    return samples


def impossible(samples: list[Sample]) -> list[str]:
    """The samples that no GPU can have."""
    found = []
    for sample in samples:
        name = sample.metric.name
        if isinstance(sample.value, Distribution):
            value, (least, most) = sample.value.sum, COUNTED
        else:
            value, (least, most) = sample.value, POSSIBLE.get(name.rpartition("_")[2], COUNTED)
        if not least <= value <= most or value == 2**32 - 1:
            found.append(f"{name}{sample.labels[2:]} is {value:g}")
    return found


def series(samples: list[Sample]) -> set[tuple[str, tuple[str, ...]]]:
    """What there is a sample of."""
    return {(sample.metric.name, sample.labels) for sample in samples}


def problems(fake: FakeDriver) -> Iterator[str]:
    """What went wrong in any case."""
    wanted: set[tuple[str, tuple[str, ...]]] = set()
    for lines in [[], *cases()]:
        script = [f"gpu {gpu} {line}" for gpu, line in enumerate(lines, 1)]
        fake.write("\n".join([f"gpus {1 + len(lines)}", *script]))
        time.sleep(0.011)  # the fake driver looks at its script every 10 ms
        driver = NvmlDriver(time.monotonic)
        node = LocalNode(Path("/"), [driver])
        try:
            gpus = driver.gpus()
        except DriverError as error:
            yield f"{lines[:1]}: {error}"
            continue
        for gpu in gpus:
            line = ["all well", *lines][gpu.identity.index]
            samples = read(gpu, node)
            yield from (f"{line}: {what}" for what in impossible(samples))
            if gpu.identity.index == 0:
                wanted = wanted or series(samples)
                # On a busy machine, two reads may be too close together for some counters.
                if series(samples) != wanted and series(read(gpu, node)) != wanted:
                    yield f"{lines[:1]}: the GPU that is well: {wanted ^ series(samples)}"


if __name__ == "__main__":
    for problem in problems(FakeDriver(Path(), Path(os.environ["FAKE_NVML"]))):
        print(problem)
