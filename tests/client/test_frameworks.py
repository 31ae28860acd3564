"""The callbacks under real Lightning and Hugging Face, as they train and tell a real daemon."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from gpunode.client.protocol import PHASES
from tests.conftest import Series, read_again, scrape, until, values, watching
from tests.daemon import TIMEOUT, free_port
from tests.fakes.nvml import FakeDriver
from tests.needs import ROOT, need_library

pytestmark = pytest.mark.integration

LIBRARIES = {"lightning": "lightning", "hugging_face": "transformers"}
"""What each module of ``gpunode.client`` calls back from."""

RANK_VARIABLES = {"MASTER_ADDR": "127.0.0.1", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}
"""What ``torchrun`` sets, the same for both ranks."""


def train(
    module: str, fake: FakeDriver, folder: Path, *arguments: str, ranks: int = 1
) -> tuple[list[dict[str, float]], list[str], Series]:
    """What training with a callback says is true, what else each rank says, and what is exported.

    Each rank has a GPU of its own.
    """
    program = ROOT / f"tests/client/frameworks/with_{module}.py"
    python = need_library(LIBRARIES[module])
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "exporter"),
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
    }
    if ranks > 1:
        environment |= RANK_VARIABLES | {"MASTER_PORT": str(free_port())}
    command = [python, "-W", "ignore", str(program), str(folder), *arguments]
    fake.write(f"gpus {ranks}\n")
    with (
        tempfile.TemporaryDirectory(prefix="g", dir="/tmp") as short,  # 108 bytes at most
        watching(fake, f"--client.socket={short}/client.sock", "--client.interval=1") as running,
    ):
        environment["GPUNODE_CLIENT_SOCKET"] = f"{short}/client.sock"
        processes = [
            subprocess.Popen(
                command,
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                if ranks > 1
                else environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        try:
            held = (f"gpu {gpu} process {one.pid} 1000000" for gpu, one in enumerate(processes))
            fake.write("\n".join((f"gpus {ranks}", *held, "")))
            until(lambda: len(values(scrape(running), "gpunode_gpu_process_info")) == ranks)
            for process in processes:
                print(file=process.stdin, flush=True)
            said = [process.communicate(timeout=TIMEOUT) for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert not any(process.returncode for process in processes), said
        truths = [json.loads(out.splitlines()[-1]) for out, _ in said]
        read_again(running, "training_steps", 2)  # the second began after the last message
        return truths, [err for _, err in said], scrape(running)


def agree(truth: dict[str, float], found: Series, gpu: int) -> None:
    """What is exported of a GPU is what its training says."""

    def one(name: str, **labels: str) -> float:
        (value,) = values(found, f"gpunode_training_{name}", gpu=str(gpu), **labels)
        return value

    assert one("step_seconds_count") == truth["steps"] - 1, "a step begins where one has ended"
    assert one("samples_total") == truth["samples"]
    assert one("tokens_total") == truth["tokens"]
    assert one("loss") == pytest.approx(truth["loss"], rel=1e-3)
    spent = {phase: one("seconds_total", phase=phase) for phase in PHASES}
    for phase in ("data", "evaluation", "checkpoint"):
        # A callback is called a moment after the loader has begun, or before it ends.
        assert spent[phase] >= 0.95 * truth[phase], spent


@pytest.mark.parametrize("module", LIBRARIES)
def test_a_callback_reports_what_its_training_does(
    module: str, fake: FakeDriver, tmp_path: Path
) -> None:
    (truth,), (said,), found = train(module, fake, tmp_path)
    agree(truth, found, 0)
    assert said.count("gpunode: reporting to ") == 1


def test_a_training_that_resumes_does_not_report_again_what_its_checkpoint_has(
    fake: FakeDriver, tmp_path: Path
) -> None:
    train("hugging_face", fake, tmp_path)
    (truth,), _, found = train("hugging_face", fake, tmp_path, "resume")
    agree(truth, found, 0)


def test_each_process_of_the_trainer_reports_its_own_tokens_and_rank_0_the_status(
    fake: FakeDriver, tmp_path: Path
) -> None:
    truths, said, found = train("hugging_face", fake, tmp_path, ranks=2)
    for gpu, truth in enumerate(truths):
        agree(truth, found, gpu)
    assert ["gpunode: reporting to" in one for one in said] == [True, False]
