"""The node's mounted filesystems.

https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpunode.node.node import Node

READ_ONLY = frozenset(("ro", "emergency_ro"))
"""Options of a filesystem that an error made read-only, which those of its mount do not show.

Newer kernels leave ext4 at ``rw`` and add ``emergency_ro``:
https://lkml.iu.edu/hypermail/linux/kernel/2501.2/06382.html
"""


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of a mount table; mounts of one filesystem share the same ``device`` (major:minor)."""

    device: str
    root: str
    point: str
    options: frozenset[str]
    """Those of the mount, and ``ro`` if the filesystem below it is read-only."""

    kind: str
    source: str


def parse(text: str) -> list[Mount]:
    """Parse a mountinfo file, skipping malformed lines.

    The kernel escapes only space, tab, newline, backslash and # in what a user may have chosen, so
    nothing else divides lines or fields.
    """
    found = []
    for line in text.split("\n"):
        fields, _, rest = line.partition(" - ")
        before, after = fields.split(" "), rest.split(" ")
        if len(before) >= 6 and len(after) >= 2:
            _, _, device, root, point, options = before[:6]
            flags = frozenset(options.split(","))
            if len(after) >= 3 and not READ_ONLY.isdisjoint(after[2].split(",")):
                flags |= {"ro"}
            found.append(
                Mount(
                    device, unescaped(root), unescaped(point), flags, after[0], unescaped(after[1])
                )
            )
    return found


def visible(mounts: Sequence[Mount], point: str) -> Mount | None:
    """The last of the mounts at a mount point, which hides the earlier ones."""
    return next((mount for mount in reversed(mounts) if mount.point == point), None)


def read_as_node(node: Node, name: str) -> str:
    """A /proc/PID file of process 1, or of this process if that cannot be read.

    In a container the two differ; process 1 shows the node. Raises ``OSError``.
    """
    try:
        return node.read_text(f"/proc/1/{name}")
    except OSError:
        return node.read_text(f"/proc/self/{name}")


def unescaped(path: str) -> str:
    r"""A path with the kernel's octal escapes, such as \040, decoded."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8) & 0xFF), path)
