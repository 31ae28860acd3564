"""The node page: its files, read once at the start, so that a request reads none."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import Request, Response

from gpunode import words
from gpunode.export import palette
from gpunode.export.web.prepared import PreparedAnswer

FOLDER = Path(__file__).parent

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""No text of the node can become a script or a style: https://www.w3.org/TR/CSP3/"""

URGENCIES = {
    "now": palette.SEVERITIES["page"],
    "soon": palette.SEVERITIES["ticket"],
    "note": palette.SEVERITIES["info"],
    "fine": palette.FINE,
}

TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


def files() -> dict[str, PreparedAnswer]:
    """The files of the page by their path."""
    names = ("page.css", "icon.svg")
    found = {f"/page/{name}": _file(name) for name in names}
    return {
        "/": _file("index.html"),
        "/page/page.js": PreparedAnswer(script().encode(), TYPES[".js"], HEADERS),
        "/page/palette.css": PreparedAnswer(colours().encode(), TYPES[".css"], HEADERS),
        **found,
    }


def script() -> str:
    """The script, after the words for the states of the ledger."""
    states = [(name, said.headline, said.sentence) for name, said in words.STATES.items()]
    return f"const STATES = {json.dumps(states)};\n{(FOLDER / 'page.js').read_text()}"


def colours() -> str:
    """The palette as a style sheet: an element with a state or an urgency knows its colour."""
    named = f":root {{ --fine: {palette.FINE}; --limit: {palette.LIMIT}; }}"
    rules = [
        f'[data-{kind}="{name}"] {{ --colour: {colour}; }}'
        for kind, of in (("state", palette.STATES), ("urgency", URGENCIES))
        for name, colour in of.items()
    ]
    return "\n".join([named, *rules, ""])


def sends(file: PreparedAnswer) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint of a file."""

    async def send(request: Request) -> Response:
        return file.answer(request)

    return send


def _file(name: str) -> PreparedAnswer:
    path = FOLDER / name
    return PreparedAnswer(path.read_bytes(), TYPES[path.suffix], HEADERS)
