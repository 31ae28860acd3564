"""The files that the image is made of, and the pod that runs it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.docker import container
from tests.helm.test_chart import daemon_of, render

SUPPORTED = ("3.10", "3.11", "3.12", "3.13", "3.14")


def test_every_dependency_is_locked_in_a_version_that_fits() -> None:
    project = (container.ROOT / "pyproject.toml").read_text()
    extras = (project.split(f"\n{extra} = [", 1)[1] for extra in ("exporter", "cli", "stacks"))
    listed = "".join(text.split("\n]", 1)[0] for text in extras)
    wanted = [Requirement(text) for text in re.findall(r'"((?!gpunode).+)"', listed)]
    assert len(wanted) > 8
    for python in SUPPORTED:
        versions = container.locked(python)
        for each in wanted:
            assert versions[each.name] in each.specifier, f"{each}: make docker/requirements.txt"


def test_the_lock_has_hashes_and_no_address() -> None:
    text = (container.ROOT / "docker/requirements.txt").read_text()
    assert "://" not in text
    entries = re.split(r"\n(?=\S)", text.strip())
    assert len(entries) >= len(container.locked())
    assert all("--hash=sha256:" in entry for entry in entries)


PARAGRAPH = "Package: {}\nVersion: {}\nDescription: what\n it is\n"
INSTALLED = {
    "libc6": "2.41-12\nSource: glibc",
    "libpython3.13-stdlib": "3.13.5-2\nSource: python3.13 (3.13.5-1)",
    "zlib1g": "1:1.3.dfsg+really1",
}
RELEASE = 'PRETTY_NAME="Distroless"\nID="debian"\nVERSION_ID="13"\n'


def bill_of(
    folder: Path, installed: dict[str, str], release: str = RELEASE
) -> subprocess.CompletedProcess[str]:
    """What ``docker/sbom.py`` writes for a base with these packages and tzdata."""
    packages, base = folder / "packages", folder / "base"
    (packages / "gpunode").mkdir(parents=True)
    (packages / "gpunode/__init__.py").write_text('__version__ = "1.2"\n')
    info = packages / "Some_Thing-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: Some_Thing\nVersion: 2.0\nLicense-Expression: MIT\n")
    status = base / "var/lib/dpkg"
    (status / "status.d").mkdir(parents=True)
    (base / "usr/lib").mkdir(parents=True)
    (base / "usr/lib/os-release").write_text(release)
    (status / "status").write_text("\n".join(PARAGRAPH.format(*each) for each in installed.items()))
    (status / "status.d/tzdata").write_text(PARAGRAPH.format("tzdata", "2026a"))
    (status / "status.d/tzdata.md5sums").write_text("0 a\n")
    command = [sys.executable, "docker/sbom.py", str(packages), str(base)]
    return subprocess.run(command, cwd=container.ROOT, capture_output=True, text=True, check=False)


def test_the_bill_of_materials_has_the_packages_of_debian_and_of_distroless(
    tmp_path: Path,
) -> None:
    written = bill_of(tmp_path, INSTALLED)
    release, *packages = json.loads(written.stdout)["components"]
    assert (release["type"], release["name"], release["version"]) == (
        *("operating-system", "debian", "13"),
    )
    upstream = "upstream=python3.13%403.13.5-1"
    assert [found["purl"] for found in packages] == [
        "pkg:deb/debian/libc6@2.41-12?distro=debian-13&upstream=glibc",
        f"pkg:deb/debian/libpython3.13-stdlib@3.13.5-2?distro=debian-13&{upstream}",
        "pkg:deb/debian/tzdata@2026a?distro=debian-13",
        "pkg:deb/debian/zlib1g@1%3A1.3.dfsg%2Breally1?distro=debian-13",
        "pkg:pypi/some-thing@2.0",
    ]


@pytest.mark.parametrize(
    ("lost", "said"), [("libc6", "the C library: not"), ("libpython3.13-stdlib", "Python: not")]
)
def test_an_image_is_not_built_where_its_bill_of_materials_lacks_the_base(
    lost: str, said: str, tmp_path: Path
) -> None:
    written = bill_of(tmp_path, {name: of for name, of in INSTALLED.items() if name != lost})
    assert written.returncode == 1
    assert not written.stdout
    assert written.stderr.startswith(f"sbom.py: {said}")


@pytest.mark.parametrize("said", ["", "ID=debian\n", "VERSION_ID=13\n"])
def test_an_image_is_not_built_where_no_scanner_could_tell_its_vulnerabilities(
    said: str, tmp_path: Path
) -> None:
    written = bill_of(tmp_path, INSTALLED, said)
    assert written.returncode == 1
    assert not written.stdout
    assert written.stderr.startswith("sbom.py: the release: not in ")


def test_the_lock_holds_for_every_python_that_the_project_supports() -> None:
    project = (container.ROOT / "pyproject.toml").read_text()
    assert 'requires-python = ">=3.10"' in project
    assert tuple(re.findall(r"Python :: (3\.\d+)", project)) == SUPPORTED
    made = subprocess.run(
        ["make", "-n", "lock"], cwd=container.ROOT, capture_output=True, text=True
    )
    assert "--universal --python-version 3.10" in made.stdout
    names = {name for python in SUPPORTED for name in container.locked(python)}
    for python in SUPPORTED:
        backports = {"exceptiongroup"} if python != "3.10" else set()
        assert container.locked(python).keys() == names - backports


def test_the_dockerfile_is_as_hadolint_advises() -> None:
    hadolint = shutil.which("hadolint", path=sysconfig.get_path("scripts"))
    assert hadolint
    subprocess.run([hadolint, "docker/Dockerfile"], cwd=container.ROOT, check=True)


def test_what_make_builds_is_what_the_document_runs() -> None:
    made = subprocess.run(
        ["make", "-n", "image"], cwd=container.ROOT, capture_output=True, text=True
    )
    run = (
        (container.ROOT / "docs/image.md")
        .read_text()
        .split("docker run ", 1)[1]
        .partition("\n\n")[0]
    )
    assert " gpunode run " in run
    assert " --tag gpunode " in made.stdout


def test_the_images_to_begin_with_are_pinned() -> None:
    dockerfile = (container.ROOT / "docker/Dockerfile").read_text()
    defaults = re.findall(r"^ARG (?:BUILD|BASE)=(.*)$", dockerfile, re.MULTILINE)
    assert len(defaults) == 2
    assert all(re.search(r"@sha256:[0-9a-f]{64}$", default) for default in defaults)


def test_its_rights_are_those_of_the_charts_pod(tmp_path: Path) -> None:
    pod, rendered = daemon_of(render(tmp_path))
    assert pod["securityContext"] == {
        "runAsUser": container.NOBODY,
        "runAsGroup": container.NOBODY,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert rendered["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert rendered["args"][0] == "run"  # in place of the image's own command
