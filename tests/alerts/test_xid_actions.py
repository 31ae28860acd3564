"""What alerts and runbooks advise after an XID is what NVIDIA's catalogue asks for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from alerts.generate import RUNBOOKS, runbooks
from alerts.recording.faults import GPU_FAULTS, OF_A_RESET
from alerts.settings import XIDS_OF_APPLICATIONS, XIDS_OF_HARDWARE, XIDS_TO_LOOK_INTO, Setting
from gpunode.driver.nvidia.xids import ACTIONS, CODES

TABLES = [RUNBOOKS / name for name in ("GpuUnhealthy.md", "ko/GpuUnhealthy.md")]
ROW = re.compile(r"^ *\| `XID ([^`]*)` \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)
PROSE = re.compile(r"<!-- generated.*?<!-- end -->", re.DOTALL)
STEP_OF = {
    "reset the GPU": "A",
    "reboot the node": "B",
    "restart the virtual machine": ("restart it", "가상 머신 재시작"),
}
"""Where the runbook of GpuUnhealthy goes on from an action."""

URGENT: dict[Setting, set[str]] = {
    XIDS_OF_HARDWARE: {"page"},
    XIDS_TO_LOOK_INTO: {"ticket"},
    XIDS_OF_APPLICATIONS: {"info"},
}


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\b\d+\b", text)]


@pytest.mark.parametrize("setting", URGENT, ids=lambda one: one.name)
def test_the_urgency_of_an_xid_is_that_of_its_action(setting: Setting) -> None:
    listed = [int(number) for number in str(setting.value).split("|")]
    assert {CODES[number].notify for number in listed} == URGENT[setting]


@pytest.mark.parametrize("setting", [XIDS_OF_HARDWARE, XIDS_TO_LOOK_INTO], ids=lambda one: one.name)
def test_the_reason_of_an_alert_has_the_words_of_the_catalogue(setting: Setting) -> None:
    """The last pattern that matches gives the words, as label_replace() goes on."""
    expressions = [one for one in (*GPU_FAULTS, *OF_A_RESET) if str(setting) in one]
    assert expressions
    for expression in expressions:
        replaced = re.findall(r'"reason", "XID \$1: ([^"]*)", "xid", "\(([^"]*)\)"', expression)
        for number in map(int, str(setting.value).split("|")):
            said = [words for words, numbers in replaced if re.fullmatch(numbers, str(number))]
            assert said[-1] == CODES[number].words


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.parent.name)
def test_the_runbook_goes_on_as_the_catalogue_asks(path: Path) -> None:
    rows = ROW.findall(path.read_text())
    by_action = [(asked[3:], such_as, step) for asked, such_as, step in rows if asked[:2] == "…:"]
    assert {asked for asked, _, _ in by_action} == STEP_OF.keys()
    for asked, such_as, step in by_action:
        wanted = STEP_OF[asked]
        assert step.startswith(wanted) if isinstance(wanted, str) else step in wanted
        assert {CODES[number].words for number in numbers(such_as)} == {asked}


@pytest.mark.parametrize("path", [path for path, _ in runbooks()])
def test_an_xid_in_a_runbook_is_in_the_catalogue_and_takes_somebody(path: str) -> None:
    """Who follows a runbook to an XID has to do something about it."""
    prose = PROSE.sub("", (RUNBOOKS / path).read_text())
    for number in map(int, re.findall(r"\bXID (\d+)", prose)):
        assert CODES[number].notify in ("page", "ticket"), f"XID {number}: {CODES[number].words}"


@pytest.mark.parametrize("path", [path for path, _ in runbooks()])
def test_a_runbook_makes_no_fault_of_hardware_of_any_xid(path: str) -> None:
    """Most XIDs are those of programs: a step for any XID looks it up, or follows GpuUnhealthy."""
    prose = PROSE.sub("", (RUNBOOKS / path).read_text())
    for step in re.findall(
        r"^ *(?:- |\| )(?:An XID|an XID|XID[,가])[^\n]*(?:\n     [^\n]*)*", prose, re.M
    ):
        assert "docs/xids.md" in step, step


def test_every_action_is_one_that_somebody_can_do() -> None:
    assert {code.action for code in CODES.values()} <= ACTIONS.keys()
