"""``gpunode rules explain``: asks Prometheus what stands behind an alert."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import closing

from gpunode.cli import streams
from gpunode.cli.meant import hint
from gpunode.cli.report import moment, secrets
from gpunode.cli.settings.rules import RulesSettings
from gpunode.explain import rule_files
from gpunode.explain.alert import AlertQuestion, explain
from gpunode.explain.text import lines
from gpunode.mistake import UsageError
from gpunode.report.prometheus import Prometheus
from gpunode.text import escaped, printable

MAX_NAME = 80
MAX_LINE = 1000
LABEL = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


def write(settings: RulesSettings, alert: str, given: Sequence[str]) -> None:
    """Explain each severity of an alert. Raises ``UsageError``."""
    labels = labels_of(given)
    rules = rule_files.read_rules(settings.rules)
    alerts = [one for one in rules if one.alerts]
    wanted = [one for one in alerts if one.name == alert]
    if severity := labels.pop("severity", ""):
        wanted = [one for one in wanted if one.severity == severity]
    labels.pop("alertname", None)
    if not wanted:
        known = sorted({one.name for one in alerts})
        shown = escaped(alert, MAX_NAME)
        if alert in known:
            raise UsageError(f"{shown}: has no severity {escaped(severity, MAX_NAME)}")
        raise UsageError(
            f"{shown}: no alert has this name; {hint(shown, known)}choose from {', '.join(known)}"
        )
    at = int(time.time()) if settings.at == "now" else moment(settings.at, "at", 1)
    with closing(Prometheus(settings.prometheus, secrets(settings.prometheus))) as server:
        question = AlertQuestion(server, at, labels)
        found = [explain(rule, rules, question) for rule in wanted]
    of = " ".join(f"{name}={value}" for name, value in labels.items()) or "all labels"
    head = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
    with streams.printing():
        print(printable(f"{server.url} at {head}, for {of}", MAX_LINE))
        for one in found:
            print()
            for line in lines(one, labels):
                print(printable(line, MAX_LINE))


def labels_of(given: Sequence[str]) -> dict[str, str]:
    """The labels in words such as ``workload=llama``. Raises ``UsageError``."""
    labels = {}
    for word in given:
        found = LABEL.fullmatch(word)
        if not found:
            raise UsageError(f"{escaped(word, MAX_NAME)}: no label, such as workload=llama")
        value = found[2]
        labels[found[1]] = value[1:-1] if re.fullmatch('".*"', value, re.DOTALL) else value
    return labels
