"""The node now, in words, as JSON: what the node page and ``gpunode top`` show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, Field

from gpunode import __version__
from gpunode.audit.source import AuditResults, Result
from gpunode.gpu.activity import BLOCKED_STREAK, MEMORY_TOTAL, MEMORY_USED, TEMPERATURE, UTILIZATION
from gpunode.incidents.history import History
from gpunode.jobs.steps import LAST_STEP
from gpunode.loop import Loop
from gpunode.loop.playing import Playing
from gpunode.serving.requests import ServerLoad, ServerLoads
from gpunode.source import Key, Met, SilentPlace
from gpunode.verdict.case import Evidence
from gpunode.verdict.causes import NONE
from gpunode.verdict.causes.cause import BOUND
from gpunode.verdict.facts import At
from gpunode.verdict.findings import STATE_GUIDANCE, Finding, GpuStatus, status
from gpunode.verdict.guidance import Urgency
from gpunode.verdict.shortages import NodeFigure

GAUGES = {
    MEMORY_USED: "memory_used_bytes",
    MEMORY_TOTAL: "memory_size_bytes",
    TEMPERATURE: "temperature_celsius",
    UTILIZATION: "utilization_ratio",
    LAST_STEP: "last_step",
}
"""The fields of a GPU that are the values of gauges."""


class GpuNow(BaseModel):
    """One GPU or MIG instance now; what was not read is null."""

    gpu: str
    uuid: str
    label: str = Field(description="the index; of a MIG instance with a number of its own")
    name: str = ""
    instance: bool = Field(False, description="whether it is a MIG instance, a part of a GPU")
    urgency: Urgency
    does: str = Field(description="what it does, in a few words that follow its name")
    remedy: str
    lasts_seconds: float | None = Field(
        None, description="for how long it has done that, or has held up others"
    )
    lasts_longer: bool = Field(
        False, description="whether it did so before what is kept of the last hour began"
    )
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
    last_step: float | None = Field(
        None,
        description="when the last training step ended, as the training reports by gpunode.client, "
        "in seconds since the epoch",
    )
    workload: str | None = None
    serves: str = Field(
        "", description="what its inference engine has to do, in a few words, as the engine tells"
    )
    owners: list[str] = []
    ranks: list[str] = []
    pids: list[str] = []
    waits_for: list[str] = Field([], description="GPUs by `label`")
    waited_for_by: list[str] = Field([], description="GPUs by `label`")
    less_accurate: str = Field(
        "", description="why the ledger is less accurate than on models that were measured"
    )


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
    playing: Playing | None = Field(
        None, description="the tape of which this is, and not of a node now"
    )
    calm: str = Field(description="what comes first where nothing presses, else empty")
    findings: list[Finding]
    gpus: list[GpuNow]
    figures: list[NodeFigure]
    silent: list[SilentSource]
    unread: list[Met] = Field(
        description="what was met in the last hour and is not understood, or left out"
    )
    audit: list[Result] = Field(description="the checks that failed")
    audited: int = Field(description="the checks that could be decided")


def node(loop: Loop) -> NodeNow:
    """The node as it was last read."""
    now = status(loop)
    values = {key: value for key, (value, _) in loop.values(GAUGES).items()}
    labels = {gpu.at: gpu.label for gpu in now.gpus}
    serves = dict(_serves(loop, labels))
    lasts = _durations(loop, now.gpus)
    checks = [check for one in loop.details(AuditResults) for check in one.detail.checks]
    return NodeNow(
        node=now.node,
        version=__version__,
        time=loop.clock.time(),
        playing=next((one.detail for one in loop.details(Playing)), None),
        calm=now.calm,
        findings=list(now.findings),
        gpus=[_gpu(gpu, values, serves.get(gpu.at, ""), lasts.get(gpu.label)) for gpu in now.gpus],
        figures=list(now.figures),
        silent=[
            SilentSource(
                source=one.source, where=_place_text(one, labels), since=one.since, why=one.why
            )
            for one in now.silent
        ],
        unread=list(now.unread),
        audit=[check for check in checks if check.status == "failed"],
        audited=sum(check.status != "unknown" for check in checks),
    )


def _serves(loop: Loop, labels: dict[At, str]) -> Iterator[tuple[At, str]]:
    """What the servers on GPUs have to do; the GPUs of one beside its first name that."""
    servers = [server for one in loop.details(ServerLoads) for server in one.detail.servers]
    words: dict[At, list[str]] = {}
    for server in servers:
        first, *others = server.gpus
        words.setdefault(first, []).append(_server_text(server))
        for other in others:
            beside = f"with GPU {labels.get(first, first[0])}"
            words.setdefault(other, [])
            if beside not in words[other]:
                words[other].append(beside)
    for at, said in words.items():
        yield at, "; ".join(said)


def _server_text(server: ServerLoad) -> str:
    """What one server has to do: ``8 requests run, 3 wait, 1,240 tokens/s (llama, vllm)``."""
    told = []
    if server.running is not None:
        told.append(f"{server.running:,.0f} request{'' if server.running == 1 else 's'} run")
    if server.waiting is not None:
        told.append(f"{server.waiting:,.0f} wait")
    if server.tokens_per_second is not None:
        told.append(f"{server.tokens_per_second:,.0f} tokens/s")
    name = ", ".join(filter(None, (server.model, server.engine)))
    return f"{', '.join(told)} ({name})" if told else name


@dataclass(frozen=True, order=True, slots=True)
class Lasting:
    """For how long something has lasted, and whether it may have lasted longer."""

    seconds: float
    longer: bool = False


def _durations(loop: Loop, gpus: Sequence[GpuStatus]) -> dict[str, Lasting]:
    """For how long each GPU has done what it does, by label; where that is known.

    What is waited for has lasted as long as the longest wait for it, whatever its own cause.
    """
    history = next((one.detail for one in loop.details(History)), History())
    own = {gpu.label: _own_duration(gpu, history, loop.clock.time()) for gpu in gpus}
    found = {
        gpu.label: max(filter(None, (own[label] for label in gpu.waited_for_by)), default=None)
        if gpu.waited_for_by
        else own[gpu.label]
        for gpu in gpus
    }
    return {label: lasts for label, lasts in found.items() if lasts is not None}


def _own_duration(gpu: GpuStatus, history: History, now: float) -> Lasting | None:
    """For how long a GPU has done what it does, whoever waits for it."""
    verdict, window = gpu.verdict, gpu.window
    cause, state = None, ""
    if window is not None:  # it answers
        if verdict is None:
            return None
        for one in verdict.evidence:
            if one.series.startswith(f"{BLOCKED_STREAK.name}{{"):
                return Lasting(one.value)  # to the second, and beyond the hour
        cause = verdict.cause
        if cause == NONE.name:
            state = next((one for one in STATE_GUIDANCE if window.state.get(one, 0.0) >= BOUND), "")
            if not state:
                return None
    began = history.began(gpu.at, cause, state)
    return None if began is None else Lasting(now - began[0], began[1])


def _gpu(now: GpuStatus, values: dict[Key, float], serves: str, lasts: Lasting | None) -> GpuNow:
    window, verdict = now.window, now.verdict
    gauges = {field: values.get((metric, now.at)) for metric, field in GAUGES.items()}
    return GpuNow(
        gpu=now.at[0],
        uuid=now.at[1],
        label=now.label,
        name=now.model,
        instance=now.instance,
        urgency=now.urgency,
        does=now.does,
        remedy=now.remedy,
        lasts_seconds=lasts.seconds if lasts else None,
        lasts_longer=lasts.longer if lasts else False,
        cause=verdict.cause if verdict else None,
        share=verdict.share if verdict else None,
        evidence=list(verdict.evidence) if verdict else [],
        states={state: share for state, share in window.state.items() if share} if window else {},
        power_watts=window.power_watts if window else None,
        power_limit_watts=window.power_limit_watts if window else None,
        step_period_seconds=window.step_period_seconds if window else None,
        workload=verdict.workload.kind if verdict and now.processes else None,
        serves=serves,
        owners=list(now.owners),
        ranks=sorted((process.rank for process in now.processes if process.rank), key=int),
        pids=list(dict.fromkeys(process.pid for process in now.processes)),
        waits_for=list(now.waits_for),
        waited_for_by=list(now.waited_for_by),
        less_accurate=now.less_accurate,
        **gauges,
    )


def _place_text(silent: SilentPlace, labels: dict[At, str]) -> str:
    place = silent.place
    if place.gpu:
        return f"GPU {labels.get((place.gpu, place.uuid), place.gpu)}"
    return place.mountpoint or "node"
