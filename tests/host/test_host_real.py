"""Sources of the node on this very machine: tmpfs, cgroups, network namespaces, loop devices."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from gpunode.config.daemon import GpuSettings, HostSettings, Settings
from gpunode.driver.driver import Identity, Process
from gpunode.holders.census import Census
from gpunode.holders.holder import ROLE_FIRST, Role, thread_names
from gpunode.host.cpu import CORES, SECONDS, Cpu
from gpunode.host.disk import Disks
from gpunode.host.filesystem import READ_ONLY, Filesystems
from gpunode.host.pressure import WAITING, Pressure
from gpunode.host.shm import SIZE, USED, Shm
from gpunode.jobs import processes as job
from gpunode.jobs.owners import ProcessRoles, RolesDetail
from gpunode.jobs.processes import JobProcesses
from gpunode.loop import Loop
from gpunode.metric import Distribution, Metric, Sample
from gpunode.node import ethtool
from gpunode.node.local import LocalNode
from gpunode.node.node import MAX_FILE, Filesystem
from gpunode.source import Reading
from gpunode.sources import NodeSources
from tests import machine
from tests.cases import with_each
from tests.daemon import TIMEOUT, free_port

ROOT = os.geteuid() == 0
HERE = LocalNode(Path("/"))
SHM = "/dev/shm"


class OneGpu:
    """A GPU with the processes it is given, and no other sensor."""

    identity = Identity(0, "GPU-1", "NVIDIA H200")

    def __init__(self, *pids: int) -> None:
        self.pids = pids

    def processes(self) -> list[Process]:
        return [Process(pid, None, "compute") for pid in self.pids]


def job_of(*pids: int) -> JobProcesses:
    settings = Settings(gpu=GpuSettings(processes_interval=1.0))
    return JobProcesses(Census(HERE), OneGpu(*pids), settings)  # type: ignore[arg-type]


def value(reading: Reading | None, metric: Metric, *labels: str) -> float | None:
    found = [
        float(sample.value)
        for sample in (reading.samples if reading else ())
        if sample.metric is metric
        and sample.labels[len(sample.labels) - len(labels) :] == labels
        and not isinstance(sample.value, Distribution)
    ]
    assert len(found) <= 1
    return found[0] if found else None


def in_namespace(*options: str, program: str) -> str:
    """What a program prints in namespaces of its own; skips where that is not allowed."""
    if not ROOT or shutil.which("unshare") is None:
        pytest.skip("only root may make namespaces")
    ran = subprocess.run(
        ["unshare", *options, "sh", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
        env={**os.environ, "PYTHON": sys.executable},
    )
    if "unshare" in ran.stderr or "Operation not permitted" in ran.stderr:
        pytest.skip(f"not allowed here: {ran.stderr.strip()}")
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_shm_of_this_machine_is_told() -> None:
    if not os.path.isdir(SHM):
        pytest.skip("no /dev/shm")
    reading = Shm(HERE, Settings()).read()
    truth = os.statvfs(SHM)
    assert value(reading, SIZE) == truth.f_blocks * truth.f_frsize
    used = (truth.f_blocks - truth.f_bfree) * truth.f_frsize
    assert value(reading, USED) == pytest.approx(used, abs=64 << 20)


@pytest.fixture
def container() -> Iterator[int]:
    """A process in a mount namespace of its own, with 4 MiB of /dev/shm, 1 MiB of it in use."""
    if not ROOT or shutil.which("unshare") is None:
        pytest.skip("only root may make namespaces")
    script = (
        "mount -t tmpfs -o size=4m shm /dev/shm && head -c 1048576 /dev/zero > /dev/shm/batch"
        " && echo ready && exec sleep 60"
    )
    with subprocess.Popen(
        ["unshare", "-m", "sh", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            assert child.stdout is not None
            if child.stdout.readline().strip() != "ready":
                assert child.stderr is not None
                pytest.skip(f"not allowed here: {child.stderr.read().strip()}")
            yield child.pid
        finally:
            child.kill()


def test_a_container_has_its_own_shm(container: int) -> None:
    source = job_of(container, os.getpid())
    reading = source.read()
    assert reading is not None
    sizes = {s.labels[2]: s.value for s in reading.samples if s.metric is job.SHM_SIZE}
    used = {s.labels[2]: s.value for s in reading.samples if s.metric is job.SHM_USED}
    assert 4 << 20 in sizes.values()
    (tmpfs,) = (device for device, size in sizes.items() if size == 4 << 20)
    assert used[tmpfs] == 1 << 20
    assert tmpfs in Path(f"/proc/{container}/mountinfo").read_text()


def used(process: psutil.Process) -> tuple[float, float]:
    """Half a second of a process's CPU time, however busy this machine is, and how long it took."""
    begin, before = time.monotonic(), sum(process.cpu_times()[:2])
    while (took := sum(process.cpu_times()[:2]) - before) < 0.5 or time.monotonic() < begin + 0.6:
        time.sleep(0.05)
    return took, time.monotonic() - begin


def test_a_busy_thread_among_idle_ones_is_found() -> None:
    program = textwrap.dedent("""
        import threading, time
        for _ in range(8):
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        print("ready", flush=True)
        while True:
            pass
    """)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            source, process = job_of(child.pid), psutil.Process(child.pid)
            source.read()
            reading, total = None, 0.0
            while value(reading, job.BUSIEST_THREAD) is None and total < 10:
                took, elapsed = used(process)  # threads are looked at once it is seen to be busy
                reading, total = source.read(), total + took
        finally:
            child.kill()
    assert value(reading, job.BUSIEST_THREAD) == pytest.approx(took / elapsed, rel=0.5)
    assert value(reading, job.CPU_SECONDS) == pytest.approx(total, rel=0.5)


def test_children_belong_to_the_job() -> None:
    with subprocess.Popen(
        ["sh", "-c", "sleep 60 & sleep 60 & echo ready; wait"], stdout=-1
    ) as shell:
        try:
            assert shell.stdout is not None
            shell.stdout.readline()
            reading = job_of(shell.pid).read()
        finally:
            for child in psutil.Process(shell.pid).children():
                child.kill()
            shell.kill()
    if not os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"):
        pytest.skip("this kernel does not tell children")
    assert value(reading, job.PROCESSES) == 3.0


def test_the_pressure_of_this_machine_is_told() -> None:
    if not os.path.exists("/proc/pressure/io"):
        pytest.skip("this kernel has no pressure stall information")
    first = value(Pressure(HERE, Settings()).read(), WAITING, "io")
    assert first is not None
    text = Path("/proc/pressure/io").read_text()
    assert first <= int(text.split("total=")[1].split()[0]) / 1e6


def test_the_cores_of_this_machine_are_told() -> None:
    reading = Cpu(HERE, Settings()).read()
    assert reading is not None
    cores = [s.value for s in reading.samples if s.metric is CORES]
    assert sum(cores) == os.sysconf("SC_NPROCESSORS_ONLN")  # type: ignore[arg-type]
    modes = {s.labels[0] for s in reading.samples if s.metric is SECONDS and s.value}
    assert {"user", "system"} <= modes


NETWORK = """
import json
from pathlib import Path
from gpunode.host.network import Network
from gpunode.config.daemon import Settings
from gpunode.node.local import LocalNode
node = LocalNode(Path("/"))
node_as_first = node.read_text
node.read_text = lambda path: node_as_first(path.replace("/proc/1/net", "/proc/self/net"))
reading = Network(node, Settings()).read()
print(json.dumps({"names": sorted({s.labels[0] for s in reading.samples if len(s.labels) == 2}),
                  "statistics": node.network_statistics("eth7")}))
"""


def test_a_network_namespace_of_its_own_is_read() -> None:
    if shutil.which("ip") is None:
        pytest.skip("iproute2 is not installed")
    program = 'ip link add eth7 type veth peer name veth7 && exec "$PYTHON" -c \'' + NETWORK + "'"
    found = json.loads(in_namespace("-n", program=program))
    assert "eth7" in found["names"]
    assert "veth7" not in found["names"]
    assert "peer_ifindex" in found["statistics"]


@with_each(["no-such-device", "a-name-longer-than-interfaces-have", ""])
def test_an_unknown_interface_is_an_os_error(name: str) -> None:
    with pytest.raises(OSError, match=r"."):
        ethtool.statistics(name)


def test_a_loop_device_with_a_filesystem_is_measured(tmp_path: Path) -> None:
    if not ROOT or shutil.which("mkfs.ext4") is None:
        pytest.skip("only root may mount, and only with mkfs.ext4")
    image, point = tmp_path / "disk", tmp_path / "mounted"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    point.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    mounted = subprocess.run(
        ["mount", "-o", "loop", str(image), str(point)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"not allowed here: {mounted.stderr.decode().strip()}")
    try:
        (source,) = (
            source
            for place, source in Filesystems(HERE, Settings()).find()
            if place.mountpoint == str(point)
        )
        reading = source.read()
        assert reading is not None
        values = {s.metric.name: s.value for s in reading.samples}
        assert 8 << 20 < values["gpunode_filesystem_size_bytes"] <= 16 << 20  # type: ignore[operator]
        assert values["gpunode_filesystem_readonly"] == 0.0
        assert Disks(HERE, Settings()).read() is not None
    finally:
        subprocess.run(["umount", str(point)], check=True)


def test_a_filesystem_that_turns_read_only_is_told(tmp_path: Path) -> None:
    table = tmp_path / "proc/1/mountinfo"
    table.parent.mkdir(parents=True)
    filesystems = Filesystems(LocalNode(tmp_path), Settings())
    found: list[float | Distribution] = []
    for options in ("rw", "ro,errors=remount-ro"):
        table.write_text(f"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 {options}\n")
        (source,) = (source for place, source in filesystems.find() if place.mountpoint)
        reading = source.read()
        assert reading is not None
        found += [sample.value for sample in reading.samples if sample.metric is READ_ONLY]
    assert found == [0.0, 1.0]


def test_a_pipe_in_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    os.mkfifo(tmp_path / "proc/stat")
    assert LocalNode(tmp_path).read_text("/proc/stat") == ""


class HungMount(LocalNode):
    """This machine, with one filesystem more whose server is gone."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.server = threading.Event()

    def filesystem(self, path: str) -> Filesystem:
        if path == "/dead":
            self.server.wait()
        return Filesystem(100.0, 50.0, 50.0)


def tree(root: Path) -> Path:
    files = {
        "/proc/stat": "cpu0 1 0 1 1 0 0 0 0 0 0\n",
        "/proc/meminfo": "MemTotal: 1 kB\n",
        "/proc/vmstat": "pswpin 1\n",
        "/proc/diskstats": " 8 0 sda 1 2 3 4 5 6 7 8 9 10 11\n",
        "/proc/1/net/dev": "a\nb\n",
        "/proc/1/mountinfo": "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "23 22 0:50 / /dead rw - nfs4 gone:/x rw\n",
        "/var/log/syslog": "",
    }
    for path, text in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def exported(loop: Loop) -> dict[str, list[Sample]]:
    return {
        watch.source.name + watch.place.mountpoint: list(watch.batch.reading.samples)
        for watch in loop.watches.values()
        if watch.batch is not None and watch.up(loop.clock.monotonic())
    }


def started(node: LocalNode, *late: str) -> Loop:
    """A loop whose last sources, such as the filesystem that answers, have told something."""
    settings = Settings(host=HostSettings(interval=1.0, slow_interval=1.0))
    loop = Loop(node.clock, [NodeSources(Census(node), settings)], find_every=10.0)
    loop.start()
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline and not {"filesystem/", *late} <= exported(loop).keys():
        time.sleep(0.02)
    return loop


def test_a_dead_file_server_hangs_nothing_but_its_own_series(tmp_path: Path) -> None:
    node = HungMount(tree(tmp_path))
    loop = started(node)
    try:
        found = exported(loop)
        assert "filesystem/" in found
        assert "filesystem/dead" not in found
        assert {"cpu", "memory", "disk", "network", "shm"} <= found.keys()
    finally:
        node.server.set()
        loop.stop()


def test_ten_megabytes_of_garbage_stop_what_reads_them_and_no_other(tmp_path: Path) -> None:
    whole = HungMount(tree(tmp_path / "whole"))
    spoiled = HungMount(tree(tmp_path / "spoiled"))
    (tmp_path / "spoiled/proc/stat").write_bytes(os.urandom(1 << 20) * 10)
    assert (tmp_path / "spoiled/proc/stat").stat().st_size > MAX_FILE
    loops = [started(whole, "audit"), started(spoiled, "audit")]
    try:
        with_all, without = (exported(loop) for loop in loops)
        assert with_all.keys() - without.keys() == {"cpu", "repair"}
        # What is read of the clock or the machine itself differs between the two.
        for name in ("memory", "disk", "network", "filesystem/"):
            assert without[name] == with_all[name]
    finally:
        for node, loop in zip((whole, spoiled), loops, strict=True):
            node.server.set()
            loop.stop()


@contextmanager
def python(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A child that runs Python and has said that it is ready; it does what it is told by lines."""
    with subprocess.Popen(
        [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            heard(child)
            yield child
        finally:
            child.kill()


def heard(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline()


def tell(child: subprocess.Popen[str]) -> None:
    """Let it go on, until it has said that it has."""
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()
    heard(child)


WAITS = "\nprint('ready', flush=True); input()"


@with_each(
    [
        ("socket.create_server(('127.0.0.1', FREE))", True),
        ("socket.create_server(('::1', FREE), family=socket.AF_INET6)", True),
        ("socket.socket().bind(('127.0.0.1', 0))", False),
        ("socket.create_connection(('127.0.0.1', PORT))", False),
        ("socket.socket(type=socket.SOCK_DGRAM).bind(('127.0.0.1', 0))", False),
        ("None", False),
    ]
)
def test_a_process_that_waits_for_connections_is_told_from_others(
    opens: str, listens: bool
) -> None:
    if "AF_INET6" in opens and not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("no IPv6 here")
    with socket.create_server(("127.0.0.1", free_port())) as mine:
        ports = {"PORT": str(mine.getsockname()[1]), "FREE": str(free_port())}
        opens = re.sub("PORT|FREE", lambda found: ports[found[0]], opens)
        program = f"import socket; kept = {opens}"
        with python("-c", program + WAITS) as child:
            assert HERE.listens(child.pid) is listens
        assert HERE.listens(os.getpid())
    with pytest.raises(OSError, match="No such"):
        HERE.listens(child.pid)


@with_each(
    [
        ("\\0tmp/nccl-socket-0-1f00dcafe", True),
        ("\\0tmp/nccl-socket-0-1f00dcafe" + "\\0" * 80, True),
        ("\\0tmp/other-socket-0-1f00dcafe", False),
        ("\\0home/tmp/nccl-socket-0-1f00dcafe", False),
    ]
)
def test_a_communicators_socket_is_its_process_s(binds: str, communicates: bool) -> None:
    opens = f"kept = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); kept.bind('{binds}')"
    with python("-c", f"import socket; {opens}" + WAITS) as child, python("-c", WAITS) as other:
        assert HERE.communicates(child.pid) is communicates
        assert HERE.communicates(other.pid) is False
    with pytest.raises(OSError, match="No such"):
        HERE.communicates(child.pid)


@with_each([("nccl-", True), ("ucx_shm_posix_", True), ("torch_", False)])
def test_memory_of_a_communicator_is_seen_after_its_file_is_gone(name: str, shares: bool) -> None:
    maps = (
        "import mmap, tempfile\n"
        f"with tempfile.NamedTemporaryFile(prefix={name!r}, dir='/dev/shm') as file:\n"
        "    file.truncate(4096)\n"
        "    kept = mmap.mmap(file.fileno(), 4096)"
    )
    with python("-c", maps + WAITS) as child:
        assert HERE.shares_memory(child.pid) is shares
    with pytest.raises(OSError, match="No such"):
        HERE.shares_memory(child.pid)


NAMED = """
import ctypes, threading
def run(ready):
    PR_SET_NAME = 15
    ctypes.CDLL(None).prctl(PR_SET_NAME, b"pt_autograd_0", 0, 0, 0)
    ready.set()
    threading.Event().wait()
ready = threading.Event()
def start():
    threading.Thread(target=run, args=(ready,), daemon=True).start()
    ready.wait()
"""


def test_the_names_of_threads_are_those_that_they_gave_themselves() -> None:
    with python("-c", NAMED + "start()" + WAITS) as child:
        names = thread_names(HERE, child.pid)
        assert names is not None
        assert "pt_autograd_0" in names
        assert names == {
            thread.joinpath("comm").read_text().strip()
            for thread in Path(f"/proc/{child.pid}/task").iterdir()
        }
    assert thread_names(HERE, child.pid) is None


def test_what_a_process_does_is_seen_once_it_does_it(tmp_path: Path) -> None:
    script = tmp_path / "finetune.py"
    begins = f"\nimport socket; kept = socket.create_server(('127.0.0.1', {free_port()})); start()"
    script.write_text(NAMED + WAITS + begins + WAITS)

    def roles() -> tuple[Role, ...]:
        detail = source.read().detail
        assert isinstance(detail, RolesDetail)
        return detail.roles

    with python("-u", str(script), "--token", "hush") as child:
        node = machine.OneGpu(child.pid)
        source = ProcessRoles(Census(node), node.gpus()[0], Settings())
        parent = HERE.program(os.getpid())
        does = {"trains": False, "exchanges": False}
        quiet = Role(child.pid, "finetune", parent, listens=False, **does)
        busy = Role(child.pid, "finetune", parent, listens=True, **{**does, "trains": True})
        assert roles() == (quiet,)
        tell(child)
        assert roles() == (quiet,)  # it is not looked at each time
        node.stepped.now += ROLE_FIRST
        assert roles() == (busy,)
    node.stepped.now += 60
    assert roles() == (Role(child.pid, "", "", None, None, None),)


def test_a_process_that_is_stopped_counts_until_it_goes_on() -> None:
    with python("-c", WAITS) as child:
        node = machine.OneGpu(child.pid)
        census, found = Census(node), []
        for order, awaited in (
            (signal.SIGSTOP, os.WUNTRACED),
            (signal.SIGCONT, os.WCONTINUED),
        ):
            child.send_signal(order)
            os.waitpid(child.pid, awaited)
            look = census.look(node.gpus()[0], within=0.0)
            assert look is not None
            found.append(look.stopped)
    assert found == [1.0, 0.0]


def let_run(child: subprocess.Popen[str]) -> float:
    """Let a stopped child run for a quarter of a second of CPU time, and say how much it used."""
    process = psutil.Process(child.pid)
    before = sum(process.cpu_times()[:2])
    child.send_signal(signal.SIGCONT)
    while sum(process.cpu_times()[:2]) - before < 0.25:
        time.sleep(0.02)
    stop(child)
    return sum(process.cpu_times()[:2]) - before


def stop(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)


def test_two_threads_that_share_the_gil_count_as_one() -> None:
    program = textwrap.dedent("""
        import threading
        def spin():
            while True:
                pass
        for _ in range(2):
            threading.Thread(target=spin, daemon=True).start()
        print("ready", flush=True)
        threading.Event().wait()
    """)
    with python("-c", program) as child:
        stop(child)
        node = machine.OneGpu(child.pid)
        settings = Settings(gpu=GpuSettings(processes_interval=1.0))
        source = JobProcesses(Census(node), node.gpus()[0], settings)
        source.read()
        for _ in range(2):  # threads are looked at once the process is seen to be busy
            # Time passes as if the child had had a CPU for itself.
            node.stepped.now += let_run(child)
            reading = source.read()
    host, busiest = value(reading, job.HOST_THREAD), value(reading, job.BUSIEST_THREAD)
    assert host == pytest.approx(1, abs=0.1)
    assert busiest == pytest.approx(0.5, abs=0.3)


def test_a_compile_worker_is_known_by_the_folder_of_its_program(tmp_path: Path) -> None:
    worker = tmp_path / "compile_worker" / "__main__.py"
    worker.parent.mkdir()
    worker.write_text("print('ready', flush=True); input()")
    starts = textwrap.dedent(f"""
        import subprocess, sys
        subprocess.run([sys.executable, {str(worker)!r}, "--kind=fork", "--workers=32"])
    """)
    with python("-c", starts) as child:
        node = machine.OneGpu(child.pid)
        source = JobProcesses(Census(node), node.gpus()[0], Settings())
        source.read()
        node.stepped.now += 10
        reading = source.read()
        assert child.stdin is not None
        child.stdin.close()  # which ends the worker
    assert value(reading, job.PROCESSES) == 2
    assert value(reading, job.COMPILERS) == 1
    assert value(reading, job.LOADER_CPUS) is None


WAITS_FOR_ITS_CHILD = """
import ctypes, os
CLONE_VFORK, SIGCHLD, CLONE = 0x4000, 17, {"x86_64": 56, "aarch64": 220}[os.uname().machine]
if os.fork() == 0:
    if ctypes.CDLL(None).syscall(CLONE, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0) == 0:
        print("ready", flush=True)
        input()
    os._exit(0)
os.wait()
"""
"""As in vfork, a process waits in the kernel until its child has ended."""


def test_a_child_that_cannot_be_interrupted_counts_as_one_of_the_job() -> None:
    with python("-c", WAITS_FOR_ITS_CHILD) as child:
        reading = job_of(child.pid).read()
        assert child.stdin is not None
        child.stdin.close()
        child.wait()
    assert value(reading, job.PROCESSES) == 3.0
    assert value(reading, job.BLOCKED) == 1.0
