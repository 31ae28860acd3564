"""Played incidents in a Prometheus, for the commands that ask one, and a node without a driver."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pynvml
import pytest

from gpunode.config.daemon import Settings
from gpunode.recorded import INCIDENTS
from tests.prometheus.known import remembering
from tests.prometheus.played import PlayedTape, openmetrics
from tests.verdict.test_verdict import CAUSE, ENDED, REAL, SETTINGS

FIRST, NEXT = "10.0.0.1:9816", "10.0.0.2:9816"
"""The nodes of the job ``pair``: the second hangs forty seconds after the first."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A Prometheus in which each recorded incident is a job, and when they end."""

    url: str
    moment: int


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library of NVIDIA's driver is not on this machine."""

    def nothing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "CDLL", nothing)
    monkeypatch.setattr(pynvml, "nvmlLib", None)


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    moment = int(time.time()) - 30
    ours, real = (*CAUSE, "h200_held"), (*ENDED, "uncounted")
    every = [PlayedTape(INCIDENTS / f"{name}.jsonl.gz", name, name, SETTINGS) for name in ours]
    every += [PlayedTape(REAL / f"{name}.jsonl.gz", name, name, Settings()) for name in real]
    hang = INCIDENTS / "h200_hang.jsonl.gz"
    every += [
        PlayedTape(hang, "pair", FIRST, SETTINGS, ended=40),
        PlayedTape(hang, "pair", NEXT, SETTINGS, ended=0),
    ]
    past = openmetrics(every, moment)
    with remembering(past, tmp_path_factory.mktemp("played")) as url:
        yield Stage(url, moment)
