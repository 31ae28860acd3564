"""The extras of the package: which of them has a library that is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpunode.mistake import UsageError


@contextmanager
def needing(extra: str, what: str) -> Iterator[None]:
    """Import what an extra of the package has. Raises ``UsageError`` where it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "gpunode":
            raise
        raise UsageError(
            f"{what}: needs the extra {extra}: pip install 'gpunode[{extra}]' "
            f"({error.name} is not installed)"
        ) from error
