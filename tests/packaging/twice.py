"""All of a release, made of a copy of this checkout, and a registry to push it to."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from helm import release
from tests.conftest import until
from tests.daemon import free_port
from tests.docker import container
from tests.needs import ROOT, need
from tests.prometheus.programs import program

VERSION = "9.8.7"
DIGEST = f"sha256:{'5' * 64}"


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    return container.ran(["git", *who, *arguments], folder)


def cloned(folder: Path) -> Path:
    """This checkout as it would be pushed, with a tag for a release."""
    folder.mkdir()
    listed = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    release.prepare(folder, VERSION, "2030-01-02")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", f"Release {VERSION}")
    git(folder, "tag", f"v{VERSION}")
    return folder


def files(clone: Path, folder: Path) -> str:
    """Make wheel, sdist, chart and archive of the tag; their SHA-256."""
    command = [sys.executable, "-m", "helm.release", "files", f"v{VERSION}", DIGEST, str(folder)]
    path = f"{Path(need('helm')).parent}:/usr/bin:/bin"
    subprocess.run(command, cwd=clone, env={"PATH": path, "HOME": str(folder.parent)}, check=True)
    return (folder / "SHA256SUMS").read_text()


def images(clone: Path) -> Iterator[dict[str, str]]:
    """Build the image of the tag twice, by root; the digests of each build, by their files.

    The index is in ``dist/image/index`` of the clone.
    """
    built = clone / "dist/image"
    with container.store() as store:
        for _ in range(2):
            shutil.rmtree(built, ignore_errors=True)
            store.make("release-image", clone, f"TAG=v{VERSION}")
            store.make("release-index", clone)
            yield {path.name: path.read_text() for path in sorted(built.glob("*.digest"))}


def through_registry(index: Path, address: str, folder: Path) -> str:
    """Push an image to a registry and pull it into a folder; its digest there."""
    crane = need("crane")
    container.ran([crane, "push", str(index), address], ROOT)
    container.ran([crane, "pull", "--format=oci", address, str(folder)], ROOT)
    return container.ran([crane, "digest", address], ROOT)


@contextlib.contextmanager
def registry(log: Path) -> Iterator[str]:
    """A registry of images and charts on this machine."""
    address = f"127.0.0.1:{free_port()}"
    with program([need("registry"), f"-port={address.partition(':')[2]}"], log):

        def answers() -> bool:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/v2/"):
                return True
            return False

        until(answers)
        yield address
