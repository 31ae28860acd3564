"""A tenant: a real process, in a root of its own if it has one, with a log that a source reads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpunode.config.daemon import Settings
from gpunode.helper.inside import AT_SECURE, PAIR
from gpunode.holders.census import Census
from gpunode.nccl.log import NcclLogs
from tests.machine import MachineGpu, OneGpu, exported, read_source

USER, VICTIM = 1000, 1234
SECRET = "correct-horse-battery-staple"
LOG = f"""\
{SECRET}:1:1 [0] NCCL INFO NCCL version 2.28.9 {SECRET}
{SECRET}:1:1 [0] NCCL INFO fn comm 0x5 rank 0 nranks 2 busId 1b000 commId 0xab - Init START
{SECRET}:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read {SECRET}
{SECRET}:1:1 [0] NCCL WARN {SECRET}
password={SECRET}
"""


@contextmanager
def tenant(root: Path | None, user: int = USER, **environment: str) -> Iterator[int]:
    """A process of a user, in a root of its own if there is one; it waits."""
    code = (
        "import os,sys\n"
        "root,user=sys.argv[1:]\n"
        "if root: os.chroot(root); os.chdir('/home')\n"
        "os.setgroups([]); os.setgid(int(user)); os.setuid(int(user))\n"
        "print('ready',flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(root or ""), str(user)]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            yield child.pid
        finally:
            child.kill()


def logs_of(*pids: int) -> str:
    """What the source of NCCL's logs exports for these processes."""
    gpu = MachineGpu(0, "GPU-aa", "0", pids)
    return exported(read_source(NcclLogs(Census(OneGpu(*pids)), gpu, Settings())))


def log_of(pid: int) -> str:
    return LOG.replace(":1:1 ", f":{pid}:{pid} ")


def owned(path: Path, pid: int) -> Path:
    path.write_text(log_of(pid))
    os.chown(path, USER, USER)
    return path


def root_with_home(folder: Path) -> Path:
    """The root of a container, whose user has a home."""
    home = folder / "root/home"
    home.mkdir(parents=True)
    os.chown(home, USER, USER)
    return home.parent


def says_who(process: Path) -> None:
    """Add to a process's folder what says that it has been one user since it began."""
    user = "\t65534" * 4
    with (process / "status").open("a") as file:
        file.write(f"Uid:{user}\nGid:{user}\n")
    (process / "auxv").write_bytes(PAIR.pack(AT_SECURE, 0))


SERVES = f"""
import os, socket, subprocess
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
os.setresgid(*[{VICTIM}] * 3)
os.setresuid(*[{VICTIM}] * 3)
one, other = (socket.create_server(("127.0.0.1", port)) for port in (8000, 8001))
child = os.fork()
listener = one if child else other
(other if child else one).close()
print(child, flush=True) if child else None
while True:
    connection, _ = listener.accept()
    asked = connection.recv(999)
    connection.sendall(b"its figures" if child and b"GET /metrics " in asked else b"{SECRET}")
    connection.close()
"""


@contextmanager
def servers() -> Iterator[tuple[int, int]]:
    """A process with figures at port 8000 of a network of its own, and another of its user beside
    it, which keeps a secret at 8001."""
    command = ["unshare", "--net", sys.executable, "-c", SERVES]
    with subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0) as child:
        try:
            assert child.stdout is not None
            yield child.pid, int(child.stdout.readline())
        finally:
            os.killpg(child.pid, signal.SIGKILL)
