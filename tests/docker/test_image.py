"""The image: built for real, and run with no right that a pod may be without."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpunode import __version__
from tests import needs
from tests.conftest import by_label, scrape, until, values
from tests.daemon import Daemon
from tests.docker import container
from tests.fakes.kubelet import kubelet
from tests.fakes.nvml import FakeDriver, build
from tests.helm.test_chart import PROFILES
from tests.helm.test_chart_profiles import (
    looks_where_a_process_stands,
    programs_of,
    shows_what_it_promises,
)

OWNER = "gpunode_gpu_owner_info"

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def image() -> Iterator[container.Image]:
    if os.geteuid() != 0:
        pytest.skip("only root may build the image")
    for program in container.PROGRAMS:
        needs.need(program)
    with container.image() as built:
        yield built


@pytest.fixture
def driver(image: container.Image) -> FakeDriver:
    """A driver of eight GPUs that user 65534 can read."""
    folder = image.root.parent / "driver"
    build(folder)
    driver = FakeDriver(folder)
    driver.write(f"gpus 8\ngpu 0 process {os.getpid()} 1000000000\n")
    return driver


PRIVILEGED = {"gpunode_job_shm_size_bytes", "gpunode_job_shm_used_bytes"}
"""What takes a right, as docs/security.md says, and is not exported without."""

UNREAD = {"gpunode_serving_unanswered", "gpunode_source_late_reads_total"}
"""What says that something was not read, such as the sockets of another user, or read late."""


def names(running: Daemon) -> set[str]:
    """All that a daemon exports."""
    return {name for name, _ in scrape(running)}


def sees_gpus(running: Daemon) -> bool:
    """Whether it sees the GPUs and the pod that holds one."""
    series = scrape(running)
    owned = values(series, OWNER, owner_namespace="research", owner_pod="trainer-0")
    return bool(owned) and len(values(series, "gpunode_gpu_info")) == 8


def test_without_any_right_it_serves_all_that_needs_none(
    image: container.Image, driver: FakeDriver
) -> None:
    sockets = image.root.parent / "pod-resources"
    given = (driver, sockets, "--client.socket=")
    with (
        kubelet(sockets / "kubelet.sock") as fake,
        container.container(image, *given) as inside,
        container.outside(*given) as outside,
    ):
        (sockets / "kubelet.sock").chmod(0o666)  # in a cluster it belongs to root
        uuid = until(lambda: min(by_label(scrape(inside), "gpunode_gpu_info", "uuid"), default=""))
        fake.pods = {("research", "trainer-0", "main"): [("nvidia.com/gpu", uuid)]}
        until(lambda: sees_gpus(inside) and sees_gpus(outside))
        ours, theirs = set[str](), set[str]()

        def alike() -> bool:
            """Whether both have shown the same so far: a busy machine leaves windows out."""
            ours.update(names(inside) - UNREAD)
            theirs.update(names(outside) - UNREAD)
            return ours == theirs - PRIVILEGED

        with suppress(AssertionError):  # which would not say what differs
            until(alike)
        assert theirs - ours == PRIVILEGED
        assert ours - theirs == set()
        lines = Path(f"/proc/{inside.process.pid}/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert status["Uid"].split() == ["65534"] * 4
    assert int(status["CapPrm"], 16) == int(status["CapBnd"], 16) == 0
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


@pytest.mark.parametrize("profile", PROFILES)
def test_in_the_pod_of_each_profile_it_shows_what_that_promises(
    image: container.Image, profile: str, tmp_path: Path
) -> None:
    shows_what_it_promises(profile, tmp_path, programs_of(image))


def test_its_helper_looks_where_a_process_of_a_tenant_stands(
    image: container.Image, tmp_path: Path
) -> None:
    looks_where_a_process_stands(tmp_path, programs_of(image))


def test_there_is_nothing_to_open_a_shell_with_or_to_install_more(image: container.Image) -> None:
    programs = {path.name for path in image.root.glob("usr/*bin/*")}
    assert "python3" in programs
    tools = {"sh", "bash", "dash", "busybox", "pip", "pip3", "uv", "cc", "gcc", "perl", "apt-get"}
    assert not programs & tools
    assert not list(image.root.glob("opt/gpunode/pip*"))
    assert not list(image.root.glob("usr/lib/python3*/ensurepip"))


def test_nobody_but_root_may_change_what_it_runs(image: container.Image) -> None:
    for path in (image.root / "opt").rglob("*"):
        found = path.lstat()
        assert found.st_uid == 0
        assert path.is_symlink() or not found.st_mode & 0o022, path


def test_everything_that_it_imports_is_compiled(image: container.Image) -> None:
    for folder in ("opt/gpunode", "usr/lib/python3.13/asyncio"):
        sources = {path.stem for path in (image.root / folder).rglob("*.py")}
        compiled = (image.root / "opt/pycache" / folder).rglob("*.pyc")
        assert sources
        assert sources == {path.name.partition(".")[0] for path in compiled}


def test_the_bill_of_materials_names_everything_in_its_version(image: container.Image) -> None:
    bom = json.loads((image.root / "opt/gpunode/sbom.cdx.json").read_text())
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    assert bom["metadata"]["component"]["purl"] == f"pkg:pypi/gpunode@{__version__}"
    named = {found["purl"] for found in bom["components"] if "purl" in found}
    (c_library,) = (purl for purl in named if purl.startswith("pkg:deb/debian/libc6@"))
    assert c_library.endswith("?distro=debian-13&upstream=glibc")
    assert {purl for purl in named if purl.startswith("pkg:pypi/")} == {
        f"pkg:pypi/{name}@{version}" for name, version in container.locked().items()
    }


def test_it_says_what_it_is_and_is_no_larger_than_it_must(image: container.Image) -> None:
    labels = image.config["Labels"]
    named = {name.removeprefix("org.opencontainers.image.") for name in labels}
    assert named >= {"title", "description", "licenses", "source"}
    assert named >= {"version", "revision", "created"}
    assert labels["org.opencontainers.image.version"] == __version__
    assert image.config["User"] == "65534:65534"
    assert list(image.config["ExposedPorts"]) == ["9816/tcp"]
    assert (image.root / "opt/gpunode/LICENSE").is_file()
    assert image.compressed < 80_000_000
