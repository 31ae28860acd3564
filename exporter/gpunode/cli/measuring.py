"""``gpunode nccl-bench --hosts``: the bandwidth between nodes, and what is slow."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from gpunode.cli import streams
from gpunode.cli.table import fabric_table
from gpunode.config import NcclBenchSettings, UsageError
from gpunode.nccl.fabric import FabricRun, parse, problems
from gpunode.nccl.launch import between, expand
from gpunode.nccl.run import BenchError
from gpunode.report.fabric_picture import drawn
from gpunode.text import json_for_terminal

LARGEST_RESULT = 256 << 20
"""The most bytes of a result that are read: four million exchanges."""

MOST_SHOWN = 20
"""Problems in the terminal."""


def between_nodes(settings: NcclBenchSettings, gpus_here: Callable[[], int]) -> None:
    """Measure between hosts, or judge a result; exit with 1 if it is slow.

    Without another number each host has as many GPUs as this one.
    """
    fabric = _judged(settings.result) if settings.result else _measured(settings, gpus_here)
    found = problems(fabric)
    if settings.picture:
        try:
            Path(settings.picture).write_text(drawn(fabric), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"picture: {settings.picture}: {error.strerror}") from error
    with streams.printing():
        if settings.json_output:
            told = [{**asdict(one), "text": str(one)} for one in found]
            print(json_for_terminal(json.dumps({**asdict(fabric), "problems": told}, indent=2)))
        else:
            Console().print(fabric_table(fabric))
            for one in found[:MOST_SHOWN]:
                print(one)
            if len(found) > MOST_SHOWN:
                print(f"And {len(found) - MOST_SHOWN} more: --json has all.")
            if not found:
                print("No pair of nodes is slow beside the others.")
    if found:
        sys.exit(1)


def _judged(name: str) -> FabricRun:
    """What ranks that somebody started have printed."""
    try:
        content = streams.content_of(name, LARGEST_RESULT)
        return parse(content.decode(errors="replace"))
    except OSError as error:
        raise UsageError(f"result: {name}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"result: {name}: {error}") from error


def _measured(settings: NcclBenchSettings, gpus_here: Callable[[], int]) -> FabricRun:
    try:
        hosts = expand(settings.hosts)
        if len(hosts) < 2:
            raise ValueError("name two hosts at least")
        gpus = settings.gpus or gpus_here()
        if not gpus:
            raise ValueError("say with --gpus how many GPUs each has; the driver lists none here")
        folder = settings.host.nccl_bench_folder
        return between(hosts, gpus, settings.largest, settings.python, folder, settings.launcher)
    except (BenchError, ValueError) as error:
        raise UsageError(f"hosts: {error}") from error
