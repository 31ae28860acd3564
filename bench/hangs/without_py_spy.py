"""gpunode on a node without py-spy: ``python -m bench.hangs.without_py_spy run``."""

from __future__ import annotations

from gpunode.__main__ import main
from gpunode.helper import stacks

if __name__ == "__main__":
    stacks.FOLDERS = ()
    main()
