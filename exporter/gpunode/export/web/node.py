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
    WindowDetail,
)
from gpunode.gpu.health import INFO
from gpunode.jobs.owners import OWNER, PROCESS
from gpunode.loop import Loop, Silent
from gpunode.verdict.advice import ADVICE, OF_REASONS, URGENCIES, Advice, Urgency
from gpunode.verdict.causes import Evidence
from gpunode.verdict.limits import BOUND
from gpunode.verdict.shortages import Fault, Figure, Shortage
from gpunode.verdict.source import Judged, Judgement
from gpunode.verdict.waiting import REASONS

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

WITHOUT_LOSS: dict[str, Advice] = {
    "free": Advice("fine", "free: no process holds it", ""),
    "idle": Advice(
        "note",
        "held, and has run nothing for a while",
        "Nothing is broken. If this goes on for hours, ask the owner to give the GPU back.",
    ),
    "unknown": Advice(
        "note",
        "in use, but its sensors do not tell what for",
        "See which sensors the ledger lacks: `/api/v1/gpus`.",
    ),
}
"""By the state that took most of the time, of a GPU of which no verdict names a loss."""

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
    findings: list[Finding]
    gpus: list[GpuNow]
    figures: list[Figure]
    silent: list[SilentSource]
    audit: list[Result] = Field(description="the checks that failed")
    audited: int = Field(description="the checks that could be decided")


@dataclass(frozen=True, slots=True)
class Known:
    """What was read of all GPUs, and how each is called."""

    labels: dict[At, str]
    names: dict[At, str]
    judged: dict[At, Judgement]
    pids: dict[At, list[str]]

    def advice(self, at: At, states: dict[str, float]) -> Advice:
        """What a GPU does, and what to do about it."""
        found = self.judged.get(at)
        if found is None:
            return NOT_YET
        if found.cause == "none":
            most = next((s for s in WITHOUT_LOSS if states.get(s, 0.0) >= BOUND), "")
            return WITHOUT_LOSS.get(most, ADVICE["none"])
        return ADVICE[found.cause]


def node(loop: Loop) -> NodeNow:
    """The node as it was last read."""
    windows = {(t.place.gpu, t.place.uuid): t for t in loop.details(WindowDetail)}
    values = {key: value for key, (value, _) in loop.values(USED).items()}
    silent = loop.silent()
    lost = {
        (one.place.gpu, one.place.uuid): one
        for one in silent
        if one.source == "gpu_activity" and one.place.gpu
    }
    labels = _labels({*windows, *lost})
    judged = {(j.gpu, j.uuid): j for t in loop.details(Judged) for j in t.detail.verdicts}
    pids: dict[At, list[str]] = {}
    ranks: dict[At, list[str]] = {}
    owners: dict[At, list[str]] = {}
    names: dict[At, str] = {}
    for metric, (gpu, uuid, *rest) in values:
        at = gpu, uuid
        if metric is INFO:
            names[at] = rest[0]
        elif metric is OWNER:
            owners.setdefault(at, []).append(_owner(*rest[:5]))
        elif metric is PROCESS:
            pids.setdefault(at, []).append(rest[0])
            if rest[7]:
                ranks.setdefault(at, []).append(rest[7])
    known = Known(labels, names, judged, pids)
    waiting = {
        at: [labels[late.at] for late in found.waits_for if late.at in labels]
        for at, found in judged.items()
    }
    late = {one.at: one.reason for found in judged.values() for one in found.waits_for}
    gpus = []
    for at, label in labels.items():
        window = windows[at].detail if at in windows else None
        states = dict(window.state) if window else {}
        advice = known.advice(at, states) if window else LOST
        verdict = judged.get(at)
        now = GpuNow(
            gpu=at[0],
            uuid=at[1],
            label=label,
            name=names.get(at, ""),
            urgency=advice.urgency,
            does=_does(advice, waiting.get(at, ()), late.get(at)),
            remedy=_with_pid(advice.remedy, pids.get(at, ())),
            cause=verdict.cause if verdict else None,
            share=verdict.share if verdict else None,
            evidence=list(verdict.evidence) if verdict else [],
            states={state: share for state, share in states.items() if share > 0},
            power_watts=window.power_watts if window else None,
            power_limit_watts=window.power_limit_watts if window else None,
            step_period_seconds=window.step_period_seconds if window else None,
            workload=verdict.workload.kind if verdict and pids.get(at) else None,
            owners=sorted(filter(None, owners.get(at, ()))),
            ranks=sorted(ranks.get(at, ()), key=int),
            pids=pids.get(at, []),
            waits_for=waiting.get(at, []),
            waited_for_by=[labels[o] for o, late in waiting.items() if label in late],
        )
        for metric, field in GAUGES.items():
            setattr(now, field, values.get((metric, at)))
        gpus.append(now)
    shortage = next((told.detail for told in loop.details(Shortage)), Shortage("", (), ()))
    checks = [check for told in loop.details(Audited) for check in told.detail.checks]
    found = [
        *_lost(lost, labels),
        *_waits(known),
        *_causes(known, gpus),
        *_of_node(shortage, labels),
        *_finders(silent, labels),
    ]
    found.sort(key=lambda one: URGENCIES.index(one.urgency))
    return NodeNow(
        node=shortage.node,
        version=__version__,
        time=loop.clock.time(),
        findings=found[:MOST],
        gpus=gpus,
        figures=list(shortage.figures),
        silent=[
            SilentSource(source=s.source, where=_where(s, labels), since=s.since, why=s.why)
            for s in silent
        ],
        audit=[check for check in checks if check.status == "failed"],
        audited=sum(check.status != "unknown" for check in checks),
    )


def _does(advice: Advice, waits_for: Collection[str], reason: str | None) -> str:
    """What a GPU does, where it waits for another or is waited for."""
    if reason is not None:
        return f"waited for: {REASONS[reason]}"
    if waits_for and advice in (ADVICE["straggler"], ADVICE["stalled_collective"]):
        verb = "hanging: waits" if advice.urgency == "now" else "waiting"
        return f"{verb} for {counted(waits_for)}"
    return advice.does


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
        word for run in runs for word in ([f"{run[0]}–{run[-1]}"] if len(run) > 2 else run)
    ]
    several = "s" if len(ordered) > 1 else ""
    last = f" and {words[-1]}" if len(words) > 1 else ""
    return f"GPU{several} {', '.join(words[:-1] or words)}{last}"


def _lost(lost: dict[At, Silent], labels: dict[At, str]) -> Iterator[Finding]:
    for at, one in lost.items():
        yield Finding(
            urgency="now",
            title=f"GPU {labels[at]} does not answer",
            remedy=LOST.remedy,
            detail=one.why,
            gpus=[labels[at]],
        )


def _waits(known: Known) -> Iterator[Finding]:
    """Who waits for whom, where this node knows."""
    waiting: dict[tuple[tuple[At, str], ...], list[At]] = {}
    for at in known.labels:
        found = known.judged.get(at)
        late = tuple((w.at, w.reason) for w in found.waits_for) if found else ()
        if late and found and found.cause in ("straggler", "stalled_collective"):
            waiting.setdefault(late, []).append(at)
    for late, members in waiting.items():
        causes = {known.judged[at].cause for at in members}
        advice = OF_REASONS[late[0][1]]
        stalls = "stalled_collective" in causes and advice.urgency != "note"
        awaited = [known.labels[at] for at, _ in late if at in known.labels]
        who = counted(known.labels[at] for at in members)
        verb = ("hang: they wait" if len(members) > 1 else "hangs: it waits") if stalls else (
            "wait" if len(members) > 1 else "waits"
        )
        pids = [pid for at, _ in late for pid in known.pids.get(at, ())]
        yield Finding(
            urgency="now" if stalls else advice.urgency,
            title=f"{who} {verb} for {counted(awaited)}, {advice.does}",
            remedy=_with_pid(advice.remedy, pids),
            evidence=list(known.judged[members[0]].evidence),
            gpus=[*awaited, *(known.labels[at] for at in members)],
        )


def _causes(known: Known, gpus: Iterable[GpuNow]) -> Iterator[Finding]:
    """What holds GPUs up, one finding for all that one cause does; not who waits for whom."""
    told = {late.at for found in known.judged.values() for late in found.waits_for}
    groups: dict[str, list[GpuNow]] = {}
    for now in gpus:
        explained = now.waits_for and now.cause in ("straggler", "stalled_collective")
        if now.urgency != "fine" and now.states and not explained:
            if (now.gpu, now.uuid) not in told or now.urgency == "note":
                groups.setdefault(now.does, []).append(now)
    for does, members in groups.items():
        first = max(members, key=lambda now: now.share or 0.0)
        verb = "are" if len(members) > 1 else "is"
        pids = [pid for now in members for pid in now.pids]
        pattern = ADVICE[first.cause].remedy if first.cause in ADVICE else ""
        yield Finding(
            urgency=first.urgency,
            title=f"{counted(now.label for now in members)} {verb} {does}",
            remedy=_with_pid(pattern, pids) if pattern else first.remedy,
            evidence=first.evidence,
            gpus=[now.label for now in members],
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
            title=f"The node is short: {'; '.join(map(_short, short))}",
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


def _finders(silent: Iterable[Silent], gpus: Collection[At]) -> Iterator[Finding]:
    for one in silent:
        if one.source == "gpu" and not one.place.gpu:
            yield Finding(
                urgency="now",
                title="No GPU is seen on this node",
                remedy="Is this a GPU node? Then run `nvidia-smi` on it, and check that gpunode may "
                "load the driver's library: `gpunode audit`.",
                detail=one.why,
            )
            return
    if not gpus:
        yield Finding(
            urgency="note",
            title="No GPU has been seen yet",
            remedy="gpunode looks for GPUs every few seconds, and opens a window on each it finds.",
        )


def _where(silent: Silent, labels: dict[At, str]) -> str:
    place = silent.place
    if place.gpu:
        return f"GPU {labels.get((place.gpu, place.uuid), place.gpu)}"
    return place.mountpoint or "node"
