"""Every threshold of the verdicts; an alert with the same threshold takes it from here."""

from __future__ import annotations

LOST = 0.1
"""Minimum share of time for a loss to count."""

COMMUNICATES = 0.25
"""Minimum share of time for exposed communication to count; healthy training has some."""

LAUNCHES = 0.15
"""Minimum share of time in gaps between kernels to count; healthy training has half of it."""

STALLED = 6.0
"""A collective has stalled if every window was `blocked` for this many seconds."""

WAITS = 0.5
"""At this share of the last seconds spent spinning, a GPU waits for its peers."""

DOES_NOT_WAIT = 0.3
"""Below this multiple of what its peers spend spinning, a GPU is waited for."""

WORKS = 0.2
"""At this share of time at work, a GPU for which others wait throughout is busy with something that
they do not do, as in evaluation."""

WORKED = 0.05
"""At this share of time at work, a GPU has worked; below, it may be the ledger's inaccuracy."""

THROUGHOUT = 0.9
"""At this share of the last seconds spent spinning, a GPU waits all the time."""

MEMORY_BUSY = 0.4
"""Minimum HBM share for its bandwidth to bound the work."""

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

THREAD_BUSY = 0.8
"""At this share of a CPU, a thread that prepares data or answers requests holds the GPU up."""

EXPLAINED = 0.5
"""A thread of the process on the GPU explains its gaps if it was busy for this share of them."""

SEVERAL_CPUS = 1.5
"""From this many CPUs, a process computes on them, not only in Python's main thread."""

RUNS_NOTHING = 0.95
"""At this share of time without work, no step runs that could wait for data."""

GOES_ON = 0.1
"""From this many CPUs, a process is not stuck, whatever state it is seen in."""

COMPILES = 0.2
"""From this many CPUs used by compilers, kernels are being compiled."""

WRITES = 50e6
"""From this many bytes per second that a job writes while the GPU waits, it saves its state."""

IN_PHASE = 0.5
"""Share of the GPU's lost time that the client's phase must cover to explain it."""

TO_HOST = 0.5
"""From this many bytes sent per byte received, copies bring results to the host."""

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

HOST_MEMORY_FULL = 0.95
"""At this share of the node's memory in use, caches not counted, the next job may not fit."""

FILESYSTEM_FREE = 0.1
"""Below this share of free space, a filesystem is nearly full."""

XID_REMEMBERED = 900
"""Seconds for which an XID counts."""
