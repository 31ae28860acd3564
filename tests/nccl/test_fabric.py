"""The bandwidth between nodes: what is told of fabrics whose fault is known, and what is kept."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpunode.cli.main import main
from gpunode.config.daemon import Settings
from gpunode.export.exposition import Exposition
from gpunode.nccl import run_torch
from gpunode.nccl.bench import NcclBench
from gpunode.nccl.fabric import FabricRun, parse, problems
from gpunode.nccl.launch import expand
from gpunode.node.local import LocalNode
from tests.cases import with_each

GB = 1e9
FULL = 48 * GB
Slows = Callable[[int, int, int], float]


def measured(slows: Slows, hosts: int = 6, gpus: int = 4, *, noise: float = 0.04) -> FabricRun:
    """A fabric whose pairs reach a share of 48 GB/s: ``slows(sender, receiver, gpu)``."""
    chance = random.Random(7)
    return FabricRun(
        hosts=tuple(f"node-{number}" for number in range(hosts)),
        gpus=hosts * gpus,
        model="NVIDIA H200",
        time=1.8e9,
        collectives={"all_reduce": {1 << 30: 180 * GB}},
        exchanges=tuple(
            (a, b, gpu, FULL * slows(a, b, gpu) * chance.uniform(1 - noise, 1))
            for a in range(hosts)
            for b in range(hosts)
            for gpu in range(gpus)
            if a != b
        ),
        expected={"sendrecv": 50 * GB, "all_reduce": 200 * GB},
    )


def problem_texts(fabric: FabricRun) -> list[str]:
    return [f"{one.who} {one.does}" for one in problems(fabric)]


def slow_where(wanted: Callable[[int, int, int], bool]) -> Slows:
    return lambda a, b, gpu: 0.25 if wanted(a, b, gpu) else 1.0


@with_each(
    [
        (slow_where(lambda *_: False), []),
        (slow_where(lambda a, b, _: 2 in (a, b)), ["node-2 exchanges"]),
        (slow_where(lambda a, _b, _g: a == 2), ["node-2 sends"]),
        (slow_where(lambda _a, b, _g: b == 2), ["node-2 receives"]),
        (
            slow_where(lambda a, b, _: bool({2, 4} & {a, b})),
            ["node-2 exchanges", "node-4 exchanges"],
        ),
        (slow_where(lambda _a, _b, gpu: gpu == 3), ["GPU 3 of every node exchanges"]),
        (slow_where(lambda a, b, gpu: gpu == 1 and 5 in (a, b)), ["GPU 1 of node-5 exchanges"]),
        (slow_where(lambda a, _b, gpu: gpu == 1 and a == 5), ["GPU 1 of node-5 sends"]),
        (
            slow_where(lambda a, b, _: (a < 2) != (b < 2)),
            ["node-0, node-1 are fast among themselves, and with the other nodes exchange"],
        ),
        (
            slow_where(lambda a, b, _: (a < 3) != (b < 3)),
            ["node-3, node-4, node-5 are fast among themselves, and with the other nodes exchange"],
        ),
        (slow_where(lambda a, b, _: (a, b) == (1, 4)), ["node-1 sends to node-4"]),
        (
            slow_where(lambda _a, _b, gpu: gpu < 3),
            [f"GPU {gpu} of every node exchanges" for gpu in range(3)],
        ),
        (
            slow_where(lambda a, b, _: (a < 3) != (b < 3) and {a, b} != {0, 5}),
            ["node-3, node-4, node-5 are fast among themselves, and with the other nodes exchange"],
        ),
    ]
)
def test_the_fault_is_told_by_who_is_slow_with_whom(slows: Slows, wanted: list[str]) -> None:
    assert problem_texts(measured(slows)) == wanted


@with_each([3, 4, 8])
def test_a_bad_adapter_is_no_bad_rail_however_few_nodes_there_are(hosts: int) -> None:
    fabric = measured(slow_where(lambda a, b, gpu: gpu == 1 and 2 in (a, b)), hosts, 8)
    assert problem_texts(fabric) == ["GPU 1 of node-2 exchanges"]


@with_each([(4, 2), (5, 3), (8, 5)])
def test_most_nodes_may_be_bad(hosts: int, bad: int) -> None:
    fabric = measured(slow_where(lambda a, b, _: min(a, b) < bad), hosts)
    assert problem_texts(fabric) == [f"node-{host} exchanges" for host in range(bad)]


def test_uplinks_of_all_racks_may_be_slow() -> None:
    fabric = measured(slow_where(lambda a, b, _: a // 2 != b // 2), 8)
    assert [who.endswith("with the other nodes exchange") for who in problem_texts(fabric)] == [
        True
    ] * 3


def test_of_many_hosts_that_met_only_some_others_a_rack_with_a_slow_uplink_is_one_line() -> None:
    hosts = 512
    met = [pair for turn in run_torch.rounds(hosts) for pair in turn]
    fabric = FabricRun(
        hosts=tuple(f"node-{number}" for number in range(hosts)),
        gpus=hosts,
        model="NVIDIA H200",
        time=1.8e9,
        collectives={},
        exchanges=tuple(
            (a, b, 0, FULL * (0.5 if (a // 32 == 5) != (b // 32 == 5) else 1.0))
            for pair in met
            for a, b in (pair, pair[::-1])
        ),
        expected={},
    )
    [only] = problem_texts(fabric)
    assert only.startswith("node-160, node-161, node-162, node-163 and 28 more are fast")


def test_of_three_nodes_a_bad_way_between_two_names_these_two_pairs() -> None:
    fabric = measured(slow_where(lambda a, b, _: {a, b} == {1, 2}), 3, 1)
    assert sorted(problem_texts(fabric)) == ["node-1 sends to node-2", "node-2 sends to node-1"]


def test_all_below_what_their_adapters_allow_is_the_fabric() -> None:
    fabric = measured(lambda *_: 0.3)
    assert problem_texts(fabric) == ["Every pair of nodes exchanges"]
    [only] = problems(fabric)
    assert "of 50 GB/s" in str(only)


def test_of_two_nodes_the_direction_is_told_and_that_nothing_tells_which_is_slow() -> None:
    [only] = problems(measured(slow_where(lambda a, _b, _g: a == 1), hosts=2, gpus=1))
    assert (only.who, only.does) == ("node-1", "sends to node-0")
    assert "measure with a third" in only.advice


def test_a_collective_below_what_adapters_allow_is_told() -> None:
    slow = FabricRun(
        hosts=("a", "b"),
        gpus=2,
        model="NVIDIA H200",
        time=1.8e9,
        collectives={"all_reduce": {1 << 30: 20 * GB}},
        exchanges=((0, 1, 0, FULL), (1, 0, 0, FULL)),
        expected={"sendrecv": 50 * GB, "all_reduce": 50 * GB},
    )
    assert problem_texts(slow) == ["all_reduce over all 2 GPUs reaches"]


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 20), st.integers(1, 8), st.floats(0.05, 0.6), st.data())
def test_one_bad_node_of_any_fabric_is_named_and_no_other(
    hosts: int, gpus: int, share: float, data: st.DataObject
) -> None:
    bad = data.draw(st.integers(0, hosts - 1))
    fabric = measured(lambda a, b, _: share if bad in (a, b) else 1.0, hosts, gpus)
    assert problem_texts(fabric) == [f"node-{bad} exchanges"]


@given(st.integers(2, 90))
def test_each_host_meets_each_other_once_or_as_many_as_the_bound_allows(hosts: int) -> None:
    met = [frozenset(pair) for turn in run_torch.rounds(hosts) for pair in turn]
    assert len(met) == len(set(met))
    for turn in run_torch.rounds(hosts):
        busy = [host for pair in turn for host in pair]
        assert len(busy) == len(set(busy))
    if hosts <= run_torch.MAX_ROUNDS:
        assert len(met) == hosts * (hosts - 1) // 2


@with_each(
    [
        ("node-1", ["node-1"]),
        ("a,b,a", ["a", "b"]),
        ("node-[08-11],login", ["node-08", "node-09", "node-10", "node-11", "login"]),
        ("rack[1,3]-gpu,10.0.0.[1-2]", ["rack1-gpu", "rack3-gpu", "10.0.0.1", "10.0.0.2"]),
    ]
)
def test_lists_of_hosts_are_read_as_slurm_writes_them(text: str, hosts: list[str]) -> None:
    assert expand(text) == hosts
    assert run_torch.first_of(text) == hosts[0]


@given(st.text(alphabet="ab1-[],. ;$(x)", max_size=30))
def test_no_list_of_hosts_becomes_an_option_of_the_launcher(text: str) -> None:
    with suppress(ValueError):
        for name in expand(text):
            assert name.replace("-", "").replace(".", "").isalnum()
            assert name[0] not in "-."


def rank_output(fabric: FabricRun) -> str:
    """What rank 0 prints, amid what else a launcher does."""
    result = {name: getattr(fabric, name) for name in FabricRun.__slots__}
    return f"NCCL version 2.27\n{json.dumps({'fabric': result})}\nsome warning\n"


def command(*options: str, text: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``gpunode nccl-bench``, where no launcher is unless the environment says so."""
    return subprocess.run(
        [sys.executable, "-m", "gpunode", "nccl-bench", *options],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": "/nowhere", **environment},
    )


def test_a_result_is_judged_printed_and_drawn(tmp_path: Path) -> None:
    slow = measured(slow_where(lambda a, b, _: 2 in (a, b)))
    picture = tmp_path / "fabric.svg"
    ran = command("--result=-", f"--picture={picture}", text=rank_output(slow))
    assert ran.returncode == 1, ran.stderr
    assert "node-2 exchanges 11.8 of 47.9 GB/s: look at its adapters" in ran.stdout
    assert "unknown" not in ran.stdout
    drawn = picture.read_text()
    assert "node-2 to node-0: 1" in drawn
    assert drawn.count("<title>") == 6 * 5
    ran = command("--result=-", "--json", text=rank_output(measured(lambda *_: 1.0)))
    assert (ran.returncode, json.loads(ran.stdout)["problems"]) == (0, [])


def test_hostile_names_neither_reach_the_terminal_nor_the_picture(tmp_path: Path) -> None:
    slow = measured(slow_where(lambda a, b, _: 2 in (a, b)))
    named = rank_output(slow).replace("node-2", "\\u001b]52;c;x\\u0007<script>")
    picture = tmp_path / "fabric.svg"
    ran = command("--result=-", f"--picture={picture}", text=named)
    assert ran.returncode == 1
    assert "\x1b" not in ran.stdout
    assert "<script>" not in picture.read_text()


MISUSES = (
    (["--hosts=a"], "name two hosts at least"),
    (["--hosts=a,b"], "--gpus"),
    (["--hosts=a,b", "--gpus=8"], "neither srun nor mpirun is here"),
    (["--hosts=a,-oProxyCommand=x", "--gpus=8"], "is not the name of a host"),
    (["--hosts=a[1-99999]", "--gpus=8"], "more than 4096 hosts"),
    (["--hosts=node-[01-03", "--gpus=8"], "lacks a bracket"),
    (["--hosts=n[3-1],a,b", "--gpus=8"], "ends before it begins"),
    (["--largest=0G"], "largest"),
    (["--result=/nowhere/x"], "/nowhere/x: No such file"),
    (["--result=-"], "no result of nccl-bench"),
)


def test_a_misuse_ends_with_a_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    for options, said in MISUSES:
        with pytest.raises(SystemExit, match=r"^2$"):
            main(["nccl-bench", *options])
        complaint = capfd.readouterr().err
        assert complaint.count("\n") == 1, options
        assert said in complaint


@with_each(
    [
        '{"fabric": {}}',
        '{"fabric": {"hosts": ["a"]}}',
        rank_output(measured(lambda *_: 1.0)).replace("[0, 1, 0,", "[9, 1, 0,"),
        rank_output(measured(lambda *_: 1.0)).replace("[0, 1, 0, 4", "[0, 1, 0, -4"),
        rank_output(measured(lambda *_: 1.0)).replace("[0, 1, 0, 4", "[0, 1, 0, 1e400, 4"),
    ]
)
def test_what_is_no_result_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)


def exported(folder: Path) -> dict[str, float]:
    """The series of a node whose daemon finds these results."""
    samples = NcclBench(LocalNode(folder), Settings()).read().samples
    lines = Exposition(lambda: samples).encode("")[0].decode().splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in lines
        if not line.startswith("#") and "timestamp" not in line
    }


def saved_result(fabric: FabricRun, here: int, folder: Path) -> dict[str, float]:
    """What the daemon of a host exports after such a run."""
    result = {name: getattr(fabric, name) for name in FabricRun.__slots__}
    run_torch.keep_of_host(result, here, folder / "var/lib/gpunode/nccl-bench")
    return exported(folder)


def test_each_node_exports_what_it_exchanges_and_the_first_what_all_reach(tmp_path: Path) -> None:
    slow = measured(slow_where(lambda a, b, _: 2 in (a, b)), noise=0.0)
    metric = "gpunode_nccl_bus_bandwidth_bytes_per_second"
    labels = 'collective="sendrecv",gpus="24",nodes="6"'
    found = saved_result(slow, 2, tmp_path / "2")
    assert found[f"{metric}{{{labels}}}"] == 12 * GB
    assert found[f"gpunode_nccl_expected_bus_bandwidth_bytes_per_second{{{labels}}}"] == 50 * GB
    first = saved_result(slow, 0, tmp_path / "0")
    assert first[f"{metric}{{{labels}}}"] == FULL
    of_all = 'collective="all_reduce",gpus="24",nodes="6"'
    assert first[f"{metric}{{{of_all}}}"] == 180 * GB
    assert f"{metric}{{{of_all}}}" not in found


def without_adapters(hosts: int) -> FabricRun:
    whole = measured(lambda *_: 1.0, hosts, noise=0.0)
    fields = {name: getattr(whole, name) for name in FabricRun.__slots__}
    return FabricRun(**{**fields, "expected": {}})


def test_without_adapters_other_pairs_say_what_to_expect_but_of_two_nodes_nothing_does(
    tmp_path: Path,
) -> None:
    expected = "gpunode_nccl_expected_bus_bandwidth_bytes_per_second"

    def names(found: Iterable[str]) -> set[str]:
        return {series.partition("{")[0] for series in found}

    assert expected in names(saved_result(without_adapters(3), 1, tmp_path / "3"))
    assert expected not in names(saved_result(without_adapters(2), 1, tmp_path / "2"))


@with_each(
    [
        ([50 * GB] * 10, 50 * GB),  # eight adapters for GPUs, two for storage
        ([50 * GB] * 4 + [12.5 * GB], 25 * GB),
        ([25 * GB] * 8 + [50 * GB], 25 * GB),  # one is of a DPU
        ([12.5 * GB] * 32, 50 * GB),  # EFA
    ]
)
def test_adapters_say_what_to_expect(speeds: list[float], each: float) -> None:
    expected = run_torch.expectations([(speeds, 8), (speeds, 8)])
    assert expected["sendrecv"] == each
    assert expected["all_reduce"] == 8 * each
    assert expected["alltoall"] == pytest.approx(each * 15 / 8)


def test_what_most_nodes_have_is_expected_of_one_whose_ports_are_down_and_none_without() -> None:
    whole, half = ([50 * GB] * 8, 8), ([50 * GB] * 4, 8)
    assert run_torch.expectations([whole, whole, half])["sendrecv"] == 50 * GB
    assert run_torch.expectations([whole, ([], 8)]) == {}


@with_each(
    [
        ("", ["mlx5_0", "mlx5_1", "mlx5_10"]),
        ("mlx5_1", ["mlx5_1", "mlx5_10"]),
        ("=mlx5_1:1", ["mlx5_1"]),
        ("^mlx5_1", ["mlx5_0"]),
        ("^=mlx5_1,mlx5_0", ["mlx5_10"]),
    ]
)
def test_adapters_that_nccl_does_not_use_do_not_count(chosen: str, used: list[str]) -> None:
    names = ["mlx5_0", "mlx5_1", "mlx5_10"]
    assert [name for name in names if run_torch.is_used(name, chosen)] == used


def test_a_bad_adapter_has_a_ticket_on_its_own_node_alone(tmp_path: Path) -> None:
    slow = measured(slow_where(lambda a, b, gpu: gpu == 1 and 2 in (a, b)), noise=0.0)
    metric = "gpunode_nccl_bus_bandwidth_bytes_per_second"
    series = metric + '{collective="sendrecv",gpus="24",nodes="6"}'
    reached = [saved_result(slow, host, tmp_path / str(host))[series] for host in range(6)]
    assert reached == [FULL, FULL, 12 * GB, FULL, FULL, FULL]


def test_a_run_leaves_nothing_of_the_one_before(tmp_path: Path) -> None:
    assert any("all_reduce" in one for one in saved_result(measured(lambda *_: 1.0), 0, tmp_path))
    assert not any(
        "all_reduce" in one for one in saved_result(measured(lambda *_: 1.0), 1, tmp_path)
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": 1},
        {"nodes": 10**30},
        {"nodes": -5},
        {"collective": "all_gather"},
        {"bandwidth": {}},
        {"bandwidth": {"8388608": -1}},
        {"time": "NaN"},
        None,
    ],
)
def test_a_damaged_result_is_counted_and_costs_no_other(
    tmp_path: Path, changes: dict[str, object] | None
) -> None:
    saved_result(measured(lambda *_: 1.0), 0, tmp_path)
    damaged = tmp_path / "var/lib/gpunode/nccl-bench/fabric-all_reduce.json"
    good = json.loads(damaged.read_text())
    damaged.write_text("{" if changes is None else json.dumps({**good, **changes}))
    read = NcclBench(LocalNode(tmp_path), Settings()).read()
    assert [(one.kind.what, one.example) for one in read.unread] == [
        ("nccl_results", "fabric-all_reduce.json")
    ]
    assert {sample.labels[0] for sample in read.samples} == {"sendrecv"}


@with_each(
    [
        "{}",
        "\x1b[32m{}\x1b[0m",
        "0: {} done",
        "{}\n+ python -c 'print(json.dumps({{\"fabric\": result}}))'",
    ]
)
def test_what_a_launcher_prints_around_the_result_is_passed_over(around: str) -> None:
    wanted = measured(lambda *_: 1.0)
    line = rank_output(wanted).splitlines()[1]
    assert parse(around.format(line)) == wanted


def test_a_result_that_is_cut_says_so() -> None:
    with pytest.raises(ValueError, match="cut or damaged"):
        parse(rank_output(measured(lambda *_: 1.0))[:200])


@pytest.mark.parametrize(("by_srun", "met"), [(True, "n2:29400"), (False, "n1:29400")])
def test_under_slurm_ranks_of_srun_meet_on_its_first_host_and_others_where_told(
    monkeypatch: pytest.MonkeyPatch, by_srun: bool, met: str
) -> None:
    monkeypatch.setenv("SLURM_STEP_NODELIST", "n[2-4]")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert run_torch.meeting_point("n1:29400", by_srun) == met


def test_what_ranks_have_to_say_reaches_whoever_started_them(tmp_path: Path) -> None:
    line = rank_output(measured(lambda *_: 1.0)).splitlines()[1]
    srun = tmp_path / "srun"
    said = "nccl-bench: node-1: /var/lib/gpunode: not kept for the daemon: Permission denied"
    srun.write_text(f"#!/bin/sh\necho '{said}' >&2\ncat <<'END'\n{line}\nEND\n")
    srun.chmod(0o755)
    ran = command("--hosts=node-[0-5]", "--gpus=4", PATH=f"{tmp_path}:/bin:/usr/bin")
    assert ran.returncode == 0, ran.stderr
    assert "not kept for the daemon: Permission denied" in ran.stderr
