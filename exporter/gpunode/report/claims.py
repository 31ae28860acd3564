"""What Prometheus knows of a job that is held up: sentences, each with the series that proves it.

A claim has its PromQL, the moment to ask it at, and what that gave. What no series tells is said to
be not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpunode.export.incident_page import moment_of
from gpunode.gpu.activity import SECONDS
from gpunode.gpu.ledger import STATES
from gpunode.gpu.xids import XID_TIME, XIDS
from gpunode.host import kernel_log
from gpunode.incidents.incident import ID, KINDS, Kind, began_at
from gpunode.jobs.processes import UNREADABLE
from gpunode.report.history import NODE_LABELS
from gpunode.report.job import selecting
from gpunode.report.prometheus import Labels, Moments, Prometheus
from gpunode.report.runs import JobName
from gpunode.report.words import amount, clock
from gpunode.text import printable
from gpunode.verdict.causes import CAUSES, NONE
from gpunode.verdict.causes.cause import MIN_LOSS, Cause
from gpunode.verdict.causes.communication import STALLED_COLLECTIVE
from gpunode.verdict.causes.host import UNEXPLAINED, UNREAD_OF_JOB
from gpunode.verdict.reasons import REASONS
from gpunode.words import CAUSES as WORDS

GPU = "cluster, instance, gpu, uuid"
NOW = "2m"
"""How far back what holds a job up now is looked for: two scrapes a minute, and some patience."""

MAX_JOB_AGE = 7 * 24 * 3600
"""Seconds before now within which a job held a GPU, to be asked about."""

LOOKBACK = 24 * 3600
"""Seconds before now in which incidents and changes are looked for."""

MAX_ONSET_AGE = 6 * 3600
"""Seconds before now in which it is looked for when a job began to be held up."""

STEP = 30
OWNER_STEP = 60
SEEN_IN = 120
"""Seconds within which Prometheus has what a node tells, and ``STEP`` sees it."""

GAP = 300
"""Seconds without a sample after which what was before is another time."""

MIN_SHARE = 0.05
"""Share of a job's GPUs, or of their time, from which on it is told."""

SLOWER_RATIO = 1.1
"""Times as long as before, from which on a step has become longer."""

MAX_GPUS = 8
"""GPUs in a sentence."""

MAX_CLAIMS = 200
"""Claims of an answer; a job may have thousands of GPUs."""

MAX_TEXT = 400
"""Characters of a text that comes from a node."""


@dataclass(frozen=True, slots=True)
class ProvenClaim:
    """A sentence, and what proves it: PromQL, asked at a moment, gave a series with this value."""

    says: str
    promql: str
    at: int
    """Unix seconds."""

    labels: dict[str, str]
    value: float
    cause: str = ""
    """Of a claim of a node: for which cause it speaks."""


@dataclass(frozen=True, slots=True)
class ProvenAnswer:
    """Claims, and what is not known, with why."""

    claims: tuple[ProvenClaim, ...]
    not_known: tuple[str, ...] = ()
    not_proven: tuple[str, ...] = ()
    """What a node tells that no series proves: where processes stand, and what to do."""


@dataclass(frozen=True, slots=True)
class JobIncident:
    """An incident on the GPUs of a job, as one node told of it."""

    cluster: str
    instance: str
    id: str
    kind: Kind
    began: int
    """Unix seconds, from its ID."""

    gpus: tuple[str, ...]
    where: str
    """Where in the code the process stands, if the node tells Prometheus that."""


class JobQuestions:
    """Asks about one job, up to a moment in Unix seconds. All raise ``UsageError``."""

    def __init__(self, server: Prometheus, job: JobName, moment: int) -> None:
        self.server = server
        self.job = job
        self.moment = moment

    def held_up(self) -> ProvenAnswer:
        """What holds the job up now, and since when."""
        asked = (
            f"sum by (cause) (last_over_time(gpunode_gpu_bottleneck[{NOW}]) "
            f"{self._and_member(NOW)})"
        )
        gpus = self._query(asked)
        if not gpus:
            return ProvenAnswer((), (self._no_verdict,))
        every = sum(value for _, value in gpus)
        named = [
            self._claim(
                f"{value:g} of its {amount(every, 'GPU')}: {_costs(labels)}", asked, labels, value
            )
            for labels, value in sorted(gpus, key=_by_urgency)
            if value >= MIN_SHARE * every
        ]
        causes = [
            cause
            for one in named
            if (cause := CAUSES.get(one.labels.get("cause", ""), NONE)) is not NONE
        ]
        since = filter(None, map(self._onset, causes))
        spent = self._spent()
        if not causes and spent.claims and spent.claims[0].labels.get("state") == "idle":
            named = []  # that no loss is found would sound as if it ran
        unread = self._unread() if UNEXPLAINED in causes else ProvenAnswer(())
        return ProvenAnswer(
            (*named, *spent.claims, *since, *unread.claims), (*spent.not_known, *unread.not_known)
        )

    def _spent(self) -> ProvenAnswer:
        """What the time of its GPUs went to."""
        spent = f"increase({SECONDS.name}[{NOW}]) {self._and_member(NOW)}"
        asked = f"sum by (state) ({spent}) / scalar(sum({spent}))"
        found = [one for one in self._query(asked) if one[1] >= MIN_SHARE]
        if not found:
            return ProvenAnswer((), (f"what the time of its GPUs went to within {NOW}",))
        claims = [
            self._claim(
                f"{percent(value)} of the time of its GPUs within {NOW}: {_state(labels)}",
                asked,
                labels,
                value,
            )
            for labels, value in sorted(found, key=lambda one: -one[1])
        ]
        unknown = tuple(one.says for one in claims if one.labels.get("state") == "unknown")
        return ProvenAnswer(tuple(claims), unknown)

    def _unread(self) -> ProvenAnswer:
        """What may explain time without work, and cannot be read."""
        asked = (
            f"sum by (what) (last_over_time({UNREADABLE.name}[{NOW}]) {self._and_member(NOW)}) > 0"
        )
        claims = tuple(
            self._claim(
                f"of {value:g} of its processes, `{_get(labels, 'what')}` cannot be read",
                asked,
                labels,
                value,
            )
            for labels, value in self._query(asked)
            if labels.get("what") in UNREAD_OF_JOB
        )
        unknown = [UNREAD_OF_JOB[one.labels["what"]] for one in claims]
        says = f"of processes of {self.job} that cannot be read, {', '.join(unknown)}"
        return ProvenAnswer(claims, (f"{says}: that may explain it",) if unknown else ())

    @property
    def _no_verdict(self) -> str:
        return f"no verdict on a GPU of {self.job} within {NOW}"

    def waited_for(self) -> ProvenAnswer:
        """For which GPUs and ranks the others wait, and why those do not come."""
        # A reason that is no longer told has a value in this window, too: the newest counts.
        asked = (
            "max by (cluster, instance, gpu, reason) "
            f"(last_over_time(gpunode_gpu_waited_for[{NOW}]) {self._and_member(NOW)}) == 1 "
            f"and on (cluster, instance, gpu, reason) topk by ({GPU}) "
            f"(1, max_over_time(timestamp(gpunode_gpu_waited_for)[{NOW}:15s]))"
        )
        claims = [
            self._claim(
                f"the others wait for GPU {_get(labels, 'gpu')} of {_get(labels, 'instance')}: "
                f"{_reason(labels)}",
                asked,
                labels,
                value,
            )
            for labels, value in self._query(asked)
        ]
        asked = (
            f"max by (instance, rank, host, pid, reason) "
            f"(last_over_time(gpunode_nccl_awaited_rank_info[{NOW}]) and on (cluster, instance) "
            f"last_over_time(gpu:gpunode_owner:info{{{self.job.selector}}}[{NOW}]))"
        )
        claims += [
            self._claim(
                f"NCCL's RAS names rank {_get(labels, 'rank')} on {_get(labels, 'host')}, process "
                f"{_get(labels, 'pid')}: {_get(labels, 'reason')}",
                asked,
                labels,
                value,
            )
            for labels, value in self._query(asked)
        ]
        return ProvenAnswer(tuple(claims[:MAX_CLAIMS])) if claims else self._nobody_named()

    def _nobody_named(self) -> ProvenAnswer:
        """Whether any of its GPUs waits, and which others have no work meanwhile."""
        waits = "|".join(one.name for one in CAUSES.values() if one.waits_for_peers)
        waiting = (
            f'last_over_time(gpunode_gpu_bottleneck{{cause=~"{waits}"}}[{NOW}]) '
            f"{self._and_member(NOW)}"
        )
        count = f"sum({waiting})"
        for labels, value in self._query(count):
            if not value:
                says = f"no GPU of {self.job} waits in a collective"
                return ProvenAnswer((self._claim(says, count, labels, value),))
        by = "by (cluster, instance, gpu, uuid)"
        asked = f"sum by (cluster, instance, gpu, uuid, cause) ({waiting}) == 1"
        late = [
            self._claim(
                f"{_gpu(labels)} is {_does(labels)}",
                asked,
                labels,
                value,
            )
            for labels, value in self._query(asked)
        ]
        if not late:
            return ProvenAnswer((), (self._no_verdict,))
        spent = f"increase({SECONDS.name}[{NOW}]) {self._and_member(NOW)}"
        without = f'increase({SECONDS.name}{{state=~"starved|idle"}}[{NOW}])'
        rest = f"sum {by} ({without} {self._and_member(NOW)}) / sum {by} ({spent}) >= {MIN_LOSS}"
        waits_itself = {one.labels.get("uuid") for one in late}
        others = [
            self._claim(
                f"{_gpu(labels)}, of the same job, had no work for {percent(value)} of {NOW}",
                rest,
                labels,
                value,
            )
            for labels, value in self._query(rest)
            if labels.get("uuid") not in waits_itself
        ]
        who = f"for which GPU waits: {', '.join(_gpu(one.labels) for one in late[:MAX_GPUS])}"
        return ProvenAnswer((*late, *others)[:MAX_CLAIMS], (who,))

    def incidents(self) -> ProvenAnswer:
        """Which incidents there were on its GPUs within a day, and which node began."""
        found, proofs = self.kept()
        if not found:
            return ProvenAnswer(
                (), (f"no incident on the GPUs of {self.job} is kept within a day",)
            )
        first = first_node(found, proofs, self.as_it_began(found).waited_for())
        unknown = ["where in the code: not in Prometheus; its node may tell, see `node_incident`"]
        if any(one.where for one in found) or not {"stall", "slow"} & {one.kind for one in found}:
            unknown = []
        return ProvenAnswer(
            (*tuple(proofs.values())[:MAX_CLAIMS], *first.claims), (*unknown, *first.not_known)
        )

    def kept(self) -> tuple[tuple[JobIncident, ...], dict[tuple[str, str], ProvenClaim]]:
        """The incidents of a day, the earliest first, and a claim for each by node and ID."""
        asked = (
            "max by (cluster, instance, gpu, incident, kind, where) (last_over_time(("
            f"gpunode_incident_info and on ({GPU}) "
            f"gpu:gpunode_owner:info{{{self.job.selector}}})[{LOOKBACK}s:{OWNER_STEP}s]))"
        )
        told = self._query(asked)
        series = {(of.get("instance", ""), of.get("incident", "")): (of, v) for of, v in told}
        found = incidents_of(labels for labels, _ in told)
        proofs = {}
        for one in found:
            says = (
                f"{one.instance}: {KINDS[one.kind]}, since {moment_of(one.began)}, on GPUs "
                f"{', '.join(one.gpus) or 'unknown'}; kept as {one.id}"
            )
            if one.where:
                says += f"; {printable(one.where, MAX_TEXT)}"
            proofs[one.instance, one.id] = self._claim(says, asked, *series[one.instance, one.id])
        return found, proofs

    def as_it_began(self, found: Sequence[JobIncident]) -> JobQuestions:
        """These questions a minute after the first incident, when it is known who is late."""
        moment = min(self.moment, found[0].began + 60) if found else self.moment
        return JobQuestions(self.server, self.job, moment)

    def changed(self) -> ProvenAnswer:
        """What is not as it was: versions and XIDs within a day, the time of a step in an hour."""
        nodes = frozenset(
            labels["instance"]
            for labels, _ in self._query(f"group by (instance) ({self._member(NOW)})")
            if "instance" in labels
        )
        if not nodes:
            return ProvenAnswer((), (f"{self.job} holds no GPU now, as far as is recorded",))
        on = selecting(self.job.cluster, nodes)
        claims: list[ProvenClaim] = []
        unknown: list[str] = []
        for part in (self._versions(on), self._errors(on), self._pace(on)):
            claims += part.claims
            unknown += part.not_known
        return ProvenAnswer(tuple(claims[:MAX_CLAIMS]), tuple(unknown))

    def _versions(self, on: str) -> ProvenAnswer:
        known = ", ".join(NODE_LABELS)
        asked = (
            f"max by (instance, {known}) "
            f"(max_over_time(timestamp(gpunode_node_info{{{on}}})[{LOOKBACK}s:240s]))"
        )
        seen: dict[tuple[str, str], dict[str, tuple[float, Labels]]] = {}
        for labels, last in self._query(asked):
            for what in NODE_LABELS:
                if version := labels.get(what):
                    of = seen.setdefault((labels.get("instance", ""), what), {})
                    of[version] = max(
                        of.get(version, (0.0, labels)), (last, labels), key=_claim_time
                    )
        claims = []
        for (instance, what), versions in sorted(seen.items()):
            if len(versions) > 1:
                *_, (before, (last, labels)), (now, _) = sorted(
                    versions.items(), key=lambda one: one[1][0]
                )
                says = (
                    f"{what} on {printable(instance, 80)} is {printable(now, 80)}; it was "
                    f"{printable(before, 80)} up to {clock(int(last))} UTC"
                )
                claims.append(self._claim(says, asked, labels, last))
        if claims:
            return ProvenAnswer(tuple(claims))
        if not seen:
            return ProvenAnswer((), ("versions: not recorded",))
        count = (
            f"count(count by (instance, {known}) (last_over_time(gpunode_node_info{{{on}}}[1d])))"
        )
        ((labels, value),) = self._query(count)
        says = f"no version changed on {amount(value, 'node')} within a day"
        return ProvenAnswer((self._claim(says, count, labels, value),))

    def _errors(self, on: str) -> ProvenAnswer:
        """By when they happened: a counter that is new, or begins anew, has not increased."""
        since = self.moment - LOOKBACK
        told, logged = (
            f"max by ({labels}) (max_over_time({metric.name}{{{on}}}[{LOOKBACK}s])) > {since}"
            for metric, labels in (
                (XID_TIME, "instance, gpu, xid"),
                (kernel_log.LAST_XID, "instance, bus_id, xid"),
            )
        )
        claims = [
            self._claim(
                f"XID {_get(labels, 'xid')} on {_gpu(labels)}, within a day", told, labels, value
            )
            for labels, value in self._query(told)
        ]
        known = {(claim.labels["instance"], claim.labels["xid"]) for claim in claims}
        claims += [
            self._claim(
                f"XID {_get(labels, 'xid')} on the GPU at {_get(labels, 'bus_id')} of "
                f"{_get(labels, 'instance')}, within a day",
                logged,
                labels,
                value,
            )
            for labels, value in self._query(logged)
            if (labels.get("instance"), labels.get("xid")) not in known
        ]
        if claims:
            return ProvenAnswer(tuple(claims))
        count = f"count({told} or {logged}) or 0 * sum({XIDS.name}{{{on}}})"
        none = tuple(
            self._claim("no XID on its nodes within a day", count, labels, value)
            for labels, value in self._query(count)
        )
        return ProvenAnswer(none, () if none else ("XIDs: not recorded",))

    def _pace(self, on: str) -> ProvenAnswer:
        now, before = (
            f"max(gpunode_training_step_median_seconds{{{on}}}{offset} and on ({GPU}) "
            f"gpu:gpunode_owner:info{{{self.job.selector}}}{offset})"
            for offset in ("", " offset 1h")
        )
        asked = f"{now} / {before}"
        found = self._query(asked)
        if not found:
            return ProvenAnswer(
                (), ("the time of a step now and an hour ago: not told by this job",)
            )
        ((labels, value),) = found
        longer = "longer" if value >= SLOWER_RATIO else "no longer"
        says = f"a step takes {longer} than an hour ago: {value:.2f} times as long"
        return ProvenAnswer((self._claim(says, asked, labels, value),))

    def _onset(self, cause: Cause) -> ProvenClaim | None:
        """When the last time began in which a cause is named all the time."""
        asked = (
            f'avg by (cause) (last_over_time(gpunode_gpu_bottleneck{{cause="{cause.name}"}}[1m]) '
            f"{self._and_member('5m')}) >= {MIN_SHARE}"
        )
        moments = Moments(self.moment - MAX_ONSET_AGE, self.moment, STEP)
        found = sorted((at, value, labels) for labels, at, value in self._over(asked, moments))
        first = None
        for at, value, labels in reversed(found):
            if first is not None and first[0] - at > GAP:
                break
            first = at, value, labels
        if first is None:
            return None
        at, value, labels = first
        if at <= self.moment - MAX_ONSET_AGE:
            says = f"{cause.name}: since before {moment_of(at)}"
        elif cause is STALLED_COLLECTIVE and (began := self._hangs_since(at)):
            return began
        else:
            says = f"{cause.name}: since {moment_of(at)} or up to {STEP} s before"
        return ProvenClaim(says, asked, at, dict(labels), value)

    def _hangs_since(self, seen: int) -> ProvenClaim | None:
        """When the incident of a hang began, which is known to the second."""
        found, proofs = self.kept()
        hangs = [one for one in found if one.kind == "stall" and 0 <= seen - one.began <= SEEN_IN]
        if not hangs:
            return None
        first = hangs[-1]
        says = f"{STALLED_COLLECTIVE.name}: since {moment_of(first.began)}, as {first.id} tells"
        return replace(proofs[first.instance, first.id], says=says)

    def _over(self, asked: str, moments: Moments) -> Iterator[tuple[Labels, int, float]]:
        return self.server.over(asked, moments, lambda _: None)

    def _query(self, promql: str) -> list[tuple[Labels, float]]:
        return list(self.server.at(promql, self.moment))

    def _claim(self, says: str, promql: str, labels: Labels, value: float) -> ProvenClaim:
        shown = {name: printable(text, MAX_TEXT) for name, text in labels.items()}
        return ProvenClaim(says, promql, self.moment, shown, value)

    def _member(self, window: str) -> str:
        return f"last_over_time(gpu:gpunode_owner:info{{{self.job.selector}}}[{window}])"

    def _and_member(self, window: str) -> str:
        return f"and on ({GPU}) {self._member(window)}"


def incidents_of(series: Iterable[Labels]) -> tuple[JobIncident, ...]:
    """The incidents that series of ``gpunode_incident_info`` tell of, the earliest first."""
    found: dict[tuple[str, str, str], JobIncident] = {}
    for labels in series:
        name, kind = labels.get("incident", ""), labels.get("kind", "")
        if not ID.fullmatch(name) or kind not in KINDS:
            continue
        try:
            since = began_at(name)
        except ValueError:  # of the right form, and no time
            continue
        key = labels.get("cluster", ""), labels.get("instance", ""), name
        before = found.get(key)
        gpus = {*(before.gpus if before else ()), labels.get("gpu", "")} - {""}
        found[key] = JobIncident(
            *key[:2],
            name,
            kind,
            since,
            tuple(sorted(gpus, key=lambda gpu: (len(gpu), gpu))),
            (before.where if before else "") or labels.get("where", ""),
        )
    return tuple(sorted(found.values(), key=lambda one: (one.began, one.instance, one.id)))


MIN_LEAD_SECONDS = 5
"""Seconds by which an incident must be earlier than those of other nodes to be the first: verdicts
come every two seconds, and clocks differ."""

LOCAL_KINDS = ("gpu_lost", "xid", "out_of_memory", "crash_loop")
"""Kinds of incidents that no other node can have caused."""


def first_node(
    found: Sequence[JobIncident],
    proofs: Mapping[tuple[str, str], ProvenClaim],
    waited_for: ProvenAnswer,
) -> ProvenAnswer:
    """Which node the incidents of a job came from, the earliest first.

    ``proofs`` has a claim for each, by node and ID.
    """
    nodes = sorted({one.instance for one in found})
    if len(nodes) < 2:
        proof = next(iter(proofs.values()))
        return ProvenAnswer((replace(proof, says=f"{nodes[0]} alone has incidents"),))
    own = [one for one in found if one.kind in LOCAL_KINDS]
    first = next(iter(own or found))
    ahead = min(one.began for one in found if one.instance != first.instance) - first.began
    proof = proofs[first.instance, first.id]
    if own and ahead >= -MIN_LEAD_SECONDS:
        return ProvenAnswer((replace(proof, says=f"{first.instance} began: {KINDS[first.kind]}"),))
    late = {
        one.labels["instance"]: one
        for one in waited_for.claims
        if "reason" in one.labels and "gpu" in one.labels
    }
    if len(late) == 1:
        ((instance, claim),) = late.items()
        return ProvenAnswer((replace(claim, says=f"{instance} began: {claim.says}"),))
    if ahead >= MIN_LEAD_SECONDS:
        says = f"{first.instance} began, {ahead} s before the next node"
        return ProvenAnswer((replace(proof, says=says),))
    return ProvenAnswer(
        (), (f"which node began: {', '.join(nodes)} began within {MIN_LEAD_SECONDS} s",)
    )


def _claim_time(one: tuple[float, Labels]) -> float:
    return one[0]


def _by_urgency(one: tuple[Labels, float]) -> tuple[bool, bool, float, bool]:
    """What hangs, what else stands still, what most GPUs have; of equals, who waits comes last."""
    cause = CAUSES.get(one[0].get("cause", ""), NONE)  # a newer node may know others
    hangs = cause is STALLED_COLLECTIVE
    return not hangs, not cause.stands_still, -one[1], cause.waits_for_peers


def _costs(labels: Labels) -> str:
    cause = CAUSES.get(labels.get("cause", ""))
    if cause is None:
        return _get(labels, "cause")
    if cause is NONE:
        return "no cause of a loss is found"
    said = WORDS[cause.name]
    if not cause.costs:
        return f"{said.headline} ({said.sentence}); no time is known to be lost to it"
    return f"what costs them most is {said.headline} ({said.sentence})"


def _does(labels: Labels) -> str:
    cause = _get(labels, "cause")
    return WORDS[cause].sentence if cause in WORDS else cause


def _state(labels: Labels) -> str:
    state = _get(labels, "state")
    if state == "unknown":
        return f"not known, {STATES[state]}"
    return STATES.get(state, state)


def _gpu(labels: Labels) -> str:
    return f"GPU {_get(labels, 'gpu')} of {_get(labels, 'instance')}"


def _reason(labels: Labels) -> str:
    known = REASONS.get(labels.get("reason", ""))
    return known.meaning if known else _get(labels, "reason")


def _get(labels: Labels, name: str) -> str:
    return printable(labels.get(name, "?"), 80)


def percent(share: float) -> str:
    """A share for a reader."""
    return f"{share:.0%}".replace("%", " %")
