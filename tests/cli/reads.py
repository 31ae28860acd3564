"""Runs a command and writes down each setting that it reads, once.

python -m tests.cli.reads FILE COMMAND [OPTION …]
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpunode.cli import explaining, gathering, main, measuring, reporting, this_node
from gpunode.cli.loader import settings_of
from gpunode.config.command import CommandSettings
from gpunode.config.fields import SettingName, leaves
from gpunode.config.kinds import Section
from gpunode.report.claims import JobIncident
from tests.machine import MachineDriver, MachineGpu


def places(kind: type[CommandSettings]) -> dict[tuple[type, str], SettingName]:
    """The settings of a command by the class that has them as an attribute, and its name."""
    found: dict[tuple[type, str], SettingName] = {}
    for path, _ in leaves(kind.model_fields):
        owner: Any = kind
        for section in path[:-1]:
            owner = owner.model_fields[section].annotation
        (name,) = (n for n, field in owner.model_fields.items() if path[-1] in (n, field.alias))
        found[owner, name] = path
    return found


def record(kind: type[CommandSettings], file: Path) -> None:
    """Write a line for each setting of a command that anything asks for."""
    of = places(kind)
    seen: set[SettingName] = set()

    def asked(self: object, name: str) -> Any:
        for owner in type(self).__mro__:
            path = of.get((owner, name))
            if path is not None and path not in seen:
                seen.add(path)
                with file.open("a") as lines:
                    lines.write(f"{'.'.join(path)}\n")
        return object.__getattribute__(self, name)

    for base in (Section, CommandSettings):
        base.__getattribute__ = asked  # type: ignore[method-assign]


class Answered:
    """A Prometheus that has answered all that a report asks."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def moments(self, whole: bool) -> int:  # noqa: ARG002
        return 0

    def states(self) -> None: ...

    def ask(self, whole: bool) -> None: ...


def stage() -> None:
    """Replace what a machine may lack: a GPU, nccl-tests, and a Prometheus with weeks of data."""
    run = SimpleNamespace(first=0, goes_on=False)
    gpu = MachineGpu(0, "GPU-aa", "0000:19:00.0")
    replaced: dict[Any, dict[str, Any]] = {
        this_node: {"open_drivers": lambda *_: (MachineDriver([gpu]),)},
        measuring: {"measure": lambda *_: {8: 1e9}},
        reporting: {
            "Asking": Answered,
            "Past": lambda _: SimpleNamespace(clusters=["one"]),
            "PeriodView": lambda *_: None,
            "report": lambda *_: None,
            "FORMATS": {"html": str},
        },
        gathering: {
            "runs": SimpleNamespace(find=lambda *_: ""),
            "JobQuestions": lambda *_: SimpleNamespace(
                kept=lambda: ((JobIncident("", "127.0.0.1:9", "", "stall", 0, (), ""),), {}),
                as_it_began=lambda _: SimpleNamespace(waited_for=lambda: None),
            ),
            "claims": SimpleNamespace(began=lambda *_: None),
            "gathered": lambda *_: None,
            "printed": lambda *_: None,
        },
        explaining: {
            "runs": SimpleNamespace(
                find=lambda *_: "", runs=lambda *_: [run], exact=lambda *_: run, ENDED_AFTER=0
            ),
            "job": SimpleNamespace(EARLIER=0, ask=lambda *_: None),
            "answer": lambda *_: None,
            "FORMATS": {"text": str},
        },
    }
    for module, names in replaced.items():
        for name, value in names.items():
            assert hasattr(module, name)
            setattr(module, name, value)


if __name__ == "__main__":
    written, command, *_ = sys.argv[1:]
    stage()
    record(settings_of(command), Path(written))
    main.main(sys.argv[2:])
