"""Counters that network drivers expose only through ``ethtool -S``.

The kernel's interface is in include/uapi/linux/ethtool.h; reading requires no privilege.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import struct

SIOCETHTOOL = 0x8946
ETHTOOL_GSTRINGS = 0x1B
ETHTOOL_GSTATS = 0x1D
ETHTOOL_GSSET_INFO = 0x37
ETH_SS_STATS = 1
NAME_LENGTH = 32
MAX_INTERFACE_BYTES = 15
MAX_COUNTERS = 65536
"""The most counters accepted from a driver; mlx5 has about 2,000."""


def statistics(interface: str) -> dict[str, int]:
    """The counters of an interface in this network namespace, by name. Raises ``OSError``."""
    if len(interface.encode()) > MAX_INTERFACE_BYTES:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), interface)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        sets = _ask(control, interface, struct.pack("=IIQI", ETHTOOL_GSSET_INFO, 0, 1 << 1, 0))
        _, _, mask, count = struct.unpack("=IIQI", sets)
        if not mask or count > MAX_COUNTERS:
            return {}
        head = struct.pack("=III", ETHTOOL_GSTRINGS, ETH_SS_STATS, count)
        names = _ask(control, interface, head + bytes(count * NAME_LENGTH))[len(head) :]
        head = struct.pack("=II", ETHTOOL_GSTATS, count)
        values = _ask(control, interface, head + bytes(count * 8))[len(head) :]
    return {
        names[at * NAME_LENGTH : (at + 1) * NAME_LENGTH].split(b"\0")[0].decode("ascii", "replace"):
        value
        for at, value in enumerate(struct.unpack(f"={count}Q", values))
    }  # fmt: skip


def _ask(control: socket.socket, interface: str, command: bytes) -> bytes:
    """Have the kernel fill in a command; ``struct ifreq`` holds the interface and its address."""
    buffer = array.array("B", command)
    address, _ = buffer.buffer_info()
    request = struct.pack("16sP16x", interface.encode(), address)
    fcntl.ioctl(control, SIOCETHTOOL, request)
    return buffer.tobytes()
