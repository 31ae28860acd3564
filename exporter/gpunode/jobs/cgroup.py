"""The cgroup of a process: its limits, use, pressure and owner.

https://docs.kernel.org/admin-guide/cgroup-v2.html; version 1 is supported too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from gpunode.host import pressure
from gpunode.host.counter import counter
from gpunode.node.node import Node

ROOT = "/sys/fs/cgroup"
EVENTS = ("high", "max", "oom_kill")
UNLIMITED = float(1 << 62)
"""Memory limits of cgroup v1 from this value on mean no limit."""

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
    shmem: float | None = None
    events: dict[str, float] = field(default_factory=dict)


def locate(text: str) -> Paths | None:
    """The folders of a cgroup, from /proc/PID/cgroup; None if they are not visible."""
    places: dict[str, str] = {}
    for line in text.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        # A path outside this process's cgroup namespace begins with /../
        if not path.startswith("/") or "/.." in path:
            continue
        if hierarchy == "0" and not controllers:
            places["unified"] = path
        for controller in controllers.split(","):
            places[controller] = f"/{controllers}{path}"
    if "cpu" in places and "memory" in places:
        return Paths(ROOT + places["cpu"], ROOT + places["memory"], 1)
    if "unified" in places:
        path = (ROOT + places["unified"]).rstrip("/")
        return Paths(path, path, 2)
    return None


def read(node: Node, paths: Paths) -> Cgroup:
    """Read the files of a cgroup, skipping those that are missing or malformed."""

    def ask(path: str, parse: Callable[[str], T]) -> T | None:
        try:
            return parse(node.read_text(path))
        except (OSError, ValueError):
            return None

    stat = ask(f"{paths.cpu}/cpu.stat", parse_pairs) or {}
    has_quota = bool(stat.get("nr_periods"))
    memory = ask(f"{paths.memory}/memory.stat", parse_pairs) or {}
    if paths.version == 1:
        throttled = stat.get("throttled_time", 0.0) / 1e9
        limit = ask(f"{paths.memory}/memory.limit_in_bytes", parse_limit)
        used = ask(f"{paths.memory}/memory.usage_in_bytes", counter)
        events = ask(f"{paths.memory}/memory.oom_control", parse_pairs) or {}
    else:
        throttled = stat.get("throttled_usec", 0.0) / 1e6
        limit = smallest_limit(node, paths.memory)
        used = ask(f"{paths.memory}/memory.current", counter)
        events = ask(f"{paths.memory}/memory.events", parse_pairs) or {}
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
        shmem=memory.get("shmem"),
        events={event: events[event] for event in EVENTS if event in events},
    )


def smallest_limit(node: Node, path: str) -> float | None:
    """The lowest limit of a cgroup and its ancestors: a pod's limit is on the parent."""
    limits = []
    while path.startswith(ROOT + "/"):
        try:
            limits.append(parse_limit(node.read_text(f"{path}/memory.max")))
        except (OSError, ValueError):
            limits.append(None)
        path = path.rpartition("/")[0]
    return min((limit for limit in limits if limit is not None), default=None)


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


POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?=[./]|$)")
CONTAINER = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")
# https://slurm.schedmd.com/cgroup_v2.html#slurm_hierarchy; version 1 has /slurm/uid_U/job_J/step_S
SLURM = re.compile(r"/slurm.*/job_(?P<job>\d+)(?:/step_(?P<step>[^/\n]+))?")


@dataclass(frozen=True, slots=True)
class Place:
    """The owner of a cgroup, from its path; unknown fields are empty."""

    pod_uid: str = ""
    container_id: str = ""
    slurm_job: str = ""
    slurm_step: str = ""


def whose(text: str) -> Place:
    """The owner of a process, from its /proc/PID/cgroup."""
    pod, container, slurm = POD.search(text), CONTAINER.search(text), SLURM.search(text)
    return Place(
        pod[1].replace("_", "-") if pod else "",
        container[1] if container else "",
        slurm["job"] if slurm else "",
        (slurm["step"] or "") if slurm else "",
    )
