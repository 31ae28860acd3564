"""The ledger: the state of each second of a GPU.

``split`` divides one window among the states in ``STATES``. It states a model of what each state
does to each sensor (``docs/ledger.md`` shows the signatures), and asks, in this order:

1. What share of the window had a kernel running (GPM graphics), and what share only a copy engine
   (the driver's utilisation counts both; PCIe shows the copies that a CPU holds up)?
2. How much of the kernels' share did work and how much was a collective? A kernel that works holds
   most SMs, one of NCCL a few; the SM share tells their proportions. What moves over the links at
   full speed explains part of the collectives: ``communication``. The rest waited: ``blocked``.
   A process without a peer has no collectives.
3. Was the work arithmetic or memory traffic? In proportion to what the pipes and HBM show.
4. Of the rest: does a process or a job hold the GPU, has it run anything recently, and were the
   gaps long (the draw falls to that of a resting GPU: ``starved``) or only those between small
   kernels?

Each answer is a share, never a switch: readings that differ a little give shares that differ a
little. If a sensor that the answer needs is missing, the share is ``unknown``, never a guess.
``models.py`` has what kernels reach on each model of GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gpunode.gpu.tuned import FITTED, Ramp, Tuned
from gpunode.gpu.window import HOUSEKEEPING, Window

STATES = {
    "compute": "arithmetic, on tensor cores or other pipes",
    "memory": "moving data to and from HBM",
    "communication": "moving data between GPUs or nodes",
    "blocked": "a resident kernel spinning while a peer is late",
    "copy": "copies between host and device while the compute engines are quiet",
    "launch": "gaps between kernels too small to fill the GPU",
    "starved": "nothing to run, although a running job holds the GPU",
    "idle": "a job holds the GPU and has run nothing for a while",
    "free": "no process on the GPU, and no job that is known to have it",
    "unknown": "the sensors cannot tell",
}

COMMANDS = 9.3
"""Bytes of commands that the GPU reads over PCIe, per byte that it sends for doing so."""

MOST_COMMANDS = 50e6
"""Bytes per second of commands above which it is certain that kernels are launched."""

COPIES = 17.0
"""Bytes that the GPU reads over PCIe for a copy from the host, per byte that it sends."""

LOOKS = 2.74
"""The same for looks at a word of the host's memory. A collective that waits looks whether it shall
give up, and with many threads, as for small messages, an H200 reads 7 to 14 MB/s for that:
https://github.com/NVIDIA/nccl/blob/master/src/device/prims_ll.h (``checkAbort``).
"""

COPY_RATE = 1e9
"""At this many PCIe bytes per second, copies can matter."""

IDLE_AFTER = 10.0
"""After this many seconds without work, a job's GPU is idle instead of starved."""

QUIET = 0.005
"""Below this busy share of a window, a GPU counts as having run nothing."""

HARDLY_BUSY = (0.002, 0.01)
"""Busy share of a window below which its gaps are long, whatever the draw shows."""

LINK_BUSY = (0.1, 0.2)
"""Share of a link's rate at which a busy GPU of low draw moves data, if only utilisation tells."""

ALWAYS_BUSY = (0.96, 0.99)
UNTOUCHED = (0.0, 0.02)
"""Utilisation, and that of the memory, of a GPU whose kernel only spins."""

LINK_USED = (0.005, 0.02)
"""Share of a link's rate from which its traffic is more than housekeeping."""

MOVED = (1e6, 10e6)
MOVED_BY_PEERS = (0.03e6, 0.3e6)
"""Bytes per second over links from which collectives are known to run; the second, where a process
is known to have peers: barriers and scalars move little."""

TOUCHED = (0.005, 0.03)
"""What pipes and HBM show of a kernel that only spins."""

SPINNING = (1.05, 1.35)
"""Mean draw over that of a resting GPU while nothing but a spinning kernel runs."""

NEAR_REST = 1.75
"""A draw over that of a resting GPU below which one without counters may only spin. It was measured
on no such GPU, and is wider than ``SPINNING`` for that."""

SPINNING_STILL = (1.35, NEAR_REST)
"""The same as ``SPINNING`` where besides nothing is launched and nothing moves. What a GPU draws at
rest may not have been seen: an H200 that served until its peer was stopped spun at 1.23 times what
its model commonly draws."""

COUNTS = (0.05, 0.1)
"""What the integer pipe shows of a kernel that only spins: it looks at a flag, or each of its
threads at one of its own, which was 0.02."""

STANDS_STILL = 0.9
"""A window with at least this share ``blocked`` counts as blocked throughout."""

UNSEEN = (0.05, 0.15)
"""Share of the time in which the driver saw work but no counter did: the counters stand still."""

ROUNDS = 4
"""Rounds in which the share of work and its SMs settle; a fifth changes less than 0.01."""

MEANS_ANYTHING = (0.2, 0.9)
"""What is left of a rate after a subtraction, as a share of it, from which that is evidence."""

OF_COMMANDS = (0.0, 1.0 - COMMANDS / COPIES)
"""The same where commands are what is left: all of it, if nothing was copied."""

ONE_WAY = 1.3
"""What a collective over PCIe moves in its busier direction, per byte in the other."""

TINY = (0.005, 0.02)
"""SM share of the kernels' time below which their launch takes longer than they do."""

BY_ENGINES = (0.0, 0.9)
"""What PCIe could have moved in the time in which only copy engines ran, over what it moved: 0.9 to
1.3 where copy engines moved it, and about 0 where kernels did. The kernels of cuDNN for recurrent
networks read the host's memory at up to 9 GB/s."""

TOO_FAST = (1.2, 4.0)
"""Rate of copies, while no kernel runs, over that of pageable ones, from which they are pinned."""

OF_ELEMENTWISE = (0.3, 0.5)
"""Share of an SM's warps from which what its FP pipes do is part of elementwise kernels or spectra,
not of matrix products."""

FILLS = (0.3, 0.7)
"""SM share of the kernels' time from which their warps tell what they do."""

NOISE = 0.04
"""Standard deviation of a steady draw, as a share of that of a resting GPU."""

NOTICEABLE = 0.1
"""A draw above that of a resting GPU that means anything, as a share of it."""

NOTHING = 5e-3
"""A share so small that any evidence outweighs it."""


@dataclass(slots=True)
class Split:
    """Shares of one window by state; they sum to 1.

    ``unsure`` means that shorter windows would show more.
    """

    shares: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STATES, 0.0))
    unsure: bool = False


def split(window: Window, tuned: Tuned = FITTED) -> Split:
    """Divide a window among the states."""
    if window.activity is not None:
        return _split_by_counters(window, tuned)
    if window.busy is not None:
        return _split_by_utilization(window, tuned)
    result = Split()
    result.shares[_unused(window) if window.empty else "unknown"] = 1.0
    return result


def stands_still(window: Window, shares: dict[str, float], tuned: Tuned = FITTED) -> bool:
    """Whether a kernel spun throughout a window in which nothing was launched and nothing moved.

    A rank that always waits for a slower one is blocked most of the time, but goes on. Without
    counters, nothing tells launches: a loop of tiny kernels uses as little. Then the process must
    be known to have peers, and it must be known that nothing moves over the links to them.
    """
    if window.activity is None:
        return (
            shares["blocked"] >= STANDS_STILL
            and window.peers is True
            and window.nvlink is not None
            and max(window.nvlink, window.pcie or 0.0) < HOUSEKEEPING
            and (_mean(window) or math.inf) < NEAR_REST * (window.resting_power or 0.0)
        )
    if "pcie_receive" not in window.activity.values:
        return False  # something may have been launched
    return (
        shares["blocked"] >= STANDS_STILL
        and _sure_commands(window, tuned) < tuned.launching[0] / 2
        and window.pcie_collective == 0.0
        and (window.nvlink or 0.0) < HOUSEKEEPING
        and _draws(window, _mean(window), SPINNING_STILL) < 1.0
    )


def _ramp(value: float, between: Ramp) -> float:
    """0 below both, 1 above both, and in proportion between them."""
    low, high = between
    return min(1.0, max(0.0, (value - low) / (high - low)))


def _split_by_counters(window: Window, tuned: Tuned) -> Split:
    result = Split()
    shares = result.shares
    graphics = window.share("graphics")
    if graphics is None:
        shares["unknown"] = 1.0
        return result
    _split_kernels(window, tuned, graphics, shares)
    rest = 1.0 - graphics
    rest -= _split_engines(window, graphics, rest, shares)
    rest -= _split_copies(window, tuned, rest, shares)
    _split_rest(window, tuned, graphics, rest, result)
    return result


def _split_kernels(window: Window, tuned: Tuned, graphics: float, shares: dict[str, float]) -> None:
    """Divide the time in which kernels ran."""
    sm, tensor, dram = window.share("sm"), window.share("tensor"), window.share("dram")
    if sm is None or tensor is None or dram is None:
        shares["unknown"] += graphics
        return
    if graphics == 0.0:
        return
    graphics_of_kernels = graphics
    graphics -= _between_turns(window, tuned, graphics, sm, shares)
    launched = _ramp(_commands(window, tuned), tuned.launching)
    tiny = launched * (1.0 - _ramp(sm / graphics, TINY))
    shares["launch"] += tiny * graphics
    graphics *= 1.0 - tiny
    ceilings = window.ceilings
    pipes = sum(window.share(pipe) or 0.0 for pipe in ("fp32", "fp64", "fp16"))
    pipes = max(0.0, pipes - ceilings.pipe_of_dram * dram - tuned.pipe_of_sm * sm)
    pipes *= 1.0 - _ramp(_warps(window, sm), OF_ELEMENTWISE)
    compute = max(tensor / ceilings.tensor, pipes / ceilings.pipe)
    of_others = _dram_of_others(window, tensor) + tuned.dram_of_pipe * pipes
    memory = max(0.0, dram - of_others) / ceilings.dram
    narrow = _narrow(window, tuned, graphics, sm, compute + memory)
    moving = _moving(window, tuned, narrow)
    lowest = window.power.lowest if window.power else None
    waiting = (narrow - moving) * (1.0 - _draws(window, lowest, tuned.waiting))
    work = graphics - moving - waiting
    fetching = tuned.fetching * _commands(window, tuned, math.inf)
    # Processes that take turns fetch while another's kernels run.
    fetching = min(work, fetching / max(1, len(window.processes or ())))
    shares["launch"] += fetching
    work -= fetching
    arithmetic = max(
        tensor / (ceilings.tensor * tuned.tensor_of_models),
        pipes / (ceilings.pipe * tuned.pipe_of_models),
    )
    accesses = memory / tuned.dram_of_models
    held = sm - _held_by_collectives(window) * narrow
    waits = tuned.waits_for_memory * _full_of_warps(window, tuned, graphics_of_kernels, sm)
    accesses += waits * max(0.0, held - arithmetic - accesses) + NOTHING
    arithmetic /= arithmetic + accesses
    shares["compute"] += work * arithmetic
    shares["memory"] += work * (1.0 - arithmetic)
    shares["communication"] += moving
    shares["blocked"] += waiting


def _between_turns(
    window: Window, tuned: Tuned, graphics: float, sm: float, shares: dict[str, float]
) -> float:
    """Assign the time in which a process had its turn and ran nothing; returns how much that was.

    Processes that share a GPU take turns. A turn counts as active throughout, also between small
    kernels.
    """
    if len(window.processes or ()) < 2:
        return 0.0
    between = graphics * max(0.0, 1.0 - tuned.ran_in_turn - sm / graphics)
    shares["launch"] += between
    return between


def _full_of_warps(window: Window, tuned: Tuned, graphics: float, sm: float) -> float:
    """How sure the warps on the SMs are that what ran were no matrix products; 1 if not known.

    A matrix product or attention holds most of an SM's registers with few warps, an elementwise
    kernel, a scan or a sort fills it with them. A kernel that is too small for the GPU has few
    warps whatever it does.
    """
    if window.share("occupancy") is None or not sm:
        return 1.0
    wide = _ramp(sm / graphics, FILLS)
    return max(1.0 - wide, _ramp(_warps(window, sm), tuned.warps))


def _warps(window: Window, sm: float) -> float:
    """Share of an SM's warps that are there while kernels have it; 0 if not known."""
    return (window.share("occupancy") or 0.0) / sm if sm else 0.0


def _narrow(window: Window, tuned: Tuned, graphics: float, sm: float, explained: float) -> float:
    """Share of the window in which only kernels ran that hold a few SMs: those of NCCL.

    ``sm`` is the mean over working and narrow kernels. What a working kernel holds depends on its
    size: one that reaches what pipes and HBM allow (``explained``) fills the GPU, a small one does
    not. Both unknowns, the share of work and its SMs, follow from each other.
    """
    if not window.may_communicate or graphics <= 0.0:
        return 0.0
    ceilings = window.ceilings
    held = _held_by_collectives(window)
    work = explained
    for _ in range(ROUNDS):
        of_work = max(NOTHING, sm - held * (graphics - work))
        large = _ramp(explained / of_work, tuned.efficient)
        filled = ceilings.sm_of_small + (ceilings.sm_of_wide - ceilings.sm_of_small) * large
        work = min(graphics, max(explained, (sm - held * graphics) / (filled - held)))
    narrow = (graphics - work) / graphics
    least = MOVED_BY_PEERS if window.peers else MOVED
    narrow *= _ramp((window.nvlink or 0.0) + window.pcie_collective, least)
    # A kernel that draws and touches nothing spins, however many SMs it holds.
    spins = 1.0 - _ramp(explained, TOUCHED)
    spins *= 1.0 - _ramp(_sure_commands(window, tuned), tuned.launching)
    still = _untouched(window, tuned) * (1.0 - _draws(window, _mean(window), SPINNING_STILL))
    spins *= max(still, 1.0 - _draws(window, _mean(window), SPINNING))
    return graphics * max(narrow, spins)


def _untouched(window: Window, tuned: Tuned) -> float:
    """How sure it is that nothing is launched, moved or counted; 0 if that is not known."""
    if window.activity is None or "pcie_receive" not in window.activity.values:
        return 0.0
    _, launches = tuned.launching
    still = 1.0 - _ramp(_sure_commands(window, tuned), (0.0, launches / 20))
    still *= 1.0 - _ramp((window.nvlink or 0.0) + window.pcie_collective, MOVED_BY_PEERS)
    return still * (1.0 - _ramp(window.share("integer") or 0.0, COUNTS))


def _moving(window: Window, tuned: Tuned, narrow: float) -> float:
    """How much of the time of collectives moved data.

    NVLink's rate is known. What goes over PCIe may be on its way to a slower network, at whose full
    rate it moves all the time.
    """
    nvlink, pcie = window.nvlink_load, window.pcie_load
    return min(narrow, max(nvlink, narrow * pcie * (1.0 + tuned.network) / (pcie + tuned.network)))


def _mean(window: Window) -> float | None:
    return window.power.mean if window.power else None


def _draws(window: Window, watts: float | None, between: Ramp) -> float:
    """How sure a draw is that of work, on a ramp over that of a resting GPU; 0 if not known."""
    if watts is None or not window.resting_power:
        return 0.0
    return _ramp(watts / window.resting_power, between)


def _held_by_collectives(window: Window) -> float:
    """SM share of a collective, by the links over which the data went; NVLink if none did."""
    over_pcie, ceilings = window.collectives_over_pcie, window.ceilings
    return over_pcie * ceilings.sm_of_pcie + (1.0 - over_pcie) * ceilings.sm_of_nvlink


def _dram_of_others(window: Window, tensor: float) -> float:
    """The HBM share that matrix products and collectives cause as a side effect."""
    best, ceilings = window.limits.memory_bytes_per_second, window.ceilings
    nvlink = 2 * (window.nvlink or 0.0) / best if best and window.may_communicate else 0.0
    return ceilings.dram_of_tensor * tensor + ceilings.dram_of_nvlink * nvlink


def _split_engines(window: Window, graphics: float, rest: float, shares: dict[str, float]) -> float:
    """Assign the time in which only copy engines ran; returns how much that was."""
    engines = max(0.0, min(rest, (window.busy or 0.0) - graphics))
    copies = engines * _ramp(window.pcie or 0.0, (COPY_RATE / 2, COPY_RATE))
    # Copy engines also write to peers over NVLink.
    peers = (engines - copies) * _ramp(window.link_load, LINK_USED)
    shares["copy"] += copies
    shares["communication"] += peers
    # Busy, but no other counter shows it: the counters cannot be trusted.
    unseen = engines - copies - peers
    unseen *= _ramp(unseen, UNSEEN)
    shares["unknown"] += unseen
    return copies + peers + unseen


def _split_copies(window: Window, tuned: Tuned, rest: float, shares: dict[str, float]) -> float:
    """Assign the time of copies that a CPU holds up; returns how much that was.

    Copy engines move memory that is not pinned in short bursts, between which a CPU copies the
    next piece.
    """
    if rest <= 0.0:
        return 0.0
    to_device = window.rate("pcie_receive")
    # What it sends also has its requests for copies from the host.
    to_host = _left_of(window.rate("pcie_transmit"), to_device / COPIES, MEANS_ANYTHING)
    if window.may_communicate:
        of_collectives = ONE_WAY * window.pcie_collective
        to_device = _left_of(to_device, of_collectives, MEANS_ANYTHING)
        to_host = _left_of(to_host, of_collectives, MEANS_ANYTHING)
    results = _ramp(to_host / rest, tuned.results)
    results *= 1.0 - _ramp(to_host / rest / tuned.pageable_to_used, TOO_FAST)
    pageable = _ramp(to_device, tuned.pageable)
    pageable *= 1.0 - _ramp(to_device / rest / tuned.pageable_to_device, TOO_FAST)
    returned = results * _ramp(to_device / max(1.0, to_host), tuned.returned)
    new, used = tuned.pageable_to_new, tuned.pageable_to_used
    held_up = results * to_host / (new + (used - new) * returned)
    round_trip = returned * min(to_device, to_host)
    held_up += max(pageable * to_device, round_trip) / tuned.pageable_to_device
    held_up *= _moved_by_engines(window)
    held_up = min(rest, max(0.0, held_up - shares["copy"]))
    shares["copy"] += held_up
    return held_up


def _moved_by_engines(window: Window) -> float:
    """How sure it is that copy engines moved what PCIe did, and no kernel; 1 if that is not known.

    Only GPM's counters cover the same time as the buffer of utilisation.
    """
    most, moved = window.limits.pcie_bytes_per_second, window.pcie
    gpm = window.activity is not None and window.activity.counters == "gpm"
    graphics = window.share("graphics")
    if not gpm or graphics is None or window.busy is None or not most or not moved or moved > most:
        return 1.0
    return _ramp((window.busy - graphics) * most / moved, BY_ENGINES)


def _left_of(rate: float, part: float, enough: Ramp) -> float:
    """What is left of a rate without a part of it; little left of much is not evidence."""
    left = max(0.0, rate - part)
    return left * _ramp(left / max(1.0, rate), enough)


def _commands(window: Window, tuned: Tuned, most: float = MOST_COMMANDS) -> float:
    """Bytes per second of launches that the GPU reads from the host, without copies.

    What it reads is both: ``COMMANDS`` bytes per byte that it sends to ask for commands, and
    ``COPIES`` per byte that it sends to ask for copies.
    """
    sent, read = window.rate("pcie_transmit"), window.rate("pcie_receive")
    clear = 1.0 - _ramp(read, tuned.copied_over)
    exchanged = _exchanged_over_pcie(window)
    sent, read = sent - exchanged, read - exchanged
    asked = _left_of(COPIES * sent, read, OF_COMMANDS) / (COPIES - COMMANDS)
    return min(read, COMMANDS * asked, most) * clear


def _sure_commands(window: Window, tuned: Tuned) -> float:
    """What of ``_commands`` looks at the host's memory do not explain."""
    sent, read = window.rate("pcie_transmit"), window.rate("pcie_receive")
    asked = max(0.0, read - LOOKS * sent) / (COMMANDS - LOOKS)
    return min(COMMANDS * asked, _commands(window, tuned))


def _exchanged_over_pcie(window: Window) -> float:
    """Bytes per second that collectives move over PCIe in each direction, where nothing else does.

    Commands alone are read with few bytes sent. Peers that cannot use NVLink send what they read.
    """
    if not window.peers:
        return 0.0
    sent, read = window.rate("pcie_transmit"), window.rate("pcie_receive")
    both = max(0.0, sent - read / COMMANDS) / (1.0 - 1.0 / COMMANDS)
    return min(sent, read, both) * (1.0 - _ramp(window.nvlink or 0.0, MOVED))


def _split_rest(window: Window, tuned: Tuned, busy: float, rest: float, result: Split) -> None:
    """Assign the time in which nothing ran to a state."""
    shares = result.shares
    if window.empty:
        shares[_unused(window)] += rest * (1.0 - _ramp(busy, HARDLY_BUSY))
        rest *= _ramp(busy, HARDLY_BUSY)
    idle = rest * _ramp(window.quiet_for, (IDLE_AFTER, IDLE_AFTER + window.seconds))
    shares["idle"] += idle
    rest -= idle
    silent = 1.0 - _ramp(busy, HARDLY_BUSY)
    gaps = _long_gaps(window, tuned, rest, shares)
    if gaps is None:
        shares["starved"] += silent * rest
        shares["unknown"] += (1.0 - silent) * rest
        result.unsure = (1.0 - silent) * rest > 0.05
        return
    long = max(silent, gaps)
    shares["starved"] += long * rest
    # Without counters, kernels too small to raise the draw look like none.
    shares["unknown" if window.activity is None else "launch"] += (1.0 - long) * rest


def _unused(window: Window) -> str:
    """The state of a GPU that no process is on."""
    return "idle" if window.given else "free"


def _long_gaps(window: Window, tuned: Tuned, rest: float, shares: dict[str, float]) -> float | None:
    """How much of the time without work was gaps of 20 ms and more; None without power samples.

    The draw falls to that of a resting GPU only in such gaps, in copies and while a collective
    waits. If it is there for a share s of the time, and otherwise above by some constant, then s is
    its variance over its mean square (above that of a resting GPU).
    """
    power, resting = window.power, window.resting_power
    if power is None or power.variance is None or power.mean is None or power.lowest is None:
        return None
    if not resting:
        return None
    narrow = shares["communication"] + shares["blocked"]
    above = max(0.0, power.mean - resting)
    swings = max(0.0, power.variance - (NOISE * resting) ** 2)
    low = swings / (swings + above**2 + NOTHING)
    if swings:
        falls = power.falls(resting) * swings / power.variance
        low += tuned.smoothed * falls / window.seconds
    low -= tuned.draws_little * narrow + shares["copy"]
    depth = (power.lowest - resting) / max(NOTICEABLE * resting, power.mean - resting)
    swinging = min(1.0, max(0.0, low / max(rest, NOTHING))) * (1.0 - _ramp(depth, tuned.depth))
    at_rest = 1.0 - _ramp(power.mean / resting, tuned.at_rest)
    return at_rest * (1.0 - _launches(window, tuned, narrow)) + (1.0 - at_rest) * swinging


def _launches(window: Window, tuned: Tuned, narrow: float) -> float:
    """How sure it is that small kernels are launched, which hardly raise the draw.

    Collectives over PCIe hide the commands. Who exchanges that much launches between exchanges.
    """
    read = window.rate("pcie_receive")
    commands = _ramp(_commands(window, tuned), tuned.launching)
    hidden = _ramp(read, tuned.copied_over) * _exchanged_over_pcie(window) / max(1.0, read)
    kernels = _ramp((window.share("graphics") or 0.0) - narrow, tuned.some)
    return max(commands, hidden, kernels)


def _split_by_utilization(window: Window, tuned: Tuned) -> Split:
    """Without GPM: the busy share is known, but what it did only at the extremes."""
    result = Split()
    shares = result.shares
    busy = window.busy or 0.0
    draw, limit = _mean(window), window.power_limit
    accessed = window.utilization.memory if window.utilization else None
    if draw is None or not limit:
        shares["unknown"] = busy
    else:
        waiting = window.ceilings.waiting_power
        high = _ramp(draw / limit, (0.95 * waiting, 1.05 * waiting))
        moving = _ramp(window.link_load, LINK_BUSY)
        shares["communication"] = (1.0 - high) * moving * busy
        if accessed is not None:
            spinning = _ramp(busy, ALWAYS_BUSY) * (1.0 - _ramp(accessed, UNTOUCHED))
            spinning *= (1.0 - _ramp(window.link_load, LINK_USED)) * window.may_communicate
            shares["blocked"] = (1.0 - high) * (1.0 - moving) * spinning * busy
            # Matrix products access memory some of the time, elementwise kernels all the time.
            touching = _ramp(accessed, (0.8 * busy, 0.9 * busy + NOTHING))
            shares["memory"] = high * touching * busy
            shares["compute"] = high * (1.0 - touching) * busy
        shares["unknown"] = busy - sum(shares.values())
    _split_rest(window, tuned, busy, 1.0 - busy, result)
    return result
