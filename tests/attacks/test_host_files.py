"""What tenants and a dying machine put into the files of the host and of processes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpunode.config import GpuSettings, Settings
from gpunode.driver.driver import Identity, Process
from gpunode.host.filesystem import READ_ONLY, Filesystems
from gpunode.jobs import processes as job
from gpunode.jobs import shm
from gpunode.jobs.processes import JobProcesses
from gpunode.metric import Metric, Sample
from gpunode.node.local import LocalNode
from gpunode.node.node import SteppedClock
from gpunode.source import Source

ROOT = os.geteuid() == 0


class Watched(LocalNode):
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
    return JobProcesses(node, HeldBy(*pids), settings)  # type: ignore[arg-type]


def told(source: Source) -> tuple[Sample, ...]:
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
        subprocess.run(["umount", "--recursive", str(point)], check=True)


@pytest.mark.parametrize("how", ["remount,ro", "remount,bind,ro"])
def test_a_filesystem_that_turns_read_only_is_told_at_the_next_read(disk: Path, how: str) -> None:
    found = Filesystems(Watched(), Settings()).find()
    (source,) = (source for place, source in found if place.mountpoint == str(disk))
    assert values(told(source), READ_ONLY) == [0.0]
    subprocess.run(["mount", "-o", how, str(disk)], check=True)
    assert values(told(source), READ_ONLY) == [1.0]


def test_nothing_is_told_of_a_filesystem_below_another(disk: Path) -> None:
    found = Filesystems(Watched(), Settings()).find()
    (source,) = (source for place, source in found if place.mountpoint == str(disk))
    subprocess.run(["mount", "-t", "tmpfs", "other", str(disk)], check=True)
    assert told(source) == ()
    subprocess.run(["umount", str(disk)], check=True)
    assert told(source) != ()


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
    sources = list(Filesystems(LocalNode(tmp_path), Settings()).find())
    assert [place.mountpoint for place, _ in sources] == ["/", *points]


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
        node = Watched()
        source = job_of(node, shell.pid, *pids)
        try:
            for _ in range(10):
                node.stepped.now += shm.AGAIN / 10
                assert values(told(source), job.SHM_SIZE) == [4 << 20]
            assert node.count("/mountinfo") == 1
            subprocess.run(["nsenter", f"--mount=/proc/{shell.pid}/ns/mnt", "umount", "/dev/shm"])
            node.stepped.now += shm.AGAIN
            assert 4 << 20 not in values(told(source), job.SHM_SIZE)
        finally:
            for pid in pids:
                os.kill(pid, 9)
