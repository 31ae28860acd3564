"""What counts for the score of a GPU that breaks one job after another, and how often."""

from __future__ import annotations

from pathlib import Path

import pytest

from alerts.recording.lemons import (
    FLAPS,
    HOLDER,
    INCIDENT,
    NVLINK_RECOVERS,
    RESET,
    SCORE,
    SCORE_OF_NODE,
)
from tests.alerts.test_latched import count

DAY = 86400
BOOTED = 'gpunode_node_boot_timestamp_seconds{cluster="c",instance="n"}'
DRAINED = 'node:gpunode_drained:max{cluster="c",instance="n"}'
XID = 'gpunode_gpu_xid_last_timestamp_seconds{cluster="c",gpu="0",instance="n",uuid="U",xid="31"}'


def energy(gpu: str, joules: str) -> dict[str, str]:
    """The driver's energy counter of a GPU."""
    labels = f'cluster="c",gpu="{gpu}",instance="n",uuid="U{gpu}"'
    return {f"gpunode_gpu_driver_energy_joules_total{{{labels}}}": joules}


def incident(kind: str, workload: str = "", day: str = "", uuid: str = "U") -> str:
    """Something that happened on a GPU."""
    labels = f'cluster="c",day="{day}",kind="{kind}",uuid="{uuid}",workload="{workload}"'
    return f"{INCIDENT}{{{labels}}}"


GOES_ON, BEGINS_AGAIN = "9000+60x20", "9000+60x10 0+60x9"


@pytest.mark.parametrize(
    ("other", "more", "finds"),
    [
        pytest.param(GOES_ON, {}, 1, id="alone"),
        pytest.param(BEGINS_AGAIN, {}, -1, id="with the others: somebody restarted the driver"),
        pytest.param(GOES_ON, {BOOTED: "-900x10 600x9"}, -1, id="with its node"),
        pytest.param(GOES_ON, {DRAINED: "1x12"}, -1, id="in a repair"),
    ],
)
def test_a_reset_counts_where_it_is_of_one_gpu_in_service(
    tmp_path: Path, other: str, more: dict[str, str], finds: int
) -> None:
    given = {**energy("0", BEGINS_AGAIN), **energy("1", other), **more}
    count(tmp_path, RESET, given, 14, str(finds))


def test_a_reset_after_a_fault_is_its_repair(tmp_path: Path) -> None:
    reset = {f'{RESET}{{cluster="c",gpu="0",instance="n",uuid="U"}}': "_x60 1x10"}
    count(tmp_path, INCIDENT, reset, 65, "1")
    count(tmp_path, INCIDENT, {**reset, incident("xid", "a"): "1x5"}, 65, "-1")


def test_an_nvlink_that_goes_on_recovering_is_one_incident(tmp_path: Path) -> None:
    series = f'{NVLINK_RECOVERS}{{cluster="c",gpu="0",instance="n",link="3",uuid="U"}}'
    count(tmp_path, INCIDENT, {series: "_x10 4x60"}, 15, "1")
    count(tmp_path, INCIDENT, {series: "_x10 4x60"}, 40, "-1")
    count(tmp_path, INCIDENT, {series: "_x10 1x60"}, 15, "-1")


def test_an_xid_is_of_the_jobs_that_met_it(tmp_path: Path) -> None:
    def held(workload: str, values: str) -> dict[str, str]:
        labels = f'cluster="c",gpu="0",instance="n",uuid="U",workload="{workload}"'
        return {f"gpu:gpunode_gpu_owner:workload{{{labels}}}": values}

    given = {XID: "_x10 600x15", **held("a", "1x10"), **held("b", "_x14 1x10")}
    count(tmp_path, HOLDER, given, 16, "420")
    both = {XID: "_x10 600x15", **held("a", "1x10"), **held("b", "1x20")}
    count(tmp_path, HOLDER, both, 16, "840")


def test_what_happens_is_counted_by_job_or_by_day(tmp_path: Path) -> None:
    def score(finds: int, *happened: str, value: str = "1x5") -> None:
        count(tmp_path, SCORE, dict.fromkeys(happened, value), 300, str(finds))

    score(1, incident("xid", "a"), incident("waited_for", "a"), incident("fault", "a"))
    score(2, incident("xid", "a"), incident("waited_for", "b"))
    score(1, incident("fault", day="1"), incident("nvlink", day="1"), incident("reset", day="1"))
    score(3, incident("fault", day="1"), incident("nvlink", day="2"), incident("xid", "a"))
    score(1, *(incident("xid", job) for job in "abcd"), value="0.25x5")
    score(-1, incident("xid", "a"), value="0.5x5")


def test_a_node_counts_a_job_once_for_all_its_gpus(tmp_path: Path) -> None:
    def place(gpu: int, node: str = "n") -> str:
        labels = f'cluster="c",gpu="{gpu}",instance="{node}",parent="",uuid="U{gpu}"'
        return f"gpunode_gpu_info{{{labels}}}"

    def flaps(device: str) -> str:
        return f'{FLAPS}{{cluster="c",day="1",device="{device}",instance="n",port="1"}}'

    def score(finds: int, *happened: str) -> None:
        there = dict.fromkeys((place(0), place(1), place(2, "other")), "1x300")
        count(tmp_path, SCORE_OF_NODE, {**there, **dict.fromkeys(happened, "1x5")}, 290, str(finds))

    on_both = [incident("xid", "a", uuid=uuid) for uuid in ("U0", "U1")]
    score(1, *on_both)
    score(2, *on_both, incident("waited_for", "b", uuid="U1"))
    score(2, *on_both, incident("xid", "a", uuid="U2"))  # one for each node
    score(2, *on_both, flaps("mlx5_0"), flaps("mlx5_1"))
    score(1, incident("fault", day="1", uuid="U0"), flaps("mlx5_0"))
    score(-1, incident("xid", "a", uuid="gone"))
