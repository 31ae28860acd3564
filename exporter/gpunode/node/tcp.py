"""Asks a server over TCP, also in the network namespace of another process, such as a pod's."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import threading
import time

CLONE_NEWNET = 0x40000000

DEADLINE = 8.0
"""Seconds allowed for the whole answer, however slowly the server sends."""

LARGEST = 32 << 20
"""Size limit of an answer in bytes."""


def ask(address: str, request: str, namespace: str) -> str:
    """Send a request and read until the server closes. Raises ``OSError``.

    ``address`` is HOST:PORT, ``namespace`` a file such as /proc/PID/ns/net.
    """
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + DEADLINE
    host = "127.0.0.1" if host in ("", "localhost") else host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        number = int(port)
    except ValueError as error:
        raise OSError(errno.EINVAL, f"{address} is not HOST:PORT") from error
    with _socket_in(namespace, family) as connection:
        connection.settimeout(DEADLINE)
        try:
            connection.connect((host, number))
            connection.sendall(request.encode())
            answer = b""
            while True:
                connection.settimeout(max(0.001, deadline - time.monotonic()))
                part = connection.recv(1 << 16)
                answer += part
                if not part:
                    return answer.decode("utf-8", "replace")
                if len(answer) > LARGEST:
                    raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE), address)
        except TimeoutError as error:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), address) from error
        except OverflowError as error:
            raise OSError(errno.EINVAL, f"{address}: no such port") from error


def _socket_in(namespace: str, family: int) -> socket.socket:
    """A socket in a network namespace: the kernel uses that of the thread that creates it."""
    try:
        other = os.readlink(namespace) != os.readlink("/proc/self/ns/net")
    except OSError:
        other = False  # a namespace that cannot be read cannot be entered either
    if not other:
        return socket.socket(family, socket.SOCK_STREAM)
    made: list[socket.socket | OSError] = []

    def make() -> None:
        try:
            with open(namespace, "rb") as file:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(file.fileno(), CLONE_NEWNET):
                    number = ctypes.get_errno()
                    why = f"{os.strerror(number)}: entering requires CAP_SYS_ADMIN"
                    raise OSError(number, why, namespace)
            made.append(socket.socket(family, socket.SOCK_STREAM))
        except OSError as error:
            made.append(error)

    # In a short-lived thread, because setns(2) changes the namespace of the calling thread.
    thread = threading.Thread(target=make, name="namespace")
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]
