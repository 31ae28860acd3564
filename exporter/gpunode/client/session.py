"""The client's calls, which queue events for the sender."""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import logging
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from numbers import Real
from time import perf_counter
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

from gpunode.client.garbage import Garbage
from gpunode.client.protocol import NAME, PHASES
from gpunode.client.sender import Account, Sender, amount, is_amount

log = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

ROOM = 1 << 16
"""Events per queue, which the sender empties once a second; the oldest are dropped first."""


MAX_WARNINGS = 20
"""Different complaints: a name may be another one each time."""


class Event(NamedTuple):
    """An event: a step ended, or a phase began."""

    time: float
    phase: str
    steps: int = 0
    tokens: float = 0.0
    samples: float = 0.0


Note = Callable[[Account], None]
"""A change to the account, which only the sender's thread may apply."""


def _forgiving(
    call: Callable[Concatenate[Session, P], T],
) -> Callable[Concatenate[Session, P], T]:
    """Let a call do without the arguments that it has no place for, with a warning.

    If it lacks an argument, it takes the first of those instead: training that says
    ``watch(loadr=loader)`` goes on with its loader.
    """
    parameters = list(inspect.signature(call).parameters.values())[1:]
    places = [parameter.name for parameter in parameters]
    required = [one.name for one in parameters if one.default is inspect.Parameter.empty]
    perform: Callable[..., T] = call

    @functools.wraps(call)
    def forgiving(session: Session, /, *given: P.args, **named: P.kwargs) -> T:
        try:
            return call(session, *given, **named)
        except TypeError:
            taken: dict[str, object] = dict(zip(places, given, strict=False))
            spare: dict[str, object] = {
                f"argument {place}": value
                for place, value in enumerate(given, 1)
                if place > len(places)
            }
            for name, value in named.items():
                (taken if name in places and name not in taken else spare)[name] = value
            missing = [name for name in required if name not in taken]
            if not spare and not missing:
                raise
            for name in spare:
                session._warn(f"{call.__name__} has no place for {name!r}")
            for name in missing:
                taken[name] = next(iter(spare.values()), None)
            return perform(session, **taken)

    return forgiving


class Session:
    """The training of one process. Call it from one thread only: the one that trains."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=ROOM)
        self._requests: deque[tuple[float, int]] = deque(maxlen=ROOM)
        self._notes: deque[Note] = deque(maxlen=ROOM)
        self._account = Account()
        self._sender: Sender | None = None
        self._garbage: Garbage | None = None
        self._started = False
        self._lock = threading.Lock()
        self._phase = "other"
        self._stepped = False
        self._warned: set[str] = set()
        self._profiler: Callable[[], None] | None = None
        os.register_at_fork(after_in_child=self._forget)

    @_forgiving
    def configure(self, flops_per_token: float | None = None) -> None:
        """Set the model's ``flops_per_token`` in training: about 6 x parameters.

        PaLM, appendix B (https://arxiv.org/abs/2204.02311): 6N + 12 x layers x heads x head
        dimension x sequence length.
        """
        self._account.flops_per_token = amount(flops_per_token) or None
        self._refuse("configure", flops_per_token=flops_per_token)

    @_forgiving
    def step(
        self,
        tokens: float = 0,
        samples: float = 0,
        loss: float | None = None,
        number: int | None = None,
    ) -> None:
        """Report the end of a training step.

        Pass ``loss`` only if it is already a number: reading a GPU tensor would stall training.
        ``number`` is that of the step in the whole training, as checkpoints count it: by it is told
        what the job does again after a fault.
        """
        if is_amount(number):
            self._notes.append(lambda account: setattr(account, "number", int(amount(number))))
        self._events.append(Event(perf_counter(), "step", 1, tokens, samples))
        self._phase = "step"
        self._stepped = True
        if not self._started:
            self._start()
        if loss is not None:
            self.loss(loss)
        if self._profiler is not None:
            self._profiler()
        if not (is_amount(tokens) and is_amount(samples)):
            self._refuse("step", tokens=tokens, samples=samples)

    @_forgiving
    def watch(self, loader: Iterable[T]) -> Watched[T]:
        """Wrap a loader to measure the wait for each batch; see ``Watched``."""
        return Watched(self, loader)

    @_forgiving
    def mark(self, name: str) -> None:
        """Begin a phase: step, data, checkpoint, evaluation, compile or other."""
        if name not in PHASES:
            typed = repr(name[:NAME]) if isinstance(name, str) else f"a {type(name).__name__}"
            self._warn(f"phase: {typed} is none of {', '.join(PHASES)}, and counts as other")
        self._phase = name if name in PHASES else "other"
        self._events.append(Event(perf_counter(), self._phase))
        if not self._started:
            self._start()

    @_forgiving
    def loss(self, loss: float) -> None:
        """Record the loss if it is a number; what is none is left out, such as a tensor on a GPU.

        Training would have to wait for such a tensor. Pass ``loss.item()`` where it is read anyway.
        """
        if getattr(loss, "is_cuda", False):
            self._warn("loss is on a GPU and is left out; pass loss.item() where it is logged")
            return
        try:
            number = float(loss) if math.isfinite(loss) else math.nan
        except (TypeError, ValueError, OverflowError, RuntimeError):
            self._warn(f"loss is a {type(loss).__name__}, no number, and is left out")
            return
        self._notes.append(lambda account: account.loss(number))

    @_forgiving
    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Mark a block as a phase: checkpoint, evaluation, compile, data or other."""
        before = self._phase
        self.mark(name)
        try:
            yield
        finally:
            self.mark(before)

    @_forgiving
    def request(self, seconds: float = 0.0, batch: int = 1) -> None:
        """Report a served request: its duration and its number of inputs."""
        self._refuse("request", seconds=seconds, batch=batch)
        self._requests.append((amount(seconds), int(amount(batch))))
        if not self._started:
            self._start()

    @_forgiving
    def follow(self, optimizer: Any) -> Any:
        """Count every step of a PyTorch optimizer as a training step; returns the optimizer."""
        if not callable(getattr(optimizer, "step", None)):
            log.warning("gpunode.client.follow: no optimizer: %s has no step()", type(optimizer))
            return optimizer
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

    @_forgiving
    def profile(self, every: int = 1000) -> None:
        """Profile one step in ``every`` with torch.profiler and report its longest kernels."""
        self._refuse("profile", every=every)
        steps = int(amount(every))
        if not steps:
            self._warn("profile: every is 0, so nothing is profiled")
            return
        from gpunode.client.profiler import StepProfiler

        def report(seconds: dict[str, float]) -> None:
            self._notes.append(lambda account: account.kernels(seconds))

        self._profiler = StepProfiler(steps, report)

    @_forgiving
    def flush(self) -> None:
        """Send all queued events now; also happens when the process exits.

        Waits at most half a second, where the daemon's socket is full.
        """
        if self._sender is not None:
            self._sender.send()

    @_forgiving
    def status(self) -> str:
        """Whether a daemon takes what is reported, in a line."""
        sender = self._sender
        return (sender.status if sender else "") or "gpunode: nothing has been sent yet"

    def _refuse(self, call: str, **given: object) -> None:
        """Warn of a value that is not a number."""
        for name, value in given.items():
            if value is not None and not is_amount(value):
                kind = "a number" if isinstance(value, Real) else f"a {type(value).__name__}"
                self._warn(f"{call}: {name} is {kind} that cannot be counted, and counts as 0")

    def _warn(self, complaint: str) -> None:
        """Say it once; training goes on."""
        if complaint not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add(complaint)
            log.warning("gpunode.client.%s", complaint)

    def _start(self) -> None:
        """Start the sender; if that fails, training continues unreported."""
        with self._lock, contextlib.suppress(AttributeError, OSError, RuntimeError):
            if not self._started:
                self._started = True
                self._sender = Sender(self._drain)
                atexit.register(self.flush)
                self._garbage = Garbage()

    def _drain(self) -> Account:
        """The account after applying all queued events; only the sender calls this."""
        account = self._account
        for event in _taken(self._events):
            account.add(*event)
        account.pass_time(perf_counter())
        for seconds, batch in _taken(self._requests):
            account.requests.add([seconds])
            account.request_items += batch
        for note in _taken(self._notes):
            note(account)
        collected = self._garbage.look() if self._garbage else None
        if collected is not None:
            account.collect(*collected)
        return account

    def _forget(self) -> None:
        """Reset in a forked child, such as a loader's worker, which has nothing to report."""
        self._events.clear()
        self._requests.clear()
        self._notes.clear()
        flops_per_token, self._account = self._account.flops_per_token, Account()
        self._account.flops_per_token = flops_per_token
        self._sender = None
        if self._garbage is not None:
            self._garbage.forget()
            self._garbage = None
        self._started = False
        self._lock = threading.Lock()
        self._profiler = None


def _taken(queue: deque[T]) -> Iterator[T]:
    """Take everything out of a queue to which other threads add."""
    while True:
        try:
            yield queue.popleft()
        except IndexError:
            return


class Watched(Generic[T]):
    """A loader that measures the wait for each batch; its other attributes are unchanged.

    An iteration that does not call ``step`` counts as one step.
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
