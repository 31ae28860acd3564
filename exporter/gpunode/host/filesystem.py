"""Space in the filesystems that jobs use; each has its own thread because a read can hang."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator

from gpunode.config import Settings
from gpunode.host.mounts import Mount, parse, read_as_node, visible
from gpunode.metric import Metric, Sample
from gpunode.node.node import Node
from gpunode.source import Place, Reading, Source

MOUNT = ("mountpoint", "fstype")
SIZE = Metric("gpunode_filesystem_size_bytes", "gauge", "Size of the filesystem (statvfs).", MOUNT)
AVAILABLE = Metric(
    "gpunode_filesystem_available_bytes",
    "gauge",
    "Space available to unprivileged users (statvfs).",
    MOUNT,
)
FILES = Metric("gpunode_filesystem_files", "gauge", "Number of inodes (statvfs).", MOUNT)
FILES_FREE = Metric(
    "gpunode_filesystem_files_free", "gauge", "Number of free inodes (statvfs).", MOUNT
)
READ_ONLY = Metric(
    "gpunode_filesystem_readonly",
    "gauge",
    "Whether the filesystem is mounted read-only (/proc/1/mountinfo).",
    MOUNT,
)

LOCAL = "ext[234]|xfs|btrfs|zfs|bcachefs"
"""Filesystem types that are local to one node."""

KINDS = re.compile(
    LOCAL + r"|nfs4?|lustre|gpfs|beegfs(_nodev)?|ceph|cifs|smb3|wekafs|"
    r"glusterfs|panfs|orangefs|daos|virtiofs|9p|"
    r"fuse\.(juicefs|ceph|glusterfs|s3fs|goofys|mount-s3|gcsfuse|blobfuse2?|dfuse|sshfs|alluxio.*)"
)
"""Filesystem types that hold the data of jobs."""

UNWATCHED = (
    *("/var/lib/kubelet/", "/var/lib/containerd/", "/var/lib/docker/", "/run/", "/boot"),
    *("/etc/", "/dev/"),
)
"""Mount points to skip: per-pod mounts of filesystems watched elsewhere, /boot, and single files
that a container runtime mounts, such as /etc/hosts."""

MOST_THREADS = 32
"""The most filesystems to watch, each in its own thread."""


class FilesystemSpace:
    """Reads one filesystem; if its server is gone, only this source hangs."""

    name = "filesystem"
    metrics = (SIZE, AVAILABLE, FILES, FILES_FREE, READ_ONLY)

    def __init__(self, node: Node, mount: Mount, settings: Settings) -> None:
        self.node = node
        self.mount = mount
        self.every = settings.host.slow_interval

    def read(self) -> Reading:
        """Its space and state now; nothing if another is mounted there by now, or none."""
        mount = visible(parse(read_as_node(self.node, "mountinfo")), self.mount.point)
        if mount is None or (mount.device, mount.kind) != (self.mount.device, self.mount.kind):
            return Reading(())
        return Reading(tuple(self._samples(mount)))

    def _samples(self, mount: Mount) -> Iterator[Sample]:
        at = mount.point, mount.kind
        with contextlib.suppress(FileNotFoundError):  # only what is told of it is in our container
            space = self.node.filesystem(mount.point)
            yield from SIZE.at(space.size, *at)
            yield from AVAILABLE.at(space.available, *at)
            if space.files:
                yield from FILES.at(space.files, *at)
                yield from FILES_FREE.at(space.files_free, *at)
        yield from READ_ONLY.at(float("ro" in mount.options), *at)


class Filesystems:
    """Finds one source per mounted filesystem and keeps it for as long as the mount exists."""

    metrics = FilesystemSpace.metrics

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.settings = settings
        self._sources: dict[tuple[str, str, str], FilesystemSpace] = {}

    def find(self) -> Iterable[tuple[Place, Source]]:
        try:
            mounts = watched(parse(read_as_node(self.node, "mountinfo")))
        except OSError:
            mounts = []
        known, self._sources = self._sources, {}
        for mount in mounts:
            which = mount.device, mount.point, mount.kind
            source = known.get(which) or FilesystemSpace(self.node, mount, self.settings)
            self._sources[which] = source
            yield Place(mountpoint=mount.point), source


def watched(mounts: Iterable[Mount]) -> list[Mount]:
    """The mounts that hold the data of jobs; of each filesystem, the one with the shortest path."""
    views: dict[str, Mount] = {}
    # A later mount hides an earlier one at the same mount point.
    for mount in {mount.point: mount for mount in mounts}.values():
        if not KINDS.fullmatch(mount.kind) or mount.point.startswith(UNWATCHED):
            continue
        known = views.get(mount.device)
        if known is None or len(mount.point) < len(known.point):
            views[mount.device] = mount
    return list(views.values())[:MOST_THREADS]
