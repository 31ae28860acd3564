"""The image of a container, from the files that its runtime keeps for root.

These files also hold the environment and the command of the container, so ``helper/files.py`` takes
only what names an image from them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from gpunode.node.node import Image

ID = re.compile(r"[0-9a-f]{64}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,254}")
"""https://github.com/distribution/reference/blob/main/reference.go"""

DIGEST = re.compile(r"(?:^|@|,)(?:sha256:)?(?P<hex>[0-9a-f]{64})(?=$|,)")
"""Of a manifest, as registries name it, or of the image's configuration, as ``docker image ls``."""

NAMES = (
    "io.kubernetes.cri.image-name",
    "io.kubernetes.cri-o.ImageName",
)
DIGESTS = (
    "io.kubernetes.cri.image-ref",
    "io.kubernetes.cri-o.ImageRepoDigests",
    "io.kubernetes.cri-o.ImageRef",
)
"""Annotations of containerd and of CRI-O, the most telling first.
https://github.com/containerd/containerd/blob/main/internal/cri/annotations/annotations.go
https://github.com/cri-o/cri-o/blob/main/pkg/annotations/internal.go"""


def parse_bundle(text: str) -> Image:
    """The image that an OCI bundle's config.json names. Raises ``ValueError``."""
    annotations = _inner_object(_load_object(text), "annotations")
    names = [annotations.get(name) for name in NAMES]
    return _image(names, [*(annotations.get(digest) for digest in DIGESTS), *names])


def parse_docker(text: str) -> Image:
    """The image that Docker's config.v2.json names. Raises ``ValueError``."""
    found = _load_object(text)
    name = _inner_object(found, "Config").get("Image")
    return _image([name], [name, found.get("Image")])


def _load_object(text: str) -> dict[str, Any]:
    """A JSON object. Raises ``ValueError``."""
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return found if isinstance(found, dict) else {}


def _inner_object(found: dict[str, Any], key: str) -> dict[str, Any]:
    inner = found.get(key)
    return inner if isinstance(inner, dict) else {}


def _image(names: Iterable[object], digests: Iterable[object]) -> Image:
    """The first valid name, without its digest, and the first valid digest."""
    plain = (name.partition("@")[0] for name in names if isinstance(name, str))
    named = (name for name in plain if NAME.fullmatch(name) and not DIGEST.fullmatch(name))
    told = (DIGEST.search(digest) for digest in digests if isinstance(digest, str))
    hexes = (match["hex"] for match in told if match)
    digest = next(hexes, "")
    return Image(next(named, ""), f"sha256:{digest}" if digest else "")


TASKS = "io.containerd.runtime.v2.task/k8s.io"
FILES: tuple[tuple[str, Callable[[str], Image]], ...] = (
    (f"/run/containerd/{TASKS}/ID/config.json", parse_bundle),
    (f"/run/k3s/containerd/{TASKS}/ID/config.json", parse_bundle),
    (f"/run/k0s/containerd/{TASKS}/ID/config.json", parse_bundle),
    (f"/var/snap/microk8s/common/run/containerd/{TASKS}/ID/config.json", parse_bundle),
    ("/run/containers/storage/overlay-containers/ID/userdata/config.json", parse_bundle),
    ("/var/lib/containers/storage/overlay-containers/ID/userdata/config.json", parse_bundle),
    ("/var/lib/docker/containers/ID/config.v2.json", parse_docker),
)
"""Where containerd, the distributions that bring their own, CRI-O and Docker keep them. All folders
above belong to root."""
