"""One call of gRPC over a Unix socket, on a connection of its own.

https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

from __future__ import annotations

import errno
import os
import socket
import time
from urllib.parse import unquote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import H2Error

READ_BYTES = 1 << 16
"""Bytes to read at once."""

PREFIX = 5
"""Bytes before a message: whether it is compressed, and its length."""

ERRORS = {
    "4": errno.ETIMEDOUT,
    "7": errno.EACCES,
    "8": errno.EMSGSIZE,
    "12": errno.EOPNOTSUPP,
    "14": errno.ECONNREFUSED,
}
"""What the codes of gRPC mean, as far as the system has words for them:
https://grpc.io/docs/guides/status-codes/"""


class UnaryCall:
    """The client's side of a call, apart from the socket."""

    def __init__(self, method: str, request: bytes, largest: int, deadline: float) -> None:
        self._connection = H2Connection(H2Configuration(header_encoding="utf-8"))
        self._largest = largest
        self._answer = bytearray()
        self._headers: dict[str, str] = {}
        self._ended = False
        self._connection.initiate_connection()
        stream = self._connection.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("grpc-timeout", f"{round(deadline * 1000)}m"),
        ]
        self._connection.send_headers(stream, headers)
        message = b"\0" + len(request).to_bytes(4, "big") + request
        self._connection.send_data(stream, message, end_stream=True)

    def to_send(self) -> bytes:
        """What has to be sent now."""
        return self._connection.data_to_send()

    def take(self, data: bytes) -> bool:
        """Read on; whether the answer is whole. Raises ``OSError``."""
        try:
            for event in self._connection.receive_data(data):
                self._learn(event)
        except (H2Error, UnicodeDecodeError) as error:
            raise OSError(errno.EPROTO, f"no HTTP/2: {error}") from error
        return self._ended

    def _learn(self, event: Event) -> None:
        if isinstance(event, ResponseReceived | TrailersReceived):
            self._headers.update((str(name), str(value)) for name, value in event.headers)
        elif isinstance(event, DataReceived):
            self._answer += event.data
            if len(self._answer) > PREFIX + self._largest:
                raise OSError(errno.EMSGSIZE, f"an answer of more than {self._largest} bytes")
            if event.flow_controlled_length:
                self._connection.acknowledge_received_data(
                    event.flow_controlled_length, event.stream_id
                )
        elif isinstance(event, StreamReset | ConnectionTerminated):
            raise OSError(errno.EPROTO, f"it gave up with HTTP/2 error {event.error_code}")
        elif isinstance(event, StreamEnded):
            self._ended = True

    def answer(self) -> bytes:
        """The message of an answer that is whole. Raises ``OSError``."""
        status = self._headers.get("grpc-status")
        if status != "0":
            number = ERRORS.get(status or "", errno.EPROTO)
            message = unquote(self._headers.get("grpc-message", ""))
            raise OSError(number, f"gRPC status {status}: {message}")
        length = int.from_bytes(self._answer[1:PREFIX], "big")
        if self._answer[:1] != b"\0" or len(self._answer) != PREFIX + length:
            raise OSError(errno.EPROTO, "not one message without compression")
        return bytes(self._answer[PREFIX:])


def call(
    connected: socket.socket, method: str, request: bytes, largest: int, deadline: float
) -> bytes:
    """The answer of the server at the other end.

    Raises ``OSError`` without a valid answer in so many seconds.
    """
    until = time.monotonic() + deadline
    calling = UnaryCall(method, request, largest, deadline)
    whole = False
    while not whole:
        if (left := until - time.monotonic()) <= 0:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        connected.settimeout(left)
        connected.sendall(calling.to_send())
        data = connected.recv(READ_BYTES)
        if not data:
            raise OSError(errno.ECONNRESET, "it hung up before the end of its answer")
        whole = calling.take(data)
    return calling.answer()
