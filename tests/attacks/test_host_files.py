"""What tenants and a dying machine put into the files of the host and of processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.config.daemon import GpuSettings, Settings
from gpunode.driver.driver import Identity, Process
from gpunode.holders.census import Census
from gpunode.holders.holder import THREADS, Holder, stat_of, thread_names
from gpunode.host.filesystem import READ_ONLY, Filesystems
from gpunode.jobs import processes as job
from gpunode.jobs import shm
from gpunode.jobs.owners import ProcessRoles, RolesDetail
from gpunode.jobs.processes import CpuUse, JobProcesses, JobRead
from gpunode.metric import Metric, Sample
from gpunode.node import local
from gpunode.node.kernel import ProcessStat, parse_stat
from gpunode.node.local import LocalNode
from gpunode.node.node import SteppedClock
from gpunode.source import Source

ROOT = os.geteuid() == 0


class CountingNode(LocalNode):
    """A machine that counts which of its files are read; time is the test's."""

    def __init__(self, root: Path = Path("/")) -> None:
        super().__init__(root)
        self.clock = self.stepped = SteppedClock(0.0)  # type: ignore[assignment]
        self.reads: list[str] = []

    def read_text(self, path: str) -> str:
        self.reads.append(path)
        return super().read_text(path)

    def count(self, end: str) -> int:
        return sum(path.endswith(end) for path in self.reads)


class HeldBy:
    """A GPU that some processes hold."""

    identity = Identity(0, "GPU-1", "NVIDIA H200")

    def __init__(self, *pids: int) -> None:
        self.pids = pids

    def processes(self) -> list[Process]:
        return [Process(pid, None, "compute") for pid in self.pids]


def job_of(node: LocalNode, *pids: int) -> JobProcesses:
    settings = Settings(gpu=GpuSettings(processes_interval=1.0))
    return JobProcesses(Census(node), HeldBy(*pids), settings)  # type: ignore[arg-type]


def read(source: Source) -> tuple[Sample, ...]:
    reading = source.read()
    assert reading is not None
    series = [(sample.metric, sample.labels) for sample in reading.samples]
    assert len(series) == len(set(series))
    return reading.samples


def values(samples: tuple[Sample, ...], metric: Metric) -> list[float]:
    return [float(each.value) for each in samples if each.metric is metric]  # type: ignore[arg-type]


def need_root(*programs: str) -> None:
    if not ROOT or not all(map(shutil.which, programs)):
        pytest.skip(f"only root may, and only with {', '.join(programs)}")


@contextmanager
def child(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A program that has said that it is ready; skips where it was not allowed to get there."""
    pipes = {"stdin": -1, "stdout": -1, "stderr": -1}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                process.kill()
                pytest.skip(f"not allowed here: {process.stderr.read().strip()}")
            yield process
        finally:
            process.kill()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem on a loop device."""
    need_root("mkfs.ext4", "mount")
    image, point = tmp_path / "disk", tmp_path / "mounted"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    point.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, point], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"not allowed here: {mounted.stderr.decode().strip()}")
    try:
        yield point
    finally:
        while point.is_mount():
            subprocess.run(["umount", str(point)], check=True)


@pytest.mark.parametrize("how", ["remount,ro", "remount,bind,ro"])
def test_a_filesystem_that_turns_read_only_is_told_at_the_next_read(disk: Path, how: str) -> None:
    found = Filesystems(CountingNode(), Settings()).find()
    (source,) = (source for place, source in found if place.mountpoint == str(disk))
    assert values(read(source), READ_ONLY) == [0.0]
    subprocess.run(["mount", "-o", how, str(disk)], check=True)
    assert values(read(source), READ_ONLY) == [1.0]


def test_nothing_is_told_of_a_filesystem_below_another(disk: Path) -> None:
    found = Filesystems(CountingNode(), Settings()).find()
    (source,) = (source for place, source in found if place.mountpoint == str(disk))
    subprocess.run(["mount", "-t", "tmpfs", "other", str(disk)], check=True)
    assert read(source) == ()
    subprocess.run(["umount", str(disk)], check=True)
    assert read(source) != ()


def test_the_name_of_a_mount_point_makes_up_no_other(tmp_path: Path) -> None:
    """Only root chooses what is mounted, but any user may choose where FUSE mounts it."""
    table = tmp_path / "proc/1/mountinfo"
    table.parent.mkdir(parents=True)
    real = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
    made_up = "9 1 8:9 / /data ro - ext4 x ro".replace(" ", "\u2003")
    points = [f"/home/me/{space}{made_up}{space}" for space in "\f\v\r\x1c\x1d\x1e\x85\u2028\u2029"]
    lines = [
        f"{at} 1 0:{at} / {at_point} rw - fuse.sshfs me rw\n"
        for at, at_point in enumerate(points, 50)
    ]
    table.write_bytes("".join([real, *lines]).encode())
    found = Filesystems(LocalNode(tmp_path), Settings()).find()
    assert [place.mountpoint for place, _ in found if place.mountpoint] == ["/", *points]


MANY_MOUNTS = """
mount -t tmpfs -o size=4m shm /dev/shm && mount -t tmpfs many /mnt && cd /mnt || exit
mkdir one && for i in $(seq 100); do mkdir $i && mount --bind one $i || exit; done
for i in 1 2 3 4 5 6 7 8; do sleep 60 & done
echo ready; jobs -p; echo; wait
"""


def test_a_mount_table_is_read_once_for_all_processes_that_share_it() -> None:
    need_root("unshare", "mount")
    with child("unshare", "-m", "bash", "-c", MANY_MOUNTS) as shell:
        assert shell.stdout is not None
        pids = [int(line) for line in iter(shell.stdout.readline, "\n")]
        node = CountingNode()
        source = job_of(node, shell.pid, *pids)
        try:
            for _ in range(10):
                node.stepped.now += shm.TABLE_LIFETIME / 10
                assert values(read(source), job.SHM_SIZE) == [4 << 20]
            assert node.count("/mountinfo") == 1
            subprocess.run(["nsenter", f"--mount=/proc/{shell.pid}/ns/mnt", "umount", "/dev/shm"])
            node.stepped.now += shm.TABLE_LIFETIME
            assert 4 << 20 not in values(read(source), job.SHM_SIZE)
        finally:
            for pid in pids:
                os.kill(pid, 9)


MANY_THREADS = """
import threading, time
threading.stack_size(65536)
def spin():
    while True:
        pass
for _ in range(6000):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
threading.Thread(target=spin, daemon=True).start()
print("ready", flush=True)
input()
"""


def test_one_busy_thread_among_thousands_is_found() -> None:
    with child(sys.executable, "-c", MANY_THREADS) as process:
        node = LocalNode(Path("/"))
        source, deadline = job_of(node, process.pid), time.monotonic() + 15
        found: list[float] = []
        while not found and time.monotonic() < deadline:
            time.sleep(0.6)  # it needs a time in which to be busy
            samples = read(source)
            found = values(samples, job.BUSIEST_THREAD)
            whole = values(samples, job.HOST_CPUS)
        assert found[0] > whole[0] / 2  # the others sleep; the two are not read at one moment


def task(cpu: float) -> ProcessStat:
    return ProcessStat("python3", "S", 1, cpu, 0.0, 0.0, 1.0)


@given(st.lists(st.floats(0, 1), min_size=1), st.data())
def test_no_thread_is_told_to_be_busiest_if_another_may_be(
    shares: list[float], data: st.DataObject
) -> None:
    looked = data.draw(st.sets(st.sampled_from(range(len(shares)))))
    before, after = JobRead(), JobRead(partly=set() if len(looked) == len(shares) else {"1"})
    before.processes["1"], after.processes["1"] = task(0.0), task(10 * sum(shares))
    for at in looked:
        before.threads["1", str(at)] = task(0.0)
        after.threads["1", str(at)] = task(10 * shares[at])
    used = CpuUse.of(before, after, 10.0).threads
    if used:
        assert max(used.values()) == pytest.approx(max(shares))
        assert sum(share >= job.BUSY for share in used.values()) == pytest.approx(
            sum(share >= job.BUSY for share in shares)
        )


MANY_CHILDREN = """
import os, signal
for at in range(1200):
    if os.fork() == 0:
        if at % 2:
            signal.pause()
        os._exit(0)  # nobody waits for it: a zombie
print("ready", flush=True)
input()
"""


def test_of_too_many_children_nothing_is_added_up() -> None:
    program = f"import os; os.setsid()\n{MANY_CHILDREN}"
    with child(sys.executable, "-c", program) as process:
        try:
            node = CountingNode()
            source = job_of(node, process.pid)
            for _ in range(3):
                node.reads.clear()
                node.stepped.now += 10
                samples = read(source)
            told_of = {sample.metric for sample in samples}
            assert not told_of & {job.PROCESSES, job.BLOCKED, job.MEMORY, job.COMPILERS}
            assert {job.CPU_SECONDS, job.HOST_CPUS} <= told_of
            assert len(node.reads) < 5 * job.LOOKED_AT
            node.stepped.now += 10
            reading = source.read()
            assert reading is not None
            assert [one.example for one in reading.unread] == ["more than 512 processes of a job"]
        finally:
            os.killpg(process.pid, signal.SIGKILL)


NAMED = """
import sys
open("/proc/self/comm", "wb").write(bytes.fromhex(sys.argv[1]))
print("ready", flush=True)
input()
"""


@pytest.mark.parametrize(
    "name",
    [
        b") R 1 1 1 1 1 1",
        b"a) Z 0 (b) T 9",
        b"\n1 (x) D 7 7 7 ",
        b"\x0cVmSwap:999 kB",
        b"\x0bRssAnon:9 kB",
        b"\x1dNSpid:\t1",
        b"\xff\xfe\xc3(\x1b[2J",
        b"\\n\\",
        b" ",
    ],
)
def test_the_name_of_a_process_says_nothing_but_its_name(name: bytes) -> None:
    with child(sys.executable, "-c", NAMED, name.hex()) as process:
        node = CountingNode()
        samples = read(job_of(node, process.pid))
        assert values(samples, job.PROCESSES) == [1]
        assert values(samples, job.BLOCKED) == [0]
        status = psutil.Process(process.pid)
        anonymous = status.memory_info().rss - status.memory_info().shared
        assert values(samples, job.MEMORY) == pytest.approx([anonymous], abs=1 << 20)
        assert Holder(node, process.pid, stat_of(node, process.pid)).own_pid() == process.pid
        found = parse_stat(node.read_text(f"/proc/{process.pid}/stat"))
        assert (found.name, found.parent) == (name.decode(errors="replace"), os.getpid())


class SlowCommandLines(CountingNode):
    """A machine where it takes a while to read a command line, which a tenant makes long."""

    def __init__(self) -> None:
        super().__init__()
        self.spent = 0.0
        self.stepped.thread_cpu = lambda: self.spent  # type: ignore[method-assign]

    def program(self, pid: int) -> str:
        self.spent += 0.02
        return super().program(pid)


def test_long_command_lines_are_read_a_few_at_a_time() -> None:
    with ExitStack() as started:
        sleeps = [started.enter_context(child("sh", "-c", "echo ready; read x")) for _ in range(20)]
        node = SlowCommandLines()
        source = job_of(node, *(each.pid for each in sleeps))
        known = []
        for _ in range(6):
            before, node.stepped.now = node.spent, node.stepped.now + 10
            known.append(values(read(source), job.COMPILERS))
            assert node.spent - before < job.PROGRAMS + 0.03
    assert known == [[], [], [], [0], [0], [0]]


@pytest.mark.parametrize(
    ("line", "program"),
    [
        (b"python\0-u\0train.py\0" + b"--list=" + b"x" * (8 << 20), "train"),
        (b"python\0" + b"-Wignore\0" * (8 << 16) + b"train.py\0", "python"),
        (b"python\0/" + b"x" * (8 << 20), "python"),
        (b"x" * (8 << 20), ""),
    ],
)
def test_only_the_beginning_of_a_command_line_is_read(
    tmp_path: Path, line: bytes, program: str
) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cmdline").write_bytes(line)
    tracemalloc.start()
    try:
        assert LocalNode(tmp_path).program(7) == program
        assert tracemalloc.get_traced_memory()[1] < 64 * local.MAX_COMMAND_BYTES
    finally:
        tracemalloc.stop()


def test_a_file_that_comes_in_small_parts_takes_time_as_its_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, size = os.read, 16 << 20
    (tmp_path / "parts").write_bytes(bytes(size))
    monkeypatch.setattr(local, "MAX_FILE", size)
    monkeypatch.setattr("gpunode.node.local.os.read", lambda file, _: read(file, 1 << 10))
    begin = time.thread_time()
    assert len(LocalNode(tmp_path).read_text("/parts")) == size
    assert time.thread_time() - begin < 2


def test_a_process_that_has_the_id_of_another_has_a_role_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "proc/7"
    (folder / "task/7").mkdir(parents=True)
    found = []
    source = ProcessRoles(Census(CountingNode(tmp_path)), HeldBy(7), Settings())  # type: ignore[arg-type]
    for start, name in ((10, "train"), (10, "train"), (11, "serve")):
        (folder / "stat").write_text(f"7 (x) S 1 {'0 ' * 17}{start} 0")
        (folder / "cmdline").write_text(f"{name}\0")
        detail = source.read().detail
        assert isinstance(detail, RolesDetail)
        found += [role.program for role in detail.roles]
    assert found == ["train", "train", "serve"]


def test_of_too_many_threads_no_name_is_missing(tmp_path: Path) -> None:
    for thread in range(THREADS + 1):
        (tmp_path / f"proc/7/task/{thread}").mkdir(parents=True)
    assert thread_names(LocalNode(tmp_path), 7) is None
