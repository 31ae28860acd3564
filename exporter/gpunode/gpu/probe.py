"""Measures what kernels reach on a GPU, for ``gpunode calibrate``.

A program with PyTorch keeps the GPU at one thing after another (``probe_torch.py``) while its
counters are read here, over the same driver that the daemon reads.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from gpunode.driver.driver import DriverError, Gpu, Limits, optional
from gpunode.gpu.buffers import PowerBuffer
from gpunode.gpu.models import Ceilings, ceilings_of, limits_of

log = logging.getLogger(__name__)

PROGRAM = Path(__file__).with_name("probe_torch.py")

SETTLE, MEASURE = 2.0, 4.0
"""Seconds that a GPU gets to warm up to each thing, and over which it is then measured."""

LINE_TIMEOUT = 180.0
"""Seconds for the program's next line; it may have to import PyTorch from a slow disk."""

SINGLE_GPU_TASKS = ("rest", "tensor", "pipe", "dram")
"""What one GPU can do; two can also run a ``collective``."""

BUSY = 0.9
"""A probe whose kernels ran for less of the time did not fill the GPU."""


class ProbeError(Exception):
    """A GPU that cannot be measured; ``str()`` is a message for the user."""


@dataclass(frozen=True, slots=True)
class SensorReadings:
    """The sensor readings of a GPU during one task."""

    values: dict[str, float]
    """The means of its counters, as in ``Activity``."""

    watts: float | None

    def __getitem__(self, counter: str) -> float:
        return self.values.get(counter, 0.0)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The measurements of one GPU."""

    readings: dict[str, SensorReadings]
    """By the name of the task."""

    sms: int
    limits: Limits
    power_limit: float | None
    """Watts, of the board's default."""


def probe(gpu: Gpu, others: Iterable[Gpu]) -> ProbeResult:
    """Measure a GPU, and a collective with another of its model that is not in use either.

    Raises ``ProbeError``.
    """
    try:
        if held := gpu.processes():
            pids = ", ".join(str(process.pid) for process in held)
            raise ProbeError(
                f"GPU {gpu.identity.index} is in use, by process {pids}: choose one that is not "
                "with --index"
            )
        peers = [
            other
            for other in others
            if other.identity.name == gpu.identity.name and not other.processes()
        ]
        if optional(gpu.activity) is None:
            raise ProbeError(
                f"GPU {gpu.identity.index} has no counters of its units: they take a Hopper GPU or "
                "later, or DCGM at dcgm.address"
            )
        limits = limits_of(gpu.identity, optional(gpu.limits) or Limits())
        power = optional(gpu.power_limits)
        with _program([gpu, *peers[:1]]) as program:
            [sms] = program.answer("ready")
            readings = {name: _read_sensors(gpu, name, program) for name in SINGLE_GPU_TASKS}
            if peers:
                try:
                    readings["collective"] = _read_sensors(gpu, "collective", program)
                except ProbeError as error:
                    log.warning("what the links reach is not measured: %s", error)
    except DriverError as error:
        raise ProbeError(str(error)) from error
    return ProbeResult(
        readings, int(sms), limits, (power.default or power.enforced) if power else None
    )


@dataclass(frozen=True, slots=True)
class _Program:
    """The program that keeps the GPU at work, and what it writes."""

    orders: IO[str]
    answers: IO[str]
    errors: IO[str]

    def begin(self, name: str) -> None:
        """Have it do something else from now on."""
        try:
            self.orders.write(f"{name}\n")
            self.orders.flush()
        except BrokenPipeError:
            pass  # its last words say why
        self.answer("begun")

    def answer(self, word: str) -> list[str]:
        """The rest of its next line, which begins with that word."""
        if not select.select([self.answers], [], [], LINE_TIMEOUT)[0]:
            raise ProbeError(f"PyTorch did not go on within {LINE_TIMEOUT:g} s")
        line = self.answers.readline().split()
        if line[:1] == [word]:
            return line[1:]
        self.errors.seek(0)
        said = [text for text in self.errors.read().splitlines() if text.strip()]
        last = said[-1][:200] if said else "no output"
        if "No module named 'torch'" in last:
            raise ProbeError(f"PyTorch is missing: {sys.executable} -m pip install torch")
        raise ProbeError(f"PyTorch failed: {last}")


@contextmanager
def _program(gpus: Sequence[Gpu]) -> Iterator[_Program]:
    visible = ",".join(gpu.identity.uuid for gpu in gpus)
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(  # noqa: S603 our own program
            [sys.executable, str(PROGRAM)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": visible},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            orders, answers = filter(None, (process.stdin, process.stdout))
            yield _Program(orders, answers, errors)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # also the ranks of a collective


def _read_sensors(gpu: Gpu, name: str, program: _Program) -> SensorReadings:
    """What the sensors show while a GPU does one thing."""
    program.begin(name)
    time.sleep(SETTLE)
    power = PowerBuffer(gpu)
    gpu.activity()
    power.drain(None)
    time.sleep(MEASURE)
    values, drawn = gpu.activity().values, power.drain(None)
    mean = drawn.mean if drawn else None
    reading = SensorReadings(values, optional(gpu.power) if mean is None else mean)
    log.debug("%s: %s", name, reading)
    return reading


def measured_ceilings(gpu: Gpu, probed: ProbeResult) -> Ceilings:
    """What was measured, in place of what is assumed of the GPU's model.

    What whole models reach was not measured: it is taken to be the same share of what is reached at
    most. Raises ``ProbeError`` if something disturbed the measurement.
    """
    seen, assumed = probed.readings, ceilings_of(gpu.identity)
    tensor, pipe, dram = seen["tensor"], seen["pipe"], seen["dram"]
    for name in ("tensor", "pipe", "dram"):
        if seen[name]["graphics"] < BUSY:
            raise ProbeError(
                f"the kernels of `{name}` ran for {seen[name]['graphics']:.0%} of the "
                "time only: is the host at work on something else?"
            )
    found = replace(
        assumed,
        sms=probed.sms,
        tensor=tensor["tensor"],
        dram_of_tensor=tensor["dram"] / max(tensor["tensor"], 0.01),
        pipe=pipe["fp32"],
        dram=dram["dram"],
        sm_of_wide=max(tensor["sm"], dram["sm"]),
    )
    rest = seen["rest"].watts
    if rest is not None and probed.power_limit:
        found = replace(found, resting_power=rest / probed.power_limit)
    return _add_links(found, probed)


def _add_links(found: Ceilings, probed: ProbeResult) -> Ceilings:
    """What a collective reaches over the links that it took."""
    reading = probed.readings.get("collective")
    if reading is None:
        return found
    nvlink = min(reading["nvlink_receive"], reading["nvlink_transmit"])
    pcie = min(reading["pcie_receive"], reading["pcie_transmit"])
    limits, channels = probed.limits, max(1, round(reading["sm"] * probed.sms))
    if nvlink > pcie and limits.nvlink_bytes_per_second:
        found = replace(
            found,
            nvlink_channels=channels,
            nvlink_of_collective=nvlink / limits.nvlink_bytes_per_second,
        )
        if limits.memory_bytes_per_second:
            bytes_of_memory = reading["dram"] * limits.memory_bytes_per_second
            found = replace(found, dram_of_nvlink=bytes_of_memory / nvlink)
    elif pcie and limits.pcie_bytes_per_second:
        found = replace(
            found,
            pcie_channels=channels,
            pcie_of_collective=pcie / limits.pcie_bytes_per_second,
        )
    return found
