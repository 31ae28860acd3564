"""The ways in which ranks hang for ``make bench BENCH=hangs``, without a GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.hangs import beat
from gpunode.node.local import LocalNode
from gpunode.verdict.where import reason_of
from tests.conftest import until
from tests.needs import as_root, need

STALLED = """
import signal, sys, time
from pathlib import Path
from bench.hangs import beat
beat.begin(Path(sys.argv[1]), Path(sys.argv[2]))
print(flush=True)
time.sleep(1000)
"""


def test_a_process_that_is_stopped_misses_beats(tmp_path: Path) -> None:
    need("cc")
    library, shared = beat.build(tmp_path), tmp_path / "beats"
    command = [sys.executable, "-c", STALLED, str(library), str(shared)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        beats = beat.Beats(shared)
        with beats.longest() as found:
            child.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED)
            time.sleep(0.2)
            child.send_signal(signal.SIGCONT)
        child.kill()
    assert found[0] >= 0.2


ON_A_FILE_SERVER = """
import sys
from pathlib import Path
from bench.hangs.ways import Around, mounted
with mounted(Around(Path(sys.argv[1]), Path())) as folder:
    with open(folder / "file", sys.argv[2], buffering=0) as file:
        file.read(4096) if sys.argv[2] == "rb" else file.write(bytes(1 << 20))
"""


@as_root
@pytest.mark.integration
@pytest.mark.parametrize("mode", ["rb", "wb"])
def test_a_file_server_that_is_stopped_or_slow_is_told_from_the_kernel(
    mode: str, tmp_path: Path
) -> None:
    if not Path("/dev/fuse").exists():
        pytest.skip("no /dev/fuse")
    node = LocalNode(Path("/"))
    with subprocess.Popen([sys.executable, "-c", ON_A_FILE_SERVER, str(tmp_path), mode]) as child:

        def reason() -> str:
            found = reason_of(node.stacks(child.pid))
            return found.name if found else ""

        until(lambda: reason() == "storage")
        for one in Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split():
            subprocess.run(["kill", "-KILL", one], check=True)
        child.kill()
