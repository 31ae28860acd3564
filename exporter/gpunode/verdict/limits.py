"""Every threshold of the verdicts; an alert with the same threshold takes it from here."""

from __future__ import annotations

LOST = 0.1
"""Minimum share of time for a loss to count."""

COMMUNICATES = 0.25
"""Minimum share of time for exposed communication to count; healthy training has some."""

STALLED = 0.95
"""Minimum share of time spent spinning for a collective to count as stalled."""

STEP_OVERDUE = 5.0
"""A step is overdue after this multiple of the median step time."""

STEP_OVERDUE_LEAST = 30.0
"""No step is overdue before this many seconds."""

BOUND = 0.5
"""Minimum share of time for a resource to count as bounding the work."""

SHM_FULL = 0.95
"""At this share of /dev/shm in use, the next batch may not fit."""

IO_PRESSURE = 0.1
"""At this share of time with a task waiting for I/O, storage delays the job."""

DISK_BUSY = 0.95
"""At this share of time with requests, a disk is saturated."""

REMOTE_LATENCY = 0.05
"""At this many seconds per request, a file server is slow; 0.001 to 0.01 is usual."""

REMOTE_SHARE = 0.1
"""Minimum mean requests in flight for a slow file server to matter."""

THREAD_BUSY = 0.95
"""At this share of a CPU, a thread is saturated."""

CPU_PRESSURE = 0.25
"""At this share of time with a task waiting for a CPU, the job has too few CPUs."""

QUOTA_THROTTLED = 0.05
"""At this share of throttled quota periods, the quota delays the job."""

THROTTLED_SHARE = 0.05
"""Minimum share of time with throttled clocks for throttling to count."""

LIMIT_LOWERED = 0.95
"""A power limit below this share of the default counts as lowered."""

TENSOR_IDLE = 0.05
"""Below this tensor share of the compute time, matrix products do not use tensor cores."""

PIPE_BUSY = 0.15
"""At this share of the compute time, the FP32 or FP64 pipe does the matrix products."""

MEMORY_FULL = 0.97
"""At this share in use, excluding the driver's reserve, the frame buffer is full."""
