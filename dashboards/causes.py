"""What holds GPUs up, in the order of the numbers of ``numbered``, each with its colour."""

from __future__ import annotations

from gpunode.export import palette
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.held_up import MOMENTARY_CAUSES

GONE = palette.CAUSES["stopped"]
"""The colour of a GPU that does nothing any more, beside the others that wait for it."""

HELD_UP = {
    **palette.CAUSES,
    **{name: GONE for name in MOMENTARY_CAUSES if name not in CAUSES},
    "starting": palette.CAUSES["cold_start"],
}
OF_RANKS = {**HELD_UP, "unseen": GONE}
"""With ranks whose node does not answer."""

WAITS = "|".join(cause.name for cause in CAUSES.values() if cause.waits_for_peers)
"""Of a GPU that waits for another."""
