"""The capabilities of the daemon itself, as root gives them to one that it starts by hand."""

from __future__ import annotations

from gpunode.helper.capability import ALL, NUMBERS, call, libc, mask, sets


def permitted_capabilities() -> list[str]:
    """Those of ``ALL`` that this thread may use. Raises ``OSError``."""
    _, words = sets()
    has = words[0].permitted | words[1].permitted << 32
    return [name for name, number in ALL.items() if has >> number & 1]


def lower() -> None:
    """Take the capabilities in ``NUMBERS`` from this thread and those that it starts from now on.

    Raises ``OSError``.
    """
    header, words = sets()
    words[0].effective &= ~mask(NUMBERS)
    call(libc.capset, header, words)
