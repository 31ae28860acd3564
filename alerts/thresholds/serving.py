"""Inference: how long requests take, and whether any come."""

from __future__ import annotations

from alerts.examples import HELD, series
from alerts.model import Example, Threshold, Tier
from alerts.promql import JOB
from alerts.recording import engines
from alerts.recording.engines import OBJECTIVES
from alerts.recording.jobs import ANSWERED_BEFORE, FADED, SILENT, TAKEN_OVER
from alerts.recording.parts import LLAMA, MET
from alerts.settings import ASKED_SHARE, KV_CACHE_FULL, SERVING_SLOWDOWN, SERVING_TARGET

BUCKET = "gpunode_serving_request_seconds_bucket"
REQUESTS = series("gpunode_serving_request_seconds_count")
CACHE = series("gpunode_serving_kv_cache_used_ratio", **LLAMA)
SERVICE = JOB.replace("replica, ", "")

SERVING = (
    Threshold(
        alert="ServingSlow",
        group="serving",
        summary="Requests take much longer than they did",
        summary_ko="추론 응답이 평소보다 훨씬 느립니다",
        says="the slowest 1% of requests take {value}, and {serving_slowdown} times as long as "
        "usual",
        meaning="Answers take long, and longer than they did: a chat whose answers are long is "
        "compared with itself.",
        remedy="Add replicas, use smaller batches, or quantise the model.",
        source="https://sre.google/sre-book/service-level-objectives/",
        record="job:gpunode_serving_request:slow_p99",
        signal=(
            f"job:gpunode_serving_request:p99 and on ({SERVICE}) job:gpunode_serving_request:p99 "
            f"> {SERVING_SLOWDOWN} "
            "* quantile_over_time(0.5, job:gpunode_serving_request:p99[1d:5m] offset 15m)"
        ),
        unit="seconds",
        tiers=(Tier(severity="ticket", threshold=2.0, after="10m"),),
        scope="job",
        example=Example(
            fires={
                **HELD,
                series(BUCKET, le="1.0"): 0.0,
                series(BUCKET, le="5.0"): 10.0,
                series(BUCKET, le="+Inf"): 10.0,
            },
            quiet={series(BUCKET, le="1.0"): 10.0},
            value=4.96,
        ),
    ),
    Threshold(
        alert="ServingStopped",
        group="serving",
        summary="A service answers no requests",
        summary_ko="추론 서비스가 요청에 응답하지 않습니다",
        says="no request comes, where {value} a second came before",
        when="no request comes, or every engine of the service ended, has yet to answer, or ends "
        "again and again, with at most {loops_answered} of the usual requests answered, where "
        "{value} a second came before, if the service had requests "
        "for {asked_share} of the last day, as far as its cluster was seen, or at this time "
        "yesterday and for hours after, and unless it stands still in a collective, its requests "
        "had faded to {faded_below} of the usual for half an hour before, or another service "
        "has taken over {taken_over} of them",
        meaning="What sends work to the servers no longer does, or none of them answers.",
        remedy="Read the log of a server that starts again; else check the gateway or load "
        "balancer, the service's endpoints, and the network.",
        source="https://sre.google/sre-book/monitoring-distributed-systems/",
        record="job:gpunode_serving_requests:before",
        signal=(
            f'max by ({SERVICE}) (label_replace({ANSWERED_BEFORE}, "of", "now", "", "") '
            "or label_replace(last_over_time(job:gpunode_serving_requests:before[15m]), "
            '"of", "past", "", "")) '
            f"and on ({SERVICE}) {SILENT} "
            f"and on ({SERVICE}) (job:gpunode_serving_requests:asked_1d > {ASKED_SHARE} "
            f"or on ({SERVICE}) "
            f"min_over_time(job:gpunode_serving_requests:rate5m[3h] offset 21h) > 0) "
            f"unless on ({SERVICE}) job:gpunode_stalled:seconds unless on ({SERVICE}) {FADED} "
            f"unless on ({SERVICE}) {TAKEN_OVER}"
        ),
        window="10m",
        unit="number",
        tiers=(Tier(severity="page", threshold=1.0, after="10m"),),
        scope="job",
        example=Example(fires={**HELD, REQUESTS: 0.0}, quiet={REQUESTS: 20.0}, value=None),
    ),
    Threshold(
        alert="ServingObjectiveMissed",
        group="serving",
        summary="Tokens of a service come too late, and too often",
        summary_ko="추론 토큰이 목표 시간보다 늦게 나옵니다",
        says="over an hour and over the last five minutes, {value} times as many tokens came late "
        "as the target allows ({objective})",
        when="{value} times as many first tokens, or others, came late as a target of "
        "{serving_target} allows, over an hour and over the last five minutes",
        meaning="At this pace the errors that are allowed in 30 days are used up within two.",
        remedy="See the queue, the cache and the verdicts of its GPUs, and add replicas.",
        source="https://sre.google/workbook/alerting-on-slos/",
        record="job:gpunode_serving_objective:burn",
        signal=(
            "(job:gpunode_serving_objective:missed1h < job:gpunode_serving_objective:missed5m "
            "or job:gpunode_serving_objective:missed5m) "
            f"/ on () group_left () (vector(1 - {SERVING_TARGET}) > 0)"
        ),
        window="1h",
        unit="number",
        tiers=(Tier(severity="ticket", threshold=14.4, after="2m"),),
        scope="job",
        dashboard="serving",
        labels=("objective",),
        example=Example(
            fires={**OBJECTIVES},
            quiet={series(MET, **LLAMA, objective="first_token"): 9.9},
            value=50.0,
        ),
    ),
    Threshold(
        alert="ServingCacheFull",
        group="serving",
        summary="More requests wait than run, because the KV cache is full",
        summary_ko="KV 캐시가 가득 차 대기 요청이 쌓입니다",
        says="{value} times as many requests wait as run, and the KV cache is full",
        when="{value} times as many requests wait as run, and {kv_cache_full} of the cache is in "
        "use",
        meaning="Answers come later the longer it goes on; the GPUs may well be busy.",
        remedy="Give the cache more memory or fewer bits, or add replicas.",
        source="https://docs.vllm.ai/en/latest/configuration/optimization.html",
        record="job:gpunode_serving_queue:to_running",
        signal=(
            f'sum by ({SERVICE}) (job:gpunode_serving_queue:count{{phase="waiting"}}) / '
            f'(sum by ({SERVICE}) (job:gpunode_serving_queue:count{{phase="running"}}) > 0) '
            f"and on ({SERVICE}) job:gpunode_serving_kv_cache:max >= {KV_CACHE_FULL}"
        ),
        window="0s",
        unit="number",
        tiers=(Tier(severity="ticket", threshold=1.0, after="10m"),),
        scope="job",
        dashboard="serving",
        example=Example(
            fires={
                **HELD,
                CACHE: 0.98,
                series(engines.REQUESTS, **LLAMA, phase="running"): 8.0,
                series(engines.REQUESTS, **LLAMA, phase="waiting"): 16.0,
            },
            quiet={CACHE: 0.7},
            value=2.0,
        ),
    ),
)
