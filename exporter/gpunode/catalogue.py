"""Every metric, check, setting and answer, gathered from where each is declared, as documents.

python -m gpunode.catalogue docs
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_settings import CliPositionalArg

from gpunode.audit.source import CHECKS
from gpunode.cli.commands import COMMANDS
from gpunode.config import INCIDENTS, HostSettings, Settings, leaves, variable
from gpunode.export.web.app import create_app
from gpunode.loop import Loop
from gpunode.node.node import SteppedClock
from gpunode.sources import METRICS

POSITIONAL = get_args(CliPositionalArg)[1]
"""How pydantic marks an argument that is not an option."""


def metrics() -> str:
    """The reference of all metrics."""
    lines = [
        "# Metrics",
        "",
        "Generated from the declarations by `make docs`; do not edit.",
        "",
        "`gpu` is the driver's index of a GPU or MIG instance and `uuid` its identity. A sensor "
        "that a GPU lacks or that did not answer has no series.",
    ]
    for title, declared in METRICS.items():
        lines += [
            "",
            f"## {title}",
            "",
            "| metric | type | labels | meaning |",
            "|---|---|---|---|",
        ]
        for metric in sorted(declared, key=lambda m: m.name):
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(lines) + "\n"


def checks() -> str:
    """The reference of all checks of the audit."""
    lines = [
        "# The tuning audit",
        "",
        "Generated from the declarations by `make docs`; do not edit.",
        "",
        "`gpunode audit` runs every check once and prints the results. The daemon runs them every "
        f"{HostSettings().audit_interval / 60:g} minutes and exports `gpunode_audit_ok{{check}}`; "
        "a check that cannot be decided on this node has no series.",
    ]
    for check in CHECKS:
        lines += [
            "",
            f"## `{check.name}`",
            "",
            f"Advised: {check.advised}.",
            "",
            f"{check.why} To change it: `{check.remedy}` ([source]({check.source})).",
        ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as the user writes it in each of the three places; empty where it has none."""

    option: str
    variable: str
    key: str
    default: str
    description: str

    @property
    def sentence(self) -> str:
        """The description as a sentence."""
        return f"{self.description[:1].upper()}{self.description[1:]}."


def settings_of(kind: type[Settings]) -> Iterator[Setting]:
    """Every setting of a command, the common ones included."""
    for path, field in leaves(kind.model_fields):
        yield _setting(path, field)


def _setting(path: tuple[str, ...], field: FieldInfo) -> Setting:
    key = ".".join(path)
    option = f"--{key.replace('_', '-')}"
    if POSITIONAL in field.metadata:
        option = key.upper()
    elif get_origin(field.annotation) is Literal:
        option = f"{option} {{{','.join(get_args(field.annotation))}}}"
    description = field.description or ""
    if field.is_required():  # the command line is the only place for it
        return Setting(option, "", "", "", description)
    in_file = key if key != "config.file" else ""  # a file does not name another
    return Setting(option, variable(path), in_file, _written(field.default), description)


def _written(default: object) -> str:
    """A default as the user would write it."""
    if default == INCIDENTS:
        return "the recorded incidents"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, float):
        return f"`{default:g}`"
    return f"`{default}`" if default not in (None, "") else ""


SETTINGS = """\
# Settings

Generated from `exporter/gpunode/config.py` by `make docs`; do not edit.

A setting is an option, an environment variable, or a key in a YAML file. An option overrides the
environment, and the environment overrides the file. These three commands do the same if
`gpunode.yaml` contains `gpu: {interval: 1}`:

    gpunode run --gpu.interval=1
    GPUNODE_GPU__INTERVAL=1 gpunode run
    gpunode run --config.file=gpunode.yaml

A key that the command does not have is an error, and so is an environment variable `GPUNODE_…` that
no command has. Settings are read at the start: the daemon ignores SIGHUP. `gpunode COMMAND --help`
lists the options of a command.

## Every command
"""


def settings() -> str:
    """The reference of all settings."""
    common = list(settings_of(Settings))
    lines = [SETTINGS, *_table(common)]
    for name, (kind, _) in COMMANDS.items():
        own = [setting for setting in settings_of(kind) if setting not in common]
        if own:
            lines += ["", f"## `gpunode {name}`", "", kind.__doc__ or "", "", *_table(own)]
    return "\n".join(lines) + "\n"


def _table(rows: Iterable[Setting]) -> Iterator[str]:
    yield "| option | environment variable | key | default | meaning |"
    yield "|---|---|---|---|---|"
    for row in rows:
        option, variable, key = (
            f"`{name}`" if name else "" for name in (row.option, row.variable, row.key)
        )
        yield f"| {option} | {variable} | {key} | {row.default} | {row.sentence} |"


def api() -> str:
    """The schema of the HTTP API."""
    app = create_app(lambda: Loop(SteppedClock(0.0), (), find_every=math.inf))
    return json.dumps(app.openapi(), indent=2) + "\n"


DOCUMENTS = {
    "metrics.md": metrics,
    "audit.md": checks,
    "settings.md": settings,
    "openapi.json": api,
}

if __name__ == "__main__":
    for name, document in DOCUMENTS.items():
        Path(sys.argv[1], name).write_text(document())
