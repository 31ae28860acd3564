"""A fault: a broken part of the node, with its meaning and remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Literal, NamedTuple

from gpunode.driver.nvidia.xids import ACTIONS, CODES
from gpunode.words import (
    END_PROGRAMS,
    FABRIC_MANAGER,
    FAULTS,
    LOOK,
    REBOOT,
    RESET,
    RESTART,
    VENDOR,
)

Part = Literal[
    "gpu", "nvlink", "fabric", "pcie", "disk", "filesystem", "network", "thermal", "power"
]
Severity = Literal["page", "ticket", "info"]


class AdvisedAction(IntEnum):
    """What to do; where a node has several faults, the greatest action covers all."""

    LEAVE = 0
    RESTART = 1
    DRAIN = 2
    RESET = 3
    CONTACT = 4
    REBOOT = 5

    @property
    def words(self) -> str:
        """The action in words, which begin the text that Slurm shows."""
        return WORDS[self]


WORDS = {
    AdvisedAction.LEAVE: "leave",
    AdvisedAction.RESTART: "restart the application",
    AdvisedAction.DRAIN: "drain the node",
    AdvisedAction.RESET: "reset the GPU",
    AdvisedAction.CONTACT: "contact the vendor",
    AdvisedAction.REBOOT: "reboot the node",
}


class Location(NamedTuple):
    """The part that is broken: ``name`` is a port, mount point, link, or place on the PCI bus."""

    gpu: str
    uuid: str
    part: Part
    name: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that lasts; ``start`` is in seconds since the epoch."""

    where: Location
    reason: str
    severity: Severity
    start: float

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of its series."""
        return (*self.where, self.reason, self.severity)


@dataclass(frozen=True, slots=True)
class FaultMeaning:
    """What a reason means in words, what it asks for, and how urgent it is under a job.

    ``not_known`` is what nothing on the node tells, where the action depends on it.
    """

    words: str
    action: AdvisedAction
    remedy: str
    severity: Severity = "page"
    not_known: str = ""

    @property
    def unfit(self) -> bool:
        """Whether no job should come to the node until somebody has acted."""
        return self.severity == "page" and self.action > AdvisedAction.RESTART


def unused_severity(severity: Severity, part: Part) -> Severity:
    """The severity of a fault in a part that no job uses."""
    if part in ("thermal", "power"):
        return "info"
    return "ticket" if severity == "page" else severity


ACTION_REMEDIES = {
    AdvisedAction.LEAVE: LOOK,
    AdvisedAction.RESTART: RESTART,
    AdvisedAction.DRAIN: END_PROGRAMS,
    AdvisedAction.RESET: RESET,
    AdvisedAction.CONTACT: VENDOR,
    AdvisedAction.REBOOT: REBOOT,
}

CATALOGUE_ACTIONS = {
    "RESET_GPU": AdvisedAction.RESET,
    "RESTART_BM": AdvisedAction.REBOOT,
    "RESTART_VM": AdvisedAction.REBOOT,
    "WORKFLOW_XID_48": AdvisedAction.RESET,
    "WORKFLOW_NVLINK_ERR": AdvisedAction.RESET,
    "CHECK_MECHANICALS": AdvisedAction.CONTACT,
    "CONTACT_SUPPORT": AdvisedAction.CONTACT,
    "RESTART_APP": AdvisedAction.RESTART,
    "WORKFLOW_XID_45": AdvisedAction.RESTART,
    "XID_154_EVAL": AdvisedAction.RESTART,
}
"""By the action of NVIDIA's catalogue (``driver/nvidia/xids.py``); others leave the node."""

CATALOGUE_GAPS = {
    "WORKFLOW_NVLINK5_ERR": "what it asks for is in its line of the kernel log, which was not read",
    "CHECK_UVM": "whether the GPU has unified memory or vGPUs, which it takes a reset for",
    "UPDATE_SWFW": "which driver or firmware mends it",
    "": "what to do: the catalogue gives no action",
}
"""By the action of the catalogue, what is not known where the advice is to leave the node."""

MENDED_BY_NO_REBOOT = ("configuration", "partition")
"""Parts of the NVSwitch fabric for which a reboot does nothing."""

DRIVER_ADVISES = "driver_advises_"
"""Begins the reason of what the driver advises; a newer driver's word drains the node until
somebody has read it."""

IMEX = "which nodes of the NVLink domain need nvidia-imex started again"

PAGES: dict[tuple[Part, str], AdvisedAction] = {
    ("gpu", "driver_advises_reset"): AdvisedAction.RESET,
    ("gpu", "driver_advises_reboot"): AdvisedAction.REBOOT,
    ("gpu", "driver_advises_system_reboot"): AdvisedAction.REBOOT,
    ("gpu", "driver_advises_bus_reset"): AdvisedAction.REBOOT,
    ("gpu", "driver_advises_drain_and_reset"): AdvisedAction.RESET,
    ("gpu", "driver_advises_recover_imex_domain"): AdvisedAction.LEAVE,
    ("gpu", "no_answer"): AdvisedAction.REBOOT,
    ("gpu", "missing"): AdvisedAction.REBOOT,
    ("gpu", "memory_lost_data"): AdvisedAction.RESET,
    ("fabric", "not_joined"): AdvisedAction.LEAVE,
    ("filesystem", "readonly"): AdvisedAction.DRAIN,
    ("filesystem", "full"): AdvisedAction.LEAVE,
    ("filesystem", "unanswering"): AdvisedAction.LEAVE,
}
"""The remedy of a fault that pages, if a job uses the part."""

TICKETS: dict[tuple[Part, str], AdvisedAction] = {
    ("gpu", "driver_advises_drain_p2p"): AdvisedAction.DRAIN,
    ("gpu", "driver_advises_reset_for_a_row"): AdvisedAction.RESET,
    ("gpu", "memory_lost_data_contained"): AdvisedAction.RESTART,
    ("gpu", "row_remap_pending"): AdvisedAction.RESET,
    ("gpu", "row_remap_failed"): AdvisedAction.CONTACT,
    ("gpu", "sram_threshold_exceeded"): AdvisedAction.CONTACT,
    ("gpu", "unrepairable"): AdvisedAction.CONTACT,
    ("nvlink", "down"): AdvisedAction.LEAVE,
    ("nvlink", "recovers"): AdvisedAction.LEAVE,
    ("pcie", "degraded"): AdvisedAction.LEAVE,
    ("pcie", "uncorrected_errors"): AdvisedAction.LEAVE,
    ("network", "down"): AdvisedAction.LEAVE,
    ("network", "missing"): AdvisedAction.LEAVE,
    ("disk", "not_live"): AdvisedAction.LEAVE,
    ("disk", "missing"): AdvisedAction.LEAVE,
    ("thermal", "sw_thermal"): AdvisedAction.LEAVE,
    ("thermal", "hw_thermal"): AdvisedAction.LEAVE,
    ("power", "hw_power_brake"): AdvisedAction.LEAVE,
}
"""The remedy of a fault that can wait for the morning."""


def _listed() -> Iterator[tuple[tuple[Part, str], FaultMeaning]]:
    severities: tuple[Severity, ...] = ("page", "ticket")
    for severity, table in zip(severities, (PAGES, TICKETS), strict=True):
        for at, action in table.items():
            said = FAULTS[at]
            not_known = IMEX if at[1] == "driver_advises_recover_imex_domain" else ""
            yield at, FaultMeaning(said.sentence, action, said.do, severity, not_known)


PART_MEANINGS = dict(_listed())

UNKNOWN_REASON = "what this reason asks for; a newer gpunode may know it"
_XID = re.compile(r"xid_([0-9]{1,9})(_fatal)?")
_EVENT = re.compile(r"event_(?P<module>.{1,16})_(?P<code>0x[0-9a-f]{4,8})(?P<fatal>_fatal)?")
PROPAGATED = "_propagated"
"""Ends the reason of a fault that came from another fault of this node."""


def meaning(where: Location, reason: str) -> FaultMeaning:
    """What a fault means; one whose words a newer gpunode wrote says that it is not known."""
    found = _meaning(where.part, where.name, reason.removesuffix(PROPAGATED))
    if reason.endswith(PROPAGATED):
        words = f"{found.words}; it came from another fault of this node"
        found = FaultMeaning(words, AdvisedAction.LEAVE, "Mend the other fault.", "info")
    fill = {"gpu": where.gpu, "name": where.name}
    words, remedy = found.words, found.remedy
    for key, value in fill.items():
        words, remedy = (text.replace(f"{{{key}}}", value) for text in (words, remedy))
    return replace(found, words=words, remedy=remedy)


def _meaning(part: Part, name: str, reason: str) -> FaultMeaning:
    if found := _XID.fullmatch(reason):
        return _xid_meaning(int(found[1]), bool(found[2]), name)
    if found := _EVENT.fullmatch(reason):
        return _event_meaning(found["module"], found["code"], bool(found["fatal"]))
    if listed := PART_MEANINGS.get((part, reason)):
        return listed
    told = reason.replace("_", " ")
    if reason.startswith(DRIVER_ADVISES):
        asked = f"its driver asks for: {told.removeprefix(DRIVER_ADVISES.replace('_', ' '))}"
        return FaultMeaning(asked, AdvisedAction.DRAIN, RESET)
    if part == "fabric":
        unwell = f"a part of its NVSwitch fabric is not healthy: {told}"
        lasting = reason in MENDED_BY_NO_REBOOT
        action = AdvisedAction.CONTACT if lasting else AdvisedAction.REBOOT
        return FaultMeaning(unwell, action, FABRIC_MANAGER)
    return FaultMeaning(told, AdvisedAction.LEAVE, LOOK, "ticket", UNKNOWN_REASON)


def _event_meaning(module: str, code: str, fatal: bool) -> FaultMeaning:
    """A GPU Operational Event that has no XID: what repairs it, NVIDIA's catalogue may tell."""
    why = "what repairs it; look it up in NVIDIA's catalogue of GPU Operational Events"
    words = f"event {code} of {module.upper()}, {'fatal' if fatal else 'recoverable'}"
    if fatal:
        return FaultMeaning(
            words, AdvisedAction.DRAIN, "Drain the node; then look it up.", "page", why
        )
    return FaultMeaning(words, AdvisedAction.LEAVE, LOOK, "ticket", why)


def _xid_meaning(number: int, fatal: bool, link: str) -> FaultMeaning:
    """An XID; ``fatal`` is one of NVLink 5 whose line says that the GPU is to be reset."""
    if fatal:
        where = " on NVLink {name}" if link else ""
        words = f"XID {number}{where}, {ACTIONS['RESET_GPU'].words}"
        return FaultMeaning(words, AdvisedAction.RESET, RESET)
    code = CODES.get(number)
    if code is None:
        why = f"what XID {number} means; look it up in NVIDIA's catalogue"
        return FaultMeaning(f"XID {number}", AdvisedAction.LEAVE, LOOK, "ticket", why)
    action = CATALOGUE_ACTIONS.get(code.action, AdvisedAction.LEAVE)
    words = f"XID {number} ({code.meaning}), {code.words}"
    severity: Severity = "info" if code.notify == "none" else code.notify
    return FaultMeaning(
        words, action, ACTION_REMEDIES[action], severity, CATALOGUE_GAPS.get(code.action, "")
    )
