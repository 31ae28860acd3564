"""Why a GPU is waited for by the others of its job: each reason with all that is said of it."""

from __future__ import annotations

from dataclasses import dataclass

from gpunode.gpu import GPU
from gpunode.metric import Metric
from gpunode.verdict.guidance import Family, Guidance


@dataclass(frozen=True, slots=True)
class Reason:
    """What the process on a GPU does while the other GPUs of its job wait for it."""

    name: str
    meaning: str
    seen_from: str
    """What it is seen from, for the documents."""

    guidance: Guidance
    """``does`` goes on after the name of the GPU."""

    family: Family
    """Whose hue it has where it is shown."""


GONE = Reason(
    "gone",
    "its process has ended",
    "the process has left the GPU, while other processes of its job still hold theirs",
    Guidance(
        "now",
        "whose process has ended",
        "Read the first error in the log of the rank that ended, then restart the job.",
    ),
    "peers",
)
STOPPED = Reason(
    "stopped",
    "its process is stopped by a signal or a debugger",
    "the state of the process (SIGSTOP, a debugger)",
    Guidance(
        "now",
        "whose process is stopped by a signal or a debugger",
        "Continue it: `kill -CONT PID`. Or detach the debugger, or end the job.",
    ),
    "host",
)
UNINTERRUPTIBLE = Reason(
    "uninterruptible",
    "its process waits in the kernel and cannot be interrupted",
    "the state of the process; `/api/v1/gpus` has the kernel function in which it waits",
    Guidance(
        "now",
        "whose process waits in the kernel and cannot be interrupted",
        "Look for a disk or file server that does not answer, under I/O. The job goes on when it "
        "does.",
    ),
    "host",
)
CHECKPOINTING = Reason(
    "checkpointing",
    "its process saves the state of the training",
    "the bytes that the job writes, or a report of its client",
    Guidance(
        "note",
        "which saves the state of the training",
        "Nothing, if it ends by itself. If it comes often, save from all ranks, or asynchronously.",
    ),
    "host",
)
EVALUATING = Reason(
    "evaluating",
    "its GPU is at work while the others wait all the time, as in an evaluation",
    "the GPU works while the others wait all the time, or a report of the client",
    Guidance(
        "note",
        "which is at work alone, as in an evaluation",
        "Nothing, if it ends by itself. If it comes often, evaluate on all ranks.",
    ),
    "work",
)
PREPARING = Reason(
    "preparing",
    "other processes of its job use CPUs, as when data is prepared",
    "other processes of the job use CPUs",
    Guidance(
        "note",
        "whose job prepares data on CPUs",
        "Nothing, if it ends by itself. If it comes often, give the job more CPUs.",
    ),
    "host",
)
COMPUTING = Reason(
    "computing",
    "its GPU takes longer than the others",
    "the GPU works longer than the others: it is slower, or has more to do",
    Guidance(
        "soon",
        "which takes longer than the others",
        "Compare its clock, temperature and load with the others: either it is slow, or it has "
        "more to do.",
    ),
    "device",
)
CPU_BOUND = Reason(
    "cpu_bound",
    "a thread of its process uses a whole CPU",
    "one thread of the process uses a CPU",
    Guidance(
        "soon",
        "whose process keeps a whole CPU busy",
        "See what that thread does: `gpunode stacks --pid PID`.",
    ),
    "host",
)
GARBAGE_COLLECTION = Reason(
    "garbage_collection",
    "its process collects garbage in Python",
    "the time in collections that the client of the process reports",
    Guidance(
        "soon",
        "whose process collects garbage in Python",
        "Call `gc.freeze()` and `gc.disable()` after the set-up, and `gc.collect()` at the same "
        "step on all ranks. If one collection goes on and on, a finalizer hangs: "
        "`gpunode stacks` shows it.",
    ),
    "host",
)
LOCK = Reason(
    "lock",
    "its process waits for a lock, a queue or another thread of its own",
    "where its main thread stands: a lock or a queue of Python, or `futex` in the kernel",
    Guidance(
        "soon",
        "whose process waits for a lock, a queue or another thread of its own",
        "See which thread holds it: `gpunode stacks` shows all of them. It does not come by "
        "itself if they wait for each other.",
    ),
    "host",
)
LOADER = Reason(
    "loader",
    "its process waits for its data loader",
    "where its main thread stands: `torch.utils.data`",
    Guidance(
        "soon",
        "whose process waits for its data loader",
        "See what the processes of its loader do: `gpunode stacks`. One of them may hang or have "
        "ended.",
    ),
    "data",
)
DOWNLOAD = Reason(
    "download",
    "its process exchanges data with a server over HTTP",
    "where its main thread stands: requests, urllib3, boto and others",
    Guidance(
        "soon",
        "whose process exchanges data with a server over HTTP",
        "See which line asks: `gpunode stacks`. Give the request a timeout, or fetch the data "
        "before the training.",
    ),
    "data",
)
SOCKET = Reason(
    "socket",
    "its process waits for an answer over a socket",
    "where its main thread stands: a socket of Python, or of the kernel",
    Guidance(
        "soon",
        "whose process waits for an answer over a socket",
        "See which line waits: `gpunode stacks`. Then see what the other end does.",
    ),
    "host",
)
STORAGE = Reason(
    "storage",
    "its process waits for a disk or a file server",
    "the function of the kernel in which its main thread waits: NFS, Lustre, FUSE, a disk",
    Guidance(
        "soon",
        "whose process waits for a disk or a file server",
        "Look for a disk or file server that does not answer, under I/O. The job goes on when it "
        "does.",
    ),
    "data",
)
ANOTHER_PROCESS = Reason(
    "another_process",
    "its process waits for another process",
    "where its main thread stands: a pipe, a child process, a lock on a file, `multiprocessing`",
    Guidance(
        "soon",
        "whose process waits for another process",
        "See which line waits: `gpunode stacks`. The process at the other end, or with the lock, "
        "may hang or have ended.",
    ),
    "host",
)
DEBUGGER = Reason(
    "debugger",
    "its process stands at the prompt of a debugger",
    "where its main thread stands: pdb, debugpy",
    Guidance(
        "now",
        "whose process stands at the prompt of a debugger",
        "Continue it in the debugger, or end the job. Take `breakpoint()` out of the code.",
    ),
    "host",
)
EXITING = Reason(
    "exiting",
    "its process handles an exception or exits, and does not get to its end",
    "where its main thread stands: a traceback is made or reported, or Python ends and waits",
    Guidance(
        "now",
        "whose process handles an exception or exits, and does not get to its end",
        "Read the first error in the log of this rank, then restart the job.",
    ),
    "peers",
)
SLEEPING = Reason(
    "sleeping",
    "its process sleeps, as by `time.sleep`",
    "the function of the kernel in which its main thread waits: a timer",
    Guidance(
        "soon",
        "whose process sleeps, as by `time.sleep`",
        "See which line sleeps: `gpunode stacks`. A loop that tries again and again looks so, too.",
    ),
    "host",
)
COLLECTIVE = Reason(
    "collective",
    "its process is in a collective that its GPU has not begun, or another than the others",
    "where its main thread stands: `torch.distributed`",
    Guidance(
        "now",
        "whose process is in a collective that its GPU has not begun, or another than the others",
        "Compare the lines at which the ranks stand: `gpunode stacks`. All must call the same "
        "collectives in the same order.",
    ),
    "peers",
)
UNKNOWN = Reason(
    "unknown",
    "nothing on this node tells why",
    "none of these",
    Guidance(
        "soon",
        "and nothing on this node tells why",
        "See where it stands: `gpunode stacks --pid PID`. Restart the job if it does not come.",
    ),
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

AT_WORK = (EVALUATING.name, CHECKPOINTING.name, PREPARING.name)
"""Reasons that end by themselves."""

WAITED_FOR = Metric(
    "gpunode_gpu_waited_for",
    "gauge",
    "1 for the GPU that the other GPUs of the job on this node wait for; `reason` says what its "
    "process does meanwhile (docs/verdict.md).",
    (*GPU, "reason"),
)
