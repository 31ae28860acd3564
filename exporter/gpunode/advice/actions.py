"""Which action a fault asks for: by NVIDIA's catalogue, the driver, the rules' reasons."""

from __future__ import annotations

import re
from enum import IntEnum

from gpunode.driver.nvidia.xids import ACTIONS, CODES
from gpunode.gpu.health import MEMORY_FAULTS


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

OF_CATALOGUE: dict[str, AdvisedAction] = {
    "RESET_GPU": AdvisedAction.RESET,
    "RESTART_BM": AdvisedAction.REBOOT,
    "RESTART_VM": AdvisedAction.REBOOT,
    "WORKFLOW_XID_48": AdvisedAction.RESET,
    "WORKFLOW_NVLINK_ERR": AdvisedAction.RESET,
    "WORKFLOW_NVLINK5_ERR": AdvisedAction.LEAVE,
    "CHECK_MECHANICALS": AdvisedAction.CONTACT,
    "CHECK_UVM": AdvisedAction.LEAVE,
    "CONTACT_SUPPORT": AdvisedAction.CONTACT,
    "UPDATE_SWFW": AdvisedAction.LEAVE,
    "": AdvisedAction.LEAVE,
    "RESTART_APP": AdvisedAction.RESTART,
    "WORKFLOW_XID_45": AdvisedAction.RESTART,
    "XID_154_EVAL": AdvisedAction.RESTART,
    "XID_154": AdvisedAction.LEAVE,
    "IGNORE": AdvisedAction.LEAVE,
}
"""By the action of the catalogue, as ``driver/nvidia/xids.py`` reads it."""

OF_DRIVER: dict[str, AdvisedAction] = {
    "none": AdvisedAction.LEAVE,
    "reset": AdvisedAction.RESET,
    "reboot": AdvisedAction.REBOOT,
    "drain_p2p": AdvisedAction.DRAIN,
    "drain_and_reset": AdvisedAction.RESET,
    "recover_imex_domain": AdvisedAction.LEAVE,
    "bus_reset": AdvisedAction.REBOOT,
    "system_reboot": AdvisedAction.REBOOT,
}
"""By what the driver advises; a newer driver's word drains the node until somebody has read it."""

OF_ALERTS: dict[str, AdvisedAction] = {
    "HardwareMissing": AdvisedAction.REBOOT,
    "NodeFilesystemFailing": AdvisedAction.DRAIN,
}
"""By the alerts about whole nodes after which no job can run there, where they page."""

MENDED_BY_NO_RESET = ("configuration", "partition")
"""Parts of the NVSwitch fabric for which a reboot does nothing."""

NOT_TOLD: dict[str, str] = {
    "WORKFLOW_NVLINK5_ERR": "what it asks for is in its line of the kernel log, which was not read",
    "CHECK_UVM": "whether the GPU has unified memory or vGPUs, which it takes a reset for",
    "UPDATE_SWFW": "which driver or firmware mends it",
    "": "what to do: the catalogue gives no action",
}
"""By the action of the catalogue, what is not known where the advice is to leave the node."""

_XID = re.compile(r"XID ([0-9]{1,9})\b")
_DRIVER = re.compile(r"driver advises (\w+)")
_FABRIC = re.compile(r"NVSwitch fabric: (\w+)")
_REASONS: dict[str, AdvisedAction] = {
    "does not answer": AdvisedAction.REBOOT,
    "row remap pending": AdvisedAction.RESET,
    "row remap failed": AdvisedAction.CONTACT,
    **dict.fromkeys(MEMORY_FAULTS.values(), AdvisedAction.CONTACT),
}
UNKNOWN_REASON = "what this reason asks for; a newer gpunode may know it"


def of_reason(reason: str, level: int) -> tuple[AdvisedAction, str]:
    """What a reason of ``gpu:gpunode_gpu_fault:level`` asks for, and what is not known about it.

    ``level`` is 2 if it is worth waking somebody, 1 for a ticket, 0 if it is of a program.
    """
    if found := _XID.match(reason):
        return _of_xid(int(found[1]), reason, level)
    if found := _DRIVER.fullmatch(reason):
        if found[1] == "recover_imex_domain":
            return (
                AdvisedAction.LEAVE,
                "which nodes of the NVLink domain need nvidia-imex started again",
            )
        return OF_DRIVER.get(found[1], AdvisedAction.DRAIN), ""
    if found := _FABRIC.fullmatch(reason):
        return (
            AdvisedAction.CONTACT if found[1] in MENDED_BY_NO_RESET else AdvisedAction.REBOOT
        ), ""
    if reason == "memory lost data":  # a contained error ended one program, and is a ticket
        return (AdvisedAction.RESET if level > 1 else AdvisedAction.RESTART), ""
    if reason in _REASONS:
        return _REASONS[reason], ""
    return AdvisedAction.LEAVE, UNKNOWN_REASON


def _of_xid(number: int, reason: str, level: int) -> tuple[AdvisedAction, str]:
    """An XID: by its line where that says more than its number, as of an NVLink 5."""
    if level > 1 and reason.endswith(f": {ACTIONS['RESET_GPU'].words}"):
        return AdvisedAction.RESET, ""
    code = CODES.get(number)
    if code is None:
        return AdvisedAction.LEAVE, f"what XID {number} means; look it up in NVIDIA's catalogue"
    return OF_CATALOGUE[code.action], NOT_TOLD.get(code.action, "")
