"""Runs random programs and keeps their windows: ``python -m bench.truth.generate OUT``.

Each GPU runs one program after the other, beside a daemon that writes every window; programs of two
GPUs come first. The folder gets ``windows-GPU.jsonl.gz`` with what the sensors measured and what
the kernels did, and ``verdicts-GPU.jsonl.gz`` with what the daemon said of each program.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from bench.ledger import AFTERWARDS, CLOSE, table
from bench.truth.drawn import FAMILIES
from bench.truth.kept import ResultStore
from bench.truth.lane import WARM, Lane
from bench.truth.outcome import models
from bench.truth.recorded_daemon import recorded_daemon
from tests.windows.programs import programs

LENGTHS = {"alone": 10, "shared": 3, "launcher": 2, "pair": 6, "no_p2p": 3}
"""Programs of a series by its room in ``drawn``; 2 of others."""

PAIRS = 0.3
"""Share of the time for programs of two GPUs."""

LAST = 12.0
"""Seconds before the end from which no program starts."""


def drawn_from(families: Sequence[str], seed: int) -> Iterator[str]:
    """Programs without end: every family once in random order, then again with other seeds."""
    chance = random.Random(f"{seed} {families}")
    number = seed * 1000
    while True:
        for family in chance.sample(families, len(families)):
            yield f"{family}:{number}"
            number += 1


def planned(families: Sequence[str], seed: int, most: int) -> Iterator[list[str]]:
    """Series without end, each of at most so many programs that can share a process."""
    rooms: dict[str, list[str]] = defaultdict(list)
    for family in families:
        rooms[FAMILIES[family].room].append(family)
    programs = {room: drawn_from(those, seed) for room, those in rooms.items()}
    while True:
        for number, room in enumerate(rooms):
            if number and "alone" in rooms:
                yield _next(programs, "alone", most)
            if room != "alone" or len(rooms) == 1:
                yield _next(programs, room, most)


def _next(programs: Mapping[str, Iterator[str]], room: str, most: int) -> list[str]:
    return list(islice(programs[room], min(most, LENGTHS.get(room, 2))))


def run(
    out: Path,
    seconds: float,
    seed: int,
    families: Sequence[str],
    pairs: float = PAIRS,
    most: int = 10,
    watch: float = WARM,
) -> ResultStore:
    """Run random programs for about that long on all GPUs."""
    begin = time.monotonic()
    gpus = models()
    if not gpus:
        sys.exit("no GPU that NVIDIA's driver knows")
    count = len(gpus)
    kept = ResultStore(out, gpus[0])
    of_pairs = [name for name in families if FAMILIES[name].gpus == 2 <= count]
    of_one = [name for name in families if FAMILIES[name].gpus == 1]
    end = begin + seconds - LAST
    with recorded_daemon("--log.level=error") as (watched, windows):
        lanes = []
        for gpu in range(count) if of_one else ():
            plan = planned(of_one, seed + 100 * gpu, most)
            lanes.append(Lane(gpu, plan, watched, windows, kept, watch))
            lanes[-1].load()
        if of_pairs:
            share = pairs if of_one else 1.0
            lane = Lane(0, planned(of_pairs, seed, most), watched, windows, kept, watch)
            lane.run(time.monotonic() + share * (end - time.monotonic()))
        running = [threading.Thread(target=lane.run, args=(end,)) for lane in lanes]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--pairs", type=float, default=PAIRS, help="share of the time for two GPUs")
    parser.add_argument("--most", type=int, default=10, help="programs that share a process")
    parser.add_argument("--watch", type=float, default=WARM, help="seconds before the trace")
    asked = parser.parse_args()
    families = re.split(r"[,\s]+", asked.families.strip())
    if unknown := [name for name in families if name not in FAMILIES]:
        parser.error(f"no family is called {', '.join(unknown)}")
    kept = run(asked.out, asked.seconds, asked.seed, families, asked.pairs, asked.most, asked.watch)
    print(f"{len(kept.failed)} programs failed: {' '.join(kept.failed)}")
    found = programs(kept.windows)
    for line in table({AFTERWARDS: found}):
        print(line)
    for one in found:
        if one.error() > CLOSE:
            print(f"{one.name:30} {one.worst}")
    sys.stdout.flush()
    os._exit(0)  # a thread may still wait for a program


if __name__ == "__main__":
    main()
