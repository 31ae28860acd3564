"""Keeps the results of benchmarks as JSON and writes ``docs/performance.md`` from them."""

from __future__ import annotations

import json
import platform
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

DOCS = Path(__file__).parents[2] / "docs"


@dataclass(frozen=True, slots=True)
class Result:
    """One figure: what was measured, its target, and whether it was met."""

    what: str
    measured: str
    target: str
    met: bool


@dataclass(frozen=True, slots=True)
class Report:
    """The results of one benchmark on one machine; ``text`` says how they were measured."""

    title: str
    machine: str
    text: str
    results: list[Result]
    details: list[str]

    def print(self) -> None:
        """Show the results in the terminal."""
        table = Table("what", "measured", "target", "", title=f"{self.title} ({self.machine})")
        for result in self.results:
            mark = "met" if result.met else "NOT MET"
            table.add_row(result.what, result.measured, result.target, mark)
        console = Console(width=110)
        for line in self.details:
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        console.print(table)

    def save(self, name: str, folder: Path = DOCS / "performance") -> None:
        """Keep the results under ``name``."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(asdict(self), indent=1) + "\n")


def render(folder: Path = DOCS / "performance") -> str:
    """The page of all results."""
    lines = [
        "# Performance and accuracy",
        "",
        "Written by `make bench` from `docs/performance/*.json`; do not edit. Figures from GPUs "
        'come from `make bench BENCH="gpu gpus truth"` on a machine that has them.',
    ]
    for path in sorted(folder.glob("*.json"), key=lambda p: (int(p.name.split("-")[0]), p.name)):
        kept = json.loads(path.read_text())
        lines += ["", f"## {kept['title']}", "", f"Machine: {kept['machine']}. {kept['text']}", ""]
        lines += ["| what | measured | target | |", "|---|---|---|---|"]
        for result in kept["results"]:
            mark = "met" if result["met"] else "**not met**"
            columns = (result["what"], result["measured"], result["target"], mark)
            lines.append("| " + " | ".join(columns) + " |")
        if kept["details"]:
            lines += ["", "```", *kept["details"], "```"]
    return "\n".join(lines) + "\n"


def machine() -> str:
    """This machine in words: its GPUs where it has any, its processor and cores."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        gpus = []
    words = []
    if gpus:
        name, driver = gpus[0].split(", ")
        words.append(f"{len(gpus)} x {name}, driver {driver}")
    cores = Path("/proc/cpuinfo").read_text()
    model = next((x.split(":")[1].strip() for x in cores.splitlines() if "model name" in x), "CPU")
    words.append(f"{cores.count('processor	')} x {model}, Python {platform.python_version()}")
    return ", ".join(words)
