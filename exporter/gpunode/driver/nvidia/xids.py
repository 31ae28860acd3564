"""Classes of XID errors: https://docs.nvidia.com/deploy/xid-errors/."""

from __future__ import annotations

FROM_APPLICATIONS = (13, 31, 43, 45, 68, 109)
"""A program failed or was killed; the GPU is healthy, also for NVIDIA's device plugin.
https://github.com/NVIDIA/k8s-device-plugin/blob/main/internal/rm/health.go (ignoredXids)"""

OF_REPAIRED_MEMORY = (63, 92, 94)
"""The driver replaced or contained bad memory; other metrics show what remains to be done."""

OF_HARDWARE = (48, 64, 74, 79, 95, 119, 120)
"""The GPU, its memory or its links need a reset or a repair."""

WATCHED = tuple(sorted((31, *OF_REPAIRED_MEMORY, *OF_HARDWARE)))
"""Those that call for action, and 31, which bad memory can cause as well as a bad program."""
