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


CLOSE, NEAR = "every state within 0.05", "every state within 0.10"
LEDGER, HANGS, NODE = "22-ledger", "28-hangs", "9-node"

ACCURACY = (
    *(
        Figure(
            f"Ledger, {programs}, {use}: {within}",
            f"{programs}, {use}: {within}",
            LEDGER,
        )
        for programs, use in (
            ("programs drawn afterwards", "one process"),
            ("programs drawn afterwards", "several processes"),
            ("programs drawn afterwards", "several GPUs"),
            ("random programs of a second draw", "several GPUs"),
        )
        for within in (CLOSE, NEAR)
    ),
    Figure(
        "Verdict, programs drawn afterwards: the right cause", "GPUs with the right verdict", LEDGER
    ),
    Figure(
        "Hang: file, line and function of the process that others wait for",
        "right file, line and function, without the client",
        HANGS,
    ),
    Figure(
        "Hang: called so after, at most",
        "a hang was called a stall or a straggler after, at most",
        HANGS,
    ),
    Figure("Hang: engineer on call notified after", "notified of the stall after", "11-gpus-jobs"),
    Figure(
        "Inference engine: the right cause",
        "cause right, of looks in eight situations",
        "29-serving",
    ),
    Figure("Energy: error over all loads", "error over all loads", "23-gpu-energy"),
)
PRICE = (
    *(
        Figure(f"{situation}: {name}", f"{situation}: {name}", "0-peers")
        for situation in ("one busy H200", "8 busy GPUs", "no GPU")
        for name in ("gpunode", "nvitop-exporter", "node_exporter")
        if (situation, name) != ("no GPU", "nvitop-exporter")
    ),
    Figure("Memory, 8 GPUs and a busy node", "resident memory", NODE),
    Figure("Time of a scrape, the same node", "/metrics p99", NODE),
    Figure("Series, the same node", "series", NODE),
    Figure("node_exporter on the same node", "node_exporter: CPU per scrape", NODE),
    Figure("Change of the step time of a training", "difference of medians", "4-gpu-disturbance"),
)
"""What the page opens with."""

IN_FULL = (
    *(LEDGER, "21-gain", HANGS, "11-gpus-jobs", "29-serving", "0-peers", NODE, "4-gpu-disturbance"),
    *("25-forecasts", "27-updates", "17-review"),
)
"""The measurements of which the page has the figures, in this order; of others it has a line."""

ABOUT = """\
Written by `make bench` from `docs/performance/*.json`; do not edit. After the machine stand the
commit and the day of each measurement. A target is met unless the table says that it is not.

The ledger is compared with traces of every kernel, on H200s and H100s: on how many GPUs is every
state right within 0.05, and within 0.10, of the time? The programs "drawn afterwards" were drawn
after its last change, many from what people run with common libraries: expect their accuracy. The
others were known while it was made. On several GPUs, a collective and a small kernel share one
reading of the SMs, and no sensor tells them apart.
"""


def render(folder: Path = DOCS / "performance") -> str:
    """The page of all results."""
    paths = sorted(folder.glob("*.json"), key=lambda p: (int(p.name.split("-")[0]), p.name))
    reports = {path.stem: json.loads(path.read_text()) for path in paths}
    lines = ["# Performance and accuracy", "", ABOUT]
    for title, figures in (("How right it is", ACCURACY), ("What it costs", PRICE)):
        lines += [f"## {title}", "", *_figures(reports, figures), ""]
    for name in IN_FULL:
        if kept := reports.pop(name, None):
            lines += [f"## {kept['title']}", "", f"{_about(kept)}. {kept['text']}", ""]
            shown = [one for one in kept["results"] if one["target"] or name == LEDGER]
            lines += ["| what | measured | target |", "|---|---|---|", *_rows(shown), ""]
            if (folder / f"{name}.txt").exists():
                lines += [f"[Every figure](performance/{name}.txt)", ""]
    if reports:
        lines += [
            "## Other measurements",
            "",
            "| measurement | on | targets met |",
            "|---|---|---|",
        ]
    for name, kept in reports.items():
        marks = [mark for result in kept["results"] if (mark := _mark(result))]
        met = f"{marks.count('met')} of {len(marks)}" if marks else "none set"
        lines.append(f"| [{kept['title']}](performance/{name}.json) | {_about(kept)} | {met} |")
    return "\n".join(lines).rstrip() + "\n"


def _about(kept: Mapping[str, Any]) -> str:
    """On what it was measured, with which commit, and when."""
    parts = re.split(r", | / ", kept["machine"])
    on = [part for part in parts if "NVIDIA" in part] or parts[:1]
    return f"{', '.join(on)}; {kept['version'].replace('0.1.0 ', '')}"


def _rows(results: Iterable[Any]) -> Iterator[str]:
    """A row for each figure; one for both limits of the ledger."""
    close = ("", "")
    for result in results:
        target = f"{result['target']}{' **not met**' if _mark(result) not in ('', 'met') else ''}"
        what, measured = result["what"], result["measured"]
        if CLOSE in what:
            close = measured, target
            continue
        if NEAR in what:
            what = what.replace(NEAR, "within 0.05; 0.10")
            measured = f"{close[0]}; {measured}"
            target = f"{close[1]}; {target}" if target else ""
        yield f"| {what} | {measured} | {target} |"


def _figures(reports: Mapping[str, Any], figures: Iterable[Figure]) -> Iterator[str]:
    """Some figures, with a link to the measurement of each.

    Raises ``KeyError`` if a measurement lacks a figure that it should have.
    """
    yield from ("| figure | measured | target |", "|---|---|---|")
    chosen = []
    for figure in figures:
        if kept := reports.get(figure.measured):
            result = {one["what"]: one for one in kept["results"]}[figure.what]
            chosen.append({**result, "what": _linked(figure, kept)})
    yield from _rows(chosen)


def _linked(figure: Figure, kept: Mapping[str, Any]) -> str:
    title = kept["title"] if figure.measured in IN_FULL else "Other measurements"
    return f"[{figure.says}](#{_anchor(title)})"


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
