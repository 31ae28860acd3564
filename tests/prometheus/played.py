"""Recorded incidents as a Prometheus has them: each tape is a job of its own, on its own node.

What a loop says at each step is written as OpenMetrics, with what the rules would record of the
job, so that the tapes end at a moment; what they end with goes on for an hour.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from gpunode.config.daemon import IncidentSettings, Settings
from gpunode.gpu.activity import SECONDS
from gpunode.gpu.xids import XIDS
from gpunode.incidents.black_box import INFO, BlackBox
from gpunode.incidents.incident import began_at
from gpunode.jobs.processes import UNREADABLE
from gpunode.metric import Sample
from gpunode.node.node import Node
from gpunode.node.tape import TapeNode
from gpunode.sources import watch
from gpunode.verdict.reasons import WAITED_FOR
from gpunode.verdict.source import BOTTLENECK

GOES_ON = 3600
CLUSTER = "played"
STAMP = re.compile(r"^\d{8}T\d{6}Z")
SCRAPED_METRICS = {BOTTLENECK, WAITED_FOR, INFO, SECONDS, UNREADABLE, XIDS}
ONE_XID = "79"
"""Of some dozen that are counted; one tells as much."""

LASTS = 10
"""Seconds before the end whose growth of counters goes on."""

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PlayedTape:
    """A tape, as which job and node it is, and how long before the moment it ends."""

    tape: Path
    job: str
    node: str
    settings: Settings
    ended: int = 0


def openmetrics(every: list[PlayedTape], moment: int) -> str:
    """All of them, as promtool reads it."""
    lines: dict[str, list[str]] = defaultdict(list)
    for one in every:
        for name, labels, value, at in _series(one, moment - one.ended):
            of = {"cluster": CLUSTER, "instance": one.node, **labels}
            shown = ",".join(f"{key}={json.dumps(text)}" for key, text in of.items() if text)
            lines[name].append(f"{name}{{{shown}}} {value:g} {at}")
    return "\n".join([*(line for name in lines for line in lines[name]), "# EOF", ""])


def _series(one: PlayedTape, end: int) -> Iterator[tuple[str, Labels, float, int]]:
    """Names, labels, values and Unix seconds."""
    tape = TapeNode(one.tape)
    box = BlackBox(cast(Node, tape), IncidentSettings(), code=False)
    loop = watch(box.node, one.settings, box)
    shift = end - tape.clock.time() + tape.clock.monotonic() - tape.end
    last = -1
    recent: deque[tuple[int, dict[str, float]]] = deque(maxlen=LASTS + 1)
    for _ in loop.replay(tape.clock, tape.end):
        now = int(tape.clock.monotonic())
        if now > last:
            last = now
            shown = list(_scraped(one, loop.samples(), shift))
            counted = {_key(of): value for name, of, value in shown if name == SECONDS.name}
            recent.append((now, counted))
            for name, labels, value in shown:
                yield name, labels, value, end - int(tape.end) + now
    (began, before), (ended, after) = recent[0], recent[-1]
    grows = {of: (after[of] - before.get(of, 0.0)) / (ended - began) for of in after}
    shown = list(_scraped(one, loop.samples(), shift))
    for at in range(end + 1, end + GOES_ON, 15):
        for name, labels, value in shown:
            more = grows[_key(labels)] * (at - end) if name == SECONDS.name else 0.0
            yield name, labels, value + more, at


def _key(labels: Labels) -> str:
    return json.dumps(labels, sort_keys=True)


def _scraped(
    one: PlayedTape, samples: Iterable[Sample], shift: float
) -> Iterator[tuple[str, Labels, float]]:
    """What a scrape has, and what the rules record of it."""
    gpus = set()
    for sample in samples:
        labels = dict(zip(sample.metric.labels, sample.labels, strict=True))
        if sample.metric is SECONDS:
            gpus.add((labels["gpu"], labels["uuid"]))
        if sample.metric not in SCRAPED_METRICS or labels.get("xid", ONE_XID) != ONE_XID:
            continue
        if sample.metric is INFO:
            labels["incident"] = _shifted(labels["incident"], shift)
        yield sample.metric.name, labels, float(sample.value)  # type: ignore[arg-type]
    for gpu, uuid in gpus:
        yield "gpu:gpunode_owner:info", {"gpu": gpu, "uuid": uuid, "workload": one.job}, 1.0
    yield "job:gpunode_gpu_states:gpus", {"state": "compute", "workload": one.job}, 1.0


def _shifted(incident: str, seconds: float) -> str:
    """The ID of an incident that began so much later."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(round(began_at(incident) + seconds)))
    return STAMP.sub(stamp, incident)
