"""The bench of real jobs without a GPU: truth from kernels, outcomes, the report, and its ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.truth import bench, kernels, launch, peer
from bench.truth.kernels import (
    PRIORITY,
    STATES,
    Trace,
    divided,
    kind_of,
    merged,
    shares,
    short_gaps,
)
from bench.truth.workloads import Workload
from tests.fakes.nvml import FakeDriver

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
        whole = shares([busy, busy], 9.0, 9.00255, 0.0)
        assert whole["compute"] == pytest.approx(1.0, abs=1e-3)


CELL = 0.003
"""Seconds of a cell of the simulations: no number of cells is as long as the longest short gap."""

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
    walk = dict.fromkeys(STATES, 0)
    gaps: list[int] = [0]
    for cell in range(WINDOW):
        state = next((state for state in PRIORITY if cell in busy[state]), "starved")
        walk[state] += 1
        if state == "starved":
            gaps[-1] += 1
        else:
            gaps.append(0)
    times = [{s: merged(in_seconds(c)) for s, c in cells.items()}]

    found = shares(times, 0.0, WINDOW * CELL, moved=kernels.ENGINES)
    short = short_gaps(times, 0.0, WINDOW * CELL)

    assert sum(found.values()) == pytest.approx(1.0)
    assert found == pytest.approx({s: count / WINDOW for s, count in walk.items()}, abs=1e-9)
    between = [gap for gap in gaps[1:-1] if gap * CELL < kernels.SHORT_GAP]
    assert short == pytest.approx(sum(between) / WINDOW, abs=1e-9)


def test_a_copy_that_waits_for_a_cpu_is_starved() -> None:
    busy = {state: np.empty((0, 2)) for state in PRIORITY}
    busy["copy"] = np.array([[0.0, 1.0]])
    found = shares([busy], 0.0, 1.0, moved=kernels.ENGINES / 5)
    assert found["copy"] == pytest.approx(0.2)
    assert found["starved"] == pytest.approx(0.8)


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
    found = shares([kernels.states(own, [trace(collective=[[0.5, 0.6]])])], 0.0, 1.0, moved=1e12)
    assert {state: round(share, 9) for state, share in found.items() if share > 1e-9} == {
        "compute": 0.2,
        "copy": 0.2,
        "blocked": 0.1,
        "communication": 0.1,
        "starved": 0.4,
    }


def test_processes_share_the_time_in_which_they_take_turns() -> None:
    one = kernels.states(trace(compute=[[0.0, 0.4]]), [])
    other = kernels.states(trace(compute=[[0.0, 0.1]], copy=[[0.1, 0.5]]), [])
    found = shares([one, other], 0.0, 1.0, moved=1e12)
    assert found["compute"] == pytest.approx(0.5 * 5 / 9)
    assert found["copy"] == pytest.approx(0.5 * 4 / 9)
    assert found["starved"] == pytest.approx(0.5)


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
