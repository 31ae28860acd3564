"""Space in the filesystems that jobs use; each has its own thread because a read can hang.

A filesystem that is mounted only as a volume of pods is called by the name of the volume, which
stays when its pods go.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from gpunode.config import Settings
from gpunode.host.mounts import TUNNEL, Mount, parse, read_as_node, visible, volume
from gpunode.metric import Metric, Sample
from gpunode.node.node import Node
from gpunode.source import Place, Reading, Source

MOUNT = ("mountpoint", "fstype")
SIZE = Metric(
    "gpunode_filesystem_size_bytes",
    "gauge",
    "Size of the filesystem (statvfs). Where it is mounted only as a volume of pods, `mountpoint` "
    "is the name of the PersistentVolume, or the server and folder.",
    MOUNT,
)
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
    r"glusterfs|panfs|pvfs2|daos|virtiofs|9p|"
    r"fuse\.(juicefs|ceph|glusterfs|s3fs|goofys|geesefs|mount-s3|gcsfuse|blobfuse2?|dfuse|daos|hf3fs|"
    r"rclone|sshfs|alluxio.*)"
)
"""Filesystem types that hold the data of jobs."""

PLAIN_FUSE = "fuse"
"""The type of a FUSE that does not name its own, as of the CSI drivers for Amazon S3, Google Cloud
Storage and Azure Blob Storage."""

BUCKETS = frozenset(("mountpoint-s3", "blobfuse", "blobfuse2", "gcsfuse"))
"""What those say in place of a device, wherever they are mounted."""

UNWATCHED = (
    *("/var/lib/kubelet/", "/var/lib/containerd/", "/var/lib/docker/", "/run/", "/boot"),
    *("/etc/", "/dev/", "/var/lib/juicefs/"),
)
"""Mount points to skip: what containers consist of, single files that a container runtime mounts,
such as /etc/hosts, /boot, and where JuiceFS mounts the volumes of pods, each time by another name:
https://github.com/juicedata/juicefs-csi-driver. Volumes of pods have names."""

MOST_THREADS = 32
"""The most filesystems to watch, each in its own thread."""


class FilesystemSpace:
    """Reads one filesystem; if its server is gone, only this source hangs."""

    name = "filesystem"
    needs = (
        "the node's root at path.rootfs, mounted with HostToContainer propagation; "
        "DAC_READ_SEARCH for volumes that are mounted only for pods"
    )
    metrics = (SIZE, AVAILABLE, FILES, FILES_FREE, READ_ONLY)

    def __init__(self, node: Node, mount: Mount, settings: Settings, called: str = "") -> None:
        self.node = node
        self.mount = mount
        self.every = settings.host.slow_interval
        self.called = called or mount.point
        """What users call it: its mount point, or the name of a volume."""

    def read(self) -> Reading:
        """Its space and state now; nothing if another is mounted there by now, or none."""
        mount = visible(parse(read_as_node(self.node, "mountinfo")), self.mount.point)
        if mount is None or (mount.device, mount.kind) != (self.mount.device, self.mount.kind):
            return Reading(())
        try:
            return Reading(tuple(self._samples(mount)))
        except PermissionError:
            if self.called == mount.point:
                raise
            return Reading(())  # a volume of pods, in the kubelet's folder

    def _check_is_seen(self, mount: Mount) -> None:
        """Raise ``OSError`` if this process does not see a mount, but the folder below it.

        A container sees what the node mounts later only if it is propagated to it:
        https://man7.org/linux/man-pages/man7/mount_namespaces.7.html
        """
        try:
            own = parse(self.node.read_text("/proc/self/mountinfo"))
        except OSError:  # not on this tape
            return
        if mount.device not in {each.device for each in own}:
            why = "not seen here: mount the node's root with HostToContainer propagation"
            raise OSError(errno.ENXIO, why, mount.point)

    def _samples(self, mount: Mount) -> Iterator[Sample]:
        at = self.called, mount.kind
        with contextlib.suppress(FileNotFoundError):  # in the mount table, but not in our container
            space = self.node.filesystem(mount.point)
            self._check_is_seen(mount)
            yield from SIZE.at(space.size, *at)
            yield from AVAILABLE.at(space.available, *at)
            if space.files:
                yield from FILES.at(space.files, *at)
                yield from FILES_FREE.at(space.files_free, *at)
        if self.called == mount.point:  # a pod may choose to mount its volume read-only
            yield from READ_ONLY.at(float("ro" in mount.options), *at)


class Filesystems:
    """Finds one source per mounted filesystem and keeps it for as long as the mount exists."""

    metrics = FilesystemSpace.metrics

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.settings = settings
        self._sources: dict[tuple[str, Mount], FilesystemSpace] = {}

    def find(self) -> Iterable[tuple[Place, Source]]:
        try:
            mounts = parse(read_as_node(self.node, "mountinfo"))
        except OSError:
            mounts = []
        known, self._sources = self._sources, {}
        for name, mount in watched(self.node, mounts).items():
            which = name, replace(mount, options=frozenset())
            source = known.get(which) or FilesystemSpace(self.node, mount, self.settings, name)
            self._sources[which] = source
            yield Place(mountpoint=name), source


def watched(node: Node, mounts: Iterable[Mount]) -> dict[str, Mount]:
    """The mounts that hold the data of jobs: of each filesystem one, and what it is called.

    That is the one with the shortest path; if it is mounted only as volumes of pods, the first by
    name, which stays the same whichever pods there are.
    """
    named: dict[tuple[str, str], NamedMount] = {}
    # A later mount hides an earlier one at the same mount point.
    for mount in {mount.point: mount for mount in mounts}.values():
        name = volume(node, mount.point, mount.source)
        of_pods = name is not None
        plain = mount.kind == PLAIN_FUSE and (of_pods or mount.source in BUCKETS)
        if not KINDS.fullmatch(mount.kind) and not plain:
            continue
        if of_pods or not mount.point.startswith(UNWATCHED):
            candidate = NamedMount(mount, name or mount.point)
            tunnelled = of_pods and TUNNEL.match(mount.source)
            which = (mount.kind, candidate.name) if tunnelled else mount.identity
            named[which] = min(named.get(which, candidate), candidate, key=NamedMount.order)
    found: dict[str, Mount] = {}
    for candidate in sorted(named.values(), key=lambda candidate: candidate.of_pods):
        # A pod may call its volume what another is called already.
        taken = candidate.name in found
        found.setdefault(
            f"{candidate.name} ({candidate.mount.source})" if taken else candidate.name,
            candidate.mount,
        )
    return dict(list(found.items())[:MOST_THREADS])


class NamedMount(NamedTuple):
    """A mount, and what users call it."""

    mount: Mount
    name: str

    @property
    def of_pods(self) -> bool:
        return self.name != self.mount.point

    def order(self) -> tuple[object, ...]:
        """Less, the better the name is."""
        point = self.mount.point
        if not self.of_pods:
            return False, len(point), point
        return True, point.endswith("/globalmount"), self.name, point
