"""Sensors of one GPU that are read one by one, so that the failure of one hides no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gpunode.driver.driver import SensorFailed, optional
from gpunode.unread import Unknown, Unread

T = TypeVar("T")

FAILED = Unknown(
    "sensor_failed",
    "one sensor of a GPU failed, others answer; the series of that sensor are missing",
)


class Sensors:
    """Reads them, and keeps which failed."""

    def __init__(self) -> None:
        self._failed: list[Unread] = []

    def read(self, sensor: Callable[[], T]) -> T | None:
        """What a sensor reads, or None if the GPU does not have it or it alone fails.

        Raises ``DriverError`` if the GPU does not answer.
        """
        try:
            return optional(sensor)
        except SensorFailed as error:
            self._failed.append(FAILED.seen(str(error)))
            return None

    def unread(self) -> tuple[Unread, ...]:
        """The failures since the last call."""
        failed, self._failed = tuple(self._failed), []
        return failed
