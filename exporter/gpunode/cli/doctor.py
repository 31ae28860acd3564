"""``gpunode doctor``: which sources give data on this node now, and what each of the others takes.

Every source is read as the daemon does it, a few times and each in a thread of its own. What it
takes stands with each source. What the sources met and did not understand comes after them, with
what a running daemon has met before.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import httpx2

from gpunode.cli import rights
from gpunode.cli.daemon import DaemonError, read_answer
from gpunode.cli.platforms import chart_limits, chart_values
from gpunode.cli.settings.doctor import DoctorSettings
from gpunode.config.daemon import (
    ClientSettings,
    GpuSettings,
    HostSettings,
    KubernetesSettings,
    Settings,
)
from gpunode.config.path import PathSettings
from gpunode.config.web import ListenSettings
from gpunode.export.web.node import GpuNow, NodeNow
from gpunode.helper import capability
from gpunode.host.own_process import OwnProcess
from gpunode.jobs.steps import TrainingSteps
from gpunode.loop import Loop
from gpunode.loop.search import Search
from gpunode.loop.watch import Watch
from gpunode.node.node import Node
from gpunode.report.fetch import IncompleteAnswer, fetched
from gpunode.source import Met
from gpunode.sources import KINDS, SourceClass, finders
from gpunode.text import escaped, lasting
from gpunode.verdict.findings import status

EXAMINATION_TIMEOUT = 12.0
"""Seconds to wait for the first reads; what hangs never answers."""

SECOND_READ_AFTER = 3.0
"""Seconds to go on, because some numbers come from two reads."""

CAPABILITY = re.compile("|".join(capability.ALL))

MAX_NAME = 200
"""Characters of a rank and its owners."""

NO_ANSWER = "no answer in time"

INTERVAL = 1.0
"""Seconds between the reads, where the daemon may take longer."""

MAX_ANSWER_BYTES = 1 << 20
"""Bytes of the readings that a daemon did not understand."""

GPULESS_MESSAGES = re.compile(
    rb'^gpunode_client_messages_total\{result="no_gpu"\} (\d+)', re.MULTILINE
)

TIMEOUT = 2.0
"""Seconds that a daemon has for an answer."""

NODES_PROCESSES = "pid:[4026531836]"
"""The PID namespace of the node: PROC_PID_INIT_INO in include/linux/proc_ns.h."""

Status = Literal["data", "nothing", "failed", "untried"]
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class SourceHealth:
    """How a source does at all its places, such as GPUs and mounts, taken together."""

    source: str
    status: Status
    """``failed`` if it fails at any place."""

    places: int
    failed: int
    """Places at which it fails."""

    empty: int
    """Places at which it has nothing to say."""

    series: int
    metrics: int
    """How many it has at best."""

    why: str
    """The first failure, or why it was not read."""

    missing: tuple[str, ...]
    """The metrics that it gives at no place."""

    needs: str
    """What it takes to have data, or the rest of it if that is a capability; else empty."""

    also: tuple[str, ...] = ()
    """The sources that are absent for the same reason."""


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found about every source, with which rights, and whether a daemon answers."""

    process: str
    daemon: str
    sources: tuple[SourceHealth, ...]
    unread: tuple[Met, ...]
    """What the sources met now and did not understand, and what a daemon did before."""

    reporting: tuple[str, ...] = ()
    """Who reports training to the daemon by ``gpunode.client``, a line for each GPU."""

    less_accurate: tuple[str, ...] = ()
    """The GPUs whose ledger uses another model's ceilings, in a sentence each."""

    chart: Mapping[str, str] = field(default_factory=dict)
    """The values that the Helm chart needs on this node; none where it is not known."""

    chart_limits: tuple[str, ...] = ()
    """What the Helm chart cannot do on this node, in a sentence each."""


def examine(
    node: Node, settings: DoctorSettings, patience: float = EXAMINATION_TIMEOUT
) -> Examination:
    """Read every source of a node for some seconds; ``patience`` is for its GPU drivers."""
    quick = Settings.model_construct(
        node=settings.node,
        gpu=GpuSettings(processes_interval=INTERVAL, owners_interval=INTERVAL),
        host=HostSettings(interval=INTERVAL, nccl_bench_folder=settings.host.nccl_bench_folder),
        kubernetes=KubernetesSettings(
            pod_resources_socket=settings.kubernetes.pod_resources_socket
        ),
        slurm=settings.slurm,
        client=ClientSettings(socket=""),  # it belongs to the daemon, and is not taken away
        compat=settings.compat,
    )
    found = [each for each in finders(node, quick) if not isinstance(each, OwnProcess)]
    loop = Loop(node.clock, found, find_every=quick.discovery.interval)
    loop.start()
    begin = time.monotonic()
    while not loop.ready:
        looking = any(search.found is None for search in loop.searches)
        if time.monotonic() - begin > (patience if looking else EXAMINATION_TIMEOUT):
            break
        time.sleep(0.05)
    time.sleep(SECOND_READ_AFTER)
    loop.stop()
    told, met, reporting = daemon(settings.web)
    unread = {(one.source, one.what): one for one in (*loop.unread(), *met)}
    return Examination(
        process(settings.path, _helpers(node)),
        told,
        tuple(_findings(loop)),
        tuple(unread.values()),
        reporting,
        tuple(_accuracy_notes(loop)),
        chart_values(node),
        tuple(chart_limits(node)),
    )


def _helpers(node: Node) -> tuple[str, ...]:
    """The helpers that answer; none if one does not, which its source tells."""
    try:
        return tuple(node.helpers())
    except OSError:
        return ()


def process(path: PathSettings, helpers: tuple[str, ...] = ()) -> str:
    """Who this program is, who helps it, and what it sees as the node, in words."""
    held = ", ".join(rights.permitted_capabilities()) or "no capability"
    if helpers:
        held += f" and the helpers {', '.join(helpers)}"
    root = path.rootfs
    said = f"as user {os.geteuid()} with {held}, the node's root at {root}"
    if str(root) == "/" and _namespace() not in (NODES_PROCESSES, ""):
        said += (
            "; in a container, which shows its own processes, mounts and network as the node's: "
            "mount the node's root and set path.rootfs"
        )
    return said


def _namespace() -> str:
    """The PID namespace of this program, empty if unknown."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def daemon(web: ListenSettings) -> tuple[str, list[Met], tuple[str, ...]]:
    """Whether a daemon answers at the address in the settings, what it met, and who reports to it.

    The latter two are empty where it lets only those in who are known.
    """
    host, port = web.address
    url = f"http://{_reachable(host)}:{port}"
    try:
        said = _fetch(f"{url}/healthz")
    except (httpx2.ProtocolError, httpx2.DecodingError):
        said = b""
    except (httpx2.HTTPError, IncompleteAnswer, OSError) as error:
        why = escaped(str(error) or type(error).__name__, MAX_NAME)
        return f"no daemon answers at {url}: {why}", [], ()
    if said != b"ok\n":
        return f"another program, or a daemon with TLS, answers at {url}", [], ()
    met = _fetch_json(f"{url}/api/v1/unread", list[Met]) or []
    return f"a daemon answers at {url}", met, _reporting(url)


def _fetch(url: str) -> bytes:
    """What a daemon answers; empty if that is no page.

    Raises ``IncompleteAnswer``, the library's ``HTTPError``, and ``OSError``.
    """
    with httpx2.Client(trust_env=False) as client:  # no proxy leads to this machine
        answer, body = fetched(client, "GET", url, timeout=TIMEOUT, largest=MAX_ANSWER_BYTES)
    return body if answer.is_success else b""


def _fetch_json(url: str, kind: type[K]) -> K | None:
    """What a daemon tells, fit to show: anybody may listen at its port. None if it does not."""
    try:
        return read_answer(_fetch(url), kind)
    except (httpx2.HTTPError, IncompleteAnswer, OSError, DaemonError):
        return None


def _reporting(url: str) -> tuple[str, ...]:
    """Who reports training to a daemon, in lines; empty if it does not tell or nobody trains."""
    now = _fetch_json(f"{url}/api/v1/node", NodeNow)
    if now is None:
        return ()
    left_out = _gpuless_messages(url)
    if not any(gpu.pids for gpu in now.gpus):
        return left_out
    reports = tuple(
        f"GPU {gpu.label}: {_job(gpu)}, last step {lasting(max(0.0, now.time - gpu.last_step))} ago"
        for gpu in now.gpus
        if gpu.last_step is not None
    )
    none = ("no process on a GPU reports its steps by gpunode.client",)
    return (reports or none) + left_out


def _gpuless_messages(url: str) -> tuple[str, ...]:
    """That a daemon hears processes of which it counts nothing."""
    try:
        found = GPULESS_MESSAGES.search(_fetch(f"{url}/metrics"))
    except (httpx2.HTTPError, IncompleteAnswer, OSError):
        return ()
    times = float(found[1]) if found else 0.0
    return (f"{times:.0f} messages came from processes without a GPU",) if times else ()


def _job(gpu: GpuNow) -> str:
    """The rank and job on a GPU, as far as they are known."""
    ranks = f"rank {', '.join(gpu.ranks)}" if gpu.ranks else "a process"
    owners = f" of {' and '.join(gpu.owners)}" if gpu.owners else ""
    return escaped(f"{ranks}{owners}", MAX_NAME)


def _reachable(host: str) -> str:
    """An address of this machine at which a server listens; one that listens at all is at one."""
    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"[{host}]" if ":" in host else host


def _accuracy_notes(loop: Loop) -> Iterator[str]:
    """The GPUs whose ledger uses another model's ceilings."""
    for gpu in status(loop).gpus:
        if gpu.less_accurate:
            yield f"GPU {gpu.label}: {gpu.model or 'unknown model'}: {gpu.less_accurate}"


def _findings(loop: Loop) -> Iterator[SourceHealth]:
    """The findings of all sources; once for those that a finder does not find."""
    searches = {search.finder.name: search for search in loop.searches}
    for finder, found in KINDS.items():
        search, kinds = searches[finder.name], [kind for kind in found if kind.metrics]
        if search.found:
            for kind in kinds:
                watches = [w for (name, _), w in loop.watches.items() if name == kind.name]
                yield _finding(kind, watches)
        else:
            also = tuple(kind.name for kind in kinds if kind is not finder)
            yield _absent(finder, search, also)


def _absent(finder: SourceClass, search: Search, also: tuple[str, ...]) -> SourceHealth:
    status: Status = "failed" if search.absent or search.found is None else "nothing"
    why = search.absent or ("" if search.found is not None else NO_ANSWER)
    if finder is TrainingSteps:
        status, why = "untried", "only one program can listen at its socket: the daemon"
    missing = tuple(metric.name for metric in finder.metrics)
    return SourceHealth(
        finder.name, status, 0, 0, 0, 0, len(missing), why, missing, finder.needs, also
    )


def _finding(kind: SourceClass, watches: list[Watch]) -> SourceHealth:
    failures = [why for watch in watches if (why := _failure(watch))]
    samples = [s for watch in watches if watch.batch for s in watch.batch.reading.samples]
    given = {sample.metric for sample in samples}
    missing = tuple(metric.name for metric in kind.metrics if metric not in given)
    status: Status = "failed" if failures else "data" if samples else "nothing"
    first = failures[0] if failures else ""
    empty = sum(not (w.batch and w.batch.reading.samples) for w in watches) - len(failures)
    lacks = not set(rights.permitted_capabilities()) >= set(CAPABILITY.findall(kind.needs))
    return SourceHealth(
        source=kind.name,
        status=status,
        places=len(watches),
        failed=len(failures),
        empty=empty,
        series=len(samples),
        metrics=len(kind.metrics),
        why=first,
        missing=missing,
        needs=kind.needs if status != "data" or empty or (missing and lacks) else "",
    )


def _failure(watch: Watch) -> str:
    """Why a source has no batch, if that is a failure."""
    if watch.batch is None and watch.reading:
        return NO_ANSWER
    return watch.failure
