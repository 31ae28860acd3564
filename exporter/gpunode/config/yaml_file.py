"""Reads a YAML file of a user, and lets it neither take long nor say a thing twice."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from gpunode.mistake import UsageError

MAX_SETTINGS = 1 << 16
"""The most characters of a file of settings, each of which may take 250 bytes to read as YAML."""

MAX_DEPTH = 16
"""The most collections that may lie in each other: settings take three."""


class Loader(yaml.BaseLoader):
    """Every value is text: the settings say what is a number. A key may come only once.

    Other loaders take a text like 2024-99-99 for a date, and the time that they take grows faster
    than the length of what is nested: the scanner looks at each open collection at each token
    (``stale_possible_simple_keys`` of https://github.com/yaml/pyyaml/blob/main/lib/yaml/scanner.py).
    """

    def fetch_flow_collection_start(self, TokenClass: type[yaml.Token]) -> None:  # noqa: N803
        """Enter a collection in brackets."""
        super().fetch_flow_collection_start(TokenClass)
        self._refuse_depth()

    def add_indent(self, column: int) -> bool:
        """Enter a collection that is indented, if the column says that one begins."""
        enters = super().add_indent(column)
        self._refuse_depth()
        return enters

    def _refuse_depth(self) -> None:
        if len(self.indents) + self.flow_level > MAX_DEPTH:
            problem = f"nested more than {MAX_DEPTH} deep"
            raise yaml.scanner.ScannerError(None, None, problem, self.get_mark())

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"{key.value[:80]!r} is there twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def open_any(path: Path) -> BinaryIO:
    """A file, which may be a pipe. Raises ``OSError``."""
    return path.open("rb")


def read_yaml(path: Path, opened: Callable[[Path], BinaryIO] = open_any) -> dict[str, Any]:
    """The content of a YAML file, with every value as text. Raises ``UsageError``."""
    try:
        with opened(path) as binary, io.TextIOWrapper(binary, encoding="utf-8") as file:
            text = file.read(MAX_SETTINGS + 1)
        if len(text) > MAX_SETTINGS:
            raise UsageError(f"{path}: more than {MAX_SETTINGS} characters")
        content = yaml.load(text, Loader=Loader)  # noqa: S506 makes no objects
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(f"{path}: line {line}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not YAML: {str(error).splitlines()[0]}") from error
    except (ValueError, OverflowError) as error:  # an escape sequence or version beyond all numbers
        raise UsageError(f"{path}: not YAML: {error}") from error
    if not isinstance(content, dict | None):
        raise UsageError(f"{path}: line 1: not a mapping of settings")
    return {str(name): value for name, value in (content or {}).items()}
