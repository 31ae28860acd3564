"""The GPU's memory is taken from the driver and given back while the job runs."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.gpu.activity import MEMORY_USED, PROCESSES
from gpunode.jobs import processes as job
from gpunode.verdict.case import Case, Evidence
from gpunode.verdict.causes.cause import MIN_LOSS, Cause, Effect, Explanation, OwnLoss, Remedy
from gpunode.verdict.causes.data import DATA_LOADING_STORAGE
from gpunode.verdict.causes.host import CHECKPOINT, COMPILE, explained_by, rises_and_falls
from gpunode.words import CAUSES as WORDS

RISES_AND_FALLS = 2
"""At least so often must the memory in use both rise and fall between reads: a job that keeps what
it has once allocated shows only rises, and few of them."""

MIN_SYSTEM_SHARE = 0.2
"""Least time in the kernel, per second that the GPU lost: the driver allocates there, and a program
that only launches makes no system call (a launch is written to memory that the GPU reads)."""

OTHER_CAUSES = (CHECKPOINT, COMPILE, DATA_LOADING_STORAGE)
"""What may give memory back as well, and shows itself."""


def _calls_for_memory(case: Case) -> Iterator[Evidence]:
    """Memory comes and goes, and the process is in the kernel for much of the time without work."""
    lost = case.short_gaps + case.without_work
    system = case.now(job.HOST_SYSTEM)
    if system < MIN_SYSTEM_SHARE * lost or any(explained_by(other, case) for other in OTHER_CAUSES):
        return
    changes = min(rises_and_falls(case))
    if changes < RISES_AND_FALLS:
        return
    meaning = "times that the memory in use rose, and fell, within 30 s"
    yield case.evidence(MEMORY_USED, changes, RISES_AND_FALLS, meaning)
    meaning = "CPUs that the process on the GPU uses in the kernel"
    yield case.evidence(job.HOST_SYSTEM, system, MIN_SYSTEM_SHARE * lost, meaning)


def _between_kernels(case: Case) -> Effect | None:
    """The gaps between kernels are calls for memory, as are the longer ones."""
    launch = case.short_gaps
    if launch < MIN_LOSS:
        return None
    evidence = tuple(_calls_for_memory(case))
    if not evidence:
        return None
    return Effect(launch + case.without_work, (case.launches(MIN_LOSS), *evidence))


MEMORY_ALLOCATION = Cause(
    name="memory_allocation",
    named_when=(
        "the GPU is `starved` while the memory in use rises and falls and its "
        "process spends time in the kernel, as in cudaMalloc and cudaFree"
    ),
    looks=(Explanation(_calls_for_memory, rank=65), OwnLoss(_between_kernels)),
    uses=(
        MEMORY_USED,
        PROCESSES,
        job.HOST_SYSTEM,
        *(use for cause in OTHER_CAUSES for use in cause.uses),
    ),
    urgency="soon",
    remedy=Remedy(("starved",), WORDS["memory_allocation"].for_good),
    family="host",
    refines=("kernel_launch", "data_loading_cpu"),
    slows_its_gpu=True,
)

CAUSES = (MEMORY_ALLOCATION,)
