"""Files that the daemon reads, which may be at any time and as another user."""

from __future__ import annotations

from pathlib import Path


def keep(path: Path, text: str) -> None:
    """Write a file, whole or not at all. Raises ``OSError``."""
    make_folder(path.parent)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text)
    fresh.chmod(0o644)  # whatever the umask: the daemon may run as another user
    fresh.rename(path)


def make_folder(folder: Path) -> None:
    """Make a folder that any program can read. Raises ``OSError``."""
    if not folder.is_dir():
        folder.mkdir(parents=True)
        folder.chmod(0o755)
