"""The file in which ``gpunode calibrate`` keeps what kernels reach on a site's own GPUs.

JSON: by the name that the driver gives a GPU, the fields of ``Ceilings``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from pydantic import FiniteFloat, TypeAdapter, ValidationError

from gpunode.driver.driver import Identity
from gpunode.gpu.models import Calibration, Ceilings, calibration_of, ceilings_of
from gpunode.mistake import first_mistake
from gpunode.node.node import Node

log = logging.getLogger(__name__)

PLAUSIBLE: dict[str, tuple[float, float]] = {
    "tensor": (0.3, 1.0),
    "pipe": (0.3, 1.0),
    "pipe_of_dram": (0.0, 0.5),
    "dram": (0.4, 1.0),
    "dram_of_tensor": (0.0, 0.6),
    "dram_of_nvlink": (0.5, 6.0),
    "sm_of_wide": (0.7, 1.0),
    "sm_of_small": (0.3, 1.0),
    "sms": (1, 1024),
    "nvlink_channels": (1, 128),
    "pcie_channels": (1, 64),
    "nvlink_of_collective": (0.1, 1.0),
    "pcie_of_collective": (0.1, 1.0),
    "resting_power": (0.02, 0.6),
    "waiting_power": (0.1, 0.9),
}
"""What each can be; a measurement outside was disturbed."""


def calibration(node: Node, identity: Identity, path: str) -> Calibration:
    """What kernels reach on a GPU, by the file where there is one, or by its model."""
    try:
        own = read_ceilings(node.read_text(path)) if path else {}
    except FileNotFoundError:
        own = {}
    except (OSError, ValueError) as error:
        log.warning("%s: %s; GPU %s keeps the ceilings of its model", path, error, identity.index)
        own = {}
    return calibration_of(identity, own)


def read_ceilings(text: str) -> dict[str, Ceilings]:
    """The ceilings in such a file, by the name of a GPU; ``ValueError`` for what is none."""
    try:
        raw = TypeAdapter(dict[str, dict[str, FiniteFloat]]).validate_json(text)
    except ValidationError as error:
        raise ValueError(first_mistake(error)) from error
    return {gpu: _ceilings(gpu, values) for gpu, values in raw.items()}


def _ceilings(gpu: str, values: Mapping[str, float]) -> Ceilings:
    unknown = sorted(values.keys() - PLAUSIBLE.keys())
    if unknown:
        raise ValueError(f"{gpu}: {unknown[0]} is no ceiling")
    if not values:
        raise ValueError(f"{gpu}: has no ceiling")
    whole: dict[str, Any] = {name: round(values[name]) for name in INTEGER_CEILINGS & values.keys()}
    found = replace(ceilings_of(Identity(0, "", gpu)), **{**values, **whole})
    if complaint := implausible(found):
        raise ValueError(f"{gpu}: {complaint}")
    return found


def implausible(ceilings: Ceilings) -> str:
    """What cannot be, in words; empty if all can."""
    for field in fields(Ceilings):
        low, high = PLAUSIBLE[field.name]
        value = getattr(ceilings, field.name)
        if not low <= value <= high:
            return f"{field.name} is {value:.3g}, which is not between {low:g} and {high:g}"
    return ""


def format_ceilings(found: Mapping[str, Ceilings]) -> str:
    """The text of a file with these ceilings."""
    every = {
        name: {
            key: float(f"{v:.3g}") if isinstance(v, float) else v for key, v in asdict(c).items()
        }
        for name, c in sorted(found.items())
    }
    return json.dumps(every, indent=1) + "\n"


INTEGER_CEILINGS = frozenset({"sms", "nvlink_channels", "pcie_channels"})
"""Ceilings that are numbers of something."""
