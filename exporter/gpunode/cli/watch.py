"""How ``gpunode run`` and ``gpunode record`` watch this node."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import sys
from typing import Any, NoReturn

from gpunode.cli import rights
from gpunode.cli.this_node import local_node
from gpunode.config.daemon import DcgmSettings
from gpunode.config.path import PathSettings
from gpunode.loop import MORE_THREADS, Loop
from gpunode.mistake import UsageError
from gpunode.node.descriptors import DescriptorsNode
from gpunode.node.node import Node

log = logging.getLogger(__name__)


ARENA_MAX = -8
"""``M_ARENA_MAX`` of malloc.h."""


def watched_node(path: PathSettings, dcgm: DcgmSettings) -> Node:
    """The local node, for sources that tell a lack of descriptors from all else."""
    return DescriptorsNode(local_node(path, dcgm))


def _share_memory() -> None:
    """Have all threads take their memory from one arena.

    The C library gives each thread one of its own, so that they need not wait for each other, and
    never moves what is free in one to another. Python's lock lets them take turns anyway.
    https://man7.org/linux/man-pages/man3/mallopt.3.html
    """
    with contextlib.suppress(AttributeError):  # musl has none
        ctypes.CDLL(None).mallopt(ARENA_MAX, 1)


def start(loop: Loop) -> None:
    """Start the loop, in threads that hold what reading processes needs only while they do."""
    _share_memory()
    gc.collect()
    gc.freeze()  # what is loaded is no garbage, at no collection from now on
    try:
        rights.lower()
    except OSError as error:
        log.warning("%s: every thread keeps its own", error)
    try:
        loop.start()
    except RuntimeError as error:
        raise UsageError(f"{error}: {MORE_THREADS}") from error


def end(*_: Any) -> NoReturn:
    """End the program at a signal."""
    sys.exit(0)
