"""Writes ``json/*.json``: ``make dashboards``."""

from __future__ import annotations

import json
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import FOLDER
from dashboards.boards import BOARDS
from dashboards.layout import Board, dashboard

OF_OTHER_VARIABLES = {"auto", "auto_count", "auto_min", "allowCustomValue"}
"""What the SDK writes of every variable: an interval has the first three, and Grafana before 11.5
none of them."""

NOT_EVERYWHERE = {
    "bargauge": "legend",
    "heatmap": "selectionMode",
    "stat": "percentChangeColorMode",
    "table": "footer",
}
"""Of each kind of panel the option that the SDK writes and that not every Grafana from 10 to 13
knows. None shows anything here."""


def as_json(board: Board) -> str:
    """A dashboard as Grafana loads it."""
    content = json.loads(json.dumps(dashboard(board), cls=JSONEncoder))
    links = (link for panel in content["panels"] for link in panel.get("links", ()))
    for one in (*content["links"], *links, *content["annotations"]["list"]):
        del one["placement"]  # the SDK has only the value that hides it in a menu
    for variable in content["templating"]["list"]:
        for name in OF_OTHER_VARIABLES & variable.keys():
            del variable[name]
    for panel in content["panels"]:
        if panel["type"] in NOT_EVERYWHERE:
            del panel["options"][NOT_EVERYWHERE[panel["type"]]]
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def files() -> dict[Path, str]:
    """Everything that is generated, by its path."""
    return {FOLDER / f"{board.uid}.json": as_json(board) for board in BOARDS}


def main() -> None:
    """Rewrite what is committed."""
    FOLDER.mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
