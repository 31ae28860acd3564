"""Logs of NCCL's Inspector plug-in.

Those in ``recorded`` were written by the plug-in of that version, which a program called as NCCL
does (``ncclProfiler_v5``), with times that it had made up: no GPU was there. The published one is
of three real nodes:
https://github.com/DataDog/datadog-agent/blob/main/pkg/collector/corechecks/gpu/nccl/check_test.go
"""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.config.daemon import Settings
from gpunode.holders.census import Census
from gpunode.nccl.inspector import (
    COUNT,
    FUNCTIONS,
    NOT_COUNTED,
    PARTS,
    SCOPES,
    NcclInspector,
    parse,
)
from gpunode.node.local import LocalNode
from gpunode.node.node import MAX_READ, SteppedClock
from gpunode.node.tape import RecordingNode, TapeNode, TapeWriter
from tests.machine import MachineDriver, MachineGpu, begin, exported, read_source
from tests.tenant import says_who

LOGS = Path(__file__).with_name("recorded")
OWN_PID = 77
"""The id of the process that writes a log, in its own PID namespace."""

INSPECTORS = ("2.28.9", "2.30.7")
"""The versions of NCCL whose plug-in wrote them."""

STARTED = 1_795_791_000.0
"""When the daemon began, before the logs were written."""

ENABLED = {"NCCL_INSPECTOR_DUMP_DIR": "/tmp/inspector"}


def recorded(name: str) -> str:
    return (LOGS / f"inspector_{name}.jsonl").read_text()


class InspectorNode(LocalNode):
    """A node with one GPU or two, on which process 7 was started with the plug-in."""

    def __init__(self, root: Path, *gpus: MachineGpu, **environment: str) -> None:
        super().__init__(root, [MachineDriver(gpus)])
        self.stepped = SteppedClock(STARTED)
        self.clock = self.stepped  # type: ignore[assignment]
        self.variables = environment

    def environment(self, pid: int) -> dict[str, str]:
        return self.variables if pid == 7 else {}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("etc", "tmp/inspector"):
        (tmp_path / "proc/7/root" / folder).mkdir(parents=True)
    (tmp_path / "proc/7/cwd").mkdir()
    begin(tmp_path, 7)
    (tmp_path / "proc/7/status").write_text(f"Name:\tpython\nNSpid:\t7\t{OWN_PID}\n")
    says_who(tmp_path / "proc/7")
    (tmp_path / "proc/7/root/etc/hostname").write_text("pod-0.training\n")
    return tmp_path


def log_of(root: Path) -> Path:
    return root / f"proc/7/root/tmp/inspector/pod-0.training-pid{OWN_PID}.log"


GPU = MachineGpu(0, "GPU-aa", "0", (7, 8))


def source_on(root: Path, *gpus: MachineGpu, **environment: str) -> NcclInspector:
    node = InspectorNode(root, *(gpus or (GPU,)), **(environment or ENABLED))
    return NcclInspector(Census(node), GPU, Settings())


def values(source: NcclInspector) -> dict[tuple[str, ...], float]:
    """What a source exports, by metric, collective and between what."""
    return {
        (sample.metric.name.removeprefix("gpunode_nccl_measured_"), *sample.labels[2:]): value
        for sample in read_source(source)
        if isinstance(value := sample.value, float)
    }


def bandwidth(found: dict[tuple[str, ...], float], of: str, *which: str) -> float:
    """Gigabytes per second."""
    return found[(of, *which)] / found[("seconds_total", *which)] / 1e9


@pytest.mark.parametrize("name", ["2.30.7", "2.30.7_verbose"])
def test_a_log_tells_bandwidths_of_each_collective(root: Path, name: str) -> None:
    log_of(root).write_text(recorded(name))
    found = values(source_on(root))
    assert {
        labels[1:]: value for labels, value in found.items() if labels[0].startswith("coll")
    } == {
        ("AllGather", "gpus"): 1.0,
        ("AllReduce", "gpus"): 1.0,
        ("AllReduce", "nodes"): 3.0,
        ("Broadcast", "nodes"): 1.0,
        ("Recv", "nodes"): 1.0,
        ("ReduceScatter", "nodes"): 1.0,
        ("Send", "nodes"): 1.0,
    }
    assert found["seconds_total", "AllReduce", "nodes"] == pytest.approx(0.0117 + 0.01154 + 0.0231)
    assert found["bytes_total", "AllReduce", "nodes"] == pytest.approx(3 * 268_435_456)
    assert found["bytes_total", "AllGather", "gpus"] == pytest.approx(8 * 16_777_216)
    assert bandwidth(found, "bytes_total", "AllReduce", "gpus") == pytest.approx(212.706384)
    assert bandwidth(found, "bus_bytes_total", "AllReduce", "gpus") == pytest.approx(372.236171)
    assert bandwidth(found, "bus_bytes_total", "Send", "nodes") == pytest.approx(41.734368)


@pytest.mark.parametrize("name", INSPECTORS)
def test_each_version_tells_the_bandwidth_between_nodes(root: Path, name: str) -> None:
    *_, last = recorded(name).splitlines(keepends=True)
    log_of(root).write_text(last)
    found = values(source_on(root))
    assert bandwidth(found, "bus_bytes_total", "AllReduce", "nodes") == pytest.approx(21.788592)


def test_before_2_30_a_log_has_only_the_last_collective_of_each_interval(root: Path) -> None:
    log_of(root).write_text(recorded("2.28.9"))
    found = values(source_on(root))
    assert {labels[1:] for labels in found} == {
        ("AllGather", "gpus"),
        ("AllReduce", "nodes"),
        ("Broadcast", "nodes"),
    }


def test_a_log_of_real_nodes_is_read(root: Path) -> None:
    log_of(root).write_text(recorded("published"))
    source = source_on(root)
    node = source.census.node
    assert isinstance(node, InspectorNode)
    node.stepped.epoch = 1_772_585_000.0
    found = values(source)
    assert bandwidth(found, "bus_bytes_total", "AllReduce", "nodes") == pytest.approx(0.555850)


def test_a_log_is_followed_and_each_collective_counted_once(root: Path) -> None:
    *lines, last = recorded("2.30.7").splitlines(keepends=True)
    log_of(root).write_text("".join(lines) + last[:200])
    source = source_on(root)
    of = ("collectives_total", "AllReduce", "nodes")
    assert [values(source)[of] for _ in range(2)] == [2.0, 2.0]
    with log_of(root).open("a") as log:
        log.write(last[200:])
    assert [values(source)[of] for _ in range(2)] == [3.0, 3.0]


def test_what_was_written_before_the_daemon_saw_the_process_is_not_counted(root: Path) -> None:
    log_of(root).write_text(recorded("2.30.7"))
    source = source_on(root)
    node = source.census.node
    assert isinstance(node, InspectorNode)
    node.stepped.now = 1_795_791_043.1 - STARTED
    found = values(source)
    assert set(found) == {(name, "AllReduce", "nodes") for name, *_ in found}
    assert found["collectives_total", "AllReduce", "nodes"] == 1.0


def test_a_log_in_a_folder_of_the_job_is_found(root: Path) -> None:
    file = root / "proc/7/cwd/logs" / log_of(root).name
    file.parent.mkdir()
    file.write_text(recorded("2.30.7"))
    assert values(source_on(root, NCCL_INSPECTOR_DUMP_DIR="logs"))


def test_a_job_that_names_no_folder_has_no_series(root: Path) -> None:
    log_of(root).write_text(recorded("2.30.7"))
    reading = source_on(root, RANK="0").read()
    assert reading.samples == ()
    assert reading.unread == ()


def test_of_a_process_on_several_gpus_nothing_says_which_one_it_was(root: Path) -> None:
    log_of(root).write_text(recorded("2.30.7"))
    source = source_on(root, GPU, MachineGpu(1, "GPU-bb", "1", (7,)))
    node = source.census.node
    assert isinstance(node, InspectorNode)
    source.read()
    node.stepped.now = 1_795_791_044.0 - STARTED
    reading = source.read()
    assert reading.samples == ()
    assert [(met.kind.what, met.times) for met in reading.unread] == [("nccl_ranks", 1)]
    node.drivers = [MachineDriver([GPU])]
    node.stepped.now += 60
    assert values(source) == {}, "it was written while it was on both"


def test_the_next_job_begins_at_zero(root: Path) -> None:
    log_of(root).write_text(recorded("2.30.7"))
    source = source_on(root)
    first = values(source)
    begin(root, 7, start=1001)
    log_of(root).unlink()
    assert values(source) == {}
    log_of(root).write_text(recorded("2.30.7"))
    assert values(source) == first


LINE = recorded("2.30.7").splitlines(keepends=True)[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"kernel_gpu"', '"collective_cpu"'),
        ('"AllReduce"', '"AllToEverything"'),
        ('"coll_busbw_gbs":372.236171', '"coll_busbw_gbs":"nan"'),
        ('"coll_exec_time_us":631', '"coll_exec_time_us":0'),
        ('"coll_exec_time_us":631', '"coll_exec_time_us":99999999999'),
        ('"coll_algobw_gbs":212', '"coll_algobw_gbs":2120000'),
        ('"coll_busbw_gbs":372', '"coll_busbw_gbs":-372'),
        ('"nnodes":1', '"nnodes":0'),
        ('"dump_timestamp_us"', '"dumped"'),
    ],
)
def test_a_collective_that_is_not_understood_is_counted_as_such(
    root: Path, before: str, after: str
) -> None:
    assert before in LINE
    log_of(root).write_text(LINE.replace(before, after))
    reading = source_on(root).read()
    assert reading.samples == ()
    assert [(met.kind, met.times) for met in reading.unread] == [(NOT_COUNTED, 1)]


def test_a_collective_is_not_of_the_communicator_of_the_line_before(root: Path) -> None:
    log_of(root).write_text(LINE + LINE[LINE.index('"coll_perf"') :])
    reading = source_on(root).read()
    assert [s.value for s in reading.samples if s.metric is COUNT] == [1.0]
    assert [(met.kind, met.times) for met in reading.unread] == [(NOT_COUNTED, 1)]


def test_an_all_to_all_whose_data_the_plug_in_does_not_know_has_no_bytes(root: Path) -> None:
    line = (
        LINE.replace("AllReduce", "All2All")
        .replace("212.706384", "0.0")
        .replace("372.236171", "0.0")
    )
    log_of(root).write_text(line)
    assert set(values(source_on(root))) == {
        ("collectives_total", "AlltoAll", "gpus"),
        ("seconds_total", "AlltoAll", "gpus"),
    }


def test_a_log_that_grows_too_fast_is_counted_later(root: Path) -> None:
    lines = PARTS * MAX_READ // len(LINE) + 10
    log_of(root).write_text(LINE * lines)
    source = source_on(root)
    first = source.read()
    assert [(met.kind.what, met.kind.bound) for met in first.unread] == [("nccl_collectives", True)]
    last = source.read()
    assert last.unread == ()
    assert [s.value for s in last.samples if s.metric is COUNT] == [float(lines)]


def test_a_tape_has_sums_and_no_text_of_a_tenant(root: Path, tmp_path: Path) -> None:
    log_of(root).write_text(recorded("2.30.7").replace("DP Group 0", "secret") * 100)
    node = InspectorNode(root, GPU, **ENABLED)
    path = tmp_path / "tape.jsonl.gz"
    tape = TapeWriter(path, node, 1 << 20)
    found = exported(read_source(NcclInspector(Census(RecordingNode(node, tape)), GPU, Settings())))
    tape.close()
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    assert max(len(line) for line in lines if json.loads(line).get("call") == "sums") < 4000
    assert "secret" not in "".join(lines)
    source = NcclInspector(Census(TapeNode(path)), GPU, Settings())
    assert exported(read_source(source)) == found
    assert found.count("\n") == 27


@given(st.lists(st.sampled_from(recorded("2.30.7").splitlines()) | st.text()))
def test_whatever_a_tenant_writes_adds_to_known_sums(lines: list[str]) -> None:
    known = {
        f"{metric.name} {of} {between}"
        for metric in NcclInspector.metrics
        for of in FUNCTIONS.values()
        for between in SCOPES
    }
    for name, value in parse("\n".join(lines), 0.0).items():
        assert name in known | {NOT_COUNTED.what}
        assert 0 <= value < math.inf
