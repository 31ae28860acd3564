"""A GPU that nobody uses: it is looked at in each window, and its counters are read rarely."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.config.daemon import Settings
from gpunode.driver.driver import Activity
from gpunode.gpu.activity import FREE_EVERY, SECONDS, GpuActivity
from tests.gpu.test_without_counters import A100, COMPUTES, RESTS
from tests.holders.proc import Proc


class Counted(A100):
    """A GPU whose counters tell the mean since they were last read."""

    def __init__(self) -> None:
        super().__init__()
        self.watts, self.busy, self.accessed = RESTS, 0.0, 0.0
        self.hold()
        self.worked = 0.0
        """Seconds of work since the counters were read."""

        self.read_at = self.elapsed = 0.0
        self.reads = 0

    def activity(self) -> Activity:
        self.reads += 1
        seconds, self.read_at = self.elapsed - self.read_at, self.elapsed
        share, self.worked = self.worked / (seconds or 1.0), 0.0
        return Activity(seconds, dict.fromkeys(("graphics", "sm", "tensor"), share))


def test_a_free_gpu_is_read_rarely_and_what_begins_on_it_counts_from_its_first_second(
    tmp_path: Path,
) -> None:
    card = Counted()
    proc = Proc(tmp_path, [card])
    proc.run(7, "python3")
    source, seconds = GpuActivity(proc.census, proc.gpu, Settings()), dict[str, float]()
    source.read()

    def windows(number: int) -> None:
        for _ in range(number):
            proc.clock.now += 2.0
            card.elapsed += 2.0
            card.worked += 2.0 * card.busy
            card.now = proc.clock.time()
            reading = source.read()
            assert reading is not None
            seconds.update(
                {s.labels[-1]: s.value for s in reading.samples if s.metric is SECONDS}  # type: ignore[misc]
            )
            assert sum(seconds.values()) == pytest.approx(card.elapsed)

    windows(41)
    assert seconds["free"] == pytest.approx(82)
    assert card.reads <= 41 / FREE_EVERY + 2
    card.hold(7)
    card.busy, card.watts = 1.0, COMPUTES
    windows(1)
    assert (seconds["free"], seconds["compute"]) == pytest.approx((82, 2), abs=0.2)
    before = card.reads
    windows(5)
    assert card.reads == before + 5
    assert (seconds["free"], seconds["compute"]) == pytest.approx((82, 12), abs=0.2)
