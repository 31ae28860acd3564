"""Which numbers can be readings: a driver answers all ones, -1 or NaN for what it does not know."""

from __future__ import annotations

Range = tuple[float, float]
"""The least and the greatest number that is physically possible."""

NOT_AVAILABLE = 2**32 - 1
"""``(unsigned)-1``: NVML has no reading, and no counter of 32 bits got that far."""


def possible(value: float | None, within: Range) -> float | None:
    """The number, or None if it is out of range or none at all."""
    least, most = within
    if value is None or value == NOT_AVAILABLE or not least <= value <= most:
        return None
    return value
