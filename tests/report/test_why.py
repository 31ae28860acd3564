"""``gpunode why`` as who runs a job calls it, of jobs whose truth is known."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser
import pytest

from dashboards.rules import labels_of, records
from gpunode import words
from gpunode.cli.main import main
from gpunode.report import job, runs
from gpunode.report.history import RULE_INTERVAL
from gpunode.report.job import MEASURED, RunQuery
from gpunode.report.why.broke import best_interval
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.reasons import STOPPED
from tests.needs import ROOT, need
from tests.prometheus.known import remembering
from tests.prometheus.shipped import intervals
from tests.test_words import raw_names

NOW = 1_800_000_000
"""2027-01-15, 08:00 UTC."""

EVERY = 30
HOUR = 3600
HOSTILE = '<b>"x"</b>'

Shares = Mapping[str, float]
Labels = dict[str, str]
Recorded = tuple[str, Labels, Callable[[int], float], int]


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
    cluster: str = "c"
    leaves: int = 0
    """GPUs that are not seen in the last part."""

    named_on: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    """The GPUs on which each cause is named, as nodes and indices."""

    late: tuple[str, str] | None = None
    """The GPU for which the others wait, which waits for nobody."""

    more: Callable[[int, int], list[Recorded]] | None = None

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
        own["cluster"] = self.cluster
        return {name: text for name, text in own.items() if text}

    def hours(self, state: str) -> float:
        return sum(part.hours * self.size * part.shares.get(state, 0.0) for part in self.parts)

    def places(self) -> Iterator[tuple[str, str]]:
        for node in self.nodes:
            for gpu in range(self.gpus):
                yield node, str(gpu)


WELL = Part(hours=2, shares={"compute": 0.96, "communication": 0.04}, step=1.0)
STORAGE = Part(
    hours=4,
    shares={"compute": 0.5, "starved": 0.5},
    causes={"data_loading_storage": 0.5},
    gains={"data_loading_storage": (1.5, 1.8, 1.95)},
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
TALKS = Part(
    hours=2,
    shares={"compute": 0.335, "communication": 0.665},
    causes={"communication": 1.0},
    gains={"communication": (1.2, 1.3, 1.4)},
)
PAUSES_AS_ALL_DO = Part(
    hours=2,
    shares={"compute": 0.87, "starved": 0.13},
    causes={"data_loading_cpu": 1.0},
    gains={"data_loading_cpu": (1.0, 1.03, 1.07)},
)
CLAIMED_TWICE = Part(
    hours=2,
    shares={"compute": 0.6, "starved": 0.4},
    causes={"data_loading_storage": 0.5, "data_loading_cpu": 0.5},
    gains={"data_loading_storage": (1.5, 2.0, 4.0), "data_loading_cpu": (1.5, 2.0, 4.0)},
)
WAITS_FOR_ONE = Part(hours=2, shares={"compute": 0.7, "blocked": 0.3}, causes={"straggler": 0.9375})
RESTS = Part(hours=2, shares={"compute": 0.0, "idle": 0.0}, causes={"communication": 1.0})
DARK = Part(hours=3, shares={"unknown": 0.9, "idle": 0.1}, verdicts=False)


def _stalls(node: str, *processes: Labels) -> Callable[[int, int], list[Recorded]]:
    """Rank 3 is stopped in the last hour; some processes are on its GPU."""
    gpu = {"instance": node, "gpu": "3", "uuid": f"GPU-{node}-3"}
    late = {**gpu, "rank": "3", "reason": "stopped"}
    fired = {"alertname": "JobStalled", "alertstate": "firing", "severity": "page"}

    def more(_: int, end: int) -> list[Recorded]:
        hung = end - HOUR
        return [
            ("job:gpunode_stalled:seconds", {}, lambda at: at - hung, hung),
            ("gpu:gpunode_rank:awaited", late, lambda _: 1.0, hung),
            ("ALERTS", fired, lambda _: 1.0, hung + 300),
            *(
                ("gpunode_gpu_process_info", {**gpu, **process}, lambda _: 1.0, hung)
                for process in processes
            ),
        ]

    return more


def _io(begin: int, _: int) -> list[Recorded]:
    on = {"instance": "n-1", "resource": "io"}
    name = "gpunode_job_pressure_waiting_seconds_total"
    return [
        (name, {**on, "gpu": "0", "uuid": "GPU-n-1-0"}, lambda at: 0.62 * (at - begin), begin),
    ]


def _counters_that_run_ahead(begin: int, _: int) -> list[Recorded]:
    on = {"instance": "n-15", "resource": "io", "gpu": "0", "uuid": "GPU-n-15-0"}
    busy = {"instance": "n-15", "device": "sda"}
    return [
        ("gpunode_job_pressure_waiting_seconds_total", on, lambda at: 1.005 * (at - begin), begin),
        ("gpunode_disk_busy_seconds_total", busy, lambda at: 1.073 * (at - begin), begin),
    ]


def _waited_for(
    node: str, cause: str, states: Shares, reason: str = "unknown"
) -> Callable[[int, int], list[Recorded]]:
    """GPU 2 of the node is waited for, and has a verdict and a ledger of its own."""
    late = {"instance": node, "gpu": "2", "uuid": f"GPU-{node}-2"}

    def more(begin: int, _: int) -> list[Recorded]:
        rank = {**late, "rank": "10"}
        return [
            ("gpu:gpunode_rank:awaited", {**rank, "reason": reason}, lambda _: 1.0, begin),
            ("gpu:gpunode_rank:held_up", {**rank, "cause": cause}, lambda _: 1.0, begin),
            *(
                (
                    "gpu:gpunode_gpu_seconds:rate5m",
                    {**late, "state": state},
                    lambda _, share=share: share,
                    begin,
                )
                for state, share in states.items()
            ),
        ]

    return more


def _waited_for_at_the_end(node: str) -> Callable[[int, int], list[Recorded]]:
    """GPU 3 of the node is waited for in the last hour, and has no verdict."""
    late = {"instance": node, "gpu": "3", "uuid": f"GPU-{node}-3", "rank": "3", "reason": "unknown"}
    return lambda _, end: [("gpu:gpunode_rank:awaited", late, lambda _: 1.0, end - HOUR)]


STARVED = Known(
    workload="llm",
    namespace="research",
    pod="llm-worker-{}",
    nodes=("n-1",),
    more=_io,
    parts=(WELL, STORAGE),
)
HANG = Known(
    workload="slurm-4301",
    user="kim",
    nodes=("n-2",),
    more=_stalls(
        "n-2", {"pid": "417", "rank": "3", "slurm_job": "4301"}, {"pid": "418", "rank": ""}
    ),
    parts=(WELL, HANGS),
    named_on={
        "stopped": (("n-2", "3"),),
        "stalled_collective": tuple(("n-2", str(gpu)) for gpu in range(8) if gpu != 3),
    },
)
STRAGGLER = Known(
    workload="resnet",
    namespace="vision",
    pod="resnet-{}",
    nodes=("n-3", "n-4"),
    ended=1.0,
    parts=(WAITS,),
    late=("n-4", "5"),
)
HEALTHY = Known(workload="ann@n-5", user="ann", nodes=("n-5",), gpus=2, parts=(WELL,))
UNKNOWN = Known(workload="slurm-77", user="lee", nodes=("n-6",), ended=30.0, parts=(DARK,))
EARLIER = (
    Known(
        workload="llm",
        namespace="research",
        pod="llm-worker-{}",
        nodes=("n-1",),
        ended=48.0,
        parts=(WELL,),
        torch="2.8.0",
    ),
    Known(workload="slurm-4299", user="kim", nodes=("n-2",), ended=40.0, parts=(WELL,)),
    Known(workload="slurm-4300", user="kim", nodes=("n-2",), ended=20.0, parts=(WELL,)),
    Known(workload="slurm-4302", user="kim", nodes=("n-7",), gpus=4, ended=10, parts=(WELL,)),
)
SAME_NAME = tuple(
    Known(workload="train", namespace=namespace, nodes=(node,), gpus=1, ended=50.0, parts=(WELL,))
    for namespace, node in (("team-a", "n-8"), ("team-b", "n-9"), (HOSTILE, "n-10"))
)
TWINS = tuple(
    Known(workload="twin", nodes=(f"{cluster}-1",), gpus=1, cluster=cluster, parts=(WELL,))
    for cluster in ("c", "d")
)
SHARES = Known(workload="shares", nodes=("n-11",), gpus=2, leaves=1, parts=(WELL, WELL))
BRIEF = Known(workload="brief", nodes=("n-12",), gpus=1, parts=(replace(WELL, hours=0.05),))
TALKER = Known(
    workload="ranker",
    namespace="search",
    nodes=("n-13",),
    gpus=2,
    parts=(TALKS,),
)
RAMP = Known(
    workload="ramp",
    nodes=("n-14",),
    gpus=2,
    parts=(replace(WELL, hours=0.05), replace(TALKS, causes={}, gains={})),
)
TWO_CAUSES = Known(
    workload="greedy",
    nodes=("n-15",),
    gpus=2,
    parts=(CLAIMED_TWICE,),
    more=_counters_that_run_ahead,
)
PAUSES = Known(
    workload="clip",
    nodes=("n-16", "n-17"),
    parts=(WAITS_FOR_ONE,),
    late=("n-17", "2"),
    more=_waited_for("n-17", "unexplained", {"compute": 0.24, "starved": 0.74, "blocked": 0.02}),
)
HOT = Known(
    workload="hot",
    nodes=("n-18", "n-19"),
    parts=(WAITS_FOR_ONE,),
    late=("n-19", "2"),
    more=_waited_for("n-19", "thermal", {"compute": 0.98, "blocked": 0.02}),
)
BUSY = Known(
    workload="busy",
    nodes=("n-33", "n-34"),
    parts=(WAITS_FOR_ONE,),
    late=("n-34", "2"),
    more=_waited_for("n-34", "none", {"compute": 0.98, "blocked": 0.02}, "cpu_bound"),
)
WIDE = Known(workload="wide", nodes=tuple(f"w-{at}" for at in range(10, 43)), gpus=1, parts=(WELL,))
GAPPY = Known(workload="gappy", nodes=("n-27",), gpus=1, parts=(PAUSES_AS_ALL_DO,))
TORN = Known(
    workload="torn",
    nodes=("n-28",),
    gpus=2,
    parts=(replace(CLAIMED_TWICE, shares={"compute": 0.3, "starved": 0.7}),),
)
UNTOLD = Known(workload="untold", nodes=("n-24",), gpus=2, parts=(WELL, HANGS))
"""It hangs, and no rule told since when or for whom."""

IN_POD = {"owner_namespace": "research", "owner_pod": "bert-3", "owner_container": "main"}
HANGS_IN_POD = Known(
    workload="bert",
    namespace="research",
    pod="bert-{}",
    nodes=("n-29",),
    more=_stalls("n-29", {"pid": "9012", **IN_POD}),
    parts=(WELL, HANGS),
)
HANGS_IN_ODD_POD = Known(
    workload="odd",
    nodes=("n-30",),
    more=_stalls("n-30", {"pid": "9013", **IN_POD, "owner_pod": "`reboot`"}),
    parts=(WELL, HANGS),
)
HANGS_IN_TWO = Known(
    workload="two",
    nodes=("n-31",),
    more=_stalls("n-31", {"pid": "9014"}, {"pid": "9015"}),
    parts=(WELL, HANGS),
)
HANGS_IN_ANOTHER = Known(
    workload="else",
    nodes=("n-32",),
    more=_stalls("n-32", {"pid": "9016", "rank": "5"}),
    parts=(WELL, HANGS),
)
OVER = Known(workload="over", nodes=("n-25",), gpus=1, parts=(STORAGE, WELL))
MUTE = Known(
    workload="mute",
    nodes=("n-26",),
    more=_waited_for_at_the_end("n-26"),
    parts=(
        Part(hours=2, shares={"compute": 0.875, "idle": 0.125}),
        Part(
            hours=1,
            shares={"blocked": 0.875, "idle": 0.125},
            causes={"stalled_collective": 0.875},
        ),
    ),
)
"""A GPU idles for all of its time; only in the last hour is it waited for."""

RESTING = Known(workload="notebook", nodes=("n-20",), gpus=1, parts=(RESTS,))
NEW = Known(workload="new", nodes=("n-21",), gpus=1, parts=(replace(WELL, hours=30 / HOUR),))
BORN = Known(workload="born", nodes=("n-22",), gpus=1, parts=(Part(hours=30 / HOUR, shares={}),))
BLIND = Known(workload="blind", nodes=("n-23",), gpus=1, parts=(Part(hours=1, shares={}),))
CRASHED_ID = "20270115T040000Z-xid-0"


def _crashed(begin: int, end: int) -> list[Recorded]:
    """It saves for a minute in each half hour; 4 h before its end, a fault cost it 20 GPU hours."""
    gpu = {"instance": "n-41", "gpu": "0", "uuid": "GPU-n-41-0"}
    broke = end - 4 * HOUR
    cost = {"waiting": 8.0, "starting": 4.0, "repeating": 8.0}
    of = {"incident": CRASHED_ID, "kind": "xid", "workload": "crashed"}
    return [
        *(
            (
                "gpunode_incident_gpu_seconds",
                {"instance": "n-41", **of, "part": part},
                lambda at, hours=hours: min(hours * HOUR, 8 * (at - broke)),
                broke,
            )
            for part, hours in cost.items()
        ),
        *(
            (
                "gpunode_job_repeated_seconds_total",
                {**gpu, "bound": bound},
                lambda at, most=most: max(0.0, min(most, at - broke - HOUR)),
                begin,
            )
            for bound, most in (("lower", 3000), ("estimate", 3600), ("upper", 4200))
        ),
        ("gpunode_training_checkpoints_total", gpu, lambda at: (at - begin) // 1800, begin),
        (
            "gpunode_training_seconds_total",
            {**gpu, "phase": "checkpoint"},
            lambda at: (at - begin) // 1800 * 60,
            begin,
        ),
        ("job:gpunode_attempts_ended:increase1h", {}, lambda _: 0.5, begin),
    ]


CRASHED = Known(workload="crashed", nodes=("n-41",), parts=(replace(WELL, hours=8),), more=_crashed)
NEW_ONES = (
    CRASHED,
    UNTOLD,
    BORN,
    BLIND,
    OVER,
    MUTE,
    GAPPY,
    BUSY,
    HANGS_IN_POD,
    HANGS_IN_ODD_POD,
    HANGS_IN_TWO,
    HANGS_IN_ANOTHER,
    TORN,
    WIDE,
    TALKER,
    RAMP,
    TWO_CAUSES,
    PAUSES,
    HOT,
    RESTING,
    NEW,
)
JOBS = (
    *NEW_ONES,
    BRIEF,
    SHARES,
    *TWINS,
    STARVED,
    HANG,
    STRAGGLER,
    HEALTHY,
    UNKNOWN,
    *EARLIER,
    *SAME_NAME,
)
OTHERS = {"other-a": 0.6, "other-b": 0.7, "other-c": 0.9}
"""Other training on eight GPUs, by the share that was useful."""

DARKNESS = (NOW - 10 * HOUR, NOW - 10 * HOUR + 1200)
"""When nothing was recorded."""

SEEN = (NOW - 55 * HOUR, NOW)
"""For how long the cluster is recorded."""


class Series:
    """Samples in the format of OpenMetrics, by the metric."""

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = defaultdict(list)

    def put(
        self,
        name: str,
        labels: Labels,
        value: Callable[[int], float],
        begin: int,
        end: int,
        every: int = EVERY,
    ) -> None:
        of = ",".join(
            f"{key}={json.dumps(text)}" for key, text in {"cluster": "c", **labels}.items()
        )
        self.lines[name] += [
            f"{name}{{{of}}} {value(at):.12g} {at}"
            for at in range(begin + every, end + 1, every)
            if not DARKNESS[0] < at <= DARKNESS[1]
        ]

    def text(self) -> str:
        return "\n".join([*(line for name in self.lines for line in self.lines[name]), "# EOF", ""])


def _record(known: Known, series: Series) -> None:
    """What the rules and exporters would have recorded of a job."""
    begin = known.begin
    for number, part in enumerate(known.parts, 1):
        end = begin + round(part.hours * HOUR)

        def put(
            name: str, labels: Labels, value: float, since: int = begin, until: int = end
        ) -> None:
            series.put(name, {**known.labels, **labels}, lambda _: value, since, until)

        for state, share in part.shares.items():
            put("job:gpunode_gpu_states:gpus", {"state": state}, known.size * share)
        causes = {**part.causes, "none": 1 - sum(part.causes.values())}
        for cause, share in causes.items() if part.verdicts else ():
            if share > 0:
                put("job:gpunode_rank:count", {"cause": cause}, known.size * share)
        put("job:gpunode_gpus:count", {}, known.size)
        for at, (node, gpu) in enumerate(known.places()):
            own = {"instance": node, "gpu": gpu, "uuid": f"GPU-{node}-{gpu}"}
            pod = {"owner_pod": known.pod.format(at)} if known.pod else {}
            if number == len(known.parts) > 1 and at < known.leaves:
                continue
            put("gpunode_gpu_owner_info", {**own, **pod}, 1)
            put("gpu:gpunode_owner:info", own, 1)
            late = (node, gpu) == known.late
            shown = {("gpunode_gpu_workload", "training"): 1.0}
            if part.step:
                shown["gpunode_training_step_median_seconds", ""] = part.step
            if "blocked" in part.shares:
                share = 0.02 if late else part.shares["blocked"]
                shown["gpu:gpunode_gpu_seconds:rate5m", "blocked"] = share
            for (name, label), figure in shown.items():
                more = {"kind" if "workload" in name else "state": label} if label else {}
                series.put(name, {**own, **more}, lambda _, figure=figure: figure, begin, end)  # type: ignore[misc]
            versions = {
                "torch": known.torch,
                "nccl": "2.27.5",
                "cuda": "",
                "image": "",
                "digest": "",
            }
            series.put("gpunode_job_version_info", {**own, **versions}, lambda _: 1.0, begin, end)
            for cause in part.causes:
                on = known.named_on.get(cause)
                if not late and (on is None or (node, gpu) in on):
                    put("gpu:gpunode_rank:held_up", {**own, "rank": str(at), "cause": cause}, 1)
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


def past() -> str:
    """The past of the jobs, as promtool reads it."""
    series = Series()
    for known in sorted(JOBS, key=lambda known: known.begin):
        _record(known, series)
    for state in ("compute", "free"):
        name = "cluster:gpunode_gpu_seconds:rate5m"
        series.put(name, {"state": state}, lambda _: 50.0, *SEEN)
    for name, useful in OTHERS.items():
        labels = {"workload": name, "owner_namespace": "others"}
        for state, share in (("compute", useful), ("starved", 1 - useful)):
            series.put(
                "job:gpunode_gpu_seconds:rate1h_hourly",
                {**labels, "state": state},
                lambda _, share=share: 8 * share,  # type: ignore[misc]
                NOW - 24 * HOUR,
                NOW,
                HOUR,
            )
        series.put(
            "job:gpunode_job_kind:gpus_hourly",
            {**labels, "kind": "training"},
            lambda _: 8.0,
            NOW - 24 * HOUR,
            NOW,
            HOUR,
        )
    return series.text()


def served(folder: Path) -> AbstractContextManager[str]:
    """A Prometheus with the past of the jobs; its address."""
    need("prometheus")
    need("promtool")
    return remembering(past(), folder)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("past")) as found:
        yield found


class Outcome(NamedTuple):
    """How the command ended."""

    code: int
    out: str
    err: str


Why = Callable[..., Outcome]


@pytest.fixture
def why(url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Why:
    """The command at the moment of which everything is known."""
    monkeypatch.setattr("gpunode.cli.why.time.time", lambda: float(NOW))
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str) -> Outcome:
        capfd.readouterr()
        try:
            main(["why", f"--prometheus.url={url}", *arguments])
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        return Outcome(code, *capfd.readouterr())

    return run


class Answer:
    """An answer as JSON."""

    def __init__(self, ended: Outcome) -> None:
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


# Five jobs whose truth is known


def near(found: float, truth: float) -> bool:
    return found == pytest.approx(truth, rel=0.01)


def test_every_second_of_each_job_is_in_its_state(why: Why) -> None:
    for known, name in (
        (STARVED, "research/llm"),
        (HANG, "4301"),
        (HEALTHY, "ann@n-5"),
        (UNKNOWN, "slurm-77"),
    ):
        said = Answer(why(name, "--format=json", "--price=2"))
        rows = {row["state"]: row for row in said.rows("seconds", "states")}
        expected = {state for part in known.parts for state in part.shares}
        assert rows.keys() == expected
        for state, row in rows.items():
            assert near(row["gpu_hours"], known.hours(state))
            assert near(row["cost"], 2 * known.hours(state))
        assert near(said.figure("seconds", "held"), known.held)
        assert near(said.figure("seconds", "cost"), 2 * known.held)
        assert said.figure("seconds", "lasted") == known.end - known.begin
        assert said.figure("seconds", "missing") == 0


def test_what_broke_is_priced_and_how_often_to_save_is_said_where_data_carry_it(why: Why) -> None:
    said = Answer(why("crashed", "--format=json", "--price=2"))
    (line,) = (one for one in said.finding.splitlines() if "incident" in one)
    assert line == (
        "1 incident cost it 20.00 GPU hours: 8.00 without work, 4.00 to start again, 8.00 to "
        f"repeat what was done since the last checkpoint, worth 40 ({CRASHED_ID} on n-41)."
    )
    (line,) = (one for one in said.finding.splitlines() if "again that" in one)
    found = [float(number) for number in re.findall(r"[\d.]*\d", line)]
    assert found == pytest.approx([8, 8 * 3000 / HOUR, 8 * 4200 / HOUR], rel=0.03)
    (line,) = (one for one in said.finding.splitlines() if "checkpoint takes" in one)
    assert line.startswith("A checkpoint takes it 1 min, and it works 29 min between two; jobs of ")
    # 3 others of 8 GPUs for a day, and 4 new starts: a fault in 18 h for 8 GPUs.
    assert "once in 18 h for 8 GPUs: then 46 min between two loses least" in line
    healthy = Answer(why("ann@n-5", "--format=json")).finding
    assert "incident" not in healthy
    assert "checkpoint" not in healthy


@pytest.mark.parametrize(("cost", "between"), [(60, 64_800), (300, 7200), (1, 1e6)])
def test_no_other_interval_between_checkpoints_loses_clearly_less(
    cost: float, between: float
) -> None:
    """Beside Daly's model itself, of faults at random, at a cost of a restart of none."""

    def wasted(interval: float) -> float:
        return between * math.expm1((interval + cost) / between) / interval

    best = best_interval(cost, between)
    least = min(wasted(best * share / 100) for share in range(20, 500))
    assert wasted(best) <= 1.001 * least


def test_a_job_that_storage_starves(why: Why) -> None:
    said = Answer(why("research/llm", "--format=json", "--price=2"))
    (cause,) = said.rows("held_up", "causes")
    lower, estimate, upper = (
        (1 - 1 / times) * 8 * 4 for times in STORAGE.gains["data_loading_storage"]
    )
    assert cause["cause"] == "data_loading_storage"
    assert near(cause["named"], 16)
    assert near(cause["given_back"], estimate)
    assert near(cause["given_back_lower"], lower)
    assert near(cause["given_back_upper"], upper)
    assert near(cause["cost"], 2 * estimate)
    assert "from 2027-01-15 04:00 to 2027-01-15 08:00 UTC; on all 8 GPUs" in cause["evidence"]
    assert "share of the time in which the job waited for I/O: 62.0" in cause["evidence"]
    of = words.CAUSES["data_loading_storage"]
    remedy = f"{of.yourself} Ask the operator: {of.operator}"
    assert cause["remedy"] == remedy
    ended = Answer(why("llm", "--ended", "--format=json")).rows("held_up", "causes")
    assert ended[0]["remedy"] == of.for_good, "for the next run"
    slow, likely, fast = (f"{48 / (48 - hours):.1f}" for hours in (lower, estimate, upper))
    assert cause["faster"] == f"{likely} times as fast ({slow} to {fast})"
    assert cause["faster_lately"] == "1.8 times as fast (1.5 to 1.9)"
    assert ", and still runs." in said.finding.splitlines()[0]
    assert (
        "For 33.3\u202f% of their time, its GPUs were starved: storage is too slow; "
        f"without it the job would be about {cause['faster']} over the whole run, "
        f"worth {2 * 14.2:.1f}; from now on it would be {cause['faster_lately']}, "
        "by what is recorded since 2027-01-15 07:30 UTC."
    ) in said.finding
    assert f"What helps: {remedy}" in said.finding.splitlines()


def test_what_mending_gives_from_now_on_is_told_of_a_run_that_goes_on(why: Why) -> None:
    over = Answer(why("over", "--format=json"))
    assert "in the last 30 min it was not named." in over.finding
    (cause,) = over.rows("held_up", "causes")
    assert cause["faster"] == "1.4 times as fast (1.3 to 1.5)"
    assert cause["faster_lately"] == ""
    for arguments in (("over", "--ended"), ("llm", "--from=0.4h")):
        said = Answer(why(*arguments, "--format=json"))
        assert "faster_lately" not in said.rows("held_up", "causes")[0]
        assert "now on" not in said.finding
        assert "not named" not in said.finding


def test_the_cause_that_took_most_is_named_though_mending_it_gives_little(why: Why) -> None:
    said = Answer(why("gappy", "--format=json"))
    assert "For 13.0\u202f% of their time, its GPUs were starved: the CPUs that" in said.finding
    little = "gives back little, 0.06 GPU hours, as most of that time would pass all the same"
    assert f"{little}: the job would be 1.03 times as fast (1.00 to 1.07)" in said.finding
    assert "Nothing took" not in said.finding


def test_what_takes_most_of_the_last_minutes_is_said_first(why: Why) -> None:
    said = Answer(why("ranker", "--format=json"))
    first = said.finding.splitlines()[0]
    does = CAUSES["communication"].guidance.does
    assert first == f"In the last 5 min, 66.5\u202f% of its time was lost: GPUs are {does}."
    assert "without it the job would be about 1.3 times as fast (1.2 to 1.4)" in said.finding


def test_causes_of_the_same_time_give_it_back_once_and_no_share_exceeds_the_whole(
    why: Why,
) -> None:
    said = Answer(why("greedy", "--format=json"))
    lost = TWO_CAUSES.hours("starved")
    causes = said.rows("held_up", "causes")
    assert {row["cause"] for row in causes} == {"data_loading_storage", "data_loading_cpu"}
    for row in causes:
        assert row["given_back"] is None
        assert near(row["given_back_upper"], lost / 2)
        assert row["faster"] == "at most 1.2 times as fast"
    (storage,) = (row for row in causes if row["cause"] == "data_loading_storage")
    assert "in which the job waited for I/O: 100.0\u202f%" in storage["evidence"]
    assert "busiest disk of its nodes worked: 100.0\u202f%" in storage["evidence"]
    assert "gives back at most 0.80 GPU hours" in why("greedy").out


def test_of_causes_that_took_as_much_each_is_named_with_what_helps(why: Why) -> None:
    said = Answer(why("greedy", "--format=json"))
    for name in ("data_loading_cpu", "data_loading_storage"):
        assert f"For 20.0\u202f% of their time, its GPUs were {words.CAUSES[name].sentence}; " in (
            said.finding
        )
        assert f"What helps: {words.CAUSES[name].yourself}" in said.finding
    (run,) = said.rows("runs", "runs")
    assert run["most"] == "Data loading: CPUs at limit; Data loading: slow storage"
    both = Answer(why("torn", "--format=json"))
    first, *helps = both.finding.splitlines()
    assert "GPUs are starved: the CPUs" in first
    assert "; and starved: storage is too slow." in first
    assert sum(line.startswith("What helps: ") for line in helps) == 2


def test_the_first_lines_have_words_for_people(why: Why) -> None:
    for known in ("llm", "4301", "ranker", "greedy", "resnet", "hot", "untold", "mute", "gappy"):
        finding = Answer(why(known, "--format=json")).finding
        assert not [name for name in CAUSES if "_" in name and name in finding]


def test_time_of_which_no_state_is_recorded_has_no_causes(why: Why) -> None:
    said = Answer(why("notebook", "--format=json"))
    assert said.rows("held_up", "causes") == []
    assert "Not recorded: 2 h." in said.finding
    assert said.figure("seconds", "missing") == 2 * HOUR
    assert [row["most"] for row in said.rows("runs", "runs")] == ["-"]
    assert "GPU hours, gives" not in why("notebook").out


@pytest.mark.parametrize("job", ["ranker", "ramp"])
def test_no_step_up_is_told_of_a_ramp_or_against_the_begin_of_the_cause(why: Why, job: str) -> None:
    assert "Clearly more" not in Answer(why(job, "--format=json")).sections["changes"]["says"]


def test_a_gpu_that_is_waited_for_is_named_first_with_its_own_cause(why: Why) -> None:
    said = Answer(why("clip", "--format=json"))
    (cause,) = (row for row in said.rows("held_up", "causes") if row["cause"] == "straggler")
    late = "GPU 2 of n-17 (rank 10) is waited for; it waits 2.0"
    assert cause["evidence"].startswith(late)
    assert "it is starved 74.0\u202f% of the time; held with nothing to run" in cause["evidence"]
    assert "tells why" not in cause["evidence"], "its own verdict does"
    assert "waiting: GPU 0 of n-16 (rank 0), GPU 0 of n-17 (rank 8), GPU 1 of" in cause["evidence"]
    assert cause["remedy"].startswith("On GPU 2 of n-17 (rank 10): See what the process")
    assert any(line.startswith(late) for line in said.finding.splitlines())


def test_the_operator_is_asked_about_a_node_only_if_it_is_slow_itself(why: Why) -> None:
    remedies = {
        name: next(
            row["remedy"]
            for row in Answer(why(name, "--format=json")).rows("held_up", "causes")
            if row["cause"] == "straggler"
        )
        for name in ("hot", "clip", "vision/resnet")
    }
    assert "On GPU 2 of n-19 (rank 10): Ask the operator: Check fans" in remedies["hot"]
    assert "itself, the others 30.0" in Answer(why("hot", "--format=json")).finding
    assert "operator" not in remedies["clip"]
    assert "operator" not in remedies["vision/resnet"]


def test_a_job_that_hangs_names_the_rank_that_is_waited_for(why: Why) -> None:
    said = Answer(why("4301", "--format=json"))
    first = said.rows("held_up", "causes")[0]
    assert (first["cause"], first["given_back"]) == ("stalled_collective", None)
    assert near(first["named"], 8), "the GPU that is waited for as well"
    assert near(first["given_back_upper"], 8)
    assert near(said.figure("seconds", "lost"), 8 + HANG.hours("communication"))
    assert f"GPU 3 of n-2 (rank 3) was waited for: {STOPPED.meaning}" in first["evidence"]
    assert "GPU 2 of n-2 (rank 2) and 4 more; GPU 3" in first["evidence"]
    assert "no GPU of the job worked for 1 h" in first["evidence"]
    remedy = STOPPED.guidance.remedy.replace("PID`", "417` on n-2")
    assert first["remedy"].startswith(remedy)
    (alert,) = said.rows("alerts", "alerts")
    assert (alert["alert"], alert["severity"]) == ("JobStalled", "page")
    assert "Alerts about it meanwhile: JobStalled." in said.finding
    hangs, stacks, helps, before = said.finding.splitlines()[:4]
    assert hangs == (
        "Hangs since 2027-01-15 07:00 UTC: 7 GPUs wait for rank 3 (n-2, GPU 3), "
        f"{STOPPED.guidance.does}."
    )
    assert stacks == "On n-2, where its PID is 417: `gpunode stacks --gpu 3`."
    assert helps.startswith(f"What helps: {remedy}")
    assert before.startswith("slurm-4301 of kim held 8 GPUs")
    assert said.finding.count("What helps: ") == 1, "a second remedy might clash with it"
    earlier = Answer(why("4301", "--format=json", "--to=2027-01-15T06:30"))
    assert "Hangs" not in earlier.finding


def test_a_process_that_is_waited_for_is_told_with_the_ways_to_it_in_its_pod(why: Why) -> None:
    _, stacks, pod, helps = Answer(why("bert", "--format=json")).finding.splitlines()[:4]
    assert stacks == "On n-29, where its PID is 9012: `gpunode stacks --gpu 3`."
    assert pod.startswith("Its pod is research/bert-3, where it has another PID: ")
    assert re.findall("`(.*?)`", pod) == [
        "kubectl exec -it -n research bert-3 -c main -- sh",
        "kubectl debug node/n-29 -it --image=busybox --profile=sysadmin -- chroot /host",
    ]
    assert helps.startswith("What helps: Continue it: `kill -CONT 9012` on n-29.")


def test_no_command_is_made_of_a_name_that_a_shell_would_obey(why: Why) -> None:
    finding = Answer(why("odd", "--format=json")).finding
    assert "its PID is 9013" in finding
    assert "kubectl" not in finding


def test_of_several_processes_none_is_taken_for_the_one_that_is_waited_for(why: Why) -> None:
    for known, node in (("two", "n-31"), ("else", "n-32")):
        finding = Answer(why(known, "--format=json")).finding
        assert f"On {node}: `gpunode stacks --gpu 3`, which has the PID." in finding
        assert "`kill -CONT PID`" in finding


def test_stacks_are_asked_for_by_the_gpu_where_its_pid_is_not_known(why: Why) -> None:
    hangs = Answer(why("mute", "--format=json")).finding
    assert "What helps: See where it stands: `gpunode stacks --gpu 3` on n-26." in hangs
    (cause,) = Answer(why("busy", "--format=json")).rows("held_up", "causes")
    thread = "See what that thread does: `gpunode stacks --gpu 2` on n-34."
    assert cause["remedy"] == f"On GPU 2 of n-34 (rank 10): {thread}"


def test_a_hang_of_which_only_the_verdicts_tell_is_said_first_as_well(why: Why) -> None:
    said = Answer(why("untold", "--format=json"))
    meaning = CAUSES["stalled_collective"].meaning
    first, helps = said.finding.splitlines()[:2]
    assert re.fullmatch(rf"Hangs since 2027-01-15 0(6:5|7:0)\d UTC: {meaning}\.", first)
    assert helps.startswith("What helps: Keep evidence first: `gpunode stacks --gpu 0` on n-24.")
    (cause,) = said.rows("held_up", "causes")
    assert near(cause["given_back_upper"], 2), "of its two GPUs"


@pytest.mark.parametrize("name", ["4301", "bert", "busy", "untold", "ranker", "resnet", "two"])
def test_no_raw_name_is_said(why: Why, name: str) -> None:
    """Beside the words of each cause stands its name, for queries: that is a column of its own."""
    said = Answer(why(name, "--format=json"))
    causes = said.rows("held_up", "causes")
    rest = (str(value) for row in causes for column, value in row.items() if column != "cause")
    assert not raw_names("\n".join((said.finding, *rest)))


def test_a_gpu_that_idles_for_other_reasons_is_no_part_of_a_hang(why: Why) -> None:
    (cause,) = Answer(why("mute", "--format=json")).rows("held_up", "causes")
    assert near(cause["given_back_upper"], 7 + 1), "hung, and was waited for without a verdict"
    before = Answer(why("mute", "--format=json", "--to=2027-01-15T06:55"))
    assert [row["cause"] for row in before.rows("held_up", "causes")] == ["idle"]


def test_the_last_minutes_are_called_what_they_are(why: Why) -> None:
    for name in ("4301", "ranker", "resnet"):
        (states,) = (
            table
            for table in Answer(why(name, "--format=json")).sections["seconds"]["tables"]
            if table["name"] == "states"
        )
        assert "Last 5 min" in [column["title"] for column in states["columns"]]
    rows = Answer(why("research/llm", "--format=json")).rows("seconds", "states")
    latest = {row["state"]: row["latest"] for row in rows}
    assert latest == pytest.approx({"compute": 0.5, "starved": 0.5, "communication": 0.0})


def test_a_job_with_a_straggler_names_its_gpu_and_the_time_without_records(why: Why) -> None:
    said = Answer(why("vision/resnet", "--format=json"))
    (cause,) = said.rows("held_up", "causes")
    dark = (DARKNESS[1] - DARKNESS[0]) / HOUR * STRAGGLER.size
    assert cause["cause"] == "straggler"
    assert near(cause["given_back_upper"], 0.3 * (STRAGGLER.held - dark))
    assert cause["evidence"].startswith("GPU 5 of n-4 was waited for; it waited 2.0")
    missing = pytest.approx(DARKNESS[1] - DARKNESS[0], abs=runs.LOOK)
    assert said.figure("seconds", "missing") == missing
    assert "For 20 min of it nothing was recorded" in said.finding
    assert "it has ended" in said.finding


def test_a_healthy_job_is_said_to_be_so_of_what_was_recorded(why: Why) -> None:
    said = Answer(why("ann@n-5", "--format=json"))
    assert said.rows("held_up", "causes") == []
    assert "Nothing took a tenth of the time that was recorded." in said.finding


def test_a_job_of_which_little_is_known_is_never_called_well(why: Why) -> None:
    said = Answer(why("77", "--format=json"))
    assert "Nothing took" not in said.finding
    assert "the sensors could not tell what the GPUs did" in said.finding
    assert "For 100.0\u202f% of its GPU hours there is no verdict" in said.finding
    assert near(said.figure("seconds", "unknown"), UNKNOWN.hours("unknown"))
    assert near(said.figure("seconds", "lost"), UNKNOWN.hours("idle"))


def test_gpus_that_were_not_seen_are_said(why: Why) -> None:
    said = Answer(why("shares", "--format=json")).finding
    assert "At times only 1 of its 2 GPUs were seen." in said


@pytest.mark.parametrize(
    ("job", "nodes"),
    [
        ("ann@n-5", "2 GPUs on n-5 for"),
        ("hot", "16 GPUs on 2 nodes (n-18, n-19) for"),
        ("wide", "33 GPUs on 33 nodes (w-10, w-11, w-12 and 30 more) for"),
    ],
)
def test_some_nodes_of_a_job_are_named(why: Why, job: str, nodes: str) -> None:
    assert nodes in Answer(why(job, "--format=json")).finding


# Compared with others


def test_a_run_is_compared_with_the_last_of_its_name_and_what_changed_is_listed(why: Why) -> None:
    said = Answer(why("research/llm", "--format=json"))
    now, before = said.rows("runs", "runs")
    assert (now["run"], before["run"]) == ("this run", "research/llm")
    assert before["began"] == "2027-01-13 06:00"
    assert (before["lasted"], before["gpus"]) == (2 * HOUR, 8)
    assert near(before["useful"], 0.96)
    assert near(before["step"], 1.0)
    changed = {row["what"]: (row["before"], row["now"]) for row in said.rows("changes", "changes")}
    assert changed.keys() == {"torch", "useful", "step"}
    assert changed["torch"] == ("2.8.0", "2.9.1")
    says = said.sections["changes"]["says"]
    more = "Clearly more is lost since 2027-01-15 04:00 UTC than before: 50.0\u202f% of its time"
    assert f"{more} instead of 4.0\u202f%." in says
    assert "A step took 1 s in the first third of the run and 2 s in the last." in says


def test_a_slurm_job_is_compared_with_the_users_last_jobs_on_as_many_gpus(why: Why) -> None:
    rows = Answer(why("4301", "--format=json")).rows("runs", "runs")
    assert [row["run"] for row in rows] == ["this run", "slurm-4300", "slurm-4299"]
    assert [row["lasted"] for row in rows] == [3 * HOUR, 2 * HOUR, 2 * HOUR]
    assert [row["most"] for row in rows] == ["Stalled collective", "-", "-"]


def test_a_run_is_compared_with_others_of_its_kind_and_size(why: Why) -> None:
    said = Answer(why("research/llm", "--format=json"))
    assert near(said.figure("others", "middle"), 0.7)
    assert "Of 3 other jobs (training) with 8 GPUs" in said.sections["others"]["says"]
    alone = Answer(why("ann@n-5", "--format=json"))
    assert alone.sections["others"]["figures"] == []
    assert "too few to compare with" in alone.sections["others"]["says"]


def test_an_earlier_run_is_asked_about_by_its_time(why: Why) -> None:
    said = Answer(why("research/llm", "--to=2027-01-14", "--format=json"))
    assert (said.whole["start"], said.whole["end"]) == ("2027-01-13 06:00", "2027-01-13 08:00")
    assert "it has ended" in said.finding
    for length in ("1h", "1hour", "60 minutes", "60min"):
        part = Answer(why("research/llm", f"--from={length}", "--format=json"))
        assert "at least since 2027-01-15 07:00" in part.finding
        assert near(part.figure("seconds", "held"), 8)
    short = Answer(why("research/llm", "--from=0.1h", "--format=json"))
    assert short.figure("seconds", "held") == pytest.approx(0.8, abs=0.1)


def test_an_end_that_nobody_saw_is_not_called_one(why: Why) -> None:
    """The cluster went dark with the job in it."""
    said = Answer(why("resnet", "--to=2027-01-14T22:15:00", "--format=json"))
    assert "its end is not known" in said.finding
    assert "it has ended" not in said.finding


# Names


TITLES = {
    "llm": "research/llm",
    "research/llm-worker-3": "research/llm",
    "llm-worker-3": "research/llm",
    "4301": "slurm-4301 of kim",
    "slurm-4301": "slurm-4301 of kim",
    "ann@n-5": "ann@n-5",
    "lee": "slurm-77 of lee",
    "lee@n-6": "slurm-77 of lee",
    "kim@n-7": "slurm-4302 of kim",
}


def test_names_that_a_user_may_give(why: Why) -> None:
    for name, title in TITLES.items():
        assert Answer(why(name, "--format=json")).whole["title"] == f"Why is it slow: {title}"


def test_of_a_run_of_minutes_only_what_is_known_so_far_is_said(why: Why) -> None:
    out = why("brief").out
    assert "So far, of 1 GPU: 1 at work." in out
    assert "Where its time went is told of ten minutes or more" in " ".join(out.split())
    for word in ("%", "useful", "What helps", "Beside"):
        assert word not in out


def test_of_two_clusters_one_is_named(why: Why) -> None:
    of_d = Answer(why("twin", "--cluster=d", "--format=json"))
    assert near(of_d.figure("seconds", "held"), 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train"], 'train: is the name of 3 jobs: <b>"x"</b>/train, team-a/train, team-b/train'),
        (["research/lmm"], "names like it: research/llm"),
        (["twin"], "twin: is the name of 2 jobs: twin (--cluster=c), twin (--cluster=d)"),
        (["430"], "names like it: slurm-4301"),
        (["RESEARCH/LLM"], "names like it: research/llm"),
        (["others/other-a"], "has only hours of it"),
        (["kim"], "kim: is a user, of 4 jobs: slurm-4302, slurm-4301, slurm-4300, slurm-4299"),
        (["kim@n-2"], "kim: is a user, of 3 jobs on n-2: slurm-4301, slurm-4300, slurm-4299"),
        (["lee@n-99"], "lee: is a user, of 1 job: slurm-77"),
        (["kim@n-99"], "kim: is a user, of 4 jobs: slurm-4302"),
        (["llm", "--cluster=d"], "held no GPU"),
        (["llm", "--cluster=paris"], "no cluster paris; there are c, d"),
        (["none", "--to=2027-01-13T07:00"], "as far as is recorded; there is research/llm;"),
        (["new"], "new: began less than a minute ago; nothing is recorded yet"),
        (["born"], "born: began less than a minute ago; nothing is recorded yet"),
        (["blind"], "blind: holds a GPU, of whose time nothing is recorded"),
        (
            ["llm", "--html", "x.html"],
            "say --format=html --output=FILE; these commands have it: incident",
        ),
        (["llm", "--from=5fortnights"], "nor a length (5min, 24h, 30d, 12w)"),
        (["nothing-of-the-kind"], "is like it"),
        (["77", "--from=10h"], "--from looks further back"),
        (["llm", "--to=2020-01-01"], "does it evaluate gpunode's recording rules?"),
        (["llm", "--from=yesterday"], "is no date"),
        ([" "], "is empty"),
        ([], "JOB"),
        (
            ["llm", "--prometheus.url=http://127.0.0.1:9"],
            "gpunode: http://127.0.0.1:9 (prometheus.url): cannot be reached: ",
        ),
    ],
)
def test_what_cannot_be_answered_is_one_line_and_exit_code_2(
    why: Why, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _: None)
    ended = why(*arguments)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert said in ended.err


# Formats


EPILOG = re.search(r"```sh\n(#!/bin/sh\n.*?)```", (ROOT / "docs/why.md").read_text(), re.DOTALL)
FAKES = {
    "scontrol": """echo "$2" >> {folder}/asked
case $2 in
hostnames) echo n-2; echo n-3 ;;
job) cat {folder}/jobs ;;
esac""",
    "runuser": 'shift 3; echo "as $0" >> {folder}/called; exec "$@"',
    "gpunode": 'echo "gpunode $*"',
}
SHOWN = """\
JobId=4303 ArrayJobId=4301 ArrayTaskId=1 JobName=train
   UserId=kim(1000) GroupId=kim(1000) MCS_label=N/A
   JobState=COMPLETED Reason=None Dependency=(null)
   WorkDir={folder}
   StdErr={folder}/slurm-4301_1.out
   StdIn=/dev/null
   StdOut={folder}/slurm-4301_1.out
   Power=

JobId=4301 ArrayJobId=4301 ArrayTaskId=2 JobName=train StdOut=/x
   UserId=kim(1000) GroupId=kim(1000) MCS_label=N/A
   JobState=COMPLETING Reason=None Dependency=(null)
   WorkDir={folder}
   StdErr={folder}/job.err
   StdIn=/dev/null
   StdOut={folder}/job 2.out
   Power=
"""
"""What Slurm 22.05 says of two tasks of an array, without some lines."""


@pytest.mark.parametrize(
    ("node", "told", "known", "written", "asked"),
    [
        ("n-2", "job 2.out", SHOWN, True, ["hostnames"]),
        ("n-3", "job 2.out", SHOWN, False, ["hostnames"]),
        ("n-2", "slurm-%A_%a.out", SHOWN, True, ["hostnames", "job"]),
        ("n-2", None, SHOWN, True, ["hostnames", "job"]),
        ("n-3", None, SHOWN, False, ["hostnames"]),
        ("n-2", None, SHOWN.replace("job 2.out", "%N.out"), False, ["hostnames", "job"]),
        ("n-2", None, SHOWN.replace("StdOut=", "Std="), False, ["hostnames", "job"]),
        ("n-2", None, "", False, ["hostnames", "job"]),
    ],
)
def test_the_epilog_writes_at_the_end_of_a_jobs_output(
    tmp_path: Path, node: str, told: str | None, known: str, written: bool, asked: list[str]
) -> None:
    assert EPILOG is not None
    for name, does in FAKES.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does.format(folder=tmp_path)}\n")
        (tmp_path / name).chmod(0o755)
    script = EPILOG[1].replace("/opt/gpunode/bin", str(tmp_path)).replace("PATH=", "PATH=$PATH:")
    (tmp_path / "jobs").write_text(known.format(folder=tmp_path))
    outputs = {name: tmp_path / name for name in ("job 2.out", "slurm-4301_1.out")}
    for output in outputs.values():
        output.write_text("at work\n")
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_JOB_ID": "4301",
        "SLURM_JOB_USER": "kim",
        "SLURM_JOB_NODELIST": "n-[2-3]",
        "SLURMD_NODENAME": node,
        **({"SLURM_JOB_STDOUT": str(tmp_path / told)} if told else {}),
    }
    before = {*tmp_path.iterdir(), tmp_path / "asked", tmp_path / "called"}
    ran = subprocess.run(
        ["/bin/sh", "-c", script], env=environment, capture_output=True, check=False
    )
    assert ran.returncode == 0, "a node whose Epilog fails is drained"
    assert (ran.stdout, ran.stderr) == (b"", b"")
    answer = (
        "gpunode why 4301 --ended --prometheus.url=https://prometheus.example\n" if written else ""
    )
    assert outputs["job 2.out"].read_text() == "at work\n" + answer
    assert outputs["slurm-4301_1.out"].read_text() == "at work\n"
    assert (tmp_path / "asked").read_text().split() == asked
    assert set(tmp_path.iterdir()) <= before


def test_an_epilog_says_that_the_job_has_ended_and_nothing_to_do_about_it_now(why: Why) -> None:
    goes_on = " ".join(why("4301").out.split())
    ended = " ".join(why("4301", "--ended").out.split())
    for word in ("and still runs", "Hangs since", "gpunode stacks"):
        assert word in goes_on
        assert word not in ended
    assert "it has ended" in ended
    assert "stalled_collective" in ended


def test_a_step_of_a_slurm_job_is_its_job(why: Why) -> None:
    assert why("4301.0").out == why("4301.batch").out == why("4301").out


def test_a_terminal_and_the_output_of_a_job_get_words(why: Why, tmp_path: Path) -> None:
    ended = why("4301")
    assert ended.err == ""
    assert "\x1b" not in ended.out, "no colours into a pipe"
    assert all(len(line) <= 100 for line in ended.out.splitlines())
    for part in ("stalled_collective", "What helps:", "Beside its last runs", "Not recorded"):
        assert part in ended.out
    assert "the cause for 8 GPU hours, gives back at most 8 GPU hours\n" in ended.out
    faster = "without it 1.4 times as fast (1.3 to 1.5), by the last 30 min 1.8"
    assert f"gives back 14.2 GPU hours (10.7 to 15.6), {faster}" in " ".join(why("llm").out.split())
    file = tmp_path / "why.txt"
    assert why("4301", f"--output={file}").out == f"{file}\n"
    assert "stalled_collective" in file.read_text()


def test_no_cell_is_cut_or_broken_where_there_is_no_terminal(
    why: Why, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = why("4301").out
    assert re.search(r"this run +2027-01-15 05:00 .*Stalled collective", out)
    assert "…" not in out


def test_the_page_is_one_file_that_runs_nothing(why: Why) -> None:
    page = why("4301", "--format=html").out
    assert page.count("<section ") == 6
    assert "<svg" in page
    finding = page.partition('<div class="finding">')[2].partition("</div>")[0]
    assert "`" not in page.partition("<main>")[0]
    assert "where its PID is 417: <code>gpunode stacks --gpu 3</code>.</p>" in finding
    assert not re.search(r"<script|<link|<img| src=|https?://(?!127\.0\.0\.1)(?!www\.w3)", page)
    hostile = why(f"{HOSTILE}/train", "--format=html")
    assert hostile.code == 0
    assert HOSTILE not in hostile.out
    assert "&lt;b&gt;" in hostile.out


# What is asked for exists


QUERIES = {name: one for name, one in vars(job).items() if isinstance(one, RunQuery)}
FACTS = [one.query for all_of in MEASURED.values() for one in all_of]
RECORDED = re.compile(r"[a-z]+:gpunode_[a-z0-9_]+:[a-z0-9_]+")


def test_what_is_asked_for_is_recorded_or_exported() -> None:
    of_alerts = {"cluster", "instance", "alertname", "severity", "gpu"}
    for query in (*QUERIES.values(), *FACTS):
        asked = query.of(runs.JobName("c", "ns", "JOB"), 600, 'cluster="c",instance=~"n"')
        promql_parser.parse(asked)
        names = RECORDED.findall(asked)
        raw = re.findall(r"\bgpunode_[a-z0-9_]+", RECORDED.sub("", asked))
        by = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", asked))))
        assert names or raw or "ALERTS" in asked
        labels = set(of_alerts) if "ALERTS" in asked else set()
        for name in names:
            assert name in records()
        for name in (*names, *raw):
            labels |= labels_of(name)
        assert by <= labels, asked


def test_what_is_measured_beside_a_cause_is_what_its_verdict_rests_on() -> None:
    for cause, all_of in MEASURED.items():
        uses = {metric.name for metric in CAUSES[cause].uses}
        for one in all_of:
            raw = re.findall(r"\bgpunode_[a-z0-9_]+", RECORDED.sub("", one.query.expression))
            assert set(raw) <= uses


def test_figures_count_samples_as_often_as_the_rules_record_them() -> None:
    for query in QUERIES.values():
        if f"* {RULE_INTERVAL} /" in query.expression:
            for name in RECORDED.findall(query.expression):
                assert intervals()[name] == f"{RULE_INTERVAL}s"
