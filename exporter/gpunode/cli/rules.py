"""``gpunode rules``: writes the rules for Prometheus, with what a site changes."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib.resources import files

from gpunode import rules
from gpunode.cli import streams
from gpunode.cli.settings.rules import RulesSettings
from gpunode.mistake import UsageError
from gpunode.rules.changes import Changes, read
from gpunode.rules.document import Severity, shipped
from gpunode.rules.render import HEADER, dump, rendered

ASKS_FOR_SEVERITIES = re.compile(r'(?<=severity=)(~?")([^"]+)')


def write(settings: RulesSettings) -> None:
    """Write the rule files, and the example for Alertmanager beside their folder."""
    document = shipped()
    changes = read(settings.changes, document) if settings.changes else Changes()
    written = {
        f"rules/{name}.yaml": HEADER + dump(content)
        for name, content in rendered(document, changes).items()
    }
    written["alertmanager.yaml"] = alertmanager(changes.severities)
    try:
        (settings.into / "rules").mkdir(parents=True, exist_ok=True)
        for name, text in written.items():
            (settings.into / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be written: {error.strerror}") from error
    with streams.printing():
        sys.stdout.write(
            f"{settings.into}: wrote {len(written) - 1} rule files to rules/, and an example of "
            "routes, alertmanager.yaml\n"
        )


def alertmanager(severities: Mapping[Severity, str]) -> str:
    """The example for Alertmanager, with other names for severities."""
    text = (files(rules) / "alertmanager.yaml").read_text(encoding="utf-8")
    names = {str(severity): name for severity, name in severities.items()}

    def renamed(found: re.Match[str]) -> str:
        return found[1] + "|".join(names.get(one, one) for one in found[2].split("|"))

    return ASKS_FOR_SEVERITIES.sub(renamed, text)
