"""Writes what derives from the rules: ``make alerts`` writes docs/thresholds.md.

python -m alerts.document --table prints how large the rules are, as one line of a table.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from gpunode.explain.promql import alternatives, comparison, names, selectors
from gpunode.explain.rule_files import THRESHOLD, Rule, behind, read, recorded

ROOT = Path(__file__).parents[1]
RULES = ROOT / "alerts" / "rules"
RUNBOOKS = ROOT / "alerts" / "runbooks"
THRESHOLDS = ROOT / "docs" / "thresholds.md"

A_THRESHOLD = re.compile(r'scalar\(max\(gpunode_threshold\{name="(\w+)"\}\)\)')
LONGEST_CONDITION = 100

HEAD = """\
# Thresholds

Generated from `alerts/rules` by `make alerts`; do not edit.

## Figures that sites change

Series `gpunode_threshold{name}` of `thresholds.yaml`. An alert tells when one is missing.

| name | figure | what it is |
|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Written:
    """A rule, and the comment above it."""

    rule: Rule
    comment: str


def written(rules: Path = RULES) -> list[Written]:
    """The rules of a folder with their comments; a record without has that right above it."""
    found = []
    parsed = iter(read(rules))
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
        found.pop(THRESHOLD, None)
        read = [f"{name}{{{of}}}" if of else name for name, of in found.items()]
        short = f"`{', '.join(read[:2])}{', …' if len(read) > 2 else ''}"
        if len(short) > LONGEST_CONDITION:
            short = f"`{', '.join([*found][:2])}{', …' if len(read) > 2 else ''}"
        if sides:
            limit = A_THRESHOLD.sub(r"\1", sides.right)
            short += f" {sides.operator} {' '.join(limit.split())}"
        said.append(f"{short}`".replace("|", "\\|"))
    return " or ".join(dict.fromkeys(said))


def thresholds(rules: Sequence[Written]) -> str:
    """docs/thresholds.md."""
    given = figures([one.rule for one in rules])
    says = {one.rule.labels.get("name", ""): one.comment for one in rules}
    lines = [f"| `{name}` | {figure:g} | {says[name]} |" for name, figure in given.items()]
    lines += [
        "",
        "## Alerts",
        "",
        "| alert | severity | compares | for | summary |",
        "|---|---|---|---|---|",
    ]
    for one in rules:
        rule = one.rule
        if rule.alerts:
            name = f"[{rule.name}](../alerts/runbooks/{rule.name}.md)"
            says = f"{rule.annotations['summary']}. {one.comment}".strip()
            lines.append(
                f"| {name} | {rule.severity} | {condition(rule)} | {rule.lasting} | {says} |"
            )
    lines += ["", "## Recording rules"]
    records = [one for one in rules if not one.rule.alerts and one.rule.name != THRESHOLD]
    for file, of_file in groupby(records, key=lambda one: Path(one.rule.file).name):
        lines += ["", f"### {file}", "", "| series | what it is |", "|---|---|"]
        lines += [f"| `{one.rule.name}` | {one.comment} |" for one in of_file]
    lines += [
        "",
        "## What shards hand on",
        "",
        "The raw series that the rules read ([beyond one Prometheus]"
        "(rules.md#beyond-one-prometheus)):",
        "",
        "```",
        *handed_on([one.rule for one in rules]),
        "```",
    ]
    return HEAD + "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Size:
    """How much somebody has to read who wants to know why an alert came."""

    records: int
    thresholds: int
    alerts: int
    lines: int
    characters: int
    """Of PromQL."""

    behind: dict[str, tuple[int, int, int]]
    """By alert and severity: rules, characters with its own, and depth."""

    themselves: tuple[str, ...]
    """The series that are recorded from their own past."""

    groups: dict[str, int]
    intervals: tuple[str, ...]


def size(rules: Sequence[Rule], lines: int) -> Size:
    """The size of some rules, which take so many lines."""
    records = recorded(rules)
    of_alerts: dict[str, tuple[int, int, int]] = {}
    for rule in (one for one in rules if one.alerts):
        under = behind(rule.expression, records)
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
        if any(name in behind(one.expression, records) for one in own)
    )
    return Size(
        sum(map(len, records.values())),
        sum(one.name == THRESHOLD for one in rules),
        sum(one.alerts for one in rules),
        lines,
        sum(len(one.expression) for one in rules),
        of_alerts,
        themselves,
        dict(Counter(one.group for one in rules)),
        tuple(sorted({one.interval for one in rules})),
    )


def shipped() -> Size:
    """The size of the rules of the project."""
    lines = sum(len(path.read_text().splitlines()) for path in RULES.glob("*.yaml"))
    return size(read(RULES), lines)


def table(found: Size) -> str:
    """The size as a table."""
    most = max(found.behind, key=lambda name: found.behind[name])
    longest = max(found.behind, key=lambda name: found.behind[name][1])
    rows = {
        "recording rules / thresholds / alerts": (
            f"{found.records} / {found.thresholds} / {found.alerts}"
        ),
        "lines": f"{found.lines:,}",
        "characters of PromQL": f"{found.characters:,}",
        "most rules behind one alert": f"{found.behind[most][0]}, {most}",
        "most characters behind one alert": f"{found.behind[longest][1]:,}, {longest}",
        "depth": f"{max(depth for _, _, depth in found.behind.values())}",
        "rules that read themselves": ", ".join(found.themselves) or "0",
        "largest group": f"{max(found.groups.values())} of {len(found.groups)}",
        "intervals": ", ".join(found.intervals),
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows.items())]) + "\n"


def main() -> None:
    """Write the document, or print the table."""
    if sys.argv[1:] == ["--table"]:
        sys.stdout.write(table(shipped()))
        return
    THRESHOLDS.write_text(thresholds(written()))


if __name__ == "__main__":
    main()
