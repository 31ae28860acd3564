"""Writes the table of XIDs that gpunode carries, from NVIDIA's catalogue: ``make xids``.

Download ``Xid-Catalog.xlsx`` from the page below, then ``make xids CATALOGUE=Xid-Catalog.xlsx``.
What changed shows in the diff of ``xids.json``; retype it into ``xids.yaml`` here, because a test
compares the two. An action that ``driver/nvidia/xids.py`` has no words for is refused there.
"""

from __future__ import annotations

import datetime
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gpunode.driver.nvidia.xids import MODELS

PAGE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
TABLE = Path(__file__).parents[2] / "exporter/gpunode/driver/nvidia/xids.json"

SPREADSHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
OLDER, NEWER = "(V1(<R575))", "(V2(>=R575))"
"""Headings of the layouts of the registers, which changed with the driver's branch R575."""

Row = dict[str, str]


def sheet(workbook: zipfile.ZipFile, title: str) -> Iterator[Row]:
    """The rows of a sheet by the headings of its columns, in which each space is one blank.

    Raises ``ValueError`` if there is no such sheet.
    """
    listed = ElementTree.fromstring(workbook.read("xl/workbook.xml"))
    of = {each.get("name", ""): each.get(RELATION) for each in listed.iter(f"{SPREADSHEET}sheet")}
    if title not in of:
        raise ValueError(f"the workbook has no sheet {title!r}, only {', '.join(of)}")
    relations = ElementTree.fromstring(workbook.read("xl/_rels/workbook.xml.rels"))
    target = next(each.get("Target", "") for each in relations if each.get("Id") == of[title])
    texts = [
        "".join(part.text or "" for part in each.iter(f"{SPREADSHEET}t"))
        for each in ElementTree.fromstring(workbook.read("xl/sharedStrings.xml"))
    ]
    root = ElementTree.fromstring(workbook.read(f"xl/{target.removeprefix('/xl/')}"))
    headings: Row = {}
    for row in root.iter(f"{SPREADSHEET}row"):
        cells = {}
        for cell in row.iter(f"{SPREADSHEET}c"):
            value = cell.findtext(f"{SPREADSHEET}v", "")
            text = texts[int(value)] if cell.get("t") == "s" else value
            column = re.sub(r"\d", "", cell.get("r", ""))  # empty cells are left out
            cells[column] = " ".join(text.split())
        if headings:
            yield {heading: cells.get(column, "") for column, heading in headings.items()}
        else:
            headings = cells


def column(row: Row, *words: str) -> str:
    """The cell under the heading that has all these words. Raises ``ValueError``."""
    found = [cell for heading, cell in row.items() if all(word in heading for word in words)]
    if len(found) != 1:
        raise ValueError(f"{len(found)} columns are headed {' … '.join(words)}, not one")
    return found[0]


def code(row: Row) -> dict[str, Any]:
    """What the catalogue says of one XID."""
    return {
        "xid": int(column(row, "Code")),
        "name": column(row, "Mnemonic"),
        "meaning": column(row, "Description"),
        "action": column(row, "(Immediate Action)"),
        "then": column(row, "(Investigatory Action)"),
        "models": [model for model in MODELS if column(row, f"Applies to {model}") == "YES"],
    }


def rules(row: Row) -> Iterator[dict[str, Any]]:
    """What an error of NVLink 5 means by the registers in its line; two if it may be fatal.

    An empty list of statuses stands for every status.
    """
    xid = {"xid": int(column(row, "Xid")), "unit": column(row, "Subcode V1")}
    status = [int(each, 16) for each in column(row, "Error Status").split("/") if each]
    older, newer = (column(row, version, "IntrInfo") for version in (OLDER, NEWER))
    action, severity = column(row, "Recovery Action)"), column(row, "Severity")
    yield {**_rule(xid, older, newer, status, action), "fatal": not severity.startswith("Non")}
    if column(row, "Action 2"):
        older, newer = (column(row, version, "action 2") for version in (OLDER, NEWER))
        yield {**_rule(xid, older, newer, status, column(row, "Action 2")), "fatal": True}


def _rule(
    xid: dict[str, Any], older: str, newer: str, status: list[int], action: str
) -> dict[str, Any]:
    return {**xid, "before_r575": older, "from_r575": newer, "status": status, "action": action}


def table(workbook: zipfile.ZipFile, date: str) -> str:
    """The table of one edition of the catalogue, a line for each XID and rule."""
    codes = sorted(map(code, sheet(workbook, "Xids")), key=lambda each: int(each["xid"]))
    decoded = [rule for row in sheet(workbook, "Xid 144-150 Decode") for rule in rules(row)]
    head = {
        "generated": "by make xids; do not edit",
        "source": PAGE,
        "document": "Xid-Catalog.xlsx",
        "date": date,
    }
    parts = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for name, rows in (("xids", codes), ("nvlink5", decoded)):
        lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
        parts.append(f' "{name}": [\n{lines}\n ]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    with zipfile.ZipFile(sys.argv[1]) as opened:
        TABLE.write_text(table(opened, datetime.date.today().isoformat()))
