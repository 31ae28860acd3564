"""Asks Prometheus for each clause of an alert, for the rules behind it and for the raw series."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpunode.explain.promql import (
    Clause,
    PromqlError,
    alternatives,
    comparison,
    selectors,
    strip_parentheses,
)
from gpunode.explain.rule_files import MAX_DEPTH, Rule, by_record
from gpunode.mistake import UsageError
from gpunode.report.prometheus import Labels, Prometheus, quote

OWNER = "gpu:gpunode_owner:info"
JOB_LABELS = ("owner_namespace", "workload", "replica", "user")
GPU_LABELS = ("cluster", "instance", "gpu", "uuid")
NODE_LABELS = ("cluster", "instance")
"""Most raw series know no job: those of its GPUs and of their nodes are found by its owner."""

MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*["\'`]')

Sample = tuple[Labels, float]


@dataclass(frozen=True, slots=True)
class ClauseResult:
    """A clause, with what holds of it now."""

    clause: Clause
    found: Sequence[Sample]
    """Its own series that have the labels asked for."""

    left: Sequence[Sample]
    """The series of the alternative up to here."""

    before: Sequence[Sample]
    compared: str = ""
    """The operator, if it compares."""

    sides: Sequence[tuple[Labels, float, float]] = ()
    """Both figures, if it compares, of whatever has the labels asked for."""

    within: Sequence[Sequence[ClauseResult]] = ()
    """The alternatives in its parentheses."""

    @property
    def silences(self) -> bool:
        """Whether the alert would go on but for this clause."""
        first = not self.clause.operator
        return not self.left and (first or bool(self.before))


@dataclass(frozen=True, slots=True)
class UnderlyingSeries:
    """A series that stands behind an alert, with its present values."""

    name: str
    depth: int
    found: Sequence[Sample]


@dataclass(frozen=True, slots=True)
class AlertExplanation:
    """An alert of one severity."""

    rule: Rule
    states: Sequence[Labels]
    """The series ALERTS of it: pending or firing."""

    alternatives: Sequence[Sequence[ClauseResult]]
    records: Sequence[UnderlyingSeries]
    raw: Sequence[UnderlyingSeries]

    @property
    def holds(self) -> bool:
        """Whether the expression has a series with the labels asked for."""
        return any(parts[-1].left for parts in self.alternatives)


@dataclass(slots=True)
class AlertQuestion:
    """What is asked of one Prometheus at one moment, for series with these labels."""

    server: Prometheus
    moment: int
    labels: Labels
    _answers: dict[str, list[Sample]] = field(default_factory=dict)

    def series(self, expression: str) -> list[Sample]:
        """What an expression comes to, which is asked only once."""
        if expression not in self._answers:
            self._answers[expression] = sorted(
                self.server.at(expression, self.moment), key=lambda one: sorted(one[0].items())
            )
        return self._answers[expression]

    def fitting(self, expression: str, on: Collection[str] | None = None) -> list[Sample]:
        """The series that have the labels asked for; one that lacks a label may have any.

        By the labels ``on`` which two clauses are matched, what is lacking is empty.
        """
        return [
            (labels, value)
            for labels, value in self.series(expression)
            if all(
                labels.get(name, "" if on is not None and name in on else wanted) == wanted
                for name, wanted in self.labels.items()
            )
        ]


def explain(rule: Rule, rules: Sequence[Rule], question: AlertQuestion) -> AlertExplanation:
    """What holds of an alert now. Raises ``UsageError``."""
    try:
        parts = _alternatives(rule.expression, question, None)
        records, raw = _trace_rules(rule.expression, by_record(rules), question)
    except PromqlError as error:
        raise UsageError(f"{rule.file}: {rule.name}: not read as PromQL: {error}") from error
    state = f'ALERTS{{alertname="{rule.name}",severity="{quote(rule.severity)}"}}'
    states = [labels for labels, _ in question.fitting(state)]
    return AlertExplanation(rule, states, parts, records, raw)


def _alternatives(
    expression: str, question: AlertQuestion, on: Collection[str] | None
) -> list[list[ClauseResult]]:
    return [
        list(_parts(clauses, question, on))
        for clauses in alternatives(strip_parentheses(expression))
    ]


def _parts(
    clauses: Sequence[Clause], question: AlertQuestion, on: Collection[str] | None
) -> Iterator[ClauseResult]:
    before: Sequence[Sample] = ()
    for clause in clauses:
        own = clause.on if clause.operator else on
        found = question.fitting(clause.text, own)
        left = question.fitting(clause.until, on) if clause.operator else found
        compared = comparison(clause.text)
        sides: list[tuple[Labels, float, float]] = []
        if compared:
            sides = _sides(compared.left, compared.matching, compared.right, question, own)
        inner = strip_parentheses(clause.text)
        within: list[list[ClauseResult]] = []
        if inner != clause.text and (clause.operator or len(clauses) > 1):
            within = _alternatives(inner, question, own)
        operator = compared.operator if compared else ""
        yield ClauseResult(clause, found, left, before, operator, sides, within)
        before = left


def _sides(
    left: str, matching: str, right: str, question: AlertQuestion, on: Collection[str] | None
) -> list[tuple[Labels, float, float]]:
    """Both figures of a comparison, whether it is met or not."""
    found = question.fitting(left, on)
    if not found:
        return []
    # The right side may be a number or series; either becomes series with the labels of the left.
    limits = {
        tuple(sorted(labels.items())): value
        for labels, value in question.series(f"({left}) * 0 + {matching} ({right})")
    }
    bare = [({n: v for n, v in labels.items() if n != "__name__"}, v_) for labels, v_ in found]
    return [
        (labels, value, limits[tuple(sorted(labels.items()))])
        for labels, value in bare
        if tuple(sorted(labels.items())) in limits
    ]


def _trace_rules(
    expression: str, records: Mapping[str, Sequence[Rule]], question: AlertQuestion
) -> tuple[list[UnderlyingSeries], list[UnderlyingSeries]]:
    """The rules behind an expression, each below what first reads it, and the raw series."""
    rules: list[UnderlyingSeries] = []
    raw: dict[tuple[str, str], UnderlyingSeries] = {}
    seen: set[str] = set()

    def look(text: str, depth: int) -> None:
        for name, matchers in selectors(text):
            if name in records:
                if name not in seen and depth <= MAX_DEPTH:
                    seen.add(name)
                    rules.append(UnderlyingSeries(name, depth, _present(name, "", question)))
                    for rule in records[name]:
                        look(rule.expression, depth + 1)
            elif (name, matchers) not in raw:
                shown = f"{name}{{{matchers}}}" if matchers else name
                raw[name, matchers] = UnderlyingSeries(shown, 0, _present(name, matchers, question))

    look(expression, 1)
    return rules, list(raw.values())


def _selector(name: str, matchers: str, question: AlertQuestion) -> str:
    """A selector of the series that have the labels asked for, or lack them."""
    own = {text for text, _ in MATCHER.findall(matchers)} - {"instance", "uuid"}
    asked = [
        f'{label}="{quote(value)}"' if not value else f'{label}=~"{quote(_literal(value))}|"'
        for label, value in question.labels.items()
        if label not in own
    ]
    return f"{name}{{{','.join(filter(None, [matchers, *asked]))}}}"


def _literal(value: str) -> str:
    """A value as a regular expression of Prometheus (RE2)."""
    return "".join(f"\\{c}" if c in r"\.+*?()|[]{}^$" else c for c in value)


def _present(name: str, matchers: str, question: AlertQuestion) -> list[Sample]:
    """The series of a name: those of the job's GPUs and nodes where a job is asked for."""
    job = any(one in question.labels for one in JOB_LABELS)
    owner = _selector(OWNER, "", question)
    if not job or name == OWNER or not question.fitting(owner):
        return question.fitting(_selector(name, matchers, question))
    parts = []
    for more, on in (
        ('uuid!=""', GPU_LABELS),
        ('uuid="",instance!=""', NODE_LABELS),
        ('uuid="",instance=""', ()),
    ):
        plain = _selector(name, ",".join(filter(None, [matchers, more])), question)
        parts.append(f"({plain} and on ({', '.join(on)}) {owner})" if on else plain)
    return question.fitting(" or ".join(parts))
