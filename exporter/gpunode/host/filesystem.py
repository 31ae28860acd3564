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
from typing import ClassVar, NamedTuple

from gpunode.config.daemon import Settings
from gpunode.host.mounts import (
    MORE_MOUNTS,
    TUNNEL,
    Mount,
    ParsedMounts,
    read_as_node,
    visible,
    volume,
)
from gpunode.metric import Metric, Sample
from gpunode.node.node import Filesystem, Node
from gpunode.node.patience import Patience
from gpunode.source import WHOLE_NODE, Place, Reading, Source, bounded
from gpunode.unread import Unknown, Unread, shape

MOUNT = ("mountpoint", "fstype")
SIZE = Metric(
    "gpunode_filesystem_size_bytes",
    "gauge",
    "Size of the filesystem (statvfs). For a volume of pods, `mountpoint` is the "
    "PersistentVolume, or the server and folder.",
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

FUSES = (
    "juicefs|ceph(-fuse)?|glusterfs|s3fs|goofys|geesefs|tigrisfs|mount-s3|gcsfuse|blobfuse2?|dfuse"
    "|daos|hf3fs|rclone|sshfs|alluxio.*|goosefs.*|jindofs.*|aliyun-alinas-.*|cubefs|curvefs|curvinefs"
    "|seaweedfs|quobyte|mfs|saunafs|ossfs2?|cosfs|obsfs|tosfs|bosfs|fuse_dfs|s3ql|objectivefs"
    "|gfarm2fs|beegfs|orangefs|nfs|smbnetfs|cifs"
)
"""Subtypes of FUSE for filesystems of the network; https://cubefs.io/docs, for example, shows
``fuse.cubefs``, https://github.com/fluid-cloudnative/fluid those of JindoFS, GooseFS and CPFS."""

KINDS = re.compile(
    LOCAL + r"|nfs4?|lustre|gpfs|beegfs(_nodev)?|ceph|cifs|smb3|smbfs|wekafs|"
    r"glusterfs|panfs|pvfs2|orangefs|daos|virtiofs|9p|afs|coda|ocfs2|gfs2|cvfs|yrfs\w*|dpc|cpfs|"
    # Alibaba's kernel module has a FUSE of its own
    rf"(ali)?fuse\.({FUSES})"
)
"""Filesystem types that hold the data of jobs."""

PLAIN_FUSE = "fuse"
"""The type of a FUSE that does not name its own, as of the CSI drivers for Amazon S3, Google Cloud
Storage and Azure Blob Storage."""

SOURCES = re.compile(
    r"mountpoint-s3|blobfuse2?|gcsfuse|dfuse|curvefs|curvinefs|ceph-fuse|(cubefs|chubaofs)-.*"
    r"|quobyte@.*|JuiceFS:.*",
    re.DOTALL,
)
"""What those say in place of a device, wherever they are mounted."""

PSEUDO = frozenset(
    (
        *("anon_inodefs", "apparmorfs", "autofs", "bdev", "binder", "binfmt_misc", "bpf", "cgroup"),
        *("cgroup2", "configfs", "cpuset", "cxl", "dax", "debugfs", "devfs", "devpts", "devtmpfs"),
        *("dlmfs", "dmabuf", "drm", "efivarfs", "functionfs", "fusectl", "hugetlbfs", "ipathfs"),
        *("mqueue", "nfsd", "none", "nsfs", "nullfs", "pidfs", "pipefs", "proc", "pstore", "ramfs"),
        *("resctrl", "rootfs", "rpc_pipefs", "secretmem", "securityfs", "selinuxfs", "smackfs"),
        *("sockfs", "spufs", "sysfs", "tmpfs", "tracefs", "usbfs", "xenfs"),
        # layers and images of containers, and folders of the machine below a virtual one
        *("aufs", "composefs", "ecryptfs", "erofs", "overlay", "overlayfs", "shiftfs", "squashfs"),
        *("unionfs", "jffs2", "ubifs", "vboxsf", "vmhgfs", "prl_fs"),
    )
)
"""Filesystem types without a disk or a server of their own.
https://github.com/util-linux/util-linux/blob/master/libmount/src/utils.c (mnt_fstype_is_pseudofs),
https://github.com/torvalds/linux (calls of register_filesystem)"""

ORDINARY_FUSES = re.compile(
    # the desktop, and folders of the machine below a virtual one
    r"gvfs.*|portal|kio-fuse|revokefs-fuse|avfsd|xwmfs|jmtpfs|simple-mtpfs|ifuse|vmhgfs.*|vmware.*"
    # what shows the node's own files otherwise: encrypted, joined, or out of an archive
    r"|lxcfs|archivemount|ratarmount|fuse-archive|fuse-zip|encfs|gocryptfs|cryfs|ecryptfs|bindfs"
    r"|unionfs.*|mergerfs|mhddfs|rofiles-fuse|dumpfs|ext[234]|fuse2fs|fuseext2|lklfuse|zfs-fuse|ltfs"
    # layers and images of containers and programs
    r"|(fuse-)?overlayfs|squashfuse.*|snapfuse|nydus.*|rawBridge|stargz.*|soci.*|dwarfs"
    r"|rafs|.*\.[Aa]pp[Ii]mage|appimage.*|erofsfuse"
    # software that is cached on the node, whose cache is meant to be full
    r"|cvmfs.*"
)
"""What FUSE also serves, which is none of the network, or holds no data of jobs: names of programs,
which are the subtype or stand in place of a device."""

UNWATCHED = (
    *("/var/lib/kubelet/", "/var/lib/containerd/", "/var/lib/docker/", "/run/", "/boot"),
    *("/etc/", "/dev/", "/var/lib/juicefs/"),
)
"""Mount points to skip: what containers consist of, single files that a container runtime mounts,
such as /etc/hosts, /boot, and where JuiceFS mounts the volumes of pods, each time by another name:
https://github.com/juicedata/juicefs-csi-driver. Volumes of pods have names."""

MAX_FILESYSTEMS = 32
"""The most filesystems to watch, each in its own thread: first those that root has mounted."""

MAX_USER_FILESYSTEMS = 8
"""The most of them that are mounted by others, which may be made to hang or to come and go."""

UNKNOWN_TYPE = Unknown(
    "filesystem_type",
    "a filesystem without a disk has a type that gpunode does not know, and is not watched; it may "
    "be one of the network",
)


class FilesystemSpace:
    """Reads one filesystem; if its server is gone, only this source hangs."""

    name = "filesystem"
    needs = (
        "the node's root at path.rootfs, mounted with HostToContainer propagation; "
        "DAC_READ_SEARCH for volumes that are mounted only for pods"
    )
    metrics = (SIZE, AVAILABLE, FILES, FILES_FREE, READ_ONLY)

    def __init__(
        self,
        node: Node,
        mount: Mount,
        settings: Settings,
        called: str,
        table: ParsedMounts,
        seen: ParsedMounts,
        patience: Patience,
    ) -> None:
        self.node = node
        self.mount = mount
        self.table, self.seen = table, seen
        """The mounts of the node, and those of them that this process sees."""

        self.patience = patience
        self.every = settings.host.slow_interval
        self.called = called
        """What users call it: its mount point, or the name of a volume."""

    def read(self) -> Reading:
        """Its space and state now; nothing if another is mounted there by now, or none."""
        mount = visible(self.table.mounts(), self.mount.point)
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
            own = self.seen.mounts()
        except OSError:  # not on this tape
            return
        if mount.device not in {each.device for each in own}:
            why = "not seen here: mount the node's root with HostToContainer propagation"
            raise OSError(errno.ENXIO, why, mount.point)

    def _space(self, mount: Mount) -> Filesystem:
        """Its space; what a user has mounted may not answer for ever. Raises ``OSError``."""
        if mount.of_root:
            return self.node.filesystem(mount.point)
        return self.patience.ask(
            f"user {mount.user}", mount.point, lambda: self.node.filesystem(mount.point)
        )

    def _samples(self, mount: Mount) -> Iterator[Sample]:
        at = self.called, mount.kind
        with contextlib.suppress(FileNotFoundError):  # in the mount table, but not in our container
            space = self._space(mount)
            self._check_is_seen(mount)
            yield from SIZE.at(space.size, *at)
            yield from AVAILABLE.at(space.available, *at)
            if space.files:
                yield from FILES.at(space.files, *at)
                yield from FILES_FREE.at(space.files_free, *at)
        if self.called == mount.point:  # a pod may choose to mount its volume read-only
            yield from READ_ONLY.at(float("ro" in mount.options), *at)


class UnwatchedFilesystems:
    """Reports mounted filesystems that may hold data of jobs but are not watched."""

    name = FilesystemSpace.name
    needs = FilesystemSpace.needs
    metrics: ClassVar[tuple[Metric, ...]] = ()
    unknowns = (UNKNOWN_TYPE, MORE_MOUNTS)

    def __init__(self, settings: Settings) -> None:
        self.every = settings.host.slow_interval
        self.found: tuple[Unread, ...] = ()
        """What the finder met last."""

        self.error: OSError | None = None
        """Why it could not look."""

    def read(self) -> Reading:
        if self.error is not None:
            raise self.error
        return Reading((), unread=self.found)


class Filesystems:
    """Finds one source per mounted filesystem and keeps it for as long as the mount exists."""

    metrics = FilesystemSpace.metrics

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.settings = settings
        self._sources: dict[tuple[str, Mount], FilesystemSpace] = {}
        self._unwatched = UnwatchedFilesystems(settings)
        self._table = ParsedMounts(lambda: read_as_node(node, "mountinfo"))
        self._seen = ParsedMounts(lambda: node.read_text("/proc/self/mountinfo"))
        self._patience = Patience()

    def find(self) -> Iterable[tuple[Place, Source]]:
        self._unwatched.error = None
        try:
            mounts = self._table.mounts()
        except (FileNotFoundError, PermissionError):
            return ()
        except OSError as error:  # as of a table that is too long: what is known is still there
            self._unwatched.error = error
        else:
            self._choose(mounts)
        of_each = ((Place(mountpoint=name), each) for (name, _), each in self._sources.items())
        return ((WHOLE_NODE, self._unwatched), *of_each)

    def _choose(self, mounts: list[Mount]) -> None:
        """Choose the filesystems to watch."""
        all_of_them = select_mounts(self.node, mounts).items()
        of_root = [one for one in all_of_them if one[1].of_root]
        of_users, left = bounded(
            (one for one in all_of_them if not one[1].of_root),
            MORE_MOUNTS,
            MAX_USER_FILESYSTEMS,
            "filesystems of users",
            whose=lambda one: (one[1].user,),
        )
        found, left_out = bounded(
            (*of_root, *of_users), MORE_MOUNTS, MAX_FILESYSTEMS, "filesystems"
        )
        self._unwatched.found = (*left, *left_out, *unknown_types(self.node, mounts))
        known, self._sources = self._sources, {}
        for name, mount in found:
            which = name, replace(mount, options=frozenset())
            self._sources[which] = known.get(which) or FilesystemSpace(
                self.node, mount, self.settings, name, self._table, self._seen, self._patience
            )


def select_mounts(node: Node, mounts: Iterable[Mount]) -> dict[str, Mount]:
    """The mounts that hold the data of jobs: of each filesystem one, and what it is called.

    That is the one with the shortest path; if it is mounted only as volumes of pods, the first by
    name, which stays the same whichever pods there are.
    """
    named: dict[tuple[str, str], NamedMount] = {}
    # A later mount hides an earlier one at the same mount point.
    for mount in {mount.point: mount for mount in mounts}.values():
        name = volume_of_pods(node, mount)
        of_pods = name is not None
        if not holds_data(mount, of_pods):
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
    return found


def volume_of_pods(node: Node, mount: Mount) -> str | None:
    """What users call the volume of pods that is mounted; None if it is none.

    A user mounts none for pods, but may call a folder as the kubelet does: then what is in it would
    be waited for, and the true volume lose its name.
    """
    return volume(node, mount.point, mount.source) if mount.of_root else None


def holds_data(mount: Mount, of_pods: bool = False) -> bool:
    """Whether a mount has a type that holds the data of jobs; ``of_pods``: it is their volume."""
    if mount.kind == PLAIN_FUSE:
        return of_pods or SOURCES.fullmatch(mount.source) is not None
    return KINDS.fullmatch(mount.kind) is not None


def may_hold_data(mount: Mount) -> bool:
    """Whether a mount has no disk and a type that is neither known nor ordinary."""
    on_disk = not mount.device.startswith("0:") or mount.source.startswith("/dev/")
    if on_disk or mount.kind in PSEUDO:
        return False
    system, _, program = mount.kind.partition(".")
    if system not in ("fuse", "fuseblk"):
        return True
    # A file or folder of the node in place of a device is what the program shows otherwise.
    return not ORDINARY_FUSES.fullmatch(program or mount.source) and mount.source[:1] != "/"


def unknown_types(node: Node, mounts: Iterable[Mount]) -> tuple[Unread, ...]:
    """The filesystems, each once, that may be of the network and have a type that is not known."""
    found: dict[tuple[str, str], Unread] = {}
    for mount in mounts:
        if holds_data(mount) or not may_hold_data(mount):
            continue
        of_pods = volume_of_pods(node, mount) is not None
        if holds_data(mount, of_pods):
            continue
        if of_pods or not mount.point.startswith(UNWATCHED):
            # Whoever mounts a FUSE chooses the second part of its type.
            system, _, program = mount.kind.partition(".")
            kind = f"{system}.{shape(program)}" if program and not mount.of_root else mount.kind
            found[mount.identity] = UNKNOWN_TYPE.seen(f"type {kind}, of {shape(mount.source)}")
    return tuple(found.values())


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
