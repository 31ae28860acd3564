"""A fleet as people have one, for the pictures of the dashboards: twelve nodes and five incidents.

Its GPUs live through recorded incidents of two GPUs. Each GPU of a job shows what one of the two
did: most of them that which waited, one that which was waited for. Beside them, a service has more
to do from some minute on.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlparse

from dashboards.rules import FOLDER
from gpunode.serving.requests import RESPONSE_BOUNDS
from tests.daemon import free_port
from tests.dashboards.fleet import beside_gpus, beside_node, expositions, parts
from tests.dashboards.past import live_through
from tests.dashboards.queries import filled
from tests.prometheus.incidents import prometheus
from tests.prometheus.programs import exporter

NODES = 12
GPUS_OF_NODE = 8
CLUSTER = "berlin"
SCRAPE = 15
LASTS = 2700
"""Seconds that the story goes on; then nothing changes."""


@dataclass(frozen=True, slots=True)
class Part:
    """A tape, which of its two GPUs most GPUs of the job play, and which the odd one does."""

    tape: str
    most: int = 0
    odd: int = 0


WELL = Part("healthy")
HANG = Part("h200_hang", most=0, odd=1)
STREAK = re.compile(
    r"^(gpunode_(?:job_workless|gpu_blocked_streak)_seconds\{.*\}) .*$", re.MULTILINE
)
"""What begins again where a tape does, and goes on in a hang."""

MFU = re.compile(r"^(gpunode_training_mfu_ratio\{.*\}) .*$", re.MULTILINE)
"""What is told of the last minute, in which nothing came of a hang."""

KIND = re.compile(r"^gpunode_gpu_workload\{.*\n?", re.MULTILINE)
"""The kind of work, which nobody told the exporter on a tape."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A job, the GPUs that it holds, and what happens to it from which minute."""

    nodes: tuple[int, ...]
    parts: dict[int, Part]
    namespace: str = ""
    pod: str = ""
    slurm: str = ""
    user: str = ""
    gpus: tuple[int, ...] = tuple(range(GPUS_OF_NODE))
    odd: tuple[int, int] = (0, 0)
    """The node and the GPU that others wait for, or where most requests do."""

    trains: bool = True
    serves: bool = False
    """Whether each of its GPUs has a replica of a service, in a pod of its own."""

    def part(self, minutes: float) -> tuple[int, Part]:
        """What happens now, and the minute from which on."""
        return max((begin, part) for begin, part in self.parts.items() if begin <= minutes)

    @property
    def workload(self) -> str:
        """How its node names it."""
        return (
            f"slurm-{self.slurm}"
            if self.slurm
            else self.pod.partition("-worker")[0].partition("-{")[0]
        )

    def owner(self, node: int, gpu: int) -> str:
        """The labels of the owner of a GPU."""
        pod = self.pod.format(node=node, gpu=gpu)
        return (
            f'owner_namespace="{self.namespace}",owner_pod="{pod}",'
            f'owner_container="{"main" if self.pod else ""}",slurm_job="{self.slurm}",'
            f'user="{self.user}",workload="{self.workload}",replica="{gpu if self.serves else ""}"'
        )


JOBS = (
    Holding(
        nodes=(1, 2, 3, 4),
        parts={0: WELL, 8: HANG},
        slurm="48213",
        user="sofia",
        odd=(3, 5),
    ),
    Holding(
        nodes=(5, 6),
        parts={0: WELL, 2: Part("h200_storage")},
        namespace="vision",
        pod="segmenter-worker-{node}",
    ),
    Holding(
        nodes=(7, 8),
        parts={0: WELL, 4: Part("comm_nop2p")},
        namespace="search",
        pod="ranker-worker-{node}",
    ),
    Holding(
        nodes=(10, 11),
        parts={0: WELL, 5: Part("straggler", most=0, odd=1)},
        namespace="vision",
        pod="clip-pretrain-worker-{node}",
        odd=(11, 2),
    ),
    Holding(
        nodes=(12,),
        parts={0: WELL, 6: Part("h200_shm")},
        slurm="48290",
        user="jan",
        gpus=(0, 1, 2, 3),
    ),
    Holding(
        nodes=(9,),
        parts={0: Part("idle")},
        namespace="notebooks",
        pod="jupyter-minh-0",
        gpus=(0, 1),
        trains=False,
    ),
    Holding(
        nodes=(9,),
        parts={0: Part("membound")},
        namespace="search",
        pod="assistant-{gpu}",
        gpus=(4, 5, 6, 7),
        odd=(9, 6),
        trains=False,
        serves=True,
    ),
)
"""A file server that is slow, P2P off, a straggler, /dev/shm that is full, and a stopped rank."""

FREE = Part("h200_free")

BUSY_FROM = 420.0
"""Seconds after which the service has twice as many requests, and most at the odd replica."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a replica has to do, and how long it takes."""

    requests: float
    """A second. Each has a prompt of 800 tokens, half of them cached, and an answer of 200."""

    running: int
    waiting: int
    cache: float
    queue: float
    prefill: float
    decode: float
    steps: float
    """A second."""

    in_time: float
    """The share of the first tokens."""

    within: tuple[float, ...]
    """The shares of whole requests that end within each of the exporter's bounds."""


CALM = Load(6, 24, 0, 0.41, 0.02, 0.11, 4.1, 40, 1.0, (0.02, 0.1, 0.25, 0.72, 0.97, 1, 1, 1))
BUSY = Load(11, 48, 3, 0.86, 0.38, 0.16, 5.2, 38, 0.99, (0.01, 0.05, 0.15, 0.5, 0.9, 1, 1, 1))
BUSIEST = Load(11, 52, 14, 0.97, 1.1, 0.18, 5.6, 37, 0.95, (0, 0.03, 0.1, 0.4, 0.85, 1, 1, 1))


def engine(seconds: float, busy: Load) -> str:
    """What a replica tells, as a pattern for any GPU."""
    calm_for, busy_for = min(seconds, BUSY_FROM), max(0.0, seconds - BUSY_FROM)
    now = busy if busy_for else CALM

    def total(a_second: Callable[[Load], float]) -> float:
        return a_second(CALM) * calm_for + a_second(busy) * busy_for

    ended = total(lambda load: load.requests)
    tokens = {"prompt": 800 * ended, "generated": 200 * ended}
    tokens |= {"asked": tokens["prompt"], "cached": tokens["prompt"] / 2}
    spent = {
        "queue": total(lambda load: load.requests * load.queue),
        "prefill": total(lambda load: load.requests * load.prefill),
        "decode": total(lambda load: load.requests * load.decode),
    }
    first = "gpunode_serving_first_token_seconds"
    told: dict[tuple[str, str], float] = {
        ("gpunode_serving_engine_info", 'first="@GPU@",role=""'): 1,
        ("gpunode_serving_requests_in_flight", 'phase="running"'): now.running,
        ("gpunode_serving_requests_in_flight", 'phase="waiting"'): now.waiting,
        ("gpunode_serving_kv_cache_used_ratio", ""): now.cache,
        ("gpunode_serving_preemptions_total", ""): 0,
        ("gpunode_serving_steps_total", ""): total(lambda load: load.steps),
        ("gpunode_serving_step_items_total", ""): 600 * ended,
        ("gpunode_serving_requests_total", 'result="finished"'): ended,
        (f"{first}_count", ""): ended,
        (f"{first}_sum", ""): spent["queue"] + spent["prefill"] + 0.03 * ended,
        ("gpunode_serving_output_token_seconds_count", ""): 199 * ended,
        ("gpunode_serving_objective_met_total", 'objective="first_token"'): total(
            lambda load: load.requests * load.in_time
        ),
        ("gpunode_serving_objective_met_total", 'objective="output_token"'): 199 * ended,
        ("gpunode_serving_response_seconds_bucket", 'le="+Inf"'): ended,
        ("gpunode_serving_response_seconds_count", ""): ended,
    }
    for kind, many in tokens.items():
        told["gpunode_serving_tokens_total", f'kind="{kind}"'] = many
    for part, took in spent.items():
        told["gpunode_serving_request_part_seconds_total", f'part="{part}"'] = took
    for bound, calmly, busily in zip(RESPONSE_BOUNDS, CALM.within, busy.within, strict=True):
        within = CALM.requests * calmly * calm_for + busy.requests * busily * busy_for
        told["gpunode_serving_response_seconds_bucket", f'le="{bound}"'] = within
    at = 'gpu="@G@",uuid="@GPU@",engine="vllm",model="Qwen2.5-7B"'
    lines = [f"{metric}{{{at},{labels}}} {value:g}" for (metric, labels), value in told.items()]
    return "\n".join([*lines, 'gpunode_gpu_workload{gpu="@G@",uuid="@GPU@",kind="serving"} 1'])


def name(node: int) -> str:
    return f"gpu-{node:02}"


def uuid(node: int, gpu: int) -> str:
    return f"GPU-{node:02}{gpu}4d7c1"


def holding(node: int, gpu: int) -> Holding | None:
    """The job that holds a GPU."""
    return next((job for job in JOBS if node in job.nodes and gpu in job.gpus), None)


class Story:
    """Serves every node at one port: ``/metrics?node=N``. Nothing changes after so many seconds."""

    def __init__(self, lasts: int = LASTS) -> None:
        tapes = {part.tape for job in JOBS for part in job.parts.values()} | {FREE.tape}
        self.shown = {
            tape: [parts(text) for text in expositions(tape, lasts, SCRAPE)] for tape in tapes
        }
        self.begin = time.monotonic()
        self.began = time.time()

    def text(self, path: str) -> bytes:
        """What a node shows now."""
        node = int(parse_qs(urlparse(path).query)["node"][0])
        return self.at(node, time.monotonic() - self.begin).encode()

    def at(self, node: int, seconds: float) -> str:
        """What a node shows after so many seconds."""
        lines = []
        hosts = ""
        for gpu in range(GPUS_OF_NODE):
            job = holding(node, gpu)
            begin, part = job.part(seconds / 60) if job else (0, FREE)
            odd = job is not None and (node, gpu) == job.odd
            shown = self.shown[part.tape]
            of_node, of_gpus = shown[min(int((seconds - 60 * begin) / SCRAPE), len(shown) - 1)]
            hosts = hosts if gpu and not odd else of_node
            of_gpu = of_gpus[part.odd if odd else part.most]
            text = of_gpu
            if part.tape == HANG.tape:
                text = STREAK.sub(rf"\1 {seconds - 60 * begin:.0f}", text)
            steps = 60 * begin if part.tape == HANG.tape else seconds
            if job and job.trains:
                text = KIND.sub("", text)
                text += "\n" + beside_gpus(f"{of_node}\n{text}", steps)
                text = MFU.sub(r"\1 0", text) if steps < seconds else text
            if job and job.serves:
                text = KIND.sub("", text) + "\n" + engine(seconds, BUSIEST if odd else BUSY)
            marks = {
                "@G@": str(gpu),
                "@GPU@": uuid(node, gpu),
                "@BUS@": f"0000:{0x18 + 0x11 * gpu:02x}:00.0",
            }
            text = filled(text, marks)
            lines += [line for line in text.splitlines() if "@" not in line]
            if job:
                lines += self._held(job, node, gpu)
            if job and job.trains:
                at = f'gpu="{gpu}",uuid="{uuid(node, gpu)}"'
                lines += [
                    f"gpunode_training_last_step_timestamp_seconds{{{at}}} {self.began + steps:.0f}"
                ]
        return "\n".join([hosts, beside_node(hosts, seconds), *lines, ""])

    def _held(self, job: Holding, node: int, gpu: int) -> Iterator[str]:
        at = f'gpu="{gpu}",uuid="{uuid(node, gpu)}",{job.owner(node, gpu)}'
        via = "kubelet" if job.pod else "process"
        yield f'gpunode_gpu_owner_info{{{at},via="{via}"}} 1'
        at_place = job.nodes.index(node) * len(job.gpus) + job.gpus.index(gpu)
        size = len(job.nodes) * len(job.gpus)
        rank, of_world = ("", "") if job.serves else (at_place, size)
        told = f'pid="{31000 + at_place}",rank="{rank}",world_size="{of_world}"'
        yield f"gpunode_gpu_process_info{{{at},{told}}} 1"


@contextmanager
def told(port: int) -> Iterator[str]:
    """A Prometheus that scrapes the fleet, with the rules as they are shipped; its address."""
    with tempfile.TemporaryDirectory() as name_, exporter(Story().text) as own:
        folder = Path(name_)
        targets = [
            {
                "targets": [f"127.0.0.1:{own}"],
                "labels": {
                    "__param_node": str(node),
                    "instance": name(node),
                    "cluster": CLUSTER,
                    "rack": f"r{(node + 3) // 4}",
                },
            }
            for node in range(1, NODES + 1)
        ]
        config = {
            "global": {"scrape_interval": f"{SCRAPE}s"},
            "rule_files": [str(path) for path in FOLDER.glob("*.yaml")],
            "scrape_configs": [{"job_name": "gpunode", "static_configs": targets}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        live_through(folder, CLUSTER)
        with prometheus(folder, port, "--storage.tsdb.retention.time=90d"):
            yield f"http://127.0.0.1:{port}"


def main() -> None:
    """Tell the story until Ctrl-C; the last incident begins after eight minutes."""
    parser = ArgumentParser(prog="python -m tests.dashboards.story", description=main.__doc__)
    parser.add_argument("--port", type=int, default=0, help="where Prometheus listens")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    with told(parser.parse_args().port or free_port()) as address:
        print(address, flush=True)
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    main()
