"""Writes ``json/*.json``: ``make dashboards``."""

from __future__ import annotations

import json
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.boards import BOARDS
from dashboards.layout import Board, dashboard

FOLDER = Path(__file__).parent / "json"


def written(board: Board) -> str:
    """A dashboard as Grafana loads it."""
    content = json.loads(json.dumps(dashboard(board), cls=JSONEncoder))
    for hidden in (*content["links"], *content["annotations"]["list"]):
        del hidden["placement"]  # the SDK has only the value that hides it in a menu
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def files() -> dict[Path, str]:
    """Everything that is generated, by its path."""
    return {FOLDER / f"{board.uid}.json": written(board) for board in BOARDS}


def main() -> None:
    """Rewrite the committed dashboards."""
    FOLDER.mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
