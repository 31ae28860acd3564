"""An incident as one page of HTML that can be mailed: no script, and nothing from elsewhere.

Every text in it comes from a node and may have been chosen by a tenant: ``tag`` escapes it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from html import escape

from gpunode.export import palette
from gpunode.gpu.ledger import STATES
from gpunode.incidents.history import GpuHistory
from gpunode.incidents.incident import KINDS, Brief, Happening, Incident, OnGpu
from gpunode.node.stacks import ThreadStack
from gpunode.text import printable
from gpunode.verdict.reasons import REASONS
from gpunode.verdict.where import StackLook, sentence
from gpunode.words import STATES as LEDGER

WIDTH, HEIGHT = 900, 22
"""Of the picture of one GPU."""

MAX_PROCESSES = 4
MAX_THREADS_SHOWN = 16
"""Threads of a process that are shown."""

MAX_TEXT = 1000
"""Characters of a text."""

FUTURE = 1e11
"""Seconds since the epoch that no incident has."""

COMMAND = re.compile("`([^`]+)`")

MARKED_SECONDS = 90.0
"""Seconds before and after the beginning whose moments are marked."""

CSS = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  overflow-wrap: anywhere }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0; min-width: 4.5rem;
  border-bottom: 1px solid #8884 }
td:first-child { font-variant-numeric: tabular-nums }
code { font: 13px ui-monospace, Menlo, Consolas, monospace; background: #8882;
  padding: .1rem .2rem }
.gpu { margin: .6rem 0 .1rem }
pre { overflow-x: auto; padding: .6rem; border: 1px solid #8884; font-size: 13px }
.near td:first-child { font-weight: bold }
.key span { display: inline-block; margin-right: 1rem } .key i { display: inline-block;
  width: .8rem; height: .8rem; margin-right: .3rem }
svg { display: block; width: 100%; height: auto }
"""


def page(incident: Incident) -> str:
    """The page of an incident."""
    brief = incident.brief
    head = (
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        # Whatever a text in it may be, no browser runs or fetches anything for this page.
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        tag("title", f"{brief.title} ({brief.id})"),
        f"<style>{CSS}</style>",
    )
    parts = [
        tag("h1", brief.title),
        _facts(incident),
        *_section("What to do", tag("p", incident.remedy) if incident.remedy else ""),
        *_section("Who waits for whom", _waits_table(incident)),
        *_section("Where in the code", _looks_html(incident.looks)),
        *_section("The GPUs", _history(incident)),
        *_section("What happened on the node", _moments(incident)),
        *_section("The node as it began", _figures(incident)),
        *_section("Processes", _processes(incident)),
        *_section("Evidence", _evidence(incident)),
        tag("p", f"Kept by gpunode {incident.version}. {_tape_note(incident)}"),
    ]
    body = "\n".join(filter(None, parts))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n{"".join(head)}\n</head>\n'
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def tag(name: str, text: object, **attributes: str) -> str:
    """An element with a text; what is between backquotes in it is code."""
    given = "".join(f' {key.rstrip("_")}="{escape(value)}"' for key, value in attributes.items())
    shown = escape(printable(str(text), MAX_TEXT))
    if name != "title":
        shown = COMMAND.sub(r"<code>\1</code>", shown)
    return f"<{name}{given}>{shown}</{name}>"


def moment_of(seconds: float) -> str:
    """A time for a person, in UTC."""
    if not 0 <= seconds < FUTURE:
        return "at a time that cannot be"
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def duration_text(brief: Brief) -> str:
    """How long an incident lasted, in words."""
    if brief.over is not None:
        return f"lasted {brief.over - brief.began:.0f} s"
    return "its end is not known" if brief.complete else "goes on"


def gpu_text(incident: Incident, gpu: str) -> str:
    """A GPU of an incident, with the ranks and processes that were seen on it."""
    found = [
        ", ".join(filter(None, (one.rank and f"rank {one.rank}", f"PID {one.pid}")))
        for one in incident.processes
        if one.gpu == gpu
    ]
    return f"GPU {gpu} ({'; '.join(found[:MAX_PROCESSES])})" if found else f"GPU {gpu}"


def position_text(incident: Incident) -> str:
    """Where in the code, or why that is not known; empty if nobody waits."""
    if incident.brief.where or not incident.waits or incident.looks:
        return incident.brief.where
    return "not known: no process was looked at; `gpunode doctor` says what that takes"


def _section(title: str, content: str) -> Iterator[str]:
    if content:
        yield tag("h2", title)
        yield content


def _table(head: Iterable[str], rows: Iterable[tuple[Iterable[object], bool]]) -> str:
    """A table; the marked rows are near the beginning. Empty if it has no rows."""
    lines = []
    for cells, near in rows:
        row = "".join(tag("td", cell) for cell in cells)
        lines.append(f'<tr class="near">{row}</tr>' if near else f"<tr>{row}</tr>")
    titles = "".join(tag("th", cell) for cell in head)
    return f"<table>\n<tr>{titles}</tr>\n{chr(10).join(lines)}\n</table>" if lines else ""


def _facts(incident: Incident) -> str:
    brief = incident.brief
    rows: list[tuple[Iterable[object], bool]] = [
        (("what", KINDS[brief.kind]), False),
        (("since", f"{moment_of(brief.began)}, {duration_text(brief)}"), False),
        (("node", brief.node or "not known"), False),
        (("GPUs", ", ".join(brief.gpus) or "none"), False),
        (("job", ", ".join(brief.owners) or "not known"), False),
        (("incident", brief.id), False),
    ]
    if incident.price is not None:
        rows.append((("cost", str(incident.price)), False))
    if where := position_text(incident):
        rows.append((("where", where), False))
    return _table((), rows)


def _waits_table(incident: Incident) -> str:
    rows = [
        ((gpu_text(incident, late.at[0]), REASONS[late.reason].meaning, late.where), False)
        for late in incident.waits
        if late.reason in REASONS
    ]
    return _table(("waited for", "why it does not come", "where"), rows)


def _looks_html(looks: Iterable[StackLook]) -> str:
    return "\n".join(part for look in looks for part in _look_html(look))


def _look_html(look: StackLook) -> Iterator[str]:
    code = any(one.frames for one in look.stacks.threads)
    said = sentence(look.stacks, code, look.progress)
    rank = f", rank {look.rank}" if look.rank else ""
    role = "waits" if look.waits else "is waited for"
    what = f"{moment_of(look.time)}: GPU {look.at[0]}{rank}, process {look.pid}, {role}"
    yield tag("p", f"{what}: {said}" if said else what)
    lines = [line for one in look.stacks.threads[:MAX_THREADS_SHOWN] for line in _thread(one)]
    if look.stacks.all_threads > MAX_THREADS_SHOWN:
        lines.append(f"and {look.stacks.all_threads - MAX_THREADS_SHOWN} more threads")
    if lines:
        yield f"<pre>{escape(chr(10).join(printable(line, MAX_TEXT) for line in lines))}</pre>"


def _thread(one: ThreadStack) -> Iterator[str]:
    words = ", ".join(filter(None, (str(one.thread), one.state, one.waits_in)))
    yield f"{one.name or 'thread'} ({words}{', holds the GIL' if one.holds_gil else ''})"
    if one.kernel:
        yield f"  kernel: {' < '.join(one.kernel)}"
    for frame in one.frames:
        yield f"  {frame.function}  {frame.file}:{frame.line or '?'}"


def _history(incident: Incident) -> str:
    if len(incident.times) < 2 or incident.times[-1] <= incident.times[0]:
        return ""
    used = [state for state in STATES if any(state in gpu.states for gpu in incident.history)]
    key = "".join(
        f'<span><i style="background:{palette.STATES[state]}"></i>{escape(said)}</span>'
        for state, said in ((state, LEDGER[state].headline) for state in used)
    )
    drawn = (
        tag("p", f"GPU {gpu.gpu}", class_="gpu")
        + _picture(gpu, incident.times, incident.brief.began)
        for gpu in incident.history
    )
    span = f"From {moment_of(incident.times[0])} to {moment_of(incident.times[-1])}."
    line = "The line is where the incident begins."
    return f'{tag("p", f"{span} {line}")}<p class="key">{key}</p>{"".join(drawn)}'


def _picture(gpu: GpuHistory, times: tuple[float, ...], began: float) -> str:
    """The states of a GPU over time, one above the other."""
    first, last = times[0], times[-1]
    scale = WIDTH / (last - first)
    bars = []
    for place in range(1, len(times)):
        x, y = (times[place - 1] - first) * scale, float(HEIGHT)
        width = (times[place] - times[place - 1]) * scale + 0.3
        for state, shares in gpu.states.items():
            share = shares[place] if place < len(shares) else None
            if share and state in palette.STATES:
                y -= share * HEIGHT
                bars.append(
                    f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
                    f'height="{share * HEIGHT:.1f}" fill="{palette.STATES[state]}"/>'
                )
    at = min(max((began - first) * scale, 0.0), float(WIDTH))
    mark = f'<rect x="{at:.1f}" y="0" width="2" height="{HEIGHT}" fill="{palette.LIMIT}"/>'
    label = escape(f"The states of GPU {printable(gpu.gpu, 16)} over time")
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        f"{''.join(bars)}{mark}</svg>"
    )


def _moments(incident: Incident) -> str:
    return _table(
        ("after", "what", ""),
        (_moment_row(moment, incident.brief.began) for moment in incident.moments),
    )


def _moment_row(moment: Happening, began: float) -> tuple[Iterable[object], bool]:
    after = moment.time - began
    return (f"{round(after) + 0:+d} s", moment.what, moment.text), abs(after) <= MARKED_SECONDS


def _figures(incident: Incident) -> str:
    rows = []
    for one in incident.figures:
        limit = "" if one.limit is None else f"{one.limit:g}"
        what = f"{one.name} {one.what}".strip()
        rows.append(((what, f"{one.value:g}", one.unit.replace("_", " "), limit), one.short))
    return _table(("figure", "value", "unit", "limit"), rows)


def _processes(incident: Incident) -> str:
    return _table(
        ("GPU", "process", "rank", "of", "end"),
        (
            ((one.gpu, one.pid, one.rank, one.owner, _end(one, incident.brief.began)), False)
            for one in incident.processes
        ),
    )


def _end(one: OnGpu, began: float) -> str:
    if one.gone is None:
        return "was there to the end"
    gone = f"gone after {one.gone - began:.0f} s"
    return f"{gone}: {one.end}" if one.end else f"{gone}; how it ended is not known"


def _evidence(incident: Incident) -> str:
    return _table(
        ("series", "value", "limit", "meaning"),
        (
            ((one.series, f"{one.value:g}", f"{one.threshold:g}", one.meaning), False)
            for one in incident.evidence
        ),
    )


def _tape_note(incident: Incident) -> str:
    left_out = f" {incident.left_out} moments are left out." if incident.left_out else ""
    if not incident.brief.tape_bytes:
        return f"Its tape made way for those of later incidents.{left_out}"
    return (
        f"Its tape has {incident.brief.tape_bytes} bytes: gpunode incident {incident.brief.id} "
        f"--tape FILE, then gpunode replay FILE.{left_out}"
    )
