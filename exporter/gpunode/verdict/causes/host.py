"""The process on the GPU does something else, or nothing can be asked of the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from gpunode.gpu.activity import MEMORY_USED, PROCESSES, SECONDS
from gpunode.gpu.activity import STOPPED as STOPPED_ON_GPU
from gpunode.gpu.units import PCIE_BYTES
from gpunode.jobs import processes as job
from gpunode.jobs import steps
from gpunode.verdict.case import Case, Evidence
from gpunode.verdict.causes.cause import (
    MIN_LOSS,
    Cause,
    Effect,
    Explanation,
    OwnLoss,
    Remedy,
    share_without_host,
)
from gpunode.verdict.causes.limits import LAUNCHES
from gpunode.verdict.engine import USES as OF_ENGINE
from gpunode.verdict.engine import engine_of, no_requests
from gpunode.verdict.facts import LATEST_SECONDS
from gpunode.verdict.workload import WORKLOAD
from gpunode.words import CAUSES as WORDS

THREAD_BUSY = 0.8
"""At this share of a CPU, a thread that prepares data or answers requests holds the GPU up."""

EXPLAINED = 0.5
"""A thread of the process on the GPU explains its gaps if it was busy for this share of them."""

SEVERAL_CPUS = 1.5
"""From this many CPUs, a process computes on them, not only in Python's main thread."""

RUNS_NOTHING = 0.95
"""At this share of time without work, no step runs that could wait for data."""

GOES_ON = 0.1
"""From this many CPUs, a process is not stuck, whatever state it is seen in."""

COMPILES = 0.2
"""From this many CPUs used by compilers, kernels are being compiled."""

FAULTS, MOST_FAULTS = 3000.0, 40_000.0
"""Page faults per second of CPU time between which a process works as compilers do. NVRTC, the
driver's compiler of PTX, cuDNN's and PyTorch's have 7,000 to 25,000. A thread that launches kernels
or prepares data in memory that it has, has fewer than 100; one that copies mapped files, 70,000."""

OUTSIDE_KERNEL = 0.2
"""At most this part of its CPU time does a compiler spend in the kernel: 0.02 to 0.13 was seen, and
0.5 to 0.95 where large arrays are made or files are read."""

GROWS = 3
"""From so many rises of the GPU's memory in use within 30 s, it gets what it did not have."""

WRITES = 50e6
"""From this many bytes per second that a job writes while the GPU waits, it saves its state."""

ASLEEP = 0.5
"""If a process slept in so much of the gaps between kernels, none of them is a launch."""

MIN_PHASE_SHARE = 0.5
"""Share of the GPU's lost time that the client's phase must cover to explain it."""


def explained_by(cause: Cause, case: Case) -> bool:
    """Whether a cause has evidence that it explains the time without work."""
    return any(look.evidence(case) for look in cause.looks if isinstance(look, Explanation))


def phase(case: Case, phase: str) -> Iterator[Evidence]:
    """What the client (``steps.SECONDS``) says was done for most of the time without work."""
    share = case.rate(steps.SECONDS, phase)
    least = MIN_PHASE_SHARE * case.without_work
    if share >= max(least, MIN_LOSS):
        meaning = f"share of time that the process reports as {phase}"
        yield case.evidence(steps.SECONDS, share, max(least, MIN_LOSS), meaning, phase)


def busy_thread(case: Case) -> Iterator[Evidence]:
    """The thread on the GPU's process (``HOST_THREAD``) was busy while the GPU had nothing to run.

    It may be busy while the GPU works as well, waiting for it: only what goes beyond counts.
    """
    busy, least = case.now(job.HOST_THREAD), 1.0 - EXPLAINED * case.without_work
    if busy >= least:
        meaning = "share of a CPU used by one thread, or by all that share one, of the process"
        yield case.evidence(job.HOST_THREAD, busy, least, meaning)


def waits_in_short_gaps(case: Case) -> Effect | None:
    """The process slept in most of the gaps between kernels, so that it launched nothing in them.

    That is so if its CPU time does not fill half of the gaps, even if all of it fell there. It is
    read every 10 s: the highest of 30 s counts, beside the gaps of these. Of a server, another
    process may decide what is launched.
    """
    launch = case.short_gaps
    if launch < LAUNCHES or case.kind == "serving":
        return None
    cpus, unread = case.facts.now(job.HOST_CPUS, *case.at), case.now(job.UNREADABLE, "stat")
    gaps = case.facts.shares(case.at).get("starved", 0.0)
    if cpus is None or unread or gaps < LAUNCHES:
        return None
    meaning = "CPUs that the process on the GPU uses at most, within 30 s"
    sleeps = case.peak_evidence(job.HOST_CPUS, (1.0 - ASLEEP) * gaps, meaning)
    if sleeps.value > sleeps.threshold:
        return None
    return Effect(launch, (case.launches(LAUNCHES), sleeps))


def _host_compute(case: Case) -> Iterator[Evidence]:
    """Like a thread that prepares data, but it computes with what the GPU sent, or on many CPUs."""
    cpus, results = case.now(job.HOST_CPUS), case.results >= MIN_LOSS
    evidence = tuple(busy_thread(case))
    several = cpus >= SEVERAL_CPUS and (evidence or results)
    if (evidence and (results or case.without_work >= RUNS_NOTHING)) or several:
        yield from evidence
    if several:
        meaning = "CPUs that the process on the GPU uses"
        yield case.evidence(job.HOST_CPUS, cpus, SEVERAL_CPUS, meaning)


HOST_COMPUTE = Cause(
    name="host_compute",
    named_when=(
        "the GPU is `starved` while its process computes on several CPUs, or on one CPU with "
        "results from the GPU (such as an optimizer on the CPU) or while no step runs"
    ),
    looks=(Explanation(_host_compute, rank=100, of_idle=True),),
    uses=(PCIE_BYTES, job.HOST_CPUS, job.HOST_THREAD),
    urgency="soon",
    remedy=Remedy(
        ("starved",),
        WORDS["host_compute"].for_good,
        left=share_without_host,
    ),
    family="host",
    slows_its_gpu=True,
)


def _compile(case: Case) -> Iterator[Evidence]:
    yield from phase(case, "compile")
    used = case.facts.peak(job.COMPILER_CPUS, *case.at)
    # Most of a compilation is Python's, between calls of compilers.
    if case.now(job.COMPILER_CPUS) >= COMPILES or (
        used >= COMPILES and case.without_work >= RUNS_NOTHING
    ):
        meaning = "CPUs used by compilers at most, within 30 s"
        yield case.peak_evidence(job.COMPILER_CPUS, COMPILES, meaning)


def rises_and_falls(case: Case) -> tuple[int, int]:
    """How often the GPU's memory in use rose, and how often it fell, from one read to the next.

    Since a process last came or went, as its memory does with it.
    """
    at, facts = case.at, case.facts
    processes = facts.readings(PROCESSES, *at, "compute")
    since = max((time for many, time in processes if many != processes[-1][0]), default=0.0)
    used = [value for value, time in facts.readings(MEMORY_USED, *at) if time > since]
    rises = sum(after > before for before, after in pairwise(used))
    falls = sum(after < before for before, after in pairwise(used))
    return rises, falls


def _compiles_itself(case: Case) -> Iterator[Evidence]:
    """The process on the GPU works as compilers do, and the GPU gets what may be new kernels.

    A compiler takes and returns many small pieces of memory, so that the kernel gives it pages all
    the time, and computes far longer than that takes. Where data is prepared, memory is used again,
    or arrays are so large that they cost as much time in the kernel as outside.
    """
    cpus, system = case.now(job.HOST_CPUS), case.now(job.HOST_SYSTEM)
    faults, busy = case.rate(job.HOST_FAULTS), tuple(busy_thread(case))
    rises, _ = rises_and_falls(case)
    if not busy or not FAULTS * cpus <= faults <= MOST_FAULTS * cpus:
        return
    if system > OUTSIDE_KERNEL * cpus or rises < GROWS:
        return
    yield from busy
    meaning = "page faults per second of the process on the GPU, which needs little time for them"
    yield case.evidence(job.HOST_FAULTS, faults, FAULTS * cpus, meaning)
    yield case.evidence(MEMORY_USED, rises, GROWS, "times that the memory in use rose within 30 s")


COMPILE = Cause(
    name="compile",
    named_when=(
        "the GPU is `starved` while compilers run in the job, the client reports a compilation, "
        "or the process allocates memory as compilers do"
    ),
    looks=(
        Explanation(_compile, rank=30, of_idle=True),
        Explanation(_compiles_itself, rank=95),
    ),
    uses=(
        MEMORY_USED,
        PROCESSES,
        job.COMPILER_CPUS,
        job.HOST_CPUS,
        job.HOST_FAULTS,
        job.HOST_SYSTEM,
        job.HOST_THREAD,
        steps.SECONDS,
    ),
    urgency="note",
    remedy=Remedy(("starved",), WORDS["compile"].for_good),
    family="host",
    ends_by_itself=True,
)


def _checkpoint(case: Case) -> Iterator[Evidence]:
    yield from phase(case, "checkpoint")
    written = case.facts.last_rate(job.IO_BYTES, *case.at, "write") or 0.0
    if written >= WRITES:
        meaning = "bytes per second that the job writes"
        yield case.evidence(job.IO_BYTES, written, WRITES, meaning, "write")


CHECKPOINT = Cause(
    name="checkpoint",
    named_when=(
        f"the GPU is `starved` while the job writes at least {WRITES / 1e6:g} MB/s, or the "
        "client reports a checkpoint"
    ),
    looks=(Explanation(_checkpoint, rank=20, of_idle=True),),
    uses=(job.IO_BYTES, steps.SECONDS),
    urgency="note",
    remedy=Remedy(
        ("starved",),
        WORDS["checkpoint"].for_good,
        left=share_without_host,
    ),
    family="host",
    ends_by_itself=True,
)


def _no_requests(case: Case) -> Iterator[Evidence]:
    """A server has gaps between requests; a notebook's GPU runs nothing while its user thinks.

    The engine says best whether anybody asks. Without its word, a server that polls for requests
    keeps a CPU busy although it has none.
    """
    if engine_of(case) is not None:
        if (said := no_requests(case)) is not None:
            yield said
        return
    busy = case.facts.now(job.HOST_THREAD, *case.at)
    if busy is None or case.now(job.LOADER_CPUS) >= THREAD_BUSY:
        return
    nothing, idle = case.without_work >= RUNS_NOTHING, busy < THREAD_BUSY
    serves, interacts = case.kind == "serving", case.kind == "interactive"
    if (serves and (nothing or idle)) or (interacts and nothing and idle):
        yield case.evidence(WORKLOAD, 1.0, 1.0, "the kind of work", case.kind)
        if idle:
            meaning = "share of a CPU used by one thread of the process"
            yield case.evidence(job.HOST_THREAD, busy, THREAD_BUSY, meaning)


def _spins_for_requests(case: Case) -> Effect | None:
    """A server that hands each request on by a collective spins until there is one."""
    share, said = case.shares["blocked"], no_requests(case)
    if share < MIN_LOSS or said is None:
        return None
    return Effect(share, (case.state("blocked", MIN_LOSS), said))


NO_REQUESTS = Cause(
    name="no_requests",
    named_when=(
        "a server's engine reports no requests, or without a report its threads have time left or "
        "its GPU runs nothing; or a notebook's threads have time left and its GPU runs nothing"
    ),
    looks=(Explanation(_no_requests, rank=50, of_idle=True), OwnLoss(_spins_for_requests)),
    uses=(*OF_ENGINE, job.HOST_THREAD, job.LOADER_CPUS),
    urgency="note",
    remedy=Remedy(("idle", "starved"), WORDS["no_requests"].for_good),
    family="host",
    ends_by_itself=True,
)


def _stopped(case: Case) -> Iterator[Evidence]:
    stopped = case.now(STOPPED_ON_GPU)
    latest = case.facts.recent(LATEST_SECONDS).shares(case.at)
    if stopped and latest.get("starved", 0.0) + latest.get("idle", 0.0) >= RUNS_NOTHING:
        yield case.evidence(STOPPED_ON_GPU, stopped, 1.0, "processes on the GPU that are stopped")


def _uninterruptible(case: Case) -> Iterator[Evidence]:
    """Processes that wait in the kernel for good; one that waits for a disk soon goes on."""
    waiting = case.now(job.BLOCKED)
    if waiting and case.without_work >= RUNS_NOTHING and case.now(job.HOST_CPUS) < GOES_ON:
        yield case.evidence(job.BLOCKED, waiting, 1.0, "processes that cannot be interrupted")


STOPPED = Cause(
    name="stopped",
    named_when="the state of the process (SIGSTOP, a debugger)",
    looks=(
        Explanation(_stopped, rank=10, of_idle=True),
        Explanation(_uninterruptible, rank=120),
    ),
    uses=(SECONDS, job.BLOCKED, job.HOST_CPUS, STOPPED_ON_GPU),
    urgency="now",
    remedy=Remedy(("idle", "starved"), WORDS["stopped"].for_good),
    family="host",
)

UNREAD_OF_JOB = {
    "stat": "what they do",
    "io": "what they read and write",
    "shm": "what they keep in /dev/shm",
}
"""What may explain time without work, and is not known of processes that cannot be read."""


def unread_evidence(case: Case) -> Iterator[Evidence]:
    """What could not be read of the job, and may explain time without work."""
    for what, unknown in UNREAD_OF_JOB.items():
        if many := case.now(job.UNREADABLE, what):
            meaning = f"processes of which `{what}` cannot be read: {unknown} is not known"
            yield case.evidence(job.UNREADABLE, many, 1.0, meaning, what)


UNEXPLAINED = Cause(
    name="unexplained",
    named_when=(
        "the GPU is `starved`, or its process sleeps in most of its short gaps, and nothing on "
        "this node shows a cause: a remote service, a sleep or a lock is likely"
    ),
    looks=(OwnLoss(waits_in_short_gaps),),
    uses=(SECONDS, job.HOST_CPUS, job.UNREADABLE),
    urgency="soon",
    closer=job.HOST_CPUS,
    remedy=Remedy(("starved",), WORDS["unexplained"].for_good),
    family="unknown",
    uncertain=True,
    refines=("kernel_launch",),
)
"""What is named if nothing explains time without work."""

CAUSES = (HOST_COMPUTE, COMPILE, CHECKPOINT, NO_REQUESTS, STOPPED, UNEXPLAINED)
