"""How NVML is asked about one GPU: through a handle, and never again for what it does not have.

After an unsupported call, that call is not made again until the GPUs are next listed.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping
from typing import Any

import pynvml

from gpunode.driver.driver import DriverError, SensorFailed, Unsupported
from gpunode.driver.nvidia.library import Library
from gpunode.driver.nvidia.possible import COUNTS, NOT_AVAILABLE, Range, in_range

DRIVER_GONE = {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
}
"""Errors that every GPU returns after the driver was unloaded or replaced under the library; so is
``NVML_ERROR_UNKNOWN`` then, but one sensor may return that, too."""

GPU_LOST = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND}
"""Errors of one GPU that fell off the bus: a new handle may reach it when it is back."""

MAX_UNNAMED = 16
"""Values without a name that are kept until they are asked for."""

MAX_SAMPLES = 256
"""More than any buffer holds: on an H200, 120 power samples and 71 of utilisation."""

MAX_TIMESTAMP = 2**62
"""The last time in microseconds that a clock can show; beyond, the driver knows none."""

VALUE_TYPES = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}
"""The member of the union of a field's value, by its type."""

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
        self._unnamed: set[str] = set()
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

    def name(self, what: str, names: Mapping[int, str], value: int) -> str | None:
        """The name of a value of an enumeration; one that has none is kept for ``unnamed``."""
        name = names.get(value)
        if name is None and value != NOT_AVAILABLE and len(self._unnamed) < MAX_UNNAMED:
            self._unnamed.add(f"{what} {value}")
        return name

    def bits(self, what: str, names: Mapping[int, str], mask: int) -> list[str]:
        """The names of the bits that are set in a mask; the same for those that have none."""
        rest = mask & ~sum(names)
        if rest and len(self._unnamed) < MAX_UNNAMED:
            self._unnamed.add(f"{what} {rest:#x}")
        return [name for bit, name in names.items() if mask & bit]

    def unnamed(self) -> list[str]:
        """What ``name`` and ``bits`` kept since the last call."""
        kept, self._unnamed = self._unnamed, set()
        return sorted(kept)

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
                code = error.__cause__.value
                self.gone = code in DRIVER_GONE or (
                    code == pynvml.NVML_ERROR_UNKNOWN and not self._answers(generation)
                )
                self.lost = code in GPU_LOST
                if not self.gone:
                    raise SensorFailed(str(error)) from error.__cause__
            raise
        self.gone = self.lost = False
        return answer

    def _answers(self, generation: int) -> bool:
        """Whether the driver answers for the GPU, be it that it does not have what is asked for."""
        try:
            self.library.call(
                "nvmlDeviceGetUtilizationRates", self.handle, gpu=self.uuid, generation=generation
            )
        except Unsupported:
            return True
        except DriverError:
            return False
        return True

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
            if _answered(value) and (number := self._field_value(value)) is not None
        }
        if not answers:
            self._unsupported.add(key)
            raise Unsupported(f"{key}: not supported by GPU {self.index}")
        return answers

    def _field_value(self, field: Any) -> float | None:
        """The member of the union that ``valueType`` selects; None if that can be no reading."""
        member = self.name("type of a field", VALUE_TYPES, field.valueType)
        return None if member is None else in_range(getattr(field.value, member), COUNTS)

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
            if time <= MAX_TIMESTAMP and value <= most and value != NOT_AVAILABLE
        ]


def _get_samples(handle: Any, kind: int, after: int) -> bytes:
    """``nvmlDeviceGetSamples`` into a buffer that holds every sample.

    pynvml's own wrapper asks for the count first, which doubles the cost.
    """
    samples = (pynvml.c_nvmlSample_t * MAX_SAMPLES)()
    count = ctypes.c_uint(MAX_SAMPLES)
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
