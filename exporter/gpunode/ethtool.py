"""Counters that network drivers keep for ``ethtool -S`` and show nowhere else."""

from __future__ import annotations


def statistics(interface: str) -> dict[str, int]:
    """The counters of one interface of this network namespace by name. Raises ``OSError``."""
    raise NotImplementedError(interface)
