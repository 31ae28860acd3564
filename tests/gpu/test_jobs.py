"""Jobs on real GPUs: NCCL's RAS names a rank that does not join; training tells its MFU."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gpunode.node import LocalNode
from tests.daemon import Daemon, daemon, free_port

HERE = Path(__file__).parent
NVIDIA = Path("/dev/nvidia0").exists()

pytestmark = pytest.mark.skipif(not NVIDIA, reason="no NVIDIA GPU on this machine")


def line(running: Daemon, name: str) -> str | None:
    text = running.get("/metrics").decode()
    return next((line for line in text.splitlines() if line.startswith(name)), None)


def value(running: Daemon, name: str) -> float | None:
    found = line(running, name)
    return None if found is None else float(found.rpartition(" ")[2])


@contextmanager
def ranks(count: int, seconds: float, logs: Path) -> Iterator[list[subprocess.Popen[str]]]:
    environment = {
        **os.environ,
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_FILE": f"{logs}/nccl.%h.%p.log",
    }
    with ExitStack() as stack:
        started = [
            subprocess.Popen(
                [sys.executable, str(HERE / "nccl_rank.py"), str(seconds)],
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(count)
        ]
        for process in started:
            stack.enter_context(process)
            stack.callback(process.kill)
        yield started


def test_a_rank_that_does_not_join_is_named_within_30_seconds(tmp_path: Path) -> None:
    count = len(LocalNode(Path("/")).driver().gpus())
    if count < 2:
        pytest.skip("needs two GPUs")
    with daemon("--log.level=error") as running, ranks(count, 15.0, tmp_path) as started:
        stdout = started[-1].stdout
        assert stdout is not None
        stalled = float(stdout.readline().split()[1])
        transports = line(running, "gpunode_nccl_channels")
        while (awaited := line(running, "gpunode_nccl_awaited_rank_info")) is None:
            assert time.time() - stalled < 60, running.get("/metrics").decode()
            time.sleep(0.2)
        took = time.time() - stalled
        text = running.get("/metrics").decode()
        verdict = running.get("/api/v1/verdict").decode()
        node = LocalNode(Path("/"))
        request = "CLIENT PROTOCOL 2\nTIMEOUT 3\n{}VERBOSE STATUS\n"
        for name, how in (("json", "SET FORMAT json\n"), ("txt", "")):
            answer = node.ask(started[0].pid, "localhost:28028", request.format(how))
            (tmp_path / f"ras.{name}").write_text(answer)
            print(answer)
    print("\n".join(x for x in text.splitlines() if "nccl" in x and x[0] != "#"))
    print(f"named after {took:.1f} s: {awaited}\n{verdict[:2000]}\n{transports}")
    assert f'pid="{started[-1].pid}"' in awaited
    assert f'rank="{count - 1}",reason="behind"' in awaited
    assert took <= 30
    assert transports is not None
    assert 'transport="P2P/CUMEM"' in transports


@contextmanager
def trainer(steps: int, how: str, socket: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {
        **os.environ,
        "GPUNODE_CLIENT_SOCKET": str(socket),
        "PYTHONPATH": f"{HERE.parents[1] / 'exporter'}:{os.environ.get('PYTHONPATH', '')}",
    }
    command = [sys.executable, str(HERE / "cuda_trainer.py"), str(steps), how]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_training_on_a_gpu_tells_its_mfu_and_is_not_slowed_down(tmp_path: Path) -> None:
    socket = tmp_path / "c.sock"
    medians: dict[str, list[float]] = {}
    with daemon("--log.level=error", f"--client.socket={socket}") as running:
        for how in ("alone", "told", "alone", "told"):
            with trainer(1500, how, socket) as process:
                assert process.stdout is not None
                told = json.loads(process.stdout.readline())
                median = statistics.median(told["steps"][300:])
                medians.setdefault(how, []).append(median)
                time.sleep(4)
                found = value(running, "gpunode_training_mfu_ratio")
                if how == "told":
                    reserved = value(running, "gpunode_torch_memory_reserved_bytes")
                    steps = value(running, "gpunode_training_step_seconds_count")
                    peak = value(
                        running, 'gpunode_gpu_peak_flops_per_second{gpu="0",precision="half"'
                    )
    assert peak is not None
    expected = told["flops"] / median / peak
    print(f"MFU {found}, by hand {expected:.3f}; reserved {reserved}, steps {steps}; {medians}")
    assert found == pytest.approx(expected, rel=0.1)
    assert reserved is not None
    assert reserved > 3 * 4096 * 4096 * 2 - 1
    assert steps == 2 * 1500 - 2 or steps == 1500 - 1


HUGGING_FACE = """
import torch, transformers
from gpunode.client.hugging_face import GpunodeCallback
class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return dict.fromkeys(("input_ids", "labels"), torch.arange(16) % 9)
config = transformers.GPT2Config(n_layer=1, n_head=1, n_embd=32, vocab_size=16, n_positions=32)
arguments = transformers.TrainingArguments(output_dir=FOLDER, max_steps=12, logging_steps=2,
    save_steps=6, report_to=[], per_device_train_batch_size=2, include_num_input_tokens_seen=True)
trainer = transformers.Trainer(transformers.GPT2LMHeadModel(config), arguments,
    train_dataset=Data(), callbacks=[GpunodeCallback()])
trainer.train()
"""
LIGHTNING = """
import torch
try: import lightning.pytorch as lightning
except ImportError: import pytorch_lightning as lightning
from gpunode.client.lightning import GpunodeCallback
class Model(lightning.LightningModule):
    def __init__(self): super().__init__(); self.layer = torch.nn.Linear(8, 8)
    def training_step(self, batch, _): return self.layer(batch).pow(2).mean()
    def validation_step(self, batch, _): return None
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), 0.01)
data = torch.utils.data.DataLoader(torch.randn(24, 8), batch_size=2)
trainer = lightning.Trainer(max_epochs=1, accelerator="gpu", devices=1,
    callbacks=[GpunodeCallback()], default_root_dir=FOLDER, enable_progress_bar=False, logger=False)
trainer.fit(Model(), data, data)
"""


@pytest.mark.parametrize(
    ("module", "code"), [("transformers", HUGGING_FACE), ("lightning", LIGHTNING)]
)
def test_the_callbacks_of_frameworks_tell_steps(module: str, code: str, tmp_path: Path) -> None:
    pytest.importorskip(module)
    socket = tmp_path / "c.sock"
    environment = {
        **os.environ,
        "GPUNODE_CLIENT_SOCKET": str(socket),
        "CUDA_VISIBLE_DEVICES": "0",
        "PYTHONPATH": f"{HERE.parents[1] / 'exporter'}:{os.environ.get('PYTHONPATH', '')}",
    }
    code = f"FOLDER = {str(tmp_path)!r}\n{code}\nimport time; time.sleep(4)"
    with daemon("--log.level=error", f"--client.socket={socket}") as running:
        with subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE, text=True
        ) as process:
            steps = 0.0
            while process.poll() is None:
                steps = value(running, "gpunode_training_step_seconds_count") or steps
                text = running.get("/metrics").decode()
                time.sleep(0.2)
            assert process.stderr is not None
            err = process.stderr.read()
        print(err[-2000:], "\n".join(re.findall(r"^gpunode_(?:training|client).*", text, re.M)))
        assert process.returncode == 0, err
    assert steps == 11
