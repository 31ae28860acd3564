"""What GPU hours cost and which teams pay for them, as a site writes it in a file."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from gpunode.config.yaml_file import read_yaml
from gpunode.mistake import UsageError, first_mistake
from gpunode.report.history import JobKey
from gpunode.text import escaped

HIGHEST = 1e9
MAX_NAME = 80
MAX_TEAMS = 1000

Price = Annotated[float, Field(ge=0, le=HIGHEST, allow_inf_nan=False)]


def _in_a_line(text: str) -> str:
    if not text or len(text) > MAX_NAME or not text.isprintable():
        raise ValueError(f"{escaped(text, MAX_NAME)!r} is not 1 to {MAX_NAME} printable characters")
    return text


Address = Annotated[str, Field(pattern=r"^[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+$", max_length=254)]
Name = Annotated[str, AfterValidator(_in_a_line)]


class Team(BaseModel):
    """Whose jobs are a team's, by names or patterns with ``*``, and who gets its bill."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    namespaces: tuple[Name, ...] = ()
    users: tuple[Name, ...] = ()
    accounts: tuple[Name, ...] = ()
    mail: tuple[Address, ...] = ()

    def has(self, job: JobKey, account: str) -> bool:
        """Whether a job is this team's."""
        return (
            _any(self.accounts, account)
            or _any(self.namespaces, job.owner_namespace)
            or _any(self.users, job.user)
        )


class Billing(BaseModel):
    """Prices of a GPU hour and the teams of a site; without a file there are none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sender: Annotated[Address | None, Field(alias="from")] = None
    """Who sends the bills."""

    currency: Annotated[str, Field(pattern=r"^[^\s\d\x00-\x1f<>&]{0,8}$")] = ""
    price: Price | None = None
    """Of a GPU hour of a model that ``prices`` does not have."""

    prices: Mapping[Name, Price] = {}
    """By model of GPU, as ``gpunode_gpu_info`` names it, or by a pattern with ``*``."""

    teams: Annotated[Mapping[Name, Team], Field(max_length=MAX_TEAMS)] = {}

    def team(self, job: JobKey, account: str) -> str:
        """The first team that a job is of; empty for none."""
        return next((name for name, team in self.teams.items() if team.has(job, account)), "")

    def price_of(self, model: str) -> float | None:
        """The price of a GPU hour of a model; None if the file has none."""
        for pattern, price in self.prices.items():
            if fnmatchcase(model, pattern):
                return price
        return self.price


def parse(path: Path) -> Billing:
    """What a file of prices and teams says. Raises ``UsageError``."""
    content = read_yaml(path)
    try:
        return Billing.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{path}: {escaped(first_mistake(error), 3 * MAX_NAME)}") from error


def _any(patterns: tuple[str, ...], name: str) -> bool:
    return bool(name) and any(fnmatchcase(name, pattern) for pattern in patterns)
