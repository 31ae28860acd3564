"""Training progress, as reported by training processes through ``gpunode.client``."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field, TypeAdapter

from gpunode.client.protocol import (
    KERNELS,
    MEDIAN_OF,
    NAME,
    PHASES,
    REQUEST_BOUNDS,
    STEP_BOUNDS,
    VERSION,
)
from gpunode.config import Settings
from gpunode.driver.driver import Identity
from gpunode.gpu import GPU
from gpunode.gpu.models import model_of
from gpunode.jobs.processes import running
from gpunode.metric import Distribution, Metric, Sample
from gpunode.node.datagram_socket import Datagram
from gpunode.node.node import Node
from gpunode.source import WHOLE_NODE, Absent, Place, Reading, Source

SECONDS = Metric(
    "gpunode_training_seconds_total",
    "counter",
    "Time of the training process by phase: steps, waiting for data, checkpoints, evaluation, "
    "compilation, other. Goodput is the share of `step` (gpunode.client).",
    (*GPU, "phase"),
)
STEP = Metric(
    "gpunode_training_step_seconds",
    "histogram",
    "Duration of training steps, including the wait for data (gpunode.client).",
    GPU,
    STEP_BOUNDS,
)
MEDIAN = Metric(
    "gpunode_training_step_median_seconds",
    "gauge",
    f"Median duration of the last {MEDIAN_OF} steps (gpunode.client).",
    GPU,
)
BASELINE = Metric(
    "gpunode_training_step_baseline_seconds",
    "gauge",
    f"Lowest median duration of {MEDIAN_OF} steps so far: the process's own best pace "
    "(gpunode.client).",
    GPU,
)
LAST_STEP = Metric(
    "gpunode_training_last_step_timestamp_seconds",
    "gauge",
    "When the last step ended; absent in checkpoints, evaluation, compilation and other phases "
    "without steps (gpunode.client).",
    GPU,
)
TOKENS = Metric(
    "gpunode_training_tokens_total", "counter", "Tokens trained on (gpunode.client).", GPU
)
SAMPLES = Metric(
    "gpunode_training_samples_total", "counter", "Samples trained on (gpunode.client).", GPU
)
FLOPS = Metric(
    "gpunode_training_flops_total",
    "counter",
    "Floating-point operations of the model: tokens x FLOPs per token (gpunode.client).",
    GPU,
)
MFU = Metric(
    "gpunode_training_mfu_ratio",
    "gauge",
    "Model FLOPs utilisation over the last minute: FLOP/s divided by the GPU's dense peak in half "
    "precision; absent if either is unknown. https://arxiv.org/abs/2204.02311, appendix B.",
    GPU,
)
LOSS_FINITE = Metric(
    "gpunode_training_loss_finite",
    "gauge",
    "Whether the last reported loss is finite (gpunode.client).",
    GPU,
)
NONFINITE_LOSSES = Metric(
    "gpunode_training_nonfinite_losses_total",
    "counter",
    "Reported losses that were NaN or infinite (gpunode.client).",
    GPU,
)
TORCH_RESERVED = Metric(
    "gpunode_torch_memory_reserved_bytes",
    "gauge",
    "GPU memory reserved by PyTorch's allocator (torch.cuda.memory_stats).",
    GPU,
)
TORCH_ALLOCATED = Metric(
    "gpunode_torch_memory_allocated_bytes",
    "gauge",
    "GPU memory that PyTorch's tensors occupy (torch.cuda.memory_stats).",
    GPU,
)
TORCH_RETRIES = Metric(
    "gpunode_torch_alloc_retries_total",
    "counter",
    "PyTorch allocations retried after freeing cached memory (torch.cuda.memory_stats).",
    GPU,
)
TORCH_OOMS = Metric(
    "gpunode_torch_ooms_total",
    "counter",
    "PyTorch allocations that failed for lack of memory (torch.cuda.memory_stats).",
    GPU,
)
KERNEL = Metric(
    "gpunode_training_kernel_seconds",
    "gauge",
    "Time in the longest-running kernels of the last profiled step (torch.profiler).",
    (*GPU, "kernel"),
)
REQUEST = Metric(
    "gpunode_serving_request_seconds",
    "histogram",
    "Duration of serving requests (gpunode.client).",
    GPU,
    REQUEST_BOUNDS,
)
REQUEST_ITEMS = Metric(
    "gpunode_serving_inputs_total",
    "counter",
    "Inputs of serving requests: requests x batch size (gpunode.client).",
    GPU,
)
MESSAGES = Metric(
    "gpunode_client_messages_total",
    "counter",
    "Messages from clients: accepted, malformed, from a process without a GPU (`no_gpu`), or from "
    "one that is not visible in this PID namespace (`unknown_sender`).",
    ("result",),
)

RESULTS = ("accepted", "malformed", "no_gpu", "unknown_sender")

WORKING = ("step", "data")
"""Phases in which steps are expected."""

SILENCE = 10.0
"""Seconds without a message after which a process, which sends one per second, no longer counts."""

MFU_PERIOD = 60.0
"""Seconds over which to compute MFU."""

LATENESS = 5.0
"""Seconds that a message may be late: a last step that moves by less is the same step."""

KEPT = 300.0
"""Seconds to export the counters of a process after it ends, so that a scrape sees its last step
and a failed allocation."""

PROCESSES_EVERY = 10.0
"""Seconds between updates of which process is on which GPU."""

Seconds = Annotated[float, Field(ge=0, le=1e6)]
Amount = Annotated[float, Field(ge=0, le=1e24, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=10**9)]
Bytes = Annotated[int, Field(ge=0, le=2**50)]


@dataclass(frozen=True, slots=True)
class Counted:
    """A histogram in a message."""

    counts: Annotated[list[Count], Field(max_length=32)] = field(default_factory=list)
    sum: Amount = 0.0
    items: Count = 0


@dataclass(frozen=True, slots=True)
class TorchMemory:
    """Figures of PyTorch's allocator."""

    reserved: Bytes = 0
    allocated: Bytes = 0
    retries: Count = 0
    ooms: Count = 0


@dataclass(frozen=True, slots=True)
class Message:
    """A message from a client; see ``client/protocol.py``."""

    v: int
    phase: Annotated[str, Field(max_length=32)] = "other"
    phases: dict[str, Seconds] = field(default_factory=dict)
    steps: Counted = Counted()
    median: Seconds | None = None
    since_step: Seconds | None = None
    tokens: Amount = 0.0
    samples: Amount = 0.0
    flops: Amount | None = None
    loss_finite: bool | None = None
    nonfinite_losses: Count = 0
    memory: TorchMemory | None = None
    kernels: dict[str, Seconds] = field(default_factory=dict)
    requests: Counted | None = None


MESSAGE = TypeAdapter(Message)


def parse(text: str) -> Message:
    """Parse a message. Raises ``ValueError``, also if its version differs."""
    message = MESSAGE.validate_json(text)
    sizes = len(message.steps.counts), len(message.requests.counts) if message.requests else 0
    fits = sizes[0] <= len(STEP_BOUNDS) + 1 and sizes[1] <= len(REQUEST_BOUNDS) + 1
    if message.v != VERSION or not fits:
        raise ValueError("a message of another version")
    if not set(message.phases) <= set(PHASES) or len(message.kernels) > KERNELS:
        raise ValueError("an unknown phase, or too many kernels")
    return message


@dataclass(slots=True)
class OfProcess:
    """What one process has reported so far."""

    heard: float = -math.inf
    steps: int = 0
    baseline: float | None = None
    last_step: float | None = None
    """When the last step ended, in seconds since the epoch, moved on by any pauses since."""

    allocator: TorchMemory = TorchMemory()
    """The allocator's last figures, to count increases from."""

    kernels: dict[str, float] = field(default_factory=dict)
    work: deque[tuple[float, float, float]] = field(default_factory=deque)
    """The messages of the last minute: when each arrived, its FLOPs and its seconds."""

    def add(self, message: Message, now: float, time: float) -> None:
        """Add a message received at ``now`` (monotonic) and ``time`` (epoch) seconds."""
        self.heard = now
        self._note_last_step(message, time)
        self.steps += sum(message.steps.counts)
        if message.median is not None and self.steps >= MEDIAN_OF:
            self.baseline = min(message.median, self.baseline or message.median)
        self.allocator = message.memory or self.allocator
        self.kernels = message.kernels or self.kernels
        self.work.append((now, message.flops or 0.0, sum(message.phases.values())))
        while now - self.work[0][0] > MFU_PERIOD:
            self.work.popleft()

    def _note_last_step(self, message: Message, time: float) -> None:
        """Keep the first estimate of when a step ended: later messages may be delayed."""
        if message.since_step is None:
            self.last_step = None
            return
        estimate, known = time - message.since_step, self.last_step
        same = known is not None and 0 <= estimate - known < LATENESS
        if any(message.steps.counts) or not same:
            self.last_step = estimate

    @property
    def flops_per_second(self) -> float | None:
        """The FLOPs of the last minute per second that the process accounts for.

        Not per second that passed here: messages arrive up to two seconds late.
        """
        seconds = sum(took for _, _, took in self.work)
        return sum(flops for _, flops, _ in self.work) / seconds if seconds else None


@dataclass(slots=True)
class Training:
    """Everything that processes on one GPU have reported so far."""

    identity: Identity
    pid: int
    """The process that reported last: the gauges are its own."""

    last: Message
    processes: dict[int, OfProcess] = field(default_factory=dict)
    phases: Counter[str] = field(default_factory=Counter)
    steps: Distribution = field(default_factory=lambda: Distribution(STEP_BOUNDS))
    requests: Distribution = field(default_factory=lambda: Distribution(REQUEST_BOUNDS))
    request_items: float = 0.0
    tokens: float = 0.0
    samples: float = 0.0
    flops: float = 0.0
    nonfinite_losses: float = 0.0
    retries: float = 0.0
    ooms: float = 0.0
    serves: bool = False

    def add(self, message: Message, pid: int, now: float, time: float) -> None:
        """Add a message received at ``now`` (monotonic) and ``time`` (epoch) seconds."""
        process = self.processes.setdefault(pid, OfProcess())
        if message.memory is not None:
            self.retries += max(0, message.memory.retries - process.allocator.retries)
            self.ooms += max(0, message.memory.ooms - process.allocator.ooms)
        process.add(message, now, time)
        self.phases.update(message.phases)
        _include(self.steps, message.steps)
        if message.requests is not None:
            self.serves = True
            _include(self.requests, message.requests)
            self.request_items += message.requests.items
        self.tokens += message.tokens
        self.samples += message.samples
        self.flops += message.flops or 0.0
        self.nonfinite_losses += message.nonfinite_losses
        self.pid, self.last = pid, message

    @property
    def heard(self) -> float:
        """When a process last reported."""
        return self.processes[self.pid].heard

    def mfu(self, now: float) -> float | None:
        """Model FLOPs utilisation; None if the FLOPs of the model or the GPU are unknown."""
        peak = model_of(self.identity.name, self.identity.compute_capability)
        if peak is None or self.last.flops is None or self.identity.mig:
            return None
        rates = [
            rate
            for process in self.processes.values()
            if now - process.heard <= SILENCE and (rate := process.flops_per_second) is not None
        ]
        return sum(rates) / peak.half if rates else None

    def series(self, lives: bool, now: float) -> Iterator[Sample]:
        """The samples of this GPU; once the process has ended, only its counters."""
        at = self.identity.labels
        yield from self._counters(*at)
        if lives:
            yield from self._present(now, *at)

    def _counters(self, *at: str) -> Iterator[Sample]:
        for phase in PHASES:
            yield from SECONDS.at(self.phases[phase], *at, phase)
        yield Sample(STEP, at, self.steps.copy())
        yield from TOKENS.at(self.tokens, *at)
        yield from SAMPLES.at(self.samples, *at)
        if self.last.flops is not None:
            yield from FLOPS.at(self.flops, *at)
        if self.last.loss_finite is not None:
            yield from NONFINITE_LOSSES.at(self.nonfinite_losses, *at)
        if self.last.memory is not None:
            yield from TORCH_RETRIES.at(self.retries, *at)
            yield from TORCH_OOMS.at(self.ooms, *at)
        if self.serves:
            yield Sample(REQUEST, at, self.requests.copy())
            yield from REQUEST_ITEMS.at(self.request_items, *at)

    def _present(self, now: float, *at: str) -> Iterator[Sample]:
        last, process = self.last, self.processes[self.pid]
        yield from MEDIAN.at(last.median, *at)
        yield from BASELINE.at(process.baseline, *at)
        if last.phase in WORKING:
            yield from LAST_STEP.at(process.last_step, *at)
        yield from MFU.at(self.mfu(now), *at)
        if last.loss_finite is not None:
            yield from LOSS_FINITE.at(float(last.loss_finite), *at)
        if last.memory is not None:
            yield from TORCH_RESERVED.at(float(last.memory.reserved), *at)
            yield from TORCH_ALLOCATED.at(float(last.memory.allocated), *at)
        for name, seconds in process.kernels.items():
            yield from KERNEL.at(seconds, *at, name[:NAME])


class TrainingSteps:
    """Receives client messages and assigns each to the GPU that its sender holds."""

    name = "training_steps"
    metrics = (
        SECONDS,
        STEP,
        MEDIAN,
        BASELINE,
        LAST_STEP,
        TOKENS,
        SAMPLES,
        FLOPS,
        MFU,
        LOSS_FINITE,
        NONFINITE_LOSSES,
        TORCH_RESERVED,
        TORCH_ALLOCATED,
        TORCH_RETRIES,
        TORCH_OOMS,
        KERNEL,
        REQUEST,
        REQUEST_ITEMS,
        MESSAGES,
    )

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.socket = settings.client.socket
        self.every = settings.client.interval
        self._results = dict.fromkeys(RESULTS, 0.0)
        self._trainings: dict[str, Training] = {}
        self._gpus: dict[int, Identity] = {}
        self._looked = -math.inf
        self._listens = False

    def find(self) -> Iterable[tuple[Place, Source]]:
        """Itself, unless listening is disabled. Raises ``Absent`` if it cannot listen."""
        if not self.socket:
            return ()
        if not self._listens:
            try:
                self.node.datagrams(self.socket)
            except OSError as error:
                why = f"cannot listen at {self.socket}: {error.strerror}"
                raise Absent(f"{why}; training metrics are not available") from error
            self._listens = True
        return ((WHOLE_NODE, self),)

    def read(self) -> Reading:
        datagrams = self.node.datagrams(self.socket)
        now = self.node.clock.monotonic()
        senders = {datagram.pid for datagram in datagrams}
        if now - self._looked >= PROCESSES_EVERY or not senders <= self._gpus.keys() | {0}:
            self._look_at_gpus(now)
        for datagram in datagrams:
            self._results[self._take(datagram, now)] += 1
        return Reading(tuple(self._samples(now)))

    def _look_at_gpus(self, now: float) -> None:
        """Update which process is on which GPU; one on several counts for the first."""
        self._looked = now
        # Later entries win: MIG instances over their GPU, low indices over high ones.
        found = sorted(running(self.node), key=lambda held: (held[1].mig, -held[1].index))
        self._gpus = dict(found)
        for uuid, training in list(self._trainings.items()):
            living = training.processes.keys() & (self._gpus.keys() | {training.pid})
            training.processes = {pid: training.processes[pid] for pid in living}
            if training.pid not in self._gpus and now - training.heard > KEPT:
                del self._trainings[uuid]

    def _take(self, datagram: Datagram, now: float) -> str:
        """Process one message; returns its result."""
        try:
            message = parse(datagram.text)
        except ValueError:
            return "malformed"
        if datagram.pid == 0:
            return "unknown_sender"
        pid = datagram.pid
        told = (training.identity for training in self._trainings.values() if training.pid == pid)
        # The last message may arrive after the process has left the GPU.
        identity = self._gpus.get(pid) or next(told, None)
        if identity is None:
            return "no_gpu"
        training = self._trainings.setdefault(identity.uuid, Training(identity, pid, message))
        training.add(message, pid, now, self.node.clock.time())
        return "accepted"

    def _samples(self, now: float) -> Iterator[Sample]:
        for training in self._trainings.values():
            yield from training.series(training.pid in self._gpus, now)
        for result, count in self._results.items():
            yield from MESSAGES.at(count, result)


def _include(total: Distribution, counted: Counted) -> None:
    counts: Sequence[int] = [*counted.counts, *[0] * (len(total.counts) - len(counted.counts))]
    total.include(Distribution(total.bounds, list(counts), counted.sum))
