"""What the report asks Prometheus for, and what a period was like by the answers.

Everything that is recorded once an hour is recorded in the first four minutes after it, so that the
windows of such series end four minutes after the hour. An hour without a sample stays unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from gpunode.incidents.incident import began_at
from gpunode.report.prometheus import Labels, Moments, Prometheus

K = TypeVar("K")

HOUR = 3600
DAY = 24 * HOUR
RECORDING_DELAY = 240
"""Seconds after the hour within which the recording rules record it."""

RULE_INTERVAL = 30
"""Seconds between two samples of what is recorded more often than once an hour."""

FAULT_STEP = 60
"""Seconds between two looks at faults."""

FAULT_WINDOW = 900
"""Seconds for which faults are counted together."""

USEFUL = ("compute",)
FORMER_STATES = {"memory": "compute", "launch": "starved"}
"""States that a past may have of exporters with ten, and as what they count."""

IS_USEFUL = '{state=~"compute|memory"}'
IS_LOST = '{state!~"compute|memory|free"}'
NOT_USED = ("free", "idle", "unknown")
"""As on the dashboard Capacity: the states of GPU hours that were useful, and those in which no job
ran. All but ``free`` are held."""

LEDGER = "gpunode_gpu_seconds:rate1h_hourly"
OWNER = "owner_namespace, workload, user"
BY_JOB = f"cluster, {OWNER}"


@dataclass(frozen=True, slots=True)
class Query:
    """An expression over a window, and how long after its end the last sample of it may come."""

    expression: str
    late: int = RECORDING_DELAY

    def over(self, window: str) -> str:
        return self.expression.replace("WINDOW", window)


STATES = Query(f"sum by (cluster, state) (sum_over_time(cluster:{LEDGER}[WINDOW]))")
JOBS = Query(f"sum by ({BY_JOB}, state) (sum_over_time(job:{LEDGER}[WINDOW]))")
JOB_HOURS = Query(f"max by ({BY_JOB}) (count_over_time(job:{LEDGER}[WINDOW]))")
NODES = Query(f"sum by (cluster, instance, state) (sum_over_time(node:{LEDGER}[WINDOW]))")
NODE_HOURS = Query(f"max by (cluster, instance) (count_over_time(node:{LEDGER}[WINDOW]))")
MODELS = Query(f"sum by (name, state) (sum_over_time(node:{LEDGER}[WINDOW]))")
JOB_CAUSES = Query(
    f"sum by ({BY_JOB}, cause) (sum_over_time(job:gpunode_held_up:gpus_hourly[WINDOW]))"
)
JOB_MODELS = Query(
    f"sum by ({BY_JOB}, name) (sum_over_time(job:gpunode_gpu_owner:by_model_hourly[WINDOW]))"
)
JOB_KINDS = Query(
    f"sum by ({BY_JOB}, kind) (sum_over_time(job:gpunode_job_kind:gpus_hourly[WINDOW]))"
)
PHASES = Query(
    f"sum by ({BY_JOB}, phase) (sum_over_time(job:gpunode_training_seconds:rate1h_hourly[WINDOW]))"
)
MFU = Query(f"max by ({BY_JOB}) (avg_over_time(job:gpunode_training_mfu:ratio_hourly[WINDOW]))")
STEPS = Query(f"max by ({BY_JOB}) (avg_over_time(job:gpunode_training_step:median_hourly[WINDOW]))")
SERVED = Query(
    f"sum by ({BY_JOB}) (sum_over_time(job:gpunode_serving_tokens:rate1h_hourly[WINDOW])) * {HOUR}"
)
"""Tokens that services generated."""

REPLICAS = Query(
    f"sum by ({BY_JOB}) (sum_over_time(job:gpunode_serving_replicas:count_hourly[WINDOW]))"
)
BUSY_REPLICAS = Query(
    f"sum by ({BY_JOB}) (sum_over_time(job:gpunode_serving_replicas:busy_hourly[WINDOW]))"
)
VERSION_STEP = 6 * HOUR
"""Seconds between two looks at what jobs run."""

NODE_LABELS = ("driver", "kernel", "os", "rdma", "lustre")
"""What of a node may make a job slower."""

PROCESS_LABELS = ("torch", "nccl", "cuda", "image")
_GPU = "cluster, instance, gpu, uuid"
_MEMBER = "gpu:gpunode_owner:info"


def _versions(info: str, of: tuple[str, ...], at: str) -> Query:
    """The versions that jobs have, at a moment."""
    known = ", ".join(of)
    one = f"topk by ({at}) (1, max by ({at}, {known}) ({info}))"
    joined = f"{_MEMBER} * on ({at}) group_left ({known}) {one}"
    return Query(f"group by ({BY_JOB}, {known}) ({joined})", late=0)


NODE_VERSIONS = _versions("gpunode_node_info", NODE_LABELS, "cluster, instance")
PROCESS_VERSIONS = _versions("gpunode_job_version_info", PROCESS_LABELS, _GPU)
_BLOCKED = "node:gpunode_gpu_blocked:by_job_hourly[WINDOW]"
BLOCKED = Query(f"max by (cluster, instance, {OWNER}) (sum_over_time({_BLOCKED}))")
BLOCKED_HOURS = Query(f"max by (cluster, instance, {OWNER}) (count_over_time({_BLOCKED}))")
GAINS = Query(
    "sum by (cause, bound) (sum_over_time(cluster:gpunode_gpu_verdict_gain:gpus[WINDOW])) "
    f"* {RULE_INTERVAL} / {HOUR}",
    late=0,
)
"""GPU hours that the same work would not take without each cause, and their bounds."""

KINDS = Query("sum by (kind) (sum_over_time(job:gpunode_job_kind:gpus_hourly[WINDOW]))")


def _kilowatt_hours(by: str, series: str) -> Query:
    return Query(
        f"sum{by} (sum_over_time({series}[WINDOW])) * {RULE_INTERVAL} / {HOUR} / 1000", late=0
    )


WAITING = ("starved", "idle")
"""States in which a GPU that is held waits for its host or for its job."""

POWER_BY_STATE = "cluster:gpunode_gpu_power:by_state"
ENERGY = _kilowatt_hours(" by (cluster)", POWER_BY_STATE)
ENERGY_BY_STATE = _kilowatt_hours(" by (state)", POWER_BY_STATE)
ENERGY_BLOCKED = _kilowatt_hours("", f'{POWER_BY_STATE}{{state="blocked"}}')
ENERGY_WAITING = _kilowatt_hours("", f'{POWER_BY_STATE}{{state=~"starved|launch|idle"}}')

FAULTS = Query(
    "sum by (cluster, instance, gpu, uuid, part, reason) "
    f'(count_over_time((gpu:gpunode_fault:seconds{{severity="page"}} >= 0)[WINDOW:{FAULT_STEP}s])) '
    f"* {FAULT_STEP} / {HOUR}",
    late=0,
)
"""Hours of faults that are worth waking somebody."""

INCIDENTS = Query(
    f"max by (cluster, instance, incident, kind, part, {OWNER}) "
    f"(max_over_time(gpunode_incident_gpu_seconds[WINDOW])) / {HOUR}",
    late=0,
)
"""GPU hours that each incident has cost its node by then."""

REPEATED = Query(f"sum by ({BY_JOB}) (sum_over_time(job:gpunode_job_repeated:gpus_hourly[WINDOW]))")
"""GPU hours in which a job did again what it had done."""

_PENDING = (
    '{__name__=~"slurm_account_jobs_pending(_total)?"} '
    'or slurm_account_job_state_total{state=~"(?i)pending"}'
)
"""Jobs that wait in Slurm's queue, as it tells itself from 25.11 on, or an exporter for it:
https://slurm.schedmd.com/metrics.html, https://github.com/vpenso/prometheus-slurm-exporter,
https://github.com/SckyzO/slurm_exporter, https://github.com/SlinkyProject/slurm-exporter,
https://github.com/rivosinc/prometheus-slurm-exporter
"""

QUEUE_STEP = 300
"""Seconds between two looks at the queue."""

_QUEUE = f"max by (cluster, account) ({_PENDING})"
QUEUED = Query(
    f"sum by (account) (sum_over_time(({_QUEUE})[WINDOW:{QUEUE_STEP}s])) * {QUEUE_STEP} / {HOUR}",
    late=0,
)
"""Job hours in the queue. Two exporters of a cluster tell of the same jobs."""

QUEUE_HOURS = Query(
    f"count_over_time((count({_QUEUE}))[WINDOW:{QUEUE_STEP}s]) * {QUEUE_STEP} / {HOUR}", late=0
)
"""Hours in which the queue of any account was told."""

Amounts = dict[str, float]
"""GPU hours by state, cause, kind or phase."""


class JobKey(NamedTuple):
    """Who holds GPUs, as the recording rules tell jobs apart."""

    cluster: str
    owner_namespace: str
    workload: str
    user: str


class NodeKey(NamedTuple):
    """A node of a cluster."""

    cluster: str
    instance: str


@dataclass(frozen=True, slots=True)
class Period:
    """From one full hour to another, in Unix seconds."""

    start: int
    end: int

    @property
    def hours(self) -> int:
        return (self.end - self.start) // HOUR

    @property
    def before(self) -> Period:
        """The period of the same length that ends where this one begins."""
        return Period(2 * self.start - self.end, self.start)

    def windows(self, step: int) -> Iterator[tuple[str, Moments]]:
        """Windows that cover it, by their length and ends; the first may be shorter."""
        first = self.end - (self.end - self.start) // step * step
        if first > self.start:
            yield f"{(first - self.start) // HOUR}h", Moments(first, first, step)
        if first < self.end:
            length = f"{step // HOUR}h" if step >= HOUR else f"{step // 60}m"
            yield length, Moments(first + step, self.end, step)


@dataclass(slots=True)
class JobHours:
    """A job's GPU hours by state, cause, kind of work and model, and its days by their end."""

    states: Amounts = field(default_factory=lambda: defaultdict(float))
    causes: Amounts = field(default_factory=lambda: defaultdict(float))
    kinds: Amounts = field(default_factory=lambda: defaultdict(float))
    models: Amounts = field(default_factory=lambda: defaultdict(float))
    """GPU hours by model of the GPUs, where prices go by model."""

    useful: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    held: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    idle: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    hours: dict[int, float] = field(default_factory=dict)
    """For how many hours of each day it held GPUs."""

    phases: dict[int, Amounts] = field(default_factory=dict)
    mfu: dict[int, float] = field(default_factory=dict)
    steps: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class NodeHours:
    """A node's GPU hours by state, the hours for which it was seen, and its first and last day."""

    states: Amounts = field(default_factory=lambda: defaultdict(float))
    hours: float = 0.0
    first: int = 0
    last: int = 0


@dataclass(slots=True)
class ServiceUse:
    """What a service generated, and the hours of its replicas."""

    tokens: float = 0.0
    replicas: float = 0.0
    busy: float = 0.0
    """Hours in which a replica had a request."""


@dataclass(slots=True)
class IncidentPast:
    """An incident on a node, the job that it was of, and the GPU hours that it cost by part."""

    id: str
    node: NodeKey
    job: JobKey
    kind: str
    began: int
    """In Unix seconds."""

    hours: Amounts = field(default_factory=dict)


@dataclass(slots=True)
class PeriodHours:
    """The GPU hours of a period."""

    period: Period
    clusters: dict[str, dict[int, Amounts]] = field(default_factory=dict)
    """GPU hours by state, of each hour by its end, of each cluster."""

    jobs: dict[JobKey, JobHours] = field(default_factory=lambda: defaultdict(JobHours))
    services: dict[JobKey, ServiceUse] = field(default_factory=lambda: defaultdict(ServiceUse))
    nodes: dict[NodeKey, NodeHours] = field(default_factory=lambda: defaultdict(NodeHours))
    models: dict[str, Amounts] = field(default_factory=dict)
    gains: dict[str, Amounts] = field(default_factory=dict)
    """GPU hours that would come back by cause, and by bound."""

    kinds: Amounts = field(default_factory=lambda: defaultdict(float))
    versions: dict[str, dict[JobKey, dict[int, Amounts]]] = field(default_factory=dict)
    """The time of a step by version, of what, of which job, on which day by its end."""

    energy: dict[tuple[str, int], float] = field(default_factory=lambda: defaultdict(float))
    """Kilowatt hours by cluster and the end of the day."""

    energy_by_state: Amounts = field(default_factory=lambda: defaultdict(float))
    """Kilowatt hours by state of the ledger; empty where none were recorded."""

    blocked: dict[tuple[JobKey, int], dict[NodeKey, list[float]]] = field(default_factory=dict)
    """Hours that a node's GPUs waited for the peers of a job, and hours in all, by day."""

    faults: dict[tuple[str, NodeKey, str], dict[int, float]] = field(default_factory=dict)
    """Hours of each fault of each node and GPU (empty for a node), by the end of the window."""

    incidents: dict[tuple[NodeKey, str], IncidentPast] = field(default_factory=dict)
    """By node and ID."""

    repeated: dict[JobKey, float] = field(default_factory=lambda: defaultdict(float))
    """GPU hours in which each job did again what it had done."""

    queued: Amounts = field(default_factory=lambda: defaultdict(float))
    """Hours that jobs waited in the queue, by account."""

    queue_hours: float = 0.0
    """Hours of which the queue is known."""

    def day(self, at: int) -> int:
        """The end of the day of the period to which a time belongs."""
        return self.period.end - (self.period.end - at) // DAY * DAY


Put = Callable[[Labels, int, float], None]


class HistoryReader:
    """Reads a period; ``done`` is called with the number of moments read."""

    def __init__(
        self,
        server: Prometheus,
        past: PeriodHours,
        done: Callable[[int], None] = lambda _: None,
        *,
        by_model: bool = False,
    ) -> None:
        """``by_model`` is whether to ask which models of GPUs each job held."""
        self.server = server
        self.past = past
        self.done = done
        self.by_model = by_model

    def moments(self, *, whole: bool) -> int:
        """For how many moments it will ask."""
        plan = self._whole() if whole else self._brief()
        return sum(len(at) for _, step, _ in plan for _, at in self.past.period.windows(step))

    def states(self) -> None:
        """Ask for the ledger of each hour."""
        self._put([(STATES, HOUR, self._state)])

    def ask(self, *, whole: bool) -> None:
        """Ask for the rest: all of it, or what the next period is compared with."""
        self._put(self._whole() if whole else self._brief())

    def _brief(self) -> list[tuple[Query, int, Put]]:
        return [
            (ENERGY, DAY, self._energy),
            (PHASES, DAY, self._phase),
        ]

    def _whole(self) -> list[tuple[Query, int, Put]]:
        return [
            *self._brief(),
            (JOBS, DAY, self._job),
            (JOB_HOURS, DAY, self._job_hours),
            (GAINS, DAY, self._gain),
            (JOB_CAUSES, DAY, self._job_cause),
            (JOB_KINDS, DAY, self._job_kind),
            *([(JOB_MODELS, DAY, self._job_model)] if self.by_model else []),
            (KINDS, DAY, self._kind),
            (ENERGY_BY_STATE, DAY, self._energy_by_state),
            (MFU, DAY, self._mfu),
            (STEPS, DAY, self._step),
            (SERVED, DAY, self._served),
            (REPLICAS, DAY, self._replicas),
            (BUSY_REPLICAS, DAY, self._busy),
            (NODE_VERSIONS, VERSION_STEP, self._version),
            (PROCESS_VERSIONS, VERSION_STEP, self._version),
            (NODES, DAY, self._node),
            (NODE_HOURS, DAY, self._node_hours),
            (MODELS, DAY, self._model),
            (BLOCKED, DAY, self._blocked),
            (BLOCKED_HOURS, DAY, self._blocked_hours),
            (QUEUED, DAY, self._queue),
            (QUEUE_HOURS, DAY, self._queue_known),
            (FAULTS, FAULT_WINDOW, self._fault),
            (INCIDENTS, DAY, self._incident),
            (REPEATED, DAY, self._repeated),
        ]

    def _put(self, plan: list[tuple[Query, int, Put]]) -> None:
        for query, step, put in plan:
            for window, at in self.past.period.windows(step):
                late = Moments(at.first + query.late, at.last + query.late, at.step)
                for labels, moment, value in self.server.over(query.over(window), late, self.done):
                    put(labels, moment - query.late, value)

    def _state(self, labels: Labels, at: int, hours: float) -> None:
        cluster = self.past.clusters.setdefault(labels.get("cluster", ""), {})
        _add(cluster, at, state_of(labels), hours)

    def _job(self, labels: Labels, at: int, hours: float) -> None:
        job = self.past.jobs[_job(labels)]
        state = state_of(labels)
        job.states[state] += hours
        if state != "free":
            job.held[at] += hours
        if state in USEFUL:
            job.useful[at] += hours
        if state == "idle":
            job.idle[at] += hours

    def _job_hours(self, labels: Labels, at: int, hours: float) -> None:
        self.past.jobs[_job(labels)].hours[at] = hours

    def _job_cause(self, labels: Labels, _: int, hours: float) -> None:
        self.past.jobs[_job(labels)].causes[labels.get("cause", "")] += hours

    def _job_kind(self, labels: Labels, _: int, hours: float) -> None:
        self.past.jobs[_job(labels)].kinds[labels.get("kind", "")] += hours

    def _job_model(self, labels: Labels, _: int, hours: float) -> None:
        self.past.jobs[_job(labels)].models[labels.get("name", "")] += hours

    def _phase(self, labels: Labels, at: int, hours: float) -> None:
        phases = self.past.jobs[_job(labels)].phases.setdefault(at, {})
        phases[labels.get("phase", "")] = hours

    def _mfu(self, labels: Labels, at: int, ratio: float) -> None:
        self.past.jobs[_job(labels)].mfu[at] = ratio

    def _step(self, labels: Labels, at: int, seconds: float) -> None:
        self.past.jobs[_job(labels)].steps[at] = seconds

    def _served(self, labels: Labels, _: int, tokens: float) -> None:
        self.past.services[_job(labels)].tokens += tokens

    def _replicas(self, labels: Labels, _: int, hours: float) -> None:
        self.past.services[_job(labels)].replicas += hours

    def _busy(self, labels: Labels, _: int, hours: float) -> None:
        self.past.services[_job(labels)].busy += hours

    def _version(self, labels: Labels, at: int, _: float) -> None:
        """What a job ran on a day of which its step is known."""
        job, day = _job(labels), self.past.day(at)
        step = self.past.jobs[job].steps.get(day) if job in self.past.jobs else None
        for what in (*NODE_LABELS, *PROCESS_LABELS):
            if step is not None and labels.get(what):
                jobs = self.past.versions.setdefault(what, {})
                jobs.setdefault(job, {}).setdefault(day, {})[labels[what]] = step

    def _node(self, labels: Labels, _: int, hours: float) -> None:
        self.past.nodes[_node(labels)].states[state_of(labels)] += hours

    def _node_hours(self, labels: Labels, at: int, hours: float) -> None:
        node = self.past.nodes[_node(labels)]
        node.hours += hours
        node.first = min(node.first or at, at)
        node.last = max(node.last, at)

    def _model(self, labels: Labels, _: int, hours: float) -> None:
        _add(self.past.models, labels.get("name", ""), state_of(labels), hours)

    def _gain(self, labels: Labels, _: int, hours: float) -> None:
        _add(self.past.gains, labels.get("cause", ""), labels.get("bound", ""), hours)

    def _kind(self, labels: Labels, _: int, hours: float) -> None:
        self.past.kinds[labels.get("kind", "")] += hours

    def _energy(self, labels: Labels, at: int, kilowatt_hours: float) -> None:
        self.past.energy[labels.get("cluster", ""), at] += kilowatt_hours

    def _energy_by_state(self, labels: Labels, _: int, kilowatt_hours: float) -> None:
        self.past.energy_by_state[state_of(labels)] += kilowatt_hours

    def _blocked(self, labels: Labels, at: int, hours: float) -> None:
        nodes = self.past.blocked.setdefault((_job(labels), at), {})
        nodes.setdefault(_node(labels), [0.0, 0.0])[0] += hours

    def _blocked_hours(self, labels: Labels, at: int, hours: float) -> None:
        nodes = self.past.blocked.setdefault((_job(labels), at), {})
        nodes.setdefault(_node(labels), [0.0, 0.0])[1] += hours

    def _queue(self, labels: Labels, _: int, hours: float) -> None:
        self.past.queued[labels.get("account", "")] += hours

    def _queue_known(self, _: Labels, __: int, hours: float) -> None:
        self.past.queue_hours += hours

    def _fault(self, labels: Labels, at: int, hours: float) -> None:
        if hours > 0:
            fault = labels.get("reason" if labels.get("gpu") else "part", "")
            of = (labels.get("uuid", ""), _node(labels), fault)
            faults = self.past.faults.setdefault(of, {})
            faults[at] = faults.get(at, 0.0) + hours

    def _incident(self, labels: Labels, _: int, hours: float) -> None:
        name, node = labels.get("incident", ""), _node(labels)
        with suppress(ValueError):
            of = IncidentPast(name, node, _job(labels), labels.get("kind", ""), began_at(name))
            of = self.past.incidents.setdefault((node, name), of)
            part = labels.get("part", "")
            of.hours[part] = max(hours, of.hours.get(part, 0.0))  # it grows from day to day

    def _repeated(self, labels: Labels, _: int, hours: float) -> None:
        if hours > 0:
            self.past.repeated[_job(labels)] += hours


def state_of(labels: Labels) -> str:
    """The state of the ledger that a series is of, whatever version exported it."""
    state = labels.get("state", "")
    return FORMER_STATES.get(state, state)


def _add(amounts: dict[K, Amounts], name: K, part: str, hours: float) -> None:
    """Add hours to what is known: of the day of an update, there is a state under two names."""
    own = amounts.setdefault(name, {})
    own[part] = own.get(part, 0.0) + hours


def _job(labels: Labels) -> JobKey:
    return JobKey(*(labels.get(name, "") for name in JobKey._fields))


def _node(labels: Labels) -> NodeKey:
    return NodeKey(labels.get("cluster", ""), labels.get("instance", ""))
