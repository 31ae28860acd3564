"""The threshold table: what counts as a bottleneck or a fault, from when, and what to do about it.

The alert rules, their tests, ``docs/thresholds.md`` and the generated parts of the runbooks derive
from it (``alerts/generate.py``). Where an alert draws the same line as a verdict, its row takes the
number from ``gpunode.verdict``.

Every condition is a recorded series (``record``), so that an alert says in one line what it asks
for and anyone can look at it. ``instance`` is the name of the node (``docs/rules.md``). Rates look
back on five minutes, which is four scrapes at an interval of a minute; where seconds count, the
signal is a gauge that the exporter keeps.
"""

from __future__ import annotations

from alerts.model import Threshold
from alerts.thresholds.communication import COMMUNICATION
from alerts.thresholds.data_ingestion import DATA_INGESTION
from alerts.thresholds.exporter import EXPORTER
from alerts.thresholds.files import FILES
from alerts.thresholds.hardware import HARDWARE
from alerts.thresholds.kernels import KERNELS
from alerts.thresholds.memory_precision import MEMORY_PRECISION
from alerts.thresholds.network import NETWORK
from alerts.thresholds.serving import SERVING
from alerts.thresholds.shared_memory import SHARED_MEMORY
from alerts.thresholds.starts import STARTS
from alerts.thresholds.system import SYSTEM
from alerts.thresholds.thermal_power import THERMAL_POWER

THRESHOLDS: tuple[Threshold, ...] = (
    *COMMUNICATION,
    *DATA_INGESTION,
    *MEMORY_PRECISION,
    *KERNELS,
    *SERVING,
    *SYSTEM,
    *STARTS,
    *FILES,
    *SHARED_MEMORY,
    *HARDWARE,
    *THERMAL_POWER,
    *NETWORK,
    *EXPORTER,
)
