"""A peer's opinion: how kempnerpulse classifies each GPU, from our page for users of dcgm-exporter.

https://github.com/KempnerInstitute/kempnerpulse 0.5.0, where it is installed.
"""

from __future__ import annotations

import csv
import importlib.util
import shutil
import subprocess
import sys

NAME = "kempnerpulse"
OPTIONS = ("--backend", "prometheus", "--once", "--show-all", "--export", "all", "--source")
TIMEOUT = 20.0
"""Seconds for an answer; it takes about one."""


def start_peer(port: int) -> subprocess.Popen[str] | None:
    """The peer while it looks at the GPUs of a daemon, or None where it is not installed."""
    if program := shutil.which(NAME):
        command = [program]
    elif importlib.util.find_spec(NAME):
        command = [sys.executable, "-m", NAME]
    else:
        return None
    command += [*OPTIONS, f"http://127.0.0.1:{port}/metrics"]
    nothing = subprocess.DEVNULL
    return subprocess.Popen(
        command, stdin=nothing, stdout=subprocess.PIPE, stderr=nothing, text=True
    )


def answer(peer: subprocess.Popen[str] | None) -> dict[int, str]:
    """The class of each GPU; without those of which it says nothing."""
    if peer is None:
        return {}
    try:
        said, _ = peer.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        peer.kill()
        peer.communicate()
        return {}
    return {int(row["gpu_id"]): row["status"] for row in csv.DictReader(said.splitlines())}
