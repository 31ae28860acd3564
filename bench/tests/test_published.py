"""What is published is what was measured, held against what the benches ask for today."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from bench import ledger, report
from bench.hangs.bench import report as report_of_hangs
from bench.report import DOCS, Report, holds, render
from bench.serving import bench as serving
from bench.truth import gains

BENCH = Path(report.__file__).parent
PERFORMANCE = DOCS / "performance"
PUBLISHED: Mapping[str, Any] = {
    path.stem: json.loads(path.read_text()) for path in sorted(PERFORMANCE.glob("*.json"))
}

OF_OUTCOMES: Mapping[str, Callable[[], Report]] = {
    "21-gain": lambda: gains.report(gains.load()),
    "22-ledger": ledger.report,
    "28-hangs": lambda: report_of_hangs(PERFORMANCE / "hangs.jsonl"),
    "29-serving": lambda: serving.report_of(serving.outcomes(PERFORMANCE / "serving.jsonl")),
}


def test_the_page_of_performance_is_up_to_date() -> None:
    page = (DOCS / "performance.md").read_text()
    assert page == render(), "run: make bench"


def test_the_figures_of_the_readme_are_published() -> None:
    _, _, right = (DOCS.parent / "README.md").read_text().partition("## How right it is\n")
    figures = re.findall(r"\d+ of \d+", right.partition("\n## ")[0])
    assert len(figures) >= 5
    published = [one["measured"] for kept in PUBLISHED.values() for one in kept["results"]]
    assert [one for one in figures if not any(one in each for each in published)] == []


@pytest.mark.parametrize("name", OF_OUTCOMES)
def test_a_report_is_that_of_the_outcomes_that_were_kept(name: str) -> None:
    found = asdict(OF_OUTCOMES[name]())
    details = "".join(f"{line}\n" for line in found.pop("details"))
    of_this_day = {"version"} if name == "22-ledger" else set()
    assert all(PUBLISHED[name][key] == found[key] for key in found.keys() - of_this_day)
    assert (PERFORMANCE / f"{name}.txt").read_text() == details


def pattern(node: ast.expr, names: Mapping[str, Any]) -> str:
    """What a string can be, as a regular expression: constants of its module are known."""
    match node:
        case ast.Constant():
            return re.escape(str(node.value))
        case ast.Name() if isinstance(names.get(node.id), str):
            return re.escape(str(names[node.id]))
        case ast.JoinedStr():
            return "".join(pattern(part, names) for part in node.values)
        case ast.IfExp():
            return f"(?:{pattern(node.body, names)}|{pattern(node.orelse, names)})"
        case ast.FormattedValue():
            text = ast.Expression(ast.JoinedStr([node]))
            try:
                made = eval(compile(ast.fix_missing_locations(text), "", "eval"), dict(names))
            except NameError:
                return ".*"
            return re.escape(str(made))
    return ".*"


def calls(node: ast.AST, name: str) -> Iterator[ast.Call]:
    for found in ast.walk(node):
        if isinstance(found, ast.Call) and getattr(found.func, "id", "") == name:
            yield found


def published_figures() -> Iterator[tuple[str, str, str]]:
    """Of each figure in the source of a bench: the title of its report, its name, its target."""
    for path in sorted(BENCH.rglob("*.py")):
        tree = ast.parse(path.read_text())
        if path.parent == Path(__file__).parent or not any(calls(tree, "Result")):
            continue
        module = import_module(".".join(path.relative_to(BENCH.parent).with_suffix("").parts))
        titles = {
            inner: pattern(outer.args[0], vars(module))
            for outer in calls(tree, "Report")
            for inner in calls(outer, "Result")
        }
        for call in calls(tree, "Result"):
            what, target = (
                pattern(one, vars(module)) for one in (*call.args, call.args[0])[::2][:2]
            )
            yield titles.get(call, ".*"), what, target if len(call.args) > 2 else ""


ASKED = list(published_figures())


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_target_is_what_the_bench_asks_for_today(name: str) -> None:
    kept = PUBLISHED[name]
    for result in kept["results"]:
        own = [
            (title, target)
            for title, what, target in ASKED
            if re.fullmatch(title, kept["title"]) and re.fullmatch(what, result["what"])
        ]
        # What is made in a report is told from figures of the same name in others.
        titled = [target for title, target in own if title != ".*"]
        targets = titled or [target for _, target in own]
        assert any(re.fullmatch(target, result["target"]) for target in targets), result
        assert holds(result["measured"], result["target"]) or not result["met"], result
