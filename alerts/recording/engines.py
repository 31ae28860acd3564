"""Services by what their inference engines say: queue, cache, tokens, objectives, energy.

An engine's series are those of the first GPU of its server, so a sum over GPUs counts each once,
and the GPUs that have them are the replicas. A server has at most nine models
(``gpunode.serving.page.MODELS``, and the others).
"""

from __future__ import annotations

from alerts.examples import HELD, series
from alerts.model import FOR_HOURS, Given, Record
from alerts.promql import GPU, OWNER, of_gpus, of_jobs, rate
from alerts.recording.jobs import BY_SERVICE, SERVICE

REQUESTS = "gpunode_serving_requests"
ENDED = "gpunode_serving_requests_total"
PARTS = "gpunode_serving_request_part_seconds_total"
TOKENS = "gpunode_serving_tokens_total"
FIRST = "gpunode_serving_first_token_seconds"
OTHERS = "gpunode_serving_output_token_seconds"
MET = "gpunode_serving_objective_met_total"
LLAMA = {"engine": "vllm", "model": "llama"}


def of_services(expression: str, *labels: str) -> str:
    """Figures of GPUs as sums over the replicas of a service, by these labels as well."""
    return (
        f"sum by ({', '.join((BY_SERVICE, *labels))}) (gpu:gpunode_job:member "
        f"* on ({GPU}) group_right ({OWNER}) ({expression}))"
    )


def _of_models(counter: str) -> str:
    """What a counter of engines gains a second, by service and model."""
    return of_services(rate(counter, f"{GPU}, model"), "model")


def _missed(window: str) -> str:
    """The share of the first tokens, and of the others, that came later than they should."""
    first = rate(f"{FIRST}_count", GPU, window)
    others = rate(f"{OTHERS}_count", GPU, window)
    came = (
        f'label_replace({first} > 0, "objective", "first_token", "", "") '
        f'or label_replace({others} > 0, "objective", "output_token", "", "")'
    )
    met = of_services(rate(MET, f"{GPU}, objective", window), "objective")
    return f"clamp_min(1 - {met} / {of_services(came, 'objective')}, 0)"


ANSWERED = _of_models(f'{ENDED}{{result="finished"}}')
GENERATED = 'job:gpunode_serving_tokens:rate5m{kind="generated"}'

OBJECTIVES: Given = {
    **HELD,
    series(f"{FIRST}_count", **LLAMA): 10.0,
    series(f"{OTHERS}_count", **LLAMA): 100.0,
    series(MET, **LLAMA, objective="first_token"): 5.0,
    series(MET, **LLAMA, objective="output_token"): 100.0,
}
"""An engine of whose first tokens every second comes late."""

TOLD: Given = {
    **HELD,
    series(REQUESTS, **LLAMA, phase="running"): 8.0,
    series(REQUESTS, **LLAMA, phase="waiting"): 3.0,
}
OF = ("", "train", "")
OF_LLAMA = (*OF, "llama")

OF_ENGINES: tuple[Record, ...] = (
    Record(
        name="job:gpunode_serving_queue:count",
        labels=(*SERVICE, "model", "phase"),
        expression=of_services(
            f"sum by ({GPU}, model, phase) (max by ({GPU}, engine, model, phase) ({REQUESTS}))",
            "model",
            "phase",
        ),
        purpose="Requests that the replicas of a service compute, and that wait for their turn, by "
        "model.",
        given=TOLD,
        results={(*OF_LLAMA, "running"): 8.0, (*OF_LLAMA, "waiting"): 3.0},
    ),
    Record(
        name="job:gpunode_serving_queue:per_replica",
        labels=SERVICE,
        expression=(
            f'sum by ({BY_SERVICE}) (job:gpunode_serving_queue:count{{phase="waiting"}}) '
            f"/ (count by ({BY_SERVICE}) (gpu:gpunode_job:member and on ({GPU}) {REQUESTS}) > 0)"
        ),
        purpose="Requests that wait for their turn, for each replica of a service: what an "
        "autoscaler may go by.",
        given=TOLD,
        results={OF: 3.0},
    ),
    Record(
        name="job:gpunode_serving_kv_cache:max",
        labels=SERVICE,
        expression=(
            f"max by ({BY_SERVICE}) ({of_jobs(of_gpus('gpunode_serving_kv_cache_used_ratio'))})"
        ),
        purpose="Share of the KV cache in use on the fullest replica of a service.",
        given={**HELD, series("gpunode_serving_kv_cache_used_ratio", **LLAMA): 0.8},
        results={OF: 0.8},
    ),
    Record(
        name="job:gpunode_serving_tokens:rate5m",
        labels=(*SERVICE, "model", "kind"),
        expression=of_services(rate(TOKENS, f"{GPU}, model, kind"), "model", "kind"),
        purpose="Tokens a second of a service, by model and kind.",
        given={**HELD, series(TOKENS, **LLAMA, kind="generated"): 200.0},
        results={(*OF_LLAMA, "generated"): 200.0},
    ),
    Record(
        name="job:gpunode_serving_request:part5m",
        labels=(*SERVICE, "model", "part"),
        expression=(
            f"{of_services(rate(PARTS, f'{GPU}, model, part'), 'model', 'part')} "
            f"/ on ({BY_SERVICE}, model) group_left () ({ANSWERED} > 0) "
            f"or label_replace({_of_models(f'{FIRST}_sum')} "
            f"/ ({_of_models(f'{FIRST}_count')} > 0), "
            '"part", "first_token", "", "")'
        ),
        purpose="Mean seconds of a request to a service by model and part: to its first token, and "
        "of these in the queue and in prefill; in decoding; as a whole, where a histogram lacks.",
        given={
            **HELD,
            series(ENDED, **LLAMA, result="finished"): 2.0,
            series(PARTS, **LLAMA, part="queue"): 1.0,
            series(f"{FIRST}_sum", **LLAMA): 3.0,
            series(f"{FIRST}_count", **LLAMA): 2.0,
        },
        results={(*OF_LLAMA, "queue"): 0.5, (*OF_LLAMA, "first_token"): 1.5},
    ),
    Record(
        name="job:gpunode_serving_objective:missed5m",
        labels=(*SERVICE, "objective"),
        expression=_missed("5m"),
        purpose="Share of the first tokens of a service, and of the others, that came later than "
        "the exporter's objectives have it.",
        given=OBJECTIVES,
        results={(*OF, "first_token"): 0.5, (*OF, "output_token"): 0.0},
    ),
    Record(
        name="job:gpunode_serving_objective:missed1h",
        labels=(*SERVICE, "objective"),
        interval=FOR_HOURS,
        expression=_missed("1h"),
        purpose="The same over an hour.",
        given=OBJECTIVES,
        results={(*OF, "first_token"): 0.5, (*OF, "output_token"): 0.0},
    ),
    Record(
        name="job:gpunode_serving_tokens:goodput5m",
        labels=SERVICE,
        expression=(
            f"sum by ({BY_SERVICE}) ({GENERATED}) * on ({BY_SERVICE}) (1 - max by ({BY_SERVICE}) "
            '(job:gpunode_serving_objective:missed5m{objective="output_token"}))'
        ),
        purpose="Tokens a second of a service that came within the objective.",
        given={**OBJECTIVES, series(TOKENS, **LLAMA, kind="generated"): 100.0},
        results={OF: 100.0},
    ),
    Record(
        name="job:gpunode_serving_energy:joules_per_token",
        labels=SERVICE,
        interval=FOR_HOURS,
        expression=(
            f"sum by ({BY_SERVICE}) ({of_jobs(rate('gpunode_gpu_energy_joules_total'), 'sum')}) "
            f"/ on ({BY_SERVICE}) (sum by ({BY_SERVICE}) ({GENERATED}) > 0)"
        ),
        purpose="Energy of the GPUs of a service for each token that it generates.",
        given={
            **HELD,
            series(TOKENS, **LLAMA, kind="generated"): 100.0,
            series("gpunode_gpu_energy_joules_total", state="memory"): 500.0,
        },
        results={OF: 5.0},
    ),
)
"""They are evaluated after the jobs."""
