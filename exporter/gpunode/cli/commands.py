"""The commands: what each does and takes, without loading any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Command:
    """A command."""

    says: str
    """What it does; a list of commands shows only the first line."""

    settings: str
    """The class of what it reads, as ``MODULE:CLASS`` in ``gpunode.cli.settings``."""

    does: str
    """The function that takes those, as ``MODULE:FUNCTION`` in ``gpunode.cli``."""

    extra: Literal["exporter", "cli", "report", "mcp"] = "cli"
    """The extra of the package with the libraries that it uses."""


COMMANDS = {
    "run": Command(
        "Watch this node and serve its metrics.",
        "run:RunSettings",
        "run:run",
        "exporter",
    ),
    "record": Command(
        "Watch this node and record its answers on a tape.",
        "record:RecordSettings",
        "record:record",
        "exporter",
    ),
    "replay": Command(
        "Play back a tape through the same code and serve its metrics.",
        "replay:ReplaySettings",
        "replay:replay",
    ),
    "demo": Command(
        "Play incidents, say what is worth looking at, and show where the time of each GPU went.",
        "demo:DemoSettings",
        "demo:play",
    ),
    "top": Command(
        "Show the GPUs of a running daemon in this terminal, live.",
        "top:TopSettings",
        "top:top",
    ),
    "stacks": Command(
        "Show where the processes on the GPUs of this node stand, in Python and in the kernel.",
        "stacks:StacksCommandSettings",
        "stacks:stacks",
    ),
    "incidents": Command(
        "List the incidents that a running daemon, or its folder, has kept.",
        "incidents:IncidentsCommandSettings",
        "incidents:list_incidents",
    ),
    "incident": Command(
        "Show an incident: what happened, who waited for whom, where in the code, and what to do.\n"
        "\n"
        "With a job, those of all its nodes, from Prometheus, and which node began.",
        "incidents:IncidentCommandSettings",
        "incidents:show_incident",
    ),
    "audit": Command(
        "List what on this node is not set up for training; exit with 1 if anything is not.",
        "audit:AuditSettings",
        "audit:audit_node",
    ),
    "doctor": Command(
        "Say which sources give data here now, and what the others take; exit with 0 in any case.",
        "doctor:DoctorSettings",
        "doctor_table:doctor",
    ),
    "nccl-bench": Command(
        "Measure a collective or the bandwidth between hosts, keep it; exit with 1 if it is slow.",
        "nccl_bench:NcclBenchSettings",
        "nccl_bench:nccl_bench",
    ),
    "calibrate": Command(
        "Measure what kernels reach on a GPU that is not in use, in a minute, and keep it.",
        "calibrate:CalibrateSettings",
        "calibrate:calibrate",
    ),
    "report": Command(
        "Write a report on the GPU hours of weeks or months, from what Prometheus has recorded.",
        "report:ReportSettings",
        "report:write",
        "report",
    ),
    "why": Command(
        "Say where the time of a job's GPUs went, what took it and what helps, from Prometheus.",
        "why:WhySettings",
        "why:write",
        "report",
    ),
    "mcp": Command(
        "Answer an agent about jobs that are held up, with proof (Model Context Protocol, stdio).",
        "mcp:McpSettings",
        "mcp:serve",
        "mcp",
    ),
    "rules": Command(
        "Write the rules for Prometheus, or explain an alert: what holds of it, what silences it.",
        "rules:RulesSettings",
        "rules:write_or_explain",
        "exporter",
    ),
    "advise": Command(
        "Say what is to be done with a node and whom that harms; exit with 1 if it is unfit.",
        "advise:AdviseSettings",
        "advise:advise",
    ),
    "completion": Command(
        "Print completions of commands, options and values for a shell (docs/settings.md).",
        "completion:CompletionSettings",
        "completion:complete",
        "exporter",
    ),
}


def overview() -> str:
    """What ``gpunode --help`` prints."""
    lines = ["usage: gpunode [COMMAND] [OPTIONS]", "", "commands (default: run):"]
    lines += [f"  {name:10} {one.says.partition(chr(10))[0]}" for name, one in COMMANDS.items()]
    lines += ["  helper     Read for the daemon what takes privilege, in a process of its own."]
    return "\n".join([*lines, "", "gpunode COMMAND --help shows its options."])
