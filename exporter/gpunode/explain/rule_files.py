"""Reads the files of rules that the package carries, or those of a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from gpunode.explain.promql import names
from gpunode.mistake import UsageError

SHIPPED = "rules"
THRESHOLD = "gpunode_threshold"
THRESHOLDS = "thresholds.yaml"
MAX_FILE = 1 << 20
MAX_DEPTH = 4
"""Rules that stand behind each other, at most."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as its file has it."""

    name: str
    """Of the alert, or of what is recorded."""

    alerts: bool
    expression: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    lasting: str
    """Its ``for``."""

    kept: str
    """Its ``keep_firing_for``."""

    group: str
    interval: str
    file: str

    @property
    def severity(self) -> str:
        return self.labels.get("severity", "")


def shipped() -> list[Traversable]:
    """The files that the package carries, in the order of their names."""
    folder = files("gpunode") / SHIPPED
    return sorted(
        (one for one in folder.iterdir() if one.name.endswith(".yaml")), key=lambda one: one.name
    )


def read_rules(folder: Path | None = None) -> list[Rule]:
    """The rules of a folder, or those that are shipped. Raises ``UsageError``."""
    if folder is None:
        return [
            rule
            for one in shipped()
            for rule in rules_of(one.read_text(encoding="utf-8"), one.name)
        ]
    try:
        found = sorted(folder.glob("*.yaml")) + sorted(folder.glob("*.yml"))
        texts = [(path, path.read_text(encoding="utf-8")) for path in found]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{folder}: {getattr(error, 'strerror', '') or error}") from error
    if not texts:
        raise UsageError(f"{folder}: has no file of rules (*.yaml)")
    return [rule for path, text in texts for rule in rules_of(text, str(path))]


def rules_of(text: str, name: str) -> Iterator[Rule]:
    """The rules in the text of a file. Raises ``UsageError``."""
    if len(text) > MAX_FILE:
        raise UsageError(f"{name}: more than {MAX_FILE} characters")
    try:
        content: Any = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
        for group in content["groups"]:
            for rule in group["rules"]:
                yield Rule(
                    _text(rule.get("alert") or rule["record"]),
                    "alert" in rule,
                    _text(rule["expr"]),
                    _texts(rule.get("labels")),
                    _texts(rule.get("annotations")),
                    _text(rule.get("for") or ""),
                    _text(rule.get("keep_firing_for") or ""),
                    _text(group["name"]),
                    _text(group.get("interval") or ""),
                    name,
                )
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{name}: not YAML: {str(error).splitlines()[0]}") from error
    except (TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{name}: no file of rules: {error}") from error


def _text(value: object) -> str:
    if not isinstance(value, str | int | float):
        raise TypeError("a list or mapping in place of a text")
    return str(value)


def _texts(value: Any) -> dict[str, str]:
    return {_text(key): _text(one) for key, one in (value or {}).items()}


def thresholds(rules: Sequence[Rule]) -> list[str]:
    """The names of the figures that a site may change."""
    return [one.labels.get("name", "") for one in rules if one.name == THRESHOLD]


def by_record(rules: Sequence[Rule]) -> dict[str, list[Rule]]:
    """The recording rules by what they record, thresholds apart."""
    found: dict[str, list[Rule]] = {}
    for one in rules:
        if not one.alerts and one.name != THRESHOLD:
            found.setdefault(one.name, []).append(one)
    return found


def underlying_records(expression: str, records: Mapping[str, Sequence[Rule]]) -> dict[str, int]:
    """The recorded series that an expression rests on, with how deep each lies, the nearest first.

    Of two ways to a series the longer one counts. A rule that reads itself ends the way.
    """
    deep: dict[str, int] = {}

    def look(text: str, depth: int, within: tuple[str, ...]) -> None:
        for name in names(text):
            if name in records and name not in within and deep.get(name, 0) < depth:
                deep[name] = depth
                for rule in records[name]:
                    look(rule.expression, depth + 1, (*within, name))

    look(expression, 1, ())
    return deep


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
