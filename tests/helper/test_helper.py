"""What a helper answers, what it refuses, and what it could not do if somebody took it over."""

from __future__ import annotations

import ast
import errno
import io
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gpunode.config import KubernetesSettings, Settings
from gpunode.helper import confine, files, serve, stacks
from gpunode.holders.pods import Pods
from gpunode.node import containers, privileged
from gpunode.node.local import LocalNode
from gpunode.node.privileged import Privileged
from gpunode.source import WHOLE_NODE
from tests.attacks import seccomp
from tests.conftest import until
from tests.fakes.kubelet import kubelet
from tests.helper.helper import as_user, asked, close, helper, helpers, one_at
from tests.needs import ROOT, as_root
from tests.tenant import SECRET, root_with_home, tenant

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
    "network": lambda: len(node._privileged.in_network(str(pid), 2)),
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
    ):
        by_root = as_user(0, READS, "", str(pid))
        assert as_user(NOBODY, READS, str(sockets), str(pid)) == by_root
        alone = as_user(NOBODY, READS, "", str(pid))
    assert "environment {'RANK': '3'}" in by_root
    assert "network 2" in by_root
    assert "environment Permission denied" in alone
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


def program(folder: Path, text: str) -> str:
    """A program that takes the place of py-spy."""
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("does", "says"),
    [
        ("exec /bin/sleep 1000", "did not end"),
        ("while :; do echo x; done", "did not end"),
        ("echo no Python there >&2; exit 1", "py-spy: no Python there"),
        ("kill -9 $$", "py-spy: "),
    ],
)
def test_a_program_that_does_not_answer_as_it_should_costs_one_look(
    does: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "PLACES", (program(tmp_path, does),))
    monkeypatch.setattr(stacks, "LONGEST", 0.5)
    with pytest.raises(OSError, match=says):
        stacks.python("", str(os.getpid()))
    assert not stacks.one_at_a_time.locked()
    monkeypatch.setattr(stacks, "PLACES", (program(tmp_path, "echo '[]'"),))
    monkeypatch.setattr(stacks, "LONGEST", 60.0)
    assert stacks.python("", str(os.getpid())) == b"[]\n"


def test_it_is_told_nothing_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", SECRET)
    monkeypatch.setattr(stacks, "PLACES", (program(tmp_path, 'echo "$TOKEN" "$@"'),))
    monkeypatch.setattr(stacks, "LONGEST", 60.0)
    pid = str(os.getpid())
    said = stacks.python("", pid).decode()
    assert said == f" dump --nonblocking --json --pid {pid}\n"
    with pytest.raises(OSError, match="not the number of a process"):
        stacks.python("", f"{pid} --locals")
    monkeypatch.setattr(stacks, "PLACES", ())
    with pytest.raises(OSError, match="py-spy is not installed"):
        stacks.python("", pid)


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


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("text", ["/etc/shadow"]),
        ("text", ["/proc/1/environ"]),
        ("text", ["/proc/1/io/../environ"]),
        ("text", ["/proc/1/root/proc/1/io"]),
        ("text", ["/sys/kernel/debug/lustre/../../../../etc/shadow"]),
        ("text", ["/var/lib/kubelet/plugins/kubernetes.io/csi/a/../../vol_data.json/x"]),
        ("text", ["/proc/1/task/1/stack"]),
        ("text", ["/proc/1/task/../wchan"]),
        ("names", ["/root"]),
        ("names", ["/root/../pod-resources"]),
        ("names", ["/var/log/pods/.."]),
        ("link", ["/proc/1/cwd"]),
        ("link", ["/proc/1/exe"]),
        ("link", ["/proc/1/ns/../fd/0"]),
        ("space", ["/root"]),
        ("environment", ["self"]),
        ("environment", ["1/../2"]),
        ("maps", ["1/task/1"]),
        ("sockets", [""]),
        ("count", ["../1"]),
        ("image", ["/etc/shadow"]),
        ("image", ["/run/containerd/io.containerd.runtime.v2.task/k8s.io/../config.json"]),
        ("part", ["/etc/shadow", "0"]),
        ("part", ["/proc/{pid}/root/etc/shadow", "0"]),
        ("part", ["/proc/{pid}/cwd/etc/hostname", "0"]),
        ("part", ["/proc/{pid}/root/etc/hostname", "x"]),
        ("part", ["/proc/1/root/etc/hostname"]),
        ("environment", []),
        ("__class__", []),
        ("kubelet", []),
        ("in_network", ["1", "2"]),
        ("", [""]),
    ],
)
def test_what_the_daemon_has_no_use_for_is_refused(
    folder: Path, verb: str, arguments: list[str]
) -> None:
    with pytest.raises(OSError, match=r".") as refused:
        asked(folder, "files", verb, *(one.format(pid=os.getpid()) for one in arguments))
    assert refused.value.errno in (errno.EPERM, errno.EINVAL)


def test_only_variables_without_secrets_leave_the_helper(folder: Path) -> None:
    with tenant(None, RANK="3", TOKEN=SECRET, RANKS="4") as pid:
        assert asked(folder, "files", "environment", str(pid)) == b"RANK=3"


@as_root
def test_a_file_leaves_only_if_its_process_names_it_or_it_holds_versions(
    tmp_path: Path, folder: Path
) -> None:
    root = root_with_home(tmp_path)
    for name in ("token", "log.7.node", "log.7", "torch/version.py"):
        (root / "home" / name).parent.mkdir(exist_ok=True)
        (root / "home" / name).write_text(name)

    def read(pid: int, path: str) -> str:
        try:
            return asked(folder, "files", "part", f"/proc/{pid}/{path}", "0").decode()
        except PermissionError as error:
            return error.strerror or ""

    refused = "its process does not name this file"
    with tenant(root, NCCL_DEBUG_FILE="/home/log.%p.%h") as pid:
        assert read(pid, "root/home/log.7.node") == "0 log.7.node"
        assert read(pid, "root/home/torch/version.py") == "0 torch/version.py"
        for other in ("root/home/token", "root/home/log.7", "cwd/home/log.7.node", "cwd/token"):
            assert read(pid, other) == refused
    with tenant(root, NCCL_DEBUG_FILE="log.7") as pid:
        assert read(pid, "cwd/log.7") == "0 log.7"
        assert read(pid, "root/home/log.7") == refused


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
    monkeypatch.setattr(privileged, "WAIT", 0.1)
    with (
        tenant(None, RANK="3") as pid,
        helper("files", tmp_path) as child,
        one_at(tmp_path / "files.sock") as one,
    ):
        child.send_signal(signal.SIGSTOP)
        with pytest.raises(OSError, match=r"no answer within 0.1 s"):
            one.ask("environment", str(pid))
        child.send_signal(signal.SIGCONT)
        with pytest.raises(OSError, match="it did not answer a moment ago"):
            one.ask("environment", str(pid))
        monkeypatch.setattr(privileged, "WAIT", 60)
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
            known.ask("environment", str(pid))
        monkeypatch.setattr(privileged, "WAIT", 0.1)
        # The kernel may have reserved a descriptor for who connects next.
        with pytest.raises(OSError, match=r"does not answer|Too many open files"):
            late.ask("environment", str(pid))
        process.rlimit(psutil.RLIMIT_NOFILE, before)
        monkeypatch.setattr(privileged, "WAIT", 60)
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
    (tmp_path / zone[1:]).mkdir(parents=True)
    for name in ("energy_uj", "enabled"):
        (tmp_path / zone[1:] / name).write_text("7")
    assert files.text(str(tmp_path), f"{zone}/energy_uj") == b"7"
    with pytest.raises(PermissionError):
        files.text(str(tmp_path), f"{zone}/enabled")


def test_without_a_helper_the_reason_is_that_of_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "proc/7/environ").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        Privileged(str(tmp_path), str(tmp_path)).read("environment", "7")


def test_more_connections_than_there_are_threads_are_closed(folder: Path) -> None:
    path = str(folder / "files.sock")
    held = []
    for _ in range(300):
        held.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        held[-1].connect(path)
    until(lambda: sum(map(is_closed, held)) >= 300 - serve.MOST)
    for one in held:
        one.close()
    until(lambda: bool(asked(folder, "files", "count", str(os.getpid()))))


def is_closed(one: socket.socket) -> bool:
    """Whether the other end has hung up."""
    try:
        return one.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


# Taken over

TRIES = """
import ctypes, os, socket, sys
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
tries = {
    "open to write": lambda: os.open(path, os.O_WRONLY),
    "open to append": lambda: os.open(path, os.O_RDWR | os.O_APPEND),
    "create": lambda: os.open(path + b".new", os.O_CREAT | os.O_RDONLY, 0o600),
    "truncate": lambda: os.open(path, os.O_TRUNC | os.O_RDONLY),
    "openat2": lambda: call(437, -100, path, ctypes.byref(how(os.O_RDWR)), 24),
    "creat": lambda: call(85, path, 0o600),
    "memory of another": lambda: os.open(f"/proc/{victim}/mem", os.O_RDWR),
    "write": lambda: os.write(file, b"x"),
    "writev": lambda: os.writev(file, [b"x"]),
    "pwrite": lambda: os.pwrite(file, b"x", 0),
    "map to write": lambda: call(9, 0, 4096, 3, 1, file, 0),
    "map to run": lambda: call(9, 0, 4096, 7, 0x22, -1, 0),
    "link": lambda: os.link(path, path + b".x"),
    "folder": lambda: os.mkdir(path + b".d"),
    "mode": lambda: os.chmod(path, 0o777),
    "owner": lambda: os.chown(path, os.getuid(), -1),
    "process_vm_writev": lambda: call(311, victim, 0, 0, 0, 0, 0),
    "ptrace": lambda: call(101, 0x4206, victim, 0, 0),
    "unshare": lambda: call(272, 0),
    "io_uring": lambda: call(425, 1, 0),
    "signal": lambda: os.kill(victim, 0),
    "ioctl": lambda: call(16, file, 0x5451, 0),
    "internet": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
    "internet 6": lambda: socket.socket(socket.AF_INET6, socket.SOCK_STREAM),
    "datagrams": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0),
    "unix": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
    "connect": lambda: call(42, unix[0].fileno(), 0, 0),
    "connect by sending": lambda: unix[0].sendmsg([b"x"], [], 0x20000000),
    "enter mounts": lambda: call(308, file, 0x20000),
    "remove": lambda: os.unlink(path),
}
work = serve.work_of(name, "", "/k", "/c")
capability.keep(work.capabilities)
if confined == "confined":
    confine.confine(work.calls, work.sockets)
done = []
with capability.raised():
    for what, attempt in tries.items():
        try:
            attempt()
        except OSError as error:
            if error.errno == 1:
                continue
        done.append(what)
back.sendmsg(["\\n".join(done).encode()])
"""

MAY = {
    "files": set(),
    "sockets": {"unix", "connect", "remove"},
    "network": {"internet", "internet 6"},
    "stacks": set(),
}
"""What a helper whose code somebody runs may do of all that: nothing that changes the node."""


def taken(work: str, how: str, folder: Path) -> set[str]:
    """What succeeds of the tries, or fails for another reason than that it is not allowed."""
    (folder / "file").write_text("x")
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its, subprocess.Popen(["sleep", "60"]) as victim:
        arguments = [work, str(folder / "file"), str(victim.pid), str(its.fileno()), how]
        command = [sys.executable, "-c", TRIES, *arguments]
        try:
            subprocess.run(command, pass_fds=[its.fileno()], check=True)
        finally:
            victim.kill()
        return set(ours.recv(1 << 16).decode().splitlines())


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="calls by their numbers on x86-64")
@pytest.mark.parametrize("work", MAY)
def test_whoever_takes_a_helper_over_changes_nothing_and_leaves_by_no_other_way(
    work: str, tmp_path: Path
) -> None:
    assert taken(work, "confined", tmp_path) == MAY[work]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="calls by their numbers on x86-64")
@as_root
def test_without_its_list_of_calls_it_could_do_nearly_all(tmp_path: Path) -> None:
    assert len(taken("files", "free", tmp_path)) >= 25


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


def test_the_helper_is_small_and_loads_nothing_that_parses_or_serves() -> None:
    lines = 0
    for path in PACKAGE.glob("*.py"):
        text = path.read_text()
        tree = ast.parse(text)
        said = {
            line
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            for line in range(node.lineno, (node.end_lineno or 0) + 1)
        }
        code = {
            line
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
            for line in range(token.start[0], token.end[0] + 1)
        }
        lines += len(code - said)
    assert lines <= 680
    load = "import gpunode.helper.serve, sys; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True, check=True)
    loaded = {name for name in ran.stdout.split() if "gpunode" in name}
    assert all(name == "gpunode" or re.match(r"gpunode\.helper\b", name) for name in loaded)
    for parser in ("json", "xml", "email", "http", "yaml", "pydantic", "urllib.request", "ssl"):
        assert parser not in ran.stdout.split()
