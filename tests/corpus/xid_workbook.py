"""The workbook that NVIDIA publishes, made of what the corpus has of it, for tests."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from typing import Any
from xml.sax.saxutils import escape

from gpunode.driver.nvidia.xids import MODELS

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006/relationships"

CATALOGUE = (
    *("Type \n(XID)", "Code", "Mnemonic", "Description"),
    *(f"Applies to {model}" for model in MODELS),
    "Resolution Bucket \n(Immediate Action)",
    "Resolution Bucket \n(Investigatory Action)",
    *("Xid 154 linkage", "Trigger Conditions"),
)
DECODE = (
    "Xid",
    "Subcode V1(<R575)/V2(>=R575)\nV1(<R575): IntrInfo[9:5]\nV2(>=R575):IntrInfo[6:0]",
    "(V1(<R575)) IntrInfo decode for Data Center Recovery Action \n"
    'IntrInfo (binary; "-" user decode)',
    "(V2(>=R575)) IntrInfo decode for Data Center Recovery Action\n"
    'IntrInfo (binary; "-" user decode)',
    "Error Status (hex)",
    "Resolution Bucket \n(Data Center Recovery Action)",
    "(V1(<R575)) Decode for action 2",
    "(V2(>=R575)) Decode for action 2",
    "Action 2",
    "Resolution Bucket \n(Investigatory Action)",
    "Severity (for items with '*' please see Customer User Guide tab)",
    "HW/SW",
    "Local/Remote (for items with '*' please see Customer User Guide tab)",
)
"""The headings of the two sheets, as they stand there."""


def workbook(facts: Any) -> zipfile.ZipFile:
    """Both sheets, with ``xids.yaml`` in them."""
    codes = [
        (
            *("XID", x["code"], x["mnemonic"], x["meaning"]),
            *("YES" if model in x["applies_to"] else None for model in MODELS),
            *(x["immediate_action"], x["investigatory_action"]),
        )
        for x in facts["xids"]
        if x["source"] == facts["catalogue"]["source"]
    ]
    rules = [
        (
            *(r["xid"], r["unit"], r["intrinfo_before_r575"], r["intrinfo_from_r575"]),
            *(r["error_status"], r["immediate_action"]),
            r.get("intrinfo_if_fatal_before_r575"),
            r.get("intrinfo_if_fatal_from_r575"),
            *(r.get("action_if_fatal"), r["investigatory_action"], r["severity"]),
        )
        for r in facts["nvlink5"]["rules"]
    ]
    texts: list[str] = []
    written = zipfile.ZipFile(io.BytesIO(), "w")
    listed, related = "", ""
    for number, (title, rows) in enumerate(
        {"Xids": [CATALOGUE, *codes], "Xid 144-150 Decode": [DECODE, *rules]}.items(), 1
    ):
        listed += f'<sheet name="{title}" sheetId="{number}" r:id="rId{number}"/>'
        related += f'<Relationship Id="rId{number}" Target="worksheets/sheet{number}.xml"/>'
        cells = "".join(_row(at, row, texts) for at, row in enumerate(rows, 1))
        sheet = f'<worksheet xmlns="{MAIN}"><sheetData>{cells}</sheetData></worksheet>'
        written.writestr(f"xl/worksheets/sheet{number}.xml", sheet)
    written.writestr(
        "xl/workbook.xml",
        f'<workbook xmlns="{MAIN}" xmlns:r="{OFFICE}"><sheets>{listed}</sheets></workbook>',
    )
    written.writestr(
        "xl/_rels/workbook.xml.rels",
        f'<Relationships xmlns="{PACKAGE}">{related}</Relationships>',
    )
    strings = "".join(f"<si><t>{escape(text)}</t></si>" for text in texts)
    written.writestr("xl/sharedStrings.xml", f'<sst xmlns="{MAIN}">{strings}</sst>')
    return written


def _row(at: int, row: Iterable[object], texts: list[str]) -> str:
    """A row as Excel writes it: empty cells are left out, texts stand elsewhere."""
    cells = ""
    for column, value in zip("ABCDEFGHIJKLM", row, strict=False):
        if isinstance(value, int):
            cells += f'<c r="{column}{at}"><v>{value}</v></c>'
        elif value is not None:
            cells += f'<c r="{column}{at}" t="s"><v>{len(texts)}</v></c>'
            texts.append(str(value))
    return f'<row r="{at}">{cells}</row>'
