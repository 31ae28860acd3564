"""The ledger's tuned constants.

A default says where the fit begins: what the signatures in ``docs/ledger.md`` suggest. ``FITTED``
has what the recorded windows of real programs say, and is what the ledger uses:
``make bench BENCH=fit`` writes ``tuned.json``.

A ramp is a pair: evidence below the first counts nothing, above the second fully, and in proportion
between them. Rates are bytes per second.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

Ramp = tuple[float, float]

FILE = Path(__file__).with_suffix(".json")

GENTLE = 0.2
"""The least width of a ramp, as a share of its upper end: a reading that differs a little must not
change the shares by much."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """What no data sheet tells; ``ValueError`` for what cannot be."""

    waiting: Ramp = (2.8, 4.6)
    """Lowest tenth of the draw over that of a resting GPU, where working kernels alternate with
    collectives that wait."""

    network: float = 0.15
    """Share of PCIe's rate that a network commonly has."""

    fetching: float = 0.7e-9
    """Seconds for which the GPU counts as active per byte of commands, beyond its kernels."""

    launching: Ramp = (5e6, 45e6)
    """Rate of commands from the host. Waiting takes less than 1 MB/s, eager PyTorch 20 to 110 MB/s,
    and tiny kernels in a row 150 MB/s."""

    pageable_to_device: float = 7.9e9
    """Rate, as PCIe's counters see it, of a copy from memory that is not pinned: a CPU copies it
    once more."""

    pageable_to_new: float = 1.7e9
    pageable_to_used: float = 4.0e9
    """The same of a copy to such memory: what was not used before has to be found page by page."""

    returned: Ramp = (0.5, 0.9)
    """Bytes to the device per byte to the host from which a CPU works on what it gets, and sends it
    back: it uses the same memory again."""

    pageable: Ramp = (2.5e9, 5e9)
    """Rate to the device from which copies count as pageable: less may be pinned copies beside
    kernels."""

    results: Ramp = (0.2e9, 0.6e9)
    """Rate to the host, while no kernel runs, from which it is copies that a CPU holds up."""

    at_rest: Ramp = (1.02, 1.29)
    """Draw over that of a resting GPU up to which nothing can have run."""

    efficient: Ramp = (0.66, 0.97)
    """What pipes and HBM explain, per SM second: small kernels stay at the first, large ones reach
    the second."""

    waits_for_memory: float = 0.25
    """How much of the time for which kernels hold SMs, but pipes and HBM explain nothing, they wait
    for memory: as small elementwise kernels do, whose data is in the cache."""

    warps: Ramp = (0.15, 0.45)
    """Share of the warps that an SM can hold which it holds while kernels have it: below the first
    they are matrix products, above the second they are not."""

    ran_in_turn: float = 0.2
    """How much of the time for which processes have their turns small kernels run, beyond the SM
    share of it."""

    tensor_of_models: float = 0.67
    """What the matrix products and attention of whole models reach of the highest tensor share
    (0.5 to 0.95)."""

    pipe_of_models: float = 0.6
    """The same of the FP32, FP64 or FP16 pipe."""

    dram_of_models: float = 0.80
    """The same of HBM, by elementwise kernels, norms and updates."""

    pipe_of_sm: float = 0.06
    """Share of the pipes that kernels have that are not arithmetic, per SM share, beyond that per
    HBM share."""

    dram_of_pipe: float = 0.1
    """HBM share caused by a matrix product of share 1 of a pipe."""

    copied_over: Ramp = (0.05e9, 0.6e9)
    """Rate to the GPU above which launches cannot be distinguished from copies."""

    draws_little: float = 0.8
    """How much of the time of collectives the draw is near that of a resting GPU."""

    some: Ramp = (0.0, 0.12)
    """Share of the time with kernels from which their size tells about the gaps."""

    smoothed: float = 0.018
    """Seconds that each long gap lasts beyond what the draw shows: a sample is a mean over
    20 ms."""

    depth: Ramp = (0.08, 0.66)
    """Where the lowest tenth of the draw lies between that of a resting GPU and the mean: below the
    first the gaps were long, above the second short."""

    def __post_init__(self) -> None:
        for field in fields(self):
            match getattr(self, field.name):
                case (low, high):
                    valid = 0.0 <= low <= (1.0 - GENTLE) * high and high > 0.0
                case value:
                    valid = value > 0.0
            if not valid:
                raise ValueError(f"{field.name} cannot be {getattr(self, field.name)}")


def load(path: Path) -> Tuned:
    """The constants in a file; ``ValueError`` or ``TypeError`` for what are none."""
    kept: dict[str, Any] = json.loads(path.read_text())
    kept |= {name: tuple(ramp) for name, ramp in kept.items() if isinstance(ramp, list)}
    return Tuned(**kept)


FITTED = load(FILE)
