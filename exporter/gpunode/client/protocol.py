"""What a training process tells the daemon: one JSON object a second, in a Unix datagram.

Standard library only, because training code imports it. The daemon knows the sender from the
credentials that the kernel adds, never from what the message says.
"""

from __future__ import annotations

import os

VERSION = 1

SOCKET = "/run/gpunode/client.sock"
"""Where the daemon listens; the environment variable GPUNODE_CLIENT_SOCKET names another."""

LARGEST = 8192
"""Bytes of the largest message."""

MEDIAN_OF = 64
"""Steps that the median is of."""

STEP_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds in seconds of the buckets that step times are counted in."""

REQUEST_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds in seconds of the buckets that serving requests are counted in."""

PHASES = ("step", "data", "checkpoint", "evaluation", "compile", "other")
"""What a second of a training process goes to; marks of another name count as ``other``."""

KERNELS = 16
"""Kernels of a profiled step that are told of."""

NAME = 80
"""Characters of a kernel's name that are told."""


def socket_path() -> str:
    """Where to send to."""
    return os.environ.get("GPUNODE_CLIENT_SOCKET", SOCKET)
