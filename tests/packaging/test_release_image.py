"""The image of a release, built twice, and through a registry."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.docker import container
from tests.needs import as_root, need
from tests.packaging import twice
from tests.packaging.twice import VERSION


@as_root
@pytest.mark.nightly
def test_two_builds_of_a_tag_give_one_digest_which_a_registry_keeps(
    clone: Path, registry: str, tmp_path: Path
) -> None:
    for name in (*container.BUILDERS, "crane"):
        need(name)
    digests = []
    for build in twice.images(clone):
        print(build)
        digests.append(build)
    assert digests[0] == digests[1]
    assert digests[0].keys() > {"index.digest"}
    built = clone / "dist/image"
    (bill,) = built.glob("*.cdx.json")
    assert json.loads(bill.read_text())["metadata"]["component"]["version"] == VERSION

    address, pulled = f"{registry}/gpunode:{VERSION}", tmp_path / "pulled"
    kept = twice.through_registry(built / "index", address, pulled)
    print(f"{address} {kept}")
    assert kept == digests[0]["index.digest"]
    assert blobs(pulled) == blobs(built / "index")
    config = json.loads(subprocess.check_output([need("crane"), "config", address]))
    labels = config["config"]["Labels"]
    revision = twice.git(clone, "rev-parse", "HEAD")
    assert labels["org.opencontainers.image.version"] == VERSION
    assert labels["org.opencontainers.image.revision"] == revision
    assert config["created"] == labels["org.opencontainers.image.created"]


def blobs(layout: Path) -> set[str]:
    """The digests of what an image consists of."""
    return {path.name for path in (layout / "blobs/sha256").iterdir()}
