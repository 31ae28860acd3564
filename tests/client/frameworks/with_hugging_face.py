"""Training under Hugging Face's Trainer that reports through ``GpunodeCallback``.

As several processes, it runs where the environment has what ``torchrun`` sets.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

from gpunode.client.hugging_face import GpunodeCallback

if not hasattr(torch.cpu, "device_count"):  # PyTorch before 2.0, as in Debian 12
    torch.cpu.device_count = lambda: 1
    torch.cpu.set_device = lambda _: None

STEPS, BATCH, SEQUENCE, WORDS = 20, 4, 32, 16
LOADING, VALIDATING, SAVING = 0.005, 0.2, 0.3
"""Seconds that a sequence takes to load, and each validation and checkpoint."""


class Slow(torch.utils.data.Dataset[Any]):
    """Sequences, each of which takes its time."""

    def __init__(self, length: int, seconds: float) -> None:
        self.length = length
        self.seconds = seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        time.sleep(self.seconds)
        words = torch.full((SEQUENCE,), at % WORDS)
        return {"input_ids": words, "labels": words}


class Model(torch.nn.Module):
    """Learns to repeat the words of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Embedding(WORDS, WORDS)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.layer(input_ids)
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": scores}


class SlowToSave(Trainer):
    """Takes its time to write a checkpoint."""

    def _save(self, *arguments: Any, **named: Any) -> None:
        time.sleep(SAVING)
        super()._save(*arguments, **named)


def main(folder: str, *, resume: bool) -> None:
    """Train with two validations and two checkpoints, and print what is true of this process.

    Resumed, it trains for as many steps again.
    """
    arguments = TrainingArguments(
        folder,
        max_steps=STEPS * (2 if resume else 1),
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=1,
        eval_strategy="steps",
        eval_steps=STEPS // 2,
        save_steps=STEPS // 2,
        logging_steps=1,
        include_num_input_tokens_seen=True,
        disable_tqdm=True,
        report_to=[],
        use_cpu=True,
    )
    trainer = SlowToSave(
        Model(),
        arguments,
        train_dataset=Slow(4 * STEPS * BATCH, LOADING),
        eval_dataset=Slow(arguments.world_size, VALIDATING),
        callbacks=[GpunodeCallback()],
    )
    trainer.train(resume_from_checkpoint=resume)
    losses = [one["loss"] for one in trainer.state.log_history if "loss" in one]
    truth = {
        "steps": STEPS,
        "samples": STEPS * BATCH,
        "tokens": STEPS * BATCH * SEQUENCE,
        "loss": losses[-1],
        "data": STEPS * BATCH * LOADING,
        "evaluation": 2 * VALIDATING,
        "checkpoint": 2 * SAVING if arguments.process_index == 0 else 0.0,
    }
    print("\n" + json.dumps(truth))


if __name__ == "__main__":
    input()  # once the daemon knows that this process has a GPU
    main(sys.argv[1], resume=sys.argv[2:] == ["resume"])
    time.sleep(2.5)  # The daemon, which reads once a second, asks which GPU the sender has.
