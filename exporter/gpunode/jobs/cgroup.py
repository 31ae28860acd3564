"""The cgroup of a process: its limits, use and pressure.

https://docs.kernel.org/admin-guide/cgroup-v2.html; version 1 is supported too.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from gpunode.host import pressure
from gpunode.node.cgroup import ANCESTORS, PARENT_FOLDERS, ROOT
from gpunode.node.kernel import counter
from gpunode.node.node import Node

EVENTS = ("high", "max", "oom_kill")
UNLIMITED = float(1 << 62)
"""Memory limits of cgroup v1 from this value on mean no limit."""

CLASSES = ("/kubepods/burstable", "/kubepods/besteffort")
"""What ``/../..`` may also stand for: the class that the pods of both have in common."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Paths:
    """The folders of a process's cgroup, by controller; in version 2 they are the same."""

    cpu: str
    memory: str
    version: int


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The values of a cgroup; missing ones are None or left out. Times are in seconds."""

    pressure: dict[tuple[str, str], float] = field(default_factory=dict)
    quota_periods: float | None = None
    throttled_periods: float | None = None
    throttled_seconds: float | None = None
    memory_limit: float | None = None
    memory_used: float | None = None
    anonymous: float | None = None
    shmem: float | None = None
    events: dict[str, float] = field(default_factory=dict)


def locate(text: str, node: Node) -> Paths | None:
    """The folders of a cgroup, from /proc/PID/cgroup; None if they are not visible."""
    places: dict[str, str] = {}
    for line in text.split("\n"):  # a name may hold what else ends a line for splitlines()
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not path.startswith("/"):
            continue
        if hierarchy == "0" and not controllers and (found := _from_the_root(path, node)):
            places["unified"] = found
        if "/.." in path:
            continue
        for controller in controllers.split(","):
            places[controller] = f"/{controllers}{path}"
    if "cpu" in places and "memory" in places:
        return Paths(ROOT + places["cpu"], ROOT + places["memory"], 1)
    if "unified" in places:
        path = (ROOT + places["unified"]).rstrip("/")
        return Paths(path, path, 2)
    return None


def _from_the_root(path: str, node: Node) -> str | None:
    """A path of version 2 as the node has it, whatever the cgroup namespace of this process."""
    above = PARENT_FOLDERS.match(path)
    if above is None:
        return path
    below = path[above.end() :]
    for ancestor in () if "/.." in below else (_slices_above(below), *ANCESTORS, *CLASSES):
        with contextlib.suppress(OSError):
            node.list_directory(f"{ROOT}{ancestor}{below}")
            return f"{ancestor}{below}"
    return None


def _slices_above(path: str) -> str:
    """The slices that a slice is in, as its name says: ``/a.slice/a-b.slice`` of ``/a-b-c.slice``.

    Empty for any other path.
    https://www.freedesktop.org/software/systemd/man/latest/systemd.slice.html
    """
    name, slice_, _ = path.removeprefix("/").partition(".slice")
    words = name.split("-")[:16] if slice_ and "/" not in name else []
    return "".join(f"/{'-'.join(words[:n])}.slice" for n in range(1, len(words)))


def read_cgroup(node: Node, paths: Paths) -> Cgroup:
    """Read the files of a cgroup, skipping those that are missing or malformed."""

    def ask(path: str, parse: Callable[[str], T]) -> T | None:
        try:
            return parse(node.read_text(path))
        except (OSError, ValueError):
            return None

    stat = ask(f"{paths.cpu}/cpu.stat", parse_pairs) or {}
    has_quota = bool(stat.get("nr_periods"))
    group, limit = lowest_limit(node, paths)
    memory = ask(f"{group}/memory.stat", parse_pairs) or {}
    if paths.version == 1:
        throttled = stat.get("throttled_time", 0.0) / 1e9
        used = ask(f"{group}/memory.usage_in_bytes", counter)
        # With those of the groups below: https://docs.kernel.org/admin-guide/cgroup-v1/memory.html
        anonymous, shmem = (
            memory.get(f"total_{name}", memory.get(name)) for name in ("rss", "shmem")
        )
        events = ask(f"{paths.memory}/memory.oom_control", parse_pairs) or {}
    else:
        throttled = stat.get("throttled_usec", 0.0) / 1e6
        used = ask(f"{group}/memory.current", counter)
        anonymous, shmem = memory.get("anon"), memory.get("shmem")
        events = ask(f"{group}/memory.events", parse_pairs) or {}
    return Cgroup(
        pressure={
            (resource, share): seconds
            for resource in pressure.RESOURCES
            for share, seconds in (
                ask(f"{paths.cpu}/{resource}.pressure", pressure.parse) or {}
            ).items()
        },
        quota_periods=stat.get("nr_periods") if has_quota else None,
        throttled_periods=stat.get("nr_throttled") if has_quota else None,
        throttled_seconds=throttled if has_quota else None,
        memory_limit=limit,
        memory_used=used,
        anonymous=anonymous,
        shmem=shmem,
        events={event: events[event] for event in EVENTS if event in events},
    )


LIMITS = {1: "memory.limit_in_bytes", 2: "memory.max"}
"""The file with the limit of a cgroup, by version."""

SHARED_GROUP = re.compile(
    r"(?:.*/)?(?:(?:[^/]+-)?kubepods(?:-burstable|-besteffort)?(?:\.slice)?|kubelet(?:\.slice)?"
    r"|burstable|besteffort|(?:[^/]+_)?slurmstepd\.scope|slurm(?:_[^/]+)?|uid_\d+)"
    r"|(?:system|user|machine)\.slice|docker|"
)
"""Groups that hold those of many jobs: of the kubelet and of Slurm, wherever they are; of systemd
and Docker at the top, as a container may have its own; and the root."""


def lowest_limit(node: Node, paths: Paths) -> tuple[str, float | None]:
    """The group that has the lowest limit on memory, and that: of a pod or a job, all share it.

    It is that of the process or above it, within the job. Without a limit, it is the process's own.
    """
    path = group = paths.memory
    lowest: float | None = None
    while not SHARED_GROUP.fullmatch(_below_the_root(path, paths.version)):
        try:
            limit = parse_limit(node.read_text(f"{path}/{LIMITS[paths.version]}"))
        except (OSError, ValueError):
            limit = None
        if limit is not None and (lowest is None or limit <= lowest):
            group, lowest = path, limit
        path = path.rpartition("/")[0]
    return group, lowest


def _below_the_root(path: str, version: int) -> str:
    """The path of a group within its hierarchy."""
    below = path.removeprefix(ROOT).lstrip("/")
    return below.partition("/")[2] if version == 1 else below


def parse_pairs(text: str) -> dict[str, float]:
    """Parse lines such as ``nr_periods 12``. Raises ``ValueError``."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        found[name] = counter(value)
    return found


def parse_limit(text: str) -> float | None:
    """Parse a memory limit: bytes, or None for no limit. Raises ``ValueError``."""
    if text.strip() == "max":
        return None
    limit = counter(text)
    return limit if limit < UNLIMITED else None
