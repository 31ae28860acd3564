"""The node's mounted filesystems.

https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html
"""

from __future__ import annotations

import errno
import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpunode.node.node import Node
from gpunode.source import limit

MORE_MOUNTS = limit("mounts")

READ_ONLY = frozenset(("ro", "emergency_ro"))
"""Options of a filesystem that an error made read-only, which those of its mount do not show.

Newer kernels leave ext4 at ``rw`` and add ``emergency_ro``:
https://lkml.iu.edu/hypermail/linux/kernel/2501.2/06382.html
"""


ROOT = "0"


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
    user: str = ROOT
    """Who mounted it: root, or the user that the option ``user_id`` of a FUSE names. It is
    fusermount that sets it: https://docs.kernel.org/filesystems/fuse/fuse.html#mount-options"""

    @property
    def of_root(self) -> bool:
        """Whether root mounted it."""
        return self.user == ROOT

    @property
    def identity(self) -> tuple[str, str]:
        """A key that all mounts of one filesystem share.

        A client of Lustre or NFS may number each mount of a filesystem separately, but it names the
        server. The server of a FUSE mount is whatever the user who mounts it writes.
        """
        names_server = ":" in self.source or self.source.startswith("//")
        if names_server and not self.kind.startswith("fuse") and not TUNNEL.match(self.source):
            return self.kind, self.source
        return "", self.device


TUNNEL = re.compile(r"127\.|localhost:|\[?::1\]?:")
"""A server's address on this node: each filesystem has a tunnel of its own, all of one name.
https://github.com/aws/efs-utils#encryption-of-data-in-transit
"""

ANY_FOLDER = r"/.{1,200}?"
"""Where the kubelet keeps volumes, which whoever installs it chooses."""

VOLUME = re.compile(
    rf"(?P<kubelet>{ANY_FOLDER})"
    r"/pods/[0-9a-f-]{32,36}/volumes/kubernetes\.io~(?P<plugin>[a-z0-9-]{1,63})/"
    r"(?P<name>[^/]{1,253})(?:/mount)?",
    re.DOTALL,
)
"""Where the kubelet mounts a volume for a pod.
https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/kubelet_getters.go
"""

STAGING_MOUNT = re.compile(
    rf"(?P<folder>{ANY_FOLDER}/plugins/kubernetes\.io/csi/"
    r"(?:pv/(?P<name>[^/]{1,253})|[^/]+/[0-9a-f]{64}))/globalmount",
    re.DOTALL,
)
"""Where a CSI driver mounts a volume before it does so for each pod.
https://github.com/kubernetes/kubernetes/blob/master/pkg/volume/csi/csi_attacher.go
"""


def kubelets(mounts: Sequence[Mount]) -> set[str]:
    """The folders of kubelets, by the volumes that they mount for pods, which anybody may read."""
    points = (mount.point for mount in mounts if mount.of_root)
    return {found["kubelet"] for point in points if (found := VOLUME.fullmatch(point))}


def volume(node: Node, point: str, source: str) -> str | None:
    """What users call the volume of pods that is mounted at a point; None if it is none.

    That is the name of its PersistentVolume, or the server and folder that a pod names: the name of
    a volume within a pod is not unique, and the kubelet writes down no claim.
    """
    if found := VOLUME.fullmatch(point):
        return source if ":" in source and found["plugin"] != "csi" else found["name"]
    if found := STAGING_MOUNT.fullmatch(point):
        return found["name"] or _staged(node, found["folder"]) or source
    return None


def _staged(node: Node, folder: str) -> str | None:
    """The name of the volume in a folder, as the kubelet keeps it; None if it cannot be read."""
    try:
        volume_data = json.loads(node.read_text(f"{folder}/vol_data.json"))
        name = volume_data["specVolID"]
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        return None
    return name if isinstance(name, str) and name else None


def parse(text: str) -> list[Mount]:
    """Parse a mountinfo file, skipping malformed lines.

    The kernel escapes only space, tab, newline, backslash and # in what a user may have chosen, so
    nothing else divides lines or fields.
    """
    found = []
    known: dict[tuple[str, str], tuple[frozenset[str], str]] = {}  # most mounts have the same
    for line in text.split("\n"):
        fields, _, rest = line.partition(" - ")
        before, after = fields.split(" "), rest.split(" ")
        if len(before) >= 6 and len(after) >= 2:
            _, _, device, root, point, options = before[:6]
            both = options, after[2] if len(after) >= 3 else ""
            flags, user = known.get(both) or known.setdefault(both, _parse_options(*both))
            found.append(
                Mount(
                    device,
                    unescaped(root),
                    unescaped(point),
                    flags,
                    after[0],
                    unescaped(after[1]),
                    user,
                )
            )
    return found


def _parse_options(options: str, of_filesystem: str) -> tuple[frozenset[str], str]:
    """The options of a mount, with ``ro`` if its filesystem is read-only, and who mounted it."""
    flags, below = frozenset(options.split(",")), of_filesystem.split(",")
    if not READ_ONLY.isdisjoint(below):
        flags |= {"ro"}
    return flags, next((o[8:] for o in below if o.startswith("user_id=")), ROOT)


class ParsedMounts:
    """A mount table that is parsed once for all who ask, until it changes.

    A table of 20,000 mounts has 4 MB, and takes 20 more as objects.
    """

    def __init__(self, read: Callable[[], str]) -> None:
        self._text = read
        self._lock = threading.Lock()
        self._parsed: int | None = None
        self._mounts: list[Mount] = []

    def mounts(self) -> list[Mount]:
        """The mounts now. Raises ``OSError``."""
        with self._lock:
            text = self._text()
            if (digest := hash(text)) != self._parsed:
                self._mounts, self._parsed = parse(text), digest
            return self._mounts


def visible(mounts: Sequence[Mount], point: str) -> Mount | None:
    """The last of the mounts at a mount point, which hides the earlier ones."""
    return next((mount for mount in reversed(mounts) if mount.point == point), None)


def read_as_node(node: Node, name: str) -> str:
    """A /proc/PID file of process 1, or of this process if that cannot be read.

    In a container the two differ; process 1 shows the node. Raises ``OSError``.
    """
    try:
        return node.read_text(f"/proc/1/{name}")
    except OSError as error:
        if error.errno == errno.EFBIG:  # our own would be another's, or as long
            raise
        return node.read_text(f"/proc/self/{name}")


def unescaped(path: str) -> str:
    r"""A path with the kernel's octal escapes, such as \040, decoded."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8) & 0xFF), path)
