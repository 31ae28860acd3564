"""Who may see what is of a job and not only of the node: who gave a password, or is on the node."""

from __future__ import annotations

import ipaddress
import re

from fastapi import HTTPException, Request

from gpunode.export.web.visitors import plain

KNOWN = "gpunode.known"
"""In the scope of a request, whether its client had to say who it is."""

HERE = re.compile(r"(?:localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::[0-9]{1,5})?", re.IGNORECASE)
"""What a client on this node calls the server. A page of another site that had its name resolved to
a loopback address would call it by that name: https://en.wikipedia.org/wiki/DNS_rebinding"""

PASSED_ON = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""What a proxy on this node adds to what somebody else asks through it."""

WHY = (
    "incidents say more of a job than everybody may know: turn on passwords or client certificates "
    "(--web.config.file), or ask on the node itself, at localhost"
)

WHY_NOT_ASKED = (
    "where processes stand is told to who says who he is: turn on passwords or client certificates "
    "(--web.config.file), or run `gpunode stacks` as root on the node"
)


def known(request: Request) -> None:
    """Let a request pass if its client had to say who it is. Raises ``HTTPException``."""
    if not request.scope.get(KNOWN):
        raise HTTPException(403, WHY_NOT_ASKED)


def private(request: Request) -> None:
    """Let a request pass if it may see incidents. Raises ``HTTPException``."""
    if not (request.scope.get(KNOWN) or _is_here(request)):
        raise HTTPException(403, WHY)


def _is_here(request: Request) -> bool:
    if request.client is None or not HERE.fullmatch(request.headers.get("host", "")):
        return False
    if any(header in request.headers for header in PASSED_ON):
        return False
    try:
        address: ipaddress.IPv4Address | ipaddress.IPv6Address = plain(request.client.host)
    except ValueError:
        return False
    return address.is_loopback
