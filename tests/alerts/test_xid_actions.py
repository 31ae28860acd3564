"""What alerts and runbooks advise after an XID is what NVIDIA's catalogue asks for."""

from __future__ import annotations

import re

from alerts.document import RUNBOOKS
from gpunode.driver.nvidia.xids import ACTIONS, CODES

PATHS = sorted(str(path.relative_to(RUNBOOKS)) for path in RUNBOOKS.rglob("*.md"))
NAMED = {74: "NVLINK_ERROR", 145: "NVLINK_RLW_ERROR", 149: "NVLINK_NETIR_ERROR"}
"""XIDs that the prose of runbooks names, and the catalogue's names of what it says they are."""


def test_runbooks_name_no_other_xids_than_these() -> None:
    """The others are in docs/xids.md, which derives from the catalogue."""
    prose = [(RUNBOOKS / path).read_text() for path in PATHS]
    assert {int(xid) for text in prose for xid in re.findall(r"\bXID (\d+)", text)} == set(NAMED)
    assert {number: CODES[number].name for number in NAMED} == NAMED
    assert {CODES[number].notify for number in NAMED} <= {"page", "ticket"}


def test_a_runbook_makes_no_fault_of_hardware_of_any_xid() -> None:
    """Most XIDs are those of programs: a step for any XID looks it up, or follows GpuUnhealthy."""
    pattern = r"^ *(?:- |\| )(?:An XID|an XID|XID[,가])[^\n]*(?:\n     [^\n]*)*"
    for path in PATHS:
        for step in re.findall(pattern, (RUNBOOKS / path).read_text(), re.M):
            assert "docs/xids.md" in step, f"{path}: {step}"


def test_every_action_is_one_that_somebody_can_do() -> None:
    assert {code.action for code in CODES.values()} <= ACTIONS.keys()
