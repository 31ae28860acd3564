"""A callback for PyTorch Lightning: ``Trainer(callbacks=[GpunodeCallback()])``."""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback

from gpunode.client import Session, _session


class GpunodeCallback(Callback):  # type: ignore[misc]
    """Reports steps with loss, tokens and samples, waits for data, validations and checkpoints.

    Tokens are those of a batch's ``input_ids``. A loss on a GPU is read only when Lightning logs,
    which waits for it anyway.
    """

    def __init__(self, session: Session = _session) -> None:
        self._session = session
        self._training = False

    def on_fit_start(self, trainer: Any, *_: Any) -> None:
        # No hook follows a checkpoint before the next batch has been waited for.
        save = trainer.save_checkpoint

        def saving(*arguments: Any, **named: Any) -> Any:
            with self._session.phase("checkpoint"):
                return save(*arguments, **named)

        trainer.save_checkpoint = saving

    def on_train_start(self, *_: Any) -> None:
        self._training = True
        self._session.mark("data")

    def on_train_batch_start(self, *_: Any) -> None:
        self._session.mark("step")

    def on_train_batch_end(self, trainer: Any, _: Any, outputs: Any, batch: Any, *__: Any) -> None:
        self._session.step(_tokens(batch), _samples(batch), number=_batches(trainer))
        loss: Any = outputs.get("loss") if isinstance(outputs, dict) else outputs
        every = getattr(trainer, "log_every_n_steps", 0)
        if getattr(loss, "is_cuda", False) and every and trainer.global_step % every == 0:
            loss = loss.item()
        if loss is not None:
            self._session.loss(loss)
        self._session.mark("data")

    def on_validation_start(self, *_: Any) -> None:
        self._session.mark("evaluation")

    def on_validation_end(self, *_: Any) -> None:
        self._session.mark("data" if self._training else "other")

    def on_train_end(self, *_: Any) -> None:
        self._training = False
        self._session.mark("other")
        self._session.flush()


def _batches(trainer: Any) -> int | None:
    """The batches of the whole training that have begun, which its checkpoints count."""
    loop: Any = getattr(getattr(trainer, "fit_loop", None), "epoch_loop", None)
    last = getattr(loop, "total_batch_idx", None)
    return None if last is None else last + 1


def _tokens(batch: Any) -> int:
    """The tokens of a batch, where it has ``input_ids``."""
    ids: Any = batch.get("input_ids") if hasattr(batch, "get") else None
    return int(ids.numel()) if hasattr(ids, "numel") else 0


def _samples(batch: Any) -> int:
    """The first dimension of the first tensor of a batch; 0 if it has none."""
    if shape := getattr(batch, "shape", ()):
        return int(shape[0])
    parts = batch.values() if hasattr(batch, "values") else batch
    if not isinstance(parts, (list, tuple)) and parts is batch:
        return 0
    return next((size for part in parts if (size := _samples(part))), 0)
