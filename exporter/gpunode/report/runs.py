"""Which job somebody means by a name, and when it ran, as far as Prometheus has recorded it.

Rules record a job every 30 s while it holds a GPU. A run lasts until the job is missing for minutes
in which its cluster is not.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from gpunode.mistake import UsageError
from gpunode.report.history import RULE_INTERVAL
from gpunode.report.prometheus import Labels, Moments, Prometheus, quote
from gpunode.report.words import amount, clock
from gpunode.text import printable

JOB_SERIES = "job:gpunode_gpu_states:gpus"
HOURLY_JOB_SERIES = "job:gpunode_gpu_seconds:rate1h_hourly"
POD_SERIES = "gpunode_gpu_owner_info"
CLUSTER_SERIES = "cluster:gpunode_gpu_seconds:rate5m"
SLURM = "slurm-"
"""How the rules name a Slurm job: ``slurm-4301``."""

LOOK = 60
"""Seconds between two looks for a sample."""

ABSENCE_SECONDS = 600
"""Seconds without a job, though its cluster was seen, after which its run has ended. A pod that is
put elsewhere, or starts again, goes on."""

STEP = re.compile(r"^(\d+)\.(?:\d+|batch|extern|interactive)$", re.ASCII)
"""A step of a Slurm job, as sacct prints it."""

RECENT = 180
"""Seconds within which a job is seen that still runs: a scrape, a rule and some patience."""

MAX_NAMED_JOBS = 10
MAX_NAME = 80
JUST_BEGUN = "began less than a minute ago; nothing is recorded yet; ask again in a minute"
BY_NAME = "cluster, owner_namespace, workload"


class JobName(NamedTuple):
    """A job as its owner names it. The user may come to be known while it runs."""

    cluster: str
    owner_namespace: str
    workload: str

    def __str__(self) -> str:
        name = f"{self.owner_namespace}/{self.workload}" if self.owner_namespace else self.workload
        return printable(name, MAX_NAME)

    @property
    def selector(self) -> str:
        """What selects its series; a label that is empty selects those without it."""
        return ",".join(
            f'{label}="{quote(text)}"' for label, text in zip(self._fields, self, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Run:
    """A job from its first sample to its last, in Unix seconds."""

    job: JobName
    first: int
    last: int
    missing: int = 0
    """Seconds of which nothing is recorded."""

    cut: bool = False
    """Whether it may have begun before the first moment that was looked at."""

    goes_on: bool = False
    unseen_since: int = 0
    """When its cluster was seen last, if that was no later than the run; else 0."""

    @property
    def start(self) -> int:
        """Between two samples, so that no window has one on its edge."""
        return self.first - RULE_INTERVAL // 2

    @property
    def end(self) -> int:
        return self.last + RULE_INTERVAL // 2

    @property
    def seconds(self) -> int:
        return self.last - self.first + RULE_INTERVAL


def find(server: Prometheus, name: str, cluster: str | None, start: int, end: int) -> JobName:
    """The job that a user names: a pod, a workload, the number of a Slurm job or ``user@node``.

    Raises ``UsageError``, with names like it, if there is none or there are several.
    """
    namespace, slash, rest = name.rpartition("/")
    rest = STEP.sub(r"\1", rest)
    within = {"owner_namespace": namespace} if slash else {}
    within |= {"cluster": cluster} if cluster is not None else {}
    jobs = partial(_jobs, server, end, within, f"[{end - start}s]")
    found = jobs(JOB_SERIES, "workload", rest)
    found |= jobs(JOB_SERIES, "workload", f"{SLURM}{rest}") if not found else set()
    found |= jobs(POD_SERIES, "owner_pod", rest) if not found else set()
    if len(found) == 1:
        return found.pop()
    if found:
        raise UsageError(f"{name}: is the name of {len(found)} jobs: {_job_list(sorted(found))}")
    user, at, node = rest.partition("@")
    if of_user := jobs(JOB_SERIES, "user", user):
        on = f'instance=~"{quote(re.escape(node))}(:[0-9]+)?"' if at else ""
        there = of_user & jobs(POD_SERIES, "user", user, on) if at else set()
        listed = sorted(there or of_user, reverse=True)
        if len(listed) == 1 and (there or not at):
            return listed[0]
        where = f" on {printable(node, MAX_NAME)}" if there else ""
        raise UsageError(
            f"{printable(user, MAX_NAME)}: is a user, of {amount(len(listed), 'job')}{where}: "
            f"{_job_list(listed)}"
        )
    raise _not_found(server, name, rest, within, start, end)


def _not_found(
    server: Prometheus, name: str, rest: str, within: Mapping[str, str], start: int, end: int
) -> UsageError:
    """Why there is no such job, and the names that are like it."""
    shown = printable(name, MAX_NAME)
    jobs = partial(_jobs, server, end, within)
    for one in (rest, f"{SLURM}{rest}"):
        if jobs(f"[{RECENT}s] offset {RECENT}s", POD_SERIES, "workload", one):
            return UsageError(
                f"{shown}: holds a GPU, of whose time nothing is recorded ({JOB_SERIES})"
            )
        if jobs(f"[{RECENT}s]", POD_SERIES, "workload", one):
            return UsageError(f"{shown}: {JUST_BEGUN}")
    known = _recent_jobs(server, f"[{end - start}s]", end)
    during = f"from {clock(start)} to {clock(end)} UTC"
    if not known:
        return UsageError(
            f"{server.url}: has no job {during}; does it evaluate gpunode's recording rules?"
        )
    clusters = sorted({printable(job.cluster, MAX_NAME) for job in known})
    cluster = within.get("cluster")
    if cluster is not None and printable(cluster, MAX_NAME) not in clusters:
        there_is = f"there {'is' if len(clusters) == 1 else 'are'} {', '.join(clusters)}"
        return UsageError(f"no cluster {printable(cluster, MAX_NAME)}; {there_is}")
    asked = (rest, f"{SLURM}{rest}")
    if any(job.workload in asked and within.items() <= job._asdict().items() for job in known):
        return UsageError(
            f"{shown}: {server.url} has only hours of it, which `gpunode report` reads; this "
            f"command reads {JOB_SERIES}"
        )
    if near := _near(name, known):
        like = f"names like it: {_job_list(near)}"
    elif len(known) <= MAX_NAMED_JOBS:
        like = f"there {'is' if len(known) == 1 else 'are'} {_job_list(sorted(known))}"
    else:
        like = f"no name of {len(known)} is like it"
    return UsageError(
        f"{shown}: held no GPU {during}, as far as is recorded; {like}; --from looks further back"
    )


def _jobs(
    server: Prometheus,
    end: int,
    within: Mapping[str, str],
    window: str,
    series: str,
    label: str,
    text: str,
    more: str = "",
) -> set[JobName]:
    """The jobs of which a series has this label."""
    exact = [f'{on}="{quote(of)}"' for on, of in {label: text, **within}.items()]
    labels = ",".join(filter(None, ('workload!=""', *exact, more)))
    asked = f"group by ({BY_NAME}) (last_over_time({series}{{{labels}}}{window}))"
    return {_name(labels) for labels, _ in server.at(asked, end)}


def _name(labels: Labels) -> JobName:
    return JobName(*(labels.get(name, "") for name in JobName._fields))


def _recent_jobs(server: Prometheus, window: str, end: int) -> set[JobName]:
    """The jobs of the last minutes, and those that were there at a full hour."""
    lately = f"group by ({BY_NAME}) ({JOB_SERIES})"
    before = f"group by ({BY_NAME}) (last_over_time({HOURLY_JOB_SERIES}{window}))"
    return {_name(labels) for asked in (lately, before) for labels, _ in server.at(asked, end)}


def _near(name: str, known: Iterable[JobName]) -> list[JobName]:
    """The jobs whose names are most like what was typed."""
    name = name.casefold()
    _, _, rest = name.rpartition("/")
    spelt = {
        spelling.casefold(): job
        for job in sorted(known)
        for spelling in (str(job), job.workload, job.workload.removeprefix(SLURM))
    }
    like = difflib.get_close_matches(name, spelt, MAX_NAMED_JOBS)
    like += difflib.get_close_matches(rest, spelt, MAX_NAMED_JOBS)
    like += [spelling for spelling in spelt if len(rest) > 2 and rest in spelling]
    return list(dict.fromkeys(spelt[spelling] for spelling in like))[:MAX_NAMED_JOBS]


def _job_list(jobs: list[JobName]) -> str:
    """Jobs in a line, with their cluster where that tells them apart."""
    several = len({job.cluster for job in jobs}) > 1
    shown = [
        f"{job} (--cluster={printable(job.cluster, MAX_NAME)})" if several else str(job)
        for job in jobs[:MAX_NAMED_JOBS]
    ]
    more = f" and {len(jobs) - MAX_NAMED_JOBS} more" if len(jobs) > MAX_NAMED_JOBS else ""
    return ", ".join(shown) + more


def runs(server: Prometheus, job: JobName, start: int, end: int) -> list[Run]:
    """The runs of a job that reach into a period, the first first."""
    seen = _sample_times(server, f"{JOB_SERIES}{{{job.selector}}}", start, end)
    if not seen:
        return []
    cluster = _sample_times(
        server, f'{CLUSTER_SERIES}{{cluster="{quote(job.cluster)}"}}', start, end
    )
    bounds = [seen[0]]
    for before, after in pairwise(seen):
        if after - before > ABSENCE_SECONDS and _was_recorded(cluster, before, after):
            bounds += [before, after]
    bounds.append(seen[-1])
    last_of_all = bounds[-1]
    return [
        Run(
            job,
            first,
            last,
            missing=_gap_seconds([at for at in seen if first <= at <= last]),
            cut=first <= start + RECENT,
            goes_on=last >= end - RECENT,
            unseen_since=(
                cluster[-1] if cluster and last == last_of_all and cluster[-1] <= last + LOOK else 0
            ),
        )
        for first, last in zip(bounds[::2], bounds[1::2], strict=True)
    ]


def _gap_seconds(seen: list[int]) -> int:
    """Seconds between samples that are further apart than two looks."""
    apart = (after - before - RULE_INTERVAL for before, after in pairwise(seen))
    return sum(seconds for seconds in apart if seconds > 2 * LOOK)


def exact(server: Prometheus, run: Run) -> Run:
    """The run with its bounds to the sample: each lasts until the rule is evaluated again."""
    seen = f"{JOB_SERIES}{{{run.job.selector}}}"
    begin = run.first if run.cut else run.first - LOOK
    before = _sample_times(server, seen, begin, run.first, RULE_INTERVAL // 2)
    after = _sample_times(server, seen, run.last, run.last + LOOK, RULE_INTERVAL // 2)
    return replace(run, first=min([*before, run.first]), last=max([*after, run.last]))


def _was_recorded(cluster: list[int], before: int, after: int) -> bool:
    """Whether the cluster was recorded for so long between two moments that a job has ended."""
    between = [at for at in cluster if before < at < after]
    return len(between) * LOOK > ABSENCE_SECONDS


def _sample_times(
    server: Prometheus, selector: str, start: int, end: int, step: int = LOOK
) -> list[int]:
    """When there was a sample; of several within a step, the last."""
    moments = Moments(start, end, step)
    asked = f"max(timestamp({selector}))"
    found = {int(at) for _, _, at in server.over(asked, moments, lambda _: None)}
    return sorted(at for at in found if start <= at <= end)


def windows(start: int, end: int, length: int) -> Iterator[tuple[int, Moments]]:
    """Windows that cover a time, by their length and ends; the first may be shorter."""
    first = end - (end - start) // length * length
    if first > start:
        yield first - start, Moments(first, first, length)
    if first < end:
        yield length, Moments(first + length, end, length)
