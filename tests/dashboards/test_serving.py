"""The dashboard of services: what its panels say of instances, in a real Prometheus's PromQL."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dashboards import FOLDER
from tests.dashboards.promtool import Found, promtool, with_labels
from tests.dashboards.queries import CHOSEN, filled

MINUTES = 20
MODEL = {"engine": "sglang", "model": "llama"}
PANELS: Mapping[str, Any] = {
    panel["title"]: panel
    for panel in json.loads((FOLDER / "gpunode-serving.json").read_text())["panels"]
}


def queries(title: str) -> list[str]:
    """What a panel asks, for every service."""
    over = {**CHOSEN, "$__rate_interval": "5m"}
    return [filled(target["expr"], over) for target in PANELS[title]["targets"]]


def gpu(number: int) -> dict[str, str]:
    return {"cluster": "c", "instance": "n", "gpu": str(number), "uuid": f"GPU-{number}"}


def held_gpu(number: int, pod: str) -> tuple[str, str]:
    """A GPU of a pod."""
    owner = {
        **dict.fromkeys(("owner_container", "slurm_job", "user"), ""),
        "owner_namespace": "chat",
        "owner_pod": pod,
        "workload": pod.rpartition("-")[0],
        "via": "kubelet",
    }
    return with_labels("gpunode_gpu_owner_info", {**gpu(number), **owner}), f"1x{MINUTES}"


def instance(number: int, pod: str, role: str, **requests: float) -> Iterator[tuple[str, str]]:
    """An engine on a GPU, with so many requests in each phase."""
    own = {**gpu(number), **MODEL}
    yield held_gpu(number, pod)
    info = {**own, "first": f"GPU-{number}", "role": role}
    yield with_labels("gpunode_serving_engine_info", info), f"1x{MINUTES}"
    for phase, many in requests.items():
        yield (
            with_labels("gpunode_serving_requests_in_flight", {**own, "phase": phase}),
            f"{many}x{MINUTES}",
        )


def test_the_queues_of_instances_are_told_by_their_role(tmp_path: Path) -> None:
    asks: dict[tuple[int, str], Found] = {}
    given = (
        *instance(0, "llama-prefill-0", "prefill", waiting=5, running=1, transferring=2),
        *instance(1, "llama-decode-0", "decode", waiting=0, running=4, transferring=3),
        *instance(2, "qwen-0", "", waiting=7, running=9),
    )
    at = [
        {**gpu(n), "in_cluster": "c", "model": "llama", "role": role}
        for n, role in enumerate(("prefill", "decode"))
    ]
    expected = ((5.0, 0.0), (1.0, 4.0), (2.0, 3.0))
    asked = queries("Instances by role")
    for query, values in zip(asked, expected, strict=True):
        asks[MINUTES - 2, query] = list(zip(at, values, strict=True))
    told = promtool(tmp_path, given, asks, recorded=True)
    assert not told, told[:3000]


def test_the_time_of_transfers_is_told_by_service(tmp_path: Path) -> None:
    """Two requests a second, each of whose caches is on its way for half a second."""
    asks: dict[tuple[int, str], Found] = {}
    own = {**gpu(0), **MODEL}
    parts = {**own, "part": "transfer"}
    ended = {**own, "result": "finished"}
    given = (
        held_gpu(0, "llama-decode-0"),
        (with_labels("gpunode_serving_requests_total", ended), f"0+120x{MINUTES}"),
        (with_labels("gpunode_serving_request_part_seconds_total", parts), f"0+60x{MINUTES}"),
    )
    (query,) = queries("KV cache between instances")
    asks[MINUTES - 2, query] = [({"workload": "llama-decode"}, 0.5)]
    told = promtool(tmp_path, given, asks, recorded=True)
    assert not told, told[:3000]


def test_queue_and_answers_are_told_by_model_and_replica(tmp_path: Path) -> None:
    """A replica that waits, beside one of another model that answers all within a second."""
    asks: dict[tuple[int, str], Found] = {}
    busy, calm = ({**gpu(n), **MODEL, "model": name} for n, name in enumerate(("llama", "qwen")))
    answers = [
        (
            with_labels("gpunode_serving_response_seconds_bucket", {**calm, "le": le}),
            f"0+60x{MINUTES}",
        )
        for le in ("1.0", "2.0", "+Inf")
    ]
    given = (
        *instance(0, "chat-0", "", waiting=6, running=3),
        held_gpu(1, "chat-1"),
        (
            with_labels("gpunode_serving_requests_in_flight", {**calm, "phase": "waiting"}),
            f"0x{MINUTES}",
        ),
        (
            with_labels("gpunode_serving_requests_in_flight", {**calm, "phase": "running"}),
            f"2x{MINUTES}",
        ),
        (with_labels("gpunode_serving_kv_cache_used_ratio", busy), f"0.9x{MINUTES}"),
        (
            with_labels("gpunode_serving_tokens_total", {**calm, "kind": "generated"}),
            f"0+600x{MINUTES}",
        ),
        *answers,
    )
    at = [{**labels, "in_cluster": "c"} for labels in (busy, calm)]
    expected = ({0: 6.0, 1: 0.0}, {0: 3.0, 1: 2.0}, {1: 10.0}, {0: 0.9})
    for query, values in zip(queries("Replicas"), expected, strict=True):
        asks[MINUTES - 2, query] = [(at[number], value) for number, value in values.items()]
    (requests,) = queries("Requests")
    by_phase = {("llama", "running"): 3, ("llama", "waiting"): 6, ("qwen", "running"): 2}
    asks[MINUTES - 2, f"{requests} > 0"] = [
        ({"model": model, "phase": phase}, many) for (model, phase), many in by_phase.items()
    ]
    _, half, slowest = queries("Decoding and whole answers")
    asks[MINUTES - 2, half] = [({"model": "qwen"}, 0.5)]
    asks[MINUTES - 2, slowest] = [({"model": "qwen"}, 0.99)]
    told = promtool(tmp_path, given, asks, recorded=True)
    assert not told, told[:3000]


def test_batch_and_preemptions_are_told_by_service(tmp_path: Path) -> None:
    """Two services, so that a sum over both is no answer of one."""
    asks: dict[tuple[int, str], Found] = {}
    steps = {0: 600, 1: 1200}
    given = [
        one
        for number, pod in enumerate(("chat-0", "search-0"))
        for one in (
            held_gpu(number, pod),
            *(
                (with_labels(f"gpunode_serving_{metric}", {**gpu(number), **MODEL}), values)
                for metric, values in (
                    ("steps_total", f"0+{steps[number]}x{MINUTES}"),
                    ("step_items_total", f"0+60000x{MINUTES}"),
                    ("preemptions_total", f"0+{60 * number}x{MINUTES}"),
                )
            ),
        )
    ]
    _, preemptions = queries("KV cache and preemptions")
    (batch,) = queries("Batch")
    for query, chat, search in ((preemptions, 0.0, 1.0), (batch, 100.0, 50.0)):
        of = [({"workload": "chat"}, chat), ({"workload": "search"}, search)]
        asks[MINUTES - 2, query] = of
    told = promtool(tmp_path, given, asks, recorded=True)
    assert not told, told[:3000]
