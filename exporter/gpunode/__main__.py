"""``python -m gpunode`` and the ``gpunode`` command."""

from __future__ import annotations

import os
import resource
import sys
from typing import NoReturn

MIN_OPEN_FILES = 16
"""Open files with which the daemon starts and answers a scrape; each source takes more."""


def main() -> NoReturn:
    """Run a command.

    Exits with 2 where it may open too few files, also to load its own code.

    Ends at once: a thread may be in a driver that hangs, and an ordinary exit would tear down the
    driver's code under it.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= files < MIN_OPEN_FILES:
        few = f"{files} files may be open, and it takes {MIN_OPEN_FILES} at least"
        print(f"gpunode: {few}: raise its LimitNOFILE (ulimit -n)", file=sys.stderr)
        sys.exit(2)
    if sys.argv[1:2] == ["helper"]:  # before anything that parses is loaded
        from gpunode.helper.serve import main as serve

        serve(sys.argv[2:])
    from gpunode.cli.main import main as run

    status: object = 0
    try:
        run()
    except SystemExit as end:
        status = end.code or 0
    os._exit(status if isinstance(status, int) else 2)


if __name__ == "__main__":
    main()
