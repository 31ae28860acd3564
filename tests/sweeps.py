"""Sweeps: tests with a case for all that there is of something, of which each commit plays some.

Of the cases of a test that is marked ``@pytest.mark.sweep(N)``, a commit plays one in N. Its hash
says which, so that another commit plays others. The rest are marked ``nightly``: ``make nightly``
runs those, and whoever names a test runs all of it.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def turn() -> int:
    """A number that each commit has for itself; zero outside of a repository.

    In a container, the checkout may be another user's:
    https://git-scm.com/docs/git-config#Documentation/git-config.txt-safedirectory
    """
    asked = ["git", "-c", f"safe.directory={ROOT}", "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        ran = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(ran.stdout, 16)


def mark_nightly(items: Iterable[pytest.Item], turn: int) -> None:
    """Mark the cases of sweeps whose turn it is not."""
    cases: Counter[str] = Counter()
    for item in items:
        sweep = item.get_closest_marker("sweep")
        if sweep is None:
            continue
        test = item.nodeid.partition("[")[0]
        if cases[test] % sweep.args[0] != turn % sweep.args[0]:
            item.add_marker("nightly")
        cases[test] += 1
