"""Whose a process is, from the path of its cgroup.

https://docs.kernel.org/admin-guide/cgroup-v2.html; version 1 is supported too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from gpunode.unread import shape

ROOT = "/sys/fs/cgroup"

# A user may give the cgroups below his own any name: systemd gives every user some, and so do many
# container runtimes. What counts is therefore a whole path from the root, where only root can make
# cgroups, and nothing further down.
HEX = r"[0-9a-f]{64}"
ID = rf"(?P<container>{HEX})"
UUID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
UID = rf"pod(?P<pod>{UUID})"
TASK = rf"(?P<task>{UUID})"
NAME = r"(?P<name>(?:[\w.-]|\\x2d){1,64}?)"
CLASS = r"(?:burstable|besteffort)"
RUNTIME = r"(?:[a-z][a-z-]{0,31}-)?"
"""What stands before the id of a container: ``docker-``, ``cri-containerd-``."""

SLICES = r"(?:/[^/]{1,128}\.slice){0,8}"
"""Slices from the root on. systemd leaves none to a user: Delegate= is for services and scopes.
https://www.freedesktop.org/software/systemd/man/latest/systemd.resource-control.html"""

PODS = rf"(?:[^/:]{{1,128}}-)?kubepods-(?:{CLASS}-)?{UID}"
"""With --cgroup-root=/gpu.slice it begins with ``gpu-``, because a slice's name has those above it.
https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/cm/cgroup_manager_linux.go"""

KIND = rf"(?:/docker/{HEX}|/system\.slice/docker-{HEX}\.scope)?"
"""The container that serves as a node of Kubernetes, as in kind, k3d and minikube."""

SERVICES = (
    r"(?:containerd|crio|docker|kubelet|k3s|k3s-agent|rke2-server|rke2-agent|k0scontroller|k0sworker"
    r"|snap\.(?:microk8s|k8s)\.[a-z-]{0,32}containerd)\.service"
)
"""Services of root that make the cgroups of containers below their own."""

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
        # /kubepods/burstable/podUID/ID. In kind they are below /kubelet:
        # https://github.com/kubernetes-sigs/kind/blob/main/pkg/cluster/internal/kubeadm/config.go
        rf"{KIND}(?:/kubelet)?{SLICES}/{PODS}\.slice(?:/{RUNTIME}{ID}(?:\.scope)?)?",
        rf"{KIND}(?:/kubelet)?/kubepods(?:/{CLASS})?/{UID}(?:/{RUNTIME}{ID})?",
        # where the kubelet uses systemd and containerd does not:
        # https://github.com/containerd/containerd/blob/main/docs/cri/config.md#cgroup-driver
        rf"(?:{SLICES}/{SERVICES})?/{PODS}(?:\.slice)?:[a-z-]{{1,32}}:{ID}",
        SLURM,
        # in version 1: https://slurm.schedmd.com/cgroups.html
        r"/slurm(?:_[\w.-]{1,64})?/uid_\d{1,10}/job_(?P<job>\d{1,10})(?:/step_(?P<step>[\w+.-]{1,32}))?",
        # Amazon ECS, and so AWS Batch; without systemd also with the name of the cluster:
        # https://github.com/aws/amazon-ecs-agent/blob/master/agent/api/task/task_linux.go
        rf"/(?:ecstasks\.slice/ecstasks|ECSTasks\.slice/ECSTasks)-{TASK}\.slice/docker-{ID}\.scope",
        rf"/ecs(?:/[\w-]{{1,255}})?/{TASK}/(?P<container>{HEX}|[0-9a-f]{{32}}-\d{{1,20}})",
        # https://github.com/hashicorp/nomad/tree/main/client/lib/cgroupslib
        rf"/nomad(?:\.slice)?(?:/(?:share|reserve)(?:\.slice)?)?/{TASK}\.{NAME}(?:\.scope)?",
        # https://docs.docker.com/engine/containers/runmetrics/, any slice of --cgroup-parent,
        # containerd's without Kubernetes, and Podman's of root, in a pod of Podman's or not
        rf"(?:(?:/init\.scope)?{SLICES}|/docker|/libpod_parent(?:/{HEX})?|/(?:k8s\.io|moby|buildkit)"
        rf"|{SLICES}/{SERVICES}(?:/[\w.-]{{1,64}})?)/{RUNTIME}{ID}(?:\.scope)?",
        rf"(?:{SLICES}/{SERVICES})?/[^/:]{{1,128}}\.slice:[a-z-]{{1,32}}:{ID}",
        # https://linuxcontainers.org/lxc/manpages/man5/lxc.container.conf.5.html (lxc.cgroup.dir),
        # in Proxmox /lxc/101
        rf"/lxc(?:/|\.(?:payload|monitor)[./]){NAME}",
        # https://www.freedesktop.org/software/systemd/man/latest/systemd-nspawn.html
        rf"/machine\.slice/systemd-nspawn@{NAME}\.service",
        rf"/machine\.slice/machine-{NAME}\.scope",
    )
)
SLURMD_POD = re.compile(rf"(?:/container)?{SLURM}(?:/|$)", re.ASCII)
"""Below the cgroup of a pod in which slurmd runs. A pod's cgroups are its own to name, so there the
job is the pod's word, and stands beside its name: https://github.com/SlinkyProject/slurm-operator.
"""
PARENT_FOLDERS = re.compile(r"(?:/\.\.)+(?=/)")
ANCESTORS = (
    "",
    "/system.slice",
    "/system.slice/containerd.service",
    "/machine.slice",
    "/ecstasks.slice",
    "/ecs",
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

USER_SLICE = re.compile(r"(?:/\.\.)*(?:/user\.slice)?/user-\d{1,10}\.slice/(?:user@|session-)")
SESSION = re.compile(r"(?:/\.\.)*/user\.slice/user-(?P<user>\d{1,10})\.slice(?:/|$)")
"""The cgroup that root's systemd makes for a user, and which the user's processes cannot leave."""

POD_ID = re.compile(rf"[/-]pod(?:{UUID})(?![0-9a-f])")
CONTAINER_ID = re.compile(
    rf"{POD_ID.pattern}|(?<![0-9a-z]){HEX}(?![0-9a-f])|/(?:{UUID})(?![0-9a-f])"
    r"|/(?:docker|libpod|crio|cri-containerd|nerdctl|runc|crun|podman)-[^/]{1,128}\.scope(?:/|$)"
    r"|/(?:lxc\.|lxc/|ecs/|nomad/|garden/|container_)[^/]*\d"
)
"""An id, or the word of a runtime."""

WORDS = frozenset(
    (
        *("slice", "scope", "service", "system", "user", "machine", "kubelet", "kubepods", "pod"),
        *("burstable", "besteffort", "docker", "containerd", "cri", "crio", "libpod", "payload"),
        *("nerdctl", "runc", "crun", "podman", "lxc", "ecs", "ecstasks", "nomad", "container"),
    )
)
"""What may be shown of a path."""


@dataclass(frozen=True, slots=True)
class CgroupOwner:
    """The owner of a cgroup, from its path; unknown fields are empty.

    ``slurm_job`` is the number of the job or, if its folder has that name, its SLUID.
    """

    pod_uid: str = ""
    container_id: str = ""
    """The name of a container whose runtime gives it no id."""

    slurm_job: str = ""
    slurm_step: str = ""
    task: str = ""
    """A task of ECS or an allocation of Nomad: what a pod is in Kubernetes."""


def cgroup_owner(text: str) -> CgroupOwner:
    """The owner of a process, from its /proc/PID/cgroup."""
    _, found = _parse_cgroup(text)
    return CgroupOwner(
        (found.get("pod") or "").replace("_", "-"),
        found.get("container") or (found.get("name") or "").replace(r"\x2d", "-"),
        found.get("job") or found.get("sluid") or "",
        found.get("step") or "",
        found.get("task") or "",
    )


def budget(text: str, user: str) -> str:
    """To whom what a process takes of the daemon's patience counts, from its /proc/PID/cgroup.

    That is its pod, Slurm job or container, or else its user: never a cgroup, of which whoever has
    one may make any number. Who may have many users, as in a rootless container, is the one in
    whose session he runs.
    """
    owner = cgroup_owner(text)
    named = owner.pod_uid or owner.task or owner.slurm_job or owner.container_id
    if named:
        return named
    session = next((found for path in _paths(text) if (found := SESSION.match(path))), None)
    return f"user {session['user'] if session else user}"


def sluid_folder(text: str) -> tuple[str, str]:
    """The cgroup of the Slurm job of a process and the rest of its path, if a SLUID names it.

    Otherwise both are empty.
    """
    path, found = _parse_cgroup(text)
    if not found.get("sluid"):
        return "", ""
    above, scope, below = path.partition(f"slurmstepd.scope/{found['sluid']}")
    return above + scope, below


def strange_container(text: str) -> str:
    """The shape of a path in a /proc/PID/cgroup that looks like a container's and names none.

    Empty if there is none. What is in a session of a user is that user's, and what is below a
    container that container's, unless it looks like a pod.
    """
    owner = cgroup_owner(text)
    if owner.pod_uid:
        return ""
    strange = CONTAINER_ID if owner == CgroupOwner() else POD_ID
    found = (path for path in _paths(text) if strange.search(path) and not USER_SLICE.match(path))
    return next((shape(path, WORDS) for path in found), "")


def _paths(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        path = line.partition(":")[2].partition(":")[2]
        if path.startswith("/"):
            yield path


def _parse_cgroup(text: str) -> tuple[str, dict[str, str | None]]:
    """The path in a /proc/PID/cgroup that a runtime made, and what its parts say."""
    for path in _paths(text):
        above = PARENT_FOLDERS.match(path)
        candidates = [a + path[above.end() :] for a in ANCESTORS] if above else [path]
        for form, candidate in product(PATHS, candidates):
            if match := form.match(candidate):
                found = match.groupdict()
                inside = found.get("pod") and SLURMD_POD.match("/" + candidate[match.end() :])
                return candidate, {**found, **inside.groupdict()} if inside else found
    return "", {}
