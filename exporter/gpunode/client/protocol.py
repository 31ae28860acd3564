"""What a training process sends to the daemon: one JSON object per second, as a Unix datagram.

Standard library only, because training code imports it. The daemon identifies the sender by the
credentials that the kernel adds, never by the message.
"""

from __future__ import annotations

import os

VERSION = 1

SOCKET = "/run/gpunode/client.sock"
"""Where the daemon listens by default."""

SOCKET_VARIABLE = "GPUNODE_CLIENT_SOCKET"
"""Environment variable that tells clients of another socket."""

MAX_MESSAGE_BYTES = 8192
"""Size limit of a message in bytes."""

MEDIAN_OF = 64
"""Steps in the median."""

BEST_OF = 32
"""Losses in the mean of which the lowest is kept."""

STEP_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds in seconds of the histogram buckets for steps."""

REQUEST_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds in seconds of the histogram buckets for serving requests."""

PHASES = ("step", "data", "checkpoint", "evaluation", "compile", "other")
"""The phases of a training process; marks with any other name count as ``other``."""

KERNELS = 16
"""The most kernels of a profiled step to report."""

NAME = 80
"""Characters of a kernel's name to report."""


STANDS_STILL = 5.0
"""Seconds without a step or a new phase after which a client tells where its main thread stands."""

FRAMES = 16
"""The innermost frames of the main thread to report."""

FUNCTION, FILE = 80, 160
"""Characters of a function's name, and of the end of a file's path, to report."""


def socket_path() -> str:
    """The socket to send to."""
    return os.environ.get(SOCKET_VARIABLE, SOCKET)
