"""Tells a lack of gpunode's own file descriptors from what is wrong with a file or a process.

Sources take an ``OSError`` for a word about what they asked for: a process that has ended, a sensor
that does not answer. Without descriptors every file gives one, and a GPU's job would be told to be
no job's.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from gpunode.node.node import Node, NoDescriptors

LACKS = {
    errno.EMFILE: "gpunode has no file descriptor left: raise its LimitNOFILE (ulimit -n)",
    errno.ENFILE: "the node has no file descriptor left: raise fs.file-max",
}
"""What is lacking, and what to do, by the error of a call that opens something."""


class DescriptorsNode:
    """A node with every method of ``Node``; each raises ``NoDescriptors`` where none is left."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.clock = node.clock
        self.drivers = node.drivers

    def __getattr__(self, call: str) -> Callable[..., Any]:
        method = getattr(self._node, call)

        def ask(*given: object) -> object:
            try:
                return method(*given)
            except OSError as error:
                if error.errno in LACKS:
                    raise NoDescriptors(LACKS[error.errno]) from error
                raise

        setattr(self, call, ask)
        return ask
