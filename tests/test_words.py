"""One vocabulary: what people read says the words of the table, and no raw name."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from gpunode import words
from gpunode.cli.top import ViewState, screen
from gpunode.export.web.node import node
from gpunode.faults.fault import PART_MEANINGS
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.held_up import MOMENTARY_CAUSES
from gpunode.verdict.reasons import REASONS
from tests.export.page import scenes

ROOT = Path(__file__).parent.parent
OF_LABELS = {
    "cause": {*words.CAUSES},
    "reason": {*words.REASONS},
    "state": {*words.STATES},
}
RAW = {
    name
    for name in (*words.CAUSES, *words.REASONS, *(reason for _, reason in words.FAULTS))
    if "_" in name or name == "shm"
}
RAW_NAME = re.compile(rf"(?<![\w/.=\"\[])({'|'.join(sorted(RAW))})(?![\w\"])")
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
ACTION = re.compile(r"\{\{.*?\}\}", re.DOTALL)


def raw_names(text: str) -> list[str]:
    """The raw names in what a person reads; commands and queries may have any."""
    return RAW_NAME.findall(CODE.sub("", text))


def test_each_name_has_words_and_each_words_a_name() -> None:
    assert {*words.CAUSES} == {*CAUSES, *MOMENTARY_CAUSES, "unseen"}
    assert {*words.REASONS} == {*REASONS}
    assert {*words.FAULTS} == {*PART_MEANINGS}


def test_a_headline_has_the_words_of_its_raw_name() -> None:
    """Alerts can but turn ``_`` into spaces: who reads one finds the other on a board."""
    for table in (words.STATES, words.CAUSES, words.REASONS):
        shown = {name: words.on_a_board(table, name) for name in table}
        assert [name for name, text in shown.items() if "[" in text] in ([], ["none"])
        assert len({*shown.values()}) == len(shown)
        assert max(map(len, shown.values())) <= 28


def test_no_words_are_a_raw_name() -> None:
    tables: tuple[dict[Any, words.Words], ...] = (
        *(words.STATES, words.CAUSES, words.CLOSER, words.REASONS, words.GPUS, words.FAULTS),
    )
    for said in (one for table in tables for one in table.values()):
        assert not raw_names(" ".join((said.headline, said.sentence, said.do, said.for_good)))


@pytest.mark.parametrize(
    "path", sorted((ROOT / "alerts/runbooks").glob("*.md")), ids=lambda p: p.stem
)
def test_no_runbook_says_a_raw_name(path: Path) -> None:
    assert not raw_names(path.read_text())


def test_no_alert_says_a_raw_name() -> None:
    """Neither what is written in it, nor what it makes of labels: the cases are what it said."""
    said = [
        ACTION.sub("", text)
        for path in (ROOT / "alerts/rules").glob("*.yaml")
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        for text in rule.get("annotations", {}).values()
    ]
    said += [
        case["fires"]["says"]
        for path in (ROOT / "tests/alerts/cases").glob("*.yaml")
        for case in yaml.safe_load(path.read_text())
        if "says" in case.get("fires", {})
    ]
    assert len(said) > 100
    assert not raw_names("\n".join(said))


def shown_by(panel: dict[str, Any]) -> Iterator[str]:
    """What a panel writes, whatever is found."""
    yield panel["title"]
    yield panel.get("description", "")
    yield from (target["legendFormat"] for target in panel.get("targets", ()))
    field = panel.get("fieldConfig", {"defaults": {}, "overrides": []})
    overrides = (one["properties"] for one in field["overrides"])
    for own in (
        field["defaults"],
        *({one["id"]: one["value"] for one in properties} for properties in overrides),
    ):
        yield own.get("displayName", "")
        yield own.get("noValue", "")
        for mapping in own.get("mappings", ()):
            results = mapping["options"].values() if mapping["type"] == "value" else ()
            yield from (result.get("text", "") for result in results)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "dashboards/json").glob("*.json")), ids=lambda p: p.stem
)
def test_no_board_says_a_raw_name(path: Path) -> None:
    for panel in json.loads(path.read_text())["panels"]:
        shown = [*shown_by(panel)]
        assert not raw_names("\n".join(shown)), panel["title"]
        assert "none" not in shown, panel["title"]
        overrides = panel.get("fieldConfig", {}).get("overrides", ())
        for target in panel.get("targets", ()):
            legend = target["legendFormat"]
            for label, names in OF_LABELS.items():
                if legend == f"{{{{{label}}}}}" and f"({label}" in target["expr"]:
                    named = {
                        one["matcher"]["options"]
                        for one in overrides
                        if "displayName" in {own["id"] for own in one["properties"]}
                    }
                    assert named & names, (panel["title"], label)
                elif label == "cause" and "{{cause}}" in legend:
                    assert '"full /dev/shm"' in target["expr"], panel["title"]
        for transformation in panel.get("transformations", ()):
            columns = transformation["options"].get("renameByName", {})
            for label in OF_LABELS.keys() & columns.keys():
                column = columns[label]
                if re.search("nccl|ALERTS", panel["targets"][0]["expr"]):
                    continue  # their reasons and states are words
                mapped = [one for one in overrides if one["matcher"]["options"] == column]
                assert "mappings" in {p["id"] for one in mapped for p in one["properties"]}, column


@pytest.mark.parametrize("opened", [False, True])
def test_neither_the_page_nor_top_says_a_raw_name(opened: bool) -> None:
    now = node(scenes.hang(before=60, after=60).stage.loop)
    console = Console(width=200, file=io.StringIO(), color_system=None)
    console.print(screen(now, ViewState(place=5, opened=opened), "", console, 60))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "its process is stopped" in shown
    page = [one.title + one.remedy + one.detail for one in now.findings]
    page += [f"{gpu.does} {gpu.remedy}" for gpu in now.gpus]
    assert not raw_names("\n".join((shown, *page)))
