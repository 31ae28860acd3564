"""Services: how long answers take, what requests wait for, and what the GPUs do meanwhile."""

from __future__ import annotations

from dashboards.layout import Board, link_to, row, section
from dashboards.panels import (
    ENGINE,
    ROLES,
    RULES,
    SHARE,
    TRANSFERS,
    areas,
    figure,
    lines,
    rows_of,
)
from dashboards.promql import GPU, MEMBER, rate
from dashboards.queries import JOBS as SELECTED
from dashboards.queries import Query, selected
from dashboards.rules import limit
from dashboards.variables import datasource, of_few, of_many
from gpunode.export import palette
from gpunode.verdict.engine import OTHER_ROLE

LISTED = 20
"""Replicas that a table shows at most."""

WIDE_TABLE = (15, 9)
"""The widths of a table whose columns need more than half of a screen, and of a graph."""

TO_REPLICA = {
    "Node": link_to("gpunode-node", cluster="cluster", node="instance"),
    "GPU": link_to("gpunode-gpu", cluster="cluster", node="instance", gpu="gpu"),
}

MODEL = f"{GPU}, model"
FINISHED = rate('gpunode_serving_requests_total{result="finished"}', MODEL)
FIRST = "gpunode_serving_first_token_seconds"
QUEUE = f"max by ({GPU}, engine, model, phase) (gpunode_serving_requests_in_flight)"
TOKENS = rate("gpunode_serving_tokens_total", f"{MODEL}, kind")
WAITING_NOW = (
    f'max by ({GPU}, engine, model) (gpunode_serving_requests_in_flight{{phase="waiting"}})'
)
GENERATED = rate('gpunode_serving_tokens_total{kind="generated"}', MODEL)
IN_TIME = rate('gpunode_serving_objective_met_total{objective="output_token"}', MODEL)
LEDGER = "job:gpunode_gpu_states:gpus"


def _query(expression: str, legend: str = "") -> Query:
    return Query(selected(expression, SELECTED), legend)


def _own_engines(expression: str, over: str) -> str:
    """A figure of the engines of the chosen services."""
    return f"{over} ({expression} and on ({GPU}) {MEMBER})"


def _late(tokens: str) -> Query:
    """The share of tokens that came later than the objective, of the service with most."""
    missed = f'service:gpunode_serving_objective_missed:ratio_rate5m{{objective="{tokens}"}}'
    return _query(f"clamp_min(max ({missed}), 0)")


def _mean(seconds: str, of: str, label: str) -> str:
    by = f"sum by ({label})"
    if label == "workload":
        return f"{_of_services(seconds)} / ({_of_services(of)} > 0)"
    return f"{_own_engines(seconds, by)} / ({_own_engines(of, by)} > 0)"


def _part(name: str, label: str = "model") -> Query:
    """The mean of a part of a request, by model."""
    parts = f'gpunode_serving_request_part_seconds_total{{part="{name}"}}'
    legend = f"{{{{model}}}}: {name}" if label == "model" else "{{workload}}"
    return _query(_mean(rate(parts, MODEL), FINISHED, label), legend)


def _whole(quantile: float, legend: str) -> Query:
    """How long whole requests take, by model."""
    each = rate("gpunode_serving_response_seconds_bucket", f"{GPU}, model, le")
    told = f"sum by (model, le) ({MEMBER} * on ({GPU}) group_right () ({each}))"
    return _query(f"histogram_quantile({quantile:g}, {told})", f"{{{{model}}}}: {legend}")


def _of_replicas(expression: str) -> Query:
    """A figure of each replica and model: of those with the longest queues."""
    told = f"{_each_replica(expression)} and on ({GPU}, model) {LONGEST_QUEUES}"
    return _query(told)


def _each_replica(expression: str) -> str:
    each = f"max by ({GPU}, engine, model) ({expression})"
    return f"sum by ({GPU}, engine, model) ({MEMBER} * on ({GPU}) group_right () {each})"


def _of_services(expression: str) -> str:
    """A figure of the engines of the chosen services, by service."""
    return f"sum by (workload) ({MEMBER} * on ({GPU}) group_right (workload) ({expression}))"


def _of_instances(phase: str) -> str:
    """Requests in a phase at the instances that only prefill or decode, by their role."""
    requests = f'gpunode_serving_requests_in_flight{{phase="{phase}"}}'
    told = " or ".join(
        f"label_replace({requests} and on ({GPU}, engine, model) "
        f'gpunode_serving_engine_info{{role="{role}"}}, "role", "{role}", "", "")'
        for role in OTHER_ROLE
    )
    each = f"max by ({GPU}, engine, model, role) ({told})"
    return f"sum by ({GPU}, model, role) ({MEMBER} * on ({GPU}) group_right () {each})"


WAITING = _each_replica('gpunode_serving_requests_in_flight{phase="waiting"}')
LONGEST_QUEUES = f"topk({LISTED}, {WAITING})"
"""The replicas and models for which most requests wait."""

SERVING_BOARD = Board(
    uid="gpunode-serving",
    title="GPU serving",
    description="How long do answers take, what do requests wait for, and what do the GPUs do?",
    variables=(datasource(), of_many("cluster"), of_many("namespace"), of_few("job")),
    selection=SELECTED,
    sections=(
        section(
            "",
            row(
                3,
                figure(
                    "1st token late",
                    "Which share of the first tokens came later than the objective?",
                    [_late("first_token")],
                    SHARE,
                    needs=ENGINE,
                ),
                figure(
                    "Tokens late",
                    "Which share of the tokens after the first came later than the objective?",
                    [_late("output_token")],
                    SHARE,
                    needs=ENGINE,
                ),
                figure(
                    "Waiting",
                    "How many requests wait for their turn?",
                    [_query(_own_engines(WAITING_NOW, "sum"))],
                    "none",
                    needs=ENGINE,
                ),
                figure(
                    "KV cache",
                    "How full is the fullest KV cache?",
                    [_query("max (job:gpunode_serving_kv_cache:max)")],
                    SHARE,
                    needs=ENGINE,
                ),
                figure(
                    "Stands still",
                    "For how long has a replica given no token, though it has requests?",
                    [_query("max (job:gpunode_stalled:seconds)")],
                    "s",
                    limit=limit("JobStalled"),
                    nothing="No",
                    among=_query(_own_engines(QUEUE, "sum"), "No such engine"),
                ),
                figure(
                    "Joule/token",
                    "How much energy do the GPUs take for each token that they generate?",
                    [
                        _query(
                            f"{_own_engines(rate('gpunode_gpu_energy_joules_total'), 'sum')} / "
                            f"({_own_engines(GENERATED, 'sum')} > 0)"
                        )
                    ],
                    "joule",
                    needs=ENGINE,
                    decimals=2,
                ),
                widths=(4, 4, 4, 4, 4, 4),
            ),
            row(
                8,
                lines(
                    "Requests",
                    "Do requests wait, and does the queue grow?",
                    [_query(_own_engines(QUEUE, "sum by (model, phase)"), "{{model}}: {{phase}}")],
                    "none",
                    needs=ENGINE,
                ),
                lines(
                    "Time to the first token",
                    "Where does the time to the first token go: into the queue, into prefill, or "
                    "elsewhere? Means.",
                    [
                        _query(
                            _mean(
                                rate(f"{FIRST}_sum", MODEL), rate(f"{FIRST}_count", MODEL), "model"
                            ),
                            "{{model}}: first_token",
                        ),
                        _part("queue"),
                        _part("prefill"),
                    ],
                    "s",
                    needs=ENGINE,
                ),
                areas(
                    "GPUs by state",
                    "What do the GPUs of the service do meanwhile?",
                    [_query(f"sum by (state) ({LEDGER})", "{{state}}")],
                    "none",
                    needs=RULES,
                    colours=palette.STATES,
                ),
            ),
            row(
                8,
                lines(
                    "Tokens",
                    "How many tokens come in and out, how many come in time, and how many did the "
                    "prefix cache have? Tokens a second.",
                    [
                        _query(_own_engines(TOKENS, "sum by (model, kind)"), "{{model}}: {{kind}}"),
                        _query(_own_engines(IN_TIME, "sum"), "in time"),
                    ],
                    "none",
                    needs=ENGINE,
                ),
                lines(
                    "KV cache and preemptions",
                    "Is the cache full, and do requests lose their place in it?",
                    [
                        _query(
                            "max by (workload) (job:gpunode_serving_kv_cache:max)",
                            "{{workload}}: cache in use",
                        ),
                        _query(
                            _of_services(rate("gpunode_serving_preemptions_total")),
                            "{{workload}}: preemptions a second",
                        ),
                    ],
                    "none",
                    needs=ENGINE,
                ),
                lines(
                    "Batch",
                    "How many tokens are in a forward pass?",
                    [
                        _query(
                            _of_services(rate("gpunode_serving_step_items_total"))
                            + " / "
                            + _of_services(rate("gpunode_serving_steps_total")),
                            "{{workload}}",
                        )
                    ],
                    "none",
                    needs=ENGINE,
                ),
            ),
            row(
                8,
                rows_of(
                    "Replicas",
                    f"Which replica waits, by model, and what has it to do? The {LISTED} with the "
                    "longest queues.",
                    {
                        "Waiting": (_query(LONGEST_QUEUES), "none"),
                        "Running": (
                            _of_replicas('gpunode_serving_requests_in_flight{phase="running"}'),
                            "none",
                        ),
                        "Tokens/s": (
                            _of_replicas(
                                rate(
                                    'gpunode_serving_tokens_total{kind="generated"}',
                                    f"{GPU}, engine, model",
                                )
                            ),
                            "none",
                        ),
                        "KV cache": (_of_replicas("gpunode_serving_kv_cache_used_ratio"), SHARE),
                    },
                    names={
                        "cluster": "Cluster",
                        "instance": "Node",
                        "gpu": "GPU",
                        "engine": "Engine",
                        "model": "Model",
                    },
                    sort_by="Waiting",
                    nothing="No engine",
                    links=TO_REPLICA,
                ),
                lines(
                    "Decoding and whole answers",
                    "How long does a request decode? Mean. How long do whole requests take: half "
                    "of them at most, and all but the slowest hundredth?",
                    [_part("decode"), _whole(0.5, "half"), _whole(0.99, "99%")],
                    "s",
                    needs=ENGINE,
                ),
                widths=WIDE_TABLE,
            ),
        ),
        section(
            "Prefill and decode apart",
            row(
                8,
                rows_of(
                    "Instances by role",
                    "Which instances prefill and which decode, and what waits at each? Where it "
                    "waits, the others wait for that instance; what is on its way everywhere "
                    "waits for the network.",
                    {
                        "Waiting": (_query(_of_instances("waiting")), "none"),
                        "Running": (_query(_of_instances("running")), "none"),
                        "On the way": (_query(_of_instances("transferring")), "none"),
                    },
                    names={
                        "cluster": "Cluster",
                        "instance": "Node",
                        "gpu": "GPU",
                        "role": "Role",
                        "model": "Model",
                    },
                    sort_by="Waiting",
                    needs=ROLES,
                    links=TO_REPLICA,
                ),
                lines(
                    "KV cache between instances",
                    "How long is the KV cache of a request on its way between prefill and decode? "
                    "Mean.",
                    [_part("transfer", "workload")],
                    "s",
                    needs=TRANSFERS,
                ),
                widths=WIDE_TABLE,
            ),
        ),
    ),
)
