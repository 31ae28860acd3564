"""A fault: a part of the node that is broken, and what a person is told of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Literal, NamedTuple

from gpunode.driver.nvidia.xids import ACTIONS, CODES

Part = Literal[
    "gpu", "nvlink", "fabric", "pcie", "disk", "filesystem", "network", "thermal", "power"
]
Severity = Literal["page", "ticket", "info"]


class AdvisedAction(IntEnum):
    """What is to be done; where a node has several faults, the greatest action does for all."""

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


class Where(NamedTuple):
    """The part that is broken: ``name`` is a port, mount point, link, or place on the PCI bus."""

    gpu: str
    uuid: str
    part: Part
    name: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that lasts; ``start`` is in seconds since the epoch."""

    where: Where
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


def unused(severity: Severity, part: Part) -> Severity:
    """How urgent a fault is that no job has."""
    if part in ("thermal", "power"):
        return "info"
    return "ticket" if severity == "page" else severity


RESET = "Drain the node; then reset the GPU (`nvidia-smi --gpu-reset -i {gpu}`)."
REBOOT = "Drain the node; then reboot it."
VENDOR = "Drain the node; then have the vendor replace the GPU."
FABRIC_MANAGER = "Check the fabric manager (`nvidia-fabricmanager`)."
DISK = "Drain the node and replace the disk."
PORT = "Check cable, switch port and, for InfiniBand, the subnet manager."
CARD = "Reseat the card, or replace the riser or cable."
SERVER = "Look at the server of {name}; programs that wait go on when it answers."
COOLING = "Check airflow and cooling; lower the power limit meanwhile (`nvidia-smi -pl`)."
LOOK = "Look it up; the node may go on."

OF_ACTION = {
    AdvisedAction.LEAVE: LOOK,
    AdvisedAction.RESTART: "Restart the program.",
    AdvisedAction.DRAIN: "End the programs that use several GPUs of the node.",
    AdvisedAction.RESET: RESET,
    AdvisedAction.CONTACT: VENDOR,
    AdvisedAction.REBOOT: REBOOT,
}

OF_CATALOGUE = {
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

NOT_TOLD = {
    "WORKFLOW_NVLINK5_ERR": "what it asks for is in its line of the kernel log, which was not read",
    "CHECK_UVM": "whether the GPU has unified memory or vGPUs, which it takes a reset for",
    "UPDATE_SWFW": "which driver or firmware mends it",
    "": "what to do: the catalogue gives no action",
}
"""By the action of the catalogue, what is not known where the advice is to leave the node."""

OF_DRIVER = {
    "reset": FaultMeaning("its driver asks for: reset", AdvisedAction.RESET, RESET),
    "reboot": FaultMeaning("its driver asks for: reboot", AdvisedAction.REBOOT, REBOOT),
    "system_reboot": FaultMeaning(
        "its driver asks for: system reboot", AdvisedAction.REBOOT, REBOOT
    ),
    "bus_reset": FaultMeaning(
        "its driver asks for: bus reset",
        AdvisedAction.REBOOT,
        "Drain the node; then reset the GPU by its bus, or reboot the node.",
    ),
    "drain_and_reset": FaultMeaning(
        "its driver asks for: drain and reset", AdvisedAction.RESET, RESET
    ),
    "drain_p2p": FaultMeaning(
        "its driver asks for: drain p2p",
        AdvisedAction.DRAIN,
        OF_ACTION[AdvisedAction.DRAIN],
        "ticket",
    ),
    "reset_for_a_row": FaultMeaning(
        "its driver asks for a reset, which can wait", AdvisedAction.RESET, RESET, "ticket"
    ),
    "recover_imex_domain": FaultMeaning(
        "its driver asks for: recover imex domain",
        AdvisedAction.LEAVE,
        "Restart `nvidia-imex` on the nodes of the NVLink domain.",
        "page",
        "which nodes of the NVLink domain need nvidia-imex started again",
    ),
}
"""By what the driver advises; a newer driver's word drains the node until somebody has read it."""

MENDED_BY_NO_REBOOT = ("configuration", "partition")
"""Parts of the NVSwitch fabric for which a reboot does nothing."""

OF_PARTS: dict[tuple[Part, str], FaultMeaning] = {
    ("gpu", "no_answer"): FaultMeaning("does not answer its driver", AdvisedAction.REBOOT, REBOOT),
    ("gpu", "missing"): FaultMeaning(
        "is not listed by its driver any more", AdvisedAction.REBOOT, REBOOT
    ),
    ("gpu", "memory_lost_data"): FaultMeaning("its memory lost data", AdvisedAction.RESET, RESET),
    ("gpu", "memory_lost_data_contained"): FaultMeaning(
        "its memory lost data of one program",
        AdvisedAction.RESTART,
        "Restart the program.",
        "ticket",
    ),
    ("gpu", "row_remap_pending"): FaultMeaning(
        "a bad row of its memory is replaced at the next reset",
        AdvisedAction.RESET,
        RESET,
        "ticket",
    ),
    ("gpu", "row_remap_failed"): FaultMeaning(
        "a bad row of its memory cannot be replaced", AdvisedAction.CONTACT, VENDOR, "ticket"
    ),
    ("gpu", "sram_threshold_exceeded"): FaultMeaning(
        "SRAM errors above the threshold", AdvisedAction.CONTACT, VENDOR, "ticket"
    ),
    ("gpu", "unrepairable"): FaultMeaning(
        "memory unrepairable", AdvisedAction.CONTACT, VENDOR, "ticket"
    ),
    ("fabric", "not_joined"): FaultMeaning(
        "it has not joined the NVSwitch fabric", AdvisedAction.LEAVE, FABRIC_MANAGER
    ),
    ("nvlink", "down"): FaultMeaning(
        "NVLink {name} is down",
        AdvisedAction.LEAVE,
        "Check the fabric manager and the GPU's XIDs; drain the node and reset the GPUs.",
        "ticket",
    ),
    ("nvlink", "recovers"): FaultMeaning(
        "NVLink {name} fails and recovers again and again",
        AdvisedAction.LEAVE,
        "Have its cable, tray or GPU tested soon: such a link often fails for good within days.",
        "ticket",
    ),
    ("pcie", "degraded"): FaultMeaning(
        "the PCI Express link of {name} is slower or narrower than its slot",
        AdvisedAction.LEAVE,
        CARD,
        "ticket",
    ),
    ("pcie", "uncorrected_errors"): FaultMeaning(
        "the PCI Express link of {name} has uncorrected errors", AdvisedAction.LEAVE, CARD, "ticket"
    ),
    ("network", "down"): FaultMeaning("port {name} is down", AdvisedAction.LEAVE, PORT, "ticket"),
    ("network", "missing"): FaultMeaning(
        "port {name} is missing", AdvisedAction.LEAVE, PORT, "ticket"
    ),
    ("disk", "not_live"): FaultMeaning(
        "disk {name} does not work", AdvisedAction.LEAVE, DISK, "ticket"
    ),
    ("disk", "missing"): FaultMeaning(
        "disk {name} is missing", AdvisedAction.LEAVE, DISK, "ticket"
    ),
    ("filesystem", "readonly"): FaultMeaning(
        "{name} has become read-only",
        AdvisedAction.DRAIN,
        "Drain the node and look at the disk of {name} (`dmesg`).",
    ),
    ("filesystem", "full"): FaultMeaning(
        "{name} takes no more files",
        AdvisedAction.LEAVE,
        "Free space or inodes on {name}.",
    ),
    ("filesystem", "unanswering"): FaultMeaning(
        "{name} does not answer", AdvisedAction.LEAVE, SERVER
    ),
    ("thermal", "sw_thermal"): FaultMeaning(
        "its clocks are lowered by heat",
        AdvisedAction.LEAVE,
        COOLING,
        "ticket",
    ),
    ("thermal", "hw_thermal"): FaultMeaning(
        "its clocks are halved by heat",
        AdvisedAction.LEAVE,
        COOLING,
        "ticket",
    ),
    ("power", "hw_power_brake"): FaultMeaning(
        "its clocks are halved by the power supply",
        AdvisedAction.LEAVE,
        "Check the power supplies and the limit of the rack.",
        "ticket",
    ),
}

UNKNOWN_REASON = "what this reason asks for; a newer gpunode may know it"
_XID = re.compile(r"xid_([0-9]{1,9})(_fatal)?")
_EVENT = re.compile(r"event_(?P<module>.{1,16})_(?P<code>0x[0-9a-f]{4,8})(?P<fatal>_fatal)?")
PROPAGATED = "_propagated"
"""Ends the reason of a fault that came from another fault of this node."""


def meaning(where: Where, reason: str) -> FaultMeaning:
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
        return _of_xid(int(found[1]), bool(found[2]), name)
    if found := _EVENT.fullmatch(reason):
        return _of_event(found["module"], found["code"], bool(found["fatal"]))
    if reason.startswith("driver_advises_"):
        asked = reason.removeprefix("driver_advises_")
        words = f"its driver asks for: {asked.replace('_', ' ')}"
        return OF_DRIVER.get(asked, FaultMeaning(words, AdvisedAction.DRAIN, RESET))
    if part == "fabric" and (part, reason) not in OF_PARTS:
        words = f"a part of its NVSwitch fabric is not healthy: {reason.replace('_', ' ')}"
        lasting = reason in MENDED_BY_NO_REBOOT
        return FaultMeaning(
            words, AdvisedAction.CONTACT if lasting else AdvisedAction.REBOOT, FABRIC_MANAGER
        )
    unknown = FaultMeaning(
        reason.replace("_", " "), AdvisedAction.LEAVE, LOOK, "ticket", UNKNOWN_REASON
    )
    return OF_PARTS.get((part, reason), unknown)


def _of_event(module: str, code: str, fatal: bool) -> FaultMeaning:
    """A GPU Operational Event that has no XID: what repairs it, NVIDIA's catalogue may tell."""
    why = "what repairs it; look it up in NVIDIA's catalogue of GPU Operational Events"
    words = f"event {code} of {module.upper()}, {'fatal' if fatal else 'recoverable'}"
    if fatal:
        return FaultMeaning(
            words, AdvisedAction.DRAIN, "Drain the node; then look it up.", "page", why
        )
    return FaultMeaning(words, AdvisedAction.LEAVE, LOOK, "ticket", why)


def _of_xid(number: int, fatal: bool, link: str) -> FaultMeaning:
    """An XID; ``fatal`` is one of NVLink 5 whose line says that the GPU is to be reset."""
    if fatal:
        where = " on NVLink {name}" if link else ""
        words = f"XID {number}{where}, {ACTIONS['RESET_GPU'].words}"
        return FaultMeaning(words, AdvisedAction.RESET, RESET)
    code = CODES.get(number)
    if code is None:
        why = f"what XID {number} means; look it up in NVIDIA's catalogue"
        return FaultMeaning(f"XID {number}", AdvisedAction.LEAVE, LOOK, "ticket", why)
    action = OF_CATALOGUE.get(code.action, AdvisedAction.LEAVE)
    words = f"XID {number} ({code.meaning}), {code.words}"
    severity: Severity = "info" if code.notify == "none" else code.notify
    return FaultMeaning(words, action, OF_ACTION[action], severity, NOT_TOLD.get(code.action, ""))
