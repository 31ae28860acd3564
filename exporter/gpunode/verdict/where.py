"""Where in its code a process stands, in one sentence, and the reason that tells.

A frame of a module that everybody uses says what the process does there: the innermost one counts
that ``KNOWN_FRAMES`` has, and else the function of the kernel in which the thread waits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpunode.holders.owner import Started
from gpunode.jobs.steps import SILENCE_SECONDS, Progress
from gpunode.node.stacks import Frame, ProcessStacks, ThreadStack
from gpunode.verdict.case import WaitedFor
from gpunode.verdict.facts import At
from gpunode.verdict.reasons import (
    ANOTHER_PROCESS,
    CHECKPOINTING,
    COLLECTIVE,
    DEBUGGER,
    DOWNLOAD,
    EXITING,
    GONE,
    LOADER,
    LOCK,
    SLEEPING,
    SOCKET,
    STORAGE,
    UNKNOWN,
    Reason,
)

PRIVATE = re.compile(
    r"/lib(?:64)?/python\d|/(?:site|dist)-packages/|^<frozen |^<string>$|/python\d[^/]*\.zip/"
)
"""Files of Python and of installed packages: what else there is, the job's people wrote."""

Known = tuple[re.Pattern[str], re.Pattern[str], Reason]


def _frame(file: str, function: str, reason: Reason) -> Known:
    return re.compile(rf"(?:^|/)(?:{file})$"), re.compile(rf"(?:.*\.)?(?:{function})"), reason


ANY = r"[^ ]+"
NO_WORKER = r"(?!(?:worker|(?:star)?mapstar|_process_\w+)$)[^ .]+"
"""Any function but those of a pool that call what a worker has to do."""

PROCESS_START = re.compile(r"(?:^|/)multiprocessing/process\.py$")
"""Where a process begins that another one started, which may itself be far into something."""

WEB = "requests|urllib3|aiohttp|httpx|httpcore|botocore|s3transfer|gcsfs|s3fs|huggingface_hub"

KNOWN_FRAMES: tuple[Known, ...] = (
    _frame(r"(?:pdb|bdb|cmd)\.py", r"interaction|_?cmdloop|user_\w+", DEBUGGER),
    _frame(r"(?:pydevd|_pydevd_bundle/.*)\.py", r"_?do_wait_suspend|_wait_for_attach", DEBUGGER),
    _frame(r"threading\.py", "_shutdown", EXITING),
    _frame(r"concurrent/futures/thread\.py", "_python_exit", EXITING),
    _frame(r"multiprocessing/util\.py", "_exit_function", EXITING),
    _frame(r"weakref\.py", "_exitfunc", EXITING),
    _frame(r"logging/__init__\.py", "shutdown", EXITING),
    _frame(r"(?:traceback|cgitb)\.py", ANY, EXITING),  # also rich/traceback.py
    _frame(r"IPython/core/ultratb\.py", ANY, EXITING),
    _frame(r"(?:better_exceptions/\w+|loguru/_better_exceptions)\.py", ANY, EXITING),
    _frame(
        r"sentry_sdk/integrations/(?:atexit|excepthook)\.py",
        "_shutdown|sentry_sdk_excepthook",
        EXITING,
    ),
    # Around it is the wrapper of `record`, in which the whole job runs.
    _frame(r"torch/distributed/elastic/.*/errors/\w+\.py", "record_exception", EXITING),
    _frame(r"torch/distributed/checkpoint/.*\.py", ANY, CHECKPOINTING),
    _frame(r"torch/serialization\.py", r"_?save|_?legacy_save", CHECKPOINTING),
    _frame(r"safetensors/\w+\.py", r"save\w*", CHECKPOINTING),
    _frame(r"torch/distributed/(?:distributed_c10d|c10d_logger)\.py", ANY, COLLECTIVE),
    _frame(r"torch/utils/data/.*\.py", ANY, LOADER),
    _frame(rf"(?:{WEB})/.*\.py|urllib/request\.py|http/client\.py", ANY, DOWNLOAD),
    _frame(r"(?:socket|ssl|socketserver|asyncore)\.py", ANY, SOCKET),
    _frame(r"subprocess\.py|multiprocessing/(?:popen_\w+|process)\.py", ANY, ANOTHER_PROCESS),
    _frame(r"multiprocessing/pool\.py", NO_WORKER, ANOTHER_PROCESS),
    _frame(r"multiprocessing/(?:queues|connection|managers)\.py", ANY, ANOTHER_PROCESS),
    _frame(r"threading\.py|queue\.py", ANY, LOCK),
    _frame(r"concurrent/futures/\w+\.py", NO_WORKER, LOCK),
    # They look again and again whether whoever has the lock on a file has let go of it, or died.
    _frame(r"filelock/\w+\.py|torch/utils/file_baton\.py", ANY, ANOTHER_PROCESS),
)
"""Modules, their functions, and what a thread does that is there. Of two that fit, the innermost
frame counts but for what goes on for long around it: a download within a loader is a download."""

OUTER = (DEBUGGER, EXITING, CHECKPOINTING, COLLECTIVE, LOADER, DOWNLOAD)
"""Reasons that explain what is called within them: the socket of a download, a loader's queue."""

KERNEL_FUNCTIONS: tuple[tuple[re.Pattern[str], str, Reason], ...] = tuple(
    (re.compile(pattern), words, reason)
    for pattern, words, reason in (
        (r"rpc_wait.*|nfs\d?_.*", "an NFS server", STORAGE),
        (r"request_wait_answer|fuse_.*|__fuse_.*", "a filesystem in user space (FUSE)", STORAGE),
        (r"ptlrpc_.*|cl_\w+|ldlm_.*|osc_.*|ll_.*", "Lustre", STORAGE),
        (r"ceph_.*|wait_on_.*ceph.*", "Ceph", STORAGE),
        (
            r"(?:folio|page)_wait.*|.*wait_on_(?:page|folio|buffer).*|io_schedule.*|blk_.*"
            r"|(?:ext4|xfs|btrfs|jbd2)_.*|submit_bio_wait|balance_dirty_pages.*",
            "a disk",
            STORAGE,
        ),
        (r"(?:hrtimer|do|common)_nanosleep|common_nsleep.*", "a timer", SLEEPING),
        (r"(?:anon_)?pipe_(?:read|write)|wait_for_partner|fifo_open", "a pipe", ANOTHER_PROCESS),
        (
            r"do_wait(?:pid)?|kernel_wait4|__do_wait|kernel_clone",
            "a child process to end",
            ANOTHER_PROCESS,
        ),
        (
            r"unix_\w+|wait_woken|sk_wait.*|(?:inet|tcp|udp|skb)_\w+|__skb_wait\w+",
            "a socket",
            SOCKET,
        ),
        (
            r"do_epoll_wait|ep_poll|do_poll.*|do_sys_poll|poll_schedule\w*|do_select"
            r"|core_sys_select",
            "an event of a socket, a pipe or a timer",
            SOCKET,
        ),
        (r"(?:__)?futex_\w+", "another thread or a lock", LOCK),
        # flock(2) and fcntl(2), of a file here or on an NFS server
        (
            r"(?:locks|flock|posix)_lock_\w*wait|fcntl_setlk|nlmclnt_\w+",
            "a lock on a file",
            ANOTHER_PROCESS,
        ),
    )
)
"""Functions of the kernel in which a thread waits, and for what."""

ZOMBIE = "Z"
STATES = {
    "R": "runs",
    "T": "is stopped by a signal",
    "t": "is stopped by a tracer",
    ZOMBIE: "has ended",
    "D": "waits in the kernel and cannot be interrupted",
}
"""By the letter of ``ps``, what a thread does of which nothing better is known."""


COLLECTS_FROM = 1.0
"""Seconds from which a collection of garbage is told; most take milliseconds."""


@dataclass(frozen=True, slots=True)
class StackLook:
    """Where the process on a GPU stood at a time, in seconds since the epoch."""

    at: At
    pid: int
    start: float
    """Ticks since boot, which tell it from another that had its PID."""

    rank: str
    owner: str
    """Whose it is, in words; empty if that is not known."""

    waits: bool
    """Whether it is one of those that wait, and not the one that they wait for."""

    time: float
    stacks: ProcessStacks
    progress: Progress | None = None
    """How far it has come, if it has a client that tells."""


@dataclass(frozen=True, slots=True)
class Looks:
    """The last looks at awaited processes and at some that wait."""

    looks: tuple[StackLook, ...]
    code: bool = False
    """Whether files, functions and lines may be told."""

    def of(self, at: At, processes: Iterable[Started]) -> StackLook | None:
        """The look at the process on a GPU that others wait for, if it still is there."""
        there = {(process.pid, process.start) for process in processes}
        of_gpu = (one for one in self.looks if one.at == at and not one.waits)
        return next((one for one in of_gpu if (one.pid, one.start) in there), None)

    def sentence(self, look: StackLook) -> str:
        """Where a process stands, whose it is, and where one stands that waits for it."""
        said = sentence(look.stacks, self.code, look.progress)
        if not said:
            return ""
        rank = f"rank {look.rank}" if look.rank else ""
        whose = " of ".join(filter(None, (rank, look.owner)))
        waiting = next(
            (
                f"; GPU {one.at[0]}, which waits: {other}"
                for one in self.looks
                if one.waits and (other := sentence(one.stacks, self.code, one.progress))
            ),
            "",
        )
        return f"GPU {look.at[0]}{f' ({whose})' if whose else ''}: {said}{waiting}"

    def told(
        self, late: Iterable[WaitedFor], processes: Callable[[At], Iterable[Started]]
    ) -> tuple[WaitedFor, ...]:
        """The awaited GPUs, with their positions, and the reason if the position shows one."""
        found = []
        for one in late:
            look = self.of(one.at, processes(one.at))
            if look is None:
                found.append(one)
                continue
            reason = reason_of(look.stacks) if one.reason == UNKNOWN.name else None
            name = reason.name if reason else one.reason
            found.append(replace(one, reason=name, where=self.sentence(look)))
        return tuple(found)


def main_thread(stacks: ProcessStacks) -> ThreadStack | None:
    """The thread that tells where a process stands: the main one, else the first with frames.

    If that has ended, others may go on, such as one that waits in a driver for good.
    """
    main = next((one for one in stacks.threads if one.thread == stacks.pid), None)
    if main is not None and main.state == ZOMBIE:
        return next((one for one in stacks.threads if one.state not in ("", ZOMBIE)), main)
    if main is not None and (main.frames or not any(one.frames for one in stacks.threads)):
        return main
    return next((one for one in stacks.threads if one.frames), main)


def own_frame(frames: Iterable[Frame]) -> Frame | None:
    """The innermost frame that is neither Python's nor of a package; else the innermost."""
    kept = tuple(frames)
    own = (frame for frame in kept if not PRIVATE.search(frame.file))
    return next(own, kept[0] if kept else None)


def reason_of(stacks: ProcessStacks) -> Reason | None:
    """What a process does, as its main thread shows; None where that is of no known kind."""
    thread = main_thread(stacks)
    if thread is None:
        return None
    if thread.state == ZOMBIE:
        return GONE
    known = _kernel_function(thread)
    in_kernel = known[1] if known else None
    telling = _telling(thread, in_kernel)
    return telling[1] if telling else in_kernel


def _telling(thread: ThreadStack, in_kernel: Reason | None) -> tuple[Frame, Reason] | None:
    """The frame that says what a thread does; None if what the kernel says is more precise."""
    frames = _own_frames(thread.frames)
    found = [(frame, reason) for frame in frames if (reason := _frame_reason(frame)) is not None]
    outer = next((one for one in found if one[1] in OUTER), None)
    if outer is not None and (in_kernel is not STORAGE or outer[1] is CHECKPOINTING):
        return outer
    # Everything in Python may wait for a lock at last, and for a socket in many ways. A module that
    # sleeps itself looks again and again for what it waits for.
    polls = in_kernel is SLEEPING and bool(found) and found[0][0] is frames[0]
    return found[0] if found and (polls or in_kernel in (None, LOCK, SOCKET)) else None


def _own_frames(frames: Sequence[Frame]) -> Sequence[Frame]:
    """The frames of a thread, innermost first, without those that started its process."""
    begins = (
        at
        for at, frame in enumerate(frames)
        if PROCESS_START.search(frame.file)
        and frame.function.rpartition(".")[2] in ("run", "_bootstrap")
    )
    return frames[: next(begins, len(frames))]


def sentence(stacks: ProcessStacks, code: bool, progress: Progress | None = None) -> str:
    """Where a process stands; without ``code``, no file, function or line of it is told."""
    thread = main_thread(stacks)
    if thread is None:
        return ""
    frame = own_frame(thread.frames) if code else None
    main = thread.thread == stacks.pid
    who = "main thread" if main else f"thread {thread.name}" if code else "a thread"
    parts = [f"{who} in {frame_text(frame)}" if frame else who]
    if frame is not None:
        known = _kernel_function(thread)
        telling = _telling(thread, known[1] if known else None)
        inner = telling[0] if telling else thread.frames[0]
        parts[0] += f" ({frame_text(inner)})" if inner is not frame else ""
    parts += _progress(progress) if progress else ()
    parts.append(_kernel_wait(stacks, thread, code))
    alike = sum(_same_place(thread, one) for one in stacks.threads) - 1
    if alike > 0:
        parts.append(f"{alike} more {'thread' if alike == 1 else 'threads'} the same")
    if parts[1:] == [""]:
        return "" if frame is None else parts[0]
    return ", ".join(filter(None, parts))


def _progress(told: Progress) -> Iterator[str]:
    """How far a process has come, by its own word."""
    yield f"phase `{told.phase}`"
    if told.step is not None:
        yield f"step {told.step} since its start"
    if told.collecting >= COLLECTS_FROM:
        yield f"collecting garbage for {told.collecting:.0f} s"
    if told.silent > SILENCE_SECONDS:
        yield f"its client silent for {told.silent:.0f} s"


def frame_text(frame: Frame) -> str:
    """A frame in words: the end of its path, the line and the function."""
    file = "/".join(frame.file.rsplit("/", 2)[-2:])
    return f"{file}:{frame.line or '?'} {frame.function}"


def _kernel_wait(stacks: ProcessStacks, thread: ThreadStack, code: bool) -> str:
    """What a thread waits for in the kernel, with the function that says so."""
    if thread.state in ("T", "t", ZOMBIE, "R"):
        return STATES[thread.state]
    holder = _gil_holder(stacks, thread)
    if holder is not None:
        other = f"thread {holder.name or holder.thread}" if code else "another thread"
        return f"which waits while {other} holds the GIL"
    known = _kernel_function(thread)
    if known is not None:
        return f"waiting in the kernel for {known[0]} (`{known[2]}`)"
    if thread.waits_in:
        return f"waiting in the kernel (`{thread.waits_in}`)"
    return STATES.get(thread.state, "")


def _kernel_function(thread: ThreadStack) -> tuple[str, Reason, str] | None:
    """What it waits for, the reason, and the function: the innermost that is known."""
    if thread.state == "R":
        return None
    for function in (thread.waits_in, *thread.kernel):
        name = function.partition(".")[0]  # GCC names its variants f.isra.0, f.constprop.0
        for pattern, words, reason in KERNEL_FUNCTIONS:
            if name and pattern.fullmatch(name):
                return words, reason, function
    return None


def _frame_reason(frame: Frame) -> Reason | None:
    for file, function, reason in KNOWN_FRAMES:
        if file.search(frame.file) and function.fullmatch(frame.function):
            return reason
    return None


def _gil_holder(stacks: ProcessStacks, thread: ThreadStack) -> ThreadStack | None:
    """Another thread that sleeps and keeps Python's lock, so that this one may not go on.

    One that runs has it for a moment only, as far as anybody can see.
    """
    if not thread.frames or thread.holds_gil:
        return None
    asleep = (one for one in stacks.threads if one.holds_gil and one.state not in ("", "R"))
    return next(asleep, None)


def _same_place(one: ThreadStack, other: ThreadStack) -> bool:
    """Whether two threads stand at the same place."""
    if one.frames or other.frames:
        return one.frames[:1] == other.frames[:1]
    return one.waits_in == other.waits_in and one.name == other.name
