"""A GPU from before Hopper without DCGM: utilisation, draw and NVLink tell of a hang, later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpunode.config.daemon import Settings
from gpunode.driver.driver import (
    Activity,
    DriverError,
    Identity,
    Limits,
    PowerLimits,
    SampleBuffer,
    Unsupported,
    Utilization,
)
from gpunode.gpu.activity import BLOCKED_STREAK, STALL_FROM, GpuActivity
from tests.holders.proc import Card, Proc

RESTS, SPINS, COMPUTES = 60.0, 88.0, 330.0


class A100(Card):
    """An A100 SXM as its driver shows it: no GPM, and counters of what its NVLinks moved."""

    def __init__(self) -> None:
        super().__init__()
        self.identity = Identity(0, "GPU-0", "NVIDIA A100-SXM4-80GB", compute_capability="8.0")
        self.watts, self.busy, self.accessed = COMPUTES, 1.0, 0.4
        self.moved = 0.0
        self.linked = True
        self.of_dcgm: Activity | None = None
        self.now = 0.0
        self.hold(7)

    def hang(self) -> None:
        """Spin in a collective."""
        self.watts, self.accessed = SPINS, 0.0

    def limits(self) -> Limits:
        return Limits(nvlink_bytes_per_second=300e9)

    def power_limits(self) -> PowerLimits:
        return PowerLimits(400.0, 400.0)

    def power_samples(self, after: int) -> SampleBuffer:  # noqa: ARG002
        end = self.now
        return SampleBuffer(
            [(round((end - 0.02 * n) * 1e6), self.watts) for n in range(99, -1, -1)]
        )

    def utilization(self) -> Utilization:
        return Utilization(self.busy, self.accessed)

    def utilization_samples(self, after: int) -> SampleBuffer:  # noqa: ARG002
        end = self.now
        return SampleBuffer([(round((end - 0.2 * n) * 1e6), self.busy) for n in range(20, -1, -1)])

    def activity(self) -> Activity:
        if self.of_dcgm is None:
            raise Unsupported("no GPM")
        return self.of_dcgm

    def nvlink_bytes(self) -> dict[str, float]:
        if not self.linked:
            raise Unsupported("no NVLink")
        return {"receive": self.moved, "transmit": self.moved}

    def __getattr__(self, call: str) -> Any:
        if call.startswith("_"):
            raise AttributeError(call)

        def unsupported(*_: Any) -> Any:
            raise Unsupported(f"{call}: not here")

        return unsupported


class A100Ledger:
    """The ledger of an A100 on which a process of a job runs."""

    def __init__(self, root: Path, ranks: int = 8) -> None:
        self.card = A100()
        self.proc = Proc(root, [self.card])
        self.proc.run(7, "python3", environment=f"WORLD_SIZE={ranks}\0")
        self.source = GpuActivity(self.proc.census, self.proc.gpu, Settings())
        self.source.read()

    def windows(self, seconds: float, bytes_per_second: float = 0.0) -> object:
        """Let time go on; the streak at the end."""
        streak: object = None
        for _ in range(round(seconds / 2)):
            self.proc.clock.now += 2.0
            self.card.now = self.proc.clock.time()
            self.card.moved += 2.0 * bytes_per_second
            reading = self.source.read()
            assert reading is not None
            (streak,) = (s.value for s in reading.samples if s.metric is BLOCKED_STREAK)
        return streak


def test_a_hang_is_told_after_a_minute(tmp_path: Path) -> None:
    seen = A100Ledger(tmp_path)
    assert seen.windows(20, bytes_per_second=50e9) == 0
    seen.card.hang()
    assert seen.windows(STALL_FROM - 4) == 0
    assert seen.windows(8) == pytest.approx(STALL_FROM + 4, abs=4)
    seen.card.watts = COMPUTES
    assert seen.windows(2, bytes_per_second=50e9) == 0


def test_what_moves_little_over_nvlink_is_no_hang(tmp_path: Path) -> None:
    seen = A100Ledger(tmp_path)
    seen.windows(20, bytes_per_second=50e9)
    seen.card.hang()
    assert seen.windows(300, bytes_per_second=5e6) == 0


def test_a_step_of_small_kernels_that_ends_within_a_minute_is_no_hang(tmp_path: Path) -> None:
    seen = A100Ledger(tmp_path)
    for _ in range(6):
        seen.card.watts = SPINS
        seen.card.accessed = 0.0
        assert seen.windows(STALL_FROM - 10) == 0
        assert seen.windows(4, bytes_per_second=5e9) == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param("watts", 130.0, id="it draws"),
        pytest.param("accessed", 0.15, id="a decode reads its weights"),
        pytest.param("busy", 0.9, id="it has gaps"),
    ],
)
def test_what_works_a_little_is_no_hang(tmp_path: Path, field: str, value: float) -> None:
    seen = A100Ledger(tmp_path)
    seen.windows(20, bytes_per_second=50e9)
    seen.card.hang()
    setattr(seen.card, field, value)
    assert seen.windows(300) == 0


def test_tiny_kernels_of_a_process_without_peers_are_no_hang(tmp_path: Path) -> None:
    seen = A100Ledger(tmp_path, ranks=1)
    seen.card.hang()
    assert seen.windows(300) == 0


def test_without_counters_of_links_a_hang_cannot_be_told(tmp_path: Path) -> None:
    seen = A100Ledger(tmp_path)
    seen.card.linked = False
    seen.card.hang()
    assert seen.windows(300) == 0


def test_bytes_that_dcgm_counted_do_not_count_again_once_it_is_silent(tmp_path: Path) -> None:
    seen = A100Ledger(tmp_path)
    seen.windows(10, bytes_per_second=1e9)
    seen.card.of_dcgm = Activity(2.0, {"nvlink_receive": 1e9}, "dcgm")
    seen.windows(20, bytes_per_second=1e9)
    seen.card.of_dcgm = None
    seen.windows(10, bytes_per_second=1e9)
    received = [s.value for s in seen.source.units.samples() if "receive" in s.labels]
    assert received == [10e9 + 20e9 + 8e9]  # the first of a counter's reads only begins


def test_time_in_which_a_sensor_failed_is_unknown(tmp_path: Path) -> None:
    seen = A100Ledger(tmp_path)
    seen.windows(20)
    seen.card.fails = True
    for _ in range(15):
        with pytest.raises(DriverError):
            seen.windows(2)
    seen.card.fails = False
    seen.windows(2)
    assert seen.source.seconds["unknown"] == 32
    assert sum(seen.source.seconds.values()) == pytest.approx(52)


def test_samples_that_are_stamped_since_boot_are_of_the_same_time(tmp_path: Path) -> None:
    seen = A100Ledger(tmp_path)
    for _ in range(10):
        seen.proc.clock.now += 2.0
        seen.card.now = seen.proc.clock.monotonic()
        seen.source.read()
    assert seen.source.seconds["compute"] == pytest.approx(20, abs=4)
    assert seen.source.seconds["unknown"] == 0
