"""The processes of a job, written into a /proc of the test's own: time passes when it says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpunode.config.daemon import GpuSettings, Settings
from gpunode.driver.driver import DriverError, Identity, Process
from gpunode.holders.census import Census
from gpunode.jobs import processes as job
from gpunode.jobs.processes import JobProcesses
from gpunode.metric import Metric
from gpunode.node.local import LocalNode
from gpunode.node.node import SteppedClock
from gpunode.source import Reading
from tests.holders.proc import Card


def stat(name: str, ticks: float, start: int, system: float = 0.0, faults: float = 1.0) -> str:
    times = f"{(1 - system) * ticks:.0f} {system * ticks:.0f}"
    return f"1 ({name}) S 1 1 1 0 -1 4 {faults:.0f} 2 3 4 {times} 0 0 20 0 1 0 {start} 1\n"


@dataclass
class Task:
    """A process: CPU seconds that each of its threads uses per second, and its children."""

    threads: Mapping[int, float]
    name: str = "python3"
    command: str = "python3\0train.py\0"
    children: tuple[int, ...] = ()
    start: int = 1000
    system: float = 0.0
    """The part of its CPU seconds that it spends in the kernel."""

    faults: float = 0.0
    """Minor page faults per second."""


@dataclass
class Proc:
    """A /proc in a folder, and a GPU that the processes ``held_by`` hold."""

    root: Path
    tasks: dict[int, Task] = field(default_factory=dict)
    held_by: tuple[int, ...] = (1,)
    fails: bool = False
    _used: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.identity = Identity(0, "GPU-1", "NVIDIA H200")
        self.clock = SteppedClock(0.0)
        self.node = LocalNode(self.root)
        self.node.clock = self.clock  # type: ignore[assignment]

    def processes(self) -> list[Process]:
        if self.fails:
            raise DriverError("for a moment")
        return [Process(pid, None, "compute") for pid in self.held_by]

    def source(self, interval: float = 10.0) -> JobProcesses:
        settings = Settings(gpu=GpuSettings(processes_interval=interval))
        return JobProcesses(Census(self.node), self, settings)  # type: ignore[arg-type]

    def pass_by(self, seconds: float) -> None:
        self.clock.now += seconds
        for pid, task in self.tasks.items():
            folder = self.root / f"proc/{pid}"
            ticks = 0.0
            for thread, share in task.threads.items():
                self._used[thread] = self._used.get(thread, 0.0) + 100 * share * seconds
                ticks += self._used[thread]
                own = folder / f"task/{thread}"
                own.mkdir(parents=True, exist_ok=True)
                (own / "stat").write_text(stat(task.name, self._used[thread], task.start))
            faults = task.faults * self.clock.now
            whole = stat(task.name, ticks, task.start, task.system, faults)
            (folder / "stat").write_text(whole)
            (folder / "cmdline").write_text(task.command)
            (folder / f"task/{pid}/children").write_text(" ".join(map(str, task.children)))


def value_of(reading: Reading | None, metric: Metric) -> float | None:
    assert reading is not None
    found = [sample.value for sample in reading.samples if sample.metric is metric]
    return float(found[0]) if found else None  # type: ignore[arg-type]


def settled(proc: Proc, seconds: float = 10.0) -> Reading | None:
    """What is told once threads have been seen twice: of a process that was seen to be busy."""
    source, reading = proc.source(), None
    for _ in range(4):
        proc.pass_by(seconds)
        reading = source.read()
    return reading


@pytest.mark.parametrize(
    ("threads", "host"),
    [
        ((0.98,), 0.98),
        ((0.2,), 0.2),
        ((0.5, 0.5), 1.0),  # Python's GIL lets one run at a time
        ((0.1,) * 10, 1.0),
        ((0.3, 0.1), 0.4),
        ((0.9, 0.9), 0.9),  # no lock in common
        ((0.5,) * 8, 0.5),
    ],
)
def test_threads_that_share_one_cpu_count_as_one(
    tmp_path: Path, threads: tuple[float, ...], host: float
) -> None:
    proc = Proc(tmp_path, {1: Task(dict(enumerate(threads, 1)))})
    reading = settled(proc)
    assert value_of(reading, job.HOST_THREAD) == pytest.approx(host, abs=0.01)
    assert value_of(reading, job.HOST_CPUS) == pytest.approx(sum(threads), abs=0.01)
    assert value_of(reading, job.LOADER_CPUS) is None


def test_no_thread_uses_more_than_one_cpu(tmp_path: Path) -> None:
    """A tape may answer with what was read some seconds before."""
    proc = Proc(tmp_path, {1: Task({1: 0.2}, children=(2,)), 2: Task({2: 1.57})})
    reading = settled(proc)
    assert value_of(reading, job.BUSIEST_THREAD) == 1.0


def test_a_worker_counts_with_the_threads_of_its_decoder(tmp_path: Path) -> None:
    threads = {20 + n: 0.34 for n in range(8)}
    proc = Proc(
        tmp_path,
        {1: Task({1: 0.1}, children=(2,)), 2: Task({2: 0.0, **threads}, name="pt_data_worker")},
    )
    assert value_of(settled(proc), job.LOADER_CPUS) == pytest.approx(2.72, abs=0.05)


def test_what_threads_use_while_the_driver_answers_belongs_to_the_read_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = Proc(tmp_path, {1: Task({1: 0.6})})
    answer, takes = proc.processes, iter((0.0, 4.0, 0.0))

    def late() -> list[Process]:
        proc.pass_by(next(takes))
        return answer()

    monkeypatch.setattr(proc, "processes", late)
    source = proc.source()
    for _ in range(3):
        proc.pass_by(10)
        reading = source.read()
    assert value_of(reading, job.HOST_THREAD) == pytest.approx(0.6, abs=0.01)


def test_time_in_the_kernel_is_told_from_time_in_the_program(tmp_path: Path) -> None:
    """That of the process on the GPU only: its workers read files."""
    worker = Task({2: 0.9}, system=0.8, faults=40_000)
    own = Task({1: 0.6, 10: 0.2}, children=(2,), system=0.25, faults=500)
    proc = Proc(tmp_path, {1: own, 2: worker})
    reading = settled(proc)
    assert value_of(reading, job.HOST_CPUS) == pytest.approx(0.8, abs=0.01)
    assert value_of(reading, job.HOST_SYSTEM) == pytest.approx(0.2, abs=0.01)
    assert value_of(reading, job.HOST_FAULTS) == 500 * 30  # since it was first seen


def test_loaders_compilers_and_the_process_on_the_gpu_are_told_apart(tmp_path: Path) -> None:
    compile_worker = (
        "/usr/bin/python3\0/x/torch/_inductor/compile_worker/__main__.py\0--kind=fork\0"
    )
    proc = Proc(
        tmp_path,
        {
            1: Task({1: 0.6}, children=(2, 3, 4)),
            2: Task({2: 0.7, 20: 0.1}, name="pt_data_worker"),
            3: Task({3: 0.9}, command=compile_worker, children=(5,)),
            4: Task({4: 0.4}, name="pt_data_worker"),
            5: Task({5: 1.0}, name="ptxas", command="/usr/local/cuda/bin/ptxas\0-o\0x\0"),
        },
    )
    reading = settled(proc)
    assert value_of(reading, job.HOST_THREAD) == pytest.approx(0.6, abs=0.01)
    assert value_of(reading, job.LOADER_CPUS) == pytest.approx(0.8, abs=0.01)
    assert value_of(reading, job.COMPILERS) == 2
    assert value_of(reading, job.COMPILER_CPUS) == pytest.approx(1.9, abs=0.01)
    assert value_of(reading, job.BUSIEST_THREAD) == pytest.approx(1.0, abs=0.01)


def test_a_compiler_that_has_just_begun_counts_as_one_cpu(tmp_path: Path) -> None:
    proc = Proc(tmp_path, {1: Task({1: 0.2})})
    source = proc.source()
    proc.pass_by(10)
    source.read()
    proc.tasks[1].children = (2,)
    proc.tasks[2] = Task({2: 0.01}, name="cicc", command="cicc\0--arch\0compute_90\0")
    proc.pass_by(10)
    assert value_of(source.read(), job.COMPILER_CPUS) == 1.0


def test_threads_that_sleep_are_not_read_and_told_when_they_wake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep = dict.fromkeys(range(2, 100), 0.0)
    proc = Proc(tmp_path, {1: Task({1: 0.9, **asleep})})
    read: list[str] = []
    read_text = proc.node.read_text

    def listen(path: str) -> str:
        read.append(path)
        return read_text(path)

    monkeypatch.setattr(proc.node, "read_text", listen)
    source = proc.source()
    for _ in range(3):
        proc.pass_by(10)
        read.clear()
        reading = source.read()
    assert [path for path in read if "/task/" in path and path.endswith("/stat")] == [
        "/proc/1/task/1/stat"
    ]
    assert value_of(reading, job.HOST_THREAD) == pytest.approx(0.9, abs=0.01)
    proc.tasks[1].threads = {**asleep, 1: 0.3, 2: 0.97}
    proc.pass_by(10)
    reading = source.read()
    assert value_of(reading, job.HOST_THREAD) == pytest.approx(0.97, abs=0.01)
    assert value_of(reading, job.BUSY_THREADS) == 1


def test_children_that_come_and_go_hide_no_thread(tmp_path: Path) -> None:
    proc = Proc(tmp_path, {1: Task({1: 0.9, 10: 0.9}, children=(2, 3))})
    proc.tasks[2] = Task({2: 0.9}, name="pt_data_worker")
    source = proc.source()
    for child in range(3, 6):
        proc.tasks[1].children = (2, child)
        proc.tasks[child] = Task({child: 1.0, 10 * child: 1.0}, name="ld")
        proc.pass_by(10)
        reading = source.read()
    assert value_of(reading, job.HOST_THREAD) == pytest.approx(0.9, abs=0.01)
    assert value_of(reading, job.LOADER_CPUS) == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize(("room", "asked"), [(job.THREADS, True), (0, False)])
def test_a_trainer_in_a_thread_of_its_own_forks_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, asked: bool
) -> None:
    """https://github.com/ray-project/ray/blob/master/python/ray/train (``TrainingThread``)"""
    monkeypatch.setattr(job, "THREADS", room)
    worker = Task({2: 0.9}, name=job.LOADER_WORKER)
    proc = Proc(tmp_path, {1: Task({1: 0.1, 10: 0.2}), 2: worker})
    source = proc.source()
    for _ in range(job.ASK_ALL + 1):
        proc.pass_by(10)
        (tmp_path / "proc/1/task/10/children").write_text("2 ")
        reading = source.read()
    assert reading is not None
    assert value_of(reading, job.LOADER_WORKERS) == (1 if asked else None)
    assert [one.times for one in reading.unread] == ([] if asked else [1])


def test_of_an_old_job_each_read_asks_the_threads_that_fork_and_some_ask_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = {pid: Task({pid: 0.9}, name=job.LOADER_WORKER) for pid in range(2, 20)}
    proc = Proc(tmp_path, {1: Task({1: 0.1, 30: 0.2, 31: 0.0}), **workers})
    asked, read_text = list[str](), proc.node.read_text

    def note(path: str) -> str:
        if path.endswith("/children"):
            asked.append(path.split("/")[4])
        return read_text(path)

    monkeypatch.setattr(proc.node, "read_text", note)
    source, in_all = proc.source(), 0
    for worker in range(2, 20):
        proc.pass_by(10)
        (tmp_path / "proc/1/task/30/children").write_text(f"{worker} ")
        asked.clear()
        reading = source.read()
        assert value_of(reading, job.LOADER_WORKERS) == 1
        assert {"1", "30"} <= set(asked)
        in_all += "31" in asked
    assert 18 / job.ASK_ALL <= in_all < 9


def test_a_rank_on_another_gpu_is_no_loader_of_the_one_that_launched_it(tmp_path: Path) -> None:
    tasks = {
        1: Task({1: 0.2}, children=(2, 3)),
        2: Task({2: 1.0}, children=(4,)),
        3: Task({3: 0.4}),
        4: Task({4: 0.9}),
    }
    proc, other = Proc(tmp_path, tasks), Card(7)
    other.hold(2)
    source = proc.source()
    for _ in range(4):
        proc.pass_by(10)
        source.census.look(other)  # type: ignore[arg-type]
        reading = source.read()
    assert value_of(reading, job.PROCESSES) == 2
    assert value_of(reading, job.LOADER_CPUS) == pytest.approx(0.4, abs=0.01)


def test_workers_that_are_new_in_each_epoch_are_known_by_their_whole_life(tmp_path: Path) -> None:
    proc = Proc(tmp_path, {1: Task({1: 0.3})})
    source = proc.source()
    for epoch in range(4):
        workers = (10 * epoch + 2, 10 * epoch + 3)
        proc.tasks[1].children = workers
        # What began 4 s ago has used 3.6 s of a CPU; what began just now tells nothing.
        proc.tasks[workers[0]] = Task({workers[0]: 0.36, 10 * workers[0]: 0.0}, start=109_600)
        proc.tasks[workers[1]] = Task({workers[1]: 0.05}, start=109_950)
        proc.pass_by(10)
        (tmp_path / "proc/uptime").write_text("1100.00 9000.00\n")
        reading = source.read()
        assert (value_of(reading, job.LOADER_CPUS) is None) == (epoch == 0)
    assert value_of(reading, job.LOADER_CPUS) == pytest.approx(0.9, abs=0.01)
    assert value_of(reading, job.HOST_THREAD) == pytest.approx(0.3, abs=0.01)


def test_a_new_child_that_ends_while_it_is_looked_at_hides_no_thread(tmp_path: Path) -> None:
    proc = Proc(tmp_path, {1: Task({1: 0.9}, children=(2,)), 2: Task({2: 0.9})})
    source = proc.source()
    for child in (3, 4):
        proc.pass_by(10)
        (tmp_path / f"proc/{child}").mkdir()  # its stat is still there, its threads are not
        (tmp_path / f"proc/{child}/stat").write_text(stat("ld", 500, start=100_000))
        (tmp_path / "proc/1/task/1/children").write_text(f"2 {child}")
        (tmp_path / "proc/uptime").write_text("1010.00 9000.00\n")
        reading = source.read()
    assert value_of(reading, job.LOADER_CPUS) == pytest.approx(0.9, abs=0.01)


def test_what_a_process_of_one_cpu_does_is_known_at_the_second_look(tmp_path: Path) -> None:
    proc = Proc(tmp_path, {1: Task({1: 0.1, 10: 0.0})})
    source = proc.source()
    for busy in (0.1, 0.1, 0.9):
        proc.tasks[1] = Task({1: 0.1, 10: busy})
        proc.pass_by(10)
        reading = source.read()
    assert value_of(reading, job.HOST_THREAD) == pytest.approx(1.0, abs=0.01)


def test_a_new_job_is_looked_at_early_and_ever_less_often(tmp_path: Path) -> None:
    proc = Proc(tmp_path, {1: Task({1: 0.2}), 2: Task({2: 0.2})}, held_by=())
    source = proc.source(interval=10.0)
    ages = []
    for holders in [()] * 2 + [(1,)] * 10 + [(1, 2)] * 3 + [(1,)] * 2:
        proc.held_by = holders
        proc.pass_by(source.every)
        assert source.read() is not None
        ages.append((len(holders), round(source.every, 1)))
    assert ages == [
        *[(0, 2.0)] * 2,
        *[(1, every) for every in (2.0, 2.0, 2.0, 2.0, 2.7, 3.6, 4.7, 6.3, 8.4, 10.0)],
        *[(2, every) for every in (2.0, 2.0, 2.0)],
        # What comes soon after is not looked at early once more.
        *[(1, every) for every in (2.0, 2.7)],
    ]


def test_an_interval_shorter_than_the_early_one_is_kept(tmp_path: Path) -> None:
    proc = Proc(tmp_path, {1: Task({1: 0.2})})
    source = proc.source(interval=1.0)
    for _ in range(5):
        proc.pass_by(1.0)
        assert source.read() is not None
        assert source.every == 1.0


def test_a_driver_that_fails_for_a_moment_doubles_nobodys_share(tmp_path: Path) -> None:
    proc = Proc(tmp_path, {1: Task({1: 0.4})})
    source = proc.source()
    proc.pass_by(10)
    source.read()
    proc.fails = True
    proc.pass_by(10)
    with pytest.raises(DriverError):
        source.read()
    proc.fails = False
    proc.pass_by(10)
    reading = source.read()
    assert value_of(reading, job.HOST_CPUS) == pytest.approx(0.4, abs=0.01)
    assert value_of(reading, job.HOST_THREAD) == pytest.approx(0.4, abs=0.01)


def test_a_process_that_cannot_be_read_has_no_share_instead_of_none_at_all(tmp_path: Path) -> None:
    proc = Proc(tmp_path, held_by=(7,))
    reading = settled(proc)
    for metric in (job.HOST_THREAD, job.HOST_CPUS, job.HOST_SYSTEM, job.COMPILERS):
        assert value_of(reading, metric) is None


def test_a_process_that_has_the_id_of_one_before_it_is_another(tmp_path: Path) -> None:
    proc = Proc(tmp_path, {1: Task({1: 0.2}, command="ptxas\0")})
    source = proc.source()
    for _ in range(2):
        proc.pass_by(10)
        reading = source.read()
    assert value_of(reading, job.COMPILERS) == 1
    proc.tasks[1] = Task({1: 0.2}, start=2000)
    for _ in range(2):
        proc.pass_by(10)
        reading = source.read()
    assert value_of(reading, job.COMPILERS) == 0
