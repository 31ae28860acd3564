"""How NVML is asked about one GPU: through a handle, and never again for what it does not have.

After an unsupported call, that call is not made again until the GPUs are next listed.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import pynvml

from gpunode.driver.driver import DriverError, Unsupported
from gpunode.driver.nvidia.library import Library
from gpunode.driver.nvidia.possible import COUNTS, NOT_AVAILABLE, Range, possible

GONE = {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
    pynvml.NVML_ERROR_UNKNOWN,
}
"""Errors that every GPU returns after the driver was unloaded or replaced under the library."""

LOST = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND}
"""Errors of one GPU that fell off the bus: a new handle may reach it when it is back."""

MOST_SAMPLES = 256
"""More than any buffer holds: on an H200, 120 power samples and 71 of utilisation."""

LATEST = 2**62
"""The last time in microseconds that a clock can show; beyond, the driver knows none."""

SAMPLE = struct.Struct("=QI4x")
"""``nvmlSample_t``: microseconds, and a union of which the unsigned member is used."""


class Device:
    """A GPU or MIG instance in NVML: its handle, and what is not supported through it.

    ``gone`` and ``lost`` say what the last error was; ``board`` is the GPU of a MIG instance, and
    any other GPU itself.
    """

    def __init__(
        self,
        library: Library,
        handle: Any,
        generation: int,
        index: int,
        uuid: str,
        parent: Device | None = None,
    ) -> None:
        self.library = library
        self.index = index
        self.uuid = uuid
        self.parent = parent
        self.board = parent or self
        self.reopen(handle, generation)

    def reopen(self, handle: Any, generation: int) -> None:
        """Start over with a new handle."""
        self.handle = handle
        self.gone = False
        self.lost = False
        self._unsupported: set[str] = set()
        self.generation = generation  # last, because readers check it first

    @property
    def stale(self) -> bool:
        """Whether the library that issued the handle was unloaded."""
        return self.generation != self.library.generation

    def ask_again(self) -> None:
        """Forget what was unsupported: a new mode or permission may enable a sensor."""
        self._unsupported.clear()

    def call(
        self,
        function: str | Callable[..., Any],
        *arguments: Any,
        generation: int | None = None,
    ) -> Any:
        """What a function answers whose first argument is the handle.

        Raises ``Unsupported`` and ``DriverError``.
        """
        name = function if isinstance(function, str) else function.__name__
        if name in self._unsupported:
            raise Unsupported(f"{name}: not supported by GPU {self.index}")
        generation = self.generation if generation is None else generation
        try:
            answer = self.library.call(
                function, self.handle, *arguments, gpu=self.uuid, generation=generation
            )
        except Unsupported:
            self._unsupported.add(name)
            raise
        except DriverError as error:
            if isinstance(error.__cause__, pynvml.NVMLError):
                self.gone = error.__cause__.value in GONE
                self.lost = error.__cause__.value in LOST
            raise
        self.gone = self.lost = False
        return answer

    def if_supported(self, function: str | Callable[..., Any], *arguments: Any) -> Any:
        """What ``call`` answers, or None if the GPU does not have it."""
        try:
            return self.call(function, *arguments)
        except Unsupported:
            return None

    def if_answered(self, function: str | Callable[..., Any], *arguments: Any) -> Any:
        """What ``call`` answers, or None after any error: no reason not to read the rest."""
        try:
            return self.call(function, *arguments)
        except DriverError:
            return None

    def fields(self, *fields: int | tuple[int, int]) -> dict[tuple[int, int], float]:
        """Values of the fields that the driver answered, by (field, scope).

        Raises ``Unsupported`` if it answered none of them.
        """
        key = f"fields {fields}"
        if key in self._unsupported:
            raise Unsupported(f"{key}: not supported by GPU {self.index}")
        answers = {
            (value.fieldId, value.scopeId): number
            for value in self.call("nvmlDeviceGetFieldValues", list(fields))
            if _answered(value) and (number := _field_value(value)) is not None
        }
        if not answers:
            self._unsupported.add(key)
            raise Unsupported(f"{key}: not supported by GPU {self.index}")
        return answers

    def samples(
        self, kind: int, after: int, scale: float, within: Range
    ) -> list[tuple[int, float]]:
        """What the driver buffered after a time in microseconds: (time, number in base units)."""
        key = f"nvmlDeviceGetSamples {kind}"
        if key in self._unsupported:
            raise Unsupported(f"{key}: not supported by GPU {self.index}")
        try:
            generation = self.generation
            packed = self.library.call(
                _get_samples, self.handle, kind, after, gpu=self.uuid, generation=generation
            )
        except Unsupported:
            self._unsupported.add(key)
            raise
        except DriverError as error:
            if isinstance(error.__cause__, pynvml.NVMLError_NotFound):
                return []  # an empty buffer, not a failure
            raise
        most = within[1] / scale
        return [
            (time, value * scale)
            for time, value in SAMPLE.iter_unpack(packed)
            if time <= LATEST and value <= most and value != NOT_AVAILABLE
        ]


def _get_samples(handle: Any, kind: int, after: int) -> bytes:
    """``nvmlDeviceGetSamples`` into a buffer that holds every sample.

    pynvml's own wrapper asks for the count first, which doubles the cost.
    """
    samples = (pynvml.c_nvmlSample_t * MOST_SAMPLES)()
    count = ctypes.c_uint(MOST_SAMPLES)
    get = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetSamples")
    value_type = ctypes.c_uint()
    since = ctypes.c_ulonglong(after)
    result = get(
        handle, kind, since, ctypes.byref(value_type), ctypes.byref(count), ctypes.byref(samples)
    )
    pynvml._nvmlCheckReturn(result)
    return bytes(samples)[: count.value * SAMPLE.size]


def _answered(field: Any) -> bool:
    """Whether the driver wrote a value, or left the field as it was handed in, which is all zeros.

    An H200 (driver 580.159) does so with all limits of a call that asks for one of a wrong scope.
    """
    written = field.timestamp or field.latencyUsec or field.valueType or field.value.ullVal
    return field.nvmlReturn == pynvml.NVML_SUCCESS and bool(written)


def _field_value(field: Any) -> float | None:
    """The member of the union that ``valueType`` selects; None if that can be no reading."""
    member = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
    name = member.get(field.valueType)
    return None if name is None else possible(getattr(field.value, name), COUNTS)
