"""Where the node's files are."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field, field_validator

from gpunode.config.kinds import NamedPath, Section


class PathSettings(Section):
    """Where the node's files are."""

    rootfs: NamedPath = Field(Path("/"), description="folder where the root of the node is mounted")
    helpers: str = Field(
        "",
        pattern=r"^(/.*[^/])?$",
        description="folder with the sockets of `gpunode helper`, which reads what this program "
        "may not; empty for none",
    )

    @field_validator("rootfs")
    @classmethod
    def _is_directory(cls, path: Path) -> Path:
        if not os.path.isdir(path):  # Path.is_dir raises if it may not look
            raise ValueError(f"{str(path)!r} is not a directory")
        return path
