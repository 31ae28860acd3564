"""A terminal, and a program in it."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

from tests.daemon import TIMEOUT

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A program in a terminal of so many lines and columns."""

    def __init__(
        self, *command: str, kind: str = "xterm-256color", size: tuple[int, int] = (40, 160)
    ) -> None:
        self.side, inner = pty.openpty()
        self.lines, _ = size
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        others = {"COLUMNS", "LINES", "NO_COLOR"}  # of the terminal in which the tests run
        environment = {k: v for k, v in os.environ.items() if k not in others} | {"TERM": kind}
        self.child = subprocess.Popen(
            command, stdin=inner, stdout=inner, stderr=inner, env=environment, close_fds=True
        )
        os.close(inner)
        self.raw = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def shows(self, text: str, seconds: float = TIMEOUT) -> str:
        """Wait until a text has been shown since the last wait; all that was."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            plain = ESCAPES.sub("", self.raw)
            if text in plain:
                self.raw = ""
                return plain
            if select.select([self.side], [], [], 0.1)[0]:
                try:
                    self.raw += self._decoder.decode(os.read(self.side, 65536))
                except OSError:  # the program has ended
                    break
        raise AssertionError(f"{text!r} was not shown, but: {ESCAPES.sub('', self.raw)!r}")

    def raw_until(self, text: str, seconds: float = TIMEOUT, then: float = 1.5) -> str:
        """All that was written, with its escapes, a moment after a text has been shown."""
        deadline, written = time.monotonic() + seconds, ""
        while time.monotonic() < deadline:
            if select.select([self.side], [], [], 0.1)[0]:
                written += self._decoder.decode(os.read(self.side, 65536))
            if text in ESCAPES.sub("", written):
                deadline = min(deadline, time.monotonic() + then)
                text = ""
        return written

    def raw_to_the_end(self, seconds: float = TIMEOUT) -> str:
        """All that was written, with its escapes, until the program ended."""
        self._to_the_end(seconds)
        return self.raw

    def strike(self, key: str) -> None:
        os.write(self.side, key.encode())

    def scrolled_off(self, seconds: float = TIMEOUT) -> int:
        """How many lines have left it at the top when the program ends."""
        self._to_the_end(seconds)
        bottom = self.lines - 1
        row = left = 0
        for up, down in re.findall(r"\x1b\[(\d+)A|(\n)", self.raw):
            row += 1 if down else -min(row, int(up))
            left += row > bottom
            row = min(row, bottom)
        return left

    def _to_the_end(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if select.select([self.side], [], [], 0.1)[0]:
                try:
                    self.raw += os.read(self.side, 65536).decode(errors="replace")
                except OSError:
                    return
        raise AssertionError(f"it goes on after {seconds} s")
