"""Every line that a verdict draws; where an alert draws the same line, it takes it from here."""

from __future__ import annotations

LOST = 0.1
"""Share of time from which a loss counts."""

COMMUNICATES = 0.25
"""Share of time from which communication that is not hidden counts; healthy training has some."""

STALLED = 0.95
"""Share of time spent spinning from which nobody is expected to arrive."""

STEP_OVERDUE = 5.0
"""Times the median step after which a step is overdue."""

STEP_OVERDUE_LEAST = 30.0
"""Seconds before which no step is overdue."""

BOUND = 0.5
"""Share of time from which a resource counts as what bounds the work."""

SHM_FULL = 0.95
"""Share of /dev/shm in use from which the next batch may not fit."""

IO_PRESSURE = 0.1
"""Share of time with a task waiting for I/O from which storage holds the job up."""

DISK_BUSY = 0.95
"""Share of time with requests on a disk from which it has no more to give."""

REMOTE_LATENCY = 0.05
"""Seconds that a request to a file server takes from which it is slow; 0.001 to 0.01 are usual."""

REMOTE_SHARE = 0.1
"""Requests in flight on average from which a slow file server matters."""

THREAD_BUSY = 0.95
"""Share of a CPU from which a thread has no more to give."""

CPU_PRESSURE = 0.25
"""Share of time with a task waiting for a CPU from which the job has too few."""

QUOTA_THROTTLED = 0.05
"""Share of quota periods that were throttled from which the quota holds the job up."""

THROTTLED_SHARE = 0.05
"""Share of time with the clocks held down from which it counts."""

LIMIT_LOWERED = 0.95
"""Enforced over default power limit below which somebody chose to have less."""

TENSOR_IDLE = 0.05
"""Tensor share of the time at work below which products do not use the tensor cores."""

PIPE_BUSY = 0.15
"""Share of the time at work from which the FP32 or FP64 pipe does the products."""

MEMORY_FULL = 0.97
"""Share of the frame buffer, without the driver's reserve, from which it is full."""
