"""Which job the owner of a GPU is part of: the unit that alerts and boards are about.

A pod's name has in it what it is part of, its role and number, and what controllers append. Of
pods that a controller makes alike, such as a Deployment's or runners of CI, each is a job of its
own, a replica, unless its ranks say that they are some of more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from gpunode.holders.owner import Owner, Started
from gpunode.holders.pods import Pods

GENERATED = "[bcdfghjklmnpqrstvwxz2456789]"
"""https://github.com/kubernetes/apimachinery/blob/master/pkg/util/rand/rand.go"""

ROLE = "-(?:master|workers?[0-9]{0,4}|launcher|chief|ps|head|leader|node)"
GROUP = f"-(?:workers?|workergroup|[a-z]+-group)-worker-{GENERATED}{{5}}"
"""What KubeRay appends to the name of a cluster for its workers, with the names that charts and
samples give to a group.
https://docs.ray.io/en/latest/cluster/kubernetes/getting-started/raycluster-quick-start.html"""

REPLICA_NAME = re.compile(
    f"(?P<job>.+?)(?:{ROLE})?"
    f"-(?P<replica>(?:{GENERATED}{{8,10}}|[0-9]{{6,12}})(?:-{GENERATED}{{5}})?)",
    re.DOTALL | re.ASCII,
)
"""A pod of a Deployment, a trial of Katib, a run of a CronJob or a step of Argo: a number of six
digits counts nothing, but is a time or a hash."""

GROUP_NAME = re.compile(
    f"(?P<job>.+?)(?:{GROUP}|(?P<place>(?:{ROLE})?(?:-[0-9]{{1,4}})*)"
    f"(?:-(?P<replica>{GENERATED}{{5}}))?)",
    re.DOTALL | re.ASCII,
)
"""Any other pod. One with a role or a number is part of a group: Kubeflow's, Volcano's, JobSet's,
LeaderWorkerSet's, a StatefulSet's or an indexed Job's."""

MAX_PODS = 256
"""Pods whose ranks are remembered."""


class JobIdentity(NamedTuple):
    """A job, within its namespace; ``replica`` tells pods apart that have no work in common."""

    workload: str = ""
    replica: str = ""


def pod_job(pod: str, *, some_of_more: bool) -> JobIdentity:
    """The job of a pod; ``some_of_more`` if its ranks say that others are elsewhere."""
    found = REPLICA_NAME.fullmatch(pod) or GROUP_NAME.fullmatch(pod)
    if found is None:
        return JobIdentity(pod)
    grouped = some_of_more or found.groupdict().get("place")
    return JobIdentity(found["job"], "" if grouped else found["replica"] or "")


class JobNames:
    """The jobs of owners on one node, which remembers what the ranks in each pod said."""

    def __init__(self, node_name: Callable[[], str], pods: Pods) -> None:
        self.node_name = node_name
        self.pods = pods
        self._ranks: dict[tuple[str, str], tuple[int, frozenset[str]]] = {}
        """By pod, the number of ranks on all nodes and the GPUs of its own ranks."""

    def learn(self, uuid: str, processes: Iterable[Started]) -> None:
        """Remember what the ranks on a GPU say."""
        for process in processes:
            pod = process.owner.owner_namespace, process.owner.owner_pod
            if process.world_size and all(pod):
                size, gpus = self._ranks.pop(pod, (0, frozenset()))
                self._ranks[pod] = max(size, int(process.world_size)), gpus | {uuid}
        while len(self._ranks) > MAX_PODS:
            del self._ranks[next(iter(self._ranks))]

    def of(self, owner: Owner) -> JobIdentity:
        """The job of an owner."""
        if owner.slurm_job:
            return JobIdentity(f"slurm-{owner.slurm_job}")
        if not owner.owner_pod:
            return JobIdentity(f"{owner.user}@{self.node_name()}")
        if not owner.owner_namespace:  # an id, and no name
            return JobIdentity(owner.owner_pod)
        pod = owner.owner_namespace, owner.owner_pod
        size, gpus = self._ranks.get(pod, (0, frozenset()))
        here = self.pods.gpus_of(*pod) or len(gpus)
        return pod_job(owner.owner_pod, some_of_more=size > here)

    def shared(self, owners: Iterable[Owner]) -> JobIdentity | None:
        """The job to which a GPU belongs; None if its owners have several."""
        jobs = {(owner.owner_namespace, owner.user, self.of(owner)) for owner in owners}
        return jobs.pop()[-1] if len(jobs) == 1 else None
