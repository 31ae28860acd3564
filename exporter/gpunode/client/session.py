"""One process's account of its training: what the calls put in, and what is sent of it."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar

from gpunode.client.protocol import PHASES
from gpunode.client.sender import Account, Sender

T = TypeVar("T")

ROOM = 1 << 16
"""Events that wait for the sender, which comes once a second; the oldest are dropped first."""


class Event(NamedTuple):
    """Something that happened: a step ended, or a phase began."""

    time: float
    phase: str
    steps: int = 0
    tokens: float = 0.0
    samples: float = 0.0


Note = Callable[[Account], None]
"""What is to be noted in the account by the sender, the only thread that changes it."""


class Session:
    """What one process tells of its training. The calls are for one thread, the one that trains."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=ROOM)
        self._requests: deque[tuple[float, int]] = deque(maxlen=ROOM)
        self._notes: deque[Note] = deque(maxlen=ROOM)
        self._account = Account()
        self._sender: Sender | None = None
        self._started = False
        self._lock = threading.Lock()
        self._phase = "other"
        self._stepped = False
        self._profiler: Callable[[], None] | None = None
        os.register_at_fork(after_in_child=self._forget)

    def configure(self, *, flops_per_token: float | None = None) -> None:
        """Say what the model is: ``flops_per_token`` of training is about 6 x parameters.

        PaLM, appendix B (https://arxiv.org/abs/2204.02311): 6N + 12 x layers x heads x head
        dimension x sequence length.
        """
        self._account.flops_per_token = flops_per_token

    def step(self, tokens: float = 0, samples: float = 0, loss: float | None = None) -> None:
        """A training step has ended.

        Pass ``loss`` where it is a number already: to look at a tensor on a GPU, training would
        have to wait for it.
        """
        self._events.append(Event(perf_counter(), "step", 1, tokens, samples))
        self._phase = "step"
        self._stepped = True
        if not self._started:
            self._start()
        if loss is not None:
            self.loss(loss)
        if self._profiler is not None:
            self._profiler()

    def watch(self, loader: Iterable[T]) -> Watched[T]:
        """The loader, with the wait for each batch measured; see ``Watched``."""
        return Watched(self, loader)

    def mark(self, name: str) -> None:
        """From now on time goes to step, data, checkpoint, evaluation, compile or other."""
        self._phase = name if name in PHASES else "other"
        self._events.append(Event(perf_counter(), self._phase))
        if not self._started:
            self._start()

    def loss(self, loss: float) -> None:
        """Note the loss where it is a number; a tensor on a GPU is not looked at."""
        if not getattr(loss, "is_cuda", False):
            with contextlib.suppress(TypeError, ValueError):
                finite = math.isfinite(loss)
                self._notes.append(lambda account: account.loss(finite))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Mark the time of a block: checkpoint, evaluation, compile, data or other."""
        before = self._phase
        self.mark(name)
        try:
            yield
        finally:
            self.mark(before)

    def request(self, seconds: float, batch: int = 1) -> None:
        """A request was served: how long it took, and for how many inputs."""
        self._requests.append((seconds, batch))
        if not self._started:
            self._start()

    def follow(self, optimizer: Any) -> Any:
        """Count every step of a PyTorch optimizer as a training step; returns the optimizer."""
        if hasattr(optimizer, "register_step_post_hook"):
            optimizer.register_step_post_hook(lambda *_: self.step())
            return optimizer
        perform = optimizer.step

        def stepped(*arguments: Any, **named: Any) -> Any:
            answer = perform(*arguments, **named)
            self.step()
            return answer

        optimizer.step = stepped
        return optimizer

    def profile(self, every: int = 1000) -> None:
        """Profile one step in so many with torch.profiler, and tell its longest kernels."""
        from gpunode.client.profiler import StepProfiler

        def report(seconds: dict[str, float]) -> None:
            self._notes.append(lambda account: account.kernels(seconds))

        self._profiler = StepProfiler(every, report)

    def flush(self) -> None:
        """Send now what has been put in; also done at the end of the process."""
        if self._sender is not None:
            self._sender.send()

    def _start(self) -> None:
        """Start the sender; where that cannot be, training goes on without being told of."""
        with self._lock, contextlib.suppress(OSError, RuntimeError):
            if not self._started:
                self._started = True
                self._sender = Sender(self._drain)
                atexit.register(self.flush)

    def _drain(self) -> Account:
        """The account with everything in it that has happened; called by the sender alone."""
        account = self._account
        for event in _taken(self._events):
            account.add(*event)
        account.pass_time(perf_counter())
        for seconds, batch in _taken(self._requests):
            account.requests.add([seconds])
            account.request_items += batch
        for note in _taken(self._notes):
            note(account)
        return account

    def _forget(self) -> None:
        """In a forked child, such as a loader's worker, there is nothing to tell."""
        self._events.clear()
        self._requests.clear()
        self._notes.clear()
        flops_per_token, self._account = self._account.flops_per_token, Account()
        self._account.flops_per_token = flops_per_token
        self._sender = None
        self._started = False
        self._lock = threading.Lock()
        self._profiler = None


def _taken(queue: deque[T]) -> Iterator[T]:
    """What is in a queue that other threads put into, taken out."""
    while True:
        try:
            yield queue.popleft()
        except IndexError:
            return


class Watched(Generic[T]):
    """A loader whose batches are waited for under a watch; all else of the loader is as it was.

    An iteration in which ``step`` is not called counts as a step itself.
    """

    def __init__(self, session: Session, loader: Iterable[T]) -> None:
        self._session = session
        self._loader = loader

    def __iter__(self) -> Iterator[T]:
        session = self._session
        session.mark("data")
        for batch in self._loader:
            session._stepped = False
            session.mark("step")
            yield batch
            if not session._stepped:
                session.step()
            session.mark("data")
        session.mark("other")

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
