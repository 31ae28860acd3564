"""Questions to the kernel about sockets, which take no privilege.

https://man7.org/linux/man-pages/man7/sock_diag.7.html
https://github.com/torvalds/linux/blob/master/include/uapi/linux/inet_diag.h
"""

from __future__ import annotations

import socket
import struct

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
NLM_F_REQUEST, NLM_F_DUMP = 1, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3

HEAD = struct.Struct("=IHHII")
"""``struct nlmsghdr``: length, kind, flags, sequence and port."""

QUESTION = struct.Struct("=4BI48s")
"""``struct inet_diag_req_v2``: family, protocol, extensions, padding, states, and which socket."""

ANY_STATE = 0xFFFFFFFF
ANY_SOCKET = bytes(48)


def connect() -> socket.socket:
    """A socket to ask the kernel about the network namespace of this thread. Raises ``OSError``."""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG)


def question(
    family: int,
    flags: int = 0,
    extensions: int = 0,
    states: int = ANY_STATE,
    which: bytes = ANY_SOCKET,
) -> bytes:
    """What to send to ask about TCP sockets of a family.

    ``extensions`` and ``states`` are sets of bits, and ``which`` is a ``struct inet_diag_sockid``.
    """
    asked = QUESTION.pack(family, socket.IPPROTO_TCP, extensions, 0, states, which)
    size = HEAD.size + len(asked)
    return HEAD.pack(size, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | flags, 0, 0) + asked
