"""Starts of jobs."""

from __future__ import annotations

from alerts.examples import HELD, STARTED, WORKLESS
from alerts.model import FOR_HOURS, Example, Threshold, Tier
from alerts.promql import JOB
from alerts.recording.jobs import SIZE
from alerts.recording.starts import (
    NOTHING_BEGAN,
    OF_PROGRAMS,
    PROCESSES_STAY,
    RANKS_STAY,
    STARTING_FOR,
    TOOK,
    USUAL,
)
from alerts.settings import (
    ENGINE_STARTS,
    FIRST_STARTS,
    FIRST_STARTS_GPUS,
    STARTS_FOR,
    STARTS_LONGER,
)

STARTS = (
    Threshold(
        alert="JobSlowToStart",
        group="system",
        summary="A job takes far longer to start than it did before",
        summary_ko="작업 시작이 이전보다 훨씬 오래 걸리고 있습니다",
        says="has held its GPUs without any work for {value} times what its starts of a week took "
        "or, where none is known, what a first start commonly takes, or has an inference engine "
        "that has answered nobody for {value} times {engine_starts}",
        when="the job has held its GPUs without any work for {value} times the median of what its "
        "starts of a week took, and for {starts_for}; or, where none is known, it has had ranks "
        "and no work for {value} times {first_starts}, or longer with fewer than "
        "{first_starts_gpus} GPUs, or for as long no process at all, if it has pods on several "
        "nodes that a training operator or an indexed Job made; or an inference engine on its GPUs "
        "has answered nobody since it began, for {value} times {engine_starts}, and they do "
        "nothing",
        meaning="The job loads its image, its code, its data or its checkpoint, or waits for a "
        "rank; its GPUs have done nothing since it began.",
        remedy="See what its processes wait for: storage, a download, a pod that is missing.",
        source="https://arxiv.org/abs/2402.15627",
        record="job:gpunode_start:slowdown",
        signal=(
            f"max by ({JOB}) (label_replace("
            f"(time() - job:gpunode_start:since{{{OF_PROGRAMS}}} > {STARTS_FOR}) "
            f"/ on ({JOB}) {USUAL} "
            f"and on ({JOB}) {PROCESSES_STAY} "
            f'unless on ({JOB}) job:gpunode_gpu_bottleneck:count{{cause="compile"}}, '
            '"of", "its past", "", "") '
            f"or label_replace((time() - job:gpunode_start:since) / {FIRST_STARTS} "
            f"* on ({JOB}) clamp_max({SIZE} / {FIRST_STARTS_GPUS}, 1) "
            f"and on ({JOB}) {RANKS_STAY} and on ({JOB}) job:gpunode_job:collective "
            f"unless on ({JOB}) {USUAL} "
            f"unless on ({JOB}) job:gpunode_gpu_blocked:count "
            f'unless on ({JOB}) job:gpunode_gpu_bottleneck:count{{cause="compile"}}, '
            '"of", "first", "", "") '
            f"or label_replace((time() - ({NOTHING_BEGAN})) / {FIRST_STARTS} "
            f"* on ({JOB}) clamp_max({SIZE} / {FIRST_STARTS_GPUS}, 1) "
            f"unless on ({JOB}) {USUAL}, "
            '"of", "nothing began", "", "") '
            f'or label_replace({STARTING_FOR} / {ENGINE_STARTS}, "of", "engines", "", ""))'
        ),
        window="20m",
        unit="number",
        tiers=(Tier(severity="ticket", threshold=STARTS_LONGER.figure, after="1m"),),
        scope="job",
        of_owner=True,
        every=FOR_HOURS,
        example=Example(
            fires={**HELD, TOOK: 60.0, WORKLESS: None, STARTED: 1.0},
            quiet={WORKLESS: 0.0, STARTED: None},
            value=None,
        ),
    ),
)
