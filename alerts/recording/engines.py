"""Services by what their inference engines say: queue, cache, tokens, objectives, energy.

An engine's series are those of the first GPU of its server, so a sum over GPUs counts each once,
and the GPUs that have them are the replicas. A server has at most nine models
(``gpunode.serving.page.MODELS``, and the others).
"""

from __future__ import annotations

from alerts.examples import HELD, series
from alerts.model import FOR_HOURS, Given, Record
from alerts.promql import GPU, OWNER, of_jobs
from alerts.recording.parts import (
    ANSWERED_OF_MODELS,
    BY_SERVICE,
    CAME,
    ENDED,
    FIRST,
    FIRST_COUNT,
    FIRST_SUM,
    LLAMA,
    MET,
    MET_OBJECTIVE,
    OTHERS,
    PARTS_OF_REQUESTS,
    POWER,
    REQUEST_PARTS,
    SERVED_TOKENS,
    SERVICE,
    TOKENS,
)

REQUESTS = "gpunode_serving_requests_in_flight"


def of_services(expression: str, *labels: str) -> str:
    """Figures of GPUs as sums over the replicas of a service, by these labels as well."""
    return (
        f"sum by ({', '.join((BY_SERVICE, *labels))}) (gpu:gpunode_job:member "
        f"* on ({GPU}) group_right ({OWNER}) ({expression}))"
    )


def _missed(window: str) -> str:
    """The share of the first tokens, and of the others, that came later than they should."""
    met, came = MET_OBJECTIVE[window].over_nodes(), CAME[window].over_nodes()
    return f"clamp_min(1 - {met} / ({came} > 0), 0)"


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
        expression=(f"max by ({BY_SERVICE}) ({of_jobs('gpunode_serving_kv_cache_used_ratio')})"),
        purpose="Share of the KV cache in use on the fullest replica of a service.",
        given={**HELD, series("gpunode_serving_kv_cache_used_ratio", **LLAMA): 0.8},
        results={OF: 0.8},
    ),
    Record(
        name="job:gpunode_serving_tokens:rate5m",
        labels=(*SERVICE, "model", "kind"),
        expression=SERVED_TOKENS.over_nodes(),
        purpose="Tokens a second of a service, by model and kind.",
        given={**HELD, series(TOKENS, **LLAMA, kind="generated"): 200.0},
        results={(*OF_LLAMA, "generated"): 200.0},
    ),
    Record(
        name="job:gpunode_serving_request:part5m",
        labels=(*SERVICE, "model", "part"),
        expression=(
            f"{PARTS_OF_REQUESTS.over_nodes()} "
            f"/ on ({BY_SERVICE}, model) group_left () ({ANSWERED_OF_MODELS.over_nodes()} > 0) "
            f"or label_replace({FIRST_SUM.over_nodes()} / ({FIRST_COUNT.over_nodes()} > 0), "
            '"part", "first_token", "", "")'
        ),
        purpose="Mean seconds of a request to a service by model and part: to its first token, and "
        "of these in the queue and in prefill; in decoding; as a whole, where a histogram lacks.",
        given={
            **HELD,
            series(ENDED, **LLAMA, result="finished"): 2.0,
            series(REQUEST_PARTS, **LLAMA, part="queue"): 1.0,
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
            f"{POWER.over_nodes()} / on ({BY_SERVICE}) (sum by ({BY_SERVICE}) ({GENERATED}) > 0)"
        ),
        purpose="Energy of the GPUs of a service for each token that it generates.",
        given={
            **HELD,
            series(TOKENS, **LLAMA, kind="generated"): 100.0,
            series("gpunode_gpu_energy_joules_total", state="compute"): 500.0,
        },
        results={OF: 5.0},
    ),
)
"""They are evaluated after the jobs."""
