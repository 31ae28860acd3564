"""A mistake of the user, in a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class UsageError(Exception):
    """A mistake that the user can correct; ``str()`` is one line that says what and where."""


def first_mistake(error: ValidationError) -> str:
    """Where the first mistake is, and what it is."""
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] in ("model_type", "model_attributes_type", "dict_type"):
        message = "takes keys with values below it"
    return f"{name}: {message}" if name else message
