"""Sums up training events and sends them to the daemon once a second, or drops them."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import logging
import math
import os
import socket
import statistics
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable
from numbers import Real
from time import monotonic
from types import FrameType
from typing import Any

from gpunode.client.protocol import (
    BEST_OF,
    FILE,
    FRAMES,
    FUNCTION,
    KERNELS,
    MAX_MESSAGE_BYTES,
    MEDIAN_OF,
    NAME,
    PHASES,
    REQUEST_BOUNDS,
    STANDS_STILL,
    STEP_BOUNDS,
    VERSION,
    socket_path,
)
from gpunode.metric import Distribution

log = logging.getLogger(__name__)

SEND_INTERVAL = 1.0
"""Seconds between messages."""

UNSENT_SECONDS = 10.0
"""Seconds to keep unsent counts for the next message while the daemon's socket is full."""

SEND_TIMEOUT = 0.25
"""Seconds for which the sender's thread waits, without the GIL, while the daemon's socket is full.
Whoever does not wait gets no turn beside a process that floods the socket."""

TORCH_MEMORY = {
    "reserved": "reserved_bytes.all.current",
    "allocated": "allocated_bytes.all.current",
    "retries": "num_alloc_retries",
    "ooms": "num_ooms",
}
"""https://pytorch.org/docs/stable/generated/torch.cuda.memory.memory_stats.html"""

MAY_COLLECT = sys.version_info < (3, 12)
"""Whether Python may collect garbage while it lists frames. Then it holds a lock; if a finalizer
lets another thread run that wants the lock, such as one that begins, the whole process hangs:
https://github.com/python/cpython/issues/106883"""

UNCOUNTED_PHASES = ("checkpoint", "evaluation", "compile", "other")
"""Phases whose time does not count towards the step in which they happen."""


class Account:
    """The counts since the last message, and the current gauges."""

    def __init__(self) -> None:
        self.flops_per_token: float | None = None
        self.phase = "other"
        self.step = 0
        self.number: int | None = None
        self.loss_finite: bool | None = None
        self.last_loss: float | None = None
        self.best_loss: float | None = None
        self._losses: deque[float] = deque(maxlen=BEST_OF)
        self._time: float | None = None
        self._event: float | None = None
        self._last_step: float | None = None
        self._aside = 0.0
        self._collected_before = 0.0
        self._recent: deque[float] = deque(maxlen=MEDIAN_OF)
        self.clear()

    def clear(self) -> None:
        """Reset the counts after a message; gauges keep their values."""
        self.steps = Distribution(STEP_BOUNDS)
        self.requests = Distribution(REQUEST_BOUNDS)
        self.request_items = 0
        self.phases = dict.fromkeys(PHASES, 0.0)
        self.tokens = 0.0
        self.samples = 0.0
        self.nonfinite_losses = 0
        self.collected: float | None = None
        self.collecting = 0.0
        self.kernel_seconds: dict[str, float] = {}

    def add(self, time: float, phase: str, steps: int, tokens: float, samples: float) -> None:
        """Add an event; the time since the previous one counts towards the phase before it."""
        self.pass_time(time)
        self.phase, self._event = phase, time
        if steps:
            self.step += steps
            if self._last_step is not None:
                took = max(0.0, time - self._last_step - self._aside)
                self.steps.add([took])
                self._recent.append(took)
            self._last_step, self._aside = time, 0.0
            self.tokens += amount(tokens)
            self.samples += amount(samples)

    def pass_time(self, now: float) -> None:
        """Count the time up to now towards the current phase."""
        if self._time is not None and now > self._time:
            passed = now - self._time
            self.phases[self.phase] += passed
            if self.phase in UNCOUNTED_PHASES:
                self._aside += passed
        self._time = now

    def loss(self, loss: float) -> None:
        """Record the loss of the last step."""
        self.loss_finite = math.isfinite(loss)
        if not self.loss_finite:
            self.nonfinite_losses += 1
            return
        self.last_loss = loss
        self._losses.append(loss)
        if len(self._losses) == BEST_OF:
            mean = sum(each / BEST_OF for each in self._losses)  # no sum overflows
            self.best_loss = mean if self.best_loss is None else min(mean, self.best_loss)

    def collect(self, total: float, lasts: float) -> None:
        """Record for how long garbage has been collected so far, and is at this moment."""
        self.collected = (self.collected or 0.0) + max(0.0, total - self._collected_before)
        self._collected_before = max(total, self._collected_before)
        self.collecting = lasts

    def kernels(self, seconds: dict[str, float]) -> None:
        """Record the longest kernels of a profiled step."""
        longest = sorted(seconds, key=seconds.__getitem__, reverse=True)[:KERNELS]
        self.kernel_seconds = {name[:NAME]: seconds[name] for name in longest}

    def message(self) -> bytes:
        """The whole account as one datagram."""
        since = None
        if self._last_step is not None and self._time is not None:
            since = round(self._time - self._last_step - self._aside, 3)
        flops = self.tokens * self.flops_per_token if self.flops_per_token else None
        fields = {
            "v": VERSION,
            "phase": self.phase,
            "phases": {name: round(s, 6) for name, s in self.phases.items() if s},
            "step": self.step,
            "number": self.number,
            "steps": {"counts": self.steps.counts, "sum": round(self.steps.sum, 6)},
            "median": round(statistics.median(self._recent), 6) if self._recent else None,
            "since_step": since,
            "tokens": self.tokens,
            "samples": self.samples,
            "flops": flops,
            "loss": self.last_loss,
            "loss_best": self.best_loss,
            "loss_finite": self.loss_finite,
            "nonfinite_losses": self.nonfinite_losses,
            "memory": torch_memory(),
            "graphs": compiled_graphs(),
            "collected": None if self.collected is None else round(self.collected, 6),
            "collecting": round(self.collecting, 3),
            "kernels": self.kernel_seconds,
        }
        if self._event is not None and (self._time or 0.0) - self._event >= STANDS_STILL:
            fields["where"] = where()
        if any(self.requests.counts):
            fields["requests"] = {
                "counts": self.requests.counts,
                "sum": round(self.requests.sum, 6),
                "items": self.request_items,
            }
        return json.dumps(fields, separators=(",", ":")).encode()


def amount(value: object) -> float:
    """The number; 0 for what is none."""
    return float(value) if is_amount(value) else 0.0  # type: ignore[arg-type]


def is_amount(value: object) -> bool:
    """Whether it is a finite number from 0 on; training would have to wait for a tensor."""
    return isinstance(value, Real) and math.isfinite(value) and float(value) >= 0


def torch_memory() -> dict[str, int] | None:
    """The allocator's figures, if this process uses CUDA; reading them never calls the GPU."""
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    # The current device is per thread, so this thread's is meaningless: sum over all devices.
    devices = [cuda.memory_stats(device) for device in range(cuda.device_count())]
    return {
        name: sum(figures.get(key, 0) for figures in devices) for name, key in TORCH_MEMORY.items()
    }


def where() -> list[tuple[str, str, int]]:
    """Where the main thread stands: functions, the ends of their files' paths, and lines."""
    frame = _main_frame()
    found: list[tuple[str, str, int]] = []
    while frame is not None and len(found) < FRAMES:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on
        found.append((name[:FUNCTION], code.co_filename[-FILE:], frame.f_lineno or 0))
        frame = frame.f_back
    return found


def _main_frame() -> FrameType | None:
    """The innermost frame of the main thread, found while no garbage is collected if that hangs."""
    stops = MAY_COLLECT and gc.isenabled()
    if stops:
        gc.disable()
    try:
        return sys._current_frames().get(threading.main_thread().ident or 0)
    finally:
        if stops:
            gc.enable()


def gpus_of_this_process() -> set[str]:
    """The GPUs that this process has, as their driver numbers them.

    CUDA opens the device of each GPU that it may use, however they are numbered in the process.
    """
    with contextlib.suppress(OSError):
        opened = {_opened(number) for number in os.listdir("/proc/self/fd")}
        return {name for name in opened if name.isdigit()}
    return set()


def _opened(number: str) -> str:
    """What follows ``/dev/nvidia`` in the path of a file that is open, else nothing."""
    with contextlib.suppress(OSError):
        path = os.readlink(f"/proc/self/fd/{number}")
        return path.removeprefix("/dev/nvidia") if path.startswith("/dev/nvidia") else ""
    return ""


def compiled_graphs() -> int | None:
    """How many graphs torch.compile has compiled in this process; None before the first.

    https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html
    """
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    graphs = counters["stats"]["unique_graphs"] if counters and "stats" in counters else 0
    return graphs if isinstance(graphs, int) and graphs > 0 else None


class Sender:
    """The thread that sends."""

    def __init__(self, drain: Callable[[], Account]) -> None:
        self._drain = drain
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # Not settimeout(), which would poll a socket that is always ready to send.
        wait = struct.pack("@ll", 0, int(SEND_TIMEOUT * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
        self._lock = threading.Lock()
        self._sent = monotonic()
        self._failure: str | None = None
        """Why nobody took the last message, empty if somebody did; None before the first."""

        threading.Thread(target=self._run, name="gpunode", daemon=True).start()

    @property
    def status(self) -> str:
        """How the last message fared, in a line; empty before the first."""
        if self._failure is None:
            return ""
        if self._failure:
            return f"gpunode: no daemon at {socket_path()}: {self._failure}"
        gpus = gpus_of_this_process()
        if not gpus:
            return (
                f"gpunode: reporting to {socket_path()}, which counts once this process has a GPU"
            )
        which = f"GPU {gpus.pop()}" if len(gpus) == 1 else f"{len(gpus)} GPUs"
        return f"gpunode: reporting for {which} to {socket_path()}"

    def send(self) -> None:
        """Send the account, keep it briefly or drop it; never raises into training.

        Nor does it wait for a thread that sends for ever, as to a socket on a dead mount.
        """
        if not self._lock.acquire(timeout=2 * SEND_TIMEOUT):
            return
        try:
            self._send()
        except (AttributeError, OSError, RuntimeError, TypeError, ValueError) as error:
            log.debug("gpunode cannot report training: %s", error)
        finally:
            self._lock.release()

    def _send(self) -> None:
        account = self._drain()
        message = account.message()
        if len(message) > MAX_MESSAGE_BYTES:
            account.kernel_seconds = {}
            message = account.message()
        try:
            self._socket.sendto(message, socket_path())
            self._fared("")
        except OSError as error:
            self._fared(f"{error.strerror}")
            busy = error.errno in (errno.EAGAIN, errno.ENOBUFS)
            if busy and monotonic() - self._sent < UNSENT_SECONDS:
                return
        self._sent = monotonic()
        account.clear()

    def _fared(self, failure: str) -> None:
        """Keep how a message fared, and write the first one's status, for who runs the job."""
        first, self._failure = self._failure is None, failure
        if first and os.environ.get("RANK", "0") == "0":
            with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or None
                sys.stderr.write(f"{self.status}\n")

    def _run(self) -> None:
        wait = threading.Event()
        while not wait.wait(SEND_INTERVAL):
            self.send()
