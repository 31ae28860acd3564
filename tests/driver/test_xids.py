"""XIDs: the table is NVIDIA's catalogue, and the lines of NVLink 5 are decoded by it."""

from __future__ import annotations

import json
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.driver.nvidia import xids
from gpunode.driver.nvidia.xids import (
    ACTIONS,
    CODES,
    RULES,
    nvlink_error,
    recovery_action,
    xids_by_urgency,
)
from tests.cases import with_each
from tests.corpus.families import load
from tests.corpus.xid_table import TABLE, code, sheet, table
from tests.corpus.xid_workbook import workbook

FACTS = load("xids")


def test_the_table_is_made_of_the_workbook() -> None:
    made = table(workbook(FACTS), xids.DATE)
    assert made == TABLE.read_text(), "run make xids, or retype what changed into xids.yaml"
    assert FACTS["catalogue"]["source"] == xids.SOURCE


def test_a_workbook_of_another_layout_is_refused() -> None:
    book = workbook(FACTS)
    with pytest.raises(ValueError, match="no sheet 'Codes', only Xids"):
        list(sheet(book, "Codes"))
    with pytest.raises(ValueError, match="0 columns are headed"):
        code({"Code": "1", "Mnemonic": "X"})


def test_each_action_of_the_catalogue_has_words() -> None:
    assert {code.action for code in CODES.values()} <= ACTIONS.keys()
    assert {rule.action for rule in RULES} <= {*ACTIONS, *xids.WORST_FIRST}
    assert {rule.action for rule in RULES} == set(xids.WORST_FIRST)
    listed = {each["name"] for each in FACTS["actions"]} - {"RESET_FABRIC"}
    assert ACTIONS.keys() - {""} == listed


@with_each(
    [
        *((xid, "RESET_GPU", "page") for xid in (46, 62, 64, 95, 109, 110, 119, 120, 136, 140)),
        *((xid, "RESET_GPU", "page") for xid in (143, 155, 156, 158)),
        *((79, "RESTART_BM", "page"), (48, "WORKFLOW_XID_48", "page")),
        *((xid, "RESTART_APP", "info") for xid in (8, 13, 31, 69, 70, 71, 72, 75, 76, 77, 80, 94)),
        *((xid, "IGNORE", "none") for xid in (43, 63, 92, 108, 121, 137, 141, 157)),
        *((xid, "WORKFLOW_NVLINK5_ERR", "ticket") for xid in range(144, 151)),
    ]
)
def test_an_xid_asks_for_what_the_catalogue_says(xid: int, action: str, notify: str) -> None:
    assert (CODES[xid].action, CODES[xid].notify) == (action, notify)
    assert xid in xids_by_urgency(CODES[xid].notify)


def line_of(rule: dict[str, object], bits: str) -> str:
    """What the driver writes of an error with these bits in its first register."""
    status = rule["status"]
    assert isinstance(status, list)
    first, second = int(bits.replace("-", "0"), 2), status[0] if status else 0xABC
    unit = str(rule["unit"]).rpartition("/")[2].replace(" ", "_")
    severity = "Fatal" if rule["fatal"] else "Nonfatal"
    return f"{unit:15} {severity:8} XC0 i0 Link 03 ({first:#010x} {second:#010x} 0x00000000)"


@with_each(product(json.loads(TABLE.read_text())["nvlink5"], ["before_r575", "from_r575"]))
def test_each_rule_is_found_by_its_registers(rule: dict[str, object], layout: str) -> None:
    xid, bits = rule["xid"], str(rule[layout])
    assert isinstance(xid, int)
    found = nvlink_error(xid, line_of(rule, bits))
    assert found is not None
    assert (found.link, found.severity == "fatal") == (3, rule["fatal"])
    assert found.action == str(rule["action"]).lower()


@with_each(
    [
        ("0x00000082 0x00000041", "Fatal", "reset_gpu"),  # two errors at once: the worst
        ("0x00000082 0x00000101", "Nonfatal", "xid_154_eval"),
        ("0x00000082 0x00000001", "Fatal", "unknown"),  # no rule of that unit is fatal by bit 0
        ("0x00000082 0x00001000", "Nonfatal", "unknown"),
        ("0x000004c2 0x00000001", "Fatal", "reset_gpu"),  # promoted to fatal by bit 10
    ]
)
def test_a_line_asks_for_the_worst_of_its_errors(
    registers: str, severity: str, action: str
) -> None:
    found = nvlink_error(145, f"RLW_REMAP {severity} XC1 i0 Link -1 ({registers} 0x00000000)")
    assert found is not None
    assert (found.link, found.action) == (-1, action)


@with_each(
    [
        ("NETIR_LINK_EVT, Fatal, XC0 i0 Link 02 (0x000001c6 0x00000000)", 2),
        ("pid=1, name=a, NETIR Fatal, NETIR_LINK_EVT Fatal XC0 i0 Link 17 (0x000001c6 0x0)", 17),
        ("pid='<unknown>', name=<unknown>, NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x1c6 0x0)", 9),
        ("NETIR_LINK_EVT Fatal XC0 i0 Link 05", 5),
        ("pid=1, name=train, Ch 00000008", None),
        ("", None),
    ]
)
def test_the_link_is_read_around_names_of_programs(text: str, link: int | None) -> None:
    found = nvlink_error(149, text)
    assert (found and found.link) == link


@given(st.text(max_size=300), st.sampled_from(xids.NVLINK5_XIDS))
def test_any_text_is_read_or_refused(text: str, xid: int) -> None:
    for found in (nvlink_error(xid, text), nvlink_error(xid, f"NETIR Fatal XC0 i0 Link {text}")):
        assert found is None or -99 <= found.link <= 99
    assert recovery_action(text) is None or recovery_action(text) in xids.RECOVERY_ACTIONS.values()


@with_each(
    [
        ("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "reboot"),
        ("GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "none"),
        ("GPU recovery action changed from 0x0 (None) to 0x5 (Anything)", "recover_imex_domain"),
        ("GPU recovery action changed from 0x0 (None) to 0x9 (Anything)", None),
        ("GPU recovery action changed", None),
    ]
)
def test_xid_154_says_what_the_driver_advises(text: str, advised: str | None) -> None:
    assert recovery_action(text) == advised
