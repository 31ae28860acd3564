"""The incidents of a job on all its nodes, as one report: which node began, and what each saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpunode.export.incident_page import MARKED_SECONDS, duration_text, moment_of
from gpunode.incidents.incident import KINDS, Incident
from gpunode.report.claims import JobIncident, JobQuestions, ProvenAnswer
from gpunode.report.document import Report, ReportSection, Table, TableColumn
from gpunode.report.words import amount, clock
from gpunode.text import printable

MAX_TEXT = 300
"""Characters of a text in a table."""

MAX_MOMENTS = 60
"""Moments of an incident that are shown; `gpunode incident` on its node shows all."""


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """The answer of an incident's node, or why there is none."""

    of: JobIncident
    incident: Incident | None
    why_not: str = ""


def gathered(
    questions: JobQuestions,
    answers: Sequence[NodeAnswer],
    began: ProvenAnswer,
    waited_for: ProvenAnswer,
) -> Report:
    """The report on the incidents of a job, the earliest first."""
    nodes = {one.of.instance for one in answers}
    silent = [one for one in answers if one.why_not]
    says = f"{amount(len(answers), 'incident')} on {amount(len(nodes), 'node')} within a day."
    return Report(
        title=f"Incidents of {questions.job}",
        start=clock(answers[0].of.began),
        end=clock(questions.moment),
        moment=questions.moment,
        source=questions.server.url,
        price=None,
        finding=f"{says} {_first_sentence(began)}",
        sections=(
            _overview(answers, began),
            _waited_for(waited_for),
            *(_node_section(one.of, one.incident) for one in answers if one.incident is not None),
        ),
        warnings=tuple(
            sorted({f"{one.of.instance} was not asked, or: {one.why_not}" for one in silent})
        ),
        reading="The time at which an incident began is told by the clock of its node.",
    )


def _first_sentence(began: ProvenAnswer) -> str:
    said = [one.says for one in began.claims] + [f"Not known: {one}" for one in began.not_known]
    return f"{said[0]}."


def _overview(answers: Sequence[NodeAnswer], began: ProvenAnswer) -> ReportSection:
    rows = tuple(
        (
            printable(one.of.instance, MAX_TEXT),
            moment_of(one.of.began),
            KINDS[one.of.kind],
            ", ".join(one.of.gpus),
            printable(_position(one), MAX_TEXT),
            one.of.id,
        )
        for one in answers
    )
    titles = ("node", "began", "what", "GPUs", "where", "incident")
    columns = tuple(TableColumn(title.lower(), title) for title in titles)
    promql = tuple(sorted({one.promql for one in began.claims}))
    table = Table("incidents", "Incidents, the earliest first", columns, rows, promql)
    return ReportSection("began", "Which node began", _first_sentence(began), tables=(table,))


def _position(one: NodeAnswer) -> str:
    return (one.incident.brief.where if one.incident else "") or one.of.where


def _waited_for(waited_for: ProvenAnswer) -> ReportSection:
    says = " ".join(f"Not known: {one}." for one in waited_for.not_known)
    columns = (TableColumn("says", "what"), TableColumn("value", "value", "count"))
    rows = tuple((printable(one.says, MAX_TEXT), one.value) for one in waited_for.claims)
    promql = tuple(sorted({one.promql for one in waited_for.claims}))
    table = Table("waited_for", "As the first incident began", columns, rows, promql)
    return ReportSection("waited_for", "For whom the job waits", says, tables=(table,))


def _node_section(of: JobIncident, incident: Incident) -> ReportSection:
    """What one node has kept: the moments around the beginning, and where processes stood."""
    brief = incident.brief
    near = [one for one in incident.moments if abs(one.time - brief.began) <= MARKED_SECONDS]
    columns = (
        TableColumn("after", "after (s)"),
        TableColumn("what", "what"),
        TableColumn("text", "text"),
    )
    rows = tuple(
        (f"{round(one.time - brief.began) + 0:+d}", one.what, printable(one.text, MAX_TEXT))
        for one in near[:MAX_MOMENTS]
    )
    note = f"{len(near) - MAX_MOMENTS} more." if len(near) > MAX_MOMENTS else ""
    said = (f"{brief.title} ({duration_text(brief)}).", incident.remedy)
    return ReportSection(
        f"node_{brief.id}",
        f"{printable(of.instance, MAX_TEXT)}: {brief.id}",
        printable(" ".join(filter(None, said)), 3 * MAX_TEXT),
        tables=(Table("moments", "What happened around its beginning", columns, rows, (), note),),
    )
