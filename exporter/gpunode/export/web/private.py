"""Who may see what is of a job and not only of the node: who gave a password, or is root here."""

from __future__ import annotations

import os
import socket
import struct

from fastapi import HTTPException, Request

AUTHENTICATED = "gpunode.known"
"""In the scope of a request, whether its client had to say who it is, or the kernel did."""

REFUSAL = (
    "incidents and where processes stand are told to who says who he is: turn on passwords or "
    "client certificates (--web.config.file), or run `gpunode incidents` or `gpunode stacks` as "
    "root on the node"
)

PEER = struct.Struct("3i")
"""``struct ucred``: process, user and group of who connected."""


def private(request: Request) -> None:
    """Let a request pass if it is known whose it is. Raises ``HTTPException``.

    No address counts: nothing tells surely what a proxy on this node passes on.
    """
    if not request.scope.get(AUTHENTICATED):
        raise HTTPException(403, REFUSAL)


def is_trusted(connection: socket.socket) -> bool:
    """Whether root or our own user connected to that socket, as the kernel says."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
    return PEER.unpack(peer)[1] in (0, os.geteuid())
