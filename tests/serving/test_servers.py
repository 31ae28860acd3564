"""Who is asked for the requests of a GPU: a process of its server, and nobody else."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from gpunode.export.web.node import node
from gpunode.node.node import ScrapedPage
from gpunode.serving.requests import MAX_RETRY_SECONDS, SERVERS
from tests.machine import exported
from tests.serving.fleet import Engines, Fleet, page
from tests.serving.test_engines import series
from tests.verdict.stage import Actor, Stage

AT = "127.0.0.1:8000"
STORE = "127.0.0.1:7777"
RUNNING = "vllm:num_requests_running 2\nvllm:generation_tokens_total 5\n"
POD = (
    "0::/kubepods.slice/kubepods-pod6f1b7c1e_3a44_4f0e_9a55_1f2f6f0b7a1{}.slice/"
    "cri-containerd-{}.scope\n"
)


def running(told: str) -> float | None:
    return series(told, "gpunode_serving_requests_in_flight", phase="running")


def unanswered(told: str, reason: str) -> float | None:
    return series(told, "gpunode_serving_unanswered", reason=reason)


def vllm(root: Path, gpus: int = 2) -> Fleet:
    """The API server starts the engine core, which starts a worker for each GPU."""
    fleet = Fleet(root, gpus=gpus)
    fleet.run(10, program="vllm")
    fleet.run(11, 10, program="VLLM::EngineCore")
    for index, card in enumerate(fleet.cards):
        fleet.run(20 + index, 11, program=f"VLLM::Worker_TP{index}")
        card.hold(20 + index)
    fleet.serve(10, AT, RUNNING)
    return fleet


def test_a_tensor_parallel_server_is_asked_once_for_all_of_its_gpus(tmp_path: Path) -> None:
    fleet = vllm(tmp_path, gpus=4)
    told = fleet.read()
    assert running(told) == 2
    assert 'gpu="0"' in next(line for line in told.splitlines() if "phase=" in line)
    for index in range(4):
        info = {"gpu": str(index), "uuid": f"GPU-{index}", "first": "GPU-0"}
        assert series(told, "gpunode_serving_engine_info", **info) == 1
    assert fleet.asked == [(10, AT, "/metrics")]


def test_a_router_beside_the_workers_is_found(tmp_path: Path) -> None:
    """As Text Generation Inference: the launcher starts a shard on the GPU, and the router."""
    fleet = Fleet(tmp_path)
    fleet.run(10, program="text-generation-launcher")
    fleet.run(11, 10, program="text-generation-server")
    fleet.run(12, 10, program="text-generation-router")
    fleet.cards[0].hold(11)
    fleet.serve(12, AT, page("tgi_3"))
    assert running(fleet.read()) == 5


def test_servers_that_a_script_starts_answer_each_for_its_own_gpu(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, gpus=2)
    fleet.run(10, program="serve_all.py")
    for index, card in enumerate(fleet.cards):
        fleet.run(20 + index, 10, program="llama-server")
        card.hold(20 + index)
        text = f"llamacpp:requests_processing {index + 1}\n"
        fleet.serve(20 + index, f"127.0.0.1:{8000 + index}", text)
    told = fleet.read()
    for index in range(2):
        found = series(
            told, "gpunode_serving_requests_in_flight", phase="running", uuid=f"GPU-{index}"
        )
        assert found == index + 1


@pytest.mark.parametrize("shell", ["bash", "tmux: server", "slurmstepd"])
def test_a_server_beside_it_in_the_same_shell_is_another(shell: str, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.run(10, name=shell)
    fleet.run(11, 10, program="train.py")
    fleet.run(12, 10, program="vllm")
    fleet.cards[0].hold(11)
    fleet.serve(12, AT, RUNNING)
    assert running(fleet.read()) is None
    assert fleet.asked == []


def test_a_process_of_another_tenant_is_not_asked(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.run(10, cgroup=POD.format(1, "3" * 64))
    fleet.run(11, 10, cgroup=POD.format(2, "4" * 64))
    fleet.cards[0].hold(11)
    fleet.serve(10, AT, RUNNING)
    assert running(fleet.read()) is None
    assert fleet.asked == []


def test_what_a_launcher_of_training_started_is_left_alone(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.run(11, program="train.py", environment="MASTER_PORT=29500")
    fleet.cards[0].hold(11)
    fleet.serve(11, "127.0.0.1:29500", RUNNING)
    fleet.read()
    assert fleet.asked == []


def test_ports_that_the_kernel_chose_are_not_asked_of_a_process_on_a_gpu(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.run(11)
    fleet.cards[0].hold(11)
    fleet.serve(11, "127.0.0.1:41234", RUNNING)
    fleet.read()
    assert fleet.asked == []


def test_metrics_of_trtllm_serve_are_not_taken_from_their_readers(tmp_path: Path) -> None:
    """Its /metrics gives each figure once: https://github.com/NVIDIA/TensorRT-LLM"""
    fleet = Fleet(tmp_path)
    fleet.run(10, program="trtllm-serve")
    fleet.run(11, 10)
    fleet.cards[0].hold(11)
    fleet.serve(10, AT, page("trtllm_1.1"))
    assert running(fleet.read()) == 9
    assert fleet.asked == [(10, AT, "/prometheus/metrics")]


def test_nobody_is_asked_where_the_settings_say_so(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, ask=False)
    fleet.run(7)
    fleet.cards[0].hold(7)
    fleet.serve(7, AT, RUNNING)
    assert fleet.read() == ""
    assert fleet.asked == []


def not_found(fleet: Fleet, pid: int, at: str, only: str, text: str) -> None:
    """Let a process answer at one path of an address only."""
    fleet.serve(pid, at, "HTTP/1.1 404 Not Found\r\n\r\n")
    fleet.pages[f"{at}{only}"] = text


@pytest.mark.parametrize(
    ("program", "path", "name"),
    [
        ("dynamo.trtllm", "/metrics", "dynamo_trtllm_1.5"),
        ("vllm_nvext.entrypoints.openai.api_server", "/v1/metrics", "nim_1"),
        ("uvicorn", "/prometheus/metrics", "trtllm_1.0"),
    ],
)
def test_a_page_is_looked_for_at_the_known_paths_and_then_asked_there(
    program: str, path: str, name: str, tmp_path: Path
) -> None:
    fleet = Fleet(tmp_path)
    fleet.run(7, program=program)
    fleet.cards[0].hold(7)
    not_found(fleet, 7, AT, path, page(name))
    assert "gpunode_serving_engine_info" in fleet.read()
    fleet.asked.clear()
    fleet.read()
    assert fleet.asked == [(7, AT, path)]
    assert [unread.kind.what for unread in fleet.reading().unread] == []


def test_a_child_of_llama_cpp_s_router_answers_at_the_port_that_the_kernel_chose(
    tmp_path: Path,
) -> None:
    """The router itself wants to be told of which model: it answers 400."""
    fleet = Fleet(tmp_path)
    fleet.run(10, program="llama-server")
    fleet.run(11, 10, program="llama-server")
    fleet.cards[0].hold(11)
    fleet.serve(10, AT, "HTTP/1.1 400 Bad Request\r\n\r\n{}")
    fleet.serve(11, "127.0.0.1:41234", page("llama_cpp_b11549"))
    assert running(fleet.read()) == 2
    fleet.asked.clear()
    assert running(fleet.read()) == 2
    assert fleet.asked == [(11, "127.0.0.1:41234", "/metrics")]


@pytest.mark.parametrize("program", ["sglang.launch_server", "dynamo.vllm", "tritonserver"])
def test_an_engine_s_own_program_without_a_page_is_unread(program: str, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.run(7, program=program)
    fleet.cards[0].hold(7)
    fleet.serve(7, AT, "HTTP/1.1 404 Not Found\r\n\r\n")
    for _ in range(2):  # also while it is left alone
        fleet.proc.clock.now += 1.0
        (unread,) = fleet.reading().unread
        assert (unread.kind.what, unread.example.partition(": ")[2]) == (
            "engine_page",
            "no_metrics",
        )


@pytest.mark.parametrize(
    "text", ["", "# HELP vllm:num_requests_running Text\n# TYPE vllm:num_requests_running gauge\n"]
)
def test_an_engine_that_has_had_no_request_yet_is_nothing_unread(text: str, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.run(7, program="vllm")
    fleet.cards[0].hold(7)
    fleet.serve(7, AT, text)
    fleet.read()
    assert fleet.reading().unread == ()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("# HELP other_metric Text\n# TYPE other_metric gauge\nother_metric 1\n", "unknown"),
        ("HTTP/1.1 404 Not Found\r\n\r\n", "no_metrics"),
        ("HTTP/1.1 302 Found\r\nLocation: http://10.0.0.9/\r\n\r\n" + RUNNING, "no_metrics"),
        ("<html><body># TYPE x gauge</body></html>", "no_metrics"),
        (json.dumps(page("vllm_v0")), "unparsable"),
        (OSError(errno.EPROTO, "no HTTP"), "garbled"),
        (OSError(errno.EMSGSIZE, "too long"), "garbled"),
        (TimeoutError(), "silent"),
        (PermissionError(errno.EPERM, "setns"), "no_permission"),
    ],
)
def test_a_server_that_is_not_read_is_counted(
    said: str | OSError, reason: str, tmp_path: Path
) -> None:
    fleet = Fleet(tmp_path)
    fleet.run(7)
    fleet.cards[0].hold(7)
    fleet.serve(7, AT, said)
    told = fleet.read()
    assert unanswered(told, reason) == 1
    assert running(told) is None
    unread = [one.kind.what for one in fleet.reading().unread]
    assert unread == {"unknown": ["engine"], "unparsable": ["engine_page"]}.get(reason, [])


def test_where_nobody_may_see_who_listens_that_is_counted(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.run(7, program="vllm")
    fleet.cards[0].hold(7)
    fleet.listening[7] = PermissionError(errno.EACCES, "fd")
    told = fleet.read()
    assert unanswered(told, "no_permission") == 1
    assert "starting" not in told


def test_a_port_without_metrics_is_left_alone_for_long(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.run(7)
    fleet.cards[0].hold(7)
    fleet.serve(7, AT, OSError(errno.EPROTO, "no HTTP"))
    for _ in range(int(MAX_RETRY_SECONDS / 10) - 1):
        fleet.read()
    assert len(fleet.asked) == 1
    for _ in range(10):
        fleet.read()
    assert len(fleet.asked) == 2


def test_what_a_launcher_runs_beside_an_engine_does_not_hide_its_start(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.run(10, program="launcher.py")
    fleet.run(11, 10, program="vllm")
    fleet.run(12, 10, program="exporter")
    fleet.cards[0].hold(11)
    fleet.serve(12, "127.0.0.1:9100", "node_load1 0.5\n")
    fleet.read()
    starting = "gpunode_serving_starting_seconds"
    assert series(fleet.read(30), starting) == 30
    fleet.serve(11, AT, RUNNING)
    assert series(fleet.read(60), starting) is None


def test_a_rank_beside_the_one_that_answers_does_not_start(tmp_path: Path) -> None:
    """As TensorRT-LLM under mpirun: the first of the ranks answers for all."""
    fleet = Fleet(tmp_path, gpus=2)
    fleet.run(10, program="mpirun")
    for rank, card in enumerate(fleet.cards):
        fleet.proc.run(20 + rank, "python3", "pt_nccl_watchdg")
        fleet.run(20 + rank, 10, program="trtllm-serve")
        card.hold(20 + rank)
    starting = "gpunode_serving_starting_seconds"
    assert series(fleet.read(), starting, uuid="GPU-1") is not None
    fleet.serve(20, AT, RUNNING)
    fleet.read()
    told = fleet.read()
    assert series(told, starting, uuid="GPU-1") is None
    info = {"gpu": "1", "uuid": "GPU-1", "first": "GPU-0"}
    assert series(told, "gpunode_serving_engine_info", **info) == 1
    assert running(told) == 2


def test_where_ranks_meet_does_not_keep_their_engine_from_being_asked(tmp_path: Path) -> None:
    """As SGLang: the store of the process group listens first, beside the engine's port."""
    fleet = Fleet(tmp_path)
    fleet.run(7, program="sglang")
    fleet.cards[0].hold(7)

    def waits(pid: int, address: str, path: str, names: Collection[str]) -> ScrapedPage:
        if address == STORE:
            fleet.proc.clock.now += 8
            raise TimeoutError
        return scrape(pid, address, path, names)

    scrape, fleet.proc.node.scrape = fleet.proc.node.scrape, waits  # type: ignore[method-assign]
    fleet.listening[7] = [STORE]
    assert series(fleet.read(), "gpunode_serving_starting_seconds") is not None
    fleet.listening[7] = [STORE, AT]
    fleet.pages[AT] = RUNNING
    fleet.read(10)
    assert running(fleet.read(10)) == 2


def test_an_engine_that_loads_is_starting_until_it_answers(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.run(10, program="vllm")
    fleet.run(11, 10, program="VLLM::EngineCore")
    fleet.cards[0].hold(11)
    starting = "gpunode_serving_starting_seconds"
    assert series(fleet.read(), starting, uuid="GPU-0") == 0
    assert series(fleet.read(30), starting) == 30
    fleet.serve(10, AT, "HTTP/1.1 503 Service Unavailable\r\n\r\n")
    assert series(fleet.read(60), starting) == 90
    fleet.serve(10, AT, RUNNING)
    told = fleet.read(60)
    assert series(told, starting) is None
    assert running(told) == 2


def test_a_server_without_metrics_has_started(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.run(7, program="sglang")
    fleet.cards[0].hold(7)
    fleet.serve(7, AT, "HTTP/1.1 404 Not Found\r\n\r\n")
    told = fleet.read()
    assert "starting" not in told
    assert unanswered(told, "no_metrics") == 1


API_CPUS = "gpunode_serving_api_cpus_ratio"


def test_the_cpu_of_who_takes_requests_is_told_for_each_gpu(tmp_path: Path) -> None:
    """Not that of the engine core, which spins while it waits for its workers."""
    fleet = vllm(tmp_path)
    assert API_CPUS not in fleet.read()
    fleet.use(10, 4.0)
    fleet.use(11, 10.0)
    told = fleet.read(10)
    for index in range(2):
        assert series(told, API_CPUS, uuid=f"GPU-{index}") == pytest.approx(0.4)
    fleet.use(10, 13.8)
    assert series(fleet.read(10), API_CPUS, uuid="GPU-1") == pytest.approx(0.98)


def test_of_several_that_take_requests_the_busiest_is_told(tmp_path: Path) -> None:
    """As SGLang with several tokenizers, which are children of the one that listens."""
    fleet = Fleet(tmp_path)
    fleet.run(10, program="sglang")
    fleet.run(11, 10, program="sglang::scheduler")
    fleet.run(12, 10)
    fleet.run(13, 10)
    fleet.cards[0].hold(11)
    fleet.serve(10, AT, page("sglang_0.5"))
    fleet.read()
    for pid, seconds in ((10, 1.0), (11, 10.0), (12, 9.0), (13, 7.0)):
        fleet.use(pid, seconds)
    assert series(fleet.read(10), API_CPUS) == pytest.approx(0.9)
    read = fleet.proc.node.read_text

    def denied(path: str) -> str:
        if path == "/proc/12/stat":
            raise PermissionError(errno.EACCES, "denied", path)
        return read(path)

    fleet.proc.node.read_text = denied  # type: ignore[method-assign]
    fleet.use(13, 15.0)
    assert series(fleet.read(10), API_CPUS) == pytest.approx(0.8)


def test_what_another_process_with_its_pid_used_is_not_of_who_takes_requests(
    tmp_path: Path,
) -> None:
    fleet = vllm(tmp_path)
    fleet.run(30, 10)
    fleet.use(30, 5.0)
    fleet.read()
    fleet.run(30, 10, start=2000)
    fleet.use(30, 9.0)
    fleet.use(10, 1.0)
    assert series(fleet.read(10), API_CPUS, uuid="GPU-0") == pytest.approx(0.1)


def test_an_engine_that_answers_from_the_gpu_has_no_other_that_takes_requests(
    tmp_path: Path,
) -> None:
    fleet = Fleet(tmp_path)
    fleet.run(7, program="llama-server")
    fleet.cards[0].hold(7)
    fleet.serve(7, AT, RUNNING)
    fleet.read()
    fleet.use(7, 9.0)
    assert API_CPUS not in fleet.read(10)


@pytest.mark.parametrize("said", [RUNNING.replace(" 2", " 0"), TimeoutError()])
def test_a_server_too_busy_with_tokens_of_requests_is_held_up_by_its_host(
    said: str | OSError, tmp_path: Path
) -> None:
    """Its engine has no request yet, and it may be too busy to answer."""
    fleet = vllm(tmp_path)
    stage = Stage(
        *(Actor(index, {"idle": 1.0}, program="VLLM::Worker_TP0") for index in range(2)),
        finders=[Engines(fleet)],
    )
    fleet.proc.node.clock = stage.clock  # type: ignore[assignment]
    stage.play(10)
    fleet.serve(10, AT, said)
    for second in range(10, 90, 10):
        fleet.use(10, 0.97 * second)
        stage.play(10)
    assert stage.causes == ["host_bound", "host_bound"]
    (busy,) = (one for one in stage.verdict(1).evidence if API_CPUS in one.series)
    assert busy.value == pytest.approx(0.97)


TOKENLESS = "gpunode_serving_tokenless_seconds"


def test_requests_that_run_while_no_token_comes_are_told(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.run(7)
    fleet.cards[0].hold(7)

    def goes_on(requests: int, tokens: int) -> float | None:
        text = f"vllm:num_requests_running {requests}\nvllm:generation_tokens_total {tokens}\n"
        fleet.serve(7, AT, text)
        return series(fleet.read(), TOKENLESS)

    assert goes_on(2, 5) == 0
    assert goes_on(2, 9) == 0
    assert goes_on(2, 9) == 10
    assert goes_on(3, 9) == 20
    assert goes_on(3, 10) == 0
    assert goes_on(3, 10) == 10
    assert goes_on(0, 10) == 0
    assert goes_on(0, 10) == 0
    assert goes_on(1, 10) == 0
    assert goes_on(1, 10) == 10
    fleet.pages[AT] = TimeoutError()
    told = fleet.read()
    assert series(told, TOKENLESS) == 20
    assert running(told) is None
    assert unanswered(told, "silent") == 1


def test_a_server_that_no_longer_answers_is_asked_again_soon_and_then_seldom(
    tmp_path: Path,
) -> None:
    fleet = Fleet(tmp_path)
    fleet.run(7)
    fleet.cards[0].hold(7)
    fleet.serve(7, AT, RUNNING)
    fleet.read()
    fleet.pages[AT] = TimeoutError()
    asked = []
    for at in range(0, 600, 10):
        before = len(fleet.asked)
        fleet.read()
        asked += [at] * (len(fleet.asked) - before)
    assert asked == [0, 20, 50, 110, 230, 470]
    fleet.pages[AT] = RUNNING
    while running(fleet.read()) is None:
        assert len(fleet.asked) < 10
    before = len(fleet.asked)
    fleet.read()
    assert len(fleet.asked) == before + 1


def test_a_page_that_was_not_read_again_is_no_sign_of_standing_still(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.run(7)
    fleet.cards[0].hold(7)
    fleet.serve(7, AT, RUNNING)
    fleet.read()
    for server in fleet.source._servers.values():
        server.due = 1e9
    assert series(fleet.read(), TOKENLESS) == 0


def test_an_engine_that_counts_only_whole_requests_cannot_tell_that(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.run(7)
    fleet.cards[0].hold(7)
    fleet.serve(7, AT, page("trtllm_1.1"))
    fleet.read()
    assert TOKENLESS not in fleet.read()


def test_what_a_server_said_is_gone_with_it(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.run(7)
    fleet.cards[0].hold(7)
    fleet.serve(7, AT, RUNNING)
    assert running(fleet.read()) == 2
    fleet.pages[AT] = ConnectionRefusedError()
    assert running(fleet.read()) is None
    fleet.cards[0].hold()
    assert fleet.read() == ""


def test_people_see_the_requests_and_tokens_of_a_server(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, gpus=2)
    fleet.run(10, program="vllm")
    for index, card in enumerate(fleet.cards):
        fleet.run(20 + index, 10)
        card.hold(20 + index)
    stage = Stage(Actor(0), Actor(1), finders=[Engines(fleet)])
    fleet.proc.node.clock = stage.clock  # type: ignore[assignment]

    def seen(seconds: int, tokens: int) -> list[str]:
        for second in range(0, seconds, 10):
            fleet.serve(
                10,
                AT,
                'vllm:num_requests_running{model_name="llama"} 8\n'
                'vllm:num_requests_waiting{model_name="llama"} 3\n'
                f'vllm:generation_tokens_total{{model_name="llama"}} {tokens * second}\n',
            )
            stage.play(10)
        return [gpu.serves for gpu in node(stage.loop).gpus]

    assert seen(10, 0) == ["8 requests run, 3 wait (llama, vllm)", "with GPU 0"]
    steady = ["8 requests run, 3 wait, 1,250 tokens/s (llama, vllm)", "with GPU 0"]
    assert seen(120, 1250) == steady
    fleet.pages[AT] = ConnectionRefusedError()
    stage.play(30)
    assert [gpu.serves for gpu in node(stage.loop).gpus] == ["", ""]


def test_a_noisy_user_leaves_no_engine_of_another_out(tmp_path: Path) -> None:
    """More servers than are asked: each owner has a share, and what is left out is counted."""
    fleet = Fleet(tmp_path, gpus=2)
    noisy = range(100, 100 + 2 * SERVERS)
    for pid in noisy:
        fleet.run(pid)
        fleet.serve(pid, f"127.0.0.1:{8000 + pid}", OSError(errno.ETIMEDOUT, "hangs"))
    fleet.cards[0].hold(*noisy)
    fleet.run(7, cgroup=POD.format(1, "a" * 64))
    fleet.cards[1].hold(7)
    fleet.serve(7, AT, RUNNING)
    reading = fleet.reading()
    assert running(exported(reading.samples)) == 2
    (left_out,) = (one for one in reading.unread if one.kind.what == "servers")
    assert left_out.times == SERVERS + 1
    assert left_out.example.endswith(f"{SERVERS + 1} of user 1000 are left out")


def test_engines_of_one_owner_that_hang_keep_no_place_from_another_s(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, gpus=2)
    for pid in range(100, 112):
        fleet.run(pid)
        fleet.serve(pid, f"127.0.0.1:{8000 + pid}", RUNNING)
    fleet.cards[0].hold(*range(100, 112))
    fleet.run(7, cgroup=POD.format(1, "a" * 64))
    fleet.cards[1].hold(7)
    fleet.serve(7, AT, RUNNING)
    ever, scrape = threading.Event(), fleet.proc.node.scrape

    def hangs(pid: int, *asked: Any) -> ScrapedPage:
        if pid != 7:
            ever.wait()
        return scrape(pid, *asked)

    fleet.proc.node.scrape = hangs  # type: ignore[method-assign, assignment]
    try:
        assert running(fleet.read()) == 2
    finally:
        ever.set()
