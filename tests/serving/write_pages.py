"""Writes the pages that the metrics code of engines' own packages makes, without a GPU.

``python -m tests.serving.write_pages [PAGE ...]`` brings each package from PyPI into a folder of
its own, without what it depends on (40 to 340 MB for an engine; PyTorch is left out). Its modules
of metrics run as they are. What else they import, PyTorch and the rest of the engine, is stood in
for by names without a meaning. They are told of a load that is made up here.

Not made: TensorRT-LLM (what PyPI has fetches its wheel from NVIDIA's own index), Triton and Text
Generation Inference (C++ and Rust, in no package on PyPI), Ray Serve (the C++ of a running Ray
writes its page), llama.cpp (which runs in ``test_llama_cpp``).
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.serving.fleet import PAGES

NEEDS = ("prometheus_client==0.26.0", "numpy", "pydantic", "msgspec")
"""What the modules of metrics really use."""

Load = Callable[[], None]


@dataclass(frozen=True, slots=True)
class PageRecipe:
    """A page: by which package, and which of its modules run."""

    package: str
    version: str
    modules: tuple[str, ...]
    load: Load
    folder: str = field(default="", compare=False)


class AnyName(type):
    """A name that may be asked for others, called, subscripted, inherited from and decorate."""

    def __new__(cls, name: str, *_: object, **__: object) -> AnyName:
        return super().__new__(cls, name, (), {})

    def __init__(cls, *_: object, **__: object) -> None:
        pass

    def __getattr__(cls, name: str) -> AnyName:
        return _any_name(name)

    def __call__(cls, *given: Any, **named: Any) -> Any:
        return given[0] if len(given) == 1 and callable(given[0]) and not named else cls

    def __getitem__(cls, _: object) -> AnyName:
        return cls

    def __or__(cls, _: object) -> Any:
        return object

    __ror__ = __or__


def _any_name(name: str) -> AnyName:
    if name.startswith("__"):
        raise AttributeError(name)
    return AnyName(name)


class StandIns(MetaPathFinder, Loader):
    """Finds the modules of a package that are to run, and stands in for what is not there."""

    def __init__(self, root: Path, made: PageRecipe) -> None:
        self.root, self.made = root, made

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, _target: object = None
    ) -> ModuleSpec | None:
        top = fullname.partition(".")[0]
        own = top == self.made.package
        if fullname in self.made.modules:
            return PathFinder.find_spec(fullname, path)
        if not own and (top in sys.stdlib_module_names or PathFinder.find_spec(top) is not None):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        module.__getattr__ = _any_name  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = [str(self.root.joinpath(*module.__name__.split(".")))]


OF_VLLM = (
    "vllm.v1.engine",
    "vllm.v1.metrics.buckets",
    "vllm.v1.metrics.cache_hit_source",
    "vllm.v1.metrics.loggers",
    "vllm.v1.metrics.perf",
    "vllm.v1.metrics.prometheus",
    "vllm.v1.metrics.stats",
    "vllm.v1.metrics.utils",
    "vllm.v1.spec_decode.metrics",
)
CONNECTORS = "vllm.distributed.kv_transfer.kv_connector.v1"


def vllm(connector: str, metrics: str, moved: Mapping[str, object]) -> Load:
    """A server of vLLM that moves its KV cache with a connector, and what that counted."""

    def load() -> None:
        loggers = import_module("vllm.v1.metrics.loggers")
        stats = import_module("vllm.v1.metrics.stats")
        engine = import_module("vllm.v1.engine")
        of_connectors = import_module(f"{CONNECTORS}.metrics")
        of_connector = getattr(import_module(f"{CONNECTORS}.{connector}"), metrics)
        of_connectors.KVConnectorFactory = SimpleNamespace(  # type: ignore[attr-defined]
            get_connector_class=lambda _: SimpleNamespace(build_prom_metrics=of_connector)
        )
        settings = SimpleNamespace(VLLM_COMPUTE_NANS_IN_LOGITS=False)
        loggers.envs = stats.envs = settings  # type: ignore[attr-defined]
        logger = loggers.PrometheusStatLogger(
            SimpleNamespace(
                model_config=SimpleNamespace(
                    served_model_name="Qwen/Qwen3-8B", max_model_len=8192, is_diffusion=False
                ),
                observability_config=SimpleNamespace(
                    show_hidden_metrics=False, kv_cache_metrics=False, custom_histogram_buckets=None
                ),
                kv_transfer_config=SimpleNamespace(kv_connector=connector, is_kv_consumer=True),
                speculative_config=None,
                watermark_config=None,
                lora_config=None,
            )
        )
        looked_up = stats.PrefixCacheStats(requests=5, queries=3000, hits=1000)
        scheduled = stats.SchedulerStats(
            num_running_reqs=6,
            num_waiting_reqs=2,
            num_skipped_waiting_reqs=1,
            num_kv_fetch_reqs_by_stage={"in_progress": 3},
            kv_cache_usage=0.5,
            prefix_cache_stats=looked_up,
            kv_connector_stats=moved,
        )
        iteration = stats.IterationStats()
        iteration.prompt_token_stats = stats.PromptTokenStats(
            computed=2000, local_cache_hit=1000, cached_tokens=1000, total=3000
        )
        iteration.num_generation_tokens = 500
        iteration.num_preempted_reqs = 1
        iteration.time_to_first_tokens_iter = [0.8] * 5
        iteration.inter_token_latencies_iter = [0.03] * 495
        iteration.finished_requests = [
            stats.FinishedRequestStats(
                engine.FinishReason.LENGTH,
                e2e_latency=4.0,
                num_prompt_tokens=600,
                num_generation_tokens=100,
                max_tokens_param=100,
                queued_time=0.5,
                prefill_time=0.25,
                inference_time=3.5,
                decode_time=3.25,
                mean_time_per_output_token=3.25 / 99,
                num_cached_tokens=200,
            )
        ] * 5
        logger.record(scheduled, iteration)

    return load


NIXL = {
    "transfer_duration": [0.06] * 5,
    "post_duration": [0.001] * 5,
    "bytes_transferred": [2.5e8] * 5,
    "num_descriptors": [600] * 5,
    "num_failed_transfers": [],
    "num_failed_notifications": [],
    "num_failed_handshakes": [],
    "num_kv_expired_reqs": [],
    "num_notifications_after_expiry": [],
}
MOONCAKE = {
    "transfer_duration": [0.04] * 5,
    "bytes_transferred": [2.5e8] * 5,
    "num_descriptors": [600] * 5,
    "num_failed_transfers": [],
    "num_failed_recvs": [],
    "num_kv_expired_reqs": [],
}


def _operation(seconds: float, status: str = "ok") -> dict[str, object]:
    return {
        "duration_seconds": seconds,
        "num_keys": 32,
        "num_bytes": 2e8,
        "num_failed_keys": 0,
        "status": status,
    }


MOONCAKE_STORE = {
    "save_exists": [_operation(0.002)] * 5,
    "save_put": [_operation(0.1)] * 5,
    "load_get": [_operation(0.05)] * 4 + [_operation(0.3, "error")],
    "lookup_exists": [_operation(0.002)] * 5,
}


def sglang_settings(*, priorities: bool) -> SimpleNamespace:
    return SimpleNamespace(
        stat_loggers=None,
        prefill_delayer_max_delay_passes=30,
        prefill_delayer_forward_passes_buckets=None,
        prefill_delayer_wait_seconds_buckets=None,
        prompt_tokens_buckets=None,
        generation_tokens_buckets=None,
        enable_priority_scheduling=priorities,
    )


def sglang() -> None:
    """An instance of SGLang with two groups of ranks, and priorities."""
    metrics = import_module("sglang.srt.observability.metrics_collector")
    settings = sglang_settings(priorities=True)
    for getter in ("get_disagg", "get_observability", "get_schedule", "get_serving"):
        setattr(metrics, getter, lambda: settings)
    model = {"model_name": "zai-org/GLM-4.6", "engine_type": "decode"}
    ranks = [
        {"tp_rank": 4 * at, "pp_rank": 0, "moe_ep_rank": 4 * at, "priority": "", "dp_rank": at}
        for at in range(2)
    ]
    collector = metrics.SchedulerMetricsCollector({**model, **ranks[0]}, settings)
    count = metrics.QueueCount
    told = (
        metrics.SchedulerStats(
            num_running_reqs=count(7, {0: 6, 5: 1}),
            num_queue_reqs=count(2, {0: 2}),
            num_grammar_queue_reqs=1,
            token_usage=0.6,
            full_token_usage=0.6,
            num_decode_prealloc_queue_reqs=count(4),
            num_decode_transfer_queue_reqs=count(3),
        ),
        metrics.SchedulerStats(
            num_running_reqs=count(5, {0: 4, 5: 1}),
            num_queue_reqs=count(0),
            token_usage=0.9,
            full_token_usage=0.9,
            num_decode_transfer_queue_reqs=count(1),
        ),
    )
    for rank, stats in zip(ranks, told, strict=True):
        collector.labels = {**model, **rank}
        collector.log_stats(stats)
        collector.increment_retracted_reqs(1, 10, 3)
        collector.observe_kv_transfer_metrics(latency_ms=120.0, total_mb=300.0, speed_gb_s=2.5)
        collector.observe_queue_time(0.4)
        collector.observe_per_stage_req_latency("request_process", 0.01)
        collector.observe_per_stage_req_latency("chunked_prefill", 0.2)
        collector.observe_per_stage_req_latency("prefill_forward", 0.3)
        collector.increment_realtime_tokens(
            None, prefill_compute_tokens=4000, prefill_cache_tokens=1000, decode_tokens=900
        )
        for _ in range(50):
            collector.increment_decode_cuda_graph_pass(True)
        for _ in range(2):
            collector.increment_prefill_cuda_graph_pass(False)
    answers = metrics.TokenizerMetricsCollector(settings, model)
    for _ in range(10):
        answers.observe_time_to_first_token(model, 0.8, stream=True)
        answers.observe_inter_token_latency(model, 0.3, 10)
        answers.observe_one_finished_request(model, 600, 100, 200, 4.0, has_grammar=False)
    answers.observe_one_aborted_request(model)


def earlier_sglang(module: str) -> Load:
    """An instance of an earlier SGLang that does only prefill, with requests in each queue."""

    def load() -> None:
        metrics = import_module(module)
        told = metrics.SchedulerStats(num_running_reqs=3, num_queue_reqs=2, token_usage=0.25)
        queues = {"bootstrap": 12, "prealloc": 12, "infight": 4, "inflight": 4}
        for name, number in queues.items():
            if hasattr(told, f"num_prefill_{name}_queue_reqs"):
                setattr(told, f"num_prefill_{name}_queue_reqs", number)
        for name, usual in vars(metrics.SchedulerStats()).items():
            if type(usual).__name__ == "QueueCount":
                number = getattr(told, name)
                setattr(told, name, type(usual)(number) if isinstance(number, int) else number)
        labels = {"model_name": "Qwen/Qwen3-8B", "engine_type": "prefill"}
        given = inspect.signature(metrics.SchedulerMetricsCollector).parameters
        settings = {"server_args": sglang_settings(priorities=False)}
        more = settings if "server_args" in given else {}
        ranks = {"tp_rank": 0, "pp_rank": 0, "moe_ep_rank": 0}
        metrics.SchedulerMetricsCollector(labels={**labels, **ranks}, **more).log_stats(told)

    return load


def lmdeploy() -> None:
    """A server of LMDeploy whose engine and whose API both have requests that wait."""
    loggers = import_module("lmdeploy.metrics.loggers")
    stats = import_module("lmdeploy.metrics.stats")
    messages = import_module("lmdeploy.messages")
    logger = loggers.PrometheusStatLogger("internlm/internlm3-8b-instruct", 32768)
    logger.record_schedule(
        stats.SchedulerStats(
            num_total_reqs=40,
            num_succeeded_reqs=20,
            num_cancelled_reqs=2,
            num_api_routed_reqs=12,
            num_running_reqs=8,
            num_waiting_reqs=4,
            gpu_cache_usage=0.7,
        )
    )
    iteration = stats.IterationStats()
    iteration.prompt_tokens, iteration.new_generation_tokens = 6000, 900
    iteration.ttft, iteration.tpot, iteration.itl = 0.5, 0.03, 0.03
    logger.record_iteration(iteration)
    request = stats.RequestStats(arrival_time=0.0, prompt_tokens=300)
    request.generation_tokens, request.cached_tokens = 100, 64
    request.queued_time, request.scheduled_time = 0.0, 0.2
    request.first_token_time, request.finish_time = 0.5, 3.0
    request.finish_reason = messages.ResponseType.FINISH
    for _ in range(20):
        logger.record_finish(request)


NEWEST_VLLM = "0.33.0"
MADE = {
    "vllm_v1_0.33": PageRecipe(
        "vllm",
        NEWEST_VLLM,
        (*OF_VLLM, f"{CONNECTORS}.metrics", f"{CONNECTORS}.nixl.stats"),
        vllm("nixl.stats", "NixlPromMetrics", NIXL),
    ),
    "vllm_v1_0.33_mooncake": PageRecipe(
        "vllm",
        NEWEST_VLLM,
        (*OF_VLLM, f"{CONNECTORS}.metrics", f"{CONNECTORS}.mooncake.stats"),
        vllm("mooncake.stats", "MooncakePromMetrics", MOONCAKE),
    ),
    "vllm_v1_0.33_mooncake_store": PageRecipe(
        "vllm",
        NEWEST_VLLM,
        (*OF_VLLM, f"{CONNECTORS}.metrics", f"{CONNECTORS}.mooncake.store.metrics"),
        vllm("mooncake.store.metrics", "MooncakeStorePromMetrics", MOONCAKE_STORE),
    ),
    "sglang_0.5.23": PageRecipe(
        "sglang",
        "0.5.23",
        (
            "sglang.srt.observability.metrics_collector",
            "sglang.srt.observability.scheduler_stage_metrics",
            "sglang.srt.observability.utils",
            "sglang.srt.utils.gauge_histogram",
        ),
        sglang,
    ),
    **{
        f"sglang_{version}": PageRecipe(
            "sglang",
            version,
            (f"sglang.srt.{module}", f"sglang.srt.{utils}", "sglang.srt.utils.gauge_histogram"),
            earlier_sglang(f"sglang.srt.{module}"),
        )
        for version, module, utils in (
            ("0.4.10", "metrics.collector", "metrics.utils"),
            ("0.5.8", "metrics.collector", "metrics.utils"),
            ("0.5.12", "observability.metrics_collector", "observability.utils"),
        )
    },
    "lmdeploy_0.18": PageRecipe(
        "lmdeploy",
        "0.18.0",
        ("lmdeploy.messages", "lmdeploy.metrics.loggers", "lmdeploy.metrics.stats"),
        lmdeploy,
    ),
}


def write(name: str, root: Path) -> None:
    """Run a package's metrics code, which lies in a folder, in this process, and keep its page."""
    made = MADE[name]
    sys.path.insert(0, str(root))
    sys.meta_path.insert(0, StandIns(root, made))
    client = import_module("prometheus_client")
    client.disable_created_metrics()
    for collector in list(client.REGISTRY._names_to_collectors.values()):
        if collector in client.REGISTRY._collector_to_names:
            client.REGISTRY.unregister(collector)
    made.load()
    text = client.generate_latest(client.REGISTRY).decode()
    # Their words are theirs; only names and figures are kept.
    (PAGES / f"{name}.txt").write_text(re.sub(r"(?m)^(# HELP \S+) .*$", r"\1 Text.", text))


def main(names: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="packages.") as folder:
        for name in names or MADE:
            made = MADE[name]
            root = Path(folder, f"{made.package}-{made.version}")
            if not root.exists():
                pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(root)]
                subprocess.run([*pip, *NEEDS], check=True)
                subprocess.run([*pip, "--no-deps", f"{made.package}=={made.version}"], check=True)
            inside = [sys.executable, "-m", "tests.serving.write_pages", "--inside", name]
            subprocess.run([*inside, str(root)], check=True, env=dict(os.environ))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        write(sys.argv[2], Path(sys.argv[3]))
    else:
        main(sys.argv[1:])
