"""Helpers as they run on a node: programs of their own, with the privilege of their work."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gpunode.node.privileged import Helper
from tests.conftest import until

WORKS = ("files", "sockets", "network")


@contextmanager
def helper(
    work: str, folder: Path, *options: str, before: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """A helper that answers this user, at its socket in a folder; ``before`` runs its command."""
    command = [
        *before,
        sys.executable,
        "-m",
        "gpunode",
        "helper",
        work,
        f"--folder={folder}",
        *options,
    ]
    with subprocess.Popen(command) as child:
        try:
            until(lambda: listens(folder / f"{work}.sock") or child.poll() is not None)
            assert child.poll() is None
            yield child
        finally:
            child.kill()


def listens(path: Path) -> bool:
    """Whether a helper listens, whomever it answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        return probe.connect_ex(str(path)) == 0


@contextmanager
def helpers(*options: str, works: tuple[str, ...] = WORKS) -> Iterator[Path]:
    """A folder with the sockets of several."""
    with tempfile.TemporaryDirectory(prefix="gpunode-") as name, ExitStack() as running:
        folder = Path(name)
        folder.chmod(0o755)
        for work in works:
            of_work = options if work == "sockets" or not options else options[:1]
            running.enter_context(helper(work, folder, *of_work))
        yield folder


def ask(folder: Path, work: str, verb: str, *arguments: str) -> bytes:
    """What a helper answers. Raises ``OSError``."""
    with one_at(folder / f"{work}.sock") as one:
        return one.ask(verb, *arguments)[0]


@contextmanager
def one_at(path: Path) -> Iterator[Helper]:
    """A helper, whose connections end in the end."""
    one = Helper(str(path))
    try:
        yield one
    finally:
        close(one)


def close(one: Helper) -> None:
    """End the connections that are kept for the next who ask."""
    for connection in one._idle:
        connection.close()
    one._hang_up()


BECOME = """
import os, sys
from pathlib import Path
from gpunode.helper.tcp import page
from gpunode.node.local import LocalNode
from gpunode.node.kubelet import podresources_pb2, unary
from gpunode.node import stacks
from gpunode.node.privileged import Helper
stacks.parse("[]")  # loads what this user may not read where Python is root's
os.setgroups([])
os.setresgid(*[int(sys.argv[1])] * 3)
os.setresuid(*[int(sys.argv[1])] * 3)
"""
"""Not by the interpreter's options: another user may not be able to load its modules."""


def as_user(user: int, code: str, *arguments: str) -> str:
    """What a program prints that another user without privilege runs."""
    command = [sys.executable, "-W", "ignore", "-c", BECOME + code, str(user), *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
