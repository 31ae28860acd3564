"""The node now, in the words of who is on call: what is wrong, what to do, and every GPU."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from pydantic import BaseModel, Field

from gpunode import __version__
from gpunode.audit.source import Audited, Result
from gpunode.gpu.activity import (
    MEMORY_TOTAL,
    MEMORY_USED,
    TEMPERATURE,
    UTILIZATION,
    GpuActivity,
    WindowDetail,
)
from gpunode.gpu.health import INFO
from gpunode.jobs.owners import OWNER, PROCESS
from gpunode.loop import Loop, Silent
from gpunode.metric import Metric
from gpunode.source import Key
from gpunode.verdict.advice import URGENCIES, Advice, Urgency
from gpunode.verdict.case import Evidence
from gpunode.verdict.causes import CAUSES, NONE
from gpunode.verdict.causes.cause import BOUND
from gpunode.verdict.reasons import REASONS
from gpunode.verdict.shortages import Fault, Figure, Shortage
from gpunode.verdict.source import Judged, Judgement

At = tuple[str, str]

MOST = 16
"""Findings that are told; more help nobody."""

GAUGES = {
    MEMORY_USED: "memory_used_bytes",
    MEMORY_TOTAL: "memory_size_bytes",
    TEMPERATURE: "temperature_celsius",
    UTILIZATION: "utilization_ratio",
}
USED = frozenset({*GAUGES, INFO, OWNER, PROCESS})

RANK = PROCESS.labels[2:].index("rank")
"""Where the rank is among the labels of a process after those of its GPU."""

GPUS = "gpu"
"""The finder of GPUs."""

PRESSING: tuple[Urgency, ...] = ("now", "soon")
"""What somebody must do something about."""

STARVING = ("compute", "io")
"""Columns of what a GPU may starve of."""

WITHOUT_LOSS: dict[str, Advice] = {
    "free": Advice("fine", "free: no process holds it", ""),
    "idle": Advice(
        "note",
        "held, and has run nothing for a while",
        "Nothing is broken. If this goes on for hours, ask the owner to give the GPU back.",
    ),
    "unknown": Advice(
        "note",
        "in use, but no sensor tells what for",
        "See which sensors the ledger lacks: `/api/v1/gpus`.",
    ),
}
"""By the state that took most of the time, of a GPU of which no verdict names a loss."""

IDLE_IN_A_HANG = Advice(
    "soon",
    "held, and has run nothing for a while, as another GPU hangs",
    "If both are of one job, its rank here is the one that does not come: see where it stands, "
    "`py-spy dump --pid PID`. If they are not, nothing is broken here.",
)
"""Of an idle GPU, where one hangs and it is not known which GPUs are of its job."""

WHILE_SHORT = Advice(
    "soon",
    "held with nothing to run",
    "The node is past a limit, which may be why: begin there. If that is not of this job, see what "
    "the process waits for: `py-spy dump --pid PID`.",
)
"""Of a GPU for which nothing on its node is found, though the node is short of something."""

UNREAD = Advice(
    "soon",
    "held with nothing to run, and what may explain it is not all read on this node",
    "See what the process waits for: `py-spy dump --pid PID`. `gpunode doctor` says what it takes "
    "to read the rest of the node.",
)
"""Of a GPU for which nothing on its node is found, where it was not looked for everywhere."""

NOT_YET = Advice("fine", "not judged yet", "")
LOST = Advice(
    "now",
    "not answering",
    "Read the kernel log for XIDs (`dmesg`), then drain the node and reset or replace the GPU.",
)


class Finding(BaseModel):
    """Something that is wrong, or worth knowing: the most urgent is told first."""

    urgency: Urgency
    title: str
    remedy: str
    detail: str = Field("", description="what the daemon was told, where that says more")
    evidence: list[Evidence] = []
    gpus: list[str] = Field([], description="the GPUs that it is about, by `label`")


class GpuNow(BaseModel):
    """One GPU or MIG instance now; what was not read is null."""

    gpu: str
    uuid: str
    label: str = Field(description="the index; of a MIG instance with a number of its own")
    name: str = ""
    urgency: Urgency
    does: str = Field(description="what it does, in a few words that follow its name")
    remedy: str
    cause: str | None = None
    share: float | None = Field(None, description="share of the last seconds that the cause took")
    evidence: list[Evidence] = []
    states: dict[str, float] = Field({}, description="shares of the last window by state")
    power_watts: float | None = None
    power_limit_watts: float | None = None
    memory_used_bytes: float | None = None
    memory_size_bytes: float | None = None
    temperature_celsius: float | None = None
    utilization_ratio: float | None = Field(None, description="as in nvidia-smi")
    step_period_seconds: float | None = None
    workload: str | None = None
    owners: list[str] = []
    ranks: list[str] = []
    pids: list[str] = []
    waits_for: list[str] = Field([], description="GPUs by `label`")
    waited_for_by: list[str] = Field([], description="GPUs by `label`")


class SilentSource(BaseModel):
    """A source that does not answer."""

    source: str
    where: str
    since: float | None = Field(description="when it last answered, in seconds since the epoch")
    why: str


class NodeNow(BaseModel):
    """All that the node page shows of this moment."""

    node: str
    version: str
    time: float
    calm: str = Field(description="what comes first where nothing presses, else empty")
    findings: list[Finding]
    gpus: list[GpuNow]
    figures: list[Figure]
    silent: list[SilentSource]
    audit: list[Result] = Field(description="the checks that failed")
    audited: int = Field(description="the checks that could be decided")


@dataclass(frozen=True, slots=True)
class Known:
    """What was read of all GPUs."""

    labels: dict[At, str]
    """How each GPU is called, in order."""

    windows: dict[At, WindowDetail]
    judged: dict[At, Judgement]
    values: dict[Key, float]
    infos: dict[At, list[tuple[str, ...]]]
    owners: dict[At, list[tuple[str, ...]]]
    processes: dict[At, list[tuple[str, ...]]]
    """The other labels of the series of each GPU."""

    late: dict[At, str]
    """The GPUs that others wait for, and why they do not come."""

    short: bool
    """Whether the node is short of what a GPU may starve of."""

    unread: bool
    """Whether nothing is read of a kind of what a GPU may starve of."""

    def called(self, found: Iterable[At]) -> list[str]:
        """GPUs by their labels, in order."""
        wanted = set(found)
        return [label for at, label in self.labels.items() if at in wanted]

    def waits_for(self, at: At) -> tuple[At, ...]:
        """The GPUs that one waits for."""
        return tuple(one.at for one in self.judged[at].waits_for) if at in self.judged else ()

    @property
    def misses_a_rank(self) -> bool:
        """Whether a GPU hangs, and nobody knows for whom."""
        judged = self.judged.values()
        return any(one.cause == "stalled_collective" and not one.waits_for for one in judged)

    def knows(self, at: At) -> bool:
        """Whether a GPU was judged, by sensors that tell what its time goes to."""
        window = self.windows.get(at)
        return at in self.judged and window is not None and window.state.get("unknown", 0.0) < BOUND

    def advice(self, at: At) -> Advice:
        """What to do about a GPU."""
        window, verdict = self.windows.get(at), self.judged.get(at)
        if window is None:
            return LOST
        if verdict is None:
            return NOT_YET
        cause = CAUSES[verdict.cause]
        if cause.uncertain and self.short:
            return WHILE_SHORT
        if cause.uncertain and self.unread:
            return UNREAD
        if cause is not NONE:
            return cause.advice
        most = next((state for state in WITHOUT_LOSS if window.state.get(state, 0.0) >= BOUND), "")
        if most == "idle" and self.misses_a_rank:
            return IDLE_IN_A_HANG
        return WITHOUT_LOSS.get(most, NONE.advice)

    def hangs(self, at: At) -> bool:
        """Whether a GPU spins for GPUs of this node."""
        return bool(self.waits_for(at)) and CAUSES[self.judged[at].cause].waits_for_peers

    def pids(self, gpus: Iterable[At]) -> list[str]:
        """The processes on some GPUs."""
        found = (labels[0] for at in gpus for labels in self.processes.get(at, ()))
        return list(dict.fromkeys(found))


def known(loop: Loop, silent: Iterable[Silent], shortage: Shortage) -> Known:
    """Everything that was read of the GPUs; one whose activity cannot be read is lost."""
    windows = {
        (told.place.gpu, told.place.uuid): told.detail for told in loop.details(WindowDetail)
    }
    lost = {one.place[:2] for one in silent if one.source == GpuActivity.name and one.place.gpu}
    judged = {
        (one.gpu, one.uuid): one for told in loop.details(Judged) for one in told.detail.verdicts
    }
    values = {key: value for key, (value, _) in loop.values(USED).items()}
    described: dict[Metric, dict[At, list[tuple[str, ...]]]] = {INFO: {}, OWNER: {}, PROCESS: {}}
    for metric, (gpu, uuid, *rest) in values:
        if metric in described:
            described[metric].setdefault((gpu, uuid), []).append(tuple(rest))
    return Known(
        labels=_labels({*windows, *lost}),
        windows=windows,
        judged=judged,
        values=values,
        infos=described[INFO],
        owners=described[OWNER],
        processes=described[PROCESS],
        late={
            one.at: one.reason
            for found in judged.values()
            for one in found.waits_for
            if CAUSES[found.cause].waits_for_peers
        },
        short=any(figure.short and figure.column in STARVING for figure in shortage.figures),
        unread=not {figure.column for figure in shortage.figures}.issuperset(STARVING),
    )


def node(loop: Loop) -> NodeNow:
    """The node as it was last read."""
    silent = loop.silent()
    shortage = next((told.detail for told in loop.details(Shortage)), Shortage("", (), ()))
    all_gpus = known(loop, silent, shortage)
    gpus = [_gpu(all_gpus, at) for at in all_gpus.labels]
    checks = [check for told in loop.details(Audited) for check in told.detail.checks]
    found = [
        *_lost(silent, all_gpus),
        *_waits(all_gpus),
        *_causes(all_gpus, gpus),
        *_of_node(shortage, all_gpus.labels),
        *_without_gpus(silent, gpus),
    ]
    found.sort(key=lambda one: URGENCIES.index(one.urgency))
    return NodeNow(
        node=shortage.node,
        version=__version__,
        time=loop.clock.time(),
        calm=_calm(all_gpus, found),
        findings=found[:MOST],
        gpus=gpus,
        figures=list(shortage.figures),
        silent=[
            SilentSource(
                source=one.source, where=_where(one, all_gpus.labels), since=one.since, why=one.why
            )
            for one in silent
        ],
        audit=[check for check in checks if check.status == "failed"],
        audited=sum(check.status != "unknown" for check in checks),
    )


def _calm(all_gpus: Known, found: Iterable[Finding]) -> str:
    """That all is well, where nothing presses: only of GPUs of which it is known."""
    if not all_gpus.labels or any(one.urgency in PRESSING for one in found):
        return ""
    known = all(map(all_gpus.knows, all_gpus.labels))
    return "All is well" if known else "Nothing is known to be wrong"


def _gpu(all_gpus: Known, at: At) -> GpuNow:
    window, verdict = all_gpus.windows.get(at), all_gpus.judged.get(at)
    advice = all_gpus.advice(at)
    names, processes = all_gpus.infos.get(at, ()), all_gpus.processes.get(at, ())
    gauges = {field: all_gpus.values.get((metric, at)) for metric, field in GAUGES.items()}
    owners = {_owner(*labels[:5]) for labels in all_gpus.owners.get(at, ())}
    return GpuNow(
        gpu=at[0],
        uuid=at[1],
        label=all_gpus.labels[at],
        name=names[0][0] if names else "",
        urgency=_urgency(all_gpus, at, advice),
        does=_does(all_gpus, at, advice),
        remedy=_remedy(all_gpus, at, advice),
        cause=verdict.cause if verdict else None,
        share=verdict.share if verdict else None,
        evidence=list(verdict.evidence) if verdict else [],
        states={state: share for state, share in window.state.items() if share} if window else {},
        power_watts=window.power_watts if window else None,
        power_limit_watts=window.power_limit_watts if window else None,
        step_period_seconds=window.step_period_seconds if window else None,
        workload=verdict.workload.kind if verdict and processes else None,
        owners=sorted(filter(None, owners)),
        ranks=sorted((labels[RANK] for labels in processes if labels[RANK]), key=int),
        pids=all_gpus.pids([at]),
        waits_for=all_gpus.called(all_gpus.waits_for(at)),
        waited_for_by=all_gpus.called(o for o in all_gpus.judged if at in all_gpus.waits_for(o)),
        **gauges,
    )


def _urgency(all_gpus: Known, at: At, advice: Advice) -> Urgency:
    """How urgent a GPU is: as what it is waited for, and at ease where that ends by itself."""
    if at in all_gpus.late:
        of_reason = REASONS[all_gpus.late[at]].advice.urgency
        return min(advice.urgency, of_reason, key=URGENCIES.index)
    if all_gpus.hangs(at):
        reasons = {REASONS[all_gpus.late[late]].advice.urgency for late in all_gpus.waits_for(at)}
        return "note" if reasons == {"note"} else advice.urgency
    return advice.urgency


def _does(all_gpus: Known, at: At, advice: Advice) -> str:
    """What a GPU does, by whom it waits for and who waits for it if anybody does."""
    if at in all_gpus.late:
        return f"waited for: {REASONS[all_gpus.late[at]].meaning}"
    if all_gpus.hangs(at):
        verb = "hanging: waits" if advice.urgency == "now" else "waiting"
        return f"{verb} for {counted(all_gpus.called(all_gpus.waits_for(at)))}"
    return advice.does


def _remedy(all_gpus: Known, at: At, advice: Advice) -> str:
    """What to do about a GPU; about the one that is waited for, where that is known."""
    late = (at,) if at in all_gpus.late else all_gpus.waits_for(at) if all_gpus.hangs(at) else ()
    if late:
        return _with_pid(REASONS[all_gpus.late[late[0]]].advice.remedy, all_gpus.pids(late))
    return _with_pid(advice.remedy, all_gpus.pids([at]))


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


def _owner(namespace: str, pod: str, container: str, slurm_job: str, user: str) -> str:
    """An owner in words: a pod, a Slurm job, or the user of a process."""
    if pod:
        return f"{namespace}/{pod}" if namespace else pod
    words = [f"Slurm job {slurm_job}" if slurm_job else "", user]
    words.append(f"container {container}" if container and not slurm_job else "")
    return ", ".join(filter(None, words))


def _with_pid(remedy: str, pids: Collection[str]) -> str:
    """A remedy that names the process, where there is only one."""
    return remedy.replace("PID", next(iter(pids))) if len(pids) == 1 else remedy


def counted(labels: Iterable[str]) -> str:
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


def _lost(silent: Iterable[Silent], all_gpus: Known) -> Iterator[Finding]:
    for one in silent:
        if one.source == GpuActivity.name and one.place.gpu:
            label = all_gpus.labels[one.place.gpu, one.place.uuid]
            yield Finding(
                urgency="now",
                title=f"GPU {label} does not answer",
                remedy=LOST.remedy,
                detail=one.why,
                gpus=[label],
            )


def _waits(all_gpus: Known) -> Iterator[Finding]:
    """Who waits for whom, one finding for all that wait for the same GPUs."""
    groups: dict[tuple[At, ...], list[At]] = {}
    for at in all_gpus.labels:
        if all_gpus.hangs(at):
            groups.setdefault(all_gpus.waits_for(at), []).append(at)
    for late, members in groups.items():
        advice = REASONS[all_gpus.late[late[0]]].advice
        causes = {all_gpus.judged[at].cause for at in members}
        hangs = "stalled_collective" in causes and advice.urgency != "note"
        one = len(members) == 1
        if hangs:
            verb = "hangs: it waits" if one else "hang: they wait"
        else:
            verb = "waits" if one else "wait"
        waiting, awaited = all_gpus.called(members), all_gpus.called(late)
        yield Finding(
            urgency="now" if hangs else advice.urgency,
            title=f"{counted(waiting)} {verb} for {counted(awaited)}, {advice.does}",
            remedy=_with_pid(advice.remedy, all_gpus.pids(late)),
            evidence=list(all_gpus.judged[members[0]].evidence),
            gpus=[*awaited, *waiting],
        )


def _causes(all_gpus: Known, gpus: Iterable[GpuNow]) -> Iterator[Finding]:
    """What holds GPUs up, one finding for all that do the same; who waits is told already."""
    groups: dict[Advice, list[At]] = {}
    for now in gpus:
        at = now.gpu, now.uuid
        told = all_gpus.hangs(at) or at in all_gpus.late or at not in all_gpus.windows
        if now.urgency != "fine" and not told:
            advice = all_gpus.advice(at)
            groups.setdefault(advice, []).append(at)
    for advice, members in groups.items():
        worst = max((all_gpus.judged[at] for at in members), key=lambda verdict: verdict.share)
        labels = all_gpus.called(members)
        yield Finding(
            urgency=advice.urgency,
            title=f"{counted(labels)} {'is' if len(labels) == 1 else 'are'} {advice.does}",
            remedy=_with_pid(advice.remedy, all_gpus.pids(members)),
            evidence=list(worst.evidence),
            gpus=labels,
        )


def _of_node(shortage: Shortage, labels: dict[At, str]) -> Iterator[Finding]:
    """Broken parts, and what the node is short of."""
    for fault in shortage.faults:
        yield Finding(
            urgency="now",
            title=_sentence(fault, labels),
            remedy=fault.remedy,
            gpus=[labels[at]] if (at := (fault.gpu, fault.uuid)) in labels else [],
        )
    short = [figure for figure in shortage.figures if figure.short]
    if short:
        yield Finding(
            urgency="soon",
            title=f"Past the limit on this node: {'; '.join(map(_short, short))}",
            remedy=" ".join(dict.fromkeys(figure.remedy for figure in short)),
        )


def _sentence(fault: Fault, labels: dict[At, str]) -> str:
    if not fault.gpu:
        return f"{fault.what[:1].upper()}{fault.what[1:]}"
    return f"GPU {labels.get((fault.gpu, fault.uuid), fault.gpu)}: {fault.what}"


def _short(figure: Figure) -> str:
    name = figure.name if figure.name[1:2].isupper() else figure.name[:1].lower() + figure.name[1:]
    where = f" {figure.what}" if figure.what else ""
    if figure.unit == "ratio" or (figure.unit == "bytes" and figure.of):
        return f"{name}{where} {figure.value / (figure.of or 1.0):.0%}".replace("%", " %")
    if figure.unit == "number" and figure.of:
        return f"{name} {figure.value:g} of {figure.of:g}"
    if figure.unit == "seconds":
        return f"{name}{where} {figure.value * 1000:.0f} ms"
    return f"{name}{where} {figure.value:g}"


def _without_gpus(silent: Iterable[Silent], gpus: Collection[GpuNow]) -> Iterator[Finding]:
    """Why no GPU is shown, if none is."""
    why = next((one.why for one in silent if one.source == GPUS), "")
    if why:
        yield Finding(
            urgency="now",
            title="No GPU is seen on this node",
            remedy="If it has GPUs, run `nvidia-smi` on it. If that sees them, let gpunode load "
            "the driver's library: `gpunode audit` says what it lacks.",
            detail=why,
        )
    elif not gpus:
        yield Finding(
            urgency="note",
            title="No GPU has been seen yet",
            remedy="gpunode looks for GPUs every few seconds, and for a window before it tells.",
        )


def _where(silent: Silent, labels: dict[At, str]) -> str:
    place = silent.place
    if place.gpu:
        return f"GPU {labels.get((place.gpu, place.uuid), place.gpu)}"
    return place.mountpoint or "node"
