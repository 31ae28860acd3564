"""The bench of real jobs without a GPU: truth from kernels, outcomes, the report, and its ranks."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bench.__main__ as bench_program
from bench.report import Report, Result, render
from bench.truth import bench, kernels, launch, outcome, peer, workloads
from bench.truth.kernels import PRIORITY, STATES, Trace, divided, kind_of, merged, shares
from bench.truth.outcome import Outcome
from bench.truth.report import report
from bench.truth.watched import Watched
from bench.truth.workloads import BY_NAME, NOTHING, WORKLOADS, Workload, chosen
from tests.fakes.nvml import FakeDriver

TRUTH = Path(workloads.__file__).parent

NAMES = {
    "compute": (
        "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NTT",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn>",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>",
        "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x64x64",
        "cudnn::cnn::conv2d_grouped_direct_kernel<false, true, false, false, 0, 0, int>",
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false>>",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_32_64x64x64",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)",
        "void RNN_blockPersist_fp_LSTM<__half, __half, float, 128, 1>",
        "gemm_fusion_dot_5",
    ),
    "memory": (
        "void regular_fft<256u, 8u, 32u, (padding_t)0, (twiddle_t)0, (loadstore_modifier_t)2>",
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float, 0>",
        "nvjet_sm90_tst_64x8_64x16_1x2_h_bz_NNT",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>",
        "void at::native::EmbeddingBag_updateOutputKernel_sum_mean<float, long>",
        "void cudnn::bn_fw_tr_1C11_kernel_NHWC<float, float, int, 512, true, 1, true>",
        "void LSTM_elementWise_fp<__half, __half, float, (cudnnRNNBiasMode_t)2>",
        "triton_poi_fused__to_copy_convolution_relu_3",
        "input_convert_reduce_fusion_2",
        "loop_add_fusion",
        "cupy_absolute__complex64_float32",
        "Memcpy DtoD (Device -> Device)",
        "Memset (Device)",
    ),
    "collective": (
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymkDevKernel_AllGather_LL",
    ),
    "communication": ("Memcpy PtoP (Device -> Device)",),
    "copy": (
        "Memcpy HtoD (Pageable -> Device)",
        "Memcpy HtoD (Pinned -> Device)",
        "Memcpy DtoH (Device -> Pinned)",
    ),
}


@pytest.mark.parametrize(
    ("kind", "name"), [(k, name) for k, names in NAMES.items() for name in names]
)
def test_a_kernel_is_known_by_its_name(kind: str, name: str) -> None:
    assert kind_of(name) == kind


@dataclass(frozen=True, slots=True)
class Event:
    """As the tracer tells it, in ns."""

    called: str
    start: int
    duration: int

    def name(self) -> str:
        return self.called

    def start_ns(self) -> int:
        return self.start

    def duration_ns(self) -> int:
        return self.duration


def test_a_trace_has_what_ran_on_the_gpu_and_outlives_its_file(tmp_path: Path) -> None:
    events = [
        Event("cudaLaunchKernel", 10**9, 9),
        Event("sgemm", 3 * 10**9, 10**9),
        Event("cudaLaunchKernel", 10**9, 9),
        Event("sgemm", 2 * 10**9, 500),
        Event("ncclDevKernel_AllReduce", 5 * 10**9, 10**9),
    ]
    trace = Trace.of(events, on_gpu=lambda event: not event.called.startswith("cuda"))
    trace.save(tmp_path / "trace.npz")
    for found in (trace, Trace.load(tmp_path / "trace.npz")):
        assert found.kernels["compute"].tolist() == [[3.0, 4.0], [2.0, pytest.approx(2.0000005)]]
        assert found.kernels["collective"].tolist() == [[5.0, 6.0]]
        assert not len(found.kernels["memory"])
        assert found.begin == 2.0
    assert Trace.of([], on_gpu=lambda _: True).begin == float("inf")


def test_a_kernel_that_waited_for_its_turn_ran_as_long_as_others_of_its_name() -> None:
    events = [Event("sgemm", at * 10**9, 50_000 + at) for at in range(9)]
    events.append(Event("sgemm", 9 * 10**9, 2_550_000))
    for in_turns, longest in ((False, 2.55e-3), (True, 50e-6)):
        found = Trace.of(events, lambda _: True, in_turns).kernels
        assert max(end - begin for begin, end in found["compute"]) == pytest.approx(
            longest, rel=1e-3
        )
        waited = sum(end - begin for begin, end in found["turns"])
        assert waited == pytest.approx(2.55e-3 - longest, abs=1e-7)
        # Another process runs meanwhile: the GPU has no gap.
        busy = kernels.states(Trace(found), [])
        whole = shares([busy, busy], 9.0, 9.00255)
        assert whole["compute"] == pytest.approx(1.0, abs=1e-3)


CELL = 0.003
"""Seconds of a cell of the simulations: no number of cells is as long as the longest launch gap."""

WINDOW = 60
"""Cells of a window."""

intervals = st.lists(
    st.tuples(st.integers(-400, 400), st.integers(1, 30)).map(lambda x: (x[0], x[0] + x[1])),
    max_size=12,
)


def in_seconds(cells: list[tuple[int, int]]) -> kernels.Intervals:
    return np.array(cells, dtype=np.float64).reshape(-1, 2) * CELL


def covered(cells: list[tuple[int, int]]) -> set[int]:
    return {cell for begin, end in cells for cell in range(begin, end)}


@given(intervals)
def test_merged_intervals_are_disjoint_in_order_and_cover_the_same(
    cells: list[tuple[int, int]],
) -> None:
    found = merged(in_seconds(cells))
    assert (found[:, 0] < found[:, 1]).all()
    assert (found[1:, 0] > found[:-1, 1]).all()
    back = [(round(begin / CELL), round(end / CELL)) for begin, end in found.tolist()]
    assert covered(back) == covered(cells)


@given(st.fixed_dictionaries(dict.fromkeys(PRIORITY, intervals)))
def test_shares_are_those_of_a_walk_through_the_window(
    cells: dict[str, list[tuple[int, int]]],
) -> None:
    busy = {state: covered(those) for state, those in cells.items()}
    around = range(-round(kernels.AROUND / CELL), WINDOW + round(kernels.AROUND / CELL) + 1)
    walk = dict.fromkeys(STATES, 0)
    gap: list[int] = []
    for cell in (*around, None):
        state = next((state for state in PRIORITY if cell in busy[state]), None)
        if cell is not None and state is None:
            gap.append(cell)
            continue
        long = len(gap) * CELL >= kernels.LONG_GAP
        walk["starved" if long else "launch"] += len({*gap} & {*range(WINDOW)})
        gap = []
        if state is not None and cell in range(WINDOW):
            walk[state] += 1

    found = shares([{s: merged(in_seconds(c)) for s, c in cells.items()}], 0.0, WINDOW * CELL)

    assert sum(found.values()) == pytest.approx(1.0)
    assert found == pytest.approx({s: count / WINDOW for s, count in walk.items()}, abs=1e-9)


def test_a_gap_is_as_long_as_it_is_beyond_the_window() -> None:
    busy = {state: np.empty((0, 2)) for state in PRIORITY}
    busy["compute"] = np.array([[0.0, 0.99], [1.005, 1.99], [2.03, 3.0]])
    assert shares([busy], 1.0, 2.0)["launch"] == pytest.approx(0.005)
    assert shares([busy], 1.0, 2.0)["starved"] == pytest.approx(0.01)
    assert shares([busy], 5.0, 6.0)["starved"] == pytest.approx(1.0)


collectives = st.lists(
    st.tuples(st.lists(st.integers(1, 40), min_size=3, max_size=3), st.integers(1, 30)),
    min_size=1,
    max_size=15,
)
"""One after the other: how late each of three ranks comes, and how long the data moves."""


@given(collectives, st.randoms(use_true_random=False))
def test_a_collective_is_divided_where_its_last_rank_joins(
    each: list[tuple[list[int], int]], chance: Any
) -> None:
    apart = 0.4
    ranks: list[list[tuple[float, float]]] = [[], [], []]
    waited = [0, 0, 0]
    moved = now = 0
    for late, moves in each:
        joins = [now + pause for pause in late]
        now = max(joins) + moves
        for rank, join in enumerate(joins):
            ranks[rank].append((join, now - chance.random() * apart))
        for cell in range(min(joins), max(joins)):
            for rank, join in enumerate(joins):
                waited[rank] += join <= cell
        moved += moves

    for rank, kept in enumerate(ranks):
        own, *others = (
            np.array(those) * 1e-3 for those in (kept, *(o for o in ranks if o is not kept))
        )
        waiting, moving = divided(own, others)
        assert (waiting[:, 1] - waiting[:, 0]).sum() == pytest.approx(waited[rank] * 1e-3)
        left_early = moved * 1e-3 - (moving[:, 1] - moving[:, 0]).sum()
        assert -1e-9 < left_early < apart * 1e-3 * len(each) + 1e-9
        assert (waiting[:, 1] == moving[:, 0]).all()


def test_a_collective_that_no_peer_joins_is_all_waiting() -> None:
    own = np.array([[1.0, 2.0], [5.0, 6.0]])
    joined = np.array([[1.5, 2.0]])
    assert divided(own, [joined])[0].tolist() == [[1.0, 1.5], [5.0, 6.0]]
    assert divided(own, [np.empty((0, 2))])[0].tolist() == own.tolist()
    assert divided(own, [])[1].tolist() == own.tolist()
    assert not len(divided(np.empty((0, 2)), [own])[0])


def trace(**kinds: list[list[float]]) -> Trace:
    return Trace({kind: np.array(kinds.get(kind, [])).reshape(-1, 2) for kind in kernels.KINDS})


def test_the_states_of_a_process_are_those_of_its_kernels_and_of_its_peers() -> None:
    own = trace(compute=[[0.0, 0.2]], copy=[[0.1, 0.4]], collective=[[0.4, 0.6]])
    found = shares([kernels.states(own, [trace(collective=[[0.5, 0.6]])])], 0.0, 1.0)
    assert {state: round(share, 9) for state, share in found.items() if share > 1e-9} == {
        "compute": 0.2,
        "copy": 0.2,
        "blocked": 0.1,
        "communication": 0.1,
        "starved": 0.4,
    }


def test_processes_share_the_time_in_which_they_take_turns() -> None:
    one = kernels.states(trace(compute=[[0.0, 0.4]]), [])
    other = kernels.states(trace(compute=[[0.0, 0.1]], memory=[[0.1, 0.5]]), [])
    found = shares([one, other], 0.0, 1.0)
    assert found["compute"] == pytest.approx(0.5 * 5 / 9)
    assert found["memory"] == pytest.approx(0.5 * 4 / 9)
    assert found["starved"] == pytest.approx(0.5)


def test_every_workload_has_a_program_and_causes_for_its_gpus() -> None:
    for workload in WORKLOADS:
        module, function = workload.program.split(":")
        tree = ast.parse((TRUTH / f"{module}.py").read_text())
        assert function in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
        assert all(workload.causes)
        assert workload.traced <= workload.seconds
        assert workload.awaited is None or workload.awaited[0] < workload.gpus
    assert len(BY_NAME) == len(WORKLOADS)


def test_workloads_are_chosen_by_program_module_or_name() -> None:
    assert chosen([]) == list(WORKLOADS)
    assert [w.name for w in chosen(["parallel:ddp", "LSTM"])] == ["DDP transformer", "LSTM"]
    assert all(workload.stalls for workload in chosen(["stalls"]))
    with pytest.raises(LookupError, match="no workload is called perl"):
        chosen(["LSTM", "perl"])


def test_workloads_of_one_gpu_run_side_by_side_where_there_are_several() -> None:
    small = [workload for workload in WORKLOADS if workload.gpus == 1][:3]
    large = BY_NAME["DDP transformer"]
    assert launch.groups([small[0], large, *small[1:]], 2) == [
        [(large, 0)],
        [(small[0], 0), (small[1], 1)],
        [(small[2], 0)],
    ]
    assert launch.groups([large, *small], 1) == [[(workload, 0)] for workload in small]
    assert launch.groups([large, *small], 0) == []


def window(time: float, seconds: float, **state: float) -> dict[str, Any]:
    return {"time": time, "seconds": seconds, "state": {"idle": 0.0, "free": 0.0, **state}}


def watched(name: str, rank: int = 0, **more: Any) -> Watched:
    """A GPU that was watched for 18 s, without a window."""
    kinds = [(1000.0, "unknown"), (1003.0, "training")]
    return Watched(BY_NAME[name], rank, rank, 1000.0, 1018.0, kinds=kinds, **more)


def test_windows_count_by_their_seconds_if_their_truth_is_known() -> None:
    found = Outcome.of(
        watched(
            "DDP transformer",
            windows=[
                window(1004.0, 2.0, launch=1.0),
                window(1006.0, 1.5, compute=1.0),
                window(1006.5, 0.5, compute=0.2, starved=0.8),
            ],
            truths=[None, {"compute": 1.0, "starved": 0.0}, {"compute": 0.0, "starved": 1.0}],
            utilization=[1.0, 0.5],
            peer="idle",
        ),
        "a machine",
    )
    assert found.truth == {"compute": 0.75, "starved": 0.25}
    assert found.ledger["compute"] == pytest.approx(0.8)
    assert found.error == pytest.approx(0.05)
    assert (found.kind, found.utilization, found.peer) == ("training", 0.75, "idle")
    assert (found.machine, found.at, found.end) == ("a machine", 1000.0, 18.0)


@pytest.mark.parametrize(("gone", "error"), [(False, 0.25), (True, 0.0)])
def test_long_gaps_are_one_state_and_so_is_the_gpu_of_a_killed_rank(
    gone: bool, error: float
) -> None:
    found = Outcome.of(
        watched(
            "a killed rank",
            1,
            windows=[window(1006.0, 2.0, starved=0.25, idle=0.5, free=0.25)],
            truths=[{"starved": 1.0}],
            gone=gone,
        ),
        "",
    )
    assert found.error == error


@pytest.mark.parametrize(
    "one",
    [
        watched("LSTM", failed="out of memory"),
        watched("LSTM"),
        watched("LSTM", windows=[window(1004.0, 2.0, launch=1.0)], truths=[None]),
    ],
)
def test_a_workload_without_truth_has_failed(one: Watched) -> None:
    found = Outcome.of(one, "")
    assert found.failed in ("out of memory", "there is no window of which the truth is known")
    assert not found.right
    assert found.error == 1.0
    assert (found.right_after, found.called_after, found.named_after) == (None, None, None)


def said(name: str, *words: tuple[float, str], rank: int = 0, **more: Any) -> Outcome:
    """The outcome of a workload on a GPU where the ledger was right, by its verdicts."""
    state = {"compute": 1.0}
    course = list(words)
    kept: dict[str, Any] = {"truth": state, "ledger": state, "verdicts": course, **more}
    return Outcome(name, rank, rank, "1 x NVIDIA H200", 5.0, **{"end": 18.0, **kept})


@pytest.mark.parametrize(
    ("found", "right", "after", "wrong"),
    [
        (said("LSTM", (0.0, "kernel_launch")), True, 2.5, 0.0),
        (said("LSTM", (0.0, "straggler"), (6.0, "kernel_launch")), True, 6.0, 3.5),
        (said("LSTM", (0.0, "none"), (14.0, "shm")), False, 2.5, 4.0),
        (said("LSTM", (0.0, "none"), (12.5, "shm"), (17.0, "none")), False, 2.5, 4.5),
        (said("LSTM", (0.0, "shm"), (9.0, "straggler"), (17.0, "none")), False, 17.0, 14.5),
        (said("LSTM", (0.0, "shm"), (9.0, NOTHING), (11.0, "none")), True, 11.0, 6.5),
        (said("LSTM", (0.0, NOTHING)), False, None, 0.0),
        (said("LSTM"), False, None, 0.0),
        (said("a killed rank", (0.0, "straggler"), (9.0, NOTHING), rank=1), True, 9.0, 6.5),
    ],
)
def test_a_verdict_is_right_in_the_end_and_mostly(
    found: Outcome, right: bool, after: float | None, wrong: float
) -> None:
    assert (found.right, found.right_after, found.wrong_for) == (right, after, wrong)


def test_verdicts_on_a_stall_count_from_its_begin() -> None:
    course = [(0.0, "none"), (6.0, "straggler"), (9.5, "stalled_collective")]
    found = said("a stopped rank", *course, stalled=4.0, end=24.0)
    assert found.right
    assert (found.right_after, found.called_after, found.wrong_for) == (5.5, 5.5, 5.5)
    assert not said("a stopped rank", *course[:2], stalled=4.0, end=24.0).right


def test_a_gpu_is_named_once_its_reason_is_right() -> None:
    course = [(0.0, "stopped"), (2.0, ""), (6.0, "unknown"), (11.0, "stopped")]
    found = said("a stopped rank", rank=1, stalled=4.0, end=24.0, waited_for=course)
    assert found.named_after == 7.0
    assert replace(found, workload="hang in a large all-reduce").named_after == 2.0
    assert replace(found, workload="a rank in D state").named_after is None


def test_outcomes_are_kept_until_their_workload_runs_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "truth-h200.jsonl"
    old = [said("DDP transformer", (0.0, "shm"), rank=rank) for rank in (1, 0)]
    other = said("LSTM", (0.0, "none"))
    outcome.keep(path, [other, *old])
    assert outcome.load(path) == [old[1], old[0], other]
    new = [said("DDP transformer", (0.0, "none"), rank=rank, peer="idle") for rank in (0, 1)]
    outcome.keep(path, new)
    assert outcome.load(path) == [*new, other]
    path.write_text(path.read_text().replace("LSTM", "of a name that is gone"))
    assert outcome.load(path) == new


STALL: dict[str, Any] = {"stalled": 4.0, "end": 24.0}
GOOD = (
    said("DDP transformer", (0.0, "none"), kind="training", peer="compute-heavy", utilization=1.0),
    said("a stopped rank", (0.0, "none"), (6.0, "stalled_collective"), kind="training", **STALL),
    said(
        "a stopped rank",
        (0.0, "none"),
        (7.0, "stopped"),
        rank=1,
        kind="training",
        waited_for=[(0.0, ""), (6.5, "stopped")],
        **STALL,
    ),
)


def results(found: Report) -> dict[str, Result]:
    return {result.what: result for result in found.results}


def test_a_report_of_good_outcomes_meets_all_targets() -> None:
    found = report("h200", GOOD)
    assert found.title.endswith("H200")
    assert found.machine == "1 x NVIDIA H200"
    assert all(result.met for result in found.results)
    by_name = results(found)
    assert by_name["GPUs with the right verdict"].measured == "3 of 3 (100%)"
    assert (
        by_name["a stall was called so after, at most"].measured == "2.0 s (a stopped rank, GPU 0)"
    )
    assert by_name["the GPU waited for was named after, at most"].measured.startswith("2.5 s")
    head, first, *_, stall = found.details
    assert head.split()[:3] == ["workload", "GPU", "compute"]
    expected = "DDP transformer 0 100/100 +0.00 compute none 2.5 s compute-heavy 100%"
    assert first.split() == expected.split()
    assert (
        stall == "a stopped rank: called a stall: after 2.0 s, GPU 1 named: after 2.5 s (stopped)"
    )


def test_a_report_of_bad_outcomes_says_what_was_missed() -> None:
    off = replace(GOOD[0], ledger={"compute": 0.93, "unknown": 0.07})
    wrong = replace(off, rank=1, gpu=1, verdicts=[(0.0, "shm")])
    silent = [replace(one, verdicts=[(0.0, "straggler")], waited_for=[]) for one in GOOD[1:]]
    failed = replace(said("LSTM"), failed="rank 0 ended: Error: [x]", truth={}, ledger={})
    found = report("h100", [off, wrong, *silent, failed])
    measured = {r.what: r.measured for r in found.results if not r.met}
    assert measured == {
        "GPUs with every state within 0.05": "2 of 5 (40%)",
        "GPUs with every state within 0.10": "4 of 5 (80%)",
        "GPUs with the right verdict": "1 of 5 (20%)",
        "a wrong cause was named for, at most": "20.0 s (a stopped rank, GPU 0)",
        "a stall was called so after, at most": "never (a stopped rank, GPU 0)",
        "the GPU waited for was named after, at most": "never (a stopped rank, GPU 1)",
        "workloads that failed": "1",
    }
    text = "\n".join(found.details)
    assert "failed: rank 0 ended: Error: [x]" in text
    assert "+0.07 unknown" in text or "-0.07 compute" in text
    assert "DDP transformer, GPU 1: shm from 0.0 s on; right: none or memory_bandwidth" in text


def test_results_of_two_machines_stand_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_program, "RESULTS", tmp_path)
    monkeypatch.setattr(outcome, "models", list)
    monkeypatch.setenv("TRUTH_WORKLOADS", "stalls,LSTM")
    for model in ("h200", "h100"):
        outcome.keep(tmp_path / f"truth-{model}.jsonl", GOOD)
    Report("A later one", "", "", [], []).save("15-later", tmp_path)
    Report("An earlier one", "", "", [], []).save("2-earlier", tmp_path)
    for name, found in bench_program.truth():
        found.save(name, tmp_path)
        found.print()
    heads = [line for line in render(tmp_path).splitlines() if line.startswith("## ")]
    title = "## The ledger and the verdicts on real jobs, "
    assert heads == ["## An earlier one", f"{title}H100", f"{title}H200", "## A later one"]
    assert "a stopped rank" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 4090", "4090"),
        ("Graphics Device", "graphics device"),
    ],
)
def test_results_are_called_after_the_gpu(name: str, model: str) -> None:
    assert outcome.model(name) == model


CSV = """timestamp,gpu_id,model,real_util_pct,status,health
1795312020.44,0,H200,0.00,I/O or data-loading,OK
1795312020.44,1,H200,0.00,idle,OK
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that hides all others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def with_peer(programs: Path, script: str) -> None:
    program = programs / peer.NAME
    program.write_text(f"#!/bin/sh\n{script}")
    program.chmod(0o755)


def test_the_peer_is_asked_where_it_is_installed(programs: Path) -> None:
    with_peer(programs, f"echo \"$*\" >'{programs}/asked'\necho '{CSV}'")
    assert peer.answer(peer.asked(1234)) == {0: "I/O or data-loading", 1: "idle"}
    assert (programs / "asked").read_text().endswith("--source http://127.0.0.1:1234/metrics\n")


def test_a_peer_that_fails_hangs_or_is_not_there_says_nothing(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert peer.answer(peer.asked(1)) == {}
    with_peer(programs, "exit 1")
    assert peer.answer(peer.asked(1)) == {}
    monkeypatch.setattr(peer, "PATIENCE", 0.1)
    with_peer(programs, "exec /bin/sleep 60")
    assert peer.answer(peer.asked(1)) == {}


@pytest.fixture
def placed(tmp_path: Path) -> Iterator[Any]:
    """Puts ranks that run these lines of Python into a workload."""
    started: list[launch.Placed] = []

    def start(*codes: str) -> launch.Placed:
        found = launch.Placed(BY_NAME["LSTM"], [watched("LSTM")])
        started.append(found)
        for rank, code in enumerate(codes):
            with (tmp_path / f"errors.{rank}").open("w") as errors:
                child = subprocess.Popen(
                    [sys.executable, "-c", code],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    start_new_session=True,
                )
            found.processes.append(launch.Process(child, 0, rank, tmp_path))
        return found

    yield start
    for each in started:
        each.end()


SAYS = "import time; print('not JSON'); print('[1.5, \"ready\"]', flush=True); "


def test_ranks_are_waited_for(placed: Any) -> None:
    each = placed(SAYS + "time.sleep(60)", SAYS)
    each.wait_for("ready", time.monotonic() + 30)
    assert not each.failed
    assert [process.heard for process in each.processes] == [[(1.5, "ready")]] * 2


def test_a_rank_that_ends_fails_its_workload_with_its_last_error(placed: Any) -> None:
    code = "import sys; print('Warning: x', file=sys.stderr); raise MemoryError('of [a] GPU')"
    each = placed(SAYS + "time.sleep(60)", code)
    each.wait_for("ready", time.monotonic() + 30)
    assert each.seen[0].failed == "rank 1 ended: MemoryError: of [a] GPU"
    assert all(process.ended for process in each.processes)
    each = placed("raise SystemExit(3)")
    each.wait_for("ready", time.monotonic() + 30)
    assert each.seen[0].failed == "rank 0 ended: exit status 3"


def test_a_rank_that_takes_too_long_fails_its_workload(placed: Any) -> None:
    each = placed("import time; time.sleep(60)")
    each.wait_for("ready", time.monotonic() + 0.1)
    assert each.seen[0].failed == "rank 0 was not ready in time"
    assert each.processes[0].ended


STAND_IN = """
import json, os, sys, time
from pathlib import Path
import numpy as np
from bench.truth.kernels import KINDS, Trace
program, gpu, _, shared = sys.argv[1:]
def say(word):
    print(json.dumps([time.time(), word]), flush=True)
say("loaded")
sys.stdin.readline()
if program == "breaks":
    raise RuntimeError("no memory")
say("ready")
sys.stdin.readline()
begin = time.time()
if program == "stalls":
    rank = os.environ["RANK"]
    say("starved" if rank == "1" else "blocked")
    time.sleep(0 if rank == "1" else 600)
    sys.exit()
assert sys.stdin.readline() == "trace\\n"
assert sys.stdin.readline() == "stop\\n"
kernels = {kind: np.empty((0, 2)) for kind in KINDS}
kernels["compute"] = np.array([[begin, time.time()]])
Trace(kernels).save(Path(shared).parent / f"trace.{os.getpid()}.npz")
say("traced")
"""


def test_what_runs_is_watched_and_what_fails_is_told(
    fake: FakeDriver, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands in for the ranks, the driver and the peer; the daemon is real."""
    fake.write("gpus 2\ngpu 0 util 100\n")
    with_peer(programs, f"echo '{CSV}'")
    for name, value in fake.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launch, "RANK", ("-c", STAND_IN))
    works = Workload("works", "works", ("none",), seconds=5.0, traced=4.0)
    breaks = replace(works, name="breaks", program="breaks")
    stalls = replace(works, name="stalls", program="stalls", causes=("x", "y"), stalls=True)
    found = list(bench.run([works, breaks, replace(stalls, traced=0.0)], 2))
    assert [[one.workload.name for one in those] for those in found] == [
        ["stalls", "stalls"],
        ["works", "breaks"],
    ]
    (waiting, culprit), (good, bad) = found

    assert bad.failed == "rank 0 ended: RuntimeError: no memory"
    assert not bad.windows
    assert not good.failed
    assert good.utilization == pytest.approx([1.0] * len(good.utilization))
    assert [one.peer for one in (good, waiting, culprit)] == [
        "I/O or data-loading",
        "I/O or data-loading",
        "idle",
    ]
    assert good.truths[-1] == pytest.approx({s: float(s == "compute") for s in STATES})
    assert len(good.truths) == len(good.windows)
    assert len(good.verdicts) == len(good.kinds) == len(good.waited_for) > 3
    assert (waiting.gone, culprit.gone) == (False, True)
    assert waiting.stalled_at is not None
    assert abs(waiting.stalled_at - waiting.begin) < 2
    assert waiting.truths[-1] == {"blocked": 1.0}
    assert culprit.truths[-1] == {"starved": 1.0}
