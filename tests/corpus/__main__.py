"""Prints how much of the corpus is understood; with the name of a family, what of it is not."""

from __future__ import annotations

import sys
from collections import Counter
from typing import get_args

from tests.corpus.families import FAMILIES, first_try
from tests.corpus.written import Fate

for name, family in {**FAMILIES, "fresh samples, at the first try": first_try}.items():
    outcomes = list(family())
    fates = Counter(one.fate for one in outcomes)
    print(f"{name}: " + ", ".join(f"{fates[fate]} {fate}" for fate in get_args(Fate)))
    for one in outcomes:
        if name in sys.argv[1:] and one.fate != "right":
            print(f"  {one.fate}: {one.entry}")
