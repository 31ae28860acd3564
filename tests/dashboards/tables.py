"""Tables as Grafana shows them: what it makes of the answers to a panel's queries."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from dashboards import FOLDER
from tests.dashboards.queries import CHOSEN, ask, filled
from tests.needs import ROOT, missing, need

PACKAGES = ROOT / ".monitoring" / "grafana" / "node_modules"
SHOWN = Path(__file__).parent / "grafana" / "tables.cjs"

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: what its cells show, and where their links lead, by column."""

    cells: Mapping[str, str]
    links: Mapping[str, str]

    def selects(self, column: str) -> dict[str, str]:
        """What the link of a column selects, by variable."""
        query = parse_qs(urlsplit(self.links[column]).query, keep_blank_values=True)
        return {name.removeprefix("var-"): values[0] for name, values in query.items()}


def table_rows(
    panel: Mapping[str, Any], answers: Iterable[Sequence[tuple[Labels, float]]]
) -> list[Row]:
    """The rows of a table, from the series that each of its queries found.

    Skips the test where Node.js or Grafana's package is not here.
    """
    node = need("node")
    if not PACKAGES.is_dir():
        pytest.skip(missing("@grafana/data"))
    # As Prometheus has them: JSON has no NaN.
    series = [[{"labels": labels, "value": str(v)} for labels, v in answer] for answer in answers]
    given = {
        "panel": panel,
        "series": series,
        "variables": {"datasource:queryparam": "var-datasource=p", "__url_time_range": "from=1"},
    }
    ran = subprocess.run(
        [node, str(SHOWN)],
        input=json.dumps(given),
        env={**os.environ, "NODE_PATH": str(PACKAGES)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return [Row(one["cells"], one["links"]) for one in json.loads(ran.stdout)]


def lost(prometheus: str) -> list[str]:
    """Rows of Fleet from which one comes to a dashboard of no job, of what Prometheus has."""
    (job,) = (
        panel
        for panel in json.loads((FOLDER / "gpunode-job.json").read_text())["panels"]
        if (panel["title"], panel["type"]) == ("GPUs", "stat")
    )
    (whole,) = (target["expr"] for target in job["targets"])

    def found(row: Row) -> int:
        chosen = row.selects("Job")
        cluster = chosen["cluster"].replace("All", ".*")
        of_one = {
            "${namespace:pipe}": chosen["namespace"],
            "$job": chosen["job"],
            "$cluster": cluster,
        }
        return len(ask(prometheus, filled(whole, {**CHOSEN, **of_one}), True)["data"]["result"])

    panels = json.loads((FOLDER / "gpunode-fleet.json").read_text())["panels"]
    (jobs,) = (panel for panel in panels if panel["title"] == "Jobs that lose most")
    answers = [
        [
            (one["metric"], float(one["value"][1]))
            for one in ask(prometheus, filled(target["expr"], CHOSEN), True)["data"]["result"]
        ]
        for target in jobs["targets"]
    ]
    rows = table_rows(jobs, answers)
    assert rows
    return [row.links["Job"] for row in rows if not found(row)]
