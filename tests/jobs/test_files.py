"""Open files of a job's processes, against their limits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpunode.jobs.files import open_files_ratio, parse_open_files_limit
from gpunode.node.local import LocalNode
from tests.cases import with_each

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max processes             515506               515506               processes
Max open files            {}                 1048576              files
Max locked memory         unlimited            unlimited            bytes
"""


class OpenFilesNode(LocalNode):
    """Processes with so many open files."""

    def __init__(self, rootfs: Path, opened: dict[int, int]) -> None:
        super().__init__(rootfs)
        self.opened = opened

    def open_files(self, pid: int) -> int:
        return self.opened[pid]


def process(rootfs: Path, pid: int, limit: object) -> None:
    folder = rootfs / "proc" / str(pid)
    folder.mkdir(parents=True)
    (folder / "limits").write_text(LIMITS.format(limit))


def test_the_fullest_process_counts(tmp_path: Path) -> None:
    process(tmp_path, 1, 1024)
    process(tmp_path, 2, 1024)
    assert open_files_ratio(OpenFilesNode(tmp_path, {1: 256, 2: 960}), ["1", "2"]) == 960 / 1024


def test_who_has_no_limit_is_at_none(tmp_path: Path) -> None:
    process(tmp_path, 1, "unlimited")
    assert open_files_ratio(OpenFilesNode(tmp_path, {1: 10**6}), ["1"]) is None


def test_a_process_that_has_ended_says_nothing(tmp_path: Path) -> None:
    process(tmp_path, 1, 1024)
    assert open_files_ratio(LocalNode(tmp_path), ["1", "2"]) is None


def test_a_real_process_has_as_many_as_it_opens() -> None:
    node, mine = LocalNode(Path("/")), os.getpid()
    before = node.open_files(mine)
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(50)]
    try:
        assert node.open_files(mine) >= before + 50
        ratio = open_files_ratio(node, [str(mine)])
        assert ratio is None or 0 < ratio < 1
    finally:
        for file in opened:
            os.close(file)


@with_each(["", "Max open files", "Max open files   many  files"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_open_files_limit(text)
