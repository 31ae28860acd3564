"""The rules as they are shipped."""

from __future__ import annotations

from functools import cache

import promql_parser
import yaml

from dashboards.rules import FOLDER


@cache
def groups() -> dict[str, float]:
    """The seconds between two evaluations of each group."""
    return {
        group["name"]: promql_parser.parse_duration(group["interval"]).total_seconds()
        for path in FOLDER.glob("*.yaml")
        for group in yaml.safe_load(path.read_text())["groups"]
    }


@cache
def intervals() -> dict[str, str]:
    """How often each record is made."""
    return {
        rule["record"]: group["interval"]
        for path in FOLDER.glob("*.yaml")
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if "record" in rule
    }
