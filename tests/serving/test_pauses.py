"""A server that had requests and has none: for how long, and how long it went without before."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.jobs.owners import OWNER
from gpunode.jobs.steps import REQUEST_ITEMS
from gpunode.loop import Loop
from gpunode.metric import Metric, Sample
from gpunode.node.node import SteppedClock
from gpunode.serving.pauses import LONGEST_PAUSE, MAX_PAUSES, PAUSE, ServingPauses
from gpunode.serving.requests import REQUESTS, REQUESTS_ENDED, TOKENLESS
from gpunode.source import WHOLE_NODE, Place, Reading, Source
from tests.cases import with_each
from tests.verdict.stage import Teller

GPU = "0", "GPU-0"
SERVER = *GPU, "vllm", "llama"
FINISHED = REQUESTS_ENDED, (*SERVER, "finished")
RUNNING = REQUESTS, (*SERVER, "running")
ITEMS = REQUEST_ITEMS, GPU
OURS = OWNER, (*GPU, "ml", "vllm-x7k2p", "main", "", "", "process", "vllm", "x7k2p")
GIVEN = OWNER, (*GPU, "ml", "vllm-x7k2p", "main", "", "", "kubelet", "vllm", "x7k2p")
THEIRS = OWNER, (*GPU, "ml", "fit-0", "main", "", "", "kubelet", "fit", "")
HOUR = 3600.0

Series = dict[tuple[Metric, tuple[str, ...]], float]


class Server:
    """A server on a GPU of which a test says what is told."""

    name = "gpu"

    def __init__(self) -> None:
        self.clock = SteppedClock(0.0)
        self.told: Series = {OURS: 1.0, FINISHED: 100.0, RUNNING: 0.0}
        self.pauses = ServingPauses()
        loop = Loop(self.clock, [self], [self.pauses], find_every=1e9)
        self._loop, self._steps = loop, loop.replay(self.clock, 1e9)

    def find(self) -> Iterator[tuple[Place, Source]]:
        yield WHOLE_NODE, Teller("serving_engines", 10.0, self.read)

    def read(self) -> Reading:
        return Reading(tuple(Sample(*series, value) for series, value in self.told.items()))

    def play(self, seconds: float, *, finished: float = 0.0) -> None:
        """Let time go on, with so many requests a second."""
        until, before = self.clock.now + seconds, self.clock.now
        for upcoming in self._steps:
            if upcoming >= until:
                break
            if FINISHED in self.told:
                self.told[FINISHED] += finished * (upcoming - before)
            before = upcoming

    @property
    def exported(self) -> tuple[int, int] | None:
        """The pause and the longest before it, to the minute; None if absent."""
        found = {one.metric: one.value for one in self._loop.samples()}
        if PAUSE not in found:
            return None
        pause, longest = found[PAUSE], found[LONGEST_PAUSE]
        assert isinstance(pause, float)
        assert isinstance(longest, float)
        return round(pause / 60) * 60, round(longest / 60) * 60


def test_a_server_that_was_asked_and_no_longer_is() -> None:
    server = Server()
    server.play(HOUR)
    assert server.exported is None  # nobody has asked yet
    server.play(HOUR, finished=5.0)
    assert server.exported == (0, 0)
    server.play(600)
    server.play(HOUR, finished=5.0)
    assert server.exported == (0, 600)
    server.play(2 * HOUR)
    assert server.exported == (7200, 600)
    server.play(60, finished=5.0)
    assert server.exported == (0, 7200)


def test_the_longest_pause_is_that_of_a_day() -> None:
    server = Server()
    for pause in (4 * HOUR, HOUR, 2 * HOUR):
        server.play(60, finished=1.0)
        server.play(pause)
    server.play(16 * HOUR, finished=1.0)
    assert server.exported == (0, 4 * HOUR)
    server.play(8 * HOUR, finished=1.0)
    assert server.exported == (0, 2 * HOUR)
    server.play(4 * HOUR, finished=1.0)
    assert server.exported == (0, 0)


@with_each(((RUNNING, 3.0), ((TOKENLESS, SERVER), 90.0)))
def test_who_has_a_request_that_takes_long_is_asked(
    series: tuple[Metric, tuple[str, ...]], value: float
) -> None:
    """Also by the last word of an engine that no longer answers."""
    server = Server()
    server.told[series] = value
    server.play(HOUR)
    assert server.exported == (0, 0)


def test_the_client_in_a_server_tells_as_well() -> None:
    server = Server()
    server.told = {OURS: 1.0, ITEMS: 7.0}
    server.play(60)
    server.told[ITEMS] = 9.0
    server.play(600)
    assert server.exported == (600, 0)


def test_a_pause_goes_on_while_the_gpu_is_kept_and_ends_with_another_owner() -> None:
    server = Server()
    server.play(60, finished=5.0)
    server.told = {GIVEN: 1.0}
    server.play(HOUR)
    assert server.exported == (3600, 0)
    server.told = {GIVEN: 1.0, FINISHED: 0.0}  # begun anew, and nobody asks
    server.play(HOUR)
    assert server.exported == (7200, 0)
    server.told = {THEIRS: 1.0}
    server.play(60)
    assert server.exported is None


def test_a_server_of_another_owner_begins_without_pauses() -> None:
    server = Server()
    server.play(60, finished=5.0)
    server.play(HOUR)
    server.told = {THEIRS: 1.0, FINISHED: 0.0}
    server.play(60, finished=5.0)
    assert server.exported == (0, 0)


def test_pauses_that_grow_shorter_for_ever_are_bounded() -> None:
    server = Server()
    for pause in range(2 * MAX_PAUSES, 0, -1):
        server.play(20, finished=5.0)
        server.play(90 + 10 * pause)
    (asked,) = server.pauses._asked.values()
    assert len(asked.pauses) <= MAX_PAUSES
    assert server.exported is not None
    assert server.exported[1] >= 1290
