"""The way to the one bad rank: what the job's dashboard says of jobs of every kind of owner.

A real Prometheus scrapes what their exporters show and evaluates the shipped rules; Grafana's own
functions make rows and links of the answers.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dashboards import FOLDER
from dashboards.boards.job import REMEDIES
from dashboards.panels import ABSENT, OR_NONE
from dashboards.promql import NO_NAMESPACE
from gpunode.words import CAUSES, REASONS
from tests.daemon import free_port
from tests.dashboards.jobs import PLAYED, ExampleJob, Nodes
from tests.dashboards.queries import CHOSEN, ask, filled, hurried, wait_for
from tests.dashboards.tables import Row, table_rows
from tests.needs import need
from tests.prometheus.incidents import SHORT, prometheus_command
from tests.prometheus.programs import exporter, program

pytestmark = pytest.mark.integration

BOARD = json.loads((FOLDER / "gpunode-job.json").read_text())
PANELS: Mapping[str, Any] = {panel["title"]: panel for panel in BOARD["panels"]}
JOBS = {job.name: job for job in PLAYED}
Found = list[tuple[dict[str, str], float]]


@pytest.fixture(scope="module")
def prometheus() -> Iterator[str]:
    """A Prometheus that has seen every job, and the bad ranks that end, ended."""
    need("prometheus")
    nodes = Nodes(time.monotonic())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port, scraped = free_port(), stack.enter_context(exporter(nodes.text))
        hurried(folder)
        for path in (folder / "rules").iterdir():
            # Of a node that does not answer, what it said is kept until all tests have asked.
            path.write_text(path.read_text().replace(f"[{SHORT['15m']}", "[15m"))
        jobs = [
            {
                "job_name": "gpunode",
                "honor_labels": True,
                "static_configs": [{"targets": [f"127.0.0.1:{scraped}"]}],
            }
        ]
        config = {
            "global": {"scrape_interval": "2s"},
            "scrape_configs": jobs,
            "rule_files": [f"{folder}/rules/*.yaml"],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        stack.enter_context(program(prometheus_command(folder, port), folder / "log"))
        address = f"http://127.0.0.1:{port}"
        wait_for(f"{address}/-/ready")
        whole = sum(job.gpus for job in PLAYED)
        until(lambda: count(address, "count(gpu:gpunode_rank:held_up)") == whole)
        nodes.ended = True
        until(lambda: all(differing(address, job) for job in PLAYED if job.name != "fine"))
        yield address


def until(so: Callable[[], bool], seconds: float = 150.0) -> None:
    give_up = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < give_up
        time.sleep(1.0)


def count(prometheus: str, expression: str) -> int:
    return int(sum(value for _, value in query(prometheus, expression)))


def query(prometheus: str, expression: str) -> Found:
    found = ask(prometheus, expression, True)
    assert "data" in found, found
    return [(one["metric"], float(one["value"][1])) for one in found["data"]["result"]]


def chosen(job: ExampleJob) -> Mapping[str, str]:
    of_job = {"${namespace:pipe}": job.namespace or NO_NAMESPACE, "$job": job.workload}
    return {**CHOSEN, **of_job, "$hosts": f"{job.name}-.*"}


def legend_names(prometheus: str, title: str, selected: Mapping[str, str]) -> list[str]:
    """The names of what a figure shows, as Grafana writes them by their legends; or its text, if
    it shows one for the value.
    """
    (mapping,) = PANELS[title]["fieldConfig"]["defaults"]["mappings"]
    texts = {value: one["text"].strip() for value, one in mapping["options"].items()}
    return [
        texts.get(f"{value:g}") or format_legend(target["legendFormat"], labels)
        for target in PANELS[title]["targets"]
        for labels, value in query(prometheus, filled(target["expr"], selected))
    ]


def format_legend(legend: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), legend)


def differing(prometheus: str, job: ExampleJob) -> list[Row]:
    """The rows of the table of those ranks that differ."""
    return [row for row in listed(prometheus, job) if row.cells.get("Node", ABSENT) != ABSENT]


def listed(prometheus: str, job: ExampleJob) -> list[Row]:
    """The rows of the table, with the one that says that there are none."""
    (target,) = PANELS["Who differs, and how"]["targets"]
    found = query(prometheus, filled(target["expr"], chosen(job)))
    return table_rows(PANELS["Who differs, and how"], [found]) if found else []


RANKS = {
    "k8s": ("3", "uninterruptible", "data_loading_storage", "; 7 wait"),
    "slurm": ("5", "uninterruptible", "data_loading_storage", "; 7 wait"),
    "bare": ("2", "uninterruptible", "data_loading_storage", "; 7 wait"),
    "pods": ("unknown", "uninterruptible", "data_loading_storage", "; 7 wait"),
    "alone": ("0", "-", "shm", ""),
    "large": ("139", "uninterruptible", "data_loading_storage", "; 511 wait"),
    "a100": ("4", "uninterruptible", "data_loading_storage", "; 7 wait"),
    "mig": ("5", "uninterruptible", "data_loading_storage", "; 6 wait"),
    "crashed": ("11", "-", "no_process", "; 15 wait"),
}
"""Of each job the bad rank, why it is waited for, its verdict, and the rest of the sentence."""


@pytest.mark.parametrize("name", RANKS)
def test_the_one_bad_rank_is_named_and_its_row_leads_to_it(name: str, prometheus: str) -> None:
    job = JOBS[name]
    rank, reason, verdict, others = RANKS[name]
    (row,) = differing(prometheus, job)
    cells = {column: text for column, text in row.cells.items() if column != "For"}
    node, gpu = job.node(job.bad), job.gpu(job.bad)
    assert cells == {
        "Rank": rank,
        "Node": node,
        "GPU": gpu,
        "Verdict": CAUSES[verdict].headline,
        "Waited for": REASONS[reason].headline if reason in REASONS else reason,
    }
    assert row.selects("Node")["node"] == node
    assert (row.selects("GPU")["node"], row.selects("GPU")["gpu"]) == (node, gpu)
    (sentence,) = legend_names(prometheus, "The odd one out", chosen(job))
    who = f"rank {rank} · " if rank != "unknown" else ""
    said_of = "full /dev/shm" if verdict == "shm" else verdict.replace("_", " ")
    assert sentence == f"{who}{node} GPU {gpu}: {said_of}{others} · since"
    (todo,) = legend_names(prometheus, "What to do", chosen(job))
    assert REMEDIES[todo] == (REASONS[reason] if reason in REASONS else CAUSES[verdict]).do


@pytest.fixture(scope="module")
def losing(prometheus: str) -> list[Row]:
    """The rows of Fleet's table of the jobs that lose most."""
    panels = json.loads((FOLDER / "gpunode-fleet.json").read_text())["panels"]
    (panel,) = (one for one in panels if one["title"] == "Jobs that lose most")

    expressions = [filled(one["expr"]) for one in panel["targets"]]
    return table_rows(panel, [query(prometheus, expression) for expression in expressions])


def of_row(row: Row) -> list[ExampleJob]:
    return [job for job in PLAYED if job.workload == row.cells["Job"]]


@pytest.mark.parametrize("name", RANKS)
def test_two_clicks_lead_from_the_fleet_to_the_one_bad_rank(
    name: str, prometheus: str, losing: list[Row]
) -> None:
    """One on the job in Fleet, one on the GPU in the job, whoever owns it, whatever it runs on."""
    (row,) = (one for one in losing if of_row(one) == [JOBS[name]])
    opened = row.selects("Job")
    of_job = {"${namespace:pipe}": opened["namespace"], "$job": opened["job"]}
    cluster = {"$cluster": ".*" if opened["cluster"] == "All" else opened["cluster"]}
    (target,) = PANELS["Who differs, and how"]["targets"]
    found = query(prometheus, filled(target["expr"], {**CHOSEN, **of_job, **cluster}))
    (bad,) = table_rows(PANELS["Who differs, and how"], [found])
    led = bad.selects("GPU")
    job = JOBS[name]
    assert (led["node"], led["gpu"]) == (job.node(job.bad), job.gpu(job.bad))


def test_all_ranks_of_a_node_that_is_not_seen_stay(prometheus: str) -> None:
    rows = differing(prometheus, JOBS["lost"])
    assert {row.cells["Rank"] for row in rows} == {str(rank) for rank in range(8, 16)}
    assert {row.cells["Verdict"] for row in rows} == {CAUSES["unseen"].headline}


def test_nobody_differs_in_a_job_that_runs_well(prometheus: str) -> None:
    assert differing(prometheus, JOBS["fine"]) == []
    (row,) = listed(prometheus, JOBS["fine"])
    assert row.cells["Rank"] == "No such rank"
    assert legend_names(prometheus, "The odd one out", chosen(JOBS["fine"])) == ["GPUs, all alike"]


def test_of_a_job_that_is_not_there_nothing_good_is_said(prometheus: str) -> None:
    nobody = {**CHOSEN, "$job": "no-such-job"}
    for title, text in (
        ("The odd one out", "Not running"),
        ("Main cause", "Not running"),
        ("Starved", "Not running"),
        ("Step", "Needs the training client"),
    ):
        assert legend_names(prometheus, title, nobody) == [text], title
    for title in ("Who differs, and how", "Alerts of the job and its nodes"):
        (target,) = PANELS[title]["targets"]
        assert query(prometheus, filled(target["expr"], {**nobody, "$hosts": "no-such-node"})) == []


@pytest.mark.parametrize("name", ["k8s", "crashed", "large"])
@pytest.mark.parametrize(
    "title", ["What holds each rank up", "Time each rank waits for its peers", "Waited for"]
)
def test_ranks_are_in_the_order_of_their_numbers(title: str, name: str, prometheus: str) -> None:
    first, *_ = PANELS[title]["targets"]
    expression = filled(first["expr"].partition(OR_NONE)[0], chosen(JOBS[name]))
    found = ask(prometheus, expression, False)["data"]["result"]
    ranks = [int(one["metric"]["rank"]) for one in found]
    assert ranks == sorted(ranks)


@pytest.mark.parametrize("name", JOBS)
def test_every_rank_of_a_job_has_a_row_up_to_the_limit(name: str, prometheus: str) -> None:
    """Whether or not its process is known, or still there."""
    job = JOBS[name]
    first, *_ = PANELS["What holds each rank up"]["targets"]
    assert len(query(prometheus, filled(first["expr"], chosen(job)))) == min(32, job.gpus)


@pytest.mark.parametrize("name", JOBS)
def test_no_query_fails_nor_answers_with_a_series_for_each_of_many_ranks(
    name: str, prometheus: str
) -> None:
    for panel in PANELS.values():
        for target in panel.get("targets", ()):
            found = query(prometheus, filled(target["expr"], chosen(JOBS[name])))
            assert len(found) <= 32, panel["title"]


def test_no_expensive_query_is_asked_twice() -> None:
    """What a timeline says of nothing asks for a recorded series, not for its rows again."""
    for panel in PANELS.values():
        first, *others = (target["expr"] for target in panel.get("targets", [{"expr": ""}]))
        assert not any(first in other for other in others), panel["title"]
