"""A fleet as one exporter that shows what each of its nodes does: four of eight GPUs are a job.

What a node shows is a tape, played beforehand and kept every 30 s, with GPUs of its own, and what
a tape has not. Prometheus tells the nodes apart by a parameter of the scrape.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator
from functools import cache
from urllib.parse import parse_qs, urlparse

from gpunode.cli.settings.run import RunSettings
from gpunode.export.exposition import Exposition
from gpunode.node.tape import TapeNode
from gpunode.recorded import INCIDENTS as TAPES
from gpunode.sources import watch
from tests.dashboards.examples import TRAINING, is_counter, known_labels
from tests.dashboards.promtool import with_labels
from tests.dashboards.queries import filled
from tests.prometheus.incidents import INCIDENTS, ROOT

SCRAPE = 30
NODES_OF_JOB = 4
BROKEN = 50
"""One node in so many has a fault, where the fleet is whole."""

EXPOSITIONS = 40
"""Expositions of each tape: twenty minutes."""

OWNER = (
    'gpunode_gpu_owner_info{{gpu="{gpu}",uuid="GPU-{of_two}-{node}-{copy}",'
    'owner_namespace="team-{team}",owner_pod="train-{job}-worker-{node}",'
    'owner_container="main",slurm_job="",user="",via="kubelet",'
    'workload="train-{job}",replica=""}} 1'
)
"""Four jobs in a namespace."""

TWO_GPUS = {
    name: raises
    for name, raises in INCIDENTS.items()
    if name == "h200_hang" or not name.startswith("h200_")
}
QUIET = [name for name, raises in TWO_GPUS.items() if not raises]
TROUBLED = [name for name, raises in TWO_GPUS.items() if raises]
"""What nodes in trouble live through."""


@cache
def expositions(tape: str, seconds: int = EXPOSITIONS * SCRAPE, every: int = SCRAPE) -> list[str]:
    """What a node that lives through a tape over and over shows, every so many seconds."""
    node = TapeNode(TAPES / f"{tape}.jsonl.gz")
    settings = RunSettings(_cli_parse_args=["--client.socket="])
    loop = watch(node, settings)
    exposition = Exposition(loop.samples)
    kept: list[str] = []
    for moment in loop.replay(node.clock, seconds):
        if moment >= (len(kept) + 1) * every:
            kept.append(exposition.encode("")[0].decode())
    return kept


LEFT_OUT = ("#", "gpunode_gpu_owner_info")
"""What tells whose the GPUs of a tape were."""

OF_GPU = re.compile(r'\bgpu="(\d+)"')


def _lines(text: str, left_out: tuple[str, ...] = LEFT_OUT) -> tuple[list[str], list[str]]:
    """The lines of a node, and those of its GPUs."""
    lines = [line for line in text.splitlines() if not line.startswith(left_out)]
    others: list[str] = []
    gpus: list[str] = []
    for line in lines:
        (gpus if 'gpu="' in line and 'gpu=""' not in line else others).append(line)
    return others, gpus


def _anywhere(line: str) -> str:
    """A line about a GPU as a pattern for any."""
    for label, mark in (("gpu", "@G@"), ("uuid", "@GPU@"), ("bus_id", "@BUS@")):
        line = re.sub(rf'\b{label}="[^"]*"', f'{label}="{mark}"', line)
    return line


def parts(text: str) -> tuple[str, dict[int, str]]:
    """The lines of the node, and those of each of its GPUs as a pattern for any."""
    others, gpus = _lines(text, (*LEFT_OUT, "gpunode_gpu_process_info"))
    of_gpus: dict[int, list[str]] = {}
    for line in gpus:
        if found := OF_GPU.search(line):
            of_gpus.setdefault(int(found[1]), []).append(_anywhere(line))
    return "\n".join(others), {gpu: "\n".join(lines) for gpu, lines in of_gpus.items()}


def eight(text: str, left_out: tuple[str, ...] = LEFT_OUT) -> tuple[str, str]:
    """The lines of the node, and those of its two GPUs as a pattern for eight, without owners."""
    others, gpus = _lines(text, left_out)
    pattern = "\n".join(
        re.sub(r'gpu="(\d+)"(.*)uuid="[^"]*"', r'gpu="@\1@"\2uuid="GPU-\1-@U@"', line)
        for line in gpus
    )
    return "\n".join(others), pattern


METRIC = re.compile(r"^\w+", re.MULTILINE)
GOLDEN = ROOT / "tests/machines/h200/golden"
SOURCES = (
    *("cpu", "disk", "filefd", "filesystem", "memory"),
    *("network", "pressure", "round_trips", "shm"),
)
"""The sources of a host whose series a server with GPUs shows."""

OF_JOBS = ("job_processes",)
"""The sources of what a job does on the host: on a tape, nobody could look at its processes."""

FAULTS = (
    *("gpunode_gpu_ecc_", "gpunode_gpu_row_", "gpunode_gpu_waited_for"),
    *("gpunode_infiniband_errors", "gpunode_infiniband_congestion"),
)
"""Of the training node, what is broken."""

REPLACED = ("gpunode_gpu_process_info", "gpunode_gpu_workload")
"""What a tape has of processes that nobody holds. A job says its ranks, and that it trains."""


@cache
def _golden(sources: tuple[str, ...]) -> tuple[tuple[str, str, float], ...]:
    """What these sources of a server show: metrics, series and values, for any of its GPUs."""
    golden = "".join((GOLDEN / f"{name}.txt").read_text() for name in sources)
    shown = (line for line in golden.splitlines() if line and not line.startswith("#"))
    lines = (_anywhere(line).rpartition(" ") for line in shown)
    return tuple((METRIC.findall(line)[0], line, float(value)) for line, _, value in lines)


def _of_server(sources: tuple[str, ...], has: Collection[str], seconds: float) -> Iterator[str]:
    for metric, line, value in _golden(sources):
        if metric not in has:
            yield f"{line} {value + seconds * _gains(metric)}"


def _gains(metric: str) -> float:
    """What a series of a host gains a second: bytes, a little time, and nothing that is a fault."""
    if metric.endswith("_bytes_total") and "swap" not in metric:
        return 1e6
    return 0.01 if metric.endswith("_seconds_total") else 0.0


def beside_node(shown: str, seconds: float, *, broken: bool = False) -> str:
    """What a node of a training job may have of its host, and a tape has not.

    A dashboard is measured with what fills it; an empty answer costs nothing.
    """
    has = set(METRIC.findall(shown))
    training = "\n".join(_of_training(has, seconds, broken, of_gpus=False))
    has |= set(METRIC.findall(training))
    return "\n".join([training, *_of_server(SOURCES, has, seconds)])


def beside_gpus(shown: str, seconds: float, *, broken: bool = False) -> str:
    """What a training job may tell of each of its GPUs, and a tape has not, as a pattern."""
    has = set(METRIC.findall(shown))
    training = "\n".join(_of_training(has, seconds, broken, of_gpus=True))
    has |= set(METRIC.findall(training))
    return "\n".join([training, *_of_server(OF_JOBS, has, seconds)])


def _of_training(
    has: Collection[str], seconds: float, broken: bool, *, of_gpus: bool
) -> Iterator[str]:
    for one, value in TRAINING.items():
        known = set(known_labels(one.metric))
        if ({"gpu", "uuid"} <= known) != of_gpus:
            continue
        if one.metric in has:
            continue
        if one.metric.startswith(("kube_", "gpunode_gpu_owner_info")):
            continue
        if one.metric.startswith(FAULTS) and not broken:
            if not is_counter(one.metric):
                continue
            value = 0.0
        labels = dict(one.labels)
        if of_gpus:
            labels |= {"gpu": "@G@", "uuid": "@GPU@"}
        if "owner_pod" in known:
            labels |= {"owner_pod": "@POD@", "owner_namespace": "@TEAM@", "rank": "@RANK@"}
        labels = {name: text for name, text in labels.items() if name in known}
        now = value * (seconds if is_counter(one.metric) else 1.0)
        yield f"{with_labels(one.metric, labels)} {now}"


class Fleet:
    """Serves every node at one port, of whose jobs one in so many is in trouble.

    Where ``whole``, its jobs use the training client, NCCL, InfiniBand and shared filesystems.
    """

    def __init__(self, one_in: int, *, whole: bool = False) -> None:
        self.one_in = one_in
        self.whole = whole
        self.begin = time.monotonic()
        left_out = (*LEFT_OUT, *REPLACED) if whole else LEFT_OUT
        self.shown = {
            tape: [eight(text, left_out) for text in expositions(tape)] for tape in TWO_GPUS
        }

    def text(self, path: str) -> bytes:
        """What a node shows now: ``/metrics?node=N``."""
        node = int(parse_qs(urlparse(path).query)["node"][0])
        at = min(EXPOSITIONS - 2, int((time.monotonic() - self.begin) / SCRAPE))
        job = node // NODES_OF_JOB
        tapes = QUIET if job % self.one_in else TROUBLED
        shown = self.shown[tapes[job // self.one_in % len(tapes)]]
        others, pattern = shown[min(at, len(shown) - 1)]
        copies = (
            pattern.replace("@0@", str(2 * copy))
            .replace("@1@", str(2 * copy + 1))
            .replace("@U@", f"{node}-{copy}")
            for copy in range(4)
        )
        held = (
            OWNER.format(
                gpu=gpu,
                of_two=gpu % 2,
                copy=gpu // 2,
                node=node,
                job=node // NODES_OF_JOB,
                team=node // 16,
            )
            for gpu in range(8)
        )
        lines = [others, *copies, *held]
        if self.whole:
            shows, seconds = f"{others}\n{pattern}", time.monotonic() - self.begin
            broken = node % BROKEN == 0
            of_gpu = beside_gpus(shows, seconds, broken=broken)
            lines += [
                beside_node(shows, seconds, broken=broken),
                *(filled(of_gpu, self._marks(node, gpu)) for gpu in range(8)),
            ]
        return "\n".join([*lines, ""]).encode()

    def _marks(self, node: int, gpu: int) -> dict[str, str]:
        """What stands for a GPU in the job that holds it, by mark."""
        return {
            "@GPU@": f"GPU-{gpu % 2}-{node}-{gpu // 2}",
            "@G@": str(gpu),
            "@POD@": f"train-{node // NODES_OF_JOB}-worker-{node}",
            "@TEAM@": f"team-{node // 16}",
            "@RANK@": str(node % NODES_OF_JOB * 8 + gpu),
        }
