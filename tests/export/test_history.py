"""The last hour of each GPU: what is kept, what is not known, and what it takes."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
from starlette.testclient import TestClient

from gpunode.export.web.app import create_app
from gpunode.gpu.activity import MEMORY_USED, SECONDS
from gpunode.gpu.ledger import STATES
from gpunode.gpu.power import ENERGY
from gpunode.incidents.history import MAX_GPUS, POINTS, STEP, History
from gpunode.metric import Metric
from gpunode.node.node import SteppedClock
from gpunode.source import DetailReading, Key, Met, SilentPlace
from gpunode.verdict.source import BOTTLENECK
from tests.export.page import scenes

D = TypeVar("D")
MIB = 1 << 20
HOUR = POINTS - 1
"""Points in an hour."""


@dataclass
class FakeReadings:
    """Readings as a test says."""

    clock: SteppedClock = field(default_factory=lambda: SteppedClock(1_700_000_000.0))
    said: dict[Key, tuple[float, float]] = field(default_factory=dict)

    def values(self, metrics: Collection[Metric]) -> dict[Key, tuple[float, float]]:
        return {key: value for key, value in self.said.items() if key[0] in metrics}

    def details(self, kind: type[D]) -> list[DetailReading[D]]:  # noqa: ARG002
        return []

    def last(self, metrics: Collection[Metric]) -> dict[Key, tuple[float, float]]:
        return self.values(metrics)

    def silent(self) -> list[SilentPlace]:
        return []

    def unread(self) -> list[Met]:
        return []

    def say(self, gpus: int, **shares: float) -> None:
        """Ten seconds later, on every GPU the ledger has grown by these shares."""
        self.clock.now += STEP
        now = self.clock.monotonic()
        for gpu in range(gpus):
            at = str(gpu), f"GPU-{gpu}"
            for state in STATES:
                before = self.said.get((SECONDS, (*at, state)), (0.0, 0.0))[0]
                self.said[SECONDS, (*at, state)] = before + STEP * shares.get(state, 0.0), now
            before = self.said.get((ENERGY, (*at, "compute")), (0.0, 0.0))[0]
            self.said[ENERGY, (*at, "compute")] = before + 500.0 * STEP, now
            self.said[MEMORY_USED, at] = 1e11, now
            self.said[BOTTLENECK, (*at, "none")] = 1.0, now


def test_a_clock_that_is_set_back_leaves_no_point_in_the_future() -> None:
    told, history = FakeReadings(), History()
    for _ in range(60):
        told.say(1, compute=1.0)
        history.read(told)
    told.clock.epoch -= 300
    for _ in range(12):
        told.say(1, idle=1.0)
        history.read(told)
    times, (line,) = history.after(0.0)
    assert times == sorted(set(times))
    assert times[-1] == told.clock.time()
    assert len(times) == 60 - 30 + 12
    assert line.states["idle"][-12:] == [1.0] * 12


def test_an_hour_of_eight_gpus_takes_less_than_two_mebibytes() -> None:
    told = FakeReadings()
    told.say(8, compute=1.0)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    history = History()
    for _ in range(POINTS + 20):
        told.say(8, compute=0.5, starved=0.25, idle=0.25)
        history.read(told)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < MIB / 2
    times, gpus = history.after(0.0)
    assert len(times) == HOUR
    assert [round(after - before, 3) for before, after in itertools.pairwise(times)] == [STEP] * (
        HOUR - 1
    )
    assert times[-1] == told.clock.time()
    assert len(gpus) == 8
    for line in gpus:
        assert line.states == {
            "compute": [0.5] * HOUR,
            "starved": [0.25] * HOUR,
            "idle": [0.25] * HOUR,
        }
        assert line.power_watts == [500.0] * HOUR
        assert line.memory_used_bytes == pytest.approx([1e11] * HOUR, rel=1e-6)
        assert line.cause == ["none"] * HOUR


def test_what_is_not_known_is_null_and_a_gpu_that_is_gone_is_forgotten() -> None:
    told, history = FakeReadings(), History()
    for _ in range(3):
        told.say(2, compute=1.0)
        history.read(told)
    gone = ("1", "GPU-1")
    told.said = {key: value for key, value in told.said.items() if key[1][:2] != gone}
    for _ in range(2):
        told.say(1, compute=1.0)
        history.read(told)
    told.say(2, compute=1.0)  # it is back, and its counters begin anew
    history.read(told)
    told.say(2, compute=1.0)
    history.read(told)
    _, (_, line) = history.after(0.0)
    assert line.states["compute"] == [None, 1.0, 1.0, None, None, None, 1.0]
    assert line.power_watts == [None, 500.0, 500.0, None, None, None, 500.0]
    assert line.cause == ["none"] * 3 + [None] * 2 + ["none"] * 2
    told.said = {key: value for key, value in told.said.items() if key[1][:2] != gone}
    for _ in range(POINTS + 1):
        told.say(1, compute=1.0)
        history.read(told)
    assert [line.gpu for line in history.after(0.0)[1]] == ["0"]


def test_a_counter_that_falls_is_no_share() -> None:
    told, history = FakeReadings(), History()
    for _ in range(2):
        told.say(1, compute=1.0)
        history.read(told)
    told.said.clear()
    told.say(1, compute=0.1)
    history.read(told)
    _, (line,) = history.after(0.0)
    assert line.states["compute"] == [None, 1.0, None]
    assert line.power_watts == [None, 500.0, None]


def test_no_number_of_gpus_makes_it_grow() -> None:
    told, history = FakeReadings(), History()
    for _ in range(2):
        told.say(MAX_GPUS + 50, compute=1.0)
        history.read(told)
    assert len(history.after(0.0)[1]) == MAX_GPUS


@pytest.fixture(scope="module")
def client() -> TestClient:
    scene = scenes.hang(before=200, after=60)
    return TestClient(create_app(lambda: scene.stage.loop))


def test_the_api_tells_the_hour_and_then_what_is_new(client: TestClient) -> None:
    whole = client.get("/api/v1/history").json()
    assert whole["step_seconds"] == STEP
    assert len(whole["times"]) == 26
    assert [line["gpu"] for line in whole["gpus"]] == [str(n) for n in range(8)]
    for line in whole["gpus"]:
        shares = zip(*line["states"].values(), strict=True)
        next(shares)  # not known yet
        assert all(sum(of_point) == pytest.approx(1.0, abs=0.005) for of_point in shares)
    assert whole["gpus"][0]["cause"][-1] == "stalled_collective"
    assert whole["gpus"][5]["cause"][-1] == "stopped"
    new = client.get("/api/v1/history", params={"since": whole["times"][-3]}).json()
    assert new["times"] == whole["times"][-2:]
    assert client.get("/api/v1/history", params={"since": whole["times"][-1]}).json()["times"] == []


def test_a_time_that_is_none_is_refused(client: TestClient) -> None:
    for since in ("x", "-1", "nan", ""):
        assert client.get("/api/v1/history", params={"since": since}).status_code == 422
