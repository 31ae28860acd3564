"""An inference engine: its requests wait, its cache is full, its batches are small, it starts."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.gpu.units import ACTIVE
from gpunode.jobs import processes as job
from gpunode.serving.requests import (
    API_CPUS,
    ITEMS,
    KV_CACHE,
    PARTS,
    PREEMPTIONS,
    REQUESTS,
    STARTING,
    STEPS,
    TOKENS,
)
from gpunode.verdict.case import Case, Evidence
from gpunode.verdict.causes.cause import (
    BOUND,
    MIN_LOSS,
    Bounds,
    Cause,
    Effect,
    Explanation,
    OwnLoss,
    Remedy,
)
from gpunode.verdict.causes.host import EXPLAINED, THREAD_BUSY, busy_thread
from gpunode.verdict.causes.limits import LAUNCHES, bound_by_memory
from gpunode.verdict.engine import USES, ServingEngine, engine_of, peer_engines
from gpunode.words import CAUSES as WORDS

FULL = 0.95
"""From this share of the KV cache in use, a request that waits has no room: vLLM and SGLang keep a
few percent free for those that run."""

SMALL_BATCH = 8.0
"""Up to so many requests at a time, decoding reads all weights for little: an H100 needs about 300
to be bound by arithmetic (989 TFLOP/s in BF16 over 3.35 TB/s)."""

LARGE_GAPS = 2 * LAUNCHES
"""From this share of the time in gaps between kernels, an engine waits for its host, whatever room
its cache has. Below, more requests in each step would make up for more."""

PROMPTS = 0.9
"""From this share of the tokens in the steps, prompts take the steps in which others decode."""

SEVERAL = 2.0
"""From so many requests at a time, one's prefill holds up another's decoding."""


def _no_room_from(engine: ServingEngine) -> float:
    """The share in use from which another request, as large as those that run, has no room."""
    running = max(1.0, engine.least("running"))
    return FULL * running / (running + 1.0)


def _full_from(engine: ServingEngine) -> float:
    """The share in use from which it is the cache that lets no other request in.

    A limit of requests is reached all the time by as many. Where now more run and now fewer, while
    others wait, it is their size that counts.
    """
    varies = engine.most("running") > engine.least("running")
    return _no_room_from(engine) if varies else FULL


def _waits_for_cache(case: Case) -> Iterator[Evidence]:
    """There is nothing to compute, as the KV cache of requests is on its way.

    SGLang counts these requests; with vLLM they wait, and only the time of transfers is told.
    """
    engine = engine_of(case)
    if engine is None or engine.least("running") >= 1.0:
        return
    spent, least = engine.rate(PARTS, "transfer"), max(MIN_LOSS, EXPLAINED * case.without_work)
    if (on_way := engine.least("transferring")) >= 1.0:
        meaning = "requests whose KV cache is on its way, at each look"
        yield engine.evidence(REQUESTS, on_way, 1.0, meaning, "transferring", least=True)
    elif engine.least("waiting") >= 1.0 and spent >= least:
        meaning = "seconds of KV cache on its way, per second"
        yield engine.evidence(PARTS, spent, least, meaning, "transfer")
    else:
        return
    yield from _awaited_engine(case)


def _awaited_engine(case: Case) -> Iterator[Evidence]:
    """Whom an instance waits for: the one of the other role that has most to do."""
    others = sorted(peer_engines(case), key=lambda one: one.least("waiting") + one.least("running"))
    for other in others[-1:]:
        if other.least("waiting") >= 1.0:
            yield other.waiting()
        if other.least("running") >= 1.0:
            yield other.running()


KV_TRANSFER = Cause(
    name="kv_transfer",
    named_when=(
        "the GPU has no work while its engine only has requests that are `transferring`; or "
        f"requests wait, and transfers take at least {EXPLAINED:g} of the time without work"
    ),
    looks=(Explanation(_waits_for_cache, rank=44, of_idle=True),),
    uses=(*USES, PARTS),
    urgency="soon",
    remedy=Remedy(("starved",), WORDS["kv_transfer"].for_good),
    family="network",
)


def _cache_full(case: Case) -> Iterator[Evidence]:
    """Requests wait, and the KV cache has no room for one or takes it from those that run."""
    engine = engine_of(case)
    if engine is None or engine.least("waiting") < 1.0:
        return
    preempted, full = engine.rate(PREEMPTIONS), _full_from(engine)
    if engine.kv_cache < full and preempted <= 0.0:
        return
    yield engine.waiting()
    if engine.kv_cache >= full:
        meaning = "share of the KV cache in use, which has no room for another request"
        yield engine.evidence(KV_CACHE, engine.kv_cache, full, meaning, most=True)
    if preempted > 0.0:
        meaning = "requests a second that lost their place and are computed again"
        yield engine.evidence(PREEMPTIONS, preempted, 0.0, meaning)


def _bound_by_room(case: Case) -> Effect | None:
    evidence = tuple(_cache_full(case))
    return Effect(1.0, evidence) if evidence else None


def _gaps_of_few(case: Case) -> Effect | None:
    """Gaps between kernels, of which there are fewer for each token if there is room for more."""
    share = case.short_gaps
    if not LAUNCHES <= share < LARGE_GAPS:
        return None
    evidence = tuple(_cache_full(case))
    return Effect(share, (case.launches(LAUNCHES), *evidence)) if evidence else None


KV_FULL = Cause(
    name="kv_full",
    named_when=(
        f"requests wait while at least {FULL:g} of the engine's KV cache is in use, or there is "
        "no room for another, or the engine takes requests off the GPU to compute them again"
    ),
    looks=(Explanation(_cache_full, rank=45), OwnLoss(_gaps_of_few), Bounds(_bound_by_room)),
    uses=(*USES, KV_CACHE, PREEMPTIONS),
    urgency="soon",
    remedy=Remedy((), WORDS["kv_full"].for_good),
    family="device",
)


def _queued_requests(case: Case) -> Iterator[Evidence]:
    """Requests wait although the GPU has time left, and there is room for them."""
    engine = engine_of(case)
    if engine is not None and engine.least("waiting") >= 1.0 and engine.kv_cache < FULL:
        yield engine.waiting()
        if engine.kv_cache:
            meaning = "share of the KV cache in use, which has room"
            yield engine.evidence(KV_CACHE, engine.kv_cache, FULL, meaning, most=True)


def _batch_limited(case: Case) -> Effect | None:
    """Decoding reads all weights for some requests, while others wait for which there is room."""
    engine, bound = engine_of(case), bound_by_memory(case)
    if engine is None or not bound or engine.least("running") < 1.0:
        return None
    has_room = 0.0 < engine.kv_cache < _no_room_from(engine)
    evidence = tuple(_queued_requests(case)) if has_room else ()
    return Effect(case.shares["compute"], (*bound, *evidence)) if evidence else None


QUEUE = Cause(
    name="queue",
    named_when=(
        "the GPU is `starved`, or no time is lost and HBM limits the work, while requests wait "
        "and the KV cache has room for another"
    ),
    looks=(Explanation(_queued_requests, rank=46), Bounds(_batch_limited)),
    uses=(*USES, ACTIVE, KV_CACHE),
    urgency="soon",
    remedy=Remedy(("starved",), WORDS["queue"].for_good),
    family="host",
)


def _thread_holds_up(case: Case) -> Iterator[Evidence]:
    """Requests are computed, and a thread of the engine is busy while the GPU has nothing to do."""
    engine = engine_of(case)
    if engine is None or engine.least("running") < 1.0:
        return
    if busy := tuple(busy_thread(case)):
        yield from busy
        yield engine.running()


def _requests_held_up(case: Case) -> Iterator[Evidence]:
    """The process that takes requests is busy, of which the engine may not know any yet.

    Tokens are made of them there, in one thread of Python or in few:
    https://github.com/vllm-project/vllm/blob/main/docs/design/arch_overview.md
    """
    used = case.now(API_CPUS)
    if used >= THREAD_BUSY:
        meaning = "CPUs used by the busiest process that takes the engine's requests"
        yield case.evidence(API_CPUS, used, THREAD_BUSY, meaning)


def _launches(case: Case) -> Effect | None:
    """Gaps between the kernels of an engine that has requests to compute."""
    engine, share = engine_of(case), case.short_gaps
    if engine is None or share < LAUNCHES or engine.least("running") < 1.0:
        return None
    return Effect(share, (case.launches(LAUNCHES), engine.running()))


HOST_BOUND = Cause(
    name="host_bound",
    named_when=(
        "the engine computes requests while short gaps between kernels take at least "
        f"{LAUNCHES:g} of the time, or the GPU is `starved` while a thread of the process is "
        "busy; or the GPU has no work while a process of the engine uses at least "
        f"{THREAD_BUSY:g} CPUs"
    ),
    looks=(
        Explanation(_thread_holds_up, rank=48),
        Explanation(_requests_held_up, rank=49, of_idle=True),
        OwnLoss(_launches),
    ),
    uses=(*USES, API_CPUS, job.HOST_THREAD),
    refines=("kernel_launch", "data_loading_cpu"),
    urgency="soon",
    remedy=Remedy(
        ("starved",),
        WORDS["host_bound"].for_good,
    ),
    family="host",
    slows_its_gpu=True,
)


def _starts(case: Case) -> Iterator[Evidence]:
    seconds = case.now(STARTING)
    if seconds > 0.0:
        meaning = "seconds since the engine's process was seen, which does not answer yet"
        yield case.evidence(STARTING, seconds, 0.0, meaning)


COLD_START = Cause(
    name="cold_start",
    named_when=(
        "the GPU has no work, and an engine's process on it does not answer yet or says that it "
        "loads"
    ),
    looks=(Explanation(_starts, rank=25, of_idle=True),),
    uses=(STARTING,),
    urgency="note",
    remedy=Remedy(("idle", "starved"), WORDS["cold_start"].for_good),
    family="host",
    ends_by_itself=True,
)


def _small_batch(case: Case) -> Effect | None:
    """Decoding for few requests, while none waits."""
    engine, bound = engine_of(case), bound_by_memory(case)
    if engine is None or not bound or engine.most("waiting") > 0:
        return None
    if not 0 < engine.most("running") <= SMALL_BATCH:
        return None
    meaning = "requests that the engine computes at a time, at most"
    few = engine.evidence(
        REQUESTS, engine.most("running"), SMALL_BATCH, meaning, "running", most=True
    )
    return Effect(case.shares["compute"], (*bound, few))


def _prompt_share(engine: ServingEngine) -> tuple[float, Evidence] | None:
    """The share of the tokens in the steps that are of prompts, and where that stands."""
    steps, items = engine.rate(STEPS), engine.rate(ITEMS)
    running = engine.most("running")
    meaning = "share of the tokens in the steps that are of prompts"
    if steps > 0 and items > 0:
        share = 1.0 - min(1.0, running / (items / steps))
        return share, engine.evidence(ITEMS, share, PROMPTS, meaning)
    fresh = engine.rate(TOKENS, "prompt") - engine.rate(TOKENS, "cached")
    generated = engine.rate(TOKENS, "generated")
    if fresh <= 0 or generated <= 0:
        return None
    share = fresh / (fresh + generated)
    return share, engine.evidence(TOKENS, share, PROMPTS, meaning, "prompt")


def _prompts_between(case: Case) -> Effect | None:
    """Long prompts are computed in the steps in which others decode."""
    engine, share = engine_of(case), case.shares["compute"]
    if engine is None or share < BOUND or engine.least("running") < SEVERAL:
        return None
    if bound_by_memory(case):
        return None
    prompts = _prompt_share(engine)
    if prompts is None or prompts[0] < PROMPTS:
        return None
    return Effect(share, (case.state("compute", BOUND), prompts[1], engine.running()))


PREFILL_INTERFERENCE = Cause(
    name="prefill_interference",
    named_when=(
        f"no time is lost and HBM does not limit the work, while at least {PROMPTS:g} of the "
        "tokens in the engine's steps are of prompts of several requests"
    ),
    looks=(Bounds(_prompts_between),),
    uses=(*USES, ACTIVE, ITEMS, STEPS, TOKENS),
    urgency="note",
    remedy=Remedy((), WORDS["prefill_interference"].for_good),
    family="device",
)

BATCH_SMALL = Cause(
    name="batch_small",
    named_when=(
        "no time is lost and HBM limits the work, while the engine computes at most "
        f"{SMALL_BATCH:g} requests at a time and none waits"
    ),
    looks=(Bounds(_small_batch),),
    uses=(*USES, ACTIVE),
    urgency="note",
    remedy=Remedy((), WORDS["batch_small"].for_good),
    family="device",
)

CAUSES = (KV_TRANSFER, KV_FULL, QUEUE, HOST_BOUND, COLD_START, PREFILL_INTERFERENCE, BATCH_SMALL)
