"""The ledger: the state of each second of a GPU.

``split`` divides one window among the states in ``STATES``. ``docs/ledger.md`` shows what each
does to each sensor. It asks, in this order:

1. For what share of the window did a kernel run (GPM graphics)? Time in which the GPU only fetched
   commands, or a process had its turn and ran nothing, counts there too and is taken off.
2. How much of that was a collective? A kernel that works holds most SMs, one of NCCL a few; the SM
   share tells their proportions. What moves over the links at full speed explains part of the
   collectives: ``communication``. The rest waited: ``blocked``. All else is ``compute``.
3. For what share did only copy engines run? The driver's utilisation counts them besides kernels.
4. Of the rest: does a process or a job hold the GPU, and has it run anything recently?

Each answer is a share, never a switch: readings that differ a little give shares that differ a
little. If a sensor that the answer needs is missing, the share is ``unknown``, never a guess.
``models.py`` has what kernels reach on each model of GPU.
"""

from __future__ import annotations

import math

from gpunode import words
from gpunode.gpu.window import HOUSEKEEPING, MAX_COMMAND_RATE, Window

STATES = {name: state.sentence for name, state in words.STATES.items()}

Ramp = tuple[float, float]
"""Evidence below the first counts nothing, above the second fully, and in proportion between."""

# What a GPU reads over PCIe per byte that it sends tells what it reads.
COMMANDS = 9.3
COPIES = 17.0
POLLS = 2.74
"""Looks at a word of the host's memory. A collective that waits looks whether it shall give up, and
with many threads, as for small messages, an H200 reads 7 to 14 MB/s for that:
https://github.com/NVIDIA/nccl/blob/master/src/device/prims_ll.h (``checkAbort``).
"""

LAUNCHING: Ramp = (5e6, 45e6)
"""Bytes per second of commands: waiting takes less than 1 MB/s, eager PyTorch 20 to 110 MB/s."""

COPIED_OVER: Ramp = (0.05e9, 0.6e9)
"""Bytes per second to the GPU above which commands cannot be distinguished from copies."""

FETCHING = 0.7e-9
"""Seconds for which a GPU counts as active per byte of commands, beyond its kernels."""

RAN_IN_TURN = 0.2
"""How much of the turns of processes that share a GPU kernels run, beyond the SM share."""

EFFICIENT: Ramp = (0.66, 0.97)
"""What pipes and HBM explain, per SM second: small kernels stay at the first."""

ROUNDS = 4
"""Rounds in which the share of work and its SMs settle; a fifth changes less than 0.01."""

MIN_SHARE = 5e-3
"""A share so small that any evidence outweighs it."""

WAITING: Ramp = (2.8, 4.6)
"""Lowest tenth of the draw over that of a resting GPU, where working kernels alternate with
collectives that wait."""

MOVED: Ramp = (0.03e6, 0.3e6)
"""Bytes per second over links from which collectives are known to run: barriers move little."""

SPIN_ACTIVITY: Ramp = (0.005, 0.03)
"""What pipes and HBM show of a kernel that only spins."""

COUNTS: Ramp = (0.05, 0.1)
"""What the integer pipe shows of a kernel that only spins: it looks at a flag, or each of its
threads at one of its own, which was 0.02. A loop of integers shows 0.98."""

SPINNING: Ramp = (1.25, 1.5)
"""Mean draw over that of a resting GPU while nothing but a spinning kernel runs."""

NEAR_REST = 1.75
"""Mean draw over that of a resting GPU below which nothing else runs. The draw at rest may be
unknown: an H200 that served until its peer was stopped spun at 1.23 times the usual draw of its
model."""

STANDS_STILL = 0.9
"""A window with at least this share ``blocked`` counts as blocked throughout."""

NETWORK = 0.15
"""Share of PCIe's rate that a network commonly has."""

REACHED = 0.87
"""Share of PCIe's rate that a copy engine reaches, or a kernel that writes to a peer."""

BY_ENGINES: Ramp = (0.0, 0.9)
"""What PCIe could have moved in the time in which only copy engines ran, over what it moved: 0.9 to
1.3 where copy engines moved it, and about 0 where kernels did."""

COPY_RATE = 1e9
"""At this many PCIe bytes per second, copies can matter."""

UNCOUNTED_SHARE: Ramp = (0.05, 0.15)
"""Share of the time in which the driver saw work but no counter did: the counters stand still."""

LINK_USED: Ramp = (0.005, 0.02)
"""Share of a link's rate from which its traffic is more than housekeeping."""

LINK_BUSY: Ramp = (0.1, 0.2)
"""Share of a link's rate at which a busy GPU of low draw moves data, if only utilisation tells."""

ALWAYS_BUSY: Ramp = (0.96, 0.99)
SPIN_UTILIZATION: Ramp = (0.0, 0.02)
"""Utilisation, and that of the memory, of a GPU whose kernel only spins."""

HARDLY_RISES, SMALL_KERNELS, DEPTH = 0.05, 0.03, 0.25
"""What gaps that are short look like: the draw above rest as a share of it, the share of time in
which kernels run, and where the lowest tenth of the draw lies between rest and mean."""

IDLE_AFTER = 10.0
"""After this many seconds without work, a job's GPU is idle instead of starved."""

IDLE_SHARE = 0.005
"""Below this busy share of a window, a GPU counts as having run nothing."""

HARDLY_BUSY: Ramp = (0.002, 0.01)
"""Busy share of a window below which nobody is taken to use the GPU."""


def split(window: Window) -> dict[str, float]:
    """The share of a window by state; they sum to 1."""
    shares = dict.fromkeys(STATES, 0.0)
    graphics = window.share("graphics")
    if window.activity is None and window.busy is not None:
        _split_by_utilization(window, window.busy, shares)
        _assign_rest(window, window.busy, 1.0 - window.busy, shares)
    elif graphics is not None:
        _kernels(window, graphics, shares)
        rest = 1.0 - graphics
        _assign_rest(window, graphics, rest - _engines(window, graphics, rest, shares), shares)
    else:
        shares[_unheld_state(window) if window.activity is None and window.empty else "unknown"] = (
            1.0
        )
    return shares


def stands_still(window: Window, shares: dict[str, float]) -> bool:
    """Whether a kernel spun throughout a window in which nothing was launched and nothing moved.

    A rank that always waits for a slower one is blocked most of the time, but goes on. Without
    counters, nothing tells launches: a loop of tiny kernels uses as little. Then the process must
    be known to have peers, and it must be known that nothing moves over the links to them.
    """
    if shares["blocked"] < STANDS_STILL or (window.nvlink or 0.0) >= HOUSEKEEPING:
        return False
    if window.activity is None:
        return (
            window.peers is True
            and window.nvlink is not None
            and (window.pcie or 0.0) < HOUSEKEEPING
            and (_mean(window) or math.inf) < NEAR_REST * (window.resting_power or 0.0)
        )
    return (
        "pcie_receive" in window.activity.values  # else something may have been launched
        and _sure_commands(window) < LAUNCHING[0] / 2
        and window.pcie_collective == 0.0
        and _draws(window, _mean(window), (1.0, NEAR_REST)) < 1.0
    )


def short_gaps(window: Window, shares: dict[str, float]) -> bool | None:
    """Whether gaps between kernels were mostly shorter than 20 ms; None without power samples.

    The draw falls to that of a resting GPU only in longer ones. Where it hardly rises at all, many
    small kernels run, between which nothing else fits. This is evidence of a cause, not a state:
    it was right of 97 % of the windows of which a trace says it clearly.
    """
    power, resting = window.power, window.resting_power
    if power is None or power.mean is None or power.lowest is None or not resting:
        return None
    above = power.mean / resting - 1.0
    if above <= HARDLY_RISES:
        return shares["compute"] > SMALL_KERNELS
    return power.lowest / resting - 1.0 > DEPTH * above


def _ramp(value: float, between: Ramp) -> float:
    """0 below both, 1 above both, and in proportion between them."""
    low, high = between
    return min(1.0, max(0.0, (value - low) / (high - low)))


def _kernels(window: Window, graphics: float, shares: dict[str, float]) -> None:
    """Divide the time in which kernels ran, or the GPU fetched what to run."""
    sm = window.share("sm")
    if sm is None:
        shares["unknown"] += graphics
        return
    alone = len(window.processes or ()) < 2
    # Processes take turns, and a turn counts as active throughout, also between small kernels.
    between = 0.0 if alone else max(0.0, (1.0 - RAN_IN_TURN) * graphics - sm)
    narrow = _narrow(window, graphics - between, sm)
    moving = _moving(window, narrow)
    lowest = window.power.lowest if window.power else None
    waiting = (narrow - moving) * (1.0 - _draws(window, lowest, WAITING))
    work = graphics - between - moving - waiting
    # What is fetched beside a collective, or another process's kernels, takes no time of its own.
    fetching = FETCHING * _commands(window) * (1.0 - moving - waiting) if alone else 0.0
    fetching = min(work, fetching)
    shares["compute"] += work - fetching
    shares["communication"] += moving
    shares["blocked"] += waiting
    shares["starved"] += between + fetching


def _least_busy(window: Window) -> float:
    """The least share of the time for which kernels worked, by what pipes and HBM did."""
    best, ceilings = window.limits.memory_bytes_per_second, window.ceilings
    tensor, dram = window.share("tensor") or 0.0, window.share("dram") or 0.0
    pipes = sum(window.share(pipe) or 0.0 for pipe in ("fp32", "fp64", "fp16"))
    pipes = max(0.0, pipes - ceilings.pipe_of_dram * dram)
    exchanged = 2 * (window.nvlink or 0.0) / best if best else 0.0
    dram -= ceilings.dram_of_tensor * tensor + ceilings.dram_of_nvlink * exchanged
    return max(tensor / ceilings.tensor, pipes / ceilings.pipe) + max(0.0, dram) / ceilings.dram


def _narrow(window: Window, ran: float, sm: float) -> float:
    """Share of the window in which only kernels ran that hold a few SMs: those of NCCL.

    ``sm`` is the mean over working and narrow kernels. What a working kernel holds depends on its
    size: one that reaches what pipes and HBM allow fills the GPU, a small one does not. Both
    unknowns, the share of work and its SMs, follow from each other.
    """
    if not window.may_communicate or ran <= 0.0:
        return 0.0
    ceilings, explained = window.ceilings, _least_busy(window)
    pcie, nvlink = window.pcie_collective + _peer_bytes(window), window.nvlink or 0.0
    over_pcie = pcie / (pcie + nvlink + HOUSEKEEPING)
    held = over_pcie * ceilings.sm_of_pcie + (1.0 - over_pcie) * ceilings.sm_of_nvlink
    work = explained
    for _ in range(ROUNDS):
        of_work = max(MIN_SHARE, sm - held * (ran - work))
        large = _ramp(explained / of_work, EFFICIENT)
        filled = ceilings.sm_of_small + (ceilings.sm_of_wide - ceilings.sm_of_small) * large
        work = min(ran, max(explained, (sm - held * ran) / (filled - held)))
    # A kernel that draws, counts and touches nothing spins, however many SMs it holds.
    spins = 1.0 - _ramp(explained, SPIN_ACTIVITY)
    spins *= 1.0 - _ramp(window.share("integer") or 0.0, COUNTS)
    spins *= 1.0 - _ramp(_sure_commands(window), LAUNCHING)
    spins *= 1.0 - _draws(window, _mean(window), SPINNING)
    return max((ran - work) * _ramp(nvlink + pcie, MOVED), ran * spins)


def _moving(window: Window, narrow: float) -> float:
    """How much of the time of collectives moved data.

    NVLink's rate is known. What goes over PCIe may be on its way to a slower network, at whose full
    rate it moves all the time.
    """
    pcie, best = window.pcie_load, window.limits.pcie_bytes_per_second
    written = _peer_bytes(window) / (best * REACHED) if best else 0.0
    through = narrow * pcie * (1.0 + NETWORK) / (pcie + NETWORK)
    return min(narrow, max(window.nvlink_load, written, through))


def _peer_bytes(window: Window) -> float:
    """PCIe bytes per second that kernels moved in one direction: sent to or by a peer.

    No copy engine ran meanwhile. Peers that have NVLink do not use PCIe.
    """
    if not window.peers:
        return 0.0
    moved = max(0.0, (window.pcie or 0.0) - MAX_COMMAND_RATE - window.pcie_collective)
    return moved * (1.0 - _engine_share(window)) * (1.0 - _ramp(window.nvlink or 0.0, MOVED))


def _engine_share(window: Window) -> float:
    """How sure it is that copy engines moved what PCIe did, and no kernel; 1 if it is not known.

    Only GPM's counters cover the same time as the buffer of utilisation.
    """
    most, moved = window.limits.pcie_bytes_per_second, window.pcie
    graphics = window.share("graphics")
    gpm = window.activity is not None and window.activity.counters == "gpm"
    if not gpm or graphics is None or window.busy is None or not most or not moved or moved > most:
        return 1.0
    return _ramp((window.busy - graphics) * most / moved, BY_ENGINES)


def _commands(window: Window) -> float:
    """Bytes per second of launches that the GPU reads from the host, without copies."""
    sent, read = window.rate("pcie_transmit"), window.rate("pcie_receive")
    asked = max(0.0, COPIES * sent - read) / (COPIES - COMMANDS)
    return min(read, COMMANDS * asked) * (1.0 - _ramp(read, COPIED_OVER))


def _sure_commands(window: Window) -> float:
    """What of these looks at the host's memory do not explain."""
    sent, read = window.rate("pcie_transmit"), window.rate("pcie_receive")
    asked = max(0.0, read - POLLS * sent) / (COMMANDS - POLLS)
    return min(COMMANDS * asked, _commands(window))


def _mean(window: Window) -> float | None:
    return window.power.mean if window.power else None


def _draws(window: Window, watts: float | None, between: Ramp) -> float:
    """How sure a draw is that of work, on a ramp over that of a resting GPU; 0 if not known."""
    if watts is None or not window.resting_power:
        return 0.0
    return _ramp(watts / window.resting_power, between)


def _engines(window: Window, graphics: float, rest: float, shares: dict[str, float]) -> float:
    """Assign the time in which only copy engines ran; returns how much that was.

    Of copies from memory that is not pinned, that is the time in which they moved bytes: meanwhile
    a CPU copies the next piece, and the GPU is starved.
    """
    engines = max(0.0, min(rest, (window.busy or 0.0) - graphics))
    copies = engines * _ramp(window.pcie or 0.0, (COPY_RATE / 2, COPY_RATE))
    # Copy engines also write to peers over NVLink.
    peers = (engines - copies) * _ramp(window.link_load, LINK_USED)
    # Busy, but no other counter shows it: the counters cannot be trusted.
    unseen = engines - copies - peers
    unseen *= _ramp(unseen, UNCOUNTED_SHARE)
    if best := window.limits.pcie_bytes_per_second:
        moved = window.rate("pcie_receive") + window.rate("pcie_transmit")
        copies = min(copies, moved / (REACHED * best))
    shares["copy"] += copies
    shares["communication"] += peers
    shares["unknown"] += unseen
    return copies + peers + unseen


def _assign_rest(window: Window, busy: float, rest: float, shares: dict[str, float]) -> None:
    """Assign the time in which nothing ran, by who holds the GPU."""
    if window.empty:
        unused = rest * (1.0 - _ramp(busy, HARDLY_BUSY))
        shares[_unheld_state(window)] += unused
        rest -= unused
    idle = rest * _ramp(window.quiet_for, (IDLE_AFTER, IDLE_AFTER + window.seconds))
    shares["idle"] += idle
    shares["starved"] += rest - idle


def _unheld_state(window: Window) -> str:
    """The state of a GPU that no process is on."""
    return "idle" if window.given else "free"


def _split_by_utilization(window: Window, busy: float, shares: dict[str, float]) -> None:
    """Without counters: what the busy time did is known only at the extremes."""
    draw, limit = _mean(window), window.power_limit
    accessed = window.utilization.memory if window.utilization else None
    if draw is not None and limit:
        waiting = window.ceilings.waiting_power
        high = _ramp(draw / limit, (0.95 * waiting, 1.05 * waiting))
        moving = _ramp(window.link_load, LINK_BUSY)
        shares["communication"] = (1.0 - high) * moving * busy
        if accessed is not None:
            spinning = _ramp(busy, ALWAYS_BUSY) * (1.0 - _ramp(accessed, SPIN_UTILIZATION))
            spinning *= (1.0 - _ramp(window.link_load, LINK_USED)) * window.may_communicate
            shares["blocked"] = (1.0 - high) * (1.0 - moving) * spinning * busy
        shares["compute"] = high * busy
    shares["unknown"] = busy - sum(shares.values())
