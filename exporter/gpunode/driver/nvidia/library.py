"""The life of NVML in this process: loaded, initialised, called, and replaced.

A call in flight keeps the library loaded. Whatever the library gave out (handles, samples, event
sets) belongs to a generation, and is never passed to the library of another.
"""

from __future__ import annotations

import _ctypes
import logging
import threading
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import pynvml

from gpunode.driver.driver import DriverError, DriverUnavailable, Unsupported
from gpunode.driver.errands import DRIVER_TIMEOUT

log = logging.getLogger(__name__)

UNSUPPORTED = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_NO_PERMISSION,
}

NO_DRIVER = "there is no NVIDIA driver here"
"""What a library that is not found means, as the driver brings it."""


class CallInFlight(NamedTuple):
    """A call in flight: the function, the GPU that it asks, and since when."""

    name: str
    gpu: Hashable
    since: float


class Library:
    """The one owner of the library: only ``renew`` loads, initialises or unloads it."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self.generation = 0
        self._open = False
        self._calls: dict[int, CallInFlight] = {}
        self._idle = threading.Condition()

    @property
    def usable(self) -> bool:
        """Whether the library is initialised."""
        return self._open

    def call(
        self,
        function: str | Callable[..., Any],
        *arguments: Any,
        generation: int,
        gpu: Hashable = None,
    ) -> Any:
        """Call one NVML function, by name or wrapped; its errors become ``DriverError``.

        A call that hangs on a GPU is not made again, so that no more threads hang in it.
        """
        if isinstance(function, str):
            name, perform = function, getattr(pynvml, function)
        else:
            name, perform = function.__name__, function
        thread = threading.get_ident()
        with self._idle:
            if not self._open or generation != self.generation:
                raise DriverError(f"{name}: the driver was reloaded")
            if gpu is not None:
                self._refuse_to_hang(name, gpu)
            self._calls[thread] = CallInFlight(name, gpu, self.monotonic())
        try:
            return perform(*arguments)
        except pynvml.NVMLError as error:
            kind = Unsupported if error.value in UNSUPPORTED else DriverError
            raise kind(explain(name, error)) from error
        finally:
            with self._idle:
                del self._calls[thread]
                if not self._open:  # somebody waits for this, to renew the library
                    self._idle.notify_all()

    def _refuse_to_hang(self, name: str, gpu: Hashable) -> None:
        long_ago = self.monotonic() - DRIVER_TIMEOUT
        for call in self._calls.values():
            if (call.name, call.gpu) == (name, gpu) and call.since <= long_ago:
                raise DriverError(f"{name}: an earlier call hangs, waiting for it")

    def renew(self) -> None:
        """Load and initialise the library from scratch, for one caller at a time.

        Raises ``DriverUnavailable``, also while a call hangs in the library that was loaded: to
        unload it would end this process.
        """
        with self._idle:
            self._open = False
            self.generation += 1
            if not self._idle.wait_for(lambda: not self._calls, DRIVER_TIMEOUT / 2):
                names = ", ".join(sorted({call.name for call in self._calls.values()}))
                raise DriverUnavailable(f"cannot reopen the driver while a call hangs: {names}")
        # From here on nobody else calls the library.
        _unload()
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            why = explain("nvmlInit", error)
            none = error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
            raise DriverUnavailable(f"{NO_DRIVER}: {why}" if none else why) from error
        with self._idle:
            self._open = True


def _unload() -> None:
    """Unload a library whose driver is gone, so that the current one can be loaded."""
    if pynvml.nvmlLib is None:
        return
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        log.debug("nvmlShutdown: %s", explain("nvmlShutdown", error))
    # pynvml never unloads the library. After a driver upgrade, the old one no longer matches the
    # kernel module (NVML error 18).
    pynvml._nvmlGetFunctionPointer_cache.clear()
    _ctypes.dlclose(pynvml.nvmlLib._handle)
    pynvml.nvmlLib = None


def explain(call: str, error: pynvml.NVMLError) -> str:
    """The call and the error's text; for a code that pynvml does not know, the driver's own."""
    try:
        described = str(error)
    except UnicodeDecodeError:
        described = "an error without a valid text"
    return f"{call}: {described} (NVML error {error.value})"
