"""Memory of the node: what does not show on a test machine with x86 processors."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.config.daemon import Settings
from gpunode.host.memory import AVAILABLE, FREE, SIZE, SWAPPED, NodeMemory
from gpunode.node.local import LocalNode

PMD_SIZE = "sys/kernel/mm/transparent_hugepage/hpage_pmd_size"


@pytest.mark.parametrize(
    ("pmd_size", "huge_page", "page"),
    [
        ("2097152", "2048", 4096),
        ("33554432", "32768", 16384),
        ("536870912", "524288", 65536),  # Grace
        ("536870912", "2048", 65536),  # default_hugepagesz=2M
        (None, "2048", 4096),  # no transparent huge pages
        (None, "524288", 65536),
        (None, "1048576", None),  # default_hugepagesz=1G
        ("garbage", "524288", 65536),
    ],
)
def test_swap_is_counted_in_the_pages_of_the_kernel(
    tmp_path: Path, pmd_size: str | None, huge_page: str, page: int | None
) -> None:
    (tmp_path / "proc").mkdir()
    meminfo = f"MemTotal: 1000 kB\nHugepagesize: {huge_page} kB\n"
    (tmp_path / "proc/meminfo").write_text(meminfo)
    (tmp_path / "proc/vmstat").write_text("pswpin 3\n")
    if pmd_size:
        (tmp_path / PMD_SIZE).parent.mkdir(parents=True)
        (tmp_path / PMD_SIZE).write_text(f"{pmd_size}\n")
    reading = NodeMemory(LocalNode(tmp_path), Settings()).read()
    swapped = [sample.value for sample in reading.samples if sample.metric is SWAPPED]
    assert swapped == ([3.0 * page] if page else [])


def numa_node(root: Path, number: int, cpus: str, gibibytes: dict[str, int]) -> None:
    folder = root / f"sys/devices/system/node/node{number}"
    folder.mkdir(parents=True)
    (folder / "cpulist").write_text(f"{cpus}\n")
    lines = (f"Node {number} {name}: {n << 20} kB\n" for name, n in gibibytes.items())
    (folder / "meminfo").write_text("".join(lines))


def test_memory_of_gpus_is_not_the_nodes(tmp_path: Path) -> None:
    numa_node(tmp_path, 0, "0-71", {"MemTotal": 480, "MemFree": 2})
    numa_node(tmp_path, 1, "", {"MemTotal": 128, "MemFree": 10})  # CXL
    for number in (2, 10):
        hbm = {"MemTotal": 186, "MemFree": 160, "Active(file)": 3, "Inactive(file)": 4}
        numa_node(tmp_path, number, "", hbm)
        gpu = tmp_path / f"proc/driver/nvidia/gpus/00{number:02}:01:00.0"
        gpu.mkdir(parents=True)
        (gpu / "numa_status").write_text(f"Node:      {number}\nStatus:    online\n")
    whole = {"MemTotal": 980, "MemFree": 332, "MemAvailable": 350}
    text = "".join(f"{name}: {n << 20} kB\n" for name, n in whole.items())
    (tmp_path / "proc/meminfo").write_text(text)
    (tmp_path / "proc/vmstat").write_text("")
    reading = NodeMemory(LocalNode(tmp_path), Settings()).read()
    found = {sample.metric: sample.value for sample in reading.samples}
    assert found == {SIZE: 608 * 2.0**30, FREE: 12 * 2.0**30, AVAILABLE: 16 * 2.0**30}
