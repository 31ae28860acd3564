"""How much of what real systems write is understood: facts from public sources, and the readers.

``python -m tests.corpus`` prints for each family how many entries are read rightly, how many
wrongly, how many are counted as unread, and how many are dropped without a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import pynvml
import yaml

from gpunode.config.daemon import Settings
from gpunode.driver.driver import Fabric, Identity, Unsupported
from gpunode.driver.nvidia.device import Device
from gpunode.driver.nvidia.fabric import fabric
from gpunode.driver.nvidia.vendor import is_device
from gpunode.driver.nvidia.xids import CODES, NVLINK5_XIDS, RECOVERY_ACTIONS, recovery_action
from gpunode.export import dcgm_names as dcgm
from gpunode.gpu.health import GpuHealth
from gpunode.gpu.models import model_of
from gpunode.holders.slurm import SlurmJobs
from gpunode.holders.slurmstepd import parse_title
from gpunode.host import rdma_counters as rdma
from gpunode.host.filesystem import LOCAL, holds_data, may_hold_data
from gpunode.host.hwmon import place_of
from gpunode.host.kernel_log import KMSG, XID, KernelLog, kind_of
from gpunode.host.kernel_trouble import troubled
from gpunode.host.mounts import parse
from gpunode.host.nvlink_xids import NvlinkXids
from gpunode.nccl.log import DebugLog
from gpunode.node import http
from gpunode.node.cgroup import cgroup_owner, strange_container
from gpunode.node.local import LocalNode
from gpunode.node.node import lines_of
from gpunode.serving.engines import SERIES
from gpunode.serving.page import parse as parse_page
from tests.corpus import fresh
from tests.corpus.written import Fate, Written
from tests.export.dcgm_clients import reason_for_none
from tests.holders.slurm import SlurmNode
from tests.machine import MachineGpu

FOLDER = Path(__file__).parent

WHOLE = Identity(4, "GPU-aa", "NVIDIA H200", minor=2)
INSTANCE = Identity(
    4,
    "MIG-bb",
    "NVIDIA H200",
    parent="GPU-aa",
    mig=True,
    minor=2,
    gpu_instance=1,
    mig_profile=19,
    mig_start=4,
)
"""Of ``devices.yaml``."""

POD = "1858680e-b044-4fd5-9dd4-f137e30e2180"
CONTAINER = "3f2a1b4c5d6e7f80" * 4

CLOSE = 0.02
"""Share by which two sources of a figure differ: 3.35 or 3.352 TB/s."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an entry.

    ``unread``: it is counted as not understood; ``silent``: nothing says that it was there.
    """

    entry: str
    fate: Fate


KERNEL_KINDS = {
    **dict.fromkeys(("adapter_power", "adapter_heat", "transmit_timeout"), "network_adapter"),
    **dict.fromkeys(("lustre_slow", "lnet"), "lustre"),
    **dict.fromkeys(("ceph", "gpfs"), "remote_filesystem"),
    "file_handles": "file_limit",
    "panic": "kernel_bug",
    "thermal": "cpu_hot",
}
"""What the corpus tells apart, and a kind of gpunode's has in common."""


def load(name: str) -> Any:
    """A file of the corpus."""
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text())


def kernel_lines() -> Iterator[Outcome]:
    """A line that is no event must have no kind, and must not be unread either."""
    for entry in load("kernel_lines")["lines"]:
        found = kind_of(entry["line"])
        unread = found is None and troubled(entry["line"], None)
        if entry["counts"]:
            fate = _fate(found, KERNEL_KINDS.get(entry["kind"], entry["kind"]))
            yield Outcome(entry["line"], "unread" if unread else fate)
        else:
            yield Outcome(entry["line"], "wrong" if found or unread else "right")


def kernel_events() -> Iterator[Outcome]:
    """Of an event of several lines, how it counts."""
    for entry in load("kernel_events")["events"]:
        with TemporaryDirectory() as folder:
            path = entry.get("path", KMSG)
            log = KernelLog(Written(Path(folder), path, entry["lines"].splitlines()), Settings())
            unread = log.read().unread
        found = {kind: count for kind, count in log.events.items() if count}
        same = found == entry["counts"] and len(unread) == entry["unread"]
        told: Fate = "unread" if entry["unread"] else "right"
        yield Outcome(entry["event"], told if same else "wrong")


def engines() -> Iterator[Outcome]:
    """What a page says of the requests of an engine, under whatever names its version has."""
    for entry in load("engines")["pages"]:
        text = (FOLDER / f"engines/{entry['page']}.txt").read_text()
        scraped = http.scraped_of(f"HTTP/1.0 200 OK\r\n\r\n{text}", SERIES)
        page = parse_page(scraped.kept)
        if page is None:
            yield Outcome(entry["page"], "unread" if scraped.exposes else "silent")
            continue
        figures = page.models[entry["model"]].figures if entry["model"] in page.models else {}
        found = {figure.name: value for figure, value in figures.items()}
        names = ("running", "waiting", "kv_cache", *entry.get("absent", ()))
        same = {name: found.get(name) for name in names} == {
            name: entry.get(name) for name in names
        }
        known = page.engine.name == entry["engine"] and entry["model"] in page.models
        yield Outcome(entry["page"], "right" if same and known and not page.partial else "wrong")


def cgroups() -> Iterator[Outcome]:
    """Of containers; a name that any user may give a cgroup proves nothing."""
    for entry in load("containers")["cgroups"]:
        trusted = entry["made_by"] == "root"
        named = {**entry, "container_id": entry["container_id"] or entry["name"]}
        wanted = [
            (named[name] or "") if trusted else ""
            for name in ("pod_uid", "container_id", "slurm_job", "slurm_step", "task_id")
        ]
        found = _owner_text(list(astuple(cgroup_owner(entry["line"]))))
        unread = strange_container(entry["line"]) != ""
        yield Outcome(entry["line"], _fate(found, _owner_text(wanted), unread))


def slurm() -> Iterator[Outcome]:
    """Of Slurm's jobs, of both versions of cgroups: a process on a node, with its slurmstepd."""
    facts = load("slurm")
    for version in ("cgroup_v2_paths", "cgroup_v1_paths"):
        for entry in facts[version]:
            path = str(entry["path"]).removeprefix("0::")
            path = path.replace("<UID>", POD.replace("-", "_")).replace("<ID>", CONTAINER)
            yield Outcome(path, _fate_of_a_job(path, entry, version == "cgroup_v1_paths"))
    for entry in facts["slurmstepd_title"]["forms"]:
        try:
            found = parse_title(entry["title"])
        except ValueError:
            found = None
        yield Outcome(entry["title"], _fate(found, entry["job"]))


def _fate_of_a_job(path: str, entry: dict[str, Any], first_version: bool) -> Fate:
    """What is read of a process in a cgroup, and whether what is not is counted."""
    wanted, sluid = entry.get("job"), entry.get("sluid", "")
    with TemporaryDirectory() as folder:
        node = SlurmNode(Path(folder))
        if first_version:
            return _fate(cgroup_owner(f"5:devices:{path}").slurm_job or None, wanted)
        if wanted and sluid:
            step = f"{path.partition(sluid)[0]}{sluid}/step_{entry['step']}"
            node.run(f"{step}/slurm", f"slurmstepd: [{wanted}.{entry['step']}]", uid=0)
        found = node.whose(node.run(path)).slurm_job
        jobs = SlurmJobs(node.census, Settings())
        counted = [one for _ in range(2) for one in jobs.read().unread]
        return "unread" if found == sluid and counted else _fate(found or None, wanted)


def mounts() -> Iterator[Outcome]:
    """Whether a filesystem of the network is watched; of others, those of disks may be."""
    for entry in load("mounts")["mounts"]:
        (mount,) = parse(entry["mountinfo"])
        watched, unread = holds_data(mount), may_hold_data(mount)
        if entry["network"]:
            fate: Fate = "right" if watched else "unread" if unread else "silent"
        else:
            local = re.fullmatch(LOCAL, mount.kind) is not None
            fate = "right" if watched is local and not (unread and not watched) else "wrong"
        yield Outcome(entry["mountinfo"], fate)


def rdma_counters() -> Iterator[Outcome]:
    """What each counter of an RDMA port is taken for."""
    facts = load("rdma")
    for driver, about in {"every": facts["standard_counters"], **facts["drivers"]}.items():
        for where, listed in about.items():
            if not isinstance(listed, list) or "counters" not in where:
                continue
            for entry in listed:
                name, about_it = (entry, {}) if isinstance(entry, str) else (entry["name"], entry)
                if driver != "cxi" or about_it["trouble"]:
                    yield Outcome(f"{driver}: {name}", _rdma_counter(name, about_it))


def _rdma_counter(name: str, wanted: dict[str, Any]) -> Fate:
    known: rdma.Counters = {**rdma.MEANINGS, **rdma.CXI}
    name = name.removeprefix(rdma.VPORT_PREFIX)
    if name not in known:
        return "unread"
    found = known[name]
    if not wanted:
        return "right"
    if wanted["means"] == "bytes":
        direction = found and found.kind
        unit = 4.0 if "words" in wanted["unit"] else 1.0
        same = found is None or found.unit == unit
        return "right" if same and direction == wanted.get("direction", direction) else "wrong"
    trouble = found is not None and found.what not in ("bytes", "wait")
    harmless = wanted["means"] in ("congestion", "receiver") and trouble
    return "right" if trouble == wanted["trouble"] or harmless else "wrong"


def gpus() -> Iterator[Outcome]:
    """Whether the figures of a model are right; one without ceilings of its own is counted."""
    for entry in load("gpus")["gpus"]:
        for name in entry["nvml_name"]:
            yield Outcome(name, _of_gpu(name, entry))


def _of_gpu(name: str, entry: dict[str, Any]) -> Fate:
    model = model_of(name)
    if model is None:
        gpu = MachineGpu(0, "GPU-0", "", name=name)
        read = GpuHealth(LocalNode(Path("/")), gpu, Settings()).read()
        return "unread" if any(name in one.example for one in read.unread) else "silent"
    wanted = (
        (model.half, entry["bf16_dense_tflops"], 1e12),
        (model.ceilings.sms, entry["sms"], 1),
        (model.memory, entry["memory_gb_s"], 1e9),
    )
    known = [(ours, theirs * unit) for ours, theirs, unit in wanted if None not in (ours, theirs)]
    near = all(abs(ours - theirs) <= CLOSE * theirs for ours, theirs in known)
    return "right" if known and near else "wrong"


def dcgm_names() -> Iterator[Outcome]:
    """Whether a field has a series or a label, or a reason why not in docs/compatibility.md.

    One that was renamed must have both names or none.
    """
    given = {metric.name for metric in dcgm.METRICS}.union(dcgm.LABELS)
    facts = load("dcgm")
    exporter, newest = facts["exporter"], facts["exporter_4_8_4"]
    listed = [
        *({"name": one["new"]} for one in facts["base_units_4_7"]["fields"]),
        *facts["renamed"],
        *facts["renamed_more"],
        *exporter["default"],
        *exporter["commented_out"],
        *newest["changed"],
        *({"name": name} for name in newest["commented_totals"]),
    ]
    for entry in listed:
        names = [entry[key] for key in ("old", "new", "name", "new_name") if key in entry]
        fates = {_of_dcgm(name, given) for name in names}
        yield Outcome(" = ".join(names), fates.pop() if len(fates) == 1 else "wrong")


def _of_dcgm(name: str, given: set[str]) -> Fate:
    if name in given:
        return "right"
    return "unread" if reason_for_none(name) else "silent"


class Answering(Device):
    """A GPU that answers about its fabric as an entry says."""

    def __init__(self, entry: dict[str, Any]) -> None:
        super().__init__(library=None, handle=None, generation=0, index=0, uuid="GPU-0")  # type: ignore[arg-type]
        self.info = pynvml.c_nvmlGpuFabricInfo_v3_t()
        self.info.state = entry.get("state", pynvml.NVML_GPU_FABRIC_STATE_COMPLETED)
        self.info.status = entry.get("status", 0)
        self.info.healthMask = entry["mask"]
        self.info.healthSummary = entry.get("summary", 0)
        self.info.cliqueId = entry.get("clique", 0)
        self.info.clusterUuid[:] = UUID(entry.get("cluster", str(UUID(int=0)))).bytes

    def if_supported(self, *_: Any) -> Any:
        return self.info


def fabrics() -> Iterator[Outcome]:
    """Whether the fabric of a GPU is healthy, from the mask, the summary and the registration."""
    facts = load("recovery_actions")["fabric"]
    for entry in (*facts["examples"], *facts["observed_masks"], *facts["answers"]):
        name = f"{entry['mask']:#x}, {entry.get('why') or entry['source']}"
        gpu = Answering(entry)
        try:
            found = fabric(gpu)
        except Unsupported:
            yield Outcome(name, "right" if entry.get("ready", True) is None else "silent")
            continue
        wanted = [entry["healthy"], entry.get("ready", True), entry.get("domain")]
        fate: Fate = "right" if _of_fabric(found) == wanted else "wrong"
        yield Outcome(name, "unread" if gpu.unnamed() else fate)
    for entry in facts["unnamed_masks"]:
        gpu = Answering(entry)
        fabric(gpu)
        name = f"{entry['mask']:#x}, {entry['why']}"
        yield Outcome(name, "unread" if gpu.unnamed() else "silent")


def _of_fabric(found: Fabric) -> list[bool | str | None]:
    """Whether it is healthy and joined, and the domain."""
    healthy = all(found.healthy.values()) if found.healthy else None
    domain = None if found.cluster is None else f"{found.cluster}/{found.clique}"
    return [healthy, found.state == "completed", domain]


def sensors() -> Iterator[Outcome]:
    """Whether a temperature is known for what it is; those of single parts are none of ours."""
    for entry in load("sensors")["temperatures"]:
        found, wanted = place_of(entry["label"]) or None, entry["place"]
        yield Outcome(f"{entry['driver']}: {entry['label']}", _fate(found, wanted))


def xids() -> Iterator[Outcome]:
    """What NVIDIA's catalogue asks for after each XID."""
    for entry in load("xids")["xids"]:
        code = CODES.get(entry["code"])
        wanted = (entry["immediate_action"] or "", entry["meaning"], tuple(entry["applies_to"]))
        found = (code.action, code.meaning, code.models) if code else None
        fate: Fate = "right" if found == wanted else "silent" if found is None else "wrong"
        yield Outcome(f"XID {entry['code']}", fate)


def nvlink5_lines() -> Iterator[Outcome]:
    """Severity, link and action of each error of NVLink 5 in the kernel log."""
    facts = [*load("xids")["nvlink5"]["lines"], *load("kernel_lines")["lines"]]
    for entry in facts:
        if entry.get("xid") not in NVLINK5_XIDS:
            continue
        about = XID.match(entry["line"])
        xids_of_links = NvlinkXids()
        text = entry["line"][about.end() :] if about else ""
        unread = list(xids_of_links.count("bus", str(entry["xid"]), text, 0.0))
        wanted = str(entry["link"]), entry["severity"].lower(), entry.get("action")
        for _, _, link, severity, action in xids_of_links.times:
            same = (link, severity) == wanted[:2] and wanted[2] in (None, action.upper())
            yield Outcome(entry["line"], "unread" if unread else "right" if same else "wrong")
        if not xids_of_links.times:
            yield Outcome(entry["line"], "unread" if unread else "silent")


def recovery_actions() -> Iterator[Outcome]:
    """What the driver advises by its number, and by a line of XID 154."""
    facts = load("recovery_actions")["recovery_actions"]
    for entry in facts["values"]:
        found = RECOVERY_ACTIONS.get(entry["value"])
        yield Outcome(entry["nvml"], _fate(found, entry["name"]))
    for entry in (*facts["lines"], *load("kernel_lines")["lines"]):
        if entry.get("xid") == 154:
            found = recovery_action(entry["line"])
            unread = found is None and entry["action"] is None
            yield Outcome(entry["line"], "unread" if unread else _fate(found, entry["action"]))


def device_ids() -> Iterator[Outcome]:
    """Which GPU or instance the kubelet names."""
    wanted = {"gpu": (True, False), "instance": (False, True), "other": (False, False)}
    for entry in load("devices")["devices"]:
        found = is_device(WHOLE, entry["device"]), is_device(INSTANCE, entry["device"])
        unread, unknown = found == (None, None), entry["is"] == "unknown"
        same = unread if unknown else found == wanted[entry["is"]]
        fate: Fate = "unread" if unread else "right"
        yield Outcome(f"{entry['of']}: {entry['device']}", fate if same else "wrong")


def nccl_logs() -> Iterator[Outcome]:
    """What the log of each version of NCCL tells of a communicator."""
    for entry in load("nccl")["forms"]:
        log = DebugLog("/nccl.log", 77)
        said = [f"node-1:77:82 [1] NCCL INFO {line}\n" for line in entry["lines"]]
        log.add(lines_of("".join(said).encode(), 0, log.line).kept)
        told = [
            (one.id, one.rank, one.ranks, one.bus, one.transports, one.topologies)
            for one in log.communicators
        ]
        wanted = (entry["id"], "3", "8", 0x3B000, {"NET/AWS": 1}, entry["topologies"])
        yield Outcome(f"NCCL {entry['version']}", "right" if told == [wanted] else "wrong")


def fresh_samples() -> Iterator[Outcome]:
    """Of the samples that the readers were not written from, and have been mended for since."""
    for kind, entry, fate in fresh.fates(load("fresh")):
        yield Outcome(f"{kind}: {entry['entry']}", fate)


def first_try() -> Iterator[Outcome]:
    """What became of these samples before anything was mended."""
    for kind, of in load("fresh").items():
        for entry in of:
            yield Outcome(f"{kind}: {entry['entry']}", entry["first"])


FAMILIES: dict[str, Callable[[], Iterator[Outcome]]] = {
    "pages of engines": engines,
    "kernel lines": kernel_lines,
    "kernel events of several lines": kernel_events,
    "cgroups of containers": cgroups,
    "cgroups of Slurm's jobs": slurm,
    "device IDs of the kubelet": device_ids,
    "logs of NCCL": nccl_logs,
    "mounts of the network": mounts,
    "counters of RDMA ports": rdma_counters,
    "models of GPUs": gpus,
    "XIDs": xids,
    "XID lines of NVLink 5": nvlink5_lines,
    "recovery actions": recovery_actions,
    "names of dcgm-exporter": dcgm_names,
    "health of the NVLink fabric": fabrics,
    "temperatures": sensors,
    "fresh samples": fresh_samples,
}


def _owner_text(place: list[str]) -> str | None:
    """An owner as one text, None if nothing is known of it."""
    return " ".join(place).strip() or None


def _fate(found: str | None, wanted: str | None, unread: bool = False) -> Fate:
    if found == wanted:
        return "wrong" if unread else "right"
    if unread:
        return "unread"
    return "silent" if found is None else "wrong"
