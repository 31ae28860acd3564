"""``gpunode report``: asks Prometheus, and writes what it says."""

from __future__ import annotations

import logging
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gpunode.cli import streams
from gpunode.cli.settings.report import ReportSettings
from gpunode.config.prometheus import PASSWORD_VARIABLE, TOKEN_VARIABLE, PrometheusSettings
from gpunode.mistake import UsageError
from gpunode.report import baseline, mail, sacct
from gpunode.report.billing import Billing, parse
from gpunode.report.changes import paces
from gpunode.report.history import (
    DAY,
    HOUR,
    RECORDING_DELAY,
    STATES,
    HistoryReader,
    Period,
    PeriodHours,
)
from gpunode.report.page import FORMATS, html
from gpunode.report.prometheus import Prometheus, Secrets
from gpunode.report.sections import bills, report
from gpunode.report.view import PeriodView, clean
from gpunode.report.words import MINUTE, clock

LENGTH = re.compile(r"(\d{1,5}(?:\.\d{1,3})?) ?([a-z]+?)s?")
UNIT_SECONDS = {
    **dict.fromkeys(("m", "min", "minute"), MINUTE),
    **dict.fromkeys(("h", "hour"), HOUR),
    **dict.fromkeys(("d", "day"), DAY),
    **dict.fromkeys(("w", "week"), 7 * DAY),
}
"""Seconds of each unit; a plural is taken as well."""

LAST_MONTH = "last-month"
"""The last calendar month in UTC that is over by the end, so that each hour is of one month."""

MAX_PERIOD = 3 * 366 * 24 * HOUR
MAX_SECRET = 1 << 16

log = logging.getLogger(__name__)


def write(settings: ReportSettings) -> None:
    """Write the report that the settings ask for; exit with 1 if it is worse than its baseline."""
    limit = _limit(settings)
    before = baseline.read(settings.baseline) if settings.baseline else None
    if settings.out_folder is not None:
        view = _fill(settings.out_folder, settings)
    else:
        asked: list[PeriodView] = []
        form = FORMATS[settings.format]

        def text() -> str:
            view, source, warnings = ask(settings)
            asked.append(view)
            return form(report(view, source, warnings))

        deliver(settings.output or f"gpunode-report.{settings.format}", text)
        (view,) = asked
    if before is None:
        return
    outcome = baseline.compared(before, paces(view.past), math.inf if limit is None else limit)
    with streams.printing():
        sys.stderr.write(f"{outcome.says}\n")
    if not outcome.accepted and limit is not None:
        sys.exit(1)


def _limit(settings: ReportSettings) -> float | None:
    """The share from which on it is worse. Raises ``UsageError``."""
    if not settings.fail_if_worse:
        return None
    if settings.baseline is None:
        raise UsageError("fail-if-worse: than what? Give baseline, too")
    found = re.fullmatch(r"(\d{1,2}(?:\.\d{1,3})?)%", settings.fail_if_worse)
    if found is None:
        raise UsageError(f"fail-if-worse: {settings.fail_if_worse!r} is no share, such as 3%")
    return float(found[1]) / 100


def _fill(folder: Path, settings: ReportSettings) -> PeriodView:
    """Write the report in every format, and the bill of each team. Raises ``UsageError``."""
    if settings.output:
        raise UsageError("output: give either a file or out-folder, not both")
    with _telling_of(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise UsageError(f"{folder}: Permission denied")
    view, source, warnings = ask(settings)
    whole = report(view, source, warnings)
    for name, form in FORMATS.items():
        deliver(str(folder / f"report.{name}"), partial(form, whole))
    teams = bills.team_bills(view)
    for bill, name in zip(teams, mail.names([bill.name for bill in teams]), strict=True):
        own = bills.team_report(view, bill, source)
        deliver(str(folder / f"{name}.html"), partial(html, own))
        deliver(str(folder / f"{name}.txt"), partial(mail.text, own))
        team = view.billing.teams.get(bill.name)
        if team is not None and team.mail:
            deliver(
                str(folder / f"{name}.eml"), partial(mail.mail, own, team.mail, view.billing.sender)
            )
    return view


def deliver(name: str, text: Callable[[], str | bytes]) -> None:
    """Write a text to a file and print its name, or to standard output for ``-``."""
    if name == "-":
        written = _bytes(text())
        with streams.printing():
            sys.stdout.buffer.write(written)  # as a file, whatever the terminal's encoding
        return
    with _whole_or_none(Path(name)) as put:
        put(_bytes(text()))
    with streams.printing():
        sys.stdout.write(f"{name}\n")


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


@contextmanager
def _whole_or_none(path: Path) -> Iterator[Callable[[bytes], None]]:
    """A function that writes a file, which keeps what it had until all of it is written.

    Says at once if it cannot be written: the answers may take minutes. What is there under the name
    of the part is never written to, as it may be a link that somebody else left.
    """
    target = Path(os.path.realpath(path))  # the part must be on the disk to which a link leads
    with _telling_of(path):
        special = target.exists() and not target.is_file()  # a folder, a device or a pipe
        part = target if special else target.with_name(f".{target.name}.{os.getpid()}")
        file = part.open("wb" if special else "xb", buffering=0)

    def put(rest: bytes) -> None:
        with _telling_of(path):
            while rest:
                rest = rest[file.write(rest) :]
            if not special:
                part.replace(target)

    try:
        with file:
            yield put
    finally:
        if not special:
            part.unlink(missing_ok=True)


@contextmanager
def _telling_of(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error


def ask(settings: ReportSettings) -> tuple[PeriodView, str, set[str]]:
    """What is to be told, which server told it, and what that warned of.

    A bar on a terminal shows how far it is.
    """
    billing = billing_of(settings)
    slurm = sacct.read_jobs(settings.sacct_file) if settings.sacct_file else None
    period = _period(settings, time.time())
    past, before = PeriodHours(period), PeriodHours(period.before)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    bar = Progress(*columns, console=console, disable=not console.is_terminal)
    with closing(Prometheus(settings.prometheus, secrets(settings.prometheus))) as server, bar:
        task = bar.add_task(server.url)

        def done(moments: int) -> None:
            bar.advance(task, moments)

        now = HistoryReader(server, past, done, by_model=bool(billing.prices))
        then = HistoryReader(server, before, done)
        moments = now.moments(whole=True) + then.moments(whole=False)
        bar.update(task, total=2 * period.hours + moments)
        now.states()
        if not past.clusters:
            raise UsageError(
                f"{server.url}: nothing from {settings.since} to {settings.until} of "
                f"{STATES.over('1h')}; does it evaluate gpunode's recording rules, which record "
                "once an hour, and keep its samples for so long?"
            )
        now.ask(whole=True)
        then.states()
        if before.clusters:
            then.ask(whole=False)
    if len(past.clusters) > 1 and slurm and not any(job.cluster in past.clusters for job in slurm):
        log.warning(
            "%s: its accounts are used for no job: its lines name none of the clusters %s; "
            "write it with `%s`",
            settings.sacct_file,
            ", ".join(map(clean, sorted(past.clusters))),
            sacct.SACCT_COMMAND,
        )
    return PeriodView(past, before, billing, settings.by, slurm), server.url, server.warnings


def billing_of(settings: ReportSettings) -> Billing:
    """Prices and teams, of the file and the options. Raises ``UsageError``."""
    billing = parse(settings.billing_file) if settings.billing_file else Billing()
    if settings.price is None:
        return billing
    return billing.model_copy(update={"price": settings.price})


def _period(settings: ReportSettings, now: float) -> Period:
    latest = int(now - RECORDING_DELAY) // HOUR * HOUR  # the last hour that is recorded
    start, end = period(settings.since, settings.until, latest, HOUR)
    return Period(start, end)


def period(since: str, until: str, latest: int, step: int) -> tuple[int, int]:
    """Begin and end of what is asked about, at multiples of a step. Raises ``UsageError``."""
    wanted = latest if until == "now" else moment(until, "to", step)
    end = min(latest, wanted)
    if wanted > end:
        log.warning("to: %r is yet to come; the report ends at %s UTC", until, clock(latest))
    if since == LAST_MONTH:
        month = datetime.fromtimestamp(end, timezone.utc).replace(day=1, hour=0, minute=0, second=0)
        end = int(month.timestamp())
        start = int((month - timedelta(days=1)).replace(day=1).timestamp())
    elif (lasting := LENGTH.fullmatch(since)) and lasting[2] in UNIT_SECONDS:
        start = int(end - float(lasting[1]) * UNIT_SECONDS[lasting[2]]) // step * step
    else:
        start = moment(since, "from", step)
    if start >= end:
        raise UsageError(f"from: {since!r} is not before the end, {clock(end)} UTC")
    if end - start > MAX_PERIOD:
        raise UsageError(f"from: {since!r} is more than three years before the end")
    return start, end


def moment(text: str, name: str, step: int) -> int:
    """A date or time in UTC, at the full step, in Unix seconds."""
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise UsageError(
            f"{name}: {text!r} is no date (2026-08-31), no time (2026-08-31T18:00)"
            + (
                f", nor a length (5min, 24h, 30d, 12w) or {LAST_MONTH}"
                if name == "from"
                else " and not now"
            )
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return int(moment.timestamp()) // step * step


def secrets(asked: PrometheusSettings) -> Secrets:
    """What the settings or the environment have to prove who asks. Raises ``UsageError``."""
    token = _secret(asked.token_file, TOKEN_VARIABLE)
    password = _secret(asked.password_file, PASSWORD_VARIABLE)
    if token and asked.username:
        raise UsageError("prometheus: give either a token or a user name, not both")
    return Secrets(token, password)


def _secret(file: Path | None, variable: str) -> str:
    """The first line of a file, else of an environment variable."""
    if file is None:
        text = os.environ.get(variable, "")
    else:
        try:
            with file.open(encoding="ascii") as opened:
                text = opened.read(MAX_SECRET)
        except OSError as error:
            raise UsageError(f"{file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{file}: not ASCII text") from error
    secret = text.strip()
    if not secret.isascii() or not all(c.isprintable() for c in secret):
        raise UsageError(f"{file or variable}: more than one line, or not ASCII text")
    return secret
