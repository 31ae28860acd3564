"""``gpunode why`` as who runs a job calls it, of jobs whose truth is known."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser
import pytest

from alerts.recording import RECORDS
from gpunode.cli.commands import main
from gpunode.report import job, runs
from gpunode.report.job import MEASURED, RunQuery
from gpunode.sources import METRICS
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.reasons import STOPPED
from tests.bench.known import backfill
from tests.bench.known import served as prometheus
from tests.needs import need

NOW = 1_800_000_000
"""2027-01-15, 08:00 UTC."""

EVERY = 30
HOUR = 3600
HOSTILE = '<b>"x"</b>'

Shares = Mapping[str, float]
Labels = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a job was like for some hours."""

    hours: float
    shares: Shares
    causes: Shares = field(default_factory=dict)
    """The share of its GPUs for which each cause is named; what is left has ``none``."""

    gains: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    """How many times as fast it would be without each cause: bounds and estimate."""

    step: float = 0.0
    verdicts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A job of which everything is known; ``ended`` hours ago its last part was over."""

    workload: str
    parts: tuple[Part, ...]
    nodes: tuple[str, ...]
    gpus: int = 8
    namespace: str = ""
    user: str = ""
    pod: str = ""
    ended: float = 0.0
    torch: str = "2.9.1"
    named_on: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    """The GPUs on which each cause is named, as nodes and indices."""

    more: Callable[[int, int], list[tuple[str, Labels, Callable[[int], float], int]]] | None = None

    @property
    def end(self) -> int:
        return NOW - round(self.ended * HOUR)

    @property
    def begin(self) -> int:
        return self.end - round(sum(part.hours for part in self.parts) * HOUR)

    @property
    def held(self) -> float:
        return sum(part.hours for part in self.parts) * self.size

    @property
    def size(self) -> int:
        return self.gpus * len(self.nodes)

    @property
    def labels(self) -> Labels:
        own = {"owner_namespace": self.namespace, "workload": self.workload, "user": self.user}
        return {name: text for name, text in own.items() if text}

    def hours(self, state: str) -> float:
        return sum(part.hours * self.size * part.shares.get(state, 0.0) for part in self.parts)

    def places(self) -> Iterator[tuple[str, str]]:
        for node in self.nodes:
            for gpu in range(self.gpus):
                yield node, str(gpu)


WELL = Part(hours=2, shares={"compute": 0.95, "communication": 0.05}, step=1.0)
STORAGE = Part(
    hours=4,
    shares={"compute": 0.5, "starved": 0.5},
    causes={"data_loading_storage": 0.5},
    gains={"data_loading_storage": (1.5, 1.8, 2.25)},
    step=2.0,
)
HANGS = Part(
    hours=1,
    shares={"blocked": 0.875, "idle": 0.125},
    causes={"stalled_collective": 0.875, "stopped": 0.125},
)
WAITS = Part(
    hours=11, shares={"compute": 0.7, "blocked": 0.3}, causes={"straggler": 0.9375}, step=1.0
)
DARK = Part(hours=3, shares={"unknown": 0.9, "idle": 0.1}, verdicts=False)


def _stalls(begin: int, end: int) -> list[tuple[str, Labels, Callable[[int], float], int]]:
    hung = end - HOUR
    late = {"instance": "n-2", "gpu": "3", "uuid": "GPU-n-2-3", "rank": "3", "reason": "stopped"}
    fired = {"alertname": "JobStalled", "alertstate": "firing", "severity": "page"}
    return [
        ("job:gpunode_stalled:seconds", {}, lambda at: at - hung, hung),
        ("gpu:gpunode_rank:awaited", late, lambda _: 1.0, hung),
        ("ALERTS", fired, lambda _: 1.0, hung + 300),
    ]


def _io(begin: int, end: int) -> list[tuple[str, Labels, Callable[[int], float], int]]:
    on = {"instance": "n-1", "resource": "io"}
    name = "gpunode_job_pressure_waiting_seconds_total"
    return [(name, {**on, "gpu": "0", "uuid": "GPU-n-1-0"}, lambda at: 0.62 * (at - begin), begin)]


STARVED = Known(
    workload="llm", namespace="research", pod="llm-worker-{}", nodes=("n-1",), more=_io,
    parts=(WELL, STORAGE),
)
HANG = Known(
    workload="slurm-4301", user="kim", nodes=("n-2",), more=_stalls, parts=(WELL, HANGS),
    named_on={"stopped": (("n-2", "3"),)},
)
STRAGGLER = Known(
    workload="resnet", namespace="vision", pod="resnet-{}", nodes=("n-3", "n-4"), ended=1.0,
    parts=(WAITS,),
)
HEALTHY = Known(workload="ann@n-5", user="ann", nodes=("n-5",), gpus=2, parts=(WELL,))
UNKNOWN = Known(workload="slurm-77", user="lee", nodes=("n-6",), ended=30.0, parts=(DARK,))
EARLIER = (
    Known(
        workload="llm", namespace="research", pod="llm-worker-{}", nodes=("n-1",), ended=48.0,
        parts=(WELL,), torch="2.8.0",
    ),
    Known(workload="slurm-4299", user="kim", nodes=("n-2",), ended=40.0, parts=(WELL,)),
    Known(workload="slurm-4300", user="kim", nodes=("n-2",), ended=20.0, parts=(WELL,)),
    Known(workload="slurm-4302", user="kim", nodes=("n-7",), gpus=4, ended=10, parts=(WELL,)),
)
SAME_NAME = tuple(
    Known(workload="train", namespace=namespace, nodes=(node,), gpus=1, ended=50.0, parts=(WELL,))
    for namespace, node in (("team-a", "n-8"), ("team-b", "n-9"), (HOSTILE, "n-10"))
)
JOBS = (STARVED, HANG, STRAGGLER, HEALTHY, UNKNOWN, *EARLIER, *SAME_NAME)
OTHERS = {"other-a": 0.6, "other-b": 0.7, "other-c": 0.9}
"""Other training on eight GPUs, by the share that was useful."""

DARKNESS = (NOW - 10 * HOUR, NOW - 10 * HOUR + 1200)
"""When nothing was recorded."""

LITTLE_OF = (NOW - 55 * HOUR, NOW)
"""For how long the cluster is recorded."""


class Series:
    """Samples in the format of OpenMetrics, by the metric."""

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = defaultdict(list)

    def put(self, name: str, labels: Labels, value: Callable[[int], float], begin: int, end: int, every: int = EVERY) -> None:
        of = ",".join(f"{key}={json.dumps(text)}" for key, text in {"cluster": "c", **labels}.items())
        self.lines[name] += [
            f"{name}{{{of}}} {value(at):.7g} {at}"
            for at in range(begin + every, end + 1, every)
            if not DARKNESS[0] < at <= DARKNESS[1]
        ]

    def text(self) -> str:
        return "\n".join([*(line for name in self.lines for line in self.lines[name]), "# EOF", ""])


def _record(known: Known, series: Series) -> None:
    """What the rules and exporters would have recorded of a job."""
    begin = known.begin
    for part in known.parts:
        end = begin + round(part.hours * HOUR)

        def put(name: str, labels: Labels, value: float, since: int = begin, until: int = end) -> None:
            series.put(name, {**known.labels, **labels}, lambda _: value, since, until)

        for state, share in part.shares.items():
            put("job:gpunode_gpu_seconds:rate5m", {"state": state}, known.size * share)
        causes = {**part.causes, "none": 1 - sum(part.causes.values())}
        for cause, share in causes.items() if part.verdicts else ():
            if share > 0:
                put("job:gpunode_gpu_bottleneck:count", {"cause": cause}, known.size * share)
        if part.step:
            put("job:gpunode_training_step:median", {}, part.step)
        put("job:gpunode_job:gpus", {}, known.size)
        for at, (node, gpu) in enumerate(known.places()):
            own = {"instance": node, "gpu": gpu, "uuid": f"GPU-{node}-{gpu}"}
            pod = {"owner_pod": known.pod.format(at)} if known.pod else {}
            put("gpu:gpunode_gpu_owner:workload", {**own, **pod}, 1)
            put("gpu:gpunode_job:member", own, 1)
            put("gpu:gpunode_job:kind", {**own, "kind": "training"}, 1)
            late = (node, gpu) == ("n-4", "5")
            if "blocked" in part.shares:
                share = 0.02 if late else part.shares["blocked"]
                put("gpu:gpunode_gpu_blocked:by_job", own, share)
            versions = {"torch": known.torch, "nccl": "2.27.5", "cuda": "", "image": "", "digest": ""}
            series.put("gpunode_job_version_info", {**own, **versions}, lambda _: 1.0, begin, end)
            for cause in part.causes:
                on = known.named_on.get(cause)
                if not late and (on is None or (node, gpu) in on):
                    put("gpu:gpunode_rank:verdict", {**own, "rank": str(at), "cause": cause}, 1)
            for cause, times in part.gains.items():
                for bound, ratio in zip(("lower", "estimate", "upper"), times, strict=True):
                    series.put(
                        "gpunode_gpu_verdict_gain_ratio",
                        {**own, "cause": cause, "bound": bound},
                        lambda _, ratio=ratio: ratio,  # type: ignore[misc]
                        begin,
                        end,
                    )
        begin = end
    for name, labels, value, since in known.more(known.begin, known.end) if known.more else ():
        own = known.labels if not name.startswith("gpunode_") else {}
        series.put(name, {**own, **labels}, value, since, known.end)


def _past() -> str:
    series = Series()
    for known in sorted(JOBS, key=lambda known: known.begin):
        _record(known, series)
    for state in ("compute", "free"):
        series.put("cluster:gpunode_gpu_seconds:rate5m", {"state": state}, lambda _: 50.0, *LITTLE_OF)
    for name, useful in OTHERS.items():
        labels = {"workload": name, "owner_namespace": "others"}
        for state, share in (("compute", useful), ("starved", 1 - useful)):
            series.put(
                "job:gpunode_gpu_seconds:rate1h_hourly",
                {**labels, "state": state},
                lambda _, share=share: 8 * share,  # type: ignore[misc]
                NOW - 24 * HOUR, NOW, HOUR,
            )
        series.put("job:gpunode_job_kind:gpus_hourly", {**labels, "kind": "training"}, lambda _: 8.0, NOW - 24 * HOUR, NOW, HOUR)
    return series.text()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus with the past of the jobs."""
    need("prometheus")
    need("promtool")
    folder = tmp_path_factory.mktemp("past")
    (folder / "past").write_text(_past())
    backfill(folder)
    with prometheus(folder) as (_, found):
        yield found


class Ended(NamedTuple):
    """How the command ended."""

    code: int
    out: str
    err: str


Why = Callable[..., Ended]
AT = "--to=2027-01-15T08:00:00"


@pytest.fixture
def why(url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Why:
    """The command at the moment of which everything is known."""
    monkeypatch.setattr("gpunode.cli.explaining.time.time", lambda: float(NOW))
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str) -> Ended:
        capfd.readouterr()
        try:
            main(["why", f"--prometheus.url={url}", *arguments])
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        return Ended(code, *capfd.readouterr())

    return run


class Said:
    """An answer as JSON."""

    def __init__(self, ended: Ended) -> None:
        assert ended.code == 0, ended.err
        self.whole: dict[str, Any] = json.loads(ended.out)
        self.finding: str = self.whole["finding"]
        self.sections = {one["name"]: one for one in self.whole["sections"]}

    def figure(self, section: str, name: str) -> Any:
        (found,) = (one for one in self.sections[section]["figures"] if one["name"] == name)
        return found["value"]

    def rows(self, section: str, name: str) -> list[dict[str, Any]]:
        (found,) = (one for one in self.sections[section]["tables"] if one["name"] == name)
        names = [column["name"] for column in found["columns"]]
        return [dict(zip(names, row, strict=True)) for row in found["rows"]]
