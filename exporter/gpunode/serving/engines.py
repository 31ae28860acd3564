"""The table of engines: what each calls the figures that all have in common, and where that stands.

A figure may have had other names in other versions: the first that a page has is taken, and of a
sum the first of which the page has every part and no other. Where a page is passed on by Ray or
OpenTelemetry, a colon is an underscore, and Ray puts its name before. ``tests/corpus/engines.yaml``
has the versions of which a page was read, and the sources of the names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from gpunode.helper.tcp import PATHS

Kind = Literal["level", "share", "count", "times"]
"""A gauge that adds up, one of which the highest counts, a counter, and a histogram of seconds."""


@dataclass(frozen=True, slots=True)
class EngineFigure:
    """Something that engines tell alike, in base units."""

    name: str
    kind: Kind
    meaning: str


RUNNING = EngineFigure("running", "level", "requests that are computed")
WAITING = EngineFigure("waiting", "level", "requests that wait for their turn")
TRANSFERRING = EngineFigure(
    "transferring", "level", "requests whose KV cache is on its way between instances"
)
KV_CACHE = EngineFigure("kv_cache", "share", "share of the KV cache in use")
PROMPT = EngineFigure("prompt", "count", "tokens of prompts")
GENERATED = EngineFigure("generated", "count", "tokens that were generated")
ASKED = EngineFigure("asked", "count", "tokens of prompts that were looked up in the prefix cache")
CACHED = EngineFigure("cached", "count", "tokens of prompts that the prefix cache had")
FINISHED = EngineFigure("finished", "count", "requests that ended well")
FAILED = EngineFigure("failed", "count", "requests that failed or were given up")
PREEMPTED = EngineFigure(
    "preempted", "count", "requests that lost their place, to be computed again"
)
STEPS = EngineFigure("steps", "count", "forward passes")
ITEMS = EngineFigure("items", "count", "tokens, or inputs of a model, in the forward passes")
QUEUE = EngineFigure("queue", "count", "seconds that requests waited for their turn")
PREFILL = EngineFigure("prefill", "count", "seconds of prefill")
DECODE = EngineFigure("decode", "count", "seconds of decoding")
TRANSFER = EngineFigure("transfer", "count", "seconds of KV cache on its way between instances")
WHOLE = EngineFigure("whole", "count", "seconds of whole requests, without a histogram")
FIRST_TOKEN = EngineFigure("first_token", "times", "seconds to the first token")
OUTPUT_TOKEN = EngineFigure("output_token", "times", "seconds for each token after the first")
RESPONSE = EngineFigure("response", "times", "seconds of whole requests")

FIGURES = (
    RUNNING,
    WAITING,
    TRANSFERRING,
    KV_CACHE,
    PROMPT,
    GENERATED,
    ASKED,
    CACHED,
    FINISHED,
    FAILED,
    PREEMPTED,
    STEPS,
    ITEMS,
    QUEUE,
    PREFILL,
    DECODE,
    TRANSFER,
    WHOLE,
    FIRST_TOKEN,
    OUTPUT_TOKEN,
    RESPONSE,
)


@dataclass(frozen=True, slots=True)
class Alias:
    """An engine's name for a figure: a series, or the prefix of a histogram's series."""

    figure: EngineFigure
    theirs: str
    scale: float = 1.0
    """What makes base units of it."""

    label: str = ""
    """The label that chooses among its series, and the values that count."""

    values: frozenset[str] = frozenset()
    others: bool = False
    """Whether it is the other values that count."""

    also: tuple[str, ...] = ()
    """What is added, where they count parts of it elsewhere: without one, it is not told."""

    batched: bool = False
    """Whether it is told only of models of which a pass has several inputs."""


@dataclass(frozen=True, slots=True)
class Family:
    """Series that look like parts of some figures: of one that is not known, they are not told."""

    figures: frozenset[EngineFigure]
    pattern: str
    apart: frozenset[str] = frozenset()
    """Those that count what another counts as well."""


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine, and what it calls each figure: the preferred name first."""

    name: str
    """The value of the label ``engine``."""

    title: str
    names: tuple[Alias, ...]
    programs: frozenset[str] = frozenset()
    """What its processes are called; see ``workload.SERVERS``."""

    goes_on: frozenset[EngineFigure] = frozenset()
    """The figures that grow while a request is computed, and not only when it ends."""

    flags: str = ""
    """What the server must be started with for it to tell."""

    families: tuple[Family, ...] = ()
    marks: frozenset[str] = frozenset()
    """Series that a page must have to be its: where others may have the names as well."""

    meaningless: frozenset[str] = frozenset()
    """Series of a model of which `batched` figures say nothing."""


def _count(figure: EngineFigure, theirs: str, *also: str) -> tuple[Alias, ...]:
    """A counter, with the suffix that Prometheus' clients give it and without.

    Of a sum, first with the other parts, then where there are none.
    """
    spelled = [(f"{theirs}_total", tuple(f"{name}_total" for name in also)), (theirs, also)]
    whole = [Alias(figure, name, also=others) for name, others in spelled]
    return *whole, *(Alias(figure, name) for name, others in spelled if others)


ABORTED = frozenset({"abort", "error"})
COMPUTED = frozenset({"prefill_compute", "decode"})
"""Tokens in SGLang's passes; those of `prefill_cache` are in none. 0.5.8 and 0.5.9 count passes of
decoding only; from 0.5.10 on, those with prompts as well."""

VLLM = Engine(
    "vllm",
    "vLLM",
    (
        Alias(RUNNING, "vllm:num_requests_running"),
        Alias(WAITING, "vllm:num_requests_waiting"),
        Alias(KV_CACHE, "vllm:kv_cache_usage_perc"),
        Alias(KV_CACHE, "vllm:gpu_cache_usage_perc"),
        *_count(PROMPT, "vllm:prompt_tokens"),
        *_count(GENERATED, "vllm:generation_tokens"),
        *_count(ASKED, "vllm:prefix_cache_queries"),
        *_count(ASKED, "vllm:gpu_prefix_cache_queries"),
        *_count(CACHED, "vllm:prefix_cache_hits", "vllm:external_prefix_cache_hits"),
        *_count(CACHED, "vllm:gpu_prefix_cache_hits"),
        Alias(FINISHED, "vllm:request_success_total", 1.0, "finished_reason", ABORTED, True),
        Alias(FINISHED, "vllm:request_success", 1.0, "finished_reason", ABORTED, True),
        Alias(FAILED, "vllm:request_success_total", 1.0, "finished_reason", ABORTED),
        Alias(FAILED, "vllm:request_success", 1.0, "finished_reason", ABORTED),
        *_count(PREEMPTED, "vllm:num_preemptions"),
        Alias(STEPS, "vllm:iteration_tokens_total_count"),
        Alias(ITEMS, "vllm:iteration_tokens_total_sum"),
        Alias(QUEUE, "vllm:request_queue_time_seconds_sum"),
        Alias(PREFILL, "vllm:request_prefill_time_seconds_sum"),
        Alias(DECODE, "vllm:request_decode_time_seconds_sum"),
        Alias(TRANSFER, "vllm:nixl_xfer_time_seconds_sum"),
        Alias(TRANSFER, "vllm:mooncake_xfer_time_seconds_sum"),
        Alias(
            TRANSFER,
            "vllm:mooncake_store_operation_time_seconds_sum",
            1.0,
            "operation",
            frozenset({"load_get"}),
        ),
        Alias(FIRST_TOKEN, "vllm:time_to_first_token_seconds"),
        Alias(OUTPUT_TOKEN, "vllm:inter_token_latency_seconds"),
        Alias(OUTPUT_TOKEN, "vllm:time_per_output_token_seconds"),
        Alias(RESPONSE, "vllm:e2e_request_latency_seconds"),
    ),
    # https://github.com/vllm-project/vllm/tree/main/vllm/v1/executor (ray_executor*.py)
    frozenset({"ray::rayworkerproc", "ray::rayworkerwrapper", "vllm"}),
    frozenset({GENERATED, ITEMS, OUTPUT_TOKEN, STEPS, FIRST_TOKEN}),
    families=(Family(frozenset({CACHED}), r"vllm:(?:\w+_)?prefix_cache_hits(?:_total)?"),),
)
GRAMMAR, PREALLOCATION = "sglang:num_grammar_queue_reqs", "sglang:num_decode_prealloc_queue_reqs"
ARRIVING = ("sglang:num_decode_transfer_queue_reqs",)
SGLANG = Engine(
    "sglang",
    "SGLang",
    (
        Alias(RUNNING, "sglang:num_running_reqs"),
        *(
            Alias(WAITING, "sglang:num_queue_reqs", also=also)
            for also in (
                (GRAMMAR, "sglang:num_prefill_bootstrap_queue_reqs", PREALLOCATION),  # from 0.5.12
                (GRAMMAR, "sglang:num_prefill_prealloc_queue_reqs", PREALLOCATION),  # from 0.4.10
                (GRAMMAR,),
                (),
            )
        ),
        Alias(TRANSFERRING, "sglang:num_prefill_inflight_queue_reqs", also=ARRIVING),
        Alias(TRANSFERRING, "sglang:num_prefill_infight_queue_reqs", also=ARRIVING),  # before 0.5.4
        Alias(KV_CACHE, "sglang:token_usage"),
        Alias(PROMPT, "sglang:prompt_tokens_total"),
        Alias(GENERATED, "sglang:generation_tokens_total"),
        Alias(ASKED, "sglang:prompt_tokens_total"),
        Alias(CACHED, "sglang:cached_tokens_total"),
        Alias(FINISHED, "sglang:num_requests_total"),
        Alias(FAILED, "sglang:num_aborted_requests_total"),
        Alias(PREEMPTED, "sglang:num_retracted_requests_total"),
        Alias(STEPS, "sglang:cuda_graph_passes_total"),
        Alias(ITEMS, "sglang:realtime_tokens_total", 1.0, "mode", COMPUTED),
        Alias(QUEUE, "sglang:queue_time_seconds_sum"),
        Alias(
            PREFILL,
            "sglang:per_stage_req_latency_seconds_sum",
            1.0,
            "stage",
            frozenset({"prefill_forward"}),
        ),
        Alias(DECODE, "sglang:inter_token_latency_seconds_sum"),
        Alias(TRANSFER, "sglang:kv_transfer_latency_ms_sum", 1e-3),
        Alias(FIRST_TOKEN, "sglang:time_to_first_token_seconds"),
        Alias(OUTPUT_TOKEN, "sglang:inter_token_latency_seconds"),
        Alias(OUTPUT_TOKEN, "sglang:time_per_output_token_seconds"),
        Alias(RESPONSE, "sglang:e2e_request_latency_seconds"),
    ),
    frozenset({"launch_server", "sglang"}),
    frozenset({ITEMS, OUTPUT_TOKEN, STEPS, FIRST_TOKEN}),
    flags="--enable-metrics",
    families=(
        Family(
            frozenset({WAITING, TRANSFERRING}),
            r"sglang:num_\w+_queue_reqs",
            frozenset({"sglang:num_decode_host_receive_queue_reqs"}),  # of the transfer queue
        ),
    ),
)


def _trtllm_names(prefix: str) -> tuple[Alias, ...]:
    """The names of TensorRT-LLM's collector, which had no prefix before 1.1."""
    names = (
        (RUNNING, "num_requests_running"),
        (WAITING, "num_requests_waiting"),
        (KV_CACHE, "kv_cache_utilization"),
        (PROMPT, "prompt_tokens_total"),
        (GENERATED, "generation_tokens_total"),
        (ASKED, "prompt_tokens_total"),
        (CACHED, "prompt_cached_tokens_total"),
        (FINISHED, "request_success_total"),
        (FAILED, "request_error_total"),
        (QUEUE, "request_queue_time_seconds_sum"),
        (PREFILL, "request_prefill_time_seconds_sum"),
        (DECODE, "request_decode_time_seconds_sum"),
        (FIRST_TOKEN, "time_to_first_token_seconds"),
        (OUTPUT_TOKEN, "time_per_output_token_seconds"),
        (RESPONSE, "e2e_request_latency_seconds"),
    )
    return tuple(Alias(figure, f"{prefix}{name}") for figure, name in names)


TRTLLM_SERVE = "trtllm-serve"
TENSORRT_LLM = Engine(
    "tensorrt_llm",
    "TensorRT-LLM, `trtllm-serve`",
    _trtllm_names("trtllm_"),
    # https://github.com/ai-dynamo/dynamo/tree/main/components/src/dynamo/trtllm
    frozenset({"dynamo.trtllm", TRTLLM_SERVE}),
    flags="`return_perf_metrics: true` and `enable_iter_perf_stats: true` in its configuration",
)
BARE_TENSORRT_LLM = Engine(
    TENSORRT_LLM.name,
    TENSORRT_LLM.title,
    _trtllm_names(""),
    marks=frozenset(
        {
            "e2e_request_latency_seconds_count",
            "request_queue_time_seconds_count",
            "time_to_first_token_seconds_count",
        }
    ),
)
NIM = Engine(
    "nim",
    "NVIDIA NIM for LLMs before 2.0",
    (
        Alias(RUNNING, "num_requests_running"),
        Alias(WAITING, "num_requests_waiting"),
        Alias(KV_CACHE, "gpu_cache_usage_perc"),
        Alias(PROMPT, "prompt_tokens_total"),
        Alias(GENERATED, "generation_tokens_total"),
        Alias(FINISHED, "request_success_total"),
        Alias(FAILED, "request_failure_total"),
        Alias(FIRST_TOKEN, "time_to_first_token_seconds"),
        Alias(OUTPUT_TOKEN, "time_per_output_token_seconds"),
        Alias(RESPONSE, "e2e_request_latency_seconds"),
    ),
    # https://github.com/DataDog/integrations-core/blob/master/nvidia_nim/manifest.json
    frozenset({"nim_llm", "nim_llm_sdk", "vllm_nvext"}),
    frozenset({GENERATED, OUTPUT_TOKEN, FIRST_TOKEN}),
    marks=frozenset({"gpu_cache_usage_perc", "num_requests_running"}),
)
ANSWERED = frozenset({"ResponseType.FINISH", "ResponseType.SUCCESS"})
LMDEPLOY = Engine(
    "lmdeploy",
    "LMDeploy",
    (
        Alias(RUNNING, "lmdeploy:num_requests_running"),
        Alias(
            WAITING, "lmdeploy:num_requests_waiting", also=("lmdeploy:num_api_requests_waiting",)
        ),
        Alias(WAITING, "lmdeploy:num_requests_waiting"),
        Alias(KV_CACHE, "lmdeploy:gpu_cache_usage_perc"),
        Alias(PROMPT, "lmdeploy:prompt_tokens_total"),
        Alias(GENERATED, "lmdeploy:generation_tokens_total"),
        Alias(ASKED, "lmdeploy:prompt_tokens_total"),
        Alias(CACHED, "lmdeploy:cached_tokens_total"),
        Alias(FINISHED, "lmdeploy:request_success_total", 1.0, "finished_reason", ANSWERED),
        Alias(FAILED, "lmdeploy:request_success_total", 1.0, "finished_reason", ANSWERED, True),
        Alias(STEPS, "lmdeploy:iteration_tokens_total_count"),
        Alias(ITEMS, "lmdeploy:iteration_tokens_total_sum"),
        Alias(QUEUE, "lmdeploy:request_queue_time_seconds_sum"),
        Alias(PREFILL, "lmdeploy:request_prefill_time_seconds_sum"),
        Alias(DECODE, "lmdeploy:request_decode_time_seconds_sum"),
        Alias(FIRST_TOKEN, "lmdeploy:time_to_first_token_seconds"),
        Alias(OUTPUT_TOKEN, "lmdeploy:iter_token_latency"),
        Alias(OUTPUT_TOKEN, "lmdeploy:time_per_output_token_seconds"),
        Alias(RESPONSE, "lmdeploy:e2e_request_latency_seconds"),
    ),
    frozenset({"lmdeploy"}),
    frozenset({GENERATED, ITEMS, OUTPUT_TOKEN, STEPS, FIRST_TOKEN}),
    flags="--enable-metrics",
    families=(Family(frozenset({WAITING}), r"lmdeploy:num_\w+_requests_waiting"),),
)
TGI = Engine(
    "tgi",
    "Text Generation Inference",
    (
        Alias(RUNNING, "tgi_batch_current_size"),
        Alias(WAITING, "tgi_queue_size"),
        Alias(PROMPT, "tgi_request_input_length_sum"),
        Alias(GENERATED, "tgi_request_generated_tokens_sum"),
        *_count(FINISHED, "tgi_request_success"),
        *_count(FAILED, "tgi_request_failure"),
        Alias(STEPS, "tgi_batch_inference_count", 1.0, "method", frozenset({"decode"})),
        Alias(QUEUE, "tgi_request_queue_duration_sum"),
        Alias(OUTPUT_TOKEN, "tgi_request_mean_time_per_token_duration"),
        Alias(RESPONSE, "tgi_request_duration"),
    ),
    frozenset({"text-generation-launcher", "text-generation-server", "tgi"}),
    frozenset({STEPS}),
)
LLAMA_SERVER = "llama-server"
LLAMA_CPP_CACHED = ("llamacpp:prompt_tokens_cached_total",)
LLAMA_CPP = Engine(
    "llama_cpp",
    "llama.cpp",
    (
        Alias(RUNNING, "llamacpp:requests_processing"),
        Alias(WAITING, "llamacpp:requests_deferred"),
        Alias(KV_CACHE, "llamacpp:kv_cache_usage_ratio"),
        Alias(PROMPT, "llamacpp:prompt_tokens_total", also=LLAMA_CPP_CACHED),
        Alias(PROMPT, "llamacpp:prompt_tokens_total"),
        Alias(GENERATED, "llamacpp:tokens_predicted_total"),
        Alias(ASKED, "llamacpp:prompt_tokens_total", also=LLAMA_CPP_CACHED),
        Alias(ASKED, "llamacpp:prompt_tokens_total"),
        Alias(CACHED, *LLAMA_CPP_CACHED),
        Alias(STEPS, "llamacpp:n_decode_total"),
        Alias(PREFILL, "llamacpp:prompt_seconds_total"),
        Alias(DECODE, "llamacpp:tokens_predicted_seconds_total"),
    ),
    frozenset({LLAMA_SERVER}),
    frozenset({STEPS}),
    flags="--metrics",
    families=(Family(frozenset({PROMPT, ASKED}), r"llamacpp:prompt_tokens_\w+_total"),),
)
TRITON_LLM_SERIES = "nv_trt_llm_request_metrics"
TRITON = Engine(
    "triton",
    "Triton, also with TensorRT-LLM",
    (
        Alias(RUNNING, TRITON_LLM_SERIES, 1.0, "request_type", frozenset({"scheduled"})),
        Alias(WAITING, TRITON_LLM_SERIES, 1.0, "request_type", frozenset({"waiting"})),
        Alias(WAITING, "nv_inference_pending_request_count"),
        Alias(
            KV_CACHE,
            "nv_trt_llm_kv_cache_block_metrics",
            1.0,
            "kv_cache_block_type",
            frozenset({"fraction"}),
        ),
        Alias(FINISHED, "nv_inference_request_success"),
        Alias(FAILED, "nv_inference_request_failure"),
        Alias(STEPS, "nv_inference_exec_count"),
        Alias(ITEMS, "nv_inference_count"),
        Alias(QUEUE, "nv_inference_queue_duration_us", 1e-6),
        # Of a decoupled model it counts what is over when a request has been handed on, which says
        # nothing. A page does not say which model is; one of which Triton makes batches is not.
        # https://github.com/triton-inference-server/server/issues/8463
        Alias(WHOLE, "nv_inference_request_duration_us", 1e-6, batched=True),
    ),
    frozenset({"triton_python_backend_stub", "tritonserver"}),
    meaningless=frozenset({"nv_inference_first_response_histogram_ms_count", TRITON_LLM_SERIES}),
)
RAY_SERVE = Engine(
    "ray_serve",
    "Ray Serve",
    (
        Alias(RUNNING, "ray_serve_replica_processing_queries"),
        Alias(WAITING, "ray_serve_deployment_queued_queries"),
        *_count(FINISHED, "ray_serve_deployment_request_counter"),
        *_count(FAILED, "ray_serve_deployment_error_counter"),
        *_count(STEPS, "ray_serve_batches_processed"),
        Alias(ITEMS, "ray_serve_actual_batch_size_sum"),
        Alias(RESPONSE, "ray_serve_deployment_processing_latency_ms", 1e-3),
    ),
)

ENGINES = (
    *(VLLM, SGLANG, TENSORRT_LLM, LMDEPLOY, TGI, LLAMA_CPP, TRITON, NIM, BARE_TENSORRT_LLM),
    RAY_SERVE,
)
"""In the order in which a page is tried: Ray's has the figures of the engine in it as well."""

ENGINE_OF = {program: engine for engine in ENGINES for program in engine.programs}
"""By what its processes are called."""

PROGRAMS = frozenset(ENGINE_OF)

ONLY_AT = {TRTLLM_SERVE: PATHS[2:]}
"""Programs of which no other path may be asked: what this one has at /metrics, each reader takes
from the others. Under Dynamo the page of the same engine is at /metrics of its system port.
https://github.com/NVIDIA/TensorRT-LLM/blob/main/docs/source/commands/trtllm-serve.rst"""

ANY_PORT_PROGRAMS = frozenset({LLAMA_SERVER})
"""Programs that serve on a GPU at a port that the kernel gave them: those of llama.cpp's router.
https://github.com/ggml-org/llama.cpp/blob/master/tools/server/server-models.cpp"""

RANK_LABELS = ("tp_rank", "pp_rank", "moe_ep_rank")
"""Labels of ranks that compute the same requests: of series that differ in nothing else, only those
of the first rank count. With SGLang's `--enable-dp-attention` each `dp_rank` begins at another."""

PARTED = "priority"
"""A label of SGLang's of which the series with an empty value has the sum of the others."""

ROLE = "engine_type"
"""The label of SGLang's that says what an instance does where prefill and decode run apart."""

ROLES = frozenset({"prefill", "decode"})

MODEL = ("model_name", "model", "name", "deployment")
"""Labels that may have the name of the model, the surest first."""

HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")


def spelled(theirs: str) -> Iterator[str]:
    """What a name may have become on its way: Ray and OpenTelemetry have no colons."""
    yield theirs
    if ":" in theirs:
        yield theirs.replace(":", "_")
        yield f"ray_{theirs}"
        yield f"ray_{theirs.replace(':', '_')}"
    if theirs.startswith("trtllm_"):  # Dynamo before 0.8
        yield theirs.replace("_", ":", 1)


def series_of(name: Alias) -> tuple[str, ...]:
    """The names of a figure's series: a histogram has three."""
    if name.figure.kind == "times":
        return tuple(f"{name.theirs}{suffix}" for suffix in HISTOGRAM_SUFFIXES)
    return name.theirs, *name.also


READ_SERIES = {
    spelling: theirs
    for engine in ENGINES
    for name in engine.names
    for theirs in (*series_of(name), *engine.marks, *engine.meaningless)
    for spelling in spelled(theirs)
}
"""Every series that is read, as it may be spelled, and as the table has it."""

FAMILIES = re.compile(
    "|".join(
        rf"(?:ray_)?{family.pattern.replace(':', '[:_]', 1)}"
        for engine in ENGINES
        for family in engine.families
    )
)


class KnownSeries(Collection[str]):
    """The series to keep of a page: those that are read, and what may be a part of a sum."""

    def __contains__(self, name: object) -> bool:
        return name in READ_SERIES or (
            isinstance(name, str) and FAMILIES.fullmatch(name) is not None
        )

    def __iter__(self) -> Iterator[str]:
        return iter(READ_SERIES)

    def __len__(self) -> int:
        return len(READ_SERIES)


SERIES = KnownSeries()
