"""Lustre: the busiest target, and over how many targets a file is spread."""

from __future__ import annotations

from pathlib import Path

from gpunode.config import Settings
from gpunode.host.lustre import BUSIEST_TARGET, STRIPES, Lustre
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
