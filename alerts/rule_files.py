"""The rule files of Prometheus, from the threshold table and the recording rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from string import Template
from typing import Any

from alerts.figures import FORMATS
from alerts.model import AT_ONCE, IDENTITY, Record, Scope, Severity, Threshold, Tier, seconds
from alerts.promql import JOB, NODE
from alerts.recording import OF_CLUSTERS, OF_NODES
from alerts.settings import SETTINGS
from alerts.thresholds.table import THRESHOLDS

RUNBOOKS = "https://github.com/gpunode/gpunode/blob/main/alerts/runbooks"
ITS_CLUSTER = "{{ with $labels.cluster }}&var-cluster={{ . }}{{ end }}"
NODE_PAGE = f"${{grafana_url}}/d/gpunode-node?var-node={{{{ $labels.instance }}}}{ITS_CLUSTER}"
FLEET_PAGE = f"${{grafana_url}}/d/gpunode-fleet?{ITS_CLUSTER}"
DASHBOARDS: dict[Scope, str] = {
    "job": (
        "${grafana_url}/d/gpunode-job?var-namespace={{ $labels.owner_namespace }}"
        f"&var-job={{{{ $labels.workload }}}}{ITS_CLUSTER}"
    ),
    "gpu": NODE_PAGE.replace("gpunode-node", "gpunode-gpu") + "&var-gpu={{ $labels.gpu }}",
    "node": NODE_PAGE,
    "filesystem": FLEET_PAGE,
    "fault": FLEET_PAGE,
    "cluster": FLEET_PAGE,
}
"""The dashboard about what an alert is about."""


def _ask(record: str, what: str, most: int = 0) -> str:
    """Text about what a query of the alert's job finds; nothing if it finds nothing."""
    selected = f"{record}{{cluster=%q,owner_namespace=%q,workload=%q,replica=%q,user=%q}}"
    query = f"topk({most}, {selected})" if most else selected
    labels = " ".join(f"$labels.{name}" for name in IDENTITY["job"])
    return f"{{{{ with printf `{query}` {labels} | query }}}}{what}{{{{ end }}}}"


ITS_NAME = (
    "{{ with $labels.owner_namespace }}{{ . }}/{{ end }}{{ $labels.workload }}"
    "{{ with $labels.replica }}-{{ . }}{{ end }}{{ with $labels.user }} of {{ . }}{{ end }}"
)


def _number(what: str) -> str:
    """How many there are of something."""
    return (
        f"{{{{ . | first | value }}}} {what}{{{{ if ne (. | first | value) 1.0 }}}}s{{{{ end }}}}"
    )


def _list(heading: str, one: str) -> str:
    """A sentence that lists what a query finds."""
    return (
        f" {heading} {{{{ range $i, $_ := . }}}}{{{{ if $i }}}}, {{{{ end }}}}{one}{{{{ end }}}}."
    )


ITS_SIZE = _ask("job:gpunode_job:gpus", f" ({_number('GPU')} on ") + _ask(
    "job:gpunode_job:nodes", f"{_number('node')})"
)
ITS_CAUSES = _ask(
    "job:gpunode_gpu_bottleneck:count",
    _list("GPUs by verdict:", "{{ .Labels.cause }} {{ .Value }}"),
    3,
)
ITS_LATE = _ask(
    "job:gpunode_late_gpu:reason",
    _list("Waited for:", "GPU {{ .Labels.gpu }} of {{ .Labels.instance }} ({{ .Labels.reason }})"),
    3,
)
ITS_RANK = _ask(
    "job:gpunode_awaited_rank:reason",
    _list(
        "NCCL names:",
        "rank {{ .Labels.rank }} (process {{ .Labels.pid }} on {{ .Labels.host }}, "
        "{{ .Labels.reason }})",
    ),
    3,
)
OF_THIS_GPU = "{cluster=%q,instance=%q,uuid=%q}"
OWNERS = f"group by (owner_pod, slurm_job, user) (gpunode_gpu_owner_info{OF_THIS_GPU})"
BY_ITS_LABELS = "$labels.cluster $labels.instance $labels.uuid | query"
HELD = (
    f"{{{{ with printf `{OWNERS}` {BY_ITS_LABELS} }}}}"
    + _list("Held by", "{{ or .Labels.owner_pod .Labels.slurm_job .Labels.user }}")
    + "{{ end }}"
)
REASONS = (
    f"{{{{ with printf `gpu:gpunode_gpu_fault:level{OF_THIS_GPU}` {BY_ITS_LABELS} }}}}"
    + _list("Reasons:", "{{ .Labels.reason }}")
    + "{{ end }}"
)
NODES = (
    "{{ with printf `topk(5, node:gpunode_fault:level{cluster=%q,fault=%q})` $labels.cluster "
    "$labels.fault | query }}" + _list("Among them:", "{{ .Labels.instance }}") + "{{ end }}"
)
SILENT_NODES = (
    "{{ with printf `topk(5, node:gpunode_storage_silent:active{cluster=%q,filesystem=%q})` "
    "$labels.cluster $labels.filesystem | query }}"
    + _list("Among them:", "{{ .Labels.instance }}")
    + "{{ end }}"
)

PLACES: dict[Scope, str] = {
    "job": f"{ITS_NAME}{ITS_SIZE}: ",
    "gpu": "GPU {{ $labels.gpu }} of {{ $labels.instance }}: ",
    "node": "{{ $labels.instance }}: ",
    "filesystem": "",
    "fault": "",
    "cluster": "",
}
MORE: dict[Scope, str] = {
    "job": ITS_CAUSES,
    "gpu": HELD,
    "node": "",
    "filesystem": SILENT_NODES,
    "fault": NODES,
    "cluster": "",
}
"""What a description says after the figure."""

EVIDENCE = {"JobStalled": ITS_LATE + ITS_RANK, "GpuUnhealthy": REASONS}
"""What it says besides, for an alert that is worth it."""

VARIABLES: dict[Scope, dict[str, str]] = {
    "job": {"namespace": "owner_namespace", "job": "workload", "user": "user"},
    "gpu": {"instance": "instance", "gpu": "gpu", "uuid": "uuid"},
    "node": {"instance": "instance"},
    "filesystem": {"filesystem": "filesystem"},
    "fault": {"fault": "fault"},
    "cluster": {"cluster": "cluster"},
}
"""What the commands of a runbook name, to be pasted into a shell before them: labels by variable.
Each value is quoted, so that no name of a tenant's is a command to the shell."""

NAMES: Mapping[Severity, str] = {"page": "page", "ticket": "ticket", "info": "info"}
"""What each severity is called in the labels of the rules."""


def expression(row: Threshold, tier: Tier) -> str:
    """The expression of an alert: a recorded series, its threshold, and what silences it."""
    compared = f"{tier.record or row.record} {row.comparison} {tier.threshold:g}"
    if not tier.unless:
        return compared
    level = tier.unless.partition(":")[0]
    on = {"job": JOB, "node": NODE, "cluster": "cluster"}[level]
    return f"{compared} unless on ({on}) {tier.unless}"


def can_page(row: Threshold) -> bool:
    """Whether an alert can wake somebody."""
    return any(tier.severity == "page" for tier in row.tiers)


PAGES = frozenset(row.alert for row in THRESHOLDS if can_page(row))
"""The alerts with a runbook in Korean, whatever a user makes of their severities."""


def in_words(row: Threshold, tier: Tier, value: str, label: str) -> str:
    """What a tier says, with its figure, and with each label as ``label`` writes a name."""
    labels = {name: label.replace("NAME", name) for name in row.identity}
    return (tier.says or row.says).format(value=value, **labels)


def rule(row: Threshold, tier: Tier, names: Mapping[Severity, str] = NAMES) -> dict[str, Any]:
    """One alert rule."""
    said = in_words(row, tier, FORMATS[tier.unit or row.unit], "{{ $labels.NAME }}")
    more = EVIDENCE.get(row.alert, "") + MORE[row.scope]
    return {
        "alert": row.alert,
        "expr": expression(row, tier),
        **({"for": tier.after} if tier.after != "0s" else {}),
        **({"keep_firing_for": row.keep_firing_for} if row.keep_firing_for else {}),
        "labels": {
            "severity": names[tier.severity],
            "group": row.group,
            **({"route": "job_owner"} if row.of_owner else {}),
            **({"fault": row.fault} if row.fault else {}),
        },
        "annotations": {
            "summary": row.summary,
            "summary_ko": row.summary_ko,
            "description": f"{PLACES[row.scope]}{said}.{more}",
            "runbook_url": f"{RUNBOOKS}/{row.alert}.md",
            **({"runbook_url_ko": f"{RUNBOOKS}/ko/{row.alert}.md"} if row.alert in PAGES else {}),
            "variables": variables(row),
            "dashboard": DASHBOARDS[row.scope],
        },
    }


def variables(row: Threshold) -> str:
    """The assignments that make the commands of a row's runbook ready to paste."""
    labels = VARIABLES[row.scope] | {label: label for label in row.labels}
    return " ".join(
        f'{name}=\'{{{{ reReplaceAll "\'" "" $labels.{label} }}}}\''
        for name, label in labels.items()
    )


def file_of(row: Threshold) -> str:
    """The file of a row: what needs all nodes is apart, and of that what is asked most often."""
    if not row.over_nodes:
        return row.group
    return "cluster_at_once" if row.every == AT_ONCE else f"cluster_{row.group}"


def groups(rows: Iterable[Threshold] = THRESHOLDS) -> dict[str, list[Threshold]]:
    """The rows of each file."""
    found: dict[str, list[Threshold]] = {}
    for row in rows:
        found.setdefault(file_of(row), []).append(row)
    return found


WIDTH = 100


def laid_out(expression: str, indent: str = "") -> str:
    """An expression as people write it.

    Each operand of a set operator has a line of its own, and what is in parentheses is indented
    where it is long.
    """
    if len(indent) + len(expression) <= WIDTH:
        return indent + expression
    parts = _operands(expression)
    if len(parts) > 1:
        return "\n".join(laid_out(part, indent) for part in parts)
    opens, closes = max(
        _parentheses(expression), key=lambda pair: pair[1] - pair[0], default=(0, 0)
    )
    if closes - opens < WIDTH // 2:
        return indent + expression
    inside = laid_out(expression[opens + 1 : closes], f"{indent}  ")
    return f"{indent}{expression[: opens + 1]}\n{inside}\n{indent}{expression[closes:]}"


def _parentheses(expression: str) -> list[tuple[int, int]]:
    """Where the outermost parentheses open and close."""
    found, opened = [], []
    for at, sign in enumerate(re.sub(r'"[^"]*"', lambda text: "_" * len(text[0]), expression)):
        if sign == "(":
            opened.append(at)
        elif sign == ")" and (begin := opened.pop()) is not None and not opened:
            found.append((begin, at))
    return found


def _operands(expression: str) -> list[str]:
    """The operands of the outermost set operators, each with the operator before it."""
    inside = _parentheses(expression)
    cuts = [
        operator.start() + 1
        for operator in re.finditer(r" (?:and|or|unless) ", expression)
        if not any(begin < operator.start() < end for begin, end in inside)
    ]
    ends = [*cuts, len(expression)]
    return [expression[begin:end].strip() for begin, end in zip([0, *cuts], ends, strict=True)]


def recorded(record: Record) -> dict[str, str]:
    """One recording rule."""
    return {"record": record.name, "expr": laid_out(record.expression)}


def _group(name: str, interval: str, rules: list[dict[str, Any]]) -> dict[str, Any]:
    return {"name": f"gpunode.{name}_{interval}", "interval": interval, "rules": rules}


def recording_groups(name: str, records: Iterable[Record]) -> list[dict[str, Any]]:
    """Groups of recording rules, one for each interval."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        found.setdefault(record.interval, []).append(recorded(record))
    return [_group(name, interval, found[interval]) for interval in sorted(found, key=seconds)]


def alert_group(
    name: str,
    rows: Iterable[Threshold],
    before: Iterable[Record] = (),
    names: Mapping[Severity, str] = NAMES,
) -> list[dict[str, Any]]:
    """Groups of alerts, each after what it looks at, one for each interval."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in before:
        found.setdefault(record.interval, []).append(recorded(record))
    for row in rows:
        rules = found.setdefault(row.every, [])
        if row.signal:
            rules.append({"record": row.record, "expr": laid_out(row.signal)})
        rules += [rule(row, tier, names) for tier in row.tiers]
    return [_group(name, interval, found[interval]) for interval in sorted(found, key=seconds)]


def rule_files(
    rows: Iterable[Threshold] = THRESHOLDS,
    settings: Mapping[str, str | float] | None = None,
    names: Mapping[Severity, str] = NAMES,
) -> dict[str, dict[str, Any]]:
    """What Prometheus loads, by the name of the file."""
    at_once = [record for record in OF_CLUSTERS if record.interval == AT_ONCE]
    others = [record for record in OF_CLUSTERS if record.interval != AT_ONCE]
    by_file = {"cluster_at_once": [], **groups(rows)}
    found = {
        "recording": recording_groups("recording", OF_NODES),
        "cluster_recording": recording_groups("cluster_recording", others),
        **{
            name: alert_group(name, part, at_once if name == "cluster_at_once" else (), names)
            for name, part in by_file.items()
        },
    }
    in_promql = {name: quoted(value) for name, value in (settings or {}).items()}
    for group in (group for groups in found.values() for group in groups):
        for one in group["rules"]:
            one["expr"] = substituted(one["expr"], in_promql)
            if "annotations" in one:
                page = one["annotations"]["dashboard"]
                one["annotations"]["dashboard"] = substituted(page, settings)
    return {name: {"groups": groups} for name, groups in found.items()}


ASKED = re.compile(r"(?<![\w:])(?:up(?={)|(?:gpunode|kube)_\w+|(?:gpu|node):[\w:]+)")


def handed_on() -> list[str]:
    """The series that rules over all nodes ask for and do not record: what shards hand on."""
    rules = [
        rule
        for name, file in rule_files().items()
        if name.startswith("cluster_")
        for group in file["groups"]
        for rule in group["rules"]
    ]
    asked = {name for rule in rules for name in ASKED.findall(rule["expr"])}
    return sorted(asked - {rule.get("record") for rule in rules})


def quoted(value: str | float) -> str | float:
    """A value as it stands between the quotes of a PromQL string."""
    if isinstance(value, str):
        return value.replace("\\", "\\\\").replace('"', '\\"')
    return value


def substituted(expression: str, settings: Mapping[str, str | float] | None = None) -> str:
    """An expression with the values of the settings that it names."""
    values = {name: setting.value for name, setting in SETTINGS.items()}
    return Template(expression).safe_substitute(values | dict(settings or {}))
