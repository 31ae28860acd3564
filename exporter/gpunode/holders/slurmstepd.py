"""Which job a folder of Slurm's cgroups belongs to, by the word of its slurmstepd.

From 26.05 on, Slurm names the folder of a job after its SLUID, which does not hold the job's
number (``CgroupJobIdPaths=yes`` in cgroup.conf restores that). slurmstepd, which supervises a step,
says it in its title. A tenant may give a process any title, but cannot move it into the cgroup in
which slurmstepd is: only root writes there. What still runs as a user there, such as the script of
``srun --task-prolog``, is not believed, and where two titles differ, neither is.
https://slurm.schedmd.com/cgroup_v2.html#slurm_hierarchy
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from heapq import nsmallest

from gpunode.node.cgroup import ROOT, sluid_folder
from gpunode.node.kernel import parse_status
from gpunode.node.node import Node

TITLE = re.compile(
    r"slurmstepd: \[(?P<job>[1-9]\d{0,9})\.(?P<step>[a-z]+|\d+(?:\+\d+)?)(?: stepmgr)?\]", re.ASCII
)
"""https://github.com/SchedMD/slurm/blob/master/src/slurmd/slurmstepd/slurmstepd.c
(``_set_job_log_prefix``), src/common/log.c (``log_build_step_id_str``)."""

LEAF = re.compile(r"/step_[\w+.-]{1,32}/slurm", re.ASCII)
"""Where slurmstepd is below the folder of its job."""

ROOT_USER = "0"

MAX_STEPS = 16
MAX_PROCESSES = 64
"""Steps of a job to look at, of which one would do, and processes beside a slurmstepd."""

MAX_CANDIDATES = 4096
"""Processes to look at where no cgroup says which are Slurm's: a tenant can start 100,000."""

PIDS = 1 << 22
"""There is no higher PID: https://man7.org/linux/man-pages/man5/proc_sys_kernel.5.html"""


def parse_title(text: str) -> str:
    """The number of the job in a slurmstepd's command line. Raises ``ValueError``."""
    match = TITLE.fullmatch(text.rstrip("\0 "))
    if match is None:
        raise ValueError("not the title of a slurmstepd that has a job")
    return match["job"]


def parse_pids(text: str) -> list[int]:
    """The processes in a cgroup.procs, without those of other PID namespaces.

    Raises ``ValueError``.
    """
    pids = dict.fromkeys(int(line) for line in text.split())
    return [pid for pid in pids if pid > 0]


def pids_in(node: Node, folder: str) -> list[int]:
    """The processes in a cgroup; none if that cannot be read."""
    try:
        return parse_pids(node.read_text(f"{folder}/cgroup.procs"))
    except (OSError, ValueError):
        return []


def job_of(node: Node, folder: str, task: int = 0) -> str:
    """The number of the job to which a cgroup named after a SLUID belongs; empty if unknown.

    ``task`` is a process of the job.
    """
    candidates = _candidates(node, folder, task)
    numbers = {number for pid in candidates if (number := _title_job(node, pid, folder))}
    return numbers.pop() if len(numbers) == 1 else ""


def _candidates(node: Node, folder: str, task: int) -> Iterator[int]:
    """Processes that may be a slurmstepd of the job.

    Where the cgroups are not visible, those that started last before the task.
    """
    try:
        names = node.list_directory(ROOT + folder)
    except OSError:
        with contextlib.suppress(OSError):
            pids = [int(name) for name in node.list_directory("/proc") if name.isdecimal()]
            yield from nsmallest(MAX_CANDIDATES, pids, key=lambda pid: (task - pid) % PIDS)
        return
    for step in [name for name in names if name.startswith("step_")][:MAX_STEPS]:
        yield from pids_in(node, f"{ROOT}{folder}/{step}/slurm")[:MAX_PROCESSES]


def _title_job(node: Node, pid: int, folder: str) -> str:
    """The job of a slurmstepd in the folder; empty if the process is none or cannot be read."""
    try:
        where, below = sluid_folder(node.read_text(f"/proc/{pid}/cgroup"))
        if where != folder or not LEAF.fullmatch(below):
            return ""
        users = parse_status(node.read_text(f"/proc/{pid}/status")).get("Uid", [])
        if users[:1] != [ROOT_USER]:
            return ""
        return parse_title(node.read_text(f"/proc/{pid}/cmdline"))
    except (OSError, ValueError):
        return ""
