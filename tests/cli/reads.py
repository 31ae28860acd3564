"""Runs commands and tells each setting that they read.

python -m tests.cli.reads FILE, which has the arguments of each command as JSON
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from gpunode.cli import job_incidents, main, nccl_bench, report, this_node, why
from gpunode.cli.loader import settings_of
from gpunode.config.command import CommandSettings
from gpunode.config.fields import SettingName, leaves
from gpunode.config.kinds import Section
from gpunode.report.claims import JobIncident
from tests.machine import MachineDriver, MachineGpu

TIMEOUT = 120.0
"""Seconds for what takes a few, on a machine that is busy with other tests."""


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


class PrometheusReader:
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
        nccl_bench: {"measure": lambda *_: {8: 1e9}},
        report: {
            "HistoryReader": PrometheusReader,
            "PeriodHours": lambda _: SimpleNamespace(clusters=["one"]),
            "PeriodView": lambda *_: None,
            "report": lambda *_: None,
            "FORMATS": {"html": str},
        },
        job_incidents: {
            "runs": SimpleNamespace(find=lambda *_: ""),
            "JobQuestions": lambda *_: SimpleNamespace(
                kept=lambda: ((JobIncident("", "127.0.0.1:9", "", "stall", 0, (), ""),), {}),
                as_it_began=lambda _: SimpleNamespace(waited_for=lambda: None),
            ),
            "claims": SimpleNamespace(first_node=lambda *_: None),
            "gathered": lambda *_: None,
            "print_report": lambda *_: None,
        },
        why: {
            "runs": SimpleNamespace(
                find=lambda *_: "", runs=lambda *_: [run], exact=lambda *_: run, ABSENCE_SECONDS=0
            ),
            "job": SimpleNamespace(LOOKBACK=0, ask=lambda *_: None),
            "answer": lambda *_: None,
            "FORMATS": {"text": str},
        },
    }
    for module, names in replaced.items():
        for name, value in names.items():
            assert hasattr(module, name)
            setattr(module, name, value)


def read_by(command: str, uses: Sequence[Sequence[str]], folder: Path) -> set[str]:
    """The settings that a command reads, in a process for each of its uses.

    One that goes on, as a daemon does, is ended once it has read everything.
    """
    expected = {".".join(path) for path in places(settings_of(command)).values()}
    written = folder / f"{command}.read"
    written.touch()
    found: set[str] = set()
    for given in uses:
        child = os.fork()
        if not child:
            _run(command, given, written)
        deadline = time.monotonic() + TIMEOUT
        while not os.waitpid(child, os.WNOHANG)[0]:
            found = set(written.read_text().splitlines())
            if expected <= found or time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                break
            time.sleep(0.05)
    return set(written.read_text().splitlines())


def _run(command: str, given: Sequence[str], written: Path) -> NoReturn:
    """Be the command; what it says is told as errors are."""
    os.dup2(2, 1)
    record(settings_of(command), written)
    try:
        main.main([command, *given])
    finally:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    file = Path(sys.argv[1])
    stage()
    told = {
        command: sorted(read_by(command, uses, file.parent))
        for command, uses in json.loads(file.read_text()).items()
    }
    print(json.dumps(told))
