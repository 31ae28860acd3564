"""Jobs on real GPUs: NCCL's RAS names a rank that does not join; training tells its MFU."""

from __future__ import annotations

import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpunode.driver.vendors import open_drivers
from tests.daemon import daemon
from tests.hardware.jobs import HERE, STEPS, hanging, named, trainer, training, value

NVIDIA = Path("/dev/nvidia0").exists()

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not NVIDIA, reason="no NVIDIA GPU on this machine"),
]


def test_a_rank_that_does_not_join_is_named_within_30_seconds(tmp_path: Path) -> None:
    count = sum(len(driver.gpus()) for driver in open_drivers(time.monotonic))
    if count < 2:
        pytest.skip("needs two GPUs")
    with daemon("--log.level=error") as running, hanging(count, tmp_path) as job:
        found = named(running, job)
    print(found)
    assert f'pid="{job.pids[-1]}"' in found.awaited
    assert f'rank="{count - 1}",reason="behind"' in found.awaited
    assert found.seconds <= 30
    assert found.channels is not None
    assert 'transport="P2P/CUMEM"' in found.channels


def test_training_on_a_gpu_tells_its_mfu(tmp_path: Path) -> None:
    found = training(tmp_path, runs=1)
    print(found)
    assert found.mfu == pytest.approx(found.by_hand, rel=0.1)
    assert found.reserved >= 3 * 4096 * 4096 * 2
    assert found.steps == STEPS - 1


def test_a_profiled_step_tells_its_kernels(tmp_path: Path) -> None:
    socket = tmp_path / "c.sock"
    with (
        daemon("--log.level=error", f"--client.socket={socket}") as running,
        trainer("profiled", socket) as process,
    ):
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.readline()
        time.sleep(4.0)
        text = running.get("/metrics").decode()
    kernels = dict(
        re.findall(r'^gpunode_training_kernel_seconds{.*kernel="(.+?)".*} (.+)', text, re.M)
    )
    print(kernels)
    assert not any(name.startswith("aten::") for name in kernels), "operators of the CPU"
    longest = max(kernels, key=lambda name: float(kernels[name]))
    assert re.search(r"gemm|nvjet|cutlass", longest)
    assert 2e-3 < float(kernels[longest]) < 6e-3, "the time of one step"


def test_training_on_a_gpu_goes_on_when_the_daemon_is_killed(tmp_path: Path) -> None:
    socket = tmp_path / "c.sock"
    with (
        contextlib.suppress(RuntimeError),
        daemon("--log.level=error", f"--client.socket={socket}") as running,
        trainer("told", socket) as process,
    ):
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(4.0)
        running.process.kill()
        loop = json.loads(process.stdout.readline())
        before, after = loop["steps"][300:800], loop["steps"][-500:]
    print(statistics.median(before), statistics.median(after), max(after))
    assert len(loop["steps"]) == STEPS
    assert statistics.median(after) < 1.1 * statistics.median(before)


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
