"""Files that tenants name are opened inside their roots, and only if they may read them.

The tenants are real processes with a root of their own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpunode.helper import tcp
from gpunode.nccl.log import line_of
from gpunode.node import patience
from gpunode.node.local import LocalNode
from gpunode.node.privileged import PrivilegedReads
from tests.daemon import TIMEOUT
from tests.needs import as_root
from tests.tenant import LOG, logs_of, owned, root_with_home, tenant

pytestmark = as_root


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a file as long as a busy machine takes."""
    monkeypatch.setattr(patience, "TIMEOUT", TIMEOUT)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return root_with_home(tmp_path)


@pytest.fixture
def host_file(tmp_path: Path) -> Path:
    """A log outside that root."""
    path = tmp_path / "host.log"
    path.write_text(LOG)
    return path


@pytest.mark.parametrize("name", ["/home/nccl.log", "nccl.log", "//home/./nccl.log"])
def test_the_log_of_a_process_is_read_inside_its_root(root: Path, name: str) -> None:
    with tenant(root, NCCL_DEBUG_FILE=name) as pid:
        owned(root / "home/nccl.log", pid)
        assert 'communicator="ab"' in logs_of(pid)


def absolute_link(root: Path, host_file: Path) -> str:
    (root / "home/log").symlink_to(host_file)
    return "/home/log"


def link_to_a_log_of_his_own(root: Path, host_file: Path) -> str:  # noqa: ARG001
    """Whoever may write to the folder of a log could make it lead to another file of its user."""
    (root / "home/other").write_text(LOG)
    (root / "home/log").symlink_to("other")
    return "/home/log"


def relative_link(root: Path, host_file: Path) -> str:
    (root / "home/log").symlink_to(f"../../{host_file.name}")
    return "/home/log"


def link_to_a_folder(root: Path, host_file: Path) -> str:
    (root / "home/folder").symlink_to(host_file.parent)
    return f"/home/folder/{host_file.name}"


def dots(root: Path, host_file: Path) -> str:  # noqa: ARG001
    return f"/../../{host_file.name}"


def dots_from_the_working_directory(root: Path, host_file: Path) -> str:  # noqa: ARG001
    return f"../../{host_file.name}"


def link_from_the_working_directory(root: Path, host_file: Path) -> str:
    (root / "home/log").symlink_to(host_file)
    return "log"


def of_another_user(root: Path, host_file: Path) -> str:  # noqa: ARG001
    (root / "home/log").write_text(LOG)
    (root / "home/log").chmod(0o600)
    return "/home/log"


def of_its_group_only(root: Path, host_file: Path) -> str:  # noqa: ARG001
    (root / "home/log").write_text(LOG)
    (root / "home/log").chmod(0o640)
    return "/home/log"


def in_a_folder_of_another_user(root: Path, host_file: Path) -> str:  # noqa: ARG001
    (root / "private").mkdir(mode=0o700)
    (root / "private/log").write_text(LOG)
    return "/private/log"


def a_folder(root: Path, host_file: Path) -> str:  # noqa: ARG001
    return "/home"


def a_terminal(root: Path, host_file: Path) -> str:  # noqa: ARG001
    os.mknod(root / "home/ptmx", stat.S_IFCHR | 0o666, os.makedev(5, 2))
    return "/home/ptmx"


@pytest.mark.parametrize(
    "attack",
    [
        absolute_link,
        link_to_a_log_of_his_own,
        relative_link,
        link_to_a_folder,
        dots,
        dots_from_the_working_directory,
        link_from_the_working_directory,
        of_another_user,
        of_its_group_only,
        in_a_folder_of_another_user,
        a_folder,
        a_terminal,
    ],
)
def test_a_path_leads_nowhere_that_its_process_may_not_read(
    root: Path, host_file: Path, attack: Callable[[Path, Path], str]
) -> None:
    with tenant(root, NCCL_DEBUG_FILE=attack(root, host_file)) as pid:
        assert logs_of(pid) == ""


@pytest.mark.parametrize("name", ["{host}", "/proc/{pid}/root{host}", "/proc/self/environ"])
def test_a_tenant_without_a_root_of_his_own_reads_nothing_of_others(
    host_file: Path, name: str
) -> None:
    host_file.chmod(0o600)
    with tenant(None, NCCL_DEBUG_FILE=name.format(host=host_file, pid=os.getpid())) as pid:
        assert logs_of(pid) == ""


def test_a_pipe_is_not_opened(root: Path) -> None:
    """Opening would let its writer go on, and reading would take what is for another."""
    os.mkfifo(root / "home/pipe", 0o666)
    with tenant(root, NCCL_DEBUG_FILE="/home/pipe") as pid:
        writer = threading.Thread(target=(root / "home/pipe").write_text, args=("x",))
        writer.start()
        assert logs_of(pid) == ""
        writer.join(0.3)
        assert writer.is_alive()
        assert (root / "home/pipe").read_text() == "x"
        writer.join()


def test_a_link_in_place_of_shared_memory_is_not_followed(root: Path) -> None:
    (root / "dev").mkdir()
    (root / "dev/shm").symlink_to("/home")
    with tenant(root) as pid, pytest.raises(OSError, match="there is a link on its path"):
        LocalNode(Path("/")).filesystem(f"/proc/{pid}/root/dev/shm")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("/home/round", "there is a link on its path"),
        ("/home" + "/down" * 300, "File name too long"),
        ("../host.log", "no path may lead above"),
        ("out/log", "there is a link on its path"),
    ],
)
def test_a_path_without_end_is_given_up_and_leaves_no_descriptor(
    root: Path, name: str, why: str
) -> None:
    (root / "home/round").symlink_to("round")
    (root / "home/out").symlink_to("/home")
    deep = root / "home"
    for _ in range(300):
        deep /= "down"
        deep.mkdir()
    with tenant(root) as pid:
        start = "root" if name.startswith("/") else "cwd/"
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(OSError, match=why):
            LocalNode(Path("/")).lines(f"/proc/{pid}/{start}{name}", 0, line_of(1))
        assert len(os.listdir("/proc/self/fd")) == before


def test_who_looks_where_a_process_stands_waits_for_who_looked_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """py-spy refuses a second; the daemon's look at a stall must not fail because somebody asks."""
    looking: list[int] = []
    most = []

    def python(_self: PrivilegedReads, pid: str) -> bytes:
        looking.append(int(pid))
        most.append(len(looking))
        time.sleep(0.05)
        looking.pop()
        return b"[]"

    monkeypatch.setattr(PrivilegedReads, "python", python)
    node = LocalNode(Path("/"))
    asks = [threading.Thread(target=node.stacks, args=(os.getpid(),)) for _ in range(4)]
    with subprocess.Popen(["sleep", "60"]) as other:
        asks += [threading.Thread(target=node.stacks, args=(other.pid,)) for _ in range(4)]
        for one in asks:
            one.start()
        for one in asks:
            one.join()
        other.kill()
    assert most == [1] * 8


@pytest.mark.parametrize("of", [b"\0", b" "])
def test_an_answer_without_end_is_given_up(of: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "MAX_ANSWER_BYTES", 1 << 16)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                while True:
                    connection.sendall(of * (1 << 16))

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(OSError, match="Message too long"):
            LocalNode(Path("/")).ask(os.getpid(), address, "STATUS\n")
        thread.join()
