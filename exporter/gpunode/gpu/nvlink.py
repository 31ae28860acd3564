"""State and errors of each NVLink.

The driver takes 0.25 ms per field and link, 18 ms for the 18 links of an H200, so this is read less
often than the rest; an NVLink that fails also raises XID 74, which is reported at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from gpunode.config.daemon import Settings
from gpunode.driver.driver import Gpu, NvLink, optional
from gpunode.gpu import GPU
from gpunode.metric import Metric, Sample
from gpunode.node.node import Node
from gpunode.source import Divided, GpuSource, Reading

NVLINK_UP = Metric(
    "gpunode_gpu_nvlink_up", "gauge", "Whether the NVLink is up (NVML field 165).", (*GPU, "link")
)
NVLINK_SPEED = Metric(
    "gpunode_gpu_nvlink_speed_bytes_per_second",
    "gauge",
    "Total rate of all active NVLinks in one direction (NVML field 164).",
    GPU,
)
NVLINK_ERRORS = Metric(
    "gpunode_gpu_nvlink_errors_total",
    "counter",
    "NVLink errors summed over all links (NVML fields 161-163; on NVLink 5 fields 208, 213, 214, "
    "219, 221).",
    (*GPU, "kind"),
)
LINK_ERRORS = Metric(
    "gpunode_gpu_nvlink_link_errors_total",
    "counter",
    "Errors of one NVLink by kind; absent for links without any (NVML fields as for the sum).",
    (*GPU, "link", "kind"),
)
BIT_ERRORS = Metric(
    "gpunode_gpu_nvlink_bit_error_ratio",
    "gauge",
    "Bit error ratio of one NVLink, `effective` or by `symbol`; absent while zero (NVML fields "
    "220, 222; NVLink 5).",
    (*GPU, "link", "kind"),
)


@dataclass(frozen=True, slots=True)
class NvLinkDetail:
    """Error counters by link and kind, for the links with errors."""

    errors: Mapping[int, Mapping[str, float]]


class GpuNvLink:
    """Reads the state and the error counters of one GPU's NVLinks."""

    name = "gpu_nvlink"
    needs = "a GPU with NVLink"
    divided: ClassVar[Divided] = "board"
    metrics = (NVLINK_UP, NVLINK_SPEED, NVLINK_ERRORS, LINK_ERRORS, BIT_ERRORS)

    def __init__(self, node: Node, gpu: Gpu, settings: Settings) -> None:  # noqa: ARG002
        self.gpu = gpu
        self.labels = gpu.identity.labels
        self.every = settings.gpu.nvlink_interval
        self._counted: dict[str, set[int]] = {}
        """By kind of error, the links that ever reported a count."""

    def read(self) -> Reading:
        """Every link; no samples for a GPU that has none."""
        links = optional(self.gpu.nvlinks) or []
        errors = {link.link: link.errors for link in links if any(link.errors.values())}
        return Reading(tuple(self._samples(links)), NvLinkDetail(errors))

    def _samples(self, links: list[NvLink]) -> Iterator[Sample]:
        at = self.labels
        for link in links:
            yield from NVLINK_UP.at(float(link.up), *at, str(link.link))
            for metric, found in ((LINK_ERRORS, link.errors), (BIT_ERRORS, link.bit_errors)):
                for kind, value in found.items():
                    if value:
                        yield from metric.at(value, *at, str(link.link), kind)
        # A link that has answered once and does not now would make the sum look like a reset.
        for kind in sorted({kind for link in links for kind in link.errors}):
            counts = {link.link: link.errors[kind] for link in links if kind in link.errors}
            counted = self._counted.setdefault(kind, set())
            counted.update(counts)
            if counts.keys() == counted:
                yield from NVLINK_ERRORS.at(sum(counts.values()), *at, kind)
        if links:
            speeds = [link.bytes_per_second for link in links if link.up]
            told = [speed for speed in speeds if speed is not None]
            yield from NVLINK_SPEED.at(sum(told) if len(told) == len(speeds) else None, *at)


GPU_SOURCE: GpuSource = GpuNvLink
