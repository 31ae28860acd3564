"""Of 2,048 ranks the job's dashboard names the odd one, and shows few: promtool answers it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dashboards.boards.job import SHOWN
from dashboards.causes import OF_RANKS
from dashboards.panels import SAYS_NONE
from tests.dashboards.promtool import Found, promtool, with_labels
from tests.dashboards.queries import CHOSEN, filled
from tests.dashboards.test_runs import PANELS

GPUS, BAD = 2048, 139
JOB = {"cluster": "c", "workload": "slurm-1", "user": "kim"}
CAUSE = [*OF_RANKS].index("data_loading_storage")


def rank(number: int) -> dict[str, str]:
    at = {"instance": f"node-{number // 8:04}", "gpu": str(number % 8), "uuid": f"GPU-{number}"}
    return {**JOB, **at, "rank": str(number)}


def recorded() -> Iterator[tuple[str, str]]:
    for number in range(GPUS):
        own, bad = rank(number), number == BAD
        cause = "data_loading_storage" if bad else "straggler"
        yield with_labels("gpu:gpunode_rank:info", own), "1x10"
        yield with_labels("gpu:gpunode_rank:held_up", {**own, "cause": cause}), "0+60x10"
        if bad:
            awaited = {**own, "reason": "uninterruptible"}
            yield with_labels("gpu:gpunode_rank:awaited", awaited), "1x10"
    for cause, ranks in (("straggler", GPUS - 1), ("data_loading_storage", 1)):
        yield with_labels("job:gpunode_rank:count", {**JOB, "cause": cause}), f"{ranks}x10"
    yield with_labels("job:gpunode_gpus:count", JOB), f"{GPUS}x10"


def test_of_2048_ranks_the_odd_one_has_the_row_and_the_sentence(tmp_path: Path) -> None:
    def asked(title: str) -> str:
        expression = PANELS[title]["targets"][0]["expr"].partition(SAYS_NONE)[0]
        return filled(expression, {**CHOSEN, "$job": "slurm-1"})

    bad = {**JOB, "instance": "node-0017", "gpu": "3", "uuid": "GPU-139", "rank": "139"}
    said = {"cause": "data loading storage", "rest": "; 2047 wait"}
    row: Found = [({"instance": "node-0017", "gpu": "3", "reason": "uninterruptible"}, 600.0)]
    sentence: Found = [({"who": "rank 139 · ", "instance": "node-0017", "gpu": "3", **said}, 0.0)]
    first = f"max by (rank) ({asked('What holds each rank up')})"
    told = promtool(
        tmp_path,
        recorded(),
        {
            (10, f"max by (instance, gpu, reason) ({asked('Who differs, and how')})"): row,
            (
                10,
                f"max by (who, instance, gpu, cause, rest) ({asked('The odd one out')})",
            ): sentence,
            (10, f"count ({asked('What holds each rank up')})"): [({}, float(SHOWN))],
            (10, f"{first} == {CAUSE}"): [({"rank": bad["rank"]}, float(CAUSE))],
        },
    )
    assert not told, told[-3000:]
