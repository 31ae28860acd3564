"""Where a process of a series leaves what it traced, for the bench to read."""

from __future__ import annotations

from pathlib import Path


def trace_file(folder: Path, pid: int, number: int) -> Path:
    """The trace of a program, by its number in the series."""
    return folder / f"trace.{pid}.{number}.npz"


def names_file(folder: Path, pid: int, number: int) -> Path:
    """The kernels that ran longest: a list of name and seconds."""
    return folder / f"names.{pid}.{number}.json"
