"""How different two colours look to everybody, and how well one is seen on another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def _matrix(*rows: tuple[float, float, float]) -> Array:
    return np.array(rows)


SIGHT: dict[str, Array] = {
    "all cones": np.eye(3),
    "no red cones": _matrix(
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "no green cones": _matrix(
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "no blue cones": _matrix(
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
"""What is seen of linear sRGB, by Machado, Oliveira and Fernandes 2009:
https://www.inf.ufrgs.br/~oliveira/pubs_files/CVD_Simulation/CVD_Simulation.html"""

NO_BLUE_CONES = (
    _matrix(
        (1.01277, 0.13548, -0.14826),
        (-0.01243, 0.86812, 0.14431),
        (0.07589, 0.80500, 0.11911),
    ),
    _matrix(
        (0.93678, 0.18979, -0.12657),
        (0.06154, 0.81526, 0.12320),
        (-0.37562, 1.12767, 0.24796),
    ),
)
SEPARATES = np.array([0.03901, -0.02788, -0.01113])
"""The plane of the model by Brettel, Viénot and Mollon 1997, the better one for lack of blue cones:
a matrix on each side, from https://github.com/DaltonLens/libDaltonLens."""

TO_XYZ = _matrix(
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def distance(one: str, other: str) -> float:
    """The smallest difference (CIEDE2000) over all kinds of sight."""
    return min(
        difference(seen, against)
        for seen, against in zip(_as_seen(_linear(one)), _as_seen(_linear(other)), strict=True)
    )


def contrast(one: str, other: str) -> float:
    """From 1 to 21; a graphic needs 3: https://www.w3.org/TR/WCAG21/#dfn-contrast-ratio"""
    darker, lighter = sorted(float(TO_XYZ[1] @ _linear(colour)) for colour in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


def difference(one: Array, other: Array) -> float:
    """CIEDE2000 of two colours in CIELAB, by Sharma, Wu and Dalal 2005:
    https://hajim.rochester.edu/ece/sites/gsharma/ciede2000/"""
    far = 25.0**7
    chroma = (np.hypot(*one[1:]) + np.hypot(*other[1:])) / 2
    stretch = 1.5 - 0.5 * np.sqrt(chroma**7 / (chroma**7 + far))
    (a1, b1), (a2, b2) = ((lab[1] * stretch, lab[2]) for lab in (one, other))
    c1, c2 = np.hypot(a1, b1), np.hypot(a2, b2)
    h1, h2 = (np.degrees(np.arctan2(b, a)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0.0
    hue = h1 + turn / 2 if c1 * c2 else h1 + h2
    light, chroma = (one[0] + other[0]) / 2, (c1 + c2) / 2

    def wave(times: float, phase: float) -> float:
        return float(np.cos(np.radians(times * hue + phase)))

    t = 1 - 0.17 * wave(1, -30) + 0.24 * wave(2, 0) + 0.32 * wave(3, 6) - 0.20 * wave(4, -63)
    bend = 60 * np.exp(-((((hue % 360) - 275) / 25) ** 2))
    rotation = -np.sin(np.radians(bend)) * 2 * np.sqrt(chroma**7 / (chroma**7 + far))
    lighter = (other[0] - one[0]) / (
        1 + 0.015 * (light - 50) ** 2 / np.sqrt(20 + (light - 50) ** 2)
    )
    fuller = (c2 - c1) / (1 + 0.045 * chroma)
    turned = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2)) / (1 + 0.015 * chroma * t)
    return float(np.sqrt(lighter**2 + fuller**2 + turned**2 + rotation * fuller * turned))


def _as_seen(linear: Array) -> list[Array]:
    """A colour as each kind of sight has it, in CIELAB."""
    matrices = [*SIGHT.values(), NO_BLUE_CONES[0 if linear @ SEPARATES >= 0 else 1]]
    return [_lab(np.clip(matrix @ linear, 0, 1)) for matrix in matrices]


def _linear(colour: str) -> Array:
    encoded = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def _lab(linear: Array) -> Array:
    light = TO_XYZ @ linear / WHITE
    x, y, z = np.where(light > 216 / 24389, np.cbrt(light), (24389 / 27 * light + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])
