"""Samples that the readers were not written from, fifteen of a kind, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpunode.config.daemon import Settings
from gpunode.driver.driver import Identity
from gpunode.driver.vendors import VENDORS
from gpunode.holders.pods import _is_device
from gpunode.host.filesystem import holds_data, may_hold_data
from gpunode.host.hwmon import Hwmon
from gpunode.host.infiniband import Infiniband
from gpunode.host.kernel_log import KMSG, KernelLog
from gpunode.host.mounts import parse as parse_mounts
from gpunode.host.pcie import Pcie
from gpunode.nccl.log import DebugLog
from gpunode.nccl.ras import parse as parse_ras
from gpunode.node import http
from gpunode.node.cgroup import cgroup_owner, strange_container
from gpunode.node.kubelet import _flattened
from gpunode.node.kubelet import podresources_pb2 as messages
from gpunode.node.local import LocalNode
from gpunode.node.node import lines_of
from gpunode.serving.engines import SERIES
from gpunode.serving.page import parse as parse_page
from tests.corpus.written import Fate, Written
from tests.machine import exported

READERS: dict[str, type[Infiniband] | type[Hwmon] | type[Pcie]] = {
    "infiniband": Infiniband,
    "hwmon": Hwmon,
    "pcie": Pcie,
}


def engine(entry: dict[str, Any]) -> Fate:
    """A page of an engine: its figures of one model."""
    scraped = http.scraped_of(f"HTTP/1.0 200 OK\r\n\r\n{entry['page']}", SERIES)
    page = parse_page(scraped.kept)
    if page is None:
        return "unread" if scraped.exposes else "silent"
    if page.engine.name != entry["engine"] or entry["model"] not in page.models:
        return "wrong"
    model = page.models[entry["model"]]
    found = {figure.name: value for figure, value in model.figures.items()}
    times = {figure.name: of.count for figure, of in model.times.items()}
    wanted = {**entry.get("figures", {}), **dict.fromkeys(entry.get("absent", ()))}
    same = {name: found.get(name) for name in wanted} == wanted
    return "right" if same and times == {**times, **entry.get("times", {})} else "wrong"


def kernel(entry: dict[str, Any]) -> Fate:
    """What the kernel writes of an event: how often it counts, and as which XIDs."""
    with TemporaryDirectory() as folder:
        log = KernelLog(Written(Path(folder), KMSG, entry["lines"].splitlines()), Settings())
        unread = log.read().unread
    found = {kind: count for kind, count in log.events.items() if count}
    xids = {xid for counts in log.xids.values() for xid in counts}
    if unread:
        return "unread"
    wanted = set(entry.get("xids", ()))
    return "right" if found == entry["counts"] and xids == wanted else "wrong"


def nccl(entry: dict[str, Any]) -> Fate:
    """What a log tells of a process, or a RAS service of its job."""
    if "answer" in entry:
        answer = parse_ras(entry["answer"])
        wanted = entry["ras"]
        return _fate(
            answer.communicators == wanted["communicators"],
            {each.name: [rank.number for rank in each.ranks] for each in answer.behind}
            == wanted["behind"],
            [[name, rank.number] for name, rank, _ in answer.missing] == wanted["missing"],
        )
    log = DebugLog("/nccl.log", entry["pid"])
    log.add(lines_of(entry["lines"].encode(), 0, log.line).kept)
    told = [[one.id, one.rank, one.ranks, f"{one.bus:x}"] for one in log.communicators if one.ranks]
    (last,) = log.communicators[-1:] or (None,)
    return _fate(
        entry.get("communicators", told) == told,
        log.network == entry.get("network", log.network),
        log.warnings == entry.get("warnings", 0),
        "transports" not in entry or (last is not None and last.transports == entry["transports"]),
        "topologies" not in entry or (last is not None and last.topologies == entry["topologies"]),
    )


def cgroup(entry: dict[str, Any]) -> Fate:
    """Whom a line of /proc/PID/cgroup names."""
    found, unread = cgroup_owner(entry["line"]), strange_container(entry["line"]) != ""
    told = asdict(found)
    wanted = {name: entry.get(name, "") for name in told}
    if unread:
        return "unread"
    return "right" if told == wanted else "wrong" if any(told.values()) else "silent"


def device(entry: dict[str, Any]) -> Fate:
    """Whether a GPU is the one that the kubelet names; None where nothing tells which it is."""
    answer = messages.ListPodResourcesResponse()
    place = answer.pod_resources.add(name="p", namespace="n").containers.add(name="c")
    if "claim" in entry:
        claim = place.dynamic_resources.add(claim_name="claim").claim_resources
        claim.add(driver_name=entry["claim"], device_name=entry["device"])
    else:
        place.devices.add(resource_name=entry["resource"], device_ids=[entry["device"]])
    allocations = list(_flattened(answer))
    gpu = Identity(**{"index": 0, "name": "NVIDIA H200", "uuid": "GPU-0", **(entry["of"] or {})})
    if not allocations:
        return "silent"
    is_it = _is_device(VENDORS["nvidia"], gpu, allocations[0])
    if is_it is None:
        return "unread"
    return "right" if is_it == (entry["of"] is not None) else "wrong"


def host(entry: dict[str, Any]) -> Fate:
    """What a reader tells of files of the host."""
    if "mountinfo" in entry:
        (mount,) = parse_mounts(entry["mountinfo"])
        if holds_data(mount) and not entry["network"] and "/dev/" not in mount.device:
            return "wrong"
        unread = may_hold_data(mount) and not holds_data(mount)
        return "unread" if unread else _fate(holds_data(mount) == entry["network"])
    with TemporaryDirectory() as folder:
        for path, text in entry["files"].items():
            file = Path(folder + path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        reading = READERS[entry["reader"]](LocalNode(Path(folder)), Settings()).read()
    text = exported(reading.samples)
    same = all(each in text for each in entry.get("with", ()))
    same &= not any(each in text for each in entry.get("without", ()))
    if len(reading.unread) > entry["unread"]:
        return "unread"
    return _fate(same and len(reading.unread) == entry["unread"])


def _fate(*same: bool) -> Fate:
    return "right" if all(same) else "wrong"


KINDS: dict[str, Callable[[dict[str, Any]], Fate]] = {
    "engines": engine,
    "kernel": kernel,
    "nccl": nccl,
    "cgroups": cgroup,
    "devices": device,
    "host": host,
}


def fates(facts: dict[str, list[dict[str, Any]]]) -> Iterator[tuple[str, dict[str, Any], Fate]]:
    """Each sample, its kind, and what becomes of it."""
    for kind, of in KINDS.items():
        for entry in facts[kind]:
            yield kind, entry, of(entry)
