"""``gpunode incidents`` and ``gpunode incident``: what a daemon, or its folder, has kept."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from gpunode.cli import streams
from gpunode.cli.daemon import WRONG_VERSION, DaemonAddress, DaemonError
from gpunode.cli.extras import needing
from gpunode.cli.settings.incidents import IncidentCommandSettings, IncidentsCommandSettings
from gpunode.export.incident_page import duration_text, gpu_text, moment_of, page, position_text
from gpunode.incidents.folder import Folder
from gpunode.incidents.incident import ID, Brief, Incident, as_json, briefs, parse
from gpunode.mistake import UsageError
from gpunode.text import json_for_terminal, printable
from gpunode.verdict.reasons import REASONS

log = logging.getLogger(__name__)

ANSWER_TIMEOUT = 10.0
"""Seconds for an answer of the daemon: a tape may have some megabytes."""

LATEST = "latest"

OUT = Path("-")
"""In place of a file: standard output."""

MAX_LINE = 1000
"""Characters of a line."""


def list_incidents(settings: IncidentsCommandSettings) -> None:
    """Print the incidents that are kept."""
    found = IncidentStore(settings).briefs()
    with streams.printing():
        if settings.json_output:
            print(json_for_terminal(briefs().dump_json(found, indent=2).decode()))
        else:
            print("\n".join(table(found)))


def show_incident(settings: IncidentCommandSettings) -> None:
    """Print an incident, or those of a job, or write them to files."""
    if settings.job:
        with needing("report", "incident --job"):
            from gpunode.cli import job_incidents
        job_incidents.write(settings)
        return
    store = IncidentStore(settings)
    incident = store.incident(settings.incident)
    written = write(store, incident, settings)
    with streams.printing():
        if settings.json_output:
            print(json_for_terminal(as_json(incident).decode()))
        else:
            print("\n".join(written or lines(incident)))


class IncidentStore:
    """Where incidents are read: a daemon, or the folder that one has kept them in."""

    def __init__(self, settings: IncidentsCommandSettings | IncidentCommandSettings) -> None:
        """Raises ``UsageError``."""
        self.folder: Folder | None = None
        self.daemon: DaemonAddress | None = None
        if settings.folder is None:
            self.daemon = DaemonAddress.of(settings)
            return
        try:
            self.folder = Folder(settings.folder)
        except OSError as error:
            raise UsageError(f"{settings.folder}: {error.strerror}") from error

    def briefs(self) -> list[Brief]:
        """The incidents, the latest first. Raises ``UsageError``."""
        if self.folder is None:
            try:
                return briefs().validate_json(self._get(""))
            except ValueError as error:
                raise UsageError(WRONG_VERSION) from error
        found, unread = [], []
        for name in self._names(self.folder):
            try:
                found.append(self.folder.read(name).brief)
            except PermissionError as error:
                raise UsageError(f"{self.folder.path}: {error.strerror}") from error
            except FileNotFoundError:  # it was removed since
                continue
            except (OSError, ValueError) as error:  # the others count
                unread.append(f"{name}: {error}")
        if unread:
            log.warning("%d of its incidents cannot be read, such as %s", len(unread), unread[0])
        return found

    def incident(self, wanted: str) -> Incident:
        """An incident by its ID, or the latest. Raises ``UsageError``."""
        name = self._find(wanted)
        try:
            if self.folder is None:
                return parse(self._get(f"/{name}"))
            return self.folder.read(name)
        except FileNotFoundError as error:
            raise UsageError(f"{name}: no such incident in this folder") from error
        except OSError as error:
            raise UsageError(f"{name}: {error.strerror}") from error
        except ValueError as error:
            raise UsageError(f"{name}: {error}") from error

    def tape(self, name: str) -> bytes:
        """The tape of an incident. Raises ``UsageError``."""
        if self.folder is None:
            return self._get(f"/{name}/tape")
        try:
            found = self.folder.tape(name)
        except OSError as error:
            raise UsageError(f"{name}: {error.strerror}") from error
        if not found:
            raise UsageError(f"{name}: it has no tape")
        return found

    def _find(self, wanted: str) -> str:
        if wanted == LATEST:
            names = (
                [one.id for one in self.briefs()]
                if self.folder is None
                else self._names(self.folder)
            )
            if not names:
                raise UsageError("no incident is kept")
            wanted = names[0]
        if not ID.fullmatch(wanted):
            shown = printable(wanted, 80)
            raise UsageError(f"{shown}: no ID of an incident; `gpunode incidents` lists them")
        return wanted

    def _names(self, folder: Folder) -> list[str]:
        try:
            return folder.names()
        except OSError as error:
            raise UsageError(f"{folder.path}: {error.strerror}") from error

    def _get(self, path: str) -> bytes:
        assert self.daemon is not None  # noqa: S101 the constructor has either
        try:
            return self.daemon.private(f"/api/v1/incidents{path}", ANSWER_TIMEOUT)
        except DaemonError as error:
            raise UsageError(f"{self.daemon.url}: {error}") from error


def table(briefs: list[Brief]) -> Iterator[str]:
    """The list of incidents, a line each."""
    if not briefs:
        yield "No incident is kept."
    for one in briefs:
        yield printable(f"{one.id}  {one.title} ({duration_text(one)})", MAX_LINE)


def lines(incident: Incident) -> Iterator[str]:
    """An incident in plain lines."""
    for line in _lines(incident):
        yield printable(line, MAX_LINE)


def _lines(incident: Incident) -> Iterator[str]:
    brief = incident.brief
    yield brief.title
    yield f"  since {moment_of(brief.began)}, {duration_text(brief)}; {brief.id}"
    if brief.owners:
        yield f"  job: {', '.join(brief.owners)}"
    if where := position_text(incident):
        yield f"  where: {where}"
    for late in incident.waits:
        if late.reason in REASONS:
            who = gpu_text(incident, late.at[0])
            yield f"  waited for: {who}, {REASONS[late.reason].meaning}"
    if incident.remedy:
        yield f"  do: {incident.remedy}"
    if incident.price is not None:
        yield f"  cost: {incident.price}"
    for moment in incident.moments:
        yield f"  {round(moment.time - brief.began) + 0:+7d} s  {moment.what:8} {moment.text}"
    for one in incident.evidence:
        yield f"  {one.series} = {one.value:g} (limit {one.threshold:g}): {one.meaning}"


def write(store: IncidentStore, incident: Incident, settings: IncidentCommandSettings) -> list[str]:
    """Write the files that are asked for; returns what to print. Raises ``UsageError``."""
    written = []
    if settings.html == OUT:
        return [page(incident)]
    if settings.html is not None:
        _private(settings.html, page(incident).encode())
        written.append(f"{settings.html}: the incident as a page")
    if settings.tape is not None:
        tape = store.tape(incident.brief.id)
        _private(settings.tape, tape)
        written.append(f"{settings.tape}: its tape, for `gpunode replay {settings.tape}`")
    return written


def _private(path: Path, data: bytes) -> None:
    """Write a file that other users may not read: it names processes, and maybe code."""
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with open(os.open(path, flags, 0o600), "wb") as file:
            file.write(data)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
