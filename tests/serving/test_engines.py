"""What is exported of the pages of engines, as versions of the last two years write them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gpunode.node import http
from gpunode.serving.engines import ENGINES, SERIES, series_of, spelled
from gpunode.serving.page import MODELS, parse
from tests.corpus.families import load
from tests.serving.fleet import CAPTURED, Fleet, page

PAGES: dict[str, dict[str, Any]] = {one["page"]: one for one in load("engines")["pages"]}

TRANSFER = {"part": "transfer"}


def series(text: str, metric: str, **labels: str) -> float | None:
    """The value of the series of a metric that has these labels, if there is one."""
    found = [
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.partition("{")[0] == metric
        and all(f'{name}="{value}"' in line for name, value in labels.items())
    ]
    assert len(found) < 2, (metric, labels)
    return found[0] if found else None


def served(root: Path, *pages: str) -> list[str]:
    """What is exported of a server that has one page after another."""
    fleet = Fleet(root)
    fleet.run(7)
    fleet.cards[0].hold(7)
    told = []
    for text in pages:
        fleet.serve(7, "127.0.0.1:8000", text)
        told.append(fleet.read())
    return told


def later(text: str, factor: float = 3.0) -> str:
    """A page on which each counter has risen to a multiple, and each gauge is as it was."""
    gauges = set(re.findall(r"^# TYPE (\S+) gauge", text, re.MULTILINE))

    def risen(line: str) -> str:
        name, _, value = line.partition("{")[0].partition(" ")[0], "", line.rpartition(" ")[2]
        if line.startswith("#") or name in gauges:
            return line
        return f"{line.rpartition(' ')[0]} {float(value) * factor}"

    return "\n".join(map(risen, text.splitlines())) + "\n"


def test_each_engine_tells_its_requests_and_its_cache(tmp_path: Path) -> None:
    assert PAGES.keys() == set(CAPTURED)
    in_flight = "gpunode_serving_requests_in_flight"
    for name, says in PAGES.items():
        (told,) = served(tmp_path / name, page(name))
        at = {"gpu": "0", "uuid": "GPU-0", "engine": says["engine"], "model": says["model"]}
        assert series(told, "gpunode_serving_engine_info", **at, first="GPU-0") == 1, name
        for phase in ("running", "waiting"):
            assert series(told, in_flight, **at, phase=phase) == says.get(phase), name
        cache = series(told, "gpunode_serving_kv_cache_used_ratio", **at)
        assert cache == says.get("kv_cache"), name
        assert series(told, "gpunode_serving_unanswered", reason="unknown") == 0, name


def test_every_figure_of_the_table_is_on_a_page_of_its_engine() -> None:
    """So that no name is in the table, and in the document, that no test has read."""
    for called in {engine.name for engine in ENGINES}:
        pages = [page(name) for name, says in PAGES.items() if says["engine"] == called]
        known = [name for engine in ENGINES if engine.name == called for name in engine.names]
        for figure in {name.figure for name in known}:
            names = [name for name in known if name.figure is figure]
            wanted = {
                spelling for name in names for of in series_of(name) for spelling in spelled(of)
            }
            lines = {
                line.partition("{")[0].partition(" ")[0] for p in pages for line in p.split("\n")
            }
            assert wanted & lines, (called, figure.name)


GAINS: tuple[tuple[str, str, dict[str, str], float], ...] = (
    ("vllm_v0", "gpunode_serving_tokens_total", {"kind": "generated"}, 4200),
    ("vllm_v0", "gpunode_serving_requests_total", {"result": "finished"}, 196),
    ("vllm_v0", "gpunode_serving_requests_total", {"result": "failed"}, 4),
    ("vllm_v0", "gpunode_serving_preemptions_total", {}, 8),
    ("vllm_v1_0.9", "gpunode_serving_tokens_total", {"kind": "cached"}, 8000),
    ("vllm_v1_0.25", "gpunode_serving_tokens_total", {"kind": "cached"}, 8000),
    ("vllm_v1_0.25", "gpunode_serving_tokens_total", {"kind": "asked"}, 24000),
    ("vllm_v1_0.25", "gpunode_serving_request_part_seconds_total", {"part": "queue"}, 45),
    ("vllm_v1_0.25", "gpunode_serving_request_part_seconds_total", {"part": "prefill"}, 43),
    ("vllm_v1_0.25", "gpunode_serving_request_part_seconds_total", {"part": "decode"}, 840),
    ("vllm_v1_0.25", "gpunode_serving_steps_total", {}, 400),
    ("vllm_v1_0.25", "gpunode_serving_step_items_total", {}, 36000),
    ("vllm_v1_0.25", "gpunode_serving_output_token_seconds_count", {}, 4000),
    ("ray_serve_vllm", "gpunode_serving_tokens_total", {"kind": "generated"}, 8000),
    ("ray_serve", "gpunode_serving_requests_total", {"result": "finished"}, 96),
    ("ray_serve", "gpunode_serving_response_seconds_sum", {}, 96.3214),
    ("sglang_0.5", "gpunode_serving_tokens_total", {"kind": "prompt"}, 16257804),
    ("sglang_0.5", "gpunode_serving_preemptions_total", {}, 12),
    ("sglang_0.5", "gpunode_serving_step_items_total", {}, 42000),
    ("sglang_0.5", "gpunode_serving_steps_total", {}, 2000),
    ("sglang_0.3", "gpunode_serving_output_token_seconds_sum", {}, 59693),
    ("trtllm_1.1", "gpunode_serving_requests_total", {"result": "finished"}, 100),
    ("trtllm_1.1", "gpunode_serving_first_token_seconds_sum", {}, 40),
    ("lmdeploy_0.10", "gpunode_serving_output_token_seconds_count", {}, 4000),
    ("vllm_v1_0.33", "gpunode_serving_step_items_total", {}, 5000),
    ("vllm_v1_0.33", "gpunode_serving_request_part_seconds_total", TRANSFER, 0.6),
    ("vllm_v1_0.33_mooncake", "gpunode_serving_request_part_seconds_total", TRANSFER, 0.4),
    ("vllm_v1_0.33_mooncake_store", "gpunode_serving_request_part_seconds_total", TRANSFER, 1),
    ("sglang_0.5.23", "gpunode_serving_step_items_total", {}, 19600),
    ("sglang_0.5.23", "gpunode_serving_steps_total", {}, 208),
    ("sglang_0.5.23", "gpunode_serving_tokens_total", {"kind": "cached"}, 4000),
    ("sglang_0.5.23", "gpunode_serving_request_part_seconds_total", {"part": "queue"}, 1.6),
    ("sglang_0.5.23", "gpunode_serving_request_part_seconds_total", {"part": "prefill"}, 1.2),
    ("sglang_0.5.23", "gpunode_serving_request_part_seconds_total", {"part": "decode"}, 6),
    ("sglang_0.5.23", "gpunode_serving_request_part_seconds_total", TRANSFER, 0.48),
    ("lmdeploy_0.18", "gpunode_serving_tokens_total", {"kind": "cached"}, 2560),
    ("lmdeploy_0.18", "gpunode_serving_requests_total", {"result": "finished"}, 40),
    ("ray_serve", "gpunode_serving_steps_total", {}, 24),
    ("ray_serve", "gpunode_serving_step_items_total", {}, 96),
    ("tgi_3", "gpunode_serving_tokens_total", {"kind": "generated"}, 45000),
    ("tgi_3", "gpunode_serving_steps_total", {}, 9000),
    ("tgi_3", "gpunode_serving_requests_total", {"result": "failed"}, 6),
    ("llama_cpp_b8000", "gpunode_serving_tokens_total", {"kind": "cached"}, 2400),
    ("llama_cpp_b8000", "gpunode_serving_tokens_total", {"kind": "prompt"}, 68530),
    (
        "llama_cpp_b4500",
        "gpunode_serving_request_part_seconds_total",
        {"part": "decode"},
        623.8,
    ),
    ("triton_24", "gpunode_serving_step_items_total", {}, 5000),
    ("triton_24", "gpunode_serving_request_part_seconds_total", {"part": "queue"}, 3),
    ("triton_24", "gpunode_serving_request_part_seconds_total", {"part": "whole"}, 50),
)
"""Of each page: a counter, and what it has gained once all on the page is three times as much."""


def test_counters_count_from_the_first_look(tmp_path: Path) -> None:
    told = {
        name: served(tmp_path / name, page(name), later(page(name)))
        for name in {name for name, *_ in GAINS}
    }
    for name, metric, labels, gained in GAINS:
        before, after = told[name]
        assert series(before, metric, **labels) == 0, (name, metric)
        found = series(after, metric, **labels)
        assert found == pytest.approx(gained, rel=1e-4), (name, metric, labels)


def test_ranks_and_priorities_count_once_and_replicas_each() -> None:
    """As of SGLang, whose ranks of one replica say the same, and whose priorities have a sum."""
    running = "sglang:num_running_reqs"
    told = parse(
        f'{running}{{model_name="m",dp_rank="{replica}",tp_rank="{rank}",priority="{priority}"}} 4'
        for replica, ranks in enumerate([(0, 1), (2, 3), (4,)])
        for rank in ranks
        for priority in ("", "0", "1")
    )
    assert told is not None
    assert list(told.models["m"].figures.values()) == [12]


@pytest.mark.parametrize(("said", "role"), [("decode", "decode"), ("unified", ""), ("x", "")])
def test_where_prefill_and_decode_run_apart_an_instance_has_a_role(
    said: str, role: str, tmp_path: Path
) -> None:
    text = page("sglang_0.5.23").replace('engine_type="decode"', f'engine_type="{said}"')
    (told,) = served(tmp_path, text)
    assert series(told, "gpunode_serving_engine_info", role=role) == 1
    moving = series(told, "gpunode_serving_requests_in_flight", phase="transferring")
    assert moving == (4 if role else None)


def test_what_came_within_the_objective_is_counted(tmp_path: Path) -> None:
    """vLLM has no bucket that ends at 2 s: of six first tokens within 1 to 2.5 s, four count."""
    text = page("vllm_v0")
    _, after = served(tmp_path, text, later(text, 2.0))
    met = "gpunode_serving_objective_met_total"
    assert series(after, met, objective="first_token") == pytest.approx(90 + 6 / 1.5, abs=1e-6)
    assert series(after, "gpunode_serving_first_token_seconds_count") == 100
    assert series(after, "gpunode_serving_first_token_seconds_bucket", le="2.0") == 94
    assert series(after, met, objective="output_token") == pytest.approx(1800)
    assert series(after, "gpunode_serving_output_token_seconds_bucket", le="0.1") == 1800


def test_an_engine_s_restart_gains_nothing(tmp_path: Path) -> None:
    text = page("vllm_v1_0.25")
    told = served(tmp_path, text, later(text), text, later(text))
    tokens = [series(one, "gpunode_serving_tokens_total", kind="generated") for one in told]
    assert tokens == [0, 8000, 8000, 16000]
    firsts = [series(one, "gpunode_serving_first_token_seconds_count") for one in told]
    assert firsts == [0, 200, 200, 400]


def test_another_process_on_the_gpu_begins_anew_and_the_sum_goes_on(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.run(7)
    fleet.cards[0].hold(7)
    fleet.serve(7, "127.0.0.1:8000", page("vllm_v0"))
    fleet.read()
    fleet.serve(7, "127.0.0.1:8000", later(page("vllm_v0")))
    assert series(fleet.read(), "gpunode_serving_tokens_total", kind="generated") == 4200
    fleet.run(7, start=2000)
    assert series(fleet.read(), "gpunode_serving_tokens_total", kind="generated") == 4200


def test_names_of_models_are_cut_cleaned_and_few() -> None:
    told = parse(
        [
            f'vllm:num_requests_running{{model_name="{name}"}} 1'
            for name in ("/mnt/models/a/", "x" * 100, r"a\"b\\c", *(f"m{i}" for i in range(20)))
        ]
    )
    assert told is not None
    assert {"a", "x" * 64, 'a"b\\c', "other"} <= told.models.keys()
    assert len(told.models) == MODELS + 1
    assert sum(of.figures[next(iter(of.figures))] for of in told.models.values()) == 23


def test_a_sum_of_which_a_part_is_missing_or_strange_is_no_figure() -> None:
    """SGLang has renamed a queue twice: without it, fewer would seem to wait."""
    text = page("sglang_0.5.12")
    spoiled = {
        "gone": re.sub(r"(?m)^sglang:num_prefill_bootstrap_queue_reqs.*\n", "", text),
        "called otherwise": text.replace("prefill_bootstrap_queue", "prefill_handshake_queue"),
        "only another": re.sub(r"(?m)^sglang:num_(grammar|decode|prefill)_.*\n", "", text)
        + 'sglang:num_prefill_handshake_queue_reqs{model_name="Qwen/Qwen3-8B"} 12\n',
        "cannot be": re.sub(r"(?m)^(sglang:num_grammar_queue_reqs.*) \S+$", r"\1 -1", text),
    }
    for why, page_of_it in spoiled.items():
        told = parse(http.scraped_of(f"HTTP/1.0 200 OK\r\n\r\n{page_of_it}", SERIES).kept)
        assert told is not None
        figures = {figure.name: one for figure, one in told.models["Qwen/Qwen3-8B"].figures.items()}
        assert figures["running"] == 3, why
        assert "waiting" not in figures, why
        assert "waiting" in {figure.name for figure in told.partial}, why


def test_triton_s_request_times_count_where_it_makes_batches(tmp_path: Path) -> None:
    """A decoupled model's are over before its answer has begun, and no page says which it is."""
    whole = "gpunode_serving_request_part_seconds_total"
    for name, is_told in (("triton_24", True), ("triton_vllm_25.03", False)):
        (told,) = served(tmp_path / name, page(name))
        assert (series(told, whole, part="whole") is not None) is is_told
    streams = 'nv_inference_first_response_histogram_ms_count{model="resnet50"} 9\n'
    (told,) = served(tmp_path / "streams", page("triton_24") + streams)
    assert series(told, whole, part="whole") is None


@pytest.mark.parametrize("value", ["-1", "NaN", "+Inf", "1e300", "abc", "0x10"])
def test_a_figure_that_cannot_be_is_left_out_and_counted(value: str, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.run(7)
    fleet.cards[0].hold(7)
    lines = f"vllm:num_requests_running {value}\nvllm:num_requests_waiting 2\n"
    fleet.serve(7, "127.0.0.1:8000", lines)
    told = fleet.read()
    assert series(told, "gpunode_serving_requests_in_flight", phase="running") is None
    assert series(told, "gpunode_serving_requests_in_flight", phase="waiting") == 2
    assert [unread.kind.what for unread in fleet.reading().unread] == ["figure"]
