"""The documents say what the code does, and the code keeps to the design."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from gpunode.catalogue import BLOCK, BLOCKS, DOCUMENTS, Setting, renew_blocks, settings_of
from gpunode.cli import loader
from gpunode.cli.commands import COMMANDS
from gpunode.gpu.ledger import STATES
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.source import JUDGED
from tests.docs.figures import FIGURES as PICTURES

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "exporter/gpunode"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_reference_is_up_to_date(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == DOCUMENTS[name](), "run: make docs"


@pytest.mark.parametrize(
    "setting",
    dict.fromkeys(
        setting for name in COMMANDS for setting in settings_of(loader.settings_of(name))
    ),
    ids=lambda setting: setting.option,
)
def test_a_setting_is_described_by_one_sentence(setting: Setting) -> None:
    assert setting.description
    assert not setting.description.endswith(".")
    assert ". " not in setting.description


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_up_to_date(name: str) -> None:
    assert (ROOT / "docs/figures" / name).read_text() == PICTURES[name](), "run: make docs"


def test_the_states_are_documented() -> None:
    document = (ROOT / "docs/ledger.md").read_text()
    for state in STATES:
        assert f"| `{state}` |" in document


@pytest.mark.parametrize("name", BLOCKS)
def test_what_is_generated_within_a_document_is_up_to_date(name: str) -> None:
    document = (ROOT / "docs" / name).read_text()
    assert [block[1] for block in BLOCK.finditer(document)] == list(BLOCKS[name])
    assert document == renew_blocks(name, document), "run: make docs"


def test_the_causes_are_documented() -> None:
    document = (ROOT / "docs/verdict.md").read_text()
    for cause in CAUSES:
        assert f"| `{cause}` |" in document


def test_a_verdict_covers_as_long_as_is_said() -> None:
    assert f"last {JUDGED:g} seconds" in " ".join((ROOT / "docs/verdict.md").read_text().split())


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("alerts/**/*.md")]
FENCED = re.compile(r"```.*?```", re.S)


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them of its headings."""
    text = FENCED.sub("", page.read_text())
    found = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_link_to_another_page_leads_there(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", page.read_text())):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in headings(target), link


RELEASED = re.search(r"^## \[\d", (ROOT / "CHANGELOG.md").read_text(), re.M) is not None
PUBLISHED = re.compile(r"^(?:    |\S*pip install ).*(?:install '?gpunode|oci://ghcr)", re.M)
UNTIL = "<!-- until the first release -->"
"""Begins what `make release` takes out of a page."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_says_how_to_do_without_a_release_until_there_is_one(page: Path) -> None:
    text = page.read_text()
    if RELEASED:
        assert UNTIL not in text
    elif PUBLISHED.search(text) and page.name != "release.md":
        assert UNTIL in text


def test_the_root_of_the_package_stays_small() -> None:
    assert len(list(SOURCES.glob("*.py"))) <= 13


def test_one_broad_except_in_the_program() -> None:
    broad = [
        path.name
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or getattr(node.type, "id", "") in {"Exception", "BaseException"})
    ]
    assert broad == ["complaints.py"]
