"""Which numbers can be readings: a driver answers all ones, -1 or NaN for what it does not know."""

from __future__ import annotations

from gpunode.driver.driver import Unsupported

Range = tuple[float, float]
"""The least and the greatest number that is physically possible."""

BYTES = 1.0, 2.0**50
BUS_BITS = 1.0, 2.0**16
BYTES_PER_SECOND = 0.0, 1e14
CELSIUS = -60.0, 200.0
COUNTS = 0.0, 1e18
CUDA_VERSIONS = 1000.0, 1e6
FLAGS = 0.0, 1.0
GENERATIONS = 1.0, 16.0
HERTZ = 0.0, 1e11
LANES = 1.0, 32.0
LIMITS = 1.0, 2e4
LINKS = 0.0, 64.0
MARGINS = -200.0, 200.0
NUMBERS = 0.0, 2.0**16
PERFORMANCE_STATES = 0.0, 15.0
PIDS = 1.0, 2.0**22
ROWS = 0.0, 1e6
SHARES = 0.0, 1.0
WATTS = 0.0, 2e4
"""What is physically possible, generously, in base units; anything else is no reading."""

NOT_AVAILABLE = 2**32 - 1
"""``(unsigned)-1``: NVML has no reading, and no counter of 32 bits got that far."""


def in_range(value: float | None, within: Range) -> float | None:
    """The number, or None if it is missing or out of range."""
    least, most = within
    if value is None or value == NOT_AVAILABLE or not least <= value <= most:
        return None
    return value


def reading(what: str, value: float, within: Range) -> float:
    """A number in a range that is physically possible.

    Raises ``Unsupported`` for any other: drivers answer -1 or all ones for a missing sensor.
    """
    found = in_range(value, within)
    if found is None:
        raise Unsupported(f"{what}: {value:g} is no reading")
    return found


def as_integer(value: float | None) -> int | None:
    """A small integer, or None if it is missing or out of range."""
    number = in_range(value, NUMBERS)
    return None if number is None else int(number)


def scaled(value: float | None, factor: float) -> float | None:
    """The number in base units, by a factor; None without a number."""
    return None if value is None else value * factor
