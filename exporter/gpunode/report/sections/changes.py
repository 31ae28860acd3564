"""What changes of versions did, and how fast each job was, for the next report to compare with."""

from __future__ import annotations

import math

from gpunode.report import history
from gpunode.report.changes import (
    MIN_CHANGED_JOBS,
    MIN_OTHER_JOBS,
    MeasuredEffect,
    VersionChange,
    changes,
    paces,
)
from gpunode.report.document import ReportSection, Table, TableColumn, Value
from gpunode.report.view import MAX_ROWS, PeriodView, clean
from gpunode.report.words import as_text

NAME, PACE = "changes", "pace"
KEY = ("cluster", "owner_namespace", "workload", "user")
MAX_JOBS = 2000


def changed(view: PeriodView) -> ReportSection:
    """Each change with its effect."""
    found = changes(view.past)
    rows = tuple(
        (
            "; ".join(map(clean, one.what)),
            view.begin(one.first),
            view.begin(one.last),
            float(one.changed),
            float(one.others),
            _direction(one),
            *_bounds(one.step, logarithm=True),
            *_bounds(one.useful),
        )
        for one in found[:MAX_ROWS]
    )
    return ReportSection(
        NAME,
        "What changes of versions did",
        _sentence(found),
        (),
        (
            Table(
                "changes",
                "Changes of versions that several jobs met",
                (
                    TableColumn("change", "Change"),
                    TableColumn("first", "First job"),
                    TableColumn("last", "Last job"),
                    TableColumn("changed", "Jobs that met it", "count"),
                    TableColumn("others", "Jobs that did not", "count"),
                    TableColumn("found", "Steps"),
                    TableColumn("step", "Longer by", "share"),
                    TableColumn("step_lower", "At least", "share"),
                    TableColumn("step_upper", "At most", "share"),
                    TableColumn("useful", "Useful share", "points"),
                    TableColumn("useful_lower", "At least", "points"),
                    TableColumn("useful_upper", "At most", "points"),
                ),
                rows,
                (
                    history.STEPS.over("1d"),
                    history.NODE_VERSIONS.expression,
                    history.PROCESS_VERSIONS.expression,
                    history.JOBS.over("1d"),
                ),
                note="The same jobs up to a week before and after, beside jobs that kept their "
                f"version over the same days. It takes {MIN_CHANGED_JOBS} jobs that met the change "
                f"and {MIN_OTHER_JOBS} that did not. What came together cannot be told apart.",
            ),
            Table(
                PACE,
                "The pace of each job",
                (
                    *(TableColumn(name, name) for name in KEY),
                    TableColumn("step", "Step", "seconds"),
                    TableColumn("useful", "Useful", "share"),
                ),
                tuple((*job, *pace) for job, pace in list(paces(view.past).items())[:MAX_JOBS]),
                (history.STEPS.over("1d"), history.JOBS.over("1d")),
                note="What the option baseline of a later report compares.",
                hidden=True,
            ),
        ),
    )


def _sentence(found: list[VersionChange]) -> str:
    sure = [one for one in found if one.step and one.step.sure]
    if not found:
        return "No change of a version was met by several jobs that report steps."
    if not sure:
        return "No change of a version made steps longer or shorter, as far as can be told."
    return " ".join(
        f"{'; '.join(map(clean, one.what))} made steps {_percent(one.step)}."
        for one in sure
        if one.step
    )


def _percent(effect: MeasuredEffect) -> str:
    share = math.expm1(effect.estimate)
    return f"{as_text(abs(share), 'share')} {'longer' if share > 0 else 'shorter'}"


def _direction(one: VersionChange) -> str:
    if one.step is None:
        return "cannot be told"
    if not one.step.sure:
        return "no difference found"
    return "longer" if one.step.estimate > 0 else "shorter"


def _bounds(effect: MeasuredEffect | None, *, logarithm: bool = False) -> tuple[Value, ...]:
    if effect is None:
        return (None, None, None)
    figures = (effect.estimate, effect.lower, effect.upper)
    return tuple(math.expm1(figure) for figure in figures) if logarithm else figures
