"""Every metric, check, setting and answer, gathered from where each is declared, as documents.

python -m gpunode.catalogue docs
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from gpunode.audit.source import CHECKS
from gpunode.cli import loader
from gpunode.cli.commands import COMMANDS
from gpunode.config.command import CommandSettings
from gpunode.config.daemon import HostSettings
from gpunode.config.fields import is_shared, leaves, option, variable
from gpunode.driver.nvidia import xids
from gpunode.export.dcgm_names import DcgmNames
from gpunode.export.web.app import create_app
from gpunode.export.web.entrance import Entrance
from gpunode.faults.source import Faults
from gpunode.incidents.black_box import BlackBox
from gpunode.loop import Loop
from gpunode.loop.door import MORE_SERIES
from gpunode.metric import Metric
from gpunode.node.node import SteppedClock
from gpunode.recorded import STORIES
from gpunode.source import Meets
from gpunode.sources import KINDS, METRICS
from gpunode.unread import Unknown
from gpunode.verdict.asking import LooksOnDemand
from gpunode.verdict.causes import CAUSES, NONE
from gpunode.verdict.reasons import REASONS


def metrics() -> str:
    """The reference of all metrics, a line for each."""
    lines = [
        "# Metrics",
        "",
        "Generated from the declarations by `make docs`; do not edit.",
        "",
        "A name that ends in `_total` is a counter, one that is marked so a histogram, any other a "
        "gauge. `gpu` is the driver's index of a GPU or MIG instance, `uuid` its identity. A "
        "sensor that a GPU lacks or that does not answer has no series. Brackets name the source.",
    ]
    for title, declared in METRICS.items():
        common = [name for name in declared[0].labels if all(name in m.labels for m in declared)]
        of_all = ", ".join(f"`{name}`" for name in common)
        rows = sorted(declared, key=lambda m: m.name)
        lines += ["", f"## {title}", ""]
        lines += [f"Labels of all: {of_all}.", ""] if common else []
        if declared is DcgmNames.metrics:
            lines.append(f"{DCGM} {', '.join(f'`{metric.name}`' for metric in rows)}.")
        else:
            lines += ["| metric | meaning |", "|---|---|"]
            lines += [_row(metric, common) for metric in rows]
    return "\n".join(lines) + "\n"


DCGM = (
    "The names, units and labels of dcgm-exporter "
    "([compatibility.md](compatibility.md#dcgm-exporter)):"
)


def _row(metric: Metric, common: Collection[str]) -> str:
    own = ",".join(name for name in metric.labels if name not in common)
    histogram = "Histogram: " if metric.kind == "histogram" else ""
    return f"| `{metric.name}{own and f'{{{own}}}'}` | {histogram}{metric.help} |"


def unread() -> str:
    """The reference of what sources may meet and not understand, or leave out."""
    kinds = _unknowns()
    left_out = [(f"`{name}`", kind) for name, kind in kinds if kind.bound]
    lines = [
        "# What is not understood",
        "",
        "Generated from the declarations by `make docs`; do not edit.",
        "",
        "A source that meets something that looks like its own, and that it does not understand, "
        "counts it in `gpunode_unread_total{source,what}`: a line of a log once, what stays at "
        "each read. `gpunode doctor`, `/api/v1/unread` and the node page show examples, without "
        "numbers and without anything that a tenant chose. For an hour after, the node page does "
        "not say that all is well.",
        "",
        "Such a thing is no fault of the node. Open an issue with the example, so that gpunode "
        "learns to read it.",
        "",
        *_kinds("what was met", ((f"`{name}`", kind) for name, kind in kinds if not kind.bound)),
        "",
        "## What is left out",
        "",
        "Each reader has bounds, so that nobody makes the daemon costly, or takes the place of "
        "others. What a bound leaves out counts in `gpunode_refused_total{source,what}`: things of "
        "the node at each read, connections and messages once. The same commands and pages show "
        "it, and [docs/security.md](security.md#amounts-and-owners) says whose it is that is left "
        "out first.",
        "",
        *_kinds("what was left out", (*left_out, ("any", MORE_SERIES))),
        "",
        "Some bounds are not counted, because they take from nobody, or something else tells:",
        "",
        "- what one process, step or job has of its own, where more would hide only that: the "
        "sockets among its descriptors beyond 16,384, which are listed by number; threads, stacks "
        "and libraries; the children of a server's process beyond 32, and ports beyond eight; of a "
        "Slurm job, steps and tasks beyond 16 and the processes beside them, each of which says "
        "the same of the job; processes of an NCCL job beyond 16, which are asked in turn;",
        "- hardware that no node has: more than 64 GPUs or NVSwitches, 16 MIG instances of a GPU, "
        "128 of all GPUs in the history of an incident;",
        "- RDMA adapters beyond 64 of which the firmware would be told: `ports` of `infiniband` "
        "counts them;",
        "- different things beyond 64 that one read of `infiniband` does not understand: 64 are "
        "counted;",
        "- GPUs beyond 64 in `gpunode_incident_info`: the incident itself names all;",
        "- lines of a log beyond the last 64 that came at once: an incident keeps those, and the "
        "sources of the log count all.",
    ]
    return "\n".join(lines) + "\n"


def _unknowns() -> list[tuple[str, Unknown]]:
    """What each source may meet and not understand, or leave out, with the source's name."""
    return sorted(
        {
            (source.name, kind)
            for source in chain(*KINDS.values())
            if isinstance(source, Meets)
            for kind in source.unknowns
        }
        | {
            (kind.name, one)
            for kind in (Entrance, BlackBox, Faults, LooksOnDemand)
            for one in kind.unknowns
        },
        key=lambda row: (row[0], row[1].what),
    )


def _kinds(heading: str, rows: Iterable[tuple[str, Unknown]]) -> Iterator[str]:
    yield f"| source | `what` | {heading} |"
    yield "|---|---|---|"
    for name, kind in rows:
        yield f"| {name} | `{kind.what}` | {kind.meaning} |"


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


def errors() -> str:
    """The reference of all XIDs."""
    lines = [
        "# XIDs",
        "",
        "Generated from the table of XIDs by `make docs`; do not edit.",
        "",
        f"NVIDIA's [catalogue]({xids.SOURCE}) as of {xids.DATE} says what each error of the driver "
        "means and what to do at once. The alerts follow it: an XID after which the GPU cannot be "
        "used pages, one that takes somebody to look at it is a ticket "
        "([GpuUnhealthy](../alerts/runbooks/GpuUnhealthy.md)); one after which a program starts "
        "again notifies nobody. An "
        'XID that is not here counts in `gpunode_unread_total{what="xid"}`. No action differs by '
        "model; the last column names the models that report an XID where not all do.",
        "",
        "| XID | meaning | at once | if it comes again | notifies | only |",
        "|---|---|---|---|---|---|",
    ]
    unused = [code for code in xids.CODES.values() if not code.models]
    for code in xids.CODES.values():
        if code.models:
            models = "" if len(code.models) == len(xids.MODELS) else ", ".join(code.models)
            lines.append(
                f"| {code.number} | {code.meaning} | {code.words} | {code.then} | "
                f"{code.notify if code.notify in ('page', 'ticket') else 'nobody'} | {models} |"
            )
    lines += [
        "",
        "Of 144 to 150, the line in the kernel log says which link it is and how bad, and its "
        "registers what to do; `gpunode_kernel_log_nvlink_xid_errors_total` has them. One that "
        "asks for a reset pages, the others notify nobody. Where no kernel log can be read, the "
        "number alone is a ticket.",
        "",
        "No GPU since Ampere reports "
        + ", ".join(str(code.number) for code in unused)
        + "; if one does, it is a ticket.",
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


def settings_of(kind: type[CommandSettings]) -> Iterator[Setting]:
    """Every setting that a command reads."""
    for path, field in leaves(kind.model_fields):
        yield _setting(path, field)


def _setting(path: tuple[str, ...], field: FieldInfo) -> Setting:
    key, written = ".".join(path), option(path, field)
    if get_origin(field.annotation) is Literal:
        written = f"{written} {{{','.join(get_args(field.annotation))}}}"
    description = field.description or ""
    if not is_shared(field):
        return Setting(written, "", "", "", description)
    in_file = key if key != "config.file" else ""  # a file does not name another
    return Setting(written, variable(path), in_file, _written(field.default), description)


def _written(default: object) -> str:
    """A default as the user would write it."""
    if default == STORIES:
        return "all five"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, float):
        return f"`{default:g}`"
    return f"`{default}`" if default not in (None, "") else ""


SETTINGS = """\
# Settings

Generated from `exporter/gpunode/config` and `cli/settings` by `make docs`; do not edit.

A setting is an option, an environment variable, or a key in a YAML file. An option overrides the
environment, and the environment overrides the file. These three commands do the same if
`gpunode.yaml` contains `gpu: {interval: 1}`:

    gpunode run --gpu.interval=1
    GPUNODE_GPU__INTERVAL=1 gpunode run
    gpunode run --config.file=gpunode.yaml

Every command takes the options that it reads, and refuses those of others. The environment and the
file are shared: what is there for another command is left out. A key or an environment variable
`GPUNODE_…` that no command reads is an error. Settings are read at the start: the daemon ignores
SIGHUP. `gpunode COMMAND --help` lists the options of a command.

## Of several commands
"""


def settings() -> str:
    """The reference of all settings."""
    read_by: dict[Setting, list[str]] = {}
    for name in COMMANDS:
        for setting in settings_of(loader.settings_of(name)):
            read_by.setdefault(setting, []).append(name)
    shared = {setting: names for setting, names in read_by.items() if len(names) > 1}
    lines = [SETTINGS, *_table(shared, shared.values())]
    for name, command in COMMANDS.items():
        own = [setting for setting, names in read_by.items() if names == [name]]
        if own:
            lines += ["", f"## `gpunode {name}`", "", command.says, "", *_table(own)]
    return "\n".join(lines) + "\n"


def _table(rows: Iterable[Setting], read_by: Iterable[Collection[str]] = ()) -> Iterator[str]:
    """The settings, with the commands that read each if they are given."""
    named = " read by |" if read_by else ""
    yield f"| option | environment variable | key | default | meaning |{named}"
    yield f"|---|---|---|---|---|{'---|' if read_by else ''}"
    for row, commands in zip_longest(rows, read_by):
        option, variable, key = (
            f"`{name}`" if name else "" for name in (row.option, row.variable, row.key)
        )
        everyone = commands and len(commands) == len(COMMANDS)
        named = f" {'every command' if everyone else ', '.join(commands)} |" if commands else ""
        yield f"| {option} | {variable} | {key} | {row.default} | {row.sentence} |{named}"


def api() -> str:
    """The schema of the HTTP API."""
    app = create_app(lambda: Loop(SteppedClock(0.0), (), find_every=math.inf))
    return json.dumps(app.openapi(), indent=2) + "\n"


def causes() -> str:
    """The table of causes; ``none`` comes last, as it is named if no other is."""
    rows = [cause for cause in CAUSES.values() if cause is not NONE]
    *most, last = [f"`{cause.name}`" for cause in rows if cause.ends_by_itself]
    lines = [
        "| cause | named when |",
        "|---|---|",
        *(f"| `{cause.name}` | {cause.named_when} |" for cause in (*rows, NONE)),
        "",
        "An alert on a job names the causes that most of its GPUs have. JobStarved stays silent if",
        f"one of them is {', '.join(most)} or {last}.",
    ]
    return "\n".join(lines)


def reasons() -> str:
    """The table of the reasons why a GPU is waited for."""
    rows = [f"| `{name}` | {reason.seen_from} |" for name, reason in REASONS.items()]
    return "\n".join(["| reason | seen from |", "|---|---|", *rows])


DOCUMENTS = {
    "metrics.md": metrics,
    "audit.md": checks,
    "unread.md": unread,
    "settings.md": settings,
    "xids.md": errors,
    "openapi.json": api,
}

BLOCK = re.compile("<!-- generated by make docs: ([a-z]+) -->\n.*?<!-- end -->", re.DOTALL)
BLOCKS: dict[str, dict[str, Callable[[], str]]] = {
    "verdict.md": {"causes": causes, "reasons": reasons},
}
"""What is generated within documents that are written by hand."""


def renewed(name: str, written: str) -> str:
    """A document with its generated blocks written anew. Raises ``KeyError`` for another block."""
    return BLOCK.sub(
        lambda block: "\n".join(
            [block[0].partition("\n")[0], BLOCKS[name][block[1]](), "<!-- end -->"]
        ),
        written,
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name, document in DOCUMENTS.items():
        (folder / name).write_text(document())
    for name in BLOCKS:
        (folder / name).write_text(renewed(name, (folder / name).read_text()))
