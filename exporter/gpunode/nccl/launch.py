"""Starts the measurement between nodes with the launcher that a site has: srun or mpirun."""

from __future__ import annotations

import logging
import os
import random
import re
import shutil
from pathlib import Path

from gpunode.nccl.fabric import MAX_HOSTS, FabricRun, parse
from gpunode.nccl.run import BenchError, run
from gpunode.nccl.run_torch import MESSAGE_PREFIX
from gpunode.text import printable

log = logging.getLogger(__name__)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")
PORTS = range(20_000, 32_000)
"""Where the ranks meet: below what Linux gives to connections (ip_local_port_range)."""


MOST_TOLD, LONGEST_LINE = 20, 200
"""Of what ranks say: so many lines, of so many characters."""

LAUNCH_TIMEOUT = 3600.0
"""Timeout of a run in seconds: a large fabric has many pairs."""


def expand(text: str) -> list[str]:
    """The hosts of a list such as ``node-[01-03,07],login-1``, each once.

    Raises ``ValueError`` for what is no list of hosts.
    """
    if not re.fullmatch(r"(?:\[[^\[\]]*\]|[^\[\]])*", text):
        raise ValueError(f"{text[:60]!r} lacks a bracket")
    found: list[str] = []
    for part in re.findall(r"(?:\[[^\]]*\]|[^,\[\]])+", text):
        head, bracket, rest = part.strip().partition("[")
        numbers, _, tail = rest.partition("]")
        names = [head + number + tail for number in _numbers(numbers)] if bracket else [head]
        found.extend(names)
        if len(found) > MAX_HOSTS:
            raise ValueError(f"more than {MAX_HOSTS} hosts")
    for name in found:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name[:60]!r} is not the name of a host")
    return list(dict.fromkeys(found))


def _numbers(text: str) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"[{text[:60]}] has no numbers such as 01-08")
        if last and int(last) < int(first):
            raise ValueError(f"[{text[:60]}] ends before it begins")
        if int(last or first) - int(first) >= MAX_HOSTS:
            raise ValueError(f"more than {MAX_HOSTS} hosts")
        numbers = range(int(first), int(last or first) + 1)
        found.extend(str(number).zfill(len(first)) for number in numbers)
    return found


def run_hosts(
    hosts: list[str], gpus: int, largest: str, python: str, folder: str, launcher: str | None
) -> FabricRun:
    """Measure on these hosts, with so many GPUs on each. Raises ``BenchError``.

    ``python`` is a program with torch on each host, and ``folder`` where each leaves its result.
    """
    started = _launched(launcher or _find_launcher(), hosts, gpus)
    master = f"{hosts[0]}:{random.choice(PORTS)}"  # noqa: S311 no secret
    command = [*started, python, "-c", _program(), "fabric", largest, master, folder]
    text = run(command, LAUNCH_TIMEOUT)
    said = (
        line.partition(MESSAGE_PREFIX)[2] for line in text.splitlines() if MESSAGE_PREFIX in line
    )
    for line in list(dict.fromkeys(said))[:MOST_TOLD]:
        log.warning("%s", printable(line, LONGEST_LINE))
    try:
        return parse(text)
    except ValueError as error:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        first = next(iter(errors), lines[-1] if lines else "nothing")
        told = printable(first, LONGEST_LINE)
        raise BenchError(f"{command[0]}: {error}; it said: {told}") from error


def _program() -> str:
    """The text of the measurement, so that hosts need no gpunode."""
    return Path(__file__).with_name("run_torch.py").read_text()


def _find_launcher() -> str:
    for launcher in ("srun", "mpirun"):
        if shutil.which(launcher):
            return launcher
    raise BenchError(
        "neither srun nor mpirun is here: start it on each host with torchrun "
        "(docs/fabric.md), and give what rank 0 printed to --result"
    )


def _launched(launcher: str, hosts: list[str], gpus: int) -> list[str]:
    """The beginning of a command that starts so many ranks on each host."""
    if launcher == "srun":
        return [
            *("srun", f"--nodelist={','.join(hosts)}", f"--nodes={len(hosts)}"),
            *(f"--ntasks-per-node={gpus}", f"--gpus-per-node={gpus}", "--kill-on-bad-exit=1"),
        ]
    number = str(gpus * len(hosts))
    if "Open MPI" in run(["mpirun", "--version"]):
        passed = [name for name in os.environ if name.startswith(("NCCL_", "GLOO_"))]
        return [
            *("mpirun", "-np", number, "--host", ",".join(f"{host}:{gpus}" for host in hosts)),
            *("--bind-to", "none"),
            *(part for name in passed for part in ("-x", name)),
        ]
    return ["mpirun", "-hosts", ",".join(hosts), "-ppn", str(gpus), "-np", number]
