"""What is said of a process for which the other GPUs of its job wait."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import pytest

from gpunode.config.daemon import Settings, StacksSettings
from gpunode.jobs.steps import GARBAGE, ClientReports, Progress, ReportedPosition
from gpunode.metric import Metric
from gpunode.node.node import Node, NotRecorded, SteppedClock
from gpunode.node.stacks import (
    MAX_FRAMES,
    MAX_THREADS,
    Frame,
    ProcessStacks,
    ThreadStack,
    parse,
    stacks_of,
)
from gpunode.source import WHOLE_NODE, Place, Reading, Source
from gpunode.verdict.case import Evidence
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.findings import status
from gpunode.verdict.looking import LOOK_TIMES, LOOKED, REPEATED_LOOKS, Looking
from gpunode.verdict.reasons import REASONS
from gpunode.verdict.where import main_thread, own_frame, reason_of, sentence
from tests.cases import with_each
from tests.verdict.stage import Actor, Stage

LIBRARY = "/opt/venv/lib/python3.12/site-packages"
STDLIB = "/usr/lib/python3.12"
LATE = 101
STAT = "{} (python3) S 1 1 1 0 -1 0 9 0 0 0 1 1 0 0 20 0 1 0 {} 0 0"


def thread(*frames: tuple[str, str, int], waits_in: str = "") -> ThreadStack:
    """The main thread of the process that is late: its frames, the innermost first."""
    found = tuple(Frame(function, file, line) for function, file, line in frames)
    return ThreadStack(LATE, "MainThread", "S", waits_in, frames=found)


def stacks(*threads: ThreadStack) -> ProcessStacks:
    return ProcessStacks(LATE, threads, len(threads))


IN_LOCK = stacks(thread(("read_shard", "/home/a/data/shards.py", 142), waits_in="futex_wait_queue"))
IN_ALL_REDUCE = stacks(
    thread(
        ("all_reduce", f"{LIBRARY}/torch/distributed/distributed_c10d.py", 2501),
        ("train", "/home/a/train.py", 88),
    )
)


class StackNode:
    """A node that answers where processes stand, and when they began."""

    def __init__(self, late: ProcessStacks | OSError, start: float = 50.0) -> None:
        self.late = late
        self.start = start
        self.asked: list[int] = []

    def stacks(self, pid: int) -> ProcessStacks:
        self.asked.append(pid)
        if isinstance(self.late, OSError):
            raise self.late
        return self.late if pid == LATE else IN_ALL_REDUCE

    def read_text(self, path: str) -> str:
        assert path.endswith("/stat")
        return STAT.format(path.split("/")[2], int(self.start))


def actors() -> list[Actor]:
    return [Actor(i, processes=((100 + i, 50.0),), jobs=("train",)) for i in range(4)]


def hanging(told: StackNode, seconds: float, **settings: bool) -> Stage:
    """A job of which GPU 1 does not come, while the other three wait, for so many seconds."""
    cast = actors()
    looking = Looking(node(told), Settings(stacks=StacksSettings(**settings)))
    stage = Stage(*cast, views=(looking,))
    stage.play(40.0)
    for actor in cast:
        if actor.index == 1:
            actor.states = {"idle": 1.0}
        else:
            actor.block()
    stage.play(seconds)
    return stage


def node(told: StackNode) -> Node:
    return told  # type: ignore[return-value]


def meanings(stage: Stage) -> list[str]:
    evidence: Sequence[Evidence] = stage.verdict(0).evidence
    return [one.meaning for one in evidence]


def test_a_process_that_has_ended_and_is_still_there_is_gone() -> None:
    ended = stacks(ThreadStack(LATE, "python3", "Z"))
    assert sentence(ended, code=True) == "main thread, has ended"
    assert reason_of(ended) is REASONS["gone"]


def test_of_a_process_whose_main_thread_has_ended_another_tells() -> None:
    ended = ThreadStack(LATE, "python3", "Z")
    left = ThreadStack(LATE + 1, "cuda-EvtHandlr", "D", "os_acquire_mutex")
    found = stacks(ended, left)
    assert sentence(found, code=False) == "a thread, waiting in the kernel (`os_acquire_mutex`)"
    assert reason_of(found) is None


def test_nobody_is_looked_at_before_a_stall_is_called_for_ten_seconds() -> None:
    told = StackNode(IN_LOCK)
    hanging(told, 9.0)
    assert told.asked == []


def test_a_look_is_not_put_off_by_a_window_that_is_milliseconds_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = StackNode(IN_LOCK)
    stage = hanging(told, 0.0)
    with monkeypatch.context() as late:
        late.setattr(SteppedClock, "monotonic", lambda clock: clock.now + 0.005)
        while not CAUSES[stage.verdict(0).cause].waits_for_peers:
            stage.play(0.1)
    stage.play(LOOK_TIMES[0])
    assert told.asked[:1] == [LATE]


def test_the_one_that_is_late_is_looked_at_and_two_that_wait() -> None:
    told = StackNode(IN_LOCK)
    stage = hanging(told, 16.0)
    assert told.asked == [LATE, 100, 102]
    assert stage.waited_for == [(1, "lock")]
    assert stage.verdict(0).cause == "stalled_collective"


def test_it_is_looked_at_again_after_a_minute_and_before_the_watchdog() -> None:
    told = StackNode(IN_LOCK)
    hanging(told, 600.0)
    assert told.asked.count(LATE) == len(LOOK_TIMES)


def test_one_that_stands_where_the_others_wait_is_looked_at_again() -> None:
    told = StackNode(IN_ALL_REDUCE)
    stage = hanging(told, 14.0, code=True)
    assert "GPU 1: main thread in a/train.py:88 train" in " ".join(meanings(stage))
    told.late = IN_LOCK
    stage.play(4.0)
    assert "GPU 1: main thread in data/shards.py:142 read_shard" in " ".join(meanings(stage))
    looks = told.asked.count(LATE)
    stage.play(20.0)
    assert told.asked.count(LATE) == looks


def test_one_that_always_stands_where_the_others_wait_is_not_looked_at_for_ever() -> None:
    told = StackNode(IN_ALL_REDUCE)
    hanging(told, 50.0)
    assert told.asked.count(LATE) == 1 + REPEATED_LOOKS


def test_the_code_is_told_only_where_a_site_wants_it() -> None:
    open_to_all = hanging(StackNode(IN_LOCK), 16.0)
    told = "main thread, waiting in the kernel for another thread or a lock (`futex_wait_queue`)"
    assert f"where it stands: GPU 1: {told}" in " ".join(meanings(open_to_all))
    assert "shards" not in repr(status(open_to_all.loop))

    closed = hanging(StackNode(IN_LOCK), 16.0, code=True)
    said = " ".join(meanings(closed))
    assert "main thread in data/shards.py:142 read_shard, waiting in the kernel" in said
    assert "GPU 0, which waits: main thread in a/train.py:88 train" in said
    found = status(closed.loop).findings[0]
    assert "data/shards.py:142 read_shard" in found.detail
    assert "waits for a lock" in found.title


def test_a_site_can_do_without() -> None:
    told = StackNode(IN_LOCK)
    stage = hanging(told, 60.0, look=False)
    assert told.asked == []
    assert stage.waited_for == [(1, "unknown")]


@pytest.mark.parametrize(
    ("late", "result"),
    [(IN_LOCK, "python"), (PermissionError(13, "Permission denied"), "nothing")],
)
def test_each_look_counts(late: ProcessStacks | OSError, result: str) -> None:
    stage = hanging(StackNode(late), 16.0)
    counts = {s.labels[0]: s.value for s in stage.loop.samples() if s.metric is LOOKED}
    assert counts == {**dict.fromkeys(("python", "kernel", "nothing"), 0.0), result: 3.0}


def test_a_process_that_took_the_pid_of_another_tells_nothing() -> None:
    stage = hanging(StackNode(IN_LOCK, start=51.0), 16.0)
    assert stage.waited_for == [(1, "unknown")]
    assert not any("where it stands" in meaning for meaning in meanings(stage))


def test_on_a_tape_without_looks_nothing_is_missed() -> None:
    stage = hanging(StackNode(NotRecorded(2, "not recorded")), 16.0)
    assert stage.waited_for == [(1, "unknown")]
    assert all(s.value == 0.0 for s in stage.loop.samples() if s.metric is LOOKED)


def looked_at(told: StackNode) -> tuple[Stage, list[Actor]]:
    """A stall that has been looked at once, and its actors, for what comes after it."""
    cast = actors()
    stage = Stage(*cast, views=(Looking(node(told), Settings()),))
    stage.play(40.0)
    for actor in cast:
        actor.states = {"idle": 1.0} if actor.index == 1 else {"blocked": 1.0}
    stage.play(16.0)
    return stage, cast


def test_what_was_seen_of_a_stall_is_told_no_longer_once_it_is_over() -> None:
    stage, cast = looked_at(StackNode(IN_LOCK))
    for actor in cast:
        actor.states = {"compute": 1.0}
    stage.play(60.0)
    assert not any("where it stands" in meaning for meaning in meanings(stage))


def test_the_next_job_on_the_same_gpus_is_looked_at_for_itself() -> None:
    told = StackNode(IN_LOCK)
    stage, cast = looked_at(told)
    assert told.asked.count(LATE) == 1
    for actor in cast:
        actor.processes = ((200 + actor.index, 90.0),)
    stage.play(30.0)
    assert told.asked.count(200 + 1) == 1


@dataclass
class Client:
    """A source that tells what a client says of itself."""

    progress: Progress
    name = "client"
    every = 2.0
    metrics: tuple[Metric, ...] = ()

    def find(self) -> list[tuple[Place, Source]]:
        return [(WHOLE_NODE, self)]

    def read(self) -> Reading:
        frames = (Frame("read_shard", "/home/a/data/shards.py", 142),)
        return Reading((), ClientReports((ReportedPosition(LATE, 50.0, frames, self.progress),)))


UNSEEN = replace(stacks(thread(waits_in="pipe_read")), without_python="Permission denied")
SEEN = stacks(thread(("save", "/home/a/train.py", 9), waits_in="pipe_read"))


@with_each(
    [
        (
            UNSEEN,
            Progress("step", 1042, 0.0, 0.0),
            "main thread in data/shards.py:142 read_shard, phase `step`, "
            "step 1042 since its start, waiting in the kernel for a pipe",
        ),
        (
            SEEN,
            Progress("checkpoint", 0, 0.9, 10.0),
            "main thread in a/train.py:9 save, phase `checkpoint`, step 0 since its start, waiting",
        ),
        (
            SEEN,
            Progress("checkpoint", None, 0.0, 14.2),
            "main thread in a/train.py:9 save, phase `checkpoint`, its client silent for 14 s, "
            "waiting",
        ),
    ]
)
def test_the_word_of_the_client_is_told_with_the_place(
    found: ProcessStacks, progress: Progress, says: str
) -> None:
    """Its frames count where nobody may look; its phase and step always."""
    cast = actors()
    looking = Looking(node(StackNode(found)), Settings(stacks=StacksSettings(code=True)))
    stage = Stage(*cast, finders=(Client(progress),), views=(looking,))
    stage.play(40.0)
    for actor in cast:
        actor.states = {"idle": 1.0} if actor.index == 1 else {"blocked": 1.0}
    stage.play(16.0)
    assert says in " ".join(meanings(stage))


def test_a_look_does_not_take_back_that_a_process_collects_garbage() -> None:
    """A finalizer that hangs in a lock is told of as both."""
    cast = actors()
    client = Client(Progress("step", 1042, 12.4, 0.0))
    looking = Looking(node(StackNode(IN_LOCK)), Settings(stacks=StacksSettings(code=True)))
    stage = Stage(*cast, finders=(client,), views=(looking,))
    stage.play(40.0)
    cast[1].rates = {(GARBAGE, ()): 1.0}
    for actor in cast:
        actor.states = {"idle": 1.0} if actor.index == 1 else {"blocked": 1.0}
    stage.play(16.0)
    assert stage.waited_for == [(1, "garbage_collection")]
    says = "step 1042 since its start, collecting garbage for 12 s, waiting in the kernel for"
    assert says in " ".join(meanings(stage))


def test_phase_and_step_are_told_where_nothing_else_is_known() -> None:
    found = ProcessStacks(LATE, (ThreadStack(LATE, ""),), 1)
    assert sentence(found, code=False) == ""
    said = sentence(found, False, Progress("data", 7, 0.0, 0.0))
    assert said == "main thread, phase `data`, step 7 since its start"


# Which reason


REASONED = {
    "debugger": (("Pdb._cmdloop", f"{STDLIB}/pdb.py", 451), ("train", "/a/train.py", 3)),
    "exiting": (("_shutdown", f"{STDLIB}/threading.py", 1624),),
    "loader": (
        ("Queue.get", f"{STDLIB}/multiprocessing/queues.py", 113),
        ("_try_get_data", f"{LIBRARY}/torch/utils/data/dataloader.py", 1251),
    ),
    "download": (
        ("SSLSocket.read", f"{STDLIB}/ssl.py", 1103),
        ("urlopen", f"{LIBRARY}/urllib3/connectionpool.py", 787),
        ("Session.send", f"{LIBRARY}/requests/sessions.py", 703),
    ),
    "checkpointing": (
        ("_save", f"{LIBRARY}/torch/serialization.py", 1085),
        ("checkpoint", "/a/train.py", 9),
    ),
    "collective": (("barrier", f"{LIBRARY}/torch/distributed/distributed_c10d.py", 4159),),
    "another_process": (("Popen._wait", f"{STDLIB}/subprocess.py", 2053),),
    "socket": (("SocketIO.readinto", f"{STDLIB}/socket.py", 720),),
    "lock": (("Queue.get", f"{STDLIB}/queue.py", 171), ("read", "/a/data.py", 7)),
}


@with_each(REASONED.items())
def test_frames_of_modules_that_all_use_tell_the_reason(
    reason: str, frames: tuple[tuple[str, str, int], ...]
) -> None:
    for waits_in in ("", "futex_wait_queue"):
        found = reason_of(stacks(thread(*frames, waits_in=waits_in)))
        assert found is REASONS[reason]


ERRORS = f"{LIBRARY}/torch/distributed/elastic/multiprocessing/errors"
RECORDED = (
    (  # debugpy 1.8.22: debugpy.wait_for_client()
        "debugger",
        (
            ("Condition.wait", f"{STDLIB}/threading.py", 331),
            (
                "PyDB.block_until_configuration_done",
                f"{LIBRARY}/debugpy/_vendored/pydevd/pydevd.py",
                9,
            ),
            ("_wait_for_attach", f"{LIBRARY}/debugpy/_vendored/pydevd/pydevd.py", 3040),
            ("wait_for_client_cls.__call__", f"{LIBRARY}/debugpy/server/api.py", 325),
            ("<module>", "/a/train.py", 3),
        ),
    ),
    (  # ipdb 0.13.13: ipdb.post_mortem()
        "debugger",
        (
            ("Cmd.cmdloop", f"{STDLIB}/cmd.py", 126),
            ("Pdb._cmdloop", f"{LIBRARY}/IPython/core/debugger.py", 557),
            ("Pdb.interaction", f"{STDLIB}/pdb.py", 433),
            ("post_mortem", f"{LIBRARY}/ipdb/__main__.py", 210),
        ),
    ),
    (  # IPython 9.18.1: sys.excepthook = VerboseTB(), which shows local variables
        "exiting",
        (
            ("Tensor.__repr__", "/a/train.py", 5),
            ("VerboseTB.format_record", f"{LIBRARY}/IPython/core/ultratb.py", 652),
            ("VerboseTB.__call__", f"{LIBRARY}/IPython/core/ultratb.py", 1095),
        ),
    ),
    (  # better-exceptions 0.3.3
        "exiting",
        (
            ("Tensor.__repr__", "/a/train.py", 4),
            ("ExceptionFormatter.format_value", f"{LIBRARY}/better_exceptions/formatter.py", 117),
            ("excepthook", f"{LIBRARY}/better_exceptions/__init__.py", 53),
        ),
    ),
    (  # loguru 0.7.3: @logger.catch
        "exiting",
        (
            ("Tensor.__repr__", "/a/train.py", 4),
            ("ExceptionFormatter._format_value", f"{LIBRARY}/loguru/_better_exceptions.py", 340),
            ("Logger.catch.<locals>.Catcher.__exit__", f"{LIBRARY}/loguru/_logger.py", 1261),
            ("<module>", "/a/train.py", 9),
        ),
    ),
    (  # sentry-sdk 2.75.0: what it sends at the end
        "exiting",
        (
            ("Condition.wait", f"{STDLIB}/threading.py", 331),
            ("BackgroundWorker._timed_queue_join", f"{LIBRARY}/sentry_sdk/worker.py", 80),
            (
                "AtexitIntegration.setup_once.<locals>._shutdown",
                f"{LIBRARY}/sentry_sdk/integrations/atexit.py",
                51,
            ),
        ),
    ),
    (  # the same: it shows local variables
        "exiting",
        (
            ("Tensor.__repr__", "/a/train.py", 5),
            ("safe_repr", f"{LIBRARY}/sentry_sdk/utils.py", 557),
            (
                "_make_excepthook.<locals>.sentry_sdk_excepthook",
                f"{LIBRARY}/sentry_sdk/integrations/excepthook.py",
                55,
            ),
        ),
    ),
    (  # torch: @record, with a file for errors that waits
        "exiting",
        (
            ("ErrorHandler.record_exception", f"{ERRORS}/error_handler.py", 81),
            ("record.<locals>.wrap.<locals>.wrapper", f"{ERRORS}/__init__.py", 361),
            ("<module>", "/a/train.py", 7),
        ),
    ),
    (  # a lock of which the holder died while it compiled an extension
        "another_process",
        (
            ("FileBaton.wait", f"{LIBRARY}/torch/utils/file_baton.py", 56),
            ("_jit_compile", f"{LIBRARY}/torch/utils/cpp_extension.py", 2129),
            ("<module>", "/a/train.py", 7),
        ),
    ),
    (
        "another_process",
        (
            ("BaseFileLock.acquire", f"{LIBRARY}/filelock/_api.py", 342),
            ("load_dataset", "/a/data.py", 12),
        ),
    ),
    (  # torch: @record, at work
        "sleeping",
        (
            ("main", "/a/train.py", 4),
            ("record.<locals>.wrap.<locals>.wrapper", f"{ERRORS}/__init__.py", 346),
            ("<module>", "/a/train.py", 5),
        ),
    ),
)
"""What was seen of small programs."""


@with_each(RECORDED)
def test_what_a_thread_does_in_well_known_modules_is_recognised(
    reason: str, frames: tuple[tuple[str, str, int], ...]
) -> None:
    found = reason_of(stacks(thread(*frames, waits_in="hrtimer_nanosleep")))
    assert found is REASONS[reason]


@with_each(
    [
        ("rpc_wait_bit_killable", "storage", "an NFS server"),
        ("request_wait_answer", "storage", "a filesystem in user space (FUSE)"),
        ("ptlrpc_set_wait", "storage", "Lustre"),
        ("folio_wait_bit_common", "storage", "a disk"),
        ("hrtimer_nanosleep", "sleeping", "a timer"),
        ("pipe_read", "another_process", "a pipe"),
        ("do_wait", "another_process", "a child process to end"),
        ("wait_woken", "socket", "a socket"),
        ("unix_stream_read_generic", "socket", "a socket"),
        ("poll_schedule_timeout.constprop.0", "socket", "an event of a socket, a pipe or a timer"),
        ("ep_poll", "socket", "an event of a socket, a pipe or a timer"),
        ("futex_wait_queue_me", "lock", "another thread or a lock"),
        ("locks_lock_inode_wait", "another_process", "a lock on a file"),
    ]
)
def test_the_kernel_tells_what_a_thread_waits_for(waits_in: str, reason: str, words: str) -> None:
    found = stacks(thread(("read_shard", "/a/data.py", 7), waits_in=waits_in))
    assert reason_of(found) is REASONS[reason]
    assert f"waiting in the kernel for {words} (`{waits_in}`)" in sentence(found, code=False)


def test_a_file_that_is_read_in_the_loader_is_what_it_waits_for() -> None:
    frames = (
        ("Shards.__getitem__", "/home/a/data/shards.py", 142),
        ("fetch", f"{LIBRARY}/torch/utils/data/_utils/fetch.py", 52),
    )
    found = stacks(thread(*frames, waits_in="rpc_wait_bit_killable"))
    assert reason_of(found) is REASONS["storage"]
    assert "data/shards.py:142 Shards.__getitem__, waiting" in sentence(found, code=True)


SPAWNED = (
    ("BaseProcess.run", f"{STDLIB}/multiprocessing/process.py", 108),
    ("BaseProcess._bootstrap", f"{STDLIB}/multiprocessing/process.py", 314),
)
FORKED = (
    *SPAWNED,
    ("Popen._launch", f"{STDLIB}/multiprocessing/popen_fork.py", 71),
    ("DataLoader.__iter__", f"{LIBRARY}/torch/utils/data/dataloader.py", 430),
)
OF_A_POOL = (("worker", f"{STDLIB}/multiprocessing/pool.py", 125), *FORKED)
OF_AN_EXECUTOR = (("_process_worker", f"{STDLIB}/concurrent/futures/process.py", 264), *SPAWNED)


WAITS = {
    "futex_wait_queue": "lock",
    "ep_poll": "socket",
    "hrtimer_nanosleep": "sleeping",
    "pipe_read": "another_process",
}


@with_each(product([SPAWNED, FORKED, OF_A_POOL, OF_AN_EXECUTOR], WAITS))
def test_how_a_process_was_started_does_not_tell_what_it_does(
    begins: tuple[tuple[str, str, int], ...], waits_in: str
) -> None:
    """As each rank of ``torch.multiprocessing.spawn`` is."""
    found = stacks(thread(("train", "/a/train.py", 3), *begins, waits_in=waits_in))
    assert reason_of(found) is REASONS[WAITS[waits_in]]
    assert "main thread in a/train.py:3 train, waiting" in sentence(found, code=True)


def test_a_program_that_runs_under_a_debugger_is_not_at_its_prompt() -> None:
    frames = (
        ("train", "/a/train.py", 3),
        ("Pdb._runmodule", f"{STDLIB}/pdb.py", 1684),
        ("main", f"{LIBRARY}/debugpy/server/cli.py", 430),
    )
    assert reason_of(stacks(thread(*frames))) is None


def test_a_thread_that_sleeps_with_the_gil_is_named() -> None:
    holder = ThreadStack(7, "decoder", "S", "hrtimer_nanosleep", holds_gil=True)
    found = stacks(thread(("train", "/a/train.py", 3), waits_in="futex_do_wait"), holder)
    assert "which waits while thread decoder holds the GIL" in sentence(found, code=True)
    assert "decoder" not in sentence(found, code=False)
    runs = stacks(found.threads[0], ThreadStack(7, "decoder", "R", "", holds_gil=True))
    assert "GIL" not in sentence(runs, code=True)


def test_threads_that_stand_at_the_same_place_are_counted() -> None:
    frames = (Frame("read", "/a/data.py", 7),)
    workers = (ThreadStack(n, f"worker {n}", "S", "pipe_read", frames=frames) for n in (7, 8))
    found = stacks(thread(("read", "/a/data.py", 7), waits_in="pipe_read"), *workers)
    assert sentence(found, code=True).endswith("(`pipe_read`), 2 more threads the same")


# What is kept


def py_spy_thread(
    pid: int | None, name: str, frames: int, file: str = "/a.py"
) -> dict[str, object]:
    frame = {"name": "f", "filename": file, "line": 1, "locals": {"token": "hunter2"}}
    return {
        "os_thread_id": pid,
        "thread_name": name,
        "owns_gil": False,
        "frames": [frame] * frames,
        "process_info": {"command_line": "train.py --token hunter2"},
    }


def test_a_hostile_process_costs_a_bound_and_prints() -> None:
    threads = [
        py_spy_thread(9000 + n, "x\n\x1b[31m\u202e" * 99, 40, "/a\n" * 500) for n in range(100)
    ]
    text = json.dumps(threads)
    found = stacks_of(LATE, range(100, 5100), lambda: text, lambda _: "")
    assert len(found.threads) == MAX_THREADS
    assert found.threads[0].thread == LATE
    assert found.all_threads == 5000
    assert all(len(one.frames) <= MAX_FRAMES for one in found.threads)
    assert "hunter2" not in repr(found)
    assert sentence(found, code=True).isprintable()
    assert max(len(one.name) for one in found.threads) <= 64


@with_each(["", "[", "{}", '[{"frames": 1}]', "Error: no Python"])
def test_what_is_no_answer_of_py_spy_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"ThreadSaid|JSON|list"):
        parse(text)
    found = stacks_of(LATE, [LATE], lambda: text, lambda _: "")
    assert found.without_python == "py-spy printed what cannot be read"
    assert [one.thread for one in found.threads] == [LATE]


def test_before_python_3_11_the_main_thread_has_no_number_but_begins_with_a_module() -> None:
    def said(*names: str) -> dict[str, object]:
        frames = [{"name": name, "filename": "/a/job.py", "line": 7} for name in names]
        return {"os_thread_id": None, "thread_name": None, "owns_gil": False, "frames": frames}

    text = json.dumps([said("run", "_bootstrap"), said("step", "<module>")])
    stat = STAT.format(LATE, 50)
    found = stacks_of(LATE, [LATE, LATE + 1], lambda: text, lambda _: stat)
    main = main_thread(found)
    assert main is not None
    assert main.thread == LATE
    assert [frame.function for frame in main.frames] == ["step", "<module>"]
    assert sum(one.thread == LATE for one in found.threads) == 1


def test_in_a_container_threads_have_other_numbers() -> None:
    files = {
        f"/proc/{LATE}/task/{LATE}/status": f"Name:\tpython\nNSpid:\t{LATE}\t1\n",
        f"/proc/{LATE}/task/{LATE}/stat": STAT.format(LATE, 50),
        f"/proc/{LATE}/task/{LATE}/wchan": "hrtimer_nanosleep",
    }
    text = json.dumps([py_spy_thread(1, "MainThread", 1)])
    found = stacks_of(LATE, [LATE], lambda: text, reading(files))
    main = main_thread(found)
    assert main is not None
    assert (main.thread, main.waits_in) == (LATE, "hrtimer_nanosleep")
    assert own_frame(main.frames) == Frame("f", "/a.py", 1)
    assert len(found.threads) == 1


def reading(files: dict[str, str]) -> Callable[[str], str]:
    """Reads files that are these, and no others."""

    def read(path: str) -> str:
        if path not in files:
            raise FileNotFoundError(2, "No such file or directory", path)
        return files[path]

    return read
