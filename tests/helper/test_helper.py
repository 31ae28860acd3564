"""What a helper answers, what it refuses, and what it could not do if somebody took it over."""

from __future__ import annotations

import ast
import io
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tokenize
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from gpunode.config.daemon import KubernetesSettings, Settings
from gpunode.helper import capability, confine, files, serve, stacks, tcp
from gpunode.helper.environment import MAX_VALUE
from gpunode.holders.pods import Pods
from gpunode.node import containers, privileged
from gpunode.node.local import LocalNode
from gpunode.node.privileged import PrivilegedReads
from gpunode.source import WHOLE_NODE
from tests.attacks import seccomp
from tests.conftest import until
from tests.daemon import TIMEOUT
from tests.fakes.kubelet import kubelet
from tests.helper.helper import as_user, ask, close, helper, helpers, one_at
from tests.needs import ROOT, as_root, need
from tests.tenant import SECRET, VICTIM, root_with_home, says_who, servers, tenant

PACKAGE = ROOT / "exporter/gpunode/helper"
NOBODY = 65534

READS = """
node, pid = LocalNode(Path("/"), (), sys.argv[2]), int(sys.argv[3])
asks = {
    "environment": lambda: node.environment(pid),
    "io": lambda: node.read_text(f"/proc/{pid}/io").split(":")[0],
    "net": lambda: node.read_link(f"/proc/{pid}/ns/net")[:4],
    "root": lambda: node.read_link(f"/proc/{pid}/root"),
    "listens": lambda: node.listens(pid),
    "shares": lambda: node.shares_memory(pid),
    "space": lambda: node.filesystem(f"/proc/{pid}/root/home").size > 0,
    "asks": lambda: node.ask(int(sys.argv[4]), "localhost:8000", page("/metrics")),
}
for what, ask in asks.items():
    try:
        print(what, ask())
    except OSError as error:
        print(what, error.strerror)
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with helpers(works=("files",)) as found:
        yield found


@as_root
def test_who_has_no_right_reads_through_helpers_what_root_reads(tmp_path: Path) -> None:
    with (
        helpers(f"--user={NOBODY}") as sockets,
        tenant(root_with_home(tmp_path), RANK="3", TOKEN=SECRET) as pid,
        servers() as (server, _),
    ):
        pids = str(pid), str(server)
        by_root = as_user(0, READS, "", *pids)
        assert as_user(NOBODY, READS, str(sockets), *pids) == by_root
        alone = as_user(NOBODY, READS, "", *pids)
    assert "environment {'RANK': '3'}" in by_root
    assert "asks its figures" in by_root
    assert "environment Permission denied" in alone
    assert "figures" not in alone
    assert "denied" not in by_root


LOOKS = """
node, pid = LocalNode(Path("/"), (), sys.argv[2]), int(sys.argv[3])
found = node.stacks(pid)
(main,) = found.threads
print(main.state, main.waits_in, [frame.function for frame in main.frames], found.without_python)
"""


@as_root
def test_where_a_process_of_another_user_stands_is_read_through_helpers() -> None:
    works = ("files", "stacks")
    with helpers(f"--user={NOBODY}", works=works) as sockets, tenant(None) as pid:
        assert as_user(NOBODY, LOOKS, str(sockets), str(pid)) == as_user(0, LOOKS, "", str(pid))
        said = as_user(NOBODY, LOOKS, str(sockets), str(pid))
        alone = as_user(NOBODY, LOOKS, "", str(pid))
    assert re.fullmatch(r"S \w*pipe_read \['<module>'\] \n", said)
    assert alone == "S  [] Permission denied\n"


def with_py_spy(folder: Path, text: str) -> Path:
    """The folder, with a program that takes the place of py-spy."""
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("does", "says"),
    [
        ("exec /bin/sleep 1000", "did not end"),
        ("exec /usr/bin/yes", "prints more than 4 MiB"),
        ("echo no Python there >&2; exit 1", "py-spy: it is no Python"),
        ("kill -9 $$", "py-spy: it is no Python"),
    ],
)
def test_a_program_that_does_not_answer_as_it_should_costs_one_look(
    does: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "FOLDERS", (with_py_spy(tmp_path, does),))
    monkeypatch.setattr(stacks, "LOOK_TIMEOUT", 0.5)
    tracemalloc.start()
    try:
        with pytest.raises(OSError, match=says):
            stacks.python("", str(os.getpid()))
        assert tracemalloc.get_traced_memory()[1] < 3 * stacks.MAX_OUTPUT_BYTES
    finally:
        tracemalloc.stop()
    assert not stacks.one_at_a_time.locked()
    monkeypatch.setattr(stacks, "FOLDERS", (with_py_spy(tmp_path, "echo '[]'"),))
    monkeypatch.setattr(stacks, "LOOK_TIMEOUT", 60.0)
    assert stacks.python("", str(os.getpid())) == b"[]\n"


def test_it_is_told_nothing_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", SECRET)
    monkeypatch.setattr(stacks, "FOLDERS", (with_py_spy(tmp_path, 'echo "$TOKEN" "$@"'),))
    monkeypatch.setattr(stacks, "LOOK_TIMEOUT", 60.0)
    pid = str(os.getpid())
    said = stacks.python("", pid).decode()
    assert said == f" dump --nonblocking --json --pid {pid}\n"
    with pytest.raises(OSError, match="not the number of a process"):
        stacks.python("", f"{pid} --locals")
    monkeypatch.setattr(stacks, "FOLDERS", ())
    with pytest.raises(OSError, match="py-spy is not installed"):
        stacks.python("", pid)


def test_what_py_spy_may_take_is_less_than_its_unit_has(tmp_path: Path) -> None:
    """A program has the limits of who starts it, and this one starts nothing else."""
    with helper("stacks", tmp_path) as running:
        limits = Path(f"/proc/{running.pid}/limits").read_text()
    most = re.search(r"^Max address space +(\d+) +\1 ", limits, re.MULTILINE)
    unit = (ROOT / "exporter/systemd/gpunode-stacks.service").read_text()
    of_unit = re.search(r"^MemoryMax=(\d+)M$", unit, re.MULTILINE)
    assert most
    assert of_unit
    assert int(most[1]) <= int(of_unit[1]) * (1 << 20) * 2 // 3


SOCKETS = """
import socket
folder = sys.argv[2]
node = LocalNode(Path("/"), (), folder)
print(node.allocations(sys.argv[3])[0].pod)
path = f"{folder}/client.sock"
node.datagrams(path, ())
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sender.sendto(b"hello", path)
came = []
while not came:
    came = node.datagrams(path, ())
print(came[0].text, came[0].pid == os.getpid())
"""


@as_root
def test_the_kubelet_and_clients_are_reached_through_a_helper(tmp_path: Path) -> None:
    socket_of_root = tmp_path / "kubelet.sock"  # in a folder that only root may enter
    options = (f"--user={NOBODY}", f"--kubelet={socket_of_root}")
    with (
        tempfile.TemporaryDirectory(prefix="g", dir="/tmp") as name,
        kubelet(socket_of_root) as fake,
    ):
        fake.pods = {("research", "llama-0", "train"): [("nvidia.com/gpu", "GPU-1")]}
        folder = Path(name)
        folder.chmod(0o755)
        with helper("sockets", folder, *options, f"--client={folder}/client.sock"):
            said = as_user(NOBODY, SOCKETS, name, str(socket_of_root))
            assert said == "llama-0\nhello True\n"
            again = as_user(NOBODY, SOCKETS, name, str(socket_of_root))  # after a restart
            assert again == said


@as_root
def test_a_file_leaves_only_if_its_process_names_it(tmp_path: Path, folder: Path) -> None:
    root = root_with_home(tmp_path)
    for name in ("token", "log.7.node", "log.7"):
        (root / "home" / name).write_text(name)

    def read(pid: int, path: str) -> str:
        try:
            return ask(folder, "files", "part", f"/proc/{pid}/{path}", "0").decode()
        except PermissionError as error:
            return error.strerror or ""

    refused = "its process does not name this file"
    with tenant(root, NCCL_DEBUG_FILE="/home/log.%p.%h") as pid:
        assert read(pid, "root/home/log.7.node") == "0 log.7.node"
        for other in ("root/home/token", "root/home/log.7", "cwd/home/log.7.node", "cwd/token"):
            assert read(pid, other) == refused
    (root / "home/node.7").mkdir()
    with tenant(root, NCCL_DEBUG_FILE="log.7") as pid:
        assert read(pid, "cwd/log.7") == "0 log.7"
        assert read(pid, "root/home/log.7") == refused
    for name in ("pod-0.x-pid7.log", "..-pid7.log", "pod-0-pid7.log.key"):
        (root / "home/node.7" / name).write_text(name)
    with tenant(root, NCCL_DEBUG_FILE="log.7", NCCL_INSPECTOR_DUMP_DIR="/home/node.7") as pid:
        assert read(pid, "cwd/log.7") == "0 log.7"
        assert read(pid, "root/home/node.7/pod-0.x-pid7.log") == "0 pod-0.x-pid7.log"
        for other in ("..-pid7.log", "pod-0-pid7.log.key", "../token"):
            assert read(pid, f"root/home/node.7/{other}") == refused


SLOW = "/home/" + "%h" * 50 + "!"
"""To see that a name which differs only at its end is not this one, each host may be any part."""


@as_root
@pytest.mark.parametrize(
    ("named", "asked_for"),
    [
        (SLOW, f"/home/{'a' * 60}?"),
        (SLOW.replace("%h", "%p"), f"/home/{'1' * 60}?"),
        (f"/home/{'x' * MAX_VALUE}", f"/home/{'x' * MAX_VALUE}"),
    ],
    ids=["many hosts", "many numbers", "longer than any path"],
)
def test_no_name_of_a_log_keeps_a_helper_from_others(
    named: str, asked_for: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privileged, "TENANT_VERBS", frozenset())
    monkeypatch.setattr(privileged, "TIMEOUT", 20.0)
    with (
        tenant(root_with_home(tmp_path), NCCL_DEBUG_FILE=named) as pid,
        helper("files", tmp_path),
        pytest.raises(PermissionError, match="its process does not name this file"),
    ):
        ask(tmp_path, "files", "part", f"/proc/{pid}/root{asked_for}", "0")


def test_an_environment_of_very_many_variables_takes_little_memory(tmp_path: Path) -> None:
    """A helper has 64 MiB for all that it is asked at a time."""
    (tmp_path / "proc/7").mkdir(parents=True)
    much = b"RANK=3\0" + b"ab\0RANK=4\0" * (files.MAX_BYTES // 10)
    (tmp_path / "proc/7/environ").write_bytes(much[: files.MAX_BYTES])
    tracemalloc.start()
    try:
        assert files.environment(str(tmp_path), "7") == b"RANK=3"
        assert tracemalloc.get_traced_memory()[1] < files.MAX_BYTES
    finally:
        tracemalloc.stop()


def test_a_table_of_very_many_mappings_takes_little_memory(tmp_path: Path) -> None:
    """65,530 are the most that Linux allows by default; with longer names, they have 20 MB."""
    (tmp_path / "proc/7").mkdir(parents=True)
    line = b"7f00-7f01 r-xp 00000000 00:01 1%20d /%b\n"
    library = line % (0, b"lib/libnccl.so.2.27.5")
    other = line % (0, b"x" * 100)
    (tmp_path / "proc/7/maps").write_bytes(other * 65_530 + library + library)
    tracemalloc.start()
    try:
        assert files.maps(str(tmp_path), "7") == library.strip()
        assert tracemalloc.get_traced_memory()[1] < files.MAX_BYTES
    finally:
        tracemalloc.stop()


def test_of_a_container_only_its_image_leaves(tmp_path: Path) -> None:
    for file, _ in containers.FILES:
        path = tmp_path / file[1:].replace("/ID/", f"/{'a' * 64}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            '{"Config": {"Env": ["TOKEN=' + SECRET + '", "X=\\"Image\\": \\"forged\\""], '
            '"Image": "site/llama:3"}, "Image": "sha256:' + "b" * 64 + '", "annotations": '
            '{"io.kubernetes.cri.image-name": "site/llama:3", "secret": "' + SECRET + '"}}'
        )
        found = files.image(str(tmp_path), str(path)[len(str(tmp_path)) :])
        assert SECRET not in found.decode()
        assert "forged" not in found.decode()
    assert LocalNode(tmp_path).image("a" * 64).name == "site/llama:3"


@as_root
def test_nobody_but_the_daemon_is_answered(folder: Path) -> None:
    code = (
        "try: print(Helper(sys.argv[2]).ask('count', '1'))\nexcept OSError as error: print(error)"
    )
    assert "does not answer" in as_user(NOBODY, code, f"{folder}/files.sock")
    assert "(b'" in as_user(0, code, f"{folder}/files.sock")


def test_one_that_ended_is_missed_and_one_that_is_back_is_used(tmp_path: Path) -> None:
    with tenant(None, RANK="3") as pid, one_at(tmp_path / "files.sock") as one:
        for _ in range(3):
            with helper("files", tmp_path):
                assert one.ask("environment", str(pid)) == (b"RANK=3", [])
            with pytest.raises(OSError, match="does not answer: Connection refused"):
                one.ask("environment", str(pid))


def test_one_that_stands_still_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privileged, "TIMEOUT", 0.1)
    with (
        tenant(None, RANK="3") as pid,
        helper("files", tmp_path) as child,
        one_at(tmp_path / "files.sock") as one,
    ):
        child.send_signal(signal.SIGSTOP)
        with pytest.raises(OSError, match=r"no answer within 0.1 s"):
            one.ask("count", str(pid))
        child.send_signal(signal.SIGCONT)
        with pytest.raises(OSError, match="it did not answer a moment ago"):
            one.ask("environment", str(pid))
        monkeypatch.setattr(privileged, "TIMEOUT", 60)
        monkeypatch.setattr(one, "_silent_until", 0.0)
        assert one.ask("environment", str(pid)) == (b"RANK=3", [])


STRANGER = """
import os, socket, sys
os.setgid(65534)
os.setuid(65534)
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
listener.listen()
print("ready", flush=True)
sys.stdin.read()
"""


@as_root
def test_one_of_another_user_is_not_believed() -> None:
    with tempfile.TemporaryDirectory(prefix="gpunode-") as name:
        Path(name).chmod(0o777)
        path = f"{name}/files.sock"
        with subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", STRANGER, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout
            assert child.stdout.readline() == "ready\n"
            with one_at(Path(path)) as one, pytest.raises(OSError, match="another user answers"):
                one.ask("environment", "1")
            child.kill()


def says_it_all(connection: socket.socket) -> None:
    """Say of a long answer a byte at a time."""
    connection.send(serve.HEAD.pack(0, 300))
    while True:
        connection.send(b"x")
        time.sleep(0.01)


STRANGE: dict[str, tuple[Callable[[socket.socket], object], str]] = {
    "no head": (lambda one: one.send(b"x"), "it says what no helper does"),
    "4 GiB": (lambda one: one.send(serve.HEAD.pack(0, 2**32 - 1)), "it says what no helper does"),
    "descriptors": (
        lambda one: socket.send_fds(one, [serve.HEAD.pack(0, 1), b"x"], [0, 1]),
        "it says what no helper does",
    ),
    "descriptors beside an error": (
        lambda one: socket.send_fds(one, [serve.HEAD.pack(13, 0)], [0]),
        "it says what no helper does",
    ),
    "drops": (says_it_all, "no answer within 0.5 s"),
}
"""What a helper may say that somebody has taken over, and what is said of it."""


@pytest.mark.parametrize("how", STRANGE)
def test_one_that_is_taken_over_costs_an_answer_and_no_more(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privileged, "TIMEOUT", 0.5)
    answers, said = STRANGE[how]

    def serve_once() -> None:
        connection, _ = listener.accept()
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with connection, ours, suppress(OSError):
            connection.recv(1)
            with its:
                socket.send_fds(connection, [b"\0"], [its.fileno()])
            ours.recv(serve.MAX_REQUEST_BYTES)
            answers(ours)

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "files.sock"))
        listener.listen()
        thread = threading.Thread(target=serve_once)
        thread.start()
        before = len(os.listdir("/proc/self/fd"))
        with one_at(tmp_path / "files.sock") as one, pytest.raises(OSError, match=said):
            one.ask("count", "1")
        thread.join()
        assert len(os.listdir("/proc/self/fd")) == before


def test_one_without_descriptors_says_so_and_answers_once_it_has_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        tenant(None, RANK="3") as pid,
        helper("files", tmp_path) as child,
        one_at(tmp_path / "files.sock") as known,
        one_at(tmp_path / "files.sock") as late,
    ):
        assert known.ask("environment", str(pid)) == (b"RANK=3", [])
        process = psutil.Process(child.pid)
        before = process.rlimit(psutil.RLIMIT_NOFILE)
        process.rlimit(psutil.RLIMIT_NOFILE, (3, before[1]))
        with pytest.raises(OSError, match="Too many open files"):
            known.ask("count", str(pid))
        monkeypatch.setattr(privileged, "TIMEOUT", 0.1)
        # The kernel may have reserved a descriptor for who connects next.
        with pytest.raises(OSError, match=r"does not answer|Too many open files"):
            late.ask("count", str(pid))
        process.rlimit(psutil.RLIMIT_NOFILE, before)
        monkeypatch.setattr(privileged, "TIMEOUT", 60)
        monkeypatch.setattr(late, "_silent_until", 0.0)
        assert late.ask("environment", str(pid)) == (b"RANK=3", [])


def test_what_is_mounted_only_where_a_helper_is_is_found_there(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "var/log/pods/research_llama_7").mkdir(parents=True)
    here.mkdir()
    folder = tmp_path / "sockets"
    settings = Settings(kubernetes=KubernetesSettings(pod_resources_socket="/k/kubelet.sock"))
    node = LocalNode(here, (), str(folder))
    pods = Pods(node, settings)
    assert pods.find() == ()
    with (
        kubelet(there / "k/kubelet.sock"),
        helper("files", folder, f"--rootfs={there}"),
        helper("sockets", folder, f"--rootfs={there}", "--kubelet=/k/kubelet.sock"),
    ):
        assert node.list_directory("/var/log/pods") == ["research_llama_7"]
        assert pods.find() == ((WHOLE_NODE, pods),)
    for one in node._privileged._helpers.values():
        close(one)


def test_of_processors_their_energy_leaves(tmp_path: Path) -> None:
    zone = "/sys/class/powercap/intel-rapl:0:1"
    real = tmp_path / "sys/devices/virtual/powercap/intel-rapl/intel-rapl:0/intel-rapl:0:1"
    real.mkdir(parents=True)
    for name in ("energy_uj", "enabled"):
        (real / name).write_text("7")
    assert files.text(str(tmp_path), f"{zone}/energy_uj") == b"7"
    with pytest.raises(PermissionError):
        files.text(str(tmp_path), f"{zone}/enabled")


def test_without_a_helper_the_reason_is_that_of_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "proc/7/environ").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        PrivilegedReads(str(tmp_path), str(tmp_path)).read("environment", "7")


def test_one_that_hangs_is_not_well_and_one_that_answers_others_is(tmp_path: Path) -> None:
    """Kubernetes asks so: it starts anew what is not well."""

    def well() -> bool:
        command = [sys.executable, "-m", "gpunode", "helper", "files", f"--folder={tmp_path}"]
        return subprocess.run([*command, "--check"], check=False).returncode == 0

    assert not well(), "there is none"
    for user in (os.geteuid(), NOBODY):
        with helper("files", tmp_path, f"--user={user}") as child:
            assert well(), "also who is hung up on knows that it lives"
            child.send_signal(signal.SIGSTOP)
            assert not well()
            child.send_signal(signal.SIGCONT)
            assert well()


def test_one_tells_systemd_that_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(TIMEOUT)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with helper("files", tmp_path):
            for _ in range(2):  # also where nobody asks anything
                assert systemd.recv(100) == b"WATCHDOG=1"
        systemd.settimeout(serve.BEAT / 5)
        with pytest.raises(TimeoutError):
            systemd.recv(100)


def test_more_connections_than_there_are_threads_are_closed(folder: Path) -> None:
    path = str(folder / "files.sock")
    held = []
    for _ in range(300):
        held.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        held[-1].connect(path)
    until(lambda: sum(map(is_closed, held)) >= 300 - serve.MAX_PAIRS)
    for one in held:
        one.close()
    until(lambda: answers(folder))


def answers(folder: Path) -> bool:
    """Whether the helper has a thread for one more connection: it closes those it has none for."""
    try:
        return bool(ask(folder, "files", "count", str(os.getpid())))
    except OSError:
        return False


def is_closed(one: socket.socket) -> bool:
    """Whether the other end has hung up."""
    try:
        return one.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_what_is_read_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, a part of a log, a table of descriptors."""
    volume = "/var/lib/kubelet/plugins/kubernetes.io/csi/driver/volume/vol_data.json"
    (tmp_path / volume[1:]).parent.mkdir(parents=True)
    (tmp_path / volume[1:]).write_bytes(bytes(files.MAX_BYTES + 1))
    with pytest.raises(OSError, match="File too large"):
        files.text(str(tmp_path), volume)
    log = tmp_path / "proc/7/root/log"
    log.parent.mkdir(parents=True)
    says_who(tmp_path / "proc/7")
    log.write_bytes(bytes(files.MAX_READ + 100))
    with ThreadPoolExecutor(1) as another:  # which keeps the rights of that process's user
        part = another.submit(files.part, str(tmp_path), "/proc/7/root/log", "0").result()
    assert len(part) == files.MAX_READ + len("0 ")
    pairs = [socket.socketpair() for _ in range(8)]
    monkeypatch.setattr(files, "DESCRIPTORS", 8)
    monkeypatch.setattr(tcp, "MAX_DESCRIPTORS", 8)
    assert len(files.sockets("", str(os.getpid())).split()) <= 8
    assert len(tcp.socket_inodes("/proc/self") or ()) <= 8
    for pair in pairs:
        for one in pair:
            one.close()


@as_root
def test_who_has_read_as_another_user_reads_nothing_more(tmp_path: Path, folder: Path) -> None:
    """A thread keeps the rights that it took on, and so ends with its pair of sockets."""
    root = root_with_home(tmp_path)
    (root / "home/log").write_text("log")
    with tenant(root, NCCL_DEBUG_FILE="/home/log") as pid, one_at(folder / "files.sock") as one:
        pair, _ = one._pair()
        with pair:
            pair.send(f"part\0/proc/{pid}/root/home/log\x000".encode())
            assert pair.recv(99).endswith(b"0 log")
            with suppress(ConnectionResetError, BrokenPipeError):
                pair.send(f"count\0{pid}".encode())
                assert pair.recv(99) == b""


@as_root
def test_a_path_is_followed_with_the_group_of_its_process_too(tmp_path: Path) -> None:
    root = root_with_home(tmp_path)
    (root / "private").mkdir()
    (root / "private/log").write_text("log")
    (root / "private").chmod(0o710)  # for root's group
    with tenant(root) as pid, ThreadPoolExecutor(1) as another:
        path = f"/proc/{pid}/root/private/log"
        with pytest.raises(PermissionError):
            another.submit(files.part, "", path, "0").result()


@as_root
@pytest.mark.parametrize(
    "rights", ["--groups=0", "--bounding-set=-setuid", "--bounding-set=-setgid"]
)
def test_no_group_or_user_of_a_helper_s_own_opens_a_tenant_s_path(
    rights: str, tmp_path: Path
) -> None:
    """A container of root's is in root's group, and who drops a capability keeps its user."""
    root = root_with_home(tmp_path)
    (root / "private").mkdir()
    (root / "private/log").write_text("log")
    (root / "private").chmod(0o710)
    with (
        tenant(root, NCCL_DEBUG_FILE="/private/log") as pid,
        helper("files", tmp_path, before=(need("setpriv"), rights)),
        pytest.raises(PermissionError),
    ):
        ask(tmp_path, "files", "part", f"/proc/{pid}/root/private/log", "0")


def test_no_program_that_is_started_has_a_helper_s_sockets(folder: Path) -> None:
    with one_at(folder / "files.sock") as one:
        pair, _ = one._pair()
        with pair:
            assert not pair.get_inheritable()


def test_py_spy_looks_at_one_process_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "FOLDERS", (with_py_spy(tmp_path, "echo"),))
    with stacks.one_at_a_time, pytest.raises(OSError, match="busy with another process"):
        stacks.python("", str(os.getpid()))


# Taken over

TRIES = """
import ctypes, mmap, os, socket, sys
from gpunode.helper import capability, confine, serve
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
name, text, victim, back, confined = sys.argv[1:]
path, victim = os.fsencode(text), int(victim)
back = socket.socket(fileno=int(back))
unix = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
file = os.open(path, os.O_RDWR)
def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "")
def how(flags):
    return (ctypes.c_uint64 * 3)(flags, 0, 0)
page = mmap.mmap(-1, 4096)
address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(page)))
tries = {
    "open to write": lambda: os.open(path, os.O_WRONLY),
    "open, an older call": lambda: call(2, path, os.O_RDWR),
    "open to append": lambda: os.open(path, os.O_RDWR | os.O_APPEND),
    "create": lambda: os.open(path + b".new", os.O_CREAT | os.O_RDONLY, 0o600),
    "truncate": lambda: os.open(path, os.O_TRUNC | os.O_RDONLY),
    "openat2": lambda: call(437, -100, path, ctypes.byref(how(os.O_RDWR)), 24),
    "creat": lambda: call(85, path, 0o600),
    "secret of another pod": lambda: open(f"/proc/{victim}/root{text}.secret").close(),
    "memory of another": lambda: os.open(f"/proc/{victim}/mem", os.O_RDWR),
    "write": lambda: os.write(file, b"x"),
    "writev": lambda: os.writev(file, [b"x"]),
    "pwrite": lambda: os.pwrite(file, b"x", 0),
    "map to write": lambda: call(9, 0, 4096, 3, 1, file, 0),
    "map to run": lambda: call(9, 0, 4096, 7, 0x22, -1, 0),
    "run what was written": lambda: call(10, address, 4096, 7),
    "link": lambda: os.link(path, path + b".x"),
    "folder": lambda: os.mkdir(path + b".d"),
    "mode": lambda: os.chmod(path, 0o777),
    "owner": lambda: os.chown(path, os.getuid(), -1),
    "process_vm_writev": lambda: call(311, victim, 0, 0, 0, 0, 0),
    "ptrace": lambda: call(101, 0x4206, victim, 0, 0),
    "unshare": lambda: call(272, 0),
    # The kernel makes none of these three, as their flags do not go together.
    "process": lambda: call(56, 0x800, 0, 0, 0, 0),
    "process in namespaces": lambda: call(56, 0x20200, 0, 0, 0, 0),
    "thread in namespaces": lambda: call(56, 0x30000, 0, 0, 0, 0),
    "clone3": lambda: call(435, 0, 0),
    "io_uring": lambda: call(425, 1, 0),
    "signal": lambda: os.kill(victim, 0),
    "ioctl": lambda: call(16, file, 0x5451, 0),
    "internet": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
    "internet 6": lambda: socket.socket(socket.AF_INET6, socket.SOCK_STREAM),
    "another protocol": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262),
    "datagrams": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0),
    "unix": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
    "connect": lambda: call(42, unix[0].fileno(), 0, 0),
    "connect by sending": lambda: unix[0].sendmsg([b"x"], [], 0x20000000),
    "option": lambda: unix[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096),
    "enter mounts": lambda: call(308, file, 0x20000),
    "remove": lambda: os.unlink(path),
    "remove a folder": lambda: call(263, -100, path, 0x200),
}
work = serve.work_of(name, "", "/k", "/c")
capability.keep(work.capabilities)
if confined == "confined":
    confine.confine(work)
done = []
with capability.elevate():
    for what, attempt in tries.items():
        try:
            attempt()
        except OSError as error:
            if error.errno in (1, 13, 38):  # not allowed, or said to be unknown
                continue
        done.append(what)
back.sendmsg(["\\n".join(done).encode()])
"""

MAY = {
    "files": {"secret of another pod"},
    "sockets": {"unix", "connect", "remove"},
    "network": {"connect", "internet", "internet 6"},
    "stacks": {"process", "secret of another pod"},
}
"""What a helper whose code somebody runs may do of all that, as docs/security.md says: nothing that
changes the node."""


def allowed_tries(work: str, how: str, folder: Path) -> set[str]:
    """What succeeds of the tries, or fails for another reason than that it is not allowed."""
    for name, user in (("file", 0), ("file.secret", VICTIM)):
        (folder / name).write_text("x")
        (folder / name).chmod(0o600)
        os.chown(folder / name, user, user)
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its, subprocess.Popen(["sleep", "60"], user=VICTIM, group=VICTIM) as victim:
        arguments = [work, str(folder / "file"), str(victim.pid), str(its.fileno()), how]
        command = [sys.executable, "-c", TRIES, *arguments]
        try:
            subprocess.run(command, pass_fds=[its.fileno()], check=True)
        finally:
            victim.kill()
        return set(ours.recv(1 << 16).decode().splitlines())


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="calls by their numbers on x86-64")
@as_root
@pytest.mark.parametrize("work", MAY)
def test_whoever_takes_a_helper_over_changes_nothing_and_leaves_by_no_other_way(
    work: str, tmp_path: Path
) -> None:
    assert allowed_tries(work, "confined", tmp_path) == MAY[work]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="calls by their numbers on x86-64")
@as_root
def test_without_its_list_of_calls_it_could_do_nearly_all(tmp_path: Path) -> None:
    assert len(allowed_tries("files", "free", tmp_path)) >= 25


OF_ANOTHER_MACHINE = """
import ctypes, mmap, os
from gpunode.helper import confine, serve
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("b814000000cd80c3"))  # getpid as on i386, whose number is writev's here
ask = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
assert ask() == os.getpid()
confine.confine(serve.work_of("files", "", "", ""))
ask()
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="calls by their numbers on x86-64")
def test_a_call_as_on_another_machine_ends_it() -> None:
    command = [sys.executable, "-c", OF_ANOTHER_MACHINE]
    ended = subprocess.run(command, capture_output=True, check=False)
    if ended.returncode in (1, -signal.SIGSEGV):
        pytest.skip("this kernel knows no calls of i386")
    assert ended.returncode == -signal.SIGSYS


CLOSED = """
import ctypes, os
from gpunode.helper import confine, serve
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as after the start of a program
before = os.stat("/proc/self/environ").st_uid
confine.confine(serve.work_of("files", "", "", ""))
os._exit(0 if (before, os.stat("/proc/self/environ").st_uid) == (65534, 0) else 1)
"""


@as_root
def test_nobody_of_its_own_user_looks_into_a_helper() -> None:
    subprocess.run([sys.executable, "-c", CLOSED], check=True)


@as_root
@pytest.mark.parametrize("work", serve.HELPERS)
def test_a_helper_keeps_the_capabilities_of_its_work_alone(work: str, tmp_path: Path) -> None:
    kept = serve.work_of(work, "", "/k", "/c").capabilities
    with helper(work, tmp_path, "--kubelet=/k", "--client=/c") as child:
        status = Path(f"/proc/{child.pid}/status").read_text()
    held = re.search(r"^CapPrm:\s*([0-9a-f]+)$", status, re.MULTILINE)
    assert held
    assert int(held[1], 16) & ~sum(1 << capability.ALL[name] for name in kept) == 0


@pytest.mark.skipif(not seccomp.NUMBERS.exists(), reason="needs linux-libc-dev")
def test_the_numbers_of_system_calls_are_the_kernels() -> None:
    generic = Path("/usr/include/asm-generic/unistd.h").read_text().replace("__NR3264_", "__NR_")
    of_arm = dict(seccomp.NUMBER.findall(generic))
    of_this = dict(seccomp.NUMBER.findall(seccomp.NUMBERS.read_text()))
    for name, of_x86, number in (entry.split() for entry in confine.NUMBERS.split(",")):
        if number != "-1":
            assert of_arm[name.replace("newfstatat", "fstatat")] == number
        if os.uname().machine == "x86_64":
            assert of_this[name] == of_x86


# Small enough to read


MAX_LINES = 624


def lines_of_code(file: Path) -> int:
    """Lines with code: neither empty, nor a comment, nor text for the reader."""
    text = file.read_text()
    said = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    code = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(code - said)


@pytest.mark.parametrize("work", serve.HELPERS)
def test_a_helper_is_small_and_loads_nothing_that_parses_or_serves(work: str) -> None:
    load = "import sys, gpunode.helper.serve as s; s.work_of(sys.argv[1], '', '/k', '/c')"
    command = [sys.executable, "-c", f"{load}; print(*sys.modules)", work]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = ran.stdout.split()
    own = [name for name in loaded if "gpunode" in name]
    assert all(name == "gpunode" or re.match(r"gpunode\.helper\b", name) for name in own)
    files_of = [PACKAGE / f"{name.rpartition('.')[2]}.py" for name in own if name.count(".") == 2]
    lines = sum(map(lines_of_code, files_of))
    assert lines <= MAX_LINES
    for parser in ("json", "xml", "email", "http", "yaml", "pydantic", "urllib.request", "ssl"):
        assert parser not in loaded


def test_a_helper_may_have_a_folder_of_its_own() -> None:
    """As under systemd, which removes the folder of a unit with the unit."""
    with tempfile.TemporaryDirectory() as name:
        (own := Path(name) / "files").mkdir()
        with helper("files", own):
            doors = PrivilegedReads("/", name)
            assert doors.cost().keys() == {"files"}
            close(doors._helpers["files"])
