"""``gpunode why``: asks Prometheus about one job, and says why it is slow."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from rich.console import Console

from gpunode.cli import streams
from gpunode.cli.console import PipedConsole
from gpunode.cli.report import deliver, period, secrets
from gpunode.cli.settings.why import WhySettings
from gpunode.mistake import UsageError
from gpunode.report import job, runs
from gpunode.report.document import Report
from gpunode.report.page import as_json, html
from gpunode.report.prometheus import Prometheus
from gpunode.report.terminal import print_report
from gpunode.report.why.answer import answer

LINE = 100
"""Characters of a line in a file."""


def write(settings: WhySettings) -> None:
    """Write the report about the job that the settings name."""
    if settings.format == "text" and settings.output == "-":
        report = ask(settings)
        with streams.printing():
            print_report(report, PipedConsole())
        return
    form = FORMATS[settings.format]
    deliver(settings.output, lambda: form(ask(settings)))


def as_text(report: Report) -> str:
    """What a terminal would show, without colours."""
    text = io.StringIO()
    print_report(report, Console(file=text, width=LINE))
    return text.getvalue()


def ask(settings: WhySettings) -> Report:
    """Ask about the last run of the job. Raises ``UsageError`` if there is none."""
    name = settings.job.strip()
    if not name:
        raise UsageError("job: is empty; give namespace/pod, a Slurm job's number or user@node")
    start, end = period(settings.since, settings.until, int(time.time()), 1)
    with closing(Prometheus(settings.prometheus, secrets(settings.prometheus))) as server:
        found = runs.find(server, name, settings.cluster, start, end)
        own = runs.runs(server, found, start, end)
        if not own:
            raise UsageError(f"{found}: nothing is recorded of it; --from looks further back")
        run = runs.exact(server, own[-1])
        if settings.ended:
            run = replace(run, goes_on=False, unseen_since=0)
        if run.goes_on and not run.cut and run.seconds < runs.LOOK:
            raise UsageError(f"{found}: {runs.JUST_BEGUN}")
        before = runs.runs(
            server, found, run.first - job.LOOKBACK, run.first - runs.ABSENCE_SECONDS
        )
        past = job.ask(server, run, before)
        return answer(past, settings.price, server.url, server.warnings)


FORMATS: dict[str, Callable[[Report], str]] = {"text": as_text, "html": html, "json": as_json}
