"""``python -m gpunode`` and the ``gpunode`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run a command; the base install contains only the training client and has none."""
    try:
        from gpunode.cli.commands import main as run
    except ModuleNotFoundError as error:
        print(f"gpunode: {error.name} is missing: pip install 'gpunode[exporter]'", file=sys.stderr)
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
