"""What Prometheus has recorded of one run of a job: where its time went, to what, and where."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gpunode.report.history import HOUR, NODE_LABELS, RULE_INTERVAL, Amounts, state_of
from gpunode.report.prometheus import Labels, Prometheus, quote
from gpunode.report.runs import ABSENCE_SECONDS, SLURM, JobName, Run, exact, runs, windows
from gpunode.report.words import Unit, as_text
from gpunode.verdict.causes import CAUSES as ALL_CAUSES
from gpunode.verdict.causes.communication import STRAGGLER

GPU = "cluster, instance, gpu, uuid"
MAX_WINDOWS = 60
"""In how many windows a run is looked at, for what began when."""

LOOKBACK = 14 * 24 * HOUR
"""Seconds before a run in which earlier runs are looked for."""

MAX_EARLIER_RUNS = 5
SHAPE = 7 * 24 * HOUR
"""Seconds up to the end of a run in which other jobs of its shape are looked for."""

LATE_MARGIN = 0.1
"""From how much less than the others a GPU waits, it is the one for which they wait."""

OWN_VERDICT_SHARE = 0.25
"""Share of the time in which it is waited for from which on a verdict of its own explains that."""

VERSION_LOOKBACK = 900
"""Seconds: how far back versions are looked for."""

RECENT = 1800
"""Seconds up to the end of a run that tell what is to come, if it goes on and is longer."""

_HOURS = f"* {RULE_INTERVAL} / {HOUR}"
GAIN_STEP = 60


@dataclass(frozen=True, slots=True)
class RunQuery:
    """An expression about a JOB over a WINDOW, or about the NODES on which it runs."""

    expression: str

    def of(self, job: JobName, window: int, nodes: str = "") -> str:
        filled = {"JOB": job.selector, "NODES": nodes, "WINDOW": f"{window}s"}
        return re.sub(r"\b(JOB|NODES|WINDOW)\b", lambda found: filled[found[0]], self.expression)


MEMBER = "last_over_time(gpu:gpunode_owner:info{JOB}[WINDOW])"


def _gpu_query(expression: str) -> str:
    """A figure of the GPUs that the job had to itself."""
    return f"{expression} and on ({GPU}) {MEMBER}"


SECONDS = RunQuery(
    f"sum by (state) (sum_over_time(job:gpunode_gpu_states:gpus{{JOB}}[WINDOW])) {_HOURS}"
)
CAUSES = RunQuery(f"sum by (cause) (sum_over_time(job:gpunode_rank:count{{JOB}}[WINDOW])) {_HOURS}")
PHASES = RunQuery(
    f"sum by (phase) (sum_over_time(job:gpunode_training_seconds:rate5m{{JOB}}[WINDOW])) {_HOURS}"
)
INCIDENTS = RunQuery(
    "max by (instance, incident, kind, part) "
    f"(max_over_time(gpunode_incident_gpu_seconds{{JOB}}[WINDOW])) / {HOUR}"
)
"""GPU hours that each incident has cost it."""

REPEATED = RunQuery(
    "max by (bound) (increase(gpunode_job_repeated_seconds_total{NODES}[WINDOW]) "
    f"and on ({GPU}) {MEMBER})"
)
CHECKPOINTS = RunQuery(
    f"max({_gpu_query('increase(gpunode_training_checkpoints_total{NODES}[WINDOW])')})"
)
CHECKPOINT_SECONDS = RunQuery(
    'max(increase(gpunode_training_seconds_total{phase="checkpoint",NODES}[WINDOW]) '
    f"and on ({GPU}) {MEMBER})"
)
FLEET = 30 * 24 * HOUR
"""Seconds up to the end of a run in which it is counted how often jobs of its cluster fail."""

NEW_STARTS = "sum(sum_over_time(job:gpunode_attempts_ended:increase1h{{cluster={}}}[{}s:1h]))"
FLEET_HOURS = (
    'sum(sum_over_time(job:gpunode_gpu_seconds:rate1h_hourly{{state!="free",cluster={}}}[{}s]))'
)
KIND_STEP = 300
KINDS = RunQuery(
    f"sum by (kind) (count_over_time((max by ({GPU}, kind) (gpunode_gpu_workload{{NODES}} == 1) "
    f"and on ({GPU}) gpu:gpunode_owner:info{{JOB}})[WINDOW:{KIND_STEP}s])) * {KIND_STEP} / {HOUR}"
)
GAINS = RunQuery(
    "sum by (cause, bound) (sum_over_time(((1 - 1 / max by (" + GPU + ", cause, bound) "
    "(gpunode_gpu_verdict_gain_ratio{NODES} > 0)) and on (" + GPU + ") gpu:gpunode_owner:info{JOB})"
    f"[WINDOW:{GAIN_STEP}s])) * {GAIN_STEP} / {HOUR}"
)
"""GPU hours that the same work would not take without each cause, and their bounds."""

STEPS = RunQuery(
    f"max({_gpu_query('avg_over_time(gpunode_training_step_median_seconds{NODES}[WINDOW])')})"
)
MFU = RunQuery(
    f"quantile(0.5, {_gpu_query('avg_over_time(gpunode_training_mfu_ratio{NODES}[WINDOW])')})"
)
USERS = RunQuery("group by (user) (last_over_time(job:gpunode_gpu_states:gpus{JOB}[WINDOW]))")
GPUS = RunQuery("count(count by (" + GPU + ") (gpu:gpunode_owner:info{JOB}))")
GPUS_AT_ONCE = RunQuery(f"max_over_time(({GPUS.expression})[WINDOW:5m])")
"""At a time: a run that moved to another node has held others before."""

HELD_GPUS = RunQuery("group by (" + GPU + ") (last_over_time(gpu:gpunode_owner:info{JOB}[WINDOW]))")
PLACES = RunQuery(
    "sum by (instance, gpu, rank, cause) "
    f'(count_over_time(gpu:gpunode_rank:held_up{{cause!="none",JOB}}[WINDOW])) {_HOURS}'
)
AWAITED = RunQuery(
    "sum by (instance, gpu, rank, reason) "
    f"(count_over_time(gpu:gpunode_rank:awaited{{JOB}}[WINDOW])) {_HOURS}"
)
BLOCKED = RunQuery(
    "max by (instance, gpu) ("
    + _gpu_query('avg_over_time(gpu:gpunode_gpu_seconds:rate5m{state="blocked",NODES}[WINDOW])')
    + ")"
)
STALLED = RunQuery("max(max_over_time(job:gpunode_stalled:seconds{JOB}[WINDOW]))")
STATES_NOW = RunQuery("sum by (state) (job:gpunode_gpu_states:gpus{JOB})")
"""GPUs by state, in the mean of five minutes."""

CAUSES_NOW = RunQuery("sum by (cause) (job:gpunode_rank:count{JOB})")
STALLED_NOW = RunQuery("max(job:gpunode_stalled:seconds{JOB})")
AWAITED_NOW = RunQuery("max by (instance, gpu, rank, reason) (gpu:gpunode_rank:awaited{JOB})")
PROCESSES_NOW = RunQuery(
    "group by (rank, pid, owner_namespace, owner_pod, owner_container) "
    "(gpunode_gpu_process_info{NODES} and on (" + GPU + ") gpu:gpunode_owner:info{JOB})"
)
STATES_OF_GPU = RunQuery(
    "max by (state) (avg_over_time(gpu:gpunode_gpu_seconds:rate5m{NODES}[WINDOW]) "
    "and on (" + GPU + ") last_over_time(gpu:gpunode_owner:info{JOB}[WINDOW]))"
)
ALERTS = RunQuery(
    'max by (alertname, severity) (count_over_time(ALERTS{alertstate="firing",JOB}[WINDOW]))'
)
ALERTS_OF_PARTS = RunQuery(
    "max by (alertname, severity, instance, gpu) "
    '(count_over_time(ALERTS{alertstate="firing",workload="",NODES}[WINDOW]))'
)
NODE_VERSIONS = RunQuery(
    f"group by ({', '.join(NODE_LABELS)}) (last_over_time(gpunode_node_info{{NODES}}[WINDOW]))"
)
PROCESS_VERSIONS = RunQuery(
    "group by (torch, nccl, cuda, image, digest) "
    "(last_over_time(gpunode_job_version_info{NODES}[WINDOW]) "
    "and on (" + GPU + ") last_over_time(gpu:gpunode_owner:info{JOB}[WINDOW]))"
)


@dataclass(frozen=True, slots=True)
class CauseMetric:
    """A metric of the evidence for a cause, for the report."""

    says: str
    unit: Unit
    query: RunQuery


def _job_query(expression: str) -> RunQuery:
    """The highest of the GPUs that the job has to itself."""
    return RunQuery(f"max({_gpu_query(expression)})")


def _waited(resource: str) -> tuple[CauseMetric, CauseMetric]:
    metric = "pressure_waiting_seconds_total"
    selected = f'{{resource="{resource}",NODES}}[WINDOW]'
    what = {"io": "I/O", "cpu": "a CPU"}[resource]
    return (
        CauseMetric(
            f"share of the time in which the job waited for {what}:",
            "share",
            _job_query(_time_share(f"gpunode_job_{metric}{selected}")),
        ),
        CauseMetric(
            f"share of the time in which its node waited for {what}, at most:",
            "share",
            RunQuery(f"max({_time_share(f'gpunode_{metric}{selected}')})"),
        ),
    )


def _time_share(seconds: str) -> str:
    """A share of the time, no more than all of it: two scrapes are seldom as far apart as reads."""
    return f"clamp_max(rate({seconds}), 1)"


def _mean_query(seconds: str, requests: str) -> RunQuery:
    took, made = (
        f"sum by (cluster, instance) (rate({metric}{{NODES}}[WINDOW]))"
        for metric in (seconds, requests)
    )
    return RunQuery(f"max({took} / ({made} > 0))")


def _mean(metric: str) -> str:
    return f"avg_over_time({metric}{{NODES}}[WINDOW])"


MEASURED: dict[str, tuple[CauseMetric, ...]] = {
    "data_loading_cpu": (
        CauseMetric(
            "busiest process of the loader, as a share of one CPU:",
            "share",
            _job_query(f"clamp_max({_mean('gpunode_job_loader_cpus_ratio')}, 1)"),
        ),
        *_waited("cpu"),
    ),
    "data_loading_storage": (
        *_waited("io"),
        CauseMetric(
            "share of the time in which the busiest disk of its nodes worked:",
            "share",
            RunQuery(f"max({_time_share('gpunode_disk_busy_seconds_total{NODES}[WINDOW]')})"),
        ),
        CauseMetric(
            "time of a request to NFS:",
            "seconds",
            _mean_query("gpunode_nfs_rtt_seconds_total", "gpunode_nfs_requests_total"),
        ),
        CauseMetric(
            "time of a request to Lustre:",
            "seconds",
            _mean_query("gpunode_lustre_rpc_seconds_total", "gpunode_lustre_rpcs_total"),
        ),
    ),
    "shm": (
        CauseMetric(
            "share of its /dev/shm in use:",
            "share",
            _job_query(
                f"{_mean('gpunode_job_shm_used_bytes')} / "
                f"({_mean('gpunode_job_shm_size_bytes')} > 0)"
            ),
        ),
    ),
    "host_compute": (
        CauseMetric(
            "CPUs that its process used:", "count", _job_query(_mean("gpunode_job_host_cpus_ratio"))
        ),
    ),
    "stopped": (
        CauseMetric(
            "processes that a signal or debugger stopped:",
            "count",
            _job_query("max_over_time(gpunode_job_stopped_processes{NODES}[WINDOW])"),
        ),
        CauseMetric(
            "processes that waited in the kernel:",
            "count",
            _job_query("max_over_time(gpunode_job_blocked_processes{NODES}[WINDOW])"),
        ),
    ),
    "thermal": (
        CauseMetric(
            "mean SM clock as a share of its maximum, of the fastest GPU:",
            "share",
            _job_query(
                f"{_mean('gpunode_gpu_sm_clock_hertz')} / "
                f"({_mean('gpunode_gpu_sm_clock_max_hertz')} > 0)"
            ),
        ),
    ),
    "power": (
        CauseMetric(
            "power limit as a share of the board's default, of the least limited GPU:",
            "share",
            _job_query(
                f"{_mean('gpunode_gpu_power_limit_watts')} / "
                f"({_mean('gpunode_gpu_power_default_limit_watts')} > 0)"
            ),
        ),
    ),
}
"""By cause."""


class JobGpu(NamedTuple):
    """A GPU, and the rank on it as far as its process tells one."""

    instance: str
    gpu: str
    rank: str = ""

    def __str__(self) -> str:
        rank = f" (rank {self.rank})" if self.rank else ""
        return f"GPU {self.gpu} of {self.instance}{rank}"


@dataclass(frozen=True, slots=True)
class LateGpu:
    """The GPU for which the others waited most while they waited for a slower one."""

    place: JobGpu
    reason: str
    """What its process did; empty if no node told."""

    waits: float | None
    others_wait: float | None
    """For which share of the time it waited itself, and the others in the middle."""

    cause: str
    """What its own verdict names most, if that is not to wait."""

    states: Amounts
    """Shares of its time."""


class GpuProcess(NamedTuple):
    """The process on a GPU by its PID on the node, and its container if that is a pod's."""

    pid: str
    namespace: str = ""
    pod: str = ""
    container: str = ""


class FiredAlert(NamedTuple):
    """A firing alert about a job or a part that it uses."""

    alert: str
    severity: str
    instance: str = ""
    gpu: str = ""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """A run to compare with."""

    name: str
    start: int
    seconds: int
    gpus: int
    states: Amounts
    causes: Amounts
    step: float | None
    versions: frozenset[tuple[str, str]]
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class RecentHours:
    """GPU hours of the last ``RECENT`` seconds, as those of the whole run."""

    states: Amounts
    causes: Amounts
    gains: dict[str, Amounts]


@dataclass(slots=True)
class RunRecord:
    """The record of a run; ``length`` is that of its windows, in seconds."""

    run: Run
    length: int
    users: tuple[str, ...] = ()
    states: dict[int, Amounts] = field(default_factory=lambda: defaultdict(dict))
    """GPU hours by state, of each window by its end."""

    causes: dict[int, Amounts] = field(default_factory=lambda: defaultdict(dict))
    steps: dict[int, float] = field(default_factory=dict)
    mfu: dict[int, float] = field(default_factory=dict)
    gpus: dict[int, int] = field(default_factory=dict)
    gains: dict[str, Amounts] = field(default_factory=dict)
    kinds: Amounts = field(default_factory=dict)
    phases: Amounts = field(default_factory=dict)
    nodes: frozenset[str] = frozenset()
    places: dict[str, dict[JobGpu, float]] = field(default_factory=dict)
    """GPU hours for which each cause was named, by cause."""

    awaited: dict[tuple[JobGpu, str], float] = field(default_factory=lambda: defaultdict(float))
    """GPU hours for which the others waited for a GPU, by the reason."""

    awaited_in: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """GPU hours for which GPUs waited in each window, by its end."""

    blocked: dict[JobGpu, float] = field(default_factory=dict)
    """The share of its time for which each GPU waited for others."""

    lately: RecentHours | None = None
    """None of a run that has ended, or is no longer than that."""

    stalled: float | None = None
    late: LateGpu | None = None
    states_now: Amounts = field(default_factory=dict)
    """GPUs by state, in the last five minutes."""

    causes_now: Amounts = field(default_factory=dict)
    """GPUs by cause, in the latest verdicts."""

    stalled_now: float | None = None
    """For how many seconds it has stood still."""

    awaited_now: list[tuple[JobGpu, str]] = field(default_factory=list)
    """The GPUs for which others wait, and the reasons."""

    process_awaited: GpuProcess | None = None
    """The process on the first of them; None if it is not known, or there are several."""

    alerts: dict[FiredAlert, list[int]] = field(default_factory=dict)
    """The ends of the windows in which each alert fired."""

    versions: frozenset[tuple[str, str]] = frozenset()
    incidents: dict[tuple[str, str], Amounts] = field(default_factory=dict)
    """GPU hours by part that each incident cost, by node and ID."""

    repeated: Amounts = field(default_factory=dict)
    """Seconds in which it did again what it had done, by bound."""

    checkpoints: float = 0.0
    checkpoint_seconds: float = 0.0
    new_starts: float = 0.0
    """How often the jobs of its cluster began again within ``FLEET``."""

    fleet_hours: float = 0.0
    """GPU hours of these."""

    facts: dict[str, list[str]] = field(default_factory=dict)
    """What was measured while each cause was named."""

    earlier: list[EarlierRun] = field(default_factory=list)
    """The last runs, the latest first."""

    others: dict[JobName, Amounts] = field(default_factory=dict)
    """GPU hours by state of other jobs that do the same kind of work on as many GPUs."""

    def begin(self, end: int) -> int:
        """When the window began that ends then."""
        return max(end - self.length, self.run.first)


def ask(server: Prometheus, run: Run, earlier: list[Run]) -> RunRecord:
    """Everything that is recorded of a run, and of what it can be compared with."""
    length = -(-(run.end - run.start) // (MAX_WINDOWS * RULE_INTERVAL)) * RULE_INTERVAL
    past = RunRecord(run, length)
    asking = _RunReader(server, past)
    asking.size()
    asking.time()
    asking.where()
    asking.now()
    asking.late()
    asking.alerts()
    asking.broke()
    asking.facts()
    past.versions = _versions(server, run.job, run.end, asking.nodes)
    past.earlier = _earlier_runs(server, past, earlier)
    past.others = _similar_jobs(server, past)
    return past


class _RunReader:
    """Reads a run; ``nodes`` selects its nodes once ``size`` has found them."""

    def __init__(self, server: Prometheus, past: RunRecord) -> None:
        self.server = server
        self.past = past
        self.run = past.run
        self.nodes = ""

    def _over_run(self, query: RunQuery) -> Iterator[tuple[Labels, float]]:
        """An expression over the whole run."""
        window = self.run.end - self.run.start
        return self.server.at(query.of(self.run.job, window, self.nodes), self.run.end)

    def _windows(self, query: RunQuery) -> Iterator[tuple[Labels, int, float]]:
        """An expression over each window."""
        for window, at in windows(self.run.start, self.run.end, self.past.length):
            asked = query.of(self.run.job, window, self.nodes)
            yield from self.server.over(asked, at, lambda _: None)

    def size(self) -> None:
        past = self.past
        held = list(self._over_run(HELD_GPUS))
        past.nodes = frozenset(labels.get("instance", "") for labels, _ in held)
        self.nodes = selecting(self.run.job.cluster, past.nodes)
        past.users = tuple(
            sorted(filter(None, (labels.get("user", "") for labels, _ in self._over_run(USERS))))
        )
        past.gpus = {at: round(gpus) for _, at, gpus in self._windows(GPUS)}

    def time(self) -> None:
        past = self.past
        for labels, at, hours in self._windows(SECONDS):
            state = state_of(labels)
            past.states[at][state] = past.states[at].get(state, 0.0) + hours
        for labels, at, hours in self._windows(CAUSES):
            past.causes[at][labels.get("cause", "")] = hours
        past.gains = _gains((labels, hours) for labels, _, hours in self._windows(GAINS))
        past.kinds = _by_label(self._over_run(KINDS), "kind")
        past.phases = _by_label(self._over_run(PHASES), "phase")
        past.steps = {at: seconds for _, at, seconds in self._windows(STEPS)}
        past.mfu = {at: ratio for _, at, ratio in self._windows(MFU)}

    def where(self) -> None:
        past = self.past
        for labels, hours in self._over_run(PLACES):
            past.places.setdefault(labels.get("cause", ""), {})[_job_gpu(labels)] = hours
        for labels, at, hours in self._windows(AWAITED):
            past.awaited[_job_gpu(labels), labels.get("reason", "")] += hours
            past.awaited_in[at] += hours
        past.blocked = {_job_gpu(labels): share for labels, share in self._over_run(BLOCKED)}
        past.stalled = _first_value(self._over_run(STALLED))

    def now(self) -> None:
        """What the job is like at its end, which the mean of a long run hides."""
        past = self.past
        past.states_now = _states(self._at_end(STATES_NOW))
        past.causes_now = _by_label(self._at_end(CAUSES_NOW), "cause")
        past.stalled_now = _first_value(self._at_end(STALLED_NOW))
        past.awaited_now = sorted(
            (_job_gpu(labels), labels.get("reason", "")) for labels, _ in self._at_end(AWAITED_NOW)
        )
        if past.awaited_now:
            past.process_awaited = self._process(past.awaited_now[0][0])

        if self.run.goes_on and self.run.seconds > RECENT:
            past.lately = RecentHours(
                _states(self._at_end(SECONDS, RECENT)),
                _by_label(self._at_end(CAUSES, RECENT), "cause"),
                _gains(self._at_end(GAINS, RECENT)),
            )

    def _process(self, place: JobGpu) -> GpuProcess | None:
        """The process of a rank, or else the only one on its GPU without any."""
        asked = PROCESSES_NOW.of(self.run.job, 0, self._gpu(place))
        found = [labels for labels, _ in self.server.at(asked, self.run.end)]
        of_rank = [labels for labels in found if labels.get("rank") == place.rank]
        only = of_rank or [labels for labels in found if not labels.get("rank")]
        if len(only) != 1 or not only[0].get("pid", "").isdecimal():
            return None
        own = ("owner_namespace", "owner_pod", "owner_container")
        return GpuProcess(only[0]["pid"], *(only[0].get(name, "") for name in own))

    def _gpu(self, place: JobGpu) -> str:
        """What selects the series of a GPU."""
        node = f'cluster="{quote(self.run.job.cluster)}",instance="{quote(place.instance)}"'
        return f'{node},gpu="{quote(place.gpu)}"'

    def _at_end(self, query: RunQuery, window: int = 0) -> Iterator[tuple[Labels, float]]:
        return self.server.at(query.of(self.run.job, window, self.nodes), self.run.end)

    def late(self) -> None:
        """The GPU that was waited for, and what its own time went to meanwhile."""
        past = self.past
        named = [at for at, causes in past.causes.items() if causes.get(STRAGGLER.name)]
        awaited = max(past.awaited, key=lambda one: past.awaited[one], default=None)
        place, reason = awaited or (_least_blocked(past.blocked), "")
        if not named or place is None:
            return
        start, end = past.begin(min(named)), max(named)
        causes = {
            cause: (hours, on)
            for cause, places in past.places.items()
            for on, hours in places.items()
            if on[:2] == place[:2] and cause in ALL_CAUSES and not ALL_CAUSES[cause].waits_for_peers
            if hours * HOUR >= OWN_VERDICT_SHARE * (end - start)
        }
        cause = max(causes, key=lambda name: causes[name][0], default="")
        known = {on[:2]: share for on, share in past.blocked.items()}
        others = [share for on, share in known.items() if on != place[:2]]
        asked = STATES_OF_GPU.of(self.run.job, end - start, self._gpu(place))
        past.late = LateGpu(
            place if place.rank or not cause else causes[cause][1],
            reason,
            known.get(place[:2]),
            statistics.median(others) if others else None,
            cause,
            _states(self.server.at(asked, end)),
        )

    def alerts(self) -> None:
        for query in (ALERTS, ALERTS_OF_PARTS):
            for labels, at, _ in self._windows(query):
                fired = FiredAlert(
                    labels.get("alertname", ""),
                    labels.get("severity", ""),
                    labels.get("instance", ""),
                    labels.get("gpu", ""),
                )
                self.past.alerts.setdefault(fired, []).append(at)

    def broke(self) -> None:
        """What incidents cost it, and how often it saves beside how often jobs fail."""
        past, server = self.past, self.server
        for labels, hours in self._over_run(INCIDENTS):
            of = labels.get("instance", ""), labels.get("incident", "")
            past.incidents.setdefault(of, {})[labels.get("part", "")] = hours
        past.repeated = _by_label(self._over_run(REPEATED), "bound")
        past.checkpoints = _first_value(self._over_run(CHECKPOINTS)) or 0.0
        past.checkpoint_seconds = _first_value(self._over_run(CHECKPOINT_SECONDS)) or 0.0
        if past.checkpoints:
            cluster = f'"{quote(self.run.job.cluster)}"'
            asked = (NEW_STARTS.format(cluster, FLEET), FLEET_HOURS.format(cluster, FLEET))
            starts, hours = (_first_value(server.at(one, self.run.end)) or 0.0 for one in asked)
            past.new_starts, past.fleet_hours = starts, hours

    def facts(self) -> None:
        """What was measured from when a cause was first named until it was named last."""
        for cause in {name for causes in self.past.causes.values() for name in causes}:
            named = [at for at, causes in self.past.causes.items() if causes.get(cause)]
            start, end = self.past.begin(min(named)), max(named)
            for measured in MEASURED.get(cause, ()):
                asked = measured.query.of(self.run.job, end - start, self.nodes)
                value = _first_value(self.server.at(asked, end))
                if value is not None:
                    said = f"{measured.says} {as_text(value, measured.unit)}"
                    self.past.facts.setdefault(cause, []).append(said)


def _least_blocked(shares: dict[JobGpu, float]) -> JobGpu | None:
    """The GPU that waited clearly less than the others; None if none did."""
    place = min(shares, key=lambda one: shares[one], default=None)
    others = [share for one, share in shares.items() if one != place]
    if place is None or not others:
        return None
    return place if statistics.median(others) - shares[place] >= LATE_MARGIN else None


def selecting(cluster: str, nodes: frozenset[str]) -> str:
    """What selects the series of nodes."""
    either = "|".join(re.escape(node) for node in sorted(nodes))
    return f'cluster="{quote(cluster)}",instance=~"{quote(either)}"'


def _first_value(found: Iterator[tuple[Labels, float]]) -> float | None:
    return next((value for _, value in found), None)


def _states(found: Iterable[tuple[Labels, float]]) -> Amounts:
    """Hours by state of the ledger."""
    hours: dict[str, float] = defaultdict(float)
    for labels, spent in found:
        hours[state_of(labels)] += spent
    return hours


def _by_label(found: Iterator[tuple[Labels, float]], label: str) -> Amounts:
    return {labels.get(label, ""): hours for labels, hours in found}


def _gains(found: Iterable[tuple[Labels, float]]) -> dict[str, Amounts]:
    """GPU hours by cause and bound."""
    gains: dict[str, Amounts] = {}
    for labels, hours in found:
        gain, bound = gains.setdefault(labels.get("cause", ""), {}), labels.get("bound", "")
        gain[bound] = gain.get(bound, 0.0) + hours
    return gains


def _job_gpu(labels: Labels) -> JobGpu:
    return JobGpu(labels.get("instance", ""), labels.get("gpu", ""), labels.get("rank", ""))


def _versions(server: Prometheus, job: JobName, end: int, nodes: str) -> frozenset[tuple[str, str]]:
    """What ran at the end of a run: of each thing that is known, its version."""
    found: set[tuple[str, str]] = set()
    for labels, _ in server.at(NODE_VERSIONS.of(job, VERSION_LOOKBACK, nodes), end):
        found |= {(what, version) for what, version in labels.items() if version}
    for labels, _ in server.at(PROCESS_VERSIONS.of(job, VERSION_LOOKBACK, nodes), end):
        found |= {(what, version) for what, version in labels.items() if version}
    return frozenset(found)


def _earlier_runs(server: Prometheus, past: RunRecord, own: list[Run]) -> list[EarlierRun]:
    """The last runs of the same name; of a Slurm job, the user's jobs with as many GPUs."""
    if past.run.job.workload.startswith(SLURM) and past.users:
        own = _user_runs(server, past)
    return [_earlier_run(server, exact(server, run)) for run in own[::-1][:MAX_EARLIER_RUNS]]


def _user_runs(server: Prometheus, past: RunRecord) -> list[Run]:
    """The Slurm jobs that a user had before with as many GPUs, the latest last."""
    job = past.run.job
    labels = {"cluster": job.cluster, "owner_namespace": job.owner_namespace, "user": past.users[0]}
    which = ",".join(f'{label}="{quote(text)}"' for label, text in labels.items())
    series = f'job:gpunode_gpus:count{{{which},workload=~"{SLURM}.+"}}'
    gpus = max(past.gpus.values(), default=0)
    asked = f"max by (workload) (max_over_time({series}[{LOOKBACK}s])) == {gpus}"
    names = {found.get("workload", "") for found, _ in server.at(asked, past.run.start)}
    names.discard(job.workload)
    edges = [
        {
            found.get("workload", ""): int(at)
            for found, at in server.at(
                f"{edge} by (workload) ({edge}_over_time(timestamp({series})[{LOOKBACK}s:5m]))",
                past.run.start,
            )
            if past.run.start - LOOKBACK <= at <= past.run.start
        }
        for edge in ("min", "max")
    ]
    first, last = edges
    latest = sorted(names & first.keys() & last.keys(), key=lambda name: last[name])
    return [
        run
        for name in latest[-MAX_EARLIER_RUNS:]
        for run in runs(
            server,
            JobName(job.cluster, job.owner_namespace, name),
            first[name] - ABSENCE_SECONDS,
            last[name] + ABSENCE_SECONDS,
        )
    ]


def _earlier_run(server: Prometheus, run: Run) -> EarlierRun:
    """What an earlier run is compared by."""

    def whole(query: RunQuery, nodes: str = "") -> Iterator[tuple[Labels, float]]:
        return server.at(query.of(run.job, run.end - run.start, nodes), run.end)

    held = list(whole(HELD_GPUS))
    nodes = frozenset(labels.get("instance", "") for labels, _ in held)
    return EarlierRun(
        str(run.job),
        run.first,
        run.seconds - run.missing,
        round(_first_value(whole(GPUS_AT_ONCE)) or len(held)),
        _states(whole(SECONDS)),
        _by_label(whole(CAUSES), "cause"),
        _first_value(whole(STEPS)),
        _versions(server, run.job, run.end, selecting(run.job.cluster, nodes)),
        nodes,
    )


def kind(past: RunRecord) -> str:
    """The kind of work that a job did for most of its time; empty if it is not known."""
    return max(past.kinds, key=lambda name: past.kinds[name], default="")


SAME_SHAPE = (
    "max by (cluster, owner_namespace, workload) (max_over_time("
    'job:gpunode_job_kind:gpus_hourly{{cluster="{cluster}",kind="{kind}"}}[{window}s])) == {gpus}'
)
HOURS_OF_SHAPE = (
    "sum by (cluster, owner_namespace, workload, state) (sum_over_time("
    'job:gpunode_gpu_seconds:rate1h_hourly{{cluster="{cluster}"}}[{window}s])) '
    "and on (cluster, owner_namespace, workload) ({same})"
)


def shape_query(past: RunRecord) -> str:
    """The PromQL of the hours of jobs of the same kind with as many GPUs, by state."""
    given = {
        "cluster": quote(past.run.job.cluster),
        "kind": quote(kind(past)),
        "window": SHAPE,
        "gpus": max(past.gpus.values(), default=0),
    }
    return HOURS_OF_SHAPE.format(**given, same=SAME_SHAPE.format(**given))


def _similar_jobs(server: Prometheus, past: RunRecord) -> dict[JobName, Amounts]:
    """Other jobs of the last week that do the same kind of work on as many GPUs."""
    found: dict[JobName, Amounts] = {}
    if kind(past) in ("", "unknown"):
        return found
    own = {str(past.run.job), *(run.name for run in past.earlier)}
    for labels, hours in server.at(shape_query(past), past.run.end):
        job = JobName(*(labels.get(name, "") for name in JobName._fields))
        if str(job) not in own:
            states = found.setdefault(job, {})
            states[state_of(labels)] = states.get(state_of(labels), 0.0) + hours
    return found


def moments(past: RunRecord) -> list[int]:
    """The ends of the windows of a run."""
    return [
        end
        for _, at in windows(past.run.start, past.run.end, past.length)
        for end in range(at.first, at.last + 1, at.step)
    ]
