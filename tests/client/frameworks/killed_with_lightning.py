"""The training of ``killed.py`` under Lightning, which counts its steps and saves by itself."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from gpunode.client.lightning import GpunodeCallback

STEP, STEPS, SAVED_EVERY, DIES_AT = 1.0, 12, 4, 7


class Model(pl.LightningModule):
    """Notes each of its steps, and dies at one."""

    def __init__(self, folder: Path, *, dies: bool) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
        self.folder = folder
        self.dies = dies

    def _register_sharded_tensor_state_dict_hooks_if_available(self) -> None:
        """Nothing: Debian 12 has a PyTorch older than its Python, in which this is broken."""

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        if self.dies and self.global_step == DIES_AT:
            time.sleep(STEP / 2)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(STEP)
        with (self.folder / "truth").open("a") as truth:
            print("step", self.global_step + 1, time.time(), file=truth, flush=True)
        return self.layer(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main(folder: Path) -> None:
    """Train until killed, or from the checkpoint to the end."""
    saved = folder / "last.ckpt"
    checkpoints = pl.callbacks.ModelCheckpoint(
        folder, every_n_train_steps=SAVED_EVERY, save_last=True
    )
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        callbacks=[GpunodeCallback(), checkpoints],
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = torch.utils.data.DataLoader([torch.ones(8)] * STEPS, batch_size=1)
    again = saved.exists()
    trainer.fit(Model(folder, dies=not again), loader, ckpt_path=str(saved) if again else None)


if __name__ == "__main__":
    input()  # once the daemon knows that this process has a GPU
    main(Path(sys.argv[1]))
    time.sleep(2.5)  # the daemon hears of the last step
