"""The tapes in the package."""

from __future__ import annotations

from pathlib import Path

INCIDENTS = Path(__file__).with_name("incidents")
"""The recorded incidents in the package."""

STORIES = Path(__file__).with_name("stories")
"""The tapes of the demo."""


def named(name: Path, *folders: Path) -> list[Path]:
    """The tapes of this name in the package, unless there is such a file."""
    if name.exists() or name.name != str(name):
        return []
    return [tape for at in folders if (tape := at / f"{name}.jsonl.gz").exists()]


def names(folder: Path) -> list[str]:
    """The names of the tapes in a folder of the package."""
    return sorted(tape.name.partition(".")[0] for tape in folder.glob("*.jsonl.gz"))
