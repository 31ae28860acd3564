"""Training progress, as reported by training processes through ``gpunode.client``."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Annotated

from pydantic import Field, TypeAdapter

from gpunode.client.protocol import (
    BEST_OF,
    FRAMES,
    KERNELS,
    MEDIAN_OF,
    NAME,
    PHASES,
    REQUEST_BOUNDS,
    STEP_BOUNDS,
    VERSION,
)
from gpunode.config.daemon import Settings
from gpunode.driver.driver import Identity
from gpunode.gpu import GPU
from gpunode.gpu.models import model_of
from gpunode.holders.census import FRESH, Census
from gpunode.metric import Distribution, Metric, Sample
from gpunode.node.datagram_socket import Datagram
from gpunode.node.stacks import Frame, frames_of
from gpunode.source import MAX_ITEMS, WHOLE_NODE, Absent, Place, Reading, Source
from gpunode.text import printable
from gpunode.unread import Unknown

SECONDS = Metric(
    "gpunode_training_seconds_total",
    "counter",
    "Time of the training process by phase: steps, waiting for data, checkpoints, evaluation, "
    "compilation, other. Goodput is the share of `step` (gpunode.client).",
    (*GPU, "phase"),
)
CHECKPOINTS = Metric(
    "gpunode_training_checkpoints_total",
    "counter",
    "Checkpoints that the training process has written (gpunode.client).",
    GPU,
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
    "Model FLOPs utilisation over the last minute: FLOP/s divided by the GPU's dense peak in "
    "half precision; absent if either is unknown.",
    GPU,
)
LOSS = Metric(
    "gpunode_training_loss",
    "gauge",
    "The last reported loss that was finite (gpunode.client).",
    GPU,
)
BEST_LOSS = Metric(
    "gpunode_training_loss_best",
    "gauge",
    f"Lowest mean of {BEST_OF} finite losses in a row that the process has reported; absent before "
    "as many (gpunode.client).",
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
TORCH_GRAPHS = Metric(
    "gpunode_torch_compiled_graphs_total",
    "counter",
    "Graphs that torch.compile has compiled; those after the first steps are recompilations "
    "(torch._dynamo.utils.counters).",
    GPU,
)
GARBAGE = Metric(
    "gpunode_training_garbage_collection_seconds_total",
    "counter",
    "Time in which Python collected garbage while the training process stood still "
    "(gpunode.client).",
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
    "Messages from clients: accepted, malformed, from a process without a GPU (`no_gpu`), from "
    "one that ended or is in another PID namespace (`unknown_sender`), or too many (`dropped`).",
    ("result",),
)

RESULTS = ("accepted", "malformed", "no_gpu", "unknown_sender", "dropped")

WORKING = ("step", "data")
"""Phases in which steps are expected."""

MORE_MESSAGES = Unknown(
    "messages",
    "processes sent more messages than the socket has room for; processes on a GPU always have "
    "some",
    bound=True,
)

IMPOSSIBLE = Unknown(
    "training_seconds",
    "a process reported more time in training than has passed; the rest is not counted",
    bound=True,
)

SILENCE_SECONDS = 10.0
"""Seconds without a message after which a process, which sends one per second, no longer counts."""

MFU_PERIOD = 60.0
"""Seconds over which to compute MFU."""

BACKLOG = 15.0
"""Seconds before its first message that a process may tell of: the client keeps what it cannot send
for ten, and a message may be late."""

LATENESS = 5.0
"""Seconds that a message may be late: a last step that moves by less is the same step."""

EXPORT_SECONDS = 300.0
"""Seconds to export the counters of a process after it ends, unless another reports for its GPU, so
that a scrape sees its last step and a failed allocation."""

PROCESSES_INTERVAL = 10.0
"""Seconds between updates of which process is on which GPU."""

HIGHEST_MFU = 8.0
"""More than any GPU can do: sparse FP4 has eight times the peak in half precision."""

OTHER = "other"
"""The kernels of a process beyond the first ``MAX_ITEMS``: none can create ever new series."""

Seconds = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
"""Tokens or samples in a message: thousands of times what a cluster trains on in a second."""

Flops = Annotated[float, Field(ge=0, le=1e21, allow_inf_nan=False)]
"""FLOPs of a message: what 10,000 GPUs do in ten seconds, for who reports those of the job."""

Loss = Annotated[float, Field(allow_inf_nan=False)]
"""Of any size, because a training that diverges has one, and nothing is added to it."""

Events = Annotated[int, Field(ge=0, le=10**6)]
"""Steps or requests in a message: the client's queue holds 65,536."""

Count = Annotated[int, Field(ge=0, le=10**9)]
Line = Annotated[int, Field(ge=0, le=10**8)]
Text = Annotated[str, Field(max_length=256)]
Bytes = Annotated[int, Field(ge=0, le=2**50)]


@dataclass(frozen=True, slots=True)
class ReportedHistogram:
    """A histogram in a message."""

    counts: Annotated[list[Events], Field(max_length=32)] = field(default_factory=list)
    sum: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 0.0
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
    step: Count | None = None
    """The steps that have ended since the client began."""

    number: Count | None = None
    """That of the last step in the whole training, with what came before a checkpoint."""

    steps: ReportedHistogram = ReportedHistogram()
    median: Seconds | None = None
    since_step: Seconds | None = None
    tokens: Amount = 0.0
    samples: Amount = 0.0
    flops: Flops | None = None
    loss: Loss | None = None
    loss_best: Loss | None = None
    loss_finite: bool | None = None
    nonfinite_losses: Count = 0
    memory: TorchMemory | None = None
    graphs: Count | None = None
    collected: Seconds | None = None
    """Seconds in which Python collected garbage."""

    collecting: Seconds = 0.0
    """Seconds for which a collection has been under way."""

    kernels: dict[str, Seconds] = field(default_factory=dict)
    requests: ReportedHistogram | None = None
    where: Annotated[list[tuple[Text, Text, Line]], Field(max_length=FRAMES)] = field(
        default_factory=list
    )
    """Where the main thread stands: functions, files and lines, the innermost first."""


@cache
def _message() -> TypeAdapter[Message]:
    return TypeAdapter(Message)


def parse(text: str) -> Message:
    """Parse a message. Raises ``ValueError``, also if its version differs."""
    message = _message().validate_json(text)
    sizes = len(message.steps.counts), len(message.requests.counts) if message.requests else 0
    fits = sizes[0] <= len(STEP_BOUNDS) + 1 and sizes[1] <= len(REQUEST_BOUNDS) + 1
    if message.v != VERSION or not fits:
        raise ValueError("a message of another version")
    if not {message.phase, *message.phases} <= set(PHASES) or len(message.kernels) > KERNELS:
        raise ValueError("an unknown phase, or too many kernels")
    return message


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a process has come, by its own word."""

    phase: str
    step: int | None
    """The steps that have ended since its client began; None from a client that does not tell."""

    collecting: float
    """Seconds for which it had been collecting garbage without an end."""

    silent: float
    """Seconds since it said so."""

    number: int | None = None
    """Of its last step in the whole training; None where it does not tell."""

    pace: float | None = None
    """Median seconds of its last steps."""


@dataclass(frozen=True, slots=True)
class ReportedPosition:
    """The position of a process, as its client reports it."""

    pid: int
    start: float
    """Ticks since boot."""

    frames: tuple[Frame, ...]
    """The frames of its main thread, if it recently reported that no step completes."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class ClientReports:
    """Where the processes stand that have a client."""

    processes: tuple[ReportedPosition, ...]


@dataclass(slots=True)
class Allowance:
    """How much time a process can have spent since it was first heard of, and has told so far."""

    since: float
    told: float = 0.0

    def share(self, seconds: float, now: float) -> float:
        """The share of more seconds that can be true at ``now``, which is told from then on."""
        share = min(1.0, max(0.0, now - self.since - self.told) / seconds) if seconds else 1.0
        self.told += share * seconds
        return share


@dataclass(slots=True)
class ProcessReport:
    """The reports of one process so far."""

    start: float
    """When it started, in ticks since boot: another with its PID is another process."""

    held: float
    """When it was last seen on the GPU."""

    in_phases: Allowance
    in_steps: Allowance
    in_collections: Allowance
    heard: float = -math.inf
    steps: int = 0
    baseline: float | None = None
    last_step: float | None = None
    """When the last step ended, in seconds since the epoch, moved on by any pauses since."""

    allocator: TorchMemory = TorchMemory()
    """The allocator's last figures, to count increases from."""

    graphs: int = 0
    """The graphs compiled so far, to count increases from."""

    phase: str = OTHER
    step: int | None = None
    number: int | None = None
    pace: float | None = None
    saves: bool = False
    """Whether its last message told of a checkpoint."""

    collecting: float = 0.0
    frames: tuple[Frame, ...] = ()
    """Where its main thread stood at its last message, if it had reported no step for a while."""

    kernels: dict[str, float] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    """All kernels reported so far, ``MAX_ITEMS`` at most."""

    work: deque[tuple[float, float, float]] = field(default_factory=deque)
    """The messages of the last minute: when each arrived, its FLOPs and its seconds."""

    @classmethod
    def first_heard(cls, start: float, now: float) -> ProcessReport:
        """A process whose first message was received at ``now`` (monotonic)."""
        of_phases, of_steps, of_collections = (Allowance(now - BACKLOG) for _ in range(3))
        return cls(start, now, of_phases, of_steps, of_collections)

    def possible(self, message: Message, now: float) -> Message:
        """What can be true of a message: no process trains for longer than time has passed.

        What is beyond that was before this daemon began, or is not so.
        """
        phases, steps = message.phases, message.steps
        passed = self.in_phases.share(sum(phases.values()), now)
        in_steps = self.in_steps.share(steps.sum, now)
        collected = self.in_collections.share(message.collected or 0.0, now)
        if passed == in_steps == collected == 1.0:
            return message
        return replace(
            message,
            phases={phase: passed * seconds for phase, seconds in phases.items()},
            steps=replace(steps, sum=in_steps * steps.sum),
            tokens=passed * message.tokens,
            samples=passed * message.samples,
            flops=None if message.flops is None else passed * message.flops,
            collected=None if message.collected is None else collected * message.collected,
        )

    def add(self, message: Message, now: float, time: float) -> None:
        """Add a message received at ``now`` (monotonic) and ``time`` (epoch) seconds."""
        self.heard = now
        self._note_last_step(message, time)
        self.steps += sum(message.steps.counts)
        if message.median is not None and self.steps >= MEDIAN_OF:
            self.baseline = min(message.median, self.baseline or message.median)
        self.allocator = message.memory or self.allocator
        self.graphs = self.graphs if message.graphs is None else message.graphs
        self.phase, self.step, self.number = message.phase, message.step, message.number
        self.pace = message.median
        self.saves = message.phases.get("checkpoint", 0.0) > 0.0
        self.collecting = message.collecting
        self.frames = frames_of(message.where)
        if message.kernels:
            self.kernels = self._bounded_names(message.kernels)
        self.work.append((now, message.flops or 0.0, sum(message.phases.values())))
        while now - self.work[0][0] > MFU_PERIOD:
            self.work.popleft()

    def _bounded_names(self, kernels: dict[str, float]) -> dict[str, float]:
        """The time of kernels by names fit for a label; those beyond ``MAX_ITEMS`` are one."""
        found: dict[str, float] = {}
        for name, seconds in kernels.items():
            label = printable(name, NAME)
            if label not in self.names and len(self.names) >= MAX_ITEMS:
                label = OTHER
            else:
                self.names.add(label)
            found[label] = found.get(label, 0.0) + seconds
        return found

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
class TrainingCounters:
    """The counters of a GPU."""

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
    graphs: float | None = None
    collected: float | None = None
    checkpoints: int = 0
    serves: bool = False

    def add(self, message: Message, before: ProcessReport) -> None:
        """Add a message; ``before`` is what its process had reported."""
        if message.memory is not None:
            self.retries += max(0, message.memory.retries - before.allocator.retries)
            self.ooms += max(0, message.memory.ooms - before.allocator.ooms)
        if message.graphs is not None:
            self.graphs = (self.graphs or 0.0) + max(0, message.graphs - before.graphs)
        if message.collected is not None:
            self.collected = (self.collected or 0.0) + message.collected
        self.phases.update(message.phases)
        self.checkpoints += message.phases.get("checkpoint", 0.0) > 0.0 and not before.saves
        _include(self.steps, message.steps)
        if message.requests is not None:
            self.serves = True
            _include(self.requests, message.requests)
            self.request_items += message.requests.items
        self.tokens += message.tokens
        self.samples += message.samples
        self.flops += message.flops or 0.0
        self.nonfinite_losses += message.nonfinite_losses


@dataclass(slots=True)
class Training:
    """What processes on one GPU have reported so far: those on it, and those that just left."""

    identity: Identity
    pid: int
    """The process that reported last: the gauges are its own."""

    last: Message
    processes: dict[int, ProcessReport] = field(default_factory=dict)
    totals: TrainingCounters = field(default_factory=TrainingCounters)

    def add(self, message: Message, pid: int, start: float, now: float, time: float) -> bool:
        """Add a message received at ``now`` (monotonic) and ``time`` (epoch) seconds.

        Returns whether all of it can be true.
        """
        process = self.processes.setdefault(pid, ProcessReport.first_heard(start, now))
        possible = process.possible(message, now)
        self.totals.add(possible, process)
        process.add(possible, now, time)
        self.pid, self.last = pid, possible
        return possible is message

    def keep(self, wanted: Callable[[int, ProcessReport], bool]) -> None:
        """Forget all processes but those wanted, and what they counted.

        The counters start over, because no process may answer for what another said, and a counter
        that falls by one's part would look as if the rest had just been added.
        """
        kept = {pid: its for pid, its in self.processes.items() if wanted(pid, its)}
        if len(kept) < len(self.processes):
            self.processes, self.totals = kept, TrainingCounters()

    def mfu(self, now: float) -> float | None:
        """Model FLOPs utilisation; None if the FLOPs of the model or the GPU are unknown."""
        model = model_of(self.identity.name)
        peak = model.half if model else None
        if peak is None or self.last.flops is None or self.identity.mig:
            return None
        rates = [
            rate
            for process in self.processes.values()
            if now - process.heard <= SILENCE_SECONDS
            and (rate := process.flops_per_second) is not None
        ]
        if not rates:
            return None
        mfu = sum(rates) / peak
        return mfu if mfu <= HIGHEST_MFU else None

    def series(self, lives: bool, now: float) -> Iterator[Sample]:
        """The samples of this GPU; once the process has ended, only its counters."""
        at = self.identity.labels
        yield from self._counters(*at)
        if lives:
            yield from self._present(now, *at)

    def _counters(self, *at: str) -> Iterator[Sample]:
        totals = self.totals
        for phase in PHASES:
            yield from SECONDS.at(totals.phases[phase], *at, phase)
        yield from CHECKPOINTS.at(float(totals.checkpoints), *at)
        yield Sample(STEP, at, totals.steps.copy())
        yield from TOKENS.at(totals.tokens, *at)
        yield from SAMPLES.at(totals.samples, *at)
        if self.last.flops is not None:
            yield from FLOPS.at(totals.flops, *at)
        if self.last.loss_finite is not None:
            yield from NONFINITE_LOSSES.at(totals.nonfinite_losses, *at)
        if self.last.memory is not None:
            yield from TORCH_RETRIES.at(totals.retries, *at)
            yield from TORCH_OOMS.at(totals.ooms, *at)
        yield from TORCH_GRAPHS.at(totals.graphs, *at)
        yield from GARBAGE.at(totals.collected, *at)
        if totals.serves:
            yield Sample(REQUEST, at, totals.requests.copy())
            yield from REQUEST_ITEMS.at(totals.request_items, *at)

    def _present(self, now: float, *at: str) -> Iterator[Sample]:
        last, process = self.last, self.processes[self.pid]
        yield from MEDIAN.at(last.median, *at)
        yield from BASELINE.at(process.baseline, *at)
        if last.phase in WORKING:
            yield from LAST_STEP.at(process.last_step, *at)
        yield from MFU.at(self.mfu(now), *at)
        yield from LOSS.at(last.loss, *at)
        yield from BEST_LOSS.at(last.loss_best, *at)
        if last.loss_finite is not None:
            yield from LOSS_FINITE.at(float(last.loss_finite), *at)
        if last.memory is not None:
            yield from TORCH_RESERVED.at(float(last.memory.reserved), *at)
            yield from TORCH_ALLOCATED.at(float(last.memory.allocated), *at)
        for name, seconds in process.kernels.items():
            yield from KERNEL.at(seconds, *at, name)


class TrainingSteps:
    """Receives client messages and assigns each to the GPU that its sender holds."""

    name = "training_steps"
    needs = (
        "a training process that uses gpunode.client; its container has the folder of client.socket"
    )
    metrics = (
        SECONDS,
        CHECKPOINTS,
        STEP,
        MEDIAN,
        BASELINE,
        LAST_STEP,
        TOKENS,
        SAMPLES,
        FLOPS,
        MFU,
        LOSS,
        BEST_LOSS,
        LOSS_FINITE,
        NONFINITE_LOSSES,
        TORCH_RESERVED,
        TORCH_ALLOCATED,
        TORCH_RETRIES,
        TORCH_OOMS,
        TORCH_GRAPHS,
        GARBAGE,
        KERNEL,
        REQUEST,
        REQUEST_ITEMS,
        MESSAGES,
    )

    unknowns = (MORE_MESSAGES, IMPOSSIBLE)

    def __init__(self, census: Census, settings: Settings) -> None:
        self.census = census
        self.node = census.node
        self.socket = settings.client.socket
        self.every = settings.client.interval
        self._results = dict.fromkeys(RESULTS, 0.0)
        self._trainings: dict[str, Training] = {}
        self._holders: dict[int, tuple[float, Identity]] = {}
        """The processes on GPUs by their PIDs: when each started, and its GPU."""

        self._looked = -math.inf
        self._listens = False
        self._impossible = 0
        """Messages of the last read that told of more than can be true."""

    def find(self) -> Iterable[tuple[Place, Source]]:
        """Itself, unless listening is disabled. Raises ``Absent`` if it cannot listen."""
        if not self.socket:
            return ()
        if not self._listens:
            try:
                self.node.datagrams(self.socket, ())
            except OSError as error:
                why = f"cannot listen at {self.socket}: {error.strerror}"
                raise Absent(f"{why}; training metrics are not available") from error
            self._listens = True
        return ((WHOLE_NODE, self),)

    def read(self) -> Reading:
        datagrams = self.node.datagrams(self.socket, self._holders)
        now = self.node.clock.monotonic()
        senders = {datagram.pid for datagram in datagrams}
        if not senders <= self._holders.keys() | {0}:
            self._look_at_gpus(now, within=0.0)  # one may be new on its GPU
        elif now - self._looked >= PROCESSES_INTERVAL:
            self._look_at_gpus(now, within=FRESH)
        dropped, self._impossible = 0, 0
        for datagram in datagrams:
            if datagram.dropped:
                dropped += datagram.dropped
            else:
                self._results[self._take(datagram, now)] += 1
        self._results["dropped"] += dropped
        cut = (MORE_MESSAGES.seen("", dropped), IMPOSSIBLE.seen("", self._impossible))
        unread = tuple(one for one in cut if one.times)
        return Reading(tuple(self._samples(now)), ClientReports(tuple(self._stand(now))), unread)

    def _stand(self, now: float) -> Iterator[ReportedPosition]:
        for training in self._trainings.values():
            for pid, process in training.processes.items():
                silent = max(0.0, now - process.heard)
                told = process.phase, process.step, process.collecting, silent
                progress = Progress(*told, process.number, process.pace)
                frames = process.frames if silent <= SILENCE_SECONDS else ()
                yield ReportedPosition(pid, process.start, frames, progress)

    def _look_at_gpus(self, now: float, within: float) -> None:
        """Update which process is on which GPU; one on several counts for the first."""
        self._looked = now
        found = self.census.everywhere(within)
        # Later entries win: MIG instances over their GPU, low indices over high ones.
        found.sort(key=lambda each: (each[0].identity.mig, -each[0].identity.index))
        self._holders = {
            holder.pid: (holder.start, gpu.identity)
            for gpu, look in found
            for holder in look.certain
            if holder.start is not None
        }
        for uuid, training in list(self._trainings.items()):
            for pid, process in training.processes.items():
                if self._holds(pid, process):
                    process.held = now
            training.keep(lambda _, process: now - process.held <= EXPORT_SECONDS)
            if not training.processes:
                del self._trainings[uuid]

    def _holds(self, pid: int, process: ProcessReport | Datagram) -> bool:
        """Whether this very process holds a GPU, not one that had or has its PID."""
        return pid in self._holders and self._holders[pid][0] == process.start

    def _take(self, datagram: Datagram, now: float) -> str:
        """Process one message; returns its result."""
        pid, start = datagram.pid, datagram.start
        if pid == 0 or start is None:
            return "unknown_sender"
        identity = self._identity(datagram)
        if identity is None:
            return "no_gpu"
        try:
            message = parse(datagram.text)
        except ValueError:
            return "malformed"
        training = self._trainings.setdefault(identity.uuid, Training(identity, pid, message))
        if pid not in training.processes or training.processes[pid].start != start:
            training.keep(self._holds)
        possible = training.add(message, pid, start, now, self.node.clock.time())
        self._impossible += not possible
        return "accepted"

    def _identity(self, sender: Datagram) -> Identity | None:
        """The GPU of a process, also if it has just left it: its last message may arrive later."""
        if self._holds(sender.pid, sender):
            return self._holders[sender.pid][1]
        for training in self._trainings.values():
            process = training.processes.get(sender.pid)
            if process is not None and process.start == sender.start:
                return training.identity
        return None

    def _samples(self, now: float) -> Iterator[Sample]:
        for training in self._trainings.values():
            holder = training.processes.get(training.pid)
            lives = holder is not None and self._holds(training.pid, holder)
            yield from training.series(lives, now)
        for result, count in self._results.items():
            yield from MESSAGES.at(count, result)


def _include(total: Distribution, counted: ReportedHistogram) -> None:
    counts: Sequence[int] = [*counted.counts, *[0] * (len(total.counts) - len(counted.counts))]
    total.include(Distribution(total.bounds, list(counts), counted.sum))
