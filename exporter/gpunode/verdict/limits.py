"""Every threshold of the verdicts; an alert with the same threshold takes it from here."""

from __future__ import annotations

LOST = 0.1
"""Share of time from which a loss counts."""

COMMUNICATES = 0.25
"""Share of time from which exposed communication counts; healthy training has some."""

STALLED = 0.95
"""Share of time spent spinning from which a collective counts as stalled."""

STEP_OVERDUE = 5.0
"""Multiple of the median step time after which a step is overdue."""

STEP_OVERDUE_LEAST = 30.0
"""Seconds before which no step is overdue."""

BOUND = 0.5
"""Share of time from which a resource counts as bounding the work."""

SHM_FULL = 0.95
"""Share of /dev/shm in use from which the next batch may not fit."""

IO_PRESSURE = 0.1
"""Share of time with a task waiting for I/O from which storage delays the job."""

DISK_BUSY = 0.95
"""Share of time with requests on a disk from which the disk is saturated."""

REMOTE_LATENCY = 0.05
"""Seconds per request from which a file server counts as slow; 0.001 to 0.01 is usual."""

REMOTE_SHARE = 0.1
"""Mean requests in flight from which a slow file server matters."""

THREAD_BUSY = 0.95
"""Share of a CPU from which a thread is saturated."""

CPU_PRESSURE = 0.25
"""Share of time with a task waiting for a CPU from which the job has too few CPUs."""

QUOTA_THROTTLED = 0.05
"""Share of throttled quota periods from which the quota delays the job."""

THROTTLED_SHARE = 0.05
"""Share of time with throttled clocks from which throttling counts."""

LIMIT_LOWERED = 0.95
"""Enforced over default power limit below which the limit counts as lowered."""

TENSOR_IDLE = 0.05
"""Tensor share of the compute time below which matrix products do not use tensor cores."""

PIPE_BUSY = 0.15
"""Share of the compute time from which the FP32 or FP64 pipe does the matrix products."""

MEMORY_FULL = 0.97
"""Share of the frame buffer, excluding the driver's reserve, from which it is full."""
