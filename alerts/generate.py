"""Writes everything that derives from the threshold table: ``make alerts``.

rules/*.yaml for Prometheus, tests/*.yaml for ``promtool test rules``, runbooks/*.md, and
docs/thresholds.md. With ``--into``, the rules alone, with a user's changes.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from alerts.figures import RENDERED
from alerts.recording import RECORDS
from alerts.rule_files import expression, minutes, rule_files
from alerts.rule_tests import LABEL, test_files
from alerts.thresholds.table import THRESHOLDS, Severity, Threshold, Tier

ROOT = Path(__file__).parents[1]
GENERATED = (
    "# Generated from exporter/gpunode/thresholds.py and alerts/recording.py by `make alerts`.\n"
)


def when(row: Threshold, tier: Tier) -> str:
    """When a tier fires, in words."""
    says = LABEL.sub(r"`\1`", row.says)
    if row.unit == "flag":
        return says
    return f"{row.comparison} {RENDERED[row.unit](tier.threshold)} {says}"


PAUSED = "and while training sets up, compiles, evaluates or saves."
GATED = {
    "running": f"Silent unless a job runs on the GPU, {PAUSED}",
    "some_work": f"Silent unless the GPU has some work, {PAUSED}",
    "lately": f"Silent unless a job ran on the node within the hour, {PAUSED}",
}


def lasting(tier: Tier) -> str:
    """For how long it must be so, in words."""
    return f"for {tier.after}" if minutes(tier.after) else "at once"


def runbook(row: Threshold) -> str:
    """What on-call reads."""
    tiers = "\n".join(f"- {t.severity}: {when(row, t)}, {lasting(t)}" for t in row.tiers)
    gate = f"{GATED[row.gate]}\n\n" if row.gate in GATED else ""
    return f"""# {row.alert}

{row.summary}. {row.korean}.

{tiers}

{gate}## Meaning

{row.meaning}

## Impact

{row.impact}

## Diagnosis

{row.diagnosis}

```
{expression(row, row.tiers[0])}
```

## Mitigation

{row.remedy}

[Source]({row.source})
"""


def thresholds() -> str:
    """The table for people."""
    lines = [
        "# Thresholds",
        "",
        "Generated from `exporter/gpunode/thresholds.py` by `make alerts`; do not edit.",
        "",
        "| alert | group | severity | when | | meaning |",
        "|---|---|---|---|---|---|",
    ]
    for row in THRESHOLDS:
        for tier in row.tiers:
            name = f"[{row.alert}](../alerts/runbooks/{row.alert}.md)"
            told = (name, row.group, tier.severity, when(row, tier), lasting(tier), row.meaning)
            lines.append("| " + " | ".join(told) + " |")
    lines += ["", "## Recording rules", "", "| rule | what it is |", "|---|---|"]
    lines += [f"| `{record.name}` | {record.purpose} |" for record in RECORDS]
    return "\n".join(lines) + "\n"


def files() -> dict[str, str]:
    """Everything that is generated, by its path in the repository."""
    return {
        **{f"alerts/rules/{name}.yaml": dump(rules) for name, rules in rule_files().items()},
        **{f"alerts/tests/{name}.yaml": dump(tests) for name, tests in test_files().items()},
        **{f"alerts/runbooks/{row.alert}.md": runbook(row) for row in THRESHOLDS},
        "docs/thresholds.md": thresholds(),
    }


def dump(content: dict[str, Any]) -> str:
    """YAML as people write it."""
    return GENERATED + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)


class Change(BaseModel):
    """What a user wants otherwise about a tier of an alert."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    threshold: float | None = None
    after: Annotated[str | None, Field(alias="for", pattern=r"^[0-9]+[smh]$")] = None
    severity: Severity | None = None


Changes = dict[str, Literal[False] | dict[Severity, Literal[False] | Change]]
"""By alert and severity; ``off`` for what is not wanted at all."""
CHANGES: TypeAdapter[Changes] = TypeAdapter(Changes)


def changed(rows: Iterable[Threshold], changes: Changes) -> Iterator[Threshold]:
    """The table with a user's changes. Raises ``LookupError`` for what is not in the table."""
    left = dict(changes)
    for row in rows:
        wanted = left.pop(row.alert, {})
        if wanted is False:
            continue
        tiers = []
        unknown = wanted.keys() - {tier.severity for tier in row.tiers}
        if unknown:
            raise LookupError(f"{row.alert} has no tier {', '.join(sorted(unknown))}")
        for tier in row.tiers:
            change = wanted.get(tier.severity, Change())
            if change is not False:
                threshold = tier.threshold if change.threshold is None else change.threshold
                severity = change.severity or tier.severity
                tiers.append(Tier(severity, threshold, change.after or tier.after))
        if tiers:
            yield replace(row, tiers=tuple(tiers))
    if left:
        raise LookupError(f"no alert is called {', '.join(sorted(left))}")


def main() -> None:
    """Rewrite the files of the repository, or the rules alone with a user's changes."""
    parser = ArgumentParser(prog="python -m alerts.generate", description=main.__doc__)
    parser.add_argument("--changes", type=Path, help="YAML; docs/rules.md says what it may hold")
    parser.add_argument("--into", type=Path, help="a folder for these rules")
    parser.add_argument(
        "--no-keep-firing-for",
        action="store_true",
        help="leave keep_firing_for out, which Prometheus knows from 2.42 on",
    )
    given = parser.parse_args()
    if given.into is None:
        if given.changes or given.no_keep_firing_for:
            parser.error("--changes and --no-keep-firing-for need --into FOLDER")
        for path, content in files().items():
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(content)
        return
    rows: Iterable[Threshold] = THRESHOLDS
    if given.changes:
        try:
            changes = CHANGES.validate_python(yaml.safe_load(given.changes.read_text()))
            rows = list(changed(THRESHOLDS, changes))
        except ValidationError as error:
            worst = error.errors()[-1]
            where = ".".join(str(part) for part in worst["loc"] if re.match(r"\w+$", str(part)))
            parser.error(f"{given.changes}: {where}: {worst['msg']}")
        except (OSError, LookupError, yaml.YAMLError) as error:
            parser.error(f"{given.changes}: {' '.join(str(error).split())}")
    if given.no_keep_firing_for:
        rows = [replace(row, keep="") for row in rows]
    given.into.mkdir(parents=True, exist_ok=True)
    for name, rules in rule_files(rows).items():
        (given.into / f"{name}.yaml").write_text(dump(rules))


if __name__ == "__main__":
    main()
