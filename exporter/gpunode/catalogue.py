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
from itertools import chain
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
from gpunode.source import HasUnknowns, limit
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


UNREAD = """\
# What is not understood, and what is left out

Generated from the declarations by `make docs`; do not edit. `gpunode doctor`, `/api/v1/unread` and
the node page show examples, without numbers and without text of a tenant.

## What is not understood

What a source meets and does not understand counts in `gpunode_unread_total{source,what}`: a line
of a log once, what stays at each read. For an hour after, the node page does not say that all is
well. It is not a fault of the node. Open an issue with the example, so that gpunode learns to read
it.
"""

LEFT_OUT = """
## What is left out

Each reader has bounds, so that nobody makes the daemon costly or takes the place of others. What a
bound leaves out counts in `gpunode_refused_total{source,what}`: things of the node at each read,
connections and messages once. [security.md](security.md#amounts-and-owners) says whose things are
left out first.
"""

UNCOUNTED = """
Not counted:

- what one process, step or job has beyond a bound of its own, such as threads, libraries and
  sockets;
- hardware that no node has: more than 64 GPUs, NVSwitches or RDMA adapters, more than 16 MIG
  instances of a GPU;
- lines of a log beyond the last 64 that came at once, in an incident."""


def unread() -> str:
    """The reference of readings that sources may not understand or may leave out."""
    kinds = dict.fromkeys((*(kind for _, kind in _unknowns()), MORE_SERIES))
    amounts = [kind for kind in kinds if kind.meaning == limit(kind.what).meaning]
    counted = ", ".join(f"`{kind.what}`" for kind in amounts)
    lines = [
        UNREAD,
        *_kinds(kind for kind in kinds if not kind.bound),
        LEFT_OUT,
        *_kinds(kind for kind in kinds if kind.bound and kind not in amounts),
        "",
        f"More of these than gpunode reads; the rest is left out, or counted as one: {counted}.",
        UNCOUNTED,
    ]
    return "\n".join(lines) + "\n"


def _unknowns() -> list[tuple[str, Unknown]]:
    """What each source may meet and not understand, or leave out, with the source's name."""
    return sorted(
        {
            (source.name, kind)
            for source in chain(*KINDS.values())
            if isinstance(source, HasUnknowns)
            for kind in source.unknowns
        }
        | {
            (kind.name, one)
            for kind in (Entrance, BlackBox, Faults, LooksOnDemand)
            for one in kind.unknowns
        },
        key=lambda row: (row[0], row[1].what),
    )


def _kinds(kinds: Iterable[Unknown]) -> Iterator[str]:
    yield "| `what` | meaning |"
    yield "|---|---|"
    yield from (f"| `{kind.what}` | {kind.meaning} |" for kind in kinds)


def checks() -> str:
    """The reference of all checks of the audit."""
    lines = [
        "# The tuning audit",
        "",
        "Generated from the declarations by `make docs`; do not edit.",
        "",
        "`gpunode audit` runs every check once and prints the results. The daemon runs them every "
        f"{HostSettings().audit_interval / 60:g} minutes and exports `gpunode_audit_ok{{check}}`; "
        "a check that cannot be decided on this node has no series. The command also says why each "
        "failed check matters.",
        "",
        "| check | advised | remedy |",
        "|---|---|---|",
    ]
    for check in CHECKS:
        remedy = check.remedy.replace("|", "\\|")
        lines.append(f"| `{check.name}` | [{check.advised}]({check.source}) | `{remedy}` |")
    return "\n".join(lines) + "\n"


def errors() -> str:
    """The reference of all XIDs."""
    lines = [
        "# XIDs",
        "",
        "Generated from the table of XIDs by `make docs`; do not edit.",
        "",
        f"NVIDIA's [catalogue]({xids.SOURCE}) as of {xids.DATE} says what each error of the driver "
        "means and what to do. An XID after which the GPU cannot be used pages; one that somebody "
        "has to look at is a ticket ([GpuUnhealthy](../alerts/runbooks/GpuUnhealthy.md)); others "
        "notify nobody. In brackets stand the models that report an XID where not all do. An XID "
        'that is not here counts in `gpunode_unread_total{what="xid"}`.',
        "",
        "| XID | meaning | at once | if it comes again |",
        "|---|---|---|---|",
    ]
    unused = [code for code in xids.CODES.values() if not code.models]
    for code in xids.CODES.values():
        if code.models:
            models = f" ({', '.join(code.models)})" if len(code.models) < len(xids.MODELS) else ""
            notify = f"**{code.notify}**: " if code.notify in ("page", "ticket") else ""
            lines.append(
                f"| {code.number} | {code.meaning}{models} | {notify}{code.words} | {code.then} |"
            )
    lines += [
        "",
        "Of 144 to 150, the line in the kernel log names the link, the severity and, by its "
        "registers, what to do (`gpunode_kernel_log_nvlink_xid_errors_total`). One that asks for a "
        "reset pages, the others notify nobody. Without a kernel log, the number is a ticket.",
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
    return Setting(written, variable(path), in_file, _default_text(field.default), description)


def _default_text(default: object) -> str:
    """A default as the user would write it."""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float):
        return f"{default:g}"
    return str(default) if default not in (None, "", STORIES) else ""


SETTINGS = """\
# Settings

Generated from `exporter/gpunode/config` and `cli/settings` by `make docs`; do not edit.

A setting is an option, an environment variable, or a key in a YAML file. An option overrides the
environment, and the environment overrides the file. These commands do the same if `gpunode.yaml`
contains `gpu: {health_interval: 10}`:

    gpunode run --gpu.health-interval=10
    GPUNODE_GPU__HEALTH_INTERVAL=10 gpunode run
    gpunode run --config.file=gpunode.yaml

In a variable, `__` stands for a dot and `_` for a hyphen; in the file, `_` stands for a hyphen.
What follows `=` is the default; without one, a setting is empty. Arguments and options with a star
are given on the command line alone.

Each command refuses options that it does not read; `gpunode COMMAND --help` lists those that it
does. The environment and the file may have settings of several commands, but none that no command
reads. The daemon reads its settings once, at its start.

For completion of commands, options and values, put one of these lines into your shell's start-up
file:

    source <(gpunode completion bash)    # ~/.bashrc
    source <(gpunode completion zsh)     # ~/.zshrc, after compinit
    gpunode completion fish | source     # ~/.config/fish/config.fish
"""


def settings() -> str:
    """The reference of all settings: those of the daemon, those of several commands, the rest."""
    read_by: dict[Setting, list[str]] = {}
    for name in COMMANDS:
        for setting in settings_of(loader.settings_of(name)):
            read_by.setdefault(setting, []).append(name)
    groups: dict[tuple[str, ...], list[Setting]] = {}
    for setting, names in read_by.items():
        groups.setdefault(("run",) if "run" in names else tuple(names), []).append(setting)
    lines = [SETTINGS, "## The daemon", "", "Other commands read some of these, too.", ""]
    lines += _table(groups.pop(("run",)))
    for commands in sorted(groups, key=lambda names: (len(names) == 1, names)):
        title = f"`gpunode {'`, `'.join(commands)}`"
        lines += ["", f"## {title}", "", *_table(groups[commands])]
    return "\n".join(lines) + "\n"


def _table(rows: Iterable[Setting]) -> Iterator[str]:
    yield "| option | meaning |"
    yield "|---|---|"
    for row in rows:
        star = "" if row.variable else r"\*"
        name, *choices = row.option.split()
        of = "".join(f" {one}" for one in choices)
        yield f"| `{name}{row.default and f'={row.default}'}{of}`{star} | {row.sentence} |"


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


def renew_blocks(name: str, written: str) -> str:
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
        (folder / name).write_text(renew_blocks(name, (folder / name).read_text()))
