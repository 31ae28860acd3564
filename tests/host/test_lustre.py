"""Lustre: mounts that come and go, the busiest target, and over how many a file is spread."""

from __future__ import annotations

import shutil
from pathlib import Path

from gpunode.config.daemon import Settings
from gpunode.host.lustre import (
    BUSIEST_TARGET,
    BYTES,
    OPERATION_SECONDS,
    OPERATIONS,
    STRIPES,
    Lustre,
)
from gpunode.metric import Metric
from gpunode.node.local import LocalNode

CLIENT = "ffff88105db50000"


def write(root: Path, waited: dict[str, int], stripes: int = 1) -> None:
    """Files of a client whose targets took so many microseconds for their requests."""
    lov = root / f"sys/fs/lustre/lov/scratch-clilov-{CLIENT}"
    lov.mkdir(parents=True, exist_ok=True)
    (lov / "stripecount").write_text(f"{stripes}\n")
    for target, microseconds in waited.items():
        folder = root / f"sys/kernel/debug/lustre/osc/scratch-{target}-osc-{CLIENT}"
        folder.mkdir(parents=True, exist_ok=True)
        line = f"req_waittime 100 samples [usec] 31 17820911 {microseconds} 1\n"
        (folder / "stats").write_text(line)


def values(source: Lustre, metric: Metric) -> dict[tuple[str, ...], object]:
    return {s.labels: s.value for s in source.read().samples if s.metric is metric}


def test_the_target_that_takes_most_of_the_time_is_named(tmp_path: Path) -> None:
    source = Lustre(LocalNode(tmp_path), Settings())
    write(tmp_path, {"OST0000": 10**9, "OST0001": 0, "OST000a": 0})
    assert values(source, BUSIEST_TARGET) == {}  # what was before the daemon does not count
    write(tmp_path, {"OST0000": 10**9 + 10**6, "OST0001": 10**6, "OST000a": 6 * 10**6})
    assert values(source, BUSIEST_TARGET) == {("scratch", "OST000a"): 0.75}


def test_a_client_that_hardly_asks_has_no_busiest_target(tmp_path: Path) -> None:
    source = Lustre(LocalNode(tmp_path), Settings())
    write(tmp_path, {"OST0000": 0, "OST0001": 0})
    source.read()
    write(tmp_path, {"OST0000": 900_000, "OST0001": 0})
    assert values(source, BUSIEST_TARGET) == {}


def test_minus_one_stands_for_all_targets(tmp_path: Path) -> None:
    for stripes, spread in ((-1, 2.0), (0, 1.0), (1, 1.0), (4, 4.0)):
        write(tmp_path, {"OST0000": 0, "OST0001": 0}, stripes)
        assert values(Lustre(LocalNode(tmp_path), Settings()), STRIPES) == {("scratch",): spread}


def mount(root: Path, name: str, read: int, opened: int = 0) -> Path:
    """Files of a mount through which so many bytes were read, and files opened."""
    folder = root / f"proc/fs/lustre/llite/fsx-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"read_bytes {read // 4096} samples [bytes] 4096 1048576 {read}"] if read else []
    lines += [f"open {opened} samples [usec] 1 9 {opened} 90"] if opened else []
    (folder / "stats").write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_mounts_of_one_filesystem_come_and_go_without_a_jump(tmp_path: Path) -> None:
    source = Lustre(LocalNode(tmp_path), Settings())
    told = []
    for first, second in ((10**12, None), (10**12 + 5, 10**9), (10**12 + 8, 10**9 + 7)):
        mount(tmp_path, "ffff9a0000000001", first)
        if second is not None:
            folder = mount(tmp_path, "ffff9a0000000002", second)
        told.append(values(source, BYTES)["fsx", "read"])
    shutil.rmtree(folder)
    told.append(values(source, BYTES)["fsx", "read"])
    assert told == [0.0, 5.0, 15.0, 15.0]


def test_the_first_operations_of_a_mount_count(tmp_path: Path) -> None:
    source = Lustre(LocalNode(tmp_path), Settings())
    mount(tmp_path, "ffff9a0000000001", 0)
    assert values(source, BYTES) == values(source, OPERATIONS) == {}
    mount(tmp_path, "ffff9a0000000001", 4096, opened=3)
    found = {s.metric: s.value for s in source.read().samples if s.labels != ("fsx", "write")}
    assert (found[BYTES], found[OPERATIONS], found[OPERATION_SECONDS]) == (4096.0, 3.0, 3e-6)


def test_mounts_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    source = Lustre(LocalNode(tmp_path), Settings())
    folder = mount(tmp_path, "ffff9a0000000001", 10**9)
    source.read()
    shutil.rmtree(folder)
    source.read()
    mount(tmp_path, "ffff9a0000000001", 10**9)
    assert values(source, BYTES)["fsx", "read"] == 0.0
