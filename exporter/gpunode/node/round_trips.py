"""How long packets travel, by TCP connections that are open, from the kernel without any privilege.

``ss --tcp --info`` asks the same.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator

from gpunode.helper.sock_diag import (
    HEAD,
    NLM_F_DUMP,
    NLMSG_DONE,
    NLMSG_ERROR,
    SOCK_DIAG_BY_FAMILY,
    connect,
    question,
)

ESTABLISHED = 1
INFO = 2
"""INET_DIAG_INFO: the attribute with the kernel's ``struct tcp_info``."""

DIAG_MESSAGE = struct.Struct("=4B2H16s16s")
"""How ``struct inet_diag_msg`` begins: family, state, timer, retransmits, ports, addresses."""

LENGTH = 72
"""Bytes of ``struct inet_diag_msg``."""

ATTRIBUTE = struct.Struct("=HH")
RTT = struct.Struct("=68xI")
"""``tcpi_rtt``, in microseconds, in ``struct tcp_info``.
https://github.com/torvalds/linux/blob/master/include/uapi/linux/tcp.h"""

MAX_READ_BYTES = 4 << 20
"""The most bytes to read: those of some 10,000 connections."""

PART = 1 << 16
TIMEOUT = 2.0
"""Seconds for the kernel's answer."""


def round_trips() -> list[float]:
    """Smoothed round-trip times, in seconds, of this network namespace's TCP connections.

    Without connections within the node. Raises ``OSError``.
    """
    found: list[float] = []
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            found += parse_round_trips(_dump_connections(family))
        except ValueError as error:
            raise OSError(errno.EPROTO, f"sock_diag: {error}") from error
    return found


def _dump_connections(family: int) -> bytes:
    """The kernel's records of all established connections of a family."""
    said = bytearray()
    with connect() as kernel:
        kernel.settimeout(TIMEOUT)
        kernel.send(question(family, NLM_F_DUMP, 1 << (INFO - 1), 1 << ESTABLISHED))
        while len(said) < MAX_READ_BYTES:
            part = kernel.recv(PART)
            said += part
            if len(part) < HEAD.size or HEAD.unpack_from(part)[1] in (NLMSG_ERROR, NLMSG_DONE):
                break
    return bytes(said)


def parse_round_trips(said: bytes) -> list[float]:
    """Round-trip times in seconds from answers of sock_diag. Raises ``ValueError``."""
    found = []
    for kind, message in _messages(said):
        if kind == NLMSG_ERROR and len(message) >= 4 and (number := _number(message)):
            raise ValueError(os.strerror(number))
        if kind != SOCK_DIAG_BY_FAMILY or len(message) < LENGTH:
            continue
        family, _, _, _, _, _, near, far = DIAG_MESSAGE.unpack_from(message)
        if near == far or _is_loopback(family, far):
            continue
        info = dict(_attributes(message[LENGTH:])).get(INFO, b"")
        if len(info) >= RTT.size and (micros := RTT.unpack_from(info)[0]):
            found.append(micros / 1e6)
    return found


def _number(message: bytes) -> int:
    number: int = struct.unpack_from("=i", message)[0]
    return abs(number) if number > -4096 else 0


def _is_loopback(family: int, host: bytes) -> bool:
    if family == socket.AF_INET:
        return ipaddress.IPv4Address(host[:4]).is_loopback
    address = ipaddress.IPv6Address(host)
    return address.is_loopback or bool(address.ipv4_mapped and address.ipv4_mapped.is_loopback)


def _messages(said: bytes) -> Iterator[tuple[int, bytes]]:
    """The kind and the content of each message."""
    at = 0
    while at + HEAD.size <= len(said):
        size, kind, *_ = HEAD.unpack_from(said, at)
        if size < HEAD.size:
            raise ValueError(f"a message of {size} bytes")
        yield kind, said[at + HEAD.size : at + size]
        at += size + -size % 4


def _attributes(content: bytes) -> Iterator[tuple[int, bytes]]:
    """The kind and the value of each attribute of a message."""
    at = 0
    while at + ATTRIBUTE.size <= len(content):
        size, kind = ATTRIBUTE.unpack_from(content, at)
        if size < ATTRIBUTE.size:
            raise ValueError(f"an attribute of {size} bytes")
        yield kind, content[at + ATTRIBUTE.size : at + size]
        at += size + -size % 4
