"""The image of a release, twice, and through a registry: for `make release-dry-run` alone.

Each build takes a minute or more, and CI builds the image once already (tests/docker).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.docker import container
from tests.needs import need
from tests.packaging.conftest import VERSION


def test_two_builds_of_a_tag_give_one_digest_which_a_registry_keeps(
    clone: Path, registry: str
) -> None:
    for name in container.PROGRAMS:
        need(name)
    built = clone / "dist/image"
    digests = []
    with container.store() as store:
        for _ in range(2):
            store.make("release-image", clone, f"TAG=v{VERSION}")
            store.make("release-index", clone)
            digests.append({path.name: path.read_text() for path in built.glob("*.digest")})
            print(digests[-1])
            subprocess.run(["rm", "-r", str(built / "index")], check=True)
        store.make("release-index", clone)
    assert digests[0] == digests[1]
    assert len(digests[0]) == 2
    (bill,) = built.glob("*.cdx.json")
    assert json.loads(bill.read_text())["metadata"]["component"]["version"] == VERSION

    crane, address = need("crane"), f"{registry}/gpunode:{VERSION}"
    subprocess.run([crane, "push", str(built / "index"), address], check=True)
    kept = subprocess.run([crane, "digest", address], capture_output=True, text=True, check=True)
    assert kept.stdout.strip() == digests[0]["index.digest"]
    config = json.loads(subprocess.check_output([crane, "config", address]))
    labels = config["config"]["Labels"]
    revision = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=clone, text=True).strip()
    assert labels["org.opencontainers.image.version"] == VERSION
    assert labels["org.opencontainers.image.revision"] == revision
    assert config["created"] == labels["org.opencontainers.image.created"]
