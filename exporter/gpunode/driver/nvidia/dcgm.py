"""Profiling counters of GPUs without GPM (Volta to Ada), from DCGM on this node.

The only module that imports DCGM's Python bindings, which ship with DCGM and are not on PyPI. It
connects to a running nv-hostengine: an embedded one would take the counters away from it and from
profilers. While a profiler holds the counters, DCGM returns blank values, and the ledger does
without.
https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/feature-overview.html#profiling-metrics
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpunode.driver.driver import Activity, Unsupported
from gpunode.driver.nvidia import gpm
from gpunode.driver.nvidia.possible import in_range

log = logging.getLogger(__name__)

BINDINGS = (
    "/usr/share/datacenter-gpu-manager-4/bindings/python3",
    "/usr/local/dcgm/bindings/python3",
)
"""Where DCGM 4 and DCGM 3 install them."""

FIELDS = {
    1001: "graphics",
    1002: "sm",
    1003: "occupancy",
    1004: "tensor",
    1005: "dram",
    1006: "fp64",
    1007: "fp32",
    1008: "fp16",
    1009: "pcie_transmit",
    1010: "pcie_receive",
    1011: "nvlink_transmit",
    1012: "nvlink_receive",
}
"""DCGM_FI_PROF_* by number, named as in ``gpm.METRICS``: shares, and bytes per second."""

SAMPLE_INTERVAL = 1.0
"""Seconds between the samples that DCGM takes, and between reads of them."""

RECONNECT_AFTER = 60.0
"""Seconds before the next attempt to reach a host engine that did not answer."""

STALE_AFTER = 5.0
"""Seconds after which the latest values are too old to be a reading."""


class DcgmProfiling:
    """Follows a host engine in its own thread, so that one that hangs delays no GPU."""

    def __init__(self, address: str, bindings: str, monotonic: Callable[[], float]) -> None:
        self.address = address
        self.bindings = (bindings,) if bindings else BINDINGS
        self.monotonic = monotonic
        self._lock = threading.Lock()
        self._heard: dict[str, dict[str, list[float]]] = {}
        self._covered: dict[str, float] = {}
        """Seconds that the values heard of each GPU are about."""
        self._latest: dict[str, float] = {}
        """When each GPU last had a value that was not blank."""
        self._read_at = monotonic()
        self._started = False

    def activity(self, uuid: str) -> Activity:
        """The means since the last call. Raises ``Unsupported`` if DCGM has had none for a while.

        A window shorter than the time between two samples may have none.
        """
        if not self._started:
            self._started = True
            if any(Path(folder).is_dir() for folder in self.bindings):
                threading.Thread(target=self._follow, name="dcgm", daemon=True).start()
        now = self.monotonic()
        with self._lock:
            heard, seconds = self._heard.pop(uuid, {}), self._covered.pop(uuid, 0.0)
            if now - self._latest.get(uuid, -STALE_AFTER) > STALE_AFTER:
                raise Unsupported(f"DCGM at {self.address}: no values for {uuid}")
        means = {name: sum(values) / len(values) for name, values in heard.items()}
        return Activity(seconds, means, "dcgm")

    def _follow(self) -> None:
        sys.path += [folder for folder in self.bindings if folder not in sys.path]
        try:
            structures = importlib.import_module("dcgm_structs")
            reader = importlib.import_module("DcgmReader").DcgmReader
        except (ImportError, OSError) as error:
            log.warning("dcgm: cannot use its Python bindings, check dcgm.bindings: %s", error)
            return
        while True:
            try:
                self._read(reader)
            except (structures.DCGMError, OSError) as error:
                log.info("dcgm: %s: %s; trying again in %g s", self.address, error, RECONNECT_AFTER)
            time.sleep(RECONNECT_AFTER)

    def _read(self, reader: Any) -> None:
        """Read for as long as the host engine answers."""
        with reader(
            hostname=self.address,
            fieldIds=list(FIELDS),
            updateFrequency=round(SAMPLE_INTERVAL * 1e6),
            maxKeepAge=60.0,
            fieldGroupName="gpunode",
        ) as dcgm:
            dcgm.Init()
            self._read_at = self.monotonic()
            while dcgm.m_gpuIdToUUId:
                self._hear(dcgm.m_gpuIdToUUId, dcgm.GetAllGpuValuesAsFieldIdDictSinceLastCall())
                time.sleep(SAMPLE_INTERVAL)

    def _hear(self, uuids: dict[int, str], values: dict[int, dict[int, list[Any]]]) -> None:
        """Keep the values of each GPU until they are asked for; blanks are ignored."""
        with self._lock:
            since, self._read_at = self._read_at, self.monotonic()
            for gpu, uuid in uuids.items():
                heard = self._heard.setdefault(uuid, {})
                for field, samples in values.get(gpu, {}).items():
                    if field not in FIELDS:
                        continue
                    within = gpm.RANGES[FIELDS[field]]
                    fresh = [
                        value
                        for value in (float(s.value) for s in samples if not s.isBlank)
                        if in_range(value, within) is not None
                    ]
                    if fresh:
                        kept = heard.get(FIELDS[field], []) + fresh
                        heard[FIELDS[field]] = kept[-round(60 / SAMPLE_INTERVAL) :]
                        self._latest[uuid] = self._read_at
                if self._latest.get(uuid) == self._read_at:
                    covered = self._covered.get(uuid, 0.0)
                    self._covered[uuid] = covered + self._read_at - since
