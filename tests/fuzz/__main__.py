"""Fuzzes parsers for some time each, one after another, and prints what came of it.

python -m tests.fuzz [--seconds N] [PARSER...]

What fails a parser is kept in ``tests/fuzz/found/PARSER``, where every run of the tests reads it;
inputs that reached new code are kept in ``.fuzz``, so that the next run begins with them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.mutations import WORD, WORDS
from tests.fuzz.table import Parser, named

FOUND_FOLDER = Path(__file__).with_name("found")
KEPT_FOLDER = Path(".fuzz")

SLOW = 10
"""Seconds for one input after which it counts as a finding."""

MEMORY = 1024
"""Megabytes of the process above which an input counts as a finding."""

STATE = re.compile(r"^#(?P<inputs>\d+)\s.*?cov: (?P<reached>\d+)", re.MULTILINE)
DONE = re.compile(r"stat::number_of_executed_units: (\d+)")


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    arguments.add_argument("--seconds", type=int, default=600, help="for each parser")
    arguments.add_argument("parsers", nargs="*", metavar="PARSER")
    given = arguments.parse_args()
    return max([_fuzz(parser, given.seconds) for parser in named(given.parsers)], default=0)


def _fuzz(parser: Parser, seconds: int) -> int:
    """Fuzz one parser and print one line; 1 if something was found."""
    found, kept = FOUND_FOLDER / parser.name, KEPT_FOLDER / parser.name
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        begin = Path(scratch) / "begin"
        begin.mkdir()
        for at, seed in enumerate(parser.seeds):
            (begin / str(at)).write_bytes(seed)
        words = Path(scratch) / "words"
        words.write_text("".join(f'"{_quoted(word)}"\n' for word in _words(parser)))
        command = [sys.executable, "-m", "tests.fuzz.coverage", parser.name]
        options = {
            "max_total_time": seconds,
            "max_len": max(4096, *(len(seed) for seed in parser.seeds)),
            "timeout": SLOW,
            "rss_limit_mb": MEMORY,
            "dict": words,
            "artifact_prefix": Path(scratch) / "found-",
            "print_final_stats": 1,
        }
        command += [f"-{name}={value}" for name, value in options.items()]
        folders = [str(kept), str(begin), *([str(found)] if found.exists() else [])]
        ran = subprocess.run(
            [*command, *folders], capture_output=True, text=True, errors="replace", check=False
        )
        new = sorted(Path(scratch).glob("found-*"))
        for file in new:
            found.mkdir(parents=True, exist_ok=True)
            (found / file.name.removeprefix("found-")).write_bytes(file.read_bytes())
    print(_line(parser.name, ran.stderr, len(new)), flush=True)
    if ran.returncode:
        print(ran.stdout[-4000:], ran.stderr[-2000:], sep="\n", flush=True)
    return int(bool(ran.returncode))


def _line(name: str, log: str, found: int) -> str:
    """How many inputs were tried, and the last of them that reached a place in the code first."""
    states = [(int(state["inputs"]), int(state["reached"])) for state in STATE.finditer(log)]
    reached = max((place for _, place in states), default=0)
    flat = min((inputs for inputs, place in states if place == reached), default=0)
    done = DONE.search(log)
    tried = int(done[1]) if done else max((inputs for inputs, _ in states), default=0)
    return f"{name:12} {tried:10,} inputs, {reached:5} places, none since {flat:10,}, {found} found"


def _words(parser: Parser) -> list[bytes]:
    """Words of the seeds for libFuzzer to insert, and those that stand well for any."""
    found = [word for seed in parser.seeds for word in WORD.findall(seed)]
    usual = dict.fromkeys(word for word in found if 1 < len(word) < 40)
    return [*list(usual)[:500], *(word for word in WORDS if 0 < len(word) < 40)]


def _quoted(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    sys.exit(main())
