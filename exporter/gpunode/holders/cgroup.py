"""Whose a process is, from the path of its cgroup.

https://docs.kernel.org/admin-guide/cgroup-v2.html; version 1 is supported too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product

# A user may give the cgroups below his own any name: systemd gives every user some, and so do many
# container runtimes. What counts is therefore a whole path from the root, where only root can make
# cgroups, and nothing further down.
ID = r"(?P<container>[0-9a-f]{64})"
UID = r"(?P<pod>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
KUBEPODS = r"(?:kubelet-)?kubepods"
CLASS = r"(?:burstable|besteffort)"
SLUID = r"s[0-9A-F][0-9A-HJKMNP-TV-Z]{12}"
"""The name that Slurm gives each run of a job, whose folder has it from 26.05 on:
https://github.com/SchedMD/slurm/blob/master/src/common/sluid.h"""

# Below system.slice, or another that CgroupSlice names: only root's systemd makes slices, but for
# those below user.slice. With the name of the node where one machine serves as several.
# https://slurm.schedmd.com/cgroup_v2.html#slurm_hierarchy
SLURM = (
    r"(?:/(?!user\.slice)[\w.-]{1,64}\.slice){1,4}/(?:[\w.-]{1,64}_)?slurmstepd\.scope"
    rf"/(?:job_(?P<job>\d{{1,10}})|(?P<sluid>{SLUID}))(?:/step_(?P<step>[\w+.-]{{1,32}}))?"
)
PATHS = tuple(
    re.compile(path + r"(?:/|$)", re.ASCII)
    for path in (
        # /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/crio-ID.scope, or
        # /kubepods/burstable/podUID/ID:
        # https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/cm/cgroup_manager_linux.go
        # In kind they are below /kubelet, which is below the container that serves as node:
        # https://github.com/kubernetes-sigs/kind/blob/main/pkg/cluster/internal/kubeadm/config.go
        r"(?:/docker/[0-9a-f]{64}|/system\.slice/docker-[0-9a-f]{64}\.scope)?(?:/kubelet(?:\.slice)?)?"
        rf"/{KUBEPODS}(?:\.slice)?(?:/(?:{KUBEPODS}-)?{CLASS}(?:\.slice)?)?"
        rf"/(?:{KUBEPODS}-(?:{CLASS}-)?)?pod{UID}(?:\.slice)?(?:/(?:[a-z-]{{1,32}}-)?{ID}(?:\.scope)?)?",
        # where the kubelet uses systemd and containerd does not:
        # https://github.com/containerd/containerd/blob/main/docs/cri/config.md#cgroup-driver
        r"(?:/system\.slice/containerd\.service)?"
        rf"/kubepods-(?:{CLASS}-)?pod{UID}\.slice:cri-containerd:{ID}",
        SLURM,
        # in version 1: https://slurm.schedmd.com/cgroups.html
        r"/slurm(?:_[\w.-]{1,64})?/uid_\d{1,10}/job_(?P<job>\d{1,10})(?:/step_(?P<step>[\w+.-]{1,32}))?",
        # https://docs.docker.com/engine/containers/runmetrics/, and Podman's containers of root
        rf"(?:/docker/|/system\.slice/(?:docker|nerdctl)-|/(?:machine\.slice|libpod_parent)/libpod-)"
        rf"{ID}(?:\.scope)?",
    )
)
IN_A_POD = re.compile(rf"(?:/container)?{SLURM}(?:/|$)", re.ASCII)
"""Below the cgroup of a pod in which slurmd runs. A pod's cgroups are its own to name, so there the
job is the pod's word, and stands beside its name: https://github.com/SlinkyProject/slurm-operator.
"""
ABOVE = re.compile(r"(?:/\.\.)+(?=/)")
ANCESTORS = (
    "",
    "/system.slice",
    "/system.slice/containerd.service",
    "/machine.slice",
    "/docker",
    "/kubepods",
    "/kubepods.slice",
    "/kubelet",
    "/kubelet.slice",
    "/kubelet.slice/kubelet-kubepods.slice",
)
"""What ``/../..`` may stand for. A daemon in a cgroup namespace sees that in place of the cgroups
which its own path and another process's have in common, and which only a runtime can have made:
https://man7.org/linux/man-pages/man7/cgroup_namespaces.7.html"""


@dataclass(frozen=True, slots=True)
class CgroupOwner:
    """The owner of a cgroup, from its path; unknown fields are empty.

    ``slurm_job`` is the number of the job or, if its folder has that name, its SLUID.
    """

    pod_uid: str = ""
    container_id: str = ""
    slurm_job: str = ""
    slurm_step: str = ""


def whose(text: str) -> CgroupOwner:
    """The owner of a process, from its /proc/PID/cgroup."""
    _, found = _understood(text)
    return CgroupOwner(
        (found.get("pod") or "").replace("_", "-"),
        found.get("container") or "",
        found.get("job") or found.get("sluid") or "",
        found.get("step") or "",
    )


def sluid_folder(text: str) -> tuple[str, str]:
    """The cgroup of the Slurm job of a process and the rest of its path, if a SLUID names it.

    Otherwise both are empty.
    """
    path, found = _understood(text)
    if not found.get("sluid"):
        return "", ""
    above, scope, below = path.partition(f"slurmstepd.scope/{found['sluid']}")
    return above + scope, below


def _understood(text: str) -> tuple[str, dict[str, str | None]]:
    """The path in a /proc/PID/cgroup that a runtime made, and what its parts say."""
    for line in text.split("\n"):
        path = line.partition(":")[2].partition(":")[2]
        above = ABOVE.match(path)
        candidates = [a + path[above.end() :] for a in ANCESTORS] if above else [path]
        for form, candidate in product(PATHS, candidates):
            if match := form.match(candidate):
                found = match.groupdict()
                inside = found.get("pod") and IN_A_POD.match("/" + candidate[match.end() :])
                return candidate, {**found, **inside.groupdict()} if inside else found
    return "", {}
