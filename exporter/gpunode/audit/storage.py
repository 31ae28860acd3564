"""Disks and filesystems."""

from __future__ import annotations

import re

from gpunode.audit.check import Check, Observation, Subject, each
from gpunode.host import filesystem, mounts
from gpunode.host.disk import WHOLE_DISK

READ_AHEAD = 128.0
"""Lowest read-ahead in KiB."""


def _queues(subject: Subject, setting: str, disks: re.Pattern[str]) -> dict[str, str]:
    """A queue setting of every disk whose name matches."""
    found = {}
    for name in subject.names("/sys/block"):
        if disks.fullmatch(name):
            found[name] = subject.text(f"/sys/block/{name}/queue/{setting}")
    return found


def _scheduler(subject: Subject) -> Observation:
    chosen = _queues(subject, "scheduler", re.compile(r"nvme\d+n\d+"))
    return each({name: None if "[none]" in text else text for name, text in chosen.items()})


def _read_ahead(subject: Subject) -> Observation:
    ahead = _queues(subject, "read_ahead_kb", WHOLE_DISK)
    return each({n: None if float(kib) >= READ_AHEAD else f"{kib} KiB" for n, kib in ahead.items()})


def _access_times(subject: Subject) -> Observation:
    table = mounts.parse(mounts.read_as_node(subject.node, "mountinfo"))
    return each(
        {
            name: None if mount.options & {"noatime", "relatime", "ro"} else "strictatime"
            for name, mount in filesystem.select_mounts(subject.node, table).items()
        }
    )


CHECKS = (
    Check(
        "io_scheduler",
        "none for NVMe disks",
        "An NVMe disk orders requests itself; a scheduler in front of it only costs CPU time.",
        "echo none > /sys/block/DISK/queue/scheduler",
        "https://docs.kernel.org/block/switching-sched.html",
        _scheduler,
    ),
    Check(
        "read_ahead",
        f"at least {READ_AHEAD:g} KiB",
        "Datasets are read sequentially; with little read-ahead, every batch waits for the disk.",
        "blockdev --setra 8192 /dev/DISK",
        "https://docs.kernel.org/admin-guide/abi-stable-files.html#abi-file-stable-sysfs-block",
        _read_ahead,
    ),
    Check(
        "access_times",
        "noatime or relatime",
        "Otherwise every read also writes the access time of the file.",
        "mount -o remount,noatime MOUNTPOINT, and in /etc/fstab",
        "https://man7.org/linux/man-pages/man8/mount.8.html",
        _access_times,
    ),
)
