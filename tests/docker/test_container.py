"""What the daemon makes of a node of which its container has only a part."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from gpunode.config.daemon import Settings
from gpunode.host.filesystem import READ_ONLY, Filesystems
from gpunode.host.kernel_log import KernelLog
from gpunode.jobs import cgroup
from gpunode.node.local import LocalNode

POD = "kubepods-burstable-pod12345678_1234_1234_1234_123456789012.slice/cri-containerd-ab.scope"
BURSTABLE = "/kubepods.slice/kubepods-burstable.slice"


@pytest.mark.parametrize(
    ("seen", "there"),
    [
        (f"{BURSTABLE}/{POD}", f"{BURSTABLE}/{POD}"),
        (f"/../../../../kubepods.slice/kubepods-burstable.slice/{POD}", f"{BURSTABLE}/{POD}"),
        (f"/../../../kubepods-burstable.slice/{POD}", f"{BURSTABLE}/{POD}"),
        (f"/../../{POD}", f"{BURSTABLE}/{POD}"),
        (
            f"/../../../gpu-{POD}",
            f"/gpu.slice/gpu-kubepods.slice/gpu-kubepods-burstable.slice/gpu-{POD}",
        ),
        (
            "/../../ecstasks-ab.slice/docker-1.scope",
            "/ecstasks.slice/ecstasks-ab.slice/docker-1.scope",
        ),
        ("/../../burstable/pod1/ab", "/kubepods/burstable/pod1/ab"),
        ("/../../pod1/ab", "/kubepods/burstable/pod1/ab"),
    ],
)
def test_the_cgroup_of_a_job_is_found_from_another_namespace(
    seen: str, there: str, tmp_path: Path
) -> None:
    (tmp_path / f"sys/fs/cgroup{there}").mkdir(parents=True)
    found = cgroup.locate(f"0::{seen}\n", LocalNode(tmp_path))
    assert found == cgroup.Paths(f"/sys/fs/cgroup{there}", f"/sys/fs/cgroup{there}", 2)


@pytest.mark.parametrize("seen", ["/../../gone", "/../..", "/../../a/../../b"])
def test_a_cgroup_that_is_not_visible_has_no_readings(seen: str, tmp_path: Path) -> None:
    (tmp_path / "sys/fs/cgroup/b").mkdir(parents=True)
    assert cgroup.locate(f"0::{seen}\n", LocalNode(tmp_path)) is None


def test_where_there_is_no_kernel_log_nothing_is_counted(tmp_path: Path) -> None:
    assert KernelLog(LocalNode(tmp_path), Settings()).read().samples == ()


def test_a_log_that_may_not_be_read_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "var/log/syslog").mkdir(parents=True)  # which nobody can read
    with pytest.raises(OSError, match="cannot read any of"):
        KernelLog(LocalNode(tmp_path), Settings()).read()


def test_space_is_shown_only_if_the_root_of_the_node_is_mounted(tmp_path: Path) -> None:
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/mountinfo").write_text("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n")
    (source,) = (s for p, s in Filesystems(LocalNode(tmp_path), Settings()).find() if p.mountpoint)
    reading = source.read()
    assert reading is not None
    assert reading.samples == tuple(READ_ONLY.at(0.0, "/", "ext4")), "which the node tells"
    with pytest.raises(FileNotFoundError) as caught:
        LocalNode(tmp_path).filesystem("/")
    assert caught.value.errno == errno.ENOENT
