"""Fleets on which versions change, some of them with an effect that is known.

Jobs that come again and again are made slower by some changes, not by others. Beside that the step
of each job varies from day to day and drifts, some jobs are changed by their owners, and at times
the whole fleet becomes slower for another reason.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

from gpunode.report.changes import VersionChange
from gpunode.report.history import DAY, JobKey, Period, PeriodHours

START = 1_785_542_400 // DAY * DAY
DAYS = 28
JOBS = 160
KINDS = ("driver", "nccl", "image", "kernel")
OLD, NEW = "1.0", "1.1"
SHARE = 0.3
"""Of the jobs that meet a change, in the mean."""


def fleet(effects: Mapping[str, float], chance: random.Random) -> PeriodHours:
    """A period in which each kind of version changes for some jobs, within some days."""
    past = PeriodHours(Period(START, START + DAYS * DAY))
    shock_day, shock = chance.randrange(DAYS), chance.uniform(-0.04, 0.04)
    begins = {kind: chance.randrange(8, 17) for kind in effects}
    for number in range(JOBS):
        job = JobKey("a", "research", f"job-{number}", "")
        met = {
            kind: begins[kind] + chance.randrange(4) for kind in effects if chance.random() < SHARE
        }
        level = math.log(chance.uniform(0.2, 5.0))
        by_owner = chance.randrange(DAYS) if chance.random() < 0.15 else DAYS
        jump = chance.choice((-1, 1)) * chance.uniform(0.05, 0.3)
        for day in range(DAYS):
            level += chance.gauss(0, 0.004)
            if day == by_owner:
                level += jump
            if chance.random() < 0.2:
                continue  # the job did not run
            step = level + chance.gauss(0, 0.015) + (shock if day >= shock_day else 0.0)
            step += sum(math.log1p(effects[kind]) for kind, since in met.items() if day >= since)
            at = START + (day + 1) * DAY
            past.jobs[job].steps[at] = math.exp(step)
            past.jobs[job].held[at] = 24.0 * 8
            past.jobs[job].useful[at] = 24.0 * 8 * chance.uniform(0.5, 0.6)
            for kind in effects:
                version = NEW if day >= met.get(kind, DAYS) else OLD
                days = past.versions.setdefault(kind, {}).setdefault(job, {})
                days[at] = {version: math.exp(step)}
                if day == met.get(kind, DAYS):  # the old one ran until noon
                    days[at][OLD] = math.exp(step)
    return past


def named(found: list[VersionChange], kind: str) -> VersionChange:
    """The change of a kind of version; the one that slows most, where there are several."""
    return next(one for one in found if one.what[0].startswith(f"{kind} "))
