"""Training under Lightning that reports through ``GpunodeCallback``."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import lightning.pytorch as pl
import torch

from gpunode.client.lightning import GpunodeCallback

BATCHES, BATCH, SEQUENCE = 20, 4, 32
LOADING, VALIDATING, SAVING = 0.02, 0.2, 0.3
"""Seconds that a batch takes to load, and each validation and checkpoint."""


class Slow(torch.utils.data.Dataset[Any]):
    """Batches, each of which takes its time."""

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        if at >= BATCHES:
            raise IndexError
        time.sleep(LOADING)
        return {"input_ids": torch.full((BATCH, SEQUENCE), at)}


class Model(pl.LightningModule):
    """Learns the number of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Embedding(BATCHES, 1)
        self.last = 0.0

    def _register_sharded_tensor_state_dict_hooks_if_available(self) -> None:
        """Nothing: Debian 12 has a PyTorch older than its Python, in which this is broken."""

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        loss = (self.layer(batch["input_ids"]) - 1.0).square().mean()
        self.last = loss.item()
        return loss

    def validation_step(self, *_: Any) -> None:
        time.sleep(VALIDATING)

    def on_save_checkpoint(self, _: Any) -> None:
        time.sleep(SAVING)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main(folder: str) -> None:
    """Train with two validations and two checkpoints, and print what is true of it."""
    model = Model()
    checkpoints = pl.callbacks.ModelCheckpoint(folder, every_n_train_steps=BATCHES // 2)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        val_check_interval=BATCHES // 2,
        limit_val_batches=1,
        callbacks=[GpunodeCallback(), checkpoints],
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = torch.utils.data.DataLoader(Slow(), batch_size=None)
    trainer.fit(model, loader, torch.utils.data.DataLoader(Slow(), batch_size=None))
    truth = {
        "steps": BATCHES,
        "samples": BATCHES * BATCH,
        "tokens": BATCHES * BATCH * SEQUENCE,
        "loss": model.last,
        "data": BATCHES * LOADING,
        "evaluation": 2 * VALIDATING,
        "checkpoint": 2 * SAVING,
    }
    print(json.dumps(truth))


if __name__ == "__main__":
    input()  # once the daemon knows that this process has a GPU
    main(sys.argv[1])
    time.sleep(2.5)  # The daemon, which reads once a second, asks which GPU the sender has.
