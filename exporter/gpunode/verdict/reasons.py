"""Why a GPU is waited for by the others of its job: each reason with all that is said of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpunode import words
from gpunode.gpu import GPU
from gpunode.metric import Metric
from gpunode.verdict.guidance import Family, Guidance, Urgency


@dataclass(frozen=True, slots=True)
class Reason:
    """What the process on a GPU does while the other GPUs of its job wait for it."""

    name: str
    seen_from: str
    """What it is seen from, for the documents."""

    urgency: Urgency
    family: Family
    """Whose hue it has where it is shown."""

    @property
    def meaning(self) -> str:
        """Why the GPU does not come, as a sentence."""
        return words.REASONS[self.name].sentence

    @property
    def guidance(self) -> Guidance:
        """For who is on call; ``does`` goes on after the name of the GPU."""
        said = words.REASONS[self.name]
        return Guidance(self.urgency, replace(said, sentence=_of_gpu(said.sentence)))


def _of_gpu(sentence: str) -> str:
    """What is said of a GPU, as what goes on after its name."""
    for begins, goes_on in (("its GPU ", "which "), ("its ", "whose ")):
        if sentence.startswith(begins):
            return goes_on + sentence.removeprefix(begins)
    return f"and {sentence}"


GONE = Reason(
    "gone",
    "the process has left the GPU, while other processes of its job still hold theirs",
    "now",
    "peers",
)
STOPPED = Reason(
    "stopped",
    "the state of the process (SIGSTOP, a debugger)",
    "now",
    "host",
)
UNINTERRUPTIBLE = Reason(
    "uninterruptible",
    "the state of the process; `/api/v1/gpus` has the kernel function in which it waits",
    "now",
    "host",
)
CHECKPOINTING = Reason(
    "checkpointing",
    "the bytes that the job writes, or a report of its client",
    "note",
    "host",
)
EVALUATING = Reason(
    "evaluating",
    "the GPU works while the others wait all the time, or a report of the client",
    "note",
    "work",
)
PREPARING = Reason(
    "preparing",
    "other processes of the job use CPUs",
    "note",
    "host",
)
COMPUTING = Reason(
    "computing",
    "the GPU works longer than the others: it is slower, or has more to do",
    "soon",
    "device",
)
CPU_BOUND = Reason(
    "cpu_bound",
    "one thread of the process uses a CPU",
    "soon",
    "host",
)
GARBAGE_COLLECTION = Reason(
    "garbage_collection",
    "the time in collections that the client of the process reports",
    "soon",
    "host",
)
LOCK = Reason(
    "lock",
    "where its main thread stands: a lock or a queue of Python, or `futex` in the kernel",
    "soon",
    "host",
)
LOADER = Reason(
    "loader",
    "where its main thread stands: `torch.utils.data`",
    "soon",
    "data",
)
DOWNLOAD = Reason(
    "download",
    "where its main thread stands: requests, urllib3, boto and others",
    "soon",
    "data",
)
SOCKET = Reason(
    "socket",
    "where its main thread stands: a socket of Python, or of the kernel",
    "soon",
    "host",
)
STORAGE = Reason(
    "storage",
    "the function of the kernel in which its main thread waits: NFS, Lustre, FUSE, a disk",
    "soon",
    "data",
)
ANOTHER_PROCESS = Reason(
    "another_process",
    "where its main thread stands: a pipe, a child process, a lock on a file, `multiprocessing`",
    "soon",
    "host",
)
DEBUGGER = Reason(
    "debugger",
    "where its main thread stands: pdb, debugpy",
    "now",
    "host",
)
EXITING = Reason(
    "exiting",
    "where its main thread stands: a traceback is made or reported, or Python ends and waits",
    "now",
    "peers",
)
SLEEPING = Reason(
    "sleeping",
    "the function of the kernel in which its main thread waits: a timer",
    "soon",
    "host",
)
COLLECTIVE = Reason(
    "collective",
    "where its main thread stands: `torch.distributed`",
    "now",
    "peers",
)
UNKNOWN = Reason(
    "unknown",
    "none of these",
    "soon",
    "unknown",
)

REASONS: dict[str, Reason] = {
    reason.name: reason
    for reason in (
        GONE,
        STOPPED,
        UNINTERRUPTIBLE,
        CHECKPOINTING,
        EVALUATING,
        PREPARING,
        COMPUTING,
        CPU_BOUND,
        GARBAGE_COLLECTION,
        LOCK,
        LOADER,
        DOWNLOAD,
        SOCKET,
        STORAGE,
        ANOTHER_PROCESS,
        DEBUGGER,
        EXITING,
        SLEEPING,
        COLLECTIVE,
        UNKNOWN,
    )
}

FINITE_REASONS = (EVALUATING.name, CHECKPOINTING.name, PREPARING.name)
"""Reasons that end by themselves."""

WAITED_FOR = Metric(
    "gpunode_gpu_waited_for",
    "gauge",
    "1 for the GPU that the other GPUs of the job on this node wait for; `reason` says what its "
    "process does meanwhile (docs/verdict.md).",
    (*GPU, "reason"),
)
