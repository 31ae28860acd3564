"""What a person needs to know of a node: what is wrong, what to do, and what each GPU does.

The node page, ``gpunode top`` and the demo show it; ``export/web/node.py`` gives it its JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpunode.faults.fault import Location, meaning
from gpunode.faults.source import CurrentFaults
from gpunode.gpu.activity import GpuActivity, WindowDetail
from gpunode.gpu.health import INFO
from gpunode.holders.owner import Owner
from gpunode.jobs.owners import OWNER, OWNER_LABELS, PROCESS
from gpunode.jobs.processes import UNREADABLE
from gpunode.loop.playing import Playing
from gpunode.metric import Metric
from gpunode.source import Met, Readings, SilentPlace
from gpunode.verdict.case import Evidence
from gpunode.verdict.causes import CAUSES, NONE
from gpunode.verdict.causes.cause import BOUND, Cause
from gpunode.verdict.causes.communication import STALLED_COLLECTIVE
from gpunode.verdict.facts import At
from gpunode.verdict.guidance import URGENCIES, Guidance, Urgency
from gpunode.verdict.reasons import COMPUTING, REASONS, Reason
from gpunode.verdict.shortages import NodeFigure, Shortage
from gpunode.verdict.source import Judgement, Judgements
from gpunode.words import GPUS

MAX_FINDINGS = 16
"""Findings that are shown; more help nobody."""

UNREAD_SECONDS = 3600.0
"""Seconds for which it is told that something was met and is not understood."""

DESCRIBES = frozenset({INFO, OWNER, PROCESS})
"""The metrics that say in their labels what a GPU is, whose, and for which processes."""

FINDER = "gpu"
"""The finder of GPUs."""

PRESSING: tuple[Urgency, ...] = ("now", "soon")
"""What somebody must do something about."""

STARVING_COLUMNS = ("compute", "io")
"""Columns of what a GPU may starve of."""

STATE_GUIDANCE: dict[str, Guidance] = {
    "free": Guidance("fine", GPUS["free"]),
    "idle": Guidance("note", GPUS["idle"]),
    "unknown": Guidance("note", GPUS["unknown"]),
}
"""By the state that took most of the time, of a GPU of which no verdict names a loss."""

IDLE_IN_A_HANG = Guidance("soon", GPUS["idle_in_a_hang"])
"""Of an idle GPU, where one hangs and it is not known which GPUs are of its job."""

NODE_SHORT = Guidance("soon", GPUS["while_short"])
"""Of a GPU for which nothing on its node is found, though the node is short of something."""

NOT_FULLY_READ = Guidance("soon", GPUS["unread"])
"""Of a GPU for which nothing on its node is found, where it was not looked for everywhere."""

NOT_ON_TAPE = Guidance("soon", GPUS["not_on_tape"])
"""Of a GPU for which nothing on its node is found, while a tape is played."""

NOT_JUDGED = Guidance("fine", GPUS["not_yet"])
GPU_LOST = Guidance("now", GPUS["lost"])


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, or worth knowing: the most urgent comes first.

    ``detail`` is what was reported to the daemon, or where a process stands. ``gpus`` are the
    labels of the GPUs that it is about.
    """

    urgency: Urgency
    title: str
    remedy: str
    gain: str = ""
    """How much faster the job would be without it, where that can be told."""

    detail: str = ""
    evidence: tuple[Evidence, ...] = ()
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RankedProcess:
    """A process on a GPU, and its rank; empty if it has none."""

    pid: str
    rank: str


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """One GPU in words, with what was read of it; GPUs that it names are named by their labels."""

    at: At
    label: str
    """The index; of a MIG instance with a number of its own."""

    urgency: Urgency
    does: str
    """What it does, in a few words that follow its name."""

    remedy: str
    window: WindowDetail | None
    verdict: Judgement | None
    model: str
    instance: bool
    """Whether it is a MIG instance, a part of a GPU."""

    owners: tuple[str, ...]
    """Of a GPU that does not answer, these and its processes are those of when it last did."""

    processes: tuple[RankedProcess, ...]
    waits_for: tuple[str, ...]
    waited_for_by: tuple[str, ...]
    less_accurate: str
    """Why its ledger is less accurate than those of other models, else empty."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node in words: what is wrong, and every GPU; with what was read of it beside them."""

    node: str
    calm: str
    """What comes first where nothing presses, else empty."""

    findings: tuple[Finding, ...]
    gpus: tuple[GpuStatus, ...]
    figures: tuple[NodeFigure, ...]
    silent: tuple[SilentPlace, ...]
    unread: tuple[Met, ...]
    """What was met of late and is not understood."""


@dataclass(frozen=True, slots=True)
class NodeReadings:
    """The readings of all GPUs."""

    labels: dict[At, str]
    """How each GPU is called, in order."""

    windows: dict[At, WindowDetail]
    judged: dict[At, Judgement]
    models: dict[At, str]
    instances: set[At]
    """Those that are MIG instances."""

    owners: dict[At, tuple[Owner, ...]]
    processes: dict[At, tuple[RankedProcess, ...]]

    late: dict[At, Reason]
    """The GPUs that others wait for, and why they do not come."""

    short: bool
    """Whether the node is short of what a GPU may starve of."""

    unread: bool
    """Whether nothing is read of a kind of what a GPU may starve of."""

    played: bool
    """Whether it is a tape, on which nothing more can be read."""

    def called(self, found: Iterable[At]) -> tuple[str, ...]:
        """GPUs by their labels, in order."""
        wanted = set(found)
        return tuple(label for at, label in self.labels.items() if at in wanted)

    def waits_for(self, at: At) -> tuple[At, ...]:
        """The GPUs that one waits for."""
        return tuple(one.at for one in self.judged[at].waits_for) if at in self.judged else ()

    @property
    def misses_a_rank(self) -> bool:
        """Whether a GPU hangs, and nobody knows for whom."""
        judged = self.judged.values()
        return any(_cause(one) is STALLED_COLLECTIVE and not one.waits_for for one in judged)

    def knows(self, at: At) -> bool:
        """Whether a GPU was judged, by sensors that tell what its time goes to."""
        window = self.windows.get(at)
        return at in self.judged and window is not None and window.state.get("unknown", 0.0) < BOUND

    def guidance(self, at: At) -> Guidance:
        """What to do about a GPU."""
        window, verdict = self.windows.get(at), self.judged.get(at)
        if window is None:
            return GPU_LOST
        if verdict is None:
            return NOT_JUDGED
        cause = _cause(verdict)
        said = cause.says(verdict.evidence)
        if cause.uncertain and said == cause.guidance:
            if self.short:
                return NODE_SHORT
            if self.unread or _unreadable(verdict):
                return NOT_ON_TAPE if self.played else NOT_FULLY_READ
        if cause is not NONE:
            return said
        most = next(
            (state for state in STATE_GUIDANCE if window.state.get(state, 0.0) >= BOUND), ""
        )
        if most == "idle" and self.misses_a_rank:
            return IDLE_IN_A_HANG
        return STATE_GUIDANCE.get(most, NONE.guidance)

    def slowed(self, at: At) -> Judgement | None:
        """The verdict on a GPU that takes longer than its peers, where it says what slows it."""
        verdict = self.judged.get(at)
        if self.late.get(at) is COMPUTING and verdict and _cause(verdict).slows_its_gpu:
            return verdict
        return None

    def hangs(self, at: At) -> bool:
        """Whether a GPU spins for GPUs of this node."""
        return bool(self.waits_for(at)) and _cause(self.judged[at]).waits_for_peers

    def pids(self, gpus: Iterable[At]) -> tuple[str, ...]:
        """The processes on some GPUs."""
        found = (process.pid for at in gpus for process in self.processes.get(at, ()))
        return tuple(dict.fromkeys(found))


def status(readings: Readings) -> NodeStatus:
    """The node as it was last read."""
    silent = tuple(readings.silent())
    shortage = next((one.detail for one in readings.details(Shortage)), Shortage("", ()))
    known = _read_node(readings, silent, shortage)
    gpus = tuple(_gpu(known, at) for at in known.labels)
    found = [
        *_lost_gpus(silent, known),
        *_waiting_gpus(known),
        *_causes(known, gpus),
        *_lasting_faults(readings, known.labels),
        *_node_shortages(shortage, known),
        *_no_gpus(silent, gpus),
    ]
    found.sort(key=lambda one: URGENCIES.index(one.urgency))
    unread = tuple(
        met for met in readings.unread() if met.last > readings.clock.time() - UNREAD_SECONDS
    )
    calm = _calm(known, found, silent, unread)
    return NodeStatus(
        shortage.node, calm, tuple(found[:MAX_FINDINGS]), gpus, shortage.figures, silent, unread
    )


def accuracy_note(window: WindowDetail | None) -> str:
    """Why the ledger of a GPU is less accurate than those of models that were measured."""
    if window is None or not window.stand_in:
        return ""
    whose = f"the ledger uses the ceilings of an {window.stand_in}"
    # Without counters of its units, there is nothing to measure them by.
    return whose if window.activity is None else f"{whose}; `gpunode calibrate` measures its own"


def summary_sentence(now: NodeStatus) -> str:
    """What is wrong on a node; where nothing is, what its GPUs do."""
    doing: dict[str, list[str]] = {}
    for gpu in now.gpus:
        doing.setdefault(gpu.does, []).append(gpu.label)
    well = [
        f"{gpu_list(labels)} {'is' if len(labels) == 1 else 'are'} {does}"
        for does, labels in doing.items()
    ]
    return f"{'. '.join(one.title for one in now.findings) or '; '.join(well)}."


def _read_node(
    readings: Readings, silent: Iterable[SilentPlace], shortage: Shortage
) -> NodeReadings:
    """Read everything about the GPUs; one whose activity cannot be read is lost."""
    windows = {
        (one.place.gpu, one.place.uuid): one.detail for one in readings.details(WindowDetail)
    }
    lost = {one.place[:2] for one in silent if one.source == GpuActivity.name and one.place.gpu}
    judged = {
        (verdict.gpu, verdict.uuid): verdict
        for one in readings.details(Judgements)
        for verdict in one.detail.verdicts
    }
    models: dict[At, str] = {}
    instances: set[At] = set()
    owners: dict[At, tuple[Owner, ...]] = {}
    processes: dict[At, tuple[RankedProcess, ...]] = {}
    for at, metric, labels in _described(readings, lost):
        if metric is INFO:
            models.setdefault(at, labels["name"])
            if labels["parent"]:
                instances.add(at)
        elif metric is OWNER:
            owner = Owner(**{name: labels[name] for name in OWNER_LABELS})
            owners[at] = (*owners.get(at, ()), owner)
        else:
            process = RankedProcess(labels["pid"], labels["rank"])
            processes[at] = (*processes.get(at, ()), process)
    return NodeReadings(
        labels=_labels({*windows, *lost}),
        windows=windows,
        judged=judged,
        models=models,
        instances=instances,
        owners=owners,
        processes=processes,
        late={
            one.at: REASONS[one.reason]
            for found in judged.values()
            for one in found.waits_for
            if _cause(found).waits_for_peers
        },
        short=any(
            figure.short and figure.column in STARVING_COLUMNS for figure in shortage.figures
        ),
        unread=not {figure.column for figure in shortage.figures}.issuperset(STARVING_COLUMNS),
        played=bool(readings.details(Playing)),
    )


def _described(
    readings: Readings, lost: Collection[At]
) -> Iterator[tuple[At, Metric, dict[str, str]]]:
    """What labels say of GPUs: the GPU, the metric, and the labels by their names.

    What they said last counts for a lost GPU: whose job it took along is what one has to know.
    """
    now = readings.values(DESCRIBES)
    before = [key for key in readings.last(DESCRIBES) if key not in now] if lost else []
    for metric, values in (*now, *before):
        labels = dict(zip(metric.labels, values, strict=True))
        at = labels["gpu"], labels["uuid"]
        if (metric, values) in now or at in lost:
            yield at, metric, labels


def _unreadable(verdict: Judgement) -> bool:
    """Whether processes of the job could not be read that may explain it."""
    return any(one.series.startswith(UNREADABLE.name) for one in verdict.evidence)


def _cause(verdict: Judgement) -> Cause:
    return CAUSES[verdict.cause]


def _calm(
    known: NodeReadings,
    found: Iterable[Finding],
    silent: Sequence[SilentPlace],
    unread: Sequence[Met],
) -> str:
    """That all is well, where nothing presses and everything that was met was understood."""
    if not known.labels or any(one.urgency in PRESSING for one in found):
        return ""
    if silent or unread or not all(map(known.knows, known.labels)):
        return "Nothing is known to be wrong"
    return "All is well"


def _gpu(known: NodeReadings, at: At) -> GpuStatus:
    guidance = known.guidance(at)
    waiting = (other for other in known.judged if at in known.waits_for(other))
    return GpuStatus(
        at=at,
        label=known.labels[at],
        urgency=_urgency(known, at, guidance),
        does=_activity(known, at, guidance),
        remedy=_remedy(known, at, guidance),
        window=known.windows.get(at),
        verdict=known.judged.get(at),
        model=known.models.get(at, ""),
        instance=at in known.instances,
        owners=_owners(known, at),
        processes=known.processes.get(at, ()),
        waits_for=known.called(known.waits_for(at)),
        waited_for_by=known.called(waiting),
        less_accurate=accuracy_note(known.windows.get(at)),
    )


def _urgency(known: NodeReadings, at: At, guidance: Guidance) -> Urgency:
    """How urgent a GPU is: as what it is waited for, and at ease where that ends by itself."""
    if at in known.late:
        return min(guidance.urgency, known.late[at].guidance.urgency, key=URGENCIES.index)
    if known.hangs(at):
        reasons = {known.late[late].guidance.urgency for late in known.waits_for(at)}
        return "note" if reasons == {"note"} else guidance.urgency
    return guidance.urgency


def _activity(known: NodeReadings, at: At, guidance: Guidance) -> str:
    """What a GPU does, with the GPUs that it waits for or that wait for it."""
    if at in known.late:
        return f"waited for: {guidance.does if known.slowed(at) else known.late[at].meaning}"
    if known.hangs(at):
        verb = "hanging: waits" if guidance.urgency == "now" else "waiting"
        return f"{verb} for {gpu_list(known.called(known.waits_for(at)))}"
    return guidance.does


def _remedy(known: NodeReadings, at: At, guidance: Guidance) -> str:
    """What to do about a GPU; about the one that is waited for, where that is known."""
    late = (at,) if at in known.late else known.waits_for(at) if known.hangs(at) else ()
    if late:
        return _fill_pid(_late_guidance(known, late[0]).remedy, known.pids(late))
    return _fill_pid(guidance.remedy, known.pids([at]))


def _late_guidance(known: NodeReadings, late: At) -> Guidance:
    """What to do about a GPU that others wait for, with what is told after its name."""
    if verdict := known.slowed(late):
        own = _cause(verdict).says(verdict.evidence)
        return replace(own, words=replace(own.words, sentence=f"which is {own.does}"))
    return known.late[late].guidance


def _labels(found: Collection[At]) -> dict[At, str]:
    """How each GPU is called, in order: its index, and among those of one index its number."""
    ordered = sorted(found, key=lambda at: (int(at[0]), at[1]))
    members: dict[str, list[At]] = {}
    for at in ordered:
        members.setdefault(at[0], []).append(at)
    return {
        at: at[0] if len(members[at[0]]) == 1 else f"{at[0]}:{members[at[0]].index(at)}"
        for at in ordered
    }


def _owners(known: NodeReadings, at: At) -> tuple[str, ...]:
    """Who holds a GPU, in words."""
    return tuple(sorted(filter(None, set(map(_owner_text, known.owners.get(at, ()))))))


def _owner_text(owner: Owner) -> str:
    """An owner in words: a pod, a Slurm job, or the user of a process."""
    if owner.owner_pod:
        return "/".join(filter(None, (owner.owner_namespace, owner.owner_pod)))
    words = [f"Slurm job {owner.slurm_job}" if owner.slurm_job else "", owner.user]
    if owner.owner_container and not owner.slurm_job:
        words.append(f"container {owner.owner_container}")
    return ", ".join(filter(None, words))


def _fill_pid(remedy: str, pids: Collection[str]) -> str:
    """A remedy that names the process, where there is only one."""
    return remedy.replace("PID", next(iter(pids))) if len(pids) == 1 else remedy


def gpu_list(labels: Iterable[str]) -> str:
    """GPUs in words: ``GPU 3``, ``GPUs 0-2 and 5``."""
    ordered = list(labels)
    runs: list[list[str]] = []
    for label in ordered:
        after = runs and label.isdecimal() and runs[-1][-1].isdecimal()
        if after and int(label) == int(runs[-1][-1]) + 1:
            runs[-1].append(label)
        else:
            runs.append([label])
    words = [
        word
        for run in runs
        for word in ([f"{run[0]}\N{EN DASH}{run[-1]}"] if len(run) > 2 else run)
    ]
    several = "s" if len(ordered) > 1 else ""
    last = f" and {words[-1]}" if len(words) > 1 else ""
    return f"GPU{several} {', '.join(words[:-1] or words)}{last}"


def _lost_gpus(silent: Iterable[SilentPlace], known: NodeReadings) -> Iterator[Finding]:
    for one in silent:
        if one.source == GpuActivity.name and one.place.gpu:
            at = one.place.gpu, one.place.uuid
            label = known.labels[at]
            owners = " and ".join(_owners(known, at))
            ranks = sorted(
                {process.rank for process in known.processes.get(at, ())} - {""}, key=int
            )
            held = f": {owners} held it" if owners else ""
            as_rank = f" as rank {', '.join(ranks)}" if owners and ranks else ""
            yield Finding(
                urgency="now",
                title=f"GPU {label} does not answer{held}{as_rank}",
                remedy=GPU_LOST.remedy,
                detail=one.why,
                gpus=(label,),
            )


def _waiting_gpus(known: NodeReadings) -> Iterator[Finding]:
    """Who waits for whom, one finding for all that wait for the same GPUs."""
    groups: dict[tuple[At, ...], list[At]] = {}
    for at in known.labels:
        if known.hangs(at):
            groups.setdefault(known.waits_for(at), []).append(at)
    for late, members in groups.items():
        guidance = _late_guidance(known, late[0])
        slowed = known.slowed(late[0])
        stalled = any(_cause(known.judged[at]) is STALLED_COLLECTIVE for at in members)
        hangs = stalled and guidance.urgency != "note"
        one = len(members) == 1
        if hangs:
            verb = "hangs: it waits" if one else "hang: they wait"
        else:
            verb = "waits" if one else "wait"
        waiting, awaited = known.called(members), known.called(late)
        yield Finding(
            urgency="now" if hangs else guidance.urgency,
            title=f"{gpu_list(waiting)} {verb} for {gpu_list(awaited)}, {guidance.does}",
            remedy=_fill_pid(guidance.remedy, known.pids(late)),
            gain=_gain(known, [*members, *([late[0]] if slowed else [])]),
            detail=". ".join(one.where for one in known.judged[members[0]].waits_for if one.where),
            evidence=(*known.judged[members[0]].evidence, *(slowed.evidence if slowed else ())),
            gpus=(*awaited, *waiting),
        )


def _causes(known: NodeReadings, gpus: Iterable[GpuStatus]) -> Iterator[Finding]:
    """What holds GPUs up, one finding for all that do the same; who waits is reported already."""
    groups: dict[Guidance, list[At]] = {}
    for gpu in gpus:
        at = gpu.at
        reported = known.hangs(at) or at in known.late or at not in known.windows
        if gpu.urgency != "fine" and not reported:
            groups.setdefault(known.guidance(at), []).append(at)
    for guidance, members in groups.items():
        worst = max((known.judged[at] for at in members), key=lambda verdict: verdict.share)
        labels = known.called(members)
        yield Finding(
            urgency=guidance.urgency,
            title=f"{gpu_list(labels)} {'is' if len(labels) == 1 else 'are'} {guidance.does}",
            remedy=_fill_pid(guidance.remedy, known.pids(members)),
            gain=_gain(known, members),
            evidence=worst.evidence,
            gpus=labels,
        )


def _gain(known: NodeReadings, members: Iterable[At]) -> str:
    """What the first that can tell says; a job is as fast as its slowest GPU."""
    gains = [one for at in members if (one := known.judged[at].gain)]
    words = min(gains, key=lambda one: one.estimate).words if gains else ""
    return f"Without it: {words}." if words else ""


def _lasting_faults(readings: Readings, labels: dict[At, str]) -> Iterator[Finding]:
    """The faults that last."""
    for fault in (f for one in readings.details(CurrentFaults) for f in one.detail.faults):
        if fault.severity != "info":
            at, means = fault.where[:2], meaning(fault.where, fault.reason)
            yield Finding(
                urgency="now" if fault.severity == "page" else "soon",
                title=_sentence(fault.where, means.words, labels),
                remedy=means.remedy,
                gpus=(labels[at],) if at in labels else (),
            )


def _node_shortages(shortage: Shortage, known: NodeReadings) -> Iterator[Finding]:
    """What the node is short of; no GPU that nobody holds waits for that."""
    in_use = any(
        known.owners.get(at) or known.processes.get(at) or window.state.get("free", 0.0) < 1
        for at, window in known.windows.items()
    )
    told = {_cause(verdict).name for verdict in known.judged.values()}
    short = [
        figure
        for figure in shortage.figures
        if figure.short
        and (in_use or figure.column not in STARVING_COLUMNS)
        and figure.cause not in told
    ]
    if short:
        yield Finding(
            urgency="soon",
            title=f"Past the limit on this node: {'; '.join(map(_short, short))}",
            remedy=" ".join(dict.fromkeys(figure.remedy for figure in short)),
        )


def _sentence(where: Location, words: str, labels: dict[At, str]) -> str:
    if where.gpu:
        return f"GPU {labels.get((where.gpu, where.uuid), where.gpu)}: {words}"
    if where.part == "gpu":  # it has fallen off the bus, and this is where it was
        return f"The GPU at {where.name} has {words}"
    return f"{words[:1].upper()}{words[1:]}"


def _short(figure: NodeFigure) -> str:
    name = figure.name if figure.name[1:2].isupper() else figure.name[:1].lower() + figure.name[1:]
    where = f" {figure.what}" if figure.what else ""
    if figure.unit == "ratio" or (figure.unit == "bytes" and figure.of):
        return f"{name}{where} {figure.value / (figure.of or 1.0):.0%}".replace("%", " %")
    if figure.unit == "number" and figure.of:
        return f"{name} {figure.value:g} of {figure.of:g}"
    if figure.unit == "seconds":
        return f"{name}{where} {figure.value * 1000:.0f} ms"
    return f"{name}{where} {figure.value:g}"


def _no_gpus(silent: Iterable[SilentPlace], gpus: Collection[GpuStatus]) -> Iterator[Finding]:
    """Why no GPU is shown, if none is."""
    why = next((one.why for one in silent if one.source == FINDER), "")
    if why:
        yield Finding(
            urgency="now",
            title="No GPU is seen on this node",
            remedy="If it has GPUs, run `nvidia-smi` on it. If that sees them, let gpunode load "
            "the driver's library: `gpunode doctor` says what it lacks.",
            detail=why,
        )
    elif not gpus:
        yield Finding(
            urgency="note",
            title="No GPU has been seen yet",
            remedy="gpunode looks for GPUs every few seconds, and for a window before it tells. If "
            "none comes, `gpunode doctor` says what is missing.",
        )
