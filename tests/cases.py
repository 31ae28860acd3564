"""One test of many cases: all are tried, and those that fail are named."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest


def with_each(cases: Iterable[object]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Have a test try each case in turn: a tuple as its arguments, all else as the only one.

    Parameters of pytest cost more than the cases themselves, where these are small and many.
    """

    every = tuple(cases)

    def of(test: Callable[..., None]) -> Callable[[], None]:
        def try_each() -> None:
            failed = []
            for case in every:
                try:
                    test(*case) if isinstance(case, tuple) else test(case)
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001
                    failed.append(f"{case!r}: {type(error).__name__}: {error}")
            assert every, "no case"
            assert not failed, "\n\n".join([f"{len(failed)} of {len(every)} cases fail:", *failed])

        try_each.__name__, try_each.__doc__ = test.__name__, test.__doc__
        try_each.__module__, try_each.__qualname__ = test.__module__, test.__qualname__
        return try_each

    return of
