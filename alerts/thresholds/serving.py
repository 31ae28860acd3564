"""Inference: how long requests take."""

from __future__ import annotations

from alerts.thresholds.row import GPU, Example, Threshold, Tier, rate, series

BUCKET = "gpunode_serving_request_seconds_bucket"

SERVING = (
    Threshold(
        alert="ServingSlow",
        group="serving",
        summary="Requests are served slowly",
        summary_ko="추론 요청 응답이 느립니다",
        says="the slowest 1% of requests take {value}",
        meaning="An interactive answer should take no more than two seconds.",
        remedy="Add replicas, use smaller batches, or quantise the model.",
        source="https://sre.google/sre-book/service-level-objectives/",
        signal=f"histogram_quantile(0.99, {rate(BUCKET, f'{GPU}, le')})",
        unit="seconds",
        tiers=(Tier(severity="warning", threshold=2.0, after="5m"),),
        gate="always",
        example=Example(
            fires={
                series(BUCKET, le="2.0"): 0.0,
                series(BUCKET, le="5.0"): 10.0,
                series(BUCKET, le="+Inf"): 10.0,
            },
            quiet={series(BUCKET, le="2.0"): 10.0},
            value=4.97,
        ),
    ),
)
