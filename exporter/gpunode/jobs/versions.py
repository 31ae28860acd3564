"""What the processes on each GPU run: PyTorch, NCCL, CUDA, and the image of their container.

The kernel tells which libraries a process has mapped. Their versions are in the names of the files.
PyTorch's is in a file beside it, which is the tenant's: what is read there is only a version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, replace

from gpunode.driver.driver import Identity
from gpunode.gpu import GPU
from gpunode.holders.holder import Holder, Pauses, tenant_key
from gpunode.metric import Metric, Sample
from gpunode.node.node import Clock, Image
from gpunode.source import bounded, limit
from gpunode.unread import Unread

INFO = Metric(
    "gpunode_job_version_info",
    "gauge",
    "Always 1; versions of `torch`, `nccl` and `cuda` of the processes on the GPU "
    "(/proc/PID/maps), and the `image` of their container with its `digest` (containerd, CRI-O, "
    "Docker). A label is empty if unknown.",
    (*GPU, "torch", "nccl", "cuda", "image", "digest"),
)

MORE_VERSIONS = limit("versions")

MAX_VERSIONS = 4
"""The most versions of one GPU: processes that share it may differ."""

FIRST, LAST = 30.0, 600.0
"""Seconds between looks at a process that has not loaded PyTorch, at first and in the end."""

VERSION_IN_NAME = re.compile(r"/lib(?P<name>nccl|cudart)\.so\.(?P<version>\d+\.\d+(?:\.\d+)?)$")
"""A library whose file has its whole version, as installed by a system."""

TORCH = re.compile(r"(?P<folder>.*/torch)/lib/libtorch_\w+\.so$")
TORCH_VERSION_LINE = re.compile(
    r"^(__version__ = ['\"][0-9][\w.+-]{0,63}['\"]"
    r"|cuda(?:: [\w\[\] |]{1,32})? = ['\"][0-9]{1,3}\.[0-9]{1,3}['\"])$",
    re.MULTILINE | re.ASCII,
)
"""What is kept of torch/version.py, which PyTorch's build writes:
https://github.com/pytorch/pytorch/blob/main/tools/generate_torch_version.py"""


@dataclass(frozen=True, slots=True)
class Versions:
    """What a process runs, in the order of the labels; empty if unknown."""

    torch: str = ""
    nccl: str = ""
    cuda: str = ""
    image: str = ""
    digest: str = ""


class RunningVersions:
    """What runs on one GPU, process by process; a process is read once."""

    def __init__(self, clock: Clock, gpu: Identity) -> None:
        self.clock = clock
        self.labels = gpu.labels
        self._known: dict[Holder, tuple[Versions, Pauses]] = {}

    def samples(self, holders: Iterable[Holder]) -> tuple[tuple[Sample, ...], tuple[Unread, ...]]:
        """The versions of these processes, each different set once, and a note of others."""
        # Of a process without a start, nobody could tell whether it is still the same.
        certain = [holder for holder in holders if holder.start is not None]
        self._known = {holder: self._read_versions(holder) for holder in certain}
        found = {versions: holder for holder, (versions, _) in self._known.items()}
        found.pop(Versions(), None)
        kept, left_out = bounded(
            sorted(found, key=astuple),
            MORE_VERSIONS,
            MAX_VERSIONS,
            whose=lambda one: tenant_key(found[one]),
        )
        return tuple(Sample(INFO, (*self.labels, *astuple(one)), 1.0) for one in kept), left_out

    def _read_versions(self, holder: Holder) -> tuple[Versions, Pauses]:
        """What a process runs: looked at again only until it has loaded PyTorch."""
        versions, pauses = self._known.get(holder) or (Versions(), Pauses(FIRST, LAST))
        now = self.clock.monotonic()
        if versions.torch or not pauses.over(now):
            return versions, pauses
        pauses.looked(now)
        if not versions.image and not versions.digest:
            image = image_of(holder)
            versions = replace(versions, image=image.name, digest=image.digest)
        for what, version in libraries_of(holder):
            versions = replace(versions, **{what: version})
        return versions, pauses


def image_of(holder: Holder) -> Image:
    """The image of a process's container; empty if it has none or that cannot be read."""
    try:
        container = holder.cgroup().container_id
        return holder.node.image(container) if container else Image()
    except (OSError, ValueError):
        return Image()


def libraries_of(holder: Holder) -> Iterator[tuple[str, str]]:
    """The versions of the libraries that a process has loaded, the best known last."""
    try:
        paths = holder.ask(lambda: holder.node.libraries(holder.pid))
    except OSError:
        return
    for path in paths:
        if named := VERSION_IN_NAME.search(path):
            yield "cuda" if named["name"] == "cudart" else "nccl", named["version"]
    folders = dict.fromkeys(found["folder"] for path in paths if (found := TORCH.match(path)))
    for folder in list(folders)[:1]:
        yield from parse_torch(_torch_lines(holder, f"{folder}/version.py"))


def parse_torch(lines: list[str]) -> Iterator[tuple[str, str]]:
    """The versions in what is kept of torch/version.py."""
    for line in lines:
        name, _, value = line.partition(" = ")
        yield "torch" if name == "__version__" else "cuda", value.strip("'\"")


def _torch_lines(holder: Holder, path: str) -> list[str]:
    """What is kept of torch/version.py in the root of a process; nothing if it cannot be read."""
    inside = f"/proc/{holder.pid}/root{path}"
    try:
        return holder.ask(lambda: holder.node.lines(inside, 0, TORCH_VERSION_LINE)).kept[:8]
    except OSError:
        return []
