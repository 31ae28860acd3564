"""How much of what real systems write is understood: facts from public sources, and the readers.

``python -m tests.corpus`` prints for each family how many entries are read rightly, how many
wrongly, and how many are dropped without a word. The readers were written before the entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from gpunode.driver.nvidia.xids import CODES, OF_NVLINK5, RECOVERY_ACTIONS, advice
from gpunode.gpu.models import model_of
from gpunode.holders.cgroup import whose
from gpunode.host import infiniband
from gpunode.host.filesystem import KINDS, PLAIN_FUSE
from gpunode.host.kernel_log import XID, kind_of
from gpunode.host.nvlink_xids import NvlinkXids

FOLDER = Path(__file__).parent

Fate = Literal["right", "wrong", "unread", "silent"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an entry; ``silent`` means that nothing says that it was there."""

    entry: str
    fate: Fate


def load(name: str) -> Any:
    """A file of the corpus."""
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text())


def kernel_lines() -> Iterator[Outcome]:
    """A line that is no event must have no kind."""
    for entry in load("kernel_lines")["lines"]:
        found = kind_of(entry["line"])
        wanted = entry["kind"] if entry["counts"] else None
        yield Outcome(entry["line"], _fate(found, wanted))


def cgroups() -> Iterator[Outcome]:
    """Of containers; a name that any user may give a cgroup proves nothing."""
    for entry in load("containers")["cgroups"]:
        trusted = entry["made_by"] == "root"
        wanted = [
            (entry[name] or "") if trusted else ""
            for name in ("pod_uid", "container_id", "slurm_job", "slurm_step")
        ]
        place = whose(entry["line"])
        found = [place.pod_uid, place.container_id, place.slurm_job, place.slurm_step]
        others = entry["task_id"] if trusted else None
        yield Outcome(entry["line"], _fate(_of(found), _of([*wanted, others or ""])))


def slurm() -> Iterator[Outcome]:
    """Of Slurm's jobs, of both versions of cgroups."""
    facts = load("slurm")
    for version in ("cgroup_v2_paths", "cgroup_v1_paths"):
        for entry in facts[version]:
            path = str(entry["path"]).removeprefix("0::")
            found = whose(f"0::{path}" if version == "cgroup_v2_paths" else f"5:devices:{path}")
            yield Outcome(path, _fate(found.slurm_job or None, entry.get("job")))


def mounts() -> Iterator[Outcome]:
    """Whether a filesystem of the network is watched, by its type."""
    for entry in load("mounts")["mounts"]:
        kind = entry["fstype"]
        if entry["network"]:
            watched = KINDS.fullmatch(kind) is not None or kind == PLAIN_FUSE
            yield Outcome(entry["mountinfo"], "right" if watched else "silent")


def rdma_counters() -> Iterator[Outcome]:
    """Whether a counter that means trouble, or bytes, has a name here."""
    known = {
        *infiniband.ERROR_KINDS,
        *infiniband.CONGESTION_KINDS,
        *infiniband.TRANSPORT_ERROR_KINDS,
        *("port_rcv_data", "port_xmit_data", "port_xmit_wait"),
    }
    facts = load("rdma")
    for driver, about in {"every": facts["standard_counters"], **facts["drivers"]}.items():
        for where in ("counters", "hw_counters"):
            listed = about.get(where)
            for counter in listed if isinstance(listed, list) else ():
                if counter["trouble"] or counter["means"] == "bytes":
                    name = counter["name"]
                    yield Outcome(f"{driver}: {name}", "right" if name in known else "silent")


def gpus() -> Iterator[Outcome]:
    """Whether a model has ceilings of its own."""
    for entry in load("gpus")["gpus"]:
        for name in entry["nvml_name"]:
            yield Outcome(name, "right" if model_of(name) else "silent")


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
        if entry.get("xid") not in OF_NVLINK5:
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
            found = advice(entry["line"])
            unread = found is None and entry["action"] is None
            yield Outcome(entry["line"], "unread" if unread else _fate(found, entry["action"]))


FAMILIES: dict[str, Callable[[], Iterator[Outcome]]] = {
    "kernel lines": kernel_lines,
    "cgroups of containers": cgroups,
    "cgroups of Slurm's jobs": slurm,
    "mounts of the network": mounts,
    "counters of RDMA ports": rdma_counters,
    "models of GPUs": gpus,
    "XIDs": xids,
    "XID lines of NVLink 5": nvlink5_lines,
    "recovery actions": recovery_actions,
}


def _of(place: list[str]) -> str | None:
    """An owner as one text, None if nothing is known of it."""
    return " ".join(place).strip() or None


def _fate(found: str | None, wanted: str | None) -> Fate:
    if found == wanted:
        return "right"
    return "silent" if found is None else "wrong"
