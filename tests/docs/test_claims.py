"""What the documents list is there: a setting is read, a metric emitted, a parser fuzzed."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from gpunode.cli.commands import COMMANDS
from gpunode.cli.loader import settings_of
from gpunode.config.command import CommandSettings
from gpunode.config.kinds import Section
from gpunode.explain import rule_files
from gpunode.export.web import guard, server, visitors
from gpunode.host import filesystem
from gpunode.metric import Metric
from gpunode.node import patience
from gpunode.source import limit
from gpunode.sources import METRICS
from gpunode.unread import Unknown
from tests.fuzz.table import TABLE

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "exporter/gpunode"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_what_there_is(page: Path) -> None:
    """Targets of make, paths that begin with a folder of ours, and metrics."""
    text = page.read_text()
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert set(re.findall(r"(?:`|^ {4})make ([a-z-]+)", text, re.M)) <= set(targets)
    for path in re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", text):
        first, *_ = path.split("/")
        homes = [home for home in (ROOT, SOURCES) if (home / first).is_dir()]
        made_up = any(part.partition(".")[0].isupper() for part in Path(path).parts)
        assert not homes or made_up or any((home / path).exists() for home in homes), path
    names = {metric.name for declared in METRICS.values() for metric in declared}
    recorded = "".join(path.read_text() for path in (ROOT / "alerts/rules").glob("*.yaml"))
    for name in re.findall(r"\bgpunode_[a-z0-9_]+", text):
        of_histogram = re.sub("_(bucket|count|sum)$", "", name)
        of_rules = f":{name}" in recorded or f"record: {name}" in recorded
        begins = name.endswith("_") and any(known.startswith(name) for known in names)
        assert {name, of_histogram} & names or of_rules or begins, name


def test_what_the_chart_ran_with_is_what_make_builds() -> None:
    _, _, table = (ROOT / "docs/kubernetes.md").read_text().partition("## How this is tested")
    pins = r"(?:helm/build\.sh \S+|helm\.sh/helm/v4|^OPERATOR :=) (v\S+)"
    built = re.findall(pins, (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert len(built) == 4
    assert set(re.findall(r"\bv\d+\.\d+\.\d+", table)) == set(built)


@cache
def code() -> dict[Path, ast.Module]:
    """Every module of the program."""
    return {
        path: ast.parse(path.read_text())
        for path in SOURCES.rglob("*.py")
        if not path.name.endswith("_pb2.py")
    }


def fields(
    kind: type[CommandSettings | Section], section: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Every setting: the name of its section (empty for none), its own, and the class of it."""
    for name, field in kind.model_fields.items():
        found = field.annotation
        if isinstance(found, type) and issubclass(found, Section):
            yield from fields(found, name)
        else:
            declares = (
                each
                for each in reversed(kind.__mro__)
                if issubclass(each, CommandSettings | Section) and name in each.model_fields
            )
            yield section, name, next(declares).__name__


SETTINGS = sorted({found for name in COMMANDS for found in fields(settings_of(name))})


@cache
def attributes() -> dict[Path, set[tuple[str, str]]]:
    """By module, every attribute that is read, after the name of what it is read from."""
    return {
        path: {
            (getattr(node.value, "attr", getattr(node.value, "id", "")), node.attr)
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        }
        for path, tree in code().items()
    }


@pytest.mark.parametrize(("section", "name", "kind"), SETTINGS)
def test_a_setting_is_read(section: str, name: str, kind: str) -> None:
    """As ``section.name``, or as ``name`` where the section is read or its class is known."""

    def read_in(path: Path, read: set[tuple[str, str]]) -> bool:
        names = {each for _, each in read}
        return (section, name) in read or (
            name in names and not {section, kind}.isdisjoint(names | used(path))
        )

    assert any(read_in(path, read) for path, read in attributes().items())


LISTS = {"metrics", "METRICS", "USED"}
"""What only lists metrics: to be named there does not mean to be emitted."""


class NameVisitor(ast.NodeVisitor):
    """The names that code uses, but for those in lists of metrics."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_Assign(self, node: ast.Assign) -> None:
        if not any(isinstance(at, ast.Name) and at.id in LISTS for at in node.targets):
            self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.names.add(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.names.add(node.attr)
        self.generic_visit(node)


@cache
def used(path: Path) -> set[str]:
    """The names that a module uses."""
    visitor = NameVisitor()
    visitor.visit(code()[path])
    return visitor.names


def declared() -> Iterator[tuple[Path, str]]:
    """The constants that are metrics, by module."""
    for path, tree in code().items():
        for node in tree.body:
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                continue
            if getattr(node.value.func, "id", "") == Metric.__name__:
                yield from ((path, at.id) for at in node.targets if isinstance(at, ast.Name))


@pytest.mark.parametrize(
    ("path", "name"),
    [pytest.param(*found, id=f"{found[0].stem}-{found[1]}") for found in sorted(declared())],
)
def test_a_metric_is_emitted(path: Path, name: str) -> None:
    """Its module, or one of the same room, does more with it than list it."""
    assert any(name in used(other) for other in code() if other.parent == path.parent)


ROOMS = ("client", "driver", "export", "host", "jobs", "nccl", "node")
TEXT = {"str", "bytes", "Iterable[str]", "Sequence[str]", "list[str]"}


def parsers() -> Iterator[tuple[str, str]]:
    """Every parser, by module and name: a function that makes something of text from outside.

    Its name is ``parse`` or begins with ``parse_``, or ends in ``_of`` in the room ``node``, which
    everything from outside passes; its first argument is text.
    """
    for path, tree in code().items():
        room, *_ = path.relative_to(SOURCES).parts
        for node in tree.body if room in ROOMS else ():
            if not isinstance(node, ast.FunctionDef) or not node.args.args:
                continue
            taken = node.args.args[0].annotation
            named = node.name == "parse" or node.name.startswith("parse_")
            named = named or (room == "node" and node.name.endswith("_of"))
            if named and taken is not None and ast.unparse(taken) in TEXT:
                module = ".".join(path.relative_to(SOURCES.parent).with_suffix("").parts)
                yield module.removesuffix(".__init__"), node.name


@pytest.fixture(scope="module")
def ran() -> set[CodeType]:
    """What runs when every row of the table of fuzzing reads its seeds."""
    found: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found.add(frame.f_code)

    for parser in TABLE:
        for seed in parser.seeds:
            sys.setprofile(note)
            try:
                parser.tolerates(seed)
            finally:
                sys.setprofile(None)
    return found


@pytest.mark.parametrize(("module", "name"), sorted(parsers()))
def test_a_parser_is_fuzzed(module: str, name: str, ran: set[CodeType]) -> None:
    """A row of ``tests/fuzz/table.py`` comes to it from its seeds."""
    parse: Callable[..., object] = inspect.unwrap(getattr(import_module(module), name))
    assert parse.__code__ in ran, "name it in tests/fuzz/table.py"


def test_everything_that_may_not_be_understood_is_in_the_document() -> None:
    listed = (ROOT / "docs" / "unread.md").read_text()
    loaded = [module for name, module in sys.modules.items() if name.startswith("gpunode.")]
    kinds = {one for module in loaded for one in vars(module).values() if type(one) is Unknown}
    assert len(kinds) > 10
    rows = {
        one: "" if one.meaning == limit(one.what).meaning else f"| {one.meaning} |" for one in kinds
    }
    assert [
        one.what for one, row in rows.items() if not (f"`{one.what}`" in listed and row in listed)
    ] == []


def test_the_budgets_in_the_document_are_those_of_the_code() -> None:
    (expires,) = (one for one in rule_files.read_rules() if one.name == "GpunodeCertificateExpires")
    days = int(expires.expression.partition(" < ")[2].partition(" ")[0])
    written = (ROOT / "docs" / "security.md").read_text()
    words = ("", "one", "two", "three", "four", "five", "six", "seven", "eight")
    for claim in (
        f"| {server.CONNECTIONS}: the origin",
        f"{words[visitors.RESERVED]} connections: {visitors.READERS} addresses, "
        f"{words[visitors.READERS_OF_ORIGIN]} of an origin",
        f"{guard.CPU_CREDIT:g} s of CPU",
        f"{words[filesystem.MAX_USER_FILESYSTEMS]} at most",
        f"{words[patience.PER_TENANT]} of each owner at a time; from {patience.CROWDED} on one",
        f"{words[days]} days before",
    ):
        assert claim in written, claim
