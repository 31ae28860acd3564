"""``python -m gpunode`` and the ``gpunode`` command."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from gpunode import __version__


def main() -> NoReturn:
    """Run a command; the base install contains only the training client and knows its version.

    Ends at once: a thread may be in a driver that hangs, and an ordinary exit would tear down the
    driver's code under it.
    """
    if sys.argv[1:2] == ["helper"]:  # before anything that parses is loaded
        from gpunode.helper.serve import main as serve

        serve(sys.argv[2:])
    try:
        from gpunode.cli.commands import main as run
    except ModuleNotFoundError as error:
        if sys.argv[1:] == ["--version"]:
            print(f"gpunode {__version__}")
            print(
                "Only the client for training code is here. For the rest: install gpunode[exporter]"
            )
            sys.exit(0)
        print(f"gpunode: {error.name} is missing: install gpunode[exporter]", file=sys.stderr)
        sys.exit(2)
    status: object = 0
    try:
        run()
    except SystemExit as end:
        status = end.code or 0
    os._exit(status if isinstance(status, int) else 2)


if __name__ == "__main__":
    main()
