"""Writes everything that derives from the threshold table: ``make alerts``.

rules/*.yaml for Prometheus, tests/*.yaml for ``promtool test rules``, runbooks/*.md, and
docs/thresholds.md.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from alerts.recording import RECORDS, Record
from gpunode.catalogue import SECTIONS
from gpunode.thresholds import GPU, NODE, PAUSE, THRESHOLDS, Threshold, Tier, ledger

ROOT = Path(__file__).parents[1]
RUNBOOKS = "https://github.com/gpunode/gpunode/blob/main/alerts/runbooks"
DASHBOARD = "/d/gpunode-node?var-instance={{ $labels.instance }}"
GENERATED = (
    "# Generated from exporter/gpunode/thresholds.py and alerts/recording.py by `make alerts`.\n"
)

FORMATS = {
    "percent": "{{ $value | humanizePercentage }}",
    "celsius": '{{ printf "%.0f" $value }} °C',
    "seconds": "{{ $value | humanizeDuration }}",
    "number": "{{ $value | humanize }}",
    "flag": "",
}
HELD = (
    '{{ with printf "gpunode_gpu_owner_info{instance=%q,uuid=%q}" $labels.instance $labels.uuid '
    "| query }} Held by{{ range . }} "
    "{{ or .Labels.owner_pod .Labels.slurm_job .Labels.user }}{{ end }}.{{ end }}"
)
"""Names who holds the GPU; nothing where nobody does."""

LABEL = re.compile(r"\{\{ \$labels\.(\w+) \}\}")

BASE = {"cluster": "c", "instance": "node-a"}
ONE_GPU = {"gpu": "0", "uuid": "GPU-a"}
OF_GPU = {
    metric.name for section in SECTIONS.values() for metric in section if "gpu" in metric.labels
}
URGENT = ("communication", "shared_memory", "hardware", "exporter")
"""Parts of the table whose signals are gauges and whose seconds count; the others look back on
minutes, and their rates over a fleet take time."""

QUIET = 40
"""Minutes of quiet before an alert is made to fire; longer where the signal looks further back."""


def minutes(duration: str) -> int:
    """A duration of Prometheus in minutes, rounded up."""
    number, unit = int(duration[:-1]), duration[-1]
    return math.ceil(number * {"s": 1 / 60, "m": 1, "h": 60}[unit])


def expression(row: Threshold, tier: Tier) -> str:
    """The expression of an alert."""
    signal = f"({row.signal})" if re.search(r" (and|unless|or) on ", row.signal) else row.signal
    told = f"{signal} {row.comparison} {tier.threshold:g}"
    if not row.while_running:
        return told
    gate, on = {
        "gpu": ("gpu:gpunode_gpu_running:rate5m", GPU),
        "node": ("node:gpunode_gpu_running:max_rate5m", NODE),
    }[row.scope]
    told += f" and on ({on}) {gate} > 0.5"
    if row.scope == "node" or "phase=" in row.signal:
        return told
    return f"{told} unless on ({GPU}) {PAUSE} > 0.1"


def rule(row: Threshold, tier: Tier) -> dict[str, Any]:
    """One alert rule."""
    where = "GPU {{ $labels.gpu }} of " if row.scope == "gpu" else ""
    held = HELD if row.scope == "gpu" else ""
    figure = f"{FORMATS[row.unit]} {row.says}".strip()
    told = f"{where}{{{{ $labels.instance }}}}: {figure}."
    return {
        "alert": row.alert,
        "expr": expression(row, tier),
        "for": tier.after,
        **({"keep_firing_for": row.keep} if row.keep else {}),
        "labels": {"severity": tier.severity, "group": row.group},
        "annotations": {
            "summary": row.summary,
            "summary_ko": row.korean,
            "description": told + held,
            "runbook_url": f"{RUNBOOKS}/{row.alert}.md",
            "dashboard": DASHBOARD,
        },
    }


def groups() -> dict[str, list[Threshold]]:
    """The rows of each part of the table."""
    found: dict[str, list[Threshold]] = {}
    for row in THRESHOLDS:
        found.setdefault(row.group, []).append(row)
    return found


def alert_rules(name: str, rows: Iterable[Threshold]) -> dict[str, Any]:
    """The alert rules of one part of the table."""
    rules = [rule(row, tier) for row in rows for tier in row.tiers]
    interval = "15s" if name in URGENT else "30s"
    return {"groups": [{"name": f"gpunode.{name}", "interval": interval, "rules": rules}]}


def recording_rules() -> dict[str, Any]:
    """All recording rules; what others rest on comes first."""
    rules = [{"record": record.name, "expr": record.expression} for record in RECORDS]
    slow = [r for r in rules if re.search(r":(rate|p50_)(1h|1d|30d)$", r["record"])]
    return {
        "groups": [
            {
                "name": "gpunode.recording",
                "interval": "30s",
                "rules": [rule for rule in rules if rule not in slow],
            },
            {"name": "gpunode.recording_slow", "interval": "1m", "rules": slow},
        ]
    }


def series(name: str) -> str:
    """A series with the labels of a test's node and GPU."""
    metric, _, labels = name.partition("{")
    own = dict(re.findall(r'(\w+)="([^"]*)"', labels))
    family = re.sub(r"_(bucket|sum|count)$", "", metric)
    of_gpu = ONE_GPU if {metric, family} & OF_GPU or metric.startswith("gpu:") else {}
    every = {**BASE, **of_gpu, **own}
    return metric + "{" + ",".join(f'{k}="{v}"' for k, v in sorted(every.items())) + "}"


def is_counter(name: str) -> bool:
    """Whether a series only grows."""
    return re.search(r"_(total|bucket|sum|count)($|\{)", name) is not None


def values(name: str, phases: Iterable[tuple[int, float]], ramps: bool) -> str:
    """What a series is, minute by minute, in promtool's notation."""
    told: list[float] = []
    at = 0.0
    for length, value in phases:
        for _ in range(length):
            if is_counter(name) or ramps:
                told.append(at)
                at += value * 60
            else:
                told.append(value)
    return " ".join(f"{value:.10g}" for value in told)


def alert_test(row: Threshold) -> dict[str, Any]:
    """A test that an alert is quiet below, waits, fires with everything it says, and resolves."""
    longest = max(minutes(tier.after) for tier in row.tiers)
    quiet = max(QUIET, row.settles + 5)
    firing = row.settles + longest + 5
    after = row.settles + minutes(row.keep or "0s") + longest + 10
    context = {} if any("gpu_seconds_total" in name for name in row.fires) else ledger(starved=0.0)
    context |= {'gpunode_gpu_owner_info{owner_pod="train-0"}': 1.0}
    given = {name: (value, value) for name, value in context.items()}
    for name, value in row.fires.items():
        given[name] = row.quiet.get(name, value), value
    for name, value in row.quiet.items():
        given.setdefault(name, (value, value))
    alerts = [expected(row, tier) for tier in row.tiers]
    checks: list[tuple[int, list[dict[str, Any]]]] = [(quiet - 1, [])]
    shortest = min(minutes(tier.after) for tier in row.tiers)
    if shortest >= 3:
        checks.append((quiet + shortest - 2, []))
    checks.append((quiet + row.settles + longest + 2, alerts))
    checks.append((quiet + firing + after - 2, []))
    return {
        "name": row.alert,
        "interval": "1m",
        "input_series": [
            {
                "series": series(name),
                "values": values(
                    name,
                    [(quiet, low), (firing, high), (after, low)],
                    row.ramps and name in row.fires,
                ),
            }
            for name, (low, high) in given.items()
        ],
        "alert_rule_test": [
            {"eval_time": f"{time}m", "alertname": row.alert, "exp_alerts": told}
            for time, told in checks
        ],
    }


def pause_test(row: Threshold) -> dict[str, Any]:
    """A test that an alert is silent while the training evaluates."""
    test = alert_test(row)
    evaluating = series('gpunode_training_seconds_total{phase="evaluation"}')
    length = len(test["input_series"][0]["values"].split())
    growing = " ".join(str(30 * minute) for minute in range(length))
    silent = [{**check, "exp_alerts": []} for check in test["alert_rule_test"]]
    given = [*test["input_series"], {"series": evaluating, "values": growing}]
    name = f"{row.alert} while training evaluates"
    return {**test, "name": name, "input_series": given, "alert_rule_test": silent}


def expected(row: Threshold, tier: Tier) -> dict[str, Any]:
    """An alert as it must arrive, all its annotations rendered."""
    kept = re.search(r"\bby \(([^)]*)\)", row.signal)
    names = [name.strip() for name in kept[1].split(",")] if kept else []
    first = dict(re.findall(r'(\w+)="([^"]*)"', next(iter(row.fires))))
    labels = {**BASE, **(ONE_GPU if row.scope == "gpu" else {})}
    labels |= {name: first[name] for name in names if first.get(name) and name != "le"}
    arrives = rule(row, tier)
    said = arrives["annotations"]["description"].replace(HELD, " Held by train-0.")
    if row.unit != "flag":
        said = said.replace(FORMATS[row.unit], RENDERED[row.unit](row.value))
    said = LABEL.sub(lambda match: labels.get(match[1], ""), said)
    dashboard = DASHBOARD.replace("{{ $labels.instance }}", BASE["instance"])
    return {
        "exp_labels": {**labels, **arrives["labels"]},
        "exp_annotations": {**arrives["annotations"], "description": said, "dashboard": dashboard},
    }


def humanize(value: float) -> str:
    """As Prometheus's template function: four digits and a prefix."""
    prefixes = ["", "k", "M", "G", "T"]
    while abs(value) >= 1000 and len(prefixes) > 1:
        value /= 1000
        prefixes.pop(0)
    return f"{value:.4g}{prefixes[0]}"


def humanize_duration(value: float) -> str:
    """As Prometheus's template function."""
    if 0 < abs(value) < 1:
        return f"{value * 1000:.4g}ms"
    seconds = int(value)
    days, hours, rest = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days}d {hours}h {rest}m {seconds % 60}s"
    if hours:
        return f"{hours}h {rest}m {seconds % 60}s"
    return f"{rest}m {seconds % 60}s" if rest else f"{value:.4g}s"


RENDERED: dict[str, Callable[[float], str]] = {
    "percent": lambda value: f"{value * 100:.4g}%",
    "celsius": lambda value: f"{value:.0f} °C",
    "seconds": humanize_duration,
    "number": humanize,
    "flag": str,
}


def record_test(record: Record) -> dict[str, Any]:
    """A test of what a recording rule comes to."""
    return {
        "name": record.name,
        "interval": "1m",
        "input_series": [
            {"series": series(name), "values": values(name, [(100, value)], False)}
            for name, value in record.given.items()
        ],
        "promql_expr_test": [
            {
                "expr": record.name + _matcher(record),
                "eval_time": "90m",
                "exp_samples": [
                    {"labels": record.name + labels, "value": value}
                    for labels, value in record.results.items()
                ],
            }
        ],
    }


def _matcher(record: Record) -> str:
    """Of a rule with a result for each state, only the states that the test names."""
    states = sorted(set(re.findall(r'state="(\w+)"', " ".join(record.results))))
    namespaces = sorted(set(re.findall(r'owner_namespace="(\w+)"', " ".join(record.results))))
    wanted = [f'state=~"{"|".join(states)}"'] if states else []
    wanted += [f'owner_namespace=~"{"|".join(namespaces)}"'] if namespaces else []
    return "{" + ",".join(wanted) + "}" if wanted else ""


def tests(items: Iterable[dict[str, Any]], *rules: str) -> dict[str, Any]:
    """A file for ``promtool test rules``."""
    return {
        "rule_files": [f"../rules/{name}.yaml" for name in ("recording", *rules)],
        "evaluation_interval": "1m",
        "tests": list(items),
    }


def when(row: Threshold, tier: Tier) -> str:
    """When a tier fires, in words."""
    says = LABEL.sub(r"`\1`", row.says)
    if row.unit == "flag":
        return says
    return f"{row.comparison} {RENDERED[row.unit](tier.threshold)} {says}"


def runbook(row: Threshold) -> str:
    """What on-call reads."""
    tiers = "\n".join(f"- {t.severity}: {when(row, t)}, for {t.after}" for t in row.tiers)
    gate = "Silent unless a job runs.\n" if row.while_running else ""
    return f"""# {row.alert}

{row.summary}. {row.korean}.

{tiers}

{gate}
## Meaning

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
        "| alert | group | severity | when | for | meaning |",
        "|---|---|---|---|---|---|",
    ]
    for row in THRESHOLDS:
        for tier in row.tiers:
            name = f"[{row.alert}](../alerts/runbooks/{row.alert}.md)"
            told = (name, row.group, tier.severity, when(row, tier), tier.after, row.meaning)
            lines.append("| " + " | ".join(told) + " |")
    lines += ["", "## Recording rules", "", "| rule | what it is |", "|---|---|"]
    lines += [f"| `{record.name}` | {record.purpose} |" for record in RECORDS]
    return "\n".join(lines) + "\n"


def files() -> dict[str, str]:
    """Everything that is generated, by its path in the repository."""
    found = {
        "alerts/rules/recording.yaml": dump(recording_rules()),
        "alerts/tests/recording.yaml": dump(tests(map(record_test, RECORDS))),
        "docs/thresholds.md": thresholds(),
    }
    for name, rows in groups().items():
        found[f"alerts/rules/{name}.yaml"] = dump(alert_rules(name, rows))
        checked = [test(row) for row in rows for test in _tests_of(row)]
        found[f"alerts/tests/{name}.yaml"] = dump(tests(checked, name))
    return found | {f"alerts/runbooks/{row.alert}.md": runbook(row) for row in THRESHOLDS}


def _tests_of(row: Threshold) -> list[Callable[[Threshold], dict[str, Any]]]:
    pauses = "training_pause" in expression(row, row.tiers[0])
    return [alert_test, pause_test] if pauses else [alert_test]


def dump(content: dict[str, Any]) -> str:
    """YAML as people write it."""
    return GENERATED + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)


def main(root: Path) -> None:
    """Write all files below a folder."""
    for path, content in files().items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
