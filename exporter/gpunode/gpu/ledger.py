"""The ledger: the state of each second of a GPU.

``split`` divides one window among the states in ``STATES``. It asks, in this order:

1. What share of the window had a kernel running (GPM graphics), and what share only a copy engine
   (the driver's utilisation counts both)?
2. Of the kernels' share: how much do the arithmetic pipes and the HBM explain at full speed? The
   remainder was either wide (most SMs occupied: the same work, done less efficiently) or narrow (a
   few SMs occupied: an NCCL kernel, which moves data if the links are busy, else waits for a peer).
3. Of the rest: does a process hold the GPU, has it run anything recently, and were the gaps long
   (the power swings) or only the gaps between small kernels (it does not)?

If a sensor that the answer needs is missing, the share is ``unknown``, never a guess.
``models.py`` has what kernels reach on each model of GPU; ``docs/ledger.md`` shows the signatures.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gpunode.gpu.window import Window

Gaps = Literal["short", "long", "unknown"]

STATES = {
    "compute": "arithmetic, on tensor cores or other pipes",
    "memory": "moving data to and from HBM",
    "communication": "moving data between GPUs or nodes",
    "blocked": "a resident kernel spinning while a peer is late",
    "copy": "copies between host and device while the compute engines are quiet",
    "launch": "gaps between kernels too small to fill the GPU",
    "starved": "nothing to run, although a running job holds the GPU",
    "idle": "a job holds the GPU and has run nothing for a while",
    "free": "no process on the GPU",
    "unknown": "the sensors cannot tell",
}

MISFIT_SM = -0.05
"""Below this SM share of the remainder, the explained kernels were not wide: no remainder."""

NARROW_SHARE = 0.1
"""Below this share of the kernels' time, narrow kernels may be the ramps of wide ones."""

LINK_BUSY = 0.15
"""At this share of a link's rate, a narrow kernel counts as moving data all the time."""

STILL = 0.02
"""Below this tensor and HBM share, nothing runs except a spinning kernel."""

LINK_QUIET = 0.01
"""Below this share of a link's rate, its traffic is only housekeeping."""

COPY_RATE = 1e9
"""Below this many PCIe bytes per second, copies do not matter."""

IDLE_AFTER = 10.0
"""After this many seconds without work, a job's GPU is idle instead of starved."""

HARDLY_BUSY = 0.02
"""Below this busy share of a window, its gaps are long, whatever the power shows."""

QUIET = 0.005
"""Below this busy share of a window, a GPU counts as having run nothing."""


@dataclass(slots=True)
class Split:
    """Shares of one window by state; they sum to 1.

    ``unsure`` means that shorter windows would show more.
    """

    shares: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STATES, 0.0))
    unsure: bool = False


def split(window: Window) -> Split:
    """Divide a window among the states."""
    if window.activity is not None:
        return _split_by_counters(window)
    if window.busy is not None:
        return _split_by_utilization(window)
    result = Split()
    result.shares["free" if window.free else "unknown"] = 1.0
    return result


def _split_by_counters(window: Window) -> Split:
    result = Split()
    shares = result.shares
    graphics = window.share("graphics")
    if graphics is None:
        shares["unknown"] = 1.0
        return result
    engines = max(0.0, min(1.0 - graphics, (window.busy or 0.0) - graphics))
    if (window.pcie or 0.0) >= COPY_RATE:
        shares["copy"] = engines
    elif window.link_load > LINK_QUIET:
        shares["communication"] = engines  # copy engines writing to a peer over NVLink
    else:
        # Busy, but no other counter shows it: the counters cannot be trusted.
        shares["unknown"] = engines if engines > 0.1 else 0.0
        engines = shares["unknown"]
    gaps = _split_kernels(window, graphics, result)
    _split_rest(window, graphics, 1.0 - graphics - engines, gaps, result)
    return result


def _split_kernels(window: Window, graphics: float, result: Split) -> Gaps:
    """Divide the time in which kernels ran; returns the kind of gaps between them."""
    shares, ceilings = result.shares, window.ceilings
    sm, tensor, dram = window.share("sm"), window.share("tensor"), window.share("dram")
    if sm is None or tensor is None or dram is None:
        shares["unknown"] += graphics
        return _gaps_by_power(window)
    if graphics > HARDLY_BUSY and sm < ceilings.sm_of_tiny * graphics:
        shares["launch"] += graphics
        return "short"
    pipes = sum(window.share(pipe) or 0.0 for pipe in ("fp32", "fp64", "fp16"))
    compute = min(graphics, max(tensor / ceilings.tensor, pipes / ceilings.pipe))
    memory = min(graphics, max(0.0, dram - _dram_of_others(window, tensor)) / ceilings.dram)
    if compute + memory > graphics:
        compute, memory = _in_proportion(compute, memory, graphics)
    left = graphics - compute - memory
    left_sm = (
        (sm - ceilings.sm_of_wide * (compute + memory)) / left
        if left > 1e-6
        else ceilings.sm_of_wide
    )
    narrow = left >= NARROW_SHARE * graphics and MISFIT_SM < left_sm < ceilings.sm_of_narrow
    if not narrow or not _power_agrees(window, graphics, left):
        compute, memory = _in_proportion(compute, memory, graphics)
        left = 0.0
    moving = min(left, window.link_load / LINK_BUSY)
    shares["compute"], shares["memory"] = compute, memory
    shares["communication"] += moving
    shares["blocked"] = left - moving
    result.unsure = left > 0.1 and 0.1 < moving / left < 0.9
    if compute + memory < graphics / 2:
        return "long"  # a waiting kernel draws as little as none: power shows no gaps
    return _gaps_by_power(window)


def _power_agrees(window: Window, graphics: float, left: float) -> bool:
    """Whether the power confirms that narrow kernels ran, which draw far less than wide ones.

    Without this check, the slow start of a matrix product after a pause would count as a narrow
    kernel, and so would kernels that each fill part of the GPU, as in decoding.
    """
    if window.power is None or window.power.steady is None:
        return True
    if window.power.steady:
        # Constant power: a kernel that waits neither moves nor computes anything.
        still = max(window.share("tensor") or 0.0, window.share("dram") or 0.0) < STILL
        return still or window.link_load > LINK_QUIET
    return window.power.low - (1.0 - graphics) >= left / 2


def _gaps_by_power(window: Window) -> Gaps:
    """Gaps of 20 ms and more make the power swing; shorter ones lower it evenly."""
    steady = None if window.power is None else window.power.steady
    return "unknown" if steady is None else "short" if steady else "long"


def _dram_of_others(window: Window, tensor: float) -> float:
    """The HBM share that matrix products and collectives cause as a side effect."""
    best, ceilings = window.limits.memory_bytes_per_second, window.ceilings
    nvlink = 2 * (window.nvlink or 0.0) / best if best else 0.0
    return ceilings.dram_of_tensor * tensor + ceilings.dram_of_nvlink * nvlink


def _in_proportion(compute: float, memory: float, total: float) -> tuple[float, float]:
    """Scale both to fill ``total``; without evidence of either, it was other arithmetic."""
    known = compute + memory
    if known < 1e-3:
        return total, 0.0
    return compute * total / known, memory * total / known


def _split_rest(window: Window, busy: float, rest: float, gaps: Gaps, result: Split) -> None:
    """Assign the time in which nothing ran to a state."""
    shares = result.shares
    if window.free and busy < QUIET:
        shares["free"] += rest
    elif window.quiet_for > IDLE_AFTER:
        shares["idle"] += rest
    elif gaps == "long" or busy < HARDLY_BUSY:
        shares["starved"] += rest
    elif gaps == "short":
        shares["launch"] += rest
    else:
        shares["unknown"] += rest
        result.unsure = result.unsure or rest > 0.05


def _split_by_utilization(window: Window) -> Split:
    """Without GPM: the busy share is known, but what it did only at the extremes."""
    result = Split()
    busy = window.busy or 0.0
    draw = window.power.mean if window.power else None
    limit = window.power_limit
    low = None if draw is None or limit is None else draw < window.ceilings.waiting_power * limit
    accessed = window.utilization.memory if window.utilization else None
    if low and window.link_load >= LINK_BUSY:
        state = "communication"
    elif low and busy > 0.98 and window.link_load < LINK_QUIET and accessed == 0:
        state = "blocked"
    elif low is False and accessed is not None:
        # Matrix products access memory only some of the time, elementwise kernels all the time.
        state = "memory" if accessed > 0.85 * busy else "compute"
    else:
        state = "unknown"
    result.shares[state] = busy
    gaps = _gaps_by_power(window)
    # Kernels too small to raise the power look like none, so steady power proves nothing.
    _split_rest(window, busy, 1.0 - busy, "long" if gaps == "long" else "unknown", result)
    return result
