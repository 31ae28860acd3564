"""What a tenant can do with the paths, files and variables that the daemon reads because of him.

The tenants are real processes with a root of their own, and the dead mount is a real one of FUSE.
"""

from __future__ import annotations

import ctypes
import gzip
import json
import os
import re
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.audit.source import MAX_FINDING, audit
from gpunode.config.daemon import Settings
from gpunode.helper import files, stacks
from gpunode.helper.environment import MAX_VALUE
from gpunode.holders.census import Census
from gpunode.nccl.log import NcclLogs, line_of, transport
from gpunode.node import patience, privileged
from gpunode.node.inside import ProcessReader
from gpunode.node.local import LocalNode
from gpunode.node.node import MAX_READ, KeptLines, lines_of
from gpunode.node.tape import RecordingNode, TapeNode, TapeWriter
from gpunode.text import escaped, printable
from tests import machine
from tests.conftest import read_again, scrape, until, values, watching
from tests.daemon import free_port
from tests.fakes.dead_file import kept
from tests.fakes.nvml import FakeDriver
from tests.fuzz.seeds import NCCL
from tests.helper.helper import helper, one_at
from tests.machine import MachineGpu, OneGpu, exported, read_source
from tests.needs import as_root
from tests.tenant import SECRET, USER, log_of, owned, root_with_home, says_who, tenant


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return root_with_home(tmp_path)


@as_root
def test_a_daemon_reads_the_logs_of_tenants_and_stays_who_it_is(
    root: Path, fake: FakeDriver
) -> None:
    with tenant(root, NCCL_DEBUG_FILE="/home/nccl.log") as pid:
        owned(root / "home/nccl.log", pid).chmod(0o600)
        fake.write(f"gpu 0 process {pid} 1000\n")
        with watching(fake, "--gpu.processes-interval=1") as running:
            until(lambda: values(scrape(running), "gpunode_nccl_communicator_info"))
            status = Path(f"/proc/{running.process.pid}/status").read_text()
            assert "Uid:\t0\t0\t0\t0" in status


@as_root
def test_a_daemon_reads_what_inspector_writes_and_no_file_that_its_name_leads_to(
    root: Path, fake: FakeDriver
) -> None:
    (root / "etc").mkdir()
    (root / "etc/hostname").write_text("pod-0\n")
    lines = (NCCL / "inspector_2.30.7.jsonl").read_text()
    with tenant(root, NCCL_INSPECTOR_DUMP_DIR="/home/inspector") as pid:
        (root / "home/inspector").mkdir()
        log = root / f"home/inspector/pod-0-pid{pid}.log"
        (root / "root-s").write_text(lines)
        (root / "root-s").chmod(0o600)
        log.symlink_to("/root-s")
        fake.write(f"gpu 0 process {pid} 1000\n")
        with watching(fake, "--gpu.processes-interval=1") as running:
            read_again(running, "nccl_inspector", 2)
            assert not values(scrape(running), "gpunode_nccl_measured_seconds_total")
            log.unlink()
            later = re.sub(r'(?<="dump_timestamp_us":)\d+', f"{2 * 10**15}", lines)
            log.write_text(later)
            os.chown(log, USER, USER)
            until(lambda: values(scrape(running), "gpunode_nccl_measured_seconds_total"))


@as_root
def test_a_tape_holds_nothing_of_a_file_but_what_the_parser_keeps(
    root: Path, tmp_path: Path
) -> None:
    (root / "etc").mkdir()
    (root / "etc/hostname").write_text(f"pod-0\n{SECRET}\n")
    path = tmp_path / "tape.jsonl.gz"
    with tenant(root, NCCL_DEBUG_FILE="/home/nccl.%h.log") as pid:
        owned(root / "home/nccl.pod-0.log", pid)
        node = OneGpu(pid)
        tape = TapeWriter(path, node, 1 << 20)
        gpu = MachineGpu(0, "GPU-aa", "0", (pid,))
        source = NcclLogs(Census(RecordingNode(node, tape)), gpu, Settings())
        found = [exported(read_source(source))]
        with (root / "home/nccl.pod-0.log").open("a") as log:
            log.write(log_of(pid).splitlines()[3] + "\n")
        node.stepped.now += 10
        found.append(exported(read_source(source)))
        audit(RecordingNode(node, tape))
        tape.close()
    assert SECRET not in gzip.decompress(path.read_bytes()).decode()
    played = TapeNode(path)
    source = NcclLogs(Census(played), gpu, Settings())
    assert exported(read_source(source)) == found[0]
    played.clock.now = played.end
    assert exported(read_source(source)) == found[1]
    assert "gpunode_nccl_warnings_total" in found[0]
    assert found[0] != found[1]


@pytest.fixture
def dead_mount() -> Iterator[Callable[[Path], None]]:
    """Mounts a filesystem whose server never answers."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("only root may mount, and only where there is /dev/fuse")
    libc = ctypes.CDLL(None, use_errno=True)
    with ExitStack() as done:

        def mount(at: Path) -> None:
            server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
            done.callback(os.close, server)
            options = f"fd={server},rootmode=40000,user_id=0,group_id=0,allow_other"
            if libc.mount(b"fuse", bytes(at), b"fuse", 0, options.encode()):
                pytest.skip(f"FUSE is not allowed here: {os.strerror(ctypes.get_errno())}")
            done.callback(libc.umount2, bytes(at), 2)  # MNT_DETACH

        yield mount


def alone() -> int:
    """The threads that wait for the answer to one question."""
    return sum(thread.name == "patience" for thread in threading.enumerate())


def waiting() -> int:
    """The threads that wait for an answer, or for the next question."""
    return sum(thread.name in ("patience", "reader") for thread in threading.enumerate())


@as_root
def test_a_dead_mount_keeps_one_thread_and_no_one_else_waiting(
    root: Path, dead_mount: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    (root / "mnt").mkdir()
    dead_mount(root / "mnt")
    before = alone()
    with (
        tenant(root, NCCL_DEBUG_FILE="/mnt/nccl.log\x1b[2J") as dead,
        tenant(root, NCCL_DEBUG_FILE="/home/nccl.log") as alive,
    ):
        owned(root / "home/nccl.log", alive)
        pids = dead, alive
        source = NcclLogs(Census(OneGpu(*pids)), MachineGpu(0, "GPU-aa", "0", pids), Settings())
        first = exported(read_source(source))
        begin = time.monotonic()
        later = [exported(read_source(source)) for _ in range(10)]
        assert time.monotonic() - begin < patience.TIMEOUT * 20, "it is not waited for again"
        assert alone() == before + 1
    assert 'communicator="ab"' in first
    assert later == [first] * 10
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert f"/proc/{dead}/root/mnt/nccl.log\\x1b[2J" in said[0]


@as_root
def test_shared_memory_on_a_dead_mount_is_left(
    root: Path, dead_mount: Callable[[Path], None]
) -> None:
    (root / "dev/shm").mkdir(parents=True)
    dead_mount(root / "dev/shm")
    with tenant(root) as pid, pytest.raises(TimeoutError):
        # What is mounted here answers nothing, not even how large it is.
        LocalNode(Path("/")).filesystem(f"/proc/{pid}/root/dev/shm")


@as_root
def test_the_audit_ends_soon_names_what_does_not_answer_and_escapes_what_it_prints(
    root: Path, dead_mount: Callable[[Path], None], fake: FakeDriver
) -> None:
    (root / "mnt").mkdir()
    dead_mount(root / "mnt")
    evil = "1\x1b]0;owned\x07\x9b2J\u202e" + "x" * 2000
    with (
        tenant(root, NCCL_DEBUG_FILE="/mnt/nccl.log") as dead,
        tenant(root, NCCL_DEBUG_FILE="/home/nccl.log", NCCL_P2P_DISABLE=evil) as alive,
    ):
        owned(root / "home/nccl.log", alive)
        fake.write(f"gpu 0 process {dead} 1000\ngpu 0 process {alive} 1000\n")
        command = [sys.executable, "-m", "gpunode", "audit"]
        environment = {**os.environ, **fake.environment(), "COLUMNS": "160"}
        begin = time.monotonic()
        ran = subprocess.run(
            [*command, "--json"], capture_output=True, env=environment, timeout=30, check=False
        )
        assert time.monotonic() - begin < 30
        table = subprocess.run(
            command, capture_output=True, env=environment, timeout=30, check=False
        ).stdout.decode()
    checks = {check["check"]: check["found"] for check in json.loads(ran.stdout)}
    assert f"/proc/{dead}/root/mnt/nccl.log does not answer" in checks["nccl_shared_memory"]
    assert "NCCL_P2P_DISABLE=1\\x1b]0;owned\\x07\\x9b2J\\u202e" in checks["nccl_switched_off"]
    assert all(len(found) <= MAX_FINDING for found in checks.values())
    assert not set("\x1b\x07\x9b\u202e") & set(table)


@given(st.text() | st.text().map(lambda text: text * 100))
def test_what_is_shown_of_text_from_outside_is_printable_and_short(text: str) -> None:
    for shown in (escaped(text, MAX_FINDING), printable(text, MAX_FINDING)):
        assert shown.isprintable()
        assert len(shown) <= MAX_FINDING


class Logging(LocalNode):
    """A node on which every process has a log."""

    def environment(self, pid: int) -> dict[str, str]:  # noqa: ARG002
        return {"NCCL_DEBUG_FILE": "/nccl.log"}

    def read_text(self, path: str) -> str:
        return machine.stat(1) if path.endswith("/stat") else super().read_text(path)


def test_logs_of_processes_that_end_leave_no_descriptor(tmp_path: Path) -> None:
    node = Logging(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for pid in range(100):
        (tmp_path / f"proc/{pid}/root").mkdir(parents=True)
        says_who(tmp_path / f"proc/{pid}")
        (tmp_path / f"proc/{pid}/root/nccl.log").write_text(log_of(pid))
    for start in range(0, 100, 50):
        gpu = MachineGpu(0, "GPU-aa", "0", tuple(range(start, start + 50)))
        source = NcclLogs(Census(node), gpu, Settings())
        assert exported(read_source(source)).count("gpunode_nccl_communicator_info") == 1
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_log_that_is_cut_or_gone_is_followed_from_there(tmp_path: Path) -> None:
    (tmp_path / "proc/7/root").mkdir(parents=True)
    says_who(tmp_path / "proc/7")
    log = tmp_path / "proc/7/root/nccl.log"
    source = NcclLogs(Census(Logging(tmp_path)), MachineGpu(0, "GPU-aa", "0", (7,)), Settings())
    warning = "host:7:1 [0] NCCL WARN\n"
    for text, warnings in [
        (warning * 3, 3),
        (warning * 4 + "host:7:1 [0] NCCL WA", 4),
        (warning * 5, 5),
        ("", 5),
        (warning * 2, 7),
        (None, None),
        (warning * 2, 7),
        (warning * 3, 8),
    ]:
        if text is None:
            log.unlink()
        else:
            log.write_text(text)
        expected = f'gpunode_nccl_warnings_total{{gpu="0",uuid="GPU-aa"}} {warnings}.0'
        assert exported(read_source(source)) == (expected if text is not None else "")


def test_a_flood_is_read_in_parts_and_an_endless_line_passed_over() -> None:
    whole = b"h:1:1 [0] NCCL WARN\n"
    assert lines_of(whole + b"rest", 5, line_of(1)).end == 5 + len(whole)
    assert lines_of(b"x" * MAX_READ, 5, line_of(1)).end == 5 + MAX_READ
    assert lines_of(b"x" * 100, 5, line_of(1)).end == 5


MANY_FILES = """\
import resource, os, socket, sys
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
most = min(most, 100_000)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
for number in range(3, most):
    if number != listener.fileno():
        os.dup2(0, number)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_process_with_very_many_descriptors_costs_little() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MANY_FILES, str(free_port())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        node = LocalNode(Path("/"))
        tracemalloc.start()
        try:
            assert node.listens(child.pid)
            assert files.count("", str(child.pid)).isdigit()  # before Linux 6.2
            assert tracemalloc.get_traced_memory()[1] < 1_500_000
        finally:
            tracemalloc.stop()
            child.kill()


def test_a_process_that_never_comes_back_from_mapping_a_file_costs_its_own_readings(
    tmp_path: Path,
) -> None:
    with (
        kept(USER) as dead,
        tenant(None, RANK="3") as other,
        helper("files", tmp_path),
        one_at(tmp_path / "files.sock") as one,
    ):
        stuck = dead.maps
        node, begin = LocalNode(Path("/")), time.monotonic()
        found: list[object] = []

        def look() -> None:
            for ask in (node.program, node.environment) * 10:
                try:
                    found.append(ask(stuck))
                except OSError as error:
                    found.append(error)

        looks = threading.Thread(target=look, daemon=True)
        looks.start()
        looks.join(patience.TIMEOUT * 8)
        assert [type(one) for one in found] == [TimeoutError] * 20
        assert time.monotonic() - begin < patience.TIMEOUT * 4, "it is not waited for again"
        assert node.program(other) == ""  # it runs no script
        assert node.environment(other) == {"RANK": "3"}

        folder = f"/proc/{dead.shares}"
        questions = (
            ("environment", str(stuck)),
            ("text", f"{folder}/io"),
            ("link", f"{folder}/ns/net"),
            ("sockets", str(dead.shares)),
        )

        def wait(question: tuple[str, ...]) -> None:
            with suppress(OSError):  # it ends with the helper
                one.ask(*question)

        waits = [threading.Thread(target=wait, args=(each,)) for each in questions]
        for each in waits:
            each.start()
        time.sleep(1.5 * privileged.TIMEOUT)
        assert all(each.is_alive() for each in waits)
        assert one.ask("environment", str(other)) == (b"RANK=3", [])
    for each in waits:
        each.join()


@pytest.mark.parametrize("way", ["shares", "closes"])
def test_a_process_that_never_comes_to_its_program_costs_its_own_readings(way: str) -> None:
    with kept(USER) as dead, tenant(None, user=USER + 1) as other:
        node, pid = LocalNode(Path("/")), getattr(dead, way)
        questions: list[Callable[[int], object]] = [
            node.stacks,  # while nothing of its memory is known not to answer
            *(partial(read_of, node, name) for name in ("stat", "wchan", "io", "stack")),
            *(partial(link_of, node, name) for name in ("ns/net", "ns/pid", "root")),
            *(node.environment, node.libraries, node.program, node.listens),
            lambda pid: node.filesystem(f"/proc/{pid}/root/dev/shm"),
            lambda pid: node.ended(pid, 1.0),
            lambda pid: node.ask(pid, "127.0.0.1:1", ""),
        ]

        def ask_all() -> None:
            for question in questions:
                answers(question, pid)
                with suppress(ConnectionRefusedError, ProcessLookupError):
                    question(other)

        ask_all()
        threads, begin = waiting(), time.monotonic()
        ask_all()
        took = time.monotonic() - begin
        assert took < patience.TIMEOUT * len(questions) / 2, "it is not waited for again"
        assert waiting() <= threads
        assert node.read_text(f"/proc/{pid}/comm")


def read_of(node: LocalNode, name: str, pid: int) -> str:
    return node.read_text(f"/proc/{pid}/{name}")


def link_of(node: LocalNode, name: str, pid: int) -> str:
    return node.read_link(f"/proc/{pid}/{name}")


def answers(question: Callable[[int], object], pid: int) -> None:
    """Ask, and fail where that does not come back soon."""

    def ask() -> None:
        with suppress(OSError):
            question(pid)

    asks = threading.Thread(target=ask, daemon=True)
    asks.start()
    asks.join(30 * patience.TIMEOUT)
    assert not asks.is_alive()


def test_a_process_that_never_comes_to_its_program_costs_no_other_tenant_a_reading(
    fake: FakeDriver, tmp_path: Path
) -> None:
    with kept(USER) as dead, tenant(None, user=USER + 1) as other:
        for gpu in (0, 1):
            (tmp_path / f"{17 + gpu}").write_text(f"SLURM_JOB_UID=1000\nSLURM_JOB_GPUS={gpu}\n")
        held = [(0, dead.maps), (0, dead.shares), (0, dead.closes), (1, other)]
        fake.write("\n".join(["gpus 2", *(f"gpu {g} process {p} 1000" for g, p in held)]) + "\n")
        options = "--gpu.owners-interval=1", "--gpu.processes-interval=1"
        with watching(fake, *options, f"--slurm.jobs-folder={tmp_path}") as running:

            def told() -> bool:
                found = scrape(running)
                return bool(
                    values(found, "gpunode_gpu_process_info", gpu="1", pid=f"{other}")
                    and values(found, "gpunode_job_processes", gpu="1") == [1.0]
                    and values(found, "gpunode_gpu_owner_info", gpu="0", slurm_job="17")
                    and values(found, "gpunode_slurm_jobs")
                )

            until(told)
            read_again(running, "slurm", 6)
            assert told(), "what is not read again is not told for so long"


def test_a_process_from_which_nothing_comes_back_costs_its_owner_s_stacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also one that begins to map a file just when py-spy looks: it answered a moment before."""
    node, me, answers = LocalNode(Path("/")), os.getpid(), ProcessReader._answers
    late: set[int] = set()

    def answered(inside: ProcessReader, pid: int) -> None:
        if pid not in late:
            answers(inside, pid)

    monkeypatch.setattr(ProcessReader, "_answers", answered)
    try:
        with kept(USER) as one, kept(USER) as other:
            stuck, another = one.maps, other.maps
            assert node.stacks(stuck).without_python == "does not answer"
            assert not stacks.left
            late.add(stuck)
            assert node.stacks(stuck).without_python == "py-spy does not come back from it"
            late.add(another)
            late.remove(stuck)
            assert node.stacks(another).without_python == "does not answer"
            assert len(stacks.left) == 1
            assert node.stacks(me).threads[0].frames, "of another owner"
    finally:
        until(lambda: not (node.stacks(me).without_python or stacks.left))


@as_root
def test_a_variable_too_long_for_any_use_is_left_out() -> None:
    with tenant(None, RANK="3", NCCL_NET="x" * (MAX_VALUE + 1)) as pid:
        assert LocalNode(Path("/")).environment(pid) == {"RANK": "3"}


names = st.text("ABCabc019/_", max_size=30)
numbers = st.integers(0, 10**9)
facts = st.one_of(
    st.builds("Channel {:02}/0 : 0[0] -> 1[{}] via {}".format, numbers, numbers, names),
    st.builds(
        "Channel 00 : 0[0] -> 1[1] via {}/{}/GDRDMA".format, st.sampled_from(["P2P", "NET"]), names
    ),
    st.builds(
        "x comm 0x{:x} rank {} nranks {} busId 60 commId 0x{:x} - Init START".format,
        numbers,
        numbers,
        numbers,
        numbers,
    ),
    st.builds("comm 0x1 rank 0 nRanks {} nNodes {}".format, numbers, numbers),
    st.builds("Using network {}".format, names),
    st.builds("NCCL version {}".format, st.text("0123456789.", max_size=60)),
    st.builds("{} coll channels, 1 collnet channels, {} nvls channels".format, numbers, numbers),
    st.builds("Trees [{}] {}".format, numbers, st.text("-> 1/[]", max_size=99)),
    st.sampled_from(["Connected all rings", "Connected all trees"]),
    st.text(),
)


class Written(Logging):
    """A node on which every log holds what a test says."""

    def __init__(self, text: str) -> None:
        super().__init__(Path("/nowhere"))
        self.text = text

    def lines(self, path: str, after: int, pattern: re.Pattern[str]) -> KeptLines:  # noqa: ARG002
        return lines_of(self.text.encode("utf-8", "replace")[after:], after, pattern)


@given(st.lists(facts, max_size=60))
def test_any_log_makes_few_series_with_short_labels(found: list[str]) -> None:
    text = "".join(f"host:1:1 [0] NCCL INFO {fact}\n" for fact in found)
    samples = read_source(
        NcclLogs(Census(Written(text)), MachineGpu(0, "GPU-aa", "0", (7,)), Settings())
    )
    assert len(samples) <= 8 * (1 + len(TRANSPORTS) + 3) + 1
    assert all(len(label) <= 20 for sample in samples for label in sample.labels)


TRANSPORTS = {
    *(f"P2P/{way}" for way in ("CUMEM", "IPC", "MNNVL", "direct", "indirect", "other")),
    *(
        f"NET/{way}{direct}"
        for way in (
            *("AWS", "FasTrak", "GPUDirectTCPX", "IB", "IBext", "Libfabric", "OFI", "Socket"),
            *("UCX", "gIB", "other"),
        )
        for direct in ("", "/GDRDMA")
    ),
    *("SHM", "COLLNET", "other"),
}


@given(st.text() | st.builds("{}/{}".format, st.sampled_from(["P2P", "NET", "SHM"]), st.text()))
def test_no_transport_is_invented(via: str) -> None:
    assert transport(via) in TRANSPORTS
