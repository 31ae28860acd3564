"""What a job runs: the versions of its libraries and its image, and nothing else of a tenant's."""

from __future__ import annotations

import errno
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpunode.config.daemon import Settings
from gpunode.helper import files
from gpunode.holders.census import Census
from gpunode.jobs.owners import ProcessRoles
from gpunode.jobs.versions import FIRST
from gpunode.node import containers, patience
from gpunode.node.local import LocalNode
from gpunode.node.node import Image
from gpunode.node.tape import RecordingNode, TapeNode, TapeWriter
from tests.cases import with_each
from tests.daemon import TIMEOUT
from tests.machine import MACHINES, Machine, MachineGpu, OneGpu, exported, read_source
from tests.needs import as_root
from tests.tenant import SECRET, USER, root_with_home

GPU = MachineGpu(0, "GPU-aa", "0", (700,))
CONTAINER = "3f" * 32
FOLDER = "home/site-packages"
VERSION = "__version__ = '2.9.1+cu128'\ncuda: Optional[str] = '12.8'\n"


def versions_of(*pids: int) -> str:
    """What the source exports of these processes of this machine."""
    gpu = MachineGpu(0, "GPU-aa", "0", pids)
    return exported(read_source(ProcessRoles(Census(OneGpu(*pids)), gpu, Settings())))


def label(text: str, name: str) -> str:
    return text.partition(f'{name}="')[2].partition('"')[0]


class Counting(Machine):
    """A machine that counts how often a process's libraries are looked for."""

    looks = 0

    def libraries(self, pid: int) -> list[str]:
        self.looks += 1
        return super().libraries(pid)


def test_a_process_that_has_loaded_pytorch_is_looked_at_once() -> None:
    machine = Counting(MACHINES / "pod")
    source = ProcessRoles(Census(machine), GPU, Settings())
    first = exported(read_source(source))
    for _ in range(100):
        machine.clock.now += FIRST
        assert exported(read_source(source)) == first
    assert 'torch="2.9.1+cu128"' in first
    assert machine.looks == 1


def test_one_that_has_not_is_looked_at_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Counting(MACHINES / "pod")
    monkeypatch.setattr(machine, "lines", lambda *_: (_ for _ in ()).throw(OSError(errno.EACCES)))
    source = ProcessRoles(Census(machine), GPU, Settings())
    for _ in range(100):
        machine.clock.now += FIRST
        found = exported(read_source(source))
    assert 'torch=""' in found
    assert 3 <= machine.looks <= 10


def test_nothing_known_is_no_series() -> None:
    source = ProcessRoles(
        Census(Machine(MACHINES / "slurm")), MachineGpu(0, "a", "0", (900,)), Settings()
    )
    assert read_source(source) == ()


@with_each(
    [
        (
            {"io.kubernetes.cri.image-name": "nvcr.io/nvidia/pytorch:25.10-py3"},
            Image("nvcr.io/nvidia/pytorch:25.10-py3"),
        ),
        (
            {"io.kubernetes.cri.image-name": f"sha256:{'ab' * 32}"},
            Image("", f"sha256:{'ab' * 32}"),
        ),
        (
            {
                "io.kubernetes.cri-o.ImageName": "quay.io/team/train:1.4",
                "io.kubernetes.cri-o.ImageRef": "ab" * 32,
            },
            Image("quay.io/team/train:1.4", f"sha256:{'ab' * 32}"),
        ),
        (
            {
                "io.kubernetes.cri-o.ImageName": "quay.io/team/train",
                "io.kubernetes.cri-o.ImageRef": f"quay.io/team/train@sha256:{'ab' * 32}",
            },
            Image("quay.io/team/train", f"sha256:{'ab' * 32}"),
        ),
        ({"io.kubernetes.cri.image-name": "a name\nwith lines"}, Image()),
        ({"io.kubernetes.cri.image-name": ["a"]}, Image()),
        (None, Image()),
    ]
)
def test_each_runtime_names_the_image_in_its_own_way(kept: object, image: Image) -> None:
    assert containers.parse_bundle(json.dumps({"annotations": kept})) == image


def test_docker_names_the_image_and_its_digest() -> None:
    inner = {"Image": "train:7", "Env": [f"PASSWORD={SECRET}"]}
    text = {"Image": f"sha256:{'cd' * 32}", "Config": inner}
    assert containers.parse_docker(json.dumps(text)) == Image("train:7", f"sha256:{'cd' * 32}")


@pytest.mark.parametrize("name", ["../../../etc", "a" * 64 + "/..", "A" * 64, ""])
def test_no_container_is_looked_for_but_by_its_id(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match="not the ID"):
        LocalNode(tmp_path).image(name)


def test_a_file_of_a_runtime_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / f"var/lib/docker/containers/{CONTAINER}/config.v2.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"Image": "' + "x" * files.MAX_READ)
    with pytest.raises(OSError, match="too large"):
        LocalNode(tmp_path).image(CONTAINER)


def test_a_tape_holds_the_image_and_nothing_else_of_a_container(tmp_path: Path) -> None:
    path = tmp_path / f"var/lib/docker/containers/{CONTAINER}/config.v2.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"Config": {"Image": "train:7", "Env": [f"PASSWORD={SECRET}"]}}))
    node = LocalNode(tmp_path)
    tape = TapeWriter(tmp_path / "tape.jsonl.gz", node, 1 << 20)
    assert RecordingNode(node, tape).image(CONTAINER) == Image("train:7")
    tape.close()
    assert SECRET not in gzip.decompress((tmp_path / "tape.jsonl.gz").read_bytes()).decode()
    assert TapeNode(tmp_path / "tape.jsonl.gz").image(CONTAINER) == Image("train:7")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a container in which PyTorch is installed."""
    monkeypatch.setattr(patience, "TIMEOUT", TIMEOUT)
    root = root_with_home(tmp_path)
    library = root / FOLDER / "torch/lib/libtorch_cuda.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"\x7fELF" + bytes(5000))
    (root / FOLDER / "torch/version.py").write_text(VERSION)
    return root


CONTAINED = """\
import ctypes, mmap, os, sys
root, user, *files = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
def call(function, *arguments):
    if function(*arguments):
        sys.exit(f"not allowed here: {os.strerror(ctypes.get_errno())}")
call(libc.unshare, 0x20000)  # CLONE_NEWNS
call(libc.mount, None, b"/", None, 0x44000, None)  # MS_REC | MS_PRIVATE
call(libc.mount, root.encode(), root.encode(), None, 0x1000, None)  # MS_BIND
os.chdir(root)
call(libc.pivot_root, b".", b".")
call(libc.umount2, b".", 2)  # MNT_DETACH
os.setgroups([]); os.setgid(int(user)); os.setuid(int(user))
opened = [os.open(file, os.O_RDONLY) for file in files]
kept = [mmap.mmap(file, 0, prot=mmap.PROT_READ) for file in opened]
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def contained(root: Path, *files: str) -> Iterator[int]:
    """A process in a root and mount namespace of its own, as in a container; it maps files."""
    command = [sys.executable, "-I", "-S", "-c", CONTAINED, str(root), str(USER), *files]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stderr is not None
            if child.stdout.readline() != "ready\n":
                pytest.skip(child.stderr.read())
            yield child.pid
        finally:
            child.kill()


LIBRARY = f"/{FOLDER}/torch/lib/libtorch_cuda.so"


@as_root
def test_the_versions_of_a_real_process_in_its_own_root(root: Path) -> None:
    (root / "home/libnccl.so.2.27.5").write_bytes(bytes(5000))
    with contained(root, LIBRARY, "/home/libnccl.so.2.27.5") as pid:
        found = versions_of(pid)
    assert [label(found, name) for name in ("torch", "nccl", "cuda")] == [
        "2.9.1+cu128",
        "2.27.5",
        "12.8",
    ]


def link_to_the_node(root: Path, version: Path) -> None:
    outside = root.parent / "host.py"
    outside.write_text(VERSION)
    version.symlink_to(f"../../../../../{outside.name}")


def link_to_proc(root: Path, version: Path) -> None:  # noqa: ARG001
    version.symlink_to("/proc/1/environ")


def pipe(root: Path, version: Path) -> None:  # noqa: ARG001
    os.mkfifo(version)


def of_another_user(root: Path, version: Path) -> None:  # noqa: ARG001
    version.write_text(VERSION)
    version.chmod(0o600)


def secrets(root: Path, version: Path) -> None:  # noqa: ARG001
    version.write_text(
        f"__version__ = '2 {SECRET}'\n__version__ = '{SECRET}'\npassword = '{SECRET}'\n"
    )


def endless(root: Path, version: Path) -> None:  # noqa: ARG001
    version.write_text(f"__version__ = '{'2.' * 1000}'\n")


@as_root
@pytest.mark.parametrize(
    "trick", [link_to_the_node, link_to_proc, pipe, of_another_user, secrets, endless]
)
def test_no_file_of_a_tenant_leads_elsewhere_or_says_more_than_a_version(
    root: Path, trick: Callable[[Path, Path], None]
) -> None:
    version = root / FOLDER / "torch/version.py"
    version.unlink()
    trick(root, version)
    with contained(root, LIBRARY) as pid:
        assert LocalNode(Path("/")).libraries(pid) == [LIBRARY]
        assert versions_of(pid) == ""


@as_root
def test_a_name_with_a_line_in_it_is_no_library(root: Path) -> None:
    line = "7f00-7f01 r-xp 00000000 00:01 1  /home/torch/lib/libtorch_cuda.so"
    folder = root / f"home/a\n{line}"
    folder.mkdir(parents=True)
    (folder / "libnccl.so.2.99.9").write_bytes(bytes(5000))
    with contained(root, f"/home/a\n{line}/libnccl.so.2.99.9") as pid:
        assert LocalNode(Path("/")).libraries(pid) == []
