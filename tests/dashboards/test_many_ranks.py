"""Of 2,048 ranks the job's dashboard names the odd one, and shows few: promtool answers it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from alerts.recording.ranks import VERDICTS
from dashboards.boards.job import SHOWN
from dashboards.panels import SAYS_NONE
from tests.alerts.rule_tests import with_labels
from tests.dashboards.queries import CHOSEN, filled
from tests.dashboards.test_runs import PANELS, Found, promtool

GPUS, BAD = 2048, 139
JOB = {"cluster": "c", "workload": "slurm-1", "user": "kim"}
WAIT = VERDICTS.index("straggler")
CAUSE = VERDICTS.index("data_loading_storage")


def rank(number: int) -> dict[str, str]:
    at = {"instance": f"node-{number // 8:04}", "gpu": str(number % 8), "uuid": f"GPU-{number}"}
    return {**JOB, **at, "rank": str(number)}


def recorded() -> Iterator[tuple[str, str]]:
    for number in range(GPUS):
        own, bad = rank(number), number == BAD
        told = {"cause": "straggler", "alike": "wait"}
        if bad:
            told = dict.fromkeys(told, "data_loading_storage")
            yield with_labels("gpu:gpunode_rank:odd", {**own, **told}), f"{CAUSE}x10"
            yield with_labels("gpu:gpunode_rank:since", {**own, **told}), "60x10"
            awaited = {**own, "reason": "uninterruptible"}
            yield with_labels("gpu:gpunode_rank:awaited", awaited), "2x10"
        verdict = f"{CAUSE if bad else WAIT}x10"
        yield with_labels("gpu:gpunode_rank:verdict", {**own, **told}), verdict
    yield with_labels("job:gpunode_rank:most", {**JOB, "alike": "wait"}), f"{GPUS - 1}x10"
    yield with_labels("job:gpunode_rank:count", {**JOB, "cause": "straggler"}), f"{GPUS - 1}x10"
    yield with_labels("job:gpunode_job:gpus", JOB), f"{GPUS}x10"


def test_of_2048_ranks_the_odd_one_has_the_row_and_the_sentence(tmp_path: Path) -> None:
    def asked(title: str) -> str:
        expression = PANELS[title]["targets"][0]["expr"].partition(SAYS_NONE)[0]
        return filled(expression, {**CHOSEN, "$job": "slurm-1"})

    bad = {**JOB, "instance": "node-0017", "gpu": "3", "uuid": "GPU-139", "rank": "139"}
    said = {"cause": "data_loading_storage", "rest": " · 2047 others: wait"}
    row: Found = [({"instance": "node-0017", "gpu": "3", "reason": "uninterruptible"}, 540.0)]
    sentence: Found = [({"who": "rank 139 · ", "instance": "node-0017", "gpu": "3", **said}, 6e4)]
    first = f"max by (rank) ({asked('What holds each rank up')})"
    told = promtool(
        tmp_path,
        dict(recorded()),
        10,
        {
            f"max by (instance, gpu, reason) ({asked('Who differs, and how')})": row,
            f"max by (who, instance, gpu, cause, rest) ({asked('The odd one out')})": sentence,
            f"count ({asked('What holds each rank up')})": [({}, float(SHOWN))],
            f"{first} == {CAUSE}": [({"rank": bad["rank"]}, float(CAUSE))],
        },
    )
    assert not told, told[-3000:]
