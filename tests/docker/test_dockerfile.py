"""The files that the image is made of, and the pod that runs it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

from packaging.requirements import Requirement

from tests.docker import container
from tests.helm.test_chart import daemon_of, render


def test_every_dependency_is_locked_in_a_version_that_fits() -> None:
    project = (container.ROOT / "pyproject.toml").read_text()
    listed = project.split("\nexporter = [", 1)[1].split("\n]", 1)[0]
    wanted = [Requirement(text) for text in re.findall(r'"(.+)"', listed)]
    assert len(wanted) > 8
    versions = container.locked()
    for each in wanted:
        assert versions[each.name] in each.specifier, f"{each}: make docker/requirements.txt"


def test_the_lock_has_hashes_and_no_address() -> None:
    text = (container.ROOT / "docker/requirements.txt").read_text()
    assert "://" not in text
    entries = re.split(r"\n(?=\S)", text.strip())
    assert len(entries) == len(container.locked())
    assert all("--hash=sha256:" in entry for entry in entries)


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
