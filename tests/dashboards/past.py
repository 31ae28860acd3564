"""Sixty days of what the rules record once an hour, for dashboards that look back."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from gpunode.gpu.ledger import STATES
from tests.prometheus.programs import need

DAYS = 62
GPUS = 96
BY_HOUR = "gpunode_gpu_seconds:rate1h_hourly"
CAUSES = {
    "training": {
        "communication": "communication",
        "blocked": "straggler",
        "starved": "data_loading_storage",
        "idle": "unexplained",
    },
    "serving": {"idle": "no_requests", "starved": "kernel_launch"},
}
"""What the verdicts call that to which each state of GPUs is lost here, by the kind of work."""

Shares = dict[str, float]
"""GPUs by state."""


def live_through(folder: Path, cluster: str, jobs: int = 1) -> None:
    """Write the past of a cluster as blocks for a Prometheus that keeps its samples in a folder.

    ``jobs`` is how many each of the two teams has.
    """
    now = int(time.time()) // 3600 * 3600
    by_name: dict[str, dict[str, list[str]]] = {}
    for at in range(now - DAYS * 86400, now - 3600, 3600):
        for name, labels, value in recorded(at, (now - at) / (DAYS * 86400), jobs):
            series = ",".join(
                f'{one}="{text}"' for one, text in {"cluster": cluster, **labels}.items()
            )
            line = f"{name}{{{series}}} {value:.3f} {at}"
            by_name.setdefault(name, {}).setdefault(series, []).append(line)
    with (folder / "past").open("w") as file:
        for name, every in by_name.items():
            file.write(f"# TYPE {name} gauge\n")
            file.writelines(f"{line}\n" for lines in every.values() for line in lines)
        file.write("# EOF\n")
    backfill = [need("promtool"), "tsdb", "create-blocks-from", "openmetrics", "--quiet"]
    command = [*backfill, "--max-block-duration=1500h", str(folder / "past"), str(folder / "tsdb")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def recorded(at: int, age: float, jobs: int) -> Iterator[tuple[str, dict[str, str], float]]:
    """What is recorded in an hour: names, labels and values; ``age`` is 1 for the first."""
    whole = dict.fromkeys(STATES, 0.0)
    for team, kind, workload, shares in (
        ("vision", "training", "segmenter", _trains(age)),
        ("search", "serving", "ranker", _serves(at)),
    ):
        for state, gpus in shares.items():
            whole[state] += gpus
            for job in range(jobs):
                named = workload if jobs == 1 else f"{workload}-{job}"
                labels = {"owner_namespace": team, "workload": named, "state": state}
                yield f"job:{BY_HOUR}", labels, gpus / jobs
            of_state = {"owner_namespace": team, "state": state}
            yield f"namespace:{BY_HOUR}", of_state, gpus
            if cause := CAUSES[kind].get(state):
                of_cause = {"owner_namespace": team, "cause": cause}
                yield "namespace:gpunode_held_up:gpus_hourly", of_cause, gpus
        of_kind = {"owner_namespace": team, "workload": workload, "kind": kind}
        yield "job:gpunode_job_kind:gpus_hourly", of_kind, sum(shares.values())
    held = sum(whole.values())
    whole["free"] = GPUS - held
    yield "cluster:gpunode_gpu_free:whole_hourly", {}, whole["free"] // 8 * 8
    for state, gpus in whole.items():
        yield f"cluster:{BY_HOUR}", {"state": state}, gpus
        yield f"node:{BY_HOUR}", {"instance": "all", "state": state}, gpus
        yield "cluster:gpunode_gpu_power:by_state", {"state": state}, 300 * gpus


def _trains(age: float) -> Shares:
    """A team that trains day and night and waits less from week to week."""
    waits = {"communication": 6.0, "blocked": 2 + 3 * age, "starved": 4 + 3 * age, "idle": 2.0}
    return {"compute": 38 - 6 * age, **waits}


def _serves(at: int) -> Shares:
    """A team that serves people, who sleep at night."""
    awake = 0.5 + 0.5 * math.sin((at / 3600 % 24 - 9) / 24 * 2 * math.pi)
    return {"compute": 4 + 8 * awake, "idle": 8 - 7 * awake, "starved": 1.0}
