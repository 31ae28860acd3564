"""A fleet whose truth is known: which job held which GPUs when, and what each lost to what.

What the rules would have recorded of it is written as OpenMetrics, from which promtool makes blocks
for a real Prometheus. The truth is added up from the jobs, not from the series.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpunode.gpu.ledger import STATES
from gpunode.report.history import FAULT_STEP, HOUR, RULE_INTERVAL
from tests.daemon import free_port
from tests.prometheus.incidents import prometheus
from tests.prometheus.programs import need

HOURLY = "gpunode_gpu_seconds:rate1h_hourly"
RECORDED_AFTER = 157
"""Seconds after the hour at which its rules are evaluated."""

SCRAPE_INTERVAL = 60
GPUS = 8
MODEL = "NVIDIA H200"
MONTH = 30 * 24
USEFUL = ("compute",)
FORMER = {"memory": "compute", "launch": "starved"}
"""States of ten that older exporters have, and as what they count."""

EXPORTED = (*STATES, *FORMER)
GAINS = {"lower": 0.2, "estimate": 0.25, "upper": 0.3}
"""Share of what each cause was named for that would come back without it."""

Shares = Mapping[str, float]
Recorded = Iterator[tuple[dict[str, str], dict[int, float]]]
"""Labels of series, and their values by the hour."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """A job on whole nodes from one hour to another, with the same ledger all the time."""

    workload: str
    nodes: tuple[str, ...]
    begin: int
    end: int
    shares: Shares
    namespace: str = ""
    user: str = ""
    kind: str = "training"
    causes: Shares = field(default_factory=dict)
    """The share of its GPUs that each cause holds up."""

    phases: Shares = field(default_factory=dict)
    mfu: float = 0.0
    steps: tuple[float, ...] = ()
    """Step times in equal parts of its life."""

    tokens: float = 0.0
    """Tokens a second that it generates; each of its nodes is a replica."""

    asked: tuple[int, int] = (0, 0)
    """The hours of a day from and to which anybody asks, with 40 % of the cache at most."""
    versions: Mapping[str, tuple[str, str, int]] = field(default_factory=dict)
    """Of what it has which version, which other later, and from which hour on."""

    blocked: Mapping[str, float] = field(default_factory=dict)
    """Share of the time that the GPUs of a node wait, where it is not as the job's."""

    working_hours: bool = False
    """Whether it holds its GPUs from 8 to 18 o'clock only."""

    @property
    def useful(self) -> float:
        """Share of its time in which its kernels run."""
        return sum(
            share for state, share in self.shares.items() if FORMER.get(state, state) in USEFUL
        )

    def hours(self) -> Iterator[int]:
        for hour in range(self.begin, self.end):
            if not self.working_hours or 8 <= hour % 24 < 18:
                yield hour

    @property
    def gpus(self) -> int:
        return GPUS * len(self.nodes)

    def step(self, hour: int) -> float:
        part = (hour - self.begin) * len(self.steps) // (self.end - self.begin)
        return self.steps[part]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a node, or of one of its GPUs, from a second on for so long."""

    node: str
    fault: str
    begin: int
    seconds: int
    gpu: str = ""
    severity: str = "page"


@dataclass(frozen=True, slots=True)
class QueuedJobs:
    """Jobs that wait in Slurm's queue from one hour to another, as an exporter tells it."""

    series: str
    labels: Mapping[str, str]
    jobs: float
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class KnownIncident:
    """An incident of a job from a second on, by the GPU hours of each part on each node."""

    workload: str
    kind: str
    begin: int
    hours: Mapping[str, float]
    nodes: tuple[str, ...]
    """Those that know of it; the repetition is known of all that the job has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Nodes, by the hours from and to which they are there, what ran on them, and what failed."""

    start: int
    hours: int
    nodes: Mapping[str, tuple[int, int]]
    jobs: tuple[Job, ...]
    faults: tuple[Fault, ...] = ()
    missing: frozenset[int] = frozenset()
    """Hours in which nothing was recorded."""

    incidents: tuple[KnownIncident, ...] = ()
    repeated: Mapping[tuple[str, int], float] = field(default_factory=dict)
    """GPU hours that a job repeats in an hour."""

    queue: tuple[QueuedJobs, ...] = ()
    watts: float = 500.0
    """What a GPU draws."""

    cluster: str = "known"
    models: Mapping[str, str] = field(default_factory=dict)
    """The model of the GPUs of a node, where it is not ``MODEL``."""

    gains: Mapping[str, Shares] = field(default_factory=dict)
    """By cause: what would come back without it, where it is not ``GAINS``."""

    def known(self, hours: Iterable[int]) -> Iterator[int]:
        return (hour for hour in hours if hour not in self.missing)

    # The truth

    def job_hours(self, first: int, last: int) -> dict[Job, float]:
        """GPU hours that each job held."""
        found = {}
        for job in self.jobs:
            hours = sum(first <= hour < last for hour in self.known(job.hours()))
            if hours:
                found[job] = float(hours * job.gpus)
        return found

    def by_state(self, first: int, last: int) -> dict[str, float]:
        """GPU hours by state."""
        found: dict[str, float] = defaultdict(float)
        for begin, end in self.nodes.values():
            there = range(max(begin, first), min(end, last))
            found["free"] += GPUS * sum(1 for _ in self.known(there))
        for job, hours in self.job_hours(first, last).items():
            found["free"] -= hours
            for state, share in job.shares.items():
                found[FORMER.get(state, state)] += hours * share
        return dict(found)

    def useful_lately(self) -> dict[str, float]:
        """The share of the last 30 days that was useful, of the GPUs of each node."""
        found = dict.fromkeys(self.nodes, 0.0)
        for node, (begin, end) in self.nodes.items():
            there = range(max(begin, self.hours - MONTH), end)
            hours = sum(1 for _ in self.known(there))
            for job in self.jobs:
                held = sum(hour in there for hour in self.known(job.hours()))
                found[node] += held * job.useful / hours if node in job.nodes else 0.0
        return found

    # What is recorded of it

    def write(self, path: Path) -> None:
        """All series as OpenMetrics."""
        at = [self.start + (hour + 1) * HOUR + RECORDED_AFTER for hour in range(self.hours)]
        with path.open("w") as file:
            for name, every in (
                (f"job:{HOURLY}", self._of_jobs()),
                (f"namespace:{HOURLY}", self._of_namespaces()),
                ("job:gpunode_held_up:gpus_hourly", self._causes()),
                ("namespace:gpunode_held_up:gpus_hourly", self._causes_of_namespaces()),
                ("job:gpunode_job_kind:gpus_hourly", self._kinds()),
                ("job:gpunode_gpu_owner:by_model_hourly", self._models_of_jobs()),
                ("job:gpunode_training_seconds:rate1h_hourly", self._phases()),
                ("job:gpunode_training_mfu:ratio_hourly", self._mfu()),
                ("job:gpunode_training_step:median_hourly", self._steps()),
                ("job:gpunode_serving_tokens:rate1h_hourly", self._served(lambda job: job.tokens)),
                (
                    "job:gpunode_serving_replicas:count_hourly",
                    self._served(lambda job: len(job.nodes), asked=False),
                ),
                (
                    "job:gpunode_serving_replicas:busy_hourly",
                    self._served(lambda job: len(job.nodes)),
                ),
                ("job:gpunode_job_repeated:gpus_hourly", self._repeated()),
                ("node:gpunode_gpu_blocked:by_job_hourly", self._blocked()),
                (f"node:{HOURLY}", self._of_nodes()),
                (f"cluster:{HOURLY}", self._of_all({}, set(self.nodes))),
            ):
                file.write(f"# TYPE {name} gauge\n")
                for labels, values in every:
                    begin = self._series(name, labels)
                    file.writelines(
                        f"{begin} {value:.7g} {at[hour]}\n"
                        for hour, value in sorted(values.items())
                        if hour not in self.missing
                    )
            for name, often in (
                ("cluster:gpunode_gpu_verdict_gain:gpus", self._gains()),
                ("cluster:gpunode_gpu_power:by_state", self._watts_by_state()),
            ):
                file.write(f"# TYPE {name} gauge\n")
                for labels, values in often:
                    begin = self._series(name, labels)
                    for hour, value in sorted(values.items()):
                        if hour not in self.missing:
                            first = self.start + hour * HOUR + 11
                            file.writelines(
                                f"{begin} {value:.7g} {first + second}\n"
                                for second in range(0, HOUR, RULE_INTERVAL)
                            )
            self._write_versions(file.write)
            self._write_faults(file.write)
            self._write_incidents(file.write)
            self._write_queue(file.write)
            file.write("# EOF\n")

    def _write_versions(self, write: Callable[[str], object]) -> None:
        """What the nodes of jobs run, at each full hour."""
        lines: dict[str, list[str]] = {"gpu:gpunode_owner:info": [], "gpunode_node_info": []}
        for job in self.jobs:
            for node in job.nodes if job.versions else ():
                gpu = {"instance": node, "gpu": "0", "uuid": f"GPU-{node}-0"}
                for hour in self.known(job.hours()):
                    runs = {
                        what: after if hour >= since else before
                        for what, (before, after, since) in job.versions.items()
                    }
                    for name, labels in (
                        ("gpu:gpunode_owner:info", {**gpu, **_labels(job)}),
                        ("gpunode_node_info", {"instance": node, **runs}),
                    ):
                        at = self.start + (hour + 1) * HOUR
                        lines[name].append(f"{self._series(name, labels)} 1 {at}\n")
        for name, of in lines.items():
            write(f"# TYPE {name} gauge\n")
            for line in sorted(of, key=lambda line: line.rpartition(" ")[0]):
                write(line)

    def _write_faults(self, write: Callable[[str], object]) -> None:
        name = "gpu:gpunode_fault:seconds"
        write(f"# TYPE {name} gauge\n")
        for one in sorted(self.faults, key=lambda fault: (fault.node, fault.fault, fault.begin)):
            labels = {"instance": one.node, "severity": one.severity}
            if one.gpu:
                gpu = {"gpu": one.gpu, "uuid": f"GPU-{one.node}-{one.gpu}"}
                labels |= {**gpu, "part": "gpu", "reason": one.fault}
            else:
                labels |= {"part": one.fault, "reason": "down"}
            begin = self.start + one.begin
            series = self._series(name, {**labels, "name": str(one.begin)})
            for second in range(0, one.seconds, FAULT_STEP):
                write(f"{series} {second} {begin + second}\n")
            write(f"{series} NaN {begin + one.seconds}\n")

    def _write_incidents(self, write: Callable[[str], object]) -> None:
        """What the nodes tell of incidents while these go on and for a while."""
        lines: dict[str, list[str]] = defaultdict(list)
        for one in self.incidents:
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self.start + one.begin))
            job = next(each for each in self.jobs if each.workload == one.workload)
            labels = {"incident": f"{stamp}-{one.kind}-0", "kind": one.kind, **_labels(job)}
            length = round(HOUR * sum(one.hours.values()) / GPUS)
            for node in one.nodes:
                for second in range(0, length + 300, SCRAPE_INTERVAL):
                    at, passed = self.start + one.begin + second, float(second * GPUS)
                    for part, hours in one.hours.items():
                        name = "gpunode_incident_gpu_seconds"
                        so_far = min(passed, hours * HOUR)
                        passed -= so_far
                        own = self._series(name, {"instance": node, **labels, "part": part})
                        lines[name].append(f"{own} {so_far:.7g} {at}")
        for name, of in lines.items():
            write(f"# TYPE {name} gauge\n")
            for line in sorted(
                set(of), key=lambda one: (one.rsplit(" ", 2)[0], int(one.rsplit(" ", 1)[1]))
            ):
                write(f"{line}\n")

    def _repeated(self) -> Recorded:
        for job in {one.workload: one for one in self.jobs}.values():
            hours = {
                hour: amount
                for (name, hour), amount in self.repeated.items()
                if name == job.workload
            }
            if hours:
                yield _labels(job), hours

    def _write_queue(self, write: Callable[[str], object]) -> None:
        for one in self.queue:
            write(f"# TYPE {one.series} gauge\n")
            begin = self._series(one.series, one.labels)
            for second in range(one.begin * HOUR, one.end * HOUR, SCRAPE_INTERVAL):
                write(f"{begin} {one.jobs:g} {self.start + second + 1}\n")

    def _series(self, name: str, labels: Mapping[str, object]) -> str:
        """A series with its labels, escaped as OpenMetrics asks."""
        written = ",".join(
            f"{label}={json.dumps(str(text), ensure_ascii=False)}"
            for label, text in {"cluster": self.cluster, **labels}.items()
        )
        return f"{name}{{{written}}}"

    def _of_jobs(self) -> Recorded:
        for job in self.jobs:
            for state, share in job.shares.items():
                yield {**_labels(job), "state": state}, dict.fromkeys(job.hours(), job.gpus * share)

    def _kinds(self) -> Recorded:
        for job in self.jobs:
            yield {**_labels(job), "kind": job.kind}, dict.fromkeys(job.hours(), job.gpus)

    def _models_of_jobs(self) -> Recorded:
        for job in self.jobs:
            for model, nodes in self.by_model(job.nodes).items():
                gpus = dict.fromkeys(job.hours(), float(GPUS * len(nodes)))
                yield {**_labels(job), "name": model}, gpus

    def by_model(self, nodes: Iterable[str]) -> dict[str, list[str]]:
        """Nodes by the model of their GPUs."""
        found: dict[str, list[str]] = defaultdict(list)
        for node in nodes:
            found[self.models.get(node, MODEL)].append(node)
        return found

    def _of_namespaces(self) -> Recorded:
        return self._by_namespace("state", lambda job: job.shares)

    def _causes_of_namespaces(self) -> Recorded:
        return self._by_namespace("cause", lambda job: job.causes)

    def _by_namespace(self, label: str, shares: Callable[[Job], Mapping[str, float]]) -> Recorded:
        sums: dict[tuple[str, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for job in self.jobs:
            for name, share in shares(job).items():
                own = sums[job.namespace, name]
                for hour in job.hours():
                    own[hour] += job.gpus * share
        for (namespace, name), values in sums.items():
            yield {"owner_namespace": namespace, label: name}, values

    def _causes(self) -> Recorded:
        for job in self.jobs:
            for cause, share in job.causes.items():
                yield {**_labels(job), "cause": cause}, dict.fromkeys(job.hours(), job.gpus * share)

    def _phases(self) -> Recorded:
        for job in self.jobs:
            for phase, share in job.phases.items():
                yield {**_labels(job), "phase": phase}, dict.fromkeys(job.hours(), job.gpus * share)

    def _served(self, figure: Callable[[Job], float], *, asked: bool = True) -> Recorded:
        for job in self.jobs:
            if job.tokens:
                first, last = job.asked if asked else (0, 24)
                hours = [hour for hour in job.hours() if first <= hour % 24 < last]
                yield _labels(job), dict.fromkeys(hours, figure(job))

    def _mfu(self) -> Recorded:
        for job in self.jobs:
            if job.mfu:
                yield _labels(job), dict.fromkeys(job.hours(), job.mfu)

    def _steps(self) -> Recorded:
        for job in self.jobs:
            if job.steps:
                yield _labels(job), {hour: job.step(hour) for hour in job.hours()}

    def _blocked(self) -> Recorded:
        for job in self.jobs:
            if len(job.nodes) > 1:
                for node in job.nodes:
                    share = job.blocked.get(node, job.shares.get("blocked", 0.0))
                    yield {**_labels(job), "instance": node}, dict.fromkeys(job.hours(), share)

    def _of_nodes(self) -> Recorded:
        of: dict[str, list[Job]] = defaultdict(list)
        for job in self.jobs:
            for node in job.nodes:
                of[node].append(job)
        for node, (begin, end) in self.nodes.items():
            states: dict[str, dict[int, float]] = {
                state: dict.fromkeys(range(begin, end), 0.0) for state in EXPORTED
            }
            states["free"] = dict.fromkeys(range(begin, end), float(GPUS))
            for job in of[node]:
                for hour in job.hours():
                    states["free"][hour] -= GPUS
                    for state, share in job.shares.items():
                        states[state][hour] += GPUS * share
            for state, values in states.items():
                model = self.models.get(node, MODEL)
                yield {"instance": node, "name": model, "state": state}, values

    def _of_all(self, more: dict[str, str], nodes: Collection[str]) -> Recorded:
        whole = [dict.fromkeys(EXPORTED, 0.0) for _ in range(self.hours)]
        for node, (begin, end) in self.nodes.items():
            for hour in range(begin, end):
                whole[hour]["free"] += GPUS * (node in nodes)
        for job in self.jobs:
            gpus = GPUS * len([node for node in job.nodes if node in nodes])
            for hour in job.hours() if gpus else ():
                whole[hour]["free"] -= gpus
                for state, share in job.shares.items():
                    whole[hour][state] += gpus * share
        for state in EXPORTED:
            yield {**more, "state": state}, {hour: one[state] for hour, one in enumerate(whole)}

    def _gains(self) -> Recorded:
        sums: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for labels, gpus in self._causes():
            for hour, many in gpus.items():
                sums[labels["cause"]][hour] += many
        for cause, values in sums.items():
            for bound, share in self.gains.get(cause, GAINS).items():
                of_bound = {hour: share * many for hour, many in values.items()}
                yield {"cause": cause, "bound": bound}, of_bound

    def _watts_by_state(self) -> Recorded:
        for labels, gpus in self._of_all({}, set(self.nodes)):
            yield labels, {hour: count * self.watts for hour, count in gpus.items()}


def _labels(job: Job) -> dict[str, str]:
    named = {"owner_namespace": job.namespace, "workload": job.workload, "user": job.user}
    return {name: text for name, text in named.items() if text}


@contextmanager
def recorded_fleet(fleet: Fleet, folder: Path) -> Iterator[str]:
    """A Prometheus that keeps what is recorded of a fleet; its address."""
    fleet.write(folder / "past")
    with _with_past(folder) as url:
        yield url


@contextmanager
def remembering(past: str, folder: Path) -> Iterator[str]:
    """A Prometheus that has a past, told as OpenMetrics; its address."""
    (folder / "past").write_text(past)
    with _with_past(folder) as url:
        yield url


@contextmanager
def _with_past(folder: Path) -> Iterator[str]:
    backfill(folder)
    with served(folder) as (_, url):
        yield url


def backfill(folder: Path) -> None:
    """Make blocks of ``past`` in a folder."""
    command = [need("promtool"), "tsdb", "create-blocks-from", "openmetrics", "--quiet"]
    command += ["--max-block-duration=1500h", str(folder / "past"), str(folder / "tsdb")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def served(folder: Path, port: int = 0) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A Prometheus over the blocks in a folder, and its address."""
    (folder / "prometheus.yml").write_text("{}")
    port = port or free_port()
    with prometheus(folder, port, "--storage.tsdb.retention.time=10y") as child:
        yield child, f"http://127.0.0.1:{port}"
