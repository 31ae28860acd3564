"""The parsers of the node's files: whatever a file holds, they return or raise ``ValueError``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpunode.host import (
    cpu,
    disk,
    filesystem,
    infiniband,
    kernel_log,
    lustre,
    memory,
    mounts,
    network,
    nfs,
    pcie,
    pressure,
)
from gpunode.host.counter import counter
from gpunode.host.shm import Filling
from gpunode.jobs import cgroup, processes
from tests.machine import MACHINES

PARSERS: dict[str, Callable[[str], Any]] = {
    "/proc/stat": cpu.parse,
    "cpulist": cpu.parse_cpu_list,
    "/proc/diskstats": disk.parse,
    "infiniband/rate": infiniband.parse_rate,
    "lustre/stats": lustre.parse_stats,
    "lustre/import": lustre.parse_import,
    "/proc/meminfo": memory.parse_meminfo,
    "/proc/vmstat": lambda text: memory.parse_vmstat(text, memory.WANTED),
    "mountinfo": lambda text: filesystem.watched(mounts.parse(text)),
    "net/dev": network.parse_devices,
    "net/snmp": network.parse_protocols,
    "mountstats": nfs.parse,
    "pcie/speed": pcie.parse_speed,
    "pcie/aer": lambda text: pcie.parse_total(text, "fatal"),
    "pressure": pressure.parse,
    "/proc/PID/stat": processes.parse_stat,
    "/proc/PID/status": processes.parse_fields,
    "/proc/PID/cgroup": cgroup.locate,
    "cpu.stat": cgroup.parse_pairs,
    "memory.max": cgroup.parse_limit,
    "counter": counter,
    "kernel log": kernel_log.kind_of,
}
REAL = [
    path.read_text(errors="replace")
    for path in sorted(MACHINES.rglob("*"))
    if path.is_file() and "golden" not in path.parts and path.stat().st_size < 20_000
]
NUMBERS = st.sampled_from(["-1", "9" * 30, "1e9", "nan", "0x10", "", "1_000", "٣", "max", "\0"])


@st.composite
def spoiled(draw: st.DrawFn) -> str:
    """A real file with some of its words replaced, and perhaps cut short."""
    words = draw(st.sampled_from(REAL)).replace("\n", " \n ").split(" ")
    for _ in range(draw(st.integers(0, 5))):
        words[draw(st.integers(0, len(words) - 1))] = draw(NUMBERS | st.text(max_size=8))
    text = " ".join(words).replace(" \n ", "\n")
    return text[: draw(st.integers(0, len(text)))] if draw(st.booleans()) else text


@pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS.keys())
@given(text=st.text() | spoiled())
@settings(max_examples=150, deadline=None)
def test_a_parser_returns_or_raises_value_error(parse: Callable[[str], Any], text: str) -> None:
    with contextlib.suppress(ValueError):
        parse(text)


COUNTS = st.integers(0, (1 << 53) - 1)


@given(st.lists(st.tuples(COUNTS, COUNTS, COUNTS, COUNTS), min_size=1, max_size=8))
def test_the_times_of_cores_are_read_back(cores: list[tuple[int, int, int, int]]) -> None:
    text = "".join(f"cpu{at} {u} 0 {s} {i} {w} 0 0 0\n" for at, (u, s, i, w) in enumerate(cores))
    found = cpu.parse(text).cores
    for at, (user, system, idle, iowait) in enumerate(cores):
        core = found[str(at)]
        assert (core.user, core.system, core.idle, core.iowait) == (
            user / 100,
            system / 100,
            idle / 100,
            iowait / 100,
        )


@given(st.sets(st.integers(0, 300)))
def test_a_list_of_cpus_is_read_back(cpus: set[int]) -> None:
    ordered, parts = sorted(cpus), []
    while ordered:
        first = last = ordered.pop(0)
        while ordered and ordered[0] == last + 1:
            last = ordered.pop(0)
        parts.append(str(first) if first == last else f"{first}-{last}")
    assert cpu.parse_cpu_list(",".join(parts) + "\n") == set(map(str, cpus))


@given(st.text(min_size=1).filter(lambda name: "\0" not in name), COUNTS, COUNTS)
def test_any_name_of_a_process_is_read_back(name: str, ticks: int, start: int) -> None:
    stat = processes.parse_stat(
        f"12 ({name}) S 1 1 1 0 -1 4 1 2 3 4 {ticks} 0 0 0 20 0 1 0 {start} 1\n"
    )
    assert (stat.name, stat.cpu, stat.start) == (name, ticks / 100, start)


@given(st.text(alphabet=st.characters(max_codepoint=126), min_size=1).map(lambda s: "/" + s))
def test_any_mount_point_is_read_back(point: str) -> None:
    escaped = "".join(f"\\{ord(c):03o}" if c in " \t\n\\" or ord(c) < 32 else c for c in point)
    found = mounts.parse(f"22 1 8:1 / {escaped} rw,noatime shared:1 - ext4 /dev/sda1 rw\n")
    assert [mount.point for mount in found] == [point]


@pytest.mark.parametrize(
    "start", ["", "task ", "NVRM: Xid (PCI:", "AER: ", "LustreError: ", "mlx5_core "]
)
def test_a_long_line_of_the_kernel_log_takes_no_time(start: str) -> None:
    line = start + "a blocked Error was Link " * 3000
    begin = time.process_time()
    kernel_log.kind_of(line[: kernel_log.LONGEST])
    assert time.process_time() - begin < 0.1


def test_when_something_is_full_follows_from_the_last_minute() -> None:
    filling = Filling()
    assert filling.add(0.0, 100.0) is None
    assert filling.add(10.0, 90.0) == 90.0
    assert filling.add(20.0, 95.0) == pytest.approx(95.0 * 20 / 5)
    assert filling.add(80.0, 95.0) is None
    assert filling.add(90.0, 120.0) is None
    assert Filling().add(0.0, 0.0) is None
