"""What alerts and runbooks advise after an XID is what NVIDIA's catalogue asks for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from alerts.generate import RUNBOOKS, runbooks
from alerts.recording.faults import GPU_FAULTS, LINK_LOST, OF_A_RESET, PEER_LOST
from alerts.settings import XIDS_OF_APPLICATIONS, XIDS_OF_HARDWARE, XIDS_TO_LOOK_INTO, Setting
from gpunode.driver.nvidia.xids import ACTIONS, CODES, OF_HARDWARE, OF_NVLINK5

TABLES = [RUNBOOKS / name for name in ("GpuUnhealthy.md", "ko/GpuUnhealthy.md")]
ROW = re.compile(r"^\| (\d+) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)
PROSE = re.compile(r"<!-- generated.*?<!-- end -->", re.DOTALL)
NAMED = {74: "NVLINK_ERROR", 145: "NVLINK_RLW_ERROR", 149: "NVLINK_NETIR_ERROR"}
"""XIDs that the prose of runbooks names, and the catalogue's names of what it says they are."""

OF_LINKS = {74, *OF_NVLINK5}
LOGGED = "[  12.3] NVRM: Xid (PCI:0000:74:00): {}, pid=149150, name=python"
URGENT: dict[Setting, set[str]] = {
    XIDS_OF_HARDWARE: {"page"},
    XIDS_TO_LOOK_INTO: {"ticket"},
    XIDS_OF_APPLICATIONS: {"info"},
}


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
def test_the_runbook_has_every_xid_that_can_page(path: Path) -> None:
    rows = {int(xid): rest for xid, *rest in ROW.findall(path.read_text())}
    assert rows.keys() == {*OF_HARDWARE, *OF_NVLINK5}
    for number, (meaning, step, again) in rows.items():
        code = CODES[number]
        assert meaning == code.meaning
        assert ("A" in step) == ("reset" in code.words or number in OF_NVLINK5)
        assert (step == "B") == (code.words == "reboot the node")
        assert (again == "C") == (code.then == "CONTACT_SUPPORT")


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.parent.name)
def test_the_runbook_has_a_step_wherever_it_sends_somebody(path: Path) -> None:
    text = path.read_text()
    assert {"- **A. ", "- **B. ", "- **C. "} <= set(re.findall(r"^- \*\*[A-Z]\. ", text, re.M))
    assert re.search(r"^5\. NVLink", text, re.M)


def test_runbooks_name_no_other_xids_than_these() -> None:
    """Others stand in tables that derive from the catalogue."""
    prose = [PROSE.sub("", (RUNBOOKS / path).read_text()) for path, _ in runbooks()]
    assert {int(xid) for text in prose for xid in re.findall(r"\bXID (\d+)", text)} == set(NAMED)
    assert {number: CODES[number].name for number in NAMED} == NAMED
    assert (LINK_LOST, PEER_LOST) == (149, 145)


def test_what_runbooks_look_for_in_the_log_are_the_xids_of_links() -> None:
    texts = [(RUNBOOKS / path).read_text() for path, _ in runbooks()]
    asked = [
        one for text in texts for one in re.findall(r'grep -E "(NVRM: Xid[^"]*\d[^"]*)"', text)
    ]
    assert asked
    for pattern in asked:
        found = {number for number in CODES if re.search(pattern, LOGGED.format(number))}
        assert set(OF_NVLINK5) <= found <= OF_LINKS, pattern


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
