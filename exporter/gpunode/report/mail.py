"""Files for each team: its bill as a page, as text, and as a mail that is ready to be sent."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from email.message import EmailMessage
from email.policy import SMTP

from rich.console import Console

from gpunode.report.document import Report
from gpunode.report.page import html
from gpunode.report.terminal import print_report

LINE = 76
"""Characters of a line of a mail (RFC 5322 asks for no more than 78)."""

MAX_NAME = 60


def text(report: Report, line: int = LINE) -> str:
    """What a terminal would show, without colours."""
    file = io.StringIO()
    print_report(report, Console(file=file, width=line), wide=False)
    return "\n".join(one.rstrip() for one in file.getvalue().splitlines()) + "\n"


def mail(report: Report, to: tuple[str, ...], sender: str | None) -> bytes:
    """A mail with the bill as its body and the page attached, for ``sendmail -t``."""
    message = EmailMessage(policy=SMTP.clone(linesep="\n"))  # sendmail takes lines of this system
    if sender:
        message["From"] = sender
    message["To"] = ", ".join(to)
    message["Subject"] = report.title
    message["X-Unsent"] = "1"  # a mail program opens it as a draft
    message.set_content(text(report))
    message.add_attachment(html(report), subtype="html", filename="gpu-bill.html")
    return message.as_bytes()


def names(teams: list[str]) -> Iterator[str]:
    """A name of a file for each team: all different, and none leads out of its folder."""
    taken: set[str] = set()
    for team in teams:
        base = re.sub(r"[^A-Za-z0-9_-]+", "-", team)[:MAX_NAME].strip("-") or "team"
        name, number = base, 1
        while name.lower() in taken:
            number += 1
            name = f"{base}-{number}"
        taken.add(name.lower())
        yield f"team-{name}"
