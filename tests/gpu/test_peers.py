"""Whether processes have peers: their threads and environments, in files that change."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.driver.driver import Process
from gpunode.gpu.peers import FIRST_LOOK, LAST_LOOK, Peers
from gpunode.node.local import LocalNode

HELD = [Process(1, None, "compute")]


def run(root: Path, pid: int, *threads: str, environment: str = "") -> None:
    """A process with threads of these names."""
    for at, name in enumerate(threads):
        comm = root / f"proc/{pid}/task/{pid + at}/comm"
        comm.parent.mkdir(parents=True, exist_ok=True)
        comm.write_text(f"{name}\n")
    (root / f"proc/{pid}/environ").write_text(environment)


@pytest.mark.parametrize(
    ("thread", "peers"),
    [
        ("pt_nccl_watchdg", True),
        ("NCCL Service 0", True),
        ("pt_nccl_heartbt", True),
        ("pt_autograd_0", False),
        ("cuda-EvtHandlr", False),
    ],
)
def test_a_communicator_shows_in_the_names_of_threads(
    tmp_path: Path, thread: str, peers: bool
) -> None:
    run(tmp_path, 1, "python3", thread)
    assert Peers(LocalNode(tmp_path)).known(HELD, 0.0, moved=False) is peers


@pytest.mark.parametrize(
    ("environment", "peers"),
    [
        ("WORLD_SIZE=8", True),
        ("OMPI_COMM_WORLD_SIZE=2", True),
        ("WORLD_SIZE=1", False),
        ("WORLD_SIZE=many", False),
        ("WORLD_SIZE=", False),
    ],
)
def test_a_launcher_tells_of_peers(tmp_path: Path, environment: str, peers: bool) -> None:
    run(tmp_path, 1, "python3", environment=f"HOME=/root\0{environment}\0")
    assert Peers(LocalNode(tmp_path)).known(HELD, 0.0, moved=False) is peers


def test_what_cannot_be_seen_is_not_known(tmp_path: Path) -> None:
    peers = Peers(LocalNode(tmp_path))
    assert peers.known(None, 0.0, moved=False) is None
    assert peers.known(HELD, 0.0, moved=False) is None
    assert peers.known([], 0.0, moved=False) is False
    run(tmp_path, 2, "python3", "pt_nccl_watchdg")
    assert peers.known([*HELD, Process(2, None, "compute")], 0.0, moved=False) is True


def test_a_process_that_draws_has_no_peers(tmp_path: Path) -> None:
    run(tmp_path, 1, "Xorg", "nccl?")
    drawing = [Process(1, None, "graphics")]
    assert Peers(LocalNode(tmp_path)).known(drawing, 0.0, moved=False) is False


def test_a_process_is_looked_at_less_and_less_until_it_has_peers(tmp_path: Path) -> None:
    run(tmp_path, 1, "python3")
    peers, now, pause = Peers(LocalNode(tmp_path)), 0.0, FIRST_LOOK
    assert peers.known(HELD, now, moved=False) is False
    while pause < LAST_LOOK:
        now += pause
        assert peers.known(HELD, now, moved=False) is False
        pause = min(LAST_LOOK, 2 * pause)
    run(tmp_path, 1, "python3", "pt_nccl_watchdg")
    assert peers.known(HELD, now + LAST_LOOK - 1, moved=False) is False
    assert peers.known(HELD, now + LAST_LOOK, moved=False) is True
    run(tmp_path, 1, "python3", "destroyed")
    assert peers.known(HELD, now + 1000, moved=False) is True


def test_what_moves_over_nvlink_tells_of_peers_at_once(tmp_path: Path) -> None:
    run(tmp_path, 1, "python3")
    peers = Peers(LocalNode(tmp_path))
    assert peers.known(HELD, 0.0, moved=True) is False  # it was another's
    assert peers.known(HELD, 1.0, moved=True) is True
