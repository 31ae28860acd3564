"""The colours of the ledger's states and of the verdict's causes, the same wherever they are shown.

What takes the time of GPUs has a hue for each family, and the more urgent of a family are lighter.
So a few colours say the most, and the causes of a family that are as urgent share one. Colours
alone tell nothing: the name is always beside them.

Any two of these colours differ for everybody, also for those who do not see red, green or blue.
Those of what is to be mended, and of text, are seen on light and on dark ground. The tests
(``tests/dashboards/test_colours.py``) say how much.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpunode.verdict import causes, reasons
from gpunode.verdict.guidance import Family, Urgency

FAMILIES: Mapping[Family, Mapping[Urgency, str]] = {
    "work": dict.fromkeys(("fine", "note"), "#669066"),
    "peers": {"now": "#ff4466", "soon": "#aa4c2a"},
    "network": {"soon": "#4c6eb2"},
    "data": {"soon": "#cc8000"},
    "host": {"now": "#b266ff", "soon": "#a26e88", "note": "#663390"},
    "device": {"soon": "#0099b2", **dict.fromkeys(("note", "fine"), "#004455")},
    "unknown": {"soon": "#a4a4ac"},
}
"""By how urgent it is what a family has."""

STATES: dict[str, str] = {
    "compute": FAMILIES["work"]["fine"],
    "communication": FAMILIES["network"]["soon"],
    "blocked": FAMILIES["peers"]["soon"],
    "copy": "#f6bb66",
    "starved": FAMILIES["data"]["soon"],
    "idle": FAMILIES["unknown"]["soon"],
    "free": "#5c5c64",
    "unknown": "#2c2c30",
}

CAUSES: dict[str, str] = {
    name: FAMILIES[cause.family][cause.guidance.urgency] for name, cause in causes.CAUSES.items()
}

REASONS: dict[str, str] = {
    name: FAMILIES[reason.family][reason.guidance.urgency]
    for name, reason in reasons.REASONS.items()
}
"""Why the other GPUs of a job wait for one."""

SEVERITIES: dict[str, str] = {
    "page": FAMILIES["peers"]["now"],
    "ticket": FAMILIES["data"]["soon"],
    "info": FAMILIES["network"]["soon"],
}

PHASES: dict[str, str] = {
    "step": STATES["compute"],
    "repeated": CAUSES["straggler"],
    "data": STATES["starved"],
    "checkpoint": CAUSES["checkpoint"],
    "evaluation": FAMILIES["device"]["fine"],
    "compile": FAMILIES["host"]["soon"],
    "other": STATES["idle"],
}
"""The phases that training reports."""

LIMIT = SEVERITIES["page"]
"""The line of a threshold, and what is beyond it."""

FINE = STATES["compute"]

PLAIN = STATES["communication"]
"""The colour of what has no meaning."""

NAMES: dict[str, str] = {
    name: PLAIN
    if cause.family == "unknown"
    else FAMILIES[cause.family].get("soon", CAUSES[name])
    if cause.guidance.urgency in ("note", "fine")
    else CAUSES[name]
    for name, cause in causes.CAUSES.items()
}
"""Causes as text: what is less urgent has a colour that can be read."""
