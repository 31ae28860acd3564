"""Parses the counters that the kernel prints."""

from __future__ import annotations


def counter(text: str) -> float:
    """An unsigned 64-bit counter. Raises ``ValueError`` for anything else."""
    value = int(text)
    if not 0 <= value < 1 << 64:
        raise ValueError(f"not a 64-bit counter: {text[:80]!r}")
    return float(value)
