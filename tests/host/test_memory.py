"""Memory of the node: what does not show on a test machine with pages of 4 KiB."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.config import Settings
from gpunode.host.memory import SWAPPED, NodeMemory
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
