"""Collectives that take no time: every rank goes on alone."""

from __future__ import annotations

import time
from typing import Any

import torch


def init_process_group(backend: str, **_: Any) -> None: ...


def destroy_process_group() -> None: ...


def all_reduce(tensor: Any) -> None:
    torch.show("collective")


def broadcast(tensor: Any, source: int) -> None:
    time.sleep(0.001)
