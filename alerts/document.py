"""Writes docs/thresholds.md, which derives from the rules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from gpunode.explain.promql import alternatives, comparison, names, selectors
from gpunode.explain.rule_files import THRESHOLD, Rule, by_record, read_rules, underlying_records

ROOT = Path(__file__).parents[1]
RULES = ROOT / "alerts" / "rules"
RUNBOOKS = ROOT / "alerts" / "runbooks"
THRESHOLDS = ROOT / "docs" / "thresholds.md"

A_THRESHOLD = re.compile(r'scalar\(max\(gpunode_threshold\{name="(\w+)"\}\)\)')
MAX_CONDITION = 100

HEAD = """\
# Thresholds

Generated from [alerts/rules](../alerts/rules) by `make alerts`; do not edit. A comment above each
rule says more, and `gpunode rules explain ALERT` prints all that an alert depends on.

## Figures that sites change

Series `gpunode_threshold{name}` of `thresholds.yaml`. An alert fires if one is missing.

| name | figure | meaning |
|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Written:
    """A rule, and the comment above it."""

    rule: Rule
    comment: str


def rules_with_comments(rules: Path = RULES) -> list[Written]:
    """The rules of a folder with their comments; a record without has that right above it."""
    found: list[Written] = []
    parsed = iter(read_rules(rules))
    for path in sorted(rules.glob("*.yaml")):
        text = path.read_text()
        lines = text.splitlines()
        for at in _begins(yaml.compose(text)):
            begin = at
            while lines[begin - 1].lstrip().startswith("#"):
                begin -= 1
            comment = " ".join(line.strip(" #") for line in lines[begin:at])
            rule = next(parsed)
            if not comment and found and lines[at - 1].strip() and not rule.alerts:
                comment = found[-1].comment
            found.append(Written(rule, comment))
    return found


def _begins(file: Any) -> Iterator[int]:
    """The line where each rule of a file begins."""
    groups = _value(file, "groups")
    for group in groups.value:
        for rule in _value(group, "rules").value:
            yield rule.start_mark.line


def _value(mapping: Any, wanted: str) -> Any:
    return next(value for key, value in mapping.value if key.value == wanted)


def handed_on(rules: Sequence[Rule]) -> list[str]:
    """The raw series that the rules read: what a shard hands to the engine that evaluates them."""
    made = {rule.name for rule in rules}
    return sorted({name for rule in rules for name in names(rule.expression)} - made)


def figures(rules: Sequence[Rule]) -> dict[str, float]:
    """The thresholds by name."""
    return {
        rule.labels["name"]: float(rule.expression.removeprefix("vector(").removesuffix(")"))
        for rule in rules
        if rule.name == THRESHOLD
    }


def condition(rule: Rule) -> str:
    """What an alert compares, in short."""
    said = []
    for first, *_ in alternatives(rule.expression):
        sides = comparison(first.text)
        found = dict(selectors(sides.left if sides else first.text))
        if len(found) > 1:
            found.pop(THRESHOLD, None)
        read = [f"{name}{{{of}}}" if of else name for name, of in found.items()]
        short = f"`{', '.join(read[:2])}{', …' if len(read) > 2 else ''}"
        if len(short) > MAX_CONDITION:
            short = f"`{', '.join([*found][:2])}{', …' if len(read) > 2 else ''}"
        if sides:
            limit = A_THRESHOLD.sub(r"\1", sides.right)
            short += f" {sides.operator} {' '.join(limit.split())}"
        said.append(f"{short}`".replace("|", "\\|"))
    different = [*dict.fromkeys(said)]
    if len(different) > 2:
        return f"{different[0]}, or {len(different) - 1} more"
    return " or ".join(different)


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _together(
    names: Iterable[str], comments: Mapping[str, str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each comment with the names beside each other that it is about."""
    for comment, about in groupby(names, key=lambda name: comments[name]):
        yield comment, tuple(about)


def thresholds(rules: Sequence[Written]) -> str:
    """docs/thresholds.md."""
    given = figures([one.rule for one in rules])
    says = {one.rule.labels.get("name", ""): one.comment for one in rules}
    lines = [
        f"| {_names(names)} | {', '.join(f'{given[name]:g}' for name in names)} | {comment} |"
        for comment, names in _together(given, says)
    ]
    lines += [
        "",
        "## Alerts",
        "",
        "| alert | severity | condition | summary |",
        "|---|---|---|---|",
    ]
    for rule in (one.rule for one in rules):
        if rule.alerts:
            name = f"[{rule.name}](../alerts/runbooks/{rule.name}.md)"
            met = condition(rule) + (f" for {rule.lasting}" if rule.lasting else "")
            lines.append(f"| {name} | {rule.severity} | {met} | {rule.annotations['summary']} |")
    lines += ["", "## Recording rules", "", "| series | meaning |", "|---|---|"]
    records = {
        one.rule.name: one.comment.partition(". ")[0].rstrip(".")
        for one in rules
        if not one.rule.alerts and one.rule.name != THRESHOLD
    }
    lines += [f"| {_names(names)} | {comment} |" for comment, names in _together(records, records)]
    return HEAD + "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Size:
    """How much somebody has to read who wants to know why an alert came."""

    records: int
    behind: dict[str, tuple[int, int, int]]
    """By alert and severity: rules, characters with its own, and depth."""

    themselves: tuple[str, ...]
    """The series that are recorded from their own past."""

    groups: dict[str, int]
    intervals: tuple[str, ...]


def size(rules: Sequence[Rule]) -> Size:
    """The size of some rules."""
    records = by_record(rules)
    of_alerts: dict[str, tuple[int, int, int]] = {}
    for rule in (one for one in rules if one.alerts):
        under = underlying_records(rule.expression, records)
        characters = sum(len(one.expression) for name in under for one in records[name])
        name = f"{rule.name} ({rule.severity})"
        of_alerts[name] = (
            len(under),
            characters + len(rule.expression),
            max(under.values(), default=0),
        )
    themselves = tuple(
        name
        for name, own in records.items()
        if any(name in underlying_records(one.expression, records) for one in own)
    )
    return Size(
        sum(map(len, records.values())),
        of_alerts,
        themselves,
        dict(Counter(one.group for one in rules)),
        tuple(sorted({one.interval for one in rules})),
    )


def shipped() -> Size:
    """The size of the rules of the project."""
    return size(read_rules(RULES))


def files() -> dict[Path, str]:
    """Everything that is written, by its path."""
    return {THRESHOLDS: thresholds(rules_with_comments())}


def main() -> None:
    """Write the document."""
    for path, text in files().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
