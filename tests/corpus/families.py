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

from gpunode.gpu.models import model_of
from gpunode.holders.cgroup import whose
from gpunode.host import infiniband
from gpunode.host.filesystem import KINDS, PLAIN_FUSE
from gpunode.host.hwmon import place_of
from gpunode.host.kernel_log import kind_of

FOLDER = Path(__file__).parent

Fate = Literal["right", "wrong", "silent"]


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


def sensors() -> Iterator[Outcome]:
    """Whether a temperature is known for what it is; those of single parts are none of ours."""
    for entry in load("sensors")["temperatures"]:
        found, wanted = place_of(entry["label"]) or None, entry["place"]
        yield Outcome(f"{entry['driver']}: {entry['label']}", _fate(found, wanted))


FAMILIES: dict[str, Callable[[], Iterator[Outcome]]] = {
    "kernel lines": kernel_lines,
    "cgroups of containers": cgroups,
    "cgroups of Slurm's jobs": slurm,
    "mounts of the network": mounts,
    "counters of RDMA ports": rdma_counters,
    "models of GPUs": gpus,
    "temperatures": sensors,
}


def _of(place: list[str]) -> str | None:
    """An owner as one text, None if nothing is known of it."""
    return " ".join(place).strip() or None


def _fate(found: str | None, wanted: str | None) -> Fate:
    if found == wanted:
        return "right"
    return "silent" if found is None else "wrong"
