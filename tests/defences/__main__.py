"""Removes the defences one by one and lists those that no test misses."""

from __future__ import annotations

import sys

from tests.defences.removal import without
from tests.defences.table import DEFENCES


def main(names: list[str]) -> int:
    """Print a line for each defence; returns how many no test misses."""
    wrong = 0
    for defence in DEFENCES:
        if names and defence.name not in names:
            continue
        if not defence.is_there:
            outcome, said = "not there", f"{defence.file} has not once: {defence.text}"
        else:
            outcome, said = without(defence)
        print(f"{outcome:9} {defence.name}", flush=True)
        if outcome != "missed":
            wrong += 1
            print(said, file=sys.stderr)
    return wrong


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
