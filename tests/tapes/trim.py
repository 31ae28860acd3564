"""Reduces a recorded tape to its GPUs and their processes: ``trim.py TAPE RESULT [AGAIN_FROM]``.

What else a node tells is not needed to judge what its processes did, and identifies the machine.
Where what the tape ends in lasts, AGAIN_FROM says from where on it is played again.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path

KEPT_FILES = re.compile(r"/proc/(\d+/(task(/.*)?|stat|status|io|wchan)|stat)$")
CALLS = {"environment", "program", "listens"}


def keeps(line: dict[str, object]) -> bool:
    """Whether a line of a tape is about a GPU, or about what a process on it does."""
    of, call = str(line.get("of", "")), line.get("call")
    return "gpunode_tape" in line or call in CALLS or of[0] != "/" or bool(KEPT_FILES.match(of))


def main(tape: Path, result: Path, again_from: float | None = None) -> None:
    """Write the lines of a tape that are kept."""
    with gzip.open(tape, "rt") as file:
        lines = [line for line in file if keeps(json.loads(line))]
    if again_from is not None:
        lines[0] = json.dumps({**json.loads(lines[0]), "again_from": again_from}) + "\n"
    result.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(float, sys.argv[3:]))
