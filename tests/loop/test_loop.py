"""The loop withstands hostile names, floods, a lack of threads, hung reads and endless errors."""

from __future__ import annotations

import gc
import re
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from gpunode.export.exposition import Exposition
from gpunode.export.web.app import create_app
from gpunode.holders.owner import Owner, Started
from gpunode.jobs.owners import OwnersDetail
from gpunode.loop import MAX_HUNG_READS, Loop, complaints
from gpunode.loop.complaints import LINES
from gpunode.loop.door import MAX_LABEL, SERIES, Door
from gpunode.loop.metrics import CPU_SECONDS, DROPPED, LATE, REST_CPU_SECONDS, SKIPPED, UNREAD, UP
from gpunode.loop.watch import Counts, Published, Watch
from gpunode.metric import Metric, Sample
from gpunode.node.local import SystemClock
from gpunode.node.node import SteppedClock
from gpunode.source import WHOLE_NODE, Place, Reading, Source
from gpunode.unread import MAX_EXAMPLE, Unknown, shape, unnumbered
from tests import strict
from tests.conftest import parse, until, values

NAMED = Metric("gpunode_named", "gauge", "Named by anyone.", ("name",))


class ScriptedSource:
    """A source that tells or raises what it is told to."""

    metrics = (NAMED,)

    def __init__(self, read: Callable[[], Reading], name: str = "told", every: float = 0.05):
        self.read = read
        self.name = name
        self.every = every


class Finds:
    """A finder that finds what it is told to."""

    def __init__(self, find: Callable[[], Iterable[tuple[Place, Source]]], name: str = "finds"):
        self.find = find
        self.name = name


def named(*names: str) -> Reading:
    return Reading(tuple(Sample(NAMED, (name,), 1.0) for name in names))


def finds(*sources: Source) -> Finds:
    return Finds(lambda: [(WHOLE_NODE, source) for source in sources])


def stepped(source: Source, place: Place = WHOLE_NODE) -> Loop:
    """A loop that has read a source once."""
    loop = Loop(SteppedClock(0.0), [Finds(lambda: [(place, source)])], find_every=10.0)
    for watch in loop.find():
        watch.step()
    return loop


@contextmanager
def running(*finders: Finds, find_every: float = 0.1) -> Iterator[Loop]:
    """A loop with its threads."""
    loop = Loop(SystemClock(), finders, find_every=find_every)
    loop.start()
    try:
        yield loop
    finally:
        loop.stop()
        until(lambda: not workers())


def workers() -> list[threading.Thread]:
    """The threads that read."""
    return [thread for thread in threading.enumerate() if thread.name == "worker"]


def up(loop: Loop, name: str) -> float | None:
    found = [s.value for s in loop.samples() if s.metric is UP and s.labels[0] == name]
    return found[0] if found and isinstance(found[0], float) else None


def loop_metric(loop: Loop, metric: Metric, source: str) -> float:
    """The value of a series about a source, 0 if there is none."""
    found = [s.value for s in loop.samples() if s.metric is metric and s.labels[0] == source]
    assert all(isinstance(value, float) for value in found)
    return sum(found)  # type: ignore[arg-type]


def dropped(loop: Loop) -> float:
    return loop_metric(loop, DROPPED, "told")


# What is not understood.

PORT = Unknown("port", "an RDMA port none of whose counters is known")
LINE = Unknown("line", "a line of unknown form")


class Meets(ScriptedSource):
    """A source that says what it does not understand."""

    unknowns = (PORT, LINE)


def test_what_is_not_understood_is_counted_from_zero_with_its_latest_examples() -> None:
    seen = [LINE.seen(f"line {number} \x1b[2J" + "x" * 500) for number in (1, 1, 2, 3, 4, 5, 6)]
    loop = stepped(Meets(lambda: Reading((), unread=tuple(seen))))
    told = {s.labels: s.value for s in loop.samples() if s.metric is UNREAD}
    assert told == {("told", "port"): 0.0, ("told", "line"): 7.0}
    (met,) = loop.unread()
    assert (met.source, met.what, met.times) == ("told", "line", 7)
    assert [example[:6] for example in met.examples] == [f"line {n}" for n in (2, 3, 4, 5, 6)]
    assert all(example.isprintable() and len(example) <= MAX_EXAMPLE for example in met.examples)


def test_a_kind_that_its_source_did_not_declare_is_counted_too() -> None:
    loop = stepped(ScriptedSource(lambda: Reading((), unread=(PORT.seen("mlx9_0"),))))
    assert [met.what for met in loop.unread()] == ["port"]
    assert up(loop, "told") == 1.0


@given(st.text(max_size=300))
def test_no_word_and_no_number_is_left_in_a_shape(text: str) -> None:
    left = re.sub(r"<\d+ hex>|[a0]", "", shape(text))
    assert not any(character.isalnum() for character in left)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            "NVRM: Xid (PCI:0000:3b:00): 999, pid='4711', name=train_llama.py, Ch 00000008",
            "NVRM: Xid (PCI:0:0:0): 0, pid='0', name=a_a.a, Ch 0",
        ),
        ("nvme nvme0: unknown status 0x4002 of 'my file'", "nvme nvme0: unknown status 0 of 'a a'"),
    ],
)
def test_a_line_keeps_the_words_of_the_kernel_alone(line: str, shown: str) -> None:
    assert unnumbered(line) == shown


# Names.

NAMES = {
    "not UTF-8": (["eth\udcff"], ["eth\ufffd"]),
    "JSON": (["\ud800"], ["\ufffd"]),
    "a line": (["a\nb"], ["a\ufffdb"]),
    "a terminal": (["\x1b[2J\x00\x9b"], ["\ufffd[2J\ufffd\ufffd"]),
    "right to left": (["\u202egnp.exe"], ["\ufffdgnp.exe"]),
    "long": (["x" * 10**6], ["x" * MAX_LABEL]),
    "long and odd": (["\udcff" * 10**6], ["\ufffd" * MAX_LABEL]),
    "equal when valid": (["a\x01", "b", "a\x02", "a\ufffd"], ["a\ufffd", "b"]),
    "told twice": (["a", "a", "a"], ["a"]),
    "foreign": (["노드", "größe", "a b", 'a"\\'], ["노드", "größe", "a b", 'a"\\']),
}


def test_odd_names_are_exported_as_valid_ones_each_once() -> None:
    for what, (names, exported) in NAMES.items():
        loop = stepped(ScriptedSource(lambda names=names: named(*names)))  # type: ignore[misc]
        for _ in range(2):
            (watch,) = loop.watches.values()
            watch.step()
            assert sorted(named_values(loop)) == sorted(exported), what
        assert dropped(loop) == 3 * (len(names) - len(exported)), what


anything = st.text(st.characters(exclude_categories=()), max_size=8)


@given(st.lists(st.lists(anything, max_size=8), max_size=4))
def test_whatever_the_names_every_series_is_valid_and_counted(reads: list[list[str]]) -> None:
    door, gone = Door(), 0
    for names in reads:
        samples = door.admit(named(*names)).samples
        found = [sample.labels[0] for sample in samples]
        assert len(set(found)) == len(found)
        assert all(name.isprintable() for name in found)
        assert {name for name in names if name.isprintable()} <= set(found)
        gone += len(names) - len(found)
        assert door.dropped == gone
        Exposition(lambda told=samples: told).encode("")  # type: ignore[misc]


def named_values(loop: Loop) -> dict[str, float]:
    """What is exported of ``NAMED``: a page that has a series twice does not parse."""
    page = TestClient(create_app(lambda: loop)).get("/metrics").text
    lines = [line for line in page.split("\n") if line.startswith("gpunode_named")]
    found = {dict(have)["name"]: v for (name, have), v in parse(page).items() if name == NAMED.name}
    assert len(lines) == len(found)
    return found


def test_of_sources_that_tell_the_same_the_first_counts_until_it_fails() -> None:
    def first() -> Reading:
        if fails:
            raise OSError(fails)
        return Reading((Sample(NAMED, ("a",), 1.0), Sample(NAMED, ("b\x01",), 1.0)))

    def second() -> Reading:
        return Reading(tuple(Sample(NAMED, (name,), 2.0) for name in ("a", "b\x02", "c")))

    def step() -> dict[str, float]:
        for watch in loop.watches.values():
            watch.step()
        return named_values(loop)

    fails = ""
    loop = Loop(
        SteppedClock(0.0),
        [finds(ScriptedSource(first, "first"), ScriptedSource(second, "second"))],
        find_every=10.0,
    )
    loop.find()
    for _ in range(3):
        assert step() == {"a": 1.0, "b\ufffd": 1.0, "c": 2.0}
    assert [loop_metric(loop, DROPPED, name) for name in ("first", "second")] == [0.0, 6.0]
    fails = "gone"
    assert step() == {"a": 2.0, "b\ufffd": 2.0, "c": 2.0}
    fails = ""
    assert step() == {"a": 2.0, "b\ufffd": 2.0, "c": 2.0}
    assert [loop_metric(loop, DROPPED, name) for name in ("first", "second")] == [2.0, 6.0]


def test_sources_that_tell_the_same_at_the_same_time_do_not_both_tell_it() -> None:
    many = [f"{at}" for at in range(500)]
    doors = [Door(lambda: doors) for _ in range(4)]
    ready = threading.Barrier(len(doors))
    counts: list[int] = []

    def bring(door: Door) -> None:
        ready.wait()
        counts.append(len(door.admit(named(*many)).samples))

    threads = [threading.Thread(target=bring, args=(door,)) for door in doors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(counts) == [0, 0, 0, 500]


def test_what_was_counted_of_a_source_stays_when_a_place_of_it_is_gone() -> None:
    def find() -> list[tuple[Place, Source]]:
        return [
            (Place(mountpoint=f"/{at}"), ScriptedSource(twice(at), "filesystem"))
            for at in range(places)
        ]

    def twice(at: int) -> Callable[[], Reading]:
        return lambda: named(f"{at}", f"{at}")

    loop = Loop(SteppedClock(0.0), [Finds(find)], find_every=10.0)
    seen: list[list[list[float]]] = []
    for places in (3, 1, 0, 2):  # noqa: B007 find looks at it
        for watch in loop.find():
            watch.step()
        page = parse(TestClient(create_app(lambda: loop)).get("/metrics").text)
        counters = DROPPED.name, LATE.name, SKIPPED.name
        seen.append([values(page, name, source="filesystem") for name in counters])
    assert seen == [[[n], [], []] for n in (3.0, 4.0, 4.0, 6.0)]


def test_a_mount_point_with_an_odd_name_has_valid_series() -> None:
    place = Place(mountpoint="/data\udcff\n")
    loop = stepped(ScriptedSource(lambda: named("a"), name="filesystem"), place)
    text = TestClient(create_app(lambda: loop)).get("/metrics").text
    assert values(parse(text), UP.name, mountpoint="/data\ufffd\ufffd") == [1.0]


def owned(pod: str, setting: str) -> Reading:
    """A process on a GPU, whose pod and settings somebody named."""
    process = Started(1, 0.0, Owner(owner_pod=pod), nccl={"NCCL_DEBUG": setting, setting: "1"})
    return Reading((), OwnersDetail((process,)))


def test_an_odd_name_in_a_detail_does_not_cost_the_answers_of_the_api() -> None:
    place = Place(gpu="0", uuid="GPU-aa")
    for name in {odd for names, _ in NAMES.values() for odd in names}:
        reads = ScriptedSource(lambda name=name: owned(name, name), name="gpu_owners")  # type: ignore[misc]
        loop = stepped(reads, place)
        page = TestClient(create_app(lambda loop=loop: loop)).get("/api/v1/gpus")  # type: ignore[misc]
        assert page.status_code == 200, name[:20]
        (process,) = page.json()[0]["gpu_owners"]["processes"]
        shown = process["owner"]["owner_pod"]
        assert shown.isprintable()
        assert len(shown) == len(name)
        assert process["nccl"] == {"NCCL_DEBUG": shown, shown: "1"}


def test_a_detail_that_is_printable_is_passed_on_as_it_is() -> None:
    reading = owned("trainer-0", "INFO")
    assert Door().admit(reading).detail is reading.detail


def test_valid_names_that_were_told_before_are_passed_on_as_they_are() -> None:
    names = [f"name{at}" for at in range(5000)]
    door, reading = Door(), named(*names)
    door.admit(named(*names))
    assert door.admit(reading) is reading


# Floods.


def test_a_flood_of_series_is_cut_counted_and_mentioned_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reads = iter(range(10))

    def flood() -> Reading:
        read = next(reads)
        return named(*(f"{read} {at}" for at in range(SERIES + 1000)))

    loop = stepped(ScriptedSource(flood))
    (watch,) = loop.watches.values()
    watch.step()
    assert sum(sample.metric is NAMED for sample in loop.samples()) == SERIES
    assert dropped(loop) == 2 * 1000
    assert len([r for r in caplog.records if "series left out" in r.getMessage()]) == 1


def test_a_node_with_512_cores_or_72_gpus_loses_no_series() -> None:
    door = Door()
    for series in (512 * 5, 72 * 40, 72 * 7 * 16):
        door.admit(named(*map(str, range(series))))
    assert door.dropped == 0


# Errors.

PRETENDS = {
    "ends the thread": SystemExit,
    "out of memory": MemoryError,
    "too deep": RecursionError,
    "not an Exception": BaseException,
    "a generator": GeneratorExit,
}


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolate faults of ours as a daemon does."""
    monkeypatch.setattr(complaints, "complain", strict.COMPLAIN)


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("kind", PRETENDS.values(), ids=PRETENDS.keys())
def test_a_source_and_a_finder_outlive_whatever_is_raised(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    fails = threading.Event()
    fails.set()

    def read() -> Reading:
        if fails.is_set():
            raise kind
        return named("a")

    def find() -> list[tuple[Place, Source]]:
        if fails.is_set():
            raise kind
        return []

    with running(finds(ScriptedSource(read)), Finds(find, "other")) as loop:
        until(lambda: loop.ready)
        assert up(loop, "told") == up(loop, "other") == 0
        fails.clear()
        until(lambda: up(loop, "told") and up(loop, "other") is None)
    told = f"told: read failed, its series stop: {kind.__name__}"
    assert sum(told in record.getMessage() for record in caplog.records) == 1


CHATTER = {
    "the same of another process": (["process {at} is gone at 0x{at:x}"], 1),
    "alternating": (["no file", "no space"], 60 + LINES),
    "flapping": (["no file", ""], 60 + LINES),
}


@pytest.mark.parametrize(("texts", "most"), CHATTER.values(), ids=CHATTER.keys())
def test_an_hour_of_errors_writes_a_line_a_minute_at_most(
    texts: list[str], most: int, caplog: pytest.LogCaptureFixture
) -> None:
    at = 0

    def read() -> Reading:
        text = texts[at % len(texts)].format(at=at)
        if text:
            raise OSError(text)
        return named("a")

    caplog.set_level("INFO")
    clock = SteppedClock(0.0)
    source = ScriptedSource(read, every=2.0)
    watch = Watch(source, WHOLE_NODE, source.read, clock, Counts(), Door(), Published())
    for at in range(1800):
        clock.now = at * 2.0
        watch.step()
    assert 1 <= len(caplog.records) <= most


def test_an_error_is_one_short_line_whatever_it_holds(caplog: pytest.LogCaptureFixture) -> None:
    def read() -> Reading:
        raise ValueError("\x1b[31m\n2026 INFO all is well\udcff" + "x" * 10**6)

    stepped(ScriptedSource(read))
    (record,) = caplog.records
    line = record.getMessage()
    assert line.isprintable()
    assert len(line) < 2 * MAX_LABEL


# Threads.


def test_threads_that_cannot_start_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    refused: list[str] = []

    def limited(thread: threading.Thread) -> None:
        if thread.name == "worker" and len(refused) < 3:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    told = ScriptedSource(lambda: named("a"))
    with running(finds(told), Finds(list, "other")) as loop:
        until(lambda: refused)
        assert not loop.ready
        until(lambda: up(loop, "told") == 1 and loop.ready)


@pytest.mark.usefixtures("lenient")
def test_a_source_that_ends_its_thread_is_read_again() -> None:
    class Ends(ScriptedSource):
        @property
        def every(self) -> float:
            if threading.current_thread().name == "worker" and not ended:
                ended.append(threading.current_thread())
                raise SystemExit
            return 0.05

        @every.setter
        def every(self, value: float) -> None: ...

    ended: list[threading.Thread] = []
    with running(finds(Ends(lambda: named("a")))) as loop:
        until(lambda: ended and up(loop, "told") == 1)


# Hangs.


def test_a_finder_that_hangs_delays_only_its_own_sources(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers = threading.Event()

    def find() -> list[tuple[Place, Source]]:
        answers.wait()
        return []

    hangs = Finds(find, "hangs")
    with running(hangs, finds(ScriptedSource(lambda: named("a")))) as loop:
        until(lambda: up(loop, "told") == 1)
        until(lambda: loop.ready)
        assert up(loop, "hangs") == 0
        until(lambda: [r for r in caplog.records if "hangs: looking for" in r.getMessage()])
        answers.set()
        until(lambda: up(loop, "hangs") is None)


def test_reads_that_hang_cost_a_thread_each_and_delay_no_other() -> None:
    answers, reads = threading.Event(), Counter[str]()

    def hang() -> Reading:
        answers.wait()
        return named("hung")

    def read(name: str) -> Reading:
        reads[name] += 1
        return named(name)

    sources = [ScriptedSource(partial(read, f"{at}"), f"told {at}") for at in range(40)]
    hangs = [ScriptedSource(hang, f"hangs {at}") for at in range(5)]
    with running(finds(*sources)) as loop:
        until(lambda: len(reads) == 40)
        assert len(workers()) <= 2
    with running(finds(*hangs, *sources)) as loop:
        expected = [0.0] * 5 + [1.0] * 40
        until(lambda: [up(loop, source.name) for source in (*hangs, *sources)] == expected)
        until(lambda: loop.ready)
        before = reads.copy()
        until(lambda: all(reads[name] > before[name] + 3 for name in before))
        assert len(workers()) <= 5 + 2
        answers.set()
        until(lambda: all(up(loop, source.name) == 1 for source in hangs))
        until(lambda: len(workers()) <= 2)


def test_what_sources_and_the_rest_use_is_what_the_process_uses() -> None:
    def read() -> Reading:
        sum(range(100_000))
        return named("a")

    with running(finds(ScriptedSource(read))) as loop:
        until(lambda: up(loop, "told") == 1)
        used = sum(
            s.value
            for s in loop.samples()
            if s.metric in (CPU_SECONDS, REST_CPU_SECONDS) and isinstance(s.value, float)
        )
        assert used == pytest.approx(time.process_time(), rel=0.05)
        assert loop_metric(loop, CPU_SECONDS, "told") > 0


def always_remounted() -> Place:
    return Place(mountpoint="/dead")


def elsewhere() -> Place:
    return Place(mountpoint=f"/dead{next(numbers)}")


numbers = count()


@pytest.mark.parametrize(
    ("where", "most"), [(always_remounted, 1), (elsewhere, MAX_HUNG_READS + 1)], ids=["same", "new"]
)
def test_dead_mounts_that_are_mounted_anew_leave_few_threads(
    where: Callable[[], Place], most: int
) -> None:
    answers = threading.Event()
    hung: set[threading.Thread] = set()
    looks = 0

    def read() -> Reading:
        hung.add(threading.current_thread())
        answers.wait()
        hung.discard(threading.current_thread())
        return Reading(())

    def find() -> list[tuple[Place, Source]]:
        nonlocal looks
        looks += 1
        return [(where(), ScriptedSource(read, "filesystem"))]

    with running(Finds(find), find_every=0.02) as loop:
        until(lambda: looks > 3 * MAX_HUNG_READS)
        assert 1 <= len(hung) <= most
        assert up(loop, "filesystem") == 0
        answers.set()
        until(lambda: up(loop, "filesystem") == 1)


def test_a_replay_leaves_alone_and_forgets_what_is_gone() -> None:
    read: list[str] = []
    sources: weakref.WeakSet[ScriptedSource] = weakref.WeakSet()

    def find() -> list[tuple[Place, Source]]:
        mountpoint = f"/pod{clock.now:g}"

        def note() -> Reading:
            read.append(mountpoint)
            return named(mountpoint)

        source = ScriptedSource(note, "filesystem", every=5.0)
        sources.add(source)
        return [(Place(mountpoint=mountpoint), source)]

    clock = SteppedClock(0.0)
    loop = Loop(clock, [Finds(find)], find_every=10.0)
    for now in loop.replay(clock, 95.0):
        if now == 90.0:
            gc.collect()
            assert len(sources) <= 2
    assert Counter(read) == {f"/pod{now}": 2 for now in range(0, 100, 10)}
