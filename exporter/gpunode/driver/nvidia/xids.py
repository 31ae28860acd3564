"""XID errors: what each is and what NVIDIA's catalogue asks for, from ``xids.json``.

https://docs.nvidia.com/deploy/xid-errors/; ``tests/corpus/xid_table.py`` makes the file from the
catalogue. No action differs by model: what differs is whether a model reports an XID.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from gpunode.unread import Unknown

Notify = Literal["page", "ticket", "info", "none"]
"""How urgent an action is for those who look after the hardware: ``page`` if the GPU cannot be used
until it is done, ``info`` if a program failed and the GPU goes on."""


@dataclass(frozen=True, slots=True)
class Action:
    """An immediate action of the catalogue, in words, and who needs to hear of it."""

    words: str
    notify: Notify


ACTIONS: dict[str, Action] = {
    "RESET_GPU": Action("reset the GPU", "page"),
    "RESTART_BM": Action("reboot the node", "page"),
    "RESTART_VM": Action("restart the virtual machine", "page"),
    "WORKFLOW_XID_48": Action("reset the GPU", "page"),
    "WORKFLOW_NVLINK_ERR": Action("check its NVLinks and reset the GPU", "page"),
    "WORKFLOW_NVLINK5_ERR": Action("look up its line of the kernel log", "ticket"),
    "CHECK_MECHANICALS": Action("check its power cable and its seat", "ticket"),
    "CHECK_UVM": Action("reset the GPU if it has unified memory or vGPUs", "ticket"),
    "CONTACT_SUPPORT": Action("ask the vendor", "ticket"),
    "UPDATE_SWFW": Action("update driver and firmware", "ticket"),
    "": Action("look it up in NVIDIA's catalogue", "ticket"),
    "RESTART_APP": Action("restart the program", "info"),
    "WORKFLOW_XID_45": Action("restart the program", "info"),
    "XID_154_EVAL": Action("do what the driver advises, or restart the program", "info"),
    "XID_154": Action("do what the driver advises", "none"),
    "IGNORE": Action("nothing", "none"),
}
"""The actions of the catalogue (sheet Guidance Classes); ``""`` for an XID that it gives none."""


@dataclass(frozen=True, slots=True)
class Code:
    """An XID. ``then`` is what to do if it comes again; ``models`` are those that report it."""

    number: int
    name: str
    meaning: str
    action: str
    then: str
    models: tuple[str, ...]

    @property
    def notify(self) -> Notify:
        """How urgent the action is."""
        return ACTIONS[self.action].notify

    @property
    def words(self) -> str:
        """The action in words."""
        return ACTIONS[self.action].words

    @property
    def summary(self) -> str:
        """What it is and what to do, such as ``109: Context Switch Timeout Error, reset the GPU``.

        Long meanings are cut at the dash.
        """
        return f"{self.number}: {self.meaning.partition(' -- ')[0]}, {self.words}"


@dataclass(frozen=True, slots=True)
class LinkRule:
    """What an error of an NVLink 5 asks for, by the first two registers in its line.

    A pattern has a character for each bit, from bit 31 to bit 0; ``-`` stands for either. The
    layout of the first register changed with the driver's branch R575. Without ``status``, the
    second register does not matter.
    """

    xid: int
    unit: str
    layouts: tuple[re.Pattern[str], re.Pattern[str]]
    status: tuple[int, ...]
    action: str
    fatal: bool

    def matches(self, first: int, second: int) -> bool:
        """Whether the registers are those of this rule: exactly, or by one of their bits."""
        if not any(layout.fullmatch(f"{first:032b}") for layout in self.layouts):
            return False
        return not self.status or any(
            second == one or (self.is_bit and second & one) for one in self.status
        )

    @property
    def is_bit(self) -> bool:
        """Whether the status is a bit among others; the status of XID 149 and 150 is a number."""
        return self.xid < 149


def _read_catalogue() -> Mapping[str, Any]:
    text = files("gpunode.driver.nvidia").joinpath("xids.json").read_text("utf-8")
    found: Mapping[str, Any] = json.loads(text)
    return found


def _pattern(bits: str) -> re.Pattern[str]:
    return re.compile(bits.replace("-", "."))


_TABLE = _read_catalogue()

SOURCE = str(_TABLE["source"])
DATE = str(_TABLE["date"])
"""When the catalogue was read."""

MODELS = ("A100", "H100", "B100", "GB200")
"""The models that the catalogue has a column for; each stands for its generation."""

BEYOND = {
    173: ("C2C_FATAL_LINK_FAILURE", "C2C link failed"),
    174: ("ROBUST_CHANNEL_RESETCHANNEL_KILL_PROCESS_SILENT", "A channel's process was ended"),
    175: ("MEMORY_SUBSYSTEM_ERROR", "Memory subsystem error"),
    176: ("PCIE_CORRECTABLE_ERROR_FAULT", "Too many correctable errors of PCIe"),
    185: ("SPARING_EVENT", "State of spare memory changed"),
}
"""What drivers report and the catalogue has not: R595 (``nverror.h``) and, the last one, R620.
https://github.com/NVIDIA/open-gpu-kernel-modules/blob/595.45.04/src/common/sdk/nvidia/inc/nverror.h
https://docs.nvidia.com/deploy/gpu-operational-events/latest/release-notes.html"""

CODES: dict[int, Code] = {
    each["xid"]: Code(
        each["xid"],
        each["name"],
        each["meaning"],
        each["action"],
        each["then"],
        tuple(each["models"]),
    )
    for each in _TABLE["xids"]
}
for _number, (_name, _meaning) in BEYOND.items():
    CODES.setdefault(_number, Code(_number, _name, _meaning, "", "", MODELS))

RULES: tuple[LinkRule, ...] = tuple(
    LinkRule(
        each["xid"],
        each["unit"],
        (_pattern(each["before_r575"]), _pattern(each["from_r575"])),
        tuple(each["status"]),
        each["action"],
        each["fatal"],
    )
    for each in _TABLE["nvlink5"]
)


def xids_by_urgency(notify: Notify) -> tuple[int, ...]:
    """The XIDs whose action has this urgency, in order."""
    return tuple(number for number, code in CODES.items() if code.notify == notify)


HARDWARE_XIDS = xids_by_urgency("page")
"""The GPU cannot be used until it is reset, or its node restarted."""

NVLINK5_XIDS = tuple(sorted({rule.xid for rule in RULES}))
"""XIDs whose remedy is in their lines of the kernel log, not in the number."""

RECOVERY_ACTIONS = {
    0: "none",
    1: "reset",
    2: "reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "recover_imex_domain",
    6: "bus_reset",
    7: "system_reboot",
}
"""What the driver advises (NVML field 230), also in the line of XID 154.
https://pypi.org/project/nvidia-ml-py/ (NVML_GPU_RECOVERY_ACTION_*)"""

UNREAD_XID = Unknown(
    "xid",
    "an XID that gpunode's copy of NVIDIA's catalogue lacks; look it up in a newer one",
)

UNKNOWN = "unknown"
"""An action that the catalogue does not tell."""


@dataclass(frozen=True, slots=True)
class NvlinkError:
    """An error of an NVLink 5.

    ``link`` is -1 for the whole GPU; ``action`` is one of the catalogue's in lower case, or
    ``UNKNOWN``. ``said`` is the part of the line that the driver wrote about the link.
    """

    severity: Literal["fatal", "nonfatal"]
    link: int
    action: str
    said: str


# XID, [pid=P, name=N, ]UNIT Fatal|Nonfatal XC0 i0 Link 03 (INTRINFO STATUS DEBUG …), as on the
# catalogue's page (sheet Guidance Classes, WORKFLOW_NVLINK5_ERR). N is up to 15 characters.
NVLINK_LINE = re.compile(
    r"(?:pid=[^,]{1,20}, (?:name=.{0,15}, )?)?"
    r"(?P<unit>[A-Za-z][A-Za-z0-9_/]{0,40}),? +(?P<severity>Fatal|Non-?[Ff]atal),? +"
    r"XC[0-9],? +i[0-9],? +Link +(?P<link>-?[0-9]{1,2})"
    r"(?:,? +\((?P<first>0x[0-9a-fA-F]{1,8}),? +(?P<second>0x[0-9a-fA-F]{1,8})\b)?"
)
WORST_FIRST = ("RESET_GPU", "XID_154_EVAL", "IGNORE")


def nvlink_error(xid: int, text: str) -> NvlinkError | None:
    """The error in what a line says after ``XID, ``; None if it has another form.

    A line may have several errors: the worst counts.
    """
    line = NVLINK_LINE.match(text)
    if line is None:
        return None
    fatal = line["severity"] == "Fatal"
    found = set(_actions(xid, fatal, line["first"], line["second"]))
    action = next((action for action in WORST_FIRST if action in found), UNKNOWN)
    severity: Literal["fatal", "nonfatal"] = "fatal" if fatal else "nonfatal"
    return NvlinkError(severity, int(line["link"]), action.lower(), text[line.start("unit") :])


def _actions(xid: int, fatal: bool, first: str | None, second: str | None) -> Iterator[str]:
    if first is not None and second is not None:
        registers = int(first, 16), int(second, 16)
        for rule in RULES:
            if rule.xid == xid and rule.fatal == fatal and rule.matches(*registers):
                yield rule.action


# GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)
RECOVERY_LINE = re.compile(
    r"GPU recovery action changed from 0x[0-9a-fA-F]{1,8} \([^)]{0,40}\) "
    r"to 0x(?P<number>[0-9a-fA-F]{1,8})\b"
)


def recovery_action(text: str) -> str | None:
    """What the driver advises by a line of XID 154, one of ``RECOVERY_ACTIONS``, else None."""
    line = RECOVERY_LINE.search(text[:200])
    return RECOVERY_ACTIONS.get(int(line["number"], 16)) if line else None
