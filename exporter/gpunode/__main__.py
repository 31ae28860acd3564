"""``python -m gpunode``."""

from gpunode.cli import main

main()
