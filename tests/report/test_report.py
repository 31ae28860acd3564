"""The capacity report: its figures against a fleet whose truth is known, and what can go wrong."""

from __future__ import annotations

import csv
import email
import io
import json
import os
import re
import resource
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from email.policy import SMTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import httpx2
import promql_parser
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import Browser

from dashboards.boards import capacity
from dashboards.queries import LOST
from dashboards.rules import labels_of, records
from gpunode.cli.main import main
from gpunode.gpu.ledger import STATES
from gpunode.mistake import UsageError
from gpunode.report import history, prometheus, words
from gpunode.report.document import Report, ReportSection, Table, TableColumn
from gpunode.report.history import HOUR, Query
from gpunode.report.page import as_csv
from gpunode.report.sections.losses import loss_of
from gpunode.report.sections.trend import trend
from gpunode.verdict.causes import CAUSES
from tests.daemon import Daemon, free_port
from tests.needs import need
from tests.prometheus.known import (
    GAINS,
    GPUS,
    USEFUL,
    Fault,
    Fleet,
    Job,
    QueuedJobs,
    backfill,
    recorded_fleet,
)
from tests.prometheus.known import served as serving
from tests.prometheus.programs import program, served
from tests.prometheus.shipped import intervals
from tests.test_words import raw_names

DAY = 24
START = 1_785_542_400
"""2026-08-01, 00:00 UTC."""

BEGIN, END = 14 * DAY, 28 * DAY
"""The hours of the fleet that the report is on; those before are what it compares them with."""

HOSTILE = '<script>alert("1")</script>'
TOLERANCE = 0.01
TIMES = ("--from=2026-08-15", "--to=2026-08-29")

# Some of its nodes have had an exporter of ten states: `memory` counts as `compute`, beside it or
# not, and `launch` as `starved`.
FLEET = Fleet(
    start=START,
    hours=END,
    nodes={
        **{f"n{at}": (0, END) for at in range(10)},
        "new": (20 * DAY, END),
        "gone": (0, 16 * DAY),
    },
    jobs=(
        Job(
            workload="llm",
            namespace="research",
            nodes=("n0", "n1", "n2"),
            begin=0,
            end=END,
            shares={"compute": 0.5, "memory": 0.1, "starved": 0.3, "blocked": 0.1},
            causes={"data_loading_cpu": 0.6, "straggler": 0.1},
            phases={"step": 0.8, "data": 0.15, "checkpoint": 0.05},
            mfu=0.42,
            steps=(1.0, 1.0, 1.0, 1.3),
            blocked={"n1": 0.02},
            versions={"driver": ("570.133.20", "580.159.04", 20 * DAY)},
        ),
        Job(
            workload="vision",
            namespace="research",
            nodes=("n3", "n4", "n5"),
            begin=16 * DAY,
            end=27 * DAY,
            shares={"compute": 0.7, "communication": 0.2, "launch": 0.1},
            causes={"communication": 0.3, "kernel_launch": 0.2},
            phases={"step": 0.95, "data": 0.05},
            mfu=0.3,
        ),
        Job(
            workload="slurm-77",
            user="kim",
            nodes=("n6",),
            begin=14 * DAY,
            end=26 * DAY,
            shares={"compute": 0.2, "idle": 0.8},
        ),
        Job(
            workload=HOSTILE,
            namespace="=cmd()",
            nodes=("n7",),
            kind="interactive",
            begin=0,
            end=END,
            shares={"idle": 0.95, "compute": 0.05},
            working_hours=True,
        ),
        Job(
            workload="chat",
            namespace="web",
            nodes=("n8",),
            kind="serving",
            begin=0,
            end=END,
            shares={"compute": 0.3, "memory": 0.3, "starved": 0.4},
            causes={"no_requests": 0.4},
            tokens=2000.0,
            asked=(6, 24),
        ),
    ),
    faults=(
        Fault("n9", "network", 15 * DAY * HOUR + 500, 7200),
        Fault("n9", "network", 19 * DAY * HOUR, 3600),
        Fault("n6", "XID 79", 18 * DAY * HOUR, 3600, gpu="2"),
        Fault("n9", "exporter", 16 * DAY * HOUR, 900, severity="ticket"),
    ),
    queue=(
        QueuedJobs("slurm_account_jobs_pending", {"account": "ml"}, 12, 20 * DAY, 22 * DAY),
        QueuedJobs("slurm_account_jobs_pending_total", {"account": "ml"}, 12, 20 * DAY, 21 * DAY),
        QueuedJobs(
            "slurm_account_job_state_total",
            {"account": "bio", "state": "PENDING"},
            3,
            21 * DAY,
            22 * DAY,
        ),
    ),
    missing=frozenset(range(17 * DAY + 3, 17 * DAY + 9)),
    models={"n6": "NVIDIA H100 80GB HBM3"},
)


class Outcome(NamedTuple):
    """How the command ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda url, *more: _run(capfd, url, *more)


def _run(capfd: pytest.CaptureFixture[str] | None, url: str, *more: str) -> Outcome:
    try:
        main(["report", f"--prometheus.url={url}", *more])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    return Outcome(code, *(capfd.readouterr() if capfd else ("", "")))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus with the fleet's past."""
    need("prometheus")
    need("promtool")
    with recorded_fleet(FLEET, tmp_path_factory.mktemp("past")) as found:
        yield found


class Written:
    """A report as JSON."""

    def __init__(self, text: str) -> None:
        self.whole: dict[str, Any] = json.loads(text)
        self.sections = {one["name"]: one for one in self.whole["sections"]}

    def figure(self, section: str, name: str) -> Any:
        (found,) = (one for one in self.sections[section]["figures"] if one["name"] == name)
        return found["value"]

    def rows(self, section: str, name: str) -> list[dict[str, Any]]:
        (found,) = (one for one in self.sections[section]["tables"] if one["name"] == name)
        names = [column["name"] for column in found["columns"]]
        return [dict(zip(names, row, strict=True)) for row in found["rows"]]

    def by(self, section: str, table: str, key: str) -> dict[str, dict[str, Any]]:
        return {row[key]: row for row in self.rows(section, table)}


@pytest.fixture(scope="module")
def written(url: str, tmp_path_factory: pytest.TempPathFactory) -> Written:
    file = tmp_path_factory.mktemp("report") / "report.json"
    options = ("--price=2.5", "--format=json", f"--output={file}")
    assert _run(None, url, *TIMES, *options).code == 0
    return Written(file.read_text())


def test_no_raw_name_is_said(url: str, run: Run) -> None:
    assert not raw_names(run(url, *TIMES, "--price=2.5").out)


# The figures are those of the fleet


def near(found: float, truth: float) -> bool:
    return found == pytest.approx(truth, rel=TOLERANCE)


def truth(first: int = BEGIN, last: int = END) -> dict[Job, float]:
    return FLEET.job_hours(first, last)


def by_state(written: Written) -> dict[str, float]:
    """GPU hours by state, over all days."""
    days = written.rows("change", "days")
    return {state: sum(day[state] or 0.0 for day in days) for state in STATES}


def test_hours_by_state_and_the_price_of_those_lost(written: Written) -> None:
    expected = FLEET.by_state(BEGIN, END)
    found = by_state(written)
    assert {state for state, hours in found.items() if hours} == expected.keys()
    for state, hours in expected.items():
        assert near(found[state], hours)
    whole = sum(expected.values())
    useful = sum(expected[state] for state in USEFUL)
    held = whole - expected["free"]
    assert near(written.figure("summary", "gpu_hours"), whole)
    assert near(written.figure("summary", "allocated"), held / whole)
    assert near(written.figure("summary", "useful"), useful / whole)
    assert near(written.figure("summary", "lost"), held - useful)
    assert near(written.figure("summary", "lost_cost"), 2.5 * (held - useful))


def test_jobs_that_lost_most_and_what_would_give_it_back(written: Written) -> None:
    rows = written.rows("losers", "jobs")
    lost = {job.workload: hours * (1.0 - job.useful) for job, hours in truth().items()}
    assert [row["job"] for row in rows] == sorted(lost, key=lambda name: -lost[name])
    for row in rows:
        assert near(row["lost"], lost[row["job"]])
        assert near(row["cost"], 2.5 * lost[row["job"]])
    of = {row["job"]: row for row in rows}
    hours = {job.workload: held for job, held in truth().items()}
    assert of["llm"]["cause"] == "Data loading: CPUs at limit"
    assert of["slurm-77"]["cause"] == "Idle: held, not used"
    assert near(of["llm"]["given_back"], 0.3 * hours["llm"])
    assert near(of["vision"]["given_back"], 0.2 * hours["vision"])
    assert near(of["slurm-77"]["given_back"], 0.8 * hours["slurm-77"])
    assert of["llm"]["remedy"] == words.REMEDIES["data_loading_cpu"].do
    assert "nothing to run for 30.0" in of["llm"]["evidence"]


@pytest.mark.parametrize(
    ("states", "causes", "expected"),
    [
        ({"starved": 40, "idle": 30}, {"shm": 50}, ("starved", "shm", 40)),
        ({"starved": 40, "idle": 30}, {"shm": 20}, ("idle", "", 30)),
        ({"starved": 40}, {"shm": 30, "compile": 90}, ("starved", "compile", 30)),
        ({"idle": 50, "starved": 55}, {"kernel_launch": 60}, ("starved", "kernel_launch", 55)),
        ({"compute": 50, "copy": 5}, {"thermal": 40}, ("copy", "", 5)),
        ({"unknown": 50, "copy": 5}, {}, ("unknown", "", 0)),
        # The cause that takes most of a state comes first.
        (
            {"starved": 10},
            {"kernel_launch": 2, "data_loading_cpu": 8},
            ("starved", "data_loading_cpu", 8),
        ),
        # No more than the verdict was there.
        ({"starved": 50}, {"unexplained": 30}, ("starved", "unexplained", 30)),
        ({"starved": 85}, {"data_loading_cpu": 50}, ("starved", "data_loading_cpu", 50)),
    ],
)
def test_what_would_give_back_most(
    states: dict[str, float], causes: dict[str, float], expected: tuple[str, str, float]
) -> None:
    loss = loss_of(states, causes)
    assert (loss.state, loss.cause, loss.given_back) == expected
    assert loss.evidence.startswith(words.headline(loss.state))
    assert loss.given_back <= sum(states.values())


def test_what_each_cause_took_and_what_comes_back_of_it(written: Written) -> None:
    held = {job.workload: hours for job, hours in truth().items()}
    rows = written.by("summary", "causes", "cause")
    lost = {
        "data_loading_cpu": 0.3 * held["llm"],
        "straggler": 0.1 * held["llm"],
        "communication": 0.2 * held["vision"],
        "kernel_launch": 0.1 * held["vision"],
        "no_requests": 0.4 * held["chat"],
        "idle": 0.8 * held["slurm-77"] + 0.95 * held[HOSTILE],
    }
    assert rows.keys() == lost.keys()
    named = {"data_loading_cpu": 0.6 * held["llm"], "kernel_launch": 0.2 * held["vision"]}
    for cause, hours in lost.items():
        assert near(rows[cause]["gpu_hours"], hours)
        assert near(rows[cause]["cost"], 2.5 * hours)
    for cause, hours in named.items():
        assert near(rows[cause]["given_back"], GAINS["estimate"] * hours)
        assert near(rows[cause]["given_back_lower"], GAINS["lower"] * hours)
        assert near(rows[cause]["given_back_upper"], GAINS["upper"] * hours)
    assert near(rows["idle"]["given_back"], lost["idle"]), "jobs that idle for half of their time"
    assert rows["no_requests"]["given_back"] == 0, "its job ran something for most of its time"
    assert near(rows["no_requests"]["given_back_upper"], lost["no_requests"])


def adds_up(written: Written, priced: bool) -> None:
    """Each whole of the waterfall is the sum of its parts, in hours and in money."""
    rows = written.rows("summary", "waterfall")
    hours = {row["part"]: row for row in rows}
    for column in ("gpu_hours", *(["cost"] if priced else [])):
        for whole, parts in (
            ("installed", "installed"),
            ("held", "held"),
            ("lost", "lost by cause"),
            ("lost", "lost"),
        ):
            of = [row[column] for row in rows if row["of"] == parts]
            assert sum(of) == pytest.approx(hours[whole][column]), (whole, parts, column)
            assert min(of) >= 0


def test_the_parts_of_each_whole_add_up_to_it(written: Written, folder: Path) -> None:
    adds_up(written, priced=True)
    found = Written((folder / "report.json").read_text())
    adds_up(found, priced=True)  # at a price for each model
    causes = written.rows("summary", "causes")
    back = written.by("summary", "waterfall", "part")["back"]
    assert sum(row["given_back"] or 0 for row in causes) == pytest.approx(back["gpu_hours"])
    assert near(back["gpu_hours"], found.by("summary", "waterfall", "part")["back"]["gpu_hours"])


def test_three_actions_say_what_comes_back_whom_to_ask_and_how_sure(written: Written) -> None:
    actions = written.rows("summary", "actions")
    held = {job.workload: hours for job, hours in truth().items()}
    assert [row["what"] for row in actions] == [
        "Held, and nothing runs",
        "Data loading: CPUs at limit",
        "Communication not hidden",
    ]
    idle, data, _ = actions
    assert near(idle["given_back"], 0.8 * held["slurm-77"] + 0.95 * held[HOSTILE])
    assert near(data["cost"], 2.5 * GAINS["estimate"] * 0.6 * held["llm"])
    assert data["ask"].startswith("research (")
    assert data["sure"].endswith("(90\u202f%)")
    assert idle["sure"].endswith(", counted")
    assert data["remedy"] == words.REMEDIES["data_loading_cpu"].do


GROUPS: dict[str, Callable[[Job], str]] = {
    "user": lambda job: job.user or "no user",
    "job": lambda job: f"{job.workload} ({job.namespace or job.user})",
    "kind": lambda job: words.KINDS[job.kind],
}


@pytest.mark.parametrize("by", GROUPS)
def test_hours_by_who_held_them(run: Run, url: str, by: str) -> None:
    ended = run(url, *TIMES, f"--by={by}", "--format=json", "--output=-")
    rows = Written(ended.out).by("groups", "groups", "name")
    expected: dict[str, float] = defaultdict(float)
    for job, hours in truth().items():
        expected[GROUPS[by](job)] += hours
    assert rows.keys() == expected.keys()
    for name, hours in expected.items():
        assert near(rows[name]["held"], hours)


@pytest.mark.parametrize("by", ["node", "model"])
def test_hours_by_node_and_model(run: Run, url: str, by: str) -> None:
    rows = Written(run(url, *TIMES, f"--by={by}", "--format=json", "--output=-").out)
    held = sum(truth().values())
    found = rows.by("groups", "groups", "name")
    assert near(sum(row["held"] for row in found.values()), held)
    if by == "node":
        assert near(found["n8"]["useful"], 0.6)
    else:
        of_h100 = sum(hours for job, hours in truth().items() if job.nodes == ("n6",))
        assert near(found["NVIDIA H200"]["held"], held - of_h100)


BILLING = """
currency: EUR
from: bills@example.com
price: 9
prices:
  NVIDIA H100*: 1.5
  NVIDIA H200: 2.5
teams:
  models:
    namespaces: [res*]
    mail: [models@example.com]
  ../../etc/passwd:
    accounts: [ml]
"""
SACCT = """JobIDRaw|Account|Submit|Eligible|Start
77|ml|2026-08-14T20:00:00|2026-08-14T22:00:00|2026-08-15T00:00:00
77.batch|ml|2026-08-15T00:00:00|2026-08-15T00:00:00|2026-08-15T00:00:00
78|ml|2026-08-16T00:00:00|Unknown|2026-08-16T01:00:00
79|bio|2026-08-16T00:00:00|2026-08-16T00:00:00|Unknown
80|bio|2026-06-16T00:00:00|2026-06-16T00:00:00|2026-06-17T00:00:00
"""


@pytest.fixture(scope="module")
def folder(url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a report writes for a site with teams, prices and Slurm."""
    at = tmp_path_factory.mktemp("bills")
    (at / "billing.yaml").write_text(BILLING)
    (at / "sacct.txt").write_text(SACCT)
    files = (f"--billing-file={at}/billing.yaml", f"--sacct-file={at}/sacct.txt")
    assert _run(None, url, *TIMES, *files, f"--out-folder={at}/out").code == 0
    return at / "out"


def test_the_bills_of_teams_add_up_to_the_whole(folder: Path) -> None:
    found = Written((folder / "report.json").read_text())
    rows = found.by("bills", "bills", "team")
    hours = {job.workload: held for job, held in truth().items()}
    useful = {job.workload: held * job.useful for job, held in truth().items()}
    assert rows.keys() == {"models", "../../etc/passwd", "no team", "held by nobody"}
    assert near(rows["models"]["held"], hours["llm"] + hours["vision"])
    assert near(rows["models"]["held_cost"], 2.5 * (hours["llm"] + hours["vision"]))
    assert near(rows["models"]["useful_cost"], 2.5 * (useful["llm"] + useful["vision"]))
    assert near(rows["../../etc/passwd"]["held_cost"], 1.5 * hours["slurm-77"])
    assert near(rows["no team"]["held_cost"], 2.5 * (hours["chat"] + hours[HOSTILE]))
    free_h100 = GPUS * (END - BEGIN - len(FLEET.missing)) - hours["slurm-77"]
    free = FLEET.by_state(BEGIN, END)["free"]
    nobody = 2.5 * (free - free_h100) + 1.5 * free_h100
    assert near(rows["held by nobody"]["held_cost"], nobody)
    whole = sum(FLEET.by_state(BEGIN, END).values())
    priced = 2.5 * whole - 1.0 * (free_h100 + hours["slurm-77"])
    exact = pytest.approx(whole, rel=0.001)
    assert sum(row["held"] for row in rows.values()) == exact
    assert sum(row["useful"] + row["lost"] for row in rows.values()) == exact
    assert sum(row["held_cost"] for row in rows.values()) == pytest.approx(priced, rel=0.001)
    for row in rows.values():
        assert row["useful_cost"] + row["lost_cost"] == pytest.approx(row["held_cost"])
    assert "Jobs of =cmd(), web belong to no team." in found.sections["bills"]["says"]
    assert near(found.figure("summary", "lost_cost"), _lost_price(hours, useful))


def _lost_price(hours: Mapping[str, float], useful: Mapping[str, float]) -> float:
    return sum(
        (1.5 if name == "slurm-77" else 2.5) * (held - useful[name]) for name, held in hours.items()
    )


def test_each_team_has_a_page_a_text_and_a_mail_of_its_own(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {
        *(f"report.{form}" for form in ("html", "json", "csv")),
        *(f"team-{name}.{form}" for name in ("models", "etc-passwd") for form in ("html", "txt")),
        *("team-no-team.html", "team-no-team.txt", "team-models.eml"),
    }
    text = (folder / "team-models.txt").read_text()
    assert max(map(len, text.splitlines())) <= 78
    assert "models held 14,112 GPU hours, worth EUR 35,280" in text
    assert "worth EUR" in text
    assert text.index("Data loading: CPUs") < text.index("Communication not hidden")
    remedy = words.REMEDIES["data_loading_cpu"].do
    assert remedy in " ".join(text.split())
    page = (folder / "team-models.html").read_text()
    assert remedy in page
    assert "slurm-77" not in page + text
    message = email.message_from_bytes((folder / "team-models.eml").read_bytes(), policy=SMTP)
    assert (message["From"], message["To"]) == ("bills@example.com", "models@example.com")
    assert message["Subject"].startswith("GPU bill of models, 15 Aug 2026 to 29 Aug 2026")
    body = message.get_body(("plain",))
    assert body is not None
    assert body.get_content().splitlines() == text.splitlines()
    (attached,) = message.iter_attachments()
    assert attached.get_content().rstrip() == page.rstrip()


def test_time_in_the_queue_of_slurm(folder: Path, written: Written) -> None:
    found = Written((folder / "report.json").read_text())
    (row,) = found.rows("queue", "queue")
    assert row["account"] == "ml"
    assert (row["jobs"], row["median"], row["long"], row["sum"]) == (2, 1.5 * HOUR, 2 * HOUR, 3)
    assert {one["name"] for one in written.sections["queue"]["tables"]} == {"queued"}


def test_how_many_jobs_wait_as_an_exporter_for_slurm_tells(
    run: Run, url: str, written: Written
) -> None:
    """Two exporters tell of the same jobs; hours without any are left out."""
    rows = written.by("queue", "queued", "account")
    assert near(rows["ml"]["sum"], 12 * 48)
    assert near(rows["ml"]["jobs"], 12)
    assert near(rows["bio"]["sum"], 3 * 24)
    assert near(rows["bio"]["jobs"], 1.5)
    assert "the 48 of 336 hours of which the queue is known" in written.sections["queue"]["says"]
    earlier = run(url, "--from=2026-08-02", "--to=2026-08-04", "--format=json", "--output=-")
    assert "Not known" in Written(earlier.out).sections["queue"]["says"]


CUT = """[...document.querySelectorAll("table, p, h2, h3, dl")]
    .filter(one => one.checkVisibility() && one.scrollWidth > one.parentElement.clientWidth)
    .map(one => one.textContent.slice(0, 80))"""


def test_nothing_but_charts_is_wider_than_a_phone(folder: Path, browser: Browser) -> None:
    for width in (390, 1280):
        page = browser.new_page(viewport={"width": width, "height": 844})
        for name in ("report", "team-models"):
            page.goto((folder / f"{name}.html").as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert page.evaluate(CUT) == []
        page.close()


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("billing-file", "team: {}", "team"),
        ("billing-file", "price: -1", "price"),
        ("billing-file", "prices: {A100: nan}", "prices.A100"),
        ("billing-file", "currency: '<b>'", "currency"),
        ("billing-file", "teams: {a: {namespace: x}}", "teams.a.namespace"),
        ("billing-file", "teams: {a: {mail: ['a@b\\nBcc: c@d']}}", "teams.a.mail.0"),
        ("sacct-file", "", "SLURM_TIME_FORMAT=%s sacct --allusers"),
        ("sacct-file", "JobIDRaw|Account|Submit|Start\n1|a", "line 2"),
    ],
)
def test_a_mistake_in_a_file_of_the_site_is_told(
    run: Run, url: str, name: str, text: str, told: str
) -> None:
    Path("file").write_text(text)
    ended = run(url, *TIMES, f"--{name}=file")
    assert (ended.code, ended.out) == (2, "")
    (line,) = ended.err.splitlines()
    assert line.startswith("gpunode: file: ")
    assert told in line


def test_what_was_held_and_not_used(written: Written) -> None:
    hours = {job.workload: held for job, held in truth().items()}
    assert near(written.figure("idle", "idle"), FLEET.by_state(BEGIN, END)["idle"])
    assert near(written.figure("idle", "held_interactive"), hours[HOSTILE])
    assert near(written.figure("idle", "held_serving"), hours["chat"])
    assert near(
        written.figure("idle", "held_training"),
        sum(hours.values()) - hours["chat"] - hours[HOSTILE],
    )
    idle = written.by("idle", "idle", "job")
    assert near(idle["slurm-77"]["idle"], 0.8 * hours["slurm-77"])
    assert idle[HOSTILE]["kind"] == "notebooks"
    assert near(idle[HOSTILE]["now"], 0.95 * GPUS * 10 / 24), "it holds them for ten hours a day"
    assert idle["slurm-77"]["now"] is None, "it has ended"


def test_training_over_weeks(written: Written) -> None:
    hours = {job.workload: held for job, held in truth().items()}
    llm, vision = hours["llm"], hours["vision"]
    assert near(written.figure("training", "goodput"), (0.8 * llm + 0.95 * vision) / (llm + vision))
    assert near(written.figure("training", "mfu"), (0.42 * llm + 0.3 * vision) / (llm + vision))
    weeks = written.rows("training", "weeks")
    assert len(weeks) == 2
    for week, (first, last) in zip(weeks, ((14, 21), (21, 28)), strict=True):
        of = truth(first * DAY, last * DAY)
        held = sum(h for job, h in of.items() if job.kind == "training")
        useful = sum(h * job.useful for job, h in of.items() if job.kind == "training")
        assert near(week["held"], held)
        assert near(week["useful"], useful / held)
    (slower,) = written.rows("training", "step_regressions")
    assert slower["job"] == "llm"
    assert near(slower["ratio"], 1.3)
    assert slower["since"] == "2026-08-22 00:00"


def test_what_the_tokens_of_a_service_cost(written: Written) -> None:
    (chat,) = written.rows("serving", "services")
    hours = END - BEGIN - len([hour for hour in FLEET.missing if BEGIN <= hour < END])
    asked = sum(hour % 24 >= 6 for hour in FLEET.known(range(BEGIN, END)))
    millions = asked * 3600 * 2000 / 1e6
    assert chat["job"] == "chat"
    assert near(chat["tokens"], millions * 1e6)
    assert near(chat["replicas"], hours / (END - BEGIN))
    assert near(chat["idle"], 1 - asked / hours)
    assert near(chat["cost_per_million"], chat["held"] * 2.5 / millions)


def test_energy(written: Written) -> None:
    states = FLEET.by_state(BEGIN, END)
    energy = sum(states.values()) * FLEET.watts / 1000
    assert near(written.figure("energy", "energy"), energy)
    useful = sum(states[state] for state in USEFUL)
    assert near(written.figure("energy", "energy_per_useful_hour"), energy / useful)
    blocked, waiting = states["blocked"], sum(states[state] for state in history.WAITING)
    for name, hours in (("energy_blocked", blocked), ("energy_waiting", waiting)):
        assert near(written.figure("energy", name), hours * FLEET.watts / 1000)


def test_nodes_slower_than_their_peers(written: Written) -> None:
    (node,) = written.rows("slow_nodes", "slow_nodes")
    assert node["node"] == "n1"
    assert near(node["behind"], 0.08)
    assert near(node["hours"], END - BEGIN - len(FLEET.missing))
    assert near(node["waited"], 0.08 * node["hours"] * 2 * GPUS)


def test_changes_of_versions_are_asked_for(written: Written) -> None:
    """One job met it, which is too few for more than its pace."""
    assert written.rows("changes", "changes") == []
    pace = {row["workload"]: row for row in written.rows("changes", "pace")}
    assert pace.keys() == {"llm"}
    assert near(pace["llm"]["useful"], 0.6)


def test_a_baseline_of_too_few_jobs_accepts_nothing(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = tmp_path / "before.json"
    wrote = ("--format=json", f"--output={before}")
    assert _run(capfd, url, *TIMES, *wrote).code == 0
    now = (f"--baseline={before}", "--output=-", "--format=csv")
    ran = _run(capfd, url, *TIMES, *now, "--fail-if-worse=3%")
    assert ran.code == 1
    assert "It cannot be told whether jobs are slower: 1 of 1 jobs of the baseline" in ran.err
    assert _run(capfd, url, *TIMES, *now).code == 0, "it only says so"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--fail-if-worse=3%",), "fail-if-worse: than what?"),
        (("--baseline=BEFORE", "--fail-if-worse=much"), "fail-if-worse: 'much' is no share"),
        (("--baseline=/nowhere.json",), "/nowhere.json: No such file or directory"),
        (("--baseline=BEFORE",), "give what gpunode report --format=json wrote"),
    ],
)
def test_a_baseline_that_cannot_be_used_is_misuse(
    options: tuple[str, ...],
    says: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "before").write_text("{}")
    given_options = [one.replace("BEFORE", str(tmp_path / "before")) for one in options]
    ran = _run(capfd, "http://127.0.0.1:9", *given_options)
    assert ran.code == 2
    assert says in ran.err


def test_failures(written: Written) -> None:
    faults = written.by("failures", "faults", "fault")
    assert faults.keys() == {"network port", "XID 79"}
    assert (faults["network port"]["count"], faults["network port"]["times"]) == (1, 2)
    assert near(faults["network port"]["lost"], 3 * GPUS)
    assert near(faults["XID 79"]["lost"], 1)


def test_days_between_two_failures(written: Written) -> None:
    there = FLEET.by_state(BEGIN, END)
    days = sum(there.values()) / GPUS / 24
    assert near(written.figure("failures", "node_hours_between"), days / 2)


def test_better_or_worse_than_before(written: Written) -> None:
    now, before = FLEET.by_state(BEGIN, END), FLEET.by_state(0, BEGIN)
    rows = written.by("change", "change", "what")
    for row, of in ((rows["Useful, of what was held"], USEFUL),):
        new, old = (
            sum(states[state] for state in of) / (sum(states.values()) - states["free"])
            for states in (now, before)
        )
        assert near(row["now"], new)
        assert near(row["before"], old)
        assert near(row["change"], new - old)
        assert row["verdict"] == ("better" if new > old else "worse")


def test_what_is_not_known(written: Written) -> None:
    (gap,) = written.rows("coverage", "gaps")
    assert (gap["from"], gap["to"], gap["hours"]) == ("2026-08-18 03:00", "2026-08-18 09:00", 6)
    assert written.figure("coverage", "hours_missing") == 6
    nodes = written.by("coverage", "nodes", "node")
    assert nodes.keys() == {"new", "gone"}
    assert nodes["new"]["first"] == "2026-08-21 00:00"
    assert nodes["gone"]["hours"] == 2 * DAY
    assert "For 6 of 336 hours there are no data" in written.whole["finding"]
    days = written.by("change", "days", "day")
    assert days["2026-08-18 00:00"]["hours"] == 18


def test_the_finding_says_what_was_lost_and_whether_to_buy(written: Written) -> None:
    held, lost, buy, rest = written.whole["finding"].split("\n")
    assert held.startswith("Of 28,320 GPU hours, worth 70,800, jobs held")
    assert "were held and lost, worth" in lost
    assert "can be had back" in lost
    assert "it takes 14 days of data; the time that can be had back is worth 15 GPUs" in buy
    assert "rose by" in rest


# Every figure can be asked for


def answer(url: str, promql: str, moment: float) -> list[Any]:
    form = {"query": promql, "time": moment}
    found = httpx2.post(f"{url}/api/v1/query", data=form).json()
    assert found["status"] == "success", found
    return list(found["data"]["result"])


def test_the_promql_of_a_figure_gives_it(url: str, written: Written) -> None:
    moment = written.whole["moment"]
    derived = {"training_useful", "goodput", "mfu", "failures", "node_hours_between", "supply"}
    derived |= {"broke", "full_hours", "demand_gain", "hours", "hours_missing"}
    asked = 0
    for section in written.whole["sections"]:
        for figure in section["figures"]:
            assert figure["promql"], figure
            promql_parser.parse(figure["promql"])
            if figure["name"] not in derived:
                found = [float(one["value"][1]) for one in answer(url, figure["promql"], moment)]
                assert any(near(value, figure["value"]) for value in found), figure
                asked += 1
        for table in section["tables"]:
            for promql in table["promql"]:
                assert answer(url, promql, moment) or not table["rows"], promql
    assert asked >= 10


def test_the_dashboard_has_the_same_figures(url: str, written: Written) -> None:
    """Capacity, of the same time."""
    moment, window = written.whole["moment"], f"{END - BEGIN}h"
    asked = (("cluster", "", "gpu_hours"), ("namespace", LOST, "lost"))
    for level, states, name in asked:
        promql = capacity._hours(level, states, over=window)
        (found,) = answer(url, promql, moment)
        assert near(float(found["value"][1]), written.figure("summary", name))


QUERIES = [value for value in vars(history).values() if isinstance(value, Query)]


def test_what_is_asked_for_is_recorded_with_these_labels() -> None:
    """And as often as it is taken for, where it is added up."""
    for query in QUERIES:
        expression = query.over("1d")
        promql_parser.parse(expression)
        names = set(re.findall(r"[a-z]+:gpunode_[a-z0-9_]+:[a-z0-9_]+", expression))
        of_others = (history.QUEUED, history.QUEUE_HOURS, history.INCIDENTS)
        assert names or query in of_others, "series of others, or of the nodes themselves"
        by = re.search(r"by \(([^)]*)\)", expression)
        every = re.search(r"\* (\d+) / 3600", expression)
        for name in names:
            joined = {*history.NODE_LABELS, *history.PROCESS_LABELS}
            assert set(by[1].split(", ") if by else ()) - joined <= labels_of(name), expression
            if every and "_time((" not in expression:
                assert intervals()[name] == f"{every[1]}s", expression
            if name.endswith("_hourly"):
                assert intervals()[name] == "1h"


def test_hours_add_up_what_is_recorded_every_half_minute() -> None:
    summed = [
        name
        for expression in records().values()
        if "/ 120" in expression
        for name in re.findall(r"sum_over_time\(([a-z]+:gpunode_\w+:\w+)\[1h\]", expression)
    ]
    assert len(summed) >= 5
    assert {intervals()[name] for name in summed} == {"30s"}


def test_every_cause_and_state_has_words() -> None:
    assert words.REMEDIES.keys() == CAUSES.keys() - {"none"}
    assert all(words.helps(state) for state in set(STATES) - {*USEFUL, "free"})
    assert all(set(one.states) <= set(STATES) for one in words.REMEDIES.values())


# Formats


def test_csv_has_the_figures_of_json(run: Run, url: str, written: Written) -> None:
    ended = run(url, *TIMES, "--price=2.5", "--format=csv", "--output=-")
    rows = list(csv.DictReader(io.StringIO(ended.out)))
    figures = {(row["section"], row["name"]): row for row in rows if not row["table"]}
    for section in written.whole["sections"]:
        for figure in section["figures"]:
            row = figures[section["name"], figure["name"]]
            assert row["promql"] == figure["promql"]
            assert (float(row["value"]) if row["value"] else None) == figure["value"]
    cells = sum(
        len(row)
        for section in written.whole["sections"]
        for table in section["tables"]
        for row in table["rows"]
    )
    assert cells == sum(bool(row["table"]) for row in rows)
    assert "'=cmd()" in {row["value"] for row in rows}, "a spreadsheet would run it"


def test_no_spelling_of_a_formula_reaches_a_spreadsheet() -> None:
    columns = (TableColumn("job", "Job"), TableColumn("lost", "Lost"))
    for name in ("=1+1", "+1", "-1", "@SUM(A1)", "\uff1d1+1", " =1+1", "\u3000\uff0b1"):
        jobs = Table("jobs", "Jobs", columns, ((name, -1.5),), ())
        section = ReportSection("losers", "Who lost", "Nobody.", tables=(jobs,))
        report = Report("", "", "", 0, "", None, "", (section,), ())
        job, lost = csv.DictReader(io.StringIO(as_csv(report)))
        assert job["value"] == f"'{name}"
        assert lost["value"] == "-1.5"


def test_the_page_is_one_file_that_runs_nothing(run: Run, url: str, written: Written) -> None:
    ended = run(url, *TIMES, "--price=2.5", "--output=page.html")
    assert (ended.code, ended.out, ended.err) == (0, "page.html\n", "")
    page = Path("page.html").read_text()
    assert "<script" not in page
    assert "default-src 'none'" in page
    assert not re.search(r'(src|href)="(?!#)', page)
    for line in written.whole["finding"].splitlines():
        assert line.replace('"', "&#34;") in page
    for drawing in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        image = ET.fromstring(drawing)
        title = image.find("{http://www.w3.org/2000/svg}title")
        assert title is not None
        assert title.text
        assert image.get("aria-label", "").startswith(title.text)
    for section in written.whole["sections"]:
        for figure in section["figures"]:
            assert words.as_text(figure["value"], figure["unit"]) in page


def test_without_a_price_there_is_none(run: Run, url: str) -> None:
    ended = run(url, *TIMES, "--format=json", "--output=-")
    assert "lost_cost" not in ended.out
    assert '"cost"' not in ended.out


# What is not there, and servers that do not answer


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--from=2020-01-01", "--to=2020-02-01"], "nothing from 2020-01-01"),
        (["--from=1990-01-01"], "three years"),
        (["--from=yesterday"], "from: 'yesterday' is no date"),
        (["--to=2026-13-01"], "to: '2026-13-01' is no date"),
        (["--from=2026-08-29", "--to=2026-08-15"], "is not before the end, 2026-08-15 00:00 UTC"),
        (["--from=9999-01-01"], "is not before the end, 20"),
        (["--price=-1"], "price"),
        (["--price=1e308"], "price"),
        (["--by=mood"], "by"),
        ([*TIMES, "--output=/no/such/folder/x"], "/no/such/folder/x"),
        ([*TIMES, f"--output={'x' * 300}"], "File name too long"),
        (["--prometheus.token-file=/no/such/file"], "/no/such/file"),
        (["--prometheus.ca-file=/no/such/ca"], "/no/such/ca"),
        (["--prometheus.url=ftp://x"], "does not begin with http"),
        (["--prometheus.url=http://me:secret@x"], "has a password"),
        (["--prometheus.token=secret"], "--prometheus.token"),
    ],
)
def test_a_mistake_is_told_in_one_line(run: Run, url: str, options: list[str], named: str) -> None:
    ended = run(url, *options)
    assert (ended.code, ended.out) == (2, "")
    (line,) = ended.err.splitlines()
    assert named in line


def test_an_end_that_is_yet_to_come_is_told(
    run: Run, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    ended = run(url, "--from=2026-08-15", "--to=2096-01-01", "--format=json", "--output=-")
    end = json.loads(ended.out)["end"]
    assert f"to: '2096-01-01' is yet to come; the report ends at {end} UTC" in caplog.messages
    caplog.clear()
    assert run(url, "--from=2026-08-15", "--format=json", "--output=-").code == 0
    assert caplog.messages == []


def test_a_file_that_cannot_be_written_is_told_before_anything_is_asked(run: Run) -> None:
    ended = run("http://127.0.0.1:1", "--output=/no/such/folder/x")
    assert (ended.code, ended.err) == (2, "gpunode: /no/such/folder/x: No such file or directory\n")


def test_a_full_disk_leaves_the_report_that_was_there(run: Run, url: str, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("of last month")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        ended = run(url, *TIMES, f"--output={file}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (ended.code, ended.err) == (2, f"gpunode: {file}: File too large\n")
    assert {path: path.read_text() for path in tmp_path.iterdir()} == {file: "of last month"}


def test_a_link_is_written_through_to_another_disk(run: Run, url: str, tmp_path: Path) -> None:
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no other disk")
    with tempfile.TemporaryDirectory(dir=other) as folder:
        link, file = tmp_path / "report.html", Path(folder) / "report.html"
        link.symlink_to(file)
        assert run(url, *TIMES, f"--output={link}").code == 0
        assert "GPU capacity" in file.read_text()
        assert link.is_symlink()


def test_what_lies_beside_the_report_is_not_touched(run: Run, url: str, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    beside = [tmp_path / f"report.html{end}" for end in (".part", ".tmp", "~")]
    beside.append(tmp_path / f".report.html.{os.getpid()}")
    for link in beside:
        link.symlink_to(precious)
    ended = run(url, *TIMES, f"--output={tmp_path}/report.html")
    assert (ended.code, ended.err) == (2, f"gpunode: {tmp_path}/report.html: File exists\n")
    beside.pop().unlink()
    assert run(url, *TIMES, f"--output={tmp_path}/report.html").code == 0
    assert precious.read_text() == "mine"
    assert all(link.is_symlink() for link in beside)


def test_standard_output_gets_utf8_whatever_the_terminal_has(url: str) -> None:
    stdout = ("--format=html", "--output=-")
    ended = subprocess.run(
        [sys.executable, "-m", "gpunode", "report", f"--prometheus.url={url}", *TIMES, *stdout],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )
    assert "\u202f%" in ended.stdout.decode()


def test_half_the_data_is_a_report_that_says_so(run: Run, url: str) -> None:
    ended = run(url, "--from=2026-07-18", "--to=2026-08-15", "--format=json", "--output=-")
    half = Written(ended.out)
    assert "For 336 of 672 hours there are no data" in half.whole["finding"]
    assert near(half.figure("summary", "gpu_hours"), sum(FLEET.by_state(0, BEGIN).values()))
    assert half.rows("change", "change") == []
    assert half.rows("change", "days")[0]["compute"] is None, "unknown, not zero"


def test_a_period_that_is_no_whole_number_of_days(run: Run, url: str) -> None:
    times = ("--from=2026-08-15T07:00", "--to=2026-08-29")
    ended = run(url, *times, "--format=json", "--output=-")
    expected = FLEET.by_state(BEGIN + 7, END)
    found = by_state(Written(ended.out))
    for state, hours in expected.items():
        assert near(found[state], hours)
    jobs = Written(ended.out).by("losers", "jobs", "job")
    (llm,) = (hours for job, hours in truth(BEGIN + 7).items() if job.workload == "llm")
    assert near(jobs["llm"]["held"], llm)


def figures_of(report: Written) -> list[Any]:
    """Every figure and cell, in order."""
    return [
        *(f["value"] for one in report.sections.values() for f in one["figures"]),
        *(
            cell
            for one in report.sections.values()
            for table in one["tables"]
            for row in table["rows"]
            for cell in row
        ),
    ]


def test_victoriametrics_gives_the_same_figures(run: Run, written: Written, tmp_path: Path) -> None:
    FLEET.write(tmp_path / "past")
    port = free_port()
    command = [need("victoria-metrics"), f"-storageDataPath={tmp_path}/vm", "-retentionPeriod=100y"]
    with program([*command, f"-httpListenAddr=127.0.0.1:{port}"], tmp_path / "log") as child:
        there = Daemon(psutil.Process(child.pid), port)
        there.wait_for("/health", child)
        lines = (tmp_path / "past").read_text().splitlines()
        samples = "\n".join(f"{line}000" for line in lines if not line.startswith("#"))
        httpx2.post(f"http://127.0.0.1:{port}/api/v1/import/prometheus", content=samples)
        there.get("/internal/force_flush")
        options = ("--price=2.5", "--format=json", "--output=-")
        found = Written(run(f"http://127.0.0.1:{port}", *TIMES, *options).out)
    for ours, theirs in zip(figures_of(written), figures_of(found), strict=True):
        # A fault of an hour ends up to a minute later: VictoriaMetrics takes no mark of its end.
        assert theirs == (pytest.approx(ours, rel=2e-2) if isinstance(ours, float) else ours)


@pytest.mark.integration
def test_two_clusters_whose_nodes_have_the_same_names(run: Run, tmp_path: Path) -> None:
    need("prometheus")
    need("promtool")
    (job,) = (one for one in FLEET.jobs if one.workload == "llm")
    whole = replace(FLEET, jobs=(job,), faults=(), cluster="west")
    holed = replace(whole, cluster="east", missing=frozenset(range(20 * DAY, 21 * DAY)))
    for fleet in (whole, holed):
        fleet.write(tmp_path / "past")
        backfill(tmp_path)
    with serving(tmp_path) as (_, url):
        found = Written(run(url, *TIMES, "--by=node", "--format=json", "--output=-").out)
    expected = [sum(fleet.by_state(BEGIN, END).values()) for fleet in (whole, holed)]
    assert near(found.figure("summary", "gpu_hours"), sum(expected))
    jobs = found.by("losers", "jobs", "cluster")
    assert near(jobs["west"]["held"], whole.job_hours(BEGIN, END)[job])
    assert near(jobs["east"]["held"], holed.job_hours(BEGIN, END)[job])
    gaps = {(row["cluster"], row["hours"]) for row in found.rows("coverage", "gaps")}
    assert gaps == {("west", 6), ("east", 24)}
    assert "For 30 of 672 cluster hours" in found.whole["finding"]
    assert {"n0 (east)", "n0 (west)"} <= found.by("groups", "groups", "name").keys()


@given(st.integers(100, 599), st.binary() | st.from_regex(r'\{"status":.*', fullmatch=True))
def test_any_answer_is_read_or_refused(status: int, body: bytes | str) -> None:
    content = body.encode(errors="replace") if isinstance(body, str) else body
    response = httpx2.Response(status, headers={"content-type": "x\ty"})
    with suppress(UsageError, prometheus.QueryTooLarge, prometheus.ServerBusy):
        prometheus._parse_response(response, content, "http://x")


Reply = tuple[int, str, bytes]
"""A status, a type of content and a body."""


@contextmanager
def server(reply: Callable[[Mapping[str, list[str]], Any], Reply]) -> Iterator[str]:
    """A server that answers every question as told."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            status, kind, body = reply(form, self.headers)
            with suppress(OSError):  # who asked may have lost patience
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                if status == 302:
                    self.send_header("Location", "https://login.example/")
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with served(Handler) as port:
        yield f"http://127.0.0.1:{port}"


def error(kind: str, text: str) -> bytes:
    return json.dumps({"status": "error", "errorType": kind, "error": text}).encode()


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits before asking again."""
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _: None)


JSON = "application/json"
TOO_MANY = "query processing would load too many samples into memory in query execution"


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(
    ("reply", "named"),
    [
        ((401, "text/plain", b"Unauthorized"), "refuses access (401)"),
        ((403, JSON, error("forbidden", "no")), "refuses access (403)"),
        ((404, "text/html", b"<html>"), "prometheus.url is what comes before /api/v1"),
        ((200, "text/html", b"<html>a login page</html>"), "text/html, not with Prometheus's JSON"),
        ((200, JSON, b'{"status":"success","data":[1]}'), "not with Prometheus's JSON"),
        ((302, "text/html", b""), "redirects to https://login.example/"),
        ((422, JSON, error("execution", TOO_MANY)), "too many samples"),
        ((400, JSON, error("bad_data", "parse\nerror \x1b[31m")), "parse error \\x1b[31m (400)"),
        ((503, JSON, error("timeout", "query timed out in expression evaluation")), "timed out"),
        ((500, "text/plain", b"oops"), "answers with 500"),
        ((429, "text/plain", b"slow down"), "answers with 429"),
        ((413, "text/plain", b""), "too large"),
    ],
)
def test_what_a_server_refuses_is_told_in_one_line(run: Run, reply: Reply, named: str) -> None:
    with server(lambda *_: reply) as url:
        ended = run(url, *TIMES)
    assert (ended.code, ended.out) == (2, "")
    (line,) = ended.err.splitlines()
    assert named in line
    assert url in line
    assert not Path("gpunode-report.html").exists()


@pytest.mark.usefixtures("hurried")
def test_a_server_that_is_not_there(run: Run) -> None:
    ended = run("http://127.0.0.1:9", *TIMES)
    assert ended.code == 2
    (line,) = ended.err.splitlines()
    assert "http://127.0.0.1:9 (prometheus.url): cannot be reached" in line


@pytest.mark.usefixtures("hurried")
def test_a_server_that_never_answers(run: Run) -> None:
    over = threading.Event()

    def wait(*_: object) -> Reply:
        over.wait(10.0)
        return 200, JSON, b"{}"

    with server(wait) as url:
        ended = run(url, "--from=2h", "--prometheus.timeout=1")
        over.set()
    assert ended.code == 2
    (line,) = ended.err.splitlines()
    assert "no answer within 1 s" in line


@pytest.mark.usefixtures("hurried")
def test_a_server_that_answers_a_byte_at_a_time(run: Run) -> None:
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", JSON)
            self.end_headers()
            with suppress(OSError):
                while not over.wait(0.05):
                    self.wfile.write(b" ")

        def log_message(self, *_: object) -> None:
            pass

    with served(Handler) as port:
        ended = run(f"http://127.0.0.1:{port}", "--from=2h", "--prometheus.timeout=1")
        over.set()
    assert ended.code == 2
    (line,) = ended.err.splitlines()
    assert "no answer within 1 s" in line


PARTIAL = "<b>store 10.0.0.7:10901: no such host"


@pytest.mark.parametrize("form", ["html", "json"])
def test_what_a_server_warns_of_is_told(
    run: Run, url: str, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As Thanos does of a store that does not answer: the figures may lack its part."""

    def reply(asked: Mapping[str, list[str]], _: object) -> Reply:
        path = "query_range" if "start" in asked else "query"
        found = httpx2.post(f"{url}/api/v1/{path}", data={k: v[0] for k, v in asked.items()})
        return 200, JSON, json.dumps({**found.json(), "warnings": [PARTIAL]}).encode()

    with server(reply) as front:
        ended = run(front, *TIMES, f"--format={form}", "--output=-")
    assert ended.code == 0
    assert caplog.messages == [f"{front} warns: {PARTIAL}"]
    if form == "html":
        before, _, _ = ended.out.partition("<main>")
        assert "The server warns:</strong> &lt;b&gt;store" in before
    else:
        assert json.loads(ended.out)["warnings"] == [PARTIAL]


@pytest.mark.usefixtures("hurried")
def test_a_busy_server_is_asked_again_and_a_small_one_for_less(run: Run, url: str) -> None:
    """It fails every third time, and takes no more than two days at once."""
    asked = 0
    most = 0

    def reply(form: Mapping[str, list[str]], _: object) -> Reply:
        nonlocal asked, most
        asked += 1
        if asked % 3 == 0:
            return 503, "text/plain", b"restarting"
        moments = 1
        if "start" in form:
            start, end, step = (int(form[name][0]) for name in ("start", "end", "step"))
            moments = (end - start) // step + 1
            most = max(most, moments * (step >= 24 * HOUR))
            if moments > 2 and step >= 24 * HOUR:
                return 422, JSON, error("execution", TOO_MANY)
        path = "query_range" if "start" in form else "query"
        found = httpx2.post(f"{url}/api/v1/{path}", data={k: v[0] for k, v in form.items()})
        return found.status_code, JSON, found.content

    with server(reply) as front:
        small = run(front, "--from=2026-08-24", "--to=2026-08-29", "--format=json", "--output=-")
    whole = run(url, "--from=2026-08-24", "--to=2026-08-29", "--format=json", "--output=-")
    assert most > 2
    assert small.code == 0
    sections, others = (
        json.loads(found.out, parse_float=lambda text: float(f"{float(text):.9g}"))["sections"]
        for found in (small, whole)
    )
    assert sections == others  # but for the order in which hours are added


def test_who_asks_is_shown_as_the_server_wants(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def reply(_: object, headers: Any) -> Reply:
        seen.append((headers["Authorization"], headers["X-Scope-OrgID"]))
        return 401, JSON, b""

    (tmp_path / "token").write_text("s3cret\n")
    with server(reply) as url:
        file = run(url, f"--prometheus.token-file={tmp_path / 'token'}", "--prometheus.tenant=team")
        monkeypatch.setenv("GPUNODE_PROMETHEUS_TOKEN", "other")
        run(url)
        monkeypatch.delenv("GPUNODE_PROMETHEUS_TOKEN")
        monkeypatch.setenv("GPUNODE_PROMETHEUS_PASSWORD", "word")
        run(url, "--prometheus.username=me")
    assert seen == [("Bearer s3cret", "team"), ("Bearer other", None), ("Basic bWU6d29yZA==", None)]
    assert "s3cret" not in file.err


def test_tls_with_a_certificate_of_both(run: Run, tmp_path: Path) -> None:
    made = tmp_path / "pem"
    new = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
    ]
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run(
        [*new, *name, "-keyout", f"{made}.key", "-out", str(made)], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, f"{made}.key")
    context.load_verify_locations(made)
    context.verify_mode = ssl.CERT_REQUIRED

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(401)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass

    with Quiet(("127.0.0.1", 0), Handler) as tls:
        tls.socket = context.wrap_socket(tls.socket, server_side=True)
        thread = threading.Thread(target=tls.serve_forever, daemon=True)
        thread.start()
        url = f"https://127.0.0.1:{tls.server_address[1]}"
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("tenacity.nap.time.sleep", lambda _: None)
            strange = run(url)
            known = [f"--prometheus.ca-file={made}", f"--prometheus.cert-file={made}"]
            shown = run(url, *known, f"--prometheus.key-file={made}.key")
        tls.shutdown()
        thread.join()
    assert "CERTIFICATE_VERIFY_FAILED" in strange.err
    assert "refuses access (401)" in shown.err, shown.err
    assert strange.err.count("\n") == shown.err.count("\n") == 1


# When supply runs out


def test_a_straight_line_reaches_its_value_when_it_does() -> None:
    line = trend({float(day): 100.0 + day for day in range(-60, 1)})
    assert line is not None
    assert line.reaches(130.0) == pytest.approx((30.0, 30.0, 30.0))
    assert line.reaches(90.0)[0] == 0.0


def test_noise_widens_the_interval_and_flat_demand_never_runs_out() -> None:
    def saw(day: int) -> float:
        return 10.0 * ((day * 7919) % 13 - 6) / 6

    noisy = trend({float(day): 100.0 + 0.2 * day + saw(day) for day in range(-60, 1)})
    assert noisy is not None
    _, early, late = noisy.reaches(120.0)
    assert early is not None
    assert late is None or late - early > 20
    flat = trend({float(day): 100.0 for day in range(-60, 1)})
    assert flat is not None
    assert flat.reaches(120.0) == (None, None, None)
    assert trend({float(day): 1.0 for day in range(13)}) is None


def test_the_interval_holds_what_it_says() -> None:
    """Of lines with noise that lasts for days, four in five have the truth in the interval."""
    import random

    chance = random.Random(3)
    inside = 0
    for _ in range(40):
        noise = 0.0
        values = {}
        for day in range(-83, 1):
            noise = 0.5 * noise + chance.gauss(0, 5)
            values[float(day)] = 500 + 1.5 * day + noise
        line = trend(values)
        assert line is not None
        found = line.gains()
        assert found is not None
        low, high = found
        inside += low <= 1.5 <= high
    assert inside >= 24, inside


@pytest.mark.attack
def test_a_report_takes_no_longer_than_its_questions(run: Run, url: str) -> None:
    begin = time.monotonic()
    assert run(url, "--from=2026-08-28", "--to=2026-08-29").code == 0
    assert time.monotonic() - begin < 20
