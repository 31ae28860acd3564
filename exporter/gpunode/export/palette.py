"""The colours of the ledger's states and of the verdict's causes, the same wherever they are shown.

They stay apart for people who do not see red or green: the base is the palette of Okabe and Ito
(https://jfly.uni-koeln.de/color/), the other causes are the colours farthest from it and from one
another. Colours alone tell nothing: the name is always beside them.
"""

from __future__ import annotations

from gpunode.verdict import causes, reasons

STATES: dict[str, str] = {
    "compute": "#009E73",
    "memory": "#56B4E9",
    "communication": "#0072B2",
    "blocked": "#D55E00",
    "copy": "#AA3377",
    "launch": "#F0E442",
    "starved": "#E69F00",
    "idle": "#B8B8C2",
    "free": "#DDDDDD",
    "unknown": "#444448",
}

CAUSES: dict[str, str] = {
    name: STATES.get(cause.colour, cause.colour) for name, cause in causes.CAUSES.items()
}
"""A cause that takes the time of one state has that state's colour."""

REASONS: dict[str, str] = {
    name: {**STATES, **CAUSES}.get(reason.colour, reason.colour)
    for name, reason in reasons.REASONS.items()
}
"""Why the other GPUs of a job wait for one."""

SEVERITIES: dict[str, str] = {"page": "#D55E00", "ticket": "#E69F00", "info": "#56B4E9"}

PHASES: dict[str, str] = {
    "step": STATES["compute"],
    "data": STATES["starved"],
    "checkpoint": CAUSES["checkpoint"],
    "evaluation": STATES["memory"],
    "compile": CAUSES["compile"],
    "other": STATES["idle"],
}
"""The phases that training reports."""

LIMIT = "#D55E00"
"""The line of a threshold, and what is beyond it."""

FINE = "#009E73"

PLAIN = "#0072B2"
"""What has no meaning of its own."""
