"""How different two colours look at worst, also to those who lack a kind of cone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SIGHT: dict[str, Array] = {
    "all cones": np.eye(3),
    "no red cones": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "no green cones": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
}
"""Machado, Oliveira and Fernandes 2009, for linear sRGB:
https://www.inf.ufrgs.br/~oliveira/pubs_files/CVD_Simulation/CVD_Simulation.html"""

TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def distance(one: str, other: str) -> float:
    """The smallest distance in CIELAB over all kinds of sight."""
    return min(float(np.linalg.norm(_lab(one, s) - _lab(other, s))) for s in SIGHT.values())


def _lab(colour: str, sight: Array) -> Array:
    encoded = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    light = TO_XYZ @ np.clip(sight @ linear, 0, 1) / WHITE
    x, y, z = np.where(light > 216 / 24389, np.cbrt(light), (24389 / 27 * light + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])
