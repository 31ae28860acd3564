"""What Slurm's ``sacct`` prints of jobs: the account that each ran for, and how long it waited.

https://slurm.schedmd.com/sacct.html
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from gpunode.mistake import UsageError
from gpunode.text import printable

MAX_FILE = 64 << 20
MAX_NAME = 80
MAX_LINE = 4096
NEEDED = ("JobIDRaw", "Account", "Submit", "Start")
"""Columns without which nothing can be said."""

SACCT_COMMAND = (
    "SLURM_TIME_FORMAT=%s sacct --allusers --allocations --parsable2 --starttime now-30days "
    "--format=JobIDRaw,Account,Submit,Eligible,Start,Cluster"
)
"""Without a time to start at, ``sacct`` begins with today; without a format, times have no zone."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job in the accounting of Slurm; times are in Unix seconds."""

    number: str
    account: str
    ready: float
    """From when on it might have started: when it became eligible, or else when it was sent."""

    start: float | None
    """None while it waits, and for a job that never started."""

    cluster: str = ""
    """Empty where the file does not tell."""


def parse(text: str) -> list[SlurmJob]:
    """The jobs in what ``sacct --parsable2`` printed. Raises ``ValueError``."""
    lines = text.splitlines()
    head = lines[0].split("|") if lines else []
    if missing := [name for name in NEEDED if name not in head]:
        raise ValueError(f"the first line does not name {', '.join(missing)}")
    found = []
    for number, line in enumerate(lines[1:], 2):
        cells = line.split("|")
        if len(cells) != len(head) or len(line) > MAX_LINE:
            raise ValueError(f"line {number} does not have {len(head)} columns")
        row = dict(zip(head, cells, strict=True))
        name = row["JobIDRaw"]
        if not (name.isascii() and name.isdecimal() and len(name) <= 12):
            continue  # a step, such as 77.batch
        ready = _moment(row.get("Eligible", "")) or _moment(row["Submit"])
        if ready is not None:
            account = printable(row["Account"], MAX_NAME)
            cluster = printable(row.get("Cluster", ""), MAX_NAME)
            found.append(SlurmJob(name, account, ready, _moment(row["Start"]), cluster))
    return found


def read_jobs(path: Path) -> list[SlurmJob]:
    """The jobs in a file of what ``sacct`` printed. Raises ``UsageError``."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_FILE + 1)
        if len(text) > MAX_FILE:
            raise UsageError(f"{path}: more than {MAX_FILE >> 20} MiB")
        return parse(text)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text") from error
    except ValueError as error:
        raise UsageError(f"{path}: {error}; write it with `{SACCT_COMMAND}`") from error


def accounts(jobs: list[SlurmJob], clusters: Collection[str]) -> dict[tuple[str, str], str]:
    """The account of each job that has one, by its cluster and its name in the recording rules.

    Numbers of jobs are those of one cluster: of several, a job is of the one that its line names.
    """
    (only,) = clusters if len(clusters) == 1 else (None,)
    return {
        (job.cluster if only is None else only, f"slurm-{job.number}"): job.account
        for job in jobs
        if job.account
    }


def job_waits(jobs: Sequence[SlurmJob], start: float, end: float) -> Iterator[tuple[str, float]]:
    """The account and the seconds of waiting of each job that started in a period."""
    for job in jobs:
        if job.start is not None and start <= job.start < end and job.start >= job.ready:
            yield job.account, job.start - job.ready


def _moment(text: str) -> float | None:
    """A time as ``sacct`` writes it, or in Unix seconds with SLURM_TIME_FORMAT=%s."""
    if text.isascii() and text.isdecimal() and len(text) <= 12:
        return float(text) or None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:  # Unknown, None
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.timestamp()
