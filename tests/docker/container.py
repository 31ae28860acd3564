"""The image as buildah builds it, and a container of it as a cluster confines it, by bubblewrap.

Where no registry of images is reached, Debian's packages make the two images to begin with.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from packaging.requirements import Requirement

from tests.attacks import seccomp
from tests.daemon import Daemon, free_port, pass_on
from tests.fakes.nvml import FakeDriver

ROOT = Path(__file__).parents[2]
IMAGE_CACHE = ROOT / ".image"
"""Where the images to begin with are kept, as they take a minute to make."""

BUILDERS = ("buildah", "mmdebstrap")
PROGRAMS = (*BUILDERS, "bwrap")

NOBODY = 65534

SUITE = "trixie"
"""The release of Debian with the Python of ``docker/Dockerfile``."""

LISTED = (
    'for deb in "$1"/var/cache/apt/archives/*.deb; do '
    'mkdir -p "$1/var/lib/dpkg/status.d"; '
    'dpkg-deb --field "$deb" >"$1/var/lib/dpkg/status.d/$(basename "$deb" .deb)"; done'
)
"""Lists what was extracted in the way of distroless images."""

RELEASED = 'printf "ID=debian\\nVERSION_ID=13\\n" >"$1/usr/lib/os-release"'
"""Names the release, as distroless images do without the package that has the file in Debian."""

BASES: dict[str, Sequence[str]] = {
    "build": ("--variant=minbase", "--include=python3,python3-pip,ca-certificates"),
    "base": (
        "--variant=extract",  # no shell and no package manager that works, as in distroless images
        "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
        "--include=python3",
        f"--extract-hook={LISTED}",
        f"--extract-hook={RELEASED}",
    ),
}

NODE = "/mnt"
"""Where the node is mounted: a folder that every root has."""

KUBELET = "/var/lib/kubelet/pod-resources"
DRIVER = "/usr/local/nvidia/lib64"


PINNED = re.compile(r"^(\S.+) \\$", re.MULTILINE)
PYTHON = "3.13"
"""Of the image."""


def locked(python: str = PYTHON) -> dict[str, str]:
    """The versions that are installed with a version of Python."""
    lines = PINNED.findall((ROOT / "docker/requirements.txt").read_text())
    wanted = [Requirement(line) for line in lines]
    there = {"python_version": python, "python_full_version": f"{python}.0"}
    return {
        each.name: str(each.specifier).removeprefix("==")
        for each in wanted
        if each.marker is None or each.marker.evaluate(there)
    }


def bases() -> Iterator[tuple[str, Path]]:
    """The roots that the image is built from."""
    IMAGE_CACHE.mkdir(exist_ok=True)
    for name, options in BASES.items():
        made = IMAGE_CACHE / f"{SUITE}-{name}-{zlib.crc32(' '.join(options).encode()):x}.tar"
        if not made.exists():
            # Another worker may make the same at the same time.
            half = made.with_suffix(f".{os.getpid()}.tar")
            command = ["mmdebstrap", "--quiet", '--aptopt=APT::Install-Recommends "false"']
            subprocess.run([*command, *options, SUITE, str(half)], check=True)
            half.rename(made)
        yield name, made


@dataclass(frozen=True, slots=True)
class Image:
    """An image that was built: its root, what it says of itself, and its layers compressed."""

    root: Path
    config: dict[str, Any]
    compressed: int

    @property
    def environment(self) -> dict[str, str]:
        return dict(variable.split("=", 1) for variable in self.config["Env"])


@dataclass(frozen=True, slots=True)
class Store:
    """A store of images of its own, with those to begin with in it."""

    folder: Path

    @property
    def engine(self) -> list[str]:
        places = (f"--root={self.folder}/store", f"--runroot={self.folder}/run")
        return ["buildah", "--storage-driver=vfs", *places]

    def run(self, *arguments: str) -> str:
        return ran([*self.engine, *arguments], ROOT)

    def make(self, target: str, tree: Path, *variables: str) -> None:
        """Run a target of the Makefile in a checkout, for an image."""
        pip = self.folder / "pip.conf"
        pip.write_text(f"[global]\ncert = {certificates()}\n")
        options = (
            *("--isolation=chroot", "--pull-never"),
            *("--build-arg=BUILD=localhost/build", "--build-arg=BASE=localhost/base"),
            "--ignorefile=docker/Dockerfile.dockerignore",
            f"--volume={certificates()}:{certificates()}:ro",
            f"--volume={pip}:/etc/pip.conf:ro",
        )
        engine, given = f"ENGINE={' '.join(self.engine)}", f"IMAGE_OPTIONS={' '.join(options)}"
        ran(["make", "--silent", target, engine, given, *variables], tree)

    def push(self, name: str) -> tuple[Path, str]:
        """The image in OCI's layout, and its digest."""
        place, digest = self.folder / name, self.folder / f"{name}.digest"
        self.run("push", "--quiet", f"--digestfile={digest}", "localhost/gpunode", f"oci:{place}")
        return place, digest.read_text()


def ran(command: Sequence[str], folder: Path) -> str:
    """What a command prints. Raises ``AssertionError`` where it fails."""
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{command}: {ended.stdout[-3000:]}{ended.stderr[-3000:]}"
    return ended.stdout.strip()


@contextmanager
def store() -> Iterator[Store]:
    """A store for as long as the block lasts, by root."""
    with tempfile.TemporaryDirectory(prefix="gpunode-image-") as name:
        made = Store(Path(name))
        made.folder.chmod(0o755)  # the container's user looks for its root here
        for base, root in bases():
            begun = made.run("from", "scratch")
            made.run("add", "--quiet", begun, str(root), "/")
            options = ("--quiet", "--rm", "--disable-compression", "--timestamp=0")
            made.run("commit", *options, begun, f"localhost/{base}")
        yield made


@contextmanager
def image() -> Iterator[Image]:
    """Build the image as ``make image`` does, by root."""
    with store() as made:
        folder = made.folder
        made.make("image", ROOT)
        pushed, _ = made.push("pushed")
        blobs = pushed / "blobs/sha256"
        mounted = made.run("mount", made.run("from", "localhost/gpunode"))
        root = folder / "root"
        subprocess.run(["cp", "--archive", mounted, str(root)], check=True)
        root.chmod(0o755)
        for place in ("proc", "sys", "dev", NODE[1:], DRIVER[1:]):
            (root / place).mkdir(parents=True, exist_ok=True)  # where a runtime mounts things
        told = json.loads(made.run("inspect", "--type=image", "localhost/gpunode"))
        compressed = sum(blob.stat().st_size for blob in blobs.iterdir())
        shutil.rmtree(folder / "store")
        yield Image(root, told["OCIv1"]["config"], compressed)


def certificates() -> str:
    """Those that this machine trusts, for pip to reach its registry as here."""
    return os.environ.get("PIP_CERT", "/etc/ssl/certs/ca-certificates.crt")


@contextmanager
def container(image: Image, driver: FakeDriver, kubelet: Path, *options: str) -> Iterator[Daemon]:
    """Run the image with no right that a pod may be without, and wait until it is ready.

    It has user 65534, no capability and no way to get one, a root that is read-only, a process
    namespace of its own, and the system calls of ``docker/seccomp.json``.
    """
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    command += ["--no-new-privs", "--bounding-set=-all"]
    command += ["bwrap", "--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    command += ["--unshare-pid", "--as-pid-1", "--unshare-ipc", "--unshare-uts"]
    command += ["--ro-bind", str(image.root), "/", "--proc", "/proc"]
    command += ["--ro-bind", str(driver.directory), DRIVER]
    environment = {**image.environment, "FAKE_NVML": f"{DRIVER}/{driver.script.name}"}
    program = [*image.config["Entrypoint"], *image.config["Cmd"], *options]
    with tempfile.TemporaryFile() as filter_:
        filter_.write(seccomp.program(ROOT / "docker/seccomp.json"))
        filter_.seek(0)
        command += ["--seccomp", str(filter_.fileno())]
        with _running(command, environment, kubelet, program, filter_.fileno()) as running:
            yield running


@contextmanager
def outside(driver: FakeDriver, kubelet: Path, *options: str) -> Iterator[Daemon]:
    """Run this checkout's daemon on the same node as root, with every right."""
    environment = {**os.environ, **driver.environment()}
    program = [sys.executable, "-m", "gpunode", "run", *options]
    with _running(["bwrap", "--ro-bind", "/", "/"], environment, kubelet, program) as running:
        yield running


@contextmanager
def _running(
    command: Sequence[str],
    environment: Mapping[str, str],
    kubelet: Path,
    program: Sequence[str],
    *descriptors: int,
) -> Iterator[Daemon]:
    """Run a program under bubblewrap, beside what a pod mounts of its node."""
    mounts = ["--die-with-parent", "--dev", "/dev", "--ro-bind", "/sys", "/sys", "--tmpfs", NODE]
    for part in ("/proc", "/sys", "/etc"):
        mounts += ["--ro-bind", part, f"{NODE}{part}"]
    mounts += ["--ro-bind", str(kubelet), f"{NODE}{KUBELET}", "--remount-ro", NODE, "--clearenv"]
    for name, value in environment.items():
        mounts += ["--setenv", name, value]
    port = free_port()
    served = [f"--path.rootfs={NODE}", f"--web.listen-address=127.0.0.1:{port}"]
    child = subprocess.Popen(
        [*command, *mounts, *program, *served], stderr=subprocess.PIPE, pass_fds=descriptors
    )
    assert child.stderr is not None
    said: list[bytes] = []
    listener = threading.Thread(target=pass_on, args=(child.stderr, said))
    listener.start()
    try:
        bubble = psutil.Process(child.pid)
        Daemon(bubble, port).wait_for("/readyz", child)
        (daemon,) = bubble.children()
        yield Daemon(daemon, port)
        daemon.terminate()
        assert child.wait(5) == 0
    finally:
        child.kill()
        child.wait()
        listener.join()
        child.stderr.close()
    assert b"Traceback" not in b"".join(said), b"".join(said).decode(errors="replace")
