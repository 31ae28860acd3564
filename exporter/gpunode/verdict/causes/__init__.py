"""The causes that a verdict can name, a file for each family.

Everything else that is said of causes derives from ``CAUSES``: the series and their order, the
documents, the colours, the classes of the rules and the remedies of the report.
"""

from __future__ import annotations

from gpunode.metric import Metric
from gpunode.verdict.causes import allocation, communication, data, host, limits, serving
from gpunode.verdict.causes.cause import Cause

NONE = Cause(
    name="none",
    named_when="none of these",
    urgency="fine",
    family="work",
)

CAUSES: dict[str, Cause] = {
    cause.name: cause
    for cause in (
        NONE,
        *data.CAUSES,
        *host.CAUSES,
        *allocation.CAUSES,
        *serving.CAUSES,
        *communication.CAUSES,
        *limits.CAUSES,
    )
}
"""By name, in the order in which they are shown."""

USES: frozenset[Metric] = frozenset(metric for cause in CAUSES.values() for metric in cause.uses)
"""The metrics that causes rest on."""
