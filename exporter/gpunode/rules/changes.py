"""What a site changes about the rules, as it writes it in a file (``docs/rules.md``)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import SchemaError

from gpunode.config.yaml_file import read_yaml
from gpunode.mistake import UsageError
from gpunode.rules.document import Document, Severity, Tier
from gpunode.text import escaped

DURATION = r"^[0-9]+[smh]$"
NAME_OF_SEVERITY = r"^[A-Za-z0-9_-]+$"
"""Such as P1 or sev-2; routes and dashboards join them with ``|``."""

ADDRESS = r"^(https?://.*)?$"
"""What a setting is whose name ends with ``_url``; any other text is a pattern."""

LONGEST_TEXT = 80
"""Characters of a name or value that a message repeats."""


def _matching(pattern: str, wanted: str) -> AfterValidator:
    def checked(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"{_told(value)} is not {wanted}")
        return value

    return AfterValidator(checked)


class Change(BaseModel):
    """What a site changes about a tier of an alert."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    threshold: Annotated[float | None, Field(allow_inf_nan=False)] = None
    after: Annotated[
        str, Field(alias="for"), _matching(DURATION, "a duration such as 30s, 10m or 2h")
    ] = ""
    severity: Severity | None = None

    def applied(self, tier: Tier) -> Tier:
        """The tier with this change."""
        return {
            "severity": self.severity or tier["severity"],
            "threshold": tier["threshold"] if self.threshold is None else self.threshold,
            "for": self.after or tier["for"],
        }


def _off(value: object) -> str:
    return "off" if value is False or value in ("off", "false", "no") else "changed"


T = TypeVar("T")
OrOff: TypeAlias = Annotated[
    Annotated[Literal[False], BeforeValidator(lambda _: False), Tag("off")]
    | Annotated[T, Tag("changed")],
    Discriminator(_off),
]
"""A change, or that something is not wanted; a file has every value as text."""


class Changes(BaseModel):
    """What a site changes; ``off`` for what is not wanted at all."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    alerts: dict[str, OrOff[dict[str, OrOff[Change]]]] = {}
    settings: dict[str, str | float] = {}
    severities: dict[
        Severity,
        Annotated[str, _matching(NAME_OF_SEVERITY, "made of letters, digits, - and _")],
    ] = {}
    """Other names for the label ``severity``."""

    keep_firing_for: bool = True
    """Whether to write ``keep_firing_for``, which Prometheus before 2.42 does not know."""

    def checked(self, document: Document) -> Changes:
        """These changes, if the rules have what they name. Raises ``UsageError``."""
        for alert, tiers in self.alerts.items():
            if alert not in document["alerts"]:
                known = _nearest(alert, document["alerts"])
                raise UsageError(f"alerts.{_told(alert)}: no alert has this name; {known}")
            has = [tier["severity"] for tier in document["alerts"][alert]]
            for severity, change in (tiers or {}).items():
                if severity not in has:
                    raise UsageError(
                        f"alerts.{alert}.{_told(severity)}: the alert has no such tier; choose "
                        f"from {', '.join(has)}"
                    )
                if change and change.threshold is not None:
                    where = f"alerts.{alert}.{severity}.threshold"
                    _check_share(where, change.threshold, document)
        called: dict[str, Severity] = {}
        for tier in get_args(Severity):
            name = self.severities.get(tier, tier)
            if name in called:
                raise UsageError(
                    f"severities: {called[name]} and {tier} are both {name}, so that two tiers of "
                    "an alert would be one; who is told is for the routes of Alertmanager to say"
                )
            called[name] = tier
        settings = {
            name: _as_default(name, value, document) for name, value in self.settings.items()
        }
        return self.model_copy(update={"settings": settings})

    def left(self, alerts: Mapping[str, Iterable[Tier]]) -> dict[str, dict[Severity, Tier]]:
        """The tiers that remain of each alert, by the severities that they have by default.

        Of tiers that get the same severity the first stays.
        """
        found: dict[str, dict[Severity, Tier]] = {}
        for alert, tiers in alerts.items():
            found[alert] = {}
            wanted = self.alerts.get(alert, {})
            if wanted is False:
                continue
            taken: set[Severity] = set()
            for tier in tiers:
                change = wanted.get(tier["severity"], Change())
                if change is False:
                    continue
                changed = change.applied(tier)
                if changed["severity"] not in taken:
                    found[alert][tier["severity"]] = changed
                    taken.add(changed["severity"])
        return found


def read(path: Path, document: Document) -> Changes:
    """The changes in a file. Raises ``UsageError``."""
    content = read_yaml(path)
    try:
        return Changes.model_validate(content).checked(document)
    except ValidationError as error:
        raise UsageError(f"{path}: {_first_mistake(error)}") from error
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _first_mistake(error: ValidationError) -> str:
    """Where the first mistake is, what it is, and what there may be instead."""
    first = error.errors()[0]
    where = [_told(str(part)) for part in first["loc"] if part not in ("off", "changed", "[key]")]
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        of = Changes if len(where) == 1 else Change
        keys = [field.alias or name for name, field in of.model_fields.items()]
        message = f"no such key; choose from {', '.join(keys)}"
    elif first["type"] in ("model_type", "dict_type"):
        wanted = "a mapping, or off" if len(where) > 1 else "a mapping"
        message = f"must be {wanted}, not {_told(str(first['input']))}"
    elif where[0] == "settings":
        where, message = where[:2], "must be a text or a number"
    return f"{'.'.join(where)}: {message}"


def _check_share(where: str, figure: float, document: Document) -> None:
    """Raise ``UsageError`` for a figure that should be a share of 1 and is none."""
    if where not in document["shares"] or 0 <= figure <= 1:
        return
    instead = f"did you mean {figure / 100:g}?" if 1 < figure <= 100 else "it is from 0 to 1"
    raise UsageError(f"{where}: {figure:g} is no share of 1: {instead}")


def _as_default(name: str, value: str | float, document: Document) -> str | float:
    """A setting of the kind that it has by default. Raises ``UsageError``."""
    settings = document["settings"]
    if name not in settings:
        known = _nearest(name, settings)
        raise UsageError(f"settings.{_told(name)}: no setting has this name; {known}")
    if isinstance(settings[name], str):
        text = str(value)
        if name.endswith("_url"):
            if not re.match(ADDRESS, text):
                raise UsageError(
                    f"settings.{name}: {_told(text)} does not begin with http:// or https://"
                )
        elif why := _no_pattern(text):
            raise UsageError(f"settings.{name}: {_told(text)} is no pattern: {why}")
        return text
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"settings.{name}: must be a number, such as {settings[name]}")
    _check_share(f"settings.{name}", number, document)
    return number


def _no_pattern(text: str) -> str:
    """Why a text is no pattern (RE2), as Prometheus takes them; empty if it is one."""
    try:
        # Its engine is RE2's offspring, without look-around and backreferences as well:
        # https://docs.rs/regex
        TypeAdapter(Annotated[str, Field(pattern=text)])
    except SchemaError as error:
        return str(error).rpartition("error: ")[2]
    return ""


def _nearest(name: str, known: Iterable[str]) -> str:
    """The name that somebody may have meant."""
    found = get_close_matches(name[:LONGEST_TEXT], known, n=1)
    return f"did you mean {found[0]}?" if found else "docs/thresholds.md lists them"


def _told(text: str) -> str:
    return escaped(text, LONGEST_TEXT)
