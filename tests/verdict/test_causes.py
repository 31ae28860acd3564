"""What time without work is put down to: one GPU whose sources say one thing after another."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpunode.client.protocol import PHASES
from gpunode.export.exposition import Exposition
from gpunode.gpu import activity
from gpunode.gpu.health import THROTTLED
from gpunode.gpu.ledger import STATES
from gpunode.gpu.units import PCIE_BYTES
from gpunode.host.pressure import RESOURCES
from gpunode.jobs import processes as job
from gpunode.jobs import steps
from gpunode.metric import Metric
from gpunode.serving import requests as serving
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.source import Judgement
from tests.cases import with_each
from tests.verdict.stage import HBM, SHORT, Actor, Labelled, Stage

GAPS = {"compute": 0.6, "starved": 0.4}
NOTHING = {"starved": 1.0}
IDLE = {"idle": 1.0}
RESULTS: dict[Labelled, float] = {
    (PCIE_BYTES, ("transmit",)): 5e9,
    (PCIE_BYTES, ("receive",)): 5e9,
}
BATCHES: dict[Labelled, float] = {
    (PCIE_BYTES, ("transmit",)): 1e8,
    (PCIE_BYTES, ("receive",)): 6.8e9,
}


def phase(name: str, share: float = 1.0) -> dict[Labelled, float]:
    return {(steps.SECONDS, (name,)): share}


WRITES: dict[Labelled, float] = {(job.IO_BYTES, ("write",)): 8e8}
RESTS = {job.HOST_THREAD: 0.02, job.HOST_CPUS: 0.02}
ONE_THREAD = {job.HOST_THREAD: 1.0, job.HOST_CPUS: 1.0}
PREPARES = {job.HOST_THREAD: 0.1, job.HOST_CPUS: 0.1, job.LOADER_CPUS: 0.99}


def server(
    states: dict[str, float],
    gauges: dict[Metric, float],
    rates: dict[Labelled, float] | None = None,
) -> Actor:
    return Actor(0, states, gauges, rates or {}, program="VLLM::EngineCore")


def notebook(
    states: dict[str, float],
    gauges: dict[Metric, float],
    rates: dict[Labelled, float] | None = None,
) -> Actor:
    return Actor(0, states, gauges, rates or {}, program="ipykernel_launcher")


def engine(
    states: dict[str, float],
    running: float,
    waiting: float = 0.0,
    kv_cache: float = 0.5,
    gauges: dict[Metric, float] | None = None,
    rates: dict[Labelled, float] | None = None,
) -> Actor:
    """A GPU for whose requests an engine answers."""
    model = ("vllm", "llama")
    levels: dict[Labelled, float] = {
        (serving.INFO, (*model, "GPU-0", "")): 1.0,
        (serving.REQUESTS, (*model, "running")): running,
        (serving.REQUESTS, (*model, "waiting")): waiting,
        (serving.KV_CACHE, model): kv_cache,
    }
    counted = {(metric, (*model, *of)): rate for (metric, of), rate in (rates or {}).items()}
    return Actor(0, states, gauges or {}, counted, program="VLLM::EngineCore", levels=levels)


def judged_verdict(actor: Actor) -> Judgement:
    """The verdict after a minute, whose evidence names series that are exported."""
    stage = Stage(actor)
    stage.play(60)
    verdict = stage.verdict()
    exported = Exposition(stage.loop.samples).encode("")[0].decode()
    for evidence in verdict.evidence:
        assert f"\n{evidence.series} " in exported
    return verdict


NOT_PINNED = "data_loading_copy"


@with_each(
    [
        # Nothing explains it.
        (Actor(0, GAPS), "unexplained"),
        (Actor(0, NOTHING), "unexplained"),
        (Actor(0, GAPS, {job.LOADER_CPUS: 0.3, **RESTS}), "unexplained"),
        (Actor(0, IDLE, RESTS), "none"),
        (Actor(0, {"compute": 0.95, "starved": 0.05}, ONE_THREAD), "none"),
        # Compilation.
        (Actor(0, NOTHING, rates=phase("compile")), "compile"),
        (Actor(0, NOTHING, {job.COMPILER_CPUS: 2.5}), "compile"),
        (Actor(0, IDLE, {job.COMPILER_CPUS: 2.5}), "compile"),
        (Actor(0, NOTHING, {job.COMPILER_CPUS: 0.0, **ONE_THREAD}), "host_compute"),
        (Actor(0, GAPS, {job.COMPILER_CPUS: 0.0}), "unexplained"),
        (Actor(0, GAPS, {job.COMPILER_CPUS: 0.0, **PREPARES}), "data_loading_cpu"),
        # A checkpoint.
        (Actor(0, NOTHING, rates=phase("checkpoint")), "checkpoint"),
        (Actor(0, NOTHING, ONE_THREAD, WRITES), "checkpoint"),
        (Actor(0, IDLE, rates=WRITES), "checkpoint"),
        (Actor(0, GAPS, rates=phase("checkpoint", 0.05)), "unexplained"),
        # Computation on CPUs.
        (Actor(0, GAPS, {job.HOST_THREAD: 1.0, job.HOST_CPUS: 12.0}), "host_compute"),
        (Actor(0, NOTHING, ONE_THREAD), "host_compute"),
        (Actor(0, IDLE, ONE_THREAD), "host_compute"),
        (Actor(0, {"compute": 0.5, "copy": 0.5}, ONE_THREAD, RESULTS), "host_compute"),
        # One thread between steps prepares data, as far as anyone can see.
        (Actor(0, GAPS, {job.HOST_THREAD: 0.85, job.HOST_CPUS: 0.85}), "data_loading_cpu"),
        (Actor(0, GAPS, {job.HOST_THREAD: 0.7, job.HOST_CPUS: 0.7}), "unexplained"),
        (Actor(0, GAPS, PREPARES), "data_loading_cpu"),
        # A server without requests, a notebook whose user thinks.
        (server(NOTHING, RESTS), "no_requests"),
        (server(IDLE, RESTS), "no_requests"),
        (server(GAPS, RESTS), "no_requests"),
        (Actor(0, GAPS, RESTS, phase("data", 0.0), listens=True), "no_requests"),
        (notebook(IDLE, RESTS), "no_requests"),
        (server(GAPS, ONE_THREAD), "data_loading_cpu"),
        (server(NOTHING, {activity.STOPPED: 1.0, **RESTS}), "stopped"),
        # Cells that train: the loader is at its limit, or the user knows more than we.
        (notebook(GAPS, PREPARES), "data_loading_cpu"),
        (notebook(GAPS, RESTS), "unexplained"),
        (notebook(GAPS, RESTS, phase("data", 0.4)), "data_loading"),
        # The client's words, unless something shows why.
        (Actor(0, GAPS, rates=phase("data", 0.4)), "data_loading"),
        (Actor(0, GAPS, PREPARES, phase("data", 0.4)), "data_loading_cpu"),
        (Actor(0, GAPS, rates=phase("data", 0.15)), "unexplained"),
        # Copies.
        (Actor(0, {"compute": 0.15, "copy": 0.85}, rates=BATCHES), "data_loading_copy"),
        (Actor(0, {"compute": 0.15, "copy": 0.85}), "data_loading_copy"),
        # A CPU copies memory that is not pinned once more; without copy engines, kernels read it.
        (Actor(0, {"compute": 0.07, "copy": 0.12, "starved": 0.81}, rates=BATCHES), NOT_PINNED),
        (Actor(0, {"compute": 0.2, "starved": 0.8}, RESTS, rates=BATCHES), "unexplained"),
        (Actor(0, {"compute": 0.5, "copy": 0.5}, RESTS, RESULTS), "data_loading_copy"),
        (Actor(0, {"compute": 0.3, "copy": 0.2, "starved": 0.5}, RESTS, RESULTS), "unexplained"),
        (Actor(0, {"compute": 0.95, "copy": 0.05}, rates=BATCHES), "none"),
    ]
)
def test_time_without_work_is_put_down_to_what_the_node_shows(actor: Actor, cause: str) -> None:
    verdict = judged_verdict(actor)
    assert verdict.cause == cause
    assert cause == "none" or verdict.evidence


AT_WORK = {"compute": 0.9, HBM: 0.1}
DECODES = {HBM: 0.9, "compute": 0.1}
SPINS = {"blocked": 1.0}
TOKENISES: dict[Metric, float] = {serving.API_CPUS: 0.98}
PREEMPTS: dict[Labelled, float] = {(serving.PREEMPTIONS, ()): 0.2}


def passes(tokens: float) -> dict[Labelled, float]:
    """Twenty steps a second with so many tokens in each."""
    return {(serving.STEPS, ()): 20.0, (serving.ITEMS, ()): 20.0 * tokens}


@with_each(
    [
        # The engine says whether anybody asks.
        (engine(GAPS, 0), "no_requests"),
        (engine(IDLE, 0), "no_requests"),
        (engine(NOTHING, 0, gauges=ONE_THREAD), "no_requests"),
        (engine(GAPS, 4), "unexplained"),
        (engine(GAPS, 4, gauges=RESTS), "unexplained"),
        (engine(SPINS, 0), "no_requests"),
        (engine(SPINS, 4), "stalled_collective"),
        (engine({"compute": 0.5, "blocked": 0.5}, 0), "no_requests"),
        (engine({"compute": 0.5, "blocked": 0.5}, 4), "straggler"),
        # Requests wait: there is room, or there is none.
        (engine(GAPS, 4, 3), "queue"),
        (engine(GAPS, 0, 3), "queue"),
        (engine(GAPS, 4, 3, 0.97), "kv_full"),
        (engine(GAPS, 4, 3, rates=PREEMPTS), "kv_full"),
        (engine(AT_WORK, 40, 3, 0.97), "kv_full"),
        (engine({HBM: 0.8, SHORT: 0.2}, 14, 25, 0.97), "kv_full"),
        (engine({HBM: 0.8, SHORT: 0.2}, 14, 25, 0.6), "host_bound"),
        (engine({HBM: 0.6, SHORT: 0.4}, 14, 25, 0.97), "host_bound"),
        (engine(AT_WORK, 40, 3, 0.94), "none"),
        (engine(AT_WORK, 40, 0, 0.97), "none"),
        # The engine's own code.
        (engine(GAPS, 4, gauges=ONE_THREAD), "host_bound"),
        (engine({HBM: 0.7, SHORT: 0.3}, 4), "host_bound"),
        # The process that takes requests, before the engine knows of any.
        (engine(GAPS, 0, gauges=TOKENISES), "host_bound"),
        (engine(IDLE, 0, gauges=TOKENISES), "host_bound"),
        (engine(GAPS, 4, gauges={**RESTS, **TOKENISES}), "host_bound"),
        (server(NOTHING, {**RESTS, **TOKENISES}), "host_bound"),
        (engine(GAPS, 4, 3, gauges=TOKENISES), "queue"),
        (engine(GAPS, 0, gauges={serving.API_CPUS: 0.7}), "no_requests"),
        (engine({HBM: 0.7, SHORT: 0.3}, 0), "kernel_launch"),
        (engine({HBM: 0.9, SHORT: 0.1}, 40), "memory_bandwidth"),
        # What its batches are made of.
        (engine(DECODES, 3), "batch_small"),
        (engine(DECODES, 8), "batch_small"),
        (engine(DECODES, 9), "memory_bandwidth"),
        (engine(DECODES, 3, 1), "queue"),
        (engine(DECODES, 3, 1, 0.0), "memory_bandwidth"),
        (engine(DECODES, 3, 1, 0.72), "memory_bandwidth"),
        (engine(DECODES, 200, 9, 0.94), "queue"),
        (engine(AT_WORK, 20, rates=passes(2048)), "prefill_interference"),
        (engine(AT_WORK, 20, rates=passes(150)), "none"),
        (engine(AT_WORK, 1, rates=passes(2048)), "none"),
        # It starts.
        (Actor(0, IDLE, {serving.STARTING: 90.0}, program="vllm"), "cold_start"),
        (Actor(0, NOTHING, {serving.STARTING: 90.0, **ONE_THREAD}, program="vllm"), "cold_start"),
    ]
)
def test_a_server_s_time_is_put_down_to_what_its_engine_says(actor: Actor, cause: str) -> None:
    verdict = judged_verdict(actor)
    assert verdict.cause == cause
    assert cause == "none" or verdict.evidence


def test_a_gpu_of_a_server_knows_the_requests_of_its_first_gpu() -> None:
    first = engine(GAPS, 4, 3)
    second = Actor(1, GAPS, levels={(serving.INFO, ("vllm", "llama", "GPU-0", "")): 1.0})
    stage = Stage(first, second)
    stage.play(60)
    assert stage.causes == ["queue", "queue"]
    (waiting,) = (e for e in stage.verdict(1).evidence if "waiting" in e.series)
    assert 'uuid="GPU-0"' in waiting.series


def instance(
    index: int, role: str, states: dict[str, float], running: float, waiting: float, on_way: float
) -> Actor:
    """A GPU of an instance of SGLang's that does only prefill or decode."""
    model = ("sglang", "llama")
    levels: dict[Labelled, float] = {
        (serving.INFO, (*model, f"GPU-{index}", role)): 1.0,
        (serving.REQUESTS, (*model, "running")): running,
        (serving.REQUESTS, (*model, "waiting")): waiting,
        (serving.REQUESTS, (*model, "transferring")): on_way,
    }
    return Actor(index, states, RESTS, program="sglang", levels=levels)


TRANSFERS: dict[Labelled, float] = {(serving.PARTS, ("transfer",)): 0.6}


@with_each(
    [
        (instance(0, "decode", GAPS, 0, 0, 3), "kv_transfer"),
        (instance(0, "decode", IDLE, 0, 0, 3), "kv_transfer"),
        (instance(0, "decode", GAPS, 0, 2, 3), "kv_transfer"),
        (instance(0, "prefill", GAPS, 0, 0, 1), "kv_transfer"),
        # It has others to decode meanwhile, or nobody asks.
        (instance(0, "decode", GAPS, 4, 0, 3), "unexplained"),
        (instance(0, "decode", GAPS, 4, 2, 3), "queue"),
        (instance(0, "decode", GAPS, 0, 0, 0), "no_requests"),
        (instance(0, "decode", AT_WORK, 0, 0, 3), "none"),
        # vLLM counts those that are on their way among those that wait.
        (engine(GAPS, 0, 3, rates=TRANSFERS), "kv_transfer"),
        (engine(GAPS, 4, 3, rates=TRANSFERS), "queue"),
        (engine(GAPS, 0, 0, rates=TRANSFERS), "no_requests"),
        (engine(GAPS, 0, 3, rates={(serving.PARTS, ("transfer",)): 0.15}), "queue"),
    ]
)
def test_an_instance_that_only_prefills_or_decodes_waits_for_the_kv_cache(
    actor: Actor, cause: str
) -> None:
    verdict = judged_verdict(actor)
    assert verdict.cause == cause
    assert cause == "none" or verdict.evidence


def whom(*others: Actor) -> list[str]:
    """The GPUs that the evidence names of a decode instance that waits for the KV cache."""
    stage = Stage(instance(0, "decode", NOTHING, 0, 0, 3), *others)
    stage.play(60)
    verdict = stage.verdict()
    assert verdict.cause == "kv_transfer"
    uuids = (evidence.series.partition('uuid="')[2] for evidence in verdict.evidence)
    return [uuid.partition('"')[0] for uuid in uuids][2:]


def test_who_waits_for_the_kv_cache_knows_the_instance_that_has_most_to_do() -> None:
    busy, calm = instance(1, "prefill", AT_WORK, 1, 5, 0), instance(2, "prefill", AT_WORK, 1, 0, 0)
    assert whom(calm, busy) == ["GPU-1", "GPU-1"]
    assert whom(calm) == ["GPU-2"]
    # Nothing waits there: it is the network, or an instance on another node.
    assert whom(instance(1, "prefill", IDLE, 0, 0, 3)) == []
    assert whom(instance(1, "decode", AT_WORK, 9, 9, 0)) == []
    other = instance(1, "prefill", AT_WORK, 1, 5, 0)
    other.levels = {
        (metric, ("sglang", "qwen", *labels[2:])): value
        for (metric, labels), value in other.levels.items()
    }
    assert whom(other) == []


LAUNCHES = {"compute": 0.33, SHORT: 0.67}
UP_AND_DOWN = (30e9, 41e9, 38e9, 30e9, 52e9)
GROWS = (30e9,) * 5 + (34e9,) * 5 + (40e9,) * 20
IN_DRIVER = {job.HOST_THREAD: 0.64, job.HOST_CPUS: 0.64, job.HOST_SYSTEM: 0.25}
IN_PROGRAM = {job.HOST_THREAD: 1.0, job.HOST_CPUS: 1.0, job.HOST_SYSTEM: 0.01}
IN_PAGE_FAULTS = {job.HOST_THREAD: 1.0, job.HOST_CPUS: 1.0, job.HOST_SYSTEM: 0.5}


@with_each(
    [
        # empty_cache() in every step, as the driver's calls show in the gaps.
        (Actor(0, LAUNCHES, IN_DRIVER, memory=UP_AND_DOWN), "memory_allocation"),
        (Actor(0, GAPS, IN_PAGE_FAULTS, memory=UP_AND_DOWN), "memory_allocation"),
        (
            Actor(0, {SHORT: 0.4, "starved": 0.4}, IN_DRIVER, memory=UP_AND_DOWN),
            "memory_allocation",
        ),
        # A plain eager program launches without a system call, whatever its memory does.
        (Actor(0, LAUNCHES, IN_PROGRAM, memory=(30e9,)), "kernel_launch"),
        (Actor(0, LAUNCHES, IN_PROGRAM, memory=UP_AND_DOWN), "kernel_launch"),
        (Actor(0, LAUNCHES, {job.HOST_THREAD: 1.0}, memory=UP_AND_DOWN), "kernel_launch"),
        # System time alone: a thread that prepares data in new arrays, or reads files.
        (Actor(0, GAPS, IN_PAGE_FAULTS, memory=(30e9,)), "data_loading_cpu"),
        (Actor(0, GAPS, IN_PAGE_FAULTS, memory=GROWS), "data_loading_cpu"),
        (Actor(0, LAUNCHES, IN_DRIVER, memory=(30e9,) * 14 + (31e9,)), "kernel_launch"),
        (Actor(0, LAUNCHES, IN_DRIVER), "kernel_launch"),
        # Little is lost, or something that ends gives the memory back.
        (Actor(0, {"compute": 1.0}, IN_DRIVER, memory=UP_AND_DOWN), "none"),
        (
            Actor(0, GAPS, {**IN_DRIVER, job.COMPILER_CPUS: 2.5}, memory=UP_AND_DOWN),
            "compile",
        ),
        (Actor(0, GAPS, IN_DRIVER, WRITES, memory=UP_AND_DOWN), "checkpoint"),
    ]
)
def test_memory_that_comes_and_goes_is_told_from_launches_and_data(
    actor: Actor, cause: str
) -> None:
    assert judged_verdict(actor).cause == cause


def ranks(*states: dict[str, float]) -> Stage:
    """Ranks of a job, each with the time of one of them."""
    busy = {job.HOST_CPUS: 1.0, job.HOST_THREAD: 1.0}
    stage = Stage(*(Actor(at, one, busy, peers=True) for at, one in enumerate(states)))
    stage.play(60)
    return stage


@with_each([0.149, 0.151, 0.2])
def test_gaps_of_all_ranks_do_not_hide_a_rank_of_another_node(launch: float) -> None:
    one = {"compute": 0.4 - launch, SHORT: launch, "blocked": 0.6}
    assert {verdict.cause for verdict in map(ranks(one, one).verdict, range(2))} == {"straggler"}


@pytest.mark.parametrize("blocked", [0.09, 0.11])
def test_gaps_of_all_ranks_do_not_hide_a_rank_with_more_work(blocked: float) -> None:
    late = {"compute": 0.85 - blocked, SHORT: 0.15, "blocked": blocked}
    waits = {"compute": 0.05, SHORT: 0.15, "blocked": 0.8}
    assert ranks(late, waits).verdict(1).cause == "straggler"


def test_ranks_that_wait_no_longer_than_the_gaps_of_others_wait_by_turns() -> None:
    one = {"compute": 0.4, SHORT: 0.3, "blocked": 0.3}
    assert {each.cause for each in map(ranks(one, one).verdict, range(2))} == {"kernel_launch"}


WAITS_FOR_CPU: dict[Labelled, float] = {(job.PRESSURE_WAITING, ("cpu",)): 0.6}


@with_each(
    [
        # It sleeps in every step, its loader does not keep up, or others have the CPUs.
        (Actor(0, LAUNCHES, RESTS), "unexplained"),
        (Actor(0, {**LAUNCHES, SHORT: 0.4, "starved": 0.27}, RESTS), "unexplained"),
        (Actor(0, LAUNCHES, PREPARES), "data_loading_cpu"),
        (Actor(0, LAUNCHES, RESTS, WAITS_FOR_CPU), "data_loading_cpu"),
        # What is no part of every step does not explain short gaps.
        (Actor(0, LAUNCHES, RESTS, WRITES), "unexplained"),
        (Actor(0, {"compute": 0.03, SHORT: 0.97}, {**RESTS, job.BLOCKED: 1.0}), "unexplained"),
        (notebook({"compute": 0.03, SHORT: 0.97}, RESTS), "unexplained"),
        # It launches for most of the gaps, or may sleep only while kernels run.
        (Actor(0, LAUNCHES, {job.HOST_CPUS: 0.35}), "kernel_launch"),
        (Actor(0, {"compute": 0.7, SHORT: 0.3}, {job.HOST_CPUS: 0.3}), "kernel_launch"),
        # Short gaps are few, as in every job.
        (Actor(0, {"compute": 0.84, SHORT: 0.14, "starved": 0.02}, RESTS), "none"),
        # Of a server, another process may launch; of some, nothing is known.
        (server(LAUNCHES, RESTS), "kernel_launch"),
        (Actor(0, LAUNCHES), "kernel_launch"),
        (Actor(0, LAUNCHES, RESTS, levels={(job.UNREADABLE, ("stat",)): 1.0}), "kernel_launch"),
    ]
)
def test_a_process_that_sleeps_between_kernels_does_not_launch_them(
    actor: Actor, cause: str
) -> None:
    assert judged_verdict(actor).cause == cause


COMPILES = {"compute": 0.02, SHORT: 0.08, "starved": 0.9}
STEP_BY_STEP = tuple(30e9 + each * 2e7 for each in range(60))
TWO_THREADS = {job.HOST_THREAD: 0.9, job.HOST_CPUS: 0.9, job.HOST_SYSTEM: 0.02}
SMALL_PIECES: dict[Labelled, float] = {(job.HOST_FAULTS, ()): 12_000.0}
LARGE_ARRAYS: dict[Labelled, float] = {(job.HOST_FAULTS, ()): 49_000.0}
MAPPED_FILES: dict[Labelled, float] = {(job.HOST_FAULTS, ()): 70_000.0}
SAME_MEMORY: dict[Labelled, float] = {(job.HOST_FAULTS, ()): 34.0}
HARDLY: dict[Labelled, float] = {(job.HOST_FAULTS, ()): 2600.0}


@with_each(
    [
        # A compiler within the process takes pages all the time, and the GPU gets its kernels.
        (Actor(0, COMPILES, TWO_THREADS, SMALL_PIECES, memory=STEP_BY_STEP), "compile"),
        (Actor(0, NOTHING, TWO_THREADS, SMALL_PIECES, memory=STEP_BY_STEP), "compile"),
        (Actor(0, COMPILES, TWO_THREADS, SMALL_PIECES, memory=UP_AND_DOWN), "compile"),
        # A thread that prepares data in the memory that it has, whatever the GPU's memory does.
        (Actor(0, COMPILES, TWO_THREADS, SAME_MEMORY, memory=STEP_BY_STEP), "data_loading_cpu"),
        (Actor(0, COMPILES, TWO_THREADS, HARDLY, memory=STEP_BY_STEP), "data_loading_cpu"),
        (Actor(0, COMPILES, TWO_THREADS, memory=STEP_BY_STEP), "data_loading_cpu"),
        # One that makes large arrays, reads files or copies what it has mapped.
        (Actor(0, COMPILES, TWO_THREADS, MAPPED_FILES, memory=STEP_BY_STEP), "data_loading_cpu"),
        (Actor(0, COMPILES, IN_PAGE_FAULTS, LARGE_ARRAYS, memory=STEP_BY_STEP), "data_loading_cpu"),
        # One whose kernels are all there.
        (Actor(0, COMPILES, TWO_THREADS, SMALL_PIECES, memory=(30e9,)), "data_loading_cpu"),
        (Actor(0, COMPILES, TWO_THREADS, SMALL_PIECES, memory=GROWS), "data_loading_cpu"),
        # What else is seen, or said.
        (
            Actor(
                0,
                COMPILES,
                {**TWO_THREADS, job.LOADER_CPUS: 0.99},
                SMALL_PIECES,
                memory=STEP_BY_STEP,
            ),
            "data_loading_cpu",
        ),
        (
            Actor(0, COMPILES, TWO_THREADS, {**SMALL_PIECES, **phase("data")}, memory=STEP_BY_STEP),
            "data_loading_cpu",
        ),
    ]
)
def test_a_process_that_compiles_is_told_from_one_that_prepares_data(
    actor: Actor, cause: str
) -> None:
    assert judged_verdict(actor).cause == cause


def test_a_cause_refines_others_that_exist() -> None:
    refined = {name for cause in CAUSES.values() for name in cause.refines}
    assert "kernel_launch" in refined
    assert refined <= CAUSES.keys()


def test_what_says_more_of_the_same_loss_is_said_as_soon_as_it_is_seen() -> None:
    """Memory must rise and fall twice before it counts; until then, only the launches are seen."""
    stage = Stage(Actor(0, LAUNCHES, IN_DRIVER, memory=UP_AND_DOWN))
    said = []
    for _ in range(10):
        stage.play(2)
        said += stage.causes
    assert said[3] == "kernel_launch"
    assert said[-1] == "memory_allocation"


def test_processes_that_come_and_go_take_their_memory_with_them() -> None:
    actor = Actor(0, LAUNCHES, IN_DRIVER, memory=UP_AND_DOWN)
    stage = Stage(actor)
    for second in range(60):
        actor.jobs = ("train",) * (1 + second // 4 % 2)
        stage.play(1)
    assert stage.causes == ["kernel_launch"]
    stage.play(45)  # none has come or gone since
    assert stage.causes == ["memory_allocation"]


@with_each(
    [
        ("hw_thermal", 0.3, "thermal"),
        ("sw_thermal", 0.3, "thermal"),
        ("hw_power_brake", 0.3, "power"),
        ("hw_thermal", 0.02, "none"),
        ("sw_power_cap", 0.9, "none"),
    ]
)
def test_throttling_is_seen_though_it_is_read_rarely(reason: str, share: float, cause: str) -> None:
    stage = Stage(Actor(0, rates={(THROTTLED, (reason,)): share}))
    stage.play(80)  # it was last read after 60
    assert stage.causes == [cause]


def test_what_the_process_before_copied_is_not_held_against_the_next() -> None:
    actor = Actor(0, {"copy": 0.9, "compute": 0.1}, RESTS, BATCHES)
    stage = Stage(actor)
    stage.play(40)
    assert stage.causes == ["data_loading_copy"]
    actor.states = {"copy": 0.5, "starved": 0.4, "compute": 0.1}
    actor.gauges, actor.rates = {job.HOST_THREAD: 1.0, job.HOST_CPUS: 4.0}, RESULTS
    stage.play(15)
    assert stage.causes == ["host_compute"]


@with_each(["checkpoint", "compile", "data"])
def test_a_phase_is_believed_within_ten_seconds_and_no_longer_than_it_lasts(name: str) -> None:
    cause = "data_loading" if name == "data" else name
    actor = Actor(0, rates={**phase("step"), **phase(name, 0.0)})
    stage = Stage(actor)
    stage.play(60)
    assert stage.causes == ["none"]
    actor.states, actor.rates = NOTHING, {**phase("step", 0.0), **phase(name)}
    stage.play(10)
    assert stage.causes == [cause]
    stage.play(60)
    actor.rates = {**phase("step", 0.0), **phase(name, 0.0)}
    stage.play(10)
    assert stage.causes == ["unexplained"]


def test_a_rank_whose_peers_wait_is_asked_for_its_reason_even_if_idle() -> None:
    late, waiting = Actor(0, IDLE, RESTS, peers=True), Actor(1, peers=True)
    waiting.block()
    stage = Stage(late, waiting)
    stage.play(30)
    assert stage.causes == ["unexplained", "stalled_collective"]


def test_ranks_that_take_turns_to_wait_for_data_want_data() -> None:
    """Of two ranks whose loader is slow, each spins while the other still waits for its batch."""
    one, other = (
        Actor(each, {"compute": 0.5, "blocked": 0.2, "starved": 0.3}, PREPARES, peers=True)
        for each in (0, 1)
    )
    stage = Stage(one, other)
    stage.play(30)
    assert stage.causes == ["data_loading_cpu"] * 2
    assert stage.verdict(0).share == pytest.approx(0.5)


GAUGES = (
    job.BLOCKED,
    job.COMPILER_CPUS,
    job.HOST_CPUS,
    job.HOST_SYSTEM,
    job.HOST_THREAD,
    job.LOADER_CPUS,
    activity.STOPPED,
)
COUNTERS: tuple[Labelled, ...] = (
    *((steps.SECONDS, (name,)) for name in PHASES),
    *((PCIE_BYTES, (way,)) for way in ("transmit", "receive")),
    *((job.PRESSURE_WAITING, (resource,)) for resource in RESOURCES),
    (job.IO_BYTES, ("write",)),
    (job.HOST_FAULTS, ()),
)
AMOUNTS = st.sampled_from([0.0, 0.05, 0.2, 0.5, 0.96, 1.0, 3.0, 6e7])


@st.composite
def actors(draw: st.DrawFn, index: int) -> Actor:
    """Any GPU: what its ledger and its processes say need not make sense together."""
    parts = draw(st.dictionaries(st.sampled_from(sorted(STATES)), st.floats(0.01, 1), min_size=1))
    gauges: dict[Metric, float] = {
        metric: draw(AMOUNTS) for metric in draw(st.sets(st.sampled_from(GAUGES)))
    }
    return Actor(
        index,
        {state: part / sum(parts.values()) for state, part in parts.items()},
        gauges,
        draw(st.dictionaries(st.sampled_from(COUNTERS), AMOUNTS)),
        draw(st.sampled_from([("train",), ("other",), ("train", "other"), ()])),
        program=draw(st.sampled_from(["train", "VLLM::EngineCore", "ipykernel_launcher"])),
        memory=tuple(draw(st.lists(st.sampled_from([30e9, 40e9]), max_size=4))),
    )


@given(actors(0), actors(1), st.integers(1, 20))
@settings(max_examples=20)
def test_whatever_the_sources_say_one_cause_is_named_with_evidence(
    one: Actor, other: Actor, seconds: int
) -> None:
    stage = Stage(one, other)
    stage.play(20)
    one.states, other.states = other.states, one.states
    stage.play(seconds)
    for index in (0, 1):
        verdict = stage.verdict(index)
        assert verdict.cause in CAUSES
        assert 0 <= verdict.share <= 1.001
        assert verdict.cause == "none" or verdict.evidence
    assert all(gpu in (0, 1) for gpu, _ in stage.waited_for)


@pytest.mark.parametrize(("running", "cause"), [((9, 12), "kv_full"), ((9, 9), "queue")])
def test_it_is_the_cache_that_lets_nobody_in_where_the_number_of_requests_varies(
    running: tuple[int, int], cause: str
) -> None:
    actor = engine(GAPS, 9, 3, 0.88)
    stage = Stage(actor)
    for look in range(12):
        actor.levels[serving.REQUESTS, ("vllm", "llama", "running")] = running[look % 2]
        stage.play(10)
    assert stage.verdict().cause == cause
