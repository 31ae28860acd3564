"""The one place that assembles the sources: what is read on a node, and so what is exported.

Most sources are found by the declaration in their module (``source.py``). Those assembled here by
hand check for themselves whether the node has them, or need the result of another source. The
metric catalogue, the documents and the golden runs derive from this.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
from collections.abc import Iterable, Iterator
from functools import partial
from types import ModuleType
from typing import Any, Protocol

from gpunode import audit, gpu, host, jobs, nccl
from gpunode.config.daemon import Settings
from gpunode.driver.driver import DriverError, Gpu
from gpunode.export.dcgm_names import DcgmNames
from gpunode.export.web.entrance import Entrance
from gpunode.faults.source import Faults
from gpunode.gpu.dcgm_fields import GpuDcgmFields
from gpunode.holders.census import Census
from gpunode.holders.job_name import JobNames
from gpunode.holders.pods import Pods
from gpunode.holders.slurm import SlurmJobs
from gpunode.holders.source import HoldersSource
from gpunode.host import node_name
from gpunode.host.filesystem import Filesystems, FilesystemSpace, UnwatchedFilesystems
from gpunode.host.own_process import OwnProcess
from gpunode.incidents.black_box import BlackBox
from gpunode.incidents.history import History
from gpunode.jobs.owners import GpuOwners
from gpunode.jobs.steps import TrainingSteps
from gpunode.loop import Loop
from gpunode.loop.metrics import METRICS as OF_SOURCES
from gpunode.metric import Metric
from gpunode.nccl.ras import NcclRas
from gpunode.node.node import Node, NoDescriptors
from gpunode.serving.pauses import ServingPauses
from gpunode.serving.requests import ServingEngines
from gpunode.source import (
    WHOLE_NODE,
    Absent,
    Divided,
    Finder,
    GpuSource,
    NodeSource,
    Place,
    Source,
    View,
)
from gpunode.verdict.held_up import HoldTracker
from gpunode.verdict.looking import Looking
from gpunode.verdict.restarts import Restarts
from gpunode.verdict.shortages import Shortages
from gpunode.verdict.source import Verdicts

log = logging.getLogger(__name__)


class DeclaresMetrics(Protocol):
    """Anything that lists the metrics it may emit."""

    @property
    def metrics(self) -> tuple[Metric, ...]: ...


class SourceClass(Protocol):
    """A class of finders or sources that tells users what it takes."""

    @property
    def name(self) -> str: ...
    @property
    def needs(self) -> str: ...
    @property
    def metrics(self) -> tuple[Metric, ...]: ...


def _declared(name: str, *packages: ModuleType) -> Iterator[Any]:
    """What the modules of these packages declare under this name."""
    for package in packages:
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            if hasattr(module, name):
                yield getattr(module, name)


def _metrics(*kinds: DeclaresMetrics) -> tuple[Metric, ...]:
    """Every metric of these kinds of sources, once."""
    return tuple(dict.fromkeys(metric for kind in kinds for metric in kind.metrics))


NODE_SOURCES: tuple[NodeSource, ...] = tuple(_declared("NODE_SOURCE", host, nccl, audit))
GPU_SOURCES: tuple[GpuSource, ...] = tuple(_declared("GPU_SOURCE", gpu, jobs, nccl))
HOLDERS_SOURCES: tuple[HoldersSource, ...] = tuple(_declared("HOLDERS_SOURCE", gpu, jobs, nccl))

METRICS: dict[str, tuple[Metric, ...]] = {
    "GPU": _metrics(*GPU_SOURCES, *HOLDERS_SOURCES, GpuOwners),
    "Pods and Slurm jobs": _metrics(Pods, SlurmJobs),
    "Training": (*TrainingSteps.metrics, *Restarts.metrics),
    "Serving": (*ServingEngines.metrics, *ServingPauses.metrics),
    "Node": _metrics(*NODE_SOURCES, NcclRas, Filesystems),
    "Verdicts": (*Verdicts.metrics, *HoldTracker.metrics, *Looking.metrics),
    "Faults": Faults.metrics,
    "Incidents": BlackBox.metrics,
    "dcgm-exporter's, with `--compat=dcgm`": DcgmNames.metrics,
    "Sources": OF_SOURCES,
    "The web server": Entrance.metrics,
    "The daemon itself": OwnProcess.metrics,
}
"""Every metric, by section of the reference."""


class GpuSources:
    """The sources of every GPU of every vendor."""

    name = "gpu"
    needs = (
        "a GPU and its driver; in a container, the NVIDIA runtime with NVIDIA_VISIBLE_DEVICES=all "
        "and NVIDIA_DRIVER_CAPABILITIES=utility"
    )
    metrics = METRICS["GPU"]

    def __init__(
        self, census: Census, settings: Settings, pods: Pods, slurm: SlurmJobs | None = None
    ) -> None:
        self.census = census
        self.node = census.node
        self.settings = settings
        self.pods = pods
        self.slurm = slurm
        self.names = JobNames(partial(node_name.name, self.node, settings), pods)
        self._listed: dict[int, list[Gpu]] = {}
        self._complaints: dict[int, str] = {}
        self._sources: dict[str, list[tuple[Divided, Source]]] = {}

    def find(self) -> Iterable[tuple[Place, Source]]:
        gpus = {found.identity.uuid: found for found in self._gpus()}
        divided = {found.identity.parent for found in gpus.values()}
        self._sources = {
            uuid: self._sources.get(uuid) or self._open(found) for uuid, found in gpus.items()
        }
        for uuid, found in gpus.items():
            index, uuid = found.identity.labels
            left_out = "instances" if uuid in divided else "divided_board"
            for which, source in self._sources[uuid]:
                if which != left_out:
                    yield Place(gpu=index, uuid=uuid), source

    def _gpus(self) -> list[Gpu]:
        """The GPUs of every driver; those of one that fails stay as last listed, and fail visibly.

        Raises ``Absent`` if no driver answers.
        """
        complaints: dict[int, str] = {}
        for which, driver in enumerate(self.node.drivers):
            try:
                self._listed[which] = driver.gpus()
            except DriverError as error:
                complaints[which] = str(error)
        if len(complaints) == len(self.node.drivers):
            raise Absent("; ".join(complaints.values()) or "no GPU driver to ask")
        for which, complaint in complaints.items():
            if which in self._listed and self._complaints.get(which) != complaint:
                log.warning("the GPUs of a driver that no longer answers stay: %s", complaint)
        self._complaints = complaints
        return [found for listed in self._listed.values() for found in listed]

    def _open(self, found: Gpu) -> list[tuple[Divided, Source]]:
        not_of = "board" if found.identity.mig else None
        compatible = (GpuDcgmFields,) if self.settings.compat == "dcgm" else ()
        owners = GpuOwners(self.census, found, self.settings, self.pods, self.slurm, self.names)
        return [
            *(
                (kind.divided, kind(self.census, found, self.settings))
                for kind in HOLDERS_SOURCES
                if kind.divided != not_of
            ),
            *(
                (kind.divided, kind(self.node, found, self.settings))
                for kind in (*GPU_SOURCES, *compatible)
                if kind.divided != not_of
            ),
            (owners.divided, owners),
        ]


class NodeSources:
    """One source for each thing that every node has, and one for each mounted filesystem."""

    name = "host"
    needs = "the node's root, mounted at path.rootfs"
    metrics = (*METRICS["Node"], *ServingEngines.metrics)

    def __init__(self, census: Census, settings: Settings) -> None:
        self.node = node = census.node
        self._sources: list[Source] = [kind(node, settings) for kind in NODE_SOURCES]
        self._sources += [NcclRas(census, settings), ServingEngines(census, settings)]
        self._filesystems = Filesystems(node, settings)

    def find(self) -> Iterable[tuple[Place, Source]]:
        try:
            self.node.read_text("/proc/stat")
        except FileNotFoundError as error:
            raise Absent("no /proc/stat below the root of the node: check path.rootfs") from error
        except (OSError, NoDescriptors):
            pass  # the node is there; its sources report what is wrong
        yield from ((WHOLE_NODE, source) for source in self._sources)
        yield from self._filesystems.find()


KINDS: dict[SourceClass, tuple[SourceClass, ...]] = {
    GpuSources: (*GPU_SOURCES, *HOLDERS_SOURCES, GpuOwners),
    Pods: (Pods,),
    SlurmJobs: (SlurmJobs,),
    TrainingSteps: (TrainingSteps,),
    NodeSources: (*NODE_SOURCES, NcclRas, ServingEngines, FilesystemSpace, UnwatchedFilesystems),
}
"""By what finds them, the kinds of sources; those without metrics only serve others."""


def finders(node: Node, settings: Settings) -> list[Finder]:
    """The finders of everything that can be read on a node."""
    census, pods = Census(node), Pods(node, settings)
    slurm = SlurmJobs(census, settings)
    census.givers = pods, slurm
    return [
        GpuSources(census, settings, pods, slurm),
        pods,
        slurm,
        TrainingSteps(census, settings),
        NodeSources(census, settings),
        OwnProcess(),
    ]


def views(node: Node, settings: Settings) -> list[View]:
    """The views of everything that was read."""
    names: list[View] = [DcgmNames(node, settings)] if settings.compat == "dcgm" else []
    return [
        *(
            *names,
            Verdicts(),
            HoldTracker(),
            Looking(node, settings),
            Faults(settings.node.faults_file),
        ),
        *(Restarts(node), Shortages(node, settings), History(), ServingPauses()),
    ]


def watch(node: Node, settings: Settings, *more: View) -> Loop:
    """The loop over all sources and views of a node."""
    return Loop(
        node.clock,
        finders(node, settings),
        [*views(node, settings), *more],
        find_every=settings.discovery.interval,
    )
