"""The job's dashboard over its default range for jobs of 512 and 2,048 GPUs: seconds and bytes.

One rank is starved by storage for the last hour, and all others wait for it. Six hours of what
exporters and rules make of that are written as blocks, and a real Prometheus answers every query of
the board, those included by which a panel says that there is nothing. ``--board`` takes the JSON of
another version.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.report import Report, Result, machine
from dashboards import FOLDER
from dashboards.panels import NONE_OF, UNSEEN
from gpunode.verdict.reasons import REASONS
from tests.daemon import free_port
from tests.dashboards.queries import CHOSEN, filled, wait_for
from tests.prometheus.incidents import prometheus_command
from tests.prometheus.programs import need, program

SIZES = (512, 2048)
HOURS = 6
STEP = 240
"""Seconds between two samples: fewer than in use, so that the blocks are written in minutes."""

POINTS = 500
BAD = 139
MOST_SECONDS, MOST_BYTES, LEAST_ANSWERED = 2.0, 2e6, 0.8
Kept = tuple[str, Mapping[str, str], float | None]
"""A series: its name, its labels and what it is, or None for a counter."""


def series(gpus: int, late: bool) -> Iterator[Kept]:
    """What is stored of the job; ``late`` while one rank is starved and the others wait."""
    job = {"workload": "slurm-1", "user": "kim"}
    for rank in range(gpus):
        bad = late and rank == BAD
        cause = "none" if not late else "data_loading_storage" if bad else "straggler"
        gpu = {
            "cluster": "c",
            "instance": f"node-{rank // 8:04}",
            "gpu": str(rank % 8),
            "uuid": f"GPU-{rank}",
        }
        held, ranked = {**gpu, **job}, {**gpu, **job, "rank": str(rank)}
        for reason in REASONS:
            is_it = bad and reason == "uninterruptible"
            yield "gpunode_gpu_waited_for", {**gpu, "reason": reason}, float(is_it)
        process = {"pid": str(rank), "slurm_job": "1", "rank": str(rank)}
        yield "gpunode_gpu_process_info", {**gpu, **process}, 1.0
        yield "gpunode_training_step_median_seconds", gpu, 2.0 + late
        yield "gpunode_training_step_baseline_seconds", gpu, 2.0
        yield "gpunode_training_mfu_ratio", gpu, 0.4
        yield "gpunode_training_loss", gpu, 2.5
        yield "gpunode_training_loss_best", gpu, 2.4
        yield "gpunode_training_tokens_total", gpu, None
        yield "gpunode_torch_memory_reserved_bytes", gpu, 6e10
        yield "gpunode_torch_alloc_retries_total", gpu, None
        yield "gpunode_torch_ooms_total", gpu, None
        yield "gpunode_torch_compiled_graphs_total", gpu, None
        yield "gpunode_training_kernel_seconds", {**gpu, "kernel": "gemm"}, 0.2
        yield "gpunode_nccl_channels", {**gpu, "communicator": "c", "transport": "P2P"}, 16.0
        yield "gpunode_nccl_setting_info", {**gpu, "name": "NCCL_IB_HCA", "value": "mlx5"}, 1.0
        yield "gpunode_job_busiest_thread_ratio", gpu, 0.5
        yield "gpunode_job_loader_workers", gpu, 8.0
        yield "gpunode_gpu_memory_used_bytes", gpu, 6e10
        yield "gpunode_gpu_memory_size_bytes", gpu, 8e10
        yield "gpunode_gpu_memory_reserved_bytes", gpu, 1e9
        yield "gpu:gpunode_owner:info", held, 1.0
        yield "gpu:gpunode_rank:info", ranked, 1.0
        yield "gpu:gpunode_rank:held_up", {**ranked, "cause": cause}, 600.0 * late
        for state in ("compute", "blocked", "starved"):
            ledger = {**gpu, "state": state}
            yield "gpu:gpunode_gpu_seconds:rate5m", ledger, 0.1 + 0.5 * (state == "blocked")
        for phase in ("step", "data"):
            yield "gpunode_training_seconds_total", {**gpu, "phase": phase}, None
        if bad:
            yield "gpu:gpunode_rank:awaited", {**ranked, "reason": "uninterruptible"}, 1.0
    of_job = {"cluster": "c", **job}
    yield "job:gpunode_gpus:count", of_job, float(gpus)
    counts = {"straggler": gpus - 1, "data_loading_storage": 1} if late else {"none": gpus}
    for cause, count in counts.items():
        yield "job:gpunode_rank:count", {**of_job, "cause": cause}, float(count)
    for phase in ("step", "data"):
        yield "job:gpunode_training_seconds:rate5m", {**of_job, "phase": phase}, gpus / 2
    yield "job:gpunode_gpu_memory:max", of_job, 0.75
    yield "job:gpunode_step:slowdown", of_job, 1.0 + late
    yield "job:gpunode_memory_limit:ratio", of_job, 0.5
    for state in ("compute", "blocked", "starved"):
        yield "job:gpunode_gpu_states:gpus", {**of_job, "state": state}, gpus / 3
        yield "job:gpunode_gpu_seconds:rate5m", {**of_job, "state": state}, 1 / 3
        yield "job:gpunode_gpu_seconds:rate1h_hourly", {**of_job, "state": state}, gpus / 3
    yield "job:gpunode_training_step:median_hourly", of_job, 2.0
    yield "job:gpunode_training_mfu:ratio_hourly", of_job, 0.4


def stored(folder: Path, gpus: int) -> None:
    """Write the blocks of six hours."""
    now = int(time.time())
    times = range(now - HOURS * 3600, now + STEP, STEP)
    by_name: dict[str, dict[str, list[str]]] = {}
    for late, those in ((False, [t for t in times if t < now - 3600]), (True, [*times][-15:])):
        for name, labels, value in series(gpus, late):
            of = ",".join(f'{label}="{text}"' for label, text in labels.items())
            lines = [
                f"{name}{{{of}}} {t - now + 1e6 if value is None else value} {t}\n" for t in those
            ]
            by_name.setdefault(name, {}).setdefault(of, []).extend(lines)
    with (folder / "past").open("w") as file:
        for name, every in by_name.items():
            file.write(f"# TYPE {name} gauge\n")
            for lines in every.values():
                file.writelines(lines)
        file.write("# EOF\n")
    backfill = [need("promtool"), "tsdb", "create-blocks-from", "openmetrics", "--quiet"]
    command = [*backfill, "--max-block-duration=48h", str(folder / "past"), str(folder / "tsdb")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (folder / "past").unlink()


def query_board(prometheus: str, board: Path) -> tuple[float, int, int, float, str]:
    """Seconds, bytes and number of all queries, which share found something, and the slowest."""
    range_ = f"{HOURS * 3600}s"
    nodes = "node-.*"
    chosen = {**CHOSEN, "$__range": range_, "$__rate_interval": "10m", "$hosts": nodes}
    chosen |= {"$job": "slurm-1", "${namespace:pipe}": "(no namespace)?"}
    now = time.time() - 1
    whole, size, queries, answered, of_data = 0.0, 0, 0, 0, 0
    slowest = (0.0, "")
    for panel in json.loads(board.read_text())["panels"]:
        for target in panel.get("targets", ()):
            over = {"start": now - HOURS * 3600, "end": now, "step": HOURS * 3600 / POINTS}
            when = {"time": now} if target["instant"] else over
            path = "query" if target["instant"] else "query_range"
            query = {"query": filled(target["expr"], chosen), **when}
            begin = time.perf_counter()
            with urllib.request.urlopen(
                f"{prometheus}/api/v1/{path}", urllib.parse.urlencode(query).encode()
            ) as answer:
                body = answer.read()
            took = time.perf_counter() - begin
            whole, size, queries = whole + took, size + len(body), queries + 1
            if not target["expr"].startswith(NONE_OF):
                of_data += 1
                found = json.loads(body)["data"]["result"]
                answered += any(one.get("value", ["", ""])[1] != UNSEEN for one in found)
            slowest = max(slowest, (took, f"{panel['title']} {target['refId']}"))
    return whole, size, queries, answered / of_data, f"{slowest[1]}: {slowest[0]:.2f} s"


def measured(gpus: int, boards: Mapping[str, Path]) -> Iterator[Result]:
    """What each board takes for a job of so many GPUs."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        stored(folder, gpus)
        (folder / "prometheus.yml").write_text("{}")
        with program(prometheus_command(folder, port), folder / "log"):
            address = f"http://127.0.0.1:{port}"
            wait_for(f"{address}/-/ready", 120)
            for title, board in boards.items():
                query_board(address, board)  # the first reads the blocks
                seconds, size, queries, answered, slowest = query_board(address, board)
                yield Result(
                    f"{gpus} GPUs{title}, {queries} queries one after the other",
                    f"{seconds:.2f} s, {size / 1e6:.2f} MB; {answered:.0%} find something; "
                    f"{slowest}",
                    "≤ 2 s, ≤ 2 MB",
                    seconds <= MOST_SECONDS and size <= MOST_BYTES and answered >= LEAST_ANSWERED,
                )


if __name__ == "__main__":
    parser = ArgumentParser(prog="python -m bench.large_jobs", description=__doc__)
    parser.add_argument("--board", type=Path, help="the JSON of another version to compare with")
    parser.add_argument("--gpus", type=int, nargs="*", default=SIZES)
    given = parser.parse_args()
    boards = {"": FOLDER / "gpunode-job.json"}
    if given.board:
        boards[" before"] = given.board
    results = [one for gpus in given.gpus for one in measured(gpus, boards)]
    report = Report(
        "The dashboard of a large job",
        machine(),
        f"{HOURS} hours of samples every {STEP} s, of which the last has one rank starved and the "
        f"others waiting; {POINTS} points a graph, with the blocks read once before.",
        results,
        [],
    )
    report.print()
    report.publish("20-large-jobs")
