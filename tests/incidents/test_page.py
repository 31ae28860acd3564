"""The page of an incident: what a person needs is there, and nothing that a browser would run."""

from __future__ import annotations

import gzip
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from gpunode.export.incident_page import page
from gpunode.incidents.history import GpuHistory
from gpunode.incidents.incident import Happening, Incident, OnGpu, as_json, parse
from gpunode.node.stacks import Frame, ProcessStacks, ThreadStack
from gpunode.verdict.case import Evidence, WaitedFor
from gpunode.verdict.where import StackLook
from tests.incidents.test_black_box import PlayedIncident
from tests.incidents.test_folder import brief

EVIL = (
    "</pre></td><script>alert(1)</script><img src=x onerror=alert(1)>\"'><svg onload=alert(1)>"
    "\u202e\x1b[31m\n<style>*{}</style>javascript:alert(1)"
)

VOID = {"meta", "rect"}


class Elements(HTMLParser):
    """What a browser makes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def hostile() -> Incident:
    """An incident of which a tenant chose every text that any may choose."""
    frames = (Frame(EVIL, EVIL, 7),)
    stacks = ProcessStacks(7, (ThreadStack(7, EVIL, "S", "x", (), frames),), 90)
    look = StackLook(("0", EVIL), 7, 1.0, EVIL, EVIL, waits=False, time=1e9, stacks=stacks)
    said = brief(1, title=EVIL, where=EVIL, node=EVIL, owners=(EVIL,), gpus=(EVIL,))
    history = GpuHistory(EVIL, EVIL, {"blocked": [None, 1.0], EVIL: [1.0, 1.0]}, [], [], [])
    return Incident(
        said,
        EVIL,
        EVIL,
        (Evidence(EVIL, 1.0, 1.0, EVIL),),
        (WaitedFor((EVIL, EVIL), "unknown", EVIL),),
        (Happening(1e9, "kernel", EVIL, (EVIL,)),),
        (look,),
        (OnGpu(EVIL, 7, 1.0, EVIL, EVIL, 1e9, 1e9 + 5, EVIL),),
        (),
        (1e9, 1e9 + 10),
        (history,),
    )


def test_no_text_of_a_tenant_becomes_an_element() -> None:
    text = page(hostile())
    elements = Elements(text)
    assert elements.open == []
    assert not {tag for tag, _ in elements.found} & {"script", "img", "iframe", "link", "a", "base"}
    named = {name for _, attributes in elements.found for name in attributes}
    assert not {name for name in named if name.startswith("on") or name in ("src", "href")}
    assert sum(tag == "style" for tag, _ in elements.found) == 1
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_it_survives_what_it_is_kept_as() -> None:
    assert page(parse(as_json(hostile()))) == page(hostile())


def test_it_says_what_since_when_who_where_and_what_to_do() -> None:
    played = PlayedIncident("h200_hang")
    played.play(1.0)
    text = page(parse(gzip.decompress(played.box.kept[0].packed)))
    for wanted in (
        "GPU 0 hangs: it waits for GPU 1, whose process is stopped",
        "2026-11-22 04:31:19 UTC, goes on",
        "kill -CONT 2711",
        "GPU 1 (rank 1, PID 2711)",
        "no process was looked at",
        "its process is stopped by a signal or a debugger",
        "hanging in a collective: a rank of the job does not come",
        "gpunode_gpu_blocked_streak_seconds",
        "was there to the end",
        "gpunode replay FILE",
    ):
        assert wanted in text


def test_what_is_not_known_is_said_to_be_so() -> None:
    text = page(Incident(brief(1, complete=True, owners=(), node=""), "0.1.0", ""))
    assert text.count("not known") == 3
    assert "Its tape made way" in text
    assert "Who waits for whom" not in text


@pytest.mark.integration
def test_a_browser_runs_and_fetches_nothing(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(page(replace(hostile())))
    opened = browser.new_page()
    asked: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("dialog", lambda dialog: asked.append(dialog.message))
    opened.goto(file.as_uri())
    assert asked == [file.as_uri()]
    assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
