"""The table of engines: what each calls the figures that all have in common, and where that stands.

A figure may have had other names in other versions: the first that a page has is taken. Where a
page is passed on by Ray or OpenTelemetry, a colon is an underscore, and Ray puts its name before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

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
WHOLE = EngineFigure("whole", "count", "seconds of whole requests, told without a histogram")
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
class Name:
    """What an engine calls a figure: the name of a series, or what a histogram's begin with."""

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
    """What is added, where they count parts of it elsewhere."""


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine, and what it calls each figure: the preferred name first."""

    name: str
    """The value of the label ``engine``."""

    title: str
    names: tuple[Name, ...]
    versions: str
    """Those that write these names."""

    sources: tuple[str, ...]
    """Where they stand."""

    programs: frozenset[str] = frozenset()
    """What its processes are called; see ``workload.SERVERS``."""

    goes_on: frozenset[EngineFigure] = frozenset()
    """The figures that grow while a request is computed, and not only when it ends."""

    path: str = "/metrics"
    flags: str = ""
    """What the server must be started with for it to tell."""


def _count(figure: EngineFigure, theirs: str, *also: str) -> tuple[Name, Name]:
    """A counter, with the suffix that Prometheus' clients give it and without."""
    return (
        Name(figure, f"{theirs}_total", also=tuple(f"{name}_total" for name in also)),
        Name(figure, theirs, also=also),
    )


ABORTED = frozenset({"abort", "error"})
COMPUTED = frozenset({"prefill_compute", "decode"})
"""Tokens in SGLang's passes; those of `prefill_cache` are in none. 0.5.8 and 0.5.9 count passes of
decoding only; from 0.5.10 on, those with prompts as well."""

VLLM = Engine(
    "vllm",
    "vLLM",
    (
        Name(RUNNING, "vllm:num_requests_running"),
        Name(WAITING, "vllm:num_requests_waiting"),
        Name(KV_CACHE, "vllm:kv_cache_usage_perc"),
        Name(KV_CACHE, "vllm:gpu_cache_usage_perc"),
        *_count(PROMPT, "vllm:prompt_tokens"),
        *_count(GENERATED, "vllm:generation_tokens"),
        *_count(ASKED, "vllm:prefix_cache_queries"),
        *_count(ASKED, "vllm:gpu_prefix_cache_queries"),
        *_count(CACHED, "vllm:prefix_cache_hits", "vllm:external_prefix_cache_hits"),
        *_count(CACHED, "vllm:gpu_prefix_cache_hits"),
        Name(FINISHED, "vllm:request_success_total", 1.0, "finished_reason", ABORTED, True),
        Name(FINISHED, "vllm:request_success", 1.0, "finished_reason", ABORTED, True),
        Name(FAILED, "vllm:request_success_total", 1.0, "finished_reason", ABORTED),
        Name(FAILED, "vllm:request_success", 1.0, "finished_reason", ABORTED),
        *_count(PREEMPTED, "vllm:num_preemptions"),
        Name(STEPS, "vllm:iteration_tokens_total_count"),
        Name(ITEMS, "vllm:iteration_tokens_total_sum"),
        Name(QUEUE, "vllm:request_queue_time_seconds_sum"),
        Name(PREFILL, "vllm:request_prefill_time_seconds_sum"),
        Name(DECODE, "vllm:request_decode_time_seconds_sum"),
        Name(TRANSFER, "vllm:nixl_xfer_time_seconds_sum"),
        Name(TRANSFER, "vllm:mooncake_xfer_time_seconds_sum"),
        Name(
            TRANSFER,
            "vllm:mooncake_store_operation_time_seconds_sum",
            1.0,
            "operation",
            frozenset({"load_get"}),
        ),
        Name(FIRST_TOKEN, "vllm:time_to_first_token_seconds"),
        Name(OUTPUT_TOKEN, "vllm:inter_token_latency_seconds"),
        Name(OUTPUT_TOKEN, "vllm:time_per_output_token_seconds"),
        Name(RESPONSE, "vllm:e2e_request_latency_seconds"),
    ),
    "0.6 to 0.33; V0 and V1; also through Ray Serve",
    (
        "https://github.com/vllm-project/vllm/blob/main/vllm/v1/metrics/loggers.py",
        "https://github.com/vllm-project/vllm/blob/v0.8.5/vllm/engine/metrics.py",
        "https://github.com/vllm-project/vllm/tree/main/vllm/distributed/kv_transfer/kv_connector/v1",
    ),
    # https://github.com/vllm-project/vllm/tree/main/vllm/v1/executor (ray_executor*.py)
    frozenset({"ray::rayworkerproc", "ray::rayworkerwrapper", "vllm"}),
    frozenset({GENERATED, ITEMS, OUTPUT_TOKEN, STEPS, FIRST_TOKEN}),
)
SGLANG = Engine(
    "sglang",
    "SGLang",
    (
        Name(RUNNING, "sglang:num_running_reqs"),
        Name(
            WAITING,
            "sglang:num_queue_reqs",
            also=(
                "sglang:num_grammar_queue_reqs",
                "sglang:num_prefill_bootstrap_queue_reqs",
                "sglang:num_decode_prealloc_queue_reqs",
            ),
        ),
        Name(
            TRANSFERRING,
            "sglang:num_prefill_inflight_queue_reqs",
            also=("sglang:num_decode_transfer_queue_reqs",),
        ),
        Name(KV_CACHE, "sglang:token_usage"),
        Name(PROMPT, "sglang:prompt_tokens_total"),
        Name(GENERATED, "sglang:generation_tokens_total"),
        Name(ASKED, "sglang:prompt_tokens_total"),
        Name(CACHED, "sglang:cached_tokens_total"),
        Name(FINISHED, "sglang:num_requests_total"),
        Name(FAILED, "sglang:num_aborted_requests_total"),
        Name(PREEMPTED, "sglang:num_retracted_requests_total"),
        Name(STEPS, "sglang:cuda_graph_passes_total"),
        Name(ITEMS, "sglang:realtime_tokens_total", 1.0, "mode", COMPUTED),
        Name(QUEUE, "sglang:queue_time_seconds_sum"),
        Name(
            PREFILL,
            "sglang:per_stage_req_latency_seconds_sum",
            1.0,
            "stage",
            frozenset({"prefill_forward"}),
        ),
        Name(DECODE, "sglang:inter_token_latency_seconds_sum"),
        Name(TRANSFER, "sglang:kv_transfer_latency_ms_sum", 1e-3),
        Name(FIRST_TOKEN, "sglang:time_to_first_token_seconds"),
        Name(OUTPUT_TOKEN, "sglang:inter_token_latency_seconds"),
        Name(OUTPUT_TOKEN, "sglang:time_per_output_token_seconds"),
        Name(RESPONSE, "sglang:e2e_request_latency_seconds"),
    ),
    "0.3 to 0.5",
    (
        "https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/observability/metrics_collector.py",
        "https://github.com/sgl-project/sglang/blob/v0.4.2/python/sglang/srt/metrics/collector.py",
    ),
    frozenset({"launch_server", "sglang"}),
    frozenset({ITEMS, OUTPUT_TOKEN, STEPS, FIRST_TOKEN}),
    flags="--enable-metrics",
)
TENSORRT_LLM = Engine(
    "tensorrt_llm",
    "TensorRT-LLM, `trtllm-serve`",
    (
        Name(RUNNING, "trtllm_num_requests_running"),
        Name(WAITING, "trtllm_num_requests_waiting"),
        Name(KV_CACHE, "trtllm_kv_cache_utilization"),
        Name(PROMPT, "trtllm_prompt_tokens_total"),
        Name(GENERATED, "trtllm_generation_tokens_total"),
        Name(ASKED, "trtllm_prompt_tokens_total"),
        Name(CACHED, "trtllm_prompt_cached_tokens_total"),
        Name(FINISHED, "trtllm_request_success_total"),
        Name(FAILED, "trtllm_request_error_total"),
        Name(QUEUE, "trtllm_request_queue_time_seconds_sum"),
        Name(PREFILL, "trtllm_request_prefill_time_seconds_sum"),
        Name(DECODE, "trtllm_request_decode_time_seconds_sum"),
        Name(FIRST_TOKEN, "trtllm_time_to_first_token_seconds"),
        Name(OUTPUT_TOKEN, "trtllm_time_per_output_token_seconds"),
        Name(RESPONSE, "trtllm_e2e_request_latency_seconds"),
    ),
    "1.1 and later",
    (
        "https://github.com/NVIDIA/TensorRT-LLM/blob/main/tensorrt_llm/metrics/collector.py",
        "https://github.com/NVIDIA/TensorRT-LLM/blob/main/docs/source/commands/trtllm-serve.rst",
    ),
    # https://github.com/ai-dynamo/dynamo/tree/main/components/src/dynamo/trtllm
    frozenset({"dynamo.trtllm", "trtllm-serve"}),
    path="/prometheus/metrics",
    flags="`return_perf_metrics: true` and `enable_iter_perf_stats: true` in its configuration",
)
ANSWERED = frozenset({"ResponseType.FINISH", "ResponseType.SUCCESS"})
LMDEPLOY = Engine(
    "lmdeploy",
    "LMDeploy",
    (
        Name(RUNNING, "lmdeploy:num_requests_running"),
        Name(WAITING, "lmdeploy:num_requests_waiting", also=("lmdeploy:num_api_requests_waiting",)),
        Name(KV_CACHE, "lmdeploy:gpu_cache_usage_perc"),
        Name(PROMPT, "lmdeploy:prompt_tokens_total"),
        Name(GENERATED, "lmdeploy:generation_tokens_total"),
        Name(ASKED, "lmdeploy:prompt_tokens_total"),
        Name(CACHED, "lmdeploy:cached_tokens_total"),
        Name(FINISHED, "lmdeploy:request_success_total", 1.0, "finished_reason", ANSWERED),
        Name(FAILED, "lmdeploy:request_success_total", 1.0, "finished_reason", ANSWERED, True),
        Name(STEPS, "lmdeploy:iteration_tokens_total_count"),
        Name(ITEMS, "lmdeploy:iteration_tokens_total_sum"),
        Name(QUEUE, "lmdeploy:request_queue_time_seconds_sum"),
        Name(PREFILL, "lmdeploy:request_prefill_time_seconds_sum"),
        Name(DECODE, "lmdeploy:request_decode_time_seconds_sum"),
        Name(FIRST_TOKEN, "lmdeploy:time_to_first_token_seconds"),
        Name(OUTPUT_TOKEN, "lmdeploy:iter_token_latency"),
        Name(OUTPUT_TOKEN, "lmdeploy:time_per_output_token_seconds"),
        Name(RESPONSE, "lmdeploy:e2e_request_latency_seconds"),
    ),
    "0.10 and later",
    ("https://github.com/InternLM/lmdeploy/blob/main/lmdeploy/metrics/loggers.py",),
    frozenset({"lmdeploy"}),
    frozenset({GENERATED, ITEMS, OUTPUT_TOKEN, STEPS, FIRST_TOKEN}),
    flags="--enable-metrics",
)
TGI = Engine(
    "tgi",
    "Text Generation Inference",
    (
        Name(RUNNING, "tgi_batch_current_size"),
        Name(WAITING, "tgi_queue_size"),
        Name(PROMPT, "tgi_request_input_length_sum"),
        Name(GENERATED, "tgi_request_generated_tokens_sum"),
        *_count(FINISHED, "tgi_request_success"),
        *_count(FAILED, "tgi_request_failure"),
        Name(STEPS, "tgi_batch_inference_count", 1.0, "method", frozenset({"decode"})),
        Name(QUEUE, "tgi_request_queue_duration_sum"),
        Name(OUTPUT_TOKEN, "tgi_request_mean_time_per_token_duration"),
        Name(RESPONSE, "tgi_request_duration"),
    ),
    "2 and 3",
    (
        "https://huggingface.co/docs/text-generation-inference/reference/metrics",
        "https://github.com/huggingface/text-generation-inference/blob/main/router/src/server.rs",
    ),
    frozenset({"text-generation-launcher", "text-generation-server", "tgi"}),
    frozenset({STEPS}),
)
LLAMA_CPP_CACHED = ("llamacpp:prompt_tokens_cached_total",)
LLAMA_CPP = Engine(
    "llama_cpp",
    "llama.cpp",
    (
        Name(RUNNING, "llamacpp:requests_processing"),
        Name(WAITING, "llamacpp:requests_deferred"),
        Name(KV_CACHE, "llamacpp:kv_cache_usage_ratio"),
        Name(PROMPT, "llamacpp:prompt_tokens_total", also=LLAMA_CPP_CACHED),
        Name(GENERATED, "llamacpp:tokens_predicted_total"),
        Name(ASKED, "llamacpp:prompt_tokens_total", also=LLAMA_CPP_CACHED),
        Name(CACHED, *LLAMA_CPP_CACHED),
        Name(STEPS, "llamacpp:n_decode_total"),
        Name(PREFILL, "llamacpp:prompt_seconds_total"),
        Name(DECODE, "llamacpp:tokens_predicted_seconds_total"),
    ),
    "b4000 (2024-11) and later",
    (
        "https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
        "https://github.com/ggml-org/llama.cpp/blob/master/tools/server/server-task.cpp",
    ),
    frozenset({"llama-server"}),
    frozenset({STEPS}),
    flags="--metrics",
)
OF_TRITON_LLM = "nv_trt_llm_request_metrics"
TRITON = Engine(
    "triton",
    "Triton, also with TensorRT-LLM",
    (
        Name(RUNNING, OF_TRITON_LLM, 1.0, "request_type", frozenset({"scheduled"})),
        Name(WAITING, OF_TRITON_LLM, 1.0, "request_type", frozenset({"waiting"})),
        Name(WAITING, "nv_inference_pending_request_count"),
        Name(
            KV_CACHE,
            "nv_trt_llm_kv_cache_block_metrics",
            1.0,
            "kv_cache_block_type",
            frozenset({"fraction"}),
        ),
        Name(FINISHED, "nv_inference_request_success"),
        Name(FAILED, "nv_inference_request_failure"),
        Name(STEPS, "nv_inference_exec_count"),
        Name(ITEMS, "nv_inference_count"),
        Name(QUEUE, "nv_inference_queue_duration_us", 1e-6),
        Name(WHOLE, "nv_inference_request_duration_us", 1e-6),
    ),
    "23.11 and later",
    (
        "https://github.com/triton-inference-server/server/blob/main/docs/user_guide/metrics.md",
        "https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/README.md",
    ),
    frozenset({"tritonserver"}),
)
RAY_SERVE = Engine(
    "ray_serve",
    "Ray Serve",
    (
        Name(RUNNING, "ray_serve_replica_processing_queries"),
        Name(WAITING, "ray_serve_deployment_queued_queries"),
        *_count(FINISHED, "ray_serve_deployment_request_counter"),
        *_count(FAILED, "ray_serve_deployment_error_counter"),
        *_count(STEPS, "ray_serve_batches_processed"),
        Name(ITEMS, "ray_serve_actual_batch_size_sum"),
        Name(RESPONSE, "ray_serve_deployment_processing_latency_ms", 1e-3),
    ),
    "2.9 and later",
    ("https://github.com/ray-project/ray/blob/master/doc/source/serve/monitoring.md",),
)

ENGINES = (VLLM, SGLANG, TENSORRT_LLM, LMDEPLOY, TGI, LLAMA_CPP, TRITON, RAY_SERVE)
"""In the order in which a page is tried: Ray's has the figures of the engine in it as well."""

PROGRAMS = frozenset(program for engine in ENGINES for program in engine.programs)
"""What the processes of engines are called."""

ALIKE = ("tp_rank", "pp_rank", "moe_ep_rank")
"""Labels of ranks that compute the same requests: of series that differ in nothing else, only those
of the first rank count. With SGLang's `--enable-dp-attention` each `dp_rank` begins at another."""

PARTED = "priority"
"""A label of SGLang's of which the series with an empty value has the sum of the others."""

ROLE = "engine_type"
"""The label of SGLang's that says what an instance does where prefill and decode run apart."""

ROLES = frozenset({"prefill", "decode"})

MODEL = ("model_name", "model", "name", "deployment")
"""Labels that may have the name of the model, the surest first."""

OF_HISTOGRAM = ("_bucket", "_sum", "_count")


def spelled(theirs: str) -> Iterator[str]:
    """What a name may have become on its way: Ray and OpenTelemetry have no colons."""
    yield theirs
    if ":" in theirs:
        yield theirs.replace(":", "_")
        yield f"ray_{theirs}"
        yield f"ray_{theirs.replace(':', '_')}"


def series_of(name: Name) -> tuple[str, ...]:
    """The names of a figure's series: a histogram has three."""
    if name.figure.kind == "times":
        return tuple(f"{name.theirs}{suffix}" for suffix in OF_HISTOGRAM)
    return name.theirs, *name.also


WANTED: dict[str, tuple[Engine, str]] = {
    spelling: (engine, theirs)
    for engine in ENGINES
    for name in engine.names
    for theirs in series_of(name)
    for spelling in spelled(theirs)
}
"""Every series that is read, as it may be spelled: its engine, and as the table has it."""
