"""``gpunode audit``: the settings of this node, as a table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpunode.audit.source import Result, audit
from gpunode.cli import streams
from gpunode.cli.console import PipedConsole
from gpunode.cli.settings.audit import AuditSettings
from gpunode.cli.this_node import WAKE_TIMEOUT, local_node


def audit_node(settings: AuditSettings) -> None:
    """Audit this node once and print the results."""
    results = audit(local_node(settings.path, patience=WAKE_TIMEOUT))
    with streams.printing():
        if settings.json_output:
            print(json.dumps([asdict(result) for result in results], indent=2))
        else:
            PipedConsole().print(audit_table(results))
    if any(result.status == "failed" for result in results):
        sys.exit(1)


STATUS = {"failed": "bold red", "ok": "green"}
"""Colours by status, in the order in which the table shows them."""


def audit_table(results: Iterable[Result]) -> RenderableType:
    """Every check with its finding, and the remedy if it failed; below, why others cannot tell."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("check", "", "found", "advised, and the remedy"):
        table.add_column(heading, overflow="fold")
    untold: dict[str, list[str]] = {}
    decided: list[Result] = []
    for result in results:
        if result.status in STATUS:
            decided.append(result)
        else:
            untold.setdefault(result.found, []).append(result.check)
    for result in sorted(decided, key=lambda result: list(STATUS).index(result.status)):
        advised = Text(result.advised)
        if result.status == "failed":
            advised.append(f"\n{result.why}\n", style="dim").append(result.remedy, style="cyan")
        status = Text(result.status, style=STATUS[result.status])
        table.add_row(result.check, status, Text(result.found), advised)
    reasons = [
        Text.assemble(f"\nNot checked: {why}\n", (", ".join(checks), "dim"))
        for why, checks in untold.items()
    ]
    return Group(table, *reasons)
