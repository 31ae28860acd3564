"""Grafana 10 to 13 know all that is in the dashboards, by the types that each publishes.

Grafana ignores what it does not know, so a panel would look otherwise in an older one, or in a
newer one that has dropped it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dashboards import FOLDER
from tests.dashboards.tables import PACKAGES
from tests.needs import missing, need

pytestmark = pytest.mark.integration

BOARD = Path(__file__).parent / "grafana" / "board.ts"
GENERATOR = PACKAGES / ".bin" / "ts-json-schema-generator"
LOADED = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
MAJORS = (10, 11, 12, 13)

OF_PROMETHEUS = {
    *("expr", "step", "tagKeys", "textFormat", "titleFormat", "useValueForTime"),
    "definition",
}
"""What Prometheus' own code reads of an annotation, and of a variable:
https://github.com/grafana/grafana/blob/v11.0.0/packages/grafana-prometheus/src/types.ts"""

SINCE: dict[str, int] = {"perPage": 12}
"""Options that older versions do without, and from which of those here on they are known: a state
timeline of Grafana 10 has all rows on one page."""


def schema(major: int, folder: Path) -> dict[str, Any]:
    """A JSON Schema of what this version declares, by what ``board.ts`` calls it.

    Skips the test where Node.js or Grafana's packages are not here.
    """
    need("node")
    if not GENERATOR.exists():
        pytest.skip(missing("@grafana/data"))
    package = PACKAGES / f"schema-{major}"
    options = {
        "strict": True,
        "skipLibCheck": True,
        "moduleResolution": "node10",
        "paths": {"@grafana/schema": [str(package)], "@grafana/schema/*": [f"{package}/*"]},
        "types": [],
    }
    config = folder / "tsconfig.json"
    config.write_text(json.dumps({"compilerOptions": options, "files": [str(BOARD)]}))
    command = [str(GENERATOR), "--tsconfig", str(config), "--path", str(BOARD), "--type", "Board"]
    ran = subprocess.run(
        [*command, "--expose", "none", "--no-type-check"],
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(ran.stdout)
    of_board: dict[str, Any] = found["definitions"]["Board"]["properties"]
    return {name: {**one, "definitions": found["definitions"]} for name, one in of_board.items()}


def wrong(content: dict[str, Any], known: dict[str, Any], major: int) -> Iterator[str]:
    """What of a dashboard does not fit the types, with its place."""
    whole = deepcopy(content) | {"panels": []}
    for one in (*whole["annotations"]["list"], *whole["templating"]["list"]):
        for name in OF_PROMETHEUS & one.keys():
            del one[name]
    later = [name for name, since in SINCE.items() if major < since]
    panels = deepcopy(content["panels"])
    for panel in panels:
        for name in later:
            panel.get("options", {}).pop(name, None)
    parts = [("dashboard", whole), *((panel["type"], panel) for panel in panels)]
    for kind, part in parts:
        for error in jsonschema.Draft7Validator(known[kind]).iter_errors(part):
            if error.validator == "required" and error.json_path == "$.options":
                continue  # a panel has a default for each of its options
            yield f"{part['title']}: {error.json_path}: {error.message[-200:]}"


@pytest.mark.parametrize("major", MAJORS)
def test_grafana_knows_what_is_in_a_dashboard(major: int, tmp_path: Path) -> None:
    known = schema(major, tmp_path)
    assert [text for content in LOADED.values() for text in wrong(content, known, major)] == []
    content = deepcopy(LOADED["gpunode-fleet"])
    graph = next(panel for panel in content["panels"] if panel["type"] == "timeseries")
    graph["options"]["legend"]["placement"] = "left"
    graph["fieldConfig"]["defaults"]["custom"]["drawStyle"] = "pie"
    content["links"][0]["goesTo"] = "fleet"
    assert len([*wrong(content, known, major)]) == 3, "it would be seen"
