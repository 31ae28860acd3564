"""``gpunode advise``: reads what a daemon, a file or Prometheus has; says what is to be done."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing

from pydantic import BaseModel

from gpunode.advice import harm
from gpunode.advice.faults import FLEET_FAULT
from gpunode.advice.formats import FORMATS
from gpunode.advice.node import NodeAdvice, advice
from gpunode.advice.series import NodeSeries, SeriesSample, by_node, parsed
from gpunode.cli import streams
from gpunode.cli.daemon import MAX_ANSWER_BYTES, DaemonAddress, DaemonError, read_answer
from gpunode.cli.extras import needing
from gpunode.cli.settings.admission import is_here
from gpunode.cli.settings.advise import AdviseSettings
from gpunode.faults.fault import AdvisedAction
from gpunode.faults.source import START
from gpunode.gpu import health, nvlink
from gpunode.gpu.activity import PROCESSES
from gpunode.host.drained import DRAINED
from gpunode.jobs.owners import ALLOCATED, OWNER, OWNER_LABELS, PROCESS
from gpunode.mistake import UsageError
from gpunode.text import printable

ANSWER_TIMEOUT = 10.0
"""Seconds for an answer of the daemon: whoever asks each minute is not to wait for longer."""

GZIP = b"\x1f\x8b"
ASKED = (
    *(metric.name for metric in (health.INFO, nvlink.NVLINK_UP, OWNER, PROCESS, ALLOCATED)),
    *(DRAINED.name, PROCESSES.name, START.name),
)
"""What is asked of Prometheus, beside the alert about many nodes and whether nodes are up."""

HELD_SINCE = "1d"
"""How far back an owner is looked for; who was there at its beginning may have been before."""


def advise(settings: AdviseSettings) -> None:
    """Print the advice."""
    found = ask(settings)
    with streams.printing():
        print(FORMATS[settings.format](found, not settings.fleet), end="")
    if any(one.unfit for one in found):
        sys.exit(1)


def ask(settings: AdviseSettings) -> list[NodeAdvice]:
    """The advice for this node; with ``fleet``, for each node that has a fault."""
    if settings.fleet:
        if settings.file:
            raise UsageError("file: holds the series of one node; leave out fleet")
        return _fleet(settings)
    for asked in ("nodes", "cluster"):
        if getattr(settings, asked):
            raise UsageError(f"{asked}: chooses among those of a fleet; add --fleet")
    text = _file(settings.file) if settings.file else _daemon(settings)
    try:
        series = parsed(text)
    except ValueError as error:
        said = printable(str(error), 100)
        raise UsageError(f"{settings.file or 'the daemon'}: no /metrics: {said}") from error
    if not any(one.name.startswith("gpunode_") for one in series):
        raise UsageError(f"{settings.file or settings.address}: no series of gpunode")
    at = time.time() if settings.at is None else settings.at
    return [advice(NodeSeries(_name(settings), at, series))]


class _NodeIdentity(BaseModel):
    """What a daemon says of the node that its metrics are of."""

    node: str
    playing: object = None
    """The tape that it plays, of whatever node."""


def _name(settings: AdviseSettings) -> str:
    """What the node is called; nothing where the format does not say it."""
    if settings.web.node_name or settings.format == "slurm-reason":
        return settings.web.node_name
    if settings.file:
        raise UsageError(f"{settings.file}: does not say of which node it is: add --web.node-name")
    server = DaemonAddress.of(settings)
    try:
        found = read_answer(server.get("/api/v1/node", ANSWER_TIMEOUT), _NodeIdentity)
    except DaemonError:
        found = _NodeIdentity(node="")
    if found.node:
        return found.node
    if found.playing is None and (not settings.url or is_here(settings.url)):
        return socket.gethostname()
    raise UsageError(f"{server.url}: does not say what its node is called: add --web.node-name")


def _file(name: str) -> str:
    """A saved exposition."""
    try:
        content = streams.content_of(name, MAX_ANSWER_BYTES)
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror}") from error
    if content.startswith(GZIP):
        raise UsageError(
            f"{name}: looks like a tape; give what it comes to: `gpunode replay {name} --speed=0 "
            "--print=metrics | gpunode advise --file=- --web.node-name=NODE`"
        )
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: no /metrics: not UTF-8") from error


def _daemon(settings: AdviseSettings) -> str:
    """What the daemon of this node serves."""
    server = DaemonAddress.of(settings)
    try:
        return server.get("/metrics", ANSWER_TIMEOUT).decode(errors="replace")
    except DaemonError as error:
        raise UsageError(f"{server.url}/metrics: {error}") from error


def _fleet(settings: AdviseSettings) -> list[NodeAdvice]:
    """The advice for the nodes that Prometheus scrapes, without those that are well."""
    with needing("report", "advise --fleet"):
        from gpunode.cli.report import secrets
        from gpunode.report.prometheus import Prometheus, quote
    now = int(time.time() if settings.at is None else settings.at)
    chosen = f'instance=~"{quote(settings.nodes)}"' if settings.nodes else 'instance!=""'
    if settings.cluster:
        chosen += f',cluster="{quote(settings.cluster)}"'
    with closing(Prometheus(settings.prometheus, secrets(settings.prometheus))) as server:

        def of(expression: str) -> list[SeriesSample]:
            found = server.at(expression, now)
            return [
                SeriesSample(labels.get("__name__", ""), labels, value) for labels, value in found
            ]

        found = of(f'up{{job=~".*gpunode.*",{chosen}}}')
        if not found:
            raise UsageError(f"{server.url}: it scrapes no such node; is job like gpunode?")
        found += of(f'{{__name__=~"{"|".join(ASKED)}",{chosen}}}')
        shared = of(f'ALERTS{{alertstate="firing",alertname="{FLEET_FAULT}"}}')

        def since(node: NodeSeries) -> dict[harm.Owned, float]:
            """When each owner was first seen to hold a GPU of a node."""
            where = f'cluster="{quote(node.cluster)}",instance="{quote(node.node)}"'
            labels = ", ".join(OWNER_LABELS)
            return harm.owners(
                of(
                    f"min by ({labels}) (min_over_time(timestamp({OWNER.name}{{{where}}})"
                    f"[{HELD_SINCE}:5m]))"
                )
            )

        every = [_advise(node, shared, since) for node in by_node(found, float(now))]
    told = [said for said in every if said.faults or said.not_known]
    clusters = sorted({said.cluster for said in told})
    if settings.format != "json" and len(clusters) > 1:
        raise UsageError(
            f"{settings.format}: has no place for a cluster, and these nodes are of "
            f"{' and '.join(clusters)}: choose one with --cluster"
        )
    return told


def _advise(
    node: NodeSeries,
    shared: Collection[SeriesSample],
    since: Callable[[NodeSeries], Mapping[harm.Owned, float]],
) -> NodeAdvice:
    """The advice for a node of a fleet; since when it is held is asked where anybody is harmed."""
    of_cluster = (one for one in shared if one.label("cluster") == node.cluster)
    fleet_parts = {one.label("fault").removesuffix("_missing") for one in of_cluster}
    said = advice(node, fleet_parts)
    if said.action > AdvisedAction.LEAVE:
        return advice(node, fleet_parts, since(node))
    return said
