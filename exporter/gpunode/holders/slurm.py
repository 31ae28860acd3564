"""Which Slurm jobs are on the node, and which GPUs Slurm gave them, whether or not they use these.

Slurm keeps on the node which GPUs a job has only in the memory of its daemons and in a filter of
devices that takes CAP_BPF to read. Two things say it:

- A file for each job that a Prolog writes and an Epilog removes (``slurm.jobs_folder``;
  docs/slurm.md has the scripts). Only root writes there, so the files are believed, and a GPU that
  no file names is known to be given to nobody.
- Without that setting, the environment with which slurmstepd started the job's batch script,
  interactive shell or tasks. Its user may have changed it. So it counts only for a GPU that no
  process of another job uses and no other job claims, and never shows that a GPU is free.
  https://github.com/SchedMD/slurm/blob/master/src/plugins/gres/common/gres_common.c
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpunode.config.daemon import Settings
from gpunode.driver.driver import Identity
from gpunode.holders.census import Census, Look
from gpunode.holders.holder import stat_of
from gpunode.holders.owner import Owner, name_of
from gpunode.holders.slurmstepd import job_of, pids_in
from gpunode.metric import Metric
from gpunode.node.cgroup import ROOT, SLUID
from gpunode.node.kernel import parse_status
from gpunode.node.node import names_in
from gpunode.source import WHOLE_NODE, Place, Reading, Source, bounded, limit
from gpunode.unread import Unknown, Unread, shape

JOBS = Metric(
    "gpunode_slurm_jobs",
    "gauge",
    "Jobs of Slurm that have processes on the node (their cgroups); `gpus`: whether it is known "
    "which GPUs Slurm gave them.",
    ("gpus",),
)

MORE_JOBS = limit("slurm_jobs")
JOB_END = Metric(
    "gpunode_slurm_job_end_timestamp_seconds",
    "gauge",
    "Unix time at which Slurm ends the job, by the time limit with which it began (the job's "
    "file, which a Prolog writes).",
    ("slurm_job",),
)

FOLDER = Unknown(
    "slurm_job_folder",
    "a cgroup of Slurm has steps, but no number of its job; CgroupJobIdPaths=yes in cgroup.conf "
    "(Slurm 26.05.2 and later) names cgroups after these numbers",
)
GPUS = Unknown(
    "slurm_job_gpus",
    "nothing says which GPUs a job of Slurm has; a Prolog can write them to slurm.jobs_folder "
    "(docs/slurm.md)",
)

SCOPE = re.compile(r"(?:[\w.-]{1,64}_)?slurmstepd\.scope", re.ASCII)
SLICE = re.compile(r"(?!user\.slice)[\w.-]{1,64}\.slice", re.ASCII)
HIERARCHY = re.compile(r"slurm(?:_[\w.-]{1,64})?", re.ASCII)
"""Where jobs are in cgroups of version 1, below each controller."""

SLUID_ONLY = re.compile(SLUID)
NUMBER = re.compile(r"[1-9]\d{0,9}", re.ASCII)
UID = re.compile(r"\d{1,10}", re.ASCII)
SECONDS = re.compile(r"[1-9]\d{0,10}", re.ASCII)
INDEX = re.compile(r"\d{1,3}", re.ASCII)
DEVICE = re.compile(r"(?:GPU|MIG)-[\w./-]{1,128}", re.ASCII)

TASK = re.compile(r"/task_[a-z0-9]{1,12}$", re.ASCII)

EXTERN = "extern"
"""The step that Slurm keeps for the whole job with PrologFlags=Contain; it runs only a sleep."""

WHOLE_JOB_STEPS = ("batch", "interactive")
"""Steps that have all GPUs of the job on the node, in SLURM_JOB_GPUS; others have SLURM_STEP_GPUS,
and may have inherited the first from another node."""

MAX_JOBS = 256
MAX_STEPS = 16
"""Steps of a job to ask."""

MAX_TASKS = 16
"""Tasks of a step to ask."""

MAX_PROCESSES = 512
MAX_GPUS = 64


@dataclass(frozen=True, slots=True)
class JobFile:
    """What a Prolog wrote of a job: the id of its user, and its GPUs as ``parse_gpus`` has them.

    ``ends`` is when Slurm ends it, as Unix time; None where Slurm did not tell the Prolog.
    https://github.com/SchedMD/slurm/blob/master/src/plugins/prep/script/prep_script_slurmd.c
    """

    uid: str
    gpus: tuple[str, ...]
    ends: float | None = None


def parse_job_file(text: str) -> JobFile:
    """The file of a job: a line NAME=VALUE for each variable. Raises ``ValueError``."""
    pairs = [line.partition("=")[::2] for line in text.split("\n") if line]
    found = dict(pairs)
    if len(found) != len(pairs) or "SLURM_JOB_GPUS" not in found:
        raise ValueError("not what the Prolog of docs/slurm.md writes of a job")
    uid = found.get("SLURM_JOB_UID", "")
    if not UID.fullmatch(uid):
        raise ValueError("no number of a user")
    gpus = parse_gpus(found["SLURM_JOB_GPUS"], found.get("CUDA_VISIBLE_DEVICES", ""))
    ends = found.get("SLURM_JOB_END_TIME", "")
    if ends and not SECONDS.fullmatch(ends):
        raise ValueError("no time at which a job ends")
    return JobFile(uid, gpus, float(ends) if ends else None)


def parse_gpus(indices: str, devices: str) -> tuple[str, ...]:
    """The GPUs of a job: UUIDs if Slurm shows these to CUDA, as it does with MIG instances.

    Otherwise indices among the GPUs of the node. Raises ``ValueError``.
    """
    counted = indices.split(",") if indices else []
    if len(counted) > MAX_GPUS or not all(map(INDEX.fullmatch, counted)):
        raise ValueError("not the GPUs of a job")
    named = devices.split(",")
    if len(named) == len(counted) and all(map(DEVICE.fullmatch, named)):
        return tuple(dict.fromkeys(named))
    return tuple(dict.fromkeys(str(int(index)) for index in counted))


@dataclass(frozen=True, slots=True)
class Job:
    """A job with processes on the node: its number and the folders of its steps."""

    number: str
    steps: tuple[str, ...]

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(map(_kind, self.steps))


@dataclass(frozen=True, slots=True)
class Claim:
    """A job, the id of its user, and the GPUs that a file or its environment says it has.

    ``gpus`` is None if that was not understood.
    """

    number: str
    uid: str
    gpus: tuple[str, ...] | None
    by_file: bool
    ends: float | None = None


class SlurmJobs:
    """Finds the jobs and their GPUs, and keeps the last answer for the sources of GPU owners."""

    name = "slurm"
    needs = (
        "jobs of Slurm with ProctrackType=proctrack/cgroup; for GPUs that no process uses, a "
        "Prolog that writes to slurm.jobs_folder (docs/slurm.md), or CAP_SYS_PTRACE"
    )
    metrics = (JOBS, JOB_END)
    unknowns = (FOLDER, GPUS, MORE_JOBS)

    def __init__(self, census: Census, settings: Settings) -> None:
        self.census = census
        self.node = census.node
        self.folder = settings.slurm.jobs_folder
        self.every = settings.gpu.owners_interval
        self._owners: dict[str, list[Owner]] = {}
        self._certain = False
        """Whether a GPU without an owner is known to be given to no job."""

        self._read = -math.inf
        self._numbers: dict[str, str] = {}
        """The numbers of the jobs in folders named after a SLUID, which no other job ever has."""

        self._met: set[Unread] = set()
        """What the last read did not understand."""

    def find(self) -> Iterable[tuple[Place, Source]]:
        """Itself on a node with Slurm."""
        if self.folder or next(self._trees(), None) is not None:
            yield WHOLE_NODE, self

    def read(self) -> Reading:
        unread: set[Unread] = set()
        jobs = self._jobs(unread)
        claims = list(self._file_claims(unread) if self.folder else self._environment_claims(jobs))
        users = {found.identity.uuid: _jobs_of(look) for found, look in self.census.everywhere()}
        gpus = self.census.identities
        owners: dict[str, list[Owner]] = defaultdict(list)
        if gpus:
            unread |= {GPUS.seen(f"job {n}") for n in self._untold(jobs, claims, users)}
            for claim, gpu in _settled(claims, gpus, users, unread):
                user = name_of(self.node, claim.uid) if claim.uid else ""
                owners[gpu.uuid].append(Owner(slurm_job=claim.number, user=user))
        self._owners, self._certain = owners, bool(self.folder) and not unread
        self._read = self.node.clock.monotonic()
        # A job that begins or ends may look odd for a moment.
        again, self._met = unread & self._met, unread
        known = {claim.number for claim in claims if claim.gpus is not None}
        told = sum(job.number in known for job in jobs)
        samples = (
            *JOBS.at(float(told), "known"),
            *JOBS.at(float(len(jobs) - told), "unknown"),
            *(one for claim in claims for one in JOB_END.at(claim.ends, claim.number)),
        )
        return Reading(samples, unread=tuple(sorted(again, key=lambda one: one.example)))

    def owners(self, gpu: Identity) -> list[Owner] | None:
        """The jobs to which Slurm gave a GPU; None if there may be one that is not known."""
        if self.node.clock.monotonic() - self._read > 3 * self.every:
            return None
        found = self._owners.get(gpu.uuid, [])
        return found if found or self._certain else None

    def gave(self, gpu: Identity) -> bool:
        return bool(self.owners(gpu))

    def _trees(self) -> Iterator[str]:
        """The folders in which the jobs of a slurmd are, of either version of cgroups."""
        for name in names_in(self.node, ROOT):
            folder = f"{ROOT}/{name}"
            if SLICE.fullmatch(name):
                yield from (
                    f"{folder}/{s}" for s in names_in(self.node, folder) if SCOPE.fullmatch(s)
                )
            elif "." not in name:
                trees = (
                    f"{folder}/{t}" for t in names_in(self.node, folder) if HIERARCHY.fullmatch(t)
                )
                for tree in trees:
                    users = (u for u in names_in(self.node, tree) if u.startswith("uid_"))
                    yield from (f"{tree}/{user}" for user in users)

    def _jobs(self, unread: set[Unread]) -> list[Job]:
        """The jobs on the node; what looks like one but has no number is unread."""
        found: dict[str, list[str]] = defaultdict(list)
        numbers: dict[str, str] = {}
        for tree in self._trees():
            for name in names_in(self.node, tree):
                folder = f"{tree}/{name}"
                steps = [
                    f"{folder}/{s}" for s in names_in(self.node, folder) if s.startswith("step_")
                ]
                if not steps or not self._populated(folder, steps):
                    continue
                number = self._numbers.get(folder) or self._number(folder, name)
                if number:
                    found[number] += steps
                    numbers[folder] = number
                else:
                    unread.add(FOLDER.seen(name if SLUID_ONLY.fullmatch(name) else shape(name)))
        self._numbers = numbers
        if len(found) > MAX_JOBS:
            cut = len(found) - MAX_JOBS
            unread.add(MORE_JOBS.seen(f"{len(found)} jobs of Slurm, {MAX_JOBS} are read", cut))
        return [Job(number, tuple(found[number])) for number in sorted(found)[:MAX_JOBS]]

    def _number(self, folder: str, name: str) -> str:
        """The number of the job in a folder; empty if it is not known."""
        if SLUID_ONLY.fullmatch(name):
            return job_of(self.node, folder.removeprefix(ROOT))
        number = name.removeprefix("job_")
        return number if number != name and NUMBER.fullmatch(number) else ""

    def _populated(self, folder: str, steps: list[str]) -> bool:
        """Whether there are processes in a job's cgroup: slurmd may leave an empty one behind."""
        try:
            events = self.node.read_text(f"{folder}/cgroup.events")
        except OSError:  # version 1 does not tell
            leaves = (
                leaf for step in steps for leaf in (step, f"{step}/slurm", *self._tasks(step))
            )
            return any(pids_in(self.node, leaf) for leaf in leaves)
        return "populated 0" not in events.split("\n")

    def _file_claims(self, unread: set[Unread]) -> Iterator[Claim]:
        """What the files of a Prolog say; too many are added to ``unread``.

        Raises ``OSError`` if they cannot be listed.
        """
        try:
            names = self.node.list_directory(self.folder)
        except FileNotFoundError:  # no job has been here since the node started
            return
        numbers, left_out = bounded(
            filter(NUMBER.fullmatch, names), MORE_JOBS, MAX_JOBS, "files of Slurm's jobs"
        )
        unread.update(left_out)
        for number in numbers:
            try:
                found = parse_job_file(self.node.read_text(f"{self.folder}/{number}"))
            except FileNotFoundError:  # it has ended
                continue
            except (OSError, ValueError):
                yield Claim(number, "", None, by_file=True)
            else:
                yield Claim(number, found.uid, found.gpus, by_file=True, ends=found.ends)

    def _environment_claims(self, jobs: list[Job]) -> Iterator[Claim]:
        """Claims from the environments of jobs, where they can be read."""
        for job in jobs:
            of_the_job = [step for step in job.steps if _kind(step) in WHOLE_JOB_STEPS]
            steps = (of_the_job or list(job.steps))[:MAX_STEPS]
            claims = [claim for step in steps for claim in self._step_claims(job.number, step)]
            told = [claim for claim in claims if claim.gpus is not None]
            if claims:
                gpus = dict.fromkeys(gpu for claim in told for gpu in claim.gpus or ())
                uid = next((claim.uid for claim in told), "")
                yield Claim(job.number, uid, tuple(gpus) if told else None, by_file=False)

    def _step_claims(self, number: str, step: str) -> Iterator[Claim]:
        """Claims from the processes that slurmstepd started in a step."""
        kind = _kind(step)
        variable = "SLURM_JOB_GPUS" if kind in WHOLE_JOB_STEPS else "SLURM_STEP_GPUS"
        for pid in self._started_in(step) if kind != EXTERN else ():
            try:
                said = self.node.environment(pid)
                uid = parse_status(self.node.read_text(f"/proc/{pid}/status"))["Uid"][0]
            except (OSError, LookupError):
                continue
            try:
                if said.get("SLURM_JOB_ID") != number:
                    raise ValueError("not of this job")
                gpus = parse_gpus(said.get(variable, ""), said.get("CUDA_VISIBLE_DEVICES", ""))
            except ValueError:
                yield Claim(number, uid, None, by_file=False)
            else:
                yield Claim(number, uid, gpus, by_file=False)

    def _tasks(self, step: str) -> list[str]:
        """The cgroups of a step's tasks, of either version.

        Without TaskPlugin=task/cgroup, version 1 has no folder below that of the step.
        """
        found = [
            f"{where}/{n}" for where in (f"{step}/user", step) for n in names_in(self.node, where)
        ]
        return [folder for folder in found if TASK.search(folder)][:MAX_TASKS] or [step]

    def _started_in(self, step: str) -> list[int]:
        """The processes of a step's tasks that none of the same task started."""
        found = []
        for pids in (pids_in(self.node, task) for task in self._tasks(step)):
            stats = {pid: stat_of(self.node, pid) for pid in pids[:MAX_PROCESSES]}
            found += [p for p, stat in stats.items() if stat and stat.parent not in stats]
        return found

    def _untold(
        self, jobs: list[Job], claims: list[Claim], users: Mapping[str, set[str]]
    ) -> set[str]:
        """The numbers of the jobs whose GPUs should be known and are not."""
        known = {claim.number for claim in claims}
        untold = {claim.number for claim in claims if claim.gpus is None}
        if self.folder:
            return untold | {job.number for job in jobs} - known
        # A job that only waits in its first step, such as salloc's, has no environment to read.
        waiting = {job.number for job in jobs if job.kinds == {EXTERN}}
        return untold | waiting - set().union(*users.values())


def _kind(step: str) -> str:
    """What a step is called, from its folder."""
    return step.rpartition("/step_")[2]


def _settled(
    claims: list[Claim],
    gpus: list[Identity],
    users: Mapping[str, set[str]],
    unread: set[Unread],
) -> Iterator[tuple[Claim, Identity]]:
    """The GPUs of jobs, where nothing contradicts what the jobs say; the rest is unread.

    ``users`` has the jobs that have a process on a GPU, by its UUID.
    """
    by_gpu: dict[str, list[Claim]] = defaultdict(list)
    for claim in claims:
        for name in claim.gpus or ():
            gpu = _gpu_by_name(name, gpus)
            if gpu is None:
                unread.add(GPUS.seen(f"job {claim.number}: no GPU that is {shape(name)}"))
            else:
                by_gpu[gpu.uuid].append(claim)
    for gpu in gpus:
        said = by_gpu[gpu.uuid]
        jobs = {claim.number for claim in said} | users.get(gpu.uuid, set())
        if len(jobs) > 1 and not all(claim.by_file for claim in said):
            unread.add(GPUS.seen(f"GPU {gpu.index}: more than one job has it, as jobs say"))
        else:
            yield from ((claim, gpu) for claim in said)


def _gpu_by_name(name: str, gpus: list[Identity]) -> Identity | None:
    """The GPU that Slurm calls so; None if that is not certain.

    Slurm's index is a place in its list: by the address on the PCI bus if it found the GPUs by
    itself, as the driver counts them, else in the order of gres.conf, commonly of device files.
    It also counts MIG instances. https://slurm.schedmd.com/gres.conf.html
    """
    if not name.isdecimal():
        return next((gpu for gpu in gpus if gpu.uuid == name), None)
    found = next((gpu for gpu in gpus if gpu.index == int(name)), None)
    if found is None or any(gpu.mig for gpu in gpus):
        return None
    return found if found.minor in (None, found.index) else None


def _jobs_of(look: Look) -> set[str]:
    """The Slurm jobs that have a process on a GPU."""
    found = set()
    for holder in look.holders:
        with contextlib.suppress(OSError):
            found.add(holder.cgroup().slurm_job)
    return found - {""}
