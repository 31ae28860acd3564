"""The socket of gpunode.client under attack: real sockets, processes, folders and PIDs."""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.client import Session
from gpunode.client.protocol import KERNELS, MAX_MESSAGE_BYTES, PHASES, VERSION
from gpunode.client.sender import SEND_TIMEOUT
from gpunode.config.daemon import ClientSettings, Settings
from gpunode.holders.census import Census
from gpunode.jobs.steps import BACKLOG, EXPORT_SECONDS, OTHER, Message, TrainingSteps, parse
from gpunode.node import patience
from gpunode.node.datagram_socket import (
    CREDENTIALS,
    MAX_PER_SENDER,
    MAX_PER_STRANGER,
    MAX_STRANGERS,
    Datagram,
    DatagramSocket,
    start_of,
)
from gpunode.node.local import LocalNode
from gpunode.source import MAX_ITEMS, Absent
from tests import conftest
from tests.conftest import values
from tests.fakes.dead_file import kept
from tests.fakes.nvml import FakeDriver
from tests.machine import OneGpu, exported, read_source
from tests.needs import as_root

NOBODY = 65534
TOKENS = "gpunode_training_tokens_total"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def path() -> Iterator[Path]:
    """A socket's path: 108 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="g", dir="/tmp") as folder:
        yield Path(folder, "client.sock")


def listening(node: OneGpu, path: Path) -> TrainingSteps:
    source = TrainingSteps(Census(node), Settings(client=ClientSettings(socket=str(path))))
    list(source.find())
    return source


def exported_series(source: TrainingSteps) -> conftest.Series:
    return conftest.parse(exported(read_source(source)) + "\n")


def total(source: TrainingSteps, name: str, **labels: str) -> float:
    return sum(values(exported_series(source), name, **labels))


def results(source: TrainingSteps, result: str) -> float:
    return total(source, "gpunode_client_messages_total", result=result)


def send(path: Path, *messages: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        for message in messages:
            client.sendto(message, str(path))


def wait_for(source: TrainingSteps, result: str, at_least: float) -> None:
    conftest.until(lambda: results(source, result) >= at_least)


class DatagramNode(OneGpu):
    """A node to which the test hands datagrams, as the socket would."""

    def __init__(self, *pids: int) -> None:
        super().__init__(*pids)
        self.came: list[Datagram] = []

    def tell(self, pid: int, **fields: object) -> None:
        text = json.dumps({"v": VERSION, **fields})
        self.came.append(Datagram(pid, text, start_of(pid)))

    def datagrams(self, *_: object) -> list[Datagram]:
        came, self.came = self.came, []
        return came


# The path of the socket.


def test_no_link_in_place_of_the_socket_opens_a_file_to_all(path: Path) -> None:
    """A process that may write to the folder swaps the socket for a link right after bind."""
    victim = path.with_name("secret")
    victim.touch(0o600)
    swap = f"""
import os
while True:
    try:
        os.unlink({str(path)!r}); os.symlink({str(victim)!r}, {str(path)!r})
    except OSError: pass
"""
    with subprocess.Popen([sys.executable, "-c", swap]) as attacker, socket.socket() as another:
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                receiver = DatagramSocket(str(path))
                listener, receiver._socket = receiver._socket, another  # its thread ends at
                listener.shutdown(socket.SHUT_RD)  # the next datagram, or the end of all
            path.unlink(missing_ok=True)
        attacker.kill()
    assert stat.S_IMODE(victim.stat().st_mode) == 0o600


def put_file(path: Path) -> None:
    path.write_text("not a socket")


def put_folder(path: Path) -> None:
    path.mkdir()


def put_fifo(path: Path) -> None:
    os.mkfifo(path)


def put_dead_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(path))


def put_link_to_dead_socket(path: Path) -> None:
    put_dead_socket(path.with_name("other.sock"))
    path.symlink_to("other.sock")


def put_dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


def put_dead_socket_of_another(path: Path) -> None:
    put_dead_socket(path)
    os.chown(path, NOBODY, NOBODY)


@pytest.mark.parametrize(
    "put",
    [
        put_file,
        put_folder,
        put_fifo,
        put_link_to_dead_socket,
        put_dangling_link,
        pytest.param(put_dead_socket_of_another, marks=as_root),
    ],
)
def test_what_is_no_socket_of_ours_stays_where_it_is(
    put: Callable[[Path], None], path: Path
) -> None:
    put(path)
    before = path.lstat()
    with pytest.raises(Absent, match=r"cannot listen at \S+: something else is there; remove it"):
        listening(OneGpu(), path)
    assert path.lstat() == before


@pytest.mark.parametrize(
    ("mode", "owner", "refused"),
    [
        (0o755, 0, False),
        (0o700, 0, False),
        (0o1777, 0, False),
        (0o777, 0, True),
        (0o775, 0, True),
        (0o757, 0, True),
        pytest.param(0o755, NOBODY, True, marks=as_root),
        pytest.param(0o1777, NOBODY, True, marks=as_root),
    ],
)
def test_a_folder_that_others_may_write_is_refused(
    mode: int, owner: int, refused: bool, path: Path
) -> None:
    if owner:
        os.chown(path.parent, owner, owner)
    path.parent.chmod(mode)
    if not refused:
        listening(OneGpu(), path)
        assert stat.S_IMODE(path.lstat().st_mode) == 0o666
        return
    with pytest.raises(Absent, match=f"others may write to {path.parent}; .*mode 755") as said:
        listening(OneGpu(), path)
    assert "\n" not in str(said.value)
    assert not path.exists()


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_a_folder_that_we_make_is_ours_alone(umask: int, path: Path) -> None:
    before = os.umask(umask)
    try:
        listening(OneGpu(), path.parent / "run" / path.name)
    finally:
        os.umask(before)
    assert not (path.parent / "run").stat().st_mode & 0o022


def receivers() -> int:
    """How many threads receive."""
    return sum(thread.name == "datagrams" for thread in threading.enumerate())


def remove(path: Path) -> None:
    path.unlink()


def replace_with_dead_socket(path: Path) -> None:
    path.unlink()
    put_dead_socket(path)


def remove_with_folder(path: Path) -> None:
    path.unlink()
    path.parent.rmdir()


@pytest.mark.parametrize("lose", [remove, replace_with_dead_socket, remove_with_folder])
def test_a_socket_that_is_lost_is_made_again_at_the_next_read(
    lose: Callable[[Path], None], path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = listening(OneGpu(os.getpid()), path)
    before = receivers()
    for count in (1, 2, 3):
        lose(path)
        exported_series(source)
        send(path, b'{"v":1}')
        wait_for(source, "accepted", count)
    assert [record.getMessage() for record in caplog.records] == [
        f"{path} was removed or replaced; it is there again"
    ]
    conftest.until(lambda: receivers() <= before)


def test_a_socket_that_no_thread_could_serve_is_made_again_at_the_next_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    source = listening(OneGpu(os.getpid()), path)
    before = receivers()
    path.unlink()
    with monkeypatch.context() as patched:
        patched.setattr("gpunode.node.datagram_socket.threading.Thread", Refused)
        for _ in range(2):
            with pytest.raises(OSError, match="can't start new thread"):
                source.read()
    exported_series(source)
    send(path, b'{"v":1}')
    wait_for(source, "accepted", 1)
    conftest.until(lambda: receivers() <= before)


def test_a_socket_replaced_by_a_live_one_fails_the_read(path: Path) -> None:
    source = listening(OneGpu(os.getpid()), path)
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        with pytest.raises(OSError, match="Address already in use"):
            source.read()
    path.unlink(missing_ok=True)
    exported_series(source)
    send(path, b'{"v":1}')
    wait_for(source, "accepted", 1)


# Who sent it.


SENDS = """
import socket, sys, time
path, message = sys.argv[1:]
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
    sender.sendto(message.encode("latin-1"), path)
print("sent", flush=True)
time.sleep(60)
"""


@contextlib.contextmanager
def child_that_sends(path: Path, message: bytes, pid: int | None = None) -> Iterator[int]:
    """A process that has sent a message and lives on, with a PID if one is given."""
    if pid is not None:
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
    command = [sys.executable, "-c", SENDS, str(path), message.decode("latin-1")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline()
            yield child.pid
        finally:
            child.kill()


def with_pid(pid: int, path: Path, message: bytes, then: Callable[[], None]) -> None:
    """Do something while a process with a given PID lives that has sent a message."""
    for _ in range(50):  # others on this machine fork, too
        with child_that_sends(path, message, pid) as child:
            if child == pid:
                then()
                return
    pytest.skip("the PID is taken")


@as_root
@pytest.mark.parametrize("listed", [False, True], ids=["left the GPU", "still listed"])
def test_a_process_with_the_pid_of_an_ended_trainer_is_not_believed(
    listed: bool, path: Path
) -> None:
    node = OneGpu()
    source = listening(node, path)
    with child_that_sends(path, b'{"v":1,"tokens":5}') as trainer:
        node.pids = (trainer,)
        wait_for(source, "accepted", 1)
    node.stepped.now += 20  # a tick of the clock in which processes start is 10 ms
    node.pids = (trainer,) if listed else ()
    exported_series(source)
    before = results(source, "no_gpu")
    with_pid(
        trainer,
        path,
        b'{"v":1,"tokens":7}',
        lambda: wait_for(source, "no_gpu", before + 1),
    )
    assert total(source, TOKENS) == 5


def test_a_trainer_that_left_the_gpu_is_believed_for_a_while(path: Path) -> None:
    """Its last message counts, but no steady reports: the GPU is another's by now."""
    node = OneGpu(os.getpid())
    source = listening(node, path)
    send(path, b'{"v":1,"tokens":5}')
    wait_for(source, "accepted", 1)
    node.pids = ()
    for count in (2, 3):
        node.stepped.now += 0.4 * EXPORT_SECONDS
        send(path, b'{"v":1,"tokens":5}')
        wait_for(source, "accepted", count)
    assert total(source, TOKENS) == 15
    node.stepped.now += 0.4 * EXPORT_SECONDS
    send(path, b'{"v":1,"tokens":5}')
    wait_for(source, "no_gpu", 1)
    assert values(exported_series(source), TOKENS) == []


def test_passed_descriptors_are_neither_kept_nor_taken_for_credentials(path: Path) -> None:
    source = listening(OneGpu(os.getpid()), path)
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(64)]
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
    before = len(os.listdir("/proc/self/fd"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        for _ in range(5):
            client.sendmsg([b'{"v":1}'], rights, 0, str(path))
    wait_for(source, "accepted", 5)
    for file in files:
        os.close(file)
    assert len(os.listdir("/proc/self/fd")) <= before - len(files)


# What it says.

HUGE = [
    b'{"v":1,"tokens":1e24}',
    b'{"v":1,"tokens":1e13}',
    b'{"v":1,"tokens":1e400}',
    b'{"v":1,"tokens":' + b"9" * 400 + b"}",
    b'{"v":1,"tokens":"NaN"}',
    b'{"v":1,"samples":Infinity}',
    b'{"v":1,"flops":1e24}',
    b'{"v":1,"median":NaN}',
    b'{"v":1,"since_step":-Infinity}',
    b'{"v":1,"steps":{"counts":[10000000]}}',
    b'{"v":1,"steps":{"counts":[' + b"9" * 400 + b"]}}",
    b'{"v":1,"steps":{"sum":1e24}}',
    b'{"v":1,"requests":{"sum":1e24}}',
    b'{"v":1,"requests":{"items":1e24}}',
    b'{"v":1,"phases":{"step":NaN}}',
    b'{"v":1,"kernels":{"k":NaN}}',
    b'{"v":1,"nonfinite_losses":' + b"9" * 8000 + b"}",
    b'{"v":1,"step":1e300}',
    b'{"v":1,"collected":1e24}',
    b'{"v":1,"collecting":Infinity}',
    b'{"v":1,"memory":{"ooms":1e300}}',
    b'{"v":' + b"9" * 400 + b"}",
    b'{"v":1,"phase":"lunch\\n\\u001b[2J"}',
    b'{"v":1,"kernels":' + b'{"a":' * 1000 + b"1" + b"}" * 1001,
]


def test_what_no_process_can_do_is_malformed(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = listening(OneGpu(os.getpid()), path)
    send(path, b'{"v":1,"tokens":3}')
    for number, message in enumerate(HUGE):
        send(path, message)
        wait_for(source, "malformed", number + 1)
        assert results(source, "accepted") == 1, message
    send(path, b'{"v":1,"tokens":4}')
    wait_for(source, "accepted", 2)
    assert total(source, TOKENS) == 7
    assert not caplog.records


MAX_MESSAGE = {
    "tokens": 1e12,
    "samples": 1e12,
    "flops": 1e21,
    "phases": dict.fromkeys(PHASES, 1.0),
    "steps": {"counts": [10**6], "sum": 1e9},
    "phase": "step",
}
"""The most that a message may say."""


def test_what_an_ended_process_said_is_no_part_of_what_the_next_one_says(path: Path) -> None:
    node = DatagramNode(1)
    source = listening(node, path)
    for _ in range(MAX_PER_SENDER):
        node.tell(1, **MAX_MESSAGE)
    # Each message tells of a second in every phase, and only so many seconds can have passed.
    assert total(source, TOKENS) == 1e12 * BACKLOG / len(PHASES)
    assert values(exported_series(source), "gpunode_training_mfu_ratio") == []
    node.pids = (os.getpid(),)
    node.tell(os.getpid(), tokens=7, flops=8, phases={"step": 1}, steps={"counts": [2], "sum": 1})
    assert total(source, TOKENS) == 7
    assert total(source, "gpunode_training_flops_total") == 8
    assert total(source, "gpunode_training_seconds_total") == 1
    assert total(source, "gpunode_training_step_seconds_count") == 2


def test_processes_that_share_a_gpu_start_over_when_one_is_forgotten(path: Path) -> None:
    """A counter never falls but to 0, so that no rate shows an increase that never was."""
    node = DatagramNode(1, os.getpid())
    source = listening(node, path)
    node.tell(1, **MAX_MESSAGE)
    node.tell(os.getpid(), tokens=7, memory={"ooms": 3})
    assert total(source, TOKENS) == 1e12 + 7
    node.pids = (os.getpid(),)
    node.stepped.now += EXPORT_SECONDS / 2
    assert total(source, TOKENS) == 1e12 + 7
    node.stepped.now += EXPORT_SECONDS
    assert total(source, TOKENS) == 0
    node.tell(os.getpid(), tokens=7, memory={"ooms": 4})
    assert total(source, TOKENS) == 7
    assert total(source, "gpunode_torch_ooms_total") == 1


def test_kernels_with_ever_new_names_are_bounded_and_printable(path: Path) -> None:
    node = DatagramNode(os.getpid())
    source = listening(node, path)
    seen: set[str] = set()
    for turn in range(3 * MAX_ITEMS // KERNELS):
        names = {f"\x1b[2J\n{turn}-{number}": 0.5 for number in range(KERNELS)}
        node.tell(os.getpid(), kernels=names)
        seen |= set(
            conftest.by_label(exported_series(source), "gpunode_training_kernel_seconds", "kernel")
        )
    assert len(seen) == MAX_ITEMS + 1
    assert OTHER in seen
    assert all(name.isprintable() for name in seen)
    assert total(source, "gpunode_training_kernel_seconds", kernel=OTHER) == 0.5 * KERNELS


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=10), inner),
    max_leaves=8,
)
FIELDS = st.sampled_from([*Message.__dataclass_fields__, "counts", "sum", "ooms", "step"])
LIKELY = st.recursive(
    st.integers() | st.floats() | st.sampled_from(PHASES) | JSON,
    lambda inner: st.lists(inner) | st.dictionaries(FIELDS, inner),
    max_leaves=8,
)


@given(
    st.binary(max_size=200)
    | st.dictionaries(FIELDS, LIKELY).map(lambda told: json.dumps({**told, "v": VERSION}).encode())
)
def test_any_bytes_are_a_valid_message_or_none(content: bytes) -> None:
    try:
        message = parse(content[:MAX_MESSAGE_BYTES].decode("utf-8", "replace"))
    except ValueError:
        return
    assert message.v == VERSION
    assert {message.phase, *message.phases} <= set(PHASES)
    assert len(message.kernels) <= KERNELS
    amounts = [
        *message.phases.values(),
        *message.kernels.values(),
        *message.steps.counts,
        message.steps.sum,
        message.tokens,
        message.samples,
        message.flops or 0.0,
        message.median or 0.0,
        message.since_step or 0.0,
    ]
    assert all(0 <= amount <= 1e21 for amount in amounts)


# How much of it.


def test_who_sends_too_much_waits_in_a_bounded_room(path: Path) -> None:
    receiver = DatagramSocket(str(path))
    send(path, *[b"x" * MAX_MESSAGE_BYTES] * 3 * MAX_PER_SENDER)
    conftest.until(lambda: receiver._dropped == 3 * MAX_PER_SENDER - MAX_PER_STRANGER)
    taken = receiver.take([os.getpid()])
    assert len(taken) == MAX_PER_STRANGER + 1
    assert taken[-1] == Datagram(0, "", dropped=3 * MAX_PER_SENDER - MAX_PER_STRANGER)
    send(path, *[b"x"] * 3 * MAX_PER_SENDER)
    conftest.until(lambda: receiver._dropped == 2 * MAX_PER_SENDER)
    assert len(receiver.take([])) == MAX_PER_SENDER + 1


@as_root
def test_a_sender_that_never_comes_to_its_program_keeps_no_other_unheard(path: Path) -> None:
    node, me, taken = LocalNode(Path("/")), os.getpid(), list[Datagram]()
    node.datagrams(str(path), ())
    with kept(NOBODY) as dead, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        for pid in (dead.closes, me):  # root may send as any process
            sender = socket.SOL_SOCKET, socket.SCM_CREDENTIALS, CREDENTIALS.pack(pid, 0, 0)
            client.sendmsg([b"x"], [sender], 0, str(path))
        deadline = time.monotonic() + 20 * patience.TIMEOUT
        while len(taken) < 2 and time.monotonic() < deadline:
            taken += node.datagrams(str(path), ())
            time.sleep(0.05)
    assert [(one.pid, one.start) for one in taken] == [(dead.closes, None), (me, start_of(me))]


def test_ever_new_processes_leave_room_for_a_known_one(path: Path) -> None:
    receiver = DatagramSocket(str(path))
    receiver.take([os.getpid()])
    for pid in range(-1, -3 * MAX_STRANGERS, -1):
        receiver._keep(pid, b"x" * MAX_MESSAGE_BYTES)
    send(path, b"mine")
    conftest.until(lambda: os.getpid() in receiver._waiting)
    taken = receiver.take([])
    assert len(taken) == MAX_STRANGERS + 2
    assert (os.getpid(), "mine") in [(datagram.pid, datagram.text) for datagram in taken]


FLOOD = """
import socket, sys, time
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.setblocking(False)
message = b'{"v":1,"tokens":1}' + b' ' * 4000
while True:
    try: s.sendto(message, sys.argv[1])
    except BlockingIOError: pass
    except OSError: time.sleep(0.01)
"""

TRAIN = """
import time
from gpunode import client
for _ in range(30):
    time.sleep(0.1)
    client.step(tokens=10)
client.flush()
time.sleep(60)
"""


def test_a_flood_costs_a_healthy_trainer_nothing_and_the_daemon_little(
    path: Path, fake: FakeDriver
) -> None:
    fake.write("gpus 1\n")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "exporter"),
        "GPUNODE_CLIENT_SOCKET": str(path),
    }
    with (
        conftest.watching(fake, f"--client.socket={path}", "--client.interval=1") as running,
        subprocess.Popen([sys.executable, "-c", FLOOD, str(path)]) as flooder,
        subprocess.Popen([sys.executable, "-c", TRAIN], env=environment) as trainer,
    ):
        try:
            fake.write(f"gpus 1\ngpu 0 process {trainer.pid} 1000000\n")
            begin, cpu = time.monotonic(), running.cpu_seconds()
            conftest.until(lambda: sum(values(conftest.scrape(running), TOKENS)) >= 290)
            share = (running.cpu_seconds() - cpu) / (time.monotonic() - begin)
            series = conftest.scrape(running)
        finally:
            flooder.kill()
            trainer.kill()
    assert sum(values(series, "gpunode_training_step_seconds_count")) >= 28
    assert sum(values(series, "gpunode_client_messages_total", result="dropped")) > 1000
    assert share < 0.3


@pytest.fixture
def full(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket whose queue is full, to which this process's sessions send."""
    monkeypatch.setenv("GPUNODE_CLIENT_SOCKET", str(path))
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler,
    ):
        deaf.bind(str(path))
        filler.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                filler.sendto(b"x", str(path))
        yield deaf


def tokens(full: socket.socket) -> Iterator[int]:
    """The tokens in each message that waits."""
    full.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            received = full.recv(MAX_MESSAGE_BYTES)
            if received != b"x":
                yield json.loads(received)["tokens"]


def test_training_goes_on_while_the_sender_waits(full: socket.socket) -> None:
    session = Session()
    session.step(tokens=1)
    assert session._sender is not None
    waits = session._sender._lock.locked
    steps = 1

    def steps_meanwhile() -> bool:
        nonlocal steps
        before = waits()
        for _ in range(100):
            session.step(tokens=1)
        steps += 100
        return before and waits()

    conftest.until(steps_meanwhile)
    begin = time.monotonic()
    session.flush()
    assert time.monotonic() - begin < 10 * SEND_TIMEOUT
    arrived: list[int] = []

    def all_arrived() -> bool:
        session.flush()
        arrived.extend(tokens(full))
        return sum(arrived) >= steps

    conftest.until(all_arrived)
    assert sum(arrived) == steps


def test_a_client_gets_its_turn_at_a_full_socket(full: socket.socket) -> None:
    session = Session()
    session.step(tokens=1)
    reader = threading.Timer(SEND_TIMEOUT / 5, full.recv, (MAX_MESSAGE_BYTES,))
    reader.start()
    session.flush()
    reader.join()
    assert sum(tokens(full)) == 1
