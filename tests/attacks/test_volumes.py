"""Volumes of pods: what a tenant mounts, and what the daemon may not see or enter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpunode.config.daemon import Settings
from gpunode.host.filesystem import MAX_FILESYSTEMS, Filesystems
from gpunode.host.nfs import Nfs
from gpunode.node.local import LocalNode
from gpunode.node.node import Filesystem
from gpunode.source import WHOLE_NODE, Source
from tests.machine import read_source
from tests.needs import as_root

KUBELET = "/var/lib/kubelet"
PODS = [f"{number:08x}-5b7d-4c68-9a10-7e2d41b6f0aa" for number in range(100)]
STAGED = f"{KUBELET}/plugins/kubernetes.io/csi/some.csi.driver/{'ab' * 32}"


def at(pod: int, volume: str, plugin: str = "csi") -> str:
    """Where the kubelet mounts a volume of a pod."""
    inside = "/mount" if plugin == "csi" else ""
    return f"{KUBELET}/pods/{PODS[pod]}/volumes/kubernetes.io~{plugin}/{volume}{inside}"


def line(device: str, point: str, kind: str = "nfs4", source: str = "10.0.0.5:/x") -> str:
    return f"9 1 {device} / {point} rw,relatime shared:1 - {kind} {source} rw\n"


ROOT = line("259:1", "/", "ext4", "/dev/nvme0n1p1")


class MountedNode(LocalNode):
    """A node with a table of mounts, all of one size."""

    def __init__(self, root: Path, *lines: str) -> None:
        super().__init__(root)
        (root / "proc/1").mkdir(parents=True)
        (root / "proc/1/mountinfo").write_text("".join([ROOT, *lines]))

    def filesystem(self, path: str) -> Filesystem:  # noqa: ARG002
        return Filesystem(100.0, 50.0, 50.0)

    def found(self) -> dict[str, Source]:
        """The filesystems that are watched."""
        sources = Filesystems(self, Settings()).find()
        return {place.mountpoint: source for place, source in sources if place.mountpoint}

    def unread(self) -> list[str]:
        """What is said of the others."""
        sources = dict(Filesystems(self, Settings()).find())
        reading = sources[WHOLE_NODE].read()
        assert reading is not None
        return [one.example for one in reading.unread]


def test_the_volume_of_a_pod_takes_no_other_its_name(tmp_path: Path) -> None:
    node = MountedNode(
        tmp_path,
        line("0:50", at(0, "datasets"), "lustre", "10.1.2.3@tcp:/fsx"),
        line("0:51", at(1, "datasets"), "fuse.sshfs", "me"),
        line("0:52", at(2, "datasets"), "fuse.sshfs", "me"),
        line("0:53", at(3, "10.1.2.3@tcp:"), "fuse.sshfs", "me"),
    )
    assert list(node.found()) == ["/", "datasets", "datasets (me)", "10.1.2.3@tcp:"]


def test_no_volume_hides_what_the_node_mounts_or_another_pod(tmp_path: Path) -> None:
    """Not even with a FUSE that claims to be of the same server, at a shorter path."""
    node = MountedNode(
        tmp_path,
        line("0:60", "/f", "fuse.sshfs", "10.0.0.5:/data"),
        line("0:61", "/mnt/long/data", "fuse.sshfs", "10.0.0.5:/data"),
        line("0:62", "/mnt/even/longer/data", "nfs4", "10.0.0.5:/data"),
        line("0:63", at(0, "data", "nfs"), "nfs4", "10.0.0.5:/data"),
        *(line(f"0:{100 + pod}", at(pod, f"v{pod}"), source=f"h:/{pod}") for pod in range(100)),
    )
    found = list(node.found())
    assert len(found) == MAX_FILESYSTEMS
    assert found[:4] == ["/", "/f", "/mnt/long/data", "/mnt/even/longer/data"]
    assert node.unread() == [f"104 filesystems, {MAX_FILESYSTEMS} are read"]


def test_pods_that_come_and_go_leave_a_volume_its_name(tmp_path: Path) -> None:
    mounts = [line(f"0:{70 + pod}", at(pod, f"pv-{pod % 3}")) for pod in range(9)]
    for number, there in enumerate((mounts, mounts[3:], mounts[::-1], mounts[:1])):
        assert list(MountedNode(tmp_path / str(number), *there).found()) == ["/", "pv-0"]


@pytest.mark.parametrize(
    "told_by_the_kubelet",
    ["", "{", "[]", "3", '{"specVolID": 3}', '{"specVolID": ""}', "[" * 99_999, "\0", '{"a": 1}'],
)
def test_a_staged_volume_that_nobody_names_is_called_by_its_source(
    tmp_path: Path, told_by_the_kubelet: str
) -> None:
    node = MountedNode(tmp_path, line("8:16", f"{STAGED}/globalmount", "ext4", "/dev/sdb"))
    folder = tmp_path / STAGED.lstrip("/")
    folder.mkdir(parents=True)
    assert list(node.found()) == ["/", "/dev/sdb"]
    (folder / "vol_data.json").write_text(told_by_the_kubelet)
    assert list(node.found()) == ["/", "/dev/sdb"]


@pytest.mark.parametrize(
    "point",
    [
        f"{KUBELET}/pods/{PODS[0]}/volume-subpaths/data/trainer/0",
        f"{KUBELET}/pods/{PODS[0]}/volumes/kubernetes.io~csi/x/mount/deeper",
        f"{KUBELET}/pods/../../etc/volumes/kubernetes.io~csi/x/mount",
        f"{KUBELET}/plugins/kubernetes.io/csi/some.csi.driver/short/globalmount",
        f"{KUBELET}/device-plugins",
    ],
)
def test_what_is_no_volume_below_the_kubelets_folder_is_not_watched(
    tmp_path: Path, point: str
) -> None:
    assert list(MountedNode(tmp_path, line("0:50", point)).found()) == ["/"]


def test_what_a_container_does_not_see_is_not_measured(tmp_path: Path) -> None:
    """It would find the folder below, of another size."""
    node = MountedNode(tmp_path, line("0:50", "/data", source="h:/a"), line("0:51", at(0, "pv")))
    (tmp_path / "proc/self").mkdir()
    own = tmp_path / "proc/self/mountinfo"
    for seen, unseen in (("/data", "pv"), ("pv", "/data")):
        device = {"/data": "0:50", "pv": "0:51"}[seen]
        own.write_text(ROOT + line(device, "/host/wherever"))
        found = node.found()
        assert read_source(found["/"])
        assert read_source(found[seen])
        with pytest.raises(OSError, match="HostToContainer"):
            found[unseen].read()


REAL = """
import os, subprocess, sys
from gpunode.config.daemon import Settings
from gpunode.host.filesystem import Filesystems
from gpunode.cli import rights
from gpunode.node.local import LocalNode
image, point, how = sys.argv[1:]
run = lambda *command: subprocess.run(command, check=True)
run("mount", "-t", "tmpfs", "-o", "mode=755", "kubelet", "/var/lib")
os.makedirs(point)
os.chmod("/var/lib/kubelet", 0o750)
if subprocess.run(["mount", "-o", "loop", image, point]).returncode:
    sys.exit(77)
class Node(LocalNode):
    def read_text(self, path):
        return super().read_text(path.replace("/proc/1/", "/proc/self/"))
if how == "nobody":
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
if how == "lowered":
    rights.lower()
for place, source in Filesystems(Node("/"), Settings()).find():
    if place.mountpoint == "pv-real":
        print([sample.metric.name for sample in source.read().samples], flush=True)
"""


@as_root
@pytest.mark.parametrize("how", ["root", "lowered", "nobody"])
def test_a_real_volume_is_read_by_who_may_enter_the_folder_of_the_kubelet(
    tmp_path: Path, how: str
) -> None:
    if not all(map(shutil.which, ("mkfs.ext4", "mount", "unshare"))):
        pytest.skip("takes mkfs.ext4, mount and unshare")
    image = tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", REAL, str(image), at(0, "pv-real"), how],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    if done.returncode == 77:
        pytest.skip(f"not allowed here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert ("gpunode_filesystem_size_bytes" in done.stdout) == (how != "nobody")
    assert done.stdout.strip() != ""


DEAD = """
import ctypes, os, sys, time
from gpunode.config.daemon import HostSettings, Settings
from gpunode.holders.census import Census
from gpunode.loop import Loop
from gpunode.node.local import LocalNode
from gpunode.sources import NodeSources
point = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"kubelet", b"/var/lib", b"tmpfs", 0, b"mode=755"):
    sys.exit(77)
os.makedirs(point)
server = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={server},rootmode=40000,user_id=0,group_id=0,allow_other"
if libc.mount(b"me", point.encode(), b"fuse.sshfs", 0, options.encode()):
    sys.exit(77)
class Node(LocalNode):
    def read_text(self, path):
        return super().read_text(path.replace("/proc/1/", "/proc/self/"))
settings = Settings(host=HostSettings(interval=1.0, slow_interval=1.0))
node = Node("/")
loop = Loop(node.clock, [NodeSources(Census(node), settings)], find_every=1.0)
loop.start()
end = time.monotonic() + 20
def read():
    return {
        place.mountpoint or name: watch.batch is not None
        for (name, place), watch in loop.watches.items()
    }
while time.monotonic() < end:
    time.sleep(0.1)
    now = read()
    if len(now) > 5 and all(done for what, done in now.items() if what != "pv-dead"):
        break
time.sleep(1)
now = read()
print(now.pop("pv-dead"), all(now.values()), flush=True)
os.close(server)
os._exit(0)
"""


@as_root
def test_a_volume_whose_server_is_gone_keeps_nothing_else_waiting() -> None:
    if not shutil.which("unshare") or not os.path.exists("/dev/fuse"):
        pytest.skip("takes unshare and /dev/fuse")
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", DEAD, at(0, "pv-dead")],
        capture_output=True,
        text=True,
        env=os.environ,
        timeout=60,
    )
    if done.returncode == 77:
        pytest.skip("not allowed here")
    assert done.stdout == "False True\n", done.stdout + done.stderr


def test_volumes_behind_tunnels_are_told_apart(tmp_path: Path) -> None:
    """Each Amazon EFS is mounted from this node's own address, at a port of its tunnel."""
    node = MountedNode(
        tmp_path,
        line("0:60", "/efs", source="127.0.0.1:/"),
        line("0:61", at(0, "models"), source="127.0.0.1:/"),
        line("0:62", at(1, "models"), source="127.0.0.1:/"),
        line("0:63", at(1, "datasets"), source="127.0.0.1:/"),
    )
    assert list(node.found()) == ["/", "/efs", "models", "datasets"]
    statistics = (
        f"device 127.0.0.1:/ mounted on {point} with fstype nfs4 statvers=1.1\n"
        f"\tbytes:\t0 0 0 0 {number} 0 0 0\n"
        for number, point in enumerate(["/efs", at(0, "models"), at(1, "datasets")])
    )
    (tmp_path / "proc/1/mountstats").write_text("".join(statistics))
    read = {
        of.labels[0]: of.value for of in read_source(Nfs(node, Settings())) if "read" in of.labels
    }
    assert read == {"/efs": 0.0, "models": 1.0, "datasets": 2.0}


def test_a_bucket_that_a_pod_mounts_is_watched(tmp_path: Path) -> None:
    """No filesystem of the node's own that says no more than FUSE."""
    node = MountedNode(
        tmp_path,
        line("0:60", at(0, "bucket"), "fuse", "mountpoint-s3"),
        line("0:61", "/home/me/.cache/doc", "fuse", "portal"),
    )
    assert list(node.found()) == ["/", "bucket"]


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("fuse", "mountpoint-s3"),
        ("fuse", "blobfuse2"),
        ("fuse.gcsfuse", "bucket-1"),
        ("fuse.daos", "dfuse"),
        ("fuse.hf3fs", "hf3fs.stage"),
        ("fuse.geesefs", "bucket-1"),
        ("fuse.rclone", "remote:bucket-1"),
        ("pvfs2", "tcp://10.0.0.5:3334/orangefs"),
    ],
)
def test_what_a_node_mounts_for_its_jobs_is_watched(kind: str, source: str, tmp_path: Path) -> None:
    """As the mount table names it, which is not always by the name of the program."""
    assert list(MountedNode(tmp_path, line("0:60", "/data", kind, source)).found()) == [
        "/",
        "/data",
    ]


@pytest.mark.parametrize(
    ("mounted", "example"),
    [
        # of the kernel's own, and of root's FUSEs, the type is shown; what is mounted is a shape
        (line("0:60", "/data", "newfs", "tcp://mallory:1/x"), "type newfs, of a://a:0/a"),
        (line("0:60", "/data", "fuse.newfs", "newfs"), "type fuse.newfs, of a"),
        (line("0:60", "/data", "fuse", "newfs"), "type fuse, of a"),
        (line("0:60", at(0, "v"), "fuse.newfs", "a@b:/c"), "type fuse.newfs, of a@a:/a"),
        (
            line("0:60", "/home/m/x", "fuse.mallory", "mallory:1").replace(
                " rw\n", " rw,user_id=9\n"
            ),
            "type fuse.a, of a:0",
        ),
    ],
)
def test_what_may_be_of_the_network_and_is_not_known_is_told(
    mounted: str, example: str, tmp_path: Path
) -> None:
    again = mounted.replace(" /data ", " /data/again ")
    node = MountedNode(tmp_path, mounted, again)
    assert (list(node.found()), node.unread()) == (["/"], [example])


NONE_OF_THE_NETWORK = (
    line("0:60", "/proc", "proc", "proc"),
    line("0:60", "/x", "overlay", "overlay"),
    line("0:60", "/x", "bpf", "bpf"),
    line("0:60", "/x", "erofs", "none"),
    line("0:60", "/snap/core/1", "fuse.snapfuse", "/dev/fuse"),
    line("0:60", "/mnt/x", "fuse.squashfuse_ll", "/images/a.sif"),
    line("0:60", "/mnt/x", "fuse.new", "/images/a.new"),
    line("0:60", "/x", "fuse", "portal"),
    line("0:60", "/var/lib/lxcfs", "fuse.lxcfs", "lxcfs"),
    line("0:60", "/run/user/1000/gvfs", "fuse.gvfsd-fuse", "gvfsd-fuse"),
    line("0:60", "/run/user/1000/new", "fuse.new", "new:"),
    line("0:60", "/var/lib/containerd/x/fs", "fuse.newsnapshotter", "new"),
    line("0:60", "/cvmfs/a.cern.ch", "fuse", "cvmfs2"),
    line("8:1", "/x", "newfs", "newfs"),
    line("0:60", "/x", "fuseblk", "/dev/sda1"),
    line("0:60", "/x", "vxfs", "/dev/vx/dsk/a"),
)


def test_what_is_none_of_the_network_is_passed_over(tmp_path: Path) -> None:
    for number, mounted in enumerate(NONE_OF_THE_NETWORK):
        node = MountedNode(tmp_path / str(number), mounted)
        assert (list(node.found()), node.unread()) == (["/"], []), mounted


def test_a_volume_of_juicefs_is_called_by_its_own_name(tmp_path: Path) -> None:
    """Its driver mounts it for the node, under another name each time, and binds it for pods."""
    node = MountedNode(
        tmp_path,
        line("0:60", "/var/lib/juicefs/volume/models-qzkwfj", "fuse.juicefs", "JuiceFS:me"),
        line("0:60", at(0, "models"), "fuse.juicefs", "JuiceFS:me"),
    )
    assert list(node.found()) == ["/", "models"]


@pytest.mark.parametrize("folder", ["/data/k8s/kubelet", "/opt/rke2/kubelet"])
def test_a_kubelet_may_have_its_folder_anywhere(folder: str, tmp_path: Path) -> None:
    """The name is not that of a pod, which would be another for each."""
    node = MountedNode(tmp_path, line("0:60", at(0, "models").replace(KUBELET, folder)))
    assert list(node.found()) == ["/", "models"]
