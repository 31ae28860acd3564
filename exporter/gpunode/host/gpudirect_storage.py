"""GPUDirect Storage: what moves between storage and GPU memory without the CPU.

https://docs.nvidia.com/gpudirect-storage/troubleshooting-guide/displaying-gds-nvidia-fs-driver-statistics.html
https://github.com/NVIDIA/gds-nvidia-fs/blob/main/src/nvfs-stat.c
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpunode.config.daemon import Settings
from gpunode.metric import Metric, Sample
from gpunode.node.kernel import counter
from gpunode.node.node import Node
from gpunode.source import NodeSource, Reading

BYTES = Metric(
    "gpunode_gpudirect_storage_bytes_total",
    "counter",
    "Bytes moved between storage and GPU memory without the CPU, in whole MiB; absent while the "
    "driver does not count them (/proc/driver/nvidia-fs/stats).",
    ("direction",),
)
ERRORS = Metric(
    "gpunode_gpudirect_storage_errors_total",
    "counter",
    "Requests of GPUDirect Storage that failed (/proc/driver/nvidia-fs/stats: err, io_state_err).",
    ("direction",),
)

STATS = "/proc/driver/nvidia-fs/stats"
OPERATION_FIELDS = {"Reads": ("read", "readMiB"), "Writes": ("write", "writeMiB")}
FIELD = re.compile(r"(?P<name>[\w-]+)=(?P<value>\d+)")


@dataclass(frozen=True, slots=True)
class DirectIo:
    """Errors of a direction, and bytes if the driver counts them."""

    errors: float
    bytes: float | None


def parse(text: str) -> dict[str, DirectIo]:
    """What was moved by direction. Raises ``ValueError``."""
    found: dict[str, DirectIo] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name.strip() not in OPERATION_FIELDS:
            continue
        direction, amount = OPERATION_FIELDS[name.strip()]
        fields = {match["name"]: counter(match["value"]) for match in FIELD.finditer(rest)}
        if "err" in fields:  # a second line has the bandwidth of the last second
            mebibytes = fields.get(amount)
            found[direction] = DirectIo(
                fields["err"] + fields.get("io_state_err", 0.0),
                None if mebibytes is None else mebibytes * 2**20,
            )
    if len(found) < len(OPERATION_FIELDS):
        raise ValueError(f"{STATS}: reads or writes are missing")
    return found


class GpuDirectStorage:
    """Reads the statistics of the module nvidia_fs."""

    name = "gpudirect_storage"
    needs = (
        "the module nvidia_fs; for bytes, its statistics: "
        "echo 1 > /sys/module/nvidia_fs/parameters/rw_stats_enabled"
    )
    metrics = (BYTES, ERRORS)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.host.interval

    def read(self) -> Reading:
        try:
            moved = parse(self.node.read_text(STATS))
        except FileNotFoundError:
            return Reading(())
        return Reading(tuple(_samples(moved)))


def _samples(found: dict[str, DirectIo]) -> Iterator[Sample]:
    for direction, moved in found.items():
        yield from BYTES.at(moved.bytes, direction)
        yield from ERRORS.at(moved.errors, direction)


NODE_SOURCE: NodeSource = GpuDirectStorage
