"""Tenants whose processes answer as a RAS service with whatever they like, on real sockets."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpunode.helper.tcp
from gpunode.config.daemon import Settings
from gpunode.driver.driver import Gpu
from gpunode.helper.tcp import ServerSocket, TcpProcess, socket_inodes
from gpunode.holders import asked
from gpunode.holders.census import Census
from gpunode.nccl import ras
from gpunode.nccl.ras import NcclRas
from gpunode.nccl.ras_answer import COLLECTIVES, FAILED, LINES, MAX_AWAITED
from gpunode.node.local import LocalNode, SystemClock
from tests.conftest import scrape, until, values, watching
from tests.daemon import free_ports
from tests.fakes.nvml import FakeDriver
from tests.fuzz.table import ras_answer
from tests.machine import MachineGpu, OneGpu
from tests.nccl.ras import HOSTS, RasNode, page, rank, ras_server, status
from tests.needs import as_root

TENANT = """
import os, socket, sys, time
user, port, answer = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if user:
    os.setgroups([])
    os.setuid(user)
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind(("127.0.0.1", port))
listener.listen(64)
print("ready", flush=True)
held = []
while True:
    connection, _ = listener.accept()
    with open(answer) as file:
        said = file.read()
    if said == "SILENT":
        held.append(connection)
        continue
    if said == "DRIP":
        connection.sendall(b" ")
        held.append(connection)
        continue
    asked = connection.recv(4096)
    if asked:
        print("asked", flush=True)
    try:
        connection.sendall(said.encode())
    except OSError:
        pass
    connection.close()
"""


@dataclass
class Tenant:
    """A process of a user that holds a GPU and answers what is in a file."""

    process: subprocess.Popen[str]
    port: int
    file: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def says(self, answer: str) -> None:
        unfinished = self.file.with_suffix(".new")
        unfinished.write_text(answer)
        unfinished.replace(self.file)


Hire = Callable[..., Tenant]


@pytest.fixture
def hire() -> Iterator[Hire]:
    """Start tenants: by user, port (any), and the port that they say they serve at (that one)."""
    with contextlib.ExitStack() as stack:
        # Not pytest's folder, which only we may enter.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="g", dir="/tmp")))
        folder.chmod(0o755)

        def start(user: int, port: int | None = None, claims: int | None = None) -> Tenant:
            (free,) = free_ports(1)
            port = port or free
            file = folder / f"{user}-{free}"
            file.write_text("")
            child = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-ISc", TENANT, str(user), str(port), str(file)],
                    env={"NCCL_RAS_ADDR": f"127.0.0.1:{claims or port}"},
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(child.kill)
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            return Tenant(child, port, file)

        yield start


class SharedNode(OneGpu):
    """This machine with a GPU for each tenant; time is the test's."""

    def __init__(self, *tenants: Tenant) -> None:
        super().__init__()
        self.tenants = tenants

    def gpus(self) -> list[Gpu]:
        listed = [
            MachineGpu(at, f"GPU-{at}", str(at), (tenant.pid,))
            for at, tenant in enumerate(self.tenants)
        ]
        return [*listed]


def at(pid: int, launched: int, host: str = "127.0.0.1", number: int = 0) -> dict[str, object]:
    """A rank at a process."""
    return {**rank(number, launched), "pid": pid, "host": host, "nvml_dev": number}


def gone_rank(number: int, host: str = "10.9.9.9", pid: int = 9) -> dict[str, object]:
    """A rank that does not answer any more."""
    return {**at(pid, 0, host, number), "status": {"considered_dead": True}}


def counted(found: str) -> dict[str, float]:
    """The AllReduces of every GPU."""
    lines = re.findall(r'collective="AllReduce",gpu="(\d+)".* (\S+)', found)
    return {gpu: float(value) for gpu, value in lines}


def awaited(found: str) -> set[str]:
    """The numbers of the awaited ranks."""
    return set(re.findall(r'awaited_rank_info\{.*rank="(\d+)"', found))


@as_root
def test_an_answer_adds_nothing_to_the_gpu_of_another_tenant(hire: Hire) -> None:
    liar, victim = hire(1001), hire(1002)
    source = NcclRas(Census(SharedNode(liar, victim)), Settings())
    victim.says(status([at(victim.pid, 50)], name="0xb"))
    for launched in (0, 7_000_000):
        mine = [at(liar.pid, launched), at(victim.pid, launched, number=1)]
        liar.says(status(mine, name="0xb"))
        found = page(source)
    assert counted(found) == {"0": 7_000_000, "1": 0}


@as_root
def test_a_rank_that_others_await_here_is_never_at_the_process_of_another_tenant(
    hire: Hire,
) -> None:
    liar, victim = hire(1001), hire(1002)
    forged = [gone_rank(5, "127.0.0.1", victim.pid), gone_rank(6, "10.9.9.9", victim.pid)]
    liar.says(status([at(liar.pid, 1)], forged))
    assert awaited(page(NcclRas(Census(SharedNode(liar, victim)), Settings()))) == {"6"}


@as_root
def test_forged_ranks_crowd_out_no_true_one(hire: Hire) -> None:
    liar, victim = hire(1001), hire(1002)
    liar.says(status([at(liar.pid, 1)], [gone_rank(number) for number in range(100, 1100)], "0x0"))
    victim.says(status([at(victim.pid, 1)], [gone_rank(7)], name="0xf"))
    found = awaited(page(NcclRas(Census(SharedNode(liar, victim)), Settings())))
    assert "7" in found
    assert len(found) == MAX_AWAITED + 1


@as_root
def test_a_process_that_serves_where_another_says_it_does_is_not_asked(hire: Hire) -> None:
    (port,) = free_ports(1)
    victim = hire(1002, port)
    liar = hire(1001, claims=port)
    victim.says(status([at(liar.pid, 1)], [gone_rank(7)]))
    assert page(NcclRas(Census(SharedNode(liar)), Settings())) == ""
    victim.process.kill()
    assert victim.process.stdout is not None
    assert victim.process.stdout.read() == ""


def test_of_processes_that_share_an_address_the_one_in_question_answers(hire: Hire) -> None:
    one = hire(0)
    other = hire(0, one.port)
    node = LocalNode(Path("/"))
    for tenant in (one, other):
        tenant.says(f"process {tenant.pid}")
    for _ in range(5):
        for tenant in (one, other):
            said = node.ask(tenant.pid, f"127.0.0.1:{one.port}", "STATUS\n")
            assert said == f"process {tenant.pid}"


SHARES = """
import os, socket, sys, time
listener = socket.create_server(("127.0.0.1", 0))
if os.fork():
    print(listener.getsockname()[1], flush=True)
    time.sleep(60)
listener.settimeout(60)
connection, _ = listener.accept()
connection.sendall(connection.recv(99))
"""


@as_root
def test_a_connection_that_another_process_takes_is_sent_nothing() -> None:
    command = [sys.executable, "-c", SHARES]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waits:
        assert waits.stdout
        port = waits.stdout.readline().strip()
        try:
            with pytest.raises(TimeoutError):
                LocalNode(Path("/")).ask(waits.pid, f"127.0.0.1:{port}", "STATUS\n")
        finally:
            waits.kill()


def test_nobody_connects_to_another_machine_where_a_process_listens_at_that_port() -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        address = f"192.0.2.1:{listener.getsockname()[1]}"
        with pytest.raises(OSError, match=r".") as refused:
            LocalNode(Path("/")).ask(os.getpid(), address, "STATUS\n")
        assert refused.value.errno == errno.EADDRNOTAVAIL


def test_a_file_with_the_number_of_a_socket_is_none(tmp_path: Path) -> None:
    (tmp_path / "fdinfo").mkdir()
    with socket.socket() as one:
        told = Path(f"/proc/self/fdinfo/{one.fileno()}").read_text()
        (tmp_path / "fdinfo/3").write_text(told)
        (tmp_path / "fdinfo/4").write_text("pos:\t0\nflags:\t0\nmnt_id:\t0\nino:\t7\n")
        assert socket_inodes(str(tmp_path)) == {str(os.fstat(one.fileno()).st_ino)}


@pytest.mark.parametrize("user", [0, 1001])
def test_the_name_of_a_process_does_not_make_the_server_of_another_user_its_own(
    user: int, tmp_path: Path
) -> None:
    status = "Name:\tx\rUid:\t0\t0\nUid:\t1001\t1001\t1001\t1001\n"
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/status").write_text(status, newline="")
    process = TcpProcess(f"{tmp_path}/proc/7", lambda: None)
    assert process.has(ServerSocket(True, user, 0)) == (user == 1001)


def communicators(count: int) -> str:
    """An answer with many communicators."""
    one = '{"hash":"0x1","size":1}'
    return '{"communicators":[' + ",".join([one] * count) + "]}"


def with_ranks(ranks: str, count: int) -> str:
    """An answer with a communicator of many ranks."""
    whole = ",".join([ranks] * count)
    return '{"communicators":[{"hash":"0x1","size":1,"ranks":[' + whole + "]}]}"


def counting(counts: str) -> str:
    """An answer with a rank, at the process PID, that launched something."""
    return with_ranks('{"rank":0,"pid":PID,"collective_counts":' + counts + "}", 1)


MANY_NAMES = "{" + ",".join(f'"name{number}":1' for number in range(20_000)) + "}"
TEXT_HEAD = "Group     Comms     Nodes\n#0-0 (1) MISMATCH\n"
FORM_STATES = {
    "silence": "SILENT",
    "a drop": "DRIP",
    "garbage": "SERVER PROTOCOL 2\n\x00\xff\x1b[31m",
    "deep arrays": '{"communicators":' + "[" * 100_000,
    "deep objects": '{"communicators":[{"x":' + '{"a":' * 100_000,
    "deep where it does not matter": '{"x":' + "[" * 700 + "]" * 700 + ',"communicators":[]}',
    "a number of 400 digits": counting('{"AllReduce":' + "9" * 400 + "}"),
    "a number of 5,000 digits": counting('{"AllReduce":' + "9" * 5000 + "}"),
    "no number": counting('{"AllReduce":NaN}'),
    "an infinite number": counting('{"AllReduce":1e999}'),
    "a negative number": counting('{"AllReduce":-7}'),
    "150,000 ranks": with_ranks('{"rank":0}', 150_000),
    "50,000 communicators": communicators(50_000),
    "20,000 collectives": counting(MANY_NAMES),
    "a name of 2 MB": counting('{"' + "x" * 2_000_000 + '":1}'),
    "a hash of 2 MB": '{"communicators":[{"hash":"' + "1" * 2_000_000 + '","size":1}]}',
    "a lone surrogate": '{"communicators":[{"hash":"\\ud800","size":1}]}',
    "many lines": TEXT_HEAD + "a\n" * 150_000,
    "a long line": TEXT_HEAD + " " * 2_000_000,
}


@as_root
@pytest.mark.parametrize("form", FORM_STATES)
def test_what_one_tenant_says_harms_no_other(
    form: str, hire: Hire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpunode.helper.tcp, "DEADLINE", 2.0)
    monkeypatch.setattr(asked, "ANSWERS_TIMEOUT", 0.5)
    liar, victim = hire(1001), hire(1002)
    node = SharedNode(liar, victim)
    source = NcclRas(Census(node), Settings())
    liar.says(FORM_STATES[form].replace("PID", str(liar.pid)))
    victim.says(status([at(victim.pid, 50)], [gone_rank(7)]))
    found = until(lambda: one if awaited(one := page(source)) == {"7"} else None)
    assert len(found) < 10_000
    victim.says(status([at(victim.pid, 60), at(9, 60, number=7)]))
    node.stepped.now += 10
    found = until(lambda: None if awaited(one := page(source)) else one)
    assert counted(found)["1"] == 10


@pytest.mark.parametrize("answer", ["SILENT", "DRIP", "garbage", '{"communicators": 3}'])
def test_what_a_service_said_ends_when_it_does_not_answer(
    answer: str, hire: Hire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpunode.helper.tcp, "DEADLINE", 0.4)
    monkeypatch.setattr(asked, "ANSWERS_TIMEOUT", 0.2)
    tenant = hire(0)
    node = SharedNode(tenant)
    source = NcclRas(Census(node), Settings())
    tenant.says(status([at(tenant.pid, 50)], [gone_rank(7)]))
    assert awaited(page(source)) == {"7"}
    tenant.says(answer)
    node.stepped.now += 10
    with contextlib.suppress(ValueError):
        assert page(source) == ""


def test_however_many_services_hang_two_are_asked_at_a_time(
    hire: Hire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may send as much as the daemon takes of an answer."""
    monkeypatch.setattr(asked, "ANSWERS_TIMEOUT", 0.2)
    tenants = [hire(user) for user in range(4)]
    source = NcclRas(Census(SharedNode(*tenants)), Settings())
    for tenant in tenants:
        tenant.says("SILENT")
    page(source)
    assert len(source._asked.now) == ras.MAX_PARALLEL


def test_a_service_that_no_thread_could_ask_is_asked_at_the_next_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with ras_server() as server:
        server.answer = status([rank(0, 5, os.getpid())], [gone_rank(7)])
        source = NcclRas(Census(RasNode(server.port)), Settings())
        with monkeypatch.context() as patched:
            patched.setattr(asked, "Thread", Refused)
            with pytest.raises(OSError, match="can't start new thread"):
                source.read()
        assert awaited(page(source)) == {"7"}


def test_the_memory_for_an_answer_does_not_grow_with_it() -> None:
    for form in sorted(FORM_STATES.keys() - {"silence", "a drop"}):
        text = FORM_STATES[form].replace("PID", "1")
        tracemalloc.start()
        try:
            with contextlib.suppress(ValueError):
                ras.parse(text)
            assert tracemalloc.get_traced_memory()[1] < 16 << 20, form
        finally:
            tracemalloc.stop()


def test_nothing_of_an_answer_is_kept_once_it_is_refused() -> None:
    with ras_server() as server:
        server.answer = "x" * 2_000_000
        source = NcclRas(Census(RasNode(server.port)), Settings())
        tracemalloc.start()
        try:
            with contextlib.suppress(ValueError):
                source.read()
            assert tracemalloc.get_traced_memory()[0] < 1 << 20
        finally:
            tracemalloc.stop()


class Crowd(OneGpu):
    """This machine, on which the threads of this process pass for tenants with silent services.

    Each has an address of its own, and GPU 0; this process has GPU 1.
    """

    def __init__(self, silent: int, threads: list[int], port: int) -> None:
        super().__init__()
        self.clock = SystemClock()
        self.silent = silent
        self.threads = threads
        self.port = port

    def gpus(self) -> list[Gpu]:
        return [
            MachineGpu(0, "GPU-0", "0", tuple(self.threads)),
            MachineGpu(1, "GPU-1", "1", (os.getpid(),)),
        ]

    def environment(self, pid: int) -> dict[str, str]:
        if pid == os.getpid():
            return {"NCCL_RAS_ADDR": f"127.0.0.1:{self.port}"}
        return {"NCCL_RAS_ADDR": f"127.0.1.{self.threads.index(pid)}:{self.silent}"}


def test_any_number_of_silent_services_on_a_gpu_delay_none_on_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpunode.helper.tcp, "DEADLINE", 0.1)
    monkeypatch.setattr(asked, "ANSWERS_TIMEOUT", 1.5)
    monkeypatch.setattr(ras, "START", 0.05)
    done = threading.Event()
    threads = [threading.Thread(target=done.wait) for _ in range(200)]
    for thread in threads:
        thread.start()
    try:
        with ras_server() as server, socket.create_server(("0.0.0.0", 0), backlog=512) as silent:
            native = [thread.native_id for thread in threads]
            crowd = [number for number in native if number is not None]
            node = Crowd(silent.getsockname()[1], crowd, server.port)
            source = NcclRas(Census(node), Settings())
            others = threading.active_count()
            begin = time.monotonic()
            for look in range(5):
                server.answer = status([at(os.getpid(), look)], [gone_rank(look)])
                assert awaited(page(source)) == {str(look)}
                assert threading.active_count() < others + 20
            assert time.monotonic() - begin < 30
    finally:
        done.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    "address", ["metadata.internal:80", "192.0.2.1:80", "[fe80::1%lo]:80", "\ud800:1", "a" * 200]
)
def test_no_address_leads_out_of_the_machine_or_to_a_name_server(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*given: object) -> None:
        raise AssertionError(given)

    monkeypatch.setattr(socket.socket, "connect", never)
    monkeypatch.setattr(socket, "getaddrinfo", never)
    with contextlib.suppress(OSError):
        assert page(NcclRas(Census(RasNode(0, {"NCCL_RAS_ADDR": address})), Settings())) == ""


def test_a_rank_of_another_node_with_the_same_pid_counts_for_no_gpu_here() -> None:
    with ras_server() as server:
        node = RasNode(server.port)
        source = NcclRas(Census(node), Settings())
        for launched in (0, 100):
            mine, other = at(os.getpid(), 7), at(os.getpid(), launched, "10.9.9.9", 8)
            server.answer = status([mine, other])
            found = page(source)
            node.stepped.now += 10
    assert counted(found) == {"0": 0}


@pytest.mark.parametrize(
    "host", ["\ud800", "\x00\x1b[31m", 'a"} 1\nforged 1', "x" * 5000, "\u202e", "é"]
)
def test_a_host_is_made_printable_and_short(host: str) -> None:
    with ras_server() as server:
        server.answer = status([at(os.getpid(), 7)], [gone_rank(7, host[:500])])
        found = page(NcclRas(Census(RasNode(server.port)), Settings()))
    (label,) = re.findall(r'awaited_rank_info\{.*host="([^"]*)"', found)
    assert re.fullmatch(r"[?\w.:%\[\]-]{1,64}", label, re.ASCII)


JSON: st.SearchStrategy[object] = st.sampled_from(
    [
        None,
        True,
        [],
        {},
        "",
        "\ud800",
        -1,
        1e308,
        1 << 64,
        [[[]]],
        {"a": {"rank": []}},
        float("nan"),
    ]
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "rank": st.integers(0, 9) | JSON,
        "host": st.sampled_from(HOSTS) | JSON,
        "pid": st.sampled_from([692, 7, -1]) | JSON,
        "nvml_dev": st.integers(-1, 9) | JSON,
        "status": st.dictionaries(
            st.sampled_from(["init_state", "async_error", "considered_dead", "unresponsive"]), JSON
        )
        | JSON,
        "collective_counts": st.dictionaries(
            st.sampled_from(sorted(COLLECTIVES)) | st.text(max_size=9), st.integers() | JSON
        )
        | JSON,
    },
)
RANKS = st.lists(FIELDS, max_size=5) | JSON


@given(
    st.lists(
        st.fixed_dictionaries(
            {"hash": st.sampled_from(["0x1", "ff", "0X1", ""]) | JSON},
            optional={"ranks": RANKS, "missing_ranks": RANKS, "size": JSON, "new": JSON},
        )
        | JSON
    )
    | JSON,
    st.sampled_from([None, 1]),
)
@settings(max_examples=150)
def test_an_answer_of_the_right_form_with_anything_in_it_is_read_or_refused(
    found: object, indent: int | None
) -> None:
    with contextlib.suppress(ValueError):
        ras_answer(json.dumps({"communicators": found}, indent=indent).encode())


def true_answer(ranks: int) -> str:
    """What NCCL says of a job of so many ranks, the last of which is late."""
    whole = [at(number, 50, f"10.0.{number // 256}.1", number) for number in range(ranks)]
    whole[-1] = {**whole[-1], "collective_counts": {"AllReduce": 49}}
    return status(whole)


def test_a_true_answer_of_16384_ranks_fits_and_names_the_late_one() -> None:
    text = true_answer(16_384)
    assert len(re.sub(" +", " ", text)) < gpunode.helper.tcp.MAX_ANSWER_BYTES
    begin = time.process_time()
    (behind,) = ras.parse(text).behind
    assert time.process_time() - begin < 3
    assert [found.number for found in behind.ranks] == [16_383]


LONG_ANSWERS: dict[str, Callable[[int], str]] = {
    "ranks": lambda size: with_ranks('{"rank":0}', size // 11),
    "communicators": lambda size: communicators(size // 24),
    "space": lambda size: '{"communicators":' + " " * size + "[]}",
    "arrays": lambda size: '{"x":[' + "[]," * (size // 3) + '[]],"communicators":[]}',
    "names": lambda size: '{"communicators":[{' + '"a":1,' * (size // 6) + '"hash":"1"}]}',
    "escapes": lambda size: '{"x":"' + "\\\\" * (size // 2) + '","communicators":[]}',
    "lines": lambda size: TEXT_HEAD + "#0-0 (1) MISMATCH\n" * (size // 18),
    "different lines": lambda size: (
        TEXT_HEAD + "".join(f"#0-0 ({number:x}) MISMATCH\n" for number in range(size // 22))
    ),
    "errors": lambda size: (
        TEXT_HEAD + "#0-0 (1) ERROR\n" + " 99999999 ranks reported x\n\ny\n" * (size // 36)
    ),
    "processes": lambda size: (
        TEXT_HEAD
        + "DEAD\n"
        + "".join(f" Process {pid} on node 1 managing GPU 1\n" for pid in range(size // 45))
    ),
    "missing": lambda size: (
        TEXT_HEAD + "#0-0 (1) INCOMPLETE\n" + f" The missing ranks: {'1,' * 60}1\n" * (size // 144)
    ),
    "missing of many": lambda size: (
        TEXT_HEAD
        + "INCOMPLETE\n"
        + "".join(f" Process {pid} on node 1 managing GPU 1\n" for pid in range(FAILED))
        + " The missing rank: 1\n" * (size // 21)
    ),
    "numbers": lambda size: TEXT_HEAD + "1 " * (size // 2),
    "digits": lambda size: TEXT_HEAD + "1" * size,
}
"""Answers by their size."""


def test_the_time_for_an_answer_grows_no_faster_than_it_and_ends() -> None:
    for form in LONG_ANSWERS:
        took = []
        for size in (1 << 18, 1 << 22):
            text = LONG_ANSWERS[form](size)
            begin = time.process_time()
            with contextlib.suppress(ValueError):
                ras.parse(text)
            took.append(time.process_time() - begin)
        assert took[1] < 32 * max(took[0], 0.02), (form, took)


def test_a_text_of_more_lines_than_nccl_writes_is_refused() -> None:
    with pytest.raises(ValueError, match="lines"):
        ras.parse(TEXT_HEAD + "a\n" * (LINES + 1))


def test_ranks_that_recovered_in_the_real_daemon_are_gone_while_another_tenant_is_silent(
    fake: FakeDriver, hire: Hire
) -> None:
    liar, victim = hire(0), hire(0)
    fake.write(f"gpus 2\ngpu 0 process {liar.pid} 1000000\ngpu 1 process {victim.pid} 1000000\n")
    liar.says("SILENT")
    victim.says(status([at(victim.pid, 50)], [gone_rank(7)]))
    name = "gpunode_nccl_awaited_rank_info"
    with watching(fake, "--host.interval=1") as running:
        until(lambda: values(scrape(running), name, rank="7"))
        victim.says(status([at(victim.pid, 50), at(9, 50, number=7)]))
        until(lambda: not values(scrape(running), name))
