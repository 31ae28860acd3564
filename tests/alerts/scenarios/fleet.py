"""A scenario as series: what Prometheus would have of the fleet, scrape by scrape."""

from __future__ import annotations

import itertools
import random
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

from gpunode.client.protocol import PHASES
from gpunode.gpu import health
from gpunode.gpu.ledger import STATES
from gpunode.holders.job_name import JobIdentity, JobNames
from gpunode.holders.owner import Owner, Started
from gpunode.holders.pods import Pods
from gpunode.host.versions import INFO as VERSIONS
from gpunode.verdict.overdue import STEP_OVERDUE, STEP_OVERDUE_MIN
from gpunode.verdict.reasons import STOPPED, UNINTERRUPTIBLE
from tests.alerts.scenarios.course import (
    Course,
    Exposition,
    Key,
    Linear,
    Part,
    Scrapes,
    Unseen,
    parts_of,
    sampled,
    values,
)
from tests.alerts.scenarios.facts import NAMES, facts_of
from tests.alerts.scenarios.gpus import FREE, Behaviour, behaviour
from tests.alerts.scenarios.nodes import EVENTS, GIVES_UP, RESTARTS, On, bus_id, gpu_labels
from tests.alerts.scenarios.recordings import Moment, mean, recording, windows
from tests.alerts.scenarios.shorthand import Kind, Scenario, ScenarioEvent, ScenarioJob

LATE = "is late"
"""What the GPUs do that others wait for, if a scenario does not say."""

LARGE_SCENARIO = 8
"""GPUs from which a scenario has no series of states in which none of them ever is: promtool loads
no more than 10,000 samples for a query, and takes its time."""

ALWAYS = ("compute",)
"""States of which there are series all the same: that no GPU ever computes is known, too."""

ONE_HOT = {
    "gpunode_gpu_bottleneck": "cause",
    "gpunode_gpu_workload": "kind",
    "gpunode_gpu_waited_for": "reason",
    "gpunode_training_stalled": "cause",
}
"""Metrics of which one series is 1, and the label that tells which."""

LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""https://github.com/kubernetes/apimachinery/blob/master/pkg/util/rand/rand.go"""

CONSULTED = frozenset({"gpunode_gpu_owner_info", "gpunode_gpu_allocated"})
"""Series that events look at."""

PROCESS_STATES = {STOPPED.name: "T", UNINTERRUPTIBLE.name: "D"}
"""The states of a process, by why others wait for it."""

MISSED = 0.02
"""The share of scrapes that nobody answers."""

BOOTS = "boots"

DRAWN = 5
"""Recorded windows that a job plays the mean of: as many as scrapes in the shortest rate."""

BOARD_WATTS = 700.0
ANSWER_TOKENS = 400
"""The tokens of an answer of an engine."""

REQUEST_BOUNDS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


def letters(text: str, count: int = 5) -> str:
    """What Kubernetes appends to the name of a pod."""
    number = zlib.crc32(text.encode())
    return "".join(LETTERS[number // 27**place % 27] for place in range(count))


def pod_name(controller: str, name: str, pod: int) -> str:
    """The name of a pod, as its controller makes it."""
    own = letters(f"{name} {pod}")
    return {
        "deployment": f"{name}-7c9f5d6b4-{own}",
        "statefulset": f"{name}-{pod}",
        "indexed-job": f"{name}-{pod}-{own}",
        "pytorchjob": f"{name}-worker-{pod - 1}" if pod else f"{name}-master-0",
        "job": f"{name}-{own}",
        "pod": name,
        "ray": f"{name}-workers-worker-{own}",
        "raycluster": f"{name}-workergroup-worker-{own}" if pod else f"{name}-head-{own}",
    }[controller]


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a job does on a GPU, and from when."""

    begin: float
    behaviour: Behaviour
    since: float
    """From when it does so, whatever it has played meanwhile."""


@dataclass(frozen=True)
class Tenant:
    """A job on one GPU."""

    name: str
    job: ScenarioJob
    owner: Mapping[str, str]
    node: str
    gpu: int
    rank: int
    local_rank: int
    world: int
    stretches: tuple[Stretch, ...]

    def index(self, moment: float) -> int:
        """Which of its stretches it is in."""
        return bisect_right(self.stretches, moment, key=lambda one: one.begin) - 1

    def does(self, moment: float) -> Behaviour:
        """What it does."""
        return self.stretches[self.index(moment)].behaviour

    def life(self, moment: float) -> int:
        """How many processes have ended before the present one."""
        past = self.stretches[: self.index(moment) + 1]
        return sum(not one.behaviour.process for one in past)

    def begun(self, moment: float) -> int:
        """How many processes have begun."""
        past = [one.behaviour.process for one in self.stretches[: self.index(moment) + 1]]
        return sum(here and not before for before, here in itertools.pairwise([False, *past]))

    def workless(self, moment: float, restarted: float) -> Linear | None:
        """For how long the present process has not worked, as an exporter can know."""
        here = self.index(moment)
        if self.stretches[here].behaviour.works:
            return Linear(0.0)
        while here and self.stretches[here].behaviour.process:
            ended, here = self.stretches[here].begin, here - 1
            if self.stretches[here].behaviour.works:
                return Linear(0.0, 1.0, ended) if ended > restarted else None
        return None

    def blocked_since(self, moment: float) -> float:
        """Since when every window is blocked."""
        here = self.index(moment)
        while here and self.stretches[here - 1].behaviour.streak:
            here -= 1
        return self.stretches[here].begin

    def computed(self, moment: float) -> tuple[int, float]:
        """How many requests its engine computes, and since when no token has come of them."""
        here = self.index(moment)
        since = moment
        while here >= 0:
            does = self.stretches[here].behaviour
            if does.requests:
                return max(1, round(does.requests * does.latency)), since
            if does.cause == "no_requests" or not does.process:
                return 0, moment
            since, here = self.stretches[here].begin, here - 1
        return 0, moment

    def starting_since(self, moment: float) -> float | None:
        """Since when its engine's process has been there that has answered nobody yet."""
        here, since = self.index(moment), None
        while here >= 0 and self.stretches[here].behaviour.process:
            does, since = self.stretches[here].behaviour, self.stretches[here].begin
            if does.requests or does.cause == "no_requests":
                return None
            here -= 1
        return since

    def stepped(self, moment: float) -> float:
        """When its last step ended, if no step ends now."""
        here = self.index(moment)
        while here and not self.stretches[here - 1].behaviour.steps:
            here -= 1
        return self.stretches[here].begin

    def best_loss(self, moment: float) -> float:
        """Its lowest loss so far."""
        return min(one.behaviour.loss for one in self.stretches if one.begin <= moment)


@dataclass(frozen=True)
class Allocations:
    """What the kubelet gave to each pod, in place of ``Pods``."""

    given: Mapping[tuple[str, str], int]

    def gpus_of(self, namespace: str, pod: str) -> int:
        """How many GPUs a pod has."""
        return self.given.get((namespace, pod), 0)


class Fleet:
    """The series of a scenario."""

    def __init__(self, name: str, scenario: Scenario) -> None:
        self.name = name
        self.scenario = scenario
        self.names: dict[str, JobNames] = {}
        """Of each node, what it calls the jobs of owners."""

        self.tenants: dict[tuple[str, int], list[Tenant]] = {}
        for title, job in scenario.jobs.items():
            for tenant in self._tenants(title, job):
                self.tenants.setdefault((tenant.node, tenant.gpu), []).append(tenant)
        self.happens: dict[str, list[tuple[ScenarioEvent, int | None]]] = {}
        for event in scenario.happens:
            if event.what not in EVENTS:
                raise LookupError(f"{name}: no event is called {event.what!r}")
            for node, gpus in scenario.places(event.where):
                parts: Iterable[int | None] = (None,) if gpus is None else gpus
                for gpu in parts:
                    self.happens.setdefault(node, []).append((event, gpu))

    @cached_property
    def states(self) -> tuple[str, ...]:
        """The states of which there are series."""
        if sum(self.scenario.gpus.values()) < LARGE_SCENARIO:
            return tuple(STATES)
        seen = {
            state
            for tenants in self.tenants.values()
            for tenant in tenants
            for stretch in tenant.stretches
            for state, share in stretch.behaviour.states.items()
            if share
        }
        return tuple(state for state in STATES if state in seen or state in ALWAYS)

    def series(
        self, only: frozenset[str] | None = None, missed: float = MISSED
    ) -> Iterator[tuple[str, str]]:
        """Every series as PromQL writes it, and its values in promtool's notation.

        ``only`` are the metrics that somebody reads.
        """
        for series, told in self.scenario.series.items():
            metric, _, own = series.partition("{")
            yield f'{metric}{{cluster="{self.name}",{own or "}"}', told
        for (name, labels), told in self.notations(only, missed):
            selector = ",".join(f'{k}="{v}"' for k, v in (("cluster", self.name), *labels))
            yield f"{name}{{{selector}}}", told

    def notations(
        self, only: frozenset[str] | None = None, missed: float = MISSED
    ) -> Iterator[tuple[Key, str]]:
        """Every series and its values, node by node."""
        every, end = float(self.scenario.every), float(self.scenario.lasts)
        made = None if only is None else only | NAMES | CONSULTED
        for node in self.scenario.gpus:
            scrapes = Scrapes.of(f"{self.name} {node}", every, end, missed)
            parts = parts_of(self._points(node), end, scrapes)
            expositions = [self._exposition(node, begin, made) for (begin, _), _ in parts]
            for each in (
                self._own(expositions, parts, scrapes),
                self._of_others(expositions, parts, scrapes),
                self._facts(node, expositions, parts, scrapes),
            ):
                for key, told in each:
                    if only is None or key[0] in only:
                        yield key, told

    def _own(
        self, expositions: Sequence[Exposition], parts: Sequence[Part], scrapes: Scrapes
    ) -> Iterator[tuple[Key, str]]:
        """The series of a node's exporter."""
        found = [exposition.scraped() for exposition in expositions]
        _fill(found)
        seen = list(zip(parts, expositions, found, strict=True))
        for key in dict.fromkeys(key for one in found for key in one):
            yield key, values(_courses(key, seen), scrapes, own=True)

    def _of_others(
        self, expositions: Sequence[Exposition], parts: Sequence[Part], scrapes: Scrapes
    ) -> Iterator[tuple[Key, str]]:
        """What others say of a node, and Prometheus itself."""
        seen = [(p, e, e.others) for p, e in zip(parts, expositions, strict=True)]
        for key in dict.fromkeys(key for one in expositions for key in one.others):
            yield key, values(_courses(key, seen), scrapes, own=False)
        steps = list(_steps(expositions, parts))
        looks = [one.seen for one, _ in steps]
        for target in dict.fromkeys(
            one for exposition in expositions for one in exposition.targets
        ):
            up = [
                (float((answered and one.up) or 0.0) if target in one.targets else None)
                for one, answered in steps
            ]
            yield ("up", target), sampled(up, looks)

    def _facts(
        self,
        node: str,
        expositions: Sequence[Exposition],
        parts: Sequence[Part],
        scrapes: Scrapes,
    ) -> Iterator[tuple[Key, str]]:
        """What a node judges of its own series."""
        told = facts_of(expositions, parts, scrapes, self._restarts(node))
        steps = list(_steps(expositions, parts))
        looks = [one.seen for one, _ in steps]
        for name, labels in dict.fromkeys(key for one in told for key in one):
            for target in dict.fromkeys(
                t for exposition in expositions for t in exposition.targets
            ):
                found = [
                    facts.get((name, labels))
                    if answered and one.up and target in one.targets
                    else None
                    for facts, (one, answered) in zip(told, steps, strict=True)
                ]
                yield (name, (*target, *labels)), sampled(found, looks)

    def _tenants(self, title: str, job: ScenarioJob) -> Iterator[Tenant]:
        where = self.scenario.at(job.gpus)
        own = {at: selector for selector in job.but for at in self.scenario.at(selector)}
        local: dict[str, int] = {}
        pods: dict[object, int] = {}
        for rank, (node, gpu) in enumerate(where):
            pod = pods.setdefault(node if job.pod_has == "node" else (node, gpu), len(pods))
            local_rank = local.get(node, 0)
            local[node] = local_rank + 1
            yield Tenant(
                title,
                job,
                _owner(job.owner, pod),
                node,
                gpu,
                rank,
                local_rank,
                len(where),
                tuple(self._stretches(title, own.get((node, gpu)), (node, gpu), rank)),
            )

    def _stretches(
        self, title: str, selector: str | None, at: tuple[str, int], rank: int
    ) -> Iterator[Stretch]:
        job = self.scenario.jobs[title]
        timeline = job.does if selector is None else job.but[selector]
        if 0 not in timeline:
            yield Stretch(0.0, FREE, 0.0)
        ends = [*list(timeline)[1:], self.scenario.lasts]
        for (begin, doing), end in zip(timeline.items(), ends, strict=True):
            options = dict(doing.options)
            late = options.pop("late", "")
            late_does = options.pop("as", LATE)
            reason = options.pop("reason", "")
            name = doing.name
            if late and at in self.scenario.at(late):
                name, options = late_does, {"reason": reason} if reason else {}
            does = behaviour(name, options)
            program = recording(name, job.plays, does.cause)
            if not program or not options.keys().isdisjoint(STATES):
                yield Stretch(float(begin), does, float(begin))
                continue
            drawn_from = windows(program, rank, f"{self.name} {title}")
            drawn = random.Random(f"{self.name} {title} {rank} {begin}")
            for moment in range(begin, end, DRAWN * self.scenario.every):
                shows = mean([drawn.choice(drawn_from) for _ in range(DRAWN)])
                if "power" in options:
                    shows = replace(shows, watts=None)
                yield Stretch(float(moment), played(does, shows), float(begin))

    def _points(self, node: str) -> Iterator[float]:
        """When something changes on a node."""
        for event, _ in self.happens.get(node, ()):
            for begin, end in event.spans:
                yield from (float(begin), begin + GIVES_UP, float(end))
        for gpu in range(self.scenario.gpus[node]):
            for tenant in self.tenants.get((node, gpu), ()):
                for stretch in tenant.stretches:
                    yield stretch.begin
                    if tenant.job.client:
                        yield stretch.begin + _overdue(tenant.job)

    def _restarts(self, node: str) -> list[float]:
        """When its exporter started anew, also as the node did."""
        return [
            float(end if event.what == RESTARTS else start)
            for event, _ in self.happens.get(node, ())
            if event.what in (RESTARTS, BOOTS)
            for start, end in event.spans
        ]

    def _exposition(self, node: str, begin: float, only: frozenset[str] | None) -> Exposition:
        """What a node exports from a moment on."""
        out = Exposition(node, begin, only=only)
        out.line("gpunode_clock_timestamp_seconds", Linear(begin, 1.0, begin))
        labels = dict.fromkeys(VERSIONS.labels, "")
        labels["node"] = node
        out.gauge("gpunode_node_info", 1.0, **labels)
        restarted = max((at for at in self._restarts(node) if at <= begin), default=0.0)
        for gpu in range(self.scenario.gpus[node]):
            self._gpu(out, gpu, begin, restarted)
        for event, part in self.happens.get(node, ()):
            active, since = event.at(int(begin))
            times = event.times(int(begin))
            EVENTS[event.what](On(out, part, active, float(since), event.options, times))
        return out

    def _gpu(self, out: Exposition, gpu: int, begin: float, restarted: float) -> None:
        labels = gpu_labels(out.node, gpu)
        tenants = self.tenants.get((out.node, gpu), [])
        here = [tenant for tenant in tenants if tenant.does(begin).process]
        does = here[0].does(begin) if here else FREE
        _hardware(out, gpu, labels, does)
        for state in self.states:
            share = does.states.get(state, 0.0)
            out.counter("gpunode_gpu_seconds_total", share, state=state, **labels)
        out.counter("gpunode_gpu_short_gaps_seconds_total", does.short_gaps, **labels)
        kind: Kind = here[0].job.kind if here else "unknown"
        out.gauge("gpunode_gpu_bottleneck", 1.0, cause=does.cause, **labels)
        out.gauge("gpunode_gpu_workload", 1.0, kind=kind, **labels)
        out.gauge("gpunode_gpu_processes", float(len(here)), engine="compute", **labels)
        held = [tenant for tenant in tenants if tenant.does(begin).holds]
        by_kubelet = any(job.owner.split()[0] not in ("slurm", "user") for job in self._jobs())
        if held or by_kubelet:
            out.gauge("gpunode_gpu_allocated", float(bool(held)), **labels)
        streak = Linear(0.0)
        if does.streak:
            since = max(here[0].blocked_since(begin), restarted)
            streak = Linear(0.0, 1.0, since, does.breaks)
        out.line("gpunode_gpu_blocked_streak_seconds", streak, **labels)
        names = self.names.setdefault(out.node, JobNames(lambda: out.node, self._pods(out.node)))
        for tenant in held:
            _owned(out, tenant, labels, begin)
            if tenant.does(begin).process:
                size = str(tenant.world) if tenant.job.ranks else ""
                names.learn(
                    labels["uuid"], [Started(0, owner=Owner(**tenant.owner), world_size=size)]
                )
        own = (names.shared(Owner(**one.owner) for one in held) or JobIdentity())._asdict()
        for tenant in held:
            if tenant.owner["owner_pod"]:
                stays = tenant.job.in_place or tenant.job.owner.startswith(("ray", "pod "))
                begun = range(1 if stays else tenant.begun(begin))
                out.containers[labels["gpu"], labels["uuid"]] = frozenset(map(str, begun))
            via = "kubelet" if tenant.owner["owner_pod"] else "process"
            out.gauge("gpunode_gpu_owner_info", 1.0, via=via, **tenant.owner, **own, **labels)
        for tenant in here[:1]:
            at = labels["gpu"], labels["uuid"]
            out.jobs[at] = tenant.name
            if does.streak:
                out.waiting.add(at)
            if does.reason in PROCESS_STATES:
                out.process_states[at] = PROCESS_STATES[does.reason]
            workless = tenant.workless(begin, restarted)
            if workless:
                out.line("gpunode_job_workless_seconds", workless, **labels)
            blocked = 4.0 if does.waits_for_storage else 0.0
            out.gauge("gpunode_job_blocked_processes", blocked, **labels)
            if does.compilers:
                out.gauge("gpunode_job_compilers", does.compilers, **labels)
                out.gauge("gpunode_job_compiler_cpus_ratio", does.compilers, **labels)
            if does.reason and self._awaited(tenant, begin):
                out.gauge("gpunode_gpu_waited_for", 1.0, reason=does.reason, **labels)
            if tenant.job.ras:
                self._ras(out, tenant, begin)
            if tenant.job.engine:
                _answers(out, tenant, labels, begin, restarted, self._first(tenant))
            if tenant.job.client:
                (_trains if kind == "training" else _serves)(out, tenant, labels, begin)

    def _pods(self, node: str) -> Pods:
        """What the kubelet of a node says of its pods."""
        given = Counter(
            (one.owner["owner_namespace"], one.owner["owner_pod"])
            for gpu in range(self.scenario.gpus[node])
            for one in self.tenants.get((node, gpu), ())
        )
        return cast(Pods, Allocations(given))

    def _first(self, tenant: Tenant) -> str:
        """The UUID of the first GPU of a tenant's engine."""
        if tenant.job.pod_has == "gpu":
            return gpu_labels(tenant.node, tenant.gpu)["uuid"]
        gpus = (
            gpu
            for gpu in range(self.scenario.gpus[tenant.node])
            for one in self.tenants.get((tenant.node, gpu), ())
            if one.name == tenant.name
        )
        return gpu_labels(tenant.node, next(gpus))["uuid"]

    def _jobs(self) -> Iterable[ScenarioJob]:
        return self.scenario.jobs.values()

    def _awaited(self, tenant: Tenant, moment: float) -> bool:
        """Whether its node sees that another GPU of the job waits for this one."""
        others = (
            other
            for gpu in range(self.scenario.gpus[tenant.node])
            for other in self.tenants.get((tenant.node, gpu), ())
            if other.name == tenant.name and gpu != tenant.gpu
        )
        return any(other.does(moment).streak for other in others)

    def _ras(self, out: Exposition, tenant: Tenant, begin: float) -> None:
        """What the node of rank 0 learns of the job."""
        if tenant.rank:
            return
        out.gauge("gpunode_nccl_communicators", 1.0)
        mine = [t for own in self.tenants.values() for t in own if t.name == tenant.name]
        stalled = any(one.does(begin).streak for one in mine)
        out.gauge("gpunode_nccl_stalled_communicators", float(stalled))
        for one in mine if stalled else ():
            does = one.does(begin)
            if does.streak:
                continue
            out.gauge(
                "gpunode_nccl_awaited_rank_info",
                1.0,
                communicator="1",
                rank=str(one.rank),
                host=one.node,
                pid=_pid(one, begin),
                nvml_device=str(one.gpu),
                reason="behind" if does.process else "dead",
            )


def played(does: Behaviour, moment: Moment) -> Behaviour:
    """A behaviour with what a recorded window shows."""
    power = does.power if moment.watts is None else moment.watts / BOARD_WATTS
    return replace(does, states=moment.states, short_gaps=moment.short_gaps, power=power)


def _steps(
    expositions: Sequence[Exposition], parts: Sequence[Part]
) -> Iterator[tuple[Exposition, bool]]:
    """What a node shows at each scrape, and whether it answers."""
    for exposition, (_, runs) in zip(expositions, parts, strict=True):
        for run in runs:
            for _ in range(run.count):
                yield exposition, run.answered


def _courses(
    key: Key, seen: Iterable[tuple[Part, Exposition, Mapping[Key, Course]]]
) -> Iterator[tuple[Part, Course | None]]:
    """How a series goes on; where no Prometheus looks, that it is gone is not written, either."""
    for part, exposition, found in seen:
        course = found.get(key)
        if exposition.seen:
            yield part, course
        else:
            yield part, course if isinstance(course, Unseen) else Unseen(course or Linear(0.0))


def _fill(expositions: Iterable[dict[Key, Course]]) -> None:
    """Give every other label of a one-hot metric its 0."""
    expositions = list(expositions)
    known: dict[Key, dict[Key, None]] = {}
    for found in expositions:
        for key in found:
            if key[0] in ONE_HOT:
                known.setdefault(_without_hot(key), {})[key] = None
    for found in expositions:
        for key in [key for key in found if key[0] in ONE_HOT]:
            unseen = isinstance(found[key], Unseen)
            for other in known[_without_hot(key)]:
                found.setdefault(other, Unseen(Linear(0.0)) if unseen else Linear(0.0))


def _without_hot(key: Key) -> Key:
    name, labels = key
    return name, tuple(label for label in labels if label[0] != ONE_HOT[name])


def _overdue(job: ScenarioJob) -> float:
    return max(STEP_OVERDUE * job.step, STEP_OVERDUE_MIN)


def _owner(owner: str, pod: int) -> dict[str, str]:
    """The owner of a GPU as the exporter writes it."""
    controller, who, *number = owner.split()
    nobody = dict.fromkeys(
        ("owner_namespace", "owner_pod", "owner_container", "slurm_job", "user"), ""
    )
    if controller == "slurm":
        return {**nobody, "slurm_job": number[0], "user": who}
    if controller == "user":
        return {**nobody, "user": who}
    namespace, _, name = who.partition("/")
    return {
        **nobody,
        "owner_namespace": namespace,
        "owner_pod": pod_name(controller, name, pod),
        "owner_container": "main",
    }


def _pid(tenant: Tenant, begin: float) -> str:
    own = zlib.crc32(tenant.name.encode()) % 100
    return str(10_000 * (1 + tenant.life(begin)) + 100 * own + tenant.local_rank)


def _hardware(out: Exposition, gpu: int, labels: Mapping[str, str], does: Behaviour) -> None:
    out.gauge("gpunode_gpu_power_limit_watts", BOARD_WATTS, **labels)
    out.gauge("gpunode_gpu_power_default_limit_watts", BOARD_WATTS, **labels)
    watts = does.power * BOARD_WATTS
    out.gauge("gpunode_gpu_power_watts", watts, **labels)
    for state, share in does.states.items():
        drawn = share * watts
        out.counter("gpunode_gpu_energy_joules_total", drawn, state=state, **labels)
    out.gauge("gpunode_gpu_utilization_ratio", does.busy, **labels)
    out.gauge("gpunode_gpu_temperature_celsius", 40.0 + 30.0 * does.power, **labels)
    out.gauge("gpunode_gpu_ecc_errors_total", 0.0, kind="uncorrected", **labels)
    out.gauge("gpunode_gpu_recovery_action", 1.0, action="none", **labels)
    out.gauge("gpunode_source_up", 1.0, source="gpu_activity", mountpoint="", **labels)
    info = dict.fromkeys(health.INFO.labels[2:], "")
    info |= {"name": "NVIDIA H100 80GB HBM3", "bus_id": bus_id(gpu), "compute_capability": "9.0"}
    out.gauge("gpunode_gpu_info", 1.0, **info, **labels)


def _owned(out: Exposition, tenant: Tenant, labels: Mapping[str, str], begin: float) -> None:
    if not tenant.does(begin).process:
        return
    ranked = tenant.job.ranks
    out.gauge(
        "gpunode_gpu_process_info",
        1.0,
        pid=_pid(tenant, begin),
        slurm_step="0" if tenant.owner["slurm_job"] else "",
        rank=str(tenant.rank) if ranked else "",
        local_rank=str(tenant.local_rank) if ranked else "",
        world_size=str(tenant.world) if ranked else "",
        **tenant.owner,
        **labels,
    )
    if tenant.job.communicator:
        out.gauge(
            "gpunode_nccl_communicator_info",
            1.0,
            communicator="1",
            rank=str(tenant.rank),
            ranks=str(tenant.world),
            nodes="",
            network="IB",
            version="2.27.3",
            **labels,
        )


def _trains(out: Exposition, tenant: Tenant, labels: Mapping[str, str], begin: float) -> None:
    """What a client in a training loop says."""
    does, job = tenant.does(begin), tenant.job
    for phase in PHASES:
        share = does.phases.get(phase, 0.0)
        out.counter("gpunode_training_seconds_total", share, phase=phase, **labels)
    step = job.step * does.slower
    out.counter("gpunode_training_step_seconds_count", does.steps / step, **labels)
    out.gauge("gpunode_training_step_baseline_seconds", job.step, **labels)
    out.gauge("gpunode_training_step_median_seconds", step, **labels)
    overdue = False
    if does.steps:
        out.line(
            "gpunode_training_last_step_timestamp_seconds", Linear(begin, 1.0, begin), **labels
        )
    elif not does.pauses:
        last = tenant.stepped(begin)
        overdue = begin >= last + _overdue(job)
        out.gauge("gpunode_training_last_step_timestamp_seconds", last, **labels)
    cause = "collective" if does.streak else "input"
    out.gauge("gpunode_training_stalled", float(overdue), cause=cause, **labels)
    out.gauge("gpunode_training_loss_finite", float(does.finite), **labels)
    lost = 0.0 if does.finite else 1.0 / step
    out.counter("gpunode_training_nonfinite_losses_total", lost, **labels)
    if does.finite:
        since = tenant.stretches[tenant.index(begin)].since
        out.line("gpunode_training_loss", Linear(does.loss, does.loss_grows / 60, since), **labels)
    out.gauge("gpunode_training_loss_best", tenant.best_loss(begin), **labels)


def _serves(out: Exposition, tenant: Tenant, labels: Mapping[str, str], begin: float) -> None:
    """What a client in a server says."""
    does = tenant.does(begin)
    for bound in REQUEST_BOUNDS:
        within = does.requests if does.latency <= bound else 0.0
        out.counter("gpunode_serving_request_seconds_bucket", within, le=str(bound), **labels)
    out.counter("gpunode_serving_request_seconds_bucket", does.requests, le="+Inf", **labels)
    out.counter("gpunode_serving_request_seconds_count", does.requests, **labels)
    out.counter("gpunode_serving_request_seconds_sum", does.requests * does.latency, **labels)
    out.counter("gpunode_serving_inputs_total", does.requests, **labels)


def _answers(
    out: Exposition,
    tenant: Tenant,
    labels: Mapping[str, str],
    begin: float,
    restarted: float,
    first: str,
) -> None:
    """What the engine of a server says, as series of its first GPU; or that it has yet to."""
    starting = tenant.starting_since(begin)
    if starting is not None:
        seen = Linear(0.0, 1.0, max(starting, restarted))
        out.line("gpunode_serving_starting_seconds", seen, **labels)
        return
    rate, own = tenant.does(begin).requests, {**labels, "engine": tenant.job.engine}
    own["model"] = tenant.name
    out.gauge("gpunode_serving_engine_info", 1.0, first=first, role="", **own)
    if labels["uuid"] != first:
        return
    running, since = tenant.computed(begin)
    out.gauge("gpunode_serving_requests_in_flight", float(running), phase="running", **own)
    out.gauge("gpunode_serving_requests_in_flight", 0.0, phase="waiting", **own)
    stands = Linear(0.0, 1.0, since) if running and not rate else Linear(0.0)
    out.line("gpunode_serving_tokenless_seconds", stands, **own)
    out.gauge("gpunode_serving_kv_cache_used_ratio", 0.5 if running else 0.0, **own)
    tokens = ANSWER_TOKENS * rate
    out.counter("gpunode_serving_tokens_total", tokens, kind="generated", **own)
    out.counter("gpunode_serving_requests_total", rate, result="finished", **own)
    for objective, count in (("first_token", rate), ("output_token", tokens)):
        out.counter(f"gpunode_serving_{objective}_seconds_count", count, **own)
        out.counter("gpunode_serving_objective_met_total", count, objective=objective, **own)
