"""Filesystems that users mount: they take nobody's place, and hold nobody up."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gpunode.config.daemon import Settings
from gpunode.host import mounts
from gpunode.host.filesystem import MAX_FILESYSTEMS, MAX_USER_FILESYSTEMS, Filesystems
from gpunode.host.mounts import ParsedMounts, parse
from gpunode.node import patience
from gpunode.node.local import LocalNode
from gpunode.node.node import MAX_FILE, Filesystem
from gpunode.source import WHOLE_NODE, Source
from tests.cases import with_each
from tests.conftest import until

ROOT = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
SCRATCH = "900 22 0:900 / /scratch rw - lustre 10.0.0.1@tcp:/scratch rw\n"
HOME = "901 22 0:901 / /home rw - nfs4 filer:/home rw\n"


def fuse(number: int, user: int, kind: str = "fuse.sshfs") -> str:
    options = f"rw,user_id={user},group_id={user}"
    return f"{number} 22 0:{number} / /home/u{user}/{number} rw - {kind} me@host: {options}\n"


class MountedNode(LocalNode):
    """A node with a table of mounts, some of which do not answer."""

    def __init__(self, root: Path, *lines: str) -> None:
        super().__init__(root)
        (root / "proc/1").mkdir(parents=True)
        self.table = root / "proc/1/mountinfo"
        self.table.write_text("".join(lines))
        self.dead = ""
        self.answers = threading.Event()
        self.filesystems = Filesystems(self, Settings())

    def filesystem(self, path: str) -> Filesystem:
        if self.dead and path.startswith(self.dead):
            self.answers.wait()
        return Filesystem(100.0, 50.0, 50.0)

    def found(self) -> dict[str, Source]:
        return {place.mountpoint: one for place, one in self.filesystems.find()}


def test_no_number_of_mounts_of_users_hides_what_is_mounted_later(tmp_path: Path) -> None:
    crowd = [fuse(100 + n, 1000) for n in range(60)]
    node = MountedNode(tmp_path, ROOT, *crowd, SCRATCH, fuse(300, 1001), HOME)
    found = node.found()
    (left_out,) = found.pop(WHOLE_NODE.mountpoint).read().unread  # type: ignore[union-attr]
    assert list(found)[:3] == ["/", "/scratch", "/home"]
    assert "/home/u1001/300" in found, "each user in turn"
    assert len(found) == 3 + MAX_USER_FILESYSTEMS
    assert (left_out.kind.what, left_out.kind.bound) == ("mounts", True)
    assert left_out.times == 61 - MAX_USER_FILESYSTEMS
    assert left_out.kind in node.filesystems._unwatched.unknowns


def test_more_of_the_nodes_own_than_there_are_threads_come_before_those_of_users(
    tmp_path: Path,
) -> None:
    own = [f"{n} 22 0:{n} / /data/{n} rw - nfs4 filer:/{n} rw\n" for n in range(100, 140)]
    found = MountedNode(tmp_path, fuse(50, 1000), *own).found()
    found.pop(WHOLE_NODE.mountpoint)
    assert list(found) == [f"/data/{n}" for n in range(100, 100 + MAX_FILESYSTEMS)]


def test_a_user_whose_mounts_do_not_answer_holds_two_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "TIMEOUT", 0.01)
    before = set(threading.enumerate())
    node = MountedNode(tmp_path, ROOT, *[fuse(100 + n, 1000) for n in range(9)], fuse(200, 1001))
    node.dead = "/home/u1000"
    try:
        for _ in range(2):
            for mountpoint, source in node.found().items():
                if mountpoint.startswith("/home/u1000"):
                    with pytest.raises(TimeoutError):
                        source.read()
        assert len(set(threading.enumerate()) - before) == patience.PER_TENANT
        monkeypatch.setattr(patience, "TIMEOUT", 300.0)
        for mountpoint in ("/", "/home/u1001/200"):
            assert node.found()[mountpoint].read().samples  # type: ignore[union-attr]
    finally:
        node.answers.set()
    until(lambda: not set(threading.enumerate()) - before)


def test_a_user_mounts_no_volume_of_pods(tmp_path: Path) -> None:
    """The file beside it that names it may be on a mount that never answers."""
    forged = "/home/u/pods/{}/volumes/kubernetes.io~csi/pvc-1/mount".format("a" * 32)
    staged = f"/home/u/plugins/kubernetes.io/csi/x/{'a' * 64}"
    true = f"/var/lib/kubelet{forged.removeprefix('/home/u')}"
    lines = (
        f"100 22 0:100 / {forged} rw - fuse.sshfs me@host: rw,user_id=1000\n",
        f"101 22 0:101 / {staged}/globalmount rw - fuse.sshfs me@host: rw,user_id=1000\n",
        f"102 22 0:102 / {true} rw - nfs4 filer:/claim rw\n",
    )
    node = MountedNode(tmp_path, *lines)
    (tmp_path / staged[1:]).mkdir(parents=True)
    (tmp_path / staged[1:] / "vol_data.json").write_text('{"specVolID": "pvc-2"}')
    volumes = {m for m in node.found() if m != WHOLE_NODE.mountpoint}
    assert volumes == {"pvc-1", forged, f"{staged}/globalmount"}


def test_a_table_that_is_too_long_is_told_and_takes_nothing_away(tmp_path: Path) -> None:
    node = MountedNode(tmp_path, ROOT, SCRATCH)
    assert "/scratch" in node.found()
    with node.table.open("a") as table:
        table.write(f"2 22 0:2 / /{'x' * MAX_FILE} rw - fuse.x x rw,user_id=7\n")
    found = node.found()
    assert "/scratch" in found
    with pytest.raises(OSError, match="too large"):
        found[WHOLE_NODE.mountpoint].read()


def test_a_table_is_parsed_once_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []

    def counted(text: str) -> list[mounts.Mount]:
        parsed.append(len(text))
        return parse(text)

    monkeypatch.setattr(mounts, "parse", counted)
    text = [ROOT]
    table = ParsedMounts(lambda: text[0])
    for _ in range(32):
        assert [mount.point for mount in table.mounts()] == ["/"]
    text[0] += SCRATCH
    assert [mount.point for mount in table.mounts()] == ["/", "/scratch"]
    assert parsed == [len(ROOT), len(ROOT + SCRATCH)]


@with_each(
    [
        ("rw", True),
        ("rw,user_id=0,group_id=0", True),
        ("rw,user_id=1000", False),
        ("user_id=", False),
        ("rw,user_id=00", False),
        ("rw,xuser_id=1000", True),
    ]
)
def test_who_has_mounted_a_fuse_is_what_fusermount_says(options: str, of_root: bool) -> None:
    (mount,) = parse(f"2 1 0:2 / /x rw - fuse.sshfs me {options}\n")
    assert mount.of_root is of_root
