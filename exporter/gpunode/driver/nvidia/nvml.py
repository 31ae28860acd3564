"""The GPUs and MIG instances that NVML knows: listed, opened, and opened again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pynvml

from gpunode.driver.driver import DriverError, DriverUnavailable, Gpu, Unsupported
from gpunode.driver.errands import DRIVER_TIMEOUT, Errands
from gpunode.driver.nvidia.dcgm import DcgmProfiling
from gpunode.driver.nvidia.device import Device
from gpunode.driver.nvidia.gpu import NvmlGpu
from gpunode.driver.nvidia.identity import uuid_of
from gpunode.driver.nvidia.library import Library

log = logging.getLogger(__name__)

MAX_GPUS = 64
MAX_INSTANCES = 16
"""More than a node has GPUs, and a GPU has MIG instances."""


class NvmlDriver:
    """The GPUs that NVML knows, each looked at in a thread of its own, as any call may hang."""

    vendor = "nvidia"

    def __init__(
        self,
        monotonic: Callable[[], float],
        dcgm: DcgmProfiling | None = None,
        patience: float = DRIVER_TIMEOUT,
    ) -> None:
        self.monotonic = monotonic
        self.dcgm = dcgm
        self.library = Library(monotonic)
        self._preparing = Errands(patience)
        self._looks = Errands(patience)
        self._lock = threading.Lock()  # for both of these; never held while the driver is asked
        self._gpus: dict[str, NvmlGpu] = {}
        self._at: dict[int, NvmlGpu] = {}
        self._count = 0
        self._trouble = ""
        self._complaints: dict[int, str] = {}

    def gpus(self) -> list[Gpu]:
        """Every GPU and MIG instance; a GPU that is lost stays listed.

        One that does not answer is left out until it does.
        """
        if self._preparing.run({"nvml": self._prepare}) and not self.library.usable:
            raise DriverUnavailable("nvmlInit: no answer, waiting for it")
        if self._trouble and self._has_no_gpus:
            raise DriverUnavailable(self._trouble)
        looks = {index: partial(self._open_gpu, index) for index in range(self._count)}
        for index in self._looks.run(looks):
            self._complain(index, "it does not answer")
        with self._lock:
            found = sorted(self._gpus.values(), key=_order)
            complaints = set(self._complaints.values())
        if self._count and not found:
            raise DriverUnavailable(f"no GPU can be opened: {'; '.join(sorted(complaints))}")
        return list(found)

    @property
    def _has_no_gpus(self) -> bool:
        """Whether no GPU is left that the library can be asked about."""
        with self._lock:
            return all(gpu.device.gone or gpu.device.stale for gpu in self._at.values())

    def _prepare(self) -> None:
        """Open the library if it is not open or its driver is gone, and count the GPUs."""
        try:
            if not self.library.usable or (self._has_no_gpus and self._looks.idle):
                self.library.renew()
                with self._lock:
                    self._at.clear()
            count = self.library.call("nvmlDeviceGetCount", generation=self.library.generation)
            self._count, self._trouble = min(count, MAX_GPUS), ""
        except DriverError as error:
            self._trouble = str(error)

    def _open_gpu(self, index: int) -> None:
        """Open the GPU at this index if it is new or was lost, and update its MIG instances."""
        try:
            gpu = self._at.get(index)
            if gpu is None or gpu.device.lost or gpu.device.stale:
                gpu = self._take(index, self.library.generation)
            self._complaints.pop(index, None)
            gpu.device.ask_again()
            self._list_instances(gpu)
        except DriverError as error:
            self._complain(index, str(error))

    def _complain(self, index: int, complaint: str) -> None:
        """Log once why a GPU is not open."""
        if index not in self._at and self._complaints.get(index) != complaint:
            log.warning("GPU %d cannot be opened, trying again later: %s", index, complaint)
            self._complaints[index] = complaint

    def _take(self, index: int, generation: int) -> NvmlGpu:
        """The GPU at this index, with a handle of this generation."""
        handle = self.library.call("nvmlDeviceGetHandleByIndex", index, generation=generation)
        uuid = uuid_of(self.library, handle, generation)
        with self._lock:
            gpu = self._gpus.get(uuid)
        if gpu is None:
            device = Device(self.library, handle, generation, index, uuid)
            gpu = NvmlGpu(device, self.monotonic, self.dcgm)
        elif gpu.device.lost or gpu.device.generation != generation:
            gpu.reopen(handle, generation)
        elif gpu.device.index != index:
            raise DriverError(f"it has the UUID of GPU {gpu.device.index}: {uuid}")
        with self._lock:
            self._gpus[uuid] = self._at[index] = gpu
        return gpu

    def _list_instances(self, gpu: NvmlGpu) -> None:
        """Update the MIG instances of one GPU."""
        board, generation = gpu.device, gpu.device.generation
        found: dict[str, Any] = {}
        try:
            if gpu.mig_mode():
                count = min(board.call("nvmlDeviceGetMaxMigDeviceCount"), MAX_INSTANCES)
                for index in range(count):
                    handle = _instance(board, index)
                    if handle is not None:
                        found[uuid_of(self.library, handle, generation)] = handle
        except Unsupported:
            pass
        except DriverError as error:
            log.debug("%s: cannot list its MIG instances: %s", board.uuid, error)
            return
        with self._lock:
            known = {u: g for u, g in self._gpus.items() if g.parent is gpu}
            for uuid in known.keys() - found.keys():
                del self._gpus[uuid]
        for uuid, handle in found.items():
            self._open_instance(gpu, known.get(uuid), uuid, handle)

    def _open_instance(
        self, gpu: NvmlGpu, instance: NvmlGpu | None, uuid: str, handle: Any
    ) -> None:
        board = gpu.device
        if instance is not None:
            if instance.device.generation != board.generation:
                instance.reopen(handle, board.generation)
            return
        device = Device(self.library, handle, board.generation, board.index, uuid, parent=board)
        try:
            instance = NvmlGpu(device, self.monotonic, self.dcgm, parent=gpu)
        except DriverError as error:
            log.warning("%s: cannot be opened, trying again later: %s", uuid, error)
            return
        with self._lock:
            self._gpus[uuid] = instance


def _instance(board: Device, index: int) -> Any:
    """The handle of a MIG instance, or None if there is none at this index."""
    try:
        return board.call("nvmlDeviceGetMigDeviceHandleByIndex", index)
    except DriverError as error:
        if isinstance(error.__cause__, pynvml.NVMLError_NotFound):
            return None
        raise


def _order(gpu: NvmlGpu) -> tuple[bool, int, int]:
    """GPUs by index, then MIG instances."""
    who = gpu.identity
    return who.mig, who.index, who.gpu_instance or 0
