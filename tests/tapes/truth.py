"""What each GPU really did on each tape, told by the workload's own code.

Shares of wall-clock time; several states in one key share the figure between them, and what a row
does not name was not measured. From the README of the recordings.
"""

from __future__ import annotations

Truth = dict[str, float]

TRUTH: dict[str, tuple[Truth, Truth]] = {
    "idle": ({"free": 1.0}, {"free": 1.0}),
    "compute": ({"compute": 1.0}, {"compute": 1.0}),
    "healthy": ({"compute": 1.0}, {"compute": 0.95, "blocked communication": 0.05}),
    "mixed_nop2p": ({"compute": 1.0}, {"compute": 0.95, "blocked communication": 0.05}),
    "memfull": ({"compute": 1.0}, {"compute": 0.95, "blocked communication": 0.05}),
    "starved": (
        {"compute": 0.25, "starved": 0.75},
        {"compute": 0.25, "starved": 0.75},
    ),
    "starved_mild": (
        {"compute": 0.75, "starved": 0.25},
        {"compute": 0.75, "starved": 0.25},
    ),
    "starved_slow": (
        {"compute": 0.19, "starved": 0.50, "blocked": 0.31},
        {"compute": 0.18, "starved": 0.31, "blocked": 0.51},
    ),
    "comm": ({"communication": 1.0}, {"communication": 1.0}),
    "comm_nop2p": ({"communication": 1.0}, {"communication": 1.0}),
    "hang": ({"blocked": 1.0}, {"idle": 1.0}),
    "straggler": (
        {"compute": 0.22, "blocked": 0.77},
        {"compute": 0.21, "starved": 0.79},
    ),
    "membound": ({"compute": 1.0}, {"compute": 1.0}),
    # Kernels of a microsecond, 120,000 a second.
    "launch": ({"starved": 0.9, "compute": 0.1}, {"starved": 0.9, "compute": 0.1}),
    "fp32": ({"compute": 1.0}, {"compute": 1.0}),
    "checkpoint": (
        {"compute": 0.57, "starved": 0.19, "blocked": 0.24},
        {"compute": 0.57, "starved": 0.26, "blocked": 0.17},
    ),
    "h2d": ({"copy": 1.0}, {"copy": 1.0}),
    "loader_cpu": (
        {"compute": 0.20, "starved": 0.80},
        {"compute": 0.20, "starved": 0.80},
    ),
    "ddp_small": (
        {"compute": 0.46, "starved": 0.54},
        {"compute": 0.49, "starved": 0.51},
    ),
}


def errors(truth: Truth, shares: dict[str, float]) -> dict[str, float]:
    """How far the ledger's share of each state is from the truth; others are 0."""
    named = {state for group in truth for state in group.split()}
    found = {group: sum(shares[state] for state in group.split()) for group in truth}
    return {
        **{group: found[group] - share for group, share in truth.items()},
        **{state: share for state, share in shares.items() if state not in named},
    }
