"""The document with every rule, from the threshold table and the recording rules.

``gpunode.rules`` makes the rule files of it, with or without a site's changes, and so does the Helm
chart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

from alerts.figures import FORMATS, MORE_OR_LESS, OF_SETTINGS
from alerts.lean import lean
from alerts.model import AT_ONCE, IDENTITY, Interval, Record, Scope, Threshold, Tier, seconds
from alerts.promql import JOB, NO_NAMESPACE, NODE
from alerts.recording import OF_CLUSTERS, OF_NODES, RECORDS, losses
from alerts.recording.faults import CORDONED
from alerts.settings import GRAFANA_URL, NODE_URL, RUNBOOKS_URL, SETTINGS, Setting
from alerts.thresholds.table import THRESHOLDS
from gpunode.rules.document import Document, Group, Rule
from gpunode.rules.render import rendered, with_values

VALUES = {name: setting.value for name, setting in SETTINGS.items()}
"""The settings as they are by default."""

ITS_CLUSTER = "{{ with $labels.cluster }}&var-cluster={{ . }}{{ end }}"
ITS_NAMESPACE = (
    "&var-namespace={{ with $labels.owner_namespace }}{{ . }}{{ else }}"
    f"{quote(NO_NAMESPACE)}{{{{ end }}}}"
)
NODE_PAGE = f"{GRAFANA_URL}/d/gpunode-node?var-node={{{{ $labels.instance }}}}{ITS_CLUSTER}"
FLEET_PAGE = f"{GRAFANA_URL}/d/gpunode-fleet?{ITS_CLUSTER}"
DASHBOARDS: dict[Scope, str] = {
    "job": (
        f"{GRAFANA_URL}/d/gpunode-job?var-job={{{{ $labels.workload }}}}"
        f"{ITS_NAMESPACE}{ITS_CLUSTER}"
    ),
    "gpu": NODE_PAGE.replace("gpunode-node", "gpunode-gpu") + "&var-gpu={{ $labels.gpu }}",
    "node": NODE_PAGE,
    "filesystem": FLEET_PAGE,
    "fault": FLEET_PAGE,
    "cluster": FLEET_PAGE,
}
"""The dashboard about what an alert is about."""


def dashboard_of(row: Threshold) -> str:
    """The address of the dashboard that shows what the alert of a row looks at."""
    address = DASHBOARDS[row.scope]
    if row.dashboard is None:
        return address
    return re.sub(r"/d/gpunode-\w+", f"/d/gpunode-{row.dashboard}", address)


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


def _in_quotes(label: str) -> str:
    """A label between quotes of a shell, so that no name of a tenant's is a command."""
    return f'{{{{ reReplaceAll "\'" "" {label} }}}}'


WHY = (
    "gpunode why '{{ with $labels.owner_namespace }}"
    + _in_quotes(".")
    + "/{{ end }}"
    + _in_quotes("$labels.workload")
    + "'{{ with $labels.cluster }} --cluster='"
    + _in_quotes(".")
    + "'{{ end }}"
)
"""The command that tells the owner of a job where its time went."""


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
ITS_INCIDENT = _ask(
    "job:gpunode_incident:kept",
    _list(
        "Kept:",
        "{{ .Labels.incident }} on {{ .Labels.instance }}"
        "{{ with .Labels.where }} ({{ . }}){{ end }}"
        f'{{{{ if "{NODE_URL}" }}}}: '
        f'{{{{ reReplaceAll "INSTANCE" .Labels.instance "{NODE_URL}" }}}}'
        "/api/v1/incidents/{{ .Labels.incident }}{{ end }}",
    ),
    3,
)
ITS_CERTAINTY = _ask(
    "job:gpunode_stalled:without_counters",
    f" Less certain: {_number('GPU')} without counters of launches.",
)
ITS_BEST = (
    "{{ with printf `job:gpunode_training_step:at_best{cluster=%q,owner_namespace=%q,workload=%q,"
    "replica=%q,user=%q,what=%q}` $labels.cluster $labels.owner_namespace $labels.workload "
    "$labels.replica $labels.user .Labels.what | query }} (before:{{ range . }} "
    "{{ .Labels.version }}{{ end }}){{ end }}"
)
ITS_CHANGES = _ask(
    "job:gpunode_version:changed",
    _list("Changed since:", "{{ .Labels.what }} {{ .Labels.version }}" + ITS_BEST)
    + "{{ else }}"
    + _ask("job:gpunode_training_step:at_best", " It runs with the versions of its best pace."),
    5,
)
OF_THIS_GPU = "{cluster=%q,instance=%q,uuid=%q}"
OWNERS = f"group by (owner_pod, slurm_job, user) (gpunode_gpu_owner_info{OF_THIS_GPU})"
BY_ITS_LABELS = "$labels.cluster $labels.instance $labels.uuid | query"
HELD = (
    f"{{{{ with printf `{OWNERS}` {BY_ITS_LABELS} }}}}"
    + _list("Held by", "{{ or .Labels.owner_pod .Labels.slurm_job .Labels.user }}")
    + "{{ end }}"
)
HOLDERS = f"gpu:gpunode_gpu_fault:holder{OF_THIS_GPU}"
HELD_WHEN_IT_BROKE = (
    f"{{{{ with printf `{HOLDERS}` {BY_ITS_LABELS} }}}}"
    + _list("Held by", "{{ or .Labels.owner_pod .Labels.slurm_job .Labels.user }}")
    + f"{{{{ else }}}}{HELD}{{{{ end }}}}"
)
REASONS = (
    f"{{{{ with printf `gpu:gpunode_gpu_fault:level{OF_THIS_GPU}` {BY_ITS_LABELS} }}}}"
    + _list("Reasons:", "{{ .Labels.reason }}")
    + "{{ end }}"
)
NODES = (
    "{{ with printf `topk(5, node:gpunode_fault:level{cluster=%q,fault=%q} "
    f"unless on ({NODE}) {CORDONED})` $labels.cluster $labels.fault | query "
    '| sortByLabel "instance" }}' + _list("Among them:", "{{ .Labels.instance }}") + "{{ end }}"
)
SILENT_NODES = (
    "{{ with printf `topk(5, node:gpunode_storage_silent:active{cluster=%q,filesystem=%q})` "
    '$labels.cluster $labels.filesystem | query | sortByLabel "instance" }}'
    + _list("Among them:", "{{ .Labels.instance }}")
    + "{{ end }}"
)


def _held_up(label: str) -> str:
    """The jobs that stand still for the event of an alert."""
    return (
        f"{{{{ with printf `topk(30, job:gpunode_event:gpus{{cluster=%q,{label}=%q}})` "
        f"$labels.cluster $labels.{label} | query }}}}"
        + _list(
            "Jobs that stand still for it:",
            "{{ with .Labels.owner_namespace }}{{ . }}/{{ end }}{{ .Labels.workload }}"
            "{{ with .Labels.user }} of {{ . }}{{ end }}",
        )
        + "{{ end }}"
    )


PLACES: dict[Scope, str] = {
    "job": f"{ITS_NAME}{ITS_SIZE}: ",
    "gpu": "GPU {{ $labels.gpu }} of {{ $labels.instance }}: ",
    "node": "{{ $labels.instance }}: ",
    "filesystem": "",
    "fault": "",
    "cluster": "{{ with $labels.cluster }}{{ . }}: {{ end }}",
}
MORE: dict[Scope, str] = {
    "job": ITS_CAUSES,
    "gpu": HELD,
    "node": "",
    "filesystem": SILENT_NODES + _held_up("filesystem"),
    "fault": NODES + _held_up("fault"),
    "cluster": "",
}
"""What a description says after the figure."""

ITS_JOBS = (
    "{{ with printf `topk(5, max by (owner_namespace, workload, user, reason) "
    "(last_over_time(gpu:gpunode_lemon:incident{cluster=%q,uuid=%q}[30d])))` "
    "$labels.cluster $labels.uuid | query }}"
    + _list("Among them:", "{{ or .Labels.workload .Labels.reason }}")
    + "{{ end }}"
)
ITS_PEERS = (
    "{{ with printf `topk(5, max by (owner_namespace, workload, user) "
    "(last_over_time(node:gpunode_behind:by_job{cluster=%q,instance=%q}[5d])) > 0)` "
    "$labels.cluster $labels.instance | query }}"
    + _list("In", "{{ .Labels.workload }} {{ .Value | humanizePercentage }}")
    + "{{ end }}"
)
EVIDENCE = {
    "JobStalled": ITS_LATE + ITS_RANK + ITS_CERTAINTY + ITS_INCIDENT,
    "JobStraggler": _ask(
        "gpu:gpunode_gpu_blocked:gap_to_job",
        _list("Waited for most:", "GPU {{ .Labels.gpu }} of {{ .Labels.instance }}"),
        1,
    )
    + ITS_INCIDENT,
    "JobCrashLoops": ITS_INCIDENT,
    "GpuUnhealthy": REASONS,
    "GpuLemon": ITS_JOBS,
    "JobSlowed": ITS_CHANGES + ITS_INCIDENT,
    "NodeSlow": ITS_PEERS,
}
"""What it says besides, for an alert that is worth it."""

VARIABLES: dict[Scope, dict[str, str]] = {
    "job": {
        "cluster": "cluster",
        "namespace": "owner_namespace",
        "job": "workload",
        "replica": "replica",
        "user": "user",
    },
    "gpu": {"instance": "instance", "gpu": "gpu", "uuid": "uuid"},
    "node": {"instance": "instance"},
    "filesystem": {"filesystem": "filesystem"},
    "fault": {"fault": "fault"},
    "cluster": {"cluster": "cluster"},
}
"""What the commands of a runbook name, to be pasted into a shell before them: labels by variable.
Each value is quoted, so that no name of a tenant's is a command to the shell."""


HOLDER = {"GpuUnhealthy": HELD_WHEN_IT_BROKE}
"""Whose it is, for an alert that outlasts the job."""


def expression(row: Threshold, tier: Tier) -> str:
    """The expression of an alert: a recorded series, its threshold, and what silences it."""
    compared = f"{tier.record or row.record} {row.comparison} ${{threshold}}"
    if not tier.unless:
        return compared
    level = tier.unless.partition(":")[0]
    on = {"job": JOB, "node": NODE, "cluster": "cluster"}[level]
    return f"{compared} unless on ({on}) {tier.unless}"


def can_page(row: Threshold) -> bool:
    """Whether an alert can wake somebody."""
    return any(tier.severity == "page" for tier in row.tiers)


def in_words(
    text: str,
    row: Threshold,
    record: str,
    *,
    value: str,
    label: str,
    figure: Callable[[Setting], str],
) -> str:
    """A text about what a row looks at, with its figures and its labels.

    A setting that its expressions compare with is there with the comparison: ``more than 10%``.
    """
    known = {name: label.replace("NAME", name) for name in row.identity}
    for setting in SETTINGS.values():
        if f"{{{setting.name}}}" in text:
            said = MORE_OR_LESS.get(_comparison(setting, record), "")
            known[setting.name] = f"{said} {figure(setting)}".strip()
    return text.format(value=value, **known)


EXPRESSIONS: dict[str, str] = {
    **{record.name: record.expression for record in RECORDS},
    **{row.record: row.signal for row in THRESHOLDS if row.signal},
}
"""What is recorded, by name."""

RECORDED = re.compile(r"\b[a-z]+:[a-z0-9_]+:[a-z0-9_]+")


def _comparison(setting: Setting, record: str) -> str:
    """How a recorded series, or what it is recorded from, compares with a setting."""
    asked, looked_at = [record], set[str]()
    while asked:
        name = asked.pop(0)
        if name in looked_at:
            continue
        looked_at.add(name)
        found = re.search(rf"([<>]=?) {re.escape(str(setting))}", EXPRESSIONS[name])
        if found:
            return found[1]
        asked += RECORDED.findall(EXPRESSIONS[name])
    return ""


def _in_alert(setting: Setting) -> str:
    return OF_SETTINGS[setting.unit].replace("NAME", str(setting)) if setting.unit else str(setting)


def rule(row: Threshold, tier: Tier) -> Rule:
    """One alert rule."""
    said = in_words(
        tier.says or row.says,
        row,
        tier.record or row.record,
        value=FORMATS[tier.unit or row.unit],
        label="{{ $labels.NAME }}",
        figure=_in_alert,
    )
    more = EVIDENCE.get(row.alert, "") + HOLDER.get(row.alert, MORE[row.scope])
    made: Rule = {
        "alert": row.alert,
        "tier": tier.severity,
        "expr": expression(row, tier),
        "labels": {
            "group": row.group,
            **({"route": "job_owner"} if row.of_owner else {}),
            **row.says_fault,
        },
        "annotations": {
            "summary": row.summary,
            "summary_ko": row.summary_ko,
            "description": f"{PLACES[row.scope]}{said}.{more}",
            "runbook_url": f"{RUNBOOKS_URL}/{row.alert}.md",
            **({"runbook_url_ko": f"{RUNBOOKS_URL}/ko/{row.alert}.md"} if can_page(row) else {}),
            "variables": variables(row),
            "dashboard": dashboard_of(row),
            **({"why": WHY} if row.of_owner else {}),
        },
    }
    if row.keep_firing_for:
        made["keep_firing_for"] = row.keep_firing_for
    return made


def variables(row: Threshold) -> str:
    """The assignments that make the commands of a row's runbook ready to paste."""
    labels = VARIABLES[row.scope] | {label: label for label in row.labels}
    return " ".join(f"{name}='{_in_quotes(f'$labels.{label}')}'" for name, label in labels.items())


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
    if len(indent) + len(substituted(expression)) <= WIDTH:
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


def _without_texts(expression: str) -> str:
    """An expression with nothing to read in its texts, which may hold words and parentheses."""
    return re.sub(r'"[^"]*"', lambda text: "_" * len(text[0]), expression)


def _parentheses(expression: str) -> list[tuple[int, int]]:
    """Where the outermost parentheses open and close."""
    found, opened = [], []
    for at, sign in enumerate(_without_texts(expression)):
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
        for operator in re.finditer(r" (?:and|or|unless) ", _without_texts(expression))
        if not any(begin < operator.start() < end for begin, end in inside)
    ]
    ends = [*cuts, len(expression)]
    return [expression[begin:end].strip() for begin, end in zip([0, *cuts], ends, strict=True)]


def recorded(record: Record) -> Rule:
    """One recording rule."""
    return {"record": record.name, "expr": laid_out(lean(record.expression))}


def _in_groups(name: str, rules: Iterable[tuple[Interval, Rule]]) -> list[Group]:
    """Groups of rules, one for each interval."""
    found: dict[Interval, list[Rule]] = {}
    for interval, one in rules:
        found.setdefault(interval, []).append(one)
    return [
        {"name": f"gpunode.{name}_{interval}", "interval": interval, "rules": found[interval]}
        for interval in sorted(found, key=seconds)
    ]


def _records(records: Iterable[Record]) -> Iterator[tuple[Interval, Rule]]:
    for record in records:
        yield record.interval, recorded(record)


def _alerts(rows: Iterable[Threshold]) -> Iterator[tuple[Interval, Rule]]:
    """The alerts of some rows, each after what it looks at."""
    for row in rows:
        if row.signal:
            asked: Rule = {"record": row.record, "expr": laid_out(lean(row.signal))}
            yield row.every, {**asked, "asked_by": row.alert}
        for tier in row.tiers:
            yield row.every, rule(row, tier)


def document(rows: Sequence[Threshold] = THRESHOLDS) -> Document:
    """Every rule, with names for what a site may change."""
    at_once = [record for record in OF_CLUSTERS if record.interval == AT_ONCE]
    looking_back = [record for record in OF_CLUSTERS if record in losses.SINCE]
    others = [record for record in OF_CLUSTERS if record not in (*at_once, *looking_back)]
    by_file = {"cluster_at_once": [], **groups(rows)}
    return {
        "settings": VALUES,
        "alerts": {
            row.alert: [
                {"severity": tier.severity, "threshold": tier.threshold, "for": tier.after}
                for tier in row.tiers
            ]
            for row in rows
        },
        "shares": figures_of_shares(rows),
        "files": {
            "recording": _in_groups("recording", _records(OF_NODES)),
            "cluster_recording": _in_groups("cluster_recording", _records(others)),
            "cluster_losses": _in_groups("cluster_losses", _records(looking_back)),
            **{
                name: _in_groups(
                    name,
                    [*_records(at_once if name == "cluster_at_once" else ()), *_alerts(part)],
                )
                for name, part in by_file.items()
            },
        },
    }


def figures_of_shares(rows: Sequence[Threshold] = THRESHOLDS) -> list[str]:
    """The thresholds and settings that are a share of 1, by where a site changes them."""
    thresholds = [
        f"alerts.{row.alert}.{tier.severity}.threshold"
        for row in rows
        for tier in row.tiers
        if (tier.unit or row.unit) == "percent"
    ]
    return thresholds + [
        f"settings.{name}" for name, setting in SETTINGS.items() if setting.unit == "percent"
    ]


def rule_files(rows: Sequence[Threshold] = THRESHOLDS) -> dict[str, dict[str, Any]]:
    """What Prometheus loads, by the name of the file."""
    return rendered(document(rows))


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


def substituted(text: str) -> str:
    """A text with the default values of the settings that it names."""
    return with_values(text, VALUES)
