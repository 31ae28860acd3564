"""Where the rows of tables lead, by Grafana's own functions: one goes from a job to that job."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from dashboards import FOLDER
from dashboards.panels import LINKED
from dashboards.promql import NO_NAMESPACE
from dashboards.variables import OF_NAMESPACES, OF_ONE_LABEL
from tests.dashboards.tables import Labels, table_rows

pytestmark = pytest.mark.integration

IN_KUBERNETES: Labels = {
    "cluster": "eu",
    "owner_namespace": "team",
    "workload": "llama",
    "instance": "a",
    "gpu": "0",
    "in_cluster": "eu",
    "in_namespace": "team",
    "of_namespace": "team",
    "in_job": "llama",
    "its_job": "llama",
    "in_node": "a",
    "place": "a",
}
OF_SLURM: Labels = {
    "workload": "slurm-42",
    "user": "kim",
    "instance": "b",
    "gpu": "1",
    **dict(LINKED.values()),
    "of_namespace": NO_NAMESPACE,
    "in_job": "slurm-42",
    "its_job": "slurm-42",
    "in_node": "b",
    "place": "b",
}
"""Labels of a site that names no cluster and has no Kubernetes, as the query completes them."""

SELECTED = {
    "a": {"cluster": "eu", "namespace": "team", "job": "llama", "node": "a", "gpu": "0"},
    "b": {"cluster": "All", "namespace": NO_NAMESPACE, "job": "slurm-42", "node": "b", "gpu": "1"},
}
"""What a link selects from the rows with these labels, by their node.

Every version selects all for "All", its name, and for "$__all", its value, which the links between
dashboards have: ``setOptionFromUrl()`` of Grafana 10 and 11 looks for the text or the value that
the address has, and ``MultiValueUrlSyncHandler`` of @grafana/scenes, which later ones are made
with, has taken both from 4.14 to 9.2:
https://github.com/grafana/grafana/blob/0482fdee1babb84769a73d3e8b5efaa2bde7e012/public/app/features/variables/state/actions.ts
https://github.com/grafana/scenes/blob/main/packages/scenes/src/variables/variants/MultiValueVariable.tsx
"""


def linked() -> Iterator[Any]:
    """Every table whose rows lead somewhere."""
    for path in sorted(FOLDER.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            if panel["type"] == "table" and "__data.fields" in json.dumps(panel):
                yield pytest.param(panel, id=f"{path.stem}: {panel['title']}")


@pytest.mark.parametrize("panel", [*linked()])
def test_a_row_leads_to_what_it_is_about(panel: dict[str, Any]) -> None:
    """What a cell shows for a label that is absent would select nothing."""
    found = [(labels, 3.0) for labels in (OF_SLURM, IN_KUBERNETES)]
    rows = table_rows(panel, [found] * len(panel["targets"]))
    assert len(rows) == len(found)
    for row in rows:
        assert not {*row.cells} & {*dict(LINKED.values())}, "they are hidden"
        of = "b" if {"b", "slurm-42"} & {*row.cells.values()} else "a"
        assert row.links
        for column in (name for name, url in row.links.items() if url.startswith("/d/")):
            chosen = row.selects(column)
            del chosen["from"], chosen["datasource"]
            chosen.pop("to", None)
            assert chosen
            assert chosen == {name: SELECTED[of][name] for name in chosen}, column


def test_no_namespace_is_a_regular_expression_for_just_that() -> None:
    assert re.fullmatch(NO_NAMESPACE, "")
    assert not re.fullmatch(NO_NAMESPACE, "team")


@pytest.mark.parametrize(
    ("answer", "value", "text"),
    [
        ('{owner_namespace="team"} 3 1795000000000', "team", "team"),
        (f'{{owner_namespace="{NO_NAMESPACE}"}} 1 1795000000000', NO_NAMESPACE, "no namespace"),
    ],
)
def test_namespaces_are_read_from_the_answer_of_a_query(answer: str, value: str, text: str) -> None:
    """Grafana offers what the groups of the variable's regular expression find."""
    found = re.search(OF_NAMESPACES.strip("/").replace("(?<", "(?P<"), answer)
    assert found
    assert (found["value"], found["text"]) == (value, text)


@pytest.mark.parametrize("job", ["llama", "train (a)", 'say \\"hi\\"'])
def test_jobs_are_read_from_the_answer_of_a_query(job: str) -> None:
    found = re.search(OF_ONE_LABEL.strip("/"), f'{{workload="{job}"}} 3.5 1795000000000')
    assert found
    assert found[1] == job
