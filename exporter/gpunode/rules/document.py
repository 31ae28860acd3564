"""The document with every rule, in which a name in braces stands for what a site may change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypedDict

import yaml

Severity = Literal["page", "ticket", "info"]
"""Who is notified: somebody is woken; somebody looks in working hours; it is kept for a review."""

Tier = TypedDict("Tier", {"severity": Severity, "threshold": float, "for": str})
"""From which figure on, and after how long, an alert has a severity."""


class Rule(TypedDict, total=False):
    """A rule: of an alert's tier if it has an ``alert``, else a recording rule."""

    alert: str
    tier: Severity
    """The severity of the tier, by default."""

    record: str
    asked_by: str
    """The alert for which alone a series is recorded."""

    expr: str
    """PromQL, with ``${threshold}`` for that of the tier, and ``${NAME}`` for a setting."""

    keep_firing_for: str
    labels: dict[str, str]
    annotations: dict[str, str]
    """Texts, with ``${NAME}`` for a setting."""


class Group(TypedDict):
    """Rules that are evaluated one after the other."""

    name: str
    interval: str
    rules: Sequence[Rule]


class Document(TypedDict):
    """Every rule, and what it is by default."""

    settings: Mapping[str, str | float]
    alerts: Mapping[str, Sequence[Tier]]
    shares: Sequence[str]
    """The figures that are a share of 1, by where a site changes them."""

    files: Mapping[str, Sequence[Group]]
    """The groups of each file."""


@cache
def shipped() -> Document:
    """The document that the package carries."""
    text = (files(__package__) / "rules.yaml").read_text(encoding="utf-8")
    document: Document = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    return document


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
