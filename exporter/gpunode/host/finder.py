"""The sources of the node around the GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from gpunode.audit.source import Audit
from gpunode.config import HostSettings
from gpunode.host.cpu import Cpu
from gpunode.host.disk import Disks
from gpunode.host.filesystem import Filesystems
from gpunode.host.infiniband import Infiniband
from gpunode.host.kernel_log import KernelLog
from gpunode.host.lustre import Lustre
from gpunode.host.memory import Memory
from gpunode.host.network import Network
from gpunode.host.nfs import Nfs
from gpunode.host.pcie import Pcie
from gpunode.host.pressure import Pressure
from gpunode.host.shm import Shm
from gpunode.jobs.nccl_bench import NcclBench
from gpunode.jobs.nccl_ras import NcclRas
from gpunode.metric import Metric
from gpunode.node import Node
from gpunode.source import Absent, Source

KINDS = (
    Cpu,
    Disks,
    Infiniband,
    KernelLog,
    Lustre,
    Memory,
    Network,
    Nfs,
    Pcie,
    Pressure,
    Shm,
)
METRICS: tuple[Metric, ...] = (
    *(metric for kind in KINDS for metric in kind.metrics),
    *Filesystems.metrics,
    *Audit.metrics,
    *NcclBench.metrics,
    *NcclRas.metrics,
)


class HostFinder:
    """One source for each thing that every node has, and one for each mounted filesystem."""

    name = "host"

    def __init__(self, node: Node, settings: HostSettings) -> None:
        self.node = node
        self._sources: list[Source] = [
            kind(node, settings.slow_interval if kind is Pcie else settings.interval)
            for kind in KINDS
        ]
        self._sources.append(Audit(node, settings.audit_interval))
        self._sources.append(NcclRas(node, settings.interval))
        self._sources.append(NcclBench(node, settings.nccl_bench_folder, settings.slow_interval))
        self._filesystems = Filesystems(node, settings.slow_interval)

    def find(self) -> Iterable[Source]:
        try:
            self.node.read_text("/proc/stat")
        except FileNotFoundError as error:
            raise Absent("no /proc/stat under the root of the node") from error
        except OSError:
            pass  # there is a node; the sources tell what is wrong with it
        return [*self._sources, *self._filesystems.find()]
