"""What the bench of the dashboards holds against them: seconds, errors and empty answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.fleet import DASHBOARDS, LOADS_IN, default_range, judged
from bench.large_jobs import BAD, LEAST_ANSWERED, MOST_BYTES, asked, stored
from dashboards import FOLDER
from dashboards.boards import BOARDS
from dashboards.layout import Board
from tests.daemon import free_port
from tests.dashboards.queries import ASK_FOR_FAULTS, EMPTY, Asked, asked_for, wait_for
from tests.needs import need
from tests.prometheus.incidents import prometheus_command
from tests.prometheus.programs import program

JOB = "gpunode-job"
ONE_OF = ("job", "node", "gpu")


def found(uid: str, answered: int, of: int = 100, seconds: float = 0.001) -> list[Asked]:
    """So many queries of which some found a series."""
    return [Asked(uid, f"p{at}", "A", int(at < answered), seconds, "") for at in range(of)]


@pytest.mark.parametrize(("answered", "met"), [(100, True), (80, True), (79, False), (0, False)])
def test_a_dashboard_whose_queries_find_little_fails(answered: int, met: bool) -> None:
    assert judged(JOB, found(JOB, answered), LOADS_IN).met is met


def test_queries_that_cannot_find_anything_do_not_count() -> None:
    ((uid, panel, letter), *_) = (one for one in EMPTY if one[0] == JOB)
    cannot = [Asked(uid, panel, letter, 0, 0.001, "")] * 100
    assert judged(JOB, [*found(JOB, 4, 5), *cannot], LOADS_IN).met
    assert not judged(JOB, [*found(JOB, 3, 5), *cannot], LOADS_IN).met


def test_what_cannot_find_anything_is_on_a_dashboard() -> None:
    there = {
        (path.stem, panel["title"], target["refId"])
        for path in FOLDER.glob("*.json")
        for panel in json.loads(path.read_text())["panels"]
        for target in panel.get("targets", ())
    }
    assert EMPTY.keys() <= there


def test_a_query_that_fails_or_is_slow_fails() -> None:
    failed = Asked(JOB, "p", "A", 1, 0.001, "too many samples")
    assert not judged(JOB, [*found(JOB, 100), failed], LOADS_IN).met
    assert not judged(JOB, found(JOB, 100, seconds=LOADS_IN / 90), LOADS_IN).met


@pytest.mark.parametrize(("size", "met"), [(int(MOST_BYTES), True), (int(MOST_BYTES) + 1, False)])
def test_answers_of_more_bytes_fail(size: int, met: bool) -> None:
    large = Asked(JOB, "p", "A", 1, 0.001, "", size)
    assert judged(JOB, [*found(JOB, 99), large], LOADS_IN).met is met


def test_every_dashboard_is_asked_over_the_range_that_it_opens_with() -> None:
    assert {board.uid for board in BOARDS} == DASHBOARDS.keys()
    hours = {uid: default_range(uid) / 3600 for uid in DASHBOARDS}
    assert (hours[JOB], hours["gpunode-health"], hours["gpunode-capacity"]) == (6, 24, 720)


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_a_dashboard_is_asked_of_one_where_it_offers_no_all(board: Board) -> None:
    few = {f"${one.name}" for one in board.variables if one.name in ONE_OF and not one.include_all}
    selected, _ = DASHBOARDS[board.uid]
    assert few <= selected.keys()


def test_a_dashboard_of_faults_is_excused_for_a_reason() -> None:
    """That it finds what is broken is tested where everything is."""
    for uid, reason in ASK_FOR_FAULTS.items():
        (board,) = (one for one in BOARDS if one.uid == uid)
        assert board.description.startswith("What is broken")
        assert reason
        assert judged(uid, found(uid, 0), LOADS_IN).met


@pytest.mark.integration
def test_most_panels_of_a_large_job_find_something(tmp_path: Path) -> None:
    """Or its seconds and bytes would be those of a dashboard that is half empty."""
    need("prometheus")
    port = free_port()
    stored(tmp_path, 2 * BAD)
    (tmp_path / "prometheus.yml").write_text("{}")
    with program(prometheus_command(tmp_path, port), tmp_path / "log"):
        address = f"http://127.0.0.1:{port}"
        wait_for(f"{address}/-/ready", 120)
        *_, answered, _ = asked(address, FOLDER / f"{JOB}.json")
    assert answered >= LEAST_ANSWERED


def test_a_dashboard_asks_for_series() -> None:
    assert {"job:gpunode_job:gpus", "run:gpunode_run:seen"} <= asked_for(JOB)
