"""What a correction learned from similar programs would give.

The constants are few and the ledger's formulas are fixed. If readings could tell more than it makes
of them, then programs whose readings are alike would be wrong alike, and a correction by the errors
of the most similar ones would bring others closer to the truth. It has no other use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gpunode.gpu.ledger import STATES
from gpunode.gpu.window import Window
from tests.windows.programs import Program

SIMILAR = 10
"""How many of the most similar programs a correction is learned from."""

WIDTH = 0.1
"""Mean distance of ranks at which a similar program counts 1/e."""

UNITS = (
    "graphics",
    "sm",
    "occupancy",
    "integer",
    "tensor",
    "dram",
    "fp64",
    "fp32",
    "fp16",
    "pcie_transmit",
    "pcie_receive",
)


def corrected(seen: Sequence[Program], unseen: Sequence[Program]) -> list[dict[str, float]]:
    """The shares of unseen programs with the errors of similar seen ones taken away.

    Programs of the same family are not similar ones: of them, the fit has not seen any.
    """
    every = [*seen, *unseen]
    ranks = _ranks(np.array([_readings(program) for program in every]))
    errors = np.array([_row(program.errors()) for program in seen])
    found = []
    for program, own in zip(unseen, ranks[len(seen) :], strict=True):
        distance = np.abs(ranks[: len(seen)] - own).mean(axis=1)
        distance[[other.family == program.family for other in seen]] = np.inf
        nearest = np.argsort(distance)[:SIMILAR]
        weights = np.exp(-((distance[nearest] / WIDTH) ** 2))
        error = weights @ errors[nearest] / (weights.sum() + 1e-3)
        shares = np.clip(np.array(_row(program.shares())) - error, 0.0, None)
        found.append(dict(zip(STATES, (shares / shares.sum()).tolist(), strict=True)))
    return found


def _row(shares: Mapping[str, float]) -> list[float]:
    return [shares.get(state, 0.0) for state in STATES]


def _ranks(readings: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rank of each reading among all programs, from 0 to 1: readings have many units."""
    return np.argsort(np.argsort(readings, axis=0), axis=0) / len(readings)


def _readings(program: Program) -> list[float]:
    """All that sensors said of a program, and how they relate: means over its windows."""
    rows = np.array([_of_window(window) for window in program.windows])
    return [float(each) for each in rows.mean(axis=0)]


def _of_window(window: Window) -> list[float]:
    values = window.activity.values if window.activity else {}
    units = [values.get(unit, 0.0) for unit in UNITS]
    sm = values.get("sm", 0.0) + 1e-3
    per_sm = [value / sm for value in units]
    resting = window.resting_power or 1.0
    watts = [watts for _, watts in window.power.samples] if window.power else [resting]
    draw = np.array(watts) / resting - 1.0
    levels = np.quantile(draw, [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0])
    changes = np.abs(np.diff(draw)).mean() if len(draw) > 1 else 0.0
    known = {None: 0.5, True: 1.0, False: 0.0}[window.peers]
    others = [window.busy, window.nvlink, window.pcie, resting, len(window.processes or ()), known]
    return [
        *units,
        *per_sm,
        *levels,
        draw.mean(),
        draw.std(),
        changes,
        *(float(each or 0.0) for each in others),
    ]
