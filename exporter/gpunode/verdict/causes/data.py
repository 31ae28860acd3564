"""The data does not arrive in time: the CPUs, the storage or the copies that bring it are slow."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.gpu.activity import SECONDS
from gpunode.gpu.health import PCIE_GENERATION, PCIE_WIDTH
from gpunode.gpu.units import PCIE_BYTES
from gpunode.host import disk, lustre, nfs, pressure
from gpunode.jobs import processes as job
from gpunode.jobs import steps
from gpunode.verdict.case import UNPINNED, Case, Evidence, per_second
from gpunode.verdict.causes.cause import (
    MIN_LOSS,
    Cause,
    Effect,
    Explanation,
    OwnLoss,
    Remedy,
    share_without,
)
from gpunode.verdict.causes.host import (
    CHECKPOINT,
    HOST_COMPUTE,
    THREAD_BUSY,
    busy_thread,
    explained_by,
    phase,
    waits_in_short_gaps,
)
from gpunode.verdict.facts import At, Facts, series_name
from gpunode.words import CAUSES as WORDS

REMOTE = ((nfs.RTT_SECONDS, nfs.REQUESTS), (lustre.RPC_SECONDS, lustre.RPCS))
"""Of each kind of file server, the seconds that requests waited, and the requests."""

SHM_FULL = 0.95
"""At this share of /dev/shm in use, the next batch may not fit."""

IO_PRESSURE = 0.1
"""At this share of time with a task waiting for I/O, storage delays the job."""

DISK_BUSY = 0.95
"""At this share of time with requests, a disk is saturated."""

REMOTE_LATENCY = 0.05
"""At this many seconds per request, a file server is slow; 0.001 to 0.01 is usual."""

REMOTE_SHARE = 0.1
"""Minimum mean requests in flight for a slow file server to matter."""

CPU_PRESSURE = 0.25
"""At this share of time with a task waiting for a CPU, the job has too few CPUs."""

LANE = {1.0: 0.25e9, 2.0: 0.5e9, 3.0: 0.985e9, 4.0: 1.969e9, 5.0: 3.938e9, 6.0: 7.563e9}
"""Bytes per second of a lane in each direction, by the generation of PCI Express.
https://en.wikipedia.org/wiki/PCI_Express#Comparison_table"""

PINNED_LINK_SHARE = 0.85
"""Share of the link's rate that copies of pinned memory reach."""

QUOTA_THROTTLED = 0.05
"""At this share of throttled quota periods, the quota delays the job."""


def _data(case: Case) -> Iterator[Evidence]:
    return phase(case, "data")


DATA_LOADING = Cause(
    name="data_loading",
    named_when="the GPU is `starved`, and the client reports that the training waits for data",
    looks=(Explanation(_data, rank=90),),
    uses=(steps.SECONDS,),
    urgency="soon",
    remedy=Remedy(("starved",), WORDS["data_loading"].for_good),
    family="data",
    uncertain=True,
)


def _loader(case: Case) -> Iterator[Evidence]:
    loader = case.now(job.LOADER_CPUS)
    if loader >= THREAD_BUSY:
        meaning = "CPUs used by a process that prepares data"
        yield case.evidence(job.LOADER_CPUS, loader, THREAD_BUSY, meaning)


def _data_on_host(case: Case) -> Iterator[Evidence]:
    """The thread that runs the training prepares its data, by its client's words."""
    data, busy = tuple(_data(case)), tuple(busy_thread(case))
    if data and busy:
        yield from (*data, *busy)


def _cpu(case: Case) -> Iterator[Evidence]:
    periods, throttled = case.rate(job.QUOTA_PERIODS), case.rate(job.QUOTA_THROTTLED_PERIODS)
    if periods and throttled / periods >= QUOTA_THROTTLED:
        meaning = "share of CPU quota periods that were throttled"
        yield case.evidence(
            job.QUOTA_THROTTLED_PERIODS,
            throttled / periods,
            QUOTA_THROTTLED,
            meaning,
            query=" / ".join(
                per_second(case.series(metric))
                for metric in (job.QUOTA_THROTTLED_PERIODS, job.QUOTA_PERIODS)
            ),
        )
    waits = _pressure(case.facts, case.at, "cpu")
    if waits is not None and waits[1] >= CPU_PRESSURE:
        yield Evidence(*waits, CPU_PRESSURE, "share of time with a task waiting for a CPU")
    yield from busy_thread(case)


def _pressure(facts: Facts, at: At, resource: str) -> tuple[str, float] | None:
    """Share of time that tasks waited for a resource: those of the job, else of the node."""
    for metric, labels in (
        (job.PRESSURE_WAITING, (*at, resource)),
        (pressure.WAITING, (resource,)),
    ):
        rate = facts.rate(metric, *labels)
        if rate is not None:
            return series_name(metric, labels), rate
    return None


def _short_waits(case: Case) -> Effect | None:
    """The process waits a little in every step: for its loader, or for a CPU."""
    waits = waits_in_short_gaps(case)
    why = (*_loader(case), *_cpu(case)) if waits else ()
    return Effect(waits.share, (*waits.evidence, *why)) if waits and why else None


DATA_LOADING_CPU = Cause(
    name="data_loading_cpu",
    named_when=(
        "the GPU is `starved`, and a process that prepares data keeps a CPU busy, the training "
        "thread was busy for most of the gaps, the job's CPU quota throttles it, or its tasks "
        "wait for a CPU (PSI)"
    ),
    looks=(
        Explanation(_loader, rank=70),
        Explanation(_data_on_host, rank=80),
        Explanation(_cpu, rank=110),
        OwnLoss(_short_waits),
    ),
    uses=(
        SECONDS,
        job.HOST_CPUS,
        job.HOST_THREAD,
        job.LOADER_CPUS,
        job.PRESSURE_WAITING,
        job.QUOTA_PERIODS,
        job.QUOTA_THROTTLED_PERIODS,
        job.UNREADABLE,
        pressure.WAITING,
        steps.SECONDS,
    ),
    urgency="soon",
    closer=job.HOST_CPUS,
    remedy=Remedy(
        ("starved",),
        WORDS["data_loading_cpu"].for_good,
    ),
    family="data",
)


def _storage(case: Case) -> Iterator[Evidence]:
    facts, at = case.facts, case.at
    waits = _pressure(facts, at, "io")
    if waits is not None and waits[1] >= IO_PRESSURE:
        yield Evidence(*waits, IO_PRESSURE, "share of time with a task waiting for I/O")
    for labels in facts.series(disk.BUSY):
        busy = facts.rate(disk.BUSY, *labels)
        if busy is not None and busy >= DISK_BUSY:
            series = series_name(disk.BUSY, labels)
            yield Evidence(series, busy, DISK_BUSY, "share of time with requests on the disk")
    for seconds, requests in REMOTE:
        for labels in facts.series(seconds):
            waited, done = facts.rate(seconds, *labels), facts.rate(requests, *labels)
            if not waited or not done or waited < REMOTE_SHARE:
                continue
            if waited / done >= REMOTE_LATENCY:
                series, of = series_name(seconds, labels), series_name(requests, labels)
                query = f"{per_second(series)} / {per_second(of)}"
                yield Evidence(series, waited / done, REMOTE_LATENCY, "seconds per request", query)


DATA_LOADING_STORAGE = Cause(
    name="data_loading_storage",
    named_when=(
        "the GPU is `starved`, and the job's tasks wait for I/O (PSI), a disk is always busy, "
        "or an NFS or Lustre server answers slowly"
    ),
    looks=(Explanation(_storage, rank=60),),
    uses=(
        disk.BUSY,
        job.PRESSURE_WAITING,
        pressure.WAITING,
        *(metric for pair in REMOTE for metric in pair),
    ),
    urgency="soon",
    remedy=Remedy(("starved",), WORDS["data_loading_storage"].for_good),
    family="data",
)


def _pinned(case: Case) -> float:
    """Copies of pinned memory take what the link allows, and are hidden by what is computed."""
    link = PINNED_LINK_SHARE * LANE.get(case.now(PCIE_GENERATION), 0.0) * case.now(PCIE_WIDTH)
    moved = max(case.rate(PCIE_BYTES, way) for way in ("transmit", "receive"))
    return max(share_without(("starved", "copy"), case) or 0.0, moved / link if link else 0.0)


def _copies(case: Case) -> Effect | None:
    """Copies that wait for nothing else; what computes or saves the results explains the rest."""
    share = case.copies
    if share < MIN_LOSS:
        return None
    if case.results and (explained_by(CHECKPOINT, case) or explained_by(HOST_COMPUTE, case)):
        return None
    evidence = [case.state("copy", MIN_LOSS)]
    if case.copies_wait:
        meaning = (
            "bytes per second over PCI Express, which take this long from memory that is not "
            "pinned: a CPU copies it once more"
        )
        way = max(UNPINNED, key=lambda each: case.rate(PCIE_BYTES, each) / UNPINNED[each])
        moved = case.rate(PCIE_BYTES, way)
        evidence = [
            case.state("starved", MIN_LOSS),
            case.evidence(PCIE_BYTES, moved, MIN_LOSS * UNPINNED[way], meaning, way),
        ]
    return Effect(share, tuple(evidence))


DATA_LOADING_COPY = Cause(
    name="data_loading_copy",
    named_when=(
        "copies between host and device run while the compute engines wait, which takes longest "
        "from pageable memory"
    ),
    looks=(OwnLoss(_copies),),
    uses=(PCIE_BYTES, PCIE_GENERATION, PCIE_WIDTH, *CHECKPOINT.uses, *HOST_COMPUTE.uses),
    urgency="soon",
    remedy=Remedy(("copy",), WORDS["data_loading_copy"].for_good, left=_pinned),
    family="data",
)


def _shm(case: Case) -> Iterator[Evidence]:
    facts = case.facts
    for labels in facts.series(job.SHM_SIZE, *case.at):
        size, used = facts.now(job.SHM_SIZE, *labels), facts.now(job.SHM_USED, *labels)
        if size and used is not None and used / size >= SHM_FULL:
            series = series_name(job.SHM_USED, labels)
            query = f"{series} / {series_name(job.SHM_SIZE, labels)}"
            yield Evidence(series, used / size, SHM_FULL, "share of /dev/shm in use", query)


SHM = Cause(
    name="shm",
    named_when="the GPU is `starved`, and the `/dev/shm` of the job is full",
    looks=(Explanation(_shm, rank=40),),
    uses=(job.SHM_SIZE, job.SHM_USED),
    urgency="soon",
    remedy=Remedy(("starved",), WORDS["shm"].for_good),
    family="data",
)

CAUSES = (DATA_LOADING, DATA_LOADING_CPU, DATA_LOADING_STORAGE, DATA_LOADING_COPY, SHM)
