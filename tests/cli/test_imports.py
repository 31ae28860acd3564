"""Each command loads what it uses and no more; without the extra of that, it names it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gpunode.cli.commands import COMMANDS

ADDED = {
    "exporter": [],
    "cli": ["httpx2", "rich"],
    "report": ["jinja2", "svg", "tenacity"],
    "mcp": ["mcp"],
}
"""The libraries that each extra adds to those of the one before it."""

OF_THE_DAEMON = {"fastapi", "gpunode.sources", "prometheus_client", "psutil", "pynvml", "uvicorn"}

ASKED = {"replay": ["x"], "why": ["x"]}
"""What else a command must be given."""

PROGRAM = """
import contextlib, json, sys
from pkgutil import resolve_name
from gpunode import __main__
from gpunode.cli.commands import COMMANDS
from gpunode.cli.main import main

added, asked = json.loads(sys.argv[1])
missing = sum(added.values(), [])

class NotInstalled:
    def find_spec(self, name, path, target=None):
        if name in missing:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, NotInstalled())

def run(*arguments):
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(None):
        main(arguments)

def loaded():
    print(json.dumps(sorted(sys.modules)))

run("--version"), run("--help"), loaded()
for name in COMMANDS:
    run(name, "--help")
loaded()
for extra, libraries in added.items():
    names = [name for name, command in COMMANDS.items() if command.extra == extra]
    for name in names if libraries else ():
        run(name, *asked.get(name, ()))
    missing = [name for name in missing if name not in libraries]
    for name in names if extra != "mcp" else ():
        resolve_name(f"gpunode.cli.{COMMANDS[name].does}")
"""


@pytest.fixture(scope="module")
def ran() -> subprocess.CompletedProcess[str]:
    """One process in which ever more extras are installed."""
    given = json.dumps([ADDED, ASKED])
    command = [sys.executable, "-c", PROGRAM, given]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_version_and_the_help_load_little(ran: subprocess.CompletedProcess[str]) -> None:
    overview, helps = (set(json.loads(line)) for line in ran.stdout.splitlines())
    assert not overview & {"asyncio", "logging", "pydantic", "yaml", *OF_THE_DAEMON}
    assert "pydantic_settings" in helps
    assert not helps & OF_THE_DAEMON


def test_a_command_without_its_extra_names_it(ran: subprocess.CompletedProcess[str]) -> None:
    told = {line.split(": ")[1]: line for line in ran.stderr.splitlines()}
    assert ran.returncode == 0, ran.stderr
    assert told.keys() == {name for name, command in COMMANDS.items() if ADDED[command.extra]}
    for name, line in told.items():
        extra = COMMANDS[name].extra
        asked, _, missing = line.partition(f": pip install 'gpunode[{extra}]' (")
        assert asked.endswith(f"needs the extra {extra}")
        assert missing.removesuffix(" is not installed)") in ADDED[extra]
