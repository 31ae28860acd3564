"""Fuzzes one parser, led by coverage, until libFuzzer's options say so; ``make fuzz`` runs it.

python -m tests.fuzz.coverage PARSER [OPTION...] [FOLDER...]

https://github.com/google/atheris and https://llvm.org/docs/LibFuzzer.html#options
"""

from __future__ import annotations

import logging
import random
import sys

import atheris

with atheris.instrument_imports(include=["gpunode", "h2", "hpack", "hyperframe", "json", "yaml"]):
    from tests.fuzz.mutations import mutated
    from tests.fuzz.table import named


def main() -> None:
    (parser,) = named(sys.argv[1:2])
    logging.disable()

    def mutate(data: bytes, longest: int, seed: int) -> bytes:
        """Half of the time as libFuzzer does, which knows what it saw compared."""
        chance = random.Random(seed)
        if chance.random() < 0.5:
            return bytes(atheris.Mutate(data, longest))
        return mutated(data, parser.seeds, chance)[:longest]

    atheris.Setup([sys.argv[0], *sys.argv[2:]], parser.tolerates, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
