"""Keeps the results of benchmarks as JSON and writes ``docs/performance.md`` from them."""

from __future__ import annotations

import json
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gpunode import __version__

DOCS = Path(__file__).parents[1] / "docs"


@cache
def version() -> str:
    """This gpunode and this day: ``0.1.0 (1a2b3c4d), 2026-11-22``."""
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"]
    try:
        found = subprocess.run(describe, cwd=DOCS, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        commit = "no commit known"
    else:
        commit = found.stdout.strip()
    return f"{__version__} ({commit}), {date.today()}"


def span(versions: Iterable[str]) -> str:
    """The versions with which parts of a report were measured: the earliest and the latest."""
    by_day = sorted({*versions} or {version()}, key=lambda one: one.split()[::-1])
    return " to ".join(dict.fromkeys((by_day[0], by_day[-1])))


@dataclass(frozen=True, slots=True)
class Result:
    """One figure: what was measured, its target, and whether it was met."""

    what: str
    measured: str
    target: str = ""
    met: bool = True


@dataclass(frozen=True, slots=True)
class Report:
    """The results of one benchmark on one machine; ``text`` says how they were measured."""

    title: str
    machine: str
    text: str
    results: list[Result]
    details: list[str]
    version: str = field(default_factory=version)
    """With which gpunode it was measured, and when."""

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
        """Keep the results under ``name``, and the details beside them as text."""
        folder.mkdir(parents=True, exist_ok=True)
        kept = asdict(self)
        details = folder / f"{name}.txt"
        if lines := kept.pop("details"):
            details.write_text("\n".join(lines) + "\n")
        else:
            details.unlink(missing_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")

    def publish(self, name: str) -> None:
        """Keep the results under ``name``, and write the page of all results anew."""
        self.save(name)
        (DOCS / "performance.md").write_text(render())


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that matters: the results that have it, by the name of their report."""

    says: str
    what: str
    measured: str
    elsewhere: bool = False
    """Whether the reports of ``ELSEWHERE`` have the same figure."""


ELSEWHERE = {"on an H100": "14-truth-h100"}
TRUTH = "14-truth-h200"
LEDGER = "22-ledger"
ON_ONE, ON_SEVERAL = "programs drawn afterwards", "random programs of a second draw"
"""The sets of programs whose figures the page opens with: the latest that ran on one GPU, and on
several."""

FIGURES = (
    *(
        Figure(f"8 busy GPUs: {name}", f"8 busy GPUs: {name}", "0-peers")
        for name in ("gpunode", "nvitop-exporter", "node_exporter")
    ),
    *(
        Figure(
            f"Ledger, {use}: every state within {limit}",
            f"{programs}, {use}: every state within {limit}",
            LEDGER,
        )
        for programs, use in (
            (ON_ONE, "one process"),
            (ON_ONE, "several processes"),
            (ON_SEVERAL, "several GPUs"),
        )
        for limit in ("0.05", "0.10")
    ),
    Figure("Random programs: the right cause named", "GPUs with the right verdict", LEDGER),
    Figure("Workloads: every state within 0.05", "GPUs with every state within 0.05", TRUTH, True),
    Figure("Workloads: every state within 0.10", "GPUs with every state within 0.10", TRUTH, True),
    Figure("Verdict: the right cause named", "GPUs with the right verdict", TRUTH, True),
    Figure("A stalled collective named", "a stall was called so after, at most", TRUTH),
    Figure(
        "File, line and function where a job hangs",
        "right file, line and function, without the client",
        "28-hangs",
    ),
    Figure("On-call engineer notified of a stall", "notified of the stall after", "11-gpus-jobs"),
    Figure("CPU of the daemon", "whole daemon for 8 GPUs, share of one core", "5-gpus-cost"),
    Figure("Memory of the daemon, 8 GPUs and a busy node", "resident memory", "9-node"),
    Figure("Time of a scrape, the same node", "/metrics p99", "9-node"),
    Figure("Series, the same node", "series", "9-node"),
    Figure("Effect on the time of a training step", "difference of medians", "4-gpu-disturbance"),
)
"""What the page opens with."""

ABOUT_FIGURES = (
    "The first rows are of the daemon beside other exporters, over the fake driver. The "
    "ledger is compared with traces of every kernel, the verdict with what each workload was made "
    "to suffer from, all on H200s. The programs of the ledger's first four rows were drawn after "
    "its last change, 27 of 65 from what people run with common libraries; those on several GPUs, "
    "and the workloads, were known while it was made. Expect the accuracy of these four."
)


def render(folder: Path = DOCS / "performance") -> str:
    """The page of all results."""
    paths = sorted(folder.glob("*.json"), key=lambda p: (int(p.name.split("-")[0]), p.name))
    reports = {path.stem: json.loads(path.read_text()) for path in paths}
    lines = ["# Performance and accuracy", "", *_figures(reports)]
    lines += [
        "Written by `make bench` from `docs/performance/*.json`; do not edit. Figures from GPUs "
        'come from `make bench BENCH="gpu gpus truth"` on a machine that has them.',
    ]
    for name, kept in reports.items():
        about = f"Machine: {kept['machine']}. gpunode {kept['version']}. {kept['text']}"
        lines += ["", f"## {kept['title']}", "", about, ""]
        lines += ["| what | measured | target | |", "|---|---|---|---|"]
        for result in kept["results"]:
            columns = (result["what"], result["measured"], result["target"], _mark(result))
            lines.append("| " + " | ".join(columns) + " |")
        if (folder / f"{name}.txt").exists():
            lines += ["", f"[All figures of this measurement](performance/{name}.txt)"]
    return "\n".join(lines) + "\n"


def _figures(reports: Mapping[str, Any]) -> Iterator[str]:
    """The table at the top, with a link to each measurement; nothing without measurements.

    Raises ``KeyError`` if a measurement lacks a figure that it should have.
    """
    rows = []
    for figure in FIGURES:
        if figure.measured not in reports:
            continue
        kept = _result(reports, figure.measured, figure.what)
        others = (
            _cell(_result(reports, name, figure.what)) if figure.elsewhere else ""
            for name in ELSEWHERE.values()
        )
        says = f"[{figure.says}](#{_anchor(reports[figure.measured]['title'])})"
        rows.append((says, _cell(kept), *others, kept["target"]))
    if rows:
        head = ("figure", "measured", *ELSEWHERE, "target")
        for row in (head, ("---",) * len(head), *rows):
            yield f"| {' | '.join(row)} |"
        yield from ("", ABOUT_FIGURES, "")


def _result(reports: Mapping[str, Any], name: str, what: str) -> Any:
    """One result of a report, None without the report."""
    if name not in reports:
        return None
    return {result["what"]: result for result in reports[name]["results"]}[what]


def _cell(result: Any) -> str:
    return f"{result['measured']}: {_mark(result)}" if result else ""


LIMIT = re.compile(r"(≤|<|≥) ([\d.,]*\d) ?(%|[A-Za-zµ]*)(?: of a core)?")


def holds(measured: str, target: str) -> bool:
    """Whether a figure is within its target, as far as both are a number of one unit."""
    if not (limit := LIMIT.fullmatch(target)):
        return True
    if not (figure := re.fullmatch(rf"(-?[\d.,]*\d) ?{limit[3]}(?:(?: \(|, |; ).*)?", measured)):
        return True
    value, most = (float(one.replace(",", "")) for one in (figure[1], limit[2]))
    return {"≤": value <= most, "<": value < most, "≥": value >= most}[limit[1]]


def _mark(result: Any) -> str:
    """Whether a target was met, empty without a target."""
    if not result["target"]:
        return ""
    met = result["met"] and holds(result["measured"], result["target"])
    return "met" if met else "**not met**"


def _anchor(title: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


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
