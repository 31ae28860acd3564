"""Text that is safe to give to a shell, to YAML or to Slurm, whatever tenants called their jobs.

What is left are ASCII letters, digits, spaces and ``. _ / @ + , -``. None of them means anything to
a shell between words, to YAML within a plain scalar or to ``scontrol``, quoted or not.
"""

from __future__ import annotations

import re

MAX_NAME = 253
"""Characters of a name, as many as a pod's may have.
https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#names"""

_NOT_OF_A_NAME = re.compile(r"[^A-Za-z0-9._/@+-]")
_NOT_OF_A_SENTENCE = re.compile(r"[^A-Za-z0-9._/@+,-]+")


def name(text: str) -> str:
    """A name as one word that is no option: every other character becomes ``_``."""
    shown = _NOT_OF_A_NAME.sub("_", text[:MAX_NAME])
    return re.sub(r"^[^A-Za-z0-9]", "_", shown)


def sentence(text: str, longest: int) -> str:
    """Words with one space between them, cut after a word where they are too long."""
    words = " ".join(_NOT_OF_A_SENTENCE.sub(" ", text).split())
    if len(words) <= longest:
        return words
    return words[: longest + 1].rpartition(" ")[0].rstrip(",") or words[:longest]
