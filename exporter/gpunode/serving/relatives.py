"""Where the engine of a process on a GPU may listen: itself, or a process of the same server.

vLLM and SGLang compute in children of the process that answers, Text Generation Inference and Ray
in its siblings, Triton and llama.cpp in itself. A process of another tenant is no relative, whoever
started it, and no shell is, which may have started several servers.
https://docs.kernel.org/filesystems/proc.html (/proc/PID/task/TID/children)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from gpunode.helper.tcp import PATHS
from gpunode.holders.holder import Holder, stat_of
from gpunode.holders.owner import tenant
from gpunode.node.kernel import ProcessStat
from gpunode.node.node import text_of
from gpunode.node.sockets import EPHEMERAL, port_of
from gpunode.serving.engines import ANY_PORT_PROGRAMS, ENGINE_OF, ONLY_AT

MAX_ANCESTORS = 8
"""The most ancestors to look at; vLLM's and Ray's workers have three."""

CHILDREN = 32
"""The most children of an ancestor to look at."""

STARTERS = frozenset(
    {
        *("bash", "csh", "dash", "fish", "ksh", "sh", "tcsh", "zsh"),
        *("docker-init", "dumb-init", "init", "runsv", "s6-supervise", "supervisord", "systemd"),
        *("login", "screen", "sshd", "su", "sudo", "tini", "tmux: server"),
        *("containerd-shim", "slurmstepd", "srun"),
    }
)
"""Programs that start servers and are none, by their names in /proc/PID/stat."""

PORTS = 8
"""The most ports of a process to ask."""

Known = Callable[[int, ProcessStat], Holder]
"""Gives a process by its PID and its stat file: the same object for the same process."""


def names_of(program: str) -> frozenset[str]:
    """The names by which a program may be known.

    A title such as ``VLLM::EngineCore`` is known by its first word, a module such as
    ``vllm.entrypoints.openai.api_server`` also by its package.
    """
    name = program.lower()
    return frozenset(
        {name, name.partition("::")[0], name.partition(".")[0], name.rpartition(".")[2]}
    )


def engine_of(holder: Holder) -> str:
    """The engine as which a process or its parent is called; empty if none is."""
    role = holder.role()
    called = (name for program in (role.program, role.parent) for name in names_of(program))
    return next((ENGINE_OF[name].name for name in called if name in ENGINE_OF), "")


def paths(holder: Holder) -> tuple[str, ...]:
    """Where a page of a process may be."""
    role = holder.role()
    called = names_of(role.program) | names_of(role.parent)
    return next((only for program, only in ONLY_AT.items() if program in called), PATHS)


def may_serve(holder: Holder) -> bool:
    """Whether to ask: not what a launcher of training has started, unless it is an engine."""
    if engine_of(holder):
        return True
    if holder.role().trains:
        return False
    try:
        return "MASTER_PORT" not in holder.environment()
    except OSError:
        return True


def ancestors(holder: Holder, known: Known) -> list[Holder]:
    """A process of a server and those above it that belong to the server, the nearest first."""
    found = [holder]
    try:
        whose = tenant(holder)
        while len(found) <= MAX_ANCESTORS:
            stat = stat_of(holder.node, found[-1].pid)
            above = 0 if stat is None else stat.parent
            parent = stat_of(holder.node, above) if above > 1 else None
            if parent is None or parent.name in STARTERS:
                break
            one = known(above, parent)
            if tenant(one) != whose or one in found:
                break
            found.append(one)
    except (OSError, ValueError):  # one has ended, or may not be seen
        pass
    return found


def siblings(line: list[Holder], on_gpus: Collection[int], known: Known) -> Iterator[Holder]:
    """The other children of the processes above one, of the same tenant and on no GPU."""
    others = {*on_gpus, *(one.pid for one in line)}
    for above in line[1:]:
        yield from children(above, others, known)


def children(above: Holder, others: Collection[int], known: Known) -> Iterator[Holder]:
    """The children of a process that are of the same tenant, without some others."""
    path = f"/proc/{above.pid}/task/{above.pid}/children"
    listed = text_of(above.node, path).split()[:CHILDREN]
    for child in (int(pid) for pid in listed if pid.isdecimal()):
        stat = None if child in others else stat_of(above.node, child)
        if stat is None:
            continue
        one = known(child, stat)
        try:
            if tenant(one) == tenant(above):
                yield one
        except (OSError, ValueError):
            continue


def addresses(holder: Holder, *, on_gpu: bool) -> list[str]:
    """Where a process may answer, the lowest ports first. Raises ``OSError``."""
    found = holder.ask_sockets("listening_at", holder.node.listening_at)
    ports = {address: port_of(address) for address in found}
    any_port = not on_gpu or names_of(holder.role().program) & ANY_PORT_PROGRAMS
    chosen = (a for a in found if any_port or ports[a] < EPHEMERAL)
    return sorted(chosen, key=ports.__getitem__)[:PORTS]
