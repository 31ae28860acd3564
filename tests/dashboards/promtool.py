"""What promtool answers to queries of panels, of series that are given minute by minute."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dashboards.rules import FOLDER
from tests.needs import need

Labels = Mapping[str, str]
Found = Sequence[tuple[Labels, float]]

IN_ORDER = ("thresholds", "records", "boards", "report")
"""The files of what is recorded, each after those on which it rests."""


def with_labels(name: str, labels: Labels) -> str:
    """A series as PromQL selects it."""
    return name + "{" + ",".join(f'{k}="{v}"' for k, v in sorted(labels.items())) + "}"


def promtool(
    folder: Path,
    given: Mapping[str, str] | Iterable[tuple[str, str]],
    asks: Mapping[tuple[int, str], Found],
    *,
    recorded: bool = False,
    interval: str = "1m",
) -> str:
    """What promtool says against expressions having come to these results at these minutes.

    ``recorded`` is whether the shipped rules are evaluated.
    """
    test = {
        "interval": interval,
        "input_series": [{"series": one, "values": values} for one, values in dict(given).items()],
        "promql_expr_test": [
            {
                "expr": expression,
                "eval_time": f"{minute}m",
                "exp_samples": [
                    {"labels": with_labels("", {k: v for k, v in of.items() if v}), "value": value}
                    for of, value in found
                ],
            }
            for (minute, expression), found in asks.items()
        ],
    }
    rules = [str(FOLDER / f"{name}.yaml") for name in IN_ORDER] if recorded else []
    content = {"evaluation_interval": "30s", "rule_files": rules, "tests": [test]}
    (folder / "test.json").write_text(json.dumps(content))
    ran = subprocess.run(
        [need("promtool"), "test", "rules", "test.json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if ran.returncode == 0 else ran.stdout + ran.stderr
