"""What the Helm chart has from elsewhere, and what its values say of themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from gpunode import __version__
from gpunode.cli.settings.run import RunSettings
from helm import generate
from helm.generate import CHART


def test_what_the_chart_has_from_elsewhere_is_up_to_date() -> None:
    made = generate.files()
    found = {path: path.read_text() for path in made if path.exists()}
    assert found == made, "make chart-files"
    files = {path for path in (CHART / "files").iterdir() if not path.is_symlink()}
    assert files <= made.keys(), "left over: remove it"


def test_every_value_has_a_description() -> None:
    bare = [
        v.name for v in generate.values() if not v.description and not isinstance(v.default, dict)
    ]
    assert bare == []


def test_the_chart_has_the_version_and_the_defaults_of_the_program() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    settings = RunSettings(_cli_parse_args=[])
    assert values["port"] == settings.web.address[1]
    assert values["compat"] == settings.compat
    assert f"{values['clientSocket']['hostPath']}/client.sock" == settings.client.socket


def test_the_schema_is_closed_wherever_it_lists_keys() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    lists = [one for one in _maps(schema) if isinstance(one.get("properties"), dict)]
    assert len(lists) > 20
    assert all(one["additionalProperties"] is False for one in lists)


def _maps(one: Any) -> Iterator[dict[str, Any]]:
    """Every map in a JSON document."""
    if isinstance(one, dict):
        yield one
    if isinstance(one, dict | list):
        for part in one.values() if isinstance(one, dict) else one:
            yield from _maps(part)
