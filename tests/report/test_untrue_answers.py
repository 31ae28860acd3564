"""Commands that read Prometheus, of whose answers any figure and any text may be untrue.

Nodes and jobs give the texts, and whoever writes to the server the figures.
"""

from __future__ import annotations

import json
import random
import re
import unicodedata
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gpunode.cli.main import main
from gpunode.config.prometheus import PrometheusSettings
from gpunode.report import fetch
from gpunode.report.claims import JobQuestions
from gpunode.report.prometheus import Prometheus, Secrets
from gpunode.report.runs import JobName
from tests.report.test_why import NOW, served

pytestmark = pytest.mark.integration

CAMPAIGNS = (*range(3), *(pytest.param(n, marks=pytest.mark.nightly) for n in range(3, 20)))
"""Each with answers of its own."""

TEXTS = (
    "",
    "-",
    "\x1b]52;c;Z3B1bm9kZQ==\x07",
    "</td><script>alert(1)</script>",
    "\u202egnp.exe",
    '"} or vector(1) #',
    "line\nbreak",
    "=1+1",
    "x" * 5000,
    "a-state-of-a-later-release",
)
FIGURES = (
    0.0,
    -1.0,
    1e-300,
    1e300,
    -1e300,
    1.7e308,
    4e18,
    1.8e9,
    float(NOW),
    float("nan"),
    float("inf"),
)

ASKED = {
    "why": ("why", "research/llm", "--format=text", "--output=-"),
    "why as JSON": ("why", "4301", "--format=json", "--output=-"),
    "why as a page": ("why", "team-a/train", "--format=html", "--output=told"),
    "report as a page": ("report", "--from=2027-01-14", "--to=2027-01-15", "--output=told"),
    "report as CSV": (
        "report",
        *("--from=2027-01-14", "--to=2027-01-15", "--format=csv", "--price=2", "--output=told"),
    ),
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("past")) as found:
        yield found


class Liar:
    """Answers as a server does, with some texts and figures changed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.share = self.chance.choice((0.01, 0.1, 0.5))

    def __call__(self, *asked: Any, **more: Any) -> tuple[httpx2.Response, bytes]:
        response, body = fetch.fetched(*asked, **more)
        answer = json.loads(body)
        for series in answer.get("data", {}).get("result", []):
            series["metric"] = {name: self._text(text) for name, text in series["metric"].items()}
            series["values"] = [
                [self._moment(at), self._figure(v)] for at, v in series.get("values", [])
            ]
            if "value" in series:
                series["value"][1] = self._figure(series["value"][1])
        return response, json.dumps(answer).encode()

    def _moment(self, at: float) -> float | str:
        """Also one that was not asked for, and none at all."""
        untrue = self.chance.random() < self.share / 10
        return self.chance.choice(("NaN", "inf", 0.0, at + 1, at + 1e7, 1e300)) if untrue else at

    def _text(self, text: str) -> str:
        return self.chance.choice(TEXTS) if self.chance.random() < self.share else text

    def _figure(self, value: str) -> str:
        untrue = self.chance.random() < self.share
        return str(self.chance.choice(FIGURES)) if untrue else value


@pytest.fixture(params=CAMPAIGNS)
def lied_to(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks Prometheus hears untrue answers."""
    monkeypatch.setattr("gpunode.report.prometheus.fetched", Liar(request.param))
    monkeypatch.setattr("gpunode.cli.why.time.time", lambda: float(NOW))


def only_text(told: str) -> bool:
    """Whether nothing of it controls a terminal or turns the direction of what is read."""
    odd = {unicodedata.category(c) for c in told if c not in "\n\r"} & {"Cc", "Cf", "Zl", "Zp"}
    return not odd


@pytest.mark.usefixtures("lied_to")
@pytest.mark.parametrize("asked", ASKED)
def test_what_is_untrue_is_told_or_refused_as_text(
    url: str,
    asked: str,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code: object = 0
    try:
        main([*ASKED[asked], f"--prometheus.url={url}"])
    except SystemExit as end:
        code = end.code
    ended = capfd.readouterr()
    assert code in (0, 2), ended.err
    if code == 2:
        assert re.fullmatch(r"(.*WARNING.*\n)*gpunode: .+\n", ended.err)
    told = Path("told").read_text() if Path("told").exists() else ended.out
    assert only_text(told + ended.err)
    assert "page" not in asked or "<script" not in told


@pytest.mark.usefixtures("lied_to")
def test_no_untrue_answer_ends_the_tools_of_agents(url: str) -> None:
    with closing(Prometheus(PrometheusSettings(url=url), Secrets())) as server:
        job = JobQuestions(server, JobName("c", "research", "llm"), NOW)
        for ask in (job.held_up, job.waited_for, job.incidents, job.changed):
            for claim in ask().claims:
                assert only_text(claim.says)
                assert all(only_text(text) for text in claim.labels.values())


def test_no_run_lasts_into_the_time_after_the_question(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a time far ahead has a server asked about all that is until then, piece by piece."""
    asked = 0

    def ahead(*of: Any, form: dict[str, Any], **more: Any) -> tuple[httpx2.Response, bytes]:
        nonlocal asked
        asked += 1
        response, body = fetch.fetched(*of, form=form, **more)
        answer = json.loads(body)
        for series in (
            answer["data"]["result"] if "max_over_time(timestamp" in form["query"] else ()
        ):
            series["value"][1] = str(NOW + 30 * 365 * 86400)
        return response, json.dumps(answer).encode()

    monkeypatch.setattr("gpunode.report.prometheus.fetched", ahead)
    monkeypatch.setattr("gpunode.cli.why.time.time", lambda: float(NOW))
    main(["why", "4301", "--format=json", "--output=-", f"--prometheus.url={url}"])
    assert asked < 200
